//! Two hosts whose uplinks are joined in memory: tenants reach each other, limits follow receivers, and no other
//! host can set them.

use crate::support::{KEY, World, drain, number, path, policy, udp};
use plimsoll_control::{Allowance, For, HostId, Limits, Sealer, Vnic};
use plimsoll_daemon::{Core, HostState, Stats, ThisCore};
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::Mac;
use plimsoll_wire::overlay::{Inner, Vni};

/// Time between two turns of a host.
pub const STEP: Span = Span::micros(50);
/// Tenants by the last byte of their addresses: two at host a, one and one at host b.
const SHOP: u8 = 1;
const CALM: u8 = 2;
const FAR: u8 = 11;
const QUIET: u8 = 12;

/// The file of one of two hosts. `rest` goes into `overlay`.
pub fn file(host: &str, kind: &str, v6: bool, rest: &str) -> String {
    let [a, b] = if v6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] };
    let tenants = match host {
        "a" => "{shop: {port: memory}, calm: {port: memory}}",
        _ => "{far: {port: memory, max: 20Mbps}, quiet: {port: memory}}",
    };
    format!(
        "uplink: {{port: memory, rate: 1Gbps}}\n\
         tenants: {tenants}\n\
         overlay:\n\
         \x20 kind: {kind}\n\
         \x20 vni: 7\n\
         \x20 host: {host}\n\
         \x20 hosts:\n\
         \x20   a: {{address: {a}, tenants: {{shop: 02:00:00:00:00:01, calm: 02:00:00:00:00:02}}}}\n\
         \x20   b: {{address: {b}, tenants: {{far: 02:00:00:00:00:0b, quiet: 02:00:00:00:00:0c}}}}\n{rest}"
    )
}

const FEEDBACK: &str = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps}\n";

/// Both hosts.
pub struct Fleet {
    /// Host a.
    pub a: World,
    /// Host b.
    pub b: World,
}

impl Fleet {
    fn new(kind: &str, v6: bool, rest: &str) -> Self {
        Self::of(["a", "b"].map(|name| file(name, kind, v6, rest)))
    }

    /// The hosts with these files.
    pub fn of([a, b]: [String; 2]) -> Self {
        let mut fleet = Self { a: World::new(&a, true), b: World::new(&b, true) };
        fleet.run(Span::millis(1));
        fleet
    }

    /// Both hosts' turns, each packet on the other's wire a step later.
    fn run(&mut self, span: Span) {
        let end = self.a.now + span;
        while self.a.now < end {
            self.exchange();
        }
    }

    fn exchange(&mut self) {
        self.exchange_on(&mut ThisCore);
    }

    /// Host a runs on this core.
    pub fn exchange_on(&mut self, core: &mut impl Core) {
        let from_a = self.a.run_on(core, STEP, STEP);
        let from_b = self.b.run(STEP, STEP);
        from_a.iter().for_each(|packet| _ = self.b.wire.send(packet, None).expect("there"));
        from_b.iter().for_each(|packet| _ = self.a.wire.send(packet, None).expect("there"));
    }

    /// `shop` floods `far` for 200 ms, which answers one frame in four.
    fn converse(&mut self) {
        for n in 0..4_000 {
            self.a.send(0, &udp(SHOP, FAR, 7, n, 1_250));
            if n % 4 == 0 {
                self.b.send(0, &udp(FAR, SHOP, 80, n, 100));
            }
            self.exchange();
            drain(&mut self.b.tenants[0]);
            drain(&mut self.a.tenants[0]);
        }
    }

    /// `shop` floods `far` with frames of 1,250 bytes at 200 Mb/s; answers how many arrive.
    fn flood(&mut self, span: Span) -> usize {
        let (end, mut came, mut n) = (self.a.now + span, 0, 0);
        while self.a.now < end {
            self.a.send(0, &udp(SHOP, FAR, 7, n, 1_250));
            n += 1;
            self.exchange();
            came += drain(&mut self.b.tenants[0]).len();
        }
        came
    }
}

fn stats(world: &mut World) -> Stats {
    Stats::from(&world.engine.snapshot(world.now))
}

