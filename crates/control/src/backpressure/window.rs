//! Receive windows: how small a window must be to hold a flow to a rate, and how a connection writes windows down.
//!
//! Why: a sender obeys its receiver's window whatever its congestion control does, so a smaller window in the acknowledgements
//! that pass slows it down without a loss or a mark.
//! From: MIMIC §III-E (an alternative that the paper finds invasive; never the default); RFC 7323 §2 for the scale.
//! Not here: reading and rewriting segments (`wire`), and which flows.
//! Invariant: a connection's scales are known only if its whole handshake was seen, its SYN-ACK on the way back from the place
//! that the SYN went to or came from; memory is fixed.

use core::hash::Hash;

use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::connections::{Connected, Stage, Table};

/// Segments that a window holds at least: with fewer, a lost segment is found by a timeout only.
const LEAST: u64 = 4;

/// The window with which a flow sends at `target` over a round trip of `rtt`, at least four segments.
///
/// ```
/// use plimsoll_control::backpressure::window_for;
/// use plimsoll_units::{BitRate, Bytes, Span};
///
/// // 800 Mb/s are 100 bytes a microsecond.
/// let mss = Bytes::new(1_500);
/// assert_eq!(window_for(BitRate::mbps(800), Span::micros(770), mss), Bytes::new(77_000));
/// assert_eq!(window_for(BitRate::mbps(1), Span::micros(770), mss), Bytes::new(6_000));
/// ```
#[must_use]
pub fn window_for(target: BitRate, rtt: Span, mss: Bytes) -> Bytes {
    target.bytes_in(rtt).max(Bytes::new(mss.as_u64().saturating_mul(LEAST)))
}

/// The scales of connections' windows. `K` names a connection as its near end, a tenant, sends it; `P` is the place that its far
/// end's segments come from.
#[derive(Clone, Debug)]
pub struct Windows<K, P> {
    table: Table<K, Scales<P>>,
}

#[derive(Clone, Copy, Debug)]
struct Scales<P> {
    /// The last SYN: the end that sent it, the place of the far end, its number, and its scale.
    syn: Option<(End, P, u32, Option<u8>)>,
    /// The scales of the near end and the far one, zero where the two did not both offer one, and the far end's place.
    agreed: Option<([u8; 2], P)>,
    ended: bool,
}

impl<P> Default for Scales<P> {
    fn default() -> Self {
        Self { syn: None, agreed: None, ended: false }
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The tenant's.
    Near,
    /// The other one.
    Far,
}

impl<P> Connected for Scales<P> {
    fn stage(&self) -> Stage {
        match self.agreed {
            _ if self.ended => Stage::Ended,
            Some(_) => Stage::Open,
            None => Stage::Opening,
        }
    }
}

/// A segment of a handshake, or one that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlSegment {
    /// A SYN with its sequence number and its scale, if it offers one.
    Syn(u32, Option<u8>),
    /// A SYN-ACK with the number that it acknowledges, and its scale.
    SynAck(u32, Option<u8>),
    /// A FIN or a RST.
    End,
}

impl<K, P> Windows<K, P> {
    /// Bytes of the table that [`new`](Self::new) allocates; nothing is allocated here.
    #[must_use]
    pub const fn bytes_of(connections: usize) -> usize {
        Table::<K, Scales<P>>::bytes_of(connections)
    }
}

impl<K: Copy + Eq + Hash, P: Copy + Eq> Windows<K, P> {
    /// For about this many connections. `seed` is that of the hash, which peers must not know live. Takes all memory.
    #[must_use]
    pub fn new(connections: usize, seed: u64) -> Self {
        Self { table: Table::new(connections, seed) }
    }

    /// Notes a segment that passes between the near end and this place of the far one. Constant time.
    pub fn note(&mut self, key: &K, from: End, place: P, control: ControlSegment, now: Nanos) {
        match control {
            ControlSegment::Syn(sequence, scale) => {
                if let Some(scales) = self.table.get_or_insert(key, now) {
                    scales.syn = Some((from, place, sequence, scale));
                }
            }
            ControlSegment::SynAck(acknowledged, own) => {
                let Some(scales) = self.table.get(key, now) else { return };
                let Some((other, syns, sequence, theirs)) = scales.syn else { return };
                // What anyone could send without having seen the SYN changes nothing.
                if other == from || place != syns || acknowledged != sequence.wrapping_add(1) {
                    return;
                }
                let (own, theirs) = own.zip(theirs).unwrap_or((0, 0));
                let shifts = if from == End::Near { [own, theirs] } else { [theirs, own] };
                *scales = Scales { agreed: Some((shifts, place)), ..Scales::default() };
            }
            ControlSegment::End => {
                if let Some(scales) = self.table.get(key, now) {
                    scales.ended |= scales.agreed.is_none_or(|(_, far)| far == place);
                }
            }
        }
    }

