//! Which thread each tenant is on, and when one moves to another.
//!
//! Why: threads are equal only while their tenants' work is; a tenant that grows must not fill its thread while others idle.
//! From: Linux' load balancing: the busiest gives to the idlest, one at a time, and only what makes them more equal.
//! Not here: packets. The thread that a tenant leaves stops reading its port, and says when nothing of the tenant is left in its
//! engine ([`Spread::handle_drained`]); only then the new thread reads the port. So all packets of a tenant leave in order.
//! Invariant: a tenant is read by one thread at most; the same loads give the same moves.

use plimsoll_units::{Nanos, Span};

/// The threads of all tenants.
#[derive(Clone, Debug)]
pub struct Spread {
    tenants: Vec<Seat>,
    /// The work of each thread's tenants.
    threads: Vec<u64>,
    period: Span,
    /// When threads are compared next.
    due: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    thread: u32,
    /// The thread to which it is moving.
    to: Option<u32>,
    /// Its work in a period, on average over some periods.
    work: u64,
    /// When it may move again.
    rests_until: Nanos,
}

/// A tenant leaves a thread for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The tenant's index.
    pub tenant: usize,
    /// Its thread now, which stops reading its port.
    pub from: usize,
    /// Its next thread.
    pub to: usize,
}

/// How many periods a tenant stays where it came to.
const REST: u64 = 20;

/// The part of the busiest thread's work by which another one must have less before a tenant moves.
const UNEQUAL: u64 = 8;

impl Spread {
    /// Tenants on the threads `seats`, of `threads`, which are compared once in a `period`.
    #[must_use]
    pub fn new(seats: impl IntoIterator<Item = usize>, threads: usize, period: Span) -> Self {
        let threads = threads.max(1);
        let seat = |thread: usize| Seat {
            thread: thread.min(threads - 1) as u32,
            to: None,
            work: 0,
            rests_until: Nanos::ZERO,
        };
        Self {
            tenants: seats.into_iter().map(seat).collect(),
            threads: vec![0; threads],
            period,
            due: Nanos::ZERO + period,
        }
    }

    /// The thread that reads a tenant's port; none while it moves.
    #[must_use]
    pub fn reader(&self, tenant: usize) -> Option<usize> {
        self.tenants.get(tenant).filter(|seat| seat.to.is_none()).map(|seat| seat.thread as usize)
    }

    /// A tenant's work since the last call: packets, or its part of the thread's time.
    pub fn handle_work(&mut self, tenant: usize, work: u64) {
        if let Some(seat) = self.tenants.get_mut(tenant) {
            seat.work = seat.work - seat.work / 4 + work / 4;
        }
    }

    /// When [`Spread::handle_period`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        self.due
    }

    /// Compares threads, once in a period. Returns the tenant that begins to move, if one does. Linear in tenants.
    pub fn handle_period(&mut self, now: Nanos) -> Option<Move> {
        if now < self.due {
            return None;
        }
        self.due = now + self.period;
        self.threads.fill(0);
        for seat in &self.tenants {
            self.threads[seat.to.unwrap_or(seat.thread) as usize] += seat.work;
        }
        let all = || self.threads.iter().copied().enumerate();
        let (from, most) = all().max_by_key(|&(thread, work)| (work, core::cmp::Reverse(thread)))?;
        let (to, least) = all().min_by_key(|&(thread, work)| (work, thread))?;
        let gap = most - least;
        if gap <= most / UNEQUAL {
            return None;
        }
        let may = |seat: &&Seat| {
            seat.thread as usize == from && seat.to.is_none() && seat.rests_until <= now && seat.work > 0
        };
        // The move that leaves the two most equal; one of the whole gap would only change their places.
        let left = |seat: &Seat| gap.abs_diff(2 * seat.work);
        let movable = self.tenants.iter().enumerate().filter(|(_, seat)| may(seat));
        let (tenant, seat) = movable.min_by_key(|&(tenant, seat)| (left(seat), tenant))?;
        if left(seat) >= gap {
            return None;
        }
        let seat = &mut self.tenants[tenant];
        (seat.to, seat.rests_until) = (Some(to as u32), now + self.period.times(REST));
        Some(Move { tenant, from, to })
    }

    /// The tenant that begins to move stays where it is: nothing of it may move now.
    pub fn handle_stayed(&mut self, tenant: usize) {
        if let Some(seat) = self.tenants.get_mut(tenant) {
            seat.to = None;
        }
    }

    /// Nothing of a moving tenant is left in the engine of its old thread: its new thread reads its port from now on.
    pub fn handle_drained(&mut self, tenant: usize) {
        if let Some(seat) = self.tenants.get_mut(tenant) {
            seat.thread = seat.to.take().unwrap_or(seat.thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Span = Span::millis(10);

    fn in_turns(tenants: usize, threads: usize) -> Spread {
        Spread::new((0..tenants).map(|tenant| tenant % threads), threads, PERIOD)
    }

    fn period(n: u64) -> Nanos {
        Nanos::ZERO + PERIOD.times(n)
    }

    #[test]
    fn the_tenant_that_makes_threads_equal_moves() {
        // Tenants 0, 2 and 4 are on thread 0, and 1, 3 and 5 on thread 1.
        let mut spread = in_turns(6, 2);
        for (tenant, work) in [(0, 800), (2, 200), (4, 100), (1, 100), (3, 100), (5, 100)] {
            spread.handle_work(tenant, 4 * work);
        }
        // 1,100 and 300: to give 200 leaves 900 and 500; to give 800 leaves 300 and 1,100.
        assert_eq!(spread.handle_period(period(1)), Some(Move { tenant: 2, from: 0, to: 1 }));
        assert_eq!((spread.reader(2), spread.reader(0)), (None, Some(0)));
        spread.handle_drained(2);
        assert_eq!(spread.reader(2), Some(1));
        // 900 and 500: 100 make 800 and 600.
        assert_eq!(spread.handle_period(period(2)), Some(Move { tenant: 4, from: 0, to: 1 }));
        assert_eq!(spread.handle_period(period(3)), None, "800 alone would only change places");
    }

    #[test]
    fn equal_threads_keep_their_tenants() {
        let mut spread = in_turns(8, 4);
        (0..8).for_each(|tenant| spread.handle_work(tenant, 1_000));
        assert!((1..50).all(|n| spread.handle_period(period(n)).is_none()));
    }

    proptest::proptest! {
        /// Whatever the work, moves come to an end, and none makes the busiest thread busier.
        #[test]
        fn moves_end(
            works in proptest::collection::vec(0_u64..1_000_000, 1..60),
            threads in 1_usize..17,
        ) {
            let mut spread = in_turns(works.len(), threads);
            works.iter().enumerate().for_each(|(tenant, &work)| spread.handle_work(tenant, work));
            let busiest = |spread: &Spread| {
                let mut all = vec![0; threads];
                spread.tenants.iter().for_each(|seat| all[seat.thread as usize] += seat.work);
                all.into_iter().max()
            };
            let (mut before, mut last) = (busiest(&spread), 0);
            for n in 1..2_000 {
                if let Some(Move { tenant, .. }) = spread.handle_period(period(n)) {
                    spread.handle_drained(tenant);
                    last = n;
                }
                let now = busiest(&spread);
                proptest::prop_assert!(now <= before);
                before = now;
            }
            proptest::prop_assert!(last < 1_900, "moves went on until period {last}");
        }
    }
}
