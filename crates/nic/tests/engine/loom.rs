//! Loom's own cases: Figures 6, 8 and 11, Tables 1 and 2, in-line reconfiguration.

use plimsoll_nic::{DoorbellQueue, QueueId};
use plimsoll_policy::{LimitId, NodeId, NodeKind};
use plimsoll_units::{BitRate, Nanos};

use crate::kit::{FRAME, MS, Plan, ROOT, World, assert_near, burst_of, mbps};

/// Figure 11's policy: tenants share equally; T1's job J0 sends to Dst-1, J1 and J2 to Dst-2, which is limited.
struct Figure11 {
    world: World,
    jobs: [NodeId; 3],
    tenants: Vec<NodeId>,
}

fn figure_11(link: BitRate, dst2: BitRate) -> Figure11 {
    let mut plan = Plan::new(link, NodeKind::Wfq);
    let t1 = plan.node(ROOT, NodeKind::Wfq, 1);
    let jobs = [(); 3].map(|()| plan.class(t1, 1));
    let tenants = (2..=4).map(|_| plan.class(ROOT, 1)).collect();
    let limit = plan.limit("dst2", dst2, burst_of(dst2, 1));
    let mut world = World::with(&plan.program);
    let (one, two): ([LimitId; 0], [LimitId; 1]) = ([], [limit]);
    for (job, limits, flows) in [(jobs[0], &one[..], 4), (jobs[1], &two[..], 1), (jobs[2], &two[..], 10)] {
        for _ in 0..flows {
            world.greedy(job, limits, 1_500);
        }
    }
    Figure11 { world, jobs, tenants }
}

impl Figure11 {
    fn start_tenant(&mut self, index: usize) {
        for _ in 0..8 {
            self.world.greedy(self.tenants[index], &[], 1_500);
        }
    }

    fn assert_shares(&mut self, gbps: [f64; 3]) {
        let (from, until) = (self.world.now + 10 * MS, self.world.now + 40 * MS);
        self.world.run(until);
        for (job, expected) in self.jobs.into_iter().zip(gbps) {
            assert_near(&format!("job {job:?}"), self.world.rate(job, from, until), expected * 1_000.0, 3.0);
        }
    }
}

#[test]
fn figure_11_shares_at_10_gbps() {
    let mut run = figure_11(BitRate::gbps(10), mbps(2_500));
    run.assert_shares([7.5, 1.25, 1.25]);
    run.start_tenant(0);
    run.assert_shares([2.5, 1.25, 1.25]);
    run.start_tenant(1);
    run.assert_shares([1.111, 1.111, 1.111]);
    run.start_tenant(2);
    run.assert_shares([0.833, 0.833, 0.833]);
}

#[test]
fn figure_11_shares_at_40_gbps() {
    let mut run = figure_11(BitRate::gbps(40), BitRate::gbps(10));
    run.assert_shares([30.0, 5.0, 5.0]);
    run.start_tenant(0);
    run.assert_shares([10.0, 5.0, 5.0]);
    run.start_tenant(1);
    run.assert_shares([4.444, 4.444, 4.444]);
}

