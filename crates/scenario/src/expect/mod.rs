//! Expectations: what must hold after a run, as lines of a small language.
//!
//! Why: a scenario is a claim; a reader must see it next to the traffic, and a program must judge it.
//! From: how papers state their findings ("within 8 % of the equal share"); `docs/scenarios.md`.
//! Not here: where the numbers come from (`results`).
//! Invariant: any text is answered with an expectation or a problem; units are checked before anything runs.

mod check;
mod eval;
mod flows;
mod lex;
mod parse;

use std::ops::Range;

use plimsoll_units::{BitRate, Span};
use serde::Serialize;

use crate::results::COUNTERS;

pub(crate) use check::{Names, check, check_quantity};
pub(crate) use eval::{Measured, show, value_in};
pub use eval::{Status, Verdict, judge, judge_pair, judge_seeds};
pub(crate) use flows::{FlowFigure, FlowGauge, SizeRange, Statistic};
pub(crate) use parse::{parse, parse_quantity};

/// One line of `expect:`.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// The text in the file.
    pub text: String,
    /// Why it should hold, or where it comes from.
    pub because: Option<String>,
    pub(crate) claim: Claim,
}

impl Expectation {
    /// Names of the systems that it compares.
    #[must_use]
    pub fn systems(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.claim.visit(&mut |expr| {
            if let ExprKind::Path(path) = &expr.kind
                && !names.contains(&path.system.as_str())
            {
                names.push(path.system.as_str());
            }
        });
        names
    }

    /// Multiplies every moment by `scale`; lengths of `per` stay.
    pub(crate) fn scale(&mut self, scale: f64) {
        self.claim.scale(scale);
    }
}

/// A value that a run gives: one side of an expectation, standing alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Quantity {
    /// The text in the file.
    pub text: String,
    pub expr: Expr,
}

impl Quantity {
    /// Whether all systems that it compares are among these.
    pub(crate) fn speaks_of(&self, systems: &[String]) -> bool {
        let mut known = true;
        self.expr.visit(&mut |expr| {
            if let ExprKind::Path(path) = &expr.kind {
                known &= systems.contains(&path.system);
            }
        });
        known
    }

    pub(crate) fn scale(&mut self, scale: f64) {
        self.expr.scale(scale);
    }
}

/// A comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub left: Expr,
    pub op: Compare,
    pub right: Expr,
    /// The tolerance after `+-`, for [`Compare::Near`] and [`Compare::Far`].
    pub tolerance: Option<Expr>,
}

/// How two sides are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Compare {
    Le,
    Lt,
    Ge,
    Gt,
    Near,
    Far,
}

impl Compare {
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Le => "<=",
            Self::Lt => "<",
            Self::Ge => ">=",
            Self::Gt => ">",
            Self::Near => "~",
            Self::Far => "!~",
        }
    }
}

/// A part of an expectation and where it stands in the line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub at: Range<usize>,
    pub kind: ExprKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprKind {
    Number(f64, Unit),
    /// `line`: the uplink's rate.
    Line,
    Path(Path),
    Negate(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    Call(Function, Vec<Expr>),
    /// `fraction(a >= b)`: the part of the windows in which it holds.
    Fraction(Box<Claim>),
    /// `settled(a ~ b +- c)`: how long it takes until it holds in every window that follows.
    Settled(Box<Claim>),
}

/// Something measured: `plimsoll.shop.p99[2s..4s] per 50ms`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Path {
    pub system: String,
    /// A tenant or a workload; the whole system without.
    pub subject: Option<String>,
    pub measure: Gauge,
    pub window: Option<(Span, Span)>,
    pub per: Option<Span>,
    /// `each(..)`: one value for each of a family, in place of one for all of them.
    pub each: bool,
}

