//! The trigger: tells when a core, or a group of cores, is overloaded.
//!
//! Why: heavy hitters are asked for and chosen only while something suffers from them.
//! From: MIMIC §II, which leaves the thresholds open; 80 % and 70 % are ours.
//! Not here: measuring CPU time, and which flows are the cause (`choice`).
//! Invariant: an overload begins at `on_at` or above, and ends below `off_below` only.
//!
//! **The load that counts** is that of the last milliseconds, newer ones more than older ones: at each poll what was there before
//! counts for less, by the poll's part of [`MEMORY`]. Packets come in bursts. A segment of 64 kB that was cut keeps a slow core
//! busy for some milliseconds and idle for others, and one poll shows the one or the other. A poll over [`MEMORY`] or longer
//! counts alone. A core that goes from 60 % to 90 % is found overloaded in 2 ms, one from 0 to 100 % in 3 ms.

use plimsoll_units::Span;

use crate::{PerMille, WHOLE};

/// The use of capacity at which an overload begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// An overload begins at this use of the capacity or above.
    pub on_at: PerMille,
    /// An overload ends below this use of the capacity. A value above `on_at` it counts as `on_at`.
    pub off_below: PerMille,
}

impl Default for Thresholds {
    /// 80 % and 70 %.
    fn default() -> Self {
        Self { on_at: 800, off_below: 700 }
    }
}

/// What a poll of a [`Trigger`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// There is no overload.
    #[default]
    None,
    /// An overload begins with this poll.
    Begins,
    /// An overload that began earlier lasts.
    Lasts,
    /// An overload ends with this poll.
    Ends,
}

impl Overload {
    /// Whether the watched thing is overloaded now.
    #[must_use]
    pub const fn is_on(self) -> bool {
        matches!(self, Self::Begins | Self::Lasts)
    }
}

/// Watches the CPU use of one core, or of a control group with several.
///
/// Polled once a millisecond. A source that is updated less often than it is polled must be read less often: otherwise it
/// shows no use in one poll and twice the use in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger {
    thresholds: Thresholds,
    capacity: u32,
    /// Time that it was busy, and time that passed, in the last milliseconds.
    busy: Span,
    over: Span,
    on: bool,
}

impl Trigger {
    /// Watches a thing that may use `capacity` thousandths of a core: 1,000 for one core, 2,500 for two and a half. Zero counts
    /// as one thousandth.
    #[must_use]
    pub fn new(thresholds: Thresholds, capacity: u32) -> Self {
        let off_below = thresholds.off_below.min(thresholds.on_at);
        let thresholds = Thresholds { off_below, ..thresholds };
        Self { thresholds, capacity: capacity.max(1), busy: Span::ZERO, over: Span::ZERO, on: false }
    }

    /// Handles one poll: the watched thing was busy for `busy`, summed over its cores, in the last `over` of time. A poll over
    /// no time changes nothing.
    pub fn poll(&mut self, busy: Span, over: Span) -> Overload {
        let before = self.on;
        if over > Span::ZERO {
            self.busy = left_of(self.busy, over) + busy;
            self.over = left_of(self.over, over) + over;
            let used = self.used();
            let Thresholds { on_at, off_below } = self.thresholds;
            self.on = used >= if before { off_below } else { on_at };
        }
        match (before, self.on) {
            (false, false) => Overload::None,
            (false, true) => Overload::Begins,
            (true, true) => Overload::Lasts,
            (true, false) => Overload::Ends,
        }
    }

    /// The load that counts: thousandths of the capacity.
    #[must_use]
    pub fn used(&self) -> PerMille {
        utilization(self.busy, self.over, self.capacity)
    }

    /// Whether the last poll found an overload.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.on
    }

    /// The thresholds.
    #[must_use]
    pub const fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// Thousandths of a core that the watched thing may use.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.capacity
    }
}

/// The time over which the load counts: longer than the bursts of a slow core, and short beside 10 ms, in which an overload is to
/// be over (MI-E10).
const MEMORY: Span = Span::millis(2);

/// What is left of a sum after a poll over this time.
fn left_of(sum: Span, over: Span) -> Span {
    let kept = u128::from(MEMORY.as_u64().saturating_sub(over.as_u64()));
    let left = u128::from(sum.as_u64()) * kept / u128::from(MEMORY.as_u64());
    Span::ns(u64::try_from(left).unwrap_or(u64::MAX))
}

