//! Classes with `flows: fq`: turns, flows that have just begun, marks and drops.

use plimsoll_nic::{Config, Descriptor, QueueId, Verdict};
use plimsoll_policy::{Codel, FlowOrder, NodeId, NodeKind};
use plimsoll_queues::CodelTimes;
use plimsoll_wire::Ecn;
use proptest::prelude::*;

use crate::kit::{MS, Plan, ROOT, World, assert_near, mbps};

const TIMES: CodelTimes = CodelTimes::DEFAULT;

/// One class with short queues that has the link of 12 Mb/s to itself: a frame of 1,500 B takes a millisecond.
fn short() -> (World, NodeId) {
    let order = FlowOrder::Fq(Codel { target: TIMES.target, interval: TIMES.interval });
    let mut plan = Plan::new(mbps(12), NodeKind::Wfq);
    let class = plan.node(ROOT, NodeKind::Class(order), 1);
    plan.program.default_class = class;
    let config = Config { queues: 64, ring: 1_024, ..Config::default() };
    (World::new(&plan.program, &config), class)
}

/// Posts `count` frames of 1,500 B at the present moment.
fn flood(world: &mut World, queue: QueueId, count: usize, ecn: Ecn) {
    for _ in 0..count {
        world
            .post(queue, Descriptor { len: 1_500, ecn, ..Descriptor::default() })
            .expect("the ring has room");
    }
    world.bell(queue);
}

fn signalled_at(world: &World, verdict: Verdict) -> Vec<u64> {
    let pulls = world.sent.iter().chain(&world.dropped);
    pulls.filter(|sent| sent.pull.verdict == verdict).map(|sent| sent.at / MS).collect()
}

#[test]
fn drops_follow_the_control_law_and_take_no_time() {
    let (mut world, class) = short();
    let queue = world.open(class, &[]);
    flood(&mut world, queue, 400, Ecn::NotEct);
    world.drain();
    // Packet n is asked about at n ms. From 5 ms on they wait for too long, so the first is dropped at 105 ms, the others
    // 100, 70.7, 57.7, 50 ms later.
    assert_eq!(signalled_at(&world, Verdict::Drop), [105, 205, 276, 334, 384]);
    assert_eq!((world.sent.len(), world.completed.len()), (395, 400));
    assert_eq!(world.sent.last().expect("some left").at, 394 * MS, "the link was never idle");
    let counters = world.nic.class_counters(class);
    assert_eq!((counters.dropped, counters.marked, counters.packets), (5, 0, 395));
}

#[test]
fn senders_that_understand_marks_lose_nothing() {
    let (mut world, class) = short();
    let queue = world.open(class, &[]);
    flood(&mut world, queue, 400, Ecn::Ect0);
    world.drain();
    assert_eq!(signalled_at(&world, Verdict::Mark), [105, 205, 276, 334, 384]);
    assert_eq!((world.sent.len(), world.dropped.len()), (400, 0));
    assert_eq!(world.nic.class_counters(class).marked, 5);
}

