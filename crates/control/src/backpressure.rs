//! Backpressure on heavy hitters: when to slow flows down, which flows, how hard, and for how long.
//!
//! Why: one flow can fill the core of a gateway. Slowing down that flow at its source spares every other flow.
//! From: MIMIC §II, §III-A and §V-A. What MIMIC leaves open (thresholds, when a flow is let go, the automatic target) is ours.
//! Not here: counting packets by flow (`queues`), measuring CPU time, marking and dropping packets, carrying notifications: the
//! driver does that, and passes the time.
//! Invariant: at most `flows` flows are pressed; none longer than `lifetime` after its last start or refresh; the same inputs
//! give the same orders, as arithmetic is in integers and no order depends on a hash.
//!
//! **When a flow is refreshed.** At the end of each window, a pressed flow that was reported in the window is refreshed
//!
//! - while the overload lasts, or
//! - while the flow still sends at least half of its target (an eighth while its marks can become rarer, as these may keep it
//!   down), and the overload would return without the pressing: if all such flows sent what they sent most since they were
//!   pressed, each packet costing the same CPU time, or if they brought the load that they were pressed for, the load would reach
//!   the threshold below which an overload ends. It is the lower one, as acknowledgements would come back too.
//!
//! A flow at its target shows no more what it wants. If it was caught with its first report, or as it began, its rate since then is
//! little more than its target. So its part of the load that it was pressed for is kept: with the load of all others as it is now,
//! that tells whether the overload would return. Once others bring less, the flow is let go. Packets may not be what made the load:
//! if the overload lasts for 200 ms although the flow is pressed, this part is forgotten, and after ten lifetimes without an
//! overload as well, so that the flow is tried.
//!
//! Any other flow is let go at the end of its lifetime.
//!
//! **What counts for the choice** are the packets of the last 20 to 40 ms. A flow that takes other ports before it has sent for
//! seconds is chosen as well as one that does not, and one that was heavy a second ago is not.
//!
//! **The first report.** A flow's rate is the difference of two reports. At its first one it is pressed to a fixed rate only if it
//! would exceed that with all packets of the poll: a flow of acknowledgements is far below its target, however many they are.
//!
//! **Overloads without heavy hitters.** If the flows that are to be pressed have not even a twentieth of all packets, or a fifth
//! where none of them stands out, the overload has another cause, such as a flood of small flows: they are left alone.
//!
//! **Many equal flows.** Where the overload lasts for a window although pressed flows can give up no more, and no other flow has
//! the part of packets for which it is chosen, the flows with at least half of the packets of the top one are pressed.
//!
//! **The automatic target** ([`Target::Auto`]) aims a little below the release threshold. The excess load is divided over the
//! chosen flows by their packets, each packet costing the same: each flow gives up the same part of its rate. Targets are lowered while an overload lasts,
//! and raised while pressed flows leave the thing clearly below its aim.

mod choice;
mod connections;
mod marking;
mod means;
pub mod mediation;
mod meter;
mod meters;
mod pressed;
mod reports;
mod rtt;
mod settings;
mod small_windows;
mod stay;
mod target;
mod trigger;
mod window;

#[cfg(test)]
mod tests;

use core::fmt::Debug;
use core::hash::Hash;

use plimsoll_queues::Heavy;
use plimsoll_units::{BitRate, Nanos, Span};

use crate::PerMille;
use pressed::Flow;
use reports::{Gauge, Rate, Reports};
use target::{ONE, Sends};

pub use choice::choose;
pub use marking::{marked_rate, marking_interval, marking_window, trimmed};
pub use means::{Able, FlowSource, Marking, Means, SenderMac};
pub use meter::{Meter, Verdict};
pub use meters::{Installed, MeterCounters, MeterSettings, Metered, Meters, NotInstalled, Terms};
pub use pressed::Pressed;
pub use rtt::{Handshakes, RoundTrip, Segment};
pub use settings::{Path, Settings, Target};
pub use small_windows::{Place, Slowed, SmallWindows, WindowSegment};
pub use trigger::{Overload, Thresholds, Trigger, utilization};
pub use window::{ControlSegment, End, Windows, window_for};

