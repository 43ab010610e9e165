//! How exactly limited flows get their rate, live, and how even their gaps are; and how long gaps are by the wake-up grain.
//!
//! Why: a shaper that lets bursts through passes every test of averages.
//! From: SENIC's measure, the deviation of the gaps over the ideal gap.
//! Not here: exactness in the engine's own time; the property tests of `nic` hold it to the nanosecond.
//! Invariant: the same senders and receivers stand on all three sides: Plimsoll, `tc htb`, and a thread that spins and
//! writes each frame when it is due, which is the floor that this machine allows in this minute. Senders get the larger
//! part of their cores, so that other work on the machine disturbs the shapers only.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::forward::Forwarder;
use crate::net::{self, Netns, Stamped};
use crate::report::{Goal, Row};

/// Flows at a time, each with a limit of its own.
const FLOWS: u16 = 4;
/// Flow `i` goes to this port and `i`.
const FIRST_PORT: u16 = 7_000;
/// Whole frame, as limits count it.
const FRAME: usize = 1_500;
/// Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;
/// How long flows run; what arrives in the first part, bursts included, does not count.
const SPAN: Duration = Duration::from_millis(1_600);
const WARM_UP: Duration = Duration::from_millis(400);

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
const LEFT_MAC: &str = "02:00:00:00:98:01";
const RIGHT_MAC: &str = "02:00:00:00:98:02";

/// Rate error and jitter for limits of 10 and of 100 Mb/s.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mbps in [10_u32, 100] {
        let mut sides = [Measured::default(), Measured::default(), Measured::default()];
        for _ in 0..rounds {
            sides[0].add(&htb(mbps)?);
            sides[1].add(&ours(plimsoll, mbps)?);
            sides[2].add(&floor(mbps)?);
        }
        let [peer, us, floor] = sides;
        let beside = "tc htb";
        let note = |values: &[f64]| match crate::report::median(values) {
            Some(value) => format!("floor of this machine now: {value:.4}"),
            None => String::new(),
        };
        let row = Row::new(format!("rate error, {FLOWS} flows limited to {mbps} Mb/s each"), beside, "%");
        rows.push(row.figures(&peer.errors, &us.errors).note(note(&floor.errors)));
        let row = Row::new(format!("deviation of gaps over ideal gap, {mbps} Mb/s"), beside, "fraction");
        rows.push(row.figures(&peer.jitters, &us.jitters).note(note(&floor.jitters)));
    }
    for (stated, grain, pull) in GRAINS {
        let [mut peer, mut us] = [(); 2].map(|()| Measured::default());
        for _ in 0..rounds {
            peer.add(&htb(EACH)?);
            us.add(&by_grain(plimsoll, stated)?);
        }
        let what = if stated.is_empty() { "usual grain".to_owned() } else { format!("`grain: {stated}`") };
        let row = Row::new(format!("p99 of gaps, {FLOWS} flows, uplink 100 Mb/s, {what}"), "tc htb", "ms");
        let longest = f64::max(grain, pull * f64::from(FLOWS));
        let note = format!("the grain is {grain} ms, and each flow's turn {pull} ms");
        rows.push(row.figures(&peer.gaps, &us.gaps).goal(Goal::AtMost(1.25 * longest)).note(note));
    }
    Ok(rows)
}

/// The rate of each flow where they share an uplink of 100 Mb/s.
const EACH: u32 = 100 / FLOWS as u32;

/// What the uplink states, its grain in milliseconds (without a statement it is what 16 frames take), and how long a pull may take,
/// which is a flow's turn.
const GRAINS: [(&str, f64, f64); 3] = [("", 1.97, 0.5), ("500us", 0.5, 0.5), ("5ms", 5.0, 5.0)];

/// One figure for each flow and round.
#[derive(Default)]
struct Measured {
    /// In per cent.
    errors: Vec<f64>,
    /// Over the ideal gap.
    jitters: Vec<f64>,
    /// In milliseconds.
    gaps: Vec<f64>,
}

/// How one flow arrived.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    /// The rate's error, as a fraction.
    error: f64,
    /// The deviation of the gaps over the ideal gap.
    jitter: f64,
    /// The gap that 99 of 100 are no longer than, in seconds.
    p99: f64,
}

impl Measured {
    fn add(&mut self, flows: &[Arrived]) {
        self.errors.extend(flows.iter().map(|flow| 100.0 * flow.error));
        self.jitters.extend(flows.iter().map(|flow| flow.jitter));
        self.gaps.extend(flows.iter().map(|flow| 1e3 * flow.p99));
    }
}

/// Through Plimsoll: a class with a `max` for each flow. htb may owe a frame beyond its burst, so ours is a frame more:
/// then both can make up for being late by as much.
fn ours(plimsoll: &Path, mbps: u32) -> Result<Vec<Arrived>> {
    let mut weights = String::new();
    let mut classes = String::new();
    for flow in 0..FLOWS {
        write!(weights, "f{flow}: 1, ")?;
        writeln!(
            classes,
            "  f{flow}: {{match: {{dst_port: {}}}, max: {mbps}Mbps, burst: 3100B}}",
            FIRST_PORT + flow
        )?;
    }
    through(plimsoll, mbps, "10Gbps", &format!("policy:\n  root: {{wfq: {{{weights}left: 1}}}}\n{classes}"))
}

