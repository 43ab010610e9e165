//! A client that writes anything, anywhere, at any moment: the port takes what is sound, counts the rest, and each call
//! ends.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use plimsoll_ports::{Counters, DropReason, Sending, Took, Trouble, VnicConfig, VnicPort, VnicRequest};
use plimsoll_vnic::layout::{BUFFER, MAX_FRAME, header};
use plimsoll_vnic::message::{FlowSpec, Message};
use plimsoll_vnic::socket::{Incoming, connect_to, read_message, read_welcome, send_message};
use plimsoll_vnic::{Context, Descriptor, Layout, PacketMetadata, Posted, Region, Sizes, Status};
use plimsoll_wire::doorbell::Note;
use proptest::prelude::*;

const SIZES: Sizes = Sizes {
    flow_queues: 8,
    ring: 8,
    doorbell_queues: 2,
    doorbell_words: 32,
    completions: 16,
    receive: 4,
    buffers: 64,
};

/// A client without the client's manners.
struct Raw {
    port: VnicPort,
    socket: OwnedFd,
    memory: OwnedFd,
    kick: OwnedFd,
    wake: OwnedFd,
    region: Region,
    layout: Layout,
    _folder: tempfile::TempDir,
}

impl Raw {
    fn connect() -> Self {
        Self::sized(SIZES)
    }

    fn sized(sizes: Sizes) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("shop.sock");
        let mut port = VnicPort::open(&VnicConfig { sizes, ..VnicConfig::new(&path) }).expect("a port");
        let socket = connect_to(&path).expect("connected");
        send_message(&socket, Message::hello(), &[]).expect("sent");
        port.rest();
        assert_eq!(port.request(), None);
        let (answer, descriptors) = read_welcome(&socket).expect("an answer");
        let Some(Message::Welcome(len)) = answer else { panic!("{answer:?}") };
        let [memory, kick, wake]: [OwnedFd; 3] = descriptors.try_into().expect("three descriptors");
        let region = Region::map(&memory, len as usize).expect("mapped");
        let (layout, _) = Layout::read_header(&region).expect("a header");
        Self { port, socket, memory, kick, wake, region, layout, _folder: folder }
    }

    fn open_all(&mut self) {
        for target in 1..SIZES.flow_queues {
            send_message(&self.socket, Message::Open(FlowSpec::default()), &[]).expect("sent");
            self.port.rest();
            assert!(matches!(self.port.request(), Some(VnicRequest::Open(_))));
            self.port.map(target);
            let answer = read_message(&self.socket);
            assert!(
                matches!(answer, Incoming::Message(Message::Opened(queue)) if queue == target),
                "{answer:?}"
            );
        }
    }

    fn store(&self, at: usize, value: u32) {
        self.region.word32(at).store(value, Ordering::Release);
    }

    /// A batch as the daemon makes it: bounded by `most` looks. Frames complete at once, or stay.
    fn batch(&mut self, most: usize, complete: bool, bytes: &mut [u8]) -> usize {
        if self.port.begin().is_err() {
            return 0;
        }
        for took in 0..most {
            match self.port.take(4) {
                Took::Frame(taken) => {
                    assert!((1..=MAX_FRAME).contains(&taken.len));
                    self.port.copy(&mut bytes[..taken.len]);
                    if complete {
                        self.port.complete(taken.ticket, Status::Sent);
                    }
                }
                Took::Refused => {}
                Took::Nothing => return took,
            }
        }
        most
    }

    fn dropped(&self, why: DropReason) -> u64 {
        self.port.counters().rx_dropped(why)
    }
}

