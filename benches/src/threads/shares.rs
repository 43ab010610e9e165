//! How exactly threads share the link, with the daemon's engines in virtual time.
//!
//! Why: the smallest of 64 tenants has a 400th of the link, some hundred frames in 10 ms, and on threads of the machine a core that was away
//! for a millisecond took more from a tenant than a lease does.
//! From: `crates/sim`: engines take turns at equal distances, and report once in a lease.
//! Not here: threads of the machine. What they add (turns of unequal length) is measured live, by a metric of the daemon.
//! Invariant: the same build gives the same figures. A window in which the link was not full is no window.

use anyhow::{Result, ensure};
use plimsoll_units::{BitRate, Nanos, Span};

use super::{Crew, EPOCH, FAR, LIMIT, Load, OVERHEAD, TENANTS, Worker, renew, weight};
use crate::report::{Goal, Row};

/// So fast that 2 % of the smallest tenant's share in a window are four frames.
const LINK: BitRate = BitRate::gbps(100);
const LEN: usize = 1_514;
const CHARGE: u64 = LEN as u64 + OVERHEAD;

/// Frames that are given to each tenant's port before a turn: more than the link carries of any tenant in it.
const FED: usize = 4;

/// A turn of a busy thread, as in `plimsoll sim`.
const TURN: Span = Span::micros(10);

/// Shares are compared over this time; of the windows of a run, the first ones are not looked at.
const WINDOW: Span = Span::millis(10);
const WINDOWS: usize = 15;
const SETTLING: usize = 5;

/// The part of the link, in per cent, that must be used in each window.
const FULL: f64 = 98.0;

/// Frames that left.
struct Left {
    /// By window and tenant.
    windows: Vec<[u64; TENANTS as usize]>,
    /// Through the limit, by turn.
    far: Vec<u64>,
    /// Bytes of the limit's burst.
    burst: u64,
}

/// The worst share, and the most that left through the limit.
pub(super) fn rows(threads: usize) -> Result<Vec<Row>> {
    let left = run(threads)?;
    let (mut errors, mut used, mut free) = (Vec::new(), Vec::new(), 0.0_f64);
    for window in &left.windows[SETTLING..] {
        let all = window.iter().sum::<u64>() as f64;
        let off = |tenant: u8| (window[usize::from(tenant)] as f64 / all / share(tenant) - 1.0).abs() * 100.0;
        let worst_of = |tenants: std::ops::Range<u8>| tenants.map(off).fold(0.0, f64::max);
        errors.push(worst_of(0..TENANTS));
        free = worst_of(FAR..TENANTS).max(free);
        used.push(all * CHARGE as f64 / LINK.bytes_in(WINDOW).as_u64() as f64 * 100.0);
    }
    errors.sort_by(f64::total_cmp);
    used.sort_by(f64::total_cmp);
    ensure!(used[0] >= FULL, "{threads} threads used {:.1} % of the link: their shares say nothing", used[0]);
    let worst = errors[errors.len() - 1];
    let note = format!(
        "in virtual time, turns of {TURN}, {LEN} B; the worst tenant of {TENANTS} in the worst of {} windows of {WINDOW}; in the middle one \
         {:.2} %; of those that no limit holds at most {free:.2} %; the link is {:.1} to {:.1} % used",
        errors.len(),
        errors[errors.len() / 2],
        used[0],
        used[used.len() - 1]
    );
    let shares =
        Row::new(format!("error of shares, {threads} threads"), "the policy", "%").figures(&[], &[worst]);
    let lease = limit().bytes_in(EPOCH).as_u64() as f64;
    let name = format!("bytes beyond a limit's rate and burst, {threads} threads");
    let excess = Row::new(name, "the policy", "leases").figures(&[], &[left.excess() / lease]).note(format!(
        "the most over any time, by turns; a lease carries {lease:.0} bytes through the limit"
    ));
    Ok(vec![shares.goal(Goal::AtMost(2.0)).note(note), excess])
}

fn limit() -> BitRate {
    BitRate::new(LINK.get() * LIMIT / 100).unwrap_or(LINK)
}

/// A tenant's part of the link.
fn share(tenant: u8) -> f64 {
    let weights = |tenants: std::ops::Range<u8>| tenants.map(|n| f64::from(weight(n))).sum::<f64>();
    let far = LIMIT as f64 / 100.0;
    let (part, all) = if tenant < FAR { (far, weights(0..FAR)) } else { (1.0 - far, weights(FAR..TENANTS)) };
    part * f64::from(weight(tenant)) / all
}

impl Left {
    /// The most bytes that left through the limit beyond its rate and burst, over any time.
    fn excess(&self) -> f64 {
        let earned = limit().bytes_in(TURN).as_u64() as f64;
        let (mut now, mut most) = (0.0_f64, 0.0_f64);
        for &frames in &self.far {
            now = now.max(0.0) + (frames * CHARGE) as f64 - earned;
            most = most.max(now);
        }
        (most - self.burst as f64).max(0.0)
    }
}

fn run(threads: usize) -> Result<Left> {
    let load = Load { link: LINK, len: LEN, fed: FED };
    let Crew { mut workers, mut coordinator, exchange, burst } = Crew::new(threads, load)?;
    let mut taken: Vec<_> = workers.iter().map(|_| exchange.taken()).collect();
    let turns = WINDOW.as_u64() / TURN.as_u64();
    let mut left = Left { windows: vec![[0; TENANTS as usize]; WINDOWS], far: Vec::new(), burst };
    for turn in 1..=turns * WINDOWS as u64 {
        let now = Nanos::ZERO + TURN.times(turn);
        let window = &mut left.windows[((turn - 1) / turns) as usize];
        let mut far = 0;
        for (worker, taken) in workers.iter_mut().zip(&mut taken) {
            worker.turn(&|| now, &exchange, taken, |tenant| {
                window[usize::from(tenant)] += 1;
                far += u64::from(tenant < FAR);
            });
        }
        left.far.push(far);
        if turn % (EPOCH.as_u64() / TURN.as_u64()) == 0 {
            workers.iter_mut().for_each(|worker: &mut Worker| worker.report(&exchange));
            renew(&mut coordinator, &exchange, now);
        }
    }
    Ok(left)
}
