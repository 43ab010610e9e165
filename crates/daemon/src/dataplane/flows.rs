//! The flow table of one tenant: from a packet's 5-tuple to its flow queue.
//!
//! Why: one queue for each flow keeps order inside a flow and nothing else; the table must not grow with what a
//! tenant sends, nor let one tenant take another's places.
//! From: MIMIC §IV-B's hash buckets (one hash, a few slots), with expiry in place of eviction.
//! Not here: what a flow queue does (`nic`), and what overflows (`engine`: one shared queue for each placement).
//! Invariant: no new flow beyond `cap`; a lookup reads one bucket; a flow that holds packets is never replaced.

use core::hash::BuildHasher;
use std::sync::LazyLock;

use foldhash::quality::RandomState;
use plimsoll_nic::QueueId;
use plimsoll_policy::{Fields, Metadata};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{FlowKey, Parsed};

/// A flow that has been silent for this long and holds no packets may be replaced.
pub const IDLE: Span = Span::secs(15);

/// Slots that one hash may fill.
const BUCKET: usize = 8;

/// A packet's flow, and its hash: calculated once for all the tables that the packet meets.
#[derive(Clone, Copy, Debug)]
pub struct Hashed {
    /// What identifies the flow.
    pub key: FlowKey,
    /// Its keyed hash: what tenants send cannot aim at a place of a table.
    pub hash: u64,
}

impl Hashed {
    /// The flow of a packet with these headers.
    #[inline]
    #[must_use]
    pub fn of(parsed: &Parsed) -> Self {
        Self::of_key(FlowKey::of(parsed))
    }

    /// The flow with this key.
    #[inline]
    #[must_use]
    pub fn of_key(key: FlowKey) -> Self {
        Self { key, hash: HASHER.hash_one(key) }
    }
}

/// All tables of the process have one, so that a packet's hash serves for each.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// One flow and its queue.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// What identifies it: addresses, ports, protocol, DSCP and VLAN.
    pub key: FlowKey,
    /// The tenant elsewhere that it goes to, where limits hold what goes there: headers do not say so.
    pub peer: Option<u32>,
    /// Its packets as classification sees them, metadata included: for the look-up, and for a later policy.
    pub fields: Fields,
    /// Its flow queue.
    pub queue: QueueId,
    /// When it last sent.
    pub seen: Nanos,
}

/// Where a flow lies in its tenant's table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(u32);

/// The answer to a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The flow is known.
    Known(Slot),
    /// It is new, and there is a free slot for it.
    Free(Slot),
    /// It is new, and may take the slot of this idle flow once that one's queue is closed.
    Idle(Slot),
    /// It is new, and its bucket (or the tenant's share) is full of flows that are alive.
    Full,
}

/// Slots for flows: made, and freed, outside the engine's thread.
#[derive(Debug)]
pub struct FlowSlots(Vec<Option<Flow>>);

impl FlowSlots {
    /// For at most `cap` flows, with twice as many slots so that full buckets are rare.
    #[must_use]
    pub fn new(cap: u32) -> Self {
        Self(vec![None; (cap as usize * 2).next_power_of_two().max(BUCKET)])
    }
}

/// The flows of one tenant.
#[derive(Debug)]
pub struct FlowTable {
    slots: Vec<Option<Flow>>,
    used: u32,
    cap: u32,
    hand: usize,
    /// By slot: grows when a flow leaves it.
    left: Vec<u32>,
    /// Grows when all flows may have got other slots or queues.
    version: u32,
}

/// A flow's stay in its slot, with its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    slot: Slot,
    left: u32,
    version: u32,
}

impl FlowTable {
    /// A table for at most `cap` flows.
    #[must_use]
    pub fn new(cap: u32) -> Self {
        let FlowSlots(slots) = FlowSlots::new(cap);
        let left = vec![0; slots.len()];
        Self { slots, used: 0, cap, hand: 0, left, version: 0 }
    }

    /// Moves into a larger room, and answers the free one: the old room, or the new one if it is no larger.
    ///
    /// No flow is left without a place: both counts of buckets are powers of two, so each larger bucket takes flows from
    /// one smaller only.
    pub fn move_to(&mut self, FlowSlots(mut slots): FlowSlots) -> FlowSlots {
        if slots.len() <= self.slots.len() {
            return FlowSlots(slots);
        }
        core::mem::swap(&mut self.slots, &mut slots);
        self.hand = 0;
        self.left = vec![0; self.slots.len()];
        self.version = self.version.wrapping_add(1);
        for flow in slots.iter_mut().filter_map(Option::take) {
            let first = self.bucket(HASHER.hash_one(flow.key));
            let free = self.slots[first..first + BUCKET].iter_mut().find(|slot| slot.is_none());
            *free.expect("as many flows as one smaller bucket had, at most") = Some(flow);
        }
        FlowSlots(slots)
    }

