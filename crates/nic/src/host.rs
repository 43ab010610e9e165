//! The host's side: flow queues, their descriptor rings, and what one pull takes from them.
//!
//! Why: one ring per flow, so that no packet waits behind another flow's.
//! From: Loom §4.3 (descriptor queues); SENIC §5.2 (segmentation at scheduling time, one frame a turn).
//! Not here: who goes next (`tree`), caps (`account`).
//! Invariant: done <= head <= seen <= tail, modulo 2^16, and tail - done never exceeds the ring. A flow queue that holds
//! descriptors has a record.

use plimsoll_policy::NodeId;
use plimsoll_units::{Bytes, Nanos};
use prefetch_index::prefetch_index;

use crate::account::Accounts;

/// Names a flow queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

/// Names the record of a flow queue that may hold descriptors. A bundle, a tree and a ring know it by no other name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowId(pub(crate) u32);

/// What the host writes for one frame, or for one large segment to be cut into frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Handed back with each [`crate::Transmit`] and [`crate::Completion`]; the engine never looks behind it.
    pub addr: u64,
    /// Bytes of the whole frame, headers included.
    pub len: u32,
    /// Payload bytes of each frame to cut it into; 0 for a frame that leaves as it is.
    pub segment: u16,
    /// Header bytes, repeated before each segment.
    pub header: u16,
    /// Slack or deadline in microseconds from the doorbell; 0 for the class's own.
    pub tag: u32,
}

/// Why a descriptor was not taken, or a flow queue not opened. One counter for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// No such flow queue, or no room for one more.
    NoQueue,
    /// The flow queue's ring is full.
    FlowFull,
    /// The tenant holds as many descriptors as it may.
    TenantFull,
    /// The host holds as many descriptors as it may.
    HostFull,
    /// Length, header and segment size do not fit together.
    Malformed,
    /// A frame, or a segment with its header, that the uplink cannot carry.
    Oversize,
    /// The class holds as many descriptors as it may.
    ClassFull,
}

impl Refusal {
    /// How many reasons there are.
    pub const COUNT: usize = 7;

    /// Every reason, in the order of the counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::NoQueue,
        Self::FlowFull,
        Self::TenantFull,
        Self::HostFull,
        Self::Malformed,
        Self::Oversize,
        Self::ClassFull,
    ];

    /// The reason as counters and operators call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoQueue => "no_queue",
            Self::FlowFull => "flow_full",
            Self::TenantFull => "tenant_full",
            Self::HostFull => "host_full",
            Self::Malformed => "malformed",
            Self::Oversize => "oversize",
            Self::ClassFull => "class_full",
        }
    }
}

/// Every flow queue of the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    rings: Rings,
    names: Vec<Name>,
    /// Tags for descriptors that bring none.
    tags: Vec<u32>,
    flows: Vec<Flow>,
    /// Whether there are fewer records than flow queues may be open. Then a flow queue has one only while it holds
    /// descriptors, of which there are no more; otherwise it has that of its own number.
    scarce: bool,
    /// Records that no flow queue has, where they are scarce.
    spare: Vec<u32>,
    /// The first of the names that are not in use.
    free: u32,
    open: usize,
    cut: Cut,
}

/// All that a flow queue without descriptors needs to be.
#[derive(Clone, Copy, Debug)]
struct Name {
    home: Home,
    /// Where its record is. Or, with [`Name::BARE`], what it owes of its turns; of one that is not open, the next such.
    word: u32,
}

/// The descriptor rings, interleaved by cache line: first every ring's first line, then every ring's second, and so on.
/// Most rings hold little, and begin again at their first line once they are empty, so that what is in use lies
/// together, in few lines and few pages.
#[derive(Clone, Debug)]
struct Rings {
    /// Slots of each ring, less one.
    mask: u16,
    /// Lines from one of a ring to the next.
    stride: usize,
    lines: Vec<Line>,
}

