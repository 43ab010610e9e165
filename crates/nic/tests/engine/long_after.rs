//! Properties that hold at the start also hold after hours: idle time earns nothing, and a class that joins late owes nothing
//! for the hours before.

use plimsoll_nic::Config;
use plimsoll_policy::NodeKind;
use plimsoll_units::{BitRate, Span};

use crate::kit::{MS, Plan, ROOT, World, assert_near, burst_of, mbps};

const HOUR: u64 = 3_600_000 * MS;

#[test]
fn an_idle_link_saves_nothing_up() {
    let mut plan = Plan::new(BitRate::gbps(10), NodeKind::Wfq);
    let class = plan.class(ROOT, 1);
    let config = Config { catch_up: Span::millis(5), ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    world.now = HOUR;
    world.greedy(class, &[], 1_500);
    world.run(HOUR + MS);
    let sent = world.bytes(class, HOUR, HOUR + MS);
    assert!(sent <= 1_250_000 + 1_500, "{sent} bytes in a millisecond of 10 Gb/s");
}

#[test]
fn a_caller_that_comes_late_makes_up_for_it_while_packets_wait() {
    let mut plan = Plan::new(BitRate::gbps(10), NodeKind::Wfq);
    let class = plan.class(ROOT, 1);
    let config = Config { catch_up: Span::millis(5), ..Config::default() };
    let mut world = World::new(&plan.program, &config);
    world.now = HOUR;
    world.greedy(class, &[], 1_500);
    world.poll();
    world.now += 2 * MS; // no call for two milliseconds
    world.poll();
    let sent = world.bytes(class, HOUR, HOUR + 3 * MS);
    assert_near("bytes made up", sent as f64, 2_500_000.0, 1.0);
}

/// A class gets its second kind of flow queue while the first waits at the tenant's limit: from then on the restricted
/// policy decides there, and the class must not be owed its minimum since the start of time.
#[test]
fn a_second_class_behind_a_limit_owes_no_hour() {
    let mut plan = Plan::new(BitRate::gbps(10), NodeKind::Wfq);
    let tenant = plan.node(ROOT, NodeKind::Wfq, 1);
    let (a, b) = (plan.node(tenant, NodeKind::Wfq, 1), plan.class(tenant, 1));
    let (a1, a2) = (plan.class(a, 1), plan.class(a, 1));
    plan.min(a, mbps(500));
    plan.max(tenant, mbps(1_000), burst_of(mbps(1_000), 1));
    let mut world = World::with(&plan.program);
    world.now = HOUR;
    world.greedy(a1, &[], 1_500);
    world.run(HOUR + 20 * MS); // the burst is gone: a1 waits
    world.greedy(a2, &[], 1_500);
    world.greedy(b, &[], 1_500);
    world.run(HOUR + 220 * MS);
    let rate = world.rate(b, HOUR + 40 * MS, HOUR + 220 * MS);
    assert_near("b beside a class with a minimum", rate, 250.0, 5.0);
}
