//! The promises of coloured heaps: no two applications meet in the cache, and a heap is one range.

use std::collections::BTreeSet;

use plimsoll_smartnic::cache::heap::{Colours, Heap};
use plimsoll_smartnic::cache::{CHUNK, LINE};
use plimsoll_units::Bytes;
use proptest::prelude::*;

/// The addresses of all lines of a heap.
fn lines(heap: &Heap, size: u64) -> impl Iterator<Item = plimsoll_smartnic::cache::Address> {
    (0..size).step_by(LINE as usize).map(|at| heap.translate(at).expect("allocated"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Applications of any numbers of cores, with any allocations, share no set; and no line is given twice.
    #[test]
    fn applications_share_no_set_and_no_line(
        wanted in prop::collection::vec((1..17_u32, prop::collection::vec(1..200_000_u64, 1..6)), 1..8),
    ) {
        let mut colours = Colours::default();
        let mut owners = vec![None; plimsoll_smartnic::cache::SETS];
        let mut seen = BTreeSet::new();
        for (app, (cores, sizes)) in wanted.iter().enumerate() {
            let Some(mut heap) = colours.assign(*cores) else { continue };
            let mut end = 0;
            for &size in sizes {
                let at = heap.allocate(Bytes::new(size)).expect("1 MB fits any heap");
                prop_assert!(at >= end, "allocations follow each other");
                end = at + size;
            }
            for address in lines(&heap, end) {
                prop_assert!(heap.colours().contains(&address.colour()));
                prop_assert!(seen.insert(address), "a line of one application");
                let owner = owners[address.set()].get_or_insert(app);
                prop_assert_eq!(*owner, app, "a set of one application");
            }
        }
    }

    /// Within an entry, addresses follow each other; an entry is a power of two, and both its ends are aligned to it.
    #[test]
    fn entries_are_aligned_powers_of_two(cores in 1..17_u32) {
        let mut heap = Colours::default().assign(cores).expect("all are free");
        let size = Bytes::kib(3_000);
        heap.allocate(size).expect("room");
        let page = CHUNK.as_u64() << cores.trailing_zeros();
        for at in (0..size.as_u64()).step_by(LINE as usize) {
            let address = heap.translate(at).expect("allocated").0;
            prop_assert_eq!(address % page, at % page);
        }
        prop_assert_eq!(heap.entries() as u64, size.as_u64().div_ceil(page));
    }
}
