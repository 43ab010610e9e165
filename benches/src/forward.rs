//! End to end: TAP to TAP under a policy, beside the simplest copy loop between the same two TAPs.
//!
//! Why: what a user loses by putting a policy between two devices.
//! From: the bar of "at least 80 % of a copy loop".
//! Not here: shaping (`accuracy`).
//! Invariant: sender and receiver are the same on both sides, and the forwarder has a core of its own.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::net::{self, Netns};
use crate::report::{Goal, Row};

/// Bytes of payload that make a 64-byte frame on the wire: 14 + 20 + 8 + 18, and the check sequence.
const SMALL: usize = 18;

/// How long each side forwards in a round.
const SPAN: Duration = Duration::from_millis(1_500);

/// Both measures, `rounds` times, the sides taking turns.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let (mut bulk, mut small) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        for side in [0, 1] {
            let world = World::new(if side == 0 { None } else { Some(plimsoll) })?;
            bulk[side].push(world.bulk()?);
            small[side].push(world.small()?);
        }
    }
    let beside = "copy loop";
    Ok(vec![
        Row::new("TAP to TAP, TCP with segmentation offload", beside, "Gb/s")
            .figures(&bulk[0], &bulk[1])
            .goal(Goal::RatioAtLeast(0.8)),
        Row::new("TAP to TAP, 64 B frames", beside, "packets/s")
            .figures(&small[0], &small[1])
            .goal(Goal::RatioAtLeast(0.95)),
    ])
}

/// Two namespaces with a TAP each, and the forwarder between them.
struct World {
    // Dropped first: the forwarder must not outlive its devices.
    _forwarder: Forwarder,
    left: Netns,
    right: Netns,
}

/// The process that moves frames between the TAPs; it is stopped when this is dropped.
pub enum Forwarder {
    /// The simplest copy loop: what tells it to stop, and its thread.
    Loop(Arc<AtomicBool>, Vec<JoinHandle<()>>),
    /// The real binary, and where its policy, socket and log lie.
    Plimsoll(Child, tempfile::TempDir),
}

const LEFT: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 99, 0, 1);
const RIGHT: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 99, 0, 2);
const LEFT_MAC: &str = "02:00:00:00:99:01";
const RIGHT_MAC: &str = "02:00:00:00:99:02";

impl World {
    /// With Plimsoll between the TAPs, or a copy loop.
    fn new(plimsoll: Option<&Path>) -> Result<Self> {
        let (left, right) = (Netns::new("plbench-left")?, Netns::new("plbench-right")?);
        let forwarder = match plimsoll {
            Some(binary) => Forwarder::plimsoll(binary, POLICY)?,
            None => Forwarder::copy_loop(&left, &right)?,
        };
        for (netns, device, mac) in [(&left, "left", LEFT_MAC), (&right, "right", RIGHT_MAC)] {
            netns.await_device(device).with_context(|| forwarder.words())?;
            netns.ip(&["link", "set", device, "address", mac])?;
        }
        left.address("left", LEFT, RIGHT, RIGHT_MAC)?;
        right.address("right", RIGHT, LEFT, LEFT_MAC)?;
        Ok(Self { _forwarder: forwarder, left, right })
    }

    /// Gb/s of one TCP connection whose segments leave whole.
    fn bulk(&self) -> Result<f64> {
        let mut server = self.command(&self.right, &["iperf3", "-s", "-1", "-p", "5999"]).spawn()?;
        std::thread::sleep(Duration::from_millis(300));
        let seconds = SPAN.as_secs_f64().to_string();
        let client = ["iperf3", "-c", "10.99.0.2", "-p", "5999", "-J", "-t", &seconds, "-A", "0,0"];
        let out = self.command(&self.left, &client).stdout(Stdio::piped()).output();
        let _ = server.kill();
        let _ = server.wait();
        let json: serde_json::Value = serde_json::from_slice(&out?.stdout).context("iperf3 gave no JSON")?;
        let rate = json["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(rate.with_context(|| format!("iperf3 failed: {}", json["error"]))? / 1e9)
    }

    /// 64-byte frames a second that reach the far TAP under a flood.
    fn small(&self) -> Result<f64> {
        let sink = self.right.enter(|| Ok(std::net::UdpSocket::bind("0.0.0.0:9")?))?;
        let before = self.right.received("right")?;
        let from = Instant::now();
        self.left.enter(|| {
            net::pin(0);
            net::flood((RIGHT, 9), SMALL, SPAN)
        })?;
        let span = from.elapsed();
        let after = self.right.received("right")?;
        drop(sink);
        ensure!(after.0 > before.0, "nothing reached the far TAP");
        Ok((after.0 - before.0) as f64 / span.as_secs_f64())
    }

    fn command(&self, netns: &Netns, command: &[&str]) -> Command {
        let mut inside = Command::new("ip");
        inside
            .args(["netns", "exec", netns.name()])
            .args(command)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        inside
    }
}

/// A link that is never in the way, one tenant, and a `wfq` to go through.
const POLICY: &str = "\
uplink: {port: {tap: {netns: plbench-right, name: right}}, rate: 100Gbps}
engine: {cpu: 1, busy_poll: false}
tenants:
  left: {port: {tap: {netns: plbench-left, name: left}}}
";

impl Forwarder {
    /// Its output so far.
    pub fn words(&self) -> String {
        match self {
            Self::Loop(..) => String::new(),
            Self::Plimsoll(_, dir) => std::fs::read_to_string(dir.path().join("log")).unwrap_or_default(),
        }
    }

