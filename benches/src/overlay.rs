//! TCP between tenants of two hosts over the overlay, beside the same two hosts without it.
//!
//! Why: what a tenant loses when its network spans hosts.
//! From: the bar of "at least 80 % of without overlay".
//! Not here: one host (`forward`); the cost of a seal alone (`sealed`).
//! Invariant: devices, daemons, senders and receivers are the same on both sides; only the section `overlay` differs.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::forward::Forwarder;
use crate::net::Netns;
use crate::report::{Goal, Row};

/// How long each side sends in a round.
const SECONDS: &str = "2";

/// What the tenants' frames travel in between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// Nothing: both tenants are in the underlay's network.
    Nothing,
    Geneve,
    Sealed,
}

/// The same connection without overlay, over Geneve, and sealed, `rounds` times, the sides taking turns.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let sides = [Between::Nothing, Between::Geneve, Between::Sealed];
    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (rates, between) in rates.iter_mut().zip(sides) {
            rates.push(World::new(plimsoll, between)?.bulk()?);
        }
    }
    let [plain, geneve, sealed] = &rates;
    let row = |what: &str, figures: &[f64]| {
        Row::new(format!("TCP between two hosts, {what}"), "without overlay", "Gb/s").figures(plain, figures)
    };
    Ok(vec![row("Geneve", geneve).goal(Goal::RatioAtLeast(0.8)), row("Geneve, sealed", sealed)])
}

/// Two hosts, joined by a pair of interfaces, and a tenant's namespace on each.
struct World {
    // Dropped first: the daemons must not outlive their devices.
    daemons: Vec<Forwarder>,
    tenants: Vec<Netns>,
    _hosts: Vec<Netns>,
    _key: tempfile::NamedTempFile,
}

/// Names of hosts, and of their tenants.
const HOSTS: [&str; 2] = ["a", "b"];

impl World {
    fn new(plimsoll: &Path, between: Between) -> Result<Self> {
        let netns = |kind: &str| HOSTS.map(|host| Netns::new(&format!("plbench-{kind}-{host}")));
        let hosts = netns("host").into_iter().collect::<Result<Vec<_>>>()?;
        let tenants = netns("tenant").into_iter().collect::<Result<Vec<_>>>()?;
        let peer = ["type", "veth", "peer", "name", "up0", "netns", hosts[1].name()];
        hosts[0].ip(&[&["link", "add", "up0"], &peer[..]].concat())?;
        // Readable by its owner only, as a key has to be.
        let key = tempfile::NamedTempFile::new()?;
        std::fs::write(key.path(), [7; 32])?;
        for (host, n) in hosts.iter().zip(1..) {
            host.ip(&["address", "add", &format!("192.0.2.{n}/24"), "dev", "up0"])?;
            host.ip(&["link", "set", "up0", "up"])?;
        }
        let mut daemons = Vec::new();
        for (place, host) in hosts.iter().enumerate() {
            let policy = policy(place, &tenants[place], between, key.path());
            daemons.push(Forwarder::plimsoll_in(Some(host), plimsoll, &policy)?);
        }
        for (place, tenant) in tenants.iter().enumerate() {
            tenant.await_device("eth0").with_context(|| daemons[place].words())?;
            tenant.ip(&["link", "set", "eth0", "address", &mac(place)])?;
            tenant.address("eth0", address(place).parse()?, address(1 - place).parse()?, &mac(1 - place))?;
        }
        let world = Self { daemons, tenants, _hosts: hosts, _key: key };
        world.await_path()?;
        Ok(world)
    }

    /// Waits until both hosts know their next hops, and have a session where they seal.
    fn await_path(&self) -> Result<()> {
        for _ in 0..40 {
            if self.inside(0, &["ping", "-c", "1", "-W", "1", &address(1)]).status()?.success() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let words: String = self.daemons.iter().map(Forwarder::words).collect();
        anyhow::bail!("no packet passes between the hosts:\n{words}")
    }

    /// Gb/s of one TCP connection whose segments leave whole.
    fn bulk(&self) -> Result<f64> {
        let mut server = self.inside(1, &["iperf3", "-s", "-1", "-p", "5999"]).spawn()?;
        std::thread::sleep(Duration::from_millis(300));
        let to = address(1);
        let client = ["iperf3", "-c", &to, "-p", "5999", "-J", "-t", SECONDS];
        let out = self.inside(0, &client).stdout(Stdio::piped()).output();
        let _ = server.kill();
        let _ = server.wait();
        let json: serde_json::Value = serde_json::from_slice(&out?.stdout).context("iperf3 gave no JSON")?;
        let rate = json["end"]["sum_received"]["bits_per_second"].as_f64();
        let rate = rate.with_context(|| format!("iperf3 failed: {}", json["error"]))? / 1e9;
        ensure!(rate > 0.0, "nothing reached the other host");
        Ok(rate)
    }

    fn inside(&self, tenant: usize, command: &[&str]) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", self.tenants[tenant].name()]).args(command);
        inside.stdout(Stdio::null()).stderr(Stdio::null());
        inside
    }
}

fn mac(place: usize) -> String {
    format!("02:00:00:00:98:0{place}")
}

fn address(place: usize) -> String {
    format!("10.98.0.{}", place + 1)
}

/// A link that is never in the way, and one tenant.
fn policy(place: usize, tenant: &Netns, between: Between, key: &Path) -> String {
    let host = HOSTS[place];
    let mut policy = format!(
        "uplink: {{port: {{af_packet: up0}}, rate: 100Gbps}}\n\
         engine: {{busy_poll: false}}\n\
         tenants: {{t{host}: {{port: {{tap: {{netns: {}, name: eth0}}}}}}}}\n",
        tenant.name()
    );
    if between == Between::Nothing {
        return policy;
    }
    policy += &format!("overlay:\n  kind: geneve\n  vni: 7\n  host: {host}\n  hosts:\n");
    for (place, host) in HOSTS.into_iter().enumerate() {
        let (n, mac) = (place + 1, mac(place));
        policy += &format!("    {host}: {{address: 192.0.2.{n}, tenants: {{t{host}: \"{mac}\"}}}}\n");
    }
    if between == Between::Sealed {
        policy += &format!("  sealed: true\n  key: {}\n", key.display());
    }
    policy
}
