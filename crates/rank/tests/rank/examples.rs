//! The programs in `examples/rank` beside the engine's own orders, packet for packet.
//!
//! Why: what the language can say is shown best by what the engine does already.
//! Not here: the engine's promises (`plimsoll-nic`).
//! Invariant: a PIFO with the program and the engine hold the same packets whenever either is asked for the next one.

use std::sync::LazyLock;

use plimsoll_nic::QueueId;
use plimsoll_rank::{Field, Packet};
use proptest::prelude::*;

use crate::engine::{Arrival, Engine, arrivals};
use crate::kit::Pifo;
use crate::node::Code;

static WFQ: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/wfq.rank")));
static LSTF: LazyLock<Code> =
    LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/lstf.rank")));
static SRPT: LazyLock<Code> =
    LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/srpt.rank")));
static TOKEN_BUCKET: LazyLock<Code> =
    LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/token_bucket.rank")));

/// Plays `arrivals` to the engine and to the PIFO, and asks the PIFO for a packet whenever one leaves the engine. Returns pairs of
/// the engine's packet and the PIFO's, by the number of their arrivals.
fn beside(
    engine: &mut Engine,
    pifo: &mut Pifo<'_>,
    arrivals: &[Arrival],
    mut send: impl FnMut(&mut Engine, &Arrival, u64) -> (u64, Packet),
) -> Vec<(u64, u64)> {
    let mut order = Vec::new();
    let mut now = 1_000_000;
    for arrival in arrivals {
        let next = now + arrival.after;
        engine.run(now, next, |at, sent| order.push((sent, pifo.pop(at).expect("as many packets").0)));
        now = next;
        let (number, packet) = send(engine, arrival, now);
        assert_eq!(pifo.push(packet.with(Field::Now, now)), number);
    }
    engine.run(now, u64::MAX >> 1, |at, sent| order.push((sent, pifo.pop(at).expect("as many packets").0)));
    assert_eq!((order.len(), pifo.pop(now)), (arrivals.len(), None));
    order
}

/// A policy with classes `c0`, `c1` and so on below a node of kind `kind`, which lists each as `listed` says.
fn policy_of(kind: &str, classes: usize, listed: impl Fn(usize) -> String) -> String {
    let children: Vec<String> = (0..classes).map(listed).collect();
    let (open, close) = if children[0].contains(':') { ('{', '}') } else { ('[', ']') };
    let mut policy = format!(
        "uplink: {{port: memory, rate: 10Gbps}}\npolicy:\n  root: {{{kind}: {open}{}{close}}}\n",
        children.join(", ")
    );
    let last = classes - 1; // takes what no other matches
    (0..last).for_each(|class| policy += &format!("  c{class}: {{flows: fifo, match: {{dscp: {class}}}}}\n"));
    policy + &format!("  c{last}: {{flows: fifo}}\n")
}

/// What leaves under `wfq` with these weights, engine and program.
fn wfq(weights: &[u64], arrivals: &[Arrival]) -> Vec<(u64, u64)> {
    let policy = policy_of("wfq", weights.len(), |class| format!("c{class}: {}", weights[class]));
    let (mut engine, mut pifo) = (Engine::new(&policy), Pifo::new(&WFQ));
    beside(&mut engine, &mut pifo, arrivals, |engine, arrival, now| {
        let class = arrival.class % weights.len();
        let queue = engine.queue_of(class);
        let number = engine.send(queue, arrival.len, 0, now);
        let packet = Packet::default()
            .with(Field::Len, arrival.len.into())
            .with(Field::Number, class as u64)
            .with(Field::Weight, weights[class])
            .with(Field::Total, weights.iter().sum());
        (number, packet)
    })
}

fn is_same(order: &[(u64, u64)]) -> bool {
    order.iter().all(|(engine, pifo)| engine == pifo)
}

