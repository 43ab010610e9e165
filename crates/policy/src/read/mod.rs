//! From a tree of YAML to what the file says, every mistake on the way noted.
//!
//! Why: a mistake in one value must not hide the next one.
//! From: `docs/policy.md`, one function for each of its tables.
//! Not here: what names refer to and whether the policy is legal (`check`).
//! Invariant: reading goes on after each mistake; whatever could not be read is absent from the result.

mod class;
mod host;
mod matches;
pub(crate) mod names;
pub(crate) mod syntax;

use std::str::FromStr;

pub(crate) use class::policy_file;
pub(crate) use host::host_file;

use crate::document::{Located, Mark, Name, Tree, Value, nearest};
use crate::law::{Law, Problem};

/// Notes what is wrong while it reads.
#[derive(Default)]
pub(crate) struct Reader {
    pub problems: Vec<Problem>,
}

/// The entries of a map whose keys the language fixes.
pub(crate) struct Entries<'t> {
    /// The map's own place.
    pub at: Mark,
    entries: Vec<(&'t Name, &'t Tree)>,
}

impl<'t> Entries<'t> {
    pub fn get(&self, key: &str) -> Option<&'t Tree> {
        self.entries.iter().find(|(name, _)| name.value == key).map(|(_, tree)| *tree)
    }

    /// Where the key itself stands.
    pub fn key_at(&self, key: &str) -> Option<Mark> {
        self.entries.iter().find(|(name, _)| name.value == key).map(|(name, _)| name.at)
    }
}