fn count(list: &[(&'static str, u64)], name: &str) -> u64 {
    list.iter().filter(|(known, _)| *known == name).map(|(_, count)| count).sum()
}

#[test]
fn tenants_reach_each_other_over_each_kind_and_family() {
    for (kind, v6) in [("vxlan", false), ("geneve", false), ("vxlan", true), ("geneve", true)] {
        let mut fleet = Fleet::new(kind, v6, "");
        let there = udp(SHOP, FAR, 1_000, 7, 900);
        let back = udp(FAR, SHOP, 80, 8, 200);
        fleet.a.send(0, &there);
        fleet.b.send(0, &back);
        fleet.run(Span::millis(1));
        assert_eq!(drain(&mut fleet.b.tenants[0]), [there], "{kind}, over IPv6: {v6}");
        assert_eq!(drain(&mut fleet.a.tenants[0]), [back], "{kind}, over IPv6: {v6}");
        assert_eq!(drain(&mut fleet.b.tenants[1]).len(), 0, "no other tenant's");
        // Within a host nothing is wrapped, and a broadcast reaches each tenant once.
        let near = udp(SHOP, CALM, 1_000, 9, 100);
        let mut all = udp(SHOP, 0, 1_000, 10, 100);
        all[..6].copy_from_slice(&[0xff; 6]);
        fleet.a.send(0, &near);
        fleet.a.send(0, &all);
        fleet.run(Span::millis(1));
        assert_eq!(drain(&mut fleet.a.tenants[1]), [near, all.clone()]);
        assert_eq!(
            (drain(&mut fleet.b.tenants[0]), drain(&mut fleet.b.tenants[1])),
            (vec![all.clone()], vec![all])
        );
        assert_eq!((fleet.a.losses("uplink"), fleet.b.losses("uplink")), (vec![], vec![]));
    }
}

#[test]
fn what_cannot_go_on_is_counted_by_its_reason() {
    let mut fleet = Fleet::new("geneve", false, "");
    fleet.a.send(0, &udp(SHOP, 99, 1, 1, 100));
    fleet.a.send(0, &udp(FAR, QUIET, 1, 1, 100));
    fleet.run(Span::millis(1));
    let lost = fleet.a.losses("shop");
    assert_eq!((count(&lost, "overlay_no_peer"), count(&lost, "foreign_source")), (1, 1), "{lost:?}");
    // From an address that the map does not have: only tenants of this host hear it.
    let mut broadcast = udp(77, 0, 1, 3, 100);
    broadcast[..6].copy_from_slice(&[0xff; 6]);
    for frame in [udp(77, FAR, 1, 1, 100), udp(77, CALM, 1, 2, 100), broadcast] {
        fleet.a.send(0, &frame);
    }
    fleet.run(Span::millis(1));
    assert_eq!(count(&fleet.a.losses("shop"), "foreign_source"), 3);
    assert_eq!(drain(&mut fleet.a.tenants[1]).len(), 2, "one for it, and one for all");
    assert_eq!(fleet.b.losses("uplink"), []);
    // From a host outside the fleet, for another network, and from a tenant of another host.
    let path = |src: u8| path(src, 2, Mac([6; 6]));
    let mut out = [0; 1_600];
    for (src, vni, from) in [(9, 7, SHOP), (1, 8, SHOP), (1, 7, QUIET)] {
        let inner = Inner { vni: Vni::new(vni).expect("small"), flow_hash: 1, feedback: None };
        let len = path(src).encapsulate_into(&udp(from, FAR, 1, 1, 100), &mut out, &inner).expect("it fits");
        fleet.b.wire.send(&out[..len], None).expect("there");
    }
    fleet.b.wire.send(&udp(77, 78, 1, 1, 100), None).expect("there");
    fleet.run(Span::millis(1));
    assert_eq!(drain(&mut fleet.b.tenants[0]).len(), 0);
    let lost = fleet.b.losses("uplink");
    for reason in ["overlay_unknown_host", "overlay_unknown_network", "overlay_wrong_host"] {
        assert_eq!(count(&lost, reason), 1, "{reason} in {lost:?}");
    }
    assert_eq!(count(&fleet.b.events("uplink"), "not_overlay"), 1);
}

#[test]
fn who_sends_packets_that_are_too_long_is_told() {
    let mut fleet = Fleet::new("geneve", false, "");
    let mut long = udp(SHOP, FAR, 1, 1, 1_465);
    long[20] = 0x40; // not to be fragmented
    fleet.a.send(0, &long);
    fleet.a.send(0, &udp(SHOP, FAR, 1, 2, 1_464));
    fleet.run(Span::millis(1));
    assert_eq!(drain(&mut fleet.b.tenants[0]).iter().map(Vec::len).collect::<Vec<_>>(), [1_464]);
    let told = drain(&mut fleet.a.tenants[0]);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0][23], &told[0][34..36]), (1, &[3, 4][..]), "ICMP: fragmentation needed");
    assert_eq!(u16::from_be_bytes([told[0][40], told[0][41]]), 1_450);
    assert_eq!(count(&fleet.a.losses("shop"), "overlay_too_long"), 1);
}

