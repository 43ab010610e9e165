//! Rate control between hosts: epochs at receivers, limits on their way, and what senders obey.
//!
//! Why: what is simulated is the `control` that runs live; only clocks and the way of a message are models.
//! From: PicNIC §5.3 and §5.5; feedback takes as long as the file says, whoever carries it.
//! Not here: the laws (`control`), what a host measures (`nic`'s ingress) and enforces (`engine`).
//! Invariant: a message reaches each heavy sender once an epoch, in the order of sending; a limit that is not heard again
//! lapses.

use std::collections::VecDeque;

use plimsoll_control::{
    BandwidthLaw, Envelope, Heavy, Laws, Limits, Measured, Obeyed, PacketRateLaw, Receivers, Senders,
};
use plimsoll_nic::Ingress;
use plimsoll_scenario::{Control as Spec, ControlLevel};
use plimsoll_units::{BitRate, Nanos};

use crate::agenda::SourceId;

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
    /// By node; none where nothing is controlled.
    hosts: Vec<Option<Host>>,
    /// Messages under way: all take the same time.
    messages: VecDeque<(Nanos, Message)>,
    pub(crate) source: SourceId,
    pub(crate) sent: u64,
}

/// What a host is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) sender: Vm,
    pub(crate) receiver: Vm,
    limits: Limits,
}

/// One host's part.
#[derive(Debug)]
struct Host {
    source: SourceId,
    next: Nanos,
    epochs: u64,
    /// Tenants that live here.
    vms: Vec<u32>,
    receivers: Receivers,
    senders: Vec<Senders>,
    measured: Vec<Measured>,
    /// What others allow, by sender here and receiver there.
    obeyed: Obeyed<(u32, Vm)>,
}

/// What a sender is held to from now on; none: to nothing.
pub(crate) type Order = (u32, Vm, Option<Limits>);

impl Control {
    pub(crate) fn new(spec: Spec, nodes: usize, source: SourceId) -> Self {
        let hosts = (0..nodes).map(|_| None).collect();
        Self { spec, hosts, messages: VecDeque::new(), source, sent: 0 }
    }

    /// A host with these tenants and envelopes, behind a line of this rate. Its first epoch ends after one.
    pub(crate) fn add(
        &mut self,
        node: u32,
        source: SourceId,
        line: BitRate,
        level: ControlLevel,
        vms: &[(u32, Envelope)],
    ) {
        let spec = &self.spec;
        let law = PacketRateLaw::new(spec.threshold);
        let laws = Laws {
            bandwidth: BandwidthLaw { gain: spec.gain, ..BandwidthLaw::default() },
            packets: (level == ControlLevel::Full).then_some(law),
            idle: spec.idle,
        };
        let envelopes: Vec<Envelope> = vms.iter().map(|&(_, envelope)| envelope).collect();
        self.hosts[node as usize] = Some(Host {
            source,
            next: Nanos::ZERO + spec.epoch,
            epochs: 0,
            vms: vms.iter().map(|&(tenant, _)| tenant).collect(),
            receivers: Receivers::new(line, laws, &envelopes),
            senders: vms.iter().map(|&(tenant, _)| Senders::new(u64::from(tenant))).collect(),
            measured: vec![Measured::default(); vms.len()],
            obeyed: Obeyed::new(MOST_LIMITS, spec.lapse),
        });
    }

    /// A packet came in for a VM.
    #[inline]
    pub(crate) fn note(&mut self, receiver: Vm, sender: Vm, weight: u32) {
        let Some(host) = &mut self.hosts[receiver.node as usize] else { return };
        if let Some(vm) = host.vms.iter().position(|&tenant| tenant == receiver.tenant) {
            host.senders[vm].note(sender.id(), weight, spread(sender.id()));
        }
    }

    /// The sources of events and their first moments.
    pub(crate) fn moments(&self) -> impl Iterator<Item = (SourceId, Nanos)> {
        self.hosts.iter().flatten().map(|host| (host.source, host.next))
    }

    /// A host's epoch is over. When its next one is, and what has lapsed.
    pub(crate) fn epoch(
        &mut self,
        node: u32,
        ingress: Option<&mut Ingress>,
        now: Nanos,
    ) -> (Nanos, Vec<Order>) {
        let Self { spec, hosts, messages, sent, .. } = self;
        let host = hosts[node as usize].as_mut().expect("only controlled hosts have epochs");
        host.next = now + spec.epoch;
        host.epochs += 1;
        let mut lapsed = Vec::new();
        host.obeyed.expire(now, |(tenant, receiver)| lapsed.push((tenant, receiver, None)));
        if let Some(ingress) = ingress {
            host.measure(ingress);
            host.receivers.epoch(spec.epoch, &host.measured);
            for (vm, &tenant) in host.vms.iter().enumerate() {
                let (limits, receiver) = (host.receivers.limits(vm), Vm { tenant, node });
                for &Heavy { sender, .. } in host.senders[vm].heavy() {
                    let message = Message { sender: Vm::named(sender), receiver, limits };
                    messages.push_back((now + spec.feedback, message));
                    *sent += 1;
                }
            }
            if host.epochs.is_multiple_of(WINDOW) {
                host.senders.iter_mut().for_each(Senders::clear);
            }
        }
        (host.next, lapsed)
    }

    /// When the next message arrives.
    pub(crate) fn next_message(&self) -> Option<Nanos> {
        self.messages.front().map(|&(at, _)| at)
    }

    /// A message that has arrived, and what its sender must keep to.
    pub(crate) fn receive(&mut self, weights: &[u32], now: Nanos) -> Option<(u32, Order)> {
        let (_, message) = self.messages.pop_front_if(|&mut (at, _)| at <= now)?;
        let Message { sender, receiver, limits } = message;
        let host = self.hosts[sender.node as usize].as_mut()?;
        host.obeyed.hear((sender.tenant, receiver), limits, now);
        let limits = limits.of_weight(weights[sender.tenant as usize]);
        Some((sender.node, (sender.tenant, receiver, Some(limits))))
    }
}

impl Host {
    fn measure(&mut self, ingress: &mut Ingress) {
        for ((&tenant, measured), senders) in self.vms.iter().zip(&mut self.measured).zip(&self.senders) {
            let slots = ingress.slots(tenant);
            let seen = ingress.take_epoch(tenant);
            *measured = Measured {
                bytes: seen.bytes,
                served: seen.served,
                delay: seen.mean_wait(),
                occupancy: seen.peak * 1_000 / slots,
                drops: seen.drops,
                weights: senders.weights(),
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

/// A hash of all 64 bits: splitmix64's last steps.
fn spread(id: u64) -> u64 {
    let z = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Epochs in which senders are counted together: a light one sends once in some.
const WINDOW: u64 = 16;
/// Limits that a host keeps.
const MOST_LIMITS: usize = 4_096;
