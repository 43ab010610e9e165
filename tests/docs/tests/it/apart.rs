//! Test binaries run apart from the machine's user and from each other (`scripts/apart`).

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A user's network namespace. The operations page makes one of this name.
const NAME: &str = "ops-shop";

/// The page's test. The page makes namespaces and a socket, and takes a fixed port of the loopback.
const PAGE: &str = "pages::what_the_operations_page_shows_works";

/// Makes the user's namespace, and removes it at the end.
struct Users;

impl Users {
    fn new() -> Self {
        ip(&["netns", "add", NAME]);
        let made = Self;
        ip(&["-n", NAME, "link", "add", "users", "type", "veth"]);
        made
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", NAME]).status();
    }
}

fn runner() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/apart")
}

/// Starts one of this binary's tests as cargo would.
fn start(name: &str) -> Child {
    let test = std::env::current_exe().expect("this test is a file");
    let mut run = Command::new(runner());
    run.arg(test).args(["--exact", name]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    run.spawn().expect("the runner starts")
}

fn ip(args: &[&str]) -> String {
    let done = Command::new("ip").args(args).output().expect("ip is installed");
    assert!(done.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn two_runs_at_once_disturb_neither_each_other_nor_a_users_namespaces() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root makes network namespaces");
    }
    let _turn = crate::pages::turn();
    let _users = Users::new();
    let runs = [PAGE, PAGE].map(start);
    for run in runs {
        let done = run.wait_with_output().expect("it ends");
        let said =
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
    }
    let left = ip(&["netns", "list"]);
    assert_eq!(left.split_whitespace().next(), Some(NAME), "only the user's namespace: {left}");
    assert_eq!(left.lines().count(), 1, "{left}");
    assert!(ip(&["-n", NAME, "link", "show"]).contains("users"), "with what the user put into it");
}

/// `cargo run` sees the machine's namespaces.
#[test]
fn other_programs_are_started_as_they_are() {
    let own = std::fs::read_link("/proc/self/ns/net").expect("every process has it");
    let shown = Command::new(runner()).args(["readlink", "/proc/self/ns/net"]).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), own.display().to_string());
}
