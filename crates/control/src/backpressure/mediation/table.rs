//! The connections of one tenant, in a table of a fixed size.
//!
//! Why: peers decide how many connections there are, and must not decide how much memory they take.
//! From: MIMIC §IV-B's hash buckets: one hash, a few slots; what gives way is ours.
//! Not here: what a connection is (`connection`).
//! Invariant: an open connection gives way only after a long silence, so handshakes that are never finished push out none.

use core::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use plimsoll_units::{Nanos, Span};

use super::Connection;
use super::connection::Stage;

/// Slots that one hash may fill.
const BUCKET: usize = 8;

/// How long a connection keeps its place after its last segment, by its stage: handshakes are over or repeated within this
/// time, ended connections have their last acknowledgements, and open ones may be silent.
const fn kept(stage: Stage) -> Span {
    match stage {
        Stage::Opening => Span::secs(3),
        Stage::Open => Span::secs(600),
        Stage::Ended => Span::secs(1),
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table<K> {
    slots: Vec<Option<Slot<K>>>,
    hasher: FixedState,
}

#[derive(Clone, Debug)]
struct Slot<K> {
    key: K,
    seen: Nanos,
    connection: Connection,
}

/// Twice as many slots as connections, so that full buckets are rare.
const fn slots_for(connections: usize) -> usize {
    let slots = (2 * connections).next_power_of_two();
    if slots < BUCKET { BUCKET } else { slots }
}

impl<K> Table<K> {
    pub(super) const fn bytes_of(connections: usize) -> usize {
        slots_for(connections) * size_of::<Option<Slot<K>>>()
    }
}

impl<K: Copy + Eq + Hash> Table<K> {
    pub(super) fn new(connections: usize, seed: u64) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(slots_for(connections), || None);
        Self { slots, hasher: FixedState::with_seed(seed) }
    }

    /// The connection, if it is known.
    pub(super) fn get(&mut self, key: &K, now: Nanos) -> Option<&mut Connection> {
        let slot = self.bucket(key).iter_mut().flatten().find(|slot| slot.key == *key)?;
        slot.seen = now;
        Some(&mut slot.connection)
    }

    /// The connection, a new one if it is not known; `None` if there is no place for it.
    pub(super) fn get_or_insert(&mut self, key: &K, now: Nanos) -> Option<&mut Connection> {
        let bucket = self.bucket(key);
        let known = bucket.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.key == *key));
        let place = known.or_else(|| bucket.iter().position(|slot| is_free(slot.as_ref(), now)))?;
        let place = &mut bucket[place];
        if known.is_none() {
            *place = None;
        }
        let slot =
            place.get_or_insert_with(|| Slot { key: *key, seen: now, connection: Connection::default() });
        slot.seen = now;
        Some(&mut slot.connection)
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill_with(|| None);
    }

    fn bucket(&mut self, key: &K) -> &mut [Option<Slot<K>>] {
        let buckets = self.slots.len() / BUCKET;
        let first = self.hasher.hash_one(key) as usize % buckets * BUCKET;
        &mut self.slots[first..first + BUCKET]
    }
}

fn is_free<K>(slot: Option<&Slot<K>>, now: Nanos) -> bool {
    slot.is_none_or(|slot| now.since(slot.seen) >= kept(slot.connection.stage()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_that_are_not_finished_push_out_no_open_connection() {
        let mut table: Table<u32> = Table::new(4, 1);
        let at = |secs| Nanos::ZERO + Span::secs(secs);
        for key in 0..8 {
            table.get_or_insert(&key, at(0)).expect("one bucket of eight").make_open();
        }
        assert!((8..1_000).all(|key| table.get_or_insert(&key, at(10)).is_none()));
        assert!((0..8).all(|key| table.get(&key, at(11)).is_some()));
        // Ten minutes of silence make room; that half-open connection then gives way after three seconds.
        assert!(table.get_or_insert(&8, at(611)).is_some());
        assert!((9..16).all(|key| table.get_or_insert(&key, at(611)).is_some()));
        assert!(table.get_or_insert(&99, at(613)).is_none());
        assert!(table.get_or_insert(&99, at(614)).is_some());
        assert_eq!((0..100).filter(|key| table.get(key, at(615)).is_some()).count(), 8);
    }
}
