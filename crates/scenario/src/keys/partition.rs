//! The keys of `partition`: what tenants share on a SmartNIC.
//!
//! Why: `keys` would be too long with them.
//! From: `docs/scenarios.md`, "A SmartNIC's cores".
//! Not here: reading the values (`read::partition`).
//! Invariant: as in `keys`.

use plimsoll_document::Shape::{Flag, Map, Named, Whole, Words};
use plimsoll_document::mapping;

use super::{RATE, SIZE, TIME};

mapping! {
    pub(crate) static PARTITION = "Partition" {
        /// The number of each tenant's cores.
        cores = "{shop: 8, batch: 1}": Named(&Whole(1, 1_024)),
        /// The unit that programs on all cores call.
        coprocessor: Map(&COPROCESSOR),
        /// The cache that all cores share.
        cache: Map(&CACHE),
    }

    pub(crate) static CACHE = "Cache" {
        /// The time that a core waits for a line that is not in the cache.
        miss: TIME,
        /// What each tenant's program does with its memory.
        programs = "{shop: {memory: 5MiB, lines: 160}}": Named(&Map(&MEMORY_USE)),
    }

    pub(crate) static MEMORY_USE = "MemoryUse" {
        /// Bytes that the program uses.
        memory = "5MiB": SIZE,
        /// Lines of 128 bytes that it uses for each packet.
        lines: Whole(1, 65_536),
        /// The order in which it uses them.
        access: Words(&[("random", ""), ("in_turn", "")]),
        /// Whether its cores wait for lines that are not in the cache.
        waits: Flag,
    }

    pub(crate) static COPROCESSOR = "Coprocessor" {
        /// Time of a request, whatever its length.
        time: TIME,
        /// How fast it works through a request's bytes.
        rate: RATE,
        /// Bytes that each tenant's program asks it to work on for each packet.
        calls = "{shop: 4KiB}": Named(&SIZE),
        /// What its limiter grants a tenant of weight 1 in a round.
        quantum: SIZE,
        /// The longest request in quanta; longer ones are split.
        longest: Whole(1, 1_024),
    }
}
