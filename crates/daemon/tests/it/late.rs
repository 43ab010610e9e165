//! Payload that waits in a guest's memory until its frame leaves.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::guest::{BUFFERS, FROM, GET_BASE, GUEST, Guest, MEMORY, PAGE, TO, VERSION_1, buffer, used};
use crate::support::{drain, number, policy, udp};
use plimsoll_daemon::{Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_ports::{FRAME_ROOM, MemoryConfig, MemoryPort, Port, VhostUser, VhostUserConfig};
use plimsoll_units::{Nanos, Span};

const SIZE: u16 = 64;
const LEN: usize = 1_200;
const OUTSIDE: u8 = 99;
/// Bytes of a frame that are copied when it is taken.
const FRONT: usize = 128;

/// Frames of `vm` leave at 1 Mb/s, so that they wait: 9.6 ms for each.
const SLOW: &str = "
uplink: {port: memory, rate: 1Gbps}
tenants: {vm: {port: memory, flows: fifo, max: 1Mbps}, other: {port: memory}}
";

/// Two guests, `vm` and `other`, and a wire in memory.
struct World {
    engine: Dataplane,
    wire: MemoryPort,
    guests: [Guest; 2],
    now: Nanos,
    folder: tempfile::TempDir,
}

impl World {
    fn new(text: &str) -> Self {
        Self::with(text, VERSION_1)
    }

    /// With a driver of the second guest that accepts these features.
    fn with(text: &str, features: u64) -> Self {
        Self::with_guest(text, features, None)
    }

    /// Where the first guest has come from another host.
    fn with_guest(text: &str, features: u64, mut arrived: Option<Guest>) -> Self {
        let checked = policy(text);
        let folder = tempfile::tempdir().expect("a folder");
        let open = |(name, features): (&str, u64)| {
            let path: PathBuf = folder.path().join(name);
            let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
            let guest = match arrived.take() {
                None => Guest::start(&mut port, &path, SIZE, features),
                Some(mut guest) => {
                    guest.come_back(&mut port, &path, features);
                    guest
                }
            };
            (Port::VhostUser(port), guest)
        };
        let [(vm, first), (other, second)] = [("vm", VERSION_1), ("other", features)].map(open);
        let memory = MemoryConfig { slots: 4_096, frame: FRAME_ROOM, ..MemoryConfig::default() };
        let (uplink, wire) = MemoryPort::pair("uplink", memory).expect("memory");
        let uplink = Port::Memory(uplink);
        let engine = Dataplane::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(&checked, &uplink),
            lanes: vec![lane_spec(&checked, "vm", Some(vm)), lane_spec(&checked, "other", Some(other))],
            uplink,
            log: Arc::new(DepartureLog::default()),
            fleet: None,
        });
        Self { engine, wire, guests: [first, second], now: Nanos::ZERO, folder }
    }

    fn vm(&mut self) -> &mut Guest {
        &mut self.guests[0]
    }

    fn turn(&mut self) {
        self.engine.all_ready();
        self.engine.turn(self.now);
        self.now += Span::micros(100);
    }

    /// Runs, and returns what has come out of the uplink.
    fn run(&mut self, span: Span) -> Vec<Vec<u8>> {
        let end = self.now + span;
        let mut left = Vec::new();
        while self.now < end {
            self.turn();
            left.extend(drain(&mut self.wire));
        }
        left
    }

    fn losses(&mut self, lane: usize) -> Vec<(&'static str, u64)> {
        self.engine.snapshot(self.now).lanes[lane].tally.losses().collect()
    }

    /// How often headers and payloads of the first guest were read from its memory.
    fn reads(&mut self) -> [u64; 2] {
        let lane = &self.engine.snapshot(self.now).lanes[0];
        let count =
            |name| lane.tally.events().find(|(event, _)| *event == name).map_or(0, |(_, count)| count);
        ["headers_read", "payload_read"].map(count)
    }

    fn taken_back(&mut self) -> u64 {
        self.losses(0).iter().find(|(why, _)| *why == "taken_back").map_or(0, |(_, count)| *count)
    }

    /// Stops the ring on which the first guest sends, as a front end does before it moves the guest. Returns where it goes on.
    fn stop_ring(&mut self) -> u16 {
        self.stop(FROM)
    }

    fn stop(&mut self, ring: usize) -> u16 {
        self.vm().say(GET_BASE, &[ring as u8, 0, 0, 0, 0, 0, 0, 0], &[]);
        self.vm().socket.set_nonblocking(true).expect("ours");
        let mut answer = [0; 20];
        for _ in 0..1_000 {
            self.turn();
            if self.guests[0].socket.read_exact(&mut answer).is_ok() {
                self.vm().socket.set_nonblocking(false).expect("ours");
                return u16::from_le_bytes([answer[16], answer[17]]);
            }
        }
        panic!("the port does not answer");
    }
}