    /// By how many bits an end shifts the windows that it writes behind the handshake, if the place of the far end is `suitable`;
    /// `None` where that is not known.
    #[must_use]
    pub fn shift(&self, key: &K, end: End, suitable: impl Fn(P) -> bool) -> Option<u8> {
        let ([near, far], _) = self.table.peek(key)?.agreed.filter(|(_, place)| suitable(*place))?;
        Some(match end {
            End::Near => near,
            End::Far => far,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::End::{Far, Near};
    use super::*;

    const NOW: Nanos = Nanos::ZERO;
    const THERE: u8 = 3;
    const ELSEWHERE: u8 = 4;

    fn shifts(windows: &Windows<u8, u8>) -> [Option<u8>; 2] {
        assert_eq!(windows.shift(&0, Near, |place| place == ELSEWHERE), None);
        [Near, Far].map(|end| windows.shift(&0, end, |place| place == THERE))
    }

    #[test]
    fn scales_hold_if_both_ends_offer_one() {
        for (client, server, agreed) in [
            (Some(7), Some(9), [7, 9]),
            (Some(7), None, [0, 0]),
            (None, Some(9), [0, 0]),
            (Some(0), Some(14), [0, 14]),
        ] {
            let mut windows: Windows<u8, u8> = Windows::new(8, 0);
            windows.note(&0, Near, THERE, ControlSegment::Syn(41, client), NOW);
            assert_eq!(shifts(&windows), [None; 2]);
            windows.note(&0, Far, THERE, ControlSegment::SynAck(42, server), NOW);
            assert_eq!(shifts(&windows), agreed.map(Some));
        }
        let mut windows: Windows<u8, u8> = Windows::new(8, 0);
        windows.note(&0, Far, THERE, ControlSegment::Syn(41, Some(3)), NOW);
        windows.note(&0, Near, THERE, ControlSegment::SynAck(42, Some(5)), NOW);
        assert_eq!(shifts(&windows), [Some(5), Some(3)], "the far end was the client");
    }

    #[test]
    fn half_a_handshake_and_one_that_does_not_fit_tell_nothing() {
        let mut windows: Windows<u8, u8> = Windows::new(8, 0);
        windows.note(&0, Far, THERE, ControlSegment::SynAck(42, Some(7)), NOW);
        windows.note(&0, Near, THERE, ControlSegment::End, NOW);
        assert_eq!(shifts(&windows), [None; 2]);
        windows.note(&0, Near, THERE, ControlSegment::Syn(41, Some(7)), NOW);
        windows.note(&0, Far, THERE, ControlSegment::SynAck(41, Some(9)), NOW);
        windows.note(&0, Near, THERE, ControlSegment::SynAck(42, Some(9)), NOW);
        windows.note(&0, Far, ELSEWHERE, ControlSegment::SynAck(42, Some(14)), NOW);
        assert_eq!(shifts(&windows), [None; 2]);
        windows.note(&0, Far, THERE, ControlSegment::SynAck(42, Some(9)), NOW);
        // A SYN in an open connection's name changes nothing until it is answered.
        windows.note(&0, Near, THERE, ControlSegment::Syn(7, Some(1)), NOW);
        windows.note(&0, Near, THERE, ControlSegment::End, NOW);
        assert_eq!(shifts(&windows), [Some(7), Some(9)]);
        // Both halves of a handshake from one place.
        windows.note(&0, Far, ELSEWHERE, ControlSegment::Syn(99, Some(14)), NOW);
        windows.note(&0, Far, ELSEWHERE, ControlSegment::SynAck(100, Some(14)), NOW);
        assert_eq!(shifts(&windows), [Some(7), Some(9)]);
    }
}
