//! A tenant that claims its neighbour's addresses by ARP and neighbour discovery, on real interfaces.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.

use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::support::{Daemon, Stage, ip};
use plimsoll_daemon::{Reloaded, Stats};
use plimsoll_ports::netns::NetnsRef;
use plimsoll_ports::{PacketConfig, PacketSocket, Port};
use plimsoll_wire::Mac;
use plimsoll_wire::neighbour::{LONGEST, ask, tell};

/// Both addresses of each tenant.
const SHOP: [&str; 2] = ["10.9.0.1", "fd09::1"];
const PEER: [&str; 2] = ["10.9.0.2", "fd09::2"];
const EVIL: [&str; 2] = ["10.9.0.3", "fd09::3"];

struct World {
    daemon: Option<Daemon>,
    stage: Stage,
}

impl World {
    /// `None` without root.
    fn new(tag: &str) -> Option<Self> {
        let stage = Stage::with_netns(tag, &["shop", "peer", "evil", "far"])?;
        Some(Self { daemon: None, stage })
    }

    /// Two tenants that state their addresses, and a third, evil, with the keys in `evil`.
    fn policy(&self, evil: &str) -> String {
        let tenant = |name: &str, states: &str| {
            let netns = self.stage.netns(name);
            format!("\x20 {name}: {{port: {{tap: {{netns: {netns}, name: eth0}}}}{states}}}\n")
        };
        let stated = |[v4, v6]: [&str; 2]| format!(", addresses: [{v4}, \"{v6}\"]");
        format!(
            "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n{}{}{}",
            self.stage.netns("far"),
            self.stage.file("api.sock").display(),
            tenant("shop", &stated(SHOP)),
            tenant("peer", &stated(PEER)),
            tenant("evil", evil),
        )
    }

    fn start(&mut self, evil: &str) {
        let file = self.stage.file("plimsoll.yaml");
        fs::write(&file, self.policy(evil)).expect("written");
        self.daemon = Some(Daemon::start(None, &file, &[], &self.stage.file("log")));
        self.stage.until_it_answers();
        for (name, [v4, v6]) in [("shop", SHOP), ("peer", PEER), ("evil", EVIL)] {
            let netns = self.stage.netns(name);
            ip(&["-n", &netns, "address", "add", &format!("{v4}/24"), "dev", "eth0"]);
            ip(&["-n", &netns, "address", "add", &format!("{v6}/64"), "dev", "eth0"]);
        }
    }

    fn reload(&self, evil: &str) {
        fs::write(self.stage.file("plimsoll.yaml"), self.policy(evil)).expect("written");
        let _: Reloaded = self.stage.client().post("/v1/reload").expect("reloaded");
    }

    fn drops(&self, reason: &str) -> u64 {
        let stats: Stats = self.stage.client().get("/v1/stats").expect("counters");
        stats.tenants["evil"].drops.get(reason).copied().unwrap_or(0)
    }

    /// Sends `count` pings, a hundred a second; returns the number of answers.
    fn answered(&self, from: &str, to: &str, count: u32) -> u32 {
        let mut ping = self.stage.command(from, "ping");
        let done = ping.args(["-i", "0.01", "-W", "2", "-c", &count.to_string(), to]).output().expect("ping");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        let (before, _) = said.split_once(" received").unwrap_or_else(|| panic!("{done:?}"));
        before.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    }

    /// An interface's hardware address.
    fn mac(&self, name: &str) -> Mac {
        let said = shown(&["-n", &self.stage.netns(name), "-o", "link", "show", "dev", "eth0"]);
        let (_, behind) = said.split_once("link/ether ").expect("an Ethernet interface");
        let mut bytes = behind.split([' ', ':']).take(6).map(|two| u8::from_str_radix(two, 16).expect("hex"));
        Mac(std::array::from_fn(|_| bytes.next().expect("six")))
    }

    /// The hardware address that the shop has for its neighbour.
    fn shop_believes(&self, neighbour: &str) -> String {
        shown(&["-n", &self.stage.netns("shop"), "neighbour", "show", neighbour, "dev", "eth0"])
    }

