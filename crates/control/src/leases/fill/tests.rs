//! The filling in slots beside a plain one, which goes down the tree and allocates as it likes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What the plain filling finds for a vertex: its rate, its potential, and what holds it.
type Found = BTreeMap<u32, (u64, u64, u32)>;

/// One division, as the definition says it.
struct Plain<'a> {
    tree: &'a Tree,
    source: Source,
    leaves: &'a BTreeMap<u32, u64>,
    marked: BTreeSet<u32>,
    found: Found,
}

impl Plain<'_> {
    fn run(tree: &Tree, source: Source, capacity: u64, leaves: &BTreeMap<u32, u64>) -> Found {
        let marked = leaves.keys().flat_map(|&leaf| tree.path(leaf)).collect();
        let mut plain = Plain { tree, source, leaves, marked, found: Found::new() };
        if !leaves.is_empty() {
            plain.give(0, (capacity.min(plain.need(0)), capacity), 0);
        }
        plain.found
    }

    fn children(&self, vertex: u32) -> Vec<u32> {
        let is_child = |&at: &u32| at > 0 && self.tree.vertices[at as usize].parent == vertex;
        let mut children: Vec<u32> = self.marked.iter().copied().filter(is_child).collect();
        children.sort_by_key(|&child| self.tree.vertices[child as usize].place);
        children
    }

    fn max(&self, vertex: u32) -> u64 {
        if self.source == Source::Link { self.tree.vertices[vertex as usize].max } else { NO_MAX }
    }

    fn could_use(&self, vertex: u32) -> u64 {
        let below = || self.children(vertex).iter().map(|&child| self.need(child)).sum();
        self.leaves.get(&vertex).copied().unwrap_or_else(below)
    }

    fn need(&self, vertex: u32) -> u64 {
        self.could_use(vertex).min(self.max(vertex))
    }

    /// Gives a vertex its rate, and divides it among its children.
    fn give(&mut self, vertex: u32, (found, potential): (u64, u64), above: u32) {
        let is_capped = self.could_use(vertex) > self.max(vertex) && !is_less(found, self.need(vertex));
        let held_by = if is_capped { vertex } else { above };
        self.found.insert(vertex, (found, potential, held_by));
        let children = self.children(vertex);
        for (&child, (rate, potential)) in children.iter().zip(self.divide(vertex, &children)) {
            let potential = potential.min(self.max(child)).max(rate);
            self.give(child, (rate, potential), held_by);
        }
    }

    /// The children's rates and potentials.
    fn divide(&self, parent: u32, children: &[u32]) -> Vec<(u64, u64)> {
        let (capacity, potential, _) = self.found[&parent];
        if let [only] = *children {
            return vec![(capacity.min(self.need(only)), potential)];
        }
        let vertex = |child: &u32| self.tree.vertices[*child as usize];
        let min = |child: &u32| if self.source == Source::Link { vertex(child).min } else { 0 };
        let minima: Vec<u64> = children.iter().map(|child| min(child).min(self.need(*child))).collect();
        let wants: Vec<u64> =
            children.iter().zip(&minima).map(|(child, min)| self.need(*child) - min).collect();
        let promised: u64 = minima.iter().sum();
        let base = |min: u64| if promised > capacity { scaled(min, capacity, promised) } else { min };
        let bases = minima.into_iter().map(base);
        let (mut left, slack) = (capacity.saturating_sub(promised), potential - capacity);
        if vertex(&parent).by_priority {
            let give = |(base, &want): (u64, &u64)| {
                let (given, before) = (want.min(left), left);
                left -= given;
                (base + given, base + before + slack)
            };
            return bases.zip(&wants).map(give).collect();
        }
        let weights: Vec<u64> = children.iter().map(|child| vertex(child).weight).collect();
        let (level, are_settled) = water_level(left, &weights, &wants);
        let fair = if are_settled { level_of(left + slack, weights.iter().sum()) } else { level };
        let give = |((base, &want), &weight): ((u64, &u64), &u64)| {
            let rate = base + want.min(at_level(level, weight));
            (rate, (rate + slack).max(base + at_level(fair, weight)))
        };
        bases.zip(&wants).zip(&weights).map(give).collect()
    }
}

