//! What an operator is told: when nothing is measured any more, when a method changes, and when a reload ends the watch.

use super::*;
use plimsoll_daemon::{Dataplane, Sampled, WatchedNow};
use plimsoll_units::Nanos;

fn watched(engine: &mut Dataplane, now: Nanos) -> WatchedNow {
    engine.heavy(now).and_then(|heavy| heavy.watched).expect("it is watched")
}

/// A world that watches a thread which is busy all the time, with a heavy flow that is slowed down for it.
fn slowed_down(sampled: &Sampled) -> World {
    let text = gateway("mode: drop").replace("watch: engine", "watch: {pids: [7]}");
    let mut world = World::new(&text, false);
    world.engine.watch_load(Some(sampled.clone()));
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.run(Span::millis(1), STEP);
    for _ in 0..10 {
        sampled.note(world.now.since(Nanos::ZERO), world.now);
        traffic(&mut world, Span::millis(10), 0, &mut Stated(Span::ZERO), &flows(Ecn::NotEct));
    }
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)]);
    let now = world.now;
    assert!(matches!(watched(&mut world.engine, now), WatchedNow { measured: true, overloaded: true, .. }));
    let start = "to tenant gateway is slowed down to 24Mbps: what is beyond is dropped";
    assert!(world.engine.take_told().iter().any(|line| line.ends_with(start)));
    world
}

/// Packets go on, or the engine rests from then on.
#[test]
fn flows_are_let_go_when_what_is_watched_has_gone() {
    for goes_on in [true, false] {
        let sampled = Sampled::default();
        let mut world = slowed_down(&sampled);
        sampled.lose();
        if goes_on {
            let mut core = Stated(Span::ZERO);
            let [frames, _] = traffic(&mut world, Span::millis(10), 0, &mut core, &flows(Ecn::NotEct));
            assert!(frames.len() > 850, "{}", frames.len());
        }
        let page = plimsoll_daemon::prometheus_page(&Stats::from(&world.engine.snapshot(world.now)));
        for line in ["overloaded 0", "flows 0", "measured 0", "ended_total 1"] {
            assert!(page.contains(&format!("\nplimsoll_backpressure_{line}\n")), "{line} in {page}");
        }
        assert_eq!(pressed(&mut world), []);
        let now = world.now;
        let state = watched(&mut world.engine, now);
        assert!(!state.measured && !state.overloaded, "{state:?}");
        let told = world.engine.take_told();
        let [unmeasured, gone] = &told[..] else { panic!("{told:?}") };
        let words =
            "backpressure: the load of {pids: [7]} cannot be measured, so its overload counts as over";
        assert!(unmeasured == words && gone.contains("is let go; it was slowed down for "), "{told:?}");

        // It can be measured again.
        for _ in 0..3 {
            world.now += Span::millis(10);
            sampled.note(world.now.since(Nanos::ZERO), world.now);
            traffic(&mut world, Span::millis(10), 0, &mut Stated(Span::ZERO), &flows(Ecn::NotEct));
        }
        assert_eq!(pressed(&mut world).len(), 1);
        let now = world.now;
        assert!(watched(&mut world.engine, now).measured);
    }
}

/// The measuring thread is stuck: flows are let go at the end of their lifetime.
#[test]
fn a_flow_outlives_no_measurement_by_more_than_its_lifetime() {
    let sampled = Sampled::default();
    let mut world = slowed_down(&sampled);
    traffic(&mut world, Span::millis(2_900), 0, &mut Stated(Span::ZERO), &flows(Ecn::NotEct));
    assert_eq!(pressed(&mut world).len(), 1);
    traffic(&mut world, Span::millis(110), 0, &mut Stated(Span::ZERO), &flows(Ecn::NotEct));
    assert_eq!(pressed(&mut world), []);
}

#[test]
fn a_thread_that_never_was_is_not_measured() {
    let text = gateway("mode: drop").replace("watch: engine", "watch: {pids: [7]}");
    let mut world = World::new(&text, false);
    let sampled = Sampled::default();
    world.engine.watch_load(Some(sampled.clone()));
    sampled.lose();
    assert!(!watched(&mut world.engine, Nanos::ZERO).measured);
    assert_eq!(world.engine.take_told(), Vec::<String>::new(), "the measuring thread tells it");
}

