//! A world: the namespaces, devices and the system under test between tenants and their destinations.
//!
//! Why: every system gets the same tenants, addresses and links, so that only the policy differs.
//! From: Loom §7's testbed on one host; MACs and neighbours are fixed, so that no run suffers from an ARP frame lost in a
//!       full queue.
//! Not here: traffic (`traffic`), time (`run`).
//! Invariant: dropping a world removes its processes, namespaces and devices.

mod daemon;
pub(crate) mod fleet;
mod kernel;
pub(crate) mod kernels;
mod line;
mod pressing;
mod relay;

pub(crate) use daemon::{cpu, get};
pub use pressing::Pressing;

use crate::error::LabError;
use crate::netns::{self, Netns};
use crate::traffic::Place;
use plimsoll_scenario::{OVERLAY_HEADERS, Scenario, System, Wiring, Workload};
use plimsoll_slo::SloReport;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

/// Name of the namespace beyond the uplink.
pub const WORLD: &str = "world";
/// Name of the namespace with the kernel's queue between tenants and world.
pub const SWITCH: &str = "switch";
/// Name of a tenant's device.
pub const TENANT_DEVICE: &str = "eth0";
/// Name of the world's device.
pub const UPLINK: &str = "uplink";

/// Packets lost, by tenant and reason.
pub type Drops = BTreeMap<String, BTreeMap<String, u64>>;

/// A built world, ready for traffic.
pub struct World {
    // Order matters: the carrier's process must end before its namespaces.
    carrier: Carrier,
    tenants: Vec<Member>,
    world: Netns,
}

/// The system that carries packets between tenants and world.
enum Carrier {
    Kernel(kernel::Queue),
    Daemon(Box<daemon::Daemon>),
    /// A daemon for each of several hosts.
    Fleet(Box<fleet::Fleet>),
}

/// A tenant and its namespace.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    pub(crate) netns: Netns,
}

/// Paths that a world needs beyond the scenario.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `plimsoll` binary.
    pub binary: PathBuf,
    /// A private directory for files of this world.
    pub scratch: PathBuf,
}

/// The carrier's figures after a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Packets lost, by tenant and reason.
    pub drops: Drops,
    /// Reports on tenants' promises, by host.
    pub promises: BTreeMap<String, SloReport>,
    /// CPU time of the daemon's process; none for the kernel.
    pub cpu: Option<Duration>,
    /// What backpressure did, on all hosts.
    pub pressing: Pressing,
    /// Notes for the report.
    pub notes: Vec<String>,
}

impl World {
    /// Builds the world of one system and waits until packets can pass.
    pub fn build(scenario: &Scenario, system: &System, setup: &Setup) -> Result<Self, LabError> {
        let world = Netns::create(WORLD)?;
        let mut tenants = Vec::new();
        for tenant in &scenario.tenants {
            if [WORLD, SWITCH].contains(&tenant.name.as_str()) {
                let clash = format!("a tenant may not be called `{}`: the lab uses that name", tenant.name);
                return Err(LabError::Scenario(clash));
            }
            let (name, netns) = (tenant.name.clone(), Netns::create(&tenant.name)?);
            tenants.push(Member { name, address: tenant.address, netns });
        }
        kernels::ecn(scenario, &tenants)?;
        if fleet::is_fleet(scenario) {
            let carrier = Carrier::Fleet(Box::new(fleet::Fleet::start(scenario, system, setup, &tenants)?));
            return Ok(Self { carrier, tenants, world });
        }
        let carrier = if system.kind.on_engine() {
            Carrier::Daemon(Box::new(daemon::Daemon::start(scenario, system, setup, &tenants)?))
        } else {
            Carrier::Kernel(kernel::Queue::build(scenario, system, &tenants)?)
        };
        let built = Self { carrier, tenants, world };
        built.address_all(scenario)?;
        built.introduce(scenario)?;
        Ok(built)
    }

