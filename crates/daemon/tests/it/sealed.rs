//! Hosts whose uplinks are joined in memory seal what goes between them: a program on the fabric can read no frame, and its
//! frames take no place of a tenant's. Without seals, one host's frames cannot take all the places of another's.

use crate::support::{self, World, drain, number, policy, udp};
use plimsoll_units::Span;
use plimsoll_wire::Mac;
use plimsoll_wire::overlay::{Inner, Path, Vni};

const STEP: Span = Span::micros(50);
/// Tenants by the last byte of their addresses: one at each host.
const SHOP: u8 = 1;
const FAR: u8 = 11;
const THIRD: u8 = 21;
const HOSTS: [(&str, &str, u8); 3] = [("a", "shop", SHOP), ("b", "far", FAR), ("c", "third", THIRD)];

const SEALED: &str = "  sealed: true\n  key: /not/read\n";
const ACCEPT: &str = "  sealed: accept\n  key: /not/read\n";
const FEEDBACK: &str =
    "  sealed: true\n  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps}\n";

/// The file of a host. `rest` goes into `overlay`.
fn file(host: usize, v6: bool, rest: &str) -> String {
    let (name, tenant, _) = HOSTS[host];
    let rows = HOSTS.iter().zip(1..).map(|((name, tenant, last), n)| {
        let address = if v6 { format!("\"2001:db8::{n}\"") } else { format!("192.0.2.{n}") };
        format!("    {name}: {{address: {address}, tenants: {{{tenant}: 02:00:00:00:00:{last:02x}}}}}\n")
    });
    let rows: String = rows.collect();
    format!(
        "uplink: {{port: memory, rate: 10Gbps}}\ntenants: {{{tenant}: {{port: memory}}}}\n\
         overlay:\n  kind: geneve\n  vni: 7\n  host: {name}\n  hosts:\n{rows}{rest}"
    )
}

/// Three hosts, of which some may be off.
struct Fleet {
    hosts: Vec<World>,
    /// Their hardware addresses.
    macs: Vec<[u8; 6]>,
    /// All packets that were on the wire, with their senders.
    seen: Vec<(usize, Vec<u8>)>,
}

impl Fleet {
    fn new(v6: bool, rest: [&str; 3]) -> Self {
        let hosts = (0..3).map(|host| start(host, v6, rest[host], [1_000, 7 + host as u64])).collect();
        let macs = (0..3).map(|host| [6, 0, 0, 0, 0, number_of(host)]).collect();
        let mut fleet = Self { hosts, macs, seen: Vec::new() };
        fleet.run(Span::millis(60));
        fleet
    }

    fn sealed() -> Self {
        Self::new(false, [SEALED; 3])
    }

    fn step(&mut self) {
        self.step_behind(&[]);
    }

    /// Turns of all hosts: each packet is on its receivers' wires a step later, behind the packets in `others`.
    fn step_behind(&mut self, others: &[Vec<u8>]) {
        let sent: Vec<Vec<Vec<u8>>> = self.hosts.iter_mut().map(|host| host.run(STEP, STEP)).collect();
        others.iter().for_each(|packet| self.inject(packet));
        for (from, packets) in sent.into_iter().enumerate() {
            for packet in packets {
                self.inject(&packet);
                self.seen.push((from, packet));
            }
        }
    }

    fn run(&mut self, span: Span) {
        (0..span.as_u64() / STEP.as_u64()).for_each(|_| self.step());
    }

    /// Puts a packet on the wires of its receivers.
    fn inject(&mut self, packet: &[u8]) {
        for (mac, host) in self.macs.iter().zip(&mut self.hosts) {
            if packet[..6] == *mac || packet[0] & 1 == 1 && packet[6..12] != *mac {
                host.wire.send(packet, None).expect("there");
            }
        }
    }

    /// Starts a host again.
    fn restart(&mut self, host: usize, rest: &str, begin: [u64; 2]) {
        let now = self.hosts[host].now;
        self.hosts[host] = start(host, false, rest, begin);
        self.hosts[host].now = now;
    }

    /// Sends 20 frames from one tenant to another, a step apart, and checks that all arrive in order.
    fn passes(&mut self, from: usize, to: usize, what: &str) {
        drain(&mut self.hosts[to].tenants[0]);
        let frames: Vec<Vec<u8>> = (0..20).map(|n| udp(HOSTS[from].2, HOSTS[to].2, 9, n, 900)).collect();
        for frame in &frames {
            self.hosts[from].send(0, frame);
            self.step();
        }
        self.run(Span::millis(1));
        assert_eq!(drain(&mut self.hosts[to].tenants[0]), frames, "{what}: {:?}", self.losses(to));
    }

