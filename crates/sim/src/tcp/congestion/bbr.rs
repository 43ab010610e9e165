//! BBR, version 1, as in Linux's `tcp_bbr.c`: steers by the path's bandwidth and least round trip, and not by losses.
//!
//! From: Cardwell et al., "BBR: Congestion-Based Congestion Control" (2016), and Linux 6.18, in bytes and nanoseconds.
//! Not here: Linux's detection of policers (`lt_bw`), which lowers the rate of a flow that loses a fifth of its packets over
//! four round trips; and ECN, to which version 1 does not react.
//! Invariant: the window is four segments at least; the bandwidth is the highest sample of the last ten round trips.

mod filter;

use plimsoll_units::{NS_PER_SEC, Nanos, Span};

use self::filter::{Aggregation, Highest};
use crate::tcp::rate::RateSample;

/// The model of the path, and how it is probed now.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct Bbr {
    mss: u64,
    initial: u64,
    mode: Mode,
    /// Round trips so far, and the bytes whose delivery ends this one.
    rounds: u64,
    round_end: u64,
    round_start: bool,
    /// Bytes a second.
    bandwidth: Highest,
    aggregation: Aggregation,
    /// The least round trip, ns, and when it was measured; `u64::MAX` before that.
    min_rtt: u64,
    min_rtt_at: Nanos,
    /// The bandwidth at the last growth by a quarter in startup, and the round trips without another.
    full_bandwidth: u64,
    full_count: u32,
    full: bool,
    cycle: usize,
    cycle_at: Nanos,
    /// When the probe of the round trip is over, once the path has emptied; and whether a round trip has passed since.
    probe_until: Option<Nanos>,
    probe_round_done: bool,
    /// The window before recovery, or before the round trip was probed.
    prior_window: u64,
    recovering: bool,
    conserving: bool,
    restarting: bool,
    /// Bytes a second at which segments leave.
    pacing_rate: u64,
    seen_rtt: bool,
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Doubles the rate each round trip until the bandwidth no longer grows.
    Startup,
    /// Lets the queue that startup has built drain.
    Drain,
    /// Sends at the bandwidth, and probes for more by turns.
    Bandwidth,
    /// Empties the path for 200 ms, to see its least round trip.
    RoundTrip,
}

/// The news in one acknowledgement. Sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Arrival {
    pub(in crate::tcp) sample: Option<RateSample>,
    /// Delivered by this acknowledgement, and in all.
    pub(in crate::tcp) acked: u64,
    pub(in crate::tcp) delivered: u64,
    /// Newly taken for lost.
    pub(in crate::tcp) lost: u64,
    pub(in crate::tcp) in_flight_before: u64,
    pub(in crate::tcp) in_flight: u64,
    /// The round trip of the last that was acknowledged, ns; `delayed` if its acknowledgement may have waited.
    pub(in crate::tcp) rtt: Option<u64>,
    pub(in crate::tcp) delayed: bool,
    /// Losses are being repaired, after a timeout or without one.
    pub(in crate::tcp) recovering: bool,
    /// When pacing lets the next segment leave.
    pub(in crate::tcp) next_send: Nanos,
    pub(in crate::tcp) now: Nanos,
}

impl Bbr {
    pub(super) fn new(mss: u64, initial: u64, seed: u64) -> Self {
        let mut bbr = Self {
            mss,
            initial,
            mode: Mode::Startup,
            rounds: 0,
            round_end: 0,
            round_start: false,
            bandwidth: Highest::default(),
            aggregation: Aggregation::default(),
            min_rtt: u64::MAX,
            min_rtt_at: Nanos::ZERO,
            full_bandwidth: 0,
            full_count: 0,
            full: false,
            cycle: 0,
            cycle_at: Nanos::ZERO,
            probe_until: None,
            probe_round_done: false,
            prior_window: 0,
            recovering: false,
            conserving: false,
            restarting: false,
            pacing_rate: 0,
            seen_rtt: false,
            seed,
        };
        bbr.pace_by_round_trip(initial, 1_000_000);
        bbr
    }

    /// Bytes a second at which segments leave.
    pub(super) fn pacing_rate(&self) -> u64 {
        self.pacing_rate
    }

    /// Takes an acknowledgement; returns the new window. `app_limited` becomes true where its samples would be too low.
    pub(super) fn update(&mut self, news: &Arrival, window: u64, app_limited: &mut bool) -> u64 {
        self.update_bandwidth(news);
        if news.acked > 0 && news.sample.is_some_and(|sample| sample.rate.is_some()) {
            self.aggregation.update(news.acked, window, self.bandwidth.value(), self.round_start, news.now);
        }
        self.update_cycle(news);
        self.check_full(news);
        self.check_drain(news);
        let window = self.update_min_rtt(news, window, app_limited);
        self.update_pacing(news, window);
        self.next_window(news, window)
    }

    /// Losses are to be repaired: the window comes back after that.
    pub(super) fn note_loss(&mut self, window: u64) {
        self.prior_window = if self.recovering || self.mode == Mode::RoundTrip {
            self.prior_window.max(window)
        } else {
            window
        };
    }

