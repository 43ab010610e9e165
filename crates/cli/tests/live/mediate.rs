//! Mediated ECN with Linux's own TCP: all nine pairs of `net.ipv4.tcp_ecn`, both directions at once (MIMIC's Table I), and
//! flows that nothing touches, byte for byte.
//!
//! Needs root (network namespaces) and says so when it has to skip. Everything made here is removed, whatever happens.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::alone;
use crate::support::{Daemon, PATIENCE, Stage, ip};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket, sockopt};
use plimsoll_daemon::{HeavyReport, Stats};

const NAMES: [&str; 4] = ["client", "server", "left", "right"];
const PORT: u16 = 7_000;

fn address(name: &str) -> Ipv4Addr {
    let place = NAMES.iter().position(|known| *known == name).expect("a tenant");
    Ipv4Addr::new(10, 9, 0, 1 + place as u8)
}

/// A daemon between four tenants. The engine's core counts as overloaded whenever packets pass, so that each heavy flow of the
/// counted tenants that sends more than 50 Mb/s is slowed down.
struct World {
    daemon: Daemon,
    stage: Stage,
}

impl World {
    /// `counted` says whose flows are counted, and which are heavy.
    fn start(tag: &str, counted: &str) -> Option<Self> {
        let stage = Stage::with_netns(tag, &NAMES)?;
        stage.add_netns("far");
        let tenant = |name: &str, ecn: &str| {
            format!("  {name}: {{port: {{tap: {{netns: {}, name: eth0}}}}{ecn}}}\n", stage.netns(name))
        };
        let policy = format!(
            "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: 10Gbps}}\napi: {{socket: {}}}\ntenants:\n{}{}{}{}\
             backpressure: {{{counted}, watch: engine, threshold: 0.2%, release: 0.1%, \
             mode: mark_and_meter, rate: 50Mbps}}\n",
            stage.netns("far"),
            stage.file("api.sock").display(),
            tenant("client", ", ecn: mediated"),
            tenant("server", ", ecn: mediated"),
            tenant("left", ""),
            tenant("right", ""),
        );
        fs::write(stage.file("plimsoll.yaml"), policy).expect("written");
        let daemon = Daemon::start(None, &stage.file("plimsoll.yaml"), &[], &stage.file("log"));
        let world = Self { daemon, stage };
        world.stage.until_it_answers();
        for name in NAMES {
            let netns = world.stage.netns(name);
            ip(&["-n", &netns, "address", "add", &format!("{}/24", address(name)), "dev", "eth0"]);
        }
        for (from, to) in [("client", "server"), ("left", "right")] {
            world.stage.eventually("neighbours", || world.stage.ping(from, address(to), 56));
        }
        Some(world)
    }

    /// Sets a tenant's `tcp_ecn`, for connections from now on.
    fn set_ecn(&self, name: &str, tcp_ecn: u8) {
        let set = move || fs::write("/proc/sys/net/ipv4/tcp_ecn", tcp_ecn.to_string());
        self.stage.inside(name, set).join().expect("no panic").expect("root may");
    }

    fn events(&self, name: &str) -> BTreeMap<String, u64> {
        let stats: Stats = self.stage.client().get("/v1/stats").expect("counters");
        stats.tenants[name].events.iter().map(|(event, count)| (event.to_string(), *count)).collect()
    }

    /// What `ss` says of the tenant's connection over `PORT`.
    fn socket(&self, name: &str) -> String {
        let mut ss = self.stage.command(name, "ss");
        let ports = format!("( sport = :{PORT} or dport = :{PORT} )");
        let out = ss.args(["-tineH", "state", "established", &ports]).output().expect("ss runs");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// A connection over which both ends send for `span`, and until `ss` has said what it knows of each end. All that is sent arrives.
    fn talk(&self, client: &str, server: &str, span: Duration) -> [String; 2] {
        let at = SocketAddrV4::new(address(server), PORT);
        let listener = self.stage.inside(server, move || TcpListener::bind(at).expect("bound"));
        let listener = listener.join().expect("listening");
        let accepting = thread::spawn(move || listener.accept().expect("a connection").0);
        let stream = self.stage.inside(client, move || TcpStream::connect(at).expect("connected"));
        let streams = [stream.join().expect("connected"), accepting.join().expect("accepted")];
        let over = Arc::new(AtomicBool::new(false));
        let ends = streams.map(|stream| Talk::begin(stream, Arc::clone(&over)));
        thread::sleep(span);
        let seen = [client, server].map(|name| self.socket(name));
        over.store(true, Ordering::Relaxed);
        let [(sent, got), (answered, came)] = ends.map(Talk::end);
        assert_eq!((sent, answered), (came, got), "all that is sent arrives");
        assert!(sent > 100_000 && answered > 100_000, "{sent} and {answered} bytes");
        seen
    }
}

/// One end of a connection.
struct Talk {
    sending: JoinHandle<u64>,
    receiving: JoinHandle<u64>,
}

impl Talk {
    fn begin(stream: TcpStream, over: Arc<AtomicBool>) -> Self {
        // It reacts to marks, and every kernel has it; a distribution's default may not react.
        setsockopt(&stream, sockopt::TcpCongestion, &OsString::from("reno")).expect("set");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_write_timeout(Some(PATIENCE)).expect("set");
        let (mut out, mut back) = (stream.try_clone().expect("two of it"), stream);
        let sending = thread::spawn(move || {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                sent += out.write(&[7; 16_384]).expect("sent") as u64;
            }
            out.shutdown(std::net::Shutdown::Write).expect("open until now");
            sent
        });
        let receiving = thread::spawn(move || {
            let (mut buffer, mut came) = (vec![0; 65_536], 0);
            loop {
                match back.read(&mut buffer).expect("the rest of it") {
                    0 => return came,
                    read => came += read as u64,
                }
            }
        });
        Self { sending, receiving }
    }

