//! `plimsoll program new`: a folder to begin a program in.
//!
//! Why: a tenant needs no checkout of Plimsoll to write a program.
//! From: the SDK's own files (`sdk/`), which this binary has in it.
//! Not here: compiling it, which its folder says how to do.
//! Invariant: nothing that is there already is changed.

use std::fs;
use std::path::Path;

use crate::args::{Language, ProgramNew};
use crate::failure::{Failure, print};

/// The files of a folder: their places, and what they hold.
type Files = &'static [(&'static str, &'static str)];

const C: Files = &[
    ("program.c", include_str!("../../../../sdk/c/template/program.c")),
    ("Makefile", include_str!("../../../../sdk/c/template/Makefile")),
    ("plimsoll.h", include_str!("../../../../sdk/c/plimsoll.h")),
];

const RUST: Files = &[
    ("src/lib.rs", include_str!("../../../../sdk/rust/template/lib.rs")),
    ("Cargo.toml", include_str!("../../../../sdk/rust/template/Cargo.toml")),
    ("plimsoll-program/src/lib.rs", include_str!("../../../../sdk/rust/src/lib.rs")),
    ("plimsoll-program/Cargo.toml", include_str!("../../../../sdk/rust/Cargo.toml")),
];

/// Makes the folder, and says what comes next.
pub(super) fn new(args: &ProgramNew) -> Result<(), Failure> {
    let folder = &args.folder;
    let io = |what: &Path, error| Failure::io(format!("make {}", what.display()), &error);
    if folder.exists() {
        return Err(Failure::Wrong(format!("{} is there already; name a new folder", folder.display())));
    }
    let (files, compile, module) = match args.language {
        Language::C => (C, "make", "program.wasm"),
        Language::Rust => (
            RUST,
            "rustup target add wasm32-unknown-unknown && cargo build --release --target wasm32-unknown-unknown",
            "target/wasm32-unknown-unknown/release/program.wasm",
        ),
    };
    for (place, text) in files {
        let file = folder.join(place);
        if let Some(above) = file.parent() {
            fs::create_dir_all(above).map_err(|error| io(above, error))?;
        }
        // The crate stands alone in the SDK; here it is a part of the program's own workspace.
        let text = if place.starts_with("plimsoll-program/Cargo") {
            text.replace("\n[workspace]\n", "")
        } else {
            (*text).to_owned()
        };
        fs::write(&file, text).map_err(|error| io(&file, error))?;
    }
    let folder = folder.display();
    print(&format!(
        "{folder}: a program that drops UDP packets to port 9. Next:\n  cd {folder} && {compile}\n  plimsoll program check \
         {module}\n  plimsoll program run {module}\n"
    ))
}
