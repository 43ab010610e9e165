//! A world while it runs: hosts, links and flows, and the loop that moves them from event to event.
//!
//! Why: each event has one moment, and all events have one order.
//! From: discrete-event simulation; a link, a host's NIC or a timer is one source of events with one next moment.
//! Not here: how a world is built (`build`), what workloads send (`traffic`), a packet's way (`journey`), connections
//! (`sockets`), and what a fault does (`downtime`).
//! Invariant: a run depends on the world's description and its seed alone; for every workload, packets sent are packets
//! delivered, dropped for a counted reason, or still under way.

mod downtime;
mod journey;
mod pressing;
mod programs;
mod sampling;
mod sockets;

pub(crate) use pressing::Notices;
pub(crate) use sockets::{Retired, SYN_HEADER, TCP_HEADER};

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;

use plimsoll_nic::QueueId;
use plimsoll_policy::{Checked, Fields};
use plimsoll_scenario::{Change, Setting};
use plimsoll_slo::DropSeconds;
use plimsoll_units::{Nanos, Span};

use crate::agenda::{Agenda, SourceId};
use crate::balance::Balance;
use crate::control::{Agents, Vm};
use crate::cores::Core;
use crate::fault::Faults;
use crate::flow::Flow;
use crate::host_nic::HostNic;
use crate::limiter::Limiter;
use crate::link::Link;
use crate::meter::Meter;
use crate::packet::Packet;
use crate::packet_pool::PacketPool;
use crate::press::Press;
use crate::receive::Receive;
use crate::series::Sampler;
use crate::source_ports::SourcePorts;
use crate::tcp::{self, Connection};
use crate::topology::Routes;
use crate::trace::Tracer;
use crate::traffic::App;
use crate::watch::{Beside, Watch};

/// The state of a run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) agenda: Agenda,
    pub(crate) sources: Vec<Source>,
    pub(crate) links: Vec<LinkEnd>,
    /// The packets that links carry.
    pub(crate) packets: PacketPool,
    pub(crate) nodes: Vec<Node>,
    /// Whether any host has backpressure, and whether any tenant has a program: without, packets pass by at once.
    pub(crate) pressed: bool,
    pub(crate) programmed: bool,
    pub(crate) routes: Routes,
    /// Which of several equal ways a packet takes.
    pub(crate) balance: Balance,
    pub(crate) flows: Vec<Flow>,
    pub(crate) ports: SourcePorts,
    pub(crate) connections: Vec<Socket>,
    /// The settings of connections that begin during the run.
    pub(crate) settings: Vec<tcp::Config>,
    /// Clients' sockets of connections that were released.
    pub(crate) spare: Vec<u32>,
    /// By workload: what its released connections counted.
    pub(crate) retired: Vec<Retired>,
    pub(crate) apps: Vec<App>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) tracer: Option<Box<Tracer>>,
    /// Takes samples of connections and links, where they are asked for.
    pub(crate) sampler: Option<Box<Sampler>>,
    /// By workload: its name, and its first flow.
    pub(crate) workloads: Vec<(String, u32)>,
    pub(crate) events: u64,
    pub(crate) hops: u64,
    /// Nodes whose carriers have been offered packets or orders at this moment.
    pub(crate) offered: Vec<u32>,
    /// Packets between two tenants of one host.
    pub(crate) local: VecDeque<Packet>,
    /// Packets whose completion their senders still have to see.
    pub(crate) completed: Vec<Packet>,
    /// Tenants' cores, where their work takes time.
    pub(crate) cores: Vec<Core>,
    /// The agents by which receivers control senders, where they do.
    pub(crate) control: Option<Box<Agents>>,
    /// The number of tenants; on the way in, it also stands for packets that are for no tenant.
    pub(crate) tenants: u32,
    /// The tenants' names.
    pub(crate) names: Vec<String>,
    /// Changes of policies still to come, the last first.
    pub(crate) timeline: Vec<Change>,
    pub(crate) timeline_source: SourceId,
    /// By change of the whole policy, the last first: the new policies of all hosts.
    pub(crate) policies: Vec<Vec<(u32, Checked)>>,
    /// Whether tenants' packets travel in outer headers that the fabric may mark.
    pub(crate) encapsulated: bool,
    /// Faults still to come.
    pub(crate) faults: Faults,
    /// Tenants that have stopped reading.
    pub(crate) stalled: Vec<u32>,
    /// By workload: whether its datagrams have other senders' addresses.
    pub(crate) spoofed: Vec<bool>,
    /// By workload: the number of senders that its datagrams claim to come from.
    pub(crate) claims: Vec<u32>,
    /// By workload: frames that a meter held up or dropped, and that arrived with a mark.
    pub(crate) metered: Vec<u64>,
    pub(crate) marked: Vec<u64>,
    /// By workload: packets that did not arrive as they were sent.
    pub(crate) changed: Vec<u64>,
    /// Requests between hosts to slow flows down.
    pub(crate) notices: Notices,
    /// The end of the present window in which promises are judged.
    pub(crate) look_at: Nanos,
    /// The length of these windows.
    pub(crate) look_every: Span,
    /// The end of the run.
    pub(crate) look_until: Nanos,
}

