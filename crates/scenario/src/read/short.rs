//! `short`: the form that the test suite runs.
//!
//! Why: the same file is an experiment of minutes, and a test of seconds.
//! From: `docs/scenarios.md`, "short".
//! Not here: which form is asked for ([`super::Form`]).
//! Invariant: mistakes in it show whatever form is read.

use plimsoll_document::Tree;
use plimsoll_units::Span;

use super::Form;
use super::fields::{Fields, Reader};
use crate::keys::{MOST_PAIRS, SHORT};
use crate::model::Scenario;
use crate::{Problem, expect};

impl Reader {
    /// Applies `short:`; reads it also for the full form, so that its mistakes show.
    pub(super) fn shorten(&mut self, tree: &Tree, file: &Fields<'_>, scenario: &mut Scenario, form: Form) {
        let fields = self.fields(tree, tree.at, "`short`", &SHORT);
        let time: f64 = self.value(&fields, "time", "a number such as `0.25`", 1.0);
        if let Some(tree) = fields.get("time").filter(|_| !(0.01..=1.0).contains(&time)) {
            let problem = Problem::new(tree.at, format!("`time` is {time}")).label("out of range");
            self.problem(problem.help("write a number from 0.01 to 1: every moment comes that much earlier"));
        }
        let pairs = self.count(&fields, "pairs", 1, MOST_PAIRS);
        let names: Vec<&str> = match fields.get("systems") {
            None => scenario.systems.iter().map(|system| system.name.as_str()).collect(),
            Some(tree) => self.list(tree, "`systems`").iter().filter_map(|item| self.text(item)).collect(),
        };
        for name in &names {
            if !scenario.systems.iter().any(|system| system.name == *name) {
                let known = scenario.systems.iter().map(|system| system.name.as_str());
                let at = fields.get("systems").map_or(tree.at, |tree| tree.at);
                self.unknown(at, "there is no system", name, known);
            }
        }
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut short = scenario.clone();
        short.scale(time.clamp(0.01, 1.0));
        short.pairs = pairs;
        short.systems.retain(|system| names.contains(&system.name));
        short
            .expect
            .retain(|expectation| expectation.systems().iter().all(|name| names.iter().any(|n| n == name)));
        if let Some(paper) = &mut short.paper {
            paper.numbers.retain(|number| number.ours.speaks_of(&names));
        }
        if let Some(tree) = fields.get("expect") {
            short.expect = self.expectations(Some(tree), &short);
        }
        self.check_turns(file, (scenario, Some(&short)), form);
        if form.is_short() {
            *scenario = short;
        }
    }
}

impl Scenario {
    fn scale(&mut self, time: f64) {
        let scale = |span: &mut Span| *span = expect::scaled(*span, time);
        self.time = time;
        scale(&mut self.duration);
        scale(&mut self.measure.from);
        scale(&mut self.measure.to);
        self.timeline.iter_mut().for_each(|change| scale(&mut change.at));
        self.faults.scale(scale);
        for workload in &mut self.workloads {
            scale(&mut workload.start);
            scale(&mut workload.stop);
        }
        for expectation in &mut self.expect {
            expectation.scale(time);
        }
        for number in self.paper.iter_mut().flat_map(|paper| &mut paper.numbers) {
            number.ours.scale(time);
        }
    }
}
