//! Backpressure of one host in virtual time: counts flows, and slows down those that overload it.
//!
//! Why: the rules by which flows are found, chosen and held must be those that run live; clocks and packets are models.
//! From: MIMIC §III and §IV by `queues` and `control`; what is done with a packet as the daemon does it.
//! Not here: CPU time (`receive`), a packet's way (`world/journey`), and notices under way (`world/pressing`).
//! Invariant: a packet passes, is marked, waits (`paced`), or is dropped for the reason `flow_over_rate`.

mod guests;
mod hitters;
mod paced;
mod windows;

use std::collections::BTreeMap;

use plimsoll_control::HostId;
use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{
    Able, Backpressure, Counters, FRESH, FlowSource, Marking, Means, MeterSettings, Meters, Order, Path,
    Place, Pressed, Settings, SmallWindows, Terms, Verdict, Work,
};
use plimsoll_policy::{self as policy, PressMode, Watch};
use plimsoll_queues::{Heavy, HeavyConfig, HeavyCounters, Tally};
use plimsoll_scenario::{Excess, PressModel};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::packet::Packet;
use guests::Guests;
use hitters::Hitters;
pub(crate) use paced::Held;
use paced::Waiting;

/// The drop reason of a packet that exceeds the rate of its flow.
pub(crate) const OVER_RATE: &str = "flow_over_rate";
/// Most reports that are read at once, as live.
const MOST_READ: usize = 256;
/// Meters of a host's own decisions have one owner.
const HERE: HostId = HostId(0);

/// A flow one way, by its headers. A sender that claims many addresses has as many flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) flow: u32,
    pub(crate) back: bool,
    pub(crate) claim: u32,
}

/// A flow as a host counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Counted {
    pub(crate) key: Key,
    pub(crate) tenant: u32,
    pub(crate) inward: bool,
    pub(crate) from: FlowSource,
    /// Whether the tenant that sends it here, or that receives it, has `ecn: untouched`.
    pub(crate) untouched: bool,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Pass,
    Wait,
    Drop,
}

/// A request to the host of a flow's source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// The node that asks.
    pub(crate) by: u32,
    pub(crate) key: Key,
    pub(crate) terms: Terms,
}

/// What a host's backpressure is made from, again after each restart.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) node: u32,
    /// What its policy states; a host without it obeys others alone.
    pub(crate) stated: Option<policy::Backpressure>,
    pub(crate) model: PressModel,
    /// By tenant of the scenario: whether its flows are counted, and whether its packets may not be changed, wherever it lives.
    pub(crate) counted: Vec<bool>,
    pub(crate) untouched: Vec<bool>,
    /// By tenant of the scenario: the meter of mediation, of those that live here and whose ECN is mediated.
    pub(crate) mediated: Vec<Option<policy::Mediate>>,
    /// The tenant that is watched.
    pub(crate) watched: Option<u32>,
    pub(crate) seed: u64,
    /// The first look at the load.
    pub(crate) first: Nanos,
}

/// A host's backpressure.
#[derive(Debug)]
pub(crate) struct Press {
    pub(crate) plan: Plan,
    hitters: Option<Hitters>,
    control: Option<Box<Backpressure<Counted>>>,
    marks: BTreeMap<Counted, Marking>,
    /// Flows from other hosts that have just begun to be slowed down, and until when that is so.
    fresh: BTreeMap<Counted, Nanos>,
    /// By tenant: packets of such flows, until they are taken.
    left_out: BTreeMap<u32, u64>,
    /// In the mode `window`: connections, and flows whose windows are made smaller.
    windows: Option<Box<SmallWindows<Key>>>,
    /// Rates that this host imposes here.
    here: Meters<Counted>,
    /// Rates that other hosts asked for.
    asked: Meters<Key>,
    /// Tenants whose ECN is mediated.
    pub(crate) guests: Guests,
    waiting: BTreeMap<Held, Waiting>,
    read: Vec<Heavy<Counted>>,
    /// Of flows that are slowed down: what each had sent at the last look.
    held: BTreeMap<Counted, Tally>,
    /// CPU time, when it was read, and packets that were counted by then.
    last: Option<(Span, Nanos, u64)>,
    next_poll: Option<Nanos>,
    /// Whether the top flow's part of the present overload is known.
    top_known: bool,
    pub(crate) seen: Seen,
}

