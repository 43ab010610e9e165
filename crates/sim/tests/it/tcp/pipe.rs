//! A dumbbell small enough to believe: flows share one queue with a rate, a limit and a marking threshold; what leaves
//! it arrives a fixed delay later, and acknowledgements come back after another, unless a fault befalls them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::VecDeque;

use plimsoll_sim::tcp::{Ack, Config, Receiver, Segment, Sender};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

/// Ethernet, IPv4 and TCP with timestamps: what `tc` counts beside the payload.
pub const OVERHEAD: u64 = 14 + 20 + 32;

/// The fate of one packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    Drop,
    Duplicate,
    Delay(Span),
}

/// Decides the fate of the `n`th packet of its direction.
pub type Faults = Box<dyn FnMut(u64, &Segment) -> Fault>;
pub type AckFaults = Box<dyn FnMut(u64) -> Fault>;

pub struct Link {
    pub rate: BitRate,
    /// Each way.
    pub delay: Span,
    pub limit: Bytes,
    pub mark_above: Option<Bytes>,
}

impl Link {
    /// A bottleneck with a buffer of one bandwidth-delay product.
    pub fn new(rate: BitRate, rtt: Span) -> Self {
        let delay = Span::ns(rtt.as_u64() / 2);
        Self { rate, delay, limit: rate.bytes_in(rtt), mark_above: None }
    }
}

pub struct Flow {
    pub sender: Sender,
    pub receiver: Receiver,
    timer: Option<Nanos>,
    ack_timer: Option<Nanos>,
    arrived: Vec<(u64, u64)>,
    pub finished: Option<Nanos>,
    pub timeouts_at: Vec<Nanos>,
    /// Bytes that the application writes, to know when it is done.
    total: Option<u64>,
    buffer: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Depart,
    Data { flow: usize, slot: usize },
    Ack { flow: usize, slot: usize },
    Timer { flow: usize },
    AckTimer { flow: usize },
    Start { flow: usize },
}

pub struct Pipe {
    pub now: Nanos,
    pub flows: Vec<Flow>,
    link: Link,
    events: BinaryHeap<Reverse<(Nanos, u64, What)>>,
    order: u64,
    segments: Slots<Segment>,
    acks: Slots<Ack>,
    queue: VecDeque<(usize, Segment)>,
    queued: u64,
    pub faults: Faults,
    pub ack_faults: AckFaults,
    data_packets: u64,
    ack_packets: u64,
    pub drops: u64,
    pub marks: u64,
    /// Byte-nanoseconds, for the mean.
    queue_area: u128,
    queue_since: Nanos,
    measure_from: Nanos,
    pub queue_most: u64,
    /// Every transmission: time, flow, segment.
    pub trace: Option<Vec<(Nanos, usize, Segment)>>,
}

impl Pipe {
    pub fn new(link: Link) -> Self {
        Self {
            now: Nanos::ZERO,
            flows: Vec::new(),
            link,
            events: BinaryHeap::new(),
            order: 0,
            segments: Slots::default(),
            acks: Slots::default(),
            queue: VecDeque::new(),
            queued: 0,
            faults: Box::new(|_, _| Fault::None),
            ack_faults: Box::new(|_| Fault::None),
            data_packets: 0,
            ack_packets: 0,
            drops: 0,
            marks: 0,
            queue_area: 0,
            queue_since: Nanos::ZERO,
            measure_from: Nanos::ZERO,
            queue_most: 0,
            trace: None,
        }
    }

    /// Adds a flow that begins at `start` with `bytes`, or never ends.
    pub fn add(&mut self, config: &Config, bytes: Option<Bytes>, start: Nanos) -> usize {
        let mut sender = Sender::new(config);
        match bytes {
            Some(bytes) => sender.write(bytes),
            None => sender.write_unlimited(),
        }
        self.flows.push(Flow {
            sender,
            receiver: Receiver::new(config),
            timer: None,
            ack_timer: None,
            arrived: Vec::new(),
            finished: None,
            timeouts_at: Vec::new(),
            total: bytes.map(Bytes::as_u64),
            buffer: config.receive_buffer.as_u64(),
        });
        let flow = self.flows.len() - 1;
        self.schedule(start, What::Start { flow });
        flow
    }

