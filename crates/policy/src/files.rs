//! Where a policy's files come from: their texts, and what these say as YAML.
//!
//! Why: an operator's file names tenants' files, and a tenant must neither see other files nor keep a reload from ending.
//! From: `docs/policy.md`, "policy" and "How large a file may be".
//! Not here: what the files say (`read`), the process that tenants' files are read in (the daemon).
//! Invariant: no file is read further than its bound; a tenant's link leads nowhere that its author may not look.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use plimsoll_units::Bytes;

use plimsoll_document::{self as document, FileId, Sources, SyntaxError, Tree};

/// Where a policy's files come from.
pub trait Files {
    /// The text of a file by its path as seen from the working directory of the first file's reader; asked once each.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn text(&mut self, name: &str) -> Result<String, String>;

    /// The paths of the files `*.yaml` in a folder, in order; asked once.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn folder(&mut self, name: &str) -> Result<Vec<String>, String>;

    /// The tree of a tenant's or an application's file; asked once each.
    ///
    /// # Errors
    /// [`Unread`].
    fn tree(&mut self, sources: &Sources, file: FileId) -> Result<Tree, Unread> {
        here(sources, file)
    }
}

/// Why a text did not become a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is no YAML.
    Syntax(SyntaxError),
    /// The process that read it has ended without an answer, or gave one that makes no sense.
    Ended(String),
}

/// Reads a file's text as YAML, here or elsewhere.
pub type Parse<'a> = dyn FnMut(&Sources, FileId) -> Result<Tree, Unread> + 'a;

/// Parses a file in this process.
pub(crate) fn here(sources: &Sources, file: FileId) -> Result<Tree, Unread> {
    document::parse(sources, file).map_err(Unread::Syntax)
}

/// Texts that the caller supplies.
pub(crate) struct Loaded<'a>(pub &'a mut dyn FnMut(&str) -> Result<String, String>);

impl Files for Loaded<'_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        (self.0)(name)
    }

    fn folder(&mut self, _: &str) -> Result<Vec<String>, String> {
        Err("this policy is read without folders".to_owned())
    }
}

/// The file `path` and those that it names, from the file system.
pub(crate) struct Disk<'a, 'p> {
    path: &'a str,
    /// The policy's own directory.
    home: Option<PathBuf>,
    parse: &'a mut Parse<'p>,
}

impl<'a, 'p> Disk<'a, 'p> {
    pub fn new(path: &'a str, parse: &'a mut Parse<'p>) -> Self {
        let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
        let home = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok();
        Self { path, home, parse }
    }
}

