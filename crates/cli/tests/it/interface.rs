//! What the daemon sets on a tenant's interface comes back with it.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;

use nix::sys::signal::Signal;

use crate::support::{Daemon, Stage};

/// Writes the policy of a host with these tenants.
fn state_rows(stage: &Stage, rows: &str) {
    let (up, socket) = (stage.netns("up"), stage.file("api.sock"));
    let policy = format!(
        "uplink: {{port: {{tap: {{netns: {up}, name: up0}}}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n{rows}",
        socket.display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
}

/// Writes the policy of a host whose one tenant has these keys behind its port.
fn state_tenant(stage: &Stage, keys: &str) {
    let tenant = stage.netns("t");
    state_rows(stage, &format!("  t: {{port: {{tap: {{netns: {tenant}, name: eth0}}}}{keys}}}\n"));
}

#[test]
fn addresses_routes_and_the_mtu_are_back_after_a_restart() {
    let Some(stage) = Stage::with_netns("ifc", &["up", "t"]) else { return };
    let state = |interface: &str| state_tenant(&stage, &format!(", interface: {{{interface}}}"));
    let told = |words: &[&str]| {
        let done = stage.command("t", "ip").args(words).output().expect("ip is installed");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let check = |addresses: &[&str]| {
        let (shown, link) =
            (told(&["address", "show", "dev", "eth0"]), told(&["-o", "link", "show", "dev", "eth0"]));
        assert!(addresses.iter().all(|address| shown.contains(address)), "{shown}");
        assert!(link.contains("mtu 1400"), "{link}");
        assert!(told(&["route", "show", "default"]).contains("via 10.9.0.254"), "{}", told(&["route"]));
        assert!(
            told(&["-6", "route", "show", "fd77::/64"]).contains("via fd09::1"),
            "{}",
            told(&["-6", "route"])
        );
        link.split(':').next().map(str::to_owned)
    };
    let base = "addresses: [10.9.0.5/24, 'fd09::5/64'], routes: [default via 10.9.0.254, 'fd77::/64 via fd09::1'], mtu: 1400";
    let start = || {
        let daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
        stage.eventually("the daemon runs", || stage.read("log").contains("plimsoll: running;"));
        daemon
    };
    state(base);
    let mut daemon = start();
    check(&["10.9.0.5/24", "fd09::5/64"]);
    daemon.end(Signal::SIGKILL).expect("it ends");
    let _daemon = start();
    let device = check(&["10.9.0.5/24", "fd09::5/64"]);

    // A reload adds to the same device.
    state(&base.replace("10.9.0.5/24,", "10.9.0.5/24, 10.9.1.5/24,"));
    let changes = stage.client().text("POST", "/v1/reload").expect("reloaded");
    assert!(changes.contains("interface addresses"), "{changes}");
    assert_eq!(check(&["10.9.0.5/24", "10.9.1.5/24", "fd09::5/64"]), device);
    // Another gateway takes the place of the one before.
    state(&base.replace("10.9.0.254", "10.9.0.253"));
    stage.client().text("POST", "/v1/reload").expect("reloaded");
    let routes = told(&["route", "show", "default"]);
    assert!(routes.contains("via 10.9.0.253") && !routes.contains("via 10.9.0.254"), "{routes}");
}

#[test]
fn a_device_that_persists_outlives_each_daemon() {
    let Some(stage) = Stage::with_netns("ifp", &["up", "t"]) else { return };
    state_tenant(&stage, ", interface: {persist: true}");
    let told = |words: &[&str]| {
        let done = stage.command("t", "ip").args(words).output().expect("ip is installed");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let index = || told(&["-o", "link", "show", "dev", "eth0"]).split(':').next().map(str::to_owned);
    let start = || {
        let daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
        stage.eventually("the daemon runs", || stage.read("log").contains("plimsoll: running;"));
        assert!(!stage.read("log").contains("it is tried again"), "{}", stage.read("log"));
        daemon
    };
    let mut daemon = start();
    let device = index();
    assert!(
        stage
            .command("t", "ip")
            .args(["address", "add", "10.9.0.5/24", "dev", "eth0"])
            .status()
            .is_ok_and(|done| done.success())
    );
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        daemon.end(signal).expect("it ends");
        daemon = start();
        assert!(device.is_some() && index() == device, "{device:?}");
        assert!(told(&["address", "show", "dev", "eth0"]).contains("10.9.0.5/24"), "after {signal}");
    }
}

/// The file of a TAP that stays holds its namespace open; one of the same name that is made anew gets a device of its own.
#[test]
fn a_namespace_that_is_made_anew_gets_its_device_that_persists() {
    let Some(stage) = Stage::with_netns("ifn", &["up", "t"]) else { return };
    let tenant = stage.netns("t");
    state_tenant(&stage, ", interface: {persist: true, addresses: [10.9.0.5/24]}");
    let _daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let shown = || {
        let done = stage.command("t", "ip").args(["address", "show", "dev", "eth0"]).output();
        String::from_utf8_lossy(&done.expect("ip is installed").stdout).into_owned()
    };
    assert!(shown().contains("10.9.0.5/24"), "{}", shown());
    for verb in ["del", "add"] {
        crate::support::ip(&["netns", verb, &tenant]);
    }
    assert!(shown().is_empty(), "another namespace");
    stage.eventually("the device is there", || shown().contains("10.9.0.5/24"));
    // The log says so after the device has its addresses.
    stage.eventually("the log says so", || stage.read("log").contains("the port is back"));
    assert!(stage.read("log").contains("has disappeared"), "{}", stage.read("log"));
}

/// Without IPv6 in its namespace a tenant has its port, with all other addresses, and the daemon says what is missing.
#[test]
fn a_port_without_its_ipv6_addresses_is_kept_and_told() {
    let Some(stage) = Stage::with_netns("ifv", &["up", "t"]) else { return };
    let state = |interface: &str| state_tenant(&stage, &format!(", interface: {{{interface}}}"));
    let off = ["-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"];
    assert!(stage.command("t", "sysctl").args(off).status().is_ok_and(|done| done.success()));
    state(
        "addresses: ['fd09::5/64', 10.9.0.5/24], routes: ['fd77::/64 via fd09::1', default via 10.9.0.254]",
    );
    let _daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let health = || stage.client().get::<serde_json::Value>("/v1/health").expect("it answers");
    let told = health();
    assert_eq!(
        (&told["status"], &told["lost_ports"]),
        (&"degraded".into(), &serde_json::json!([])),
        "{told}"
    );
    let why = told["incomplete_ports"]["t"].as_str().expect("a reason");
    assert!(why.contains("fd09::5/64") && why.contains("IPv6 is disabled on `eth0`"), "{why}");
    stage.eventually("the log says so", || stage.read("log").contains("IPv6 is disabled on `eth0`"));
    let addresses = || {
        let shown = stage.command("t", "ip").args(["address", "show", "dev", "eth0"]).output();
        String::from_utf8_lossy(&shown.expect("ip is installed").stdout).into_owned()
    };
    assert!(addresses().contains("10.9.0.5/24"), "{}", addresses());

    state("addresses: [10.9.0.5/24, 'fd09::6/64']");
    let refused = stage.client().text("POST", "/v1/reload").expect_err("refused").to_string();
    assert!(refused.contains("IPv6 is disabled") && !refused.contains("as root"), "{refused}");
    state("addresses: [10.9.0.5/24, 10.9.1.5/24]");
    stage.client().text("POST", "/v1/reload").expect("reloaded");
    assert_eq!(health()["status"], "ok", "{}", health());
    assert!(addresses().contains("10.9.1.5/24"), "{}", addresses());
}

/// A tenant that is renamed, and two that swap: the devices and their addresses stay, and no `--force` is asked for.
#[test]
fn a_tap_goes_from_tenant_to_tenant_as_it_is() {
    let Some(stage) = Stage::with_netns("ifr", &["up", "x", "y"]) else { return };
    let netns = ["up", "x", "y"].map(|name| stage.netns(name));
    let state = |tenants: &[(&str, &str, &str)]| {
        let row = |(name, netns, more): &(&str, &str, &str)| {
            format!("  {name}: {{port: {{tap: {{netns: {netns}, name: eth0}}}}{more}}}\n")
        };
        let rows: String = tenants.iter().map(row).collect();
        state_rows(&stage, &rows);
    };
    let told = |name: &str| {
        let done = stage.command(name, "ip").args(["-o", "address", "show", "dev", "eth0"]).output();
        String::from_utf8_lossy(&done.expect("ip is installed").stdout).into_owned()
    };
    let index = |name: &str| told(name).split(':').next().map(str::to_owned);
    let [_, x, y] = &netns;
    let (at_x, at_y) = (", interface: {addresses: [10.9.0.1/24]}", ", interface: {addresses: [10.9.0.2/24]}");
    state(&[("a", x, at_x), ("b", y, at_y)]);
    let _daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let devices = [index("x"), index("y")];
    let reload = || stage.client().text("POST", "/v1/reload").expect("reloaded");
    let there = std::net::Ipv4Addr::new(10, 9, 0, 2);
    let count = |tenant: &str| {
        let stats: serde_json::Value = stage.client().get("/v1/stats").expect("counters");
        stats["tenants"][tenant]["rx_packets"].as_u64()
    };
    stage.eventually("packets pass", || stage.ping("x", there, 64) && count("a") > Some(20));
    let before = count("a").expect("it has sent");
    state(&[("renamed", x, at_x), ("b", y, at_y)]);
    let changes = reload();
    assert!(changes.contains("~ tenant renamed: gets the TAP") && !changes.contains("! tenant"), "{changes}");
    assert_eq!([index("x"), index("y")], devices);
    assert!(told("x").contains("10.9.0.1/24"), "{}", told("x"));
    assert!(count("a").is_none() && count("renamed").is_some_and(|count| count < before));
    stage.eventually("packets pass", || stage.ping("x", there, 64));

    let by_path = format!("/run/netns/{x}");
    state(&[("renamed", y, at_y), ("b", &by_path, at_x)]);
    let changes = reload();
    assert_eq!(changes.matches("gets the TAP").count(), 2, "{changes}");
    assert_eq!([index("x"), index("y")], devices);
    stage.eventually("packets pass", || stage.ping("x", there, 64));
    let (renamed, b) = (count("renamed"), count("b"));
    stage.eventually("both have their own packets", || stage.ping("x", there, 64) && count("b") > b);
    assert!(count("renamed") > renamed);

    // A tenant that is taken out: the plan says what is removed.
    state(&[("b", x, at_x)]);
    let changes = reload();
    assert!(changes.contains("! tenant renamed: its TAP") && changes.contains("is removed"), "{changes}");
    stage.eventually("it is removed", || told("y").is_empty());
}

/// A TAP that an earlier run has made to stay: the next one without `persist` takes it over, and it ends with that run. So
/// does a reload that drops the key.
#[test]
fn a_device_that_no_longer_persists_is_taken_over_and_goes_with_the_daemon() {
    let Some(stage) = Stage::with_netns("ifq", &["up", "t"]) else { return };
    let state = |persist: &str| state_tenant(&stage, persist);
    let told = |words: &[&str]| {
        let done = stage.command("t", "ip").args(words).output().expect("ip is installed");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let index = || told(&["-o", "link", "show", "dev", "eth0"]).split(':').next().map(str::to_owned);
    let is_there = || index().is_some_and(|index| !index.is_empty());
    let start = || {
        let daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
        stage.eventually("the daemon runs", || stage.read("log").contains("plimsoll: running;"));
        assert!(!stage.read("log").contains("it is tried again"), "{}", stage.read("log"));
        daemon
    };
    let (with, without) = (", interface: {persist: true}", "");
    for reloaded in [false, true] {
        state(with);
        let mut daemon = start();
        let device = index();
        assert!(is_there());
        let add = ["address", "add", "10.9.0.5/24", "dev", "eth0"];
        assert!(stage.command("t", "ip").args(add).status().is_ok_and(|done| done.success()));
        state(without);
        if reloaded {
            let changes = stage.client().text("POST", "/v1/reload").expect("reloaded");
            assert!(changes.contains("interface persist true -> none"), "{changes}");
        } else {
            daemon.end(Signal::SIGTERM).expect("it ends");
            assert_eq!(index(), device, "it has stayed");
            daemon = start();
        }
        assert_eq!(index(), device, "taken over");
        assert!(told(&["address", "show", "dev", "eth0"]).contains("10.9.0.5/24"));
        daemon.end(Signal::SIGTERM).expect("it ends");
        stage.eventually("it has gone with the daemon", || !is_there());
    }

    // A reload that adds the key holds from then on.
    state(without);
    let mut daemon = start();
    state(with);
    stage.client().text("POST", "/v1/reload").expect("reloaded");
    let device = index();
    daemon.end(Signal::SIGKILL).expect("it ends");
    assert_eq!(index(), device, "it has stayed");
    let _daemon = start();
    assert_eq!(index(), device);
}