#[test]
fn a_tail_too_far_ahead_is_refused_and_mended_by_a_right_one() {
    let mut raw = Raw::connect();
    let mut bytes = vec![0; MAX_FRAME];
    for bad in [SIZES.ring + 1, u32::MAX, 1 << 31] {
        raw.store(raw.layout.ring_tail(0), bad);
        raw.region.word16(raw.layout.doorbell_word(0, 0)).store(0, Ordering::Relaxed);
        let tail = raw.region.word32(raw.layout.doorbell_tail(0)).load(Ordering::Relaxed);
        raw.store(raw.layout.doorbell_tail(0), tail + 1);
        assert_eq!(raw.batch(32, true, &mut bytes), 0);
    }
    assert_eq!(raw.dropped(DropReason::BadDescriptor), 3);
    raw.store(raw.layout.doorbell_tail(0), u32::MAX);
    assert_eq!(raw.batch(32, true, &mut bytes), 0);
    assert_eq!(raw.dropped(DropReason::BadDoorbell), 1);
    let descriptor = Descriptor { len: 60, ..Descriptor::default() };
    descriptor.store(&raw.region, raw.layout.descriptor(0, 0));
    raw.store(raw.layout.ring_tail(0), 1);
    raw.region.word16(raw.layout.doorbell_word(0, u32::MAX)).store(0, Ordering::Relaxed);
    raw.store(raw.layout.doorbell_tail(0), 0);
    assert_eq!(raw.batch(32, true, &mut bytes), 1);
}

#[test]
fn pieces_outside_the_buffers_chains_without_end_and_empty_pieces_are_refused() {
    let mut raw = Raw::connect();
    let end = u64::from(SIZES.buffers) * BUFFER as u64;
    let piece = |addr, len, more| Descriptor { addr, len, more, ..Descriptor::default() };
    let bad = [
        piece(end - 59, 60, false),
        piece(u64::MAX - 20, 60, false),
        piece(0, 0, false),
        piece(0, u32::MAX, false),
        piece(0, MAX_FRAME as u32 + 1, false),
        piece(0, 60, true),
    ];
    for (index, descriptor) in (0..).zip(bad) {
        descriptor.store(&raw.region, raw.layout.descriptor(0, index));
    }
    raw.store(raw.layout.ring_tail(0), bad.len() as u32);
    raw.store(raw.layout.doorbell_tail(0), 1);
    let mut bytes = vec![0; MAX_FRAME];
    assert_eq!(raw.batch(32, true, &mut bytes), bad.len());
    assert_eq!(raw.dropped(DropReason::BadDescriptor), bad.len() as u64);
    raw.port.flush().expect("no trouble");
    let told = raw.region.word32(raw.layout.completion_tail()).load(Ordering::Acquire);
    assert_eq!(told, bad.len() as u32, "each is completed as malformed");
}

#[test]
fn a_client_that_never_reads_completions_holds_up_itself_only() {
    let mut raw = Raw::connect();
    raw.open_all();
    let mut bytes = vec![0; MAX_FRAME];
    let mut taken = 0;
    for round in 1..20 {
        for queue in 0..SIZES.flow_queues {
            for index in 0..SIZES.ring {
                let descriptor = Descriptor { len: 60, ..Descriptor::default() };
                descriptor.store(&raw.region, raw.layout.descriptor(queue, index));
            }
            raw.store(raw.layout.ring_tail(queue), round * SIZES.ring);
            raw.region.word16(raw.layout.doorbell_word(1, queue)).store(queue as u16, Ordering::Relaxed);
        }
        raw.store(raw.layout.doorbell_tail(1), round * SIZES.doorbell_words);
        taken += raw.batch(1_000, false, &mut bytes);
    }
    assert_eq!((raw.port.in_flight(), taken as u32), (SIZES.completions, SIZES.completions));
}

#[test]
fn a_client_that_fills_its_own_wake_socket_or_stops_reading_does_not_block_the_port() {
    let mut raw = Raw::connect();
    let posted = Posted { addr: 0, len: BUFFER as u32, cookie: 0 };
    // The client's end: whatever it sets there is not the daemon's.
    let flags = nix::fcntl::fcntl(&raw.wake, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()));
    assert!(flags.is_ok() && raw.wake.as_raw_fd() >= 0);
    let begun = Instant::now();
    for number in 0..70_000_u32 {
        posted.store(&raw.region, raw.layout.posted(number));
        raw.store(raw.layout.posted_tail(), number + 1);
        raw.store(header::CLIENT_WAITS, 1);
        assert_eq!(raw.port.send(&[1; 60], None), Ok(Sending::Sent));
        raw.port.flush().expect("no trouble");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "a full socket does not block");
    for _ in 0..10_000 {
        if send_message(&raw.socket, Message::Open(FlowSpec::default()), &[]).is_err() {
            raw.port.rest();
            while raw.port.request().is_some() {
                raw.port.refuse(plimsoll_vnic::OpenRefusal::NoQueue);
            }
        }
    }
    assert_eq!(raw.port.begin(), Err(Trouble::Gone), "it does not read its answers");
}

