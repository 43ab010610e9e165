//! Rate control between hosts: epochs at receivers, limits on their way, and what senders obey.
//!
//! Why: what is simulated is the `control` that runs live; only clocks and the way of a message are models.
//! From: PicNIC §5.3 and §5.5; feedback takes as long as the file says, whoever carries it.
//! Not here: the laws (`control`), what a host measures (`nic`'s ingress) and enforces (`engine`).
//! Invariant: a message goes to each heavy sender once an epoch; what is older than what was heard from that host changes
//! nothing, as `feedback` has it live; a limit that is not heard again lapses.

use std::collections::BTreeMap;

use plimsoll_control::{
    BandwidthLaw, Distributor, Envelope, FabricLaw, Heavy, Laws, Limits, Marks, Measured, Obeyed,
    PacketRateLaw, Receivers, Senders,
};
use plimsoll_nic::Ingress;
use plimsoll_scenario::{Control as Spec, ControlLevel, Fate, FeedbackFaults};
use plimsoll_units::{BitRate, Nanos, Span};

use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::receive::Receive;

/// One vNIC: a tenant, and the node that it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Vm {
    pub(crate) tenant: u32,
    pub(crate) node: u32,
}

/// The control of all hosts.
#[derive(Debug)]
pub(crate) struct Control {
    spec: Spec,
    /// By node; none where nothing is controlled, or whose daemon is down.
    hosts: Vec<Option<Host>>,
    /// The same as they begin, for daemons that come back.
    fresh: Vec<Option<Host>>,
    /// How far each node's wall clock is ahead.
    clocks: Vec<i64>,
    /// Messages under way, by arrival and then by the order of sending.
    messages: BTreeMap<(Nanos, u64), Message>,
    posted: u64,
    group: Option<Group>,
    faults: FeedbackFaults,
    chance: Chance,
    pub(crate) source: SourceId,
}

/// Load balancers, and who divides among them what they may send.
#[derive(Debug)]
struct Group {
    members: Vec<Vm>,
    distributor: Distributor,
}

/// What a host is told.
#[derive(Clone, Copy, Debug)]
struct Message {
    to: To,
    receiver: Vm,
    limits: Limits,
    sequence: u64,
}

/// Who is.
#[derive(Clone, Copy, Debug)]
enum To {
    /// A sender, for its weight.
    Sender(Vm),
    /// The place that divides among load balancers.
    Distributor,
    /// One of those: this is its own part.
    Balancer(Vm),
}

/// What becomes of a host's messages of one epoch to another host: they travel together.
#[derive(Clone, Copy, Debug)]
struct Journey {
    to: u32,
    lost: bool,
    late: Span,
    again: Option<Span>,
}

/// One host's part.
#[derive(Clone, Debug)]
struct Host {
    source: SourceId,
    next: Nanos,
    /// Of its messages; begins at its wall clock's time, so that nothing is used twice.
    sequence: u64,
    /// The newest that was heard from each node.
    newest: BTreeMap<u32, u64>,
    epochs: u64,
    /// Tenants that live here.
    vms: Vec<u32>,
    receivers: Receivers,
    senders: Vec<Senders>,
    marks: Vec<Marks>,
    measured: Vec<Measured>,
    /// What others allow, by sender here and receiver there.
    obeyed: Obeyed<(u32, Vm)>,
}

/// What a sender is held to from now on; none: to nothing.
pub(crate) type Order = (u32, Vm, Option<Limits>);

impl Control {
    pub(crate) fn new(spec: Spec, nodes: usize, source: SourceId) -> Self {
        Self {
            spec,
            hosts: (0..nodes).map(|_| None).collect(),
            fresh: (0..nodes).map(|_| None).collect(),
            clocks: vec![0; nodes],
            messages: BTreeMap::new(),
            posted: 0,
            group: None,
            faults: FeedbackFaults::default(),
            chance: Chance::of(0, "feedback"),
            source,
        }
    }

    /// Lets messages go wrong.
    pub(crate) fn disturb(&mut self, faults: FeedbackFaults, chance: Chance) {
        (self.faults, self.chance) = (faults, chance);
    }

    /// Load balancers, with their weights.
    pub(crate) fn balance(&mut self, members: Vec<(Vm, u32)>) {
        let weights: Vec<u32> = members.iter().map(|&(_, weight)| weight.saturating_mul(1_000)).collect();
        let members = members.into_iter().map(|(vm, _)| vm).collect();
        self.group = Some(Group { members, distributor: Distributor::new(&weights) });
    }

