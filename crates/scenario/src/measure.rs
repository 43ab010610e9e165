//! Figures from what was measured: throughput, percentiles, fairness.
//!
//! Why: a table, a picture and an expectation must work out the same figure in the same way.
//! From: nearest-rank percentiles; Jain, Chiu and Hawe's index; Loom §7 (FM, throughput per 50 ms).
//! Not here: expressions over figures (`expect`), how they are shown (`table`, `report`).
//! Invariant: `NaN` stands for "nothing was measured", and for nothing else.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_units::{Nanos, Span};

use crate::departures::Departures;
use crate::expect::{FlowFigure, FlowGauge, Gauge, Measured, Path, SizeRange, Statistic};
use crate::names::Names;
use crate::window::Window;
use crate::{FlowSample, Results, Run, Sample, Scenario, WorkloadResult};

/// The results of a scenario, with what is needed to read them.
#[derive(Clone, Debug)]
pub(crate) struct Measures<'a> {
    scenario: &'a Scenario,
    results: &'a Results,
    names: Names<'a>,
}

impl<'a> Measures<'a> {
    pub(crate) fn new(scenario: &'a Scenario, results: &'a Results) -> Self {
        Self { scenario, results, names: Names::new(scenario) }
    }

    /// The part of a run that is meant where none is named.
    pub(crate) fn usual(&self) -> Window {
        Window::new(self.scenario.measure.from, self.scenario.measure.to)
    }

