//! Heavy hitters: the flows of chosen tenants that send most packets, both ways.
//!
//! Why: one flow can fill a core, and an operator must see which one it is.
//! From: MIMIC §IV (`queues`).
//! Not here: what is done about such a flow (`press`).
//! Invariant: memory is fixed; a flow's packets count for the tenant that sends or receives them, and no other.

mod list;
mod now;

use std::collections::HashMap;

use plimsoll_control::HostId;
use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{
    Backpressure as Pressing, FlowSource, MeterSettings, Meters, Path, SenderMac, Settings,
};
use plimsoll_policy::{Backpressure, Config, Press, PressMode, Watch};
use plimsoll_queues::{Heavy, HeavyConfig, HeavyCounters, HeavyHitters, Tally};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use plimsoll_wire::{Ecn, FlowKey, Fragment, Parsed, TcpPlace, protocol};

pub(super) use list::MOST;
use list::{List, Listed, Taken};
pub use now::{FlowsNow, HeavyFlow, HeavyNow, PressedNow, WatchedNow};

use super::flows::Hashed;
use super::lane::Lane;
use super::mac_table::number;
use super::mediate::codepoint;
use super::press::{Act, Load, PressNews, Presses, SmallWindows, Tell, TreatedAt};
use super::round_trips::RoundTrips;
use super::setup::untouched;

/// What a policy says of flows that are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// Its `backpressure`.
    pub stated: Backpressure,
    /// The tenants with `ecn: untouched`.
    pub untouched: Vec<String>,
}

impl Counting {
    /// What this policy says, if flows are counted.
    #[must_use]
    pub fn of(config: &Config) -> Option<Self> {
        config.backpressure.clone().map(|stated| Self { stated, untouched: untouched(config) })
    }

    /// What is watched may use these thousandths of a core, unless the policy states another bound.
    pub fn bound(&mut self, cores: Option<u32>) {
        if let Some(press) = &mut self.stated.press {
            press.cores = press.cores.or(cores);
        }
    }
}

/// Counts flows, and lists the heavy ones.
#[derive(Debug)]
pub struct HeavyFlows {
    hitters: HeavyHitters<Counted>,
    /// By lane: who is counted there.
    lanes: Vec<Resident>,
    /// The names of tenants that are counted, by number. A number is never given again.
    names: HashMap<u32, String>,
    next: u32,
    /// What slows flows down, if anything is watched.
    press: Option<Presses>,
    /// The round trips of heavy hitters, where flows are slowed down.
    round_trips: Option<RoundTrips>,
    /// The number of the one tenant that is watched, and its lane.
    watched: Option<(u32, usize)>,
    listed: List,
    /// Reports, while they are read.
    read: Vec<Heavy<HashedFlow>>,
    read_at: Nanos,
    /// When all frames were counted.
    counted_at: Nanos,
}

/// The tenant in a lane.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    /// Its number, if it is counted.
    number: Option<u32>,
    /// Whether its packets may not be changed.
    untouched: bool,
}

/// A flow of a tenant, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Counted {
    pub(super) flow: FlowKey,
    pub(super) tenant: u32,
    pub(super) inward: bool,
    /// Part of its name: a sender elsewhere that copies a flow's headers makes another flow, also one at the same host.
    pub(super) from: FlowSource,
    /// Whether the tenant that sends it, or that receives it here, has `ecn: untouched`.
    pub(super) untouched: bool,
    /// Part of its name too: one more than the lane of the tenant of this host that sends it to this one, as another tenant can copy
    /// its headers; 0 for all others.
    pub(super) sibling: u32,
}

/// A flow with the keyed hash by which it is counted, so that no table hashes its headers again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HashedFlow {
    pub(super) hash: u64,
    pub(super) of: Counted,
}

impl core::hash::Hash for HashedFlow {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Ord for HashedFlow {
    /// By the flow: which flow comes first must not depend on a seed.
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.of.cmp(&other.of).then(self.hash.cmp(&other.hash))
    }
}

impl PartialOrd for HashedFlow {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// A flow that is to be counted, with its hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct HashedCount {
    pub(super) hash: u64,
    pub(super) of: Counted,
    /// Where its frames' segments lie, if those are to be read.
    tcp: Option<TcpPlace>,
    /// Until when they are not read, unless they have SYN.
    unread_until: Nanos,
    pub(super) treated_at: TreatedAt,
}

