//! Round-trip times, and the timeouts that follow from them.

use plimsoll_units::Span;

use super::config::Config;

/// Smoothed round trip and its variation (RFC 6298), in integers.
#[derive(Clone, Debug)]
pub(super) struct Rtt {
    /// Eight times the smoothed round trip, ns; zero before the first sample.
    srtt8: u64,
    /// Four times its mean deviation, ns.
    rttvar4: u64,
    /// The least round trip of the connection; `u64::MAX` before the first sample.
    min: u64,
    /// The timeout from these values, without backing off.
    rto: u64,
    /// `rto`, backed off: asked for far more often than it changes.
    timeout: u64,
    backoff: u32,
    min_rto: u64,
    max_rto: u64,
}

impl Rtt {
    pub(super) fn new(config: &Config) -> Self {
        let mut rtt = Self {
            srtt8: 0,
            rttvar4: 0,
            min: u64::MAX,
            rto: config.initial_rto.as_u64(),
            timeout: 0,
            backoff: 0,
            min_rto: config.min_rto.as_u64().min(MAX_SAMPLE),
            max_rto: config.max_rto.as_u64().max(1),
        };
        rtt.update_timeout();
        rtt
    }

    /// Takes a sample of data that was sent once (Karn's algorithm).
    pub(super) fn sample(&mut self, rtt: Span) {
        // Two ends at one place still take some time: zero means that there is no sample yet.
        let rtt = rtt.as_u64().clamp(1, MAX_SAMPLE);
        self.min = self.min.min(rtt);
        if self.srtt8 == 0 {
            self.srtt8 = rtt << 3;
            self.rttvar4 = rtt << 1;
        } else {
            let error = rtt.abs_diff(self.srtt8 >> 3);
            self.rttvar4 = self.rttvar4 - (self.rttvar4 >> 2) + error;
            self.srtt8 = self.srtt8 - (self.srtt8 >> 3) + rtt;
        }
        self.rto = (self.srtt8 >> 3) + self.rttvar4.max(self.min_rto);
        self.update_timeout();
    }

    /// The smoothed round trip, ns; zero before the first sample.
    pub(super) fn smoothed(&self) -> u64 {
        self.srtt8 >> 3
    }

    /// The least round trip so far, ns; zero before the first sample.
    pub(super) fn least(&self) -> u64 {
        if self.min == u64::MAX { 0 } else { self.min }
    }

    /// The timeout as it stands, backed off.
    pub(super) fn timeout(&self) -> Span {
        Span::ns(self.timeout)
    }

    /// Doubles the timeout (RFC 6298 §5.5).
    pub(super) fn back_off(&mut self) {
        // 2^17 times the least timeout that can be set is longer than any ceiling.
        self.backoff = (self.backoff + 1).min(17);
        self.update_timeout();
    }

    /// New data was acknowledged: the path works.
    pub(super) fn reset_backoff(&mut self) {
        if self.backoff > 0 {
            self.backoff = 0;
            self.update_timeout();
        }
    }

    /// Whether the last timeout brought nothing.
    pub(super) fn is_backed_off(&self) -> bool {
        self.backoff > 0
    }

    fn update_timeout(&mut self) {
        self.timeout = self.rto.saturating_mul(1 << self.backoff).clamp(1, self.max_rto);
    }

    pub(super) fn min_rto(&self) -> u64 {
        self.min_rto
    }
}

/// A quarter of an hour: longer is a broken driver, and eight times this must fit.
const MAX_SAMPLE: u64 = 900 * plimsoll_units::NS_PER_SEC;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_has_a_margin_of_at_least_the_floor() {
        let mut rtt = Rtt::new(&Config::default());
        assert_eq!(rtt.timeout(), Span::secs(1), "before any sample");
        rtt.sample(Span::millis(10));
        assert_eq!(rtt.timeout(), Span::millis(210), "Linux's floor is of the margin");
        rtt.sample(Span::millis(410)); // error 400 ms: deviation 4 x 5 x 3/4 + 400 = 415; smoothed 10 + 400/8 = 60
        assert_eq!(rtt.timeout(), Span::millis(475));
    }

    #[test]
    fn backing_off_doubles_up_to_the_ceiling() {
        let mut rtt = Rtt::new(&Config::default());
        rtt.sample(Span::millis(10));
        rtt.back_off();
        assert_eq!(rtt.timeout(), Span::millis(420));
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(), Span::secs(120));
        rtt.reset_backoff();
        assert_eq!(rtt.timeout(), Span::millis(210));
    }
}
