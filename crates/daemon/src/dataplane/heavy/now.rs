//! The heavy hitters as they are shown: to the API, the metrics and `plimsoll heavy`.
//!
//! Why: what is shown is copied out of the engine, and has names in place of numbers.
//! From: the tables of `HeavyFlows`.
//! Not here: counting (the parent), and the API's own words (`crate::heavy`).
//! Invariant: what is shown is of one moment.

use plimsoll_control::backpressure::{Counters, FlowSource, Means};
use plimsoll_policy::Watch;
use plimsoll_queues::{HeavyCounters, Tally};
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::FlowKey;
use plimsoll_wire::overlay::Vni;

use super::super::lane::Lane;
use super::{Counted, HashedFlow, HeavyFlows, Listed, Presses};

/// A heavy hitter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyFlow {
    /// The tenant that sends it, or that receives it.
    pub tenant: String,
    /// Whether it comes for the tenant.
    pub inward: bool,
    /// The tenant of this host that sends it, unless it comes from elsewhere: others may copy its headers.
    pub sender: Option<String>,
    /// The tenant that sends it to `tenant`, `NAME` here or `NAME@HOST` elsewhere, where that is known.
    pub from: Option<String>,
    /// Its headers.
    pub flow: FlowKey,
    /// What it sent in `over`.
    pub sent: Tally,
    /// When it was first found.
    pub since: Nanos,
    /// Its round trip, if that is measured.
    pub round_trip: Option<Span>,
    /// How it is slowed down, if it is.
    pub pressed: Option<PressedNow>,
}

/// How a flow is slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressedNow {
    /// Its rate.
    pub rate: BitRate,
    /// Since when.
    pub since: Nanos,
    /// By which method.
    pub means: Means,
    /// One of how many packets is marked, where they are.
    pub interval: u32,
}

/// What is watched, as it was at the last look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedNow {
    /// What it is, as the policy states it.
    pub what: Watch,
    /// Whether its load can be measured, as far as is known.
    pub measured: bool,
    /// Whether it is overloaded.
    pub overloaded: bool,
    /// The part of heavy hitters' packets that the top flow had in the last overload, in thousandths.
    pub top: Option<u32>,
    /// What was decided since the start, and packets that were marked.
    pub counters: (Counters, u64),
}

/// How many flows there are of what kind, without a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowsNow {
    /// Heavy hitters.
    pub heavy: usize,
    /// Flows that are slowed down.
    pub pressed: usize,
    /// What counting did since it began.
    pub counters: HeavyCounters,
    /// What is watched, if anything is.
    pub watched: Option<WatchedNow>,
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
    /// What is watched, if anything is.
    pub watched: Option<WatchedNow>,
}

impl HeavyFlows {
    pub(super) fn watched_now(&self) -> Option<WatchedNow> {
        let press = self.press.as_ref()?;
        let (overloaded, top) = press.overload();
        Some(WatchedNow {
            what: press.watch().clone(),
            measured: press.is_measured(),
            overloaded,
            top,
            counters: press.counters(),
        })
    }

    /// Totals, for metrics.
    #[must_use]
    pub fn totals(&self) -> FlowsNow {
        FlowsNow {
            heavy: self.listed.len(),
            pressed: self.press.as_ref().map_or(0, Presses::len),
            counters: self.counters(),
            watched: self.watched_now(),
        }
    }

    /// The flows that are heavy now.
    #[must_use]
    pub(in crate::dataplane) fn now(
        &mut self,
        lanes: &[Option<Box<Lane>>],
        elsewhere: impl Fn(Vni, FlowSource) -> Option<String>,
        now: Nanos,
    ) -> HeavyNow {
        self.advance(now);
        self.settle();
        let (all, over) = self.hitters.recent(now);
        let names = &self.names;
        let flow = |listed: &Listed| {
            let Listed { of: HashedFlow { of, .. }, sent, since, .. } = listed;
            let Counted { flow, tenant, inward, from, sibling, .. } = *of;
            let pressed = self.press.as_ref().and_then(|press| press.pressed(of));
            let pressed = pressed.map(|(pressed, means)| PressedNow {
                rate: pressed.target,
                since: pressed.since,
                means,
                interval: pressed.interval,
            });
            let network = self.lane_of(tenant).and_then(|lane| Some(lanes.get(lane)?.as_ref()?.network));
            let (tenant, round_trip) = (names.get(&tenant)?.clone(), self.round_trip(of));
            let sender = match sibling.checked_sub(1) {
                Some(lane) => lanes.get(lane as usize).and_then(Option::as_ref).map(|lane| lane.name.clone()),
                None => (!inward).then(|| tenant.clone()),
            };
            let from = if inward { sender.clone().or_else(|| elsewhere(network?, from)) } else { None };
            Some(HeavyFlow {
                tenant,
                inward,
                sender,
                from,
                flow,
                sent: *sent,
                since: *since,
                round_trip,
                pressed,
            })
        };
        let mut flows: Vec<HeavyFlow> = self.listed.iter().filter_map(flow).collect();
        flows.sort_by_key(|flow| (core::cmp::Reverse(flow.sent.packets), flow.flow, flow.inward));
        HeavyNow { flows, all, over, counters: self.counters(), watched: self.watched_now() }
    }
}
