//! The packet-rate law: limits the packets a second of each sender to a VM, so that they wait little on arrival.
//!
//! Why: senders to a VM inside its bandwidth can still overrun the ingress with small packets, and the delay shows that.
//! From: PicNIC §5.3.2 and Algorithm 1 (PCCP). Two readings differ from what is printed: the rate to which recovery
//! returns is kept from *before* the cut, as its prose and QCN say (printed, recovery does nothing), and averaging
//! belongs to the branch below the threshold. What §5.3.2 leaves open is in [`PacketRateLaw`]. Two things are ours: the
//! goodput at the start is that of the time in which packets waited, as a flood begins at any moment of an epoch; and a cut
//! waits while the queue shortens by itself (`patience`), as TIMELY's does between its two thresholds.
//! Not here: delay and occupancy (`nic` measures them), the number of senders (`queues`), bandwidth (`bandwidth`).
//! Invariant: off unless the VM's queue has built up; while on, above zero; at most one cut or one recovery for each epoch.

use plimsoll_units::{PacketRate, Span};

use crate::{PerMille, WHOLE};

/// When the limit is on, and how it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRateLaw {
    /// The delay that it keeps.
    pub threshold: Span,
    /// The part of the excess that is cut: β.
    pub cut: PerMille,
    /// Epochs without drops for which a cut waits while the delay falls fast enough to reach the threshold; with zero each epoch
    /// above the threshold cuts, as printed.
    pub patience: u32,
    /// Weight of the newest delay in their average.
    pub newest: PerMille,
    /// Epochs of recovery after which the target rises, and after which it rises faster.
    pub additive_after: u32,
    /// See [`PacketRateLaw::additive_after`].
    pub hyperactive_after: u32,
    /// The step by which the target rises, as a part of the rate at the start: δ.
    pub step: PerMille,
    /// How full the VM's queue is when the limit goes on; a drop counts as full.
    pub on_at: PerMille,
    /// How full the queue may be in an epoch that counts towards going off.
    pub off_below: PerMille,
    /// The number of such epochs in a row, in which no sender needed its whole limit, after which the limit goes off.
    pub off_after: u32,
}

impl PacketRateLaw {
    /// Constants for a threshold that come near PicNIC's figures; `docs/decisions/0011` has the figures of other constants. A
    /// cut is a fifth of the excess, where TIMELY's is four fifths. The newest delay counts alone: an epoch's delay is the mean
    /// of thousands of packets already.
    ///
    /// Patience is for thresholds beyond what a core with time to spare makes packets wait: the queue then takes epochs to
    /// shorten after a cut that was enough, and without patience each of them cuts again.
    #[must_use]
    pub const fn new(threshold: Span) -> Self {
        Self {
            threshold,
            cut: 200,
            patience: 32,
            newest: 1_000,
            additive_after: 5,
            hyperactive_after: 10,
            step: 10,
            on_at: 500,
            off_below: 100,
            off_after: 50,
        }
    }
}

/// Measurements of a VM's packets over an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How long packets waited from their arrival at the NIC until they left the VM's queue; `None` if none did.
    pub delay: Option<Span>,
    /// How full the queue was at most.
    pub occupancy: PerMille,
    /// Packets dropped for want of room in it.
    pub drops: u64,
    /// Packets per second that were served.
    pub goodput: u64,
    /// Packets per second that were served while more waited; `None` if none waited for long enough to tell.
    pub service: Option<PacketRate>,
    /// The weights of the senders together, an ordinary one counting as a thousand.
    pub weights: u64,
}

/// The packet-rate limit of a sender of weight one to a VM, while there is one.
///
/// ```
/// use plimsoll_control::{PacketRateLaw, PacketRateLimit, Seen};
/// use plimsoll_units::{PacketRate, Span};
///
/// let law = PacketRateLaw::new(Span::micros(10));
/// let mut limit = PacketRateLimit::default();
/// let calm = Seen { delay: Some(Span::micros(2)), goodput: 1_000_000, weights: 2_000, ..Seen::default() };
/// assert_eq!(limit.epoch(&law, &calm), None);
/// let flooded = Seen { drops: 12, delay: Some(Span::micros(10)), service: PacketRate::new(1_400_000), ..calm };
/// assert_eq!(limit.epoch(&law, &flooded), PacketRate::new(700_000), "two senders share what can be served");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketRateLimit {
    on: Option<On>,
    /// The queue built up in the epoch before, so late that its service rate is not known.
    late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct On {
    /// Packets per second, in parts of [`FRACTION`].
    rate: u64,
    /// The rate that recovery returns to, in the same.
    target: u64,
    step: u64,
    /// Averaged delay in nanoseconds.
    delay: u64,
    /// Epochs since the last cut.
    recovered: u32,
    /// Epochs in a row that a cut has waited.
    waited: u32,
    /// Epochs in a row that gave no reason to be on.
    calm: u32,
}

