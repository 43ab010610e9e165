//! What backpressure costs packets: where flows are counted and a load is watched, and where a hundred flows are slowed down.
//!
//! Why: every packet of a watched tenant is counted, also while nothing is overloaded.
//! From: the bars of 5 % for an idle watch, and 10 % while a hundred flows are slowed down.
//! Not here: the counting alone (`heavy`), and whether the right flows are slowed down (the tests).
//! Invariant: both sides get the same frames, none of which is dropped; only the policy differs.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::host::{datagram, mac};
use crate::ingress::{Ours, TENANTS, rate};
use crate::report::{Goal, Row};
use crate::scheduler::Effort;
use crate::vhost;

/// Flows that are slowed down: more than one for some tenants.
const FLOWS: usize = 100;

/// Nothing is ever overloaded, as a hundredth of a core is never all of one.
const IDLE: &str = "backpressure: {watch: {tenant: t0}, threshold: 100%, release: 99%}\n";

/// Always overloaded. Each flow sends more than its part, which marks cannot change: nothing is metered or dropped.
const PRESSED: &str = "backpressure: {watch: engine, heavy: 1kpps, cores: 0.01, threshold: 1%, release: 0.1%, \
                       part: 0.1%, mode: mark, rate: 1Mbps, flows: 128}\n";

/// `rounds` times, the sides taking turns.
pub fn measure(plimsoll: &Path, effort: Effort) -> Result<Vec<Row>> {
    let frames = frames();
    let [mut none, mut idle, mut pressed] = [(); 3].map(|()| Vec::new());
    for _ in 0..effort.rounds {
        none.push(rate(effort.packets, &frames, &mut Ours::new("")?)?);
        idle.push(rate(effort.packets, &frames, &mut Ours::new(IDLE)?)?);
        let mut ours = Ours::new(PRESSED)?;
        // The first packets make the flows heavy hitters.
        rate(effort.packets, &frames, &mut ours)?;
        let before = slowed(&mut ours);
        pressed.push(rate(effort.packets, &frames, &mut ours)?);
        ensure!(before == FLOWS && slowed(&mut ours) == FLOWS, "{before} flows are slowed down, not {FLOWS}");
    }
    let row = |what: &str, ours: &[f64], least: f64| {
        let name = format!("frames in, 64 B, {TENANTS} tenants, {what}");
        Row::new(name, "ours, no backpressure", "packets/s")
            .figures(&none, ours)
            .goal(Goal::RatioAtLeast(least))
    };
    let mut rows = vec![
        row("flows counted, load watched", &idle, 0.95),
        row(&format!("{FLOWS} flows slowed down"), &pressed, 0.9),
    ];
    rows.extend(vhost::backpressure(plimsoll, effort.rounds)?);
    Ok(rows)
}

/// Flows that are slowed down.
fn slowed(ours: &mut Ours) -> usize {
    let now = ours.clock.now();
    ours.host
        .engine
        .heavy(now)
        .map_or(0, |now| now.flows.iter().filter(|flow| flow.pressed.is_some()).count())
}

/// Frames of [`FLOWS`] flows, by tenant; their senders understand marks.
fn frames() -> Vec<Vec<Vec<u8>>> {
    let flow = |tenant: u8, number: u8| {
        let mut frame = datagram([2, 0, 0, 0, 2, 2], mac(tenant), 60);
        (frame[15], frame[35]) = (2, number); // ECT(0), and the source port
        frame
    };
    let of = |tenant: u8| if usize::from(tenant) + usize::from(TENANTS) < FLOWS { 2 } else { 1 };
    (0..TENANTS).map(|tenant| (0..of(tenant)).map(|number| flow(tenant, number)).collect()).collect()
}
