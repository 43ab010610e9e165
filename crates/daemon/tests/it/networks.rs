//! Several networks on two hosts: tenants with the same addresses, each of which hears its own network and no other.

use crate::support::{World, drain, number, path, policy, udp};
use plimsoll_daemon::Stats;
use plimsoll_units::Span;
use plimsoll_wire::overlay::{Inner, Vni};
use plimsoll_wire::{Mac, neighbour};

const STEP: Span = Span::micros(50);
const BLUE: u32 = 8;
const RED: u32 = 9;
const PLAIN: u32 = 7;

/// Tenants: host, name, network, last byte of the address. Addresses repeat across networks, on one host and on two.
const TENANTS: [(usize, &str, u32, u8); 9] = [
    (0, "blue1", BLUE, 1),
    (0, "blue2", BLUE, 2),
    (0, "red1", RED, 1),
    (0, "red2", RED, 2),
    (0, "plain", PLAIN, 11),
    (1, "blue11", BLUE, 11),
    (1, "red11", RED, 11),
    (1, "red12", RED, 12),
    (1, "plain1", PLAIN, 1),
];
/// Every address, one that no tenant has, and the broadcast address.
const TARGETS: [u8; 6] = [1, 2, 11, 12, 99, 0xff];

const FEEDBACK: &str = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps}\n";
const SEALED: &str = "  sealed: true\n  key: /not/read\n";

/// The tenants of a host, with their places at its end.
fn at(host: usize) -> impl Iterator<Item = (&'static str, u32, u8)> {
    TENANTS
        .into_iter()
        .filter(move |tenant| tenant.0 == host)
        .map(|(_, name, network, mac)| (name, network, mac))
}

/// The file of a host. Each tenant states the IP address that goes with its hardware address, but `red2`, which has that of `blue2`.
fn file(host: usize, rest: &str) -> String {
    let tenants = at(host).map(|(name, _, mac)| {
        let max = if name == "blue11" { ", max: 20Mbps" } else { "" };
        let addresses = if name == "red2" { String::new() } else { format!(", addresses: [10.0.0.{mac}]") };
        format!("  {name}: {{port: memory{addresses}{max}}}\n")
    });
    let tenants: String = tenants.collect();
    let row = |host: usize| {
        let tenant = |(name, network, mac)| {
            let network = match network {
                BLUE => ", network: blue",
                RED => ", network: red",
                _ => "",
            };
            format!("{name}: {{mac: 02:00:00:00:00:{mac:02x}{network}}}")
        };
        let tenants: Vec<String> = at(host).map(tenant).collect();
        format!(
            "    {}: {{address: 192.0.2.{}, tenants: {{{}}}}}\n",
            ["a", "b"][host],
            host + 1,
            tenants.join(", ")
        )
    };
    format!(
        "uplink: {{port: memory, rate: 1Gbps}}\ntenants:\n{tenants}overlay:\n  kind: geneve\n  vni: {PLAIN}\n  \
         networks: {{blue: {BLUE}, red: {RED}}}\n  host: {}\n  hosts:\n{}{}{rest}",
        ["a", "b"][host],
        row(0),
        row(1)
    )
}

/// Both hosts.
struct Hosts([World; 2]);

impl Hosts {
    fn new(rest: &str) -> Self {
        let mut hosts = Self([0, 1].map(|host| World::new(&file(host, rest), false)));
        hosts.run(Span::millis(60));
        hosts
    }

    fn step(&mut self) {
        let Self([a, b]) = self;
        let (from_a, from_b) = (a.run(STEP, STEP), b.run(STEP, STEP));
        from_a.iter().for_each(|packet| _ = b.wire.send(packet, None).expect("there"));
        from_b.iter().for_each(|packet| _ = a.wire.send(packet, None).expect("there"));
    }

    fn run(&mut self, span: Span) {
        (0..span.as_u64() / STEP.as_u64()).for_each(|_| self.step());
    }

