//! CoDel: decides for each packet that leaves a queue whether it passes, is marked, or is dropped.
//!
//! Why: a sender that fills a queue learns from a mark or a drop that it should slow down, before the queue grows long.
//! From: RFC 8289 (CoDel) §5; RFC 3168 (marks in place of drops); RFC 9331 §5 (L4S: `ECT(1)` is marked at a shallow threshold).
//! Not here: the queue itself, and writing the mark into a packet.
//! Invariant: a packet is marked or dropped only after its queue's packets have waited at least `target` for a whole `interval`;
//! the n-th such packet of a run comes `interval / sqrt(n)` after the one before it.

use plimsoll_units::{Nanos, Span};

/// The two times that CoDel is set by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodelTimes {
    /// How long packets may wait at all times.
    pub target: Span,
    /// How long they may wait for longer than the target before one is marked or dropped; about the longest round trip.
    pub interval: Span,
}

/// A packet that leaves its queue, as far as CoDel looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// How long it has waited.
    pub waited: Span,
    /// Whether more than one packet of the largest size waits behind it. A shorter queue is never too long.
    pub backlogged: bool,
    /// Its ECN field.
    pub ecn: Markable,
}

/// Whether a packet may be marked, by its ECN field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Markable {
    /// Its sender does not understand marks (Not-ECT, or not IP).
    #[default]
    No,
    /// A mark counts as a drop (`ECT(0)`, RFC 3168), or the packet is marked already.
    Classic,
    /// A mark asks for a small step, and marks are expected often (`ECT(1)`, RFC 9331).
    Scalable,
}

/// What becomes of a packet that leaves its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves as it is.
    #[default]
    Pass,
    /// It leaves with a mark: congestion experienced.
    Mark,
    /// It is dropped. The next packet of its queue is asked about at once.
    Drop,
}

/// CoDel's state for one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codel {
    /// When packets will have waited too long for a whole interval; 0 while they do not.
    first_above: u64,
    /// When the next packet is marked or dropped, while `dropping`.
    next: u64,
    /// Packets marked or dropped in this run.
    count: u32,
    /// `count` when the run began.
    begun_with: u32,
    dropping: bool,
    /// Whether `next` still has to be moved on after a drop: only if the packet after it has waited too long as well.
    owes_step: bool,
}

impl Codel {
    /// Decides about a packet that leaves its queue. `now` must not run backwards. Constant time.
    ///
    /// After [`Verdict::Drop`] the caller asks about the next packet before it sends one: RFC 8289's loop, turned inside out.
    #[inline]
    pub fn decide(&mut self, times: &CodelTimes, leaving: Leaving, now: Nanos) -> Verdict {
        let too_long = self.is_too_long(times, leaving, now);
        if leaving.ecn == Markable::Scalable {
            let marked = leaving.backlogged && leaving.waited >= times.step();
            return if marked { Verdict::Mark } else { Verdict::Pass };
        }
        if !too_long {
            (self.dropping, self.owes_step) = (false, false);
            return Verdict::Pass;
        }
        self.act(times, leaving, now.as_u64())
    }

    /// Whether packets have waited at least `target` for an interval (`dodequeue` of RFC 8289 §5.6).
    #[inline]
    fn is_too_long(&mut self, times: &CodelTimes, leaving: Leaving, now: Nanos) -> bool {
        if leaving.waited < times.target || !leaving.backlogged {
            self.first_above = 0;
            return false;
        }
        if self.first_above == 0 {
            self.first_above = (now + times.interval).as_u64();
            return false;
        }
        now.as_u64() >= self.first_above
    }

    fn act(&mut self, times: &CodelTimes, leaving: Leaving, now: u64) -> Verdict {
        if !self.dropping {
            // A run that follows soon after another goes on about where that one ended.
            let since = now.saturating_sub(self.next);
            let added = self.count.saturating_sub(self.begun_with);
            let soon = since < times.interval.as_u64().saturating_mul(SOON);
            self.count = if added > 1 && soon { added } else { 1 };
            (self.begun_with, self.dropping) = (self.count, true);
            self.next = times.after(now, self.count);
            return signal(leaving.ecn);
        }
        if core::mem::take(&mut self.owes_step) {
            self.next = times.after(self.next, self.count);
        }
        if now < self.next {
            return Verdict::Pass;
        }
        self.count = self.count.saturating_add(1);
        let verdict = signal(leaving.ecn);
        if verdict == Verdict::Mark {
            self.next = times.after(self.next, self.count);
        } else {
            self.owes_step = true;
        }
        verdict
    }
}

fn signal(ecn: Markable) -> Verdict {
    if ecn == Markable::No { Verdict::Drop } else { Verdict::Mark }
}

impl CodelTimes {
    /// RFC 8289's own: 5 ms and 100 ms.
    pub const DEFAULT: Self = Self { target: Span::millis(5), interval: Span::millis(100) };

