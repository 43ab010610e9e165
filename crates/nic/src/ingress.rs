//! Ingress: a bounded queue for each tenant, and the order in which the CPU serves them.
//!
//! Why: what arrives for one tenant, however much and however costly, must not delay or drop what arrives for another.
//! From: PicNIC §5.2 (CPU-fair weighted fair queues: drain early, classify by tenant, charge CPU time) and §2's stations;
//! §4's `max`, which binds also where senders obey nothing: RFC 2697's committed bucket for each tenant.
//! Not here: frames' bytes, how a packet's tenant is found, what a packet cost (the caller measures it), and rates for
//! senders (`control`).
//! Invariant: a packet waits in its tenant's queue only, is dropped only where that queue is full or the tenant has had all
//! that it may receive, and leaves it in the order of arrival; while any packet waits, a tenant is next.
//!
//! ```
//! use plimsoll_nic::{Arrival, Ingress, Station};
//! use plimsoll_units::{Nanos, Span};
//!
//! let (shop, flood) = (0, 1);
//! let mut ingress = Ingress::new(&[Station { weight: 1, slots: 64, ceiling: None }; 2]);
//! let packet = |addr| Arrival { addr, len: 100, at: Nanos::ZERO };
//! for addr in 0..100 {
//!     ingress.offer(flood, packet(addr)).ok();
//! }
//! ingress.charge(flood, Span::micros(40), Nanos::ZERO);
//! ingress.offer(shop, packet(100)).expect("the flood has filled its own queue only");
//!
//! let now = Nanos::ZERO + Span::micros(40);
//! assert_eq!(ingress.next(), Some(shop));
//! assert_eq!(ingress.take(shop, now).map(|packet| packet.addr), Some(100));
//! assert_eq!(ingress.seen(flood).drops, 36);
//! ```

mod drain;
mod share;

use std::collections::VecDeque;

use plimsoll_policy::Ceiling;
use plimsoll_queues::Pace;
use plimsoll_units::{Bytes, NS_PER_SEC, Nanos, PacketRate, Span};

pub use drain::Drain;
use share::CpuShare;

/// A tenant's queue length and its share of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// Its part of the CPU among the tenants that have packets waiting; at least 1.
    pub weight: u32,
    /// Packets that may wait; at least 1.
    pub slots: u32,
    /// The most that it may receive; `None` for no maximum.
    pub ceiling: Option<Ceiling>,
}

/// A packet that has come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its address, which only the caller interprets.
    pub addr: u64,
    /// Its bytes.
    pub len: u32,
    /// When the NIC had it: delay counts from here.
    pub at: Nanos,
}

/// Why a packet that came is dropped. It is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotQueued {
    /// The tenant's queue is full.
    Full,
    /// The tenant has had all that it may receive.
    OverMax,
}

/// Counters of one tenant, since the start or of one epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngressCounters {
    /// Packets that came, dropped ones included.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub drops: u64,
    /// Packets beyond what the tenant may receive.
    pub over_max: u64,
    /// Packets that the CPU has taken.
    pub served: u64,
    /// Their bytes.
    pub served_bytes: u64,
    /// Packets that the CPU has taken while more waited behind them, and the time that passed until it took the next ones: the
    /// queue's service rate, also where packets waited for a part of the epoch only.
    pub backlogged: (u64, Span),
    /// The sum of their waits, from the moment the NIC had them.
    pub waited: Span,
    /// The longest of these waits.
    pub longest: Span,
    /// CPU time charged.
    pub cpu: Span,
    /// Most packets that waited at once.
    pub peak: u32,
}

/// Tenants' queues on the way in.
#[derive(Clone, Debug)]
pub struct Ingress {
    stations: Vec<Queue>,
    share: CpuShare,
    held: u32,
}

#[derive(Clone, Debug)]
struct Queue {
    slots: u32,
    police: Option<Police>,
    waiting: VecDeque<Arrival>,
    /// When packets were last taken, and how many then, if more have waited since.
    taken: Option<(Nanos, u64)>,
    /// The counters of all earlier epochs.
    past: IngressCounters,
    epoch: IngressCounters,
}