    pub(crate) fn run(&self, system: &str, pair: u32) -> Option<&'a Run> {
        self.results.runs.iter().find(|run| run.system == system && run.pair == pair)
    }

    /// The runs of a system.
    pub(crate) fn runs(&self, system: &str) -> impl Iterator<Item = &'a Run> {
        let system = system.to_owned();
        self.results.runs.iter().filter(move |run| run.system == system)
    }

    fn found(&self, run: &'a Run, subject: Option<&str>) -> impl Iterator<Item = &'a WorkloadResult> {
        self.names.workloads(subject).into_iter().filter_map(|workload| run.workloads.get(&workload.name))
    }

    /// Bits a second of whole frames over the uplink. Windows of `measure.window` that lie in the window in part
    /// count in part.
    pub(crate) fn throughput(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        self.rate(self.found(run, subject).map(|found| &found.bytes), window)
    }

    /// Rate of what workloads send to a destination.
    pub(crate) fn to(&self, run: &'a Run, destination: &str, window: Window) -> f64 {
        let there = self.scenario.workloads.iter().filter(|workload| workload.to == destination);
        sum(there.map(|workload| self.throughput(run, Some(&workload.name), window)))
    }

    /// Rate of payload that was delivered; nothing where that was not counted.
    fn goodput(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        let delivered = || self.found(run, subject).map(|found| &found.delivered);
        if delivered().all(Vec::is_empty) { f64::NAN } else { self.rate(delivered(), window) }
    }

    fn rate(&self, series: impl Iterator<Item = &'a Vec<u64>>, window: Window) -> f64 {
        let step = self.scenario.measure.window.as_u64() as f64;
        let (from, to) = (window.from.as_u64() as f64 / step, window.to.as_u64() as f64 / step);
        let bytes = sum(series.map(|bytes| bytes_between(bytes, from, to)));
        bytes * 8.0 / window.secs()
    }

    /// Latencies in seconds of what was asked in the window and answered, sorted. What was not is [`Self::unanswered`]: it
    /// has no latency, and its wait until the run's end would grow with the run.
    pub(crate) fn latencies(&self, run: &'a Run, subject: Option<&str>, window: Window) -> Vec<f64> {
        let inside = |at: Nanos| (window.from..window.to).contains(&at);
        let samples = self.found(run, subject).flat_map(|found| &found.samples);
        let answered = samples.filter(|sample| inside(sample.at));
        let mut latencies: Vec<f64> = answered.map(|sample| sample.latency.as_secs_f64()).collect();
        latencies.sort_by(f64::total_cmp);
        latencies
    }

    /// A figure of latencies; without end where all that was asked in the window still waits.
    fn latency(
        &self,
        run: &'a Run,
        subject: Option<&str>,
        window: Window,
        of: &dyn Fn(&[f64]) -> f64,
    ) -> f64 {
        let latencies = self.latencies(run, subject, window);
        let nothing_came = latencies.is_empty() && self.unanswered(run, subject, window) > 0.0;
        if nothing_came { f64::INFINITY } else { of(&latencies) }
    }

    /// The part of what was asked in the window that had no answer when the run ended.
    pub(crate) fn unanswered(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        let due = self.found(run, subject).flat_map(|found| &found.unanswered);
        let waiting = due.filter(|due| (window.from..window.to).contains(*due)).count() as f64;
        waiting / (waiting + self.answers(run, subject, window))
    }

    /// How much of what was asked in the window was answered.
    pub(crate) fn answers(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        let samples = self.found(run, subject).flat_map(|found| &found.samples);
        samples.filter(|sample| (window.from..window.to).contains(&sample.at)).count() as f64
    }

    /// Answers that came in the window, whenever they were asked for.
    pub(crate) fn answered(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        let samples = self.found(run, subject).flat_map(|found| &found.samples);
        let came = samples.map(|sample| sample.at + sample.latency);
        came.filter(|at| (window.from..window.to).contains(at)).count() as f64
    }

    /// Requests that were never answered.
    pub(crate) fn errors(&self, run: &'a Run, subject: &str) -> f64 {
        let found: Vec<u64> = self.found(run, Some(subject)).map(|found| found.errors).collect();
        if found.is_empty() { f64::NAN } else { found.iter().sum::<u64>() as f64 }
    }

    /// Packets lost, by reason, over a tenant's or all tenants' packets.
    pub(crate) fn drops(&self, run: &'a Run, subject: Option<&str>) -> BTreeMap<&'a str, u64> {
        let mut reasons = BTreeMap::new();
        let lost: Vec<_> = match subject {
            None => run.drops.values().collect(),
            Some(name) => self.names.tenants(name).filter_map(|tenant| run.drops.get(tenant)).collect(),
        };
        for (reason, count) in lost.into_iter().flatten() {
            *reasons.entry(reason.as_str()).or_insert(0) += count;
        }
        reasons
    }

    /// When packets crossed the uplink: the subject's, and all others' where the measure looks at them.
    fn departures(&self, run: &'a Run, subject: Option<&str>, gauge: Gauge) -> Departures {
        let own = self.names.workloads(subject);
        let beside = matches!(gauge, Gauge::LeastOf(_) | Gauge::MostOf(_));
        let kept = if beside { self.names.workloads(None) } else { own.clone() };
        let own: BTreeSet<&str> = own.into_iter().map(|workload| workload.name.as_str()).collect();
        let found = kept.into_iter().filter_map(|workload| {
            Some((own.contains(workload.name.as_str()), run.workloads.get(&workload.name)?))
        });
        let all = found.flat_map(|(own, found)| found.departures.iter().map(move |one| (*one, own)));
        Departures::new(all.collect())
    }

    /// Waits of one kind that ended in the window, in seconds, sorted.
    fn waits(
        &self,
        run: &'a Run,
        subject: Option<&str>,
        window: Window,
        of: fn(&WorkloadResult) -> &Vec<Sample>,
    ) -> Vec<f64> {
        let waits = self.found(run, subject).flat_map(of);
        let inside = waits.filter(|wait| (window.from..window.to).contains(&wait.at));
        let mut waits: Vec<f64> = inside.map(|wait| wait.latency.as_secs_f64()).collect();
        waits.sort_by(f64::total_cmp);
        waits
    }

    /// Packets that engines held, on average; nothing where that was not counted.
    fn held(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        let held = || self.found(run, subject).map(|found| &found.held);
        // A rate of packet nanoseconds, as bits from bytes.
        if held().all(Vec::is_empty) { f64::NAN } else { self.rate(held(), window) / 8.0 / 1e9 }
    }

    /// Segments sent again in the window; in the whole run where no more is known.
    pub(crate) fn retransmits(&self, run: &'a Run, subject: Option<&str>, window: Window) -> f64 {
        if self.found(run, subject).any(|found| !found.resent.is_empty()) {
            return self.rate(self.found(run, subject).map(|found| &found.resent), window) / 8.0
                * window.secs();
        }
        self.known(run, subject, |found| found.retransmits)
    }

    /// The sum of a count; nothing where it was not counted.
    pub(crate) fn known(
        &self,
        run: &'a Run,
        subject: Option<&str>,
        of: fn(&WorkloadResult) -> Option<u64>,
    ) -> f64 {
        let counts: Vec<u64> = self.found(run, subject).filter_map(of).collect();
        if counts.is_empty() { f64::NAN } else { counts.iter().sum::<u64>() as f64 }
    }

    /// The part of the window in which a host's receiving CPU worked; nothing where that was not measured.
    pub(crate) fn load(&self, run: &'a Run, host: Option<&str>, window: Window) -> f64 {
        let Some(load) = host.and_then(|host| run.loads.get(host)) else { return f64::NAN };
        let worked: Vec<u64> = load.iter().map(|worked| worked.as_u64()).collect();
        // Nanoseconds as bytes, and a rate in seconds a second.
        self.rate(std::iter::once(&worked), window) / 8.0 / 1e9
    }

    /// The flows of these sizes that arrived in the window.
    fn flows(
        &self,
        run: &'a Run,
        subject: Option<&str>,
        window: Window,
        sizes: SizeRange,
    ) -> impl Iterator<Item = &'a FlowSample> {
        let flows = self.found(run, subject).flat_map(|found| &found.flows);
        flows.filter(move |flow| (window.from..window.to).contains(&flow.at) && sizes.holds(flow.size))
    }

    /// A figure of the flows that arrived in the window. What was not complete when the run ended has no completion time, and
    /// counts as unfinished.
    pub(crate) fn of_flows(
        &self,
        run: &'a Run,
        subject: Option<&str>,
        window: Window,
        gauge: FlowGauge,
    ) -> f64 {
        let flows = || self.flows(run, subject, window, gauge.sizes);
        let statistic = |value: &dyn Fn(&FlowSample) -> Option<f64>, statistic| {
            let mut values: Vec<f64> = flows().filter_map(value).collect();
            values.sort_by(f64::total_cmp);
            match statistic {
                Statistic::Mean => mean(&values),
                Statistic::Percentile(percent) => percentile(&values, percent),
            }
        };
        match gauge.what {
            FlowFigure::Time(of) => statistic(&|flow| Some(flow.took?.as_secs_f64()), of),
            FlowFigure::Slowdown(of) => statistic(&FlowSample::slowdown, of),
            FlowFigure::Arrived => flows().count() as f64,
            FlowFigure::Unfinished => flows().filter(|flow| flow.took.is_none()).count() as f64,
            FlowFigure::Offered => sum(flows().map(|flow| flow.size as f64)) * 8.0 / window.secs(),
        }
    }

    fn gauge(&self, run: &'a Run, path: &Path, window: Window) -> f64 {
        let subject = path.subject.as_deref();
        let latency = |of: &dyn Fn(&[f64]) -> f64| self.latency(run, subject, window, of);
        let waits = |of| self.waits(run, subject, window, of);
        let cores = |time: Option<Span>| {
            time.map_or(f64::NAN, |time| time.as_secs_f64() / self.scenario.duration.as_secs_f64())
        };
        match path.measure {
            Gauge::Flows(gauge) => self.of_flows(run, subject, window, gauge),
            Gauge::Throughput => self.throughput(run, subject, window),
            Gauge::Goodput => self.goodput(run, subject, window),
            Gauge::Requests => self.answers(run, subject, window) / window.secs(),
            Gauge::Samples => self.answers(run, subject, window),
            Gauge::Unanswered => self.unanswered(run, subject, window),
            Gauge::Answered => self.answered(run, subject, window) / window.secs(),
            Gauge::Percentile(percent) => latency(&|all| percentile(all, percent)),
            Gauge::LatencyMean => latency(&mean),
            Gauge::LatencyMax => latency(&|all| all.last().copied().unwrap_or(f64::NAN)),
            Gauge::Packets => self.found(run, subject).map(|found| found.packets).sum::<u64>() as f64,
            Gauge::Errors => self.found(run, subject).map(|found| found.errors).sum::<u64>() as f64,
            Gauge::Drops => self.drops(run, subject).values().sum::<u64>() as f64,
            Gauge::NicDrops => {
                self.drops(run, subject).get("rx_ring_full").map_or(0.0, |count| *count as f64)
            }
            Gauge::Retransmits => self.retransmits(run, subject, window),
            Gauge::Marks => self.known(run, subject, |found| found.marks),
            Gauge::Ecn => self.known(run, subject, |found| found.ecn.map(|ends| ends[0])),
            Gauge::Echoed => self.known(run, subject, |found| found.echoed.map(|ends| ends[0])),
            Gauge::Changed => self.known(run, subject, |found| found.changed),
            Gauge::Metered => self.known(run, subject, |found| found.metered),
            Gauge::Load => self.load(run, subject, window),
            Gauge::TopShare => {
                mean(&run.tops.iter().map(|&top| f64::from(top) / 1_000.0).collect::<Vec<_>>())
            }
            Gauge::Held => self.held(run, subject, window),
            Gauge::EgressMean => mean(&waits(|found| &found.egress_waits)),
            Gauge::EgressPercentile(percent) => percentile(&waits(|found| &found.egress_waits), percent),
            Gauge::NicMean => mean(&waits(|found| &found.nic_waits)),
            Gauge::NicPercentile(percent) => percentile(&waits(|found| &found.nic_waits), percent),
            Gauge::CallMean => mean(&waits(|found| &found.calls)),
            Gauge::CallPercentile(percent) => percentile(&waits(|found| &found.calls), percent),
            Gauge::IngressMean => mean(&waits(|found| &found.waits)),
            Gauge::IngressPercentile(percent) => percentile(&waits(|found| &found.waits), percent),
            Gauge::Counter(name) => run.counters.get(name).map_or(f64::NAN, |count| *count as f64),
            Gauge::Cpu => cores(run.cpu),
            Gauge::EndsCpu => cores(run.ends_cpu),
            gauge => self.departures(run, subject, gauge).gauge(gauge, window),
        }
    }
}

