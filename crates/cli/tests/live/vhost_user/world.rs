//! A namespace behind the uplink, a daemon, and a guest.
//!
//! A shell runs on the guest's first serial port: commands are typed in, and its output is in a file.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{MutexGuard, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use plimsoll_daemon::{Client, Stats};

use crate::support::{self, Daemon, Stage, ip, skip};

const PATIENCE: Duration = Duration::from_secs(90);
const MAC: &str = "02:00:00:00:00:77";
/// The message of the guest's first process.
const UP: &str = "guest is up";
/// The longest time that a guest takes to boot with KVM; a tenth of it is usual.
const BOOT: Duration = Duration::from_secs(10);

/// A namespace behind the uplink, a daemon, and guests.
pub struct World {
    /// When the guest's descriptors complete.
    pub completions: &'static str,
    daemon: Option<Daemon>,
    /// The other host's.
    there: Option<Daemon>,
    /// The file with the output of the guest's shell.
    shell: &'static str,
    guest: Option<Child>,
    /// Lines that the guest's shell was told to answer.
    told: usize,
    /// The namespaces, which are removed last.
    stage: Stage,
    _alone: MutexGuard<'static, ()>,
}

/// The guest to boot.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Processors, and pairs of rings.
    pub pairs: u8,
    /// Whether its sockets learn when packets have left.
    pub napi: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self { pairs: 1, napi: true }
    }
}

impl World {
    /// `None` without root or the programs that it needs. `tag` keeps tests apart that run at once: at most four letters.
    pub fn new(tag: &str) -> Option<Self> {
        let alone = crate::alone();
        let stage = Stage::new(tag)?;
        for program in ["dpdk-testpmd", "qemu-system-x86_64", "busybox"] {
            let there =
                Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if there.is_err() {
                skip(&format!("{program} is missing; scripts/setup.sh test installs it"));
                return None;
            }
        }
        stage.add_netns("");
        Some(Self {
            completions: "ooo",
            daemon: None,
            there: None,
            shell: "guest",
            guest: None,
            told: 0,
            stage,
            _alone: alone,
        })
    }

    /// A command in the namespace behind the uplink.
    pub fn outside(&self, program: &str, args: &[&str]) -> Output {
        self.stage.command("", program).args(args).output().expect("ip is installed")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.stage.file(name)
    }

    pub fn read(&self, name: &str) -> String {
        self.stage.read(name)
    }

    /// Starts the daemon, in whose policy `rest` stands beside the uplink and the guest. 10.9.0.8 and 10.9.0.9 are behind the
    /// uplink.
    pub fn start(&mut self, rate: &str, rest: &str) {
        let policy = self.policy("up0", "api.sock", "vm.sock", rate, rest);
        fs::write(self.file("plimsoll.yaml"), policy).expect("written");
        self.daemon = Some(Daemon::start(None, &self.file("plimsoll.yaml"), &[], &self.file("log")));
        let client = self.client();
        self.eventually("the daemon answers", || client.text("GET", "/v1/health").is_ok());
        for address in ["10.9.0.9/24", "10.9.0.8/24"] {
            ip(&["-n", &self.stage.netns(""), "address", "add", address, "dev", "up0"]);
        }
    }

    fn policy(&self, uplink: &str, api: &str, socket: &str, rate: &str, rest: &str) -> String {
        format!(
            "uplink: {{port: {{tap: {{netns: {}, name: {uplink}}}}}, rate: {rate}}}\n\
             api: {{socket: {}}}\n\
             tenants: {{vm: {{port: {{vhost_user: {{socket: {}, completions: {}}}}}}}}}\n{rest}",
            self.stage.netns(""),
            self.file(api).display(),
            self.file(socket).display(),
            self.completions,
        )
    }

    fn client(&self) -> Client {
        Client::new(&self.file("api.sock"))
    }

    pub fn eventually(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let said = || format!("{}the guest\n{}", self.read("log"), self.read(self.shell));
        support::eventually(what, PATIENCE, said, || {
            assert!(!self.read(self.shell).contains("BUG"), "the guest's kernel is broken: {}", said());
            holds()
        });
    }

