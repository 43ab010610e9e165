//! Doorbell words: which flow queues have new descriptors.
//!
//! Why: 32 notes of 16 bits fill a cache line; one store tells of all of them.
//! From: Loom §4.3.1 and §4.3.2, in the words that the engine itself reads (`nic`'s doorbells; a test in `ports` holds
//! the two together).
//! Not here: the queue that they lie in (`layout`), and what the daemon does about them (`ports`).
//! Invariant: whatever words come in, reading them ends.

/// The entry that extension words follow.
pub const ESCAPE: u16 = 0xffff;
/// Extension: a queue id of 32 bits, low half first.
pub const WIDE_QUEUE: u16 = 1;
/// Extension: a node and its new weight. Not a client's to give: refused and counted.
pub const WEIGHT: u16 = 2;
/// Extension: a limit and its new rate. Not a client's to give: refused and counted.
pub const RATE: u16 = 3;
/// Extension: a queue and the slack or deadline, in microseconds, of its descriptors that bring none.
pub const TAG: u16 = 4;
/// Entries in a cache line.
pub const ENTRIES_PER_LINE: usize = 32;

/// What doorbell words say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// This queue has new descriptors.
    Bell(u32),
    /// Descriptors of this queue that bring no tag have this one.
    Tag(u32, u32),
    /// Weights and rates are the operator's.
    Forbidden,
    /// Not in this language; nothing tells where the next note begins.
    Malformed,
}

/// The words that ring for `queue`: one, or four for a queue beyond 16 bits.
#[inline]
pub fn bell(queue: u32, words: &mut Vec<u16>) {
    match u16::try_from(queue) {
        Ok(id) if id != ESCAPE => words.push(id),
        _ => words.extend([ESCAPE, WIDE_QUEUE, queue as u16, (queue >> 16) as u16]),
    }
}

/// The words that give `queue` a tag.
pub fn tag(queue: u32, tag: u32, words: &mut Vec<u16>) {
    words.extend([ESCAPE, TAG, queue as u16, (queue >> 16) as u16, tag as u16, (tag >> 16) as u16]);
}

/// The first note of a batch, and how many words it takes; `None` at its end.
#[inline]
#[must_use]
pub fn first(words: &[u16]) -> Option<(Note, usize)> {
    let (&word, rest) = words.split_first()?;
    if word != ESCAPE {
        return Some((Note::Bell(word.into()), 1));
    }
    Some(match *rest {
        [WIDE_QUEUE, low, high, ..] => (Note::Bell(whole(low, high)), 4),
        [TAG, q0, q1, t0, t1, ..] => (Note::Tag(whole(q0, q1), whole(t0, t1)), 6),
        [WEIGHT, _, _, _, _, ..] => (Note::Forbidden, 6),
        [RATE, _, _, _, _, _, _, ..] => (Note::Forbidden, 8),
        _ => (Note::Malformed, words.len()),
    })
}

fn whole(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(mut words: &[u16]) -> Vec<Note> {
        let mut found = Vec::new();
        while let Some((note, used)) = first(words) {
            found.push(note);
            words = &words[used..];
        }
        found
    }

    #[test]
    fn what_is_written_is_read() {
        let mut words = Vec::new();
        bell(7, &mut words);
        bell(65_535, &mut words);
        bell(70_000, &mut words);
        tag(9, 70_001, &mut words);
        let expected = [Note::Bell(7), Note::Bell(65_535), Note::Bell(70_000), Note::Tag(9, 70_001)];
        assert_eq!(notes(&words), expected);
    }

    #[test]
    fn a_cut_escape_ends_the_batch() {
        assert_eq!(notes(&[3, ESCAPE]), [Note::Bell(3), Note::Malformed]);
        assert_eq!(notes(&[ESCAPE, TAG, 1, 2, 3]), [Note::Malformed]);
        assert_eq!(notes(&[ESCAPE, RATE, 1, 0, 1, 0, 0, 0, 5]), [Note::Forbidden, Note::Bell(5)]);
    }
}