impl Measured for Measures<'_> {
    fn values(&self, path: &Path, pair: u32) -> Option<Vec<f64>> {
        let run = self.run(&path.system, pair)?;
        let window = path.window.map_or_else(|| self.usual(), |(from, to)| Window::new(from, to));
        Some(match path.per {
            None if path.each => {
                let members = self.scenario.family(path.subject.as_deref().unwrap_or_default());
                let one = |name: &&str| {
                    let path = Path { subject: Some((*name).to_owned()), ..path.clone() };
                    self.gauge(run, &path, window)
                };
                members.iter().map(one).collect()
            }
            None => vec![self.gauge(run, path, window)],
            Some(per) => window.parts(per).map(|part| self.gauge(run, path, part)).collect(),
        })
    }

    fn pairs(&self) -> u32 {
        self.results.runs.iter().map(|run| run.pair + 1).max().unwrap_or(0)
    }

    fn line(&self) -> f64 {
        self.scenario.rate.get() as f64
    }
}

/// `NaN` of none.
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sum of these values. Of none it is zero, where `Iterator::sum` gives -0.0, which a table shows as `-0`.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

/// Bytes between two moments that are counted in windows.
fn bytes_between(windows: &[u64], from: f64, to: f64) -> f64 {
    let first = from.floor().max(0.0) as usize;
    let inside = windows.iter().enumerate().skip(first).take_while(|(n, _)| (*n as f64) < to);
    let part = |n: usize| (to.min(n as f64 + 1.0) - from.max(n as f64)).max(0.0);
    sum(inside.map(|(n, bytes)| *bytes as f64 * part(n)))
}

