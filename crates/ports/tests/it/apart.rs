//! A port goes to a thread of its own and comes back while frames pass it both ways: nothing is lost, nothing overtakes.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_ports::{
    Apart, DropReason, MemoryConfig, MemoryPort, Port, QueuesLeft, Sending, Served, Shown, Taken, Ticket,
    Took, Trouble, VhostUser, VhostUserConfig, VnicAnswer, VnicConfig, VnicPort, VnicRequest,
};
use plimsoll_vnic::message::Message;
use plimsoll_vnic::socket::{Incoming, connect_to, read_message, send_message};
use plimsoll_vnic::{FlowSpec, PacketMetadata, Status};
use plimsoll_wire::VnetHeader;
use proptest::prelude::*;

use crate::support::guest::{FROM, Guest, TO, VERSION_1};

/// Everything that was done to a port, seen from its other side.
#[derive(Debug, Default)]
struct Seen {
    taken: u32,
    completed: BTreeMap<u32, u32>,
    sent: Vec<u32>,
    /// Requests made, and answered.
    asked: u32,
    answered: u32,
    /// The port's thread hangs in the port.
    hangs: bool,
}

/// A port with one frame to take per ticket, each numbered. It is slow at times, and has no buffer at others. With each eighth
/// frame its client asks for something. Its frames' target is the generation that it was told last.
struct Fake {
    tickets: Vec<Ticket>,
    next: usize,
    front: u32,
    pauses: VecDeque<u8>,
    seen: Arc<Mutex<Seen>>,
    stuck: Arc<AtomicBool>,
    sends: Arc<AtomicU32>,
    generation: u32,
}

impl Fake {
    fn new(tickets: Vec<Ticket>, pauses: VecDeque<u8>, seen: &Arc<Mutex<Seen>>) -> Self {
        let (stuck, sends) = (Arc::default(), Arc::default());
        Self { tickets, next: 0, front: 0, pauses, seen: Arc::clone(seen), stuck, sends, generation: 0 }
    }

