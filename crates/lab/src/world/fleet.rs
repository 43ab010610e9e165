//! Several hosts: a real `plimsoll run` for each, in a namespace of its own, joined by a bridge.
//!
//! Why: feedback between receivers and senders can be tested only with several hosts.
//! From: `docs/overlay.md`, "Join two hosts"; a switch's port to a host has its link's rate and queue (tc-tbf(8)); towards
//! the switch the host's daemon paces.
//! A link's delay is a line (`line`).
//! Not here: one host with its uplink (`daemon`, `kernel`), models of CPUs and rings (`sim`); a slower core for ingress is an
//! option of the daemon (`engine.experiment`).
//! Invariant: the processes have ended when the value is dropped; all hosts' files list the same hosts and tenants, only
//! their control channels may go through relays.

use super::daemon::{Daemon, WAY_IN, tap};
use super::line::{self, Lines};
use super::relay::Relays;
use super::{Drops, Member, SWITCH, Setup, TENANT_DEVICE, Tally, add, neighbour, tenant_mac};
use crate::error::LabError;
use crate::netns::Netns;
use plimsoll_scenario::{
    ControlLevel, Faults, FeedbackFaults, Host, Idle, Ingress, Link, NicKind, Scenario, System, SystemKind,
    Tenant, Wiring,
};
use plimsoll_units::Span;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

/// A host's device towards the switch.
const DEVICE: &str = "up0";

/// Address of the relays, on the switch.
const RELAY: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 254);
/// Port of each daemon's control channel.
const CHANNEL: u16 = 7_077;
/// Port of the first host's relay.
const RELAYS: u16 = 7_100;

/// The hosts, and the switch that joins them.
pub(super) struct Fleet {
    // Order matters: processes must end before their namespaces.
    daemons: Vec<Daemon>,
    hosts: Vec<String>,
    /// Those of them with `receive`.
    receiving: Vec<String>,
    setup: Setup,
    /// Kills and restarts of daemons, the next one last: time, host, and whether it is a restart.
    restarts: Vec<(u64, usize, bool)>,
    /// Owner and name of the devices in hosts' namespaces that outlive the daemon: the uplink, and tenants' devices.
    devices: Vec<(String, String)>,
    relays: Option<Relays>,
    _lines: Lines,
    _switch: Netns,
}

/// Whether the scenario has several hosts around one switch, which can be built.
pub(crate) fn is_fleet(scenario: &Scenario) -> bool {
    scenario.hosts.len() > 1 && scenario.switches.len() == 1
}

