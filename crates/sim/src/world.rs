//! A world while it runs: hosts, links and flows, and the loop that moves them from moment to moment.
//!
//! Why: whatever happens, happens at one moment, and in one order.
//! From: discrete-event simulation; a link, an engine or a timer is one source of events with one next moment.
//! Not here: how a world comes about (`build`), what workloads send (`traffic`), and a packet's way (`journey`).
//! Invariant: nothing depends on anything but the world's description and its seed; for every workload, packets sent
//! are packets delivered, dropped for a counted reason, or still under way.

mod journey;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use plimsoll_nic::QueueId;
use plimsoll_policy::{Fields, Metadata};
use plimsoll_scenario::Change;
use plimsoll_units::{Nanos, Span};

use crate::agenda::{Agenda, SourceId};
use crate::control::{Control, Vm};
use crate::cores::Core;
use crate::fault::Faults;
use crate::host_nic::HostNic;
use crate::limiter::Limiter;
use crate::link::Link;
use crate::meter::Meter;
use crate::packet::Packet;
use crate::receive::Receive;
use crate::tcp::Connection;
use crate::trace::Tracer;
use crate::traffic::App;
use crate::watch::{Beside, Watch};

/// Everything that exists in a run.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) agenda: Agenda,
    pub(crate) sources: Vec<Source>,
    pub(crate) links: Vec<LinkEnd>,
    pub(crate) nodes: Vec<Node>,
    /// The link towards each node, from each node: `routes[from * nodes + to]`.
    pub(crate) routes: Vec<u32>,
    pub(crate) flows: Vec<Flow>,
    pub(crate) connections: Vec<Socket>,
    pub(crate) apps: Vec<App>,
    pub(crate) meters: Vec<Meter>,
    pub(crate) tallies: Vec<Tally>,
    pub(crate) tracer: Option<Box<Tracer>>,
    pub(crate) events: u64,
    pub(crate) hops: u64,
    /// Engines that have been offered something in this moment.
    pub(crate) offered: Vec<u32>,
    /// Packets between two tenants of one host.
    pub(crate) local: VecDeque<Packet>,
    /// Packets whose senders may send as much again.
    pub(crate) completed: Vec<Packet>,
    /// Tenants' cores, where what they do takes time.
    pub(crate) cores: Vec<Core>,
    /// How receivers control senders, where they do.
    pub(crate) control: Option<Box<Control>>,
    /// How many tenants there are: on the way in, a number for what is for none of them.
    pub(crate) tenants: u32,
    /// What they are called.
    pub(crate) names: Vec<String>,
    /// What changes in policies, the last first.
    pub(crate) timeline: Vec<Change>,
    pub(crate) timeline_source: SourceId,
    /// Whether tenants' packets travel in outer headers that the fabric may mark.
    pub(crate) encapsulated: bool,
    /// What goes wrong.
    pub(crate) faults: Faults,
    /// Tenants whose guests take nothing from their devices.
    pub(crate) stalled: Vec<u32>,
    /// Workloads whose datagrams claim to come from others.
    pub(crate) spoofed: Vec<bool>,
    /// When the next look is due at what passed, and how long after that one the next.
    pub(crate) look_at: Nanos,
    pub(crate) look_every: Span,
    /// When the run is over.
    pub(crate) look_until: Nanos,
}

/// What a source of events is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The next packet arrives at a link's far end.
    Link(u32),
    /// An engine's link is free, or one of its limits lets go.
    Carrier(u32),
    /// The CPU behind a receive ring is through with a packet.
    Receive(u32),
    /// A connection's end point has a deadline.
    Socket(u32),
    /// A workload's own timer.
    App(u32, u32),
    /// A tenant's core is through with something.
    Core(u32),
    /// Something in the policy changes.
    Timeline,
    /// Something goes wrong.
    Fault,
    /// A host's control epoch is over.
    Epoch(u32),
    /// Feedback arrives.
    Feedback,
}

/// A link and where it ends.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LinkEnd {
    pub(crate) to: u32,
    pub(crate) source: SourceId,
    /// Where it leads.
    pub(crate) kind: Way,
    pub(crate) link: Link,
    /// Why it drops, as operators see it.
    pub(crate) full: &'static str,
    /// Its interface in the trace of what arrives, if it is traced so.
    pub(crate) traced: Option<u32>,
}

