//! Finds the files below a folder that are experiments, or modules that these name.
//!
//! Why: the build script, which puts them into the binary, and `--folder`, which reads others, must find the same files.
//! From: every file with the ending, in the folder and its subfolders: `yaml` for experiments, `rank` for rank programs, `wat`
//! for tenants' programs.
//! Not here: the files' contents, and their order.
//! Invariant: it uses only the standard library, as the build script has nothing else.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Adds every file below `folder` whose name ends in `.` and `ending`.
pub(super) fn collect(folder: &Path, ending: &str, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, ending, files)?;
        } else if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
    }
    Ok(())
}
