//! The privileges of the daemon's two processes, and that ports still come and go without the others.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Daemon, Stage, ip, skip};

/// A daemon with tenants, in a folder that only root may enter.
struct World {
    daemon: Option<Daemon>,
    stage: Stage,
}

impl World {
    /// `None` without root.
    fn new(tag: &str) -> Option<Self> {
        let stage = Stage::with_netns(tag, &["world", "a", "b"])?;
        let folder = stage.file("").to_owned();
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("closed");
        Some(Self { daemon: None, stage })
    }

    fn state(&self, tenants: &[&str]) {
        let tap = |name: &str, device: &str| {
            format!("{{tap: {{netns: {}, name: {device}}}}}", self.stage.netns(name))
        };
        let row = |name: &&str| format!("  {name}: {{port: {}}}\n", tap(name, "eth0"));
        let policy = format!(
            "uplink: {{port: {}, rate: 100Mbps}}\napi: {{socket: {}}}\ntenants:\n{}",
            tap("world", "uplink"),
            self.stage.file("api.sock").display(),
            tenants.iter().map(row).collect::<String>()
        );
        fs::write(self.stage.file("policy.yaml"), policy).expect("written");
        let closed = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.stage.file("policy.yaml"), closed).expect("closed");
    }

    fn start(&mut self, tenants: &[&str], options: &[&str]) {
        self.state(tenants);
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let (policy, log) = (self.stage.file("policy.yaml"), self.stage.file("log"));
        self.daemon = Some(Daemon::start(None, &policy, &options, &log));
        self.stage.until_it_answers();
    }

    fn health(&self) -> String {
        self.stage.client().text("GET", "/v1/health").expect("it answers")
    }

    /// The engine's process.
    fn engine(&self) -> u32 {
        self.daemon.as_ref().expect("it runs").id()
    }

    /// The broker's process, which is the engine's only child.
    fn broker(&self) -> u32 {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.engine()));
        children.expect("it runs").trim().parse().expect("one child")
    }

    fn reload(&self, tenants: &[&str]) -> Result<String, String> {
        self.state(tenants);
        self.stage.client().text("POST", "/v1/reload").map_err(|error| error.to_string())
    }

    /// Tenant b answers a's pings; on a busy machine one of them may take more than its second.
    fn pings(&self, what: &str) {
        self.stage.eventually(what, || self.stage.ping("a", Ipv4Addr::new(10, 7, 0, 2), 100));
    }

    fn address(&self, tenant: &str, last: u8) {
        let netns = self.stage.netns(tenant);
        ip(&["-n", &netns, "address", "add", &format!("10.7.0.{last}/24"), "dev", "eth0"]);
    }
}

