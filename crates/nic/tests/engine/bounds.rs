//! The delay bounds that `plimsoll check` prints: no run exceeds them.

use plimsoll_nic::{Config, Descriptor};
use plimsoll_policy::{FlowOrder, Form, NodeId, NodeKind, bounds_with};
use plimsoll_units::Bytes;
use proptest::prelude::*;

use crate::cases::cases;
use crate::kit::{MS, World};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// One class sends frame by frame at its guaranteed rate, all others flood.
    #[test]
    fn no_packet_waits_longer_than_its_bound(case in cases(12, 6, false), grouped: bool, chosen in 0_usize..12, lens in proptest::collection::vec(64_u32..=1_500, 12)) {
        let mut case = case;
        case.form = if grouped { Form::Grouped } else { Form::Exact };
        let mut program = case.program();
        let leaves = case.leaves();
        let class = NodeId(leaves[chosen % leaves.len()] as u32);
        program.nodes[class.0 as usize].kind = NodeKind::Class(FlowOrder::Fifo);
        let bounds = bounds_with(&program, Bytes::new(case.pull));
        let bound = bounds.iter().find(|bound| bound.class == class).expect("a bound for each class");
        let (Some(rate), Some(delay)) = (bound.guaranteed, bound.delay) else { return Ok(()) };
        // What limits add is not part of the promise.
        if program.path(class).any(|at| program.node(at).max.is_some()) {
            return Ok(());
        }
        // A round of long turns may keep back more small frames than rings usually hold.
        let mut world = World::new(&program, &Config { ring: 1 << 12, ..case.config() });
        for (n, &leaf) in leaves.iter().enumerate() {
            if leaf != class.0 as usize {
                for _ in 0..1 + n % 3 {
                    world.greedy_with(NodeId(leaf as u32), &[], Descriptor { len: lens[n % 12], ..Descriptor::default() });
                }
            }
        }
        let probe = world.open(class, &[]);
        let len = lens[chosen];
        let gap = rate.wire_time(Bytes::new(u64::from(len) + case.overhead)).as_u64();
        world.run(MS / 3);
        for n in 0..(4 * MS / gap).clamp(3, 400) {
            world.run(world.now + if n % 7 == 6 { 3 * gap } else { gap });
            prop_assert!(world.post(probe, Descriptor { len, ..Descriptor::default() }).is_ok(), "the ring is full: far behind");
            world.bell(probe);
            world.poll();
        }
        world.run(world.now + delay.as_u64());
        let own = |charge: u64| program.link.wire_time(Bytes::new(charge)).as_u64();
        let waits = world.sent.iter().filter(|sent| sent.pull.queue == probe);
        let worst = waits.map(|sent| sent.at + own(sent.charge) - sent.pull.arrived.as_u64()).max();
        let worst = worst.expect("the probe sent something");
        prop_assert!(worst <= delay.as_u64(), "{worst} ns, promised {delay} ({}) at {rate}", bound.why);
    }
}