/// The receiver's `max` is a tenth of what is sent. Drops move from its queue to the sender, and a neighbour loses nothing.
#[test]
fn a_flood_is_throttled_where_it_begins() {
    for kind in ["geneve", "vxlan"] {
        let mut fleet = Fleet::new(kind, false, FEEDBACK);
        fleet.flood(Span::millis(300));
        let came = fleet.flood(Span::millis(500));
        // 20 Mb/s are 10 Mb in half a second, 980 frames with all headers.
        assert!((850..=1_050).contains(&came), "{kind}: {came}");
        let here = stats(&mut fleet.a);
        let there = stats(&mut fleet.b);
        let pairs = &here.fleet.as_ref().expect("a fleet").pairs;
        assert_eq!((pairs[0].tenant.as_str(), pairs[0].state.as_str()), ("shop", "limited"), "{pairs:?}");
        assert!((17_000_000..23_000_000).contains(&pairs[0].rate), "{pairs:?}");
        assert!(
            here.nodes.iter().any(|node| node.drops.contains_key("flow_full"))
                || here.tenants["shop"].drops.contains_key("flow_full"),
            "{kind}: backpressure: {here:?}"
        );
        assert_eq!(there.uplink.drops.get("ingress_full"), None);
        let host = &here.fleet.as_ref().expect("a fleet").hosts["b"];
        assert_eq!((host.state.as_str(), host.feedback.contains_key("heard")), ("heard", true));
        let receiver = &there.fleet.as_ref().expect("a fleet").receivers["far"];
        assert_eq!(receiver.capacity, 20_000_000);
    }
}

/// Feedback goes with tenants' frames, if they have room.
#[test]
fn feedback_rides_on_frames_of_the_other_way() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    fleet.converse();
    let there = stats(&mut fleet.b);
    let ways = &there.fleet.as_ref().expect("a fleet").hosts["a"].feedback;
    assert!(ways["ridden"] > 25 && ways.get("framed").is_none_or(|&framed| framed < 5), "{ways:?}");
    let here = stats(&mut fleet.a);
    let heard = here.fleet.as_ref().expect("a fleet").hosts["b"].feedback["heard"];
    assert!(heard >= ways["ridden"], "{heard} of {ways:?}");
}

/// Feedback also goes in frames of its own beside tenants' frames, as the path may drop frames with options.
#[test]
fn feedback_over_the_channel_does_not_ride() {
    let file = |name: &str| {
        let channel = FEEDBACK.replace("epoch", "via: channel, epoch");
        let file = file(name, "geneve", false, &channel);
        file.replace("address: 192.0.2.1,", "address: 192.0.2.1, channel: 192.0.2.1:7077,")
            .replace("address: 192.0.2.2,", "address: 192.0.2.2, channel: 192.0.2.2:7077,")
    };
    let mut fleet = Fleet { a: World::new(&file("a"), true), b: World::new(&file("b"), true) };
    fleet.run(Span::millis(1));
    fleet.converse();
    let ways = &stats(&mut fleet.b).fleet.expect("a fleet").hosts["a"].feedback;
    assert!(ways["channelled"] > 10 && !ways.contains_key("ridden"), "{ways:?}");
    assert_eq!(fleet.b.engine.take_feedback().len() as u64, ways["channelled"]);
}

/// A tenant that may receive 20 Mb/s gets 10: its limit stays the same for 200 epochs.
#[test]
fn a_limit_that_holds_is_said_five_times_in_a_lapse() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    for n in 0..8_000 {
        if n % 4 == 0 {
            fleet.a.send(0, &udp(SHOP, FAR, 7, n, 250));
        }
        fleet.exchange();
        drain(&mut fleet.b.tenants[0]);
        if n >= 400 && n % 100 == 0 {
            let limits = Limits { bits: BitRate::mbps(20), packets: None };
            let now = fleet.a.engine.snapshot(fleet.a.now).fleet.expect("a fleet");
            assert_eq!(now.pairs[0].limits, Some(limits), "after {n} steps");
        }
    }
    let ways = &stats(&mut fleet.b).fleet.expect("a fleet").hosts["a"].feedback;
    let said: u64 = ["ridden", "framed"].iter().filter_map(|way| ways.get(*way)).sum();
    assert!((17..25).contains(&said), "{ways:?}");
}