    /// A guest that answers ARP and ping, with `device` added to its virtio-user device.
    pub fn guest(&mut self, device: &str, rest: &[&str]) {
        let log = fs::File::create(self.file("guest")).expect("a log");
        let socket = self.file("vm.sock").display().to_string();
        let mut command = Command::new("dpdk-testpmd");
        command
            .args(["--no-huge", "-m", "64", "--no-pci", "--lcores=0@0,1@0", "--file-prefix", &self.stage.tag])
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
    pub fn boot(&mut self, machine: Machine) -> bool {
        let images = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/guest.sh");
        let made = Command::new(script).arg(&images).output().expect("a shell");
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr);
            skip(&format!("no guest to boot; `make guest` fetches it, which takes a network: {said}"));
            return false;
        }
        let command = self.machine(&images, machine, "vm.sock");
        self.guest = Some(self.launch(command, "guest"));
        self.configure(1);
        true
    }

    /// QEMU with this machine, whose network card is behind a socket of a daemon's.
    fn machine(&self, images: &Path, Machine { pairs, napi }: Machine, socket: &str) -> Command {
        let napi = if napi { "" } else { "virtio_net.napi_tx=0" };
        let several = if pairs > 1 { ",mq=on" } else { "" };
        let mut command = qemu(images, accelerator(images), napi);
        command
            .args(["-smp", &pairs.to_string()])
            .args(["-object", "memory-backend-memfd,id=mem,size=256M,share=on", "-numa", "node,memdev=mem"])
            .arg("-chardev")
            .arg(format!("socket,id=net0,path={},reconnect=1", self.file(socket).display()))
            .args(["-netdev", &format!("vhost-user,id=net0,chardev=net0,queues={pairs}")])
            .args(["-device", &format!("virtio-net-pci,netdev=net0,vectors=0,mac={MAC}{several}")])
            .arg("-monitor")
            .arg(format!("unix:{}.monitor,server,nowait", self.file(socket).display()));
        command
    }

    /// Starts a machine, whose output is in a file.
    fn launch(&self, mut command: Command, log: &str) -> Child {
        let log = fs::File::create(self.file(log)).expect("a log");
        let output = log.try_clone().expect("a descriptor");
        command.stdin(Stdio::piped()).stdout(output).stderr(log).spawn().expect("started")
    }

    /// Puts the uplink behind a bridge, where another host's is as well: a daemon of its own, and a machine that waits for a guest.
    pub fn add_host(&mut self, rate: &str) {
        let netns = self.stage.netns("");
        // Stated, as the address has been used behind this host's uplink before the guest comes here.
        let mac = format!("mac: \"{MAC}\", completions");
        let policy = self.policy("up1", "there.api", "there.sock", rate, "").replace("completions", &mac);
        fs::write(self.file("there.yaml"), policy).expect("written");
        self.there = Some(Daemon::start(None, &self.file("there.yaml"), &[], &self.file("there.log")));
        let client = Client::new(&self.file("there.api"));
        self.eventually("the other daemon answers", || client.text("GET", "/v1/health").is_ok());
        ip(&["-n", &netns, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &netns, "address", "flush", "dev", "up0"]);
        for device in ["up0", "up1"] {
            ip(&["-n", &netns, "link", "set", device, "master", "br0", "up"]);
        }
        ip(&["-n", &netns, "address", "add", "10.9.0.9/24", "dev", "br0"]);
        ip(&["-n", &netns, "link", "set", "br0", "up"]);
        self.eventually("the guest answers over the bridge", || self.answers());
    }

    /// Moves the guest to the other host, while it runs.
    pub fn move_guest(&mut self) {
        let images = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest");
        let way = format!("unix:{}", self.file("way").display());
        let mut command = self.machine(&images, Machine::default(), "there.sock");
        command.args(["-incoming", &way]);
        let arrived = self.launch(command, "moved");
        self.eventually("the machine waits", || self.file("way").exists());
        self.tell_monitor(&format!("migrate -d {way}"));
        self.eventually("the guest has moved", || {
            let said = self.tell_monitor("info migrate");
            assert!(!said.contains("Status: failed") && !said.contains("Error"), "{said}");
            said.contains("Migration status: completed")
        });
        self.end_guest();
        self.guest = Some(arrived);
        self.shell = "moved";
    }

    /// Says a line to the monitor of the first host's machine, and returns its answer.
    fn tell_monitor(&self, line: &str) -> String {
        let mut socket = UnixStream::connect(self.file("vm.sock.monitor")).expect("a monitor");
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("set");
        writeln!(socket, "{line}").expect("it reads");
        let mut said = Vec::new();
        // It answers nothing at the end of an answer, so it ends with the first long pause.
        let _ = socket.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Counters of the other host's daemon.
    pub fn stats_there(&self) -> Stats {
        Client::new(&self.file("there.api")).get("/v1/stats").expect("statistics")
    }

    /// Sends bytes to the guest over TCP; returns what `md5sum` says of them.
    pub fn send(&self, bytes: Vec<u8>) -> (String, thread::JoinHandle<()>) {
        let file = self.file("sent");
        fs::write(&file, &bytes).expect("written");
        let sum = Command::new("md5sum").stdin(fs::File::open(&file).expect("there")).output();
        let sum = String::from_utf8(sum.expect("coreutils").stdout).expect("a number");
        let sending = self.stage.inside("", move || {
            let mut stream = TcpStream::connect(("10.9.0.1", 7_000)).expect("connected");
            // 3 MB a second, so that it takes longer than the move.
            for piece in bytes.chunks(30_000) {
                stream.write_all(piece).expect("sent");
                thread::sleep(Duration::from_millis(10));
            }
        });
        (sum, sending)
    }

    /// Waits until the guest has come up `times` times, and gives it an address.
    pub fn configure(&mut self, times: usize) {
        self.eventually("the guest boots", || self.read("guest").matches(UP).count() >= times);
        self.type_in("ip address add 10.9.0.1/24 dev eth0; ip link set eth0 up");
        self.eventually("the guest answers", || self.answers());
    }

    pub fn type_in(&mut self, line: &str) {
        let stdin = self.guest.as_mut().and_then(|guest| guest.stdin.as_mut()).expect("a guest");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// The output of the guest's shell for a line, once it has run.
    pub fn ask(&mut self, line: &str) -> String {
        self.told += 1;
        let (begin, end) = (format!("begin-{}.", self.told), format!("end-{}.", self.told));
        // Quoted in two parts, so that the echo of what is typed is not taken for the answer.
        let quoted = |word: &str| word.replacen('-', "'-'", 1);
        self.type_in(&format!("echo {}; {line}; echo {}", quoted(&begin), quoted(&end)));
        self.eventually(line, || self.read(self.shell).contains(&end));
        let said = self.read(self.shell);
        let answer = said.split_once(&begin).and_then(|(_, rest)| rest.split_once(&end));
        answer.map(|(answer, _)| answer.to_owned()).unwrap_or_default()
    }

    pub fn end_daemon(&mut self, signal: Signal) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.end(signal).expect("ended");
        }
    }

    /// Ends the daemon while the guest sends more than the uplink takes, from each of its `ports`, so that much is on its way;
    /// what it sends goes on with the next daemon.
    pub fn restart_under_load(&mut self, signal: Signal, ports: &[&str]) {
        let loads: Vec<_> = ports.iter().map(|port| self.load(port)).collect();
        let said = self.file("pings");
        let mut pings = self.stage.command("", "timeout");
        let pings = pings.args(["120", "ping", "-D", "-i", "0.01", "10.9.0.1"]).stderr(Stdio::null());
        let pings = pings.stdout(fs::File::create(&said).expect("a file"));
        let pings = Bounded(pings.spawn().expect("ip is installed"));
        thread::sleep(Duration::from_secs(2));
        self.end_daemon(signal);
        // The clock that `ping -D` reads.
        let gone = Duration::from(clock_gettime(ClockId::CLOCK_REALTIME).expect("every kernel has it"));
        let gone = gone.as_secs_f64();
        self.start("500Mbps", "");
        self.eventually("the guest is back", || gap_at(&self.read("pings"), gone).is_some());
        drop(pings);
        let gap = gap_at(&self.read("pings"), gone).expect("it was back");
        eprintln!("{signal}, and started again: {gap:?} without an answer from the guest");
        assert!(gap < PATIENCE, "{gap:?}");
        self.eventually("it goes on sending", || self.stats().tenants["vm"].rx_bytes > 1_000_000);
        for load in loads {
            let done = load.join().expect("no panic");
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success(), "{signal}: {said}{}", self.read("log"));
        }
    }

    /// The guest's server at `port` sends for twelve seconds: the daemon is away for one or two of them, and its TCP waits for
    /// as long again before it tries once more.
    fn load(&self, port: &str) -> thread::JoinHandle<Output> {
        let mut command = self.stage.command("", "iperf3");
        command.args(["-c", "10.9.0.1", "-p", port, "-R", "-t", "12", "-J"]);
        thread::spawn(move || command.output().expect("ip is installed"))
    }

    /// A server behind the uplink for one client; it ends with its client, when the answer is dropped, or after a while.
    pub fn serve(&self, address: &str, port: &str) -> Bounded {
        let mut command = self.stage.command("", "timeout");
        command.args(["90", "iperf3", "-s", "-1", "-J", "-B", address, "-p", port]).stdout(Stdio::piped());
        let server = Bounded(command.spawn().expect("ip is installed"));
        self.eventually("the server listens", || {
            let listens = self.outside("ss", &["-Hltn", "src", &format!("{address}:{port}")]);
            !listens.stdout.is_empty()
        });
        server
    }

    /// Bits a second of a TCP connection of the guest's, as the receiver counts them.
    pub fn tcp_from_guest(&mut self, seconds: u32) -> f64 {
        let server = self.serve("10.9.0.9", "5201");
        self.type_in(&format!("timeout {} iperf3 -c 10.9.0.9 -t {seconds} >/dev/null", seconds + 25));
        let said = server.said();
        let received =
            said.split("\"sum_received\"").nth(1).and_then(|rest| rest.split("\"bits_per_second\":").nth(1));
        let bits =
            received.and_then(|rest| rest.split(',').next()).and_then(|number| number.trim().parse().ok());
        bits.unwrap_or_else(|| panic!("{said}\n{}", self.read("guest")))
    }

    /// Many pings, each of which is answered.
    ///
    /// `-W` would not wait for the last of them: where others were answered, ping gives up after two round trips or one
    /// interval. With `-w` it goes on asking until it has as many answers as it was told, so that a late one is not taken for
    /// a lost one, and a lost one is missing.
    pub fn loses_nothing(&self) {
        let ping = self.outside("ping", &["-c", "50", "-i", "0.01", "-s", "1000", "-w", "10", "10.9.0.1"]);
        let said = String::from_utf8_lossy(&ping.stdout);
        let lost: Vec<_> = (1..=50).filter(|seq| !said.contains(&format!(" icmp_seq={seq} ttl"))).collect();
        let stats = self.client().text("GET", "/v1/stats").unwrap_or_default();
        let state = || format!("{said}\n{stats}\n{}{}", self.read("log"), self.read("guest"));
        assert!(lost.is_empty(), "no answer to {lost:?}\n{}", state());
    }

    pub fn end_guest(&mut self) {
        if let Some(mut guest) = self.guest.take() {
            let _ = guest.kill();
            let _ = guest.wait();
        }
    }

    pub fn answers(&self) -> bool {
        self.outside("ping", &["-c", "1", "-W", "1", "10.9.0.1"]).status.success()
    }

    pub fn stats(&self) -> Stats {
        self.client().get("/v1/stats").expect("statistics")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end_guest();
    }
}