    fn losses(&mut self, host: usize) -> Vec<(&'static str, u64)> {
        self.hosts[host].losses("uplink")
    }

    fn lost(&mut self, host: usize, reason: &str) -> u64 {
        count(&self.losses(host), reason)
    }

    /// Packets of one host with a tenant's sealed frame.
    fn recorded(&self, from: usize) -> Vec<Vec<u8>> {
        let frames = self.seen.iter().filter(|(by, packet)| *by == from && packet[12..14] == [8, 0]);
        frames.map(|(_, packet)| packet.clone()).filter(|packet| packet[43..46] == [0, 0x88, 0xb6]).collect()
    }
}

/// The last byte of a host's hardware address in these tests.
fn number_of(host: u8) -> u8 {
    let checked = policy(&file(host.into(), false, ""));
    checked.config.overlay.expect("an overlay").own().number.to_be_bytes()[3]
}

fn start(host: usize, v6: bool, rest: &str, begin: [u64; 2]) -> World {
    World::started(&policy(&file(host, v6, rest)), true, false, begin)
}

fn count(list: &[(&'static str, u64)], name: &str) -> u64 {
    list.iter().filter(|(known, _)| *known == name).map(|(_, count)| count).sum()
}

#[test]
fn tenants_reach_each_other_and_no_host_on_the_way_reads_what_they_say() {
    for (v6, rest) in [(false, SEALED), (true, SEALED), (false, FEEDBACK)] {
        let mut fleet = Fleet::new(v6, [rest; 3]);
        fleet.passes(0, 1, rest);
        fleet.passes(1, 0, rest);
        fleet.passes(2, 1, rest);
        let mut all = udp(SHOP, 0, 1_000, 10, 100);
        all[..6].copy_from_slice(&[0xff; 6]);
        fleet.hosts[0].send(0, &all);
        fleet.run(Span::millis(1));
        for host in [1, 2] {
            assert_eq!(drain(&mut fleet.hosts[host].tenants[0]), [all.clone()], "{rest}, over IPv6: {v6}");
        }
        for host in 0..3 {
            assert_eq!(fleet.losses(host), [], "{rest}, over IPv6: {v6}");
        }
        let plain = udp(SHOP, FAR, 9, 3, 900);
        let shown = fleet.seen.iter().filter(|(_, packet)| {
            packet.windows(34).any(|part| part[..6] == plain[..6] || part[12..34] == plain[12..34])
        });
        assert_eq!(shown.count(), 0, "addresses of tenants are to be seen");
    }
}

/// 28 bytes less than without: 12 in front, and a tag of 16.
#[test]
fn the_seal_is_taken_off_what_tenants_may_send() {
    assert_eq!(policy(&file(0, false, SEALED)).config.tenant_mtu(), 1_422);
    assert_eq!(policy(&file(0, true, ACCEPT)).config.tenant_mtu(), 1_402);
    let mut fleet = Fleet::sealed();
    let mut long = udp(SHOP, FAR, 1, 1, 1_437);
    long[20] = 0x40; // not to be fragmented
    fleet.hosts[0].send(0, &long);
    fleet.hosts[0].send(0, &udp(SHOP, FAR, 1, 2, 1_436));
    fleet.run(Span::millis(1));
    assert_eq!(drain(&mut fleet.hosts[1].tenants[0]).iter().map(Vec::len).collect::<Vec<_>>(), [1_436]);
    let longest = fleet.recorded(0).iter().map(Vec::len).max();
    assert_eq!(longest, Some(14 + 1_500), "the underlay is used to its last byte");
    let told = drain(&mut fleet.hosts[0].tenants[0]);
    assert_eq!((told.len(), u16::from_be_bytes([told[0][40], told[0][41]])), (1, 1_422));
}

/// An attacker repeats each of a host's packets 150 times. Without seals the pair would lose its places to them.
#[test]
fn replays_in_a_hosts_name_take_nothing_from_its_pair() {
    for (rest, holds) in [("", false), (SEALED, true), (FEEDBACK, true)] {
        let mut fleet = Fleet::new(false, [rest; 3]);
        let (mut came, mut recorded, mut replayed) = (Vec::new(), Vec::new(), 0);
        for n in 0..1_500 {
            fleet.hosts[1].send(0, &udp(FAR, SHOP, 7, n, 600));
            let again: Vec<Vec<u8>> = recorded.iter().cycle().take(150).cloned().collect();
            replayed += again.len() as u64;
            fleet.step_behind(&again);
            if n < 20 {
                let packets = fleet.seen.iter().filter(|(from, packet)| *from == 1 && packet.len() > 600);
                recorded = packets.map(|(_, packet)| packet.clone()).collect();
            }
            came.extend(drain(&mut fleet.hosts[0].tenants[0]).iter().map(|frame| number(frame).1));
        }
        fleet.run(Span::millis(1));
        came.extend(drain(&mut fleet.hosts[0].tenants[0]).iter().map(|frame| number(frame).1));
        let all: Vec<u32> = (0..1_500).collect();
        if holds {
            assert_eq!(came, all, "each once and in order: {:?}", fleet.losses(0));
            let dropped = fleet.lost(0, "overlay_replayed");
            assert!(dropped > replayed * 9 / 10, "{dropped} of {replayed}");
        } else {
            let whole = all.iter().filter(|n| came.contains(n)).count();
            assert!(
                whole < 1_500 && came.len() > 10_000,
                "the attack works: {whole} of 1,500, {} in all",
                came.len()
            );
        }
    }
}

#[test]
fn what_was_changed_or_made_up_is_dropped_for_its_reason() {
    let mut fleet = Fleet::sealed();
    for n in 0..40 {
        fleet.hosts[1].send(0, &udp(FAR, SHOP, 7, n, 300));
        fleet.hosts[1].run(STEP, STEP).into_iter().for_each(|packet| fleet.seen.push((1, packet)));
    }
    let packets = fleet.recorded(1);
    assert_eq!(packets.len(), 40);
    // Behind Ethernet, IPv4, UDP and Geneve: a check, the number, the frame, the tag.
    let changed = |packet: &[u8], at: usize| {
        let mut packet = packet.to_vec();
        packet[at] ^= 1;
        packet
    };
    let last = packets[0].len() - 1;
    let cases = [
        (50, "overlay_wrong_session"),
        (61, "overlay_wrong_session"),
        (62, "overlay_forged"),
        (last, "overlay_forged"),
    ];
    for (packet, (at, reason)) in packets.iter().zip(cases) {
        let before = fleet.lost(0, reason);
        fleet.inject(&changed(packet, at));
        fleet.run(STEP.times(2));
        assert_eq!(fleet.lost(0, reason), before + 1, "byte {at}: {:?}", fleet.losses(0));
    }
    // In another host's name, and for another network.
    let mut other = packets[4].clone();
    other[29] = 3;
    let network = changed(&packets[5], 48);
    for packet in [other, network] {
        fleet.inject(&packet);
    }
    fleet.run(STEP.times(2));
    assert_eq!((fleet.lost(0, "overlay_wrong_session"), fleet.lost(0, "overlay_forged")), (3, 3));
    assert_eq!(drain(&mut fleet.hosts[0].tenants[0]).len(), 0);
    // The frames themselves still arrive, however late.
    packets.iter().rev().for_each(|packet| fleet.inject(packet));
    fleet.run(Span::millis(1));
    let mut came: Vec<u32> =
        drain(&mut fleet.hosts[0].tenants[0]).iter().map(|frame| number(frame).1).collect();
    came.sort_unstable();
    assert_eq!(came, (0..40).collect::<Vec<_>>());
}

/// A sender whose clock stood still or went back, and a receiver that has forgotten what it had seen.
#[test]
fn a_host_that_starts_again_is_heard_and_its_old_frames_are_not() {
    for (host, begin) in
        [(1, [2_000, 100]), (1, [1_000, 101]), (1, [5, 102]), (0, [2_000, 103]), (0, [5, 104])]
    {
        let mut fleet = Fleet::sealed();
        fleet.passes(1, 0, "before");
        let old = fleet.recorded(1);
        assert!(old.len() >= 20);
        fleet.restart(host, SEALED, begin);
        old.iter().for_each(|packet| fleet.inject(packet));
        fleet.run(Span::millis(60));
        old.iter().for_each(|packet| fleet.inject(packet));
        fleet.run(Span::millis(1));
        assert_eq!(drain(&mut fleet.hosts[0].tenants[0]).len(), 0, "host {host}, {begin:?}");
        let dropped = fleet.lost(0, "overlay_wrong_session") + fleet.lost(0, "overlay_replayed");
        assert_eq!(dropped, 2 * old.len() as u64, "{:?}", fleet.losses(0));
        fleet.passes(1, 0, "after");
        fleet.passes(0, 1, "after, back");
    }
}

/// The fleet's hosts change over one by one: all take both, then all seal.
#[test]
fn hosts_change_over_one_by_one() {
    // A host with `sealed: accept` sends unsealed to a host that does not seal, and sealed to one that does.
    let mut fleet = Fleet::new(false, ["", ACCEPT, SEALED]);
    fleet.passes(0, 1, "as it is");
    fleet.passes(1, 0, "as it is, back");
    fleet.passes(1, 2, "sealed");
    fleet.passes(2, 1, "sealed, back");
    assert!(fleet.recorded(1).len() >= 20 && fleet.recorded(2).len() >= 20);
    assert_eq!(fleet.recorded(0).len(), 0);
    // If one host seals and the other does not, no frame passes, and both report why.
    fleet.hosts[0].send(0, &udp(SHOP, THIRD, 9, 1, 300));
    fleet.hosts[2].send(0, &udp(THIRD, SHOP, 9, 1, 300));
    fleet.run(Span::millis(1));
    assert_eq!(fleet.lost(2, "overlay_unsealed"), 1);
    assert_eq!(count(&fleet.hosts[2].losses("third"), "overlay_no_session"), 1);
    assert!(count(&fleet.hosts[0].events("uplink"), "overlay_hello_unasked") > 0);
    let sealed = fleet.recorded(2);
    fleet.hosts[0].wire.send(&sealed[0], None).expect("there");
    // The packet is for another host's address: make it this one's.
    let mut sealed = sealed[0].clone();
    sealed[33] = 1;
    fleet.hosts[0].wire.send(&sealed, None).expect("there");
    fleet.run(Span::millis(1));
    assert_eq!(fleet.lost(0, "overlay_sealed"), 1);
    assert!((0..3).all(|host| drain(&mut fleet.hosts[host].tenants[0]).is_empty()));
    // The next step of the change.
    fleet.restart(0, ACCEPT, [3_000, 300]);
    fleet.run(Span::millis(1_200));
    fleet.passes(0, 2, "all accept or seal");
    fleet.passes(2, 0, "all accept or seal, back");
    fleet.restart(1, SEALED, [3_000, 301]);
    fleet.restart(0, SEALED, [4_000, 302]);
    fleet.run(Span::millis(60));
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
        fleet.passes(from, to, "all seal");
    }
}

#[test]
fn a_reload_keeps_sessions_with_the_hosts_that_stay() {
    let mut fleet = Fleet::sealed();
    let begun = |fleet: &mut Fleet| count(&fleet.hosts[0].events("uplink"), "overlay_session_begun");
    let before = begun(&mut fleet);
    let text = file(0, false, SEALED);
    let (old, mut lines) = (policy(&text), text.lines().map(str::to_owned).collect::<Vec<_>>());
    let row =
        |lines: &[String], name: &str| lines.iter().position(|line| line.trim_start().starts_with(name));
    let (b, c) = (row(&lines, "b:").expect("b"), row(&lines, "c:").expect("c"));
    lines.swap(b, c);
    let new = policy(&(lines.join("\n") + "\n"));
    let change = fleet.hosts[0].change(&old, &new);
    let now = fleet.hosts[0].now;
    fleet.hosts[0].engine.install(change, now);
    fleet.passes(1, 0, "b");
    fleet.passes(0, 1, "to b");
    fleet.passes(2, 0, "c");
    fleet.passes(0, 2, "to c");
    assert_eq!(begun(&mut fleet), before);
}

/// A restarted host has the same keys, so no number may be used again, and no earlier frame accepted.
#[test]
fn a_host_that_leaves_the_policy_and_returns_goes_on_where_it_was() {
    let mut fleet = Fleet::sealed();
    fleet.passes(0, 1, "before");
    fleet.passes(1, 0, "before, back");
    let old = fleet.recorded(1);
    let with = file(0, false, SEALED);
    let without: String = with
        .lines()
        .filter(|line| !line.trim_start().starts_with("b:"))
        .flat_map(|line| [line, "\n"])
        .collect();
    for (from, to) in [(&with, &without), (&without, &with)] {
        let change = fleet.hosts[0].change(&policy(from), &policy(to));
        let now = fleet.hosts[0].now;
        fleet.hosts[0].engine.install(change, now);
        fleet.run(Span::millis(60));
    }
    drain(&mut fleet.hosts[0].tenants[0]);
    old.iter().for_each(|packet| fleet.inject(packet));
    fleet.run(Span::millis(1));
    assert_eq!(drain(&mut fleet.hosts[0].tenants[0]).len(), 0, "they came before: {:?}", fleet.losses(0));
    fleet.passes(0, 1, "after");
    fleet.passes(1, 0, "after, back");
    // Behind Ethernet, IPv4, UDP and Geneve: the check, which is of the key and the number.
    let to_b = |packet: &&Vec<u8>| packet[33] == 2;
    let heads: Vec<Vec<u8>> =
        fleet.recorded(0).iter().filter(to_b).map(|packet| packet[50..62].to_vec()).collect();
    let different: std::collections::BTreeSet<&Vec<u8>> = heads.iter().collect();
    assert_eq!((heads.len(), different.len()), (40, 40), "a key and number were used twice");
}

/// The path from one host to another.
fn path(from: u8, to: u8) -> Path {
    support::path(from + 1, to + 1, Mac([6, 0, 0, 0, 0, number_of(to)]))
}

/// 200,000 forged hellos a second in the names of b and of c, by an attacker without the key who cannot read the hosts'
/// packets.
#[test]
fn forged_hellos_cost_only_so_much_and_keep_no_host_from_its_session() {
    let mut fleet = Fleet::sealed();
    let said: Vec<Vec<u8>> = fleet.seen.iter().map(|(_, packet)| packet.clone()).collect();
    let event = |fleet: &mut Fleet, name: &str| count(&fleet.hosts[0].events("uplink"), name);
    let mut flood = Vec::new();
    for from in [1, 2] {
        let to_a = |packet: &&Vec<u8>| packet.len() == HELLO && packet[29..34] == [from + 1, 192, 0, 2, 1];
        let hello = &said.iter().find(to_a).expect("it has said hello")[HELLO - 58..];
        for n in 0..200 {
            let mut forged = hello.to_vec();
            // Its start, and the start of a that it repeats.
            forged[18..34].copy_from_slice(&[n; 16]);
            let mut out = [0; 200];
            let len = path(from, 0).hello_frame(&forged, &mut out).expect("it fits");
            flood.push(out[..len].to_vec());
        }
    }
    let begun = event(&mut fleet, "overlay_session_begun");
    fleet.restart(1, SEALED, [2_000, 100]);
    for _ in 0..1_200 {
        fleet.step_behind(&flood);
        fleet.run(Span::millis(1) - STEP);
    }
    let (looked, over) =
        (event(&mut fleet, "overlay_hello_forged"), event(&mut fleet, "overlay_hello_over_limit"));
    assert!((10_000..13_000).contains(&looked), "10,000 a second, and own shares: {looked}");
    // Some of b's own were not looked at either.
    assert!((480_000..480_100).contains(&(looked + over)), "all of them are counted: {looked} and {over}");
    assert!(event(&mut fleet, "overlay_session_begun") > begun, "while they come");
    fleet.passes(1, 0, "from b");
    fleet.passes(0, 1, "to b");
    fleet.passes(2, 0, "from c");
}

/// Bytes of a packet with a hello, over IPv4.
const HELLO: usize = 14 + 20 + 8 + 8 + 58;

/// Unsealed frames in b's name, more than the tenant's queue takes; c sends one in each step.
#[test]
fn what_comes_in_one_hosts_name_leaves_room_for_anothers() {
    let mut fleet = Fleet::new(false, [""; 3]);
    let inner = Inner { vni: Vni::new(7).expect("small"), flow_hash: 1, feedback: None };
    let mut out = [0; 1_600];
    let len = path(1, 0).encapsulate_into(&udp(FAR, SHOP, 7, 1, 300), &mut out, &inner).expect("it fits");
    let (flood, mut came) = (vec![out[..len].to_vec(); 200], Vec::new());
    for n in 0..2_000 {
        fleet.hosts[2].send(0, &udp(THIRD, SHOP, 9, n, 300));
        fleet.step_behind(&flood);
        let frames = drain(&mut fleet.hosts[0].tenants[0]);
        came.extend(frames.iter().map(|frame| number(frame)).filter(|&(port, _)| port == 9).map(|(_, n)| n));
    }
    // The wire's end has room for 512 frames: the others were not lost by the daemon.
    let (full, over) = (fleet.lost(0, "ingress_full"), fleet.lost(0, "overlay_source_over_share"));
    assert_eq!(full, 0, "{:?}", fleet.losses(0));
    assert!(over > 10_000, "{over}");
    fleet.run(Span::millis(5));
    let frames = drain(&mut fleet.hosts[0].tenants[0]);
    came.extend(frames.iter().map(|frame| number(frame)).filter(|&(port, _)| port == 9).map(|(_, n)| n));
    assert_eq!(came.len(), 2_000, "{:?}", fleet.losses(0));
}
