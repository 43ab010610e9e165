//! The host's side: flow queues, their descriptor rings, and what one pull takes from them.
//!
//! Why: one ring per flow, so that no packet waits behind another flow's.
//! From: Loom §4.3 (descriptor queues); SENIC §5.2 (segmentation at scheduling time, one frame a turn).
//! Not here: which flow queue goes next (`tree`), caps (`account`).
//! Invariant: done <= head <= seen <= tail, modulo 2^16, and tail - done never exceeds the ring. A flow queue that holds
//! descriptors has a record.

mod cut;
mod fair;
mod ranked;
mod record;
mod rings;
mod told;

use plimsoll_policy::NodeId;
use plimsoll_units::Nanos;
use plimsoll_wire::Ecn;

use crate::account::Accounts;
use crate::ids::{OwnerId, QueueId, RecordId, Table, Tagged};
use crate::refusal::Refusal;
use crate::stats::Transmit;
pub(crate) use cut::Cut;
pub use cut::MAX_DESCRIPTOR;
use cut::Piece;
use fair::FlowState;
pub(crate) use fair::{FLOW_BYTES, markable};
use record::{Record, transmit};
pub(crate) use rings::SLOT_BYTES;
use rings::{Rings, Slot, SlotTag};
pub(crate) use told::Counts;
use told::Told;

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
    /// Records that were ever in use: those from here on are free.
    used: usize,
    cut: Cut,
    /// By flow queue, for classes with `flows: fq`; empty in a policy without one.
    fair: Table<QueueId, FlowState>,
    /// What was reported of records.
    told: Told,
}

/// A flow queue that holds no descriptors.
#[derive(Clone, Copy, Debug)]
struct Name {
    home: Tagged,
    /// The number of its record. With [`Name::BARE`], what it owes of its turns; if it is not open, the next that is not.
    word: u32,
}

/// Bytes of a flow queue that holds nothing: its name and its tag.
pub(crate) const NAME_BYTES: usize = size_of::<Name>() + size_of::<u32>();
pub(crate) const RECORD_BYTES: usize = size_of::<Record>();

/// How a flow queue is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Bytes of a turn, if flow queues take turns that `Host::pull` is to count.
    pub(crate) quantum: Option<i32>,
    pub(crate) next: NextCharge,
}

/// Whether limits will ask what the next head is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCharge {
    /// There are none.
    Never,
    /// Not likely, as they would grant it whatever it is: it is read from the descriptor if one asks.
    Seldom,
    Always,
}

/// One pull that was handed out, or that CoDel drops. Functions hand over two numbers in two registers. A struct of one number and
/// some truth values goes through one register, in which it is put together and from which it is taken apart at each call, inlined or
/// not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pull {
    pub(crate) charge: u32,
    marks: u32,
}

impl Pull {
    /// CoDel drops the head: nothing was handed out.
    pub(crate) const DROPPED: Self = Self { charge: 0, marks: Self::DROPS };
    const MORE: u32 = 1;
    const TURN_OVER: u32 = 2;
    const OVERFLOWS: u32 = 4;
    const LAST: u32 = 8;
    const DROPS: u32 = 16;

    /// Whether the flow queue holds more.
    #[inline]
    pub(crate) fn more(self) -> bool {
        self.marks & Self::MORE != 0
    }

    #[inline]
    pub(crate) fn turn_over(self) -> bool {
        self.marks & Self::TURN_OVER != 0
    }

    /// Whether it is time to add up what the flow queue has counted.
    #[inline]
    pub(crate) fn overflows(self) -> bool {
        self.marks & Self::OVERFLOWS != 0
    }

    /// Whether the bundle holds nothing more.
    #[inline]
    pub(crate) fn is_last(self) -> bool {
        self.marks & Self::LAST != 0
    }

    #[inline]
    pub(crate) fn is_dropped(self) -> bool {
        self.marks & Self::DROPS != 0
    }

    /// Notes whether the bundle holds more.
    #[inline]
    pub(crate) fn of_bundle(self, more: bool) -> Self {
        Self { marks: self.marks | Self::mark(!more, Self::LAST), ..self }
    }

