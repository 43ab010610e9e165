//! Reading the changes during a run.
//!
//! Why: an operator changes rates and weights under traffic, and wants to see the effect first.
//! From: `docs/scenarios.md`, "Timeline".
//! Not here: whether a policy has the names (`sim`, which has the policy).
//! Invariant: changes come in the order of their moments, all of them inside the run.

use plimsoll_document::{Name, Tree};
use plimsoll_units::Span;

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::SystemKind;
use crate::keys::MOMENT;
use crate::model::{Change, Scenario, Setting};

impl Reader {
    /// `timeline:` of a run of `duration`.
    pub(super) fn timeline(&mut self, file: &Fields<'_>, duration: Span) -> Vec<Change> {
        let Some(tree) = file.get("timeline") else { return Vec::new() };
        let mut changes = Vec::new();
        for item in self.list(tree, "`timeline`") {
            let fields = self.fields(item, item.at, "a moment of `timeline`", &MOMENT);
            let at = self.moment(&fields, duration);
            self.settings_of(&fields, "limits", "a rate such as `5Mbps`", &mut |name, rate| {
                changes.push(Change {
                    at,
                    name: name.value.clone(),
                    setting: Setting::Limit(rate),
                    place: name.at,
                });
            });
            if let Some(tree) = fields.get("policy")
                && let Some(name) = self.text(tree)
            {
                let (name, place) = (name.to_owned(), tree.at);
                changes.push(Change { at, name, setting: Setting::Policy, place });
            }
            self.settings_of(&fields, "weights", "a whole number", &mut |name, weight| {
                changes.push(Change {
                    at,
                    name: name.value.clone(),
                    setting: Setting::Weight(weight),
                    place: name.at,
                });
            });
            self.settings_of(&fields, "rates", "a rate such as `5Mbps`", &mut |name, rate| {
                changes.push(Change {
                    at,
                    name: name.value.clone(),
                    setting: Setting::Rate(rate),
                    place: name.at,
                });
            });
        }
        changes.sort_by_key(|change| change.at);
        changes
    }

    /// Looks whether the policies that a timeline puts in force are those of systems on Plimsoll's engine.
    pub(super) fn timeline_systems(&mut self, scenario: &Scenario) {
        for change in scenario.timeline.iter().filter(|change| change.setting == Setting::Policy) {
            let named = scenario.systems.iter().find(|system| system.name == change.name);
            let message = match named.map(|system| system.kind) {
                Some(SystemKind::Plimsoll) => continue,
                Some(_) => format!("system `{}` has no policy that can be put in force", change.name),
                None => format!("there is no system `{}`", change.name),
            };
            let problem = Problem::new(change.place, message).label("not a policy");
            self.problem(problem.help(
                "name a system of kind `plimsoll` that `systems` states; its policy is in force from then on",
            ));
        }
    }

    fn moment(&mut self, fields: &Fields<'_>, duration: Span) -> Span {
        let at = self.value(fields, "at", "a time such as `2s`", Span::ZERO);
        if let Some(tree) = fields.get("at").filter(|_| at >= duration) {
            let problem = Problem::new(tree.at, format!("this is at {at}, and the run ends at {duration}"));
            self.problem(problem.label("too late").help("let it be earlier, or raise `duration`"));
        }
        at
    }

    /// A map of names to values of one kind.
    fn settings_of<T: std::str::FromStr<Err: std::fmt::Display>>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        want: &str,
        add: &mut dyn FnMut(&Name, T),
    ) {
        let Some(tree) = fields.get(key) else { return };
        for (name, value) in self.entries(tree, &format!("`{key}`")) {
            let value: &Tree = value;
            if let Some(value) = self.parse(value, want) {
                add(name, value);
            }
        }
    }
}
