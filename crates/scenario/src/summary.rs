//! The figures of each system: medians over its runs.
//!
//! Why: the table, the report, CSV and JSON show the same figures.
//! From: the columns that operators compare: throughput, requests a second, tail latency, drops by reason.
//! Not here: layout (`table`, `report`).
//! Invariant: everything is over `measure.from..measure.to`, drops excepted, which are counted over whole runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::expect::{FlowFigure, FlowGauge, SizeRange, Statistic};
use crate::interval::{Interval, IntervalSummary};
use crate::measure::{Measures, jain, median, percentile};
use crate::table::MOST_COLUMNS;
use crate::{Kind, Results, Run, Scenario};

/// Figures of one system.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The system's name.
    pub system: String,
    /// The number of runs; with 0 all other figures are empty.
    pub runs: usize,
    /// Bits a second of all tenants together.
    pub throughput_bps: Option<f64>,
    /// Jain's index over the tenants' throughputs, each divided by its weight.
    pub jain: Option<f64>,
    /// Part of one core that carried the packets.
    pub cpu: Option<f64>,
    /// Tenants in the order of the file.
    pub tenants: Vec<TenantSummary>,
    /// Destinations beyond the first, in the order of the file, where there are few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<DestinationSummary>,
    /// Packets lost in a run whose tenant is not known, by place and reason, such as `the uplink ingress_full`.
    pub drops: BTreeMap<String, f64>,
    /// Workloads that ask for answers, in the order of the file.
    pub latency: Vec<LatencySummary>,
    /// Workloads that send through a gateway and ask for no answers, in the order of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub through: Vec<ThroughSummary>,
    /// Flows that arrive, by workload and size, in the order of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowSummary>,
    /// Means over the runs, with their 95 % confidence intervals, where there are several runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalSummary>,
}

/// Figures of the flows of one workload and a class of sizes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowSummary {
    /// The workload's name.
    pub workload: String,
    /// Their sizes: `all`, `≤ 10 kB`.
    pub sizes: String,
    /// The end of the names of expectations' measures of them: `_upto_10kB`.
    #[serde(skip)]
    pub(crate) suffix: String,
    /// Bits a second that they offer.
    pub offered_bps: Option<f64>,
    /// Flows that arrived in a run.
    pub arrived: Option<f64>,
    /// Those of them that were not complete when the run ended.
    pub unfinished: Option<f64>,
    /// Seconds to complete: the mean.
    pub fct_mean: Option<f64>,
    /// Seconds within which half of those were complete that were.
    pub fct_p50: Option<f64>,
    /// Seconds within which 99 % of those were complete that were.
    pub fct_p99: Option<f64>,
    /// How many times longer than alone they took: the mean.
    pub slowdown_mean: Option<f64>,
    /// The median of the same.
    pub slowdown_p50: Option<f64>,
    /// The 99th percentile of the same.
    pub slowdown_p99: Option<f64>,
}

/// Figures of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantSummary {
    /// Its name.
    pub tenant: String,
    /// Bits a second of whole frames over the uplink.
    pub throughput_bps: Option<f64>,
    /// Packets lost in a run, by reason.
    pub drops: BTreeMap<String, f64>,
}

/// Figures of one destination.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DestinationSummary {
    /// Its name.
    pub destination: String,
    /// Bits a second of whole frames that workloads send there.
    pub throughput_bps: Option<f64>,
}

/// Figures of one workload that sends through a gateway, and of the gateway.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThroughSummary {
    /// The workload's name.
    pub workload: String,
    /// Bits a second of whole frames.
    pub throughput_bps: Option<f64>,
    /// TCP segments that were sent again in `measure`'s window, as expectations count them; in the whole run where no more is
    /// known, as live.
    pub retransmits: Option<f64>,
    /// Packets of a run that arrived with a mark (CE).
    pub marks: Option<f64>,
    /// Packets of a run that a meter held up or dropped.
    pub metered: Option<f64>,
    /// The gateway's host.
    pub host: String,
    /// The part of its time that this host's CPU for received packets works.
    pub load: Option<f64>,
}

/// Figures of one workload that asks for answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    /// The workload's name.
    pub workload: String,
    /// The tenant whose traffic it is.
    pub tenant: String,
    /// Answers a second, by the moment of the answer.
    pub requests_per_second: Option<f64>,
    /// Seconds within which half of the requests were answered.
    pub p50: Option<f64>,
    /// Seconds within which 90 % were answered.
    pub p90: Option<f64>,
    /// Seconds within which 99 % were answered.
    pub p99: Option<f64>,
    /// Seconds within which 99.9 % were answered.
    pub p99_9: Option<f64>,
    /// The part of the requests that had no answer when the run ended. The percentiles are of the others.
    pub unanswered: Option<f64>,
    /// Requests of a run that were never answered.
    pub errors: Option<f64>,
}

