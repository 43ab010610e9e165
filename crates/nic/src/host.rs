//! The host's side: flow queues, their descriptor rings, and what one pull takes from them.
//!
//! Why: one ring per flow, so that no packet waits behind another flow's.
//! From: Loom §4.3 (descriptor queues); SENIC §5.2 (segmentation at scheduling time, one frame a turn).
//! Not here: which flow queue goes next (`tree`), caps (`account`).
//! Invariant: done <= head <= seen <= tail, modulo 2^16, and tail - done never exceeds the ring. A flow queue that holds
//! descriptors has a record.

mod cut;
mod fair;
mod rings;

use plimsoll_units::Nanos;
use plimsoll_wire::Ecn;

use crate::account::Accounts;
use crate::ids::{OwnerId, QueueId, RecordId, Table, Tagged};
use crate::refusal::Refusal;
pub(crate) use cut::Cut;
pub use cut::MAX_DESCRIPTOR;
use fair::FlowState;
pub(crate) use fair::{FLOW_BYTES, markable};
pub(crate) use rings::SLOT_BYTES;
use rings::{Rings, Slot, SlotTag};

/// A frame that the host hands to the engine, or a large segment that leaves as several frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Handed back with each [`crate::Transmit`] and [`crate::Completion`]; the engine never follows it.
    pub addr: u64,
    /// Bytes of the whole frame, headers included.
    pub len: u32,
    /// Payload bytes of each frame to cut it into; 0 for a frame that leaves as it is.
    pub segment: u16,
    /// Header bytes, repeated before each segment.
    pub header: u16,
    /// Slack or deadline in microseconds from the doorbell, 17 minutes at most; 0 for the class's own.
    pub tag: u32,
    /// ECN field of its packets: whether they may be marked.
    pub ecn: Ecn,
}

/// Every flow queue of the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    rings: Rings,
    names: Table<QueueId, Name>,
    /// Tags for descriptors that bring none.
    tags: Table<QueueId, u32>,
    records: Table<RecordId, Record>,
    /// Whether there are fewer records than flow queues may be open. Then there is one for each descriptor that the host may
    /// hold, and a flow queue has one only while it holds descriptors. Otherwise its record is the one of its own number.
    scarce: bool,
    /// Records that no flow queue has, where they are scarce.
    spare: Vec<RecordId>,
    /// The first of the names that are not in use.
    free: QueueId,
    open: usize,
    cut: Cut,
    /// By flow queue, for classes with `flows: fq`; empty in a policy without one.
    fair: Table<QueueId, FlowState>,
}

/// A flow queue that holds no descriptors.
#[derive(Clone, Copy, Debug)]
struct Name {
    home: Tagged,
    /// The number of its record. With [`Name::BARE`], what it owes of its turns; if it is not open, the next that is not.
    word: u32,
}

/// The record of a flow queue that holds descriptors, all of it in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Record {
    /// The next descriptor to be scheduled.
    head: u16,
    /// The end of the descriptors that a doorbell told of.
    seen: u16,
    /// The end of the descriptors that the host wrote.
    tail: u16,
    /// The oldest that has not completed.
    done: u16,
    /// Bytes that the next pull will be charged.
    charge: u32,
    /// Low half of the head's number among all arrivals.
    arrival: u32,
    home: Tagged,
    /// The owner of the account that its descriptors are charged to.
    owner: OwnerId,
    /// Payload bytes of the head that were pulled before.
    offset: u32,
    /// Tag for descriptors that bring none.
    tag: u32,
    /// Bytes left of its turn, in a class that takes turns.
    deficit: i32,
    /// Bytes of the descriptors that a doorbell told of and that have not left.
    backlog: u32,
    /// Most bytes, as charged, of one pull.
    pull: u32,
    /// Frames that left, and their bytes, of a flow queue that is its class's only one: what has not been added up yet.
    packets: u32,
    bytes: u32,
    /// The flow queue that has this record; [`Record::NO_QUEUE`] while none has.
    queue: QueueId,
    /// When the head became the head.
    since: Nanos,
}

/// Bytes of a flow queue that holds nothing: its name and its tag.
pub(crate) const NAME_BYTES: usize = size_of::<Name>() + size_of::<u32>();
pub(crate) const RECORD_BYTES: usize = size_of::<Record>();

