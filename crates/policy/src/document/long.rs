//! What a message shows of a text that its reader did not bound.
//!
//! Why: a name of a megabyte, in a message for each of its thousand uses, is a gigabyte.
//! From: `docs/policy.md`, "How large a file may be".
//! Not here: the lines of the file below a message (`excerpt`).
//! Invariant: what fits is shown as it is.

use std::borrow::Cow;

/// A word as messages show it: whole, or the ends of a long one.
#[must_use]
pub fn shown(word: &str) -> Cow<'_, str> {
    ends(word, LONGEST_WORD)
}

/// A message whose long words, those between `, are cut.
pub(super) fn fitted(message: String) -> String {
    if message.len() <= LONGEST_MESSAGE {
        return message;
    }
    let words: Vec<Cow<'_, str>> = message.split('`').map(shown).collect();
    ends(&words.join("`"), 2 * LONGEST_MESSAGE).into_owned()
}

/// The ends of a text with more bytes than that.
fn ends(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let (first, last) = (text.floor_char_boundary(most / 2), text.ceil_char_boundary(text.len() - most / 3));
    Cow::Owned(format!("{}…{}", &text[..first], &text[last..]))
}

/// Bytes of a word that are shown whole: every good name (64), every address, and paths of some levels.
const LONGEST_WORD: usize = 200;
/// Bytes of a message that is shown whole: longer than any whose words are short.
const LONGEST_MESSAGE: usize = 1_500;

#[cfg(test)]
mod tests {
    use super::*;

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
