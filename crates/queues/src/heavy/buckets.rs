//! The first level: the flows of the last millisecond, in hash buckets small enough for the processor's cache.
//!
//! From: MIMIC §IV-B. A bucket of four slots is one cache line; a flow's key stands apart, and is only touched when the
//! flow comes and goes.

use super::{BATCH, Tally};
use prefetch_index::prefetch_index;

#[derive(Clone, Debug)]
pub(super) struct Buckets<K, const SLOTS: usize> {
    buckets: Vec<Bucket<SLOTS>>,
    keys: Vec<[K; SLOTS]>,
    /// Where each slot's flow was last put in the flow table.
    last: Vec<[u32; SLOTS]>,
    /// A bit for each bucket that holds a flow.
    occupied: Vec<u64>,
    /// The first bucket that the running update has not emptied.
    swept: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket<const SLOTS: usize>([Slot; SLOTS]);

/// A flow's count. Where `packets` is 0 the slot is free, and its flow finds it, with its key, when it comes back.
#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u64,
    packets: u32,
    bytes: u32,
}

/// A slot's place: the bucket, and the slot in it.
pub(super) type Place = (usize, usize);

/// Slots that are emptied together, and one more, which is written and does not count.
pub(super) type Due = [Place; BATCH + 1];

impl<K: Copy + Default, const SLOTS: usize> Buckets<K, SLOTS> {
    pub(super) fn new(buckets: usize) -> Self {
        assert!(buckets.is_power_of_two() && buckets > 1, "a power of two of buckets, at least 2");
        const { assert!(1 <= SLOTS && SLOTS <= BATCH, "1 to 32 slots") }
        // The complement of a bucket's number is the hash of no flow of the bucket.
        let empty = |bucket: usize| Bucket([Slot { hash: !bucket as u64, packets: 0, bytes: 0 }; SLOTS]);
        Self {
            buckets: (0..buckets).map(empty).collect(),
            keys: vec![[K::default(); SLOTS]; buckets],
            last: vec![[0; SLOTS]; buckets],
            occupied: vec![0; buckets.div_ceil(64)],
            swept: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
            + size_of_val(&*self.keys)
            + size_of_val(&*self.last)
            + size_of_val(&*self.occupied)
    }

    /// [`Self::bytes`] of this number of buckets.
    pub(super) fn bytes_of(buckets: usize) -> usize {
        let each = size_of::<Bucket<SLOTS>>() + size_of::<[K; SLOTS]>() + size_of::<[u32; SLOTS]>();
        buckets * each + buckets.div_ceil(64) * size_of::<u64>()
    }

    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch_index(&self.buckets, self.bucket(hash));
    }

    /// The slot that holds the flow, or else the slot to put it into: a free one, or the one with the fewest packets.
    #[inline]
    pub(super) fn find(&self, hash: u64) -> Result<Place, Place> {
        let bucket = self.bucket(hash);
        let slots = &self.buckets[bucket].0;
        // All are compared: a branch at the one that is equal would be mispredicted.
        let equal = slots.iter().rev().fold(0_u32, |equal, slot| equal << 1 | u32::from(slot.hash == hash));
        if equal != 0 {
            return Ok((bucket, equal.trailing_zeros() as usize));
        }
        let least = (0..SLOTS).min_by_key(|&slot| slots[slot].packets).expect("a bucket has slots");
        Err((bucket, least))
    }

    pub(super) fn is_used(&self, (bucket, slot): Place) -> bool {
        self.buckets[bucket].0[slot].packets > 0
    }

    /// Gives a free slot to a flow.
    pub(super) fn fill(&mut self, (bucket, slot): Place, hash: u64, key: &K) {
        self.buckets[bucket].0[slot].hash = hash;
        self.keys[bucket][slot] = *key;
    }

    /// Counts packets, and says whether the slot must be emptied before the next.
    #[inline]
    pub(super) fn count(&mut self, (bucket, slot): Place, packets: u16, bytes: u32, cap: u32) -> bool {
        // Set each time: a branch at a flow's first packet would be mispredicted.
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
        let slot = &mut self.buckets[bucket].0[slot];
        slot.packets += u32::from(packets);
        slot.bytes = slot.bytes.saturating_add(bytes);
        slot.packets >= cap || slot.bytes > MOST_BYTES
    }

    /// The hash of a slot's flow.
    #[inline]
    pub(super) fn hash(&self, (bucket, slot): Place) -> u64 {
        self.buckets[bucket].0[slot].hash
    }

    /// The key of a slot's flow.
    pub(super) fn key(&self, (bucket, slot): Place) -> &K {
        &self.keys[bucket][slot]
    }

    /// Where a slot's flow was last put in the flow table; another flow may have that place by now.
    #[inline]
    pub(super) fn last(&self, (bucket, slot): Place) -> u32 {
        self.last[bucket][slot]
    }

    #[inline]
    pub(super) fn set_last(&mut self, (bucket, slot): Place, place: u32) {
        self.last[bucket][slot] = place;
    }

    /// Frees a slot and returns its count.
    pub(super) fn take(&mut self, (bucket, slot): Place) -> Tally {
        let slot = &mut self.buckets[bucket].0[slot];
        let tally = slot.tally();
        (slot.packets, slot.bytes) = (0, 0);
        tally
    }

    pub(super) fn begin_sweep(&mut self) {
        self.swept = 0;
    }

    /// The next used slots, in the buckets before `end` that this update has not emptied; as many as fit into `due`.
    pub(super) fn next_due<'a>(&mut self, end: usize, due: &'a mut Due) -> &'a [Place] {
        let mut found = 0;
        while self.swept < end && found + SLOTS <= BATCH {
            let (word, bit) = (self.swept / 64, self.swept % 64);
            let ahead = self.occupied[word] >> bit;
            self.swept =
                if ahead == 0 { (word + 1) * 64 } else { self.swept + ahead.trailing_zeros() as usize };
            if ahead == 0 || self.swept >= end {
                continue;
            }
            self.occupied[word] &= !(1 << (self.swept % 64));
            // Each slot is written, and the next one overwrites it if it is free: a branch would be mispredicted.
            for (slot, of) in self.buckets[self.swept].0.iter().enumerate() {
                due[found] = (self.swept, slot);
                found += usize::from(of.packets > 0);
            }
            self.swept += 1;
        }
        &due[..found]
    }

    pub(super) fn used(&self) -> usize {
        self.slots().filter(|slot| slot.packets > 0).count()
    }

    pub(super) fn held(&self) -> Tally {
        self.slots().fold(Tally::default(), |held, slot| held.plus(slot.tally()))
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.buckets.iter().flat_map(|bucket| &bucket.0)
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}

impl Slot {
    fn tally(&self) -> Tally {
        Tally { packets: self.packets.into(), bytes: self.bytes.into() }
    }
}

/// A slot with more bytes than this is emptied, so that a further frame of any length fits into its counter.
const MOST_BYTES: u32 = u32::MAX / 2;
