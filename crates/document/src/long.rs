//! Words of a file as a message shows them.
//!
//! Why: a name of a megabyte that is used a thousand times would make messages of a gigabyte; and a control sequence in a
//! file must not reach the terminal through a message.
//! From: `docs/policy.md`, "How large a file may be".
//! Not here: the lines of the file below a message (`excerpt`).
//! Invariant: short words of visible characters are shown unchanged; of control characters, only line ends and tabs are shown.

use std::borrow::Cow;

/// A word as messages show it: whole, or the ends of a long one.
#[must_use]
pub fn shown(word: &str) -> Cow<'_, str> {
    match ends(word, LONGEST_WORD) {
        Cow::Borrowed(word) if !word.contains(is_obeyed) => Cow::Borrowed(word),
        ends => Cow::Owned(plain(ends.into_owned())),
    }
}

/// The text with control characters replaced, each by a character of equal length in bytes.
pub(super) fn plain(text: String) -> String {
    if !text.contains(is_obeyed) {
        return text;
    }
    let instead = |c: char| match c.len_utf8() {
        _ if !is_obeyed(c) => c,
        1 if c == '\r' => ' ',
        1 => '?',
        2 => '¿',
        _ => char::REPLACEMENT_CHARACTER,
    };
    text.chars().map(instead).collect()
}

/// Whether a terminal obeys the character: a control character, or one that changes the direction of the text after it.
fn is_obeyed(c: char) -> bool {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// A message, with long words (the parts between backquotes) cut.
pub(super) fn fitted(message: String) -> String {
    let message = plain(message);
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    let words: Vec<Cow<'_, str>> = message.split('`').map(shown).collect();
    ends(&words.join("`"), 2 * LONGEST_MESSAGE).into_owned()
}

/// The text, or its first and last part if it has more than `most` bytes.
fn ends(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let (first, last) = (text.floor_char_boundary(most / 2), text.ceil_char_boundary(text.len() - most / 3));
    Cow::Owned(format!("{}…{}", &text[..first], &text[last..]))
}

/// Bytes of a word that are shown whole: every good name (64), every address, and paths of some levels.
const LONGEST_WORD: usize = 200;
/// Bytes of a message that is shown whole: more than any message of short words has.
const LONGEST_MESSAGE: usize = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_as_something_of_its_length() {
        let text = "a\u{1b}]0;b\u{7}\u{9b}31m\u{202e}c\r\nd\te\u{7f}";
        assert_eq!(plain(text.to_owned()), "a?]0;b?¿31m\u{fffd}c \nd\te?");
        assert_eq!(plain(text.to_owned()).len(), text.len());
        assert_eq!((shown("\u{1b}c").as_ref(), fitted("\u{1b}c".to_owned())), ("?c", "?c".to_owned()));
        assert_eq!(shown("größer → ü"), "größer → ü");
    }

    #[test]
    fn the_ends_of_a_long_word_are_shown_and_short_ones_are_whole() {
        assert_eq!(shown("shop"), "shop");
        let long = format!("front{}back", "ä".repeat(1_000_000));
        assert!(shown(&long).starts_with("frontä") && shown(&long).ends_with("äback"));
        assert!(shown(&long).len() <= LONGEST_WORD);
        let message = fitted(format!("`{long}` is no name, and `b` is one"));
        assert!(message.ends_with("` is no name, and `b` is one") && message.len() < 300, "{message}");
        assert_eq!(fitted("x".repeat(1_500)).len(), 1_500);
        assert!(fitted("x`".repeat(1_000_000)).len() <= 2 * LONGEST_MESSAGE);
    }
}