/// What the watched thing did since the poll before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// CPU time that it used, summed over its cores.
    pub busy: Span,
    /// The time that passed.
    pub over: Span,
    /// Packets that it handled; zero if not known: those of the reported flows then stand for all, and the automatic target
    /// takes more steps.
    pub packets: u64,
}

/// What is to be done about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order<K> {
    /// Press this flow from now on.
    Start(Pressed<K>),
    /// Go on for another lifetime, with these values.
    Refresh(Pressed<K>),
    /// Stop: the flow's lifetime is over. With its last values.
    End(Pressed<K>),
}

/// What a [`Backpressure`] did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Overloads that began.
    pub overloads: u64,
    /// Flows that were pressed.
    pub started: u64,
    /// Refreshes that were ordered.
    pub refreshed: u64,
    /// Flows that were let go.
    pub ended: u64,
    /// Choices that were dropped as too many flows were pressed; counted at each poll.
    pub full: u64,
    /// Reports that were ignored as there were too many.
    pub unread: u64,
}

/// How long the packets of a flow that has begun to be slowed down are left out of the measurements by which its sender's host is
/// held back ([`Measured::left_out`](crate::Measured::left_out)): two loops that follow one flow at once would both slow down its
/// neighbours. In this time each heavy hitter is reported.
pub const FRESH: Span = Span::millis(20);

/// Decides which flows are pressed back for one watched thing.
///
/// Flows are found by the hash of their key. Where others choose the keys, the key's own `Hash` must be keyed.
///
/// ```
/// use plimsoll_control::backpressure::{Backpressure, Order, Settings, Work};
/// use plimsoll_queues::{Heavy, Tally};
/// use plimsoll_units::{Nanos, Span};
///
/// let mut backpressure: Backpressure<&str> = Backpressure::new(Settings::default(), Nanos::ZERO);
/// let heavy = |key, packets| Heavy { key, sent: Tally { packets, bytes: 1_500 * packets } };
/// let reported = [heavy("elephant", 50_000), heavy("goat", 4_000)];
/// let work = |percent: u64| Work { busy: Span::micros(40 * percent), over: Span::millis(4), packets: 2_400 };
///
/// let at = |ms| Nanos::ZERO + Span::millis(ms);
/// assert_eq!(backpressure.poll(work(60), &reported, |_| None, at(4)), [], "60 % is no overload");
/// let reported = [heavy("elephant", 50_800), heavy("goat", 4_040)];
/// let orders = backpressure.poll(work(90), &reported, |_| None, at(8));
/// let [Order::Start(pressed)] = orders else { panic!("one flow has a tenth of the packets") };
/// assert_eq!((pressed.key, pressed.interval), ("elephant", 1_983));
/// assert_eq!(backpressure.top(), Some(952), "thousandths of the packets are the elephant's");
/// ```
#[derive(Clone, Debug)]
pub struct Backpressure<K> {
    settings: Settings,
    trigger: Trigger,
    reports: Reports<K>,
    /// By key.
    flows: Vec<Flow<K>>,
    window: Window,
    /// Packets that the watched thing handled in the window before.
    before: u64,
    /// Windows in a row that ended in an overload, and when the last one of these ended.
    windows_on: u32,
    calm_since: Nanos,
    /// A window of overload ended in which no flow was to be chosen and pressed flows kept to their targets.
    widens: bool,
    /// The flows that are chosen, while they are.
    chosen: Vec<Heavy<K>>,
    /// The top flow, and its part.
    top: Option<(K, PerMille)>,
    orders: Vec<Order<K>>,
    counters: Counters,
}

