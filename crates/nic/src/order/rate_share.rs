//! Strict rates in real time; shares in the ratio of the rates when they add up to more than there is.
//!
//! Why: a child gets its rate and no more, evenly paced, with one small record and no bucket that could burst.
//! From: SENIC §4.1 (Radhakrishnan et al., NSDI 2014), with its system time corrected: it is *divided* by the
//! oversubscription, `V += elapsed / max(1, phi)`. As printed it would outrun every start, and a late child would
//! starve. Nested nodes do what SENIC §4.2 does for two levels, for any number of them.
//! Not here: waking the node up when no child was eligible (`tree`, and the wheel in `egress`).
//! Invariant: a child's start never falls, and rises by at least `len / rate` for each packet; no child is picked before
//! the nanosecond of its start. V never jumps to a start while rates hold in real time.
//!
//! Times are nanoseconds with a binary fraction: whole ones are compared, fractions are carried, so that no rate
//! drifts. A child's finish is that of a largest packet, as in `exact`.
//!
//! The exact form keeps two heaps, by start and by finish (`heaps`). The grouped one sorts starts only by rows (`rows`), as QFQ
//! does, and lets the first of a row go when its own start has come, so that no rate is exceeded: the children behind it
//! may have to wait for less than two of its own packets.

use plimsoll_policy::Form;
use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Nanos, Span};

use super::Coming;
use super::child::Child;
use super::heaps::{Cell, Heap, Heaps};
use super::jump_pointers::{JUMP_BITS, JumpPointers, RateAndJump};
use super::rows::Rows;
use crate::ids::{SlotId, Table, TimerId};

/// Children with rates.
#[derive(Clone, Debug)]
pub(crate) struct RateShare {
    clock: Clock,
    /// System time, in nanoseconds, and in 2^-32 of one beyond that.
    v: u64,
    fraction: u32,
    /// The timer that wakes the node up.
    pub(crate) timer: TimerId,
    /// Rates of the active children together.
    sum: u64,
    largest: u64,
    /// Each child's rate, needed only when the child comes or goes, and its jump pointer.
    bits: Table<SlotId, RateAndJump>,
    children: Children,
}

/// The children with their starts; the active ones are queued by these.
#[derive(Clone, Debug)]
enum Children {
    /// The exact form.
    Heaps(Heaps),
    /// The grouped form; with jump pointers if there are many children.
    Rows(Rows, Option<Box<JumpPointers>>),
}

/// How system time moves.
#[derive(Clone, Copy, Debug)]
enum Clock {
    /// With real time, slowed down by oversubscription.
    Real {
        /// Bits per second that the node gets at most.
        drain: u64,
        /// When V was last looked at.
        at: u64,
        /// How far V may run ahead of the least finish of those that could have gone: only a node that gets less than
        /// its drain ever comes that far.
        patience: u64,
    },
    /// With service, as behind a limit that paces already: then the rates are weights.
    Served,
}

/// Frames by which V may run ahead where the node gets less than its drain.
const FRAMES_OF_PATIENCE: u64 = 3;
/// Fraction bits of a start.
const FINE: u32 = 30;
/// Higher rates count as this one, 8.8 Tb/s: a million of them still add up.
const MOST_BITS: u64 = (1 << (64 - JUMP_BITS)) - 1;

impl RateShare {
    /// Children of these rates, below a node that gets `drain` at most and whose caller may be `late`.
    pub(crate) fn real(rates: &[BitRate], form: Form, largest: u64, drain: BitRate, late: Span) -> Self {
        let patience = drain.wire_time(Bytes::new(largest)).times(FRAMES_OF_PATIENCE) + late;
        let clock = Clock::Real { drain: drain.get(), at: 0, patience: patience.as_u64() };
        Self::new(rates, form, largest, clock)
    }

    /// Children that share whatever is served in the ratio of their rates.
    pub(crate) fn served(rates: &[BitRate], form: Form, largest: u64) -> Self {
        Self::new(rates, form, largest, Clock::Served)
    }

    fn new(rates: &[BitRate], form: Form, largest: u64, clock: Clock) -> Self {
        let mut made = Self {
            clock,
            v: 0,
            fraction: 0,
            timer: TimerId::NONE,
            sum: 0,
            largest,
            bits: rates.iter().map(|&rate| RateAndJump::new(bits(rate))).collect(),
            children: Children::new(form, rates),
        };
        made.bits.ids().for_each(|slot| made.join_group(slot));
        made
    }

