//! Frames and news between the engines of several threads.
//!
//! Why: a frame's receiver may be a tenant of another thread, and threads share no table.
//! From: single-producer rings between each two threads, made at the start; a frame is charged to the policy by its sender's
//! thread, and is an arriving frame of its receiver's.
//! Not here: whose address is whose (`mac_table`), leases (`leasing`), waiting (`thread`).
//! Invariants: no lock, and no memory is made for a frame; what a thread takes and tells in a turn has a bound; a frame crosses once at most; one that finds no room is counted as its
//! sender's loss. What comes from a tenant of another thread teaches no address here: its own thread has judged it.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use mio::Waker;
use plimsoll_ports::{Frame, MemoryConfig, MemoryEnd, MemoryPort, Port, PortError, Received, Sending};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Offload;

use super::depart::Handed;
use super::drops::{Loss, Tally};
use super::emit::{Emitted, Part, emit};
use super::inward::{COMMON, Provenance};
use super::lane::{Lane, sum};
use super::mac_table::{Mac, NO_NETWORK, News, Owner, is_group};
use super::{BATCH, Dataplane, LARGE, Whose};

/// Frames that may wait for one thread, divided among the threads that send them, and how many of them may be longer than 2 KiB.
const SLOTS: usize = 2_048;
const LONG: usize = 128;

/// The least of these between two threads.
const LEAST: (usize, usize) = (64, 4);

/// News that may wait for one thread, and the least between two.
const NEWS: (usize, usize) = (2_048, 64);

/// Frames taken from one other thread in a turn.
const CROSSINGS: usize = 4 * BATCH;

/// What a thread spends in a turn on the news of one other thread, and on telling its own ([`News::cost`]).
const NEWS_IN_A_TURN: usize = 64;

/// How long news wait at most that found no room, where nothing else needs a turn.
const TELL_AGAIN: Span = Span::micros(100);

/// The way of the frame at hand to this engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Via {
    /// By this thread's queue of the uplink.
    #[default]
    Uplink,
    /// From the tenant in this lane.
    Tenant(u32),
    /// From another thread, where it came from a tenant with this number, or else by the uplink.
    Thread(Option<u32>),
}

/// A tenant's number, which all threads know it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Never another tenant's, also once this one is gone.
    pub number: u32,
    /// The thread that serves its port; none where that is this one.
    pub elsewhere: Option<u32>,
}

/// One thread's ends of the rings, and what it shares with the others.
#[derive(Debug)]
pub struct Crossing {
    thread: u32,
    threads: Arc<Threads>,
    /// By thread; none for this one.
    links: Vec<Option<Link>>,
    /// By lane.
    seats: Vec<Option<Seat>>,
    /// Tenants' numbers and lanes, in order.
    lanes: Vec<(u32, u32)>,
}

/// The rings between this thread and another one.
#[derive(Debug)]
struct Link {
    frames: Port,
    news: MemoryEnd<News>,
    /// Whether the other thread has something to look at that it was not woken for.
    wrote: bool,
}