/// What the watched thing did since the window began.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Nanos,
    busy: Span,
    over: Span,
    packets: u64,
}

impl Window {
    fn new(began: Nanos) -> Self {
        Self { began, busy: Span::ZERO, over: Span::ZERO, packets: 0 }
    }

    fn add(&mut self, work: Work) {
        self.busy += work.busy;
        self.over += work.over;
        self.packets = self.packets.saturating_add(work.packets);
    }

    /// The part of `capacity` that was used, and packets per second.
    fn load(&self, capacity: u32) -> (PerMille, u64) {
        let gauge = Gauge::new(self.packets, 0, self.over);
        (utilization(self.busy, self.over, capacity), gauge.rate().map_or(0, |rate| rate.packets))
    }
}

impl<K> Backpressure<K> {
    /// Bytes of the tables that [`new`](Self::new) allocates; nothing is allocated here.
    #[must_use]
    pub const fn bytes_of(settings: &Settings) -> usize {
        let of_flows = settings.flows * (size_of::<Flow<K>>() + 2 * size_of::<Order<K>>());
        Reports::<K>::bytes_of(settings.reports) + settings.reports * size_of::<Heavy<K>>() + of_flows
    }
}

impl<K: Copy + Eq + Hash + Ord + Debug> Backpressure<K> {
    /// Presses no flow yet. Takes all memory.
    #[must_use]
    pub fn new(settings: Settings, now: Nanos) -> Self {
        Self {
            trigger: Trigger::new(settings.thresholds, settings.capacity),
            reports: Reports::new(settings.reports),
            flows: Vec::with_capacity(settings.flows),
            window: Window::new(now),
            before: 0,
            windows_on: 0,
            calm_since: now,
            widens: false,
            chosen: Vec::with_capacity(settings.reports),
            top: None,
            // A poll orders at most one thing for each pressed flow and ends as many.
            orders: Vec::with_capacity(2 * settings.flows),
            counters: Counters::default(),
            settings,
        }
    }

    /// Handles one poll, each millisecond, and returns what is to be done, in a fixed order.
    ///
    /// `reported` are the flows over the threshold that were counted since the last poll, as
    /// [`HeavyHitters::read`](plimsoll_queues::HeavyHitters::read) returns them. `path` returns a flow's way, where it is known;
    /// it is asked when the flow is first pressed, and at the end of each window after that. `now` must not run backwards.
    pub fn poll(
        &mut self,
        work: Work,
        reported: &[Heavy<K>],
        mut path: impl FnMut(&K) -> Option<Path>,
        now: Nanos,
    ) -> &[Order<K>] {
        self.orders.clear();
        self.expire(now);
        let handled = work.packets;
        let work = self.measure(work, reported, now);
        let overload = self.trigger.poll(work.busy, work.over);
        self.counters.overloads += u64::from(overload == Overload::Begins);
        if overload.is_on() {
            self.press(work, handled, &mut path, now);
        }
        if now.since(self.window.began) >= self.settings.window {
            self.end_window(&mut path, now);
        }
        &self.orders
    }

    /// Handles that there is nothing new to poll with: lets go of flows whose lifetime is over.
    pub fn lapse(&mut self, now: Nanos) -> &[Order<K>] {
        self.orders.clear();
        self.expire(now);
        &self.orders
    }

    /// Handles that the load cannot be measured, or is of no account any more: ends the overload, and lets each flow go.
    pub fn let_all_go(&mut self, now: Nanos) -> &[Order<K>] {
        self.orders.clear();
        self.orders.extend(self.flows.drain(..).map(|flow| Order::End(*flow.pressed())));
        self.counters.ended += self.orders.len() as u64;
        self.trigger = Trigger::new(self.settings.thresholds, self.settings.capacity);
        (self.window, self.before, self.widens) = (Window::new(now), 0, false);
        &self.orders
    }

