//! The way in: frames from the uplink wait in the receive queue of their tenant.
//!
//! Why: a tenant that is flooded, or whose device is slow, must lose its own time and packets, and no other tenant's.
//! From: PicNIC §5.2: fetch and tell tenants apart first, which costs little; parse, check and deliver after, in the order
//! that each tenant's share of the CPU says (`nic`'s ingress), charged with the time that it took.
//! Not here: which queue is next (`nic`), and a frame's receiver (`depart`).
//! Invariant: a frame that was fetched is delivered, or lost for a counted reason; frames that are not for one tenant have a
//! queue of their own, beside the tenants'.

mod known;

use plimsoll_control::backpressure::{FlowSource, SenderMac};
use plimsoll_nic::{Arrival, Drain, Ingress, IngressCounters, NotQueued, Station, Verdict};
use plimsoll_policy::{DEFAULT_SLOTS, DRAIN_SHARE, Program, TenantId};
use plimsoll_ports::{Port, Received, Trouble};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{Ecn, VnetHeader, alike};

use super::apart::Charged;
use super::cpu::Core;
use super::crossing::Via;
use super::drops::Loss;
use super::fleet::Came;
use super::mac_table::{Mac, Owner};
use super::pool::{Buffer, Pool};
use super::sources::Sources;
use super::{BATCH, Engine, Lane, Part};
use known::KnownFlows;

/// Frames that wait on their way in.
#[derive(Debug)]
pub(crate) struct Inward {
    ingress: Ingress,
    drain: Drain,
    /// By station, taken out while some of its frames are delivered.
    pools: Vec<Option<Pool<Waits>>>,
    /// By station: how many frames of each host wait there.
    sources: Vec<Sources>,
    /// By station: its last flows, taken out as its pool is. The common station has none, and in a fleet there are none.
    known: Vec<Option<Box<KnownFlows>>>,
    knows: bool,
    /// The stations of flows with frames that are not counted yet.
    uncounted: Vec<u32>,
    /// When each frame of the last quantum was fetched, and how long it had been in the kernel.
    delivered: [(Nanos, Option<Span>); QUANTUM],
    /// How long each station's frames were in the kernel, in this epoch.
    before: Vec<Before>,
    /// The way of the frame that is stored, or delivered.
    pub(super) via: Via,
    /// When lanes were last assigned to tenants. The receiver of a frame that is older is looked up again.
    since: Option<Nanos>,
}

/// A frame that waits on its way in.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    received: Received,
    /// The place where its host is counted ([`Sources`]).
    place: Option<u8>,
    via: Via,
}

/// How long frames were in the kernel before they were fetched.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    frames: u64,
    waited: Span,
}

impl Before {
    #[inline]
    fn note(&mut self, waited: Option<Span>) {
        if let Some(waited) = waited {
            (self.frames, self.waited) = (self.frames + 1, self.waited + waited);
        }
    }

    fn mean(self) -> Span {
        Span::ns(self.waited.as_u64().checked_div(self.frames).unwrap_or(0))
    }
}

/// The station of broadcasts, of frames for unknown addresses, and of frames that are cut short. A lane's station is one
/// more than its number.
pub(crate) const COMMON: u32 = 0;

/// A tenant's share of the core, by its weight, to that of the common station.
const ABOVE_COMMON: u32 = 8;

/// Frames of a station that may be longer than an ordinary MTU.
const LONG: u32 = 16;

/// Frames of one tenant that are delivered before the next tenant is chosen: the clock is read once for them.
const QUANTUM: usize = 8;

/// Most frames delivered in a turn, and most frames fetched.
const DELIVERIES: usize = 128;
const FETCHES: usize = 8 * BATCH;

impl Inward {
    /// `knows`: whether the flows that came last are kept in mind, as is useful outside a fleet.
    pub(crate) fn new(program: &Program, lanes: &[Option<Box<Lane>>], knows: bool) -> Self {
        let stations = stations(program, lanes);
        let known = (0..stations.len()).map(|at| KnownFlows::for_station(at, knows)).collect();
        let pools = stations.iter().map(|station| Some(Pool::new(station.slots, LONG))).collect();
        let (ingress, drain) = (Ingress::new(&stations), Drain::new(DRAIN_SHARE));
        let delivered = [(Nanos::ZERO, None); QUANTUM];
        let before = vec![Before::default(); stations.len()];
        let sources = vec![Sources::default(); stations.len()];
        Self {
            sources,
            known,
            knows,
            uncounted: Vec::with_capacity(stations.len()),
            ingress,
            drain,
            pools,
            delivered,
            before,
            via: Via::Uplink,
            since: None,
        }
    }