    /// Fails when the carrier's process has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        match &mut self.carrier {
            Carrier::Kernel(_) => Ok(()),
            Carrier::Daemon(daemon) => daemon.check(),
            Carrier::Fleet(fleet) => fleet.check(),
        }
    }

    /// Marks the time from which `tally` counts.
    pub fn begin(&mut self) -> Result<(), LabError> {
        match &mut self.carrier {
            Carrier::Kernel(_) => Ok(()),
            Carrier::Daemon(daemon) => daemon.begin(),
            Carrier::Fleet(fleet) => fleet.begin(),
        }
    }

    /// The carrier's losses and CPU time since `begin`, and reports on promises since measuring began, `ago` before now.
    pub fn tally(&mut self, ago: Duration) -> Result<Tally, LabError> {
        match &mut self.carrier {
            Carrier::Kernel(queue) => queue.tally(&self.tenants),
            Carrier::Daemon(daemon) => daemon.tally(&self.tenants, ago),
            Carrier::Fleet(fleet) => fleet.tally(&self.tenants, ago),
        }
    }

    /// Changes the carrier over to another system while packets flow. The kernel's queues cannot do that.
    pub fn hand_over(&mut self, scenario: &Scenario, system: &System, setup: &Setup) -> Result<(), LabError> {
        match &mut self.carrier {
            Carrier::Kernel(_) => {
                Err(LabError::Scenario("the kernel's queues cannot take turns in one world".to_owned()))
            }
            Carrier::Daemon(daemon) => daemon.hand_over(scenario, system, &self.tenants),
            Carrier::Fleet(fleet) => fleet.hand_over(scenario, system, setup, &self.tenants),
        }
    }

    /// Losses since `begin`.
    pub fn lost(&mut self) -> Result<Drops, LabError> {
        match &mut self.carrier {
            Carrier::Kernel(queue) => Ok(queue.tally(&self.tenants)?.drops),
            Carrier::Daemon(daemon) => Ok(daemon.used(&self.tenants)?.0.drops),
            Carrier::Fleet(fleet) => fleet.lost(&self.tenants),
        }
    }

    /// The hosts whose CPU for received packets takes time, each with the socket of its daemon's API.
    pub fn receivers(&self) -> Vec<(String, PathBuf)> {
        match &self.carrier {
            Carrier::Fleet(fleet) => fleet.receivers(),
            _ => Vec::new(),
        }
    }

    /// Time of the next fault, from the start of the run.
    pub fn next_fault(&self) -> Option<u64> {
        match &self.carrier {
            Carrier::Fleet(fleet) => fleet.next_fault(),
            _ => None,
        }
    }

    /// Produces the faults that are due.
    pub fn inject_faults(&mut self, now: u64) -> Result<(), LabError> {
        match &mut self.carrier {
            Carrier::Fleet(fleet) => fleet.inject_faults(now, &self.tenants),
            _ => Ok(()),
        }
    }

    /// CPU time that the carrier's processes have used; none for the kernel.
    pub fn cpu(&self) -> Option<Duration> {
        match &self.carrier {
            Carrier::Kernel(_) => None,
            Carrier::Daemon(daemon) => daemon.cpu(),
            Carrier::Fleet(fleet) => fleet.cpu(),
        }
    }

    /// Ends the carrier in good order, so that a daemon can finish its work; returns notes.
    pub fn take_down(mut self) -> Result<Vec<String>, LabError> {
        match &mut self.carrier {
            Carrier::Kernel(_) => Ok(Vec::new()),
            Carrier::Daemon(daemon) => daemon.stop(),
            Carrier::Fleet(fleet) => fleet.stop(),
        }
    }

    /// TCP segments that each tenant has retransmitted so far.
    pub fn retransmissions(&self) -> Result<BTreeMap<String, u64>, LabError> {
        let count = |member: &Member| Ok((member.name.clone(), member.netns.counter("Tcp:", "RetransSegs")?));
        self.tenants.iter().map(count).collect()
    }

    /// Lets every tenant send one datagram, so that the carrier learns the place of its MAC address: there is no ARP here.
    fn introduce(&self, scenario: &Scenario) -> Result<(), LabError> {
        let Some(destination) = scenario.destinations.first() else { return Ok(()) };
        let to = (destination.address, DISCARD);
        for tenant in &self.tenants {
            let hello =
                || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| socket.send_to(&[0], to));
            let sent = netns::within(tenant.netns.name(), hello)?;
            sent.map_err(|e| LabError::io(format!("send from tenant `{}`", tenant.name), e))?;
        }
        Ok(())
    }

    /// Sets addresses and neighbours at both ends of every link, and turns off offloads unless the scenario wants them.
    fn address_all(&self, scenario: &Scenario) -> Result<(), LabError> {
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set {UPLINK} address {} mtu {} up", world_mac(), scenario.mtu),
        ];
        for destination in &scenario.destinations {
            lines.push(format!("address add {}/32 dev {UPLINK}", destination.address));
        }
        for (index, tenant) in self.tenants.iter().enumerate() {
            lines.push(format!("route add {}/32 dev {UPLINK}", tenant.address));
            lines.push(neighbour(tenant.address, &tenant_mac(index), UPLINK));
        }
        if !scenario.offload {
            self.world.offloads_off(UPLINK)?;
        }
        self.world.ip(&lines)?;
        for (index, tenant) in self.tenants.iter().enumerate() {
            let mac = tenant_mac(index);
            let mut lines = vec![
                "link set lo up".to_owned(),
                format!("link set {TENANT_DEVICE} address {mac} mtu {} up", scenario.mtu),
                format!("address add {}/32 dev {TENANT_DEVICE}", tenant.address),
                format!("route add default dev {TENANT_DEVICE}"),
            ];
            for destination in &scenario.destinations {
                lines.push(neighbour(destination.address, &world_mac(), TENANT_DEVICE));
            }
            if !scenario.offload {
                tenant.netns.offloads_off(TENANT_DEVICE)?;
            }
            tenant.netns.ip(&lines)?;
        }
        Ok(())
    }
}

