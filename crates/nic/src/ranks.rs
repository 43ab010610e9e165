//! Rank programs: the state of each node that has one, and what it is told of a packet.
//!
//! Why: an operator's own order needs no code in the engine but its program.
//! From: Loom §4.1 (a node's enqueue function gives a packet its rank, and its dequeue function updates the node's state).
//! Not here: the language (`plimsoll_rank`), where a packet's rank is kept (`host`), the queue that it orders (`order::ranked`).
//! Invariant: each packet below such a node is ranked once, on arrival, and again only if a reload changes the program above it.

use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Program};
use plimsoll_rank::{Field, Interpreter, Packet};
use plimsoll_units::{BitRate, Nanos};

use crate::ids::Table;

/// The rank programs of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks {
    nodes: Vec<Ranking>,
    /// For each node, where it lies below a program; empty in a policy without any.
    places: Table<NodeId, Option<Below>>,
}

/// A node with a program.
#[derive(Clone, Debug)]
struct Ranking {
    node: NodeId,
    run: Interpreter,
    children: Vec<Child>,
}

/// A child of a node with a program.
#[derive(Clone, Debug)]
struct Child {
    node: NodeId,
    /// The limit from which it has its rate.
    limit: Option<LimitId>,
    /// What the program reads of the class.
    record: Packet,
}

/// A class's place below a node with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Below {
    ranking: usize,
    child: usize,
    /// Slack of packets that bring none, in nanoseconds.
    slack: u64,
}

/// A packet, as far as programs see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) len: u32,
    /// Its own slack in microseconds; 0 for the class's.
    pub(crate) slack: u32,
    /// When its doorbell came.
    pub(crate) arrived: u64,
    /// Bytes of its flow queue, without those before it that came with it.
    pub(crate) remaining: u64,
    /// Its rank, once it has one.
    pub(crate) rank: u64,
}

impl Ranks {
    pub(crate) fn new(program: &Program) -> Self {
        let ids = (0..).map(NodeId).zip(&program.nodes);
        let ranked =
            ids.filter_map(
                |(id, node)| if let NodeKind::Program(rank) = node.kind { Some((id, rank)) } else { None },
            );
        let nodes: Vec<Ranking> = ranked
            .map(|(node, rank)| {
                let children = children_of(program, node);
                let code = program.ranks[rank.0 as usize].code.clone();
                Ranking { node, run: Interpreter::new(code, children.len() as u64), children }
            })
            .collect();
        if nodes.is_empty() {
            return Self::default();
        }
        let mut ranks = Self { nodes, places: vec![None; program.nodes.len()].into() };
        let places = (0..program.nodes.len()).map(|id| ranks.find(program, NodeId(id as u32)));
        ranks.places = places.collect::<Vec<_>>().into();
        ranks
    }

    fn find(&self, program: &Program, class: NodeId) -> Option<Below> {
        let NodeKind::Class(order) = program.node(class).kind else { return None };
        let slack = if let FlowOrder::Ranked(slack) = order { slack.as_u64() } else { 0 };
        let path: Vec<NodeId> = program.path(class).collect();
        path.windows(2).find_map(|pair| {
            let ranking = self.nodes.iter().position(|ranking| ranking.node == pair[1])?;
            let child = self.nodes[ranking].children.iter().position(|child| child.node == pair[0])?;
            Some(Below { ranking, child, slack })
        })
    }

    /// Whether the policy has no programs.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Where a class lies below a program, if it does.
    #[inline]
    pub(crate) fn above(&self, class: NodeId) -> Option<Below> {
        self.places.get(class).copied().flatten()
    }

    /// The rank of a packet that arrives.
    pub(crate) fn enqueue(&mut self, below: Below, packet: Seen, now: Nanos) -> u64 {
        let ranking = &mut self.nodes[below.ranking];
        ranking.run.enqueue(&ranking.children[below.child].with(packet, below.slack, now))
    }

    /// A packet has left.
    pub(crate) fn dequeue(&mut self, below: Below, packet: Seen, now: Nanos) {
        let ranking = &mut self.nodes[below.ranking];
        ranking.run.dequeue(&ranking.children[below.child].with(packet, below.slack, now));
    }