impl Summary {
    /// Lost packets, a line for each tenant or place and reason: `batch3 flow_full 1234`; of many tenants a line for each
    /// reason.
    pub(crate) fn lost(&self) -> Vec<String> {
        let tenants = self.tenants.iter().flat_map(|tenant| {
            tenant.drops.iter().map(move |(reason, count)| (tenant.tenant.as_str(), reason.as_str(), *count))
        });
        let tenants = tenants.filter(|(.., count)| *count > 0.0);
        let others = self.drops.iter().filter(|(_, count)| **count > 0.0);
        let others = others.map(|(what, count)| format!("{what} {count:.0}"));
        if self.tenants.len() <= MOST_COLUMNS {
            return tenants
                .map(|(name, why, count)| format!("{name} {why} {count:.0}"))
                .chain(others)
                .collect();
        }
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        tenants.for_each(|(_, why, count)| *sums.entry(why).or_default() += count);
        sums.iter().map(|(why, count)| format!("{why} {count:.0}")).chain(others).collect()
    }
}

/// The figures of every system, in the order of the file.
#[must_use]
pub fn summarise(scenario: &Scenario, results: &Results) -> Vec<Summary> {
    let measures = Measures::new(scenario, results);
    scenario.systems.iter().map(|system| summary(scenario, &measures, &system.name)).collect()
}

fn summary(scenario: &Scenario, measures: &Measures<'_>, system: &str) -> Summary {
    let runs: Vec<&Run> = measures.runs(system).collect();
    let usual = measures.usual();
    let over = |f: &dyn Fn(&Run) -> f64| known(median(&runs.iter().map(|run| f(run)).collect::<Vec<_>>()));
    let rate = |run: &Run, name: &str| measures.throughput(run, Some(name), usual);
    let shown = scenario.shown_tenants();
    let tenants = shown.into_iter().map(|name| TenantSummary {
        tenant: name.to_owned(),
        throughput_bps: over(&|run| rate(run, name)),
        drops: drops(&runs, |run| counted(measures.drops(run, Some(name)))),
    });
    let destinations = scenario.shown_destinations().map(|name| DestinationSummary {
        destination: name.to_owned(),
        throughput_bps: over(&|run| measures.to(run, name, usual)),
    });
    let asking = scenario.shown_asking();
    let latency = asking.into_iter().map(|(name, workload)| {
        let at = |percent| over(&|run| percentile(&measures.latencies(run, Some(name), usual), percent));
        LatencySummary {
            workload: name.to_owned(),
            tenant: whose(scenario, &workload.tenant).to_owned(),
            requests_per_second: over(&|run| measures.answered(run, Some(name), usual) / usual.secs()),
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            p99_9: at(99.9),
            unanswered: over(&|run| measures.unanswered(run, Some(name), usual)),
            errors: over(&|run| measures.errors(run, name)),
        }
    });
    let through = scenario.workloads.iter().filter(|workload| !workload.kind.has_latency());
    let through = through.filter_map(|workload| Some((workload, scenario.gateway_host(workload)?)));
    let through = through.map(|(workload, host)| {
        let name = Some(workload.name.as_str());
        ThroughSummary {
            workload: workload.name.clone(),
            throughput_bps: over(&|run| measures.throughput(run, name, usual)),
            retransmits: over(&|run| measures.retransmits(run, name, usual)),
            marks: over(&|run| measures.known(run, name, |found| found.marks)),
            metered: over(&|run| measures.known(run, name, |found| found.metered)),
            host: host.to_owned(),
            load: over(&|run| measures.load(run, Some(host), usual)),
        }
    });
    let share = |run: &Run| {
        let shares = scenario.tenants.iter().map(|tenant| rate(run, &tenant.name) / f64::from(tenant.weight));
        jain(&shares.collect::<Vec<_>>())
    };
    let arriving = scenario.shown_workloads(|kind| matches!(kind, Kind::Flows { .. }));
    let flows = arriving.into_iter().flat_map(|(name, _)| {
        let classes = SizeRange::CLASSES.into_iter().chain([SizeRange::ALL]);
        classes.map(|sizes| flows_of(&over, measures, name, sizes)).collect::<Vec<_>>()
    });
    let flows: Vec<FlowSummary> = flows.filter(|flows| flows.arrived.is_none_or(|n| n > 0.0)).collect();
    let shown = Shown { scenario, measures, runs: &runs };
    Summary {
        system: system.to_owned(),
        runs: runs.len(),
        throughput_bps: over(&|run| measures.throughput(run, None, usual)),
        jain: over(&share),
        cpu: over(&|run| run.cpu.map_or(f64::NAN, |cpu| cpu.as_secs_f64() / scenario.duration.as_secs_f64())),
        tenants: tenants.collect(),
        destinations: destinations.collect(),
        drops: drops(&runs, |run| without_tenant(scenario, run)),
        latency: latency.collect(),
        through: through.collect(),
        flows,
        intervals: shown.intervals(),
    }
}

/// The median over runs of a figure of each.
type Over<'a> = dyn Fn(&dyn Fn(&Run) -> f64) -> Option<f64> + 'a;

