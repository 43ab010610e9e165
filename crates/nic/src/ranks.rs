//! Rank programs: the state of each node that has one, and what it is told of a packet.
//!
//! Why: an operator's own order needs no code in the engine but its program.
//! From: Loom §4.1 (a node's enqueue function gives a packet its rank, and its dequeue function updates the node's state).
//! Not here: the language (`plimsoll_rank`), where a packet's rank is kept (`host`), the queue that it orders (`order::ranked`).
//! Invariant: each packet below such a node is ranked at most once, on arrival: a program that a reload puts above packets that wait
//! does not hear of them.

use std::collections::{BTreeMap, HashMap, VecDeque};

use plimsoll_policy::{FlowOrder, LimitId, NodeId, NodeKind, Program};
use plimsoll_rank::{Field, Interpreter, Packet};
use plimsoll_units::{BitRate, Nanos};

use crate::ids::{RecordId, Table};

/// The rank programs of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks {
    nodes: Vec<Ranking>,
    /// For each node, where it lies below a program; empty in a policy without any.
    places: Table<NodeId, Option<Below>>,
    /// Flow queues whose first packets were ranked elsewhere, before a reload; empty once these have left.
    elsewhere: BTreeMap<RecordId, VecDeque<Run>>,
}

/// Packets of a flow queue that follow each other, and have one place.
#[derive(Clone, Copy, Debug)]
struct Run {
    packets: u16,
    /// Where they leave; none where that program is gone, or where there was none.
    place: Option<Below>,
}

/// A node with a program.
#[derive(Clone, Debug)]
struct Ranking {
    node: NodeId,
    run: Interpreter,
    children: Vec<Child>,
    /// The sum of their weights.
    total: u64,
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

/// What became of the programs of a policy that was replaced.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// For each program of the old policy, the one of the new that has its state.
    to: Vec<Option<usize>>,
}

impl Ranks {
    pub(crate) fn new(program: &Program) -> Self {
        let mut ranks = Self::default();
        if program.ranks.is_empty() {
            return ranks;
        }
        let mut places: Vec<Option<Below>> = vec![None; program.nodes.len()];
        // Parents come before their children.
        for (id, node) in (0..).map(NodeId).zip(&program.nodes) {
            let above = places[id.0 as usize];
            for (child, &below) in node.children.iter().enumerate() {
                let here = Below { ranking: ranks.nodes.len(), child, slack: 0 };
                let is_program = matches!(node.kind, NodeKind::Program(_));
                places[below.0 as usize] = if is_program { Some(here) } else { above };
            }
            match (node.kind, &mut places[id.0 as usize]) {
                (NodeKind::Program(rank), _) => {
                    let children = children_of(program, id);
                    let code = program.ranks[rank.0 as usize].code.clone();
                    let run = Interpreter::new(code, children.len() as u64);
                    let total = children.iter().map(|child| child.record.get(Field::Weight)).sum();
                    ranks.nodes.push(Ranking { node: id, run, children, total });
                }
                (NodeKind::Class(FlowOrder::Ranked(slack)), Some(place)) => place.slack = slack.as_u64(),
                _ => {}
            }
        }
        ranks.places = places.into();
        ranks
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
        ranking.run.enqueue(&ranking.children[below.child].with(packet, (below.slack, ranking.total), now))
    }

    /// A packet has left.
    pub(crate) fn dequeue(&mut self, below: Below, packet: Seen, now: Nanos) {
        let ranking = &mut self.nodes[below.ranking];
        ranking.run.dequeue(&ranking.children[below.child].with(packet, (below.slack, ranking.total), now));
    }

    /// Notes that the `waiting` packets of a flow queue are ranked no more where they were, at `before`.
    pub(crate) fn note_ranked_elsewhere(&mut self, id: RecordId, waiting: u16, before: Option<Below>) {
        let noted: u16 = self.elsewhere.get(&id).into_iter().flatten().map(|run| run.packets).sum();
        if noted < waiting {
            let run = Run { packets: waiting - noted, place: before };
            self.elsewhere.entry(id).or_default().push_back(run);
        }
    }

