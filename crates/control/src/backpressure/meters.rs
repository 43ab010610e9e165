//! The table of meters at a source host: which flows are held to a rate, and for whom.
//!
//! Why: other hosts decide what is installed here, so a bound has to hold whatever they ask for.
//! From: MIMIC §III-C; bounds, lifetime and eviction are ours.
//! Not here: the token bucket (`meter`), and who may ask (`feedback` and the caller).
//! Invariant: never more meters than the table has room for, nor more of one peer than its bound; a meter that was not refreshed
//! within its lifetime throttles nothing.
//!
//! A meter gives way only when its lifetime is over: an install beyond a bound is refused, so that no peer can push out what
//! another has installed. A flow has one meter. If two peers ask for one, the lower rate holds and its peer owns the meter; the
//! other peer's requests are refused until the meter has lapsed.

use core::hash::Hash;
use std::collections::HashMap;

use foldhash::fast::FixedState;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use super::meter::{Meter, Verdict};
use crate::HostId;

/// Sizes and times of [`Meters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterSettings {
    /// Meters in all.
    pub meters: usize,
    /// Meters that one peer may own.
    pub per_peer: usize,
    /// Seed of the table's hash. Peers must not know it live.
    pub seed: u64,
}

impl Default for MeterSettings {
    /// 4,096 meters, 256 for each peer.
    fn default() -> Self {
        Self { meters: 4_096, per_peer: 256, seed: 0 }
    }
}

/// What a flow is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The rate; one below 1 Mb/s counts as that, so that no peer can stop a flow.
    pub rate: BitRate,
    /// The bytes that may exceed it at once: from [`Meter::LEAST_BURST`] to 64 MB, other values count as the nearer of these.
    pub burst: Bytes,
    /// How long the meter holds after its last refresh: 100 ms to 60 s, other values count as the nearer of these.
    pub lifetime: Span,
}

impl Terms {
    /// A burst of 128 KiB, and 3 s.
    #[must_use]
    pub const fn new(rate: BitRate) -> Self {
        Self { rate, burst: Bytes::kib(128), lifetime: Span::secs(3) }
    }

    /// The nearest terms that a meter has, at 1 Mb/s or more, so that none stops a flow.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            rate: self.rate.max(LEAST_RATE),
            burst: self.burst.min(MOST_BURST),
            lifetime: self.lifetime.clamp(SHORTEST, LONGEST),
        }
    }
}

/// What an accepted request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The flow has a meter now.
    New,
    /// The flow's meter was refreshed, and has the requested rate.
    Refreshed,
}

/// Why a request installed nothing. It is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInstalled {
    /// All meters are in use.
    #[error("the table of meters is full")]
    Full,
    /// The peer owns as many meters as it may.
    #[error("the peer owns as many meters as it may")]
    PeerFull,
    /// Another peer holds the flow to as low a rate, or a lower one.
    #[error("another peer holds the flow to as low a rate")]
    HeldLower,
}

/// What [`Meters`] did since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterCounters {
    /// Meters that were installed.
    pub installed: u64,
    /// Requests that refreshed a meter.
    pub refreshed: u64,
    /// Meters whose lifetime ended.
    pub expired: u64,
    /// Meters that were taken away before their lifetime ended.
    pub removed: u64,
    /// Requests refused because the table was full.
    pub full: u64,
    /// Requests refused because the peer had as many meters as it may.
    pub peer_full: u64,
    /// Requests refused because another peer holds the flow to as low a rate.
    pub held_lower: u64,
    /// Packets of metered flows that conformed.
    pub conforming: u64,
    /// Packets of metered flows that did not.
    pub excess: u64,
}

/// The meters of one host, by flow.
///
/// ```
/// use plimsoll_control::HostId;
/// use plimsoll_control::backpressure::{Installed, MeterSettings, Meters, Terms, Verdict};
/// use plimsoll_units::{BitRate, Nanos, Span};
///
/// let mut meters: Meters<&str> = Meters::new(MeterSettings::default());
/// let rate = BitRate::mbps(850);
/// assert_eq!(meters.install("elephant", HostId(7), Terms::new(rate), Nanos::ZERO), Ok(Installed::New));
/// let passed = (0..1_000).filter(|_| meters.judge(&"elephant", 1_500, Nanos::ZERO) == Verdict::Conforming);
/// assert_eq!(passed.count(), 87, "128 KiB");
/// assert_eq!(meters.judge(&"mouse", 1_500, Nanos::ZERO), Verdict::Conforming);
/// let later = Nanos::ZERO + Span::secs(3);
/// assert_eq!(meters.judge(&"elephant", 1_500, later), Verdict::Conforming, "its lifetime is over");
/// ```
#[derive(Clone, Debug)]
pub struct Meters<K> {
    settings: MeterSettings,
    meters: HashMap<K, Metered, FixedState>,
    /// How many meters each peer owns; a peer without one is not listed.
    owned: HashMap<HostId, usize, FixedState>,
    /// From when on a request beyond a bound looks for meters that have lapsed.
    looks_at: Nanos,
    counters: MeterCounters,
}

