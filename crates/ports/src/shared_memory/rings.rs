//! The rings: reads doorbells, takes frames, publishes completions and filled buffers.
//!
//! Why: the code that runs for each packet stands together, apart from the rest.
//! From: Loom §4.3; `docs/vnic.md`, "The region".
//! Not here: sockets and messages (`client`).
//! Invariant: each word is copied out once, and the copy is checked; each call is bounded.

use std::os::fd::AsRawFd;
use std::sync::atomic::{Ordering, fence};

use nix::sys::socket::{MsgFlags, send};
use plimsoll_vnic::layout::{self, Done, MAX_PIECES, header};
use plimsoll_vnic::{Descriptor, PacketMetadata, Posting, Status, Used};
use plimsoll_wire::doorbell::{LONGEST_NOTE, Note};

use super::late::read;
use super::{Flow, Place, VnicPort};
use crate::contract::Trouble;
use crate::counters::DropReason;
use crate::posted::{Taken, Ticket, Took};

/// The descriptors of one frame.
#[derive(Clone, Copy, Debug, Default)]
struct Gathered {
    /// Its first piece, with the cookie of its first descriptor.
    first: Descriptor,
    /// The frame's own metadata.
    described: PacketMetadata,
    /// Bytes of its pieces.
    len: usize,
    /// Descriptors.
    count: u32,
    /// Whether they make a valid frame.
    sound: bool,
}

impl VnicPort {
    /// Begins a batch: reads the doorbells, and every few batches the sockets.
    ///
    /// # Errors
    /// [`Trouble::Gone`] when the client has gone.
    pub fn begin(&mut self) -> Result<(), Trouble> {
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        if self.gone {
            return Err(Trouble::Gone);
        }
        self.read_doorbells();
        Ok(())
    }

    /// Takes the next frame from the flow queues that doorbells named, one of each in turn. A flow queue with `window`
    /// frames on their way keeps its descriptors, and holds up no other.
    pub fn take(&mut self, window: u32) -> Took {
        while let Some(queue) = self.pending.pop_front() {
            self.look_ahead(queue);
            let flow = &mut self.queues[queue as usize];
            flow.pending = false;
            if flow.place == Place::Unmapped || flow.head == flow.tail {
                continue;
            }
            if flow.in_flight >= window {
                flow.blocked = true;
                continue;
            }
            if self.in_flight >= self.layout.sizes().completions {
                // An honest client never posts this many; the rest waits until a frame has completed.
                self.pend(queue);
                return Took::Nothing;
            }
            return self.take_from(queue);
        }
        Took::Nothing
    }

    /// Takes the frame behind the one taken last, in the flow queue that has this ticket, if it may be taken now.
    #[inline]
    pub fn take_after(&mut self, ticket: Ticket, window: u32) -> Took {
        let queue = u32::from(ticket.queue());
        let flow = &self.queues[queue as usize];
        let may = flow.head != flow.tail
            && flow.place != Place::Unmapped
            && flow.in_flight < window
            && self.in_flight < self.layout.sizes().completions;
        if may { self.take_from(queue) } else { Took::Nothing }
    }

    /// Copies the frame taken last.
    ///
    /// Panics when `into` is shorter than the frame.
    pub fn copy(&self, into: &mut [u8]) {
        let len = self.pieces.iter().map(|&(_, len)| len).sum::<usize>();
        read(&self.region, &self.pieces, &mut into[..len]);
    }

    /// Completes a frame; [`VnicPort::flush`] publishes the completion. Answers whether a flow queue has frames to take. A
    /// ticket of an earlier client is ignored.
    pub fn complete(&mut self, ticket: Ticket, status: Status) -> bool {
        if ticket.session != self.session {
            return false;
        }
        let queue = u32::from(ticket.queue());
        let cookie = if ticket.is_late() { self.late.end(ticket.cookie()) } else { Some(ticket.cookie()) };
        let Some(cookie) = cookie else { return false };
        self.in_flight = self.in_flight.saturating_sub(1);
        let descriptors = ticket.descriptors().into();
        self.write_completion(Done { cookie, queue, status, descriptors });
        let flow = &mut self.queues[queue as usize];
        flow.in_flight = flow.in_flight.saturating_sub(1);
        if flow.blocked {
            flow.blocked = false;
            self.pend(queue);
        }
        !self.pending.is_empty()
    }

    /// Asks the client to kick when there is a frame to take. Answers whether the owner may sleep; if not, it should begin
    /// another batch.
    pub fn rest(&mut self) -> bool {
        if self.look() || self.gone || self.client.as_ref().is_some_and(|client| client.talks) {
            return false;
        }
        self.region.word32(header::DAEMON_WAITS).store(1, Ordering::Relaxed);
        // Orders the flag before the look; pairs with the client's fence between its tail and its look at the flag.
        fence(Ordering::SeqCst);
        let rung = (0..).zip(&self.doorbell_heads).any(|(core, &head)| {
            self.region.word32(self.layout.doorbell_tail(core)).load(Ordering::Relaxed) != head
        });
        if rung {
            self.region.word32(header::DAEMON_WAITS).store(0, Ordering::Relaxed);
        }
        !rung
    }

