//! What tenants here allow those elsewhere, and what they are allowed: once an epoch, with the fleet's key.
//!
//! Why: a flood is best stopped where it begins, and only who receives it knows that it is one.
//! From: PicNIC §5.3 and §5.5 by `control`, in the order of `sim`'s `control`: measure, decide, tell the heavy senders; three
//! ways for what is told (PN-M18): with tenants' frames, in frames of its own where none go that way within half an epoch,
//! or over a control channel, from another thread.
//! Not here: the laws (`control`), limits at work (`nic`), sockets of the channel (`channel`).
//! Invariant: a limit changes only by what was sealed with the key, by the host that its receiver is at, and newer than what
//! that host had said before; one that is not heard again lapses to what holds while a host says nothing.

use std::collections::VecDeque;
use std::net::SocketAddr;

use plimsoll_control::{
    Allowance, BandwidthLaw, Envelope, FabricLaw, For, Heavy, HostId, Idle, LONGEST_SILENCE, Laws, Limits,
    Marks, Measured, News, Obeyed, Opener, PacketRateLaw, Receivers, Rejected, Sealer, SenderId, Senders,
    Strangers, Vnic, refresh,
};
use plimsoll_policy::{ControlLevel, Feedback, IdleMinimum, Program, TenantId, UNLIMITED, Via};
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::overlay::{Format, MOST_IN_OPTION};

use super::super::Engine;
use super::super::drops::Event;
use super::super::lane::Lane;
use super::map::{BALANCERS, Balancers, FleetMap, Sender, Vm};
use super::{Fleet, Link};

/// The engine's part of control between hosts.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(super) settings: Feedback,
    sealer: Sealer,
    opener: Opener,
    pub(super) receivers: Receivers,
    /// Tenants here that receive, in the receivers' order.
    pub(super) own: Vec<Own>,
    /// Which of them waits at a station.
    by_station: Vec<Option<u32>>,
    measured: Vec<Measured>,
    /// What tenants elsewhere allow, and that by their number while it holds.
    obeyed: Obeyed<(Vnic, For)>,
    pub(super) allowed: Vec<Allowed>,
    /// What tenants elsewhere allow all balancers, to be divided when this epoch ends.
    wholes: Vec<Option<Allowance>>,
    /// By the map's hosts.
    pub(super) told: Vec<Told>,
    /// A message while it is opened.
    opened: Vec<u8>,
    last: Nanos,
    next: Nanos,
    /// When the first of the messages has to leave; at the end of time where there is none.
    due: Nanos,
    /// When senders were last forgotten.
    cleared: Nanos,
    /// Epochs in a row in which no limit moved.
    restful: u32,
}

/// A tenant here that receives.
#[derive(Debug)]
pub(crate) struct Own {
    pub(super) lane: u32,
    vnic: Vnic,
    pub(super) senders: Senders,
    /// Who sends and hears nothing.
    strangers: Strangers,
    /// In this epoch.
    marks: Marks,
}

/// What a tenant elsewhere allows, while that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Allowed {
    /// A sender of weight one.
    each: Option<Limits>,
    /// The balancers here together.
    balancers: Option<Limits>,
}

impl Allowed {
    fn place(&mut self, whom: For) -> &mut Option<Limits> {
        match whom {
            For::Each => &mut self.each,
            For::Balancers | For::TheseBalancers => &mut self.balancers,
        }
    }

    /// A tenant's own part of it.
    pub(super) fn of(&self, sender: Sender, map: &FleetMap) -> Option<Limits> {
        match &map.balancers {
            Some(all) if sender.balancer => Some(self.balancers?.part(sender.weight, all.own.into())),
            _ => Some(self.each?.of_weight(sender.weight)),
        }
    }
}

/// What passes between this host and another.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    number: Option<HostId>,
    news: News<Vnic>,
    allowances: Vec<Allowance>,
    /// Sealed, and still to leave.
    messages: VecDeque<Vec<u8>>,
    /// When they leave in frames of their own.
    due: Nanos,
    said_at: Option<Nanos>,
    pub(super) heard_at: Option<Nanos>,
    pub(super) counts: Counts,
}

/// Messages, by the way that they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// With tenants' frames.
    pub ridden: u64,
    /// In frames of their own.
    pub framed: u64,
    /// Over the control channel.
    pub channelled: u64,
    /// Not, as the uplink had no room before there were newer ones.
    pub unsent: u64,
    /// Accepted from there.
    pub heard: u64,
}

