//! Three daemons in three network namespaces joined by a bridge, with two tenants each, and traffic between them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use plimsoll_daemon::{Client, FleetStats, PairStats, Stats};

use super::traffic::Traffic;
use super::{Daemon, PATIENCE, Stage, eventually, ip};

/// The hosts.
pub const HOSTS: [&str; 3] = ["a", "b", "c"];

pub const PLAIN: Plan = Plan {
    kind: "geneve",
    v6: false,
    max: "40Mbps",
    sender: "",
    rest: "",
    channel: false,
    veth: false,
    stepped: false,
};
pub const FEEDBACK: &str =
    "  feedback: {key: KEY, epoch: 10ms, lapse: 600ms, delay: 20ms, fallback: 8Mbps}\n";
pub const CHANNEL: &str =
    "  feedback: {key: KEY, via: channel, epoch: 10ms, lapse: 600ms, delay: 20ms, fallback: 8Mbps}\n";

/// A tenant's address; each host `h` (from 0) has the tenants `t` 1 and 2.
pub fn inner(host: usize, tenant: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 8, 0, 10 * (host as u8 + 1) + tenant)
}

/// The settings of one test's fleet.
#[derive(Clone, Copy)]
pub struct Plan {
    pub kind: &'static str,
    pub v6: bool,
    /// `max` of the first tenant at the third host.
    pub max: &'static str,
    /// Further keys of the first tenant at the first host.
    pub sender: &'static str,
    /// Rows of `overlay`.
    pub rest: &'static str,
    /// Each host's control channel is stated.
    pub channel: bool,
    /// The second tenant at the third host has one end of a veth, which outlives the daemon, and no TAP.
    pub veth: bool,
    /// Daemons' wall clocks can be stepped: see [`Fleet::step`].
    pub stepped: bool,
}

/// Three hosts, a bridge between them, and two tenants in each.
pub struct Fleet {
    /// The daemons, which end before their namespaces are removed.
    daemons: Vec<Option<Daemon>>,
    stage: Stage,
    stepped: bool,
}

impl Deref for Fleet {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Fleet {
    /// `None` without root. `tag` keeps tests apart that run at once: at most three letters.
    pub fn new(tag: &str, plan: &Plan) -> Option<Self> {
        let daemons = vec![None, None, None];
        let fleet = Self { stage: Stage::new(tag)?, daemons, stepped: plan.stepped };
        fleet.wire(plan);
        fs::write(fleet.file("fleet.key"), [7; 32]).expect("written");
        fs::set_permissions(fleet.file("fleet.key"), fs::Permissions::from_mode(0o600)).expect("set");
        for host in 0..3 {
            fs::write(fleet.policy_file(host), fleet.policy(host, plan)).expect("written");
        }
        Some(fleet)
    }

    /// Namespaces, and an underlay of 1500 bytes.
    fn wire(&self, plan: &Plan) {
        let fabric = self.netns("fab");
        self.add_netns("fab");
        self.ip(&format!("-n {fabric} link add br0 type bridge mcast_snooping 0"));
        self.ip(&format!("-n {fabric} link set br0 up"));
        for (host, index) in HOSTS.into_iter().zip(1..) {
            let netns = self.netns(host);
            self.add_netns(host);
            self.ip(&format!("-n {netns} link add up0 type veth peer name {host} netns {fabric}"));
            self.ip(&format!("-n {fabric} link set dev {host} master br0 up"));
            match plan.v6 {
                true => self.ip(&format!("-n {netns} address add fd00:99::{index}/64 dev up0 nodad")),
                false => self.ip(&format!("-n {netns} address add 192.0.2.{index}/24 dev up0")),
            }
            self.ip(&format!("-n {netns} link set up0 up"));
            for tenant in [1, 2] {
                self.add_netns(&format!("{host}{tenant}"));
                // No counter here covers packets that the kernel sends by itself,
                // nor those that it drops by its source filter, which distributions switch on.
                let quiet = [
                    "-q",
                    "-w",
                    "net.ipv6.conf.all.disable_ipv6=1",
                    "net.ipv6.conf.default.disable_ipv6=1",
                    "net.ipv4.conf.all.rp_filter=0",
                    "net.ipv4.conf.default.rp_filter=0",
                ];
                let _ = self.command(&format!("{host}{tenant}"), "sysctl").args(quiet).output();
            }
        }
        if plan.veth {
            let (host, tenant) = (self.netns("c"), self.netns("c2"));
            self.ip(&format!("-n {host} link add t2 type veth peer name eth0 netns {tenant}"));
            self.ip(&format!("-n {tenant} link set eth0 address 02:00:00:00:02:02 up"));
            self.ip(&format!("-n {host} link set t2 up"));
        }
    }

