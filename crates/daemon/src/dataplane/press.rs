//! Backpressure at work: slows down the flows that overload what the policy watches.
//!
//! Why: one flow can fill the core of a gateway; to slow down that flow, at its source where possible, spares every other.
//! From: MIMIC §III; which flows and how hard by `control::backpressure`.
//! Not here: counting flows (`heavy`), reading CPU time (`load`), carrying notices to other hosts (`fleet::steer`).
//! Invariant: only flows that are heavy hitters are marked or dropped, each for no longer than its lifetime after the last
//! refresh; a frame beyond its flow's rate is lost for the reason `flow_over_rate`.

mod news;
mod treatments;
mod window;

use std::collections::HashMap;

use foldhash::quality::RandomState;
use plimsoll_control::HostId;
use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{
    Able, Backpressure, Counters, FRESH, FlowSource, Marking, Means, Order, Path, Pressed, SenderMac,
    Settings, Terms, Work,
};
use plimsoll_policy::{Press, PressMode, Watch};
use plimsoll_queues::{Heavy, Tally};
use plimsoll_units::{BitRate, Bytes, Nanos, Span};
use plimsoll_wire::FlowKey;

use super::heavy::{Counted, HashedCount, HashedFlow};
pub(super) use news::PressNews;
pub(crate) use news::method;
use news::{OverloadNews, Told};
pub(super) use treatments::TreatedAt;
use treatments::{Treatment, Treatments};
pub(super) use window::SmallWindows;

/// The flows that are slowed down, and how.
#[derive(Debug)]
pub(super) struct Presses {
    stated: Press,
    control: Backpressure<HashedFlow>,
    /// What is done with the packets of these flows here.
    treated: Treatments,
    /// In the mode `window`: connections, and flows whose windows are made smaller.
    windows: Option<Box<SmallWindows>>,
    /// By tenant: packets from the uplink of flows that have just begun to be slowed down, until they are taken.
    left_out: HashMap<u32, u64, RandomState>,
    /// When the present overload was told, as long as its top flow is still to be told.
    top_untold: Option<Nanos>,
    marked: u64,
    last: Option<Load>,
    polled: Nanos,
    /// Whether it is known that the load cannot be measured.
    unmeasured: bool,
    overloads: OverloadNews,
    /// By the flow's hash: which method was told.
    told: HashMap<u64, Told, RandomState>,
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
    /// The address there that the flow is sent from.
    pub(super) sender: SenderMac,
    /// The number of the tenant that receives the flow.
    pub(super) tenant: u32,
    pub(super) flow: FlowKey,
    pub(super) terms: Terms,
}

/// Most news that wait to be taken; further ones are not told one by one.
const MOST_NEWS: usize = 32;

impl Presses {
    pub(super) fn new(stated: &Press) -> Self {
        let flows = stated.flows as usize;
        Self {
            control: Backpressure::new(Settings::of(stated), Nanos::ZERO),
            treated: Treatments::new(flows),
            windows: (stated.mode == PressMode::Window).then(|| Box::new(SmallWindows::new(flows))),
            left_out: HashMap::default(),
            top_untold: None,
            marked: 0,
            last: None,
            polled: Nanos::ZERO,
            unmeasured: false,
            overloads: OverloadNews::default(),
            told: HashMap::with_capacity_and_hasher(flows, RandomState::default()),
            news: Vec::new(),
            stated: stated.clone(),
        }
    }

    /// Bytes of the table of what is done with this many flows. Nothing is allocated.
    pub(super) const fn treated_bytes(flows: usize) -> usize {
        Treatments::bytes_of(flows)
            + (flows * 8 / 7).next_power_of_two() * (size_of::<(u64, Told)>() + 1)
            + flows * size_of::<Heavy<HashedFlow>>()
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
        reported: &[Heavy<HashedFlow>],
        path: impl FnMut(&HashedFlow) -> Option<Path>,
        tells: &mut Vec<Tell>,
        now: Nanos,
    ) {
        self.polled = now;
        self.unmeasured = false;
        let Some(work) = self.measure(load) else {
            let orders = self.control.lapse(now).to_vec();
            return self.obey(orders, tells, now);
        };
        let before = self.control.is_overloaded();
        let orders = self.control.poll(work, reported, path, now).to_vec();
        let news = &mut self.news;
        if self.overloads.note([before, self.control.is_overloaded()], now, |said| say(news, said)) {
            self.top_untold = Some(now);
        }
        self.say_top(now);
        self.obey(orders, tells, now);
    }