impl Counted {
    /// Its hash where that of its headers is not at hand.
    pub(super) fn hashed(&self) -> u64 {
        self.hash(Hashed::of_key(self.flow).hash)
    }

    /// Itself with its hash, where that is not at hand.
    #[cfg(test)]
    pub(super) fn with_hash(self) -> HashedFlow {
        HashedFlow { hash: self.hashed(), of: self }
    }

    /// The hash of this flow of a tenant, from the hash of its headers, which is keyed already.
    #[inline]
    fn hash(&self, headers: u64) -> u64 {
        let (from, SenderMac(sender)) = match self.from {
            FlowSource::Here => (0, SenderMac::default()),
            FlowSource::Elsewhere(sender) => (1, sender),
            FlowSource::Host(HostId(host), sender) => (2 | u64::from(host) << 2, sender),
        };
        let flags = u64::from(self.untouched) << 1 | u64::from(self.inward);
        let rest = u64::from(self.sibling) << 50 ^ u64::from(self.tenant) << 36 ^ from << 2 ^ flags;
        // A folded product: each bit of the result depends on all bits of the factors. The second one is never zero, as an address
        // leaves its upper bits alone.
        let product = u128::from(headers ^ rest) * u128::from(MIX ^ number(sender));
        product as u64 ^ (product >> 64) as u64
    }
}

/// An odd number with its bits spread (2^64 divided by the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// How long frames of known flows from the uplink may not be counted, and counts not move on: a fifth of the time that the counts of
/// the first level cover.
const UNCOUNTED: Span = Span::micros(200);

/// How often reports are read.
const EACH: Span = Span::millis(100);

impl HeavyFlows {
    /// Allocates the tables: some 38 MB.
    #[must_use]
    pub fn new(stated: &Backpressure) -> Self {
        let config = HeavyConfig::from_rate(stated.heavy.get(), stated.press.is_some());
        Self {
            hitters: HeavyHitters::new(config, Nanos::ZERO),
            lanes: Vec::new(),
            names: HashMap::new(),
            next: 0,
            press: stated.press.as_ref().map(Presses::new),
            round_trips: stated.press.as_ref().map(|_| RoundTrips::new()),
            watched: None,
            listed: List::new(),
            read: Vec::with_capacity(MOST + stated.press.as_ref().map_or(0, |press| press.flows as usize)),
            read_at: Nanos::ZERO,
            counted_at: Nanos::ZERO,
        }
    }

    /// Bytes of the tables that count flows, by what they hold. Nothing is allocated.
    #[must_use]
    pub fn memory() -> [(&'static str, usize); 3] {
        let (buckets, flows) = HeavyHitters::<Counted>::bytes_of(&HeavyConfig::default());
        let list = List::BYTES + MOST * size_of::<Heavy<HashedFlow>>();
        [
            ("flows of the last millisecond", buckets),
            ("flows of the last seconds", flows),
            ("list of heavy hitters", list),
        ]
    }

    /// Bytes of the tables with which flows are slowed down, by what they hold. Nothing is allocated.
    #[must_use]
    pub fn press_memory(press: &Press) -> Vec<(&'static str, usize)> {
        let flows = press.flows as usize;
        let settings = Settings { flows, ..Settings::default() };
        // Other hosts install meters here whatever this host's policy presses.
        let meters = Meters::<Counted>::bytes_of(&MeterSettings::default());
        let windows = (press.mode == PressMode::Window)
            .then_some(("connections with their windows", SmallWindows::memory()));
        let flows = Pressing::<HashedFlow>::bytes_of(&settings) + Presses::treated_bytes(flows);
        [
            ("flows that are slowed down", flows),
            ("meters", meters),
            ("round trips and handshakes", RoundTrips::BYTES),
        ]
        .into_iter()
        .chain(windows)
        .collect()
    }

    /// Begins to count now.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.hitters.begin(now);
        self.read_at = now;
    }

