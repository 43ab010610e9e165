//! The mode `window`: smaller receive windows in the acknowledgements of flows that are slowed down.
//!
//! Why: it slows down a sender that uses no ECN, without a loss.
//! From: MIMIC §III-E; sizes and scales by `control::backpressure`.
//! Not here: which flows (`press`).
//! Invariant: only acknowledgements to the place that the flow comes from are changed, and of these only the window, which
//! never grows, and the checksum; of a connection whose handshake was not seen none.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use plimsoll_control::backpressure::{ControlSegment, FlowSource, Path, Pressed, Windows, window_for};
use plimsoll_units::{Bytes, Nanos};
use plimsoll_wire::{FlowKey, Offload, Parsed, TcpFlags, TcpSegment};

use super::super::heavy::Counted;
use super::super::verify::seed;

/// Connections whose scales are known at a time.
const CONNECTIONS: usize = 32_768;

/// The connections that pass, and the windows of flows that are slowed down.
#[derive(Debug)]
pub(in super::super) struct SmallWindows {
    scales: Windows<FlowKey>,
    /// By the flow without DSCP, and where it comes from.
    held: HashMap<(FlowKey, FlowSource), Held, RandomState>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    window: Bytes,
    until: Nanos,
}

impl SmallWindows {
    /// For so many flows at a time. Takes all memory but that of `held`.
    pub(super) fn new(flows: usize) -> Self {
        Self {
            scales: Windows::new(CONNECTIONS, seed()),
            held: HashMap::with_capacity_and_hasher(flows, RandomState::default()),
        }
    }

    /// Bytes of the table of connections. Nothing is allocated.
    pub(in super::super) const fn memory() -> usize {
        Windows::<FlowKey>::bytes_of(CONNECTIONS)
    }

    /// Whether the flow's acknowledgements can be read.
    pub(super) fn knows(&self, flow: &FlowKey) -> bool {
        let (key, end) = named(flow.reversed());
        self.scales.shift(&key, end).is_some()
    }

    /// Holds a flow to its rate until it is let go, or its lifetime is over.
    pub(super) fn hold(&mut self, pressed: &Pressed<Counted>) {
        let Pressed { key, target, path: Path { rtt, mss }, until, .. } = *pressed;
        let held = Held { window: window_for(target, rtt, mss), until };
        self.held.insert((key.flow.without_dscp(), key.from), held);
    }

    /// Lets a flow go.
    pub(super) fn let_go(&mut self, flow: &FlowKey, from: FlowSource) {
        self.held.remove(&(flow.without_dscp(), from));
    }

    /// Handles a frame on its way to this place: notes handshakes, and makes the window of an acknowledgement smaller if its flow
    /// is held. Answers whether it changed the frame.
    pub(in super::super) fn pass(
        &mut self,
        to: FlowSource,
        frame: &mut [u8],
        parsed: &Parsed,
        offload: &Offload,
        now: Nanos,
    ) -> bool {
        let Some(mut segment) = TcpSegment::of(frame, parsed) else { return false };
        let flags = segment.flags;
        if flags.has_any(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) {
            self.note(&segment, frame, parsed, now);
        }
        if self.held.is_empty() || flags.has_any(TcpFlags::SYN | TcpFlags::RST) || !flags.has(TcpFlags::ACK) {
            return false;
        }
        let own = FlowKey::of(parsed).without_dscp();
        let Some(held) = self.held.get(&(own.reversed(), to)).filter(|held| now < held.until) else {
            return false;
        };
        let (key, end) = named(own);
        let Some(shift) = self.scales.shift(&key, end) else { return false };
        // Rounded up, so that it is never zero, which would stop the sender.
        let most = held.window.as_u64().div_ceil(1 << shift);
        let smaller = u16::try_from(most).ok().filter(|most| *most < segment.window);
        smaller.is_some_and(|window| segment.set_window(frame, window, offload))
    }

    fn note(&mut self, segment: &TcpSegment, frame: &[u8], parsed: &Parsed, now: Nanos) {
        let (key, end) = named(FlowKey::of(parsed));
        let flags = segment.flags;
        let noted = if flags.has_any(TcpFlags::FIN | TcpFlags::RST) {
            ControlSegment::End
        } else if flags.has(TcpFlags::ACK) {
            ControlSegment::SynAck(segment.acknowledged, segment.window_scale(frame))
        } else {
            ControlSegment::Syn(segment.sequence, segment.window_scale(frame))
        };
        self.scales.note(&key, end, noted, now);
    }
}

/// The name of a flow's connection, and which end of it sends the flow.
fn named(flow: FlowKey) -> (FlowKey, usize) {
    let (own, back) = (flow.without_dscp(), flow.reversed());
    if own <= back { (own, 0) } else { (back, 1) }
}
