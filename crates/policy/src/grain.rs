//! The wake-up grain: how long the engine's thread may sleep while packets wait for a rate.
//!
//! Why: a thread that sleeps and wakes for each frame at 1 Gb/s spends six times the CPU time of one that wakes for what half a
//! millisecond carries. How fine time must be follows from what the policy promises.
//! From: what the policy states; Linux's TCP, which cuts its segments so that each takes about a millisecond at the flow's rate, and
//! lets as much wait below it (`sk_pacing_shift`).
//! Not here: sleeping (`daemon::thread`), and making up for a late wake-up (`nic`).
//! Invariant: a sleep of this length costs no limit any of its rate, and takes at most an eighth of each delay target.

use core::fmt;

use plimsoll_rank::Field;
use plimsoll_units::{Bytes, NS_PER_SEC, Span};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::program::{FlowOrder, Limit, NodeId, NodeKind, Program, Scope};

/// The longest that the engine's thread sleeps while packets wait for a rate, and what it follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Grain {
    /// How long. Zero: the thread wakes for each packet that is due.
    pub span: Span,
    /// How long, at least as long, while packets wait for their tenants' `max` alone and each tenant that moved a frame in the last second
    /// was held to its `max` then.
    pub behind_max: Span,
    /// What the policy states that asks for that.
    #[schemars(with = "String")]
    pub because_behind_max: GrainReason,
    /// What the policy states that asks for it.
    #[schemars(with = "String")]
    pub because: GrainReason,
    /// Whether the thread spins while packets pass, and for a moment after: a delay target leaves no time for a wake-up.
    pub spins: bool,
    /// Whether the uplink states a grain, even if a finer one follows from the rest of the policy.
    #[serde(skip)]
    stated: bool,
}

/// What a wake-up grain follows from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrainReason {
    /// Nothing asks for a finer one.
    Nothing,
    /// The operator states it.
    Stated,
    /// The burst of this limit.
    Burst(String),
    /// The delay target of this tenant.
    Target(String),
    /// The slack or the deadlines of this class.
    Deadlines(String),
    /// The time that packets of this class may wait by `flows: fq`.
    ShortQueues(String),
    /// The strict rates below this node, which are evenly paced.
    StrictRates(String),
    /// The priorities at this node: what is first does not wait for the rest.
    Priorities(String),
}

impl fmt::Display for GrainReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stated => f.write_str("the uplink states it"),
            Self::Nothing => f.write_str("nothing asks for a finer one"),
            Self::Burst(limit) => write!(f, "the burst of {limit}"),
            Self::Target(tenant) => write!(f, "the delay target of {tenant}"),
            Self::Deadlines(class) => write!(f, "the deadlines of {class}"),
            Self::ShortQueues(class) => write!(f, "the short queues of {class}"),
            Self::StrictRates(node) => write!(f, "the strict rates below {node}"),
            Self::Priorities(node) => write!(f, "the priorities of {node}"),
        }
    }
}

impl Serialize for GrainReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Grain {
    /// A shorter one is none: a wake-up takes some tens of microseconds itself.
    pub const LEAST: Span = Span::micros(50);
    /// The longest grain of a fast link.
    const USUAL: Span = Span::micros(500);