    /// A node has another weight.
    pub(crate) fn set_weight(&mut self, node: NodeId, weight: u32) {
        for ranking in &mut self.nodes {
            let Some(at) = ranking.children.iter().position(|child| child.node == node) else { continue };
            ranking.children[at].set(Field::Weight, weight.into());
            total(&mut ranking.children);
        }
    }

    /// A limit has another rate.
    pub(crate) fn set_rate(&mut self, limit: LimitId, rate: BitRate) {
        let children = self.nodes.iter_mut().flat_map(|ranking| &mut ranking.children);
        for child in children.filter(|child| child.limit == Some(limit)) {
            child.set(Field::Rate, rate.get());
        }
    }

    /// Takes over the state of nodes that have the same name, program and children in both policies. Returns for each node whether it did.
    pub(crate) fn inherit(&mut self, old: &Self, (program, before): (&Program, &Program)) -> Vec<bool> {
        let names = |program: &Program, ranking: &Ranking| -> Vec<String> {
            let children = ranking.children.iter().map(|child| child.node);
            core::iter::once(ranking.node).chain(children).map(|id| program.node(id).name.clone()).collect()
        };
        let inherit = |ranking: &mut Ranking| {
            let mut same = old.nodes.iter().filter(|old| old.run.runs_as(&ranking.run));
            let found = same.find(|old| names(before, old) == names(program, ranking));
            ranking.run = found?.run.clone();
            Some(())
        };
        self.nodes.iter_mut().map(|ranking| inherit(ranking).is_some()).collect()
    }

    /// Whether packets keep their ranks that move from a class `before` to `class`: below the same program, whose state was `kept`.
    pub(crate) fn keeps(
        &self,
        class: NodeId,
        (old, before): (&Self, NodeId),
        names: (&Program, &Program),
        kept: &[bool],
    ) -> bool {
        let (Some(here), Some(there)) = (self.above(class), old.above(before)) else { return false };
        let (node, then) = (self.nodes[here.ranking].node, old.nodes[there.ranking].node);
        kept[here.ranking] && here.child == there.child && names.0.node(node).name == names.1.node(then).name
    }

    /// Bytes that the programs of a policy take.
    pub(crate) fn bytes(&self) -> usize {
        let of = |ranking: &Ranking| {
            size_of::<Ranking>() + ranking.children.len() * size_of::<Child>() + ranking.run.bytes()
        };
        self.nodes.iter().map(of).sum::<usize>() + self.places.len() * size_of::<Option<Below>>()
    }
}

impl Child {
    fn set(&mut self, field: Field, value: u64) {
        self.record = core::mem::take(&mut self.record).with(field, value);
    }

    fn with(&self, packet: Seen, slack: u64, now: Nanos) -> Packet {
        let slack = if packet.slack == 0 { slack } else { u64::from(packet.slack) * 1_000 };
        let record = self.record.clone().with(Field::Now, now.as_u64()).with(Field::Len, packet.len.into());
        let record =
            record.with(Field::Slack, slack).with(Field::Deadline, packet.arrived.saturating_add(slack));
        record.with(Field::Remaining, packet.remaining).with(Field::Rank, packet.rank)
    }
}

/// What a program reads of each child of a node. One without a `max` has the link's rate, and a burst of one frame.
fn children_of(program: &Program, node: NodeId) -> Vec<Child> {
    let child = |(number, &node): (u64, &NodeId)| {
        let limit = program.node(node).max;
        let stated = limit.map(|limit| program.limit(limit));
        let rate = stated.map_or(program.link, |limit| limit.rate).get();
        let burst = stated.map_or(program.max_frame, |limit| limit.burst).as_u64();
        let record = Packet::default()
            .with(Field::Number, number)
            .with(Field::Weight, program.node(node).weight.into());
        Child { node, limit, record: record.with(Field::Rate, rate).with(Field::Burst, burst) }
    };
    let mut children = (0..).zip(&program.node(node).children).map(child).collect();
    total(&mut children);
    children
}

/// Writes the sum of the weights into each child.
fn total(children: &mut Vec<Child>) {
    let sum = children.iter().map(|child| child.record.get(Field::Weight)).sum();
    children.iter_mut().for_each(|child| child.set(Field::Total, sum));
}
