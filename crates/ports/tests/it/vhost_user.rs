//! A guest on virtio's rings: frames both ways, completions when they are due, guests that come and go.

use std::path::PathBuf;

use crate::support::guest::{
    self, EVENT_IDX, FROM, GET_BASE, GET_FEATURES, GUEST, GUEST_CSUM, GUEST_ECN, Guest, INDIRECT, MERGEABLE,
    NEXT, PROTOCOL, SET_ENABLE, SET_FEATURES, TABLE, TO, TSO, VERSION_1, buffer,
};
use plimsoll_ports::{
    CompletionOrder, Level, Port, Sending, Taken, Took, Trouble, VhostUser, VhostUserConfig,
};
use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;
use proptest::prelude::*;

const SIZE: u16 = 16;

fn open(completions: CompletionOrder) -> (tempfile::TempDir, PathBuf, VhostUser) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let config = VhostUserConfig { completions, ..VhostUserConfig::new(&path) };
    let port = VhostUser::open(&config).expect("a port");
    (folder, path, port)
}

fn take(port: &mut VhostUser) -> Option<(Taken, Vec<u8>)> {
    port.begin().expect("always there");
    match port.take() {
        Took::Frame(taken) => {
            let mut bytes = vec![0; taken.len];
            port.copy(&mut bytes);
            Some((taken, bytes))
        }
        Took::Refused => panic!("refused: {:?}", port.counters()),
        Took::Nothing => None,
    }
}

/// A frame that was taken may be copied when another has been sent to the same guest meanwhile.
#[test]
fn what_is_sent_leaves_what_was_taken_where_it_is() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    guest.post(0, &[7; 60]);
    guest.lend(1, 1_526);
    port.begin().expect("always there");
    assert!(matches!(port.take(), Took::Frame(Taken { len: 60, .. })));
    assert_eq!(port.send(&[9; 200], None), Ok(Sending::Sent));
    let mut bytes = [0; 60];
    port.copy(&mut bytes);
    assert_eq!(bytes, [7; 60]);
    port.flush().expect("always there");
    assert_eq!(guest.given_back(TO), [(1, 212)]);
}

/// While a guest moves to another host, its front end must know the pages that were written.
#[test]
fn the_log_has_the_pages_that_were_written_while_it_was_on_and_no_others() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    for head in 0..4 {
        guest.lend(head, 1_526);
    }
    let send = |port: &mut VhostUser| {
        assert_eq!(port.send(&[9; 200], None), Ok(Sending::Sent));
        port.flush().expect("always there");
    };
    send(&mut port);
    let log = guest.ask_for_log(VERSION_1);
    port.probe().expect("always there");
    assert_eq!(guest.answer(), 0, "the log is there");
    assert_eq!(Guest::logged(&log), [0; 0], "nothing was written since");
    send(&mut port);
    let page = |at: usize| at / guest::PAGE;
    assert_eq!(Guest::logged(&log), [page(guest::used(TO)), page(buffer(1))]);
    guest.say(SET_FEATURES, &VERSION_1.to_le_bytes(), &[]);
    guest.is_heard(&mut port);
    send(&mut port);
    assert_eq!(Guest::logged(&log).len(), 2, "it is off again");
    assert_eq!(guest.heads(TO), [0, 1, 2], "no ring was stopped for that");
    // The moved guest's memory is a copy of this one's.
    let mut memory = vec![0; guest::MEMORY];
    guest.region.read(0, &mut memory);
    let mut there = Guest::copied(SIZE, &memory);
    drop(guest);
    port.probe().expect("always there");
    there.come_back(&mut port, &path, VERSION_1);
    send(&mut port);
    assert_eq!(there.heads(TO), [0, 1, 2, 3]);
}

/// Takes four frames and completes them in another order; what the guest sees after each.
fn complete_2013(completions: CompletionOrder) -> Vec<Vec<u32>> {
    let (_folder, path, mut port) = open(completions);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    (0..4).for_each(|head| guest.post(head, &[head as u8; 60]));
    let taken: Vec<_> = (0..4).map(|_| take(&mut port).expect("posted")).collect();
    for (number, (taken, bytes)) in taken.iter().enumerate() {
        assert_eq!((taken.len, &bytes[..]), (60, &[number as u8; 60][..]));
    }
    let mut seen = Vec::new();
    for next in [2, 0, 1, 3] {
        port.complete(taken[next].0.ticket);
        port.flush().expect("always there");
        seen.push(guest.heads(FROM));
    }
    assert_eq!(port.in_flight(), 0);
    port.complete(taken[0].0.ticket);
    port.flush().expect("always there");
    assert!(guest.heads(FROM).is_empty(), "a ticket is good for once");
    seen
}

