//! Three daemons in three network namespaces joined by a bridge: tenants reach each other over the overlay, and receivers
//! hold senders back.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.
//! Figures are relations with wide margins: the machine may have two cores for all of it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_daemon::{Client, FleetStats, Stats};

const PATIENCE: Duration = Duration::from_secs(20);
const HOSTS: [&str; 3] = ["a", "b", "c"];

/// Says why a test does nothing. Where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure.
fn skip(why: &str) {
    assert!(std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}

/// A tenant's address; each host `h` (from 0) has the tenants `t` 1 and 2.
fn inner(host: usize, tenant: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 8, 0, 10 * (host as u8 + 1) + tenant)
}

/// What one test says of its fleet.
#[derive(Clone, Copy)]
struct Plan {
    kind: &'static str,
    v6: bool,
    /// `max` of the first tenant at the third host.
    max: &'static str,
    /// Rows of `overlay`.
    rest: &'static str,
    /// Each host's control channel is stated.
    channel: bool,
}

/// Three hosts, a bridge between them, and two tenants in each.
struct Fleet {
    tag: String,
    folder: PathBuf,
    daemons: Vec<Option<Child>>,
}

impl Fleet {
    /// `None` without root. `tag` keeps tests apart that run at once: at most three letters.
    fn new(tag: &str, plan: &Plan) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skip("this test makes network namespaces, which takes root");
            return None;
        }
        let tag = format!("{tag}{}", std::process::id() % 10_000);
        let folder = std::env::temp_dir().join(format!("plimsoll-{tag}"));
        fs::create_dir_all(&folder).expect("a folder");
        let fleet = Self { tag, folder, daemons: vec![None, None, None] };
        fleet.wire(plan);
        fs::write(fleet.folder.join("fleet.key"), [7; 32]).expect("written");
        fs::set_permissions(fleet.folder.join("fleet.key"), fs::Permissions::from_mode(0o600)).expect("set");
        for host in 0..3 {
            fs::write(fleet.file(host), fleet.policy(host, plan)).expect("written");
        }
        Some(fleet)
    }

    /// Namespaces, and an underlay of 1500 bytes.
    fn wire(&self, plan: &Plan) {
        let fabric = self.netns("fab");
        self.ip(&format!("netns add {fabric}"));
        self.ip(&format!("-n {fabric} link add br0 type bridge mcast_snooping 0"));
        self.ip(&format!("-n {fabric} link set br0 up"));
        for host in HOSTS {
            let netns = self.netns(host);
            self.ip(&format!("netns add {netns}"));
            self.ip(&format!("-n {netns} link set lo up"));
            self.ip(&format!("-n {netns} link add up0 type veth peer name {host} netns {fabric}"));
            self.ip(&format!("-n {fabric} link set dev {host} master br0 up"));
            let index = HOSTS.iter().position(|name| *name == host).expect("one of them") + 1;
            match plan.v6 {
                true => self.ip(&format!("-n {netns} address add fd00:99::{index}/64 dev up0 nodad")),
                false => self.ip(&format!("-n {netns} address add 192.0.2.{index}/24 dev up0")),
            }
            self.ip(&format!("-n {netns} link set up0 up"));
            for tenant in [1, 2] {
                let netns = self.netns(&format!("{host}{tenant}"));
                self.ip(&format!("netns add {netns}"));
                self.ip(&format!("-n {netns} link set lo up"));
            }
        }
    }

    fn policy(&self, host: usize, plan: &Plan) -> String {
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
        let max = if host == 2 { format!(", max: {}", plan.max) } else { String::new() };
        format!(
            "uplink: {{port: {{af_packet: up0}}, rate: 400Mbps}}\n\
             api: {{socket: {}}}\n\
             tenants:\n\
             \x20 t1: {{port: {{tap: {{netns: {}, name: eth0}}}}{max}}}\n\
             \x20 t2: {{port: {{tap: {{netns: {}, name: eth0}}}}}}\n\
             overlay:\n\
             \x20 kind: {}\n\
             \x20 vni: 77\n\
             \x20 host: {name}\n\
             \x20 hosts:\n{rows}{}",
            self.folder.join(format!("{name}.sock")).display(),
            self.netns(&format!("{name}1")),
            self.netns(&format!("{name}2")),
            plan.kind,
            plan.rest.replace("KEY", &self.folder.join("fleet.key").display().to_string()),
        )
    }

    fn netns(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    fn file(&self, host: usize) -> PathBuf {
        self.folder.join(format!("{}.yaml", HOSTS[host]))
    }

    fn ip(&self, args: &str) {
        let done = Command::new("ip").args(args.split(' ')).output().expect("ip is installed");
        assert!(done.status.success(), "ip {args}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn log(&self, host: usize) -> String {
        fs::read_to_string(self.folder.join(format!("{}.log", HOSTS[host]))).unwrap_or_default()
    }

    /// Starts all daemons and gives everybody an address.
    fn start(&mut self) {
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
        self.eventually("everybody reaches everybody", || {
            self.ping((0, 1), inner(2, 1), 56)
                && self.ping((1, 1), inner(2, 2), 56)
                && self.ping((0, 2), inner(1, 2), 56)
        });
    }

    fn launch(&mut self, host: usize) {
        let log = fs::File::create(self.folder.join(format!("{}.log", HOSTS[host]))).expect("a log");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns(HOSTS[host]), env!("CARGO_BIN_EXE_plimsoll"), "run"]);
        command.arg(self.file(host)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.daemons[host] = Some(command.spawn().expect("started"));
    }

    /// As a crash would: no goodbye.
    fn kill(&mut self, host: usize) {
        let mut daemon = self.daemons[host].take().expect("running");
        daemon.kill().expect("killed");
        daemon.wait().expect("gone");
    }

    fn client(&self, host: usize) -> Client {
        Client::new(&self.folder.join(format!("{}.sock", HOSTS[host])))
    }

    fn stats(&self, host: usize) -> Stats {
        self.client(host).get("/v1/stats").expect("counters")
    }

    fn fleet(&self, host: usize) -> FleetStats {
        self.stats(host).fleet.expect("a fleet")
    }

    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            let logs: Vec<String> = (0..3).map(|host| self.log(host)).collect();
            assert!(
                Instant::now() < end,
                "{what}: not within {PATIENCE:?}; the daemons said\n{}",
                logs.join("\n")
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs `job` on a thread inside a tenant's namespace, or another's.
    fn inside<T: Send + 'static>(
        &self,
        name: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let path = format!("/run/netns/{}", self.netns(name));
        thread::spawn(move || {
            let netns = fs::File::open(path).expect("the namespace");
            nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET).expect("entered");
            job()
        })
    }

    fn ping(&self, (host, tenant): (usize, u8), to: Ipv4Addr, bytes: u32) -> bool {
        let netns = self.netns(&format!("{}{tenant}", HOSTS[host]));
        let (to, bytes) = (to.to_string(), bytes.to_string());
        let args = ["netns", "exec", &netns, "ping", "-M", "do", "-c", "1", "-W", "1", "-s", &bytes, &to];
        Command::new("ip").args(args).output().is_ok_and(|done| done.status.success())
    }

    /// Sends `bytes` over TCP between tenants, and checks what arrives.
    fn transfer(&self, from: (usize, u8), to: (usize, u8), bytes: usize) -> Duration {
        let at = SocketAddrV4::new(inner(to.0, to.1), 7_000);
        let name = |(host, tenant): (usize, u8)| format!("{}{tenant}", HOSTS[host]);
        let listener = self.inside(&name(to), move || TcpListener::bind(at).expect("bound"));
        let listener = listener.join().expect("listening");
        let receiver = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("all of it");
            all
        });
        let sender = self.inside(&name(from), move || {
            let started = Instant::now();
            let mut stream = TcpStream::connect(at).expect("connected");
            stream.write_all(&(0..bytes).map(|n| (n % 251) as u8).collect::<Vec<u8>>()).expect("sent");
            started
        });
        let started = sender.join().expect("sent");
        let all = receiver.join().expect("received");
        assert_eq!(all.len(), bytes);
        assert!(
            all.iter().enumerate().all(|(n, &byte)| byte == (n % 251) as u8),
            "the data arrived as it was sent"
        );
        started.elapsed()
    }

    /// A tenant sends datagrams of 1,000 bytes at so many a second, until stopped.
    fn flood(&self, from: (usize, u8), to: (usize, u8), port: u16, rate: u32) -> Traffic {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let at = SocketAddrV4::new(inner(to.0, to.1), port);
        let socket =
            self.inside(&format!("{}{}", HOSTS[to.0], to.1), move || UdpSocket::bind(at).expect("bound"));
        let socket = socket.join().expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        let (ended, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let receiving = thread::spawn(move || {
            let mut buffer = [0; 2_048];
            while !ended.load(Ordering::Relaxed) {
                counted.fetch_add(u64::from(socket.recv(&mut buffer).is_ok()), Ordering::Relaxed);
            }
        });
        let ended = Arc::clone(&stop);
        let own = inner(from.0, from.1);
        let sending = self.inside(&format!("{}{}", HOSTS[from.0], from.1), move || {
            let socket = UdpSocket::bind(SocketAddrV4::new(own, 0)).expect("bound");
            let started = Instant::now();
            let mut sent = 0_u64;
            while !ended.load(Ordering::Relaxed) {
                let due = started.elapsed().as_micros() as u64 * u64::from(rate) / 1_000_000;
                while sent < due {
                    let _ = socket.send_to(&[7; 1_000], at);
                    sent += 1;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Traffic { stop, count, threads: vec![receiving, sending] }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for mut daemon in self.daemons.iter_mut().filter_map(Option::take) {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let tenants = HOSTS.iter().flat_map(|host| ["", "1", "2"].map(|tenant| format!("{host}{tenant}")));
        for name in tenants.chain(["fab".to_owned()]) {
            let _ = Command::new("ip").args(["netns", "del", &self.netns(&name)]).output();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Datagrams on their way.
struct Traffic {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// How many arrive in so long.
    fn arrive(&self, span: Duration) -> u64 {
        let before = self.count.load(Ordering::Relaxed);
        thread::sleep(span);
        self.count.load(Ordering::Relaxed) - before
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("no panic"));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

const PLAIN: Plan = Plan { kind: "geneve", v6: false, max: "40Mbps", rest: "", channel: false };
const FEEDBACK: &str = "  feedback: {key: KEY, epoch: 10ms, lapse: 600ms, delay: 20ms, fallback: 8Mbps}\n";
const CHANNEL: &str =
    "  feedback: {key: KEY, via: channel, epoch: 10ms, lapse: 600ms, delay: 20ms, fallback: 8Mbps}\n";

#[test]
fn tcp_passes_over_each_kind_and_family() {
    for (kind, v6) in [("vxlan", false), ("geneve", false), ("geneve", true)] {
        let Some(mut fleet) = Fleet::new("ov", &Plan { kind, v6, ..PLAIN }) else { return };
        fleet.start();
        fleet.transfer((0, 1), (2, 2), 3_000_000);
        fleet.transfer((2, 1), (1, 2), 1_000_000);
        // What the underlay takes of 1,500 bytes; more is answered with how much fits.
        let most = if v6 { 1_430 } else { 1_450 };
        assert!(fleet.ping((0, 1), inner(1, 1), most - 28), "{kind}: {most} bytes pass");
        let netns = fleet.netns("a1");
        fleet.ip(&format!("-n {netns} link set eth0 mtu 1500"));
        assert!(!fleet.ping((0, 1), inner(1, 1), 1_472));
        let told = fleet.stats(0).tenants["t1"].events.get("too_big_told").copied();
        assert!(told > Some(0), "{told:?}");
        fleet.transfer((0, 1), (1, 1), 1_000_000);
        let stats = fleet.stats(0);
        let host = &stats.fleet.as_ref().expect("a fleet").hosts["c"];
        assert!(host.sent > 1_000 && host.received > 100 && host.next_hop.is_some(), "{host:?}");
        assert_eq!(host.state, "uncontrolled");
        for reason in stats.uplink.drops.keys() {
            assert!(!reason.starts_with("overlay"), "{:?}", stats.uplink.drops);
        }
    }
}

/// 160 Mb/s go to a tenant that may have 40, whose host says so; without feedback they are its own to drop.
#[test]
fn a_flood_is_stopped_at_its_sender_and_a_bystander_keeps_its_traffic() {
    for (kind, channel) in [("geneve", false), ("vxlan", false), ("geneve", true)] {
        let rest = if channel { CHANNEL } else { FEEDBACK };
        let Some(mut fleet) = Fleet::new("fb", &Plan { kind, channel, rest, ..PLAIN }) else { return };
        fleet.start();
        let bystander = fleet.flood((1, 1), (2, 2), 7_003, 500);
        thread::sleep(Duration::from_millis(500));
        let alone = bystander.arrive(Duration::from_secs(1));
        let flood = fleet.flood((0, 1), (2, 1), 7_002, 20_000);
        thread::sleep(Duration::from_secs(1));
        let before = fleet.stats(2);
        let (came, beside) = (flood.arrive(Duration::from_secs(2)), bystander.arrive(Duration::from_secs(1)));
        let (sender, receiver) = (fleet.stats(0), fleet.stats(2));
        let pairs = &sender.fleet.as_ref().expect("a fleet").pairs;
        let pair = pairs
            .iter()
            .find(|pair| (pair.peer.as_str(), pair.host.as_str()) == ("t1", "c"))
            .expect("it sends");
        eprintln!(
            "{kind}, channel {channel}: {came} datagrams in 2 s, bystander {beside} of {alone} in 1 s, {pair:?}"
        );
        assert_eq!(pair.state, "limited");
        assert!(pair.rate < 100_000_000 && pair.parked > 100, "{pair:?}");
        // 40 Mb/s are 4,600 such frames a second.
        assert!((3_000..13_000).contains(&came), "{came} in two seconds");
        assert!(beside * 10 >= alone * 8, "the bystander had {alone} a second, and has {beside}");
        let dropped = |stats: &Stats| stats.tenants["t1"].ingress.dropped;
        let (here, there) =
            (sender.tenants["t1"].drops.values().sum::<u64>(), dropped(&receiver) - dropped(&before));
        assert!(
            here > 5_000 && there * 20 < here,
            "{here} dropped by the sender's limit, {there} on arrival"
        );
        let ways = &receiver.fleet.as_ref().expect("a fleet").hosts["a"].feedback;
        let used = if channel { "channelled" } else { "framed" };
        assert!(ways.get(used) > Some(&10), "{ways:?}");
        flood.end();
        bystander.end();
    }
}

/// What a tenant sends goes to tenants, whatever it looks like; what a stranger sends on the underlay has no seal.
#[test]
fn a_tenants_forged_feedback_changes_nothing() {
    let Some(mut fleet) = Fleet::new("fg", &Plan { rest: FEEDBACK, ..PLAIN }) else { return };
    fleet.start();
    let traffic = fleet.flood((0, 1), (1, 2), 7_004, 200);
    fleet.eventually("the receiver is heard", || {
        fleet.fleet(0).pairs.iter().any(|pair| pair.host == "b" && pair.state == "limited")
    });
    // A Geneve packet with our kind of feedback, as a tenant would send it to the host's own address, and to a tenant's.
    let mut forged = vec![0, 0x80, 0x88, 0xb5, 0, 0, 0, 0, 1, 1];
    forged.resize(8 + 18 + 26 + 16, 3);
    let netns = fleet.netns("b1");
    fleet.ip(&format!("-n {netns} route add 192.0.2.0/24 dev eth0"));
    let lie = forged.clone();
    let sent = fleet.inside("b1", move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
        for to in ["192.0.2.1:6081", "10.8.0.11:6081"] {
            (0..50).for_each(|_| _ = socket.send_to(&lie, to));
        }
    });
    sent.join().expect("sent");
    let heard = |name: &str| fleet.stats(0).uplink.events.get(name).copied().unwrap_or(0);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(
        (heard("feedback_forged"), heard("feedback_malformed")),
        (0, 0),
        "tenants' frames stay inside"
    );
    // From host b's own namespace, as if somebody had got onto the underlay.
    let sent = fleet.inside("b", move || {
        let socket = UdpSocket::bind("192.0.2.2:0").expect("bound");
        (0..50).for_each(|_| _ = socket.send_to(&forged, "192.0.2.1:6081"));
    });
    sent.join().expect("sent");
    fleet.eventually("it is counted", || {
        heard("feedback_malformed") + heard("feedback_misdirected") + heard("feedback_forged") > 0
    });
    let pairs = fleet.fleet(0).pairs;
    let pair = pairs.iter().find(|pair| pair.host == "b").expect("it sends");
    assert!(pair.state == "limited" && pair.rate > 100_000_000, "{pair:?}");
    assert!(traffic.arrive(Duration::from_secs(1)) > 150);
    traffic.end();
}

#[test]
fn a_killed_receiver_leaves_its_senders_at_the_fallback_and_they_say_so() {
    let Some(mut fleet) = Fleet::new("ki", &Plan { rest: FEEDBACK, ..PLAIN }) else { return };
    fleet.start();
    let traffic = fleet.flood((0, 1), (2, 2), 7_005, 5_000);
    let state = |fleet: &Fleet| {
        let now = fleet.fleet(0);
        let pair = now.pairs.iter().find(|pair| pair.host == "c" && pair.peer == "t2").cloned();
        (now.hosts["c"].state.clone(), pair)
    };
    fleet.eventually("it is heard", || {
        let (host, pair) = state(&fleet);
        host == "heard" && pair.is_some_and(|pair| pair.state == "limited")
    });
    fleet.kill(2);
    let killed = Instant::now();
    fleet.eventually("limits lapse", || {
        let (host, pair) = state(&fleet);
        host == "silent" && pair.is_some_and(|pair| pair.state == "fallback" && pair.rate == 8_000_000)
    });
    eprintln!("silent after {:?}", killed.elapsed());
    assert!(killed.elapsed() > Duration::from_millis(300), "not before the lapse");
    let shown = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["stats", "--socket", &fleet.folder.join("a.sock").display().to_string()])
        .output()
        .expect("ran");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("silent") && shown.contains("fallback"), "{shown}");
    // And all is well again when it is back.
    let metrics = fleet.client(0).text("GET", "/metrics").expect("a page");
    assert!(metrics.contains("plimsoll_host_silent{host=\"c\"} 1"), "{metrics}");
    fleet.launch(2);
    fleet.eventually("it is heard again", || state(&fleet).0 == "heard");
    traffic.end();
}
