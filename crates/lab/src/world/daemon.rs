//! The daemon under test: the real `plimsoll run` as a child process, with TAPs in the tenants' namespaces.
//!
//! Why: a measurement must be of the program that operators run.
//! From: the command line, policy file and API of operators.
//! Not here: the contents of the policy file (`scenario` writes it).
//! Invariant: the process has ended when the value is dropped.

use super::{Member, Pressing, SWITCH, Setup, TENANT_DEVICE, Tally, UPLINK, WORLD};
use crate::command::Running;
use crate::error::LabError;
use crate::netns::Netns;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use plimsoll_scenario::{Scenario, System, Wiring};
use plimsoll_slo::SloReport;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for the daemon to be ready: a machine whose cores are all busy takes seconds.
const START: Duration = Duration::from_secs(10);
/// Longest wait for an answer of the daemon's API.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest wait for the daemon to finish its work when it is stopped.
const STOP: Duration = Duration::from_secs(5);
/// Additional wait for each device, for whose removal the kernel waits for all cores.
const STOP_DEVICE: Duration = Duration::from_millis(100);

/// Longest time for which the daemon can judge promises.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// The daemon's process, and the path of its API.
pub(super) struct Daemon {
    process: Running,
    system: String,
    file: PathBuf,
    socket: PathBuf,
    before: Tally,
    /// Losses and CPU time of earlier daemons, which were killed.
    ended: Tally,
    /// Set since a daemon was killed.
    gap: Option<Gap>,
    devices: u32,
    // The namespace of the daemon's own devices, apart from the tenants'.
    home: Netns,
}

/// The time in which no daemon runs, and the counters from which its losses are computed.
struct Gap {
    since: Instant,
    /// Frames that had come to each device by then.
    before: BTreeMap<String, u64>,
    /// The owner and the name of each device.
    devices: Vec<(String, String)>,
    over: bool,
}