/// Through an uplink of 100 Mb/s, which the flows share; it states its grain where there is one.
fn by_grain(plimsoll: &Path, stated: &str) -> Result<Vec<Arrived>> {
    let grain = if stated.is_empty() { String::new() } else { format!(", grain: {stated}") };
    through(plimsoll, EACH, &format!("{}Mbps{grain}", EACH * u32::from(FLOWS)), "")
}

/// Through Plimsoll with an uplink of this rate, and `more` at the end of the policy.
fn through(plimsoll: &Path, mbps: u32, rate: &str, more: &str) -> Result<Vec<Arrived>> {
    let (left, right) = namespaces()?;
    let policy = format!(
        "uplink: {{port: {{tap: {{netns: {}, name: right}}}}, rate: {rate}}}\n\
         engine: {{cpu: 1}}\n\
         tenants:\n  left: {{port: {{tap: {{netns: {}, name: left}}}}}}\n{more}",
        right.name(),
        left.name(),
    );
    let forwarder = Forwarder::plimsoll(plimsoll, &policy)?;
    connect(&left, "left", LEFT, LEFT_MAC, RIGHT, RIGHT_MAC).with_context(|| forwarder.words())?;
    connect(&right, "right", RIGHT, RIGHT_MAC, LEFT, LEFT_MAC).with_context(|| forwarder.words())?;
    receive_while(&right, mbps, || left.enter(|| send(mbps)))
}

/// Through a veth pair with an htb class for each flow.
fn htb(mbps: u32) -> Result<Vec<Arrived>> {
    let (left, right) = namespaces()?;
    left.ip(&["link", "add", "left", "type", "veth", "peer", "name", "right", "netns", right.name()])?;
    connect(&left, "left", LEFT, LEFT_MAC, RIGHT, RIGHT_MAC)?;
    connect(&right, "right", RIGHT, RIGHT_MAC, LEFT, LEFT_MAC)?;
    let tc = |args: &str| {
        let command: Vec<&str> = ["tc", "-n", left.name()].into_iter().chain(args.split(' ')).collect();
        net::run(&command)
    };
    tc("qdisc add dev left root handle 1: htb")?;
    for flow in 1..=FLOWS {
        let port = FIRST_PORT + flow - 1;
        tc(&format!("class add dev left parent 1: classid 1:{flow} htb rate {mbps}mbit burst 1600"))?;
        tc(&format!("qdisc add dev left parent 1:{flow} pfifo limit 64"))?;
        tc(&format!(
            "filter add dev left parent 1: protocol ip u32 match ip dport {port} 0xffff flowid 1:{flow}"
        ))?;
    }
    receive_while(&right, mbps, || left.enter(|| send(mbps)))
}

/// A thread that spins until each frame is due and writes it to the receiver's TAP.
fn floor(mbps: u32) -> Result<Vec<Arrived>> {
    let (_left, right) = namespaces()?;
    let mut device = right.enter(|| net::tap("right"))?;
    connect(&right, "right", RIGHT, RIGHT_MAC, LEFT, LEFT_MAC)?;
    let gap = ideal_gap(mbps);
    let spin = move || {
        net::pin(1);
        net::go_first();
        let frames: Vec<Vec<u8>> = (0..FLOWS).map(frame).collect();
        let (from, mut sent) = (Instant::now(), 0_u32);
        loop {
            let due = (gap / u32::from(FLOWS)) * sent;
            if due >= SPAN {
                return Ok(());
            }
            while from.elapsed() < due {
                std::hint::spin_loop();
            }
            let _ = device.write(&frames[sent as usize % frames.len()]); // a full device shows as jitter
            sent += 1;
        }
    };
    // On a thread of its own, which alone is pinned.
    receive_while(&right, mbps, || crate::apart(spin))
}

fn namespaces() -> Result<(Netns, Netns)> {
    Ok((Netns::new("plbench-left")?, Netns::new("plbench-right")?))
}

fn connect(
    netns: &Netns,
    device: &str,
    own: Ipv4Addr,
    mac: &str,
    peer: Ipv4Addr,
    peer_mac: &str,
) -> Result<()> {
    netns.await_device(device)?;
    netns.ip(&["link", "set", device, "address", mac])?;
    netns.address(device, own, peer, peer_mac)
}

