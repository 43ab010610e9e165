//! A port that is served by a thread of its own.
//!
//! Why: a tenant's copies may wait for as long as the tenant likes: whoever touches a page into which a hole is being
//! punched waits for all of the hole. Such a tenant's memory is touched by a thread that nobody else waits for.
//! From: rings between one writer and one reader (`rtrb`): frames are copied into buffers of the engine's, and out of them.
//! Not here: whose copies stall (the daemon), and how that is told (`stall`).
//! Invariant: order is kept, into the port and out of it, also when the thread begins and ends; each frame that was taken is
//! completed once, by the port that it came from; a frame that was handed over is sent or counted; a client's request is
//! answered by the engine; the engine's side never waits, however long the thread does.

mod frames;
mod requests;
mod worker;

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};
use plimsoll_units::Span;
use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;
use rtrb::{Consumer, Producer, RingBuffer};

use frames::{Length, Reader, Writer, ring};
use requests::{Answered, Answering, requests};
use worker::Worker;

use crate::error::PortError;
use crate::port::{
    Capabilities, Counters, DropReason, FRAME_ROOM, Fds, Level, PairCounters, Port, Received, Sending,
    Trouble,
};
use crate::posted::{Taken, Ticket, Took};
use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicRequest};

/// What a thread can serve: a port whose frames lie with their sender.
pub trait Served: Send + 'static {
    /// Begins a batch of [`Served::take`].
    ///
    /// # Errors
    /// [`Trouble`] when the port carries nothing.
    fn begin(&mut self) -> Result<(), Trouble>;
    /// The next frame that was posted.
    fn take(&mut self, window: u32) -> Took;
    /// Copies the frame taken last.
    fn copy(&self, into: &mut [u8]);
    /// A frame is through.
    fn complete(&mut self, ticket: Ticket, status: Status);
    /// Sends one frame.
    ///
    /// # Errors
    /// [`Trouble`] when the port carries nothing.
    fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble>;
    /// Shows what was done.
    fn flush(&mut self);
    /// Asks to be woken; whether the owner may sleep.
    fn rest(&mut self) -> bool;
    /// What to wait on.
    fn wait_on(&self) -> Option<RawFd>;
    /// What is to be known of it without asking it, but for its rings: nothing of its sender's memory is looked at.
    fn show(&mut self) -> Shown;
    /// Its rings.
    fn rings(&self) -> Vec<PairCounters> {
        Vec::new()
    }
    /// What its client asks for next beside the frames, and the flow queues that it has left: reads one message at most.
    fn request(&mut self) -> Option<(VnicRequest, QueuesLeft)> {
        None
    }
    /// Answers that. `holds`: the flow queue that it names leads somewhere still; otherwise its frames are to be classified.
    fn answer(&mut self, _answer: &VnicAnswer, _holds: bool) {}
    /// From now on frames of the flow queues that its client has are to be classified; the policy in force has this number.
    fn forget_targets(&mut self, _generation: u32) {}
}

impl Served for Port {
    fn begin(&mut self) -> Result<(), Trouble> {
        Port::begin(self)
    }

    fn take(&mut self, window: u32) -> Took {
        Port::take(self, window)
    }

    fn copy(&self, into: &mut [u8]) {
        Port::copy(self, into);
    }

    fn complete(&mut self, ticket: Ticket, status: Status) {
        Port::complete(self, ticket, status);
    }

    fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        Port::send(self, frame, vnet)
    }

    fn flush(&mut self) {
        // A port that has gone tells so where it is read.
        let _ = Port::flush(self);
    }

    fn rest(&mut self) -> bool {
        Port::rest(self) && !self.has_more_to_say()
    }

    fn wait_on(&self) -> Option<RawFd> {
        self.fds().receive
    }

    fn show(&mut self) -> Shown {
        Shown {
            name: self.name(),
            mac: self.tenant_mac(),
            level: Some(self.level()),
            capabilities: self.capabilities(),
            depth: self.depth(),
            counters: self.counters(),
            pairs: Vec::new(),
            problem: self.take_problem(),
        }
    }

    fn rings(&self) -> Vec<PairCounters> {
        self.pairs()
    }

    fn request(&mut self) -> Option<(VnicRequest, QueuesLeft)> {
        let request = Port::request(self)?;
        Some((request, Port::queues_left(self)))
    }

    fn answer(&mut self, answer: &VnicAnswer, holds: bool) {
        let Self::Vnic(port) = self else { return };
        port.answer(answer);
        if !holds && let Some(target) = answer.target() {
            port.classify_target(target);
        }
    }

    fn forget_targets(&mut self, generation: u32) {
        let Self::Vnic(port) = self else { return };
        port.set_generation(generation);
        port.classify_all();
    }
}

