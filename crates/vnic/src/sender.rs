//! The sending side of one client thread: buffers, flow rings, and a doorbell queue of its own.
//!
//! Why: threads that shared a doorbell queue would need a lock for each packet.
//! From: Loom §4.3: a descriptor ring for each flow, a doorbell queue for each core.
//! Not here: the vNIC itself, completions and receiving (`client`).
//! Invariant: a flow ring, a buffer and a doorbell queue belong to one sender at a time. A sender has no more frames on
//! their way than its part of the completion ring, and no more descriptors in a flow ring than the ring has places: no entry
//! is written over before it has been read.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use plimsoll_wire::VnetHeader;
use plimsoll_wire::doorbell::{Note, PacketMetadata};

use crate::error::VnicError;
use crate::layout::{BUFFER, Context, Descriptor, Done, Layout, MAX_PIECES, Status, header};
use crate::region::Region;

/// A frame that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The flow queue that it was posted to.
    pub queue: u32,
    /// What became of it.
    pub status: Status,
}

/// The error of a send that finds no room; after polling completions there may be some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room now: poll completions, and try again")]
pub struct Busy;

/// A buffer of 2 KiB that the program fills and posts.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer(u32);

/// The parts of a vNIC that all threads of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) region: Region,
    pub(crate) layout: Layout,
    pub(crate) kick: OwnedFd,
}

/// The sending side of one thread. A [`crate::Vnic`] is one, on the first doorbell queue; other threads have a [`Poster`].
#[derive(Debug)]
pub struct Sender {
    pub(crate) shared: Arc<Shared>,
    core: u32,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// For each buffer, the next buffer of the same frame.
    next: Vec<u32>,
    batch: Vec<u16>,
    bell_tail: u32,
    on_their_way: u32,
    /// Frames that it may have on their way.
    most: u32,
}

/// A flow ring, as the client counts it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) tail: u32,
    /// Descriptors that have not completed.
    pub(crate) used: u32,
    /// Whether the batch names it already.
    rung: bool,
    /// Another thread posts to it.
    elsewhere: bool,
}

/// The end of a chain of buffers.
const NONE: u32 = u32::MAX;

impl Sender {
    /// The sender of the vNIC's own thread, with all buffers and flow rings.
    pub(crate) fn first(shared: Arc<Shared>) -> Self {
        let sizes = *shared.layout.sizes();
        Self {
            core: 0,
            flows: vec![Flow::default(); sizes.flow_queues as usize],
            free: (0..sizes.buffers).rev().collect(),
            next: vec![NONE; sizes.buffers as usize],
            batch: Vec::with_capacity(sizes.doorbell_words as usize),
            bell_tail: 0,
            on_their_way: 0,
            most: sizes.completions,
            shared,
        }
    }

    /// Splits off a sender for doorbell queue `core`, with these flow queues, which must be idle, `buffers` buffers and an
    /// equal part of the completion ring. Answers the numbers of its buffers as well.
    pub(crate) fn split(&mut self, core: u32, queues: &[u32], buffers: usize) -> Option<(Self, Vec<u32>)> {
        let sizes = *self.shared.layout.sizes();
        let idle = |&queue: &u32| {
            let flow = self.flows.get(queue as usize);
            flow.is_some_and(|flow| flow.used == 0 && !flow.rung && !flow.elsewhere)
        };
        let part = sizes.completions / sizes.doorbell_queues;
        if core >= sizes.doorbell_queues || part == 0 || self.free.len() < buffers || !queues.iter().all(idle)
        {
            return None;
        }
        let mut flows = vec![Flow { elsewhere: true, ..Flow::default() }; self.flows.len()];
        for &queue in queues {
            let own = &mut self.flows[queue as usize];
            flows[queue as usize] = Flow { tail: own.tail, ..Flow::default() };
            own.elsewhere = true;
        }
        self.most -= part;
        let free = self.free.split_off(self.free.len() - buffers);
        let sender = Self {
            shared: Arc::clone(&self.shared),
            core,
            flows,
            next: vec![NONE; self.next.len()],
            batch: Vec::with_capacity(sizes.doorbell_words as usize),
            bell_tail: 0,
            on_their_way: 0,
            most: part,
            free: free.clone(),
        };
        Some((sender, free))
    }

