//! A host's control epoch as a state machine: measure, decide, tell, hear, obey, lapse.
//!
//! Why: a flood is best stopped where it begins, and only its receiver knows that it is one. One agent runs live and in
//! simulation.
//! From: PicNIC §5.3 and §5.5, with a refresh for limits that hold and longer epochs for limits at rest.
//! Not here: the laws (`receiver`), what a message looks like (`feedback`) and how it travels, measuring and enforcing: an
//! agent's driver does that, and passes the time; which flows other hosts are asked to slow down (`backpressure`).
//! Invariant: a limit changes only by what was sealed with the fleet's key, by its receiver's host (or the host that divides
//! among load balancers), and later than all that was heard from that host; one that is not heard again lapses; the same inputs
//! give the same outputs.

mod contact;

use std::collections::VecDeque;
use std::sync::Arc;

use plimsoll_units::{BitRate, Nanos, Span};

use crate::feedback::MOST_NOTICES;
use crate::keys::{Fingerprint, FleetKeys};
use crate::membership::{BALANCERS, Membership};
use crate::{
    Allowance, Envelope, For, Heavy, HostId, LONGEST_SILENCE, Laws, Limits, Marks, Measured, Notice, Opener,
    Receivers, Rejected, Sealer, Senders, Strangers, Vnic,
};

pub use contact::{Contact, Presence};

/// How often a host decides, by which laws, and how long decisions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The length of an epoch.
    pub epoch: Span,
    /// How long a limit holds after it was last heard.
    pub lapse: Span,
    /// How limits follow what was measured.
    pub laws: Laws,
}

/// A VM of this host, as a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalVm {
    /// How all hosts name it.
    pub vnic: Vnic,
    /// The rates that it may receive.
    pub envelope: Envelope,
    /// The delay that its packets keep to, where that is not the law's.
    pub threshold: Option<Span>,
    /// Seed of the gaps between sampled packets. Senders must not know it live.
    pub seed: u64,
}

/// The agent of one host. Its driver calls `handle_*` for each event, and then polls the messages and orders that result.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_control::agent::{Agent, LocalVm, Settings};
/// use plimsoll_control::membership::{Member, Membership, Sender};
/// use plimsoll_control::{BandwidthLaw, Envelope, HostId, Idle, Laws, Measured, Vnic};
/// use plimsoll_units::{BitRate, Nanos, Span};
///
/// let (here, there) = (HostId(1), HostId(2));
/// let vm = |host: HostId| Vnic { network: 7, mac: [2, 0, 0, 0, 0, host.0 as u8] };
/// let laws = Laws { bandwidth: BandwidthLaw::default(), packets: None, idle: Idle::Lent, fabric: None };
/// let settings = Settings { epoch: Span::millis(1), lapse: Span::millis(50), laws };
/// let agent = |own: HostId, other: HostId| {
///     let member = Member { name: "shop".into(), vnic: vm(other), host: 0, sender: Sender::default() };
///     let members = Membership::new(own, vec![other], vec![member], vec![(7, Sender::default())], None);
///     Agent::new(settings, &[7; 32], [1, 1], Arc::new(members), Nanos::ZERO)
/// };
/// let (mut receiver, mut sender) = (agent(here, there), agent(there, here));
/// let envelope = Envelope { min: None, max: BitRate::gbps(1) };
/// receiver.set_receivers(BitRate::gbps(10), &[LocalVm { vnic: vm(here), envelope, threshold: None, seed: 3 }]);
///
/// // A packet shows who sends; at the epoch's end 250,000 bytes have come, twice what may come in a millisecond.
/// assert!(receiver.handle_packet(Some(0), Some(0), 1_500, false, Nanos::ZERO));
/// let now = receiver.next_epoch();
/// assert!(receiver.handle_epoch(now, now, |_| Measured { bytes: 250_000, ..Measured::default() }));
/// let message = receiver.poll_message(0).expect("the other host is told");
/// assert_eq!(sender.handle_message(&message, now), Ok(0));
/// assert_eq!(sender.poll_order(), Some(0), "what goes to the first VM elsewhere is limited anew");
/// assert_eq!(sender.allowed(0, 0).map(|limits| limits.bits), Some(BitRate::mbps(500)));
/// ```
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    members: Arc<Membership>,
    sealer: Sealer,
    opener: Opener,
    /// A message while it is opened.
    opened: Vec<u8>,
    receivers: Receivers,
    own: Vec<Own>,
    measured: Vec<Measured>,
    /// By host elsewhere.
    contacts: Vec<Contact>,
    /// By VM elsewhere.
    allowed: Vec<Allowed>,
    /// By VM elsewhere: the limits of all load balancers together, to be divided when this epoch ends.
    wholes: Vec<Option<Limits>>,
    /// VMs elsewhere whose limits have changed since they were polled.
    changed: VecDeque<u32>,
    /// What other hosts ask of flows of VMs here, with the host, until it is polled.
    notices: VecDeque<(HostId, Notice)>,
    /// The earliest time at which a limit may lapse.
    lapses_at: Option<Nanos>,
    last: Nanos,
    next: Nanos,
    /// When senders were last forgotten.
    cleared: Nanos,
    /// Epochs in a row in which no limit moved.
    restful: u32,
}

