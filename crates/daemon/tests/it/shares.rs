//! Three hosts whose uplinks are joined in memory: senders share what a receiver allows by their weights, balancers as one
//! sender, and all of them keep to what the fabric between carries.

use std::net::SocketAddr;

use crate::support::{World, drain, policy, udp};
use plimsoll_daemon::{Sent, Stats};
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::Ecn;

const STEP: Span = Span::micros(50);
/// Tenants by the last byte of their addresses: of host a, of host b, of host c.
const SHOP: u8 = 1;
const LB1: u8 = 2;
const FAR: u8 = 11;
const LB2: u8 = 21;
const LB3: u8 = 22;

const HOSTS: [&str; 3] = ["a", "b", "c"];

/// The file of one of three hosts; `shop` and `lb3` have these parts, `feedback` the rest of its keys.
fn file(host: &str, shop: &str, rest: &str) -> String {
    let tenants = match host {
        "a" => "{shop: {port: memory}, lb1: {port: memory}}",
        "b" => "{far: {port: memory, max: 40Mbps}}",
        _ => "{lb2: {port: memory}, lb3: {port: memory}}",
    };
    let balancer = if rest.contains("distributor") { ", balancer: true" } else { "" };
    format!(
        "uplink: {{port: memory, rate: 1Gbps}}\n\
         tenants: {tenants}\n\
         overlay:\n\
         \x20 kind: geneve\n\
         \x20 vni: 7\n\
         \x20 host: {host}\n\
         \x20 hosts:\n\
         \x20   a: {{address: 192.0.2.1, tenants: {{shop: {{mac: 02:00:00:00:00:01{shop}}}, lb1: {{mac: 02:00:00:00:00:02{balancer}}}}}}}\n\
         \x20   b: {{address: 192.0.2.2, tenants: {{far: 02:00:00:00:00:0b}}}}\n\
         \x20   c: {{address: 192.0.2.3, tenants: {{lb2: {{mac: 02:00:00:00:00:15{balancer}}}, lb3: {{mac: 02:00:00:00:00:16, weight: 2{balancer}}}}}}}\n\
         \x20 feedback: {{key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 200Mbps{rest}}}\n"
    )
}

/// The fabric between the hosts: a queue of its own towards host b, which marks what finds more than a millisecond in it.
struct Fabric {
    rate: BitRate,
    /// When the packets in the queue will have left.
    free: Nanos,
    marked: u64,
}

impl Fabric {
    fn carry(&mut self, packet: &mut [u8], now: Nanos) {
        self.free = self.free.max(now) + self.rate.wire_time(plimsoll_units::Bytes::new(packet.len() as u64));
        if self.free.since(now) > Span::millis(1) {
            assert!(Ecn::Ce.write(packet), "every packet between hosts can carry a mark");
            self.marked += 1;
        }
    }
}

struct Fleet {
    hosts: Vec<World>,
    fabric: Option<Fabric>,
}

impl Fleet {
    fn new(shop: &str, rest: &str) -> Self {
        Self::of(|host| file(host, shop, rest))
    }

    fn of(text: impl Fn(&str) -> String) -> Self {
        let hosts = HOSTS.map(|host| World::new(&text(host), true)).into();
        let mut fleet = Self { hosts, fabric: None };
        fleet.exchange();
        fleet
    }

    /// Like `new`, with these settings of `shop`, of each balancer, and of `far`.
    fn stating(shop: &str, others: &str, far: &str) -> Self {
        Self::of(|host| {
            let text = file(host, shop, "").replace(", weight: 2", others);
            let text = ["02", "15"].into_iter().fold(text, |text, end| {
                text.replace(
                    &format!("{{mac: 02:00:00:00:00:{end}}}"),
                    &format!("{{mac: 02:00:00:00:00:{end}{others}}}"),
                )
            });
            text.replace("far: 02:00:00:00:00:0b", &format!("far: {{mac: 02:00:00:00:00:0b{far}}}"))
        })
    }

