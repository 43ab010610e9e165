//! Lets systems take turns in one world, under traffic that goes on.
//!
//! Why: a comparison of a few percent needs one world. A core's speed drifts by a tenth in a minute, with the other load on
//! the machine's caches; turns of a second all meet the same speed.
//! From: interleaving, as with `pairs`, but faster than the drift; systems change by a reload, as an operator does it.
//! Not here: the end of the run, and workloads' results (`run`); the conditions for turns (`scenario`).
//! Invariant: a turn's figures cover only its own time, its CPU time only the measured part; late steps are reported.

use crate::Progress;
use crate::clock::Clock;
use crate::error::LabError;
use crate::world::{Drops, Setup, World};
use plimsoll_scenario::{Departure, Run, Sample, Scenario, System, WorkloadResult};
use plimsoll_units::{Nanos, Span};
use std::collections::BTreeMap;
use std::time::Duration;

/// Number of frames of each workload, by its name, in each window of `measure.window`.
pub(crate) type Frames = BTreeMap<String, Vec<u64>>;

/// The turns of a run, each as long as the scenario's `duration`.
pub(crate) struct Turns<'a> {
    scenario: &'a Scenario,
    systems: &'a [&'a System],
    pairs: u32,
    setup: &'a Setup,
    taken: Vec<Turn>,
    step: Step,
    late: Late,
}

/// The next step.
#[derive(Clone, Copy)]
enum Step {
    /// The next system's turn begins.
    HandOver,
    /// Measuring begins.
    Begin,
    /// Measuring ends; it began at this time, with this CPU time used.
    End(u64, Option<Duration>),
}

/// CPU time and losses of one turn.
struct Turn {
    cpu: Option<Span>,
    drops: Drops,
}

/// Number of times that measuring began or ended more than a window late, and the longest delay.
#[derive(Default)]
struct Late {
    times: u32,
    most: u64,
}