impl Reader {
    pub fn report(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// A map with these keys and no others; `what` names it in messages.
    pub fn entries<'t>(&mut self, tree: &'t Tree, what: &str, keys: &[&str]) -> Entries<'t> {
        let mut known = Vec::new();
        for (name, value) in self.map(tree, what, "keys and values") {
            if keys.contains(&name.value.as_str()) {
                known.push((name, value));
            } else {
                self.unknown_key(name, what, keys);
            }
        }
        Entries { at: tree.at, entries: known }
    }

    /// A map whose keys the operator chooses.
    pub fn named<'t>(&mut self, tree: &'t Tree, what: &str) -> Vec<(&'t Name, &'t Tree)> {
        let entries = self.map(tree, what, "names and what they are");
        entries.into_iter().filter(|(name, _)| self.good_name(name)).collect()
    }

    fn map<'t>(&mut self, tree: &'t Tree, what: &str, holds: &str) -> Vec<(&'t Name, &'t Tree)> {
        let entries = match &tree.value {
            Value::Map(entries) => entries,
            Value::Null => return Vec::new(),
            other => {
                let problem = Problem::error(
                    Law::BadValue,
                    tree.at,
                    format!("{what} is {}, not a map", described(other)),
                );
                self.report(
                    problem.label("a map belongs here").help(format!("write {holds}: `{{key: value, ...}}`")),
                );
                return Vec::new();
            }
        };
        let mut kept: Vec<(&Name, &Tree)> = Vec::with_capacity(entries.len());
        let mut seen = std::collections::HashMap::with_capacity(entries.len());
        for (name, value) in entries {
            match seen.entry(name.value.as_str()) {
                std::collections::hash_map::Entry::Occupied(first) => {
                    let message = format!("`{}` is there twice in {what}", name.value);
                    let problem = Problem::error(Law::DuplicateKey, name.at, message).label("again here");
                    let first: Mark = *first.get();
                    self.report(
                        problem
                            .also(first, "first here")
                            .help("keep one of them, or give the second another name"),
                    );
                }
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(name.at);
                    kept.push((name, value));
                }
            }
        }
        kept
    }

    fn unknown_key(&mut self, name: &Name, what: &str, keys: &[&str]) {
        let problem = Problem::error(Law::UnknownKey, name.at, format!("{what} has no key `{}`", name.value));
        let list = keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let help = match nearest(&name.value, keys.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? The keys are {list}"),
            None => format!("the keys are {list}"),
        };
        self.report(problem.label("not a key of the language").help(help));
    }

    /// Whether the operator may call something so.
    fn good_name(&mut self, name: &Name) -> bool {
        let text = &name.value;
        let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let fine = text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(inner)
            && text.len() <= 64;
        if !fine {
            let problem = Problem::error(Law::BadName, name.at, format!("`{text}` is no name"));
            self.report(problem.label("a name belongs here").help(
                "names start with a letter and go on with letters, digits, `_`, `-` and `.`, 64 characters at most",
            ));
        }
        fine
    }

    /// A scalar's text.
    pub fn text<'t>(&mut self, tree: &'t Tree, what: &str, example: &str) -> Option<&'t str> {
        match &tree.value {
            Value::Text(text) => Some(text),
            other => {
                let message = format!("{what} is {}, not {example}", described(other));
                self.report(bad(tree.at, message, format!("write {example}")));
                None
            }
        }
    }

    /// A scalar that has a type; the type's own message says what belongs there.
    pub fn value<T: FromStr>(&mut self, tree: &Tree, what: &str, example: &str) -> Option<Located<T>> {
        let text = self.text(tree, what, example)?;
        match text.trim().parse() {
            Ok(value) => Some(Located::new(value, tree.at)),
            Err(_) if is_zero(text) => {
                let problem = Problem::error(Law::Zero, tree.at, format!("{what} is zero"));
                self.report(problem.label("zero").help(format!(
                    "write {example}, or leave out what should get nothing: zero would stop its traffic forever"
                )));
                None
            }
            Err(_) => {
                let message = format!("{what} is `{text}`, not {example}");
                self.report(bad(tree.at, message, format!("write {example}")));
                None
            }
        }
    }

    /// A whole number above zero and up to `most`.
    pub fn positive(&mut self, tree: &Tree, what: &str, most: u32) -> Option<Located<u32>> {
        let example = format!("a whole number from 1 to {most}");
        let found = self.value::<u32>(tree, what, &example)?;
        if found.value == 0 {
            let problem = Problem::error(Law::Zero, tree.at, format!("{what} is zero"));
            self.report(problem.label("zero").help(format!("write {example}")));
            return None;
        }
        if found.value > most {
            let message = format!("{what} is {}, above {most}", found.value);
            self.report(bad(tree.at, message, format!("write {example}")));
            return None;
        }
        Some(found)
    }

    /// `true` or `false`.
    pub fn flag(&mut self, tree: &Tree, what: &str) -> Option<bool> {
        self.value::<bool>(tree, what, "`true` or `false`").map(|found| found.value)
    }

    /// One value or a list of them.
    pub fn one_or_more<'t>(&mut self, tree: &'t Tree, what: &str) -> Vec<&'t Tree> {
        match &tree.value {
            Value::List(items) => {
                if items.is_empty() {
                    let message = format!("{what} lists nothing");
                    self.report(bad(tree.at, message, "list at least one value, or leave the key out"));
                }
                items.iter().collect()
            }
            _ => vec![tree],
        }
    }

    /// One name or a list of names that the file uses.
    pub fn names(&mut self, tree: &Tree, what: &str) -> Vec<Name> {
        let items = self.one_or_more(tree, what);
        let name = |item: &Tree| {
            let text = self.text(item, what, "a name")?;
            Some(Located::new(text.to_owned(), item.at))
        };
        items.into_iter().filter_map(name).collect()
    }
}

pub(crate) fn bad(at: Mark, message: impl Into<String>, help: impl Into<String>) -> Problem {
    Problem::error(Law::BadValue, at, message).label("this value").help(help)
}

fn is_zero(text: &str) -> bool {
    let digits = text.trim_start().trim_end_matches(|c: char| !c.is_ascii_digit());
    !digits.is_empty() && digits.chars().all(|c| matches!(c, '0' | '.' | '_'))
}

fn described(value: &Value) -> &'static str {
    match value {
        Value::Null => "empty",
        Value::Text(_) => "a single value",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
    }
}
