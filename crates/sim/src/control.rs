//! Rate control between hosts: an agent for each host, its measurements, and the transport of its messages.
//!
//! Why: the simulated agent is the one that runs live; only clocks and the transport are models.
//! From: PicNIC §5.3 and §5.5; feedback takes as long as the file says.
//! Not here: the epoch (`control::Agent`), and enforcing (`host_nic`).
//! Invariant: messages of one epoch from one host to another travel together; each arrives once, twice or not at all, as the
//! file's faults say.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_control::agent::{LocalVm, Settings};
use plimsoll_control::{
    Agent, BandwidthLaw, FabricLaw, HostId, Laws, Limits, Measured, Membership, PacketRateLaw, Vnic,
};
use plimsoll_scenario::{Control, ControlLevel, Fate, FeedbackFaults};
use plimsoll_units::{BitRate, Nanos, Span};

use crate::agenda::SourceId;
use crate::chance::Chance;
use crate::packet::Packet;
use crate::press::Press;
use crate::receive::Receive;

/// A vNIC: a tenant and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Vm {
    pub(crate) tenant: u32,
    pub(crate) node: u32,
}

/// The control of all hosts.
#[derive(Debug)]
pub(crate) struct Agents {
    spec: Control,
    /// By node; none where nothing is controlled.
    hosts: Vec<Option<HostAgent>>,
    /// By node: nanoseconds by which its wall clock is ahead.
    clocks: Vec<i64>,
    /// Messages under way with the node that each goes to, by arrival and then by the order of sending.
    messages: BTreeMap<(Nanos, u64), (u32, Vec<u8>)>,
    posted: u64,
    faults: FeedbackFaults,
    chance: Chance,
    pub(crate) source: SourceId,
}

/// The configuration with which a host's agent starts, and starts again after a fault.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: SourceId,
    /// The rate of the host's line.
    pub(crate) rate: BitRate,
    pub(crate) level: ControlLevel,
    pub(crate) members: Arc<Membership>,
    /// The tenants here, as receivers.
    pub(crate) vms: Vec<LocalVm>,
    /// Pairs of a tenant here and a VM elsewhere that it sends to.
    pub(crate) pairs: Vec<(u32, Vm)>,
}

/// A host's agent and its configuration.
#[derive(Debug)]
struct HostAgent {
    plan: Plan,
    /// None while its daemon is down.
    agent: Option<Agent>,
}

/// The limits of a tenant here to a VM elsewhere from now on; `None` lifts them.
pub(crate) type Order = (u32, Vm, Option<Limits>);

impl Agents {
    pub(crate) fn new(spec: Control, nodes: usize, source: SourceId) -> Self {
        Self {
            spec,
            hosts: (0..nodes).map(|_| None).collect(),
            clocks: vec![0; nodes],
            messages: BTreeMap::new(),
            posted: 0,
            faults: FeedbackFaults::default(),
            chance: Chance::of(0, "feedback"),
            source,
        }
    }

    /// Makes messages get lost, late or repeated.
    pub(crate) fn disturb(&mut self, faults: FeedbackFaults, chance: Chance) {
        (self.faults, self.chance) = (faults, chance);
    }

    /// Adds a host and starts its agent.
    pub(crate) fn add(&mut self, node: u32, plan: Plan) {
        self.hosts[node as usize] = Some(HostAgent { plan, agent: None });
        self.start(node, Nanos::ZERO);
    }

    fn settings(&self, level: ControlLevel) -> Settings {
        let spec = &self.spec;
        let (cut, patience, newest) = (spec.cut, spec.patience, spec.newest);
        let packets = PacketRateLaw { cut, patience, newest, ..PacketRateLaw::new(spec.threshold) };
        let laws = Laws {
            bandwidth: BandwidthLaw { gain: spec.gain, ..BandwidthLaw::default() },
            packets: (level == ControlLevel::Full).then_some(packets),
            idle: spec.idle,
            fabric: spec.ecn.then(FabricLaw::default),
        };
        Settings { epoch: spec.epoch, lapse: spec.lapse, laws }
    }

