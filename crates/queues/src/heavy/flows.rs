//! The second level: the flows of the last seconds.
//!
//! From: MIMIC §IV-B and C. The paper's table grows with the number of flows; this one has a fixed number of places. A
//! hash gives a flow eight of them. Where all eight are taken, the flow with the fewest packets gives way to one that
//! brings at least as many. An attacker who sends one packet of each flow pushes out no flow that sends more.

use super::{Heavy, HeavyConfig, Tally};
use prefetch_index::prefetch_index;

const WAYS: usize = HeavyConfig::WAYS;

/// The hashes of the flows at eight places: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set([u64; WAYS]);

#[derive(Clone, Debug)]
pub(super) struct Flows<K> {
    sets: Vec<Set>,
    entries: Vec<Entry>,
    keys: Vec<K>,
    /// The number of the running generation.
    generation: u64,
    expired: Tally,
    unlisted: Tally,
}

/// A flow's count in the generation in which it was last counted, and in the one before.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(32))]
struct Entry {
    bytes: [u64; 2],
    packets: [u32; 2],
    /// The number of the generation, shifted left by one; the low bit says that the flow was reported in it.
    stamp: u64,
}

impl Entry {
    fn generation(&self) -> u64 {
        self.stamp >> 1
    }

    fn is_reported(&self) -> bool {
        self.stamp & 1 == 1
    }

    /// The count in the entry's own generation (0), or in the one before it (1).
    fn sent(&self, age: usize) -> Tally {
        Tally { packets: self.packets[age].into(), bytes: self.bytes[age] }
    }

    fn total(&self) -> Tally {
        self.sent(0).plus(self.sent(1))
    }

    /// What counts in `generation`: nothing of a flow that was idle for a whole generation.
    fn recent(&self, generation: u64) -> Tally {
        match generation - self.generation() {
            0 => self.total(),
            1 => self.sent(0),
            _ => Tally::default(),
        }
    }

    /// Adds to the entry's own generation, and returns false where that is more than it can count.
    fn add(&mut self, sent: Tally) -> bool {
        let packets = u64::from(self.packets[0]) + sent.packets;
        let Ok(packets) = u32::try_from(packets) else { return false };
        self.packets[0] = packets;
        self.bytes[0] += sent.bytes;
        true
    }

    /// Makes `generation` the entry's own, and returns what is older than the generation before it.
    #[inline]
    fn roll(&mut self, generation: u64) -> Tally {
        let (expired, [packets, bytes]) = match generation - self.generation() {
            0 => return Tally::default(),
            1 => (self.sent(1), [u64::from(self.packets[0]), self.bytes[0]]),
            _ => (self.total(), [0, 0]),
        };
        *self = Self { packets: [0, packets as u32], bytes: [0, bytes], stamp: generation << 1 };
        expired
    }
}

impl<K: Copy + Default> Flows<K> {
    pub(super) fn new(flows: usize) -> Self {
        assert!(flows.is_power_of_two() && flows >= WAYS, "a power of two of flows, at least 8");
        assert!(u32::try_from(flows).is_ok(), "places are numbered in 32 bits");
        Self {
            sets: vec![Set::default(); flows / WAYS],
            entries: vec![Entry::default(); flows],
            keys: vec![K::default(); flows],
            generation: FIRST,
            expired: Tally::default(),
            unlisted: Tally::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.sets) + size_of_val(&*self.entries) + size_of_val(&*self.keys)
    }

    /// [`Self::bytes`] of this number of flows.
    pub(super) fn bytes_of(flows: usize) -> usize {
        flows / WAYS * size_of::<Set>() + flows * (size_of::<Entry>() + size_of::<K>())
    }

    pub(super) fn begin_generation(&mut self, generations: u64) {
        self.generation += generations;
    }

    /// Asks the processor to fetch a place.
    #[inline]
    pub(super) fn prefetch(&self, place: u32) {
        prefetch_index(&self.sets, place as usize / WAYS);
        prefetch_index(&self.entries, place as usize);
    }

    /// Adds to a flow's count and returns its place, or `None` where all its places hold flows with more packets.
    ///
    /// `last` is where the flow may have been the last time: there it is found without a search.
    #[inline]
    pub(super) fn add(&mut self, hash: u64, key: &K, sent: Tally, last: u32) -> Option<u32> {
        if !self.holds(last, hash) {
            return self.search(hash, key, sent);
        }
        self.add_at(last as usize, sent);
        Some(last)
    }