/// The level at which `left` is given, and whether no child could use more.
fn water_level(left: u64, weights: &[u64], wants: &[u64]) -> (u64, bool) {
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut rest = left;
    loop {
        let level = level_of(rest, open.iter().map(|&at| weights[at]).sum());
        let (more, settled): (Vec<_>, Vec<_>) =
            open.iter().partition(|&&at| wants[at] > at_level(level, weights[at]));
        if settled.is_empty() || more.is_empty() {
            return (level, more.is_empty());
        }
        rest = settled.iter().fold(rest, |rest, &at| rest.saturating_sub(wants[at]));
        open = more;
    }
}

/// A tree of up to 40 vertices, in which each may be a leaf that has no children.
fn trees() -> impl Strategy<Value = Tree> {
    let rate = || prop_oneof![2 => Just(0), 1 => 1_u64..20, 3 => 1_000_u64..20_000_000_000];
    let vertex = (any::<prop::sample::Index>(), any::<bool>(), 1_u64..9, rate(), rate());
    prop::collection::vec(vertex, 1..40).prop_map(|drawn| {
        let vertices = drawn.into_iter().enumerate().map(|(at, (parent, by_priority, weight, min, max))| {
            let parent = if at == 0 { 0 } else { parent.index(at) as u32 };
            let max = if max == 0 { NO_MAX } else { max };
            Vertex { parent, place: at as u32 * 7 % 41, by_priority, weight, min: min.min(max), max }
        });
        let vertices: Vec<Vertex> = vertices.collect();
        Tree { nodes: vertices.len(), vertices }
    })
}

/// A source (the link, or a limit), its capacity, and what the leaves could use that take part.
type Run = (bool, u64, Vec<(bool, u64)>);

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let need = prop_oneof![1 => 1_u64..9, 4 => 1_000_u64..20_000_000_000];
    let needs = prop::collection::vec((prop::bool::weighted(0.8), need), 40);
    prop::collection::vec((any::<bool>(), 1_u64..40_000_000_000, needs), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Whatever the tree, the leaves and the runs before: each run gives what the plain filling gives, to the bit.
    #[test]
    fn slots_give_what_the_plain_filling_gives(tree in trees(), runs in runs(), again in any::<bool>()) {
        let mut fill = Fill::new(tree.vertices.len());
        let has_child = |at: u32| tree.vertices[1..].iter().any(|vertex| vertex.parent == at);
        for (by_link, capacity, needs) in &runs {
            // The leaves of the run before, in half of the cases: their slots are kept.
            let chosen = if again { &runs[0].2 } else { needs };
            let leaves: BTreeMap<u32, u64> = (0..tree.vertices.len() as u32)
                .filter(|&at| !has_child(at) && chosen[at as usize].0)
                .map(|at| (at, needs[at as usize].1))
                .collect();
            let source = if *by_link { Source::Link } else { Source::Limit };
            let wanted = Plain::run(&tree, source, *capacity, &leaves);
            fill.run(&tree, source, *capacity, leaves.iter().map(|(&leaf, &need)| (leaf, need)));
            for leaf in leaves.keys() {
                let found = (fill.found(*leaf), fill.potential(*leaf), fill.held_by(*leaf));
                prop_assert_eq!(found, wanted[leaf], "leaf {} of {:?}", leaf, &tree.vertices);
            }
        }
    }
}

/// A class with one member is that member's leaf, and a second member changes nothing for the first but its share.
#[test]
fn leaves_that_come_and_go_get_slots() {
    let vertex =
        |parent, weight| Vertex { parent, place: 0, by_priority: false, weight, min: 0, max: NO_MAX };
    let tree = Tree {
        nodes: 3,
        vertices: vec![vertex(0, 1), vertex(0, 1), vertex(0, 3), vertex(1, 1), vertex(1, 1)],
    };
    let mut fill = Fill::new(5);
    let mut rates = |leaves: &[u32]| -> Vec<u64> {
        fill.run(&tree, Source::Link, 1_000, leaves.iter().map(|&leaf| (leaf, 5_000)));
        leaves.iter().map(|&leaf| fill.found(leaf)).collect()
    };
    assert_eq!(rates(&[1, 2]), [250, 750]);
    assert_eq!(rates(&[3, 2, 4]), [125, 750, 125]);
    assert_eq!(rates(&[2]), [1_000]);
    assert_eq!(rates(&[]), [0; 0]);
    assert_eq!(rates(&[2, 1]), [750, 250]);
}
