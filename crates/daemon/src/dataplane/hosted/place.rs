//! Where a program runs: on the engine's thread, or on a core of its own.
//!
//! Why: packets wait for it, and are given to it, in the same way at both places.
//! From: FairNIC §4.1 (a tenant has whole cores), PicNIC §5.2 (or a share of the one that all have).
//! Not here: the thread on the core (`crate::cores`), what becomes of packets that it gives back (`own_core`).
//! Invariant: what is with the core's thread is counted here, and its buffers are neither free nor a packet's that waits.

use std::io;
use std::sync::Arc;

use plimsoll_offload::{
    Buffers, Decided, Fault, Limits, Load, Packet, Program, Request, Slot, StateError, Way,
};
use plimsoll_units::Nanos;

use super::in_time;
use crate::cores::{CoreThread, Job, LOADS, Work};
use crate::epochs::Epochs;

/// Where a program runs, with the buffers in which its packets wait.
#[derive(Debug)]
pub(super) enum Place {
    /// On the engine's thread; packets wait in the program's memory.
    Here(Box<Program>),
    /// On a core of its own; packets wait in memory beside the program's.
    Core(Box<OwnCore>),
}

/// A program on a core of its own, as the engine sees it.
#[derive(Debug)]
pub(super) struct OwnCore {
    core: u32,
    thread: CoreThread,
    buffers: Buffers,
    limits: Limits,
    looks_at: [bool; 2],
    ticks: bool,
    spare: Vec<Load>,
    /// Batches, and work of all kinds, at the thread.
    loads: usize,
    works: usize,
    /// Packets at the thread, by direction.
    inside: [u64; 2],
    is_ticking: bool,
    is_saving: bool,
    /// What it has saved for the program that is to follow.
    saved: Option<Result<Vec<u8>, StateError>>,
}

impl OwnCore {
    /// Starts a thread on this core that runs the program.
    pub(super) fn start(core: u32, program: Program, epochs: Option<Arc<Epochs>>) -> io::Result<Self> {
        let limits = *program.limits();
        let looks_at = Way::ALL.map(|way| program.looks_at(way));
        let ticks = program.ticks();
        Ok(Self {
            core,
            thread: CoreThread::start(core, program, epochs)?,
            buffers: Buffers::new(&limits),
            limits,
            looks_at,
            ticks,
            spare: (0..LOADS).map(|_| Load::default()).collect(),
            loads: 0,
            works: 0,
            inside: [0; 2],
            is_ticking: false,
            is_saving: false,
            saved: None,
        })
    }

    fn ask(&mut self, work: Work) {
        self.works += 1;
        self.thread.ask(work);
    }

    /// Hands a batch over.
    pub(super) fn run(&mut self, way: Way, packets: &[Packet], now: Nanos) {
        let mut load = self.spare.pop().unwrap_or_default();
        self.buffers.send(&mut load, way, packets, now);
        self.loads += 1;
        self.inside[way as usize] += packets.len() as u64;
        self.ask(Work::Run(load));
    }

    /// Asks for the state, once.
    pub(super) fn save(&mut self) {
        if !core::mem::replace(&mut self.is_saving, true) {
            self.ask(Work::Save(Ok(Vec::new())));
        }
    }

    /// The state that it has saved; none where it was not asked, or its thread has died.
    pub(super) fn take_saved(&mut self) -> Option<Result<Vec<u8>, StateError>> {
        self.saved.take()
    }

    pub(super) fn keep_saved(&mut self, state: Result<Vec<u8>, StateError>) {
        self.saved = Some(state);
    }

    /// Takes back the next work that is done.
    pub(super) fn done(&mut self) -> Option<Job> {
        let mut job = self.thread.done()?;
        self.works = self.works.saturating_sub(1);
        match &mut job.work {
            Work::Run(load) => {
                self.loads = self.loads.saturating_sub(1);
                let inside = &mut self.inside[load.way() as usize];
                *inside = inside.saturating_sub(load.given() as u64);
                self.buffers.receive(load);
            }
            Work::Tick(..) => self.is_ticking = false,
            Work::Save(_) | Work::Restore(..) => {}
        }
        Some(job)
    }

    /// Keeps an empty load for the next batch.
    pub(super) fn keep(&mut self, load: Load) {
        self.spare.push(load);
    }

    /// Gives up what is at the thread, which died or is to end; answers how many packets that were, by direction.
    pub(super) fn abandon(&mut self) -> [u64; 2] {
        (self.loads, self.works, self.is_ticking) = (0, 0, false);
        core::mem::take(&mut self.inside)
    }

