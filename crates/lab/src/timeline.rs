//! Puts other policies in force while a run goes on, at the moments of the scenario's `timeline`.
//!
//! Why: an operator, or a tenant, changes a policy under traffic, and its neighbours must not notice.
//! From: `docs/scenarios.md`, "Timeline"; the daemon's reload, as an operator does it.
//! Not here: changes of single limits, weights and rates, which only virtual time has.
//! Invariant: each change is made once, at its moment or as soon after it as the loop that asks comes round.

use crate::error::LabError;
use crate::world::{Setup, World};
use plimsoll_scenario::{Scenario, System, SystemKind};
use std::collections::VecDeque;

/// The changes of a run that are still to come.
pub(crate) struct Timeline<'a> {
    scenario: &'a Scenario,
    setup: &'a Setup,
    /// When each is due, from the start of the run, and the system whose policy is in force from then on.
    changes: VecDeque<(u64, &'a System)>,
}

impl<'a> Timeline<'a> {
    /// The changes of the run of `system`: systems with a policy of their own go on as before.
    pub(crate) fn new(scenario: &'a Scenario, system: &System, setup: &'a Setup) -> Self {
        let named = |name: &str| scenario.systems.iter().find(|system| system.name == name);
        let changes = scenario.timeline.iter().filter(|_| system.kind == SystemKind::Plimsoll);
        let changes = changes.filter_map(|change| Some((change.at.as_u64(), named(&change.name)?))).collect();
        Self { scenario, setup, changes }
    }

    /// Makes all changes and takes them back, before the run: a policy that a reload cannot install is refused before
    /// anything is measured.
    pub(crate) fn try_out(&self, world: &mut World, system: &System) -> Result<(), LabError> {
        if self.changes.is_empty() {
            return Ok(());
        }
        let changes = self.changes.iter().map(|&(_, system)| system);
        changes.chain([system]).try_for_each(|system| world.hand_over(self.scenario, system, self.setup))
    }

    /// Time of the next change, from the start of the run.
    pub(crate) fn due(&self) -> Option<u64> {
        self.changes.front().map(|&(at, _)| at)
    }

    /// Makes the changes that are due.
    pub(crate) fn take(&mut self, world: &mut World, now: u64) -> Result<(), LabError> {
        while let Some((_, system)) = self.changes.pop_front_if(|&mut (at, _)| at <= now) {
            world.hand_over(self.scenario, system, self.setup)?;
        }
        Ok(())
    }
}
