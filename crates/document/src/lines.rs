//! Where a text's lines begin: line and column of a byte, and the line around it.
//!
//! Why: a file of 16 MB may have thousands of mistakes, and each message asks for lines; to count them from the file's
//! start every time would take minutes.
//! From: an index of checkpoints, one for each block of the text.
//! Not here: what is shown of a line (`excerpt`).
//! Invariant: a question looks at no more than two blocks of the text, and at the checkpoints by bisection.

use std::ops::Range;
use std::sync::OnceLock;

/// A text's checkpoints, once something asks for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(OnceLock<Vec<Checkpoint>>);

/// The position of a block's first byte, as line and column.
#[derive(Clone, Copy, Debug, Default)]
struct Checkpoint {
    /// Line ends before it.
    line: usize,
    /// Where its line starts.
    start: usize,
    /// Characters from there to it.
    column: usize,
}

/// Bytes of a block: few enough to be looked through for each message.
const BLOCK: usize = 4_096;

impl PartialEq for Lines {
    /// Always equal: the index follows from the text, which is compared anyway.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Lines {}

impl Lines {
    /// Line and column of a byte that begins a character, both counted from 0; columns count characters.
    pub fn position(&self, text: &str, at: usize) -> (usize, usize) {
        let found = self.at(text, at);
        (found.line, found.column)
    }

    /// The line around a byte, without its end.
    pub fn around(&self, text: &str, at: usize) -> Range<usize> {
        self.at(text, at).start..self.end(text, at)
    }

    fn at(&self, text: &str, at: usize) -> Checkpoint {
        let checkpoints = self.checkpoints(text);
        let block = (at / BLOCK).min(checkpoints.len() - 1);
        checkpoints[block].moved_on(&text.as_bytes()[..at], block * BLOCK)
    }

    /// The first line end at `at` or behind it, or the text's end.
    fn end(&self, text: &str, at: usize) -> usize {
        let find = |from: usize, to: usize| {
            let found = text.as_bytes()[from..to.min(text.len())].iter().position(|&byte| byte == b'\n');
            found.map(|found| from + found)
        };
        let block = at / BLOCK;
        let checkpoints = self.checkpoints(text);
        let here = || find(at, (block + 1) * BLOCK);
        let later = || {
            let same = |checkpoint: &Checkpoint| checkpoint.start <= at;
            let next = checkpoints.partition_point(same);
            find(((next - 1) * BLOCK).max(at), next * BLOCK)
        };
        here().or_else(later).unwrap_or(text.len())
    }

    fn checkpoints(&self, text: &str) -> &[Checkpoint] {
        self.0.get_or_init(|| {
            let bytes = text.as_bytes();
            let mut checkpoints = vec![Checkpoint::default()];
            for from in (0..bytes.len()).step_by(BLOCK).take_while(|from| from + BLOCK <= bytes.len()) {
                let last = checkpoints[checkpoints.len() - 1];
                checkpoints.push(last.moved_on(&bytes[..from + BLOCK], from));
            }
            checkpoints
        })
    }
}

impl Checkpoint {
    /// Moves the checkpoint from byte `from` to the end of `bytes`.
    fn moved_on(self, bytes: &[u8], from: usize) -> Self {
        let new = &bytes[from..];
        let begins = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        match new.iter().rposition(|&byte| byte == b'\n') {
            None => Self { column: self.column + begins(new), ..self },
            Some(last) => Self {
                line: self.line + new.iter().filter(|&&byte| byte == b'\n').count(),
                start: from + last + 1,
                column: begins(&new[last + 1..]),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted from the text's start.
    fn plain(text: &str, at: usize) -> ((usize, usize), Range<usize>) {
        let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
        let end = text[at..].find('\n').map_or(text.len(), |len| at + len);
        ((text[..at].matches('\n').count(), text[start..at].chars().count()), start..end)
    }

    #[test]
    fn places_are_those_that_are_counted_from_the_start() {
        let long = "ä".repeat(3 * BLOCK);
        for text in [
            String::new(),
            "\n".repeat(2 * BLOCK),
            "x".repeat(BLOCK),
            format!("{}\n", "x".repeat(BLOCK - 1)),
            format!("one\n{long}\nthree\n\n{long}"),
            format!("{}\n", "öb\n".repeat(BLOCK)),
        ] {
            let lines = Lines::default();
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)).step_by(7).chain([text.len()])
            {
                let found = (lines.position(&text, at), lines.around(&text, at));
                assert_eq!(found, plain(&text, at), "at {at} of {} bytes", text.len());
            }
        }
    }
}
