//! Reading the experiment of a paper that a scenario repeats.
//!
//! Why: the table of all experiments is made from the files, so that a file without a place in it is a mistake.
//! From: `docs/scenarios.md`, "Experiments of papers".
//! Not here: figures (`crate::paper`).
//! Invariant: an id is a paper's letters, a kind (E, M, C or S) and a number; each figure of ours can be worked out once the runs are over.

use plimsoll_document::Tree;

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::expect::{Names, check_quantity, parse_quantity};
use crate::keys::{PAPER, PAPER_NUMBER};
use crate::model::Scenario;
use crate::paper::{Number, Paper};

impl Reader {
    /// `paper:` of a scenario whose systems, tenants and workloads are known; its figures where they are of this form.
    pub(super) fn paper(&mut self, tree: &Tree, scenario: &Scenario, figures: bool) -> Paper {
        let fields = self.fields(tree, tree.at, "`paper`", &PAPER);
        let id = self.line(&fields, "id");
        if let Some(tree) = fields.get("id").filter(|_| !is_id(&id)) {
            let problem = Problem::new(tree.at, format!("`{id}` is no experiment's id")).label("not an id");
            self.problem(
                problem.help("write the paper's letters, a kind (E, M, C or S) and a number, as in `LO-E4`"),
            );
        }
        let names = Names::of(scenario);
        let numbers = fields.get("numbers").map_or(&[][..], |tree| self.list(tree, "`numbers`"));
        if let Some(tree) = fields.get("numbers").filter(|_| numbers.is_empty()) {
            let problem = Problem::new(tree.at, "`numbers` lists nothing").label("no number");
            self.problem(
                problem.help(
                    "list at least one, as in `[{paper: 2.5 Gb/s each, ours: plimsoll.t1.throughput}]`",
                ),
            );
        }
        let numbers = if figures { numbers } else { &[] };
        let numbers = numbers.iter().filter_map(|tree| self.number(tree, &names, scenario)).collect();
        Paper {
            id,
            figure: self.line(&fields, "figure"),
            shows: self.line(&fields, "shows"),
            numbers,
            differs: fields
                .get("differs")
                .and_then(|tree| self.text(tree))
                .unwrap_or_default()
                .trim()
                .to_owned(),
        }
    }

    fn number(&mut self, tree: &Tree, names: &Names, scenario: &Scenario) -> Option<Number> {
        let fields = self.fields(tree, tree.at, "a number", &PAPER_NUMBER);
        let of = fields.get("of").and_then(|tree| self.text(tree)).unwrap_or_default().to_owned();
        let paper = self.line(&fields, "paper");
        let at = self.points_meant(&fields, scenario);
        let tree = fields.get("ours")?;
        let line = self.text(tree)?;
        let parsed = parse_quantity(line);
        let problems = match &parsed {
            Ok(quantity) => check_quantity(quantity, names),
            Err(problem) => vec![(**problem).clone()],
        };
        for mut problem in problems {
            problem.at = self.within(tree, line, problem.at);
            self.problem(problem);
        }
        Some(Number { of, paper, at, ours: parsed.ok()? })
    }

    /// A text that has to be there.
    fn line(&mut self, fields: &Fields<'_>, key: &str) -> String {
        fields.get(key).and_then(|tree| self.text(tree)).unwrap_or_default().trim().to_owned()
    }
}

fn is_id(text: &str) -> bool {
    let Some((paper, rest)) = text.split_once('-') else { return false };
    let number = rest.strip_prefix(KINDS).unwrap_or_default();
    !paper.is_empty()
        && paper.chars().all(|c| c.is_ascii_uppercase())
        && !number.is_empty()
        && number.chars().all(|c| c.is_ascii_digit())
}

/// Experiments, mechanisms, claims of a cost or limit, claims of security.
const KINDS: [char; 4] = ['E', 'M', 'C', 'S'];
