//! A guest and a front end that write and say anything, anywhere, at any moment: the port takes what is sound, counts the
//! rest, and each call ends.

use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support::guest::{
    BUFFERS, EVENT_IDX, FROM, GET_FEATURES, GUEST, Guest, INDIRECT, LOG_ALL, MEMORY, MERGEABLE, NEXT,
    SET_CALL, SET_ENABLE, SET_FEATURES, SET_KICK, SET_LOG_BASE, SET_MEM_TABLE, SET_PLACE, SET_SIZE, TABLE,
    TO, USER, VERSION_1, WRITE, buffer,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, listen,
    sendmsg, socket,
};
use plimsoll_ports::{DropReason, Ticket, Took, VhostUser, VhostUserConfig};
use proptest::prelude::*;

const SIZE: u16 = 8;
const ALL: u64 = VERSION_1 | INDIRECT | MERGEABLE;

struct World {
    path: PathBuf,
    port: VhostUser,
    guest: Guest,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(features: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vm.sock");
        let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
        let guest = Guest::start(&mut port, &path, SIZE, features);
        Self { path, port, guest, _folder: folder }
    }

    /// Takes what there is, in a bounded number of steps; tickets of what is kept.
    fn batch(&mut self, keep: bool) -> Vec<Ticket> {
        let mut bytes = vec![0; 70_000];
        let mut tickets = Vec::new();
        self.port.begin().expect("always there");
        for step in 0..=2 * usize::from(SIZE) {
            assert!(step < 2 * usize::from(SIZE), "more than the ring holds");
            match self.port.take() {
                Took::Frame(taken) => {
                    self.port.copy(&mut bytes[..taken.len]);
                    if keep {
                        tickets.push(taken.ticket);
                    } else {
                        self.port.complete(taken.ticket);
                    }
                }
                Took::Refused => {}
                Took::Nothing => break,
            }
        }
        self.port.flush().expect("always there");
        assert!(self.port.in_flight() <= SIZE.into());
        tickets
    }