/// A flow's meter.
#[derive(Clone, Copy, Debug)]
pub struct Metered {
    /// The meter.
    pub meter: Meter,
    /// The peer that owns it.
    pub by: HostId,
    /// When it was installed.
    pub since: Nanos,
}

impl<K> Meters<K> {
    /// Bytes of the tables that [`new`](Self::new) allocates, about: hash tables are at most seven eighths full, of a power of two
    /// of places, each with a byte that says whether it is taken. Nothing is allocated here.
    #[must_use]
    pub const fn bytes_of(settings: &MeterSettings) -> usize {
        let places = (settings.meters * 8 / 7).next_power_of_two();
        places * (size_of::<(K, Metered)>() + 1 + size_of::<(HostId, usize)>() + 1)
    }
}

impl<K: Copy + Eq + Hash + Ord> Meters<K> {
    /// No meters yet. Takes all memory.
    #[must_use]
    pub fn new(settings: MeterSettings) -> Self {
        Self {
            settings,
            meters: HashMap::with_capacity_and_hasher(settings.meters, FixedState::with_seed(settings.seed)),
            owned: HashMap::with_capacity_and_hasher(settings.meters, FixedState::with_seed(settings.seed)),
            looks_at: Nanos::ZERO,
            counters: MeterCounters::default(),
        }
    }

    /// Installs or refreshes the meter of `flow` for `peer`, on these terms from `now` on. A meter keeps its first burst.
    ///
    /// Constant time, unless a bound is reached: then every meter is looked at for one that has lapsed, once a millisecond.
    ///
    /// # Errors
    /// [`NotInstalled`] says which bound refused the request. Nothing has changed then.
    pub fn install(
        &mut self,
        flow: K,
        peer: HostId,
        terms: Terms,
        now: Nanos,
    ) -> Result<Installed, NotInstalled> {
        let terms = terms.bounded();
        let done = self.admit(&flow, peer, terms.rate, now);
        match done {
            Ok(Installed::New) => self.insert(flow, peer, terms, now),
            Ok(Installed::Refreshed) => self.refresh(&flow, peer, terms, now),
            Err(NotInstalled::Full) => self.counters.full += 1,
            Err(NotInstalled::PeerFull) => self.counters.peer_full += 1,
            Err(NotInstalled::HeldLower) => self.counters.held_lower += 1,
        }
        done
    }

    /// Whether the request is within all bounds.
    fn admit(
        &mut self,
        flow: &K,
        peer: HostId,
        rate: BitRate,
        now: Nanos,
    ) -> Result<Installed, NotInstalled> {
        if self.meters.get(flow).is_some_and(|owned| owned.meter.has_lapsed(now)) {
            self.forget(flow);
            self.counters.expired += 1;
        }
        let held = self.meters.get(flow);
        match held {
            Some(held) if held.by == peer => return Ok(Installed::Refreshed),
            Some(held) if held.meter.rate() <= rate => return Err(NotInstalled::HeldLower),
            _ => {}
        }
        let new = held.is_none();
        let bound =
            self.meters.len() >= self.settings.meters || self.owned_by(peer) >= self.settings.per_peer;
        if bound && now >= self.looks_at {
            self.looks_at = now + LOOK;
            self.expire(now);
        }
        if self.owned_by(peer) >= self.settings.per_peer {
            Err(NotInstalled::PeerFull)
        } else if !new {
            Ok(Installed::Refreshed)
        } else if self.meters.len() >= self.settings.meters {
            Err(NotInstalled::Full)
        } else {
            Ok(Installed::New)
        }
    }

    fn insert(&mut self, flow: K, peer: HostId, terms: Terms, now: Nanos) {
        let meter = Meter::new(terms.rate, terms.burst, now + terms.lifetime);
        self.meters.insert(flow, Metered { meter, by: peer, since: now });
        *self.owned.entry(peer).or_default() += 1;
        self.counters.installed += 1;
    }

    fn refresh(&mut self, flow: &K, peer: HostId, terms: Terms, now: Nanos) {
        let Some(owned) = self.meters.get_mut(flow) else { return };
        owned.meter.refresh(terms.rate, now + terms.lifetime, now);
        let before = core::mem::replace(&mut owned.by, peer);
        if before != peer {
            self.disown(before);
            *self.owned.entry(peer).or_default() += 1;
        }
        self.counters.refreshed += 1;
    }