    /// Nothing has come back for a timeout.
    pub(super) fn note_timeout(&mut self, window: u64) {
        self.note_loss(window);
        (self.recovering, self.full_bandwidth, self.round_start) = (true, 0, true);
    }

    /// Nothing had been lost.
    pub(super) fn note_needless(&mut self) {
        (self.full_bandwidth, self.full_count) = (0, 0);
    }

    /// The application sends again after it had nothing to send.
    pub(super) fn note_restart(&mut self, now: Nanos) {
        self.restarting = true;
        self.aggregation.restart(now);
        if self.mode == Mode::Bandwidth {
            self.pacing_rate = self.rate(UNIT);
        }
    }

    fn update_bandwidth(&mut self, news: &Arrival) {
        self.round_start = false;
        let Some(sample) = news.sample else { return };
        let Some(rate) = sample.rate else { return };
        if sample.prior_delivered >= self.round_end {
            self.begin_round(news);
            self.conserving = false;
        }
        if !sample.app_limited || rate >= self.bandwidth.value() {
            self.bandwidth.update(rate, self.rounds);
        }
    }

    fn begin_round(&mut self, news: &Arrival) {
        self.round_end = news.delivered;
        self.rounds += 1;
        self.round_start = true;
    }

    /// In turns of a round trip: a quarter more than the bandwidth, a quarter less, and six times the bandwidth.
    fn update_cycle(&mut self, news: &Arrival) {
        if self.mode != Mode::Bandwidth {
            return;
        }
        let whole = (news.now - self.cycle_at).as_u64() > self.min_rtt;
        let in_net = |bbr: &Self| bbr.in_network(news, news.in_flight_before);
        let over = match CYCLE[self.cycle] {
            UNIT => whole,
            gain if gain > UNIT => whole && (news.lost > 0 || in_net(self) >= self.inflight(gain)),
            _ => whole || in_net(self) <= self.inflight(UNIT),
        };
        if over {
            self.advance_cycle(news.now);
        }
    }

    fn advance_cycle(&mut self, now: Nanos) {
        (self.cycle, self.cycle_at) = ((self.cycle + 1) % CYCLE.len(), now);
    }

    fn check_full(&mut self, news: &Arrival) {
        if self.full || !self.round_start || news.sample.is_some_and(|sample| sample.app_limited) {
            return;
        }
        if self.bandwidth.value() >= self.full_bandwidth / 4 * 5 {
            (self.full_bandwidth, self.full_count) = (self.bandwidth.value(), 0);
            return;
        }
        self.full_count += 1;
        self.full = self.full_count >= FULL_ROUNDS;
    }

    fn check_drain(&mut self, news: &Arrival) {
        if self.mode == Mode::Startup && self.full {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && self.in_network(news, news.in_flight) <= self.inflight(UNIT) {
            self.probe_bandwidth(news.now);
        }
    }

    /// Begins at a turn of its own, but not at the one that sends less.
    fn probe_bandwidth(&mut self, now: Nanos) {
        self.mode = Mode::Bandwidth;
        // Knuth's multiplicative step; the upper bits are the better ones.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let turn = ((u128::from(self.seed) * (CYCLE.len() as u128 - 1)) >> 64) as usize;
        self.cycle = CYCLE.len() - 1 - turn;
        self.advance_cycle(now);
    }

    /// Every ten seconds without a lower one the round trip is probed. Returns the window, which comes back after that.
    fn update_min_rtt(&mut self, news: &Arrival, mut window: u64, app_limited: &mut bool) -> u64 {
        let expired = news.now > self.min_rtt_at + MIN_RTT_WINDOW;
        if let Some(rtt) = news.rtt.filter(|rtt| *rtt < self.min_rtt || (expired && !news.delayed)) {
            (self.min_rtt, self.min_rtt_at) = (rtt, news.now);
        }
        if expired && !self.restarting && self.mode != Mode::RoundTrip {
            self.mode = Mode::RoundTrip;
            self.note_loss(window);
            self.prior_window = self.prior_window.max(window);
            self.probe_until = None;
        }
        if self.mode == Mode::RoundTrip {
            *app_limited = true;
            match self.probe_until {
                None if news.in_flight <= LEAST * self.mss => {
                    self.probe_until = Some(news.now + PROBE);
                    self.probe_round_done = false;
                    self.round_end = news.delivered;
                }
                None => {}
                Some(until) => {
                    self.probe_round_done |= self.round_start;
                    if self.probe_round_done && news.now > until {
                        self.min_rtt_at = news.now;
                        window = window.max(self.prior_window);
                        if self.full { self.probe_bandwidth(news.now) } else { self.mode = Mode::Startup }
                    }
                }
            }
        }
        self.restarting &= news.acked == 0;
        window
    }

    fn update_pacing(&mut self, news: &Arrival, window: u64) {
        if let Some(rtt) = news.rtt.filter(|_| !self.seen_rtt) {
            self.seen_rtt = true;
            self.pace_by_round_trip(window, rtt);
        }
        let rate = self.rate(self.pacing_gain());
        if self.full || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn pace_by_round_trip(&mut self, window: u64, rtt: u64) {
        let rate = u128::from(window) * u128::from(NS_PER_SEC) / u128::from(rtt.max(1));
        let rate = rate * u128::from(HIGH_GAIN) / u128::from(UNIT);
        self.pacing_rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
    }

    /// A hundredth less than the bandwidth, so that no queue is left.
    fn rate(&self, gain: u64) -> u64 {
        let rate = u128::from(self.bandwidth.value()) * u128::from(gain) * 99 / (100 * u128::from(UNIT));
        u64::try_from(rate).unwrap_or(u64::MAX).max(1)
    }

    fn pacing_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::Bandwidth => CYCLE[self.cycle],
            Mode::RoundTrip => UNIT,
        }
    }

