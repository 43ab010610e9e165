//! Judges, window by window, whether the promises to tenants held, and names the cause of each breach.
//!
//! Why: a tenant that complains gets an answer from measurements, and the operator learns which tenant or which part of
//! the host is the cause.
//! From: PicNIC §4 (what is promised, and to which traffic) and §2 (where promises break). The input is a snapshot of
//! the host's counters each second, or in simulation each window.
//! Not here: measuring (the daemon's engine, `sim`), the judgement of one window (`judge`), showing it (`cli`, reports).
//! Invariant: memory is bounded: a [`Ledger`] keeps a minute by the second and an hour by the minute, whatever the
//! uptime; [`Looks`] keeps at most 4,096 windows of a run, however long the run is.
#![forbid(unsafe_code)]

mod drop_seconds;
mod judge;
mod look;
mod parts;
mod passed;
mod window;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use plimsoll_policy::{Envelope, Slo};
use plimsoll_units::{BitRate, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use drop_seconds::DropSeconds;
pub use judge::{Breach, Cause, Judged, Verdict, causes};
pub use look::{InwardWatched, LaneWatched, Pulse, UplinkWatched, Watched};
pub use parts::Parts;
pub use passed::{Host, Passed, Quantiles};
use window::{Promised, Window};

/// Windows of a second that are kept.
const SECONDS: usize = 60;
/// Windows of a minute that are kept.
const MINUTES: usize = 60;
/// Windows of a run that are kept.
const WINDOWS: usize = 4_096;

/// The promise to one tenant, in bits per second and microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Promise {
    /// Rate that the tenant can send at any time.
    pub out_min: Option<u64>,
    /// Rate that the tenant never exceeds when it sends.
    pub out_max: Option<u64>,
    /// Rate that the tenant can receive at any time.
    pub in_min: Option<u64>,
    /// Rate that the tenant never exceeds when it receives.
    pub in_max: Option<u64>,
    /// The longest delays, one for each percentile.
    pub delay: Vec<Target>,
}

/// The longest delay that is promised for one percentile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// Name of the percentile, such as `p99`.
    pub percentile: String,
    /// Longest delay in microseconds, both directions together.
    pub most: f64,
    /// Half of `most`: the longest delay of one direction.
    pub each_way: f64,
    /// Packets in a million that may take longer.
    pub rest: u32,
}

/// Every tenant's promise over a time, with its judgement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SloReport {
    /// Seconds that the report covers; fewer than asked for where the daemon is younger.
    pub span: f64,
    /// Whether windows are minutes rather than seconds.
    pub by_minute: bool,
    /// Reports by the tenant's name.
    pub tenants: BTreeMap<String, TenantReport>,
}

/// The report on one tenant's promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantReport {
    /// The promise in the policy in force.
    pub promise: Promise,
    /// The judgement of all windows together.
    pub whole: Judged,
    /// Number of windows in which the promise was not broken.
    pub kept: u32,
    /// Number of windows.
    pub seen: u32,
    /// The judgement of each window, the oldest first.
    pub windows: Vec<Judged>,
}

/// The last minute by the second and the last hour by the minute, of a daemon that runs on.
#[derive(Debug, Default)]
pub struct Ledger {
    last: Option<Watched>,
    seconds: VecDeque<Window>,
    minutes: VecDeque<Window>,
    /// The minute that has begun, and its seconds so far.
    open: Option<(Window, usize)>,
    promised: Arc<Promised>,
    drop_seconds: DropSeconds,
    promise_seconds: BTreeMap<String, PromiseSeconds>,
}

/// Seconds in which a tenant's promise was judged, by the judgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromiseSeconds {
    /// The promise held.
    pub held: u64,
    /// The tenant had no traffic.
    pub idle: u64,
    /// The tenant exceeded its envelope, or did not read its port: its losses and delays are its own doing.
    pub beyond: u64,
    /// The promise did not hold.
    pub broken: u64,
}

impl PromiseSeconds {
    fn add(&mut self, verdict: Verdict, seconds: u64) {
        let count = match verdict {
            Verdict::Unpromised => return,
            Verdict::Held => &mut self.held,
            Verdict::Idle => &mut self.idle,
            Verdict::Beyond => &mut self.beyond,
            Verdict::Broken => &mut self.broken,
        };
        *count += seconds;
    }
}

