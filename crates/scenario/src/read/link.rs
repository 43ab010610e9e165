//! Reading the overlay, and what links may have beyond a rate, a delay and a queue.
//!
//! Why: active queue management, reordering and bursts of loss have numbers that must fit each other.
//! From: `docs/scenarios.md`, "Links that are not plain".
//! Not here: a link's ends, rate and queue (`network`), the links themselves (`sim`).
//! Invariant: every chance is between 0 and 1, and no time by which something is divided is zero.

use plimsoll_document::{Tree, Value};
use plimsoll_units::{Bytes, Span};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::keys::{AQM, BURST_LOSS, CODEL, PIE, RED, REORDER};
use crate::model::{OVERLAY_HEADERS, Scenario};
use crate::network::{Aqm, BurstLoss, Link, Red, Reorder};

const TIME: &str = "a time such as `5ms`";
const SIZE: &str = "a size such as `90kB`";

/// RFC 8289's target and interval.
const CODEL_TIMES: [Span; 2] = [Span::millis(5), Span::millis(100)];
/// RFC 8033's target, and how often the probability changes.
const PIE_TIMES: [Span; 2] = [Span::millis(15), Span::millis(15)];
/// Floyd and Jacobson's weight, and the probability that Floyd recommended later (1997).
const RED_WEIGHT: f64 = 0.002;
const RED_PROBABILITY: f64 = 0.1;
/// The smallest packet that every link must carry (RFC 791).
const LEAST_MTU: u32 = 68;

impl Reader {
    /// Bytes that the overlay adds to a packet.
    pub(super) fn overlay(&mut self, file: &Fields<'_>) -> u32 {
        let kinds = [("none", 0), ("geneve", OVERLAY_HEADERS), ("vxlan", OVERLAY_HEADERS)];
        file.get("overlay").and_then(|tree| self.choice(tree, "overlay", &kinds)).unwrap_or_default()
    }

    /// Whether an overlay leads everywhere where packets go, and leaves them room.
    pub(super) fn check_overlay(&mut self, file: &Fields<'_>, scenario: &Scenario) {
        let Some(tree) = file.get("overlay").filter(|_| scenario.overlay > 0) else { return };
        let outside = |to: &String| scenario.tenants.iter().all(|tenant| tenant.name != *to);
        if let Some(workload) = scenario.workloads.iter().find(|workload| outside(&workload.to)) {
            let message =
                format!("workload `{}` sends to `{}`, which is no tenant", workload.name, workload.to);
            let problem = Problem::new(workload.place, message).label("not in the overlay");
            self.problem(
                problem.help("an overlay joins tenants: send to one of them, or leave `overlay` out"),
            );
        }
        if scenario.mtu < LEAST_MTU + scenario.overlay {
            let message =
                format!("of an `mtu` of {} the overlay leaves {}", scenario.mtu, scenario.inner_mtu());
            let problem = Problem::new(tree.at, message).label("no room for packets");
            self.problem(
                problem.help(format!("write an `mtu` of {} at least", LEAST_MTU + scenario.overlay)),
            );
        }
    }

    /// A link with its active queue management, its reordering and its bursts of loss.
    pub(super) fn unusual(&mut self, link: Link, fields: &Fields<'_>) -> Link {
        Link {
            aqm: fields.get("aqm").and_then(|tree| self.aqm(tree)),
            reorder: fields.get("reorder").map(|tree| self.reorder(tree, link.delay)),
            burst_loss: fields.get("burst_loss").map(|tree| self.burst_loss(tree)),
            ..link
        }
    }

