//! One split ring of a virtual machine's, seen from the device.
//!
//! Why: descriptors are taken one by one and given back in any order, many at a time, to a driver that may write anything
//! anywhere at any moment; `virtio-queue` stores the ring's end for each descriptor and knows of no order but its own.
//! From: virtio 1.2, section 2.7.
//! Not here: what the buffers hold (`port`).
//! Invariant: each word is copied out once, and the copy is checked; each call is bounded by the ring's size; a descriptor
//! that is taken is given back once, and none that was not taken.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::bell::Bell;
use super::memory::{Memory, Place};
use super::message::{RingPlace, feature};
use super::record::{Identity, Page};
use crate::foreign::ForeignFd;
use crate::posted::new_session;

/// A ring as the front end has described it so far, and, once it has been started, as it runs.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) size: u16,
    pub(super) place: Option<RingPlace>,
    /// Where the next descriptor is to be taken from, while it does not run.
    pub(super) base: u16,
    pub(super) enabled: bool,
    pub(super) started: bool,
    pub(super) kick: Option<ForeignFd>,
    pub(super) bell: Option<Bell>,
    pub(super) live: Option<Live>,
}

/// A ring that runs.
#[derive(Debug)]
pub(super) struct Live {
    /// Tells its tickets from those of other rings, and of its own earlier lives.
    pub(super) session: u32,
    descriptors: Place,
    available: Place,
    used: Place,
    size: u16,
    event_idx: bool,
    indirect: bool,
    /// The next entry of the available ring to be taken.
    pub(super) next: u16,
    /// The end of the available ring, as it was seen last.
    end: u16,
    /// An end that made no sense: counted once.
    bad_end: Option<u16>,
    /// The next entry of the used ring to be written.
    filled: u16,
    /// Its end as the guest knows it.
    published: u16,
    /// Of each head, whose it is.
    heads: Vec<Holder>,
    /// Heads in the order in which they are to be given back, where that is not any.
    order: Option<VecDeque<u16>>,
    /// Heads that are being worked on.
    pub(super) in_flight: u16,
    /// The guest need not ring.
    muted: bool,
    /// What is out, noted for a daemon after this one.
    page: Option<Page>,
    /// Given back since the end was shown, for the page.
    given: Vec<u16>,
    /// Heads that were out when an earlier daemon died: taken before all others.
    again: VecDeque<u16>,
}

/// Who has a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Guest,
    Device,
    /// The device is through with it, and has not given it back yet: another is before it in order.
    Done,
}

/// How a ring is to work.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// Descriptors are given back in the order in which they were taken.
    pub(super) in_order: bool,
    /// Where to note which are out.
    pub(super) page: Option<Page>,
}

/// A part of a buffer.
pub(super) type Part = (Place, usize);

/// Why the next descriptor was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A chain that is sound; its head.
    Head(u16),
    /// Something that makes no sense, given back if it could be.
    Bad,
    /// The guest has made nothing available.
    Nothing,
}

/// Which way a buffer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The device reads.
    Out,
    /// The device writes.
    In,
}

impl Ring {
    /// Puts a ring to work once all of it is known. Where its memory is not mapped, or it lies askew, it stays still.
    pub(super) fn start(&mut self, memory: &Memory, features: u64, habits: Habits) -> Result<(), String> {
        let Habits { in_order, page } = habits;
        if self.live.is_some() || !self.started || self.size == 0 {
            return Ok(());
        }
        let Some(place) = self.place else { return Ok(()) };
        let size = usize::from(self.size);
        // What is asked for whole is where it lies here: a piece may begin anywhere for the front end.
        let find = |what: &str, address: u64, len: usize, align: usize| {
            let found = memory.user(address, len).filter(|place| place.is_multiple_of(align));
            found.ok_or_else(|| {
                format!("a {what} of {size} entries at {address:#x}, which is not mapped or askew")
            })
        };
        let mut live = Live {
            session: new_session(),
            descriptors: find("descriptor table", place.descriptors, size * DESCRIPTOR, 16)?,
            available: find("ring of available descriptors", place.available, 6 + size * 2, 2)?,
            used: find("ring of used descriptors", place.used, 6 + size * 8, 4)?,
            size: self.size,
            event_idx: features & feature::EVENT_IDX != 0,
            indirect: features & feature::INDIRECT != 0,
            next: self.base,
            end: self.base,
            bad_end: None,
            filled: 0,
            published: 0,
            heads: vec![Holder::Guest; size],
            order: in_order.then(|| VecDeque::with_capacity(size)),
            in_flight: 0,
            muted: false,
            page: None,
            given: Vec::new(),
            again: VecDeque::new(),
        };
        // What the guest has been told so far; it goes on from there.
        live.filled = live.word(memory, live.used.plus(2));
        live.published = live.filled;
        if let Some(page) = page {
            live.keep(memory, page, Identity { size: self.size, descriptors: place.descriptors });
        }
        self.live = Some(live);
        Ok(())
    }

