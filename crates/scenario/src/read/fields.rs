//! Reading maps and scalars, and noting what is wrong with them.
//!
//! Why: each key is read in one line, and no mistake hides another.
//! From: `docs/scenarios.md`, "Errors".
//! Not here: which keys there are (`scenario`, `workload`).
//! Invariant: where a key that stands in the file gives `None`, its problem has been noted.

use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;

pub(super) use plimsoll_document::Fields;
use plimsoll_document::{self as document, Mark, Name, Sources, Tree, Value, nearest};

use crate::Problem;

/// Entries of one map or list: more than a run could have, and each is compared with each.
const MOST_ENTRIES: usize = 20_000;

/// Names that a message lists.
const MOST_NAMED: usize = 100;

/// Collects problems while a file is read.
#[derive(Debug, Default)]
pub(super) struct Reader {
    reader: document::Reader<()>,
    /// The values set at the point of the sweep that is read.
    pub point: Vec<(String, String)>,
    /// The scenario's file, and the policy files that it names.
    pub sources: Sources,
}

impl Deref for Reader {
    type Target = document::Reader<()>;

    fn deref(&self) -> &Self::Target {
        &self.reader
    }
}

impl DerefMut for Reader {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.reader
    }
}

impl Reader {
    pub(super) fn of(sources: Sources) -> Self {
        Self { sources, ..Self::default() }
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// The entries of a map with free keys; repeated ones are noted.
    pub(super) fn entries<'a>(&mut self, tree: &'a Tree, what: &str) -> &'a [(Name, Tree)] {
        self.map(&[tree], what, "keys and values");
        &tree.entries()[..self.few(tree.entries().len(), tree.at, what)]
    }

    /// The number of entries of `count` that are read; more than that are reported.
    fn few(&mut self, count: usize, at: Mark, what: &str) -> usize {
        if count > MOST_ENTRIES {
            let problem =
                Problem::new(at, format!("{what} has {count} entries, and {MOST_ENTRIES} are the most"));
            self.problem(problem.label("too many").help("leave some out"));
        }
        count.min(MOST_ENTRIES)
    }

    pub(super) fn unknown<'a>(
        &mut self,
        at: Mark,
        message: &str,
        word: &str,
        known: impl Iterator<Item = &'a str> + Clone,
    ) {
        if self.problems.is_full() {
            return self.problems.count_error();
        }
        let near = nearest(word, known.clone()).map(|near| format!("did you mean `{near}`? "));
        let mut all: Vec<&str> = Vec::new();
        // A name that stands twice in the file is named once.
        for name in known.take(MOST_NAMED) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        let all = if all.is_empty() {
            "there is none".to_owned()
        } else {
            format!("there are `{}`", all.join("`, `"))
        };
        let problem = Problem::new(at, format!("{message} `{word}`")).label("unknown");
        self.problem(problem.help(format!("{}{all}", near.unwrap_or_default())));
    }

    /// The text of a scalar.
    pub(super) fn text<'a>(&mut self, tree: &'a Tree) -> Option<&'a str> {
        if let Value::Text(text) = &tree.value {
            return Some(text);
        }
        let problem = Problem::new(tree.at, "one value belongs here, and no list or map");
        self.problem(problem.label("not a single value"));
        None
    }

    /// A scalar of some kind; its parser's error says what belongs there.
    pub(super) fn parse<T: FromStr<Err: Display>>(&mut self, tree: &Tree, want: &str) -> Option<T> {
        let text = self.text(tree)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(_) => {
                let problem = Problem::new(tree.at, format!("`{text}` is not {want}"));
                self.problem(problem.label("not understood").help(format!("write {want}")));
                None
            }
        }
    }

    /// The value of a key, or its default.
    pub(super) fn value<T: FromStr<Err: Display>>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        want: &str,
        default: T,
    ) -> T {
        fields.get(key).and_then(|tree| self.parse(tree, want)).unwrap_or(default)
    }

    /// The value of a key that may be absent.
    pub(super) fn optional<T: FromStr<Err: Display>>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        want: &str,
    ) -> Option<T> {
        fields.get(key).and_then(|tree| self.parse(tree, want))
    }

    /// A count from 1 to `most`.
    pub(super) fn count(&mut self, fields: &Fields<'_>, key: &str, default: u32, most: u32) -> u32 {
        let Some(tree) = fields.get(key) else { return default };
        let want = format!("a whole number from 1 to {most}");
        let Some(count) = self.parse::<u32>(tree, &want) else { return default };
        if !(1..=most).contains(&count) {
            let problem = Problem::new(tree.at, format!("`{key}` is {count}"));
            self.problem(problem.label("out of range").help(format!("write {want}")));
        }
        count
    }

    /// A scalar that is one of several words.
    pub(super) fn choice<T: Copy>(&mut self, tree: &Tree, what: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(tree)?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            self.unknown(
                tree.at,
                &format!("there is no {what}"),
                text,
                choices.iter().map(|(name, _)| *name),
            );
        }
        found
    }

    pub(super) fn flag(&mut self, fields: &Fields<'_>, key: &str, default: bool) -> bool {
        let choice =
            fields.get(key).map(|tree| self.choice(tree, "such answer", &[("true", true), ("false", false)]));
        choice.flatten().unwrap_or(default)
    }

    /// The items of a list.
    pub(super) fn list<'a>(&mut self, tree: &'a Tree, what: &str) -> &'a [Tree] {
        match &tree.value {
            Value::Null => &[],
            Value::List(items) => &items[..self.few(items.len(), tree.at, what)],
            _ => {
                let problem = Problem::new(tree.at, format!("{what} is a list"));
                self.problem(
                    problem.label("not a list").help("write `[a, b]`, or one `- item` on each line"),
                );
                &[]
            }
        }
    }

    /// Whether a name can stand in an expectation.
    pub(super) fn name(&mut self, key: &Name, what: &str) {
        let mut letters = key.value.chars();
        let good = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !good || key.value == "line" || key.value == "per" {
            let problem = Problem::new(key.at, format!("`{}` cannot name a {what}", key.value));
            let help = "names are letters, digits and `_`, begin with a letter, and are not `line` or `per`; expectations use them";
            self.problem(problem.label("not a name").help(help));
        }
    }
}
