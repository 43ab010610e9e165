//! What passed in a window: for the host, and for each tenant.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use plimsoll_policy::Slo;
use plimsoll_units::{BitRate, Nanos, Span};
use serde::{Deserialize, Serialize};

use crate::judge::SLACK;
use crate::{LaneWatched, Parts, Watched};

/// The host's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// When the window began, in seconds since the daemon's start.
    pub from: f64,
    /// Seconds.
    pub length: f64,
    /// When it ended.
    #[serde(skip)]
    pub(crate) at: Nanos,
    /// Bytes on the uplink, on the way out.
    pub sent_bytes: u64,
    /// Bytes from it.
    pub received_bytes: u64,
    /// Seconds for which the engine's thread had a core.
    pub cpu: f64,
    /// Seconds for which it wanted one and had none; none where the kernel does not say.
    pub no_core: Option<f64>,
    /// The latest wake-up, in microseconds.
    pub late: f64,
    /// Times that the uplink had no room.
    pub uplink_full: u64,
    /// Seconds for which the uplink was down or gone at their end.
    pub uplink_away: f64,
    /// Frames that the kernel dropped before we read them.
    pub kernel_drops: u64,
}

/// One tenant's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Bytes that came from its port.
    pub offered_bytes: u64,
    /// Bytes that left.
    pub sent_bytes: u64,
    /// Frames of its that were lost on the way out, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Frames that left and did not come to the other host, as far as that is known.
    pub strayed: u64,
    /// How often what receivers elsewhere allow held its packets, by receiver.
    pub pressed: BTreeMap<String, u64>,
    /// Bytes that came for it, lost ones included.
    pub due_bytes: u64,
    /// Bytes that its port took.
    pub received_bytes: u64,
    /// Frames for it that were dropped before it was known whose they were, as far as that is known.
    pub nic_full: u64,
    /// Frames for it that found its queue on the way in full.
    pub queue_full: u64,
    /// Frames for it beyond what it may receive.
    pub over_max: u64,
    /// Of these, those that came in time, and at once only as the engine was away before.
    pub bunched: u64,
    /// Frames for it that its device had no room for.
    pub unread: u64,
    /// Packets beyond each target: on the way out, and on the way in.
    pub late: [Vec<u64>; 2],
    /// On the way out.
    pub egress: Quantiles,
    /// In the NIC's and the kernel's queue, where that is known.
    pub nic: Quantiles,
    /// With us on the way in.
    pub engine: Quantiles,
    /// Seconds of CPU for what came in.
    pub cpu: f64,
    /// Seconds, all packets together, behind limits, and otherwise on the way out.
    pub shaped: f64,
    /// See `shaped`.
    pub waited: f64,
    /// The least that it sent in a window in which it wanted at least its `min`, and got less; in bits per second.
    pub least_sent: Option<f64>,
    /// The most that it sent in a window.
    pub most_sent: f64,
    /// The most that came for it in a window.
    pub most_due: f64,
    /// The most that it offered in a window.
    pub most_offered: f64,
    /// Its port was gone at the end.
    pub away: bool,
}

/// Some of a distribution, in microseconds; of several windows together, the longest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many were measured.
    pub count: u64,
    /// Half are shorter.
    pub p50: f64,
    /// One in a hundred is longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Host {
    pub(super) fn between(before: &Watched, now: &Watched) -> Self {
        let length = now.at.since(before.at);
        let seconds = |span: Span| span.as_secs_f64();
        let away = now.uplink.away || before.uplink.away;
        let no_core = now.pulse.no_core.zip(before.pulse.no_core);
        Self {
            from: Span::ns(before.at.as_u64()).as_secs_f64(),
            length: seconds(length),
            at: now.at,
            sent_bytes: grown(before.uplink.sent_bytes, now.uplink.sent_bytes),
            received_bytes: grown(before.uplink.received_bytes, now.uplink.received_bytes),
            cpu: seconds(now.pulse.cpu - before.pulse.cpu),
            no_core: no_core.map(|(now, before)| seconds(now - before)),
            late: micros(now.pulse.late),
            uplink_full: grown(before.uplink.full, now.uplink.full),
            uplink_away: if away { seconds(length) } else { 0.0 },
            kernel_drops: grown(before.uplink.kernel_drops, now.uplink.kernel_drops),
        }
    }

    /// Seconds that the engine can have been away at once, as far as that is known.
    pub(crate) fn away(&self) -> f64 {
        self.no_core.unwrap_or_default().max(self.late / 1e6)
    }

    pub(super) fn add(&mut self, later: &Self) {
        self.length += later.length;
        self.at = later.at;
        self.sent_bytes += later.sent_bytes;
        self.received_bytes += later.received_bytes;
        self.cpu += later.cpu;
        self.no_core = self.no_core.zip(later.no_core).map(|(a, b)| a + b);
        self.late = self.late.max(later.late);
        self.uplink_full += later.uplink_full;
        self.uplink_away += later.uplink_away;
        self.kernel_drops += later.kernel_drops;
    }
}

