//! Traces of connections and links over time.
//!
//! Why: why a flow was slow shows in its window and in the queues before it, moment by moment.
//! From: samples at even intervals. When there are too many, every second one is dropped and the interval doubles, so that a
//! run of any length takes a bounded memory and its traces stay even.
//! Not here: files and pictures of traces (`scenario`).
//! Invariant: sampling changes nothing else in a run; memory is bounded.

use std::collections::BTreeMap;

use plimsoll_scenario::{FlowPoint, FlowTrace, LinkPoint, LinkTrace, Series};
use plimsoll_units::{Nanos, Span};

use crate::agenda::SourceId;

/// Ends of connections that are traced: those that send first.
const MOST_FLOWS: usize = 1_000;

/// Takes samples during a run.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) source: SourceId,
    end: Nanos,
    ticks: u64,
    points: usize,
    /// The places of ends of connections in `series`, by flow and direction; nothing where one is left out.
    places: BTreeMap<(u32, bool), Option<usize>>,
    /// The host whose engine or limiter sends over a link.
    pub(crate) hosts: Vec<Option<u32>>,
    series: Series,
    most: usize,
}

impl Sampler {
    /// A sampler of the links of these names, for a run until `end`, that keeps about `most` samples. `hosts` are the hosts that
    /// send over each of the links.
    pub(crate) fn new(
        source: SourceId,
        (interval, end): (Span, Nanos),
        most: usize,
        links: impl Iterator<Item = String>,
        hosts: Vec<Option<u32>>,
    ) -> Self {
        let links = links.map(|link| LinkTrace { link, points: Vec::new() }).collect();
        let series = Series { interval: interval.max(Span::ns(1)), flows: Vec::new(), links, left_out: 0 };
        Self { source, end, ticks: 0, points: 0, places: BTreeMap::new(), hosts, series, most }
    }

    /// Adds a sample of one end of a connection; `whose` makes its trace when it is the first.
    pub(crate) fn flow(&mut self, key: (u32, bool), point: FlowPoint, whose: impl FnOnce() -> FlowTrace) {
        let series = &mut self.series;
        let place = self.places.entry(key).or_insert_with(|| {
            if series.flows.len() == MOST_FLOWS {
                series.left_out += 1;
                return None;
            }
            series.flows.push(whose());
            Some(series.flows.len() - 1)
        });
        if let Some(place) = *place {
            series.flows[place].points.push(point);
            self.points += 1;
        }
    }

    /// Adds a sample of a link.
    pub(crate) fn link(&mut self, link: usize, point: LinkPoint) {
        self.series.links[link].points.push(point);
        self.points += 1;
    }

    /// Ends a moment's samples, and returns the next moment, if the run lasts so long.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<Nanos> {
        self.ticks += 1;
        if self.points > self.most {
            self.thin();
        }
        let interval = self.series.interval.as_u64();
        let next = Nanos::new((now.as_u64() / interval + 1).saturating_mul(interval));
        (next <= self.end).then_some(next)
    }

    /// Drops the samples between those of twice the interval.
    fn thin(&mut self) {
        self.series.interval = self.series.interval.times(2);
        let interval = self.series.interval.as_u64();
        let stays = |at: Nanos| at.as_u64().is_multiple_of(interval);
        self.series.flows.iter_mut().for_each(|trace| trace.points.retain(|point| stays(point.at)));
        self.series.links.iter_mut().for_each(|trace| trace.points.retain(|point| stays(point.at)));
        let flows = self.series.flows.iter().map(|trace| trace.points.len());
        self.points = flows.chain(self.series.links.iter().map(|trace| trace.points.len())).sum();
    }

    /// The traces.
    pub(crate) fn finish(self) -> Series {
        let mut series = self.series;
        series.flows.retain(|trace| !trace.points.is_empty());
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_keeps_even_samples_in_bounded_memory() {
        let end = Nanos::new(1_000_000);
        let names = ["up".to_owned()].into_iter();
        let mut sampler = Sampler::new(0, (Span::ns(10), end), 100, names, vec![None]);
        let mut now = Some(Nanos::ZERO);
        while let Some(at) = now {
            sampler.link(0, LinkPoint { at, queue: at.as_u64(), sent: 0 });
            now = sampler.next(at);
        }
        let series = sampler.finish();
        let points = &series.links[0].points;
        assert!((50..=100).contains(&points.len()), "{}", points.len());
        assert!(points.windows(2).all(|two| two[1].at - two[0].at == series.interval), "even");
        assert!(points[points.len() - 1].at + series.interval > end, "to the end");
    }

    #[test]
    fn flows_beyond_the_most_are_counted_and_not_traced() {
        let mut sampler =
            Sampler::new(0, (Span::ns(10), Nanos::new(10)), usize::MAX, std::iter::empty(), Vec::new());
        let point = FlowPoint { at: Nanos::ZERO, cwnd: 1, in_flight: 0, rtt: None, acked: 0 };
        for flow in (0..MOST_FLOWS as u32 + 7).chain([0, MOST_FLOWS as u32]) {
            sampler.flow((flow, false), point, FlowTrace::default);
        }
        let series = sampler.finish();
        assert_eq!((series.flows.len(), series.left_out), (MOST_FLOWS, 7));
        assert_eq!(series.flows[0].points.len(), 2);
    }
}
