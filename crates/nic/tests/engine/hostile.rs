//! Hostile input: whatever words and descriptors come, nothing panics, and everything is counted.

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, MAX_DESCRIPTOR, Nic, QueueId, Refusal};
use plimsoll_policy::{Codel, FlowOrder, Form, LimitId, NodeId, NodeKind};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use plimsoll_wire::Ecn;
use proptest::prelude::*;

use crate::kit::{FRAME, Plan, ROOT, World, mbps, placement};

/// Two tenants, all kinds of nodes, a limit that both share.
fn engine(pull: u64) -> World {
    let mut plan = Plan::new(mbps(10_000), NodeKind::Wfq);
    plan.program.overhead = Bytes::new(20);
    let kinds = [NodeKind::Drr, NodeKind::Edf];
    let nodes = kinds.map(|kind| plan.node(ROOT, kind, 1));
    for node in nodes {
        plan.tenant(node, 64);
    }
    let classes = [plan.class(nodes[0], 1), plan.class(nodes[0], 2), plan.class(nodes[1], 1)];
    let dst = plan.limit("dst", mbps(500), 2 * FRAME);
    let config = Config { queues: 16, ring: 8, descriptors: 96, pull: Bytes::new(pull), ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    for class in classes {
        for limits in [&[][..], &[dst][..]] {
            world.open(class, limits);
        }
    }
    world
}

/// Words of a doorbell line: any, but often ones that mean something.
fn word() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0_u16..20, 2 => Just(u16::MAX), 2 => 0_u16..6, 1 => any::<u16>()]
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let len = prop_oneof![0_u32..3_000, 60_000_u32..70_000, any::<u32>()];
    let small = || prop_oneof![0_u16..1_600, any::<u16>()];
    (any::<u64>(), len, small(), small(), any::<u32>()).prop_map(|(addr, len, segment, header, tag)| {
        let ecn = Ecn::from_bits(addr as u8);
        Descriptor { addr, len, segment, header, tag, ecn }
    })
}

/// The refusal that the descriptor's fields alone cause.
fn expected(descriptor: &Descriptor) -> Result<(), Refusal> {
    let Descriptor { len, segment, header, .. } = *descriptor;
    let (segment, header) = (u32::from(segment), u32::from(header));
    if len == 0 || (segment > 0 && !(1..len).contains(&header)) {
        return Err(Refusal::Malformed);
    }
    let frame = if segment == 0 { len } else { len.min(header + segment) };
    let fits = u64::from(frame) <= FRAME && u64::from(len) <= MAX_DESCRIPTOR.as_u64();
    if fits { Ok(()) } else { Err(Refusal::Oversize) }
}

fn refusals(nic: &Nic) -> u64 {
    let of_tenants = (0..2).flat_map(|tenant| nic.tenant_counters(plimsoll_policy::TenantId(tenant)).refused);
    let of_no_tenant = nic.tenant_counters(plimsoll_policy::TenantId(99)).refused;
    of_tenants.chain(of_no_tenant).sum()
}