impl<'a> Turns<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        systems: &'a [&'a System],
        pairs: u32,
        setup: &'a Setup,
    ) -> Self {
        let (step, late) = (Step::HandOver, Late::default());
        Self { scenario, systems, pairs, setup, taken: Vec::new(), step, late }
    }

    /// The scenario extended to the length of all turns.
    pub(crate) fn whole(&self) -> Scenario {
        let mut whole = self.scenario.clone();
        whole.duration = self.scenario.duration.times(self.count() as u64);
        whole.workloads.iter_mut().for_each(|workload| workload.stop = whole.duration);
        whole
    }

    /// Time of the next step, from the start of the run.
    pub(crate) fn due(&self) -> u64 {
        let began = self.scenario.duration.as_u64() * self.taken.len() as u64;
        match self.step {
            Step::HandOver => began,
            Step::Begin => began + self.scenario.measure.from.as_u64(),
            Step::End(..) => began + self.scenario.measure.to.as_u64(),
        }
    }

    /// Whether all turns are over.
    pub(crate) fn over(&self) -> bool {
        self.taken.len() >= self.count()
    }

    /// Takes the steps that are due; returns the turn that began with them, if one did.
    pub(crate) fn take(&mut self, world: &mut World, clock: &Clock) -> Result<Option<Progress>, LabError> {
        let mut begun = None;
        while !self.over() && self.due() <= clock.now() {
            self.step = match self.step {
                Step::HandOver => {
                    let system = self.system_of(self.taken.len());
                    world.hand_over(self.scenario, system, self.setup)?;
                    world.begin()?;
                    begun = Some(self.began(system));
                    Step::Begin
                }
                Step::Begin => Step::End(self.note(clock.now()), world.cpu()),
                Step::End(began, before) => {
                    let (ended, after) = (self.note(clock.now()), world.cpu());
                    let used = after.zip(before).map(|(after, before)| after.saturating_sub(before));
                    let cpu = used.map(|used| self.of_a_turn(used, ended - began));
                    self.taken.push(Turn { cpu, drops: world.lost()? });
                    Step::HandOver
                }
            };
        }
        Ok(begun)
    }

    /// Divides the results of the whole run into those of each turn; also returns notes.
    pub(crate) fn runs(
        self,
        whole: BTreeMap<String, WorkloadResult>,
        frames: &Frames,
    ) -> (Vec<Run>, Vec<String>) {
        let run = |(index, turn): (usize, &Turn)| Run {
            system: self.system_of(index).name.clone(),
            pair: self.pair(index),
            drops: turn.drops.clone(),
            cpu: turn.cpu,
            ..Run::default()
        };
        let mut runs: Vec<Run> = self.taken.iter().enumerate().map(run).collect();
        for (name, result) in whole {
            let frames = frames.get(&name).map_or(&[][..], Vec::as_slice);
            for (run, part) in runs.iter_mut().zip(self.parts(result, frames)) {
                run.workloads.insert(name.clone(), part);
            }
        }
        let late = (self.late.times > 0).then(|| self.late.say(self.scenario));
        (runs, late.into_iter().collect())
    }

    fn began(&self, system: &System) -> Progress {
        let index = self.taken.len();
        let (name, pair) = (system.name.clone(), self.pair(index));
        Progress::System { index, total: self.count(), name, pair }
    }

    fn count(&self) -> usize {
        self.systems.len() * self.pairs as usize
    }

    fn pair(&self, turn: usize) -> u32 {
        u32::try_from(turn / self.systems.len()).unwrap_or(u32::MAX)
    }

    /// The system of a turn: in order, then in reverse, so that a machine that grows slower favours no system.
    fn system_of(&self, turn: usize) -> &'a System {
        let place = turn % self.systems.len();
        let back = self.systems.len() - 1 - place;
        self.systems[if self.pair(turn).is_multiple_of(2) { place } else { back }]
    }

    /// Notes the time at which the due step is taken, and returns it.
    fn note(&mut self, now: u64) -> u64 {
        let late = now.saturating_sub(self.due());
        self.late.times += u32::from(late > self.scenario.measure.window.as_u64());
        self.late.most = self.late.most.max(late);
        now
    }

    /// Scales CPU time used in a part of a turn to the whole turn.
    fn of_a_turn(&self, used: Duration, measured: u64) -> Span {
        let turn = u128::from(self.scenario.duration.as_u64());
        let scaled = used.as_nanos() * turn / u128::from(measured.max(1));
        Span::ns(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// Divides a workload's figures by turn. Errors other than missing answers have no time, and count in every turn.
    fn parts(&self, result: WorkloadResult, frames: &[u64]) -> Vec<WorkloadResult> {
        let turn = self.scenario.duration;
        let windows = usize::try_from(turn.as_u64() / self.scenario.measure.window.as_u64().max(1));
        let windows = windows.unwrap_or(usize::MAX).max(1);
        let series = |all: &[u64], index: usize| -> Vec<u64> {
            all.chunks(windows).nth(index).map(<[u64]>::to_vec).unwrap_or_default()
        };
        let whenever = result.errors.saturating_sub(result.unanswered.len() as u64);
        let part = |index| WorkloadResult {
            bytes: series(&result.bytes, index),
            delivered: series(&result.delivered, index),
            packets: series(frames, index).iter().sum(),
            errors: whenever,
            ..WorkloadResult::default()
        };
        let mut parts: Vec<WorkloadResult> = (0..self.taken.len()).map(part).collect();
        // The turn of a moment, and the moment on that turn's clock.
        let own = |at: Nanos| {
            let (index, since) = (at.as_u64() / turn.as_u64(), at.as_u64() % turn.as_u64());
            let index = usize::try_from(index).ok().filter(|index| *index < self.taken.len())?;
            Some((index, Nanos::new(since)))
        };
        for sample in result.samples {
            let Some((index, at)) = own(sample.at) else { continue };
            parts[index].samples.push(Sample { at, ..sample });
        }
        for due in result.unanswered {
            let Some((index, at)) = own(due) else { continue };
            parts[index].unanswered.push(at);
            parts[index].errors += 1;
        }
        for departure in result.departures {
            let Some((index, at)) = own(departure.at) else { continue };
            parts[index].departures.push(Departure { at, ..departure });
        }
        parts
    }
}

impl Late {
    fn say(&self, scenario: &Scenario) -> String {
        format!(
            "measuring began or ended more than {} late {} times, by {} at most: lengthen `duration` and `measure.from`",
            scenario.measure.window,
            self.times,
            Span::ns(self.most)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_scenario::Form;

    const TEXT: &str = "
name: t
rate: 10Mbps
duration: 200ms
one_world: true
measure: {window: 100ms, from: 50ms}
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
            errors: 3,
            departures: vec![Departure { at: at(600), len: 60 }],
            ..WorkloadResult::default()
        };
        let whole = BTreeMap::from([("w".to_owned(), result)]);
        let frames = Frames::from([("w".to_owned(), vec![10, 20, 30, 40, 50, 60, 70])]);
        let (runs, notes) = turns.runs(whole, &frames);
        assert_eq!(notes, Vec::<String>::new(), "nothing was late");
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
        assert_eq!(
            [0, 1, 2, 3].map(|turn| part(turn).errors),
            [2, 3, 2, 2],
            "two without a moment, one in a turn"
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

    #[test]
    fn what_was_late_by_more_than_a_window_is_said() {
        let scenario = of(TEXT);
        let systems: Vec<&System> = scenario.systems.iter().collect();
        let setup = Setup { binary: "x".into(), scratch: "y".into() };
        let mut turns = Turns::new(&scenario, &systems, 1, &setup);
        turns.step = Step::Begin;
        assert_eq!(turns.note(Span::millis(150).as_u64()), Span::millis(150).as_u64());
        assert_eq!(turns.late.times, 0, "just a window");
        turns.step = Step::End(0, None);
        turns.note(Span::millis(380).as_u64());
        let (_, notes) = turns.runs(BTreeMap::new(), &Frames::new());
        assert!(notes[0].contains("more than 100ms late 1 times, by 180ms at most"), "{notes:?}");
    }
}
