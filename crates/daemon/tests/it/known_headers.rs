//! A packet between hosts fares as if it were looked at, on its way out and in: two hosts that know flows and headers, beside two that
//! look at each frame.

use proptest::prelude::*;

use crate::fleet::{STEP, file};
use crate::support::{World, drain, policy, udp};
use plimsoll_daemon::HeavyFlows;
use plimsoll_policy::Checked;
use plimsoll_units::Span;
use plimsoll_wire::Ecn;

/// The kind of overlay, whether it is IPv6's, and what the files say beyond the tenants. A reload changes none of these.
const KINDS: [(&str, bool, &str); 6] = [
    ("geneve", false, ""),
    ("vxlan", true, ""),
    ("geneve", false, FEEDBACK),
    (
        "geneve",
        true,
        "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps, ecn: true}\n",
    ),
    ("geneve", false, "  sealed: true\n  key: /not/read\n"),
    (
        "geneve",
        false,
        "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps}\n\
         backpressure: {watch: engine, heavy: 1pps, cores: 0.001, threshold: 1%, release: 0.1%, part: 0.1%, mode: meter, rate: 1Mbps}\n",
    ),
];
const FEEDBACK: &str = "  feedback: {key: /not/read, epoch: 2ms, lapse: 100ms, fallback: 100Mbps}\n";

/// Where the addresses of host b's tenants are, one map after the other.
const MAPS: [(&str, &str); 3] =
    [("", ""), ("0b}", "0d}"), ("far: 02:00:00:00:00:0b, ", "far: 02:00:00:00:00:1b, ")];

fn checked(host: &str, kind: usize, map: usize) -> Checked {
    let (form, v6, rest) = KINDS[kind];
    let (from, to) = MAPS[map];
    let text = file(host, form, v6, rest);
    policy(&if from.is_empty() { text } else { text.replace(from, to) })
}

#[derive(Clone, Debug)]
enum Step {
    /// Frames of one flow from a tenant of a host.
    Frames { host: usize, tenant: usize, frame: Frame, count: usize },
    /// Time passes.
    Wait(u8),
    /// A byte of each of the next packets between the hosts is changed.
    Mangle { at: usize, by: u8, count: usize },
    /// A host gets another map.
    Reload { host: usize, map: usize },
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The last byte of both hardware addresses.
    src: u8,
    dst: u8,
    port: u16,
    len: usize,
    ecn: Ecn,
}

impl Frame {
    fn bytes(self, number: u32) -> Vec<u8> {
        let mut frame = udp(self.src, self.dst, self.port, number, self.len);
        let _ = self.ecn.write(&mut frame);
        frame
    }
}

fn frames() -> impl Strategy<Value = Step> {
    let sender = (0_usize..2, 0_usize..2, prop::bool::weighted(0.9), 1_u8..15);
    let dst = prop::sample::select(vec![1_u8, 2, 11, 12, 11, 1, 99]);
    let ecn = prop_oneof![3 => Just(Ecn::Ect0), 1 => Just(Ecn::NotEct), 1 => Just(Ecn::Ce)];
    let len = prop::sample::select(vec![70_usize, 70, 900, 1_300, 1_480]);
    (sender, dst, 1_u16..4, len, ecn, 1_usize..20).prop_map(
        |((host, tenant, own, other), dst, port, len, ecn, count)| {
            let src = if own { [[1, 2], [11, 12]][host][tenant] } else { other };
            Step::Frames { host, tenant, frame: Frame { src, dst, port, len, ecn }, count }
        },
    )
}

fn steps() -> impl Strategy<Value = (usize, Vec<Step>)> {
    let step = prop_oneof![
        20 => frames(),
        3 => (0_u8..3).prop_map(Step::Wait),
        3 => (0_usize..90, 1_u8.., 1_usize..8).prop_map(|(at, by, count)| Step::Mangle { at, by, count }),
        1 => (0_usize..2, 0..MAPS.len()).prop_map(|(host, map)| Step::Reload { host, map }),
    ];
    (0..KINDS.len(), prop::collection::vec(step, 1..40))
}

