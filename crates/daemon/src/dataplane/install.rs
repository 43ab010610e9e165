//! A reload in the engine's thread: between two batches, all at once.
//!
//! Why: changing a policy must lose no packet and reorder none.
//! From: `nic`'s install, and lanes that outlive their tenant until they are empty.
//! Not here: reading and checking the file, opening ports (`control`).
//! Invariant: what is queued stays queued, in its order; counters go on under the same names. A flow that has a queue of
//! its own keeps its order. One that shares a queue, for want of room in the flow table, keeps it unless the new policy
//! tells it apart from the first flow of that queue, whose place the queue gets, or puts several such queues into one
//! class whose flows take turns.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use plimsoll_control::FleetKeys;
use plimsoll_nic::{ClassCounters, LimitCounters};
use plimsoll_policy::{Addresses, Checked, Classifier, Grain, LimitId, NodeId, Program, Sources, TenantId};
use plimsoll_ports::Port;
use plimsoll_units::{Nanos, Span};

use super::class_delays::ClassDelays;
use super::drops::Event;
use super::fleet::{FleetMap, pair_of};
use super::flows::FlowSlots;
use super::heavy::{Counting, HeavyFlows};
use super::hosted::Hosted;
use super::lane::{Lane, Quota};
use super::leasing::Leasing;
use super::load::Sampled;
use super::mac_table::Owner;
use super::mediate::{Guest, Mediating};
use super::setup::{fleet_map, pull, untouched};
use super::standby::StandbyChange;
use super::units::{UnitWeights, Units};
use super::{Dataplane, Whose};
use crate::programs::unit_weights;
use crate::seats::Meeting;

/// A policy to put in force, with the ports that it brings.
#[derive(Debug)]
pub struct Change {
    /// The new policy.
    pub program: Arc<Program>,
    /// The files that it was made of.
    pub sources: Sources,
    /// Tenants whose port is new, with everything allocated.
    pub added: Vec<Lane>,
    /// Names of tenants whose port changes: what is here replaces what was.
    pub moved: Vec<(String, Port)>,
    /// TAPs that tenants hand to others as they are: by whom, and to whom, who is new, or has parted with its own.
    pub handed: Vec<(String, String)>,
    /// FlowSlots for the flows of tenants that may have more flows than before, by name.
    pub rooms: Vec<(String, FlowSlots)>,
    /// The addresses that each tenant's frames may bear, by the tenant's name.
    pub addresses: Vec<(String, Addresses)>,
    /// Descriptors in all.
    pub descriptors: u32,
    /// One in this many of the packets that a client has classified is classified again; 0: none.
    pub verify: u32,
    /// The fleet, if this host is in one.
    pub fleet: Option<FleetMap>,
    /// The fleet's keys, if they were read again.
    pub keys: Option<FleetKeys>,
    /// The tenants whose flows are counted, if any are.
    pub counted: Option<Counting>,
    /// New tables for their flows, where those in use do not fit.
    pub heavy: Option<Box<HeavyFlows>>,
    /// With these: the CPU time of what is watched, where another thread measures it.
    pub sampled: Option<Sampled>,
    /// The tenants whose connections are mediated.
    pub mediated: Vec<Mediating>,
    /// Tenants that have another program than before, or none any more, by name.
    pub programs: Vec<(String, Option<Box<Hosted>>)>,
    /// Coprocessors for programs, where the engine has none and the policy wants some.
    pub units: Option<Box<Units>>,
    /// Each tenant's weights at them.
    pub unit_weights: Vec<(String, UnitWeights)>,
    /// The tenants with `ecn: untouched`.
    pub untouched: Vec<String>,
    /// The uplink's second port.
    pub standby: StandbyChange,
    /// Tenants whose TAP has been configured anew, and whether it stays when it is closed.
    pub configured: Vec<(String, bool)>,
    /// The leases of several threads, for this one; `program` is then theirs.
    pub leases: Option<Box<Leasing>>,
    /// Where several threads wait for each other.
    pub meeting: Option<Arc<Meeting>>,
}

