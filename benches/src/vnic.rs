//! A client process on a shared-memory vNIC, through the daemon, to a sink: beside DPDK's memif between two processes.
//!
//! Why: what bypassing the kernel is worth when the packets still pass a policy.
//! From: the bar of 5 million packets a second on two cores; memif is the shared-memory interface that Debian's DPDK
//! brings, and `dpdk-testpmd` its sender and its sink.
//! Not here: the engine alone (`scheduler`).
//! Invariant: on both sides one process with a core of its own makes each packet, and another, with the other core, takes
//! it out of the shared memory and throws it away.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use plimsoll_vnic::{FlowSpec, Status, Vnic};

use crate::forward::Sink;
use crate::net;
use crate::report::{Goal, Row};
use crate::testpmd::{SPAN, Testpmd, WARM_UP, per_second};

/// Bytes of a frame: 64 on the wire, with the check sequence.
const FRAME: usize = 60;

/// Goal for the daemon on two cores, beside memif.
const BAR: f64 = 0.5;

/// Flow queues that the client spreads its packets over.
const FLOWS: [u16; 2] = [1, 64];

/// Frames that the client posts between two doorbells.
const BATCH: u64 = 32;

/// `rounds` times, the sides taking turns.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let mut peer = Vec::new();
    let mut ours = FLOWS.map(|_| Vec::new());
    let mut trouble = None;
    for _ in 0..rounds {
        match memif() {
            Ok(rate) => peer.push(rate),
            Err(error) => trouble = Some(error),
        }
        for (flows, ours) in FLOWS.into_iter().zip(&mut ours) {
            ours.push(through_the_daemon(plimsoll, flows)?);
        }
    }
    if let Some(trouble) = trouble {
        eprintln!("bench: no memif beside it: {trouble:#}");
    }
    let row = |flows: u16, ours: &[f64]| {
        Row::new(format!("vNIC client to a sink, 64 B, {flows} flow queues"), "DPDK memif", "packets/s")
            .figures(&peer, ours)
            .goal(Goal::RatioAtLeast(BAR))
            .note("a process and a core on each side; memif has no policy")
    };
    Ok(FLOWS.into_iter().zip(&ours).map(|(flows, ours)| row(flows, ours)).collect())
}

/// A tenant's rate and delay beside a neighbour that scribbles over its whole region, and beside one that only sends.
///
/// Both clients share a core, the engine has the other. The rate is what the daemon sent of 100,000 packets a second
/// offered; the delay is from doorbell to port, as the daemon measures it.
pub fn isolation(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let (mut rates, mut delays) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        for (side, role) in [(0, "flood"), (1, "scribble")] {
            let (rate, delay) = beside(plimsoll, role)?;
            rates[side].push(rate);
            delays[side].push(delay);
        }
    }
    let beside = "an honest flood";
    Ok(vec![
        Row::new("beside a vNIC client that scribbles: rate", beside, "packets/s")
            .figures(&rates[0], &rates[1])
            .goal(Goal::RatioAtLeast(0.98)),
        Row::new("beside a vNIC client that scribbles: p99 delay", beside, "us")
            .figures(&delays[0], &delays[1])
            .goal(Goal::RatioAtMost(1.2)),
    ])
}

/// The tenant `quiet`'s packets a second and microseconds (p99) beside a neighbour.
fn beside(plimsoll: &Path, role: &str) -> Result<(f64, f64)> {
    let sink = vnics(plimsoll, &["quiet", "shop"])?;
    let mut neighbour = start(&sink, "shop", role, 4)?;
    let quiet = start(&sink, "quiet", "steady", 1)?.wait_with_output()?;
    let stats = sink.stats();
    let _ = neighbour.kill();
    let _ = neighbour.wait();
    ensure!(quiet.status.success(), "{}{}", String::from_utf8_lossy(&quiet.stderr), sink.words());
    let rate = String::from_utf8(quiet.stdout)?.trim().parse().context("the client's figure")?;
    let stats = stats?;
    let nodes = stats["nodes"].as_array().context("no classes in the stats")?;
    let class = nodes.iter().find(|node| node["path"] == "quiet").context("no class `quiet`")?;
    Ok((rate, class["delay"]["p99"].as_f64().context("no delay")?))
}

/// A daemon whose tenants have vNICs.
fn vnics(plimsoll: &Path, tenants: &[&str]) -> Result<Sink> {
    Sink::new(plimsoll, tenants, |socket| format!("{{vnic: {socket}}}"))
}

/// A client process of a tenant's.
fn start(sink: &Sink, tenant: &str, role: &str, flows: u16) -> Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg("--vnic-client")
        .arg(sink.socket(tenant))
        .args(["--vnic-role", role, "--vnic-flows", &flows.to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("the client")
}

/// Packets a second of a client process that the daemon has sent.
fn through_the_daemon(plimsoll: &Path, flows: u16) -> Result<f64> {
    let sink = vnics(plimsoll, &["shop"])?;
    let client = start(&sink, "shop", "flood", flows)?.wait_with_output()?;
    let said = String::from_utf8_lossy(&client.stderr);
    ensure!(client.status.success(), "the client failed: {said}{}", sink.words());
    String::from_utf8(client.stdout)?.trim().parse().context("the client's figure")
}

/// Role of a client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Sends all it can, for a while.
    Flood,
    /// Sends 100,000 packets a second, for a while.
    Steady,
    /// Writes anything anywhere in its region and sends between, until it is stopped.
    Scribble,
    /// Asks a tenant's program for values.
    Ask,
}

