//! Words of a program's text.
//!
//! Why: the parser looks at one word at a time.
//! Not here: what a name stands for (`parse`).
//! Invariant: every word but the last, which marks the end, holds at least one byte of the text.

use crate::error::{Error, Problem};
use crate::program::MOST_BYTES;

/// A word, and the byte of the text where it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) at: usize,
    pub(crate) word: Word<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word<'a> {
    /// A name, or a field with its dot.
    Name(&'a str),
    Number(u64),
    /// An operator or a bracket.
    Sign(&'a str),
    End,
}

impl Word<'_> {
    /// The word as an error shows it.
    pub(crate) fn shown(self) -> String {
        match self {
            Self::Name(text) | Self::Sign(text) => format!("`{text}`"),
            Self::Number(number) => format!("`{number}`"),
            Self::End => "the end of the text".to_owned(),
        }
    }
}

/// Signs, those of two characters first.
const SIGNS: [&str; 23] = [
    "<=", ">=", "==", "!=", "&&", "||", "<", ">", "=", "!", "+", "-", "*", "/", "%", ";", "(", ")", "{", "}",
    "[", "]", ",",
];

/// The words of `text`, and its end.
pub(crate) fn words(text: &str) -> Result<Vec<Token<'_>>, Error> {
    if text.len() > MOST_BYTES {
        return Err(Error::new(text, 0, Problem::TooLong(text.len())));
    }
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        at += blank(&text[at..]);
        let rest = &text[at..];
        let (word, len) = word(rest).map_err(|problem| Error::new(text, at, problem))?;
        tokens.push(Token { at, word });
        if word == Word::End {
            return Ok(tokens);
        }
        at += len;
    }
}

/// Bytes of spaces and comments at the beginning of `text`.
fn blank(text: &str) -> usize {
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        if !rest.starts_with('#') {
            return text.len() - rest.len();
        }
        rest = rest.find('\n').map_or("", |end| &rest[end..]);
    }
}

/// The word at the beginning of `text`, and its bytes.
fn word(text: &str) -> Result<(Word<'_>, usize), Problem> {
    let Some(first) = text.chars().next() else { return Ok((Word::End, 0)) };
    if first.is_ascii_digit() {
        let digits = prefix(text, |c| c.is_ascii_digit() || c == '_');
        let number = digits.replace('_', "").parse().map_err(|_| Problem::Number)?;
        return Ok((Word::Number(number), digits.len()));
    }
    if first.is_ascii_alphabetic() {
        let name = prefix(text, |c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        return Ok((Word::Name(name), name.len()));
    }
    let sign = SIGNS.into_iter().find(|sign| text.starts_with(sign)).ok_or(Problem::Character(first))?;
    Ok((Word::Sign(sign), sign.len()))
}

fn prefix(text: &str, of: impl Fn(char) -> bool) -> &str {
    &text[..text.find(|c| !of(c)).unwrap_or(text.len())]
}
