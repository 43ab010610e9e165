//! Plimsoll's world: the real `plimsoll run` as a child process, with TAPs in the tenants' namespaces.
//!
//! Why: what is measured must be what an operator would run.
//! From: the same command line, policy file and API that operators use.
//! Not here: the policy file's content (`scenario` writes it).
//! Invariant: the process is gone when the value is.

use super::{Member, SWITCH, Setup, TENANT_DEVICE, Tally, UPLINK, WORLD};
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

/// How long the engine may take until it is ready, and to answer: a machine whose cores are all busy takes seconds.
const START: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(10);
/// How long it may take to finish what it holds; and, for each of its devices, to take it away: the kernel waits for all
/// cores each time.
const STOP: Duration = Duration::from_secs(5);
const STOP_DEVICE: Duration = Duration::from_millis(100);

/// What the engine remembers of promises.
const REMEMBERED: Duration = Duration::from_secs(3_600);

/// The engine's process and how to talk to it.
pub(super) struct Engine {
    process: Running,
    system: String,
    file: PathBuf,
    socket: PathBuf,
    before: Tally,
    /// What those lost and used that ended before it, as a crash would end them, and what came while nobody was there.
    ended: Tally,
    /// Since one was killed.
    gap: Option<Gap>,
    devices: u32,
    // The engine's own devices live here, away from the tenants'.
    home: Netns,
}

/// What tells how much came while no daemon was there.
struct Gap {
    since: Instant,
    /// Frames that each device had brought by then.
    before: BTreeMap<String, u64>,
    /// Whose each device is.
    devices: Vec<(String, String)>,
    over: bool,
}

impl Engine {
    /// Starts the engine with the system's policy and waits until it answers.
    pub(super) fn start(
        scenario: &Scenario,
        system: &System,
        setup: &Setup,
        tenants: &[Member],
    ) -> Result<Self, LabError> {
        let home = Netns::create(SWITCH)?;
        let socket = setup.scratch.join("api.sock");
        let text = policy(scenario, system, tenants, &socket);
        let mut engine = Self::launch(setup, &system.name, &text, home, socket, tenants.len())?;
        engine.wait_until_ready()?;
        Ok(engine)
    }

    /// From now on the same engine has this system's policy.
    pub(super) fn hand_over(
        &mut self,
        scenario: &Scenario,
        system: &System,
        tenants: &[Member],
    ) -> Result<(), LabError> {
        self.reload(&system.name, &policy(scenario, system, tenants, &self.socket))
    }

    /// Gives it another policy as an operator would: by its file and a reload.
    pub(super) fn reload(&mut self, name: &str, policy: &str) -> Result<(), LabError> {
        let written = std::fs::write(&self.file, policy);
        written.map_err(|e| LabError::io(format!("write {}", self.file.display()), e))?;
        name.clone_into(&mut self.system);
        let Err(refused) = ask(&self.socket, "POST", "/v1/reload") else { return Ok(()) };
        self.check()?;
        Err(LabError::Scenario(format!("`{name}` cannot take its turn, leave `one_world` away: {refused}")))
    }

    /// Starts the engine with this policy, in a namespace that is its own from now on.
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

    /// Ends it as a crash would. From then on what its `devices` bring, whose owners are named, and no daemon sees is counted
    /// as `daemon_down`.
    pub(super) fn fall(&mut self, tenants: &[Member], devices: &[(String, String)]) -> Result<(), LabError> {
        if self.is_down() {
            return Ok(());
        }
        self.ended = self.used(tenants)?.0;
        let before = arrivals(&self.home)?;
        self.process.kill();
        self.gap = Some(Gap { since: Instant::now(), before, devices: devices.to_vec(), over: false });
        self.ended.notes.push(format!(
            "{}: `plimsoll run` was killed; what it held counts nowhere, and promises are judged of what came after it",
            self.system
        ));
        Ok(())
    }

