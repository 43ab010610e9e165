//! Flow queues that take turns, in a circle.
//!
//! Why: every turn comes again, so stepping to the next flow queue is often all there is to do; and a class of few flow
//! queues needs no memory of its own for them.
//! Not here: how long a turn is (`host`).
//! Invariant: from `head` on, flow queues stand in the order of their turns.

use crate::ids::RecordId;

/// Flow queues in the order of their turns, with room for a fixed number.
#[derive(Clone, Debug)]
pub(crate) struct Circle {
    places: Places,
    head: u32,
    len: u32,
}

/// A power of two of places. Up to [`BESIDE`] need no memory of their own, and no check of their bounds.
#[derive(Clone, Debug)]
enum Places {
    Beside([RecordId; BESIDE]),
    Apart(Box<[RecordId]>),
}

const BESIDE: usize = 4;

impl Places {
    fn as_slice(&self) -> &[RecordId] {
        match self {
            Self::Beside(places) => places,
            Self::Apart(places) => places,
        }
    }

    /// The place `at`, modulo their number.
    #[inline]
    fn get(&self, at: u32) -> RecordId {
        match self {
            Self::Beside(places) => places[at as usize % BESIDE],
            Self::Apart(places) => places[at as usize & (places.len() - 1)],
        }
    }

    #[inline]
    fn set(&mut self, at: u32, id: RecordId) {
        match self {
            Self::Beside(places) => places[at as usize % BESIDE] = id,
            Self::Apart(places) => {
                let mask = places.len() - 1;
                places[at as usize & mask] = id;
            }
        }
    }
}

impl Circle {
    pub(crate) fn new() -> Self {
        Self { places: Places::Beside([RecordId::NONE; BESIDE]), head: 0, len: 0 }
    }

    /// Makes room for `members`; the only call that allocates.
    pub(crate) fn reserve(&mut self, members: usize) {
        let wanted = members.next_power_of_two();
        let places = self.places.as_slice();
        if wanted > places.len() {
            let front = self.head as usize & (places.len() - 1);
            let mut wider = places.to_vec();
            wider.rotate_left(front);
            wider.resize(wanted, RecordId::NONE);
            (self.places, self.head) = (Places::Apart(wider.into()), 0);
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The flow queue whose turn it is, of which there must be one.
    #[inline]
    pub(crate) fn front(&self) -> RecordId {
        debug_assert!(self.len > 0, "a flow queue at the front");
        self.places.get(self.head)
    }

    /// The flow queue whose turn comes after `turns` more.
    #[inline]
    pub(crate) fn get(&self, turns: u32) -> Option<RecordId> {
        (turns < self.len).then(|| self.places.get(self.head.wrapping_add(turns)))
    }

    #[inline]
    pub(crate) fn push_back(&mut self, id: RecordId) {
        self.places.set(self.head.wrapping_add(self.len), id);
        self.len += 1;
    }

    /// The flow queue `front`, at the front, sent something: its turn may be over, or it may leave. Neither can be predicted,
    /// so there is no branch.
    #[inline]
    pub(crate) fn serve(&mut self, front: RecordId, turn_over: bool, leaves: bool) {
        self.places.set(self.head.wrapping_add(self.len), front); // free, or its own when all are taken
        self.head = self.head.wrapping_add(u32::from(turn_over | leaves));
        self.len -= u32::from(leaves);
    }
}

#[cfg(test)]
mod tests {
    use super::{Circle, RecordId};
    use std::collections::VecDeque;

    proptest::proptest! {
        /// Any sequence of operations agrees with a double-ended queue.
        #[test]
        fn agrees_with_a_queue(ops in proptest::collection::vec(0..4_u8, 1..300)) {
            let (mut circle, mut oracle) = (Circle::new(), VecDeque::new());
            for (id, op) in (0..).zip(ops) {
                match (op, oracle.front().copied()) {
                    (0 | 1, _) => {
                        circle.reserve(oracle.len() + 1);
                        circle.push_back(RecordId(id));
                        oracle.push_back(id);
                    }
                    (2, Some(front)) => {
                        circle.serve(RecordId(front), id % 2 == 0, false);
                        oracle.rotate_left(usize::from(id % 2 == 0));
                    }
                    (_, Some(front)) => {
                        circle.serve(RecordId(front), id % 2 == 0, true);
                        oracle.pop_front();
                    }
                    (_, None) => {}
                }
                let found: Vec<u32> = (0..circle.len()).filter_map(|turns| circle.get(turns)).map(|RecordId(id)| id).collect();
                proptest::prop_assert_eq!(found, Vec::from(oracle.clone()));
                proptest::prop_assert_eq!(circle.get(circle.len()), None);
            }
        }
    }
}
