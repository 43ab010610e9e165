//! Guests on vhost-user, through the daemon: beside DPDK's own vhost port in `dpdk-testpmd`, and beside Open vSwitch.
//!
//! Why: what a policy costs where virtual machines' packets are taken out of their rings by a thread that spins.
//! From: the bar of 90 % of testpmd's loop, and 60 % as the floor. The guests are DPDK's virtio-user on both sides.
//! Not here: Linux guests, which their own network stack limits (`crates/cli/tests/live/vhost_user`).
//! Invariant: the guest process has one core and the switch the other, on both sides.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::forward::Sink;
use crate::ovs::Ovs;
use crate::report::{Goal, Row};
use crate::segments;
use crate::testpmd::{Testpmd, WARM_UP, per_second};

/// The guests' addresses, so that each can be told to send to the other.
pub const MACS: [&str; 2] = ["02:00:00:00:00:a0", "02:00:00:00:00:b0"];

/// The bar, and that for packets of which each is of another flow.
const BAR: f64 = 0.9;
const BAR_MIXED: f64 = 0.6;

/// `rounds` times, the sides taking turns.
pub fn measure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let (mut sink, mut mixed) = <([Vec<f64>; 2], [Vec<f64>; 2])>::default();
    let mut loops = LOOPS.map(|_| <[Vec<f64>; 2]>::default());
    let mut policed = POLICED.map(|_| <[Vec<f64>; 2]>::default());
    let mut long = <[Vec<f64>; 2]>::default();
    if !Ovs::is_installed() {
        eprintln!("bench: skipped: guests through Open vSwitch; install openvswitch-switch-dpdk");
    }
    for _ in 0..rounds {
        for (figures, flows) in [(&mut sink, Flows::One), (&mut mixed, Flows::Many)] {
            figures[0].push(dpdk_sink(flows).context("DPDK's vhost as a sink")?);
            figures[1].push(our_sink(plimsoll, flows, "").context("vhost-user to the uplink")?);
        }
        for (figures, around) in loops.iter_mut().zip(&LOOPS) {
            figures[0].push(dpdk_loop(around).context("DPDK's vhost as a switch")?);
            figures[1].push(our_loop(plimsoll, around).context("vhost-user to vhost-user")?);
        }
        long[0].push(dpdk_segments().context("segments through DPDK's vhost")?);
        long[1].push(our_segments(plimsoll).context("segments from vhost-user to vhost-user")?);
        for (figures, (at, _)) in policed.iter_mut().zip(POLICED).filter(|_| Ovs::is_installed()) {
            figures[0].push(ovs_loop(&LOOPS[at]).context("Open vSwitch as a switch")?);
            figures[1].push(our_limited_loop(plimsoll, &LOOPS[at]).context("guests with a maximum each")?);
        }
    }
    let row = |name: &str, [peer, ours]: &[Vec<f64>; 2], goal: f64| {
        Row::new(name, "testpmd, net_vhost", "packets/s")
            .figures(peer, ours)
            .goal(Goal::RatioAtLeast(goal))
            .note("a process and a core on each side; testpmd has no policy")
    };
    let mut rows = vec![
        row("vhost-user guest to a sink, 64 B", &sink, BAR),
        row("vhost-user guest to a sink, 64 B, each packet of another flow", &mixed, BAR_MIXED),
    ];
    for (figures, around) in loops.iter().zip(&LOOPS) {
        let name = format!("two vhost-user guests to each other, {}", around.words);
        rows.push(row(&name, figures, around.goal));
    }
    rows.push(row("from a vhost-user guest to another, segments of 64 KiB", &long, 1.5));
    for ([peer, ours], (at, goal)) in policed.iter().zip(POLICED) {
        let name = format!("two vhost-user guests to each other, {}, limited", LOOPS[at].words);
        let note = format!(
            "the switch on core {POLICED_CORE}, the guests on the other; a policer or a `max` for each, 100 Gb/s"
        );
        let row = Row::new(name, "OVS-DPDK with a policer on each port", "packets/s").figures(peer, ours);
        rows.push(row.goal(Goal::RatioAtLeast(goal)).note(note));
    }
    Ok(rows)
}

