//! What backpressure costs packets: where flows are counted and a load is watched, and where a hundred flows are slowed down.
//!
//! Why: every packet of a watched tenant is counted, also while nothing is overloaded.
//! From: the bars of 5 % for an idle watch, and 10 % while a hundred flows are slowed down.
//! Not here: the counting alone (`heavy`), and whether the right flows are slowed down (the tests).
//! Invariant: both sides get the same frames, none of which is dropped; only the policy differs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll_ports::{FRAME_ROOM, Sending};

use crate::hold::processor_time;
use crate::host::{datagram, mac};
use crate::ingress::{BATCH, Ours, Side, TENANTS, rate};
use crate::report::{Goal, Row};
use crate::scheduler::Effort;
use crate::vhost;

/// Flows that are slowed down: more than one for some tenants.
const FLOWS: usize = 100;

/// Nothing is ever overloaded, as a hundredth of a core is never all of one.
const IDLE: &str = "backpressure: {watch: {tenant: t0}, threshold: 100%, release: 99%}\n";

/// Always overloaded. Each flow first sends long frames, which are beyond the rate, until it is chosen. What it then sends is below,
/// so that it is marked and counts as one that heeds marks.
const PRESSED: &str = "backpressure: {watch: engine, heavy: 1kpps, cores: 0.01, threshold: 1%, release: 0.1%, \
                       part: 0.1%, mode: mark, rate: 100Mbps, lifetime: 60s, flows: 128}\n";
/// Frames after which each of the flows has just become a heavy hitter: 2,000 packets in two seconds.
const UNTIL_CHOSEN: u64 = 2_120 * FLOWS as u64;

/// Nothing is ever overloaded, and each flow counts as heavy, so that its round trip is measured.
const IDLE_TCP: &str =
    "backpressure: {watch: {tenant: t0}, heavy: 1kpps, threshold: 100%, release: 99%, mode: mark}\n";

/// Always overloaded. Each flow first sends long frames, which are beyond the rate; what it then sends is below, and it stays
/// metered as long as the overload lasts. Nothing of that is dropped.
const METERED: &str = "backpressure: {watch: engine, heavy: 1kpps, cores: 0.01, threshold: 1%, release: 0.1%, \
                       part: 0.1%, mode: meter, rate: 100Mbps, burst: 1MiB, lifetime: 60s, flows: 128}\n";

/// A tenant whose connections are mediated.
const MEDIATED: &str = ", ecn: mediated";

/// `rounds` times, the sides taking turns.
pub fn measure(plimsoll: &Path, effort: Effort) -> Result<Vec<Row>> {
    let frames = frames(60);
    let [mut none, mut idle, mut pressed, mut metered] = [(); 4].map(|()| Vec::new());
    let long = self::frames(1_514);
    for _ in 0..effort.rounds {
        none.push(rate(effort.packets, &frames, &mut Ours::new("")?)?);
        idle.push(rate(effort.packets, &frames, &mut Ours::new(IDLE)?)?);
        let mut ours = Ours::new(PRESSED)?;
        warm_up(UNTIL_CHOSEN, &long, &mut ours);
        let before = slowed(&mut ours);
        pressed.push(rate(effort.packets, &frames, &mut ours)?);
        ensure!(
            before.min(slowed(&mut ours)) >= FLOWS * 9 / 10,
            "{before} flows are slowed down, not {FLOWS}"
        );
        let mut ours = Ours::new(METERED)?;
        warm_up(effort.packets, &long, &mut ours);
        let before = slowed(&mut ours);
        metered.push(rate(effort.packets, &frames, &mut ours)?);
        ensure!(before == FLOWS && slowed(&mut ours) == FLOWS, "{before} flows are metered, not {FLOWS}");
    }
    let row = |what: &str, ours: &[f64], least: f64| {
        let name = format!("frames in, 64 B, {TENANTS} tenants, {what}");
        Row::new(name, "ours, no backpressure", "packets/s")
            .figures(&none, ours)
            .goal(Goal::RatioAtLeast(least))
    };
    let mut rows = vec![
        row("flows counted, load watched", &idle, 0.95),
        row(&format!("{FLOWS} flows marked"), &pressed, 0.9).note("a few may not be chosen"),
        row(&format!("{FLOWS} flows metered"), &metered, 0.9),
    ];
    rows.extend(connections(effort)?);
    rows.extend(vhost::backpressure(plimsoll, effort.rounds)?);
    Ok(rows)
}

/// What it costs segments of TCP: round trips that are measured while nothing is overloaded, and mediated ECN.
fn connections(effort: Effort) -> Result<Vec<Row>> {
    let [mut none, mut idle, mut mediated] = [(); 3].map(|()| Vec::new());
    for _ in 0..effort.rounds {
        for (keys, more, figures) in
            [("", "", &mut none), ("", IDLE_TCP, &mut idle), (MEDIATED, "", &mut mediated)]
        {
            let mut ours = Ours::with(keys, more)?;
            shake_hands(&mut ours)?;
            talk(effort.packets / 4, &mut ours)?;
            figures.push(talk(effort.packets, &mut ours)?);
        }
    }
    let row = |what: &str, ours: &[f64]| {
        let name = format!("frames in, 66 B of TCP with timestamps, {TENANTS} tenants, {what}");
        Row::new(name, "ours, no backpressure", "packets/s").figures(&none, ours)
    };
    Ok(vec![
        row("round trips measured, load watched", &idle).goal(Goal::RatioAtLeast(0.95)),
        row("ECN mediated", &mediated)
            .note("no goal is stated; each tenant's connection was seen from its SYN"),
    ])
}

