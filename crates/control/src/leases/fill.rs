//! Progressive filling: the rate that a source gives to each vertex, from what the leaves could use.
//!
//! Why: the shares that a policy means, whatever threads its packets are on.
//! From: max-min fairness in a tree; minima first, then priorities and weights (docs/decisions, 2).
//! Not here: what leaves could use (`coordinator`).
//! Invariant: siblings get no more than their parent; no vertex gets more than it could use. Cost grows with the vertices that
//! could use something, and nothing is allocated.
//!
//! The vertices above the leaves of a run have *slots*, siblings side by side and parents first, so that a run reads memory
//! from one end to the other. Slots are dealt anew only when a run has other leaves than the one before.

use super::tree::{NO_MAX, Tree, Vertex};

/// Fraction bits of a level: bits per second at weight 1.
const FRACTION: u32 = 16;

/// The room in which a source is divided, and the result.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    /// The leaves of the last run, in the caller's order, and what each could use.
    leaves: Vec<u32>,
    needs: Vec<u64>,
    /// The slot of each vertex; [`NONE`] for one that is above no leaf.
    slot_of: Vec<u32>,
    slots: Vec<Slot>,
    rates: Vec<Rates>,
    /// While slots are dealt: the first child of each vertex, and the next sibling of each.
    first: Vec<u32>,
    next: Vec<u32>,
    /// Children that could use more.
    open: Vec<Open>,
}

/// A vertex above a leaf, or a leaf.
#[derive(Clone, Copy, Debug)]
struct Slot {
    vertex: u32,
    /// The parent's slot.
    parent: u32,
    /// The slots of its children: those of a priority in the policy's order.
    children: (u32, u32),
    by_priority: bool,
    weight: u64,
    min: u64,
    max: u64,
}

/// What a run found for a slot. Bits per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    /// What it could use, its maximum considered.
    need: u64,
    found: u64,
    /// What it would get if it could use any amount, and nothing else changed.
    potential: u64,
    /// The vertex whose maximum holds it, itself or one above it; the root where none does.
    held_by: u32,
}

/// A child that could use more than the level gives it.
#[derive(Clone, Copy, Debug)]
struct Open {
    weight: u64,
    /// What it could use beyond its minimum.
    want: u64,
}

/// What is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The link, where minima and maxima hold.
    Link,
    /// A limit that cuts across the tree.
    Limit,
}

const NONE: u32 = u32::MAX;

impl Fill {
    /// Room for a tree of `vertices`.
    pub(super) fn new(vertices: usize) -> Self {
        Self {
            leaves: Vec::with_capacity(vertices),
            needs: Vec::with_capacity(vertices),
            slot_of: vec![NONE; vertices],
            slots: Vec::with_capacity(vertices),
            rates: Vec::with_capacity(vertices),
            first: vec![NONE; vertices],
            next: vec![NONE; vertices],
            open: Vec::with_capacity(vertices),
        }
    }

    /// The rate of a leaf of the last [`Fill::run`], in bits per second.
    pub(super) fn found(&self, leaf: u32) -> u64 {
        self.of(leaf).found
    }

    /// What the engine of a leaf's thread gives it by minima, whatever else waits there: its own, and of the vertices that have it
    /// alone below them.
    pub(super) fn promised(&self, leaf: u32) -> u64 {
        let mut at = self.slot_of[leaf as usize];
        let mut promised = self.slots[at as usize].min;
        while at > 0 {
            at = self.slots[at as usize].parent;
            let Slot { min, children: (from, to), .. } = self.slots[at as usize];
            if to - from > 1 {
                break;
            }
            promised = promised.max(min);
        }
        promised.min(self.found(leaf))
    }

    /// The rate that a leaf could have of this source if it could use any amount.
    pub(super) fn potential(&self, leaf: u32) -> u64 {
        self.of(leaf).potential
    }

    /// The vertex whose maximum holds a leaf back, itself or one above it; the root where only the link does.
    pub(super) fn held_by(&self, leaf: u32) -> u32 {
        self.of(leaf).held_by
    }

    fn of(&self, leaf: u32) -> Rates {
        self.rates[self.slot_of[leaf as usize] as usize]
    }