#[test]
fn what_a_guest_changes_while_a_frame_waits_is_payload_and_nothing_else() {
    let mut world = World::new(SLOW);
    let frames: Vec<Vec<u8>> = (0..4).map(|n| udp(1, OUTSIDE, 7, n, LEN)).collect();
    for (head, frame) in (0..).zip(&frames) {
        world.vm().post(head, frame);
    }
    let mut left = world.run(Span::millis(1));
    let gone = left.len();
    assert!(gone < 4, "{gone} have left before they were changed");
    for head in 0..4 {
        let guest = world.vm();
        guest.region.write(buffer(head), &[0xee; LEN + 12]);
        guest.descriptor(FROM, head, GUEST + BUFFERS as u64, 60_000, 0, 0);
    }
    left.extend(world.run(Span::millis(60)));
    assert_eq!(left.len(), 4, "{:?}", world.losses(0));
    for (n, (frame, posted)) in left.iter().zip(&frames).enumerate() {
        assert_eq!(frame.len(), LEN);
        assert_eq!(frame[..FRONT], posted[..FRONT], "headers are those that were checked");
        let payload = if n < gone { &posted[FRONT..] } else { &[0xee; LEN][FRONT..] };
        assert_eq!(&frame[FRONT..], payload, "payload is read when frame {n} leaves");
    }
    assert_eq!(world.vm().heads(FROM), [0, 1, 2, 3], "each comes back when it has left");
    assert_eq!(world.reads(), [4, 4], "two reads for each frame");
}

#[test]
fn a_payload_goes_from_one_guest_to_the_other() {
    let mut world = World::new(&SLOW.replace("1Mbps", "1Gbps"));
    // The other guest's address is learned from a frame that it sends.
    world.guests[1].post(0, &udp(2, OUTSIDE, 9, 0, 60));
    world.run(Span::millis(1));
    for head in 0..8 {
        world.guests[1].lend(head, 2_000);
    }
    let frames: Vec<Vec<u8>> = (0..8).map(|n| udp(1, 2, 7, n, 800 + 100 * n as usize)).collect();
    for (head, frame) in (8..).zip(&frames) {
        world.vm().post(head, frame);
    }
    world.run(Span::millis(5));
    let came = world.guests[1].given_back(TO);
    assert_eq!(came.len(), 8, "{:?}", world.losses(0));
    for ((head, len), frame) in came.into_iter().zip(&frames) {
        assert_eq!(len as usize, 12 + frame.len());
        let head = u16::try_from(head).expect("a head");
        assert_eq!(&world.guests[1].read(buffer(head) + 12, frame.len()), frame);
    }
    assert_eq!(world.reads(), [8, 8], "two reads for each frame");
}

