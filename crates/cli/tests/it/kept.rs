//! TAPs that outlive their daemon, as a service manager keeps their files: the cost of a kill and a restart for tenants.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use nix::sys::signal::Signal;
use plimsoll_daemon::Client;
use plimsoll_ports::netns::NetnsRef;
use plimsoll_ports::{Tap, TapConfig};

use crate::support::manager::Manager;
use crate::support::{Daemon, PATIENCE, Stage, eventually, ip};

const T1: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const T2: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A host with two tenants, and the manager of its daemon.
struct Host {
    daemon: Option<Daemon>,
    manager: Manager,
    uplink: String,
    stage: Stage,
}

impl Host {
    /// `None` without root.
    fn new(tag: &str) -> Option<Self> {
        let stage = Stage::new(tag)?;
        ["host", "t1", "t2"].iter().for_each(|name| stage.add_netns(name));
        let host = stage.netns("host");
        ip(&["-n", &host, "link", "add", "up0", "type", "veth", "peer", "name", "fabric0"]);
        ["up0", "fabric0"].iter().for_each(|name| ip(&["-n", &host, "link", "set", name, "up"]));
        let uplink = "af_packet: up0".to_owned();
        Some(Self { daemon: None, manager: Manager::new(&stage), uplink, stage })
    }

    /// Its daemon runs for both tenants, and the manager has their devices.
    fn with_both(tag: &str) -> Option<Self> {
        let mut host = Self::new(tag)?;
        host.start(&["t1", "t2"]);
        host.keeps("both are with the manager", 2);
        Some(host)
    }

    /// Starts the daemon for these tenants.
    fn start(&mut self, tenants: &[&str]) {
        self.state(tenants);
        self.daemon = Some(self.manager.start(&self.stage, "host", "policy.yaml", "log"));
        let client = Client::new(&self.stage.file("api.sock"));
        self.eventually("the daemon answers", || client.text("GET", "/v1/health").is_ok());
    }

    /// Writes the policy for these tenants.
    fn state(&self, tenants: &[&str]) {
        let row = |tenant: &&str| {
            format!("  {tenant}: {{port: {{tap: {{netns: {}, name: eth0}}}}}}\n", self.stage.netns(tenant))
        };
        // A flow queue holds what waited in a device while the daemon was away: on a busy machine that takes long.
        let policy = format!(
            "uplink: {{port: {{{}}}, rate: 100Mbps}}\nengine: {{ring: 1024}}\napi: {{socket: {}}}\ntenants:\n{}",
            self.uplink,
            self.stage.file("api.sock").display(),
            tenants.iter().map(row).collect::<String>()
        );
        fs::write(self.stage.file("policy.yaml"), policy).expect("written");
    }

    fn reload(&self, tenants: &[&str]) {
        self.state(tenants);
        Client::new(&self.stage.file("api.sock")).text("POST", "/v1/reload").expect("reloaded");
    }

    fn end(&mut self, signal: Signal) {
        self.daemon.take().expect("it runs").end(signal).expect("it ends");
    }

