//! A recorded engine, run again: the same decisions, the first one that differs, and damaged files.

use std::collections::VecDeque;

use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Transmit};
use plimsoll_policy::{Checked, Fields, TenantId, check_str};
use plimsoll_record::{BlockWriter, End, Limits, Reader, Recorded, Recorder, SharedSink, TraceError};
use plimsoll_sim::{Rerun, RerunError, rerun};
use plimsoll_units::{Bytes, Nanos, Span};
use proptest::prelude::*;

const MEMORY: Bytes = Bytes::new(64_000_000);

const POLICIES: [&str; 4] = [
    "
uplink: {port: memory, rate: 1Gbps}
tenants: {a: {port: memory, weight: 3}, b: {port: memory, max: 200Mbps}, c: {port: memory, min: 100Mbps}}
",
    "
uplink: {port: memory, rate: 100Mbps}
tenants: {a: {port: memory}, b: {port: memory}, c: {port: memory}}
limits:
  web: {match: {dst_port: 80}, rate: 20Mbps, burst: 3kB}
  all: {match: {protocol: udp}, rate: 60Mbps}
policy:
  root: {priority: [urgent, rest], via: [web, all]}
  urgent: {match: {dst_port: 1}, flows: edf, deadline: 1ms}
  rest: {drr: {a: 1, b: 2, c: 1}}
",
    "
uplink: {port: memory, rate: 500Mbps}
tenants: {a: {port: memory}, b: {port: memory}, c: {port: memory}}
policy:
  root: {rate_share: {a: 100Mbps, b: 50Mbps, rest: 200Mbps}}
  rest: {wfq: {c: 1, other: 2}}
  other: {match: {dst_port: 80}}
",
    "
uplink: {port: memory, rate: 10Gbps}
tenants: {a: {port: memory}, b: {port: memory}, c: {port: memory}}
policy:
  root: {fifo: [a, b, c]}
",
];

/// An engine with a recorder, and a host that uses it.
struct Host {
    nic: Recorded,
    file: SharedSink,
    policy: Checked,
    open: Vec<(QueueId, Fields)>,
    away: VecDeque<Transmit>,
    out: Vec<Transmit>,
    doorbells: DoorbellQueue,
    now: Nanos,
}

/// A step of a host.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Open { tenant: u32, port: u16 },
    Close(usize),
    Post { queue: usize, len: u32, segment: u16, tag: u32 },
    Ring,
    Poll { after: u64 },
    Complete(usize),
    Reload(usize),
    Scribble(u16, u16),
}

impl Host {
    fn new(policy: usize) -> Self {
        Self::with_ring(policy, 8)
    }

    fn with_ring(policy: usize, ring: u16) -> Self {
        let policy = check_str("p.yaml", POLICIES[policy]).expect("a policy");
        let config = Config { queues: 16, ring, descriptors: 64, ..Config::default() };
        let mut nic = Recorded::new(Nic::new(&policy.program, &config));
        let file = SharedSink::default();
        nic.record(Recorder::new(Box::new(file.clone()), Limits::default()), &policy.sources);
        let (open, away, out) = (Vec::new(), VecDeque::new(), Vec::with_capacity(16));
        Self { nic, file, policy, open, away, out, doorbells: DoorbellQueue::default(), now: Nanos::ZERO }
    }

