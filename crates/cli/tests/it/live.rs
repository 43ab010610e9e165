//! `plimsoll run` on real interfaces: two tenants and an uplink, real ping and TCP.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Daemon, PATIENCE, Stage, TRIES, ip};
use nix::sys::signal::Signal;
use plimsoll_daemon::{Explanation, Reloaded, Stats};
use plimsoll_slo::{Cause, SloReport, Verdict};

const SHOP: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const BATCH: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 9);
/// Namespaces of this test's own, and a daemon between them.
struct World {
    /// The daemon, which ends before its namespaces are removed.
    daemon: Option<Daemon>,
    stage: Stage,
    /// Arguments of `plimsoll run` besides its file.
    options: Vec<String>,
}

impl Deref for World {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl World {
    /// `None` without root. `tag` keeps tests apart that run at once: at most four letters.
    fn new(tag: &str) -> Option<Self> {
        let stage = Stage::with_netns(tag, &["shop", "batch", "far"])?;
        Some(Self { stage, options: Vec::new(), daemon: None })
    }

    fn policy(&self, rate: &str, rest: &str) -> String {
        let [shop, batch, far] = ["shop", "batch", "far"].map(|name| self.netns(name));
        format!(
            "uplink: {{port: {{tap: {{netns: {far}, name: up0}}}}, rate: {rate}}}\n\
             api: {{socket: {}}}\n\
             tenants:\n\
             \x20 shop: {{port: {{tap: {{netns: {shop}, name: eth0}}}}}}\n\
             \x20 batch: {{port: {{tap: {{netns: {batch}, name: eth0}}}}}}\n{rest}",
            self.socket().display(),
        )
    }

    fn policy_file(&self) -> PathBuf {
        self.file("plimsoll.yaml")
    }

    fn socket(&self) -> PathBuf {
        self.file("api.sock")
    }

    fn log(&self) -> String {
        self.read("log")
    }

    fn write(&self, policy: &str) {
        fs::write(self.policy_file(), policy).expect("written");
    }

    /// Starts the daemon and gives each interface an address.
    fn start(&mut self, policy: &str) {
        self.start_with(policy, &[("shop", "eth0", SHOP), ("batch", "eth0", BATCH), ("far", "up0", FAR)]);
    }

    fn start_with(&mut self, policy: &str, devices: &[(&str, &str, Ipv4Addr)]) {
        self.write(policy);
        self.launch();
        for (name, device, address) in devices {
            let address = format!("{address}/24");
            ip(&["-n", &self.netns(name), "address", "add", &address, "brd", "+", "dev", device]);
        }
    }

    fn launch(&mut self) {
        let daemon = Daemon::start(None, &self.policy_file(), &self.options, &self.file("log"));
        self.daemon = Some(daemon);
        self.until_it_answers();
    }

    fn stats(&self) -> Stats {
        self.client().get("/v1/stats").expect("counters")
    }

    fn ping(&self, from: &str, to: Ipv4Addr) -> bool {
        self.stage.ping(from, to, 56)
    }

    /// Asks the daemon to stop; returns its exit code and the time that it took.
    fn stop(&mut self) -> (Option<i32>, Duration) {
        let mut daemon = self.daemon.take().expect("running");
        daemon.end(Signal::SIGTERM).unwrap_or_else(|| panic!("it did not stop; it said\n{}", self.log()))
    }
}

/// Receives `count` datagrams in the world, or those that come before a long pause, and any beyond them; returns the numbers
/// with which they begin.
fn receive_numbers(world: &World, port: u16, count: usize) -> thread::JoinHandle<Vec<u32>> {
    let socket = world.inside("far", move || UdpSocket::bind(SocketAddrV4::new(FAR, port)).expect("bound"));
    let socket = socket.join().expect("bound");
    // On a busy machine the receiver may wait long for a core; no datagram may be lost here.
    nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(8 << 20))
        .expect("root may");
    thread::spawn(move || {
        let mut buffer = [0; 2_048];
        let mut numbers = Vec::new();
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        while socket.recv(&mut buffer).is_ok() {
            numbers.push(u32::from_be_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]));
            if numbers.len() >= count {
                socket.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
            }
        }
        numbers
    })
}

