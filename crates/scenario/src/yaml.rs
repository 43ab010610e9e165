//! YAML as a tree in which every value knows its place, and back to text.
//!
//! Why: every mistake of a scenario must come in one go, with its place; and the policy inside a scenario must go
//! into a policy file as it was written, keys in their order.
//! From: YAML 1.2, through `serde-saphyr`.
//! Not here: what the keys mean (`read`).
//! Invariant: a range lies inside the text, on character boundaries; depth and size are bounded.

use std::fmt::Write as _;
use std::ops::Range;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Location, Spanned};

use crate::problem::Problem;

/// A value and where it is written.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub at: Range<usize>,
    pub value: Value,
}

/// What a value is; every scalar is kept as it was written.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Text(String),
    List(Vec<Tree>),
    Map(Vec<(Key, Tree)>),
}

/// A key and where it is written.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub at: Range<usize>,
    pub text: String,
}

/// Deepest nesting; scenarios need about eight.
const MAX_DEPTH: usize = 24;

/// Reads a file's text; a syntax error ends the reading.
pub(crate) fn parse(text: &str) -> Result<Tree, Box<Problem>> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_events: 1_000_000, max_nodes: 500_000 },
    };
    match serde_saphyr::from_str_with_options::<Raw>(text, options) {
        Ok(raw) => Ok(graft(raw, text)),
        Err(error) => Err(Box::new(syntax_problem(&error, text))),
    }
}

fn syntax_problem(error: &serde_saphyr::Error, text: &str) -> Problem {
    let at = error.location().map_or(0..0, |location| start_of(location, text));
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or("not YAML").to_owned();
    Problem::new(at, message).label("reading stops here").help(
        "a scenario is YAML: keys and values with `:`, the same indentation for siblings, spaces and no tabs",
    )
}

fn range(location: Location, text: &str) -> Range<usize> {
    let size = |n: Option<u64>| n.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let span = location.span();
    clamp(text, size(span.byte_offset()), size(span.byte_len()))
}

/// Where a location begins; errors know their line and column, and not always their offset.
fn start_of(location: Location, text: &str) -> Range<usize> {
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(1);
    let before: usize = text.split_inclusive('\n').take(number(location.line())).map(str::len).sum();
    let line = text[before..].lines().next().unwrap_or("");
    let column = line.char_indices().nth(number(location.column())).map_or(line.len(), |(at, _)| at);
    clamp(text, before + column, 0)
}

/// A range inside the text, on character boundaries and within one line, so that a caret can be drawn under it.
fn clamp(text: &str, offset: usize, len: usize) -> Range<usize> {
    let boundary = |mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = boundary(offset.min(text.len()));
    let end = boundary(start.saturating_add(len).min(text.len()));
    start..text[start..end].find('\n').map_or(end, |at| start + at)
}

/// What serde sees: values with the parser's positions.
struct Raw(Spanned<RawValue>);

enum RawValue {
    Null,
    /// Numbers and booleans, whose spelling is then taken from the file.
    Inexact(String),
    Text(String),
    List(Vec<Raw>),
    Map(Vec<(Raw, Raw)>),
}

fn graft(Raw(raw): Raw, text: &str) -> Tree {
    let value = match raw.value {
        RawValue::Null => Value::Null,
        RawValue::Text(scalar) => Value::Text(scalar),
        RawValue::Inexact(scalar) => {
            let written = text[range(raw.defined, text)].trim();
            Value::Text(if written.is_empty() { scalar } else { written.to_owned() })
        }
        RawValue::List(items) => Value::List(items.into_iter().map(|item| graft(item, text)).collect()),
        RawValue::Map(entries) => {
            Value::Map(entries.into_iter().map(|(k, v)| (key(k, text), graft(v, text))).collect())
        }
    };
    Tree { at: range(raw.referenced, text), value }
}

fn key(raw: Raw, text: &str) -> Key {
    let tree = graft(raw, text);
    let text = match tree.value {
        Value::Text(text) => text,
        Value::Null => "~".to_owned(),
        Value::List(_) | Value::Map(_) => "[...]".to_owned(),
    };
    Key { at: tree.at, text }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Spanned::deserialize(from).map(Self)
    }
}

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawValue;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<RawValue, E> {
        Ok(RawValue::Inexact(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<RawValue, E> {
        Ok(RawValue::Inexact(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<RawValue, E> {
        Ok(RawValue::Inexact(value.to_string()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<RawValue, E> {
        Ok(RawValue::Inexact(value.to_string()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<RawValue, E> {
        Ok(RawValue::Inexact(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<RawValue, E> {
        Ok(RawValue::Inexact(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<RawValue, E> {
        Ok(RawValue::Text(value.to_owned()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<RawValue, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<RawValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(RawValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<RawValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = from.next_entry()? {
            entries.push(entry);
        }
        Ok(RawValue::Map(entries))
    }
}

impl Tree {
    /// A scalar that stands nowhere.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { at: 0..0, value: Value::Text(text.into()) }
    }

    /// A map that stands nowhere.
    pub(crate) fn map(entries: impl IntoIterator<Item = (String, Self)>) -> Self {
        let entries = entries.into_iter().map(|(text, tree)| (Key { at: 0..0, text }, tree)).collect();
        Self { at: 0..0, value: Value::Map(entries) }
    }

    /// The value behind a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(k, _)| k.text == key).map(|(_, tree)| tree),
            _ => None,
        }
    }

    /// As YAML, maps in blocks down to `blocks` levels and in braces below.
    pub(crate) fn write(&self, to: &mut String, indent: usize, blocks: usize) {
        match &self.value {
            Value::Map(entries) if blocks > 0 && !entries.is_empty() => {
                for (key, value) in entries {
                    let _ = write!(to, "\n{:indent$}{}:", "", scalar(&key.text));
                    value.write(to, indent + 2, blocks - 1);
                }
            }
            _ => {
                to.push(' ');
                self.write_flow(to);
            }
        }
    }

    fn write_flow(&self, to: &mut String) {
        match &self.value {
            Value::Null => to.push('~'),
            Value::Text(text) => to.push_str(&scalar(text)),
            Value::List(items) => {
                to.push('[');
                for (n, item) in items.iter().enumerate() {
                    to.push_str(if n > 0 { ", " } else { "" });
                    item.write_flow(to);
                }
                to.push(']');
            }
            Value::Map(entries) => {
                to.push('{');
                for (n, (key, value)) in entries.iter().enumerate() {
                    let _ = write!(to, "{}{}: ", if n > 0 { ", " } else { "" }, scalar(&key.text));
                    value.write_flow(to);
                }
                to.push('}');
            }
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
