//! A port served apart: by a thread of its own instead of the engine's.
//!
//! Why: a tenant can make copies from its memory wait for as long as it likes: a thread that touches a page where a hole is
//! being punched waits for the whole hole. The memory of such a tenant is touched only by a thread that no other tenant
//! depends on.
//! From: rings with one writer and one reader (`rtrb`), which carry copies of the frames between the two threads.
//! Not here: choosing the ports to serve apart (the daemon), and detecting stalls (`stall`).
//! Invariant: frames keep their order in both directions, also when the thread begins and ends; each taken frame is
//! completed once, by the port that it came from; each frame handed over is sent or counted; a client's request is answered
//! by the engine; the engine's side never waits, however long the thread does.

mod frames;
mod requests;
mod served;
mod shared;
mod worker;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_units::Span;
use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;
use rtrb::{Consumer, Producer, RingBuffer};

use frames::{Length, Reader, Writer, ring};
use requests::{Answered, Answering, requests};
pub use served::{Served, Shown};
pub use shared::Behaviour;
use shared::Shared;
use worker::Worker;

use crate::contract::{Capabilities, FRAME_ROOM, Fds, Received, Trouble};
use crate::counters::{Counters, DropReason, Sending};
use crate::error::PortError;
use crate::posted::{Taken, Ticket, Took};
use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicRequest};

/// A port that is served apart, seen from the engine's thread.
pub struct Apart<P: Served> {
    from_port: Reader<FromPort>,
    to_port: Writer<ToPort>,
    completions: Producer<(Ticket, Status)>,
    requests: Answering,
    /// The engine leaves the next request unread, and may sleep meanwhile.
    held: bool,
    returned: Consumer<Returned<P>>,
    /// The port, once the thread has given it back and its unfinished work is done.
    port: Option<P>,
    shared: Arc<Shared>,
    shown: Shown,
    /// Frames lost here, which are not in the port's counters.
    lost: Counters,
    /// The target that a client gives for a frame is valid only if the frame was taken in this epoch.
    epoch: u32,
    /// The frame taken last.
    front: Vec<u8>,
    /// Number of frames that were taken and have not completed.
    owed: usize,
    /// Number of frames taken.
    taken: u64,
    /// Number of frames handed over.
    sent: u64,
    thread: Option<JoinHandle<()>>,
}

/// Head of a frame from the port.
#[derive(Debug)]
struct FromPort {
    taken: Taken,
    /// The epoch in which the frame was taken.
    epoch: u32,
}

/// Head of a frame for the port.
#[derive(Debug)]
struct ToPort {
    len: usize,
    vnet: Option<VnetHeader>,
}

/// The port given back by the thread, with its unfinished work.
struct Returned<P> {
    port: P,
    to_port: Reader<ToPort>,
    completions: Consumer<(Ticket, Status)>,
    lost: Counters,
    epoch: u32,
}

