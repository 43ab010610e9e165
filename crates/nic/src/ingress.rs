//! Ingress: a bounded queue for each tenant, and the order in which the CPU serves them.
//!
//! Why: what arrives for one tenant, however much and however costly, must not delay or drop what arrives for another.
//! From: PicNIC §5.2 (CPU-fair weighted fair queues: drain early, classify by tenant, charge CPU time) and §2's stations;
//! §4's `max`, which binds also where senders obey nothing; appendix A.2's paced way in: what comes beyond a tenant's maximum waits
//! until it may have it, in a queue that CoDel (RFC 8289) keeps short.
//! Not here: frames' bytes, how a packet's tenant is found, what a packet cost (the caller measures it), and rates for
//! senders (`control`).
//! Invariant: a packet waits in its tenant's queue only, is dropped only where that queue is full or its tenant has had its
//! maximum, and leaves it in the order of arrival; a tenant has no more than its maximum in any time; while any packet of another one waits, a tenant is next.
//!
//! ```
//! use plimsoll_nic::{Arrival, Ingress, Station};
//! use plimsoll_units::{Nanos, Span};
//! use plimsoll_wire::Ecn;
//!
//! let (shop, flood) = (0, 1);
//! let mut ingress = Ingress::new(&[Station { weight: 1, slots: 64, ceiling: None }; 2]);
//! let packet = |addr| Arrival { addr, len: 100, at: Nanos::ZERO, ecn: Ecn::NotEct };
//! for addr in 0..100 {
//!     ingress.offer(flood, packet(addr)).ok();
//! }
//! ingress.charge(flood, Span::micros(40), Nanos::ZERO);
//! ingress.offer(shop, packet(100)).expect("the flood has filled its own queue only");
//!
//! let now = Nanos::ZERO + Span::micros(40);
//! assert_eq!(ingress.next(now), Some(shop));
//! assert_eq!(ingress.take(shop, now).map(|(packet, _)| packet.addr), Some(100));
//! assert_eq!(ingress.seen(flood).drops, 36);
//! ```

mod drain;
mod shaper;
mod share;

use std::collections::VecDeque;

use plimsoll_policy::Ceiling;
use plimsoll_queues::RankQueue;
use plimsoll_queues::codel::Verdict;
use plimsoll_units::{Bytes, NS_PER_SEC, Nanos, PacketRate, Span};
use plimsoll_wire::Ecn;

pub use drain::Drain;

use shaper::{LEAST_POOL, Shaper};
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
    /// Its ECN field; looked at only where its tenant has a maximum.
    pub ecn: Ecn,
}

impl Arrival {
    /// No packet.
    pub const NONE: Self = Self { addr: 0, len: 0, at: Nanos::ZERO, ecn: Ecn::NotEct };
}

/// Why a packet that came is dropped. It is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotQueued {
    /// The tenant's queue is full.
    Full,
    /// The tenant's queue is full, as more came than it may receive.
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
    /// Packets that found the queue full, or had waited for too long, as more had come than the tenant may receive.
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
    /// Tenants that have packets waiting and may not have them yet, by the moment when they may.
    resting: RankQueue,
    held: u32,
}