/// The windows of one part of a run that ends, such as a simulated one.
#[derive(Debug, Default)]
pub struct Looks {
    /// The part of the run in seconds: windows that begin in it are judged.
    part: Range<f64>,
    last: Option<Watched>,
    /// At most [`WINDOWS`]: each entry joins `each` measured windows.
    windows: Vec<Window>,
    /// Measured windows in an entry, a power of two.
    each: usize,
    /// Measured windows in the last entry so far; zero when it is complete.
    begun: usize,
    promised: Arc<Promised>,
}

impl Looks {
    /// Keeps windows that begin from `from` until `to`.
    #[must_use]
    pub fn of(from: Span, to: Span) -> Self {
        Self { part: from.as_secs_f64()..to.as_secs_f64(), each: 1, ..Self::default() }
    }

    /// Takes a snapshot of the counters, which ends a window.
    pub fn note(&mut self, now: Watched) {
        let promised = Promised::next(&self.promised, self.last.as_ref(), &now);
        let earlier = std::mem::replace(&mut self.promised, promised);
        if let Some(before) = &self.last {
            let window = Window::between(before, &now, &earlier, &self.promised);
            if window.host.length > 0.0 && self.part.contains(&window.host.from) {
                self.keep(window);
            }
        }
        self.last = Some(now);
    }

    fn keep(&mut self, window: Window) {
        if self.begun > 0
            && let Some(last) = self.windows.last_mut()
        {
            last.add(&window);
        } else {
            if self.windows.len() == WINDOWS {
                self.join_pairs();
            }
            self.windows.push(window);
        }
        self.begun = (self.begun + 1) % self.each;
    }

    /// Joins each pair of entries to one.
    fn join_pairs(&mut self) {
        self.each *= 2;
        let windows = core::mem::take(&mut self.windows);
        for (index, window) in windows.into_iter().enumerate() {
            match self.windows.last_mut() {
                Some(last) if index % 2 == 1 => last.add(&window),
                _ => self.windows.push(window),
            }
        }
    }

    /// Judges every tenant's promise.
    #[must_use]
    pub fn report(&self) -> SloReport {
        let windows: Vec<&Window> = self.windows.iter().collect();
        report(&windows, &self.promised)
    }
}

impl Ledger {
    /// Takes a snapshot of the counters, which ends a window of a second.
    pub fn note(&mut self, now: Watched) {
        let promised = Promised::next(&self.promised, self.last.as_ref(), &now);
        let earlier = std::mem::replace(&mut self.promised, promised);
        let Some(before) = self.last.replace(now) else { return };
        let now = self.last.as_ref().expect("just put there");
        let window = Window::between(&before, now, &earlier, &self.promised);
        if window.host.length == 0.0 {
            return;
        }
        self.drop_seconds.read(window.host.kernel_drops, window.host.length);
        self.add_to_promises(&window);
        self.add_to_minute(&window);
        keep(&mut self.seconds, window, SECONDS);
    }

    /// Seconds since the daemon's start in which the uplink dropped more than 10,000 packets before the engine read them.
    #[must_use]
    pub fn nic_drop_seconds(&self) -> u64 {
        self.drop_seconds.count()
    }

    /// Seconds in which each tenant's promise was judged, since the daemon's start or since the tenant came; without tenants
    /// that are promised nothing.
    #[must_use]
    pub fn promise_seconds(&self) -> &BTreeMap<String, PromiseSeconds> {
        &self.promise_seconds
    }

