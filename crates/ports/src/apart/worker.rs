//! The thread that serves a port: the other end of an [`super::Apart`].
//!
//! Why: it may wait for the port's memory for as long as that takes.
//! From: the engine's own batches: what has completed first, then what is to go, then what is asked for and what has come.
//! Not here: the engine's end, and what travels between the two (`frames`).
//! Invariant: each batch is bounded; the thread sleeps only when neither end has anything for it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use plimsoll_units::Span;
use plimsoll_vnic::Status;
use rtrb::{Consumer, Producer};

use super::frames::{Reader, Writer};
use super::requests::Asking;
use super::{Back, COMPLETIONS, Came, Going, REQUESTS, Served, Shared, add};
use crate::port::{Counters, FRAME_ROOM, Trouble};
use crate::posted::{Taken, Ticket, Took};
use crate::realtime;
use crate::shared_memory::VnicRequest;
use crate::stall::Stalls;

/// The thread's end.
pub(super) struct Worker<P> {
    pub(super) port: P,
    pub(super) came: Writer<Came>,
    pub(super) going: Reader<Going>,
    pub(super) done: Consumer<(Ticket, Status)>,
    pub(super) requests: Asking,
    pub(super) back: Producer<Back<P>>,
    pub(super) shared: Arc<Shared>,
    /// The epoch that the port knows of.
    pub(super) epoch: u32,
    /// Frames brought.
    pub(super) brought: u64,
    /// What was lost here and is in no counter of the port's.
    pub(super) lost: Counters,
    pub(super) window: u32,
    pub(super) frame: Vec<u8>,
}

impl<P: Served> Worker<P> {
    /// Serves the port until the engine wants it back, lets go of it, or its client has gone.
    pub(super) fn serve(mut self) {
        settle();
        let mut stalls = Stalls::default();
        let mut shown_at = Instant::now();
        loop {
            self.shared.batches.fetch_add(1, Ordering::Relaxed);
            stalls.rested();
            let begun = Instant::now();
            let batch = self.batch();
            if batch.moved || shown_at.elapsed() >= SHOW {
                shown_at = Instant::now();
                self.show();
            }
            let over = self.shared.over.load(Ordering::Acquire);
            let took = Span::ns(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            let stalled = stalls.is_stall(took);
            if stalled {
                self.shared.stalls.fetch_add(1, Ordering::Relaxed);
                self.shared.longest.fetch_max(took.as_u64(), Ordering::Relaxed);
                // It is not taken back in the middle of such things.
                self.shared.wanted.store(false, Ordering::Relaxed);
            }
            self.shared.batches.fetch_add(1, Ordering::Relaxed);
            if batch.gone {
                let shared = Arc::clone(&self.shared);
                // First the socket's place is free: who hears of this opens it anew.
                drop(self);
                shared.gone.store(true, Ordering::Release);
                return shared.ring_engine();
            }
            if over && !batch.moved {
                return;
            }
            // Its client has its answer first.
            if self.shared.wanted.load(Ordering::Acquire) && !stalled && !self.requests.is_outstanding() {
                return self.give_back();
            }
            self.shared.wake_engine();
            if !batch.moved && !over {
                self.wait(batch.full);
            }
        }
    }

    /// What has completed, what is to go, what is asked for, what has come, in this order; up to so many of each.
    fn batch(&mut self) -> Batch {
        let mut moved = 0;
        while moved < COMPLETIONS
            && let Ok((ticket, status)) = self.done.pop()
        {
            self.port.complete(ticket, status);
            moved += 1;
        }
        for _ in 0..BATCH {
            if self.shared.left.load(Ordering::SeqCst) {
                break;
            }
            let Some(head) = self.going.pop(&mut self.frame) else { break };
            self.shared.delivered.fetch_add(1, Ordering::SeqCst);
            let frame = &self.frame[..head.len];
            self.shared.send_or_count(&mut self.port, frame, head.vnet.as_ref(), &mut self.lost);
            moved += 1;
        }
        moved += self.hear_engine();
        let mut full = false;
        let begun = self.port.begin();
        if begun.is_ok() {
            moved += self.ask_engine();
        }
        for _ in 0..BATCH {
            full = !self.came.has_room(FRAME_ROOM);
            // Who has been let go of is read no more.
            if begun.is_err() || full || self.shared.over.load(Ordering::Relaxed) {
                break;
            }
            match self.port.take(self.window) {
                Took::Frame(taken) => self.bring(&taken),
                Took::Refused => {}
                Took::Nothing => break,
            }
            moved += 1;
        }
        self.port.flush();
        Batch { moved: moved > 0, full, gone: begun == Err(Trouble::Gone) }
    }

    fn bring(&mut self, taken: &Taken) {
        let frame = &mut self.frame[..taken.len];
        self.port.copy(frame);
        let Taken { target, len, vnet, tag, ticket } = *taken;
        let epoch = self.epoch;
        // There is room for a frame of any length.
        self.came.push(Came { target, epoch, len, vnet, tag, ticket }, frame);
        self.brought += 1;
    }

    /// Takes the answer to the client's request, if it has come, and begins another epoch if the engine has. Answers how
    /// many requests were answered.
    fn hear_engine(&mut self) -> usize {
        // The answer first: the epoch in which it was given is there by then, if not a later one.
        let answered = self.requests.take_answer();
        // Acquire: pairs with the engine's Release, so that the generation is that epoch's.
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.port.forget_targets(self.shared.generation.load(Ordering::Relaxed));
        }
        let Some(answered) = answered else { return 0 };
        self.port.answer(&answered.answer, answered.epoch == epoch);
        1
    }

