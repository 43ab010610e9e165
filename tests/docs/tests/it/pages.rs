//! Every page and every example, run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_docs::{Bench, run_page};

/// Pages that make namespaces take turns, so that none sees another's.
static TURN: Mutex<()> = Mutex::new(());

/// Short pages of `docs/` that need no test of their own.
const OPERATORS: [&str; 4] = ["install.md", "logs.md", "upgrade.md", "watch.md"];

pub(crate) fn bench() -> Bench {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout");
    let test = std::env::current_exe().expect("this test is a file");
    let bin = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").to_path_buf();
    let binary = bin.join("plimsoll");
    assert!(binary.exists(), "{} is missing: run `cargo build -p plimsoll-cli` first", binary.display());
    Bench { root, bin }
}

/// Waits until the page that runs now has ended.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn page(name: &str) {
    let _turn = turn();
    if let Err(error) = run_page(&bench(), name) {
        panic!("{error:#}");
    }
}

#[test]
fn what_the_readme_shows_works() {
    page("README.md");
}

#[test]
fn what_the_tutorial_shows_works() {
    page("docs/tutorial.md");
}

#[test]
fn what_the_operations_page_shows_works() {
    page("docs/operations.md");
}

#[test]
fn what_the_api_page_shows_works() {
    page("docs/api.md");
}

#[test]
fn what_the_page_on_fleets_shows_works() {
    page("docs/fleet.md");
}

#[test]
fn what_the_other_pages_for_operators_show_works() {
    OPERATORS.iter().for_each(|name| page(&format!("docs/{name}")));
}

#[test]
fn what_every_other_page_shows_works() {
    let mut pages = vec!["CONTRIBUTING.md".to_owned(), "CHANGELOG.md".to_owned()];
    for entry in fs::read_dir(bench().root.join("docs")).expect("docs/").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md")
            && !["tutorial.md", "operations.md", "api.md", "fleet.md"].contains(&name.as_str())
            && !OPERATORS.contains(&name.as_str())
        {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    pages.iter().for_each(|name| page(name));
}

#[test]
fn every_example_is_a_sound_policy_or_scenario() {
    let bench = bench();
    let mut files = Vec::new();
    collect(&bench.root.join("examples"), &mut files);
    assert!(!files.is_empty(), "there are examples");
    for file in files {
        let text = fs::read_to_string(&file).expect("a readable example");
        let has = |key: &str| text.lines().any(|line| line.starts_with(key));
        if has("workloads:") {
            plimsoll_docs::load_scenario(&file).unwrap_or_else(|error| panic!("{error:#}"));
        } else if has("uplink:") {
            let out =
                Command::new(bench.bin.join("plimsoll")).arg("check").arg(&file).output().expect("plimsoll");
            assert!(out.status.success(), "{}:\n{}", file.display(), String::from_utf8_lossy(&out.stderr));
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}

#[test]
fn the_operations_page_explains_every_reason() {
    let page = fs::read_to_string(bench().root.join("docs/operations.md")).expect("docs/operations.md");
    let names = plimsoll_wire::FrameError::ALL.iter().map(|reason| reason.name());
    let names = names.chain(plimsoll_wire::VnetError::ALL.iter().map(|reason| reason.name()));
    let names = names.chain(plimsoll_wire::BindingError::ALL.iter().map(|reason| reason.name()));
    let names = names.chain(plimsoll_nic::Refusal::ALL.iter().map(|reason| reason.name()));
    let names = names.chain(plimsoll_ports::DropReason::ALL.iter().map(|reason| reason.name()));
    let names = names.chain(plimsoll_daemon::Loss::ALL.iter().map(|reason| reason.name()));
    let names = names.chain(plimsoll_daemon::Event::ALL.iter().map(|event| event.name()));
    let missing: Vec<&str> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/operations.md: {missing:?}");
}

#[test]
fn the_overlay_page_explains_every_reason() {
    let page = fs::read_to_string(bench().root.join("docs/overlay.md")).expect("docs/overlay.md");
    let names = plimsoll_wire::EncapsulationError::ALL.iter().map(|reason| reason.name());
    let names = names.chain(plimsoll_wire::DecapsulationError::ALL.iter().map(|reason| reason.name()));
    let names = names.chain(plimsoll_wire::TooBigError::ALL.iter().map(|reason| reason.name()));
    let missing: Vec<&str> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "not in docs/overlay.md: {missing:?}");
}
