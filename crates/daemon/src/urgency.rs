//! Whether the engine's thread is scheduled before all ordinary threads, and whether it spins.
//!
//! Why: behind another process's slice a paced packet is milliseconds late, and a limit loses what its burst does not
//! cover (docs/performance.md, "What limits accuracy, live").
//! From: the kernel's real-time throttling; the thread gives way instead of being stopped.
//! Not here: the system call (`plimsoll_ports::realtime`), waiting (`wait`).
//! Invariant: a thread that uses more than [`MOST`] of its core in a [`LOOK`] first stops spinning. If it uses more in the
//! next one too, it gives up its priority, for at least [`PENANCE`] looks and until it uses less than [`LITTLE`]. Where a
//! delay target leaves no time for a wake-up, the thread goes on spinning and gives up its priority at once.

use nix::time::{ClockId, clock_gettime};
use plimsoll_ports::realtime;
use plimsoll_units::{Nanos, Span};

/// How often the thread's use of its core is measured: a burst of some tens of milliseconds must not count as need. The
/// thread gives up its priority after two of these, so other threads wait for the core for at most that time.
const LOOK: Span = Span::millis(100);

/// Parts of a core, in thousandths. Above `MOST` the thread goes one step down. Below `LITTLE` it takes its priority back,
/// and below `HARDLY_ANY` it spins again. Beside another thread that never sleeps, a thread without priority gets half of
/// the core, 500; that is below `LITTLE`, so a thread that needs less than `MOST` always gets its priority back.
const MOST: u64 = 850;
const LITTLE: u64 = 600;
const HARDLY_ANY: u64 = 150;

/// The least number of looks without priority: a thread that needs all of a core has priority in one look of about this many.
const PENANCE: u8 = 5;

/// The calling thread's standing, and how much of its core it uses.
#[derive(Debug)]
pub(crate) struct Urgency {
    standing: Standing,
    /// Whether a delay target leaves no time for a wake-up.
    fine: bool,
    /// When the thread's use was last looked at, and what it had used by then.
    looked: Nanos,
    used: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Ordinary, as the kernel allows nothing else.
    Ordinary,
    /// Before all ordinary threads, and spinning for events that are nearer than a wake-up costs.
    First,
    /// Before all ordinary threads, without spinning: a limit's burst makes up for the wake-up, but not for a lost core.
    Thrifty,
    /// Among the ordinary threads, for at least this many more looks.
    GivenWay(u8),
}

impl Urgency {
    /// For the calling thread, which goes first from now on if it may and `wanted`.
    pub(crate) fn of_this_thread(wanted: bool, now: Nanos) -> Self {
        let first = wanted && realtime::take().is_ok();
        let standing = if first { Standing::First } else { Standing::Ordinary };
        Self { standing, fine: false, looked: now, used: used() }
    }

    /// Whether to spin for what is nearer than a wake-up costs.
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.fine || matches!(self.standing, Standing::First | Standing::Ordinary)
    }

    /// To be called often: gives way to others once the thread needs most of its core, and no longer than that. `fine`: a
    /// delay target leaves no time for a wake-up.
    #[inline]
    pub(crate) fn look(&mut self, fine: bool, now: Nanos) {
        self.fine = fine;
        if self.standing != Standing::Ordinary && now.since(self.looked) >= LOOK {
            self.weigh(now, used());
        }
    }

    #[cold]
    fn weigh(&mut self, now: Nanos, used: Span) {
        let next = after(self.standing, self.fine, used - self.used, now.since(self.looked));
        (self.looked, self.used) = (now, used);
        let changed = match (self.standing, next) {
            (Standing::GivenWay(_), Standing::First | Standing::Thrifty) => realtime::take(),
            (Standing::First | Standing::Thrifty, Standing::GivenWay(_)) => realtime::give_back(),
            _ => Ok(()),
        };
        // If the kernel refuses the change, the thread stays as it is.
        self.standing = if changed.is_ok() { next } else { Standing::Ordinary };
    }
}

