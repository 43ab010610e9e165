//! Several engine threads under one policy: packets a second, and how exactly the threads share the link.
//!
//! Why: one thread serves one queue of the uplink; leases let several serve one policy.
//! From: issue 21, section 4: two threads at least 1.7 times one, every class within 2 % of its share over 10 ms.
//! Not here: shares of random policies (the engine's tests).
//! Invariant: each thread makes the frames of its own tenants and throws away what leaves, in both sides of a row. Rates are
//! measured on threads of the machine, shares in virtual time (`shares`), where no other process takes a thread's core.

mod live;
mod shares;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use plimsoll_control::leases::{Coordinator, Exchange, MemberId, Report, Settings, Taken};
use plimsoll_daemon::{Clock, Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_nic::ClassBytes;
use plimsoll_policy::{Checked, Fields, TenantId};
use plimsoll_ports::{FRAME_ROOM, MemoryPort, Port, Sending};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::hold::processor_time;
use crate::host::{datagram, mac, memory};
use crate::net;
use crate::report::{Goal, Row, median};

const TENANTS: u8 = 64;

/// What tenants send.
#[derive(Clone, Copy)]
struct Load {
    link: BitRate,
    /// Bytes of a frame.
    len: usize,
    /// Frames that are given to each tenant's port before a turn, at most.
    fed: usize,
}

/// Frames that are given to each tenant's port before a turn, where the link holds none back.
const FED: usize = 8;

/// Bytes of a short frame, and what `overhead: 24B` adds: preamble, gap and check sequence.
const SHORT: usize = 60;
const OVERHEAD: u64 = 24;

/// Tenants whose frames a limit holds, and its part of the link in hundredths. By weight they would get a quarter.
const FAR: u8 = 16;
const LIMIT: u64 = 10;

/// How long a lease lasts.
const EPOCH: Span = Span::micros(100);

/// How long each number of threads runs.
const SPAN: Duration = Duration::from_millis(400);

/// One, two and more threads, as far as there are cores.
pub fn measure(rounds: u32) -> Result<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let mut rows = Vec::new();
    for threads in [1, 2, 4, 8, 16] {
        if threads <= cores {
            rows.push(packets(threads, rounds)?);
        }
        rows.extend(shares::rows(threads)?);
    }
    if cores > 1 {
        rows.extend(live::rows(rounds)?);
    }
    rows.push(computing(TENANTS.into())?);
    rows.push(computing(4_096)?);
    Ok(rows)
}

/// Packets a second of several threads beside one, on a link that holds none of them back.
fn packets(threads: usize, rounds: u32) -> Result<Row> {
    let (mut one, mut many, mut clock, mut epoch) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        one.push(run(1)?.by_processor_time);
        let ran = run(threads)?;
        many.push(ran.by_processor_time);
        clock.push(ran.by_clock);
        epoch.push(ran.epoch);
    }
    let name = format!("memory ports, 64 B, {TENANTS} tenants, {threads} threads");
    let row = Row::new(name, "one thread", "packets/s").figures(&one, &many).note(format!(
        "by processor time; leases of {EPOCH}, each computed in {:.1} us; by the clock {:.2} M/s",
        median(&epoch).unwrap_or(0.0),
        median(&clock).unwrap_or(0.0) / 1e6
    ));
    Ok(if threads == 2 { row.goal(Goal::RatioAtLeast(1.7)) } else { row })
}

/// What an epoch's computation takes for tenants on 16 threads that all have something waiting.
fn computing(tenants: usize) -> Result<Row> {
    const EPOCHS: u64 = 300;
    const THREADS: usize = 16;
    let mut policy = "uplink: {port: memory, rate: 100Gbps}\ntenants:\n".to_owned();
    (0..tenants).for_each(|n| policy += &format!("  t{n}: {{port: memory, weight: {}}}\n", weight(n as u8)));
    let checked = plimsoll_policy::check_str("bench.yaml", &policy)
        .map_err(|errors| anyhow::anyhow!(errors.render(false)))?;
    let settings = Settings { threads: THREADS, members: tenants, epoch: EPOCH };
    let mut coordinator = Coordinator::new(&checked.program, settings)?;
    let mut members = Vec::new();
    for n in 0..tenants {
        let tenant = Some(TenantId(n as u32));
        let placement = coordinator.program().classify(&Fields { tenant, ..Fields::default() });
        members.push(coordinator.join(&placement, n % THREADS)?);
    }
    let mut draw = crate::hold::Draw::new();
    let (mut left, mut spent) = (vec![0; tenants], Duration::ZERO);
    for epoch in 1..=EPOCHS {
        for (&member, left) in members.iter().zip(&mut left) {
            *left += u64::from(draw.below(3_000));
            coordinator.handle_report(member, Report { left: *left, waiting: draw.below(9_000).into() });
        }
        let begun = processor_time();
        coordinator.handle_epoch(Nanos::new(epoch * EPOCH.as_u64()));
        spent += processor_time() - begun;
    }
    let micros = spent.as_secs_f64() * 1e6 / EPOCHS as f64;
    Ok(Row::new(format!("leases of {tenants} busy tenants for {THREADS} threads"), "a lease", "us")
        .figures(&[EPOCH.as_secs_f64() * 1e6], &[micros]))
}

