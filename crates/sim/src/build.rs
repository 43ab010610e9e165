//! From a scenario to a world at its first moment.
//!
//! Why: all that allocates, and each mistake that can be found, comes before the first event.
//! From: `docs/scenarios.md`. Without links of its own a scenario has the lab's: each host behind a link of `rate`,
//! with every destination at its other end and a free way back.
//! Not here: the run (`world`).
//! Invariant: what each workload draws follows from the seed and its name, whatever else there is.

mod flows;
mod islands;
mod links;
mod nics;
mod press;
mod programs;
mod steering;
mod traffic;

use std::collections::{BTreeMap, VecDeque};

use plimsoll_policy::Slo;
use plimsoll_scenario::{Change, Host, Problem, Scenario, Setting, System, SystemKind, Tenant};
use plimsoll_slo::DropSeconds;
use plimsoll_units::Nanos;

use crate::agenda::{Agenda, SourceId};
use crate::balance::Balance;
use crate::cores::Core;
use crate::error::SimError;
use crate::fault::Faults;
use crate::link::Link;
use crate::packet_pool::PacketPool;
use crate::series::Sampler;
use crate::source_ports::SourcePorts;
use crate::topology::{Edge, Topology};
use crate::trace::{Trace, Tracer};
use crate::world::{Carrier, LinkEnd, Node, Notices, Source, Way, World};

/// The world of one system.
pub(crate) fn world(
    scenario: &Scenario,
    system: &System,
    seed: u64,
    trace: Option<&Trace>,
    samples: Option<usize>,
) -> Result<World, SimError> {
    let topology = links::topology(scenario, system);
    let mut builder = Builder::new(scenario, system, topology, seed);
    builder.cores();
    for workload in &scenario.workloads {
        builder.workload(workload)?;
    }
    builder.host_nics()?;
    if builder.controlled() {
        builder.control();
    }
    let sampler = samples.map(|most| builder.sampler(most));
    builder.agenda(trace.is_some() || sampler.is_some())?;
    if let Some(sampler) = sampler {
        builder.world.agenda.set(sampler.source, Nanos::ZERO);
        builder.world.sampler = Some(sampler);
    }
    if let Some(trace) = trace {
        builder.trace(trace)?;
    }
    Ok(builder.world)
}

struct Builder<'a> {
    scenario: &'a Scenario,
    system: &'a System,
    topology: Topology,
    seed: u64,
    world: World,
    /// Cores by their host and name, where their work takes time.
    cores: BTreeMap<(String, String), u32>,
    promised: Promised,
    /// Programs' parts of the core that their policies state, by host and tenant.
    shares: BTreeMap<(u32, u32), u32>,
}

impl<'a> Builder<'a> {
    fn new(scenario: &'a Scenario, system: &'a System, topology: Topology, seed: u64) -> Self {
        let mut sources = Vec::new();
        let mut links = Vec::new();
        for (index, edge) in (0..).zip(&topology.links) {
            let from_host = (edge.from as usize) < scenario.hosts.len();
            let kind = match (from_host, edge.from == edge.to) {
                (true, true) => Way::Bus,
                (true, false) => Way::Uplink,
                (false, _) => Way::Onward,
            };
            links.push(LinkEnd {
                link: Link::new(edge.spec.clone(), &edge.name, seed),
                to: edge.to,
                source: sources.len() as SourceId,
                kind,
                full: "queue full",
                traced: None,
            });
            sources.push(Source::Link(index));
        }
        let node = |name: &String| Node {
            name: name.clone(),
            carrier: Carrier::Plain,
            receive: None,
            down: false,
            watch: None,
            press: None,
            press_source: 0,
            drop_seconds: DropSeconds::default(),
        };
        let world = World {
            now: Nanos::ZERO,
            agenda: Agenda::default(),
            sources,
            links,
            packets: PacketPool::default(),
            nodes: topology.nodes.iter().map(node).collect(),
            pressed: false,
            programmed: false,
            routes: topology.routes(),
            balance: Balance::new(
                system.load_balancing.unwrap_or(scenario.load_balancing),
                topology.nodes.iter(),
                seed,
            ),
            flows: Vec::new(),
            ports: SourcePorts::default(),
            connections: Vec::new(),
            settings: Vec::new(),
            spare: Vec::new(),
            retired: Vec::new(),
            apps: Vec::new(),
            meters: Vec::new(),
            tallies: Vec::new(),
            tracer: None,
            sampler: None,
            workloads: Vec::new(),
            events: 0,
            hops: 0,
            offered: Vec::new(),
            local: VecDeque::new(),
            completed: Vec::new(),
            cores: Vec::new(),
            control: None,
            tenants: scenario.tenants.len() as u32,
            timeline: Vec::new(),
            policies: Vec::new(),
            timeline_source: 0,
            encapsulated: false,
            faults: Faults::default(),
            stalled: Vec::new(),
            spoofed: Vec::new(),
            claims: Vec::new(),
            metered: Vec::new(),
            marked: Vec::new(),
            changed: Vec::new(),
            notices: Notices::default(),
            names: scenario.tenants.iter().map(|tenant| tenant.name.clone()).collect(),
            look_at: Nanos::new(u64::MAX),
            look_every: nics::look_every(scenario),
            look_until: Nanos::ZERO + scenario.duration,
        };
        Self {
            scenario,
            system,
            topology,
            seed,
            world,
            cores: BTreeMap::new(),
            promised: Promised::new(),
            shares: BTreeMap::new(),
        }
    }