/// One pull: what leaves now of the head descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    pub(crate) queue: QueueId,
    pub(crate) addr: u64,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    pub(crate) segment: u16,
    pub(crate) header: u16,
    pub(crate) frames: u32,
    pub(crate) charge: u32,
    pub(crate) last: bool,
    /// Whether the flow queue holds more.
    pub(crate) more: bool,
    pub(crate) turn_over: bool,
    pub(crate) arrived: Nanos,
    pub(crate) since: Nanos,
}

impl Name {
    /// Marks one without a record.
    const BARE: u32 = 1 << 31;

    fn bare(home: Tagged, debt: u32) -> Self {
        Self { home, word: debt.min(Self::BARE - 1) | Self::BARE }
    }
}

impl Host {
    /// Makes room for `queues` flow queues, of which up to `descriptors` hold something at a time.
    pub(crate) fn new(queues: u32, ring: u16, descriptors: u32, cut: Cut) -> Self {
        let records = queues.min(descriptors);
        let scarce = records < queues;
        let next_free = |id| Name::bare(Tagged::NOTHING, id + 1);
        Self {
            rings: Rings::new(records, ring),
            names: (0..queues).map(next_free).collect(),
            tags: vec![0; queues as usize].into(),
            records: vec![Record::FREE; records as usize].into(),
            scarce,
            spare: if scarce { (0..records).rev().map(RecordId).collect() } else { Vec::new() },
            free: QueueId(0),
            open: 0,
            cut,
            fair: Table::default(),
        }
    }

    /// Makes room for more flow queues that hold descriptors at a time.
    pub(crate) fn fit(&mut self, descriptors: u32) {
        let (records, wanted) = (self.records.len() as u32, (self.names.len() as u32).min(descriptors));
        if self.scarce && wanted > records {
            self.records.resize(wanted as usize, Record::FREE);
            self.rings.grow(wanted);
            self.spare.reserve(wanted as usize - self.spare.len());
            self.spare.extend((records..wanted).map(RecordId));
        }
    }

    pub(crate) fn set_cut(&mut self, cut: Cut) {
        self.cut = cut;
    }

    pub(crate) fn open(&mut self, home: Tagged, owner: OwnerId, pull: u32) -> Option<QueueId> {
        let queue = self.free;
        let name = self.names.get_mut(queue)?;
        self.free = QueueId(name.word & !Name::BARE);
        self.open += 1;
        *name = Name::bare(home, 0);
        self.tags[queue] = 0;
        self.forget_flow(queue);
        if !self.scarce {
            self.assign(queue, RecordId(queue.0), owner, pull);
        }
        Some(queue)
    }

    /// Closes a flow queue that holds nothing. What it counted is still to be had from its record.
    pub(crate) fn close(&mut self, queue: QueueId) -> bool {
        let empty = self.is_open(queue) && self.resolve(queue).is_none_or(|id| self.is_empty(id));
        if empty {
            self.take_record(queue);
            self.names[queue] = Name::bare(Tagged::NOTHING, self.free.0);
            self.free = queue;
            self.open -= 1;
        }
        empty
    }