    /// Makes evil claim its neighbour's addresses from now on.
    fn attack(&self) -> Attack {
        let [shop, evil] = ["shop", "evil"].map(|name| self.mac(name));
        let lies = lies(shop, evil);
        let (stop, said) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let place = NetnsRef::Name(self.stage.netns("evil"));
        let mut port =
            PacketSocket::open(&PacketConfig::new(place, "eth0")).map(Port::AfPacket).expect("root may");
        let thread = thread::spawn({
            let (stop, said) = (Arc::clone(&stop), Arc::clone(&said));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    for lie in &lies {
                        let _ = port.send(lie, None);
                    }
                    let _ = port.flush();
                    said.fetch_add(lies.len() as u64, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            }
        });
        Attack { stop, said, thread: Some(thread) }
    }
}

/// The ways of claiming an address.
fn lies(shop: Mac, evil: Mac) -> Vec<Vec<u8>> {
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let all = Mac([0xff; 6]);
    let mut lies = Vec::new();
    let mut say = |write: &dyn Fn(&mut [u8]) -> Option<usize>| {
        let mut frame = vec![0; LONGEST];
        let len = write(&mut frame).expect("one family");
        frame.truncate(len);
        lies.push(frame);
    };
    let [peer, peer6] = PEER.map(ip);
    let [shop4, shop6] = SHOP.map(ip);
    say(&|out| tell((peer, evil), (peer, all), out));
    say(&|out| tell((peer, evil), (shop4, shop), out));
    say(&|out| ask((peer, evil), peer, out));
    say(&|out| ask((peer, evil), shop4, out));
    say(&|out| tell((peer6, evil), (shop6, shop), out));
    say(&|out| ask((peer6, evil), shop6, out));
    lies
}

/// A process that ends when this is dropped.
struct Attack {
    stop: Arc<AtomicBool>,
    said: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The output of `ip`.
fn shown(args: &[&str]) -> String {
    let done = Command::new("ip").args(args).output().expect("ip runs");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The attack by a neighbour that states its addresses, and by one that states none. Then the attack by one with
/// `binding: off`, which succeeds and so shows that it is one.
#[test]
fn a_neighbours_traffic_is_not_diverted_by_who_claims_its_addresses() {
    let Some(mut world) = World::new("arp") else { return };
    let [v4, v6] = EVIL;
    world.start(&format!(", addresses: [{v4}, \"{v6}\"]"));
    let [shop, peer, evil] = ["shop", "peer", "evil"].map(|name| world.mac(name).to_string());
    assert!(shop != peer && peer != evil);
    world.stage.eventually("neighbours answer", || {
        PEER.into_iter().all(|to| world.answered("shop", to, 1) == 1 && world.answered("evil", to, 1) == 1)
    });
    for states in ["its own", "nothing"] {
        if states == "nothing" {
            world.reload("");
        }
        let before = ["spoofed_arp", "spoofed_neighbour"].map(|reason| world.drops(reason));
        let attack = world.attack();
        world.stage.eventually("the attack is on", || attack.said.load(Ordering::Relaxed) > 200);
        for to in PEER {
            assert_eq!(
                world.answered("shop", to, 200),
                200,
                "evil states {states}: {}",
                world.shop_believes(to)
            );
            assert!(
                world.shop_believes(to).contains(&peer),
                "evil states {states}: {}",
                world.shop_believes(to)
            );
        }
        drop(attack);
        for (reason, before) in ["spoofed_arp", "spoofed_neighbour"].into_iter().zip(before) {
            assert!(
                world.drops(reason) > before + 100,
                "{reason}, evil states {states}: {}",
                world.drops(reason)
            );
        }
        assert_eq!(world.answered("evil", PEER[0], 5), 5, "what it does rightly goes on");
    }
    let metrics = world.stage.client().text("GET", "/metrics").expect("a page");
    assert!(metrics.contains("plimsoll_port_drops_total{port=\"evil\",reason=\"spoofed_arp\"}"), "{metrics}");

    world.reload(", binding: off");
    let _attack = world.attack();
    for to in PEER {
        world
            .stage
            .eventually("without binding the attack is one", || world.shop_believes(to).contains(&evil));
    }
}