    /// A host with these tenants, their envelopes and the delays that they keep to where these are their own, behind a
    /// line of this rate. Its first epoch ends after one.
    pub(crate) fn add(
        &mut self,
        node: u32,
        source: SourceId,
        line: BitRate,
        level: ControlLevel,
        vms: &[(u32, Envelope, Option<Span>)],
    ) {
        let spec = &self.spec;
        let law = PacketRateLaw { cut: spec.cut, ..PacketRateLaw::new(spec.threshold) };
        let laws = Laws {
            bandwidth: BandwidthLaw { gain: spec.gain, ..BandwidthLaw::default() },
            packets: (level == ControlLevel::Full).then_some(law),
            idle: spec.idle,
            fabric: spec.ecn.then(FabricLaw::default),
        };
        let envelopes: Vec<Envelope> = vms.iter().map(|&(_, envelope, _)| envelope).collect();
        let mut receivers = Receivers::new(line, laws, &envelopes);
        for (vm, &(_, _, threshold)) in vms.iter().enumerate() {
            threshold.into_iter().for_each(|threshold| receivers.set_threshold(vm, threshold));
        }
        let host = Host {
            source,
            next: Nanos::ZERO + spec.epoch,
            sequence: EPOCH_OF_CLOCKS,
            newest: BTreeMap::new(),
            epochs: 0,
            vms: vms.iter().map(|&(tenant, ..)| tenant).collect(),
            receivers,
            senders: vms.iter().map(|&(tenant, ..)| Senders::new(u64::from(tenant))).collect(),
            marks: vec![Marks::default(); vms.len()],
            measured: vec![Measured::default(); vms.len()],
            obeyed: Obeyed::new(MOST_LIMITS, spec.lapse),
        };
        self.hosts[node as usize] = Some(host.clone());
        self.fresh[node as usize] = Some(host);
    }

    /// A packet came in for a VM, perhaps with the fabric's mark. Whether its sender is one that no limit reaches: those
    /// count as one together, for anybody can make up who they are.
    #[inline]
    pub(crate) fn note(&mut self, receiver: Vm, sender: Option<Vm>, weight: u32, marked: bool) -> bool {
        let known = sender.filter(|sender| self.fresh[sender.node as usize].is_some());
        let (id, weight) = match known {
            None => (STRANGER, 1_000),
            Some(sender) => match &self.group {
                Some(group) if group.members.contains(&sender) => (GROUP, group.distributor.weight()),
                _ => (sender.id(), weight),
            },
        };
        let Some(host) = &mut self.hosts[receiver.node as usize] else { return false };
        if let Some(vm) = host.vms.iter().position(|&tenant| tenant == receiver.tenant) {
            host.senders[vm].note(id, weight);
            host.marks[vm].packets += 1;
            host.marks[vm].marked += u64::from(marked);
        }
        known.is_none()
    }

    /// The sources of events and their first moments.
    pub(crate) fn moments(&self) -> impl Iterator<Item = (SourceId, Nanos)> {
        self.hosts.iter().flatten().map(|host| (host.source, host.next))
    }

    /// A host's epoch is over. When its next one is, and what has lapsed; nothing of a host whose daemon is down.
    pub(crate) fn epoch(
        &mut self,
        node: u32,
        receive: Option<&mut Receive>,
        now: Nanos,
    ) -> Option<(Nanos, Vec<Order>)> {
        let mut host = self.hosts[node as usize].take()?;
        host.next = now + self.spec.epoch;
        host.epochs += 1;
        let mut lapsed = Vec::new();
        let fallback = self.spec.fallback.map(|bits| Limits { bits, packets: None });
        host.obeyed.expire(now, |(tenant, receiver)| lapsed.push((tenant, receiver, fallback)));
        if let Some(receive) = receive
            && let Some(ingress) = receive.ingress()
        {
            host.measure(ingress);
            host.receivers.epoch(self.spec.epoch, &host.measured);
            for (vm, &tenant) in host.vms.iter().enumerate() {
                receive.allow_strangers(tenant, host.receivers.limits(vm), now);
            }
            self.tell(node, &mut host, now);
            if host.epochs.is_multiple_of(WINDOW) {
                host.senders.iter_mut().for_each(Senders::clear);
            }
        }
        let next = host.next;
        self.hosts[node as usize] = Some(host);
        Some((next, lapsed))
    }

    /// Tells every heavy sender what it may send.
    fn tell(&mut self, node: u32, host: &mut Host, now: Nanos) {
        host.sequence += 1;
        let mut journeys: Vec<Journey> = Vec::new();
        for (vm, &tenant) in host.vms.iter().enumerate() {
            let (limits, receiver) = (host.receivers.limits(vm), Vm { tenant, node });
            for &Heavy { sender, weight, .. } in host.senders[vm].heavy() {
                let (to, limits) = match sender {
                    STRANGER => continue,
                    GROUP => (To::Distributor, limits.of_weight(weight)),
                    sender => (To::Sender(Vm::named(sender)), limits),
                };
                let message = Message { to, receiver, limits, sequence: host.sequence };
                let journey = self.journey(to.node(), &mut journeys);
                self.send(message, journey, now);
            }
        }
    }