/// A source of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The next packet arrives at a link's far end.
    Link(u32),
    /// A host's NIC or limiter may send again: its link is free, or a limit allows it.
    Carrier(u32),
    /// The CPU behind a receive ring has finished a piece of work.
    Receive(u32),
    /// A connection's end point has a deadline.
    Socket(u32),
    /// A timer of a workload.
    App(u32, u32),
    /// A tenant's core has finished a piece of work.
    Core(u32),
    /// A policy changes.
    Timeline,
    /// A fault begins or ends.
    Fault,
    /// A host's control epoch is over.
    Epoch(u32),
    /// A message between hosts arrives.
    Feedback,
    /// A host looks at its load, or a packet has waited long enough for its flow's rate.
    Press(u32),
    /// A request to slow a flow down arrives.
    Notice,
    /// Connections and links are sampled.
    Sample,
}

/// A link with the node at its far end.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LinkEnd {
    pub(crate) to: u32,
    pub(crate) source: SourceId,
    /// Its place on a packet's way.
    pub(crate) kind: Way,
    pub(crate) link: Link,
    /// The drop reason when its queue is full.
    pub(crate) full: &'static str,
    /// Its interface in the trace, if packets that arrive over it are traced.
    pub(crate) traced: Option<u32>,
}

/// A link's place on a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a host to its NIC.
    Bus,
    /// Away from a host.
    Uplink,
    /// From a switch, or a place beyond the uplinks.
    Onward,
}

/// A host, a switch, or a place beyond the uplink.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    // The first cache line is all that packets look at.
    pub(crate) carrier: Carrier,
    pub(crate) receive: Option<Box<Receive>>,
    /// The counters by which promises are judged, where a tenant here has a promise.
    pub(crate) watch: Option<Box<Watch>>,
    /// Its backpressure, where any host has some.
    pub(crate) press: Option<Box<Press>>,
    pub(crate) press_source: SourceId,
    /// Whether its daemon is down: no packet comes in or goes out.
    pub(crate) down: bool,
    pub(crate) name: String,
    /// Seconds in which its NIC dropped many packets.
    pub(crate) drop_seconds: DropSeconds,
}

/// The component between a node's own packets and its link.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// None: packets go to the link's queue.
    Plain,
    /// A NIC with an engine and a policy.
    Nic {
        /// The NIC.
        nic: Box<HostNic>,
        /// Its source of events.
        source: SourceId,
        /// The link that its packets take: the host's own, or the bus to its NIC.
        first: u32,
        /// Whether that is a bus, over which the NIC reads a packet when it has chosen it.
        reads: bool,
        /// Its interface in the trace, if packets that leave it are traced.
        traced: Option<u32>,
    },
    /// A limiter of a system without an engine.
    Limiter {
        /// The limiter.
        limiter: Box<Limiter>,
        /// Its source of events.
        source: SourceId,
        /// The link that its packets take: the host's own, or the bus to its NIC.
        first: u32,
        /// The host's own link.
        uplink: u32,
    },
}

/// A connection's end point.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Socket {
    pub(crate) source: SourceId,
    pub(crate) flow: u32,
    /// Bytes that its workload has written.
    pub(crate) written: u64,
    /// Whether it is closed: packets that come are ignored, and none are sent.
    pub(crate) closed: bool,
    pub(crate) tcp: Connection,
}

/// A workload's packets: sent, delivered and dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) delivered: u64,
    pub(crate) drops: BTreeMap<&'static str, u64>,
}