/// What the engine's side knows of a port that it does not touch.
#[derive(Debug, Default)]
pub struct Shown {
    /// How operators know it.
    pub name: String,
    /// The hardware address behind it.
    pub mac: Option<[u8; 6]>,
    /// What it leaves with its guest.
    pub level: Option<Level>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// Descriptors of its sender's.
    pub depth: Option<u32>,
    /// What it has carried.
    pub counters: Counters,
    /// Its pairs of rings.
    pub pairs: Vec<PairCounters>,
    /// Why frames are being lost.
    pub problem: Option<PortError>,
}

/// The engine's end.
pub struct Apart<P: Served = Port> {
    came: Reader<Came>,
    going: Writer<Going>,
    done: Producer<(Ticket, Status)>,
    requests: Answering,
    /// The engine leaves the next request where it is, and may sleep meanwhile.
    held: bool,
    back: Consumer<Back<P>>,
    /// The port, once it is back and what the thread had left is done.
    port: Option<P>,
    shared: Arc<Shared>,
    shown: Shown,
    /// What was lost here and is in no counter of the port's.
    lost: Counters,
    /// What a client says of where a frame belongs holds if the frame was taken in this epoch.
    epoch: u32,
    /// The frame taken last.
    front: Vec<u8>,
    /// Frames that were taken and have not completed.
    owed: usize,
    /// Frames taken.
    taken: u64,
    /// Frames handed over.
    sent: u64,
    thread: Option<JoinHandle<()>>,
}

/// How the thread fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Batches begun and ended: odd while one is at work.
    pub batches: u64,
    /// Batches that stalled.
    pub stalls: u64,
    /// The longest of them.
    pub longest: Span,
    /// Frames that were lost because the port had no buffer for them.
    pub unread: u64,
}

/// What both ends see.
#[derive(Debug)]
struct Shared {
    /// The engine has let go of the port.
    over: AtomicBool,
    /// What was handed over and not taken by then counts as lost.
    left: AtomicBool,
    /// The engine wants the port back.
    wanted: AtomicBool,
    /// The port has no client any more, and never will.
    gone: AtomicBool,
    /// Each end sleeps, and is to be woken.
    thread_rests: AtomicBool,
    engine_rests: AtomicBool,
    to_thread: EventFd,
    to_engine: EventFd,
    batches: AtomicU64,
    stalls: AtomicU64,
    longest: AtomicU64,
    unread: AtomicU64,
    /// Frames taken from what was handed over.
    delivered: AtomicU64,
    /// The policy in force since this epoch began; written before it.
    generation: AtomicU32,
    epoch: AtomicU32,
    shown: Mutex<Option<Shown>>,
}

/// A frame from the port.
#[derive(Debug)]
struct Came {
    target: Option<u32>,
    /// The epoch in which it was taken.
    epoch: u32,
    len: usize,
    vnet: VnetHeader,
    tag: u32,
    ticket: Ticket,
}

/// A frame for the port.
#[derive(Debug)]
struct Going {
    len: usize,
    vnet: Option<VnetHeader>,
}

/// What the thread gives back with the port.
struct Back<P> {
    port: P,
    going: Reader<Going>,
    done: Consumer<(Ticket, Status)>,
    lost: Counters,
    epoch: u32,
}