/// How frames are cut and charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) overhead: u32,
    pub(crate) max_frame: u32,
    /// Most bytes, as charged, of one pull; flow queues behind limits may have a lower bound.
    pub(crate) pull: u32,
}

/// The record of a flow queue that holds descriptors, all of it in one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Flow {
    /// The next descriptor to be scheduled.
    head: u16,
    /// The end of those that a doorbell told of.
    seen: u16,
    /// The end of those that the host wrote.
    tail: u16,
    /// The oldest that has not completed.
    done: u16,
    /// Bytes that the next pull will be charged.
    charge: u32,
    /// Low half of the head's number among all arrivals.
    arrival: u32,
    home: Home,
    /// The owner of the account that its descriptors are charged to.
    tenant: u32,
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
    bearer: Bearer,
    /// When the head became the head.
    since: Nanos,
}

/// Which flow queue has a record. Where each has that of its own number, and only there, this is that number: so the host's
/// calls find their record, and see that it is theirs, with one look. All others go the longer way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bearer(u32);

/// Whose a flow queue is: a bundle's; or a class's, of which it is the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u32);

/// A cache line of a ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([Slot; SLOTS_PER_LINE]);

const SLOTS_PER_LINE: usize = 2;
/// Of a flow queue that holds nothing, and of one that does.
pub(crate) const NAME_BYTES: usize = size_of::<Name>() + size_of::<u32>();
pub(crate) const FLOW_BYTES: usize = size_of::<Flow>();
pub(crate) const SLOT_BYTES: usize = size_of::<Slot>();

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    addr: u64,
    arrived: u64,
    len: u32,
    arrival: u32,
    segment: u16,
    header: u16,
    tag: u32,
}

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

impl Home {
    /// Of a flow queue that is not open.
    const NOBODY: Self = Self(u32::MAX);
    const CLASS: u32 = 1 << 31;

    pub(crate) fn bundle(id: u32) -> Self {
        Self(id)
    }

    pub(crate) fn class(id: NodeId) -> Self {
        Self(id.0 | Self::CLASS)
    }

    #[inline]
    pub(crate) fn as_bundle(self) -> Option<u32> {
        (self.0 & Self::CLASS == 0).then_some(self.0)
    }

    #[inline]
    pub(crate) fn as_class(self) -> Option<NodeId> {
        (self.0 & Self::CLASS != 0).then_some(NodeId(self.0 & !Self::CLASS))
    }
}

impl Bearer {
    const NOBODY: Self = Self(u32::MAX);
    /// Marks those that took whatever record was spare.
    const FOUND: u32 = 1 << 31;

    #[inline]
    fn queue(self) -> QueueId {
        QueueId(self.0 & !Self::FOUND)
    }
}

impl Default for Bearer {
    fn default() -> Self {
        Self::NOBODY
    }
}

impl Name {
    /// Marks one without a record.
    const BARE: u32 = 1 << 31;

    fn bare(home: Home, debt: u32) -> Self {
        Self { home, word: debt.min(Self::BARE - 1) | Self::BARE }
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::NOBODY
    }
}

impl Host {
    /// Room for so many flow queues, of which so many hold descriptors at a time.
    pub(crate) fn new(queues: u32, ring: u16, descriptors: u32, cut: Cut) -> Self {
        let records = queues.min(descriptors);
        let scarce = records < queues;
        let next_free = |id| Name::bare(Home::NOBODY, id + 1);
        Self {
            rings: Rings::new(records, ring),
            names: (0..queues).map(next_free).collect(),
            tags: vec![0; queues as usize],
            flows: vec![Flow::default(); records as usize],
            scarce,
            spare: if scarce { (0..records).rev().collect() } else { Vec::new() },
            free: 0,
            open: 0,
            cut,
        }
    }