impl Change {
    /// The change from one policy to another, without the new ports.
    #[must_use]
    pub fn between(old: &Checked, new: &Checked) -> Self {
        let part =
            |checked: &Checked| Quota::of(checked.config.engine.queues, checked.program.tenants.len()).flows;
        let stays = |name: &str| old.program.tenants.iter().any(|tenant| tenant.name == name);
        let grows = part(new) > part(old);
        let mut program = new.program.clone();
        let fleet = fleet_map(new, &mut program);
        let configured = new.config.tenants.iter().filter_map(|tenant| {
            let before = old.config.tenants.iter().find(|before| before.name == tenant.name)?;
            (before.port == tenant.port && before.interface != tenant.interface)
                .then(|| (tenant.name.clone(), tenant.interface.persist))
        });
        let configured = configured.collect();
        let growing = new.program.tenants.iter().filter(|tenant| grows && stays(&tenant.name));
        Self {
            program: Arc::new(program),
            sources: new.sources.clone(),
            added: Vec::new(),
            moved: Vec::new(),
            handed: Vec::new(),
            rooms: growing.map(|tenant| (tenant.name.clone(), FlowSlots::new(part(new)))).collect(),
            addresses: new
                .config
                .tenants
                .iter()
                .map(|tenant| (tenant.name.clone(), tenant.addresses.clone()))
                .collect(),
            descriptors: new.config.engine.descriptors,
            verify: new.config.engine.verify,
            fleet,
            keys: None,
            counted: Counting::of(&new.config),
            heavy: None,
            sampled: None,
            mediated: Mediating::between(old, new),
            programs: Vec::new(),
            units: None,
            unit_weights: unit_weights(new),
            untouched: untouched(&new.config),
            standby: match &new.config.uplink {
                uplink if uplink.standby.is_some() => StandbyChange::Keep(uplink.hold_off),
                _ => StandbyChange::None,
            },
            configured,
            leases: None,
            meeting: None,
        }
    }
}

/// The result of a change, with what is to be freed outside the engine's thread.
#[derive(Debug, Default)]
pub struct Installed {
    /// Ports that are no longer used.
    pub closed: Vec<Port>,
    /// FlowSlots that flows have left.
    pub freed: Vec<FlowSlots>,
    /// Flow queues that were re-classified.
    pub flows: usize,
    /// Descriptors that still wait, under the new policy.
    pub kept: u32,
    /// Tables of flows that are no longer used.
    pub tables: Option<Box<HeavyFlows>>,
    /// Tables of tenants whose connections are no longer mediated.
    pub guests: Vec<Guest>,
    /// Programs that no tenant has any more.
    pub programs: Vec<Box<Hosted>>,
    /// The leases of the policy before.
    pub leases: Option<Box<Leasing>>,
    /// How long the change took in the engine's thread.
    pub took: Span,
}

/// Counters from earlier policies, for names of the policy in force only.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    pub(crate) classes: HashMap<String, ClassCounters>,
    pub(crate) limits: HashMap<String, LimitCounters>,
}

/// The nodes of a new policy that continue nodes of an earlier one.
struct Heirs<'a> {
    paths: HashMap<&'a str, usize>,
    /// Classes by their own names, for those that have moved in the tree: a name is unique among the operator's classes, and
    /// among each tenant's.
    names: HashMap<(Option<&'a str>, &'a str), usize>,
}

impl<'a> Heirs<'a> {
    fn of(next: &'a Program) -> Self {
        let paths = next.nodes.iter().map(|node| node.name.as_str()).zip(0..);
        let names = (0..next.nodes.len()).map(|index| (own_name(next, index), index));
        Self { paths: paths.collect(), names: names.collect() }
    }

    fn heir(&self, old: &Program, index: usize) -> Option<usize> {
        let path = old.nodes[index].name.as_str();
        self.paths.get(path).or_else(|| self.names.get(&own_name(old, index))).copied()
    }
}