/// A quantity that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Gauge {
    Throughput,
    Goodput,
    Requests,
    /// Answers a second, by the moment of the answer.
    Answered,
    /// The part of what was asked that had no answer when the run ended.
    Unanswered,
    Percentile(f64),
    LatencyMean,
    LatencyMax,
    Samples,
    Packets,
    Errors,
    Drops,
    /// Drops of packets that found a NIC's receive ring full.
    NicDrops,
    /// TCP segments that were sent again.
    Retransmits,
    /// Packets that had a mark (CE) when they arrived.
    Marks,
    /// Packets that a meter of backpressure held up or dropped.
    Metered,
    /// Connections on which the sender's TCP uses ECN.
    Ecn,
    /// Packets of which the sender's TCP was told that they came marked.
    Echoed,
    /// Packets that did not arrive as they were sent.
    Changed,
    /// The part of its time that a host's receiving CPU works.
    Load,
    /// The top flow's part of heavy hitters' packets when overloads began, on average.
    TopShare,
    /// Packets that engines hold, on average over time.
    Held,
    /// How long packets wait on the way out, in the NIC on the way in, and on the way in altogether.
    EgressMean,
    EgressPercentile(f64),
    NicMean,
    NicPercentile(f64),
    IngressMean,
    IngressPercentile(f64),
    /// How long cores wait for calls of a coprocessor.
    CallMean,
    CallPercentile(f64),
    Cpu,
    /// CPU time of senders and receivers.
    EndsCpu,
    /// Time from one packet's crossing of the uplink to the next one's.
    GapMean,
    GapStddev,
    GapMin,
    GapMax,
    /// The moment at which the first packet had crossed the uplink.
    First,
    /// Bytes that crossed the uplink.
    Sent,
    /// The fewest and the most of its packets in any run of this number of packets of the uplink.
    LeastOf(u32),
    MostOf(u32),
    /// The most bytes beyond this rate, in bits a second, between any two of its packets.
    Beyond(u64),
    /// One of [`COUNTERS`], of a system.
    Counter(&'static str),
    /// Of flows that arrive.
    Flows(FlowGauge),
}

impl Gauge {
    const NAMES: [&str; 51] = [
        "throughput",
        "goodput",
        "requests",
        "answered",
        "unanswered",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "latency_mean",
        "latency_max",
        "samples",
        "packets",
        "errors",
        "drops",
        "nic_drops",
        "retransmits",
        "marks",
        "metered",
        "ecn",
        "echoed",
        "changed",
        "load",
        "top_share",
        "held",
        "egress_mean",
        "egress_p99",
        "nic_mean",
        "nic_p99",
        "ingress_mean",
        "ingress_p99",
        "call_mean",
        "call_p99",
        "cpu",
        "ends_cpu",
        "gap_mean",
        "gap_stddev",
        "gap_min",
        "gap_max",
        "first",
        "sent",
        "least_of_100",
        "most_of_100",
        "beyond_10Mbps",
        "fct_mean",
        "fct_p99",
        "slowdown_mean",
        "slowdown_p99_upto_100kB",
        "flows",
        "unfinished",
        "offered",
    ];

    /// The measure that a name stands for.
    pub(crate) fn named(name: &str) -> Option<Self> {
        if let Some(flows) = FlowGauge::named(name) {
            return Some(Self::Flows(flows));
        }
        Some(match name {
            "throughput" => Self::Throughput,
            "goodput" => Self::Goodput,
            "requests" => Self::Requests,
            "answered" => Self::Answered,
            "unanswered" => Self::Unanswered,
            "latency_mean" => Self::LatencyMean,
            "latency_max" => Self::LatencyMax,
            "samples" => Self::Samples,
            "packets" => Self::Packets,
            "errors" => Self::Errors,
            "drops" => Self::Drops,
            "nic_drops" => Self::NicDrops,
            "retransmits" => Self::Retransmits,
            "marks" => Self::Marks,
            "metered" => Self::Metered,
            "ecn" => Self::Ecn,
            "echoed" => Self::Echoed,
            "changed" => Self::Changed,
            "load" => Self::Load,
            "top_share" => Self::TopShare,
            "held" => Self::Held,
            "egress_mean" => Self::EgressMean,
            "nic_mean" => Self::NicMean,
            "ingress_mean" => Self::IngressMean,
            "call_mean" => Self::CallMean,
            "cpu" => Self::Cpu,
            "ends_cpu" => Self::EndsCpu,
            "gap_mean" => Self::GapMean,
            "gap_stddev" => Self::GapStddev,
            "gap_min" => Self::GapMin,
            "gap_max" => Self::GapMax,
            "first" => Self::First,
            "sent" => Self::Sent,
            _ if name.contains("_") && Self::measured_by(name).is_some() => Self::measured_by(name)?,
            _ if COUNTERS.contains(&name) => {
                Self::Counter(COUNTERS.into_iter().find(|counter| *counter == name)?)
            }
            _ => {
                let number = name.strip_prefix('p')?;
                let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
                let percent: f64 = number.parse().ok().filter(|_| plain)?;
                (0.0..=100.0).contains(&percent).then_some(Self::Percentile(percent))?
            }
        })
    }