    /// Handles that there is nothing new to poll with: lets go of flows whose lifetime is over, and of each one if it is known that
    /// the load cannot be measured.
    pub(super) fn lapse(&mut self, gone: bool, now: Nanos) {
        self.polled = now;
        self.unmeasured |= gone;
        let orders = if gone {
            let news = &mut self.news;
            if self.overloads.end(now, |said| say(news, said)) {
                say(news, PressNews::Unmeasured);
            }
            (self.last, self.top_untold) = (None, None);
            self.control.let_all_go(now)
        } else {
            self.control.lapse(now)
        };
        let orders = orders.to_vec();
        self.obey(orders, &mut Vec::new(), now);
    }

    /// Lets each flow go, as a reload ends what these tables are for.
    pub(super) fn end(&mut self, now: Nanos) {
        let news = &mut self.news;
        if self.overloads.end(now, |said| say(news, said)) || self.control.pressed().len() > 0 {
            say(news, PressNews::Unwatched);
        }
        let orders = self.control.let_all_go(now).to_vec();
        self.obey(orders, &mut Vec::new(), now);
    }

    fn obey(&mut self, orders: Vec<Order<HashedFlow>>, tells: &mut Vec<Tell>, now: Nanos) {
        for order in orders {
            match order {
                Order::Start(pressed) => {
                    let HashedFlow { hash, of } = pressed.key;
                    if of.inward && of.from != FlowSource::Here {
                        self.treated.of(hash).fresh_until = now + FRESH;
                    }
                    let means = self.press(&pressed, tells, now);
                    self.told.insert(hash, Told { means, changed: None, sent: Tally::default() });
                    say(&mut self.news, PressNews::Start(of, unnamed(pressed), means));
                }
                Order::Refresh(pressed) => {
                    let HashedFlow { hash, of } = pressed.key;
                    let means = self.press(&pressed, tells, now);
                    let told = self.told.get_mut(&hash);
                    if told.is_some_and(|told| told.is_to_be_told(means, now)) {
                        say(&mut self.news, PressNews::Changed(of, unnamed(pressed), means));
                    }
                }
                Order::End(Pressed { key: HashedFlow { hash, of }, since, .. }) => {
                    say(&mut self.news, PressNews::End(of, now.since(since)));
                    self.told.remove(&hash);
                    self.treated.end(hash);
                    if let Some(windows) = &mut self.windows {
                        windows.let_go(&of);
                    }
                }
            }
        }
        self.treated.tidy(now);
    }

    /// Passes what was counted of each flow while its packets were judged to `count`. To be called before it is decided anew: what
    /// is done with a flow may end then.
    pub(super) fn settle(&mut self, mut count: impl FnMut(&HashedFlow, Tally)) {
        if self.treated.is_empty() {
            return;
        }
        for Pressed { key, .. } in self.control.pressed() {
            let counted = self.treated.get_mut(key.hash).map(Treatment::take_count);
            if let Some(counted) = counted.filter(|counted| counted.packets > 0) {
                count(key, counted);
            }
        }
    }

    /// What [`Presses::settle`] would pass on now, of all flows.
    pub(super) fn unsettled(&self) -> Tally {
        self.treated.counted()
    }

