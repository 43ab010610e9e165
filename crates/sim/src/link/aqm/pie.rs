//! PIE: drops with a probability that a controller moves so that packets wait for the target.
//!
//! Why: cable modems have it (DOCSIS-PIE), and it needs no time stamps.
//! From: RFC 8033 §4 and §5, with de-randomisation (§5.4); the delay is that of the queue itself, not an estimate.
//! Not here: the queue (`link`).
//! Invariant: no packet is dropped in the first 150 ms after the queue was short; the probability is between 0 and 1.

use plimsoll_units::{Nanos, Span};

use super::{Arriving, Verdict};

/// PIE's state for one queue. Times are in seconds, as in the RFC's constants.
#[derive(Clone, Debug)]
pub(in crate::link) struct Pie {
    target: f64,
    update: Span,
    /// When the probability changes next; none before the first packet.
    next: Option<Nanos>,
    probability: f64,
    /// How long packets waited at the last change.
    waited: f64,
    /// For how long no packet is dropped yet.
    allowance: Span,
    /// The probabilities of packets since the last one that was dropped or marked.
    accumulated: f64,
    /// When the wire will have sent all packets.
    free: Nanos,
}

/// Weights of the deviation from the target, and of the change since the last time, per second (§4.2).
const ALPHA: f64 = 0.125;
const BETA: f64 = 1.25;
/// A burst that is let through (§4.4).
const BURST: Span = Span::millis(150);
/// The probability beyond which packets are dropped and not marked (§5.1).
const MARK_BELOW: f64 = 0.1;
/// Below these probabilities a change is divided by the number beside it (§4.2, §5.2).
const SCALE: [(f64, f64); 6] =
    [(0.000_001, 2_048.0), (0.000_01, 512.0), (0.000_1, 128.0), (0.001, 32.0), (0.01, 8.0), (0.1, 2.0)];

impl Pie {
    pub(super) fn new(target: Span, update: Span) -> Self {
        Self {
            target: target.as_secs_f64(),
            update,
            next: None,
            probability: 0.0,
            waited: 0.0,
            allowance: BURST,
            accumulated: 0.0,
            free: Nanos::ZERO,
        }
    }

    pub(super) fn decide(&mut self, packet: &Arriving, chance: impl FnMut() -> f64) -> Verdict {
        self.catch_up(packet.now);
        self.free = packet.free;
        if self.allowance > Span::ZERO || !self.chooses(packet, chance) {
            return Verdict::Pass;
        }
        if packet.ecn && self.probability < MARK_BELOW { Verdict::Mark } else { Verdict::Drop }
    }

    /// Whether this packet is to be dropped or marked (§4.1).
    fn chooses(&mut self, packet: &Arriving, mut chance: impl FnMut() -> f64) -> bool {
        let short = self.waited < self.target / 2.0 && self.probability < 0.2;
        if short || packet.backlog <= 2 * u64::from(packet.len) {
            return false;
        }
        if self.probability == 0.0 {
            self.accumulated = 0.0;
        }
        self.accumulated += self.probability;
        let drawn = chance() <= self.probability;
        let chosen = self.accumulated >= 8.5 || self.accumulated >= 0.85 && drawn;
        if chosen {
            self.accumulated = 0.0;
        }
        chosen
    }

    /// Makes the changes that were due by `now`.
    fn catch_up(&mut self, now: Nanos) {
        let mut next = *self.next.get_or_insert(now + self.update);
        while next <= now {
            if self.is_at_rest(next) {
                // Nothing changes until a packet comes.
                let steps = now.since(next).as_u64() / self.update.as_u64().max(1);
                next += self.update.times(steps);
            }
            self.change(self.free.as_u64().saturating_sub(next.as_u64()));
            next += self.update;
        }
        self.next = Some(next);
    }

    fn is_at_rest(&self, at: Nanos) -> bool {
        self.probability == 0.0 && self.waited == 0.0 && self.free <= at
    }