    fn join_group(&mut self, slot: SlotId) {
        if let Children::Rows(rows, jumps) = &mut self.children {
            let longest = fine(rows.children[slot].inverse, self.largest) >> FINE;
            rows.join_group(slot, u64::try_from(longest).unwrap_or(u64::MAX));
            if let Some(jumps) = jumps {
                jumps.reserve(rows.groups());
            }
        }
    }

    /// Whether rates hold in real time.
    pub(crate) fn is_real(&self) -> bool {
        matches!(self.clock, Clock::Real { .. })
    }

    /// Whether some active child is eligible.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_real() || self.first_due().is_some()
    }

    /// The least finish of an eligible child, and the child.
    #[inline]
    fn first_due(&self) -> Option<(u64, SlotId)> {
        match &self.children {
            Children::Heaps(heaps) => heaps.first_due(|child| finish(child, self.largest)),
            Children::Rows(rows, _) => rows.best_started(self.v),
        }
    }

    /// The least start of the children that are not eligible; in the grouped form of all.
    #[inline]
    fn first_start(&self) -> Option<u64> {
        match &self.children {
            Children::Heaps(heaps) => heaps.first_later().map(|(start, _)| start),
            Children::Rows(rows, _) => rows.first_of_all(),
        }
    }

    /// When the first child that is not eligible becomes so, if nothing changes; without one, the present.
    pub(crate) fn wakes_at(&self) -> Nanos {
        let Clock::Real { drain, at, .. } = self.clock else { return Nanos::ZERO };
        let Some(first) = self.first_start() else { return Nanos::new(at) };
        let gap = first.saturating_sub(self.v);
        let wait = if self.sum <= drain {
            gap
        } else {
            let fine = (u128::from(gap) << 32).saturating_sub(self.fraction.into());
            let bits = fine.saturating_mul(self.sum.into());
            u64::try_from(bits.div_ceil(u128::from(drain) << 32)).unwrap_or(u64::MAX)
        };
        Nanos::new(at.saturating_add(wait))
    }

    /// Brings system time to the present.
    #[inline]
    pub(crate) fn advance(&mut self, now: Nanos) {
        let Clock::Real { drain, at, patience } = &mut self.clock else { return };
        let (drain, patience) = (*drain, *patience);
        let elapsed = now.as_u64().saturating_sub(*at);
        if elapsed == 0 {
            return;
        }
        *at = now.as_u64();
        let before = self.v;
        if self.sum <= drain {
            self.v = self.v.saturating_add(elapsed);
        } else {
            self.pass(u128::from(elapsed) * u128::from(drain));
        }
        self.ripen();
        if let Some((finish, _)) = self.first_due() {
            self.v = self.v.min(finish.saturating_add(patience)).max(before);
        }
    }

    /// System time goes on by what the active children together take for `amount` bit-nanoseconds per second.
    #[inline]
    fn pass(&mut self, amount: u128) {
        let fine = (amount << 32) / u128::from(self.sum.max(1)) + u128::from(self.fraction);
        self.v = self.v.saturating_add(u64::try_from(fine >> 32).unwrap_or(u64::MAX));
        self.fraction = fine as u32;
    }

    /// Makes the children eligible whose start has come.
    #[inline]
    fn ripen(&mut self) {
        let Children::Heaps(heaps) = &mut self.children else { return };
        let finish = |child: &_| finish(child, self.largest);
        while let Some((_, slot)) = heaps.first_later().filter(|&(start, _)| start <= self.v) {
            heaps.remove(slot, finish);
            heaps.insert(slot, Heap::Due, finish);
        }
    }

    /// A child has packets: it begins where it left off, or at the system time of the moment since when it has them.
    #[inline]
    pub(crate) fn insert(&mut self, slot: SlotId, coming: &Coming) {
        self.advance(coming.now);
        let floor = self.v - self.passed_since(coming).min(self.v);
        self.children.raise(slot, floor);
        self.sum = self.sum.saturating_add(self.bits[slot].bits());
        self.place(slot);
    }

    /// How far V has gone since the child has had its packets.
    #[inline]
    fn passed_since(&self, coming: &Coming) -> u64 {
        let waited = coming.now.since(coming.since).as_u64();
        match self.clock {
            Clock::Real { drain, .. } if waited > 0 && self.sum > drain => {
                u64::try_from(u128::from(waited) * u128::from(drain) / u128::from(self.sum)).unwrap_or(waited)
            }
            Clock::Real { .. } => waited,
            Clock::Served => 0,
        }
    }

    /// Puts an active child where its start belongs.
    #[inline]
    fn place(&mut self, slot: SlotId) {
        self.take_out(slot);
        match &mut self.children {
            Children::Heaps(heaps) => {
                let due = heaps.children[slot].start <= self.v;
                let heap = if due { Heap::Due } else { Heap::Later };
                heaps.insert(slot, heap, |child| finish(child, self.largest));
            }
            Children::Rows(rows, jumps) => {
                rows.link(slot);
                if let Some(jumps) = jumps {
                    set_jumps(jumps, rows, &mut self.bits, slot);
                }
            }
        }
    }

    /// Takes a child from where its start belongs: before that may change.
    #[inline]
    fn take_out(&mut self, slot: SlotId) {
        match &mut self.children {
            Children::Heaps(heaps) => heaps.remove(slot, |child| finish(child, self.largest)),
            Children::Rows(rows, _) => rows.unlink(slot),
        }
    }

    /// The child `slot` is about to be served: others that are likely to follow, the farthest first. That one is being
    /// brought into the cache.
    #[inline]
    pub(crate) fn look_ahead(&mut self, slot: SlotId) -> [Option<SlotId>; 3] {
        let Children::Rows(rows, Some(jumps)) = &mut self.children else { return [None; 3] };
        let (group, ..) = rows.place(slot);
        let found = jumps.look(group, self.bits[slot].jump());
        if let [Some(far), ..] = found {
            self.prefetch(far);
        }
        found
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: SlotId) {
        match &self.children {
            Children::Heaps(heaps) => heaps.children.prefetch(slot),
            Children::Rows(rows, _) => rows.prefetch(slot),
        }
        self.bits.prefetch(slot);
    }

    #[inline]
    fn remove(&mut self, slot: SlotId) {
        self.take_out(slot);
        self.sum = self.sum.saturating_sub(self.bits[slot].bits());
    }

    /// The eligible child with the least finish.
    #[inline]
    pub(crate) fn pick(&mut self, now: Nanos) -> Option<SlotId> {
        self.advance(now);
        let mut first = self.first_due();
        if first.is_none() && !self.is_real() {
            // Work-conserving: the first child goes.
            self.v = self.v.max(self.first_start()?);
            self.ripen();
            first = self.first_due();
        }
        first.map(|(_, slot)| slot)
    }

    /// The child was picked and sent `len` bytes (0: it waits for a limit), and has more if it `stays`.
    #[inline]
    pub(crate) fn settle(&mut self, slot: SlotId, len: u64, stays: bool) {
        if len > 0 {
            self.take_out(slot);
            self.children.charge(slot, len);
            if let Clock::Served = self.clock {
                self.pass(u128::from(len * 8) * u128::from(NS_PER_SEC));
                self.ripen();
            }
        }
        if stays { self.place(slot) } else { self.remove(slot) }
    }

    /// Another rate for a child, in force at the next decision: what it owes is earned at the new one.
    pub(crate) fn set_rate(&mut self, slot: SlotId, rate: BitRate, now: Nanos) {
        self.advance(now);
        let active = self.children.is_queued(slot);
        // An eligible child stays so, even if V was held back meanwhile: the node counts on it.
        let due = matches!(&self.children, Children::Heaps(heaps) if heaps.is_due(slot));
        if active {
            self.remove(slot);
        }
        let before = core::mem::replace(&mut self.bits[slot], RateAndJump::new(bits(rate))).bits();
        let start = self.children.start(slot);
        let owes = start > self.v && !due;
        let start = if owes {
            let owed = u128::from(start - self.v) * u128::from(before);
            let wait = owed.div_ceil(u128::from(bits(rate)));
            self.v.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
        } else {
            start
        };
        self.children.begin_anew(slot, start, inverse(rate));
        self.join_group(slot);
        if active {
            self.sum = self.sum.saturating_add(bits(rate));
            match &mut self.children {
                Children::Heaps(heaps) if due => {
                    heaps.insert(slot, Heap::Due, |child| finish(child, self.largest))
                }
                Children::Rows(rows, _) if start <= self.v => rows.link_first(slot),
                _ => self.place(slot),
            }
        }
    }

    /// The node gets another rate at most.
    pub(crate) fn set_drain(&mut self, rate: BitRate, now: Nanos) {
        self.advance(now);
        if let Clock::Real { drain, .. } = &mut self.clock {
            *drain = rate.get();
        }
    }

    /// Nanoseconds of system time until the child's start.
    pub(crate) fn rank(&self, slot: SlotId) -> u64 {
        self.children.start(slot).saturating_sub(self.v)
    }
}