#[test]
fn ping_and_tcp_pass_and_the_uplinks_rate_holds() {
    let Some(mut world) = World::new("tcp") else { return };
    let policy = world.policy("100Mbps", "");
    world.start(&policy);
    world.eventually("ping to the world", || world.ping("shop", FAR));
    world.eventually("ping to a neighbour", || world.ping("shop", BATCH));
    let took = world.transfer("shop", "far", FAR, 5_000_000);
    // 5 MB at 100 Mb/s take 400 ms, and somewhat more with headers.
    assert!(took >= Duration::from_millis(400), "{took:?} is faster than the uplink");
    world.transfer("far", "batch", BATCH, 1_000_000);
    let stats = world.stats();
    assert!(stats.nodes[0].bytes > 5_000_000, "{stats:?}");
    let shop = stats.nodes.iter().find(|node| node.path.ends_with("shop")).expect("the class");
    assert!(shop.delay.as_ref().is_some_and(|delay| delay.count > 100 && delay.p99 > 0.0), "{shop:?}");

    let explanation: Explanation =
        world.client().get("/v1/explain?filter=tenant%3Dshop%20tcp").expect("explained");
    let time = explanation.time.expect("packets matched");
    let parts = time.own_flow
        + time.rest
        + time.limits.iter().map(|limit| limit.time).sum::<f64>()
        + time.nodes.iter().map(|node| node.time).sum::<f64>();
    assert!((parts - time.total).abs() < 1.0, "the parts add up: {time:?}");
    let metrics = world.client().text("GET", "/metrics").expect("a page");
    assert!(metrics.contains("plimsoll_port_rx_packets_total{port=\"shop\"}"), "{metrics}");

    let (code, _) = world.stop();
    assert_eq!(code, Some(0), "{}", world.log());
    assert!(!world.socket().exists(), "the socket is removed");
}

/// What comes beyond it waits, so that TCP fills it: dropped on arrival, it would make CUBIC and BBR three times as slow. A ping
/// beside the connection does not wait for all of its queue.
#[test]
fn tcp_fills_the_maximum_of_what_a_tenant_may_receive() {
    const BYTES: usize = 20_000_000;
    let Some(mut world) = World::new("max") else { return };
    let policy = world.policy("1Gbps", "").replace("name: eth0}}}", "name: eth0}}, ingress: {max: 80Mbps}}");
    world.start(&policy);
    world.eventually("ping", || world.ping("shop", FAR));
    let known =
        fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").expect("Linux has it");
    // 2.1 s with headers; 80 Mb/s in the time of which the first tenth is slow start.
    let fills = |control: &str| {
        let pings = pings(&world, 80);
        let took = world.transfer_by(Some(control), ("far", "shop"), SHOP, BYTES).as_secs_f64();
        let mut waits = pings.join().expect("pings");
        waits.sort_by(f64::total_cmp);
        let p99 = waits[(waits.len() * 99).div_ceil(100) - 1];
        eprintln!("{control}: {:.1} Mb/s, ping's p99 {p99:.1} ms", BYTES as f64 * 8e-6 / took);
        assert!(took > 1.8, "{control} takes {took} s: faster than the maximum");
        took < 3.5 && p99 < 60.0
    };
    for control in
        ["cubic", "bbr"].into_iter().filter(|control| known.split_whitespace().any(|name| name == *control))
    {
        assert!((0..TRIES).any(|_| fills(control)), "{control} fills it, and a ping is not late");
    }
    let seen = world.stats().tenants["shop"].ingress.clone();
    assert!(seen.served > 100 && seen.dropped == 0, "{seen:?}");
}