    /// Calls `held` for each flow that is slowed down and has sent something since the last call: its rate may be what keeps it from
    /// being reported as heavy.
    pub(super) fn each_held(
        &mut self,
        sent: impl Fn(u64) -> Option<Tally>,
        mut held: impl FnMut(Heavy<HashedFlow>),
    ) {
        for &Pressed { key, .. } in self.control.pressed() {
            let Some((told, sent)) = self.told.get_mut(&key.hash).zip(sent(key.hash)) else { continue };
            if core::mem::replace(&mut told.sent, sent) != sent && sent.packets > 0 {
                held(Heavy { key, sent });
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
            say(&mut self.news, PressNews::Top(flow.of, part));
        }
    }

    /// Packets from the uplink of flows that have just begun to be slowed down, for this tenant, since the last call.
    pub(super) fn take_left_out(&mut self, tenant: u32) -> u64 {
        self.left_out.remove(&tenant).unwrap_or(0)
    }

    pub(super) fn take_news(&mut self) -> Vec<PressNews> {
        core::mem::take(&mut self.news)
    }

    /// Whether the flow's rate allows these bytes now; if so they are charged.
    pub(super) fn conforms(&mut self, flow: &Counted, bytes: u32, now: Nanos) -> bool {
        self.treated.get_mut(flow.hashed()).is_none_or(|treated| treated.conforms(bytes, now))
    }

    /// The bytes of a flow of this host's own tenants that wait at most, where the mode bounds them.
    pub(super) fn most_waiting(&self) -> Option<Bytes> {
        self.stated.most_waiting()
    }

    /// The rate that this host holds a flow to.
    pub(super) fn rate(&self, flow: &Counted) -> Option<BitRate> {
        Some(self.treated.get(flow.hashed())?.meter.as_ref()?.rate())
    }

    /// When the flow's rate will allow these bytes.
    pub(super) fn ready_at(&self, flow: &Counted, bytes: u32, now: Nanos) -> Nanos {
        let meter = self.treated.get(flow.hashed()).and_then(|treated| treated.meter.as_ref());
        meter.map_or(now, |meter| meter.ready_at(bytes, now))
    }

    /// How a flow is slowed down.
    fn means(&self, pressed: &Pressed<HashedFlow>) -> Means {
        let HashedFlow { hash, of } = &pressed.key;
        let marking = self.treated.get(*hash).and_then(|treated| treated.marking.as_ref());
        let unmarkable = marking.is_some_and(Marking::is_unmarkable);
        let known = || self.windows.as_ref().is_some_and(|windows| windows.knows(of));
        let able = Able { mark: !(of.untouched || unmarkable), window: !of.untouched && known() };
        Means::of(self.stated.mode, of.from, able, pressed.ignores_marks)
    }

    fn press(&mut self, pressed: &Pressed<HashedFlow>, tells: &mut Vec<Tell>, now: Nanos) -> Means {
        let means = self.means(pressed);
        let terms = Terms { rate: pressed.target, burst: self.stated.burst, lifetime: self.stated.lifetime };
        let HashedFlow { hash, of: key } = pressed.key;
        if means.marks() {
            let marking = &mut self.treated.of(hash).marking;
            marking.get_or_insert_default().set(pressed.interval, pressed.until);
        } else if let Some(marking) = self.treated.get_mut(hash).and_then(|treated| treated.marking.as_mut())
        {
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
            Means::Told(_) | Means::MarkedAndTold(_) => {
                if let FlowSource::Host(host, sender) = key.from {
                    tells.push(Tell { host, sender, tenant: key.tenant, flow: key.flow, terms });
                }
            }
            Means::MeteredHere | Means::Dropped | Means::MarkedAndMetered => {
                self.treated.of(hash).hold(terms, now);
            }
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
        !self.treated.is_empty()
    }

    /// What is done with frames of a flow, of these bytes together, with this ECN field; and whether they were counted here.
    #[inline(never)]
    pub(super) fn judge(
        &mut self,
        flow: &mut HashedCount,
        (frames, bytes): (u16, u32),
        ecn: Codepoint,
        now: Nanos,
    ) -> (Act, bool) {
        let Some(treated) = self.treated.get_at(flow.hash, &mut flow.treated_at) else {
            return (Act::default(), false);
        };
        let counted = treated.count(frames, bytes);
        if now < treated.fresh_until {
            *self.left_out.entry(flow.of.tenant).or_default() += 1;
        }
        let way = match treated.conforms(bytes, now) {
            true => Way::Pass,
            // Without a queue TCP on the same host would lose whole flights, and wait for timeouts.
            false if flow.of.from == FlowSource::Here => Way::Wait,
            false => return (Act { mark: false, way: Way::Drop }, counted),
        };
        // A frame that waits is marked as well: its flow has more to send than its rate.
        let mark = treated.marking.as_mut().is_some_and(|marking| marking.take(frames.into(), ecn, now));
        self.marked += u64::from(mark);
        (Act { mark, way }, counted)
    }

    /// The flow's rate, since when, and the means, if it is slowed down.
    pub(super) fn pressed(&self, flow: &Counted) -> Option<(Pressed<HashedFlow>, Means)> {
        let pressed = self.control.pressed().find(|pressed| pressed.key.of == *flow)?;
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

    /// Whether the load can be measured, as far as is known.
    pub(super) fn is_measured(&self) -> bool {
        !self.unmeasured
    }

    /// What was decided, and packets that were marked.
    pub(super) fn counters(&self) -> (Counters, u64) {
        (self.control.counters(), self.marked)
    }
}

/// The values of a flow without its name.
fn unnamed(pressed: Pressed<HashedFlow>) -> Pressed<()> {
    let Pressed { target, interval, path, since, until, ignores_marks, .. } = pressed;
    Pressed { key: (), target, interval, path, since, until, ignores_marks }
}

/// Keeps news, if few wait.
fn say(all: &mut Vec<PressNews>, news: PressNews) {
    if all.len() < MOST_NEWS {
        all.push(news);
    }
}
