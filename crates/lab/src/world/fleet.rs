//! Several hosts: a real `plimsoll run` for each, in a namespace of its own, joined by a bridge.
//!
//! Why: what receivers tell senders on other hosts shows only where there are other hosts.
//! From: `docs/overlay.md`, "Join two hosts"; a switch's port to a host has its link's rate and queue (tc-tbf(8)), the
//! host's own way out is the engine's to pace.
//! Not here: one host with its uplink (`engine`, `kernel`), models of CPUs and rings (`sim`); a slower core on the way in is
//! the engine's own (`engine.experiment`).
//! Invariant: the processes are gone when the value is; every host's file has the same map, but for control channels that go
//! through relays.

use super::engine::{Engine, WAY_IN, tap};
use super::relay::Relays;
use super::{Drops, Member, SWITCH, Setup, TENANT_DEVICE, Tally, add, neighbour, tenant_mac};
use crate::error::LabError;
use crate::netns::Netns;
use plimsoll_scenario::{
    ControlLevel, Faults, FeedbackFaults, Host, HostNic, Idle, Ingress, Link, Scenario, System, SystemKind,
    Tenant, Wiring,
};
use plimsoll_units::{BitRate, Span};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

/// What the overlay adds to a tenant's packet over IPv4.
pub(super) const HEADERS: u32 = 50;
/// A host's device towards the switch.
const DEVICE: &str = "up0";

/// Where the switch has what loses messages of control, and which port a host's daemon and that host's relay listen at.
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 254);
const CHANNEL: u16 = 7_077;
const RELAYS: u16 = 7_100;

/// The hosts and what joins them.
pub(super) struct Fleet {
    // Order matters: processes end before the namespaces that they work in.
    engines: Vec<Engine>,
    hosts: Vec<String>,
    setup: Setup,
    /// Daemons that end and come back, the next one last: when, which, and whether it comes back.
    deeds: Vec<(u64, usize, bool)>,
    /// Devices in hosts' namespaces that outlive the daemon, and whose they are: the way in, and tenants'.
    devices: Vec<(String, String)>,
    relays: Option<Relays>,
    _switch: Netns,
}

/// Whether the scenario is of several hosts around one switch, as can be built.
pub(crate) fn is_fleet(scenario: &Scenario) -> bool {
    scenario.hosts.len() > 1 && scenario.switches.len() == 1
}

/// What of such a scenario cannot be built, if anything.
pub(crate) fn refuse(scenario: &Scenario) -> Option<String> {
    if scenario.hosts.len() > 200 {
        return Some("the file has more than 200 hosts".to_owned());
    }
    for host in &scenario.hosts {
        let links: Vec<&Link> = links_of(scenario, host).collect();
        let [link] = links.as_slice() else {
            return Some(format!("host `{}` has {} links, not one to the switch", host.name, links.len()));
        };
        if !link.both || link.loss > 0.0 || link.ecn.is_some() {
            return Some(format!("link `{}` leads one way, loses or marks packets", link.name));
        }
        if host.nic != HostNic::Engine {
            return Some(format!("host `{}` has no engine", host.name));
        }
    }
    if scenario.links.len() != scenario.hosts.len() {
        return Some("a link leads elsewhere than from a host to the switch".to_owned());
    }
    if scenario.control.as_ref().is_some_and(|control| !control.balancers.is_empty()) {
        return Some("`control` names `balancers`".to_owned());
    }
    let strange = |workload: &&plimsoll_scenario::Workload| scenario.tenant_address(&workload.to).is_none();
    let found = scenario.workloads.iter().find(strange)?;
    Some(format!("workload `{}` leaves the fleet: on several hosts tenants send to tenants", found.name))
}

/// Why a system is not one of a fleet's, if it is not.
pub(crate) fn not_here(scenario: &Scenario, system: &System) -> Option<&'static str> {
    let controlled = scenario.control.is_some() && system.control != ControlLevel::Off;
    if system.kind != SystemKind::Plimsoll {
        Some("on several hosts there is no other system than Plimsoll, live")
    } else if system.steering.as_ref().is_some_and(|control| !control.balancers.is_empty()) {
        Some("its `control` names `balancers`")
    } else if system.ingress == Ingress::Shared && controlled {
        Some("with `ingress: shared` receivers do not see what waits for each tenant; write `control: off`")
    } else if system.completions.is_some() {
        Some("tenants have TAPs, whose guests get no completions: `completions` is a model")
    } else {
        None
    }
}

fn links_of<'s>(scenario: &'s Scenario, host: &'s Host) -> impl Iterator<Item = &'s Link> {
    scenario.links.iter().filter(|link| link.from == host.name || link.to == host.name)
}