    /// Makes room for more flow queues that hold descriptors at a time.
    pub(crate) fn fit(&mut self, descriptors: u32) {
        let (records, wanted) = (self.flows.len() as u32, (self.names.len() as u32).min(descriptors));
        if self.scarce && wanted > records {
            self.flows.resize(wanted as usize, Flow::default());
            self.rings.grow(wanted);
            self.spare.reserve(wanted as usize - self.spare.len());
            self.spare.extend(records..wanted);
        }
    }

    pub(crate) fn set_cut(&mut self, cut: Cut) {
        self.cut = cut;
    }

    pub(crate) fn open(&mut self, home: Home, tenant: u32, pull: u32) -> Option<QueueId> {
        let id = self.free;
        let name = self.names.get_mut(id as usize)?;
        self.free = name.word & !Name::BARE;
        self.open += 1;
        *name = Name::bare(home, 0);
        self.tags[id as usize] = 0;
        if !self.scarce {
            self.assign(id, id, tenant, pull);
        }
        Some(QueueId(id))
    }

    /// Closes a flow queue that holds nothing. What it counted is still to be had from its record.
    pub(crate) fn close(&mut self, queue: QueueId) -> bool {
        let empty = self.is_open(queue) && self.find(queue).is_none_or(|id| self.is_empty(id));
        if empty {
            self.take_record(queue);
            self.names[queue.0 as usize] = Name::bare(Home::NOBODY, self.free);
            self.free = queue.0;
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
    pub(crate) fn give_record(&mut self, queue: QueueId, tenant: u32, pull: u32) -> Option<FlowId> {
        let record = self.spare.pop()?;
        self.assign(queue.0, record, tenant, pull);
        Some(FlowId(record))
    }

    fn assign(&mut self, id: u32, record: u32, tenant: u32, pull: u32) {
        let name = &mut self.names[id as usize];
        let debt = (name.word & !Name::BARE) as i32;
        let (tag, pull) = (self.tags[id as usize], pull.min(self.cut.pull));
        let (home, bearer) = (name.home, Bearer(if self.scarce { id | Bearer::FOUND } else { id }));
        self.flows[record as usize] =
            Flow { home, tenant, pull, tag, bearer, deficit: -debt, ..Flow::default() };
        name.word = record;
    }

    /// Takes the record of a flow queue that holds nothing, and keeps what must be remembered of it.
    pub(crate) fn take_record(&mut self, queue: QueueId) {
        let Some(id) = self.find(queue) else { return };
        let flow = &mut self.flows[id.0 as usize];
        self.names[queue.0 as usize] = Name::bare(flow.home, flow.deficit.min(0).unsigned_abs());
        (flow.home, flow.bearer) = (Home::NOBODY, Bearer::NOBODY);
        if self.scarce {
            self.spare.push(id.0);
        }
    }

    /// The record of an open flow queue, if it has one.
    pub(crate) fn find(&self, queue: QueueId) -> Option<FlowId> {
        let id = FlowId(self.names.get(queue.0 as usize)?.word);
        self.flow(id).is_some_and(|flow| flow.bearer.queue() == queue).then_some(id)
    }

    #[inline]
    fn flow(&self, id: FlowId) -> Option<&Flow> {
        self.flows.get(id.0 as usize).filter(|flow| flow.is_open())
    }

    /// Whether nothing is in a flow queue that has a record.
    #[inline]
    pub(crate) fn is_empty(&self, id: FlowId) -> bool {
        self.flow(id).is_some_and(Flow::is_empty)
    }

    /// The flow queue of a record.
    #[inline]
    pub(crate) fn queue_of(&self, id: FlowId) -> QueueId {
        self.flows[id.0 as usize].bearer.queue()
    }

    /// Whose a record is, and of which flow queue.
    #[inline]
    pub(crate) fn owner(&self, id: FlowId) -> Option<(Home, QueueId)> {
        self.flow(id).map(|flow| (flow.home, flow.bearer.queue()))
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
        self.names.get(queue.0 as usize).is_some_and(|name| name.home != Home::NOBODY)
    }

    /// Every open flow queue.
    pub(crate) fn open_queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        (0..).map(QueueId).zip(&self.names).filter_map(|(id, name)| (name.home != Home::NOBODY).then_some(id))
    }

    /// Whose an open flow queue is.
    pub(crate) fn home(&self, queue: QueueId) -> Option<Home> {
        self.names.get(queue.0 as usize).map(|name| name.home).filter(|&home| home != Home::NOBODY)
    }

    pub(crate) fn set_home(&mut self, queue: QueueId, home: Home) {
        let found = self.find(queue);
        self.names[queue.0 as usize].home = home;
        if let Some(id) = found {
            self.flows[id.0 as usize].home = home;
        }
    }

    /// A flow queue, with what it holds, becomes another's.
    pub(crate) fn rehome(&mut self, queue: QueueId, home: Home, tenant: u32, pull: u32) {
        self.set_home(queue, home);
        let Some(id) = self.find(queue) else {
            self.names[queue.0 as usize] = Name::bare(home, 0);
            return;
        };
        let flow = &mut self.flows[id.0 as usize];
        (flow.tenant, flow.deficit, flow.packets, flow.bytes) = (tenant, 0, 0, 0);
        flow.pull = pull.min(self.cut.pull);
    }

    /// Counts what left of a class's only flow queue; whether it is time to add it up.
    #[inline]
    pub(crate) fn count(&mut self, id: FlowId, frames: u32, bytes: u64) -> bool {
        let flow = &mut self.flows[id.0 as usize];
        (flow.packets, flow.bytes) = (flow.packets + frames, flow.bytes + bytes as u32);
        (flow.packets | flow.bytes) >> 31 != 0
    }

    /// What has not been added up of a flow queue, which begins again at zero.
    pub(crate) fn take_counted(&mut self, id: FlowId) -> (u32, u32) {
        let taken = |flow: &mut Flow| (core::mem::take(&mut flow.packets), core::mem::take(&mut flow.bytes));
        self.flows.get_mut(id.0 as usize).map_or((0, 0), taken)
    }

    /// Of every open flow queue: whose it is, and what has not been added up.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Home, u32, u32)> + '_ {
        self.flows.iter().filter(|flow| flow.is_open()).map(|flow| (flow.home, flow.packets, flow.bytes))
    }

