//! A SmartNIC's cores, divided among tenants, and the coprocessor and the cache that they share.
//!
//! Why: FairNIC's tenants have cores of their own, and still meet in the buffers before them, in the units behind
//! them, and in their cache.
//! From: `docs/scenarios.md`, "A SmartNIC's cores"; FairNIC §3 and §4.
//! Not here: reading it (`read::partition`), cores and units at work (`sim`).
//! Invariant: each tenant on the host has at least one core.

use plimsoll_units::{BitRate, Bytes, Span};

/// The cores of a SmartNIC by tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Each tenant's number of cores, which process its packets alone.
    pub cores: Vec<(String, u32)>,
    /// The unit that programs call, if they call one.
    pub coprocessor: Option<Coprocessor>,
    /// The cache in which programs keep their memory, if it is modelled.
    pub cache: Option<SharedCache>,
}

/// A unit that serves requests one after the other; a core that calls it waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coprocessor {
    /// Time of a request, whatever its length.
    pub time: Span,
    /// How fast it works through a request's bytes; length takes no time without.
    pub rate: Option<BitRate>,
    /// Bytes that each tenant's program asks it to work on for each packet; programs that are not named do not call it.
    pub calls: Vec<(String, Bytes)>,
    /// What its limiter grants a tenant of weight 1 in a round: bytes, or requests where length takes no time.
    pub quantum: Bytes,
    /// The longest request that its limiter lets through, in quanta; longer ones are split.
    pub longest: u32,
}

/// A cache that all cores share. Its geometry is that of `plimsoll-smartnic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedCache {
    /// The time that a core waits for a line that is not there.
    pub miss: Span,
    /// What each tenant's program does with its memory; programs that are not named use none.
    pub programs: Vec<(String, MemoryUse)>,
}

/// How a program uses its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that it uses, from the first to the last.
    pub memory: Bytes,
    /// Lines that it uses for each packet.
    pub lines: u32,
    /// Which lines are next.
    pub access: Access,
    /// Whether its cores wait for lines that are not in the cache; a program that only writes does not wait.
    pub waits: bool,
}

/// The order in which a program uses the lines of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Any line is as likely as any other.
    #[default]
    Random,
    /// Each line after the one before it, and the first after the last.
    InTurn,
}