    /// Another guest comes, as soon as it is let in: not before what the last one should not have passed is closed.
    fn let_in(&mut self) {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.port.is_connected() {
            assert!(Instant::now() < end, "no client is let in");
            self.guest = Guest::connect(&self.path, SIZE);
            self.look();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.guest.introduce(&mut self.port, ALL);
    }

    fn bad(&self, why: DropReason) -> u64 {
        let counters = self.port.counters();
        counters.rx_dropped(why) + counters.tx_dropped(why)
    }

    /// A sound frame passes, whatever was before it.
    fn passes(&mut self, head: u16) {
        let before = self.port.counters().rx_packets;
        self.guest.post(head, &[1; 60]);
        self.batch(false);
        assert_eq!(self.port.counters().rx_packets, before + 1);
        assert_eq!(self.guest.heads(FROM), [u32::from(head)]);
    }

    fn hang_up(&mut self) {
        // What it has said before that is heard first.
        self.guest.socket.shutdown(std::net::Shutdown::Both).unwrap_or_default();
        self.look();
        assert!(!self.port.is_connected());
    }

    fn look(&mut self) {
        (0..8).for_each(|_| self.port.probe().expect("always there"));
    }
}

#[test]
fn a_chain_that_makes_no_sense_is_given_back_counted_and_the_next_passes() {
    let mut world = World::new(ALL);
    let good = GUEST + buffer(0) as u64;
    let at = |offset: u64| good + offset;
    type Chain = fn(&Guest, u64);
    let chains: [(&str, Chain); 15] = [
        ("a loop", |guest, at| guest.descriptor(FROM, 0, at, 60, NEXT, 0)),
        ("a longer loop", |guest, at| {
            guest.descriptor(FROM, 0, at, 60, NEXT, 1);
            guest.descriptor(FROM, 1, at, 60, NEXT, 0);
        }),
        ("a descriptor beyond the table", |guest, at| guest.descriptor(FROM, 0, at, 60, NEXT, SIZE)),
        ("an address before memory", |guest, _| guest.descriptor(FROM, 0, GUEST - 1, 60, 0, 0)),
        ("an address behind memory", |guest, _| guest.descriptor(FROM, 0, GUEST + MEMORY as u64, 60, 0, 0)),
        ("an end behind memory", |guest, _| guest.descriptor(FROM, 0, GUEST + MEMORY as u64 - 59, 60, 0, 0)),
        ("an address that wraps", |guest, _| guest.descriptor(FROM, 0, u64::MAX - 10, 60, 0, 0)),
        ("four gigabytes", |guest, at| guest.descriptor(FROM, 0, at, u32::MAX, 0, 0)),
        ("nothing", |guest, at| guest.descriptor(FROM, 0, at, 0, 0, 0)),
        ("for us to write", |guest, at| guest.descriptor(FROM, 0, at, 60, WRITE, 0)),
        ("less than a header", |guest, at| guest.descriptor(FROM, 0, at, 11, 0, 0)),
        ("a header and nothing", |guest, at| guest.descriptor(FROM, 0, at, 12, 0, 0)),
        ("too long a frame", |guest, _| guest.descriptor(FROM, 0, GUEST + BUFFERS as u64, 70_000, 0, 0)),
        ("a table in a table", |guest, at| {
            guest.table_entry(buffer(0), 0, at, 16, TABLE, 0);
            guest.descriptor(FROM, 0, at, 16, TABLE, 0);
        }),
        ("a table that loops", |guest, at| {
            guest.table_entry(buffer(0), 0, at, 60, NEXT, 1);
            guest.table_entry(buffer(0), 1, at, 60, NEXT, 0);
            guest.descriptor(FROM, 0, at, 32, TABLE, 0);
        }),
    ];
    for (number, (what, write)) in chains.into_iter().enumerate() {
        write(&world.guest, at(0));
        world.guest.offer(FROM, 0);
        world.batch(false);
        assert_eq!(world.guest.given_back(FROM), [(0, 0)], "{what}");
        assert_eq!(world.bad(DropReason::BadDescriptor), number as u64 + 1, "{what}");
        world.passes(1);
    }
    for (len, offset) in [(17, 0), (0, 0), (16 * (u32::from(SIZE) + 1), 0), (16, 4)] {
        world.guest.table_entry(buffer(0), 0, at(256), 100, 0, 0);
        world.guest.descriptor(FROM, 0, at(offset), len, TABLE, 0);
        world.guest.offer(FROM, 0);
        world.batch(false);
        assert_eq!(world.guest.heads(FROM), [0], "a table of {len} bytes");
    }
    assert_eq!(world.bad(DropReason::BadDescriptor), 19);
}

#[test]
fn heads_that_are_none_or_out_already_are_never_given_back() {
    let mut world = World::new(ALL);
    world.guest.offer(FROM, SIZE);
    world.guest.offer(FROM, u16::MAX);
    world.batch(false);
    assert!(world.guest.heads(FROM).is_empty());
    world.guest.post(3, &[1; 60]);
    world.guest.offer(FROM, 3);
    let tickets = world.batch(true);
    assert_eq!(tickets.len(), 1, "the second time it is out already");
    assert_eq!(world.bad(DropReason::BadDescriptor), 3);
    tickets.into_iter().for_each(|ticket| {
        world.port.complete(ticket);
    });
    world.port.flush().expect("always there");
    assert_eq!(world.guest.heads(FROM), [3]);
}

#[test]
fn behind_a_head_that_is_none_the_available_ring_stays_as_the_guest_wrote_it() {
    let mut world = World::new(ALL);
    let post = |guest: &Guest, head: u16| guest.post(head, &[1; 60]);
    (0..2).for_each(|head| post(&world.guest, head));
    world.guest.offer(FROM, SIZE);
    (2..4).for_each(|head| post(&world.guest, head));
    let written = [0, 1, SIZE, 2, 3];
    assert_eq!(world.guest.offered(FROM), written);
    let tickets = world.batch(true);
    assert_eq!(tickets.len(), 4);
    for (ticket, done) in tickets.into_iter().rev().zip(1..) {
        world.port.complete(ticket);
        world.port.flush().expect("always there");
        assert_eq!(world.guest.offered(FROM), written[done..]);
    }
    assert_eq!(world.guest.heads(FROM), [3, 2, 1, 0]);
}

#[test]
fn an_end_too_far_ahead_is_counted_once_and_mended_by_a_right_one() {
    let mut world = World::new(ALL);
    for end in [SIZE + 1, 0x8000, u16::MAX] {
        world.guest.move_end(FROM, end);
        for _ in 0..5 {
            world.batch(false);
        }
        assert!(world.port.rest(), "there is nothing to be taken");
    }
    assert_eq!(world.bad(DropReason::BadDescriptor), 3);
    world.guest.move_end(FROM, 0);
    world.passes(0);
}

#[test]
fn buffers_for_us_that_make_no_sense_cost_the_guest_its_frame_and_nothing_else() {
    let mut world = World::new(ALL);
    world.guest.lend(0, 1_000);
    world.guest.descriptor(TO, 1, GUEST + buffer(1) as u64, 1_000, 0, 0);
    world.guest.offer(TO, 1);
    world.guest.lend(2, 2_000);
    assert!(!matches!(world.port.send(&[1; 1_500], None), Ok(plimsoll_ports::Sending::Sent)));
    assert_eq!(world.bad(DropReason::BadDescriptor), 1);
    assert_eq!(world.port.send(&[1; 1_500], None), Ok(plimsoll_ports::Sending::Sent));
    world.port.flush().expect("always there");
    let back = world.guest.given_back(TO);
    assert_eq!(
        back.iter().map(|&(head, _)| head).collect::<std::collections::BTreeSet<_>>().len(),
        3,
        "{back:?}"
    );
    assert_eq!(back.last(), Some(&(2, 1_512)));
}

#[test]
fn memory_may_change_or_disappear_while_frames_are_out() {
    let mut world = World::new(ALL);
    world.guest.post(0, &[1; 60]);
    let tickets = world.batch(true);
    world.guest.share_memory();
    world.guest.is_heard(&mut world.port);
    assert_eq!(world.guest.heads(FROM), [0], "it was copied before its memory went");
    tickets.into_iter().for_each(|ticket| {
        world.port.complete(ticket);
    });
    world.passes(1);
    let reads: fn(&mut World) = |world| (0..2).for_each(|_| _ = world.batch(false));
    let only_sends: fn(&mut World) = |world| {
        let _ = world.port.send(&[1; 60], None);
        world.port.flush().expect("always there");
    };
    for notices in [reads, only_sends] {
        // A file that is not sealed.
        let file = memfd_create("guest", MFdFlags::empty()).expect("a file");
        nix::unistd::ftruncate(&file, MEMORY as i64).expect("long enough");
        let table = [1, GUEST, MEMORY as u64, USER, 0].map(u64::to_le_bytes).concat();
        world.guest.say(SET_MEM_TABLE, &table, &[file.as_raw_fd()]);
        world.guest.is_heard(&mut world.port);
        nix::unistd::ftruncate(&file, 0).expect("cut off");
        notices(&mut world);
        assert!(!world.port.is_connected());
        assert!(world.port.take_problem().is_some_and(|problem| problem.to_string().contains("cut off")));
        world.guest = Guest::start(&mut world.port, &world.path, SIZE, ALL);
        world.passes(1);
    }
}

/// A log that is too short for the guest's memory, or than it says, or is cut off: nothing is written beyond it.
#[test]
fn a_log_that_is_no_log_harms_nobody() {
    let log = |world: &World, bytes: u64, len: u64, offset: u64| {
        let file = memfd_create("log", MFdFlags::empty()).expect("a file");
        nix::unistd::ftruncate(&file, bytes as i64).expect("long enough");
        let payload = [len, offset].map(u64::to_le_bytes).concat();
        world.guest.say(SET_LOG_BASE, &payload, &[file.as_raw_fd()]);
        world.guest.say(SET_FEATURES, &(ALL | LOG_ALL).to_le_bytes(), &[]);
        file
    };
    for (bytes, len, offset) in
        [(0, 4_096, 0), (4_096, 8_192, 0), (4_096, 4_096, 1), (4_096, u64::MAX, 4_096), (0, 0, 0)]
    {
        let mut world = World::new(ALL);
        let _file = log(&world, bytes, len, offset);
        world.port.probe().expect("always there");
        assert!(!world.port.is_connected(), "{len} bytes at {offset} of {bytes}");
        world.guest = Guest::start(&mut world.port, &world.path, SIZE, ALL);
        world.passes(1);
    }
    // Shorter than the memory that it is for: its end is where nothing is written.
    let mut world = World::new(ALL);
    let file = log(&world, 4_096, 4_096, 0);
    world.passes(2);
    assert!(world.port.is_connected());
    nix::unistd::ftruncate(&file, 0).expect("cut off");
    world.guest.lend(5, 2_000);
    let _ = world.port.send(&[1; 60], None);
    world.port.flush().expect("always there");
    world.guest = Guest::start(&mut world.port, &world.path, SIZE, ALL);
    world.passes(1);
}

/// Memory's files are of a kind that is passed, and so is only found out where it is used.
#[test]
fn memory_is_no_bell_and_no_kick() {
    let mut world = World::new(ALL);
    for (request, number) in [(SET_CALL, 0_u64), (SET_KICK, 1), (SET_KICK, 99)] {
        let file = memfd_create("guest", MFdFlags::empty()).expect("a file");
        world.guest.say(request, &number.to_le_bytes(), &[file.as_raw_fd()]);
        world.look();
        assert!(!world.port.is_connected(), "request {request} with {number}");
        world.let_in();
        world.passes(1);
    }
}

#[test]
fn a_message_that_makes_no_sense_ends_the_connection_and_is_told() {
    let mut world = World::new(ALL);
    let pair = |a: u32, b: u32| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let long = |number: u64| number.to_le_bytes().to_vec();
    let table = |pieces: &[[u64; 4]]| {
        let count = (pieces.len() as u64).to_le_bytes().to_vec();
        pieces.iter().flatten().fold(count, |mut bytes, number| {
            bytes.extend(number.to_le_bytes());
            bytes
        })
    };
    let whole = MEMORY as u64;
    let place = |ring: u64, at: u64| [ring, at, at, at, 0].map(u64::to_le_bytes).concat();
    let messages: Vec<(u32, Vec<u8>, usize)> = vec![
        (99, vec![], 0),
        (SET_FEATURES, long(1 << 35), 0),
        (SET_FEATURES, vec![0; 7], 0),
        (SET_FEATURES, long(0), 1),
        (SET_SIZE, pair(0, 3), 0),
        (SET_SIZE, pair(0, 0), 0),
        (SET_SIZE, pair(0, 65_536), 0),
        (SET_SIZE, pair(99, 8), 0),
        (SET_ENABLE, pair(u32::MAX, 1), 0),
        (SET_KICK, long(1), 0),
        (SET_KICK, long(0x101), 0),
        (SET_KICK, long(0xff), 1),
        (SET_CALL, long(0), 2),
        (SET_CALL, long(0), 1),
        (SET_PLACE, place(0, USER + 1), 0),
        (SET_PLACE, place(1, USER + whole - 8), 0),
        (SET_PLACE, place(1, u64::MAX - 15), 0),
        (SET_MEM_TABLE, table(&[]), 0),
        (SET_MEM_TABLE, table(&[[GUEST, whole, USER, 0]]), 0),
        (SET_MEM_TABLE, table(&[[GUEST, whole, USER, 0]]), 1),
        (SET_MEM_TABLE, table(&[[GUEST, whole, USER, 0]; 9]), 9),
        (SET_MEM_TABLE, vec![0xff; 8 + 8 * 32 + 1], 8),
    ];
    for (number, (request, payload, descriptors)) in messages.into_iter().enumerate() {
        // Files that are neither memory nor bells.
        let files: Vec<OwnedFd> =
            (0..descriptors).map(|_| nix::unistd::pipe().expect("descriptors").0).collect();
        let ends: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        world.guest.say(request, &payload, &ends);
        world.look();
        assert!(!world.port.is_connected(), "request {request}: {payload:?} with {descriptors}");
        assert_eq!(world.bad(DropReason::BadMessage), number as u64 + 1);
        assert!(world.port.take_problem().is_some());
        world.let_in();
        world.passes(1);
    }
}

/// Its addresses are the front end's own: alignment there says nothing of the alignment in this process, and the other way.
#[test]
fn memory_that_is_not_aligned_ends_the_connection_and_nothing_else() {
    let mut world = World::new(ALL);
    for (guest, user, offset) in [(GUEST, USER - 1, 0), (GUEST, USER, 1), (GUEST, USER - 4_095, 0)] {
        let table = [1, guest, MEMORY as u64 - 1, user, offset].map(u64::to_le_bytes).concat();
        world.guest.say(SET_MEM_TABLE, &table, &[world.guest.file.as_raw_fd()]);
        world.look();
        assert!(!world.port.is_connected(), "{user:#x} {offset}");
        assert!(world.port.take_problem().is_some_and(|problem| problem.to_string().contains("not aligned")));
        world.let_in();
        world.passes(1);
    }
}

/// A connection that waits to be accepted is announced only once.
#[test]
fn of_two_who_come_at_once_the_second_is_heard_before_the_port_rests() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let _silent = Guest::connect(&path, SIZE);
    let mut second = Guest::connect(&path, SIZE);
    second.say(GET_FEATURES, &[], &[]);
    assert!(!port.rest(), "a second connection waits");
    // The silent connection is first closed, on a thread of its own.
    let end = Instant::now() + Duration::from_secs(10);
    second.socket.set_nonblocking(true).expect("ours");
    let mut answer = [0; 20];
    while second.socket.read_exact(&mut answer).is_err() {
        assert!(Instant::now() < end, "the port does not answer");
        port.rest();
    }
}

