//! Naps: the engine's thread wakes up once for what becomes due within a wake-up grain.
//!
//! Why: at 1 Gb/s a thread that wakes for each packet that is due spends four times the CPU time.
//! From: what network cards do with interrupts.
//! Not here: how long a grain is (`plimsoll_policy::Grain`), and sleeping (`wait`).
//! Invariant: no nap while nothing waits for a rate, so a packet that finds the engine empty is not later for it; while much
//! comes, naps are so short that ports do not overflow.

use plimsoll_policy::Grain;
use plimsoll_units::{Nanos, Span};

use crate::dataplane::{ALONE, Turn};

/// What moved since the thread slept last.
#[derive(Debug, Default)]
pub(crate) struct Coalescing {
    moved: usize,
    /// When a frame moved last of a tenant that is not held to its `max`.
    unlimited: Nanos,
}

/// Frames after which a nap is a whole grain: a quarter of what the smallest queues of ports hold.
const FEW: u64 = 64;

impl Coalescing {
    /// How long the thread naps after this turn; `None`: it waits for its ports.
    pub(crate) fn nap(&mut self, turn: &Turn, grain: &Grain, now: Nanos) -> Option<Span> {
        self.moved += turn.moved;
        if turn.unlimited {
            self.unlimited = now;
        }
        if turn.busy {
            return None;
        }
        let moved = core::mem::take(&mut self.moved) as u64;
        let alone = turn.limited && now.since(self.unlimited) >= ALONE;
        let grain = if alone { grain.behind_max } else { grain.span };
        let due = turn.next.map(|next| next.since(now)).filter(|due| *due < grain)?;
        let scaled = if moved > FEW { Span::ns(grain.as_u64() * FEW / moved) } else { grain };
        // What is due later than a short nap would end is waited for, as without naps.
        let nap = [Some(scaled.max(due)), turn.retry, turn.lazily.map(|at| at.since(now))]
            .into_iter()
            .flatten()
            .min()?;
        (nap >= Grain::LEAST).then_some(nap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::new(1_000_000);

    fn turn(moved: usize, next_us: Option<u64>) -> Turn {
        let next = next_us.map(|us| NOW + Span::micros(us));
        Turn { busy: moved > 0, moved, next, lazily: None, retry: None, limited: false, unlimited: false }
    }

    fn grain(policy: &str) -> Grain {
        let checked = plimsoll_policy::check_str("test.yaml", policy).expect("a policy");
        Grain::of(&checked.program)
    }

    #[test]
    fn a_nap_lasts_a_grain_while_packets_wait_and_little_comes() {
        let grain = grain("{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}");
        assert_eq!(grain.span, Span::micros(500));
        let nap = |moved: &[usize], next| {
            let mut coalescing = Coalescing::default();
            assert!(moved.iter().all(|moved| coalescing.nap(&turn(*moved, next), &grain, NOW).is_none()));
            coalescing.nap(&turn(0, next), &grain, NOW)
        };
        assert_eq!(nap(&[], Some(10)), Some(Span::micros(500)));
        assert_eq!(nap(&[40, 20], Some(10)), Some(Span::micros(500)));
        assert_eq!(nap(&[], None), None, "nothing waits");
        assert_eq!(nap(&[], Some(700)), None, "what is due is further away");
        assert_eq!(nap(&[128, 128], Some(10)), Some(Span::micros(125)), "much comes");
        assert_eq!(nap(&[1_000], Some(10)), None, "very much comes");
        let soon = Turn { lazily: Some(NOW + Span::micros(100)), ..turn(0, Some(10)) };
        assert_eq!(Coalescing::default().nap(&soon, &grain, NOW), Some(Span::micros(100)));
    }

    #[test]
    fn no_nap_where_the_policy_asks_for_fine_time() {
        let grain =
            grain("{uplink: {port: memory, rate: 1Gbps, grain: 0us}, tenants: {shop: {port: memory}}}");
        assert_eq!(Coalescing::default().nap(&turn(0, Some(10)), &grain, NOW), None);
    }

    #[test]
    fn a_nap_is_longer_behind_limits_once_other_tenants_have_been_silent_for_a_second() {
        let grain = grain(
            "{uplink: {port: memory, rate: 10Gbps}, tenants: {slow: {port: memory, max: 100Mbps}, other: {port: memory}}}",
        );
        assert_eq!((grain.span, grain.behind_max), (Span::micros(500), Span::micros(1_875)));
        let mut coalescing = Coalescing::default();
        let mut nap = |limited, unlimited, after_ms| {
            let now = NOW + Span::millis(after_ms);
            let next = Some(now + Span::micros(10));
            let turn = |moved| Turn { limited, unlimited, next, ..turn(moved, None) };
            assert!(coalescing.nap(&turn(4), &grain, now).is_none());
            coalescing.nap(&Turn { unlimited: false, ..turn(0) }, &grain, now)
        };
        assert_eq!(nap(true, true, 0), Some(grain.span), "another tenant has sent something");
        assert_eq!(nap(true, false, 999), Some(grain.span), "less than a second ago");
        assert_eq!(nap(true, false, 1_000), Some(grain.behind_max));
        assert_eq!(nap(false, false, 1_001), Some(grain.span), "something waits for the link");
        assert_eq!(nap(true, false, 1_002), Some(grain.behind_max));
        assert_eq!(nap(true, true, 1_003), Some(grain.span));
    }
}