impl PacketRateLimit {
    /// The limit now; `None` while it is off.
    #[must_use]
    pub fn get(&self) -> Option<PacketRate> {
        self.on.and_then(|on| PacketRate::new((on.rate / FRACTION).max(1)))
    }

    /// Handles the end of an epoch, and returns the limit.
    pub fn epoch(&mut self, law: &PacketRateLaw, seen: &Seen) -> Option<PacketRate> {
        match &mut self.on {
            None => {
                let built_up = seen.drops > 0 || seen.occupancy >= law.on_at;
                // A queue that built up as the epoch ended shows in the next one how fast it is served.
                let known = seen.service.is_some() || self.late;
                self.on = (built_up && known).then(|| On::start(law, seen));
                self.late = built_up && !known;
            }
            Some(on) => {
                on.follow(law, seen);
                if on.calm >= law.off_after {
                    self.on = None;
                }
            }
        }
        self.get()
    }
}

impl On {
    /// Starts from the rate at which packets were served while the queue was not empty, divided among the senders.
    fn start(law: &PacketRateLaw, seen: &Seen) -> Self {
        let served = seen.service.map_or(seen.goodput, PacketRate::get);
        let served = u128::from(served) * u128::from(FRACTION * WHOLE);
        let rate =
            u64::try_from(served / u128::from(seen.weights.max(1))).unwrap_or(MOST).clamp(FRACTION, MOST);
        let step = (rate / WHOLE * u64::from(law.step)).max(1);
        let delay = seen.delay.unwrap_or(law.threshold).as_u64();
        Self { rate, target: rate, step, delay, recovered: 0, waited: 0, calm: 0 }
    }

    fn follow(&mut self, law: &PacketRateLaw, seen: &Seen) {
        self.note_calm(law, seen);
        // An epoch without packets waited for nothing: it counts as one below the threshold.
        let newest = seen.delay.unwrap_or(Span::ZERO).as_u64();
        let before = self.delay;
        let part = u128::from(law.newest.min(WHOLE as u32));
        let average = u128::from(newest) * part + u128::from(self.delay) * (u128::from(WHOLE) - part);
        self.delay = (average / u128::from(WHOLE)) as u64;
        let excess = self.delay.saturating_sub(law.threshold.as_u64());
        let left = law.patience.saturating_sub(self.waited);
        let soon = before.saturating_sub(self.delay).saturating_mul(left.into()) >= excess;
        if excess > 0 && soon && seen.drops == 0 {
            self.waited += 1;
            return;
        }
        self.waited = 0;
        if excess == 0 { self.recover(law) } else { self.cut(law) }
    }

    /// `rate · (1 − cut · (1 − threshold / delay))`, rounded down.
    fn cut(&mut self, law: &PacketRateLaw) {
        (self.target, self.recovered) = (self.rate, 0);
        let excess = u128::from(self.delay - law.threshold.as_u64());
        let whole = u128::from(self.delay) * u128::from(WHOLE);
        let left = whole - excess * u128::from(law.cut.min(WHOLE as u32));
        self.rate = ((u128::from(self.rate) * left / whole) as u64).max(FRACTION);
    }

    /// Goes half of the way back to the target, which rises faster the longer the delay stays below the threshold.
    fn recover(&mut self, law: &PacketRateLaw) {
        let steps = match self.recovered {
            epochs if epochs > law.hyperactive_after => u64::from(epochs - law.hyperactive_after),
            epochs => u64::from(epochs > law.additive_after),
        };
        self.target = self.target.saturating_add(self.step.saturating_mul(steps)).min(MOST);
        self.rate = self.rate.midpoint(self.target);
        self.recovered = self.recovered.saturating_add(1);
    }

    fn note_calm(&mut self, law: &PacketRateLaw, seen: &Seen) {
        let allowed = u128::from(self.rate / FRACTION) * u128::from(seen.weights) / u128::from(WHOLE);
        // A tenth less than allowed is not for want of permission.
        let needless = u128::from(seen.goodput) * 10 < allowed * 9;
        let calm = needless && seen.drops == 0 && seen.occupancy < law.off_below;
        self.calm = if calm { self.calm + 1 } else { 0 };
    }
}