fn weight(tenant: u8) -> u32 {
    1 + u32::from(tenant) / 2 % 4
}

/// What several threads did.
#[derive(Default)]
struct Ran {
    /// Packets a second, the sum over threads.
    by_processor_time: f64,
    by_clock: f64,
    /// Microseconds of an epoch's computation, on average.
    epoch: f64,
}

/// What one thread did.
struct Alone {
    packets: u64,
    spent: Duration,
    lasted: Duration,
    epoch: f64,
}

/// The engines of several threads, and what they share.
struct Crew {
    workers: Vec<Worker>,
    coordinator: Coordinator,
    exchange: Exchange,
    /// Bytes of the burst of the limit.
    burst: u64,
}

impl Crew {
    /// The engines of so many threads, whose link has a limit.
    fn new(threads: usize, load: Load) -> Result<Self> {
        let link = load.link;
        let far: Vec<String> = (0..FAR).map(|n| format!("t{n}")).collect();
        let mut policy = format!(
            "uplink: {{port: memory, rate: {}bps, overhead: {OVERHEAD}B}}\nengine: {{flows: drr}}\n\
             limits: {{far: {{match: {{tenant: [{}], dst_port: 10}}, rate: {}bps}}}}\ntenants:\n",
            link.get(),
            far.join(", "),
            link.get() * LIMIT / 100
        );
        (0..TENANTS).for_each(|n| policy += &format!("  t{n}: {{port: memory, weight: {}}}\n", weight(n)));
        let checked = plimsoll_policy::check_str("bench.yaml", &policy)
            .map_err(|errors| anyhow::anyhow!(errors.render(false)))?;
        let settings = Settings { threads, members: usize::from(TENANTS), epoch: EPOCH };
        let mut coordinator = Coordinator::new(&checked.program, settings)?;
        let mut workers: Vec<Worker> = Vec::new();
        for thread in 0..threads {
            workers.push(Worker::new(thread, threads, load, &checked, &mut coordinator)?);
        }
        coordinator.handle_epoch(Nanos::ZERO);
        let exchange = Exchange::new(&coordinator);
        exchange.publish(&coordinator);
        Ok(Self { workers, coordinator, exchange, burst: checked.program.limits[0].burst.as_u64() })
    }
}