    fn pause(&mut self) {
        if let Some(pause) = self.pauses.pop_front() {
            std::thread::sleep(Duration::from_micros(u64::from(pause) * 8));
            self.pauses.push_back(pause);
        }
        while self.stuck.load(Ordering::Relaxed) {
            self.seen.lock().expect("no panic").hangs = true;
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Served for Fake {
    fn begin(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn take(&mut self, _: u32) -> Took {
        let Some(&ticket) = self.tickets.get(self.next) else { return Took::Nothing };
        self.front = self.next as u32;
        self.next += 1;
        self.seen.lock().expect("no panic").taken += 1;
        let (target, vnet) = (Some(self.generation), VnetHeader::default());
        let (metadata, core) = (PacketMetadata::default(), None);
        Took::Frame(Taken { target, len: LEN, vnet, tag: self.front, metadata, core, ticket })
    }

    fn copy(&self, into: &mut [u8]) {
        into.copy_from_slice(&frame(self.front));
    }

    fn complete(&mut self, ticket: Ticket, _: Status) {
        *self.seen.lock().expect("no panic").completed.entry(ticket.cookie()).or_default() += 1;
    }

    fn send(&mut self, frame: &[u8], _: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        self.pause();
        if self.sends.fetch_add(1, Ordering::Relaxed) % 7 == 6 {
            return Ok(Sending::Full);
        }
        self.seen.lock().expect("no panic").sent.push(number(frame));
        Ok(Sending::Sent)
    }

    fn flush(&mut self) {}

    fn rest(&mut self) -> bool {
        self.next == self.tickets.len()
    }

    fn wait_on(&self) -> Option<i32> {
        None
    }

    fn show(&mut self) -> Shown {
        Shown::default()
    }

    fn request(&mut self) -> Option<(VnicRequest, QueuesLeft)> {
        let mut seen = self.seen.lock().expect("no panic");
        assert_eq!(seen.asked, seen.answered, "the last request was answered before the next one is read");
        if self.next < 8 * seen.asked as usize {
            return None;
        }
        seen.asked += 1;
        let close = VnicRequest::Close(self.next as u32);
        let open = VnicRequest::Open(FlowSpec::default());
        Some((if seen.asked.is_multiple_of(2) { close } else { open }, QueuesLeft::default()))
    }

    fn answer(&mut self, answer: &VnicAnswer, holds: bool) {
        self.seen.lock().expect("no panic").answered += 1;
        if let Some(generation) = answer.target() {
            assert_eq!(holds, generation == self.generation, "it holds if no other epoch has begun since");
        }
    }

    fn forget_targets(&mut self, generation: u32) {
        self.generation = generation;
    }
}

const LEN: usize = 60;

fn frame(number: u32) -> [u8; LEN] {
    let mut frame = [0; LEN];
    frame[20..24].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[20..24].try_into().expect("four bytes"))
}

/// Tickets as ports make them, told apart by their cookies.
fn tickets(count: u32) -> Vec<Ticket> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let guest = Guest::start(&mut port, &path, 8, VERSION_1);
    guest.post(0, &[1; 60]);
    port.begin().expect("always there");
    let Took::Frame(Taken { ticket, .. }) = port.take() else { panic!("a frame was posted") };
    (0..count).map(|cookie| ticket.following(cookie)).collect()
}

/// Where the port is now.
enum Place {
    Here(Fake),
    Away(Box<Apart<Fake>>),
}

/// Who owns the port: takes, completes out of order, sends, and counts.
struct Owner {
    place: Option<Place>,
    taken: Vec<u32>,
    held: Vec<Ticket>,
    offered: u32,
    accepted: Vec<u32>,
    lost: u64,
    full: u64,
    generation: u32,
    /// To be answered next time.
    asked: Option<VnicRequest>,
}

impl Owner {
    fn new(fake: Fake) -> Self {
        Self {
            place: Some(Place::Here(fake)),
            taken: Vec::new(),
            held: Vec::new(),
            offered: 0,
            accepted: Vec::new(),
            lost: 0,
            full: 0,
            generation: 0,
            asked: None,
        }
    }

    fn answer_to(&self, request: VnicRequest) -> VnicAnswer {
        match request {
            VnicRequest::Close(_) => VnicAnswer::Closed,
            VnicRequest::Open(_) => VnicAnswer::Opened(Ok(self.generation)),
            other => panic!("{other:?}"),
        }
    }

    fn hear(&mut self) {
        match self.place.as_mut().expect("somewhere") {
            Place::Here(fake) => {
                if let Some((request, _)) = fake.request() {
                    let answer = self.answer_to(request);
                    self.fake(|fake| fake.answer(&answer, true));
                }
            }
            Place::Away(apart) => {
                let asked = apart.request();
                if let Some(VnicRequest::Close(taken)) = asked {
                    assert!(self.taken.len() as u32 >= taken, "a flow queue closes behind its frames");
                }
                self.asked = asked;
            }
        }
    }

    /// Answers what was asked before.
    fn answer_late(&mut self) {
        let answer = self.asked.take().map(|request| self.answer_to(request));
        if let (Some(answer), Some(Place::Away(apart))) = (answer, &mut self.place) {
            apart.answer(answer);
        }
    }

    fn forget(&mut self) {
        self.generation += 1;
        match self.place.as_mut().expect("somewhere") {
            Place::Here(fake) => fake.forget_targets(self.generation),
            Place::Away(apart) => apart.forget_targets(self.generation),
        }
    }

    fn fake(&mut self, act: impl FnOnce(&mut Fake)) {
        if let Some(Place::Here(fake)) = &mut self.place {
            act(fake);
        }
    }

    fn take(&mut self, most: usize) {
        self.answer_late();
        self.hear();
        for _ in 0..most {
            let mut bytes = [0; LEN];
            let took = match self.place.as_mut().expect("somewhere") {
                Place::Here(fake) => {
                    let took = fake.take(1);
                    if matches!(took, Took::Frame(_)) {
                        fake.copy(&mut bytes);
                    }
                    took
                }
                Place::Away(apart) => {
                    apart.begin().expect("the client stays");
                    let took = apart.take();
                    if matches!(took, Took::Frame(_)) {
                        apart.copy(&mut bytes);
                    }
                    took
                }
            };
            let Took::Frame(taken) = took else { return };
            self.taken.push(number(&bytes));
            assert_eq!(taken.ticket.cookie(), number(&bytes), "its own ticket");
            let target = taken.target.unwrap_or(self.generation);
            assert_eq!(target, self.generation, "what was forgotten counts for nothing");
            self.held.push(taken.ticket);
        }
    }

    fn complete(&mut self, most: usize) {
        for step in 0..most.min(self.held.len()) {
            let ticket = self.held.swap_remove((step * 5) % self.held.len());
            match self.place.as_mut().expect("somewhere") {
                Place::Here(fake) => fake.complete(ticket, Status::Sent),
                Place::Away(apart) => apart.complete(ticket, Status::Sent),
            }
        }
    }

    fn send(&mut self, most: u32) {
        for _ in 0..most {
            let bytes = frame(self.offered);
            let sent = match self.place.as_mut().expect("somewhere") {
                Place::Here(fake) => fake.send(&bytes, None),
                Place::Away(apart) => apart.send(&bytes, None),
            };
            match sent {
                Ok(Sending::Sent) => self.accepted.push(self.offered),
                Ok(Sending::Full) => self.full += 1,
                other => panic!("{other:?}"),
            }
            self.offered += 1;
        }
        if let Some(Place::Away(apart)) = &mut self.place {
            apart.flush().expect("never fails");
        }
    }

    fn go(&mut self) {
        self.place = Some(match self.place.take().expect("somewhere") {
            Place::Here(fake) => {
                let apart = Apart::new(fake, self.held.len(), 600, 1).map_err(|(_, error)| error);
                Place::Away(Box::new(apart.expect("a thread")))
            }
            away => away,
        });
    }

    /// Takes it home, frames first.
    fn come(&mut self) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let Some(Place::Away(apart)) = &mut self.place else { return };
            assert!(Instant::now() < end, "it comes home");
            apart.want_back();
            apart.begin().expect("the client stays");
            if apart.is_back() {
                break;
            }
            self.take(64);
        }
        assert_eq!(self.asked, None, "its client has its answer");
        let Some(Place::Away(apart)) = self.place.take() else { return };
        let unread = apart.behaviour().unread;
        let (fake, lost) = apart.into_port().expect("it is back");
        assert_eq!(lost.tx_dropped(DropReason::NoBuffer), unread, "each is known as unread");
        self.lost += lost.tx_dropped(DropReason::NoBuffer);
        assert_eq!(lost.tx_drops.iter().sum::<u64>(), lost.tx_dropped(DropReason::NoBuffer));
        self.place = Some(Place::Here(fake));
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(u8),
    Complete(u8),
    Send(u8),
    Forget,
    Wait(u8),
    Go,
    Come,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_u8..64).prop_map(Step::Take),
        4 => (1_u8..64).prop_map(Step::Complete),
        4 => (1_u8..64).prop_map(Step::Send),
        1 => Just(Step::Forget),
        2 => any::<u8>().prop_map(Step::Wait),
        1 => Just(Step::Go),
        1 => Just(Step::Come),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In the port's order out of it, in the sender's order into it, each completed once, each counted: wherever the port is
    /// served, and however slowly.
    #[test]
    fn nothing_is_lost_or_overtaken_on_the_way_there_and_back(
        steps in steps(),
        pauses in prop::collection::vec(any::<u8>(), 0..3),
        count in 0_u32..600,
    ) {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut owner = Owner::new(Fake::new(tickets(count), pauses.into(), &seen));
        for step in steps {
            match step {
                Step::Take(most) => owner.take(most.into()),
                Step::Complete(most) => owner.complete(most.into()),
                Step::Send(most) => owner.send(most.into()),
                Step::Forget => owner.forget(),
                Step::Wait(pause) => std::thread::sleep(Duration::from_micros(u64::from(pause) * 8)),
                Step::Go => owner.go(),
                Step::Come => owner.come(),
            }
        }
        owner.come();
        owner.take(usize::MAX);
        owner.complete(usize::MAX);
        owner.fake(Served::flush);
        let seen = seen.lock().expect("no panic");
        prop_assert_eq!(&owner.taken, &(0..count).collect::<Vec<_>>(), "in order, each once");
        prop_assert_eq!(seen.completed.len(), count as usize);
        prop_assert_eq!(seen.answered, seen.asked, "each request");
        prop_assert!(seen.completed.values().all(|&times| times == 1), "each completed once");
        prop_assert!(seen.sent.windows(2).all(|pair| pair[0] < pair[1]), "in order");
        prop_assert_eq!(seen.sent.len() as u64 + owner.lost, owner.accepted.len() as u64, "sent or counted");
        prop_assert_eq!(owner.accepted.len() as u64 + owner.full, u64::from(owner.offered));
    }
}

