//! A test in a process of its own: the test binary starts itself again.

use std::process::Command;

/// Whether this process was started by [`run_again`] with `variable`.
pub fn is_again(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

/// Starts the test binary again with `test` as its only test and `variable` set, and fails if that test fails.
pub fn run_again(test: &str, variable: &str) {
    let again = Command::new(std::env::current_exe().expect("this test is a file"))
        .args(["--exact", test, "--nocapture"])
        .env(variable, "1")
        .output()
        .expect("started");
    let said = [again.stdout, again.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
}
