//! A tree that is one row of tenants has a loop of its own: what leaves is what leaves where a limit that no flow is behind keeps the
//! engine from it.

use plimsoll_nic::{Config, Descriptor, QueueId};
use plimsoll_policy::{Codel, FlowOrder, NodeKind, Program};
use plimsoll_units::{BitRate, Span};
use proptest::prelude::*;

use crate::kit::{Plan, ROOT, World, mbps, placement};

/// Tenants by weight, more than a node looks at one by one, each with up to five flow queues; with an idle limit or without.
fn plan(weights: &[u32], order: FlowOrder, limited: bool) -> Program {
    let mut plan = Plan::new(BitRate::gbps(8), NodeKind::Wfq);
    for &weight in weights {
        plan.node(ROOT, NodeKind::Class(order), weight);
    }
    if limited {
        plan.limit("idle", mbps(1), 1_500);
    }
    plan.program
}

#[derive(Clone, Debug)]
enum Step {
    Post { flow: usize, count: usize, len: u32, segment: u16 },
    Run(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![60_u32..1_500, Just(1_500)];
    let segment = prop_oneof![4 => Just(0_u16), 1 => 200_u16..1_400];
    let post = (any::<usize>(), 1_usize..6, len, segment)
        .prop_map(|(flow, count, len, segment)| Step::Post { flow, count, len, segment });
    prop::collection::vec(prop_oneof![4 => post, 1 => (1_u64..40_000).prop_map(Step::Run)], 1..200)
}

const CODEL: Codel = Codel { target: Span::millis(5), interval: Span::millis(100) };

proptest! {
    #[test]
    fn a_row_of_tenants_is_served_as_any_other_tree(
        weights in prop::collection::vec(1_u32..5, 17..40),
        (each, order) in (1_usize..6, 0_usize..3),
        steps in steps(),
    ) {
        let order = [FlowOrder::Drr, FlowOrder::Fifo, FlowOrder::Fq(CODEL)][order];
        let [mut flat, mut other] = [false, true].map(|limited| {
            let program = plan(&weights, order, limited);
            let mut world = World::new(&program, &Config { queues: 256, ..Config::default() });
            for class in program.node(ROOT).children.clone() {
                let place = placement(&program, class, &[]);
                (0..each).for_each(|_| _ = world.nic.open_queue(&place).expect("a flow queue is left"));
            }
            world
        });
        let flows = weights.len() * each;
        for step in &steps {
            for world in [&mut flat, &mut other] {
                match *step {
                    Step::Post { flow, count, len, segment } => {
                        let queue = QueueId((flow % flows) as u32);
                        let header = if segment > 0 { 54 } else { 0 };
                        for _ in 0..count {
                            let len = if segment > 0 { len + 3 * u32::from(segment) } else { len };
                            let _ = world.post(queue, Descriptor { len, segment, header, ..Descriptor::default() });
                        }
                        world.bell(queue);
                    }
                    Step::Run(span) => world.run(world.now + span),
                }
            }
            prop_assert_eq!(&flat.sent, &other.sent);
        }
        for class in flat.nic.program().node(ROOT).children.clone() {
            prop_assert_eq!(flat.nic.class_counters(class), other.nic.class_counters(class));
        }
        prop_assert_eq!(flat.nic.stats(), other.nic.stats());
    }
}
