//! Each host's NIC, or the limiter that is compared with it, and its way in.
//!
//! Why: a NIC is made from the policy file that the lab would give to `plimsoll run`.
//! From: `docs/scenarios.md`, "systems".
//! Not here: NICs, limiters and ways in at work (`host_nic`, `limiter`, `receive`).
//! Invariant: a host without tenants has no NIC and no limiter.

use plimsoll_nic::Station;
use plimsoll_policy::{Checked, Slo};
use plimsoll_scenario::{
    Host, Ingress, NicKind, Partition, Problem, ReceiveRing, Scenario, SharedCache, System, SystemKind,
    TransmitCompletions, Wiring, check_text,
};
use plimsoll_units::{BitRate, Nanos, Span};

use super::programs::ring_of;
use super::{Builder, lives_on};
use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::error::SimError;
use crate::fault::Spare;
use crate::flow::Flow;
use crate::host_nic::HostNic;
use crate::limiter::Limiter;
use crate::meter::Holdings;
use crate::receive::{Behind, Lines, Receive, Unit, Worked};
use crate::watch::Watch;
use crate::world::{Carrier, Source};

/// The shortest window in which promises are judged: the burst of a `max` is a millisecond's, and rates are judged to 5 %.
const LEAST_LOOK: Span = Span::millis(20);

