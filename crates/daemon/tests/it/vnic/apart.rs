//! Clients that are served by a thread of their own: they notice nothing, and come back when they behave.

use super::{OUTSIDE, STEP, TWO, World, spec, statuses, vnic};
use crate::support::{self, udp};
use plimsoll_daemon::{Change, Part, Whither};
use plimsoll_units::Span;
use plimsoll_vnic::{OpenRefusal, RuleCounts, Sizes, Vnic, VnicError};

/// Its flow queues stay: no frame overtakes another on the move there and back, and a reload meanwhile takes effect.
#[test]
fn a_client_that_is_served_apart_keeps_its_flow_queues_and_its_order() {
    for reload in [false, true] {
        let mut world = World::new(TWO);
        let client = world.client("shop");
        let (mut client, queue) = world.open(client, 8);
        let queue = queue.expect("a flow queue");
        let (mut number, mut out) = (0, Vec::new());
        let send = |client: &mut Vnic, number: &mut u32| {
            for _ in 0..100 {
                client.send(queue, &udp(1, OUTSIDE, 8, *number, 500)).expect("room");
                *number += 1;
            }
            client.ring().expect("a kick");
        };
        send(&mut client, &mut number);
        world.turn();
        assert!(world.engine.serve_apart(0, world.now), "it goes");
        send(&mut client, &mut number);
        out.extend(wait_for(&mut world, 200, out.len()));
        if reload {
            world.reload(&TWO.replace("1Mbps", "2Mbps"));
        }
        let (again, opened) = world.open(client, 9);
        client = again;
        completed(&mut world, &mut client);
        assert!(opened.is_ok(), "it gets further flow queues: {opened:?}");
        send(&mut client, &mut number);
        // It has behaved: it comes back, in the middle of that.
        world.now += Span::secs(10);
        out.extend(wait_for(&mut world, 300, out.len()));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while world.event("shop", "served_back") == 0 {
            assert!(std::time::Instant::now() < end, "it comes back");
            world.now += Span::secs(1);
            out.extend(world.run(STEP));
        }
        completed(&mut world, &mut client);
        send(&mut client, &mut number);
        out.extend(wait_for(&mut world, 400, out.len()));
        completed(&mut world, &mut client);
        let numbers: Vec<u32> = out.iter().map(|frame| support::number(frame).1).collect();
        assert_eq!(numbers, (0..400).collect::<Vec<_>>(), "reload: {reload}");
        let (_, opened) = world.open(client, 10);
        assert!(opened.is_ok(), "and it gets flow queues: {opened:?}");
    }
}

/// Frames of a client that the engine found in the flow queue where they belong, by looking at each.
fn sent_through(world: &mut World, client: &mut Vnic, queues: &[(u32, u16)]) {
    let (verified, wrong) = (world.event("shop", "verified"), world.event("shop", "misclassified"));
    for &(queue, port) in queues {
        for number in 0..20 {
            client.send(queue, &udp(1, OUTSIDE, port, number, 500)).expect("room");
        }
    }
    client.ring().expect("a kick");
    let count = 20 * queues.len();
    wait_for(world, count, 0);
    completed(world, client);
    assert_eq!(world.event("shop", "verified") - verified, count as u64);
    assert_eq!(world.event("shop", "misclassified"), wrong);
}

#[test]
fn a_client_that_is_served_apart_opens_and_closes_flow_queues_as_ever() {
    let mut world = World::new(&format!("{TWO}\nengine: {{queues: 8}}"));
    world.engine.set_sampler(plimsoll_daemon::Sampler::new(1, 1));
    let mut client = world.client("shop");
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    for port in 11..14 {
        let (kept, queue) = world.open(client, port);
        assert_eq!(queue.expect("a flow queue"), u32::from(port) - 10);
        client = kept;
    }
    let (mut client, refused) = world.open(client, 14);
    assert!(matches!(refused, Err(VnicError::NotOpened(OpenRefusal::NoQueue))), "{refused:?}");
    sent_through(&mut world, &mut client, &[(1, 11), (2, 12), (3, 13)]);
    client.close_flow(2).expect("the daemon is there");
    let (mut client, queue) = world.open(client, 15);
    assert_eq!(queue.expect("the place of the one that was closed"), 2);
    sent_through(&mut world, &mut client, &[(1, 11), (2, 15), (3, 13)]);
    assert_eq!(world.event("shop", "served_back"), 0, "all of that apart");
    drop(client);
    while !world.engine.has_lost() {
        world.turn();
    }
    drop(world.engine.take_lost());
    world.run(Span::micros(100));
    assert_eq!(world.engine.nic().open_queues(), 0);
}

