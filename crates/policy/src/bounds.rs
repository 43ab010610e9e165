//! What each class is guaranteed: a rate, and a worst-case delay.
//!
//! Why: an operator should know what a policy promises before traffic finds out.
//! From: worst-case fair index and its composition through a hierarchy: Bennett and Zhang, "Hierarchical packet fair
//! queueing algorithms" (1997); QFQ's bound: Checconi, Rizzo and Valente (2013); surplus round robin after Shreedhar
//! and Varghese (1995).
//! Not here: measuring; the engine's tests check that no run exceeds what is promised here.
//! Invariant: every rounding goes against the promise: rates down, lags up.
//!
//! # Derivation
//!
//! Write `W(t)` for the bits that a node is served in any interval of length `t` through which it has packets. Each
//! node gets a *curve* `W(t) >= rate * t - lag`; the root's is `link * t - L`, where `L` is the largest frame with its
//! overhead (the link may just have begun another class's frame). A node's curve gives those of its children. Three
//! arguments hold, and each child takes the one with the highest rate:
//!
//! 1. **Its own minimum `m`.** Due minima are served first, earliest deadline first, with deadlines of one largest
//!    frame at rate `m`. If all minima of the siblings fit the parent's rate `g`, none is later than
//!    `(lag_parent + L) / g`; the clock may stand one frame ahead when the interval begins and one behind when it ends.
//!    So `rate = m`, `lag = 2L + m * (lag_parent + L) / g`.
//! 2. **Its share by weight.** What the minima of all siblings (`M` together, `n` of them) can take in `t` is at most
//!    `M * t + n * L`. The rest is divided by weight `phi` with the algorithm's own lag `a`:
//!    `rate = m + phi * (g - M)`, `lag = lag of 1 + phi * (lag_parent + n * L) + a`. With `k` siblings, of which each
//!    may come back from a limit with its earlier rank once in the interval (`phi * k * L`):
//!    - `wfq` up to 16 children: WF²Q+ ordered by start + largest frame: `a = 4L + phi * k * L`;
//!    - `wfq` beyond: grouped and rounded starts (a group's slot is less than twice a frame's virtual length, and the
//!      lag is below three slots and two frames): `a = 12L + phi * k * L`;
//!    - `drr`: quantum `Q = weight * L / least weight`, a turn ends at most one frame late: `a = 3Q + L + phi * k * L`.
//!    - `rate_share`: with rates `r` for weights and `R` together, `rate = min(r, r * g / R)`: time is real while the
//!      rates fit, and slowed down by `R / g` otherwise. Starts are those of WF²Q+, so `a` is that of `wfq` and of the
//!      grouped `wfq`, and three more frames by which the node's time may run ahead where the node itself is late, and
//!      one for those that sleep: `a = 8L` and `a = 16L`. Minima do not count: the rates are the promise.
//! 3. **What others cannot take.** A child of a `rate_share` takes at most `r * t + 8L` (`16L` grouped), whatever the
//!    node above it is late. A sibling with a `max` takes at most `r * t + burst`, and `L` more if it is a
//!    class; one that another limit holds, or that stands below `fifo`, `lstf` or `edf`, `r * t + burst + L` for each set of
//!    limits and each class below it. If every sibling that may go first has such a ceiling, the rest is left over. For
//!    `priority` these are the higher ones, and of the lower ones only their minima; for all other nodes, every sibling.
//!    This gives `rate = g - sum of r`, `lag = lag_parent + sum of the constants`.
//!
//! A class's guaranteed rate is the least of its curve's rate and of what the same arguments give in the policy
//! restricted to each limit that takes all of its packets (the limit's rate in the place of the link's). A packet of a
//! class whose traffic never exceeds one frame plus the guaranteed rate then leaves after at most
//! `(L + lag) / rate`, plus its own time on the wire and that of the frame in front of it, if packets leave in the order
//! of arrival. In any other order (`fq`, `drr`, `lstf`, `edf`) a packet leaves before its class is next empty: of a class
//! that sends at most one frame plus half the guaranteed rate, `rate * t - lag <= L + rate * t / 2` holds while it has
//! packets, so it is empty after `t = 2 * (L + lag) / rate`.
//!
//! # Assumptions
//!
//! [`ASSUMPTIONS`] says what the figures take for granted, and every command that prints them prints it too.

mod ceiling;

