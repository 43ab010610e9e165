//! What tenants' programs cost in virtual time: instructions take a core's time, and calls of coprocessors take that of a unit.
//!
//! Why: live both are measured; a run that is to have the same bits everywhere counts them.
//! From: `docs/programs.md`, "In `sim`".
//! Not here: reading it (`read::program_cost`), programs and units at work (`sim`).
//! Invariant: each request takes a unit some time.

use plimsoll_units::{BitRate, Bytes, Frequency, NS_PER_SEC, Span};

/// What the instructions of tenants' programs cost: a core's time, counted by instructions and never measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// The core's clock.
    pub frequency: Frequency,
    /// Cycles that each instruction of WebAssembly takes; at least 1.
    pub cycles: u32,
    /// What calls of the coprocessors take: in the order of `UnitWeights::named`.
    pub units: [UnitCost; 3],
}

/// A coprocessor that programs call: how many requests it serves at a time, and how long each takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitCost {
    /// Requests that it serves at a time.
    pub engines: u32,
    /// Time of a request, whatever its length.
    pub time: Span,
    /// How fast an engine works through the bytes of a packet and of its argument; length takes no time without.
    pub rate: Option<BitRate>,
}

impl Default for ProgramCost {
    fn default() -> Self {
        Self { frequency: Frequency::mhz(3_000), cycles: 1, units: UnitCost::MEASURED }
    }
}

impl UnitCost {
    /// What the daemon's coprocessors took, one thread each: docs/performance.md, "Programs".
    pub const MEASURED: [Self; 3] = [
        Self::one_engine(Span::ns(2_800), BitRate::gbps(12)),
        Self::one_engine(Span::ns(330), BitRate::gbps(100)),
        Self::one_engine(Span::ns(50), BitRate::gbps(5)),
    ];

    const fn one_engine(time: Span, rate: BitRate) -> Self {
        Self { engines: 1, time, rate: Some(rate) }
    }

    /// How long an engine takes for a request of this length, rounded up.
    #[must_use]
    pub fn time_of(&self, bytes: Bytes) -> Span {
        self.time + self.rate.map_or(Span::ZERO, |rate| rate.wire_time(bytes))
    }
}

impl ProgramCost {
    /// How long so many instructions take, rounded up.
    #[must_use]
    pub fn time(&self, instructions: u64) -> Span {
        let cycles = u128::from(instructions) * u128::from(self.cycles) * u128::from(NS_PER_SEC);
        let ns = cycles.div_ceil(self.frequency.get().into());
        Span::ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// How many instructions fit into a time; at least one.
    #[must_use]
    pub fn instructions_in(&self, time: Span) -> u64 {
        let cycles = u128::from(time.as_u64()) * u128::from(self.frequency.get()) / u128::from(NS_PER_SEC);
        let instructions = cycles / u128::from(self.cycles.max(1));
        u64::try_from(instructions).unwrap_or(u64::MAX).max(1)
    }
}
