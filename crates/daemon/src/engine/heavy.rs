//! Heavy hitters: the flows of chosen tenants that send most packets, both ways.
//!
//! Why: one flow can fill a core, and an operator must see which one it is.
//! From: MIMIC §IV (`queues`).
//! Not here: what is done about such a flow.
//! Invariant: memory is fixed; a flow's packets count for the tenant that sends or receives them, and no other.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use plimsoll_control::backpressure::{Backpressure as Pressing, MeterSettings, Meters, Settings};
use plimsoll_policy::{Backpressure, Press};
use plimsoll_queues::{Heavy, HeavyConfig, HeavyCounters, HeavyHitters, Tally};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::{FlowKey, Parsed};

use super::lane::Lane;

/// Counts flows, and lists the heavy ones.
#[derive(Debug)]
pub struct HeavyFlows {
    hitters: HeavyHitters<Counted>,
    hasher: RandomState,
    /// By lane: the number of the tenant that is counted there.
    lanes: Vec<Option<u32>>,
    /// The names of tenants that are counted, by number. A number is never given again.
    names: HashMap<u32, String>,
    next: u32,
    listed: Vec<Listed>,
    /// Reports, while they are read.
    read: Vec<Heavy<Counted>>,
    read_at: Nanos,
}

/// A flow of a tenant, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Counted {
    flow: FlowKey,
    tenant: u32,
    inward: bool,
}

/// A flow that is to be counted, with its hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed {
    hash: u64,
    of: Counted,
}

#[derive(Clone, Copy, Debug)]
struct Listed {
    of: Counted,
    sent: Tally,
    since: Nanos,
    last: Nanos,
}

/// A heavy hitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyFlow {
    /// The tenant that sends it, or that receives it.
    pub tenant: String,
    /// Whether it comes for the tenant.
    pub inward: bool,
    /// Its headers.
    pub flow: FlowKey,
    /// What it sent in `over`.
    pub sent: Tally,
    /// When it was first found.
    pub since: Nanos,
}

/// The heavy hitters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyNow {
    /// The flows, the one with most packets first.
    pub flows: Vec<HeavyFlow>,
    /// All that was counted in `over`.
    pub all: Tally,
    /// The time that counts cover.
    pub over: Span,
    /// What counting did since it began.
    pub counters: HeavyCounters,
}

/// How often reports are read.
const EACH: Span = Span::millis(100);

/// Most flows listed, and most reports read at once.
const MOST: usize = 256;

impl HeavyFlows {
    /// Allocates the tables: some 30 MB.
    #[must_use]
    pub fn new(stated: &Backpressure) -> Self {
        let config = HeavyConfig::default();
        let window = u128::from(config.window.as_u64());
        // A count covers one window at least.
        let threshold = u128::from(stated.heavy.get()) * window / u128::from(plimsoll_units::NS_PER_SEC);
        let threshold = u64::try_from(threshold).unwrap_or(u64::MAX).max(1);
        Self {
            hitters: HeavyHitters::new(HeavyConfig { threshold, ..config }, Nanos::ZERO),
            hasher: RandomState::default(),
            lanes: Vec::new(),
            names: HashMap::new(),
            next: 0,
            listed: Vec::with_capacity(MOST),
            read: Vec::with_capacity(MOST),
            read_at: Nanos::ZERO,
        }
    }

