//! From a scenario to a world at its first moment.
//!
//! Why: everything that allocates, and everything that can be wrong, comes before the first event.
//! From: `docs/scenarios.md`. Without links of its own a scenario has the lab's: each host behind a link of `rate`,
//! with every destination at its other end and a free way back.
//! Not here: what happens then (`world`).
//! Invariant: what each workload draws follows from the seed and its name, whatever else there is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use plimsoll_control::Envelope;
use plimsoll_nic::Station;
use plimsoll_policy::{Checked, Slo, weight_of};
use plimsoll_scenario::{
    Completions, Congestion, Control, ControlLevel, Home, Host, HostNic, Ingress, KeyValueSizes, Kind, Pace,
    Problem, ReceiveRing, Role, Scenario, System, SystemKind, Tenant, Turns, Wiring, Workload,
};
use plimsoll_units::{BitRate, Bytes, NS_PER_SEC, Nanos, Span};

use crate::agenda::{Agenda, SourceId};
use crate::chance::Chance;
use crate::control;
use crate::cores::Core;
use crate::engine::Engine;
use crate::error::SimError;
use crate::fault::{Deed, Faults, Spare};
use crate::limiter::Limiter;
use crate::link::{Link, LinkSpec, Overhead};
use crate::meter::{Holdings, Meter};
use crate::packet::{SHORTEST, UDP_HEADERS};
use crate::receive::Receive;
use crate::run::Trace;
use crate::tcp::{self, Connection};
use crate::topology::{Edge, Topology};
use crate::trace::Tracer;
use crate::traffic::{App, Bulk, Job, Probe, Rhythm, Rounds, Rpc, Sizes, Udp};
use crate::watch::Watch;
use crate::world::{Carrier, End, Flow, LinkEnd, NO_LINK, Node, Socket, Source, Tally, Way, World};

/// The place beyond the uplinks, where destinations are.
const BEYOND: &str = "beyond the uplinks";

/// How long a link's light takes when the file does not say: some metres and a switch's ports.
const DELAY: Span = Span::micros(5);

/// Linux's default for a device (`txqueuelen`): what the one queue of `fifo` holds.
const FIFO_PACKETS: u32 = 1_000;

/// Where clients' source ports are drawn from, as the lab does.
const SOURCE_PORTS: (u16, u16) = (32_768, 60_999);

/// Ethernet, IPv4 and TCP headers with timestamps.
const TCP_HEADERS: u32 = 20 + 32;

/// The longest segment that a guest hands over to be cut: what an IP packet can hold.
const LARGEST: Bytes = Bytes::new(65_535 - TCP_HEADERS as u64);

/// The world of one system.
pub(crate) fn world(
    scenario: &Scenario,
    system: &System,
    seed: u64,
    trace: Option<&Trace>,
) -> Result<World, SimError> {
    let topology = topology(scenario, system);
    let mut builder = Builder::new(scenario, system, topology, seed);
    builder.cores();
    for workload in &scenario.workloads {
        builder.workload(workload)?;
    }
    builder.engines()?;
    if let Some(trace) = trace {
        builder.trace(trace)?;
    }
    Ok(builder.world)
}

/// The file's links; without any, each host behind one, with all destinations at its other end.
fn topology(scenario: &Scenario, system: &System) -> Topology {
    let hosts = scenario.hosts.iter().map(|host| host.name.clone());
    let mut topology =
        Topology { nodes: hosts.chain(scenario.switches.iter().cloned()).collect(), links: Vec::new() };
    if scenario.links.is_empty() {
        topology.nodes.push(BEYOND.to_owned());
        for (host, name) in (0..).zip(scenario.hosts.iter().map(|host| &host.name)) {
            implied(&mut topology, host, name, scenario, system);
        }
        buses(&mut topology, scenario);
        return topology;
    }
    topology.nodes.extend(scenario.destinations.iter().map(|place| place.name.clone()));
    for link in &scenario.links {
        let node = |name: &str| topology.node(name).expect("checked when read");
        let (from, to) = (node(&link.from), node(&link.to));
        let spec = LinkSpec {
            rate: Some(link.rate),
            delay: link.delay,
            overhead: Overhead::Frame(0),
            queue: link.queue.as_u64(),
            packets: u32::MAX,
            ecn: link.ecn.map(Bytes::as_u64),
            loss: link.loss,
        };
        let back = Edge { name: format!("{} back", link.name), from: to, to: from, spec: spec.clone() };
        topology.links.push(Edge { name: link.name.clone(), from, to, spec });
        topology.links.extend(link.both.then_some(back));
    }
    buses(&mut topology, scenario);
    topology
}

