//! What the live tests share: how they skip, and the binary that they start.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_lab::{LabError, Options};
use plimsoll_scenario::{Form, Results, Scenario, Status};

/// Says why a live test does nothing. Where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure: the
/// output of a passing test is not shown.
pub fn skip(why: &str) {
    assert!(std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}

/// Whether live worlds can be made; skips when not.
pub fn may_run() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("live worlds need root");
    }
    root
}

/// The binary, when live worlds can be made and it is there; skips when not.
pub fn binary() -> Option<PathBuf> {
    if !may_run() {
        return None;
    }
    let named = std::env::var_os("PLIMSOLL_BIN").map(PathBuf::from);
    // Beside `deps`, in which this test lies.
    let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("plimsoll"));
    let binary = named.or_else(built).filter(|path| path.is_file());
    if binary.is_none() {
        skip("no plimsoll binary; cargo build -p plimsoll-cli, or set PLIMSOLL_BIN");
    }
    binary
}

/// A machine that stalls once must not fail the suite; one that always does must.
pub const TRIES: u32 = 3;

/// One after the other, as each takes both cores of a small machine.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the short form of an example, and asserts that each of its expectations holds in one of [`TRIES`] tries.
/// Returns the results of the last try.
pub fn comes_out(name: &str) -> Option<Results> {
    let options = Options { binary: Some(binary()?), ..Options::default() };
    comes_out_with(name, &options, |status| status != Status::Passed)
}

/// Like [`comes_out`], but only expectations for which `fails` is true count as failed.
pub fn comes_out_with(name: &str, options: &Options, fails: fn(Status) -> bool) -> Option<Results> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let scenario = Scenario::load(&file, Form::Short).unwrap_or_else(|errors| panic!("{errors:?}"));
    if !scenario.live {
        return None;
    }
    let _alone = alone();
    let (mut failed, mut stalled) = (None::<Vec<String>>, String::new());
    for _ in 0..TRIES {
        let results = match plimsoll_lab::run(&scenario, options, &mut |_| {}) {
            Ok(results) => results,
            // A stall of the machine has kept a source or a sink from being ready.
            Err(error @ LabError::Workload { .. }) => {
                stalled = error.to_string();
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let ran = |name: &String| results.runs.iter().any(|run| run.system == *name);
        assert!(scenario.systems.iter().all(|system| ran(&system.name)), "{:?}", results.notes);
        let verdicts = plimsoll_scenario::judge(&scenario, &results);
        let mut now = Vec::new();
        for verdict in verdicts.into_iter().filter(|verdict| fails(verdict.status)) {
            eprintln!("{name}: {:?}: {}: {}", verdict.status, verdict.expect, verdict.detail);
            now.push(verdict.expect);
        }
        let before = failed.take().unwrap_or_else(|| now.clone());
        let still: Vec<String> = now.into_iter().filter(|expect| before.contains(expect)).collect();
        if still.is_empty() {
            return Some(results);
        }
        failed = Some(still);
    }
    let failed = failed.map_or(stalled, |failed| failed.join(", "));
    panic!("{name}: in none of {TRIES} tries: {failed}");
}