    /// Takes away the meter of `flow` if `peer` owns it, and says whether it did.
    pub fn remove(&mut self, flow: &K, peer: HostId) -> bool {
        let owns = self.meters.get(flow).is_some_and(|owned| owned.by == peer);
        if owns {
            self.forget(flow);
            self.counters.removed += 1;
        }
        owns
    }

    /// Judges a packet of `len` bytes, below 2^30, by its flow's meter; a flow without one conforms. Constant time.
    #[inline]
    pub fn judge(&mut self, flow: &K, len: u32, now: Nanos) -> Verdict {
        if self.meters.is_empty() {
            return Verdict::Conforming;
        }
        let Some(owned) = self.meters.get_mut(flow) else { return Verdict::Conforming };
        let verdict = owned.meter.judge(len, now);
        match verdict {
            Verdict::Conforming => self.counters.conforming += 1,
            Verdict::Excess => self.counters.excess += 1,
        }
        verdict
    }

    /// The rate of a flow's meter, if it has one.
    #[must_use]
    pub fn rate(&self, flow: &K) -> Option<BitRate> {
        self.meters.get(flow).map(|owned| owned.meter.rate())
    }

    /// When a packet of `len` bytes, below 2^30, of this flow will conform if none comes before it.
    #[must_use]
    pub fn ready_at(&self, flow: &K, len: u32, now: Nanos) -> Nanos {
        self.meters.get(flow).map_or(now, |owned| owned.meter.ready_at(len, now))
    }

    /// Frees the places of meters that have lapsed, and returns how many. They throttle nothing before that either.
    pub fn expire(&mut self, now: Nanos) -> usize {
        let before = self.meters.len();
        let owned = &mut self.owned;
        self.meters.retain(|_, held| {
            let lapsed = held.meter.has_lapsed(now);
            if lapsed {
                disown(owned, held.by);
            }
            !lapsed
        });
        let expired = before - self.meters.len();
        self.counters.expired += expired as u64;
        expired
    }

    fn forget(&mut self, flow: &K) {
        if let Some(owned) = self.meters.remove(flow) {
            self.disown(owned.by);
        }
    }

    fn disown(&mut self, peer: HostId) {
        disown(&mut self.owned, peer);
    }

    /// Whether there is no meter, not even a lapsed one that still has a place.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.meters.is_empty()
    }

    /// Whether this flow has a meter, perhaps a lapsed one that still has a place.
    #[must_use]
    pub fn holds(&self, flow: &K) -> bool {
        self.meters.contains_key(flow)
    }

    /// Meters that this peer owns, lapsed ones that still have a place included.
    #[must_use]
    pub fn owned_by(&self, peer: HostId) -> usize {
        self.owned.get(&peer).copied().unwrap_or(0)
    }

    /// The meters that hold at `now`, by flow.
    #[must_use]
    pub fn list(&self, now: Nanos) -> Vec<(K, Metered)> {
        let holds = self.meters.iter().filter(|(_, owned)| !owned.meter.has_lapsed(now));
        let mut list: Vec<_> = holds.map(|(&flow, &owned)| (flow, owned)).collect();
        list.sort_unstable_by_key(|&(flow, ..)| flow);
        list
    }

    /// What was installed, refused and judged.
    #[must_use]
    pub const fn counters(&self) -> MeterCounters {
        self.counters
    }
}

fn disown(owned: &mut HashMap<HostId, usize, FixedState>, peer: HostId) {
    if let Some(count) = owned.get_mut(&peer) {
        *count -= 1;
        if *count == 0 {
            owned.remove(&peer);
        }
    }
}

/// The lowest rate of a meter: a lower one would stop its flow.
const LEAST_RATE: BitRate = BitRate::mbps(1);
/// The shortest and the longest lifetime of a meter.
const SHORTEST: Span = Span::millis(100);
const LONGEST: Span = Span::secs(60);

/// How often requests beyond a bound may look at every meter.
const LOOK: Span = Span::millis(1);