/// Offers every flow 1.3 times its limit, in bursts of a millisecond, so that the limit always binds.
fn send(mbps: u32) -> Result<()> {
    net::pin(0);
    net::go_first();
    let socket = UdpSocket::bind((LEFT, 0))?;
    socket.set_nonblocking(true)?;
    let data = [0; FRAME - HEADERS];
    let gap = ideal_gap(mbps).mul_f64(1.0 / 1.3);
    let from = Instant::now();
    let mut due = Duration::ZERO;
    while due < SPAN {
        // On a core that other threads use, the thread may be too late to catch up: the packets that it missed then
        // stay unsent.
        due = due.max(from.elapsed().saturating_sub(Duration::from_millis(5)));
        while due <= from.elapsed() && due < SPAN {
            for flow in 0..FLOWS {
                let _ = socket.send_to(&data, (RIGHT, FIRST_PORT + flow)); // what does not fit is the point
            }
            due += gap;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// How each flow arrived while `work` ran.
fn receive_while(netns: &Netns, mbps: u32, work: impl FnOnce() -> Result<()>) -> Result<Vec<Arrived>> {
    let bind = |flow| netns.enter(move || Stamped::bind(FIRST_PORT + flow));
    let sockets = (0..FLOWS).map(bind).collect::<Result<Vec<_>>>()?;
    let arrivals: Vec<Vec<Duration>> = std::thread::scope(|scope| {
        let deadline = Instant::now() + SPAN + Duration::from_millis(300);
        let collect = move |socket: &Stamped| {
            let mut times = Vec::new();
            while Instant::now() < deadline {
                times.extend(socket.receive().map(|(_, time)| time));
            }
            times
        };
        let receivers: Vec<_> = sockets.iter().map(|socket| scope.spawn(move || collect(socket))).collect();
        let worked = work();
        let arrivals = receivers.into_iter().map(|receiver| receiver.join().unwrap_or_default()).collect();
        worked.map(|()| arrivals)
    })?;
    arrivals.iter().map(|times| judge(times, mbps)).collect()
}

/// How one flow arrived.
fn judge(times: &[Duration], mbps: u32) -> Result<Arrived> {
    let first = *times.first().context("a limited flow got nothing through")?;
    let counted: Vec<f64> = times
        .iter()
        .map(|&time| time.saturating_sub(first)) // the clock may be set back meanwhile
        .filter(|&time| time > WARM_UP && time < SPAN)
        .map(|time| time.as_secs_f64())
        .collect();
    let gaps: Vec<f64> = counted.windows(2).map(|pair| pair[1] - pair[0]).collect();
    anyhow::ensure!(gaps.len() > 10, "a limited flow got {} frames through", times.len());
    let ideal = ideal_gap(mbps).as_secs_f64();
    let count = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / count;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
    let mut sorted = gaps;
    sorted.sort_by(f64::total_cmp);
    let p99 = sorted[(sorted.len() * 99).div_ceil(100) - 1];
    Ok(Arrived { error: (ideal / mean - 1.0).abs(), jitter: variance.sqrt() / ideal, p99 })
}

fn ideal_gap(mbps: u32) -> Duration {
    Duration::from_nanos(FRAME as u64 * 8_000 / u64::from(mbps))
}

/// A UDP frame of flow `flow`, behind an empty vnet header.
fn frame(flow: u16) -> Vec<u8> {
    const VNET: usize = 10;
    let mut frame = vec![0; VNET + FRAME];
    let ip_len = (FRAME - 14) as u16;
    let udp_len = ip_len - 20;
    let body = &mut frame[VNET..];
    body[..6].copy_from_slice(&[2, 0, 0, 0, 0x98, 2]);
    body[6..12].copy_from_slice(&[2, 0, 0, 0, 0x98, 1]);
    body[12..14].copy_from_slice(&[8, 0]);
    body[14] = 0x45;
    body[16..18].copy_from_slice(&ip_len.to_be_bytes());
    body[22] = 64;
    body[23] = 17;
    body[26..30].copy_from_slice(&LEFT.octets());
    body[30..34].copy_from_slice(&RIGHT.octets());
    let sum: u32 = body[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    body[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    body[34..36].copy_from_slice(&FIRST_PORT.to_be_bytes());
    body[36..38].copy_from_slice(&(FIRST_PORT + flow).to_be_bytes());
    body[38..40].copy_from_slice(&udp_len.to_be_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_arrivals_have_no_error_and_no_jitter() {
        let times: Vec<_> = (0..1_000).map(|i| ideal_gap(10) * i).collect();
        let Arrived { error, jitter, p99 } = judge(&times, 10).unwrap();
        assert!(error < 1e-6 && jitter < 1e-6, "{error} {jitter}");
        assert!((p99 - 0.0012).abs() < 1e-6, "{p99}");
    }

    #[test]
    fn pairs_at_twice_the_gap_keep_the_rate_and_show_as_jitter() {
        // Two frames at once, then two gaps of silence: the mean is right, the deviation is one whole gap.
        let times: Vec<_> = (0..1_000).map(|i| ideal_gap(10) * (i / 2 * 2)).collect();
        let Arrived { error, jitter, .. } = judge(&times, 10).unwrap();
        assert!(error < 0.01, "{error}");
        assert!((jitter - 1.0).abs() < 0.01, "{jitter}");
    }
}