use std::collections::{HashMap, HashSet};

use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Span};
use schemars::JsonSchema;
use serde::Serialize;

use self::ceiling::{Ceiling, bits_of, ceilings, slack_of};
use crate::program::{FlowOrder, Match, Node, NodeId, NodeKind, Program, Rule, Scope, TenantId};

/// The assumptions that the figures rest on.
pub const ASSUMPTIONS: &str = "A guaranteed rate counts whole frames with their overhead, and holds whatever other \
    classes send. A delay counts from the doorbell to the end of transmission, without the time that limits make a packet \
    wait. It holds for a class that sends no more than its guaranteed rate and one frame (half of that rate \
    unless its order is `fifo`), while the engine pulls one frame \
    at a time and the link never stalls. The wake-up grain comes on top.";

/// The reason that a class without packets has no figures.
pub(crate) const IDLE: &str = "no tenant's packet comes here";

/// The guarantees of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bound {
    /// The class.
    #[serde(skip)]
    pub class: NodeId,
    /// Its path.
    pub name: String,
    /// The rate it gets whenever it has packets to send; `None` if others may take everything.
    pub guaranteed: Option<BitRate>,
    /// The longest that a packet waits; `None` without a bound.
    pub delay: Option<Span>,
    /// The rate up to which the class may send for that to hold: half of what it is guaranteed unless its order is `fifo`.
    pub delay_up_to: Option<BitRate>,
    /// Where the figures come from, or why there are none.
    pub why: String,
}

/// Service of a node: at least `rate * t - lag` bits in any interval through which it has packets.
#[derive(Clone, Debug)]
struct Curve {
    rate: u128,
    lag: u128,
    why: String,
}

type Curves = HashMap<NodeId, Curve>;

/// The children that a restricted tree keeps of each node, in their order.
type Kept = HashMap<NodeId, Vec<NodeId>>;

/// A node's children that can have packets, and what they add up to.
struct Family<'a> {
    node: &'a Node,
    rivals: Vec<NodeId>,
    minima: HashMap<NodeId, u128>,
    weights: u128,
    least_weight: u128,
    promised: u128,
    promising: u128,
    /// All ceilings together, and how many have none.
    ceiling: Ceiling,
    unbounded: usize,
}

impl<'a> Family<'a> {
    fn new(analysis: &Analysis<'a>, id: NodeId, minima: bool, keep: Option<&Kept>) -> Self {
        let program = analysis.program;
        let node = program.node(id);
        let weight = |id: NodeId| share_of(program, id);
        let children = keep.map_or(node.children.as_slice(), |keep| keep.get(&id).map_or(&[], Vec::as_slice));
        let rivals: Vec<NodeId> =
            children.iter().copied().filter(|&child| analysis.idle != Some(child)).collect();
        let minima = minima && !matches!(node.kind, NodeKind::RateShare(_));
        let stated = |&id: &NodeId| program.node(id).min.filter(|_| minima).map(|min| (id, bits_of(min)));
        let minima: HashMap<NodeId, u128> = rivals.iter().filter_map(stated).collect();
        let ceilings = || rivals.iter().map(|rival| analysis.ceilings[rival.0 as usize]);
        Self {
            node,
            weights: rivals.iter().map(|&rival| weight(rival)).sum(),
            least_weight: analysis.least_weights[id.0 as usize],
            promised: minima.values().sum(),
            promising: minima.len() as u128,
            ceiling: ceilings()
                .flatten()
                .fold(Ceiling::NONE, |sum, ceiling| sum.with(ceiling, analysis.frame)),
            unbounded: ceilings().filter(Option::is_none).count(),
            minima,
            rivals,
        }
    }

    fn min(&self, child: NodeId) -> u128 {
        self.minima.get(&child).copied().unwrap_or(0)
    }

    /// The most that siblings which may go before `child` can take, if that is bounded. `before` is what the
    /// children listed before it can take.
    fn others(
        &self,
        analysis: &Analysis<'_>,
        child: NodeId,
        before: Ceiling,
        unbounded: bool,
    ) -> Option<Ceiling> {
        if self.node.kind == NodeKind::Priority {
            // Of the lower ones only their minima; counting those of all the others is on the safe side.
            let minima = self.promised - self.min(child);
            let begun = self.promising * analysis.frame;
            return (!unbounded)
                .then_some(Ceiling { rate: before.rate + minima, burst: before.burst + begun });
        }
        let own = analysis.ceilings[child.0 as usize];
        if self.unbounded > usize::from(own.is_none()) {
            return None;
        }
        let own = own.map_or(Ceiling::NONE, |own| Ceiling::NONE.with(own, analysis.frame));
        Some(Ceiling { rate: self.ceiling.rate - own.rate, burst: self.ceiling.burst - own.burst })
    }
}

