//! Backpressure at work: slows down the flows that overload what the policy watches.
//!
//! Why: one flow can fill the core of a gateway; to slow down that flow, at its source where possible, spares every other.
//! From: MIMIC §III; which flows and how hard by `control::backpressure`.
//! Not here: counting flows (`heavy`), reading CPU time (`load`), carrying notices to other hosts (`fleet::steer`).
//! Invariant: only flows that are heavy hitters are marked or dropped, each for no longer than its lifetime after the last
//! refresh; a frame beyond its flow's rate is lost for the reason `flow_over_rate`.

mod window;

use std::collections::HashMap;

use foldhash::quality::RandomState;
use plimsoll_control::HostId;
use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{
    Able, Backpressure, Counters, FlowSource, Marking, Means, MeterSettings, Meters, Order, Path, Pressed,
    Settings, Terms, Verdict, Work,
};
use plimsoll_policy::{Press, PressMode, Watch};
use plimsoll_queues::Heavy;
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::FlowKey;

use super::heavy::Counted;
pub(super) use window::{Place, SmallWindows};

/// The flows that are slowed down, and how.
#[derive(Debug)]
pub(super) struct Presses {
    stated: Press,
    control: Backpressure<Counted>,
    /// Flows whose packets are marked.
    marks: HashMap<Counted, Marking, RandomState>,
    /// Flows that are held to a rate by this host.
    meters: Meters<Counted>,
    /// In the mode `window`: connections, and flows whose windows are made smaller.
    windows: Option<Box<SmallWindows>>,
    /// Flows that have just begun to be slowed down, and until when that is so.
    fresh: HashMap<Counted, Nanos, RandomState>,
    /// By tenant: packets from the uplink of such flows, until they are taken.
    left_out: HashMap<u32, u64, RandomState>,
    /// When the present overload began, as long as its top flow is still to be told.
    top_untold: Option<Nanos>,
    marked: u64,
    last: Option<Load>,
    polled: Nanos,
    news: Vec<PressNews>,
}

/// What the watched thing has done until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// CPU time that it has used.
    pub(super) used: Span,
    /// When that was measured.
    pub(super) at: Nanos,
    /// Packets that it has handled.
    pub(super) packets: u64,
}

/// What is done with a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Act {
    /// It is marked (CE).
    pub(super) mark: bool,
    /// It goes on, or not.
    pub(super) way: Way,
}

/// Whether a frame goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// It does.
    #[default]
    Pass,
    /// It is beyond its flow's rate: it is dropped.
    Drop,
    /// It is beyond its flow's rate: it waits at its source.
    Wait,
}

/// A request to another host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tell {
    pub(super) host: HostId,
    /// The number of the tenant that receives the flow.
    pub(super) tenant: u32,
    pub(super) flow: FlowKey,
    pub(super) terms: Terms,
}

/// What an operator is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PressNews {
    /// An overload begins or ends.
    Overload(bool),
    /// This flow sends most in an overload: the part of the packets of all heavy hitters, in thousandths.
    Top(Counted, u32),
    /// A flow is slowed down from now on.
    Start(Counted, Pressed<()>, Means),
    /// A flow is let go, after it was slowed down for this long.
    End(Counted, Span),
}

/// Most news that wait to be taken; further ones are not told one by one.
const MOST_NEWS: usize = 32;
/// How long the packets of a flow that is slowed down are left out of the measurements by which its sender's host is held back:
/// two loops that follow one flow at once would both slow down its neighbours. In this time each heavy hitter is reported.
const FRESH: Span = Span::millis(20);

impl Presses {
    pub(super) fn new(stated: &Press) -> Self {
        let flows = stated.flows as usize;
        let meters = MeterSettings { meters: flows, per_peer: flows, ..MeterSettings::default() };
        Self {
            control: Backpressure::new(Settings::of(stated), Nanos::ZERO),
            marks: HashMap::with_capacity_and_hasher(flows, RandomState::default()),
            meters: Meters::new(meters),
            windows: (stated.mode == PressMode::Window).then(|| Box::new(SmallWindows::new(flows))),
            fresh: HashMap::with_capacity_and_hasher(flows, RandomState::default()),
            left_out: HashMap::default(),
            top_untold: None,
            marked: 0,
            last: None,
            polled: Nanos::ZERO,
            news: Vec::new(),
            stated: stated.clone(),
        }
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.stated.watch
    }