/// Asks for so many answers from the far end to the shop, one each 20 ms; gives the milliseconds of each.
fn pings(world: &World, count: u32) -> thread::JoinHandle<Vec<f64>> {
    let mut command = world.command("far", "ping");
    command.args(["-i", "0.02", "-W", "2", "-c", &count.to_string(), &SHOP.to_string()]);
    thread::spawn(move || {
        let out = command.output().expect("ping runs");
        let out = String::from_utf8_lossy(&out.stdout).into_owned();
        let times = out.split("time=").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok());
        times.collect()
    })
}

#[test]
fn a_reload_during_traffic_loses_nothing_and_a_wrong_file_changes_nothing() {
    let Some(mut world) = World::new("rel") else { return };
    let policy = world.policy(
        "100Mbps",
        // The engine's thread may wait as well: all 2,000 packets have room.
        "engine: {queues: 256, ring: 4096}\npolicy: {root: {wfq: {shop: 1, batch: 1}}}\n",
    );
    world.start(&policy);
    world.eventually("ping", || world.ping("shop", FAR));
    let count = 2_000_u32;
    // Packets that the engine's thread does not read for 400 ms have room as well; a reload never takes that long.
    ip(&["-n", &world.netns("shop"), "link", "set", "eth0", "txqueuelen", "1000"]);
    let receiver = receive_numbers(&world, 7_001, count as usize);
    let sender = world.inside("shop", move || {
        let socket = UdpSocket::bind(SocketAddrV4::new(SHOP, 0)).expect("bound");
        for n in 0..count {
            socket.send_to(&n.to_be_bytes().repeat(100), SocketAddrV4::new(FAR, 7_001)).expect("sent");
            thread::sleep(Duration::from_micros(400));
        }
    });
    for weight in 2..6 {
        world.write(&policy.replace("shop: 1", &format!("shop: {weight}")));
        let reloaded: Reloaded = world.client().post("/v1/reload").expect("reloaded");
        assert!(reloaded.changes.contains("shop"), "{reloaded:?}");
        eprintln!("reloaded within {}", reloaded.took);
        thread::sleep(Duration::from_millis(50));
    }
    world.write("uplink: nonsense\n");
    let refused = world.client().post::<Reloaded>("/v1/reload").expect_err("it is wrong").to_string();
    assert!(refused.contains("nothing was changed"), "{refused}");
    assert_eq!(world.stats().generation, 4);

    sender.join().expect("sent");
    let numbers = receiver.join().expect("received");
    let stats = world.stats();
    let tenant = &stats.tenants["shop"];
    assert!(
        numbers.iter().copied().eq(0..count),
        "in order, none missing: {} of {count}; {tenant:?}",
        numbers.len()
    );
}

#[test]
fn a_tenant_that_poses_as_the_gateway_loses_its_address_to_the_gateway() {
    const GATEWAY: &str = "02:aa:00:00:00:09";
    let Some(mut world) = World::new("pose") else { return };
    let policy = world.policy("100Mbps", "");
    world.start(&policy);
    let takes = |name: &str, device: &str| {
        ip(&["-n", &world.netns(name), "link", "set", device, "address", GATEWAY]);
    };
    let event = |reason: &str| world.stats().tenants["batch"].events.contains_key(reason);
    let dropped = || world.stats().tenants["batch"].drops.get("foreign_source").copied().unwrap_or(0);
    // Before any host behind the uplink has used it; the daemon has heard it, as its neighbour's answer shows.
    takes("batch", "eth0");
    world.eventually("the poser is answered", || world.ping("batch", SHOP));
    ip(&["-n", &world.netns("shop"), "neighbour", "flush", "dev", "eth0"]);
    takes("far", "up0");
    world.eventually("ping to the gateway", || world.ping("far", SHOP) && world.ping("shop", FAR));
    world.eventually("the address is taken", || event("address_taken"));
    let before = dropped();
    assert!(!world.ping("batch", SHOP), "no host hears the poser any more");
    assert!(dropped() > before, "{:?}", world.stats().tenants["batch"]);
    world.eventually("nor do the gateway's neighbours notice", || world.ping("shop", FAR));
}

