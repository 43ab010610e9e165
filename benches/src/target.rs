//! A tenant with a delay target of 100 us, beside a flow that fills the uplink.
//!
//! Why: cheap shaping waits for the next wake-up; a tenant that is promised short delays must not pay for it.
//! From: the time from question to answer in the tenant's own process, and the delays that `plimsoll slo` shows.
//! Not here: what the flow costs (`cost`).
//! Invariant: the same questions, at the same moments, on both sides; htb has a class of its own for them, which goes first.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::cost::{Counts, LEFT, LEFT_MAC, RIGHT, RIGHT_MAC};
use crate::forward::Forwarder;
use crate::net::{self, Netns};
use crate::report::{Goal, Row, median};

const QUIET: Ipv4Addr = Ipv4Addr::new(10, 97, 0, 3);
const QUIET_MAC: &str = "02:00:00:00:97:03";
const PORT: u16 = 7_098;

/// The target, in microseconds.
const TARGET: f64 = 100.0;
/// Questions, of which the first few are not counted: the flow's window still grows.
const QUESTIONS: usize = 1_500;
const SKIPPED: usize = 500;
const EACH: Duration = Duration::from_millis(2);

/// All rows.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let [mut htb, mut ours, mut delays] = [(); 3].map(|()| Vec::new());
    for _ in 0..rounds {
        htb.push(beside_htb()?);
        let (answers, delay) = beside_plimsoll(plimsoll)?;
        ours.push(answers);
        delays.push(delay);
    }
    let what = "a tenant with `delay: {p99: 100us}`, beside a flow that fills 1 Gb/s";
    Ok(vec![
        Row::new(format!("p99 of question to answer, {what}"), "htb on veth", "us")
            .figures(&htb, &ours)
            .note("with the wake-ups of both processes; htb has a class of its own for it, which goes first"),
        Row::new(format!("p99 of its delays both ways, {what}"), "its target", "us")
            .figures(&[TARGET], &delays)
            .goal(Goal::AtMost(TARGET))
            .note("as `plimsoll slo` shows them: out and in, a second's median"),
    ])
}

fn beside_htb() -> Result<f64> {
    let (left, right) = (Netns::new("plbench-left")?, Netns::new("plbench-right")?);
    left.ip(&["link", "add", "left", "type", "veth", "peer", "name", "right", "netns", right.name()])?;
    for (netns, device, own, mac, peer, peer_mac) in [
        (&left, "left", LEFT, LEFT_MAC, RIGHT, RIGHT_MAC),
        (&right, "right", RIGHT, RIGHT_MAC, LEFT, LEFT_MAC),
    ] {
        netns.ip(&["link", "set", device, "address", mac])?;
        netns.address(device, own, peer, peer_mac)?;
    }
    left.ip(&["address", "add", &format!("{QUIET}/24"), "dev", "left"])?;
    knows(&right, LEFT_MAC)?;
    for command in [
        "qdisc add dev left root handle 1: htb default 1",
        "class add dev left parent 1: classid 1:9 htb rate 1gbit",
        "class add dev left parent 1:9 classid 1:1 htb rate 950mbit ceil 1gbit prio 1",
        "class add dev left parent 1:9 classid 1:2 htb rate 50mbit ceil 1gbit prio 0",
        "filter add dev left parent 1: protocol ip u32 match ip src 10.97.0.3/32 flowid 1:2",
    ] {
        let command: Vec<&str> = ["tc", "-n", left.name()].into_iter().chain(command.split(' ')).collect();
        net::run(&command)?;
    }
    ask(&left, &left, &right)
}