/// A rate's fractions of a packet per second.
const FRACTION: u64 = 1 << 16;
/// Some 140 terapackets per second: room for a step that grows every epoch.
const MOST: u64 = u64::MAX / 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(average: PerMille) -> PacketRateLaw {
        PacketRateLaw { cut: 800, newest: average, step: 20, ..PacketRateLaw::new(Span::ns(10)) }
    }

    fn seen(delay: u64) -> Seen {
        Seen {
            delay: Some(Span::ns(delay)),
            occupancy: 800,
            goodput: 1_000,
            service: PacketRate::new(1_000),
            weights: 1_000,
            ..Seen::default()
        }
    }

    /// An epoch in which all 1,000 packets were served in its last tenth shows a rate of 10,000, and one that was over
    /// before any was served shows none: then the next epoch does.
    #[test]
    fn starts_from_what_was_served_while_packets_waited() {
        let (law, mut limit) = (plain(1_000), PacketRateLimit::default());
        let late = Seen { service: PacketRate::new(10_000), ..seen(10) };
        assert_eq!(limit.epoch(&law, &late), PacketRate::new(10_000));
        let mut limit = PacketRateLimit::default();
        assert_eq!(limit.epoch(&law, &Seen { service: None, goodput: 3, ..seen(10) }), None);
        assert_eq!(limit.epoch(&law, &late), PacketRate::new(10_000));
        let mut starved = PacketRateLimit::default();
        let nothing = Seen { service: None, goodput: 0, ..seen(10) };
        assert_eq!(
            (starved.epoch(&law, &nothing), starved.epoch(&law, &nothing)),
            (None, PacketRate::new(1))
        );
    }

    /// G6: rate 1,000, threshold 10, one sample of 20 and then 5s; β 0.8, δ 20, recovery of 5 and 10, no average.
    #[test]
    fn cuts_recovers_and_probes_as_algorithm_1_means_it() {
        let (law, mut limit) = (plain(1_000), PacketRateLimit::default());
        limit.epoch(&law, &seen(10));
        let mut rates = Vec::new();
        for delay in core::iter::once(20).chain(core::iter::repeat_n(5, 13)) {
            limit.epoch(&law, &seen(delay));
            let on = limit.on.expect("the queue is full");
            rates.push(((on.rate as f64 / FRACTION as f64) * 10.0).round() / 10.0);
        }
        let golden = [
            600.0, 800.0, 900.0, 950.0, 975.0, 987.5, 993.8, 1006.9, 1023.4, 1041.7, 1060.9, 1080.4, 1100.2,
            1130.1,
        ];
        assert_eq!(rates, golden);
    }

    #[test]
    fn is_off_until_the_queue_builds_and_goes_off_when_no_sender_needs_it() {
        let law = PacketRateLaw { off_after: 3, ..PacketRateLaw::new(Span::micros(10)) };
        let mut limit = PacketRateLimit::default();
        let calm = Seen { occupancy: 20, goodput: 200_000, weights: 1_000, ..Seen::default() };
        let slow = Seen { delay: Some(Span::millis(5)), ..calm };
        assert_eq!(limit.epoch(&law, &slow), None, "delay alone has another cause");
        let full = Seen { occupancy: 500, goodput: 1_000_000, service: PacketRate::new(1_000_000), ..calm };
        assert_eq!(limit.epoch(&law, &full), PacketRate::new(1_000_000));
        let bound = Seen { goodput: 990_000, ..calm };
        for _ in 0..10 {
            assert!(limit.epoch(&law, &bound).is_some(), "it binds");
        }
        for _ in 0..2 {
            assert!(limit.epoch(&law, &calm).is_some());
        }
        assert_eq!(limit.epoch(&law, &calm), None);
    }

    /// A queue that shortens by a fortieth of what is too long in each epoch will not do; by a twentieth it will.
    #[test]
    fn a_cut_waits_while_the_queue_shortens_soon_enough() {
        let law = PacketRateLaw { additive_after: 0, ..PacketRateLaw::new(Span::ns(1_000)) };
        let after = |before: u64, delay: u64, drops: u64| {
            let mut limit = PacketRateLimit::default();
            limit.epoch(&law, &Seen { drops: 1, ..seen(before) });
            let was = limit.get().expect("on").get();
            (was, limit.epoch(&law, &Seen { drops, ..seen(delay) }).expect("on").get())
        };
        let (was, now) = after(5_200, 5_000, 0);
        assert_eq!(now, was, "4,000 too long, 200 less than before");
        assert!(after(5_100, 5_000, 0).1 < was, "100 less");
        assert!(after(5_000, 5_000, 0).1 < was, "no less");
        assert!(after(5_200, 5_000, 1).1 < was, "it overflows");
    }

    proptest! {
        /// Whatever is measured: no overflow, above zero while on, and no cut by more than four fifths.
        #[test]
        fn stays_within_its_clamps(
            epochs in proptest::collection::vec(
                (any::<Option<u64>>(), 0_u32..2_000, any::<u64>(), any::<u64>(), any::<u64>()), 1..100),
        ) {
            let (law, mut limit) = (PacketRateLaw::new(Span::micros(10)), PacketRateLimit::default());
            for (delay, occupancy, drops, goodput, weights) in epochs {
                let before = limit.on.map(|on| on.rate);
                let service = PacketRate::new(goodput / 2);
                let delay = delay.map(Span::ns);
                limit.epoch(&law, &Seen { delay, occupancy, drops: drops % 2, goodput, service, weights });
                if let (Some(before), Some(on)) = (before, limit.on) {
                    prop_assert!(on.rate >= FRACTION);
                    prop_assert!(u128::from(on.rate) * 1_000 + 1_000 >= u128::from(before) * 199 || on.rate == FRACTION);
                }
            }
        }
    }
}
