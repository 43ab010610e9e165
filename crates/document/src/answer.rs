//! The answer of a process that reads a file for another: a tree, or why there is none, as text.
//!
//! Why: a tenant's file is read in a process of its own, so that a bug in reading it ends nothing else; its answer is trusted
//! as little as the file.
//! From: JSON, one value a line: a tree in the order of its text, each list and map with the number of what follows.
//!
//! ```text
//! {"Map":[0,12,1]}            a map at byte 0, 12 bytes long, of one key
//! {"Text":[0,6,"policy"]}     the key
//! {"List":[8,4,1]}            its value, a list of one
//! {"Text":[9,2,"10"]}         whose item this is
//! "End"
//! ```
//!
//! `{"Null":[at,len]}` is a value that is not there, and `{"Syntax":[at,"why"]}` alone a text that is no YAML.
//! Not here: starting such a process (the daemon), reading YAML (`tree`).
//! Invariant: whatever the bytes, [`understand`] ends, with no more memory than [`LONGEST_ANSWER`] lets them ask for;
//! a tree from it keeps every bound that one from [`super::parse`] keeps, and its marks lie in the text.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::source::{FileId, Located, Mark, Sources};
use super::tree::{LONGEST_KEY, MAX_DEPTH, MAX_NODES, SyntaxError, Tree, Value, mark};

/// Most bytes of an answer: a million values of about fifty bytes each, and the text of the longest file with every character
/// escaped.
pub const LONGEST_ANSWER: usize = 150_000_000;

/// Most lines of an answer: the file's values, the values that aliases repeat, and the end.
const MOST_PARTS: usize = 2 * MAX_NODES + 1;

/// An answer that [`answer`] cannot have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer makes no sense")]
pub struct Nonsense;

/// One line of an answer.
#[derive(Serialize, Deserialize)]
enum Part<'a> {
    Null(u32, u32),
    Text(u32, u32, Cow<'a, str>),
    List(u32, u32, u32),
    Map(u32, u32, u32),
    Syntax(u32, Cow<'a, str>),
    End,
}

/// Writes what came of reading a file.
///
/// # Errors
/// Errors of the writer.
pub fn answer(read: &Result<Tree, SyntaxError>, to: &mut impl Write) -> io::Result<()> {
    match read {
        Ok(tree) => write_tree(tree, to)?,
        Err(error) => write_part(&Part::Syntax(error.at.offset, Cow::Borrowed(&error.message)), to)?,
    }
    write_part(&Part::End, to)
}

fn write_part(part: &Part<'_>, to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *to, part)?;
    to.write_all(b"\n")
}

fn write_tree(tree: &Tree, to: &mut impl Write) -> io::Result<()> {
    let Mark { offset, len, .. } = tree.at;
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    match &tree.value {
        Value::Null => write_part(&Part::Null(offset, len), to),
        Value::Text(text) => write_part(&Part::Text(offset, len, Cow::Borrowed(text)), to),
        Value::List(items) => {
            write_part(&Part::List(offset, len, count(items.len())), to)?;
            items.iter().try_for_each(|item| write_tree(item, to))
        }
        Value::Map(entries) => {
            write_part(&Part::Map(offset, len, count(entries.len())), to)?;
            entries.iter().try_for_each(|(key, value)| {
                let text = Cow::Borrowed(key.value.as_str());
                write_part(&Part::Text(key.at.offset, key.at.len, text), to)?;
                write_tree(value, to)
            })
        }
    }
}

/// Reads an answer about this file, whose text is at hand.
///
/// # Errors
/// [`Nonsense`], when they say nothing that [`answer`] could have written.
pub fn understand(
    bytes: &[u8],
    sources: &Sources,
    file: FileId,
) -> Result<Result<Tree, SyntaxError>, Nonsense> {
    if bytes.len() > LONGEST_ANSWER {
        return Err(Nonsense);
    }
    let text = &sources.file(file).text;
    let parts = serde_json::Deserializer::from_slice(bytes).into_iter::<Part<'_>>();
    let mut reader = Reader { parts, file, text, left: MOST_PARTS };
    let found = match reader.next()? {
        Part::Syntax(at, message) => {
            let (at, message) = (reader.mark(at, 0), super::shown(&message).into_owned());
            Err(SyntaxError { at, message })
        }
        first => Ok(reader.tree(first, 0)?),
    };
    match (reader.next()?, reader.parts.next()) {
        (Part::End, None) => Ok(found),
        _ => Err(Nonsense),
    }
}

struct Reader<'a, P> {
    parts: P,
    file: FileId,
    text: &'a str,
    /// Values that may still come.
    left: usize,
}

