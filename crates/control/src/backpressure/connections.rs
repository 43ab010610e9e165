//! Connections, in a table of a fixed size.
//!
//! Why: peers decide how many connections there are, and must not decide how much memory they take.
//! From: MIMIC §IV-B's hash buckets: one hash, a few slots; what gives way is ours.
//! Not here: what is known of a connection (`mediation`, `window`).
//! Invariant: an open connection gives way only after a long silence, so handshakes that are never finished push out none.

use core::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use plimsoll_units::{Nanos, Span};

/// Slots that one hash may fill.
const BUCKET: usize = 8;

/// How far a connection is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its handshake is not over.
    #[default]
    Opening,
    /// Both ends have agreed.
    Open,
    /// Both ends have sent their last byte, or one has reset it.
    Ended,
}

impl Stage {
    /// How long a connection keeps its place after it was last looked up: handshakes are over or repeated within this time,
    /// ended connections have their last acknowledgements, and open ones may be silent.
    const fn kept(self) -> Span {
        match self {
            Self::Opening => Span::secs(3),
            Self::Open => Span::secs(600),
            Self::Ended => Span::secs(1),
        }
    }
}

/// What is known of a connection.
pub(super) trait Connected: Default {
    fn stage(&self) -> Stage;
}

#[derive(Clone, Debug)]
pub(super) struct Table<K, C> {
    slots: Vec<Option<Slot<K, C>>>,
    hasher: FixedState,
}

#[derive(Clone, Debug)]
struct Slot<K, C> {
    key: K,
    seen: Nanos,
    connection: C,
}

/// Twice as many slots as connections, so that full buckets are rare.
const fn slots_for(connections: usize) -> usize {
    let slots = (2 * connections).next_power_of_two();
    if slots < BUCKET { BUCKET } else { slots }
}

impl<K, C> Table<K, C> {
    pub(super) const fn bytes_of(connections: usize) -> usize {
        slots_for(connections) * size_of::<Option<Slot<K, C>>>()
    }
}

impl<K: Copy + Eq + Hash, C: Connected> Table<K, C> {
    pub(super) fn new(connections: usize, seed: u64) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(slots_for(connections), || None);
        Self { slots, hasher: FixedState::with_seed(seed) }
    }

    /// The connection, if it is known.
    pub(super) fn get(&mut self, key: &K, now: Nanos) -> Option<&mut C> {
        let slot = self.bucket(key).iter_mut().flatten().find(|slot| slot.key == *key)?;
        slot.seen = now;
        Some(&mut slot.connection)
    }

    /// The connection, a new one if it is not known; `None` if there is no place for it.
    pub(super) fn get_or_insert(&mut self, key: &K, now: Nanos) -> Option<&mut C> {
        let bucket = self.bucket(key);
        let known = bucket.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.key == *key));
        let place = known.or_else(|| bucket.iter().position(|slot| is_free(slot.as_ref(), now)))?;
        let place = &mut bucket[place];
        if known.is_none() {
            *place = None;
        }
        let slot = place.get_or_insert_with(|| Slot { key: *key, seen: now, connection: C::default() });
        slot.seen = now;
        Some(&mut slot.connection)
    }

    /// The connection, if it is known; it does not count as looked up.
    pub(super) fn peek(&self, key: &K) -> Option<&C> {
        let first = self.first(key);
        let mut bucket = self.slots[first..first + BUCKET].iter().flatten();
        bucket.find(|slot| slot.key == *key).map(|slot| &slot.connection)
    }

    /// Whether each place could be taken by a new connection.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        self.slots.iter().all(|slot| is_free(slot.as_ref(), now))
    }

    fn bucket(&mut self, key: &K) -> &mut [Option<Slot<K, C>>] {
        let first = self.first(key);
        &mut self.slots[first..first + BUCKET]
    }

    fn first(&self, key: &K) -> usize {
        let buckets = self.slots.len() / BUCKET;
        self.hasher.hash_one(key) as usize % buckets * BUCKET
    }
}

fn is_free<K, C: Connected>(slot: Option<&Slot<K, C>>, now: Nanos) -> bool {
    slot.is_none_or(|slot| now.since(slot.seen) >= slot.connection.stage().kept())
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Connected for Stage {
        fn stage(&self) -> Stage {
            *self
        }
    }

    #[test]
    fn handshakes_that_are_not_finished_push_out_no_open_connection() {
        let mut table: Table<u32, Stage> = Table::new(4, 1);
        let at = |secs| Nanos::ZERO + Span::secs(secs);
        for key in 0..8 {
            *table.get_or_insert(&key, at(0)).expect("one bucket of eight") = Stage::Open;
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
