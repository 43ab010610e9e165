//! Puts the papers' experiments into the binary.
//!
//! Why: an installed `plimsoll papers` must not need the source tree; a new file is picked up by being there.
//! From: `examples/papers/`, every `.yaml` below it.
//! Not here: what the files say (`plimsoll-scenario`).
//! Invariant: files come in the order of their paths.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

#[path = "src/papers/collect.rs"]
mod collect;

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/papers");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect::collect(&root, &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root).unwrap_or(&file);
        let _ = writeln!(list, "    ({:?}, include_str!({:?})),", name, file.canonicalize()?);
    }
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("papers.rs"), list + "]\n")
}
