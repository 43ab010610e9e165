//! Reading mappings and scalars by key tables, and noting what is wrong with them.
//!
//! Why: a mistake in one value must not hide the next one, and every document is held to its keys alike.
//! From: `docs/policy.md` and `docs/scenarios.md`, "Errors".
//! Not here: which keys there are ([`Mapping`] tables of `policy` and `scenario`) and what names refer to.
//! Invariant: reading goes on after each mistake; what could not be read is absent from the result, and has a problem.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use super::keys::{Mapping, Shape};
use super::problem::{Mistake, Problem, Problems, Rule};
use super::source::{Located, Mark, Name};
use super::spelling::nearest;
use super::tree::{Tree, Value};

/// Notes what is wrong while it reads.
#[derive(Clone, Debug)]
pub struct Reader<R> {
    /// Problems found so far.
    pub problems: Problems<R>,
    /// The number, from 0, of the value to take where a key stands several times.
    turn: usize,
    /// The most repetitions of one key.
    repeats: usize,
    /// Keys that were read.
    keys: usize,
}

/// Values of one key that are read, at most, if a key stands there many times.
const MOST_TURNS: usize = 8;
/// Keys that are read in all before a file's further turns are left out.
const MOST_KEYS: usize = 200_000;

/// Reads a file, and again for each value of a key that stands there twice: only the first value counts, but the
/// mistakes in all of them are reported.
pub fn read_all<R: Rule, T>(mut read: impl FnMut(&mut Reader<R>) -> T) -> (T, Problems<R>) {
    let mut reader = Reader::default();
    let first = read(&mut reader);
    for turn in 1..=reader.repeats.min(MOST_TURNS) {
        if reader.keys * turn > MOST_KEYS || reader.problems.is_full() {
            break;
        }
        let mut again = Reader { turn, ..Reader::default() };
        read(&mut again);
        reader.problems.append(again.problems);
    }
    (first, reader.problems)
}

/// The entries of a mapping that has a key table.
#[derive(Clone, Debug)]
pub struct Fields<'t> {
    /// Its name, for messages: `tenant shop`.
    pub what: String,
    /// Where to point when a key is missing.
    pub at: Mark,
    table: &'static Mapping,
    /// Keys, with values that stand behind the same key side by side.
    entries: Vec<Entry<'t>>,
    turn: usize,
}

#[derive(Clone, Debug)]
struct Entry<'t> {
    /// The table's spelling, also where the file misspells it.
    key: &'t str,
    at: Mark,
    value: &'t Tree,
}

impl<'t> Fields<'t> {
    /// The value of a key, which must be in the table: a key that is read and not in the schema is a mistake of ours.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'t Tree> {
        self.entry(key).map(|entry| entry.value)
    }

    /// Where the key itself stands.
    #[must_use]
    pub fn key_at(&self, key: &str) -> Option<Mark> {
        self.entry(key).map(|entry| entry.at)
    }

    /// Every value of a key that should stand there once.
    #[must_use]
    pub fn all(&self, key: &str) -> Vec<&'t Tree> {
        debug_assert!(self.table.key(key).is_some(), "`{key}` is a key of `{}`", self.table.name);
        self.entries.iter().filter(|entry| entry.key == key).map(|entry| entry.value).collect()
    }

    fn entry(&self, key: &str) -> Option<&Entry<'t>> {
        debug_assert!(self.table.key(key).is_some(), "`{key}` is a key of `{}`", self.table.name);
        let mut found = self.entries.iter().filter(|entry| entry.key == key);
        let first = found.next();
        self.turn.checked_sub(1).and_then(|later| found.nth(later)).or(first)
    }
}

impl<R> Default for Reader<R> {
    fn default() -> Self {
        Self { problems: Problems::default(), turn: 0, repeats: 0, keys: 0 }
    }
}

impl<R: Rule> Reader<R> {
    /// Notes a problem.
    pub fn report(&mut self, problem: Problem<R>) {
        self.problems.push(problem);
    }