#[test]
fn a_port_that_disappears_comes_back_and_others_go_on() {
    let Some(mut world) = World::new("gone") else { return };
    let policy = world.policy("100Mbps", "");
    world.start(&policy);
    world.eventually("ping", || world.ping("shop", FAR));
    ip(&["-n", &world.netns("batch"), "link", "delete", "eth0"]);
    world.eventually("the loss is noticed", || {
        world.stats().tenants["batch"].events.contains_key("port_lost")
    });
    world.eventually("the neighbour goes on", || world.ping("shop", FAR));
    world.eventually("the port is back", || world.stats().tenants["batch"].port.is_some());
    ip(&["-n", &world.netns("batch"), "address", "add", &format!("{BATCH}/24"), "dev", "eth0"]);
    world.eventually("ping through the new port", || world.ping("batch", FAR));
}

/// An engine that had no core meanwhile still ends in the announced time, and reports the packets that it gave up for that.
/// On a machine that stalls the test tries again.
#[test]
fn a_stop_sends_what_waits_within_the_time_that_it_said() {
    for _ in 0..TRIES {
        let given_up = given_up_at_a_stop();
        if matches!(given_up, None | Some(0)) {
            return;
        }
        eprintln!("{given_up:?} given up");
    }
    panic!("what waits is not sent at a stop");
}

/// Stops a daemon that holds 200 datagrams; returns the number that it reports as given up. `None` without root.
fn given_up_at_a_stop() -> Option<usize> {
    let mut world = World::new("stop")?;
    let policy = world.policy("20Mbps", "engine: {queues: 256, ring: 1024}\n");
    world.start(&policy);
    world.eventually("ping", || world.ping("shop", FAR));
    let receiver = receive_numbers(&world, 7_002, 200);
    let read = || world.stats().tenants["shop"].rx_packets;
    let before = read();
    // 200 packets of 1,028 B: 82 ms at 20 Mb/s.
    let sender = world.inside("shop", || {
        let socket = UdpSocket::bind(SocketAddrV4::new(SHOP, 0)).expect("bound");
        for n in 0..200_u32 {
            socket.send_to(&n.to_be_bytes().repeat(250), SocketAddrV4::new(FAR, 7_002)).expect("sent");
        }
    });
    sender.join().expect("sent");
    // Questions for addresses are read besides.
    world.eventually("all were read", || {
        let now = read();
        thread::sleep(Duration::from_millis(50));
        now >= before + 200 && read() == now
    });
    let (code, took) = world.stop();
    assert_eq!(code, Some(0), "{}", world.log());
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(world.log().contains("stopping;"), "{}", world.log());
    let numbers = receiver.join().expect("received");
    let log = world.log();
    let given_up = log.lines().find(|line| line.ends_with("were given up"));
    let given_up =
        given_up.map_or(0, |line| line.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("how many"));
    assert!(numbers.len() + given_up >= 200, "{given_up} given up: {numbers:?}\n{log}");
    assert!((0..).zip(&numbers).all(|(n, &number)| n == number), "in order: {numbers:?}");
    Some(given_up)
}

#[test]
fn a_crash_leaves_nothing_in_the_way() {
    let Some(mut world) = World::new("kill") else { return };
    let policy = world.policy("100Mbps", "");
    world.start(&policy);
    let second = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("run")
        .arg(world.policy_file())
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("another plimsoll is running"), "{said}");

    let mut daemon = world.daemon.take().expect("running");
    daemon.end(Signal::SIGKILL).expect("gone");
    assert!(world.socket().exists(), "the crash left its socket");
    world.launch();
    assert!(world.log().contains("left by an earlier run"), "{}", world.log());
}