    pub(crate) fn set_tag(&mut self, queue: QueueId, tag: u32) {
        self.tags[queue.0 as usize] = tag;
        if let Some(id) = self.find(queue) {
            self.flows[id.0 as usize].tag = tag;
        }
    }

    /// Writes a descriptor, if it makes sense, its ring has room and its owner may hold one more.
    ///
    /// # Errors
    /// [`Refusal::NoQueue`] when there is no such flow queue, or when its record is not the one of its number: then
    /// [`Host::find`] knows which it is.
    #[inline]
    pub(crate) fn write(
        &mut self,
        queue: QueueId,
        descriptor: &Descriptor,
        accounts: &mut Accounts,
    ) -> Result<(), Refusal> {
        let flow = self.flows.get_mut(queue.0 as usize).filter(|flow| flow.bearer == Bearer(queue.0));
        let flow = flow.ok_or(Refusal::NoQueue)?;
        Self::write_into(flow, FlowId(queue.0), &mut self.rings, self.cut, descriptor, accounts)
    }

    /// The same into a record that was found.
    pub(crate) fn write_found(
        &mut self,
        id: FlowId,
        descriptor: &Descriptor,
        accounts: &mut Accounts,
    ) -> Result<(), Refusal> {
        Self::write_into(&mut self.flows[id.0 as usize], id, &mut self.rings, self.cut, descriptor, accounts)
    }

