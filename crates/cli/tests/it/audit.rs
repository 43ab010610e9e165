//! Changes to a running daemon: who asked for them, and those that have to be asked for twice.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;
use std::process::Command;

use crate::support::{Daemon, Stage};

#[test]
fn a_reload_that_takes_a_tap_away_asks_for_force_and_changes_are_kept() {
    let Some(stage) = Stage::with_netns("aud", &["up", "a"]) else { return };
    let state = |tap: &str| {
        let (up, a, socket) = (stage.netns("up"), stage.netns("a"), stage.file("api.sock"));
        let policy = format!(
            "uplink: {{port: {{tap: {{netns: {up}, name: up0}}}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n  a: {{port: \
             {{tap: {{netns: {a}, name: {tap}}}}}}}\n",
            socket.display()
        );
        fs::write(stage.file("policy.yaml"), policy).expect("written");
    };
    let plimsoll = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let done = command.args(words).arg("--socket").arg(stage.file("api.sock")).output().expect("started");
        let said = [done.stdout, done.stderr].concat();
        (done.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let has = |tap: &str| {
        let mut show = stage.command("a", "ip");
        show.args(["link", "show", "dev", tap]).output().expect("ip is installed").status.success()
    };
    state("eth0");
    let _daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();

    state("eth1");
    let (code, said) = plimsoll(&["reload"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("! tenant a: its TAP") && said.contains("~ tenant a: port"), "a plan: {said}");
    assert!(said.contains("--force") && has("eth0") && !has("eth1"), "{said}");

    let (code, said) = plimsoll(&["reload", "--force"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("! tenant a: its TAP"), "{said}");
    stage.eventually("the TAP has moved", || !has("eth0") && has("eth1"));

    let (code, said) = plimsoll(&["audit"]);
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(lines[0].starts_with("1: reload refused ") && lines[1].starts_with("2: reloaded "), "{said}");
    assert!(lines.iter().all(|line| line.contains("by user 0, process ")), "{said}");
    assert!(stage.read("log").contains("plimsoll: reload refused, by user 0"), "{}", stage.read("log"));
}