    /// Whether records are scarce: then [`Host::give_record`] and [`Host::take_record`] have to be called.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        self.scarce
    }

    /// Gives an open flow queue a record, if it has none and one is left.
    pub(crate) fn give_record(&mut self, queue: QueueId, owner: OwnerId, pull: u32) -> Option<RecordId> {
        let record = self.spare.pop()?;
        self.assign(queue, record, owner, pull);
        Some(record)
    }

    fn assign(&mut self, queue: QueueId, record: RecordId, owner: OwnerId, pull: u32) {
        let name = &mut self.names[queue];
        let debt = (name.word & !Name::BARE) as i32;
        let (home, tag, pull) = (name.home, self.tags[queue], pull.min(self.cut.pull));
        self.records[record] = Record { home, owner, pull, tag, queue, deficit: -debt, ..Record::FREE };
        name.word = record.0;
    }

    /// Takes the record of a flow queue that holds nothing, and keeps what must be remembered of it.
    pub(crate) fn take_record(&mut self, queue: QueueId) {
        let Some(id) = self.resolve(queue) else { return };
        let record = &mut self.records[id];
        self.names[queue] = Name::bare(record.home, record.deficit.min(0).unsigned_abs());
        (record.home, record.queue) = (Tagged::NOTHING, Record::NO_QUEUE);
        if self.scarce {
            self.spare.push(id);
        }
    }

    /// The record of an open flow queue, if it has one. Unless records are scarce it is the one of its number.
    #[inline(always)]
    pub(crate) fn resolve(&self, queue: QueueId) -> Option<RecordId> {
        let own = RecordId(queue.0);
        match self.records.get(own) {
            Some(record) if record.queue == queue => Some(own),
            _ if !self.scarce => None,
            _ => self.look_up(queue),
        }
    }

    #[cold]
    fn look_up(&self, queue: QueueId) -> Option<RecordId> {
        let id = RecordId(self.names.get(queue)?.word);
        self.records.get(id).filter(|record| record.queue == queue).map(|_| id)
    }

    #[inline]
    fn record(&self, id: RecordId) -> Option<&Record> {
        self.records.get(id).filter(|record| record.is_open())
    }

    /// Whether a record's flow queue holds nothing.
    #[inline]
    pub(crate) fn is_empty(&self, id: RecordId) -> bool {
        self.record(id).is_some_and(Record::is_empty)
    }

    /// The flow queue of a record.
    #[inline]
    pub(crate) fn queue_of(&self, id: RecordId) -> QueueId {
        self.records[id].queue
    }

    /// The bundle or the class that a record's flow queue belongs to.
    #[inline]
    pub(crate) fn home_of(&self, id: RecordId) -> Tagged {
        self.records.get(id).map_or(Tagged::NOTHING, |record| record.home)
    }

    /// Descriptors that one ring holds.
    pub(crate) fn slots(&self) -> u16 {
        self.rings.mask + 1
    }

    /// How many flow queues are open.
    #[inline]
    pub(crate) fn open_count(&self) -> usize {
        self.open
    }

    pub(crate) fn is_open(&self, queue: QueueId) -> bool {
        self.names.get(queue).is_some_and(|name| !name.home.is_nothing())
    }

    /// Every open flow queue.
    pub(crate) fn open_queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        (0..)
            .map(QueueId)
            .zip(self.names.iter())
            .filter_map(|(id, name)| (!name.home.is_nothing()).then_some(id))
    }

    /// The class or bundle that an open flow queue belongs to.
    pub(crate) fn home(&self, queue: QueueId) -> Option<Tagged> {
        self.names.get(queue).map(|name| name.home).filter(|home| !home.is_nothing())
    }

    pub(crate) fn set_home(&mut self, queue: QueueId, home: Tagged) {
        let found = self.resolve(queue);
        self.names[queue].home = home;
        if let Some(id) = found {
            self.records[id].home = home;
        }
    }

    /// Moves a flow queue, with what it holds, to another home.
    pub(crate) fn rehome(&mut self, queue: QueueId, home: Tagged, owner: OwnerId, pull: u32) {
        self.set_home(queue, home);
        self.forget_flow(queue);
        let Some(id) = self.resolve(queue) else {
            self.names[queue] = Name::bare(home, 0);
            return;
        };
        let record = &mut self.records[id];
        (record.owner, record.deficit, record.packets, record.bytes) = (owner, 0, 0, 0);
        record.pull = pull.min(self.cut.pull);
    }

    /// Counts what left of a class's only flow queue. Returns whether it is time to add it up.
    #[inline]
    pub(crate) fn count(&mut self, id: RecordId, frames: u32, bytes: u64) -> bool {
        let record = &mut self.records[id];
        (record.packets, record.bytes) = (record.packets + frames, record.bytes + bytes as u32);
        (record.packets | record.bytes) >> 31 != 0
    }

    /// Takes the counts of a flow queue that have not been added up; they begin again at zero.
    pub(crate) fn take_counted(&mut self, id: RecordId) -> (u32, u32) {
        let taken =
            |record: &mut Record| (core::mem::take(&mut record.packets), core::mem::take(&mut record.bytes));
        self.records.get_mut(id).map_or((0, 0), taken)
    }

    /// For every record in use: its home, and the frames and bytes that have not been added up.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Tagged, u32, u32)> + '_ {
        self.records
            .iter()
            .filter(|record| record.is_open())
            .map(|record| (record.home, record.packets, record.bytes))
    }

    pub(crate) fn set_tag(&mut self, queue: QueueId, tag: u32) {
        self.tags[queue] = tag;
        if let Some(id) = self.resolve(queue) {
            self.records[id].tag = tag;
        }
    }

    /// Writes a descriptor into a flow queue's ring.
    ///
    /// # Errors
    /// A [`Refusal`] when the flow queue has no record, the descriptor makes no sense, the ring is full, or the tenant or the
    /// host may hold no more.
    #[inline]
    pub(crate) fn write(
        &mut self,
        queue: QueueId,
        descriptor: &Descriptor,
        accounts: &mut Accounts,
    ) -> Result<(), Refusal> {
        let id = self.resolve(queue).ok_or(Refusal::NoQueue)?;
        let record = &mut self.records[id];
        self.cut.accepts(descriptor)?;
        let tail = record.tail;
        if tail.wrapping_sub(record.done) > self.rings.mask {
            return Err(Refusal::FlowFull);
        }
        accounts.take(record.owner)?;
        record.tail = tail.wrapping_add(1);
        let tag = if descriptor.tag == 0 { record.tag } else { descriptor.tag };
        let Descriptor { addr, len, segment, header, ecn, .. } = *descriptor;
        let tag = SlotTag::new(tag, ecn);
        *self.rings.slot_mut(id, tail) = Slot { addr, arrived: 0, len, arrival: 0, segment, header, tag };
        Ok(())
    }

    /// A doorbell: stamps the new descriptors with their arrival. Returns the record, and its home if the flow queue was
    /// empty before; `None` if there is no record.
    #[inline]
    pub(crate) fn take_new(
        &mut self,
        queue: QueueId,
        now: Nanos,
        arrivals: &mut u64,
    ) -> Option<(RecordId, Tagged)> {
        let id = self.resolve(queue)?;
        let record = &mut self.records[id];
        let mut at = record.seen;
        while at != record.tail {
            let slot = self.rings.slot_mut(id, at);
            let low = *arrivals as u32;
            (slot.arrived, slot.arrival) = (now.as_u64(), low);
            *arrivals += 1;
            record.backlog += slot.len;
            at = at.wrapping_add(1);
        }
        let wakes = record.head == record.seen && at != record.seen;
        record.seen = at;
        if wakes {
            record.since = now;
            record.load(self.rings.slot(id, record.head), self.cut);
        }
        Some((id, if wakes { record.home } else { Tagged::NOTHING }))
    }

    /// Bytes that the next pull will be charged.
    #[inline]
    pub(crate) fn charge(&self, id: RecordId) -> u32 {
        self.records[id].charge
    }

    /// Number of the head among all arrivals; `arrivals` is how many there have been.
    #[inline]
    pub(crate) fn arrival(&self, id: RecordId, arrivals: u64) -> u64 {
        let low = self.record(id).map_or(0, |record| record.arrival.into());
        let high = arrivals & !u64::from(u32::MAX);
        if (high | low) <= arrivals { high | low } else { (high | low).saturating_sub(1 << 32) }
    }

    /// When the head should have left, given its class's default.
    #[inline]
    pub(crate) fn deadline(&self, id: RecordId, default: u64) -> u64 {
        let slot = self.rings.slot(id, self.records[id].head);
        let tag = slot.tag.micros();
        let wait = if tag == 0 { default } else { u64::from(tag) * 1_000 };
        slot.arrived.saturating_add(wait)
    }

    #[inline]
    pub(crate) fn holds_packets(&self, id: RecordId) -> bool {
        self.record(id).is_some_and(|record| record.head != record.seen)
    }

    /// Whether more packets follow the head.
    #[inline]
    pub(crate) fn follows(&self, id: RecordId) -> bool {
        self.record(id).is_some_and(|record| record.head.wrapping_add(1) != record.seen)
    }

    /// Takes the next pull off the head and moves on. With a quantum, says in `turn_over` whether it ends the flow
    /// queue's turn.
    ///
    /// Always inlined: handed over in memory, the narrow stores of its fields and the wide loads of their reader do
    /// not forward to each other, which costs more than the whole pull.
    #[inline(always)]
    pub(crate) fn pull(&mut self, id: RecordId, now: Nanos, quantum: Option<i32>) -> Pull {
        let record = &mut self.records[id];
        let slot = self.rings.slot(id, record.head);
        let piece = self.cut.piece(slot, record.offset, record.pull);
        let mut pull = Pull {
            queue: record.queue,
            addr: slot.addr,
            offset: record.offset,
            len: piece.len,
            segment: slot.segment,
            header: slot.header,
            frames: piece.frames,
            charge: piece.charge,
            last: piece.last,
            more: true,
            turn_over: false,
            arrived: Nanos::new(slot.arrived),
            since: record.since,
        };
        if piece.last {
            (record.offset, record.since) = (0, now);
            record.backlog -= slot.len;
            record.head = record.head.wrapping_add(1);
            pull.more = record.head != record.seen;
        } else {
            record.offset += piece.payload;
        }
        // Without a branch, as a next head cannot be predicted; what is loaded from an empty slot is not used.
        record.load(self.rings.slot(id, record.head), self.cut);
        // By the time that this one leaves, others have had their turns and their lines in the cache.
        self.rings.prefetch(id, record.head.wrapping_add(1));
        if let Some(quantum) = quantum {
            pull.turn_over = record.use_turn(pull.charge, quantum, pull.more);
        }
        pull
    }

    /// Descriptors that are not completed.
    pub(crate) fn held(&self, id: RecordId) -> u32 {
        self.record(id).map_or(0, |record| record.tail.wrapping_sub(record.done).into())
    }

    /// For every record in use: its home, and the descriptors, and their bytes, that wait in it.
    pub(crate) fn backlogs(&self) -> impl Iterator<Item = (Tagged, u64, u64)> + '_ {
        let open = self.records.iter().filter(|record| record.is_open());
        open.map(|record| (record.home, record.seen.wrapping_sub(record.head).into(), record.backlog.into()))
    }

    /// The place of the oldest descriptor that has left may be written again. Returns its owner.
    #[inline]
    pub(crate) fn release(&mut self, queue: QueueId) -> Option<OwnerId> {
        let id = self.resolve(queue)?;
        Some(self.records[id].release())
    }

    pub(crate) fn load_head(&mut self, id: RecordId) {
        let record = &mut self.records[id];
        record.load(self.rings.slot(id, record.head), self.cut);
    }

    /// Brings a flow queue into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, id: RecordId) {
        self.records.prefetch(id);
    }

    /// Brings the head descriptor of a flow queue, itself in the cache, into it as well.
    #[inline]
    pub(crate) fn prefetch_head(&self, id: RecordId) {
        if let Some(record) = self.records.get(id) {
            self.rings.prefetch(id, record.head);
            self.rings.prefetch(id, record.head.wrapping_add(1)); // looked at when the head has left
        }
    }

    /// Brings the place for the next descriptor of a flow queue, itself in the cache, into it as well.
    #[inline]
    pub(crate) fn prefetch_tail(&self, id: RecordId) {
        if let Some(record) = self.records.get(id) {
            self.rings.prefetch(id, record.tail);
        }
    }
}