impl Daemon {
    /// Starts the daemon with the system's policy and waits until it answers.
    pub(super) fn start(
        scenario: &Scenario,
        system: &System,
        setup: &Setup,
        tenants: &[Member],
    ) -> Result<Self, LabError> {
        let home = Netns::create(SWITCH)?;
        let socket = setup.scratch.join("api.sock");
        let text = policy(scenario, system, tenants, &socket);
        let mut daemon = Self::launch(setup, &system.name, &text, home, socket, tenants.len())?;
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    /// Gives the running daemon this system's policy.
    pub(super) fn hand_over(
        &mut self,
        scenario: &Scenario,
        system: &System,
        tenants: &[Member],
    ) -> Result<(), LabError> {
        self.reload(&system.name, &policy(scenario, system, tenants, &self.socket))
    }

    /// Gives the running daemon another policy as an operator does: by its file and a reload.
    pub(super) fn reload(&mut self, name: &str, policy: &str) -> Result<(), LabError> {
        let written = std::fs::write(&self.file, policy);
        written.map_err(|e| LabError::io(format!("write {}", self.file.display()), e))?;
        name.clone_into(&mut self.system);
        let Err(refused) = ask(&self.socket, "POST", "/v1/reload") else { return Ok(()) };
        self.check()?;
        Err(LabError::Scenario(format!(
            "the policy of `{name}` cannot be put in force by a reload, as `one_world` and `timeline` ask: {refused}"
        )))
    }

    /// Starts the daemon with this policy in namespace `home`.
    pub(super) fn launch(
        setup: &Setup,
        name: &str,
        policy: &str,
        home: Netns,
        socket: PathBuf,
        devices: usize,
    ) -> Result<Self, LabError> {
        let file = setup.scratch.join(format!("{name}.yaml"));
        std::fs::write(&file, policy).map_err(|e| LabError::io(format!("write {}", file.display()), e))?;
        let process = spawn(setup, name, &file, &home)?;
        let devices = u32::try_from(devices).unwrap_or(u32::MAX);
        let (system, before, ended) = (name.to_owned(), Tally::default(), Tally::default());
        Ok(Self { process, system, file, socket, before, ended, gap: None, devices, home })
    }

    /// Kills the daemon, as a crash would. From then on, frames from `devices` (owner and name) that no daemon reads are
    /// counted as `daemon_down`.
    pub(super) fn kill(&mut self, tenants: &[Member], devices: &[(String, String)]) -> Result<(), LabError> {
        if self.is_down() {
            return Ok(());
        }
        self.ended = self.used(tenants)?.0;
        self.ended.pressing = self.pressing()?;
        let before = arrivals(&self.home)?;
        self.process.kill();
        self.gap = Some(Gap { since: Instant::now(), before, devices: devices.to_vec(), over: false });
        self.ended.notes.push(format!(
            "{}: `plimsoll run` was killed; packets that it held are not counted, and promises are judged from the restart on",
            self.system
        ));
        Ok(())
    }

    /// Starts a new daemon in place of the killed one, without its state.
    pub(super) fn restart(&mut self, setup: &Setup) -> Result<(), LabError> {
        if !self.is_down() {
            return Ok(());
        }
        // The log of the earlier daemon stays in its own file.
        self.process = spawn(setup, &format!("{}-next", self.system), &self.file, &self.home)?;
        self.wait_until_ready()?;
        self.before = Tally { cpu: Some(Duration::ZERO), ..Tally::default() };
        if let Some(gap) = &mut self.gap {
            gap.over = true;
            let away = 1e3 * gap.since.elapsed().as_secs_f64();
            self.ended.notes.push(format!("{}: the next daemon answered {away:.0} ms later", self.system));
        }
        Ok(())
    }

    /// Whether the daemon was killed and not restarted yet.
    fn is_down(&self) -> bool {
        self.gap.as_ref().is_some_and(|gap| !gap.over)
    }

    /// Frames that came while no daemon ran, by the device's owner: those that the new daemon has neither read nor counted
    /// as dropped by the kernel.
    fn unseen(&self, stats: &Value) -> Result<super::Drops, LabError> {
        let mut unseen = super::Drops::new();
        let Some(gap) = &self.gap else { return Ok(unseen) };
        let now = arrivals(&self.home)?;
        for (whose, device) in &gap.devices {
            let Some(came) = now.get(device) else { continue };
            let came = came.saturating_sub(gap.before.get(device).copied().unwrap_or(0));
            let port = if whose == WAY_IN { &stats["uplink"] } else { &stats["tenants"][whose] };
            let count = |value: &Value| value.as_u64().unwrap_or(0);
            let seen = count(&port["rx_packets"]) + count(&port["drops"]["kernel_full"]);
            let missed = came.saturating_sub(seen);
            unseen.entry(whose.clone()).or_default().insert("daemon_down".to_owned(), missed);
        }
        Ok(unseen)
    }

    pub(super) fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            self.fail_if_ended()?;
            if let Ok(health) = get(&self.socket, "/v1/health") {
                return self.check_ports(&health);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let reason = format!("no answer within {} s; {}", START.as_secs(), self.process.last_words());
        Err(LabError::Engine { system: self.system.clone(), reason })
    }

    /// Fails when the daemon lacks a port: it runs on without ports that it cannot open, but the run would be wrong.
    fn check_ports(&self, health: &str) -> Result<(), LabError> {
        let health: Value = serde_json::from_str(health).unwrap_or_default();
        if health["lost_ports"].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let reason = format!("it lacks ports {}; {}", health["lost_ports"], self.process.last_words());
        Err(LabError::Engine { system: self.system.clone(), reason })
    }

    /// Fails when the process has ended without having been killed.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        if self.is_down() { Ok(()) } else { self.fail_if_ended() }
    }

    fn fail_if_ended(&mut self) -> Result<(), LabError> {
        let Some(status) = self.process.ended() else { return Ok(()) };
        let reason = format!("it ended ({status}); {}", self.process.last_words());
        Err(LabError::Engine { system: self.system.clone(), reason })
    }

    /// Notes the counters from which the run counts.
    pub(super) fn begin(&mut self) -> Result<(), LabError> {
        self.before = self.counters(&self.stats()?).0;
        Ok(())
    }

    /// Losses and CPU time since `begin`, and the report on promises since measuring began, `ago` before now.
    pub(super) fn tally(&mut self, tenants: &[Member], ago: Duration) -> Result<Tally, LabError> {
        let (mut now, uptime) = self.used(tenants)?;
        if self.is_down() {
            now.pressing = self.ended.pressing.clone();
            return Ok(now);
        }
        now.pressing = self.pressing()?;
        let mut report = self.promises(ago, uptime)?;
        report.tenants.retain(|name, _| tenants.iter().any(|one| one.name == *name));
        now.promises.insert(String::new(), report);
        Ok(now)
    }