/// Packets that go round between two guests.
struct Around {
    words: &'static str,
    /// Bytes of a frame without its check sequence.
    len: usize,
    /// Bytes of a buffer, and how many there are.
    buffers: (usize, usize),
    /// Descriptors of a guest's ring, and bursts of 32 packets that go round from each guest: less than its ring holds.
    ring: u32,
    bursts: u32,
    goal: f64,
}

const LOOPS: [Around; 3] = [
    Around { words: "64 B", len: 60, buffers: (2_176, 16_384), ring: 1_024, bursts: 16, goal: 1.0 },
    Around { words: "1,500 B", len: 1_496, buffers: (2_176, 16_384), ring: 1_024, bursts: 16, goal: 1.5 },
    Around { words: "9,000 B", len: 8_996, buffers: (10_000, 8_192), ring: 256, bursts: 4, goal: 1.5 },
];

/// Which of these go through Open vSwitch as well, and the goal beside it.
const POLICED: [(usize, f64); 2] = [(0, 1.5), (1, 2.0)];

/// The core of the switch there, on both sides; that of the guests' packets is the other.
const POLICED_CORE: u32 = 0;

/// What backpressure costs a guest's packets: flows counted and a load watched, and some of the flows slowed down.
pub fn backpressure(plimsoll: &Path, rounds: u32) -> Result<Vec<Row>> {
    let idle = "backpressure: {watch: {tenant: vm}, threshold: 100%, release: 99%}\n";
    let mut figures = [(); 5].map(|()| Vec::new());
    for _ in 0..rounds {
        for (figures, (flows, more)) in figures.iter_mut().zip([
            (Flows::One, ""),
            (Flows::One, idle),
            (Flows::Many, ""),
            (Flows::Many, idle),
        ]) {
            figures.push(our_sink(plimsoll, flows, more).context("vhost-user to the uplink")?);
        }
        figures[4].push(metered(plimsoll).context("flows of a vhost-user guest that are metered")?);
    }
    let [one, one_idle, many, many_idle, many_metered] = &figures;
    let row = |what: &str, none: &[f64], ours: &[f64], least: f64| {
        let name = format!("vhost-user guest to a sink, 64 B, {what}");
        Row::new(name, "ours, no backpressure", "packets/s")
            .figures(none, ours)
            .goal(Goal::RatioAtLeast(least))
    };
    Ok(vec![
        row("flow counted, load watched", one, one_idle, 0.95),
        row("256 flows counted, load watched", many, many_idle, 0.95),
        row("100 of 256 flows metered", many, many_metered, 0.9),
    ])
}

/// A guest of which a hundred flows are metered. It first sends long packets, which are beyond the rate; what it then sends is below,
/// so that nothing waits, and the meters stay.
fn metered(plimsoll: &Path) -> Result<f64> {
    // Whatever this process does is an overload.
    let more = format!(
        "backpressure: {{watch: {{pids: [{}]}}, heavy: 1kpps, cores: 0.001, threshold: 1%, release: 0.1%, part: 0.1%, \
         mode: meter, rate: {RATE}, burst: 1MiB, flows: {METERED}, lifetime: 60s}}\n",
        std::process::id()
    );
    let sink = Sink::with(plimsoll, &["vm"], &more, |socket| format!("{{vhost_user: {socket}}}"))?;
    let held = || -> Result<usize> {
        let heavy = sink.ask("heavy")?;
        let flows = heavy["flows"].as_array().context("flows")?;
        Ok(flows.iter().filter(|flow| !flow["pressed"].is_null()).count())
    };
    await_sockets(&[&sink.socket("vm")])?;
    let mut guest = sender(&sink.socket("vm"), Flows::Many)?;
    guest.received(0)?;
    for command in ["stop", "set txpkts 1460", "start"] {
        guest.tell(command)?;
    }
    let begun = Instant::now();
    while held()? < METERED {
        ensure!(begun.elapsed() < UNTIL_METERED, "{} flows are metered, not {METERED}", held()?);
        let work = Instant::now();
        while work.elapsed() < Duration::from_millis(20) {}
    }
    for command in ["stop", "set txpkts 60", "start"] {
        guest.tell(command)?;
    }
    let sent = per_second(|| sent(&sink))?;
    ensure!(held()? == METERED, "{} flows are metered, not {METERED}", held()?);
    Ok(sent)
}