/// Epochs of 2 ms, and a lapse of 100: where no limit changes, a host wakes for its decisions only eight times in a lapse.
#[test]
fn a_host_whose_limits_are_at_rest_is_not_woken_for_each_epoch() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    let sleeps = |fleet: &mut Fleet| {
        let now = fleet.b.now;
        fleet.b.engine.turn(now).lazily.expect("epochs").since(now)
    };
    fleet.run(Span::millis(50));
    let idle = sleeps(&mut fleet);
    assert!((Span::millis(10)..=Span::micros(12_500)).contains(&idle), "{idle:?}");
    let longest = (0..50).map(|_| (fleet.flood(Span::millis(1)), sleeps(&mut fleet)).1).max();
    assert!(longest <= Some(Span::micros(2_500)), "while it throttles: {longest:?}");
    fleet.run(Span::millis(500));
    assert!(sleeps(&mut fleet) >= Span::millis(10), "at rest again");
}

#[test]
fn limits_lapse_to_the_fallback_when_a_host_falls_silent() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    fleet.flood(Span::millis(300));
    // The other host is gone: no host hears our frames.
    let mut left = 0;
    for n in 0..8_000 {
        fleet.a.send(0, &udp(SHOP, FAR, 7, n, 1_250));
        left += fleet.a.run(STEP, STEP).len() * usize::from(n >= 4_000);
    }
    let snapshot = fleet.a.engine.snapshot(fleet.a.now);
    let now = snapshot.fleet.as_ref().expect("a fleet");
    assert_eq!(now.hosts[0].state, HostState::Silent);
    assert_eq!((now.pairs[0].limits, now.pairs[0].bits), (None, BitRate::mbps(100)));
    // 100 Mb/s for 200 ms are 20 Mb: 1,923 frames of 1,300 bytes.
    assert!((1_800..2_000).contains(&left), "{left}");
}

/// Any program on the underlay can send packets that look like feedback; a host with the key can speak for its own
/// tenants only.
#[test]
fn forged_repeated_and_foreign_feedback_changes_nothing() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    fleet.a.send(0, &udp(SHOP, FAR, 7, 1, 1_250));
    fleet.run(Span::millis(20));
    let hosts = policy(&file("a", "geneve", false, FEEDBACK)).config.overlay.expect("an overlay").hosts;
    let (a, b) = (HostId(hosts[0].number), HostId(hosts[1].number));
    let allowance = |last: u8| Allowance {
        receiver: Vnic { network: 7, mac: [2, 0, 0, 0, 0, last] },
        whom: For::Each,
        limits: Limits { bits: BitRate::new(1_000).expect("some"), packets: None },
    };
    let path = path(2, 1, Mac([6; 6]));
    let before = stats(&mut fleet.a).fleet.expect("a fleet").pairs;
    let say = |world: &mut World, key: &[u8; 32], from: HostId, to: HostId, sequence: u64, last: u8| {
        let (mut message, mut out) = (Vec::new(), [0; 1_600]);
        Sealer::new(key, from, sequence, 9).seal(to, &[allowance(last)], &mut message);
        let len = path.feedback_frame(&message, 1, &mut out).expect("it fits");
        world.wire.send(&out[..len], None).expect("there");
        world.run(Span::millis(1), STEP);
    };
    say(&mut fleet.a, &[8; 32], b, a, u64::MAX / 2, FAR); // another key
    say(&mut fleet.a, &KEY, b, a, 1, FAR); // an old one
    say(&mut fleet.a, &KEY, b, b, u64::MAX / 2, FAR); // for another host
    say(&mut fleet.a, &KEY, b, a, u64::MAX / 2, CALM); // for a tenant of ours
    let events = fleet.a.events("uplink");
    for reason in ["feedback_forged", "feedback_stale", "feedback_misdirected", "feedback_foreign"] {
        assert_eq!(count(&events, reason), 1, "{reason} in {events:?}");
    }
    assert_eq!(stats(&mut fleet.a).fleet.expect("a fleet").pairs, before);
    say(&mut fleet.a, &KEY, b, a, u64::MAX / 2 + 9, FAR);
    let after = stats(&mut fleet.a).fleet.expect("a fleet").pairs;
    assert_eq!((after[0].state.as_str(), after[0].rate), ("limited", 1_000), "the right one is obeyed");
}

