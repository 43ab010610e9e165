//! Limits: when a packet may leave, enforced by waiting.
//!
//! Why: a limit cuts across the tree (by destination, by pair, by tenant), so it stands beside it.
//! From: Loom §4.2.2 (global shaping queue), with the policy's order behind each limit: one waiting bundle is chosen
//! for each slot, so that only the limit is on the wheel, never its flow queues (docs/decisions, 1). What it is granted is paid
//! at once and used when it leaves (docs/decisions, 15).
//! Not here: which bundle is chosen (`tree`), when a bundle asks (`egress::grants`), the wheel (`plimsoll_queues::Wheel`).
//! Invariant: in any span, bytes that were granted, less those that were given back, are at most burst + rate x span (packets
//! count as one byte each; a burst shorter than a frame counts as a frame). A bundle has at most one pull in hand that the burst
//! does not cover.

use core::num::NonZeroU32;

use plimsoll_policy::{self as policy, Counts};
use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::ids::{BundleId, GateId, TreeId};

/// A limit's clock and the bundles that wait for it, in two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Limit {
    pace: Pace,
    /// The time that the burst takes at the rate, rounded down.
    full: Span,
    /// What is left of it beyond the largest pull: how far the clock may be ahead of the present with any one request granted.
    calm: Span,
    /// The gate of the main tree that does its work, if it holds a node; then no bundle waits for it.
    pub(crate) gate: GateId,
    /// For a limit that counts frames: the most bytes that one frame is charged.
    frame: Option<NonZeroU32>,
    /// The sum, over all bundles, of what each was granted beyond one pull.
    ahead: u32,
    /// Bundles that ask.
    pub(crate) waiting: u32,
    /// How much the next choice is expected to ask for: the smallest request since the last choice, or that choice's own. It
    /// decides when the limit chooses, not how much it grants.
    expected: u32,
    /// The bundle behind it, while it is the only one; else none.
    pub(crate) only: BundleId,
    /// Root of the policy restricted to this limit's bundles; `None` while there is at most one bundle.
    pub(crate) root: Option<TreeId>,
    /// Whether a bundle entered the main tree on its last grant: it grants nothing more until the next pick.
    pub(crate) rests: bool,
    /// The largest pull, in what the limit counts.
    pull: u32,
    /// Times that a bundle had to wait, modulo 2^32, and how often that has come round.
    parked: u32,
    parked_rounds: u32,
    burst: Bytes,
}