/// Limits by tenant and rules that are compared at most.
const MOST_COMPARED: usize = 1 << 22;

/// Whether the match has no condition but on tenants.
fn is_only_tenants(matches: &Match) -> bool {
    Match { tenant: Vec::new(), ..matches.clone() } == Match::default()
}

/// Each class's guarantees, in the order of the nodes, when the engine pulls one frame at a time.
#[must_use]
pub fn bounds(program: &Program) -> Vec<Bound> {
    bounds_with(program, Bytes::ZERO)
}

/// Like [`bounds`], for an engine that pulls up to `pull` bytes at once, overhead included.
#[must_use]
pub fn bounds_with(program: &Program, pull: Bytes) -> Vec<Bound> {
    let program = &program.carried_out();
    let analysis = Analysis::new(program, pull);
    let main = analysis.curves(NodeId(0), bits_of(program.link), true, None);
    let mut rates: Rates = main.iter().map(|(&id, curve)| (id, (curve.rate, curve.why.clone()))).collect();
    for index in 0..program.limits.len() {
        analysis.apply_limit(index, &mut rates);
    }
    let classes = (0_u32..).zip(&program.nodes).filter(|(_, node)| matches!(node.kind, NodeKind::Class(_)));
    classes.map(|(id, _)| analysis.bound(NodeId(id), &main, &rates)).collect()
}

/// The rate that the tree guarantees each of these nodes, in bits a second; limits by match are left out.
pub(crate) fn node_rates(program: &Program, nodes: &[NodeId]) -> Vec<u128> {
    let program = &program.carried_out();
    let analysis = Analysis::new(program, Bytes::ZERO);
    let main = analysis.curves(NodeId(0), bits_of(program.link), true, None);
    nodes.iter().map(|id| main.get(id).map_or(0, |curve| curve.rate)).collect()
}

/// Guaranteed rates so far, and where they come from.
type Rates = HashMap<NodeId, (u128, String)>;

struct Analysis<'a> {
    program: &'a Program,
    /// Bits of the largest frame or pull.
    frame: u128,
    ceilings: Vec<Option<Ceiling>>,
    /// Of each node, the least of its children's weights.
    least_weights: Vec<u128>,
    /// Of each node, what its children are promised together.
    promised: Vec<u128>,
    /// Of each node, the first two of its children that have no ceiling.
    unbounded: Vec<Vec<NodeId>>,
    /// The class that no packet reaches, if there is one: it takes nothing from its siblings.
    idle: Option<NodeId>,
}

impl<'a> Analysis<'a> {
    fn new(program: &'a Program, pull: Bytes) -> Self {
        let frame = u128::from((program.max_frame + program.overhead).max(pull).bits());
        let idle = idle_default(program);
        let of_children = |node: &Node, of: &dyn Fn(NodeId) -> Option<u128>, add: fn(u128, u128) -> u128| {
            node.children.iter().filter_map(|&child| of(child)).reduce(add)
        };
        let weight =
            |node| of_children(node, &|child| Some(share_of(program, child)), u128::min).unwrap_or(1);
        let min = |child: NodeId| program.node(child).min.map(bits_of);
        let promised = |node| of_children(node, &min, |a, b| a + b).unwrap_or(0);
        let mut analysis = Self {
            program,
            frame,
            ceilings: Vec::new(),
            least_weights: program.nodes.iter().map(weight).collect(),
            promised: program.nodes.iter().map(promised).collect(),
            unbounded: Vec::new(),
            idle,
        };
        analysis.ceilings = ceilings(program, frame, idle);
        let without = |child: &&NodeId| analysis.ceilings[child.0 as usize].is_none();
        let first_two = |node: &Node| node.children.iter().filter(without).take(2).copied().collect();
        analysis.unbounded = program.nodes.iter().map(first_two).collect();
        analysis
    }