    #[inline(always)]
    fn write_into(
        flow: &mut Flow,
        id: FlowId,
        rings: &mut Rings,
        cut: Cut,
        descriptor: &Descriptor,
        accounts: &mut Accounts,
    ) -> Result<(), Refusal> {
        cut.accepts(descriptor)?;
        let tail = flow.tail;
        if tail.wrapping_sub(flow.done) > rings.mask {
            return Err(Refusal::FlowFull);
        }
        accounts.take(flow.tenant)?;
        flow.tail = tail.wrapping_add(1);
        let tag = if descriptor.tag == 0 { flow.tag } else { descriptor.tag };
        let Descriptor { addr, len, segment, header, .. } = *descriptor;
        *rings.slot_mut(id, tail) = Slot { addr, arrived: 0, len, arrival: 0, segment, header, tag };
        Ok(())
    }

    /// A doorbell: stamps what is new, and says whose the flow queue is if it holds packets now and did not before.
    ///
    /// # Errors
    /// [`Refusal::NoQueue`] when there is no such flow queue.
    #[inline]
    pub(crate) fn take_new(
        &mut self,
        queue: QueueId,
        now: Nanos,
        arrivals: &mut u64,
    ) -> Result<Option<Home>, Refusal> {
        let flow = self.flows.get(queue.0 as usize).filter(|flow| flow.bearer == Bearer(queue.0));
        flow.ok_or(Refusal::NoQueue)?;
        Ok(self.take_new_found(FlowId(queue.0), now, arrivals))
    }

    /// The same of a record that was found.
    #[inline(always)]
    pub(crate) fn take_new_found(&mut self, id: FlowId, now: Nanos, arrivals: &mut u64) -> Option<Home> {
        let flow = &mut self.flows[id.0 as usize];
        let mut at = flow.seen;
        while at != flow.tail {
            let slot = self.rings.slot_mut(id, at);
            let low = *arrivals as u32;
            (slot.arrived, slot.arrival) = (now.as_u64(), low);
            *arrivals += 1;
            flow.backlog += slot.len;
            at = at.wrapping_add(1);
        }
        let wakes = flow.head == flow.seen && at != flow.seen;
        flow.seen = at;
        if wakes {
            flow.since = now;
            flow.load(self.rings.slot(id, flow.head), self.cut);
        }
        wakes.then_some(flow.home)
    }

    /// Bytes that the next pull will be charged.
    #[inline]
    pub(crate) fn charge(&self, id: FlowId) -> u32 {
        self.flows[id.0 as usize].charge
    }

    /// Number of the head among all arrivals; `arrivals` is how many there have been.
    #[inline]
    pub(crate) fn arrival(&self, id: FlowId, arrivals: u64) -> u64 {
        let low = self.flow(id).map_or(0, |flow| flow.arrival.into());
        let high = arrivals & !u64::from(u32::MAX);
        if (high | low) <= arrivals { high | low } else { (high | low).saturating_sub(1 << 32) }
    }

    /// When the head should have left, given its class's default.
    #[inline]
    pub(crate) fn deadline(&self, id: FlowId, default: u64) -> u64 {
        let slot = self.rings.slot(id, self.flows[id.0 as usize].head);
        let wait = if slot.tag == 0 { default } else { u64::from(slot.tag) * 1_000 };
        slot.arrived.saturating_add(wait)
    }

    #[inline]
    pub(crate) fn holds_packets(&self, id: FlowId) -> bool {
        self.flow(id).is_some_and(|flow| flow.head != flow.seen)
    }

    /// Whether more packets follow the head.
    #[inline]
    pub(crate) fn follows(&self, id: FlowId) -> bool {
        self.flow(id).is_some_and(|flow| flow.head.wrapping_add(1) != flow.seen)
    }

