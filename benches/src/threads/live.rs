//! The daemon's own engines for several threads, each turned by a thread of its own, as `plimsoll run` does.
//!
//! Why: beside the leases there are the rings between threads, and what each turn does for them.
//! Not here: waiting and waking, ports of the kernel.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_daemon::{Clock, Dataplane, DepartureLog, Setup, engine_config, lane_spec, several};
use plimsoll_policy::Checked;
use plimsoll_ports::{FRAME_ROOM, MemoryPort, Port, Sending};

use super::{FED, SPAN, TENANTS, weight};
use crate::hold::processor_time;
use crate::host::{datagram, mac, memory};
use crate::net;
use crate::report::{Goal, Row, median};

/// Two threads beside one: all frames to the uplink, and one in four to a tenant of the other thread.
pub(super) fn rows(rounds: u32) -> Result<Vec<Row>> {
    [(0, "to the uplink"), (4, "one in four to a tenant of the other thread")]
        .into_iter()
        .map(|(crossing, what)| {
            let (mut one, mut two, mut clock) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..rounds {
                one.push(run(1, crossing)?.0);
                let (by_processor_time, by_clock) = run(2, crossing)?;
                two.push(by_processor_time);
                clock.push(by_clock);
            }
            let row = Row::new(
                format!("2 threads as `plimsoll run` has them, 64 B, {what}"),
                "one thread",
                "packets/s",
            );
            let row = row.figures(&one, &two).note(format!(
                "by processor time; leases, rings between threads; by the clock {:.2} M/s",
                median(&clock).unwrap_or(0.0) / 1e6
            ));
            Ok(if crossing == 0 { row.goal(Goal::RatioAtLeast(1.7)) } else { row })
        })
        .collect()
}

/// One thread's engine, and the far ends of its ports.
struct Side {
    engine: Dataplane,
    wire: MemoryPort,
    tenants: Vec<(MemoryPort, Vec<u8>, Vec<u8>)>,
}

/// Packets a second that left or were delivered: by the sum over threads of processor time, and by the clock.
fn run(threads: usize, crossing: usize) -> Result<(f64, f64)> {
    let mut policy = format!(
        "uplink: {{port: memory, rate: 100Gbps, overhead: 24B}}\nengine: {{flows: drr, threads: {threads}}}\ntenants:\n"
    );
    (0..TENANTS).for_each(|n| policy += &format!("  t{n}: {{port: memory, weight: {}}}\n", weight(n)));
    let checked = plimsoll_policy::check_str("bench.yaml", &policy)
        .map_err(|errors| anyhow::anyhow!(errors.render(false)))?;
    let sides = sides(&checked, threads)?;
    let (clock, ready, stop) =
        (Clock::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let handles: Vec<_> = sides
        .into_iter()
        .enumerate()
        .map(|(thread, side)| {
            let (ready, stop) = (Arc::clone(&ready), Arc::clone(&stop));
            std::thread::spawn(move || {
                net::pin(thread);
                ready.fetch_add(1, Ordering::AcqRel);
                while ready.load(Ordering::Acquire) < threads {
                    std::hint::spin_loop();
                }
                side.work(clock, crossing, &stop)
            })
        })
        .collect();
    std::thread::sleep(SPAN);
    stop.store(true, Ordering::Relaxed);
    let mut sum = (0.0, 0.0);
    for handle in handles {
        let (packets, spent, lasted) = handle.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
        sum.0 += packets as f64 / spent.as_secs_f64();
        sum.1 += packets as f64 / lasted.as_secs_f64();
    }
    Ok(sum)
}

/// The engines, with a tenant's far end on its thread's side.
fn sides(checked: &Checked, threads: usize) -> Result<Vec<Side>> {
    let (mut ports, mut tenants) = (Vec::new(), Vec::new());
    for n in 0..TENANTS {
        let (port, end) = memory(64, Some(mac(n)))?;
        ports.push(Some(Port::Memory(port)));
        // The next tenant is on the other thread, where there is one.
        let near = mac((n + 1) % TENANTS);
        tenants.push(Some((end, datagram(mac(n), [2, 0, 0, 0, 2, 2], 60), datagram(mac(n), near, 60))));
    }
    let (mut uplinks, mut wires) = (Vec::new(), Vec::new());
    for _ in 0..threads {
        let (uplink, wire) = memory(1_024, None)?;
        uplinks.push(Port::Memory(uplink));
        wires.push(wire);
    }
    let logs: Vec<_> = (0..threads).map(|_| Arc::new(DepartureLog::default())).collect();
    let engines = if threads == 1 {
        let uplink = uplinks.pop().context("an uplink")?;
        let named = checked.config.tenants.iter().zip(ports);
        vec![Dataplane::new(Setup {
            program: Arc::new(checked.program.clone()),
            config: engine_config(checked, &uplink),
            uplink,
            lanes: named.map(|(tenant, port)| lane_spec(checked, &tenant.name, port)).collect(),
            log: Arc::clone(&logs[0]),
            fleet: None,
        })]
    } else {
        several(checked, uplinks, ports, &logs)?
    };
    let side = |(thread, (engine, wire)): (usize, (Dataplane, MemoryPort))| {
        let own = tenants.iter_mut().skip(thread).step_by(threads);
        Side { engine, wire, tenants: own.filter_map(Option::take).collect() }
    };
    Ok(engines.into_iter().zip(wires).enumerate().map(side).collect())
}

impl Side {
    fn work(mut self, clock: Clock, crossing: usize, stop: &AtomicBool) -> (u64, Duration, Duration) {
        let mut buffer = vec![0; FRAME_ROOM];
        let (begun, from) = (processor_time(), clock.now());
        let (mut packets, mut turns) = (0, 0_usize);
        while !stop.load(Ordering::Relaxed) {
            turns += 1;
            for (port, outward, near) in &mut self.tenants {
                for number in 0..FED {
                    let crosses = crossing > 0 && (turns * FED + number).is_multiple_of(crossing);
                    if !matches!(port.send(if crosses { near } else { outward }, None), Ok(Sending::Sent)) {
                        break;
                    }
                }
            }
            self.engine.turn_by(&|_| clock.now());
            while let Ok(Some(_)) = self.wire.receive(&mut buffer) {
                packets += 1;
            }
            if crossing > 0 {
                for (port, ..) in &mut self.tenants {
                    while let Ok(Some(_)) = port.receive(&mut buffer) {
                        packets += 1;
                    }
                }
            }
        }
        (packets, processor_time() - begun, (clock.now() - from).to_std())
    }
}