/// The front end stops the ring while frames wait, to move the guest to another host: there they are taken again.
#[test]
fn frames_that_wait_when_their_ring_stops_are_taken_again_where_it_goes_on() {
    let mut world = World::new(SLOW);
    for n in 0..6 {
        world.vm().post(n, &udp(1, OUTSIDE, 7, n.into(), LEN));
    }
    let mut left = world.run(Span::millis(12));
    let back = world.vm().heads(FROM);
    assert!(left.len() < 6 && back.len() == left.len(), "{} have left", left.len());
    let base = world.stop_ring();
    assert_eq!(usize::from(base), back.len(), "the ring goes on behind what has left");
    assert_eq!(world.vm().heads(FROM), [0; 0], "the others are not given back");
    left.extend(world.run(Span::millis(80)));
    assert_eq!(left.len(), back.len(), "none leaves without its sender");
    assert_eq!(world.taken_back(), 6 - left.len() as u64);
    world.vm().bases[FROM] = base;
    world.vm().describe(FROM);
    left.extend(world.run(Span::millis(200)));
    let numbers: Vec<u32> = left.iter().map(|frame| number(frame).1).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5], "each has left once, in order");
}

/// The front end copies the guest's memory while it runs, and what the log names once more after that: so the guest's new host has
/// all of it, and takes the frames that waited.
#[test]
fn a_guest_that_moves_while_frames_wait_finds_all_its_memory_and_they_leave_from_its_new_host() {
    let mut world = World::new(SLOW);
    for n in 0..6 {
        world.vm().post(n, &udp(1, OUTSIDE, 7, n.into(), LEN));
    }
    for head in 8..12 {
        world.vm().lend(head, 2_000);
    }
    let mut left = world.run(Span::millis(5));
    let log = world.vm().ask_for_log(VERSION_1);
    world.run(Span::millis(1));
    assert_eq!(world.vm().answer(), 0, "the log is there");
    let mut copy = world.vm().read(0, MEMORY);
    assert_eq!(world.vm().heads(FROM).len(), left.len(), "no ring was stopped for that");
    let sent = udp(2, 1, 9, 0, 1_500);
    world.guests[1].post(0, &sent);
    left.extend(world.run(Span::millis(12)));
    let base = world.stop(FROM);
    world.stop(TO);
    assert!((1..6).contains(&base) && usize::from(base) == left.len(), "{base}: some have left");

    let logged = Guest::logged(&log);
    let [to, from] = [used(TO), used(FROM)].map(|ring| ring / PAGE);
    for page in [to, from, buffer(8) / PAGE] {
        assert!(logged.contains(&page), "{page} of {logged:?}");
    }
    assert!(logged.len() <= 5, "only what was written, and the available ring: {logged:?}");
    for page in logged {
        let at = page * PAGE;
        copy[at..at + PAGE].copy_from_slice(&world.vm().read(at, PAGE));
    }
    assert!(copy == world.vm().read(0, MEMORY), "a page was written and is not in the log");

    let World { guests: [here, _], .. } = world;
    let there = Guest::copied(SIZE, &copy);
    drop(here);
    let mut world = World::with_guest(SLOW, VERSION_1, Some(there));
    assert_eq!(world.vm().read(buffer(8) + 12, sent.len()), sent, "a frame that came meanwhile");
    left.extend(world.run(Span::millis(80)));
    let numbers: Vec<u32> = left.iter().map(|frame| number(frame).1).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5], "each has left once, in order");
}

/// A guest that disconnects while frames wait: nothing is read from memory that is no longer mapped.
#[test]
fn frames_of_a_guest_that_has_gone_are_counted_and_another_guest_is_served() {
    let mut world = World::new(SLOW);
    for n in 0..6 {
        world.vm().post(n, &udp(1, OUTSIDE, 7, n.into(), LEN));
    }
    let mut left = world.run(Span::millis(12));
    world.vm().socket.shutdown(std::net::Shutdown::Both).expect("ours");
    left.extend(world.run(Span::millis(80)));
    assert_eq!(left.len() as u64 + world.taken_back(), 6);
    assert!(world.taken_back() >= 3 && world.engine.held() == 0, "{} held", world.engine.held());
    // What came back, and where the ring begins again, agree: the frames leave when the guest is back.
    let path = world.folder.path().join("vm");
    come_back(&mut world, &path);
    // The connection before is closed by another thread.
    let begun = Instant::now();
    while left.len() < 6 && begun.elapsed() < Duration::from_secs(10) {
        left.extend(world.run(Span::millis(20)));
        std::thread::sleep(Duration::from_millis(1));
    }
    let numbers: Vec<u32> = left.iter().map(|frame| number(frame).1).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
}