/// The nearest-rank percentile of sorted values; `NaN` of none.
pub(crate) fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted.get(rank.max(1) - 1).or(sorted.last()).copied().unwrap_or(f64::NAN)
}

/// The middle of values that need not be sorted, or the mean of the two in the middle. A `NaN` makes it `NaN`.
pub(crate) fn median(values: &[f64]) -> f64 {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[half - 1] + sorted[half]) / 2.0 } else { sorted[half] }
}

/// Jain's fairness index: 1 when all get the same, 1/n when one gets everything.
///
/// ```
/// assert_eq!(plimsoll_scenario::jain(&[5.0, 5.0]), 1.0);
/// assert_eq!(plimsoll_scenario::jain(&[10.0, 0.0]), 0.5);
/// ```
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_was_sent_there_are_zero_bytes_and_not_minus_zero() {
        let shown = |bytes: f64| format!("{bytes:.0} %");
        assert_eq!(shown(bytes_between(&[], 0.0, 3.0)), "0 %");
        assert_eq!(shown(bytes_between(&[5, 5], 2.0, 3.0)), "0 %", "behind the last window");
        assert_eq!(shown(sum([-0.0].into_iter())), "0 %");
        assert_eq!(bytes_between(&[4, 8, 6], 0.5, 2.5), 2.0 + 8.0 + 3.0);
    }
}
