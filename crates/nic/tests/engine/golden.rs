//! Golden cases: shares, priorities and limits with numbers that a reader can check in the head.

use plimsoll_nic::{Config, QueueId};
use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, check_str};
use plimsoll_units::{BitRate, Bytes, Nanos};

use crate::kit::{FRAME, MS, Plan, ROOT, World, assert_near, burst_of, mbps, placement};

const LINK: BitRate = BitRate::gbps(10);

/// Rates in Mb/s of `classes`, after they settled.
fn settled(world: &mut World, classes: &[NodeId]) -> Vec<f64> {
    let (from, until) = (world.now + 15 * MS, world.now + 35 * MS);
    world.run(until);
    classes.iter().map(|&class| world.rate(class, from, until)).collect()
}

fn assert_rates(world: &mut World, expected: &[(NodeId, f64)], percent: f64) {
    let classes: Vec<NodeId> = expected.iter().map(|&(class, _)| class).collect();
    let found = settled(world, &classes);
    for (&(class, wanted), found) in expected.iter().zip(found) {
        if wanted == 0.0 {
            assert!(found <= 1.0, "class {class:?} should get nothing, gets {found}");
        } else {
            assert_near(&format!("class {class:?}"), found, wanted, percent);
        }
    }
}

/// `design`, envelopes: 10 Gb/s, A min 5 weight 1, B min 1 weight 3.
fn envelope(max_of_a: Option<BitRate>, fair: NodeKind) -> (World, NodeId, NodeId) {
    let mut plan = Plan::new(LINK, fair);
    let (a, b) = (plan.class(ROOT, 1), plan.class(ROOT, 3));
    plan.min(a, BitRate::gbps(5));
    plan.min(b, BitRate::gbps(1));
    if let Some(max) = max_of_a {
        plan.max(a, max, burst_of(max, 1));
    }
    (World::with(&plan.program), a, b)
}

#[test]
fn minima_come_first_and_the_rest_goes_by_weight() {
    for fair in [NodeKind::Wfq, NodeKind::Drr] {
        let (mut world, a, b) = envelope(None, fair);
        world.greedy(a, &[], 1_500);
        world.greedy(b, &[], 1_500);
        assert_rates(&mut world, &[(a, 6_000.0), (b, 4_000.0)], 0.5);
    }
}

#[test]
fn what_a_maximum_keeps_back_goes_to_the_others() {
    for fair in [NodeKind::Wfq, NodeKind::Drr] {
        let (mut world, a, b) = envelope(Some(mbps(5_500)), fair);
        world.greedy(a, &[], 1_500);
        world.greedy(b, &[], 1_500);
        assert_rates(&mut world, &[(a, 5_500.0), (b, 4_500.0)], 0.5);
    }
}

#[test]
fn alone_a_class_gets_the_link() {
    let (mut world, a, b) = envelope(None, NodeKind::Wfq);
    world.greedy(b, &[], 1_500);
    assert_rates(&mut world, &[(a, 0.0), (b, 10_000.0)], 0.1);
}

#[test]
fn the_same_envelopes_from_a_policy_file() {
    let text = "
uplink: {port: memory, rate: 10Gbps}
tenants:
  a: {port: memory, min: 5Gbps, max: 5.5Gbps, weight: 1}
  b: {port: memory, min: 1Gbps, weight: 3}
";
    let program = check_str("p.yaml", text).expect("a legal policy").program;
    let place = |name: &str| {
        let tenant = program.tenants.iter().position(|tenant| tenant.name == name).expect("a tenant");
        let tenant = plimsoll_policy::TenantId(u32::try_from(tenant).expect("few"));
        program.classify(&plimsoll_policy::Fields { tenant: Some(tenant), ..Default::default() })
    };
    let (a, b) = (place("a"), place("b"));
    let mut world = World::with(&program);
    // The kit adds the maxima of the path itself.
    world.greedy(a.class, &[], 1_500);
    world.greedy(b.class, &[], 1_500);
    assert_rates(&mut world, &[(a.class, 5_500.0), (b.class, 4_500.0)], 0.5);
}