    fn addresses(&self) {
        for (tenant, address) in [("t1", T1), ("t2", T2)] {
            ip(&["-n", &self.stage.netns(tenant), "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        }
    }

    /// The output of `ip` in a tenant's namespace.
    fn told(&self, tenant: &str, what: &[&str]) -> String {
        let done = self.stage.command(tenant, "ip").args(what).output().expect("ip is installed");
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// The number that the kernel gave a tenant's device when it was made; nothing where there is none.
    fn device(&self, tenant: &str) -> Option<u32> {
        let told = self.told(tenant, &["-o", "link", "show", "dev", "eth0"]);
        told.split(':').next()?.parse().ok()
    }

    /// The name under which the manager keeps a tenant's device.
    fn made(&self, tenant: &str) -> String {
        let netns = File::open(format!("/run/netns/{}", self.stage.netns(tenant))).expect("it is there");
        let number = netns.metadata().expect("its number").ino();
        format!("{:x}.{number:x}", self.device(tenant).expect("a device"))
    }

    fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        eventually(what, PATIENCE, || self.stage.read("log"), holds);
    }

    fn keeps(&mut self, what: &str, files: usize) {
        let Self { manager, stage, .. } = self;
        eventually(what, PATIENCE, || stage.read("log"), || manager.kept().len() == files);
    }
}

#[test]
fn a_killed_daemon_costs_tenants_a_pause_and_nothing_else() {
    let Some(mut host) = Host::with_both("kpa") else { return };
    host.addresses();
    ip(&["-n", &host.stage.netns("t1"), "route", "add", "10.77.0.0/16", "via", "10.9.0.2"]);
    let (mut here, mut there) = connected(&host.stage);
    said(&mut here, &mut there, "before");
    let mut traffic = host.stage.traffic(("t1", T1), ("t2", T2), 7_060, 1_000);
    host.eventually("datagrams come", || traffic.since((0, 0)).arrived > 500);
    let devices = [host.device("t1"), host.device("t2")];

    let mark = traffic.mark();
    host.end(Signal::SIGKILL);
    here.write_all(b"meanwhile").expect("its own kernel takes it");
    host.start(&["t1", "t2"]);
    host.eventually("datagrams come again", || traffic.since(mark).arrived > 1_000);
    let gap = traffic.since(mark).gap;
    heard(&mut there, "meanwhile");
    said(&mut there, &mut here, "and back");

    assert_eq!([host.device("t1"), host.device("t2")], devices, "the same devices");
    assert!(devices.iter().all(Option::is_some), "{devices:?}");
    let route = host.told("t1", &["route", "show", "10.77.0.0/16"]);
    assert!(route.contains("via 10.9.0.2"), "the route is there: {route}");
    assert_eq!(host.stage.read("log").matches("is as the run before left it").count(), 2);
    host.keeps("each once", 2);
    // What the tenant sent meanwhile waits in its device; what the daemon held when it was killed is lost, and what found
    // the device full, which its kernel counts.
    let (sent, came) = traffic.drain();
    let full: u64 = dropped(&host.told("t1", &["-j", "-s", "link", "show", "dev", "eth0"]));
    eprintln!(
        "killed and started again, with its TAPs kept: {gap:?} without traffic, {} of {sent} lost, \
         {full} of them as the device was full",
        sent - came
    );
    assert!(sent - came <= 40 + full, "{sent} sent, {came} came, {full} found it full");
}

#[test]
fn a_restart_that_was_asked_for_keeps_devices_too() {
    let Some(mut host) = Host::with_both("kpb") else { return };
    let before = host.device("t1");
    assert!(before.is_some());
    host.end(Signal::SIGTERM);
    host.start(&["t1", "t2"]);
    assert_eq!(host.device("t1"), before);
    host.keeps("each once", 2);
}

#[test]
fn what_no_policy_has_any_more_is_let_go() {
    let Some(mut host) = Host::with_both("kpc") else { return };
    host.reload(&["t1"]);
    host.keeps("a reload lets go", 1);
    host.eventually("its device goes", || host.device("t2").is_none());
    host.reload(&["t1", "t2"]);
    host.keeps("a reload hands over", 2);

    host.end(Signal::SIGKILL);
    host.start(&["t1"]);
    host.keeps("a start lets go of who is gone meanwhile", 1);
    host.eventually("its device goes", || host.device("t2").is_none());
    assert!(host.device("t1").is_some());

    let netns = host.stage.netns("t1");
    ip(&["netns", "del", &netns]);
    host.keeps("a device that is no more is no longer kept", 0);
    ip(&["netns", "add", &netns]);
    host.keeps("and is when it is back", 1);
}

#[test]
fn only_the_very_device_is_taken_up() {
    let Some(mut host) = Host::with_both("kpd") else { return };
    let before = host.device("t2");
    assert!(before.is_some());
    host.end(Signal::SIGKILL);
    // A tenant has renamed its device, another has changed its MTU, and the manager keeps other files under similar names.
    for what in [["down"].as_slice(), &["name", "eth7"], &["up"]] {
        let name = if what == ["up"] { "eth7" } else { "eth0" };
        ip(&[["-n", &host.stage.netns("t1"), "link", "set", name].as_slice(), what].concat());
    }
    ip(&["-n", &host.stage.netns("t2"), "link", "set", "eth0", "mtu", "1300"]);
    host.manager.add("7.f0000000", File::open("/dev/null").expect("opened"));
    host.manager.add("stored", TcpListener::bind("127.0.0.1:0").expect("bound"));
    host.start(&["t1", "t2"]);
    assert_eq!(host.device("t2"), before, "one is as it was");
    assert!(host.told("t2", &["link", "show", "eth0"]).contains("mtu 1500"), "but for what the policy says");
    assert!(host.device("t1").is_some(), "the other was made anew");
    assert_eq!(host.stage.read("log").matches("is as the run before left it").count(), 1);
    host.keeps("what no tenant can use is let go", 2);
    let left = || host.told("t1", &["-o", "link", "show"]);
    host.eventually("with the device", || !left().contains("eth7"));
}

#[test]
fn a_tenant_that_cannot_be_opened_costs_no_other_its_device() {
    let Some(mut host) = Host::with_both("kpe") else { return };
    let before = host.device("t2");
    assert!(before.is_some());
    host.end(Signal::SIGKILL);
    // One tenant's container is gone; in its place is a device that only looks like the tenant's.
    let netns = host.stage.netns("t1");
    ip(&["netns", "del", &netns]);
    host.start(&["t1", "t2"]);
    assert_eq!(host.device("t2"), before);
    let said = host.stage.read("log");
    assert!(said.contains(&format!("tenant t1: network namespace `{netns}` does not exist")), "{said}");
    let health = || Client::new(&host.stage.file("api.sock")).text("GET", "/v1/health").expect("it answers");
    assert!(health().contains("\"lost_ports\":[\"t1\"]"), "{}", health());
    ip(&["netns", "add", &netns]);
    host.eventually("it comes when its container is there", || host.device("t1").is_some());
    host.eventually("and is well", || health().contains("\"ok\""));
    host.keeps("and kept", 2);

    host.end(Signal::SIGKILL);
    host.manager.remove(&host.made("t1"));
    host.eventually("the kernel has removed it", || host.device("t1").is_none());
    let mut config = TapConfig::new(NetnsRef::Name(netns), "eth0");
    config.up = false;
    let queues = Tap::open_queues(&config, 2).expect("made");
    host.manager.add("one.of.two", queues[0].as_fd().try_clone_to_owned().expect("a descriptor"));
    drop(queues);
    host.start(&["t1", "t2"]);
    assert_eq!(host.device("t2"), before);
    // A device with other headers or queues is let go as soon as the manager hears of it, and makes room.
    let Host { manager, stage, .. } = &mut host;
    let there = || {
        let kept = manager.kept();
        kept.len() == 2
            && kept.iter().all(|name| name != "one.of.two")
            && stage.read("log").contains("t1: the port is there")
    };
    eventually("its own is there", PATIENCE, || stage.read("log"), there);
}

#[test]
fn an_uplink_is_kept_as_tenants_devices_are() {
    let Some(mut host) = Host::new("kpf") else { return };
    host.uplink = "tap: {name: upl}".to_owned();
    host.start(&["t1"]);
    host.keeps("all are with the manager", 2);
    let upl = || host.told("host", &["-o", "link", "show", "dev", "upl"]);
    let before = upl();
    assert!(before.contains("upl"), "{before}");
    host.end(Signal::SIGKILL);
    host.start(&["t1"]);
    let number = |told: &str| told.split(':').next().map(str::to_owned);
    assert_eq!(number(&host.told("host", &["-o", "link", "show", "dev", "upl"])), number(&before));
    ip(&["-n", &host.stage.netns("host"), "link", "del", "upl"]);
    host.eventually("it comes back", || host.stage.read("log").contains("the uplink: the port is back"));
    host.keeps("and is kept", 2);
    host.end(Signal::SIGTERM);
    host.start(&["t1"]);
    host.keeps("and taken up", 2);
}

/// A connection from the first tenant to the second.
fn connected(stage: &Stage) -> (TcpStream, TcpStream) {
    let at = SocketAddrV4::new(T2, 7_061);
    let listener = stage.inside("t2", move || TcpListener::bind(at).expect("bound")).join().expect("bound");
    let here =
        stage.inside("t1", move || TcpStream::connect(at).expect("connected")).join().expect("connected");
    let there = listener.accept().expect("a connection").0;
    [&here, &there].iter().for_each(|stream| stream.set_read_timeout(Some(PATIENCE)).expect("set"));
    (here, there)
}

fn said(from: &mut TcpStream, to: &mut TcpStream, what: &str) {
    from.write_all(what.as_bytes()).expect("sent");
    heard(to, what);
}

fn heard(to: &mut TcpStream, what: &str) {
    let mut read = vec![0; what.len()];
    to.read_exact(&mut read).expect("it comes");
    assert_eq!(String::from_utf8_lossy(&read), what);
}

/// Frames for which a device had no room, as `ip` counts them.
fn dropped(told: &str) -> u64 {
    let rows: serde_json::Value = serde_json::from_str(told).expect("JSON");
    rows[0]["stats64"]["tx"]["dropped"].as_u64().expect("a counter")
}
