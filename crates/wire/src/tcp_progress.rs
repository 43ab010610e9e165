//! The parts of a TCP header that tell how far a connection has come: sequence numbers, SYN and timestamps.
//!
//! Why: an observer between two hosts measures their round-trip time by matching a segment with its acknowledgement.
//! From: RFC 9293 §3.1 (the header), RFC 7323 §3 (timestamps).
//! Not here: matching segments (`control::backpressure::rtt`), changing them.
//! Invariant: reads only inside the segment, whose end the caller states; a malformed option ends the search for timestamps.

use crate::bytes::{array, be32};
use crate::parse::{Fragment, Parsed, protocol};

/// The position of a segment in its connection, and what it acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpProgress {
    /// Whether it opens its direction of the connection (SYN).
    pub syn: bool,
    /// Sequence number of its first byte.
    pub seq: u32,
    /// Sequence numbers that it takes: its payload, and one for SYN and for FIN each.
    pub len: u32,
    /// The next sequence number that its sender expects; none without ACK.
    pub acknowledged: Option<u32>,
    /// The timestamps option: TSval, and TSecr, which counts only with ACK.
    pub timestamps: Option<(u32, u32)>,
}

/// Where a frame's TCP segment begins and ends. Equal for all frames that are [`alike`](crate::alike()).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPlace {
    l4: u16,
    end: u32,
}

impl TcpPlace {
    /// The place in a frame with these headers; none where it is not a whole packet of TCP.
    #[inline]
    #[must_use]
    pub fn of(parsed: &Parsed) -> Option<Self> {
        let ip = parsed.ip.as_ref()?;
        let whole = ip.protocol == protocol::TCP && ip.fragment == Fragment::Whole && ip.ports.is_some();
        whole.then_some(Self { l4: ip.l4, end: ip.end })
    }

    /// Whether the segment there has SYN set. Reads one byte.
    #[inline]
    #[must_use]
    pub fn is_syn(self, frame: &[u8]) -> bool {
        frame.get(usize::from(self.l4) + FLAGS).is_some_and(|flags| flags & SYN != 0)
    }

    /// Reads the segment; none where its header is cut short. Only the frame's headers need be at hand.
    #[must_use]
    pub fn read(self, frame: &[u8]) -> Option<TcpProgress> {
        let end = self.end as usize;
        let segment = frame.get(usize::from(self.l4)..end.min(frame.len()))?;
        let [words, flags] = array(segment, WORDS)?;
        let header = usize::from(words >> 4) * 4;
        let options = segment.get(SHORTEST..header)?;
        let ends = [SYN, FIN].map(|flag| u32::from(flags & flag != 0));
        let payload = u32::try_from(end.checked_sub(usize::from(self.l4) + header)?).ok()?;
        Some(TcpProgress {
            syn: flags & SYN != 0,
            seq: be32(segment, 4)?,
            len: payload + ends[0] + ends[1],
            acknowledged: if flags & ACK != 0 { be32(segment, 8) } else { None },
            timestamps: timestamps(options),
        })
    }
}

/// Finds the timestamps option.
fn timestamps(mut options: &[u8]) -> Option<(u32, u32)> {
    loop {
        match *options {
            [NO_OPERATION, ref rest @ ..] => options = rest,
            [END, ..] | [_] | [] => return None,
            [TIMESTAMPS, TIMESTAMPS_LEN, ..] => return Some((be32(options, 2)?, be32(options, 6)?)),
            // A length below two would not end.
            [_, len, ..] if len < 2 => return None,
            [_, len, ..] => options = options.get(usize::from(len)..)?,
        }
    }
}

/// Offsets of the header's length in words, and of the flags behind it.
const WORDS: usize = 12;
const FLAGS: usize = 13;
const SHORTEST: usize = 20;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const TIMESTAMPS: u8 = 8;
const TIMESTAMPS_LEN: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;
    use etherparse::{PacketBuilder, TcpOptionElement as Option_};
    use proptest::prelude::*;

    fn frame(
        v6: bool,
        options: &[Option_],
        payload: usize,
        flags: fn(&mut etherparse::TcpHeader),
    ) -> Vec<u8> {
        let mut header = etherparse::TcpHeader::new(1, 80, 1_000, 500);
        header.set_options(options).unwrap();
        flags(&mut header);
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let builder = if v6 {
            builder.ipv6([1; 16], [2; 16], 64)
        } else {
            builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        };
        let mut frame = Vec::new();
        builder.tcp_header(header).write(&mut frame, &vec![7; payload]).unwrap();
        frame
    }

    fn read(frame: &[u8]) -> Option<TcpProgress> {
        TcpPlace::of(&parse(frame).ok()?)?.read(frame)
    }

    #[test]
    fn a_segment_is_read_behind_either_ip_and_padding_is_no_payload() {
        let stamps = [Option_::Noop, Option_::Noop, Option_::Timestamp(7, 9)];
        for v6 in [false, true] {
            let mut data = frame(v6, &stamps, 100, |header| {
                (header.ack, header.acknowledgment_number) = (true, 77);
            });
            let segment = TcpProgress {
                syn: false,
                seq: 1_000,
                len: 100,
                acknowledged: Some(77),
                timestamps: Some((7, 9)),
            };
            assert_eq!(read(&data), Some(segment));
            data.extend([0; 30]);
            assert_eq!(read(&data), Some(segment), "padding");
            let opening = frame(v6, &[Option_::MaximumSegmentSize(1_460)], 0, |header| header.syn = true);
            let expected =
                TcpProgress { syn: true, seq: 1_000, len: 1, acknowledged: None, timestamps: None };
            assert_eq!(read(&opening), Some(expected));
            assert!(TcpPlace::of(&parse(&opening).unwrap()).unwrap().is_syn(&opening));
        }
    }

    #[test]
    fn options_that_do_not_end_or_are_cut_short_have_no_timestamps() {
        for options in
            [&[5_u8, 0, 8, 10][..], &[2, 1], &[8, 10, 1, 2, 3], &[0, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0], &[8]]
        {
            assert_eq!(timestamps(options), None, "{options:?}");
        }
        assert_eq!(timestamps(&[3, 3, 7, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]), Some((1, 2)));
    }

    #[test]
    fn other_protocols_and_fragments_have_no_place() {
        let mut udp = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.udp(1, 2).write(&mut udp, &[0; 30]).unwrap();
        assert_eq!(TcpPlace::of(&parse(&udp).unwrap()), None);
        let mut first = frame(false, &[], 100, |_| {});
        first[20] = 0x20; // more fragments follow
        assert_eq!(TcpPlace::of(&parse(&first).unwrap()), None);
    }

    proptest! {
        /// Any options, and any place: no panic, and a payload within the frame.
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..120), l4 in 0_u16..130, end in 0_u32..140,
        ) {
            let place = TcpPlace { l4, end };
            let _ = place.is_syn(&bytes);
            if let Some(segment) = place.read(&bytes) {
                prop_assert!(segment.len <= end + 2);
            }
        }
    }
}