    /// Whether work is lost, as the thread has died.
    pub(super) fn is_dead(&self) -> bool {
        self.works > 0 && self.thread.is_dead()
    }
}

impl Place {
    /// The core that it has to itself.
    pub(super) fn own_core(&self) -> Option<u32> {
        self.core().map(|core| core.core)
    }

    pub(super) fn core(&self) -> Option<&OwnCore> {
        match self {
            Self::Here(_) => None,
            Self::Core(core) => Some(core),
        }
    }

    pub(super) fn core_mut(&mut self) -> Option<&mut OwnCore> {
        match self {
            Self::Here(_) => None,
            Self::Core(core) => Some(core),
        }
    }

    /// Packets at the thread of its core, by direction.
    pub(super) fn inside(&self) -> [u64; 2] {
        self.core().map_or([0; 2], |core| core.inside)
    }

    /// Whether the thread of its core has work.
    pub(super) fn is_away(&self) -> bool {
        self.core().is_some_and(|core| core.works > 0)
    }

    /// Whether the thread of its core has done work, or died.
    pub(super) fn has_done(&self) -> bool {
        self.core().is_some_and(|core| core.thread.has_done() || core.is_dead())
    }

    /// Whether it takes another batch.
    pub(super) fn has_room(&self) -> bool {
        self.core().is_none_or(|core| core.loads < LOADS)
    }

    /// Calls `tick`. Answers its fault where it is known at once.
    pub(super) fn tick(&mut self, epochs: Option<&Arc<Epochs>>, now: Nanos) -> Option<Fault> {
        match self {
            Self::Here(program) => in_time(epochs, || program.tick(now)).err(),
            Self::Core(core) => {
                core.is_ticking = true;
                core.ask(Work::Tick(now, None));
                None
            }
        }
    }

    /// Saves the state; on a core of its own it must have been asked for. None where that has died.
    pub(super) fn save(&mut self, epochs: Option<&Arc<Epochs>>) -> Option<Result<Vec<u8>, StateError>> {
        match self {
            Self::Here(program) => Some(in_time(epochs, || program.save())),
            Self::Core(core) => core.take_saved(),
        }
    }

    /// Takes over a state. None where that is known later.
    pub(super) fn restore(
        &mut self,
        epochs: Option<&Arc<Epochs>>,
        state: Vec<u8>,
    ) -> Option<Result<(), StateError>> {
        match self {
            Self::Here(program) => Some(in_time(epochs, || program.restore(&state))),
            Self::Core(core) => {
                core.ask(Work::Restore(state, None));
                None
            }
        }
    }

    /// Takes a free buffer.
    pub(super) fn take(&mut self) -> Option<Slot> {
        match self {
            Self::Here(program) => program.take(),
            Self::Core(core) => core.buffers.take(),
        }
    }

    /// Frees a buffer that was taken.
    pub(super) fn give(&mut self, slot: Slot) {
        match self {
            Self::Here(program) => program.give(slot),
            Self::Core(core) => core.buffers.give(slot),
        }
    }

    pub(super) fn free(&self) -> usize {
        match self {
            Self::Here(program) => program.free(),
            Self::Core(core) => core.buffers.free(),
        }
    }

    pub(super) fn bytes(&self, slot: Slot) -> &[u8] {
        match self {
            Self::Here(program) => program.bytes(slot),
            Self::Core(core) => core.buffers.bytes(slot),
        }
    }

    pub(super) fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        match self {
            Self::Here(program) => program.bytes_mut(slot),
            Self::Core(core) => core.buffers.bytes_mut(slot),
        }
    }

    /// The bytes of a packet that it has decided on.
    pub(super) fn packet(&self, decided: &Decided) -> &[u8] {
        &self.bytes(decided.slot)[decided.at as usize..][..decided.len as usize]
    }

    /// Puts a packet that a coprocessor has answered into a free buffer.
    pub(super) fn give_back(&mut self, request: &Request, result: u32) -> Option<Packet> {
        match self {
            Self::Here(program) => program.give_back(request, result),
            Self::Core(core) => core.buffers.give_back(request, result),
        }
    }

    pub(super) fn looks_at(&self, way: Way) -> bool {
        match self {
            Self::Here(program) => program.looks_at(way),
            Self::Core(core) => core.looks_at[way as usize],
        }
    }

    /// Whether it wants `tick` to be called, and is not in it.
    pub(super) fn ticks(&self) -> bool {
        match self {
            Self::Here(program) => program.ticks(),
            Self::Core(core) => core.ticks && !core.is_ticking,
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        match self {
            Self::Here(program) => program.limits(),
            Self::Core(core) => &core.limits,
        }
    }
}