impl Files for Disk<'_, '_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        let path = Path::new(name);
        if name == self.path {
            return read_text(path, MAX_FILE);
        }
        let real = fs::canonicalize(path).map_err(|error| error.to_string())?;
        refuse_detour(path, &real, self.home.as_deref())?;
        if !real.is_file() {
            return Err(NO_FILE.to_owned()); // opening a device may do anything
        }
        // Its author may have put something else in its place meanwhile: a link, or a pipe without a writer.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = file.map_err(|error| error.to_string())?;
        refuse_detour(path, &place_of(&file)?, self.home.as_deref())?;
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(NO_FILE.to_owned());
        }
        text_in(file, MAX_FILE)
    }

    fn folder(&mut self, name: &str) -> Result<Vec<String>, String> {
        let mut files = Vec::new();
        for entry in fs::read_dir(name).map_err(|error| error.to_string())? {
            let file = entry.map_err(|error| error.to_string())?.file_name();
            let file = file.to_str().ok_or("a file's name is not UTF-8")?;
            // Editors keep hidden files beside those that they write.
            if file.ends_with(INCLUDED) && !file.starts_with('.') {
                files.push(format!("{name}/{file}"));
            }
            if files.len() > MOST_INCLUDED {
                return Err(format!("it has more than {MOST_INCLUDED} files"));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn tree(&mut self, sources: &Sources, file: FileId) -> Result<Tree, Unread> {
        (self.parse)(sources, file)
    }
}

/// The end of the name of an included file.
pub const INCLUDED: &str = ".yaml";
/// Most files of an included folder.
const MOST_INCLUDED: usize = 16_384;

/// Largest file that is read; what a tenant's file and those that it names may hold together.
pub const MAX_FILE: Bytes = Bytes::new(16_000_000);

/// A file that has been read and not yet checked: its keys tell what it is to be checked as.
#[derive(Debug)]
pub struct FileRead {
    pub(crate) path: String,
    pub(crate) sources: Sources,
    pub(crate) tree: Result<Tree, SyntaxError>,
}

impl FileRead {
    /// Reads the file `path` by `parse`. `None` if its text cannot be read, or only once: its loader tells why.
    ///
    /// # Errors
    /// Why `parse` ended without an answer.
    pub fn at(path: &str, parse: &mut Parse<'_>) -> Result<Option<Self>, String> {
        let text = Path::new(path).is_file().then(|| read_text(Path::new(path), MAX_FILE));
        let Some(Ok(text)) = text else { return Ok(None) };
        Self::of(path, &text, parse).map(Some)
    }

    /// Reads `text` by `parse`, as if the file `path` held it: to check a change before it is written.
    ///
    /// # Errors
    /// Why `parse` ended without an answer.
    pub fn of(path: &str, text: &str, parse: &mut Parse<'_>) -> Result<Self, String> {
        let sources = Sources::one(path, text);
        let tree = match parse(&sources, FileId(0)) {
            Ok(tree) => Ok(tree),
            Err(Unread::Syntax(error)) => Err(error),
            Err(Unread::Ended(why)) => return Err(why),
        };
        Ok(Self { path: path.to_owned(), sources, tree })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its text.
    #[must_use]
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The tree that was read from its text.
    ///
    /// # Errors
    /// Why it is no YAML.
    pub fn tree(&self) -> Result<&Tree, &SyntaxError> {
        self.tree.as_ref()
    }

    /// The keys at its top; none if it is no map, or no YAML.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let Ok(tree) = &self.tree else { return Vec::new() };
        tree.entries().iter().map(|(key, _)| key.value.clone()).collect()
    }
}

const NO_FILE: &str = "it is no regular file";

/// Where an open file is.
fn place_of(file: &File) -> Result<PathBuf, String> {
    let place = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let place = place.map_err(|error| format!("/proc does not say where it is: {error}"))?;
    // One that was replaced since it was opened, as editors do.
    let replaced = place.to_str().and_then(|place| place.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.unwrap_or(place))
}

/// A sub-policy, which is at `real`, may be reached by a symbolic link only inside the policy's own directory: a tenant's link
/// must not show the tenant, in an error's excerpt, what only the operator may read.
fn refuse_detour(name: &Path, real: &Path, home: Option<&Path>) -> Result<(), String> {
    let inside = home.is_some_and(|home| real.starts_with(home));
    let straight = std::path::absolute(name).is_ok_and(|stated| without_dots(&stated) == real);
    if inside || straight {
        Ok(())
    } else {
        Err("a symbolic link leads out of the policy's directory".to_owned())
    }
}

fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut real, part| {
        if part == Component::ParentDir {
            real.pop();
        } else {
            real.push(part);
        }
        real
    })
}

/// The text of a file that holds no more than `most`.
///
/// # Errors
/// Why it cannot be read.
pub fn read_text(path: &Path, most: Bytes) -> Result<String, String> {
    text_in(File::open(path).map_err(|error| error.to_string())?, most)
}

fn text_in(file: File, most: Bytes) -> Result<String, String> {
    if file.metadata().is_ok_and(|found| found.len() > most.as_u64()) {
        return Err(too_long(most)); // without reading so much of it, each time that it is named
    }
    let mut bytes = Vec::new();
    file.take(most.as_u64() + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    text_of(bytes, most)
}

/// The text in a file's bytes, if they are text and no more than `most`.
///
/// # Errors
/// The reason why they are no such text.
pub fn text_of(bytes: Vec<u8>, most: Bytes) -> Result<String, String> {
    if bytes.len() as u64 > most.as_u64() {
        return Err(too_long(most));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
        format!("it is no text in UTF-8: see byte {} of it, in line {line}", good.len() + 1)
    })
}

fn too_long(most: Bytes) -> String {
    format!("it holds more than {most}")
}
