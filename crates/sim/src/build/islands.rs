//! Islands: groups of hosts between which nothing travels, and which share no workload.
//!
//! Why: with many hosts a processor waits for memory more than it works. Islands cannot tell in which order they run, so
//! each may run for a while with its state in the processor's caches.
//! From: union and find; conservative parallel simulation (Chandy and Misra, 1979), with no link between the parts at all.
//! Not here: whose turn it is (`world`).
//! Invariant: whatever an event of an island reads or sets belongs to the island; where that is not certain there is one.

use plimsoll_scenario::{Kind, LoadBalancing};

use super::Builder;
use crate::world::World;

/// Hosts and switches that an island has at least, as far as there are others: enough work for a turn, and few enough for a
/// cache.
const NODES: usize = 16;

/// The islands of a world.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Islands {
    /// By node: its island.
    of: Vec<usize>,
    pub(super) count: usize,
}

impl Builder<'_> {
    /// The islands of the finished world; one if packets or samples are written in one order (`watched`), or if anything concerns several hosts that no flow or link connects.
    pub(super) fn islands(&self, watched: bool) -> Islands {
        let world = &self.world;
        let nodes = world.nodes.len();
        let scheduled = !self.scenario.timeline.is_empty() || !world.faults.steps.is_empty();
        let told = world.control.is_some() || world.pressed;
        // Flows that arrive take sockets, and sprayed packets random numbers, from one supply.
        let arrives = self.scenario.workloads.iter().any(|one| matches!(one.kind, Kind::Flows { .. }));
        let sprayed =
            self.system.load_balancing.unwrap_or(self.scenario.load_balancing) == LoadBalancing::Spray;
        if watched || scheduled || told || arrives || sprayed {
            return Islands { of: vec![0; nodes], count: 1 };
        }
        let links = self.topology.links.iter().map(|edge| (edge.from, edge.to));
        Islands::new(nodes, links.chain(meetings(world)))
    }
}

impl Islands {
    /// The islands of this number of nodes, where those of each pair belong together.
    fn new(nodes: usize, pairs: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut groups = Groups((0..nodes).collect());
        pairs.for_each(|(one, other)| groups.join(one as usize, other as usize));
        let roots: Vec<usize> = (0..nodes).map(|node| groups.root(node)).collect();
        let mut sizes = vec![0; nodes];
        roots.iter().for_each(|&root| sizes[root] += 1);
        let (mut island, mut held, mut of_root) = (0, 0, vec![None; nodes]);
        for &root in &roots {
            if of_root[root].is_none() {
                (island, held) = if held >= NODES { (island + 1, 0) } else { (island, held) };
                held += sizes[root];
                of_root[root] = Some(island);
            }
        }
        Self { of: roots.iter().filter_map(|&root| of_root[root]).collect(), count: island + 1 }
    }

    /// The island of a workload; the first for one without flows.
    pub(super) fn of_workload(&self, world: &World, index: usize) -> usize {
        let first = world.workloads[index].1 as usize;
        let flow = world.flows.get(first).filter(|flow| flow.workload as usize == index);
        flow.map_or(0, |flow| self.of[flow.ends[0].node as usize])
    }
}

/// Nodes that have a workload in common: each with the node at which its first flow begins.
fn meetings(world: &World) -> impl Iterator<Item = (u32, u32)> {
    world.flows.iter().flat_map(|flow| {
        let first = world.workloads[flow.workload as usize].1;
        let home = world.flows[first as usize].ends[0].node;
        flow.legs().flat_map(move |(from, to)| [(home, from.node), (home, to.node)])
    })
}

/// Sets of nodes, as trees of their numbers.
struct Groups(Vec<usize>);

impl Groups {
    fn root(&mut self, mut node: usize) -> usize {
        while self.0[node] != node {
            self.0[node] = self.0[self.0[node]];
            node = self.0[node];
        }
        node
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one.max(other)] = one.min(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_connected_is_together_and_small_groups_share_an_island() {
        // 20 pairs: eight of them have 16 nodes.
        let pairs = Islands::new(40, (0..20).map(|pair| (2 * pair, 2 * pair + 1)));
        assert_eq!(pairs.count, 3);
        assert_eq!((pairs.of[15], pairs.of[16], pairs.of[39]), (0, 1, 2));
        assert_eq!(Islands::new(40, (0..39).map(|node| (node + 1, node))).count, 1);
        // The last node belongs to the first.
        let ring = Islands::new(40, [(39, 0)].into_iter());
        assert_eq!((ring.of[39], ring.of[38], ring.count), (0, 2, 3));
    }
}