/// Flows of a guest that are metered, to a rate between what each sends in long and in short packets.
const METERED: usize = 100;
const RATE: &str = "30Mbps";
/// How long it may take until they are.
const UNTIL_METERED: Duration = Duration::from_secs(10);

/// Traffic of a guest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flows {
    /// Packets of one flow, one behind the other.
    One,
    /// A packet of each of many flows, in turn.
    Many,
}

/// A guest that only sends.
fn sender(socket: &Path, flows: Flows) -> Result<Testpmd> {
    let device = device(0, socket, 1_024);
    let mode = ["--auto-start", "--forward-mode=txonly", "--txpkts=60", "--txonly-multi-flow"];
    Testpmd::start("1", &[&device], if flows == Flows::Many { &mode } else { &mode[..3] })
}

/// One process that is both guests: each sends to the other what it receives, so that packets go round through the
/// switch. Their packets are on the other core than `switch`.
fn pair(switch: u32, sockets: [&Path; 2], around: &Around) -> Result<Testpmd> {
    let devices = [0, 1].map(|n| device(n, sockets[n], around.ring));
    let peers = [format!("--eth-peer=0,{}", MACS[1]), format!("--eth-peer=1,{}", MACS[0])];
    let packets = format!("--txpkts={}", around.len);
    let mode = ["--forward-mode=mac", &packets, &peers[0], &peers[1]];
    let asks = switch.to_string();
    let mut guests = Testpmd::with(&asks, &[&devices[0], &devices[1]], &mode, around.buffers)?;
    guests.received(0)?;
    // Until the switch asks both guests, for which Open vSwitch needs a second: what it drops before goes round no more.
    std::thread::sleep(4 * WARM_UP);
    guests.tell(&format!("start tx_first {}", around.bursts))?;
    Ok(guests)
}

/// One of the guests' ports.
pub fn device(n: usize, socket: &Path, ring: u32) -> String {
    format!("net_virtio_user{n},path={},mac={},queue_size={ring}", socket.display(), MACS[n])
}

fn dpdk_sink(flows: Flows) -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("vm");
    let vhost = format!("net_vhost0,iface={}", socket.display());
    let mut sink = Testpmd::start("0", &[&vhost], &["--auto-start", "--forward-mode=rxonly"])?;
    sink.received(0)?;
    let mut guest = sender(&socket, flows)?;
    guest.received(0)?;
    per_second(|| sink.received(0))
}

/// Measures again, up to twice, if a guest's memory kept the daemon waiting for a millisecond, as on a machine that takes memory back:
/// the guest is then served by a thread of its own for some seconds. `once` answers packets a second, and whether that was so.
fn not_apart(once: impl Fn() -> Result<(f64, bool)>) -> Result<f64> {
    let mut rate = 0.0;
    for _ in 0..3 {
        let apart;
        (rate, apart) = once()?;
        if !apart {
            break;
        }
        eprintln!("bench: a guest's memory kept the daemon waiting: measured again");
    }
    Ok(rate)
}

/// Whether a guest was served by a thread of its own.
fn was_apart(sink: &Sink) -> bool {
    sink.words().contains("thread of its own")
}

/// With `more` at the end of the policy.
fn our_sink(plimsoll: &Path, flows: Flows, more: &str) -> Result<f64> {
    not_apart(|| our_sink_once(plimsoll, flows, more))
}

fn our_sink_once(plimsoll: &Path, flows: Flows, more: &str) -> Result<(f64, bool)> {
    let sink = Sink::with(plimsoll, &["vm"], more, |socket| format!("{{vhost_user: {socket}}}"))?;
    await_sockets(&[&sink.socket("vm")])?;
    let mut guest = sender(&sink.socket("vm"), flows)?;
    guest.received(0)?;
    let rate = per_second(|| sent(&sink))?;
    Ok((rate, was_apart(&sink)))
}

/// Packets that have left.
fn sent(sink: &Sink) -> Result<u64> {
    let sent = sink.stats()?["uplink"]["tx_packets"].as_u64();
    sent.with_context(|| format!("no count of what left; {}", sink.words()))
}