#[test]
fn an_idle_daemon_costs_next_to_nothing() {
    let Some(mut world) = World::new("idle") else { return };
    let policy = world.policy("100Mbps", "");
    world.start(&policy);
    let id = world.daemon.as_ref().expect("running").id();
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("running");
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")
    };
    // Neighbour discovery of the new interfaces takes some seconds; it is part of being idle.
    let before = ticks();
    thread::sleep(Duration::from_secs(2));
    let used = ticks() - before;
    eprintln!("idle: {used} ticks of 200");
    assert!(used < 20, "{used} ticks of 200: more than 10 % of a core");
}

#[test]
fn a_missing_namespace_is_named_with_a_way_out_and_holds_up_no_tenant() {
    let Some(mut world) = World::new("miss") else { return };
    let policy = world.policy("100Mbps", "").replace(&world.netns("shop"), "no-such-netns");
    world.write(&policy);
    world.launch();
    let said = world.log();
    assert!(said.contains("tenant shop: network namespace `no-such-netns` does not exist"), "{said}");
    assert!(said.contains("create it with `ip netns add`"), "{said}");
    let health = world.client().text("GET", "/v1/health").expect("it answers");
    assert!(health.contains("\"degraded\"") && health.contains("\"lost_ports\":[\"shop\"]"), "{health}");
}

#[test]
fn a_metrics_address_that_is_taken_ends_the_start_with_a_way_out() {
    let Some(world) = World::new("met") else { return };
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("its address");
    let policy = world.policy("100Mbps", "");
    world.write(&policy.replace("api: {", &format!("api: {{metrics: {address}, ")));
    let done = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("run")
        .arg(world.policy_file())
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("`api.metrics`") && said.contains(&address.to_string()), "{said}");
    assert!(said.contains("listens there already"), "{said}");
    assert!(!said.contains("running;"), "it was never ready: {said}");
    assert!(!world.socket().exists(), "the API's socket is gone with it");
}

#[test]
fn a_file_in_the_sockets_place_is_refused_and_stays() {
    let Some(world) = World::new("file") else { return };
    fs::write(world.socket(), "precious").expect("written");
    world.write(&world.policy("100Mbps", ""));
    let done = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("run")
        .arg(world.policy_file())
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains(&world.socket().display().to_string()) && said.contains("not a socket"), "{said}");
    assert_eq!(fs::read_to_string(world.socket()).expect("still there"), "precious");
}

/// A small disk, until the test ends.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(world: &World, kib: u32) -> Self {
        let disk = Self(world.file("disk"));
        fs::create_dir_all(&disk.0).expect("a folder");
        let size = format!("size={kib}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&disk.0).status();
        assert!(mounted.is_ok_and(|status| status.success()), "a small tmpfs");
        disk
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: after a failure the daemon may still have a file open on it.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_capture_on_a_full_disk_is_said_once_and_traffic_goes_on() {
    let Some(mut world) = World::new("disk") else { return };
    let disk = SmallDisk::new(&world, 16);
    let capture = disk.0.join("batch.pcapng");
    let tap = format!("tap: {{netns: {}, name: eth0}}", world.netns("batch"));
    let policy =
        world.policy("100Mbps", "").replace(&tap, &format!("pcap: {{write: {}}}", capture.display()));
    world.start_with(&policy, &[("shop", "eth0", SHOP), ("far", "up0", FAR)]);
    world.eventually("ping", || world.ping("shop", FAR));
    // Broadcasts go to every tenant.
    let broadcast = || {
        let send = world.inside("shop", || {
            let socket = UdpSocket::bind((SHOP, 0)).expect("a socket");
            socket.set_broadcast(true).expect("broadcasts");
            for _ in 0..40 {
                let _ = socket.send_to(&[0; 1_000], (Ipv4Addr::new(10, 9, 0, 255), 9));
            }
        });
        send.join().expect("sent");
    };
    let said = || world.log().lines().filter(|line| line.contains("batch.pcapng")).count();
    world.eventually("the full disk is said", || {
        broadcast();
        said() > 0
    });
    broadcast();
    thread::sleep(Duration::from_millis(1_500));
    assert_eq!(said(), 1, "{}", world.log());
    world.eventually("traffic goes on", || world.ping("shop", FAR));
}

/// Replays a recording; returns its standard output and its exit code.
fn replayed(trace: &std::path::Path) -> (serde_json::Value, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let done = command.args(["sim", "--json", "--replay"]).arg(trace).output().expect("started");
    let found = serde_json::from_slice(&done.stdout);
    (found.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr))), done.status.code())
}