    /// Reads up to `WORDS` words of the doorbell queues, beginning with another queue in each batch: a client that rings
    /// without end is read no faster than its frames are taken. The rest is read in the next batch.
    pub(super) fn read_doorbells(&mut self) {
        let queues = self.layout.sizes().doorbell_queues;
        let mut budget = WORDS;
        for core in 0..queues {
            if budget == 0 {
                return;
            }
            budget =
                budget.saturating_sub(self.read_doorbell(self.batches.wrapping_add(core) % queues, budget));
        }
    }

    /// Reads up to `most` words of a doorbell queue, and the rest of a note that has begun; answers how many words it read.
    fn read_doorbell(&mut self, core: u32, most: u32) -> u32 {
        let head = self.doorbell_heads[core as usize];
        // Acquire: pairs with the client's Release, so that the words before the tail are there.
        let tail = self.region.word32(self.layout.doorbell_tail(core)).load(Ordering::Acquire);
        if tail == head {
            return 0;
        }
        let count = tail.wrapping_sub(head);
        let mut read = count;
        if count <= self.layout.sizes().doorbell_words {
            let mut words = core::mem::take(&mut self.words);
            self.copy_words(core, head, count.min(most + LONGEST_NOTE as u32 - 1), &mut words);
            if let Some(used) = self.heed(core, &words, most as usize) {
                read = used as u32;
            }
            self.words = words;
        } else {
            self.counters.lose(DropReason::BadDoorbell);
        }
        let head = head.wrapping_add(read);
        self.doorbell_heads[core as usize] = head;
        // Release: pairs with the client's Acquire; the words have been copied out before it sees their room.
        self.region.word32(self.layout.doorbell_head(core)).store(head, Ordering::Release);
        read
    }

    fn copy_words(&self, core: u32, head: u32, count: u32, into: &mut Vec<u16>) {
        into.clear();
        into.extend((0..count).map(|index| {
            let at = self.layout.doorbell_word(core, head.wrapping_add(index));
            self.region.word16(at).load(Ordering::Relaxed)
        }));
    }

    /// Carries out the notes of a doorbell queue that begin in the first `most` words; returns the words they take.
    /// `None` at an invalid note, as it is not known where the next one begins.
    fn heed(&mut self, core: u32, words: &[u16], most: usize) -> Option<usize> {
        let mut used = 0;
        while used < most
            && let Some((note, len)) = Note::first(words.get(used..).unwrap_or(&[]))
        {
            used += len;
            match note {
                Note::Bell(queue) => self.rung(queue, core),
                Note::Tag(queue, tag) => match self.queues.get_mut(queue as usize) {
                    Some(flow) if flow.place != Place::Unmapped => flow.tag = tag,
                    _ => self.counters.lose(DropReason::UnmappedQueue),
                },
                Note::Metadata(queue, metadata) => self.describe(queue, metadata),
                // Only the operator may change weights and rates.
                Note::Weight(..) | Note::Rate(..) | Note::ClassRate(..) => {
                    self.counters.lose(DropReason::BadDoorbell)
                }
                Note::Malformed => {
                    self.counters.lose(DropReason::BadDoorbell);
                    return None;
                }
            }
        }
        Some(used)
    }

    /// Sets a flow queue's metadata, as the client asks.
    fn describe(&mut self, queue: u32, metadata: PacketMetadata) {
        match self.queues.get_mut(queue as usize) {
            Some(flow) if flow.place != Place::Unmapped => {
                flow.described = metadata.present() != 0;
                self.metadata[queue as usize] = metadata;
            }
            _ => self.counters.lose(DropReason::UnmappedQueue),
        }
    }

    /// Handles a doorbell: reads the tail of the flow queue that doorbell queue `core` names.
    #[inline]
    pub(super) fn rung(&mut self, queue: u32, core: u32) {
        let Some(flow) = self.queues.get_mut(queue as usize).filter(|flow| flow.place != Place::Unmapped)
        else {
            return self.counters.lose(DropReason::UnmappedQueue);
        };
        // Acquire: pairs with the client's Release, so that the descriptors before the tail are whole.
        let tail = self.region.word32(self.layout.ring_tail(queue)).load(Ordering::Acquire);
        if tail.wrapping_sub(flow.head) > self.layout.sizes().ring {
            return self.counters.lose(DropReason::BadDescriptor);
        }
        // There are no more than 64 doorbell queues.
        (flow.tail, flow.core) = (tail, core as u16);
        let (blocked, head) = (flow.blocked, flow.head);
        if !blocked {
            self.region.prefetch(self.layout.descriptor(queue, head));
            self.pend(queue);
        }
    }

    #[inline]
    pub(super) fn pend(&mut self, queue: u32) {
        let flow = &mut self.queues[queue as usize];
        if !flow.pending && flow.head != flow.tail {
            flow.pending = true;
            self.pending.push_back(queue);
        }
    }