    pub fn policy(&self, host: usize, plan: &Plan) -> String {
        let name = HOSTS[host];
        let rows = (0_u8..3).map(|index| {
            let host = HOSTS[usize::from(index)];
            let address = if plan.v6 { format!("\"fd00:99::{}\"", index + 1) } else { format!("192.0.2.{}", index + 1) };
            let channel = if plan.channel { format!("channel: \"192.0.2.{}:7077\", ", index + 1) } else { String::new() };
            format!(
                "    {host}: {{address: {address}, {channel}tenants: {{t1: 02:00:00:00:0{index}:01, t2: 02:00:00:00:0{index}:02}}}}\n"
            )
        });
        let rows: String = rows.collect();
        let max = match host {
            0 => plan.sender.to_owned(),
            2 => format!(", max: {}", plan.max),
            _ => String::new(),
        };
        let second = match plan.veth && host == 2 {
            true => "af_packet: t2".to_owned(),
            false => format!("tap: {{netns: {}, name: eth0}}", self.netns(&format!("{name}2"))),
        };
        format!(
            "uplink: {{port: {{af_packet: up0}}, rate: 400Mbps}}\n\
             api: {{socket: {}}}\n\
             tenants:\n\
             \x20 t1: {{port: {{tap: {{netns: {}, name: eth0}}}}{max}}}\n\
             \x20 t2: {{port: {{{second}}}}}\n\
             overlay:\n\
             \x20 kind: {}\n\
             \x20 vni: 77\n\
             \x20 host: {name}\n\
             \x20 hosts:\n{rows}{}",
            self.file(&format!("{name}.sock")).display(),
            self.netns(&format!("{name}1")),
            plan.kind,
            plan.rest.replace("KEY", &self.file("fleet.key").display().to_string()),
        )
    }

    pub fn policy_file(&self, host: usize) -> PathBuf {
        self.file(&format!("{}.yaml", HOSTS[host]))
    }

    pub fn ip(&self, args: &str) {
        ip(&args.split(' ').collect::<Vec<_>>());
    }

    pub fn log(&self, host: usize) -> String {
        self.read(&format!("{}.log", HOSTS[host]))
    }

    /// Starts all daemons and gives each tenant an address.
    pub fn start(&mut self) {
        for host in 0..3 {
            self.launch(host);
        }
        for (host, name) in HOSTS.iter().enumerate() {
            let client = self.client(host);
            self.eventually(&format!("daemon {host} answers"), || client.text("GET", "/v1/health").is_ok());
            for tenant in [1, 2] {
                let netns = self.netns(&format!("{name}{tenant}"));
                self.ip(&format!("-n {netns} address add {}/24 dev eth0", inner(host, tenant)));
            }
        }
        self.eventually("every tenant reaches every other", || {
            self.ping((0, 1), inner(2, 1), 56)
                && self.ping((1, 1), inner(2, 2), 56)
                && self.ping((0, 2), inner(1, 2), 56)
        });
    }