#[test]
fn what_a_live_engine_decided_is_decided_again_in_virtual_time() {
    let Some(mut world) = World::new("rec") else { return };
    let trace = world.file("noon.trace");
    world.options = ["--record".to_owned(), trace.display().to_string()].into();
    let policy = world.policy(
        "100Mbps",
        "limits: {slow: {match: {dst_port: 7000}, rate: 60Mbps}}\n\
         policy: {root: {wfq: {shop: 1, batch: 1}, via: [slow]}}\n",
    );
    world.start(&policy);
    world.eventually("ping", || world.ping("shop", FAR));
    // A flood beside TCP with large segments, and a reload in the middle of both.
    let flood = world.inside("batch", || {
        let socket = UdpSocket::bind(SocketAddrV4::new(BATCH, 0)).expect("bound");
        for _ in 0..20_000 {
            let _ = socket.send_to(&[7; 1_000], SocketAddrV4::new(FAR, 9));
        }
    });
    world.transfer("shop", "far", FAR, 2_000_000);
    world.write(&policy.replace("shop: 1", "shop: 3"));
    let _: Reloaded = world.client().post("/v1/reload").expect("reloaded");
    world.transfer("shop", "far", FAR, 2_000_000);
    flood.join().expect("sent");
    let sent = world.stats().nodes[0].packets;
    assert_eq!(world.stop().0, Some(0), "{}", world.log());
    assert!(world.log().contains("recorded"), "{}", world.log());

    let (found, code) = replayed(&trace);
    assert_eq!((code, &found["difference"]), (Some(0), &serde_json::Value::Null), "{found}");
    assert_eq!((&found["end"], &found["reloads"]), (&"stopped".into(), &1.into()), "{found}");
    let left: u64 =
        found["classes"].as_array().expect("classes").iter().filter_map(|c| c["packets"].as_u64()).sum();
    assert!(left >= sent && sent > 3_000, "{left} of {sent}: {found}");
    let limited = found["classes"].as_array().expect("classes").iter().find(|class| class["class"] == "shop");
    assert!(limited.is_some_and(|shop| shop["limited"].as_f64() > Some(0.1)), "{found}");
}

#[test]
fn a_recording_that_the_disk_does_not_take_is_said_once_and_traffic_goes_on() {
    let Some(mut world) = World::new("rfd") else { return };
    let disk = SmallDisk::new(&world, 200);
    let trace = disk.0.join("noon.trace");
    world.options = ["--record".to_owned(), trace.display().to_string()].into();
    let policy = world.policy("1Gbps", "");
    world.start(&policy);
    world.eventually("ping", || world.ping("shop", FAR));
    world.eventually("the disk is full", || {
        world.transfer("shop", "far", FAR, 10_000_000);
        world.log().contains("No space left")
    });
    world.transfer("shop", "far", FAR, 1_000_000);
    assert_eq!(world.log().matches("recording into").count(), 2, "its start and its end: {}", world.log());
    assert_eq!(world.stop().0, Some(0), "{}", world.log());
    let (found, code) = replayed(&trace);
    assert_eq!((code, &found["end"]), (Some(0), &"torn".into()), "{found}");
    assert!(found["decisions"].as_u64().is_some_and(|count| count > 1_000), "{found}");
}

