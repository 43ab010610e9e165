//! Mediation of ECN: a host takes the part of an end of a TCP connection that does not use ECN.
//!
//! Why: by default no end of a connection asks for ECN, and then no sender can be told by a mark. The host of an unwilling end
//! can ask and answer in its place, so that the other end, if it is willing, slows down at a mark.
//! From: MIMIC §III-D, Algorithm 3 and Table I; RFC 3168 §6.1 (ECN in TCP), RFC 9768 §3.1 (accurate ECN, which is left alone).
//! Not here: reading and rewriting frames (`wire`), the meters that are asked for ([`Guest`]), and marking.
//! Invariant: only segments of connections whose handshake was seen are changed, and of these none where both ends use ECN
//! themselves, nor where accurate ECN is used. A segment for the guest whose numbers do not fit what the guest has sent does
//! nothing: anyone could have sent it. Memory is fixed; where it is used up, further connections are left alone.
//!
//! The algorithm as it is printed changes segments whatever their ends have agreed on. Here, instead, the host of each end
//!
//! 1. sets ECE and CWR on its guest's SYN if the guest does not ask for ECN itself, once: a SYN that is sent again may have been
//!    lost for these flags;
//! 2. sets ECE on its guest's first SYN-ACK if the client asked and the guest did not answer, and takes ECE from a SYN-ACK to a
//!    guest that did not ask;
//! 3. where the guest is not in ECN state and its peer is: turns an arriving CE into the ECT that it was, and sets ECE on all
//!    that the guest sends from then on, until CWR arrives. A guest in ECN state gets its CE and echoes it itself;
//! 4. asks for a meter for its guest's flow when ECE arrives outside a handshake. It sets CWR on the next data that the guest
//!    sends only where the guest is not in ECN state: its own CWR says that it has slowed down.
//!
//! So the sender's stack must be willing, and the host beside the unwilling end stands in for it:
//!
//! | `tcp_ecn` of client, server | server to client | client to server |
//! | --- | --- | --- |
//! | 1 and 1 or 2 | the stack, and a meter | the stack, and a meter |
//! | 0 or 2 and 1 or 2 | the stack, and a meter | a meter by notice |
//! | 1 and 0 | a meter by notice | the stack, and a meter |
//! | 0 or 2 and 0 | a meter by notice | a meter by notice |

mod connection;
mod guest;
mod numbers;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use core::hash::Hash;

use plimsoll_units::Nanos;

use super::connections::Table;
use connection::Connection;

pub use guest::Guest;

/// The ECN field of an IP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codepoint {
    /// The sender does not understand marks.
    #[default]
    NotEct,
    /// ECN-capable, ECT(1).
    Ect1,
    /// ECN-capable, ECT(0).
    Ect0,
    /// The mark.
    Ce,
}

/// The three flags of a TCP segment that ECN uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EcnFlags {
    /// Accurate ECN (RFC 9768).
    pub ae: bool,
    /// Congestion window reduced.
    pub cwr: bool,
    /// ECN-Echo.
    pub ece: bool,
}

/// What mediation reads of a TCP segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Opens a connection.
    pub syn: bool,
    /// Acknowledges.
    pub ack: bool,
    /// Ends its direction.
    pub fin: bool,
    /// Ends the connection.
    pub rst: bool,
    /// Flags of ECN.
    pub flags: EcnFlags,
    /// The packet's ECN field.
    pub ecn: Codepoint,
    /// The number of its first byte, or of its SYN.
    pub sequence: u32,
    /// The byte that its sender expects next.
    pub acknowledged: u32,
    /// Bytes of payload.
    pub payload: u32,
}

/// What is to be changed in a segment; `None` leaves a field as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// ECE.
    pub ece: Option<bool>,
    /// CWR.
    pub cwr: Option<bool>,
    /// The packet's ECN field.
    pub ecn: Option<Codepoint>,
}

impl Change {
    /// Leaves the segment as it is.
    pub const NONE: Self = Self { ece: None, cwr: None, ecn: None };

    /// Whether it changes nothing.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.ece.is_none() && self.cwr.is_none() && self.ecn.is_none()
    }
}