    /// The place of a tenant: its host, and its place there.
    fn place(tenant: usize) -> (usize, usize) {
        let (host, name, ..) = TENANTS[tenant];
        (host, at(host).position(|(known, ..)| known == name).expect("there"))
    }

    fn send(&mut self, tenant: usize, frame: &[u8]) {
        let (host, place) = Self::place(tenant);
        self.0[host].send(place, frame);
    }

    fn heard(&mut self, tenant: usize) -> Vec<Vec<u8>> {
        let (host, place) = Self::place(tenant);
        drain(&mut self.0[host].tenants[place])
    }

    fn lost(&mut self, host: usize, whose: &str, reason: &str) -> u64 {
        let losses = self.0[host].losses(whose);
        losses.iter().filter(|(known, _)| *known == reason).map(|(_, count)| count).sum()
    }
}

fn frame(from: u8, to: u8, number: u32) -> Vec<u8> {
    let mut frame = udp(from, to, 7, number, 100);
    if to == 0xff {
        frame[..6].fill(0xff);
    }
    frame
}

/// Every tenant sends to every address, several times, so that what is known of its flows is used as well.
#[test]
fn a_frame_reaches_the_tenants_of_its_network_with_its_address_and_no_others() {
    for rest in ["", FEEDBACK, SEALED] {
        let mut hosts = Hosts::new(rest);
        let mut numbers = 0;
        for _ in 0..4 {
            for (from, &(_, name, network, mac)) in TENANTS.iter().enumerate() {
                for to in TARGETS.into_iter().filter(|to| *to != mac) {
                    numbers += 1;
                    hosts.send(from, &frame(mac, to, numbers));
                    hosts.run(STEP.times(6));
                    for (other, &(_, known, there, has)) in TENANTS.iter().enumerate() {
                        let gets = other != from && there == network && (has == to || to == 0xff);
                        let heard: Vec<u32> =
                            hosts.heard(other).iter().map(|frame| number(frame).1).collect();
                        let expected: &[u32] = if gets { &[numbers] } else { &[] };
                        assert_eq!(heard, expected, "{rest:?}: from {name} to {to}, at {known}");
                    }
                }
            }
        }
        for host in 0..2 {
            assert_eq!(hosts.0[host].losses("uplink"), [], "{rest:?}");
            for (name, ..) in at(host) {
                let all = hosts.0[host].losses(name);
                let without_peer = hosts.lost(host, name, "overlay_no_peer");
                let sum: u64 = all.iter().map(|(_, count)| count).sum();
                assert_eq!(sum, without_peer, "{rest:?}: {name}: {all:?}");
            }
        }
    }
}

/// A host with tenants of other networks only gets no copy of a broadcast.
#[test]
fn a_broadcast_goes_to_hosts_of_its_network_only() {
    let mut hosts = Hosts::new("");
    hosts.send(0, &frame(1, 0xff, 1));
    hosts.run(Span::millis(1));
    let to_b = |hosts: &mut Hosts| {
        Stats::from(&hosts.0[0].engine.snapshot(hosts.0[0].now)).fleet.expect("a fleet").hosts["b"].sent
    };
    assert_eq!(to_b(&mut hosts), 1);
    let text = |host| {
        file(host, "").replace(
            "blue11: {mac: 02:00:00:00:00:0b, network: blue}",
            "blue11: {mac: 02:00:00:00:00:0e, network: red}",
        )
    };
    let change = hosts.0[0].change(&policy(&file(0, "")), &policy(&text(0)));
    let now = hosts.0[0].now;
    hosts.0[0].engine.install(change, now);
    hosts.send(0, &frame(1, 0xff, 2));
    hosts.run(Span::millis(1));
    assert_eq!(to_b(&mut hosts), 1, "no tenant of `blue` is there any more");
    assert_eq!(hosts.heard(1).len(), 2, "its neighbour hears it");
}