    /// Each host's turn; its packets are on their receivers' wires a step later.
    fn exchange(&mut self) {
        let out: Vec<Vec<Vec<u8>>> = self.hosts.iter_mut().map(|host| host.run(STEP, STEP)).collect();
        let told: Vec<Sent> = self.hosts.iter_mut().flat_map(|host| host.engine.take_feedback()).collect();
        for Sent { to, message } in told {
            let SocketAddr::V4(to) = to else { panic!("stated as IPv4") };
            let host = &mut self.hosts[usize::from(to.ip().octets()[3]) - 1];
            host.engine.hear_channel(&message, host.now);
        }
        for (from, packets) in out.into_iter().enumerate() {
            for mut packet in packets {
                // IPv4's destination ends with the host's place; anything else is a question for all.
                let to = (packet[12..14] == [8, 0]).then(|| usize::from(packet[33]) - 1);
                if let Some(fabric) = self.fabric.as_mut().filter(|_| to == Some(1)) {
                    fabric.carry(&mut packet, self.hosts[1].now);
                }
                for (place, host) in self.hosts.iter_mut().enumerate() {
                    if place != from && to.is_none_or(|to| to == place) {
                        host.wire.send(&packet, None).expect("there");
                    }
                }
            }
        }
    }

    /// These tenants of these hosts flood `far` with 200 Mb/s each; answers what arrives of each, in bits a second.
    fn flood(&mut self, senders: &[(usize, usize, u8)], span: Span) -> Vec<u64> {
        let (end, mut n, mut bits) = (self.hosts[0].now + span, 0, vec![0; senders.len()]);
        while self.hosts[0].now < end {
            for &(host, tenant, mac) in senders {
                self.hosts[host].send(tenant, &udp(mac, FAR, mac.into(), n, 1_250));
            }
            n += 1;
            self.exchange();
            for frame in drain(&mut self.hosts[1].tenants[0]) {
                let sender = senders.iter().position(|&(.., mac)| frame[11] == mac);
                bits[sender.expect("no other tenant sends")] += frame.len() as u64 * 8;
            }
        }
        bits.iter().map(|bits| bits * 1_000_000_000 / span.as_u64()).collect()
    }

    /// No tenant sends for this span.
    fn rest(&mut self, span: Span) {
        let end = self.hosts[0].now + span;
        while self.hosts[0].now < end {
            self.exchange();
            drain(&mut self.hosts[1].tenants[0]);
        }
    }

    fn stats(&mut self, host: usize) -> Stats {
        let host = &mut self.hosts[host];
        Stats::from(&host.engine.snapshot(host.now))
    }
}

fn within(got: u64, percent: u64, of: u64) -> bool {
    got.abs_diff(of) * 100 <= of * percent
}

#[test]
fn senders_share_by_the_weights_of_the_map() {
    share_three_to_one(Fleet::new(", weight: 3", ""));
}

/// The promise of `kept` stays reserved while it receives nothing, or is given to `far`.
#[test]
fn an_idle_tenants_minimum_is_reserved_or_lent() {
    for (idle, expected) in [("reserved", 10_000_000), ("lent", 40_000_000)] {
        let mut fleet = Fleet::of(|host| {
            let text = file(host, "", &format!(", idle: {idle}"));
            let text =
                text.replace("far: 02:00:00:00:00:0b", "far: 02:00:00:00:00:0b, kept: 02:00:00:00:00:0c");
            let promised = "far: {port: memory, min: 10Mbps}, kept: {port: memory, min: 30Mbps}";
            let text = text.replace("far: {port: memory, max: 40Mbps}", promised);
            if host == "b" { text.replace("rate: 1Gbps", "rate: 40Mbps") } else { text }
        });
        let senders = [(0, 0, SHOP), (2, 0, LB2)];
        fleet.flood(&senders, Span::millis(300));
        let got: u64 = fleet.flood(&senders, Span::millis(500)).iter().sum();
        assert!(within(got, 10, expected * 95 / 100), "{idle}: {got} of {expected}");
    }
}

