//! The judgement of one tenant's promise in one window: whether it held, and the cause of each breach.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::passed::{Host, Passed, Quantiles, SLACK};
use crate::{Promise, Target};

/// The judgement of a promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The tenant has no promise.
    Unpromised,
    /// The tenant had no traffic.
    #[default]
    Idle,
    /// The promise held.
    Held,
    /// The tenant exceeded its envelope, or did not read its port: its losses and delays are its own doing.
    Beyond,
    /// The promise did not hold.
    Broken,
}

/// The cause of a breach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The tenant sends more than it may, or than it is promised while the link is full.
    Itself,
    /// Others send the tenant more than it may receive.
    ItsSenders,
    /// The tenant sends a remote receiver more than that receiver allows.
    Receiver,
    /// Backpressure holds a flow to a rate below what the tenant is promised.
    Backpressure,
    /// The tenant's machine or process does not read its port, or too slowly.
    NotReading,
    /// The tenant's device is gone.
    DeviceGone,
    /// The uplink was down or gone.
    LinkDown,
    /// The uplink accepts less than its rate in the policy.
    LinkFull,
    /// The engine's thread was ready to run and had no core.
    NoCore,
    /// The engine's thread was woken late.
    LateWakeUp,
    /// A neighbour used up the engine's core.
    NeighbourCpu,
    /// A neighbour filled the link.
    NeighbourLink,
    /// The fabric between the hosts lost packets.
    Fabric,
    /// The engine let through more than the policy allows: a bug.
    Engine,
    /// No measurement explains the breach.
    Unknown,
}

/// One point in which a promise was broken, or the tenant exceeded its envelope.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Breach {
    /// The kind of breach: `sent less than min`, `lost on the way out`, ...
    pub what: String,
    /// The figures of the breach.
    pub detail: String,
    /// The cause of the breach.
    pub cause: Cause,
    /// The cause in words, with figures.
    pub why: String,
    /// The tenant or receiver that caused it, if one did.
    pub who: Option<String>,
}

/// The judgement of a window, with the measurements behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judged {
    /// When the window began, in seconds since the daemon's start.
    pub from: f64,
    /// Length of the window in seconds.
    pub length: f64,
    /// The judgement.
    pub verdict: Verdict,
    /// Where the promise was broken, or the tenant exceeded its envelope.
    pub breaches: Vec<Breach>,
    /// Bits per second that the tenant sent.
    pub sent: f64,
    /// Bits per second that the tenant's port took.
    pub received: f64,
    /// Frames of the tenant that were lost on egress, for any reason.
    pub lost_out: u64,
    /// Frames for the tenant that were lost on ingress.
    pub lost_in: u64,
    /// Delays on egress.
    pub egress: Quantiles,
    /// Delays in the NIC's and the kernel's queue; empty where no port reports them.
    pub nic: Quantiles,
    /// Delays in the engine on ingress.
    pub engine: Quantiles,
}

/// The evidence for the judgement of one tenant in one window.
struct Case<'a> {
    name: &'a str,
    promise: &'a Promise,
    link: f64,
    host: &'a Host,
    own: &'a Passed,
    all: &'a BTreeMap<String, Passed>,
    breaches: Vec<Breach>,
}

/// A link or a core is full when this part of it was used.
const FULL: f64 = 0.9;
/// A lack of a core explains a breach when the thread lacked one for at least this part of the window.
const STARVED: f64 = 0.02;
/// Microseconds without the engine after which the rings and queues before it may have overflowed.
const GAP: f64 = 10_000.0;

pub(crate) fn judge(
    name: &str,
    promise: &Promise,
    link: u64,
    host: &Host,
    all: &BTreeMap<String, Passed>,
) -> Judged {
    let Some(own) = all.get(name) else {
        return Judged { from: host.from, length: host.length, ..Judged::default() };
    };
    let mut case = Case { name, promise, link: link as f64, host, own, all, breaches: Vec::new() };
    case.judge_egress();
    case.judge_ingress();
    let rate = |bytes: u64| bytes as f64 * 8.0 / host.length.max(1e-9);
    Judged {
        from: host.from,
        length: host.length,
        verdict: case.verdict(),
        sent: rate(own.sent_bytes),
        received: rate(own.received_bytes),
        lost_out: own.lost.values().sum::<u64>() + own.strayed,
        lost_in: own.nic_full + own.queue_full + own.over_max + own.unread,
        egress: own.egress,
        nic: own.nic,
        engine: own.engine,
        breaches: case.breaches,
    }
}