#[test]
fn minima_hold_against_priorities_and_inside_nodes() {
    let mut plan = Plan::new(LINK, NodeKind::Priority);
    let urgent = plan.class(ROOT, 1);
    let rest = plan.node(ROOT, NodeKind::Wfq, 1);
    let (x, y) = (plan.class(rest, 1), plan.class(rest, 1));
    plan.min(rest, mbps(2_000));
    plan.min(x, mbps(1_500));
    let mut world = World::with(&plan.program);
    for class in [urgent, x, y] {
        world.greedy(class, &[], 1_500);
    }
    assert_rates(&mut world, &[(urgent, 8_000.0), (x, 1_750.0), (y, 250.0)], 1.5);
}

/// Where two jobs meet.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Nothing,
    /// A `max` of the node that orders them.
    Max,
    /// A limit of their destination.
    Destination,
    /// A destination's limit inside a wider one, the narrower binding.
    Nested,
    /// Like the case above, but the wider limit binds.
    NestedOutside,
    /// A limit above the link's rate, and a `max` that binds.
    SlackAndMax,
}

const PLACES: [Behind; 6] = [
    Behind::Nothing,
    Behind::Max,
    Behind::Destination,
    Behind::Nested,
    Behind::NestedOutside,
    Behind::SlackAndMax,
];

/// Two jobs below a node of `kind`, behind limits of 2 Gb/s in all, beside other traffic when `crowded`.
fn two_jobs(kind: NodeKind, weights: [u32; 2], behind: Behind, crowded: bool, burst: u64) -> Jobs {
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let jobs = plan.node(ROOT, kind, 4);
    let classes = weights.map(|weight| plan.class(jobs, weight));
    let others: Vec<NodeId> = (0..if crowded { 4 } else { 0 }).map(|_| plan.class(ROOT, 1)).collect();
    let two = mbps(2_000);
    let limits = match behind {
        Behind::Nothing => vec![],
        Behind::Max => {
            plan.max(jobs, two, burst);
            vec![]
        }
        Behind::Destination => vec![plan.limit("dst", two, burst)],
        Behind::Nested => vec![plan.limit("dst", two, burst), plan.limit("wide", mbps(3_000), burst)],
        Behind::NestedOutside => vec![plan.limit("dst", mbps(3_000), burst), plan.limit("wide", two, burst)],
        Behind::SlackAndMax => {
            plan.max(jobs, two, burst);
            vec![plan.limit("slack", mbps(20_000), burst)]
        }
    };
    let mut world = World::with(&plan.program);
    for class in others {
        world.greedy(class, &[], 1_500);
    }
    let total = match (behind, crowded) {
        (Behind::Nothing, false) => 10_000.0,
        (Behind::Nothing, true) => 5_000.0,
        _ => 2_000.0,
    };
    Jobs { world, classes, limits, total }
}

struct Jobs {
    world: World,
    classes: [NodeId; 2],
    limits: Vec<LimitId>,
    total: f64,
}

impl Jobs {
    fn start(&mut self, flows: [usize; 2]) {
        let most = flows[0].max(flows[1]);
        for n in 0..most {
            for job in [0, 1] {
                if n < flows[job] {
                    self.world.greedy(self.classes[job], &self.limits, 1_500);
                }
            }
        }
    }
}

const BURSTS: [u64; 3] = [FRAME, 2 * FRAME, 250_000];

fn shares_hold(kind: NodeKind, weights: [u32; 2], flows: [usize; 2], shares: [f64; 2]) {
    for behind in PLACES {
        for crowded in [false, true] {
            for burst in BURSTS {
                // Turns have no memory: with two binding limits in a row and bursts of a single frame, a job may be
                // still on its way from the first when the second has its turn to give. WFQ makes up for it.
                let loses_turns = kind == NodeKind::Drr && matches!(behind, Behind::NestedOutside);
                if loses_turns && crowded && burst == FRAME {
                    continue;
                }
                let mut jobs = two_jobs(kind, weights, behind, crowded, burst);
                jobs.start(flows);
                let found = settled(&mut jobs.world, &jobs.classes);
                for job in [0, 1] {
                    let what =
                        format!("{kind:?} {weights:?} {flows:?} {behind:?} crowded {crowded} burst {burst}");
                    let wanted = shares[job] * jobs.total;
                    if wanted == 0.0 {
                        assert!(found[job] < 1.0, "{what}: the loser gets {}", found[job]);
                    } else {
                        assert_near(&format!("{what} job {job}"), found[job], wanted, 1.0);
                    }
                }
            }
        }
    }
}