#[test]
fn a_client_that_is_served_apart_asks_anew_after_a_reload() {
    let mut world = World::new(TWO);
    world.engine.set_sampler(plimsoll_daemon::Sampler::new(1, 1));
    let client = world.client("shop");
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    let flows = vec![spec(8), spec(9), spec(8)];
    let (mut client, queues) = world.queues_for(client, flows.clone());
    assert_eq!(queues, [1, 2, 1]);
    assert_eq!(client.rule_counts(), RuleCounts { hits: 1, misses: 2, pushed: 0, ended: 0 });
    sent_through(&mut world, &mut client, &[(1, 8), (2, 9)]);
    let before = client.generation();
    world.reload(&TWO.replace("1Mbps", "2Mbps"));
    world.engine.set_sampler(plimsoll_daemon::Sampler::new(1, 1));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while client.generation() == before {
        assert!(std::time::Instant::now() < end, "it is told of the policy");
        std::thread::yield_now();
    }
    let (mut client, queues) = world.queues_for(client, flows);
    assert_eq!((queues[0], client.rule_counts().misses), (queues[2], 4), "it asks anew, once for each flow");
    sent_through(&mut world, &mut client, &[(queues[0], 8), (queues[1], 9)]);
    assert_eq!(world.event("shop", "served_back"), 0, "all of that apart");
    // Its flow queues are still valid when it comes back.
    world.now += Span::secs(10);
    while world.event("shop", "served_back") == 0 {
        assert!(std::time::Instant::now() < end, "it comes back");
        world.run(STEP);
        world.now += Span::secs(1);
    }
    sent_through(&mut world, &mut client, &[(queues[0], 8), (queues[1], 9)]);
}

/// Hangs the client up, and waits until the engine has let go of its port.
fn hang_up(world: &mut World, client: Vnic) {
    drop(client);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !world.engine.has_lost() {
        assert!(std::time::Instant::now() < end, "the port is lost");
        world.turn();
    }
    drop(world.engine.take_lost());
}

/// Connects a new client to a new port of the lane's.
fn connect_anew(world: &mut World) -> Vnic {
    let port = vnic(&world.folder, "shop", Sizes::default());
    assert!(world.engine.attach(Some(0), port, world.now).is_none());
    world.client("shop")
}

fn moves(world: &mut World) -> Vec<Whither> {
    world.engine.take_moves().into_iter().map(|(_, moved)| moved.to).collect()
}

fn send_one(world: &mut World, client: &mut Vnic) {
    client.send(0, &udp(1, OUTSIDE, 9, 0, 60)).expect("room");
    client.ring().expect("a kick");
    wait_for(world, 1, 0);
    completed(world, client);
}