fn dpdk_loop(around: &Around) -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let sockets = ["a", "b"].map(|name| dir.path().join(name));
    let vhosts = [0, 1].map(|n: usize| format!("net_vhost{n},iface={}", sockets[n].display()));
    let mode = ["--auto-start", "--forward-mode=io"];
    let mut switch = Testpmd::with("0", &[&vhosts[0], &vhosts[1]], &mode, around.buffers)?;
    switch.received(0)?;
    received_by_both(pair(1, [&sockets[0], &sockets[1]], around)?)
}

fn ovs_loop(around: &Around) -> Result<f64> {
    let switch = Ovs::start(POLICED_CORE)?;
    received_by_both(pair(POLICED_CORE, [&switch.socket("a"), &switch.socket("b")], around)?)
}

fn our_loop(plimsoll: &Path, around: &Around) -> Result<f64> {
    our_loop_with(plimsoll, 1, "", around)
}

fn our_limited_loop(plimsoll: &Path, around: &Around) -> Result<f64> {
    our_loop_with(plimsoll, POLICED_CORE, ", max: 100Gbps", around)
}

/// With the engine on `core`, and `keys` of each guest.
fn our_loop_with(plimsoll: &Path, core: u32, keys: &str, around: &Around) -> Result<f64> {
    not_apart(|| {
        let sink = our_switch(plimsoll, core, keys)?;
        let sockets = ["a", "b"].map(|name| sink.socket(name));
        let guests = pair(core, [&sockets[0], &sockets[1]], around)?;
        let rate = received_by_both(guests).with_context(|| sink.words())?;
        note_lost(&sink, around)?;
        Ok((rate, was_apart(&sink)))
    })
}

/// Says how many packets the daemon has lost: they go round no more.
fn note_lost(sink: &Sink, around: &Around) -> Result<()> {
    let stats = sink.stats()?;
    for (name, tenant) in stats["tenants"].as_object().context("no tenants in the stats")? {
        let lost = tenant["drops"].as_object().into_iter().flatten();
        let lost: Vec<_> = lost.filter(|(_, count)| count.as_u64() > Some(0)).collect();
        if !lost.is_empty() {
            let of = 32 * around.bursts;
            eprintln!("bench: of {of} packets of {} that go round from {name}, lost: {lost:?}", around.words);
        }
    }
    Ok(())
}

/// A daemon with the guests `a` and `b`.
fn our_switch(plimsoll: &Path, core: u32, keys: &str) -> Result<Sink> {
    // Addresses that are known from the start: otherwise frames for a guest that has not sent yet would go to the
    // uplink.
    let port = |socket: String| {
        let mac = MACS[usize::from(socket.ends_with('b'))];
        format!("{{vhost_user: {{socket: {socket}, mac: '{mac}'}}}}{keys}")
    };
    let sink = Sink::on(core, plimsoll, &["a", "b"], "", port)?;
    await_sockets(&[&sink.socket("a"), &sink.socket("b")])?;
    Ok(sink)
}

fn dpdk_segments() -> Result<f64> {
    let dir = tempfile::tempdir()?;
    let sockets = ["a", "b"].map(|name| dir.path().join(name));
    let [a, b] = segments::vhost_devices([&sockets[0], &sockets[1]]);
    let mut switch = Testpmd::with("0", &[&a, &b], &segments::SWITCH_MODE, segments::SWITCH)?;
    switch.received(0)?;
    segments::received(1, [&sockets[0], &sockets[1]])
}

fn our_segments(plimsoll: &Path) -> Result<f64> {
    let sink = our_switch(plimsoll, 1, "")?;
    segments::received(1, [&sink.socket("a"), &sink.socket("b")]).with_context(|| sink.words())
}

fn received_by_both(mut guests: Testpmd) -> Result<f64> {
    per_second(|| Ok(guests.received(0)? + guests.received(1)?))
}

/// Waits until the daemon has made its sockets.
fn await_sockets(sockets: &[&Path]) -> Result<()> {
    for _ in 0..500 {
        if sockets.iter().all(|socket| socket.exists()) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    anyhow::bail!("the daemon made no sockets within 5 s")
}