/// Other hosts that are listened to: far more than a map has.
pub(crate) const MOST_HOSTS: usize = 4_096;

/// A message for a control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Where to.
    pub to: SocketAddr,
    /// The sealed message.
    pub message: Vec<u8>,
}

/// Epochs' time for which senders are counted together: a light one sends once in some.
const WINDOW: u64 = 16;
/// Epochs in a row without another limit, after which the next may wait for a packet: what changed has been said thrice.
const RESTFUL: u32 = 3;
/// When nothing waits.
const NEVER: Nanos = Nanos::new(u64::MAX);
/// Limits that are kept.
const MOST_LIMITS: usize = 16_384;
/// Limits in a message: what an underlay of 1,280 bytes carries in a frame of its own.
const IN_MESSAGE: usize = 44;

impl Steering {
    pub(super) fn new(map: &FleetMap, key: &[u8; 32], [sequence, start]: [u64; 2]) -> Self {
        let settings = map.overlay.feedback.clone().expect("steered only with feedback");
        let mut made = Self {
            sealer: Sealer::new(key, map.own, sequence, start),
            opener: Opener::new(key, map.own, MOST_HOSTS),
            receivers: Receivers::new(BitRate::gbps(1), laws(&settings), &[]),
            own: Vec::new(),
            by_station: Vec::new(),
            measured: Vec::new(),
            obeyed: Obeyed::new(MOST_LIMITS, settings.lapse),
            allowed: vec![Allowed::default(); map.vms.len()],
            wholes: vec![None; map.vms.len()],
            told: Vec::new(),
            opened: Vec::new(),
            last: Nanos::ZERO,
            next: Nanos::ZERO + settings.epoch,
            due: NEVER,
            cleared: Nanos::ZERO,
            restful: 0,
            settings,
        };
        made.set_hosts(map);
        made
    }

    fn set_hosts(&mut self, map: &FleetMap) {
        let mut before = core::mem::take(&mut self.told);
        let told = |number: HostId| {
            let known = before.iter_mut().find(|told| told.number == Some(number));
            Told {
                number: Some(number),
                news: News::default(),
                ..known.map(core::mem::take).unwrap_or_default()
            }
        };
        self.told = map.hosts.iter().map(|host| host.number).map(told).collect();
    }

    /// Another map: what others allow stays with them, while they are who they were, and where: else who has one of their
    /// addresses now would be held to what was said for them.
    pub(super) fn remap(&mut self, old: &FleetMap, new: &FleetMap) {
        self.settings = new.overlay.feedback.clone().expect("a reload does not end feedback");
        let before = |vm: &Vm| {
            let number = old.named(new.vnic(vm.mac))?;
            let before = &old.vms[number as usize];
            let stays = before.name == vm.name && old.hosts[before.host].number == new.hosts[vm.host].number;
            stays.then(|| self.allowed[number as usize])
        };
        self.allowed = new.vms.iter().map(|vm| before(vm).unwrap_or_default()).collect();
        self.obeyed.set_lapse(self.settings.lapse);
        self.wholes = vec![None; new.vms.len()];
        self.restful = 0;
        self.set_hosts(new);
    }

    /// A packet of a tenant elsewhere came for this station, perhaps with the fabric's mark.
    #[inline]
    pub(super) fn note(&mut self, station: u32, (sender, weight): (SenderId, u32), marked: bool) {
        if let Some(own) = self.by_station.get(station as usize).copied().flatten() {
            let own = &mut self.own[own as usize];
            own.senders.note(sender, weight);
            own.marks.packets += 1;
            own.marks.marked += u64::from(marked);
        }
    }

    /// Whether a packet of somebody whom no limit reaches may come in for this station: all of them have one sender's part.
    pub(super) fn admits_stranger(&mut self, station: u32, len: usize, now: Nanos) -> bool {
        let own = self.by_station.get(station as usize).copied().flatten();
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        own.is_none_or(|own| self.own[own as usize].strangers.admits(len, now))
    }

    /// What may go with a frame to this host.
    #[inline]
    pub(super) fn riding(&self, host: usize) -> Option<&[u8]> {
        let message = self.told[host].messages.front().filter(|_| self.settings.via == Via::Datapath)?;
        (message.len() <= MOST_IN_OPTION).then_some(message)
    }

