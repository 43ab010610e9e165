//! Programs on cores of their own: what they give back, and how one takes over from another.
//!
//! Why: such a program decides while the engine does other things, and the engine must not wait for it.
//! From: FairNIC §4.1: a tenant's cores are its own, also while they are idle.
//! Not here: what is done with a packet once it is decided (`run`), the thread (`crate::cores`).
//! Invariant: batches come back in the order in which they went; a program is replaced once all of its own are back.

use plimsoll_offload::{Fault, Load, Place as At, StateError};
use plimsoll_policy::StateKept;
use plimsoll_units::{Nanos, Span};

use super::super::Dataplane;
use super::super::drops::Loss;
use super::{Hosted, LONGEST_CALL, Leaving};
use crate::cores::{Job, Work};

/// How soon the engine looks for what a core has done, while it has something to do.
const LOOK: Span = Span::micros(50);

impl Hosted {
    /// Whether it may be called with packets now: its core has room, and no other program is to follow.
    pub(super) fn may_call(&self) -> bool {
        self.leaving.is_none() && self.program.has_room()
    }

    /// When to look for what its core has done.
    pub(super) fn look_at(&self, now: Nanos) -> Option<Nanos> {
        (self.program.is_away() || self.leaving.is_some()).then(|| now + LOOK)
    }

    /// Whether another program is to follow, and can.
    pub(super) fn has_left(&self) -> bool {
        self.leaving.is_some() && !self.program.is_away()
    }

    /// Has another program follow this one, or none, once its core has given back what it has. Answers one that was to follow before.
    pub(super) fn leave_to(&mut self, next: Option<Box<Self>>) -> Option<Box<Self>> {
        let keeps = next.as_ref().is_some_and(|next| next.state == StateKept::Keep);
        if let Some(core) = self.program.core_mut().filter(|_| keeps) {
            core.save();
        }
        self.leaving.replace(Leaving { next })?.next
    }

    /// Hands its state to the program that follows. Answers why it was not taken over, where that is known at once.
    pub(super) fn hand_state(&mut self, next: &mut Self) -> Option<StateError> {
        if next.state == StateKept::Drop {
            return None;
        }
        let saved = self.program.save(self.epochs.as_ref());
        let kept = match saved {
            // Its thread has died with it, as the log says already.
            None => {
                next.now.kept_state = Some(false);
                return None;
            }
            Some(Ok(state)) => next.program.restore(next.epochs.clone().as_ref(), state)?,
            Some(Err(why)) => Err(why),
        };
        next.now.kept_state = Some(kept.is_ok());
        kept.err()
    }
}

impl Dataplane {
    /// Takes back what a program on a core of its own has done, one batch of it at most, so that a turn is as long as on the engine's core.
    /// Answers how much that was.
    pub(super) fn collect_done(&mut self, hosted: &mut Hosted, index: u32, now: Nanos) -> usize {
        let mut count = 0;
        while let Some(Job { work, took }) = hosted.program.core_mut().and_then(|core| core.done()) {
            count += 1;
            hosted.now.core_time += took;
            let is_batch = matches!(work, Work::Run(_));
            let mut fault = match work {
                Work::Run(load) => self.settle(hosted, load, took, (index, now)),
                Work::Tick(_, fault) => fault,
                Work::Save(state) => {
                    if let Some(core) = hosted.program.core_mut() {
                        core.keep_saved(state);
                    }
                    continue;
                }
                Work::Restore(_, why) => {
                    hosted.now.kept_state = Some(why.is_none());
                    why.iter().for_each(|why| self.tell_not_kept(&hosted.tenant, why));
                    continue;
                }
            };
            if took >= LONGEST_CALL {
                fault = fault.or(Some(Fault::OverBudget(At::default())));
            }
            fault.iter().for_each(|fault| self.note_fault(hosted, index, fault, now));
            if is_batch {
                break;
            }
        }
        if hosted.program.core().is_some_and(|core| core.is_dead()) {
            self.note_dead(hosted, index);
        }
        count
    }

    /// Does what a program has decided about a batch. Answers why its packets are lost, if they are.
    fn settle(
        &mut self,
        hosted: &mut Hosted,
        mut load: Load,
        took: Span,
        (index, now): (u32, Nanos),
    ) -> Option<Fault> {
        hosted.took(load.given(), took);
        let fault = load.take_fault();
        if let Some(lane) = self.tenants.lane(index) {
            lane.tally.lost_many(Loss::ProgramMalformed, load.malformed().into());
            fault.iter().for_each(|fault| lane.tally.lost_many(lost_by(fault), load.given() as u64));
        }
        let mut settled = load.take_settled();
        for (decided, request) in settled.drain(..) {
            self.act(hosted, (decided, request), (load.way(), index), now);
        }
        load.recycle(settled);
        if let Some(core) = hosted.program.core_mut() {
            core.keep(load);
        }
        fault
    }

    /// A program whose thread has died is halted, and what was there is lost.
    #[cold]
    fn note_dead(&mut self, hosted: &mut Hosted, index: u32) {
        let inside = hosted.program.core_mut().map_or([0; 2], |core| core.abandon());
        hosted.now.halted = true;
        let Some(lane) = self.tenants.lane(index) else { return };
        lane.tally.lost_many(Loss::ProgramFault, inside.iter().sum());
        let line = format!(
            "tenant {}: its program is HALTED, as the thread on its core has ended; please report it",
            lane.name
        );
        self.backpressure.told.push(line);
    }

    pub(super) fn tell_not_kept(&mut self, tenant: &str, why: &StateError) {
        let line = format!("tenant {tenant}: the state of its program was not taken over: {why}");
        self.backpressure.told.push(line);
    }
}

/// The reason that packets of a call are lost for.
pub(super) fn lost_by(fault: &Fault) -> Loss {
    match fault {
        Fault::OverBudget(_) => Loss::ProgramOverTime,
        Fault::Trap { .. } | Fault::Count { .. } => Loss::ProgramFault,
    }
}