    /// A mapping with the table's keys: no others, and none that it needs left out. `what` names it in messages.
    pub fn fields<'t>(
        &mut self,
        tree: &'t Tree,
        at: Mark,
        what: &str,
        table: &'static Mapping,
    ) -> Fields<'t> {
        let fields = self.some_fields(tree, at, what, table);
        if matches!(tree.value, Value::Text(_) | Value::List(_)) {
            return fields; // not a mapping, which has been reported
        }
        for key in table.keys().filter(|key| !fields.entries.iter().any(|entry| entry.key == key.name)) {
            if let Some(example) = key.needed {
                self.missing(&fields, key.name, example);
            }
        }
        fields
    }

    /// Like [`Reader::fields`], but keys that the table needs may be left out. The value of a misspelt key
    /// is read as that of the key that was probably meant, so that its mistakes are reported at once.
    pub fn some_fields<'t>(
        &mut self,
        tree: &'t Tree,
        at: Mark,
        what: &str,
        table: &'static Mapping,
    ) -> Fields<'t> {
        let mut entries: Vec<Entry<'t>> = Vec::new();
        let mut misspelt = Vec::new();
        for (name, value) in self.map(&[tree], what, "keys and values") {
            if table.key(&name.value).is_some() {
                entries.push(Entry { key: &name.value, at: name.at, value });
            } else if let Some(key) = self.unknown_key(name, what, table) {
                misspelt.push(Entry { key, at: name.at, value });
            }
        }
        let mut known: HashSet<&str> = entries.iter().map(|entry| entry.key).collect();
        entries.extend(misspelt.into_iter().filter(|entry| known.insert(entry.key)));
        Fields { what: what.to_owned(), at, table, entries, turn: self.turn }
    }

    /// Reports that a mapping lacks a key.
    pub fn missing(&mut self, fields: &Fields<'_>, key: &str, example: &str) {
        let message = format!("{} has no `{key}`", fields.what);
        let problem = Problem::error(R::of(Mistake::MissingKey), fields.at, message);
        self.report(problem.label(format!("`{key}` is missing")).help(format!("add `{key}: {example}`")));
    }

    /// The entries of maps whose keys the author chooses; keys that stand there again come, too, and are noted.
    pub fn map<'t>(&mut self, trees: &[&'t Tree], what: &str, holds: &str) -> Vec<(&'t Name, &'t Tree)> {
        let mut all: Vec<(&Name, &Tree)> = Vec::new();
        let mut seen: HashMap<&str, (Mark, usize)> = HashMap::new();
        for tree in trees {
            let entries = match &tree.value {
                Value::Map(entries) => entries.as_slice(),
                Value::Null => &[],
                other => {
                    let message = format!("{what} is {}, not a map", described(other));
                    let problem = bad(tree.at, message, format!("write {holds}: `{{key: value, ...}}`"));
                    self.report(problem.label("a map belongs here"));
                    &[]
                }
            };
            self.keys += entries.len();
            for (name, value) in entries {
                let (first, count) = seen.entry(name.value.as_str()).or_insert((name.at, 0));
                let first = *first;
                if *count > 0 {
                    self.repeats = self.repeats.max(*count);
                    self.repeated_key(name, first, what);
                }
                *count += 1;
                all.push((name, value));
            }
        }
        all
    }

    fn repeated_key(&mut self, name: &Name, first: Mark, what: &str) {
        if self.problems.is_full() {
            return self.problems.count_error();
        }
        let message = format!("`{}` is there twice in {what}", name.value);
        let problem = Problem::error(R::of(Mistake::DuplicateKey), name.at, message).label("again here");
        let help = "keep one of them, or give the second another name";
        self.problems.push(problem.also(first, "first here").help(help));
    }

    /// Reports an unknown key, and guesses which key was meant.
    fn unknown_key(&mut self, name: &Name, what: &str, table: &'static Mapping) -> Option<&'static str> {
        if self.problems.is_full() {
            self.problems.count_error();
            return None;
        }
        let message = format!("{what} has no key `{}`", name.value);
        let problem = Problem::error(R::of(Mistake::UnknownKey), name.at, message);
        let keys = table.keys().map(|key| key.name);
        let list = keys.clone().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let below =
            table.keys().find(|key| matches!(key.shape, Shape::Map(map) if map.key(&name.value).is_some()));
        let near = nearest(&name.value, keys).filter(|_| below.is_none());
        let help = match near {
            None if let Some(below) = below => {
                format!("`{}` is a key of `{}`; the keys here are {list}", name.value, below.name)
            }
            Some(near) => format!("did you mean `{near}`? The keys are {list}"),
            None => format!("the keys are {list}"),
        };
        self.report(problem.label("not a key of the language").help(help));
        // A short word resembles many others.
        near.filter(|_| name.value.len() > 3)
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
                let why = "or leave out what should get nothing: zero would stop its traffic forever";
                self.zero(tree, what, &format!("write {example}, {why}"));
                None
            }
            Err(_) => {
                let message = format!("{what} is `{text}`, not {example}");
                self.report(bad(tree.at, message, format!("write {example}")));
                None
            }
        }
    }

    /// [`value`](Self::value) of a key that is never zero: `instead` goes on after the example, and says what zero would do.
    pub fn nonzero<T: FromStr>(
        &mut self,
        tree: &Tree,
        what: &str,
        example: &str,
        instead: &str,
    ) -> Option<Located<T>> {
        if is_zero(self.text(tree, what, example)?) {
            self.zero(tree, what, &format!("write {example}, {instead}"));
            return None;
        }
        self.value(tree, what, example)
    }

    /// [`value`](Self::value) of a key that may be zero: `zero` is how it is written with its unit, and what it does.
    pub fn value_or_zero<T: FromStr>(
        &mut self,
        tree: &Tree,
        what: &str,
        example: &str,
        zero: &str,
    ) -> Option<Located<T>> {
        let text = self.text(tree, what, example)?;
        if is_zero(text) && text.trim().parse::<T>().is_err() {
            let message = format!("{what} is `{text}`, not {example}");
            self.report(bad(tree.at, message, format!("zero needs a unit as well: write {zero}")));
            return None;
        }
        self.value(tree, what, example)
    }

    fn zero(&mut self, tree: &Tree, what: &str, help: &str) {
        let problem = Problem::error(R::of(Mistake::Zero), tree.at, format!("{what} is zero"));
        self.report(problem.label("zero").help(help));
    }

    /// A whole number above zero and up to `most`.
    pub fn positive(&mut self, tree: &Tree, what: &str, most: u32) -> Option<Located<u32>> {
        let example = format!("a whole number from 1 to {most}");
        let found = self.value::<u32>(tree, what, &example)?;
        if found.value == 0 {
            self.zero(tree, what, &format!("write {example}"));
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

/// A value that cannot stand where it does.
pub fn bad<R: Rule>(at: Mark, message: impl Into<String>, help: impl Into<String>) -> Problem<R> {
    Problem::error(R::of(Mistake::BadValue), at, message).label("this value").help(help)
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