impl<P: Served> Apart<P> {
    /// Starts a thread that serves the port. `owed` frames were taken from it and have not completed, and the owner has room
    /// for `room` frames of it. A client's flow queue may have at most `window` frames in flight.
    ///
    /// # Errors
    /// The error and the port, when the thread cannot be started.
    pub fn new(mut port: P, owed: usize, room: usize, window: u32) -> Result<Self, (P, io::Error)> {
        let shared = match Shared::new() {
            Ok(shared) => Arc::new(shared),
            Err(error) => return Err((port, error)),
        };
        // The first state is read on the engine's thread.
        let shown = port.show();
        let (from_port_in, from_port) = ring();
        let (to_port, to_port_out) = ring();
        let (completions, completions_out) = RingBuffer::new(owed + room + COMPLETIONS);
        let (asking, requests) = requests();
        let (returned_in, returned) = RingBuffer::new(1);
        // The port follows once the thread runs: a failed start would drop it with the closure.
        let (hand, handed) = channel::<P>();
        let thread = thread::Builder::new().name("apart".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let Ok(port) = handed.recv() else { return };
                let worker = Worker {
                    port,
                    from_port: from_port_in,
                    to_port: to_port_out,
                    completions: completions_out,
                    requests: asking,
                    returned: returned_in,
                    shared,
                    epoch: 0,
                    brought: 0,
                    lost: Counters::default(),
                    window,
                    frame: vec![0; FRAME_ROOM],
                };
                worker.serve();
            }
        });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return Err((port, error)),
        };
        if let Err(unsent) = hand.send(port) {
            return Err((unsent.0, io::Error::other("the thread has ended")));
        }
        Ok(Self {
            from_port,
            to_port,
            completions,
            requests,
            held: false,
            returned,
            port: None,
            shared,
            shown,
            lost: Counters::default(),
            epoch: 0,
            front: vec![0; FRAME_ROOM],
            owed,
            taken: 0,
            sent: 0,
            thread: Some(thread),
        })
    }

    /// Begins a batch: reads the thread's latest state.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the client has gone, and all its posted frames were taken.
    pub fn begin(&mut self) -> Result<(), Trouble> {
        self.update();
        let gone = self.shared.gone.load(Ordering::Acquire);
        // A thread that has ended without giving the port back has lost it.
        let lost = self.port.is_none() && self.from_port.is_abandoned() && self.returned.is_empty();
        if (gone || lost) && self.from_port.is_empty() { Err(Trouble::Gone) } else { Ok(()) }
    }

    /// Takes the next frame that the thread has read; none while there would be no room for its completion.
    pub fn take(&mut self) -> Took {
        let waiting = self.completions.buffer().capacity() - self.completions.slots();
        if self.owed + waiting >= self.completions.buffer().capacity() {
            return Took::Nothing;
        }
        let Some(head) = self.from_port.pop(&mut self.front) else { return Took::Nothing };
        self.owed += 1;
        self.taken += 1;
        let FromPort { taken, epoch } = head;
        Took::Frame(Taken { target: taken.target.filter(|_| epoch == self.epoch), ..taken })
    }

    /// Copies the frame taken last. Panics when `into` is shorter than the frame.
    pub fn copy(&self, into: &mut [u8]) {
        let len = into.len();
        into.copy_from_slice(&self.front[..len]);
    }

    /// Completes a frame that was taken.
    pub fn complete(&mut self, ticket: Ticket, status: Status) {
        self.owed = self.owed.saturating_sub(1);
        match &mut self.port {
            Some(port) => port.complete(ticket, status),
            // There is room: `take` stops before completions can overflow.
            None => drop(self.completions.push((ticket, status))),
        }
    }

    /// Hands one frame over, if there is room.
    ///
    /// # Errors
    /// [`Trouble`] when the port carries nothing.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if let Some(port) = &mut self.port {
            return port.send(frame, vnet);
        }
        if self.shared.gone.load(Ordering::Relaxed) {
            return Err(Trouble::Down);
        }
        if frame.len() > FRAME_ROOM {
            return Ok(self.lost.refuse(DropReason::Oversize));
        }
        if !self.to_port.push(ToPort { len: frame.len(), vnet: vnet.copied() }, frame) {
            return Ok(Sending::Full);
        }
        self.sent += 1;
        Ok(Sending::Sent)
    }

    /// Wakes the thread, if it sleeps.
    ///
    /// # Errors
    /// None.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        match &mut self.port {
            Some(port) => port.flush(),
            None => self.shared.wake_thread(),
        }
        Ok(())
    }

    /// Asks to be woken when there is something to take. Returns whether the owner may sleep.
    pub fn rest(&mut self) -> bool {
        self.shared.wake_thread();
        self.shared.engine_rests.store(true, Ordering::Relaxed);
        // Orders the flag before the checks below; pairs with the thread's fence between writing frames and reading the flag.
        fence(Ordering::SeqCst);
        let asked = !self.held && !self.requests.is_empty();
        let nothing = self.from_port.is_empty() && !asked && self.returned.is_empty() && self.port.is_none();
        if !nothing {
            self.shared.engine_rests.store(false, Ordering::Relaxed);
        }
        nothing
    }

    /// Checks that the client has not gone.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when it has.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        self.begin()
    }

    /// Takes the next frame and completes it at once; see [`crate::Port::receive`].
    ///
    /// # Errors
    /// As for [`Apart::begin`].
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        self.begin()?;
        let Took::Frame(taken) = self.take() else {
            let _ = self.rest();
            return Ok(None);
        };
        self.copy(&mut buffer[..taken.len]);
        self.complete(taken.ticket, Status::Sent);
        self.flush()?;
        Ok(Some(Received { len: taken.len, vnet: Some(taken.vnet), ..Received::default() }))
    }

    /// The port's name for operators.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} (apart)", self.shown.name)
    }

    /// The offloads and MTU of the port.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shown.capabilities
    }

    /// The client's next request, to be answered by [`Apart::answer`]; the thread reads no other request before.
    pub fn request(&mut self) -> Option<VnicRequest> {
        self.requests.next(self.taken)
    }

    /// Sets whether the next request is left unread; the thread passes on no other request meanwhile.
    pub fn hold_requests(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Whether the client had unopened flow queues left at its last request.
    #[must_use]
    pub fn queues_left(&self) -> QueuesLeft {
        self.requests.left()
    }

    /// Answers the request that was read last.
    pub fn answer(&mut self, answer: VnicAnswer) {
        self.requests.answer(Answered { answer, epoch: self.epoch });
        self.shared.wake_thread();
    }

    /// Begins a new epoch under the policy numbered `generation`: frames of the client's present flow queues must be
    /// classified, also those that the thread has already taken. Targets of flow queues that are opened later are valid.
    pub fn forget_targets(&mut self, generation: u32) {
        self.epoch = self.epoch.wrapping_add(1);
        self.shared.generation.store(generation, Ordering::Relaxed);
        match &mut self.port {
            Some(port) => port.forget_targets(generation),
            None => {
                // Release: pairs with the thread's Acquire, which finds the generation.
                self.shared.epoch.store(self.epoch, Ordering::Release);
                self.shared.wake_thread();
            }
        }
    }

    /// Counters of the thread.
    #[must_use]
    pub fn behaviour(&self) -> Behaviour {
        let shared = &self.shared;
        Behaviour {
            batches: shared.batches.load(Ordering::Relaxed),
            stalls: shared.stalls.load(Ordering::Relaxed),
            longest: Span::ns(shared.longest.load(Ordering::Relaxed)),
            unread: shared.unread.load(Ordering::Relaxed),
        }
    }

    /// Asks the thread to give the port back. A thread that has just stalled keeps it; ask again later.
    pub fn want_back(&mut self) {
        self.shared.wanted.store(true, Ordering::Release);
        self.shared.wake_thread();
    }

    /// Whether the port is back, and all frames that the thread had read were taken.
    #[must_use]
    pub fn is_back(&self) -> bool {
        self.port.is_some() && self.from_port.is_empty()
    }

    /// The port, and the losses of the thread that are not in its counters. None before [`Apart::is_back`].
    pub fn into_port(mut self) -> Option<(P, Counters)> {
        let port = self.port.take()?;
        self.thread = None; // it has given the port back and ends by itself; the engine does not wait for that
        Some((port, std::mem::take(&mut self.lost)))
    }

    /// Gives up the port: frames that were handed over and not taken are lost, and counted.
    pub fn leave(&mut self) {
        self.shared.left.store(true, Ordering::SeqCst);
        if self.port.is_none() {
            let left = self.sent - self.shared.delivered.load(Ordering::SeqCst).min(self.sent);
            self.lost.gone(left as usize);
        }
        self.lost.rx_drops[DropReason::Gone as usize] += self.from_port.len() as u64;
        self.shared.over.store(true, Ordering::Release);
        self.shared.wake_thread();
    }

    /// The file descriptor to wait on: an eventfd that the thread writes to.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.shared.to_engine.as_raw_fd()), transmit: None }
    }

    /// The state that the thread published last.
    #[must_use]
    pub fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Traffic so far, as last published.
    #[must_use]
    pub fn counters(&mut self) -> Counters {
        self.update();
        let carried = match &mut self.port {
            Some(port) => port.show().counters,
            None => self.shown.counters,
        };
        add(carried, &self.lost)
    }

    /// Why frames are being lost, reported once.
    pub fn take_problem(&mut self) -> Option<PortError> {
        self.update();
        self.shown.problem.take()
    }

    /// Reads the state that the thread has published, and takes the port if it was given back. Does not wait for the lock:
    /// the thread may have lost its core while it holds it.
    fn update(&mut self) {
        if let Ok(mut shown) = self.shared.shown.try_lock()
            && let Some(mut new) = shown.take()
        {
            new.problem = new.problem.or_else(|| self.shown.problem.take());
            self.shown = new;
        }
        if self.port.is_none()
            && let Ok(returned) = self.returned.pop()
        {
            self.take_back(returned);
        }
    }

    /// Finishes the thread's work before anything new: first the completions, then the frames for the port.
    fn take_back(&mut self, returned: Returned<P>) {
        let Returned { mut port, mut to_port, mut completions, lost, epoch } = returned;
        if epoch != self.epoch {
            port.forget_targets(self.shared.generation.load(Ordering::Relaxed));
        }
        while let Ok((ticket, status)) = completions.pop() {
            port.complete(ticket, status);
        }
        self.lost = add(self.lost, &lost);
        let mut frame = vec![0; FRAME_ROOM];
        while let Some(head) = to_port.pop(&mut frame) {
            self.shared.send_or_count(&mut port, &frame[..head.len], head.vnet.as_ref(), &mut self.lost);
        }
        port.flush();
        self.port = Some(port);
    }
}

impl<P: Served> Drop for Apart<P> {
    /// Tells the thread to end, and waits a moment for it: one that is not stuck then completes all frames first. Not to
    /// be dropped on a thread that must not wait.
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.wake_thread();
        let end = Instant::now() + PATIENCE;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<P: Served> std::fmt::Debug for Apart<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apart")
            .field("name", &self.shown.name)
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}

fn add(a: Counters, b: &Counters) -> Counters {
    let sum = |a: [u64; DropReason::COUNT], b: [u64; DropReason::COUNT]| std::array::from_fn(|i| a[i] + b[i]);
    Counters { rx_drops: sum(a.rx_drops, b.rx_drops), tx_drops: sum(a.tx_drops, b.tx_drops), ..a }
}

impl Length for FromPort {
    fn length(&self) -> usize {
        self.taken.len
    }
}

impl Length for ToPort {
    fn length(&self) -> usize {
        self.len
    }
}

/// Room for waiting completions, beside those of frames that the owner holds.
const COMPLETIONS: usize = 4_096;
/// Most messages of a vNIC's client read in a batch.
const REQUESTS: usize = 8;
/// Longest wait for the thread's end when an [`Apart`] is dropped.
const PATIENCE: Duration = Duration::from_millis(100);
