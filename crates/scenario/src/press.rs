//! How backpressure differs in experiments from what runs live.
//!
//! Why: a paper's figure states a marking interval or the size of a table, where the engine works out the one and fixes the other.
//! From: MIMIC §III-C (meters that drop), §V-A (1/2000, 1/5000), §V-B and §VI-A (sizes of tables).
//! Not here: what a policy states (`plimsoll-policy`), and counting and marking (`sim`).
//! Invariant: by default it is what runs live.

/// Settings of backpressure that only virtual time has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PressModel {
    /// One of this many packets of a flow is marked; without it the number follows from the target and the round trip.
    pub interval: Option<u32>,
    /// What a meter at the source does with packets beyond the rate.
    pub excess: Excess,
    /// Hash buckets in which flows are counted, a power of two; the engine's number without.
    pub buckets: Option<u32>,
    /// Flows that a bucket holds.
    pub slots: Slots,
    /// Packets after which a flow's count moves from its bucket to the flow table; the engine's number without.
    pub counter_cap: Option<u32>,
}

/// What a meter at the source does with packets beyond the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excess {
    /// They wait, as live.
    #[default]
    Wait,
    /// They are dropped, as in MIMIC.
    Drop,
}

/// Flows that a hash bucket holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Slots {
    /// Two.
    Two,
    /// Four, as live.
    #[default]
    Four,
    /// Eight.
    Eight,
}