    /// Where the flow with this key and metadata is or may go. `holds` says whether a queue still holds packets.
    ///
    /// Packets of one key whose metadata differs are different flows, in one bucket.
    pub fn lookup(
        &self,
        Hashed { key, hash }: &Hashed,
        peer: Option<u32>,
        metadata: &Metadata,
        now: Nanos,
        holds: impl Fn(QueueId) -> bool,
    ) -> Lookup {
        let first = self.bucket(*hash);
        let mut place = Lookup::Full;
        for index in first..first + BUCKET {
            let slot = Slot(u32::try_from(index).unwrap_or(u32::MAX));
            match &self.slots[index] {
                Some(flow) if flow.key == *key && flow.peer == peer && flow.fields.metadata == *metadata => {
                    return Lookup::Known(slot);
                }
                None if self.used < self.cap => place = Lookup::Free(slot),
                Some(flow) if place == Lookup::Full && now - flow.seen > IDLE && !holds(flow.queue) => {
                    place = Lookup::Idle(slot);
                }
                _ => {}
            }
        }
        place
    }

    /// The stay of the flow that is in this slot now.
    #[must_use]
    pub fn stay(&self, slot: Slot) -> Stay {
        Stay {
            slot,
            left: self.left.get(slot.0 as usize).copied().unwrap_or_default(),
            version: self.version,
        }
    }

    /// Whether the flow is still where it was, with the same queue.
    #[inline]
    #[must_use]
    pub fn stays(&self, stay: &Stay) -> bool {
        stay.version == self.version && self.left.get(stay.slot.0 as usize) == Some(&stay.left)
    }

    /// Notes that the flow of this stay has sent.
    pub fn note_seen(&mut self, stay: &Stay, now: Nanos) {
        if let Some(Some(flow)) = self.slots.get_mut(stay.slot.0 as usize) {
            flow.seen = now;
        }
    }

    /// The flow in a slot. Panics on an empty one: slots come from [`FlowTable::lookup`].
    pub fn flow_mut(&mut self, slot: Slot) -> &mut Flow {
        self.slots[slot.0 as usize].as_mut().expect("a slot that lookup called known")
    }

    /// Puts a flow in a free slot.
    pub fn insert(&mut self, slot: Slot, flow: Flow) {
        let before = self.slots[slot.0 as usize].replace(flow);
        assert!(before.is_none(), "a flow's slot is not taken from it");
        self.used += 1;
    }

    /// Forgets the flow in a slot and answers it.
    pub fn remove(&mut self, slot: Slot) -> Option<Flow> {
        let flow = self.slots[slot.0 as usize].take();
        self.left[slot.0 as usize] = self.left[slot.0 as usize].wrapping_add(1);
        self.used -= u32::from(flow.is_some());
        flow
    }

    /// Looks at the next `steps` slots in turn and answers the first flow that is idle and holds nothing, removed.
    pub fn expire(&mut self, steps: usize, now: Nanos, holds: impl Fn(QueueId) -> bool) -> Option<Flow> {
        for _ in 0..steps.min(self.slots.len()) {
            self.hand = (self.hand + 1) % self.slots.len();
            let idle =
                self.slots[self.hand].is_some_and(|flow| now.since(flow.seen) > IDLE && !holds(flow.queue));
            if idle {
                return self.remove(Slot(u32::try_from(self.hand).unwrap_or(u32::MAX)));
            }
        }
        None
    }

