//! Nodes with many children: how far the grouped order strays from fluid GPS.
//!
//! Many children are sorted by rounded times (QFQ), so packets cannot be compared one by one; service can.

use plimsoll_policy::{NodeId, NodeKind};
use proptest::prelude::*;

use crate::kit::{Plan, ROOT, World, mbps};

const LINK_MBPS: u64 = 1_000;

/// Most that any child is behind and ahead of fluid GPS, all of them backlogged from the start, in bytes.
fn lags(kind: NodeKind, weights: &[u32], lens: &[u32], until: u64) -> (f64, f64) {
    let mut plan = Plan::new(mbps(LINK_MBPS), kind);
    let classes: Vec<NodeId> = weights.iter().map(|&weight| plan.class(ROOT, weight)).collect();
    let mut world = World::new(&plan.program, &plimsoll_nic::Config { ring: 8, ..Default::default() });
    for (&class, &len) in classes.iter().zip(lens.iter().cycle()) {
        world.greedy(class, &[], len);
    }
    world.run(until);
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let (mut behind, mut ahead) = (0_f64, 0_f64);
    let (mut served, mut sum) = (vec![0_f64; weights.len()], 0_f64);
    for sent in &world.sent {
        // Fluid GPS has served `sum` bytes in proportion when this packet begins, and that much more when it ends.
        let child = sent.pull.class.0 as usize - 1;
        let fluid = |sum: f64| sum * f64::from(weights[child]) / total;
        behind = behind.max(fluid(sum) - served[child]);
        served[child] += sent.charge as f64;
        sum += sent.charge as f64;
        ahead = ahead.max(served[child] - fluid(sum));
    }
    for (child, served) in served.iter().enumerate() {
        behind = behind.max(sum * f64::from(weights[child]) / total - served);
    }
    (behind, ahead)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Up to sixteen children: WF²Q+. No class is ahead of fluid GPS by more than a packet, nor behind by more than two.
    #[test]
    fn few_children_stay_within_packets_of_fluid(
        weights in proptest::collection::vec(1_u32..20, 2..=16), lens in proptest::collection::vec(64_u32..=1_500, 1..16),
    ) {
        let (behind, ahead) = lags(NodeKind::Wfq, &weights, &lens, 4_000_000);
        prop_assert!(ahead <= 1_500.0 + 1.0, "ahead by {ahead}");
        prop_assert!(behind <= 2.0 * 1_500.0, "behind by {behind}");
    }

    /// More of them: the bound of QFQ, three packets ahead and a few behind, whatever their number.
    #[test]
    fn many_children_stay_within_packets_of_fluid(
        weights in proptest::collection::vec(1_u32..60, 17..80), lens in proptest::collection::vec(64_u32..=1_500, 1..20),
    ) {
        let (behind, ahead) = lags(NodeKind::Wfq, &weights, &lens, 6_000_000);
        prop_assert!(ahead <= 3.0 * 1_500.0, "ahead by {ahead}");
        prop_assert!(behind <= 6.0 * 1_500.0, "behind by {behind}");
    }
}

#[test]
fn four_thousand_children_get_their_weights() {
    let weights: Vec<u32> = (0..4_096).map(|n| 1 + n % 4).collect();
    let mut plan = Plan::new(mbps(100_000), NodeKind::Wfq);
    let classes: Vec<NodeId> = weights.iter().map(|&weight| plan.class(ROOT, weight)).collect();
    let config = plimsoll_nic::Config { queues: 4_096, ring: 8, ..Default::default() };
    let mut world = World::new(&plan.program, &config);
    for &class in &classes {
        world.greedy(class, &[], 1_500);
    }
    world.run(12_288_000); // 102,400 packets: ten for each weight
    let mut packets = vec![0_u32; classes.len()];
    for sent in &world.sent {
        packets[sent.pull.class.0 as usize - 1] += 1;
    }
    for (child, (&packets, &weight)) in packets.iter().zip(&weights).enumerate() {
        assert!(packets.abs_diff(10 * weight) <= 3, "child {child} of weight {weight} sent {packets}");
    }
}
