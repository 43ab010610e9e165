//! Live: the short forms of Loom's experiments, with the real engine, as their files expect.

mod support;

use plimsoll_lab::Options;
use plimsoll_scenario::{Form, Scenario, Status, Verdict};
use std::path::{Path, PathBuf};
use support::binary;

/// A machine that stalls once must not fail the suite; one that always does must.
const TRIES: u32 = 3;

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

#[test]
fn looms_experiments_come_out_as_their_files_expect() {
    let Some(binary) = binary() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/papers/loom");
    let entries = std::fs::read_dir(&folder).expect("the papers' folder").flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(files.len() >= 9, "nine experiments: {files:?}");
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