    /// Takes the ring out of work: what is out is given back, as its bytes have been copied.
    pub(super) fn stop(&mut self, memory: &Memory) {
        let Some(mut live) = self.live.take() else { return };
        let out: Vec<u16> =
            (0..live.size).filter(|&head| live.heads[usize::from(head)] == Holder::Device).collect();
        out.into_iter().for_each(|head| live.give(memory, head, 0));
        // What an earlier daemon had taken is lost by this.
        while let Some(head) = live.again.pop_front() {
            live.heads[usize::from(head)] = Holder::Device;
            live.order.iter_mut().for_each(|order| order.push_back(head));
            live.in_flight += 1;
            live.give(memory, head, 0);
        }
        if live.publish(memory) {
            self.ring_bell();
        }
        if let Some(page) = &live.page {
            page.end();
        }
        self.base = live.next;
    }

    /// Descriptors that the guest has made available and that have not been taken, nor taken again after an earlier daemon: no
    /// more than there are, whatever it wrote.
    pub(super) fn waiting(&self, memory: &Memory) -> u32 {
        let live = self.live.as_ref().filter(|_| self.enabled);
        live.map_or(0, |live| {
            let end = live.word(memory, live.available.plus(2));
            let waiting = usize::from(end.wrapping_sub(live.next)) + live.again.len();
            u32::try_from(waiting.min(live.size.into())).unwrap_or(u32::MAX)
        })
    }

    /// The ring, if frames may pass it.
    #[inline]
    pub(super) fn running(&mut self) -> Option<&mut Live> {
        if self.enabled { self.live.as_mut() } else { None }
    }

    /// Tells the guest what was given back since the last call, and wakes it if it wants to be.
    pub(super) fn publish(&mut self, memory: &Memory) {
        if self.live.as_mut().is_some_and(|live| live.publish(memory)) {
            self.ring_bell();
        }
    }

