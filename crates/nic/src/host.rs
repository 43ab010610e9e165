//! The host's side: flow queues, their descriptor rings, and what one pull takes from them.
//!
//! Why: one ring per flow, so that no packet waits behind another flow's.
//! From: Loom §4.3 (descriptor queues); SENIC §5.2 (segmentation at scheduling time, one frame a turn).
//! Not here: who goes next (`tree`), caps (`account`).
//! Invariant: done <= head <= seen <= tail, modulo 2^16, and tail - done never exceeds the ring.

use plimsoll_units::{Bytes, Nanos};
use prefetch_index::prefetch_index;

use crate::account::Accounts;

/// Names a flow queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId(pub u32);

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
}

impl Refusal {
    /// How many reasons there are.
    pub const COUNT: usize = 6;

    /// Every reason, in the order of the counters.
    pub const ALL: [Self; Self::COUNT] =
        [Self::NoQueue, Self::FlowFull, Self::TenantFull, Self::HostFull, Self::Malformed, Self::Oversize];

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
        }
    }
}

/// Every flow queue of the host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    rings: Rings,
    flows: Vec<Flow>,
    free: Vec<u32>,
    cut: Cut,
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

/// A flow queue, all of it in one cache line.
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
    bundle: u32,
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
    open: bool,
    /// When the head became the head.
    since: Nanos,
}

/// A cache line of a ring.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([Slot; SLOTS_PER_LINE]);

const SLOTS_PER_LINE: usize = 2;
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

impl Host {
    pub(crate) fn new(queues: u32, ring: u16, cut: Cut) -> Self {
        Self {
            rings: Rings::new(queues, ring),
            flows: vec![Flow::default(); queues as usize],
            free: (0..queues).rev().collect(),
            cut,
        }
    }

    pub(crate) fn set_cut(&mut self, cut: Cut) {
        self.cut = cut;
    }

    pub(crate) fn open(&mut self, bundle: u32, tenant: u32, pull: u32) -> Option<QueueId> {
        let id = self.free.pop()?;
        let pull = pull.min(self.cut.pull);
        self.flows[id as usize] = Flow { bundle, tenant, pull, open: true, ..Flow::default() };
        Some(QueueId(id))
    }

    /// Closes a flow queue that holds nothing.
    pub(crate) fn close(&mut self, queue: QueueId) -> bool {
        let Some(flow) = self.flows.get_mut(queue.0 as usize) else { return false };
        let empty = flow.open && flow.done == flow.tail;
        if empty {
            flow.open = false;
            self.free.push(queue.0);
        }
        empty
    }

    /// Descriptors that one ring holds.
    pub(crate) fn slots(&self) -> u16 {
        self.rings.mask + 1
    }

    /// How many flow queues are open.
    #[inline]
    pub(crate) fn open_count(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    pub(crate) fn is_open(&self, queue: QueueId) -> bool {
        self.flows.get(queue.0 as usize).is_some_and(|flow| flow.open)
    }

    /// Every open flow queue.
    pub(crate) fn open_queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        (0..).map(QueueId).zip(&self.flows).filter_map(|(id, flow)| flow.open.then_some(id))
    }

    /// The bundle of an open flow queue.
    #[inline]
    pub(crate) fn bundle(&self, queue: QueueId) -> Option<u32> {
        self.flows.get(queue.0 as usize).filter(|flow| flow.open).map(|flow| flow.bundle)
    }

    pub(crate) fn rehome(&mut self, queue: QueueId, bundle: u32, tenant: u32, pull: u32) {
        let flow = &mut self.flows[queue.0 as usize];
        (flow.bundle, flow.tenant, flow.deficit) = (bundle, tenant, 0);
        flow.pull = pull.min(self.cut.pull);
    }

    pub(crate) fn set_tag(&mut self, queue: QueueId, tag: u32) {
        self.flows[queue.0 as usize].tag = tag;
    }