impl Fleet {
    pub(super) fn start(
        scenario: &Scenario,
        system: &System,
        setup: &Setup,
        tenants: &[Member],
    ) -> Result<Self, LabError> {
        let switch = Netns::create(SWITCH)?;
        switch.ip(&[
            "link add bridge type bridge stp_state 0 mcast_snooping 0".to_owned(),
            "link set bridge up".to_owned(),
        ])?;
        let homes =
            scenario.hosts.iter().enumerate().map(|(index, host)| join(scenario, &switch, index, host));
        let homes: Vec<Netns> = homes.collect::<Result<_, _>>()?;
        key_file(setup)?;
        let relays = disturbed(scenario).then(|| relays(scenario, system, &switch)).transpose()?;
        let devices = if outlive(scenario) { veths(scenario, &homes, tenants)? } else { Vec::new() };
        let mut engines = Vec::new();
        for (host, home) in scenario.hosts.iter().zip(homes) {
            let devices = tenants.iter().filter(|one| lives_on(scenario, &one.name, &host.name)).count();
            let text = policy(scenario, system, host, setup, tenants);
            let (name, socket) = (title(system, host), socket(setup, host));
            engines.push(Engine::launch(setup, &name, &text, home, socket, devices)?);
        }
        let hosts = scenario.hosts.iter().map(|host| host.name.clone()).collect();
        let (setup, deeds) = (setup.clone(), deeds(scenario, system));
        let mut fleet = Self { engines, hosts, setup, deeds, devices, relays, _switch: switch };
        fleet.engines.iter_mut().try_for_each(Engine::wait_until_ready)?;
        address_all(scenario, tenants)?;
        Ok(fleet)
    }

    /// From now on the same hosts have this system's policies.
    pub(super) fn hand_over(
        &mut self,
        scenario: &Scenario,
        system: &System,
        setup: &Setup,
        tenants: &[Member],
    ) -> Result<(), LabError> {
        self.engines.iter_mut().zip(&scenario.hosts).try_for_each(|(engine, host)| {
            engine.reload(&title(system, host), &policy(scenario, system, host, setup, tenants))
        })
    }

    /// When the next daemon ends or comes back, from the start of the run.
    pub(super) fn next_fault(&self) -> Option<u64> {
        self.deeds.last().map(|&(at, ..)| at)
    }

    /// Daemons whose time has come end, or come back.
    pub(super) fn go_wrong(&mut self, now: u64, tenants: &[Member]) -> Result<(), LabError> {
        while let Some((_, host, back)) = self.deeds.pop_if(|&mut (at, ..)| at <= now) {
            match back {
                true => self.engines[host].rise(&self.setup)?,
                false => self.engines[host].fall(tenants, &self.devices)?,
            }
        }
        Ok(())
    }

    /// CPU time that all of them have used.
    pub(super) fn cpu(&self) -> Option<Duration> {
        self.engines.iter().map(Engine::cpu).sum()
    }

    pub(super) fn check(&mut self) -> Result<(), LabError> {
        self.engines.iter_mut().try_for_each(Engine::check)
    }

    pub(super) fn begin(&mut self) -> Result<(), LabError> {
        self.engines.iter_mut().try_for_each(Engine::begin)
    }

    /// What all of them lost and used.
    pub(super) fn tally(&mut self, tenants: &[Member], ago: Duration) -> Result<Tally, LabError> {
        let mut all = Tally::default();
        for (engine, host) in self.engines.iter_mut().zip(&self.hosts) {
            let Tally { drops, cpu, notes, promises } = engine.tally(tenants, ago)?;
            add(&mut all.drops, drops);
            all.promises.extend(promises.into_values().map(|fared| (host.clone(), fared)));
            all.cpu = all.cpu.map_or(cpu, |sum| cpu.map(|cpu| sum + cpu));
            all.notes.extend(notes);
        }
        all.notes.extend(self.relays.as_ref().map(Relays::note));
        Ok(all)
    }

    pub(super) fn lost(&self, tenants: &[Member]) -> Result<Drops, LabError> {
        let mut all = Drops::new();
        for engine in &self.engines {
            add(&mut all, engine.used(tenants)?.0.drops);
        }
        Ok(all)
    }

    pub(super) fn stop(&mut self) -> Result<Vec<String>, LabError> {
        let mut notes = Vec::new();
        for engine in &mut self.engines {
            notes.extend(engine.stop()?);
        }
        Ok(notes)
    }
}

/// What goes wrong in a run of this system. All systems have the same devices and ways, whether anything goes wrong or not.
fn faults(scenario: &Scenario, system: &System) -> Faults {
    if system.faults { scenario.faults.clone() } else { Faults::default() }
}