/// Packets a second of a steady client.
const STEADY: f64 = 1e5;

/// How long it sleeps between its batches: ten packets' time.
const PAUSE: Duration = Duration::from_micros(100);

/// The client process: does its part, and prints how many of its packets left in a second.
pub fn client(socket: &Path, role: Role, flows: u16) -> Result<()> {
    if role == Role::Ask {
        return crate::answers::client(socket);
    }
    net::pin(0);
    let mut vnic = Vnic::connect(socket)?;
    let mut queues = Vec::new();
    for flow in 0..flows {
        queues.push(vnic.open_flow(&spec(flow)).context("a flow queue")?);
    }
    let mac = vnic.identity().mac;
    let frames: Vec<_> = (0..flows).map(|flow| datagram(mac, flow)).collect();
    if role == Role::Scribble {
        // To another address than its neighbour's packets: if a scribbled frame claims that address as its own, before
        // a frame has come from there, frames for it go to the tenant that claimed it.
        let mut frame = frames[0];
        frame[5] = 3;
        scribble(&mut vnic, &queues, &frame);
    }
    let (mut sent, mut left, mut dropped, mut turn) = (0_u64, 0_u64, 0_u64, 0);
    let mut begun = None;
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        let due = if role == Role::Steady { (elapsed.as_secs_f64() * STEADY) as u64 } else { u64::MAX };
        for _ in 0..BATCH.min(due.saturating_sub(sent)) {
            if vnic.send(queues[turn], &frames[turn]).is_ok() {
                turn = (turn + 1) % queues.len();
                sent += 1;
            }
        }
        vnic.ring()?;
        vnic.poll_completions(|done| match done.status {
            Status::Sent => left += 1,
            Status::Dropped | Status::Malformed => dropped += 1,
        });
        if role == Role::Steady {
            // It shares its core with a neighbour that never sleeps; the kernel serves the one that sleeps first.
            std::thread::sleep(PAUSE);
        }
        match begun {
            None if elapsed >= WARM_UP => begun = Some((elapsed, left)),
            Some((at, before)) if elapsed >= WARM_UP + SPAN => {
                ensure!(dropped == 0, "{dropped} packets were dropped");
                println!("{}", (left - before) as f64 / (elapsed - at).as_secs_f64());
                return Ok(());
            }
            _ => {}
        }
    }
}

/// Never ends: the process that started it stops it.
fn scribble(vnic: &mut Vnic, queues: &[u32], frame: &[u8]) -> ! {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    loop {
        // Now and then a sound descriptor, so that the daemon looks at the rest.
        if random() % 8 == 0 {
            let _ = vnic.send(queues[random() as usize % queues.len()], frame);
            let _ = vnic.ring();
            vnic.poll_completions(|_| {});
        }
        let (region, layout) = vnic.region();
        // The rings lie before the buffers; half of all writes go there.
        let rings = layout.in_buffers(0, 0).unwrap_or(region.len());
        let span = if random() % 2 == 0 { rings } else { region.len() };
        let at = (random() % (span as u64 - 8)) as usize;
        region.write(at, &random().to_le_bytes()[..(random() % 9) as usize]);
    }
}

fn spec(flow: u16) -> FlowSpec {
    FlowSpec {
        addresses: Some((SOURCE.into(), DESTINATION.into())),
        protocol: Some(17),
        ports: Some((FIRST_PORT + flow, 9)),
        ..FlowSpec::default()
    }
}

const SOURCE: [u8; 4] = [10, 99, 0, 1];
const DESTINATION: [u8; 4] = [10, 99, 0, 2];
const FIRST_PORT: u16 = 10_000;

/// A datagram of 18 bytes without checksums.
fn datagram(mac: [u8; 6], flow: u16) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0x99, 2]);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..24].copy_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..30].copy_from_slice(&SOURCE);
    frame[30..34].copy_from_slice(&DESTINATION);
    frame[34..36].copy_from_slice(&(FIRST_PORT + flow).to_be_bytes());
    frame[36..38].copy_from_slice(&9_u16.to_be_bytes());
    frame[38..40].copy_from_slice(&26_u16.to_be_bytes());
    frame
}

/// Packets a second that one `dpdk-testpmd` receives over memif from another.
fn memif() -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let device = |role: &str| {
        format!(
            "net_memif0,role={role},id=0,socket={}/m.sock,socket-abstract=no,rsize=11",
            dir.path().display()
        )
    };
    let mut sink = Testpmd::start("0", &[&device("server")], &["--auto-start", "--forward-mode=rxonly"])?;
    sink.received(0)?;
    let mut sender =
        Testpmd::start("1", &[&device("client")], &["--auto-start", "--forward-mode=txonly", "--txpkts=60"])?;
    sender.received(0)?;
    per_second(|| sink.received(0)).context("over memif")
}