    /// Lets go of flows whose lifetime is over.
    fn expire(&mut self, now: Nanos) {
        let orders = &mut self.orders;
        self.flows.retain(|flow| {
            let holds = now < flow.pressed().until;
            if !holds {
                orders.push(Order::End(*flow.pressed()));
            }
            holds
        });
        self.counters.ended += self.orders.len() as u64;
    }

    fn measure(&mut self, work: Work, reported: &[Heavy<K>], now: Nanos) -> Work {
        let all = self.recent_packets().saturating_add(work.packets);
        self.counters.unread += self.reports.take(reported, self.settings.window, all, now) as u64;
        for flow in &mut self.flows {
            let (reported, new) = self.reports.note_pressed(flow.key());
            flow.note(reported, new);
        }
        let packets = if work.packets > 0 { work.packets } else { self.reports.packets() };
        let work = Work { packets, ..work };
        self.window.add(work);
        work
    }

    /// Presses the flows that are chosen and not pressed yet. All flows together sent `handled` packets since the last poll, if that
    /// is known.
    fn press(&mut self, work: Work, handled: u64, mut path: impl FnMut(&K) -> Option<Path>, now: Nanos) {
        self.reports.choose(self.settings.over, &mut self.chosen);
        self.top = self.reports.top();
        let widens = self.chosen.is_empty() && core::mem::take(&mut self.widens);
        if widens {
            self.reports.choose_like_top(&mut self.chosen);
        }
        if self.reports.has_recent() && self.is_futile(if widens { FEW_ALIKE } else { FEW }) {
            self.chosen.clear();
        }
        if self.chosen.is_empty() {
            return;
        }
        let listed = self.reports.weight();
        let factor = self.first_factor(work, now);
        for at in 0..self.chosen.len() {
            let heavy = self.chosen[at];
            let key = heavy.key;
            let rate = self.rate(&key);
            let Some(target) = self.first_target(rate, most_of(&heavy, handled, work.over), factor) else {
                continue;
            };
            if self.flows.len() >= self.settings.flows {
                self.counters.full += 1;
                continue;
            }
            let path = path(&key).unwrap_or(self.settings.path);
            let brought = self.brought(&heavy, rate, listed, work);
            let flow = Flow::new(key, target, path, (rate, brought), now, self.settings.lifetime);
            self.orders.push(Order::Start(*flow.pressed()));
            self.counters.started += 1;
            if let Err(place) = position(&self.flows, &key) {
                self.flows.insert(place, flow);
            }
        }
    }

    /// The part of the load that a chosen flow brings, by its packets: of the newest poll, or of the last two windows if that is
    /// more. A flow that has just begun has more of the newest poll. `listed` are the packets of all reported flows.
    fn brought(&self, heavy: &Heavy<K>, rate: Option<Rate>, listed: u64, work: Work) -> PerMille {
        let used = self.trigger.used();
        let recent = target::part_of(used, heavy.sent.packets, self.recent_packets().max(listed));
        let all = Gauge::new(work.packets, 0, work.over).rate();
        let newest = rate.zip(all).map(|(rate, all)| target::part_of(used, rate.packets, all.packets));
        recent.max(newest.unwrap_or(0))
    }

    /// Whether the chosen flows have too few packets for the overload to be theirs: not one in so many.
    fn is_futile(&self, one_in: u64) -> bool {
        let chosen = self.chosen.iter().map(|heavy| heavy.sent.packets).fold(0, u64::saturating_add);
        chosen.saturating_mul(one_in) < self.recent_packets()
    }

    /// Packets that the watched thing handled in the running window and the one before.
    fn recent_packets(&self) -> u64 {
        self.window.packets.saturating_add(self.before)
    }