    /// The grain of a policy.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let frame = program.max_frame + program.overhead;
        let stated =
            |usual| program.grain.map_or((usual, GrainReason::Nothing), |span| (span, GrainReason::Stated));
        let limits = program
            .limits
            .iter()
            .map(|limit| (of_limit(limit, frame), GrainReason::Burst(limit.name.clone())));
        let targets = program.tenants.iter().flat_map(|tenant| {
            let targets = tenant.slo.delay.iter();
            targets.map(|target| (part_of(target.most), GrainReason::Target(tenant.name.clone())))
        });
        let spins = targets.clone().any(|(part, _)| part < Self::LEAST);
        let urgent = program
            .ranks
            .iter()
            .any(|rank| [Field::Slack, Field::Deadline].into_iter().any(|field| rank.code.reads(field)));
        let nodes = program.nodes.iter().filter_map(|node| match node.kind {
            NodeKind::Class(FlowOrder::Ranked(_)) if !urgent => None,
            NodeKind::Priority => Some((Span::ZERO, GrainReason::Priorities(node.name.clone()))),
            NodeKind::RateShare(_) => Some((Span::ZERO, GrainReason::StrictRates(node.name.clone()))),
            NodeKind::Class(FlowOrder::Lstf(span) | FlowOrder::Edf(span) | FlowOrder::Ranked(span)) => {
                Some((part_of(span), GrainReason::Deadlines(node.name.clone())))
            }
            NodeKind::Class(FlowOrder::Fq(codel)) => {
                // Else every packet that waits for a wake-up would be one of a queue that is too long.
                Some((codel.target, GrainReason::ShortQueues(node.name.clone())))
            }
            _ => None,
        });
        let finest = limits.chain(targets).chain(nodes).min_by_key(|(span, _)| *span);
        let of = |(most, because)| {
            let finer = finest.as_ref().filter(|(span, _)| *span < most).cloned();
            let (span, because) = finer.unwrap_or((most, because));
            (if span < Self::LEAST { Span::ZERO } else { span }, because)
        };
        let (span, because) = of(stated(usual(program)));
        // A limit by match may hold only some of a tenant's packets, and the others would wait as well.
        let tenant = |NodeId(node): NodeId| program.nodes[node as usize].tenant;
        let whole = |limit: &Limit| match limit.scope {
            Scope::Subtree(node) => {
                let above = program.nodes[node.0 as usize].parent;
                tenant(node).is_some() && above.and_then(tenant).is_none()
            }
            _ => false,
        };
        let behind_max = !program.limits.is_empty() && program.limits.iter().all(whole);
        let (behind_max, because_behind_max) =
            if behind_max { of(stated(LONGEST_USUAL)) } else { (span, because.clone()) };
        Self { span, behind_max, because_behind_max, because, spins, stated: program.grain.is_some() }
    }

    /// The longest time that the frames of one pull may take on the link.
    ///
    /// A pull is what the engine hands to the uplink at once, and all other packets wait until it has left. The time is the grain
    /// where the uplink states one, and else the grain, but at most 500 µs.
    #[must_use]
    pub fn pull(&self) -> Span {
        if self.stated { self.span } else { self.span.min(Self::USUAL) }
    }
}

/// The longest grain, unless the uplink states another: what sixteen frames take on the link, between half a millisecond and two.
fn usual(program: &Program) -> Span {
    let frame = program.max_frame + program.overhead;
    program.link.wire_time(Bytes::new(16 * frame.as_u64())).clamp(Grain::USUAL, LONGEST_USUAL)
}

/// The longest grain of a slow link, and while packets wait for their tenants' `max` alone, unless the uplink states another.
const LONGEST_USUAL: Span = Span::millis(2);

/// An eighth of a delay: half of it is for one way, and a packet that waits a grain is not the only thing on that way.
fn part_of(delay: Span) -> Span {
    Span::ns(delay.as_u64() / 8)
}