    pub fn run_until(&mut self, end: Nanos) {
        while let Some(&Reverse((at, _, what))) = self.events.peek() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = at;
            self.step(what);
        }
        self.now = end;
    }

    /// Runs until every flow with an end has ended, or nothing is left to happen, or `limit`.
    pub fn run_to_end(&mut self, limit: Nanos) {
        while let Some(Reverse((at, _, what))) = self.events.pop() {
            self.now = at;
            self.step(what);
            if at > limit || self.flows.iter().all(|flow| flow.finished.is_some() && flow.sender.is_idle()) {
                break;
            }
        }
    }

    /// Forgets what was measured so far.
    pub fn measure_from_now(&mut self) {
        (self.queue_area, self.queue_since, self.measure_from) = (0, self.now, self.now);
        (self.drops, self.marks, self.queue_most) = (0, 0, 0);
    }

    pub fn mean_queue(&mut self) -> f64 {
        self.account_queue();
        self.queue_area as f64 / (self.now - self.measure_from).as_u64() as f64
    }

    /// Payload bits per second of each flow from now on for `span`.
    pub fn rates_over(&mut self, span: Span) -> Vec<f64> {
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.receiver.delivered().as_u64()).collect();
        self.run_until(self.now + span);
        let gained = self.flows.iter().zip(before);
        gained
            .map(|(flow, before)| {
                (flow.receiver.delivered().as_u64() - before) as f64 * 8.0 / span.as_secs_f64()
            })
            .collect()
    }

    fn schedule(&mut self, at: Nanos, what: What) {
        self.order += 1;
        assert!(at >= self.now);
        self.events.push(Reverse((at, self.order, what)));
    }

    fn step(&mut self, what: What) {
        match what {
            What::Start { flow } => self.pump(flow),
            What::Depart => self.depart(),
            What::Data { flow, slot } => {
                let segment = self.segments.take(slot);
                self.arrive(flow, &segment);
            }
            What::Ack { flow, slot } => {
                let ack = self.acks.take(slot);
                let before = self.flows[flow].sender.acked();
                self.flows[flow].sender.handle_ack(&ack, self.now);
                assert!(self.flows[flow].sender.acked() >= before, "what is acknowledged stays so");
                self.pump(flow);
            }
            // An event that an earlier one has overtaken is not the timer's any more.
            What::Timer { flow } if self.flows[flow].timer != Some(self.now) => {}
            What::AckTimer { flow } if self.flows[flow].ack_timer != Some(self.now) => {}
            What::Timer { flow } => {
                self.flows[flow].timer = None;
                let timeouts = self.flows[flow].sender.stats().timeouts;
                self.flows[flow].sender.handle_timeout(self.now);
                if self.flows[flow].sender.stats().timeouts > timeouts {
                    self.flows[flow].timeouts_at.push(self.now);
                }
                self.pump(flow);
            }
            What::AckTimer { flow } => {
                self.flows[flow].ack_timer = None;
                self.flows[flow].receiver.handle_timeout(self.now);
                self.send_acks(flow);
            }
        }
    }

    /// Sends what may leave, and sets the timer.
    fn pump(&mut self, flow: usize) {
        loop {
            let probes = self.flows[flow].sender.stats().probes;
            let Some(segment) = self.flows[flow].sender.poll_transmit(self.now) else { break };
            let sender = &mut self.flows[flow].sender;
            if sender.stats().probes == probes {
                assert!(
                    sender.in_flight() <= sender.cwnd(),
                    "at {:?}: {} in flight, window {}",
                    self.now,
                    sender.in_flight(),
                    sender.cwnd()
                );
            }
            sender.handle_sent(Bytes::new(segment.len.into()));
            if let Some(trace) = &mut self.trace {
                trace.push((self.now, flow, segment));
            }
            for packet in segment.packets() {
                self.enqueue(flow, packet);
            }
        }
        if let Some(due) = self.flows[flow].sender.poll_timeout().map(|due| due.max(self.now)) {
            // Lazily: a timer that moves later fires in vain and is set anew.
            if self.flows[flow].timer.is_none_or(|set| due < set) {
                self.flows[flow].timer = Some(due);
                self.schedule(due, What::Timer { flow });
            }
        }
    }

    fn enqueue(&mut self, flow: usize, mut packet: Segment) {
        let size = u64::from(packet.len) + OVERHEAD;
        if self.queued + size > self.link.limit.as_u64().max(size) {
            self.drops += 1;
            return;
        }
        if self.link.mark_above.is_some_and(|threshold| self.queued > threshold.as_u64())
            && let Some(marked) = packet.ecn.marked()
        {
            self.marks += 1;
            packet.ecn = marked;
        }
        self.account_queue();
        self.queue.push_back((flow, packet));
        self.queued += size;
        self.queue_most = self.queue_most.max(self.queued);
        if self.queue.len() == 1 {
            self.schedule(self.now + self.link.rate.wire_time(Bytes::new(size)), What::Depart);
        }
    }

    fn depart(&mut self) {
        self.account_queue();
        let (flow, packet) = self.queue.pop_front().expect("a departure has a packet");
        self.queued -= u64::from(packet.len) + OVERHEAD;
        if let Some((_, next)) = self.queue.front() {
            let size = Bytes::new(u64::from(next.len) + OVERHEAD);
            self.schedule(self.now + self.link.rate.wire_time(size), What::Depart);
        }
        let fault = (self.faults)(self.data_packets, &packet);
        self.data_packets += 1;
        let at = self.now + self.link.delay;
        for at in arrivals(fault, at) {
            let slot = self.segments.put(packet);
            self.schedule(at, What::Data { flow, slot });
        }
    }

    fn arrive(&mut self, flow: usize, segment: &Segment) {
        let before = self.flows[flow].receiver.delivered();
        let taken = before.as_u64() - self.flows[flow].receiver.available().as_u64();
        self.flows[flow].receiver.handle_segment(segment, self.now);
        let flow_state = &mut self.flows[flow];
        assert!(flow_state.receiver.delivered() >= before, "what is delivered stays so");
        if flow_state.total.is_some() {
            // The oracle: what has arrived, kept as a plain set.
            add_run(&mut flow_state.arrived, segment.seq, segment.end().min(taken + flow_state.buffer));
            let whole = flow_state.arrived.first().map_or(0, |run| if run.0 == 0 { run.1 } else { 0 });
            assert_eq!(flow_state.receiver.delivered().as_u64(), whole, "in order, without a gap, all of it");
        }
        if flow_state.finished.is_none() && Some(flow_state.receiver.delivered().as_u64()) == flow_state.total
        {
            flow_state.finished = Some(self.now);
        }
        self.send_acks(flow);
    }

    pub fn send_acks(&mut self, flow: usize) {
        while let Some(ack) = self.flows[flow].receiver.poll_ack(self.now) {
            let fault = (self.ack_faults)(self.ack_packets);
            self.ack_packets += 1;
            for at in arrivals(fault, self.now + self.link.delay) {
                let slot = self.acks.put(ack);
                self.schedule(at, What::Ack { flow, slot });
            }
        }
        if let Some(due) = self.flows[flow].receiver.poll_timeout().map(|due| due.max(self.now))
            && self.flows[flow].ack_timer.is_none_or(|set| due < set)
        {
            self.flows[flow].ack_timer = Some(due);
            self.schedule(due, What::AckTimer { flow });
        }
    }

    fn account_queue(&mut self) {
        self.queue_area += u128::from(self.queued) * u128::from((self.now - self.queue_since).as_u64());
        self.queue_since = self.now;
    }
}

