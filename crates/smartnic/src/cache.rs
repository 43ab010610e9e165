//! The level-2 cache that all cores of a SmartNIC share, as on Cavium's CN2360.
//!
//! Why: a program with poor locality evicts its neighbours' lines, whatever cores they have; with a part of the sets
//! for each program it evicts only its own.
//! From: FairNIC §3.3 and §4.3: 16 ways, 2,048 sets, lines of 128 bytes; address bits 7 to 17 name the set, and the
//! upper four of them, bits 14 to 17, are the colour. Least recently used lines are replaced; the paper does not say.
//! Not here: what a hit and a miss cost beyond [`MISS`], and the other levels.
//! Invariant: a set holds the lines that were used last of all that map to it, [`WAYS`] at most.

pub mod heap;

use plimsoll_units::{Bytes, Span};

/// Lines of a set.
pub const WAYS: usize = 16;
/// Sets.
pub const SETS: usize = 2_048;
/// Bytes of a line.
pub const LINE: u64 = 128;
/// Colours, each of which owns sets that follow each other.
pub const COLOURS: u32 = 16;
/// Bytes of one colour that follow each other in memory.
pub const CHUNK: Bytes = Bytes::new(LINE * SETS as u64 / COLOURS as u64);
/// Bytes after which colours repeat.
pub const REPEAT: Bytes = Bytes::new(LINE * SETS as u64);
/// What a miss costs beyond a hit.
pub const MISS: Span = Span::ns(60);
/// No line: no address is that high.
const EMPTY: u64 = u64::MAX;

/// An address in the SmartNIC's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    /// The set that holds its line: bits 7 to 17.
    ///
    /// ```
    /// use plimsoll_smartnic::cache::Address;
    ///
    /// assert_eq!([Address(127).set(), Address(128).set(), Address(256 * 1_024).set()], [0, 1, 0]);
    /// ```
    #[must_use]
    pub const fn set(self) -> usize {
        (self.0 >> 7) as usize & (SETS - 1)
    }

    /// Its colour: bits 14 to 17.
    #[must_use]
    pub const fn colour(self) -> u32 {
        (self.0 >> 14) as u32 & (COLOURS - 1)
    }
}

/// The cache. It knows which lines it holds, not what is in them.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The lines of each set, the one used last first; [`EMPTY`] where there is none yet.
    sets: Vec<[u64; WAYS]>,
    hits: u64,
    misses: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Self { sets: vec![[EMPTY; WAYS]; SETS], hits: 0, misses: 0 }
    }
}

impl Cache {
    /// Uses the line at an address; `false` if it has to be fetched, in place of the set's line that was used the
    /// longest ago.
    pub fn touch(&mut self, address: Address) -> bool {
        let line = address.0 / LINE;
        let set = &mut self.sets[address.set()];
        let found = set.iter().position(|held| *held == line);
        set.copy_within(..found.unwrap_or(WAYS - 1), 1);
        set[0] = line;
        if found.is_some() {
            self.hits += 1
        } else {
            self.misses += 1
        }
        found.is_some()
    }

    /// Lines that were found, and that were not.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_geometry_is_that_of_the_paper() {
        assert_eq!(LINE * (SETS * WAYS) as u64, 4 << 20, "4 MiB");
        assert_eq!((CHUNK, REPEAT), (Bytes::kib(16), Bytes::kib(256)));
        for address in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, 0x3_ffff, 0x4_0000, 0xdead_beef] {
            let at = Address(address);
            assert_eq!(
                (at.colour(), at.set()),
                ((address >> 14) as u32 & 15, (address >> 7) as usize & 2047)
            );
            assert_eq!(at.set() / 128, at.colour() as usize, "a colour owns 128 sets that follow each other");
            let again = Address(address + REPEAT.as_u64());
            assert_eq!((again.colour(), again.set()), (at.colour(), at.set()));
        }
    }

    #[test]
    fn the_line_that_was_used_longest_ago_is_replaced() {
        let mut cache = Cache::default();
        let line = |n: u64| Address(n * REPEAT.as_u64());
        assert!((0..16).all(|n| !cache.touch(line(n))), "the first time");
        assert!(cache.touch(line(0)), "16 lines fit a set");
        assert!(!cache.touch(line(16)), "a seventeenth takes the place of line 1");
        assert!(cache.touch(line(0)) && cache.touch(line(2)) && !cache.touch(line(1)));
        assert_eq!(cache.counts(), (3, 18));
    }

    #[test]
    fn four_mebibytes_fit_and_a_line_more_of_each_set_does_not() {
        let missed = |lines: u64| {
            let mut cache = Cache::default();
            (0..2).for_each(|_| (0..lines).for_each(|line| _ = cache.touch(Address(line * LINE))));
            cache.counts().1
        };
        assert_eq!(missed(32_768), 32_768, "each line once");
        assert_eq!(missed(34_816), 2 * 34_816, "in turn, 17 lines of a set are always too many");
    }
}