impl Builder<'_> {
    /// When a host's guests get their descriptors back.
    pub(super) fn completions(&self, host: &Host) -> TransmitCompletions {
        self.system.completions.unwrap_or(host.transmit.completions)
    }

    pub(super) fn has_engine(&self, host: &Host) -> bool {
        self.system.kind.on_engine() && self.has_nic(host)
    }

    /// Whether a host has a limiter. Loom's "single queue" is HTB, too.
    fn has_limiter(&self, host: &Host) -> bool {
        !self.system.kind.on_engine() && self.system.kind != SystemKind::Fifo && self.has_nic(host)
    }

    /// Whether the system schedules a host's packets, by an engine or by another kind of scheduler.
    fn has_nic(&self, host: &Host) -> bool {
        let with_tenants = self.scenario.tenants.iter().any(|tenant| lives_on(tenant, host));
        host.nic == NicKind::Engine && with_tenants
    }

    /// Makes a host's way in.
    fn receive(
        &self,
        node: u32,
        host: &Host,
        ring: ReceiveRing,
        source: SourceId,
    ) -> Result<Box<Receive>, SimError> {
        let fair = self.has_engine(host) && self.system.ingress == Ingress::Fair;
        let chance = Chance::of(self.seed, &format!("receive {}", host.name));
        let (measure, end) = (&self.scenario.measure, Nanos::ZERO + self.scenario.duration);
        let worked = Worked::new(measure.window, end);
        if let Some(partition) = &host.partition {
            let pools = fair.then(|| self.stations(node, &ring));
            let at = (host, partition);
            return Ok(Box::new(self.partition(at, ring, source, pools.as_deref(), (chance, worked))?));
        }
        Ok(Box::new(if fair {
            Receive::fair(ring, source, &self.stations(node, &ring), chance, worked)
        } else {
            Receive::shared(ring, source, chance, worked)
        }))
    }

    /// The way in of a SmartNIC whose tenants have cores of their own; one more is for packets that are for no tenant.
    fn partition(
        &self,
        (host, partition): (&Host, &Partition),
        ring: ReceiveRing,
        source: SourceId,
        pools: Option<&[Station]>,
        chance: (Chance, Worked),
    ) -> Result<Receive, SimError> {
        let tenants = || self.scenario.tenants.iter();
        let cores_of =
            |name: &String| partition.cores.iter().find(|(of, _)| of == name).map_or(0, |(_, count)| *count);
        let cores: Vec<u32> = tenants().map(|tenant| cores_of(&tenant.name)).chain([1]).collect();
        let unit = partition.coprocessor.as_ref().map(|unit| {
            let call_of = |name: &String| {
                let call = unit.calls.iter().find(|(of, _)| of == name);
                call.map_or(0, |(_, size)| u32::try_from(size.as_u64()).unwrap_or(u32::MAX))
            };
            let calls = tenants().map(|tenant| call_of(&tenant.name)).chain([0]).collect();
            let weights = || tenants().map(|tenant| tenant.weight.max(1)).chain([1]).collect();
            Unit::new(unit, calls, &cores, self.system.limiter.then(weights))
        });
        let cache = partition.cache.as_ref().map(|cache| self.cache(host, cache, &cores)).transpose()?;
        Ok(Receive::partition(ring, source, &cores, pools, Behind { unit, cache }, chance))
    }

    /// A SmartNIC's cache, and where its tenants' memory lies.
    fn cache(&self, host: &Host, spec: &SharedCache, cores: &[u32]) -> Result<Lines, SimError> {
        let names = self.scenario.tenants.iter().map(|tenant| tenant.name.as_str());
        let tenants: Vec<(&str, u32)> = names.zip(cores.iter().copied()).collect();
        let chance = |name: &str| Chance::of(self.seed, &format!("cache {} {name}", host.name));
        Lines::new(spec, &tenants, self.system.stripes, chance).map_err(|no| {
            let (message, help) = no.said();
            let message = format!("host `{}`: {message}", host.name);
            self.wrong(Problem::new(host.place, message).label("no place in the cache").help(help))
        })
    }

    /// Each tenant's part of a receiving CPU: in proportion to its `max` where each has one and none a weight, else by weight;
    /// and the least part for packets that are for no tenant. A tenant with a delay target has the queue length that follows
    /// from it, the others that of the ring.
    fn stations(&self, node: u32, ring: &ReceiveRing) -> Vec<Station> {
        let tenants = &self.scenario.tenants;
        let mbps = |rate: BitRate| u32::try_from(rate.get() / 1_000_000).unwrap_or(u32::MAX).max(1);
        let by_max: Option<Vec<u32>> = tenants.iter().map(|tenant| tenant.max.map(mbps)).collect();
        let weights: Vec<u32> = tenants.iter().map(|tenant| tenant.weight).collect();
        let states_shares = self.shares.keys().any(|&(on, _)| on == node);
        let by_max = by_max.filter(|_| weights.iter().all(|&weight| weight == 1) && !states_shares);
        let weights = by_max.unwrap_or(weights);
        let station = |(index, weight)| {
            let slo = self.promised.get(&(node, index));
            let slots = slo.filter(|slo| !slo.delay.is_empty()).map_or(ring.slots, |slo| slo.slots);
            let weight = self.shares.get(&(node, index)).copied().unwrap_or(weight);
            Station { weight, slots, ceiling: slo.and_then(|slo| slo.ceiling) }
        };
        let rest = Station { weight: 1, slots: ring.slots, ceiling: None };
        (0..).zip(weights).map(station).chain([rest]).collect()
    }

    /// Notes the promises of a host's policy, and its programs' parts of the core.
    fn note_promises(&mut self, node: u32, checked: &Checked) {
        for (index, tenant) in (0..).zip(&self.scenario.tenants) {
            let known = checked.program.tenants.iter().find(|known| known.name == tenant.name);
            self.promised.extend(known.map(|known| ((node, index), known.slo.clone())));
            let stated = checked.config.tenants.iter().find(|stated| stated.name == tenant.name);
            let share = stated.and_then(|stated| stated.program.as_ref()?.cpu);
            self.shares.extend(share.map(|share| ((node, index), share)));
        }
    }

    /// The error for a host that does not have exactly one link.
    fn uplinks(&self, host: &Host, links: usize) -> SimError {
        let message = format!("host `{}` has {links} links, and a host with tenants has one", host.name);
        let problem = Problem::new(host.place, message).label("not one link");
        self.wrong(problem.help("give it one link, to a switch"))
    }

    /// The counters of the packets that a NIC holds, by workload.
    fn holdings(&self) -> Holdings {
        let whose = |flow: &Flow| {
            let mut whose = [None; 2];
            whose[usize::from(self.world.meters[flow.workload as usize].is_back())] = Some(flow.workload);
            whose
        };
        let flows = self.world.flows.iter().map(whose).collect();
        let (measure, duration) = (&self.scenario.measure, self.scenario.duration);
        Holdings::new(measure, duration, flows, self.scenario.workloads.len())
    }

    fn limiter(&mut self, node: u32, host: &Host) -> Result<(), SimError> {
        let (first, uplink) = self.way_out(node, host)?;
        self.one_model_of_the_bus(host)?;
        self.no_overlay(host)?;
        let line = self.topology.links[uplink as usize].spec.rate.unwrap_or(self.scenario.rate);
        let tenants = self.scenario.tenants_on(host, self.system);
        let chance = Chance::of(self.seed, &format!("limiter {}", host.name));
        let limiter = Box::new(Limiter::new(
            self.system,
            &tenants,
            (line, self.scenario.mtu),
            self.scenario.wake,
            chance,
        ));
        let source = self.source(Source::Carrier(node));
        self.world.nodes[node as usize].carrier = Carrier::Limiter { limiter, source, first, uplink };
        Ok(())
    }

    /// Refuses an overlay behind schedulers that do not count its headers.
    fn no_overlay(&self, host: &Host) -> Result<(), SimError> {
        if self.scenario.overlay == 0 {
            return Ok(());
        }
        let message = format!("system `{}` does not count the headers of an overlay", self.system.name);
        let problem = Problem::new(host.place, message).label("its host");
        Err(self
            .wrong(problem.help("leave `overlay` out, or compare systems on Plimsoll's engine and `fifo`")))
    }

    /// Refuses a bus before hardware that is a model of how it reads packets.
    fn one_model_of_the_bus(&self, host: &Host) -> Result<(), SimError> {
        let help = match self.system.kind {
            SystemKind::ClassFetch => "leave `pcie` out; the system's `fetch` says how it reads packets",
            SystemKind::RoundRobin | SystemKind::NodeShaping => {
                "leave `pcie` out, or compare the system in a file of its own"
            }
            _ => return Ok(()),
        };
        let Some(_) = host.pcie else { return Ok(()) };
        let message = format!(
            "host `{}` has `pcie`, and system `{}` schedules packets that its NIC has read",
            host.name, self.system.name
        );
        Err(self.wrong(Problem::new(host.place, message).label("a bus").help(help)))
    }

    /// A host's first link on the way out, and the uplink at its end.
    fn way_out(&self, node: u32, host: &Host) -> Result<(u32, u32), SimError> {
        let links: Vec<u32> = self.topology.out_of(node).collect();
        match *links.as_slice() {
            [uplink] => Ok((uplink, uplink)),
            [uplink, bus] if self.topology.links[bus as usize].to == node => Ok((bus, uplink)),
            _ => Err(self.uplinks(host, links.len())),
        }
    }

    /// Gives each host its way in, and each host with tenants its NIC.
    pub(super) fn host_nics(&mut self) -> Result<(), SimError> {
        for (node, host) in (0..).zip(&self.scenario.hosts) {
            let uplinks = if self.has_engine(host) { Some(self.way_out(node, host)?) } else { None };
            let checked = uplinks.map(|(_, uplink)| self.checked(host, uplink, self.system)).transpose()?;
            if let Some(checked) = &checked {
                self.note_promises(node, checked);
            }
            if let Some(ring) = ring_of(host, checked.as_ref()) {
                let source = self.source(Source::Receive(node));
                let mut receive = self.receive(node, host, ring, source)?;
                if let Some(checked) = &checked {
                    self.programs(node, host, checked, &mut receive)?;
                }
                self.world.nodes[node as usize].receive = Some(receive);
            }
            if self.has_limiter(host) {
                self.limiter(node, host)?;
            }
            if let (Some(checked), Some((first, _))) = (checked, uplinks) {
                self.threads_only(host, &checked)?;
                self.press(node, host, &checked.config)?;
                self.host_nic(node, host, checked, first)?;
            }
        }
        self.press_only_if_stated();
        Ok(())
    }

    /// Refuses what several engine threads do not do.
    fn threads_only(&self, host: &Host, checked: &Checked) -> Result<(), SimError> {
        let (threads, changes) = (checked.config.engine.threads, !self.scenario.timeline.is_empty());
        if threads == 1 || !self.controlled() && !changes {
            return Ok(());
        }
        let (what, help) = match changes {
            true => ("`timeline`", "leave the timeline out"),
            false => ("`control`", "state `control: off` for the system"),
        };
        let message =
            format!("host `{}` has {threads} engine threads, and {what} works with one only", host.name);
        Err(self.wrong(Problem::new(host.place, message).label("several threads").help(help)))
    }

    /// Makes a host's NIC before its link `first`, the NICs that take its place after restarts, and the counters by which its
    /// promises are judged.
    fn host_nic(&mut self, node: u32, host: &Host, mut checked: Checked, first: u32) -> Result<(), SimError> {
        if !self.system.accounting {
            let all = checked.config.engine.descriptors;
            checked.program.tenants.iter_mut().for_each(|tenant| tenant.descriptors = all);
        }
        let names: Vec<String> = self.scenario.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        let from_here = self.world.flows.iter().flat_map(Flow::legs).map(|(from, _)| from);
        let flows = from_here.filter(|end| end.node == node && end.tenant.is_some()).count() as u32;
        let source = self.source(Source::Carrier(node));
        let peers = if self.controlled() { self.pairs_from(node).len() as u32 } else { 0 };
        let mut own = host.clone();
        own.transmit.completions = self.completions(host);
        let wake = (self.scenario.wake, self.seed);
        let mut nic = Box::new(HostNic::new(&checked, &names, (flows, peers), &own, wake));
        if !self.system.accounting {
            nic.share_descriptors();
        }
        let spare = |_| {
            let receive = self.world.nodes[node as usize].receive.as_ref();
            let receive = receive.zip(ring_of(host, Some(&checked)));
            let mut receive =
                receive.map(|(old, ring)| self.receive(node, host, ring, old.source)).transpose()?;
            if let Some(receive) = &mut receive {
                self.programs(node, host, &checked, receive)?;
            }
            Ok(Spare { nic: Box::new(HostNic::new(&checked, &names, (flows, peers), &own, wake)), receive })
        };
        let spares: Result<Vec<Spare>, SimError> = (0..self.restarts(host)).map(spare).collect();
        self.world.faults.spares.insert(node, spares?);
        nic.holdings = self.scenario.measure.held.then(|| Box::new(self.holdings()));
        self.world.nodes[node as usize].carrier =
            Carrier::Nic { nic, source, first, reads: host.pcie.is_some(), traced: None };
        if checked.program.tenants.iter().any(|tenant| is_promised(&tenant.slo)) {
            let watch = Watch::new(self.scenario, &host.name, &checked.program);
            self.world.nodes[node as usize].watch = Some(Box::new(watch));
            self.world.look_at = self.world.next_look(Nanos::ZERO);
        }
        Ok(())
    }

    /// The policies of a system on all hosts that have an engine.
    pub(super) fn policies_of(&self, system: &System) -> Result<Vec<(u32, Checked)>, SimError> {
        let hosts = (0..).zip(&self.scenario.hosts).filter(|(_, host)| self.has_engine(host));
        hosts
            .map(|(node, host)| {
                let (_, uplink) = self.way_out(node, host)?;
                Ok((node, self.checked(host, uplink, system)?))
            })
            .collect()
    }

    fn checked(&self, host: &Host, uplink: u32, system: &System) -> Result<Checked, SimError> {
        let rate = self.topology.links[uplink as usize].spec.rate;
        let wiring = Wiring { uplink: "memory".to_owned(), rate, virtual_time: true, ..Wiring::default() };
        let text = self.scenario.policy_file_of(host, system, &wiring);
        check_text("policy", text).map_err(|errors| SimError::Policy {
            system: system.name.clone(),
            host: host.name.clone(),
            text: errors.render(false),
        })
    }
}

/// Whether a tenant has a promise.
fn is_promised(slo: &Slo) -> bool {
    let stated = [slo.egress.min, slo.egress.max, slo.ingress.min, slo.ingress.max];
    stated.iter().any(Option::is_some) || !slo.delay.is_empty()
}

/// The length of the windows in which promises are judged: as many windows of `measure` as make at least [`LEAST_LOOK`].
pub(super) fn look_every(scenario: &Scenario) -> Span {
    let window = scenario.measure.window.as_u64().max(1);
    Span::ns(window.saturating_mul(LEAST_LOOK.as_u64().div_ceil(window)))
}