    /// Another one takes its place, with nothing of what it knew.
    pub(super) fn rise(&mut self, setup: &Setup) -> Result<(), LabError> {
        if !self.is_down() {
            return Ok(());
        }
        // What the one before has said stays in its own file.
        self.process = spawn(setup, &format!("{}-next", self.system), &self.file, &self.home)?;
        self.wait_until_ready()?;
        self.before = Tally { cpu: Some(Duration::ZERO), ..Tally::default() };
        if let Some(gap) = &mut self.gap {
            gap.over = true;
            let away = 1e3 * gap.since.elapsed().as_secs_f64();
            self.ended.notes.push(format!("{}: another one answered {away:.0} ms later", self.system));
        }
        Ok(())
    }

    /// Whether it was killed, and no other has its place yet.
    fn is_down(&self) -> bool {
        self.gap.as_ref().is_some_and(|gap| !gap.over)
    }

    /// What came while nobody was there, by whose device brought it: what this daemon has not seen, and has not counted as lost
    /// before it could see it.
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
                return self.has_its_ports(&health);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let reason = format!("no answer within {} s; {}", START.as_secs(), self.process.last_words());
        Err(LabError::Engine { system: self.system.clone(), reason })
    }

    /// A daemon goes on without a port that it cannot open; a run without would measure something else.
    fn has_its_ports(&self, health: &str) -> Result<(), LabError> {
        let health: Value = serde_json::from_str(health).unwrap_or_default();
        if health["lost_ports"].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let reason = format!("it lacks ports {}; {}", health["lost_ports"], self.process.last_words());
        Err(LabError::Engine { system: self.system.clone(), reason })
    }

    /// Fails when the process has ended, and nobody meant it to.
    pub(super) fn check(&mut self) -> Result<(), LabError> {
        if self.is_down() { Ok(()) } else { self.fail_if_ended() }
    }

    fn fail_if_ended(&mut self) -> Result<(), LabError> {
        let Some(status) = self.process.ended() else { return Ok(()) };
        let reason = format!("it ended ({status}); {}", self.process.last_words());
        Err(LabError::Engine { system: self.system.clone(), reason })
    }

    /// Remembers the counters from which the run counts.
    pub(super) fn begin(&mut self) -> Result<(), LabError> {
        self.before = self.counters(&self.stats()?).0;
        Ok(())
    }

    /// What it lost and used since `begin`, and how promises fared since measuring began, so long ago.
    pub(super) fn tally(&mut self, tenants: &[Member], ago: Duration) -> Result<Tally, LabError> {
        let (mut now, uptime) = self.used(tenants)?;
        if self.is_down() {
            return Ok(now);
        }
        let mut fared = self.promises(ago, uptime)?;
        fared.tenants.retain(|name, _| tenants.iter().any(|one| one.name == *name));
        now.promises.insert(String::new(), fared);
        Ok(now)
    }

    /// What it lost and used since `begin`, and for how long it has been up.
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

    /// CPU time that it has used.
    pub(super) fn cpu(&self) -> Option<Duration> {
        cpu(self.process.id())
    }

    /// Ends it as an operator would; says so when it did not end well.
    pub(super) fn stop(&mut self) -> Result<Vec<String>, LabError> {
        if self.is_down() || self.process.stop(STOP + STOP_DEVICE * self.devices) {
            return Ok(Vec::new());
        }
        Ok(vec![format!("`plimsoll run` did not end cleanly when asked to: {}", self.process.last_words())])
    }

    /// How they fared since measuring began, as far back as the engine remembers, which has been up for so long.
    fn promises(&self, ago: Duration, uptime: Duration) -> Result<SloReport, LabError> {
        let failed = |reason: String| LabError::Engine {
            system: self.system.clone(),
            reason: format!("it did not tell how promises fared: {reason}"),
        };
        let text = get(&self.socket, &since(ago, uptime));
        let text = text.map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// What these counters come to, and for how long it has been up.
    fn counters(&self, stats: &Value) -> (Tally, Duration) {
        let uptime = Duration::try_from_secs_f64(stats["uptime"].as_f64().unwrap_or(0.0)).unwrap_or_default();
        (Tally { drops: drops(stats), cpu: cpu(self.process.id()), ..Tally::default() }, uptime)
    }

    fn stats(&self) -> Result<Value, LabError> {
        let failed = |what: &str, error: &dyn std::fmt::Display| LabError::Engine {
            system: self.system.clone(),
            reason: format!("{what}: {error}"),
        };
        let text = get(&self.socket, "/v1/stats").map_err(|e| failed("it did not tell its counters", &e))?;
        serde_json::from_str(&text).map_err(|e| failed("its counters are no JSON", &e))
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

/// The policy file of the only host's system.
fn policy(scenario: &Scenario, system: &System, tenants: &[Member], socket: &Path) -> String {
    let port = |one: &Member| (one.name.clone(), tap(one.netns.name(), TENANT_DEVICE));
    let wiring = Wiring {
        tenants: tenants.iter().map(port).collect(),
        uplink: tap(WORLD, UPLINK),
        api: Some(format!("{{socket: {}}}", socket.display())),
        ..Wiring::default()
    };
    scenario.policy_file(system, &wiring)
}

pub(super) fn tap(netns: &str, name: &str) -> String {
    format!("{{tap: {{netns: {netns}, name: {name}}}}}")
}

/// `tenants.NAME.drops.REASON` of the engine's counters, and what was lost on the way in: before the engine had it, as models
/// of a NIC call that, in its tenant's queue, or beyond its tenant's maximum.
fn drops(stats: &Value) -> super::Drops {
    let tenants = stats["tenants"].as_object().into_iter().flatten();
    let tenants = tenants.map(|(name, tenant)| {
        let reasons = tenant["drops"].as_object().into_iter().flatten();
        let counts = reasons.filter_map(|(reason, count)| Some((reason.clone(), count.as_u64()?)));
        (name.clone(), counts.collect::<BTreeMap<_, _>>())
    });
    let uplink = &stats["uplink"]["drops"];
    let same = ["ingress_full", "ingress_over_max", "stranger_over_limit"].map(|reason| (reason, reason));
    let known = [("kernel_full", "rx_ring_full")].into_iter().chain(same);
    let lost = known.map(|(reason, name)| (name.to_owned(), uplink[reason].as_u64().unwrap_or(0)));
    tenants.chain([(WAY_IN.to_owned(), lost.collect())]).collect()
}

/// Whose these losses are: what has not reached the engine bears no tenant's name, and this is none's.
pub(super) const WAY_IN: &str = "the uplink";

/// What asks an engine that has been up for so long how promises fared in the last `ago`.
fn since(ago: Duration, uptime: Duration) -> String {
    let window = (ago.as_secs() + 1).min(REMEMBERED.as_secs());
    format!("/v1/slo?window={window}s&since={}ns", uptime.saturating_sub(ago).as_nanos())
}

/// CPU time of a process and its threads, to the nanosecond: `/proc` counts hundredths of seconds.
fn cpu(id: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(id).ok()?)).ok()?;
    clock_gettime(clock).ok().map(Duration::from)
}

fn get(socket: &Path, path: &str) -> std::io::Result<String> {
    ask(socket, "GET", path)
}

/// The body of a successful answer from the engine's API.
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
    fn no_engine_is_asked_for_more_than_it_remembers_nor_for_what_was_before() {
        let asked = |ago, uptime| since(Duration::from_millis(ago), Duration::from_millis(uptime));
        assert_eq!(asked(5_500, 9_000), "/v1/slo?window=6s&since=3500000000ns");
        assert_eq!(asked(7_200_000, 7_201_000), "/v1/slo?window=3600s&since=1000000000ns");
    }
}