/// Host c obeys no limit: all frames from there have one sender's part, once c was silent for a lapse, and `shop`, whose
/// host obeys, has its own. A host that only sends counts as heard.
#[test]
fn who_hears_no_limit_is_held_to_one_senders_part() {
    let mut fleet = Fleet::of(|host| {
        let text = file(host, "", "");
        let (without, _) = text.split_once("  feedback").expect("stated");
        if host == "c" { without.to_owned() } else { text }
    });
    let senders = [(0, 0, SHOP), (2, 0, LB2)];
    fleet.flood(&senders, Span::millis(500));
    let before = fleet.stats(1).uplink.drops.get("stranger_over_limit").copied().unwrap_or(0);
    let [shop, deaf] = fleet.flood(&senders, Span::millis(500))[..] else { panic!("two") };
    assert!(within(shop, 15, deaf) && within(shop + deaf, 10, 38_000_000), "{shop} and {deaf}");
    let stats = fleet.stats(1);
    let lost = stats.uplink.drops["stranger_over_limit"] - before;
    assert!(lost > 1_000, "{:?}", stats.uplink.drops);
    let state = |host: &str| stats.fleet.as_ref().expect("a fleet").hosts[host].state.clone();
    assert_eq!([state("a"), state("c")], ["heard", "silent"]);
}

/// A host that sends a little now and then, with feedback each time, is no stranger, whichever way the feedback takes.
#[test]
fn who_sends_now_and_then_is_known() {
    for via in ["datapath", "channel"] {
        let mut fleet = Fleet::of(|host| {
            let text = file(host, "", &format!(", via: {via}"));
            ["a", "b", "c"].iter().zip(1..).fold(text, |text, (name, number)| {
                let stated = format!("{name}: {{address: 192.0.2.{number},");
                text.replace(&stated, &format!("{stated} channel: \"192.0.2.{number}:7077\","))
            })
        });
        for _ in 0..5 {
            fleet.flood(&[(0, 0, SHOP)], Span::millis(1));
            fleet.rest(Span::millis(900));
            let stats = fleet.stats(1);
            assert_ne!(stats.fleet.expect("a fleet").hosts["a"].state, "silent", "{via}");
            assert!(
                !stats.uplink.drops.contains_key("stranger_over_limit"),
                "{via}: {:?}",
                stats.uplink.drops
            );
        }
    }
}

/// Weights count as parts of the greatest: one of 20,000 beside one of 60,000 settles as one beside three.
#[test]
fn great_weights_share_as_small_ones_do() {
    share_three_to_one(Fleet::stating(", weight: 60000", ", weight: 20000", ""));
}

#[test]
fn senders_share_by_their_maxima_where_no_weight_is_stated() {
    share_three_to_one(Fleet::stating(", max: 300Mbps", ", max: 100Mbps", ", max: 40Mbps"));
}

fn share_three_to_one(mut fleet: Fleet) {
    let senders = [(0, 0, SHOP), (2, 0, LB2)];
    fleet.flood(&senders, Span::millis(300));
    let [shop, other] = fleet.flood(&senders, Span::millis(500))[..] else { panic!("two") };
    assert!(within(shop, 8, 3 * other), "{shop} and {other}");
    assert!(within(shop + other, 8, 38_000_000), "of 40 Mb/s on the wire: {shop} and {other}");
}

