//! Words of an expectation.
//!
//! Why: carets need to know where each word stands.
//! From: `docs/scenarios.md`, "Expectations".
//! Not here: what they mean together (`parse`).
//! Invariant: every byte of the text belongs to a token, to white space or to the error.

use std::ops::Range;

use plimsoll_units::{BitRate, Bytes, Span};

use super::Unit;
use crate::Problem;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name, or names joined by dots.
    Word(String),
    Number(f64, Unit),
    /// One of `<= < >= > ~ !~ +- + - * / ( ) [ ] , ..`.
    Sign(&'static str),
}

/// Longest first, so that `<=` is not `<` and `=`.
const SIGNS: [&str; 17] =
    ["<=", ">=", "!~", "+-", "..", "<", ">", "~", "+", "-", "*", "/", "(", ")", "[", "]", ","];

/// Cuts a line into words.
pub(super) fn lex(text: &str) -> Result<Vec<(Token, Range<usize>)>, Box<Problem>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let len = if c.is_whitespace() {
            c.len_utf8()
        } else if rest.starts_with('±') {
            tokens.push((Token::Sign("+-"), at..at + '±'.len_utf8()));
            '±'.len_utf8()
        } else if c.is_ascii_digit() {
            let len = number_len(rest);
            tokens.push((number(&rest[..len], at)?, at..at + len));
            len
        } else if c.is_alphabetic() || c == '_' {
            let len = word_len(rest);
            tokens.push((Token::Word(rest[..len].to_owned()), at..at + len));
            len
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push((Token::Sign(sign), at..at + sign.len()));
            sign.len()
        } else {
            return Err(unknown_character(c, at));
        };
        at += len;
    }
    Ok(tokens)
}

fn unknown_character(c: char, at: usize) -> Box<Problem> {
    let help = match c {
        '=' => "compare with `<=`, `>=`, `<`, `>` or `a ~ b +- 5%`",
        _ => "an expectation compares measures: `plimsoll.shop.p99 <= 1.5 * fifo.shop.p99`",
    };
    let problem = Problem::new(at..at + c.len_utf8(), format!("`{c}` means nothing in an expectation"));
    Box::new(problem.label("this character").help(help))
}

/// Digits with at most one decimal point (`2s..4s` has none) and the unit that follows at once.
fn number_len(text: &str) -> usize {
    let mut digits = text.find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(text.len());
    let fraction = &text[digits..];
    if fraction.starts_with('.') && fraction[1..].starts_with(|c: char| c.is_ascii_digit()) {
        let more =
            fraction[1..].find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(fraction.len() - 1);
        digits += 1 + more;
    }
    let unit = &text[digits..];
    if unit.starts_with('%') {
        return digits + 1;
    }
    let mut len = unit.find(|c: char| !c.is_alphabetic()).unwrap_or(unit.len());
    if unit[..len].ends_with("bit") && unit[len..].starts_with("/s") {
        len += "/s".len();
    }
    digits + len
}

fn number(text: &str, at: usize) -> Result<Token, Box<Problem>> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.')).unwrap_or(text.len());
    let plain = text[..split].replace('_', "").parse::<f64>();
    let value = match (&text[split..], plain) {
        ("", Ok(value)) => Some((value, Unit::Plain)),
        ("%", Ok(value)) => Some((value / 100.0, Unit::Plain)),
        // A `BitRate` is above zero, but a measured one need not be.
        (unit, Ok(0.0)) if format!("1{unit}").parse::<BitRate>().is_ok() => Some((0.0, Unit::Rate)),
        _ => None,
    };
    let value = value
        .or_else(|| text.parse::<BitRate>().ok().map(|rate| (rate.get() as f64, Unit::Rate)))
        .or_else(|| text.parse::<Span>().ok().map(|span| (span.as_secs_f64(), Unit::Time)))
        .or_else(|| text.parse::<Bytes>().ok().map(|size| (size.as_u64() as f64, Unit::Size)));
    let Some((value, unit)) = value else {
        let problem = Problem::new(at..at + text.len(), format!("`{text}` is no number with a unit"));
        return Err(Box::new(
            problem.label("not understood").help("write `5%`, `7.5Mbps`, `20ms`, `1500B` or a plain number"),
        ));
    };
    Ok(Token::Number(value, unit))
}

/// Letters, digits and `_`, joined by single dots; `p99.9` is one word.
fn word_len(text: &str) -> usize {
    let mut end = 0;
    let mut rest = text;
    loop {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        end += word;
        rest = &rest[word..];
        let joined =
            rest.starts_with('.') && rest[1..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if !joined {
            return end;
        }
        end += 1;
        rest = &rest[1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_may_be_nothing() {
        for text in ["0bps", "0kbps", "0.0Mbps", "0Gbit/s"] {
            assert_eq!(lex(text).ok(), Some(vec![(Token::Number(0.0, Unit::Rate), 0..text.len())]), "{text}");
        }
        assert_eq!(lex("0ms").ok(), Some(vec![(Token::Number(0.0, Unit::Time), 0..3)]));
        assert!(lex("0parsecs").is_err());
    }
}