/// The next standing of a thread that has used `used` of a core in `span`.
fn after(standing: Standing, fine: bool, used: Span, span: Span) -> Standing {
    let thousandths = used.as_u64().saturating_mul(1_000) / span.as_u64().max(1);
    match standing {
        Standing::First if thousandths > MOST && !fine => Standing::Thrifty,
        Standing::First | Standing::Thrifty if thousandths > MOST => Standing::GivenWay(PENANCE - 1),
        Standing::GivenWay(0) if thousandths < LITTLE && fine => Standing::First,
        Standing::GivenWay(0) if thousandths < LITTLE => Standing::Thrifty,
        Standing::GivenWay(looks) => Standing::GivenWay(looks.saturating_sub(1)),
        Standing::Thrifty if thousandths < HARDLY_ANY => Standing::First,
        same => same,
    }
}

/// Processor time of the calling thread.
fn used() -> Span {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(std::time::Duration::from);
    Span::ns(time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_down_a_step_above_most_of_a_core_and_up_again_below_little() {
        use Standing::{First, GivenWay, Ordinary, Thrifty};
        let after = |standing, millis| after(standing, false, Span::millis(millis), LOOK);
        assert_eq!([after(First, 85), after(First, 86), after(Thrifty, 86)], [First, Thrifty, GivenWay(4)]);
        assert_eq!([after(GivenWay(4), 0), after(GivenWay(0), 70)], [GivenWay(3), GivenWay(0)]);
        assert_eq!([after(GivenWay(0), 59), after(Thrifty, 59)], [Thrifty, Thrifty]);
        assert_eq!([after(Thrifty, 16), after(Thrifty, 12)], [Thrifty, First]);
        assert_eq!([after(Ordinary, 0), after(Ordinary, 100)], [Ordinary; 2]);
    }

    #[test]
    fn one_that_keeps_fine_time_goes_on_spinning_as_an_ordinary_thread() {
        use Standing::{First, GivenWay, Thrifty};
        let after = |standing, millis| after(standing, true, Span::millis(millis), LOOK);
        assert_eq!(
            [after(First, 85), after(First, 86), after(Thrifty, 86)],
            [First, GivenWay(4), GivenWay(4)]
        );
        assert_eq!([after(GivenWay(0), 100), after(GivenWay(0), 50)], [GivenWay(0), First]);
        let mut urgency = Urgency::of_this_thread(false, Nanos::ZERO);
        urgency.standing = GivenWay(4);
        assert!(!urgency.spins());
        urgency.look(true, Nanos::ZERO);
        assert!(urgency.spins());
    }

    /// Shares of the core, in thousandths, that a thread gets and of the time for which it goes first, in a minute beside
    /// a thread that never sleeps, when it needs so much.
    fn beside_a_busy_one(mut standing: Standing, fine: bool, need: u64) -> (u64, u64) {
        let (mut used, mut first) = (0, 0);
        for _ in 0..600 {
            let goes_first = matches!(standing, Standing::First | Standing::Thrifty);
            let gets = if goes_first { need } else { need.min(500) };
            (used, first) = (used + gets, first + u64::from(goes_first));
            standing = after(standing, fine, Span::micros(gets * 100), LOOK);
        }
        (used / 600, first * 1_000 / 600)
    }

    #[test]
    fn a_core_is_never_taken_and_priority_is_not_lost_for_good() {
        for fine in [false, true] {
            let (used, first) = beside_a_busy_one(Standing::First, fine, 1_000);
            assert!(used < 600 && first < 200, "one that needs all of a core: {used}, first for {first}");
        }
        let (used, first) = beside_a_busy_one(Standing::GivenWay(4), false, 800);
        assert!(used > 790 && first > 980, "one that had needed more once: {used}, first for {first}");
    }

    #[test]
    fn a_thread_that_never_sleeps_gives_way() {
        let spun = std::thread::spawn(|| {
            let clock = crate::thread::Clock::default();
            let mut urgency = Urgency::of_this_thread(true, clock.now());
            let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
            while std::time::Instant::now() < end
                && !matches!(urgency.standing, Standing::GivenWay(_) | Standing::Ordinary)
            {
                urgency.look(false, clock.now());
            }
            urgency.standing
        });
        let standing = spun.join().expect("the thread ends");
        assert!(matches!(standing, Standing::GivenWay(_) | Standing::Ordinary), "{standing:?}");
    }
}
