//! YAML as a tree in which every value knows its place.
//!
//! Why: all errors must come in one go, each with its place; deserialising into typed structures stops at the first.
//! From: YAML 1.2, through `serde-saphyr`.
//! Not here: what the keys mean.
//! Invariant: depth and size are bounded by [`budget`]; every entry of a mapping is kept as it is written, so that `read`
//! can point at both places of a repeated key. Merge keys (`<<`) are refused: a merge drops entries by rules of its own.

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};

use super::source::{FileId, Located, Mark, Name, Sources};

/// A value and where it is written.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Its place.
    pub at: Mark,
    /// The value.
    pub value: Value,
}

/// A YAML value.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// Any scalar, as it is written.
    Text(String),
    /// `[a, b]`, or a line with `-` for each.
    List(Vec<Tree>),
    /// `{a: 1, b: 2}`, or a line for each.
    Map(Vec<(Name, Tree)>),
}

/// Deepest nesting of a file; policies need six, scenarios about eight.
pub(super) const MAX_DEPTH: usize = 24;
/// Most values of a file, including keys and the values that aliases repeat.
pub(super) const MAX_NODES: usize = 1_000_000;
/// Bytes of a key: names are shorter still, and each is written into messages and paths many times.
pub(super) const LONGEST_KEY: usize = 1_024;

/// The reason that a text is not YAML, and the place where reading stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Its place.
    pub at: Mark,
    /// The reason.
    pub message: String,
}

/// Reads a file's text.
///
/// # Errors
/// A syntax error ends the reading of this file.
pub fn parse(sources: &Sources, file: FileId) -> Result<Tree, SyntaxError> {
    let text = &sources.file(file).text;
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::Error,
        with_snippet: false,
        strict_booleans: true,
        budget: budget(),
    };
    match serde_saphyr::from_str_with_options::<Raw>(text, options) {
        Ok(raw) => {
            let mut grafter = Grafter { file, text, too_long: None };
            let tree = grafter.tree(raw);
            grafter.too_long.map_or(Ok(tree), Err)
        }
        Err(error) => Err(syntax_error(&error, file, text)),
    }
}

/// Bounds on a file: far more than any document needs, far less than a hostile file wants.
fn budget() -> Option<serde_saphyr::Budget> {
    serde_saphyr::budget! {
        max_depth: MAX_DEPTH,
        max_events: 2_000_000,
        max_nodes: MAX_NODES,
        // Aliases repeat what they name: together no more than the largest file holds.
        max_total_scalar_bytes: 32_000_000,
        max_recorded_anchor_bytes: 32_000_000,
    }
}

fn syntax_error(error: &serde_saphyr::Error, file: FileId, text: &str) -> SyntaxError {
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or("not YAML");
    // Some errors state their place only in their message.
    let (message, told) = match message.rsplit_once(" at line ") {
        Some((message, place)) => (message, place.split_once(", column ")),
        None => (message, None),
    };
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let told = told.and_then(|(line, column)| Some((number(line)?, number(column)?)));
    let known = error.location().and_then(|location| {
        Some((usize::try_from(location.line()).ok()?, usize::try_from(location.column()).ok()?))
    });
    let offset = known.or(told).map_or(0, |(line, column)| offset_of(text, line, column));
    SyntaxError { at: mark(file, text, offset, 0), message: in_our_words(message) }
}

/// The parser's message, or ours where it speaks to programmers.
fn in_our_words(message: &str) -> String {
    let says = |words: &str| message.contains(words);
    if says("recursion limit") || says("budget breached: Depth") {
        format!("nested deeper than {MAX_DEPTH} levels")
    } else if says("multiple YAML documents") {
        "a second document begins here; a file holds one".to_owned()
    } else if says("alias replay limit") || says("budget breached") {
        "more values than a file may have, those repeated by aliases counted".to_owned()
    } else if says("merge key") {
        "`<<` merges one map into another, which is not read here: write the keys out, or repeat a whole value with an alias"
            .to_owned()
    } else {
        message.to_owned()
    }
}

/// Bytes before a line and column, both counted from 1.
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let rest = text[start..].chars().take_while(|&c| c != '\n').take(column.saturating_sub(1));
    start + rest.map(char::len_utf8).sum::<usize>()
}

