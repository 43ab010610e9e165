//! Modules that examples carry as text are what clang makes of their sources.
//!
//! Why: such an example needs no compiler, so a changed source would go unnoticed.
//! `make program-texts` writes them anew: this test with UPDATE_GOLDEN=1.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first line of such a text names its source, and how it was compiled.
const COMPILED: &str = ", compiled with clang ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a folder whose names end in `.wat`.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            texts(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "wat") {
            found.push(path);
        }
    }
}

/// The first number of clang's version; none where it is not installed.
fn clang() -> Option<String> {
    let said = Command::new("clang").arg("--version").output().ok()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let (_, behind) = said.split_once("version ")?;
    Some(behind.chars().take_while(char::is_ascii_digit).collect())
}

/// What clang makes of a source with these options, as text.
fn compile(source: &str, options: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.wasm");
    let done = Command::new("clang")
        .current_dir(root())
        .args(["--target=wasm32", "-nostdlib", "-Wl,--no-entry", "-I", "sdk/c"])
        .args(options.split(' '))
        .arg("-o")
        .args([out.as_path(), Path::new(source)])
        .output()
        .expect("clang");
    assert!(done.status.success(), "{source}: {}", String::from_utf8_lossy(&done.stderr));
    wasmprinter::print_file(&out).unwrap_or_else(|error| panic!("{source}: {error}"))
}

#[test]
fn programs_that_examples_carry_as_text_are_those_of_their_sources() {
    let Some(version) = clang() else {
        return eprintln!("skipped: clang is not installed; scripts/setup.sh test installs it");
    };
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let (mut all, mut compiled) = (Vec::new(), 0);
    texts(&root().join("examples"), &mut all);
    for path in all {
        let text = fs::read_to_string(&path).expect("text");
        let Some((source, how)) = text.strip_prefix(";; ").and_then(|text| text.split_once(COMPILED)) else {
            continue;
        };
        let (with, rest) = how.split_once(" (").expect("the options");
        let (options, _) = rest.split_once(')').expect("the options");
        compiled += 1;
        if with != version && !update {
            eprintln!("skipped: {} is clang {with}'s, and this is clang {version}", path.display());
            continue;
        }
        let now = format!(
            ";; {source}{COMPILED}{version} ({options}) and printed as text:\n\
             ;; the experiment is to be the same on machines without a compiler. `make program-texts` writes it anew.\n{}",
            compile(source, options)
        );
        if update {
            fs::write(&path, now).expect("written");
        } else {
            assert!(now == text, "{} is not what {source} makes: run `make program-texts`", path.display());
        }
    }
    assert!(compiled >= 4, "FN-E8's programs are such texts: {compiled}");
}