#[test]
fn two_equal_jobs_get_the_same_with_one_and_with_ten_flows() {
    for kind in [NodeKind::Wfq, NodeKind::Drr] {
        shares_hold(kind, [1, 1], [1, 10], [0.5, 0.5]);
        shares_hold(kind, [1, 1], [10, 1], [0.5, 0.5]);
    }
}

#[test]
fn weights_hold_whatever_the_numbers_of_flows() {
    for kind in [NodeKind::Wfq, NodeKind::Drr] {
        for flows in [[1, 1], [1, 10], [10, 1]] {
            shares_hold(kind, [2, 1], flows, [2.0 / 3.0, 1.0 / 3.0]);
        }
    }
}

#[test]
fn priority_is_strict_whatever_the_numbers_of_flows() {
    for flows in [[1, 1], [1, 10]] {
        shares_hold(NodeKind::Priority, [1, 1], flows, [1.0, 0.0]);
    }
}

#[test]
fn a_destination_limit_shared_by_classes_of_several_tenants_follows_the_tree() {
    // Tenants 2:1; inside the first, classes 3:1; all to one destination of 1.2 Gb/s: 600 : 200 : 400.
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let (one, two) = (plan.node(ROOT, NodeKind::Wfq, 2), plan.class(ROOT, 1));
    let (web, bulk) = (plan.class(one, 3), plan.class(one, 1));
    let dst = plan.limit("dst", mbps(1_200), 20_000);
    let mut world = World::with(&plan.program);
    for (class, flows) in [(web, 1), (bulk, 7), (two, 3)] {
        for _ in 0..flows {
            world.greedy(class, &[dst], 1_500);
        }
    }
    assert_rates(&mut world, &[(web, 600.0), (bulk, 200.0), (two, 400.0)], 1.5);
}

#[test]
fn flows_of_a_class_behind_different_limits_do_not_wait_for_each_other() {
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let class = plan.class(ROOT, 1);
    let (slow, fast) = (plan.limit("slow", mbps(100), 3_000), plan.limit("fast", mbps(4_000), 3_000));
    let mut world = World::with(&plan.program);
    let (free, held, quick) = (
        world.greedy(class, &[], 1_500),
        world.greedy(class, &[slow], 1_500),
        world.greedy(class, &[fast], 1_500),
    );
    world.run(20 * MS);
    let rate = |queue| {
        world.bytes_of(5 * MS, 20 * MS, |pull| pull.queue == queue) as f64 * 8_000.0 / (15 * MS) as f64
    };
    assert_near("slow", rate(held), 100.0, 2.0);
    assert_near("fast", rate(quick), 4_000.0, 2.0);
    assert_near("free", rate(free), 5_900.0, 2.0);
}

#[test]
fn flows_of_a_class_share_it_equally_across_limits_that_do_not_bind() {
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let class = plan.class(ROOT, 1);
    let limits = ["a", "b", "c"].map(|name| plan.limit(name, mbps(9_000), 30_000));
    let mut world = World::with(&plan.program);
    // Four flows in one bundle, one each in two others: each flow gets a sixth.
    let mut queues: Vec<_> = (0..4).map(|_| world.greedy(class, &[limits[0]], 1_500)).collect();
    queues.push(world.greedy(class, &[limits[1]], 1_500));
    queues.push(world.greedy(class, &[limits[2]], 1_500));
    world.run(20 * MS);
    for queue in queues {
        let bytes = world.bytes_of(5 * MS, 20 * MS, |pull| pull.queue == queue);
        assert_near("a flow", bytes as f64 * 8_000.0 / (15 * MS) as f64, 10_000.0 / 6.0, 2.0);
    }
}