impl Ingress {
    /// Allocates every tenant's queue.
    #[must_use]
    pub fn new(stations: &[Station]) -> Self {
        let weights: Vec<u32> = stations.iter().map(|station| station.weight).collect();
        Self { stations: stations.iter().map(Queue::new).collect(), share: CpuShare::new(&weights), held: 0 }
    }

    /// A packet for `tenant`, an index into what [`Ingress::new`] was given. Constant time but for a heap's depth.
    ///
    /// # Errors
    ///
    /// [`NotQueued`] when the tenant's queue is full, or it has had all that it may receive. Other tenants' packets
    /// never cause this.
    #[inline]
    pub fn offer(&mut self, tenant: u32, arrival: Arrival) -> Result<(), NotQueued> {
        let queue = &mut self.stations[tenant as usize];
        queue.epoch.packets += 1;
        queue.epoch.bytes += u64::from(arrival.len);
        if queue.police.as_ref().is_some_and(|police| !police.admits(arrival.at)) {
            queue.epoch.over_max += 1;
            return Err(NotQueued::OverMax);
        }
        if queue.waiting.len() >= queue.slots as usize {
            queue.epoch.drops += 1;
            return Err(NotQueued::Full);
        }
        if let Some(police) = &mut queue.police {
            police.charge(arrival.len, arrival.at);
        }
        queue.waiting.push_back(arrival);
        let waiting = queue.waiting.len() as u32;
        queue.epoch.peak = queue.epoch.peak.max(waiting);
        self.held += 1;
        if waiting == 1 {
            self.share.wake(tenant);
        }
        Ok(())
    }

    /// A packet for `tenant` of `len` bytes for which the caller has no memory: dropped, and counted as if the queue were
    /// full.
    pub fn drop(&mut self, tenant: u32, len: u32) {
        let seen = &mut self.stations[tenant as usize].epoch;
        seen.packets += 1;
        seen.bytes += u64::from(len);
        seen.drops += 1;
    }

    /// The tenant to serve next: of those with waiting packets, the one that has had least of its share of the CPU.
    #[must_use]
    #[inline]
    pub fn next(&self) -> Option<u32> {
        self.share.least()
    }

    /// Takes the tenant's oldest packet; its delay ends here.
    #[inline]
    pub fn take(&mut self, tenant: u32, now: Nanos) -> Option<Arrival> {
        let queue = &mut self.stations[tenant as usize];
        let arrival = queue.waiting.pop_front()?;
        let waited = now.since(arrival.at);
        let seen = &mut queue.epoch;
        seen.served += 1;
        seen.served_bytes += u64::from(arrival.len);
        seen.waited += waited;
        seen.longest = seen.longest.max(waited);
        if let Some((at, count)) = queue.taken.take_if(|(at, _)| *at < now) {
            seen.backlogged = (seen.backlogged.0 + count, seen.backlogged.1 + now.since(at));
        }
        if queue.waiting.is_empty() {
            queue.taken = None;
            self.share.sleep(tenant);
        } else {
            queue.taken.get_or_insert((now, 0)).1 += 1;
        }
        self.held -= 1;
        Some(arrival)
    }

    /// Charges the CPU time that the tenant's packets took, as measured. Until it is charged a tenant stays next.
    #[inline]
    pub fn charge(&mut self, tenant: u32, cost: Span, now: Nanos) {
        self.stations[tenant as usize].epoch.cpu += cost;
        self.share.charge(tenant, cost, now);
    }

    /// How many tenants there are.
    #[must_use]
    pub fn tenants(&self) -> u32 {
        self.stations.len() as u32
    }

    /// Packets that wait, of all tenants.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Packets of the tenant that wait, the oldest first.
    pub fn waiting(&self, tenant: u32) -> impl ExactSizeIterator<Item = &Arrival> {
        self.stations[tenant as usize].waiting.iter()
    }