/// The rows of `/proc/PID/status`, or of a thread's.
fn status(path: &Path) -> impl Fn(&str) -> String + use<> {
    let text = fs::read_to_string(path.join("status")).expect("it runs");
    move |key| {
        let row = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        row.expect("a row").split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

fn process(id: u32) -> std::path::PathBuf {
    format!("/proc/{id}").into()
}

/// A thread's scheduling policy: 1 is `SCHED_FIFO`.
fn scheduling(thread: &Path) -> Option<u32> {
    let stat = fs::read_to_string(thread.join("stat")).ok()?;
    // Field 41 of proc(5); the first after the name is field 3.
    stat.rsplit_once(')')?.1.split_whitespace().nth(41 - 3)?.parse().ok()
}

/// Whether root may use real-time scheduling here.
fn goes_first() -> bool {
    let [_, _, effective, ..] = sets(&status(Path::new("/proc/self")));
    effective & 1 << 23 != 0
}

/// The sets of capabilities, as bits.
fn sets(status: &impl Fn(&str) -> String) -> [u64; 5] {
    ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]
        .map(|key| u64::from_str_radix(&status(key), 16).expect("bits"))
}

fn is_alive(id: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{id}/stat"));
    state.is_ok_and(|stat| !stat.rsplit_once(')').expect("a name").1.trim_start().starts_with('Z'))
}

/// DAC_OVERRIDE, NET_ADMIN, NET_RAW, SYS_PTRACE, SYS_ADMIN, BPF; and SYS_NICE where no limit could be raised.
const BROKERS: u64 = 1 << 1 | 1 << 12 | 1 << 13 | 1 << 19 | 1 << 21 | 1 << 39 | 1 << 23;

#[test]
fn the_engine_owns_nothing_and_the_broker_what_it_needs() {
    let Some(mut world) = World::new("prv") else { return };
    world.start(&["a", "b"], &[]);
    let tasks = fs::read_dir(process(world.engine()).join("task")).expect("threads").flatten();
    let mut threads = 0;
    for task in tasks {
        let thread = status(&task.path());
        if thread("Name") == "engine" {
            // SYS_NICE, or a raised limit: either way the thread has real-time priority.
            world.stage.eventually("it goes first", || scheduling(&task.path()) == Some(1) || !goes_first());
        }
        assert_eq!(sets(&thread), [0; 5], "{}", thread("Name"));
        let ids: Vec<String> = thread("Uid").split(' ').map(str::to_owned).collect();
        assert!(ids.iter().all(|id| id != "0" && *id == ids[0]), "{ids:?}");
        assert_eq!(thread("Groups"), "");
        assert_eq!((thread("NoNewPrivs").as_str(), thread("Seccomp").as_str()), ("1", "2"));
        threads += 1;
    }
    assert!(threads > 1, "the engine's thread is one of them");
    let broker = status(&process(world.broker()));
    let [inherited, permitted, effective, bounding, ambient] = sets(&broker);
    assert_eq!((inherited, ambient, permitted & !BROKERS, bounding & !BROKERS), (0, 0, 0, 0));
    assert_eq!(permitted, effective);
    assert_eq!(["NoNewPrivs", "Seccomp", "Threads"].map(broker), ["1", "2", "1"]);

    let health = world.health();
    assert!(health.contains("\"capabilities\":[]") && health.contains("\"seccomp\":true"), "{health}");
    assert!(health.contains(&format!("\"broker\":{}", world.broker())), "{health}");
    let log = world.stage.read("log");
    assert!(log.contains("no capability, seccomp on, landlock"), "{log}");
    assert!(!log.contains("is refused by the filter"), "{log}");
}

#[test]
fn a_reload_and_a_returning_namespace_go_through_the_broker() {
    let Some(mut world) = World::new("prr") else { return };
    world.start(&["a"], &[]);
    world.reload(&["a", "b"]).expect("the file is root's only, and read by the broker");
    world.address("a", 1);
    world.address("b", 2);
    world.pings("the new tenant's port carries packets");
    let refused = world.reload(&["a", "b", "none"]).expect_err("there is no such namespace");
    assert!(
        refused.contains("tenant none: network namespace") && refused.contains("ip netns add"),
        "{refused}"
    );

    let lost = world.stage.netns("b");
    ip(&["netns", "del", &lost]);
    world.stage.eventually("the port is missed", || world.health().contains("\"lost_ports\":[\"b\"]"));
    ip(&["netns", "add", &lost]);
    world.stage.eventually("it is opened again", || world.health().contains("\"lost_ports\":[]"));
    world.address("b", 2);
    world.pings("so does the one that came back");
    let ended = world.daemon.as_mut().expect("it runs").end(Signal::SIGTERM).expect("in time");
    assert_eq!(ended.0, Some(0));
    let left: Vec<_> = fs::read_dir(world.stage.file("")).expect("there").flatten().collect();
    let left: Vec<_> = left.iter().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name == "api.sock" || name == "api.lock"), "{left:?}");
    assert!(!world.stage.read("log").contains("is refused by the filter"), "{}", world.stage.read("log"));
}