    fn ring_bell(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

impl Live {
    /// Begins a record of what is out, after taking up one that an earlier daemon has left of the same ring: the front end
    /// begins behind what was given back, and what is left must be among what the guest has made available since.
    fn keep(&mut self, memory: &Memory, mut page: Page, ring: Identity) {
        let used = self.used;
        let entry = |index: u16| {
            let place = used.plus(4 + usize::from(index % ring.size) * 8);
            u32::from_le(memory.word32(place).load(Ordering::Relaxed))
        };
        let offered = self.word(memory, self.available.plus(2)).wrapping_sub(self.filled);
        let among = |left: &Vec<u16>| left.len() <= usize::from(offered.min(ring.size));
        let left = page.left(ring, self.filled, entry).filter(among);
        match left.filter(|_| self.next == self.filled) {
            Some(left) => {
                page.go_on(ring, self.filled, &left);
                self.next = self.next.wrapping_add(left.len() as u16);
                self.end = self.next;
                self.again = left.into();
            }
            None => page.begin(ring, self.filled),
        }
        self.page = Some(page);
    }

    /// Whether so many entries can be taken without another look, or after one.
    #[inline]
    pub(super) fn available(&mut self, memory: &Memory) -> u16 {
        let known = self.end.wrapping_sub(self.next);
        if known > 0 {
            return known;
        }
        self.look(memory)
    }

    /// Looks at the end of the available ring. One that is further than the ring is long makes no sense: it is passed over
    /// until a right one is there.
    pub(super) fn look(&mut self, memory: &Memory) -> u16 {
        // Acquire: pairs with the driver's barrier before it moves the end, so that the entries before it are there.
        let end = u16::from_le(memory.word16(self.available.plus(2)).load(Ordering::Acquire));
        let count = end.wrapping_sub(self.next);
        if count > self.size {
            return 0;
        }
        self.end = end;
        self.bad_end = None;
        count
    }

    /// Whether the end that the guest shows now makes no sense, told once for each such end.
    pub(super) fn take_bad_end(&mut self, memory: &Memory) -> bool {
        let end = self.word(memory, self.available.plus(2));
        let bad = end.wrapping_sub(self.next) > self.size;
        let told = self.bad_end == Some(end);
        self.bad_end = bad.then_some(end);
        bad && !told
    }

    /// Takes the next buffer, and adds its parts to `parts`.
    #[inline]
    pub(super) fn take(&mut self, memory: &Memory, way: Way, parts: &mut Vec<Part>) -> Next {
        let head = match self.again.pop_front() {
            Some(head) => head,
            None if self.available(memory) == 0 => return Next::Nothing,
            None => {
                let place = self.available.plus(4 + self.slot(self.next) * 2);
                self.next = self.next.wrapping_add(1);
                self.word(memory, place)
            }
        };
        match self.heads.get_mut(usize::from(head)) {
            Some(holder) if *holder == Holder::Guest => *holder = Holder::Device,
            // A head that is out already, or none at all, cannot be given back.
            _ => return Next::Bad,
        }
        if let Some(order) = &mut self.order {
            order.push_back(head);
        }
        if let Some(page) = &mut self.page {
            page.take(head);
        }
        self.in_flight += 1;
        let begun = parts.len();
        if self.walk(memory, head, way, parts).is_none() {
            parts.truncate(begun);
            self.give(memory, head, 0);
            return Next::Bad;
        }
        Next::Head(head)
    }

    /// Follows a chain to its end; `None` when it makes no sense.
    #[inline]
    fn walk(&self, memory: &Memory, head: u16, way: Way, parts: &mut Vec<Part>) -> Option<()> {
        let mut index = head;
        for _ in 0..self.size {
            let place = self.descriptors.plus(usize::from(index) * DESCRIPTOR);
            let descriptor = Descriptor::load(memory, place)?;
            if descriptor.flags & INDIRECT != 0 {
                // A table of its own ends the chain, and is one level deep.
                let fits = self.indirect && descriptor.flags & NEXT == 0;
                return if fits { self.walk_table(memory, descriptor, way, parts) } else { None };
            }
            descriptor.parts(memory, way, parts)?;
            if descriptor.flags & NEXT == 0 {
                return Some(());
            }
            index = descriptor.next;
            if index >= self.size {
                return None;
            }
        }
        None
    }

    fn walk_table(&self, memory: &Memory, table: Descriptor, way: Way, parts: &mut Vec<Part>) -> Option<()> {
        let len = table.len as usize;
        let entries = len / DESCRIPTOR;
        if entries == 0 || !len.is_multiple_of(DESCRIPTOR) || entries > usize::from(self.size) {
            return None;
        }
        let (place, found) = memory.guest(table.address, len)?;
        if found < len {
            return None;
        }
        let mut index = 0;
        for _ in 0..entries {
            let descriptor = Descriptor::load(memory, place.plus(index * DESCRIPTOR))?;
            if descriptor.flags & INDIRECT != 0 {
                return None;
            }
            descriptor.parts(memory, way, parts)?;
            if descriptor.flags & NEXT == 0 {
                return Some(());
            }
            index = usize::from(descriptor.next);
            if index >= entries {
                return None;
            }
        }
        None
    }

    /// Heads that are through and wait for those before them.
    pub(super) fn out_of_turn(&self) -> u32 {
        let waiting =
            self.order.as_ref().map_or(0, |order| order.len().saturating_sub(self.in_flight.into()));
        u32::try_from(waiting).unwrap_or(u32::MAX)
    }

    /// Puts back what was taken last: so many buffers, which nobody has seen anything of.
    pub(super) fn untake(&mut self, heads: impl Iterator<Item = u16>) {
        for head in heads {
            self.heads[usize::from(head)] = Holder::Guest;
            self.in_flight -= 1;
            self.next = self.next.wrapping_sub(1);
        }
    }

    /// Gives a buffer back into which `len` bytes were written. Nothing happens to one that is not out.
    #[inline]
    pub(super) fn give(&mut self, memory: &Memory, head: u16, len: u32) {
        match self.heads.get_mut(usize::from(head)) {
            Some(holder) if *holder == Holder::Device => *holder = Holder::Done,
            _ => return,
        }
        self.in_flight -= 1;
        if self.order.is_none() {
            return self.fill(memory, head, len);
        }
        while let Some(next) = self.next_done() {
            self.fill(memory, next, 0);
        }
    }

    /// The head that is next in order, if it is through.
    fn next_done(&mut self) -> Option<u16> {
        let order = self.order.as_mut()?;
        let done = |head: &u16| self.heads[usize::from(*head)] == Holder::Done;
        if order.front().is_some_and(done) { order.pop_front() } else { None }
    }

    #[inline]
    fn fill(&mut self, memory: &Memory, head: u16, len: u32) {
        self.heads[usize::from(head)] = Holder::Guest;
        if self.page.is_some() {
            self.given.push(head);
        }
        let place = self.used.plus(4 + self.slot(self.filled) * 8);
        memory.word32(place).store(u32::from(head).to_le(), Ordering::Relaxed);
        memory.word32(place.plus(4)).store(len.to_le(), Ordering::Relaxed);
        self.filled = self.filled.wrapping_add(1);
    }

    /// Shows the guest the end of the used ring; answers whether it wants to be woken for that.
    fn publish(&mut self, memory: &Memory) -> bool {
        let (old, new) = (self.published, self.filled);
        if old == new {
            return false;
        }
        self.published = new;
        // Release: pairs with the driver's barrier after it has read the end, so that it finds the entries before it.
        memory.word16(self.used.plus(2)).store(new.to_le(), Ordering::Release);
        if let Some(page) = &self.page {
            page.give(&self.given, new);
            self.given.clear();
        }
        // Orders the end before the look at what the driver wants; pairs with the driver's barrier between the two.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let wanted = self.word(memory, self.available.plus(4 + usize::from(self.size) * 2));
            return new.wrapping_sub(wanted).wrapping_sub(1) < new.wrapping_sub(old);
        }
        self.word(memory, self.available) & NO_INTERRUPT == 0
    }

    /// The guest need not ring for what it makes available: it will be looked at.
    pub(super) fn mute(&mut self, memory: &Memory) {
        if !self.event_idx && !std::mem::replace(&mut self.muted, true) {
            memory.word16(self.used).store(NO_NOTIFY.to_le(), Ordering::Relaxed);
        }
    }

    /// From now on the guest has to ring for what it makes available; answers whether there is nothing yet.
    pub(super) fn listen(&mut self, memory: &Memory) -> bool {
        self.muted = false;
        if self.event_idx {
            let event = self.used.plus(4 + usize::from(self.size) * 8);
            memory.word16(event).store(self.next.to_le(), Ordering::Relaxed);
        } else {
            memory.word16(self.used).store(0, Ordering::Relaxed);
        }
        // Orders that before the look; pairs with the driver's barrier between its end and its look at what we want.
        fence(Ordering::SeqCst);
        self.look(memory) == 0 && self.again.is_empty()
    }

    /// Where an entry lies in its ring, whose size is a power of two.
    #[inline]
    fn slot(&self, entry: u16) -> usize {
        usize::from(entry & (self.size - 1))
    }

    #[inline]
    fn word(&self, memory: &Memory, place: Place) -> u16 {
        u16::from_le(memory.word16(place).load(Ordering::Relaxed))
    }
}

/// A descriptor, copied out.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    fn load(memory: &Memory, place: Place) -> Option<Self> {
        let [address, rest] = memory.pair(place)?;
        Some(Self { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 })
    }

    /// Adds where its bytes lie; `None` when that is not all mapped, or it is for the other way.
    #[inline]
    fn parts(&self, memory: &Memory, way: Way, parts: &mut Vec<Part>) -> Option<()> {
        let writes = self.flags & WRITE != 0;
        if writes != (way == Way::In) || self.len == 0 || self.len > LONGEST_BUFFER {
            return None;
        }
        let (mut address, mut left) = (self.address, self.len as usize);
        loop {
            let (place, found) = memory.guest(address, left)?;
            if parts.len() == MOST_PARTS {
                return None;
            }
            parts.push((place, found));
            left -= found;
            if left == 0 {
                return Some(());
            }
            // It goes on in the next piece of memory, where that follows for the guest.
            address = address.checked_add(found as u64)?;
        }
    }
}

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// The driver's: it need not be woken.
const NO_INTERRUPT: u16 = 1;
/// The device's: it need not be woken.
const NO_NOTIFY: u16 = 1;
/// Longest part of a buffer that is believed.
const LONGEST_BUFFER: u32 = 1 << 24;
/// Parts of the buffers of one frame, as each costs the other tenants time: Linux has 20 at most in what it sends or lends
/// in one piece, DPDK one for each 2 KiB of a frame.
pub(super) const MOST_PARTS: usize = 128;
