//! Systems that take turns in one world, under traffic that goes on.
//!
//! Why: two worlds differ by more than what is compared where that is a few percent: a core's speed drifts with what else the
//! machine's caches serve, by a tenth in a minute. Turns of a second meet the same core.
//! From: interleaving, as `pairs` do it, at the grain of that drift; a reload is what an operator would do.
//! Not here: when the run ends, and what its workloads got (`run`).
//! Invariant: a turn's figures are of its own time alone, and its CPU time of what is measured of it.

use crate::Progress;
use crate::clock::Clock;
use crate::error::LabError;
use crate::world::{Drops, Setup, World, fleet};
use plimsoll_scenario::{Run, Sample, Scenario, System, WorkloadResult};
use plimsoll_units::{Nanos, Span};
use std::collections::BTreeMap;
use std::time::Duration;

/// What frames each workload got across, by its name, in windows of `measure.window`.
pub(crate) type Frames = BTreeMap<String, Vec<u64>>;

/// The turns of a run, each as long as the scenario's `duration`.
pub(crate) struct Turns<'a> {
    scenario: &'a Scenario,
    systems: &'a [&'a System],
    pairs: u32,
    setup: &'a Setup,
    taken: Vec<Turn>,
    step: Step,
}

/// What is done next.
#[derive(Clone, Copy)]
enum Step {
    /// The next system's turn begins.
    HandOver,
    /// Its measuring does.
    Begin,
    /// Both end; measuring began at that moment with so much CPU time used.
    End(u64, Option<Duration>),
}

/// What one turn used and lost.
struct Turn {
    cpu: Option<Span>,
    drops: Drops,
}

/// Why systems cannot take turns in this world, if they cannot.
pub(crate) fn refuse(scenario: &Scenario, systems: &[&System]) -> Option<String> {
    if let Some(system) = systems.iter().find(|system| !system.kind.on_engine()) {
        return Some(format!(
            "system `{}` is not Plimsoll's engine, which alone can be reloaded",
            system.name
        ));
    }
    let fleet = fleet::is_fleet(scenario);
    let not_here = |system: &&System| fleet.then(|| fleet::not_here(scenario, system)).flatten();
    if let Some(why) = systems.iter().find_map(not_here) {
        return Some(why.to_owned());
    }
    let window = scenario.measure.window.as_u64().max(1);
    if !scenario.duration.as_u64().is_multiple_of(window) {
        return Some(format!("`duration` {} is no multiple of `measure.window`", scenario.duration));
    }
    let all = |workload: &&plimsoll_scenario::Workload| {
        workload.start > Span::ZERO || workload.stop < scenario.duration
    };
    let found = scenario.workloads.iter().find(all)?;
    Some(format!("workload `{}` does not go on throughout; leave its `start` and `stop` away", found.name))
}