#[derive(Clone, Debug)]
struct Queue {
    slots: u32,
    shaper: Option<Shaper>,
    waiting: VecDeque<Arrival>,
    /// Bytes of these.
    bytes: u64,
    /// Whether the CPU has other work to do for it, beside its packets.
    has_work: bool,
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
        Self {
            stations: stations.iter().map(Queue::new).collect(),
            share: CpuShare::new(&weights),
            resting: RankQueue::new(stations.len()),
            held: 0,
        }
    }

    /// A packet for `tenant`, an index into what [`Ingress::new`] was given. Constant time but for a heap's depth.
    ///
    /// # Errors
    ///
    /// [`NotQueued`] when the tenant's queue is full. Other tenants' packets never cause this.
    #[inline]
    pub fn offer(&mut self, tenant: u32, arrival: Arrival) -> Result<(), NotQueued> {
        let queue = &mut self.stations[tenant as usize];
        queue.epoch.packets += 1;
        queue.epoch.bytes += u64::from(arrival.len);
        if queue.waiting.len() >= queue.slots as usize || !queue.has_room_for(arrival.len, arrival.at) {
            return Err(queue.refuse(arrival.at));
        }
        queue.bytes += u64::from(arrival.len);
        queue.waiting.push_back(arrival);
        let waiting = queue.waiting.len() as u32;
        queue.epoch.peak = queue.epoch.peak.max(waiting);
        self.held += 1;
        if waiting == 1 {
            self.wake(tenant, arrival.at);
        }
        Ok(())
    }

    /// Lets a tenant that has packets waiting be next, now or as soon as it may have one.
    #[inline]
    fn wake(&mut self, tenant: u32, now: Nanos) {
        match self.stations[tenant as usize].due().filter(|due| *due > now) {
            None => self.wake_now(tenant),
            Some(due) => self.resting.set(tenant, due.as_u64()),
        }
    }

    /// Lets a tenant be next. One that has other work may be already, and then keeps its place.
    #[inline]
    fn wake_now(&mut self, tenant: u32) {
        if !self.stations[tenant as usize].has_work || !self.share.is_awake(tenant) {
            self.share.wake(tenant);
        }
    }

    /// A packet for `tenant` of `len` bytes for which the caller has no memory: dropped, and counted as if the queue were
    /// full. Returns why.
    pub fn drop(&mut self, tenant: u32, len: u32, now: Nanos) -> NotQueued {
        let queue = &mut self.stations[tenant as usize];
        queue.epoch.packets += 1;
        queue.epoch.bytes += u64::from(len);
        queue.refuse(now)
    }

    /// Notes whether the CPU has other work to do for the tenant, such as its program's: the tenant is then next when it has had least of its
    /// share, also if no packet waits, or its maximum does not let it have one yet. It is charged like the time of packets.
    pub fn set_work(&mut self, tenant: u32, has_work: bool) {
        let queue = &mut self.stations[tenant as usize];
        if core::mem::replace(&mut queue.has_work, has_work) == has_work {
            return;
        }
        if has_work {
            self.wake_now(tenant);
        } else if queue.waiting.is_empty() || self.resting.rank(tenant).is_some() {
            self.share.sleep(tenant);
        }
    }

    /// Whether the CPU has other work to do for the tenant, beside its packets.
    #[must_use]
    pub fn has_work(&self, tenant: u32) -> bool {
        self.stations[tenant as usize].has_work
    }

    /// The tenant to serve next: of those with packets waiting that they may have, or with other work, the one that has had least of its
    /// share of the CPU.
    #[must_use]
    #[inline]
    pub fn next(&mut self, now: Nanos) -> Option<u32> {
        while let Some((_, tenant)) = self.resting.first().filter(|(due, _)| *due <= now.as_u64()) {
            self.resting.remove(tenant);
            self.wake_now(tenant);
        }
        self.share.least()
    }

    /// When the next of the tenants that may not have their packets yet may have one.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.resting.first().map(|(due, _)| Nanos::new(due))
    }

    /// Whether the tenant has a packet waiting that it may have.
    #[must_use]
    pub fn is_ready(&self, tenant: u32) -> bool {
        self.share.is_awake(tenant)
    }

    /// Whether the tenant's packets wait as it may not have them yet.
    #[must_use]
    pub fn is_resting(&self, tenant: u32) -> bool {
        self.resting.rank(tenant).is_some()
    }

    /// Whether the tenant has a maximum.
    #[must_use]
    pub fn has_maximum(&self, tenant: u32) -> bool {
        self.stations[tenant as usize].shaper.is_some()
    }

    /// Takes the tenant's oldest packet, unless it may not have it yet; the packet's delay ends here. A packet that has waited for
    /// too long is to be marked, or to be dropped, and counted then.
    #[inline]
    pub fn take(&mut self, tenant: u32, now: Nanos) -> Option<(Arrival, Verdict)> {
        let mut taken = [(Arrival::NONE, Verdict::Pass)];
        let count = self.take_some(tenant, &mut taken, now);
        let [first] = taken;
        (count > 0).then_some(first)
    }

    /// Takes the tenant's oldest packets, as many as there is room for in `taken`, as [`Ingress::take`] does one after the other; answers
    /// how many.
    pub fn take_some(&mut self, tenant: u32, taken: &mut [(Arrival, Verdict)], now: Nanos) -> usize {
        if !self.share.is_awake(tenant) {
            return 0;
        }
        let queue = &mut self.stations[tenant as usize];
        if queue.has_work {
            if queue.waiting.is_empty() || queue.due().is_some_and(|due| due > now) {
                return 0;
            }
            // It may have been next for its work while it rested.
            self.resting.remove(tenant);
        }
        if let Some((at, count)) = queue.taken.take_if(|(at, _)| *at < now) {
            let seen = &mut queue.epoch;
            seen.backlogged = (seen.backlogged.0 + count, seen.backlogged.1 + now.since(at));
        }
        let count =
            if queue.shaper.is_some() { queue.take_paced(taken, now) } else { queue.take(taken, now) };
        self.held -= count as u32;
        if queue.waiting.is_empty() {
            queue.taken = None;
            // The next packets find the same memory, which is near, and not what lies behind it in the ring.
            queue.waiting.clear();
            if !queue.has_work {
                self.share.sleep(tenant);
            }
        } else {
            queue.taken.get_or_insert((now, 0)).1 += count as u64;
            if let Some(due) = queue.due().filter(|due| *due > now) {
                if !queue.has_work {
                    self.share.sleep(tenant);
                }
                self.resting.set(tenant, due.as_u64());
            }
        }
        count
    }

    /// Takes all packets that wait for a tenant, whatever its maximum: another thread serves it from now on.
    pub fn take_all(&mut self, tenant: u32) -> Vec<Arrival> {
        let queue = &mut self.stations[tenant as usize];
        let all: Vec<Arrival> = queue.waiting.drain(..).collect();
        (queue.bytes, queue.taken) = (0, None);
        self.held -= all.len() as u32;
        if !queue.has_work {
            self.share.sleep(tenant);
        }
        self.resting.remove(tenant);
        all
    }

    /// The packet of `len` bytes that was just offered, or dropped, came to another thread before, which has counted it.
    pub fn counted_elsewhere(&mut self, tenant: u32, len: u32) {
        let epoch = &mut self.stations[tenant as usize].epoch;
        epoch.packets -= 1;
        epoch.bytes -= u64::from(len);
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
    pub fn set_stations(&mut self, stations: &[Station], now: Nanos) {
        let weights: Vec<u32> = stations.iter().map(|station| station.weight).collect();
        self.share.set_weights(&weights);
        self.resting.grow(stations.len());
        for (tenant, station) in (0..).zip(stations.iter().take(self.stations.len())) {
            let queue = &mut self.stations[tenant as usize];
            queue.slots = station.slots.max(1);
            queue.waiting.reserve((queue.slots as usize).saturating_sub(queue.waiting.len()));
            if queue.shaper.as_ref().map(|shaper| shaper.ceiling) != station.ceiling {
                queue.shaper = station.ceiling.map(Shaper::new);
                if self.resting.rank(tenant).is_some() {
                    self.resting.remove(tenant);
                    self.wake(tenant, now);
                }
            }
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
            shaper: station.ceiling.map(Shaper::new),
            waiting: VecDeque::with_capacity(slots as usize),
            bytes: 0,
            has_work: false,
            taken: None,
            past: IngressCounters::default(),
            epoch: IngressCounters::default(),
        }
    }

    /// Whether so many bytes more may wait behind its maximum.
    #[inline]
    fn has_room_for(&self, len: u32, now: Nanos) -> bool {
        let bytes = Bytes::new(self.bytes + u64::from(len));
        bytes <= LEAST_POOL || self.shaper.as_ref().is_none_or(|shaper| bytes <= shaper.pool(now))
    }

    /// When it may have its next packet, if it has a maximum.
    #[inline]
    fn due(&self) -> Option<Nanos> {
        self.shaper.as_ref().map(Shaper::due)
    }

    /// Takes packets that wait for no maximum.
    #[inline]
    fn take(&mut self, taken: &mut [(Arrival, Verdict)], now: Nanos) -> usize {
        let (mut count, mut bytes, mut waited, mut longest) = (0, 0, Span::ZERO, Span::ZERO);
        for to in taken {
            let Some(arrival) = self.waiting.pop_front() else { break };
            bytes += u64::from(arrival.len);
            let wait = now.since(arrival.at);
            (waited, longest) = (waited + wait, longest.max(wait));
            *to = (arrival, Verdict::Pass);
            count += 1;
        }
        self.bytes -= bytes;
        let seen = &mut self.epoch;
        seen.served += count as u64;
        seen.served_bytes += bytes;
        seen.waited += waited;
        seen.longest = seen.longest.max(longest);
        count
    }

    /// Takes packets as far as the tenant may have them; the first it may have.
    fn take_paced(&mut self, taken: &mut [(Arrival, Verdict)], now: Nanos) -> usize {
        let Self { shaper: Some(shaper), waiting, bytes, epoch, .. } = self else { return 0 };
        let mut count = 0;
        for to in taken {
            if count > 0 && shaper.due() > now {
                break;
            }
            let Some(arrival) = waiting.pop_front() else { break };
            *bytes -= u64::from(arrival.len);
            let verdict = shaper.take(&arrival, waiting.len() > 1, now);
            epoch.count(&arrival, verdict, now);
            *to = (arrival, verdict);
            count += 1;
        }
        count
    }

    /// Counts a packet for which there is no place, by what filled the queue.
    #[cold]
    fn refuse(&mut self, now: Nanos) -> NotQueued {
        if self.shaper.as_ref().is_some_and(|shaper| shaper.is_used_up(now)) {
            self.epoch.over_max += 1;
            return NotQueued::OverMax;
        }
        self.epoch.drops += 1;
        NotQueued::Full
    }
}

impl IngressCounters {
    /// Counts a packet that is taken.
    #[inline]
    fn count(&mut self, arrival: &Arrival, verdict: Verdict, now: Nanos) {
        if verdict == Verdict::Drop {
            self.over_max += 1;
            return;
        }
        let waited = now.since(arrival.at);
        self.served += 1;
        self.served_bytes += u64::from(arrival.len);
        self.waited += waited;
        self.longest = self.longest.max(waited);
    }

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
