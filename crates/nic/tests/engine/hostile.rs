//! Hostile input: whatever words and descriptors come, nothing panics, and everything is counted.

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, MAX_DESCRIPTOR, Nic, QueueId, Refusal};
use plimsoll_policy::{LimitId, NodeId, NodeKind};
use plimsoll_units::{BitRate, Bytes, Nanos};
use proptest::prelude::*;

use crate::kit::{FRAME, Plan, ROOT, World, mbps};

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
    (any::<u64>(), len, small(), small(), any::<u32>())
        .prop_map(|(addr, len, segment, header, tag)| Descriptor { addr, len, segment, header, tag })
}

/// What the descriptor's fields alone say.
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
    let of_nobody = nic.tenant_counters(plimsoll_policy::TenantId(99)).refused;
    of_tenants.chain(of_nobody).sum()
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
