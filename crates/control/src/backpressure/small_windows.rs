//! The mode `window`: smaller receive windows in the acknowledgements of flows that are slowed down.
//!
//! Why: it slows down a sender that uses no ECN, without a loss.
//! From: MIMIC §III-E; sizes and scales are those of `window`.
//! Not here: which flows are slowed down, and reading and rewriting segments (the driver).
//! Invariant: only acknowledgements to the place that the flow comes from get another window, and a smaller one that is not zero; of
//! a connection whose handshake was not seen none. Each tenant's flows are its own, whatever addresses and ports other tenants use.

use core::hash::Hash;
use std::collections::HashMap;

use foldhash::quality::FixedState;
use plimsoll_units::{BitRate, Bytes, Nanos};

use super::window::{ControlSegment, End, Windows, window_for};
use super::{FlowSource, Path};

/// Connections whose scales are known at a time.
const CONNECTIONS: usize = 32_768;

/// Where packets come from, or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tenant of this host whose flows are counted, by its number.
    Tenant(u32),
    /// Another tenant of this host, by its port.
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

/// A flow that is slowed down: for a tenant or from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slowed<F> {
    /// Its headers.
    pub flow: F,
    /// The tenant.
    pub tenant: u32,
    /// Whether the tenant receives it.
    pub inward: bool,
    /// Where it comes from.
    pub from: FlowSource,
}

/// What is read of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSegment {
    /// What it opens or ends, if anything.
    pub control: Option<ControlSegment>,
    /// Whether it acknowledges, and is no SYN and no RST.
    pub acknowledges: bool,
    /// Its window, as its header has it.
    pub window: u16,
}

/// The connections that pass, and the windows of flows that are slowed down. `F` is a flow, as one end sends it.
///
/// ```
/// use plimsoll_control::HostId;
/// use plimsoll_control::backpressure::{
///     ControlSegment, FlowSource, Path, Place, SenderMac, Slowed, SmallWindows, WindowSegment,
/// };
/// use plimsoll_units::{BitRate, Bytes, Nanos, Span};
///
/// let (now, from) = (Nanos::ZERO, FlowSource::Host(HostId(7), SenderMac([2, 0, 0, 0, 0, 1])));
/// let mut windows: SmallWindows<&str> = SmallWindows::new(64, 0);
/// let [client, server] = [Place::Away(from), Place::Tenant(0)];
/// let [there, back] = [["there", "back"], ["back", "there"]];
/// let opens = |control| WindowSegment { control: Some(control), acknowledges: false, window: 65_535 };
/// windows.pass([client, server], there, &opens(ControlSegment::Syn(41, Some(7))), now);
/// windows.pass([server, client], back, &opens(ControlSegment::SynAck(42, Some(7))), now);
/// let slowed = Slowed { flow: "there", tenant: 0, inward: true, from };
/// assert!(windows.knows(&slowed, "back"));
/// // 800 Mb/s over 0.77 ms are 77,000 bytes: 602 units of 128 bytes, rounded up.
/// let path = Path { rtt: Span::micros(770), mss: Bytes::new(1_500) };
/// windows.hold(slowed, BitRate::mbps(800), path, now + Span::secs(3));
/// let ack = WindowSegment { control: None, acknowledges: true, window: 8_192 };
/// assert_eq!(windows.pass([server, client], back, &ack, now), Some(602));
/// assert_eq!(windows.pass([client, server], there, &ack, now), None, "what the flow's sender receives is not held");
/// ```
#[derive(Clone, Debug)]
pub struct SmallWindows<F> {
    /// By the flow that a tenant sends, and the tenant.
    scales: Windows<(F, u32), Place>,
    held: HashMap<Slowed<F>, Held, FixedState>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    window: Bytes,
    until: Nanos,
}

impl<F> SmallWindows<F> {
    /// Bytes of the table of connections. Nothing is allocated.
    #[must_use]
    pub const fn memory() -> usize {
        Windows::<(F, u32), Place>::bytes_of(CONNECTIONS)
    }
}

impl<F: Copy + Eq + Hash> SmallWindows<F> {
    /// For this many flows at a time. `seed` is that of the hashes, which peers must not know live. Takes all memory.
    #[must_use]
    pub fn new(flows: usize, seed: u64) -> Self {
        Self {
            scales: Windows::new(CONNECTIONS, seed),
            held: HashMap::with_capacity_and_hasher(flows, FixedState::with_seed(seed)),
        }
    }

    /// Whether the acknowledgements of a flow, which travel on the flow `back`, can be read.
    #[must_use]
    pub fn knows(&self, slowed: &Slowed<F>, back: F) -> bool {
        let Slowed { flow, tenant, inward, from } = *slowed;
        let shift = if inward {
            self.scales.shift(&(back, tenant), End::Near, |far| far.source() == from)
        } else {
            self.scales.shift(&(flow, tenant), End::Far, |_| true)
        };
        shift.is_some()
    }

    /// Holds a flow to `target` until it is let go, or until this moment.
    pub fn hold(&mut self, slowed: Slowed<F>, target: BitRate, Path { rtt, mss }: Path, until: Nanos) {
        self.held.insert(slowed, Held { window: window_for(target, rtt, mss), until });
    }

    /// Lets a flow go.
    pub fn let_go(&mut self, slowed: &Slowed<F>) {
        self.held.remove(slowed);
    }

    /// Whether no flow is held, so that only segments that open or end a connection matter.
    #[inline]
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }

    /// Handles a segment on its way from one place to another; it belongs to the first of the `flows`, and the second is the way
    /// back. Notes handshakes, and returns the smaller window that an acknowledgement is to have if its flow is held. Constant time.
    pub fn pass(
        &mut self,
        places: [Place; 2],
        flows: [F; 2],
        segment: &WindowSegment,
        now: Nanos,
    ) -> Option<u16> {
        if let Some(control) = segment.control {
            self.note(places, flows, control, now);
        }
        if self.held.is_empty() || !segment.acknowledges {
            return None;
        }
        let (window, shift) = self.held_to(places, flows, now)?;
        // Rounded up, so that it is never zero, which would stop the sender.
        let least = u16::try_from(window.as_u64().div_ceil(1 << shift)).ok()?;
        (least < segment.window).then_some(least)
    }

    /// The window that the flow of an acknowledgement is held to, and by how many bits it is shifted: of what the tenant that
    /// sends the acknowledgement receives, or of what the one that receives it sends.
    fn held_to(&self, [from, to]: [Place; 2], [own, back]: [F; 2], now: Nanos) -> Option<(Bytes, u8)> {
        let held = |tenant, inward, from| {
            let held = self.held.get(&Slowed { flow: back, tenant, inward, from })?;
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

    fn note(&mut self, [from, to]: [Place; 2], [own, back]: [F; 2], control: ControlSegment, now: Nanos) {
        if let Place::Tenant(tenant) = from {
            self.scales.note(&(own, tenant), End::Near, to, control, now);
        }
        if let Place::Tenant(tenant) = to {
            self.scales.note(&(back, tenant), End::Far, from, control, now);
        }
    }
}