/// What threads look at of each other.
#[derive(Debug)]
struct Threads(Vec<Thread>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Thread {
    /// Whether it sleeps, or is about to, and is to be woken.
    asleep: AtomicBool,
    /// Whether it has nothing left to send, and has been told to stop.
    drained: AtomicBool,
    waker: OnceLock<Arc<Waker>>,
}

impl Crossing {
    /// The ends of this many threads, by thread.
    ///
    /// # Errors
    /// When the rings cannot be made.
    pub fn mesh(threads: usize) -> Result<Vec<Self>, PortError> {
        let shared = Arc::new(Threads((0..threads).map(|_| Thread::default()).collect()));
        let one = |thread: usize| Self {
            thread: thread as u32,
            threads: Arc::clone(&shared),
            links: (0..threads).map(|_| None).collect(),
            seats: Vec::new(),
            lanes: Vec::new(),
        };
        let mut all: Vec<Self> = (0..threads).map(one).collect();
        let part = |all: usize, least: usize| (all / threads.max(1)).max(least);
        let long = part(LONG, LEAST.1);
        let config = MemoryConfig {
            slots: part(SLOTS, LEAST.0),
            frame: LARGE,
            long: Some(long),
            segmentation: true,
            mtu: LARGE as u32,
            ..MemoryConfig::default()
        };
        for a in 0..threads {
            for b in a + 1..threads {
                let (at_a, at_b) = MemoryPort::pair(&format!("threads {a} and {b}"), config)?;
                let (news_a, news_b) = MemoryEnd::pair(part(NEWS.0, NEWS.1));
                let link = |frames, news| Some(Link { frames: Port::Memory(frames), news, wrote: false });
                all[a].links[b] = link(at_a, news_a);
                all[b].links[a] = link(at_b, news_b);
            }
        }
        Ok(all)
    }

    /// The number of this thread.
    #[must_use]
    pub fn thread(&self) -> usize {
        self.thread as usize
    }

    fn own(&self) -> &Thread {
        &self.threads.0[self.thread as usize]
    }

    fn seat(&self, lane: u32) -> Option<Seat> {
        self.seats.get(lane as usize).copied().flatten()
    }

    /// The number of the tenant in a lane.
    pub(super) fn number(&self, lane: u32) -> Option<u32> {
        self.seat(lane).map(|seat| seat.number)
    }

    /// The lane of a tenant's number.
    fn lane(&self, number: u32) -> Option<u32> {
        lane_of(&self.lanes, number)
    }

    /// News as other threads read them; none where another thread tells them.
    fn outward(&self, news: News) -> Option<News> {
        let number = |owner| match owner {
            Owner::Uplink => Some(owner),
            Owner::Lane(lane) => {
                self.seat(lane).filter(|seat| seat.elsewhere.is_none()).map(|seat| Owner::Lane(seat.number))
            }
        };
        Some(match news {
            News::Uses { mac, owner, since } => News::Uses { mac, owner: number(owner)?, since },
            News::Pinned { owner, macs, since } => News::Pinned { owner: number(owner)?, macs, since },
            News::Forgot { owner } => News::Forgot { owner: number(owner)? },
        })
    }

    /// What the receiving thread is to know of a frame that came this way; none for one that must not cross.
    fn note(&self, via: Via) -> Option<u32> {
        match via {
            Via::Uplink => Some(0),
            Via::Tenant(lane) => self.number(lane).map(|number| number + 1),
            Via::Thread(_) => None,
        }
    }

    /// Whether something has come that this thread has not looked at.
    fn has_arrivals(&self) -> bool {
        self.links.iter().flatten().any(|link| link.has_arrivals())
    }

    /// Wakes the threads that have something to look at.
    fn wake_others(&mut self) {
        for (thread, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link.as_mut().filter(|link| link.wrote) else { continue };
            link.wrote = false;
            // Pairs with the fence in `may_sleep`: either that thread sees what was written, or this one sees that it sleeps.
            fence(Ordering::SeqCst);
            let other = &self.threads.0[thread];
            if other.asleep.load(Ordering::Relaxed)
                && other.asleep.swap(false, Ordering::Relaxed)
                && let Some(waker) = other.waker.get()
            {
                // It fails only without memory in the kernel; then the other thread finds the frames at its next turn.
                let _ = waker.wake();
            }
        }
    }
}

impl Link {
    fn memory(&mut self) -> Option<&mut MemoryPort> {
        if let Port::Memory(port) = &mut self.frames { Some(port) } else { None }
    }

    fn has_arrivals(&self) -> bool {
        self.news.has_values() || matches!(&self.frames, Port::Memory(port) if port.has_frames())
    }

    /// The next frame, and what its thread says of it.
    fn receive(&mut self, landing: &mut [u8]) -> Option<(Received, Option<u32>)> {
        let port = self.memory()?;
        let received = port.receive(landing).ok()??;
        Some((received, port.received_note().checked_sub(1)))
    }

    /// Sends a part of a frame to a tenant there, or to all.
    fn send(
        &mut self,
        note: u32,
        frame: &Frame<'_>,
        (offload, part): (&Offload, &mut Part),
        scratch: &mut [u8],
    ) -> Handed {
        if let Some(port) = self.memory() {
            port.set_note(note);
        }
        self.wrote = true;
        match emit(&mut self.frames, frame, offload, part, scratch) {
            Ok(Emitted::Sent) => Handed::Done,
            Ok(Emitted::Full) => Handed::Lost(Loss::ThreadFull),
            Ok(Emitted::Refused(why)) => Handed::Refused(why),
            Ok(Emitted::Inconsistent) => Handed::Lost(Loss::Inconsistent),
            Ok(Emitted::TakenBack) => Handed::Lost(Loss::TakenBack),
            Err(_) => Handed::Lost(Loss::ReceiverGone),
        }
    }
}

impl Dataplane {
    /// Makes this engine one of several under one policy: its lanes without a port of their own belong to tenants of other
    /// threads. To be called once, before the first turn.
    pub fn join(&mut self, crossing: Crossing) {
        self.threads.crossing = Some(Box::new(crossing));
        self.macs.tell_others();
        self.seat_lanes();
        self.pin_addresses();
        self.tell_others();
    }

    /// Notes which thread serves which lane, after lanes have changed.
    pub(super) fn seat_lanes(&mut self) {
        if let Some(crossing) = &mut self.threads.crossing {
            let seat = |lane: &Option<Box<Lane>>| lane.as_ref().map(|lane| lane.seat);
            crossing.seats.clear();
            crossing.seats.extend(self.tenants.lanes.iter().map(seat));
            let seats = (0..).zip(&crossing.seats);
            crossing.lanes.clear();
            crossing.lanes.extend(seats.filter_map(|(lane, seat)| Some(((*seat)?.number, lane))));
            crossing.lanes.sort_unstable();
        }
    }

    /// The thread that serves a lane's port, if that is another one.
    fn elsewhere(&self, lane: u32) -> Option<u32> {
        self.threads.crossing.as_ref()?.seat(lane)?.elsewhere
    }

    /// The number that the departure log knows a lane by.
    #[inline]
    pub(super) fn logged_lane(&self, lane: u32) -> u32 {
        self.threads
            .crossing
            .as_ref()
            .and_then(|crossing| crossing.seat(lane))
            .map_or(lane, |seat| seat.number)
    }

    /// Takes frames and news from other threads; answers how many frames.
    pub(super) fn come_across(&mut self, now: Nanos) -> usize {
        let Some(mut crossing) = self.threads.crossing.take() else { return 0 };
        let mut landing = core::mem::take(&mut self.buffers.landing);
        let mut came = 0;
        for link in crossing.links.iter_mut().flatten() {
            for _ in 0..CROSSINGS {
                let Some((received, from)) = link.receive(&mut landing) else { break };
                if let Err(why) = self.land(&landing[..received.len], &received, from, now) {
                    let lane = from.and_then(|number| lane_of(&crossing.lanes, number));
                    self.tally_of(lane).lost(why);
                }
                came += 1;
            }
        }
        // After the frames: what a frame's receiver has to know of its sender was told before the frame.
        let mut pinned = false;
        for index in 0..crossing.links.len() {
            let mut spent = 0;
            while spent < NEWS_IN_A_TURN
                && let Some(news) = crossing.links[index].as_mut().and_then(|link| link.news.take())
            {
                spent += news.cost();
                pinned |= matches!(news, News::Pinned { .. });
                self.hear(news, &crossing, now);
            }
        }
        if pinned && self.macs.take_refused() {
            self.pin_again();
        }
        self.buffers.landing = landing;
        self.threads.crossing = Some(crossing);
        came
    }

    /// Puts a frame from another thread, of the tenant with this number there, into its receiver's queue.
    fn land(&mut self, frame: &[u8], received: &Received, from: Option<u32>, now: Nanos) -> Result<(), Loss> {
        let target: Mac = frame.first_chunk().copied().unwrap_or_default();
        let station = if is_group(target) { COMMON } else { self.station_for(NO_NETWORK, target) };
        let here = is_group(target)
            || station.checked_sub(COMMON + 1).is_some_and(|lane| {
                self.tenants
                    .lanes
                    .get(lane as usize)
                    .and_then(Option::as_ref)
                    .is_some_and(|lane| lane.port.is_some())
            });
        if !here {
            return Err(Loss::ReceiverGone);
        }
        self.inward.via = Via::Thread(from);
        let stored = self.inward.store(station, frame, received, Provenance::default(), now);
        self.inward.via = Via::Uplink;
        stored
    }

    /// The counters of the sender of a frame that came in: a tenant of another thread, or the uplink.
    fn tally_of(&mut self, lane: Option<u32>) -> &mut Tally {
        match lane.and_then(|lane| self.tenants.lane(lane)) {
            Some(lane) => &mut lane.tally,
            None => &mut self.uplink.tally,
        }
    }

    /// The counters of the sender of the frame at hand, which came in.
    pub(super) fn arrivals_tally(&mut self) -> &mut Tally {
        let number = if let Via::Thread(number) = self.inward.via { number } else { None };
        let lane = number.and_then(|number| self.threads.crossing.as_ref()?.lane(number));
        self.tally_of(lane)
    }

    fn hear(&mut self, news: News, crossing: &Crossing, now: Nanos) {
        let owner = |owner| match owner {
            Owner::Uplink => Some(owner),
            Owner::Lane(number) => crossing.lane(number).map(Owner::Lane),
        };
        match news {
            News::Uses { mac, owner: told, since } => {
                let Some(owner) = owner(told) else { return };
                let number = |lane| crossing.seat(lane).map(|seat| seat.number);
                let first = |known| match (told, known) {
                    (Owner::Lane(told), Owner::Lane(known)) => Some(told) < number(known),
                    _ => false,
                };
                if let Some(Owner::Lane(lost)) = self.macs.hear_of((mac, owner, since), first, now) {
                    self.note_taken(lost);
                    self.lose_first(mac, lost);
                }
            }
            News::Pinned { owner: told, macs, since } => {
                let Some(Owner::Lane(lane)) = owner(told) else { return };
                let number = |lane| crossing.seat(lane).map(|seat| seat.number);
                let first = |known| match (told, known) {
                    (Owner::Lane(told), Owner::Lane(known)) => Some(told) < number(known),
                    _ => false,
                };
                let lost = self.macs.hear_pinned((&macs, Owner::Lane(lane), since), first);
                if let Some(lane) = self.tenants.lane(lane) {
                    lane.told_macs = macs;
                }
                for (mac, loser) in lost {
                    let Owner::Lane(loser) = loser else { continue };
                    if loser != lane {
                        self.note_taken(loser);
                    }
                    self.lose_first(mac, loser);
                }
            }
            News::Forgot { owner: told } => {
                if let Some(owner) = owner(told) {
                    self.macs.hear_forgot(owner);
                }
            }
        }
    }

    /// A tenant has lost the first address that it sent from to one that began earlier on another thread.
    fn lose_first(&mut self, mac: Mac, lane: u32) {
        let Some(loser) = self.tenants.lane(lane) else { return };
        loser.told_macs.retain(|told| *told != mac);
        if loser.first_mac == Some(mac) {
            loser.first_mac = None;
            self.tenants.bindings.lose_first(lane as usize);
        }
    }

    /// Pins the addresses of tenants that another one had until this thread was told otherwise: a reload may move an address from one
    /// tenant to another, and threads hear of that one after the other.
    fn pin_again(&mut self) {
        for index in 0..self.tenants.lanes.len() {
            let (owner, macs) = (Owner::Lane(index as u32), self.macs_of(index));
            if macs.iter().any(|mac| self.macs.owner(NO_NETWORK, *mac) != Some(owner)) {
                self.macs.pin_all(NO_NETWORK, &macs, owner);
            }
        }
    }

    /// Tells other threads what they have to know of addresses, as far as there is room; the rest waits.
    pub(super) fn tell_others(&mut self) {
        let Some(crossing) = &mut self.threads.crossing else { return };
        if !self.macs.has_news() {
            return;
        }
        let mut spent = 0;
        while spent < NEWS_IN_A_TURN && crossing.links.iter().flatten().all(|link| link.news.room() > 0) {
            let Some(news) = self.macs.next_news() else { break };
            spent += news.cost();
            let Some(news) = crossing.outward(news) else { continue };
            for link in crossing.links.iter_mut().flatten() {
                let posted = link.news.post(news.clone());
                debug_assert!(posted.is_ok(), "there is room");
                link.wrote = true;
            }
        }
    }

    /// Sends a frame to a tenant of another thread.
    pub(super) fn send_across(
        &mut self,
        frame: &Frame<'_>,
        offload: &Offload,
        part: &mut Part,
        to: u32,
    ) -> Handed {
        let (via, scratch) = (self.inward.via, &mut self.buffers.scratch);
        let Some(crossing) = &mut self.threads.crossing else { return Handed::Lost(Loss::ReceiverGone) };
        let thread = crossing.seat(to).and_then(|seat| seat.elsewhere);
        let Some((note, thread)) = crossing.note(via).zip(thread) else {
            return Handed::Lost(Loss::ReceiverGone);
        };
        match &mut crossing.links[thread as usize] {
            Some(link) => link.send(note, frame, (offload, part), scratch),
            None => Handed::Lost(Loss::ReceiverGone),
        }
    }

    /// Sends a frame for all to the other threads, unless it came from one; answers how many copies that makes.
    pub(super) fn send_all_across(&mut self, frame: &Frame<'_>, offload: &Offload, part: Part) -> usize {
        let (via, scratch) = (self.inward.via, &mut self.buffers.scratch);
        let Some(crossing) = &mut self.threads.crossing else { return 0 };
        let Some(note) = crossing.note(via) else { return 0 };
        let mut made = 0;
        let mut full = 0;
        for link in crossing.links.iter_mut().flatten() {
            made += 1;
            full += u64::from(!matches!(
                link.send(note, frame, (offload, &mut part.clone()), scratch),
                Handed::Done
            ));
        }
        if full > 0 {
            // A receiver that cannot take a broadcast is no loss of the sender; but here it is not a receiver's fault.
            self.uplink.tally.lost_many(Loss::ThreadFull, full);
        }
        made
    }

    /// Passes a frame from the uplink on to the thread of its receiver, if that is another one.
    #[inline]
    pub(super) fn passes_on(&mut self, station: u32, frame: &[u8], received: &Received) -> bool {
        if self.threads.crossing.is_none() {
            return false;
        }
        self.pass_on(station, frame, received)
    }

    fn pass_on(&mut self, station: u32, frame: &[u8], received: &Received) -> bool {
        let Some(lane) = station.checked_sub(COMMON + 1) else { return false };
        let Some(thread) = self.elsewhere(lane) else { return false };
        let Some(crossing) = &mut self.threads.crossing else { return false };
        let Some(link) = &mut crossing.links[thread as usize] else { return false };
        link.wrote = true;
        let Some(port) = link.memory() else { return false };
        port.set_note(0);
        match port.send(frame, received.vnet.as_ref()) {
            Ok(Sending::Sent) => {}
            Ok(Sending::Full) => self.uplink.tally.lost(Loss::ThreadFull),
            Ok(Sending::Refused(why)) => self.uplink.tally.undelivered(why),
            Err(_) => self.uplink.tally.lost(Loss::ReceiverGone),
        }
        true
    }

    /// Puts a queue of the uplink in place of the one that is there, as all threads' queues are opened together: what arrives is divided
    /// among those. Answers the queue that is no longer used.
    pub(super) fn replace_uplink(&mut self, whose: &Whose, port: Port, now: Nanos) -> Option<Port> {
        let mut old = self.uplink.port.take();
        if let Some(old) = &mut old {
            // What it keeps is lost if it is gone, which this counts.
            let _ = old.flush();
            self.uplink.senders.port_lost(old);
            self.uplink.past = sum(&self.uplink.past, &old.counters());
        }
        let refused = self.attach_uplink(whose, port, now);
        old.or(refused)
    }

    /// The end of a turn: other threads are told, and woken if they sleep. Answers when the rest of the news is to be told.
    pub(super) fn finish_crossing(&mut self, now: Nanos) -> Option<Nanos> {
        self.tell_others();
        let crossing = self.threads.crossing.as_mut()?;
        crossing.wake_others();
        self.macs.has_news().then_some(now + TELL_AGAIN)
    }

    /// Sets what wakes this engine's thread when it sleeps, for other threads.
    pub fn set_waker(&self, waker: &Arc<Waker>) {
        if let Some(crossing) = &self.threads.crossing {
            let _ = crossing.own().waker.set(Arc::clone(waker)); // set once, when the thread starts
        }
    }

    /// Whether there is one thread.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.threads.crossing.is_none()
    }

    /// Whether the thread may sleep: from now on other threads wake it for what they send. Not while frames, news or a lease wait.
    pub fn may_sleep(&self) -> bool {
        let Some(crossing) = &self.threads.crossing else { return true };
        crossing.own().asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake_others`.
        fence(Ordering::SeqCst);
        !crossing.has_arrivals() && !self.has_new_lease()
    }

    /// Whether other threads have sent something that this one has not looked at.
    pub(super) fn has_arrivals(&self) -> bool {
        self.threads.crossing.as_ref().is_some_and(|crossing| crossing.has_arrivals())
    }

    /// The thread is awake: other threads need not wake it.
    pub fn is_awake(&self) {
        if let Some(crossing) = &self.threads.crossing {
            crossing.own().asleep.store(false, Ordering::Relaxed);
        }
    }

    /// Whether another thread may still send something here, or has. `drained`: whether this thread has nothing left to send, which
    /// other threads are told.
    pub fn awaits_others(&self, drained: bool) -> bool {
        let Some(crossing) = &self.threads.crossing else { return false };
        // Release: a thread that sees this (below) also sees the frames that were sent before.
        crossing.own().drained.store(drained, Ordering::Release);
        let all = crossing.threads.0.iter().all(|thread| thread.drained.load(Ordering::Acquire));
        !all || crossing.has_arrivals() || self.inward.holds_frames()
    }
}

/// The lane of a tenant's number, of all in order.
fn lane_of(lanes: &[(u32, u32)], number: u32) -> Option<u32> {
    let at = lanes.binary_search_by_key(&number, |&(number, _)| number).ok()?;
    Some(lanes[at].1)
}
