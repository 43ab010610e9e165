//! A world while it runs: hosts, links and flows, and the loop that moves them from moment to moment.
//!
//! Why: one place sees every packet, so that none is lost without being counted.
//! From: discrete-event simulation; a link, an engine or a timer is one source of events with one next moment.
//! Not here: how a world comes about (`build`), what workloads send (`traffic`).
//! Invariant: nothing depends on anything but the world's description and its seed; for every workload, packets sent
//! are packets delivered, dropped for a counted reason, or still under way.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use plimsoll_nic::QueueId;
use plimsoll_policy::{Fields, Metadata};
use plimsoll_scenario::Change;
use plimsoll_units::{Nanos, Span};

use crate::agenda::{Agenda, SourceId};
use crate::control::{Control, Order, Vm};
use crate::cores::{Core, Work};
use crate::engine::{Engine, Refused};
use crate::fault::{DOWN, Faults};
use crate::limiter::Limiter;
use crate::link::{Link, Offered};
use crate::meter::Meter;
use crate::packet::{Body, Packet};
use crate::receive::{Fate, QUEUE_FULL, Receive};
use crate::tcp::{Connection, Ecn};
use crate::trace::{self, Tracer};
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
    /// Each tenant's weight as a sender, an ordinary one's being a thousand.
    pub(crate) weights: Vec<u32>,
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
    Engine(u32),
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
    Engine {
        /// The engine.
        engine: Box<Engine>,
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
        let engine = match &node.carrier {
            Carrier::Engine { engine, .. } => Some(engine),
            Carrier::Plain | Carrier::Limiter { .. } => None,
        };
        let receive = node.receive.as_deref();
        let worked = engine.and_then(|engine| engine.cpu()).unwrap_or_default();
        let name = |vm: &Vm| self.nodes[vm.node as usize].name.clone();
        let beside = Beside {
            // Each has a core of its own; whichever is nearer to its end is what counts.
            cpu: worked.max(receive.map(Receive::spent).unwrap_or_default()),
            inward: &|tenant, delivered| {
                receive.map_or(Span::ZERO, |receive| receive.cpu_of(tenant, delivered))
            },
            pressed: &|tenant| {
                let held = engine.into_iter().flat_map(|engine| engine.pressed(tenant));
                held.map(|(vm, times)| (format!("{} at {}", self.names[vm.tenant as usize], name(vm)), times))
                    .collect()
            },
            held_back: &|tenant| engine.map_or(0, |engine| engine.held_back(tenant)),
        };
        watch.look(self.look_at, &beside);
        self.nodes[index].watch = Some(watch);
    }

    /// What passed where a packet's sender, or its receiver, lives.
    #[inline]
    fn watch(&mut self, node: u32) -> Option<&mut Watch> {
        self.nodes[node as usize].watch.as_deref_mut()
    }

    /// A packet of a tenant's is lost on its way out.
    fn lose_out(&mut self, packet: &Packet, why: &'static str) {
        let &End { node, tenant, .. } = self.flows[packet.flow as usize].way(packet.back).0;
        if let Some(watch) = self.watch(node) {
            watch.lost(tenant, packet.frames(), why);
        }
        self.lose(packet, why);
    }

    #[inline]
    fn happen(&mut self, source: SourceId) {
        match self.sources[source as usize] {
            Source::Link(link) => self.arrive(link),
            Source::Engine(node) => self.drive(node),
            Source::Socket(socket) => {
                self.agenda.clear(source);
                self.socket_timeout(socket);
            }
            Source::Receive(node) => self.received(node),
            Source::Core(core) => self.core_done(core),
            Source::Timeline => self.change(),
            Source::Fault => self.go_wrong(),
            Source::Epoch(node) => self.end_epoch(node, source),
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
                if let Carrier::Engine { engine, .. } = &mut node.carrier {
                    engine.change(&change);
                }
            }
        }
        let next = self.timeline.last().map(|change| Nanos::ZERO + change.at);
        self.agenda.keep(self.timeline_source, next);
    }

    /// A receiver decides what its senders may send.
    fn end_epoch(&mut self, node: u32, source: SourceId) {
        let Some(control) = &mut self.control else { return };
        let receive = self.nodes[node as usize].receive.as_deref_mut();
        let Some((next, lapsed)) = control.epoch(node, receive, self.now) else {
            return self.agenda.clear(source);
        };
        self.agenda.keep(source, Some(next));
        self.agenda.keep(control.source, control.next_message());
        lapsed.into_iter().for_each(|order| self.obey(node, order));
    }

    /// A sender hears what a receiver allows it.
    fn hear(&mut self, source: SourceId) {
        while let Some((node, order)) =
            self.control.as_mut().and_then(|control| control.receive(&self.weights, self.now))
        {
            self.obey(node, order);
        }
        let next = self.control.as_ref().and_then(|control| control.next_message());
        self.agenda.keep(source, next);
    }

    fn obey(&mut self, node: u32, (tenant, peer, limits): Order) {
        if let Carrier::Engine { engine, .. } = &mut self.nodes[node as usize].carrier {
            engine.obey(tenant, peer, limits);
            self.offered.push(node);
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

    /// An end of a flow sends a packet.
    pub(crate) fn send(&mut self, packet: Packet) {
        let flow = &self.flows[packet.flow as usize];
        let (core, workload) = (flow.way(packet.back).0.core, flow.workload as usize);
        self.tallies[workload].sent += u64::from(packet.frames());
        match core {
            None => self.transmit(packet),
            Some(core) if self.give(core, Work::Send(packet)) => {}
            Some(_) => self.lose(&packet, "core_busy"),
        }
    }

    /// Gives a core work; false if it does not take it.
    pub(crate) fn give(&mut self, core: u32, work: Work) -> bool {
        let core = &mut self.cores[core as usize];
        let taken = core.take(work, self.now);
        self.agenda.keep(core.source, core.next());
        taken
    }

    fn core_done(&mut self, core: u32) {
        while let Some(work) = self.cores[core as usize].done(self.now) {
            match work {
                Work::Send(packet) => self.transmit(packet),
                Work::Answer(socket, bytes) => self.write(socket, bytes),
            }
        }
        let core = &self.cores[core as usize];
        self.agenda.keep(core.source, core.next());
    }

    /// A packet comes to what carries it to its host's link.
    fn transmit(&mut self, mut packet: Packet) {
        let flow = &self.flows[packet.flow as usize];
        let (from, to) = flow.way(packet.back);
        let node = from.node;
        packet.carried = self.encapsulated && from.tenant.is_some();
        let from = *from;
        if let Some(watch) = &mut self.nodes[node as usize].watch {
            watch.offered(from.tenant, packet.len);
        }
        if self.nodes[node as usize].down {
            self.completed.push(packet); // nobody keeps the guest's buffers any more
            return self.lose_out(&packet, DOWN);
        }
        let carrier = &mut self.nodes[node as usize].carrier;
        if let (Carrier::Limiter { limiter, .. }, Some(tenant)) = (&mut *carrier, from.tenant) {
            if limiter.offer(tenant, packet, self.now) {
                return self.offered.push(node);
            }
            return self.lose(&packet, "queue full");
        }
        let Carrier::Engine { engine, .. } = carrier else {
            return if to.node == node { self.local.push_back(packet) } else { self.forward(node, packet) };
        };
        let Some(tenant) = from.tenant else { return self.forward(node, packet) };
        let queue = match from.queue {
            Some(queue) => queue,
            None => match engine.open(flow.fields(packet.back), tenant, to.elsewhere(node)) {
                Some(queue) => {
                    self.flows[packet.flow as usize].ends[usize::from(packet.back)].queue = Some(queue);
                    queue
                }
                None => return self.lose_out(&packet, "no_queue"),
            },
        };
        let late = engine.completes_late();
        let why = match engine.offer(tenant, queue, packet, self.now) {
            Ok(()) => {
                if self.offered.last() != Some(&node) {
                    self.offered.push(node);
                }
                return;
            }
            Err(Refused::Engine(why)) => why,
            Err(Refused::GuestQueue) => "guest_queue_full",
        };
        if late {
            self.completed.push(packet); // the guest learns that its buffer is free
        }
        self.lose_out(&packet, why);
    }

    /// Lets leave what a limiter lets pass now.
    fn drive_limiter(&mut self, node: u32) {
        let now = self.now;
        while let Carrier::Limiter { limiter, link, .. } = &mut self.nodes[node as usize].carrier
            && let Some(packet) = limiter.dequeue(now, self.links[*link as usize].link.last_departure())
        {
            let here = self.flows[packet.flow as usize].way(packet.back).1.node == node;
            if here { self.local.push_back(packet) } else { self.forward(node, packet) }
        }
        if let Carrier::Limiter { limiter, source, link } = &self.nodes[node as usize].carrier {
            let free = self.links[*link as usize].link.last_departure();
            let next = limiter.next(now).map(|next| if next <= now { free.max(next) } else { next });
            self.agenda.keep(*source, next);
        }
    }

    /// Rings an engine's doorbells, and lets leave what may leave now.
    fn drive(&mut self, node: u32) {
        if matches!(self.nodes[node as usize].carrier, Carrier::Limiter { .. }) {
            return self.drive_limiter(node);
        }
        let here = &mut self.nodes[node as usize];
        let watch = &mut here.watch;
        let Carrier::Engine { engine, source, first, traced } = &mut here.carrier else { return };
        let (links, flows, local, tallies) =
            (&mut self.links, &self.flows, &mut self.local, &mut self.tallies);
        let (now, agenda, completed) = (self.now, &mut self.agenda, &mut self.completed);
        let (tracer, meters) = (&mut self.tracer, &mut self.meters);
        while !engine.is_busy(now) {
            engine.ring(now);
            let some = engine.poll(now, |packet, transmit, waited, nic| {
                let flow = &flows[packet.flow as usize];
                if transmit.last {
                    meters[flow.workload as usize].leave(waited, packet.back, now);
                }
                if let (Some(interface), Some(tracer)) = (*traced, tracer.as_mut()) {
                    let comment = trace::decision(transmit, nic, now);
                    tracer.record(interface, flow, &packet, now, Some(&comment));
                }
                let (from, to) = flow.way(packet.back);
                if let Some(watch) = watch {
                    watch.left(from.tenant, packet.len, transmit.last.then_some((transmit.limited, waited)));
                }
                if to.node == node {
                    local.push_back(packet);
                    return now;
                }
                let end = &mut links[*first as usize];
                let lost = end.offer(packet, now, agenda);
                if let Some(why) = lost {
                    *tallies[flow.workload as usize].drops.entry(why).or_default() += 1;
                }
                if let Some(watch) = watch {
                    watch.crossed(from.tenant, packet.len, lost.is_some());
                }
                end.link.last_departure()
            });
            let late = engine.completes_late();
            engine.free_completed(now, |packet, why| {
                let flow = &flows[packet.flow as usize];
                let lost = tallies[flow.workload as usize].drops.entry(why.name()).or_default();
                *lost += u64::from(packet.frames());
                if let Some(watch) = watch {
                    watch.lost(flow.way(packet.back).0.tenant, packet.frames(), why.name());
                }
                completed.extend(late.then_some(packet));
            });
            if late {
                engine.move_completed(completed);
            }
            if !some {
                break;
            }
        }
        agenda.keep(*source, engine.next());
    }

    /// Puts a packet on the link towards its destination.
    fn forward(&mut self, node: u32, packet: Packet) {
        let to = self.flows[packet.flow as usize].way(packet.back).1.node;
        let link = self.routes[node as usize * self.nodes.len() + to as usize];
        assert!(link != NO_LINK, "every flow has a route, checked when the world is built");
        if let Some(why) = self.links[link as usize].offer(packet, self.now, &mut self.agenda) {
            let &End { node, tenant, .. } = self.flows[packet.flow as usize].way(packet.back).0;
            if let Some(watch) = self.watch(node) {
                watch.strayed(tenant);
            }
            self.lose(&packet, why);
        }
    }

    /// A link's next packet has arrived at its far end.
    #[inline]
    fn arrive(&mut self, link: u32) {
        let end = &mut self.links[link as usize];
        let (node, kind, source) = (end.to, end.kind, end.source);
        let Some(packet) = end.link.arrive() else { return self.agenda.clear(source) };
        self.agenda.renew(source, end.link.next_arrival());
        self.hops += 1;
        let flow = &self.flows[packet.flow as usize];
        if let (Some(interface), Some(tracer)) = (self.links[link as usize].traced, &mut self.tracer) {
            tracer.record(interface, flow, &packet, self.now, None);
        }
        let (from, to) = flow.way(packet.back);
        if kind == Way::Uplink && from.tenant.is_some() {
            self.meters[flow.workload as usize].cross(packet.len, packet.back, self.now);
        }
        if to.node != node {
            return self.forward(node, packet);
        }
        let to = *to;
        if let Some(watch) = &mut self.nodes[node as usize].watch {
            watch.came(to.tenant, packet.len);
        }
        if self.nodes[node as usize].down {
            if let Some(watch) = self.watch(node) {
                watch.nic_full(to.tenant);
            }
            return self.lose(&packet, DOWN);
        }
        let flow = &self.flows[packet.flow as usize];
        let from = flow.way(packet.back).0;
        let Some(receive) = &mut self.nodes[node as usize].receive else {
            return self.deliver_at_once(packet);
        };
        let mut stranger = false;
        if let (Some(control), Some(receiver)) = (&mut self.control, to.vm()) {
            let sender = from.vm().filter(|_| packet.back || !self.spoofed[flow.workload as usize]);
            let weight = sender.map_or(0, |sender| self.weights[sender.tenant as usize]);
            stranger = control.note(receiver, sender, weight, packet.marked);
        }
        if receive.offer(packet, to.tenant.unwrap_or(self.tenants), stranger, self.now) {
            self.agenda.keep(receive.source, receive.next());
        } else {
            if let Some(watch) = self.watch(node) {
                watch.nic_full(to.tenant);
            }
            self.lose(&packet, "rx_ring_full");
        }
    }

    /// The CPU behind a receive ring is through with something.
    fn received(&mut self, node: u32) {
        let Some(receive) = &mut self.nodes[node as usize].receive else { return };
        let done = receive.finish(self.now);
        self.agenda.keep(receive.source, receive.next());
        match done {
            Some((packet, Fate::Delivered { waited, in_nic })) => {
                let workload = self.flows[packet.flow as usize].workload as usize;
                self.meters[workload].wait(waited, in_nic, packet.back, self.now);
                let tenant = self.flows[packet.flow as usize].way(packet.back).1.tenant;
                let stalled = self.is_stalled(&packet);
                if let Some(watch) = self.watch(node) {
                    let with_us = Span::ns(waited.as_u64() - in_nic.as_u64());
                    match stalled {
                        true => watch.unread(tenant),
                        false => watch.delivered(tenant, packet.len, Some(in_nic), with_us),
                    }
                }
                if stalled {
                    return self.lose(&packet, "guest_full");
                }
                self.deliver(packet);
            }
            Some((packet, Fate::Dropped(why))) => {
                let tenant = self.flows[packet.flow as usize].way(packet.back).1.tenant;
                if let Some(watch) = self.watch(node) {
                    match why {
                        QUEUE_FULL => watch.queue_full(tenant),
                        _ => watch.over_max(tenant),
                    }
                }
                self.lose(&packet, why);
            }
            None => {}
        }
    }

    /// It had to wait for nobody there.
    fn deliver_at_once(&mut self, packet: Packet) {
        let &End { node, tenant, .. } = self.flows[packet.flow as usize].way(packet.back).1;
        if let Some(watch) = self.watch(node) {
            watch.took(tenant, packet.len);
        }
        self.deliver(packet);
    }

    /// A packet has reached the end of its flow.
    fn deliver(&mut self, packet: Packet) {
        let flow = &self.flows[packet.flow as usize];
        let (workload, socket) = (flow.workload, flow.socket);
        self.tallies[workload as usize].delivered += 1;
        self.meters[workload as usize].deliver(packet.len, packet.back, self.now);
        match packet.body {
            Body::Datagram { number, last, .. } => {
                if last {
                    self.with_app(workload, |app, world| {
                        app.datagram(world, packet.flow, packet.back, number)
                    });
                }
            }
            Body::Tcp(mut tcp) => {
                if packet.ce
                    && let Some(segment) = &mut tcp.segment
                {
                    segment.ecn = Ecn::Ce;
                }
                self.socket_packet(socket + u32::from(!packet.back), &tcp);
            }
        }
    }

    pub(crate) fn lose(&mut self, packet: &Packet, why: &'static str) {
        self.lose_frames(packet, packet.frames(), why);
    }

    /// Only so many frames of it.
    pub(crate) fn lose_frames(&mut self, packet: &Packet, frames: u32, why: &'static str) {
        let workload = self.flows[packet.flow as usize].workload as usize;
        *self.tallies[workload].drops.entry(why).or_default() += u64::from(frames);
    }

    /// Wakes a workload's timer at a moment, or never.
    pub(crate) fn set_timer(&mut self, source: SourceId, at: Option<Nanos>) {
        self.agenda.keep(source, at);
    }

    /// Packets of each workload that are still somewhere.
    pub(crate) fn under_way(&self) -> Vec<u64> {
        let mut count = vec![0; self.apps.len()];
        let engines = self.nodes.iter().filter_map(|node| match &node.carrier {
            Carrier::Engine { engine, .. } => Some(engine),
            Carrier::Plain | Carrier::Limiter { .. } => None,
        });
        let limiters = self.nodes.iter().filter_map(|node| node.carrier.limiter());
        let held = engines.flat_map(|engine| engine.holds());
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
            Self::Plain | Self::Engine { .. } => None,
        }
    }
}

impl LinkEnd {
    /// Puts a packet on the link; answers why not.
    #[inline]
    fn offer(&mut self, packet: Packet, now: Nanos, agenda: &mut Agenda) -> Option<&'static str> {
        match self.link.offer(packet, now) {
            Offered::Taken { first: true } => agenda.keep(self.source, self.link.next_arrival()),
            Offered::Taken { first: false } => {}
            Offered::Full => return Some(self.full),
            Offered::Lost => return Some(LOST),
        }
        None
    }
}

impl End {
    /// The vNIC, if it is a tenant's.
    fn vm(&self) -> Option<Vm> {
        self.tenant.map(|tenant| Vm { tenant, node: self.node })
    }

    /// The same, if it is on another host.
    fn elsewhere(&self, node: u32) -> Option<Vm> {
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

/// Why packets vanish on a link that loses some.
const LOST: &str = "lost on a link";

/// Events between two words about the time.
const TELL_EVERY: u64 = 1 << 18;

/// How long after the run's end answers are still waited for, as in the lab.
pub(crate) const GRACE: Span = Span::millis(500);