/// The guest's memory has kept a thread waiting, and the port is served by a thread of its own from now on.
#[test]
fn frames_that_wait_when_their_tenant_goes_apart_are_taken_again_there() {
    let mut world = World::new(SLOW);
    for n in 0..6 {
        world.vm().post(n, &udp(1, OUTSIDE, 7, n.into(), LEN));
    }
    let mut left = world.run(Span::millis(12));
    assert!(left.len() < 6 && world.engine.serve_apart(0, world.now));
    let begun = Instant::now();
    while left.len() < 6 && begun.elapsed() < Duration::from_secs(10) {
        left.extend(world.run(Span::millis(20)));
        std::thread::sleep(Duration::from_millis(1));
    }
    let numbers: Vec<u32> = left.iter().map(|frame| number(frame).1).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5], "{:?}", world.losses(0));
}

/// Three UDP segments of 1,000 bytes in one frame, with their checksum to be completed. Each has a payload of its own.
fn three_segments(to: u8) -> ([u8; 12], Vec<u8>) {
    let mut large = udp(1, to, 7, 0, 42 + 3_000);
    large[42..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 1_000) as u8 + 1);
    let mut header = [0; 12];
    (header[0], header[1], header[6], header[8]) = (1, 5, 34, 6);
    header[2..4].copy_from_slice(&42_u16.to_le_bytes());
    header[4..6].copy_from_slice(&1_000_u16.to_le_bytes());
    (header, large)
}

/// A driver that takes unfinished checksums and no segments gets each segment as a header of its own and a payload from
/// where that lies.
#[test]
fn a_segment_is_cut_for_a_driver_that_finishes_checksums() {
    const GUEST_CSUM: u64 = 1 << 1;
    let mut world = World::with(&SLOW.replace("1Mbps", "20Mbps"), VERSION_1 | GUEST_CSUM);
    world.guests[1].post(0, &udp(2, OUTSIDE, 9, 0, 60));
    world.run(Span::millis(1));
    for head in 0..8 {
        world.guests[1].lend(head, 2_000);
    }
    let (header, large) = three_segments(2);
    world.vm().post_with(0, &header, &large);
    world.run(Span::millis(20));
    let came = world.guests[1].given_back(TO);
    assert_eq!(came.len(), 3, "{:?}", world.losses(0));
    for (n, (head, len)) in (1..).zip(came) {
        assert_eq!(len, 12 + 1_042);
        let at = buffer(u16::try_from(head).expect("a head"));
        let vnet = world.guests[1].read(at, 12);
        assert_eq!(
            (vnet[0] & 1, vnet[1]),
            (1, 0),
            "the checksum is left to the driver, and nothing is left to cut"
        );
        let mut frame = world.guests[1].read(at + 12, 1_042);
        assert!(frame[42..].iter().all(|byte| *byte == n), "segment {n}");
        let covered = u32::from(u16::from_be_bytes([frame[40], frame[41]]));
        let sum = frame[34..40].iter().chain(&frame[42..]).enumerate().fold(covered, |sum, (at, byte)| {
            sum + if at % 2 == 0 { u32::from(*byte) << 8 } else { u32::from(*byte) }
        });
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        frame[40..42].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        let finished = plimsoll_wire::TransportChecksum::of(&frame);
        assert_eq!(finished, Some(plimsoll_wire::TransportChecksum::Right), "segment {n}");
    }
    assert_eq!(world.vm().heads(FROM), [0]);
    assert_eq!(world.reads(), [1, 3], "the headers once, and a payload for each segment");
}

