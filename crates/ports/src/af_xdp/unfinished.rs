//! Notices a peer that leaves its checksums to a device that is not there.
//!
//! Why: AF_XDP hands over no offload information. Packets of a virtual peer whose checksum offload is on then arrive with
//! unfinished checksums, and every receiver drops them without a word, while ping works.
//! From: `Documentation/networking/checksum-offloads.rst`.
//! Not here: completing checksums: a peer that computes its own costs less than a look at each frame.
//! Invariant: after the first [`DENSE`] TCP and UDP frames, only one frame of every [`SPARSE`] is looked at.

use plimsoll_wire::TransportChecksum;

use crate::error::PortError;

/// Number of TCP and UDP frames that are looked at first.
const DENSE: u32 = 64;

/// Of this number of frames, one is looked at from then on: offload may be switched on later.
const SPARSE: u32 = 4_096;

/// Looks at received frames until one has an unfinished checksum.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// TCP and UDP frames that are still looked at one by one.
    dense: u32,
    /// Frames to pass before the next look.
    pass: u32,
    found: Found,
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// To be reported.
    New,
    Reported,
}

impl Default for Unfinished {
    fn default() -> Self {
        Self { dense: DENSE, pass: 0, found: Found::Nothing }
    }
}

impl Unfinished {
    /// Notes a received frame.
    #[inline]
    pub(super) fn note(&mut self, frame: &[u8]) {
        match self.pass.checked_sub(1) {
            Some(left) => self.pass = left,
            None => self.look(frame),
        }
    }

    #[cold]
    fn look(&mut self, frame: &[u8]) {
        match TransportChecksum::of(frame) {
            Some(TransportChecksum::Unfinished) if self.found == Found::Nothing => self.found = Found::New,
            Some(_) => self.dense = self.dense.saturating_sub(1),
            None => {}
        }
        if self.dense == 0 || self.found != Found::Nothing {
            self.pass = SPARSE - 1;
        }
    }

    /// What is wrong with the frames of `interface`, once.
    pub(super) fn take_problem(&mut self, port: &str, interface: &str) -> Option<PortError> {
        if self.found != Found::New {
            return None;
        }
        self.found = Found::Reported;
        Some(PortError::Config {
            what: port.to_owned(),
            problem: format!(
                "received a packet with an unfinished TCP or UDP checksum: its sender left the checksum to a device, and \
                 AF_XDP does not pass that on, so the receiver will drop such packets, and TCP stalls. On the other end \
                 of `{interface}` (for a veth: in its peer's namespace) run `ethtool -K PEER tx off`, or use \
                 `af_packet: {interface}`, which completes checksums"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UDP over IPv4 without data; the pseudo-header sums to 0x1400 + 3 + 17 + 8.
    fn udp(checksum: u16) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0];
        frame.extend([0x45, 0, 0, 28, 0, 7, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x1f, 0x90, 0x01, 0xbb, 0, 8]);
        frame.extend(checksum.to_be_bytes());
        frame
    }

    const UNFINISHED: u16 = 0x1400 + 3 + 17 + 8;
    /// The complement of the pseudo-header, the ports and the length.
    const RIGHT: u16 = !(UNFINISHED + 0x1f90 + 0x01bb + 8);

    #[test]
    fn an_unfinished_checksum_is_reported_once_with_a_way_out() {
        let mut unfinished = Unfinished::default();
        unfinished.note(&udp(RIGHT));
        assert!(unfinished.take_problem("af_xdp up0", "up0").is_none());
        unfinished.note(&udp(UNFINISHED));
        let problem = unfinished.take_problem("af_xdp up0", "up0").expect("a problem").to_string();
        assert!(problem.contains("`ethtool -K PEER tx off`") && problem.contains("`up0`"), "{problem}");
        (0..3 * SPARSE).for_each(|_| unfinished.note(&udp(UNFINISHED)));
        assert!(unfinished.take_problem("af_xdp up0", "up0").is_none(), "once");
    }

    #[test]
    fn right_wrong_and_absent_checksums_are_no_problem() {
        let mut unfinished = Unfinished::default();
        for checksum in [RIGHT, RIGHT ^ 1, 0] {
            (0..DENSE).for_each(|_| unfinished.note(&udp(checksum)));
            assert!(unfinished.take_problem("p", "i").is_none(), "{checksum:#x}");
        }
    }

    #[test]
    fn later_one_frame_of_many_is_looked_at() {
        let mut unfinished = Unfinished::default();
        (0..1_000).for_each(|_| unfinished.note(&[0; 60]));
        (0..DENSE).for_each(|_| unfinished.note(&udp(RIGHT)));
        (1..SPARSE).for_each(|_| unfinished.note(&udp(UNFINISHED)));
        assert!(unfinished.take_problem("p", "i").is_none(), "not looked at yet");
        unfinished.note(&udp(UNFINISHED));
        assert!(unfinished.take_problem("p", "i").is_some());
    }
}
