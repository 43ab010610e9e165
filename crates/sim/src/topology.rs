//! Nodes, links and the routes through them.
//!
//! Why: a scenario names machines; packets need the next link.
//! From: shortest paths by the number of links; all of them are used (equal-cost multipath, RFC 2991).
//! Not here: reading a scenario's links (`scenario`), which of several equal ways a packet takes (`balance`).
//! Invariant: routes are found once, and are the same in every run; each way towards a node has the fewest links.

use std::collections::{BTreeMap, VecDeque};

use crate::link::LinkSpec;

/// The graph of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Topology {
    /// Names of hosts, switches and places beyond the uplinks.
    pub(crate) nodes: Vec<String>,
    /// Links in one direction.
    pub(crate) links: Vec<Edge>,
}

/// A link in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Edge {
    pub(crate) name: String,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) spec: LinkSpec,
}

/// The next links from each node towards each other one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Routes {
    nodes: usize,
    /// At index `from * nodes + to`: a link, [`NO_LINK`], or [`SET`] and the number of a set of links.
    next: Vec<u32>,
    /// Sets of links that are equally good, in the order of the file.
    sets: Vec<Box<[u32]>>,
}

impl Topology {
    pub(crate) fn node(&self, name: &str) -> Option<u32> {
        (0..).zip(&self.nodes).find(|(_, node)| *node == name).map(|(index, _)| index)
    }

    /// The ways from each node to each other one.
    pub(crate) fn routes(&self) -> Routes {
        let count = self.nodes.len();
        let (mut into, mut out): (Vec<Vec<u32>>, Vec<Vec<u32>>) =
            (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (index, edge) in (0..).zip(&self.links).filter(|(_, edge)| edge.from != edge.to) {
            into[edge.to as usize].push(index);
            out[edge.from as usize].push(index);
        }
        let mut routes = Routes { nodes: count, next: vec![NO_LINK; count * count], sets: Vec::new() };
        let mut known = BTreeMap::new();
        for to in 0..count {
            let links_to = self.links_to(to, &into);
            for from in (0..count).filter(|&from| from != to && links_to[from] != FAR) {
                let nearer = |link: &&u32| {
                    let next = links_to[self.links[**link as usize].to as usize];
                    next != FAR && next + 1 == links_to[from]
                };
                let ways: Vec<u32> = out[from].iter().filter(nearer).copied().collect();
                routes.next[from * count + to] = match *ways.as_slice() {
                    [only] => only,
                    _ => *known.entry(ways).or_insert_with_key(|ways| routes.set(ways)),
                };
            }
        }
        routes
    }

    /// The number of links on the shortest way from each node to `to`.
    fn links_to(&self, to: usize, into: &[Vec<u32>]) -> Vec<u32> {
        let mut links_to = vec![FAR; into.len()];
        links_to[to] = 0;
        let mut open = VecDeque::from([to]);
        while let Some(near) = open.pop_front() {
            for &link in &into[near] {
                let far = self.links[link as usize].from as usize;
                if links_to[far] == FAR {
                    links_to[far] = links_to[near] + 1;
                    open.push_back(far);
                }
            }
        }
        links_to
    }

    /// The links that leave a node.
    pub(crate) fn out_of(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.links).filter(move |(_, edge)| edge.from == node).map(|(index, _)| index)
    }
}

impl Routes {
    /// The links by which a packet may go on from one node towards another: none without a way, several if ways are equal.
    #[inline]
    pub(crate) fn ways(&self, from: u32, to: u32) -> &[u32] {
        let next = &self.next[from as usize * self.nodes + to as usize];
        match *next {
            NO_LINK => &[],
            next if next & SET != 0 => &self.sets[(next & !SET) as usize],
            _ => core::slice::from_ref(next),
        }
    }

    /// Keeps a set of equal ways; returns its entry of `next`.
    fn set(&mut self, ways: &[u32]) -> u32 {
        self.sets.push(ways.into());
        SET | (self.sets.len() as u32 - 1)
    }
}

/// The number of links to a node from where there is no way.
const FAR: u32 = u32::MAX;
/// The entry of [`Routes::next`] where there is no way.
const NO_LINK: u32 = u32::MAX;
/// Set in an entry of [`Routes::next`] that is the number of a set of links.
const SET: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Overhead;
    use plimsoll_units::Span;

    fn topology(nodes: &[&str], links: &[(u32, u32)]) -> Topology {
        let spec = LinkSpec::free(Span::ZERO, Overhead::Frame(0));
        let edge = |&(from, to): &(u32, u32)| Edge { name: String::new(), from, to, spec: spec.clone() };
        Topology {
            nodes: nodes.iter().map(|&name| name.to_owned()).collect(),
            links: links.iter().map(edge).collect(),
        }
    }

    /// `a` reaches `d` by `b`, by `c`, and by a longer way; two links lead from `c` to `d`.
    #[test]
    fn ways_of_the_fewest_links_are_equal_and_longer_ones_are_not_used() {
        let links = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3), (0, 4), (4, 2), (0, 0)];
        let routes = topology(&["a", "b", "c", "d", "e"], &links).routes();
        assert_eq!(routes.ways(0, 3), [0, 1]);
        assert_eq!(routes.ways(0, 2), [1]);
        assert_eq!(routes.ways(2, 3), [3, 4]);
        assert_eq!(routes.ways(4, 3), [6]);
        assert!(routes.ways(3, 0).is_empty() && routes.ways(0, 0).is_empty());
    }
}