    /// Writes a descriptor, if it makes sense, its ring has room and its owner may hold one more.
    #[inline]
    pub(crate) fn write(
        &mut self,
        queue: QueueId,
        descriptor: &Descriptor,
        accounts: &mut Accounts,
    ) -> Result<(), Refusal> {
        let flow = self.flows.get_mut(queue.0 as usize).filter(|flow| flow.open).ok_or(Refusal::NoQueue)?;
        self.cut.accepts(descriptor)?;
        let tail = flow.tail;
        if tail.wrapping_sub(flow.done) > self.rings.mask {
            return Err(Refusal::FlowFull);
        }
        accounts.take(flow.tenant)?;
        flow.tail = tail.wrapping_add(1);
        let tag = if descriptor.tag == 0 { flow.tag } else { descriptor.tag };
        let Descriptor { addr, len, segment, header, .. } = *descriptor;
        *self.rings.slot_mut(queue, tail) = Slot { addr, arrived: 0, len, arrival: 0, segment, header, tag };
        Ok(())
    }

    /// The tenant of a flow queue.
    pub(crate) fn tenant(&self, queue: QueueId) -> Option<u32> {
        self.flows.get(queue.0 as usize).filter(|flow| flow.open).map(|flow| flow.tenant)
    }

    /// A doorbell: stamps what is new, and names the bundle if the flow queue holds packets now and did not before.
    ///
    /// # Errors
    /// [`Refusal::NoQueue`] when there is no such flow queue.
    #[inline]
    pub(crate) fn take_new(
        &mut self,
        queue: QueueId,
        now: Nanos,
        arrivals: &mut u64,
    ) -> Result<Option<u32>, Refusal> {
        let flow = self.flows.get_mut(queue.0 as usize).filter(|flow| flow.open).ok_or(Refusal::NoQueue)?;
        let mut at = flow.seen;
        while at != flow.tail {
            let slot = self.rings.slot_mut(queue, at);
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
            flow.load(self.rings.slot(queue, flow.head), self.cut);
        }
        Ok(wakes.then_some(flow.bundle))
    }

    /// Bytes that the next pull will be charged.
    #[inline]
    pub(crate) fn charge(&self, queue: QueueId) -> u32 {
        self.flows[queue.0 as usize].charge
    }

    /// Number of the head among all arrivals; `arrivals` is how many there have been.
    #[inline]
    pub(crate) fn arrival(&self, queue: QueueId, arrivals: u64) -> u64 {
        let low = u64::from(self.flows[queue.0 as usize].arrival);
        let high = arrivals & !u64::from(u32::MAX);
        if (high | low) <= arrivals { high | low } else { (high | low).saturating_sub(1 << 32) }
    }

    /// When the head should have left, given its class's default.
    #[inline]
    pub(crate) fn deadline(&self, queue: QueueId, default: u64) -> u64 {
        let slot = self.rings.slot(queue, self.flows[queue.0 as usize].head);
        let wait = if slot.tag == 0 { default } else { u64::from(slot.tag) * 1_000 };
        slot.arrived.saturating_add(wait)
    }

    #[inline]
    pub(crate) fn holds_packets(&self, queue: QueueId) -> bool {
        let flow = &self.flows[queue.0 as usize];
        flow.head != flow.seen
    }