#[test]
fn a_descriptor_is_given_back_when_its_frame_is_through_in_any_order() {
    assert_eq!(complete_2013(CompletionOrder::OutOfOrder), [vec![2], vec![0], vec![1], vec![3]]);
}

#[test]
fn in_order_a_descriptor_waits_for_those_before_it() {
    assert_eq!(complete_2013(CompletionOrder::InOrder), [vec![], vec![0], vec![1, 2], vec![3]]);
}

#[test]
fn early_completions_come_with_the_frame() {
    assert_eq!(complete_2013(CompletionOrder::Early), [vec![0, 1, 2, 3], vec![], vec![], vec![]]);
}

/// What is in the rings at each moment; no end that a guest makes up shows more than the ring has.
#[test]
fn the_rings_tell_what_waits_in_them() {
    let (_folder, path, mut port) = open(CompletionOrder::InOrder);
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    let shown = |port: &VhostUser| {
        let pairs = port.pairs();
        pairs.first().map_or((0, 0, 0, 0), |pair| (pair.posted, pair.in_flight, pair.out_of_turn, pair.free))
    };
    assert_eq!(shown(&port), (0, 0, 0, 0));
    guest.lend(5, 1_000);
    guest.lend(6, 1_000);
    (0..4).for_each(|head| guest.post(head, &[1; 60]));
    assert_eq!(shown(&port), (4, 0, 0, 2));
    let taken: Vec<_> = (0..3).map(|_| take(&mut port).expect("posted").0.ticket).collect();
    assert_eq!(shown(&port), (1, 3, 0, 2));
    port.complete(taken[2]);
    port.complete(taken[1]);
    assert_eq!(shown(&port), (1, 1, 2, 2), "two have left before their turn");
    port.complete(taken[0]);
    assert_eq!(shown(&port), (1, 0, 0, 2));
    guest.move_end(FROM, 60_000);
    assert_eq!(shown(&port).0, u32::from(SIZE));
    assert_eq!(port.level(), Level::L1);
}

#[test]
fn a_frame_may_lie_in_parts_in_a_chain_or_in_a_table() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1 | INDIRECT);
    let at = |head, offset: usize| GUEST + (buffer(head) + offset) as u64;
    guest.region.write(buffer(0), &[0; 12]);
    guest.region.write(buffer(0) + 12, &[7; 100]);
    // The header's last byte shares a descriptor with the frame.
    guest.descriptor(FROM, 0, at(0, 0), 11, NEXT, 5);
    guest.descriptor(FROM, 5, at(0, 11), 50, NEXT, 3);
    guest.descriptor(FROM, 3, at(0, 61), 51, 0, 9);
    guest.offer(FROM, 0);
    guest.table_entry(buffer(9), 0, at(0, 0), 12, NEXT, 2);
    guest.table_entry(buffer(9), 2, at(0, 12), 100, 0, 0);
    guest.descriptor(FROM, 1, at(9, 0), 3 * 16, TABLE, 0);
    guest.offer(FROM, 1);
    for head in [0, 1] {
        let (taken, bytes) = take(&mut port).expect("posted");
        assert_eq!(bytes, [7; 100]);
        port.complete(taken.ticket);
        port.flush().expect("always there");
        assert_eq!(guest.heads(FROM), [head]);
    }
}

#[test]
fn a_frame_for_the_guest_fills_as_many_buffers_as_it_needs() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1 | MERGEABLE);
    let frame: Vec<u8> = (0..2_500_u32).map(|n| n as u8).collect();
    guest.lend(3, 1_000);
    guest.lend(1, 1_000);
    assert_eq!(port.send(&frame, None), Ok(Sending::Full), "two are too few, and stay where they are");
    guest.lend(2, 1_000);
    assert_eq!(port.send(&frame, None), Ok(Sending::Sent));
    port.flush().expect("always there");
    assert_eq!(guest.given_back(TO), [(3, 1_000), (1, 1_000), (2, 512)]);
    let mut bytes = Vec::new();
    for (head, len) in [(3, 1_000), (1, 1_000), (2, 512)] {
        bytes.extend(guest.read(buffer(head), len));
    }
    assert_eq!(bytes[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0], "the header says how many");
    assert_eq!(bytes[12..], frame);
}

#[test]
fn without_mergeable_buffers_a_frame_that_fits_none_is_refused_and_the_buffer_stays() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    guest.lend(0, 100);
    assert!(matches!(port.send(&[1; 89], None), Ok(Sending::Refused(_))));
    assert_eq!(port.send(&[1; 88], None), Ok(Sending::Sent));
    port.flush().expect("always there");
    assert_eq!(guest.given_back(TO), [(0, 100)]);
}

