//! The mode `window`: smaller receive windows in the acknowledgements of flows that are slowed down.
//!
//! Why: it slows down a sender that uses no ECN, without a loss.
//! From: MIMIC §III-E; sizes and scales by `control::backpressure`.
//! Not here: which flows (`press`).
//! Invariant: only acknowledgements to the place that the flow comes from are changed, and of these only the window, which
//! never grows, and the checksum; of a connection whose handshake was not seen none. Each tenant's flows are its own, whatever
//! addresses and ports other tenants use.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use plimsoll_control::backpressure::{ControlSegment, End, FlowSource, Path, Pressed, Windows, window_for};
use plimsoll_units::{Bytes, Nanos};
use plimsoll_wire::{FlowKey, Offload, Parsed, TcpFlags, TcpSegment};

use super::super::heavy::Counted;
use super::super::verify::seed;

/// Connections whose scales are known at a time.
const CONNECTIONS: usize = 32_768;

/// Where frames come from, or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// A tenant of this host whose flows are counted, by its number.
    Tenant(u32),
    /// Another tenant of this host, by its lane.
    Uncounted(usize),
    /// Not this host.
    Away(FlowSource),
}

impl Place {
    fn source(self) -> FlowSource {
        match self {
            Self::Tenant(_) | Self::Uncounted(_) => FlowSource::Here,
            Self::Away(from) => from,
        }
    }
}

/// A connection: the flow that its tenant sends, without DSCP, and that tenant.
type Connection = (FlowKey, u32);

/// The connections that pass, and the windows of flows that are slowed down.
#[derive(Debug)]
pub(in super::super) struct SmallWindows {
    scales: Windows<Connection, Place>,
    held: HashMap<Name, Held, RandomState>,
}

/// A flow that is slowed down: for a tenant or from one, without DSCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name {
    flow: FlowKey,
    tenant: u32,
    inward: bool,
    from: FlowSource,
}

impl Name {
    fn of(counted: &Counted) -> Self {
        let Counted { flow, tenant, inward, from, .. } = *counted;
        Self { flow: flow.without_dscp(), tenant, inward, from }
    }
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
        Windows::<Connection, Place>::bytes_of(CONNECTIONS)
    }

    /// Whether the flow's acknowledgements can be read.
    pub(super) fn knows(&self, counted: &Counted) -> bool {
        let Name { flow, tenant, inward, from } = Name::of(counted);
        let shift = if inward {
            self.scales.shift(&(flow.reversed(), tenant), End::Near, |far| far.source() == from)
        } else {
            self.scales.shift(&(flow, tenant), End::Far, |_| true)
        };
        shift.is_some()
    }

    /// Holds a flow to its rate until it is let go, or its lifetime is over.
    pub(super) fn hold(&mut self, pressed: &Pressed<Counted>) {
        let Pressed { key, target, path: Path { rtt, mss }, until, .. } = *pressed;
        let held = Held { window: window_for(target, rtt, mss), until };
        self.held.insert(Name::of(&key), held);
    }

    /// Lets a flow go.
    pub(super) fn let_go(&mut self, counted: &Counted) {
        self.held.remove(&Name::of(counted));
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
        let Some(mut segment) = TcpSegment::of(frame, parsed) else { return false };
        let flags = segment.flags;
        if flags.has_any(TcpFlags::SYN | TcpFlags::FIN | TcpFlags::RST) {
            self.note(places, &segment, frame, parsed, now);
        }
        if self.held.is_empty() || flags.has_any(TcpFlags::SYN | TcpFlags::RST) || !flags.has(TcpFlags::ACK) {
            return false;
        }
        // Rounded up, so that it is never zero, which would stop the sender.
        let least =
            self.held_to(places, parsed, now).map(|(window, shift)| window.as_u64().div_ceil(1 << shift));
        let smaller = least.and_then(|most| u16::try_from(most).ok()).filter(|most| *most < segment.window);
        smaller.is_some_and(|window| segment.set_window(frame, window, offload))
    }

    /// The window that the flow of an acknowledgement is held to, and by how many bits it is shifted: of what the tenant that
    /// sends the acknowledgement receives, or of what the one that receives it sends.
    fn held_to(&self, [from, to]: [Place; 2], parsed: &Parsed, now: Nanos) -> Option<(Bytes, u8)> {
        let own = FlowKey::of(parsed).without_dscp();
        let back = own.reversed();
        let held = |tenant, inward, from| {
            let held = self.held.get(&Name { flow: back, tenant, inward, from })?;
            (now < held.until).then_some(held.window)
        };
        let received = match from {
            Place::Tenant(tenant) => {
                held(tenant, true, to.source())
                    .zip(self.scales.shift(&(own, tenant), End::Near, |far| far == to))
            }
            _ => None,
        };
        let sent = match to {
            Place::Tenant(tenant) => held(tenant, false, FlowSource::Here).zip(self.scales.shift(
                &(back, tenant),
                End::Far,
                |far| far == from,
            )),
            _ => None,
        };
        received.into_iter().chain(sent).min_by_key(|(window, _)| *window)
    }

    fn note(
        &mut self,
        [from, to]: [Place; 2],
        segment: &TcpSegment,
        frame: &[u8],
        parsed: &Parsed,
        now: Nanos,
    ) {
        let flow = FlowKey::of(parsed);
        let flags = segment.flags;
        let noted = if flags.has_any(TcpFlags::FIN | TcpFlags::RST) {
            ControlSegment::End
        } else if flags.has(TcpFlags::ACK) {
            ControlSegment::SynAck(segment.acknowledged, segment.window_scale(frame))
        } else {
            ControlSegment::Syn(segment.sequence, segment.window_scale(frame))
        };
        if let Place::Tenant(tenant) = from {
            self.scales.note(&(flow.without_dscp(), tenant), End::Near, to, noted, now);
        }
        if let Place::Tenant(tenant) = to {
            self.scales.note(&(flow.reversed(), tenant), End::Far, from, noted, now);
        }
    }
}
