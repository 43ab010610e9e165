//! Three hosts whose tenants and policies are in a real etcd: a tenant moves under traffic; etcd ends, falls silent and comes
//! back; a host ends without a word, and its tenants are placed elsewhere.
//!
//! Needs root and etcd, and says so when it has to skip.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::etcd::Etcd;
use super::support::Daemon;
use super::support::fleet::{Fleet, HOSTS, PLAIN, inner};

/// The tenant that moves, and its port.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 99);
const PORT: u16 = 7_010;
/// Datagrams a second.
const RATE: u64 = 500;

/// Three hosts, their agents and etcd.
struct Site {
    agents: [Option<Daemon>; 3],
    etcd: Etcd,
    fleet: Fleet,
}

impl Site {
    fn new(tag: &str) -> Option<Self> {
        let etcd = Etcd::start(tag, &[])?;
        let site = Self { agents: [None, None, None], etcd, fleet: Fleet::new(tag, &PLAIN)? };
        site.must(&["init", "--network", "tenants=77", "--lease", "2s", "--free-after", "2s"]);
        for (name, index) in HOSTS.iter().zip(1..) {
            let socket = site.fleet.file(&format!("{name}.sock"));
            let template = site.fleet.file(&format!("{name}.template"));
            let text = format!(
                "uplink: {{port: {{af_packet: up0}}, rate: 400Mbps}}\napi: {{socket: {}}}\n",
                socket.display()
            );
            std::fs::write(&template, text).expect("written");
            let _ = std::fs::remove_file(site.fleet.file(&format!("{name}.yaml")));
            let address = format!("192.0.2.{index}");
            site.must(&["join", name, "--address", &address, "--template", &template.display().to_string()]);
        }
        let port = |n: u8| {
            format!("{{tap: {{netns: \"{}\", name: eth0}}}}", site.fleet.netns(&format!("{{host}}{n}")))
        };
        let at = |ip: Ipv4Addr| format!("{ip}/24");
        site.must(&[
            "add",
            "mover",
            "--host",
            "a",
            "--mac",
            "02:00:00:00:00:01",
            "--port",
            &port(1),
            "--address",
            &at(ADDRESS),
            "--min",
            "50Mbps",
        ]);
        site.must(&[
            "add",
            "sender",
            "--host",
            "c",
            "--mac",
            "02:00:00:00:00:02",
            "--port",
            &port(2),
            "--address",
            &at(inner(2, 2)),
        ]);
        Some(site)
    }

    fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.arg("fleet").args(args).args(["--directory", &self.etcd.url("test")]);
        command.output().expect("it runs")
    }

    fn must(&self, args: &[&str]) -> String {
        let done = self.ask(args);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.success(), "{args:?}: {said}\n{}", self.logs());
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    fn launch_agent(&mut self, host: usize) {
        let name = HOSTS[host];
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(["fleet", "agent", "--host", name, "--directory", &self.etcd.url("test"), "--file"]);
        command
            .arg(self.fleet.policy_file(host))
            .arg("--socket")
            .arg(self.fleet.file(&format!("{name}.sock")));
        let log = self.fleet.file(&format!("{name}.agent"));
        self.agents[host] = Some(Daemon::spawn(command, &log));
    }

    /// Ends a host's agent and daemon as a power cut would.
    fn cut(&mut self, host: usize) {
        self.agents[host] = None; // killed
        self.fleet.kill(host);
    }

    fn logs(&self) -> String {
        HOSTS.iter().map(|host| format!("{host}: {}\n", self.fleet.read(&format!("{host}.agent")))).collect()
    }

    fn eventually(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) -> Duration {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}:\n{}", self.logs());
            thread::sleep(Duration::from_millis(20));
        }
        begun.elapsed()
    }

    fn hosts(&self) -> Value {
        let done = self.ask(&["hosts", "--json"]);
        serde_json::from_slice(&done.stdout).unwrap_or_default()
    }

    fn state(&self, host: usize) -> String {
        self.hosts()["hosts"][host]["state"].as_str().unwrap_or_default().to_owned()
    }

    /// How often each agent has said that the directory answers.
    fn answers(&self) -> [usize; 3] {
        HOSTS.map(|host| self.fleet.read(&format!("{host}.agent")).matches("answers").count())
    }

    /// Waits until each agent has heard the directory again since `before`, and all are well.
    fn back(&self, before: [usize; 3]) -> Duration {
        self.eventually("all are heard again", |site| {
            site.answers().iter().zip(before).all(|(now, before)| *now > before) && site.well()
        })
    }

    /// Whether all agents are heard, and have in force what the directory says.
    fn well(&self) -> bool {
        let hosts = self.hosts();
        (0..3).all(|host| {
            let host = &hosts["hosts"][host];
            host["state"] == "alive" && host["agent"]["error"].is_null() && host["agent"]["health"].is_null()
        })
    }
}

