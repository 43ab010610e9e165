//! The fleet as this host sees it: who is where, and a path to each host.
//!
//! Why: what follows from a policy's `overlay` is worked out once, outside the engine's thread.
//! From: `docs/overlay.md`; the directory is `control`'s, stated by the policy.
//! Not here: next hops' hardware addresses (`neighbours`), frames (`wrap`), limits (`steer`).
//! Invariant: a tenant elsewhere has one number here, whichever of its addresses is asked for; pairs of a tenant here and
//! one elsewhere are numbered by the policy's tenants, then by these numbers.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::FixedState;
use plimsoll_control::directory::{Directory, InnerAddr, Peer, StaticDirectory};
use plimsoll_control::{Distributor, HostId, Limits, SenderId, Vnic};
use plimsoll_policy::{Encapsulation, FleetTenant, LimitId, Overlay, Peers, Program, TenantId};
use plimsoll_units::{BitRate, Bytes, Span};
use plimsoll_wire::Mac as WireMac;
use plimsoll_wire::overlay::{Addresses, Format, Path, Ports, Vni};

use super::super::mac_table::{Mac, key};

/// What a policy's `overlay` comes to.
#[derive(Clone, Debug)]
pub struct FleetMap {
    pub(crate) overlay: Overlay,
    pub(crate) vni: Vni,
    pub(crate) own: HostId,
    pub(crate) format: Format,
    pub(crate) ports: Ports,
    pub(crate) mtu: u16,
    directory: StaticDirectory,
    /// The other hosts.
    pub(crate) hosts: Vec<Host>,
    by_number: HashMap<HostId, usize, FixedState>,
    by_address: HashMap<IpAddr, usize, FixedState>,
    /// Tenants elsewhere.
    pub(crate) vms: Vec<Vm>,
    by_mac: HashMap<u64, u32, FixedState>,
    /// Limits for each pair, where there is feedback.
    peers: Peers,
    /// This host's tenants as senders, by the policy's numbers.
    pub(crate) senders: Vec<Sender>,
    /// Those of the fleet that bring others' traffic, where there are such.
    pub(crate) balancers: Option<Balancers>,
    /// The least that a tenant elsewhere weighs.
    pub(crate) lightest: u32,
}

/// Another host.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) number: HostId,
    pub(crate) address: IpAddr,
    /// Who is asked for the next hop's hardware address.
    pub(crate) hop: IpAddr,
    pub(crate) mac: Option<Mac>,
    /// What each tenant here may send to each of its tenants while it says nothing.
    pub(crate) fallback: BitRate,
    pub(crate) channel: Option<std::net::SocketAddr>,
}

/// A tenant elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Vm {
    pub(crate) name: String,
    /// Which of [`FleetMap::hosts`] has it.
    pub(crate) host: usize,
    /// Its first address, by which hosts name it.
    pub(crate) mac: Mac,
    pub(crate) sender: Sender,
}

/// A tenant as one that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    /// Its part of a limit, an ordinary one's being a thousand.
    pub(crate) weight: u32,
    /// Whether it brings others' traffic.
    pub(crate) balancer: bool,
}

/// Load balancers: one sender to whom they send, whose part one host divides among them (PicNIC §5.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Balancers {
    /// Which of [`FleetMap::hosts`] divides; none: this one.
    pub(crate) distributor: Option<usize>,
    /// What those of other hosts weigh together: as what they count at a receiver here.
    pub(crate) weight: u32,
    /// What those here weigh together.
    pub(crate) own: u32,
    /// What those of each of the other hosts weigh together.
    hosts: Vec<u32>,
}

/// All balancers, as one sender.
pub(crate) const BALANCERS: SenderId = SenderId::MAX;

/// All who send from hosts that no limit reaches, as one sender.
const STRANGERS: SenderId = SenderId::MAX - 1;

/// What pairs may send at once after a pause: some frames, so that a thread that wakes up late loses none of the rate.
const BURST: Span = Span::micros(200);
const BURST_FRAMES: u64 = 4;

