//! The way in, in stages: frames from the uplink wait in the receive queue of their tenant.
//!
//! ```text
//! fetch → queue | share → take → look up → deliver → account
//! ```
//!
//! Each stage goes over a batch: up to 64 frames that a port lends at once (`fetch`), and the frames of a tenant's visit (`take`), whose
//! number the turn's fairness bounds. Packets of other hosts are unwrapped in part before the queue, to tell whose they are, and then when
//! their turn has come (`fleet`).
//!
//! Why: a tenant that is flooded, or whose device is slow, must lose its own time and packets, and no other tenant's.
//! From: PicNIC §5.2: fetch and tell tenants apart first, which costs little; parse, check and deliver after, in the order
//! that each tenant's share of the CPU says (`nic`'s ingress), charged with the time that it took.
//! Not here: which queue is next (`nic`), and a frame's receiver (`depart`).
//! Invariant: a frame that was fetched is delivered, or lost for a counted reason; frames that are not for one tenant have a
//! queue of their own, beside the tenants'.

mod account;
mod bound;
mod deliver;
mod fetch;
mod known;
mod look_up;
mod queue;
mod share;
mod take;

use core::num::NonZeroU32;

use plimsoll_nic::{Arrival, Drain, Ingress, IngressCounters, Station};
use plimsoll_policy::{DEFAULT_SLOTS, DRAIN_SHARE, Program, TenantId};
use plimsoll_ports::Received;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::overlay::{MOST_PIECES, Vni};
use plimsoll_wire::{VnetHeader, alike};

use super::Lane;
use super::cpu::Core;
use super::crossing::Via;
use super::hosted::{Lifted, is_in_pool};
use super::mac_table::Mac;
use super::pool::{Buffer, Pool};
use super::sources::Sources;
pub(super) use bound::is_for_the_host;
pub(super) use known::KnownFlows;
pub(super) use queue::Provenance;
use take::Visit;

/// Frames that wait on their way in.
#[derive(Debug)]
pub(crate) struct Inward {
    ingress: Ingress,
    drain: Drain,
    /// By station, taken out while some of its frames are delivered.
    pools: Vec<Option<Box<Pool<Waits>>>>,
    /// By station: how many frames of each host wait there.
    sources: Vec<Sources>,
    /// By station: its last flows, taken out as its pool is. The common station has none.
    known: Vec<Option<Box<KnownFlows>>>,
    knows: bool,
    /// The stations of flows with frames that are not counted yet.
    uncounted: Vec<u32>,
    /// The frames of the last visit, taken out while they are delivered.
    visit: Option<Box<Visit>>,
    /// How long each station's frames were in the kernel, in this epoch.
    before: Vec<Before>,
    /// The way of the frame that is stored, or delivered.
    pub(super) via: Via,
    /// The network of the frame that is delivered, where its lane does not tell it.
    pub(super) network: Vni,
    /// When the thread's CPU clock was last looked at, and what it told.
    looked: (Nanos, Span),
    /// When lanes were last assigned to tenants. The receiver of a frame that is older is looked up again.
    since: Option<Nanos>,
}

/// A frame that waits on its way in.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    vnet: Option<VnetHeader>,
    /// How long it had been in the kernel.
    waited: Option<Span>,
    /// The place where its host is counted ([`Sources`]).
    place: Option<u8>,
    via: Via,
    /// Whether it came in one datagram with the frame that follows.
    followed: bool,
    /// The number of that datagram, equal for pieces with the same headers.
    datagram: Option<NonZeroU32>,
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

/// Most frames delivered so where they came in one datagram: they are joined for a tenant that takes them so.
const MOST: usize = QUANTUM + MOST_PIECES;

/// How long a look at the thread's CPU clock is good for.
const LOOK: Span = Span::micros(500);

