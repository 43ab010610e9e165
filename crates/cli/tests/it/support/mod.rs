//! Shared by the live tests: namespaces and a folder of a test's own, daemons in them, and TCP between them.
//!
//! Needs root (network namespaces). Everything made here is removed, whatever happens.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod fleet;
pub mod folder;
pub mod manager;
pub mod programs;
pub mod traffic;

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use nix::unistd::Pid;
use plimsoll_daemon::Client;

/// The longest time that a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Attempts of a measurement: a machine that stalls once must not fail a test, but a failure each time must.
pub const TRIES: u32 = 3;

/// Says why a test does nothing. Where `PLIMSOLL_REQUIRE_LIVE=1` asks for all of them, that is a failure: the
/// output of a passing test is not shown.
pub fn skip(why: &str) {
    assert!(std::env::var_os("PLIMSOLL_REQUIRE_LIVE").is_none_or(|value| value != "1"), "skipped: {why}");
    eprintln!("skipped: {why}");
}

/// A test's own names, folder and namespaces.
pub struct Stage {
    /// The prefix of every name.
    pub tag: String,
    folder: PathBuf,
    namespaces: Mutex<Vec<String>>,
}

impl Stage {
    /// `None` without root. `tag` keeps tests apart that run at once: at most four letters.
    pub fn new(tag: &str) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            skip("this test makes network namespaces, which takes root");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("plimsoll-{tag}-{}", std::process::id()));
        let tag = format!("{tag}{}", std::process::id() % 10_000);
        fs::create_dir_all(&folder).expect("a folder");
        Some(Self { tag, folder, namespaces: Mutex::default() })
    }

    /// A stage with these namespaces; `None` without root.
    pub fn with_netns(tag: &str, names: &[&str]) -> Option<Self> {
        let stage = Self::new(tag)?;
        names.iter().for_each(|name| stage.add_netns(name));
        Some(stage)
    }

    /// Asks the daemon whose API socket is `api.sock` on this stage.
    pub fn client(&self) -> Client {
        Client::new(&self.file("api.sock"))
    }

    /// Waits until something holds; where it does not in time, fails with the file `log`.
    pub fn eventually(&self, what: &str, holds: impl FnMut() -> bool) {
        eventually(what, PATIENCE, || self.read("log"), holds);
    }

    /// Waits until the daemon answers.
    pub fn until_it_answers(&self) {
        self.eventually("the daemon answers", || self.client().text("GET", "/v1/health").is_ok());
    }

    /// The name of a namespace outside of the test; for an empty name, the test's only one.
    pub fn netns(&self, name: &str) -> String {
        if name.is_empty() { self.tag.clone() } else { format!("{}-{name}", self.tag) }
    }

    /// Makes a namespace.
    pub fn add_netns(&self, name: &str) {
        let netns = self.netns(name);
        ip(&["netns", "add", &netns]);
        ip(&["-n", &netns, "link", "set", "lo", "up"]);
        self.namespaces.lock().expect("no panic beside").push(netns);
    }

    /// A file's place.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The file's text; empty where there is no file.
    pub fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.file(name)).unwrap_or_default()).into_owned()
    }

    /// Runs `job` on a thread inside a namespace.
    pub fn inside<T: Send + 'static>(
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

    /// Runs a command inside a namespace.
    pub fn command(&self, name: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.netns(name), program]);
        command
    }

    /// Sends one ping of `bytes` bytes that must not be fragmented; returns whether it was answered.
    pub fn ping(&self, from: &str, to: Ipv4Addr, bytes: u32) -> bool {
        let (to, bytes) = (to.to_string(), bytes.to_string());
        let mut command = self.command(from, "ping");
        command.args(["-M", "do", "-c", "1", "-W", "1", "-s", &bytes, &to]);
        command.output().is_ok_and(|done| done.status.success())
    }

    /// Sends `bytes` over TCP from a namespace to `at` in another, and checks what arrives. Returns the time that it took.
    pub fn transfer(&self, from: &str, to: &str, at: Ipv4Addr, bytes: usize) -> Duration {
        self.transfer_by(None, (from, to), at, bytes)
    }

    /// Like [`Stage::transfer`], with this congestion control in place of the kernel's default.
    pub fn transfer_by(
        &self,
        control: Option<&str>,
        (from, to): (&str, &str),
        at: Ipv4Addr,
        bytes: usize,
    ) -> Duration {
        let control = control.map(OsString::from);
        let at = SocketAddrV4::new(at, 7_000);
        let listener = self.inside(to, move || TcpListener::bind(at).expect("bound"));
        let listener = listener.join().expect("listening");
        let receiver = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("all of it");
            all
        });
        let sender = self.inside(from, move || {
            let started = Instant::now();
            let mut stream = TcpStream::connect(at).expect("connected");
            if let Some(control) = control {
                setsockopt(&stream, TcpCongestion, &control).expect("the kernel has it");
            }
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
}

impl Drop for Stage {
    fn drop(&mut self) {
        for netns in self.namespaces.lock().expect("no panic beside").drain(..) {
            let _ = Command::new("ip").args(["netns", "del", &netns]).output();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A `plimsoll run`, which ends when this is dropped.
pub struct Daemon(Child);

impl Daemon {
    /// Starts it in a namespace with the stage's `policy.yaml`, in which AF_XDP may be used; `None` where BPF is not allowed.
    pub fn start_if_bpf(stage: &Stage, netns: &str) -> Option<Self> {
        let daemon = Self::start(Some(netns), &stage.file("policy.yaml"), &[], &stage.file("log"));
        let answers = || stage.client().text("GET", "/v1/health").is_ok();
        stage.eventually("the daemon answers or may not load BPF", || {
            answers() || stage.read("log").contains("permission denied")
        });
        if answers() {
            return Some(daemon);
        }
        skip("AF_XDP is not allowed here");
        None
    }

    /// Starts it, in a namespace if one is named, with its output going into a file.
    pub fn start(netns: Option<&str>, policy: &Path, options: &[String], log: &Path) -> Self {
        Self::start_with(netns, policy, options, log, &[])
    }

    /// Starts it with these variables in its environment.
    pub fn start_with(
        netns: Option<&str>,
        policy: &Path,
        options: &[String],
        log: &Path,
        env: &[(&str, &Path)],
    ) -> Self {
        let program = env!("CARGO_BIN_EXE_plimsoll");
        let mut command = match netns {
            Some(netns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", netns, program]);
                command
            }
            None => Command::new(program),
        };
        command.arg("run").arg(policy).args(options).envs(env.iter().copied());
        Self::spawn(command, log)
    }

    /// Starts it by this command, with its output going into a file as well.
    pub fn spawn(mut command: Command, log: &Path) -> Self {
        let log = fs::File::create(log).expect("a log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self(command.spawn().expect("started"))
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends it a signal, and waits until it has ended; returns its exit code and the time that it took. `None` if it did not
    /// end.
    pub fn end(&mut self, signal: Signal) -> Option<(Option<i32>, Duration)> {
        let started = Instant::now();
        let id = Pid::from_raw(i32::try_from(self.0.id()).expect("a process id"));
        kill(id, signal).expect("it runs");
        while started.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some((status.code(), started.elapsed()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs `ip`, which must not fail.
pub fn ip(args: &[&str]) {
    let done = Command::new("ip").args(args).output().expect("ip is installed");
    assert!(done.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Waits until a condition holds; fails with the text of `said` if it does not in time.
pub fn eventually(
    what: &str,
    patience: Duration,
    said: impl Fn() -> String,
    mut holds: impl FnMut() -> bool,
) {
    let end = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {patience:?}; the daemons said\n{}", said());
        thread::sleep(Duration::from_millis(20));
    }
}