    /// Divides `capacity` among leaves, each with what it could use.
    pub(super) fn run(
        &mut self,
        tree: &Tree,
        source: Source,
        capacity: u64,
        leaves: impl Iterator<Item = (u32, u64)>,
    ) {
        self.take_leaves(tree, leaves);
        self.add_up(source);
        let Some(root) = self.rates.first_mut() else { return };
        (root.found, root.potential) = (capacity.min(root.need), capacity);
        for at in 0..self.slots.len() {
            let slot = self.slots[at];
            let Rates { need, found, held_by, .. } = self.rates[at];
            if is_less(found, need) || held_by == 0 {
                self.rates[at].held_by = self.rates[slot.parent as usize].held_by;
            }
            if slot.children.0 < slot.children.1 {
                self.divide(source, slot, at);
            }
        }
    }

    /// Takes what the leaves could use, and deals slots if these are not the leaves of the last run.
    fn take_leaves(&mut self, tree: &Tree, leaves: impl Iterator<Item = (u32, u64)>) {
        self.needs.clear();
        let mut are_known = true;
        for (leaf, need) in leaves {
            let at = self.needs.len();
            self.needs.push(need);
            if are_known && self.leaves.get(at) == Some(&leaf) {
                continue;
            }
            if are_known {
                are_known = false;
                self.forget();
                self.leaves.truncate(at);
            }
            self.leaves.push(leaf);
        }
        if !are_known || self.needs.len() < self.leaves.len() {
            if are_known {
                self.forget();
                self.leaves.truncate(self.needs.len());
            }
            self.deal(tree);
        }
        for (&leaf, &need) in self.leaves.iter().zip(&self.needs) {
            self.rates[self.slot_of[leaf as usize] as usize].need = need;
        }
    }

    fn forget(&mut self) {
        for slot in self.slots.drain(..) {
            self.slot_of[slot.vertex as usize] = NONE;
        }
        self.rates.clear();
    }

    /// Deals slots to the leaves and to all above them.
    fn deal(&mut self, tree: &Tree) {
        if self.leaves.is_empty() {
            return;
        }
        for &leaf in &self.leaves {
            for at in tree.path(leaf) {
                // Any number but `NONE` until the slot is known.
                if core::mem::replace(&mut self.slot_of[at as usize], 0) != NONE {
                    break;
                }
                let parent = tree.vertices[at as usize].parent as usize;
                if at > 0 {
                    self.next[at as usize] = core::mem::replace(&mut self.first[parent], at);
                }
            }
        }
        self.push(tree, 0, 0);
        let mut at = 0;
        while at < self.slots.len() {
            let from = self.slots.len();
            let mut child = core::mem::replace(&mut self.first[self.slots[at].vertex as usize], NONE);
            while child != NONE {
                self.push(tree, child, at as u32);
                child = core::mem::replace(&mut self.next[child as usize], NONE);
            }
            if self.slots[at].by_priority {
                let place = |slot: &Slot| tree.vertices[slot.vertex as usize].place;
                self.slots[from..].sort_unstable_by_key(place);
            } else {
                // As the caller's leaves are: they are usually in ascending order.
                self.slots[from..].reverse();
            }
            self.slots[at].children = (from as u32, self.slots.len() as u32);
            for (slot, child) in (from as u32..).zip(&self.slots[from..]) {
                self.slot_of[child.vertex as usize] = slot;
            }
            at += 1;
        }
    }

    fn push(&mut self, tree: &Tree, vertex: u32, parent: u32) {
        let Vertex { by_priority, weight, min, max, .. } = tree.vertices[vertex as usize];
        self.slot_of[vertex as usize] = self.slots.len() as u32;
        self.slots.push(Slot { vertex, parent, children: (0, 0), by_priority, weight, min, max });
        self.rates.push(Rates::default());
    }

    /// What each vertex could use: its children's sum, as far as its maximum allows.
    fn add_up(&mut self, source: Source) {
        for (slot, rates) in self.slots.iter().zip(&mut self.rates).rev() {
            rates.held_by = 0;
            if slot.children.0 < slot.children.1 {
                rates.need = 0;
            }
        }
        for at in (0..self.slots.len()).rev() {
            let Slot { vertex, parent, max, .. } = self.slots[at];
            let rates = &mut self.rates[at];
            if source == Source::Link && rates.need > max {
                (rates.need, rates.held_by) = (max, vertex);
            }
            if at > 0 {
                let need = rates.need;
                let above = &mut self.rates[parent as usize].need;
                *above = above.saturating_add(need);
            }
        }
    }

