//! The modules of the programs that a scenario gives to tenants.
//!
//! Why: virtual time runs what live runs, so it wants the modules' bytes; what cannot be read is said before anything runs.
//! From: `docs/programs.md`.
//! Not here: checking and running a module (`plimsoll-offload`), and live, where the daemon reads it itself.
//! Invariant: a module has the path that the policy of each system names it by.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_document::{Mark, Value};

use crate::model::Scenario;
use crate::sections::PolicySections;
use crate::{Errors, Problem};

/// A module that has been read.
#[derive(Clone, Debug, Default)]
pub struct ModuleFile {
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// Where the scenario names it.
    pub place: Mark,
}

/// The ending of files with WebAssembly's text: such modules need no compiler, and what they do is to be seen.
const TEXT: &str = "wat";

/// Bytes of a module's file, and one more: those of a longer one are refused.
const MOST: u64 = (1 << 20) + 1;

impl Scenario {
    /// Reads the modules of tenants' programs that its systems and hosts name. To be called before it is run in virtual time.
    ///
    /// # Errors
    /// Each module that cannot be read, where the file names it.
    pub fn read_modules(&mut self) -> Result<(), Errors> {
        let mut problems = Vec::new();
        for (path, place) in self.named_modules() {
            if self.modules.contains_key(&path) {
                continue;
            }
            match read(&path) {
                Ok(bytes) => drop(self.modules.insert(path, ModuleFile { bytes: bytes.into(), place })),
                Err(error) => {
                    let message = format!("the module {} cannot be read: {error}", path.display());
                    let help = "compile it, or name another file; the path begins beside this file";
                    problems.push(Problem::new(place, message).label("no module").help(help));
                }
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Errors::new(problems, self.sources.clone())) }
    }

    /// The modules that it names, as the policy files of its systems name them, and where.
    fn named_modules(&self) -> Vec<(PathBuf, Mark)> {
        let own = self.systems.iter().filter_map(|system| system.policy.as_ref());
        let hosts = self.hosts.iter().filter_map(|host| host.policy.as_ref());
        own.chain(hosts).chain([&self.policy]).flat_map(named_in).collect()
    }
}

fn named_in(sections: &PolicySections) -> impl Iterator<Item = (PathBuf, Mark)> {
    let keys = sections.tenants.iter().flat_map(|(_, keys)| keys);
    let programs = keys.filter(|(key, _)| key == "program").map(|(_, program)| program);
    programs.filter_map(|program| program.get("module")).filter_map(|module| match &module.value {
        Value::Text(path) => Some((sections.base.join(path), module.at)),
        _ => None,
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for its other end.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut module = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut module)?;
    if path.extension().is_some_and(|ending| ending == TEXT) {
        return wat::parse_bytes(&module).map(Cow::into_owned).map_err(io::Error::other);
    }
    Ok(module)
}