    /// The scheduling of the engine's thread at the last snapshot.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        self.last.as_ref().map(|last| last.pulse).unwrap_or_default()
    }

    /// Judges a window of a second; one that came late counts as the whole seconds that it is nearest to.
    fn add_to_promises(&mut self, window: &Window) {
        let seconds = (window.host.length.round() as u64).max(1);
        let promised = &self.promised.promises;
        self.promise_seconds.retain(|name, _| promised.get(name).is_some_and(|it| *it != Promise::default()));
        for (name, _) in promised.iter().filter(|(_, promise)| **promise != Promise::default()) {
            let count = self.promise_seconds.entry(name.clone()).or_default();
            count.add(window.judge(name).verdict, seconds);
        }
    }

    fn add_to_minute(&mut self, window: &Window) {
        let (minute, seconds) = match self.open.take() {
            Some((mut minute, seconds)) => {
                minute.add(window);
                (minute, seconds + 1)
            }
            None => (window.clone(), 1),
        };
        if seconds == SECONDS {
            keep(&mut self.minutes, minute, MINUTES);
        } else {
            self.open = Some((minute, seconds));
        }
    }

    /// Judges the last `span`, by the second up to a minute, else by the minute. Windows that began before `since`, a
    /// time after the daemon's start, are left out; where then the seconds cover more time than the minutes, the report
    /// is by the second.
    #[must_use]
    pub fn report(&self, span: Span, since: Span) -> SloReport {
        let count =
            |unit: u64| usize::try_from(span.as_u64().div_ceil(unit * 1_000_000_000)).unwrap_or(usize::MAX);
        let fresh = |window: &&Window| window.host.from >= since.as_secs_f64();
        let seconds = last(self.seconds.iter().filter(fresh), count(1).max(1));
        let begun = self.open.iter().map(|(window, _)| window);
        let minutes = last(self.minutes.iter().chain(begun).filter(fresh), count(60));
        let covered = |windows: &[&Window]| windows.iter().map(|window| window.host.length).sum::<f64>();
        let by_minute = span > Span::secs(SECONDS as u64) && covered(&minutes) >= covered(&seconds);
        let windows = if by_minute { minutes } else { seconds };
        SloReport { by_minute, ..report(&windows, &self.promised) }
    }
}

/// Judges each window, and all of them together, by the policies that were in force then; the report is on the tenants of
/// the policy in force now.
fn report(windows: &[&Window], promised: &Promised) -> SloReport {
    let mut whole: Option<Window> = None;
    for window in windows {
        match &mut whole {
            Some(whole) => whole.add(window),
            None => whole = Some((*window).clone()),
        }
    }
    let Some(whole) = whole else { return SloReport::default() };
    let tenants = promised.promises.iter().map(|(name, promise)| {
        let judged: Vec<Judged> = windows.iter().map(|window| window.judge(name)).collect();
        let kept = judged.iter().filter(|judged| judged.verdict != Verdict::Broken).count();
        let report = TenantReport {
            promise: promise.clone(),
            whole: whole.judge(name),
            kept: u32::try_from(kept).unwrap_or(u32::MAX),
            seen: u32::try_from(judged.len()).unwrap_or(u32::MAX),
            windows: judged,
        };
        (name.clone(), report)
    });
    SloReport { span: whole.host.length, by_minute: false, tenants: tenants.collect() }
}

impl From<&Slo> for Promise {
    fn from(slo: &Slo) -> Self {
        let bits = |rate: Option<BitRate>| rate.map(BitRate::get);
        let (Envelope { min: out_min, max: out_max }, Envelope { min: in_min, max: in_max }) =
            (slo.egress, slo.ingress);
        let target = |target: &plimsoll_policy::DelayTarget| Target {
            percentile: target.percentile.to_string(),
            most: target.most.as_u64() as f64 / 1e3,
            each_way: target.most.as_u64() as f64 / 2e3,
            rest: u32::try_from(target.percentile.rest_of(1_000_000)).unwrap_or(0),
        };
        Self {
            out_min: bits(out_min),
            out_max: bits(out_max),
            in_min: bits(in_min),
            in_max: bits(in_max),
            delay: slo.delay.iter().map(target).collect(),
        }
    }
}

fn keep(windows: &mut VecDeque<Window>, window: Window, most: usize) {
    if windows.len() == most {
        windows.pop_front();
    }
    windows.push_back(window);
}

/// The last `most` windows, the oldest first.
fn last<'w>(windows: impl DoubleEndedIterator<Item = &'w Window>, most: usize) -> Vec<&'w Window> {
    let mut found: Vec<&Window> = windows.rev().take(most).collect();
    found.reverse();
    found
}

#[cfg(test)]
mod tests;
