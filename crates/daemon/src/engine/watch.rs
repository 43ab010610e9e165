//! What is looked at each second, to say whether promises held.
//!
//! Why: a whole snapshot copies every class's histogram; a look must cost little, as it comes every second.
//! From: one look between two turns; delays since the last one are handed over, and add up for the counters.
//! Not here: what follows from it (`slo`).
//! Invariant: a look costs time in proportion to tenants, and for one that had no packets next to nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_nic::IngressCounters;
use plimsoll_policy::Program;
use plimsoll_ports::{Counters, DropReason};
use plimsoll_units::{Nanos, Span};

use super::Engine;
use super::drops::{Event, Tally};
use super::lane::{Lane, carried};
use super::parts::Parts;

/// One look.
#[derive(Clone, Debug)]
pub struct Watched {
    /// When.
    pub at: Nanos,
    /// The policy in force.
    pub program: Arc<Program>,
    /// Tenants' ports, of tenants in the policy.
    pub lanes: Vec<LaneWatched>,
    /// The uplink.
    pub uplink: UplinkWatched,
    /// The engine's thread.
    pub pulse: Pulse,
}

/// One tenant, since the start unless it says otherwise.
#[derive(Clone, Debug, Default)]
pub struct LaneWatched {
    /// The tenant's name.
    pub name: String,
    /// Bytes from its port.
    pub offered_bytes: u64,
    /// Bytes that its port took.
    pub received_bytes: u64,
    /// Frames lost on the way out, by reason.
    pub losses: BTreeMap<&'static str, u64>,
    /// What the uplink brought for it.
    pub ingress: IngressCounters,
    /// Delays and what left, since the last look; none where nothing did.
    pub parts: Option<Box<Parts>>,
    /// Times that its port was not read, as it was at its cap.
    pub held_back: u64,
    /// Its port is gone.
    pub away: bool,
}

/// The uplink, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct UplinkWatched {
    /// Bytes that it took.
    pub sent_bytes: u64,
    /// Bytes that it brought.
    pub received_bytes: u64,
    /// Times that it had no room.
    pub full: u64,
    /// Frames that the kernel dropped before they were read.
    pub kernel_drops: u64,
    /// It is down or gone.
    pub away: bool,
}

/// How the engine's thread fares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pulse {
    /// Time on a core, since the start.
    pub cpu: Span,
    /// Time that it could have run and had no core; none where the kernel does not say.
    pub no_core: Option<Span>,
    /// The latest wake-up since the last look.
    pub late: Span,
}

impl Engine {
    /// Looks, and begins delays anew. The thread knows its own pulse.
    pub fn watch(&mut self, now: Nanos, pulse: Pulse) -> Watched {
        let (inward, program) = (&self.inward, &self.program);
        let lanes = (0..).zip(&mut self.lanes).filter_map(|(index, lane)| {
            let lane = lane.as_mut()?;
            lane.tenant?;
            Some(lane.watch(inward.seen(Some(index)).0))
        });
        let lanes = lanes.collect();
        let uplink = &mut self.uplink;
        let counters = carried(&mut uplink.port, &uplink.past, &uplink.blamed);
        let uplink = UplinkWatched {
            sent_bytes: counters.tx_bytes,
            received_bytes: counters.rx_bytes,
            full: uplink.tally.count(Event::UplinkFull),
            kernel_drops: counters.rx_drops[DropReason::KernelFull as usize],
            away: uplink.is_away(),
        };
        Watched { at: now, program: Arc::clone(program), lanes, uplink, pulse }
    }

    /// Which delays count as late, for each tenant: half of each of its targets.
    pub(super) fn set_halves(&mut self) {
        for lane in self.lanes.iter_mut().flatten() {
            let slo = lane.tenant.map(|tenant| &self.program.tenants[tenant.0 as usize].slo);
            let halves = slo.map(|slo| slo.delay.iter().map(|target| target.half()).collect());
            lane.set_halves(halves.unwrap_or_default());
        }
    }
}

impl Lane {
    fn watch(&mut self, ingress: IngressCounters) -> LaneWatched {
        let Counters { rx_bytes, tx_bytes, .. } = self.counters();
        LaneWatched {
            name: self.name.clone(),
            offered_bytes: rx_bytes,
            received_bytes: tx_bytes,
            losses: losses(&self.tally),
            ingress,
            parts: self.take_parts(),
            held_back: self.tally.count(Event::TenantAtCap) + self.tally.count(Event::BuffersInUse),
            away: self.port.is_none(),
        }
    }

    /// What was measured since the last look; it counts in the totals from now on.
    fn take_parts(&mut self) -> Option<Box<Parts>> {
        if self.recent.is_empty() {
            return None;
        }
        self.total.add(&self.recent);
        let taken = self.recent.clone();
        self.recent.clear(self.halves.len());
        Some(taken)
    }

    fn set_halves(&mut self, halves: Vec<Span>) {
        if self.halves != halves {
            self.total.add(&self.recent);
            self.recent.clear(halves.len());
            self.halves = halves;
        }
    }

    /// All that was measured.
    pub(crate) fn parts(&self) -> Parts {
        let mut parts = (*self.total).clone();
        parts.add(&self.recent);
        parts
    }
}

fn losses(tally: &Tally) -> BTreeMap<&'static str, u64> {
    let mut losses = BTreeMap::new();
    for (name, count) in tally.losses() {
        *losses.entry(name).or_default() += count;
    }
    losses
}
