//! Payload that waits in a client's memory until its frame leaves.

use super::{OUTSIDE, TWO, World};
use crate::support::{number, udp};
use plimsoll_units::Span;
use plimsoll_vnic::{Status, VnetHeader, Vnic};

const LEN: usize = 1_200;
/// Bytes of a frame that are copied when it is taken.
const FRONT: usize = 128;

/// A client whose flow is limited to 1 Mb/s, with `count` frames posted.
fn slow(world: &mut World, count: u32) -> (Vnic, Vec<Vec<u8>>) {
    let client = world.client("shop");
    let (mut client, queue) = world.open(client, 7);
    let queue = queue.expect("a flow queue");
    let frames: Vec<Vec<u8>> = (0..count).map(|n| udp(1, OUTSIDE, 7, n, LEN)).collect();
    frames.iter().for_each(|frame| client.send(queue, frame).expect("room"));
    client.ring().expect("the daemon is there");
    (client, frames)
}

fn statuses(client: &mut Vnic) -> Vec<Status> {
    let mut found = Vec::new();
    client.poll_completions(|done| found.push(done.status));
    found
}

fn taken_back(world: &mut World) -> u64 {
    let snapshot = world.engine.snapshot(world.now);
    let losses: Vec<_> = snapshot.lanes[0].tally.losses().collect();
    losses.iter().find(|(why, _)| *why == "taken_back").map_or(0, |&(_, count)| count)
}

#[test]
fn what_a_client_changes_while_a_frame_waits_is_payload_and_nothing_else() {
    let mut world = World::new(TWO);
    let (mut client, frames) = slow(&mut world, 4);
    let mut left = world.run(Span::millis(1));
    let gone = left.len();
    assert!(gone < 4, "{gone} have left before they were changed");
    let (region, layout) = client.region();
    let from = layout.in_buffers(0, 1).expect("buffers");
    region.write(from, &vec![0xee; region.len() - from]);
    for index in 0..8 {
        region.write(layout.descriptor(1, index), &[0xff; 16]);
    }
    left.extend(world.run(Span::millis(60)));
    assert_eq!(left.len(), 4);
    for (n, (frame, posted)) in left.iter().zip(&frames).enumerate() {
        assert_eq!(frame.len(), LEN);
        assert_eq!(frame[..FRONT], posted[..FRONT], "headers are those that were checked");
        let payload = if n < gone { &posted[FRONT..] } else { &[0xee; LEN][FRONT..] };
        assert_eq!(&frame[FRONT..], payload, "payload is read when frame {n} leaves");
    }
    assert_eq!(statuses(&mut client), [Status::Sent; 4]);
    assert_eq!((client.on_their_way(), world.engine.held()), (0, 0));
}

#[test]
fn a_payload_goes_from_one_client_to_the_other() {
    let mut world = World::new(TWO);
    let (mut shop, mut batch) = (world.client("shop"), world.client("batch"));
    // The other client's address is learned from a frame that it sends.
    batch.send(0, &udp(2, OUTSIDE, 9, 0, 60)).expect("room");
    batch.ring().expect("the daemon is there");
    world.run(Span::millis(1));
    let frames: Vec<Vec<u8>> = (0..8).map(|n| udp(1, 2, 8, n, 800 + 100 * n as usize)).collect();
    // In one piece, and in two.
    for (n, frame) in frames.iter().enumerate() {
        let (head, behind) = frame.split_at(if n % 2 == 0 { frame.len() } else { 700 });
        let pieces: &[&[u8]] = if behind.is_empty() { &[head] } else { &[head, behind] };
        shop.send_gathered(0, pieces, &VnetHeader::default(), 0).expect("room");
    }
    shop.ring().expect("the daemon is there");
    world.run(Span::millis(5));
    let mut into = [0; 2_048];
    let came: Vec<Vec<u8>> =
        std::iter::from_fn(|| batch.receive(&mut into).map(|len| into[..len].to_vec())).collect();
    assert_eq!(came, frames);
    assert_eq!(statuses(&mut shop), [Status::Sent; 8]);
}

/// A client that ends takes what has not left along: nothing else is lost, and nothing stays.
#[test]
fn frames_of_a_client_that_has_gone_are_counted() {
    let mut world = World::new(TWO);
    let (client, _) = slow(&mut world, 6);
    let mut left = world.run(Span::millis(1)).len();
    drop(client);
    left += world.run(Span::millis(80)).len();
    assert_eq!(left as u64 + taken_back(&mut world), 6);
    assert!(left < 6 && world.engine.held() == 0, "{left} left, {} held", world.engine.held());
}

/// A vNIC that is served by a thread of its own from now on: its client is told what is lost.
#[test]
fn frames_that_wait_when_their_tenant_goes_apart_complete_as_dropped() {
    let mut world = World::new(TWO);
    let (mut client, _) = slow(&mut world, 6);
    let mut left = world.run(Span::millis(1));
    assert!(left.len() < 6 && world.engine.serve_apart(0, world.now));
    let mut done = Vec::new();
    for _ in 0..1_000 {
        left.extend(world.run(Span::millis(1)));
        done.extend(statuses(&mut client));
        if done.len() == 6 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let sent = done.iter().filter(|status| **status == Status::Sent).count();
    assert_eq!((done.len(), sent as u64 + taken_back(&mut world)), (6, 6));
    assert_eq!(left.len(), sent);
    let numbers: Vec<u32> = left.iter().map(|frame| number(frame).1).collect();
    assert!(numbers.is_sorted());
}