    fn window_gain(&self) -> u64 {
        match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::Bandwidth => 2 * UNIT,
            Mode::RoundTrip => UNIT,
        }
    }

    fn next_window(&mut self, news: &Arrival, window: u64) -> u64 {
        let mut next = window;
        if news.acked > 0 {
            let (kept, conserved) = self.recover(news, window);
            next = kept;
            if !conserved {
                next = self.grow(news, next);
            }
            next = next.max(LEAST * self.mss);
        }
        if self.mode == Mode::RoundTrip { next.min(LEAST * self.mss) } else { next }
    }

    fn grow(&self, news: &Arrival, window: u64) -> u64 {
        let extra = if self.full { self.aggregation.extra(self.bandwidth.value()) } else { 0 };
        let target = self.quantised(self.product(self.window_gain()) + extra);
        if self.full {
            (window + news.acked).min(target)
        } else if window < target || news.delivered < self.initial {
            window + news.acked
        } else {
            window
        }
    }

    /// In the first round trip of recovery a packet leaves for each that arrives; the window comes back at its end.
    fn recover(&mut self, news: &Arrival, window: u64) -> (u64, bool) {
        let mut window = window.saturating_sub(news.lost).max(self.mss);
        if news.recovering && !self.recovering {
            self.conserving = true;
            self.round_end = news.delivered;
            window = news.in_flight + news.acked;
        } else if self.recovering && !news.recovering {
            self.conserving = false;
            window = window.max(self.prior_window);
        }
        self.recovering = news.recovering;
        if self.conserving {
            return (window.max(news.in_flight + news.acked), true);
        }
        (window, false)
    }

    /// Bandwidth times least round trip, with a gain.
    fn product(&self, gain: u64) -> u64 {
        if self.min_rtt == u64::MAX {
            return self.initial;
        }
        let bytes = u128::from(self.bandwidth.value()) * u128::from(self.min_rtt) / u128::from(NS_PER_SEC);
        u64::try_from(bytes * u128::from(gain) / u128::from(UNIT)).unwrap_or(u64::MAX / 4)
    }

    fn inflight(&self, gain: u64) -> u64 {
        self.quantised(self.product(gain))
    }

    /// Room for the host's bursts and for delayed acknowledgements: whole pairs of segments.
    fn quantised(&self, window: u64) -> u64 {
        let probing = self.mode == Mode::Bandwidth && self.cycle == 0;
        let window = window + 3 * self.burst() + if probing { 2 * self.mss } else { 0 };
        window.div_ceil(2 * self.mss) * 2 * self.mss
    }

    /// What leaves at a time: a millisecond's bytes, two segments at least.
    fn burst(&self) -> u64 {
        let least = if self.pacing_rate < SLOW { self.mss } else { 2 * self.mss };
        let millisecond = (self.pacing_rate >> 10).min(LONGEST);
        (millisecond - millisecond % self.mss).max(least)
    }

    /// Of `in_flight`, what will be left in the network when the next segment may leave.
    fn in_network(&self, news: &Arrival, in_flight: u64) -> u64 {
        let wait = news.next_send.max(news.now) - news.now;
        let arrives = u128::from(self.bandwidth.value()) * u128::from(wait.as_u64()) / u128::from(NS_PER_SEC);
        let burst = if self.pacing_gain() > UNIT { self.burst() } else { 0 };
        (in_flight + burst).saturating_sub(u64::try_from(arrives).unwrap_or(u64::MAX))
    }
}

/// Gains are in units of 2^-8.
const UNIT: u64 = 256;
/// 2 / ln 2: enough to double the rate each round trip.
const HIGH_GAIN: u64 = 739;
const DRAIN_GAIN: u64 = 88;
const CYCLE: [u64; 8] = [UNIT * 5 / 4, UNIT * 3 / 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT];
/// Round trips without growth after which the pipe is full.
const FULL_ROUNDS: u32 = 3;
/// The least window, in segments.
const LEAST: u64 = 4;
const MIN_RTT_WINDOW: Span = Span::secs(10);
const PROBE: Span = Span::millis(200);
/// 1.2 Mb/s: below it one segment leaves at a time.
const SLOW: u64 = 150_000;
const LONGEST: u64 = 65_536;