/// The port must not be what keeps a front end's end of the connection open.
#[test]
fn a_front_end_that_passes_its_own_end_does_not_keep_the_port_taken() {
    type Pass = fn(&Guest) -> OwnedFd;
    let own: Pass = |guest| guest.socket.as_fd().try_clone_to_owned().expect("a descriptor");
    let in_a_queue: Pass = |guest| {
        let (near, far) = UnixStream::pair().expect("sockets");
        let own = [guest.socket.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&own)];
        sendmsg::<UnixAddr>(near.as_raw_fd(), &[IoSlice::new(&[0])], &rights, MsgFlags::empty(), None)
            .expect("sent");
        far.into()
    };
    let kick = [SET_KICK, 1, 8, FROM as u32, 0].map(u32::to_le_bytes).concat();
    let memory = [SET_MEM_TABLE, 1, 40].map(u32::to_le_bytes).concat();
    let mut world = World::new(ALL);
    for (what, bytes) in [("a kick", &kick[..]), ("half a kick", &kick[..5]), ("half a table", &memory[..])] {
        for pass in [own, in_a_queue] {
            let before = world.bad(DropReason::BadMessage);
            let passed = pass(&world.guest);
            world.guest.send(bytes, &[passed.as_raw_fd()]);
            drop(passed);
            // The process ends, and with it all of its descriptors.
            world.guest.socket = UnixStream::pair().expect("sockets").0;
            world.look();
            assert!(!world.port.is_connected(), "{what}");
            assert_eq!(world.bad(DropReason::BadMessage), before + 1, "{what}");
            world.let_in();
            world.passes(0);
        }
    }
}

