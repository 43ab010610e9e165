//! Tenants' programs, compiled as their users compile them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program of `examples/programs/`.
pub fn compiled(folder: &Path, name: &str, more: &[&str]) -> PathBuf {
    let (programs, module) =
        (Path::new(ROOT).join("examples/programs"), folder.join(name).with_extension("wasm"));
    let built = Command::new("clang")
        .args(["--target=wasm32", "-O2", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-Wall", "-Werror"])
        .args(more)
        .arg("-I")
        .arg(Path::new(ROOT).join("sdk/c"))
        .arg("-o")
        .args([&module, &programs.join(name).with_extension("c")])
        .output()
        .expect("clang and lld, which scripts/setup.sh installs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    module
}

/// The checkout.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