    /// Measures with a number of their own: `least_of_100`, `most_of_100`, `beyond_4Gbps`.
    fn measured_by(name: &str) -> Option<Self> {
        if let Some((way @ ("egress" | "nic" | "ingress" | "call"), percent)) = name.split_once('_') {
            return match (way, Self::named(percent)?) {
                ("egress", Self::Percentile(percent)) => Some(Self::EgressPercentile(percent)),
                ("call", Self::Percentile(percent)) => Some(Self::CallPercentile(percent)),
                ("nic", Self::Percentile(percent)) => Some(Self::NicPercentile(percent)),
                (_, Self::Percentile(percent)) => Some(Self::IngressPercentile(percent)),
                _ => None,
            };
        }
        let count = |text: &str| text.parse::<u32>().ok().filter(|count| (1..=1_000_000).contains(count));
        if let Some(rate) = name.strip_prefix("beyond_") {
            return rate.parse::<BitRate>().ok().map(|rate| Self::Beyond(rate.get()));
        }
        if let Some(number) = name.strip_prefix("least_of_") {
            return count(number).map(Self::LeastOf);
        }
        name.strip_prefix("most_of_").and_then(count).map(Self::MostOf)
    }

    const fn unit(self) -> Unit {
        match self {
            Self::Flows(gauge) => gauge.unit(),
            Self::Throughput | Self::Goodput => Unit::Rate,
            Self::Percentile(_) | Self::LatencyMean | Self::LatencyMax => Unit::Time,
            Self::GapMean | Self::GapStddev | Self::GapMin | Self::GapMax | Self::First => Unit::Time,
            Self::EgressMean | Self::EgressPercentile(_) | Self::NicMean | Self::NicPercentile(_) => {
                Unit::Time
            }
            Self::IngressMean | Self::IngressPercentile(_) => Unit::Time,
            Self::CallMean | Self::CallPercentile(_) => Unit::Time,
            Self::Sent | Self::Beyond(_) => Unit::Size,
            _ => Unit::Plain,
        }
    }

    /// Whether it is worked out from the moments at which packets crossed the uplink.
    pub(crate) const fn of_departures(self) -> bool {
        use Gauge::{Beyond, First, GapMax, GapMean, GapMin, GapStddev, LeastOf, MostOf, Sent};
        matches!(
            self,
            GapMean | GapStddev | GapMin | GapMax | First | Sent | LeastOf(_) | MostOf(_) | Beyond(_)
        )
    }

    /// Whether it is worked out from packets' waits on the way in, or from what cores wait for there.
    pub(crate) const fn of_ingress(self) -> bool {
        use Gauge::{CallMean, CallPercentile, IngressMean, IngressPercentile, NicMean, NicPercentile};
        matches!(self, IngressMean | IngressPercentile(_) | NicMean | NicPercentile(_))
            || matches!(self, CallMean | CallPercentile(_))
    }

    /// Whether it is worked out from packets' waits on the way out.
    pub(crate) const fn of_egress(self) -> bool {
        matches!(self, Self::EgressMean | Self::EgressPercentile(_))
    }

    /// Whether only workloads with requests have it.
    const fn of_answers(self) -> bool {
        use Gauge::{Answered, LatencyMax, LatencyMean, Percentile, Requests, Samples, Unanswered};
        matches!(self, Percentile(_) | LatencyMean | LatencyMax | Requests | Answered | Unanswered | Samples)
    }

    /// Whether only workloads of kind `flows` have it.
    const fn of_flows(self) -> bool {
        matches!(self, Self::Flows(_))
    }