impl Limit {
    /// `frame` is what is charged of a whole frame, and `pull` of the largest pull, half the burst or a frame at most.
    pub(crate) fn new(limit: &policy::Limit, frame: u32, pull: u32) -> Self {
        let mut made = Self {
            frame: NonZeroU32::new(frame).filter(|_| limit.counts == Counts::Packets),
            pace: Pace::new(limit.rate),
            burst: limit.burst,
            full: Span::ZERO,
            calm: Span::ZERO,
            root: None,
            only: BundleId::NONE,
            rests: false,
            pull: 0,
            ahead: 0,
            gate: GateId::NONE,
            waiting: 0,
            expected: 0,
            parked: 0,
            parked_rounds: 0,
        };
        made.pull = made.counted(pull.min(made.longest_pull()).max(frame));
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

    /// Goes on at another rate and with another burst, of which at most `credit` is saved up.
    pub(crate) fn lease(&mut self, rate: BitRate, burst: Bytes, credit: Bytes, now: Nanos) {
        self.pace.change_rate(rate, now);
        self.burst = burst;
        self.set_full();
        self.pace.catch_up(now + (self.full - rate.wire_time(credit)));
    }

    /// The part of a head of `len` that the `granted` amount does not cover.
    #[inline]
    pub(crate) fn lacks(&self, len: u32, granted: u32) -> u32 {
        self.counted(len).saturating_sub(granted)
    }

    /// The amount that a bundle with a head of `len` may ask for; 0 for nothing.
    ///
    /// It asks for what its head lacks. If it lacks nothing, it asks for one more head, provided that packets `follow` it, that
    /// bundles share the limit, and that it has two pulls in hand at most, the second covered by the burst. So no bundle
    /// loses its share while its packet is on its way through the main tree.
    #[inline]
    pub(crate) fn asked(&self, len: u32, granted: u32, follow: bool) -> u32 {
        let counted = self.counted(len);
        if granted < counted {
            return counted - granted;
        }
        if !follow || self.root.is_none() {
            return 0;
        }
        let more = granted.saturating_add(counted);
        let beyond = self.beyond(more) - self.beyond(granted);
        let covered = u64::from(self.ahead) + u64::from(beyond) + u64::from(self.pull) <= self.burst.as_u64();
        let may = beyond == 0 || more <= 2 * self.pull && covered;
        if may { counted } else { 0 }
    }

    /// The part of `granted` beyond one pull.
    #[inline]
    fn beyond(&self, granted: u32) -> u32 {
        granted.saturating_sub(self.pull)
    }

    /// Whether a packet that counts `counted` may leave at once. While a bundle asks, none may: requests go first.
    #[inline]
    pub(crate) fn has(&self, counted: u32, now: Nanos) -> bool {
        counted == 0 || self.gives(self.due_for(counted), now)
    }

    /// Whether any request, of a pull at most, would be granted now: then nothing more has to be asked.
    #[inline]
    pub(crate) fn is_calm(&self, now: Nanos) -> bool {
        (self.waiting == 0) & self.pace.is_earned(now + self.calm)
    }

    /// Whether a request that is `due` then may be granted now: never while a bundle asks.
    #[inline]
    pub(crate) fn gives(&self, due: Nanos, now: Nanos) -> bool {
        self.waiting == 0 && due <= now
    }

    /// Whether the gate lets a head of `len` pass now. If not, the gate opens for that head next.
    #[inline]
    pub(crate) fn opens_for(&mut self, len: u32, now: Nanos) -> bool {
        self.expected = self.counted(len);
        self.due() <= now
    }

    /// The amount that a pull charged `len` counts here. Segments of a pull are whole frames, but for the last.
    #[inline]
    fn counted(&self, len: u32) -> u32 {
        self.frame.map_or(len, |frame| len.div_ceil(frame.get()))
    }

    /// When a packet that counts `counted` may leave. Up to the burst may be used before it is earned; a head that is longer than
    /// the burst waits until everything that was used is earned.
    #[inline]
    pub(crate) fn due_for(&self, counted: u32) -> Nanos {
        self.pace.earned() - (self.full - self.pace.wire_time(Bytes::new(counted.into())))
    }

    /// When the limit chooses the next bundle to grant something to.
    #[inline]
    pub(crate) fn due(&self) -> Nanos {
        self.due_for(self.expected)
    }

    /// Registers a request. Returns whether it makes the next choice due earlier.
    #[inline]
    pub(crate) fn ask(&mut self, asked: u32) -> bool {
        self.waiting += 1;
        let sooner = self.waiting == 1 || asked < self.expected;
        if sooner {
            self.expected = asked;
        }
        sooner
    }

    /// Grants the chosen bundle what it asks for, beyond what it was `granted`, if that is earned, and returns whether it is. If
    /// not, the next choice is made when it is.
    #[inline]
    pub(crate) fn grant(&mut self, asked: u32, granted: &mut u32, now: Nanos) -> bool {
        if asked == 0 {
            return true;
        }
        self.expected = asked;
        let grants = self.due() <= now;
        if grants {
            self.pay(asked, now);
            self.hand(granted, *granted + asked);
        }
        grants
    }

    /// A pull that is charged `len` leaves, paid as far as what was `granted` covers it. Returns whether more had to be paid:
    /// then the next slot has moved.
    #[inline]
    pub(crate) fn leave(&mut self, len: u32, granted: &mut u32, now: Nanos) -> bool {
        let counted = self.counted(len);
        let used = counted.min(*granted);
        if self.ahead > 0 {
            self.catch_up(now);
            self.hand(granted, *granted - used);
        } else {
            *granted -= used;
        }
        if counted > used {
            self.pay(counted - used, now);
        }
        counted > used
    }

    /// Like [`Limit::leave`], for a bundle that was granted nothing and asks for nothing, as the limit is calm. Returns whether it
    /// still is.
    #[inline]
    pub(crate) fn leave_calm(&mut self, len: u32, now: Nanos) -> bool {
        self.pay(self.counted(len), now);
        self.is_calm(now)
    }

    /// Takes back the grant of a bundle that sends no more. Returns whether there was one.
    pub(crate) fn take_back(&mut self, granted: &mut u32, now: Nanos) -> bool {
        let unused = *granted;
        if unused > 0 {
            self.catch_up(now);
            self.hand(granted, 0);
            self.pace.refund(Bytes::new(unused.into()));
        }
        unused > 0
    }

    fn hand(&mut self, granted: &mut u32, next: u32) {
        self.ahead = self.ahead - self.beyond(*granted) + self.beyond(next);
        *granted = next;
    }

    #[inline]
    fn pay(&mut self, counted: u32, now: Nanos) {
        self.catch_up(now);
        self.pace.charge(Bytes::new(counted.into()));
    }

    /// Forgets credit beyond the burst. What bundles have in hand beyond a pull counts as burst that was used.
    #[inline]
    fn catch_up(&mut self, now: Nanos) {
        let ahead =
            if self.ahead == 0 { Span::ZERO } else { self.pace.wire_time(Bytes::new(self.ahead.into())) };
        self.pace.catch_up(now + ahead);
    }

    /// Bytes that the limit's tree charges for a grant of `asked` to a head of `len`.
    #[inline]
    pub(crate) fn in_bytes(&self, asked: u32, len: u32) -> u64 {
        if self.frame.is_none() {
            return asked.into();
        }
        u64::from(len) * u64::from(asked) / u64::from(self.counted(len).max(1))
    }

    /// Counts that a bundle has to wait.
    #[inline]
    pub(crate) fn park(&mut self) {
        self.parked = self.parked.wrapping_add(1);
        self.parked_rounds += u32::from(self.parked == 0);
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
        self.calm = self.full - self.pace.rate().wire_time(Bytes::new(self.pull.into()));
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
        Limit::new(&limit, 1_500, 1_500)
    }

    #[test]
    fn what_the_burst_leaves_beyond_the_head_may_be_made_up() {
        let mut limit = limit(3_000);
        let now = Nanos::new(10_000_000);
        assert!(limit.has(1_500, now));
        limit.leave(1_500, &mut 0, now);
        assert!(limit.has(1_499, now), "two frames fit the burst, but for the nanosecond of rounding");
        assert!(!limit.has(2_000, now), "500 B are not earned yet");
        assert!(limit.has(2_000, now + Span::ns(333_335)));
        assert!(!limit.has(2_000, now + Span::ns(333_332)));
    }

    #[test]
    fn a_head_longer_than_the_burst_passes_once_all_is_earned() {
        let mut limit = limit(1_500);
        let now = Nanos::new(10_000_000);
        limit.leave(1_500, &mut 0, now);
        assert!(!limit.has(60_000, now + Span::ns(999_999)));
        assert!(limit.has(60_000, now + Span::millis(1)));
    }

    #[test]
    fn a_choice_that_asks_for_more_than_expected_waits_until_its_own_slot() {
        let mut limit = limit(3_000);
        let now = Nanos::new(10_000_000);
        limit.leave(3_000, &mut 0, now);
        assert!(limit.ask(1_500) && limit.ask(60));
        assert_eq!(limit.due(), now + Span::micros(40) + Span::ns(1));
        let mut granted = 0;
        assert!(!limit.grant(3_000, &mut granted, limit.due()));
        assert_eq!((limit.waiting, granted, limit.due()), (2, 0, now + Span::millis(2)));
        assert!(limit.grant(60, &mut granted, limit.due()), "a shorter one fits all the more");
        assert_eq!(granted, 60);
    }

    #[test]
    fn bundles_that_share_a_limit_have_two_pulls_in_hand_as_far_as_the_burst_covers_them() {
        let mut limit = limit(4_000);
        let asked = |limit: &Limit, len, granted| limit.asked(len, granted, true);
        let lone = (asked(&limit, 1_000, 0), asked(&limit, 1_000, 400), asked(&limit, 400, 400));
        assert_eq!(lone, (1_000, 600, 0));
        limit.root = Some(TreeId(0));
        assert_eq!(limit.asked(400, 400, false), 0, "nothing follows");
        let shared = (asked(&limit, 400, 400), asked(&limit, 1_500, 1_500), asked(&limit, 1_500, 1_501));
        assert_eq!(shared, (400, 1_500, 0));
        let now = Nanos::new(10_000_000);
        let (mut one, mut other) = (1_500, 1_500);
        assert!(limit.grant(1_500, &mut one, now));
        assert_eq!(
            (one, asked(&limit, 1_500, other)),
            (3_000, 0),
            "4,000 B cover one pull and a second, not two"
        );
        let later = now + Span::secs(1);
        assert!(!limit.leave(1_500, &mut one, later), "it was granted before");
        assert!(limit.has(2_400, later) && !limit.has(2_600, later), "what it had in hand is no burst");
        assert!(limit.grant(1_500, &mut other, later) && limit.take_back(&mut other, later));
        assert_eq!((other, limit.take_back(&mut other, later)), (0, false));
    }

    /// A thousand packets a second.
    #[test]
    fn packets_count_alike_whatever_their_length() {
        let mut limit = made(Counts::Packets, BitRate::new(8_000).expect("some"), 1);
        let now = Nanos::new(10_000_000);
        for (len, next) in [(60, 0), (1_500, 1), (1_500, 2)] {
            let due = now + Span::millis(next);
            let has = |at| limit.has(limit.lacks(len, 0), at);
            assert!(has(due) && (next == 0 || !has(due - Span::ns(2))), "{len}");
            limit.leave(len, &mut 0, due);
        }
        let due = now + Span::millis(4);
        assert!(limit.has(limit.lacks(3_000, 0), due), "two frames in one pull");
        limit.leave(3_000, &mut 1, due); // one of which had been paid for
        let next = due + Span::millis(1);
        assert!(limit.has(1, next) && !limit.has(1, next - Span::ns(2)));
        assert_eq!(made(Counts::Packets, BitRate::mbps(1), 4).longest_pull(), 3_000);
    }
}