    /// Bytes that it sent, and that it got.
    fn end(self) -> (u64, u64) {
        (self.sending.join().expect("sent"), self.receiving.join().expect("received"))
    }
}

/// Whether a socket of which `ss` says this is in ECN state.
fn is_ecn(socket: &str) -> bool {
    socket.split_whitespace().any(|word| word == "ecn")
}

/// Whether its peer has echoed marks.
fn heard_marks(socket: &str) -> bool {
    let count = socket.split_whitespace().find_map(|word| word.strip_prefix("delivered_ce:"));
    count.is_some_and(|count| count.parse::<u64>().is_ok_and(|count| count > 0))
}

#[test]
fn ecn_is_active_exactly_where_table_one_says() {
    let _alone = alone();
    let Some(world) = World::start("mtb", "tenants: [client, server], heavy: 100pps") else { return };
    for (client, server) in (0..9).map(|pair| (pair / 3, pair % 3)) {
        world.set_ecn("client", client);
        world.set_ecn("server", server);
        let before = ["client", "server"].map(|name| world.events(name));
        let sockets = world.talk("client", "server", Duration::from_millis(1_200));
        let after = ["client", "server"].map(|name| world.events(name));
        let held: Option<HeavyReport> = world.stage.client().get("/v1/heavy").expect("an answer");
        let grown = |event: &str| {
            [0, 1].map(|end: usize| {
                let count = |events: &BTreeMap<String, u64>| events.get(event).copied().unwrap_or(0);
                count(&after[end]) - count(&before[end])
            })
        };
        let (marked, reported) = (grown("flow_marked"), grown("ecn_reported"));
        println!("tcp_ecn {client} and {server}: marked {marked:?}, reported {reported:?}\n  {sockets:?}");
        // The client's stack uses ECN if it asks, the server's if it is willing: Table I of MIMIC.
        let table = [client == 1, server != 0];
        let why = || format!("tcp_ecn {client} and {server}: {sockets:?}\n{}", world.stage.read("log"));
        assert_eq!([0, 1].map(|end: usize| is_ecn(&sockets[end])), table, "{}", why());
        assert_eq!(marked.map(|marks| marks > 0), table, "marks: {}", why());
        assert_eq!(reported.map(|reports| reports > 0), table, "reports: {}", why());
        assert_eq!([0, 1].map(|end: usize| heard_marks(&sockets[end])), table, "echoes: {}", why());
        // What cannot be marked is metered alone: by this host, which is the source's.
        let held = held.expect("flows are counted");
        let ends =
            |flow: &plimsoll_daemon::HeavyRow| flow.src_port == Some(PORT) || flow.dst_port == Some(PORT);
        let pressed = held.flows.iter().filter(|flow| ends(flow)).filter_map(|flow| flow.pressed.as_ref());
        assert!(
            pressed.clone().count() > 0 && pressed.clone().all(|pressed| pressed.how.contains("metered"))
        );
        let metered = |name: &str| held.held.iter().any(|row| row.receiver_of.as_deref() == Some(name));
        assert!(!table[0] || metered("client"), "{held:?}");
        assert!(!table[1] || metered("server"), "{held:?}");
        // Forging: only in the place of a client that does not ask, or of a server that does not answer.
        assert_eq!(grown("ecn_asked").map(|asked| asked > 0), [client != 1, false], "{}", why());
        assert_eq!(grown("ecn_granted").map(|granted| granted > 0), [false, server == 0], "{}", why());
        assert_eq!(grown("ecn_hidden").map(|hidden| hidden > 0), [client != 1, false], "{}", why());
        assert_eq!(
            grown("ecn_unmarked").map(|taken| taken > 0),
            [client != 1 && server != 0, client == 1 && server == 0]
        );
    }
    drop(world.daemon);
}

