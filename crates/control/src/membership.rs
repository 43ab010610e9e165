//! The other hosts of a fleet, their VMs, and each VM's weight and kind as a sender.
//!
//! Why: feedback is addressed to hosts, and load balancers hear of it as one sender.
//! From: PicNIC §5.5: load balancers count as one source, and one host divides among them what that may send.
//! Not here: which host has an address (`directory`), what senders may send (`agent`).
//! Invariant: hosts and VMs keep their places for as long as a membership lasts; each VM is at one of the hosts.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;

use crate::{Distributor, HostId, Limits, SenderId, Vnic, WHOLE};

/// A VM as one that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its part of a limit, an ordinary sender's being a thousand.
    pub weight: u32,
    /// Whether it is a load balancer, which brings other senders' traffic.
    pub balancer: bool,
}

/// A VM of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its tenant's name.
    pub name: String,
    /// How all hosts name it.
    pub vnic: Vnic,
    /// Its host's place among [`Membership::hosts`].
    pub host: usize,
    /// Its weight and kind as a sender.
    pub sender: Sender,
}

/// A fleet as one of its hosts sees it. Hosts and VMs are known by their places in the lists that it is made from.
#[derive(Clone, Debug)]
pub struct Membership {
    own: HostId,
    hosts: Vec<HostId>,
    by_number: HashMap<HostId, usize, FixedState>,
    vms: Vec<Member>,
    by_vnic: HashMap<Vnic, u32, FixedState>,
    /// This host's VMs, with their networks.
    senders: Vec<(u32, Sender)>,
    lightest: u32,
    balancers: Option<Balancers>,
}

/// The fleet's load balancers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Balancers {
    /// The place of the host that divides; none where that is this host.
    distributor: Option<usize>,
    /// By network: those of one never send to VMs of another.
    networks: BTreeMap<u32, Group>,
}

/// The load balancers of one network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    /// The weight of all at other hosts: what they count as at a receiver here.
    weight: u32,
    /// The weight of those at each other host.
    hosts: Vec<u32>,
    /// The weight of those here.
    own: u32,
}

impl Sender {
    /// The weight of a sender that has no other.
    pub const ORDINARY: u32 = WHOLE as u32;
}

impl Default for Sender {
    fn default() -> Self {
        Self { weight: Self::ORDINARY, balancer: false }
    }
}

impl Membership {
    /// The fleet around the host `own`; `senders` are its own VMs, each with its network. Without a `distributor` load balancers are ordinary senders.
    #[must_use]
    pub fn new(
        own: HostId,
        hosts: Vec<HostId>,
        vms: Vec<Member>,
        senders: Vec<(u32, Sender)>,
        distributor: Option<HostId>,
    ) -> Self {
        let by_number: HashMap<HostId, usize, FixedState> =
            hosts.iter().enumerate().map(|(place, &number)| (number, place)).collect();
        let balancers = distributor.map(|distributor| Balancers {
            distributor: by_number.get(&distributor).copied(),
            networks: groups(hosts.len(), &vms, &senders),
        });
        Self {
            lightest: vms.iter().map(|vm| vm.sender.weight).min().unwrap_or(Sender::ORDINARY),
            by_vnic: (0..).zip(&vms).map(|(place, vm)| (vm.vnic, place)).collect(),
            own,
            hosts,
            by_number,
            vms,
            senders,
            balancers,
        }
    }

    /// This host.
    #[must_use]
    pub fn own(&self) -> HostId {
        self.own
    }

    /// All hosts but this one.
    #[must_use]
    pub fn hosts(&self) -> &[HostId] {
        &self.hosts
    }

    /// The place of another host.
    #[must_use]
    pub fn host(&self, number: HostId) -> Option<usize> {
        self.by_number.get(&number).copied()
    }

    /// VMs of all hosts but this one.
    #[must_use]
    pub fn vms(&self) -> &[Member] {
        &self.vms
    }

    /// The place of another host's VM.
    #[must_use]
    pub fn named(&self, vnic: Vnic) -> Option<u32> {
        self.by_vnic.get(&vnic).copied()
    }

    /// The sender that a VM elsewhere counts as, with that sender's weight.
    pub(crate) fn counts_as(&self, vm: u32) -> (SenderId, u32) {
        let sender = self.vms[vm as usize].sender;
        match &self.balancers {
            Some(all) if sender.balancer => {
                let network = self.vms[vm as usize].vnic.network;
                (BALANCERS, all.networks.get(&network).map_or(0, |group| group.weight))
            }
            _ => (vm.into(), sender.weight),
        }
    }

    /// The one sender that all strangers count as, with the weight of the lightest sender.
    pub(crate) fn strangers(&self) -> (SenderId, u32) {
        (STRANGERS, self.lightest)
    }

    /// Whether the host at this place divides among load balancers; none stands for this host.
    pub(crate) fn divides(&self, host: Option<usize>) -> bool {
        self.balancers.as_ref().is_some_and(|all| all.distributor == host)
    }