#[test]
fn a_client_that_hangs_up_apart_and_connects_anew_is_served_apart_until_it_behaves() {
    let mut world = World::new(TWO);
    let client = world.client("shop");
    // Every later client is served apart from the start.
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    let apart = Whither::Apart(Span::ZERO);
    assert_eq!(moves(&mut world), [apart]);
    let mut client = Some(client);
    for again in 1..4 {
        hang_up(&mut world, client.take().expect("a client"));
        let mut next = connect_anew(&mut world);
        assert_eq!(moves(&mut world), [Whither::Again], "the engine's thread does not touch its memory");
        assert_eq!(world.event("shop", "served_apart"), 1 + again);
        send_one(&mut world, &mut next);
        client = Some(next);
    }
    let (kept, queue) = world.open(client.take().expect("a client"), 8);
    assert!(queue.is_ok(), "{queue:?}");
    // Connecting anew is no stall, so it does not have to behave for longer.
    world.now += Span::secs(4);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while world.event("shop", "served_back") == 0 {
        assert!(std::time::Instant::now() < end, "it comes back");
        world.run(STEP);
    }
    assert_eq!(moves(&mut world), [Whither::Back]);
    assert_eq!((world.event("shop", "copy_stalled"), world.event("shop", "port_lost")), (0, 3));
    hang_up(&mut world, kept);
    let mut client = connect_anew(&mut world);
    assert_eq!(moves(&mut world), [], "it has behaved");
    send_one(&mut world, &mut client);

    // The second time it is four times as long, also if no client is connected meanwhile.
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    hang_up(&mut world, client);
    world.now += Span::secs(15);
    let client = connect_anew(&mut world);
    assert_eq!(moves(&mut world), [apart, Whither::Again]);
    hang_up(&mut world, client);
    world.now += Span::secs(2);
    let client = connect_anew(&mut world);
    assert_eq!(moves(&mut world), [], "that is over");
    // The third time it is sixteen times as long, though it has never come back from the second.
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    hang_up(&mut world, client);
    world.now += Span::secs(60);
    connect_anew(&mut world);
    assert_eq!(moves(&mut world), [apart, Whither::Again]);
}

#[test]
fn a_reload_that_brings_another_port_does_not_bring_back_who_is_served_apart() {
    let mut world = World::new(TWO);
    let _client = world.client("shop");
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    let mut change = Change::between(&world.checked, &world.checked);
    change.moved.push(("shop".to_owned(), vnic(&world.folder, "elsewhere", Sizes::default())));
    assert_eq!(world.engine.install(change, world.now).closed.len(), 1);
    assert_eq!(moves(&mut world), [Whither::Apart(Span::ZERO), Whither::Again]);
    let mut client = world.client("elsewhere");
    send_one(&mut world, &mut client);
    assert_eq!((world.event("shop", "served_apart"), world.event("shop", "served_back")), (2, 0));
}

/// The engine's thread waits for a client's memory, and finds that the client has gone once it is through.
#[test]
fn a_client_that_stalls_and_hangs_up_at_once_is_served_apart_when_it_is_there_again() {
    // The engine finds it after a few turns, and how many depends on the turns that the connection took. The turn that
    // finds it is to be slow, and none before.
    for turns in (0..20).cycle().take(1_000) {
        let mut world = World::new(TWO);
        let client = world.client("shop");
        drop(client);
        for _ in 0..turns {
            world.turn();
        }
        if world.engine.has_lost() {
            continue;
        }
        let (now, waited) = (world.now, std::cell::Cell::new(Span::ZERO));
        let clock = |part| {
            if matches!(part, Part::Read) {
                std::thread::sleep(std::time::Duration::from_millis(2));
                waited.set(waited.get() + Span::millis(2));
            }
            now + waited.get()
        };
        world.engine.all_ready();
        world.engine.turn_by(&clock);
        world.now = now + waited.get() + STEP;
        if !world.engine.has_lost() {
            continue;
        }
        drop(world.engine.take_lost());
        moves(&mut world);
        assert_eq!((world.event("shop", "copy_stalled"), world.event("shop", "served_apart")), (1, 0));
        let mut client = connect_anew(&mut world);
        assert_eq!(moves(&mut world), [Whither::Again]);
        return send_one(&mut world, &mut client);
    }
    panic!("its end is found");
}

/// Runs until all of the client's frames have completed.
fn completed(world: &mut World, client: &mut Vnic) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while client.on_their_way() > 0 {
        assert!(std::time::Instant::now() < end, "{} on their way", client.on_their_way());
        assert!(world.run(STEP).is_empty(), "all have left");
        statuses(client);
    }
}

/// Runs until `count` frames have left, `had` of them before.
fn wait_for(world: &mut World, count: usize, had: usize) -> Vec<Vec<u8>> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut out = Vec::new();
    while had + out.len() < count {
        assert!(std::time::Instant::now() < end, "{} of {count}", had + out.len());
        out.extend(world.run(Span::millis(1)));
    }
    out
}
