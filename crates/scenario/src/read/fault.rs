//! Reading faults.
//!
//! Why: a fault of a host that does not exist would test nothing.
//! From: `docs/scenarios.md`, "Faults".
//! Not here: injecting them (`sim`).
//! Invariant: names exist; moments lie inside the run.

use plimsoll_document::Tree;
use plimsoll_units::Span;

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::fault::{ClockStep, Faults, FeedbackFaults, Restart, Stall};
use crate::keys::{CLOCK, FAULTS, FEEDBACK, RESTART, STALL};

const TIME: &str = "a time such as `20ms`";

/// The hosts, tenants and time that a fault can affect.
pub(super) struct Victims<'a> {
    pub hosts: Vec<&'a str>,
    pub tenants: Vec<&'a str>,
    pub duration: Span,
}

impl Reader {
    pub(super) fn faults(&mut self, tree: &Tree, victims: &Victims<'_>) -> Faults {
        let fields = self.fields(tree, tree.at, "`faults`", &FAULTS);
        let mut faults = Faults {
            feedback: fields.get("feedback").map(|tree| self.feedback_faults(tree)).unwrap_or_default(),
            ..Faults::default()
        };
        if let Some(tree) = fields.get("silent") {
            let named = self.list(tree, "`silent`").iter();
            faults.silent = named.map(|item| self.victim(item, "host", &victims.hosts)).collect();
        }
        for item in self.each_of(&fields, "restart") {
            let fields = self.fields(item, item.at, "a restart", &RESTART);
            faults.restarts.push(Restart {
                host: self.named(&fields, "host", &victims.hosts),
                at: self.moment_of(&fields, "at", victims.duration),
                gap: self.value(&fields, "gap", TIME, Span::millis(10)),
            });
        }
        for item in self.each_of(&fields, "clock") {
            let fields = self.fields(item, item.at, "a step of a clock", &CLOCK);
            let back = fields.get("back").is_some();
            faults.clocks.push(ClockStep {
                host: self.named(&fields, "host", &victims.hosts),
                at: self.moment_of(&fields, "at", victims.duration),
                step: self.value(&fields, if back { "back" } else { "ahead" }, TIME, Span::ZERO),
                back,
            });
        }
        for item in self.each_of(&fields, "stalled") {
            let fields = self.fields(item, item.at, "a tenant that stops reading", &STALL);
            let from = self.moment_of(&fields, "from", victims.duration);
            faults.stalls.push(Stall {
                tenant: self.named(&fields, "tenant", &victims.tenants),
                from,
                to: self.value(&fields, "to", TIME, victims.duration).max(from),
            });
        }
        faults
    }

    fn feedback_faults(&mut self, tree: &Tree) -> FeedbackFaults {
        let fields = self.fields(tree, tree.at, "`feedback`", &FEEDBACK);
        FeedbackFaults {
            loss: self.part(&fields, "loss"),
            duplicate: self.part(&fields, "duplicate"),
            reorder: self.part(&fields, "reorder"),
            late: self.value(&fields, "late", TIME, Span::millis(1)),
        }
    }

    fn each_of<'a>(&mut self, fields: &Fields<'a>, key: &str) -> &'a [Tree] {
        fields.get(key).map_or(&[], |tree| self.list(tree, &format!("`{key}`")))
    }

    fn named(&mut self, fields: &Fields<'_>, key: &str, known: &[&str]) -> String {
        fields.get(key).map_or_else(String::new, |tree| self.victim(tree, key, known))
    }

    fn victim(&mut self, tree: &Tree, what: &str, known: &[&str]) -> String {
        let name = self.text(tree).unwrap_or_default();
        if !known.contains(&name) {
            self.unknown(tree.at, &format!("there is no {what}"), name, known.iter().copied());
        }
        name.to_owned()
    }

    fn moment_of(&mut self, fields: &Fields<'_>, key: &str, duration: Span) -> Span {
        let at = self.value(fields, key, TIME, Span::ZERO);
        if let Some(tree) = fields.get(key).filter(|_| at >= duration) {
            let problem = Problem::new(tree.at, format!("this is at {at}, and the run ends at {duration}"));
            self.problem(problem.label("too late").help("let it be earlier, or raise `duration`"));
        }
        at
    }
}
