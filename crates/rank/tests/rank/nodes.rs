//! Programs as nodes of a policy: the engine orders packets by them.
//!
//! Not here: what a program computes (`agreement`, `examples`).
//! Invariant: each engine gets the same packets at the same moments as the one beside it.

use proptest::prelude::*;

use crate::engine::{Arrival, Engine, arrivals};

/// A policy with classes `c0`, `c1` and so on below a node that is `order` of them; `class` says what each states besides.
fn policy(order: &str, classes: usize, class: impl Fn(usize) -> String) -> String {
    let last = classes - 1;
    let mut policy = format!("uplink: {{port: memory, rate: 10Gbps}}\npolicy:\n  root: {{{order}}}\n");
    for number in 0..last {
        policy += &format!("  c{number}: {{match: {{dscp: {number}}}{}}}\n", class(number));
    }
    let keys = class(last);
    policy + &format!("  c{last}: {{{}}}\n", keys.strip_prefix(", ").unwrap_or(&keys))
}

fn names(classes: usize) -> String {
    (0..classes).map(|class| format!("c{class}")).collect::<Vec<_>>().join(", ")
}

/// What leaves when, by the number of its arrival.
fn departures(policy: &str, program: &str, arrivals: &[Arrival], flows: usize) -> Vec<(u64, u64)> {
    let mut engine = Engine::with(policy, program);
    let (mut now, mut sent) = (0, Vec::new());
    for arrival in arrivals {
        let next = now + arrival.after;
        engine.run(now, next, |at, packet| sent.push((at, packet)));
        now = next;
        let queue = engine.queue_of_flow(arrival.class, arrival.len as usize % flows);
        engine.send(queue, arrival.len, arrival.micros, now);
    }
    engine.run(now, u64::MAX, |at, packet| sent.push((at, packet)));
    sent
}

proptest! {
    /// Several flows in each class, some classes behind limits, under a node of slack and under the program of ten words. Of packets with one
    /// deadline the engine's own order takes the first class's, and a PIFO the one that came first.
    #[test]
    fn least_slack_as_a_program_is_the_engines_own(
        classes in 1_usize..8,
        (flows, limited) in (1_usize..4, 0_usize..3),
        arrivals in arrivals(8),
    ) {
        let limit = |class: usize| if class < limited { ", max: 2Gbps, burst: 6KB" } else { "" };
        // Each with another deadline.
        let arrivals: Vec<_> = (0..).zip(arrivals).map(|(n, arrival)| {
            Arrival { class: arrival.class % classes, micros: arrival.micros * 300 + n, ..arrival }
        }).collect();
        let own = policy(&format!("lstf: [{}]", names(classes)), classes, |class| format!(", flows: lstf{}", limit(class)));
        let node = format!("program: {{module: lstf.rank, children: [{}]}}", names(classes));
        let programmed = policy(&node, classes, |class| limit(class).to_owned());
        let text = include_str!("../../../../examples/rank/lstf.rank");
        let mut moments: Vec<u64> = Vec::new();
        let mut now = 0;
        for arrival in &arrivals {
            now += arrival.after;
            moments.push(now + u64::from(arrival.micros) * 1_000);
        }
        moments.sort_unstable();
        prop_assume!(moments.windows(2).all(|pair| pair[0] != pair[1]));
        prop_assert_eq!(departures(&own, "", &arrivals, flows), departures(&programmed, text, &arrivals, flows));
    }

    /// Of equal ranks the packet that came first leaves first, whatever its class and flow.
    #[test]
    fn equal_ranks_leave_in_the_order_of_their_arrival(
        classes in 1_usize..5,
        flows in 1_usize..4,
        arrivals in arrivals(5),
    ) {
        let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { class: arrival.class % classes, ..arrival }).collect();
        let node = format!("program: {{module: one.rank, children: [{}]}}", names(classes));
        let left = departures(&policy(&node, classes, |_| String::new()), "enqueue { rank = 7 }", &arrivals, flows);
        let expected: Vec<u64> = (0..arrivals.len() as u64).collect();
        prop_assert_eq!(left.into_iter().map(|(_, packet)| packet).collect::<Vec<_>>(), expected);
    }

    /// Up to sixteen classes of one weight, each with one flow.
    #[test]
    fn equal_weights_as_a_program_are_the_engines_own(classes in 1_usize..=16, weight in 1_u64..9, arrivals in arrivals(16)) {
        let arrivals: Vec<_> = arrivals.into_iter().map(|arrival| Arrival { class: arrival.class % classes, ..arrival }).collect();
        let weights = (0..classes).map(|class| format!("c{class}: {weight}")).collect::<Vec<_>>().join(", ");
        let own = policy(&format!("wfq: {{{weights}}}"), classes, |_| ", flows: fifo".to_owned());
        let node = format!("program: {{module: wfq.rank, children: {{{weights}}}}}");
        let programmed = policy(&node, classes, |_| ", flows: fifo".to_owned());
        let text = include_str!("../../../../examples/rank/wfq.rank");
        prop_assert_eq!(departures(&own, "", &arrivals, 1), departures(&programmed, text, &arrivals, 1));
    }
}