impl FleetMap {
    /// The fleet of this overlay, on an underlay whose packets have up to `mtu` bytes. With feedback the program gets room
    /// for the limits of each pair of tenants, which begin with what holds while nobody has said anything.
    #[must_use]
    pub fn new(overlay: &Overlay, mtu: u16, program: &mut Program) -> Self {
        let own = HostId(overlay.own().number);
        let (mut directory, mut vms) = (StaticDirectory::default(), Vec::new());
        let (mut hosts, mut by_mac) = (Vec::new(), HashMap::default());
        let tenants = overlay.hosts.iter().flat_map(|host| &host.tenants);
        let heaviest = tenants.map(|tenant| tenant.weight).max().unwrap_or(1);
        for host in &overlay.hosts {
            let number = HostId(host.number);
            for tenant in &host.tenants {
                for mac in &tenant.macs {
                    let peer = Peer { host: number, underlay: host.address };
                    // The policy's check has refused contradictions.
                    let _ = directory.insert(overlay.vni, InnerAddr::Mac(mac.0), peer);
                }
            }
            if number == own {
                continue;
            }
            for tenant in &host.tenants {
                let Some(first) = tenant.macs.first() else { continue };
                let vm = u32::try_from(vms.len()).unwrap_or(u32::MAX);
                by_mac.extend(tenant.macs.iter().map(|mac| (key(mac.0), vm)));
                let sender = Sender::of(tenant, heaviest);
                vms.push(Vm { name: tenant.name.clone(), host: hosts.len(), mac: first.0, sender });
            }
            let fallback = overlay.feedback.as_ref().map_or(program.link, |feedback| feedback.fallback);
            hosts.push(Host {
                name: host.name.clone(),
                number,
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
        let senders = program.tenants.iter().map(|tenant| {
            let known = own_tenants.iter().find(|known| known.name == tenant.name);
            known.map_or(Sender { weight: WEIGHT, balancer: false }, |known| Sender::of(known, heaviest))
        });
        let senders: Vec<Sender> = senders.collect();
        let mut map = Self {
            balancers: Balancers::of(overlay, &senders, &vms, hosts.len()),
            senders,
            lightest: vms.iter().map(|vm| vm.sender.weight).min().unwrap_or(WEIGHT),
            vni: Vni::new(overlay.vni).expect("checked with the policy"),
            own,
            format,
            ports,
            mtu,
            directory,
            by_number: (0..).zip(&hosts).map(|(index, host)| (host.number, index)).collect(),
            by_address: (0..).zip(&hosts).map(|(index, host)| (host.address, index)).collect(),
            hosts,
            vms,
            by_mac,
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
        let vms = u32::try_from(self.vms.len()).unwrap_or(u32::MAX);
        let frame = program.max_frame + program.overhead;
        let burst = program.link.bytes_in(BURST).max(Bytes::new(frame.as_u64() * BURST_FRAMES));
        self.peers = program.add_peers(tenants * vms, burst);
        for tenant in (0..tenants).map(TenantId) {
            for vm in 0..vms {
                let elsewhere = &self.vms[vm as usize];
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
        let pair = tenant.0 * u32::try_from(self.vms.len()).unwrap_or(u32::MAX) + vm;
        (pair < self.peers.count()).then(|| self.peers.limits(pair))
    }

    /// Whom a tenant elsewhere counts as where it sends to, and that one's weight.
    pub(crate) fn counts_as(&self, vm: u32) -> (SenderId, u32) {
        let sender = self.vms[vm as usize].sender;
        match &self.balancers {
            Some(all) if sender.balancer => (BALANCERS, all.weight),
            _ => (vm.into(), sender.weight),
        }
    }

    /// What all who send from hosts that no limit reaches count as together: one sender, none of the others being lighter.
    pub(crate) fn strangers(&self) -> (SenderId, u32) {
        (STRANGERS, self.lightest)
    }

    /// The tenant elsewhere that has this address.
    pub(crate) fn vm(&self, mac: Mac) -> Option<u32> {
        self.by_mac.get(&key(mac)).copied()
    }

    /// The tenant elsewhere that hosts call this: by its first address, and no other.
    pub(crate) fn named(&self, vnic: Vnic) -> Option<u32> {
        let vm = self.vm(vnic.mac).filter(|_| vnic.network == self.vni.get())?;
        (self.vms[vm as usize].mac == vnic.mac).then_some(vm)
    }

    /// The other host that has this address of the tenants' network.
    pub(crate) fn host_of(&self, mac: Mac) -> Option<usize> {
        self.by_number.get(&self.home_of(mac)?).copied()
    }

    /// The host, this one or another, that the map has an address at.
    pub(crate) fn home_of(&self, mac: Mac) -> Option<HostId> {
        Some(self.directory.peer(self.vni.get(), InnerAddr::Mac(mac))?.host)
    }

    /// The other host with this address on the underlay.
    pub(crate) fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.by_address.get(&address).copied()
    }

    /// The other host of this number.
    pub(crate) fn host_numbered(&self, number: HostId) -> Option<usize> {
        self.by_number.get(&number).copied()
    }

    /// The first address of a tenant of this host, by its name.
    pub(crate) fn own_mac(&self, tenant: &str) -> Option<Mac> {
        let tenants = &self.overlay.own().tenants;
        tenants.iter().find(|known| known.name == tenant)?.macs.first().map(|mac| mac.0)
    }

    /// A tenant's name among hosts.
    pub(crate) fn vnic(&self, mac: Mac) -> Vnic {
        Vnic { network: self.vni.get(), mac }
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

impl Sender {
    /// As its weight to the fleet's heaviest. A limit is for an ordinary sender: were others heavier, one who alone may have all
    /// of it could be told many times that, and it would take as many epochs to come down.
    fn of(tenant: &FleetTenant, heaviest: u32) -> Self {
        let weight = u64::from(tenant.weight) * u64::from(WEIGHT) / u64::from(heaviest.max(1));
        Self { weight: (weight as u32).max(1), balancer: tenant.balancer }
    }

    /// Its weight, if it is a balancer.
    fn balances(self) -> u32 {
        if self.balancer { self.weight } else { 0 }
    }
}

impl Balancers {
    fn of(overlay: &Overlay, senders: &[Sender], vms: &[Vm], count: usize) -> Option<Self> {
        let distributor = overlay.feedback.as_ref()?.distributor?;
        let sum = |sum: u32, sender: &Sender| sum.saturating_add(sender.balances());
        let mut hosts = vec![0; count];
        for vm in vms {
            hosts[vm.host] = sum(hosts[vm.host], &vm.sender);
        }
        Some(Self {
            // Other hosts keep their order without this one.
            distributor: (distributor != overlay.host)
                .then(|| distributor - usize::from(distributor > overlay.host)),
            weight: hosts.iter().fold(0, |sum, &weight| sum.saturating_add(weight)),
            own: senders.iter().fold(0, sum),
            hosts,
        })
    }

    /// What balancers together may send to a receiver, divided among the hosts that have some: the other ones by their
    /// places, and this one as none. Those at the receiver's own host do not come over the overlay.
    pub(crate) fn divide(
        &self,
        whole: Limits,
        receiver: Option<usize>,
    ) -> impl Iterator<Item = (Option<usize>, Limits)> {
        let hosts = (0..).map(Some).zip(self.hosts.iter().copied()).chain([(None, self.own)]);
        let there = hosts.filter(|&(host, weight)| weight > 0 && host != receiver);
        let (hosts, weights): (Vec<Option<usize>>, Vec<u32>) = there.unzip();
        let parts: Vec<Limits> = Distributor::new(&weights).split(whole).collect();
        hosts.into_iter().zip(parts)
    }
}

/// An ordinary sender's weight: the heaviest's.
pub(crate) const WEIGHT: u32 = 1_000;