    pub fn launch(&mut self, host: usize) {
        let (netns, log) = (self.netns(HOSTS[host]), self.file(&format!("{}.log", HOSTS[host])));
        let (shim, clock) = (self.file("clock.so"), self.file(&format!("{}.clock", HOSTS[host])));
        let mut env = Vec::new();
        if self.stepped {
            self.step(host, 0);
            env = vec![("LD_PRELOAD", shim.as_path()), ("PLIMSOLL_TEST_CLOCK", clock.as_path())];
        }
        let daemon = Daemon::start_with(Some(&netns), &self.policy_file(host), &[], &log, &env);
        self.daemons[host] = Some(daemon);
    }

    /// Sets a host's wall clock ahead by `seconds` from now on.
    pub fn step(&self, host: usize, seconds: i64) {
        if !self.file("clock.so").exists() {
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/clock.c");
            let mut build = Command::new("cc");
            build.args(["-shared", "-fPIC", "-o"]).arg(self.file("clock.so")).args([source, "-ldl"]);
            let built = build.output().expect("a C compiler, which links Rust's programs too");
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        // In place, as the daemon has it mapped.
        let file = self.file(&format!("{}.clock", HOSTS[host]));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(false).open(file).expect("opened");
        file.set_len(16).expect("room for the count of those that were told so");
        file.write_all(&seconds.to_ne_bytes()).expect("written");
    }

    /// The number of times that a host's daemon read a stepped clock.
    pub fn steps_told(&self, host: usize) -> u64 {
        let bytes = fs::read(self.file(&format!("{}.clock", HOSTS[host]))).expect("there");
        u64::from_ne_bytes(bytes[8..16].try_into().expect("eight bytes"))
    }

    /// Kills a daemon, as a crash would.
    pub fn kill(&mut self, host: usize) {
        let mut daemon = self.daemons[host].take().expect("running");
        daemon.end(Signal::SIGKILL).expect("gone");
    }

    pub fn client(&self, host: usize) -> Client {
        Client::new(&self.file(&format!("{}.sock", HOSTS[host])))
    }

    pub fn stats(&self, host: usize) -> Stats {
        self.client(host).get("/v1/stats").expect("counters")
    }

    pub fn fleet(&self, host: usize) -> FleetStats {
        self.stats(host).fleet.expect("a fleet")
    }

    /// The limits of a host's tenants towards a tenant elsewhere, as that host knows them.
    pub fn pair(&self, from: usize, (host, tenant): (usize, u8)) -> Option<PairStats> {
        let (host, peer) = (HOSTS[host], format!("t{tenant}"));
        self.fleet(from).pairs.into_iter().find(|pair| pair.host == host && pair.peer == peer)
    }

    /// Whether the senders have limits.
    pub fn limited(&self, from: usize, to: (usize, u8)) -> bool {
        self.pair(from, to).is_some_and(|pair| pair.state == "limited")
    }

    pub fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        let logs = || {
            let logs: Vec<String> = (0..3).map(|host| self.log(host)).collect();
            format!("{}\nlost: {:?}", logs.join("\n"), self.losses())
        };
        eventually(what, PATIENCE, logs, holds);
    }

    pub fn ping(&self, (host, tenant): (usize, u8), to: Ipv4Addr, bytes: u32) -> bool {
        self.stage.ping(&format!("{}{tenant}", HOSTS[host]), to, bytes)
    }

    /// Sends `bytes` over TCP between tenants, and checks what arrives.
    pub fn transfer(&self, from: (usize, u8), to: (usize, u8), bytes: usize) -> Duration {
        let name = |(host, tenant): (usize, u8)| format!("{}{tenant}", HOSTS[host]);
        self.stage.transfer(&name(from), &name(to), inner(to.0, to.1), bytes)
    }

    /// A tenant sends datagrams of 1,000 bytes at `rate` a second, until stopped.
    pub fn flood(&self, from: (usize, u8), to: (usize, u8), port: u16, rate: u32) -> Traffic {
        let name = |(host, tenant): (usize, u8)| format!("{}{tenant}", HOSTS[host]);
        let (sender, receiver) = (name(from), name(to));
        self.traffic((&sender, inner(from.0, from.1)), (&receiver, inner(to.0, to.1)), port, rate)
    }

