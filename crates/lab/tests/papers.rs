//! Live: the short forms of Loom's and SENIC's experiments, with the real engine, as their files expect.

mod support;

use plimsoll_lab::Options;
use plimsoll_scenario::{Form, Scenario, Status, Verdict};
use std::path::{Path, PathBuf};
use support::{TRIES, binary};

/// What one run of the short form did not fulfil; nothing of what is for virtual time alone.
fn unmet(file: &Path, binary: &Path) -> Vec<Verdict> {
    let scenario = Scenario::load(file, Form::Short).unwrap_or_else(|errors| panic!("{errors:?}"));
    if !scenario.live {
        return Vec::new();
    }
    let options = Options { binary: Some(binary.to_owned()), pairs: Some(1), ..Options::default() };
    let results = plimsoll_lab::run(&scenario, &options, &mut |_| {});
    let results = results.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let verdicts = plimsoll_scenario::judge(&scenario, &results);
    verdicts.into_iter().filter(|verdict| verdict.status == Status::Failed).collect()
}

/// Every scenario of a folder of examples, each tried again where the machine may have stalled.
fn all_come_out(folder: &str, least: usize) {
    let Some(binary) = binary() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(files.len() >= least, "{least} experiments: {files:?}");
    for file in files {
        let mut failed = unmet(&file, &binary);
        for _ in 1..TRIES {
            if failed.is_empty() {
                break;
            }
            eprintln!("{}: once more, after {failed:?}", file.display());
            failed = unmet(&file, &binary);
        }
        assert!(failed.is_empty(), "{}: {failed:?}", file.display());
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