    /// Takes the next pull off the head and moves on. With a quantum, says in `turn_over` whether it ends the flow
    /// queue's turn.
    ///
    /// Always inlined: handed over in memory, the narrow stores of its fields and the wide loads of their reader do
    /// not forward to each other, which costs more than the whole pull.
    #[inline(always)]
    pub(crate) fn pull(&mut self, id: FlowId, now: Nanos, quantum: Option<i32>) -> Pull {
        let flow = &mut self.flows[id.0 as usize];
        let slot = self.rings.slot(id, flow.head);
        let piece = self.cut.piece(slot, flow.offset, flow.pull);
        let mut pull = Pull {
            queue: flow.bearer.queue(),
            addr: slot.addr,
            offset: flow.offset,
            len: piece.len,
            segment: slot.segment,
            header: slot.header,
            frames: piece.frames,
            charge: piece.charge,
            last: piece.last,
            more: true,
            turn_over: false,
            arrived: Nanos::new(slot.arrived),
            since: flow.since,
        };
        if piece.last {
            (flow.offset, flow.since) = (0, now);
            flow.backlog -= slot.len;
            flow.head = flow.head.wrapping_add(1);
            pull.more = flow.head != flow.seen;
        } else {
            flow.offset += piece.payload;
        }
        // Whether there is a next one cannot be foretold: what is loaded of a slot that holds none is not used.
        flow.load(self.rings.slot(id, flow.head), self.cut);
        // By the time that this one leaves, others have had their turns and their lines in the cache.
        self.rings.prefetch(id, flow.head.wrapping_add(1));
        if let Some(quantum) = quantum {
            pull.turn_over = flow.use_turn(pull.charge, quantum, pull.more);
        }
        pull
    }

    /// Descriptors that are not completed.
    pub(crate) fn held(&self, id: FlowId) -> u32 {
        self.flow(id).map_or(0, |flow| flow.tail.wrapping_sub(flow.done).into())
    }

    /// Whose each open flow queue is, with the descriptors, and their bytes, that wait in it.
    pub(crate) fn backlogs(&self) -> impl Iterator<Item = (Home, u64, u64)> + '_ {
        let open = self.flows.iter().filter(|flow| flow.is_open());
        open.map(|flow| (flow.home, flow.seen.wrapping_sub(flow.head).into(), flow.backlog.into()))
    }

    /// The oldest descriptor that has left may be written again; its tenant. `None` as [`Host::write`] fails.
    #[inline]
    pub(crate) fn release(&mut self, queue: QueueId) -> Option<u32> {
        let flow = self.flows.get_mut(queue.0 as usize).filter(|flow| flow.bearer == Bearer(queue.0))?;
        Some(flow.release())
    }

    /// The same of a record that was found.
    pub(crate) fn release_found(&mut self, id: FlowId) -> u32 {
        self.flows[id.0 as usize].release()
    }

    pub(crate) fn load_head(&mut self, id: FlowId) {
        let flow = &mut self.flows[id.0 as usize];
        flow.load(self.rings.slot(id, flow.head), self.cut);
    }

    /// Brings a flow queue into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, id: FlowId) {
        prefetch_index(&self.flows, id.0 as usize);
    }

    /// Brings the head descriptor of a flow queue, itself in the cache, into it as well.
    #[inline]
    pub(crate) fn prefetch_head(&self, id: FlowId) {
        if let Some(flow) = self.flows.get(id.0 as usize) {
            self.rings.prefetch(id, flow.head);
            self.rings.prefetch(id, flow.head.wrapping_add(1)); // looked at when the head has left
        }
    }

    /// Brings the place for the next descriptor of a flow queue, itself in the cache, into it as well.
    #[inline]
    pub(crate) fn prefetch_tail(&self, id: FlowId) {
        if let Some(flow) = self.flows.get(id.0 as usize) {
            self.rings.prefetch(id, flow.tail);
        }
    }
}

impl Rings {
    fn new(records: u32, slots: u16) -> Self {
        let slots = slots.clamp(SLOTS_PER_LINE as u16, 1 << 14).next_power_of_two();
        // Odd, so that the lines of one ring do not compete for the same few places of a cache.
        let stride = records as usize | 1;
        let lines = stride * (usize::from(slots) / SLOTS_PER_LINE);
        Self { mask: slots - 1, stride, lines: vec![Line::default(); lines] }
    }