/// A long segment is cut from the guest's memory, with a header of its own for each part.
#[test]
fn a_segment_is_cut_where_it_lies() {
    let mut world = World::new(&SLOW.replace("max: 1Mbps", "max: 20Mbps"));
    let (header, large) = three_segments(OUTSIDE);
    world.vm().post_with(0, &header, &large);
    let left = world.run(Span::millis(20));
    assert_eq!(left.len(), 3, "{:?}", world.losses(0));
    for (n, frame) in (1..).zip(&left) {
        assert!(frame.len() == 1_042 && frame[42..].iter().all(|byte| *byte == n), "segment {n}");
        let parsed = plimsoll_wire::parse(frame).expect("a packet");
        assert_eq!(parsed.ip.map(|ip| ip.end as usize), Some(1_042));
        assert_eq!(
            plimsoll_wire::TransportChecksum::of(frame),
            Some(plimsoll_wire::TransportChecksum::Right)
        );
    }
    assert_eq!(world.vm().heads(FROM), [0]);
    assert_eq!(world.reads(), [1, 3], "the headers once, and a payload for each segment");
}

/// Neither TCP nor UDP: somebody may look behind the first bytes, so the frame is copied at once.
#[test]
fn a_frame_of_another_protocol_is_made_whole_at_once() {
    let mut world = World::new(SLOW);
    let mut frame = udp(1, OUTSIDE, 7, 0, LEN);
    frame[23] = 1;
    world.vm().post(0, &udp(1, OUTSIDE, 7, 9, LEN));
    world.vm().post(1, &udp(1, OUTSIDE, 7, 9, LEN));
    world.vm().post(2, &frame);
    world.turn();
    world.vm().region.write(buffer(2), &[0xee; LEN + 12]);
    let left = world.run(Span::millis(60));
    assert_eq!(left.last(), Some(&frame), "{:?}", world.losses(0));
}

/// Connects again, as QEMU does, to the engine's port.
fn come_back(world: &mut World, path: &Path) {
    let guest = world.vm();
    guest.socket = std::os::unix::net::UnixStream::connect(path).expect("connected");
    guest.bases = [TO, FROM].map(|ring| guest.used_end(ring));
    guest.say(crate::guest::SET_FEATURES, &VERSION_1.to_le_bytes(), &[]);
    guest.share_memory();
    for ring in [TO, FROM] {
        guest.describe(ring);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a guest writes into all its memory and whenever: what leaves has the headers of a frame that it had posted when it
    /// was taken, and the other guest gets all its frames out.
    #[test]
    fn a_guest_that_scribbles_harms_nobody(
        writes in proptest::collection::vec((0..MEMORY - 8, any::<u64>(), 0_u64..3_000), 1..200),
    ) {
        let mut world = World::new(&SLOW.replace("max: 1Mbps", "max: 20Mbps"));
        let (mut posted, mut came, mut head) = (0_u32, 0_u32, 0);
        for n in 0..32 {
            world.vm().post(n, &udp(1, OUTSIDE, 7, n.into(), LEN));
        }
        for (at, word, pause) in writes {
            world.vm().region.word64(at / 8 * 8).store(word, Ordering::Relaxed);
            world.guests[1].post(head, &udp(2, OUTSIDE, 9, posted, LEN));
            (posted, head) = (posted + 1, (head + 1) % SIZE);
            for frame in world.run(Span::micros(200 + pause)) {
                prop_assert!(frame.len() >= 14);
                if frame[11] == 2 {
                    prop_assert_eq!(&frame, &udp(2, OUTSIDE, 9, came, LEN));
                    came += 1;
                }
            }
        }
        prop_assert_eq!(posted, came, "{:?}", world.losses(1));
    }
}
