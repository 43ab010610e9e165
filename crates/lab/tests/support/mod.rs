//! What the live tests share: how they skip, and the binary that they start.

use std::path::PathBuf;

/// Says why a live test does nothing. Where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure: what a
/// passing test says is shown to nobody.
pub fn skip(why: &str) {
    assert!(std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}

/// Whether live worlds can be made; skips when not.
#[allow(dead_code, reason = "each test file takes what it needs")]
pub fn may_run() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("live worlds need root");
    }
    root
}

/// The binary, when live worlds can be made and it is there; skips when not.
#[allow(dead_code, reason = "each test file takes what it needs")]
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
