//! One split ring of a virtual machine, seen from the device.
//!
//! Why: descriptors are taken one by one and completed in any order, many at a time, for a driver that may write anything
//! at any time. `virtio-queue` updates the used index for each descriptor and supports only one order.
//! From: virtio 1.2, section 2.7.
//! Not here: the contents of buffers (`vhost_user`).
//! Invariant: each word is copied out once, and the copy is checked; each call is bounded by the ring's size; each taken
//! descriptor is given back once, and no other.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::bell::Bell;
use super::message::{RingPlace, feature};
use super::offered::Offered;
use crate::foreign::ForeignFd;
use crate::mapped::{MappedPlace, Memory, Part};
use crate::posted::new_session;

/// A ring as the front end has described it so far, and its state while it runs.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) size: u16,
    pub(super) place: Option<RingPlace>,
    /// Index of the next available descriptor, while the ring does not run.
    pub(super) base: u16,
    pub(super) enabled: bool,
    pub(super) started: bool,
    pub(super) kick: Option<ForeignFd>,
    pub(super) bell: Option<Bell>,
    pub(super) live: Option<Live>,
}

/// The state of a running ring.
#[derive(Debug)]
pub(super) struct Live {
    /// Tells its tickets from those of other rings and of its earlier runs.
    pub(super) session: u32,
    descriptors: MappedPlace,
    available: MappedPlace,
    used: MappedPlace,
    size: u16,
    event_idx: bool,
    indirect: bool,
    /// Index of the next entry of the available ring to be taken.
    pub(super) next: u16,
    /// The available ring's index, as last read.
    end: u16,
    /// An invalid index that was counted already.
    bad_end: Option<u16>,
    /// Index of the next entry of the used ring to be written.
    filled: u16,
    /// The used ring's index, as last shown to the guest.
    published: u16,
    /// The holder of each head.
    heads: Vec<Holder>,
    /// The bytes of each head's buffer that have not been read yet, where the device has it and they wait there.
    kept: Vec<Vec<Part>>,
    /// Lists for the next ones.
    spare: Vec<Vec<Part>>,
    /// Heads in the order in which they must complete; none where any order will do.
    order: Option<VecDeque<u16>>,
    /// Number of heads in flight.
    pub(super) in_flight: u16,
    /// The guest was told that it need not ring.
    muted: bool,
    /// The available ring's entries, kept in the order of completion for a later daemon; none where the front end lets the
    /// ring begin elsewhere than at the used ring's end, and once the guest has offered a head that cannot be given back.
    offered: Option<Offered>,
}

/// The holder of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Guest,
    Device,
    /// The device, which has not read all of its bytes yet.
    Late,
    /// The device has completed it, and holds it back for earlier ones.
    Done,
}

/// The result of taking the next buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The head of a valid chain of descriptors.
    Head(u16),
    /// The descriptors are invalid; they were given back if possible.
    Bad,
    /// The guest has posted no buffer.
    Nothing,
}

/// The direction of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// The device reads.
    Out,
    /// The device writes.
    In,
}

