//! From trees of YAML back to text.
//!
//! Why: the policy inside a scenario goes into a policy file as it was written, keys in their order; a sweep sets values of a
//! scenario, and `virtual` replaces some.
//! From: YAML 1.2; reading it is `tree`'s.
//! Not here: what the keys mean (`read`).
//! Invariant: what is written reads as the same tree.

use std::collections::HashSet;
use std::fmt::Write as _;

use super::source::{Mark, Name};
use super::tree::{Tree, Value};

/// A scalar that belongs to no file.
pub fn text(text: impl Into<String>) -> Tree {
    Tree { at: Mark::default(), value: Value::Text(text.into()) }
}

/// A map that belongs to no file.
pub fn map(entries: impl IntoIterator<Item = (String, Tree)>) -> Tree {
    let entries = entries.into_iter().map(|(key, tree)| (Name::new(key, Mark::default()), tree)).collect();
    Tree { at: Mark::default(), value: Value::Map(entries) }
}

/// A list that belongs to no file.
pub fn list(items: impl IntoIterator<Item = Tree>) -> Tree {
    Tree { at: Mark::default(), value: Value::List(items.into_iter().collect()) }
}

/// Puts a value where a path of keys and list places leads, in the place of what is there; a last key may be new. The
/// part of the path that leads nowhere, if there is one.
pub fn set<'p>(tree: &mut Tree, path: &'p str, value: Tree) -> Result<(), &'p str> {
    let (key, rest) = path.split_once('.').unwrap_or((path, ""));
    let last = rest.is_empty();
    if matches!(tree.value, Value::Null) && last {
        tree.value = Value::Map(Vec::new());
    }
    let next = match &mut tree.value {
        Value::Map(entries) => {
            let place = entries.iter().rposition(|(name, _)| name.value == key);
            if place.is_none() && last {
                entries
                    .push((Name::new(key.to_owned(), value.at), Tree { at: value.at, value: Value::Null }));
            }
            let place = place.or(if last { entries.len().checked_sub(1) } else { None });
            place.and_then(|place| entries.get_mut(place)).map(|(_, tree)| tree)
        }
        Value::List(items) => key.parse().ok().and_then(|place: usize| items.get_mut(place)),
        _ => None,
    };
    let next = next.ok_or(key)?;
    if last {
        *next = value;
        return Ok(());
    }
    set(next, rest, value)
}

/// Lays a tree over another: maps are merged key by key, `~` takes a key away, everything else is replaced.
pub fn overlay(tree: &mut Tree, over: &Tree) {
    let (Value::Map(entries), Value::Map(others)) = (&mut tree.value, &over.value) else {
        return *tree = over.clone();
    };
    let mut laid = HashSet::new();
    for (key, other) in others {
        if !laid.insert(key.value.as_str()) {
            entries.push((key.clone(), other.clone())); // repeated here, and repeated there: the reader refuses it
            continue;
        }
        let place = entries.iter().rposition(|(name, _)| name.value == key.value);
        match (place, &other.value) {
            (Some(place), Value::Null) => drop(entries.remove(place)),
            (Some(place), _) => overlay(&mut entries[place].1, other),
            (None, Value::Null) => {}
            (None, _) => entries.push((key.clone(), other.clone())),
        }
    }
}

/// A value on one line, as a path's setting shows it.
pub fn on_one_line(tree: &Tree) -> String {
    if let Value::Text(text) = &tree.value {
        return text.clone();
    }
    let mut line = String::new();
    write_flow(tree, &mut line);
    line
}

/// Writes maps in blocks down to `blocks` levels and in braces below.
pub fn write(tree: &Tree, to: &mut String, indent: usize, blocks: usize) {
    match &tree.value {
        Value::Map(entries) if blocks > 0 && !entries.is_empty() => {
            for (key, value) in entries {
                let _ = write!(to, "\n{:indent$}{}:", "", scalar(&key.value));
                self::write(value, to, indent + 2, blocks - 1);
            }
        }
        _ => {
            to.push(' ');
            write_flow(tree, to);
        }
    }
}

fn write_flow(tree: &Tree, to: &mut String) {
    match &tree.value {
        Value::Null => to.push('~'),
        Value::Text(text) => to.push_str(&scalar(text)),
        Value::List(items) => {
            to.push('[');
            for (n, item) in items.iter().enumerate() {
                to.push_str(if n > 0 { ", " } else { "" });
                write_flow(item, to);
            }
            to.push(']');
        }
        Value::Map(entries) => {
            to.push('{');
            for (n, (key, value)) in entries.iter().enumerate() {
                let _ = write!(to, "{}{}: ", if n > 0 { ", " } else { "" }, scalar(&key.value));
                write_flow(value, to);
            }
            to.push('}');
        }
    }
}

/// A scalar as YAML: bare where that is safe, else quoted as JSON does it.
fn scalar(text: &str) -> String {
    let first = text.chars().next();
    let safe = first.is_some_and(|c| c.is_ascii_alphanumeric() || c == '/' || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./%".contains(c));
    if safe { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