/// What a link leads to.
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
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) carrier: Carrier,
    pub(crate) receive: Option<Box<Receive>>,
    /// Its daemon is down: nothing comes in or goes out.
    pub(crate) down: bool,
    /// What passed here, where a tenant is promised something.
    pub(crate) watch: Option<Box<Watch>>,
}

/// What carries a node's own packets to its link.
#[derive(Debug)]
pub(crate) enum Carrier {
    /// Nothing: the link's queue takes them.
    Plain,
    /// An engine with a policy, in front of a link.
    Nic {
        /// The engine.
        nic: Box<HostNic>,
        /// Its source of events.
        source: SourceId,
        /// The link that its packets take: the host's own, or the bus to its NIC.
        first: u32,
        /// Its interface in the trace of what leaves, if that is traced.
        traced: Option<u32>,
    },
    /// What holds tenants to their rates without an engine, in front of a link.
    Limiter {
        /// What it is.
        limiter: Box<Limiter>,
        /// Its source of events.
        source: SourceId,
        /// The link.
        link: u32,
    },
}

/// Packets with the same addresses, protocol and ports, and those that answer them.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) workload: u32,
    /// The client's end, and the server's.
    pub(crate) ends: [End; 2],
    pub(crate) protocol: u8,
    /// The first of its two connections' end points, for TCP.
    pub(crate) socket: u32,
}

/// One end of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) node: u32,
    /// Whose packets it sends; nobody's beyond the uplink.
    pub(crate) tenant: Option<u32>,
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) dscp: u8,
    /// The engine's flow queue, once there is one.
    pub(crate) queue: Option<QueueId>,
    /// The core that it runs on, if what it does there takes time.
    pub(crate) core: Option<u32>,
}

/// A connection's end point.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Socket {
    pub(crate) source: SourceId,
    pub(crate) flow: u32,
    /// Bytes that its workload has written.
    pub(crate) written: u64,
    /// Closed without a word: what comes is thrown away, and nothing is sent.
    pub(crate) closed: bool,
    pub(crate) tcp: Connection,
}

/// What became of a workload's packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) delivered: u64,
    pub(crate) drops: BTreeMap<&'static str, u64>,
}

/// The route to nowhere.
pub(crate) const NO_LINK: u32 = u32::MAX;

impl World {
    /// Lets everything happen that happens before `end`; `tell` hears of the time now and then.
    pub(crate) fn run(&mut self, end: Nanos, tell: &mut dyn FnMut(Nanos, u64)) {
        let mut told = 0;
        while let Some((at, source)) = self.agenda.next() {
            if at >= end {
                break;
            }
            debug_assert!(at >= self.now, "time runs forwards");
            if at >= self.look_at {
                self.look(at);
            }
            self.now = at;
            self.events += 1;
            self.happen(source);
            self.settle();
            if self.events - told >= TELL_EVERY {
                told = self.events;
                tell(at, self.events);
            }
        }
        self.look(end);
        self.now = end;
        tell(end, self.events);
    }

    /// Looks at what has passed, at the end of each window that is over by `now`.
    #[cold]
    fn look(&mut self, now: Nanos) {
        while self.look_at <= now.min(self.look_until) {
            for index in 0..self.nodes.len() {
                self.look_at_node(index);
            }
            self.look_at = self.next_look(self.look_at);
        }
    }

    /// When the window ends that begins at a moment: what is left of the run at its end belongs to the last one.
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
            // Each has a core of its own; whichever is nearer to its end is what counts.
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

