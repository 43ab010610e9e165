//! The mode `window`: reads and rewrites the receive windows of flows that are slowed down.
//!
//! Why: it slows down a sender that uses no ECN, without a loss.
//! From: MIMIC §III-E; the connections, and how small a window is, are `control::backpressure::SmallWindows`.
//! Not here: which flows (`press`).
//! Invariant: of a frame only the window, which never grows, and the checksum are changed.

use plimsoll_control::backpressure::{self, ControlSegment, Place, Pressed, Slowed, WindowSegment};
use plimsoll_units::Nanos;
use plimsoll_wire::{FlowKey, Offload, Parsed, TcpFlags, TcpSegment};

use super::super::heavy::{Counted, HashedFlow};
use super::super::verify::seed;

/// The connections that pass, and the windows of flows that are slowed down. Flows are without DSCP.
#[derive(Debug)]
pub(in super::super) struct SmallWindows(backpressure::SmallWindows<FlowKey>);

fn slowed(counted: &Counted) -> Slowed<FlowKey> {
    let Counted { flow, tenant, inward, from, .. } = *counted;
    Slowed { flow: flow.without_dscp(), tenant, inward, from }
}

impl SmallWindows {
    /// For this many flows at a time. Takes all memory.
    pub(super) fn new(flows: usize) -> Self {
        Self(backpressure::SmallWindows::new(flows, seed()))
    }

    /// Bytes of the table of connections. Nothing is allocated.
    pub(in super::super) const fn memory() -> usize {
        backpressure::SmallWindows::<FlowKey>::memory()
    }

    /// Whether the flow's acknowledgements can be read.
    pub(super) fn knows(&self, counted: &Counted) -> bool {
        self.0.knows(&slowed(counted), counted.flow.without_dscp().reversed())
    }

    /// Holds a flow to its rate until it is let go, or its lifetime is over.
    pub(super) fn hold(&mut self, pressed: &Pressed<HashedFlow>) {
        self.0.hold(slowed(&pressed.key.of), pressed.target, pressed.path, pressed.until);
    }

    /// Lets a flow go.
    pub(super) fn let_go(&mut self, counted: &Counted) {
        self.0.let_go(&slowed(counted));
    }

    /// Handles a frame on its way from one place to another: notes handshakes, and makes the window of an acknowledgement smaller
    /// if its flow is held. Answers whether it changed the frame.
    pub(in super::super) fn pass(
        &mut self,
        places: [Place; 2],
        frame: &mut [u8],
        parsed: &Parsed,
        offload: &Offload,
        now: Nanos,
    ) -> bool {
        let Some(mut header) = TcpSegment::of(frame, parsed) else { return false };
        let flags = header.flags;
        let opens_or_ends = flags.has_any(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST);
        if self.0.is_idle() && !opens_or_ends {
            return false;
        }
        let segment = WindowSegment {
            control: opens_or_ends.then(|| control(&header, frame)),
            acknowledges: flags.has(TcpFlags::ACK) && !flags.has_any(TcpFlags::SYN | TcpFlags::RST),
            window: header.window,
        };
        let own = FlowKey::of(parsed).without_dscp();
        let smaller = self.0.pass(places, [own, own.reversed()], &segment, now);
        smaller.is_some_and(|window| header.set_window(frame, window, offload))
    }
}

/// What a segment opens or ends.
fn control(header: &TcpSegment, frame: &[u8]) -> ControlSegment {
    if header.flags.has_any(TcpFlags::FIN | TcpFlags::RST) {
        ControlSegment::End
    } else if header.flags.has(TcpFlags::ACK) {
        ControlSegment::SynAck(header.acknowledged, header.window_scale(frame))
    } else {
        ControlSegment::Syn(header.sequence, header.window_scale(frame))
    }
}
