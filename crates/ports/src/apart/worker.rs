//! The thread that serves a port, for an [`super::Apart`] on the engine's side.
//!
//! Why: it may wait for the tenant's memory for as long as that takes.
//! From: the engine's own batches: first completions, then frames for the port, then requests and frames from the port.
//! Not here: the engine's side, and the rings between the two (`frames`).
//! Invariant: each batch is bounded; the thread sleeps only when neither the port nor the engine has work for it.

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
use super::{COMPLETIONS, FromPort, REQUESTS, Returned, Served, Shared, ToPort, add};
use crate::contract::{FRAME_ROOM, Trouble};
use crate::counters::Counters;
use crate::posted::{Taken, Ticket, Took};
use crate::realtime;
use crate::shared_memory::VnicRequest;
use crate::stall::Stalls;

/// The thread's state.
pub(super) struct Worker<P> {
    pub(super) port: P,
    pub(super) from_port: Writer<FromPort>,
    pub(super) to_port: Reader<ToPort>,
    pub(super) completions: Consumer<(Ticket, Status)>,
    pub(super) requests: Asking,
    pub(super) returned: Producer<Returned<P>>,
    pub(super) shared: Arc<Shared>,
    /// The epoch that the port was told last.
    pub(super) epoch: u32,
    /// Number of frames passed to the engine.
    pub(super) brought: u64,
    /// Frames lost here, which are not in the port's counters.
    pub(super) lost: Counters,
    pub(super) window: u32,
    pub(super) frame: Vec<u8>,
}

impl<P: Served> Worker<P> {
    /// Serves the port until the engine wants it back or drops it, or its client has gone.
    pub(super) fn serve(mut self) {
        leave_engine_class();
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
                // The port is not given back right after a stall.
                self.shared.wanted.store(false, Ordering::Relaxed);
            }
            self.shared.batches.fetch_add(1, Ordering::Relaxed);
            if batch.gone {
                let shared = Arc::clone(&self.shared);
                // The socket's path must be free before the engine learns of this and opens the port anew.
                drop(self);
                shared.gone.store(true, Ordering::Release);
                return shared.ring_engine();
            }
            if over && !batch.moved {
                return;
            }
            // The client must have its answer before the port goes back.
            if self.shared.wanted.load(Ordering::Acquire) && !stalled && !self.requests.is_outstanding() {
                return self.give_back();
            }
            self.shared.wake_engine();
            if !batch.moved && !over {
                self.wait(batch.full);
            }
        }
    }

    /// Handles completions, frames for the port, requests and frames from the port, in this order, a bounded number of each.
    fn batch(&mut self) -> Batch {
        let mut moved = 0;
        while moved < COMPLETIONS
            && let Ok((ticket, status)) = self.completions.pop()
        {
            self.port.complete(ticket, status);
            moved += 1;
        }
        for _ in 0..BATCH {
            if self.shared.left.load(Ordering::SeqCst) {
                break;
            }
            let Some(head) = self.to_port.pop(&mut self.frame) else { break };
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
            full = !self.from_port.has_room(FRAME_ROOM);
            // A port that the engine has dropped is not read any more.
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
        // `batch` has checked that there is room for a frame of any length.
        self.from_port.push(FromPort { taken: *taken, epoch: self.epoch }, frame);
        self.brought += 1;
    }

    /// Passes the engine's answer to the client, if there is one, and begins a new epoch if the engine has. Returns the
    /// number of requests answered.
    fn hear_engine(&mut self) -> usize {
        // The answer is read before the epoch, so that the epoch read is never older than the answer's.
        let answered = self.requests.take_answer();
        // Acquire: pairs with the engine's Release, so that the generation belongs to that epoch.
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if epoch != self.epoch {
            self.epoch = epoch;
            self.port.forget_targets(self.shared.generation.load(Ordering::Relaxed));
        }
        let Some(answered) = answered else { return 0 };
        self.port.answer(&answered.answer, answered.epoch == epoch);
        1
    }

    /// Reads the client's messages until one must be answered by the engine, and passes that one on. The next message stays
    /// in the socket until the engine has answered. Returns the number of messages read.
    fn ask_engine(&mut self) -> usize {
        for read in 0..REQUESTS {
            // A client that sends requests without end must not keep the port on this thread.
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
        let Self { port, from_port, to_port, completions, mut returned, shared, lost, epoch, .. } = self;
        // There is room: the port is given back once.
        drop(returned.push(Returned { port, to_port, completions, lost, epoch }));
        // Only now: the engine takes a ring without writer and without a returned port for a failed thread.
        drop(from_port);
        shared.ring_engine();
    }

    /// Waits for work, or for [`LONGEST_REST`]. `full`: the engine must take frames before more can be read.
    fn wait(&mut self, full: bool) {
        // While a request is outstanding the client's socket is not watched: unread messages in it would end each wait.
        let asked = self.requests.is_outstanding();
        let for_engine = full || asked;
        if !for_engine && !self.port.rest() {
            return;
        }
        let shared = &self.shared;
        shared.thread_rests.store(true, Ordering::Relaxed);
        // Orders the flag before the checks below; pairs with the engine's fence between handing over and reading the flag.
        fence(Ordering::SeqCst);
        let news = !self.to_port.is_empty()
            || !self.completions.is_empty()
            || self.requests.has_answer()
            || shared.epoch.load(Ordering::Relaxed) != self.epoch
            || !asked && shared.wanted.load(Ordering::Relaxed)
            || shared.over.load(Ordering::Relaxed)
            || full && self.from_port.has_room(FRAME_ROOM);
        if !news {
            let mut watched = vec![PollFd::new(shared.to_thread.as_fd(), PollFlags::POLLIN)];
            if let Some(fd) = self.port.wait_on().filter(|_| !for_engine) {
                // SAFETY: the descriptor belongs to the port, which stays alive and untouched until `poll` has returned.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                watched.push(PollFd::new(fd, PollFlags::POLLIN));
            }
            let _ = poll(&mut watched, PollTimeout::from(LONGEST_REST));
            let _ = shared.to_thread.read();
        }
        shared.thread_rests.store(false, Ordering::Relaxed);
    }
}

/// The result of a batch.
struct Batch {
    /// Whether there was any work.
    moved: bool,
    /// There is no room for frames from the port.
    full: bool,
    /// The client has gone.
    gone: bool,
}

/// Gives up the real-time class and the core that the thread has inherited from the engine's thread.
fn leave_engine_class() {
    let _ = realtime::give_back();
    // The process's first thread is not pinned to a core.
    if let Ok(cores) = sched_getaffinity(Pid::this()) {
        let _ = sched_setaffinity(Pid::from_raw(0), &cores);
    }
}

/// Most frames taken, and most frames sent, in a batch.
const BATCH: usize = 64;
/// How often an idle thread publishes the port's state.
const SHOW: Duration = Duration::from_millis(100);
/// Milliseconds after which the thread looks for work even if nothing woke it.
const LONGEST_REST: u8 = 100;
