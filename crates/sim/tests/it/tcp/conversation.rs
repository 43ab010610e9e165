//! Requests and responses over both directions of a connection.

use std::collections::BTreeMap;

use proptest::prelude::*;

use plimsoll_sim::tcp::{Config, Connection, Packet};
use plimsoll_units::{Bytes, Nanos, Span};

use super::pipe::{Fault, arrivals};
use super::properties::{configs, faults};

const ONE_WAY: Span = Span::millis(5);

/// Two ends and a path of fixed delay.
struct Wire {
    now: Nanos,
    ends: [Connection; 2],
    flying: BTreeMap<(Nanos, u64), (usize, Packet)>,
    order: u64,
    /// The faults of each end's first packets.
    faults: [Vec<Fault>; 2],
    packets: [u64; 2],
    pure_acks: [u64; 2],
}

impl Wire {
    fn new(client: &Config, server: &Config) -> Self {
        Self {
            now: Nanos::ZERO,
            ends: [Connection::client(client), Connection::server(server)],
            flying: BTreeMap::new(),
            order: 0,
            faults: [Vec::new(), Vec::new()],
            packets: [0; 2],
            pure_acks: [0; 2],
        }
    }

    fn pump(&mut self) {
        for end in 0..2 {
            while let Some(packet) = self.ends[end].poll_transmit(self.now) {
                self.ends[end].handle_sent(Bytes::new(packet.len().into()));
                let fault = self.faults[end].get(self.packets[end] as usize).copied().unwrap_or(Fault::None);
                self.packets[end] += u64::from(packet.packet_count());
                self.pure_acks[end] += u64::from(packet.segment.is_none());
                for at in arrivals(fault, self.now + ONE_WAY) {
                    self.order += 1;
                    self.flying.insert((at, self.order), (1 - end, packet));
                }
            }
        }
    }

    /// Runs until `end` has received `bytes` in all, and returns the time.
    fn run_until_delivered(&mut self, end: usize, bytes: u64) -> Nanos {
        for _ in 0..100_000 {
            self.pump();
            if self.ends[end].delivered() >= Bytes::new(bytes) {
                return self.now;
            }
            let arrival = self.flying.keys().next().map(|&(at, _)| at);
            let timers = self.ends.iter().filter_map(Connection::poll_timeout);
            self.now = timers.chain(arrival).min().expect("something is left to happen").max(self.now);
            for end in &mut self.ends {
                end.handle_timeout(self.now);
            }
            while let Some(first) = self.flying.first_entry().filter(|first| first.key().0 <= self.now) {
                let (to, packet) = first.remove();
                self.ends[to].handle_packet(&packet, self.now);
            }
        }
        panic!("the conversation does not get on");
    }
}

fn millis(from: Nanos, to: Nanos) -> f64 {
    (to - from).as_secs_f64() * 1e3
}

#[test]
fn the_first_response_takes_two_round_trips_and_the_next_one() {
    let mut wire = Wire::new(&Config::default(), &Config::default());
    let (mut asked, mut answered) = (0, 0);
    for request in 0..100 {
        let began = wire.now;
        wire.ends[0].write(Bytes::new(100));
        asked += 100;
        wire.run_until_delivered(1, asked);
        wire.ends[1].write(Bytes::new(1_000));
        answered += 1_000;
        let ended = wire.run_until_delivered(0, answered);
        let expected = if request == 0 { 20.0 } else { 10.0 };
        assert!(
            (millis(began, ended) - expected).abs() < 0.001,
            "request {request}: {} ms",
            millis(began, ended)
        );
    }
    // A packet each way for each request: acknowledgements ride. Alone are the SYN-ACK, the answer to the first
    // request, which is quicker than the application, and the answer to the first response.
    assert!(wire.pure_acks[0] <= 1 && wire.pure_acks[1] <= 2, "{:?}", wire.pure_acks);
    assert_eq!(wire.packets.map(|packets| packets <= 102), [true; 2], "{:?}", wire.packets);
}

#[test]
fn a_large_response_takes_its_rounds_of_slow_start() {
    let mut wire = Wire::new(&Config::default(), &Config::default());
    wire.ends[0].write(Bytes::new(100));
    wire.run_until_delivered(1, 100);
    let began = wire.now;
    wire.ends[1].write(Bytes::new(100_000));
    // 70 segments: 10, 20, 40. Two round trips and the last half.
    let ended = wire.run_until_delivered(0, 100_000);
    assert!((millis(began, ended) - 25.0).abs() < 0.1, "{} ms", millis(began, ended));
}

#[test]
fn ecn_is_used_when_both_ends_want_it() {
    for (client, server) in [(false, false), (false, true), (true, false), (true, true)] {
        let config = |ecn| Config { ecn, ..Config::default() };
        let mut wire = Wire::new(&config(client), &config(server));
        wire.ends[0].write(Bytes::new(100));
        wire.run_until_delivered(1, 100);
        wire.ends[1].write(Bytes::new(100));
        wire.run_until_delivered(0, 100);
        let halves = wire.ends.iter().flat_map(|end| [end.sender().ecn(), end.receiver().ecn()]);
        assert!(halves.into_iter().all(|ecn| ecn == (client && server)), "client {client}, server {server}");
    }
}

#[test]
fn a_silent_reader_gets_its_acknowledgement_after_forty_milliseconds() {
    let mut wire = Wire::new(
        &Config { quick_acks: 0, ..Config::default() },
        &Config { quick_acks: 0, ..Config::default() },
    );
    wire.ends[0].write(Bytes::new(100));
    wire.run_until_delivered(1, 100);
    let arrived = wire.now;
    wire.pump();
    assert_eq!(wire.ends[1].poll_timeout(), Some(arrived + Span::millis(40)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// SYNs, their answers, requests, responses and acknowledgements may be lost, with any settings of each end.
    #[test]
    fn a_conversation_goes_on_whatever_befalls_its_packets(
        client in configs(),
        server in configs(),
        there in faults(),
        back in faults(),
        rounds in proptest::collection::vec((1_u64..30_000, 1_u64..60_000), 1..5),
        greeting in 0_u64..5_000,
    ) {
        // Both ends must agree on the handshake and on SACK, and without a handshake on the buffer.
        let receive_buffer = if client.handshake { server.receive_buffer } else { client.receive_buffer };
        let server = Config { handshake: client.handshake, sack: client.sack, receive_buffer, ..server };
        let mut wire = Wire::new(&client, &server);
        wire.faults = [there, back];
        // Some servers speak first.
        wire.ends[1].write(Bytes::new(greeting));
        let (mut asked, mut answered) = (0, greeting);
        for (request, response) in rounds {
            wire.ends[0].write(Bytes::new(request));
            asked += request;
            wire.run_until_delivered(1, asked);
            wire.ends[1].write(Bytes::new(response));
            answered += response;
            wire.run_until_delivered(0, answered);
        }
        prop_assert_eq!(wire.ends[1].delivered(), Bytes::new(asked));
        prop_assert_eq!(wire.ends[0].delivered(), Bytes::new(answered));
    }
}