/// The departures when shaping is done at each node (Loom, Figure 6): Q1 keeps one order for all of its packets, and a
/// packet's moment only says when a pointer to Q1 enters the root. Each packet is (rank, moment, name).
fn per_node_shaping(packets: &[(u64, u64, &'static str)]) -> Vec<(u64, &'static str)> {
    let mut queue: Vec<(u64, &str)> = packets.iter().map(|&(rank, _, name)| (rank, name)).collect();
    queue.sort_unstable();
    let mut pointers: Vec<u64> = packets.iter().map(|&(_, moment, _)| moment).collect();
    pointers.sort_unstable();
    pointers.into_iter().zip(queue).map(|(moment, (_, name))| (moment, name)).collect()
}

#[test]
fn g8_the_global_queue_holds_the_right_packet_and_the_per_node_one_does_not() {
    // D1 is free; D2 arrives later, ranks better, and is limited to T = 100 us.
    let wrong = per_node_shaping(&[(2, 0, "D1"), (1, 100_000, "D2")]);
    assert_eq!(wrong, [(0, "D2"), (100_000, "D1")], "per-node shaping limits the wrong packet");

    let mut plan = Plan::new(mbps(10_000), NodeKind::Priority);
    let q1 = plan.node(ROOT, NodeKind::Priority, 1);
    let (better, worse) = (plan.class(q1, 1), plan.class(q1, 1));
    let dst2 = plan.limit("d2", mbps(120), FRAME);
    let mut world = World::with(&plan.program);
    let (d1, d2) = (world.open(worse, &[]), world.open(better, &[dst2]));
    world.send(d2, 1_500); // uses the limit's slot, so that the next may leave after 100 us only
    world.run(1_200);
    world.sent.clear();
    world.send(d1, 1_500);
    world.send(d2, 1_500);
    world.drain();
    let order: Vec<(u64, QueueId)> = world.sent.iter().map(|sent| (sent.at, sent.pull.queue)).collect();
    assert_eq!(order, [(1_200, d1), (100_000, d2)]);
    assert_eq!(world.sent[1].pull.limited_by, Some(dst2));
}

#[test]
fn g7_writes_per_second_follow_the_formula() {
    for gbps in [10_u64, 40, 100] {
        for batch_bytes in [64_000_u64, 256_000] {
            let link = gbps * 1_000_000_000;
            let (packets, mut doorbells) = (link / 12_000, DoorbellQueue::with_capacity(256));
            let mut in_batch = 0;
            for n in 0..packets {
                doorbells.bell(QueueId(u32::try_from(n % 60_000).expect("small")));
                in_batch += 1_500;
                if in_batch + 1_500 > batch_bytes {
                    doorbells.flush(|_| {});
                    in_batch = 0;
                }
            }
            let writes = doorbells.writes();
            let near = |found: u64, formula: u64| found.abs_diff(formula) * 100 <= formula * 2;
            assert_eq!(writes.per_queue, packets);
            assert!(near(writes.batches, link / (8 * batch_bytes)), "{gbps}G {batch_bytes}: {writes:?}");
            let entries = batch_bytes / 1_500;
            let lines = writes.batches * entries.div_ceil(32);
            assert!(near(writes.lines, lines), "{gbps}G {batch_bytes}: {writes:?}");
            assert_eq!(writes.senic_bytes, packets * 16);
        }
    }
}

#[test]
fn a_new_weight_comes_in_line_and_holds_from_the_next_packet_on() {
    for kind in [NodeKind::Wfq, NodeKind::Drr] {
        let mut plan = Plan::new(mbps(10_000), kind);
        let (a, b) = (plan.class(ROOT, 1), plan.class(ROOT, 1));
        let mut world = World::with(&plan.program);
        let (qa, _) = (world.greedy(a, &[], 1_500), world.greedy(b, &[], 1_500));
        world.run(MS);
        let before = world.now;
        let mut doorbells = DoorbellQueue::with_capacity(64);
        doorbells.bell(qa);
        doorbells.set_weight(a, 3);
        let nic = &mut world.nic;
        doorbells.flush(|words| nic.ring(words, Nanos::new(before)));
        assert_eq!((doorbells.writes().batches, doorbells.writes().lines), (1, 1), "no write of its own");
        // 3:1 within the first few packets already.
        world.run(before + 48_000);
        let (to_a, to_b) = (world.bytes(a, before, world.now), world.bytes(b, before, world.now));
        assert!(to_a.abs_diff(3 * to_b) <= 6 * FRAME, "{kind:?}: {to_a} against {to_b}");
        world.run(before + 10 * MS);
        let share = world.bytes(a, before, world.now) as f64 / world.bytes(b, before, world.now) as f64;
        assert_near("a to b", share, 3.0, 1.0);
    }
}

#[test]
fn a_new_weight_also_holds_behind_limits_that_bundles_meet_later() {
    let mut plan = Plan::new(mbps(10_000), NodeKind::Wfq);
    let (a, b) = (plan.class(ROOT, 1), plan.class(ROOT, 1));
    let dst = plan.limit("dst", mbps(1_000), 3_000);
    let mut world = World::with(&plan.program);
    world.notes(|doorbells| doorbells.set_weight(a, 3));
    world.greedy(a, &[dst], 1_500);
    world.greedy(b, &[dst], 1_500);
    world.run(20 * MS);
    let share = world.bytes(a, MS, world.now) as f64 / world.bytes(b, MS, world.now) as f64;
    assert_near("a to b", share, 3.0, 2.0);
}

#[test]
fn a_new_rate_comes_in_line_and_holds_from_the_next_packet_on() {
    let mut plan = Plan::new(mbps(10_000), NodeKind::Wfq);
    let a = plan.class(ROOT, 1);
    let dst = plan.limit("dst", mbps(12), FRAME); // a millisecond for a frame
    let mut world = World::with(&plan.program);
    let queue = world.greedy(a, &[dst], 1_500);
    world.run(500_000);
    assert_eq!(world.sent.len(), 1);
    let mut doorbells = DoorbellQueue::with_capacity(64);
    doorbells.bell(queue);
    doorbells.set_rate(dst, mbps(1_200));
    let (nic, now) = (&mut world.nic, world.now);
    doorbells.flush(|words| nic.ring(words, Nanos::new(now)));
    assert_eq!((doorbells.writes().batches, doorbells.writes().lines), (1, 1), "no write of its own");
    world.run(600_000);
    // Half of the slot was left, a hundredth of it at the new rate: 5 us; then one every 10 us.
    let at: Vec<u64> = world.sent.iter().map(|sent| sent.at).collect();
    assert_eq!(
        at[1..],
        [505_000, 515_000, 525_000, 535_000, 545_000, 555_000, 565_000, 575_000, 585_000, 595_000]
    );
}