/// Why such a scenario cannot be built, if it cannot.
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
        if host.nic != NicKind::Engine {
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

/// Why a system cannot run on several hosts, if it cannot.
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
        let mut lines = Lines::default();
        let hosts = scenario.hosts.iter().enumerate();
        let homes = hosts.map(|(index, host)| join(scenario, &switch, &mut lines, index, host));
        let homes: Vec<Netns> = homes.collect::<Result<_, _>>()?;
        key_file(setup)?;
        let relays = disturbed(scenario).then(|| relays(scenario, system, &switch)).transpose()?;
        let devices = if outlive(scenario) { veths(scenario, &homes, tenants)? } else { Vec::new() };
        let mut daemons = Vec::new();
        for (host, home) in scenario.hosts.iter().zip(homes) {
            let devices = tenants.iter().filter(|one| lives_on(scenario, &one.name, &host.name)).count();
            let text = policy(scenario, system, host, setup, tenants);
            let (name, socket) = (title(system, host), socket(setup, host));
            daemons.push(Daemon::launch(setup, &name, &text, home, socket, devices)?);
        }
        let named = |host: &Host| host.name.clone();
        let hosts = scenario.hosts.iter().map(named).collect();
        let receiving = scenario.hosts.iter().filter(|host| host.receive.is_some()).map(named).collect();
        let (setup, restarts) = (setup.clone(), restarts(scenario, system));
        let mut fleet = Self {
            daemons,
            hosts,
            receiving,
            setup,
            restarts,
            devices,
            relays,
            _lines: lines,
            _switch: switch,
        };
        fleet.daemons.iter_mut().try_for_each(Daemon::wait_until_ready)?;
        address_all(scenario, tenants)?;
        Ok(fleet)
    }

    /// Gives the running daemons this system's policies.
    pub(super) fn hand_over(
        &mut self,
        scenario: &Scenario,
        system: &System,
        setup: &Setup,
        tenants: &[Member],
    ) -> Result<(), LabError> {
        self.daemons.iter_mut().zip(&scenario.hosts).try_for_each(|(daemon, host)| {
            daemon.reload(&title(system, host), &policy(scenario, system, host, setup, tenants))
        })
    }

    /// Time of the next kill or restart of a daemon, from the start of the run.
    pub(super) fn next_fault(&self) -> Option<u64> {
        self.restarts.last().map(|&(at, ..)| at)
    }

    /// Kills or restarts the daemons whose time has come.
    pub(super) fn inject_faults(&mut self, now: u64, tenants: &[Member]) -> Result<(), LabError> {
        while let Some((_, host, back)) = self.restarts.pop_if(|&mut (at, ..)| at <= now) {
            match back {
                true => self.daemons[host].restart(&self.setup)?,
                false => self.daemons[host].kill(tenants, &self.devices)?,
            }
        }
        Ok(())
    }

    /// CPU time of all daemons.
    pub(super) fn cpu(&self) -> Option<Duration> {
        self.daemons.iter().map(Daemon::cpu).sum()
    }

    pub(super) fn check(&mut self) -> Result<(), LabError> {
        self.daemons.iter_mut().try_for_each(Daemon::check)
    }

    pub(super) fn begin(&mut self) -> Result<(), LabError> {
        self.daemons.iter_mut().try_for_each(Daemon::begin)
    }

    /// Losses, CPU time and reports of all daemons.
    pub(super) fn tally(&mut self, tenants: &[Member], ago: Duration) -> Result<Tally, LabError> {
        let mut all = Tally::default();
        for (daemon, host) in self.daemons.iter_mut().zip(&self.hosts) {
            let Tally { drops, cpu, notes, promises, pressing } = daemon.tally(tenants, ago)?;
            all.pressing.add(&pressing);
            add(&mut all.drops, drops);
            all.promises.extend(promises.into_values().map(|report| (host.clone(), report)));
            all.cpu = all.cpu.map_or(cpu, |sum| cpu.map(|cpu| sum + cpu));
            all.notes.extend(notes);
        }
        all.notes.extend(self.relays.as_ref().map(Relays::note));
        Ok(all)
    }

    pub(super) fn receivers(&self) -> Vec<(String, PathBuf)> {
        let all = self.daemons.iter().zip(&self.hosts).filter(|(_, host)| self.receiving.contains(host));
        all.map(|(daemon, host)| (host.clone(), daemon.socket().to_owned())).collect()
    }

    pub(super) fn lost(&self, tenants: &[Member]) -> Result<Drops, LabError> {
        let mut all = Drops::new();
        for daemon in &self.daemons {
            add(&mut all, daemon.used(tenants)?.0.drops);
        }
        Ok(all)
    }

    pub(super) fn stop(&mut self) -> Result<Vec<String>, LabError> {
        let mut notes = Vec::new();
        for daemon in &mut self.daemons {
            notes.extend(daemon.stop()?);
        }
        Ok(notes)
    }
}

/// The faults in a run of this system. Devices and channels are the same for all systems, with faults or without.
fn faults(scenario: &Scenario, system: &System) -> Faults {
    if system.faults { scenario.faults.clone() } else { Faults::default() }
}

/// Whether control messages go through relays, which can lose them.
fn disturbed(scenario: &Scenario) -> bool {
    scenario.faults.feedback != FeedbackFaults::default()
}

/// Whether tenants' devices must outlive a daemon; a TAP ends with its daemon.
fn outlive(scenario: &Scenario) -> bool {
    !scenario.faults.restarts.is_empty()
}

/// The kills and restarts of daemons, the next one last.
fn restarts(scenario: &Scenario, system: &System) -> Vec<(u64, usize, bool)> {
    let mut restarts = Vec::new();
    for restart in faults(scenario, system).restarts {
        let host = scenario.hosts.iter().position(|host| host.name == restart.host);
        let at = restart.at.as_u64();
        restarts.extend(host.map(|host| (at, host, false)));
        restarts.extend(host.map(|host| (at.saturating_add(restart.gap.as_u64()), host, true)));
    }
    restarts.sort_by_key(|&restart| std::cmp::Reverse(restart));
    restarts
}

/// Starts a relay for each host's channel, on the switch.
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

/// Makes a veth pair for each tenant, one end in its host's namespace. Returns the owner and the name of these ends, and of
/// the device towards the switch.
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

/// The name of a host's daemon in one system.
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
        virtual_time: false,
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