/// The discard protocol's port.
const DISCARD: u16 = 9;

/// Largest IP packet that a tenant may send.
pub fn tenant_mtu(scenario: &Scenario) -> u32 {
    if fleet::is_fleet(scenario) { scenario.mtu - OVERLAY_HEADERS } else { scenario.mtu }
}

/// Whether some host's policy has `backpressure`, with some system.
pub fn presses(scenario: &Scenario) -> bool {
    let wiring = Wiring::default();
    let states = |text: String| text.contains("\nbackpressure:");
    scenario.systems.iter().filter(|system| system.kind.on_engine()).any(|system| {
        let on = |host| states(scenario.policy_file_of(host, system, &wiring));
        states(scenario.policy_file(system, &wiring)) || scenario.hosts.iter().any(on)
    })
}

/// The places of a workload's two sides: its tenant, and its peer.
pub fn places(scenario: &Scenario, workload: &Workload) -> Result<(Place, Place), LabError> {
    let tenant = scenario.tenants.iter().find(|one| one.name == workload.tenant);
    if let (Some(tenant), Some(peer)) = (tenant, scenario.tenants.iter().find(|one| one.name == workload.to))
    {
        let place = |one: &plimsoll_scenario::Tenant| Place { netns: one.name.clone(), address: one.address };
        return Ok((place(tenant), place(peer)));
    }
    let peer = scenario.destinations.iter().find(|one| one.name == workload.to);
    let (Some(tenant), Some(peer)) = (tenant, peer) else {
        return Err(LabError::workload(&workload.name, "its tenant or destination does not exist"));
    };
    let near = Place { netns: tenant.name.clone(), address: tenant.address };
    Ok((near, Place { netns: WORLD.to_owned(), address: peer.address }))
}

fn add(to: &mut Drops, drops: Drops) {
    for (tenant, reasons) in drops {
        let known = to.entry(tenant).or_default();
        reasons.into_iter().for_each(|(reason, count)| *known.entry(reason).or_default() += count);
    }
}

fn neighbour(address: Ipv4Addr, mac: &str, device: &str) -> String {
    format!("neighbour replace {address} lladdr {mac} nud permanent dev {device}")
}

/// A tenant's MAC address, locally administered.
fn tenant_mac(index: usize) -> String {
    format!("02:77:00:00:{:02x}:{:02x}", (index + 1) >> 8, (index + 1) & 0xff)
}

fn world_mac() -> String {
    "02:77:00:ff:00:01".to_owned()
}