#[test]
fn a_tenants_file_is_read_by_a_child_of_the_brokers() {
    let Some(mut world) = World::new("prf") else { return };
    world.state(&["a"]);
    let own = |world: &World, text: &str| {
        let file = world.stage.file("a.yaml");
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("closed");
    };
    own(&world, "policy: {root: {wfq: [first, second]}, first: {match: {protocol: udp}}, second: {}}\n");
    let policy = world.stage.read("policy.yaml");
    let policy = policy.replace("name: eth0}}}", "name: eth0}}, policy: a.yaml}");
    assert!(policy.contains("policy: a.yaml"), "{policy}");
    fs::write(world.stage.file("policy.yaml"), policy).expect("written");
    world.daemon = Some(Daemon::start(None, &world.stage.file("policy.yaml"), &[], &world.stage.file("log")));
    world.stage.until_it_answers();
    let classes = |world: &World| world.stage.client().text("GET", "/v1/stats").expect("it answers");
    assert!(classes(&world).contains("a/second"), "{}", classes(&world));

    let reload =
        |world: &World| world.stage.client().text("POST", "/v1/reload").map_err(|error| error.to_string());
    own(
        &world,
        "policy: {root: {wfq: [first, third]}, first: {match: {protocol: udp}}, third: {max: 20Mbps}}\n",
    );
    reload(&world).expect("the file is root's only");
    assert!(classes(&world).contains("a/third"), "{}", classes(&world));

    // Lists nested deeper than a file may have them; and a mistake is reported with its place.
    for (text, says) in [
        ("[".repeat(200_000), "a.yaml"),
        ("policy: {root: {wfq: [first]}, first: {max: 90Gbps, min: 91Gbps}}\n".to_owned(), "first"),
    ] {
        own(&world, &text);
        let refused = reload(&world).expect_err("it is wrong");
        assert!(refused.contains(says) && refused.contains("a.yaml"), "{refused}");
    }
    assert!(classes(&world).contains("a/third"), "the policy is as it was");
    let broker = status(&process(world.broker()));
    assert_eq!(
        ["NoNewPrivs", "Seccomp", "Threads"].map(broker),
        ["1", "2", "1"],
        "it lives, and no child is left"
    );
    let log = world.stage.read("log");
    assert!(!log.contains("is refused by the filter") && !log.contains("has ended"), "{log}");
}

/// Whether the engine's process may pin the frames of an AF_XDP port that comes later: on some machines root may not.
fn may_pin() -> bool {
    let limits = fs::read_to_string("/proc/self/limits").expect("limits");
    let unlimited =
        limits.lines().any(|row| row.starts_with("Max locked memory") && row.contains("unlimited"));
    let [_, _, effective, ..] = sets(&status(Path::new("/proc/self")));
    unlimited || effective & 1 << 24 != 0
}

