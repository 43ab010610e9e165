//! The flows of a workload of kind `flows`: when each arrives, its size, its ends, and how long it would take alone.
//!
//! Why: the same flows arrive in every system, so that systems compare flow by flow.
//! From: Poisson arrivals; ends and sizes are drawn independently (pFabric §5.1).
//! Not here: distributions of sizes (`scenario`), flows at work (`traffic::flows`).
//! Invariant: what arrives follows from the seed and the workload's name.

use plimsoll_scenario::{FlowPace, FlowSizes, Problem, Workload};
use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Nanos, Span};

use super::Builder;
use crate::chance::Chance;
use crate::error::SimError;
use crate::flow::{End, Flow};
use crate::packet::{IP_HEADERS, SHORTEST};
use crate::source_ports::SourcePorts;
use crate::tcp;
use crate::traffic::Arrival;
use crate::world::{SYN_HEADER, TCP_HEADER};

/// Flows of one workload: each takes some hundred bytes for the whole run.
const MOST: f64 = 1e6;

/// The links between two ends.
struct Path {
    /// Rate, where there is one, and the bytes that each frame costs there beyond its own.
    links: Vec<(Option<BitRate>, u32)>,
    delay: Span,
}

/// Draws when flows arrive, and how long each is.
struct Source<'a> {
    sizes: &'a FlowSizes,
    /// The mean time from one to the next, in nanoseconds.
    gap: f64,
    chance: Chance,
    at: f64,
}

impl Source<'_> {
    /// The mean time between flows, in nanoseconds, at a load of each of `senders`, or at a rate.
    fn gap(pace: FlowPace, sizes: &FlowSizes, senders: usize) -> f64 {
        let second = NS_PER_SEC as f64;
        match pace {
            FlowPace::Rate(rate) => second / f64::from(rate.max(1)),
            FlowPace::Load(load, link) => {
                sizes.mean() * 8.0 * second / (load * link.get() as f64 * senders.max(1) as f64)
            }
        }
    }

    fn next(&mut self) -> (Nanos, u64) {
        // Kept as a fraction: gaps may be shorter than a nanosecond's rounding would bear.
        self.at -= libm::log(self.chance.unit()) * self.gap;
        (Nanos::new(self.at as u64), self.sizes.at(self.chance.unit()))
    }
}

impl Builder<'_> {
    /// Draws the flows of a workload and adds them to the world.
    pub(super) fn arriving(
        &mut self,
        workload: &Workload,
        index: u32,
        (sizes, pace, handshake): (&FlowSizes, FlowPace, bool),
        pairs: &[(End, End)],
    ) -> Result<Vec<Arrival>, SimError> {
        let mut senders: Vec<_> = pairs.iter().map(|(client, _)| client.address).collect();
        senders.sort_unstable();
        senders.dedup();
        let gap = Source::gap(pace, sizes, senders.len());
        let (start, stop) = (workload.start.as_u64(), workload.stop.as_u64());
        let expected = (stop - start) as f64 / gap;
        if expected > MOST {
            let message = format!(
                "about {expected:.0} flows arrive from workload `{}`, and {MOST} are the most",
                workload.name
            );
            let problem = Problem::new(workload.place, message).label("too many flows");
            return Err(self.wrong(problem.help("lower its load or rate, or let it run for a shorter time")));
        }
        let at = start as f64;
        let mut source = Source { sizes, gap, chance: self.chance(workload, "flows"), at };
        let mut ends = self.chance(workload, "ends");
        let kinds = self.kinds_of(workload, pairs, handshake);
        let mut arrivals = Vec::new();
        loop {
            let (at, size) = source.next();
            if at >= Nanos::new(stop) {
                return Ok(arrivals);
            }
            let pair = ends.below(pairs.len() as u32) as usize;
            let (client, server) = pairs[pair];
            let port = SourcePorts::nth(arrivals.len() as u32);
            let flow = [End { port, ..client }, server];
            self.world.flows.push(Flow {
                workload: index,
                ends: flow,
                protocol: 6,
                socket: 0,
                through: None,
            });
            let (settings, path, back, mss) = &kinds[pair];
            let ideal = alone(path, back, size, *mss, handshake);
            arrivals.push(Arrival { at, size, ideal, settings: *settings });
        }
    }

    /// The settings and ways of each pair of ends.
    fn kinds_of(
        &mut self,
        workload: &Workload,
        pairs: &[(End, End)],
        handshake: bool,
    ) -> Vec<([u16; 2], Path, Path, u32)> {
        let seed = self.chance(workload, "phases").below(u32::MAX).into();
        let kind = |&(client, server): &(End, End)| {
            let configs = self.tcp_settings(workload, [client, server]);
            let mss = configs[0].mss.into();
            let settings = configs.map(|config| self.setting(tcp::Config { handshake, seed, ..config }));
            let ways = [(client, server), (server, client)].map(|(from, to)| self.path(from.node, to.node));
            let [path, back] = ways;
            (settings, path, back, mss)
        };
        pairs.iter().map(kind).collect()
    }

    /// The number of these settings.
    fn setting(&mut self, config: tcp::Config) -> u16 {
        let settings = &mut self.world.settings;
        let known = settings.iter().position(|other| *other == config);
        let place = known.unwrap_or_else(|| {
            settings.push(config);
            settings.len() - 1
        });
        u16::try_from(place).expect("settings differ by ECN, offload and completions only")
    }

    /// The links from one node to another; the first of equal ways, which are alike in all but their rates.
    fn path(&self, from: u32, to: u32) -> Path {
        let mut path = Path { links: Vec::new(), delay: Span::ZERO };
        let mut node = from;
        while node != to {
            let Some(&link) = self.world.routes.ways(node, to).first() else { return path };
            let edge = &self.topology.links[link as usize];
            path.links.push((edge.spec.rate, edge.spec.overhead.of_frame()));
            path.delay += edge.spec.delay;
            node = edge.to;
        }
        path
    }
}