    /// The curves of `root` and of all kept nodes below it, when `root` is served at `rate`.
    fn curves(&self, root: NodeId, rate: u128, minima: bool, keep: Option<&Kept>) -> Curves {
        let mut curves = Curves::from([(root, Curve { rate, lag: self.frame, why: "all of it".to_owned() })]);
        let mut open = vec![root];
        while let Some(id) = open.pop() {
            let Some(curve) = curves.get(&id).cloned() else { continue };
            let family = Family::new(self, id, minima, keep);
            let mut before = Ceiling::NONE;
            let mut unbounded_before = false;
            for &child in &family.rivals {
                let others = family.others(self, child, before, unbounded_before);
                if let Some(found) = self.child(&family, child, &curve, others) {
                    curves.insert(child, found);
                    open.push(child);
                }
                match self.ceilings[child.0 as usize] {
                    Some(ceiling) => before = before.with(ceiling, self.frame),
                    None => unbounded_before = true,
                }
            }
        }
        curves
    }

    /// The best of the three arguments; `others` is the most that siblings which may go first can take.
    fn child(
        &self,
        family: &Family<'_>,
        child: NodeId,
        above: &Curve,
        others: Option<Ceiling>,
    ) -> Option<Curve> {
        if family.rivals.len() == 1 && !matches!(family.node.kind, NodeKind::RateShare(_)) {
            return Some(above.clone());
        }
        let feasible = family.promised <= above.rate;
        let own = family.min(child);
        let floor = (own > 0 && feasible).then(|| self.by_minimum(own, above));
        let share = if feasible { self.by_weight(family, child, above, floor.as_ref()) } else { None };
        let strict = matches!(family.node.kind, NodeKind::RateShare(_));
        let rest =
            others.filter(|_| !strict).and_then(|others| self.by_ceilings(family, child, above, others));
        [floor, share, rest]
            .into_iter()
            .flatten()
            .filter(|curve| curve.rate > 0)
            .reduce(|best, next| if (next.rate, best.lag) > (best.rate, next.lag) { next } else { best })
    }

    /// Argument 1.
    fn by_minimum(&self, min: u128, above: &Curve) -> Curve {
        let late = (min * (above.lag + self.frame)).div_ceil(above.rate.max(1));
        Curve { rate: min, lag: 2 * self.frame + late, why: "its `min`".to_owned() }
    }

    /// Argument 2.
    fn by_weight(
        &self,
        family: &Family<'_>,
        child: NodeId,
        above: &Curve,
        floor: Option<&Curve>,
    ) -> Option<Curve> {
        let node = family.node;
        if !matches!(node.kind, NodeKind::Wfq | NodeKind::Drr | NodeKind::RateShare(_)) {
            return None;
        }
        let weight = share_of(self.program, child);
        let total = family.weights.max(1);
        let order_lag = match node.kind {
            // The engine rounds the least quantum up to a whole byte.
            NodeKind::RateShare(form) => slack_of(form) * self.frame,
            NodeKind::Drr => 3 * weight * (self.frame.div_ceil(family.least_weight) + 8) + self.frame,
            _ if node.children.len() <= 16 => 4 * self.frame,
            _ => 12 * self.frame,
        };
        let siblings = family.promising + family.rivals.len() as u128;
        let shared = (weight * (above.lag + siblings * self.frame)).div_ceil(total);
        let rest = (above.rate - family.promised) * weight / total;
        if let NodeKind::RateShare(_) = node.kind {
            let (rate, why) = if weight <= rest {
                (weight, format!("its rate in `{}`", node.name))
            } else {
                (rest, format!("its part by rate of what `{}` gets", node.name))
            };
            return Some(Curve { rate, lag: shared + order_lag, why });
        }
        let (floor_rate, floor_lag) = floor.map_or((0, 0), |floor| (floor.rate, floor.lag));
        let why = match (floor_rate, rest) {
            (0, _) if family.promised == 0 => format!("{weight} of {total} of what `{}` gets", node.name),
            (0, _) => format!("{weight} of {total} of what minima leave in `{}`", node.name),
            (_, 0) => "its `min`".to_owned(),
            _ => format!("its `min`, and {weight} of {total} of what minima leave in `{}`", node.name),
        };
        Some(Curve { rate: floor_rate + rest, lag: floor_lag + shared + order_lag, why })
    }

