//! An uplink whose far end goes, while its own device stays up.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::support::{Daemon, Stage, ip};

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
    // The kernel tells of a lost carrier up to a second after it: what it took until then is lost. What is sent in the
    // second after the daemon knows of it waits, so no more are missing in the end.
    assert!(
        sent > 700 && sent - came <= missing + 20,
        "{came} of {sent} came, {missing} missing when the uplink was down"
    );
}