    /// Counts the stated tenants, as far as they have lanes.
    pub(super) fn set_tenants(&mut self, counting: &Counting, lanes: &[Option<Box<Lane>>]) {
        let stated = &counting.stated;
        let before = core::mem::take(&mut self.lanes);
        for (index, lane) in lanes.iter().enumerate() {
            let counted =
                lane.as_ref().filter(|lane| lane.tenant.is_some() && stated.tenants.contains(&lane.name));
            let number = counted.map(|lane| {
                let known = before.get(index).and_then(|before| before.number);
                known.filter(|number| self.names.get(number) == Some(&lane.name)).unwrap_or_else(|| {
                    self.next += 1;
                    self.names.insert(self.next, lane.name.clone());
                    self.next
                })
            });
            let untouched = lane.as_ref().is_some_and(|lane| counting.untouched.contains(&lane.name));
            self.lanes.push(Resident { number, untouched });
        }
        let lanes = &self.lanes;
        self.names.retain(|number, _| lanes.iter().any(|lane| lane.number == Some(*number)));
        self.listed.recheck = true;
        let number =
            |name: &String| self.names.iter().find(|(_, known)| *known == name).map(|(number, _)| *number);
        self.watched = match self.press.as_ref().map(Presses::watch) {
            Some(Watch::Tenant(name)) => {
                number(name).and_then(|number| Some((number, self.lane_of(number)?)))
            }
            _ => None,
        };
    }

    /// Whether the tenant in this lane has `ecn: untouched`.
    #[inline]
    pub(super) fn is_untouched(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(|lane| lane.untouched)
    }

