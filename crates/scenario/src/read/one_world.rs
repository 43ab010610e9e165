//! Checks of systems that take turns in one world.
//!
//! Why: a run of many turns takes long, and the file already shows whether it can work.
//! From: `docs/scenarios.md`, "Turns in one world".
//! Not here: taking turns (`lab`), and what a reload refuses (the daemon says it).
//! Invariant: each turn is made of whole windows, and each workload goes on through all of them.

use plimsoll_units::Span;

use super::fields::{Fields, Reader};
use crate::model::Scenario;
use crate::{Form, Problem};

/// Longest of a run, all turns together.
const LONGEST: Span = Span::secs(24 * 3_600);

impl Reader {
    /// Checks the turns of a live form, and those parts of `short` that forbid turns; virtual time has none.
    pub(super) fn check_turns(
        &mut self,
        file: &Fields<'_>,
        (scenario, short): (&Scenario, Option<&Scenario>),
        form: Form,
    ) {
        let Some(tree) = file.get("one_world") else { return };
        if !scenario.one_world || !scenario.live || form.is_virtual() {
            return;
        }
        let full = against(scenario);
        let mut alone = short.map(against).unwrap_or_default();
        alone.retain(|problem| !full.contains(problem));
        alone.iter_mut().for_each(|(what, _)| what.push_str(" in the short form"));
        for (what, help) in full.into_iter().chain(alone) {
            let problem = Problem::new(tree.at, format!("systems cannot take turns: {what}"));
            self.problem(problem.label("asked for here").help(help));
        }
    }
}

/// Reasons that forbid turns, each with its remedy.
fn against(scenario: &Scenario) -> Vec<(String, String)> {
    let (turn, measure) = (scenario.duration, scenario.measure);
    let window = measure.window.as_u64().max(1);
    let mut all = Vec::new();
    if let Some(system) = scenario.systems.iter().find(|system| !system.kind.on_engine()) {
        let what = format!("`{}` is the kernel's, which has no reload", system.name);
        all.push((what, "compare it in a file without `one_world`".to_owned()));
    }
    if measure.from == Span::ZERO {
        let what = "`measure.from` leaves a reload no time to settle".to_owned();
        all.push((what, "write `measure: {from: 150ms}`, or a quarter of `duration`".to_owned()));
    }
    if !turn.as_u64().is_multiple_of(window) {
        let next = Span::ns(turn.as_u64().next_multiple_of(window));
        let what = format!("`duration` is {turn}, and `measure.window` {}", measure.window);
        all.push((what, format!("let it be a multiple of the window, such as {next}")));
    }
    let pauses = |workload: &&crate::Workload| workload.start > Span::ZERO || workload.stop < turn;
    if let Some(workload) = scenario.workloads.iter().find(pauses) {
        let what = format!("workload `{}` does not go on throughout", workload.name);
        all.push((what, "leave its `start` and `stop` away".to_owned()));
    }
    let turns = u64::from(scenario.pairs) * scenario.systems.len() as u64;
    if turn.as_u64().checked_mul(turns).is_none_or(|whole| whole > LONGEST.as_u64()) {
        let what = format!("{turns} turns of {turn} are more than a day");
        all.push((what, "lower `pairs` or `duration`".to_owned()));
    }
    all
}