    /// Reads the client's messages until one is for the engine, which is passed on: the next one stays in the socket until
    /// the engine has answered. Answers how many were read.
    fn ask_engine(&mut self) -> usize {
        for read in 0..REQUESTS {
            // A client that asks without end must not keep the port here.
            let leaving =
                self.shared.wanted.load(Ordering::Relaxed) || self.shared.over.load(Ordering::Relaxed);
            if leaving || self.requests.is_outstanding() {
                return read;
            }
            match self.port.request() {
                None => return read,
                Some((VnicRequest::Refused, _)) => {}
                Some((request, left)) => self.requests.ask(request, left, self.brought),
            }
        }
        REQUESTS
    }

    fn show(&mut self) {
        let mut shown = self.port.show();
        shown.pairs = self.port.rings();
        shown.counters = add(shown.counters, &self.lost);
        let mut place = self.shared.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = place.take() {
            shown.problem = before.problem.or(shown.problem);
        }
        *place = Some(shown);
    }

    fn give_back(self) {
        let Self { port, came, going, done, mut back, shared, lost, epoch, .. } = self;
        // There is room for it: it is given back once. All that came is there before.
        drop(back.push(Back { port, going, done, lost, epoch }));
        // Not before: a thread that brings nothing more and has given nothing back has failed.
        drop(came);
        shared.ring_engine();
    }

    /// Until there is something to do, or for a moment. `full`: the engine has to take something first.
    fn wait(&mut self, full: bool) {
        // The client may have sent further messages, which are not read before the answer: its socket would end each wait.
        let asked = self.requests.is_outstanding();
        let for_engine = full || asked;
        if !for_engine && !self.port.rest() {
            return;
        }
        let shared = &self.shared;
        shared.thread_rests.store(true, Ordering::Relaxed);
        // Orders that before the look; pairs with the engine's fence between what it hands over and its look at the flag.
        fence(Ordering::SeqCst);
        let news = !self.going.is_empty()
            || !self.done.is_empty()
            || self.requests.has_answer()
            || shared.epoch.load(Ordering::Relaxed) != self.epoch
            || !asked && shared.wanted.load(Ordering::Relaxed)
            || shared.over.load(Ordering::Relaxed)
            || full && self.came.has_room(FRAME_ROOM);
        if !news {
            let mut watched = vec![PollFd::new(shared.to_thread.as_fd(), PollFlags::POLLIN)];
            if let Some(fd) = self.port.wait_on().filter(|_| !for_engine) {
                // SAFETY: the descriptor is the port's, which lives, and is not touched, until `poll` has returned.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                watched.push(PollFd::new(fd, PollFlags::POLLIN));
            }
            let _ = poll(&mut watched, PollTimeout::from(LONGEST_REST));
            let _ = shared.to_thread.read();
        }
        shared.thread_rests.store(false, Ordering::Relaxed);
    }
}

/// What a batch came to.
struct Batch {
    moved: bool,
    /// There is no room for what comes.
    full: bool,
    gone: bool,
}

/// The thread goes before nobody, and keeps off the engine's core: it has both from the engine's thread.
fn settle() {
    let _ = realtime::give_back();
    // The process's first thread keeps to no core of its own.
    if let Ok(cores) = sched_getaffinity(Pid::this()) {
        let _ = sched_setaffinity(Pid::from_raw(0), &cores);
    }
}

/// Frames taken, and sent, in a batch.
const BATCH: usize = 64;
/// How often all is shown.
const SHOW: Duration = Duration::from_millis(100);
/// Milliseconds after which the thread looks though nothing woke it.
const LONGEST_REST: u8 = 100;