/// The tenant that a node belongs to, and the last part of its path.
fn own_name(program: &Program, index: usize) -> (Option<&str>, &str) {
    let path = program.nodes[index].name.as_str();
    let id = NodeId(u32::try_from(index).unwrap_or(u32::MAX));
    let tenant = program.path(id).find_map(|id| program.node(id).tenant);
    let tenant = tenant.map(|TenantId(tenant)| program.tenants[tenant as usize].name.as_str());
    (tenant, path.rsplit('/').next().unwrap_or(path))
}

impl Dataplane {
    /// Puts the change in force.
    pub fn install(&mut self, change: Change, now: Nanos) -> Installed {
        let mut installed = Installed { kept: self.held(), ..Installed::default() };
        self.carry_counters(&change.program);
        self.rename_unsent(&change.program);
        // Before lanes are removed: only they know their queues.
        self.close_empty_queues();
        let (mut added, mut moved) = (change.added, change.moved);
        self.hand_over(&change.handed, &mut added, &mut moved);
        self.lift_leaving(&change.program, now);
        let rejoin = self.move_lanes(added, moved, &change.program, &mut installed, now);
        self.seat_lanes();
        installed.closed.extend(self.change_standby(change.standby, now));
        installed.freed = self.move_flows(change.rooms);
        self.share_queues();
        self.scheduler.nic.set_descriptors(change.descriptors);
        self.scheduler.nic.set_pull(pull(&change.program, self.uplink.segments));
        self.move_fleet(change.fleet, change.keys, now);
        self.state_addresses(change.addresses);
        self.note_configured(&change.configured);
        installed.flows = self.reclassify(&change.program, &change.sources, now);
        self.policy.classifier = Classifier::new(&change.program);
        self.count_known();
        self.inward.install(&change.program, &self.tenants.lanes, now);
        self.install_programs(change.programs, &mut installed, now);
        self.units = change.units.or_else(|| self.units.take());
        self.weigh_units(&change.unit_weights);
        if let Some(fleet) = &mut self.fleet {
            fleet.set_receivers(&self.tenants.lanes, &change.program, now);
        }
        self.policy.grain = Grain::of(&change.program);
        self.policy.program = change.program;
        self.policy.rates = Arc::default();
        self.hold_again(now);
        self.set_halves();
        if change.counted.is_none() || change.heavy.is_some() {
            self.watch_load(change.sampled);
        }
        installed.tables = self.count_anew(change.counted, change.heavy, now);
        installed.guests = self.mediate_anew(change.mediated, &change.untouched, now);
        self.policy.generation = self.policy.generation.wrapping_add(1);
        self.policy.changes += 1;
        self.verifying.sampler.set(change.verify);
        self.renew_rules();
        rejoin.into_iter().for_each(|index| self.rejoin(index, now));
        installed.leases = change.leases.and_then(|leases| self.lease_from(leases, now));
        installed
    }

    /// Takes TAPs from the lanes of those who hand them over, for those who get them.
    fn hand_over(
        &mut self,
        handed: &[(String, String)],
        added: &mut [Lane],
        moved: &mut Vec<(String, Port)>,
    ) {
        let mut taken = Vec::with_capacity(handed.len());
        for (from, to) in handed {
            let Some(index) = self.lane_of(from) else { continue };
            let lane = self.tenants.lanes[index as usize].as_mut().expect("it was just found");
            taken.extend(lane.detach().map(|port| (to.clone(), port)));
            // Other threads have it by another port now, or not at all.
            self.macs.release(Owner::Lane(index));
            self.macs.forget(Owner::Lane(index));
        }
        for (to, mut port) in taken {
            port.restart_counters();
            match added.iter_mut().find(|lane| lane.name == to) {
                Some(lane) => lane.attach(port),
                None => moved.push((to, port)),
            }
        }
    }