/// A VM here that receives.
#[derive(Debug)]
struct Own {
    vnic: Vnic,
    senders: Senders,
    strangers: Strangers,
    /// The marks of this epoch.
    marks: Marks,
}

/// The limits that a VM elsewhere has set, while they hold.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// For a sender of weight one.
    each: Option<Heard>,
    /// For this host's load balancers together.
    balancers: Option<Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    limits: Limits,
    at: Nanos,
}

/// Epochs in which senders are counted together: a light sender sends only in some of them.
const WINDOW: u64 = 16;
/// Epochs in a row without a changed limit, after which the next may wait for a packet: the last change has been sent three
/// times.
const RESTFUL: u32 = 3;
/// Hosts whose messages are accepted: far more than a fleet has.
pub const MOST_HOSTS: usize = 4_096;
/// Most notices that wait to be polled.
const MOST_NOTICES_WAITING: usize = 1_024;

impl Agent {
    /// The agent of a host with these `members`. Messages are sealed with the fleet's `key`; `sequence` must be greater than any
    /// number that this host has used, and `start` be drawn at random (see [`Sealer::new`]).
    #[must_use]
    pub fn new(
        settings: Settings,
        key: &[u8; 32],
        [sequence, start]: [u64; 2],
        members: Arc<Membership>,
        now: Nanos,
    ) -> Self {
        let mut agent = Self {
            sealer: Sealer::new(key, members.own(), sequence, start),
            opener: Opener::new(key, members.own(), MOST_HOSTS),
            opened: Vec::new(),
            receivers: Receivers::new(BitRate::gbps(1), settings.laws, &[]),
            own: Vec::new(),
            measured: Vec::new(),
            contacts: Vec::new(),
            allowed: vec![Allowed::default(); members.vms().len()],
            wholes: vec![None; members.vms().len()],
            changed: VecDeque::new(),
            notices: VecDeque::new(),
            lapses_at: None,
            last: now,
            next: now + settings.epoch,
            cleared: now,
            restful: 0,
            settings,
            members,
        };
        agent.set_contacts();
        agent
    }

    /// Installs other settings and another fleet. The limits of a VM elsewhere stay if it keeps its name, address and host: the
    /// limits of an address that went to another VM do not hold for that VM.
    pub fn set_fleet(&mut self, settings: Settings, members: Arc<Membership>) {
        let before = |vm: &crate::Member| {
            let old = self.members.named(vm.vnic)?;
            let was = &self.members.vms()[old as usize];
            let stays = was.name == vm.name && self.members.hosts()[was.host] == members.hosts()[vm.host];
            stays.then(|| self.allowed[old as usize])
        };
        self.allowed = members.vms().iter().map(|vm| before(vm).unwrap_or_default()).collect();
        self.wholes = vec![None; members.vms().len()];
        self.lapses_at = Some(Nanos::ZERO);
        self.changed.clear();
        self.restful = 0;
        (self.settings, self.members) = (settings, members);
        self.set_contacts();
    }

    fn set_contacts(&mut self) {
        let mut before = core::mem::take(&mut self.contacts);
        let contact = |&host: &_| {
            let known = before.iter().position(|contact| contact.is_with(host));
            known.map_or_else(|| Contact::new(host), |at| before.swap_remove(at).begun_anew())
        };
        self.contacts = self.members.hosts().iter().map(contact).collect();
    }

