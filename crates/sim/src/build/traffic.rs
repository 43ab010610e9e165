//! Workloads with their ends, flows and timers.
//!
//! Why: the random numbers of a workload follow from the seed and its name, and do not depend on the other workloads.
//! From: `docs/scenarios.md`, "workloads".
//! Not here: workloads at work (`traffic` of the crate).
//! Invariant: ports are drawn as the lab draws them, none twice for a workload.

use std::net::Ipv4Addr;

use plimsoll_scenario::{
    Congestion, Home, KeyValueSizes, Kind, Pace, Problem, Role, TcpSettings, TransmitCompletions, Turns,
    Workload,
};
use plimsoll_units::{Bytes, NS_PER_SEC, Nanos, Span};

use super::links::{BEYOND, small};
use super::{Builder, core_of};
use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::error::SimError;
use crate::flow::{End, Flow};
use crate::meter::Meter;
use crate::packet::{SHORTEST, UDP_HEADERS};
use crate::source_ports::SourcePorts;
use crate::tcp::{self, Connection};
use crate::traffic::{App, Assignment, Bulk, Flows, Incast, Probe, Rhythm, Rounds, Rpc, Sizes, Udp};
use crate::world::{Retired, Socket, Source, Tally};

/// The flows of a workload begin within as many times the hosts' jitter: a program opens its connections one after the other,
/// and is itself started a little late.
const STARTS: u64 = 100;

/// Ethernet, IPv4 and TCP headers with timestamps.
const TCP_HEADERS: u32 = 20 + 32;

/// The longest segment that a guest hands over to be cut: what an IP packet can hold.
const LARGEST: Bytes = Bytes::new(65_535 - TCP_HEADERS as u64);