/// How late a limit may be served without losing of its rate: its burst makes up for it, less the frame or the piece that waits.
/// A quarter of that is left for the wake-up itself.
fn of_limit(limit: &Limit, frame: Bytes) -> Span {
    let half = Bytes::new(limit.burst.as_u64() / 2);
    let makes_up = limit.burst.as_u64().saturating_sub(half.max(frame).as_u64());
    let nanos = u128::from(makes_up) * 8 * u128::from(NS_PER_SEC) * 3 / 4 / u128::from(limit.rate.get());
    Span::ns(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(uplink: &str, tenant: &str) -> crate::Checked {
        let text = format!(
            "uplink: {{port: memory, rate: {uplink}}}\ntenants: {{shop: {{port: memory{tenant}}}, other: {{port: memory}}}}\n"
        );
        crate::check_str("test.yaml", &text).expect("a policy")
    }

    fn grain(uplink: &str, tenant: &str) -> (u64, String) {
        let checked = check(uplink, tenant);
        let Grain { span, because, spins, .. } = Grain::of(&checked.program);
        assert_eq!(spins, tenant.contains("p99: 100us"));
        (span.as_u64() / 1_000, because.to_string())
    }

    #[test]
    fn follows_from_what_is_promised() {
        let nothing = "nothing asks for a finer one".to_owned();
        assert_eq!(grain("10Mbps", ""), (2_000, nothing.clone()));
        assert_eq!(grain("200Mbps", ""), (971, nothing.clone()));
        assert_eq!(grain("1Gbps", ""), (500, nothing.clone()));
        assert_eq!(grain("1Gbps", ", max: 1Gbps"), (375, "the burst of max(shop)".to_owned()));
        assert_eq!(grain("50Mbps", ", max: 10Mbps, burst: 80KB"), (2_000, nothing.clone()));
        assert_eq!(grain("100Gbps", ", max: 1Gbps, burst: 200KB"), (500, nothing.clone()));
        assert_eq!(grain("100Gbps", ", max: 1Gbps, burst: 30KB"), (90, "the burst of max(shop)".to_owned()));
        assert_eq!(grain("1Gbps", ", max: 100Mbps, burst: 3036B"), (91, "the burst of max(shop)".to_owned()));
        assert_eq!(grain("10Gbps", ", delay: {p99: 4ms}"), (500, nothing.clone()));
        assert_eq!(grain("10Gbps", ", delay: {p99: 1ms}"), (125, "the delay target of shop".to_owned()));
        assert_eq!(grain("10Gbps", ", delay: {p99: 100us}"), (0, "the delay target of shop".to_owned()));
        assert_eq!(grain("10Gbps", ", delay: {p99: 1s}"), (500, nothing));
        assert_eq!(grain("100Mbps, grain: 4ms", "").0, 4_000);
        let short = "the short queues of shop".to_owned();
        assert_eq!(grain("10Gbps", ", flows: {fq: {target: 200us}}"), (200, short.clone()));
        assert_eq!(grain("10Gbps, grain: 7ms", ""), (5_000, short));
        assert_eq!(grain("100Mbps, grain: 0us", ""), (0, "the uplink states it".to_owned()));
        assert_eq!(grain("100Mbps, grain: 4ms", ", max: 10Mbps").1, "the burst of max(shop)");
        assert_eq!(grain("1Gbps", ", max: 100Mbps"), (500, "nothing asks for a finer one".to_owned()));
        let classes =
            ", queues: {ask: {match: {dst_port: 53}}, rest: {match: {dst_port: 80}}}, among: priority";
        assert_eq!(grain("10Gbps", classes), (0, "the priorities of shop".to_owned()));
    }

    #[test]
    fn is_longer_behind_maxima_alone_as_far_as_their_bursts_and_all_else_allow() {
        let behind_max = |uplink: &str, tenant: &str| {
            Grain::of(&check(uplink, tenant).program).behind_max.as_u64() / 1_000
        };
        assert_eq!(behind_max("100Gbps", ""), 500, "there are none");
        assert_eq!(behind_max("100Gbps", ", max: 100Mbps"), 1_875);
        assert_eq!(behind_max("100Gbps", ", max: 300Mbps"), 640);
        assert_eq!(behind_max("100Gbps", ", max: 1Gbps"), 375);
        assert_eq!(behind_max("100Gbps", ", max: 10Mbps, burst: 64KB"), 2_000);
        assert_eq!(behind_max("100Gbps", ", max: 100Mbps, delay: {p99: 8ms}"), 375, "whose burst is shorter");
        assert_eq!(behind_max("100Gbps, grain: 1ms", ", max: 100Mbps"), 1_000);
        assert_eq!(behind_max("100Gbps, grain: 5ms", ", max: 10Mbps, burst: 64KB"), 5_000);
        let text = "
            uplink: {port: memory, rate: 100Gbps}
            tenants: {shop: {port: memory, max: 100Mbps, via: [bulk]}}
            limits: {bulk: {rate: 10Mbps, match: {protocol: tcp}}}";
        let bulk = Grain::of(&crate::check_str("test.yaml", text).expect("a policy").program);
        assert_eq!(bulk.behind_max, bulk.span, "it holds only some packets of its tenant");
    }

    #[test]
    fn a_pull_takes_a_stated_grain_also_where_a_finer_one_follows_from_the_policy() {
        let pull =
            |uplink: &str, tenant: &str| Grain::of(&check(uplink, tenant).program).pull().as_u64() / 1_000;
        let fq = ", flows: {fq: {target: 5ms}}";
        assert_eq!(pull("10Mbps", fq), 500, "of a grain of 2 ms");
        assert_eq!(pull("10Mbps, grain: 4ms", fq), 4_000);
        assert_eq!(pull("10Mbps, grain: 5ms", fq), 5_000);
        assert_eq!(pull("10Mbps, grain: 7ms", fq), 5_000, "no more than `fq` lets packets wait");
        assert_eq!(pull("10Gbps, grain: 7ms", ", delay: {p99: 1ms}"), 125);
    }
}