    /// It went.
    pub(super) fn rode(&mut self, host: usize) {
        let told = &mut self.told[host];
        told.messages.pop_front();
        told.counts.ridden += 1;
    }

    /// When a message has to leave in a frame of its own, or the next epoch ends. It ends in the turn that a packet makes
    /// after it is over; while none comes it may wait, as a wake-up for it alone costs more than it does: for an eighth of the
    /// lapse where limits are at rest, else for a quarter of its length.
    fn next(&self) -> Nanos {
        let mut over = self.next + quarter(self.settings.epoch);
        if self.restful >= RESTFUL {
            over = over.max(self.last + eighth(self.settings.lapse).min(LONGEST_SILENCE));
        }
        over.min(self.due)
    }

    fn note_due(&mut self) {
        let waits = self.told.iter().filter(|told| !told.messages.is_empty());
        self.due = waits.map(|told| told.due).min().unwrap_or(NEVER);
    }

    /// Says whom each of this host's tenants has to tell what, and seals it. Answers which tenants elsewhere allow the
    /// balancers here another part than before.
    fn address(&mut self, map: &FleetMap, links: &[Link], now: Nanos) -> Vec<u32> {
        self.told.iter_mut().for_each(Told::begin);
        let lapse = self.settings.lapse;
        for (vm, own) in self.own.iter().enumerate() {
            let (receiver, limits) = (own.vnic, self.receivers.limits(vm));
            for &Heavy { sender, weight, .. } in own.senders.heavy() {
                if sender == BALANCERS {
                    let whole = limits.of_weight(weight);
                    let whole = Allowance { receiver, whom: For::Balancers, limits: whole };
                    match map.balancers.as_ref() {
                        Some(Balancers { distributor: Some(host), .. }) => self.told[*host].tell(whole),
                        Some(all) => _ = share_out(all, whole, None, &mut self.told),
                        None => {}
                    }
                } else if let Some(elsewhere) = map.vms.get(sender as usize) {
                    let told = &mut self.told[elsewhere.host];
                    if told.news.is(receiver, limits, lapse, now) {
                        told.tell(Allowance { receiver, whom: For::Each, limits });
                    }
                }
            }
        }
        let own = self.divide(map, now);
        for ((told, host), link) in self.told.iter_mut().zip(&map.hosts).zip(links) {
            let sends = link.sent_at.is_some_and(|at| now.since(at) < lapse);
            told.seal(&mut self.sealer, host.number, sends && told.is_quiet(lapse, now), now);
            // Where frames go that way they take it along, if it is short; else it need not wait for one.
            let ridden = self.settings.via == Via::Datapath
                && map.format == Format::Geneve
                && told.messages.len() == 1
                && told.messages[0].len() <= MOST_IN_OPTION
                && link.sent_at.is_some_and(|at| now.since(at) < self.settings.epoch.times(2));
            told.due = if ridden { now + half(self.settings.epoch) } else { now };
        }
        if now.since(self.cleared) >= self.settings.epoch.times(WINDOW) {
            self.cleared = now;
            self.own.iter_mut().for_each(|own| own.senders.clear());
        }
        own
    }

    /// All that waits goes over the control channels.
    fn hand_over(&mut self, map: &FleetMap, outbox: &mut Vec<Sent>) {
        for (told, host) in self.told.iter_mut().zip(&map.hosts) {
            let Some(to) = host.channel else { continue };
            told.counts.channelled += told.messages.len() as u64;
            outbox.extend(told.messages.drain(..).map(|message| Sent { to, message }));
        }
    }

    /// Divides among the balancers' hosts what tenants elsewhere allow all of them, and answers whose part for this host's
    /// is another now.
    fn divide(&mut self, map: &FleetMap, now: Nanos) -> Vec<u32> {
        let mut changed = Vec::new();
        let Some(all) = &map.balancers else { return changed };
        for (vm, whole) in (0..).zip(&mut self.wholes) {
            let Some(whole) = whole.take() else { continue };
            let there = map.vms[vm as usize].host;
            let Some(own) = share_out(all, whole, Some(there), &mut self.told) else { continue };
            self.obeyed.hear((own.receiver, own.whom), own.limits, now);
            if self.allowed[vm as usize].place(own.whom).replace(own.limits) != Some(own.limits) {
                changed.push(vm);
            }
        }
        changed
    }
}

