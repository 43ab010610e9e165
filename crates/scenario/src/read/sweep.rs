//! Reading a sweep: the values of the file that are varied.
//!
//! Why: how a result depends on a value is one file and one table, not a script around many files.
//! From: `docs/scenarios.md`, "Sweeps".
//! Not here: the table (`crate::sweep`).
//! Invariant: points come in the order of the file, the last path varying fastest; there is at least one.

use plimsoll_document::{Name, Tree, Value};
use plimsoll_policy::{FileId, Mark};

use super::fields::{Fields, Reader};
use crate::Problem;
use crate::model::Scenario;
use plimsoll_document::yaml;

/// Points that one file may have.
const MOST: usize = 10_000;
/// Bytes of the file over all its points; once read they take ten times as much memory.
const MOST_BYTES: usize = 32_000_000;

/// The value of each path at one point.
type Settings = Vec<(String, String)>;

/// The separator of paths that vary together.
const TOGETHER: &str = " + ";

/// The paths and their values, as the file has them.
pub(super) fn axes(file: &Tree) -> Vec<(String, Vec<String>)> {
    let Some(Value::Map(axes)) = file.get("sweep").map(|tree| &tree.value) else { return Vec::new() };
    let values = |tree: &Tree| match &tree.value {
        Value::List(values) => values.clone(),
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    for (paths, tree) in axes {
        for (index, path) in paths.value.split(TOGETHER).enumerate() {
            let values = values(tree);
            let own = values.iter().filter_map(|value| together(&paths.value, value)?.get(index).copied());
            found.push((path.to_owned(), own.map(yaml::on_one_line).collect()));
        }
    }
    found
}

/// A value for each of the paths that vary together; nothing if there are more or fewer.
fn together<'t>(paths: &str, value: &'t Tree) -> Option<Vec<&'t Tree>> {
    let count = paths.split(TOGETHER).count();
    match &value.value {
        _ if count == 1 => Some(vec![value]),
        Value::List(values) if values.len() == count => Some(values.iter().collect()),
        _ => None,
    }
}

impl Reader {
    /// Each point's settings, and the file with them; `fixed` come from outside and are no longer varied.
    pub(super) fn settings(&mut self, file: &Tree, fixed: &[(String, String)]) -> Vec<(Settings, Tree)> {
        let mut base = file.clone();
        for (path, value) in fixed {
            // A mistake in it is shown in the setting itself, not in the file.
            let text = format!("{path}={value}");
            let whole = text.len();
            let file = self.sources.add("--set", text);
            let part = |range| Mark { file, ..Mark::from(range) };
            let value = Tree { at: part(path.len() + 1..whole), value: Value::Text(value.clone()) };
            self.set(&mut base, path, value, part(0..path.len()));
        }
        let mut points = vec![(Vec::new(), base)];
        let Some(sweep) = file.get("sweep") else { return points };
        for (path, values) in self.entries(sweep, "`sweep`") {
            if fixed.iter().any(|(fixed, _)| path.value.split(TOGETHER).any(|path| path == fixed)) {
                continue;
            }
            let values = self.list(values, &format!("`{}`", path.value));
            if values.is_empty() {
                let problem = Problem::new(path.at, format!("`{}` takes no value", path.value));
                self.problem(problem.label("nothing to vary").help("list its values: `[1, 4, 16]`"));
                continue;
            }
            let bytes = self.sources.file(FileId(0)).text.len().saturating_mul(points.len() * values.len());
            if bytes > MOST_BYTES {
                let message =
                    format!("the sweep repeats the file to more than {} MB", MOST_BYTES / 1_000_000);
                let problem = Problem::new(path.at, message).label("too much");
                self.problem(problem.help("vary fewer values at once, or shorten the file"));
                break;
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
                    let Some(own) = together(&path.value, value) else {
                        self.not_together(path, value);
                        continue;
                    };
                    for (path_of_one, value) in path.value.split(TOGETHER).zip(own) {
                        self.set(&mut tree, path_of_one, value.clone(), path.at);
                        settings.push((path_of_one.to_owned(), yaml::on_one_line(value)));
                    }
                    next.push((settings, tree));
                }
            }
            points = next;
        }
        points
    }

    fn not_together(&mut self, path: &Name, value: &Tree) {
        let count = path.value.split(TOGETHER).count();
        let message = format!("`{}` varies {count} values together", path.value);
        let problem = Problem::new(value.at, message).label(format!("not {count} values"));
        self.problem(
            problem.help(format!("write a list of {count} for each point: `[[1, 10Mbps], [10, 1Mbps]]`")),
        );
    }

    /// `at`: values that the sweep gives its paths.
    pub(super) fn points_meant(&mut self, fields: &Fields<'_>, scenario: &Scenario) -> Settings {
        let Some(tree) = fields.get("at") else { return Vec::new() };
        let mut points = Vec::new();
        for (path, value) in self.entries(tree, "`at`") {
            let wanted = yaml::on_one_line(value);
            let axis = scenario.sweep.iter().find(|(swept, _)| *swept == path.value);
            let known = axis.map(|(_, values)| values.iter().map(String::as_str));
            match known {
                None => {
                    let paths = scenario.sweep.iter().map(|(path, _)| path.as_str());
                    self.unknown(path.at, "`sweep` has no path", &path.value, paths);
                }
                Some(known) if !known.clone().any(|value| value == wanted) => {
                    self.unknown(value.at, "`sweep` has no value", &wanted, known);
                }
                Some(_) => points.push((path.value.clone(), wanted)),
            }
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
