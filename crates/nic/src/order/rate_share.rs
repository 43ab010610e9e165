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
use prefetch_index::prefetch_index;

use super::Coming;
use super::heaps::{Heap, Heaps};
use super::rows::{Kid, Rows};
use super::scout::{NAME_BITS, RateAndName, Scout};
use crate::ids::TimerId;

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
    /// Rates, by child: needed only when one comes or goes. With the child that the scout sees from there.
    bits: Vec<RateAndName>,
    /// The children's starts, and which of them are active.
    rows: Rows,
    /// In the exact form, instead of rows.
    exact: Option<Heaps>,
    /// In the grouped form, with many children.
    scout: Option<Box<Scout>>,
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
const MOST_BITS: u64 = (1 << (64 - NAME_BITS)) - 1;

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
            bits: rates.iter().map(|&rate| RateAndName::new(bits(rate))).collect(),
            rows: Rows::new(rates.iter().map(|&rate| inverse(rate))),
            exact: (form == Form::Exact).then(Heaps::default),
            scout: if form == Form::Exact { None } else { Scout::new(rates.len()) },
        };
        (0..rates.len() as u32).for_each(|slot| made.join_group(slot));
        made
    }

    fn join_group(&mut self, slot: u32) {
        if self.exact.is_none() {
            let longest = fine(self.rows.kids[slot as usize].inverse, self.largest) >> FINE;
            self.rows.join_group(slot, u64::try_from(longest).unwrap_or(u64::MAX));
            if let Some(scout) = &mut self.scout {
                scout.reserve(self.rows.groups());
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
    fn first_due(&self) -> Option<(u64, u32)> {
        match &self.exact {
            Some(heaps) => heaps.first_due(&self.rows.kids, |kid| finish(kid, self.largest)),
            None => self.rows.best_started(self.v),
        }
    }

    /// The least start of those that are not eligible; in the grouped form of all.
    #[inline]
    fn first_start(&self) -> Option<u64> {
        match &self.exact {
            Some(heaps) => heaps.first_later(&self.rows.kids).map(|(start, _)| start),
            None => self.rows.first_of_all(),
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

    /// Moves those whose start has come to those that are due.
    #[inline]
    fn ripen(&mut self) {
        let (Some(heaps), kids, largest) = (&mut self.exact, &mut self.rows.kids, self.largest) else {
            return;
        };
        while let Some((_, slot)) = heaps.first_later(kids).filter(|&(start, _)| start <= self.v) {
            heaps.remove(kids, slot, |kid| finish(kid, largest));
            heaps.insert(kids, slot, Heap::Due, |kid| finish(kid, largest));
        }
    }

    /// A child has packets: it begins where it left off, or at the system time of the moment since when it has them.
    #[inline]
    pub(crate) fn insert(&mut self, slot: u32, coming: &Coming) {
        self.advance(coming.now);
        let floor = self.v - self.passed_since(coming).min(self.v);
        let kid = &mut self.rows.kids[slot as usize];
        if kid.start < floor {
            (kid.start, kid.rest) = (floor, 0);
        }
        self.sum = self.sum.saturating_add(self.bits[slot as usize].bits());
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
    fn place(&mut self, slot: u32) {
        self.take_out(slot);
        if self.exact.is_some() {
            let due = self.rows.kids[slot as usize].start <= self.v;
            self.put(slot, if due { Heap::Due } else { Heap::Later });
        } else {
            self.rows.link(slot);
            self.tell_scout(slot);
        }
    }

    /// Puts a child, in the exact form, into a heap.
    #[inline]
    fn put(&mut self, slot: u32, heap: Heap) {
        let largest = self.largest;
        if let Some(heaps) = &mut self.exact {
            heaps.insert(&mut self.rows.kids, slot, heap, |kid| finish(kid, largest));
        }
    }

    /// Takes a child from where its start belongs: before that may change.
    #[inline]
    fn take_out(&mut self, slot: u32) {
        let largest = self.largest;
        match &mut self.exact {
            Some(heaps) => heaps.remove(&mut self.rows.kids, slot, |kid| finish(kid, largest)),
            None => self.rows.unlink(slot),
        }
    }

    /// A child stands at the end of a row.
    #[inline]
    fn tell_scout(&mut self, slot: u32) {
        if let Some(scout) = &mut self.scout {
            let (group, row, first) = self.rows.kids[slot as usize].place();
            self.bits[slot as usize].set_name(None);
            if let Some(before) = scout.join(slot, group, row, first) {
                self.bits[before as usize].set_name(Some(slot));
            }
        }
    }

    /// The child `slot` is about to be served: others that are likely to follow, the farthest first. That one is being
    /// brought into the cache.
    #[inline]
    pub(crate) fn look_ahead(&mut self, slot: u32) -> [Option<u32>; 3] {
        let Some(scout) = &mut self.scout else { return [None; 3] };
        let (group, ..) = self.rows.kids[slot as usize].place();
        let found = scout.look(group, self.bits[slot as usize].name());
        if let [Some(far), ..] = found {
            self.prefetch(far);
        }
        found
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        self.rows.prefetch(slot);
        prefetch_index(&self.bits, slot as usize);
    }

    #[inline]
    fn remove(&mut self, slot: u32) {
        self.take_out(slot);
        self.sum = self.sum.saturating_sub(self.bits[slot as usize].bits());
    }

    /// The eligible child with the least finish.
    #[inline]
    pub(crate) fn pick(&mut self, now: Nanos) -> Option<u32> {
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
    pub(crate) fn settle(&mut self, slot: u32, len: u64, stays: bool) {
        if len > 0 {
            self.take_out(slot);
            charge(&mut self.rows.kids[slot as usize], len);
            if let Clock::Served = self.clock {
                self.pass(u128::from(len * 8) * u128::from(NS_PER_SEC));
                self.ripen();
            }
        }
        if stays { self.place(slot) } else { self.remove(slot) }
    }

    /// Another rate for a child, in force at the next decision: what it owes is earned at the new one.
    pub(crate) fn set_rate(&mut self, slot: u32, rate: BitRate, now: Nanos) {
        self.advance(now);
        let active = self.rows.is_queued(slot);
        // An eligible child stays so, even if V was held back meanwhile: the node counts on it.
        let due = self.exact.is_some() && Heaps::is_due(&self.rows.kids[slot as usize]);
        if active {
            self.remove(slot);
        }
        let before = core::mem::replace(&mut self.bits[slot as usize], RateAndName::new(bits(rate))).bits();
        let (v, kid) = (self.v, &mut self.rows.kids[slot as usize]);
        (kid.inverse, kid.rest) = (inverse(rate), 0);
        if kid.start > v && !due {
            let owed = u128::from(kid.start - v) * u128::from(before);
            let wait = owed.div_ceil(u128::from(bits(rate)));
            kid.start = v.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
        }
        self.join_group(slot);
        if active {
            self.sum = self.sum.saturating_add(bits(rate));
            match &self.exact {
                Some(_) if due => self.put(slot, Heap::Due),
                None if self.rows.kids[slot as usize].start <= v => self.rows.link_first(slot),
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
    pub(crate) fn rank(&self, slot: u32) -> u64 {
        self.rows.kids[slot as usize].start.saturating_sub(self.v)
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
fn charge(kid: &mut Kid, len: u64) {
    let fine = fine(kid.inverse, len) + u128::from(kid.rest);
    kid.start = kid.start.saturating_add(u64::try_from(fine >> FINE).unwrap_or(u64::MAX));
    kid.rest = fine as u32 & ((1 << FINE) - 1);
}

/// When a largest packet would be through, at its rate.
#[inline]
fn finish(kid: &Kid, largest: u64) -> u64 {
    let span = fine(kid.inverse, largest) >> FINE;
    kid.start.saturating_add(u64::try_from(span).unwrap_or(u64::MAX))
}