/// The kernel copies into a reader's memory with a pipe's lock held, and that memory is the client's: here a hole is being punched.
#[test]
fn a_client_that_reads_what_wakes_it_into_memory_that_waits_does_not_block_the_port() {
    const LEN: usize = 1 << 30;
    const PAGE: usize = 4_096;
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let mut raw = Raw::connect();
    let posted = Posted { addr: 0, len: BUFFER as u32, cookie: 0 };
    let wake = |raw: &mut Raw, number: u32| {
        posted.store(&raw.region, raw.layout.posted(number));
        raw.store(raw.layout.posted_tail(), number + 1);
        raw.store(header::CLIENT_WAITS, 1);
        assert_eq!(raw.port.send(&[1; 60], None), Ok(Sending::Sent));
        let begun = Instant::now();
        raw.port.flush().expect("no trouble");
        begun.elapsed()
    };
    let (filled, file) = Region::create(LEN).expect("memory");
    let end = raw.wake.try_clone().expect("a descriptor");
    for number in 0..10 {
        (0..LEN).step_by(PAGE).for_each(|at| filled.word64(at).store(1, Ordering::Relaxed));
        // Has none of the pages yet: the read brings one.
        let memory = Region::map(&file, LEN).expect("mapped");
        let place = memory.word64(LEN - PAGE);
        wake(&mut raw, 2 * number);
        let (woke, read) = std::thread::scope(|scope| {
            let punched = scope.spawn(|| fallocate(&file, hole, 0, LEN as i64));
            std::thread::sleep(Duration::from_millis(10));
            let reader = scope.spawn(|| {
                let begun = Instant::now();
                // SAFETY: a byte of a mapping that is there until the thread has ended; no other thread touches it.
                let read = unsafe { libc::read(end.as_raw_fd(), place.as_ptr().cast(), 1) };
                assert_eq!(read, 1);
                begun.elapsed()
            });
            std::thread::sleep(Duration::from_millis(10));
            let woke = wake(&mut raw, 2 * number + 1);
            punched.join().expect("no panic").expect("a hole");
            (woke, reader.join().expect("no panic"))
        });
        // The byte of the second.
        let _ = nix::unistd::read(&end, &mut [0; 8]);
        // Otherwise the hole was punched before a read had to wait for it.
        if read > Duration::from_millis(40) {
            return assert!(woke < read / 4, "the daemon waited {woke:?} for a read that took {read:?}");
        }
    }
    eprintln!("skipped: holes are punched too fast here to keep a reader waiting");
}

/// However many messages lie there: who asks the port next has to wait for one at most.
#[test]
fn each_call_hears_one_message_whatever_becomes_of_it() {
    let mut raw = Raw::connect();
    raw.open_all();
    let said = [Message::Open(FlowSpec::default()), Message::Close(0), Message::Close(u32::MAX)];
    let refused = said.repeat(20);
    refused.iter().for_each(|&message| send_message(&raw.socket, message, &[]).expect("room"));
    raw.port.rest();
    for heard in 1..=refused.len() {
        assert_eq!(raw.port.request(), Some(VnicRequest::Refused), "message {heard}");
    }
    assert_eq!(raw.port.request(), None);
    let answers = (0..100).take_while(|_| matches!(read_message(&raw.socket), Incoming::Message(_))).count();
    assert_eq!(answers, 20, "each `Open` is answered");
}

/// A call that receives answers at most eight requests, also where the caller never calls `request`.
#[test]
fn a_flood_of_requests_keeps_no_call_that_receives() {
    let mut raw = Raw::connect();
    for _ in 0..100 {
        send_message(&raw.socket, Message::Open(FlowSpec::default()), &[]).expect("room");
    }
    raw.port.rest();
    let answers = |raw: &Raw| {
        (0..200).take_while(|_| matches!(read_message(&raw.socket), Incoming::Message(_))).count()
    };
    let mut total = 0;
    while total < 100 {
        assert_eq!(raw.port.receive(&mut vec![0; MAX_FRAME]), Ok(None));
        let answered = answers(&raw);
        assert!((1..=8).contains(&answered), "{answered} in one call");
        total += answered;
    }
}

