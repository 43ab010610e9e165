//! The fleet as this host sees it: the host of each tenant, and a path to each host.
//!
//! Why: a policy's `overlay` is evaluated once, outside the engine's thread.
//! From: `docs/overlay.md`; the directory is `control`'s, stated by the policy.
//! Not here: next hops' hardware addresses (`neighbours`), frames (`wrap`), limits (`steer`).
//! Invariant: a tenant elsewhere has one number here, whichever of its addresses is asked for; pairs of a tenant here and
//! one elsewhere are numbered by the policy's tenants, then by these numbers.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;
use plimsoll_control::backpressure::{FlowSource, SenderMac};
use plimsoll_control::directory::{Directory, InnerAddr, Peer, StaticDirectory};
use plimsoll_control::{HostId, Member, Membership, Sender, Vnic};
use plimsoll_policy::{
    Encapsulation, FleetTenant, LimitId, Overlay, Peers, Program, TenantId, relative_weight,
};
use plimsoll_units::{BitRate, Bytes, Span};
use plimsoll_wire::Mac as WireMac;
use plimsoll_wire::overlay::{Addresses, Format, Path, Ports, Vni};

use super::super::mac_table::{Key, Mac};

/// A policy's `overlay`, evaluated.
#[derive(Clone, Debug)]
pub struct FleetMap {
    pub(crate) overlay: Overlay,
    pub(crate) format: Format,
    pub(crate) ports: Ports,
    pub(crate) mtu: u16,
    directory: StaticDirectory,
    /// All hosts but this one.
    pub(crate) hosts: Vec<Host>,
    by_address: HashMap<IpAddr, usize, FixedState>,
    /// The directory of hosts and of the tenants elsewhere.
    pub(crate) members: Arc<Membership>,
    by_mac: HashMap<Key, u32, FixedState>,
    /// The networks of the tenants here, in order.
    networks: Vec<Vni>,
    /// The tenants elsewhere whose packets must not be changed.
    untouched: BTreeSet<u32>,
    /// Limits for each pair, where there is feedback.
    peers: Peers,
}

/// Another host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) number: HostId,
    /// The networks of its tenants, in order.
    pub(crate) networks: Vec<Vni>,
    pub(crate) address: IpAddr,
    /// The next hop, which is asked for its hardware address.
    pub(crate) hop: IpAddr,
    pub(crate) mac: Option<Mac>,
    /// The rate of each pair of a tenant here and one there while the host is silent.
    pub(crate) fallback: BitRate,
    pub(crate) channel: Option<std::net::SocketAddr>,
}

/// A pair's burst after a pause: some frames, so that a late wake-up of the thread does not reduce the rate.
const BURST: Span = Span::micros(200);
const BURST_FRAMES: u64 = 4;