    /// The lane of a tenant that is counted, by its number.
    pub(super) fn lane_of(&self, tenant: u32) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.number == Some(tenant))
    }

    /// The flow of a frame that a lane sends or is to receive; none where its tenant is not counted. `sender` is the lane that
    /// sends it to this one, if one does. `peer_untouched`: the tenant at its other end has `ecn: untouched`.
    #[inline]
    pub(super) fn flow(
        &self,
        (lane, inward, sender): (usize, bool, Option<usize>),
        (from, peer_untouched): (FlowSource, bool),
        (parsed, flow): (&Parsed, &Hashed),
    ) -> Option<HashedCount> {
        let Resident { number, untouched } = *self.lanes.get(lane)?;
        let (tenant, untouched) = (number?, untouched || peer_untouched);
        let sibling = sender.map_or(0, |lane| lane as u32 + 1);
        let of = Counted { flow: flow.key, tenant, inward, from, untouched, sibling };
        let hash = of.hash(flow.hash);
        let tcp = self.round_trips.as_ref().and_then(|_| TcpPlace::of(parsed));
        Some(HashedCount { hash, of, tcp, unread_until: Nanos::ZERO, treated_at: TreatedAt::UNKNOWN })
    }

    /// Counts packets of a flow, and their bytes.
    #[inline(always)]
    pub(super) fn count(&mut self, flow: &HashedCount, (packets, bytes): (u16, u32)) {
        self.hitters.count_many(flow.hash, &flow.of, packets, bytes);
    }

    /// Says what is done with frames of a flow, and whether they were counted for that. Otherwise the caller is to count them.
    /// `frame` is the first of them, and `ecn` its ECN field as [`markable`] reads it.
    #[inline(always)]
    pub(super) fn judge(
        &mut self,
        flow: &mut HashedCount,
        sent: (u16, u32),
        (frame, ecn): (&[u8], Codepoint),
        now: Nanos,
    ) -> (Act, bool) {
        if let Some(place) = flow.tcp
            && (now >= flow.unread_until || place.is_syn(frame))
        {
            flow.unread_until = self.time(flow, place, frame, now);
        }
        match &mut self.press {
            Some(press) if press.is_at_work() => press.judge(flow, sent, ecn, now),
            _ => (Act::default(), false),
        }
    }

    #[inline(never)]
    fn time(&mut self, flow: &HashedCount, place: TcpPlace, frame: &[u8], now: Nanos) -> Nanos {
        let round_trips = self.round_trips.as_mut();
        round_trips.map_or(now, |trips| trips.note((flow.hash, &flow.of), place, frame, now))
    }

    /// The windows of acknowledgements that pass, if backpressure makes them smaller.
    #[inline]
    pub(super) fn windows(&mut self) -> Option<&mut SmallWindows> {
        self.press.as_mut()?.windows()
    }

    /// Whether frames that were not counted yet are to be counted now, and counts to move on: before reports are read, and once in a
    /// while.
    #[inline]
    pub(super) fn counts_now(&mut self, now: Nanos) -> bool {
        let read = now.since(self.read_at) >= EACH || self.watch(now).is_some();
        let due = read || now.since(self.counted_at) >= UNCOUNTED;
        if due {
            self.counted_at = now;
        }
        due
    }

    /// Moves counts on, and reads what was reported.
    pub(super) fn advance(&mut self, now: Nanos) {
        self.hitters.advance(now);
        if now.since(self.read_at) >= EACH {
            self.take_reports(now);
        }
    }

    /// Whether the rate of a flow allows these bytes now; if so they are charged.
    pub(super) fn conforms(&mut self, flow: &Counted, bytes: u32, now: Nanos) -> bool {
        self.press.as_mut().is_none_or(|press| press.conforms(flow, bytes, now))
    }

    /// The bytes of a flow of this host's own tenants that wait for this host's rate at most, where the policy bounds them.
    pub(super) fn most_waiting(&self) -> Option<Bytes> {
        self.press.as_ref()?.most_waiting()
    }

    /// The rate that this host holds a flow to.
    pub(super) fn rate(&self, flow: &Counted) -> Option<BitRate> {
        self.press.as_ref()?.rate(flow)
    }

    /// When the rate of a flow will allow these bytes.
    pub(super) fn ready_at(&self, flow: &Counted, bytes: u32, now: Nanos) -> Option<Nanos> {
        self.press.as_ref().map(|press| press.ready_at(flow, bytes, now))
    }

    /// Packets from the uplink for the tenant of this lane since the last call, of flows that have just begun to be slowed down.
    pub(super) fn take_left_out(&mut self, lane: usize) -> u64 {
        let tenant = self.lanes.get(lane).and_then(|lane| lane.number);
        self.press.as_mut().zip(tenant).map_or(0, |(press, tenant)| press.take_left_out(tenant))
    }

    /// The round trip of a heavy hitter, once it is measured.
    pub(super) fn round_trip(&self, flow: &Counted) -> Option<Span> {
        self.round_trips.as_ref()?.of(flow)
    }

    /// What is watched, if it is time to look at it.
    #[inline]
    pub(super) fn watch(&self, now: Nanos) -> Option<&Watch> {
        self.press.as_ref().filter(|press| press.is_due(now)).map(Presses::watch)
    }

    /// What is watched, if anything is.
    pub(super) fn watched_by_policy(&self) -> Option<&Watch> {
        self.press.as_ref().map(Presses::watch)
    }

    /// Lets go of flows whose lifetime is over; of each one if the load is `gone`: it cannot be measured.
    pub(super) fn lapse(&mut self, gone: bool, now: Nanos) {
        self.settle();
        if let Some(press) = &mut self.press {
            press.lapse(gone, now);
        }
    }

    /// Lets go of all flows that are slowed down, as these tables are about to be replaced.
    pub(super) fn end_watch(&mut self, now: Nanos) {
        self.settle();
        if let Some(press) = &mut self.press {
            press.end(now);
        }
    }

    /// The lane of the one tenant that is watched.
    pub(super) fn watched_lane(&self) -> Option<usize> {
        self.watched.map(|(_, lane)| lane)
    }

    /// Decides which flows are slowed down, from what the watched thing has used until `at`, and the packets that it has handled:
    /// all that are counted, unless others are stated. Adds what other hosts are to be told to `tells`.
    pub(super) fn press(
        &mut self,
        (used, at): (Span, Nanos),
        packets: Option<u64>,
        tells: &mut Vec<Tell>,
        now: Nanos,
    ) {
        self.take_reports(now);
        let Some(press) = &mut self.press else { return };
        // What a gateway forwards leaves as a flow of its own: to hold it there as well would make it wait twice. Whether a flow is
        // forwarded is known once what comes had the time to be reported as well.
        let listed = &self.listed;
        let is_new = |flow: &HashedFlow| listed.get(flow).is_some_and(|listed| listed.since == now);
        self.read.retain(|Heavy { key, .. }| key.of.inward || !(is_new(key) || listed.is_forwarded(key)));
        // A tenant's load is that of what comes for it.
        if let Some((watched, _)) = self.watched {
            self.read.retain(|Heavy { key, .. }| key.of.tenant == watched && key.of.inward);
        }
        let packets = packets.unwrap_or(self.hitters.counters().seen.packets);
        let (round_trips, listed) = (&self.round_trips, &self.listed);
        let path = |flow: &HashedFlow| {
            let known = listed.get(flow)?;
            Some(path(&known.sent, round_trips.as_ref()?.of(&flow.of)))
        };
        press.poll(Load { used, at, packets }, &self.read, path, tells, now);
    }

    /// What an operator is to be told, with the tenants' names.
    pub(super) fn take_news(&mut self) -> Vec<(String, PressNews)> {
        let news = self.press.as_mut().map(Presses::take_news).unwrap_or_default();
        let named = news.into_iter().map(|news| {
            let name = news.flow().and_then(|flow| self.names.get(&flow.tenant).cloned());
            (name.unwrap_or_default(), news)
        });
        named.collect()
    }

    /// Takes over what was counted of flows that are slowed down.
    fn settle(&mut self) {
        let hitters = &mut self.hitters;
        if let Some(press) = &mut self.press {
            press.settle(|HashedFlow { hash, of }, sent| hitters.count_at_once(*hash, of, sent));
        }
    }

    /// What counting did since it began.
    fn counters(&self) -> HeavyCounters {
        let unsettled = self.press.as_ref().map(Presses::unsettled).unwrap_or_default();
        let mut counters = self.hitters.counters();
        counters.seen.packets += unsettled.packets;
        counters.seen.bytes += unsettled.bytes;
        counters
    }

    fn take_reports(&mut self, now: Nanos) {
        self.read_at = now;
        self.read.clear();
        self.listed.begin_look();
        self.settle();
        let Self { hitters, listed, read, names, round_trips, press, .. } = self;
        let mut take = |heavy: &Heavy<HashedFlow>| {
            let taken = listed.take(heavy, now);
            if taken == Taken::New {
                let HashedFlow { hash, of } = &heavy.key;
                listed.recheck |= !names.contains_key(&of.tenant);
                round_trips.iter_mut().for_each(|trips| trips.begin((*hash, of), now));
            }
            taken
        };
        hitters.read_each(MOST, |hash, Heavy { key: of, sent }| {
            let heavy = Heavy { key: HashedFlow { hash, of }, sent };
            take(&heavy);
            read.push(heavy);
        });
        if let Some(press) = press {
            press.each_held(
                |hash| hitters.sent(hash),
                |heavy| {
                    // One that is heavy as well has been read already.
                    if take(&heavy) != Taken::Again {
                        read.push(heavy);
                    }
                },
            );
        }
        let gone = |flow: &Counted| round_trips.iter_mut().for_each(|trips| trips.end(flow));
        listed.forget(now, |flow| names.contains_key(&flow.tenant), gone);
    }
}

