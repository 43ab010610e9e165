//! Doorbell words: 16-bit notes that a flow queue has new descriptors, and longer notes that carry values.
//!
//! Why: 32 words of 16 bits fill a cache line, and one write announces them all. The engine and a client on shared
//! memory use the same encoding.
//! From: Loom §4.3.1 and §4.3.2. Sixteen bits can neither carry values nor name more than 65,535 queues, so one word is
//! an escape, followed by extension words.
//! Not here: the queues that hold the words (`nic`, `plimsoll-vnic`), and which notes a sender may write (`nic`, `ports`).
//! Invariant: reading ends for any words.

/// The word that announces extension words.
pub const ESCAPE: u16 = 0xffff;
/// Words in a cache line.
pub const ENTRIES_PER_LINE: usize = 32;
/// Words of the longest note.
pub const LONGEST_NOTE: usize = 15;

const WIDE_QUEUE: u16 = 1;
const WEIGHT: u16 = 2;
const RATE: u16 = 3;
const TAG: u16 = 4;
const CLASS_RATE: u16 = 5;
const METADATA: u16 = 6;

/// What a client says of its packets beside their headers (Loom §4.3.2). The daemon adds the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PacketMetadata {
    /// Socket priority (`SO_PRIORITY`).
    pub priority: Option<u32>,
    /// Control group.
    pub cgroup: Option<u64>,
    /// User.
    pub user: Option<u32>,
    /// Application.
    pub app: Option<u32>,
}

impl PacketMetadata {
    /// Each field of this one, or where it has none, that of `flow`.
    #[must_use]
    pub fn or(self, flow: Self) -> Self {
        Self {
            priority: self.priority.or(flow.priority),
            cgroup: self.cgroup.or(flow.cgroup),
            user: self.user.or(flow.user),
            app: self.app.or(flow.app),
        }
    }

    /// Which fields it has, a bit for each: priority 1, control group 2, user 4, application 8.
    #[must_use]
    pub fn present(&self) -> u8 {
        let has = [self.priority.is_some(), self.cgroup.is_some(), self.user.is_some(), self.app.is_some()];
        has.into_iter().rev().fold(0, |bits, has| bits << 1 | u8::from(has))
    }

    /// Only the fields of which [`PacketMetadata::present`] has the bit.
    #[must_use]
    pub fn only(self, present: u8) -> Self {
        let has = |bit: u8| present & bit != 0;
        Self {
            priority: self.priority.filter(|_| has(1)),
            cgroup: self.cgroup.filter(|_| has(2)),
            user: self.user.filter(|_| has(4)),
            app: self.app.filter(|_| has(8)),
        }
    }
}

/// One message in a doorbell queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The queue with this number has new descriptors.
    Bell(u32),
    /// A node's new weight: the node, the weight.
    Weight(u32, u32),
    /// A limit's new rate: the limit, bits per second.
    Rate(u32, u64),
    /// The new rate of a child of a `rate_share` node: the child, bits per second.
    ClassRate(u32, u64),
    /// The slack or deadline of a queue's descriptors that have none of their own: the queue, microseconds.
    Tag(u32, u32),
    /// The metadata of a queue's packets, in place of all that was said before; a packet's own goes before it.
    Metadata(u32, PacketMetadata),
    /// Words that are no valid note; where the next note begins is unknown.
    Malformed,
}

impl Note {
    /// Appends the words of this note; none for [`Note::Malformed`].
    #[inline]
    pub fn write(self, words: &mut impl Extend<u16>) {
        match self {
            Self::Bell(queue) => match u16::try_from(queue) {
                Ok(id) if id != ESCAPE => words.extend([id]),
                _ => words.extend([ESCAPE, WIDE_QUEUE, low(queue), high(queue)]),
            },
            Self::Weight(of, value) => words.extend(pair(WEIGHT, of, value)),
            Self::Tag(of, value) => words.extend(pair(TAG, of, value)),
            Self::Rate(of, rate) => words.extend(long(RATE, of, rate)),
            Self::ClassRate(of, rate) => words.extend(long(CLASS_RATE, of, rate)),
            Self::Metadata(queue, metadata) => words.extend(described(queue, &metadata)),
            Self::Malformed => {}
        }
    }

    /// The first note of a batch and its length in words; `None` when the batch is empty.
    #[inline]
    #[must_use]
    pub fn first(words: &[u16]) -> Option<(Self, usize)> {
        let (&word, rest) = words.split_first()?;
        if word != ESCAPE {
            return Some((Self::Bell(word.into()), 1));
        }
        let (note, used) = Self::extension(rest);
        Some((note, used + 1))
    }