#[test]
fn late_urgent_traffic_overtakes_what_is_parked() {
    let mut plan = Plan::new(LINK, NodeKind::Priority);
    let (high, low) = (plan.class(ROOT, 1), plan.class(ROOT, 1));
    let dst = plan.limit("dst", mbps(120), FRAME); // 100 us for a frame
    let mut world = World::with(&plan.program);
    let (urgent, bulk) = (world.open(high, &[dst]), world.open(low, &[dst]));
    let first = world.send(bulk, 1_500);
    let parked = world.send(bulk, 1_500);
    world.run(10_000);
    let late = world.send(urgent, 1_500);
    world.drain();
    let order: Vec<(u64, u64)> = world.sent.iter().map(|sent| (sent.pull.addr, sent.at)).collect();
    assert_eq!(order, [(first, 0), (late, 100_000), (parked, 200_000)]);
}

#[test]
fn a_parked_packet_returns_with_its_earlier_rank() {
    // FIFO over two classes. The first to arrive is held until 100 us; by then the others have queued up behind it.
    let mut plan = Plan::new(BitRate::mbps(120), NodeKind::Fifo);
    let (a, b) = (plan.class(ROOT, 1), plan.class(ROOT, 1));
    let dst = plan.limit("dst", mbps(120), FRAME);
    let mut world = World::with(&plan.program);
    let (held, free) = (world.open(a, &[dst]), world.open(b, &[]));
    let early = world.send(held, 1_500);
    let second = world.send(held, 1_500);
    let others: Vec<u64> = (0..4).map(|_| world.send(free, 1_500)).collect();
    world.drain();
    let order: Vec<u64> = world.sent.iter().map(|sent| sent.pull.addr).collect();
    // 0: early. 100 us: both the slot of the limit and the link are free again, and `second` is older than all others.
    assert_eq!(order, [early, second, others[0], others[1], others[2], others[3]]);
}

#[test]
fn a_segment_is_pulled_one_frame_at_a_time_and_others_go_in_between() {
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let (a, b) = (plan.class(ROOT, 1), plan.class(ROOT, 1));
    let mut world = World::with(&plan.program);
    let (large, small) = (world.open(a, &[]), world.open(b, &[]));
    let segmented =
        plimsoll_nic::Descriptor { len: 65_535, segment: 1_446, header: 54, ..Default::default() };
    world.post(large, segmented).expect("room");
    world.bell(large);
    for _ in 0..60 {
        world.send(small, 1_500);
    }
    world.drain();
    let pulls: Vec<_> = world.sent.iter().filter(|sent| sent.pull.queue == large).collect();
    assert_eq!(pulls.len(), 46, "65,481 bytes of payload in pieces of 1,446");
    let payload: u32 = pulls.iter().map(|sent| sent.pull.len - 54).sum();
    assert_eq!(payload, 65_535 - 54);
    let mut offset = 0;
    for (n, sent) in pulls.iter().enumerate() {
        assert_eq!((sent.pull.offset, sent.pull.frames, sent.pull.last), (offset, 1, n == 45));
        offset += sent.pull.len - 54;
    }
    let (from, until) = (pulls[0].at, pulls[45].at);
    let between = world.bytes_of(from, until, |pull| pull.queue == small);
    assert!((66_000..=69_000).contains(&between), "the other flow sent {between} bytes meanwhile");
    assert_eq!(world.completed.iter().filter(|(queue, _)| *queue == large).count(), 1);
}