/// A port's own thread may wait for as long as its tenant likes; no other thread does.
#[test]
fn a_stuck_port_holds_up_no_other_and_what_was_for_it_is_counted() {
    let (stuck, seen) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Seen::default())));
    let fake = Fake { stuck: Arc::clone(&stuck), ..Fake::new(tickets(3), VecDeque::new(), &seen) };
    let Ok(mut apart) = Apart::new(fake, 0, 600, 1) else { panic!("a thread") };
    let begun = Instant::now();
    let sent = (0..5_000).filter(|&number| apart.send(&frame(number), None) == Ok(Sending::Sent)).count();
    apart.flush().expect("never fails");
    // Its first batch may have ended before the first frame came.
    until("it is at it", || seen.lock().expect("no panic").hangs);
    assert!((512..600).contains(&sent), "{sent}: as many as there is room for");
    for _ in 0..10 {
        apart.begin().expect("there");
        apart.want_back();
        let _ = apart.rest();
    }
    assert!(!apart.is_back());
    let before = apart.behaviour();
    apart.leave();
    let counters = apart.counters();
    assert!(counters.tx_dropped(DropReason::Gone) as usize >= sent - 64, "{counters:?}");
    drop(apart);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(before.batches % 2, 1, "it is still at it");
    stuck.store(false, Ordering::Relaxed);
}

