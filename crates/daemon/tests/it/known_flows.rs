//! A frame of a known flow fares as if it were looked at: an engine that knows flows, beside one that looks at each frame.

use proptest::prelude::*;

use crate::support::{World, drain, policy, udp};
use plimsoll_daemon::HeavyFlows;
use plimsoll_policy::Checked;
use plimsoll_units::Span;
use plimsoll_wire::Ecn;

/// What the policies say beyond the tenants: limits, classes, addresses, and backpressure of each kind.
const POLICIES: [&str; 5] = [
    "tenants: {a: {port: memory}, b: {port: memory}, c: {port: memory}}\n",
    "tenants: {a: {port: memory, max: 100Mbps, via: [thin]}, b: {port: memory, addresses: [10.0.0.2]}, c: {port: memory}}\n\
     limits: {thin: {match: {src_port: 3}, rate: 1Mbps}}\n",
    "tenants: {a: {port: memory}, b: {port: memory, ecn: untouched}, c: {port: memory}}\n\
     backpressure: {heavy: 1kpps}\n",
    "tenants: {a: {port: memory, binding: 'off'}, b: {port: memory}, c: {port: memory}}\n\
     backpressure: {watch: engine, heavy: 1pps, cores: 0.001, threshold: 1%, release: 0.1%, part: 0.1%, mode: mark, rate: 1Mbps}\n",
    "tenants: {a: {port: memory}, b: {port: memory}, c: {port: memory}}\n\
     backpressure: {watch: {tenant: b}, heavy: 1pps, cores: 0.001, threshold: 1%, release: 0.1%, part: 0.1%, mode: meter, rate: 1Mbps}\n",
];

fn checked(number: usize) -> Checked {
    // So few flow queues that flows lose theirs to others.
    policy(&format!("uplink: {{port: memory, rate: 1Gbps}}\nengine: {{queues: 36}}\n{}", POLICIES[number]))
}

#[derive(Clone, Debug)]
enum Step {
    /// Frames of one flow from a tenant, or from the wire.
    Frames { from: Option<usize>, flow: Flow, count: usize },
    /// Time passes: within a turn, over an update of the counts, or until flows have expired.
    Wait(u8),
    /// Another policy.
    Reload(usize),
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The last bytes of both hardware addresses, which may be another tenant's, or no tenant's.
    src: u8,
    dst: u8,
    port: u16,
    long: bool,
    tcp: bool,
    ecn: Ecn,
}

impl Flow {
    fn frame(self, number: u32) -> Vec<u8> {
        let mut frame = udp(self.src, self.dst, self.port, number, if self.long { 900 } else { 70 });
        if self.tcp {
            // A header of 20 bytes, and an acknowledgement.
            (frame[23], frame[46], frame[47]) = (6, 0x50, 0x10);
        }
        let _ = self.ecn.write(&mut frame);
        frame
    }
}

