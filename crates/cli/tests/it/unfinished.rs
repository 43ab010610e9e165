//! An AF_XDP uplink whose peer leaves checksums to a device that is not there.
//!
//! Needs root (network namespaces, BPF). Everything made here is removed, whatever happens.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use crate::support::{Daemon, Stage, ip, skip};

const TENANT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A tenant behind an AF_XDP uplink; `None` where BPF is not allowed.
fn start(tag: &str, offload: &str) -> Option<(Stage, Daemon)> {
    let stage = Stage::with_netns(tag, &["host", "far", "t"])?;
    let [host, far, tenant] = ["host", "far", "t"].map(|name| stage.netns(name));
    ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", &far]);
    ip(&["-n", &host, "link", "set", "up0", "up"]);
    ip(&["-n", &far, "address", "add", &format!("{FAR}/24"), "dev", "eth0"]);
    let set = stage.command("far", "ethtool").args(["-K", "eth0", "tx", offload]).output();
    if !set.is_ok_and(|set| set.status.success()) {
        skip("ethtool is missing, or cannot set checksum offload");
        return None;
    }
    ip(&["-n", &far, "link", "set", "eth0", "up"]);
    let policy = format!(
        "uplink: {{port: {{af_xdp: up0}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n  t: {{port: {{tap: {{netns: {tenant}, \
         name: eth0}}}}, interface: {{addresses: {TENANT}/24}}}}\n",
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
    let daemon = Daemon::start_if_bpf(&stage, &host)?;
    stage.eventually("a ping is answered", || stage.ping("t", FAR, 56));
    Some((stage, daemon))
}

#[test]
fn a_peer_with_checksum_offload_is_named_in_the_log_once() {
    let Some((stage, _daemon)) = start("unf", "on") else { return };
    let send = stage.inside("far", || {
        let socket = UdpSocket::bind(SocketAddrV4::new(FAR, 0)).expect("bound");
        for _ in 0..200 {
            socket.send_to(b"unfinished", SocketAddrV4::new(TENANT, 9)).expect("sent");
        }
    });
    send.join().expect("sent");
    let said = |stage: &Stage| stage.read("log").matches("unfinished TCP or UDP checksum").count();
    stage.eventually("the log names it", || said(&stage) == 1);
    let log = stage.read("log");
    assert!(log.contains("uplink") && log.contains("`up0`"), "{log}");
    assert!(log.contains("`ethtool -K PEER tx off`"), "{log}");
    // Ports are asked once a second.
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert_eq!(said(&stage), 1, "{}", stage.read("log"));
}

#[test]
fn a_peer_that_computes_its_checksums_is_not_named_and_tcp_works() {
    let Some((stage, _daemon)) = start("fin", "off") else { return };
    stage.transfer("far", "t", TENANT, 1_000_000);
    stage.transfer("t", "far", FAR, 1_000_000);
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    assert!(!stage.read("log").contains("unfinished"), "{}", stage.read("log"));
}