/// Two frames that look alike to classification go to two tenants: each has its own limit.
#[test]
fn no_flow_evades_a_limit_behind_another_tenants() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    for n in 0..6_000 {
        fleet.a.send(0, &udp(SHOP, FAR, 7, n, 1_250));
        let mut alike = udp(SHOP, FAR, 7, n, 1_250);
        alike[5] = QUIET;
        if n % 8 == 0 {
            fleet.a.send(0, &alike);
        }
        fleet.exchange();
    }
    let pairs = stats(&mut fleet.a).fleet.expect("a fleet").pairs;
    assert_eq!(pairs.len(), 2, "{pairs:?}");
    assert!(pairs[0].rate < 25_000_000 && pairs[1].rate > 50_000_000, "{pairs:?}");
}

#[test]
fn a_reload_keeps_what_was_heard_and_takes_a_new_map() {
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    fleet.flood(Span::millis(200));
    let old = policy(&file("a", "geneve", false, FEEDBACK));
    let text = file("a", "geneve", false, FEEDBACK).replace("far: 02:", "early: 02:00:00:00:00:0a, far: 02:");
    let new = policy(&text);
    let change = fleet.a.change(&old, &new);
    fleet.a.engine.install(change, fleet.a.now);
    let pairs = stats(&mut fleet.a).fleet.expect("a fleet").pairs;
    let far = pairs.iter().find(|pair| pair.peer == "far").expect("it has sent");
    assert_eq!(far.state, "limited", "{pairs:?}");
    let came = fleet.flood(Span::millis(500));
    assert!((850..=1_100).contains(&came), "{came}");
}

/// A core that has no time left once it has fetched.
struct OnlyFetches(bool);

impl Core for OnlyFetches {
    fn is_busy(&mut self, _now: Nanos) -> bool {
        self.0
    }

    fn fetched(&mut self, _frames: usize, took: Span) -> Span {
        self.0 = true;
        took
    }
}

/// Packets name their host by its place in the map while they wait.
#[test]
fn packets_that_wait_outlive_a_map_with_fewer_hosts() {
    let fewer = file("b", "geneve", false, FEEDBACK);
    let other = "  hosts:\n    other: {address: 192.0.2.9, tenants: {away: 02:00:00:00:00:15}}\n";
    let more = fewer.replace("  hosts:\n", other);
    let mut fleet = Fleet::of([file("a", "geneve", false, FEEDBACK), more.clone()]);
    for n in 0..20 {
        fleet.a.send(0, &udp(SHOP, FAR, 7, n, 1_250));
        let packets = fleet.a.run(STEP.times(2), STEP);
        packets.iter().for_each(|packet| _ = fleet.b.wire.send(packet, None).expect("there"));
    }
    let now = fleet.b.now;
    fleet.b.engine.all_ready();
    fleet.b.engine.turn_on(&mut OnlyFetches(false), &|_| now);
    let change = fleet.b.change(&policy(&more), &policy(&fewer));
    fleet.b.engine.install(change, now);
    assert!(drain(&mut fleet.b.tenants[0]).is_empty(), "all wait");
    fleet.b.run(Span::millis(5), STEP);
    assert_eq!(drain(&mut fleet.b.tenants[0]).len(), 20);
}

/// Hosts name a tenant by its first address: a tenant that gets another of its addresses by a reload is a different one,
/// without feedback so far.
#[test]
fn a_limit_does_not_go_over_to_the_tenant_that_gets_an_address() {
    let one = "far: 02:00:00:00:00:0b, quiet";
    let both = "far: [02:00:00:00:00:0b, 02:00:00:00:00:0e], quiet";
    let moved = "far: 02:00:00:00:00:0b, other: 02:00:00:00:00:0e, quiet";
    let text = |tenants: &str| file("a", "geneve", false, FEEDBACK).replace(one, tenants);
    let mut fleet = Fleet::new("geneve", false, FEEDBACK);
    let change = fleet.a.change(&policy(&text(one)), &policy(&text(both)));
    fleet.a.engine.install(change, fleet.a.now);
    fleet.flood(Span::millis(200));
    let change = fleet.a.change(&policy(&text(both)), &policy(&text(moved)));
    fleet.a.engine.install(change, fleet.a.now);
    fleet.a.send(0, &udp(SHOP, 14, 7, 1, 100));
    fleet.a.run(STEP.times(4), STEP);
    let pairs = stats(&mut fleet.a).fleet.expect("a fleet").pairs;
    let state = |peer: &str| pairs.iter().find(|pair| pair.peer == peer).map(|pair| pair.state.as_str());
    assert_eq!((state("far"), state("other")), (Some("limited"), Some("fallback")), "{pairs:?}");
}

