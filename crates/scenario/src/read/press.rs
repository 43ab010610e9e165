//! Reading `backpressure_model`, and where `backpressure` may be `off`.
//!
//! Why: an experiment repeats a paper's figures with the paper's numbers.
//! From: `docs/scenarios.md`, "Backpressure".
//! Not here: the keys of `backpressure` itself, which are the policy's.
//! Invariant: without the section all is as live.

use plimsoll_document::Tree;

use super::fields::{Fields, Reader};
use super::policy::is_off;
use crate::Problem;
use crate::keys::BACKPRESSURE_MODEL;
use crate::press::{Excess, PressModel, Slots};

/// Most hash buckets: 16 million of 4 flows take a gigabyte.
const MOST_BUCKETS: u32 = 1 << 24;

impl Reader {
    /// `backpressure_model`, if it is stated.
    pub(super) fn press_model(&mut self, fields: &Fields<'_>) -> Option<PressModel> {
        let tree = fields.get("backpressure_model")?;
        let fields = self.fields(tree, tree.at, "`backpressure_model`", &BACKPRESSURE_MODEL);
        let count =
            |reader: &mut Self, key, most| fields.get(key).map(|_| reader.count(&fields, key, 1, most));
        let ways = [("wait", Excess::Wait), ("drop", Excess::Drop)];
        Some(PressModel {
            interval: count(self, "interval", u32::MAX),
            excess: fields.get("excess").and_then(|tree| self.choice(tree, "way", &ways)).unwrap_or_default(),
            buckets: fields.get("buckets").and_then(|tree| self.buckets(tree)),
            slots: fields.get("slots").map(|tree| self.slots(tree)).unwrap_or_default(),
            counter_cap: count(self, "counter_cap", u32::MAX),
        })
    }

    fn buckets(&mut self, tree: &Tree) -> Option<u32> {
        let want = "a power of two from 2 to 16777216, such as `32768`";
        let buckets: u32 = self.parse(tree, want)?;
        if (2..=MOST_BUCKETS).contains(&buckets) && buckets.is_power_of_two() {
            return Some(buckets);
        }
        let problem =
            Problem::new(tree.at, format!("`buckets` is {buckets}")).label("not a power of two in range");
        self.problem(problem.help(format!("write {want}")));
        None
    }

    fn slots(&mut self, tree: &Tree) -> Slots {
        let numbers = [("2", Slots::Two), ("4", Slots::Four), ("8", Slots::Eight)];
        self.choice(tree, "number of slots", &numbers).unwrap_or_default()
    }

    /// Whether a system has the scenario's backpressure; `fields` are the system's.
    pub(super) fn is_pressing(fields: &Fields<'_>) -> bool {
        !fields.get("backpressure").is_some_and(is_off)
    }

    /// Refuses `off` where only a system could say it.
    pub(super) fn not_off(&mut self, fields: &Fields<'_>) {
        if let Some(tree) = fields.get("backpressure").filter(|tree| is_off(tree)) {
            let problem = Problem::new(tree.at, "only a system switches `backpressure` off");
            let help = "leave it away here, or write `systems: [plimsoll, {without: {kind: plimsoll, backpressure: off}}]`";
            self.problem(problem.label("not here").help(help));
        }
    }
}