impl Passed {
    /// In the host's window, with what it is promised.
    pub(super) fn between(
        before: Option<&LaneWatched>,
        now: &LaneWatched,
        host: &Host,
        slo: Option<&Slo>,
    ) -> Self {
        let none = LaneWatched::default();
        let length = host.length;
        let min = slo.and_then(|slo| slo.egress.min).map(BitRate::get);
        let was = before.unwrap_or(&none);
        let rate = |bytes: u64| bytes as f64 * 8.0 / length.max(1e-9);
        let mut lost = BTreeMap::new();
        for (name, count) in &now.losses {
            let more = grown(was.losses.get(name).copied().unwrap_or(0), *count);
            if more > 0 {
                lost.insert((*name).to_owned(), more);
            }
        }
        let offered_bytes = grown(was.offered_bytes, now.offered_bytes);
        let received_bytes = grown(was.received_bytes, now.received_bytes);
        let due_bytes = grown(was.inward.bytes, now.inward.bytes).max(received_bytes);
        let pressed = now.pressed.iter().filter_map(|(name, times)| {
            let more = grown(was.pressed.get(name).copied().unwrap_or(0), *times);
            (more > 0).then(|| (name.clone(), more))
        });
        let nothing = Parts::default();
        let parts = now.parts.as_deref().unwrap_or(&nothing);
        let (sent, due) = (rate(parts.sent_bytes), rate(due_bytes));
        let offered = rate(offered_bytes);
        // Where its port was not read, nobody knows how much more it had; behind its own limits it waits as the policy says.
        let held_back = grown(was.held_back, now.held_back) > 0;
        let short = min.map(|min| min as f64).is_some_and(|min| {
            sent * SLACK < min && (held_back || offered >= min) && parts.shaped <= parts.waited
        });
        let over_max = grown(was.inward.over_max, now.inward.over_max);
        let came = grown(was.inward.bytes, now.inward.bytes);
        let bunched = slo.is_some_and(|slo| is_bunched(slo, came, host));
        Self {
            offered_bytes,
            sent_bytes: parts.sent_bytes,
            lost,
            strayed: grown(was.strayed, now.strayed),
            pressed: pressed.collect(),
            due_bytes,
            received_bytes,
            nic_full: grown(was.inward.nic_full, now.inward.nic_full),
            queue_full: grown(was.inward.queue_full, now.inward.queue_full),
            over_max,
            bunched: if bunched { over_max } else { 0 },
            unread: parts.unread,
            late: parts.late.clone(),
            egress: quantiles(&parts.egress),
            nic: quantiles(&parts.nic),
            engine: quantiles(&parts.engine),
            cpu: Span::ns(grown(was.inward.cpu.as_u64(), now.inward.cpu.as_u64())).as_secs_f64(),
            shaped: parts.shaped.as_secs_f64(),
            waited: parts.waited.as_secs_f64(),
            least_sent: short.then_some(sent),
            most_sent: sent,
            most_due: due,
            most_offered: offered,
            away: now.away,
        }
    }

    pub(super) fn add(&mut self, later: &Self) {
        self.offered_bytes += later.offered_bytes;
        self.sent_bytes += later.sent_bytes;
        for (name, count) in &later.lost {
            *self.lost.entry(name.clone()).or_default() += count;
        }
        self.strayed += later.strayed;
        for (name, times) in &later.pressed {
            *self.pressed.entry(name.clone()).or_default() += times;
        }
        self.due_bytes += later.due_bytes;
        self.received_bytes += later.received_bytes;
        self.nic_full += later.nic_full;
        self.queue_full += later.queue_full;
        self.over_max += later.over_max;
        self.bunched += later.bunched;
        self.unread += later.unread;
        for (to, later) in self.late.iter_mut().zip(&later.late) {
            // Another policy has come in between: what counts is the newer one's.
            if to.len() == later.len() {
                to.iter_mut().zip(later).for_each(|(to, later)| *to += later);
            } else {
                to.clone_from(later);
            }
        }
        self.egress.add(&later.egress);
        self.nic.add(&later.nic);
        self.engine.add(&later.engine);
        self.cpu += later.cpu;
        self.shaped += later.shaped;
        self.waited += later.waited;
        self.least_sent = match (self.least_sent, later.least_sent) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.most_sent = self.most_sent.max(later.most_sent);
        self.most_due = self.most_due.max(later.most_due);
        self.most_offered = self.most_offered.max(later.most_offered);
        self.away |= later.away;
    }

    /// Frames lost on the way out for want of room, or by the machine; not what was wrong with them, nor what their
    /// receiver did not take.
    #[must_use]
    pub fn lost_by_us(&self) -> u64 {
        self.lost.iter().filter(|(name, _)| OURS.contains(&name.as_str())).map(|(_, count)| count).sum()
    }
}

/// Whether so many bytes in a window are what a tenant may receive, also if they had come evenly, while the engine was away
/// for longer than it admits at once.
fn is_bunched(slo: &Slo, came: u64, host: &Host) -> bool {
    let (Some(max), Some(ceiling)) = (slo.ingress.max, slo.ceiling) else { return false };
    let away = host.away();
    // What waited meanwhile may have come before the window.
    let may = max.get() as f64 * (host.length + away);
    away >= ceiling.rate.wire_time(ceiling.burst).as_secs_f64() && came as f64 * 8.0 <= may
}

/// Losses that a promise is about.
const OURS: [&str; 10] = [
    "flow_full",
    "tenant_full",
    "host_full",
    "no_queue",
    "gone",
    "kernel",
    "kernel_full",
    "inconsistent",
    // In virtual time: the guest's own queue, and a host whose daemon is down.
    "guest_queue_full",
    "daemon_down",
];

impl Quantiles {
    fn add(&mut self, later: &Self) {
        self.count += later.count;
        self.p50 = self.p50.max(later.p50);
        self.p99 = self.p99.max(later.p99);
        self.max = self.max.max(later.max);
    }
}

fn quantiles(delays: &Histogram<u64>) -> Quantiles {
    let at = |quantile| delays.value_at_quantile(quantile) as f64 / 1e3;
    if delays.is_empty() {
        return Quantiles::default();
    }
    Quantiles { count: delays.len(), p50: at(0.5), p99: at(0.99), max: delays.max() as f64 / 1e3 }
}

fn micros(span: Span) -> f64 {
    span.as_u64() as f64 / 1e3
}

/// What a counter has grown by; one that has begun anew has grown by what it is.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}
