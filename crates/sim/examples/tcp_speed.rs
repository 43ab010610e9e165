//! What a segment and its acknowledgement cost, through a sender and a receiver and nothing between them.
//!
//! $ cargo run --release -p plimsoll-sim --example tcp_speed [SEGMENTS]

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use plimsoll_sim::tcp::{Ack, Config, Congestion, LocalQueue, Receiver, Segment, Sender};
use plimsoll_units::{Bytes, Nanos, Span};

/// Flows that take turns, so that each finds its state as cold as in a dumbbell of as many.
const FLOWS: usize = 16;
/// One 1,514-byte frame at 10 Gb/s.
const STEP: Span = Span::ns(1_211);

fn main() {
    let segments = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(10_000_000);
    println!("{:<10} {:>10} {:>8} {:>16}", "algorithm", "window", "losses", "ns per segment");
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp] {
        for (window, lose_every) in [(64, 0), (1_024, 0), (64, 1_000)] {
            let ns = measure(congestion, window, lose_every, segments);
            let losses = if lose_every == 0 { "none".into() } else { format!("1/{lose_every}") };
            println!("{:<10} {window:>10} {losses:>8} {ns:>16.1}", format!("{congestion:?}"));
        }
    }
}

/// Nanoseconds for a segment and its share of an acknowledgement, `window` segments in flight for each flow.
fn measure(congestion: Congestion, window: u64, lose_every: u64, segments: u64) -> f64 {
    let config = Config {
        congestion,
        ecn: congestion == Congestion::Dctcp,
        handshake: false,
        receive_buffer: Bytes::new(window * 1_448),
        local_queue: LocalQueue::Unlimited,
        ..Config::default()
    };
    let mut flows: Vec<Flow> = (0..FLOWS).map(|_| Flow::new(&config)).collect();
    let mut now = Nanos::ZERO;
    let mut turn = |flows: &mut Vec<Flow>, segments: u64| {
        let mut done = 0;
        while done < segments {
            for flow in flows.iter_mut() {
                now += STEP;
                done += flow.step(now, lose_every);
            }
        }
        done
    };
    turn(&mut flows, segments / 10); // slow start, and memory for the window
    let started = Instant::now();
    let done = turn(&mut flows, segments);
    let spent = started.elapsed();
    black_box(&flows);
    spent.as_nanos() as f64 / done as f64
}

struct Flow {
    sender: Sender,
    receiver: Receiver,
    wire: VecDeque<Segment>,
    acks: VecDeque<Ack>,
    carried: u64,
}

impl Flow {
    fn new(config: &Config) -> Self {
        let mut sender = Sender::new(config);
        sender.write_unlimited();
        let (wire, acks) = (VecDeque::with_capacity(4_096), VecDeque::with_capacity(4_096));
        Self { sender, receiver: Receiver::new(config), wire, acks, carried: 0 }
    }

    /// Carries one segment, and what it sets off. Returns the segments carried.
    fn step(&mut self, now: Nanos, lose_every: u64) -> u64 {
        while let Some(segment) = self.sender.poll_transmit(now) {
            self.wire.push_back(segment);
        }
        let Some(segment) = self.wire.pop_front() else {
            // All that is in flight was lost or waits for its acknowledgement.
            self.receiver.handle_timeout(now);
            self.sender.handle_timeout(now);
            self.take_acks(now);
            return 0;
        };
        self.carried += 1;
        if lose_every == 0 || !self.carried.is_multiple_of(lose_every) {
            self.receiver.handle_segment(&segment, now);
        }
        self.take_acks(now);
        black_box(self.sender.poll_timeout());
        1
    }

    fn take_acks(&mut self, now: Nanos) {
        while let Some(ack) = self.receiver.poll_ack(now) {
            self.acks.push_back(ack);
        }
        while let Some(ack) = self.acks.pop_front() {
            self.sender.handle_ack(&ack, now);
        }
    }
}