    /// Bytes of the tables that count flows, by what they hold. Nothing is allocated.
    #[must_use]
    pub fn memory() -> [(&'static str, usize); 3] {
        let (buckets, flows) = HeavyHitters::<Counted>::bytes_of(&HeavyConfig::default());
        let list = MOST * (size_of::<Listed>() + size_of::<Heavy<Counted>>());
        [
            ("flows of the last millisecond", buckets),
            ("flows of the last seconds", flows),
            ("list of heavy hitters", list),
        ]
    }

    /// Bytes of the tables with which flows are slowed down, by what they hold. Nothing is allocated.
    #[must_use]
    pub fn press_memory(press: &Press) -> [(&'static str, usize); 2] {
        let flows = press.flows as usize;
        let settings = Settings { flows, ..Settings::default() };
        // Other hosts install meters here whatever this host's policy presses.
        let meters = Meters::<Counted>::bytes_of(&MeterSettings::default());
        [("flows that are slowed down", Pressing::<Counted>::bytes_of(&settings)), ("meters", meters)]
    }

    /// Begins to count now.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.hitters.begin(now);
        self.read_at = now;
    }

    /// Counts the stated tenants, as far as they have lanes.
    pub(super) fn set_tenants(&mut self, stated: &Backpressure, lanes: &[Option<Box<Lane>>]) {
        let before = core::mem::take(&mut self.lanes);
        for (index, lane) in lanes.iter().enumerate() {
            let lane =
                lane.as_ref().filter(|lane| lane.tenant.is_some() && stated.tenants.contains(&lane.name));
            let number = lane.map(|lane| {
                let known = before.get(index).copied().flatten();
                known.filter(|number| self.names.get(number) == Some(&lane.name)).unwrap_or_else(|| {
                    self.next += 1;
                    self.names.insert(self.next, lane.name.clone());
                    self.next
                })
            });
            self.lanes.push(number);
        }
        let lanes = &self.lanes;
        self.names.retain(|number, _| lanes.contains(&Some(*number)));
    }

    /// The flow of a frame that a lane sends or is to receive; none where its tenant is not counted.
    #[inline]
    pub(super) fn flow(&self, lane: usize, inward: bool, parsed: &Parsed) -> Option<Hashed> {
        let tenant = self.lanes.get(lane).copied().flatten()?;
        let of = Counted { flow: FlowKey::of(parsed), tenant, inward };
        Some(Hashed { hash: self.hasher.hash_one(of), of })
    }

    /// Counts frames of a flow.
    #[inline]
    pub(super) fn count(&mut self, flow: &Hashed, frames: u16, bytes: u32) {
        self.hitters.count_many(flow.hash, &flow.of, frames, bytes);
    }

    /// Moves counts on, and reads what was reported.
    pub(super) fn advance(&mut self, now: Nanos) {
        self.hitters.advance(now);
        if now.since(self.read_at) >= EACH {
            self.read_at = now;
            self.take_reports(now);
        }
    }

    fn take_reports(&mut self, now: Nanos) {
        self.hitters.read(MOST, &mut self.read);
        for Heavy { key, sent } in self.read.drain(..) {
            if let Some(listed) = self.listed.iter_mut().find(|listed| listed.of == key) {
                (listed.sent, listed.last) = (sent, now);
            } else if self.listed.len() < MOST {
                // A flow for which there is no room is reported again later.
                self.listed.push(Listed { of: key, sent, since: now, last: now });
            }
        }
        let names = &self.names;
        self.listed.retain(|listed| now.since(listed.last) < QUIET && names.contains_key(&listed.of.tenant));
    }

    /// The flows that are heavy now.
    #[must_use]
    pub fn now(&mut self, now: Nanos) -> HeavyNow {
        self.advance(now);
        let (all, over) = self.hitters.recent(now);
        let names = &self.names;
        let flow = |listed: &Listed| {
            let Listed { of: Counted { flow, tenant, inward }, sent, since, .. } = *listed;
            Some(HeavyFlow { tenant: names.get(&tenant)?.clone(), inward, flow, sent, since })
        };
        let mut flows: Vec<HeavyFlow> = self.listed.iter().filter_map(flow).collect();
        flows.sort_by_key(|flow| (core::cmp::Reverse(flow.sent.packets), flow.flow, flow.inward));
        HeavyNow { flows, all, over, counters: self.hitters.counters() }
    }
}

/// A flow that has not been reported for this long is heavy no more: it is reported each time that it is counted.
const QUIET: Span = Span::secs(1);