    fn journey(&mut self, to: u32, journeys: &mut Vec<Journey>) -> Journey {
        if let Some(known) = journeys.iter().find(|journey| journey.to == to) {
            return *known;
        }
        let Fate { lost, late, again } = self.faults.fate(|| self.chance.unit());
        let journey = Journey { to, lost, late, again };
        journeys.push(journey);
        journey
    }

    fn send(&mut self, message: Message, journey: Journey, now: Nanos) {
        if journey.lost {
            return;
        }
        let arrival = now + self.spec.feedback + journey.late;
        for at in core::iter::once(arrival).chain(journey.again.map(|later| arrival + later)) {
            self.messages.insert((at, self.posted), message);
            self.posted += 1;
        }
    }

    /// When the next message arrives.
    pub(crate) fn next_message(&self) -> Option<Nanos> {
        self.messages.first_key_value().map(|(&(at, _), _)| at)
    }

    /// A message that has arrived and is news, and what its sender must keep to.
    pub(crate) fn receive(&mut self, weights: &[u32], now: Nanos) -> Option<(u32, Order)> {
        loop {
            let first = self.messages.first_entry().filter(|first| first.key().0 <= now)?;
            let message = first.remove();
            let (sender, weight) = match message.to {
                To::Sender(sender) => (sender, weights[sender.tenant as usize]),
                To::Balancer(sender) => (sender, 1_000),
                To::Distributor => {
                    self.distribute(message, now);
                    continue;
                }
            };
            let Some(host) = self.hosts[sender.node as usize].as_mut() else { continue };
            let newest = host.newest.entry(message.receiver.node).or_default();
            if message.sequence < *newest {
                continue; // it comes too late, or its clock was set back: live it might be a replay
            }
            *newest = message.sequence;
            host.obeyed.hear((sender.tenant, message.receiver), message.limits, now);
            let limits = message.limits.of_weight(weight);
            return Some((sender.node, (sender.tenant, message.receiver, Some(limits))));
        }
    }

    /// Tells each load balancer its part, which takes a message of its own.
    fn distribute(&mut self, whole: Message, now: Nanos) {
        let Some(group) = self.group.take() else { return };
        let mut journeys = Vec::new();
        for (&member, limits) in group.members.iter().zip(group.distributor.split(whole.limits)) {
            let journey = self.journey(member.node, &mut journeys);
            self.send(Message { to: To::Balancer(member), limits, ..whole }, journey, now);
        }
        self.group = Some(group);
    }

    /// A host's daemon ends, with all that it knew.
    pub(crate) fn stop(&mut self, node: u32) {
        self.hosts[node as usize] = None;
    }

    /// It is back. Its source of events, and when its first epoch ends.
    pub(crate) fn start(&mut self, node: u32, now: Nanos) -> Option<(SourceId, Nanos)> {
        let mut host = self.fresh[node as usize].clone()?;
        host.next = now + self.spec.epoch;
        let wall = EPOCH_OF_CLOCKS.saturating_add(now.as_u64());
        host.sequence = wall.saturating_add_signed(self.clocks[node as usize]);
        let first = (host.source, host.next);
        self.hosts[node as usize] = Some(host);
        Some(first)
    }

    /// A node's wall clock is set, by so much.
    pub(crate) fn set_clock(&mut self, node: u32, ahead: i64) {
        self.clocks[node as usize] += ahead;
    }
}

impl To {
    /// On which node that is; the distributor's is none of them.
    fn node(self) -> u32 {
        match self {
            Self::Sender(vm) | Self::Balancer(vm) => vm.node,
            Self::Distributor => u32::MAX,
        }
    }
}

impl Host {
    fn measure(&mut self, ingress: &mut Ingress) {
        let seen = self.senders.iter().zip(&mut self.marks);
        for ((&tenant, measured), (senders, marks)) in self.vms.iter().zip(&mut self.measured).zip(seen) {
            let slots = ingress.slots(tenant);
            let seen = ingress.take_epoch(tenant);
            *measured = Measured {
                bytes: seen.bytes,
                served: seen.served,
                delay: seen.mean_wait(),
                occupancy: seen.peak * 1_000 / slots,
                drops: seen.drops,
                weights: senders.weights(),
                least: senders.least().unwrap_or_default(),
                marks: core::mem::take(marks),
            };
        }
    }
}

impl Vm {
    fn id(self) -> u64 {
        u64::from(self.tenant) << 32 | u64::from(self.node)
    }

    fn named(id: u64) -> Self {
        Self { tenant: (id >> 32) as u32, node: id as u32 }
    }
}

/// All senders that no limit reaches.
const STRANGER: u64 = u64::MAX;
/// All load balancers.
const GROUP: u64 = u64::MAX - 1;
/// What wall clocks show when a run begins, in nanoseconds: a clock can be set back by years.
const EPOCH_OF_CLOCKS: u64 = 1 << 60;
/// Epochs in which senders are counted together: a light one sends once in some.
const WINDOW: u64 = 16;
/// Limits that a host keeps.
const MOST_LIMITS: usize = 4_096;
