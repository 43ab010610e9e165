//! A scenario file in virtual time: all points of its sweep with all seeds, and what comes out.
//!
//! Why: the command line and other programs must get one result from one file.
//! From: `docs/scenarios.md`, "In virtual time".
//! Not here: reading the file (`scenario`), carrying out its runs (`batch`), showing results.
//! Invariant: expectations hold only if each seed meets them, and if no delay bound is broken.

use plimsoll_scenario::{Point, Results, Status, Unit, Verdict};
use serde_json::Value;

use crate::batch::Batch;
use crate::bounds::DelayBound;
use crate::error::SimError;
use crate::run::{Options, Outcome, Progress, RunBounds};

/// Points of a scenario, ready to run.
#[derive(Clone, Debug)]
pub struct Study {
    points: Vec<Point>,
    options: Options,
}

impl Study {
    /// Prepares the points of a scenario in its form for virtual time: reads their programs' modules, and sets their seeds.
    ///
    /// # Errors
    /// [`SimError::Scenario`] if a module cannot be read; [`SimError::NoSystem`] if `options` chooses a system that there
    /// is not.
    pub fn new(mut points: Vec<Point>, options: Options) -> Result<Self, SimError> {
        for Point { scenario, .. } in &mut points {
            scenario.has_systems(&options.systems).map_err(SimError::NoSystem)?;
            // Runs in virtual time differ only by their seed, so each repetition has another seed.
            scenario.pairs = options.seeds.max(1);
            scenario.seed = options.seed.unwrap_or(scenario.seed);
            scenario.read_modules().map_err(|errors| SimError::Scenario(Box::new(errors)))?;
        }
        Ok(Self { points, options })
    }

    /// The points.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Whether the file varies nothing: results are then those of one scenario, not a list.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        matches!(&self.points[..], [point] if point.settings.is_empty())
    }

    /// All runs.
    #[must_use]
    pub fn batch(&self) -> Batch<'_> {
        let scenarios: Vec<_> = self.points.iter().map(|point| &point.scenario).collect();
        Batch::new(&scenarios, &self.options)
    }

    /// Carries out all runs: one outcome for each point.
    ///
    /// # Errors
    /// The first [`SimError`], in the order of the points.
    pub fn run(&self, progress: &(dyn Fn(Progress) + Sync)) -> Result<Vec<Outcome>, SimError> {
        let batch = self.batch();
        let all: Vec<usize> = (0..batch.len()).collect();
        batch.outcomes(batch.run(&all, progress)).into_iter().collect()
    }

    /// The results as `plimsoll sim --json` prints them.
    #[must_use]
    pub fn json(&self, outcomes: &[Outcome], verdicts: &[Vec<Verdict>]) -> Value {
        let results: Vec<&Results> = outcomes.iter().map(|one| &one.results).collect();
        if self.is_alone() {
            return plimsoll_scenario::json(&self.points[0].scenario, results[0], &verdicts[0]);
        }
        plimsoll_scenario::sweep_json(&self.points, &results, verdicts)
    }
}

/// The verdicts on a point's expectations, with all seeds, and on the delay bounds that did not hold.
#[must_use]
pub fn verdicts(point: &Point, outcome: &Outcome) -> Vec<Verdict> {
    let seed = point.scenario.seed;
    let mut verdicts = plimsoll_scenario::judge_seeds(&point.scenario, &outcome.results, seed);
    verdicts.extend(outcome.broken().map(broken));
    verdicts
}

/// The verdict on a delay bound that did not hold, shown among the file's expectations.
fn broken((run, judged): (&RunBounds, &DelayBound)) -> Verdict {
    let DelayBound { class, host, worst, bound, .. } = judged;
    Verdict {
        expect: format!("{}: class `{class}` on `{host}` waits at most {bound}", run.system),
        because: Some("`plimsoll check` promises this bound".to_owned()),
        status: Status::Failed,
        left: Some(worst.as_secs_f64()),
        right: Some(bound.as_secs_f64()),
        tolerance: None,
        unit: Unit::Time,
        detail: format!("{worst} <= {bound} with seed {}", run.seed),
        seed: Some(run.seed),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_units::Span;

    use super::*;

    #[test]
    fn a_broken_bound_fails_like_an_expectation() {
        let (host, class) = ("h".to_owned(), "shop".to_owned());
        let (bound, worst) = (Span::millis(1), Span::millis(2));
        let judged = DelayBound { host, class, bound, worst, judged: 7 };
        let run = RunBounds { system: "plimsoll".to_owned(), seed: 3, bounds: Vec::new() };
        let verdict = broken((&run, &judged));
        assert_eq!((verdict.status, verdict.seed), (Status::Failed, Some(3)));
        assert_eq!(verdict.detail, "2ms <= 1ms with seed 3");
        assert!(verdict.expect.contains("`shop` on `h`"), "{}", verdict.expect);
    }
}