    /// `codel`, or `{codel: {target: 5ms}}`.
    fn aqm(&mut self, tree: &Tree) -> Option<Aqm> {
        let [codel, pie] = [CODEL_TIMES, PIE_TIMES];
        let codel = Aqm::Codel { target: codel[0], interval: codel[1] };
        let pie = Aqm::Pie { target: pie[0], update: pie[1] };
        let Value::Map(_) = &tree.value else {
            let choices = [("red", None), ("codel", Some(codel)), ("pie", Some(pie))];
            let chosen = self.choice(tree, "queue management", &choices)?;
            if chosen.is_none() {
                let problem = Problem::new(tree.at, "RED needs to know from which queue on it drops");
                self.problem(
                    problem
                        .label("without a size")
                        .help("write `aqm: {red: {min: 30kB}}`; `max` is then 90kB"),
                );
            }
            return chosen;
        };
        let fields = self.fields(tree, tree.at, "`aqm`", &AQM);
        let stated = ["red", "codel", "pie"].map(|key| fields.get(key));
        match stated {
            [Some(red), None, None] => self.red(red),
            [None, Some(codel), None] => {
                let fields = self.fields(codel, codel.at, "`codel`", &CODEL);
                let [target, interval] = self.two_times(&fields, ["target", "interval"], CODEL_TIMES);
                Some(Aqm::Codel { target, interval })
            }
            [None, None, Some(pie)] => {
                let fields = self.fields(pie, pie.at, "`pie`", &PIE);
                let [target, update] = self.two_times(&fields, ["target", "update"], PIE_TIMES);
                if let Some(tree) = fields.get("update").filter(|_| update < Span::micros(10)) {
                    let problem =
                        Problem::new(tree.at, format!("PIE's `update` is {update}")).label("too often");
                    self.problem(problem.help("write a time of 10us or more; RFC 8033 says 15ms"));
                }
                Some(Aqm::Pie { target, update })
            }
            _ => {
                let problem = Problem::new(tree.at, "a link's queue has one kind of queue management");
                self.problem(
                    problem.label("not one").help("write one of them, such as `aqm: {red: {min: 30kB}}`"),
                );
                None
            }
        }
    }

    fn red(&mut self, tree: &Tree) -> Option<Aqm> {
        let fields = self.fields(tree, tree.at, "`red`", &RED);
        let min: Bytes = self.optional(&fields, "min", SIZE)?;
        let max = self.value(&fields, "max", SIZE, min.times(3));
        if max <= min {
            let problem = Problem::new(tree.at, format!("RED's `max` is {max}, and its `min` {min}"));
            self.problem(problem.label("no room between them").help("let `max` be about three times `min`"));
        }
        let probability = self.chance_of(&fields, "probability", RED_PROBABILITY);
        let weight = self.chance_of(&fields, "weight", RED_WEIGHT);
        Some(Aqm::Red(Red { min, max, probability, weight }))
    }

    fn reorder(&mut self, tree: &Tree, delay: Span) -> Reorder {
        let fields = self.fields(tree, tree.at, "`reorder`", &REORDER);
        let late = self.value(&fields, "late", TIME, delay);
        Reorder { part: self.chance_of(&fields, "part", 0.0), late }
    }

    fn burst_loss(&mut self, tree: &Tree) -> BurstLoss {
        let fields = self.fields(tree, tree.at, "`burst_loss`", &BURST_LOSS);
        BurstLoss {
            enter: self.chance_of(&fields, "enter", 0.0),
            leave: self.chance_of(&fields, "leave", 1.0),
            loss: self.chance_of(&fields, "loss", 1.0),
        }
    }

    /// Two times above zero.
    fn two_times(&mut self, fields: &Fields<'_>, keys: [&str; 2], usual: [Span; 2]) -> [Span; 2] {
        [0, 1].map(|n| {
            let span = self.value(fields, keys[n], TIME, usual[n]);
            if let Some(tree) = fields.get(keys[n]).filter(|_| span == Span::ZERO) {
                let problem = Problem::new(tree.at, format!("`{}` is no time at all", keys[n]));
                self.problem(problem.label("zero").help(format!("write {TIME}")));
            }
            span
        })
    }

    /// A chance or part: `0.1%`, `100%`, or a number up to 1.
    fn chance_of(&mut self, fields: &Fields<'_>, key: &str, usual: f64) -> f64 {
        let Some(tree) = fields.get(key) else { return usual };
        let Some(text) = self.text(tree) else { return usual };
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse(),
        };
        match parsed {
            Ok(part) if (0.0..=1.0).contains(&part) => part,
            _ => {
                let problem = Problem::new(tree.at, format!("`{text}` is no part of the packets"));
                self.problem(problem.label("not understood").help("write a part such as `0.1%`"));
                usual
            }
        }
    }
}