    /// Whether it is time to look at the load.
    #[inline]
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        now.since(self.polled) >= self.stated.poll
    }

    /// What the watched thing did since the last look; `None` if no time has passed.
    fn measure(&mut self, load: Load) -> Option<Work> {
        let before = self.last.replace(load)?;
        let over = load.at.since(before.at);
        let used = load.used.as_u64().saturating_sub(before.used.as_u64());
        let packets = load.packets.saturating_sub(before.packets);
        (over > Span::ZERO).then(|| Work { busy: Span::ns(used), over, packets })
    }

    /// Decides anew, and answers what other hosts are to be told. `untouched` says whether a tenant's packets may not be
    /// changed; `path` returns a flow's way, where it is known.
    pub(super) fn poll(
        &mut self,
        load: Load,
        reported: &[Heavy<Counted>],
        path: impl FnMut(&Counted) -> Option<Path>,
        tells: &mut Vec<Tell>,
        now: Nanos,
    ) {
        self.polled = now;
        let Some(work) = self.measure(load) else { return };
        let before = self.control.is_overloaded();
        let orders = self.control.poll(work, reported, path, now).to_vec();
        if before != self.control.is_overloaded() {
            self.say(PressNews::Overload(!before));
            self.top_untold = self.top_untold.or((!before).then_some(now));
        }
        self.say_top(now);
        self.fresh.retain(|_, until| now < *until);
        for order in orders {
            match order {
                Order::Start(pressed) => {
                    if pressed.key.inward && pressed.key.from != FlowSource::Here {
                        self.fresh.insert(pressed.key, now + FRESH);
                    }
                    let means = self.press(&pressed, tells, now);
                    let Pressed { target, interval, path, since, until, ignores_marks, key } = pressed;
                    let told = Pressed { key: (), target, interval, path, since, until, ignores_marks };
                    self.say(PressNews::Start(key, told, means));
                }
                Order::Refresh(pressed) => {
                    self.press(&pressed, tells, now);
                }
                Order::End(Pressed { key, since, .. }) => {
                    self.say(PressNews::End(key, now.since(since)));
                    self.marks.remove(&key);
                    self.meters.remove(&key, HERE);
                    if let Some(windows) = &mut self.windows {
                        windows.let_go(&key);
                    }
                }
            }
        }
    }

    /// Tells the top flow of an overload once (MIMIC §II, figure 2): when others had the time to be reported as well, or when the
    /// overload is over.
    fn say_top(&mut self, now: Nanos) {
        let due = self.top_untold.filter(|began| !self.control.is_overloaded() || now.since(*began) >= FRESH);
        if due.is_some()
            && let Some((flow, part)) = self.control.top_flow().zip(self.control.top())
        {
            self.top_untold = None;
            self.say(PressNews::Top(flow, part));
        }
    }

    /// Packets from the uplink of flows that have just begun to be slowed down, for this tenant, since the last call.
    pub(super) fn take_left_out(&mut self, tenant: u32) -> u64 {
        self.left_out.remove(&tenant).unwrap_or(0)
    }

    fn say(&mut self, news: PressNews) {
        if self.news.len() < MOST_NEWS {
            self.news.push(news);
        }
    }

    pub(super) fn take_news(&mut self) -> Vec<PressNews> {
        core::mem::take(&mut self.news)
    }

    /// Whether the flow's rate allows these bytes now; if so they are charged.
    pub(super) fn conforms(&mut self, flow: &Counted, bytes: u32, now: Nanos) -> bool {
        self.meters.judge(flow, bytes, now) == Verdict::Conforming
    }

    /// When the flow's rate will allow these bytes.
    pub(super) fn ready_at(&self, flow: &Counted, bytes: u32, now: Nanos) -> Nanos {
        self.meters.ready_at(flow, bytes, now)
    }

    /// How a flow is slowed down.
    fn means(&self, pressed: &Pressed<Counted>) -> Means {
        let untouched = pressed.key.untouched;
        let unmarkable = self.marks.get(&pressed.key).is_some_and(Marking::is_unmarkable);
        let known = || self.windows.as_ref().is_some_and(|windows| windows.knows(&pressed.key));
        let able = Able { mark: !(untouched || unmarkable), window: !untouched && known() };
        Means::of(self.stated.mode, pressed.key.from, able, pressed.ignores_marks)
    }

    fn press(&mut self, pressed: &Pressed<Counted>, tells: &mut Vec<Tell>, now: Nanos) -> Means {
        let means = self.means(pressed);
        let terms = Terms { rate: pressed.target, burst: self.stated.burst, lifetime: self.stated.lifetime };
        let key = pressed.key;
        if means.marks() {
            self.marks.entry(key).or_default().set(pressed.interval, pressed.until);
        } else if let Some(marking) = self.marks.get_mut(&key) {
            // It ignores marks, or cannot be marked, and the latter stays known.
            marking.stop();
        }
        if means != Means::Windowed
            && let Some(windows) = &mut self.windows
        {
            windows.let_go(&key);
        }
        match means {
            Means::Marked => {}
            Means::Windowed => {
                if let Some(windows) = &mut self.windows {
                    windows.hold(pressed);
                }
            }
            Means::Told(host) | Means::MarkedAndTold(host) => {
                tells.push(Tell { host, tenant: key.tenant, flow: key.flow, terms });
            }
            // There is a meter for each flow that may be pressed.
            Means::MeteredHere | Means::MarkedAndMetered => _ = self.meters.install(key, HERE, terms, now),
        }
        means
    }

    /// The windows of acknowledgements that pass, if the mode makes them smaller.
    #[inline]
    pub(super) fn windows(&mut self) -> Option<&mut SmallWindows> {
        self.windows.as_deref_mut()
    }

    /// Whether any flow is marked or metered here, or has just begun to be slowed down.
    #[inline]
    pub(super) fn is_at_work(&self) -> bool {
        !(self.meters.is_empty() && self.marks.is_empty() && self.fresh.is_empty())
    }

    /// What is done with frames of a flow, of these bytes together; `ecn` reads their ECN field.
    #[inline]
    pub(super) fn judge(
        &mut self,
        flow: &Counted,
        (frames, bytes): (u16, u32),
        ecn: impl FnOnce() -> Codepoint,
        now: Nanos,
    ) -> Act {
        if !self.fresh.is_empty() && self.fresh.get(flow).is_some_and(|until| now < *until) {
            *self.left_out.entry(flow.tenant).or_default() += 1;
        }
        let waits = self.stated.mode != PressMode::Drop && flow.from == FlowSource::Here;
        let way = match self.meters.judge(flow, bytes, now) {
            Verdict::Conforming => Way::Pass,
            Verdict::Excess if waits => Way::Wait,
            Verdict::Excess => return Act { mark: false, way: Way::Drop },
        };
        // A frame that waits is marked as well: its flow has more to send than its rate.
        let mark = self.marks.get_mut(flow).is_some_and(|marking| marking.take(frames.into(), ecn(), now));
        self.marked += u64::from(mark);
        Act { mark, way }
    }

    /// The flow's rate, since when, and the means, if it is slowed down.
    pub(super) fn pressed(&self, flow: &Counted) -> Option<(Pressed<Counted>, Means)> {
        let pressed = self.control.pressed().find(|pressed| pressed.key == *flow)?;
        Some((*pressed, self.means(pressed)))
    }

    /// Flows that are slowed down.
    pub(super) fn len(&self) -> usize {
        self.control.pressed().len()
    }

    /// Whether what is watched is overloaded, and the top flow's part of heavy hitters' packets then.
    pub(super) fn overload(&self) -> (bool, Option<u32>) {
        (self.control.is_overloaded(), self.control.top())
    }

    /// What was decided, and packets that were marked.
    pub(super) fn counters(&self) -> (Counters, u64) {
        (self.control.counters(), self.marked)
    }
}

/// Meters of this host's own decisions have one owner.
const HERE: HostId = HostId(0);
