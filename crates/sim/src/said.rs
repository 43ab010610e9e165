//! TCP's header fields in full, where a packet in virtual time leaves out what is as before.
//!
//! Why: a capture and a host that mediates ECN read each segment's numbers, which the model carries only where they matter.
//! From: RFC 9293: all segments but the first SYN acknowledge. A connection's numbers begin at 0 with its SYN, so that the stream's
//! first byte is number 1.
//! Not here: options, and the fields of IP and Ethernet (`trace`).
//! Invariant: a packet that leaves a field out has that of the last packet of its end that passed here.

use crate::tcp::{Ack, Flags, Packet};

/// The last header fields of one end of a connection that passed a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    /// The number of the next byte that it sends.
    next: u32,
    /// The number that it acknowledges.
    acknowledged: u32,
    /// Its receive window, in units of the scale.
    window: u16,
    /// Its last acknowledgement behind the handshake.
    ack: Option<Ack>,
}

/// The fields of a packet's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) syn: bool,
    pub(crate) ack: bool,
    pub(crate) psh: bool,
    pub(crate) cwr: bool,
    pub(crate) ece: bool,
    pub(crate) sequence: u32,
    pub(crate) acknowledged: u32,
    pub(crate) window: u16,
}

impl Default for Said {
    /// The fields after the handshake.
    fn default() -> Self {
        Self { next: 1, acknowledged: 1, window: (65_535 >> WINDOW_SCALE) as u16, ack: None }
    }
}

impl Said {
    /// The header of the next packet that this end sends.
    pub(crate) fn header(&mut self, packet: &Packet) -> Header {
        let answers_syn = packet.ack.is_some_and(|ack| ack.syn());
        let flags = packet.segment.map(|segment| segment.flags).unwrap_or_default();
        let syn = flags.contains(Flags::SYN) || answers_syn;
        let sequence = match packet.segment {
            _ if syn => 0,
            Some(segment) => {
                let end = (segment.end() as u32).wrapping_add(1);
                if end.wrapping_sub(self.next).cast_signed() > 0 {
                    self.next = end;
                }
                (segment.seq as u32).wrapping_add(1)
            }
            None => self.next,
        };
        if let Some(ack) = packet.ack {
            self.window = u16::try_from(ack.window >> WINDOW_SCALE).unwrap_or(u16::MAX);
            self.acknowledged = if answers_syn { 1 } else { (ack.ack as u32).wrapping_add(1) };
            self.ack = Some(ack).filter(|_| !syn);
        }
        // All but a client's SYN acknowledges, whether or not there is something new.
        let acknowledges = !syn || answers_syn;
        let setup = flags.contains(Flags::ECN_SETUP);
        Header {
            syn,
            ack: acknowledges,
            psh: flags.contains(Flags::PSH),
            cwr: flags.contains(Flags::CWR) || setup,
            ece: setup || packet.ack.is_some_and(|ack| ack.ece()),
            sequence,
            acknowledged: if acknowledges { self.acknowledged } else { 0 },
            window: match packet.ack {
                Some(ack) if syn => u16::try_from(ack.window).unwrap_or(u16::MAX),
                _ => self.window,
            },
        }
    }

    /// The last acknowledgement that passed, without its blocks: what a segment says that carries no news.
    pub(crate) fn last_ack(&self) -> Option<Ack> {
        self.ack.map(|ack| Ack::new(ack.ack, ack.window, ack.echo))
    }
}

/// Windows are stated in units of 2^7, as Linux does for some megabytes.
pub(crate) const WINDOW_SCALE: u8 = 7;