fn run(threads: usize) -> Result<Ran> {
    let load = Load { link: BitRate::gbps(100), len: SHORT, fed: FED };
    let Crew { workers, coordinator, exchange, .. } = Crew::new(threads, load)?;
    let (mut coordinator, exchange) = (Some(coordinator), Arc::new(exchange));
    let (clock, ready) = (Clock::default(), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let handles: Vec<_> = workers
        .into_iter()
        .map(|worker| {
            let (exchange, ready, stop) = (Arc::clone(&exchange), Arc::clone(&ready), Arc::clone(&stop));
            let coordinator = coordinator.take();
            std::thread::spawn(move || worker.work(clock, coordinator, &exchange, &ready, &stop))
        })
        .collect();
    std::thread::sleep(SPAN);
    stop.store(true, Ordering::Relaxed);
    let mut ran = Ran::default();
    for handle in handles {
        let alone: Alone = handle.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
        ran.by_processor_time += alone.packets as f64 / alone.spent.as_secs_f64();
        ran.by_clock += alone.packets as f64 / alone.lasted.as_secs_f64();
        ran.epoch += alone.epoch;
    }
    Ok(ran)
}

/// One thread's engine and the far ends of its ports.
struct Worker {
    thread: usize,
    threads: usize,
    engine: Dataplane,
    wire: MemoryPort,
    tenants: Vec<(MemoryPort, Vec<u8>)>,
    members: Vec<(usize, MemberId)>,
    classes: Vec<ClassBytes>,
    buffer: Vec<u8>,
    /// What the link carries in a lease.
    most: Bytes,
    fed: usize,
}

impl Worker {
    fn new(
        thread: usize,
        threads: usize,
        load: Load,
        checked: &Checked,
        coordinator: &mut Coordinator,
    ) -> Result<Self> {
        let (uplink, wire) = memory(1_024, None)?;
        let uplink = Port::Memory(uplink);
        let (mut lanes, mut tenants, mut members) = (Vec::new(), Vec::new(), Vec::new());
        for (n, tenant) in (0_u8..).zip(&checked.config.tenants) {
            if usize::from(n) % threads != thread {
                lanes.push(lane_spec(checked, &tenant.name, None));
                continue;
            }
            let (port, end) = memory(64, Some(mac(n)))?;
            lanes.push(lane_spec(checked, &tenant.name, Some(Port::Memory(port))));
            let mut frame = datagram(mac(n), [2, 0, 0, 0, 2, 2], load.len);
            let port = if n < FAR { 10 } else { 9 };
            frame[37] = port;
            tenants.push((end, frame));
            let ports = Some((10_000, u16::from(port)));
            let tenant = Some(TenantId(n.into()));
            let fields = Fields { tenant, protocol: Some(17), ports, ..Fields::default() };
            let placement = coordinator.program().classify(&fields);
            members.push((placement.class.0 as usize, coordinator.join(&placement, thread)?));
        }
        let classes = vec![ClassBytes::default(); coordinator.program().nodes.len()];
        let engine = Dataplane::new(Setup {
            program: Arc::new(coordinator.program().clone()),
            config: engine_config(checked, &uplink),
            uplink,
            lanes,
            log: Arc::new(DepartureLog::default()),
            fleet: None,
        });
        let most = engine.link_rate().bytes_in(EPOCH);
        let buffer = vec![0; FRAME_ROOM];
        Ok(Self { thread, threads, engine, wire, tenants, members, classes, buffer, most, fed: load.fed })
    }

    /// Fills the tenants' ports, lets the engine have a turn, tells which tenants' frames have left, and takes the newest lease.
    fn turn(
        &mut self,
        clock: &impl Fn() -> Nanos,
        exchange: &Exchange,
        taken: &mut Taken,
        mut left: impl FnMut(u8),
    ) -> Nanos {
        for (port, frame) in &mut self.tenants {
            for _ in 0..self.fed {
                if !matches!(port.send(frame, None), Ok(Sending::Sent)) {
                    break;
                }
            }
        }
        self.engine.turn_by(&|_| clock());
        while let Ok(Some(_)) = self.wire.receive(&mut self.buffer) {
            left(self.buffer[11]);
        }
        let now = clock();
        self.engine.even_out(exchange, taken, self.most, now);
        if let Some(lease) = exchange.take(self.thread, taken) {
            self.engine.take_lease(&lease, now);
        }
        now
    }

    fn work(
        mut self,
        clock: Clock,
        mut coordinator: Option<Coordinator>,
        exchange: &Exchange,
        ready: &AtomicU64,
        stop: &AtomicBool,
    ) -> Alone {
        net::pin(self.thread);
        let mut taken = exchange.taken();
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < self.threads as u64 {
            std::hint::spin_loop();
        }
        let (begun, from) = (processor_time(), clock.now());
        let (mut renewal, mut epochs, mut computing, mut packets) = (from, 0, Duration::ZERO, 0);
        while !stop.load(Ordering::Relaxed) {
            let now = self.turn(&|| clock.now(), exchange, &mut taken, |_| packets += 1);
            if now < renewal {
                continue;
            }
            renewal = now + EPOCH;
            self.report(exchange);
            if let Some(coordinator) = &mut coordinator {
                let start = processor_time();
                renew(coordinator, exchange, now);
                (epochs, computing) = (epochs + 1, computing + (processor_time() - start));
            }
        }
        let epoch = if epochs > 0 { computing.as_secs_f64() * 1e6 / f64::from(epochs) } else { 0.0 };
        Alone { packets, spent: processor_time() - begun, lasted: (clock.now() - from).to_std(), epoch }
    }

    fn report(&mut self, exchange: &Exchange) {
        self.classes.fill(ClassBytes::default());
        self.engine.report_classes(&mut self.classes);
        for &(class, member) in &self.members {
            let ClassBytes { left, waiting } = self.classes[class];
            exchange.report(self.thread, member, Report { left, waiting });
        }
    }
}

/// Computes and publishes the next leases from what threads have reported.
fn renew(coordinator: &mut Coordinator, exchange: &Exchange, now: Nanos) {
    exchange.collect(coordinator);
    coordinator.handle_epoch(now);
    exchange.publish(coordinator);
    exchange.forget_spare();
}