/// What the flow with the least to send has goes first, whatever class it is in.
#[test]
fn short_flows_go_first_under_srpt() {
    let text = include_str!("../../../../examples/rank/srpt.rank");
    let policy = policy("program: {module: srpt.rank, children: [c0, c1]}", 2, |_| String::new());
    let mut engine = Engine::with(&policy, text);
    let long = engine.queue_of_flow(0, 0);
    let sent_long = engine.send_all(long, &[1_500; 20], 0);
    let (short, other) = (engine.queue_of_flow(0, 1), engine.queue_of_flow(1, 0));
    let sent_short = engine.send_all(short, &[1_500; 3], 0);
    let sent_other = engine.send_all(other, &[1_000], 0);
    let mut left = Vec::new();
    engine.run(0, u64::MAX, |_, packet| left.push(packet));
    let expected: Vec<u64> = sent_other.chain(sent_short).chain(sent_long).collect();
    assert_eq!(left, expected);
}

/// A program reads the weights and rates of the classes, also those that a doorbell changes.
#[test]
fn programs_read_weights_and_rates() {
    let text =
        "enqueue { rank = 1000 - class.weight + (class.rate < 5000000000) * 500 + node.weight * 2000 }";
    let with_max = |class: usize| if class == 2 { ", max: 4Gbps".to_owned() } else { String::new() };
    let policy = policy("program: {module: p.rank, children: {c0: 1, c1: 5, c2: 50}}", 3, with_max);
    let order = |engine: &mut Engine, now| {
        let queues = [0, 1, 2].map(|class| engine.queue_of_flow(class, 0));
        let first = queues.map(|queue| engine.send(queue, 100, 0, now))[0];
        let mut left = Vec::new();
        engine.run(now, u64::MAX, |_, packet| left.push(packet - first));
        left
    };
    let mut engine = Engine::with(&policy, text);
    assert_eq!(order(&mut engine, 0), [1, 0, 2], "c2 has a rate below 5 Gb/s");
    engine.set_weight("c0", 9, 1_000_000);
    assert_eq!(order(&mut engine, 1_000_000), [0, 1, 2]);
}

/// Packets that wait keep their ranks over a reload, and the program its state, unless the program is another.
#[test]
fn a_reload_keeps_ranks_and_state() {
    let text = "state n = 1000\nenqueue { n = n - 1; rank = n }";
    let of =
        |rate: &str| policy("program: {module: p.rank, children: [c0]}", 1, |_| format!(", max: {rate}"));
    let mut engine = Engine::with(&of("9Gbps"), text);
    let queues = [0, 1, 2, 3].map(|flow| engine.queue_of_flow(0, flow));
    queues[..2].iter().for_each(|&queue| _ = engine.send(queue, 1_000, 0, 0));
    engine.reload(&of("8Gbps"), text, 0);
    queues[2..].iter().for_each(|&queue| _ = engine.send(queue, 1_000, 0, 0));
    let all = |engine: &mut Engine| {
        let mut left = Vec::new();
        engine.run(1, u64::MAX, |_, packet| left.push(packet));
        left
    };
    assert_eq!(all(&mut engine), [3, 2, 1, 0], "the last to come has the least rank");
    queues.iter().for_each(|&queue| _ = engine.send(queue, 1_000, 0, 1_000_000));
    engine.reload(&of("8Gbps"), "enqueue { rank = now }", 1_000_000);
    assert_eq!(all(&mut engine), [4, 5, 6, 7], "those that wait are first under another program");
}