    fn act(&mut self, deed: Deed) {
        match deed {
            Deed::Open { tenant, port } => {
                let fields = Fields {
                    tenant: Some(TenantId(tenant)),
                    ports: Some((9, port)),
                    protocol: Some(17),
                    ..Fields::default()
                };
                let queue = self.nic.open_queue(&self.policy.program.classify(&fields));
                self.open.extend(queue.ok().map(|queue| (queue, fields)));
            }
            Deed::Close(index) if index < self.open.len() => {
                if self.nic.close_queue(self.open[index].0) {
                    self.open.swap_remove(index);
                }
            }
            Deed::Post { queue, len, segment, tag } if !self.open.is_empty() => {
                let queue = self.open[queue % self.open.len()].0;
                let header = if segment > 0 { 54 } else { 0 };
                if self
                    .nic
                    .post(queue, Descriptor { addr: 7, len, segment, header, tag, ..Descriptor::default() })
                    .is_ok()
                {
                    self.doorbells.bell(queue);
                }
            }
            Deed::Ring => {
                let (nic, now) = (&mut self.nic, self.now);
                self.doorbells.flush(|words| nic.ring(words, now));
            }
            Deed::Poll { after } => {
                self.now += Span::ns(after);
                self.nic.poll_transmit(self.now, &mut self.out);
                self.away.extend(self.out.drain(..));
            }
            Deed::Complete(count) => {
                for transmit in self.away.drain(..count.min(self.away.len())) {
                    self.nic.complete(&transmit, Outcome::Sent);
                }
                while self.nic.poll_completion().is_some() {}
            }
            Deed::Reload(policy) => {
                self.policy = check_str("p.yaml", POLICIES[policy]).expect("a policy");
                self.nic.set_descriptors(self.policy.config.engine.descriptors);
                let (program, open) = (&self.policy.program, &self.open);
                let mut place = |queue| {
                    let (_, fields) = open.iter().find(|(open, _)| *open == queue).expect("an open one");
                    program.classify(fields)
                };
                self.nic.install(program, &self.policy.sources, &mut place, self.now);
            }
            Deed::Scribble(a, b) => self.nic.ring(&[a, b, 0xffff, b, a], self.now),
            Deed::Close(_) | Deed::Post { .. } => {}
        }
    }

    fn end(self) -> Vec<u8> {
        let Self { nic, file, .. } = self;
        drop(nic);
        file.bytes()
    }
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => (0..3_u32, prop_oneof![Just(80), Just(1), 2..9_u16]).prop_map(|(tenant, port)| Deed::Open { tenant, port }),
        1 => (0..16_usize).prop_map(Deed::Close),
        12 => (0..16_usize, 40..1_514_u32, 0..50_u32)
            .prop_map(|(queue, len, tag)| Deed::Post { queue, len, segment: 0, tag: tag.saturating_sub(40) }),
        2 => (0..16_usize, 2_000..9_000_u32)
            .prop_map(|(queue, len)| Deed::Post { queue, len, segment: 1_000, tag: 0 }),
        8 => Just(Deed::Ring),
        12 => (0..100_000_u64).prop_map(|after| Deed::Poll { after }),
        3 => (0..300_u64).prop_map(|after| Deed::Poll { after }),
        6 => (0..40_usize).prop_map(Deed::Complete),
        1 => (0..4_usize).prop_map(Deed::Reload),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(a, b)| Deed::Scribble(a, b)),
    ]
}

fn again(bytes: &[u8]) -> Result<Rerun, RerunError> {
    rerun(Reader::new(bytes)?, MEMORY)
}

/// The trace of a host that takes these steps.
fn trace(policy: usize, deeds: impl IntoIterator<Item = Deed>) -> Vec<u8> {
    let mut host = Host::new(policy);
    deeds.into_iter().for_each(|deed| host.act(deed));
    host.end()
}