    fn agent(&mut self, node: u32) -> Option<&mut Agent> {
        self.hosts[node as usize].as_mut()?.agent.as_mut()
    }

    /// Each host's source of events with the end of its first epoch.
    pub(crate) fn moments(&self) -> impl Iterator<Item = (SourceId, Nanos)> {
        let agents = self.hosts.iter().flatten().map(|host| (host.plan.source, host.agent.as_ref()));
        agents.filter_map(|(source, agent)| Some((source, agent?.next_epoch())))
    }

    /// A host's source of events, with the end of its epoch.
    ///
    /// A simulated core polls, as a live one does while packets come: it ends each epoch in time. A live thread that sleeps
    /// asks [`Agent::poll_timeout`] instead, which lets an epoch at rest wait for the next packet. The agent's code is the
    /// same; an epoch that ends in time has the same length at rest as any other, as `counted` is `now`.
    pub(crate) fn timeout(&self, node: u32) -> Option<(SourceId, Option<Nanos>)> {
        let host = self.hosts[node as usize].as_ref()?;
        Some((host.plan.source, host.agent.as_ref().map(Agent::next_epoch)))
    }

    /// Counts a packet that has been fetched, from the VM `from` if it is from one, and says whether it may come in.
    #[inline]
    pub(crate) fn admits(&mut self, to: Vm, from: Option<Vm>, packet: &Packet, now: Nanos) -> bool {
        let Some(HostAgent { plan, agent: Some(agent), .. }) = &mut self.hosts[to.node as usize] else {
            return true;
        };
        let vnic = to.vnic();
        let own = plan.vms.iter().position(|vm| vm.vnic == vnic);
        let from = from.and_then(|from| plan.members.named(from.vnic()));
        agent.handle_packet(own, from, packet.len, packet.marked, now)
    }

    /// Notes that a tenant's packet has left for another node.
    #[inline]
    pub(crate) fn note_sent(&mut self, node: u32, to: u32, now: Nanos) {
        let Some(HostAgent { plan, agent: Some(agent), .. }) = &mut self.hosts[node as usize] else { return };
        if let Some(host) = plan.members.host(HostId(to)) {
            agent.handle_sent(host, now);
        }
    }

    /// Ends a host's epoch, if it is over, and sends its messages.
    pub(crate) fn end_epoch(
        &mut self,
        node: u32,
        receive: Option<&mut Receive>,
        mut press: Option<&mut Press>,
        now: Nanos,
    ) {
        let Some(mut host) = self.hosts[node as usize].take() else { return };
        let HostAgent { plan, agent } = &mut host;
        if let Some(agent) = agent {
            let mut ingress = receive.and_then(Receive::ingress);
            agent.handle_epoch(now, now, |vm| {
                let Some(ingress) = &mut ingress else { return Measured::default() };
                let Vm { tenant, .. } = Vm::of(plan.vms[vm].vnic);
                let (slots, seen) = (ingress.slots(tenant), ingress.take_epoch(tenant));
                Measured {
                    bytes: seen.bytes,
                    served: seen.served,
                    left_out: press.as_mut().map_or(0, |press| press.take_left_out(tenant)),
                    service: seen.service_rate(),
                    delay: seen.mean_wait(),
                    occupancy: seen.peak * 1_000 / slots,
                    drops: seen.drops,
                    ..Measured::default()
                }
            });
            for (place, &HostId(to)) in plan.members.hosts().iter().enumerate() {
                self.send(to, core::iter::from_fn(|| agent.poll_message(place)), now);
            }
        }
        self.hosts[node as usize] = Some(host);
    }

