//! `plimsoll run` with virtual machines: DPDK's virtio-user, or Linux in QEMU, as the guest; the kernel behind a TAP as the
//! wire.
//!
//! Needs root (network namespaces), `dpdk-testpmd` and QEMU, and says so when it has to skip. Everything made here is removed,
//! whatever happens.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use plimsoll_daemon::{Client, Stats};

const PATIENCE: Duration = Duration::from_secs(90);
const MAC: &str = "02:00:00:00:00:77";

/// Says why a test does nothing. Where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure: what a
/// passing test says is shown to nobody.
fn skip(why: &str) {
    assert!(std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}

/// A namespace behind the uplink, a daemon, and guests.
struct World {
    tag: String,
    folder: PathBuf,
    /// When the guest gets its descriptors back.
    completions: &'static str,
    daemon: Option<Child>,
    guest: Option<Child>,
}

impl World {
    /// `None` without what it takes. `tag` keeps tests apart that run at once: at most four letters.
    fn new(tag: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skip("this test makes network namespaces, which takes root");
            return None;
        }
        for program in ["dpdk-testpmd", "qemu-system-x86_64", "busybox"] {
            let there =
                Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if there.is_err() {
                skip(&format!("{program} is missing; scripts/setup.sh test installs it"));
                return None;
            }
        }
        let tag = format!("{tag}{}", std::process::id() % 10_000);
        let folder = std::env::temp_dir().join(format!("plimsoll-{tag}"));
        fs::create_dir_all(&folder).expect("a folder");
        let world = Self { tag, folder, completions: "ooo", daemon: None, guest: None };
        world.ip(&["netns", "add", &world.tag]);
        Some(world)
    }

    fn ip(&self, args: &[&str]) {
        let done = Command::new("ip").args(args).output().expect("ip is installed");
        assert!(done.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// A command in the namespace behind the uplink.
    fn outside(&self, program: &str, args: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.tag, program]).args(args);
        command.output().expect("ip is installed")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    fn start(&mut self, rate: &str, rest: &str) {
        let policy = format!(
            "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: {rate}}}\n\
             api: {{socket: {}}}\n\
             tenants: {{vm: {{port: {{vhost_user: {{socket: {}, completions: {}}}}}}}}}\n{rest}",
            self.tag,
            self.file("api.sock").display(),
            self.file("vm.sock").display(),
            self.completions,
        );
        fs::write(self.file("plimsoll.yaml"), policy).expect("written");
        let log = fs::File::create(self.file("log")).expect("a log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .arg("run")
            .arg(self.file("plimsoll.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.daemon = Some(command.spawn().expect("started"));
        let client = self.client();
        self.eventually("the daemon answers", || client.text("GET", "/v1/health").is_ok());
        self.ip(&["-n", &self.tag, "address", "add", "10.9.0.9/24", "dev", "up0"]);
    }

    fn client(&self) -> Client {
        Client::new(&self.file("api.sock"))
    }

    fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            let (log, guest) = (self.read("log"), self.read("guest"));
            assert!(
                Instant::now() < end,
                "{what}: not within {PATIENCE:?}; the daemon said\n{log}the guest\n{guest}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A guest that answers ARP and ping, with `device` added to its virtio-user device.
    fn guest(&mut self, device: &str, rest: &[&str]) {
        let log = fs::File::create(self.file("guest")).expect("a log");
        let socket = self.file("vm.sock").display().to_string();
        let mut command = Command::new("dpdk-testpmd");
        command
            .args(["--no-huge", "-m", "64", "--no-pci", "--lcores=0@0,1@0", "--file-prefix", &self.tag])
            .arg(format!("--vdev=net_virtio_user0,path={socket},mac={MAC},{device}"))
            .args(["--", "-i", "--total-num-mbufs=2048", "--auto-start"])
            .args(rest)
            // It ends when its standard input does, and so with this process.
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log);
        self.guest = Some(command.spawn().expect("started"));
    }

    /// Linux in QEMU, with a shell that [`World::type_in`] reaches; false where there is nothing to boot.
    fn boot(&mut self) -> bool {
        let images = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guest");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/guest.sh");
        let made = Command::new(script).arg(&images).output().expect("a shell");
        if !made.status.success() {
            skip(&format!("no guest to boot: {}", String::from_utf8_lossy(&made.stderr)));
            return false;
        }
        let log = fs::File::create(self.file("guest")).expect("a log");
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args([
                "-accel",
                "tcg",
                "-m",
                "256M",
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-serial",
                "stdio",
            ])
            .arg("-kernel")
            .arg(images.join("vmlinuz"))
            .arg("-initrd")
            .arg(images.join("initrd"))
            .args(["-append", "console=ttyS0 quiet mitigations=off"])
            .args(["-object", "memory-backend-memfd,id=mem,size=256M,share=on", "-numa", "node,memdev=mem"])
            .arg("-chardev")
            .arg(format!("socket,id=net0,path={},reconnect=1", self.file("vm.sock").display()))
            .args(["-netdev", "vhost-user,id=net0,chardev=net0"])
            .args(["-device", &format!("virtio-net-pci,netdev=net0,vectors=0,mac={MAC}")])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log);
        self.guest = Some(command.spawn().expect("started"));
        self.configure(1);
        true
    }

    /// Waits until the guest has come up so many times, and gives it an address.
    fn configure(&mut self, times: usize) {
        self.eventually("the guest boots", || self.read("guest").matches("guest is up").count() >= times);
        self.type_in("ip address add 10.9.0.1/24 dev eth0; ip link set eth0 up");
        self.eventually("the guest answers", || self.answers());
    }

    fn type_in(&mut self, line: &str) {
        let stdin = self.guest.as_mut().and_then(|guest| guest.stdin.as_mut()).expect("a guest");
        writeln!(stdin, "{line}").expect("it reads");
    }

    fn end_daemon(&mut self, signal: Signal) {
        if let Some(mut daemon) = self.daemon.take() {
            let pid = Pid::from_raw(i32::try_from(daemon.id()).expect("a process"));
            kill(pid, signal).expect("it runs");
            daemon.wait().expect("ended");
        }
    }

    /// Ends the daemon while the guest sends more than the uplink takes, so that much is on its way; what it sends goes on
    /// with the next daemon.
    fn restart_under_load(&mut self, signal: Signal) {
        let netns = self.tag.clone();
        let load = thread::spawn(move || {
            let sends = ["netns", "exec", &netns, "iperf3", "-c", "10.9.0.1", "-R", "-t", "6", "-J"];
            Command::new("ip").args(sends).output().expect("ip is installed")
        });
        thread::sleep(Duration::from_secs(2));
        self.end_daemon(signal);
        self.start("500Mbps", "");
        self.eventually("the guest is back", || self.answers());
        let done = load.join().expect("no panic");
        assert!(
            done.status.success(),
            "{signal}: {}{}",
            String::from_utf8_lossy(&done.stdout),
            self.read("log")
        );
        let vm = self.stats().tenants["vm"].clone();
        assert!(vm.rx_bytes > 1_000_000, "it goes on sending: {vm:?}");
    }

    /// Bits a second of a TCP connection of the guest's, as who receives it counts them.
    fn tcp_from_guest(&mut self) -> f64 {
        let netns = self.tag.clone();
        let server = thread::spawn(move || {
            let serves = ["netns", "exec", &netns, "iperf3", "-s", "-1", "-J"];
            Command::new("ip").args(serves).output().expect("ip is installed")
        });
        thread::sleep(Duration::from_millis(500));
        self.type_in("timeout 30 iperf3 -c 10.9.0.9 -t 5 >/dev/null");
        let said = String::from_utf8_lossy(&server.join().expect("no panic").stdout).into_owned();
        let received =
            said.split("\"sum_received\"").nth(1).and_then(|rest| rest.split("\"bits_per_second\":").nth(1));
        let bits =
            received.and_then(|rest| rest.split(',').next()).and_then(|number| number.trim().parse().ok());
        bits.unwrap_or_else(|| panic!("{said}\n{}", self.read("guest")))
    }

    /// Many pings, of which none may be lost.
    fn loses_nothing(&self) {
        let ping = self.outside("ping", &["-c", "50", "-i", "0.01", "-s", "1000", "-W", "10", "10.9.0.1"]);
        let said = String::from_utf8_lossy(&ping.stdout);
        assert!(said.contains(" 0% packet loss"), "{said}\n{}{}", self.read("log"), self.read("guest"));
    }

    fn end_guest(&mut self) {
        if let Some(mut guest) = self.guest.take() {
            let _ = guest.kill();
            let _ = guest.wait();
        }
    }

    fn answers(&self) -> bool {
        self.outside("ping", &["-c", "1", "-W", "1", "10.9.0.1"]).status.success()
    }

    fn stats(&self) -> Stats {
        self.client().get("/v1/stats").expect("statistics")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end_guest();
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = Command::new("ip").args(["netns", "del", &self.tag]).output();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_guest_on_virtio_user_is_reached_and_answers() {
    let Some(mut world) = World::new("vhe") else { return };
    world.start("10Gbps", "");
    world.guest("queues=1,queue_size=256", &["--forward-mode=icmpecho"]);
    world.eventually("the guest answers", || world.answers());
    world.loses_nothing();
    let stats = world.stats();
    let vm = &stats.tenants["vm"];
    assert!(vm.rx_packets >= 51 && vm.tx_packets >= 51, "{vm:?}");
    assert!(vm.drops.is_empty(), "{vm:?}");
}

#[test]
fn linux_in_qemu_outlives_the_daemon_and_the_port_outlives_linux() {
    let Some(mut world) = World::new("vhq") else { return };
    world.start("500Mbps", "");
    if !world.boot() {
        return;
    }
    world.loses_nothing();
    world.type_in("iperf3 -s -D");
    world.eventually("the guest serves", || {
        world.outside("iperf3", &["-c", "10.9.0.1", "-n", "1M"]).status.success()
    });
    for direction in [&["-c", "10.9.0.1", "-n", "30M"][..], &["-c", "10.9.0.1", "-n", "30M", "-R"]] {
        // A server of iperf3 turns clients away while it is at the one before.
        world.eventually("thirty megabytes", || world.outside("iperf3", direction).status.success());
    }
    let stats = world.stats();
    let vm = &stats.tenants["vm"];
    assert!(
        vm.rx_bytes > 20_000_000 && vm.rx_bytes / vm.rx_packets > 2_000,
        "segments from the guest: {vm:?}"
    );
    assert!(
        vm.tx_bytes > 20_000_000 && vm.tx_bytes / vm.tx_packets > 2_000,
        "segments for the guest: {vm:?}"
    );

    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        world.restart_under_load(signal);
        world.loses_nothing();
    }
    assert!(
        !world.read("guest").contains("is not a head"),
        "no descriptor came back twice: {}",
        world.read("guest")
    );
    world.type_in("reboot -f");
    world.configure(2);
    world.loses_nothing();
}

/// PicNIC's Table 4, in a Linux guest with its sockets and NAPI: UDP that is held to 0.1 Mbit/s, and TCP beside it. What TCP
/// gets alone and beside it, and what was lost of the guest's.
fn tcp_beside_slow_udp(tag: &str, completions: &'static str) -> Option<(f64, f64, u64)> {
    let mut world = World::new(tag)?;
    world.completions = completions;
    // Far less than the guest's emulated processor manages, also beside other tests.
    world.start(
        "20Mbps",
        "limits: {slow: {match: {dst_port: 5202}, rate: 100kbps, burst: 3KB}}\n\
         policy: {root: {wfq: {vm: 1}, via: [slow]}}\n",
    );
    if !world.boot() {
        return None;
    }
    let alone = world.tcp_from_guest();
    let netns = world.tag.clone();
    let server = thread::spawn(move || {
        let serves = ["netns", "exec", &netns, "timeout", "40", "iperf3", "-s", "-1", "-p", "5202"];
        Command::new("ip").args(serves).output().expect("ip is installed")
    });
    thread::sleep(Duration::from_millis(500));
    world.type_in("timeout 25 iperf3 -u -c 10.9.0.9 -p 5202 -b 20M -t 20 >/dev/null 2>&1 &");
    world.eventually("the slow flow is there", || world.stats().limits["slow"].packets > 20);
    let beside = world.tcp_from_guest();
    let stats = world.stats();
    let lost = stats.tenants["vm"].drops.values().sum();
    eprintln!(
        "{completions}: TCP {:.1} Mbit/s alone, {:.1} beside slow UDP; {:?}",
        alone / 1e6,
        beside / 1e6,
        stats.tenants["vm"]
    );
    world.end_guest();
    let _ = server.join();
    Some((alone, beside, lost))
}

#[test]
fn in_a_linux_guest_a_slow_flow_holds_up_no_other_and_loses_nothing() {
    let Some((alone, beside, lost)) = tcp_beside_slow_udp("vho", "ooo") else { return };
    assert!(beside > 0.8 * alone, "{beside} of {alone}");
    assert_eq!(lost, 0);
}

#[test]
fn in_a_linux_guest_with_completions_in_order_it_holds_up_all() {
    let Some((alone, beside, _)) = tcp_beside_slow_udp("vhi", "in_order") else { return };
    assert!(beside < 0.7 * alone, "{beside} of {alone}");
}