#[test]
fn what_is_no_bell_is_no_kick_and_no_client_passes_descriptors_without_end() {
    let mut world = World::new(ALL);
    let file = tempfile::tempfile().expect("a file");
    for (count, len) in [(1, 20), (9, 1), (200, 1)] {
        let kick = [SET_KICK, 1, 8, FROM as u32, 0].map(u32::to_le_bytes).concat();
        world.guest.send(&kick[..len], &vec![file.as_raw_fd(); count]);
        world.look();
        assert!(!world.port.is_connected(), "{count} files");
        assert!(world.port.take_problem().is_some());
        world.let_in();
        world.passes(0);
    }
}

#[test]
fn a_message_may_come_byte_by_byte_and_the_port_does_not_wait() {
    let mut world = World::new(ALL);
    let message = [1_u32, 1, 0].map(u32::to_le_bytes).concat();
    for byte in &message {
        world.guest.send(&[*byte], &[]);
        world.look();
    }
    assert_ne!(world.guest.answer(), 0);
    world.guest.send(&message[..5], &[]);
    world.passes(0);
    world.hang_up();
    world.guest = Guest::start(&mut world.port, &world.path, SIZE, ALL);
    world.passes(1);
}

#[test]
fn a_socket_whose_listener_accepts_no_client_is_another_processes_and_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let end = || socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("a socket");
    let (other, address) = (end(), UnixAddr::new(&path).expect("a short path"));
    bind(other.as_raw_fd(), &address).expect("free");
    listen(&other, Backlog::new(1).expect("in range")).expect("bound");
    let waiting: Vec<OwnedFd> =
        (0..8).map(|_| end()).take_while(|one| connect(one.as_raw_fd(), &address).is_ok()).collect();
    assert!(waiting.len() < 8, "its queue is full");
    let (tell, told) = std::sync::mpsc::channel();
    let opening = std::thread::spawn(move || {
        let opened = VhostUser::open(&VhostUserConfig::new(&path)).map(|_| ());
        let _ = tell.send(opened);
    });
    let opened = told.recv_timeout(Duration::from_secs(2));
    // A connection that waits there hears of its end.
    drop((other, waiting));
    opening.join().expect("no panic");
    let error = opened.expect("no wait").expect_err("the socket is another process's");
    assert!(error.to_string().contains("it is in use"), "{error}");
}

