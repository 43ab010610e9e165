//! Several engine threads under one policy: packets a second, and how exactly the threads share the link.
//!
//! Why: one thread serves one queue of the uplink; leases let several serve one policy.
//! From: issue 21, section 4: two threads at least 1.7 times one, every class within 2 % of its share over 10 ms.
//! Not here: exact shares in virtual time (the engine's tests).
//! Invariant: each thread makes the frames of its own tenants and throws away what leaves, in both sides of a row.

mod live;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use plimsoll_control::leases::{Coordinator, Exchange, MemberId, Report, Settings};
use plimsoll_daemon::{Clock, Dataplane, DepartureLog, Setup, engine_config, lane_spec};
use plimsoll_nic::ClassBytes;
use plimsoll_policy::{Checked, Fields, TenantId};
use plimsoll_ports::{FRAME_ROOM, MemoryPort, Port, Sending};
use plimsoll_units::{BitRate, Nanos, Span};

use crate::hold::processor_time;
use crate::host::{datagram, mac, memory};
use crate::net;
use crate::report::{Goal, Row, median};

const TENANTS: u8 = 64;

/// Frames that are given to each tenant's port before a turn, at most.
const FED: usize = 8;

/// Bytes of a frame as charged: 60, and `overhead: 24B`, which is preamble, gap and check sequence.
const CHARGE: u64 = 84;

/// Tenants whose frames a limit holds, and its part of the link in hundredths. By weight they would get a quarter.
const FAR: u8 = 16;
const LIMIT: u64 = 10;

/// How long a lease lasts.
const EPOCH: Span = Span::micros(100);

/// How long each number of threads runs.
const SPAN: Duration = Duration::from_millis(400);

/// Shares are compared over this time.
const WINDOW: u64 = 10_000_000;

/// The longest time for which the machine may keep a thread from its core in a window that counts.
const LONGEST_GAP: u64 = 1_000_000;

/// Windows in the time of a run; the first ones are not looked at.
const WINDOWS: usize = 40;
const SETTLING: usize = 10;

/// One, two and more threads, as far as there are cores.
pub fn measure(rounds: u32) -> Result<Vec<Row>> {
    let cores = std::thread::available_parallelism()?.get();
    let mut rows = Vec::new();
    for threads in [1, 2, 4, 8, 16].into_iter().filter(|&threads| threads <= cores) {
        let (mut one, mut many, mut clock) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            one.push(run(1, BitRate::gbps(100))?.by_processor_time);
            let ran = run(threads, BitRate::gbps(100))?;
            many.push(ran.by_processor_time);
            clock.push(ran.by_clock);
        }
        let row = Row::new(
            format!("memory ports, 64 B, {TENANTS} tenants, {threads} threads"),
            "one thread",
            "packets/s",
        )
        .figures(&one, &many)
        .note(format!(
            "by processor time; leases of {EPOCH}; by the clock {:.2} M/s",
            median(&clock).unwrap_or(0.0) / 1e6
        ));
        rows.push(if threads == 2 { row.goal(Goal::RatioAtLeast(1.7)) } else { row });
        let fast = clock.iter().copied().fold(f64::MAX, f64::min);
        rows.extend(shares(threads, fast)?);
    }
    if cores > 1 {
        rows.extend(live::rows(rounds)?);
    }
    rows.push(computing(TENANTS.into())?);
    rows.push(computing(4_096)?);
    Ok(rows)
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

