//! The measurements of each second, by which promises are judged.
//!
//! Why: a whole snapshot copies every class's histogram; a look must cost little, as there is one every second.
//! From: one look between two turns; delays since the last one are handed over, and add up for the counters.
//! Not here: the judgement (`slo`).
//! Invariant: a look costs time in proportion to tenants, and next to none for a tenant without packets.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_nic::IngressCounters;
use plimsoll_policy::TenantId;
use plimsoll_ports::{Counters, DropReason};
use plimsoll_slo::{InwardWatched, LaneWatched, Parts, Pulse, UplinkWatched, Watched};
use plimsoll_units::{Nanos, Span};

use super::Dataplane;
use super::drops::{Event, Tally};
use super::lane::Lane;
use super::mac_table::Mac;
use super::paced::Holder;

impl Dataplane {
    /// Takes the measurements, and begins delays anew. `pulse` is the thread's own.
    pub fn watch(&mut self, now: Nanos, pulse: Pulse) -> Watched {
        let inward = &self.inward;
        let lanes = (0..).zip(&mut self.tenants.lanes).filter_map(|(index, lane)| {
            let lane = lane.as_mut()?;
            lane.tenant?;
            Some(lane.watch(inward.seen(Some(index)).0))
        });
        let mut lanes: Vec<LaneWatched> = lanes.collect();
        self.watch_pairs(&mut lanes);
        self.watch_pressed(&mut lanes);
        let program = &self.policy.program;
        let uplink = &mut self.uplink;
        let counters = uplink.counters();
        let uplink = UplinkWatched {
            sent_bytes: counters.tx_bytes,
            received_bytes: counters.rx_bytes,
            full: uplink.tally.count(Event::UplinkFull),
            kernel_drops: counters.rx_drops[DropReason::KernelFull as usize],
            away: uplink.is_away(),
        };
        let (program, rates) = (Arc::clone(program), Arc::clone(&self.policy.rates));
        Watched { at: now, program, rates, lanes, uplink, pulse }
    }

    /// The tenants elsewhere whose limits held tenants here.
    fn watch_pairs(&self, lanes: &mut [LaneWatched]) {
        let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.map.is_controlled()) else { return };
        for (tenant, stated) in (0..).map(TenantId).zip(&self.policy.program.tenants) {
            let Some(lane) = lanes.iter_mut().find(|lane| lane.name == stated.name) else { continue };
            for (vm, peer) in (0..).zip(fleet.map.members.vms()) {
                let limits = fleet.map.pair(tenant, vm).into_iter().flatten();
                let parked: u64 = limits.map(|limit| self.scheduler.nic.limit_counters(limit).parked).sum();
                if parked > 0 {
                    lane.pressed
                        .insert(format!("{} at {}", peer.name, fleet.map.hosts[peer.host].name), parked);
                }
            }
        }
    }

    /// Who holds flows of tenants here by backpressure.
    fn watch_pressed(&self, lanes: &mut [LaneWatched]) {
        for lane in self.tenants.lanes.iter().flatten().filter(|lane| !lane.pressed.is_empty()) {
            let Some(watched) = lanes.iter_mut().find(|watched| watched.name == lane.name) else { continue };
            for (holder, &times) in &lane.pressed {
                let named = |mac: Mac| {
                    let map = &self.fleet.as_ref()?.map;
                    let peer = &map.members.vms()[map.vm(lane.network, mac)? as usize];
                    Some(format!("{} at {} (backpressure)", peer.name, map.hosts[peer.host].name))
                };
                let who = match holder {
                    Holder::Host(mac) => named(*mac),
                    Holder::Receiver => Some("a receiver that reports marks (ECN)".to_owned()),
                    Holder::Here => Some("backpressure of this host".to_owned()),
                };
                if let Some(who) = who {
                    watched.pressed.insert(who, times);
                }
            }
        }
    }

    /// Sets the delays that count as late, for each tenant: half of each of its targets.
    pub(super) fn set_halves(&mut self) {
        for lane in self.tenants.all() {
            let slo = lane.tenant.map(|tenant| &self.policy.program.tenants[tenant.0 as usize].slo);
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
            inward: InwardWatched {
                bytes: ingress.bytes,
                queue_full: ingress.drops,
                over_max: ingress.over_max,
                cpu: ingress.cpu,
                ..InwardWatched::default()
            },
            parts: self.take_parts(),
            held_back: self.tally.count(Event::TenantAtCap) + self.tally.count(Event::BuffersInUse),
            away: self.port.is_none(),
            ..LaneWatched::default()
        }
    }

    /// Takes the delays since the last look; they are part of the totals from now on.
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

    /// All delays measured so far.
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