/// Whether control's messages go where they can be lost.
fn disturbed(scenario: &Scenario) -> bool {
    scenario.faults.feedback != FeedbackFaults::default()
}

/// Whether tenants' devices shall be there while a daemon is not: a TAP goes with who made it.
fn outlive(scenario: &Scenario) -> bool {
    !scenario.faults.restarts.is_empty()
}

/// When which daemon ends or comes back, the next one last.
fn deeds(scenario: &Scenario, system: &System) -> Vec<(u64, usize, bool)> {
    let mut deeds = Vec::new();
    for restart in faults(scenario, system).restarts {
        let host = scenario.hosts.iter().position(|host| host.name == restart.host);
        let at = restart.at.as_u64();
        deeds.extend(host.map(|host| (at, host, false)));
        deeds.extend(host.map(|host| (at.saturating_add(restart.gap.as_u64()), host, true)));
    }
    deeds.sort_by_key(|&deed| std::cmp::Reverse(deed));
    deeds
}

/// A relay for each host's channel, on the switch.
fn relays(scenario: &Scenario, system: &System, switch: &Netns) -> Result<Relays, LabError> {
    switch.ip(&[format!("address add {RELAY}/24 dev bridge")])?;
    let way =
        |index: usize| (SocketAddrV4::new(RELAY, relay(index)), SocketAddrV4::new(address(index), CHANNEL));
    let ways: Vec<_> = (0..scenario.hosts.len()).map(way).collect();
    Relays::start(faults(scenario, system).feedback, scenario.seed, &ways)
}

fn relay(host: usize) -> u16 {
    RELAYS + u16::try_from(host).unwrap_or(u16::MAX - RELAYS)
}

/// A pair of devices for each tenant, one end in its host's namespace. Answers those and the one towards the switch: whose
/// each is, and what it is called there.
fn veths(
    scenario: &Scenario,
    homes: &[Netns],
    tenants: &[Member],
) -> Result<Vec<(String, String)>, LabError> {
    let mut devices = vec![(WAY_IN.to_owned(), DEVICE.to_owned())];
    let mtu = scenario.mtu;
    for (index, tenant) in tenants.iter().enumerate() {
        let (name, there, mac) = (veth(index), tenant.netns.name(), tenant_mac(index));
        let at = scenario.hosts.iter().position(|host| lives_on(scenario, &tenant.name, &host.name));
        let Some(home) = at.and_then(|at| homes.get(at)) else { continue };
        home.ip(&[
            format!("link add {name} mtu {mtu} type veth peer name {TENANT_DEVICE} address {mac} mtu {mtu} netns {there}"),
            format!("link set {name} up"),
        ])?;
        devices.push((tenant.name.clone(), name));
    }
    Ok(devices)
}

fn veth(tenant: usize) -> String {
    format!("t{tenant}")
}

/// What a host's engine is called in one system.
fn title(system: &System, host: &Host) -> String {
    format!("{}-{}", system.name, host.name)
}

fn socket(setup: &Setup, host: &Host) -> PathBuf {
    setup.scratch.join(format!("{}.sock", host.name))
}

/// A host's policy file.
fn policy(scenario: &Scenario, system: &System, host: &Host, setup: &Setup, tenants: &[Member]) -> String {
    let outlive = outlive(scenario);
    let port = |(index, one): (usize, &Member)| match outlive {
        true => format!("{{af_packet: {}}}", veth(index)),
        false => tap(one.netns.name(), TENANT_DEVICE),
    };
    let ports = tenants.iter().enumerate().filter(|(_, one)| lives_on(scenario, &one.name, &host.name));
    let ports = ports.map(|(index, one)| (one.name.clone(), port((index, one))));
    let wiring = Wiring {
        tenants: ports.collect(),
        uplink: format!("{{af_packet: {DEVICE}}}"),
        api: Some(format!("{{socket: {}}}", socket(setup, host).display())),
        rate: links_of(scenario, host).next().map(|link| link.rate),
        live: true,
    };
    scenario.policy_file_of(host, system, &wiring) + &overlay(scenario, system, host, &key_path(setup))
}

fn lives_on(scenario: &Scenario, tenant: &str, host: &str) -> bool {
    let found = scenario.tenants.iter().find(|one| one.name == tenant);
    found.is_some_and(|one| one.homes.iter().any(|home| home.host == host))
}

fn address(index: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 201, 0, u8::try_from(index + 1).unwrap_or(u8::MAX))
}

