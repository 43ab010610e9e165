//! The programs in `examples/rank` beside the engine's own orders, packet for packet.
//!
//! Why: what the language can say is shown best by what the engine does already.
//! Not here: the engine's promises (`plimsoll-nic`).
//! Invariant: a PIFO with the program and the engine hold the same packets whenever either is asked for the next one.

use std::collections::HashMap;
use std::sync::LazyLock;

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId};
use plimsoll_policy::{Placement, check_str};
use plimsoll_rank::{Field, Packet};
use plimsoll_units::{Nanos, Span};
use proptest::prelude::*;

use crate::kit::{Code, Pifo};

static WFQ: LazyLock<Code> = LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/wfq.rank")));
static LSTF: LazyLock<Code> =
    LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/lstf.rank")));
static SRPT: LazyLock<Code> =
    LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/srpt.rank")));
static TOKEN_BUCKET: LazyLock<Code> =
    LazyLock::new(|| Code::new(include_str!("../../../../examples/rank/token_bucket.rank")));

/// The engine with a policy, driven in virtual time.
struct Engine {
    nic: Nic,
    doorbells: DoorbellQueue,
    /// One flow queue for each class that was asked for.
    queues: HashMap<usize, QueueId>,
    posted: u64,
}

impl Engine {
    fn new(policy: &str, catch_up: Span) -> Self {
        let program =
            check_str("test.yaml", policy).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let config = Config { queues: 256, catch_up, ..Config::default() };
        let nic = Nic::new(&program.program, &config);
        Self { nic, doorbells: DoorbellQueue::default(), queues: HashMap::new(), posted: 0 }
    }

    /// A new flow queue of the class `name`.
    fn open(&mut self, name: &str) -> QueueId {
        let program = self.nic.program();
        let class = program.find(name).expect("the policy names it");
        let limits = program.path(class).filter_map(|id| program.node(id).max).collect();
        self.nic.open_queue(&Placement { class, limits }).expect("a flow queue is left")
    }

    /// The only flow queue of the class `cN`.
    fn queue_of(&mut self, class: usize) -> QueueId {
        if let Some(&queue) = self.queues.get(&class) {
            return queue;
        }
        let queue = self.open(&format!("c{class}"));
        self.queues.insert(class, queue);
        queue
    }

    /// Posts a packet and rings, and returns the number of its arrival.
    fn send(&mut self, queue: QueueId, len: u32, tag: u32, now: u64) -> u64 {
        let descriptor = Descriptor { addr: self.posted, len, tag, ..Descriptor::default() };
        self.nic.post(queue, descriptor).expect("the queue has room");
        self.doorbells.bell(queue);
        let nic = &mut self.nic;
        self.doorbells.flush(|words| nic.ring(words, Nanos::new(now)));
        self.posted += 1;
        self.posted - 1
    }

    /// Lets the engine send until before `until`, from `now` on, and calls `sent` with the moment and the arrival's number.
    fn run(&mut self, now: u64, until: u64, mut sent: impl FnMut(u64, u64)) {
        let mut now = now;
        let mut batch = Vec::with_capacity(1);
        while now < until {
            self.nic.poll_transmit(Nanos::new(now), &mut batch);
            if let Some(pull) = batch.pop() {
                sent(now, pull.addr);
                self.nic.complete(&pull, Outcome::Sent);
                while self.nic.poll_completion().is_some() {}
                continue;
            }
            let Some(due) = self.nic.poll_timeout() else { return };
            now = due.as_u64().max(now + 1);
        }
    }
}

/// A packet that arrives some time after the one before.
#[derive(Clone, Debug)]
struct Arrival {
    after: u64,
    class: usize,
    len: u32,
    /// Slack in microseconds, or bytes left.
    tag: u32,
}

fn arrivals(classes: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let after = prop_oneof![4 => Just(0_u64), 4 => 0_u64..3_000, 1 => 0_u64..60_000];
    let len = prop_oneof![Just(1_500_u32), Just(60), 60_u32..=1_500];
    let arrival = (after, 0..classes, len, 1_u32..60);
    let arrival = arrival.prop_map(|(after, class, len, tag)| Arrival { after, class, len, tag });
    prop::collection::vec(arrival, 1..200)
}

/// Plays `arrivals` to the engine, and returns what left, with what the PIFO gave for it: pairs of (engine, PIFO), each a moment or
/// rank and the number of the arrival.
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
    let (mut engine, mut pifo) = (Engine::new(&policy, Span::ZERO), Pifo::new(&WFQ));
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
    let (mut engine, mut pifo) = (Engine::new(policy, Span::ZERO), Pifo::new(&LSTF));
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
        let order = lstf(policy, &arrivals, |engine, arrival| (engine.open("c0"), arrival.tag));
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
        let (mut engine, mut pifo) = (Engine::new(&policy, Span::ZERO), Pifo::new(&TOKEN_BUCKET));
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