    /// The host that divides, where load balancers are one sender and this host does not divide itself.
    pub(crate) fn distributor(&self) -> Option<usize> {
        self.balancers.as_ref()?.distributor
    }

    /// Divides the limits of all load balancers of a network among the hosts that have some; `None` stands for this host. Load
    /// balancers at the receiver's own host, `receiver`, are left out, as their packets do not come over the fabric.
    pub(crate) fn divide(
        &self,
        network: u32,
        whole: Limits,
        receiver: Option<usize>,
    ) -> impl Iterator<Item = (Option<usize>, Limits)> {
        let group = self.balancers.as_ref().and_then(|all| all.networks.get(&network));
        let others = group.iter().flat_map(|group| (0..).map(Some).zip(group.hosts.iter().copied()));
        let own = group.iter().map(|group| (None, group.own));
        let some = others.chain(own).filter(|&(host, weight)| weight > 0 && host != receiver);
        let (hosts, weights): (Vec<Option<usize>>, Vec<u32>) = some.unzip();
        let parts: Vec<Limits> = Distributor::new(&weights).split(whole).collect();
        hosts.into_iter().zip(parts)
    }

    /// Limits of one of this host's VMs: its part of those for each sender, or of those for this host's load balancers together.
    pub(crate) fn part_of(
        &self,
        own: usize,
        each: Option<Limits>,
        balancers: Option<Limits>,
    ) -> Option<Limits> {
        let (network, sender) = self.senders[own];
        match &self.balancers {
            Some(all) if sender.balancer => {
                let group = all.networks.get(&network)?;
                Some(balancers?.part(sender.weight, group.own.into()))
            }
            _ => Some(each?.of_weight(sender.weight)),
        }
    }
}

/// The load balancers of each network, where there are this many other hosts.
fn groups(hosts: usize, vms: &[Member], senders: &[(u32, Sender)]) -> BTreeMap<u32, Group> {
    let mut groups: BTreeMap<u32, Group> = BTreeMap::new();
    let others = vms.iter().map(|vm| (vm.vnic.network, Some(vm.host), vm.sender));
    let own = senders.iter().map(|&(network, sender)| (network, None, sender));
    for (network, host, sender) in others.chain(own).filter(|(.., sender)| sender.balances() > 0) {
        let empty = || Group { hosts: vec![0; hosts], ..Group::default() };
        let Group { weight, hosts, own } = groups.entry(network).or_insert_with(empty);
        let sum = host.map_or(own, |host| &mut hosts[host]);
        *sum = sum.saturating_add(sender.balances());
        if host.is_some() {
            *weight = weight.saturating_add(sender.balances());
        }
    }
    groups
}

impl Sender {
    /// Its weight among load balancers.
    fn balances(self) -> u32 {
        if self.balancer { self.weight } else { 0 }
    }
}

/// All load balancers, as one sender.
pub(crate) const BALANCERS: SenderId = SenderId::MAX;
/// All senders that no limit reaches, as one sender.
pub(crate) const STRANGERS: SenderId = SenderId::MAX - 1;

#[cfg(test)]
mod tests {
    use plimsoll_units::BitRate;

    use super::*;

    /// Hosts 1 and 2 have a load balancer in each of two networks; the one in network 8 at host 2 is three times as heavy.
    #[test]
    fn load_balancers_of_a_network_are_one_sender() {
        let balancer = |weight| Sender { weight, balancer: true };
        let member = |host, network, weight| {
            let vnic = Vnic { network, mac: [2, 0, 0, 0, 0, host as u8] };
            Member { name: String::new(), vnic, host, sender: balancer(weight) }
        };
        let vms = vec![member(0, 7, 1_000), member(0, 8, 1_000), member(1, 7, 1_000), member(1, 8, 3_000)];
        let hosts = vec![HostId(1), HostId(2)];
        let own = vec![(7, balancer(2_000)), (9, Sender::default())];
        let fleet = Membership::new(HostId(3), hosts, vms, own, Some(HostId(3)));
        assert_eq!(fleet.counts_as(0), (BALANCERS, 2_000));
        assert_eq!(fleet.counts_as(1), (BALANCERS, 4_000));
        let whole = Limits { bits: BitRate::gbps(8), packets: None };
        let parts = |network, receiver| {
            let parts = fleet.divide(network, whole, receiver);
            parts.map(|(host, part)| (host, part.bits.get() / 1_000_000_000)).collect::<Vec<_>>()
        };
        assert_eq!(parts(7, None), [(Some(0), 4), (Some(1), 4)]);
        assert_eq!(parts(7, Some(0)), [(Some(1), 2), (None, 5)]);
        assert_eq!(parts(8, None), [(Some(0), 2), (Some(1), 6)]);
        assert_eq!(parts(9, None), []);
    }
}