#[test]
fn each_kind_of_port_is_handed_over_and_taken_back() {
    let Some(mut world) = World::new("prk") else { return };
    let host = world.stage.netns("world");
    for (near, far) in [("up0", "up1"), ("pk0", "pk1"), ("xd0", "xd1")] {
        ip(&["-n", &host, "link", "add", near, "type", "veth", "peer", "name", far]);
        [near, far].iter().for_each(|name| ip(&["-n", &host, "link", "set", name, "up"]));
    }
    let file = |name: &str| world.stage.file(name).display().to_string();
    let policy = format!(
        "uplink: {{port: {{af_xdp: up0}}, rate: 100Mbps}}\napi: {{socket: {}}}\ntenants:\n  \
         packet: {{port: {{af_packet: pk0}}}}\n  vm: {{port: {{vhost_user: {}}}}}\n  client: {{port: {{vnic: {}}}}}\n  \
         file: {{port: {{pcap: {{write: {}}}}}}}\n",
        file("api.sock"),
        file("vm.sock"),
        file("vnic.sock"),
        file("out.pcapng")
    );
    fs::write(world.stage.file("policy.yaml"), &policy).expect("written");
    let log = world.stage.file("log");
    let options = ["--record".to_owned(), file("trace")];
    world.daemon = Some(Daemon::start(Some(&host), &world.stage.file("policy.yaml"), &options, &log));
    world.stage.until_it_answers();
    assert!(world.health().contains("\"lost_ports\":[]"), "{}: {}", world.health(), world.stage.read("log"));
    for socket in ["vm.sock", "vnic.sock", "api.sock"] {
        let mode = fs::metadata(world.stage.file(socket)).expect("it listens").permissions().mode();
        assert_eq!(mode & 0o777, 0o660, "{socket}");
    }
    let other = policy.replace("client", "other").replace("vnic.sock", "other.sock");
    let pins = may_pin();
    let other = if pins { other + "  xdp: {port: {af_xdp: xd0}}\n" } else { other };
    fs::write(world.stage.file("policy.yaml"), other).expect("written");
    let reloaded = world.stage.client().text("POST", "/v1/reload").expect("reloaded");
    assert!(reloaded.contains("other") && (!pins || reloaded.contains("xdp")), "{reloaded}");
    world.stage.eventually("the old socket is gone", || !world.stage.file("vnic.sock").exists());
    assert!(world.stage.file("other.sock").exists(), "the new one is there");
    if pins {
        ip(&["-n", &host, "link", "del", "xd0"]);
        world.stage.eventually("it is missed", || world.health().contains("\"lost_ports\":[\"xdp\"]"));
        ip(&["-n", &host, "link", "add", "xd0", "type", "veth", "peer", "name", "xd1"]);
        world.stage.eventually("it is opened again", || world.health().contains("\"lost_ports\":[]"));
    }
    let ended = world.daemon.as_mut().expect("it runs").end(Signal::SIGTERM).expect("in time");
    assert_eq!(ended.0, Some(0), "{}", world.stage.read("log"));
    let log = world.stage.read("log");
    assert!(log.contains("seccomp on") && !log.contains("is refused by the filter"), "{log}");
    for left in ["vm.sock", "other.sock", "api.sock", "api.lock"] {
        assert!(!world.stage.file(left).exists(), "{left}");
    }
}

#[test]
fn the_broker_ends_with_the_engine_and_not_the_engine_with_the_broker() {
    let Some(mut world) = World::new("pre") else { return };
    world.start(&["a", "b"], &[]);
    world.address("a", 1);
    world.address("b", 2);
    let broker = world.broker();
    let signal = |id: u32, signal| kill(Pid::from_raw(id.cast_signed()), signal).expect("it runs");
    // A service manager or a terminal signals all processes of a service.
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|told| signal(broker, told));
    world.reload(&["a"]).expect("it goes on");
    world.reload(&["a", "b"]).expect("it goes on");
    world.address("b", 2);
    signal(broker, Signal::SIGKILL);
    world.stage.eventually("its end is told", || world.health().contains("\"broker_ended\":true"));
    assert!(world.health().contains("\"degraded\""), "{}", world.health());
    world.pings("traffic goes on");
    let refused = world.reload(&["a"]).expect_err("no process reads the file");
    assert!(refused.contains("the broker") && refused.contains("restart the daemon"), "{refused}");
    assert!(!refused.contains("is wrong"), "nobody knows whether the policy is: {refused}");
    assert!(world.stage.read("log").contains("the broker has ended"), "{}", world.stage.read("log"));
    let ended = world.daemon.take().expect("it runs").end(Signal::SIGTERM).expect("in time");
    assert_eq!(ended.0, Some(0));

    world.start(&["a", "b"], &[]);
    let (engine, broker) = (world.engine(), world.broker());
    signal(engine, Signal::SIGKILL);
    world.stage.eventually("the broker ends with it", || !is_alive(broker));
}