/// What backpressure has done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Of each overload: the top flow's part, in thousandths.
    pub(crate) tops: Vec<u32>,
    pub(crate) notices: u64,
    before: BTreeMap<&'static str, u64>,
}

impl Press {
    pub(crate) fn new(plan: Plan, now: Nanos) -> Self {
        let stated = plan.stated.as_ref();
        let press = stated.and_then(|stated| stated.press.as_ref());
        let hitters = stated.map(|stated| {
            let config = HeavyConfig::from_rate(stated.heavy.get(), press.is_some());
            Hitters::new(config, plan.model, plan.seed, now)
        });
        let flows = press.map_or(1, |press| press.flows as usize);
        let here = MeterSettings { meters: flows, per_peer: flows, ..MeterSettings::default() };
        Self {
            control: press.map(|press| Box::new(Backpressure::new(Settings::of(press), now))),
            next_poll: hitters.as_ref().map(|_| now.max(plan.first)),
            hitters,
            marks: BTreeMap::new(),
            fresh: BTreeMap::new(),
            left_out: BTreeMap::new(),
            windows: press
                .filter(|press| press.mode == PressMode::Window)
                .map(|_| Box::new(SmallWindows::new(flows, plan.seed))),
            here: Meters::new(here),
            asked: Meters::new(MeterSettings::default()),
            guests: Guests::new(&plan.mediated, plan.seed),
            waiting: BTreeMap::new(),
            read: Vec::new(),
            held: BTreeMap::new(),
            last: None,
            top_known: false,
            seen: Seen::default(),
            plan,
        }
    }

    fn stated(&self) -> Option<&policy::Press> {
        self.plan.stated.as_ref()?.press.as_ref()
    }