#[test]
fn a_chain_of_more_pieces_than_a_frame_may_have_is_refused_and_ends() {
    let mut raw = Raw::sized(Sizes { ring: 64, ..SIZES });
    for index in 0..64 {
        let endless = Descriptor { len: 1, more: true, ..Descriptor::default() };
        endless.store(&raw.region, raw.layout.descriptor(0, index));
    }
    raw.store(raw.layout.ring_tail(0), 64);
    raw.store(raw.layout.doorbell_tail(0), 1);
    assert_eq!(raw.batch(32, true, &mut vec![0; MAX_FRAME]), 2, "40 pieces, and the other 24");
    assert_eq!((raw.dropped(DropReason::BadDescriptor), raw.port.in_flight()), (2, 0));
}

/// Contexts where none may stand, and a whole one before a frame of as many pieces as there may be.
#[test]
fn a_context_stands_before_the_pieces_of_a_frame_or_is_refused() {
    let metadata = PacketMetadata { user: Some(7), ..PacketMetadata::default() };
    let piece = |more| Descriptor { len: 60, more, cookie: 5, ..Descriptor::default() }.to_words();
    let context = Context { metadata, cookie: 9 }.to_words();
    let run = |descriptors: &[[u64; 4]]| {
        let mut raw = Raw::sized(Sizes { ring: 64, ..SIZES });
        for (index, words) in (0..).zip(descriptors) {
            for (at, word) in (raw.layout.descriptor(0, index)..).step_by(8).zip(words) {
                raw.region.word64(at).store(*word, Ordering::Relaxed);
            }
        }
        raw.store(raw.layout.ring_tail(0), descriptors.len() as u32);
        raw.store(raw.layout.doorbell_tail(0), 1);
        raw.port.begin().expect("the client is there");
        let took = raw.port.take(u32::MAX);
        (took, raw.dropped(DropReason::BadDescriptor))
    };
    for wrong in [&[context][..], &[context, context, piece(false)], &[piece(true), context, piece(false)]] {
        assert_eq!(run(wrong), (Took::Refused, 1), "{wrong:?}");
    }
    let mut longest = vec![context];
    longest.extend([piece(true); 39]);
    longest.push(piece(false));
    let (Took::Frame(taken), 0) = run(&longest) else { panic!("it is a frame") };
    assert_eq!((taken.len, taken.metadata, taken.ticket.cookie()), (40 * 60, metadata, 9));
    longest.insert(1, piece(true));
    assert_eq!(run(&longest), (Took::Refused, 1), "one more");
}

#[test]
fn doorbells_without_end_are_read_a_part_at_a_time_and_no_note_is_cut() {
    let mut raw = Raw::sized(Sizes { doorbell_words: 1_024, ..SIZES });
    let mut words = Vec::new();
    for tag in 0..170 {
        Note::Tag(0, tag).write(&mut words);
    }
    for core in 0..2 {
        for (index, &word) in (0..).zip(&words) {
            raw.region.word16(raw.layout.doorbell_word(core, index)).store(word, Ordering::Relaxed);
        }
        raw.store(raw.layout.doorbell_tail(core), words.len() as u32);
    }
    let read = |raw: &Raw| -> u32 {
        let head = |core| raw.region.word32(raw.layout.doorbell_head(core)).load(Ordering::Acquire);
        head(0) + head(1)
    };
    let mut before = 0;
    while before < 2 * words.len() as u32 {
        assert_eq!(raw.batch(32, true, &mut vec![0; MAX_FRAME]), 0);
        let after = read(&raw);
        assert!((1..=132).contains(&(after - before)), "{} words in a batch", after - before);
        assert_eq!(raw.port.rest(), after == 2 * words.len() as u32, "it does not sleep over the others");
        before = after;
    }
    assert_eq!(raw.dropped(DropReason::BadDoorbell), 0);
}

