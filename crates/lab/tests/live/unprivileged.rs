//! Live: an ordinary user runs a lab in a user namespace, in a process of its own.
//!
//! The test binary starts itself again as `nobody` (uid 65534), with the name of the one test that then works.

use crate::support;
use plimsoll_lab::Options;
use plimsoll_scenario::{Form, Scenario};
use std::path::Path;
use std::process::Command;

const TINY: &str = "
name: tiny
about: Two flows through one queue.
rate: 10Mbps
duration: 1s
systems: [fifo]
tenants: {one: {}}
workloads:
  bulk: {tenant: one, kind: bulk, flows: 2}
  ask:  {tenant: one, kind: request_response, request: 100B, response: 100B, connections: 1, rate: 50}
";

/// Set for the copy that runs as `nobody`: the scenario's file.
const FILE: &str = "PLIMSOLL_LAB_TEST_FILE";

#[test]
fn nobody_runs_a_lab() {
    if let Ok(file) = std::env::var(FILE) {
        return as_nobody(Path::new(&file));
    }
    if !nix::unistd::geteuid().is_root() {
        return support::skip("only root can become the user `nobody`");
    }
    let _alone = support::alone();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("tiny.yaml");
    std::fs::write(&file, TINY).expect("write the scenario");
    let binary = folder.path().join("test");
    std::fs::copy("/proc/self/exe", &binary).expect("copy this test");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("let nobody in");
    let output = nobody()
        .arg(&binary)
        .args(["--exact", "unprivileged::nobody_runs_a_lab", "--nocapture", "--test-threads=1"])
        .env(FILE, &file)
        .current_dir(folder.path())
        .output()
        .expect("start it as nobody");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    if !text.contains("nobody got") {
        assert!(text.contains("skipped"), "{text}");
        assert!(
            !user_namespaces(),
            "the user `nobody` may make user namespaces here, and yet the lab did not run: {text}"
        );
        eprintln!("skipped: this machine gives ordinary users no user namespaces");
    }
}

/// A command that runs its arguments as `nobody`, with an ordinary user's search path, where `ip` and `ethtool` are
/// not.
fn nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    command
}

/// Whether the user `nobody` may make a user namespace with a network namespace in it here, which is all the lab needs.
fn user_namespaces() -> bool {
    let run = nobody().args(["unshare", "--user", "--map-root-user", "--net", "true"]).output();
    run.expect("setpriv and unshare are installed").status.success()
}

/// The harness has threads, which a user namespace does not allow: the lab must re-execute itself for this.
fn as_nobody(file: &Path) {
    if let Err(error) = plimsoll_lab::ensure_privileges() {
        eprintln!("skipped: {error}");
        return;
    }
    let scenario = Scenario::load(file, Form::Full).unwrap_or_else(|errors| panic!("{errors:?}"));
    let results = plimsoll_lab::run(&scenario, &Options::default(), &mut |_| {}).expect("the lab runs");
    let run = &results.runs[0];
    let bytes: u64 = run.workloads["bulk"].bytes.iter().sum();
    let answers = run.workloads["ask"].samples.len();
    assert!(bytes > 100_000 && answers > 5, "{bytes} bytes, {answers} answers");
    eprintln!("nobody got {bytes} bytes and {answers} answers");
}