/// A host's namespace, and its link to the switch.
fn join(scenario: &Scenario, switch: &Netns, index: usize, host: &Host) -> Result<Netns, LabError> {
    let home = Netns::create(&format!("host-{}", host.name))?;
    let Some(link) = links_of(scenario, host).next() else { return Ok(home) };
    let (port, mtu, name) = (format!("port{index}"), scenario.mtu, home.name());
    switch.ip(&[
        format!("link add {port} mtu {mtu} type veth peer name {DEVICE} mtu {mtu} netns {name}"),
        format!("link set dev {port} master bridge up"),
    ])?;
    home.ip(&[
        "link set lo up".to_owned(),
        format!("address add {}/24 dev {DEVICE}", address(index)),
        format!("link set {DEVICE} up"),
    ])?;
    let frame = u64::from(mtu) + 14;
    // What the kernel's timer may be late by.
    let burst = (link.rate.get() / 8 / 500).max(2 * frame);
    let (rate, limit) = (link.rate.get(), link.queue.as_u64().max(2 * frame));
    switch.tc(&[format!("qdisc add dev {port} root tbf rate {rate}bit burst {burst} limit {limit}")])?;
    Ok(home)
}

fn key_path(setup: &Setup) -> PathBuf {
    setup.scratch.join("key").join("fleet.key")
}

/// Writes a key of this run's own: the namespaces are private, so it need not be secret.
fn key_file(setup: &Setup) -> Result<(), LabError> {
    let failed = |error| LabError::io("write the fleet's key", error);
    let path = key_path(setup);
    let folder = path.parent().unwrap_or(&setup.scratch);
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(failed)?;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    std::io::Write::write_all(&mut file.map_err(failed)?, &[0x77; 32]).map_err(failed)
}

/// The section that joins the hosts, the same in each but for its name.
fn overlay(scenario: &Scenario, system: &System, host: &Host, key: &std::path::Path) -> String {
    let mut text = format!("overlay:\n  kind: geneve\n  vni: 1\n  host: {}\n  hosts:\n", host.name);
    for (index, other) in scenario.hosts.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "    {}:\n      address: {}\n", other.name, address(index));
        if disturbed(scenario) {
            let (at, port) =
                if other.name == host.name { (address(index), CHANNEL) } else { (RELAY, relay(index)) };
            let _ = writeln!(text, "      channel: \"{at}:{port}\"");
        }
        let _ = write!(text, "      tenants: {{");
        let tenants = scenario.tenants.iter().enumerate();
        let tenants = tenants.filter(|(_, tenant)| tenant.homes.iter().any(|home| home.host == other.name));
        let max = |max: BitRate| format!(", max: {max}");
        let stated = |tenant: &Tenant| tenant.max.map(max).unwrap_or_default();
        let tenants: Vec<String> = tenants
            .map(|(index, one)| format!("{}: {{mac: {}{}}}", one.name, tenant_mac(index), stated(one)))
            .collect();
        let _ = writeln!(text, "{}}}", tenants.join(", "));
    }
    // A system may have a control of its own.
    let control = system.steering.as_ref().or(scenario.control.as_ref());
    let silent = faults(scenario, system).silent.contains(&host.name);
    if let Some(control) = control.filter(|_| system.control != ControlLevel::Off && !silent) {
        let epoch = control.epoch.max(Span::micros(10)).min(Span::secs(1));
        let lapse = control.lapse.max(epoch.times(5)).max(Span::millis(100)).min(Span::secs(60));
        let delay = control.threshold.max(Span::micros(1)).min(Span::secs(1));
        let key = key.display();
        let level = if system.control == ControlLevel::Full { "full" } else { "bandwidth" };
        let via = if disturbed(scenario) { "channel" } else { "datapath" };
        let idle = if control.idle == Idle::Lent { "lent" } else { "reserved" };
        let fallback = control.fallback.map(|rate| format!(", fallback: {rate}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "  feedback: {{key: {key}, via: {via}, epoch: {epoch}, lapse: {lapse}, delay: {delay}, control: {level}, \
             idle: {idle}{fallback}}}"
        );
    }
    text
}

/// Tenants know each other's addresses, and send frames without offloads that fit the overlay.
fn address_all(scenario: &Scenario, tenants: &[Member]) -> Result<(), LabError> {
    for tenant in tenants {
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set {TENANT_DEVICE} mtu {} up", super::tenant_mtu(scenario)),
            format!("address add {}/32 dev {TENANT_DEVICE}", tenant.address),
            format!("route add default dev {TENANT_DEVICE}"),
        ];
        for (index, other) in tenants.iter().enumerate().filter(|(_, other)| other.name != tenant.name) {
            lines.push(neighbour(other.address, &tenant_mac(index), TENANT_DEVICE));
        }
        if !scenario.offload {
            tenant.netns.offloads_off(TENANT_DEVICE)?;
        }
        tenant.netns.ip(&lines)?;
    }
    Ok(())
}