    /// Minima first, and what is left by priority or weight.
    fn divide(&mut self, source: Source, parent: Slot, at: usize) {
        let Rates { found: capacity, potential, .. } = self.rates[at];
        let range = parent.children.0 as usize..parent.children.1 as usize;
        let (slots, rates) = (&self.slots[range.clone()], &mut self.rates[range]);
        if let ([slot], [only]) = (slots, &mut *rates) {
            // Many classes have one member.
            only.found = capacity.min(only.need);
            only.potential = potential.min(most(slot, source)).max(only.found);
            return;
        }
        let mut promised = 0;
        for (slot, rates) in slots.iter().zip(rates.iter_mut()) {
            rates.found = if source == Source::Link { slot.min.min(rates.need) } else { 0 };
            promised += rates.found;
        }
        let (left, slack) = (capacity.saturating_sub(promised), potential - capacity);
        let short = (promised > capacity).then_some((capacity, promised));
        if parent.by_priority {
            by_priority(source, slots, rates, short, (left, slack));
        } else {
            by_weight(source, slots, rates, short, (left, slack), &mut self.open);
        }
    }
}

/// The most that a vertex may get of a source.
fn most(slot: &Slot, source: Source) -> u64 {
    if source == Source::Link { slot.max } else { NO_MAX }
}

/// What a child has by its minimum, where the minima may be more than there is: `(capacity, promised)`.
fn base_of(minimum: u64, short: Option<(u64, u64)>) -> u64 {
    short.map_or(minimum, |(capacity, promised)| scaled(minimum, capacity, promised))
}

fn by_priority(
    source: Source,
    slots: &[Slot],
    rates: &mut [Rates],
    short: Option<(u64, u64)>,
    (mut left, slack): (u64, u64),
) {
    for (slot, rates) in slots.iter().zip(rates) {
        let want = rates.need - rates.found;
        let base = base_of(rates.found, short);
        let given = want.min(left);
        rates.found = base + given;
        rates.potential = (base + left + slack).min(most(slot, source)).max(rates.found);
        left -= given;
    }
}

/// Raises the level until all is given, or no child could use more.
fn by_weight(
    source: Source,
    slots: &[Slot],
    rates: &mut [Rates],
    short: Option<(u64, u64)>,
    (left, slack): (u64, u64),
    open: &mut Vec<Open>,
) {
    let all: u64 = slots.iter().map(|slot| slot.weight).sum();
    let level = level(slots, rates, (left, all), open);
    // A child that needs no more than the level gives it has all that it needs.
    let fair = if open.is_empty() { level_of(left + slack, all) } else { level };
    for (slot, rates) in slots.iter().zip(rates) {
        let want = rates.need - rates.found;
        let base = base_of(rates.found, short);
        let by_level = at_level(level, slot.weight);
        rates.found = base + want.min(by_level);
        let by_fair = if open.is_empty() { at_level(fair, slot.weight) } else { by_level };
        let potential = (rates.found + slack).max(base + by_fair);
        rates.potential = potential.min(most(slot, source)).max(rates.found);
    }
}

/// The level at which `left` is given, or at which no child could use more. Children that could are left in `open`.
fn level(slots: &[Slot], rates: &[Rates], (left, all): (u64, u64), open: &mut Vec<Open>) -> u64 {
    let (mut rest, mut weight) = (left, all);
    let mut level = level_of(rest, weight);
    open.clear();
    for (slot, rates) in slots.iter().zip(rates) {
        let (weight_of, want) = (slot.weight, rates.need - rates.found);
        if want <= at_level(level, weight_of) {
            (rest, weight) = (rest.saturating_sub(want), weight - weight_of);
        } else {
            open.push(Open { weight: weight_of, want });
        }
    }
    let mut before = slots.len();
    while open.len() < before && !open.is_empty() {
        before = open.len();
        level = level_of(rest, weight);
        open.retain(|open| {
            let is_open = open.want > at_level(level, open.weight);
            if !is_open {
                (rest, weight) = (rest.saturating_sub(open.want), weight - open.weight);
            }
            is_open
        });
    }
    level
}

/// Whether a rate is less than another, by more than rounding.
pub(super) fn is_less(rate: u64, than: u64) -> bool {
    rate < than - than / 1_024
}

/// Up to 2^48, which no link has; what is beyond counts as that.
fn level_of(rest: u64, weight: u64) -> u64 {
    (rest.min(u64::MAX >> FRACTION) << FRACTION) / weight.max(1)
}

/// What a weight gets at a level, rounded down, so that children never get more than there is.
fn at_level(level: u64, weight: u64) -> u64 {
    u64::try_from((u128::from(level) * u128::from(weight)) >> FRACTION).unwrap_or(u64::MAX)
}

/// `value * part / whole`, rounded down.
pub(super) fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(value) * u128::from(part) / u128::from(whole)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