    /// The number of a free buffer.
    pub(crate) fn take_buffer(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Flow queues of the vNIC.
    pub(crate) fn flow_queues(&self) -> usize {
        self.flows.len()
    }

    /// Frees the buffers and the places of a frame that has completed.
    #[inline]
    pub(crate) fn through(&mut self, done: Done) -> Completion {
        self.free_chain(done.cookie);
        self.on_their_way = self.on_their_way.saturating_sub(1);
        if let Some(flow) = self.flows.get_mut(done.queue as usize) {
            flow.used = flow.used.saturating_sub(done.descriptors);
        }
        Completion { queue: done.queue, status: done.status }
    }

    /// Takes a free buffer to fill, if there is one. A buffer that is dropped instead of posted is lost to this client.
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.free.pop().map(Buffer)
    }

    /// Writes into a buffer from `at` on. Panics beyond its 2,048 bytes.
    pub fn fill(&mut self, buffer: &Buffer, at: usize, bytes: &[u8]) {
        assert!(at <= BUFFER && bytes.len() <= BUFFER - at, "bytes of one buffer");
        let begin = self.buffer_at(buffer.0);
        self.shared.region.write(begin + at, bytes);
    }

    /// Posts the first `len` bytes of a buffer as a frame. Its buffer is free again when it completes.
    ///
    /// # Errors
    /// The buffer, when there is no room.
    pub fn post(&mut self, queue: u32, buffer: Buffer, len: usize) -> Result<(), Buffer> {
        assert!(len <= BUFFER, "bytes of one buffer");
        if !self.has_room(queue, 1) {
            return Err(buffer);
        }
        let descriptor = Descriptor {
            addr: u64::from(buffer.0) * BUFFER as u64,
            len: len as u32,
            cookie: buffer.0,
            ..Descriptor::default()
        };
        self.next[buffer.0 as usize] = NONE;
        self.put(queue, &descriptor);
        self.tell(queue);
        Ok(())
    }

    /// Copies a finished frame into buffers and posts it.
    ///
    /// # Errors
    /// [`Busy`] when there is no room.
    #[inline]
    pub fn send(&mut self, queue: u32, frame: &[u8]) -> Result<(), Busy> {
        self.send_with(queue, frame, &VnetHeader::default(), 0)
    }

    /// Copies a frame into buffers and posts it, with work left to the daemon (checksum, segmentation) and a slack or
    /// deadline in microseconds (0: the class's own).
    ///
    /// # Errors
    /// [`Busy`] when there is no room. Panics on a frame beyond 80 KiB.
    #[inline]
    pub fn send_with(
        &mut self,
        queue: u32,
        frame: &[u8],
        offload: &VnetHeader,
        tag: u32,
    ) -> Result<(), Busy> {
        self.send_gathered(queue, &[frame], offload, tag)
    }

    /// Like [`Sender::send_with`], for a frame that lies in several places, headers here and payload there. Each part begins
    /// a descriptor of its own; the daemon puts them together when it takes the frame.
    ///
    /// # Errors
    /// As [`Sender::send_with`]. Panics on a frame of more than 40 descriptors.
    pub fn send_gathered(
        &mut self,
        queue: u32,
        parts: &[&[u8]],
        offload: &VnetHeader,
        tag: u32,
    ) -> Result<(), Busy> {
        self.send_described(queue, parts, offload, tag, &PacketMetadata::default())
    }

