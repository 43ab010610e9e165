//! Delivery rates: how fast the other end has received what a packet was sent with.
//!
//! Why: BBR steers by the bandwidth of the path.
//! From: draft-cheng-iccrg-delivery-rate-estimation, as in Linux's `tcp_rate.c`, in bytes.
//! Not here: which packets have arrived (`scoreboard`), what follows from a rate (`congestion::bbr`).
//! Invariant: a stamp for each packet of the scoreboard, in its order.

use std::collections::VecDeque;

use plimsoll_units::{Nanos, Span};

/// The state of the connection when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    delivered: u64,
    delivered_at: Nanos,
    /// When the first packet of the interval was sent that ends with this one.
    first_sent: Nanos,
    app_limited: bool,
}

/// The packet that an acknowledgement's sample is taken from: the one that was sent last.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    stamp: Stamp,
    sent: Nanos,
    end: u64,
}

/// What an acknowledgement says about the path's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateSample {
    /// Bytes delivered in all, before the packet was sent.
    pub(super) prior_delivered: u64,
    /// Bytes a second; `None` when the interval is too short to be true.
    pub(super) rate: Option<u64>,
    /// The application had too little to send.
    pub(super) app_limited: bool,
}

/// Stamps of the packets in flight, and what has been delivered.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    stamps: VecDeque<Stamp>,
    delivered: u64,
    delivered_at: Nanos,
    first_sent: Nanos,
    /// Samples of what was sent before this many bytes were delivered are too low.
    limited_until: Option<u64>,
    chosen: Option<Chosen>,
}

impl Rates {
    pub(super) fn new() -> Self {
        Self {
            stamps: VecDeque::new(),
            delivered: 0,
            delivered_at: Nanos::ZERO,
            first_sent: Nanos::ZERO,
            limited_until: None,
            chosen: None,
        }
    }

    /// Bytes delivered in all.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// A packet is sent for the first time; `idle` when no other one is in flight.
    pub(super) fn push(&mut self, idle: bool, now: Nanos) {
        if idle {
            (self.first_sent, self.delivered_at) = (now, now);
        }
        let stamp = self.stamp();
        self.stamps.push_back(stamp);
    }

    /// The packet at `place` is sent again.
    pub(super) fn resend(&mut self, place: usize) {
        let stamp = self.stamp();
        if let Some(old) = self.stamps.get_mut(place) {
            *old = stamp;
        }
    }

    /// The first packet leaves the scoreboard.
    pub(super) fn pop(&mut self) {
        self.stamps.pop_front();
    }

    /// Bytes have arrived, without a packet that is whole.
    pub(super) fn deliver_part(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// The packet at `place` has arrived, of `len` bytes that end at `end`.
    pub(super) fn deliver(&mut self, place: usize, len: u32, sent: Nanos, end: u64) {
        self.delivered += u64::from(len);
        let Some(&stamp) = self.stamps.get(place) else { return };
        if self.chosen.is_none_or(|chosen| (sent, end) > (chosen.sent, chosen.end)) {
            self.chosen = Some(Chosen { stamp, sent, end });
        }
    }

    /// The sample of the acknowledgement that has just been taken, if it brought news.
    pub(super) fn sample(&mut self, least_rtt: Span, now: Nanos) -> Option<RateSample> {
        let Chosen { stamp, sent, .. } = self.chosen.take()?;
        if self.limited_until.is_some_and(|until| self.delivered > until) {
            self.limited_until = None;
        }
        self.first_sent = sent;
        self.delivered_at = now;
        let interval = (sent - stamp.first_sent).max(now - stamp.delivered_at);
        let bytes = u128::from(self.delivered - stamp.delivered) * u128::from(plimsoll_units::NS_PER_SEC);
        let rate = (interval > Span::ZERO && interval >= least_rtt)
            .then(|| u64::try_from(bytes / u128::from(interval.as_u64())).unwrap_or(u64::MAX));
        Some(RateSample { prior_delivered: stamp.delivered, rate, app_limited: stamp.app_limited })
    }

    /// The application has nothing to send and the window has room: what is in flight says little about the path.
    pub(super) fn limit(&mut self, in_flight: u64) {
        self.limited_until = Some((self.delivered + in_flight).max(1));
    }

    /// Whether the application had too little to send.
    pub(super) fn is_limited(&self) -> bool {
        self.limited_until.is_some()
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.limited_until.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten packets of 1,000 B leave at once and arrive 1 ms apart: 1 MB/s, whatever the first one's round trip says.
    #[test]
    fn the_slower_of_sending_and_arriving_is_the_rate() {
        let mut rates = Rates::new();
        (0..10).for_each(|number| rates.push(number == 0, Nanos::ZERO));
        let mut last = None;
        for number in 1..=10_u64 {
            rates.deliver(0, 1_000, Nanos::ZERO, 1_000 * number);
            rates.pop();
            last = rates.sample(Span::millis(5), Nanos::new(10_000_000 + 1_000_000 * number));
        }
        // 10,000 B in 20 ms: the sample's interval begins when the packet was sent.
        assert_eq!(last, Some(RateSample { prior_delivered: 0, rate: Some(500_000), app_limited: false }));
        // What leaves then is measured from delivery to delivery.
        rates.push(false, Nanos::new(20_000_000));
        rates.deliver(0, 1_000, Nanos::new(20_000_000), 11_000);
        let sample = rates.sample(Span::millis(5), Nanos::new(30_000_000)).expect("one");
        assert_eq!(sample.rate, Some(50_000), "sent 20 ms after the last that counts");
    }

    #[test]
    fn an_application_without_data_marks_what_is_in_flight() {
        let mut rates = Rates::new();
        rates.limit(0);
        rates.push(true, Nanos::ZERO);
        rates.deliver(0, 1_000, Nanos::ZERO, 1_000);
        assert!(rates.sample(Span::ZERO, Nanos::new(1_000)).expect("one").app_limited);
        assert!(!rates.is_limited(), "it is over");
    }
}
