//! Puts the papers' experiments into the binary, and the commit that it is built from.
//!
//! Why: an installed `plimsoll papers` must not need the source tree; a new file is picked up by being there.
//! From: `examples/papers/`, every `.yaml` below it, and the modules that they name: rank programs, and programs as text.
//! Not here: what the files say (`plimsoll-scenario`).
//! Invariant: files come in the order of their paths.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

#[path = "src/papers/collect.rs"]
mod collect;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/papers");
    println!("cargo::rerun-if-changed={}", root.display());
    let list = |endings: &[&str]| list(&root, endings);
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    println!("cargo::rustc-env=PLIMSOLL_VERSION={}{}", env!("CARGO_PKG_VERSION"), built_from());
    fs::write(out.join("papers.rs"), list(&["yaml"])?)?;
    fs::write(out.join("modules.rs"), list(&["rank", "wat"])?)
}

/// A slice of the files' paths below `root` and their texts, as Rust.
fn list(root: &Path, endings: &[&str]) -> io::Result<String> {
    let mut files = Vec::new();
    for ending in endings {
        collect::collect(root, ending, &mut files)?;
    }
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        let _ = writeln!(list, "    ({:?}, include_str!({:?})),", name, file.canonicalize()?);
    }
    Ok(list + "]\n")
}

/// The commit that a release is built from, for `--version`; nothing where the source tree is no git checkout of its own, such
/// as one from an archive. A debug build does not ask, as each commit would build it anew.
fn built_from() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        return " (debug build)".to_owned();
    }
    if !root.join(".git").exists() {
        return String::new();
    }
    let git = |args: &[&str]| {
        let done = Command::new("git").arg("-C").arg(&root).args(args).output().ok()?;
        let said = String::from_utf8(done.stdout).ok()?;
        done.status.success().then(|| said.trim().to_owned())
    };
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=12", "HEAD"]).map_or_else(String::new, |commit| format!(" ({commit})"))
}