/// The arrivals of a packet that is due at `at`: none, one or two.
pub fn arrivals(fault: Fault, at: Nanos) -> impl Iterator<Item = Nanos> {
    let (first, second) = match fault {
        Fault::None => (Some(at), None),
        Fault::Drop => (None, None),
        Fault::Duplicate => (Some(at), Some(at + Span::micros(1))),
        Fault::Delay(more) => (Some(at + more), None),
    };
    first.into_iter().chain(second)
}

fn add_run(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    if start < end {
        runs.push((start, end));
        runs.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
        for &(start, end) in runs.iter() {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        *runs = merged;
    }
}

/// Values in flight, by number.
struct Slots<T> {
    all: Vec<T>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { all: Vec::new(), free: Vec::new() }
    }
}

impl<T: Copy> Slots<T> {
    fn put(&mut self, thing: T) -> usize {
        if let Some(slot) = self.free.pop() {
            self.all[slot] = thing;
            return slot;
        }
        self.all.push(thing);
        self.all.len() - 1
    }

    fn take(&mut self, slot: usize) -> T {
        self.free.push(slot);
        self.all[slot]
    }
}

/// `SplitMix64`: the same numbers everywhere.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// True once in `n`, on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// Loses data packets at random, once in `n`.
pub fn lose_one_in(n: u64, seed: u64) -> Faults {
    let mut dice = Dice::new(seed);
    Box::new(move |_, _| if dice.one_in(n) { Fault::Drop } else { Fault::None })
}

/// Loses the data packets with these numbers.
pub fn lose_these(numbers: impl IntoIterator<Item = u64>) -> Faults {
    let numbers: Vec<u64> = numbers.into_iter().collect();
    Box::new(move |n, _| if numbers.contains(&n) { Fault::Drop } else { Fault::None })
}

pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}
