//! An uplink whose far end goes, while its own device stays up: packets wait, or a standby carries them.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use plimsoll_daemon::{Explanation, Health, Reloaded, Stats};

use crate::support::{Daemon, Stage, ip, skip};

const TENANT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

#[test]
fn packets_wait_while_the_far_end_of_the_uplink_is_down() {
    let Some(stage) = Stage::with_netns("car", &["host", "far", "t"]) else { return };
    let [host, far, tenant] = ["host", "far", "t"].map(|name| stage.netns(name));
    ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up0", "up"]);
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    let policy = format!(
        "uplink: {{port: {{af_packet: up0}}, rate: 1Gbps}}\nengine: {{ring: 4096}}\napi: {{socket: {}}}\ntenants:\n  t: {{port: \
         {{tap: {{netns: {tenant}, name: eth0}}}}, interface: {{addresses: {TENANT}/24}}}}\n",
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
    let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let health = || stage.client().text("GET", "/v1/health").expect("it answers");
    stage.eventually("the uplink carries", || health().contains("\"uplink_down\":false"));

    let mut traffic = stage.traffic(("t", TENANT), ("far", FAR), 7_061, 500);
    stage.eventually("datagrams come", || traffic.since((0, 0)).arrived > 200);
    ip(&["-n", &far, "link", "set", "eth0", "down"]);
    stage.eventually("the uplink is down", || health().contains("\"uplink_down\":true"));
    let missing = traffic.missing();
    assert!(health().contains("degraded"), "{}", health());
    std::thread::sleep(Duration::from_secs(1));
    // The neighbour's address would be asked for, and the question must find its way as well.
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    stage.eventually("the uplink is up", || health().contains("\"uplink_down\":false"));
    let (sent, came) = traffic.drain();
    traffic.end();
    let stats: Stats = stage.client().get("/v1/stats").expect("it answers");
    // The kernel tells of a lost carrier up to a second after it: what it took until then is lost. What is sent in the
    // second after the daemon knows of it waits, so no more are missing in the end.
    assert!(
        sent > 600 && sent - came <= missing + 20,
        "{came} of {sent} came, {missing} missing when the uplink was down; from the tenant {:?}, by the uplink {:?}",
        stats.tenants["t"],
        stats.uplink
    );
}

/// A tenant behind an uplink with two ports to one bridge; `None` where these ports cannot be opened here.
fn two_ports(tag: &str, first: &str, second: &str) -> Option<(Stage, Daemon)> {
    let stage = Stage::with_netns(tag, &["host", "far", "t"])?;
    let [host, far, tenant] = ["host", "far", "t"].map(|name| stage.netns(name));
    // With an address of its own, which does not change with its ports.
    ip(&["-n", &far, "link", "add", "br0", "address", "02:00:00:00:00:fe", "type", "bridge"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "br0"]);
    for (near, end) in [("up0", "eth0"), ("up1", "eth1")] {
        ip(&["-n", &host, "link", "add", near, "type", "veth", "peer", "name", end, "netns", &far]);
        ip(&["-n", &host, "link", "set", near, "addrgenmode", "none", "up"]);
        ip(&["-n", &far, "link", "set", end, "master", "br0", "addrgenmode", "none", "up"]);
    }
    // With AF_XDP, packets must come with finished checksums.
    for device in ["eth0", "eth1", "br0"] {
        let set = stage.command("far", "ethtool").args(["-K", device, "tx", "off"]).output();
        if (first, second) != ("af_packet", "af_packet") && !set.is_ok_and(|set| set.status.success()) {
            skip("ethtool is missing, or cannot set checksum offload");
            return None;
        }
    }
    ip(&["-n", &far, "link", "set", "br0", "up"]);
    fs::write(stage.file("policy.yaml"), policy(&stage, &tenant, first, &format!("{{{second}: up1}}")))
        .expect("written");
    let daemon = Daemon::start_if_bpf(&stage, &host)?;
    Some((stage, daemon))
}

fn policy(stage: &Stage, tenant: &str, first: &str, standby: &str) -> String {
    format!(
        "uplink: {{port: {{{first}: up0}}, standby: {standby}, hold_off: 2s, rate: 200Mbps}}\nengine: {{ring: 4096}}\napi: \
         {{socket: {}}}\ntenants:\n  t: {{port: {{tap: {{netns: {tenant}, name: eth0}}}}, interface: {{addresses: \
         {TENANT}/24}}}}\n",
        stage.file("api.sock").display()
    )
}

fn health(stage: &Stage) -> Health {
    stage.client().get("/v1/health").expect("it answers")
}

fn active(stage: &Stage) -> (String, u64) {
    let both = health(stage).standby.expect("two ports");
    (both.active, both.switches)
}

/// Frames that came in at both ends of the uplink.
fn arrived(stage: &Stage) -> u64 {
    let at = |device: &str| {
        let file = format!("/sys/class/net/{device}/statistics/rx_packets");
        let read = stage.command("far", "cat").arg(file).output().expect("cat runs");
        String::from_utf8_lossy(&read.stdout).trim().parse::<u64>().expect("a number")
    };
    at("eth0") + at("eth1")
}

/// A flow goes on over the second port while the first has no carrier, and no frame counts as sent that was not.
fn goes_on(tag: &str, first: &str, second: &str) {
    let Some((stage, _daemon)) = two_ports(tag, first, second) else { return };
    let far = stage.netns("far");
    stage.eventually("both carry", || health(&stage).status == "ok");
    stage.eventually("a ping is answered", || stage.ping("t", FAR, 56));
    let sent =
        |stage: &Stage| stage.client().get::<Stats>("/v1/stats").expect("it answers").uplink.tx_packets;

    let mut traffic = stage.traffic(("t", TENANT), ("far", FAR), 7_062, 500);
    stage.eventually("datagrams come", || traffic.since((0, 0)).arrived > 200);
    ip(&["-n", &far, "link", "set", "eth0", "down"]);
    stage.eventually("the standby carries", || active(&stage) == ("standby".to_owned(), 1));
    let (missing, mark) = (traffic.missing(), traffic.mark());
    let now = health(&stage);
    assert_eq!((now.status.as_str(), now.uplink_down), ("degraded", false), "the other port is down");
    let explained: Explanation = stage.client().get("/v1/explain").expect("it answers");
    let uplink = explained.uplink.expect("it names the port");
    assert_eq!((uplink.place.as_str(), uplink.down), ("standby", false), "{uplink:?}");
    stage.eventually("datagrams come again", || traffic.since(mark).arrived > 500);
    assert!(stage.ping("far", TENANT, 56), "the bridge knows the way");
    // Back, and not before it has been well for two seconds.
    let up = Instant::now();
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    stage.eventually("the first one carries again", || active(&stage) == ("port".to_owned(), 2));
    assert!(up.elapsed() > Duration::from_millis(1_900), "{:?}", up.elapsed());
    let mark = traffic.mark();
    stage.eventually("datagrams come by it", || traffic.since(mark).arrived > 300);
    assert_eq!(health(&stage).status, "ok");
    let (offered, came) = traffic.drain();
    traffic.end();
    // What the kernel took before it told of the carrier is lost; the daemon loses nothing by switching.
    assert!(
        offered > 1_000 && offered - came <= missing + 20,
        "{came} of {offered} came, {missing} missing at the switch"
    );
    let (sent, arrived) = (sent(&stage), arrived(&stage));
    assert!(sent <= arrived + missing + 20, "{sent} count as sent, {arrived} arrived");

    let log = stage.read("log");
    assert!(log.contains("stands by for the uplink"), "{log}");
    assert!(
        log.contains("the uplink's port has no carrier") && log.contains("carries all frames again"),
        "{log}"
    );
    let metrics = stage.client().text("GET", "/metrics").expect("it answers");
    for line in [
        "plimsoll_uplink_port_up{place=\"standby\"} 1",
        "plimsoll_uplink_port_active{place=\"port\"} 1",
        "plimsoll_uplink_switches_total 2",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    let says = |line: &str| stage.eventually(line, || stage.read("log").contains(line));
    ip(&["-n", &far, "link", "set", "eth1", "down"]);
    says(&format!("the uplink's standby {second} up1"));
    says("fails, packets wait");
    ip(&["-n", &far, "link", "set", "eth0", "down"]);
    says(" has a carrier: packets wait");
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    // Else the standby may be seen first, and carries frames again before its line is due.
    stage.eventually("the port is back", || {
        let metrics = stage.client().text("GET", "/metrics").unwrap_or_default();
        metrics.contains("plimsoll_uplink_port_up{place=\"port\"} 1")
    });
    ip(&["-n", &far, "link", "set", "eth1", "up"]);
    stage.eventually("both are back", || {
        let log = stage.read("log");
        let last = log.lines().last().unwrap_or_default();
        last.contains("the uplink's standby") && last.ends_with("has a carrier again")
    });
}

/// The host's own kernel answers on the interface that is not active, and its packets are no loss of the uplink's.
#[test]
fn what_comes_for_the_host_by_the_idle_port_is_no_loss() {
    const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 77);
    let Some((stage, _daemon)) = two_ports("sbh", "af_packet", "af_packet") else { return };
    stage.eventually("both carry", || health(&stage).status == "ok");
    ip(&["-n", &stage.netns("host"), "address", "add", &format!("{HOST}/24"), "dev", "up1"]);
    // The kernel would answer for this address on the other interface as well.
    ip(&["-n", &stage.netns("host"), "link", "set", "up0", "arp", "off"]);
    let uplink = || stage.client().get::<Stats>("/v1/stats").expect("it answers").uplink;
    stage.eventually("the host answers", || stage.ping("far", HOST, 56));
    let count =
        |counts: &std::collections::BTreeMap<String, u64>, name| counts.get(name).copied().unwrap_or(0);
    let before = uplink();
    assert!((0..100).all(|_| stage.ping("far", HOST, 56)));
    stage.eventually("they are counted", || {
        count(&uplink().events, "for_the_host") >= count(&before.events, "for_the_host") + 100
    });
    let lost = count(&uplink().drops, "inactive_port") - count(&before.drops, "inactive_port");
    // Multicasts of the tenant's and the bridge's kernels come back this way.
    assert!(lost < 50, "{lost} of 100 count as lost");
}

#[test]
fn a_flow_goes_on_over_the_standby_while_the_first_port_has_no_carrier() {
    goes_on("sby", "af_packet", "af_packet");
}

#[test]
fn a_flow_goes_on_with_af_xdp_in_either_place() {
    goes_on("sbx", "af_xdp", "af_packet");
    goes_on("sbz", "af_packet", "af_xdp");
}

#[test]
fn packets_wait_while_the_far_end_of_an_af_xdp_uplink_is_down() {
    let Some((stage, _daemon)) = two_ports("cax", "af_xdp", "af_packet") else { return };
    let (far, tenant) = (stage.netns("far"), stage.netns("t"));
    // Without its standby it is an uplink like any other: nothing can carry its packets meanwhile.
    fs::write(
        stage.file("policy.yaml"),
        policy(&stage, &tenant, "af_xdp", "X").replace(", standby: X, hold_off: 2s", ""),
    )
    .expect("written");
    let reloaded: Reloaded = stage.client().post("/v1/reload").expect("reloaded");
    assert!(reloaded.changes.contains("standby"), "{}", reloaded.changes);
    stage.eventually("the uplink carries", || health(&stage).status == "ok");
    assert!(health(&stage).standby.is_none());
    let mut traffic = stage.traffic(("t", TENANT), ("far", FAR), 7_063, 500);
    stage.eventually("datagrams come", || traffic.since((0, 0)).arrived > 200);
    ip(&["-n", &far, "link", "set", "eth0", "down"]);
    stage.eventually("the uplink is down", || health(&stage).uplink_down);
    let missing = traffic.missing();
    std::thread::sleep(Duration::from_secs(1));
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    stage.eventually("the uplink is up", || !health(&stage).uplink_down);
    let (sent, came) = traffic.drain();
    traffic.end();
    assert!(
        sent > 700 && sent - came <= missing + 20,
        "{came} of {sent} came, {missing} missing when the uplink was down"
    );
}

#[test]
fn a_reload_adds_a_standby_a_tcp_flow_goes_on_over_it_and_a_reload_changes_it() {
    let Some((stage, _daemon)) = two_ports("sbr", "af_packet", "af_packet") else { return };
    let (host, far, tenant) = (stage.netns("host"), stage.netns("far"), stage.netns("t"));
    let reload = |standby: &str| {
        let text = policy(&stage, &tenant, "af_packet", standby);
        let text = if standby.is_empty() { text.replace(", standby: , hold_off: 2s", "") } else { text };
        fs::write(stage.file("policy.yaml"), text).expect("written");
        stage.client().post::<Reloaded>("/v1/reload").map_err(|error| error.to_string())
    };
    assert!(reload("").expect("reloaded").changes.contains("standby {af_packet: up1}"));
    assert!(health(&stage).standby.is_none());
    let refused = reload("{af_packet: up9}").expect_err("there is no up9");
    assert!(refused.contains("the standby uplink") && refused.contains("`up9` does not exist"), "{refused}");
    let added = reload("{af_packet: up1}").expect("reloaded").changes;
    assert!(added.contains("standby") && added.contains("{af_packet: up1}"), "{added}");
    stage.eventually("both carry", || health(&stage).status == "ok");
    stage.eventually("a ping is answered", || stage.ping("t", FAR, 56));
    let took = std::thread::scope(|scope| {
        let flow = scope.spawn(|| stage.transfer("t", "far", FAR, 60_000_000));
        std::thread::sleep(Duration::from_millis(500));
        ip(&["-n", &far, "link", "set", "eth0", "down"]);
        flow.join().expect("it ended")
    });
    assert_eq!(active(&stage), ("standby".to_owned(), 1), "it went over the standby, in {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");

    // The standby's device disappears, and is asked for by its own name; then the policy names another one.
    ip(&["-n", &host, "link", "delete", "up1"]);
    stage.eventually("it is lost", || health(&stage).lost_ports == ["standby"]);
    ip(&["-n", &host, "link", "add", "up2", "type", "veth", "peer", "name", "eth2", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up2", "up"]);
    ip(&["-n", &far, "link", "set", "eth2", "master", "br0", "up"]);
    assert!(reload("{af_packet: up2}").expect("reloaded").changes.contains("{af_packet: up2}"));
    stage.eventually("the new one carries", || stage.ping("t", FAR, 56));
    let both = health(&stage).standby.expect("two ports");
    assert_eq!((both.active.as_str(), both.standby.name.as_deref()), ("standby", Some("af_packet up2")));
}

/// The kernel tells of a deleted device as of one that is set down; the port that is not active then sends nothing that fails.
#[test]
fn a_device_that_is_deleted_is_asked_for_and_carries_again_when_it_is_back() {
    let Some((stage, _daemon)) = two_ports("sbd", "af_packet", "af_packet") else { return };
    let (host, far) = (stage.netns("host"), stage.netns("far"));
    stage.eventually("both carry", || health(&stage).status == "ok");
    for (near, end, owner) in
        [("up0", "eth0", "uplink"), ("up1", "eth1", "standby"), ("up0", "eth0", "uplink")]
    {
        stage.eventually("a ping is answered", || stage.ping("t", FAR, 56));
        ip(&["-n", &host, "link", "delete", near]);
        stage.eventually("it is lost", || health(&stage).lost_ports == [owner]);
        stage.eventually("the other one carries", || stage.ping("t", FAR, 56));
        ip(&["-n", &host, "link", "add", near, "type", "veth", "peer", "name", end, "netns", &far]);
        ip(&["-n", &host, "link", "set", near, "up"]);
        ip(&["-n", &far, "link", "set", end, "master", "br0", "up"]);
        stage.eventually("it is back", || health(&stage).status == "ok" && active(&stage).0 == "port");
    }
}

/// No frame fails, as none is sent: the daemon asks for the device itself.
#[test]
fn a_silent_tenants_veth_that_is_deleted_is_noticed_and_opened_again() {
    let Some(stage) = Stage::with_netns("cav", &["host", "far", "t"]) else { return };
    let [host, far, tenant] = ["host", "far", "t"].map(|name| stage.netns(name));
    let pair = |near: &str, netns: &str| {
        let quiet = ["addrgenmode", "none", "up"];
        ip(&["-n", &host, "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", netns]);
        ip(&[&["-n", &host, "link", "set", near][..], &quiet].concat());
        ip(&[&["-n", netns, "link", "set", "eth0"][..], &quiet].concat());
    };
    pair("up0", &far);
    pair("t0", &tenant);
    let policy = format!(
        "uplink: {{port: {{af_packet: up0}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n  t: {{port: {{af_packet: t0}}}}\n",
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
    let _daemon = Daemon::start(Some(&host), &stage.file("policy.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    for _ in 0..2 {
        stage.eventually("all is well", || health(&stage).status == "ok");
        let deleted = Instant::now();
        ip(&["-n", &host, "link", "delete", "t0"]);
        stage.eventually("it is lost", || health(&stage).lost_ports == ["t"]);
        assert!(deleted.elapsed() < Duration::from_secs(5), "{:?}", deleted.elapsed());
        pair("t0", &tenant);
        stage.eventually("it is back", || health(&stage).lost_ports.is_empty());
    }
    ip(&["-n", &tenant, "address", "add", &format!("{TENANT}/24"), "dev", "eth0"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    stage.eventually("a ping is answered", || stage.ping("t", FAR, 56));
}

/// A veth says that its link has 10 Gb/s.
#[test]
fn check_warns_of_a_standby_that_is_slower_than_the_uplinks_rate() {
    let Some(stage) = Stage::with_netns("css", &["host", "far"]) else { return };
    let (host, far) = (stage.netns("host"), stage.netns("far"));
    ip(&["-n", &host, "link", "add", "up1", "type", "veth", "peer", "name", "eth1", "netns", &far]);
    ip(&["-n", &far, "link", "set", "eth1", "up"]);
    ip(&["-n", &host, "link", "set", "up1", "up"]);
    let speed = stage.command("host", "cat").arg("/sys/class/net/up1/speed").output().expect("cat runs");
    assert_eq!(String::from_utf8_lossy(&speed.stdout), "10000\n");
    let check = |rate: &str| {
        let text = format!(
            "uplink: {{port: {{af_packet: up0}}, standby: {{af_packet: up1}}, rate: {rate}}}\ntenants: {{t: {{port: memory}}}}\n"
        );
        fs::write(stage.file("policy.yaml"), text).expect("written");
        let mut check = stage.command("host", env!("CARGO_BIN_EXE_plimsoll"));
        let done = check.arg("check").arg(stage.file("policy.yaml")).output().expect("it runs");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let warned = check("40Gbps");
    assert!(warned.contains("the link of the standby `up1` has 10Gbps"), "{warned}");
    assert_eq!(check("10Gbps"), "");
}
