//! A client that sends requests without end gets its part of each turn, and its neighbours and the engine's thread theirs.

use super::{OUTSIDE, STEP, TWO, World};
use crate::support::{drain, udp};
use mio::unix::SourceFd;
use plimsoll_units::Span;
use plimsoll_vnic::message::Message;
use plimsoll_vnic::socket::{Incoming, connect_to, read_message, send_message};
use plimsoll_vnic::{FlowSpec, Sizes};

/// This holds for requests that the engine refuses, and for requests that the port refuses by itself as no flow queue is
/// left, with an answer or without; the neighbour's frames leave meanwhile.
#[test]
fn a_flood_of_requests_takes_a_few_messages_of_each_turn() {
    let open = Message::Open(FlowSpec::default());
    for (said, opens) in
        [([open; 4], 4), ([Message::Close(0), Message::Close(7), Message::Close(u32::MAX), open], 1)]
    {
        let mut world = World::sized(TWO, Sizes { flow_queues: 4, ..Sizes::default() });
        let mut batch = world.client("batch");
        let socket = connect_to(&world.folder.path().join("shop")).expect("connected");
        send_message(&socket, Message::hello(), &[]).expect("sent");
        for message in said.into_iter().cycle().take(200) {
            send_message(&socket, message, &[]).expect("room");
        }
        // Fifty or two hundred answers, and the welcome, which counts for no message.
        let (mut answered, mut left) = (0, 0);
        for turn in 0.. {
            assert!(turn < 1_000, "{answered} of {} answered", 1 + 50 * opens);
            batch.send(0, &udp(2, OUTSIDE, 9, turn, 480)).expect("room");
            batch.ring().expect("a kick");
            world.turn();
            left += drain(&mut world.wire).len() as u32;
            assert!(left >= turn, "{left} of {turn} of its neighbour's frames have left");
            batch.poll_completions(|_| {});
            let before = answered;
            while matches!(read_message(&socket), Incoming::Message(_)) {
                answered += 1;
            }
            // A turn handles eight messages, of which this many are answered.
            let most = 8 * opens / 4;
            assert!(answered - before <= most + u32::from(before == 0), "{} in one turn", answered - before);
            if answered == 1 + 50 * opens {
                break;
            }
        }
    }
}

/// The time between two messages of a client that sends without end, and how many it may send at once before.
const BETWEEN: Span = Span::ns(62_500);
const AT_ONCE: u64 = 1_024;

/// This holds for requests that the engine refuses and for those that the port refuses: a flow queue for each flow at the
/// start is answered at once, and then 16,000 a second. Between them the engine's thread sleeps: messages that wait in
/// the socket do not wake it.
#[test]
fn a_flood_of_requests_leaves_the_engine_asleep_between_a_few_messages() {
    for flow_queues in [2, 4_096] {
        let sizes = Sizes { flow_queues, ring: 2, ..Sizes::default() };
        let mut world = World::sized(TWO, sizes);
        let socket = connect_to(&world.folder.path().join("shop")).expect("connected");
        send_message(&socket, Message::hello(), &[]).expect("sent");
        // Edge-triggered, as the daemon waits.
        let (mut poll, mut events) = (mio::Poll::new().expect("descriptors"), mio::Events::with_capacity(1));
        let (_, port) = world.engine.ports().next().expect("the client's port");
        let fd = port.fds().receive.expect("something to wait on");
        poll.registry()
            .register(&mut SourceFd(&fd), mio::Token(0), mio::Interest::READABLE)
            .expect("it is watched");
        let begun = world.now;
        let (mut turns, mut answered) = (0, 0);
        while world.now.since(begun) < Span::millis(200) {
            // A port, here this one, or the timer ends the thread's sleep.
            while send_message(&socket, Message::Open(FlowSpec::default()), &[]).is_ok() {}
            poll.poll(&mut events, Some(std::time::Duration::ZERO)).expect("descriptors");
            let woken = !events.is_empty();
            if woken {
                world.engine.ready(Some(0));
            }
            let turn = world.engine.turn(world.now);
            turns += 1;
            while matches!(read_message(&socket), Incoming::Message(_)) {
                answered += 1;
            }
            // The welcome is not counted as an answer.
            let most = 1 + AT_ONCE + world.now.since(begun).as_u64() / BETWEEN.as_u64();
            assert!(answered <= most, "{answered} of {most} after {turns} turns");
            // Two turns for its hello and for the first wake-up.
            if turns == 4 + AT_ONCE / 8 {
                assert!(answered > AT_ONCE, "{answered}: it begins with as many flows as it likes");
            }
            let next = [turn.next, turn.lazily].into_iter().flatten().min();
            world.now = match next {
                Some(next) if !turn.busy && !woken => next.max(world.now + Span::ns(1)),
                _ => world.now + STEP,
            };
        }
        let most = AT_ONCE + Span::millis(200).as_u64() / BETWEEN.as_u64();
        assert!(answered + 8 >= most, "{answered} of {most}");
        // One turn for eight messages, and up to two that find no more: 20,000 if it did not sleep.
        assert!(turns <= 3 * most / 8, "{turns} turns for {answered} messages");
    }
}

#[test]
fn a_flood_of_requests_takes_a_few_messages_of_each_turn_also_from_a_thread_apart() {
    let mut world = World::sized(TWO, Sizes { flow_queues: 1_024, ..Sizes::default() });
    let socket = connect_to(&world.folder.path().join("shop")).expect("connected");
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    send_message(&socket, Message::hello(), &[]).expect("sent");
    for _ in 0..200 {
        send_message(&socket, Message::Open(FlowSpec::default()), &[]).expect("room");
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let mut answered = 0;
    while answered < 201 {
        assert!(std::time::Instant::now() < end, "{answered} of 201 answered");
        let before = world.engine.nic().open_queues();
        world.turn();
        let opened = world.engine.nic().open_queues();
        assert!(opened - before <= 8, "{} in one turn", opened - before);
        while matches!(read_message(&socket), Incoming::Message(_)) {
            answered += 1;
        }
        assert!(answered <= 1 + opened, "the welcome, and what was opened");
    }
}

#[test]
fn a_flood_of_requests_through_a_thread_apart_is_answered_no_faster() {
    let mut world = World::sized(TWO, Sizes { flow_queues: 4_096, ring: 2, ..Sizes::default() });
    let socket = connect_to(&world.folder.path().join("shop")).expect("connected");
    assert!(world.engine.serve_apart(0, world.now), "it goes");
    send_message(&socket, Message::hello(), &[]).expect("sent");
    let (begun, end) = (world.now, std::time::Instant::now() + std::time::Duration::from_secs(10));
    let mut opened = 0;
    while opened < AT_ONCE + 200 {
        assert!(std::time::Instant::now() < end, "{opened} opened");
        while send_message(&socket, Message::Open(FlowSpec::default()), &[]).is_ok() {}
        while matches!(read_message(&socket), Incoming::Message(_)) {}
        world.turn();
        opened = world.engine.nic().open_queues() as u64;
        let most = AT_ONCE + world.now.since(begun).as_u64() / BETWEEN.as_u64();
        assert!(opened <= most, "{opened} of {most}");
    }
}