    /// Whether only a whole system has it.
    pub(crate) const fn of_system(self) -> bool {
        matches!(self, Self::Cpu | Self::EndsCpu | Self::TopShare | Self::Counter(_))
    }

    /// Whether it is known for each moment.
    const fn has_windows(self) -> bool {
        use Gauge::{
            Changed, Counter, Cpu, Drops, Echoed, Ecn, EndsCpu, Errors, Marks, Metered, NicDrops, Packets,
            TopShare,
        };
        let of_the_run =
            matches!(self, Packets | Errors | Drops | NicDrops | Cpu | EndsCpu | TopShare | Counter(_));
        !of_the_run && !matches!(self, Marks | Changed | Metered | Ecn | Echoed)
    }
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A plain number, or a count: requests a second, packets.
    Plain,
    /// Bits a second.
    Rate,
    /// Seconds.
    Time,
    /// Bytes.
    Size,
}

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "a plain number",
            Self::Rate => "a rate",
            Self::Time => "a time",
            Self::Size => "a size",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Function {
    Max,
    Min,
    Mean,
    Median,
    Percentile(f64),
    Sum,
    Abs,
    Fm,
    Jain,
}

impl Function {
    const NAMES: [&str; 11] =
        ["max", "min", "mean", "median", "p50", "p90", "p99", "sum", "abs", "fm", "jain"];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "max" => Self::Max,
            "min" => Self::Min,
            "mean" => Self::Mean,
            "median" => Self::Median,
            "sum" => Self::Sum,
            "abs" => Self::Abs,
            "fm" => Self::Fm,
            "jain" => Self::Jain,
            _ => match Gauge::named(name)? {
                Gauge::Percentile(percent) => Self::Percentile(percent),
                _ => return None,
            },
        })
    }
}

impl Claim {
    fn parts(&self) -> impl Iterator<Item = &Expr> {
        [&self.left, &self.right].into_iter().chain(&self.tolerance)
    }

    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Expr)) {
        self.parts().for_each(|part| part.visit(see));
    }

    /// The length of a window of its series.
    fn per(&self) -> Option<Span> {
        let mut per = None;
        self.visit(&mut |expr| {
            if let ExprKind::Path(path) = &expr.kind {
                per = per.or(path.per);
            }
        });
        per
    }

    fn scale(&mut self, scale: f64) {
        self.left.scale(scale);
        self.right.scale(scale);
    }
}

impl Expr {
    fn visit<'a>(&'a self, see: &mut impl FnMut(&'a Self)) {
        see(self);
        match &self.kind {
            ExprKind::Negate(inner) => inner.visit(see),
            ExprKind::Binary(_, a, b) => {
                a.visit(see);
                b.visit(see);
            }
            ExprKind::Call(_, arguments) => arguments.iter().for_each(|argument| argument.visit(see)),
            ExprKind::Fraction(claim) | ExprKind::Settled(claim) => {
                claim.parts().for_each(|part| part.visit(see));
            }
            ExprKind::Number(..) | ExprKind::Line | ExprKind::Path(_) => {}
        }
    }

    fn scale(&mut self, scale: f64) {
        match &mut self.kind {
            ExprKind::Path(path) => {
                path.window = path.window.map(|(from, to)| (scaled(from, scale), scaled(to, scale)));
            }
            ExprKind::Negate(inner) => inner.scale(scale),
            ExprKind::Binary(_, a, b) => {
                a.scale(scale);
                b.scale(scale);
            }
            ExprKind::Call(_, arguments) => arguments.iter_mut().for_each(|argument| argument.scale(scale)),
            ExprKind::Fraction(claim) | ExprKind::Settled(claim) => claim.scale(scale),
            ExprKind::Number(..) | ExprKind::Line => {}
        }
    }
}

/// A span at `scale` times its length, in whole milliseconds where it has one or more.
pub(crate) fn scaled(span: Span, scale: f64) -> Span {
    let ns = span.as_u64() as f64 * scale;
    if ns < 1e6 { Span::ns(ns.round() as u64) } else { Span::millis((ns / 1e6).round() as u64) }
}