#[test]
fn a_larger_pull_takes_several_frames_and_charges_each_header() {
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    plan.program.overhead = Bytes::new(24);
    let a = plan.class(ROOT, 1);
    let config = Config { pull: Bytes::new(16_000), ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    let queue = world.open(a, &[]);
    let segmented =
        plimsoll_nic::Descriptor { len: 30_054, segment: 1_446, header: 54, ..Default::default() };
    world.post(queue, segmented).expect("room");
    world.bell(queue);
    world.drain();
    // Ten frames of 1,446 + 54 + 24 fit into 16,000 B; 30,000 B of payload are 21 frames.
    let frames: Vec<u32> = world.sent.iter().map(|sent| sent.pull.frames).collect();
    assert_eq!(frames, [10, 10, 1]);
    let charged: u64 = world.sent.iter().map(|sent| sent.charge).sum();
    assert_eq!(charged, 30_000 + 21 * (54 + 24));
    assert_eq!(world.sent[1].at, 12_192, "ten frames of 1,524 B at 10 Gb/s");
    assert_eq!(world.nic.class_counters(a).bytes, 30_000 + 21 * 54);
}

/// Loom §4.2.3: a cap of a class's outstanding packets, whatever its number of flow queues.
#[test]
fn a_class_at_its_cap_is_refused_and_its_tenants_other_class_goes_on() {
    use plimsoll_nic::Refusal;
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let top = plan.node(ROOT, NodeKind::Wfq, 1);
    let tenant = plan.tenant(top, 6);
    let (capped, free) = (plan.class(top, 1), plan.class(top, 1));
    plan.program.nodes[capped.0 as usize].descriptors = Some(3);
    let config = Config { queues: 8, ring: 4, descriptors: 12, ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    let queues: Vec<_> = [capped, capped, free].map(|class| world.open(class, &[])).into();
    let frame = plimsoll_nic::Descriptor { len: 100, ..Default::default() };
    let post = |world: &mut World, queue: usize, times: usize| -> Vec<Result<(), Refusal>> {
        (0..times).map(|_| world.post(queues[queue], frame).map(|_| ())).collect()
    };
    assert_eq!(post(&mut world, 0, 2), [Ok(()); 2]);
    assert_eq!(post(&mut world, 1, 2), [Ok(()), Err(Refusal::ClassFull)]);
    assert_eq!(world.nic.tenant_room(tenant), 3, "what the class holds its tenant holds");
    assert_eq!(post(&mut world, 2, 4), [Ok(()), Ok(()), Ok(()), Err(Refusal::TenantFull)]);
    assert_eq!(world.nic.class_counters(capped).refused[Refusal::ClassFull as usize], 1);
    // A reload with a lower cap takes nothing away, and lets nothing in until less is held.
    plan.program.nodes[capped.0 as usize].descriptors = Some(2);
    let placed =
        |queue: QueueId| placement(&plan.program, if queue == queues[2] { free } else { capped }, &[]);
    world.nic.install(&plan.program, &mut { placed }, Nanos::ZERO);
    assert_eq!(post(&mut world, 0, 1), [Err(Refusal::ClassFull)]);
    for &queue in &queues {
        world.bell(queue);
    }
    world.drain();
    assert_eq!((world.completed.len(), world.nic.stats().held, world.nic.tenant_room(tenant)), (6, 0, 6));
    assert_eq!(post(&mut world, 0, 3), [Ok(()), Ok(()), Err(Refusal::ClassFull)]);
}

/// A class beside the tenants' subtrees, with a match that names a tenant.
#[test]
fn a_tenant_is_charged_for_what_its_packets_hold_in_a_class_elsewhere() {
    use plimsoll_nic::Refusal;
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let (own, elsewhere) = (plan.class(ROOT, 1), plan.class(ROOT, 1));
    let tenant = plan.tenant(own, 3);
    plan.program.nodes[elsewhere.0 as usize].sender = Some(tenant);
    let config = Config { queues: 8, ring: 4, descriptors: 12, ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    let (inside, outside) = (world.open(own, &[]), world.open(elsewhere, &[]));
    let frame = plimsoll_nic::Descriptor { len: 100, ..Default::default() };
    world.post(outside, frame).expect("room for three");
    world.post(inside, frame).expect("room for two more");
    assert_eq!(world.nic.tenant_room(tenant), 1);
    world.post(outside, frame).expect("room for one more");
    assert_eq!(world.post(outside, frame), Err(Refusal::TenantFull));
    assert_eq!(world.nic.tenant_counters(tenant).refused[Refusal::TenantFull as usize], 1);
    world.bell(outside);
    world.drain();
    assert_eq!((world.nic.tenant_room(tenant), world.nic.stats().held), (2, 1));
}

#[test]
fn only_the_one_at_its_cap_is_refused_and_the_reason_is_counted() {
    use plimsoll_nic::Refusal;
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let (a, b) = (plan.node(ROOT, NodeKind::Class(FlowOrder::Fifo), 1), plan.class(ROOT, 1));
    let (one, two) = (plan.tenant(a, 6), plan.tenant(b, 100));
    let config = Config { queues: 8, ring: 4, descriptors: 12, ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    let (a1, a2) = (world.open(a, &[]), world.open(a, &[]));
    let bs: Vec<_> = (0..3).map(|_| world.open(b, &[])).collect();
    let frame = plimsoll_nic::Descriptor { len: 100, ..Default::default() };
    let post = |world: &mut World, queue, times: usize| -> Vec<Result<(), Refusal>> {
        (0..times).map(|_| world.post(queue, frame).map(|_| ())).collect()
    };
    assert_eq!(post(&mut world, a1, 5), [Ok(()), Ok(()), Ok(()), Ok(()), Err(Refusal::FlowFull)]);
    assert_eq!(world.nic.tenant_room(one), 2);
    assert_eq!(post(&mut world, a2, 3), [Ok(()), Ok(()), Err(Refusal::TenantFull)]);
    assert_eq!((world.nic.tenant_room(one), world.nic.tenant_room(two)), (0, 6));
    assert_eq!(post(&mut world, bs[0], 4), [Ok(()); 4]);
    assert_eq!(post(&mut world, bs[1], 3), [Ok(()), Ok(()), Err(Refusal::HostFull)]);
    let refused = |counters: [u64; Refusal::COUNT]| {
        Refusal::ALL.into_iter().zip(counters).filter(|&(_, n)| n > 0).collect::<Vec<_>>()
    };
    assert_eq!(
        refused(world.nic.tenant_counters(one).refused),
        [(Refusal::FlowFull, 1), (Refusal::TenantFull, 1)]
    );
    assert_eq!(refused(world.nic.tenant_counters(two).refused), [(Refusal::HostFull, 1)]);
    assert_eq!(refused(world.nic.class_counters(b).refused), [(Refusal::HostFull, 1)]);
    for queue in [a1, a2, bs[0], bs[1]] {
        world.bell(queue);
    }
    world.drain();
    assert_eq!((world.completed.len(), world.nic.stats().held), (12, 0));
    assert_eq!((world.nic.tenant_room(one), world.nic.tenant_room(two)), (6, 12));
}

#[test]
fn a_limit_that_waits_for_its_next_slot_is_not_late() {
    // A greedy flow behind 1 Gb/s on an idle link leaves every 12 us exactly.
    let mut plan = Plan::new(LINK, NodeKind::Wfq);
    let class = plan.class(ROOT, 1);
    plan.max(class, mbps(1_000), FRAME);
    let mut world = World::with(&plan.program);
    world.greedy(class, &[], 1_500);
    world.run(MS);
    assert!(world.sent.iter().zip(0..).all(|(sent, n)| sent.at == n * 12_000));
}

#[test]
fn priority_and_minima_behind_a_limit_hold_for_small_packets_beside_large_ones() {
    for kind in [NodeKind::Priority, NodeKind::Wfq] {
        let mut plan = Plan::new(mbps(1_000), NodeKind::Wfq);
        let tenant = plan.node(ROOT, kind, 1);
        let (urgent, bulk) = (plan.class(tenant, 1), plan.class(tenant, 1));
        let other = plan.class(ROOT, 1);
        plan.min(tenant, mbps(190));
        plan.min(urgent, mbps(190));
        plan.max(tenant, mbps(200), 30_000);
        let mut world = World::with(&plan.program);
        world.greedy(urgent, &[], 200); // a slot each 8 us, while the other's frame takes 12 us
        world.greedy(bulk, &[], 1_500);
        world.greedy(other, &[], 1_500);
        world.run(40 * MS);
        let (found, rest) = (world.rate(urgent, 10 * MS, 40 * MS), world.rate(bulk, 10 * MS, 40 * MS));
        assert!(found >= 188.0, "{kind:?}: the urgent class gets {found:.1}, the bulk {rest:.1}");
    }
}