/// A cause, with the name of the tenant or receiver behind it and the reason in words.
struct Blame {
    cause: Cause,
    who: Option<String>,
    why: String,
}

impl Blame {
    fn of(cause: Cause, why: impl Into<String>) -> Self {
        Self { cause, who: None, why: why.into() }
    }
}

impl Case<'_> {
    fn verdict(&self) -> Verdict {
        let promise = self.promise;
        let nothing = [promise.out_min, promise.out_max, promise.in_min, promise.in_max];
        let idle = self.own.offered_bytes + self.own.due_bytes + self.own.sent_bytes == 0;
        if self.breaches.iter().any(|breach| !breach.cause.is_own()) {
            Verdict::Broken
        } else if !self.breaches.is_empty() {
            Verdict::Beyond
        } else if nothing.iter().all(Option::is_none) && promise.delay.is_empty() {
            Verdict::Unpromised
        } else if idle {
            Verdict::Idle
        } else {
            Verdict::Held
        }
    }

    /// Judges egress: rate, loss and delay.
    fn judge_egress(&mut self) {
        let (own, promise) = (self.own, self.promise);
        if let Some(max) = promise.out_max.filter(|&max| own.most_sent > max as f64 * SLACK) {
            let why = "the engine let through more than the policy allows";
            self.breach("sent more than max", of_most(own.most_sent, max), Blame::of(Cause::Engine, why));
        }
        if let (Some(min), Some(least)) = (promise.out_min, own.least_sent) {
            let blame = self.pressed_back().unwrap_or_else(|| self.egress_blame(false));
            self.breach("sent less than min", of_least(least, min), blame);
        }
        let lost = own.lost_by_us();
        if lost > 0 {
            let blame = self.beyond_out().unwrap_or_else(|| self.egress_blame(true));
            let reasons: Vec<String> =
                own.lost.iter().map(|(name, count)| format!("{name} {count}")).collect();
            self.breach("lost on the way out", reasons.join(", "), blame);
        }
        if own.strayed > 0 {
            let why = "the fabric between the hosts lost them";
            let lost = format!("{} of them", own.strayed);
            self.breach("lost between hosts", lost, Blame::of(Cause::Fabric, why));
        }
        self.delays("waited on the way out", 0, own.egress.count, own.egress);
    }

    /// Judges ingress: loss, rate and delay.
    fn judge_ingress(&mut self) {
        let (own, promise) = (self.own, self.promise);
        let received = own.received_bytes as f64 * 8.0 / self.host.length.max(1e-9);
        if own.unread > 0 {
            let why = "its device had no room for what came: it does not read, or too slowly";
            self.breach(
                "lost on the way in",
                format!("receiver_full {}", own.unread),
                Blame::of(Cause::NotReading, why),
            );
        }
        if own.bunched > 0 {
            let lost = format!("ingress_over_max {}", own.bunched);
            self.breach("lost on the way in", lost, self.stalled());
        }
        if own.over_max > own.bunched {
            let max = promise.in_max.unwrap_or_default();
            let why = match own.most_due > max as f64 {
                true => format!("others sent it {}", of_most(own.most_due, max)),
                false => format!("others sent it more at once than a burst of its {}", bits(max as f64)),
            };
            let lost = format!("ingress_over_max {}", own.over_max - own.bunched);
            self.breach("lost on the way in", lost, Blame::of(Cause::ItsSenders, why));
        }
        if own.queue_full + own.nic_full > 0 {
            let blame = self.beyond_in().unwrap_or_else(|| self.ingress_blame());
            let named = [("ingress_full", own.queue_full), ("nic_full", own.nic_full)];
            let lost =
                named.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}"));
            self.breach("lost on the way in", lost.collect::<Vec<_>>().join(", "), blame);
            if let Some(min) = promise.in_min.filter(|&min| received * SLACK < min as f64) {
                let blame = self.beyond_in().unwrap_or_else(|| self.ingress_blame());
                self.breach("received less than min", of_least(received, min), blame);
            }
        }
        let both =
            Quantiles { p99: own.nic.p99 + own.engine.p99, max: own.nic.max + own.engine.max, ..own.engine };
        self.delays("waited on the way in", 1, own.engine.count, both);
    }

    fn delays(&mut self, what: &str, way: usize, count: u64, seen: Quantiles) {
        for (index, target) in self.promise.delay.iter().enumerate() {
            let late = self.own.late[way].get(index).copied().unwrap_or(0);
            if late <= target.allows(count) {
                continue;
            }
            let blame = match way {
                0 => self.beyond_out().unwrap_or_else(|| self.egress_blame(false)),
                _ => self.beyond_in().unwrap_or_else(|| self.ingress_blame()),
            };
            let detail = format!(
                "{late} of {count} packets beyond {:.0}us, each way's half of {} {:.0}us; p99 {:.0}us, longest {:.0}us",
                target.each_way, target.percentile, target.most, seen.p99, seen.max
            );
            // One breach is enough: the other percentiles follow from the same wait.
            return self.breach(what, detail, blame);
        }
    }

    fn breach(&mut self, what: &str, detail: String, Blame { cause, who, why }: Blame) {
        self.breaches.push(Breach { what: what.to_owned(), detail, cause, why, who });
    }

    /// Blames the tenant when it sends more than its maximum, or more than its minimum while the link is full.
    fn beyond_out(&self) -> Option<Blame> {
        let offered = self.own.most_offered;
        if let Some(max) = self.promise.out_max.filter(|&max| offered > max as f64) {
            return Some(Blame::of(Cause::Itself, format!("it offered {}", of_most(offered, max))));
        }
        let min = self.promise.out_min.unwrap_or(0);
        (self.link_is_full() && offered > min as f64).then(|| {
            let others = match self.heaviest(|passed| passed.sent_bytes as f64) {
                Some(other) => format!(", of which `{other}` had most"),
                None => String::new(),
            };
            let why = format!(
                "it offered {} of {} that it is promised, while the link was full{others}",
                bits(offered),
                bits(min as f64)
            );
            Blame::of(Cause::Itself, why)
        })
    }

    /// Blames the tenant when it does not read its port, or its senders when they send more than it may receive.
    fn beyond_in(&self) -> Option<Blame> {
        if self.own.unread > 0 {
            return Some(Blame::of(
                Cause::NotReading,
                "its device had no room for what came: it does not read, or too slowly",
            ));
        }
        let max = self.promise.in_max.filter(|&max| self.own.most_due > max as f64)?;
        Some(Blame::of(Cause::ItsSenders, format!("others sent it {}", of_most(self.own.most_due, max))))
    }

    /// Blames the uplink, the tenant's device or the lack of a core, where one of them failed.
    fn machine(&self) -> Option<Blame> {
        let host = self.host;
        if host.uplink_away > 0.0 {
            return Some(Blame::of(
                Cause::LinkDown,
                format!("the uplink was down or gone for {:.0}s", host.uplink_away),
            ));
        }
        if self.own.away {
            return Some(Blame::of(Cause::DeviceGone, "its own device is gone"));
        }
        host.no_core.filter(|&starved| starved > host.length * STARVED).map(starved)
    }

    /// Blames whichever kept the engine away longer: the lack of a core, or a late wake-up.
    fn stalled(&self) -> Blame {
        match self.host.no_core.filter(|&seconds| seconds * 1e6 > self.host.late) {
            Some(seconds) => starved(seconds),
            None => self.late(),
        }
    }

    /// Blames an uplink without room, or a wake-up later than the delay target. Both are weak evidence and come last.
    fn moments(&self) -> Option<Blame> {
        let allowed = self.promise.delay.first().map_or(1e3, |target| target.each_way);
        if self.host.uplink_full > 0 && !self.link_is_full() {
            let why = format!(
                "the uplink had no room {} times, below its rate in the policy",
                self.host.uplink_full
            );
            return Some(Blame::of(Cause::LinkFull, why));
        }
        (self.host.late > allowed).then(|| self.late())
    }

    /// Blames a wake-up so late that rings can have filled meanwhile.
    fn gap(&self) -> Option<Blame> {
        (self.host.late > GAP).then(|| self.late())
    }

    fn late(&self) -> Blame {
        let why = format!("the engine was gone, or its thread woken late, for up to {:.0}us", self.host.late);
        Blame::of(Cause::LateWakeUp, why)
    }

    /// Finds the cause of a breach on egress. A burst that found its flow's ring full is the tenant's own doing when
    /// nothing else explains the loss.
    fn egress_blame(&self, loss: bool) -> Blame {
        let (mut machine, mut starved) = (self.machine(), None);
        if loss && !self.stalls_explain() {
            // A short lack of a core is blamed only when no other cause is found.
            starved = machine.take_if(|blame| blame.cause == Cause::NoCore);
        }
        if let Some(machine) = machine {
            return machine;
        }
        if self.link_is_full()
            && let Some(other) = self.heaviest(|passed| passed.sent_bytes as f64)
        {
            let why = format!("`{other}` sent most while the link was full");
            return Blame { cause: Cause::NeighbourLink, who: Some(other), why };
        }
        if let Some(blame) = self.busy() {
            return blame;
        }
        let shaped = self.own.shaped > self.own.waited;
        if let Some(receiver) = self.receiver().filter(|_| loss && (starved.is_none() || shaped)) {
            return receiver;
        }
        if let Some(starved) = starved {
            return starved;
        }
        if loss && shaped {
            return Blame::of(Cause::Itself, "limits that it sends through let less pass");
        }
        if let Some(gap) = self.gap().filter(|_| loss) {
            return gap;
        }
        if loss {
            return Blame::of(Cause::Itself, "it sent more at once than a flow's ring holds");
        }
        self.moments().unwrap_or_else(|| Blame::of(Cause::Unknown, "nothing that is measured explains it"))
    }

    /// Finds the cause of a breach on ingress.
    fn ingress_blame(&self) -> Blame {
        let explained = self.machine().or_else(|| self.busy()).or_else(|| self.moments());
        explained.unwrap_or_else(|| Blame::of(Cause::Unknown, "nothing that is measured explains it"))
    }

    /// When the engine's core was used up, blames the tenant whose packets used most of it.
    fn busy(&self) -> Option<Blame> {
        if self.host.cpu < self.host.length * FULL {
            return None;
        }
        let used = format!("the engine used {:.0}% of its core", 100.0 * self.host.cpu / self.host.length);
        let heaviest = self.all.iter().max_by(|(_, a), (_, b)| work(a).total_cmp(&work(b)));
        match heaviest.filter(|(_, passed)| work(passed) > 0.0) {
            Some((name, _)) if name == self.name => {
                Some(Blame::of(Cause::Itself, format!("{used}, most of it for this tenant")))
            }
            Some((name, _)) => {
                let why = format!("{used}, most of it for `{name}`");
                Some(Blame { cause: Cause::NeighbourCpu, who: Some(name.clone()), why })
            }
            None => None,
        }
    }

    /// Blames the remote receiver whose limit held the tenant's packets most often.
    fn receiver(&self) -> Option<Blame> {
        let (receiver, times) = self.own.pressed.iter().max_by_key(|&(_, times)| times)?;
        let why = format!("`{receiver}` allows it less than it sends there, and held it {times} times");
        Some(Blame { cause: Cause::Receiver, who: Some(receiver.clone()), why })
    }

    /// Blames backpressure that held the tenant's flows while it sent less than its minimum, unless the machine failed.
    fn pressed_back(&self) -> Option<Blame> {
        if !self.own.below_min_by_backpressure || self.machine().is_some() {
            return None;
        }
        let (who, _) = self.own.pressed.iter().max_by_key(|&(_, times)| times)?;
        let why = format!("held by {who}: a flow of it is slowed down to a rate below its `min`");
        Some(Blame { cause: Cause::Backpressure, who: Some(who.clone()), why })
    }

    /// Whether the engine's absence explains the loss: at most twice the part of all frames that came meanwhile is lost.
    fn stalls_explain(&self) -> bool {
        let lost = self.own.lost_by_us() as f64;
        lost * self.host.length <= 2.0 * self.host.away() * (lost + self.own.egress.count as f64)
    }

    fn link_is_full(&self) -> bool {
        self.host.sent_bytes as f64 * 8.0 > self.link * self.host.length * FULL
    }

    /// Name of the tenant, other than this one, for which `of` is largest.
    fn heaviest(&self, of: impl Fn(&Passed) -> f64) -> Option<String> {
        let others = self.all.iter().filter(|(name, passed)| *name != self.name && of(passed) > 0.0);
        others.max_by(|(_, a), (_, b)| of(a).total_cmp(&of(b))).map(|(name, _)| name.clone())
    }
}