impl World {
    /// Handles all events before `end`; calls `tell` with the time now and then.
    ///
    /// Islands take turns: one that is at work has its state in the processor's caches, and none sees what another one does.
    ///
    /// Ends early when `tell` says so.
    pub(crate) fn run(
        &mut self,
        end: Nanos,
        tell: &mut dyn FnMut(Nanos, u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (mut told, mut begun) = (0, Nanos::ZERO);
        while begun < end {
            let turn = if self.agenda.islands() > 1 { begun + TURN } else { end };
            let until = turn.min(self.look_at).min(end);
            for island in 0..self.agenda.islands() {
                self.agenda.give_turn(island);
                self.now = begun;
                self.run_island(until, |now, events| {
                    if events - told < TELL_EVERY {
                        return ControlFlow::Continue(());
                    }
                    told = events;
                    tell(now, events)
                })?;
            }
            self.look(until);
            begun = until;
        }
        self.now = end;
        tell(end, self.events)
    }

    /// Handles all events of an island before `until`.
    #[inline]
    fn run_island(
        &mut self,
        until: Nanos,
        mut handled: impl FnMut(Nanos, u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        while let Some((at, source)) = self.agenda.next().filter(|&(at, _)| at < until) {
            debug_assert!(at >= self.now, "time runs forwards");
            self.now = at;
            self.events += 1;
            self.happen(source);
            self.settle();
            handled(at, self.events)?;
        }
        ControlFlow::Continue(())
    }

    /// Judges promises at the end of each window that is over by `now`.
    #[cold]
    fn look(&mut self, now: Nanos) {
        while self.look_at <= now.min(self.look_until) {
            for index in 0..self.nodes.len() {
                self.look_at_node(index);
            }
            self.look_at = self.next_look(self.look_at);
        }
    }

    /// The end of the window that begins at `begun`. A rest of the run that is shorter than a window belongs to the last one.
    pub(crate) fn next_look(&self, begun: Nanos) -> Nanos {
        if begun >= self.look_until {
            return Nanos::new(u64::MAX);
        }
        let next = begun + self.look_every;
        if next + self.look_every > self.look_until { self.look_until } else { next }
    }

    fn look_at_node(&mut self, index: usize) {
        let Some(mut watch) = self.nodes[index].watch.take() else { return };
        let node = &self.nodes[index];
        let nic = match &node.carrier {
            Carrier::Nic { nic, .. } => Some(nic),
            Carrier::Plain | Carrier::Limiter { .. } => None,
        };
        let receive = node.receive.as_deref();
        let worked = nic.and_then(|nic| nic.cpu()).unwrap_or_default();
        let name = |vm: &Vm| self.nodes[vm.node as usize].name.clone();
        let beside = Beside {
            // Each has a core of its own; the busier one counts.
            cpu: worked.max(receive.map(Receive::spent).unwrap_or_default()),
            inward: &|tenant, delivered| {
                receive.map_or(Span::ZERO, |receive| receive.cpu_of(tenant, delivered))
            },
            pressed: &|tenant| {
                let held = nic.into_iter().flat_map(|nic| nic.pressed(tenant));
                held.map(|(vm, times)| (format!("{} at {}", self.names[vm.tenant as usize], name(vm)), times))
                    .collect()
            },
            held_back: &|tenant| nic.map_or(0, |nic| nic.held_back(tenant)),
        };
        watch.look(self.look_at, &beside);
        self.nodes[index].watch = Some(watch);
    }

    /// The counters of a node, if promises are judged there.
    #[inline]
    fn watch(&mut self, node: u32) -> Option<&mut Watch> {
        self.nodes[node as usize].watch.as_deref_mut()
    }

    #[inline]
    fn happen(&mut self, source: SourceId) {
        match self.sources[source as usize] {
            Source::Link(link) => self.arrive(link),
            Source::Carrier(node) => self.drive(node),
            Source::Socket(socket) => {
                self.agenda.clear(source);
                self.socket_timeout(socket);
            }
            Source::Receive(node) => self.received(node),
            Source::Core(core) => self.core_done(core),
            Source::Timeline => self.change(),
            Source::Fault => self.apply_faults(),
            Source::Epoch(node) => self.end_epoch(node),
            Source::Feedback => self.hear(source),
            Source::Press(node) => self.press(node),
            Source::Notice => self.hear_notices(),
            Source::Sample => self.sample(),
            Source::App(app, timer) => {
                self.agenda.clear(source);
                self.with_app(app, |app, world| app.timeout(world, timer));
            }
        }
    }

    /// Applies the changes of policies that are due.
    fn change(&mut self) {
        let due = |at: Span, now: Nanos| Nanos::ZERO + at <= now;
        while let Some(change) = self.timeline.pop_if(|change| due(change.at, self.now)) {
            if change.setting == Setting::Policy {
                self.change_policies();
                continue;
            }
            for node in &mut self.nodes {
                if let Carrier::Nic { nic, .. } = &mut node.carrier {
                    nic.change(&change);
                }
            }
        }
        let next = self.timeline.last().map(|change| Nanos::ZERO + change.at);
        self.agenda.keep(self.timeline_source, next);
    }

    /// Puts the next policies of all hosts in force, as a reload does. Packets that wait stay, in their flows' order.
    fn change_policies(&mut self) {
        for (node, checked) in self.policies.pop().into_iter().flatten() {
            let mut flows: BTreeMap<QueueId, (u32, Fields)> = BTreeMap::new();
            for flow in &self.flows {
                for (back, (from, _)) in flow.legs_with_direction() {
                    if let (true, Some(tenant), Some(queue)) = (from.node == node, from.tenant, from.queue) {
                        flows.entry(queue).or_insert((tenant, flow.fields(back)));
                    }
                }
            }
            if let Carrier::Nic { nic, .. } = &mut self.nodes[node as usize].carrier {
                nic.install(&checked, &self.names, &flows, self.now);
                self.offered.push(node);
            }
        }
    }

    /// Ends a host's control epoch.
    fn end_epoch(&mut self, node: u32) {
        let Some(control) = &mut self.control else { return };
        let here = &mut self.nodes[node as usize];
        control.end_epoch(node, here.receive.as_deref_mut(), here.press.as_deref_mut(), self.now);
        self.agenda.keep(control.source, control.next_message());
        self.steer(node);
    }

    /// Delivers the messages between hosts that have arrived.
    fn hear(&mut self, source: SourceId) {
        while let Some(node) = self.control.as_mut().and_then(|control| control.receive(self.now)) {
            self.steer(node);
        }
        let next = self.control.as_ref().and_then(|control| control.next_message());
        self.agenda.keep(source, next);
    }

    /// Carries out the orders of a host's agent, and schedules the end of its epoch.
    fn steer(&mut self, node: u32) {
        let Some(control) = &mut self.control else { return };
        if let Some((source, next)) = control.timeout(node) {
            self.agenda.keep(source, next);
        }
        for (tenant, peer, limits) in control.orders(node) {
            if let Carrier::Nic { nic, .. } = &mut self.nodes[node as usize].carrier {
                nic.obey(tenant, peer, limits);
                self.offered.push(node);
            }
        }
    }

    /// Drives the carriers that were offered packets or orders, and delivers the packets that stay inside a host.
    fn settle(&mut self) {
        loop {
            while let Some(node) = self.offered.pop() {
                self.drive(node);
            }
            if let Some(packet) = self.completed.pop() {
                self.credit(&packet);
            } else if let Some(packet) = self.local.pop_front() {
                self.arrive_inside(packet);
            } else {
                return;
            }
        }
    }

    /// Calls `act` with a workload and the world that it is part of.
    fn with_app(&mut self, index: u32, act: impl FnOnce(&mut App, &mut Self)) {
        let mut app = core::mem::take(&mut self.apps[index as usize]);
        act(&mut app, self);
        self.apps[index as usize] = app;
    }

    /// Packets of each workload that are still under way.
    pub(crate) fn under_way(&self) -> Vec<u64> {
        let mut count = vec![0; self.apps.len()];
        let nics = self.nodes.iter().filter_map(|node| match &node.carrier {
            Carrier::Nic { nic, .. } => Some(nic),
            Carrier::Plain | Carrier::Limiter { .. } => None,
        });
        let limiters = self.nodes.iter().filter_map(|node| node.carrier.limiter());
        let held = nics.flat_map(|nic| nic.holds());
        let on_cores = self.cores.iter().flat_map(Core::holds).map(|packet| (packet, packet.frames()));
        let queued = limiters.flat_map(Limiter::holds);
        let travelling =
            self.links.iter().flat_map(|end| end.link.under_way()).map(|slot| &self.packets[slot]);
        let received =
            self.nodes.iter().filter_map(|node| node.receive.as_ref()).flat_map(|ring| ring.holds());
        let paced =
            self.nodes.iter().filter_map(|node| node.press.as_ref()).flat_map(|press| press.waiting());
        let held = held.chain(paced.map(|packet| (packet, packet.frames())));
        let frames = queued.chain(travelling).chain(received).chain(&self.local).map(|packet| (packet, 1));
        for (packet, frames) in held.chain(on_cores).chain(frames) {
            count[self.flows[packet.flow as usize].workload as usize] += u64::from(frames);
        }
        count
    }
}

impl Carrier {
    /// Descriptors that a tenant may still have here.
    pub(crate) fn room(&self, tenant: u32) -> u32 {
        match self {
            Self::Nic { nic, .. } => nic.room(tenant),
            Self::Plain | Self::Limiter { .. } => 0,
        }
    }

    /// The limiter, if this is one.
    pub(crate) fn limiter(&self) -> Option<&Limiter> {
        match self {
            Self::Limiter { limiter, .. } => Some(limiter),
            Self::Plain | Self::Nic { .. } => None,
        }
    }
}

/// How long an island's turn is. Its state is fetched once for each, which should be little beside the work on it.
const TURN: Span = Span::millis(10);
/// Events between two calls of `tell`.
const TELL_EVERY: u64 = 1 << 16;