    /// Takes the next pull off the head and moves on. With a quantum, says in `turn_over` whether it ends the flow
    /// queue's turn.
    ///
    /// Always inlined: handed over in memory, the narrow stores of its fields and the wide loads of their reader do
    /// not forward to each other, which costs more than the whole pull.
    #[inline(always)]
    pub(crate) fn pull(&mut self, queue: QueueId, now: Nanos, quantum: Option<i32>) -> Pull {
        let flow = &mut self.flows[queue.0 as usize];
        let slot = self.rings.slot(queue, flow.head);
        let piece = self.cut.piece(slot, flow.offset, flow.pull);
        let mut pull = Pull {
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
        flow.load(self.rings.slot(queue, flow.head), self.cut);
        // By the time that this one leaves, others have had their turns and their lines in the cache.
        self.rings.prefetch(queue, flow.head.wrapping_add(1));
        if let Some(quantum) = quantum {
            pull.turn_over = flow.use_turn(pull.charge, quantum, pull.more);
        }
        pull
    }

    /// Descriptors that are not completed.
    pub(crate) fn held(&self, queue: QueueId) -> u32 {
        let flow = &self.flows[queue.0 as usize];
        flow.tail.wrapping_sub(flow.done).into()
    }

    /// The bundle of each open flow queue, with the descriptors, and their bytes, that wait in it.
    pub(crate) fn backlogs(&self) -> impl Iterator<Item = (u32, u64, u64)> + '_ {
        let open = self.flows.iter().filter(|flow| flow.open);
        open.map(|flow| (flow.bundle, flow.seen.wrapping_sub(flow.head).into(), flow.backlog.into()))
    }

    /// The oldest descriptor that has left may be written again; its tenant.
    #[inline]
    pub(crate) fn release(&mut self, queue: QueueId) -> u32 {
        let flow = &mut self.flows[queue.0 as usize];
        flow.done = flow.done.wrapping_add(1);
        // An empty ring begins again at its first line (see `Rings`). Without a branch: nothing foretells it.
        let keep = u16::from(flow.done != flow.tail).wrapping_neg();
        (flow.head, flow.seen, flow.tail, flow.done) =
            (flow.head & keep, flow.seen & keep, flow.tail & keep, flow.done & keep);
        flow.tenant
    }

    pub(crate) fn load_head(&mut self, queue: QueueId) {
        let flow = &mut self.flows[queue.0 as usize];
        flow.load(self.rings.slot(queue, flow.head), self.cut);
    }

    /// Brings a flow queue into the cache.
    #[inline]
    pub(crate) fn prefetch(&self, queue: QueueId) {
        prefetch_index(&self.flows, queue.0 as usize);
    }

    /// Brings the head descriptor of a flow queue, itself in the cache, into it as well.
    #[inline]
    pub(crate) fn prefetch_head(&self, queue: QueueId) {
        if let Some(flow) = self.flows.get(queue.0 as usize) {
            self.rings.prefetch(queue, flow.head);
        }
    }

    /// Brings the place for the next descriptor of a flow queue, itself in the cache, into it as well.
    #[inline]
    pub(crate) fn prefetch_tail(&self, queue: QueueId) {
        if let Some(flow) = self.flows.get(queue.0 as usize) {
            self.rings.prefetch(queue, flow.tail);
        }
    }
}

impl Rings {
    fn new(queues: u32, slots: u16) -> Self {
        let slots = slots.clamp(SLOTS_PER_LINE as u16, 1 << 14).next_power_of_two();
        // Odd, so that the lines of one ring do not compete for the same few places of a cache.
        let stride = queues as usize | 1;
        let lines = stride * (usize::from(slots) / SLOTS_PER_LINE);
        Self { mask: slots - 1, stride, lines: vec![Line::default(); lines] }
    }

    #[inline]
    fn line(&self, queue: QueueId, index: u16) -> usize {
        usize::from(index & self.mask) / SLOTS_PER_LINE * self.stride + queue.0 as usize
    }

    #[inline]
    fn slot(&self, queue: QueueId, index: u16) -> &Slot {
        &self.lines[self.line(queue, index)].0[usize::from(index) % SLOTS_PER_LINE]
    }

    #[inline]
    fn slot_mut(&mut self, queue: QueueId, index: u16) -> &mut Slot {
        let line = self.line(queue, index);
        &mut self.lines[line].0[usize::from(index) % SLOTS_PER_LINE]
    }

    #[inline]
    fn prefetch(&self, queue: QueueId, index: u16) {
        prefetch_index(&self.lines, self.line(queue, index));
    }
}

impl Flow {
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