    #[inline]
    fn mark(is: bool, mark: u32) -> u32 {
        u32::from(is) * mark
    }
}

impl Turn {
    /// Of a flow queue that is alone in a class without limits.
    pub(crate) const FREE: Self = Self { quantum: None, next: NextCharge::Never };
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
            used: 0,
            cut,
            fair: Table::default(),
            told: Told::default(),
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
        self.told.forget();
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
        self.told.forget();
        let name = &mut self.names[queue];
        let debt = (name.word & !Name::BARE) as i32;
        let (home, tag, pull) = (name.home, self.tags[queue], pull.min(self.cut.pull));
        self.records[record] = Record { home, owner, pull, tag, queue, deficit: -debt, ..Record::FREE };
        name.word = record.0;
        self.used = self.used.max(record.0 as usize + 1);
    }

    /// Takes the record of a flow queue that holds nothing, and keeps what must be remembered of it.
    pub(crate) fn take_record(&mut self, queue: QueueId) {
        let Some(id) = self.resolve(queue) else { return };
        self.told.forget();
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
        self.told.forget();
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

    /// Takes the counts of a flow queue that have not been added up; they begin again at zero.
    pub(crate) fn take_counted(&mut self, id: RecordId) -> (u32, u32) {
        self.told.forget();
        let taken =
            |record: &mut Record| (core::mem::take(&mut record.packets), core::mem::take(&mut record.bytes));
        self.records.get_mut(id).map_or((0, 0), taken)
    }

    /// Like [`Host::take_counted`], by the flow queue's name.
    #[cold]
    pub(crate) fn take_counted_of(&mut self, queue: QueueId) -> (u32, u32) {
        self.resolve(queue).map_or((0, 0), |id| self.take_counted(id))
    }

    /// For every record in use: its home, and the frames and bytes that have not been added up.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Tagged, u32, u32)> + '_ {
        let open = self.records.iter().take(self.used).filter(|record| record.is_open());
        open.map(|record| (record.home, record.packets, record.bytes))
    }

    /// Tells the counts of all records in use, by their homes.
    pub(crate) fn tell_all(&mut self, each: impl FnMut(Tagged, Counts)) {
        self.told.all(&self.records, self.used, each);
    }

    /// Tells the counts of records that may have changed since they were told, as they were then and as they are. `false`: all have to be
    /// told anew.
    pub(crate) fn tell_changes(&mut self, each: impl FnMut(Tagged, Counts, Counts)) -> bool {
        let is_known = self.told.is_known();
        if is_known {
            self.told.changes(&self.records, each);
        }
        is_known
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

    /// A doorbell: stamps the new descriptors with their arrival. Returns the record, and whether the flow queue was empty before,
    /// so that [`Host::begin`] has to be called; `None` if there is no record.
    #[inline]
    pub(crate) fn take_new(
        &mut self,
        queue: QueueId,
        now: Nanos,
        arrivals: &mut u64,
    ) -> Option<(RecordId, bool)> {
        let id = self.resolve(queue)?;
        let record = &mut self.records[id];
        let (seen, tail) = (record.seen, record.tail);
        let mut at = seen;
        while at != tail {
            let slot = self.rings.slot_mut(id, at);
            (slot.arrived, slot.arrival) = (now.as_u64(), *arrivals as u32);
            *arrivals += 1;
            record.backlog += slot.len;
            at = at.wrapping_add(1);
        }
        record.seen = tail;
        Some((id, (record.head == seen) & (tail != seen)))
    }

    /// A flow queue that was empty has a head, since `now`. Returns its home.
    #[inline]
    pub(crate) fn begin(&mut self, id: RecordId, now: Nanos) -> Tagged {
        self.told.mark(id);
        let record = &mut self.records[id];
        record.since = now;
        record.load(self.rings.slot(id, record.head), self.cut);
        record.home
    }

    /// Bytes that the next pull will be charged, of a flow queue behind limits.
    #[inline]
    pub(crate) fn charge(&self, id: RecordId) -> u32 {
        let charge = self.records[id].charge;
        if charge == Record::UNREAD { self.read_charge(id) } else { charge }
    }

    #[cold]
    fn read_charge(&self, id: RecordId) -> u32 {
        let record = &self.records[id];
        self.cut.piece(self.rings.slot(id, record.head), record.offset, record.pull).charge
    }

    /// Number of the head among all arrivals; `arrivals` is how many there have been.
    #[inline]
    pub(crate) fn arrival(&self, id: RecordId, arrivals: u64) -> u64 {
        let low = u64::from(self.rings.slot(id, self.records[id].head).arrival);
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

    /// Hands out the next pull of the head, counts it, and moves on. With a quantum, says in `turn_over` whether it ends the flow
    /// queue's turn.
    #[inline(always)]
    pub(crate) fn pull(
        &mut self,
        id: RecordId,
        class: NodeId,
        turn: Turn,
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> Pull {
        let slot = self.rings.slot(id, self.records[id].head);
        if slot.segment > 0 {
            return self.pull_segments(id, class, (turn.quantum, turn.next), now, out);
        }
        let whole = self.cut.whole(slot);
        self.take(id, class, whole, turn, now, out)
    }

    #[inline(never)]
    fn pull_segments(
        &mut self,
        id: RecordId,
        class: NodeId,
        (quantum, next): (Option<i32>, NextCharge),
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> Pull {
        let turn = Turn { quantum, next };
        let record = &self.records[id];
        let piece = self.cut.piece(self.rings.slot(id, record.head), record.offset, record.pull);
        self.take(id, class, piece, turn, now, out)
    }

    /// Takes a piece of the head. What leaves is written where it stays as soon as it is read, as there is more of it than a
    /// processor has registers.
    #[inline(always)]
    fn take(
        &mut self,
        id: RecordId,
        class: NodeId,
        piece: Piece,
        turn: Turn,
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> Pull {
        let record = &mut self.records[id];
        let slot = self.rings.slot(id, record.head);
        out.push(transmit(record, slot, class, &piece));
        if piece.last {
            (record.offset, record.since) = (0, now);
            record.backlog -= slot.len;
            record.head = record.head.wrapping_add(1);
        } else {
            record.offset += piece.payload;
        }
        let more = record.head != record.seen;
        if turn.next == NextCharge::Seldom {
            record.charge = Record::UNREAD;
        } else if turn.next == NextCharge::Always {
            // Also if there is none, as a next head cannot be predicted; what is loaded from an empty slot is not used.
            record.load(self.rings.slot(id, record.head), self.cut);
            // By the time that this one leaves, others have had their turns and their lines in the cache.
            self.rings.prefetch(id, record.head.wrapping_add(1));
        }
        let overflows = record.count(&piece);
        let charge = piece.charge;
        let turn_over = turn.quantum.is_some_and(|quantum| record.use_turn(charge, quantum, more));
        let marks = Pull::mark(more, Pull::MORE)
            | Pull::mark(turn_over, Pull::TURN_OVER)
            | Pull::mark(overflows, Pull::OVERFLOWS);
        Pull { charge, marks }
    }

    /// Takes a pull that has not left, but was dropped, off the counts.
    pub(crate) fn uncount(&mut self, id: RecordId, dropped: &Transmit) {
        let record = &mut self.records[id];
        record.packets -= dropped.frames;
        record.bytes -= dropped.len + (dropped.frames - 1) * u32::from(dropped.header);
    }

    /// Descriptors that are not completed.
    pub(crate) fn held(&self, id: RecordId) -> u32 {
        self.record(id).map_or(0, |record| record.tail.wrapping_sub(record.done).into())
    }

    /// For every record in use: its home, and the descriptors, and their bytes, that wait in it.
    pub(crate) fn backlogs(&self) -> impl Iterator<Item = (Tagged, u64, u64)> + '_ {
        let open = self.records.iter().take(self.used).filter(|record| record.is_open());
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
        }
    }

    /// Brings the descriptor behind the head into the cache as well: behind limits its charge is needed when the head has left.
    #[inline]
    pub(crate) fn prefetch_second(&self, id: RecordId) {
        if let Some(record) = self.records.get(id) {
            self.rings.prefetch(id, record.head.wrapping_add(1));
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