    /// Whether a host's daemon holds no packet of any tenant, nor a buffer for one.
    pub fn keeps_nothing(&self, host: usize) -> bool {
        self.stats(host)
            .tenants
            .values()
            .all(|port| (port.held, port.buffers, port.ingress.waiting) == (0, 0, 0))
    }

    /// Lost frames since the start that any daemon, device or kernel counted, by the one that counted and the reason.
    pub fn losses(&self) -> BTreeMap<String, u64> {
        let mut losses = BTreeMap::new();
        for (host, name) in HOSTS.iter().enumerate() {
            // A daemon that is gone has no counters.
            let Ok(stats) = self.client(host).get::<Stats>("/v1/stats") else { continue };
            for (reason, count) in &stats.uplink.drops {
                losses.insert(format!("{name} uplink {reason}"), *count);
            }
            for (tenant, port) in &stats.tenants {
                for (reason, count) in port.drops.iter().chain(&port.undelivered) {
                    losses.insert(format!("{name} {tenant} {reason}"), *count);
                }
                // The daemon counts the drops of its TAP as its own.
                let place = format!("{name}{}", &tenant[1..]);
                let by_daemon = port.port.as_ref().is_none_or(|port| port.starts_with("tap "));
                let dropped =
                    self.queue_drops(&place) + if by_daemon { 0 } else { self.device_drops(&place) };
                losses.insert(format!("{place} kernel, device"), dropped);
            }
            for tenant in [1, 2] {
                let place = format!("{name}{tenant}");
                losses.insert(format!("{place} kernel, socket"), self.snmp(&place, "Udp", "RcvbufErrors"));
                losses.insert(format!("{place} kernel, no socket"), self.snmp(&place, "Udp", "NoPorts"));
                losses.insert(format!("{place} kernel, no address"), self.snmp(&place, "Ip", "InAddrErrors"));
            }
        }
        losses
    }

    /// Frames that a tenant's kernel dropped in the queues before its device.
    fn queue_drops(&self, place: &str) -> u64 {
        let queues = self.counters(place, "tc", &["qdisc", "show", "dev", "eth0"]);
        queues.as_array().into_iter().flatten().filter_map(|queue| queue["drops"].as_u64()).sum()
    }

    /// Frames to be sent that its device dropped.
    fn device_drops(&self, place: &str) -> u64 {
        let link = self.counters(place, "ip", &["link", "show", "dev", "eth0"]);
        link[0]["stats64"]["tx"]["dropped"].as_u64().unwrap_or(0)
    }

    fn counters(&self, place: &str, program: &str, args: &[&str]) -> serde_json::Value {
        let mut command = Command::new(program);
        let done = command.args(["-n", &self.netns(place), "-s", "-j"]).args(args).output();
        serde_json::from_slice(&done.expect("installed").stdout).unwrap_or_default()
    }

    /// Frames that have come to a device of a namespace.
    pub fn arrivals(&self, place: &str, device: &str) -> u64 {
        let read = self.inside(place, || fs::read_to_string("/proc/thread-self/net/dev").expect("counters"));
        let text = read.join().expect("read");
        let row = text.lines().find_map(|line| line.trim().strip_prefix(device)?.strip_prefix(':'));
        let packets = row.and_then(|row| row.split_whitespace().nth(1)?.parse().ok());
        packets.expect("the device is there")
    }

    /// A namespace's counts for a protocol: packets for which there was no room in a socket, no socket, or no address.
    pub fn snmp(&self, place: &str, protocol: &str, counter: &str) -> u64 {
        let read = self.inside(place, || fs::read_to_string("/proc/thread-self/net/snmp").expect("counters"));
        let text = read.join().expect("read");
        let lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
        let mut rows = lines.map(str::split_whitespace);
        let (Some(names), Some(mut values)) = (rows.next(), rows.next()) else { return 0 };
        let place = names.into_iter().position(|name| name == counter);
        place.and_then(|place| values.nth(place)?.parse().ok()).unwrap_or(0)
    }
}
