//! The results of a run, as the world that ran it measured them.
//!
//! Why: tables, reports, expectations and JSON must all show the same numbers.
//! From: Loom §7 (throughput per 50 ms) and the percentiles that operators watch.
//! Not here: arithmetic over them (`evaluate`), pictures (`report`).
//! Invariant: everything here is counted or measured; nothing is derived or rounded.

use std::collections::BTreeMap;

use plimsoll_slo::SloReport;
use plimsoll_units::{Nanos, Span};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

/// Everything that one invocation measured.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// The runs, one for each system and pair, in the order in which they ran.
    pub runs: Vec<Run>,
    /// Systems and quantities that could not be run or measured, and why: `htb: no permission to make qdiscs here`.
    pub notes: Vec<String>,
}

impl Results {
    /// Whether all runs of each system measured the same.
    #[must_use]
    pub fn are_alike(&self) -> bool {
        let first = |run: &Run| self.runs.iter().find(|other| other.system == run.system);
        self.runs.iter().all(|run| first(run).is_some_and(|first| first.measured() == run.measured()))
    }
}

/// Further counts of a system: writes of doorbells over PCIe as Loom counts them (one for a batch), by the cache line, and
/// with a register for each queue; changes of flow queue from one packet of a batch to the next; reads of packets over PCIe;
/// scheduling decisions, and pairs of enqueue and dequeue on the tree; seconds in which a NIC's receive ring dropped more
/// than 10,000 packets. Of backpressure: overloads that began, flows that were slowed down and that were let go, notices that
/// came to hosts; packets that were counted by flow, and those of them that a table still has or has given up for a counted
/// reason; updates of the flow table, and the three kinds of them. Of mediated ECN: what was changed, by the names of the
/// daemon's events, and reported marks. Of tenants' programs, in virtual time: calls with packets,
/// the packets and the instructions of these calls, packets that coprocessors took, calls that failed and that took too long, and programs that were halted.
pub const COUNTERS: [&str; 35] = [
    "doorbell_writes",
    "doorbell_lines",
    "doorbell_queue_writes",
    "flow_changes",
    "bus_reads",
    "pulls",
    "pairs",
    "decisions",
    "dma_reads",
    "cycles",
    "nic_drop_seconds",
    "overloads",
    "pressed",
    "let_go",
    "notices",
    "counted",
    "tabled",
    "table_updates",
    "bucket_overflows",
    "counter_overflows",
    "periodic_updates",
    "ecn_asked",
    "ecn_granted",
    "ecn_hidden",
    "ecn_unmarked",
    "ecn_echoed",
    "ecn_answered",
    "ecn_reported",
    "program_calls",
    "program_packets",
    "program_instructions",
    "program_to_units",
    "program_faults",
    "program_overruns",
    "programs_halted",
];

/// One run of one system.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// Name of the system.
    pub system: String,
    /// The number of the repetition, from 0.
    pub pair: u32,
    /// Measurements of each workload.
    pub workloads: BTreeMap<String, WorkloadResult>,
    /// Packets lost, by tenant and reason.
    pub drops: BTreeMap<String, BTreeMap<String, u64>>,
    /// CPU time of what carried the packets (empty for the kernel's systems), if measured; where systems take turns, that of
    /// what is measured of a turn, for the turn's length.
    pub cpu: Option<Span>,
    /// CPU time of the workloads' senders and receivers, with the kernel's work for them, if measured; live only.
    pub ends_cpu: Option<Span>,
    /// Further counts, by the names in [`COUNTERS`]; those that the world cannot count are missing.
    #[serde(deserialize_with = "counters")]
    pub counters: BTreeMap<&'static str, u64>,
    /// Events that engines counted, by the names that `docs/operations.md` gives them; live only.
    pub events: BTreeMap<String, u64>,
    /// By host: the time that its CPU for received packets worked, in windows of `measure.window`; those with `receive`, where
    /// it is measured.
    pub loads: BTreeMap<String, Vec<Span>>,
    /// Of each overload that began: the top flow's part of the reported heavy hitters' packets, in thousandths.
    pub tops: Vec<u32>,
    /// Tenants' promises and whether they held, by host; with one host its name is empty. Nothing where no tenant is promised anything.
    pub promises: BTreeMap<String, SloReport>,
    /// Traces of flows and links over time, where they were asked for; in virtual time only.
    pub series: Option<Series>,
    /// Faults that did not stop the run.
    pub notes: Vec<String>,
}

impl Run {
    fn measured(&self) -> impl PartialEq + '_ {
        (&self.workloads, &self.drops, &self.counters)
    }
}