    /// Moves the probability by the time, in nanoseconds, that packets wait (§4.2).
    fn change(&mut self, waits: u64) {
        let waited = Span::ns(waits).as_secs_f64();
        let mut step = ALPHA * (waited - self.target) + BETA * (waited - self.waited);
        let scale = SCALE.iter().find(|(below, _)| self.probability < *below);
        step /= scale.map_or(1.0, |(_, by)| *by);
        if self.probability >= 0.1 {
            step = step.min(0.02); // §5.2
        }
        let far = waited > 0.25; // §5.3
        self.probability += step + if far { 0.02 } else { 0.0 };
        if waited == 0.0 && self.waited == 0.0 {
            self.probability *= 0.98;
        }
        self.probability = self.probability.clamp(0.0, 1.0);
        let was_short = self.waited < self.target / 2.0;
        self.waited = waited;
        self.allowance = Span::ns(self.allowance.as_u64().saturating_sub(self.update.as_u64()));
        if self.probability == 0.0 && was_short && waited < self.target / 2.0 {
            self.allowance = BURST;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    const MS: u64 = 1_000_000;

    fn pie() -> Pie {
        Pie::new(Span::millis(15), Span::millis(15))
    }

    /// Verdicts about a packet each millisecond, which would wait for `waits` milliseconds.
    fn verdicts(pie: &mut Pie, from: u64, count: u64, waits: u64, ecn: bool) -> Vec<Verdict> {
        let mut chance = Chance::of(7, "pie");
        let packet = |at: u64| Arriving {
            now: Nanos::new(at * MS),
            free: Nanos::new((at + waits) * MS),
            backlog: 100_000,
            len: 1_500,
            ecn,
        };
        (from..from + count).map(|at| pie.decide(&packet(at), || chance.unit())).collect()
    }

    #[test]
    fn a_burst_passes_and_a_standing_queue_is_dropped_from() {
        let mut pie = pie();
        let all = verdicts(&mut pie, 0, 2_000, 60, false);
        assert!(all[..150].iter().all(|&verdict| verdict == Verdict::Pass), "150 ms are let through");
        let dropped = all[150..].iter().filter(|&&verdict| verdict == Verdict::Drop).count();
        assert!(dropped > 50, "{dropped}");
        // A queue that is no longer there takes the probability, and then the burst comes back.
        assert!(verdicts(&mut pie, 30_000, 150, 0, false).iter().all(|&verdict| verdict == Verdict::Pass));
        assert!(pie.probability < 1e-9 && pie.allowance > Span::ZERO, "{pie:?}");
    }

    /// The RFC's controller by hand: 60 ms on a target of 15 give 0.125 * 0.045 + 1.25 * 0.06 for the first step, and the
    /// first part of it for each further one, all divided by the scale of the probability before.
    #[test]
    fn the_probability_moves_as_in_the_rfc() {
        let mut pie = pie();
        pie.change(60 * MS);
        let mut by_hand = (0.125 * 0.045 + 1.25 * 0.06) / 2_048.0;
        assert!((pie.probability - by_hand).abs() < 1e-12);
        pie.change(60 * MS);
        by_hand += 0.125 * 0.045 / 128.0;
        assert!((pie.probability - by_hand).abs() < 1e-12, "{} {by_hand}", pie.probability);
    }

    #[test]
    fn capable_packets_are_marked_below_a_tenth_and_dropped_beyond() {
        let mut pie = pie();
        (pie.probability, pie.waited, pie.allowance, pie.next) =
            (0.05, 0.02, Span::ZERO, Some(Nanos::new(1 << 60)));
        let low = verdicts(&mut pie, 0, 10_000, 20, true);
        let marks = low.iter().filter(|&&verdict| verdict == Verdict::Mark).count();
        // De-randomised: none of the first 16, then one in twenty: each 36th or so.
        assert!(!low.contains(&Verdict::Drop) && (240..330).contains(&marks), "{marks}");
        pie.probability = 0.2;
        let high = verdicts(&mut pie, 20_000, 1_000, 20, true);
        assert!(!high.contains(&Verdict::Mark) && high.contains(&Verdict::Drop));
    }
}