impl Builder<'_> {
    pub(super) fn chance(&self, workload: &Workload, what: &str) -> Chance {
        Chance::of(self.seed, &format!("workload {} {what}", workload.name))
    }

    /// Adds a workload with its flows and timers.
    pub(super) fn workload(&mut self, workload: &Workload) -> Result<(), SimError> {
        let index = self.world.apps.len() as u32;
        let role = role(&workload.kind);
        let pairs = self.ends(workload, role);
        let through = workload.through.as_ref().and_then(|name| self.ends_of_tenant(name, workload).pop());
        for (client, server) in &pairs {
            match through {
                None => self.routed(workload, *client, *server)?,
                Some(through) => {
                    self.routed(workload, *client, through)?;
                    self.routed(workload, through, *server)?;
                }
            }
        }
        let first_flow = self.world.flows.len() as u32;
        let arrivals = match &workload.kind {
            Kind::Flows { sizes, pace, handshake } => {
                Some(self.arriving(workload, index, (sizes, *pace, *handshake), &pairs)?)
            }
            _ => None,
        };
        // Among a tenant's own vNICs each talks to each.
        let all_to_all = workload.to == workload.tenant;
        let count = flows(&workload.kind).saturating_mul(if all_to_all { pairs.len() as u32 } else { 1 });
        if all_to_all && matches!(workload.kind, Kind::Incast { .. }) {
            return Err(self.asks_itself(workload));
        }
        let mut ports = Ports::new(self.chance(workload, "ports"));
        let first_socket = self.world.connections.len() as u32;
        for (client, server) in pairs.iter().copied().cycle().take(count as usize) {
            let ends = ports.draw().map(|port| [End { port, ..client }, server]);
            let taken = ends.and_then(|ends| self.world.ports.take(&ends, protocol(&workload.kind)));
            let Some(port) = taken else { return Err(self.out_of_ports(workload, count)) };
            self.flow(workload, index, [End { port, ..client }, server], through);
        }
        let timers = match workload.kind {
            Kind::OnOff { .. } => 1 + count,
            Kind::Shuffle { .. } => 2,
            _ => 1,
        };
        let timer = self.world.sources.len() as SourceId;
        self.world.sources.extend((0..timers).map(|number| Source::App(index, number)));
        let by_socket = protocol(&workload.kind) == TCP && arrivals.is_none();
        let first = if by_socket { first_socket } else { first_flow };
        let (start, stop) = (Nanos::ZERO + workload.start, Nanos::ZERO + workload.stop);
        let job = Assignment { first, count, start, stop, timer };
        let app = match arrivals {
            Some(arrivals) => App::Flows(Box::new(Flows::new(job, arrivals))),
            None => self.app(workload, job),
        };
        self.world.apps.push(app);
        let reverse = matches!(workload.kind, Kind::Bulk { reverse: true, .. });
        let (measure, back) = (&self.scenario.measure, role == Role::Server || reverse);
        self.world.meters.push(Meter::new(measure, self.scenario.duration, back));
        self.world.tallies.push(Tally::default());
        self.world.workloads.push((workload.name.clone(), first_flow));
        self.world.retired.push(Retired::default());
        let claims = if let Kind::Udp { claims, .. } = workload.kind { claims } else { 0 };
        self.world.spoofed.push(claims > 0);
        self.world.claims.push(claims);
        self.world.metered.push(0);
        self.world.marked.push(0);
        self.world.changed.push(0);
        Ok(())
    }

    fn asks_itself(&self, workload: &Workload) -> SimError {
        let (name, to) = (&workload.name, &workload.to);
        let message = format!("workload `{name}`: an incast has one end that asks, and `{to}` asks itself");
        let problem = Problem::new(workload.place, message).label("asks and answers");
        self.wrong(problem.help("name another tenant, which asks, in `to`"))
    }

    fn out_of_ports(&self, workload: &Workload, count: u32) -> SimError {
        let (name, most) = (&workload.name, SourcePorts::COUNT);
        let message =
            format!("workload `{name}` has {count} connections, and clients have {most} source ports");
        let problem = Problem::new(workload.place, message).label("no source port is left");
        self.wrong(problem.help("make several workloads of it, each with a `port` of its own"))
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
        // Peers take turns, so that even a few flows reach different peers.
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

    /// A tenant's vNICs; none if the name is not that of a tenant.
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
            if from != to && self.world.routes.ways(from, to).is_empty() {
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

    fn flow(&mut self, workload: &Workload, index: u32, ends: [End; 2], through: Option<End>) {
        let (flow, socket) = (self.world.flows.len() as u32, self.world.connections.len() as u32);
        let protocol = protocol(&workload.kind);
        let through = through.map(|through| Box::new([through; 2]));
        self.world.flows.push(Flow { workload: index, ends, protocol, socket, through });
        if protocol != TCP {
            return;
        }
        let first = self.world.flows.partition_point(|flow| flow.workload < index) as u32;
        let mut phases = self.chance(workload, &format!("phases of flow {}", flow - first));
        for (server, config) in [false, true].into_iter().zip(self.tcp_settings(workload, ends)) {
            let config = tcp::Config { seed: u64::from(phases.below(u32::MAX)) << 32, ..config };
            let source = self.source(Source::Socket(self.world.connections.len() as u32));
            let tcp = if server { Connection::server(&config) } else { Connection::client(&config) };
            self.world.connections.push(Socket { tcp, source, flow, written: 0, closed: false });
        }
    }

    /// The settings of a connection's two ends.
    pub(super) fn tcp_settings(&self, workload: &Workload, ends: [End; 2]) -> [tcp::Config; 2] {
        let mss =
            u16::try_from(self.scenario.inner_mtu().saturating_sub(TCP_HEADERS)).unwrap_or(u16::MAX).max(1);
        let congestion = match workload.congestion.unwrap_or_default() {
            Congestion::Cubic => tcp::Congestion::Cubic,
            Congestion::NewReno => tcp::Congestion::NewReno,
            Congestion::Dctcp => tcp::Congestion::Dctcp,
            Congestion::Bbr => tcp::Congestion::Bbr,
        };
        let config = settings(&workload.tcp, tcp::Config { mss, congestion, ..tcp::Config::default() });
        [(false, ends[0]), (true, ends[1])].map(|(server, end)| {
            let ecn = congestion == tcp::Congestion::Dctcp || self.speaks_ecn(end, server);
            // A socket's credit counts only where its host tells it what has left.
            let local_queue =
                if self.completes_late(end) { config.local_queue } else { tcp::LocalQueue::Unlimited };
            let offload = if self.offloads(end) { LARGEST } else { Bytes::ZERO };
            tcp::Config { local_queue, offload, ecn, ..config.clone() }
        })
    }

    /// Whether an end asks for ECN, or as a server accepts it.
    fn speaks_ecn(&self, end: End, server: bool) -> bool {
        let tenant = end.tenant.and_then(|tenant| self.scenario.tenants.get(tenant as usize));
        match tenant.and_then(|tenant| tenant.tcp_ecn).unwrap_or(TCP_ECN) {
            0 => false,
            1 => true,
            _ => server,
        }
    }

    fn completes_late(&self, end: End) -> bool {
        let host = self.scenario.hosts.get(end.node as usize).filter(|_| end.tenant.is_some());
        host.is_some_and(|host| self.has_engine(host) && self.completions(host) != TransmitCompletions::Early)
    }

    /// Whether this end hands long segments to its NIC: where there is an engine that cuts them.
    fn offloads(&self, end: End) -> bool {
        let host = self.scenario.hosts.get(end.node as usize).filter(|_| end.tenant.is_some());
        self.scenario.offload && host.is_some_and(|host| self.has_engine(host))
    }

    fn app(&self, workload: &Workload, job: Assignment) -> App {
        let mtu = self.scenario.inner_mtu();
        let chance = |what| self.chance(workload, what);
        let rpc = |job, sizes, rate| {
            App::Rpc(Box::new(Rpc::new(job, sizes, rate, workload.even, chance("requests"))))
        };
        let most = Span::ns(job.stop.since(job.start).as_u64() / 10);
        let spread = Span::ns(self.scenario.jitter.as_u64().saturating_mul(STARTS)).min(most);
        let bulk = |bulk: Bulk| App::Bulk(Box::new(bulk.spread(spread, chance("starts"))));
        let fixed = |request: Bytes, response: Bytes| Sizes::Fixed {
            request: request.as_u64(),
            response: response.as_u64(),
        };
        match &workload.kind {
            Kind::Bulk { reverse: true, .. } => bulk(Bulk::new(job, None).reversed()),
            Kind::Bulk { .. } | Kind::Iperf3 { udp: None, .. } => bulk(Bulk::new(job, None)),
            Kind::OnOff { on, off, .. } => {
                let rhythm = Rhythm { on: *on, off: *off, chance: chance("turns") };
                bulk(Bulk::new(job, Some(rhythm)))
            }
            Kind::Udp { size, pace, burst, turns, buffer, ect, .. } => {
                let uneven = (*pace == Pace::Flood).then(|| chance("gaps"));
                let gap = self.gap(*pace, small(*size));
                let first = job.first as usize;
                let udp = Udp::new(job, small(*size), mtu, gap, uneven).in_bursts(burst.as_u64());
                let udp = udp.capable(*ect);
                // A sender that gets no completions would wait for ever.
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
            Kind::Incast { request, size, rate, pause, .. } => {
                let sizes = (request.as_u64(), size.as_u64());
                App::Incast(Box::new(Incast::new(job, sizes, *rate, *pause, chance("requests"))))
            }
            Kind::Flows { .. } => App::Away, // built from its arrivals
            Kind::Shuffle { block, pause, .. } => {
                App::Rounds(Box::new(Rounds::new(job, block.as_u64(), *pause)))
            }
        }
    }

    /// Nanoseconds between two datagrams, as a numerator and a denominator.
    fn gap(&self, pace: Pace, size: u32) -> (u128, u128) {
        let frame = (size + UDP_HEADERS).max(SHORTEST);
        let bit_nanos = u128::from(frame) * 8 * u128::from(NS_PER_SEC);
        match pace {
            Pace::Packets(rate) => (NS_PER_SEC.into(), rate.get().into()),
            Pace::Bits(rate) => (bit_nanos, rate.get().into()),
            Pace::Flood => (bit_nanos, 2 * u128::from(self.scenario.rate.get())),
        }
    }
}

/// The scenario's settings of a workload's TCP, laid over these.
fn settings(stated: &TcpSettings, config: tcp::Config) -> tcp::Config {
    tcp::Config {
        pacing: stated.pacing,
        initial_window: stated.initial_window.unwrap_or(config.initial_window),
        min_rto: stated.min_rto.unwrap_or(config.min_rto),
        send_buffer: stated.send_buffer.unwrap_or(config.send_buffer),
        receive_buffer: stated.receive_buffer.unwrap_or(config.receive_buffer),
        ..config
    }
}

/// Draws source ports, none twice.
struct Ports {
    chance: Chance,
    used: Vec<bool>,
    left: u32,
}

impl Ports {
    fn new(chance: Chance) -> Self {
        Self { chance, used: vec![false; SourcePorts::COUNT as usize], left: SourcePorts::COUNT }
    }

    fn draw(&mut self) -> Option<u16> {
        self.left = self.left.checked_sub(1)?;
        let mut place = self.chance.below(SourcePorts::COUNT);
        while core::mem::replace(&mut self.used[place as usize], true) {
            place = (place + 1) % SourcePorts::COUNT;
        }
        Some(SourcePorts::nth(place))
    }
}

/// Linux's `tcp_ecn` where no tenant states another.
const TCP_ECN: u8 = 2;
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
        Kind::Incast { .. } => Role::Server,
        _ => Role::Client,
    }
}

fn flows(kind: &Kind) -> u32 {
    match kind {
        Kind::Bulk { flows, .. }
        | Kind::Udp { flows, .. }
        | Kind::OnOff { flows, .. }
        | Kind::Shuffle { flows, .. }
        | Kind::Iperf3 { flows, .. } => *flows,
        Kind::RequestResponse { connections, .. } | Kind::Memcached { connections, .. } => *connections,
        Kind::Incast { senders, .. } => *senders,
        Kind::Flows { .. } => 0, // they come later
        Kind::Probe { .. } | Kind::Sockperf { .. } => 1,
    }
}
