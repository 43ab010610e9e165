//! Licences: `deny.toml` allows the licence of every crate that is linked in.
//!
//! Why: `make deny` asks cargo-deny, which a bare machine lacks; the licences must not depend on that.
//! From: the SPDX licence expressions that each crate's manifest states.
//! Not here: bans, sources and the texts of licence files, which cargo-deny checks.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

#[test]
fn every_dependency_has_a_licence_that_is_allowed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let allowed = allowed(&std::fs::read_to_string(root.join("deny.toml")).expect("deny.toml"));
    let foreign = foreign(&root);
    assert!(foreign.len() > 10, "cargo metadata names only {} dependencies", foreign.len());
    let refused = foreign.iter().filter(|(_, licence)| !allows(&allowed, licence));
    let refused: Vec<_> = refused.collect();
    assert!(refused.is_empty(), "not in the allow list of deny.toml: {refused:?}");
}

/// Third-party crates of this machine's build, with the licences that their manifests state. `cargo tree` leaves out
/// crates of other platforms, which `cargo metadata` names as well.
fn foreign(root: &Path) -> Vec<(String, String)> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let run = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--workspace", "--target", &target, "--prefix", "none"])
        .args(["--edges", "normal,build,dev", "--format", "{p}\t{l}"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    assert!(run.status.success(), "cargo tree: {}", String::from_utf8_lossy(&run.stderr));
    let text = String::from_utf8(run.stdout).expect("cargo tree writes text");
    // Our own crates are followed by their folder; a crate that is listed again has `(*)` behind its licence.
    let theirs = |line: &&str| !line.contains("(/") && !line.trim().is_empty();
    let split = |line: &str| {
        let (name, licence) = line.split_once('\t').unwrap_or((line, "none stated"));
        (name.to_owned(), licence.trim_end_matches("(*)").trim().to_owned())
    };
    let found: BTreeSet<(String, String)> = text.lines().filter(theirs).map(split).collect();
    found.into_iter().collect()
}

/// The strings of `allow = [...]` under `[licenses]`.
fn allowed(deny: &str) -> Vec<String> {
    let list = deny.split_once("\n[licenses]\n").expect("[licenses]").1;
    let list = list.split_once("allow = [").expect("an allow list").1;
    let list = list.split_once(']').expect("its end").0;
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Whether one of the ways to take the licence is allowed. Unknown grammar is not.
fn allows(allowed: &[String], licence: &str) -> bool {
    // `/` is how old manifests write OR.
    let spaced = licence.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.as_slice();
    any_of(allowed, &mut words) && words.is_empty()
}

fn any_of(allowed: &[String], words: &mut &[&str]) -> bool {
    let mut held = all_of(allowed, words);
    while take(words, "OR") {
        held |= all_of(allowed, words);
    }
    held
}

fn all_of(allowed: &[String], words: &mut &[&str]) -> bool {
    let mut held = one(allowed, words);
    while take(words, "AND") {
        held &= one(allowed, words);
    }
    held
}

fn one(allowed: &[String], words: &mut &[&str]) -> bool {
    if take(words, "(") {
        return any_of(allowed, words) & take(words, ")");
    }
    let Some((first, rest)) = words.split_first() else { return false };
    *words = rest;
    let mut name = (*first).to_owned();
    if let ["WITH", exception, rest @ ..] = *words {
        name = format!("{name} WITH {exception}");
        *words = rest;
    }
    allowed.contains(&name)
}

fn take(words: &mut &[&str], word: &str) -> bool {
    let found = words.first() == Some(&word);
    if found {
        *words = &words[1..];
    }
    found
}

#[test]
fn an_expression_is_read_as_spdx_means_it() {
    let allowed = ["MIT", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
    for licence in ["MIT", "GPL-3.0/MIT", "(GPL-3.0 OR MIT) AND MIT", "Apache-2.0 WITH LLVM-exception"] {
        assert!(allows(&allowed, licence), "{licence}");
    }
    for licence in
        ["GPL-3.0", "Apache-2.0", "MIT AND GPL-3.0", "GPL-3.0 AND (MIT OR MIT)", "(MIT", "", "MIT MIT"]
    {
        assert!(!allows(&allowed, licence), "{licence}");
    }
}