/// Measurements of one workload. Times count from the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadResult {
    /// Bytes of whole frames that its tenant's side got across the uplink, in windows of `measure.window` from
    /// the start of the run; missing windows at the end are empty.
    pub bytes: Vec<u64>,
    /// Bytes of whole frames of its tenant's side that reached the other, in the same windows; empty where that was not
    /// counted.
    pub delivered: Vec<u64>,
    /// Packets counted with `bytes`, where known.
    pub packets: u64,
    /// TCP segments that were sent again, both ways, where known.
    pub retransmits: Option<u64>,
    /// Those segments in the same windows as `bytes`; empty where only their sum is known.
    pub resent: Vec<u64>,
    /// Connections on which the TCP of the sender, or of the side that asks, uses ECN, and those on which the other side's
    /// does, where known.
    pub ecn: Option<[u64; 2]>,
    /// Packets of which the TCP of the sender, or of the side that asks, was told that they came marked, and those of the other
    /// side's, where known.
    pub echoed: Option<[u64; 2]>,
    /// Packets of both ways that had a mark (CE) when they arrived, where counted.
    pub marks: Option<u64>,
    /// Packets of both ways that did not arrive as their sender wrote them: their ECN field, ECE, CWR or receive window; where
    /// counted.
    pub changed: Option<u64>,
    /// Packets of both ways that a meter of backpressure held up or dropped, where counted.
    pub metered: Option<u64>,
    /// A sample for each answered request or echoed probe.
    pub samples: Vec<Sample>,
    /// The moments at which requests were due that had no answer when the run ended.
    pub unanswered: Vec<Nanos>,
    /// Packets of its tenant's side that engines held, times the nanoseconds that each was there, in the same windows
    /// as `bytes`; empty where that was not counted.
    pub held: Vec<u64>,
    /// How long each packet of its tenant's side waited on the way in of the other, from its arrival at the NIC until the
    /// CPU took it from its queue, by that moment; empty unless `measure.ingress` asks for them.
    pub waits: Vec<Sample>,
    /// The part of `waits` that each packet spent in the NIC, by the same moment.
    pub nic_waits: Vec<Sample>,
    /// How long the core that processed each packet of its tenant's side waited for its call of a coprocessor, by the moment of
    /// the answer; empty unless `measure.ingress` asks for them.
    pub calls: Vec<Sample>,
    /// How long each packet of its tenant's side waited on the way out, from its doorbell until the link took it and
    /// without the time behind limits, by that moment; empty unless `measure.egress` asks for them.
    pub egress_waits: Vec<Sample>,
    /// Flows that arrived, in the order of their moments, of a workload of that kind.
    pub flows: Vec<FlowSample>,
    /// Requests, probes or connections that failed or were never answered.
    pub errors: u64,
    /// Each packet that is counted in `bytes`, by the moment at which it had crossed the uplink; empty unless
    /// `measure.gaps` asks for them.
    pub departures: Vec<Departure>,
}

/// A packet that has crossed the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Departure {
    /// When its last bit came to the uplink's other end, from the start of the run.
    pub at: Nanos,
    /// Bytes of the whole frame.
    pub len: u32,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was asked (closed loop) or due (open loop), from the start of the run, in nanoseconds.
    pub at: Nanos,
    /// How long the answer took, in nanoseconds.
    pub latency: Span,
}

/// Traces of flows and links, sampled at even intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// The time between two samples; a multiple of what was asked for where there would have been too many.
    pub interval: Span,
    /// Ends of connections that sent something, in the order in which they did.
    pub flows: Vec<FlowTrace>,
    /// Links, in the order of the file.
    pub links: Vec<LinkTrace>,
    /// Ends of connections that were not traced, because too many were already.
    pub left_out: u64,
}

/// One direction of a TCP connection over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTrace {
    /// Its workload.
    pub workload: String,
    /// Its number among the workload's flows, from 0.
    pub number: u32,
    /// The host that sends, and the one that receives.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// When its connection began.
    pub begun: Nanos,
    /// Its samples.
    pub points: Vec<FlowPoint>,
}

/// A sender's state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowPoint {
    /// The moment.
    pub at: Nanos,
    /// Congestion window in bytes.
    pub cwnd: u64,
    /// Bytes on their way.
    pub in_flight: u64,
    /// Smoothed round-trip time; nothing before the first was measured.
    pub rtt: Option<Span>,
    /// Bytes that were acknowledged since the connection began.
    pub acked: u64,
}

/// A link in one direction over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkTrace {
    /// Its name; the way back of a link in both directions is called `up1 back`.
    pub link: String,
    /// Its samples.
    pub points: Vec<LinkPoint>,
}

/// A link's state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkPoint {
    /// The moment.
    pub at: Nanos,
    /// Bytes that wait for the link, those in the engine or limiter before it included.
    pub queue: u64,
    /// Bytes that have left since the run began.
    pub sent: u64,
}

/// A flow that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSample {
    /// When it arrived, from the start of the run.
    pub at: Nanos,
    /// Its bytes.
    pub size: u64,
    /// From then on until its receiver had its last byte; `None` if that did not happen before the run's end.
    pub took: Option<Span>,
    /// How long it would take alone: see `docs/scenarios.md`, "Flows that arrive".
    pub ideal: Span,
}

impl FlowSample {
    /// How many times longer it took than alone; nothing for a flow that is not complete.
    pub(crate) fn slowdown(&self) -> Option<f64> {
        let ideal = self.ideal.as_secs_f64();
        self.took.map(|took| took.as_secs_f64() / ideal).filter(|_| ideal > 0.0)
    }
}

/// Names of counters are constants, so a name that is read must be one of them.
fn counters<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<&'static str, u64>, D::Error> {
    let known = |name: &str| COUNTERS.into_iter().find(|known| *known == name);
    let read = BTreeMap::<String, u64>::deserialize(from)?;
    let named = |(name, count): (String, u64)| {
        let known = known(&name).ok_or_else(|| de::Error::custom(format!("there is no counter `{name}`")))?;
        Ok((known, count))
    };
    read.into_iter().map(named).collect()
}
