//! The numbers of a connection, as its guest uses them.
//!
//! Why: anyone can send a segment in the peer's name. One that does not know the connection's numbers must change nothing.
//! From: RFC 5961 §5 (an acknowledgement must lie near what was sent). The bounds are ours.
//! Not here: what a segment that fits does (`connection`).
//! Invariant: what the guest has sent is taken from its own segments alone; the peer's can only make less of it acceptable.

use super::Segment;

/// How far behind the newest number a segment may be: packets overtake each other.
const SLACK: u32 = 256 << 10;

/// Bytes under way from the guest, at most.
const UNDER_WAY: u32 = 16 << 20;

/// How far ahead of the guest's acknowledgement the peer may be: the largest receive windows.
const WINDOW: u32 = 16 << 20;

/// A jump beyond this is no progress of the same connection.
const JUMP: u32 = 1 << 30;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    sent: Option<Sent>,
    /// The number that the guest expects next.
    expects: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    /// One past the highest number that the guest has sent.
    end: u32,
    /// Bytes before `end` that the peer has not acknowledged.
    under_way: u32,
}

impl Numbers {
    /// Notes a segment that the guest sends.
    pub(super) fn note_sent(&mut self, segment: &Segment) {
        let len =
            segment.payload.saturating_add(u32::from(segment.syn)).saturating_add(u32::from(segment.fin));
        let end = segment.sequence.wrapping_add(len);
        match &mut self.sent {
            // Sent again.
            Some(sent) if sent.end.wrapping_sub(end) <= UNDER_WAY => {}
            Some(sent) if end.wrapping_sub(sent.end) <= JUMP => {
                let under_way = sent.under_way.saturating_add(end.wrapping_sub(sent.end));
                *sent = Sent { end, under_way: under_way.min(UNDER_WAY) };
            }
            sent => *sent = Some(Sent { end, under_way: len.min(UNDER_WAY) }),
        }
        if segment.ack {
            self.note_expected(segment.acknowledged);
        }
    }

    /// Notes the number that the guest expects next, as it says itself, or as its peer's first answer implies.
    pub(super) fn note_expected(&mut self, number: u32) {
        // A segment that waited for its flow's rate says what was expected earlier.
        if self.expects.is_none_or(|expects| expects.wrapping_sub(number) > SLACK) {
            self.expects = Some(number);
        }
    }

    /// Whether a segment for the guest fits the connection, so that its sender has seen it.
    pub(super) fn fits(&self, segment: &Segment) -> bool {
        let Some((Sent { end, under_way }, expects)) = self.sent.zip(self.expects) else { return false };
        let acknowledged = segment.ack && end.wrapping_sub(segment.acknowledged) <= under_way + SLACK;
        let sequence = segment.sequence.wrapping_sub(expects.wrapping_sub(SLACK)) <= SLACK + WINDOW;
        acknowledged && sequence
    }

    /// Notes what a segment that fits acknowledges.
    pub(super) fn note_acknowledged(&mut self, number: u32) {
        if let Some(sent) = &mut self.sent {
            sent.under_way = sent.under_way.min(sent.end.wrapping_sub(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(sequence: u32, acknowledged: u32, payload: u32) -> Segment {
        Segment { ack: true, sequence, acknowledged, payload, ..Segment::default() }
    }

    fn fits(numbers: &Numbers, sequence: u32, acknowledged: u32) -> bool {
        numbers.fits(&sent(sequence, acknowledged, 0))
    }

    #[test]
    fn only_what_is_near_fits() {
        for base in [0, 5, 1 << 31, u32::MAX - 10] {
            let mut numbers = Numbers::default();
            let [own, peer] = [base, base ^ 0x4000_0000];
            assert!(!fits(&numbers, peer, own), "nothing was sent");
            numbers.note_sent(&sent(own, peer, 10 << 20));
            let end = own.wrapping_add(10 << 20);
            for (acknowledged, near) in [
                (end, true),
                (own, true),
                (own.wrapping_sub(SLACK), true),
                (own.wrapping_sub(SLACK + 1), false),
                (end.wrapping_add(1), false),
                (own.wrapping_add(1 << 31), false),
            ] {
                assert_eq!(fits(&numbers, peer, acknowledged), near, "{acknowledged} of {own} to {end}");
            }
            for (ahead, near) in [(0, true), (WINDOW, true), (WINDOW + 1, false), (1 << 31, false)] {
                assert_eq!(fits(&numbers, peer.wrapping_add(ahead), end), near, "{ahead}");
            }
            // What is acknowledged need not be acknowledged again.
            numbers.note_acknowledged(end);
            assert!(fits(&numbers, peer, end) && !fits(&numbers, peer, own));
            // Sent again, and elsewhere.
            numbers.note_sent(&sent(own, peer, 100));
            assert!(fits(&numbers, peer, end));
            numbers.note_sent(&sent(own.wrapping_add(3 << 30), peer, 100));
            assert!(!fits(&numbers, peer, end) && fits(&numbers, peer, own.wrapping_add(3 << 30)));
        }
    }

    /// Of all pairs of numbers one in a million fits a connection with 256 KiB under way.
    #[test]
    fn a_guess_hardly_ever_fits() {
        let mut numbers = Numbers::default();
        numbers.note_sent(&sent(0x1234_5678, 0x9abc_def0, 256 << 10));
        let mut state = 1_u64;
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let hits = (0..4_000_000).filter(|_| fits(&numbers, number(), number())).count();
        assert!(hits <= 12, "{hits} of four million");
    }

    proptest! {
        /// A sender that never has more than 16 MiB under way, and a peer within the largest window: all that the peer sends
        /// fits, however far the numbers go.
        #[test]
        fn what_the_peer_sends_fits(
            start: [u32; 2],
            steps in proptest::collection::vec((0_u32..4 << 20, 0_u32..4 << 20, 0_u32..8), 1..400),
        ) {
            let mut numbers = Numbers::default();
            let [mut own, mut peer] = start;
            let mut acknowledged = own;
            for (out, back, quarters) in steps {
                let room = UNDER_WAY - own.wrapping_sub(acknowledged);
                let out = out.min(room);
                numbers.note_sent(&sent(own, peer, out));
                own = own.wrapping_add(out);
                acknowledged = acknowledged.wrapping_add(own.wrapping_sub(acknowledged) / 8 * quarters);
                let ahead = peer.wrapping_add(back);
                prop_assert!(fits(&numbers, ahead, acknowledged));
                numbers.note_acknowledged(acknowledged);
                peer = ahead;
            }
        }
    }
}
