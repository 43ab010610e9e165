//! Naps: the engine's thread wakes up once for what becomes due within a wake-up grain.
//!
//! Why: at 1 Gb/s a thread that wakes for each packet that is due spends four times the CPU time.
//! From: what network cards do with interrupts.
//! Not here: how long a grain is (`plimsoll_policy::Grain`), and sleeping (`wait`).
//! Invariant: no nap while nothing waits for a rate, so a packet that finds the engine empty is not later for it; while much
//! comes, naps are so short that ports do not overflow.

use plimsoll_policy::Grain;
use plimsoll_units::{Nanos, Span};

use crate::dataplane::Turn;

/// What moved since the thread slept last.
#[derive(Debug, Default)]
pub(crate) struct Coalescing {
    moved: usize,
    /// Whether any of it was of a tenant of which nothing waited.
    unlimited: bool,
}

/// Frames after which a nap is a whole grain: a quarter of what the smallest queues of ports hold.
const FEW: u64 = 64;

impl Coalescing {
    /// How long the thread naps after this turn; `None`: it waits for its ports.
    pub(crate) fn nap(&mut self, turn: &Turn, grain: &Grain, now: Nanos) -> Option<Span> {
        self.moved += turn.moved;
        self.unlimited |= turn.unlimited;
        if turn.busy {
            return None;
        }
        let Self { moved, unlimited } = core::mem::take(self);
        let moved = moved as u64;
        let grain = if turn.limited && !unlimited { grain.behind_limits } else { grain.span };
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
    fn a_nap_is_longer_while_packets_wait_for_limits_alone_and_only_their_tenants_move_frames() {
        let grain = grain(
            "{uplink: {port: memory, rate: 10Gbps}, tenants: {slow: {port: memory, max: 100Mbps}, other: {port: memory}}}",
        );
        assert_eq!((grain.span, grain.behind_limits), (Span::micros(500), Span::micros(1_875)));
        let nap = |limited, unlimited| {
            let mut coalescing = Coalescing::default();
            assert!(coalescing.nap(&Turn { unlimited, ..turn(4, Some(10)) }, &grain, NOW).is_none());
            coalescing.nap(&Turn { limited, ..turn(0, Some(10)) }, &grain, NOW)
        };
        assert_eq!(nap(true, false), Some(grain.behind_limits));
        assert_eq!(nap(false, false), Some(grain.span), "something waits for the link");
        assert_eq!(nap(true, true), Some(grain.span), "another tenant has sent something");
    }
}