#[test]
fn a_change_of_method_is_told() {
    let mut world = world("mode: mark");
    let mut core = Stated(Span::ZERO);
    traffic(&mut world, Span::millis(1_000), 95, &mut core, &flows(Ecn::Ect0));
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)]);
    let told = world.engine.take_told();
    let change = "is slowed down to 24Mbps by another method: what is beyond is dropped";
    assert_eq!(told.iter().filter(|line| line.ends_with(change)).count(), 1, "{told:?}");
}

#[test]
fn a_reload_that_ends_the_watch_is_told() {
    let (before, after) = (gateway("mode: drop"), gateway("mode: drop").replace("mode: drop", "mode: meter"));
    let none = before.lines().filter(|line| !line.contains("backpressure")).collect::<Vec<_>>().join("\n");
    for after in [after, none] {
        let mut world = world("mode: drop");
        let mut core = Stated(Span::ZERO);
        traffic(&mut world, Span::millis(100), 95, &mut core, &flows(Ecn::NotEct));
        assert_eq!(pressed(&mut world).len(), 1);
        world.engine.take_told();
        let checked = [&before, &after].map(|text| crate::support::policy(text));
        let mut change = world.change(&checked[0], &checked[1]);
        change.heavy = change
            .counted
            .as_ref()
            .map(|counted| Box::new(plimsoll_daemon::HeavyFlows::new(&counted.stated)));
        world.engine.install(change, world.now);
        let told = world.engine.take_told();
        let [over, gone] = &told[..] else { panic!("{told:?}") };
        assert!(over.starts_with("backpressure: engine is no longer watched"), "{told:?}");
        assert!(gone.contains("to tenant gateway is let go; it was slowed down for 0.1s"), "{told:?}");
    }
}

/// The load crosses the threshold fifty times a second.
#[test]
fn a_load_near_its_threshold_does_not_flood_the_log() {
    let mut world = world("mode: drop");
    let mut core = Stated(Span::ZERO);
    let mut told = Vec::new();
    for turn in 0..300 {
        let busy = if turn % 2 == 0 { 95 } else { 20 };
        traffic(&mut world, Span::millis(10), busy, &mut core, &flows(Ecn::NotEct));
        told.extend(world.engine.take_told());
    }
    let about = |what: &str| told.iter().filter(|line| line.contains(what)).count();
    assert!((1..=4).contains(&about("engine is overloaded")), "{told:?}");
    assert!((2..=3).contains(&about("times more in the last 1.0s")), "{told:?}");
    assert!(told.len() < 20, "{told:?}");
}

/// The flow keeps to its rate, 3,000 packets a second. Heavy hitters send 8,000, but the overload would return without the rate.
#[test]
fn a_flow_whose_rate_keeps_it_below_heavy_stays_slowed_down() {
    let text = gateway("mode: drop").replace("heavy: 1kpps", "heavy: 8kpps");
    let mut world = World::new(&text, false);
    world.send(0, &udp(1, 99, 1, 0, 60));
    world.run(Span::millis(1), STEP);
    let mut core = Stated(Span::ZERO);
    let frame = udp(98, 1, HEAVY, 0, 1_000);
    traffic(&mut world, Span::millis(100), 95, &mut core, &[(None, frame.clone())]);
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)]);
    let each = Span::micros(333);
    for _ in 0..30_000 {
        let _ = world.wire.send(&frame, None);
        let now = world.now;
        world.engine.turn_on(&mut core, &|_| now);
        drain(&mut world.tenants[0]);
        world.now += each;
        core.0 += Span::ns(each.as_u64() / 20);
    }
    assert_eq!(pressed(&mut world), [(HEAVY, true, Means::Dropped)], "{:?}", world.engine.take_told());
    assert!(!world.engine.take_told().iter().any(|line| line.contains("let go")));

    // It ends, and is let go.
    for _ in 0..32 {
        world.now += Span::millis(100);
        let now = world.now;
        world.engine.turn_on(&mut core, &|_| now);
    }
    assert_eq!(pressed(&mut world), []);
}