    /// What passed where a packet's sender, or its receiver, lives.
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
            Source::Fault => self.go_wrong(),
            Source::Epoch(node) => self.end_epoch(node),
            Source::Feedback => self.hear(source),
            Source::App(app, timer) => {
                self.agenda.clear(source);
                self.with_app(app, |app, world| app.timeout(world, timer));
            }
        }
    }

    /// Tells every engine what has changed by now.
    fn change(&mut self) {
        let due = |at: Span, now: Nanos| Nanos::ZERO + at <= now;
        while let Some(change) = self.timeline.pop_if(|change| due(change.at, self.now)) {
            for node in &mut self.nodes {
                if let Carrier::Nic { nic, .. } = &mut node.carrier {
                    nic.change(&change);
                }
            }
        }
        let next = self.timeline.last().map(|change| Nanos::ZERO + change.at);
        self.agenda.keep(self.timeline_source, next);
    }

    /// A receiver decides what its senders may send.
    fn end_epoch(&mut self, node: u32) {
        let Some(control) = &mut self.control else { return };
        control.end_epoch(node, self.nodes[node as usize].receive.as_deref_mut(), self.now);
        self.agenda.keep(control.source, control.next_message());
        self.steer(node);
    }

    /// Hosts hear what receivers allow them.
    fn hear(&mut self, source: SourceId) {
        while let Some(node) = self.control.as_mut().and_then(|control| control.receive(self.now)) {
            self.steer(node);
        }
        let next = self.control.as_ref().and_then(|control| control.next_message());
        self.agenda.keep(source, next);
    }

    /// Carries out what a host's agent orders, and notes when its epoch ends.
    pub(crate) fn steer(&mut self, node: u32) {
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

    /// Drives the engines that were offered something, and hands over what stays inside a host.
    fn settle(&mut self) {
        loop {
            while let Some(node) = self.offered.pop() {
                self.drive(node);
            }
            if let Some(packet) = self.completed.pop() {
                self.credit(&packet);
            } else if let Some(packet) = self.local.pop_front() {
                self.deliver_at_once(packet);
            } else {
                return;
            }
        }
    }

    /// Lets a workload act on the world that it is part of.
    pub(crate) fn with_app(&mut self, index: u32, act: impl FnOnce(&mut App, &mut Self)) {
        let mut app = core::mem::take(&mut self.apps[index as usize]);
        act(&mut app, self);
        self.apps[index as usize] = app;
    }

    /// Wakes a workload's timer at a moment, or never.
    pub(crate) fn set_timer(&mut self, source: SourceId, at: Option<Nanos>) {
        self.agenda.keep(source, at);
    }

    /// Packets of each workload that are still somewhere.
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
        let travelling = self.links.iter().flat_map(|end| end.link.under_way());
        let received =
            self.nodes.iter().filter_map(|node| node.receive.as_ref()).flat_map(|ring| ring.holds());
        let frames = queued.chain(travelling).chain(received).chain(&self.local).map(|packet| (packet, 1));
        for (packet, frames) in held.chain(on_cores).chain(frames) {
            count[self.flows[packet.flow as usize].workload as usize] += u64::from(frames);
        }
        count
    }
}

impl Carrier {
    /// What holds tenants to their rates, if that is no engine.
    pub(crate) fn limiter(&self) -> Option<&Limiter> {
        match self {
            Self::Limiter { limiter, .. } => Some(limiter),
            Self::Plain | Self::Nic { .. } => None,
        }
    }
}

impl End {
    /// The vNIC, if it is a tenant's.
    fn vm(&self) -> Option<Vm> {
        self.tenant.map(|tenant| Vm { tenant, node: self.node })
    }

    /// The vNIC, if it is a tenant's on another host.
    pub(crate) fn elsewhere(&self, node: u32) -> Option<Vm> {
        self.vm().filter(|vm| vm.node != node)
    }
}

impl Flow {
    /// From which end to which a packet goes.
    #[inline]
    pub(crate) fn way(&self, back: bool) -> (&End, &End) {
        let [client, server] = &self.ends;
        if back { (server, client) } else { (client, server) }
    }

    /// As classification sees such a packet, but for the tenant.
    fn fields(&self, back: bool) -> Fields {
        let (from, to) = self.way(back);
        Fields {
            tenant: None,
            addresses: Some((from.address.into(), to.address.into())),
            protocol: Some(self.protocol),
            ports: Some((from.port, to.port)),
            dscp: from.dscp,
            vlan: 0,
            metadata: Metadata::default(),
        }
    }
}

/// Events between two words about the time.
const TELL_EVERY: u64 = 1 << 18;

/// How long after the run's end answers are still waited for, as in the lab.
pub(crate) const GRACE: Span = Span::millis(500);