    /// Every flow, with its slot.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Flow)> {
        (0_u32..).zip(&self.slots).filter_map(|(index, flow)| Some((Slot(index), flow.as_ref()?)))
    }

    /// Every flow, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.version = self.version.wrapping_add(1);
        self.slots.iter_mut().flatten()
    }

    /// Flows in the table.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.used
    }

    /// Whether no flow is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Forgets every flow.
    pub fn drain(&mut self) -> impl Iterator<Item = Flow> {
        self.used = 0;
        self.version = self.version.wrapping_add(1);
        self.slots.iter_mut().filter_map(Option::take)
    }

    /// Sets the cap: new flows are taken only while there are fewer than `cap`; present ones stay. The number of slots
    /// stays, too: a cap far above the first one needs [`FlowTable::move_to`].
    pub fn set_cap(&mut self, cap: u32) {
        self.cap = cap;
    }

    /// Flows it may hold.
    #[must_use]
    pub fn cap(&self) -> u32 {
        self.cap
    }

    fn bucket(&self, hash: u64) -> usize {
        let buckets = self.slots.len() / BUCKET;
        (hash % buckets as u64) as usize * BUCKET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP flow over IPv4 from `port`.
    fn flow(port: u16, queue: u32, seen: Nanos) -> Flow {
        let mut frame = [0_u8; 60];
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[14] = 0x45;
        frame[17] = 46;
        frame[23] = 17;
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[39] = 26;
        let parsed = plimsoll_wire::parse(&frame).expect("a whole UDP datagram");
        Flow { key: FlowKey::of(&parsed), peer: None, fields: Fields::default(), queue: QueueId(queue), seen }
    }

    fn hashed(flow: &Flow) -> Hashed {
        Hashed { key: flow.key, hash: HASHER.hash_one(flow.key) }
    }

    fn put(table: &mut FlowTable, flow: Flow) -> Lookup {
        put_as(table, &hashed(&flow), flow)
    }

    fn put_as(table: &mut FlowTable, hashed: &Hashed, flow: Flow) -> Lookup {
        let answer = table.lookup(hashed, flow.peer, &flow.fields.metadata, flow.seen, |_| false);
        match answer {
            Lookup::Free(slot) => table.insert(slot, flow),
            Lookup::Idle(slot) => {
                table.remove(slot);
                table.insert(slot, flow);
            }
            Lookup::Known(_) | Lookup::Full => {}
        }
        answer
    }

    #[test]
    fn never_more_flows_than_its_cap() {
        let mut table = FlowTable::new(4);
        for port in 0..100 {
            put(&mut table, flow(port, port.into(), Nanos::ZERO));
        }
        assert_eq!(table.len(), 4);
        let newcomer = flow(1_000, 9, Nanos::ZERO);
        assert_eq!(
            table.lookup(&hashed(&newcomer), None, &Metadata::default(), Nanos::ZERO, |_| false),
            Lookup::Full
        );
    }

    #[test]
    fn a_lower_cap_keeps_what_there_is_and_takes_nothing_new() {
        let mut table = FlowTable::new(4);
        for port in 0..3 {
            put(&mut table, flow(port, port.into(), Nanos::ZERO));
        }
        table.set_cap(2);
        assert_eq!(table.len(), 3);
        assert_eq!(put(&mut table, flow(9, 9, Nanos::ZERO)), Lookup::Full);
        assert_eq!(table.drain().count(), 3);
        assert!(table.is_empty());
        assert!(matches!(put(&mut table, flow(9, 9, Nanos::ZERO)), Lookup::Free(_)));
    }

    #[test]
    fn a_larger_room_keeps_every_flow_and_a_smaller_one_is_refused() {
        let mut table = FlowTable::new(64);
        for port in 0..64 {
            put(&mut table, flow(port, port.into(), Nanos::ZERO));
        }
        let known: Vec<_> = table.iter().map(|(_, flow)| *flow).collect();
        table.move_to(FlowSlots::new(10_000));
        table.set_cap(10_000);
        assert_eq!(table.move_to(FlowSlots::new(64)).0.len(), 128, "it stays in the larger one");
        assert_eq!(table.len() as usize, known.len());
        for flow in known {
            let found = table.lookup(&hashed(&flow), None, &Metadata::default(), Nanos::ZERO, |_| true);
            assert!(matches!(found, Lookup::Known(slot) if table.flow_mut(slot).queue == flow.queue));
        }
        for port in 1_000..6_000 {
            put(&mut table, flow(port, port.into(), Nanos::ZERO));
        }
        assert!(table.len() > 5_050, "it takes more flows than its first room had slots: {}", table.len());
    }

    /// The plain variant of the hash puts a row of ports into few buckets under one seed in fifty.
    #[test]
    fn no_seed_crowds_flows_of_neighbouring_ports_into_few_buckets() {
        for _ in 0..300 {
            let (mut table, hasher) = (FlowTable::new(4_096), RandomState::default());
            for port in 0..2_000 {
                let flow = flow(port, port.into(), Nanos::ZERO);
                put_as(&mut table, &Hashed { key: flow.key, hash: hasher.hash_one(flow.key) }, flow);
            }
            assert!(table.len() > 1_990, "{} of 2,000 found a place", table.len());
        }
    }

    #[test]
    fn an_idle_flow_makes_room_but_not_while_it_holds_packets() {
        let mut table = FlowTable::new(1);
        put(&mut table, flow(1, 1, Nanos::ZERO));
        let later = Nanos::ZERO + IDLE + Span::ns(1);
        let other = flow(2, 2, later);
        let answer = table.lookup(&hashed(&other), None, &Metadata::default(), later, |_| true);
        assert_eq!(answer, Lookup::Full, "its queue holds packets");
        assert!(table.expire(64, later, |_| true).is_none());
        assert_eq!(table.expire(64, later, |_| false).map(|flow| flow.queue), Some(QueueId(1)));
        assert!(matches!(put(&mut table, other), Lookup::Free(_)));
    }

    #[test]
    fn a_known_flow_is_found_again() {
        // Enough slots that no bucket of eight is full, however the hash is seeded.
        let mut table = FlowTable::new(32_768);
        for port in 0..500 {
            put(&mut table, flow(port, port.into(), Nanos::ZERO));
        }
        for port in 0..500 {
            let flow = flow(port, 0, Nanos::ZERO);
            let Lookup::Known(slot) =
                table.lookup(&hashed(&flow), None, &Metadata::default(), Nanos::ZERO, |_| true)
            else {
                panic!("flow {port} was lost")
            };
            assert_eq!(table.flow_mut(slot).queue, QueueId(port.into()));
        }
    }
}