    /// Tenants' TAPs that were configured anew lack nothing, and stay when they are closed, or do not.
    fn note_configured(&mut self, changes: &[(String, bool)]) {
        for (name, persist) in changes {
            let mut lanes = self.tenants.all();
            let lane = lanes.find(|lane| lane.name == *name && lane.tenant.is_some());
            if let Some(port) = lane.and_then(|lane| lane.port.as_mut()) {
                port.set_whole();
                // It fails only for an interface that is gone, which the next probe finds.
                let _ = port.set_persist(*persist);
            }
        }
    }

    /// Counts the flows of other tenants; answers tables that are no longer used.
    fn count_anew(
        &mut self,
        counted: Option<Counting>,
        mut tables: Option<Box<HeavyFlows>>,
        now: Nanos,
    ) -> Option<Box<HeavyFlows>> {
        tables.iter_mut().for_each(|tables| tables.begin(now));
        let before = if counted.is_none() || tables.is_some() {
            self.watch_no_more(now);
            self.backpressure.heavy.take()
        } else {
            None
        };
        self.backpressure.heavy = tables.or_else(|| self.backpressure.heavy.take());
        if let (Some(heavy), Some(stated)) = (&mut self.backpressure.heavy, &counted) {
            heavy.set_tenants(stated, &self.tenants.lanes);
        }
        before
    }

    /// Attaches a port that had disappeared. Answers the port if it cannot be used.
    pub fn attach(&mut self, lane: Option<u32>, port: Port, now: Nanos) -> Option<Port> {
        match lane {
            None => self.attach_uplink(&Whose::Uplink, port, now),
            Some(index) => match self.tenants.lane(index) {
                Some(lane) if lane.port.is_none() && lane.is_served_here() => {
                    lane.attach(port);
                    if let Some(vnic) = lane.vnic() {
                        // The client accepts rules of the policy in force only.
                        vnic.set_generation(self.policy.generation.into());
                    }
                    lane.tally.event(Event::PortBack);
                    self.pin_addresses();
                    self.rejoin(index as usize, now);
                    None
                }
                _ => Some(port),
            },
        }
    }

    /// Attaches a port of the owner's that was lost. Answers the port if it cannot be used.
    pub fn attach_of(&mut self, whose: &Whose, port: Port, now: Nanos) -> Option<Port> {
        match whose {
            Whose::Tenant(name) => match self.lane_of(name) {
                Some(lane) => self.attach(Some(lane), port, now),
                // The tenant is gone.
                None => Some(port),
            },
            uplink if self.is_alone() => self.attach_uplink(uplink, port, now),
            uplink => self.replace_uplink(uplink, port, now),
        }
    }

    /// The owners that have no port.
    #[must_use]
    pub fn lacking(&self) -> Vec<Whose> {
        let lanes =
            self.tenants.lanes.iter().flatten().filter(|lane| lane.port.is_none() && lane.is_served_here());
        lanes.map(|lane| Whose::Tenant(lane.name.clone())).chain(self.lacking_uplink()).collect()
    }

    /// The lane of a tenant in force.
    #[must_use]
    pub fn lane_of(&self, name: &str) -> Option<u32> {
        let found =
            self.tenants.lanes.iter().position(|lane| {
                lane.as_ref().is_some_and(|lane| lane.name == name && lane.tenant.is_some())
            });
        found.and_then(|index| u32::try_from(index).ok())
    }