/// How long a flow of `size` bytes takes on an empty network that its sender may fill at once: a handshake, the delay of all links,
/// the time that all its frames take on the slowest link, and that one frame takes on each other link.
fn alone(path: &Path, back: &Path, size: u64, mss: u32, handshake: bool) -> Span {
    let frame = |payload: u64| (payload + u64::from(IP_HEADERS + TCP_HEADER)).max(SHORTEST.into());
    let mss = u64::from(mss.max(1));
    let (full, rest) = (size / mss, size % mss);
    let all = full * frame(mss) + if rest > 0 { frame(rest) } else { 0 };
    let (first, last) = (frame(size.min(mss)), frame(if rest > 0 { rest } else { mss }));
    let frames = full + u64::from(rest > 0);
    let time = |&(rate, overhead): &(Option<BitRate>, u32), bytes: u64, frames: u64| {
        rate.map_or(Span::ZERO, |rate| rate.wire_time(Bytes::new(bytes + u64::from(overhead) * frames)))
    };
    let slowest = (0..path.links.len()).max_by_key(|&n| (time(&path.links[n], all, frames), n));
    let mut ideal = path.delay;
    for (n, link) in path.links.iter().enumerate() {
        ideal += match slowest {
            Some(slowest) if n < slowest => time(link, first, 1),
            Some(slowest) if n == slowest => time(link, all, frames),
            _ => time(link, last, 1),
        };
    }
    let syn = u64::from(IP_HEADERS + SYN_HEADER);
    for way in [path, back].into_iter().filter(|_| handshake) {
        ideal += way.delay;
        way.links.iter().for_each(|link| ideal += time(link, syn, 1));
    }
    ideal
}

#[cfg(test)]
mod tests {
    use plimsoll_scenario::{Form, Kind, Scenario};

    use super::*;

    fn sizes(name: &str) -> FlowSizes {
        let text = format!(
            "name: s\nrate: 1Gbps\nduration: 1s\nsystems: [fifo]\ntenants: {{a: {{}}}}\n\
             workloads: {{w: {{tenant: a, kind: flows, sizes: {name}, load: 0.5}}}}\n"
        );
        let scenario = Scenario::parse(&text, "s.yaml", "".as_ref(), Form::Virtual);
        let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        match &scenario.workloads[0].kind {
            Kind::Flows { sizes, .. } => sizes.clone(),
            kind => panic!("{kind:?}"),
        }
    }

    /// Load is what researchers set, so it has to be what they get. Data mining has flows of up to a gigabyte: its mean settles slowly.
    #[test]
    fn a_long_run_has_the_load_that_was_asked_for() {
        for (name, flows) in
            [("web_search", 300_000), ("hadoop", 300_000), ("data_mining", 3_000_000), ("20kB", 100_000)]
        {
            for (load, senders) in [(0.6, 1), (0.3, 16)] {
                let (sizes, link) = (sizes(name), BitRate::gbps(10));
                let gap = Source::gap(FlowPace::Load(load, link), &sizes, senders);
                let mut source = Source { sizes: &sizes, gap, chance: Chance::of(1, name), at: 0.0 };
                let (mut bytes, mut end) = (0, 0);
                for _ in 0..flows {
                    let (at, size) = source.next();
                    (bytes, end) = (bytes + size, at.as_u64());
                }
                let rate = bytes as f64 * 8e9 / end as f64 / senders as f64;
                let achieved = rate / link.get() as f64;
                assert!((achieved / load - 1.0).abs() < 0.02, "{name}: {achieved} of {load}");
            }
        }
    }

    #[test]
    fn a_flow_alone_takes_a_handshake_the_slowest_link_and_a_frame_on_each_other() {
        let link = |gbps| (Some(BitRate::gbps(gbps)), 0);
        let way = |links: Vec<_>| Path { delay: Span::micros(5).times(links.len() as u64), links };
        let (path, back) = (way(vec![link(12), link(8)]), way(vec![link(8), link(12)]));
        // Frames of 1,514 bytes: 10 on 8 Gb/s, one on 12 Gb/s before them.
        let time = alone(&path, &back, 14_480, 1_448, false);
        assert_eq!(time, Span::ns(10_000 + 10 * 1_514 + 1_010));
        let syn = 2 * (74 + 50) + 20_000;
        assert_eq!(alone(&path, &back, 14_480, 1_448, true), time + Span::ns(syn));
        // A free link takes no time, and an end that is the other end's neighbour has none.
        let free = Path { links: vec![(None, 0)], delay: Span::micros(5) };
        assert_eq!(alone(&free, &free, 1, 1_448, false), Span::micros(5));
    }
}