impl Ring {
    /// Starts a ring once it is fully described; before that it does nothing. With `in_order`, descriptors complete in the
    /// order in which they were taken. Fails when the ring's memory is not mapped or not aligned.
    pub(super) fn start(&mut self, memory: &Memory, features: u64, in_order: bool) -> Result<(), String> {
        if self.live.is_some() || !self.started || self.size == 0 {
            return Ok(());
        }
        let Some(place) = self.place else { return Ok(()) };
        let size = usize::from(self.size);
        // Alignment is checked in this process's mapping: a piece may begin anywhere in the front end's.
        let find = |what: &str, address: u64, len: usize, align: usize| {
            let found = memory.user(address, len).filter(|place| place.is_multiple_of(align));
            found.ok_or_else(|| {
                format!("a {what} of {size} entries at {address:#x}, which is not mapped or not aligned")
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
            kept: Vec::new(),
            spare: Vec::new(),
            order: in_order.then(|| VecDeque::with_capacity(size)),
            in_flight: 0,
            muted: false,
            offered: None,
        };
        // The used ring goes on from the index that the guest has seen.
        live.filled = live.word(memory, live.used.plus(2));
        live.published = live.filled;
        live.offered = (live.next == live.filled).then(|| Offered::new(self.size));
        self.live = Some(live);
        Ok(())
    }

    /// Stops the ring, and gives back all heads in flight whose bytes have been copied. The others are offered again: the ring goes
    /// on at the used ring's end, behind which the available ring lists them. Where it may not begin there, they go back as well.
    pub(super) fn stop(&mut self, memory: &Memory) {
        let Some(mut live) = self.live.take() else { return };
        let again = live.offered.is_some() && live.order.is_none();
        for head in 0..live.size {
            match live.heads[usize::from(head)] {
                Holder::Device => live.give(memory, head, 0),
                Holder::Late if !again => live.give(memory, head, 0),
                _ => {}
            }
        }
        if live.publish(memory) {
            self.ring_bell();
        }
        self.base = if again { live.filled } else { live.next };
    }

    /// Stops the ring, and offers all heads in flight again, also those whose bytes have been copied, so that their order stays. Where
    /// the ring may not go on at the used ring's end, it is only stopped.
    pub(super) fn withdraw(&mut self, memory: &Memory) {
        let may = |live: &mut Live| live.offered.is_some() && live.order.is_none();
        let Some(mut live) = self.live.take_if(may) else { return self.stop(memory) };
        if live.publish(memory) {
            self.ring_bell();
        }
        self.base = live.filled;
    }

    /// Whether bytes of a buffer that was taken have been left where they are.
    pub(super) fn has_kept(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.heads.contains(&Holder::Late))
    }

    /// Number of posted buffers that have not been taken; at most the ring's size, whatever the guest wrote.
    pub(super) fn waiting(&self, memory: &Memory) -> u32 {
        let live = self.live.as_ref().filter(|_| self.enabled);
        live.map_or(0, |live| {
            let end = live.word(memory, live.available.plus(2));
            end.wrapping_sub(live.next).min(live.size).into()
        })
    }

    /// The ring's state, if it runs and is enabled.
    #[inline]
    pub(super) fn running(&mut self) -> Option<&mut Live> {
        if self.enabled { self.live.as_mut() } else { None }
    }

    /// Shows the guest the heads given back since the last call, and wakes it if it wants to be woken.
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
    /// Number of entries that can be taken; reads the available ring's index only when none is known.
    #[inline]
    pub(super) fn available(&mut self, memory: &Memory) -> u16 {
        let known = self.end.wrapping_sub(self.next);
        if known > 0 {
            return known;
        }
        self.read_available(memory)
    }

    /// Reads the available ring's index and returns the number of entries that can be taken. An index beyond the ring's size
    /// is invalid and ignored.
    pub(super) fn read_available(&mut self, memory: &Memory) -> u16 {
        // Acquire: pairs with the driver's barrier before it writes the index, so that the entries are visible.
        let end = u16::from_le(memory.word16(self.available.plus(2)).load(Ordering::Acquire));
        let count = end.wrapping_sub(self.next);
        if count > self.size {
            return 0;
        }
        self.end = end;
        self.bad_end = None;
        count
    }

    /// Whether the available ring's index is invalid; true only once for each invalid index.
    pub(super) fn take_bad_end(&mut self, memory: &Memory) -> bool {
        let end = self.word(memory, self.available.plus(2));
        let bad = end.wrapping_sub(self.next) > self.size;
        let told = self.bad_end == Some(end);
        self.bad_end = bad.then_some(end);
        bad && !told
    }

    /// Takes the next buffer, and adds its parts to `parts`.
    #[inline]
    pub(super) fn take(&mut self, memory: &Memory, way: Direction, parts: &mut Vec<Part>) -> Next {
        if self.available(memory) == 0 {
            return Next::Nothing;
        }
        let slot = self.slot(self.next);
        self.next = self.next.wrapping_add(1);
        let head = self.word(memory, self.available_entry(slot));
        match self.heads.get_mut(usize::from(head)) {
            Some(holder) if *holder == Holder::Guest => *holder = Holder::Device,
            // A head that is in flight already, or out of range, cannot be given back. It gets no entry of the used ring, so that
            // later entries of the two rings do not match, and are left as the guest wrote them.
            _ => {
                self.offered = None;
                return Next::Bad;
            }
        }
        if let Some(order) = &mut self.order {
            order.push_back(head);
        }
        if let Some(offered) = &mut self.offered {
            offered.take(slot, head);
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

    /// Takes the next buffer, if it is a single descriptor, as most are, with `least` to `most` bytes in one piece
    /// that `wanted` says yes to.
    /// Otherwise nothing has happened, and [`Live::take`] looks at it anew.
    #[inline]
    pub(super) fn take_plain(
        &mut self,
        memory: &Memory,
        way: Direction,
        (least, most): (usize, usize),
        wanted: impl FnOnce(MappedPlace) -> bool,
    ) -> Option<(u16, MappedPlace)> {
        if self.available(memory) == 0 {
            return None;
        }
        let slot = self.slot(self.next);
        let head = self.word(memory, self.available_entry(slot));
        let place = self.descriptors.plus(usize::from(head) * DESCRIPTOR);
        let holder = self.heads.get_mut(usize::from(head)).filter(|holder| **holder == Holder::Guest)?;
        let found = Descriptor::load(memory, place)?;
        let len = found.len as usize;
        let flags = if way == Direction::In { WRITE } else { 0 };
        if len < least || len > most || found.flags != flags || self.order.is_some() {
            return None;
        }
        let (place, here) = memory.guest(found.address, len)?;
        if here != len || !wanted(place) {
            return None;
        }
        *holder = Holder::Device;
        self.next = self.next.wrapping_add(1);
        self.in_flight += 1;
        if let Some(offered) = &mut self.offered {
            offered.take(slot, head);
        }
        Some((head, place))
    }

    /// Follows a chain of descriptors to its end; `None` when it is invalid.
    #[inline]
    fn walk(&self, memory: &Memory, head: u16, way: Direction, parts: &mut Vec<Part>) -> Option<()> {
        let mut index = head;
        for _ in 0..self.size {
            let place = self.descriptors.plus(usize::from(index) * DESCRIPTOR);
            let descriptor = Descriptor::load(memory, place)?;
            if descriptor.flags & INDIRECT != 0 {
                // An indirect table ends the chain, and may not contain another.
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

    fn walk_table(
        &self,
        memory: &Memory,
        table: Descriptor,
        way: Direction,
        parts: &mut Vec<Part>,
    ) -> Option<()> {
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

    /// Leaves the bytes of a buffer that was taken where they are; `parts` says where that is.
    #[inline]
    pub(super) fn keep(&mut self, head: u16, parts: &[Part]) {
        if self.kept.is_empty() {
            self.kept = vec![Vec::new(); self.size.into()];
        }
        let place = usize::from(head);
        if let (Some(holder), Some(kept)) = (self.heads.get_mut(place), self.kept.get_mut(place)) {
            *holder = Holder::Late;
            *kept = self.spare.pop().unwrap_or_default();
            kept.extend(parts.iter().filter(|(_, len)| *len > 0));
        }
    }

    /// The bytes of a buffer that have been left where they are.
    #[inline(always)]
    pub(super) fn kept(&self, head: u16) -> Option<&[Part]> {
        let place = usize::from(head);
        let late = self.heads.get(place) == Some(&Holder::Late);
        self.kept.get(place).filter(|_| late).map(Vec::as_slice)
    }

    /// Number of heads that have completed and wait for earlier ones.
    pub(super) fn out_of_turn(&self) -> u32 {
        let waiting =
            self.order.as_ref().map_or(0, |order| order.len().saturating_sub(self.in_flight.into()));
        u32::try_from(waiting).unwrap_or(u32::MAX)
    }

    /// Puts back the buffers that were taken last and have not been used.
    pub(super) fn untake(&mut self, heads: impl Iterator<Item = u16>) {
        for head in heads {
            self.heads[usize::from(head)] = Holder::Guest;
            self.in_flight -= 1;
            self.next = self.next.wrapping_sub(1);
        }
    }

    /// Completes a buffer into which `len` bytes were written. Ignores one that is not in flight.
    #[inline]
    pub(super) fn give(&mut self, memory: &Memory, head: u16, len: u32) {
        match self.heads.get_mut(usize::from(head)) {
            Some(holder) if *holder == Holder::Device => *holder = Holder::Done,
            Some(holder) if *holder == Holder::Late => {
                *holder = Holder::Done;
                let mut kept = core::mem::take(&mut self.kept[usize::from(head)]);
                kept.clear();
                self.spare.push(kept);
            }
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

    /// The head that is next in order, if it has completed.
    fn next_done(&mut self) -> Option<u16> {
        let order = self.order.as_mut()?;
        let done = |head: &u16| self.heads[usize::from(*head)] == Holder::Done;
        if order.front().is_some_and(done) { order.pop_front() } else { None }
    }

    #[inline]
    fn fill(&mut self, memory: &Memory, head: u16, len: u32) {
        self.heads[usize::from(head)] = Holder::Guest;
        let slot = self.slot(self.filled);
        if let Some((moved, left)) = self.offered.as_mut().and_then(|offered| offered.complete(head, slot)) {
            for (head, slot) in [(head, slot), (moved, left)] {
                memory.store16(self.available_entry(slot), head, Ordering::Relaxed);
            }
        }
        let place = self.used.plus(4 + usize::from(slot) * 8);
        memory.store32(place, head.into());
        memory.store32(place.plus(4), len);
        self.filled = self.filled.wrapping_add(1);
    }

    /// Writes the used ring's index; returns whether the guest wants to be woken.
    fn publish(&mut self, memory: &Memory) -> bool {
        let (old, new) = (self.published, self.filled);
        if old == new {
            return false;
        }
        self.published = new;
        // Release: pairs with the driver's barrier after it has read the index, so that it sees the entries.
        memory.store16(self.used.plus(2), new, Ordering::Release);
        // Orders the index before reading the driver's flags; pairs with the driver's barrier between the two.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let wanted = self.word(memory, self.available.plus(4 + usize::from(self.size) * 2));
            return new.wrapping_sub(wanted).wrapping_sub(1) < new.wrapping_sub(old);
        }
        self.word(memory, self.available) & NO_INTERRUPT == 0
    }

    /// Tells the guest that it need not ring for new buffers.
    pub(super) fn mute(&mut self, memory: &Memory) {
        if !self.event_idx && !std::mem::replace(&mut self.muted, true) {
            memory.store16(self.used, NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// Asks the guest to ring for new buffers; returns whether there are none yet.
    pub(super) fn listen(&mut self, memory: &Memory) -> bool {
        self.muted = false;
        if self.event_idx {
            let event = self.used.plus(4 + usize::from(self.size) * 8);
            memory.store16(event, self.next, Ordering::Relaxed);
        } else {
            memory.store16(self.used, 0, Ordering::Relaxed);
        }
        // Orders the request before reading the index; pairs with the driver's barrier between writing its index and
        // reading the request.
        fence(Ordering::SeqCst);
        self.read_available(memory) == 0
    }

    /// Slot of an entry in its ring, whose size is a power of two.
    #[inline]
    fn slot(&self, entry: u16) -> u16 {
        entry & (self.size - 1)
    }

    /// Place of the available ring's entry in a slot.
    #[inline]
    fn available_entry(&self, slot: u16) -> MappedPlace {
        self.available.plus(4 + usize::from(slot) * 2)
    }

    #[inline]
    fn word(&self, memory: &Memory, place: MappedPlace) -> u16 {
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
    fn load(memory: &Memory, place: MappedPlace) -> Option<Self> {
        let [address, rest] = memory.pair(place)?;
        Some(Self { address, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 })
    }

    /// Adds the parts of its buffer; `None` when they are not all mapped, or its direction is wrong.
    #[inline]
    fn parts(&self, memory: &Memory, way: Direction, parts: &mut Vec<Part>) -> Option<()> {
        let writes = self.flags & WRITE != 0;
        if writes != (way == Direction::In) || self.len == 0 || self.len > LONGEST_BUFFER {
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
            // The buffer may go on in another piece with the following guest addresses.
            address = address.checked_add(found as u64)?;
        }
    }
}

/// Size of a descriptor.
const DESCRIPTOR: usize = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Flag of the driver: it need not be woken.
const NO_INTERRUPT: u16 = 1;
/// Flag of the device: it need not be woken.
const NO_NOTIFY: u16 = 1;
/// Longest buffer of a descriptor that is accepted.
const LONGEST_BUFFER: u32 = 1 << 24;
/// Most parts of one frame, as each part costs the other tenants time. Linux needs at most 20 for a frame, DPDK one for
/// each 2 KiB.
pub(super) const MOST_PARTS: usize = 128;
/// Most parts of a frame whose bytes stay where they are.
pub(super) const MOST_KEPT: usize = 20;