/// A mark clamped to the text, to character boundaries and to one line, so that a caret can be drawn under it.
pub(super) fn mark(file: FileId, text: &str, offset: usize, len: usize) -> Mark {
    let mut start = offset.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let mut end = start.saturating_add(len).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let line = text[start..end].find('\n').map_or(end, |at| start + at);
    let clamp = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    Mark { file, offset: clamp(start), len: clamp(line - start) }
}

/// A value as serde delivers it, with the parser's positions as bytes from the text's start.
struct Raw {
    /// The place where it is used, and its length there.
    at: (u32, u32),
    /// The place where it is written: elsewhere for an alias.
    written: (u32, u32),
    value: RawValue,
}

enum RawValue {
    Null,
    /// `exact` is false for numbers and booleans: their text is then taken from the file.
    Scalar {
        text: String,
        exact: bool,
    },
    List(Vec<Raw>),
    Map(Vec<(Raw, Raw)>),
}

struct Grafter<'a> {
    file: FileId,
    text: &'a str,
    /// The first key that is longer than [`LONGEST_KEY`].
    too_long: Option<SyntaxError>,
}

impl Grafter<'_> {
    fn tree(&mut self, raw: Raw) -> Tree {
        let at = self.mark(raw.at);
        let value = match raw.value {
            RawValue::Null => Value::Null,
            RawValue::Scalar { text, exact: true } => Value::Text(text),
            RawValue::Scalar { text, exact: false } => Value::Text(self.written(raw.written).unwrap_or(text)),
            RawValue::List(items) => Value::List(items.into_iter().map(|item| self.tree(item)).collect()),
            RawValue::Map(entries) => Value::Map(
                entries.into_iter().map(|(key, value)| (self.name(key), self.tree(value))).collect(),
            ),
        };
        Tree { at, value }
    }

    fn name(&mut self, key: Raw) -> Name {
        let tree = self.tree(key);
        let text = match tree.value {
            Value::Text(text) => text,
            Value::Null => "~".to_owned(),
            Value::List(_) | Value::Map(_) => "[...]".to_owned(),
        };
        if text.len() > LONGEST_KEY && self.too_long.is_none() {
            let message = format!("a key of {} bytes, and {LONGEST_KEY} are the most", text.len());
            self.too_long = Some(SyntaxError { at: tree.at, message });
        }
        Located::new(text, tree.at)
    }

    /// A number as the operator wrote it (`080`, `1_000`, `0x50` and `1e3` all lose their spelling otherwise).
    fn written(&self, place: (u32, u32)) -> Option<String> {
        let mark = self.mark(place);
        let start = mark.offset as usize;
        let text = self.text.get(start..start + mark.len as usize)?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn mark(&self, (offset, len): (u32, u32)) -> Mark {
        mark(self.file, self.text, offset as usize, len as usize)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let found = Spanned::<RawValue>::deserialize(from)?;
        // A file may have a million values: keep little of each.
        Ok(Self { at: bytes_of(found.referenced), written: bytes_of(found.defined), value: found.value })
    }
}

/// Offset and length.
fn bytes_of(location: serde_saphyr::Location) -> (u32, u32) {
    let size = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    (size(location.span().byte_offset()), size(location.span().byte_len()))
}

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl RawVisitor {
    fn inexact<E>(value: impl ToString) -> Result<RawValue, E> {
        Ok(RawValue::Scalar { text: value.to_string(), exact: false })
    }
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawValue;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<RawValue, E> {
        Self::inexact(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<RawValue, E> {
        Self::inexact(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<RawValue, E> {
        Self::inexact(value)
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<RawValue, E> {
        Self::inexact(value)
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<RawValue, E> {
        Self::inexact(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<RawValue, E> {
        Self::inexact(value)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<RawValue, E> {
        Ok(RawValue::Scalar { text: value.to_owned(), exact: true })
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
    /// The first value behind a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(name, _)| name.value == key).map(|(_, tree)| tree)
    }

    /// Keys and values of a map; nothing for all else.
    #[must_use]
    pub fn entries(&self) -> &[(Name, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }
}