#[test]
fn scalable_senders_are_marked_from_a_millisecond_on() {
    let (mut world, class) = short();
    let queue = world.open(class, &[]);
    flood(&mut world, queue, 10, Ecn::Ect1);
    world.drain();
    // The last two have less than a frame and a bit behind them.
    assert_eq!(signalled_at(&world, Verdict::Mark), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn only_a_class_with_short_queues_drops() {
    let mut plan = Plan::new(mbps(12), NodeKind::Wfq);
    let class = plan.class(ROOT, 1);
    let mut world = World::new(&plan.program, &Config { ring: 1_024, ..Config::default() });
    let queue = world.open(class, &[]);
    flood(&mut world, queue, 400, Ecn::NotEct);
    world.drain();
    assert_eq!((world.sent.len(), world.dropped.len()), (400, 0));
}

#[test]
fn a_segment_that_is_cut_loses_a_frame_and_not_the_whole() {
    let (mut world, class) = short();
    let queue = world.open(class, &[]);
    for _ in 0..10 {
        let segment =
            Descriptor { len: 54 + 40 * 1_446, segment: 1_446, header: 54, ..Descriptor::default() };
        world.post(queue, segment).expect("the ring has room");
    }
    world.bell(queue);
    world.drain();
    assert_eq!(signalled_at(&world, Verdict::Drop), [105, 205, 276, 334, 384]);
    assert_eq!((world.sent.len(), world.completed.len()), (395, 10));
}

/// Twelve flows come back 8 ms after each of their packets, as new ones, and keep the link busy by themselves.
#[test]
fn flows_that_come_back_again_and_again_do_not_starve_one_that_has_had_its_turn() {
    let (mut world, class) = short();
    let flows: Vec<QueueId> = (0..12).map(|_| world.open(class, &[])).collect();
    let mut posted = [0; 12];
    let greedy = world.open(class, &[]);
    for ms in 0..400 {
        world.run(ms * MS);
        for (queue, posted) in flows.iter().zip(&mut posted) {
            let left: Vec<u64> =
                world.sent.iter().filter(|sent| sent.pull.queue == *queue).map(|sent| sent.at).collect();
            let back = left.last().is_none_or(|last| ms * MS >= last + 8 * MS);
            if left.len() == *posted && back {
                world.send(*queue, 1_500);
                *posted += 1;
            }
        }
        if ms == 100 {
            flood(&mut world, greedy, 4, Ecn::NotEct);
        }
    }
    let left: Vec<u64> =
        world.sent.iter().filter(|sent| sent.pull.queue == greedy).map(|sent| sent.at / MS).collect();
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(left.is_sorted_by(|one, next| next - one <= 20), "two rounds of about six turns each: {left:?}");
    assert!(world.sent.len() >= 390, "the link is busy: {}", world.sent.len());
}

#[test]
fn a_flow_that_sends_little_goes_before_those_that_send_much() {
    let (mut world, class) = short();
    for _ in 0..16 {
        world.greedy(class, &[], 1_500);
    }
    let probe = world.open(class, &[]);
    for n in 1..=50 {
        world.run(n * 20 * MS + 300_000);
        world.send(probe, 100);
    }
    world.run(1_100 * MS);
    let waits: Vec<u64> = world
        .sent
        .iter()
        .filter(|sent| sent.pull.queue == probe)
        .map(|sent| sent.at - sent.pull.arrived.as_u64())
        .collect();
    assert_eq!(waits.len(), 50);
    // At most the frame that is on the wire; in turns each would wait for 16 of them.
    assert!(waits.iter().all(|&wait| wait <= MS), "{waits:?}");
}

/// A flow that always becomes empty is new each time, and gets no more than its share for all that.
#[test]
fn becoming_empty_gains_nothing() {
    let (mut world, class) = short();
    let greedy = [world.greedy(class, &[], 1_500), world.greedy(class, &[], 1_500)];
    let sly = world.open(class, &[]);
    world.send(sly, 1_500);
    let mut done = 0;
    while world.now < 3_000 * MS {
        let due = world.nic.poll_timeout().expect("greedy flows always wait").as_u64();
        world.now = world.now.max(due);
        world.poll();
        let left = world.completed.iter().filter(|(queue, _)| *queue == sly).count();
        if left > done {
            done = left;
            world.send(sly, 1_500);
        }
    }
    let bytes = |queue| world.bytes_of(0, world.now, |pull| pull.queue == queue) as f64;
    assert_near("the sly flow beside a greedy one", bytes(sly) / bytes(greedy[0]), 1.0, 1.0);
    assert_near("two greedy flows", bytes(greedy[1]) / bytes(greedy[0]), 1.0, 1.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Greedy flows have equal shares in bytes, whatever their frames' lengths, as far as nothing is dropped.
    #[test]
    fn greedy_flows_share_alike(lens in proptest::collection::vec(200_u32..1_500, 2..12)) {
        let (mut world, class) = short();
        let queues: Vec<QueueId> = lens.iter().map(|&len| world.greedy(class, &[], len)).collect();
        world.run(4_000 * MS);
        let bytes: Vec<u64> = queues.iter().map(|&queue| world.bytes_of(0, u64::MAX, |pull| pull.queue == queue)).collect();
        let (least, most) = (bytes.iter().min().expect("two at least"), bytes.iter().max().expect("two at least"));
        prop_assert!(most - least <= 2 * 1_514, "{bytes:?}");
    }

    /// A flow never waits for longer than a turn of each other one and a frame, whenever it comes and goes.
    #[test]
    fn no_flow_starves(gaps in proptest::collection::vec((0_usize..8, 0_u64..6 * MS), 1..400)) {
        let (mut world, class) = short();
        let queues: Vec<QueueId> = (0..8).map(|_| world.open(class, &[])).collect();
        let patient = world.greedy(class, &[], 1_500);
        for (flow, gap) in gaps {
            world.run(world.now + gap);
            flood(&mut world, queues[flow], 1, Ecn::NotEct);
        }
        let until = world.now;
        let mut last = 0;
        for sent in world.sent.iter().filter(|sent| sent.pull.queue == patient && sent.at < until) {
            prop_assert!(sent.at - last <= 2 * 9 * MS, "{} ns without a turn", sent.at - last);
            last = sent.at;
        }
    }
}