/// The time between the answers before and after a moment, as `ping -D` prints when each came; none while one is missing.
fn gap_at(said: &str, moment: f64) -> Option<Duration> {
    let answers = said.lines().filter(|line| line.contains(" bytes from "));
    let came = answers.filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse::<f64>().ok());
    let (before, after): (Vec<f64>, Vec<f64>) = came.partition(|&at| at <= moment);
    Some(Duration::from_secs_f64(after.first()? - before.last()?))
}

/// A program below a `timeout`.
pub struct Bounded(Child);

impl Bounded {
    /// Its output until it ends.
    fn said(mut self) -> String {
        let mut said = String::new();
        self.0.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        said
    }
}

impl Drop for Bounded {
    /// `timeout` hands on what it can catch: killed, it would leave the server behind.
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let id = Pid::from_raw(i32::try_from(self.0.id()).expect("a process id"));
            let _ = kill(id, Signal::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

/// A machine without devices, with one more argument for its kernel.
fn qemu(images: &Path, accelerator: &str, append: &str) -> Command {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", accelerator, "-m", "256M", "-nodefaults"])
        .args(["-no-user-config", "-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(images.join("vmlinuz"))
        .arg("-initrd")
        .arg(images.join("initrd"))
        .args(["-append", &format!("console=ttyS0 quiet mitigations=off {append}")]);
    command
}

/// KVM where a guest boots with it, which is not everywhere that there is a `/dev/kvm`; else QEMU's emulation.
/// `PLIMSOLL_GUEST_ACCEL` chooses one without a try.
fn accelerator(images: &Path) -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = std::env::var("PLIMSOLL_GUEST_ACCEL");
        let found = found.unwrap_or_else(|_| if boots_with_kvm(images) { "kvm" } else { "tcg" }.to_owned());
        eprintln!("guests' processors are by {found}");
        found
    })
}

fn boots_with_kvm(images: &Path) -> bool {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return false;
    }
    let mut command = qemu(images, "kvm", "");
    let mut guest =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    let said = BufReader::new(guest.stdout.take().expect("piped"));
    let (tell, told) = mpsc::channel();
    let reading = thread::spawn(move || {
        let mut lines = said.split(b'\n').map_while(Result::ok);
        let up = lines.any(|line| String::from_utf8_lossy(&line).contains(UP));
        let _ = tell.send(up); // the receiver is gone after the time is up
    });
    let boots = told.recv_timeout(BOOT).unwrap_or(false);
    guest.kill().expect("it is ours");
    guest.wait().expect("ended");
    reading.join().expect("its output has ended");
    boots
}
