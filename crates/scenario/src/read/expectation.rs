//! Reading `expect`: the expectations.
//!
//! Why: a scenario's own file says what must hold.
//! From: `docs/scenarios.md`, "expect".
//! Not here: the language of a line (`crate::expect`).
//! Invariant: a mistake is shown at the word that it is in.

use plimsoll_document::{Mark, Tree, Value};

use super::fields::Reader;
use crate::expect::{self, Expectation, Names};
use crate::keys::EXPECTATION;
use crate::model::Scenario;

impl Reader {
    /// Lines, or maps of `that` and `because`.
    pub(super) fn expectations(&mut self, tree: Option<&Tree>, scenario: &Scenario) -> Vec<Expectation> {
        let Some(tree) = tree else { return Vec::new() };
        let names = Names::of(scenario);
        let mut found = Vec::new();
        for item in self.list(tree, "`expect`") {
            let (that, because, at) = match &item.value {
                Value::Map(_) => {
                    let fields = self.fields(item, item.at, "an expectation", &EXPECTATION);
                    let because = fields.get("because").and_then(|tree| self.text(tree));
                    (fields.get("that"), because, self.points_meant(&fields, scenario))
                }
                _ => (Some(item), None, Vec::new()),
            };
            let Some(that) = that else { continue };
            if !at.iter().all(|wanted| self.point.contains(wanted)) {
                continue; // it may speak of what is not there at this point
            }
            let expectation = self.expectation(that, because, &names);
            found.extend(expectation);
        }
        found
    }

    fn expectation(&mut self, tree: &Tree, because: Option<&str>, names: &Names) -> Option<Expectation> {
        let line = self.text(tree)?;
        let parsed = expect::parse(line);
        let problems = match &parsed {
            Ok(expectation) => expect::check(expectation, names),
            Err(problem) => vec![(**problem).clone()],
        };
        for mut problem in problems {
            problem.at = self.within(tree, line, problem.at);
            self.problem(problem);
        }
        let mut expectation = parsed.ok()?;
        expectation.because = because.map(|because| because.trim().to_owned());
        Some(expectation)
    }

    /// Where a part of a scalar's text stands; the whole scalar where it was quoted or folded.
    pub(super) fn within(&self, tree: &Tree, line: &str, part: Mark) -> Mark {
        let rest = &self.sources.file(tree.at.file).text[tree.at.range().start..];
        let quote = u32::from(rest.starts_with('"') || rest.starts_with('\''));
        if rest[quote as usize..].starts_with(line) {
            Mark { offset: tree.at.offset + quote + part.offset, len: part.len, ..tree.at }
        } else {
            tree.at
        }
    }
}
