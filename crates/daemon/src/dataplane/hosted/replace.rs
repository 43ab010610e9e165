//! Programs of a reload: one follows another, with its packets and its state, or none does.
//!
//! Why: a reload must lose none of the packets that wait, whichever program they wait for.
//! Not here: reading and starting programs (`crate::programs`), state on a core of its own (`own_core`).
//! Invariant: a packet that waits for a program passes the one that follows it, or passes where none does; the time that a migration takes on
//! the engine's thread is its tenant's.

use plimsoll_offload::{Packet, StateError};
use plimsoll_units::Nanos;

use super::super::Dataplane;
use super::super::drops::{Loss, Tally};
use super::super::install::Installed;
use super::{Hosted, Leaving};
use crate::programs::used;

impl Hosted {
    /// Takes over from the program before it: its packets, and its state where that is to be kept. Answers why the state was not.
    fn follow(&mut self, before: &mut Self, tally: &mut Tally) -> Option<StateError> {
        let not_kept = before.hand_state(self);
        self.outgoing.append(&mut before.outgoing);
        self.begun = core::mem::take(&mut before.begun);
        let incoming = before.incoming.drain(..).map(|packet| (packet, true));
        let all: Vec<_> = incoming.chain(before.returned.drain(..).map(|packet| (packet, false))).collect();
        for (packet, comes_in) in all {
            let bytes = &before.program.bytes(packet.slot)[..packet.len as usize];
            let fits = bytes.len() <= self.program.limits().buffer as usize;
            match if fits { self.program.take() } else { None } {
                None if fits => tally.lost(Loss::ProgramNoRoom),
                Some(slot) => {
                    self.program.bytes_mut(slot)[..bytes.len()].copy_from_slice(bytes);
                    let to = if comes_in { &mut self.incoming } else { &mut self.returned };
                    to.push_back(Packet { slot, ..packet });
                }
                None => tally.lost(Loss::ProgramTooLong),
            }
            before.program.give(packet.slot);
        }
        not_kept
    }
}

impl Dataplane {
    /// Puts other programs in place of those that tenants had; without one a tenant's packets pass.
    pub(in super::super) fn install_programs(
        &mut self,
        programs: Vec<(String, Option<Box<Hosted>>)>,
        installed: &mut Installed,
        now: Nanos,
    ) {
        for (name, program) in programs {
            let Some(index) = self.lane_of(&name) else {
                installed.programs.extend(program);
                continue;
            };
            let before = self.tenants.lane(index).and_then(|lane| lane.program.as_deref_mut());
            match before.filter(|hosted| !hosted.is_here()) {
                Some(before) => installed.programs.extend(before.leave_to(program)),
                None => installed.programs.extend(self.replace_program(index, program, now)),
            }
        }
        self.note_programs();
    }

    /// Gives a tenant, which this engine serves, its first program.
    pub fn start_program(&mut self, tenant: &str, program: Box<Hosted>) {
        if let Some(index) = self.lane_of(tenant) {
            drop(self.replace_program(index, Some(program), Nanos::ZERO));
            self.note_programs();
        }
    }

    /// Puts a program in place of the one whose core has given back all that it had.
    pub(super) fn follow_program(&mut self, index: u32, now: Nanos) {
        let hosted = self.tenants.lane(index).and_then(|lane| lane.program.as_deref_mut());
        let Some(Leaving { next }) = hosted.and_then(|hosted| hosted.leaving.take()) else { return };
        drop(self.replace_program(index, next, now));
        self.note_programs();
    }

    /// Puts another program, or none, in place of the one that a tenant has, which is the answer.
    fn replace_program(
        &mut self,
        index: u32,
        program: Option<Box<Hosted>>,
        now: Nanos,
    ) -> Option<Box<Hosted>> {
        let (waiting, begun) = (self.lift_from_pool(index), used());
        let lane = self.tenants.lane(index)?;
        let mut before = lane.program.take();
        match (&mut before, program) {
            (Some(before), Some(mut program)) => {
                let not_kept = program.follow(before, &mut lane.tally);
                not_kept.iter().for_each(|why| self.tell_not_kept(&program.tenant, why));
                self.tenants.lane(index)?.program = Some(program);
                // Its program saves and takes over its state on this thread, and its packets are copied.
                self.inward.charge_lane(index as usize, used().since(begun), now);
            }
            (Some(before), None) => self.pass_waiting(before, index as usize, now),
            (None, program) => lane.program = program,
        }
        self.store_lifted(index, &waiting, now);
        let lane = self.tenants.lane(index);
        let has_packets =
            lane.and_then(|lane| lane.program.as_ref()).is_some_and(|hosted| hosted.has_packets());
        self.inward.set_work(index, has_packets);
        before
    }

    fn note_programs(&mut self) {
        let has_programs = self.tenants.all().any(|lane| lane.program.is_some());
        self.tenants.has_programs = has_programs;
    }
}