/// The part of `capacity` (in thousandths of a core) that `busy` time in `over` is, rounded down; zero over no time. Saturates;
/// above 1,000 where more was used than the capacity.
#[must_use]
pub fn utilization(busy: Span, over: Span, capacity: u32) -> PerMille {
    let busy = u128::from(busy.as_u64()) * u128::from(WHOLE * WHOLE);
    let could = u128::from(over.as_u64()) * u128::from(capacity);
    busy.checked_div(could).map_or(0, |used| PerMille::try_from(used).unwrap_or(PerMille::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What polls each 2 ms find, with the core busy for these thousandths of the time.
    fn states(trigger: &mut Trigger, busy: &[u64]) -> Vec<Overload> {
        busy.iter().map(|&busy| trigger.poll(Span::micros(2 * busy), MEMORY)).collect()
    }

    /// Polls each millisecond until the overload begins.
    fn polls_until_overload(trigger: &mut Trigger, busy: u64) -> usize {
        (1..).find(|_| trigger.poll(Span::micros(busy), Span::millis(1)).is_on()).expect("it begins")
    }

    #[test]
    fn begins_at_80_percent_and_ends_below_70() {
        use Overload::{Begins, Ends, Lasts, None};
        let mut core = Trigger::new(Thresholds::default(), 1_000);
        let busy = [799, 800, 750, 700, 699, 750, 799, 1_000, 0];
        assert_eq!(states(&mut core, &busy), [None, Begins, Lasts, Lasts, Ends, None, None, Begins, Ends]);
    }

    #[test]
    fn an_overload_is_found_within_milliseconds() {
        for (before, then, polls) in [(600, 900, 2), (0, 1_000, 3), (600, 1_000, 2), (790, 810, 2)] {
            let mut core = Trigger::new(Thresholds::default(), 1_000);
            for _ in 0..100 {
                core.poll(Span::micros(before), Span::millis(1));
            }
            assert_eq!(polls_until_overload(&mut core, then), polls, "from {before} to {then}");
        }
    }

    /// Half of the load in bursts of 2.7 ms, and nine tenths of it, most of it in each other millisecond.
    #[test]
    fn bursts_are_no_overload_and_gaps_between_them_do_not_end_one() {
        let mut core = Trigger::new(Thresholds::default(), 1_000);
        let half = [1_000, 1_000, 700, 0, 0, 0].into_iter().cycle().take(600);
        let found: Vec<bool> =
            half.map(|busy| core.poll(Span::micros(busy), Span::millis(1)).is_on()).collect();
        assert!(!found[6..].contains(&true), "{found:?}");
        let mut core = Trigger::new(Thresholds::default(), 1_000);
        let most = [1_400, 400].into_iter().cycle().take(600);
        let found: Vec<bool> =
            most.map(|busy| core.poll(Span::micros(busy), Span::millis(1)).is_on()).collect();
        assert!(!found.contains(&false), "{found:?}");
    }

    #[test]
    fn a_group_of_two_and_a_half_cores_is_overloaded_from_two() {
        let mut group = Trigger::new(Thresholds::default(), 2_500);
        assert_eq!(states(&mut group, &[1_999, 2_000]), [Overload::None, Overload::Begins]);
        assert_eq!(utilization(Span::micros(2_500), Span::millis(1), 2_500), 1_000);
    }

    #[test]
    fn a_poll_over_no_time_changes_nothing() {
        let mut core = Trigger::new(Thresholds::default(), 1_000);
        assert_eq!(core.poll(Span::secs(1), Span::ZERO), Overload::None);
        core.poll(Span::millis(1), Span::millis(1));
        assert_eq!(core.poll(Span::ZERO, Span::ZERO), Overload::Lasts);
    }

    proptest! {
        /// Whatever is measured and configured: begins once before it ends, and what it says agrees with its state.
        #[test]
        fn begins_and_ends_in_turns(
            (on_at, off_below, capacity) in any::<(u32, u32, u32)>(),
            polls in proptest::collection::vec(any::<(u64, u64)>(), 1..100),
        ) {
            let mut trigger = Trigger::new(Thresholds { on_at, off_below }, capacity);
            let mut on = false;
            for (busy, over) in polls {
                let found = trigger.poll(Span::ns(busy), Span::ns(over));
                prop_assert_eq!(matches!(found, Overload::Lasts | Overload::Ends), on);
                on = found.is_on();
                prop_assert_eq!(trigger.is_on(), on);
            }
        }
    }
}
