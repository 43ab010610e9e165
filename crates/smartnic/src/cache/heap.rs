//! Heaps of one application's colours: an allocator that keeps applications apart in the cache.
//!
//! Why: an application whose memory has colours of its own cannot evict another one's lines.
//! From: FairNIC §4.3 and Figure 6: memory of one colour is chunks of 16 KiB every 256 KiB; entries of the cores'
//! translation tables (255 on each) make one virtual range of them, written when memory is allocated, without page
//! tables. An application on n cores has n colours, and the same entries on each of its cores.
//! Not here: code and stacks, which the paper does not stripe either; giving memory back, since a program ends as a
//! whole.
//! Invariant: no two applications have a colour in common; a virtual address translates to a colour of its application.
//!
//! MIPS entries translate an aligned power of two. Where n is none, the paper does not say what happens; here an
//! entry is as large as the largest power of two that divides n, and each repetition of the colours takes several
//! entries: 3 cores have entries of 16 KiB, and 6 cores of 32 KiB.

use plimsoll_units::Bytes;

use super::{Address, CHUNK, COLOURS, REPEAT};

/// Entries that each core has for its heap.
pub const ENTRIES: usize = 255;

/// The colours of a SmartNIC's memory, and who has them.
///
/// ```
/// use plimsoll_smartnic::cache::heap::Colours;
/// use plimsoll_units::Bytes;
///
/// let mut colours = Colours::default();
/// let mut heap = colours.assign(2).expect("all are free");
/// let at = heap.allocate(Bytes::kib(100)).expect("room");
/// let address = heap.translate(at + 40_000).expect("allocated");
/// assert!(heap.colours().contains(&address.colour()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Colours {
    taken: [bool; COLOURS as usize],
}

/// The heap of an application.
#[derive(Clone, Debug)]
pub struct Heap {
    first: u32,
    colours: u32,
    /// Bytes of an entry.
    page: u64,
    /// What each entry translates to; entry `n` is for the virtual addresses from `n` times `page` on.
    entries: Vec<Address>,
    used: u64,
}

/// Why memory is not allocated: the cores' entries are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEntries;

impl Colours {
    /// Gives colours to an application on a number of cores, one for each; `None` if too few are free where entries may
    /// begin.
    pub fn assign(&mut self, cores: u32) -> Option<Heap> {
        if cores == 0 || cores > COLOURS {
            return None;
        }
        let step = 1 << cores.trailing_zeros();
        let free = |first: &u32| {
            let range = *first as usize..(first + cores) as usize;
            self.taken.get(range).is_some_and(|taken| taken.iter().all(|taken| !taken))
        };
        let first = (0..COLOURS).step_by(step).find(free)?;
        self.taken[first as usize..(first + cores) as usize].fill(true);
        let page = step as u64 * CHUNK.as_u64();
        Some(Heap { first, colours: cores, page, entries: Vec::with_capacity(ENTRIES), used: 0 })
    }

    /// Takes an application's colours back.
    pub fn release(&mut self, heap: &Heap) {
        self.taken[heap.first as usize..(heap.first + heap.colours) as usize].fill(false);
    }

    /// Colours that no application has.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.taken.iter().filter(|taken| !**taken).count() as u32
    }
}

impl Heap {
    /// Allocates memory, and writes the entries that it needs; returns its virtual address, which is aligned to a line.
    ///
    /// # Errors
    ///
    /// If that takes more entries than a core has.
    pub fn allocate(&mut self, size: Bytes) -> Result<u64, NoEntries> {
        let at = self.used.next_multiple_of(super::LINE);
        let end = at.checked_add(size.as_u64()).ok_or(NoEntries)?;
        if end > self.most().as_u64() {
            return Err(NoEntries);
        }
        let entries = end.div_ceil(self.page);
        for n in self.entries.len() as u64..entries {
            let target = self.target(n);
            self.entries.push(target);
        }
        self.used = end;
        Ok(at)
    }

    /// The address behind a virtual one; `None` where no entry is written.
    #[must_use]
    pub fn translate(&self, at: u64) -> Option<Address> {
        let entry = self.entries.get(usize::try_from(at / self.page).ok()?)?;
        Some(Address(entry.0 + at % self.page))
    }

    /// Its colours.
    #[must_use]
    pub const fn colours(&self) -> core::ops::Range<u32> {
        self.first..self.first + self.colours
    }

    /// The most that it holds.
    #[must_use]
    pub const fn most(&self) -> Bytes {
        Bytes::new(self.page * ENTRIES as u64)
    }

    /// Entries in use on each of its cores.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// What entry `n` translates to: entries go through the application's colours, then on to the next repetition.
    fn target(&self, n: u64) -> Address {
        let in_one = u64::from(self.colours) * CHUNK.as_u64() / self.page;
        let (repetition, part) = (n / in_one, n % in_one);
        Address(repetition * REPEAT.as_u64() + u64::from(self.first) * CHUNK.as_u64() + part * self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_has_four_mebibytes_less_a_chunk_and_sixteen_have_sixty_four() {
        let mut colours = Colours::default();
        let heaps: Vec<Heap> = (0..16).map(|_| colours.assign(1).expect("a colour for each")).collect();
        assert!(heaps.iter().all(|heap| heap.most() == Bytes::kib(255 * 16)));
        assert!(colours.assign(1).is_none() && colours.free() == 0);
        assert_eq!(Colours::default().assign(16).expect("all").most(), Bytes::kib(16 * 255 * 16));
    }

    #[test]
    fn several_cores_have_larger_entries_as_in_figure_6() {
        let mut colours = Colours::default();
        let mut of = |cores| {
            let mut heap = colours.assign(cores).expect("free");
            let at = heap.allocate(Bytes::kib(256)).expect("room");
            (heap.colours(), heap.entries(), heap.translate(at).expect("allocated"))
        };
        assert_eq!(of(1), (0..1, 16, Address(0)));
        assert_eq!(of(2), (2..4, 8, Address(0x8000)), "an entry of 32 KiB is aligned to 32 KiB");
        assert_eq!(of(4), (4..8, 4, Address(0x1_0000)));
        assert_eq!(of(3), (8..11, 16, Address(0x2_0000)), "3 cores have entries of 16 KiB");
    }

    #[test]
    fn memory_is_refused_when_entries_are_used_up() {
        let mut heap = Colours::default().assign(1).expect("free");
        assert_eq!(heap.allocate(Bytes::kib(4_080)), Ok(0));
        assert_eq!(heap.allocate(Bytes::new(1)), Err(NoEntries));
        assert_eq!(heap.allocate(Bytes::new(u64::MAX)), Err(NoEntries));
        assert_eq!(heap.translate(4_080 << 10), None);
    }

    #[test]
    fn colours_come_back() {
        let mut colours = Colours::default();
        let heap = colours.assign(16).expect("all");
        colours.release(&heap);
        assert_eq!(colours.free(), 16);
    }
}
