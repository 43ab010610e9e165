//! Rank programs: the files that `program` nodes name.
//!
//! Why: an operator's or a tenant's own order is read and checked with the policy, so that a wrong one never reaches the engine.
//! From: Loom §4.1 and §5; `docs/rank.md` is the language.
//! Not here: what a program says (`plimsoll_rank`), its cost beside the link (`cost`), where such a node may stand (`ranked`).
//! Invariant: each file is read and parsed once.

use super::super::graph::{NodeIx, ScopeIx};
use super::Composer;
use crate::law::{Law, Problem};
use crate::program::{RankId, RankProgram};
use plimsoll_document::{FileId, Mark, Name};

/// The end of a rank program's name.
const ENDING: &str = ".rank";

impl Composer<'_> {
    /// The program that `node` names in the file `scope`, unless something is wrong with it.
    pub(super) fn rank_program(&mut self, module: &Name, scope: ScopeIx, node: NodeIx) -> Option<RankId> {
        if !self.stays_inside(module, scope) {
            return None;
        }
        if !module.value.ends_with(ENDING) {
            // Else a mistake in a policy would show lines of any file.
            let message =
                format!("`{}` is no rank program: its name does not end in `{ENDING}`", module.value);
            let problem = Problem::error(Law::BadValue, module.at, message).label("not a program");
            self.problems
                .push(problem.help("name a file such as `srpt.rank`; `docs/rank.md` has the language"));
            return None;
        }
        let name = super::beside(&self.sources.file(module.at.file).name, &module.value);
        if let Some(&known) = self.ranks.get(&name) {
            return known;
        }
        let help =
            "write the file, of 16 KiB at most; `docs/rank.md` has the language, and examples to begin with";
        let known = self.loaded.get(&name).copied();
        let file = known.or_else(|| self.load(module, name.clone(), (scope, node), help))?;
        let rank = self.parse_rank(file, &name);
        self.ranks.insert(name, rank);
        rank
    }

    fn parse_rank(&mut self, file: FileId, name: &str) -> Option<RankId> {
        let text = &self.sources.file(file).text;
        match plimsoll_rank::Program::parse(text) {
            Ok(code) => {
                let module = code.compile();
                let instructions = module.enqueue_cost + module.dequeue_cost;
                let id = RankId(u32::try_from(self.graph.ranks.len()).unwrap_or(u32::MAX));
                self.graph.ranks.push(RankProgram {
                    module: name.to_owned(),
                    code: code.into(),
                    instructions,
                });
                Some(id)
            }
            Err(error) => {
                let at = place_in(text, file, &error);
                let problem = Problem::error(Law::BadValue, at, error.problem.to_string()).label("here");
                self.problems
                    .push(problem.help("this file is a rank program: `docs/rank.md` has the language"));
                None
            }
        }
    }
}

/// Where an error stands in a file's text.
fn place_in(text: &str, file: FileId, error: &plimsoll_rank::Error) -> Mark {
    let before: usize = text.split_inclusive('\n').take(error.line - 1).map(str::len).sum();
    let line = text[before..].split('\n').next().unwrap_or("");
    let (column, len) = line
        .char_indices()
        .nth(error.column - 1)
        .map_or((line.len(), 0), |(at, found)| (at, found.len_utf8()));
    Mark { file, offset: u32::try_from(before + column).unwrap_or(u32::MAX), len: len as u32 }
}