    /// Installs the VMs here that receive, behind a line of this rate. They are known by their places from here on, and begin
    /// with their capacity.
    pub fn set_receivers(&mut self, line: BitRate, vms: &[LocalVm]) {
        let envelopes: Vec<Envelope> = vms.iter().map(|vm| vm.envelope).collect();
        self.receivers = Receivers::new(line, self.settings.laws, &envelopes);
        for (place, vm) in vms.iter().enumerate() {
            vm.threshold.into_iter().for_each(|threshold| self.receivers.set_threshold(place, threshold));
        }
        let own = |vm: &LocalVm| Own {
            vnic: vm.vnic,
            senders: Senders::new(vm.seed),
            strangers: Strangers::default(),
            marks: Marks::default(),
        };
        self.own = vms.iter().map(own).collect();
        self.measured = vec![Measured::default(); vms.len()];
        self.restful = 0;
    }

    /// Counts a packet of `len` bytes for the VM `to` here (`None`: a VM that does not receive), and says whether it may come in.
    /// All strangers together get one sender's part: VMs of hosts that were not heard for long, and senders that are no VM of
    /// the fleet (`from` is `None`).
    #[inline]
    pub fn handle_packet(
        &mut self,
        to: Option<usize>,
        from: Option<u32>,
        len: u32,
        marked: bool,
        now: Nanos,
    ) -> bool {
        let lapse = self.settings.lapse;
        let host = |vm: &u32| self.members.vms()[*vm as usize].host;
        let known = from.filter(|vm| !self.contacts[host(vm)].is_strange(lapse, now));
        let Some(own) = to.map(|to| &mut self.own[to]) else { return true };
        if known.is_none() && !own.strangers.admits(len, now) {
            return false;
        }
        let (sender, weight) =
            known.map_or_else(|| self.members.strangers(), |vm| self.members.counts_as(vm));
        own.senders.note(sender, weight);
        own.marks.packets += 1;
        own.marks.marked += u64::from(marked);
        true
    }

    /// Notes that a packet of a VM here has left for another host: that host is then sent messages even if no limit changes.
    #[inline]
    pub fn handle_sent(&mut self, host: usize, now: Nanos) {
        self.contacts[host].note_sent(now);
    }

    /// Ends the epoch if it is over, and says whether it was. `measure` returns the measurements of each VM here since its last
    /// call, up to `counted`; the agent fills in what it counts itself (`weights`, `least` and `marks`).
    pub fn handle_epoch(
        &mut self,
        counted: Nanos,
        now: Nanos,
        measure: impl FnMut(usize) -> Measured,
    ) -> bool {
        if now < self.next {
            return false;
        }
        let mut length = now.since(self.last);
        if self.restful >= RESTFUL {
            // At rest the epoch ends with the first packet after it is over: no packet came between `counted` and now.
            length = length.min(counted.since(self.last).max(self.settings.epoch));
        }
        (self.last, self.next) = (now, now + self.settings.epoch);
        self.decide(length, measure, now);
        self.tell(now);
        self.expire(now);
        true
    }

    fn decide(&mut self, length: Span, mut measure: impl FnMut(usize) -> Measured, now: Nanos) {
        for (place, (own, measured)) in self.own.iter_mut().zip(&mut self.measured).enumerate() {
            *measured = Measured {
                weights: own.senders.weights(),
                least: own.senders.least().unwrap_or_default(),
                marks: core::mem::take(&mut own.marks),
                ..measure(place)
            };
        }
        let at_rest = self.receivers.epoch(length, &self.measured);
        self.restful = if at_rest { self.restful.saturating_add(1) } else { 0 };
        let (_, lightest) = self.members.strangers();
        for (place, own) in self.own.iter_mut().enumerate() {
            own.strangers.allow(self.receivers.limits(place).of_weight(lightest), now);
        }
    }

    /// Seals a message for each host: the limits of its VMs that have changed or are to be refreshed.
    fn tell(&mut self, now: Nanos) {
        self.contacts.iter_mut().for_each(Contact::begin_epoch);
        let (members, lapse) = (&*self.members, self.settings.lapse);
        for (place, own) in self.own.iter().enumerate() {
            let (receiver, limits) = (own.vnic, self.receivers.limits(place));
            for &Heavy { sender, weight, .. } in own.senders.heavy() {
                if sender == BALANCERS {
                    let whole =
                        Allowance { receiver, whom: For::Balancers, limits: limits.of_weight(weight) };
                    match members.distributor() {
                        Some(host) => self.contacts[host].tell(whole),
                        None => _ = share_out(members, whole, None, &mut self.contacts),
                    }
                } else if let Some(vm) = members.vms().get(sender as usize) {
                    let each = Allowance { receiver, whom: For::Each, limits };
                    self.contacts[vm.host].tell_news(each, lapse, now);
                }
            }
        }
        self.divide(now);
        self.contacts.iter_mut().for_each(|contact| contact.seal(&mut self.sealer, lapse, now));
        if now.since(self.cleared) >= self.settings.epoch.times(WINDOW) {
            self.cleared = now;
            self.own.iter_mut().for_each(|own| own.senders.clear());
        }
    }