#[test]
fn a_client_that_connects_and_says_nothing_keeps_no_other_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let _silent = Guest::connect(&path, SIZE);
    port.probe().expect("always there");
    let half = Guest::connect(&path, SIZE);
    half.send(&[1, 0, 0], &[]);
    port.probe().expect("always there");
    let guest = Guest::start(&mut port, &path, SIZE, ALL);
    let _late = Guest::connect(&path, SIZE);
    port.probe().expect("always there");
    guest.post(0, &[1; 60]);
    assert!(matches!(port.take(), Took::Frame(_)));
}

#[test]
fn a_frame_in_very_many_parts_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let mut guest = Guest::start(&mut port, &path, 256, ALL);
    for (parts, passes) in [(128, true), (129, false)] {
        for part in 0..parts {
            let flags = if part + 1 < parts { NEXT } else { 0 };
            guest.descriptor(FROM, part, GUEST + buffer(0) as u64, 1, flags, part + 1);
        }
        guest.offer(FROM, 0);
        assert_eq!(matches!(port.take(), Took::Frame(_)), passes, "{parts} parts");
        guest.say(SET_ENABLE, &[1, 0, 0, 0, 1, 0, 0, 0], &[]);
        guest.say(SET_SIZE, &[1, 0, 0, 0, 0, 1, 0, 0], &[]);
        port.probe().expect("always there");
        assert_eq!(guest.heads(FROM), [0]);
    }
}