    /// Whether to fetch now, before frames that wait are delivered.
    fn may_fetch(&mut self, core: &impl Core, now: Nanos) -> bool {
        self.ingress.next(now).is_none() || core.fetches_first() && self.drain.may()
    }

    /// Charges the time in which a station's frames were delivered.
    fn processed(&mut self, station: u32, took: Span, now: Nanos) {
        self.ingress.charge(station, took, now);
        self.drain.processed(took);
    }

    /// Charges a lane for time in which its memory kept the thread waiting outside the way in.
    pub(crate) fn charge_lane(&mut self, lane: usize, took: Span, now: Nanos) {
        if let Ok(station) = u32::try_from(lane + 1)
            && station < self.stations()
        {
            self.ingress.charge(station, took, now);
        }
    }

    /// Installs another policy, or other lanes.
    pub(crate) fn install(&mut self, program: &Program, lanes: &[Option<Box<Lane>>], now: Nanos) {
        self.since = Some(now);
        let stations = stations(program, lanes);
        for (pool, station) in self.pools.iter_mut().zip(&stations) {
            pool.as_mut().expect("in its place between deliveries").grow(station.slots);
        }
        let further = stations.get(self.pools.len()..).unwrap_or_default();
        self.before.resize(stations.len().max(self.before.len()), Before::default());
        self.sources.resize(self.before.len(), Sources::default());
        self.pools.extend(further.iter().map(|station| Some(Pool::new(station.slots, LONG))));
        self.ingress.set_stations(&stations, now);
        self.forget_flows();
    }

    /// Whether what headers decide is known of flows.
    pub(crate) fn knows(&self) -> bool {
        self.knows
    }

    /// Forgets what was known of flows, as what their headers decide may be something else from now on. All must be counted.
    pub(super) fn forget_flows(&mut self) {
        debug_assert!(self.uncounted.is_empty(), "frames of these stations would be lost to the count");
        self.known.iter_mut().flatten().for_each(|known| known.forget());
        let further = self.known.len()..self.pools.len();
        self.known.extend(further.map(|station| KnownFlows::for_station(station, self.knows)));
        self.uncounted.reserve(self.known.len());
    }