    /// Losses and CPU time since `begin`, and the daemon's uptime.
    pub(super) fn used(&self, tenants: &[Member]) -> Result<(Tally, Duration), LabError> {
        if self.is_down() {
            let mut ended = self.ended.clone();
            super::add(&mut ended.drops, self.unseen(&Value::Null)?);
            return Ok((ended, Duration::ZERO));
        }
        let stats = self.stats()?;
        let (mut now, uptime) = self.counters(&stats);
        let known = |name: &str| name == WAY_IN || tenants.iter().any(|one| one.name == *name);
        now.drops.retain(|name, _| known(name));
        for (tenant, reasons) in &mut now.drops {
            for (reason, count) in reasons.iter_mut() {
                let before = self.before.drops.get(tenant).and_then(|all| all.get(reason)).unwrap_or(&0);
                *count = count.saturating_sub(*before);
            }
            reasons.retain(|_, count| *count > 0);
        }
        now.cpu = now.cpu.zip(self.before.cpu).map(|(now, before)| now.saturating_sub(before));
        super::add(&mut now.drops, self.unseen(&stats)?);
        super::add(&mut now.drops, self.ended.drops.clone());
        now.cpu = now.cpu.map(|cpu| cpu + self.ended.cpu.unwrap_or_default());
        now.notes.extend(self.ended.notes.iter().cloned());
        Ok((now, uptime))
    }

    /// CPU time that the process has used.
    pub(super) fn cpu(&self) -> Option<Duration> {
        cpu(self.process.id())
    }

    /// Ends the daemon as an operator does; returns a note when it did not end well.
    pub(super) fn stop(&mut self) -> Result<Vec<String>, LabError> {
        if self.is_down() || self.process.stop(STOP + STOP_DEVICE * self.devices) {
            return Ok(Vec::new());
        }
        Ok(vec![format!("`plimsoll run` did not end cleanly when asked to: {}", self.process.last_words())])
    }

    /// What backpressure has done, by earlier daemons too.
    fn pressing(&self) -> Result<Pressing, LabError> {
        let failed = |error: &dyn std::fmt::Display| LabError::Engine {
            system: self.system.clone(),
            reason: format!("it did not say which flows are heavy: {error}"),
        };
        let heavy = get(&self.socket, "/v1/heavy").map_err(|error| failed(&error))?;
        let heavy: Value = serde_json::from_str(&heavy).map_err(|error| failed(&error))?;
        let mut pressing = Pressing::read(&self.stats()?, &heavy);
        pressing.add(&self.ended.pressing);
        Ok(pressing)
    }

    /// The path of its API's socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The report on promises since measuring began, as far back as the daemon remembers.
    fn promises(&self, ago: Duration, uptime: Duration) -> Result<SloReport, LabError> {
        let failed = |reason: String| LabError::Engine {
            system: self.system.clone(),
            reason: format!("it gave no report on promises: {reason}"),
        };
        let text = get(&self.socket, &since(ago, uptime));
        let text = text.map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// Losses and CPU time from these counters, and the daemon's uptime.
    fn counters(&self, stats: &Value) -> (Tally, Duration) {
        let uptime = Duration::try_from_secs_f64(stats["uptime"].as_f64().unwrap_or(0.0)).unwrap_or_default();
        (Tally { drops: drops(stats), cpu: cpu(self.process.id()), ..Tally::default() }, uptime)
    }

    fn stats(&self) -> Result<Value, LabError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| LabError::Engine {
            system: self.system.clone(),
            reason: format!("{what}: {error}"),
        };
        let text = get(&self.socket, "/v1/stats").map_err(|e| failed("it gave no counters", &e))?;
        serde_json::from_str(&text).map_err(|e| failed("its counters are not JSON", &e))
    }
}

fn spawn(setup: &Setup, log: &str, file: &Path, home: &Netns) -> Result<Running, LabError> {
    let args = ["run".to_owned(), file.display().to_string()];
    Running::start_first(&setup.binary, &args, home.name(), &setup.scratch.join(format!("{log}.log")))
}

