//! Threads on cores of their own, each of which runs one tenant's program.
//!
//! Why: an operator can give a program a whole core, which no other tenant pays for, and whose time no other tenant takes.
//! From: FairNIC §4.1: a static set of cores for each tenant, which is idle where its tenant has nothing to do.
//! Not here: which packets go there (`dataplane::hosted`), the program itself (`plimsoll-offload`).
//! Invariant: jobs are done in the order in which they come, and each one comes back; a thread at rest is not woken.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc;
use std::thread::{Builder, Thread};
use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use plimsoll_offload::{Fault, Load, Program, StateError};
use plimsoll_units::{Nanos, Span};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::epochs::Epochs;
use crate::programs::used;

/// Batches of a program at its core at most: while it works on one, others lie ready.
pub(crate) const LOADS: usize = 4;

/// Jobs in a ring: the batches, and one of each other kind.
const ROOM: usize = LOADS + 3;
/// A core whose threads have a higher priority may not let one begin for long.
const STARTS_WITHIN: Duration = Duration::from_secs(1);

/// What the program is to do, and once it comes back, what it has done.
#[derive(Debug)]
pub(crate) enum Work {
    /// A call with packets.
    Run(Load),
    /// A call of `tick`, with its fault.
    Tick(Nanos, Option<Fault>),
    /// Save the state.
    Save(Result<Vec<u8>, StateError>),
    /// Take over a state, and why that has failed.
    Restore(Vec<u8>, Option<StateError>),
}

/// Work, and the CPU time that it took.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) work: Work,
    pub(crate) took: Span,
}

/// A program's thread, as the engine sees it.
#[derive(Debug)]
pub(crate) struct CoreThread {
    ask: Producer<Job>,
    done: Consumer<Job>,
    state: Arc<State>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the thread waits for a job.
    waits: AtomicBool,
    ended: AtomicBool,
}

impl CoreThread {
    /// Starts the thread on this core, with its program.
    ///
    /// # Errors
    /// When the system has no more threads, or the process may not use the core.
    pub(crate) fn start(core: u32, program: Program, epochs: Option<Arc<Epochs>>) -> io::Result<Self> {
        let (ask, asked) = RingBuffer::new(ROOM);
        let (answer, done) = RingBuffer::new(ROOM);
        let state = Arc::new(State::default());
        let (tell, told) = mpsc::sync_channel(1);
        let seen = Arc::clone(&state);
        let serve = move || {
            let pinned = pin(core);
            // The starter waits for it.
            let _ = tell.send(pinned);
            if pinned.is_ok() {
                Serving { program, epochs, asked, answer }.serve(&seen);
            }
        };
        let thread = Builder::new().name(format!("plimsoll-core{core}")).spawn(serve)?.thread().clone();
        match told.recv_timeout(STARTS_WITHIN) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(io::Error::other(format!("this process may not use core {core}"))),
            Err(_) => {
                return Err(io::Error::other(format!(
                    "a thread does not start on core {core}: others keep it busy"
                )));
            }
        }
        Ok(Self { ask, done, state, thread })
    }

    /// Hands work over. The caller sees to it that there is room: no more than [`LOADS`] batches, and one of each other kind.
    pub(crate) fn ask(&mut self, work: Work) {
        let pushed = self.ask.push(Job { work, took: Span::ZERO });
        debug_assert!(pushed.is_ok(), "there is room");
        // Either this sees that the thread waits, or the thread sees the job.
        fence(Ordering::SeqCst);
        if self.state.waits.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }

    /// The next job that is done.
    pub(crate) fn done(&mut self) -> Option<Job> {
        self.done.pop().ok()
    }

    /// Whether a job is done.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether the thread has died, and no job comes back any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.done.is_abandoned() && self.done.is_empty()
    }
}

/// Has this thread run on one core only.
fn pin(core: u32) -> nix::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core as usize)?;
    sched_setaffinity(Pid::from_raw(0), &cores)
}

impl Drop for CoreThread {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// What the thread has.
struct Serving {
    program: Program,
    epochs: Option<Arc<Epochs>>,
    asked: Consumer<Job>,
    answer: Producer<Job>,
}

impl Serving {
    /// Serves until the engine's end is gone.
    fn serve(mut self, state: &State) {
        while !state.ended.load(Ordering::SeqCst) {
            if let Ok(mut job) = self.asked.pop() {
                let before = used();
                self.work(&mut job.work);
                job.took = used().since(before);
                // It has room for as many as may be asked.
                let _ = self.answer.push(job);
                continue;
            }
            state.waits.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.asked.is_empty() && !state.ended.load(Ordering::SeqCst) {
                std::thread::park();
            }
            state.waits.store(false, Ordering::Relaxed);
        }
    }

    fn work(&mut self, work: &mut Work) {
        let Self { program, epochs, .. } = self;
        let running = epochs.as_ref().map(|epochs| epochs.run());
        match work {
            Work::Run(load) => load.run(program),
            Work::Tick(now, fault) => *fault = program.tick(*now).err(),
            Work::Save(state) => *state = program.save(),
            Work::Restore(state, why) => *why = program.restore(state).err(),
        }
        drop(running);
    }
}