/// Two hosts, with the files in force.
struct Side {
    kind: usize,
    hosts: [World; 2],
    files: [Checked; 2],
    /// What is changed of packets between the hosts, and of how many more.
    mangles: (usize, u8, usize),
}

impl Side {
    fn new(kind: usize, looks: bool) -> Self {
        let files = ["a", "b"].map(|host| checked(host, kind, 0));
        let mut hosts = [0, 1].map(|host| World::between(&files[host], false, false));
        if looks {
            hosts.iter_mut().for_each(|host| host.engine.look_at_each_frame());
        }
        let mut side = Self { kind, hosts, files, mangles: (0, 0, 0) };
        side.run(Span::millis(1));
        side
    }

    /// Takes a step, and says what came to the tenants and over the wires, and all counters.
    fn take(&mut self, step: &Step) -> (Vec<Vec<Vec<u8>>>, String) {
        match step {
            Step::Frames { host, tenant, frame, count } => {
                for number in 0..*count as u32 {
                    let _ = self.hosts[*host].send(*tenant, &frame.bytes(number));
                }
                self.run(STEP.times(4))
            }
            Step::Wait(0) => self.run(STEP.times(2)),
            Step::Wait(1) => self.run(Span::millis(2)),
            Step::Wait(_) => self.run(Span::millis(9)),
            &Step::Mangle { at, by, count } => {
                self.mangles = (at, by, count);
                self.run(STEP)
            }
            &Step::Reload { host, map } => {
                let next = checked(["a", "b"][host], self.kind, map);
                let world = &mut self.hosts[host];
                let mut change = world.change(&self.files[host], &next);
                change.heavy =
                    change.counted.as_ref().map(|stated| Box::new(HeavyFlows::new(&stated.stated)));
                world.engine.install(change, world.now);
                self.files[host] = next;
                self.run(STEP)
            }
        }
    }

    fn run(&mut self, span: Span) -> (Vec<Vec<Vec<u8>>>, String) {
        let end = self.hosts[0].now + span;
        let mut came = vec![Vec::new(); 6];
        while self.hosts[0].now < end {
            let [a, b] = &mut self.hosts;
            let mut left = [a.run(STEP, STEP), b.run(STEP, STEP)];
            for packet in left.iter_mut().flatten() {
                let (at, by, count) = &mut self.mangles;
                if *count > 0 && *at < packet.len() {
                    (*count, packet[*at]) = (*count - 1, packet[*at] ^ *by);
                }
            }
            let [from_a, from_b] = left;
            from_a.iter().for_each(|packet| _ = b.wire.send(packet, None).expect("there"));
            from_b.iter().for_each(|packet| _ = a.wire.send(packet, None).expect("there"));
            came[4].extend(from_a);
            came[5].extend(from_b);
            let ends = a.tenants.iter_mut().chain(&mut b.tenants);
            came.iter_mut().zip(ends).for_each(|(came, end)| came.extend(drain(end)));
        }
        let told = self.hosts.iter_mut().map(|world| {
            let snapshot = world.engine.snapshot(world.now);
            let tallies: Vec<_> =
                snapshot.lanes.iter().chain([&snapshot.uplink]).map(|lane| lane.tally.clone()).collect();
            let asked = world.engine.asked(world.now);
            format!("{tallies:?}, {:?}, {asked:?}", snapshot.fleet)
        });
        (came, told.collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_packet_with_known_headers_fares_as_one_that_is_looked_at((kind, steps) in steps()) {
        let [mut knows, mut looks] = [false, true].map(|each| Side::new(kind, each));
        for (at, step) in steps.iter().enumerate() {
            let (came, counts) = knows.take(step);
            let (as_came, as_counted) = looks.take(step);
            prop_assert_eq!(came, as_came, "step {}", at);
            prop_assert_eq!(counts, as_counted, "step {}", at);
        }
    }
}