    /// Carries counters over, as the engine's begin anew with a policy: they stay under the same name. Counters of a node
    /// that the next policy does not have go to the node above it, so that sums never fall; a name that comes back begins
    /// anew.
    fn carry_counters(&mut self, next: &Program) {
        let heirs = Heirs::of(next);
        let past = core::mem::take(&mut self.accounts.carried.classes);
        let mut counted = self.scheduler.nic.all_class_counters();
        let mut delays = core::mem::replace(&mut self.accounts.delays, ClassDelays::new(next.nodes.len()));
        delays.settle();
        // Children come after their parents, so the loop runs backwards.
        for (index, node) in self.policy.program.nodes.iter().enumerate().rev() {
            if let Some(past) = past.get(&node.name) {
                add_class(&mut counted[index], past);
            }
            let (counters, measured) = (counted[index], delays.get(index).cloned());
            let above = node.parent.map(|NodeId(above)| above as usize);
            match (heirs.heir(&self.policy.program, index), above) {
                (None, Some(above)) => {
                    add_class(&mut counted[above], &counters);
                    measured.iter().for_each(|measured| delays.add(above, measured));
                }
                (heir, _) => {
                    // The root becomes the next policy's root, whatever its name.
                    let heir = heir.unwrap_or(0);
                    let to = self.accounts.carried.classes.entry(next.nodes[heir].name.clone()).or_default();
                    add_class(to, &counters);
                    measured.iter().for_each(|measured| self.accounts.delays.add(heir, measured));
                }
            }
        }
        self.carry_limits(next);
    }

    fn carry_limits(&mut self, next: &Program) {
        for (limit, counted) in self.policy.program.limits.iter().zip(self.scheduler.nic.all_limit_counters())
        {
            let carried = self.accounts.carried.limits.entry(limit.name.clone()).or_default();
            carried.packets += counted.packets;
            carried.bytes += counted.bytes;
            carried.parked += counted.parked;
            carried.released += counted.released;
        }
        let stay: HashSet<&str> = next.limits.iter().map(|limit| limit.name.as_str()).collect();
        self.accounts.carried.limits.retain(|name, _| stay.contains(name.as_str()));
    }

    /// Gives pulls that have not left the new policy's numbers: those of the same names, or the default class and no limit
    /// where the names are gone.
    fn rename_unsent(&mut self, next: &Program) {
        let old = &self.policy.program;
        for transmit in &mut self.scheduler.out[self.scheduler.sent..] {
            let class = &old.node(transmit.class).name;
            let found = next.find(class).filter(|&id| next.node(id).name == *class);
            transmit.class = found.unwrap_or(next.default_class);
            transmit.limited_by = transmit.limited_by.and_then(|limit| {
                let name = &old.limit(limit).name;
                (0..).map(LimitId).zip(&next.limits).find(|(_, limit)| limit.name == *name).map(|(id, _)| id)
            });
        }
    }