/// The way of a packet's bytes from the host's memory to its NIC, where the file says what that is.
fn buses(topology: &mut Topology, scenario: &Scenario) {
    for (host, (name, bus)) in (0..)
        .zip(scenario.hosts.iter().map(|host| (&host.name, host.pcie)))
        .filter_map(|(n, (name, bus))| Some((n, (name, bus?))))
    {
        let (size, bytes) = (small(bus.tlp).max(1), small(bus.overhead));
        // Each read request brings one part, and waits its latency for it.
        let parts = u64::from(bus.outstanding) * NS_PER_SEC / bus.latency.as_u64().max(1);
        let most = BitRate::new(parts.saturating_mul(u64::from(size + bytes) * 8)).unwrap_or(bus.rate);
        let spec = LinkSpec {
            rate: Some(bus.rate.min(most)),
            delay: bus.latency,
            overhead: Overhead::Part { size, bytes },
            queue: u64::MAX,
            packets: u32::MAX,
            ecn: None,
            loss: 0.0,
        };
        topology.links.push(Edge { name: format!("{name} pcie"), from: host, to: host, spec });
    }
}

fn small(bytes: Bytes) -> u32 {
    u32::try_from(bytes.as_u64()).unwrap_or(u32::MAX)
}

/// A link of the scenario's rate to where all destinations are. The way back is free where there is one host, as in the
/// lab; between several hosts it is a link, too.
fn implied(topology: &mut Topology, host: u32, name: &str, scenario: &Scenario, system: &System) {
    let beyond = topology.nodes.len() as u32 - 1;
    let free = LinkSpec {
        rate: None,
        delay: DELAY,
        overhead: Overhead::Frame(0),
        queue: u64::MAX,
        packets: u32::MAX,
        ecn: None,
        loss: 0.0,
    };
    let queued = LinkSpec { rate: Some(scenario.rate), packets: FIFO_PACKETS, ..free.clone() };
    let paced = LinkSpec { packets: u32::MAX, ..queued.clone() };
    let uplink = if system.kind == SystemKind::Fifo { queued.clone() } else { paced };
    let back = if scenario.hosts.len() == 1 { free } else { queued };
    topology.links.push(Edge { name: name.to_owned(), from: host, to: beyond, spec: uplink });
    topology.links.push(Edge { name: format!("{name} back"), from: beyond, to: host, spec: back });
}

struct Builder<'a> {
    scenario: &'a Scenario,
    system: &'a System,
    topology: Topology,
    seed: u64,
    world: World,
    /// Cores by their host and name, where what they do takes time.
    cores: BTreeMap<(String, String), u32>,
    promised: Promised,
}