/// Makes a host's namespace, and its link to the switch.
fn join(
    scenario: &Scenario,
    switch: &Netns,
    lines: &mut Lines,
    index: usize,
    host: &Host,
) -> Result<Netns, LabError> {
    let home = Netns::create(&format!("host-{}", host.name))?;
    let Some(link) = links_of(scenario, host).next() else { return Ok(home) };
    let (port, mtu, name) = (format!("port{index}"), scenario.mtu, home.name());
    switch.ip(&[
        format!("link add {port} mtu {mtu} type veth peer name {DEVICE} mtu {mtu} netns {name}"),
        format!("link set dev {port} up"),
    ])?;
    if link.delay < line::LEAST {
        switch.ip(&[format!("link set dev {port} master bridge")])?;
    } else {
        let (near, far) = (format!("near{index}"), format!("far{index}"));
        switch.ip(&[
            format!("link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}"),
            format!("link set dev {near} up"),
            format!("link set dev {far} master bridge up"),
        ])?;
        lines.join(link.delay, [&port, &near])?;
    }
    home.ip(&[
        "link set lo up".to_owned(),
        format!("address add {}/24 dev {DEVICE}", address(index)),
        format!("link set {DEVICE} up"),
    ])?;
    let frame = u64::from(mtu) + 14;
    // A burst of 2 ms, as the kernel's timer may be late.
    let burst = (link.rate.get() / 8 / 500).max(2 * frame);
    let (rate, limit) = (link.rate.get(), link.queue.as_u64().max(2 * frame));
    switch.tc(&[format!("qdisc add dev {port} root tbf rate {rate}bit burst {burst} limit {limit}")])?;
    Ok(home)
}

fn key_path(setup: &Setup) -> PathBuf {
    setup.scratch.join("key").join("fleet.key")
}

/// Writes the fleet's key; the namespaces are private, so it need not be secret.
fn key_file(setup: &Setup) -> Result<(), LabError> {
    let failed = |error| LabError::io("write the fleet's key", error);
    let path = key_path(setup);
    let folder = path.parent().unwrap_or(&setup.scratch);
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(failed)?;
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    std::io::Write::write_all(&mut file.map_err(failed)?, &[0x77; 32]).map_err(failed)
}

/// The policy's `overlay` section, which joins the hosts.
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
        let weight = |tenant: &Tenant| tenant.stated_weight().map(|weight| format!(", weight: {weight}"));
        let max = |tenant: &Tenant| tenant.max.map(|max| format!(", max: {max}"));
        let stated =
            |tenant: &Tenant| [weight(tenant), max(tenant)].into_iter().flatten().collect::<String>();
        let tenants: Vec<String> = tenants
            .map(|(index, one)| format!("{}: {{mac: {}{}}}", one.name, tenant_mac(index), stated(one)))
            .collect();
        let _ = writeln!(text, "{}}}", tenants.join(", "));
    }
    // A system may have a control of its own.
    let control = system.steering.as_ref().or(scenario.control.as_ref());
    let silent = faults(scenario, system).silent.contains(&host.name);
    let key = key.display();
    if control.is_none() && super::presses(scenario) && !silent {
        // Notices of backpressure are feedback, in all systems, so that only backpressure differs. A host that is not heard
        // may send as if there were no feedback.
        let rate = scenario.rate.get();
        let _ = writeln!(
            text,
            "  feedback: {{key: {key}, via: datapath, control: bandwidth, fallback: {rate}bps}}"
        );
    }
    if let Some(control) = control.filter(|_| system.control != ControlLevel::Off && !silent) {
        let epoch = control.epoch.max(Span::micros(10)).min(Span::secs(1));
        let lapse = control.lapse.max(epoch.times(5)).max(Span::millis(100)).min(Span::secs(60));
        let delay = control.threshold.max(Span::micros(1)).min(Span::secs(1));
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

/// Sets tenants' addresses and neighbours, and an MTU that fits the overlay; turns off offloads unless the scenario wants
/// them.
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
    super::kernels::ways(scenario, tenants)
}

#[cfg(test)]
mod tests {
    use plimsoll_scenario::Form;

    use super::*;

    /// Receivers go by what the map says, so it says all that the scenario does, as virtual time has it.
    #[test]
    fn the_map_has_the_weights_that_the_scenario_states() {
        let text = "{name: t, rate: 1Gbps, duration: 1s, systems: [plimsoll], hosts: [a, b], switches: [s], \
                    links: {l: {between: [a, s], rate: 1Gbps}, m: {between: [b, s], rate: 1Gbps}}, \
                    tenants: {x: {host: a, weight: 3, max: 1Gbps}, y: {host: a, weight: 1}, z: {host: b, max: 1Gbps}}, \
                    workloads: {w: {tenant: x, to: z, kind: bulk}}}";
        let scenario = Scenario::parse(text, "t.yaml", "".as_ref(), Form::Full).expect("a scenario");
        let map = overlay(&scenario, &scenario.systems[0], &scenario.hosts[0], "key".as_ref());
        assert!(map.contains(", weight: 3, max: 1Gbps}, y: {mac: ") && map.contains(", weight: 1}"), "{map}");
        assert_eq!(map.matches("weight").count(), 2, "{map}");
    }
}