/// Frames that have come to each device of a namespace.
fn arrivals(home: &Netns) -> Result<BTreeMap<String, u64>, LabError> {
    let text = home.read("/proc/thread-self/net/dev")?;
    let row = |line: &str| {
        let (device, counts) = line.split_once(':')?;
        Some((device.trim().to_owned(), counts.split_whitespace().nth(1)?.parse().ok()?))
    };
    Ok(text.lines().filter_map(row).collect())
}

/// The policy file of a system on a single host.
fn policy(scenario: &Scenario, system: &System, tenants: &[Member], socket: &Path) -> String {
    let port = |one: &Member| (one.name.clone(), tap(one.netns.name(), TENANT_DEVICE));
    let wiring = Wiring {
        tenants: tenants.iter().map(port).collect(),
        uplink: tap(WORLD, UPLINK),
        api: Some(format!("{{socket: {}}}", socket.display())),
        live: true,
        ..Wiring::default()
    };
    scenario.policy_file(system, &wiring)
}

pub(super) fn tap(netns: &str, name: &str) -> String {
    format!("{{tap: {{netns: {netns}, name: {name}}}}}")
}

/// Losses from the daemon's counters: `tenants.NAME.drops.REASON`, and those on ingress: in the NIC or kernel, in the
/// tenant's queue, or beyond the tenant's maximum.
fn drops(stats: &Value) -> super::Drops {
    let tenants = stats["tenants"].as_object().into_iter().flatten();
    let tenants = tenants.map(|(name, tenant)| {
        let reasons = tenant["drops"].as_object().into_iter().flatten();
        let counts = reasons.filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)));
        (name.clone(), counts.collect::<BTreeMap<_, _>>())
    });
    let uplink = &stats["uplink"]["drops"];
    let same = [
        "ingress_full",
        "ingress_over_max",
        "stranger_over_limit",
        "overlay_source_over_share",
        "flow_over_rate",
    ];
    let same = same.map(|reason| (reason, reason));
    let known = [("kernel_full", "rx_ring_full")].into_iter().chain(same);
    let lost = known.map(|(reason, name)| (name.to_owned(), uplink[reason].as_u64().unwrap_or(0)));
    tenants.chain([(WAY_IN.to_owned(), lost.collect())]).collect()
}

/// The name under which losses on ingress are reported, as their tenant is unknown. It is no tenant's name.
pub(super) const WAY_IN: &str = "the uplink";

/// The API path for the report on promises in the last `ago`, from a daemon with this uptime.
fn since(ago: Duration, uptime: Duration) -> String {
    let window = (ago.as_secs() + 1).min(REMEMBERED.as_secs());
    format!("/v1/slo?window={window}s&since={}ns", uptime.saturating_sub(ago).as_nanos())
}

/// CPU time of a process and its threads, in nanoseconds; `/proc` counts only hundredths of seconds.
pub(crate) fn cpu(id: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(id).ok()?)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

/// Asks the daemon's API for what is at `path`.
pub(crate) fn get(socket: &Path, path: &str) -> std::io::Result<String> {
    ask(socket, "GET", path)
}

/// Asks the daemon's API; returns the body of a successful answer.
fn ask(socket: &Path, method: &str, path: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(
        format!("{method} {path} HTTP/1.1\r\nHost: plimsoll\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock => {
            std::io::Error::other(format!("no answer within {} s: are all cores busy?", ANSWER.as_secs()))
        }
        _ => e,
    })?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    if head.split_whitespace().nth(1) != Some("200") {
        let status = head.lines().next().unwrap_or("no answer");
        let said =
            serde_json::from_str(body).ok().and_then(|body: Value| Some(body["error"].as_str()?.to_owned()));
        return Err(std::io::Error::other(format!("{path}: {status}: {}", said.unwrap_or_default())));
    }
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_asked_only_for_what_it_remembers_since_measuring_began() {
        let asked = |ago, uptime| since(Duration::from_millis(ago), Duration::from_millis(uptime));
        assert_eq!(asked(5_500, 9_000), "/v1/slo?window=6s&since=3500000000ns");
        assert_eq!(asked(7_200_000, 7_201_000), "/v1/slo?window=3600s&since=1000000000ns");
    }
}