    /// Divides among the load balancers' hosts the limits that VMs elsewhere set for all of them.
    fn divide(&mut self, now: Nanos) {
        let members = Arc::clone(&self.members);
        for (vm, member) in (0..).zip(members.vms()) {
            let Some(limits) = self.wholes[vm as usize].take() else { continue };
            let whole = Allowance { receiver: member.vnic, whom: For::Balancers, limits };
            if let Some(limits) = share_out(&members, whole, Some(member.host), &mut self.contacts) {
                self.obey(vm, For::TheseBalancers, limits, now);
            }
        }
    }

    /// Handles another host's message, and returns how many of its limits that host has no right to set.
    ///
    /// # Errors
    /// [`Rejected`] says why the message counts for nothing.
    pub fn handle_message(&mut self, sealed: &[u8], now: Nanos) -> Result<usize, Rejected> {
        let mut message = core::mem::take(&mut self.opened);
        message.clear();
        message.extend_from_slice(sealed);
        let foreign = self.opener.open(&mut message).map(|(from, said)| {
            let host = self.members.host(from);
            host.into_iter().for_each(|host| self.contacts[host].note_heard(now));
            let limits = said.allowances().filter(|allowance| !self.hear(host, allowance, now)).count();
            limits + said.notices().filter(|notice| !self.hear_notice(host, from, notice)).count()
        });
        self.opened = message;
        foreign
    }

    /// Handles one limit. Each host sets limits for its own VMs only, but the host that divides among load balancers also sets
    /// theirs. Says whether the host had the right to set this one.
    fn hear(&mut self, from: Option<usize>, allowance: &Allowance, now: Nanos) -> bool {
        let &Allowance { receiver, whom, limits } = allowance;
        let Some(vm) = self.members.named(receiver) else { return false };
        let own = Some(self.members.vms()[vm as usize].host) == from;
        let its_to_say = match whom {
            For::Each => own,
            For::Balancers => own && self.members.divides(None),
            For::TheseBalancers => from.is_some() && self.members.divides(from),
        };
        match whom {
            _ if !its_to_say => {}
            For::Balancers => {
                // The load balancers' hosts get their parts when this epoch ends, so it must not wait for a packet.
                self.wholes[vm as usize] = Some(limits);
                self.restful = 0;
            }
            For::Each | For::TheseBalancers => self.obey(vm, whom, limits, now),
        }
        its_to_say
    }

    /// Handles one notice. A host may speak of flows to its own VMs only. Says whether it had the right.
    fn hear_notice(&mut self, host: Option<usize>, from: HostId, notice: &Notice) -> bool {
        let vm = self.members.named(notice.receiver);
        let own = vm.is_some_and(|vm| Some(self.members.vms()[vm as usize].host) == host);
        // A notice that finds no room is repeated by its host.
        if own && self.notices.len() < MOST_NOTICES_WAITING {
            self.notices.push_back((from, *notice));
        }
        own
    }

    /// A notice of another host that was not polled yet, with the host.
    pub fn poll_notice(&mut self) -> Option<(HostId, Notice)> {
        self.notices.pop_front()
    }

    /// Seals notices for another host, to be sent behind its other messages.
    pub fn notify(&mut self, host: usize, notices: &[Notice]) {
        for part in notices.chunks(MOST_NOTICES) {
            self.contacts[host].notify(&mut self.sealer, part);
        }
    }

    fn obey(&mut self, vm: u32, whom: For, limits: Limits, now: Nanos) {
        let allowed = &mut self.allowed[vm as usize];
        let place = if whom == For::Each { &mut allowed.each } else { &mut allowed.balancers };
        let before = place.replace(Heard { limits, at: now });
        if before.is_none_or(|before| before.limits != limits) {
            self.changed.push_back(vm);
        }
        let lapses_at = now + self.settings.lapse;
        self.lapses_at = Some(self.lapses_at.map_or(lapses_at, |soonest| soonest.min(lapses_at)));
    }