/// Blames a lack of a core for this number of seconds.
fn starved(seconds: f64) -> Blame {
    Blame::of(Cause::NoCore, format!("the engine's thread waited {:.0}ms for a core", seconds * 1e3))
}

/// Estimates the CPU seconds for a tenant's packets: measured on ingress, a microsecond a packet on egress. Only for
/// comparison between tenants.
fn work(passed: &Passed) -> f64 {
    passed.cpu + passed.egress.count as f64 * 1e-6
}

impl Verdict {
    /// The verdict as shown in a table.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Unpromised => "none",
            Self::Idle => "idle",
            Self::Held => "held",
            Self::Beyond => "beyond it",
            Self::Broken => "BROKEN",
        }
    }
}

impl Breach {
    /// The breach in one line: its kind, figures and cause.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{}: {}; {}", self.what, self.detail, self.why)
    }
}

/// The causes of all breaches in a few words, each once; `None` when there is no breach.
#[must_use]
pub fn causes(breaches: &[Breach]) -> Option<String> {
    let mut named: Vec<&str> = Vec::new();
    for breach in breaches {
        let words = breach.who.as_deref().unwrap_or(breach.cause.words());
        if !named.contains(&words) {
            named.push(words);
        }
    }
    (!named.is_empty()).then(|| named.join(", "))
}

