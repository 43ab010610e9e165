//! A scenario's links, or the lab's where the scenario states none.
//!
//! Why: links connect all other parts of a world.
//! From: `docs/scenarios.md`, "links".
//! Not here: a link at work (`link`), and routes (`topology`).
//! Invariant: each host has its links in the order of the file, and its bus after them.

use plimsoll_scenario::{Link, Scenario, System, SystemKind};
use plimsoll_units::{Bytes, Span};

use crate::link::{LinkSpec, Overhead, PathSpec};
use crate::topology::{Edge, Topology};

/// The place beyond the uplinks, where destinations are.
pub(super) const BEYOND: &str = "beyond the uplinks";

/// A link's delay when the file states none: some metres, and a switch's ports.
const DELAY: Span = Span::micros(5);

/// Packets in the one queue of `fifo`: Linux's default for a device (`txqueuelen`).
const FIFO_PACKETS: u32 = 1_000;

/// The file's links; if it has none, one link for each host, with all destinations at its other end.
pub(super) fn topology(scenario: &Scenario, system: &System) -> Topology {
    let hosts = scenario.hosts.iter().map(|host| host.name.clone());
    let mut topology =
        Topology { nodes: hosts.chain(scenario.switches.iter().cloned()).collect(), links: Vec::new() };
    if scenario.links.is_empty() {
        topology.nodes.push(BEYOND.to_owned());
        for (host, name) in (0..).zip(scenario.hosts.iter().map(|host| &host.name)) {
            implied(&mut topology, host, name, scenario, system);
        }
        packet_rates(&mut topology, scenario);
        jitter(&mut topology, scenario);
        buses(&mut topology, scenario);
        return topology;
    }
    topology.nodes.extend(scenario.destinations.iter().map(|place| place.name.clone()));
    for link in &scenario.links {
        let node = |name: &str| topology.node(name).expect("checked when read");
        let (from, to) = (node(&link.from), node(&link.to));
        let spec = LinkSpec {
            rate: Some(link.rate),
            queue: link.queue.as_u64(),
            ecn: link.ecn.map(Bytes::as_u64),
            loss: link.loss,
            aqm: link.aqm.map(Box::new),
            path: path(link),
            ..LinkSpec::free(link.delay, Overhead::Frame(scenario.overlay))
        };
        let back = Edge { name: format!("{} back", link.name), from: to, to: from, spec: spec.clone() };
        topology.links.push(Edge { name: link.name.clone(), from, to, spec });
        topology.links.extend(link.both.then_some(back));
    }
    packet_rates(&mut topology, scenario);
    jitter(&mut topology, scenario);
    buses(&mut topology, scenario);
    topology
}

/// What happens on a link's way beyond its delay, if anything.
fn path(link: &Link) -> Option<Box<PathSpec>> {
    let path = PathSpec { jitter: link.jitter, reorder: link.reorder, burst_loss: link.burst_loss };
    (path != PathSpec::default()).then(|| Box::new(path))
}

/// Bounds the packets on hosts' links in both directions, where the file bounds those of their NICs.
fn packet_rates(topology: &mut Topology, scenario: &Scenario) {
    let most = |node: u32| scenario.hosts.get(node as usize).and_then(|host| host.packet_rate);
    for link in &mut topology.links {
        link.spec.packet_rate = [most(link.from), most(link.to)].into_iter().flatten().min();
    }
}

/// Makes hosts and places beyond the uplinks late by the scenario's jitter; switches and buses are not.
fn jitter(topology: &mut Topology, scenario: &Scenario) {
    let hosts = scenario.hosts.len();
    let switches = hosts..hosts + scenario.switches.len();
    for link in &mut topology.links {
        if !switches.contains(&(link.to as usize)) {
            link.spec.jitter = scenario.jitter;
        }
    }
}

/// Adds the bus from each host's memory to its NIC, where the file states one.
fn buses(topology: &mut Topology, scenario: &Scenario) {
    for (host, (name, bus)) in (0..)
        .zip(scenario.hosts.iter().map(|host| (&host.name, host.pcie)))
        .filter_map(|(n, (name, bus))| Some((n, (name, bus?))))
    {
        let (size, bytes) = (small(bus.tlp).max(1), small(bus.overhead));
        let each = small(bus.charge(Bytes::ZERO));
        let overhead = Overhead::Part { size, bytes, each };
        let spec = LinkSpec { rate: Some(bus.most()), ..LinkSpec::free(bus.latency, overhead) };
        topology.links.push(Edge { name: format!("{name} pcie"), from: host, to: host, spec });
    }
}

pub(super) fn small(bytes: Bytes) -> u32 {
    u32::try_from(bytes.as_u64()).unwrap_or(u32::MAX)
}

/// Adds a link of the scenario's rate from a host to the place of all destinations. The way back has no rate where there is one
/// host, as in the lab; with several hosts it is a link, too.
fn implied(topology: &mut Topology, host: u32, name: &str, scenario: &Scenario, system: &System) {
    let beyond = topology.nodes.len() as u32 - 1;
    let free = LinkSpec::free(DELAY, Overhead::Frame(scenario.overlay));
    let queued = LinkSpec { rate: Some(scenario.rate), packets: FIFO_PACKETS, ..free.clone() };
    let paced = LinkSpec { packets: u32::MAX, ..queued.clone() };
    let uplink = if system.kind == SystemKind::Fifo { queued.clone() } else { paced };
    let back = if scenario.hosts.len() == 1 { free } else { queued };
    topology.links.push(Edge { name: name.to_owned(), from: host, to: beyond, spec: uplink });
    topology.links.push(Edge { name: format!("{name} back"), from: beyond, to: host, spec: back });
}