    /// Makes the cores of every host that states their costs. Parallel token buckets take time there.
    fn cores(&mut self) {
        let scenario = self.scenario;
        for tenant in &scenario.tenants {
            for home in &tenant.homes {
                let host = scenario.hosts.iter().find(|host| host.name == home.host);
                let Some(cost) = host.and_then(|host| host.cores) else { continue };
                let key = (home.host.clone(), core_of(tenant));
                if self.cores.contains_key(&key) {
                    continue;
                }
                let index = self.world.cores.len() as u32;
                let mut core = Core::new(cost, self.source(Source::Core(index)));
                if self.system.kind == SystemKind::Ptb {
                    core.burden(self.system.model.cost);
                }
                self.world.cores.push(core);
                self.cores.insert(key, index);
            }
        }
    }

    fn source(&mut self, source: Source) -> SourceId {
        self.world.sources.push(source);
        self.world.sources.len() as SourceId - 1
    }

    fn wrong(&self, problem: Problem) -> SimError {
        SimError::Scenario(Box::new(self.scenario.wrong(problem)))
    }

    /// A sampler of all connections and links that keeps about `most` samples.
    fn sampler(&mut self, most: usize) -> Box<Sampler> {
        let hosts = self.scenario.hosts.len();
        let carrier = |edge: &Edge| {
            let node = edge.from as usize;
            (node < hosts && edge.from != edge.to).then_some(edge.from)
        };
        let senders = self.topology.links.iter().map(carrier).collect();
        let names = self.topology.links.iter().map(|edge| edge.name.clone());
        let (interval, end) = (self.scenario.series_interval(), Nanos::ZERO + self.scenario.duration);
        let source = self.world.sources.len() as SourceId;
        self.world.sources.push(Source::Sample);
        Box::new(Sampler::new(source, (interval, end), most, names, senders))
    }

    /// Fills the agenda with the first moment of each source. `watched`: packets or samples of all hosts are written in one order.
    fn agenda(&mut self, watched: bool) -> Result<(), SimError> {
        let nodes = &self.world.nodes;
        self.world.pressed = nodes.iter().any(|node| node.press.is_some());
        let mut receives = nodes.iter().filter_map(|node| node.receive.as_ref());
        self.world.programmed = receives.any(|receive| receive.programs().next().is_some());
        self.world.timeline_source = self.source(Source::Timeline);
        self.world.faults.source = self.source(Source::Fault);
        self.world.notices.source = self.source(Source::Notice);
        self.faults();
        let islands = self.islands(watched);
        self.world.agenda = Agenda::new(self.world.sources.len(), islands.count);
        let firsts = (0..).zip(&self.world.sources).filter_map(|(source, what)| match what {
            Source::App(index, 0) => Some((source, *index as usize)),
            _ => None,
        });
        for (source, index) in firsts {
            self.world.agenda.give_turn(islands.of_workload(&self.world, index));
            self.world.agenda.set(source, Nanos::ZERO + self.scenario.workloads[index].start);
        }
        for node in &self.world.nodes {
            let first = node.press.as_ref().and_then(|press| press.next(|_| 0, Nanos::ZERO));
            if let Some(first) = first {
                self.world.agenda.set(node.press_source, first);
            }
        }
        if let Some(control) = &self.world.control {
            control.moments().for_each(|(source, at)| self.world.agenda.set(source, at));
        }
        let fault = self.world.faults.steps.last().map(|&(at, _)| at);
        self.world.agenda.keep(self.world.faults.source, fault);
        self.timeline()
    }

