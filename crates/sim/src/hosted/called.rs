//! Packets that a program sends to coprocessors, and that come back to it.
//!
//! Why: a coprocessor changes bytes, and the simulator carries fields: a packet keeps both until the program lets it go on.
//! From: the daemon's `hosted::come_back`: a packet that comes back lies in the program's pool until the next batch of its direction.
//! Not here: the coprocessors (`units`), what the bytes say afterwards (`left`).
//! Invariant: a packet that comes back is in a later batch of its direction, or is lost for a counted reason.

use plimsoll_offload::{Decided, Packet as Given, UnitCall, Way};

use super::{Begun, Ended, Hosted, To, Waits};
use crate::flow::Flow;
use crate::packet::Packet;
use crate::units::{Answer, Call, NO_UNIT};

/// A packet that has come back, in a buffer of the program's.
#[derive(Debug)]
pub(super) struct Returned {
    given: Given,
    pub(super) packet: Packet,
    waits: Option<Waits>,
    pub(super) added: bool,
    headers: Vec<u8>,
}

impl Hosted {
    /// Notes that a coprocessor has taken a call.
    pub(crate) fn is_served(&mut self) {
        self.now.to_units += 1;
    }

    /// Takes a packet back from a coprocessor.
    pub(crate) fn come_back(&mut self, answer: Answer) {
        let Answer { call: Call { request, way, packet, waits, added, headers }, result, .. } = answer;
        match self.program.give_back(&request, result) {
            Some(given) => {
                self.returned[way as usize].push_back(Returned { given, packet, waits, added, headers });
            }
            None => self.ended.push(Ended { packet, to: To::Nowhere("program_no_room"), added, waits }),
        }
    }

    /// Makes a call of what a program wants done with a packet of the batch, which is at `own` there unless the program has added it.
    pub(super) fn send_to_unit(
        &mut self,
        way: Way,
        (decided, wanted): (&Decided, UnitCall),
        own: Option<usize>,
        flows: &[Flow],
    ) {
        let frame = self.program.packet(decided);
        let (packet, waits, added) = match own.map(|own| &self.batch[own]) {
            Some(begun) => (Ok(begun.packet), begun.waits, begun.added),
            None => (self.read(frame, None, flows), None, true),
        };
        let request = self.program.request(decided, wanted).ok_or(NO_UNIT);
        match packet.and_then(|packet| Ok((packet, request?))) {
            Ok((packet, request)) => {
                let headers = match own.map(|own| self.batch[own].headers) {
                    Some((begin, end)) => self.headers[begin..end].to_vec(),
                    None => frame.to_vec(),
                };
                self.calls.push(Call { request, way, packet, waits, added, headers });
            }
            Err(why) => {
                let packet = packet.unwrap_or(self.batch[own.unwrap_or(0)].packet);
                self.ended.push(Ended { packet, to: To::Nowhere(why), added, waits });
            }
        }
    }

    /// Puts packets that have come back into the batch, at most `most`; answers how many they are.
    pub(super) fn take_back(&mut self, way: Way, most: usize) -> usize {
        let returned = &mut self.returned[way as usize];
        let count = returned.len().min(most);
        for Returned { given, packet, waits, added, headers } in returned.drain(..count) {
            let begin = self.headers.len();
            self.headers.extend_from_slice(&headers);
            let headers = (begin, self.headers.len());
            self.batch.push(Begun { packet, waits, given, headers, added, answered: false });
        }
        count
    }

    /// Lets the packets of the batch go on without the program.
    pub(super) fn pass_batch(&mut self, way: Way, flows: &[Flow]) {
        let to = if way == Way::Ingress { To::Tenant } else { To::Network };
        for own in 0..self.batch.len() {
            let Begun { packet, given, waits, added, .. } = self.batch[own];
            let left = self.left(&self.program.bytes(given.slot)[..given.len as usize], Some(own), to, flows);
            let (packet, to) = left.map_or_else(|why| (packet, To::Nowhere(why)), |packet| (packet, to));
            self.ended.push(Ended { packet, to, added, waits });
            self.program.give(given.slot);
        }
        self.batch.clear();
        self.headers.clear();
    }

    /// Loses the packets of the batch.
    pub(super) fn lose_batch(&mut self, why: &'static str) {
        for begun in self.batch.drain(..) {
            self.program.give(begun.given.slot);
            self.ended.push(begun.ends(To::Nowhere(why)));
        }
        self.headers.clear();
    }
}