/// The output of `plimsoll slo` for the last `seconds`, and its exit code.
fn promises(world: &World, seconds: u32) -> (SloReport, Option<i32>) {
    let asked = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["slo", "--json", "--socket"])
        .arg(world.socket())
        .args(["--window", &format!("{seconds}s")])
        .output()
        .expect("asked");
    let report = serde_json::from_slice(&asked.stdout);
    (report.unwrap_or_else(|error| panic!("{error}: {asked:?}")), asked.status.code())
}

/// Sends datagrams to the world for `span`, one each `gap`.
fn datagrams(
    world: &World,
    from: &str,
    size: usize,
    gap: Duration,
    span: Duration,
) -> thread::JoinHandle<()> {
    world.inside(from, move || {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
        let start = Instant::now();
        let mut due = Duration::ZERO;
        while due < span {
            thread::sleep(due.saturating_sub(start.elapsed()));
            // The queue is meant to be full; and the world answers that no socket listens.
            let _ = socket.send_to(&vec![0; size], SocketAddrV4::new(FAR, 9));
            due += gap;
        }
    })
}

/// PicNIC's promise, live: a tenant beyond its envelope loses its own packets and is named as the cause, and its neighbour's
/// promise holds. Then the uplink fails, and is named as the cause.
#[test]
fn who_breaks_its_envelope_is_blamed_and_its_neighbours_promise_holds() {
    let Some(mut world) = World::new("slo") else { return };
    let policy = world
        .policy("100Mbps", "")
        .replace("shop: {", "shop: {min: 20Mbps, delay: {p50: 100ms, p99: 600ms}, ")
        .replace("batch: {", "batch: {max: 8Mbps, ");
    world.start(&policy);
    world.eventually("the world answers", || world.ping("shop", FAR) && world.ping("batch", FAR));

    // Four times its envelope, beside a hundred small packets a second.
    let flood = datagrams(&world, "batch", 1_400, Duration::from_micros(350), Duration::from_secs(5));
    let calm = datagrams(&world, "shop", 200, Duration::from_millis(10), Duration::from_secs(5));
    thread::sleep(Duration::from_millis(4_500));
    let (report, code) = promises(&world, 3);
    let [shop, batch] = ["shop", "batch"].map(|name| &report.tenants[name].whole);
    assert_eq!((shop.verdict, code), (Verdict::Held, Some(0)), "{shop:#?}");
    assert_eq!(batch.verdict, Verdict::Beyond, "{batch:#?}");
    let own = batch.breaches.iter().find(|breach| breach.cause == Cause::Itself).expect("it was itself");
    assert!(own.why.contains("of at most 8Mbps") && batch.lost_out > 100, "{batch:#?}");
    assert!(batch.sent < 8.4e6 && shop.egress.count > 100 && shop.lost_out == 0, "{report:#?}");
    flood.join().expect("sent");
    calm.join().expect("sent");

    let calm = datagrams(&world, "shop", 200, Duration::from_millis(10), Duration::from_secs(4));
    ip(&["-n", &world.netns("far"), "link", "set", "up0", "down"]);
    thread::sleep(Duration::from_millis(2_500));
    let health = world.client().text("GET", "/v1/health").expect("it answers");
    assert!(health.contains("\"degraded\"") && health.contains("\"uplink_down\":true"), "{health}");
    ip(&["-n", &world.netns("far"), "link", "set", "up0", "up"]);
    world.eventually("all is well again", || {
        world.client().text("GET", "/v1/health").is_ok_and(|health| health.contains("\"uplink_down\":false"))
    });
    calm.join().expect("sent");
    thread::sleep(Duration::from_millis(1_100));
    let (report, code) = promises(&world, 5);
    let shop = &report.tenants["shop"].whole;
    assert_eq!((shop.verdict, code), (Verdict::Broken, Some(1)), "{shop:#?}");
    assert!(shop.breaches.iter().any(|breach| breach.cause == Cause::LinkDown), "{shop:#?}");
    let (code, _) = world.stop();
    assert_eq!(code, Some(0), "{}", world.log());
}
