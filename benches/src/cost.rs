//! What a limited flow costs: CPU seconds of the whole machine for each gigabyte, beside veth and tc's htb.
//!
//! Why: operators compare with the kernel, whose work is done in softirqs that belong to no process.
//! From: the idle time in `/proc/stat`, which counts what every side does, wherever it is done.
//! Not here: the most that a path carries (`forward`), and the evenness of gaps (`accuracy`).
//! Invariant: the same sender and receiver, one CUBIC connection with segmentation offload, stand on all sides, and the sides of a
//! row take turns. What the machine did before each side was set up is taken off; a busy machine is said.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::forward::Forwarder;
use crate::net::{self, Netns};
use crate::report::{Goal, Row};

pub const LEFT: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 1);
pub const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 2);
pub const LEFT_MAC: &str = "02:00:00:00:97:01";
pub const RIGHT_MAC: &str = "02:00:00:00:97:02";
pub const PORT: u16 = 7_097;

/// The connection runs for this long before it is measured, so that its window has grown and the bursts are over.
const WARM_UP: Duration = Duration::from_millis(1_000);
/// How long the machine is looked at before that.
const BEFORE: Duration = Duration::from_millis(1_500);
/// How long it is measured; at a low rate longer, as `/proc/stat` counts hundredths of a second.
const SPAN: Duration = Duration::from_secs(3);
const LONG_SPAN: Duration = Duration::from_secs(10);
/// Payload of a full segment with timestamps, and the frame that carries it, as limits count it.
const SEGMENT: f64 = 1_448.0;
const FRAME: f64 = 1_514.0;

/// Where the rate is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    Uplink(u32),
    /// The same with the wake-up grain that htb has in effect: a whole segment of 64 kB.
    Coarse(u32),
    Tenant(u32),
    None,
}

impl Limit {
    fn mbps(self) -> Option<u32> {
        match self {
            Self::Uplink(mbps) | Self::Coarse(mbps) | Self::Tenant(mbps) => Some(mbps),
            Self::None => None,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Uplink(mbps) => format!("uplink {mbps} Mb/s"),
            Self::Coarse(mbps) => format!("uplink {mbps} Mb/s, `grain: 5ms`"),
            Self::Tenant(mbps) => format!("tenant `max` {mbps} Mb/s, uplink 100 Gb/s"),
            Self::None => "no limit".to_owned(),
        }
    }
}

/// What lies between sender and receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A pair of veth, with htb where there is a limit.
    Veth,
    /// The same without segmentation offload, so that it carries what AF_XDP does: frames of an MTU, with their checksums.
    VethFrames,
    TapToTap,
    TapToPacket,
    TapToXdp,
}

const OURS: [(Way, &str); 3] =
    [(Way::TapToTap, "TAP to TAP"), (Way::TapToPacket, "TAP to af_packet"), (Way::TapToXdp, "TAP to AF_XDP")];

/// All rows.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for limit in [
        Limit::Uplink(100),
        Limit::Coarse(100),
        Limit::Uplink(1_000),
        Limit::Tenant(100),
        Limit::Tenant(1_000),
        Limit::None,
    ] {
        let [mut peer, mut frames] = [(); 2].map(|()| Measured::default());
        let mut ours = OURS.map(|_| Measured::default());
        for _ in 0..rounds {
            peer.add(told_apart(plimsoll, Way::Veth, limit)?);
            frames.add(told_apart(plimsoll, Way::VethFrames, limit)?);
            for (measured, (way, _)) in ours.iter_mut().zip(OURS) {
                measured.add(told_apart(plimsoll, way, limit)?);
            }
        }
        let beside = if limit == Limit::None { "veth" } else { "htb on veth" };
        let (xdp, (_, name)) = (&ours[2], OURS[2]);
        rows.push(
            Row::new(
                format!("CPU for each GB, {name}, {}", limit.words()),
                format!("{beside}, no offload"),
                "CPU s/GB",
            )
            .figures(&frames.cost, &xdp.cost)
            .note(xdp.note(&frames)),
        );
        for (measured, (way, name)) in ours.iter().zip(OURS) {
            let goal = match (way, limit) {
                (Way::TapToXdp, Limit::None) => None, // its frames have no offload, the kernel's have
                (_, Limit::None) => Some(Goal::RatioAtMost(1.5)),
                _ => Some(Goal::RatioAtMost(2.0)),
            };
            let row = Row::new(format!("CPU for each GB, {name}, {}", limit.words()), beside, "CPU s/GB");
            let row = row.figures(&peer.cost, &measured.cost).note(measured.note(&peer));
            rows.push(match goal {
                Some(goal) => row.goal(goal),
                None => row,
            });
            if limit.mbps().is_some() {
                let row = Row::new(format!("rate error, {name}, {}", limit.words()), beside, "%");
                rows.push(row.figures(&peer.errors, &measured.errors).goal(Goal::AtMost(0.1)));
            }
        }
    }
    Ok(rows)
}