/// DPDK's driver takes segments, but for those that say that the congestion window was reduced.
#[test]
fn a_driver_without_ecn_takes_segments_without_cwr() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let large = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type: VnetHeader::GSO_TCPV4,
        hdr_len: 54,
        gso_size: 1_448,
        csum_start: 34,
        csum_offset: 16,
    };
    let reduced = VnetHeader { gso_type: VnetHeader::GSO_TCPV4 | VnetHeader::GSO_ECN, ..large };
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1 | GUEST_CSUM | (TSO & !GUEST_ECN));
    guest.lend(0, 4_000);
    let able = port.capabilities();
    assert!(able.takes_segmentation && !able.cwr_segmentation);
    assert!(matches!(port.send(&[1; 3_000], Some(&reduced)), Ok(Sending::Refused(_))));
    assert_eq!(port.send(&[1; 3_000], Some(&large)), Ok(Sending::Sent));
}

#[test]
fn what_the_driver_takes_is_left_to_it_and_nothing_else() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let partial = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        csum_start: 34,
        csum_offset: 16,
        ..VnetHeader::default()
    };
    let large = VnetHeader { gso_type: VnetHeader::GSO_TCPV4, gso_size: 1_448, hdr_len: 54, ..partial };
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1 | GUEST_CSUM);
    (0..2).for_each(|head| guest.lend(head, 2_000));
    assert!(port.capabilities().takes_partial_checksum && !port.capabilities().takes_segmentation);
    assert_eq!(port.send(&[1; 60], Some(&partial)), Ok(Sending::Sent));
    assert!(matches!(port.send(&[1; 60], Some(&large)), Ok(Sending::Refused(_))));
    assert_eq!(guest.read(buffer(0), 10), partial.to_bytes()[..10]);
    drop(guest);
    port.probe().expect("always there");
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1 | GUEST_CSUM | TSO);
    guest.lend(0, 4_000);
    assert!(port.capabilities().takes_segmentation && port.capabilities().cwr_segmentation);
    assert_eq!(port.send(&[1; 3_000], Some(&large)), Ok(Sending::Sent));
    guest.post_with(0, &large.to_bytes(), &[5; 3_000]);
    let (taken, _) = take(&mut port).expect("posted");
    assert_eq!(taken.vnet, large);
}

#[test]
fn each_side_is_woken_when_it_wants_to_be() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1 | EVENT_IDX);
    let mut pass = |guest: &Guest, head| {
        guest.post(head, &[0; 60]);
        let (taken, _) = take(&mut port).expect("posted");
        port.complete(taken.ticket);
        port.flush().expect("always there");
        guest.rung(FROM)
    };
    // A bell is rung once when it is passed.
    guest.rung(FROM);
    guest.want(FROM, 2);
    assert_eq!([pass(&guest, 0), pass(&guest, 1), pass(&guest, 2), pass(&guest, 3)], [0, 0, 1, 0]);
    assert!(port.rest(), "nothing is left");
    assert_eq!(guest.wanted(FROM), 4, "the device wants to know of the next one");
    guest.post(4, &[0; 60]);
    assert!(!port.rest(), "it is there already");
}

#[test]
fn a_ring_that_stops_gives_back_what_is_out_and_goes_on_where_it_was() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    (0..3).for_each(|head| guest.post(head, &[head as u8; 60]));
    let (held, _) = take(&mut port).expect("posted");
    take(&mut port).expect("posted");
    guest.say(GET_BASE, &[1, 0, 0, 0, 0, 0, 0, 0], &[]);
    port.probe().expect("always there");
    assert_eq!(guest.answer(), 2 << 32 | 1, "two were taken");
    assert_eq!(guest.heads(FROM), [0, 1]);
    assert_eq!(take(&mut port), None);
    port.complete(held.ticket);
    port.flush().expect("always there");
    assert!(guest.heads(FROM).is_empty(), "it has been given back");
}

#[test]
fn a_guest_goes_and_another_comes() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    guest.post(0, &[1; 60]);
    let (old, _) = take(&mut port).expect("posted");
    let other = Guest::connect(&path, SIZE);
    port.probe().expect("always there");
    assert!(port.is_connected());
    drop((guest, other));
    port.probe().expect("always there");
    assert!(!port.is_connected());
    assert_eq!(port.send(&[1; 60], None), Err(Trouble::Down));
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    guest.post(0, &[2; 60]);
    let (new, bytes) = take(&mut port).expect("posted");
    assert_eq!(bytes, [2; 60]);
    let mut port = Port::VhostUser(port);
    port.complete(old.ticket, Status::Sent);
    port.flush().expect("always there");
    assert!(guest.heads(FROM).is_empty(), "the earlier guest's ticket");
    port.complete(new.ticket, Status::Sent);
    port.flush().expect("always there");
    assert_eq!(guest.heads(FROM), [0]);
}