    /// Packets of the tenant that may wait.
    #[must_use]
    pub fn slots(&self, tenant: u32) -> u32 {
        self.stations[tenant as usize].slots
    }

    /// The tenant's counters since the start.
    #[must_use]
    pub fn seen(&self, tenant: u32) -> IngressCounters {
        let queue = &self.stations[tenant as usize];
        queue.past.and(&queue.epoch)
    }

    /// Takes the tenant's counters since the last call: one control epoch.
    pub fn take_epoch(&mut self, tenant: u32) -> IngressCounters {
        let queue = &mut self.stations[tenant as usize];
        let fresh = IngressCounters { peak: queue.waiting.len() as u32, ..IngressCounters::default() };
        let epoch = core::mem::replace(&mut queue.epoch, fresh);
        queue.past = queue.past.and(&epoch);
        epoch
    }

    /// Changes the tenants' shares, queue lengths and maxima from now on; `stations` may add tenants. Waiting packets stay.
    pub fn set_stations(&mut self, stations: &[Station]) {
        let weights: Vec<u32> = stations.iter().map(|station| station.weight).collect();
        self.share.set_weights(&weights);
        for (queue, station) in self.stations.iter_mut().zip(stations) {
            queue.slots = station.slots.max(1);
            if queue.police.as_ref().map(|police| police.ceiling) != station.ceiling {
                queue.police = station.ceiling.map(Police::new);
            }
            queue.waiting.reserve((queue.slots as usize).saturating_sub(queue.waiting.len()));
        }
        let further = stations.get(self.stations.len()..).unwrap_or_default();
        self.stations.extend(further.iter().map(Queue::new));
    }
}

impl Queue {
    fn new(station: &Station) -> Self {
        let slots = station.slots.max(1);
        Self {
            slots,
            police: station.ceiling.map(Police::new),
            waiting: VecDeque::with_capacity(slots as usize),
            taken: None,
            past: IngressCounters::default(),
            epoch: IngressCounters::default(),
        }
    }
}

/// Holds a tenant to what it may receive.
#[derive(Clone, Copy, Debug)]
struct Police {
    ceiling: Ceiling,
    /// How far ahead of its rate a burst may be.
    ahead: Span,
    pace: Pace,
}

impl Police {
    fn new(ceiling: Ceiling) -> Self {
        Self { ceiling, ahead: ceiling.rate.wire_time(ceiling.burst), pace: Pace::new(ceiling.rate) }
    }

    #[inline]
    fn admits(&self, now: Nanos) -> bool {
        self.pace.earned() <= now + self.ahead
    }

    #[inline]
    fn charge(&mut self, len: u32, now: Nanos) {
        self.pace.catch_up(now);
        self.pace.charge(Bytes::new(len.into()));
    }
}

impl IngressCounters {
    /// The sum with later counters.
    fn and(&self, later: &Self) -> Self {
        Self {
            packets: self.packets + later.packets,
            bytes: self.bytes + later.bytes,
            drops: self.drops + later.drops,
            over_max: self.over_max + later.over_max,
            served: self.served + later.served,
            served_bytes: self.served_bytes + later.served_bytes,
            backlogged: (self.backlogged.0 + later.backlogged.0, self.backlogged.1 + later.backlogged.1),
            waited: self.waited + later.waited,
            longest: self.longest.max(later.longest),
            cpu: self.cpu + later.cpu,
            peak: self.peak.max(later.peak),
        }
    }

    /// How long a packet waited on average; `None` if none was served.
    #[must_use]
    pub fn mean_wait(&self) -> Option<Span> {
        (self.served > 0).then(|| Span::ns(self.waited.as_u64() / self.served))
    }

    /// Packets a second that the CPU took while packets waited; `None` if none waited for long enough to tell.
    #[must_use]
    pub fn service_rate(&self) -> Option<PacketRate> {
        let (packets, time) = self.backlogged;
        let rate = u128::from(packets) * u128::from(NS_PER_SEC) / u128::from(time.as_u64()).max(1);
        PacketRate::new(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