/// A tenant may claim an address that a tenant of another network states, and none of its own network's.
#[test]
fn addresses_are_stated_for_a_network() {
    let mut hosts = Hosts::new("");
    let claim = |ip: u8| {
        let mut request = vec![0; neighbour::LONGEST];
        let (ip, mac) = ([10, 0, 0, ip].into(), Mac([2, 0, 0, 0, 0, 2]));
        let len = neighbour::tell((ip, mac), ([10, 0, 0, 11].into(), Mac([2, 0, 0, 0, 0, 11])), &mut request);
        request.truncate(len.expect("one family"));
        request
    };
    // `red2` claims the address of `blue2`, as it has it too, and that of `red1`.
    for (ip, heard, spoofed) in [(2, 1, 0), (1, 0, 1)] {
        hosts.send(3, &claim(ip));
        hosts.run(Span::millis(1));
        assert_eq!(hosts.heard(6).len(), heard, "{ip}: {:?}", hosts.0[0].losses("red2"));
        assert_eq!(hosts.lost(0, "red2", "spoofed_arp"), spoofed, "{ip}: {:?}", hosts.0[0].losses("red2"));
    }
}

/// What a program on the underlay sends in a host's name: for a network that the host does not have, from an address that the host has in
/// another network only, and for an address that is in another network only.
#[test]
fn a_forged_network_is_a_counted_drop() {
    let mut hosts = Hosts::new("");
    let mut out = [0; 1_600];
    let cases = [
        (99, 11, 1, "overlay_unknown_network"),
        (PLAIN, 11, 11, "overlay_wrong_host"),
        (BLUE, 12, 1, "overlay_wrong_host"),
        (BLUE, 11, 12, "unknown_destination"),
    ];
    for (vni, from, to, reason) in cases {
        let inner = Inner { vni: Vni::new(vni).expect("small"), flow_hash: 1, feedback: None };
        let packet = path(2, 1, Mac([6; 6]));
        let len = packet.encapsulate_into(&frame(from, to, 1), &mut out, &inner).expect("it fits");
        let before = hosts.lost(0, "uplink", reason);
        hosts.0[0].wire.send(&out[..len], None).expect("there");
        hosts.run(Span::millis(1));
        assert_eq!(hosts.lost(0, "uplink", reason), before + 1, "{vni}: {:?}", hosts.0[0].losses("uplink"));
    }
    for (tenant, (_, name, ..)) in TENANTS.iter().enumerate() {
        assert_eq!(hosts.heard(tenant).len(), 0, "{name}");
    }
}

/// `blue1` and `red1` have one address and send the same headers to one address: the limit of `blue11` holds the first one only.
#[test]
fn a_limit_holds_the_tenant_of_its_network() {
    let mut hosts = Hosts::new(FEEDBACK);
    let mut came = [0; 2];
    for n in 0..10_000 {
        for from in [0, 2] {
            hosts.send(from, &udp(1, 11, 7, n, 600));
        }
        hosts.step();
        for (came, tenant) in came.iter_mut().zip([5, 6]) {
            let heard = hosts.heard(tenant).len();
            *came += if n >= 6_000 { heard } else { 0 };
        }
    }
    // In 200 ms at 20 Mb/s: 750 frames of 665 bytes with all headers. The other one sends 4,000, at 96 Mb/s.
    assert!((600..=850).contains(&came[0]), "{came:?}");
    assert!(came[1] > 3_900, "{came:?}");
    let stats = Stats::from(&hosts.0[0].engine.snapshot(hosts.0[0].now));
    let pairs = stats.fleet.expect("a fleet").pairs;
    let pairs: Vec<_> = pairs.iter().map(|pair| (pair.tenant.as_str(), pair.peer.as_str())).collect();
    assert_eq!(pairs, [("blue1", "blue11"), ("red1", "red11")]);
}