/// A daemon that is killed leaves memory as it was, and tells neither guest nor front end.
#[test]
fn what_was_in_flight_when_the_daemon_died_is_taken_again_and_nothing_twice() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
    (0..6).for_each(|head| guest.post(head, &[head as u8; 60]));
    let taken: Vec<_> = (0..4).map(|_| take(&mut port).expect("posted").0).collect();
    [2, 0].iter().for_each(|&number: &usize| {
        port.complete(taken[number].ticket);
    });
    port.flush().expect("always there");
    assert_eq!(guest.heads(FROM), [2, 0]);
    assert_eq!(guest.offered(FROM), [1, 3, 4, 5], "what QEMU completes if the guest rings now");
    let memory = guest.read(0, guest::MEMORY);
    drop(port);
    guest.region.write(0, &memory);

    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    guest.come_back(&mut port, &path, VERSION_1);
    assert!(!port.rest(), "there is something to be taken");
    let again: Vec<_> = (0..4).map(|_| take(&mut port).expect("left")).collect();
    assert_eq!(again.iter().map(|(_, bytes)| bytes[0]).collect::<Vec<_>>(), [1, 3, 4, 5]);
    assert_eq!(take(&mut port), None);
    again.iter().rev().for_each(|(taken, _)| {
        port.complete(taken.ticket);
    });
    port.flush().expect("always there");
    assert_eq!(guest.heads(FROM), [5, 4, 3, 1]);
    guest.post(2, &[9; 60]);
    assert_eq!(take(&mut port).map(|(_, bytes)| bytes[0]), Some(9));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Wherever the daemon is killed, each descriptor that the guest has not got back is offered once, and no other is.
    #[test]
    fn at_each_moment_what_is_offered_is_what_the_guest_misses(
        in_order: bool,
        steps in prop::collection::vec((0..4_u8, any::<prop::sample::Index>()), 1..400),
    ) {
        let completions = if in_order { CompletionOrder::InOrder } else { CompletionOrder::OutOfOrder };
        let (_folder, path, mut port) = open(completions);
        let mut guest = Guest::start(&mut port, &path, SIZE, VERSION_1);
        let (mut free, mut missed) = ((0..SIZE).collect::<Vec<_>>(), Vec::new());
        let mut in_flight = Vec::new();
        for (step, index) in steps {
            match step {
                0 if !free.is_empty() => {
                    let head = free.swap_remove(index.index(free.len()));
                    guest.post(head, &[head as u8; 60]);
                    missed.push(head);
                }
                1 => in_flight.extend(take(&mut port).map(|(taken, _)| taken.ticket)),
                2 if !in_flight.is_empty() => {
                    port.complete(in_flight.swap_remove(index.index(in_flight.len())));
                }
                _ => port.flush().expect("always there"),
            }
            for head in guest.heads(FROM) {
                let head = u16::try_from(head).expect("a head");
                let at = missed.iter().position(|&missed| missed == head);
                prop_assert!(at.is_some(), "{head} came back twice");
                missed.swap_remove(at.unwrap_or_default());
                free.push(head);
            }
            let mut offered = guest.offered(FROM);
            offered.sort_unstable();
            missed.sort_unstable();
            prop_assert_eq!(&offered, &missed);
        }
    }
}

/// QEMU 7.2 enables rings before it sets features.
#[test]
fn rings_may_be_enabled_before_features_are_set() {
    let (_folder, path, mut port) = open(CompletionOrder::OutOfOrder);
    let mut guest = Guest::connect(&path, SIZE);
    guest.say(GET_FEATURES, &[], &[]);
    port.probe().expect("always there");
    let offered = guest.answer();
    assert_eq!(offered & (1 << 35), 0, "never in order");
    for ring in [0, 1] {
        guest.say(SET_ENABLE, &[ring, 0, 0, 0, 1, 0, 0, 0], &[]);
    }
    guest.say(SET_FEATURES, &(VERSION_1 | PROTOCOL).to_le_bytes(), &[]);
    guest.share_memory();
    [TO, FROM].iter().for_each(|&ring| guest.describe(ring));
    (0..4).for_each(|_| port.probe().expect("always there"));
    guest.post(0, &[1; 60]);
    assert!(take(&mut port).is_some());
    guest.say(SET_ENABLE, &[1, 0, 0, 0, 0, 0, 0, 0], &[]);
    port.probe().expect("always there");
    guest.post(1, &[1; 60]);
    assert_eq!(take(&mut port), None, "disabled");
}