    /// The same descriptors in rings of more flow queues.
    fn grow(&mut self, records: u32) {
        let mut grown = Self::new(records, self.mask + 1);
        for id in (0..).map(FlowId).take(self.stride) {
            for index in 0..=self.mask {
                *grown.slot_mut(id, index) = *self.slot(id, index);
            }
        }
        *self = grown;
    }

    #[inline]
    fn line(&self, id: FlowId, index: u16) -> usize {
        usize::from(index & self.mask) / SLOTS_PER_LINE * self.stride + id.0 as usize
    }

    #[inline]
    fn slot(&self, id: FlowId, index: u16) -> &Slot {
        &self.lines[self.line(id, index)].0[usize::from(index) % SLOTS_PER_LINE]
    }

    #[inline]
    fn slot_mut(&mut self, id: FlowId, index: u16) -> &mut Slot {
        let line = self.line(id, index);
        &mut self.lines[line].0[usize::from(index) % SLOTS_PER_LINE]
    }

    #[inline]
    fn prefetch(&self, id: FlowId, index: u16) {
        prefetch_index(&self.lines, self.line(id, index));
    }
}

impl Flow {
    #[inline]
    fn is_open(&self) -> bool {
        self.home != Home::NOBODY
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.done == self.tail
    }

    #[inline]
    fn release(&mut self) -> u32 {
        self.done = self.done.wrapping_add(1);
        // An empty ring begins again at its first line (see `Rings`). Without a branch: nothing foretells it.
        let keep = u16::from(self.done != self.tail).wrapping_neg();
        (self.head, self.seen, self.tail, self.done) =
            (self.head & keep, self.seen & keep, self.tail & keep, self.done & keep);
        self.tenant
    }

    /// Remembers of the head what scheduling will ask.
    #[inline]
    fn load(&mut self, slot: &Slot, cut: Cut) {
        self.charge = cut.piece(slot, self.offset, self.pull).charge;
        self.arrival = slot.arrival;
    }

    /// A turn is used, and paid afterwards: says whether it is over (Shreedhar and Varghese, 1995).
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

struct Piece {
    payload: u32,
    len: u32,
    frames: u32,
    charge: u32,
    last: bool,
}

impl Cut {
    /// Most that one pull can be charged.
    pub(crate) fn largest(self) -> u64 {
        u64::from(self.pull.max(self.max_frame + self.overhead))
    }

    fn accepts(self, descriptor: &Descriptor) -> Result<(), Refusal> {
        let Descriptor { len, segment, header, .. } = *descriptor;
        let header_and_segment = u32::from(header) + u32::from(segment);
        if len == 0 || (segment > 0 && (header == 0 || u32::from(header) >= len)) {
            return Err(Refusal::Malformed);
        }
        let frame = if segment == 0 { len } else { header_and_segment.min(len) };
        let too_long = frame > self.max_frame || len > MAX_DESCRIPTOR.as_u64() as u32;
        if too_long { Err(Refusal::Oversize) } else { Ok(()) }
    }

    /// What one pull of at most `pull` bytes, or of one frame, takes from `offset` on.
    #[inline(always)]
    fn piece(self, slot: &Slot, offset: u32, pull: u32) -> Piece {
        let header = u32::from(slot.header);
        let segment = u32::from(slot.segment);
        if segment == 0 || slot.len <= header + segment {
            let Slot { len, .. } = *slot;
            return Piece { payload: len, len, frames: 1, charge: len + self.overhead, last: true };
        }
        let rest = slot.len - header - offset;
        let frame = header + segment + self.overhead;
        let payload = rest.min((pull / frame).max(1) * segment);
        let frames = payload.div_ceil(segment);
        let charge = payload + frames * (header + self.overhead);
        Piece { payload, len: header + payload, frames, charge, last: payload == rest }
    }
}

/// Longest descriptor: 64 KiB of IP packet behind an Ethernet header with two VLAN tags.
pub const MAX_DESCRIPTOR: Bytes = Bytes::new(65_535 + 22);
impl std::error::Error for Refusal {}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}
