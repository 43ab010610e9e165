//! Repetition: one line of the file for hundreds of tenants.
//!
//! Why: often the number of classes matters; a file with 500 of them by hand is not readable, and cannot vary their number.
//! From: `docs/scenarios.md`, "Many of a kind".
//! Not here: what the keys mean; everything after this reads a file without repetitions.
//! Invariant: a name stands for every number from 1 to its count, in their order; what is written out is bounded.

use std::collections::BTreeMap;

use plimsoll_document::{Name, Tree, Value};
use plimsoll_units::BitRate;

use super::fields::Reader;
use crate::Problem;

/// The largest count of a name, and the most entries that a file may become.
const MOST: u32 = 10_000;
const MOST_ENTRIES: usize = 200_000;

/// Keys whose values refer to paths of the file as it is written.
const AS_WRITTEN: [&str; 3] = ["sweep", "at", "virtual"];

/// A file with its repetitions written out.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) tree: Tree,
    /// The key from which each repeated tenant or workload came: `c` for `c7`.
    pub(super) families: BTreeMap<String, String>,
}

/// A `<...>` in a text.
#[derive(Clone, Debug, PartialEq)]
enum Part<'t> {
    Text(&'t str),
    /// `<c>`: its number.
    Number(&'t str),
    /// `<count c>`: the number of them.
    Count(&'t str),
    /// `<9Gbps / c>`: the part of each.
    Share(&'t str, &'t str),
}

/// Numbers that names stand for at some place.
type Bound<'t> = Vec<(&'t str, u32)>;

struct Writer<'t> {
    counts: BTreeMap<&'t str, u32>,
    entries: usize,
    problems: Vec<Problem>,
}

impl Reader {
    /// Writes out what `repeat` repeats.
    pub(super) fn written_out(&mut self, file: &Tree) -> Written {
        let Some(repeat) = file.get("repeat") else {
            return Written { tree: file.clone(), families: BTreeMap::new() };
        };
        let mut counts = BTreeMap::new();
        for (name, tree) in self.entries(repeat, "`repeat`") {
            self.name(name, "repetition");
            let want = format!("a whole number from 1 to {MOST}");
            let Some(count) = self.parse::<u32>(tree, &want) else { continue };
            if !(1..=MOST).contains(&count) {
                let problem = Problem::new(tree.at, format!("`{}` is repeated {count} times", name.value));
                self.problem(problem.label("out of range").help(format!("write {want}")));
            }
            counts.insert(name.value.as_str(), count.clamp(1, MOST));
        }
        let mut writer = Writer { counts, entries: 0, problems: Vec::new() };
        let mut families = BTreeMap::new();
        for key in ["tenants", "workloads"] {
            writer.families(file.get(key), &mut families);
        }
        let tree = writer.tree(file, &Vec::new());
        self.problems.extend(writer.problems);
        Written { tree, families }
    }
}

impl<'t> Writer<'t> {
    fn tree(&mut self, tree: &'t Tree, bound: &Bound<'t>) -> Tree {
        let value = match &tree.value {
            Value::Null => Value::Null,
            Value::Text(text) => Value::Text(self.text(text, tree, bound)),
            Value::List(items) => {
                Value::List(items.iter().flat_map(|item| self.items(item, bound)).collect())
            }
            Value::Map(entries) => {
                Value::Map(entries.iter().flat_map(|(key, tree)| self.entry(key, tree, bound)).collect())
            }
        };
        Tree { at: tree.at, value }
    }

    /// An entry of a map, once for each number that its key's free names stand for.
    fn entry(&mut self, key: &'t Name, tree: &'t Tree, bound: &Bound<'t>) -> Vec<(Name, Tree)> {
        if AS_WRITTEN.contains(&key.value.as_str()) {
            return vec![(key.clone(), tree.clone())];
        }
        let mut entries = Vec::new();
        for bound in self.bindings(&key.value, bound, tree) {
            let name = Name::new(self.text(&key.value, tree, &bound), key.at);
            entries.push((name, self.tree(tree, &bound)));
        }
        entries
    }

    /// An item of a list: a text with free names stands for all of them.
    fn items(&mut self, item: &'t Tree, bound: &Bound<'t>) -> Vec<Tree> {
        let Value::Text(text) = &item.value else { return vec![self.tree(item, bound)] };
        let bindings = self.bindings(text, bound, item);
        bindings.into_iter().map(|bound| self.tree(item, &bound)).collect()
    }

