//! From a tree of YAML to what the file says, every mistake on the way noted.
//!
//! Why: a mistake in one value must not hide the next one.
//! From: `docs/policy.md`, one function for each of its tables.
//! Not here: what names refer to and whether the policy is legal (`check`).
//! Invariant: reading goes on after each mistake; whatever could not be read is absent from the result.

mod addresses;
mod class;
mod host;
mod matches;
pub(crate) mod names;
mod overlay;
pub(crate) mod syntax;

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

pub(crate) use class::{MAX_WEIGHT, policy_file};
pub(crate) use host::{DEFAULT_MTU, MOST_QUEUES, any_host, host_file};

use crate::law::{Law, Problem, Problems};
use plimsoll_document::{Located, Mark, Name, Tree, Value, nearest};

/// Notes what is wrong while it reads.
#[derive(Default)]
pub(crate) struct Reader {
    pub problems: Problems,
    /// Which of the values to take where a key stands several times, from 0.
    turn: usize,
    /// How often a key stands too often, at most.
    repeats: usize,
    /// Keys that were read.
    keys: usize,
}

/// Values of one key that are read, at most, if a key stands there many times.
const MOST_TURNS: usize = 8;
/// Keys that are read in all before a file's further turns are left out.
const MOST_KEYS: usize = 200_000;

/// Reads a file, and again for each value of a key that stands there twice: only the first value counts, but the
/// mistakes in all of them are told.
pub(crate) fn read_all<T>(mut read: impl FnMut(&mut Reader) -> T) -> (T, Problems) {
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

/// The entries of a map whose keys the language fixes.
pub(crate) struct Entries<'t> {
    /// The map's own place.
    pub at: Mark,
    /// Keys, with values that stand behind the same key side by side.
    entries: Vec<Entry<'t>>,
    turn: usize,
}

struct Entry<'t> {
    /// As the language has it, also if it is misspelt in the file.
    key: &'t str,
    at: Mark,
    value: &'t Tree,
}

impl<'t> Entries<'t> {
    pub fn get(&self, key: &str) -> Option<&'t Tree> {
        self.entry(key).map(|entry| entry.value)
    }

    /// Where the key itself stands.
    pub fn key_at(&self, key: &str) -> Option<Mark> {
        self.entry(key).map(|entry| entry.at)
    }

    /// Every value of a key that should stand there once.
    pub fn all(&self, key: &str) -> Vec<&'t Tree> {
        self.entries.iter().filter(|entry| entry.key == key).map(|entry| entry.value).collect()
    }

    fn entry(&self, key: &str) -> Option<&Entry<'t>> {
        let mut found = self.entries.iter().filter(|entry| entry.key == key);
        let first = found.next();
        self.turn.checked_sub(1).and_then(|later| found.nth(later)).or(first)
    }
}

impl Reader {
    pub fn report(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// A map with these keys and no others; `what` names it in messages. What stands behind a misspelt key is read as
    /// what it was most likely meant to be: its mistakes should not wait until the key is mended.
    pub fn entries<'t>(&mut self, tree: &'t Tree, what: &str, keys: &[&'static str]) -> Entries<'t> {
        let mut entries: Vec<Entry<'t>> = Vec::new();
        let mut misspelt = Vec::new();
        for (name, value) in self.map(&[tree], what, "keys and values") {
            if keys.contains(&name.value.as_str()) {
                entries.push(Entry { key: &name.value, at: name.at, value });
            } else if let Some(key) = self.unknown_key(name, what, keys) {
                misspelt.push(Entry { key, at: name.at, value });
            }
        }
        let mut known: HashSet<&str> = entries.iter().map(|entry| entry.key).collect();
        entries.extend(misspelt.into_iter().filter(|entry| known.insert(entry.key)));
        Entries { at: tree.at, entries, turn: self.turn }
    }

    /// The entries of maps whose keys the operator chooses; those with a bad name or one that is taken come, too.
    pub fn named<'t>(&mut self, trees: &[&'t Tree], what: &str) -> Vec<(&'t Name, &'t Tree)> {
        let entries = self.map(trees, what, "names and what they are");
        for (name, _) in &entries {
            self.good_name(name);
        }
        entries
    }

    fn map<'t>(&mut self, trees: &[&'t Tree], what: &str, holds: &str) -> Vec<(&'t Name, &'t Tree)> {
        let mut all: Vec<(&Name, &Tree)> = Vec::new();
        let mut seen: HashMap<&str, (Mark, usize)> = HashMap::new();
        for tree in trees {
            let entries = match &tree.value {
                Value::Map(entries) => entries.as_slice(),
                Value::Null => &[],
                other => {
                    let message = format!("{what} is {}, not a map", described(other));
                    let problem = Problem::error(Law::BadValue, tree.at, message).label("a map belongs here");
                    self.report(problem.help(format!("write {holds}: `{{key: value, ...}}`")));
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
        let problem = Problem::error(Law::DuplicateKey, name.at, message).label("again here");
        let help = "keep one of them, or give the second another name";
        self.problems.push(problem.also(first, "first here").help(help));
    }

    /// Tells of it, and guesses which key was meant.
    fn unknown_key(&mut self, name: &Name, what: &str, keys: &[&'static str]) -> Option<&'static str> {
        if self.problems.is_full() {
            self.problems.count_error();
            return None;
        }
        let problem = Problem::error(Law::UnknownKey, name.at, format!("{what} has no key `{}`", name.value));
        let list = keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
        let near = nearest(&name.value, keys.iter().copied());
        let help = match near {
            Some(near) => format!("did you mean `{near}`? The keys are {list}"),
            None => format!("the keys are {list}"),
        };
        self.report(problem.label("not a key of the language").help(help));
        // A short word is near to many.
        keys.iter().copied().find(|key| near == Some(key) && name.value.len() > 3)
    }

    /// Whether the operator may call something so.
    pub fn good_name(&mut self, name: &Name) -> bool {
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