impl Inward {
    pub(crate) fn new(program: &Program, lanes: &[Option<Box<Lane>>]) -> Self {
        let stations = stations(program, lanes);
        let known = (0..stations.len()).map(|at| KnownFlows::for_station(at, true)).collect();
        let pools = stations.iter().map(Inward::pool).collect();
        let (ingress, drain) = (Ingress::new(&stations), Drain::new(DRAIN_SHARE));
        let before = vec![Before::default(); stations.len()];
        let sources = vec![Sources::default(); stations.len()];
        Self {
            sources,
            known,
            knows: true,
            uncounted: Vec::with_capacity(stations.len()),
            ingress,
            drain,
            pools,
            visit: Some(Box::default()),
            before,
            via: Via::Uplink,
            network: Vni::ZERO,
            looked: (Nanos::ZERO, Span::ZERO),
            since: None,
        }
    }

    /// The buffers of a station.
    fn pool(station: &Station) -> Option<Box<Pool<Waits>>> {
        Some(Box::new(Pool::new(station.slots, LONG)))
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

    /// Notes whether a lane's program has packets to look at, for which it gets its share of the core.
    #[inline]
    pub(crate) fn set_work(&mut self, lane: u32, has_work: bool) {
        if lane < self.stations() - 1 {
            self.ingress.set_work(lane + 1, has_work);
        }
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
        self.pools.extend(further.iter().map(Self::pool));
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

    /// Looks at the thread's CPU clock, unless that was done a moment ago: it costs a system call.
    fn look_at_clock(&mut self, core: &impl Core, now: Nanos) {
        if now.since(self.looked.0) > LOOK {
            self.looked = (now, core.used());
        }
    }

    /// CPU time that the thread has used since a moment after the last look, at least.
    fn used_since(&self, core: &impl Core, begun: Nanos) -> Span {
        let (at, used) = self.looked;
        let since = core.used().as_u64().saturating_sub(used.as_u64());
        Span::ns(since.saturating_sub(begun.since(at).as_u64()))
    }

    /// Whether a frame waits at a station that it may have now.
    fn may_take(&self, station: u32) -> bool {
        self.has_waiting(station) && !self.ingress.is_resting(station)
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

    /// Whether frames wait at a station.
    pub(crate) fn has_waiting(&self, station: u32) -> bool {
        self.ingress.waiting(station).len() > 0
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

    /// Whether a frame waits at a station that came this way.
    pub(super) fn holds_from(&self, station: u32, via: Via) -> bool {
        let pool = self.pools[station as usize].as_ref().expect("in its place between deliveries");
        let came = |arrival: &Arrival| pool.held(Buffer::from_address(arrival.addr).1).via == via;
        self.ingress.waiting(station).any(came)
    }

    /// Takes all frames that wait at a station, with the way that each came, and whether it is for the tenant that the station has now.
    /// `direct` gives the next one of those that lie in the pool of the tenant's program; without it, it is gone.
    pub(super) fn take_all(
        &mut self,
        station: u32,
        mut direct: impl FnMut() -> Option<(Vec<u8>, Option<Span>)>,
    ) -> Vec<Lifted> {
        let since = self.since;
        let pool = self.pools[station as usize].as_mut().expect("in its place between deliveries");
        let frame = |arrival: Arrival| {
            let (mut frame, vnet, waited, via) = if is_in_pool(&arrival) {
                let (frame, waited) = direct()?;
                (frame, None, waited, Via::Uplink)
            } else {
                let (_, buffer) = Buffer::from_address(arrival.addr);
                let Waits { vnet, waited, via, .. } = *pool.held(buffer);
                let frame = pool.bytes(buffer).to_vec();
                pool.give(buffer);
                (frame, vnet, waited, via)
            };
            frame.truncate(arrival.len as usize);
            let received = Received { len: frame.len(), vnet, at: None, waited };
            Some((frame, received, via, since.is_none_or(|since| arrival.at > since)))
        };
        self.ingress.take_all(station).into_iter().filter_map(frame).collect()
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
