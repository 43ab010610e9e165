//! A file of the folder that a policy includes, checked alone.
//!
//! Why: what makes tenants, such as a container engine's plugin, is debugged by one file, whose policy may be on another host.
//! From: a policy with a fast uplink that includes this file and no other.
//! Not here: whether the tenants fit the policy that will include them.
//! Invariant: no file is read but this one and those of tenants beside it.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_daemon::reader;
use plimsoll_document::Tree;
use plimsoll_policy::{Checked, Errors, FileId, Files, MAX_FILE, Sources, Unread, check_files, read_text};

use crate::reader::process;

/// Checks the file as one of a policy of which nothing else is known.
pub(super) fn load(file: &str) -> Result<Checked, Errors> {
    let folder = Path::new(file).parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // A policy names the folder as seen from itself, so what tenants name lies beside the folder or in it.
    let home = fs::canonicalize(folder).ok().and_then(|folder| Some(folder.parent()?.to_owned()));
    check_files(&host_of(folder), &mut Alone { file: file.to_owned(), home })
}

/// A name for the policy that includes the folder.
fn host_of(folder: &Path) -> String {
    folder.join("the file that includes this one").display().to_string()
}

struct Alone {
    file: String,
    home: Option<PathBuf>,
}

impl Files for Alone {
    fn text(&mut self, name: &str) -> Result<String, String> {
        if name == self.file {
            return read_text(Path::new(name), MAX_FILE);
        }
        if Path::new(name).file_name() == Path::new(&host_of(Path::new("."))).file_name() {
            // Tenants of any speed, and as many as a frame of 9,000 bytes leaves time for.
            return Ok(
                "uplink: {port: memory, rate: 100Gbps}\nengine: {line_rate_frame: 9000B}\ninclude: .\n"
                    .to_owned(),
            );
        }
        let real = fs::canonicalize(name).map_err(|error| error.to_string())?;
        if !real.is_file() || !self.home.as_ref().is_some_and(|home| real.starts_with(home)) {
            return Err("it is no file beside the one that is checked".to_owned());
        }
        read_text(&real, MAX_FILE)
    }

    fn folder(&mut self, _: &str) -> Result<Vec<String>, String> {
        Ok(vec![self.file.clone()])
    }

    fn tree(&mut self, sources: &Sources, file: FileId) -> Result<Tree, Unread> {
        reader::parse(&*process(), sources, file)
    }
}