    /// Prefetches the bytes of a frame that is taken soon: what the client wrote lies in its core's cache. The descriptor
    /// came with the doorbell.
    #[inline]
    pub(super) fn look_ahead(&self, queue: u32) {
        let (queue, ahead) = self.pending.get(AHEAD).map_or((queue, AHEAD as u32), |&queue| (queue, 0));
        let index = self.queues[queue as usize].head.wrapping_add(ahead);
        let next = Descriptor::load(&self.region, self.layout.descriptor(queue, index));
        if let Some(at) = self.layout.in_buffers(next.addr, next.len) {
            self.region.prefetch(at);
        }
    }

    /// Takes the descriptors of one frame.
    #[inline]
    pub(super) fn take_from(&mut self, queue: u32) -> Took {
        let Gathered { first, described, len, count, sound } = self.gather(queue);
        let flow = &mut self.queues[queue as usize];
        flow.head = flow.head.wrapping_add(count);
        let Flow { place, core, tag, .. } = *flow;
        let metadata = if flow.described { described.or(self.metadata[queue as usize]) } else { described };
        self.pend(queue);
        if !sound || len > layout::MAX_FRAME {
            self.counters.lose(DropReason::BadDescriptor);
            let (cookie, status) = (first.cookie, Status::Malformed);
            self.write_completion(Done { cookie, queue, status, descriptors: count });
            return Took::Refused;
        }
        self.queues[queue as usize].in_flight += 1;
        self.in_flight += 1;
        self.counters.received(len);
        let ticket = Ticket::new(self.session, first.cookie, queue as u16, count as u16);
        Took::Frame(Taken {
            target: if let Place::Mapped(target) = place { Some(target) } else { None },
            len,
            vnet: first.offload,
            tag: if first.tag == 0 { tag } else { first.tag },
            metadata,
            core: Some(core),
            ticket,
        })
    }

    /// Copies the descriptors of a flow queue's next frame, and notes its pieces.
    #[inline]
    fn gather(&mut self, queue: u32) -> Gathered {
        let Flow { head, tail, .. } = self.queues[queue as usize];
        let mut found = Gathered { sound: true, ..Gathered::default() };
        let mut most = MAX_PIECES as u32;
        self.pieces.clear();
        loop {
            let index = head.wrapping_add(found.count);
            let more = match Posting::load(&self.region, self.layout.descriptor(queue, index)) {
                Posting::Piece(piece) => {
                    if self.pieces.is_empty() && found.sound {
                        let cookie = if found.count == 0 { piece.cookie } else { found.first.cookie };
                        found.first = Descriptor { cookie, ..piece };
                    }
                    found.len += piece.len as usize;
                    match self.layout.in_buffers(piece.addr, piece.len) {
                        Some(at) if piece.len > 0 => self.pieces.push((at, piece.len as usize)),
                        _ => found.sound = false,
                    }
                    piece.more
                }
                Posting::Context(context) => {
                    found.sound &= found.count == 0;
                    if found.count == 0 {
                        (found.first.cookie, found.described) = (context.cookie, context.metadata);
                        most += 1;
                    }
                    true
                }
            };
            found.count += 1;
            if !more {
                return found;
            }
            if found.count == most || index.wrapping_add(1) == tail {
                found.sound = false;
                return found;
            }
        }
    }

    pub(super) fn write_completion(&mut self, done: Done) {
        done.store(&self.region, self.layout.completion(self.completed.tail));
        self.completed.tail = self.completed.tail.wrapping_add(1);
    }

    pub(super) fn fill(&mut self, used: Used) {
        used.store(&self.region, self.layout.used(self.filled.tail));
        self.filled.tail = self.filled.tail.wrapping_add(1);
    }

    pub(super) fn publish(&mut self) {
        let mut news = false;
        for (ring, at) in [
            (&mut self.completed, self.layout.completion_tail()),
            (&mut self.filled, self.layout.used_tail()),
        ] {
            if ring.tail != ring.published {
                ring.published = ring.tail;
                // Release: pairs with the client's Acquire, so that a reader of the tail also sees the entries.
                self.region.word32(at).store(ring.tail, Ordering::Release);
                news = true;
            }
        }
        if !news {
            return;
        }
        // Orders the tails before the look at the flag; pairs with the client's fence between its flag and its look.
        fence(Ordering::SeqCst);
        let waits = self.region.word32(header::CLIENT_WAITS);
        if waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0 {
            // A full socket wakes the client as well, so an error here changes nothing.
            let _ = send(self.wake.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        }
    }
}

/// Batches between looks at the sockets while the rings are busy: a system call in 64 batches is lost in them.
const LOOK_EVERY: u32 = 64;
/// Words of all doorbell queues that are read in a batch: twice as many as there are frames that the daemon takes in one.
const WORDS: u32 = 128;
/// Flow queues between the one that is taken from and the one whose frame is fetched.
const AHEAD: usize = 3;
