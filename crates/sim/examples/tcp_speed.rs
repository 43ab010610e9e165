//! What a data packet and its share of an acknowledgement cost, through both ends of a connection.
//!
//! $ cargo run --release -p plimsoll-sim --example tcp_speed PACKETS

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use plimsoll_sim::tcp::{Config, Congestion, Connection, Packet};
use plimsoll_units::{Bytes, Nanos, Span};

/// Flows that take turns, so that each finds its state as cold as in a dumbbell of as many.
const FLOWS: usize = 16;
/// One 1,514-byte frame at 10 Gb/s.
const STEP: Span = Span::ns(1_211);

fn main() {
    let packets = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(10_000_000);
    println!("{:<10} {:>6} {:>14} {:>14}", "algorithm", "queue", "ns per packet", "sent again");
    for congestion in [Congestion::NewReno, Congestion::Cubic, Congestion::Dctcp] {
        for queue in [16, 64, 1_024] {
            let (ns, again) = measure(congestion, queue, packets);
            println!("{:<10} {queue:>6} {ns:>14.1} {:>13.2}%", format!("{congestion:?}"), 100.0 * again);
        }
    }
}

/// Nanoseconds for a packet and its share of an acknowledgement, and the share of packets that was sent again. Each
/// flow has its own queue of this number of packets, and only its window limits it, as in a network.
fn measure(congestion: Congestion, queue: usize, packets: u64) -> (f64, f64) {
    let ecn = congestion == Congestion::Dctcp;
    let config = Config { congestion, ecn, receive_buffer: Bytes::new(1 << 30), ..Config::default() };
    let mut flows: Vec<Flow> = (0..FLOWS).map(|_| Flow::new(&config, queue)).collect();
    let mut now = Nanos::ZERO;
    let mut turn = |flows: &mut Vec<Flow>, packets: u64| {
        let mut carried = 0;
        while carried < packets {
            for flow in flows.iter_mut() {
                now += STEP;
                carried += flow.step(now);
            }
        }
        carried
    };
    turn(&mut flows, packets / 10); // slow start, and memory for the window
    let started = Instant::now();
    let carried = turn(&mut flows, packets);
    let spent = started.elapsed();
    let again: u64 =
        flows.iter().map(|flow| flow.client.sender().stats().retransmitted.as_u64() / 1_448).sum();
    (spent.as_nanos() as f64 / carried as f64, again as f64 / (packets + packets / 10) as f64)
}

struct Flow {
    client: Connection,
    server: Connection,
    wire: VecDeque<Packet>,
    queue: usize,
}

impl Flow {
    fn new(config: &Config, queue: usize) -> Self {
        let mut client = Connection::client(config);
        client.write_unlimited();
        Self { client, server: Connection::server(config), wire: VecDeque::with_capacity(queue), queue }
    }

    /// Carries one packet, and what it sets off. Returns the packets carried.
    fn step(&mut self, now: Nanos) -> u64 {
        while let Some(packet) = self.client.poll_transmit(now) {
            self.client.handle_sent(Bytes::new(packet.len().into()));
            self.enqueue(packet);
        }
        let Some(packet) = self.wire.pop_front() else {
            self.client.handle_timeout(now);
            self.server.handle_timeout(now);
            self.answer(now);
            return 0;
        };
        self.server.handle_packet(&packet, now);
        self.answer(now);
        black_box((self.client.poll_timeout(), self.server.poll_timeout()));
        1
    }

    /// A queue that marks from half its length on, and drops at its end.
    fn enqueue(&mut self, mut packet: Packet) {
        if self.wire.len() >= self.queue {
            return;
        }
        if let Some(segment) = packet.segment.as_mut().filter(|_| self.wire.len() >= self.queue / 2) {
            segment.ecn = segment.ecn.marked().unwrap_or(segment.ecn);
        }
        self.wire.push_back(packet);
    }

    fn answer(&mut self, now: Nanos) {
        while let Some(packet) = self.server.poll_transmit(now) {
            self.client.handle_packet(&packet, now);
        }
    }
}