impl Children {
    fn new(form: Form, rates: &[BitRate]) -> Self {
        let inverses = rates.iter().map(|&rate| inverse(rate));
        match form {
            Form::Exact => Self::Heaps(Heaps::new(inverses)),
            Form::Grouped => Self::Rows(Rows::new(inverses, 0), JumpPointers::new(rates.len())),
        }
    }

    #[inline]
    fn is_queued(&self, slot: SlotId) -> bool {
        match self {
            Self::Heaps(heaps) => heaps.is_queued(slot),
            Self::Rows(rows, _) => rows.is_queued(slot),
        }
    }

    #[inline]
    fn start(&self, slot: SlotId) -> u64 {
        match self {
            Self::Heaps(heaps) => heaps.children[slot].start,
            Self::Rows(rows, _) => rows.children[slot].start,
        }
    }

    /// Brings a start that lies before `floor` up to it.
    #[inline]
    fn raise(&mut self, slot: SlotId, floor: u64) {
        match self {
            Self::Heaps(heaps) => raise(&mut heaps.children[slot], floor),
            Self::Rows(rows, _) => raise(&mut rows.children[slot], floor),
        }
    }

    #[inline]
    fn charge(&mut self, slot: SlotId, len: u64) {
        match self {
            Self::Heaps(heaps) => charge(&mut heaps.children[slot], len),
            Self::Rows(rows, _) => charge(&mut rows.children[slot], len),
        }
    }

