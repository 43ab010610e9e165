//! The senders of frames that an uplink had taken and could not send.
//!
//! Why: a loss counts for the tenant that sent the frame, also when the kernel refuses it a moment later.
//! From: the numbers by which ports name such frames (`plimsoll_ports::Refused`).
//! Not here: frames that a port refuses at once (`depart`).
//! Invariant: each such frame is counted once: for its tenant, or, if its tenant is no longer known, for the uplink.

use plimsoll_ports::{DropReason, Port, Refused};

use super::Dataplane;

/// More than any port holds: a packet socket takes 32, a ring of AF_XDP 4,096, and the buffer of a capture some 1,500.
const KNOWN: usize = 8_192;

/// The lane that sent each of the last frames that the uplink's port has taken.
#[derive(Debug)]
pub(crate) struct Senders {
    lanes: Box<[u16]>,
    /// Frames noted so far.
    noted: u64,
    /// Losses of a port that is gone, which have not been counted yet.
    losses: Vec<(u16, DropReason)>,
}

impl Default for Senders {
    fn default() -> Self {
        Self { lanes: vec![0; KNOWN].into_boxed_slice(), noted: 0, losses: Vec::new() }
    }
}

impl Senders {
    /// Notes that the port has taken `taken` frames by now, the latest of them from this lane.
    #[inline]
    pub(crate) fn note(&mut self, taken: u64, from: u32) {
        for number in self.noted..taken {
            self.lanes[place(number)] = u16::try_from(from).unwrap_or(u16::MAX);
        }
        self.noted = taken;
    }

    /// Keeps the losses of a port that is gone, to be counted; the next port numbers its frames anew.
    pub(crate) fn port_lost(&mut self, port: &mut Port) {
        while let Some(refused) = port.take_refused() {
            self.blame(refused);
        }
        self.noted = 0;
    }

    /// The lanes of the last `count` frames, as far as they are known.
    pub(crate) fn latest(&self, count: usize) -> Vec<u16> {
        let first = self.noted.saturating_sub(count.min(KNOWN) as u64);
        (first..self.noted).map(|number| self.lanes[place(number)]).collect()
    }

    /// Goes on with another port, which has taken this number of frames before.
    pub(crate) fn follow(&mut self, taken: u64) {
        self.noted = taken;
    }

    fn blame(&mut self, Refused { first, frames, reason }: Refused) {
        let known = first.max(self.noted.saturating_sub(KNOWN as u64))..(first + frames).min(self.noted);
        self.losses.extend(known.map(|number| (self.lanes[place(number)], reason)));
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number % KNOWN as u64).unwrap_or(0)
}

impl Dataplane {
    /// Counts frames that the uplink had taken and could not send as losses of their tenants.
    pub(super) fn blame_senders(&mut self) {
        let uplink = &mut self.uplink;
        while let Some(refused) = uplink.port.as_mut().and_then(Port::take_refused) {
            uplink.senders.blame(refused);
        }
        for (lane, reason) in uplink.senders.losses.drain(..) {
            if let Some(lane) = self.tenants.lanes.get_mut(usize::from(lane)).and_then(Option::as_mut) {
                lane.tally.undelivered(reason);
                uplink.blamed[reason as usize] += 1;
            }
        }
    }
}
