//! Random policies, flows and timings, made from plain numbers so that they shrink.
//!
//! Not here: what must hold of them (`properties`, `against_reference`).
//! Invariant: every case is a legal policy: minima fit the link and their own maxima, bursts hold a frame.

use plimsoll_nic::{Config, Descriptor};
use plimsoll_policy::{Codel, FlowOrder, Form, LimitId, NodeId, NodeKind, Program};
use plimsoll_units::{BitRate, Bytes, Span};
use plimsoll_wire::Ecn;
use proptest::prelude::*;

use crate::kit::{FRAME, Plan, ROOT, mbps};

pub const LINK_MBPS: u64 = 1_000;
const DEPTH: usize = 6;
const KINDS: [NodeKind; 7] = [
    NodeKind::Priority,
    NodeKind::Wfq,
    NodeKind::Drr,
    NodeKind::Fifo,
    NodeKind::Lstf,
    NodeKind::Edf,
    NodeKind::RateShare(Form::Exact),
];

/// A node: a place among the earlier ones, and what it is.
#[derive(Clone, Debug)]
pub struct Seed {
    pub parent: usize,
    pub kind: usize,
    pub flows: usize,
    pub weight: u32,
    /// Below a `rate_share`, in thousandths of the link.
    pub rate: u64,
    /// In thousandths of the link, before all of them are made to fit.
    pub min: Option<u64>,
    /// In thousandths of the link, above what is promised.
    pub max: Option<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub struct Flow {
    pub class: usize,
    /// Which of the limits hold it, by bit.
    pub limits: u8,
}

/// Something that happens after a pause.
#[derive(Clone, Debug)]
pub enum Event {
    /// Descriptors for a flow: how many, bytes, whether a large segment, tag.
    Post {
        flow: usize,
        count: u8,
        len: u32,
        large: bool,
        tag: u32,
    },
    Weight {
        node: usize,
        weight: u32,
    },
    Rate {
        limit: usize,
        mbps: u64,
    },
    ClassRate {
        node: usize,
        mbps: u64,
    },
    /// Another policy: the same tree with other numbers.
    Install {
        seed: u64,
    },
}

#[derive(Clone, Debug)]
pub struct Case {
    pub seeds: Vec<Seed>,
    /// Rate in Mb/s, burst in bytes.
    pub limits: Vec<(u64, u64)>,
    pub flows: Vec<Flow>,
    /// Nanoseconds since the event before.
    pub events: Vec<(u64, Event)>,
    pub pull: u64,
    pub overhead: u64,
    /// Of every `rate_share`.
    pub form: Form,
    /// Of every class, if they all have `flows: fq`.
    pub codel: Option<Codel>,
}

fn seed() -> impl Strategy<Value = Seed> {
    let max = proptest::option::weighted(0.3, (10_u64..600, FRAME + 30..12_000));
    let min = proptest::option::weighted(0.4, 1_u64..400);
    (0_usize..100, 0..KINDS.len(), 0_usize..4, 1_u32..9, 3_u64..900, min, max).prop_map(
        |(parent, kind, flows, weight, rate, min, max)| Seed { parent, kind, flows, weight, rate, min, max },
    )
}

fn event(updates: bool) -> impl Strategy<Value = Event> {
    let post = (0_usize..100, 1_u8..5, 60_u32..=1_500, prop::bool::weighted(0.15), 0_u32..200)
        .prop_map(|(flow, count, len, large, tag)| Event::Post { flow, count, len, large, tag });
    let rare = u32::from(updates);
    prop_oneof![
        20 => post,
        rare => (1_usize..100, 1_u32..9).prop_map(|(node, weight)| Event::Weight { node, weight }),
        rare => (0_usize..100, 5_u64..900).prop_map(|(limit, mbps)| Event::Rate { limit, mbps }),
        rare => (1_usize..100, 5_u64..900).prop_map(|(node, mbps)| Event::ClassRate { node, mbps }),
    ]
}

/// Random cases of up to `nodes` nodes; with weights and rates that change in line if `updates`.
pub fn cases(nodes: usize, events: usize, updates: bool) -> impl Strategy<Value = Case> {
    let gap = prop_oneof![2 => Just(0_u64), 3 => 0_u64..15_000, 1 => 0_u64..400_000];
    (
        proptest::collection::vec(seed(), 1..nodes),
        proptest::collection::vec((5_u64..900, FRAME + 30..12_000), 0..4),
        proptest::collection::vec((0_usize..100, 0_u8..16), 1..10),
        proptest::collection::vec((gap, event(updates)), 5..events),
        prop_oneof![2 => Just(0_u64), 1 => 2_000_u64..9_000],
        prop_oneof![Just(0_u64), Just(24_u64)],
    )
        .prop_map(|(seeds, limits, flows, events, pull, overhead)| Case {
            seeds,
            limits,
            flows: flows.into_iter().map(|(class, limits)| Flow { class, limits }).collect(),
            events,
            pull,
            overhead,
            form: Form::Exact,
            codel: None,
        })
}

impl Case {
    /// The policy; the limits that flows name come last.
    pub fn program(&self) -> Program {
        let wait = Span::micros(80);
        let orders = [FlowOrder::Fifo, FlowOrder::Drr, FlowOrder::Lstf(wait), FlowOrder::Edf(wait.times(2))];
        let parents = self.parents();
        let inner = |node: usize| parents.contains(&Some(node));
        let kind = |node: usize| {
            let seed = &self.seeds[node];
            match KINDS[seed.kind] {
                _ if !inner(node) => NodeKind::Class(self.codel.map_or(orders[seed.flows], FlowOrder::Fq)),
                NodeKind::RateShare(_) => NodeKind::RateShare(self.form),
                kind => kind,
            }
        };
        let mut plan = Plan::new(mbps(LINK_MBPS), kind(0));
        plan.program.overhead = Bytes::new(self.overhead);
        for (node, parent) in parents.iter().enumerate() {
            let Some(parent) = parent.map(|parent| NodeId(parent as u32)) else { continue };
            let id = plan.node(parent, kind(node), self.seeds[node].weight);
            if let NodeKind::RateShare(_) = plan.program.node(parent).kind {
                plan.rate(id, mbps(self.seeds[node].rate * LINK_MBPS / 1_000));
            }
        }
        let minima = promised(self.seeds.iter().map(|seed| seed.min), &parents, LINK_MBPS);
        for (node, min) in (0..).map(NodeId).zip(&minima) {
            if let (Some(rate), true) = (BitRate::new(*min), node != ROOT) {
                plan.min(node, rate);
            }
            if let Some((above, burst)) = self.seeds[node.0 as usize].max {
                plan.max(node, BitRate::new(min + above * LINK_MBPS * 1_000).expect("above zero"), burst);
            }
        }
        for (n, &(rate, burst)) in self.limits.iter().enumerate() {
            plan.limit(&format!("limit {n}"), mbps(rate), burst);
        }
        plan.program.default_class = NodeId(self.leaves()[0] as u32);
        plan.program
    }