#[test]
fn a_guest_that_is_served_apart_gets_its_frames_and_descriptors_and_may_leave() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let (mut guest, apart) = served(&path);
    let mut port = Port::Apart(Box::new(apart));
    guest.lend(0, 2_048);
    guest.post(1, &[5; 60]);
    let _ = guest.kicks[FROM].write(1);
    let mut bytes = [0; 60];
    let mut ticket = None;
    until("the frame comes", || {
        port.begin().expect("there");
        let Took::Frame(taken) = port.take(8) else { return false };
        port.copy(&mut bytes);
        ticket = Some(taken.ticket);
        true
    });
    assert_eq!(bytes, [5; 60]);
    assert!(guest.heads(FROM).is_empty(), "not before it has left");
    port.complete(ticket.expect("taken"), Status::Sent);
    assert_eq!(port.send(&[9; 60], None), Ok(Sending::Sent));
    port.flush().expect("there");
    until("both are the guest's", || guest.heads(FROM) == [1]);
    until("and the frame", || guest.heads(TO) == [0]);
    drop(guest);
    port.close();
    assert!(!path.exists(), "its place is free");
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn served(path: &Path) -> (Guest, Apart<Port>) {
    let mut port = VhostUser::open(&VhostUserConfig::new(path)).expect("a port");
    let guest = Guest::start(&mut port, path, 8, VERSION_1);
    let Ok(apart) = Apart::new(Port::VhostUser(port), 0, 64, 8) else { panic!("a thread") };
    (guest, apart)
}

#[test]
fn what_serves_a_port_ends_with_it() {
    let (port, _end) = MemoryPort::pair("fake", MemoryConfig::default()).expect("memory");
    let Ok(mut apart) = Apart::new(Port::Memory(port), 0, 64, 8) else { panic!("a thread") };
    apart.leave();
    drop(apart);
}

/// However many messages a vNIC's client sends: one is passed on at a time, and the thread sleeps until it is answered.
#[test]
fn a_flood_of_requests_waits_in_its_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vnic.sock");
    let port = Port::Vnic(VnicPort::open(&VnicConfig::new(&path)).expect("a port"));
    let Ok(mut apart) = Apart::new(port, 0, 64, 8) else { panic!("a thread") };
    let socket = connect_to(&path).expect("connected");
    send_message(&socket, Message::hello(), &[]).expect("sent");
    for _ in 0..100 {
        send_message(&socket, Message::Open(FlowSpec::default()), &[]).expect("room");
    }
    let heard = || matches!(read_message(&socket), Incoming::Message(_));
    until("it is let in", heard);
    for target in 0..100 {
        until("a request comes", || !apart.rest());
        assert!(apart.request().is_some(), "which keeps the engine awake");
        if target == 50 {
            let before = apart.behaviour().batches;
            std::thread::sleep(Duration::from_millis(300));
            let batches = (apart.behaviour().batches - before) / 2;
            assert!(batches < 20, "it sleeps: {batches} batches");
        }
        assert!(apart.request().is_none() && !heard(), "not before the one before is answered");
        apart.answer(VnicAnswer::Opened(Ok(target)));
        until("the answer comes", heard);
    }
    apart.want_back();
    until("it comes home", || {
        apart.begin().expect("its client is there");
        apart.is_back()
    });
}