/// What has come to a place, by when.
type Came = Arc<Mutex<Vec<Instant>>>;

/// Datagrams from the tenant `sender` to the tenant that moves, whichever host it is at.
struct Stream {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    came: [Came; 2],
}

impl Stream {
    fn new(fleet: &Fleet) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let came = ["a1", "b1"].map(|place| {
            let (came, over) = (Came::default(), Arc::clone(&stop));
            let kept = Arc::clone(&came);
            let _ = fleet.inside(place, move || {
                let socket = UdpSocket::bind(("0.0.0.0", PORT)).expect("bound");
                socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
                while !over.load(Ordering::Relaxed) {
                    if socket.recv(&mut [0; 1_500]).is_ok() {
                        came.lock().expect("no panic beside").push(Instant::now());
                    }
                }
            });
            kept
        });
        let (over, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let _ = fleet.inside("c2", move || {
            let begun = Instant::now();
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bound");
            while !over.load(Ordering::Relaxed) {
                let due = begun.elapsed().as_millis() as u64 * RATE / 1_000;
                while counted.load(Ordering::Relaxed) < due {
                    // A host that is being restarted has no device meanwhile: such a datagram is lost, too.
                    let _ = socket.send_to(&[7; 500], (ADDRESS, PORT));
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { stop, sent, came }
    }

    fn count(&self, place: usize) -> usize {
        self.came[place].lock().expect("no panic beside").len()
    }

    fn last(&self, place: usize) -> Instant {
        *self.came[place].lock().expect("no panic beside").last().expect("some came")
    }

    /// Whether datagrams come to a place now.
    fn flows_to(&self, place: usize) -> bool {
        let before = self.count(place);
        thread::sleep(Duration::from_millis(200));
        self.count(place) > before + 20
    }

    /// Datagrams that were sent and did not come, once those on their way have.
    fn lost(&self) -> i64 {
        self.sent.load(Ordering::Relaxed) as i64 - (self.count(0) + self.count(1)) as i64
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Moves the tenant; returns how long no datagram came, and how many were lost.
fn move_to(site: &Site, stream: &Stream, place: usize) -> (Duration, i64) {
    let (from, before, lost) = (1 - place, stream.count(place), stream.lost());
    site.must(&["move", "mover", HOSTS[place]]);
    site.eventually("it comes to the other host", |_| stream.count(place) > before);
    let first = stream.came[place].lock().expect("no panic beside")[before];
    let gap = first.saturating_duration_since(stream.last(from));
    thread::sleep(Duration::from_millis(300));
    (gap, stream.lost() - lost)
}

/// A policy comes to all hosts, its canary first; its next version, which a running daemon cannot take, goes back.
fn policies_come_and_go_back(site: &Site) {
    let file = site.fleet.file("gold");
    let put = |text: &str| {
        std::fs::write(&file, text).expect("written");
        site.must(&["policy", "put", "gold", &file.display().to_string()])
    };
    let in_force = || (0..3).map(|host| site.hosts()["hosts"][host]["agent"]["applied"]["version"].as_u64());
    put("policy: {root: {priority: [all]}, all: {max: 300Mbps, wfq: [others]}}\n");
    let said = site.must(&["apply", "gold", "--canary", "1", "--bake", "1s"]);
    assert!(said.contains("goes to a first") && said.contains("at all hosts"), "{said}");
    site.eventually("it is in force at all hosts", |_| in_force().all(|version| version == Some(1)));
    let wrong = file.display().to_string();
    std::fs::write(&file, "policy: {root: {priority: [nobody]}}\n").expect("written");
    assert_eq!(
        site.ask(&["policy", "put", "gold", &wrong]).status.code(),
        Some(2),
        "a wrong text is not put"
    );
    put("engine: {ring: 512}\n");
    let done = site.ask(&["apply", "gold", "--canary", "34%", "--bake", "1s"]);
    let why = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        done.status.code() == Some(1) && why.contains("rolled back") && why.contains("engine.ring"),
        "{why}"
    );
    site.eventually("all hosts have what they had", |site| {
        site.well() && in_force().all(|version| version == Some(1))
    });
    let history = site.must(&["history", "gold"]);
    assert!(history.contains("a, b, c") && history.contains("rolled back: host a"), "{history}");
}

#[test]
fn a_fleet_in_etcd_serves_tenants_whatever_becomes_of_it() {
    let _alone = super::alone();
    let Some(mut site) = Site::new("dir") else { return };
    for host in 0..3 {
        site.launch_agent(host);
    }
    site.eventually("the agents write policies", |site| {
        (0..3).all(|host| site.fleet.policy_file(host).exists())
    });
    for host in 0..3 {
        site.fleet.launch(host);
    }
    site.eventually("all hosts have them in force", Site::well);
    let stream = Stream::new(&site.fleet);
    site.eventually("datagrams come to host a", |_| stream.flows_to(0));

    // A tenant moves, with its address, under traffic.
    let (mut gaps, mut lost) = (Vec::new(), Vec::new());
    // A machine that stalls may spoil one measurement.
    for place in [1, 0, 1, 0] {
        let (gap, gone) = move_to(&site, &stream, place);
        eprintln!("moved to host {}: no datagram for {gap:?}, {gone} of {RATE} a second lost", HOSTS[place]);
        gaps.push(gap);
        lost.push(gone);
    }
    gaps.sort_unstable();
    assert!(gaps[0] < Duration::from_secs(1), "{gaps:?}");
    assert!(lost.iter().any(|&lost| lost <= RATE as i64), "{lost:?}");

    policies_come_and_go_back(&site);
    assert!(stream.flows_to(0));

    // Etcd ends: the hosts go on, and say so; commands fail. It starts again: they catch up.
    let (before, answers) = (stream.lost(), site.answers());
    site.etcd.kill();
    site.eventually("each agent says so", |site| {
        HOSTS.iter().all(|host| site.fleet.read(&format!("{host}.agent")).contains("this host goes on with"))
    });
    assert_eq!(site.ask(&["move", "mover", "b"]).status.code(), Some(1));
    assert!(stream.flows_to(0));
    site.etcd.launch();
    let took = site.back(answers);
    eprintln!(
        "etcd killed and started: all hosts heard again after {took:?}; {} datagrams lost",
        stream.lost() - before
    );
    assert!(stream.lost() - before < 50);

    // Etcd falls silent for longer than leases hold: no tenant is taken from its host.
    let (before, answers) = (stream.lost(), site.answers());
    // `make fleet` has it silent for half a minute.
    let silence =
        std::env::var("PLIMSOLL_TEST_SILENCE").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(6);
    site.etcd.pause(true);
    thread::sleep(Duration::from_secs(silence));
    assert!(stream.flows_to(0));
    site.etcd.pause(false);
    let took = site.back(answers);
    eprintln!(
        "etcd silent for {silence} s: all hosts heard again after {took:?}; {} datagrams lost",
        stream.lost() - before
    );
    assert!(stream.lost() - before < 50);
    let (gap, _) = move_to(&site, &stream, 1);
    eprintln!("moved to host b: no datagram for {gap:?}");
    move_to(&site, &stream, 0);

    // A host ends without a word: after the stated time its tenant is placed elsewhere.
    site.cut(0);
    site.eventually("it is silent", |site| site.state(0) == "silent");
    let refused = site.ask(&["move", "mover", "b"]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    let took = site.eventually("it is freed", |site| site.state(0) == "freed");
    eprintln!("host a killed: freed {took:?} after its lease ended");
    let before = stream.count(1);
    site.must(&["move", "mover", "b"]);
    site.eventually("datagrams come to host b", |_| stream.count(1) > before);

    // It comes back, with its old policy file, and learns that the tenant has moved.
    site.fleet.launch(0);
    site.launch_agent(0);
    site.eventually("it is well", Site::well);
    assert!(!site.fleet.read("a.yaml").contains("tenants:\n  \"mover\""), "{}", site.fleet.read("a.yaml"));
    assert!(stream.flows_to(1));

    // A host restarts while etcd is away: it finds its state in its file.
    site.etcd.kill();
    site.cut(2);
    site.fleet.launch(2);
    site.launch_agent(2);
    let took = site.eventually("datagrams come from the restarted host", |_| stream.flows_to(1));
    eprintln!("host c restarted without etcd: its tenant sends after {took:?}");
    assert!(site.fleet.read("c.agent").contains("this host goes on with"), "{}", site.fleet.read("c.agent"));
    let answers = site.answers();
    site.etcd.launch();
    site.back(answers);
}