    /// When a tenant that has had its maximum may have its next frame.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.ingress.due()
    }

    /// Counters of a lane's station, or of the common one, and how many frames wait there.
    pub(crate) fn seen(&self, lane: Option<u32>) -> (IngressCounters, u32) {
        let station = lane.map_or(COMMON, |lane| lane + 1);
        (self.ingress.seen(station), self.ingress.waiting(station).len() as u32)
    }

    /// The lane that a station's frame is for: a tenant that is gone may have left its lane to another one, and its frames
    /// in the queue.
    fn lane_of(&self, station: u32, arrival: &Arrival) -> Option<u32> {
        let same = self.since.is_none_or(|since| arrival.at > since);
        station.checked_sub(COMMON + 1).filter(|_| same)
    }

    /// Whether frames wait for a tenant that takes any.
    pub(crate) fn holds_frames(&self) -> bool {
        (0..self.stations()).any(|station| self.ingress.waiting(station).len() > 0)
    }

    /// How many stations there are.
    pub(crate) fn stations(&self) -> u32 {
        self.ingress.tenants()
    }

    /// Counters of a station since the last call, how many frames may wait there, and their mean time on the way in: in the
    /// kernel, if the port tells it (fetching may be the bottleneck), and here.
    pub(crate) fn take_epoch(&mut self, station: u32) -> (IngressCounters, u32, Option<Span>) {
        let seen = self.ingress.take_epoch(station);
        let before = core::mem::take(&mut self.before[station as usize]).mean();
        let delay = seen.mean_wait().map(|here| here + before);
        (seen, self.ingress.slots(station), delay)
    }

    /// Adds a frame to its station's queue, unless the queue is full, its tenant is over its ceiling, or unsealed frames
    /// in its host's name have used up their part of the queue.
    pub(super) fn store(
        &mut self,
        station: u32,
        frame: &[u8],
        received: &Received,
        source: Option<usize>,
        now: Nanos,
    ) -> Result<(), Loss> {
        let place = Sources::place(source);
        if place.is_some() && self.is_over_share(station, place) {
            self.ingress.drop(station, u32::try_from(frame.len()).unwrap_or(u32::MAX), now);
            return Err(Loss::SourceOverShare);
        }
        let waits = Waits { received: *received, place, via: self.via };
        self.queue(station, frame, waits, now).map_err(|why| match why {
            NotQueued::Full => Loss::IngressFull,
            NotQueued::OverMax => Loss::IngressOverMax,
        })?;
        self.sources[station as usize].begin(place);
        Ok(())
    }

    /// Whether the frames of one place have used up their part of a station's queue that has room.
    fn is_over_share(&self, station: u32, place: Option<u8>) -> bool {
        let free = self.ingress.slots(station).saturating_sub(self.ingress.waiting(station).len() as u32);
        free > 0 && !self.sources[station as usize].admit(place, free)
    }

    fn queue(&mut self, station: u32, frame: &[u8], waits: Waits, now: Nanos) -> Result<(), NotQueued> {
        let pool = self.pools[station as usize].as_mut().expect("in its place between deliveries");
        let buffer = pool.take(frame.len());
        let addr = buffer.map_or(0, |buffer| buffer.address(station));
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let ecn = if self.ingress.has_maximum(station) { Ecn::of(frame) } else { None };
        let arrival = Arrival { addr, len, at: now, ecn: ecn.unwrap_or_default() };
        let Some(buffer) = buffer else {
            return Err(self.ingress.drop(station, arrival.len, now));
        };
        if let Err(why) = self.ingress.offer(station, arrival) {
            pool.give(buffer);
            return Err(why);
        }
        pool.bytes_mut(buffer)[..frame.len()].copy_from_slice(frame);
        pool.set_held(buffer, waits);
        Ok(())
    }
}

/// Whether a frame with the same headers may come that is taken for this one's like: of other frames nothing is kept. Segments that
/// are still to be cut may differ in what the headers do not say.
pub(super) fn can_be_known(frame: &[u8], received: &Received) -> bool {
    received.vnet.is_none_or(|vnet| vnet.gso_type == VnetHeader::GSO_NONE) && alike(frame, frame)
}