impl<'a> Turns<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        systems: &'a [&'a System],
        pairs: u32,
        setup: &'a Setup,
    ) -> Self {
        Self { scenario, systems, pairs, setup, taken: Vec::new(), step: Step::HandOver }
    }

    /// The scenario of all turns one after the other.
    pub(crate) fn whole(&self) -> Scenario {
        let mut whole = self.scenario.clone();
        whole.duration = self.scenario.duration.times(self.count() as u64);
        whole.workloads.iter_mut().for_each(|workload| workload.stop = whole.duration);
        whole
    }

    /// When the next step is due, from the start of the run.
    pub(crate) fn due(&self) -> u64 {
        let turn = self.scenario.duration.as_u64();
        let began = turn * self.taken.len() as u64;
        match self.step {
            Step::HandOver => began,
            Step::Begin => began + self.scenario.measure.from.as_u64(),
            Step::End(..) => began + turn,
        }
    }

    /// Does what is due, and says whose turn began with it, if one did.
    pub(crate) fn take(&mut self, world: &mut World, clock: &Clock) -> Result<Option<Progress>, LabError> {
        let mut begun = None;
        while self.taken.len() < self.count() && self.due() <= clock.now() {
            self.step = match self.step {
                Step::HandOver => {
                    let system = self.whose(self.taken.len());
                    world.hand_over(self.scenario, system, self.setup)?;
                    begun = Some(self.began(system));
                    Step::Begin
                }
                Step::Begin => {
                    world.begin()?;
                    Step::End(clock.now(), world.cpu())
                }
                Step::End(began, before) => {
                    let (ended, after) = (clock.now(), world.cpu());
                    let drops = world.tally(Duration::from_nanos(ended - began))?.drops;
                    let used = after.zip(before).map(|(after, before)| after.saturating_sub(before));
                    let cpu = used.map(|used| self.of_a_turn(used, ended - began));
                    self.taken.push(Turn { cpu, drops });
                    Step::HandOver
                }
            };
        }
        Ok(begun)
    }

    /// What has come of each turn, from what all of them got together.
    pub(crate) fn runs(self, whole: &BTreeMap<String, WorkloadResult>, frames: &Frames) -> Vec<Run> {
        let run = |(index, turn): (usize, &Turn)| {
            let part = |(name, result): (&String, &WorkloadResult)| {
                let frames = frames.get(name).map_or(&[][..], Vec::as_slice);
                (name.clone(), self.part(result, frames, index))
            };
            Run {
                system: self.whose(index).name.clone(),
                pair: self.pair(index),
                workloads: whole.iter().map(part).collect(),
                drops: turn.drops.clone(),
                cpu: turn.cpu,
                ..Run::default()
            }
        };
        self.taken.iter().enumerate().map(run).collect()
    }

    fn began(&self, system: &System) -> Progress {
        let index = self.taken.len();
        let (name, pair) = (system.name.clone(), self.pair(index));
        Progress::System { index, total: self.count(), name, pair }
    }

    fn pair(&self, turn: usize) -> u32 {
        u32::try_from(turn / self.systems.len()).unwrap_or(u32::MAX)
    }

    fn count(&self) -> usize {
        self.systems.len() * self.pairs as usize
    }

    /// There and back again, so that a machine that grows slower favours nobody.
    fn whose(&self, turn: usize) -> &'a System {
        let (pair, place) = (turn / self.systems.len(), turn % self.systems.len());
        let back = self.systems.len() - 1 - place;
        self.systems[if pair.is_multiple_of(2) { place } else { back }]
    }

    /// What was used in so much of a turn, as what the whole turn would.
    fn of_a_turn(&self, used: Duration, measured: u64) -> Span {
        let turn = u128::from(self.scenario.duration.as_u64());
        let scaled = used.as_nanos() * turn / u128::from(measured.max(1));
        Span::ns(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// What of a workload's figures is of one turn. Errors have no moment, and count in each.
    fn part(&self, result: &WorkloadResult, frames: &[u64], index: usize) -> WorkloadResult {
        let turn = self.scenario.duration;
        let windows = usize::try_from(turn.as_u64() / self.scenario.measure.window.as_u64().max(1));
        let windows = windows.unwrap_or(usize::MAX);
        let series = |all: &[u64]| -> Vec<u64> {
            all.iter().skip(index.saturating_mul(windows)).take(windows).copied().collect()
        };
        let from = Nanos::ZERO + turn.times(index as u64);
        let own = |at: Nanos| (from..from + turn).contains(&at).then(|| Nanos::ZERO + at.since(from));
        let sample = |sample: &Sample| Some(Sample { at: own(sample.at)?, ..*sample });
        let departure = |one: &plimsoll_scenario::Departure| {
            Some(plimsoll_scenario::Departure { at: own(one.at)?, ..*one })
        };
        WorkloadResult {
            bytes: series(&result.bytes),
            delivered: series(&result.delivered),
            packets: series(frames).iter().sum(),
            samples: result.samples.iter().filter_map(sample).collect(),
            unanswered: result.unanswered.iter().filter_map(|due| own(*due)).collect(),
            departures: result.departures.iter().filter_map(departure).collect(),
            errors: result.errors,
            ..WorkloadResult::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_scenario::{Departure, Form};

    const TEXT: &str = "
name: t
rate: 10Mbps
duration: 200ms
one_world: true
measure: {window: 100ms}
systems: [a: {kind: plimsoll}, b: {kind: plimsoll}]
tenants: {t: {}}
workloads: {w: {tenant: t, kind: bulk}}
";

    fn of(text: &str) -> Scenario {
        let read = Scenario::parse(text, "t.yaml", std::path::Path::new(""), Form::Full);
        read.unwrap_or_else(|errors| panic!("{}", errors.render(false)))
    }

    #[test]
    fn a_turn_gets_what_fell_into_it_by_its_own_clock() {
        let scenario = of(TEXT);
        let systems: Vec<&System> = scenario.systems.iter().collect();
        let setup = Setup { binary: "x".into(), scratch: "y".into() };
        let mut turns = Turns::new(&scenario, &systems, 2, &setup);
        assert_eq!(turns.whole().duration, Span::millis(800));
        assert_eq!(turns.whole().workloads[0].stop, Span::millis(800));
        let drops = |n: u64| Drops::from([("t".to_owned(), BTreeMap::from([("why".to_owned(), n)]))]);
        turns.taken = (0..4).map(|n| Turn { cpu: Some(Span::millis(n)), drops: drops(n) }).collect();
        let at = |ms: u64| Nanos::ZERO + Span::millis(ms);
        let latency = Span::micros(7);
        let result = WorkloadResult {
            bytes: vec![1, 2, 3, 4, 5, 6, 7],
            samples: [199, 200, 650, 800].map(|ms| Sample { at: at(ms), latency }).to_vec(),
            unanswered: vec![at(399)],
            departures: vec![Departure { at: at(600), len: 60 }],
            ..WorkloadResult::default()
        };
        let whole = BTreeMap::from([("w".to_owned(), result)]);
        let frames = Frames::from([("w".to_owned(), vec![10, 20, 30, 40, 50, 60, 70])]);
        let runs = turns.runs(&whole, &frames);
        let told: Vec<_> = runs.iter().map(|run| (run.system.as_str(), run.pair, run.cpu)).collect();
        let cpu = |ms| Some(Span::millis(ms));
        assert_eq!(told, [("a", 0, cpu(0)), ("b", 0, cpu(1)), ("b", 1, cpu(2)), ("a", 1, cpu(3))]);
        assert_eq!(runs[3].drops, drops(3));
        let part = |turn: usize| &runs[turn].workloads["w"];
        assert_eq!((&part(0).bytes, part(0).packets), (&vec![1, 2], 30));
        assert_eq!((&part(3).bytes, part(3).packets), (&vec![7], 70));
        let asked = |turn| part(turn).samples.iter().map(|sample| sample.at).collect::<Vec<_>>();
        assert_eq!(
            [asked(0), asked(1), asked(2), asked(3)],
            [vec![at(199)], vec![at(0)], vec![], vec![at(50)]]
        );
        assert_eq!((&part(1).unanswered, part(3).departures[0].at), (&vec![at(199)], at(0)));
    }

    #[test]
    fn cpu_time_of_what_is_measured_stands_for_the_turn() {
        let scenario = of(TEXT);
        let setup = Setup { binary: "x".into(), scratch: "y".into() };
        let turns = Turns::new(&scenario, &[], 1, &setup);
        let used = turns.of_a_turn(Duration::from_millis(30), Span::millis(150).as_u64());
        assert_eq!(used, Span::millis(40), "a fifth of a core, for 200 ms");
    }
}