/// One figure for each round.
#[derive(Default)]
struct Measured {
    cost: Vec<f64>,
    errors: Vec<f64>,
    gbps: Vec<f64>,
    retransmits: Vec<f64>,
    /// Cores that were busy before, with something else.
    others: Vec<f64>,
}

impl Measured {
    fn add(&mut self, one: One) {
        self.cost.push(one.cost);
        self.errors.extend(one.error);
        self.gbps.push(one.gbps);
        self.others.push(one.others);
        self.retransmits.push(f64::from(one.retransmits));
    }

    fn note(&self, peer: &Self) -> String {
        let median = |values: &[f64]| crate::report::median(values).unwrap_or_default();
        format!(
            "{:.2} Gb/s (peer {:.2}), {} segments sent again (peer {}); others used {:.2} cores",
            median(&self.gbps),
            median(&peer.gbps),
            median(&self.retransmits),
            median(&peer.retransmits),
            median(&self.others).max(median(&peer.others))
        )
    }
}

/// One connection, measured.
struct One {
    /// CPU seconds of the machine for each GB of payload.
    cost: f64,
    gbps: f64,
    /// Of the limit, in per cent.
    error: Option<f64>,
    retransmits: u32,
    /// Cores that were busy before.
    others: f64,
}

/// [`one`] again, up to twice, if the machine's own work took more before than all took meanwhile.
fn told_apart(plimsoll: &Path, way: Way, limit: Limit) -> Result<One> {
    for _ in 0..3 {
        let one = one(plimsoll, way, limit)?;
        if one.cost > 0.0 {
            return Ok(one);
        }
    }
    anyhow::bail!("the machine is too busy with other work to tell what a flow costs")
}

/// Sets up the way, and measures one connection through it.
fn one(plimsoll: &Path, way: Way, limit: Limit) -> Result<One> {
    let (left, right, host) =
        (Netns::new("plbench-left")?, Netns::new("plbench-right")?, Netns::new("plbench-host")?);
    let others = net::busy_cores(BEFORE)?;
    let _forwarder = set_up(plimsoll, way, limit, [&left, &right, &host])?;
    let counts = Counts::default();
    let (cpu, retransmits) = std::thread::scope(|scope| {
        let listener = right.enter(|| Ok(TcpListener::bind((RIGHT, PORT))?))?;
        let (counts, left) = (&counts, &left);
        let receiving = scope.spawn(move || counts.receive(&listener));
        let sending = scope.spawn(move || left.enter(|| counts.send()));
        std::thread::sleep(WARM_UP);
        counts.measuring.store(true, Ordering::Relaxed);
        let cpu = net::busy_cores(if limit.mbps() == Some(100) { LONG_SPAN } else { SPAN })?;
        counts.measuring.store(false, Ordering::Relaxed);
        counts.stop.store(true, Ordering::Relaxed);
        let retransmits = sending.join().expect("no panic")?;
        receiving.join().expect("no panic")?;
        anyhow::Ok((cpu, retransmits))
    })?;
    let arrivals = counts.arrivals.into_inner().expect("no panic");
    let [Some((from, _)), Some((to, bytes))] = [arrivals.first(), arrivals.last()] else {
        anyhow::bail!("nothing arrived")
    };
    ensure!(to > from, "all arrived at once");
    // What came with the first of these arrivals came before the span began.
    let bytes = (bytes - arrivals[0].1) as f64;
    let span = (*to - *from).as_secs_f64();
    let error = limit.mbps().map(|mbps| {
        let ideal = f64::from(mbps) * 1e6 / 8.0 * SEGMENT / FRAME;
        100.0 * (bytes / span / ideal - 1.0).abs()
    });
    Ok(One {
        cost: (cpu - others) / (bytes / span / 1e9),
        gbps: bytes * 8e-9 / span,
        error,
        retransmits,
        others,
    })
}