/// Frames for all hosts wait while the uplink has no room, between two copies; then a reload puts the hosts in another
/// order.
#[test]
fn each_host_gets_a_frame_for_all_of_them_once_whatever_a_reload_makes_of_their_order() {
    let host = |name: &str, n: u8| {
        format!(
            "    {name}: {{address: 192.0.2.{n}, mac: 06:00:00:00:00:0{n}, tenants: {{t{n}: 02:00:00:00:00:0{n}}}}}\n"
        )
    };
    let text = |hosts: [String; 3]| {
        format!(
            "uplink: {{port: memory, rate: 10Gbps}}\n\
             tenants: {{shop: {{port: memory}}}}\n\
             overlay:\n\
             \x20 kind: vxlan\n\
             \x20 vni: 7\n\
             \x20 host: a\n\
             \x20 hosts:\n\
             \x20   a: {{address: 192.0.2.1, tenants: {{shop: 02:00:00:00:00:01}}}}\n{}",
            hosts.concat()
        )
    };
    let all = |names: [(&str, u8); 3]| policy(&text(names.map(|(name, n)| host(name, n))));
    let orders = [
        all([("b", 2), ("c", 3), ("d", 4)]),
        all([("d", 4), ("c", 3), ("b", 2)]),
        all([("e", 5), ("d", 4), ("c", 3)]),
    ];
    let mut a = World::between(&orders[0], false, false);
    let broadcast = |number| {
        let mut frame = udp(SHOP, 0, 7, number, 100);
        frame[..6].copy_from_slice(&[0xff; 6]);
        frame
    };
    // Three copies of each frame into room for 512: the last one that fits is the second copy of its frame.
    for number in 0..180 {
        a.send(0, &broadcast(number));
        a.engine.turn(a.now);
        a.now += STEP;
    }
    for (old, new) in [(0, 1), (1, 2)] {
        let change = a.change(&orders[old], &orders[new]);
        a.engine.install(change, a.now);
        a.engine.turn(a.now);
    }
    let mut came = std::collections::BTreeMap::new();
    for packet in a.run(Span::millis(5), STEP) {
        // Behind 50 bytes of Ethernet, IP, UDP and VXLAN.
        *came.entry((number(&packet[50..]).1, packet[33])).or_insert(0) += 1;
    }
    let to = |host: u8| (0..180).map(|number| came.remove(&(number, host)).unwrap_or(0)).collect::<Vec<_>>();
    let [b, c, d, e] = [2, 3, 4, 5].map(to);
    assert!(c.iter().chain(&d).all(|&copies| copies == 1), "{c:?} {d:?}");
    let begun = b.iter().filter(|&&copies| copies == 1).count();
    assert_eq!(begun, 171, "{b:?}");
    assert!(b[..begun].iter().all(|&copies| copies == 1) && b[begun..].iter().all(|&copies| copies == 0));
    // A new host gets the frame that is being sent, and those after it.
    assert!(
        e[..begun - 1].iter().all(|&copies| copies == 0) && e[begun - 1..].iter().all(|&copies| copies == 1)
    );
}

#[test]
fn a_next_hop_that_does_not_answer_costs_its_frames_only() {
    let mut a = World::new(&file("a", "geneve", false, ""), true);
    a.run(Span::millis(1), STEP);
    a.send(0, &udp(SHOP, FAR, 7, 1, 100));
    a.send(0, &udp(SHOP, CALM, 7, 1, 100));
    let out = a.run(Span::secs(3), Span::millis(10));
    assert_eq!(out.len(), 2, "it is asked for once a second: {out:?}");
    assert!(out.iter().all(|frame| frame[12..14] == [8, 6]), "{out:?}");
    assert_eq!(count(&a.losses("shop"), "overlay_no_next_hop"), 1);
    assert_eq!(drain(&mut a.tenants[1]).len(), 1);
    assert_eq!(a.now.since(Nanos::ZERO), Span::millis(3_001));
}
