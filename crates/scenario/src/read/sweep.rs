//! Reading a sweep: which values of the file are varied.
//!
//! Why: how a result depends on a value is one file and one table, not a script around many files.
//! From: `docs/scenarios.md`, "Sweeps".
//! Not here: the table (`crate::sweep`).
//! Invariant: points come in the order of the file, the last path varying fastest; there is at least one.

use plimsoll_policy::Mark;
use plimsoll_policy::document::{Tree, Value};

use super::fields::Reader;
use crate::Problem;
use crate::yaml;

/// Points that one file may have.
const MOST: usize = 10_000;

/// What each path is set to at one point.
type Settings = Vec<(String, String)>;

/// The paths and their values, as the file has them.
pub(super) fn axes(file: &Tree) -> Vec<(String, Vec<String>)> {
    let Some(Value::Map(axes)) = file.get("sweep").map(|tree| &tree.value) else { return Vec::new() };
    let values = |tree: &Tree| match &tree.value {
        Value::List(values) => values.iter().map(yaml::on_one_line).collect(),
        _ => Vec::new(),
    };
    axes.iter().map(|(path, tree)| (path.value.clone(), values(tree))).collect()
}

impl Reader {
    /// Each point's settings, and the file with them; `fixed` come from outside and are no longer varied.
    pub(super) fn settings(&mut self, file: &Tree, fixed: &[(String, String)]) -> Vec<(Settings, Tree)> {
        let mut base = file.clone();
        for (path, value) in fixed {
            let value = yaml::text(value);
            self.set(&mut base, path, value, Mark::default());
        }
        let mut points = vec![(Vec::new(), base)];
        let Some(sweep) = file.get("sweep") else { return points };
        for (path, values) in self.entries(sweep, "`sweep`") {
            if fixed.iter().any(|(fixed, _)| *fixed == path.value) {
                continue;
            }
            let values = self.list(values, &format!("`{}`", path.value));
            if values.is_empty() {
                let problem = Problem::new(path.at, format!("`{}` takes no value", path.value));
                self.problem(problem.label("nothing to vary").help("list its values: `[1, 4, 16]`"));
                continue;
            }
            if points.len() * values.len() > MOST {
                let message = format!("the sweep has more than {MOST} points");
                let problem = Problem::new(path.at, message).label("too much");
                self.problem(problem.help("vary fewer values at once"));
                break;
            }
            let mut next = Vec::new();
            for (settings, tree) in &points {
                for value in values {
                    let (mut settings, mut tree): (Settings, Tree) = (settings.clone(), tree.clone());
                    self.set(&mut tree, &path.value, value.clone(), path.at);
                    settings.push((path.value.clone(), yaml::on_one_line(value)));
                    next.push((settings, tree));
                }
            }
            points = next;
        }
        points
    }

    fn set(&mut self, file: &mut Tree, path: &str, value: Tree, at: Mark) {
        if let Err(part) = yaml::set(file, path, value) {
            let problem = Problem::new(at, format!("`{path}` leads nowhere: there is no `{part}`"));
            self.problem(
                problem
                    .label("no such value")
                    .help("write the keys on the way to a value: `tenants.shop.min`"),
            );
        }
    }
}