/// Devices, addresses, and htb or Plimsoll.
fn set_up(
    plimsoll: &Path,
    way: Way,
    limit: Limit,
    [left, right, host]: [&Netns; 3],
) -> Result<Option<Forwarder>> {
    let veth = |from: &Netns, device: &str| {
        from.ip(&["link", "add", device, "type", "veth", "peer", "name", "right", "netns", right.name()])
    };
    let uplink = match way {
        Way::Veth | Way::VethFrames => {
            veth(left, "left")?;
            String::new()
        }
        Way::TapToTap => format!("{{tap: {{netns: {}, name: right}}}}", right.name()),
        Way::TapToPacket | Way::TapToXdp => {
            veth(host, "up0")?;
            host.ip(&["link", "set", "up0", "up"])?;
            (if way == Way::TapToXdp { "{af_xdp: up0}" } else { "{af_packet: up0}" }).to_owned()
        }
    };
    let forwarder = match way {
        Way::Veth | Way::VethFrames => None,
        _ => Some(Forwarder::plimsoll_in(Some(host), plimsoll, &policy(&uplink, limit, left))?),
    };
    let words = || forwarder.as_ref().map(Forwarder::words).unwrap_or_default();
    for (netns, device, own, mac, peer, peer_mac) in
        [(left, "left", LEFT, LEFT_MAC, RIGHT, RIGHT_MAC), (right, "right", RIGHT, RIGHT_MAC, LEFT, LEFT_MAC)]
    {
        netns.await_device(device).with_context(words)?;
        netns.ip(&["link", "set", device, "address", mac])?;
        netns.address(device, own, peer, peer_mac)?;
    }
    if way == Way::VethFrames {
        for (netns, device) in [(left, "left"), (right, "right")] {
            let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
            let words = ["ip", "netns", "exec", netns.name(), "ethtool", "-K", device].into_iter().chain(off);
            net::run(&words.collect::<Vec<_>>())?;
        }
    }
    match (way, limit.mbps()) {
        (Way::Veth | Way::VethFrames, Some(mbps)) => htb(left, mbps)?,
        // Without offload information the far end must finish its checksums itself.
        (Way::TapToXdp, _) => {
            net::run(&["ip", "netns", "exec", right.name(), "ethtool", "-K", "right", "tx", "off"])?;
        }
        _ => {}
    }
    Ok(forwarder)
}

fn policy(uplink: &str, limit: Limit, left: &Netns) -> String {
    let (rate, max) = match limit {
        Limit::Uplink(mbps) => (format!("{mbps}Mbps"), String::new()),
        Limit::Coarse(mbps) => (format!("{mbps}Mbps, grain: 5ms"), String::new()),
        Limit::Tenant(mbps) => ("100Gbps".to_owned(), format!(", max: {mbps}Mbps")),
        Limit::None => ("100Gbps".to_owned(), String::new()),
    };
    format!(
        "uplink: {{port: {uplink}, rate: {rate}}}\ntenants:\n  left: {{port: {{tap: {{netns: {}, name: left}}}}{max}}}\n",
        left.name()
    )
}

/// As its manual says: a class for all, with a queue of its own for it.
fn htb(left: &Netns, mbps: u32) -> Result<()> {
    let tc = |args: &str| {
        let command: Vec<&str> = ["tc", "-n", left.name()].into_iter().chain(args.split(' ')).collect();
        net::run(&command)
    };
    tc("qdisc add dev left root handle 1: htb default 1")?;
    tc(&format!("class add dev left parent 1: classid 1:1 htb rate {mbps}mbit"))?;
    tc("qdisc add dev left parent 1:1 pfifo limit 1000")
}

/// What sender and receiver share.
#[derive(Default)]
pub struct Counts {
    measuring: AtomicBool,
    pub stop: AtomicBool,
    /// When something arrived while measuring, and how much payload had arrived by then.
    arrivals: Mutex<Vec<(Instant, u64)>>,
}

impl Counts {
    /// Sends until it is told to stop. Returns how many segments were sent again.
    pub fn send(&self) -> Result<u32> {
        let mut stream = TcpStream::connect((RIGHT, PORT))?;
        net::cubic(&stream)?;
        stream.set_write_timeout(Some(Duration::from_millis(500)))?;
        let data = vec![0; 128 << 10];
        while !self.stop.load(Ordering::Relaxed) {
            let _ = stream.write(&data); // what does not fit is tried again
        }
        net::sent_again(stream.as_raw_fd())
    }

    pub fn receive(&self, listener: &TcpListener) -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; 256 << 10];
        let mut arrived = 0;
        loop {
            let len = stream.read(&mut buffer)?;
            if len == 0 {
                return Ok(());
            }
            arrived += len as u64;
            if self.measuring.load(Ordering::Relaxed) {
                let mut arrivals = self.arrivals.lock().expect("no panic");
                arrivals.truncate(1);
                arrivals.push((Instant::now(), arrived));
            }
        }
    }
}
