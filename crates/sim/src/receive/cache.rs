//! A SmartNIC's cache, and the programs that use lines of it for each packet.
//!
//! Why: a program that uses many lines once evicts those that its neighbours use again.
//! From: FairNIC §3.3 and §4.3; the cache and the colours of heaps are `plimsoll-smartnic`'s.
//! Not here: the cores (`partition`); the memory's bandwidth, however many lines are fetched at once.
//! Invariant: a packet's lines are all used at the moment at which a core begins it. They are few beside the cache's
//! lines, so that it makes no difference that other cores' lines do not come between them.

use plimsoll_scenario::{Access, MemoryUse, SharedCache};
use plimsoll_smartnic::cache::heap::Colours;
use plimsoll_smartnic::cache::{Address, COLOURS, Cache, LINE};
use plimsoll_units::Span;

use crate::chance::Chance;

/// The cache that all cores share.
#[derive(Debug)]
pub(crate) struct Lines {
    cache: Cache,
    miss: Span,
    /// By tenant: its program, if that uses memory.
    programs: Vec<Option<Program>>,
}

/// A program on all of its tenant's cores.
#[derive(Debug)]
struct Program {
    spec: MemoryUse,
    /// Where the lines of its memory lie.
    at: Vec<Address>,
    /// The line that is next in turn.
    next: usize,
    chance: Chance,
}

/// Why the memory of programs cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// Too few colours are left for this tenant.
    Colours(String),
    /// This tenant's memory takes more translation entries than a core has.
    Entries(String),
}

/// The memory of different programs begins this far apart where it has no colours.
const APART: u64 = 64 << 20;

impl Lines {
    /// A cache without lines, and the memory of each tenant's program: in as many colours as the tenant has cores, or,
    /// without stripes, one after the other. `tenants` are names and numbers of cores.
    pub(crate) fn new(
        spec: &SharedCache,
        tenants: &[(&str, u32)],
        stripes: bool,
        chance: impl Fn(&str) -> Chance,
    ) -> Result<Self, NoPlace> {
        let mut colours = Colours::default();
        let mut programs = Vec::new();
        for (index, &(name, cores)) in (0..).zip(tenants) {
            let spec = spec.programs.iter().find(|(of, _)| of == name).map(|(_, spec)| *spec);
            let place = |spec: MemoryUse| {
                let at =
                    if stripes { in_colours(&mut colours, name, cores, spec)? } else { plain(index, spec) };
                Ok(Program { spec, at, next: 0, chance: chance(name) })
            };
            programs.push(spec.map(place).transpose()?);
        }
        Ok(Self { cache: Cache::default(), miss: spec.miss, programs })
    }

    /// Uses the lines that a packet of this tenant takes; returns how long its core waits for those that are not in the
    /// cache.
    pub(super) fn process(&mut self, tenant: u32) -> Span {
        let Some(program) = self.programs.get_mut(tenant as usize).and_then(Option::as_mut) else {
            return Span::ZERO;
        };
        let lines = program.spec.lines;
        let misses = (0..lines).filter(|_| !self.cache.touch(program.line())).count();
        if program.spec.waits { self.miss.times(misses as u64) } else { Span::ZERO }
    }
}

impl Program {
    /// Where the line lies that it uses next.
    fn line(&mut self) -> Address {
        let index = match self.spec.access {
            Access::Random => self.chance.below(self.at.len() as u32) as usize,
            Access::InTurn => {
                let after = (self.next + 1) % self.at.len();
                std::mem::replace(&mut self.next, after)
            }
        };
        self.at[index]
    }
}

/// The offsets of a memory's lines.
fn offsets(spec: MemoryUse) -> impl Iterator<Item = u64> {
    (0..spec.memory.as_u64().max(LINE) / LINE).map(|line| line * LINE)
}

