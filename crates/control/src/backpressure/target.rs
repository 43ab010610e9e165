//! The target rate that brings an overloaded thing below its release threshold.
//!
//! Why: a fixed target slows a flow down as far where little is too much as where much is.
//! From: MIMIC §III-C has a rate "based on CPU load" and leaves the law open; this one is ours.
//! Not here: measuring, and when it is applied.
//! Invariant: a step lowers a rate by at most a factor of 4 and raises it by at most half.
//!
//! Each packet is taken to cost the same CPU time. The excess load, as packets, is divided over the chosen flows by their
//! packets: each flow gives up the same part of its rate. What flows are to give up already and still send is taken off first.

use crate::{PerMille, WHOLE};

/// Packets per second of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sends {
    /// As measured.
    pub(super) now: u64,
    /// When it keeps to its target.
    pub(super) allowed: u64,
}

/// The factor, in parts of [`ONE`], by which the `allowed` rates of flows must change for the load to reach `aim`.
///
/// `used` is the load now, with `all` packets per second. `others` are flows whose targets stay, `flows` those that change.
pub(super) fn factor(used: PerMille, aim: PerMille, all: u64, others: Sends, flows: Sends) -> u64 {
    let flows_left = i128::from(flows.allowed.max(1));
    let allowed = i128::from(used) - i128::from(aim);
    let excess = i128::from(all) * allowed / i128::from(used.max(1));
    let pending = |sends: Sends| i128::from(sends.now.saturating_sub(sends.allowed));
    let left = flows_left - (excess - pending(others) - pending(flows));
    let factor = left.saturating_mul(i128::from(ONE)) / flows_left;
    factor.clamp(i128::from(ONE / 4), i128::from(ONE + ONE / 2)) as u64
}

/// The load if flows with `now` packets per second of `all` sent `wanted` instead. Saturates.
pub(super) fn load_with(used: PerMille, all: u64, now: u64, wanted: u64) -> PerMille {
    let more = u128::from(used) * u128::from(wanted.saturating_sub(now));
    let more = more.checked_div(u128::from(all.max(now))).unwrap_or(0);
    PerMille::try_from(u128::from(used) + more).unwrap_or(PerMille::MAX)
}

/// The load if flows with `now` packets per second of `all` brought this much load instead. Saturates.
pub(super) fn load_with_brought(used: PerMille, all: u64, now: u64, brought: PerMille) -> PerMille {
    let own = (u128::from(used) * u128::from(now)).checked_div(u128::from(all.max(now))).unwrap_or(0);
    let others = u128::from(used) - own;
    PerMille::try_from(others + u128::from(brought)).unwrap_or(PerMille::MAX)
}

/// The part of `load` that belongs to `packets` of `all`.
pub(super) fn part_of(load: PerMille, packets: u64, all: u64) -> PerMille {
    let part = u128::from(load) * u128::from(packets.min(all));
    // At most `load`.
    part.checked_div(u128::from(all)).unwrap_or(0) as PerMille
}

/// The factor that changes nothing.
pub(super) const ONE: u64 = 64 * WHOLE;

#[cfg(test)]
mod tests {
    use super::*;

    fn even(now: u64) -> Sends {
        Sends { now, allowed: now }
    }

    /// A core at 90 % with 600,000 packets a second, 200,000 of them of heavy flows: 67.5 % is a quarter less, 150,000.
    #[test]
    fn the_chosen_flows_give_up_the_excess() {
        assert_eq!(factor(900, 675, 600_000, Sends::default(), even(200_000)), ONE / 4);
        assert_eq!(factor(900, 675, 600_000, Sends::default(), even(300_000)), ONE / 2);
        let pending = Sends { now: 300_000, allowed: 150_000 };
        assert_eq!(factor(900, 675, 600_000, Sends::default(), pending), ONE, "as soon as they obey");
        assert_eq!(factor(900, 675, 600_000, pending, even(10)), ONE);
    }

    #[test]
    fn steps_are_bounded() {
        assert_eq!(factor(1_000, 0, u64::MAX, Sends::default(), even(u64::MAX)), ONE / 4);
        assert_eq!(factor(0, 1_000, u64::MAX, Sends::default(), even(1)), ONE + ONE / 2);
        assert_eq!(factor(450, 675, 600_000, Sends::default(), even(300_000)), ONE + ONE / 2);
    }

    #[test]
    fn a_flow_that_returns_brings_what_it_brought() {
        assert_eq!(part_of(800, 30, 40), 600);
        assert_eq!([part_of(800, 50, 40), part_of(800, 0, 0)], [800, 0]);
        assert_eq!(load_with_brought(400, 100, 50, 600), 800);
        assert_eq!(load_with_brought(400, 10, 50, 600), 600, "all is its own");
        assert_eq!(load_with_brought(400, 0, 0, 600), 1_000);
        assert_eq!(load_with_brought(PerMille::MAX, 1, 0, 1), PerMille::MAX);
    }

    #[test]
    fn a_flow_that_returns_brings_its_load() {
        assert_eq!(load_with(600, 400_000, 100_000, 300_000), 900);
        assert_eq!(load_with(600, 0, 0, 300_000), 600);
        assert_eq!(load_with(1, 1, 0, u64::MAX), PerMille::MAX);
    }
}