/// Three balancers at two hosts together have the part of one sender of their weight, whichever host divides it.
#[test]
fn balancers_share_one_part_that_one_host_divides() {
    for distributor in HOSTS {
        let mut fleet = Fleet::new(", weight: 4", &format!(", distributor: {distributor}"));
        let senders = [(0, 0, SHOP), (0, 1, LB1), (2, 0, LB2), (2, 1, LB3)];
        fleet.flood(&senders, Span::millis(400));
        let came = fleet.flood(&senders, Span::millis(600));
        let unit = came.iter().sum::<u64>() / 8;
        for (bits, weight) in came.iter().zip([4, 1, 1, 2]) {
            assert!(within(*bits, 15, unit * weight), "by {distributor}: {came:?}");
        }
        assert!(within(unit * 8, 8, 38_000_000), "by {distributor}: {came:?}");
        let seen = fleet.stats(1).fleet.expect("a fleet").receivers["far"].clone();
        assert_eq!(seen.senders, 2, "the balancers are one of two");
        let foreign = fleet.hosts.iter_mut().flat_map(|host| host.events("uplink"));
        assert_eq!(foreign.filter(|(name, _)| *name == "feedback_foreign").count(), 0);
    }
}

/// What was divided lapses like any limit: balancers fall back when the host that divides is gone.
#[test]
fn balancers_fall_back_without_the_host_that_divides() {
    let mut fleet = Fleet::new("", ", distributor: c");
    let senders = [(0, 1, LB1), (2, 0, LB2)];
    fleet.flood(&senders, Span::millis(200));
    let state = |fleet: &mut Fleet| {
        let pairs = fleet.stats(0).fleet.expect("a fleet").pairs;
        pairs.iter().find(|pair| pair.tenant == "lb1").expect("it has sent").state.clone()
    };
    assert_eq!(state(&mut fleet), "limited");
    // Host c is cut off: its packets are dropped.
    let end = fleet.hosts[0].now + Span::millis(200);
    let mut n = 0;
    while fleet.hosts[0].now < end {
        fleet.hosts[0].send(1, &udp(LB1, FAR, 9, n, 1_250));
        n += 1;
        let (from_a, from_b) = (fleet.hosts[0].run(STEP, STEP), fleet.hosts[1].run(STEP, STEP));
        from_a.iter().for_each(|packet| _ = fleet.hosts[1].wire.send(packet, None).expect("there"));
        from_b.iter().for_each(|packet| _ = fleet.hosts[0].wire.send(packet, None).expect("there"));
        drain(&mut fleet.hosts[1].tenants[0]);
    }
    assert_eq!(state(&mut fleet), "fallback");
}

/// A link in between carries half of the receiver's limit, and tells senders by marks, without loss. Tenants' packets
/// are not ECN-capable, and arrive unchanged.
#[test]
fn the_fabrics_marks_hold_senders_back() {
    let marks = |ecn: &str| {
        let mut fleet = Fleet::new("", ecn);
        fleet.fabric =
            ecn.contains("ecn").then_some(Fabric { rate: BitRate::mbps(20), free: Nanos::ZERO, marked: 0 });
        let senders = [(0, 0, SHOP), (2, 0, LB2)];
        fleet.flood(&senders, Span::millis(600));
        let came = fleet.flood(&senders, Span::secs(1));
        let lost = fleet.hosts[1].losses("uplink");
        assert!(lost.iter().all(|(_, count)| *count == 0), "{lost:?}");
        (came[0] + came[1], fleet.fabric.map_or(0, |fabric| fabric.marked))
    };
    let (free, _) = marks("");
    assert!(within(free, 8, 38_000_000), "{free}");
    let (held, marked) = marks(", ecn: true");
    assert!(marked > 100);
    assert!((12_000_000..22_000_000).contains(&held), "{held} of 20 Mb/s, {marked} marked");
}

#[test]
fn a_map_of_balancers_is_shown() {
    let checked = policy(&file("b", ", weight: 3", ", distributor: c, ecn: true"));
    let text = plimsoll_policy::tree_text(&checked);
    for line in
        ["shop (weight 3), lb1 (balancer)", "c divides what they allow all balancers together", "marks hold"]
    {
        assert!(text.contains(line), "`{line}` in {text}");
    }
}
