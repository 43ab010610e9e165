//! Weighted fair queueing for many children in constant time, by grouping and rounding.
//!
//! Why: four thousand tenants must not cost more than four.
//! From: QFQ (Checconi, Rizzo and Valente, "QFQ: efficient packet scheduling with tight guarantees", 2013).
//! Not here: few children (`exact`), the rows of rounded starts (`rows`).
//! Invariant: for every queued child, start + one slot of its group >= V.

use super::rows::{Kid, Rows};
use super::virtual_time::{Inverse, Weight, earlier, passes_eighth, raise};

/// Weighted fair queueing over any number of children.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    v: u64,
    total: Weight,
    weights: Vec<u32>,
    largest: u64,
    rows: Rows,
}

impl Grouped {
    pub(crate) fn new(weights: &[u32], largest: u64) -> Self {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut grouped = Self {
            v: 0,
            total: Weight::total(total),
            weights: weights.to_vec(),
            largest,
            rows: Rows::new(weights.iter().map(|&w| Weight::new(w.into()).inverse().get())),
        };
        for slot in 0..weights.len() as u32 {
            grouped.join_group(slot);
        }
        grouped
    }

    /// Takes effect at the child's next charge. May add a group: called when a policy changes, not per packet.
    pub(crate) fn set_weight(&mut self, slot: u32, weight: u32) {
        let queued = self.rows.is_queued(slot);
        self.rows.unlink(slot);
        self.weights[slot as usize] = weight;
        self.rows.kids[slot as usize].inverse = Weight::new(weight.into()).inverse().get();
        self.total = Weight::total(self.weights.iter().map(|&w| u64::from(w)).sum());
        self.join_group(slot);
        if queued {
            self.rows.link(slot);
        }
    }

    fn join_group(&mut self, slot: u32) {
        let longest = self.rows.kids[slot as usize].span(self.largest);
        self.rows.join_group(slot, longest);
    }

    #[inline]
    pub(crate) fn insert(&mut self, slot: u32, returning: bool) {
        let kid = &mut self.rows.kids[slot as usize];
        let floor = if returning { self.v.wrapping_sub(kid.span(self.largest)) } else { self.v };
        raise(&mut kid.start, floor);
        self.rows.link(slot);
    }

    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        self.rows.unlink(slot);
    }

    /// Charges a child and moves it to its new place. A child that is about to leave is charged by
    /// [`Grouped::charge_and_remove`] instead.
    #[inline]
    pub(crate) fn charge(&mut self, slot: u32, len: u64) {
        let mut kid = self.rows.kids[slot as usize];
        self.rows.leave(&kid);
        kid.start = kid.start.wrapping_add(kid.span(len));
        self.advance(self.v.wrapping_add(self.total.span(len)));
        self.rows.enter(slot, kid);
    }

    #[inline]
    pub(crate) fn charge_and_remove(&mut self, slot: u32, len: u64) {
        self.rows.unlink(slot);
        let kid = &mut self.rows.kids[slot as usize];
        kid.start = kid.start.wrapping_add(kid.span(len));
        self.advance(self.v.wrapping_add(self.total.span(len)));
    }

    #[inline]
    fn advance(&mut self, v: u64) {
        let before = core::mem::replace(&mut self.v, v);
        if passes_eighth(before, v) {
            self.raise_idle();
        }
    }

    /// Keeps children that have been idle for long within half the range of virtual time.
    #[cold]
    fn raise_idle(&mut self) {
        let (v, largest) = (self.v, self.largest);
        for kid in self.rows.idle() {
            let floor = v.wrapping_sub(kid.span(largest));
            raise(&mut kid.start, floor);
        }
    }

    /// The first child of the eligible group with the least finish; when none is eligible, V jumps to the first
    /// start.
    #[inline]
    pub(crate) fn pick(&mut self) -> Option<u32> {
        if self.rows.is_empty() {
            return None;
        }
        if let Some(group) = self.rows.only_group() {
            // With one group busy, its first child is the answer; V jumps to it when it has to.
            let start = self.rows.start_of(group);
            if earlier(self.v, start) {
                self.advance(start);
            }
            return Some(self.rows.first_of(group));
        }
        let first = self.rows.first_start();
        if earlier(self.v, first) {
            self.advance(first);
        }
        self.rows.best(self.v).map(|(_, group)| self.rows.first_of(group))
    }

    /// The children behind `slot` in the same row of equal starts, as far as there are any.
    #[inline]
    pub(crate) fn upcoming(&self, slot: u32) -> [Option<u32>; 3] {
        self.rows.upcoming(slot)
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        self.rows.prefetch(slot);
    }

    pub(crate) fn rank(&self, slot: u32) -> u64 {
        super::virtual_time::ahead(self.rows.kids[slot as usize].start, self.v)
    }
}

impl Kid {
    /// The virtual time that `len` bytes take at its weight.
    #[inline]
    fn span(&self, len: u64) -> u64 {
        Inverse::of(self.inverse).span(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children of equal weight, and one of twice as much, so that there are two groups.
    fn order() -> Grouped {
        let mut weights = [1; 20];
        weights[7] = 2;
        Grouped::new(&weights, 1_500)
    }

    #[test]
    fn who_was_idle_for_any_time_gets_its_share_at_once() {
        for (gibibytes, idle) in
            (0..800_000).step_by(50_000).flat_map(|gibibytes| [(gibibytes, 1), (gibibytes, 7)])
        {
            let mut order = order();
            order.insert(idle, false);
            assert_eq!(order.pick(), Some(idle));
            order.charge_and_remove(idle, 1_500);
            order.insert(0, false);
            for _ in 0..gibibytes {
                assert_eq!(order.pick(), Some(0));
                order.charge(0, 1 << 30);
            }
            order.insert(idle, false);
            let mut served = [0; 20];
            for _ in 0..40 {
                let slot = order.pick().expect("two are active");
                order.charge(slot, 1_500);
                served[slot as usize] += 1;
            }
            assert!(served[idle as usize] >= 18, "after {gibibytes} GiB: {served:?}");
        }
    }
}