#[test]
fn rings_may_move_while_they_run() {
    let mut world = World::new(ALL);
    world.guest.post(0, &[1; 60]);
    let tickets = world.batch(true);
    world.guest.place(FROM, USER + 0x100);
    world.look();
    assert_eq!(world.guest.heads(FROM), [0], "given back where it was");
    world.batch(false);
    tickets.into_iter().for_each(|ticket| {
        world.port.complete(ticket);
    });
    world.guest.place(FROM, USER);
    world.look();
    world.guest.seen = [0, 1];
    world.passes(1);
}

#[derive(Clone, Debug)]
enum Deed {
    /// A word anywhere in the rings, or in tables behind them.
    Write(usize, u32),
    /// A ring's end.
    End(usize, u16),
    Offer(usize, u16),
    Post(u16),
    Batch(bool),
    Send(usize),
    Rest,
    /// A message of any content.
    Say(u32, Vec<u8>, usize),
}

fn deeds() -> impl Strategy<Value = Vec<Deed>> {
    let ring = 0..2_usize;
    // Where descriptors, both rings and their ends are.
    let place = prop_oneof![
        0..64_usize,
        0x1000..0x1010_usize,
        0x2000..0x2018_usize,
        Just(BUFFERS / 4),
        0..MEMORY / 4
    ];
    let value = prop_oneof![any::<u32>(), 0..16_u32, Just(GUEST as u32), Just(BUFFERS as u32)];
    let deed = prop_oneof![
        6 => (place, value, 0..2_usize).prop_map(|(word, value, ring)| Deed::Write(ring * 0x1_0000 + word * 4, value)),
        1 => (ring.clone(), any::<u16>()).prop_map(|(ring, end)| Deed::End(ring, end)),
        4 => (ring, 0..SIZE + 1).prop_map(|(ring, head)| Deed::Offer(ring, head)),
        4 => (0..SIZE).prop_map(Deed::Post),
        4 => any::<bool>().prop_map(Deed::Batch),
        3 => (14..9_000_usize).prop_map(Deed::Send),
        1 => Just(Deed::Rest),
        1 => (0..40_u32, prop::collection::vec(any::<u8>(), 0..80), 0..3_usize).prop_map(|(a, b, c)| Deed::Say(a, b, c)),
    ];
    prop::collection::vec(deed, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Nothing panics, each call ends, no more is out than the ring holds, and what is posted well in the end passes.
    #[test]
    fn whatever_is_written_and_said_the_port_goes_on(deeds in deeds(), event_idx in any::<bool>()) {
        let mut world = World::new(if event_idx { ALL | EVENT_IDX } else { ALL });
        let mut tickets = Vec::new();
        for deed in deeds {
            match deed {
                Deed::Write(at, value) => world.guest.region.write(at & (MEMORY - 4) & !3, &value.to_le_bytes()),
                Deed::End(ring, end) => world.guest.move_end(ring, end),
                Deed::Offer(ring, head) => world.guest.offer(ring, head),
                Deed::Post(head) => world.guest.post(head, &[1; 60]),
                Deed::Batch(keep) => {
                    tickets.extend(world.batch(keep));
                    if !keep {
                        tickets.drain(..).rev().for_each(|ticket| {
            world.port.complete(ticket);
        });
                    }
                }
                Deed::Send(len) => {
                    let _ = world.port.send(&vec![7; len], None);
                }
                Deed::Rest => {
                    world.port.rest();
                }
                Deed::Say(request, payload, descriptors) => {
                    world.guest.say(request, &payload, &vec![world.guest.calls[0].as_raw_fd(); descriptors]);
                    world.look();
                }
            }
        }
        world.hang_up();
        world.guest = Guest::start(&mut world.port, &world.path, SIZE, ALL);
        world.passes(0);
    }
}