impl<'a, P: Iterator<Item = serde_json::Result<Part<'a>>>> Reader<'_, P> {
    fn next(&mut self) -> Result<Part<'a>, Nonsense> {
        self.left = self.left.checked_sub(1).ok_or(Nonsense)?;
        self.parts.next().and_then(Result::ok).ok_or(Nonsense)
    }

    /// The value that begins with this part, `depth` lists and maps deep.
    fn tree(&mut self, part: Part<'a>, depth: usize) -> Result<Tree, Nonsense> {
        if depth > MAX_DEPTH {
            return Err(Nonsense);
        }
        let (at, value) = match part {
            Part::Null(at, len) => ((at, len), Value::Null),
            Part::Text(at, len, text) => ((at, len), Value::Text(text.into_owned())),
            Part::List(at, len, count) => {
                // Not with the capacity that it claims: only what has come is kept.
                let mut items = Vec::new();
                for _ in 0..count {
                    let part = self.next()?;
                    items.push(self.tree(part, depth + 1)?);
                }
                ((at, len), Value::List(items))
            }
            Part::Map(at, len, count) => {
                let mut entries = Vec::new();
                for _ in 0..count {
                    let Part::Text(at, len, key) = self.next()? else { return Err(Nonsense) };
                    if key.len() > LONGEST_KEY {
                        return Err(Nonsense);
                    }
                    let key = Located::new(key.into_owned(), self.mark(at, len));
                    let part = self.next()?;
                    entries.push((key, self.tree(part, depth + 1)?));
                }
                ((at, len), Value::Map(entries))
            }
            Part::Syntax(..) | Part::End => return Err(Nonsense),
        };
        Ok(Tree { at: self.mark(at.0, at.1), value })
    }

    /// The place in the text that an answer names, clamped to the text.
    fn mark(&self, at: u32, len: u32) -> Mark {
        mark(self.file, self.text, at as usize, len as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn answered(text: &str) -> (Sources, Result<Tree, SyntaxError>, Vec<u8>) {
        let sources = Sources::one("t.yaml", text);
        let read = parse(&sources, FileId(0));
        let mut bytes = Vec::new();
        answer(&read, &mut bytes).expect("memory takes it");
        (sources, read, bytes)
    }

    #[test]
    fn what_was_read_comes_back_place_by_place() {
        for text in [
            "policy: {root: {wfq: [a, b]}, a: {max: 1_000kbps}, b: ~}\n",
            "a: &x {b: [é, \"quo\\\"te\\n\", 080]}\nc: *x\n",
            "",
            "- - - x\n",
            "{a: [}",
        ] {
            let (sources, read, bytes) = answered(text);
            let back = understand(&bytes, &sources, FileId(0)).expect("sense");
            assert_eq!(format!("{back:?}"), format!("{read:?}"), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let (sources, _, good) = answered("policy: {root: {wfq: [a, b]}}\n");
        let refused = |bytes: &[u8]| understand(bytes, &sources, FileId(0)).err();
        for cut in 0..good.len() - 1 {
            assert_eq!(refused(&good[..cut]), Some(Nonsense), "cut off at byte {cut}");
        }
        let deep = "{\"List\":[0,1,1]}\n".repeat(MAX_DEPTH + 2);
        let long = format!(
            "{{\"Map\":[0,1,1]}}{{\"Text\":[0,1,\"{}\"]}}{{\"Null\":[0,0]}}\"End\"",
            "k".repeat(1_025)
        );
        let many = format!("{{\"List\":[0,1,4000000000]}}{}", "{\"Null\":[0,0]}".repeat(MOST_PARTS));
        let twice = [&good[..], &good[..]].concat();
        for bytes in [deep.as_bytes(), long.as_bytes(), many.as_bytes(), &twice, b"\"End\"\"End\"", b"\xff"] {
            assert_eq!(refused(bytes), Some(Nonsense));
        }
    }

    #[test]
    fn places_outside_of_the_text_are_moved_into_it() {
        let sources = Sources::one("t.yaml", "aé");
        for (at, len) in [(2_u32, 1_u32), (1, 4_000_000_000), (4_000_000_000, 4_000_000_000)] {
            let bytes = format!("{{\"Null\":[{at},{len}]}}\"End\"");
            let tree = understand(bytes.as_bytes(), &sources, FileId(0)).expect("sense").expect("a tree");
            assert!(sources.file(FileId(0)).text.get(tree.at.range()).is_some(), "{:?}", tree.at);
        }
    }
}