    /// Where the packet leaves that was the first of a flow queue of this class.
    pub(crate) fn place_of_gone(&mut self, id: RecordId, class: NodeId) -> Option<Below> {
        if !self.elsewhere.is_empty()
            && let Some(runs) = self.elsewhere.get_mut(&id)
            && let Some(run) = runs.front_mut()
        {
            let place = run.place;
            run.packets -= 1;
            if run.packets == 0 {
                runs.pop_front();
            }
            if runs.is_empty() {
                self.elsewhere.remove(&id);
            }
            return place;
        }
        self.above(class)
    }

    /// A node has another weight.
    pub(crate) fn set_weight(&mut self, node: NodeId, weight: u32) {
        let Some(Below { ranking, child, .. }) = self.above(node) else { return };
        let Ranking { children, total, .. } = &mut self.nodes[ranking];
        let child = &mut children[child];
        if child.node == node {
            *total = *total - child.record.get(Field::Weight) + u64::from(weight);
            child.set(Field::Weight, weight.into());
        }
    }

    /// A limit has another rate.
    pub(crate) fn set_rate(&mut self, limit: LimitId, rate: BitRate) {
        let children = self.nodes.iter_mut().flat_map(|ranking| &mut ranking.children);
        for child in children.filter(|child| child.limit == Some(limit)) {
            child.set(Field::Rate, rate.get());
        }
    }

    /// Takes over the state of nodes that have the same name, program and children in both policies.
    pub(crate) fn inherit(&mut self, old: &Self, (program, before): (&Program, &Program)) -> Inherited {
        let name = |program: &Program, node: NodeId| program.node(node).name.clone();
        let by_name: HashMap<String, usize> =
            old.nodes.iter().enumerate().map(|(at, ranking)| (name(before, ranking.node), at)).collect();
        let mut to = vec![None; old.nodes.len()];
        for (at, ranking) in self.nodes.iter_mut().enumerate() {
            let Some(&from) = by_name.get(&program.node(ranking.node).name) else { continue };
            let former = &old.nodes[from];
            let mut pairs = ranking.children.iter().zip(&former.children);
            let same = |(child, other): (&Child, &Child)| {
                program.node(child.node).name == before.node(other.node).name
            };
            let alike = ranking.children.len() == former.children.len() && pairs.all(same);
            if alike && ranking.run.runs_as(&former.run) {
                ranking.run.take_state(&former.run);
                to[from] = Some(at);
            }
        }
        let kept = Inherited { to };
        self.elsewhere.clone_from(&old.elsewhere);
        let runs = self.elsewhere.values_mut().flatten();
        runs.for_each(|run| run.place = run.place.and_then(|place| kept.place(place)));
        kept
    }

    /// Bytes that the programs of a policy take.
    pub(crate) fn bytes(&self) -> usize {
        let of = |ranking: &Ranking| {
            size_of::<Ranking>() + ranking.children.len() * size_of::<Child>() + ranking.run.bytes()
        };
        self.nodes.iter().map(of).sum::<usize>() + self.places.len() * size_of::<Option<Below>>()
    }
}

impl Inherited {
    /// The place in the new policy that has the state of this one in the old.
    pub(crate) fn place(&self, before: Below) -> Option<Below> {
        Some(Below { ranking: self.to[before.ranking]?, ..before })
    }
}

impl Below {
    /// Whether both lie below the same node: its ranks are comparable.
    pub(crate) fn is_same_program(self, other: Self) -> bool {
        self.ranking == other.ranking
    }

    /// Whether both are the same child of the same node: then the packets of one keep their ranks in the other.
    pub(crate) fn is_same_child(self, other: Self) -> bool {
        (self.ranking, self.child) == (other.ranking, other.child)
    }
}

impl Child {
    fn set(&mut self, field: Field, value: u64) {
        self.record = core::mem::take(&mut self.record).with(field, value);
    }

    fn with(&self, packet: Seen, (slack, total): (u64, u64), now: Nanos) -> Packet {
        let slack = if packet.slack == 0 { slack } else { u64::from(packet.slack) * 1_000 };
        let record = self.record.clone().with(Field::Now, now.as_u64()).with(Field::Len, packet.len.into());
        let record =
            record.with(Field::Slack, slack).with(Field::Deadline, packet.arrived.saturating_add(slack));
        record
            .with(Field::Remaining, packet.remaining)
            .with(Field::Rank, packet.rank)
            .with(Field::Total, total)
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
    (0..).zip(&program.node(node).children).map(child).collect()
}
