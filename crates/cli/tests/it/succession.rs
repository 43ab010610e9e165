//! A daemon that is started while the one before it is still ending.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Daemon, Stage};

/// The kernel removes a process's TAPs before it frees the process's locks: some 20 ms for each.
const TENANTS: usize = 8;

#[test]
fn a_daemon_that_is_started_right_after_a_kill_runs() {
    let names: Vec<String> = (0..TENANTS).map(|number| format!("t{number}")).collect();
    let all: Vec<&str> = ["up"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let Some(stage) = Stage::with_netns("suc", &all) else { return };
    let tap = |name: &str| format!("{{port: {{tap: {{netns: {}, name: eth0}}}}", stage.netns(name));
    let tenants = names.iter().map(|name| format!("  {name}: {}}}\n", tap(name))).collect::<String>();
    let policy = format!(
        "uplink: {}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n{tenants}",
        tap("up"),
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
    let start = |log: &str| {
        let daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file(log));
        stage.eventually("the daemon runs", || stage.read(log).contains("plimsoll: running;"));
        daemon
    };
    let mut before = start("log");
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        kill(Pid::from_raw(i32::try_from(before.id()).expect("a process id")), signal).expect("it runs");
        let next = start("next");
        let said = stage.read("next");
        assert!(!said.contains("another plimsoll"), "{said}");
        before = next;
    }
}
