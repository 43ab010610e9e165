//! A port goes to a thread of its own and comes back while frames pass it both ways: nothing is lost, nothing overtakes.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_ports::{
    Apart, DropReason, MemoryConfig, MemoryPort, Port, Sending, Served, Shown, Taken, Ticket, Took, Trouble,
    VhostUser, VhostUserConfig,
};
use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;
use proptest::prelude::*;

#[path = "support/guest.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod guest;

use guest::{FROM, Guest, TO, VERSION_1};

/// Everything that was done to a port, seen from its other side.
#[derive(Debug, Default)]
struct Seen {
    taken: u32,
    completed: BTreeMap<u32, u32>,
    sent: Vec<u32>,
}

/// A port with so many frames to take, each numbered, that is slow at times, and has no buffer at others.
struct Fake {
    tickets: Vec<Ticket>,
    next: usize,
    front: u32,
    pauses: VecDeque<u8>,
    seen: Arc<Mutex<Seen>>,
    stuck: Arc<AtomicBool>,
    sends: Arc<AtomicU32>,
}

impl Fake {
    fn pause(&mut self) {
        if let Some(pause) = self.pauses.pop_front() {
            std::thread::sleep(Duration::from_micros(u64::from(pause) * 8));
            self.pauses.push_back(pause);
        }
        while self.stuck.load(Ordering::Relaxed) {
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
        Took::Frame(Taken { target: Some(7), len: LEN, vnet: VnetHeader::default(), tag: self.front, ticket })
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
}

impl Owner {
    fn fake(&mut self, act: impl FnOnce(&mut Fake)) {
        if let Some(Place::Here(fake)) = &mut self.place {
            act(fake);
        }
    }

    fn take(&mut self, most: usize) {
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
                    apart.begin().expect("nobody leaves");
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
                let apart = Apart::new(fake, self.held.len(), 1).map_err(|(_, error)| error);
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
            apart.begin().expect("nobody leaves");
            if apart.is_back() {
                break;
            }
            self.take(64);
        }
        let Some(Place::Away(apart)) = self.place.take() else { return };
        let (fake, lost) = apart.into_port().expect("it is back");
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
    Go,
    Come,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_u8..64).prop_map(Step::Take),
        4 => (1_u8..64).prop_map(Step::Complete),
        4 => (1_u8..64).prop_map(Step::Send),
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
        let (stuck, sends) = (Arc::default(), Arc::default());
        let tickets = tickets(count);
        let fake = Fake {
            tickets, next: 0, front: 0, pauses: pauses.into(), seen: Arc::clone(&seen), stuck, sends,
        };
        let mut owner = Owner {
            place: Some(Place::Here(fake)), taken: Vec::new(), held: Vec::new(), offered: 0,
            accepted: Vec::new(), lost: 0, full: 0,
        };
        for step in steps {
            match step {
                Step::Take(most) => owner.take(most.into()),
                Step::Complete(most) => owner.complete(most.into()),
                Step::Send(most) => owner.send(most.into()),
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
        prop_assert!(seen.completed.values().all(|&times| times == 1), "each completed once");
        prop_assert!(seen.sent.windows(2).all(|pair| pair[0] < pair[1]), "in order");
        prop_assert_eq!(seen.sent.len() as u64 + owner.lost, owner.accepted.len() as u64, "sent or counted");
        prop_assert_eq!(owner.accepted.len() as u64 + owner.full, u64::from(owner.offered));
    }
}

/// The thread may wait for as long as the tenant likes; nobody else does.
#[test]
fn who_is_stuck_keeps_nobody_and_what_was_for_it_is_counted() {
    let (stuck, seen) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Seen::default())));
    let fake = Fake {
        tickets: tickets(3),
        next: 0,
        front: 0,
        pauses: VecDeque::new(),
        seen: Arc::clone(&seen),
        stuck: Arc::clone(&stuck),
        sends: Arc::default(),
    };
    let Ok(mut apart) = Apart::new(fake, 0, 1) else { panic!("a thread") };
    let begun = Instant::now();
    let sent = (0..5_000).filter(|&number| apart.send(&frame(number), None) == Ok(Sending::Sent)).count();
    apart.flush().expect("never fails");
    until("it is at it", || apart.behaviour().batches == 1);
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

fn served(path: &Path) -> (Guest, Apart) {
    let mut port = VhostUser::open(&VhostUserConfig::new(path)).expect("a port");
    let guest = Guest::start(&mut port, path, 8, VERSION_1);
    let Ok(apart) = Apart::new(Port::VhostUser(port), 0, 8) else { panic!("a thread") };
    (guest, apart)
}

#[test]
fn what_serves_a_port_ends_with_it() {
    let (port, _end) = MemoryPort::pair("fake", MemoryConfig::default()).expect("memory");
    let Ok(mut apart) = Apart::new(Port::Memory(port), 0, 8) else { panic!("a thread") };
    apart.leave();
    drop(apart);
}