impl FleetMap {
    /// The fleet of this overlay, on an underlay whose packets have up to `mtu` bytes. With feedback the program gets room
    /// for the limits of each pair of tenants, which begin with the fallback.
    #[must_use]
    pub fn new(overlay: &Overlay, mtu: u16, program: &mut Program) -> Self {
        let own = HostId(overlay.own().number);
        let (mut directory, mut vms) = (StaticDirectory::default(), Vec::new());
        let (mut hosts, mut by_mac) = (Vec::new(), HashMap::default());
        let mut untouched = BTreeSet::new();
        let tenants = overlay.hosts.iter().flat_map(|host| &host.tenants);
        let heaviest = tenants.map(|tenant| tenant.weight).max().unwrap_or(1);
        for host in &overlay.hosts {
            let number = HostId(host.number);
            for tenant in &host.tenants {
                for mac in &tenant.macs {
                    let peer = Peer { host: number, underlay: host.address };
                    // The policy's check has refused contradictions.
                    let _ = directory.insert(tenant.network, InnerAddr::Mac(mac.0), peer);
                }
            }
            if number == own {
                continue;
            }
            for tenant in &host.tenants {
                let Some(first) = tenant.macs.first() else { continue };
                let vm = u32::try_from(vms.len()).unwrap_or(u32::MAX);
                let network = network(tenant);
                by_mac.extend(tenant.macs.iter().map(|mac| (Key::new(network, mac.0), vm)));
                untouched.extend(tenant.untouched.then_some(vm));
                let vnic = Vnic { network: tenant.network, mac: first.0 };
                let sender = sender_of(tenant, heaviest);
                vms.push(Member { name: tenant.name.clone(), vnic, host: hosts.len(), sender });
            }
            let fallback = overlay.feedback.as_ref().map_or(program.link, |feedback| feedback.fallback);
            let networks = networks_of(&host.tenants);
            hosts.push(Host {
                name: host.name.clone(),
                number,
                networks,
                address: host.address,
                hop: overlay.gateway.unwrap_or(host.address),
                mac: host.mac.map(|mac| mac.0),
                fallback: host.fallback.unwrap_or(fallback),
                channel: host.channel,
            });
        }
        let format = match overlay.kind {
            Encapsulation::Vxlan => Format::Vxlan,
            Encapsulation::Geneve => Format::Geneve,
        };
        let mut ports = Ports::default();
        match (format, overlay.port) {
            (Format::Vxlan, Some(port)) => ports.vxlan = port,
            (Format::Geneve, Some(port)) => ports.geneve = port,
            (_, None) => {}
        }
        let own_tenants = &overlay.own().tenants;
        let own_networks = networks_of(own_tenants);
        let senders = program.tenants.iter().map(|tenant| {
            let known = own_tenants.iter().find(|known| known.name == tenant.name);
            known.map_or_else(Default::default, |known| (known.network, sender_of(known, heaviest)))
        });
        let distributor = overlay.feedback.as_ref().and_then(|feedback| feedback.distributor);
        let distributor = distributor.map(|host| HostId(overlay.hosts[host].number));
        let numbers = hosts.iter().map(|host: &Host| host.number).collect();
        let mut map = Self {
            members: Arc::new(Membership::new(own, numbers, vms, senders.collect(), distributor)),
            format,
            ports,
            mtu,
            directory,
            by_address: (0..).zip(&hosts).map(|(index, host)| (host.address, index)).collect(),
            hosts,
            by_mac,
            networks: own_networks,
            untouched,
            peers: Peers::default(),
            overlay: overlay.clone(),
        };
        if overlay.feedback.is_some() {
            map.add_pairs(program);
        }
        map
    }

    fn add_pairs(&mut self, program: &mut Program) {
        let tenants = u32::try_from(program.tenants.len()).unwrap_or(u32::MAX);
        let vms = u32::try_from(self.members.vms().len()).unwrap_or(u32::MAX);
        let frame = program.max_frame + program.overhead;
        let burst = program.link.bytes_in(BURST).max(Bytes::new(frame.as_u64() * BURST_FRAMES));
        self.peers = program.add_peers(tenants * vms, burst);
        for tenant in (0..tenants).map(TenantId) {
            for vm in 0..vms {
                let elsewhere = &self.members.vms()[vm as usize];
                let host = &self.hosts[elsewhere.host];
                let [bits, packets] = self.pair(tenant, vm).expect("room was made");
                let from = program.tenants[tenant.0 as usize].name.clone();
                let name = format!("{from} -> {}@{}", elsewhere.name, host.name);
                program.limits[packets.0 as usize].name = format!("{name} (packets)");
                let limit = &mut program.limits[bits.0 as usize];
                (limit.name, limit.rate) = (name, host.fallback);
            }
        }
    }

    /// Whether the fabric's marks hold senders back.
    pub(crate) fn heeds_marks(&self) -> bool {
        self.overlay.feedback.as_ref().is_some_and(|feedback| feedback.ecn)
    }

    /// Whether other hosts' limits hold here.
    pub(crate) fn is_controlled(&self) -> bool {
        self.overlay.feedback.is_some()
    }