    /// What it watches, if anything.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.stated().map(|press| &press.watch)
    }

    /// The flow of a packet of this tenant to or from the `other` one, if it is counted.
    pub(crate) fn counted(
        &self,
        key: Key,
        (tenant, other): (u32, Option<u32>),
        inward: bool,
        from: FlowSource,
    ) -> Option<Counted> {
        let counts = self.hitters.is_some() && self.plan.counted[tenant as usize];
        let keeps = |tenant: u32| self.plan.untouched[tenant as usize];
        let untouched = keeps(tenant) || other.is_some_and(keeps);
        counts.then_some(Counted { key, tenant, inward, from, untouched })
    }

    /// Whether ECN may be mediated between a tenant of this host and the `other` one: not if either keeps its packets as they are.
    pub(crate) fn mediates(&self, tenant: u32, other: Option<u32>) -> bool {
        let keeps = |tenant: u32| self.plan.untouched[tenant as usize];
        !self.guests.is_empty() && !keeps(tenant) && !other.is_some_and(keeps)
    }

    /// Makes the window of an acknowledgement smaller that passes between these places, if its flow is held to one.
    pub(crate) fn narrow(&mut self, places: [Place; 2], key: Key, packet: &mut Packet, now: Nanos) {
        if let Some(held) = &mut self.windows
            && places.iter().any(|place| matches!(place, Place::Tenant(_)))
        {
            windows::pass(held, places, key, packet, now);
        }
    }

    /// The place of a tenant of this host.
    pub(crate) fn place_of(&self, tenant: u32) -> Place {
        match self.hitters.is_some() && self.plan.counted[tenant as usize] {
            true => Place::Tenant(tenant),
            false => Place::Uncounted(tenant as usize),
        }
    }

    /// Counts a packet with this ECN field. Says whether it is marked, and what else is done with it.
    pub(crate) fn count(
        &mut self,
        flow: &Counted,
        (frames, bytes): (u32, u32),
        ecn: Codepoint,
        now: Nanos,
    ) -> (bool, Act) {
        if let Some(hitters) = &mut self.hitters {
            hitters.count(flow, frames, bytes);
        }
        if self.fresh.get(flow).is_some_and(|until| now < *until) {
            *self.left_out.entry(flow.tenant).or_default() += u64::from(frames);
        }
        if self.marks.is_empty() && self.here.is_empty() {
            return (false, Act::Pass);
        }
        let waits = flow.from == FlowSource::Here && self.waits();
        let act = match self.here.judge(flow, bytes, now) {
            Verdict::Conforming => Act::Pass,
            Verdict::Excess if waits => Act::Wait,
            Verdict::Excess => return (false, Act::Drop),
        };
        // As live: a packet that waits is marked as well.
        (self.marks.get_mut(flow).is_some_and(|marking| marking.take(frames, ecn, now)), act)
    }

    /// Packets for this tenant since the last call, of flows that have just begun to be slowed down.
    pub(crate) fn take_left_out(&mut self, tenant: u32) -> u64 {
        self.left_out.remove(&tenant).unwrap_or(0)
    }

    fn waits(&self) -> bool {
        self.plan.model.excess == Excess::Wait
    }

    /// Whether it is time to look at the load.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.next_poll.is_some_and(|next| next <= now)
    }

    /// Takes another host's request.
    pub(crate) fn hear(&mut self, notice: &Notice, now: Nanos) {
        self.seen.notices += 1;
        // A request beyond the peer's bound is refused, as live.
        let _ = self.asked.install(notice.key, HostId(notice.by), notice.terms, now);
    }

    /// Looks at the load: what was `used` until now. `round_trip` is that of a flow, where it is known. Returns what other hosts are
    /// to be told.
    pub(crate) fn poll(
        &mut self,
        used: Span,
        round_trip: impl Fn(&Key) -> Option<Span>,
        now: Nanos,
    ) -> Vec<(u32, Notice)> {
        let Some(hitters) = &mut self.hitters else { return Vec::new() };
        hitters.advance(now);
        self.read.clear();
        hitters.read(MOST_READ, &mut self.read);
        // As live: a flow that is slowed down counts although its rate may keep it from being reported as heavy.
        for Pressed { key, .. } in self.control.iter().flat_map(|control| control.pressed()) {
            let Some(sent) = hitters.sent(key).filter(|sent| sent.packets > 0) else { continue };
            if self.held.insert(*key, sent) != Some(sent) {
                self.read.push(Heavy { key: *key, sent });
            }
        }
        let packets = hitters.counters().seen.packets;
        let Some(press) = self.plan.stated.as_ref().and_then(|stated| stated.press.as_ref()) else {
            self.next_poll = Some(now + UPDATE);
            return Vec::new();
        };
        self.next_poll = Some(now + press.poll);
        if let Some(watched) = self.plan.watched {
            // Its load is that of packets on the way in.
            self.read.retain(|heavy| heavy.key.tenant == watched && heavy.key.inward);
        }
        self.fresh.retain(|_, until| now < *until);
        let Some(work) = self.measure(used, packets, now) else { return Vec::new() };
        let Some(control) = &mut self.control else { return Vec::new() };
        let read = &self.read;
        let path = |flow: &Counted| {
            let sent = read.iter().find(|heavy| heavy.key == *flow)?.sent;
            let mss = Bytes::new(sent.bytes.div_ceil(sent.packets.max(1)));
            Some(Path { rtt: round_trip(&flow.key).unwrap_or(Settings::default().path.rtt), mss })
        };
        let orders = control.poll(work, read, path, now).to_vec();
        let (overloaded, top) = (control.is_overloaded(), control.top());
        if !overloaded {
            self.top_known = false;
        } else if !self.top_known
            && let Some(top) = top
        {
            self.seen.tops.push(top);
            self.top_known = true;
        }
        orders.into_iter().filter_map(|order| self.obey(order, now)).collect()
    }

    /// What was done since the last look; nothing at the first.
    fn measure(&mut self, used: Span, packets: u64, now: Nanos) -> Option<Work> {
        let (before, at, counted) = self.last.replace((used, now, packets))?;
        let over = now.since(at);
        let busy = Span::ns(used.as_u64().saturating_sub(before.as_u64()));
        // Packets of others than the watched tenant are counted as well.
        let packets = if self.plan.watched.is_some() { 0 } else { packets - counted };
        (over > Span::ZERO).then_some(Work { busy, over, packets })
    }

    fn obey(&mut self, order: Order<Counted>, now: Nanos) -> Option<(u32, Notice)> {
        match order {
            Order::Start(pressed) => {
                if pressed.key.inward && pressed.key.from != FlowSource::Here {
                    self.fresh.insert(pressed.key, now + FRESH);
                }
                self.press(&pressed, now)
            }
            Order::Refresh(pressed) => self.press(&pressed, now),
            Order::End(Pressed { key, .. }) => {
                self.marks.remove(&key);
                self.held.remove(&key);
                self.here.remove(&key, HERE);
                if let Some(held) = &mut self.windows {
                    held.let_go(&windows::slowed(&key));
                }
                None
            }
        }
    }

    fn press(&mut self, pressed: &Pressed<Counted>, now: Nanos) -> Option<(u32, Notice)> {
        let means = self.means(pressed);
        let press = self.plan.stated.as_ref()?.press.as_ref()?;
        let terms = Terms { rate: pressed.target, burst: press.burst, lifetime: press.lifetime };
        if means.marks() {
            let interval = self.plan.model.interval.unwrap_or(pressed.interval);
            self.marks.entry(pressed.key).or_default().set(interval, pressed.until);
        } else if let Some(marking) = self.marks.get_mut(&pressed.key) {
            marking.stop();
        }
        match means {
            Means::Marked => None,
            Means::Windowed => {
                let Pressed { key, target, path, until, .. } = *pressed;
                self.windows.as_mut()?.hold(windows::slowed(&key), target, path, until);
                None
            }
            Means::Told(HostId(node)) | Means::MarkedAndTold(HostId(node)) => {
                Some((node, Notice { by: self.plan.node, key: pressed.key.key, terms }))
            }
            Means::MeteredHere | Means::Dropped | Means::MarkedAndMetered => {
                // There is a meter for each flow that may be pressed.
                let _ = self.here.install(pressed.key, HERE, terms, now);
                None
            }
        }
    }

    /// How a flow is slowed down, as live. With a stated interval a flow that stays above its rate is what the experiment is
    /// about, and not one that ignores marks.
    fn means(&self, pressed: &Pressed<Counted>) -> Means {
        let Some(press) = self.stated() else { return Means::MeteredHere };
        let unmarkable = self.marks.get(&pressed.key).is_some_and(Marking::is_unmarkable);
        let ignores = pressed.ignores_marks && self.plan.model.interval.is_none();
        let key = &pressed.key;
        let back = windows::back(key.key);
        let known = || self.windows.as_ref().is_some_and(|known| known.knows(&windows::slowed(key), back));
        let able = Able { mark: !(key.untouched || unmarkable), window: !key.untouched && known() };
        Means::of(press.mode, pressed.key.from, able, ignores)
    }

    /// Forgets everything, as a daemon that starts again, and keeps what was counted for the report.
    pub(crate) fn restart(&mut self, now: Nanos) {
        let mut seen = core::mem::take(&mut self.seen);
        for (name, count) in self.counters(&seen) {
            seen.before.insert(name, count);
        }
        seen.notices = 0;
        let plan =
            Plan { first: now + self.stated().map_or(UPDATE, |press| press.poll), ..self.plan.clone() };
        *self = Self { seen, ..Self::new(plan, now) };
    }

    /// The counters by their names in reports, of what `seen` is.
    pub(crate) fn totals(&self) -> Vec<(&'static str, u64)> {
        self.counters(&self.seen)
    }

    fn counters(&self, seen: &Seen) -> Vec<(&'static str, u64)> {
        let Counters { overloads, started, ended, .. } =
            self.control.as_ref().map(|control| control.counters()).unwrap_or_default();
        let mut all = vec![
            ("overloads", overloads),
            ("pressed", started),
            ("let_go", ended),
            ("notices", seen.notices),
        ];
        if let Some(hitters) = &self.hitters {
            let (counters, held) = (hitters.counters(), hitters.held());
            let HeavyCounters { bucket_overflows, counter_overflows, periodic_updates, .. } = counters;
            let updates = bucket_overflows + counter_overflows + periodic_updates;
            let tabled = held.packets + counters.expired.packets + counters.unlisted.packets;
            all.extend([
                ("counted", counters.seen.packets),
                ("tabled", tabled),
                ("table_updates", updates),
                ("bucket_overflows", bucket_overflows),
                ("counter_overflows", counter_overflows),
                ("periodic_updates", periodic_updates),
            ]);
        }
        for (name, count) in self.guests.counters() {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, sum)) => *sum += count,
                None => all.push((name, count)),
            }
        }
        all.iter().map(|&(name, count)| (name, count + seen.before.get(name).unwrap_or(&0))).collect()
    }
}

/// The time of an update of the tables, where nothing is watched.
const UPDATE: Span = Span::millis(1);