/// Few flows, so that each comes again; mostly from the tenant's own address.
fn frames() -> impl Strategy<Value = Step> {
    let from = prop_oneof![Just(None), (0_usize..3).prop_map(Some)];
    let src = prop_oneof![4 => Just(None), 1 => (1_u8..5).prop_map(Some)];
    let ecn = prop_oneof![3 => Just(Ecn::Ect0), 1 => Just(Ecn::NotEct), 1 => Just(Ecn::Ce)];
    let dst = prop::sample::select(vec![1_u8, 2, 3, 9]);
    let [long, tcp] = [0.2, 0.3].map(prop::bool::weighted);
    (from, src, dst, 1_u16..4, (long, tcp), ecn, 1_usize..24).prop_map(
        |(from, src, dst, port, (long, tcp), ecn, count)| {
            let own = from.map_or(9, |tenant| tenant as u8 + 1);
            Step::Frames { from, flow: Flow { src: src.unwrap_or(own), dst, port, long, tcp, ecn }, count }
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => frames(),
        3 => Just(Step::Wait(0)),
        2 => Just(Step::Wait(1)),
        1 => Just(Step::Wait(2)),
        1 => (0..POLICIES.len()).prop_map(Step::Reload),
    ];
    (0..POLICIES.len(), prop::collection::vec(step, 1..120))
        .prop_map(|(first, steps)| [vec![Step::Reload(first)], steps].concat())
}

/// An engine, and the policy in force.
struct Side {
    world: World,
    policy: Checked,
}

impl Side {
    fn new(looks: bool) -> Self {
        let policy = checked(0);
        let mut world = World::between(&policy, false, false);
        if looks {
            world.engine.look_at_each_frame();
        }
        Self { world, policy }
    }

    /// Takes a step, and says what left at each port, and all counters.
    fn take(&mut self, step: &Step) -> (Vec<Vec<Vec<u8>>>, String) {
        match step {
            Step::Frames { from, flow, count } => {
                for number in 0..*count as u32 {
                    let frame = flow.frame(number);
                    match from {
                        Some(tenant) => _ = self.world.send(*tenant, &frame),
                        None => _ = self.world.wire.send(&frame, None),
                    }
                }
                self.run(Span::micros(40), Span::micros(10))
            }
            Step::Wait(0) => self.run(Span::micros(100), Span::micros(10)),
            Step::Wait(1) => self.run(Span::millis(7), Span::micros(500)),
            Step::Wait(_) => self.run(Span::secs(17), Span::millis(900)),
            Step::Reload(number) => {
                let next = checked(*number);
                let mut change = self.world.change(&self.policy, &next);
                change.heavy =
                    change.counted.as_ref().map(|stated| Box::new(HeavyFlows::new(&stated.stated)));
                self.world.engine.install(change, self.world.now);
                self.policy = next;
                self.run(Span::micros(20), Span::micros(10))
            }
        }
    }

    fn run(&mut self, span: Span, step: Span) -> (Vec<Vec<Vec<u8>>>, String) {
        let end = self.world.now + span;
        let mut left = vec![Vec::new(); 4];
        while self.world.now < end {
            left[3].extend(self.world.run(step, step));
            for (left, end) in left.iter_mut().zip(&mut self.world.tenants) {
                left.extend(drain(end));
            }
        }
        let now = self.world.now;
        let snapshot = self.world.engine.snapshot(now);
        let tallies: Vec<_> =
            snapshot.lanes.iter().chain([&snapshot.uplink]).map(|lane| &lane.tally).collect();
        let heavy = self.world.engine.heavy(now).map(|now| {
            let flows = now.flows.iter().map(|flow| (flow.flow, flow.sent, flow.pressed.is_some()));
            flows.collect::<Vec<_>>()
        });
        // How often counts move between tables as well: frames of known flows are counted later, but before counts move.
        let moved = snapshot.flows.as_ref().map(|flows| flows.counters);
        (left, format!("{tallies:?}, {moved:?}, {heavy:?}"))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_known_flow_fares_as_one_that_is_looked_at(steps in steps()) {
        let [mut knows, mut looks] = [false, true].map(Side::new);
        for (at, step) in steps.iter().enumerate() {
            let (left, counts) = knows.take(step);
            let (as_left, as_counted) = looks.take(step);
            prop_assert_eq!(left, as_left, "step {}", at);
            prop_assert_eq!(counts, as_counted, "step {}", at);
        }
    }
}

/// What is known of a flow must not hide from the address table that its sender is still there.
#[test]
fn an_address_outside_stays_known_while_only_frames_of_a_known_flow_come_from_it() {
    let mut world = World::new(
        "uplink: {port: memory, rate: 1Gbps}\ntenants: {a: {port: memory}, b: {port: memory}}\n",
        false,
    );
    let lost = |world: &mut World| {
        world.losses("b").iter().find(|(why, _)| *why == "foreign_source").map_or(0, |(_, count)| *count)
    };
    world.send(0, &udp(1, 9, 1, 0, 70));
    world.run(Span::micros(20), Span::micros(10));
    for round in 0..8 {
        let _ = world.wire.send(&udp(9, 1, 2, round, 70), None);
        world.run(Span::secs(100), Span::secs(10));
        assert_eq!(drain(&mut world.tenants[0]).len(), 1);
    }
    world.send(1, &udp(9, 1, 3, 0, 70));
    world.run(Span::micros(20), Span::micros(10));
    assert_eq!(
        (lost(&mut world), drain(&mut world.tenants[0]).len()),
        (1, 0),
        "a tenant takes the gateway's address"
    );
}

/// Nor from the flow table that the flow still sends.
#[test]
fn known_flows_that_send_now_and_then_keep_their_queues() {
    let mut world = World::new(
        "uplink: {port: memory, rate: 1Gbps}\nengine: {queues: 16}\ntenants: {a: {port: memory}}\n",
        false,
    );
    for round in 0..120 {
        // Of all the tenant's frames one in a second is looked at: it is one of the first flow.
        world.send(0, &udp(1, 9, 1, round, 70));
        world.send(0, &udp(1, 9, 2, round, 70));
        assert_eq!(world.run(Span::millis(500), Span::millis(50)).len(), 2);
        let now = world.now;
        assert_eq!(world.engine.snapshot(now).lanes[0].flows, 2, "round {round}");
    }
    world.run(Span::secs(20), Span::millis(50));
    let now = world.now;
    assert_eq!(world.engine.snapshot(now).lanes[0].flows, 0, "silent flows leave");
}