/// Segments a second that come in on the connections. After each batch every tenant answers, which is not charged.
fn talk(packets: u64, ours: &mut Ours) -> Result<f64> {
    let connections: Vec<_> =
        (0..2).flat_map(|number| (0..TENANTS).map(move |tenant| (tenant, number))).take(FLOWS).collect();
    let (mut spent, mut arrived) = (Duration::ZERO, 0);
    let batches = packets.div_ceil(BATCH as u64);
    for batch in 0..batches {
        let stamp = u32::try_from(batch).expect("few batches") + 2;
        for (tenant, number) in connections.iter().cycle().take(BATCH) {
            let sent = ours.ends().0.send(&segment(*tenant, *number, ACK, [stamp, stamp - 1]), None);
            ensure!(sent == Ok(Sending::Sent), "the wire takes no segment: {sent:?}");
        }
        let begun = processor_time();
        ours.move_all();
        spent += processor_time() - begun;
        arrived += drain(ours)[1];
        for (tenant, number) in &connections {
            let mut answer = segment(*tenant, *number, ACK, [stamp, stamp]);
            reverse(&mut answer);
            let sent = ours.ends().1[usize::from(*tenant)].send(&answer, None);
            ensure!(sent == Ok(Sending::Sent), "tenant {tenant} cannot answer: {sent:?}");
        }
        ours.move_all();
        drain(ours);
    }
    ensure!(arrived == batches * BATCH as u64, "{arrived} of {} segments arrived", batches * BATCH as u64);
    Ok(arrived as f64 / spent.as_secs_f64())
}

/// Opens a connection for each flow of [`frames`], as seen from the engine: SYNs come in, and the tenants answer.
fn shake_hands(ours: &mut Ours) -> Result<()> {
    for (tenant, number) in
        (0..TENANTS).flat_map(|tenant| (0..of(tenant)).map(move |number| (tenant, number)))
    {
        let asked = ours.ends().0.send(&segment(tenant, number, SYN, [1, 0]), None);
        ours.move_all();
        let mut answer = segment(tenant, number, SYN | ACK, [1, 1]);
        reverse(&mut answer);
        let answered = ours.ends().1[usize::from(tenant)].send(&answer, None);
        ours.move_all();
        ensure!(asked.is_ok() && answered.is_ok(), "a handshake of tenant {tenant}");
        ensure!(drain(ours) == [1, 1], "a SYN or its answer did not arrive");
    }
    Ok(())
}

/// Moves this many frames, whether they arrive or not.
fn warm_up(packets: u64, frames: &[Vec<Vec<u8>>], ours: &mut Ours) {
    let all = frames.iter().flatten().cycle();
    for (n, frame) in (1..=packets).zip(all) {
        let _ = ours.ends().0.send(frame, None);
        if n % 64 == 0 {
            ours.move_all();
            drain(ours);
        }
    }
    ours.move_all();
    drain(ours);
}

/// Throws away what has come to either end. Returns how many frames came to the wire, and to tenants.
fn drain(ours: &mut Ours) -> [u64; 2] {
    let (mut buffer, mut came) = (vec![0; FRAME_ROOM], [0, 0]);
    let (wire, tenants) = ours.ends();
    while let Ok(Some(_)) = wire.receive(&mut buffer) {
        came[0] += 1;
    }
    for tenant in tenants {
        while let Ok(Some(_)) = tenant.receive(&mut buffer) {
            came[1] += 1;
        }
    }
    came
}

/// Flows that are slowed down.
fn slowed(ours: &mut Ours) -> usize {
    let now = ours.clock.now();
    ours.host
        .engine
        .heavy(now)
        .map_or(0, |now| now.flows.iter().filter(|flow| flow.pressed.is_some()).count())
}

/// Frames of this length of [`FLOWS`] flows, by tenant; their senders understand marks.
fn frames(len: usize) -> Vec<Vec<Vec<u8>>> {
    let flow = |tenant: u8, number: u8| {
        let mut frame = datagram([2, 0, 0, 0, 2, 2], mac(tenant), len);
        (frame[15], frame[35]) = (2, number); // ECT(0), and the source port
        frame
    };
    (0..TENANTS).map(|tenant| (0..of(tenant)).map(|number| flow(tenant, number)).collect()).collect()
}

/// Flows of a tenant.
fn of(tenant: u8) -> u8 {
    if usize::from(tenant) + usize::from(TENANTS) < FLOWS { 2 } else { 1 }
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// A segment of TCP without payload to a tenant, with its timestamp and the one that it repeats, and without checksums.
fn segment(tenant: u8, number: u8, flags: u8, [at, echo]: [u32; 2]) -> Vec<u8> {
    let mut frame = datagram([2, 0, 0, 0, 2, 2], mac(tenant), 66);
    frame[15] = if flags & SYN == 0 { 2 } else { 0 }; // ECT(0), but for SYNs
    (frame[23], frame[35]) = (6, number);
    frame[38..42].copy_from_slice(&at.to_be_bytes()); // its number
    frame[42..46].copy_from_slice(&[0, 0, 0, 1]); // what it acknowledges
    frame[46..50].copy_from_slice(&[0x80, flags, 4, 0]);
    frame[54..58].copy_from_slice(&[1, 1, 8, 10]);
    frame[58..62].copy_from_slice(&at.to_be_bytes());
    frame[62..66].copy_from_slice(&echo.to_be_bytes());
    frame
}

/// Turns a frame of [`segment`] round.
fn reverse(frame: &mut [u8]) {
    for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
        for n in 0..len {
            frame.swap(a + n, b + n);
        }
    }
}