#[test]
fn without_a_sandbox_all_is_as_it_was_and_said_loudly() {
    let Some(mut world) = World::new("prn") else { return };
    world.start(&["a"], &["--no-sandbox"]);
    let engine = status(&process(world.engine()));
    assert_eq!(engine("Uid"), "0 0 0 0");
    assert_eq!(engine("Seccomp"), "0");
    let log = world.stage.read("log");
    assert!(log.contains("WARNING: no sandbox"), "{log}");
    world.reload(&["a", "b"]).expect("reloaded");
}

#[test]
fn a_user_that_is_not_there_ends_the_start_with_a_way_out() {
    let Some(world) = World::new("pru") else { return };
    world.state(&["a"]);
    let done = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["run", "--user", "no-such-user"])
        .arg(world.stage.file("policy.yaml"))
        .output()
        .expect("ran");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(said.contains("useradd --system no-such-user"), "{said}");
    assert!(!world.stage.file("api.sock").exists(), "nothing is left of it");
}

/// Runs the daemon by the command `before`, in a folder and with a copy of the program that every user may read; returns a
/// health answer.
fn started_by(stage: &Stage, before: &[&str], port: &str) -> (Daemon, String) {
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(stage.file(""), open.clone()).expect("open");
    let program = stage.file("plimsoll");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &program).expect("copied");
    fs::set_permissions(&program, open).expect("open");
    let policy = format!(
        "uplink: {{port: {{tap: {{name: up}}}}, rate: 100Mbps}}\napi: {{socket: {}}}\ntenants: {{a: {{port: {port}}}}}\n",
        stage.file("api.sock").display()
    );
    fs::write(stage.file("policy.yaml"), policy).expect("written");
    let mut command = Command::new(before[0]);
    command.args(&before[1..]).arg(&program).arg("run").arg(stage.file("policy.yaml"));
    let daemon = Daemon::spawn(command, &stage.file("log"));
    stage.until_it_answers();
    (daemon, stage.client().text("GET", "/v1/health").expect("it answers"))
}

#[test]
fn an_ordinary_user_with_ambient_capabilities_is_served_as_well() {
    let Some(stage) = Stage::new("pra") else { return };
    stage.add_netns("a");
    let caps = "--ambient-caps=+net_admin,+net_raw,+sys_admin,+dac_override";
    let inherited = "--inh-caps=+net_admin,+net_raw,+sys_admin,+dac_override";
    let netns = stage.netns("a");
    let before = [
        "ip",
        "netns",
        "exec",
        &netns,
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        inherited,
        caps,
    ];
    let (daemon, health) = started_by(&stage, &before, "{tap: {name: eth0}}");
    assert!(health.contains("\"status\":\"ok\""), "{health}: {}", stage.read("log"));
    let engine = status(&process(daemon.id()));
    assert_eq!(engine("Uid"), "65534 65534 65534 65534");
    assert_eq!(sets(&engine).map(|set| set & BROKERS)[..3], [0; 3]);
    assert_eq!((engine("NoNewPrivs").as_str(), engine("Seccomp").as_str()), ("1", "2"));
    stage.client().text("POST", "/v1/reload").expect("reloaded");
}

#[test]
fn a_user_namespace_with_one_user_in_it_is_served_as_well() {
    let Some(stage) = Stage::new("prs") else { return };
    let unshare = ["unshare", "--user", "--map-root-user", "--net"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|done| done.success()) {
        return skip("no user namespaces here");
    }
    let (daemon, health) = started_by(&stage, &unshare, "{tap: {name: eth0}}");
    assert!(health.contains("\"status\":\"ok\""), "{health}: {}", stage.read("log"));
    let engine = status(&process(daemon.id()));
    assert_eq!(sets(&engine), [0; 5]);
    assert_eq!((engine("NoNewPrivs").as_str(), engine("Seccomp").as_str()), ("1", "2"));
    assert!(stage.read("log").contains("may not become another user here"), "{}", stage.read("log"));
}