#[test]
fn a_client_that_connects_and_says_nothing_keeps_no_other_out() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("shop.sock");
    let mut port = VnicPort::open(&VnicConfig { sizes: SIZES, ..VnicConfig::new(&path) }).expect("a port");
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(connect_to(&path).expect("connected"));
        port.rest();
    }
    let closed = silent.iter().filter(|socket| matches!(read_message(socket), Incoming::Closed)).count();
    assert_eq!(closed, 6, "four may wait; the longest silent made room");
    let speaker = connect_to(&path).expect("connected");
    send_message(&speaker, Message::hello(), &[]).expect("sent");
    port.rest();
    assert!(matches!(read_welcome(&speaker), Ok((Some(Message::Welcome(_)), _))) && port.is_connected());
    // One that speaks too late.
    send_message(&silent[9], Message::hello(), &[]).expect("sent");
    port.rest();
    assert!(matches!(read_message(&silent[9]), Incoming::Message(Message::Occupied)));
    assert!(port.is_connected());
}

/// The socket is an event once only for all who came before it was looked at.
#[test]
fn no_client_is_left_outside_when_the_daemon_goes_to_sleep() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("shop.sock");
    let mut port = VnicPort::open(&VnicConfig { sizes: SIZES, ..VnicConfig::new(&path) }).expect("a port");
    let _silent = [(); 2].map(|()| connect_to(&path).expect("connected"));
    let speakers = [(); 2].map(|()| {
        let speaker = connect_to(&path).expect("connected");
        send_message(&speaker, Message::hello(), &[]).expect("sent");
        speaker
    });
    let mut looks = 0;
    while !port.rest() {
        assert_eq!(port.request(), None);
        looks += 1;
        assert!(looks < 50, "it never sleeps");
    }
    assert!(matches!(read_welcome(&speakers[0]), Ok((Some(Message::Welcome(_)), _))) && port.is_connected());
    for late in &speakers[1..] {
        assert!(matches!(read_message(late), Incoming::Message(Message::Occupied)));
    }
}

#[test]
fn a_bell_that_is_rung_without_end_does_not_keep_the_daemon_awake() {
    let mut raw = Raw::connect();
    assert_eq!(raw.port.request(), None);
    // As full as it gets: one more write would wait.
    let full = (u64::MAX - 1).to_ne_bytes();
    nix::unistd::write(&raw.kick, &full).expect("room for that");
    for _ in 0..1_000 {
        assert!(nix::unistd::write(&raw.kick, &1_u64.to_ne_bytes()).is_err(), "full");
        assert!(raw.port.rest(), "nothing is to do");
        raw.port.flush().expect("no trouble");
    }
}

#[test]
fn memory_that_the_client_takes_away_is_there_again_as_zeros() {
    let mut raw = Raw::connect();
    assert!(nix::unistd::ftruncate(&raw.memory, 4_096).is_err(), "sealed");
    let len = raw.layout.region_len() as i64;
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    for _ in 0..100 {
        fallocate(&raw.memory, hole, 0, len).expect("not sealed against writing");
        assert_eq!(raw.port.send(&[1; 60], None), Ok(Sending::Full));
        raw.port.flush().expect("no trouble");
        assert_eq!(raw.batch(32, true, &mut vec![0; MAX_FRAME]), 0);
    }
}

/// Writes random bytes all over the region until told to stop; every other time something nearly right, so that it is
/// read at all: a tail moved on a little, a sound descriptor.
///
/// After some writes it waits for the port's next batch: on a busy machine it would else run alone for whole slices, and
/// leave nothing but tails that are far away.
fn scribble(region: &Region, layout: &Layout, seed: u64, done: &AtomicBool, batches: &AtomicU64) -> u64 {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut writes = 0;
    let rings = (0..SIZES.flow_queues).map(|queue| layout.ring_tail(queue));
    let bells = (0..SIZES.doorbell_queues).map(|core| layout.doorbell_tail(core));
    let tails: Vec<usize> = rings.chain(bells).chain([layout.posted_tail()]).collect();
    // Sizes of rings lie low: half of all writes go there.
    let low = region.len() as u64 / 8;
    while !done.load(Ordering::Relaxed) {
        writes += 1;
        let batch = batches.load(Ordering::Relaxed);
        while writes % 100 == 0 && batches.load(Ordering::Relaxed) == batch && !done.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        if random() % 4 == 0 {
            let tail = region.word32(tails[random() as usize % tails.len()]);
            // A tail that was written over is far away for ever, unless it comes back to where the port may be.
            match random() % 4 {
                0 => _ = tail.fetch_add(random() as u32 % 12, Ordering::Release),
                _ => tail.store(random() as u32 % (4 << (random() % 5)), Ordering::Release),
            }
            continue;
        }
        if random() % 4 == 0 {
            let place = layout.descriptor(random() as u32 % SIZES.flow_queues, random() as u32);
            Descriptor { len: 60, ..Descriptor::default() }.store(region, place);
            continue;
        }
        let span = if random() % 2 == 0 { low } else { region.len() as u64 };
        let at = (random() % (span - 64)) as usize;
        let value = match random() % 4 {
            0 => random() % 8,
            1 => random() % 64,
            _ => random(),
        };
        let len = (random() % 9) as usize;
        region.write(at, &value.to_le_bytes()[..len]);
    }
    writes
}

