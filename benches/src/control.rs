//! What receivers' control of senders costs a packet, by how often they decide.
//!
//! Why: PicNIC's Figure 12: at 10 us its feedback cost 22 % of the engines' time, and at 1 ms nothing worth speaking of.
//! From: one flow with acknowledgements between two hosts, a limit that never binds, virtual time; PN-E13 and PN-C2.
//! Not here: what control does for the tenants (`plimsoll papers --only PN`).
//! Invariant: both hosts' engines are charged, and nothing else; the sides carry the same frames at the same moments.

use std::time::Duration;

use anyhow::{Result, ensure};
use plimsoll_units::{Nanos, Span};

use crate::hold::processor_time;
use crate::host::{Host, datagram, mac};
use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// From one decision to the next, and by how much a packet may become dearer.
const EPOCHS: [(&str, Option<f64>); 5] =
    [("10us", None), ("50us", None), ("100us", None), ("500us", Some(1.05)), ("1ms", Some(1.02))];

/// Frames in a step, and its length: 1,400 B at 9.3 Gb/s. Every second one is acknowledged.
const FRAMES: usize = 10;
const STEP: Span = Span::micros(12);

/// `rounds` times, the sides taking turns.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let mut off = Vec::new();
    let mut on = EPOCHS.map(|_| Vec::new());
    for _ in 0..effort.rounds {
        off.push(cost(effort.packets, None)?);
        for ((epoch, _), on) in EPOCHS.iter().zip(&mut on) {
            on.push(cost(effort.packets, Some(epoch))?);
        }
    }
    let row = |((epoch, most), on): ((&str, Option<f64>), &Vec<f64>)| {
        let name = format!("a flow between two hosts, receivers decide each {epoch}");
        let row = Row::new(name, "ours, no feedback", "ns/packet").figures(&off, on);
        most.into_iter().fold(row, |row, most| row.goal(Goal::RatioAtMost(most)))
    };
    Ok(EPOCHS.into_iter().zip(&on).map(row).collect())
}

/// Nanoseconds of both engines for each frame that came.
fn cost(packets: u64, epoch: Option<&str>) -> Result<f64> {
    let (mut a, mut b) = (Host::new(&policy("a", epoch), 64, 64)?, Host::new(&policy("b", epoch), 64, 64)?);
    let (data, ack) = (datagram(mac(0), mac(1), 1_400), datagram(mac(1), mac(0), 60));
    let (mut now, mut spent, mut came) = (Nanos::ZERO, Duration::ZERO, 0);
    let steps = packets.div_ceil(FRAMES as u64);
    for _ in 0..steps {
        for n in 0..FRAMES {
            let _ = a.tenants[0].send(&data, None);
            if n % 2 == 1 {
                let _ = b.tenants[0].send(&ack, None);
            }
        }
        for host in [&mut a, &mut b] {
            let begun = processor_time();
            while host.engine.turn(now).busy {}
            spent += processor_time() - begun;
        }
        a.hand_over(&mut b);
        b.hand_over(&mut a);
        came += b.drain(0);
        a.drain(0);
        now += STEP;
    }
    // The first wait for the next hop's address.
    ensure!(came as u64 > packets * 9 / 10, "{came} of {packets} frames came");
    Ok(spent.as_secs_f64() * 1e9 / came as f64)
}

fn policy(host: &str, epoch: Option<&str>) -> String {
    let feedback = epoch.map_or(String::new(), |epoch| {
        format!("  feedback: {{key: /not/read, epoch: {epoch}, lapse: 1s, fallback: 40Gbps}}\n")
    });
    format!(
        "uplink: {{port: memory, rate: 40Gbps}}\n\
         tenants: {{t{host}: {{port: memory}}}}\n\
         overlay:\n\
         \x20 kind: geneve\n\
         \x20 vni: 7\n\
         \x20 host: {host}\n\
         \x20 hosts:\n\
         \x20   a: {{address: 192.0.2.1, mac: 06:00:00:00:00:01, tenants: {{ta: 02:00:00:00:01:00}}}}\n\
         \x20   b: {{address: 192.0.2.2, mac: 06:00:00:00:00:02, tenants: {{tb: 02:00:00:00:01:01}}}}\n{feedback}"
    )
}