impl Told {
    /// Another epoch is over: what has not left is said anew.
    fn begin(&mut self) {
        if !self.messages.is_empty() {
            self.said_at = None;
            self.counts.unsent += self.messages.len() as u64;
            self.messages.clear();
            self.news.forget();
        }
        self.allowances.clear();
    }

    /// It is to hear this, once for all of its tenants.
    fn tell(&mut self, allowance: Allowance) {
        let mut same = self.allowances.iter().rev().take_while(|known| known.receiver == allowance.receiver);
        if same.all(|known| known.whom != allowance.whom) {
            self.allowances.push(allowance);
        }
    }

    /// Whether it has not been told anything for a while: it would take this host for one that hears nothing.
    fn is_quiet(&self, lapse: Span, now: Nanos) -> bool {
        self.said_at.is_none_or(|at| now.since(at) >= refresh(lapse))
    }

    /// What it is to hear is ready to leave, or without anything a sign of life where that is wanted.
    fn seal(&mut self, sealer: &mut Sealer, to: HostId, sign: bool, now: Nanos) {
        let sign = (sign && self.allowances.is_empty()).then_some(&[][..]);
        for part in self.allowances.chunks(IN_MESSAGE).chain(sign) {
            let mut message = Vec::new();
            sealer.seal(to, part, &mut message);
            self.messages.push_back(message);
            self.said_at = Some(now);
        }
        self.allowances.clear();
    }
}

/// Each host with balancers is told its part of what a tenant at the host `at` allows all of them; answers this host's own.
fn share_out(all: &Balancers, whole: Allowance, at: Option<usize>, told: &mut [Told]) -> Option<Allowance> {
    let mut own = None;
    for (host, limits) in all.divide(whole.limits, at) {
        let part = Allowance { whom: For::TheseBalancers, limits, ..whole };
        match host {
            Some(host) => told[host].tell(part),
            None => own = Some(part),
        }
    }
    own
}

impl Fleet {
    /// The tenants of these lanes receive from now on, with the policy's envelopes on the way in, and the delays that
    /// follow from their targets where they have some.
    pub(crate) fn set_receivers(&mut self, lanes: &[Option<Box<Lane>>], policy: &Program, now: Nanos) {
        let Self { map, steering: Some(steering), .. } = self else { return };
        let (mut envelopes, mut thresholds) = (Vec::new(), Vec::new());
        steering.restful = 0;
        steering.own.clear();
        steering.by_station = vec![None; lanes.len() + 1];
        for (index, lane) in (0..).zip(lanes) {
            let tenant = lane.as_ref().and_then(|lane| Some((lane.tenant?, map.own_mac(&lane.name)?)));
            let Some((TenantId(tenant), mac)) = tenant else { continue };
            let tenant = &policy.tenants[tenant as usize];
            let (node, own) = (policy.node(tenant.node), tenant.slo.ingress);
            let max = own.max.or_else(|| node.max.map(|max| policy.limit(max).rate));
            envelopes.push(Envelope { min: own.min.or(node.min), max: max.unwrap_or(policy.link) });
            thresholds.push(tenant.slo.threshold);
            steering.by_station[index as usize + 1] = u32::try_from(steering.own.len()).ok();
            // The gaps between sampled packets are nobody's to foresee, and need not be the same elsewhere.
            let senders = Senders::new(u64::from(index) ^ now.as_u64().rotate_left(17));
            let marks = Marks::default();
            let strangers = Strangers::default();
            steering.own.push(Own { lane: index, vnic: map.vnic(mac), senders, strangers, marks });
        }
        steering.measured = vec![Measured::default(); envelopes.len()];
        steering.receivers = Receivers::new(policy.link, laws(&steering.settings), &envelopes);
        for (vm, threshold) in thresholds.into_iter().enumerate() {
            threshold.into_iter().for_each(|threshold| steering.receivers.set_threshold(vm, threshold));
        }
    }
}

impl Engine {
    /// Ends an epoch that is over, and sends what waits to be told. When there is more to do.
    pub(super) fn steer(&mut self, fleet: &mut Fleet, now: Nanos) -> Option<Nanos> {
        let mut steering = fleet.steering.take()?;
        if steering.next <= now {
            self.end_epoch(fleet, &mut steering, now);
            steering.note_due();
        }
        if steering.due <= now {
            match steering.settings.via {
                Via::Datapath => self.send_feedback(fleet, &mut steering, now),
                Via::Channel => steering.hand_over(&fleet.map, &mut fleet.outbox),
            }
            steering.note_due();
        }
        let next = steering.next();
        fleet.steering = Some(steering);
        Some(next)
    }

