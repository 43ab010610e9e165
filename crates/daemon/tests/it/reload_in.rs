//! A reload while frames wait on their way in.

use crate::support::{World, drain, policy, udp};
use plimsoll_units::Span;

/// A tenant may get the lane of one that is gone, but never a frame that was for that one.
#[test]
fn frames_for_a_tenant_that_is_gone_do_not_reach_the_one_in_its_place() {
    let step = Span::micros(10);
    let file = |name: &str| {
        format!("uplink: {{port: memory, rate: 1Gbps}}\ntenants: {{{name}: {{port: memory}}}}\n")
    };
    let (old, new) = (policy(&file("old")), policy(&file("new")));
    let mut world = World::new(&file("old"), true);
    world.send(0, &udp(1, 99, 7, 1, 100));
    world.run(step, step);
    for n in 0..400 {
        world.wire.send(&udp(99, 1, 7, n, 100), None).expect("there");
    }
    world.run(step, step);
    let before = drain(&mut world.tenants[0]).len();
    let change = world.change(&old, &new);
    world.engine.install(change, world.now);
    world.run(Span::millis(1), step);
    assert!(before > 0 && before < 400, "some wait: {before} came");
    assert_eq!(drain(&mut world.tenants[1]).len(), 0);
    let lost: u64 = world.losses("uplink").iter().map(|(_, count)| count).sum();
    assert_eq!(lost, 400 - before as u64, "each is counted");
}