    #[cold]
    fn search(&mut self, hash: u64, key: &K, sent: Tally) -> Option<u32> {
        let Some(place) = self.find(hash) else { return self.insert(hash, key, sent) };
        self.add_at(place, sent);
        Some(place as u32)
    }

    /// Whether a place is taken, by the flow of this hash.
    #[inline]
    fn holds(&self, place: u32, hash: u64) -> bool {
        let place = place as usize;
        self.sets[place / WAYS].0[place % WAYS] == hash && self.entries[place].generation() > 0
    }

    #[inline]
    fn add_at(&mut self, place: usize, sent: Tally) {
        let entry = &mut self.entries[place];
        self.expired.add(entry.roll(self.generation));
        if !entry.add(sent) {
            self.unlisted.add(sent);
        }
    }

    /// Gives a new flow the place of the flow with the fewest packets, if those are not more than its own.
    fn insert(&mut self, hash: u64, key: &K, sent: Tally) -> Option<u32> {
        let (set, generation) = (self.set(hash), self.generation);
        let packets = |place: &usize| self.entries[*place].recent(generation).packets;
        let place = (set * WAYS..(set + 1) * WAYS).min_by_key(packets).expect("a set has places");
        if packets(&place) > sent.packets {
            self.unlisted.add(sent);
            return None;
        }
        let entry = &mut self.entries[place];
        self.expired.add(entry.roll(generation));
        self.unlisted.add(entry.total());
        *entry = Entry { stamp: generation << 1, ..Entry::default() };
        if !entry.add(sent) {
            self.unlisted.add(sent);
        }
        self.sets[set].0[place % WAYS] = hash;
        self.keys[place] = *key;
        Some(place as u32)
    }

    /// The place of a flow.
    #[inline]
    fn find(&self, hash: u64) -> Option<usize> {
        let set = self.set(hash);
        // All eight are compared: a branch at the one that is equal would be mispredicted.
        let equal =
            self.sets[set].0.iter().rev().fold(0_u32, |equal, &of| equal << 1 | u32::from(of == hash));
        let place = set * WAYS + equal.trailing_zeros() as usize;
        (equal != 0 && (hash != 0 || self.entries[place].generation() > 0)).then_some(place)
    }

    /// Whether the flow at `place`, just counted, has `threshold` packets and no report.
    pub(super) fn is_unreported(&self, place: u32, threshold: u64) -> bool {
        let entry = &self.entries[place as usize];
        !entry.is_reported() && entry.total().packets >= threshold
    }

    pub(super) fn mark_reported(&mut self, place: u32) {
        self.entries[place as usize].stamp |= 1;
    }

    /// The reported flow with its count, unless another flow took its place or it has been idle since. It may be reported
    /// anew.
    pub(super) fn take_report(&mut self, place: u32, hash: u64) -> Option<Heavy<K>> {
        let place = place as usize;
        if self.find(hash) != Some(place) {
            return None;
        }
        let entry = &mut self.entries[place];
        entry.stamp &= !1;
        let sent = entry.recent(self.generation);
        (sent.packets > 0).then(|| Heavy { key: self.keys[place], sent })
    }

    /// Adds to a flow's count where its place is not known.
    pub(super) fn add_somewhere(&mut self, hash: u64, key: &K, sent: Tally) {
        match self.find(hash) {
            Some(place) => self.add_at(place, sent),
            None => _ = self.insert(hash, key, sent),
        }
    }

    /// What a flow sent in this generation and the one before.
    pub(super) fn sent(&self, hash: u64) -> Option<Tally> {
        self.find(hash).map(|place| self.entries[place].recent(self.generation))
    }

    pub(super) fn expired(&self) -> Tally {
        self.expired
    }

    pub(super) fn unlisted(&self) -> Tally {
        self.unlisted
    }

    pub(super) fn held(&self) -> Tally {
        self.entries.iter().fold(Tally::default(), |held, entry| held.plus(entry.total()))
    }

    /// The set of places of a hash. The buckets use the low bits of the hash, and the flow table the high ones.
    #[inline]
    fn set(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize
    }
}

/// The first generation's number: entries that were never taken have generation 0, and count as idle for a generation.
const FIRST: u64 = 2;
