//! The delay bounds that `plimsoll check` prints: no run exceeds them.

use plimsoll_nic::{Config, Descriptor};
use plimsoll_policy::{Codel, FlowOrder, Form, NodeId, NodeKind, bounds_with};
use plimsoll_units::{Bytes, Span};
use proptest::prelude::*;

use crate::cases::cases;
use crate::kit::{MS, World};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// One class sends frame by frame at the rate up to which its bound holds, all others flood. With `flows: fq` it has three
    /// flows, and the third frame of three begins one anew.
    #[test]
    fn no_packet_waits_longer_than_its_bound(case in cases(12, 6, false), grouped: bool, fq: bool, chosen in 0_usize..12, lens in proptest::collection::vec(64_u32..=1_500, 12)) {
        let mut case = case;
        case.form = if grouped { Form::Grouped } else { Form::Exact };
        let mut program = case.program();
        let leaves = case.leaves();
        let class = NodeId(leaves[chosen % leaves.len()] as u32);
        let codel = Codel { target: Span::micros(50), interval: Span::millis(1) };
        let order = if fq { FlowOrder::Fq(codel) } else { FlowOrder::Fifo };
        program.nodes[class.0 as usize].kind = NodeKind::Class(order);
        let bounds = bounds_with(&program, Bytes::new(case.pull));
        let bound = bounds.iter().find(|bound| bound.class == class).expect("a bound for each class");
        let (Some(rate), Some(delay)) = (bound.delay_up_to, bound.delay) else { return Ok(()) };
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
        let probes: Vec<_> = (0..if fq { 3 } else { 1 }).map(|_| world.open(class, &[])).collect();
        let len = lens[chosen];
        let gap = rate.wire_time(Bytes::new(u64::from(len) + case.overhead)).as_u64();
        world.run(MS / 3);
        for n in 0..(4 * MS / gap).clamp(3, 400) {
            world.run(world.now + if n % 7 == 6 { 3 * gap } else { gap });
            let probe = probes[if n % 3 == 2 { (n / 3 % 2 + 1) as usize % probes.len() } else { 0 }];
            prop_assert!(world.post(probe, Descriptor { len, ..Descriptor::default() }).is_ok(), "the ring is full: far behind");
            world.bell(probe);
            world.poll();
        }
        world.run(world.now + delay.as_u64());
        let own = |charge: u64| program.link.wire_time(Bytes::new(charge)).as_u64();
        let waits = world.sent.iter().filter(|sent| probes.contains(&sent.pull.queue));
        let worst = waits.map(|sent| sent.at + own(sent.charge) - sent.pull.arrived.as_u64()).max();
        let worst = worst.expect("the probe sent something");
        prop_assert!(worst <= delay.as_u64(), "{worst} ns, promised {delay} ({}) at {rate}", bound.why);
    }
}
