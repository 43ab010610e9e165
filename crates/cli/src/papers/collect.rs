//! Finds the files below a folder that may be experiments.
//!
//! Why: the build script, which puts them into the binary, and `--folder`, which reads others, must find the same files.
//! From: every `.yaml` file in the folder and its subfolders.
//! Not here: the files' contents, and their order.
//! Invariant: it uses only the standard library, as the build script has nothing else.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Adds every file below `folder`.
pub(super) fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    Ok(())
}