    fn send(&mut self, to: u32, messages: impl Iterator<Item = Vec<u8>>, now: Nanos) {
        let mut fate = None;
        for message in messages {
            let Fate { lost, late, again } =
                *fate.get_or_insert_with(|| self.faults.fate(|| self.chance.unit()));
            if lost {
                continue;
            }
            let arrival = now + self.spec.feedback + late;
            for at in core::iter::once(arrival).chain(again.map(|later| arrival + later)) {
                self.messages.insert((at, self.posted), (to, message.clone()));
                self.posted += 1;
            }
        }
    }

    /// How long a message between hosts takes.
    pub(crate) fn feedback_time(&self) -> Span {
        self.spec.feedback
    }

    /// The arrival time of the next message.
    pub(crate) fn next_message(&self) -> Option<Nanos> {
        self.messages.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Delivers the next message that has arrived, and returns the host that received it.
    pub(crate) fn receive(&mut self, now: Nanos) -> Option<u32> {
        let first = self.messages.first_entry().filter(|first| first.key().0 <= now)?;
        let (node, message) = first.remove();
        // A stale message, also after a clock was set back, is ignored, as live.
        let _ = self.agent(node).map(|agent| agent.handle_message(&message, now));
        Some(node)
    }

    /// The limits of a host's tenants that have changed since the last call.
    pub(crate) fn orders(&mut self, node: u32) -> Vec<Order> {
        let fallback = self.spec.fallback.map(|bits| Limits { bits, packets: None });
        let mut orders = Vec::new();
        let Some(HostAgent { plan, agent: Some(agent), .. }) = &mut self.hosts[node as usize] else {
            return orders;
        };
        while let Some(place) = agent.poll_order() {
            let vm = Vm::of(plan.members.vms()[place as usize].vnic);
            let pairs = plan.pairs.iter().filter(|(_, to)| *to == vm);
            orders.extend(pairs.map(|&(own, to)| (own, to, agent.allowed(own as usize, place).or(fallback))));
        }
        orders
    }

    /// Ends a host's daemon; its agent loses its state.
    pub(crate) fn stop(&mut self, node: u32) {
        self.hosts[node as usize].iter_mut().for_each(|host| host.agent = None);
    }

    /// Starts a host's agent; its first epoch begins at `now`.
    pub(crate) fn start(&mut self, node: u32, now: Nanos) {
        let Some(mut host) = self.hosts[node as usize].take() else { return };
        let wall =
            EPOCH_OF_CLOCKS.saturating_add(now.as_u64()).saturating_add_signed(self.clocks[node as usize]);
        let settings = self.settings(host.plan.level);
        let mut agent = Agent::new(settings, &KEY, [wall, now.as_u64()], Arc::clone(&host.plan.members), now);
        agent.set_receivers(host.plan.rate, &host.plan.vms);
        host.agent = Some(agent);
        self.hosts[node as usize] = Some(host);
    }

    /// Sets a node's wall clock ahead by `ahead` nanoseconds, or back where that is negative.
    pub(crate) fn set_clock(&mut self, node: u32, ahead: i64) {
        self.clocks[node as usize] += ahead;
    }
}

impl Vm {
    /// Its name between hosts: its tenant's and its node's number, of 24 bits each, in one network of all tenants.
    pub(crate) fn vnic(self) -> Vnic {
        let ([_, a, b, c], [_, d, e, f]) = (self.tenant.to_be_bytes(), self.node.to_be_bytes());
        Vnic { network: NETWORK, mac: [a, b, c, d, e, f] }
    }

    fn of(vnic: Vnic) -> Self {
        let [a, b, c, d, e, f] = vnic.mac;
        Self { tenant: u32::from_be_bytes([0, a, b, c]), node: u32::from_be_bytes([0, d, e, f]) }
    }
}

/// The network of all VMs: tenants send to each other.
pub(crate) const NETWORK: u32 = 0;

/// The fleet's key. Nothing that it seals leaves the simulation.
const KEY: [u8; 32] = [0; 32];
/// Wall-clock time at the start of a run, in nanoseconds: high enough that a clock can be set back by years.
const EPOCH_OF_CLOCKS: u64 = 1 << 60;