/// Bytes that any of `classes` classes has sent more, or fewer, under the engine than in the PIFO at any time.
fn most_ahead(arrivals: &[Arrival], classes: usize, order: &[(u64, u64)]) -> u64 {
    let mut ahead = vec![0_i64; classes];
    let mut most = 0;
    for &(engine, pifo) in order {
        for (number, sign) in [(engine, 1), (pifo, -1)] {
            let Arrival { class, len, .. } = arrivals[number as usize];
            ahead[class % classes] += sign * i64::from(len);
        }
        most = ahead.iter().fold(most, |most, ahead| most.max(ahead.unsigned_abs()));
    }
    most
}

/// A packet that leaves the engine under `lstf`, and the one that leaves the PIFO, for packets with slack of their own.
fn lstf(
    policy: &str,
    arrivals: &[Arrival],
    mut place: impl FnMut(&mut Engine, &Arrival) -> (QueueId, u32),
) -> Vec<(u64, u64)> {
    let (mut engine, mut pifo) = (Engine::new(policy), Pifo::new(&LSTF));
    beside(&mut engine, &mut pifo, arrivals, |engine, arrival, now| {
        let (queue, micros) = place(engine, arrival);
        let number = engine.send(queue, arrival.len, micros, now);
        (number, Packet::default().with(Field::Slack, u64::from(micros) * 1_000))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// `wfq.rank` is the engine's `wfq` for classes of one weight.
    #[test]
    fn wfq_of_one_weight(classes in 1_usize..=16, weight in 1_u64..9, arrivals in arrivals(16)) {
        let order = wfq(&vec![weight; classes], &arrivals);
        prop_assert!(is_same(&order), "{order:?}");
    }

    /// The engine's `wfq` is WF²Q+, which passes over packets whose time to start has not come. No rank that is fixed on arrival
    /// can say that, so for different weights a class may be ahead by a packet of each other class.
    #[test]
    fn wfq_of_different_weights(weights in prop::collection::vec(1_u64..100, 1..=16), arrivals in arrivals(16)) {
        let order = wfq(&weights, &arrivals);
        let most = most_ahead(&arrivals, weights.len(), &order);
        prop_assert!(most <= weights.len() as u64 * 1_500, "{most} B ahead");
    }

    /// `lstf.rank` is the engine's `flows: lstf` where each packet is a flow of its own.
    #[test]
    fn lstf_of_packets(arrivals in arrivals(1)) {
        let policy = "{uplink: {port: memory, rate: 10Gbps}, policy: {root: {wfq: [c0]}, c0: {flows: lstf}}}";
        let order = lstf(policy, &arrivals, |engine, arrival| (engine.open("c0"), arrival.micros));
        prop_assert!(is_same(&order), "{order:?}");
    }

    /// `lstf.rank` is the engine's `lstf` above classes with one slack each, but that the engine sends the class with the lower
    /// number first, not the earlier packet, where two have waited equally long. So the order of deadlines is the same.
    #[test]
    fn lstf_of_classes(slacks in prop::collection::vec(1_u32..60, 1..=16), arrivals in arrivals(16)) {
        let mut moments = Vec::new();
        let mut now = 0;
        let order = lstf(&policy_of("lstf", slacks.len(), |class| format!("c{class}")), &arrivals, |engine, arrival| {
            let class = arrival.class % slacks.len();
            now += arrival.after;
            moments.push(now + u64::from(slacks[class]) * 1_000);
            (engine.queue_of(class), slacks[class])
        });
        let deadlines: Vec<_> = order.iter().map(|&(engine, pifo)| (moments[engine as usize], moments[pifo as usize])).collect();
        prop_assert!(is_same(&deadlines), "{deadlines:?}");
    }

    /// `srpt.rank` sends the packet with the least bytes left, of equals the earliest, whenever one may leave.
    #[test]
    fn srpt_of_packets(steps in prop::collection::vec(prop::option::of(0_u64..20), 1..200)) {
        let (mut pifo, mut waiting) = (Pifo::new(&SRPT), Vec::new());
        for remaining in steps {
            if let Some(remaining) = remaining {
                let number = pifo.push(Packet::default().with(Field::Remaining, remaining));
                waiting.push((remaining, number));
                continue;
            }
            let least = waiting.iter().copied().min();
            waiting.retain(|&packet| Some(packet) != least);
            prop_assert_eq!(pifo.pop(0), least.map(|(remaining, number)| (number, remaining)));
        }
    }

    /// `token_bucket.rank` is the nanosecond at which the engine's `max` with a `burst` lets each packet leave, as long as the
    /// link itself does not hold packets up.
    #[test]
    fn token_bucket_of_a_class(
        rate in 10_000_000_u64..3_000_000_000,
        burst in 1_518_u64..20_000,
        arrivals in arrivals(1),
    ) {
        let policy = format!(
            "{{uplink: {{port: memory, rate: 100Gbps}}, \
             policy: {{root: {{wfq: [c0]}}, c0: {{flows: fifo, max: {rate}bps, burst: {burst}B}}}}}}"
        );
        let (mut engine, mut pifo) = (Engine::new(&policy), Pifo::new(&TOKEN_BUCKET));
        let mut left = Vec::new();
        let mut now = 1_000_000;
        for arrival in &arrivals {
            let next = now + arrival.after + LINK_TIME;
            engine.run(now, next, |at, number| left.push((number, at)));
            now = next;
            let queue = engine.queue_of(0);
            engine.send(queue, arrival.len, 0, now);
            pifo.push(
                Packet::default()
                    .with(Field::Now, now)
                    .with(Field::Len, arrival.len.into())
                    .with(Field::Rate, rate)
                    .with(Field::Burst, burst),
            );
        }
        engine.run(now, u64::MAX >> 1, |at, number| left.push((number, at)));
        let ranks: Vec<_> = core::iter::from_fn(|| pifo.pop(0)).collect();
        prop_assert_eq!(left, ranks);
    }
}

/// More nanoseconds than the longest packet takes on a link of 100 Gb/s.
const LINK_TIME: u64 = 122;

/// The differences between `wfq.rank` and the engine that docs/rank.md states, for one class of great weight among others of
/// weight 1, all of which have packets throughout.
#[test]
fn wfq_of_a_great_weight() {
    for (weight, classes, packets) in [(8, 2, 0), (100, 2, 0), (8, 16, 5), (100, 16, 13)] {
        let weights: Vec<u64> = (0..classes).map(|class| if class == 0 { weight } else { 1 }).collect();
        let arrival = |number| Arrival { after: 0, class: number % classes, len: 1_500, micros: 0 };
        let arrivals: Vec<Arrival> = (0..classes * 200).map(arrival).collect();
        let order = wfq(&weights, &arrivals);
        assert_eq!(most_ahead(&arrivals, classes, &order), packets * 1_500, "{weight}, {classes}");
    }
}

#[test]
fn examples_have_ten_lines_beside_comments() {
    for code in [&WFQ, &LSTF, &SRPT, &TOKEN_BUCKET] {
        let lines = code.text.lines().filter(|line| !line.starts_with('#')).count();
        assert!(lines <= 10, "{}", code.text);
    }
}

/// The costs that docs/rank.md states.
#[test]
fn costs_of_the_examples() {
    let cost = |code: &Code| (code.module.enqueue_cost, code.module.dequeue_cost);
    assert_eq!(
        [&WFQ, &LSTF, &SRPT, &TOKEN_BUCKET].map(|code| cost(code)),
        [(177, 109), (18, 1), (5, 1), (304, 1)]
    );
}

/// The start of a class of weight 1 grows by 2^20 for each byte, and its rank holds 60 bits of it: what comes after 2^40 bytes has
/// the greatest rank, and leaves in the order of arrival.
#[test]
fn wfq_ranks_last_for_a_tebibyte_for_each_unit_of_weight() {
    let mut pifo = Pifo::new(&WFQ);
    let packet = Packet::default().with(Field::Len, 1 << 30).with(Field::Weight, 1).with(Field::Total, 2);
    for _ in 0..1_025 {
        pifo.push(packet.clone());
    }
    let ranks: Vec<u64> = core::iter::from_fn(|| pifo.pop(0)).map(|(_, rank)| rank).collect();
    assert!(ranks[1_022] < ranks[1_023] && ranks[1_023] < u64::MAX);
    assert_eq!(ranks[1_024], u64::MAX);
}