/// The ECN field of a frame that may be marked: one whole TCP or UDP packet. Fragments, IPsec and unknown protocols count as
/// not ECN-capable.
#[inline]
pub(super) fn markable(parsed: &Parsed) -> Codepoint {
    let whole = parsed.ip.as_ref().filter(|ip| ip.fragment == Fragment::Whole);
    let known = whole.filter(|ip| matches!(ip.protocol, protocol::TCP | protocol::UDP));
    known.map_or(Codepoint::NotEct, |ip| codepoint(Ecn::from_bits(ip.ecn)))
}

/// A flow's way, from what it sent and its round trip: where that is not known, it is assumed.
fn path(sent: &Tally, round_trip: Option<Span>) -> Path {
    let mss = Bytes::new(sent.bytes.div_ceil(sent.packets.max(1)));
    Path { rtt: round_trip.unwrap_or(Settings::default().path.rtt), mss }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 60,000 flows with one hash of their headers in 32,768 buckets of four: as few overflow as with independent hashes.
    #[test]
    fn flows_with_the_same_headers_spread_over_the_buckets() {
        let mut buckets = vec![0_u32; 32 << 10];
        for tenant in 0..200 {
            let mac = |n: u32| SenderMac([2, 0, 0, 0, (n >> 8) as u8, n as u8]);
            let elsewhere = [FlowSource::Here, FlowSource::Elsewhere(SenderMac::default())];
            let hosts = (0..74).map(|host| FlowSource::Host(HostId(host), mac(0)));
            let senders = (1..75).map(|sender| FlowSource::Host(HostId(7), mac(sender)));
            for from in elsewhere.into_iter().chain(hosts).chain(senders) {
                for inward in [false, true] {
                    let of = Counted { tenant, inward, from, ..Counted::default() };
                    buckets[(of.hash(0x1234_5678_9abc_def0) % (32 << 10)) as usize] += 1;
                }
            }
        }
        let over: u32 = buckets.iter().map(|held| held.saturating_sub(4)).sum();
        // Uniform hashing leaves 2.9 % without a slot.
        assert!(over < 60_000 * 35 / 1_000, "{over} flows have no slot");
    }
}