    fn end_epoch(&mut self, fleet: &mut Fleet, steering: &mut Steering, now: Nanos) {
        let mut length = now.since(steering.last);
        if steering.restful >= RESTFUL {
            // What was counted came in turns that began before the epoch was over, or it had ended there.
            length = length.min(fleet.turned.since(steering.last).max(steering.settings.epoch));
        }
        (steering.last, steering.next) = (now, now + steering.settings.epoch);
        for (own, measured) in steering.own.iter_mut().zip(&mut steering.measured) {
            let (seen, slots, delay) = self.inward.take_epoch(own.lane + 1);
            *measured = Measured {
                bytes: seen.bytes,
                served: seen.served,
                delay,
                occupancy: seen.peak * 1_000 / slots,
                drops: seen.drops,
                weights: own.senders.weights(),
                least: own.senders.least().unwrap_or_default(),
                marks: core::mem::take(&mut own.marks),
            };
        }
        let at_rest = steering.receivers.epoch(length, &steering.measured);
        for (vm, own) in steering.own.iter_mut().enumerate() {
            own.strangers.allow(steering.receivers.limits(vm).of_weight(fleet.map.lightest), now);
        }
        steering.restful = if at_rest { steering.restful.saturating_add(1) } else { 0 };
        for vm in steering.address(&fleet.map, &fleet.links, now) {
            self.hold(&fleet.map, vm, steering.allowed[vm as usize]);
        }
        let mut lapsed = Vec::new();
        steering.obeyed.expire(now, |limit| lapsed.push(limit));
        for (receiver, whom) in lapsed {
            if let Some(vm) = fleet.map.named(receiver) {
                *steering.allowed[vm as usize].place(whom) = None;
                self.hold(&fleet.map, vm, steering.allowed[vm as usize]);
            }
        }
        self.ring_changes(now);
    }

    /// What nothing took along leaves in frames of its own. One that finds no room waits for the next turn.
    fn send_feedback(&mut self, fleet: &mut Fleet, steering: &mut Steering, now: Nanos) {
        for host in 0..steering.told.len() {
            while steering.told[host].due <= now
                && let Some(message) = steering.told[host].messages.front()
            {
                let mut scratch = core::mem::take(&mut self.scratch);
                let hash = fleet.map.hosts[host].number.0.into();
                let len =
                    fleet.path(host).and_then(|path| path.feedback_frame(message, hash, &mut scratch).ok());
                let sent = len.is_some_and(|len| self.send_own(&scratch[..len]));
                self.scratch = scratch;
                let told = &mut steering.told[host];
                if !sent {
                    // Soon enough: the next epoch has newer ones.
                    told.due = now + Span::millis(1);
                    break;
                }
                told.messages.pop_front();
                told.counts.framed += 1;
            }
        }
    }

    /// Another host's word, as it came with a frame or alone.
    pub(super) fn hear_feedback(&mut self, fleet: &mut Fleet, sealed: &[u8], now: Nanos) {
        let Some(mut steering) = fleet.steering.take() else {
            return self.uplink.tally.event(Event::FeedbackUnasked);
        };
        let mut message = core::mem::take(&mut steering.opened);
        message.clear();
        message.extend_from_slice(sealed);
        match steering.opener.open(&mut message) {
            Ok((from, allowances)) => {
                let host = fleet.map.host_numbered(from);
                if let Some(host) = host {
                    let told = &mut steering.told[host];
                    (told.heard_at, told.counts.heard) = (Some(now), told.counts.heard + 1);
                    fleet.links[host].unheard = None;
                }
                for allowance in allowances {
                    match heard(&fleet.map, host, &allowance) {
                        Some(Heard::Obey(vm)) => {
                            let Allowance { receiver, whom, limits } = allowance;
                            steering.obeyed.hear((receiver, whom), limits, now);
                            let allowed = &mut steering.allowed[vm as usize];
                            if allowed.place(whom).replace(limits) != Some(limits) {
                                self.hold(&fleet.map, vm, *allowed);
                            }
                        }
                        // Whoever is to be told has to hear of it when this epoch ends.
                        Some(Heard::Divide(vm)) => {
                            steering.wholes[vm as usize] = Some(allowance);
                            steering.restful = 0;
                        }
                        None => self.uplink.tally.event(Event::FeedbackForeign),
                    }
                }
            }
            Err(why) => self.uplink.tally.event(rejected(why)),
        }
        steering.opened = message;
        fleet.steering = Some(steering);
        self.ring_changes(now);
    }