    /// Like [`Sender::send_gathered`], for a frame with metadata of its own. Each field that it has replaces the flow
    /// queue's ([`Sender::set_metadata`]). It takes one descriptor more.
    ///
    /// # Errors
    /// As [`Sender::send_with`]. Panics on a frame of more than 40 descriptors.
    pub fn send_described(
        &mut self,
        queue: u32,
        parts: &[&[u8]],
        offload: &VnetHeader,
        tag: u32,
        metadata: &PacketMetadata,
    ) -> Result<(), Busy> {
        let pieces: usize = parts.iter().map(|part| part.len().div_ceil(BUFFER)).sum::<usize>().max(1);
        assert!(pieces <= MAX_PIECES, "a frame of 64 KiB, in 40 pieces at most");
        let described = metadata.present() != 0;
        if !self.has_room(queue, pieces as u32 + u32::from(described)) || self.free.len() < pieces {
            return Err(Busy);
        }
        if described {
            let cookie = self.free[self.free.len() - 1];
            let at = self.next_place(queue);
            Context { metadata: *metadata, cookie }.store(&self.shared.region, at);
        }
        let mut first = NONE;
        let mut before = NONE;
        let mut left = pieces;
        // An empty frame is one empty piece, which the daemon refuses.
        let none: [&[u8]; 1] = [&[]];
        let all = parts.iter().flat_map(|part| part.chunks(BUFFER));
        for piece in all.chain(none.into_iter().filter(|_| parts.iter().all(|part| part.is_empty()))) {
            let Some(buffer) = self.free.pop() else { return Err(Busy) };
            let begin = self.buffer_at(buffer);
            self.shared.region.write(begin, piece);
            if first == NONE {
                first = buffer;
            } else {
                self.next[before as usize] = buffer;
            }
            (before, self.next[buffer as usize]) = (buffer, NONE);
            left -= 1;
            let descriptor = Descriptor {
                addr: u64::from(buffer) * BUFFER as u64,
                len: piece.len() as u32,
                more: left > 0,
                offload: *offload,
                tag,
                cookie: first,
            };
            self.put(queue, &descriptor);
        }
        self.tell(queue);
        Ok(())
    }

    /// Sets the slack or deadline, in microseconds, of a flow queue's descriptors that state none. The daemon learns of it
    /// with the next [`Sender::ring`].
    ///
    /// # Errors
    /// [`Busy`] when the batch of doorbells is full: ring first.
    pub fn set_tag(&mut self, queue: u32, tag: u32) -> Result<(), Busy> {
        self.note(Note::Tag(queue, tag))
    }

    /// Sets the metadata of a flow queue's packets, in place of earlier metadata. The daemon learns of it with the next
    /// [`Sender::ring`]; it holds for packets that the daemon has not taken by then, and for all later ones.
    ///
    /// # Errors
    /// [`Busy`] when the batch of doorbells is full: ring first.
    pub fn set_metadata(&mut self, queue: u32, metadata: &PacketMetadata) -> Result<(), Busy> {
        self.note(Note::Metadata(queue, *metadata))
    }

    /// Rings the doorbell for all that was posted since the last call: one store for all of it, and a wake-up if the daemon
    /// sleeps. Answers whether the doorbells found room; if not, ring again later.
    ///
    /// # Errors
    /// What the kernel says to the wake-up.
    pub fn ring(&mut self) -> io::Result<bool> {
        let words = self.shared.layout.sizes().doorbell_words;
        if self.batch.is_empty() {
            return Ok(true);
        }
        // Acquire: pairs with the daemon's Release; words before the head may be written again.
        let head =
            self.shared.region.word32(self.shared.layout.doorbell_head(self.core)).load(Ordering::Acquire);
        let room = words - self.bell_tail.wrapping_sub(head).min(words);
        if self.batch.len() > room as usize {
            self.kick()?;
            return Ok(false);
        }
        for &word in &self.batch {
            let at = self.shared.layout.doorbell_word(self.core, self.bell_tail);
            self.shared.region.word16(at).store(word, Ordering::Relaxed);
            self.bell_tail = self.bell_tail.wrapping_add(1);
        }
        self.publish_tails();
        self.batch.clear();
        // Release: pairs with the daemon's Acquire, so that a reader of the tail also sees the words.
        self.shared
            .region
            .word32(self.shared.layout.doorbell_tail(self.core))
            .store(self.bell_tail, Ordering::Release);
        self.kick()?;
        Ok(true)
    }

    /// Stores the tail of each flow ring that the batch names: once for a batch, as each store costs the daemon its copy of
    /// the cache line.
    #[inline]
    fn publish_tails(&mut self) {
        let mut words = &self.batch[..];
        while let Some((note, used)) = Note::first(words) {
            words = &words[used..];
            let Note::Bell(queue) = note else { continue };
            let flow = &mut self.flows[queue as usize];
            flow.rung = false;
            // Release: pairs with the daemon's Acquire, so that a reader of the tail also sees descriptors and bytes.
            self.shared
                .region
                .word32(self.shared.layout.ring_tail(queue))
                .store(flow.tail, Ordering::Release);
        }
    }

