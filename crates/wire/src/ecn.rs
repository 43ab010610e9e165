//! The ECN field of a frame's IP packet.
//!
//! Why: tunnels and markers change two bits of a header whose checksum must stay right.
//! From: RFC 3168 §5 (the codepoints), RFC 1624 (equation 3: incremental update of a checksum).
//! Not here: when to mark; how a tunnel combines an inner and an outer field (`overlay`).
//! Invariant: writing keeps a correct IPv4 checksum correct and a wrong one wrong.

use crate::bytes::{array, be16, put};
use crate::checksum::{add, ones_complement_sum};
use crate::parse::network_header;

/// A codepoint of the ECN field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// Not ECN-capable: the sender does not understand marks. Also the value for frames without an ECN field.
    #[default]
    NotEct,
    /// ECN-capable, ECT(1).
    Ect1,
    /// ECN-capable, ECT(0).
    Ect0,
    /// Congestion experienced: the mark.
    Ce,
}

impl Ecn {
    /// Every codepoint, in the order of its bits.
    pub const ALL: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

    /// The codepoint in the lower two bits of a traffic class.
    #[must_use]
    pub const fn from_bits(class: u8) -> Ecn {
        match class & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// The two bits of this codepoint.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self as u8
    }

    /// Reads the codepoint of a frame's IP packet, behind two VLAN tags at most; none where there is no IP header.
    ///
    /// Reads nothing else, so the rest of the frame may be malformed.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Ecn> {
        let (at, v4) = network_header(frame)?;
        let word = be16(frame, at)?;
        Some(Self::from_bits(if v4 { word } else { word >> 4 } as u8))
    }

    /// Writes this codepoint into a frame's IP packet and updates the header checksum of IPv4. Returns false, and writes
    /// nothing, where there is no IP header.
    #[must_use]
    pub fn write(self, frame: &mut [u8]) -> bool {
        let Some((at, v4)) = network_header(frame) else { return false };
        self.write_at(frame, at, v4).is_some()
    }

    fn write_at(self, frame: &mut [u8], at: usize, v4: bool) -> Option<()> {
        let old = be16(frame, at)?;
        if !v4 {
            let new = old & !0x0030 | u16::from(self.bits()) << 4;
            return put(frame, at, new.to_be_bytes());
        }
        let new = old & !3 | u16::from(self.bits());
        let checksum = be16(frame, at + V4_CHECKSUM)?;
        put(frame, at, new.to_be_bytes())?;
        if new == old {
            return Some(());
        }
        put(frame, at + V4_CHECKSUM, (!add(&[!checksum, !old, new])).to_be_bytes())
    }
}

/// Whether the checksum of the IPv4 header at `at` is right.
pub(crate) fn v4_header_verifies(frame: &[u8], at: usize) -> bool {
    let [first] = array(frame, at).unwrap_or([0]);
    let header = frame.get(at..at + usize::from(first & 0x0f) * 4);
    header.is_some_and(|header| ones_complement_sum(header) == 0xffff)
}

const V4_CHECKSUM: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    fn v4(tos: u8, id: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.udp(1, 2).write(&mut frame, &[1, 2, 3]).unwrap();
        frame[15] = tos;
        frame[18..20].copy_from_slice(&id.to_be_bytes());
        frame[24..26].fill(0);
        let checksum = !ones_complement_sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame
    }

    #[test]
    fn the_field_of_ipv6_straddles_its_bytes() {
        let mut frame = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv6([1; 16], [2; 16], 64);
        builder.udp(1, 2).write(&mut frame, &[1, 2, 3]).unwrap();
        frame[14..18].copy_from_slice(&[0x6b, 0xaf, 0xff, 0xff]); // class 0xba, all of the flow label
        assert_eq!(Ecn::of(&frame), Some(Ecn::Ect0));
        assert!(Ecn::Ce.write(&mut frame));
        assert_eq!(frame[14..18], [0x6b, 0xbf, 0xff, 0xff]);
    }

    #[test]
    fn what_has_no_such_field_is_not_touched() {
        for frame in [vec![], vec![0; 14], [&[0; 12][..], &[8, 6], &[0x45; 46]].concat()] {
            let mut after = frame.clone();
            assert_eq!(Ecn::of(&frame), None);
            assert!(!Ecn::Ce.write(&mut after));
            assert_eq!(after, frame);
        }
    }

    proptest! {
        /// The updated checksum equals one computed over the whole header.
        #[test]
        fn the_checksum_follows(tos: u8, id: u16, to in 0_u8..4) {
            let mut frame = v4(tos, id);
            let to = Ecn::from_bits(to);
            prop_assert_eq!(Ecn::of(&frame), Some(Ecn::from_bits(tos)));
            prop_assert!(to.write(&mut frame));
            prop_assert_eq!(&frame, &v4(tos & !3 | to.bits(), id));
            prop_assert!(v4_header_verifies(&frame, 14));
        }
    }
}