    /// Matches lanes to tenants by name. A tenant that is gone keeps its lane, without a port, until the lane is empty.
    /// Answers the lanes that have another port.
    fn move_lanes(
        &mut self,
        added: Vec<Lane>,
        moved: Vec<(String, Port)>,
        next: &Program,
        installed: &mut Installed,
        now: Nanos,
    ) -> Vec<usize> {
        let tenant = |name: &str| {
            let index = next.tenants.iter().position(|tenant| tenant.name == name)?;
            u32::try_from(index).ok().map(TenantId)
        };
        for (index, place) in self.tenants.lanes.iter_mut().enumerate() {
            let Some(lane) = place else { continue };
            lane.tenant = lane.tenant.and_then(|_| tenant(&lane.name));
            lane.source = None;
            if lane.tenant.is_none() {
                installed.programs.extend(lane.drop_program());
                self.inward.set_work(u32::try_from(index).unwrap_or(u32::MAX), false);
                installed.closed.extend(lane.detach());
                self.macs.release(Owner::Lane(u32::try_from(index).unwrap_or(u32::MAX)));
                if lane.pool.in_use() == 0 {
                    for opened in lane.opened.drain(..) {
                        self.scheduler.nic.close_queue(opened.queue);
                    }
                    *place = None;
                }
            }
        }
        let mut replaced = Vec::with_capacity(moved.len());
        for (name, port) in moved {
            let mut lanes = (0..).zip(&mut self.tenants.lanes).filter_map(|(index, lane)| {
                Some((index, lane.as_mut().filter(|lane| lane.tenant.is_some())?))
            });
            if let Some((index, lane)) = lanes.find(|(_, lane)| lane.name == name) {
                let last = lane.detach();
                last.iter().for_each(|last| lane.parted_from(last, now));
                installed.closed.extend(last);
                lane.attach(port);
                replaced.push(index);
            }
        }
        for lane in added {
            match self.tenants.lanes.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(Box::new(lane)),
                None => self.tenants.lanes.push(Some(Box::new(lane))),
            }
        }
        replaced
    }

    /// Moves flows into the rooms made for them; answers the rooms that are no longer used.
    fn move_flows(&mut self, rooms: Vec<(String, FlowSlots)>) -> Vec<FlowSlots> {
        let lanes = &mut self.tenants.lanes;
        let mut move_to = |(name, room): (String, FlowSlots)| {
            let lane = lanes.iter_mut().flatten().find(|lane| lane.name == name && lane.tenant.is_some());
            lane.map(|lane| lane.flows.move_to(room))
        };
        rooms.into_iter().filter_map(&mut move_to).collect()
    }

    /// Installs another map of the fleet: flows go to the same tenants, by their new numbers.
    fn move_fleet(&mut self, map: Option<FleetMap>, keys: Option<FleetKeys>, now: Nanos) {
        let (Some(fleet), Some(map)) = (&mut self.fleet, map) else { return };
        let old = fleet.install(map, keys, now);
        let renumber = |peer: &mut Option<u32>| {
            *peer = peer.and_then(|before| fleet.map.members.named(old.members.vms()[before as usize].vnic));
        };
        for lane in self.tenants.all() {
            lane.flows.iter_mut().for_each(|flow| renumber(&mut flow.peer));
            let shared = lane.overflow.values_mut().chain(&mut lane.leftover);
            shared.for_each(|shared| renumber(&mut shared.peer));
        }
    }

    /// Hands the policy to the engine, with the new place of each flow queue that holds packets.
    fn reclassify(&mut self, next: &Arc<Program>, sources: &Sources, now: Nanos) -> usize {
        let mut places = HashMap::new();
        for lane in self.tenants.all() {
            for flow in lane.flows.iter_mut() {
                flow.fields.tenant = lane.tenant;
                let mut placement = next.classify(&flow.fields);
                placement.limits.extend(pair_of(&self.fleet, lane.tenant, flow.peer));
                places.insert(flow.queue, placement);
            }
            for opened in &mut lane.opened {
                opened.fields.tenant = lane.tenant;
                opened.placement = next.classify(&opened.fields);
                places.insert(opened.queue, opened.placement.clone());
            }
            let shared: Vec<_> =
                (lane.overflow.drain().map(|(_, shared)| shared)).chain(lane.leftover.drain(..)).collect();
            for mut shared in shared {
                shared.fields.tenant = lane.tenant;
                let mut placement = next.classify(&shared.fields);
                placement.limits.extend(pair_of(&self.fleet, lane.tenant, shared.peer));
                places.insert(shared.queue, placement.clone());
                match lane.overflow.entry(placement) {
                    Entry::Vacant(place) => drop(place.insert(shared)),
                    Entry::Occupied(_) => lane.leftover.push(shared),
                }
            }
        }
        let unknown = next.place(next.default_class, &plimsoll_policy::Fields::default());
        let mut place = |queue| places.remove(&queue).unwrap_or_else(|| unknown.clone());
        self.scheduler.nic.install(next, sources, &mut place, now);
        self.nic_flows()
    }

    fn nic_flows(&self) -> usize {
        self.tenants.lanes.iter().flatten().map(|lane| lane.flows.len() as usize).sum()
    }
}

/// Adds counters of what has happened, but not of what waits.
pub(crate) fn add_class(to: &mut ClassCounters, counted: &ClassCounters) {
    to.packets += counted.packets;
    to.bytes += counted.bytes;
    for (to, counted) in to.refused.iter_mut().zip(counted.refused) {
        *to += counted;
    }
    to.marked += counted.marked;
    to.dropped += counted.dropped;
}