    /// Frames that have been posted and have not completed.
    #[must_use]
    pub fn on_their_way(&self) -> u32 {
        self.on_their_way
    }

    #[inline]
    fn has_room(&self, queue: u32, pieces: u32) -> bool {
        let sizes = self.shared.layout.sizes();
        let Some(flow) = self.flows.get(queue as usize) else { return false };
        !flow.elsewhere && flow.used + pieces <= sizes.ring && self.on_their_way < self.most
    }

    #[inline]
    fn put(&mut self, queue: u32, descriptor: &Descriptor) {
        let at = self.next_place(queue);
        descriptor.store(&self.shared.region, at);
    }

    /// The next place of a flow ring, which is used from now on.
    #[inline]
    fn next_place(&mut self, queue: u32) -> usize {
        let flow = &mut self.flows[queue as usize];
        let at = self.shared.layout.descriptor(queue, flow.tail);
        flow.tail = flow.tail.wrapping_add(1);
        flow.used += 1;
        at
    }

    /// Writes a note that carries values into the batch, half of which stays free for flow queues.
    fn note(&mut self, note: Note) -> Result<(), Busy> {
        let (before, most) = (self.batch.len(), self.shared.layout.sizes().doorbell_words as usize / 2);
        note.write(&mut self.batch);
        if self.batch.len() > most {
            self.batch.truncate(before);
            return Err(Busy);
        }
        Ok(())
    }

    /// Notes the queue of a whole frame in the batch, with which its ring's tail is published.
    #[inline]
    fn tell(&mut self, queue: u32) {
        self.on_their_way += 1;
        let flow = &mut self.flows[queue as usize];
        if !flow.rung {
            flow.rung = true;
            Note::Bell(queue).write(&mut self.batch);
        }
    }

    fn kick(&self) -> io::Result<()> {
        // Orders the tail before the look at the flag; pairs with the daemon's fence between flag and last look.
        fence(Ordering::SeqCst);
        let waits = self.shared.region.word32(header::DAEMON_WAITS);
        if waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0 {
            nix::unistd::write(&self.shared.kick, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn free_chain(&mut self, first: u32) {
        let mut buffer = first;
        while let Some(next) = self.next.get_mut(buffer as usize) {
            let following = core::mem::replace(next, NONE);
            self.free.push(buffer);
            buffer = following;
        }
    }

    pub(crate) fn buffer_at(&self, buffer: u32) -> usize {
        let at = self.shared.layout.in_buffers(u64::from(buffer) * BUFFER as u64, BUFFER as u32);
        at.expect("a buffer's number is below their count")
    }
}

/// The sending side of a further thread, made by [`crate::Vnic::poster`]. It is a [`Sender`]; its completions come from the
/// thread that polls the vNIC's.
#[derive(Debug)]
pub struct Poster {
    pub(crate) sender: Sender,
    pub(crate) done: Receiver<Done>,
}

impl Poster {
    /// Calls `tell` for each frame that has completed since the last call, and answers how many there were. Their buffers
    /// are free again.
    pub fn poll_completions(&mut self, mut tell: impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while let Some(done) = self.next_completion() {
            tell(done);
            count += 1;
        }
        count
    }

    /// Takes the next completion; the frame's buffers are free again.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.done.try_recv().ok().map(|done| self.sender.through(done))
    }

    /// Sleeps until a frame has completed, and takes its completion; `None` when none has in that time.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the vNIC has been dropped: no thread hands completions on any more.
    pub fn wait(&mut self, most: Duration) -> Result<Option<Completion>, VnicError> {
        match self.done.recv_timeout(most) {
            Ok(done) => Ok(Some(self.sender.through(done))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(VnicError::Closed),
        }
    }
}

impl Deref for Poster {
    type Target = Sender;

    fn deref(&self) -> &Sender {
        &self.sender
    }
}

impl DerefMut for Poster {
    fn deref_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }
}
