//! Live: tenants' programs that share a coprocessor, without its limiter and with it.

use std::path::Path;
use std::process::Command;

use crate::support::comes_out;

/// FN-E7. Its programs are compiled as `make fairnic` compiles them.
#[test]
fn a_limiter_divides_a_coprocessor_by_bytes_and_keeps_calls_short() {
    let modules = ["target/programs/calls-20.wasm", "target/programs/calls-1280.wasm"];
    let made = Command::new("make")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .arg("--silent")
        .args(modules)
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        .output()
        .expect("make is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    comes_out("programs/fairnic/e07.yaml");
}
