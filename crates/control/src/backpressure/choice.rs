//! The choice: which of the reported heavy hitters are slowed down.
//!
//! Why: CPU time follows packets, so the flows with a large part of the packets are the cause of an overload.
//! From: MIMIC §III-A. Not the top flow only: that would make room for the next one. The threshold of 1/10 is ours.
//! Not here: counting packets, and what happens to a chosen flow.
//! Invariant: the choice depends on the set of reports, not on their order.

use core::cmp::Reverse;

use plimsoll_queues::Heavy;

use crate::{PerMille, WHOLE};

/// Chooses each flow with more than `over` thousandths of the packets of all `reported` flows, and returns the top flow's part,
/// rounded down (zero where there are no packets).
///
/// `chosen` is overwritten: most packets first, and the lower key first among equals. Each key must be listed once.
pub fn choose<K: Copy + Ord>(reported: &[Heavy<K>], over: PerMille, chosen: &mut Vec<Heavy<K>>) -> PerMille {
    let all: u128 = reported.iter().map(|heavy| u128::from(heavy.sent.packets)).sum();
    chosen.clear();
    chosen.extend(reported.iter().filter(|heavy| is_chosen(heavy.sent.packets, over, all)));
    order(chosen);
    let top = reported.iter().map(|heavy| heavy.sent.packets).max().unwrap_or(0);
    // At most 1,000.
    (u128::from(top) * u128::from(WHOLE)).checked_div(all).unwrap_or(0) as PerMille
}

/// Whether a flow is chosen: these packets are more than `over` thousandths of `all`.
pub(super) fn is_chosen(packets: u64, over: PerMille, all: u128) -> bool {
    u128::from(packets) * u128::from(WHOLE) > all * u128::from(over)
}

/// Brings chosen flows into their order.
pub(super) fn order<K: Copy + Ord>(chosen: &mut [Heavy<K>]) {
    chosen.sort_unstable_by_key(|heavy| (Reverse(heavy.sent.packets), heavy.key));
}

/// Chooses each flow with at least half of the packets of the top one of `flows`, and leaves them in `flows`, ordered as
/// [`choose`] does.
///
/// For an overload by many equal flows, of which none has a large part of the packets.
pub(super) fn choose_like_top<K: Copy + Ord>(flows: &mut Vec<Heavy<K>>) {
    let top = flows.iter().map(|heavy| heavy.sent.packets).max().unwrap_or(0);
    flows.retain(|heavy| heavy.sent.packets >= top.div_ceil(2));
    order(flows);
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_queues::Tally;
    use proptest::prelude::*;

    fn heavy(key: u32, packets: u64) -> Heavy<u32> {
        Heavy { key, sent: Tally { packets, bytes: packets * 1_500 } }
    }

    fn keys(reported: &[Heavy<u32>]) -> (PerMille, Vec<u32>) {
        let mut chosen = Vec::new();
        let top = choose(reported, 100, &mut chosen);
        (top, chosen.iter().map(|heavy| heavy.key).collect())
    }

    #[test]
    fn chooses_those_with_more_than_a_tenth_of_the_packets() {
        let reported = [heavy(1, 100), heavy(2, 101), heavy(3, 600), heavy(4, 199)];
        assert_eq!(keys(&reported), (600, vec![3, 4, 2]), "exactly a tenth is not more than a tenth");
    }

    #[test]
    fn flows_with_equal_packets_are_ordered_by_key() {
        assert_eq!(keys(&[heavy(9, 50), heavy(3, 50), heavy(5, 50)]), (333, vec![3, 5, 9]));
    }

    #[test]
    fn chooses_none_of_many_equals_and_none_of_none() {
        let many: Vec<_> = (0..100).map(|key| heavy(key, 7)).collect();
        assert_eq!(keys(&many), (10, vec![]));
        assert_eq!(keys(&[]), (0, vec![]));
        assert_eq!(keys(&[heavy(1, 0)]), (0, vec![]));
    }

    proptest! {
        /// Fewer than ten flows can each have more than a tenth; the order of reports is of no account.
        #[test]
        fn is_bounded_and_ignores_order(packets in proptest::collection::vec(any::<u64>(), 0..50)) {
            let numbered = |(key, &packets)| Heavy { key, sent: Tally { packets, bytes: 0 } };
            let mut reported: Vec<Heavy<u32>> = (0..).zip(&packets).map(numbered).collect();
            let forwards = keys(&reported);
            prop_assert!(forwards.1.len() < 10 && forwards.0 <= 1_000);
            reported.reverse();
            prop_assert_eq!(keys(&reported), forwards);
        }
    }
}
