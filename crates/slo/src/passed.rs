//! The traffic of a window, for the host and for each tenant: the difference of two snapshots.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use plimsoll_policy::Slo;
use plimsoll_units::{Nanos, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{LaneWatched, Parts, Watched};

/// A rate may miss its bound by this factor before it is a breach: bursts, and windows that end in the middle of a packet.
pub(crate) const SLACK: f64 = 1.05;

/// The host's traffic and its engine's thread in a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// When the window began, in seconds since the daemon's start.
    pub from: f64,
    /// Length of the window in seconds.
    pub length: f64,
    /// When the window ended.
    #[serde(skip)]
    pub(crate) at: Nanos,
    /// Bytes sent on the uplink.
    pub sent_bytes: u64,
    /// Bytes received from the uplink.
    pub received_bytes: u64,
    /// Seconds for which the engine's thread had a core.
    pub cpu: f64,
    /// Seconds for which the thread was ready to run and had no core; none where the kernel does not report it.
    pub no_core: Option<f64>,
    /// The longest delay of a wake-up, in microseconds.
    pub late: f64,
    /// Times that the uplink had no room for a frame.
    pub uplink_full: u64,
    /// Seconds in windows at whose begin or end the uplink was down or gone.
    pub uplink_away: f64,
    /// Frames that the kernel dropped before the engine read them.
    pub kernel_drops: u64,
}

/// One tenant's traffic in a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Bytes read from the tenant's port.
    pub offered_bytes: u64,
    /// Bytes that left.
    pub sent_bytes: u64,
    /// Frames of the tenant that were lost on egress, by drop reason.
    pub lost: BTreeMap<String, u64>,
    /// Frames that left this host and are known to be lost between the hosts.
    pub strayed: u64,
    /// Times that the tenant's packets were held for a receiver or by backpressure, by who held them.
    pub pressed: BTreeMap<String, u64>,
    /// Bytes that came for the tenant, including lost frames.
    pub due_bytes: u64,
    /// Bytes that the tenant's port took.
    pub received_bytes: u64,
    /// Frames that the NIC or the kernel dropped before the engine read them, where their tenant is known.
    pub nic_full: u64,
    /// Frames dropped because the tenant's ingress queue was full.
    pub queue_full: u64,
    /// Frames dropped because the tenant received more than its maximum.
    pub over_max: u64,
    /// Frames of `over_max` that came within the maximum, and all at once only because the engine had been away.
    pub bunched: u64,
    /// Frames that the tenant's device had no room for.
    pub unread: u64,
    /// Packets later than each target: on egress, and on ingress.
    pub late: [Vec<u64>; 2],
    /// Delays on egress.
    pub egress: Quantiles,
    /// Delays in the NIC's and the kernel's queue, where they are known.
    pub nic: Quantiles,
    /// Delays in the engine on ingress.
    pub engine: Quantiles,
    /// Seconds of CPU for the tenant's ingress.
    pub cpu: f64,
    /// Seconds that limits held the packets that left, summed over all packets.
    pub shaped: f64,
    /// Seconds that the packets that left waited for other reasons, summed over all packets.
    pub waited: f64,
    /// The lowest rate, in bits per second, of a window in which the tenant wanted at least its `min` and got less.
    pub least_sent: Option<f64>,
    /// Whether backpressure held its flows in such a window.
    pub below_min_by_backpressure: bool,
    /// The highest rate that it sent in a window.
    pub most_sent: f64,
    /// The highest rate that came for it in a window.
    pub most_due: f64,
    /// The highest rate that it offered in a window.
    pub most_offered: f64,
    /// Whether the tenant's port was gone at the end of a window.
    pub away: bool,
}

/// Quantiles of delays in microseconds; for several windows together, each is the largest of the windows'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Quantiles {
    /// Number of measurements.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
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

    /// Seconds that the engine may have been away, as far as measurements tell.
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
    /// The difference of two snapshots in the host's window, for a tenant with this `min` in bits per second.
    pub(super) fn between(
        before: Option<&LaneWatched>,
        now: &LaneWatched,
        host: &Host,
        min: Option<u64>,
        slo: Option<&Slo>,
    ) -> Self {
        let none = LaneWatched::default();
        let length = host.length;
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
        // A port that was not read may have had more to offer. Behind its own limits a tenant waits as the policy says.
        let held_back = grown(was.held_back, now.held_back) > 0;
        let wants = (held_back || offered >= min.unwrap_or(0) as f64) && parts.shaped <= parts.waited;
        // Behind backpressure it may offer less, as TCP then sends less. It wants more if a packet waited at any time.
        let pressed_back = parts.pressed.as_secs_f64() >= length || lost.contains_key(OVER_RATE);
        let below = min.is_some_and(|min| sent * SLACK < min as f64);
        let short = below && (wants || pressed_back);
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
            below_min_by_backpressure: short && pressed_back,
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
            // A new policy has come in between: only the counts of its targets are kept.
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
        self.below_min_by_backpressure |= later.below_min_by_backpressure;
        self.most_sent = self.most_sent.max(later.most_sent);
        self.most_due = self.most_due.max(later.most_due);
        self.most_offered = self.most_offered.max(later.most_offered);
        self.away |= later.away;
    }

    /// Frames lost on egress for lack of room or by the host; not malformed frames, nor those that the receiver did not
    /// take.
    #[must_use]
    pub fn lost_by_us(&self) -> u64 {
        self.lost.iter().filter(|(name, _)| OURS.contains(&name.as_str())).map(|(_, count)| count).sum()
    }
}

/// Whether `came` bytes are within the tenant's maximum, and overran its burst only because the engine was away for
/// longer than the burst lasts.
fn is_bunched(slo: &Slo, came: u64, host: &Host) -> bool {
    let (Some(max), Some(ceiling)) = (slo.ingress.max, slo.ceiling) else { return false };
    let away = host.away();
    // Frames that waited while the engine was away may have come before the window.
    let may = max.get() as f64 * (host.length + away);
    away >= ceiling.rate.wire_time(ceiling.burst).as_secs_f64() && came as f64 * 8.0 <= may
}

/// The drop reason of what is beyond a rate of backpressure.
const OVER_RATE: &str = "flow_over_rate";
/// Drop reasons that can break a promise.
const OURS: [&str; 12] = [
    "flow_full",
    "class_full",
    "tenant_full",
    "host_full",
    "no_queue",
    "gone",
    "kernel",
    "kernel_full",
    "inconsistent",
    OVER_RATE,
    // In simulation: the guest's own queue, and a host whose daemon is down.
    "guest_queue_full",
    "daemon_down",
];

impl Quantiles {
    pub(crate) fn add(&mut self, later: &Self) {
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

/// Growth of a counter; a counter that is smaller than before has restarted from zero.
fn grown(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}