    /// Schedules the changes of the scenario's `timeline`; only Plimsoll's policy has the names in it.
    fn timeline(&mut self) -> Result<(), SimError> {
        let changes = &self.scenario.timeline;
        let Some(first) = changes.first().filter(|_| self.system.kind == SystemKind::Plimsoll) else {
            return Ok(());
        };
        if let Some(policy) = changes.iter().find(|change| change.setting == Setting::Policy) {
            self.policies(policy)?;
        }
        for change in changes.iter().filter(|change| change.setting != Setting::Policy) {
            let knows = |node: &Node| match &node.carrier {
                Carrier::Nic { nic, .. } => nic.knows(change),
                _ => false,
            };
            if !self.world.nodes.iter().any(knows) {
                let message = format!(
                    "the policy of system `{}` has no `{}` to change so",
                    self.system.name, change.name
                );
                let problem = Problem::new(change.place, message).label("unknown");
                return Err(self.wrong(problem.help("name a limit that it states, or a class")));
            }
        }
        let timer = self.world.timeline_source;
        self.world.agenda.set(timer, Nanos::ZERO + first.at);
        self.world.timeline = changes.iter().rev().cloned().collect();
        Ok(())
    }

    /// Checks the policies that the timeline puts in force.
    fn policies(&mut self, first: &Change) -> Result<(), SimError> {
        let restarts = self.scenario.hosts.iter().any(|host| self.restarts(host) > 0);
        let beside = match (self.controlled(), restarts) {
            (true, _) => {
                Some("`control` sets limits between hosts, which a change of the policy does not keep")
            }
            (_, true) => Some("a daemon that is restarted begins with the policy that the file has"),
            _ => None,
        };
        if let Some(message) = beside {
            let problem = Problem::new(first.place, message).label("another policy");
            return Err(self.wrong(problem.help("change limits, weights or rates, or leave one of them out")));
        }
        let changes = self.scenario.timeline.iter().rev().filter(|change| change.setting == Setting::Policy);
        for change in changes {
            let named = self.scenario.systems.iter().find(|system| system.name == change.name);
            let system = named.expect("the reader has looked it up");
            let policies = self.policies_of(system)?;
            self.world.policies.push(policies);
        }
        Ok(())
    }

    /// Traces links by name, or every host's uplink. Behind an engine, packets are traced when they leave, with its decision;
    /// on other links when they arrive.
    fn trace(&mut self, trace: &Trace) -> Result<(), SimError> {
        let links: Vec<&Edge> = self.topology.links.iter().filter(|edge| edge.from != edge.to).collect();
        let uplinks = || links.iter().filter(|edge| (edge.from as usize) < self.scenario.hosts.len());
        let names: Vec<String> = match trace.at.as_slice() {
            [] => uplinks().map(|edge| edge.name.clone()).collect(),
            names => names.to_vec(),
        };
        for (interface, name) in (0..).zip(&names) {
            let known = || links.iter().map(|edge| edge.name.clone()).collect::<Vec<_>>().join("`, `");
            let edge = links.iter().find(|edge| edge.name == *name);
            let edge = edge.ok_or_else(|| SimError::NoLink { name: name.clone(), known: known() })?;
            match &mut self.world.nodes[edge.from as usize].carrier {
                Carrier::Nic { traced, .. } => *traced = Some(interface),
                Carrier::Plain | Carrier::Limiter { .. } => {
                    let place = self.topology.links.iter().position(|edge| edge.name == *name);
                    self.world.links[place.expect("found above")].traced = Some(interface);
                }
            }
        }
        let tracer = Tracer::create(&trace.file, &names, self.world.flows.len());
        let failed = |source| SimError::Trace { file: trace.file.clone(), source };
        self.world.tracer = Some(Box::new(tracer.map_err(failed)?));
        Ok(())
    }
}

/// The promises of the policies, by host and tenant.
type Promised = BTreeMap<(u32, u32), Slo>;

/// The name of a tenant's core, on each of its hosts.
fn core_of(tenant: &Tenant) -> String {
    tenant.core.clone().unwrap_or_else(|| tenant.name.clone())
}

fn lives_on(tenant: &Tenant, host: &Host) -> bool {
    tenant.homes.iter().any(|home| home.host == host.name)
}
