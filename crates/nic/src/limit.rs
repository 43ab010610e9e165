//! Limits: when a packet may leave, enforced by waiting.
//!
//! Why: a limit cuts across the tree (by destination, by pair, by tenant), so it stands beside it.
//! From: Loom §4.2.2 (global shaping queue), with the policy's order behind each limit: one waiting bundle is chosen
//! for each slot, so that only the limit is on the wheel, never its flow queues (docs/decisions, 1).
//! Not here: who is chosen (`tree`), the wheel itself (`plimsoll_queues::Wheel`).
//! Invariant: charged bytes (or packets, each as one byte) in any span <= burst + rate x span, a burst shorter than a frame counting as one; a
//! released bundle leaves no earlier than its slot, and at most one packet of each bundle is released and not yet gone.
//! A caller who is late by less than what the burst leaves beyond the head loses nothing of the rate.

use core::num::NonZeroU32;

use plimsoll_policy::{self as policy, Counts};
use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::tree::NONE;

/// A limit's clock and who waits for it. What every packet needs fills the first cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Limit {
    pace: Pace,
    /// What the burst takes at the rate, rounded down.
    full: Span,
    /// Bundles that wait.
    pub(crate) waiting: u32,
    /// The bundle, while it is the only one; else `NONE`.
    pub(crate) only: u32,
    /// The bundle that was let go last, while its packet is on its way; else `NONE`.
    pub(crate) latest: u32,
    /// Whether it has just let one go: the next only after a pick.
    pub(crate) rests: bool,
    /// Until when its turn is waited for, and how long that is.
    patient: Nanos,
    patience: Span,
    /// Bytes that the next to be let go is expected to be charged: those of the first that came, then of the last that
    /// was chosen. It decides when the choice is made, not what it may send.
    expected: u32,
    /// Times that a bundle had to wait, modulo 2^32, and how often that has come round.
    parked: u32,
    parked_rounds: u32,
    /// Root of the policy restricted to this limit's bundles; `None` while there is at most one bundle.
    pub(crate) root: Option<u32>,
    /// The gate of the main tree that does its work, if it holds a node; then no bundle waits for it.
    pub(crate) gate: u32,
    burst: Bytes,
    /// What is charged of a frame at most, if frames are counted and not bytes.
    frame: Option<NonZeroU32>,
}

impl Limit {
    /// `frame` is what is charged of a whole frame, and `patience` how long the turn of one that was let go is waited for.
    pub(crate) fn new(limit: &policy::Limit, frame: u32, patience: Span) -> Self {
        let mut made = Self {
            frame: NonZeroU32::new(frame).filter(|_| limit.counts == Counts::Packets),
            pace: Pace::new(limit.rate),
            burst: limit.burst,
            full: Span::ZERO,
            root: None,
            only: NONE,
            latest: NONE,
            rests: false,
            patient: Nanos::ZERO,
            patience,
            gate: NONE,
            waiting: 0,
            expected: 0,
            parked: 0,
            parked_rounds: 0,
        };
        made.set_full();
        made
    }

    /// Takes over what the same limit owed under an earlier policy.
    pub(crate) fn inherit(&mut self, old: &Self, now: Nanos) {
        let rate = self.pace.rate();
        self.pace = old.pace;
        self.pace.change_rate(rate, now);
    }

    pub(crate) fn set_rate(&mut self, rate: BitRate, now: Nanos) {
        self.pace.change_rate(rate, now);
        self.set_full();
    }

    /// Whether a head of `len` may pass now, waiting ones first.
    #[inline]
    pub(crate) fn admits(&self, len: u32, now: Nanos) -> bool {
        self.waiting == 0 && self.due_for(self.counted(len), self.full) <= now
    }

    /// Whether the gate lets a head of `len` pass now. If not, it is the one to open for.
    #[inline]
    pub(crate) fn opens_for(&mut self, len: u32, now: Nanos) -> bool {
        self.expected = self.counted(len);
        self.due() <= now
    }

    /// What a pull that is charged `len` counts here. Segments of a pull are whole frames, but for the last.
    #[inline]
    fn counted(&self, len: u32) -> u32 {
        self.frame.map_or(len, |frame| len.div_ceil(frame.get()))
    }

    /// When a head that counts `len` may pass: the clock may then run ahead of the present by `ahead`, and does not if the
    /// head alone is longer than that.
    #[inline]
    fn due_for(&self, len: u32, ahead: Span) -> Nanos {
        self.pace.earned() - (ahead - self.pace.wire_time(Bytes::new(len.into())))
    }

    /// When to choose who passes next. As long as the packet of the last that was let go is on its way, its turn is waited
    /// for: it may come back, and go before the others. If that takes longer than `patience`, or half the burst is saved up
    /// meanwhile, others pass what it can't use.
    #[inline]
    pub(crate) fn due(&self) -> Nanos {
        let earned = self.due_for(self.expected, self.full);
        if self.latest == NONE {
            return earned;
        }
        let half = Span::ns(self.full.as_u64() / 2);
        self.due_for(self.expected, half).min(earned.max(self.patient))
    }

    /// Whether the burst has room for a head of `len`.
    pub(crate) fn has_credit(&self, len: u32, now: Nanos) -> bool {
        self.due_for(self.counted(len), self.full) <= now
    }

    /// A bundle has been let go.
    #[inline]
    pub(crate) fn let_go(&mut self, bundle: u32, now: Nanos) {
        (self.latest, self.patient) = (bundle, now + self.patience);
    }

    /// A bundle that was let go has sent, or another goes before it.
    #[inline]
    pub(crate) fn forget(&mut self, bundle: u32) -> bool {
        let known = self.latest == bundle;
        if known {
            self.latest = NONE;
        }
        known
    }