/// The lines of a memory that has all colours, as if nothing placed it.
fn plain(index: u64, spec: MemoryUse) -> Vec<Address> {
    offsets(spec).map(|offset| Address(index * APART + offset)).collect()
}

/// The lines of a memory of as many colours as its tenant has cores.
fn in_colours(
    colours: &mut Colours,
    name: &str,
    cores: u32,
    spec: MemoryUse,
) -> Result<Vec<Address>, NoPlace> {
    let mut heap = colours.assign(cores).ok_or_else(|| NoPlace::Colours(name.to_owned()))?;
    let entries = || NoPlace::Entries(name.to_owned());
    let first = heap.allocate(spec.memory).map_err(|_| entries())?;
    offsets(spec).map(|offset| heap.translate(first + offset).ok_or_else(entries)).collect()
}

impl NoPlace {
    /// What is wrong, and what its author can do.
    pub(crate) fn said(&self) -> (String, String) {
        match self {
            Self::Colours(name) => (
                format!("the cache has too few colours left for the cores of tenant `{name}`"),
                format!("give programs {COLOURS} cores in all, or write `stripes: false` for the system"),
            ),
            Self::Entries(name) => (
                format!("tenant `{name}` has too few cores for its `memory`"),
                "a core's 255 translation entries reach 16 KiB of memory each, and those of 8 cores 128 KiB; \
                 write less `memory`"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::Bytes;

    const MISS: Span = Span::ns(60);

    fn of(programs: &[(&str, MemoryUse)], tenants: &[(&str, u32)], stripes: bool) -> Result<Lines, NoPlace> {
        let programs = programs.iter().map(|(name, spec)| ((*name).to_owned(), *spec)).collect();
        let spec = SharedCache { miss: MISS, programs };
        Lines::new(&spec, tenants, stripes, |name| Chance::of(1, name))
    }

    fn steps(memory: Bytes, waits: bool) -> MemoryUse {
        MemoryUse { memory, lines: 128, access: Access::InTurn, waits }
    }

    #[test]
    fn lines_that_fit_are_fetched_once_and_those_that_do_not_each_time() {
        let small = steps(Bytes::kib(32), true);
        let mut lines = of(&[("a", small)], &[("a", 8), ("b", 8)], true).expect("there is room");
        let waited: Vec<Span> = (0..4).map(|_| lines.process(0)).collect();
        assert_eq!(waited, [MISS.times(128), MISS.times(128), Span::ZERO, Span::ZERO]);
        assert_eq!(lines.process(1), Span::ZERO, "b's program uses no memory");
        let large = steps(Bytes::kib(8 << 10), true);
        let mut lines = of(&[("a", large)], &[("a", 8)], false).expect("there is room");
        assert!((0..2_000).all(|_| lines.process(0) == MISS.times(128)));
    }

    #[test]
    fn a_neighbour_evicts_lines_without_stripes_only() {
        let programs = [("a", steps(Bytes::kib(1 << 10), true)), ("b", steps(Bytes::kib(16 << 10), false))];
        for (stripes, wait) in [(true, Span::ZERO), (false, MISS.times(128))] {
            let mut lines = of(&programs, &[("a", 8), ("b", 8)], stripes).expect("there is room");
            (0..64).for_each(|_| _ = lines.process(0));
            (0..1_024).for_each(|_| assert_eq!(lines.process(1), Span::ZERO, "it only writes"));
            assert_eq!(lines.process(0), wait, "stripes: {stripes}");
        }
    }

    #[test]
    fn there_are_sixteen_colours_and_255_entries() {
        let spec = steps(Bytes::kib(4 << 10), true);
        let refused = |cores| of(&[("a", spec), ("b", spec)], &[("a", cores), ("b", 8)], true).err();
        assert_eq!(refused(10), Some(NoPlace::Colours("b".to_owned())));
        assert_eq!(refused(1), Some(NoPlace::Entries("a".to_owned())));
        assert_eq!(refused(8), None);
    }
}