/// The address that a frame was sent from.
pub(super) fn source_of(frame: &[u8]) -> Mac {
    frame.get(6..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default()
}

/// The stations, with weights and lengths that the policy derives from the tenants' promises. The common station has the
/// smallest weight, and so has a lane whose tenant is gone.
fn stations(program: &Program, lanes: &[Option<Box<Lane>>]) -> Vec<Station> {
    let station = |lane: &Option<Box<Lane>>| {
        let TenantId(tenant) = lane.as_ref()?.tenant?;
        let slo = &program.tenants[tenant as usize].slo;
        let weight = slo.weight.saturating_mul(ABOVE_COMMON);
        Some(Station { weight, slots: slo.slots, ceiling: slo.ceiling })
    };
    let common = Station { weight: 1, slots: DEFAULT_SLOTS, ceiling: None };
    core::iter::once(common).chain(lanes.iter().map(|lane| station(lane).unwrap_or(common))).collect()
}

impl Engine {
    /// Sets the part of the time, in thousandths, that fetching may take while frames wait. To be called before any frame
    /// has arrived.
    pub fn set_drain_share(&mut self, share: u32) {
        self.inward.drain = Drain::new(share);
    }

    /// Fetches frames from the uplink, within fetching's share of the time, and delivers waiting frames, each tenant's by
    /// its share. Answers how many were fetched and delivered. `begun` is when the part of the turn before this one began, which may
    /// have written to tenants.
    pub(super) fn take_in(
        &mut self,
        core: &mut impl Core,
        begun: Nanos,
        clock: &impl Fn(Part) -> Nanos,
    ) -> usize {
        let (mut fetched, mut delivered) = (0, 0);
        let mut now = clock(Part::Depart);
        self.near.end(now.since(begun));
        self.part_took(now.since(begun), Charged::No, now);
        let mut empty = !self.uplink_may_have_frames();
        let (batch, quantum) = core.batches(BATCH, QUANTUM);
        while delivered < DELIVERIES {
            if core.is_busy(now) {
                break;
            }
            if fetched < FETCHES && !empty && self.inward.may_fetch(core, now) {
                let count = self.fetch(core, batch, now);
                (fetched, empty) = (fetched + count, count < batch);
                let after = clock(Part::Fetch);
                self.inward.drain.fetched(core.fetched(count, after.since(now)));
                now = after;
            } else if let Some(station) = self.inward.ingress.next(now) {
                let count = self.deliver_some(station, quantum, now);
                delivered += count;
                let after = clock(Part::Deliver);
                self.note_delays(station, count, after);
                self.inward.processed(station, core.delivered(count, after.since(now)), after);
                self.part_took(after.since(now), Charged::Yes, after);
                now = after;
            } else {
                core.idle();
                break;
            }
        }
        fetched + delivered
    }

    /// Delivers the station's oldest frames, at most `quantum`; answers how many.
    fn deliver_some(&mut self, station: u32, quantum: usize, now: Nanos) -> usize {
        // These are taken out meanwhile, so that frames can be read while ports are written.
        let pool = &mut self.inward.pools[station as usize];
        let mut pool = pool.take().expect("in its place between deliveries");
        let mut known = self.inward.known[station as usize].take();
        let was_uncounted = known.as_ref().is_some_and(|known| known.is_uncounted());
        let mut delivered = 0;
        while delivered < quantum {
            let Some((arrival, verdict)) = self.inward.ingress.take(station, now) else { break };
            let (_, buffer) = Buffer::from_address(arrival.addr);
            let &Waits { received: Received { waited, .. }, place, via } = pool.held(buffer);
            self.inward.via = via;
            self.inward.sources[station as usize].end(place);
            if verdict != Verdict::Pass && !self.signal_inward(&mut pool, buffer, station, verdict) {
                pool.give(buffer);
                continue;
            }
            self.inward.delivered[delivered] = (arrival.at, waited);
            self.inward.before[station as usize].note(waited);
            let lane = self.inward.lane_of(station, &arrival);
            let received = pool.held(buffer).received;
            let frame = &mut pool.bytes_mut(buffer)[..received.len];
            self.deliver_from((frame, &received), known.as_deref_mut(), lane, now);
            pool.give(buffer);
            delivered += 1;
        }
        self.inward.via = Via::Uplink;
        if !was_uncounted && known.as_ref().is_some_and(|known| known.is_uncounted()) {
            self.inward.uncounted.push(station);
        }
        self.inward.known[station as usize] = known;
        self.inward.pools[station as usize] = Some(pool);
        delivered
    }

    /// Marks a frame that has waited for too long behind its tenant's maximum; `false`: it is lost, also where the tenant's packets
    /// may not be changed.
    #[cold]
    fn signal_inward(
        &mut self,
        pool: &mut Pool<Waits>,
        buffer: Buffer,
        station: u32,
        verdict: Verdict,
    ) -> bool {
        let lane = station.checked_sub(COMMON + 1).and_then(|lane| self.lanes.get(lane as usize)?.as_ref());
        let untouched = lane.is_some_and(|lane| lane.untouched);
        let len = pool.held(buffer).received.len;
        if verdict == Verdict::Mark && !untouched && Ecn::Ce.write(&mut pool.bytes_mut(buffer)[..len]) {
            return true;
        }
        self.uplink.tally.lost(Loss::IngressOverMax);
        false
    }

    /// Notes the delays of the last `count` frames of a station: they end when the last of them was delivered.
    fn note_delays(&mut self, station: u32, count: usize, now: Nanos) {
        let lane = station.checked_sub(1).and_then(|lane| self.lanes.get_mut(lane as usize)?.as_mut());
        if let Some(lane) = lane {
            for &(at, waited) in &self.inward.delivered[..count] {
                lane.recent.delivered(waited, now.since(at), &lane.halves);
            }
        }
    }

    fn uplink_may_have_frames(&self) -> bool {
        self.uplink.ready || self.uplink.port.as_ref().is_some_and(Port::must_be_asked)
    }

    /// Fetches a batch from the uplink, each frame into the queue of the tenant with its destination address.
    fn fetch(&mut self, core: &impl Core, batch: usize, now: Nanos) -> usize {
        let mut landing = core::mem::take(&mut self.landing);
        let mut fetched = 0;
        while fetched < batch {
            let Some(port) = &mut self.uplink.port else { break };
            match port.receive(&mut landing) {
                Ok(Some(received)) => {
                    fetched += 1;
                    let frame = &mut landing[..received.len];
                    let (station, source) = if self.fleet.is_some() {
                        match self.sort(frame, now) {
                            Came::For(station, source) => (station, source),
                            Came::Done => continue,
                        }
                    } else {
                        (frame.first_chunk().map_or(COMMON, |&mac| self.station_for(mac)), None)
                    };
                    if self.passes_on(station, frame, &received) {
                        continue;
                    }
                    let queue = core.queue(station);
                    if let Err(why) = self.inward.store(queue, frame, &received, source, now) {
                        self.uplink.tally.lost(why);
                    }
                }
                Ok(None) | Err(Trouble::Down) => {
                    self.uplink.ready = false;
                    break;
                }
                Err(Trouble::Gone) => {
                    self.lose_uplink();
                    break;
                }
            }
        }
        self.landing = landing;
        fetched
    }

    /// The station of a destination address; no other header is looked at here.
    pub(super) fn station_for(&self, mac: Mac) -> u32 {
        match self.macs.owner(mac) {
            Some(Owner::Lane(lane)) if lane < self.inward.stations() - 1 => lane + 1,
            _ => COMMON,
        }
    }

    /// Delivers one frame to its receiver, which is looked up unless the frame's flow is `known`.
    fn deliver_from(
        &mut self,
        (frame, received): (&mut [u8], &Received),
        known: Option<&mut KnownFlows>,
        lane: Option<u32>,
        now: Nanos,
    ) {
        if self.fleet.is_some() {
            return self.unwrap(frame, received, lane, now);
        }
        let from = FlowSource::Elsewhere(SenderMac::default());
        // Where a frame without a lane goes depends on addresses that were learned.
        let known = known.filter(|_| lane.is_some());
        let found = known.as_ref().and_then(|known| known.find(frame, received));
        let Some(known) = known.filter(|_| found.is_some() || can_be_known(frame, received)) else {
            return self.deliver_once(frame, received, (lane, from), now);
        };
        let at = found.unwrap_or_else(|| known.next());
        let bound = known.bound(at);
        if found.is_some() {
            self.learn_outside(source_of(frame), now);
        } else {
            bound.iter_mut().for_each(|bound| self.count_delivered(bound));
            self.look_at(frame, received, (lane, from), now, bound);
            known.copy(at, frame, received);
        }
        if let Some(bound) = known.bound(at) {
            self.deliver(frame, bound, now);
            if bound.is_uncounted() {
                known.note_uncounted(at);
            }
        }
    }

    /// Looks at one frame, delivers it and counts it; nothing is kept of its headers.
    pub(super) fn deliver_once(
        &mut self,
        frame: &mut [u8],
        received: &Received,
        of: (Option<u32>, FlowSource),
        now: Nanos,
    ) {
        let mut bound = None;
        self.look_at(frame, received, of, now, &mut bound);
        if let Some(bound) = &mut bound {
            self.deliver(frame, bound, now);
            self.count_delivered(bound);
        }
    }

    /// Looks at each frame from now on, as if its flow were not known. Frames fare the same, and take longer.
    pub fn look_at_each_frame(&mut self) {
        self.count_known();
        self.inward.knows = false;
        self.inward.known.clear();
        self.inward.forget_flows();
    }

    /// Counts the frames of flows that are known which are not counted yet: once for all frames of a flow, as each count costs a
    /// look-up.
    pub(super) fn count_known(&mut self) {
        let mut stations = core::mem::take(&mut self.inward.uncounted);
        for station in stations.drain(..) {
            let Some(mut known) = self.inward.known[station as usize].take() else { continue };
            known.take_uncounted().flatten().for_each(|bound| self.count_delivered(bound));
            self.inward.known[station as usize] = Some(known);
        }
        self.inward.uncounted = stations;
    }
}