    /// Gives a child, which must not be queued, another start and rate.
    fn begin_anew(&mut self, slot: SlotId, start: u64, inverse: u64) {
        match self {
            Self::Heaps(heaps) => begin_anew(&mut heaps.children[slot], start, inverse),
            Self::Rows(rows, _) => begin_anew(&mut rows.children[slot], start, inverse),
        }
    }
}

fn begin_anew<Place>(child: &mut Child<Place>, start: u64, inverse: u64) {
    (child.start, child.rest, child.inverse) = (start, 0, inverse);
}

#[inline]
fn raise<Place>(child: &mut Child<Place>, floor: u64) {
    if child.start < floor {
        (child.start, child.rest) = (floor, 0);
    }
}

/// Sets the jump pointers of a child that stands at the end of a row, and of the one that is to point to it.
#[inline]
fn set_jumps(jumps: &mut JumpPointers, rows: &Rows, bits: &mut Table<SlotId, RateAndJump>, slot: SlotId) {
    let (group, row, first) = rows.place(slot);
    bits[slot].set_jump(None);
    if let Some(before) = jumps.join(slot, group, row, first) {
        bits[before].set_jump(Some(slot));
    }
}

fn bits(rate: BitRate) -> u64 {
    rate.get().min(MOST_BITS)
}

/// Nanoseconds for a byte, in 2^-30, rounded up: a rate is never exceeded.
fn inverse(rate: BitRate) -> u64 {
    let inverse = (u128::from(8 * NS_PER_SEC) << FINE).div_ceil(bits(rate).into());
    u64::try_from(inverse).expect("8e9 * 2^30 is less than 2^63")
}

/// The time of `len` bytes, in 2^-30 of a nanosecond.
#[inline]
fn fine(inverse: u64, len: u64) -> u128 {
    u128::from(len) * u128::from(inverse)
}

#[inline]
fn charge<Place>(child: &mut Child<Place>, len: u64) {
    let fine = fine(child.inverse, len) + u128::from(child.rest);
    child.start = child.start.saturating_add(u64::try_from(fine >> FINE).unwrap_or(u64::MAX));
    child.rest = fine as u32 & ((1 << FINE) - 1);
}

/// When a largest packet would be through, at its rate.
#[inline]
fn finish(child: &Child<Cell>, largest: u64) -> u64 {
    let span = fine(child.inverse, largest) >> FINE;
    child.start.saturating_add(u64::try_from(span).unwrap_or(u64::MAX))
}