#[test]
fn scribbling_over_the_whole_region_while_the_port_polls_breaks_nothing() {
    let mut raw = Raw::connect();
    raw.open_all();
    let region = std::mem::replace(&mut raw.region, Region::create(4_096).expect("memory").0);
    let (layout, done, turns) = (raw.layout, AtomicBool::new(false), AtomicU64::new(0));
    let mut bytes = vec![0; MAX_FRAME];
    let (mut batches, mut took) = (0_u64, 0);
    // On a busy machine the two take turns, and few writes fall between batches.
    let met = |took: u64, batches: u64, counters: &Counters| {
        let lost = [DropReason::BadDescriptor, DropReason::BadDoorbell].map(|why| counters.rx_dropped(why));
        took > 0 && batches > 1_000 && lost.iter().all(|&count| count > 0)
    };
    std::thread::scope(|scope| {
        let scribbler = scope.spawn(|| scribble(&region, &layout, 7, &done, &turns));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3)
            || (!met(took, batches, &raw.port.counters()) && begun.elapsed() < Duration::from_secs(30))
        {
            took += raw.batch(32, true, &mut bytes) as u64;
            // Any descriptor there is a frame without a target, no buffer, or a place in the region.
            let _ = raw.port.send(&bytes[..60], None).expect("the client is there");
            raw.port.flush().expect("no trouble");
            raw.port.rest();
            batches += 1;
            turns.store(batches, Ordering::Relaxed);
        }
        done.store(true, Ordering::Relaxed);
        let writes = scribbler.join().expect("no panic");
        assert!(writes > 1_000, "{batches} batches, {writes} writes");
    });
    let counters = raw.port.counters();
    assert!(met(took, batches, &counters), "{took} taken in {batches} batches: {counters:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever lies in the rings, one batch takes at most what it was asked for, completes at most what it took, and
    /// leaves the header's sizes in force.
    #[test]
    fn any_rings_are_read_to_their_end(
        writes in proptest::collection::vec((0_usize..8, 0_u32..64, any::<u32>()), 0..200),
        words in proptest::collection::vec(any::<u16>(), 0..32),
    ) {
        let mut raw = Raw::connect();
        raw.open_all();
        for (queue, word, value) in writes {
            let at = raw.layout.ring_tail(queue as u32) + (word as usize % 80) * 4;
            raw.store(at, if value % 2 == 0 { value % 12 } else { value });
        }
        for (index, &word) in (0..).zip(&words) {
            let word = if word % 3 == 0 { word } else { word % 9 };
            raw.region.word16(raw.layout.doorbell_word(0, index)).store(word, Ordering::Relaxed);
        }
        raw.store(raw.layout.doorbell_tail(0), words.len() as u32);
        let mut bytes = vec![0; MAX_FRAME];
        let took = raw.batch(1_000, true, &mut bytes);
        prop_assert!(took as u32 <= SIZES.flow_queues * SIZES.ring, "{took} of rings that hold no more");
        prop_assert_eq!(raw.port.in_flight(), 0);
        raw.port.flush().expect("no trouble");
        let told = raw.region.word32(raw.layout.completion_tail()).load(Ordering::Acquire);
        prop_assert_eq!(told, took as u32);
    }
}