/// The figures of one workload's flows of these sizes; `over` gives a median over the runs.
fn flows_of(over: &Over<'_>, measures: &Measures<'_>, name: &str, sizes: SizeRange) -> FlowSummary {
    use FlowFigure::{Arrived, Offered, Slowdown, Time, Unfinished};
    let usual = measures.usual();
    let (half, most) = (Statistic::Percentile(50.0), Statistic::Percentile(99.0));
    let at = |what| over(&|run| measures.of_flows(run, Some(name), usual, FlowGauge { what, sizes }));
    FlowSummary {
        workload: name.to_owned(),
        sizes: sizes.name(),
        suffix: sizes.suffix(),
        offered_bps: at(Offered),
        arrived: at(Arrived),
        unfinished: at(Unfinished),
        fct_mean: at(Time(Statistic::Mean)),
        fct_p50: at(Time(half)),
        fct_p99: at(Time(most)),
        slowdown_mean: at(Slowdown(Statistic::Mean)),
        slowdown_p50: at(Slowdown(half)),
        slowdown_p99: at(Slowdown(most)),
    }
}

/// The figures that tables show, run by run.
struct Shown<'a> {
    scenario: &'a Scenario,
    measures: &'a Measures<'a>,
    runs: &'a [&'a Run],
}

impl Shown<'_> {
    /// The mean of each figure over the runs, with its confidence interval.
    fn intervals(&self) -> Vec<IntervalSummary> {
        let (usual, measures) = (self.measures.usual(), self.measures);
        let mut all = Vec::new();
        let mut add = |subject: &str, figure: String, shown: &str, of: &dyn Fn(&Run) -> f64| {
            let values: Vec<f64> = self.runs.iter().map(|run| of(run)).collect();
            let (subject, shown) = (subject.to_owned(), shown.to_owned());
            all.extend(Interval::of(&values).map(|interval| IntervalSummary {
                subject,
                figure,
                shown,
                interval,
            }));
        };
        let bits = || "throughput_bps".to_owned();
        for name in self.scenario.shown_tenants() {
            add(name, bits(), "throughput", &|run| measures.throughput(run, Some(name), usual));
        }
        add("", bits(), "throughput", &|run| measures.throughput(run, None, usual));
        for (name, _) in self.scenario.shown_asking() {
            let answers = |run: &Run| measures.answered(run, Some(name), usual) / usual.secs();
            add(name, "requests_per_second".to_owned(), "requests a second", &answers);
            for percent in [50.0, 99.0] {
                let at = |run: &Run| percentile(&measures.latencies(run, Some(name), usual), percent);
                add(name, format!("p{percent}_seconds"), &format!("p{percent}"), &at);
            }
        }
        let (average, most) = (Statistic::Mean, Statistic::Percentile(99.0));
        let figures = [
            ("fct_mean_seconds", "", FlowFigure::Time(average)),
            ("fct_p99_seconds", "", FlowFigure::Time(most)),
            ("slowdown_mean", "slowdown mean", FlowFigure::Slowdown(average)),
            ("slowdown_p99", "slowdown p99", FlowFigure::Slowdown(most)),
        ];
        for (name, _) in self.scenario.shown_workloads(|kind| matches!(kind, Kind::Flows { .. })) {
            for sizes in SizeRange::CLASSES.into_iter().chain([SizeRange::ALL]) {
                for (figure, shown, what) in figures {
                    let of = |run: &Run| measures.of_flows(run, Some(name), usual, FlowGauge { what, sizes });
                    let shown =
                        if shown.is_empty() { String::new() } else { format!("{shown} {}", sizes.name()) };
                    add(name, format!("{figure}{}", sizes.suffix()), &shown, &of);
                }
            }
        }
        all
    }
}

/// A tenant as tables show it.
fn whose<'a>(scenario: &'a Scenario, name: &'a str) -> &'a str {
    let tenant = scenario.tenants.iter().find(|tenant| tenant.name == name);
    tenant.and_then(|tenant| tenant.family.as_deref()).unwrap_or(name)
}

fn counted(drops: BTreeMap<&str, u64>) -> BTreeMap<String, u64> {
    drops.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect()
}

/// Lost packets of a run whose tenant is not known.
fn without_tenant(scenario: &Scenario, run: &Run) -> BTreeMap<String, u64> {
    let known = |name: &str| scenario.tenants.iter().any(|tenant| tenant.name == name);
    let strange = run.drops.iter().filter(|(name, _)| !known(name));
    let named = strange
        .flat_map(|(name, drops)| drops.iter().map(move |(why, count)| (format!("{name} {why}"), *count)));
    named.collect()
}

/// Lost packets by reason: the median over runs.
fn drops(runs: &[&Run], of: impl Fn(&Run) -> BTreeMap<String, u64>) -> BTreeMap<String, f64> {
    let found: Vec<BTreeMap<String, u64>> = runs.iter().map(|run| of(run)).collect();
    let reasons: BTreeSet<&String> = found.iter().flat_map(BTreeMap::keys).collect();
    let count = |reason: &String| {
        median(&found.iter().map(|drops| drops.get(reason).copied().unwrap_or(0) as f64).collect::<Vec<_>>())
    };
    reasons.into_iter().map(|reason| (reason.clone(), count(reason))).collect()
}

/// The value that was measured; nothing for `NaN`.
fn known(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
