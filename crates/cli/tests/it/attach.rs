//! `plimsoll attach`: a container's own interface becomes the port of a tenant.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens. Containers of Docker and Podman are
//! tried where these programs are, with daemons, images and networks of the test's own.

pub mod engines;

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Output};

use crate::support::{Daemon, Stage, ip};

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const CONTAINER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 5);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

/// A host with a bridge that is the gateway of `c`, a network behind it with `far`, and an uplink into the bridge.
fn start(tag: &str) -> Option<Stage> {
    let stage = Stage::with_netns(tag, &["host", "c", "far"])?;
    let [host, container, far] = ["host", "c", "far"].map(|name| stage.netns(name));
    let on_host = |args: &[&str]| ip(&[&["-n", &host], args].concat());
    on_host(&["link", "add", "br0", "type", "bridge"]);
    on_host(&["address", "add", &format!("{GATEWAY}/24"), "dev", "br0"]);
    on_host(&["link", "add", "vethc", "type", "veth", "peer", "name", "eth0", "netns", &container]);
    // The lowest address of all, so that the bridge has it.
    on_host(&["link", "set", "vethc", "address", "02:00:00:00:00:01"]);
    on_host(&["link", "set", "vethc", "master", "br0", "up"]);
    on_host(&["link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
    on_host(&["link", "set", "up1", "master", "br0", "up"]);
    on_host(&["link", "set", "up0", "arp", "off", "up"]);
    on_host(&["link", "set", "br0", "up"]);
    on_host(&["link", "add", "far0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    on_host(&["address", "add", "10.8.0.1/24", "dev", "far0"]);
    on_host(&["link", "set", "far0", "up"]);
    let forward = stage.command("host", "sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).status();
    assert!(forward.expect("it runs").success());
    for (netns, address, gateway) in [(&container, CONTAINER, "10.9.0.1"), (&far, FAR, "10.8.0.1")] {
        ip(&["-n", netns, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        ip(&["-n", netns, "link", "set", "eth0", "up"]);
        ip(&["-n", netns, "route", "add", "default", "via", gateway]);
    }
    fs::write(stage.file("policy.yaml"), policy(&stage)).expect("written");
    Some(stage)
}

fn policy(stage: &Stage) -> String {
    format!(
        "# Written by hand.\nuplink: {{port: {{af_packet: up0}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n  shop: \
         {{port: {{af_packet: later}}, max: 40Mbps}} # to be attached\n",
        stage.file("api.sock").display()
    )
}

/// Runs `plimsoll attach` for the namespace `c`.
fn attach(stage: &Stage, args: &[&str]) -> Output {
    let mut command = stage.command("host", env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["attach", "--netns", &stage.netns("c"), "--policy"]).arg(stage.file("policy.yaml"));
    command.arg("--socket").arg(stage.file("api.sock")).args(args).output().expect("it runs")
}

/// Standard output and standard error.
pub fn said(done: &Output) -> String {
    [&done.stdout[..], &done.stderr].map(String::from_utf8_lossy).concat()
}

fn inside(stage: &Stage) -> String {
    let shown = Command::new("ip").args(["-n", &stage.netns("c"), "address", "show", "dev", "eth0"]).output();
    String::from_utf8_lossy(&shown.expect("it runs").stdout).into_owned()
}

fn in_bridge(stage: &Stage) -> bool {
    let shown = Command::new("ip").args(["-n", &stage.netns("host"), "link", "show", "vethc"]).output();
    String::from_utf8_lossy(&shown.expect("it runs").stdout).contains("master br0")
}

#[test]
fn a_container_becomes_a_tenant_and_nothing_inside_it_changes() {
    let Some(stage) = start("att") else { return };
    stage.eventually("the container reaches the network", || stage.ping("c", FAR, 56));
    let before = inside(&stage);
    let host = stage.netns("host");
    let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();

    let dry = attach(&stage, &["--tenant", "shop", "--write", "--dry-run"]);
    assert!(dry.status.success(), "{}", said(&dry));
    assert!(said(&dry).contains("would run: ip link set dev vethc nomaster\n"), "{}", said(&dry));
    assert!(said(&dry).contains("{af_packet: later} -> port: {af_packet: vethc}"), "{}", said(&dry));
    assert!(in_bridge(&stage) && stage.read("policy.yaml") == policy(&stage), "a dry run changes nothing");

    let done = attach(&stage, &["--tenant", "shop", "--write"]);
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("is in force"), "{}", said(&done));
    assert!(!in_bridge(&stage));
    let (head, tail) = stage
        .read("policy.yaml")
        .split_once("addresses: [")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("written");
    let (addresses, tail) = tail.split_once("], port: {af_packet: vethc}").expect("both are written");
    assert_eq!(format!("{head}port: {{af_packet: later}}{tail}"), policy(&stage), "all else stays");
    assert!(addresses.contains(&CONTAINER.to_string()), "{addresses}");

    stage.eventually("the gateway answers through the engine", || stage.ping("c", GATEWAY, 56));
    stage.eventually("and what is behind it", || stage.ping("c", FAR, 1_400));
    assert_eq!(inside(&stage), before, "the container's interface is as it was");
    // Where the host still hears the container, the bridge's old address leads past the engine, as `attach` has warned.
    let past_the_engine = said(&done).contains("still takes packets");
    // 4 MB take at least 0.8 s at 40 Mb/s, less what the burst and the queues hold.
    let took = stage.transfer("c", "far", FAR, 4_000_000);
    assert!(past_the_engine || took.as_secs_f64() > 0.6, "{took:?} for 4 MB: not through the engine");
    stage.transfer("far", "c", CONTAINER, 500_000);
    let stats = stage.client().text("GET", "/v1/stats").expect("it answers");
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    let sent = stats["tenants"]["shop"]["rx_bytes"].as_u64().expect("a number");
    assert!(past_the_engine || sent > 4_000_000, "{sent} bytes of the container went through the engine");

    // The host's end of the veth is no way past the engine.
    if past_the_engine {
        eprintln!("skipped: neither tc's matchall nor iptables works here");
    } else {
        let neighbour = |args: &[&str]| ip(&[&["-n", &stage.netns("c"), "neigh"], args].concat());
        // Its first address is the bridge's still.
        ip(&["-n", &host, "link", "set", "vethc", "address", "02:00:00:00:00:99"]);
        let past = ["replace", "10.9.0.1", "lladdr", "02:00:00:00:00:99", "dev", "eth0"];
        neighbour(&past);
        assert!(!stage.ping("c", GATEWAY, 56), "the host hears what is addressed to the veth's end");
        neighbour(&["del", "10.9.0.1", "dev", "eth0"]);
        stage.eventually("the gateway answers again", || stage.ping("c", GATEWAY, 56));
    }

    // Run again, it undoes as much.
    let undo_of =
        |done: &Output| said(done).lines().find(|line| line.starts_with("to undo this: ")).map(str::to_owned);
    let again = attach(&stage, &["--tenant", "shop", "--write", "--no-reload"]);
    assert!(again.status.success() && undo_of(&again) == undo_of(&done), "{}{}", said(&done), said(&again));
    let undo = said(&done).lines().find_map(|line| line.strip_prefix("to undo this: ").map(str::to_owned));
    let undone =
        stage.command("host", "sh").args(["-c", &undo.expect("a command")]).output().expect("it runs");
    assert!(undone.status.success(), "{}", said(&undone));
    assert!(in_bridge(&stage));
    let read = ["net.ipv6.conf.vethc.disable_ipv6"];
    let ipv6 = stage.command("host", "sysctl").arg("-n").args(read).output().expect("it runs");
    assert_eq!(said(&ipv6).trim(), "0", "IPv6 is back as well");
    stage.eventually("the bridge carries it again", || stage.ping("c", GATEWAY, 56));
}

#[test]
fn an_attachment_that_cannot_be_changes_nothing_and_says_what_to_do() {
    let Some(stage) = start("atn") else { return };
    let refused = |args: &[&str], code: i32, words: &str| {
        let done = attach(&stage, args);
        assert_eq!(done.status.code(), Some(code), "{args:?}: {}", said(&done));
        assert!(said(&done).contains(words), "{args:?}: {}", said(&done));
        assert!(in_bridge(&stage) && stage.read("policy.yaml") == policy(&stage), "{args:?}");
    };
    refused(&["--tenant", "shob", "--write"], 2, "no tenant `shob`; did you mean `shop`?");
    refused(&["--tenant", "shop", "--interface", "eth9"], 2, "may name `eth0`");
    refused(&["--tenant", "shop", "--write"], 1, "start one with `plimsoll run FILE`");
    // A second veth in the container.
    let (host, container) = (stage.netns("host"), stage.netns("c"));
    ip(&["-n", &host, "link", "add", "vethd", "type", "veth", "peer", "name", "eth1", "netns", &container]);
    refused(&["--tenant", "shop"], 2, "`eth0`, `eth1`; name one with `--interface`");
    let mut missing = stage.command("host", env!("CARGO_BIN_EXE_plimsoll"));
    let missing =
        missing.args(["attach", "--tenant", "shop", "--netns", "no-such"]).output().expect("it runs");
    assert!(said(&missing).contains("`no-such` does not exist"), "{}", said(&missing));
    assert_eq!(said(&missing).matches("network namespace `no-such`").count(), 1, "{}", said(&missing));
    assert_eq!(missing.status.code(), Some(1));

    // The policy is written for a daemon that is started later.
    let done = attach(&stage, &["--tenant", "shop", "--interface", "eth0", "--write", "--no-reload"]);
    assert!(done.status.success() && !in_bridge(&stage), "{}", said(&done));
    let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    stage.eventually("the container is attached", || stage.ping("c", FAR, 56));
}

#[test]
fn a_reload_that_is_refused_puts_everything_back() {
    let Some(stage) = start("atr") else { return };
    let with_tap = policy(&stage).replace("{af_packet: later}", "{tap: {name: shop0}}");
    fs::write(stage.file("policy.yaml"), &with_tap).expect("written");
    let host = stage.netns("host");
    let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let done = attach(&stage, &["--tenant", "shop", "--write"]);
    assert_eq!(done.status.code(), Some(2), "{}", said(&done));
    assert!(said(&done).contains("--force"), "{}", said(&done));
    assert!(in_bridge(&stage) && stage.read("policy.yaml") == with_tap, "{}", stage.read("policy.yaml"));
    stage.eventually("the bridge carries it", || stage.ping("c", FAR, 56));
    let done = attach(&stage, &["--tenant", "shop", "--write", "--force"]);
    assert!(done.status.success() && !in_bridge(&stage), "{}", said(&done));
    stage.eventually("the engine carries it", || stage.ping("c", FAR, 56));
}