/// Shares of a link that carries half of what the threads could send, and the most that left through a limit.
fn shares(threads: usize, fast: f64) -> Result<Vec<Row>> {
    let link = BitRate::new((fast / 2.0) as u64 * CHARGE * 8).context("a rate")?;
    let ran = run(threads, link)?;
    let (mut errors, mut used) = (Vec::new(), Vec::new());
    // A window in which the machine kept a thread from its core, or that follows such a one, says nothing.
    let ran_on = |at: usize| ran.gaps[at - 1..=at].iter().all(|&gap| gap < LONGEST_GAP);
    for window in (SETTLING..WINDOWS - 1).filter(|&at| ran_on(at)).map(|at| &ran.windows[at]) {
        let all = window.iter().sum::<u64>() as f64;
        let off = |tenant: u8| (window[usize::from(tenant)] as f64 / all / share(tenant) - 1.0).abs() * 100.0;
        errors.push((0..TENANTS).map(off).fold(0.0, f64::max));
        used.push(all * CHARGE as f64 * 8e9 / WINDOW as f64 / link.get() as f64 * 100.0);
    }
    if errors.is_empty() {
        let row =
            Row::new(format!("error of shares, {threads} threads"), "the policy", "%").figures(&[], &[]);
        return Ok(vec![row.note("the machine was never free for 10 ms")]);
    }
    errors.sort_by(f64::total_cmp);
    used.sort_by(f64::total_cmp);
    let (middle, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    let note = format!(
        "worst tenant of {TENANTS}, in the middle one of {} windows of 10 ms; in the worst window {worst:.2} %; the link is {:.1} to {:.1} % used; \
         an epoch's computation takes {:.1} us, {:.1} at most",
        errors.len(),
        used[0],
        used[used.len() - 1],
        ran.epoch.0,
        ran.epoch.1,
    );
    let row =
        Row::new(format!("error of shares, {threads} threads"), "the policy", "%").figures(&[], &[middle]);
    let rate = link.get() * LIMIT / 100;
    let lease = rate as f64 * EPOCH.as_secs_f64() / 8.0;
    let excess = (ran.excess(rate) - ran.burst as f64) / lease;
    let limit =
        Row::new(format!("bytes beyond a limit's rate and burst, {threads} threads"), "the policy", "leases")
            .figures(&[], &[excess.max(0.0)])
            .note(format!(
                "the most over any time, in steps of 1 ms; a lease carries {lease:.0} bytes through the limit"
            ));
    Ok(vec![row.goal(Goal::AtMost(2.0)).note(note), limit])
}

/// A tenant's part of the link.
fn share(tenant: u8) -> f64 {
    let weights = |tenants: std::ops::Range<u8>| tenants.map(|n| f64::from(weight(n))).sum::<f64>();
    let far = LIMIT as f64 / 100.0;
    let (part, all) = if tenant < FAR { (far, weights(0..FAR)) } else { (1.0 - far, weights(FAR..TENANTS)) };
    part * f64::from(weight(tenant)) / all
}

impl Ran {
    /// The most bytes that left through the limit beyond its rate, over any time.
    fn excess(&self, rate: u64) -> f64 {
        let earned = rate as f64 / 8e3;
        let (mut now, mut most) = (0.0_f64, 0.0_f64);
        for &frames in &self.far {
            now = now.max(0.0) + (frames * CHARGE) as f64 - earned;
            most = most.max(now);
        }
        most
    }
}

fn weight(tenant: u8) -> u32 {
    1 + u32::from(tenant) / 2 % 4
}

/// What several threads did.
struct Ran {
    /// Packets a second, the sum over threads.
    by_processor_time: f64,
    by_clock: f64,
    /// Frames of each tenant that left in each window.
    windows: Vec<Vec<u64>>,
    /// Nanoseconds of the longest time in each window in which some thread did not run.
    gaps: Vec<u64>,
    /// Frames that left through the limit, by millisecond.
    far: Vec<u64>,
    /// The limit's burst.
    burst: u64,
    /// Microseconds of an epoch's computation: on average, and at most.
    epoch: (f64, f64),
}

/// What one thread did.
struct Alone {
    packets: u64,
    spent: Duration,
    lasted: Duration,
    windows: Vec<Vec<u64>>,
    gaps: Vec<u64>,
    far: Vec<u64>,
    epoch: (f64, f64),
}

fn run(threads: usize, link: BitRate) -> Result<Ran> {
    let far: Vec<String> = (0..FAR).map(|n| format!("t{n}")).collect();
    let mut policy = format!(
        "uplink: {{port: memory, rate: {}bps, overhead: 24B}}\nengine: {{flows: drr}}\n\
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
        workers.push(Worker::new(thread, threads, &checked, &mut coordinator)?);
    }
    coordinator.handle_epoch(Nanos::ZERO);
    let exchange = Arc::new(Exchange::new(&coordinator));
    exchange.publish(&coordinator);
    let mut coordinator = Some(coordinator);
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
    let mut ran = Ran {
        gaps: vec![0; WINDOWS],
        far: vec![0; WINDOWS * 10],
        burst: checked.program.limits[0].burst.as_u64(),
        by_processor_time: 0.0,
        by_clock: 0.0,
        windows: vec![vec![0; usize::from(TENANTS)]; WINDOWS],
        epoch: (0.0, 0.0),
    };
    for handle in handles {
        let alone: Alone = handle.join().map_err(|_| anyhow::anyhow!("a thread failed"))?;
        ran.by_processor_time += alone.packets as f64 / alone.spent.as_secs_f64();
        ran.by_clock += alone.packets as f64 / alone.lasted.as_secs_f64();
        for (all, own) in ran.windows.iter_mut().zip(&alone.windows) {
            all.iter_mut().zip(own).for_each(|(all, own)| *all += own);
        }
        ran.gaps.iter_mut().zip(&alone.gaps).for_each(|(all, own)| *all = (*all).max(*own));
        ran.far.iter_mut().zip(&alone.far).for_each(|(all, own)| *all += own);
        if alone.epoch.1 > 0.0 {
            ran.epoch = alone.epoch;
        }
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
}

impl Worker {
    fn new(thread: usize, threads: usize, checked: &Checked, coordinator: &mut Coordinator) -> Result<Self> {
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
            let mut frame = datagram(mac(n), [2, 0, 0, 0, 2, 2], 60);
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
        Ok(Self { thread, threads, engine, wire, tenants, members, classes })
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
        let mut buffer = vec![0; FRAME_ROOM];
        let mut alone = Alone {
            packets: 0,
            spent: Duration::ZERO,
            lasted: Duration::ZERO,
            windows: vec![vec![0; usize::from(TENANTS)]; WINDOWS],
            gaps: vec![0; WINDOWS],
            far: vec![0; WINDOWS * 10],
            epoch: (0.0, 0.0),
        };
        let most = self.engine.link_rate().bytes_in(EPOCH);
        let (begun, from) = (processor_time(), clock.now());
        let (mut renewal, mut epochs, mut computing) = (from, 0, Span::ZERO);
        let mut last = 0;
        while !stop.load(Ordering::Relaxed) {
            for (port, frame) in &mut self.tenants {
                for _ in 0..FED {
                    if !matches!(port.send(frame, None), Ok(Sending::Sent)) {
                        break;
                    }
                }
            }
            self.engine.turn_by(&|_| clock.now());
            let now = clock.now();
            let at = (now - from).as_u64();
            for window in (last / WINDOW..=at / WINDOW).map(|window| window as usize) {
                if let Some(gap) = alone.gaps.get_mut(window) {
                    *gap = (*gap).max(at - last);
                }
            }
            last = at;
            let (window, milli) = ((at / WINDOW) as usize, (at / 1_000_000) as usize);
            while let Ok(Some(_)) = self.wire.receive(&mut buffer) {
                alone.packets += 1;
                let tenant = buffer[11] % TENANTS;
                if let Some(window) = alone.windows.get_mut(window) {
                    window[usize::from(tenant)] += 1;
                }
                if let Some(far) = alone.far.get_mut(milli).filter(|_| tenant < FAR) {
                    *far += 1;
                }
            }
            self.engine.even_out(exchange, &mut taken, most, now);
            if let Some(lease) = exchange.take(self.thread, &mut taken) {
                self.engine.take_lease(&lease, now);
            }
            if now < renewal {
                continue;
            }
            renewal = now + EPOCH;
            self.report(exchange);
            if let Some(coordinator) = &mut coordinator {
                let start = clock.now();
                exchange.collect(coordinator);
                coordinator.handle_epoch(now);
                exchange.publish(coordinator);
                exchange.forget_spare();
                let took = clock.now() - start;
                (epochs, computing) = (epochs + 1, computing + took);
                alone.epoch.1 = alone.epoch.1.max(took.as_u64() as f64 / 1e3);
            }
        }
        if epochs > 0 {
            alone.epoch.0 = computing.as_u64() as f64 / 1e3 / f64::from(epochs);
        }
        (alone.spent, alone.lasted) = (processor_time() - begun, (clock.now() - from).to_std());
        alone
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