    /// A head of `len` has come to wait: whether the next choice is due earlier for it.
    #[inline]
    pub(crate) fn expects_less(&mut self, len: u32) -> bool {
        let len = self.counted(len);
        let less = len < self.expected;
        self.expected = self.expected.min(len);
        less
    }

    /// A bundle whose head is charged `len` waits from now on.
    #[inline]
    pub(crate) fn park(&mut self, len: u32) {
        self.waiting += 1;
        if self.waiting == 1 {
            self.expected = self.counted(len);
        }
        self.parked = self.parked.wrapping_add(1);
        self.parked_rounds += u32::from(self.parked == 0);
    }

    /// A head of `len` was chosen: whether it passes now. If not, it is the next one expected.
    #[inline]
    pub(crate) fn release(&mut self, len: u32, now: Nanos) -> bool {
        self.expected = self.counted(len);
        let passes = self.due() <= now;
        if passes {
            self.waiting -= 1;
            self.pay(len, now);
        }
        passes
    }

    /// Charges a packet that passes now.
    #[inline]
    pub(crate) fn pay(&mut self, len: u32, now: Nanos) {
        self.pay_rest(len, 0, now);
    }

    /// Charges what the packet is beyond what was `paid` for it.
    #[inline]
    pub(crate) fn pay_rest(&mut self, len: u32, paid: u32, now: Nanos) {
        self.pace.catch_up(now);
        self.pace.charge(Bytes::new((self.counted(len) - self.counted(paid)).into()));
    }

    /// Takes back what was paid for a head of `len` that another goes before; it waits again.
    pub(crate) fn take_back(&mut self, bundle: u32, len: u32) {
        self.forget(bundle);
        self.waiting += 1;
        self.pace.refund(Bytes::new(self.counted(len).into()));
    }

    /// How many have come to wait, modulo 2^32.
    #[inline]
    pub(crate) fn come(&self) -> u32 {
        self.parked
    }

    /// Most bytes that one pull should take: half the burst, so that one that is due late can be made up for.
    pub(crate) fn longest_pull(&self) -> u32 {
        let unit = self.frame.map_or(1, NonZeroU32::get);
        u32::try_from(self.burst.as_u64() / 2 * u64::from(unit)).unwrap_or(u32::MAX)
    }

    /// Times that a bundle had to wait.
    pub(crate) fn parked(&self) -> u64 {
        u64::from(self.parked_rounds) << 32 | u64::from(self.parked)
    }

    fn set_full(&mut self) {
        // Rounded down, so that the burst is never exceeded.
        self.full = self.pace.rate().wire_time(self.burst) - Span::ns(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 12 Mb/s: a byte takes two thirds of a microsecond, 1,500 B a millisecond.
    fn limit(burst: u64) -> Limit {
        made(Counts::Bytes, BitRate::mbps(12), burst)
    }

    fn made(counts: Counts, rate: BitRate, burst: u64) -> Limit {
        let limit = policy::Limit {
            name: "wan".to_owned(),
            counts,
            rate,
            burst: Bytes::new(burst),
            scope: policy::Scope::Subtree(policy::NodeId(0)),
        };
        Limit::new(&limit, 1_500, Span::ZERO)
    }

    #[test]
    fn what_the_burst_leaves_beyond_the_head_may_be_made_up() {
        let mut limit = limit(3_000);
        let now = Nanos::new(10_000_000);
        assert!(limit.admits(1_500, now));
        limit.pay(1_500, now);
        assert!(limit.admits(1_499, now), "two frames fit the burst, but for the nanosecond of rounding");
        assert!(!limit.admits(2_000, now), "500 B are not earned yet");
        assert!(limit.admits(2_000, now + Span::ns(333_335)));
        assert!(!limit.admits(2_000, now + Span::ns(333_332)));
    }

    #[test]
    fn a_head_longer_than_the_burst_passes_once_all_is_earned() {
        let mut limit = limit(1_500);
        let now = Nanos::new(10_000_000);
        limit.pay(1_500, now);
        assert!(!limit.admits(60_000, now + Span::ns(999_999)));
        assert!(limit.admits(60_000, now + Span::millis(1)));
    }

    #[test]
    fn a_choice_longer_than_expected_waits_until_its_own_slot() {
        let mut limit = limit(3_000);
        let now = Nanos::new(10_000_000);
        limit.pay(3_000, now);
        limit.park(1_500);
        limit.park(60);
        assert_eq!(limit.due(), now + Span::millis(1) + Span::ns(1));
        assert!(!limit.release(3_000, limit.due()));
        assert_eq!((limit.waiting, limit.due()), (2, now + Span::millis(2)));
        assert!(limit.release(60, limit.due()), "a shorter one fits all the more");
        assert_eq!((limit.waiting, limit.parked()), (1, 2));
    }

    /// A thousand packets a second.
    #[test]
    fn packets_count_alike_whatever_their_length() {
        let mut limit = made(Counts::Packets, BitRate::new(8_000).expect("some"), 1);
        let now = Nanos::new(10_000_000);
        for (len, next) in [(60, 0), (1_500, 1), (1_500, 2)] {
            let due = now + Span::millis(next);
            assert!(limit.admits(len, due) && (next == 0 || !limit.admits(len, due - Span::ns(2))), "{len}");
            limit.pay(len, due);
        }
        let due = now + Span::millis(4);
        assert!(limit.admits(3_000, due), "two frames in one pull");
        limit.pay_rest(3_000, 1_500, due); // one of which had been paid for
        let next = due + Span::millis(1);
        assert!(limit.admits(60, next) && !limit.admits(60, next - Span::ns(2)));
        assert_eq!(made(Counts::Packets, BitRate::mbps(1), 4).longest_pull(), 3_000);
    }
}
