//! Live: the short forms of Loom's and SENIC's experiments, with the real engine, as their files expect.

use crate::support::{binary, comes_out_with};
use plimsoll_lab::Options;
use plimsoll_scenario::Status;
use std::path::{Path, PathBuf};

/// Runs every scenario of a folder of examples that has a live form.
fn all_come_out(folder: &str, least: usize) {
    let Some(binary) = binary() else { return };
    let options = Options { binary: Some(binary), pairs: Some(1), ..Options::default() };
    let entries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(folder);
    let entries = std::fs::read_dir(&entries).expect("the folder").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(files.len() >= least, "{least} experiments: {files:?}");
    for file in files {
        let name = format!("{folder}/{}", file.file_name().expect("a name").to_string_lossy());
        comes_out_with(&name, &options, |status| status == Status::Failed);
    }
}

#[test]
fn looms_experiments_come_out_as_their_files_expect() {
    all_come_out("papers/loom", 9);
}

#[test]
fn senics_live_forms_come_out_as_their_files_expect() {
    all_come_out("papers/senic", 9);
}