    /// Argument 3.
    fn by_ceilings(
        &self,
        family: &Family<'_>,
        child: NodeId,
        above: &Curve,
        others: Ceiling,
    ) -> Option<Curve> {
        let node = family.node;
        let why = match node.kind {
            NodeKind::Priority if family.rivals.first() == Some(&child) => {
                format!("first in `{}`", node.name)
            }
            NodeKind::Priority => format!("what those before it in `{}` leave", node.name),
            _ => format!("what the limits of its siblings in `{}` leave", node.name),
        };
        Some(Curve { rate: above.rate.checked_sub(others.rate)?, lag: above.lag + others.burst, why })
    }

    /// Lowers the rates of the classes that a limit holds to what the policy restricted to it gives them.
    fn apply_limit(&self, index: usize, rates: &mut Rates) {
        let limit = &self.program.limits[index];
        let rate = bits_of(limit.rate);
        let (held, curves) = match &limit.scope {
            Scope::Subtree(root) => (self.below(&[*root]), self.curves(*root, rate, true, None)),
            Scope::Match { matches, via } if *matches == Match::default() => {
                let held = self.below(via);
                let above: HashSet<NodeId> = via.iter().flat_map(|&node| self.program.path(node)).collect();
                let kept = self.children_among(held.union(&above).copied());
                let curves = self.curves(NodeId(0), rate, false, Some(&kept));
                (held, curves)
            }
            Scope::Match { matches, via } => match self.held_of_tenants(matches, via) {
                Some((held, carry)) => {
                    let above = carry.iter().flat_map(|&node| self.program.path(node));
                    let kept = self.children_among(above.collect::<HashSet<_>>().into_iter());
                    (held, self.curves(NodeId(0), rate, false, Some(&kept)))
                }
                None => return,
            },
            Scope::Peer(_) => return,
        };
        for id in held {
            match (rates.get_mut(&id), curves.get(&id)) {
                (Some((rate, why)), Some(curve)) if curve.rate < *rate => {
                    *rate = curve.rate;
                    *why = format!("its part of `{}` ({})", limit.name, limit.rate);
                }
                (Some(_), None) => {
                    rates.remove(&id);
                }
                _ => {}
            }
        }
    }

    /// The classes all of whose packets are these tenants', and all classes that carry any of theirs, for a limit that matches
    /// nothing but tenants. In a very large policy no such limit is looked at.
    fn held_of_tenants(&self, matches: &Match, via: &[NodeId]) -> Option<(HashSet<NodeId>, HashSet<NodeId>)> {
        let Program { rules, limits, default_class, .. } = self.program;
        let tenants = &matches.tenant;
        if tenants.is_empty()
            || !is_only_tenants(matches)
            || limits.len().saturating_mul(rules.len()) > MOST_COMPARED
        {
            return None;
        }
        let mut open: HashSet<TenantId> = tenants.iter().copied().collect();
        let through = self.below(via);
        let (mut carry, mut shared) = (HashSet::new(), HashSet::new());
        for Rule { matches, class } in rules {
            let ours = |tenant: &TenantId| tenants.contains(tenant);
            if matches.tenant.is_empty() || !matches.tenant.iter().all(ours) {
                shared.insert(*class);
            }
            if !open.is_empty()
                && (matches.tenant.is_empty() || matches.tenant.iter().any(|one| open.contains(one)))
            {
                carry.insert(*class);
            }
            if is_only_tenants(matches) {
                // A rule without any condition takes what is left of all tenants.
                open.retain(|one| !matches.tenant.is_empty() && !matches.tenant.contains(one));
            }
        }
        shared.insert(*default_class);
        carry.extend((!open.is_empty()).then_some(*default_class));
        carry.retain(|class| through.contains(class));
        let held = carry.difference(&shared).copied().collect();
        Some((held, carry))
    }

    /// These nodes, by their parents; children have the order of their numbers, which is that of the file.
    fn children_among(&self, nodes: impl Iterator<Item = NodeId>) -> Kept {
        let mut kept = Kept::new();
        for id in nodes {
            let parent = self.program.node(id).parent;
            parent.into_iter().for_each(|parent| kept.entry(parent).or_default().push(id));
        }
        kept.values_mut().for_each(|children| children.sort_unstable());
        kept
    }

    /// These nodes and all below them.
    fn below(&self, roots: &[NodeId]) -> HashSet<NodeId> {
        let mut found = HashSet::new();
        let mut open = roots.to_vec();
        while let Some(id) = open.pop() {
            if found.insert(id) {
                open.extend(&self.program.node(id).children);
            }
        }
        found
    }