/// The p99 from question to answer, and of the delays that the daemon saw.
fn beside_plimsoll(plimsoll: &Path) -> Result<(f64, f64)> {
    let [left, quiet, right, host] =
        ["left", "quiet", "right", "host"].map(|name| Netns::new(&format!("plbench-{name}")));
    let (left, quiet, right, host) = (left?, quiet?, right?, host?);
    host.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "right", "netns", right.name()])?;
    host.ip(&["link", "set", "up0", "up"])?;
    // The far end first: what the engine is given while the uplink has no carrier waits, and would be measured.
    right.ip(&["link", "set", "right", "address", RIGHT_MAC])?;
    right.address("right", RIGHT, LEFT, LEFT_MAC)?;
    knows(&right, QUIET_MAC)?;
    let policy = format!(
        "uplink: {{port: {{af_packet: up0}}, rate: 1Gbps}}\ntenants:\n  \
         left: {{port: {{tap: {{netns: {}, name: left}}}}}}\n  \
         quiet: {{port: {{tap: {{netns: {}, name: quiet}}}}, min: 50Mbps, delay: {{p99: 100us}}}}\n",
        left.name(),
        quiet.name()
    );
    let daemon = Forwarder::plimsoll_in(Some(&host), plimsoll, &policy)?;
    for (netns, device, own, mac) in [(&left, "left", LEFT, LEFT_MAC), (&quiet, "quiet", QUIET, QUIET_MAC)] {
        netns.await_device(device).with_context(|| daemon.words())?;
        netns.ip(&["link", "set", device, "address", mac])?;
        netns.address(device, own, RIGHT, RIGHT_MAC)?;
    }
    let answers = ask(&left, &quiet, &right).with_context(|| daemon.words())?;
    Ok((answers, delays(&daemon.ask(plimsoll, "slo")?)?))
}

/// The p99 on the way out and in of `quiet`, added up: the median of the last two seconds.
fn delays(slo: &serde_json::Value) -> Result<f64> {
    let seconds = slo["tenants"]["quiet"]["windows"].as_array().context("no seconds")?;
    let p99 = |second: &serde_json::Value| {
        let of = |part: &str| second[part]["p99"].as_f64();
        Some(of("egress")? + of("nic")? + of("engine")?)
    };
    let last: Vec<f64> = seconds.iter().rev().take(2).filter_map(p99).collect();
    median(&last).context("no delays")
}

/// The right side answers the quiet tenant as well.
fn knows(right: &Netns, mac: &str) -> Result<()> {
    right.ip(&["neighbour", "replace", &QUIET.to_string(), "lladdr", mac, "dev", "right"])
}

/// Asks from `quiet` while a flow from `left` fills the link; the p99 from question to answer, in microseconds.
fn ask(left: &Netns, quiet: &Netns, right: &Netns) -> Result<f64> {
    let counts = Counts::default();
    let over = AtomicBool::new(false);
    let listener = right.enter(|| Ok(std::net::TcpListener::bind((RIGHT, crate::cost::PORT))?))?;
    let answering = right.enter(|| Ok(UdpSocket::bind((RIGHT, PORT))?))?;
    let asking = quiet.enter(|| Ok(UdpSocket::bind((QUIET, PORT))?))?;
    answering.set_read_timeout(Some(Duration::from_millis(100)))?;
    asking.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut took = std::thread::scope(|scope| {
        let (counts, over) = (&counts, &over);
        let receiving = scope.spawn(move || counts.receive(&listener));
        let sending = scope.spawn(move || left.enter(|| counts.send()));
        scope.spawn(move || answer(&answering, over));
        let took = questions(&asking);
        over.store(true, Ordering::Relaxed);
        counts.stop.store(true, Ordering::Relaxed);
        sending.join().expect("no panic")?;
        receiving.join().expect("no panic")?;
        took
    })?;
    ensure!(took.len() >= (QUESTIONS - SKIPPED) * 9 / 10, "{} questions were answered", took.len());
    took.sort_unstable();
    Ok(took[took.len() * 99 / 100].as_secs_f64() * 1e6)
}

fn answer(socket: &UdpSocket, over: &AtomicBool) {
    let mut buffer = [0; 64];
    while !over.load(Ordering::Relaxed) {
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..len], from);
        }
    }
}

/// How long each question took that was answered.
fn questions(socket: &UdpSocket) -> Result<Vec<Duration>> {
    let (mut took, mut buffer) = (Vec::new(), [0; 64]);
    let begun = Instant::now();
    for n in 0..QUESTIONS {
        let due = EACH * u32::try_from(n).expect("few questions");
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let asked = Instant::now();
        socket.send_to(&n.to_be_bytes(), (RIGHT, PORT))?;
        // An answer to an earlier question, which had been given up, is passed over.
        while let Ok(len) = socket.recv(&mut buffer) {
            if buffer[..len] == n.to_be_bytes() {
                took.extend((n >= SKIPPED).then(|| asked.elapsed()));
                break;
            }
        }
    }
    Ok(took)
}