    /// Where Plimsoll answers.
    pub fn socket(&self) -> Option<std::path::PathBuf> {
        match self {
            Self::Loop(..) => None,
            Self::Plimsoll(_, dir) => Some(dir.path().join("api.sock")),
        }
    }

    /// What a command of `plimsoll` shows of it.
    pub fn ask(&self, plimsoll: &Path, command: &str) -> Result<serde_json::Value> {
        let socket = self.socket().context("no API socket")?;
        let out = Command::new(plimsoll).args([command, "--json", "--socket"]).arg(socket).output()?;
        serde_json::from_slice(&out.stdout)
            .with_context(|| format!("plimsoll {command}: {}", String::from_utf8_lossy(&out.stderr)))
    }

    /// Starts `plimsoll run` under `policy`.
    pub fn plimsoll(binary: &Path, policy: &str) -> Result<Self> {
        Self::plimsoll_in(None, binary, policy)
    }

    /// Starts it in a namespace, for an uplink that is there.
    pub fn plimsoll_in(netns: Option<&Netns>, binary: &Path, policy: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("plimsoll.yaml");
        let socket = dir.path().join("api.sock");
        std::fs::write(&file, format!("{policy}api: {{socket: {}}}\n", socket.display()))?;
        let log = std::fs::File::create(dir.path().join("log"))?;
        let mut command = match netns {
            None => Command::new(binary),
            Some(netns) => {
                let mut inside = Command::new("ip");
                inside.args(["netns", "exec", netns.name()]).arg(binary);
                inside
            }
        };
        let child = command
            .arg("run")
            .arg(&file)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self::Plimsoll(child, dir))
    }

    /// Starts one thread that reads each TAP and writes what it read to the other.
    fn copy_loop(left: &Netns, right: &Netns) -> Result<Self> {
        let (mut a, mut b) = (left.enter(|| net::tap("left"))?, right.enter(|| net::tap("right"))?);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let forward = move || {
            net::pin(1);
            let mut buffer = vec![0; 70_000];
            while !stopped.load(Ordering::Relaxed) {
                let moved = copy(&mut a, &mut b, &mut buffer) | copy(&mut b, &mut a, &mut buffer);
                if !moved {
                    net::await_readable([a.as_raw_fd(), b.as_raw_fd()]);
                }
            }
        };
        Ok(Self::Loop(stop, vec![std::thread::spawn(forward)]))
    }
}

/// Copies up to 32 frames. Returns whether there was one.
fn copy(from: &mut std::fs::File, to: &mut std::fs::File, buffer: &mut [u8]) -> bool {
    for copied in 0..32 {
        let Ok(len) = from.read(buffer) else { return copied > 0 };
        let _ = to.write(&buffer[..len]); // a full or absent device drops the frame, as a wire would
    }
    true
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        match self {
            Self::Loop(stop, threads) => {
                stop.store(true, Ordering::Relaxed);
                for thread in threads.drain(..) {
                    let _ = thread.join();
                }
            }
            Self::Plimsoll(child, _) => {
                // SAFETY: the child is ours and not yet waited for, so its id is still its own.
                unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
                let _ = child.wait();
            }
        }
    }
}

/// A daemon that throws away what leaves through its uplink; like `dpdk-testpmd`, it spins.
pub struct Sink {
    plimsoll: PathBuf,
    daemon: Forwarder,
    dir: tempfile::TempDir,
}

impl Sink {
    /// `port` says what a tenant's port is, behind a socket.
    pub fn new(plimsoll: &Path, tenants: &[&str], port: impl Fn(String) -> String) -> Result<Self> {
        Self::with(plimsoll, tenants, "", port)
    }

    /// With `more` at the end of the policy.
    pub fn with(
        plimsoll: &Path,
        tenants: &[&str],
        more: &str,
        port: impl Fn(String) -> String,
    ) -> Result<Self> {
        Self::on(1, plimsoll, tenants, more, port)
    }

    /// With its engine on `core`.
    pub fn on(
        core: u32,
        plimsoll: &Path,
        tenants: &[&str],
        more: &str,
        port: impl Fn(String) -> String,
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let empty = dir.path().join("empty.pcap");
        std::fs::write(&empty, EMPTY_PCAP)?;
        // An uplink that reads nothing and writes no file: what leaves is gone.
        let mut policy = format!(
            "uplink: {{port: {{pcap: {{read: {}}}}}, rate: 400Gbps, mtu: 9000}}\nengine: {{cpu: {core}, busy_poll: true}}\ntenants:\n",
            empty.display()
        );
        for tenant in tenants {
            policy +=
                &format!("  {tenant}: {{port: {}}}\n", port(dir.path().join(tenant).display().to_string()));
        }
        policy += more;
        Ok(Self { plimsoll: plimsoll.to_owned(), daemon: Forwarder::plimsoll(plimsoll, &policy)?, dir })
    }

    /// Where a tenant's client connects.
    pub fn socket(&self, tenant: &str) -> PathBuf {
        self.dir.path().join(tenant)
    }

    /// The daemon's counters.
    pub fn stats(&self) -> Result<serde_json::Value> {
        self.ask("stats")
    }

    /// What a command of `plimsoll` shows of the daemon.
    pub fn ask(&self, command: &str) -> Result<serde_json::Value> {
        self.daemon.ask(&self.plimsoll, command)
    }

    /// The daemon's output.
    pub fn words(&self) -> String {
        self.daemon.words()
    }
}

/// A capture file's header, and no frame.
const EMPTY_PCAP: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