    /// The factor by which the rates of newly chosen flows are multiplied.
    fn first_factor(&self, work: Work, now: Nanos) -> u64 {
        let mut poll = Window::new(now);
        poll.add(work);
        let (used, all) = poll.load(self.settings.capacity);
        let rates = self.chosen.iter().filter_map(|heavy| self.rate(&heavy.key));
        let packets = rates.map(|rate| rate.packets).fold(0, u64::saturating_add);
        let new = Sends { now: packets, allowed: packets };
        target::factor(used, self.aim(), all, self.sends(), new)
    }

    /// The target of a newly chosen flow, which sends `most` at most; `None` if it is to be left alone: it keeps to a fixed target
    /// already, or an automatic one is not known yet or not needed.
    fn first_target(&self, rate: Option<Rate>, most: u64, factor: u64) -> Option<BitRate> {
        match self.settings.target {
            Target::Fixed(target) => {
                let bits = rate.map_or(most, |rate| rate.bits);
                (bits > target.get()).then_some(target)
            }
            Target::Auto(least) => rate
                .filter(|rate| factor < ONE && rate.bits > least.get())
                .map(|rate| times(rate.bits, factor).max(least)),
        }
    }

    /// How fast a reported flow sends; `None` where one report is all that is known.
    fn rate(&self, key: &K) -> Option<Rate> {
        self.reports.gauge(key).and_then(|new| new.rate())
    }

    /// What pressed flows send together.
    fn sends(&self) -> Sends {
        self.flows.iter().map(Flow::sends).fold(Sends::default(), |sum, sends| Sends {
            now: sum.now.saturating_add(sends.now),
            allowed: sum.allowed.saturating_add(sends.allowed),
        })
    }

    /// The load at which automatic targets aim.
    fn aim(&self) -> PerMille {
        self.trigger.thresholds().off_below.saturating_sub(MARGIN)
    }

    /// Whether the watched thing is overloaded.
    #[must_use]
    pub const fn is_overloaded(&self) -> bool {
        self.trigger.is_on()
    }

    /// The top flow's part of the packets of all flows that were reported in the last window, as the newest poll that found an
    /// overload had it; `None` if no flow was reported then (MIMIC §II, figure 2).
    #[must_use]
    pub fn top(&self) -> Option<PerMille> {
        self.top.map(|(_, part)| part)
    }

    /// The flow that [`top`](Self::top) is about.
    #[must_use]
    pub fn top_flow(&self) -> Option<K> {
        self.top.map(|(flow, _)| flow)
    }

    /// The flows that are pressed, by key.
    pub fn pressed(&self) -> impl ExactSizeIterator<Item = &Pressed<K>> {
        self.flows.iter().map(Flow::pressed)
    }

    /// When the next flow is let go, if it is not refreshed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.pressed().map(|pressed| pressed.until).min()
    }

    /// What was chosen, ordered and left out.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }
}

fn position<K: Ord + Copy>(flows: &[Flow<K>], key: &K) -> Result<usize, usize> {
    flows.binary_search_by(|flow| flow.key().cmp(key))
}

/// The bits per second of a flow if all packets that were handled in this time were its own; no bound if they are not known.
fn most_of<K>(heavy: &Heavy<K>, handled: u64, over: Span) -> u64 {
    let mean = heavy.sent.bytes.div_ceil(heavy.sent.packets.max(1));
    let all = Gauge::new(handled, handled.saturating_mul(mean), over);
    all.rate().filter(|_| handled > 0).map_or(u64::MAX, |rate| rate.bits)
}

/// `bits` times a factor in parts of [`ONE`], at least 1.
fn times(bits: u64, factor: u64) -> BitRate {
    let bits = u128::from(bits) * u128::from(factor) / u128::from(ONE);
    BitRate::new(u64::try_from(bits).unwrap_or(u64::MAX).max(1)).expect("at least 1")
}

/// One in how many packets the chosen flows must have at least; and those that are chosen as none stands out.
const FEW: u64 = 20;
const FEW_ALIKE: u64 = 5;
/// How far below the release threshold automatic targets aim, and how far below that the load must be for them to rise.
const MARGIN: PerMille = 25;
