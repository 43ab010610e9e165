//! The counters of several engines as one engine's.
//!
//! Why: an operator's classes and tenants are the same on all threads.
//! Not here: asking the threads (`several`), names (`stats`).
//! Invariant: what is counted once on some thread is counted once in the sum.

use std::collections::BTreeMap;

use plimsoll_nic::{EngineStats, IngressCounters, PcieWrites};
use plimsoll_slo::{InwardWatched, LaneWatched, Parts, Watched};

use super::install::add_class;
use super::lane::sum;
use super::snapshot::{NodeNow, PortNow, Snapshot};

impl Snapshot {
    /// Adds the counters of another thread's engine, under the same policy.
    pub fn add(&mut self, other: Self) {
        self.at = self.at.max(other.at);
        for (node, other) in self.nodes.iter_mut().zip(other.nodes) {
            add_node(node, &other);
        }
        for (limit, other) in self.limits.iter_mut().zip(other.limits) {
            limit.packets += other.packets;
            limit.bytes += other.bytes;
            limit.waiting += other.waiting;
            limit.parked += other.parked;
            limit.released += other.released;
        }
        for lane in other.lanes {
            match self.lanes.iter_mut().find(|known| known.lane == lane.lane) {
                Some(known) => add_port(known, lane),
                None => self.lanes.push(lane),
            }
        }
        if other.uplink.port.is_none() {
            self.uplink.port = None; // one of its queues is lost
        }
        add_port(&mut self.uplink, other.uplink);
        let EngineStats { pulls, pairs, most_pairs, bad_doorbells, held } = other.engine;
        self.engine.pulls += pulls;
        self.engine.pairs += pairs;
        self.engine.most_pairs = self.engine.most_pairs.max(most_pairs);
        self.engine.bad_doorbells += bad_doorbells;
        self.engine.held += held;
        let PcieWrites { batches, lines, per_queue, senic_bytes, entries } = other.writes;
        self.writes.batches += batches;
        self.writes.lines += lines;
        self.writes.per_queue += per_queue;
        self.writes.senic_bytes += senic_bytes;
        self.writes.entries += entries;
        self.migrations += other.migrations;
        self.turns += other.turns;
        self.departures += other.departures;
    }
}

fn add_node(node: &mut NodeNow, other: &NodeNow) {
    add_class(&mut node.counters, &other.counters);
    node.counters.backlog_packets += other.counters.backlog_packets;
    node.counters.backlog_bytes += other.counters.backlog_bytes;
    match (&mut node.delays, &other.delays) {
        // Both histograms have the same bounds, so no value is out of range.
        (Some(delays), Some(other)) => drop(delays.add(other)),
        (delays @ None, Some(other)) => *delays = Some(other.clone()),
        (_, None) => {}
    }
}

/// The thread that serves a tenant's port tells its name and state; all threads count.
fn add_port(port: &mut PortNow, mut other: PortNow) {
    if port.thread.is_none() && other.thread.is_some() {
        core::mem::swap(port, &mut other);
    }
    port.down |= other.down;
    port.lacks = port.lacks.take().or(other.lacks);
    port.counters = sum(&port.counters, &other.counters);
    port.tally.add(&other.tally);
    port.flows += other.flows;
    port.buffers += other.buffers;
    port.held += other.held;
    port.waiting += other.waiting;
    add_ingress(&mut port.ingress, &other.ingress);
    add_parts(&mut port.parts, other.parts);
}

fn add_ingress(to: &mut IngressCounters, other: &IngressCounters) {
    to.packets += other.packets;
    to.bytes += other.bytes;
    to.drops += other.drops;
    to.over_max += other.over_max;
    to.served += other.served;
    to.served_bytes += other.served_bytes;
    to.backlogged.0 += other.backlogged.0;
    to.backlogged.1 += other.backlogged.1;
    to.waited += other.waited;
    to.longest = to.longest.max(other.longest);
    to.cpu += other.cpu;
    to.peak = to.peak.max(other.peak);
}

/// Adds the measurements of another thread, under the same policy.
pub(crate) fn add_watched(to: &mut Watched, other: Watched) {
    to.at = to.at.max(other.at);
    for lane in other.lanes {
        match to.lanes.iter_mut().find(|known| known.name == lane.name) {
            Some(known) => add_lane(known, lane),
            None => to.lanes.push(lane),
        }
    }
    let (uplink, other_uplink) = (&mut to.uplink, other.uplink);
    uplink.sent_bytes += other_uplink.sent_bytes;
    uplink.received_bytes += other_uplink.received_bytes;
    uplink.full += other_uplink.full;
    uplink.kernel_drops += other_uplink.kernel_drops;
    uplink.away |= other_uplink.away;
    to.pulse.cpu += other.pulse.cpu;
    to.pulse.no_core = to.pulse.no_core.zip(other.pulse.no_core).map(|(one, other)| one + other);
    to.pulse.late = to.pulse.late.max(other.pulse.late);
}

fn add_lane(to: &mut LaneWatched, other: LaneWatched) {
    to.offered_bytes += other.offered_bytes;
    to.received_bytes += other.received_bytes;
    add_counts(&mut to.losses, other.losses);
    add_counts(&mut to.pressed, other.pressed);
    to.strayed += other.strayed;
    let InwardWatched { bytes, nic_full, queue_full, over_max, cpu } = other.inward;
    to.inward.bytes += bytes;
    to.inward.nic_full += nic_full;
    to.inward.queue_full += queue_full;
    to.inward.over_max += over_max;
    to.inward.cpu += cpu;
    to.held_back += other.held_back;
    // Only the thread that serves its port has one.
    to.away &= other.away;
    add_parts(&mut to.parts, other.parts);
}

fn add_parts(to: &mut Option<Box<Parts>>, other: Option<Box<Parts>>) {
    match (to, other) {
        (Some(parts), Some(other)) => parts.add(&other),
        (parts @ None, other) => *parts = other,
        (_, None) => {}
    }
}

fn add_counts<K: Ord>(to: &mut BTreeMap<K, u64>, other: BTreeMap<K, u64>) {
    for (key, count) in other {
        *to.entry(key).or_default() += count;
    }
}
