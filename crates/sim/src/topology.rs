//! Nodes, links and the routes through them.
//!
//! Why: a scenario names machines; packets need the next link.
//! From: the fewest links win, and among equals those that the file names first.
//! Not here: reading a scenario's links (`scenario`), packets (`world`).
//! Invariant: a route is found once, and is the same in every run.

use std::collections::VecDeque;

use crate::link::LinkSpec;
use crate::world::NO_LINK;

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

impl Topology {
    pub(crate) fn node(&self, name: &str) -> Option<u32> {
        (0..).zip(&self.nodes).find(|(_, node)| *node == name).map(|(index, _)| index)
    }

    /// The first link on the route from each node to each other one, at index `from * nodes + to`.
    pub(crate) fn routes(&self) -> Vec<u32> {
        let count = self.nodes.len();
        let mut into: Vec<Vec<(u32, u32)>> = vec![Vec::new(); count];
        for (index, edge) in (0..).zip(&self.links) {
            into[edge.to as usize].push((index, edge.from));
        }
        let mut routes = vec![NO_LINK; count * count];
        for to in 0..count {
            let mut open = VecDeque::from([to]);
            while let Some(near) = open.pop_front() {
                for &(link, far) in &into[near] {
                    let route = &mut routes[far as usize * count + to];
                    if far as usize != to && *route == NO_LINK {
                        *route = link;
                        open.push_back(far as usize);
                    }
                }
            }
        }
        routes
    }

    /// The links that leave a node.
    pub(crate) fn out_of(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.links).filter(move |(_, edge)| edge.from == node).map(|(index, _)| index)
    }
}