/// What a [`Mediation`] did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediationCounters {
    /// SYNs that ask for ECN in a guest's place.
    pub asked: u64,
    /// SYN-ACKs that grant ECN in a guest's place.
    pub granted: u64,
    /// SYN-ACKs from which a grant was taken that the guest had not asked for.
    pub hidden: u64,
    /// Packets whose mark was taken away and is echoed in the guest's place.
    pub unmarked: u64,
    /// Segments that echo a mark in a guest's place.
    pub echoed: u64,
    /// Segments that say in a guest's place that an echo was heard.
    pub answered: u64,
    /// Segments that asked for a meter.
    pub reports: u64,
    /// Connections that are left alone as there was no place for them.
    pub full: u64,
}

/// The connections of one tenant whose ECN its host mediates. `K` names a connection, for both directions.
///
/// ```
/// use plimsoll_control::backpressure::mediation::{EcnFlags, Mediation, Segment};
/// use plimsoll_units::Nanos;
///
/// let mut host: Mediation<&str> = Mediation::new(1_024, 0);
/// let syn = Segment { syn: true, sequence: 7, ..Segment::default() };
/// let change = host.outbound(&"to the shop", &syn, Nanos::ZERO);
/// assert_eq!((change.ece, change.cwr), (Some(true), Some(true)), "asks in the guest's place");
/// let grant = EcnFlags { ece: true, ..EcnFlags::default() };
/// let syn_ack = Segment { syn: true, ack: true, flags: grant, acknowledged: 8, ..Segment::default() };
/// let (change, meter) = host.inbound(&"to the shop", &syn_ack, Nanos::ZERO);
/// assert_eq!((change.ece, meter), (Some(false), false), "the guest did not ask, and this is no echo");
/// ```
#[derive(Clone, Debug)]
pub struct Mediation<K> {
    table: Table<K, Connection>,
    /// No new connections are taken.
    draining: bool,
    counters: MediationCounters,
}

impl<K> Mediation<K> {
    /// Bytes of the table that [`new`](Self::new) allocates; nothing is allocated here.
    #[must_use]
    pub const fn bytes_of(connections: usize) -> usize {
        Table::<K, Connection>::bytes_of(connections)
    }
}

impl<K: Copy + Eq + Hash> Mediation<K> {
    /// For about this many connections. `seed` is that of the hash, which peers must not know live. Takes all memory.
    #[must_use]
    pub fn new(connections: usize, seed: u64) -> Self {
        Self { table: Table::new(connections, seed), draining: false, counters: MediationCounters::default() }
    }

    /// Takes no new connections from now on, or takes them again. Those that are known stay mediated to their end: the other end
    /// may use ECN only because this host asked for it, and the guest would ignore the marks.
    pub fn drain(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Whether new connections are not taken.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether no connection is known that still needs its place. Looks at all places.
    #[must_use]
    pub fn is_idle(&self, now: Nanos) -> bool {
        self.table.is_idle(now)
    }

    /// Handles a segment that the guest sends, and returns what is to be changed in it. Constant time.
    pub fn outbound(&mut self, key: &K, segment: &Segment, now: Nanos) -> Change {
        let opens = segment.syn && !segment.ack;
        // Data of a connection that is older than this table: its peer's echoes are then told from forged ones.
        let sends = segment.payload > 0 && !segment.rst;
        let found = if (opens || sends) && !self.draining {
            self.table.get_or_insert(key, now)
        } else {
            self.table.get(key, now)
        };
        match found {
            Some(connection) => connection.outbound(segment, !self.draining, &mut self.counters),
            None => {
                self.counters.full += u64::from(opens && !self.draining);
                Change::NONE
            }
        }
    }

    /// Handles a segment for the guest. Returns what is to be changed in it, and whether the guest's own flow on this connection
    /// is to be metered. Constant time.
    pub fn inbound(&mut self, key: &K, segment: &Segment, now: Nanos) -> (Change, bool) {
        let opens = segment.syn && !segment.ack && !self.draining;
        let found = if opens { self.table.get_or_insert(key, now) } else { self.table.get(key, now) };
        let Some(connection) = found else {
            self.counters.full += u64::from(opens);
            return (Change::NONE, false);
        };
        let (change, meter) = connection.inbound(segment, &mut self.counters);
        self.counters.reports += u64::from(meter);
        (change, meter)
    }

    /// What was done.
    #[must_use]
    pub const fn counters(&self) -> MediationCounters {
        self.counters
    }
}