impl Cause {
    /// Whether the tenant or the peers it talks to are the cause, so that no promise is broken.
    #[must_use]
    pub fn is_own(self) -> bool {
        matches!(self, Self::Itself | Self::ItsSenders | Self::Receiver | Self::NotReading | Self::DeviceGone)
    }

    /// The cause as shown in a table.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Itself => "itself",
            Self::ItsSenders => "its senders",
            Self::Receiver => "its receiver",
            Self::Backpressure => "backpressure",
            Self::NotReading => "itself: not reading",
            Self::DeviceGone => "itself: no device",
            Self::LinkDown => "uplink down",
            Self::LinkFull => "uplink without room",
            Self::NoCore => "no core",
            Self::LateWakeUp => "late wake-up",
            Self::NeighbourCpu => "a neighbour's CPU",
            Self::NeighbourLink => "a neighbour's traffic",
            Self::Fabric => "the fabric",
            Self::Engine => "the engine",
            Self::Unknown => "unknown",
        }
    }
}

impl Target {
    /// Number of `count` packets that may take longer than the target.
    fn allows(&self, count: u64) -> u64 {
        let allowed = u128::from(count) * u128::from(self.rest) / 1_000_000;
        u64::try_from(allowed).unwrap_or(u64::MAX)
    }
}

fn of_most(rate: f64, most: u64) -> String {
    format!("{} of at most {}", bits(rate), bits(most as f64))
}

fn of_least(rate: f64, least: u64) -> String {
    format!("{} of at least {}", bits(rate), bits(least as f64))
}

/// Prints a rate with three digits, such as `12.3Mbps`.
fn bits(rate: f64) -> String {
    let (value, unit) = match rate {
        rate if rate >= 999.5e6 => (rate / 1e9, "Gbps"),
        rate if rate >= 999.5e3 => (rate / 1e6, "Mbps"),
        rate if rate >= 999.5 => (rate / 1e3, "kbps"),
        rate => (rate, "bps"),
    };
    if value >= 99.5 || value.fract() == 0.0 {
        format!("{value:.0}{unit}")
    } else {
        format!("{value:.1}{unit}")
    }
}