const MOST_BURST: Bytes = Bytes::new(64_000_000);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RATE: BitRate = BitRate::mbps(850);
    const ONE: HostId = HostId(1);
    const OTHER: HostId = HostId(2);

    fn small() -> Meters<u32> {
        Meters::new(MeterSettings { meters: 3, per_peer: 2, ..MeterSettings::default() })
    }

    #[test]
    fn memory_is_known_before_it_is_taken() {
        for number in [100, 896, 897, 4_096] {
            let settings = MeterSettings { meters: number, ..MeterSettings::default() };
            let meters: Meters<u32> = Meters::new(settings);
            let each = size_of::<(u32, Metered)>() + size_of::<(HostId, usize)>() + 2;
            let room = Meters::<u32>::bytes_of(&settings) / each / 8 * 7;
            assert_eq!((meters.meters.capacity(), meters.owned.capacity()), (room, room), "{number}");
        }
    }

    fn at(ms: u64) -> Nanos {
        Nanos::ZERO + Span::millis(ms)
    }

    #[test]
    fn bounds_refuse_and_lapsed_meters_give_way() {
        let mut meters = small();
        let mut install = |flow, peer, ms| meters.install(flow, peer, Terms::new(RATE), at(ms));
        assert_eq!([install(1, ONE, 0), install(2, ONE, 1_000)], [Ok(Installed::New); 2]);
        assert_eq!(install(3, ONE, 1_000), Err(NotInstalled::PeerFull));
        assert_eq!(install(4, OTHER, 1_000), Ok(Installed::New));
        assert_eq!(install(5, OTHER, 1_000), Err(NotInstalled::Full));
        assert_eq!(install(2, ONE, 2_000), Ok(Installed::Refreshed));
        assert_eq!(install(3, ONE, 3_000), Ok(Installed::New), "the first has lapsed");
        let MeterCounters { installed, refreshed, expired, full, peer_full, .. } = meters.counters();
        assert_eq!([installed, refreshed, expired, full, peer_full], [4, 1, 1, 1, 1]);
        assert_eq!([meters.owned_by(ONE), meters.owned_by(OTHER)], [2, 1]);
    }

    #[test]
    fn a_full_table_is_searched_once_a_millisecond() {
        let mut meters = small();
        let us = |us| Nanos::ZERO + Span::micros(us);
        let mut install = |flow, at| meters.install(flow, ONE, Terms::new(RATE), at);
        assert_eq!([install(1, us(0)), install(2, us(0))], [Ok(Installed::New); 2]);
        assert_eq!(install(3, us(2_999_500)), Err(NotInstalled::PeerFull), "this looks at all of them");
        assert_eq!(
            install(3, us(3_000_400)),
            Err(NotInstalled::PeerFull),
            "two have lapsed, but are not looked for"
        );
        assert_eq!(install(3, us(3_000_500)), Ok(Installed::New));
    }

    #[test]
    fn the_lower_rate_of_two_peers_holds() {
        let mut meters = small();
        let low = BitRate::mbps(100);
        assert_eq!(meters.install(1, ONE, Terms::new(RATE), at(0)), Ok(Installed::New));
        assert_eq!(meters.install(1, OTHER, Terms::new(RATE), at(0)), Err(NotInstalled::HeldLower));
        assert_eq!(meters.install(1, OTHER, Terms::new(low), at(0)), Ok(Installed::Refreshed));
        assert_eq!(meters.install(1, ONE, Terms::new(RATE), at(2_999)), Err(NotInstalled::HeldLower));
        assert_eq!(
            meters.list(at(2_999)).iter().map(|(_, held)| (held.by, held.meter.rate())).next(),
            Some((OTHER, low))
        );
        assert!(!meters.remove(&1, ONE) && meters.remove(&1, OTHER));
        assert_eq!([meters.owned_by(ONE), meters.owned_by(OTHER)], [0; 2]);
    }

    #[test]
    fn no_peer_can_stop_a_flow() {
        let mut meters = small();
        meters.install(1, ONE, Terms::new(BitRate::new(1).expect("some")), at(0)).expect("there is room");
        assert_eq!(meters.list(at(0))[0].1.meter.rate(), BitRate::mbps(1));
    }

    proptest! {
        /// Whatever is asked for: the bounds hold, owners are counted right, and a flow that was not refreshed for the lifetime
        /// is not throttled.
        #[test]
        fn bounds_and_lifetime_hold(
            asked in proptest::collection::vec((0_u32..6, 0_u32..3, 1_u64..4, 0_u64..1_500, any::<bool>()), 1..100),
        ) {
            let mut meters = small();
            let (mut ms, mut refreshed) = (0, [None; 6]);
            for (flow, peer, mbps, gap, remove) in asked {
                ms += gap;
                if remove {
                    meters.remove(&flow, HostId(peer));
                } else if meters.install(flow, HostId(peer), Terms::new(BitRate::mbps(mbps)), at(ms)).is_ok() {
                    refreshed[flow as usize] = Some(ms);
                }
                let list = meters.list(at(ms));
                prop_assert!(list.len() <= 3);
                for peer in 0..3 {
                    let holds = list.iter().filter(|held| held.1.by == HostId(peer)).count();
                    prop_assert!(holds <= meters.owned_by(HostId(peer)) && meters.owned_by(HostId(peer)) <= 2);
                }
                for (flow, refreshed) in (0..).zip(refreshed) {
                    let lapsed = refreshed.is_none_or(|refreshed| ms >= refreshed + 3_000);
                    prop_assert!(!lapsed || (0..3).all(|_| meters.judge(&flow, 60_000, at(ms)) == Verdict::Conforming));
                }
            }
        }
    }
}