    /// The note behind an escape and its length in words; a malformed note takes all words.
    #[must_use]
    pub fn extension(words: &[u16]) -> (Self, usize) {
        match *words {
            [WIDE_QUEUE, q0, q1, ..] => (Self::Bell(whole(q0, q1)), 3),
            [WEIGHT, n0, n1, w0, w1, ..] => (Self::Weight(whole(n0, n1), whole(w0, w1)), 5),
            [TAG, q0, q1, t0, t1, ..] => (Self::Tag(whole(q0, q1), whole(t0, t1)), 5),
            [code @ (RATE | CLASS_RATE), n0, n1, r0, r1, r2, r3, ..] => {
                let rate = u64::from(whole(r2, r3)) << 32 | u64::from(whole(r0, r1));
                let of = whole(n0, n1);
                (if code == RATE { Self::Rate(of, rate) } else { Self::ClassRate(of, rate) }, 7)
            }
            [METADATA, q0, q1, present, p0, p1, u0, u1, a0, a1, c0, c1, c2, c3, ..] => {
                let metadata = PacketMetadata {
                    priority: Some(whole(p0, p1)),
                    cgroup: Some(u64::from(whole(c2, c3)) << 32 | u64::from(whole(c0, c1))),
                    user: Some(whole(u0, u1)),
                    app: Some(whole(a0, a1)),
                };
                // The bits behind the four have no meaning yet: a later version may give them a meaning.
                (Self::Metadata(whole(q0, q1), metadata.only(present as u8)), 14)
            }
            _ => (Self::Malformed, words.len()),
        }
    }
}

fn pair(code: u16, of: u32, value: u32) -> [u16; 6] {
    [ESCAPE, code, low(of), high(of), low(value), high(value)]
}

fn long(code: u16, of: u32, value: u64) -> [u16; 8] {
    let (first, second) = (value as u32, (value >> 32) as u32);
    [ESCAPE, code, low(of), high(of), low(first), high(first), low(second), high(second)]
}

fn described(queue: u32, metadata: &PacketMetadata) -> [u16; LONGEST_NOTE] {
    let [priority, user, app] =
        [metadata.priority, metadata.user, metadata.app].map(Option::unwrap_or_default);
    let cgroup = metadata.cgroup.unwrap_or_default();
    let (first, second) = (cgroup as u32, (cgroup >> 32) as u32);
    [
        ESCAPE,
        METADATA,
        low(queue),
        high(queue),
        metadata.present().into(),
        low(priority),
        high(priority),
        low(user),
        high(user),
        low(app),
        high(app),
        low(first),
        high(first),
        low(second),
        high(second),
    ]
}

fn low(word: u32) -> u16 {
    word as u16
}

fn high(word: u32) -> u16 {
    (word >> 16) as u16
}

fn whole(low: u16, high: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notes(mut words: &[u16]) -> Vec<Note> {
        let mut found = Vec::new();
        while let Some((note, used)) = Note::first(words) {
            found.push(note);
            words = words.get(used..).unwrap_or(&[]);
        }
        found
    }

    #[test]
    fn what_is_written_is_read() {
        let told = PacketMetadata::default();
        let all = [
            Note::Bell(7),
            Note::Bell(65_535),
            Note::Bell(70_000),
            Note::Weight(3, 70_000),
            Note::Rate(1, 100_000_000_000),
            Note::ClassRate(2, 3_000_000),
            Note::Tag(9, 70_001),
            Note::Metadata(9, PacketMetadata::default()),
            Note::Metadata(70_000, PacketMetadata { user: Some(0), cgroup: Some(5 << 40 | 7), ..told }),
            Note::Metadata(3, PacketMetadata { priority: Some(u32::MAX), app: Some(70_001), ..told }),
        ];
        let mut words = Vec::new();
        all.into_iter().for_each(|note| note.write(&mut words));
        assert_eq!(notes(&words), all);
    }

    #[test]
    fn a_cut_escape_ends_the_batch() {
        assert_eq!(notes(&[3, ESCAPE]), [Note::Bell(3), Note::Malformed]);
        assert_eq!(notes(&[ESCAPE, TAG, 1, 2, 3]), [Note::Malformed]);
        assert_eq!(notes(&[ESCAPE, RATE, 1, 0, 1, 0, 0, 0, 5]), [Note::Rate(1, 1), Note::Bell(5)]);
    }

    proptest::proptest! {
        /// Any words are read to their end.
        #[test]
        fn any_words_are_answered(words in proptest::collection::vec(0_u16.., 0..200)) {
            proptest::prop_assert!(notes(&words).len() <= words.len());
        }
    }
}
