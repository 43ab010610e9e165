//! Tenants of one host: what they send to a tenant counts for its load, and waits a little where it is dropped.

use super::*;
use plimsoll_daemon::Part;
use std::cell::Cell;

/// Frames a turn for `to`, from a neighbour on the same host, by a clock on which each part of a turn takes 1 us.
fn turns(world: &mut World, turns: u64, frame: &[u8]) {
    for _ in 0..turns {
        world.send(1, frame);
        let now = Cell::new(world.now);
        let clock = |_: Part| {
            now.set(now.get() + Span::micros(1));
            now.get()
        };
        world.engine.turn_on(&mut Stated(Span::ZERO), &clock);
        drain(&mut world.tenants[0]);
        world.received();
        world.now += Span::micros(40);
        assert!(world.now > now.get());
    }
}

/// Of 40 us, those in which frames depart take 1 us: 2.5 % of a core. They are the watched tenant's only where they go to it.
#[test]
fn what_a_neighbour_sends_counts_for_the_load_of_the_watched_tenant() {
    let watch = |percent: &str| {
        let of_tenant = format!("watch: {{tenant: gateway}}, threshold: {percent}, release: 1%");
        let mut world = World::new(&gateway("").replace("watch: engine", &of_tenant), false);
        world.send(0, &udp(1, 99, 1, 0, 60));
        world.send(1, &udp(2, 99, 2, 0, 60));
        world.run(Span::millis(1), STEP);
        world
    };
    let [to_gateway, to_wire] = [1, 98].map(|to| udp(2, to, HEAVY, 0, 300));
    let mut world = watch("2%");
    turns(&mut world, 10_000, &to_wire);
    let overloads =
        |world: &mut World| world.engine.heavy(world.now).expect("counted").watched.expect("watched");
    assert!(!overloads(&mut world).overloaded, "what goes elsewhere is no work of the gateway");
    turns(&mut world, 10_000, &to_gateway);
    assert!(overloads(&mut world).overloaded);
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::MeteredHere)]);
    let mut world = watch("3%");
    turns(&mut world, 10_000, &to_gateway);
    assert!(!overloads(&mut world).overloaded, "it is 2.5 %");
}

/// In the mode `drop` 256 KiB wait; without them TCP on one host loses whole flights and gets a small part of its rate.
#[test]
fn what_a_neighbour_sends_beyond_its_rate_waits_a_little_before_it_is_dropped() {
    let mut world = world("mode: drop");
    let mut core = Stated(Span::ZERO);
    let heavy = [(Some(1), udp(2, 1, HEAVY, 0, 300))];
    // 240 Mb/s are sent, 24 Mb/s pass.
    traffic(&mut world, Span::millis(200), 95, &mut core, &heavy);
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)]);
    let before = world.losses("shop");
    assert!(before.iter().any(|(why, lost)| *why == "flow_over_rate" && *lost > 5_000), "{before:?}");
    traffic(&mut world, Span::millis(150), 95, &mut core, &[]); // what waits leaves
    // 150 kB in 5 ms: the burst is 64 kB, and the rate takes 29 ms for the rest.
    let [soon, _] = traffic(&mut world, Span::millis(5), 95, &mut core, &heavy);
    let [later, _] = traffic(&mut world, Span::millis(40), 95, &mut core, &[]);
    assert!(soon.len() < 300, "{}", soon.len());
    assert_eq!((soon.len() + later.len(), world.losses("shop")), (500, before), "none is lost");
}