/// Maxima at nodes in a row, at classes, and below an order that looks at packets; and two limits across them.
fn limited() -> (World, Vec<NodeId>, [LimitId; 2]) {
    let mut plan = Plan::new(mbps(10_000), NodeKind::Wfq);
    plan.program.overhead = Bytes::new(20);
    let outer = plan.node(ROOT, NodeKind::Priority, 1);
    let inner = plan.node(outer, NodeKind::Drr, 1);
    let rates = plan.node(outer, NodeKind::RateShare(Form::Exact), 1);
    let packets = plan.node(ROOT, NodeKind::Edf, 3);
    let short = FlowOrder::Fq(Codel { target: Span::micros(20), interval: Span::micros(400) });
    let orders = [FlowOrder::Drr, FlowOrder::Edf(Span::micros(80)), short];
    let mut classes = vec![plan.paced(rates, mbps(800)), plan.paced(rates, mbps(90))];
    for parent in [inner, inner, outer, packets, packets] {
        classes.push(plan.node(parent, NodeKind::Class(orders[classes.len() % 3]), 1 + classes.len() as u32));
    }
    for node in [outer, inner, rates, packets].iter().chain(&classes[1..]) {
        plan.max(*node, mbps(100 * u64::from(node.0)), 2 * FRAME);
    }
    plan.program.default_class = classes[0];
    let across = ["here", "there"].map(|name| plan.limit(name, mbps(300), 2 * FRAME));
    let config = Config { queues: 64, ring: 8, descriptors: 96, ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    classes.iter().for_each(|&class| _ = world.open(class, &[]));
    (world, classes, across)
}

/// An action of a tenant or an operator on the engine while packets wait.
#[derive(Clone, Debug)]
enum Deed {
    Send {
        queue: u32,
        descriptor: Descriptor,
    },
    /// A limit's rate, from a bit a second to the most that there is.
    Rate {
        limit: u32,
        rate: u64,
    },
    ClassRate {
        node: u32,
        rate: u64,
    },
    Weight {
        node: u32,
        weight: u32,
    },
    /// One more flow queue: the second bundle of a class with a `max` makes that a gate.
    Open {
        class: usize,
        limits: usize,
    },
    Wait {
        nanos: u64,
    },
}

fn deed() -> impl Strategy<Value = Deed> {
    let rate = || prop_oneof![Just(1_u64), Just(u64::MAX), (0_u32..64).prop_map(|bits| 1 << bits)];
    let descriptor =
        (1_u32..1_600, prop::bool::weighted(0.1), 0_u32..300).prop_map(|(len, large, tag)| match large {
            true => {
                Descriptor { len: 8 * len + 54, segment: 1_400, header: 54, tag, ..Descriptor::default() }
            }
            false => Descriptor { len, tag, ..Descriptor::default() },
        });
    prop_oneof![
        12 => (0_u32..16, descriptor).prop_map(|(queue, descriptor)| Deed::Send { queue, descriptor }),
        3 => (0_u32..13, rate()).prop_map(|(limit, rate)| Deed::Rate { limit, rate }),
        1 => (1_u32..13, rate()).prop_map(|(node, rate)| Deed::ClassRate { node, rate }),
        1 => (1_u32..13, 1_u32..=u32::MAX).prop_map(|(node, weight)| Deed::Weight { node, weight }),
        3 => (0_usize..7, 0_usize..4).prop_map(|(class, limits)| Deed::Open { class, limits }),
        5 => prop_oneof![0_u64..3_000, 0_u64..3_000_000, 0_u64..3_000_000_000].prop_map(|nanos| Deed::Wait { nanos }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any doorbell words: no panic, the engine still sends everything, unknown queues and notes are counted.
    #[test]
    fn any_doorbell_words_are_survived(lines in proptest::collection::vec(proptest::collection::vec(word(), 0..40), 1..12)) {
        let mut world = engine(0);
        let mut posted = 0;
        for line in &lines {
            for queue in 0..6 {
                posted += usize::from(world.post(QueueId(queue), Descriptor { len: 900, ..Descriptor::default() }).is_ok());
            }
            world.nic.ring(line, Nanos::new(world.now));
            world.poll();
            world.now += 1_000;
        }
        // Whatever rates the words set: a sane one ends every wait.
        world.notes(|doorbells| doorbells.set_rate(LimitId(0), BitRate::gbps(100)));
        for queue in 0..6 {
            world.bell(QueueId(queue));
        }
        world.drain();
        prop_assert_eq!(world.completed.len(), posted);
        prop_assert_eq!(world.nic.stats().held, 0);
    }

    /// Limits in a row whose rates change beyond all measure, and gates that come while packets wait: no panic, sane rates
    /// end every wait, and the counters of limits add up at each moment.
    #[test]
    fn any_rates_of_maxima_are_survived(deeds in proptest::collection::vec(deed(), 1..120)) {
        let (mut world, classes, across) = limited();
        let mut posted = 0;
        for deed in deeds {
            match deed {
                Deed::Send { queue, descriptor } => {
                    posted += usize::from(world.post(QueueId(queue), descriptor).is_ok());
                    world.bell(QueueId(queue));
                }
                Deed::Rate { limit, rate } => {
                    let rate = BitRate::new(rate).expect("above zero");
                    world.notes(|doorbells| doorbells.set_rate(LimitId(limit), rate));
                }
                Deed::ClassRate { node, rate } => {
                    let rate = BitRate::new(rate).expect("above zero");
                    world.notes(|doorbells| doorbells.set_class_rate(NodeId(node), rate));
                }
                Deed::Weight { node, weight } => world.notes(|doorbells| doorbells.set_weight(NodeId(node), weight)),
                Deed::Open { class, limits } => {
                    let chosen = across.iter().enumerate().filter(|(n, _)| limits >> n & 1 == 1);
                    let chosen: Vec<LimitId> = chosen.map(|(_, &limit)| limit).collect();
                    let wanted = placement(world.nic.program(), classes[class], &chosen);
                    _ = world.nic.open_queue(&wanted);
                }
                Deed::Wait { nanos } => world.run(world.now + nanos),
            }
            world.poll();
            for counters in world.nic.all_limit_counters() {
                prop_assert!(u64::from(counters.waiting) <= counters.parked, "{counters:?}");
            }
        }
        let limits = world.nic.program().limits.len() as u32;
        world.notes(|doorbells| {
            (0..limits).for_each(|limit| doorbells.set_rate(LimitId(limit), BitRate::gbps(100)));
            classes[..2].iter().for_each(|&class| doorbells.set_class_rate(class, BitRate::gbps(1)));
        });
        world.drain();
        prop_assert_eq!(world.completed.len(), posted);
        prop_assert_eq!(world.nic.stats().held, 0);
        let waiting: u32 = world.nic.all_limit_counters().iter().map(|counters| counters.waiting).sum();
        prop_assert_eq!(waiting, 0);
    }

    /// Any descriptor on any queue: taken exactly if its fields make sense, else refused with that reason, counted.
    #[test]
    fn any_descriptor_is_taken_or_counted(
        posts in proptest::collection::vec((0_u32..20, descriptor()), 1..60),
        pull in prop_oneof![Just(0_u64), 1_500_u64..80_000],
    ) {
        let mut world = engine(pull);
        let (mut taken, mut refused, mut bytes) = (0, 0, 0_u64);
        for (queue, descriptor) in posts {
            let answer = world.nic.post(QueueId(queue), descriptor);
            match (answer, expected(&descriptor)) {
                (Ok(()), Ok(())) => { taken += 1; bytes += u64::from(descriptor.len); }
                (Err(Refusal::NoQueue), _) => { prop_assert!(queue >= 6); refused += 1; }
                (Err(Refusal::FlowFull | Refusal::TenantFull | Refusal::HostFull), Ok(())) => refused += 1,
                (Err(found), Err(wanted)) => { prop_assert_eq!(found, wanted); refused += 1; }
                (found, wanted) => prop_assert!(false, "{descriptor:?}: {found:?} instead of {wanted:?}"),
            }
            if queue < 6 {
                world.bell(QueueId(queue));
            }
        }
        prop_assert_eq!(refusals(&world.nic), refused);
        world.drain();
        prop_assert_eq!(world.completed.len(), taken);
        // Each byte left once, headers apart.
        let payload: u64 = world.sent.iter().map(|sent| u64::from(sent.pull.len)).sum();
        let repeated: u64 = world.sent.iter().filter(|sent| sent.pull.offset > 0).map(|sent| u64::from(sent.pull.header)).sum();
        prop_assert_eq!(payload - repeated, bytes);
    }
}

#[test]
fn notes_about_nothing_that_exists_are_counted() {
    let mut world = engine(0);
    let mut doorbells = DoorbellQueue::default();
    doorbells.bell(QueueId(15)); // not open
    doorbells.bell(QueueId(70_000));
    doorbells.set_weight(NodeId(77), 3);
    doorbells.set_weight(NodeId(1), 0);
    doorbells.set_rate(LimitId(9), mbps(1));
    doorbells.set_tag(QueueId(14), 1);
    doorbells.flush(|words| world.nic.ring(words, Nanos::ZERO));
    assert_eq!(world.nic.stats().bad_doorbells, 6);
    world.nic.ring(&[u16::MAX, 99, 1, 2, 3], Nanos::ZERO);
    assert_eq!(world.nic.stats().bad_doorbells, 7);
    assert!(!world.nic.close_queue(QueueId(15)));
}

#[test]
fn extreme_weights_and_rates_do_not_break_the_engine() {
    for (weight, rate) in [(u32::MAX, u64::MAX), (1, 1), (u32::MAX, 1), (1, u64::MAX)] {
        let mut world = engine(0);
        world.notes(|doorbells| {
            (0..6).for_each(|node| doorbells.set_weight(NodeId(node), weight));
            doorbells.set_rate(LimitId(0), BitRate::new(rate).expect("above zero"));
        });
        for queue in 0..6 {
            (0..8).for_each(|_| _ = world.send(QueueId(queue), 1_500));
        }
        world.run(1_000_000);
        assert!(world.completed.len() >= 24, "the flows without a limit are through");
    }
}