    /// Forgets the limits that have lapsed.
    fn expire(&mut self, now: Nanos) {
        if self.lapses_at.is_none_or(|soonest| now < soonest) {
            return;
        }
        let (lapse, mut soonest) = (self.settings.lapse, None);
        for (vm, allowed) in (0..).zip(&mut self.allowed) {
            for place in [&mut allowed.each, &mut allowed.balancers] {
                if place.take_if(|heard| now.since(heard.at) >= lapse).is_some() {
                    self.changed.push_back(vm);
                }
                let lapses_at = place.map(|heard| heard.at + lapse);
                soonest = [soonest, lapses_at].into_iter().flatten().min();
            }
        }
        self.lapses_at = soonest;
    }

    /// A VM elsewhere whose limits have changed since the last call: see [`Agent::allowed`].
    pub fn poll_order(&mut self) -> Option<u32> {
        self.changed.pop_front()
    }

    /// Orders all limits that hold once more, for a driver that has lost them.
    pub fn repeat_orders(&mut self) {
        let holds = |allowed: &Allowed| allowed.each.is_some() || allowed.balancers.is_some();
        let held = (0..).zip(&self.allowed).filter(|(_, allowed)| holds(allowed)).map(|(vm, _)| vm);
        self.changed = held.collect();
    }

    /// The next message for this host; it counts as gone.
    pub fn poll_message(&mut self, host: usize) -> Option<Vec<u8>> {
        self.contacts[host].poll_message()
    }

    /// When the epoch is over. It may end later if no packet comes: see [`Agent::poll_timeout`].
    #[must_use]
    pub fn next_epoch(&self) -> Nanos {
        self.next
    }

    /// When [`Agent::handle_epoch`] is due even if no packet comes. A wake-up costs more than the epoch's end does; so it may be
    /// late by a quarter of the epoch, or where limits are at rest, wait for an eighth of the lapse.
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        let over = self.next + part(self.settings.epoch, 4);
        if self.restful < RESTFUL {
            return over;
        }
        over.max(self.last + part(self.settings.lapse, 8).min(LONGEST_SILENCE))
    }

    /// Limits of the VM `own` here to the VM `vm` elsewhere; `None` while that one's host says nothing.
    #[must_use]
    pub fn allowed(&self, own: usize, vm: u32) -> Option<Limits> {
        let Allowed { each, balancers } = self.allowed[vm as usize];
        self.members.part_of(own, each.map(|heard| heard.limits), balancers.map(|heard| heard.limits))
    }

    /// The exchange with another host.
    #[must_use]
    pub fn contact(&self, host: usize) -> &Contact {
        &self.contacts[host]
    }

    /// Whether another host is heard, as far as it should be.
    #[must_use]
    pub fn presence(&self, host: usize, now: Nanos) -> Presence {
        self.contacts[host].presence(self.settings.lapse, now)
    }

    /// The VMs here as receivers: their capacities and limits.
    #[must_use]
    pub fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    /// Seals with another key of the fleet from now on, and accepts these.
    pub fn set_keys(&mut self, keys: &FleetKeys) {
        self.sealer.set_key(keys.own());
        self.opener.set_keys(keys);
    }

    /// The key that another host's newest message was sealed with.
    #[must_use]
    pub fn key_of(&self, host: usize) -> Option<Fingerprint> {
        self.opener.key_of(*self.members.hosts().get(host)?)
    }

    /// How many senders to a VM here are known by name.
    #[must_use]
    pub fn known_senders(&self, own: usize) -> usize {
        self.own[own].senders.heavy().len()
    }
}

/// Divides what a VM at the host `at` allows all load balancers: notes the part of each other host in its contact, and returns
/// this host's part.
fn share_out(
    members: &Membership,
    whole: Allowance,
    at: Option<usize>,
    contacts: &mut [Contact],
) -> Option<Limits> {
    let mut own = None;
    for (host, limits) in members.divide(whole.receiver.network, whole.limits, at) {
        match host {
            Some(host) => contacts[host].tell(Allowance { whom: For::TheseBalancers, limits, ..whole }),
            None => own = Some(limits),
        }
    }
    own
}

fn part(span: Span, of: u64) -> Span {
    Span::ns(span.as_u64() / of)
}