    /// What came over the control channel; it has been opened there once, so that no flood of forged ones comes here.
    pub fn hear_channel(&mut self, sealed: &[u8], now: Nanos) {
        let Some(mut fleet) = self.fleet.take() else { return };
        self.hear_feedback(&mut fleet, sealed, now);
        self.fleet = Some(fleet);
    }

    /// Holds all tenants here to what one elsewhere allows, or to what holds while it says nothing.
    fn hold(&mut self, map: &FleetMap, vm: u32, allowed: Allowed) {
        let fallback = map.hosts[map.vms[vm as usize].host].fallback;
        for (tenant, &sender) in (0..).map(TenantId).zip(&map.senders) {
            let Some([in_bits, in_packets]) = map.pair(tenant, vm) else { continue };
            let limits = allowed.of(sender, map);
            let packets = limits.and_then(|limits| limits.packets);
            let packets = packets.and_then(|packets| BitRate::new(packets.get().saturating_mul(8)));
            self.doorbells.set_rate(in_bits, limits.map_or(fallback, |limits| limits.bits).min(UNLIMITED));
            self.doorbells.set_rate(in_packets, packets.unwrap_or(UNLIMITED).min(UNLIMITED));
        }
    }

    /// After a reload limits begin with what holds in silence: what was heard before still holds.
    pub(in super::super) fn hold_again(&mut self, now: Nanos) {
        let Some(fleet) = self.fleet.take() else { return };
        let allowed = fleet.steering.as_ref().map(|steering| steering.allowed.clone()).unwrap_or_default();
        for (vm, allowed) in (0..).zip(allowed) {
            if allowed != Allowed::default() {
                self.hold(&fleet.map, vm, allowed);
            }
        }
        self.fleet = Some(fleet);
        self.ring_changes(now);
    }

    fn ring_changes(&mut self, now: Nanos) {
        let nic = &mut self.nic;
        self.doorbells.flush(|words| nic.ring(words, now));
    }
}

fn laws(settings: &Feedback) -> Laws {
    Laws {
        bandwidth: BandwidthLaw::default(),
        packets: (settings.control == ControlLevel::Full).then(|| PacketRateLaw::new(settings.delay)),
        idle: match settings.idle {
            IdleMinimum::Reserved => Idle::Reserved,
            IdleMinimum::Lent => Idle::Lent,
        },
        fabric: settings.ecn.then(FabricLaw::default),
    }
}

/// What becomes of what another host says of a tenant elsewhere.
enum Heard {
    Obey(u32),
    Divide(u32),
}

/// Each host speaks for its own tenants only, but for the one that divides among balancers; none of this is for others.
fn heard(map: &FleetMap, from: Option<usize>, allowance: &Allowance) -> Option<Heard> {
    let &Allowance { receiver, whom, .. } = allowance;
    let vm = map.named(receiver)?;
    let own = Some(map.vms[vm as usize].host) == from;
    let divides = |by: Option<usize>| map.balancers.as_ref().is_some_and(|all| all.distributor == by);
    match whom {
        For::Each => own.then_some(Heard::Obey(vm)),
        For::Balancers => (own && divides(None)).then_some(Heard::Divide(vm)),
        For::TheseBalancers => (from.is_some() && divides(from)).then_some(Heard::Obey(vm)),
    }
}

fn rejected(why: Rejected) -> Event {
    match why {
        Rejected::Malformed => Event::FeedbackMalformed,
        Rejected::Misdirected => Event::FeedbackMisdirected,
        Rejected::Forged => Event::FeedbackForged,
        Rejected::Stale => Event::FeedbackStale,
    }
}

fn quarter(span: Span) -> Span {
    Span::ns(span.as_u64() / 4)
}

fn eighth(span: Span) -> Span {
    Span::ns(span.as_u64() / 8)
}

fn half(span: Span) -> Span {
    Span::ns(span.as_u64() / 2)
}
