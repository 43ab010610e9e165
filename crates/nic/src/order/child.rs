//! The record of a child whose start is a moment in time.
//!
//! Why: rows and heaps queue a child in its own record, so that it takes half a cache line and no more.
//! Not here: what a start means (`grouped`, `rate_share`), and how children are queued (`rows`, `heaps`).

/// A child's start, and its place in the row (`rows::Links`) or heap (`heaps::Cell`) that queues it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Child<Place> {
    pub(crate) start: u64,
    /// The amount that a byte adds to the start, in the owner's unit.
    pub(crate) inverse: u64,
    /// The fraction of the start below its unit, for owners that carry one.
    pub(crate) rest: u32,
    pub(super) place: Place,
}