/// Frames over `PORT` that pass a tenant's interface, both ways, until told to stop.
struct Capture {
    stop: Arc<AtomicBool>,
    frames: JoinHandle<Vec<Vec<u8>>>,
}

impl Capture {
    fn begin(stage: &Stage, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&stop);
        let opened = stage.inside(name, || {
            let all = SockProtocol::EthAll;
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_NONBLOCK, all).expect("root may");
            setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).expect("root may");
            fs::File::from(socket)
        });
        let mut socket = opened.join().expect("a socket");
        let frames = thread::spawn(move || {
            let (mut frames, mut buffer) = (Vec::new(), vec![0; 70_000]);
            loop {
                match socket.read(&mut buffer) {
                    Ok(len) => frames.push(buffer[..len].to_vec()),
                    Err(_) if over.load(Ordering::Relaxed) => return frames,
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        Self { stop, frames }
    }

    fn end(self) -> Vec<Vec<u8>> {
        thread::sleep(Duration::from_millis(100));
        self.stop.store(true, Ordering::Relaxed);
        let frames = self.frames.join().expect("no panic");
        let port = PORT.to_be_bytes();
        let over = |frame: &Vec<u8>| {
            frame.len() >= 54 && frame[23] == 6 && (frame[34..36] == port || frame[36..38] == port)
        };
        frames.into_iter().filter(over).collect()
    }
}

/// A small flow that asks and answers for `span`: far fewer packets than a heavy flow has, each way.
fn ask(stage: &Stage, span: Duration) {
    const ASKED: [u8; 1_000] = [5; 1_000];
    let at = SocketAddrV4::new(address("right"), PORT);
    let listener = stage.inside("right", move || TcpListener::bind(at).expect("bound"));
    let listener = listener.join().expect("listening");
    let answering = thread::spawn(move || {
        let (mut stream, mut asked) = (listener.accept().expect("a connection").0, ASKED);
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        while stream.read_exact(&mut asked).is_ok() {
            stream.write_all(&asked[..200]).expect("answered");
        }
    });
    let stream = stage.inside("left", move || TcpStream::connect(at).expect("connected"));
    let mut stream = stream.join().expect("connected");
    stream.set_nodelay(true).expect("set");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let (until, mut answer) = (Instant::now() + span, [0; 200]);
    while Instant::now() < until {
        stream.write_all(&ASKED).expect("asked");
        stream.read_exact(&mut answer).expect("an answer");
        thread::sleep(Duration::from_micros(2_500));
    }
    drop(stream);
    answering.join().expect("no panic");
}

/// The frames that a tenant sent, in their order.
fn sent_by(name: &str, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let from = address(name).octets();
    frames.iter().filter(|frame| frame[26..30] == from).cloned().collect()
}

/// MI-E12: flows of tenants whose packets are counted, and may be marked, beside a flow that is marked, echoed for and metered.
#[test]
fn small_flows_are_the_same_on_both_sides() {
    let _alone = alone();
    let counted = "tenants: [client, server, left, right], heavy: 1kpps";
    let Some(world) = World::start("mni", counted) else { return };
    for name in ["left", "right"] {
        // Each packet is then one frame with its own checksum, on both sides.
        let mut ethtool = world.stage.command(name, "ethtool");
        let done =
            ethtool.args(["-K", "eth0", "tx", "off", "tso", "off", "gso", "off", "gro", "off"]).output();
        assert!(done.is_ok_and(|done| done.status.success()));
        world.set_ecn(name, 1);
    }
    thread::scope(|scope| {
        let heavy = scope.spawn(|| world.talk("client", "server", Duration::from_millis(3_500)));
        thread::sleep(Duration::from_millis(500));
        let captures = ["left", "right"].map(|name| Capture::begin(&world.stage, name));
        ask(&world.stage, Duration::from_secs(2));
        let [left, right] = captures.map(Capture::end);
        println!("{} frames of a small flow", left.len());
        assert!(left.len() > 600, "questions and answers: {}", left.len());
        assert!(left.iter().any(|frame| frame[15] & 3 != 0), "its packets have ECT, and could be marked");
        for name in ["left", "right"] {
            let [here, there] = [&left, &right].map(|frames| sent_by(name, frames));
            let first = here.iter().zip(&there).position(|(a, b)| a != b);
            assert!(
                here == there,
                "of {} and {} frames from {name} the first that differ are {first:?}",
                here.len(),
                there.len()
            );
        }
        let sockets = heavy.join().expect("no panic");
        assert!(heard_marks(&sockets[1]), "the flow beside was marked: {sockets:?}");
    });
    assert!(world.events("server")["flow_marked"] > 0);
    for name in ["left", "right"] {
        assert_eq!(world.events(name).get("flow_marked").copied().unwrap_or(0), 0, "{name}");
    }
}