impl<'a> Builder<'a> {
    fn new(scenario: &'a Scenario, system: &'a System, topology: Topology, seed: u64) -> Self {
        let mut sources = Vec::new();
        let mut links = Vec::new();
        for (index, edge) in (0..).zip(&topology.links) {
            let chance = Chance::of(seed, &format!("link {}", edge.name));
            let from_host = (edge.from as usize) < scenario.hosts.len();
            let kind = match (from_host, edge.from == edge.to) {
                (true, true) => Way::Bus,
                (true, false) => Way::Uplink,
                (false, _) => Way::Onward,
            };
            links.push(LinkEnd {
                link: Link::new(edge.spec.clone(), chance),
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
        };
        let world = World {
            now: Nanos::ZERO,
            agenda: Agenda::default(),
            sources,
            links,
            nodes: topology.nodes.iter().map(node).collect(),
            routes: topology.routes(),
            flows: Vec::new(),
            connections: Vec::new(),
            apps: Vec::new(),
            meters: Vec::new(),
            tallies: Vec::new(),
            tracer: None,
            events: 0,
            hops: 0,
            offered: Vec::new(),
            local: VecDeque::new(),
            completed: Vec::new(),
            cores: Vec::new(),
            control: None,
            weights: Vec::new(),
            tenants: scenario.tenants.len() as u32,
            timeline: Vec::new(),
            timeline_source: 0,
            encapsulated: false,
            faults: Faults::default(),
            stalled: Vec::new(),
            spoofed: Vec::new(),
            names: scenario.tenants.iter().map(|tenant| tenant.name.clone()).collect(),
            look_at: Nanos::new(u64::MAX),
            look_every: look_every(scenario),
            look_until: Nanos::ZERO + scenario.duration,
        };
        Self { scenario, system, topology, seed, world, cores: BTreeMap::new(), promised: Promised::new() }
    }

    /// The cores of every host that says what they need. Parallel token buckets are worked on there.
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

    fn chance(&self, workload: &Workload, what: &str) -> Chance {
        Chance::of(self.seed, &format!("workload {} {what}", workload.name))
    }

    /// A workload with its flows and timers.
    fn workload(&mut self, workload: &Workload) -> Result<(), SimError> {
        let index = self.world.apps.len() as u32;
        let role = role(&workload.kind);
        let pairs = self.ends(workload, role);
        for (client, server) in &pairs {
            self.routed(workload, *client, *server)?;
        }
        // Among a tenant's own vNICs each talks to each.
        let all_to_all = workload.to == workload.tenant;
        let count = flows(&workload.kind) * if all_to_all { pairs.len() as u32 } else { 1 };
        let mut ports = Ports { chance: self.chance(workload, "ports"), used: Vec::new() };
        let first_flow = self.world.flows.len() as u32;
        let first_socket = self.world.connections.len() as u32;
        for (client, server) in pairs.iter().copied().cycle().take(count as usize) {
            let port = ports.draw();
            self.flow(workload, index, [End { port, ..client }, server]);
        }
        let timers = match workload.kind {
            Kind::OnOff { .. } => 1 + count,
            Kind::Shuffle { .. } => 2,
            _ => 1,
        };
        let timer = self.world.sources.len() as SourceId;
        self.world.sources.extend((0..timers).map(|number| Source::App(index, number)));
        let first = if protocol(&workload.kind) == TCP { first_socket } else { first_flow };
        let (start, stop) = (Nanos::ZERO + workload.start, Nanos::ZERO + workload.stop);
        let app = self.app(workload, Job { first, count, start, stop, timer });
        self.world.apps.push(app);
        let (measure, back) = (&self.scenario.measure, role == Role::Server);
        self.world.meters.push(Meter::new(measure, self.scenario.duration, back));
        self.world.tallies.push(Tally::default());
        self.world.spoofed.push(matches!(workload.kind, Kind::Udp { claims: 1.., .. }));
        Ok(())
    }

    /// The clients' and the servers' ends, but for the client's port: each of the tenant's vNICs with each of its
    /// peer's.
    fn ends(&self, workload: &Workload, role: Role) -> Vec<(End, End)> {
        let near = self.ends_of_tenant(&workload.tenant, workload);
        let mut far = self.ends_of_tenant(&workload.to, workload);
        if far.is_empty() {
            let place = if self.scenario.links.is_empty() { BEYOND } else { &workload.to };
            let address = self.scenario.destination_address(&workload.to).unwrap_or(Ipv4Addr::UNSPECIFIED);
            let node = self.topology.node(place).expect("every place is a node");
            far.push(End {
                node,
                tenant: None,
                address,
                port: workload.port,
                dscp: 0,
                queue: None,
                core: None,
            });
        }
        let mut pairs = Vec::new();
        // Peers turn, so that a few flows are spread over as many of them as there are.
        for turn in 0..far.len() {
            for (index, &near) in near.iter().enumerate() {
                let far = far[(turn + index) % far.len()];
                if near.address != far.address {
                    pairs.push(if role == Role::Server { (far, near) } else { (near, far) });
                }
            }
        }
        pairs
    }

    /// A tenant's vNICs; none for a name that is no tenant's.
    fn ends_of_tenant(&self, name: &str, workload: &Workload) -> Vec<End> {
        let tenants = (0_u32..).zip(&self.scenario.tenants);
        let Some((index, tenant)) = tenants.into_iter().find(|(_, tenant)| tenant.name == name) else {
            return Vec::new();
        };
        let dscp = if name == workload.tenant { workload.dscp } else { 0 };
        let end = |home: &Home| End {
            node: self.topology.node(&home.host).expect("every host is a node"),
            tenant: Some(index),
            address: home.address,
            port: workload.port,
            dscp,
            queue: None,
            core: self.cores.get(&(home.host.clone(), core_of(tenant))).copied(),
        };
        tenant.homes.iter().map(end).collect()
    }

    fn routed(&self, workload: &Workload, client: End, server: End) -> Result<(), SimError> {
        for (from, to) in [(client.node, server.node), (server.node, client.node)] {
            let route = self.world.routes[from as usize * self.topology.nodes.len() + to as usize];
            if from != to && route == NO_LINK {
                let name = |node: u32| self.topology.nodes[node as usize].clone();
                let message = format!(
                    "workload `{}`: no links lead from `{}` to `{}`",
                    workload.name,
                    name(from),
                    name(to)
                );
                let problem = Problem::new(workload.place, message).label("no way to its peer, or back");
                return Err(self.wrong(problem.help("add a link to `links`")));
            }
        }
        Ok(())
    }

    fn flow(&mut self, workload: &Workload, index: u32, ends: [End; 2]) {
        let (flow, socket) = (self.world.flows.len() as u32, self.world.connections.len() as u32);
        let protocol = protocol(&workload.kind);
        self.world.flows.push(Flow { workload: index, ends, protocol, socket });
        if protocol != TCP {
            return;
        }
        let mss = u16::try_from(self.scenario.mtu.saturating_sub(TCP_HEADERS)).unwrap_or(u16::MAX).max(1);
        let congestion = match workload.congestion.unwrap_or_default() {
            Congestion::Cubic => tcp::Congestion::Cubic,
            Congestion::NewReno => tcp::Congestion::NewReno,
            Congestion::Dctcp => tcp::Congestion::Dctcp,
        };
        let ecn = congestion == tcp::Congestion::Dctcp;
        let config = tcp::Config { mss, congestion, ecn, ..tcp::Config::default() };
        for (server, end) in [(false, ends[0]), (true, ends[1])] {
            // A socket's credit counts only where its host tells it what has left.
            let local_queue =
                if self.completes_late(end) { config.local_queue } else { tcp::LocalQueue::Unlimited };
            let offload = if self.offloads(end) { LARGEST } else { Bytes::ZERO };
            let config = tcp::Config { local_queue, offload, ..config.clone() };
            let source = self.source(Source::Socket(self.world.connections.len() as u32));
            let tcp = if server { Connection::server(&config) } else { Connection::client(&config) };
            self.world.connections.push(Socket { tcp, source, flow, written: 0, closed: false });
        }
    }

    fn completes_late(&self, end: End) -> bool {
        let host = self.scenario.hosts.get(end.node as usize).filter(|_| end.tenant.is_some());
        host.is_some_and(|host| self.has_engine(host) && self.completions(host) != Completions::Early)
    }

    /// When a host's guests get their descriptors back.
    fn completions(&self, host: &Host) -> Completions {
        self.system.completions.unwrap_or(host.transmit.completions)
    }

    /// Whether this end hands long segments to its NIC: where there is an engine that cuts them.
    fn offloads(&self, end: End) -> bool {
        let host = self.scenario.hosts.get(end.node as usize).filter(|_| end.tenant.is_some());
        self.scenario.offload && host.is_some_and(|host| self.has_engine(host))
    }

    fn has_engine(&self, host: &Host) -> bool {
        self.system.kind.on_engine() && self.has_nic(host)
    }

    /// Loom's "single queue" is HTB, too.
    fn has_limiter(&self, host: &Host) -> bool {
        !self.system.kind.on_engine() && self.system.kind != SystemKind::Fifo && self.has_nic(host)
    }

    /// Whether the system, whatever it is, stands between a host's tenants and its link.
    fn has_nic(&self, host: &Host) -> bool {
        let with_tenants = self.scenario.tenants.iter().any(|tenant| lives_on(tenant, host));
        host.nic == HostNic::Engine && with_tenants
    }

    /// Whether receivers control their senders in this system.
    fn controlled(&self) -> bool {
        self.steering().is_some() && self.system.control != ControlLevel::Off && self.system.kind.on_engine()
    }

    /// How they do.
    fn steering(&self) -> Option<Control> {
        self.system.steering.clone().or_else(|| self.scenario.control.clone())
    }

    /// How many pairs of a tenant here and one elsewhere there are.
    fn pairs_from(&self, node: u32) -> u32 {
        let ways = self.world.flows.iter().flat_map(|flow| [flow.way(false), flow.way(true)]);
        let away = ways.filter(|(from, to)| from.node == node && to.node != node && to.tenant.is_some());
        let pairs: BTreeSet<_> =
            away.filter_map(|(from, to)| Some((from.tenant?, to.tenant?, to.node))).collect();
        pairs.len() as u32
    }

    /// Control epochs for each host with tenants. They do not begin together: hosts know nothing of each other's.
    fn control(&mut self) {
        let Some(spec) = self.steering() else { return };
        let source = self.source(Source::Feedback);
        self.world.encapsulated = spec.ecn;
        let balancers = self.balancers(&spec);
        let mut control = Box::new(control::Control::new(spec, self.topology.nodes.len(), source));
        if !balancers.is_empty() {
            control.balance(balancers);
        }
        if self.system.faults {
            control.disturb(self.scenario.faults.feedback, Chance::of(self.seed, "feedback"));
        }
        let silent = |host: &Host| self.system.faults && self.scenario.faults.silent.contains(&host.name);
        for (node, host) in (0..).zip(&self.scenario.hosts) {
            if !self.has_engine(host) || silent(host) {
                continue;
            }
            let into = self.topology.links.iter().filter(|edge| edge.to == node && edge.from != node);
            let line = into.filter_map(|edge| edge.spec.rate).max().unwrap_or(self.scenario.rate);
            let tenants = (0..).zip(&self.scenario.tenants).filter(|(_, tenant)| lives_on(tenant, host));
            let vms: Vec<_> = tenants
                .map(|(index, tenant)| {
                    let slo = self.promised.get(&(node, index));
                    let own = |of: fn(&plimsoll_policy::Envelope) -> Option<BitRate>| {
                        slo.and_then(|slo| of(&slo.ingress))
                    };
                    let min = own(|envelope| envelope.min).or(tenant.min);
                    let max = own(|envelope| envelope.max).or(tenant.max).unwrap_or(line);
                    (index, Envelope { min, max }, slo.and_then(|slo| slo.threshold))
                })
                .collect();
            let source = self.source(Source::Epoch(node));
            control.add(node, source, line, self.system.control, &vms);
        }
        self.world.control = Some(control);
        self.world.weights = self.sender_weights();
    }

    /// Load balancers' vNICs, each with its tenant's weight.
    fn balancers(&self, spec: &Control) -> Vec<(control::Vm, u32)> {
        let mut members = Vec::new();
        for (name, weight) in &spec.balancers {
            let tenants = (0..).zip(&self.scenario.tenants);
            for (index, tenant) in tenants.filter(|(_, tenant)| tenant.name == *name) {
                let node = |home: &Home| self.topology.node(&home.host).expect("every host is a node");
                let vms = tenant.homes.iter().map(|home| control::Vm { tenant: index, node: node(home) });
                members.extend(vms.map(|vm| (vm, *weight)));
            }
        }
        members
    }

    /// What goes wrong, and what takes over then.
    fn faults(&mut self) {
        if !self.system.faults {
            return;
        }
        let faults = &self.scenario.faults;
        let node = |name: &String| self.topology.node(name).expect("every host is a node");
        let tenant = |name: &String| {
            let place = self.scenario.tenants.iter().position(|tenant| tenant.name == *name);
            place.expect("checked when read") as u32
        };
        let at = |span: Span| Nanos::ZERO + span;
        let nanos = |span: Span| i64::try_from(span.as_u64()).unwrap_or(i64::MAX);
        let mut deeds = Vec::new();
        for restart in &faults.restarts {
            let node = node(&restart.host);
            deeds.push((at(restart.at), Deed::Down(node)));
            deeds.push((at(restart.at + restart.gap), Deed::Up(node)));
        }
        for clock in &faults.clocks {
            let ahead = if clock.back { -nanos(clock.step) } else { nanos(clock.step) };
            deeds.push((at(clock.at), Deed::Clock(node(&clock.host), ahead)));
        }
        for stall in &faults.stalls {
            deeds.push((at(stall.from), Deed::Stall(tenant(&stall.tenant))));
            deeds.push((at(stall.to), Deed::Resume(tenant(&stall.tenant))));
        }
        deeds.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
        self.world.faults.deeds = deeds;
    }

    /// How often a host's daemon ends.
    fn restarts(&self, host: &Host) -> usize {
        let restarts = self.scenario.faults.restarts.iter().filter(|restart| restart.host == host.name);
        if self.system.faults { restarts.count() } else { 0 }
    }

    /// A host's way in.
    fn receive(&self, node: u32, host: &Host, ring: ReceiveRing, source: SourceId) -> Box<Receive> {
        let fair = self.has_engine(host) && self.system.ingress == Ingress::Fair;
        let chance = Chance::of(self.seed, &format!("receive {}", host.name));
        Box::new(if fair {
            Receive::fair(ring, source, &self.stations(node, &ring), chance)
        } else {
            Receive::shared(ring, source, chance)
        })
    }

    /// As a tenant's `max` to the greatest of them; all alike unless every one has a `max`.
    fn sender_weights(&self) -> Vec<u32> {
        let maxima: Option<Vec<BitRate>> = self.scenario.tenants.iter().map(|tenant| tenant.max).collect();
        let Some(maxima) = maxima else { return vec![1_000; self.scenario.tenants.len()] };
        let greatest = maxima.iter().copied().max();
        maxima.iter().filter_map(|&max| Some(weight_of(max, greatest?))).collect()
    }

    /// Each tenant's part of a receiving CPU: as its `max` where each has one and none a weight, else its weight; and the
    /// least part for what is for none of them. Those with a delay target have the queue that follows from it, the others
    /// the ring's.
    fn stations(&self, node: u32, ring: &ReceiveRing) -> Vec<Station> {
        let tenants = &self.scenario.tenants;
        let mbps = |rate: BitRate| u32::try_from(rate.get() / 1_000_000).unwrap_or(u32::MAX).max(1);
        let by_max: Option<Vec<u32>> = tenants.iter().map(|tenant| tenant.max.map(mbps)).collect();
        let weights: Vec<u32> = tenants.iter().map(|tenant| tenant.weight).collect();
        let weights = by_max.filter(|_| weights.iter().all(|&weight| weight == 1)).unwrap_or(weights);
        let station = |(index, weight)| {
            let slo = self.promised.get(&(node, index));
            let slots = slo.filter(|slo| !slo.delay.is_empty()).map_or(ring.slots, |slo| slo.slots);
            Station { weight, slots, ceiling: slo.and_then(|slo| slo.ceiling) }
        };
        let rest = Station { weight: 1, slots: ring.slots, ceiling: None };
        (0..).zip(weights).map(station).chain([rest]).collect()
    }

    /// What a policy promises the tenants on a host.
    fn note_promises(&mut self, node: u32, checked: &Checked) {
        for (index, tenant) in (0..).zip(&self.scenario.tenants) {
            let known = checked.program.tenants.iter().find(|known| known.name == tenant.name);
            self.promised.extend(known.map(|known| ((node, index), known.slo.clone())));
        }
    }

    /// An engine stands before exactly one link.
    fn uplinks(&self, host: &Host, links: usize) -> SimError {
        let message = format!("host `{}` has {links} links, and its engine stands before one", host.name);
        let problem = Problem::new(host.place, message).label("not one link");
        self.wrong(problem.help("give it one link, to a switch"))
    }

    fn wrong(&self, problem: Problem) -> SimError {
        SimError::Scenario(Box::new(self.scenario.wrong(problem)))
    }

    /// Whose packets those of each flow are, for an engine that counts what it holds.
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
        let links: Vec<u32> = self.topology.out_of(node).collect();
        let &[link] = links.as_slice() else {
            return Err(self.uplinks(host, links.len()));
        };
        let line = self.topology.links[link as usize].spec.rate.unwrap_or(self.scenario.rate);
        let tenants = self.scenario.tenants_on(host, self.system);
        let chance = Chance::of(self.seed, &format!("limiter {}", host.name));
        let limiter = Box::new(Limiter::new(self.system, &tenants, line, self.scenario.mtu, chance));
        let source = self.source(Source::Engine(node));
        self.world.nodes[node as usize].carrier = Carrier::Limiter { limiter, source, link };
        Ok(())
    }

    fn app(&self, workload: &Workload, job: Job) -> App {
        let mtu = self.scenario.mtu;
        let chance = |what| self.chance(workload, what);
        let rpc = |job, sizes, rate| {
            App::Rpc(Box::new(Rpc::new(job, sizes, rate, workload.even, chance("requests"))))
        };
        let fixed = |request: Bytes, response: Bytes| Sizes::Fixed {
            request: request.as_u64(),
            response: response.as_u64(),
        };
        match &workload.kind {
            Kind::Bulk { .. } | Kind::Iperf3 { udp: None, .. } => App::Bulk(Box::new(Bulk::new(job, None))),
            Kind::OnOff { on, off, .. } => {
                let rhythm = Rhythm { on: *on, off: *off, chance: chance("turns") };
                App::Bulk(Box::new(Bulk::new(job, Some(rhythm))))
            }
            Kind::Udp { size, pace, burst, turns, buffer, .. } => {
                let uneven = (*pace == Pace::Flood).then(|| chance("gaps"));
                let gap = self.gap(*pace, small(*size));
                let first = job.first as usize;
                let udp = Udp::new(job, small(*size), mtu, gap, uneven).in_bursts(burst.as_u64());
                // Who hears of nothing that has left could only wait for ever.
                let hears = self.completes_late(self.world.flows[first].ends[0]);
                let udp = if hears { udp.held_back(buffer.as_u64()) } else { udp };
                let rhythm = turns.map(|Turns { on, off }| Rhythm { on, off, chance: chance("turns") });
                App::Udp(Box::new(match rhythm {
                    Some(rhythm) => udp.in_turns(rhythm),
                    None => udp,
                }))
            }
            Kind::Iperf3 { flows, udp: Some(rate) } => {
                // As iperf3 sends over Ethernet: the largest datagram that is not cut.
                let size = mtu.saturating_sub(28).max(1);
                let (over, under) = self.gap(Pace::Bits(*rate), size);
                App::Udp(Box::new(Udp::new(job, size, mtu, (over, under * u128::from(*flows)), None)))
            }
            Kind::Probe { size, rate } => {
                App::Probe(Box::new(Probe::new(job, small(*size), mtu, *rate, false, chance("moments"))))
            }
            Kind::Sockperf { size, rate, tcp: false } => {
                App::Probe(Box::new(Probe::new(job, small(*size), mtu, *rate, true, chance("moments"))))
            }
            Kind::Sockperf { size, rate, tcp: true } => rpc(job, fixed(*size, *size), Some(*rate)),
            Kind::RequestResponse { request, response, rate, .. } => {
                rpc(job, fixed(*request, *response), *rate)
            }
            Kind::Memcached { key, value, sizes, rate, .. } => {
                let sizes = match sizes {
                    KeyValueSizes::Fixed => Sizes::memcached(key.as_u64(), value.as_u64()),
                    KeyValueSizes::Etc => Sizes::Etc,
                };
                rpc(job, sizes, *rate)
            }
            Kind::Shuffle { block, pause, .. } => {
                App::Rounds(Box::new(Rounds::new(job, block.as_u64(), *pause)))
            }
        }
    }

    /// Nanoseconds between two datagrams, as a fraction.
    fn gap(&self, pace: Pace, size: u32) -> (u128, u128) {
        let frame = (size + UDP_HEADERS).max(SHORTEST);
        let bit_nanos = u128::from(frame) * 8 * u128::from(NS_PER_SEC);
        match pace {
            Pace::Packets(rate) => (NS_PER_SEC.into(), rate.get().into()),
            Pace::Bits(rate) => (bit_nanos, rate.get().into()),
            Pace::Flood => (bit_nanos, 2 * u128::from(self.scenario.rate.get())),
        }
    }

    /// What changes while the run goes on, as one more that acts; only a policy of the scenario's own has its names.
    fn timeline(&mut self) -> Result<(), SimError> {
        let changes = &self.scenario.timeline;
        let Some(first) = changes.first().filter(|_| self.system.kind == SystemKind::Plimsoll) else {
            return Ok(());
        };
        for change in changes {
            let knows = |node: &Node| match &node.carrier {
                Carrier::Engine { engine, .. } => engine.knows(change),
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

    /// A host's first link on the way out, and the uplink at its end.
    fn way_out(&self, node: u32, host: &Host) -> Result<(u32, u32), SimError> {
        let links: Vec<u32> = self.topology.out_of(node).collect();
        match *links.as_slice() {
            [uplink] => Ok((uplink, uplink)),
            [uplink, bus] if self.topology.links[bus as usize].to == node => Ok((bus, uplink)),
            _ => Err(self.uplinks(host, links.len())),
        }
    }

    /// Gives each host with tenants its engine, and the agenda its sources.
    fn engines(&mut self) -> Result<(), SimError> {
        let names: Vec<String> = self.scenario.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        for (node, host) in (0..).zip(&self.scenario.hosts) {
            let uplinks = if self.has_engine(host) { Some(self.way_out(node, host)?) } else { None };
            let checked = uplinks.map(|(_, uplink)| self.checked(host, uplink)).transpose()?;
            if let Some(checked) = &checked {
                self.note_promises(node, checked);
            }
            if let Some(ring) = host.receive {
                let source = self.source(Source::Receive(node));
                self.world.nodes[node as usize].receive = Some(self.receive(node, host, ring, source));
            }
            if self.has_limiter(host) {
                self.limiter(node, host)?;
            }
            let (Some(mut checked), Some((first, _))) = (checked, uplinks) else { continue };
            if !self.system.accounting {
                let all = checked.config.engine.descriptors;
                checked.program.tenants.iter_mut().for_each(|tenant| tenant.descriptors = all);
            }
            let from_here = self.world.flows.iter().flat_map(|flow| &flow.ends);
            let flows = from_here.filter(|end| end.node == node && end.tenant.is_some()).count() as u32;
            let source = self.source(Source::Engine(node));
            let peers = if self.controlled() { self.pairs_from(node) } else { 0 };
            let mut own = host.clone();
            own.transmit.completions = self.completions(host);
            let mut engine = Box::new(Engine::new(&checked, &names, flows, peers, &own));
            if !self.system.accounting {
                engine.share_descriptors();
            }
            let spare = || {
                let receive = self.world.nodes[node as usize].receive.as_ref().zip(host.receive);
                let receive = receive.map(|(old, ring)| self.receive(node, host, ring, old.source));
                Spare { engine: Box::new(Engine::new(&checked, &names, flows, peers, &own)), receive }
            };
            let spares: Vec<Spare> = (0..self.restarts(host)).map(|_| spare()).collect();
            self.world.faults.spares.insert(node, spares);
            engine.holdings = self.scenario.measure.held.then(|| Box::new(self.holdings()));
            self.world.nodes[node as usize].carrier = Carrier::Engine { engine, source, first, traced: None };
            if checked.program.tenants.iter().any(|tenant| is_promised(&tenant.slo)) {
                let watch = Watch::new(self.scenario, &host.name, &checked.program);
                self.world.nodes[node as usize].watch = Some(Box::new(watch));
                self.world.look_at = self.world.next_look(Nanos::ZERO);
            }
        }
        if self.controlled() {
            self.control();
        }
        self.world.timeline_source = self.source(Source::Timeline);
        self.world.faults.source = self.source(Source::Fault);
        self.faults();
        self.world.agenda = Agenda::new(self.world.sources.len());
        for (index, workload) in self.scenario.workloads.iter().enumerate() {
            let first = Source::App(index as u32, 0);
            let source =
                self.world.sources.iter().position(|source| *source == first).expect("a first timer");
            self.world.agenda.set(source as SourceId, Nanos::ZERO + workload.start);
        }
        if let Some(control) = &self.world.control {
            control.moments().for_each(|(source, at)| self.world.agenda.set(source, at));
        }
        let fault = self.world.faults.deeds.last().map(|&(at, _)| at);
        self.world.agenda.keep(self.world.faults.source, fault);
        self.timeline()?;
        Ok(())
    }

    /// Traces links by name, or every host's uplink. Where an engine stands before a link, what leaves is traced with
    /// the engine's decision; elsewhere what arrives.
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
                Carrier::Engine { traced, .. } => *traced = Some(interface),
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

    fn checked(&self, host: &Host, uplink: u32) -> Result<Checked, SimError> {
        let rate = self.topology.links[uplink as usize].spec.rate;
        let wiring = Wiring { uplink: "memory".to_owned(), rate, ..Wiring::default() };
        let mut text = Some(self.scenario.policy_file_of(host, self.system, &wiring));
        let mut load = |path: &str| match text.take() {
            Some(text) => Ok(text),
            None => std::fs::read_to_string(path).map_err(|error| error.to_string()),
        };
        plimsoll_policy::check_with("policy", &mut load).map_err(|errors| SimError::Policy {
            system: self.system.name.clone(),
            host: host.name.clone(),
            text: errors.render(false),
        })
    }
}

/// Whether a tenant is promised anything.
fn is_promised(slo: &Slo) -> bool {
    let stated = [slo.egress.min, slo.egress.max, slo.ingress.min, slo.ingress.max];
    stated.iter().any(Option::is_some) || !slo.delay.is_empty()
}

/// How long a window is in which promises are judged: those of `measure`, as many together as it takes for bursts not to
/// matter.
fn look_every(scenario: &Scenario) -> Span {
    let window = scenario.measure.window.as_u64().max(1);
    Span::ns(window.saturating_mul(LEAST_LOOK.as_u64().div_ceil(window)))
}

/// The burst of a `max` is a millisecond's, and rates are judged to a twentieth.
const LEAST_LOOK: Span = Span::millis(20);

/// What the policies promise, by host and tenant.
type Promised = BTreeMap<(u32, u32), Slo>;

/// The core that a tenant runs on, on each of its hosts.
fn core_of(tenant: &Tenant) -> String {
    tenant.core.clone().unwrap_or_else(|| tenant.name.clone())
}

fn lives_on(tenant: &Tenant, host: &Host) -> bool {
    tenant.homes.iter().any(|home| home.host == host.name)
}

/// Source ports, none twice.
struct Ports {
    chance: Chance,
    used: Vec<u16>,
}

impl Ports {
    fn draw(&mut self) -> u16 {
        let (first, last) = SOURCE_PORTS;
        let mut port = first + self.chance.below(u32::from(last - first) + 1) as u16;
        while self.used.contains(&port) {
            port = if port == last { first } else { port + 1 };
        }
        self.used.push(port);
        port
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;

fn protocol(kind: &Kind) -> u8 {
    match kind {
        Kind::Udp { .. }
        | Kind::Probe { .. }
        | Kind::Iperf3 { udp: Some(_), .. }
        | Kind::Sockperf { tcp: false, .. } => UDP,
        _ => TCP,
    }
}

fn role(kind: &Kind) -> Role {
    match kind {
        Kind::RequestResponse { role, .. } | Kind::Memcached { role, .. } => *role,
        _ => Role::Client,
    }
}

fn flows(kind: &Kind) -> u32 {
    match kind {
        Kind::Bulk { flows }
        | Kind::Udp { flows, .. }
        | Kind::OnOff { flows, .. }
        | Kind::Shuffle { flows, .. }
        | Kind::Iperf3 { flows, .. } => *flows,
        Kind::RequestResponse { connections, .. } | Kind::Memcached { connections, .. } => *connections,
        Kind::Probe { .. } | Kind::Sockperf { .. } => 1,
    }
}