/// The trace of a host with some packets of two flows.
fn busy() -> Vec<u8> {
    let mut deeds = vec![Deed::Open { tenant: 0, port: 80 }, Deed::Open { tenant: 1, port: 5 }];
    for turn in 0..200_u32 {
        let (queue, len) = (turn as usize, 500 + turn);
        deeds.extend([Deed::Post { queue, len, segment: 0, tag: 0 }, Deed::Ring]);
        deeds.extend([Deed::Poll { after: 200_000 }, Deed::Complete(16)]);
    }
    trace(1, deeds)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// The trace of any host has all inputs on which decisions depend.
    #[test]
    fn a_recorded_engine_decides_the_same_again(
        policy in 0..4_usize,
        deeds in proptest::collection::vec(deeds(), 0..400),
    ) {
        let found = again(&trace(policy, deeds)).expect("a whole trace");
        prop_assert_eq!(found.difference, None);
        prop_assert_eq!(found.end, End::Stopped);
    }

    /// A changed byte gives an error, or a trace that seems to end early; never a wrong result.
    #[test]
    fn a_damaged_trace_is_told(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut bytes = busy();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        match again(&bytes) {
            Err(_) => {}
            // With a length that is too long the file seems to end early.
            Ok(found) => prop_assert_eq!(found.end, End::Torn),
        }
    }

    /// Blocks with right checksums and any events in them give a result or an error, and no panic.
    #[test]
    fn a_forged_trace_is_answered(flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut events = blocks(&busy());
        for (at, flip) in flips {
            let at = at.index(events.len());
            events[at] ^= flip;
        }
        let _ = again(&forged(&events));
    }

    #[test]
    fn a_trace_that_was_cut_off_is_good_up_to_there(at in any::<prop::sample::Index>()) {
        let bytes = busy();
        let at = at.index(bytes.len());
        match again(&bytes[..at]) {
            Ok(found) => prop_assert_eq!((found.end, found.difference), (End::Torn, None)),
            // Cut off in the first line, or before the first block.
            Err(RerunError::Trace(TraceError::Kind | TraceError::Version { .. }))
            | Err(RerunError::Nonsense { event: 1, .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// The events in a trace of one block.
fn blocks(trace: &[u8]) -> Vec<u8> {
    trace[plimsoll_record::MAGIC.len() + 8..].to_vec()
}

fn forged(events: &[u8]) -> Vec<u8> {
    let mut writer = BlockWriter::new(Vec::new()).expect("memory");
    writer.write(events).expect("memory");
    writer.finish().expect("memory")
}

#[test]
fn the_first_decision_that_differs_is_named() {
    let mut events = blocks(&busy());
    // The policy's text is in the trace: with another rate of the limit `web`, something leaves at another time.
    let at = events.windows(12).position(|text| text == b"rate: 20Mbps").expect("the policy");
    events[at + "rate: ".len()] = b'1';
    let found = again(&forged(&events)).expect("a whole trace");
    let difference = found.difference.expect("half of the rate");
    assert!(difference.recorded.contains("flow queue 0 left"), "{difference:?}");
    assert!(difference.again.contains("longest by `web`"), "{difference:?}");
    assert!(difference.decision > 2 && difference.at > Nanos::ZERO, "{difference:?}");
}

#[test]
fn another_kind_of_file_and_another_version_are_told() {
    let told = |bytes: &[u8]| again(bytes).expect_err("no trace").to_string();
    assert!(told(b"name: x").contains("no engine trace"));
    assert!(told(b"plimsoll engine trace 9\n").contains("version 9, and this plimsoll reads version 1"));
    let mut whole = busy();
    let at = whole.len() - 3;
    whole[at] ^= 1;
    assert!(told(&whole).contains("damaged at byte 24"), "{}", told(&whole));
}

#[test]
fn an_engine_that_needs_too_much_is_refused() {
    let bytes = busy();
    let found = rerun(Reader::new(bytes.as_slice()).expect("a trace"), Bytes::new(1_000));
    assert!(matches!(found, Err(RerunError::TooLarge { .. })), "{found:?}");
}

/// The next power of two of the longest ring does not fit 16 bits; found by fuzzing.
#[test]
fn the_longest_ring_is_counted() {
    let whole = Host::with_ring(0, u16::MAX).end();
    assert_eq!(again(&whole).map(|found| found.end).ok(), Some(End::Stopped));
    let too_large = rerun(Reader::new(whole.as_slice()).expect("a trace"), Bytes::new(16 * 65_536 * 32));
    assert!(matches!(too_large, Err(RerunError::TooLarge { .. })), "{too_large:?}");
}