impl<P: Served> Apart<P> {
    /// Has the port served by a thread of its own. `owed` frames were taken from it and have not completed, and the owner has
    /// room for `room` frames of it; a client's flow queue with `window` frames on their way keeps the rest.
    ///
    /// # Errors
    /// The port, where there is no room for a thread.
    pub fn new(mut port: P, owed: usize, room: usize, window: u32) -> Result<Self, (P, io::Error)> {
        let shared = match Shared::new() {
            Ok(shared) => Arc::new(shared),
            Err(error) => return Err((port, error)),
        };
        // The first look at it is still on the engine's thread.
        let shown = port.show();
        let (came_in, came) = ring();
        let (going, going_out) = ring();
        let (done, done_out) = RingBuffer::new(owed + room + COMPLETIONS);
        let (asking, requests) = requests();
        let (back_in, back) = RingBuffer::new(1);
        // The port follows once there is a thread: one that cannot be made would take it along.
        let (hand, handed) = channel::<P>();
        let thread = thread::Builder::new().name("apart".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || {
                let Ok(port) = handed.recv() else { return };
                let worker = Worker {
                    port,
                    came: came_in,
                    going: going_out,
                    done: done_out,
                    requests: asking,
                    back: back_in,
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
            came,
            going,
            done,
            requests,
            held: false,
            back,
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

    /// Begins a batch: looks at what the thread shows.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the client has gone, and all that it had posted was taken.
    pub fn begin(&mut self) -> Result<(), Trouble> {
        self.look();
        let gone = self.shared.gone.load(Ordering::Acquire);
        // A thread that ended otherwise than by giving the port back has lost it.
        let lost = self.port.is_none() && self.came.is_abandoned() && self.back.is_empty();
        if (gone || lost) && self.came.is_empty() { Err(Trouble::Gone) } else { Ok(()) }
    }

    /// The next frame that the thread has brought; none while more completions wait for it than there is room for.
    pub fn take(&mut self) -> Took {
        let waiting = self.done.buffer().capacity() - self.done.slots();
        if self.owed + waiting >= self.done.buffer().capacity() {
            return Took::Nothing;
        }
        let Some(came) = self.came.pop(&mut self.front) else { return Took::Nothing };
        self.owed += 1;
        self.taken += 1;
        let Came { target, epoch, len, vnet, tag, ticket } = came;
        let target = target.filter(|_| epoch == self.epoch);
        Took::Frame(Taken { target, len, vnet, tag, ticket })
    }

    /// Copies the frame taken last. Panics when `into` is shorter than the frame.
    pub fn copy(&self, into: &mut [u8]) {
        let len = into.len();
        into.copy_from_slice(&self.front[..len]);
    }

    /// A frame is through.
    pub fn complete(&mut self, ticket: Ticket, status: Status) {
        self.owed = self.owed.saturating_sub(1);
        match &mut self.port {
            Some(port) => port.complete(ticket, status),
            // There is room: no more is taken than may complete.
            None => drop(self.done.push((ticket, status))),
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
        if !self.going.push(Going { len: frame.len(), vnet: vnet.copied() }, frame) {
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

    /// Nothing is to be taken: asks to be woken when that changes. Answers whether the owner may sleep.
    pub fn rest(&mut self) -> bool {
        self.shared.wake_thread();
        self.shared.engine_rests.store(true, Ordering::Relaxed);
        // Orders that before the look; pairs with the thread's fence between its frames and its look at the flag.
        fence(Ordering::SeqCst);
        let asked = !self.held && !self.requests.is_empty();
        let nothing = self.came.is_empty() && !asked && self.back.is_empty() && self.port.is_none();
        if !nothing {
            self.shared.engine_rests.store(false, Ordering::Relaxed);
        }
        nothing
    }

    /// Whether the client is there.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when not.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        self.begin()
    }

    /// Takes the next frame and completes it at once; see [`Port::receive`].
    ///
    /// # Errors
    /// As [`Apart::begin`].
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

    /// How operators know it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} (apart)", self.shown.name)
    }

    /// What it can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.shown.capabilities
    }

    /// What the client asks for next, to be answered by [`Apart::answer`]; the thread reads no other request before.
    pub fn request(&mut self) -> Option<VnicRequest> {
        self.requests.next(self.taken)
    }

    /// Leaves the next request where it is, or lets it in again: the thread passes on no other meanwhile.
    pub fn hold_requests(&mut self, hold: bool) {
        self.held = hold;
    }

    /// Flow queues that the client had left with its last request.
    #[must_use]
    pub fn queues_left(&self) -> QueuesLeft {
        self.requests.left()
    }

    /// Answers the request that was read last.
    pub fn answer(&mut self, answer: VnicAnswer) {
        self.requests.answer(Answered { answer, epoch: self.epoch });
        self.shared.wake_thread();
    }

    /// Another epoch begins, under the policy with this number: frames of the flow queues that the client has by now are
    /// to be classified, also those that the thread has taken. Flow queues that it gets from now on hold.
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

    /// How the thread fares.
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

    /// Asks for the port back; a thread that has just stalled keeps it, and it may be asked again.
    pub fn want_back(&mut self) {
        self.shared.wanted.store(true, Ordering::Release);
        self.shared.wake_thread();
    }

    /// Whether the port is back, and all that the thread had taken was taken from here.
    #[must_use]
    pub fn is_back(&self) -> bool {
        self.port.is_some() && self.came.is_empty()
    }

    /// The port, and what was lost while it was away and is in none of its counters. Nothing before [`Apart::is_back`].
    pub fn into_port(mut self) -> Option<(P, Counters)> {
        let port = self.port.take()?;
        self.thread = None; // it has given all back and ends by itself; the engine does not wait for that
        Some((port, std::mem::take(&mut self.lost)))
    }

    /// The port is let go of: what was handed over and not taken is lost, and counted.
    pub fn leave(&mut self) {
        self.shared.left.store(true, Ordering::SeqCst);
        if self.port.is_none() {
            let left = self.sent - self.shared.delivered.load(Ordering::SeqCst).min(self.sent);
            self.lost.gone(left as usize);
        }
        self.lost.rx_drops[DropReason::Gone as usize] += self.came.len() as u64;
        self.shared.over.store(true, Ordering::Release);
        self.shared.wake_thread();
    }

    /// What to wait on: a bell of the thread's.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds { receive: Some(self.shared.to_engine.as_raw_fd()), transmit: None }
    }

    /// What was shown last.
    #[must_use]
    pub fn shown(&self) -> &Shown {
        &self.shown
    }

    /// What it has carried, as far as that was shown.
    #[must_use]
    pub fn counters(&mut self) -> Counters {
        self.look();
        let carried = match &mut self.port {
            Some(port) => port.show().counters,
            None => self.shown.counters,
        };
        add(carried, &self.lost)
    }

    /// Why frames are being lost, told once.
    pub fn take_problem(&mut self) -> Option<PortError> {
        self.look();
        self.shown.problem.take()
    }

    /// Takes over what the thread shows, and the port, if it is back. Waits for nobody: the thread may have lost its core
    /// while it shows something.
    fn look(&mut self) {
        if let Ok(mut shown) = self.shared.shown.try_lock()
            && let Some(mut new) = shown.take()
        {
            new.problem = new.problem.or_else(|| self.shown.problem.take());
            self.shown = new;
        }
        if self.port.is_none()
            && let Ok(back) = self.back.pop()
        {
            self.take_back(back);
        }
    }

    /// What the thread had left is done before anything new: first what has completed, then what is to go.
    fn take_back(&mut self, back: Back<P>) {
        let Back { mut port, mut going, mut done, lost, epoch } = back;
        if epoch != self.epoch {
            port.forget_targets(self.shared.generation.load(Ordering::Relaxed));
        }
        while let Ok((ticket, status)) = done.pop() {
            port.complete(ticket, status);
        }
        self.lost = add(self.lost, &lost);
        let mut frame = vec![0; FRAME_ROOM];
        while let Some(head) = going.pop(&mut frame) {
            self.shared.send_or_count(&mut port, &frame[..head.len], head.vnet.as_ref(), &mut self.lost);
        }
        port.flush();
        self.port = Some(port);
    }
}

impl<P: Served> Drop for Apart<P> {
    /// The thread ends when it can. One that is not stuck has given everything back before this returns; drop it where
    /// nobody waits.
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

impl Shared {
    fn new() -> io::Result<Self> {
        let bell = || EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        Ok(Self {
            over: AtomicBool::new(false),
            left: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            thread_rests: AtomicBool::new(false),
            engine_rests: AtomicBool::new(false),
            to_thread: bell()?,
            to_engine: bell()?,
            batches: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            shown: Mutex::new(None),
        })
    }

    /// A frame that finds no room is lost, as it would have been on the engine's thread.
    fn send_or_count(
        &self,
        port: &mut impl Served,
        frame: &[u8],
        vnet: Option<&VnetHeader>,
        lost: &mut Counters,
    ) {
        match port.send(frame, vnet) {
            Ok(Sending::Sent | Sending::Refused(_)) => {}
            Ok(Sending::Full) => {
                lost.refuse(DropReason::NoBuffer);
                self.unread.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => lost.gone(1),
        }
    }

    fn wake_thread(&self) {
        fence(Ordering::SeqCst);
        if self.thread_rests.load(Ordering::Relaxed) && self.thread_rests.swap(false, Ordering::Relaxed) {
            let _ = self.to_thread.write(1);
        }
    }

    fn wake_engine(&self) {
        fence(Ordering::SeqCst);
        if self.engine_rests.load(Ordering::Relaxed) && self.engine_rests.swap(false, Ordering::Relaxed) {
            self.ring_engine();
        }
    }

    /// Never read, as it is waited for by edges.
    fn ring_engine(&self) {
        let _ = self.to_engine.write(1);
    }
}

fn add(a: Counters, b: &Counters) -> Counters {
    let sum = |a: [u64; DropReason::COUNT], b: [u64; DropReason::COUNT]| std::array::from_fn(|i| a[i] + b[i]);
    Counters { rx_drops: sum(a.rx_drops, b.rx_drops), tx_drops: sum(a.tx_drops, b.tx_drops), ..a }
}

impl Length for Came {
    fn length(&self) -> usize {
        self.len
    }
}

impl Length for Going {
    fn length(&self) -> usize {
        self.len
    }
}

/// Completions that wait, beside those of frames that the owner holds.
const COMPLETIONS: usize = 4_096;
/// Messages of a vNIC's client read in a batch.
const REQUESTS: usize = 8;
/// How long who lets go of the port waits for a thread that has something to give back.
const PATIENCE: Duration = Duration::from_millis(100);