    /// The limits, in bits and in packets, of what a tenant here sends to one elsewhere.
    pub(crate) fn pair(&self, tenant: TenantId, vm: u32) -> Option<[LimitId; 2]> {
        let pair = tenant.0 * u32::try_from(self.members.vms().len()).unwrap_or(u32::MAX) + vm;
        (pair < self.peers.count()).then(|| self.peers.limits(pair))
    }

    /// The tenant elsewhere that a flow of a network comes from, as `NAME@HOST`.
    pub(crate) fn sender(&self, network: Vni, from: FlowSource) -> Option<String> {
        let FlowSource::Host(number, SenderMac(mac)) = from else { return None };
        let host = self.hosts.iter().find(|host| host.number == number)?;
        let tenant = &self.members.vms()[self.vm(network, mac)? as usize];
        Some(format!("{}@{}", tenant.name, host.name))
    }

    /// Whether a tenant here is in this network.
    pub(crate) fn has_network(&self, network: Vni) -> bool {
        self.networks.contains(&network)
    }

    /// The tenant elsewhere that has this address in a network.
    pub(crate) fn vm(&self, network: Vni, mac: Mac) -> Option<u32> {
        self.by_mac.get(&Key::new(network, mac)).copied()
    }

    /// Whether the packets of the tenant elsewhere that has this address must not be changed.
    pub(crate) fn is_untouched(&self, network: Vni, mac: Mac) -> bool {
        !self.untouched.is_empty() && self.vm(network, mac).is_some_and(|vm| self.untouched.contains(&vm))
    }

    /// The place of the host that has this address of a network, unless that is this one.
    pub(crate) fn host_of(&self, network: Vni, mac: Mac) -> Option<usize> {
        self.members.host(self.home_of(network, mac)?)
    }

    /// The host, this one or another, that the map has an address of a network at.
    pub(crate) fn home_of(&self, network: Vni, mac: Mac) -> Option<HostId> {
        Some(self.directory.peer(network.get(), InnerAddr::Mac(mac))?.host)
    }

    /// The place of the host with this address on the underlay, unless that is this one.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.by_address.get(&address).copied()
    }

    /// What other hosts call a tenant of this host, by its name here.
    pub(crate) fn own_vnic(&self, tenant: &str) -> Option<Vnic> {
        let known = self.overlay.own().tenants.iter().find(|known| known.name == tenant)?;
        Some(Vnic { network: known.network, mac: known.macs.first()?.0 })
    }

    /// The tenant of this host that has this address in a network.
    pub(crate) fn own_name(&self, network: Vni, mac: Mac) -> Option<&str> {
        let has = |known: &&FleetTenant| {
            known.network == network.get() && known.macs.iter().any(|known| known.0 == mac)
        };
        Some(&self.overlay.own().tenants.iter().find(has)?.name)
    }

    /// From here to a host whose next hop is at this hardware address.
    pub(crate) fn path(&self, host: usize, from: Mac, to: Mac) -> Path {
        let addresses = Addresses::new(self.overlay.own().address, self.hosts[host].address);
        Path {
            format: self.format,
            src_mac: WireMac(from),
            dst_mac: WireMac(to),
            addresses: addresses.expect("checked with the policy: all of one family"),
            dscp: self.overlay.dscp,
            mtu: self.mtu,
            v6_checksum: self.overlay.v6_checksum,
            capable: self.heeds_marks(),
            ports: self.ports,
        }
    }

    /// Longest IP packet that tenants may send.
    pub(crate) fn inner_mtu(&self) -> u16 {
        self.mtu.saturating_sub(self.overlay.header())
    }
}

fn network(tenant: &FleetTenant) -> Vni {
    Vni::new(tenant.network).expect("checked with the policy")
}

/// The networks of some tenants, each once, in order.
fn networks_of(tenants: &[FleetTenant]) -> Vec<Vni> {
    let networks: BTreeSet<Vni> = tenants.iter().map(network).collect();
    networks.into_iter().collect()
}

/// A tenant as a sender, by its weight relative to the fleet's heaviest.
fn sender_of(tenant: &FleetTenant, heaviest: u32) -> Sender {
    Sender { weight: relative_weight(tenant.weight, heaviest), balancer: tenant.balancer }
}