    /// Limits that flows name.
    pub fn limits_of(&self, program: &Program, flow: &Flow) -> Vec<LimitId> {
        let first = program.limits.len() - self.limits.len();
        let chosen = (0..self.limits.len()).filter(|n| flow.limits >> n & 1 == 1);
        chosen.map(|n| LimitId((first + n) as u32)).collect()
    }

    pub fn class_of(&self, flow: &Flow) -> NodeId {
        let leaves = self.leaves();
        NodeId(leaves[flow.class % leaves.len()] as u32)
    }

    pub fn config(&self) -> Config {
        Config { queues: 32, ring: 64, pull: Bytes::new(self.pull), ..Config::default() }
    }

    pub fn descriptor(len: u32, large: bool, tag: u32) -> Descriptor {
        let ecn = Ecn::from_bits(tag as u8);
        if large {
            Descriptor { len: len * 7 + 54, segment: 1_400, header: 54, tag, ecn, ..Descriptor::default() }
        } else {
            Descriptor { len, tag, ecn, ..Descriptor::default() }
        }
    }

    fn parents(&self) -> Vec<Option<usize>> {
        tree(self.seeds.iter().map(|seed| seed.parent), DEPTH)
    }

    pub fn leaves(&self) -> Vec<usize> {
        let parents = self.parents();
        (0..self.seeds.len()).filter(|&node| !parents.contains(&Some(node))).collect()
    }
}

impl Case {
    /// These flows and limits below another tree.
    pub fn variant(&self, seed: u64) -> Self {
        let mut case = self.clone();
        for (n, node) in case.seeds.iter_mut().enumerate() {
            let turn = (seed as usize).wrapping_mul(n + 1);
            node.parent += turn;
            node.kind = (node.kind + turn) % KINDS.len();
            node.flows = (node.flows + turn) % 4;
            node.weight = 1 + (node.weight + turn as u32) % 9;
            if turn.is_multiple_of(3) {
                node.max = None;
            }
        }
        case
    }
}

/// Each node's parent: the one that it wants of the earlier ones, as far as none lies deeper than `depth`.
pub fn tree(wanted: impl Iterator<Item = usize>, depth: usize) -> Vec<Option<usize>> {
    let mut depths = vec![1];
    let mut parents = vec![None];
    for (node, wanted) in wanted.enumerate().skip(1) {
        let shallow: Vec<usize> = (0..node).filter(|&above| depths[above] < depth).collect();
        let parent = shallow[wanted % shallow.len()];
        depths.push(depths[parent] + 1);
        parents.push(Some(parent));
    }
    parents
}

/// Each node's promise, in bits per second, from thousandths of the link: at least what its children are, at most 80 % of
/// the link in all.
pub fn promised(
    minima: impl Iterator<Item = Option<u64>>,
    parents: &[Option<usize>],
    link_mbps: u64,
) -> Vec<u64> {
    let mut wanted: Vec<u64> = minima.map(Option::unwrap_or_default).collect();
    wanted[0] = 0;
    let mut sums = vec![0_u64; wanted.len()];
    for node in (0..wanted.len()).rev() {
        wanted[node] = wanted[node].max(sums[node]);
        if let Some(parent) = parents[node] {
            sums[parent] += wanted[node];
        }
    }
    let all = wanted[0].max(800);
    wanted.iter().map(|min| min * link_mbps * 1_000_000 * 8 / 10 / all).collect()
}