    /// `interval / sqrt(count)` after `at`, rounded down (`control_law` of RFC 8289 §5.6).
    fn after(&self, at: u64, count: u32) -> u64 {
        at.saturating_add(self.step_after(count))
    }

    /// floor(i / sqrt(n)) is floor(sqrt(floor(i^2 / n))): an integer's square is at most a fraction exactly if it is at most
    /// that fraction rounded down.
    fn step_after(&self, count: u32) -> u64 {
        let (interval, count) = (self.interval.as_u64(), count.max(1));
        if interval >> 32 == 0 {
            return (interval * interval / u64::from(count)).isqrt();
        }
        let square = u128::from(interval) * u128::from(interval) / u128::from(count);
        u64::try_from(square.isqrt()).unwrap_or(u64::MAX)
    }

    /// The wait from which on packets that are `ECT(1)` are marked: a fifth of the target, 1 ms of 5 ms.
    #[inline]
    fn step(&self) -> Span {
        Span::ns(self.target.as_u64() / STEP)
    }
}

/// Intervals after a run within which the next one remembers its count (RFC 8289 §5.6).
const SOON: u64 = 16;

/// RFC 9332's step for low latency traffic is 1 ms where CoDel's target is 5 ms.
const STEP: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const TIMES: CodelTimes = CodelTimes::DEFAULT;
    const MS: u64 = 1_000_000;

    fn late(ecn: Markable) -> Leaving {
        Leaving { waited: Span::millis(20), backlogged: true, ecn }
    }

    /// The moments, in ms rounded down, at which a queue whose packets always wait too long is signalled, asked each 100 us.
    fn signals(codel: &mut Codel, ecn: Markable, from: u64, until: u64) -> Vec<u64> {
        let asked = (from * 10..until * 10).map(|tenth| tenth * MS / 10);
        asked
            .filter(|&at| codel.decide(&TIMES, late(ecn), Nanos::new(at)) != Verdict::Pass)
            .map(|at| at / MS)
            .collect()
    }

    #[test]
    fn drops_come_closer_by_the_square_root() {
        // The first after 100 ms, then 100 / sqrt(n): 100, 70.7, 57.7, 50, 44.7.
        let found = signals(&mut Codel::default(), Markable::No, 0, 440);
        assert_eq!(found, [100, 200, 270, 328, 378, 423]);
        assert_eq!(signals(&mut Codel::default(), Markable::Classic, 0, 440), found);
    }

    #[test]
    fn a_run_ends_with_the_first_packet_that_did_not_wait() {
        let mut codel = Codel::default();
        assert_eq!(signals(&mut codel, Markable::No, 0, 201), [100, 200]);
        let soon = Leaving { waited: Span::millis(4), ..late(Markable::No) };
        assert_eq!(codel.decide(&TIMES, soon, Nanos::new(201 * MS)), Verdict::Pass);
        assert_eq!(signals(&mut codel, Markable::No, 202, 303), [302], "an interval again");
    }

    #[test]
    fn a_run_that_follows_soon_goes_on_where_the_last_one_ended() {
        let mut codel = Codel::default();
        assert_eq!(signals(&mut codel, Markable::No, 0, 430).len(), 6);
        let soon = Leaving { waited: Span::ZERO, ..late(Markable::No) };
        codel.decide(&TIMES, soon, Nanos::new(430 * MS));
        // Six were dropped, five of them after the run began: the next follows after 100 / sqrt(5) ms.
        assert_eq!(signals(&mut codel, Markable::No, 500, 650), [600, 644]);
        codel.decide(&TIMES, soon, Nanos::new(650 * MS));
        // More than 16 intervals later it begins with one again.
        assert_eq!(signals(&mut codel, Markable::No, 2_300, 2_510), [2_400, 2_500]);
    }

    #[test]
    fn a_queue_of_one_packet_is_never_too_long() {
        let mut codel = Codel::default();
        let lone = Leaving { backlogged: false, ..late(Markable::No) };
        assert!((0..1_000).all(|ms| codel.decide(&TIMES, lone, Nanos::new(ms * MS)) == Verdict::Pass));
    }

    #[test]
    fn scalable_senders_are_marked_at_once_from_a_fifth_of_the_target() {
        let waits =
            |micros| Leaving { waited: Span::micros(micros), backlogged: true, ecn: Markable::Scalable };
        let mut codel = Codel::default();
        assert_eq!(codel.decide(&TIMES, waits(999), Nanos::ZERO), Verdict::Pass);
        assert_eq!(codel.decide(&TIMES, waits(1_000), Nanos::ZERO), Verdict::Mark);
        assert_eq!(codel.decide(&TIMES, waits(1_000), Nanos::ZERO), Verdict::Mark);
    }

    /// Appendix-like transliteration of RFC 8289 §5: one call sends one packet, after those that it drops.
    #[derive(Default)]
    struct Rfc {
        first_above_time: u64,
        drop_next: u64,
        count: u32,
        lastcount: u32,
        dropping: bool,
    }

    impl Rfc {
        fn dodequeue(&mut self, queue: &mut VecDeque<u64>, now: u64) -> (Option<u64>, bool) {
            let Some(came) = queue.pop_front() else {
                self.first_above_time = 0;
                return (None, false);
            };
            let mut ok_to_drop = false;
            if now - came < TIMES.target.as_u64() || queue.len() <= 1 {
                self.first_above_time = 0;
            } else if self.first_above_time == 0 {
                self.first_above_time = now + TIMES.interval.as_u64();
            } else if now >= self.first_above_time {
                ok_to_drop = true;
            }
            (Some(came), ok_to_drop)
        }

        fn dequeue(&mut self, queue: &mut VecDeque<u64>, now: u64) -> (Option<u64>, u32) {
            let mut dropped = 0;
            let (mut packet, mut ok) = self.dodequeue(queue, now);
            if self.dropping {
                if !ok {
                    self.dropping = false;
                }
                while self.dropping && now >= self.drop_next {
                    (dropped, self.count) = (dropped + 1, self.count + 1);
                    (packet, ok) = self.dodequeue(queue, now);
                    if ok {
                        self.drop_next = TIMES.after(self.drop_next, self.count);
                    } else {
                        self.dropping = false;
                    }
                }
            } else if ok {
                dropped += 1;
                (packet, _) = self.dodequeue(queue, now);
                self.dropping = true;
                let delta = self.count.saturating_sub(self.lastcount);
                self.count = 1;
                let recent = (now as i64 - self.drop_next as i64) < 16 * TIMES.interval.as_u64() as i64;
                if delta > 1 && recent {
                    self.count = delta;
                }
                self.drop_next = TIMES.after(now, self.count);
                self.lastcount = self.count;
            }
            (packet, dropped)
        }
    }

    fn dequeue(codel: &mut Codel, queue: &mut VecDeque<u64>, now: u64) -> (Option<u64>, u32) {
        let mut dropped = 0;
        while let Some(came) = queue.pop_front() {
            let leaving =
                Leaving { waited: Span::ns(now - came), backlogged: queue.len() > 1, ecn: Markable::No };
            if codel.decide(&TIMES, leaving, Nanos::new(now)) != Verdict::Drop {
                return (Some(came), dropped);
            }
            dropped += 1;
        }
        (None, dropped)
    }

    proptest! {
        /// Any arrivals and any gaps between departures: the same packets leave as by the RFC's pseudocode.
        #[test]
        fn agrees_with_the_pseudocode(
            steps in proptest::collection::vec((0_u64..6, 0_u64..40, prop::bool::weighted(0.02)), 1..2_000),
        ) {
            let (mut codel, mut rfc) = (Codel::default(), Rfc::default());
            let (mut ours, mut theirs, mut now) = (VecDeque::new(), VecDeque::new(), 1);
            for (arrivals, gap, pause) in steps {
                now += gap * MS / 10 + if pause { 300 * MS } else { 0 };
                ours.extend((0..arrivals).map(|_| now));
                theirs.extend((0..arrivals).map(|_| now));
                prop_assert_eq!(dequeue(&mut codel, &mut ours, now), rfc.dequeue(&mut theirs, now));
                prop_assert_eq!(ours.len(), theirs.len());
            }
        }

        /// The integer step is the real one, rounded down.
        #[test]
        fn steps_are_exact(interval in 1_u64..1 << 50, count in 1_u32..1 << 24) {
            let times = CodelTimes { target: Span::ZERO, interval: Span::ns(interval) };
            let step = times.step_after(count);
            let real = interval as f64 / f64::from(count).sqrt();
            prop_assert!((step as f64 - real).abs() <= 1.0 + real * 1e-12, "{step} for {real}");
            let square = u128::from(interval).pow(2);
            prop_assert!(u128::from(step).pow(2) * u128::from(count) <= square);
            prop_assert!(u128::from(step + 1).pow(2) * u128::from(count) > square);
        }

        /// A run of marks is signalled when a run of drops is.
        #[test]
        fn marks_come_when_drops_come(gaps in proptest::collection::vec(1_u64..300, 1..500)) {
            let (mut marked, mut dropped, mut now) = (Codel::default(), Codel::default(), 0);
            for gap in gaps {
                now += gap * MS / 10;
                let mark = marked.decide(&TIMES, late(Markable::Classic), Nanos::new(now));
                let drop = dropped.decide(&TIMES, late(Markable::No), Nanos::new(now));
                prop_assert_eq!(mark == Verdict::Mark, drop == Verdict::Drop);
            }
        }
    }
}