impl Record {
    const NO_QUEUE: QueueId = QueueId(u32::MAX);
    const FREE: Self = Self {
        head: 0,
        seen: 0,
        tail: 0,
        done: 0,
        charge: 0,
        arrival: 0,
        home: Tagged::NOTHING,
        owner: OwnerId::NONE,
        offset: 0,
        tag: 0,
        deficit: 0,
        backlog: 0,
        pull: 0,
        packets: 0,
        bytes: 0,
        queue: Self::NO_QUEUE,
        since: Nanos::ZERO,
    };

    #[inline]
    fn is_open(&self) -> bool {
        !self.home.is_nothing()
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.done == self.tail
    }

    #[inline]
    fn release(&mut self) -> OwnerId {
        self.done = self.done.wrapping_add(1);
        // An empty ring begins again at its first line (see `Rings`). Without a branch, as it cannot be predicted.
        let keep = u16::from(self.done != self.tail).wrapping_neg();
        (self.head, self.seen, self.tail, self.done) =
            (self.head & keep, self.seen & keep, self.tail & keep, self.done & keep);
        self.owner
    }

    /// Copies what the scheduler reads of the head.
    #[inline]
    fn load(&mut self, slot: &Slot, cut: Cut) {
        self.charge = cut.piece(slot, self.offset, self.pull).charge;
        self.arrival = slot.arrival;
    }

    /// Charges the turn for a pull that has left. Returns whether the turn is over (Shreedhar and Varghese, 1995).
    #[inline]
    fn use_turn(&mut self, len: u32, quantum: i32, more: bool) -> bool {
        if self.deficit <= 0 {
            self.deficit = self.deficit.saturating_add(quantum).max(1); // its turn began with this packet
        }
        self.deficit = self.deficit.saturating_sub_unsigned(len);
        if !more {
            self.deficit = self.deficit.min(0); // an idle one saves nothing up, and takes its debt along
        }
        self.deficit <= 0
    }
}