/// Another program does not run for packets that wait: they leave first, and it hears neither of their arrival nor of their departure.
#[test]
fn another_program_hears_nothing_of_packets_that_wait() {
    let of = |text: &str| {
        policy(&format!("program: {{module: {text}.rank, children: [c0]}}"), 1, |_| String::new())
    };
    // Least first is the last to come, of those that the program knows.
    let next =
        "state known = 100\nenqueue { known = known - 1; rank = known }\ndequeue { known = known + 1 }";
    let mut engine = Engine::with(&of("a"), "enqueue { rank = 50 - packet.len }");
    let queues = [0, 1, 2, 3].map(|flow| engine.queue_of_flow(0, flow));
    engine.send_all(queues[0], &[10, 10, 10], 0);
    engine.send_all(queues[1], &[20, 20], 0);
    engine.reload(&of("b"), next, 0);
    engine.send_all(queues[1], &[10], 0);
    engine.send_all(queues[2], &[10], 0);
    // Its state stays, and so does what it does not know.
    engine.reload(&of("b"), next, 0);
    engine.send_all(queues[3], &[10], 0);
    let all = |engine: &mut Engine, now| {
        let mut left = Vec::new();
        engine.run(now, u64::MAX, |_, packet| left.push(packet));
        left
    };
    assert_eq!(all(&mut engine, 0), [0, 1, 2, 3, 4, 7, 6, 5]);
    // All that it knew of has left: it counts from 100 again, and no further.
    engine.reload(&of("b"), &format!("{next}\n"), 1_000_000);
    let sent = [0, 1].map(|flow| engine.send(queues[flow], 10, 0, 1_000_000));
    assert_eq!(all(&mut engine, 1_000_000), [sent[1], sent[0]]);
}

/// A class that orders its flows itself is ranked by the packet that it would send.
#[test]
fn a_class_may_order_its_flows_itself_below_a_program() {
    let text = include_str!("../../../../examples/rank/lstf.rank");
    let policy = policy("program: {module: lstf.rank, children: [c0, c1]}", 2, |class| {
        if class == 0 { ", flows: fifo".to_owned() } else { ", slack: 1ms".to_owned() }
    });
    let mut engine = Engine::with(&policy, text);
    let flows = [0, 1].map(|flow| engine.queue_of_flow(0, flow));
    let sent: Vec<u64> =
        [(0, 500), (1, 900), (0, 500)].map(|(flow, slack)| engine.send(flows[flow], 1_500, slack, 0)).into();
    let ranked = engine.queue_of_flow(1, 0);
    let middle = engine.send(ranked, 1_500, 700, 0);
    let last = engine.send(ranked, 1_500, 0, 0);
    let mut left = Vec::new();
    engine.run(0, u64::MAX, |_, packet| left.push(packet));
    assert_eq!(left, [sent[0], middle, sent[1], sent[2], last]);
}

/// Flows that a reload moves to another child leave the first one for the program, too.
#[test]
fn flows_that_move_at_a_reload_leave_their_class_for_the_program() {
    let text = "state waiting[class] = 0\nenqueue { waiting[class] = waiting[class] + 1; rank = waiting[class] }\n\
                dequeue { waiting[class] = waiting[class] - 1 }";
    let both = policy("program: {module: p.rank, children: [c0, c1]}", 2, |_| String::new());
    let mut engine = Engine::with(&both, text);
    let (moved, other) = (engine.queue_of_flow(0, 0), engine.queue_of_flow(1, 0));
    engine.send_all(moved, &[1_000; 5], 0);
    engine.reload_with(&both, text, &[(moved, "c1")], 0);
    let all = |engine: &mut Engine, now| {
        let mut left = Vec::new();
        engine.run(now, u64::MAX, |_, packet| left.push(packet));
        left
    };
    assert_eq!(all(&mut engine, 0), [0, 1, 2, 3, 4]);
    engine.reload_with(&both, text, &[(moved, "c0")], 1_000_000);
    // Nothing waits any more in either class, so that both have the same ranks.
    engine.send_all(other, &[1_000; 2], 1_000_000);
    engine.send_all(moved, &[1_000; 2], 1_000_000);
    assert_eq!(all(&mut engine, 1_000_000), [5, 7, 6, 8]);
}