    /// All numbers of the names in a text that have no number yet.
    fn bindings(&mut self, text: &'t str, bound: &Bound<'t>, tree: &Tree) -> Vec<Bound<'t>> {
        let mut all = vec![bound.clone()];
        for name in self.free(text, bound) {
            let count = self.counts[name];
            self.entries = self.entries.saturating_add(all.len().saturating_mul(count as usize));
            if self.entries > MOST_ENTRIES {
                self.too_many(tree);
                return Vec::new();
            }
            let each = |bound: &Bound<'t>| -> Vec<Bound<'t>> {
                (1..=count).map(|number| bound.iter().copied().chain([(name, number)]).collect()).collect()
            };
            all = all.iter().flat_map(each).collect();
        }
        all
    }

    fn too_many(&mut self, tree: &Tree) {
        let message = format!("with its repetitions the file has more than {MOST_ENTRIES} entries");
        let problem = Problem::new(tree.at, message).label("too much").help("repeat fewer times");
        if self.problems.iter().all(|other| other.message != problem.message) {
            self.problems.push(problem);
        }
    }

    fn free(&self, text: &'t str, bound: &Bound<'t>) -> Vec<&'t str> {
        let mut names = Vec::new();
        for part in self.parts(text) {
            if let Part::Number(name) = part
                && !names.contains(&name)
                && bound.iter().all(|(other, _)| *other != name)
            {
                names.push(name);
            }
        }
        names
    }

    /// A text with its names' numbers.
    fn text(&mut self, text: &'t str, tree: &Tree, bound: &Bound<'t>) -> String {
        let mut written = String::new();
        for part in self.parts(text) {
            match part {
                Part::Text(text) => written += text,
                Part::Count(name) => written += &self.counts[name].to_string(),
                Part::Number(name) => match bound.iter().find(|(other, _)| *other == name) {
                    Some((_, number)) => written += &number.to_string(),
                    None => self.unbound(name, tree),
                },
                Part::Share(whole, name) => written += &self.share(whole, name, tree),
            }
        }
        written
    }

    fn unbound(&mut self, name: &str, tree: &Tree) {
        let problem = Problem::new(tree.at, format!("`<{name}>` stands for no number here"));
        let help = format!("write `<{name}>` into the key or the list item too, which is repeated then");
        self.problems.push(problem.label("which one?").help(help));
    }

    fn share(&mut self, whole: &str, name: &str, tree: &Tree) -> String {
        let count = u64::from(self.counts[name]);
        if let Ok(rate) = whole.parse::<BitRate>() {
            return format!("{}bps", rate.get() / count);
        }
        let problem = Problem::new(tree.at, format!("`{whole}` is no rate that could be divided"));
        self.problems.push(problem.label("not understood").help(format!("write `<9Gbps / {name}>`")));
        String::new()
    }

    /// A text cut at those `<...>` that name something repeated.
    fn parts(&self, text: &'t str) -> Vec<Part<'t>> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, marked)) = rest.split_once('<') {
            let Some((inside, after)) = marked.split_once('>') else { break };
            let Some(part) = self.part(inside.trim()) else {
                let next = before.len() + 1;
                parts.push(Part::Text(&rest[..next]));
                rest = &rest[next..];
                continue;
            };
            parts.push(Part::Text(before));
            parts.push(part);
            rest = after;
        }
        parts.push(Part::Text(rest));
        parts
    }

    fn part(&self, inside: &'t str) -> Option<Part<'t>> {
        let known = |name: &&str| self.counts.contains_key(*name);
        if known(&inside) {
            return Some(Part::Number(inside));
        }
        if let Some(name) = inside.strip_prefix("count ").map(str::trim).filter(known) {
            return Some(Part::Count(name));
        }
        let (whole, name) = inside.split_once('/')?;
        let name = Some(name.trim()).filter(known)?;
        Some(Part::Share(whole.trim(), name))
    }

    /// The names that a map's repeated keys become, each with the key's own name.
    fn families(&mut self, map: Option<&'t Tree>, families: &mut BTreeMap<String, String>) {
        for (key, tree) in map.map(Tree::entries).unwrap_or_default() {
            let parts = self.parts(&key.value);
            if parts.iter().all(|part| matches!(part, Part::Text(_))) {
                continue;
            }
            let plain = |part: &Part<'t>| if let Part::Text(text) = part { *text } else { "" };
            let family: String = parts.iter().map(plain).collect();
            let family = family.trim_end_matches('_').to_owned();
            for bound in self.bindings(&key.value, &Vec::new(), tree) {
                families.insert(self.text(&key.value, tree, &bound), family.clone());
            }
        }
    }
}
