//! Progressive filling: the rate that a source gives to each vertex, from what the leaves could use.
//!
//! Why: the shares that a policy means, whatever threads its packets are on.
//! From: max-min fairness in a tree; minima first, then priorities and weights (docs/decisions, 2).
//! Not here: what leaves could use (`coordinator`).
//! Invariant: siblings get no more than their parent; no vertex gets more than it could use. Cost grows with the vertices that
//! could use something, and nothing is allocated.

use plimsoll_queues::Bits;

use super::tree::{Tree, Vertex};

/// Fraction bits of a level: bits per second at weight 1.
const FRACTION: u32 = 16;

/// The room in which a source is divided, and the result.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    /// Bits per second that a vertex could use, its maximum considered.
    need: Vec<u64>,
    found: Vec<u64>,
    /// Bits per second that a vertex would get if it could use any amount, and nothing else changed.
    potential: Vec<u64>,
    /// The vertex whose maximum holds a vertex, itself or one above it; the root where none does.
    held_by: Vec<u32>,
    marked: Bits,
    /// Marked vertices, parents first.
    order: Vec<u32>,
    /// The first marked child of each vertex, and the next sibling of each, by index.
    first: Vec<u32>,
    next: Vec<u32>,
    /// Children that could use more.
    open: Vec<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// The vertex; before it, at a priority, its place.
    place: u32,
    vertex: u32,
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
            need: vec![0; vertices],
            found: vec![0; vertices],
            potential: vec![0; vertices],
            held_by: vec![0; vertices],
            marked: Bits::new(vertices),
            order: Vec::with_capacity(vertices),
            first: vec![NONE; vertices],
            next: vec![NONE; vertices],
            open: Vec::with_capacity(vertices),
        }
    }

    /// The rate of a vertex, in bits per second, after [`Fill::run`].
    pub(super) fn found(&self, vertex: u32) -> u64 {
        self.found[vertex as usize]
    }

    /// The rate that a vertex could have of this source if it could use any amount.
    pub(super) fn potential(&self, vertex: u32) -> u64 {
        self.potential[vertex as usize]
    }

    /// The vertex whose maximum holds a vertex back, itself or one above it; the root where only the link does.
    pub(super) fn held_by(&self, vertex: u32) -> u32 {
        self.held_by[vertex as usize]
    }

    /// Divides `capacity` among leaves, each with what it could use.
    pub(super) fn run(
        &mut self,
        tree: &Tree,
        source: Source,
        capacity: u64,
        leaves: impl Iterator<Item = (u32, u64)>,
    ) {
        self.forget();
        for (leaf, need) in leaves {
            self.need[leaf as usize] = need;
            for at in tree.path(leaf) {
                if self.marked.contains(at as usize) {
                    break;
                }
                self.marked.insert(at as usize);
            }
        }
        let mut at = 0;
        while let Some(vertex) = self.marked.next(at) {
            self.order.push(vertex as u32);
            at = vertex + 1;
        }
        self.add_up(tree, source);
        if let Some(&root) = self.order.first() {
            self.found[root as usize] = capacity.min(self.need[root as usize]);
            self.potential[root as usize] = capacity;
        }
        for index in 0..self.order.len() {
            let vertex = self.order[index];
            if is_less(self.found[vertex as usize], self.need[vertex as usize])
                || self.held_by[vertex as usize] == 0
            {
                let parent = tree.vertices[vertex as usize].parent;
                self.held_by[vertex as usize] = self.held_by[parent as usize];
            }
            if self.first[vertex as usize] != NONE {
                self.divide(tree, source, vertex);
            }
        }
    }

    fn forget(&mut self) {
        for &vertex in &self.order {
            let vertex = vertex as usize;
            self.marked.remove(vertex);
            (self.need[vertex], self.found[vertex], self.potential[vertex]) = (0, 0, 0);
            (self.first[vertex], self.next[vertex]) = (NONE, NONE);
        }
        self.order.clear();
    }

    /// What each vertex could use: its children's sum, as far as its maximum allows.
    fn add_up(&mut self, tree: &Tree, source: Source) {
        for &vertex in self.order.iter().rev() {
            let Vertex { parent, max, .. } = tree.vertices[vertex as usize];
            let need = &mut self.need[vertex as usize];
            let capped = source == Source::Link && *need > max;
            if capped {
                *need = max;
            }
            self.held_by[vertex as usize] = if capped { vertex } else { 0 };
            if vertex > 0 {
                let need = *need;
                self.need[parent as usize] = self.need[parent as usize].saturating_add(need);
                self.next[vertex as usize] = self.first[parent as usize];
                self.first[parent as usize] = vertex;
            }
        }
    }

    /// Minima first, and what is left by priority or weight.
    fn divide(&mut self, tree: &Tree, source: Source, parent: u32) {
        let (capacity, potential) = (self.found[parent as usize], self.potential[parent as usize]);
        let mut child = self.first[parent as usize];
        if self.next[child as usize] == NONE {
            // Most classes have one member.
            self.found[child as usize] = capacity.min(self.need[child as usize]);
            self.potential[child as usize] = potential;
            return self.cap(tree, source, parent);
        }
        self.open.clear();
        let mut promised = 0;
        while child != NONE {
            let Vertex { place, weight, min, .. } = tree.vertices[child as usize];
            let need = self.need[child as usize];
            let base = if source == Source::Link { min.min(need) } else { 0 };
            self.found[child as usize] = base;
            promised += base;
            self.open.push(Open { place, vertex: child, weight, want: need - base });
            child = self.next[child as usize];
        }
        if promised > capacity {
            for open in &self.open {
                let base = &mut self.found[open.vertex as usize];
                *base = scaled(*base, capacity, promised);
            }
        }
        let left = capacity.saturating_sub(promised);
        let slack = potential - capacity;
        if tree.vertices[parent as usize].by_priority {
            self.by_priority(left, slack);
        } else {
            self.by_weight(left, slack);
        }
        self.cap(tree, source, parent);
    }

    fn by_priority(&mut self, mut left: u64, slack: u64) {
        self.open.sort_unstable_by_key(|open| open.place);
        for open in &self.open {
            let found = &mut self.found[open.vertex as usize];
            self.potential[open.vertex as usize] = *found + left + slack;
            let given = open.want.min(left);
            *found += given;
            left -= given;
        }
    }

    /// Raises the level until all is given, or no child could use more.
    fn by_weight(&mut self, left: u64, slack: u64) {
        let all: u64 = self.open.iter().map(|open| open.weight).sum();
        let (mut rest, mut weight, mut from) = (left, all, 0);
        let mut level = level_of(rest, weight);
        loop {
            let before = from;
            for at in before..self.open.len() {
                if self.open[at].want <= at_level(level, self.open[at].weight) {
                    self.open.swap(at, from);
                    (rest, weight) =
                        (rest.saturating_sub(self.open[from].want), weight - self.open[from].weight);
                    from += 1;
                }
            }
            if from == before || from == self.open.len() {
                break;
            }
            level = level_of(rest, weight);
        }
        let fair = level_of(left + slack, all);
        for (index, open) in self.open.iter().enumerate() {
            let found = &mut self.found[open.vertex as usize];
            let base = *found;
            *found += if index < from { open.want } else { at_level(level, open.weight) };
            let level = if from == self.open.len() { fair } else { level };
            self.potential[open.vertex as usize] = (*found + slack).max(base + at_level(level, open.weight));
        }
    }

    fn cap(&mut self, tree: &Tree, source: Source, parent: u32) {
        let mut child = self.first[parent as usize];
        while child != NONE {
            let max = if source == Source::Link { tree.vertices[child as usize].max } else { u64::MAX };
            let potential = &mut self.potential[child as usize];
            *potential = (*potential).min(max).max(self.found[child as usize]);
            child = self.next[child as usize];
        }
    }
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