    fn bound(&self, class: NodeId, main: &Curves, rates: &Rates) -> Bound {
        let node = self.program.node(class);
        let name = node.name.clone();
        if self.idle == Some(class) {
            let why = IDLE.to_owned();
            return Bound { class, name, guaranteed: None, delay: None, delay_up_to: None, why };
        }
        let (Some(curve), Some((rate, why))) = (main.get(&class), rates.get(&class)) else {
            let why = self.culprit(class, main);
            return Bound { class, name, guaranteed: None, delay: None, delay_up_to: None, why };
        };
        let guaranteed = u64::try_from(*rate).ok().and_then(BitRate::new);
        let parts = if node.kind == NodeKind::Class(FlowOrder::Fifo) { 1 } else { OUT_OF_ORDER };
        let delay_up_to = guaranteed.and_then(|rate| BitRate::new(rate.get() / parts));
        let delay = delay_up_to.map(|_| self.delay(curve, parts));
        Bound { class, name, guaranteed, delay, delay_up_to, why: why.clone() }
    }

    /// The bound for a class that sends at most one of `parts` parts of its guaranteed rate.
    fn delay(&self, curve: &Curve, parts: u64) -> Span {
        let waiting = nanos(u128::from(parts) * (self.frame + curve.lag), curve.rate);
        let wire = nanos(2 * self.frame, bits_of(self.program.link));
        Span::ns(u64::try_from(waiting + wire + 1).unwrap_or(u64::MAX))
    }

    /// Why a class has no guarantee: the uppermost node on its way that has none.
    fn culprit(&self, class: NodeId, main: &Curves) -> String {
        let mut path: Vec<NodeId> = self.program.path(class).collect();
        path.reverse();
        let Some(&lost) = path.iter().find(|id| !main.contains_key(id)) else {
            return "a limit that it shares leaves it none".to_owned();
        };
        let Some(parent) = self.program.node(lost).parent.map(|id| (id, self.program.node(id))) else {
            return "no bound".to_owned();
        };
        let promised = self.promised[parent.0.0 as usize];
        let rate = main.get(&parent.0).map_or(0, |curve| curve.rate);
        if promised > rate {
            return format!("no bound: the minima below `{}` are more than it is guaranteed", parent.1.name);
        }
        let first = self.unbounded[parent.0.0 as usize].iter().find(|rival| **rival != lost);
        let unbounded = match parent.1.kind {
            NodeKind::Priority => first.filter(|first| **first < lost),
            _ => first,
        };
        match (unbounded, parent.1.kind) {
            (Some(rival), _) => format!("no bound: `{}` has no `max`", self.program.node(*rival).name),
            (None, NodeKind::Wfq | NodeKind::Drr | NodeKind::RateShare(_)) => {
                format!("no bound: the minima below `{}` take all that it is guaranteed", parent.1.name)
            }
            (None, _) => format!("no bound: its siblings in `{}` may take everything", parent.1.name),
        }
    }
}

/// A class whose flows overtake each other has a bound on delay up to this part of its guaranteed rate.
pub(crate) const OUT_OF_ORDER: u64 = 2;

/// The default class, if every tenant's packets go elsewhere.
fn idle_default(program: &Program) -> Option<NodeId> {
    let class = program.default_class;
    let named = program.rules.iter().any(|rule| rule.class == class);
    let by_tenant: HashSet<u32> = program
        .rules
        .iter()
        .filter(|rule| rule.matches.only_tenant())
        .filter_map(|rule| rule.matches.tenant.first().map(|tenant| tenant.0))
        .collect();
    let count = u32::try_from(program.tenants.len()).unwrap_or(u32::MAX);
    let all_taken = count > 0 && (0..count).all(|tenant| by_tenant.contains(&tenant));
    (class != NodeId(0) && !named && all_taken).then_some(class)
}

/// A class's weight among its siblings.
fn share_of(program: &Program, id: NodeId) -> u128 {
    let node = program.node(id);
    node.rate.map_or_else(|| u128::from(node.weight.max(1)), bits_of)
}

/// How long `bits` take at `rate`, rounded up.
fn nanos(bits: u128, rate: u128) -> u128 {
    (bits * u128::from(NS_PER_SEC)).div_ceil(rate.max(1))
}
