//! Drives the host's control agent: measures for it, sends its messages, and has the NIC engine enforce its limits.
//!
//! Why: a flood is best stopped at its sender, and only the receiver can tell a flood.
//! From: PicNIC §5.3 and §5.5 by `control::Agent`; three ways for feedback (PN-M18): with tenants' frames, in frames of
//! its own where none go that way within half an epoch, or over a control channel, from another thread.
//! Not here: the epoch (`control::Agent`), limits at work (`nic`), sockets of the channel (`channel`).
//! Invariant: a limit changes only by the agent's orders; a message leaves once, or is counted as unsent.

use std::net::SocketAddr;
use std::sync::Arc;

use plimsoll_control::agent::{LocalVm, Settings};
use plimsoll_control::backpressure::SenderMac;
use plimsoll_control::{
    Agent, BandwidthLaw, Envelope, FabricLaw, FleetKeys, HostId, Idle, Laws, Measured, Notice, PacketRateLaw,
    Rejected,
};
use plimsoll_policy::{ControlLevel, Feedback, IdleMinimum, Program, TenantId, UNLIMITED, Via};
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::FlowKey;
use plimsoll_wire::overlay::{Format, MOST_IN_OPTION, Vni};

use super::super::Dataplane;
use super::super::drops::Event;
use super::super::lane::Lane;
use super::super::press::Tell;
use super::map::FleetMap;
use super::{Asked, Fleet};

/// The engine's part of control between hosts.
#[derive(Debug)]
pub(crate) struct Steering {
    via: Via,
    epoch: Span,
    pub(super) agent: Agent,
    /// The lane of each tenant here that receives, in the agent's order.
    pub(super) lanes: Vec<u32>,
    /// For each station, the agent's number of its tenant.
    by_station: Vec<Option<u32>>,
    /// Messages to be sent, by the map's hosts.
    posts: Vec<Post>,
    /// When the first message has to leave; at the end of time where there is none.
    due: Nanos,
}

/// Messages on their way out to a host.
#[derive(Clone, Copy, Debug)]
struct Post {
    host: HostId,
    /// When they are sent in frames of their own.
    due: Nanos,
    counts: Counts,
}

/// Counters of messages, by their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sent with tenants' frames.
    pub ridden: u64,
    /// Sent in frames of their own.
    pub framed: u64,
    /// Sent over the control channel.
    pub channelled: u64,
    /// Not sent, as the uplink had no room until there were newer ones.
    pub unsent: u64,
    /// Received and accepted.
    pub heard: u64,
}

/// A message for a control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The destination.
    pub to: SocketAddr,
    /// The sealed message.
    pub message: Vec<u8>,
}

/// How often meters whose lifetime is over are forgotten.
const FORGET: Span = Span::secs(1);

/// The time of the next message when none waits.
const NEVER: Nanos = Nanos::new(u64::MAX);

impl Steering {
    pub(super) fn new(map: &FleetMap, keys: &FleetKeys, numbers: [u64; 2]) -> Self {
        let feedback = map.overlay.feedback.as_ref().expect("steered only with feedback");
        let members = Arc::clone(&map.members);
        let mut made = Self {
            via: feedback.via,
            epoch: feedback.epoch,
            agent: Agent::new(settings(feedback), keys.own(), numbers, members, Nanos::ZERO),
            lanes: Vec::new(),
            by_station: Vec::new(),
            posts: Vec::new(),
            due: NEVER,
        };
        made.agent.set_keys(keys);
        made.set_posts(map);
        made
    }

    fn set_posts(&mut self, map: &FleetMap) {
        let post = |&host: &HostId| {
            let known = self.posts.iter().find(|post| post.host == host).copied();
            known.unwrap_or(Post { host, due: NEVER, counts: Counts::default() })
        };
        self.posts = map.members.hosts().iter().map(post).collect();
    }

    /// Installs another map.
    pub(super) fn remap(&mut self, map: &FleetMap) {
        let feedback = map.overlay.feedback.as_ref().expect("a reload does not end feedback");
        (self.via, self.epoch) = (feedback.via, feedback.epoch);
        self.agent.set_fleet(settings(feedback), Arc::clone(&map.members));
        self.set_posts(map);
    }

    /// Counts a frame of a tenant elsewhere for this station, perhaps with the fabric's mark, and says whether it may
    /// come in.
    #[inline]
    pub(super) fn admits(&mut self, station: u32, from: u32, len: usize, marked: bool, now: Nanos) -> bool {
        let to = self.by_station.get(station as usize).copied().flatten().map(|to| to as usize);
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.agent.handle_packet(to, Some(from), len, marked, now)
    }

    /// The message that may go with a frame to this host.
    #[inline]
    pub(super) fn riding(&self, host: usize) -> Option<&[u8]> {
        let message = self.agent.contact(host).messages().front().filter(|_| self.via == Via::Datapath)?;
        (message.len() <= MOST_IN_OPTION).then_some(message)
    }

    /// Notes that the message has been sent.
    pub(super) fn rode(&mut self, host: usize) {
        self.agent.poll_message(host);
        self.posts[host].counts.ridden += 1;
    }

    pub(super) fn counts(&self, host: usize) -> Counts {
        let contact = self.agent.contact(host);
        Counts { unsent: contact.unsent(), heard: contact.heard(), ..self.posts[host].counts }
    }

    /// Decides when this epoch's messages are sent. A short message to a host that frames go to waits for such a frame; any
    /// other is sent at once.
    fn post(&mut self, map: &FleetMap, now: Nanos) {
        let rides = self.via == Via::Datapath && map.format == Format::Geneve;
        for (host, post) in self.posts.iter_mut().enumerate() {
            let contact = self.agent.contact(host);
            let messages = contact.messages();
            let short = messages.len() == 1 && messages.iter().all(|message| message.len() <= MOST_IN_OPTION);
            let waits = rides && short && contact.is_sent_to(self.epoch.times(2), now);
            post.due = if waits { now + Span::ns(self.epoch.as_u64() / 2) } else { now };
        }
        self.note_due();
    }

    fn note_due(&mut self) {
        let posts = self.posts.iter().enumerate();
        let waiting = posts.filter(|&(host, _)| !self.agent.contact(host).messages().is_empty());
        self.due = waiting.map(|(_, post)| post.due).min().unwrap_or(NEVER);
    }

    /// Hands all waiting messages to the control channels.
    fn hand_over(&mut self, map: &FleetMap, outbox: &mut Vec<Sent>) {
        for (host, post) in self.posts.iter_mut().enumerate() {
            let Some(to) = map.hosts[host].channel else { continue };
            while let Some(message) = self.agent.poll_message(host) {
                post.counts.channelled += 1;
                outbox.push(Sent { to, message });
            }
        }
    }
}

impl Fleet {
    /// The tenants of these lanes receive from now on, with the policy's envelopes on the way in, and the delays that
    /// follow from their targets where they have some.
    pub(crate) fn set_receivers(&mut self, lanes: &[Option<Box<Lane>>], policy: &Program, now: Nanos) {
        let Self { map, steering: Some(steering), .. } = self else { return };
        let mut receivers = Vec::new();
        steering.lanes.clear();
        steering.by_station = vec![None; lanes.len() + 1];
        for (index, lane) in (0..).zip(lanes) {
            let tenant = lane.as_ref().and_then(|lane| Some((lane.tenant?, map.own_vnic(&lane.name)?)));
            let Some((TenantId(tenant), vnic)) = tenant else { continue };
            let tenant = &policy.tenants[tenant as usize];
            let (node, own) = (policy.node(tenant.node), tenant.slo.ingress);
            let max = own.max.or_else(|| node.max.map(|max| policy.limit(max).rate));
            steering.by_station[index as usize + 1] = u32::try_from(receivers.len()).ok();
            steering.lanes.push(index);
            receivers.push(LocalVm {
                vnic,
                envelope: Envelope { min: own.min.or(node.min), max: max.unwrap_or(policy.link) },
                threshold: tenant.slo.threshold,
                // By the time, so that no sender can foresee the gaps between sampled packets.
                seed: u64::from(index) ^ now.as_u64().rotate_left(17),
            });
        }
        steering.agent.set_receivers(policy.link, &receivers);
    }
}

impl Dataplane {
    /// Ends an epoch that is over, and sends messages that are due. Answers when there is more to do.
    pub(super) fn steer(&mut self, fleet: &mut Fleet, now: Nanos) -> Option<Nanos> {
        let mut steering = fleet.steering.take()?;
        let Steering { agent, lanes, .. } = &mut *steering;
        if agent.handle_epoch(fleet.turned, now, |vm| self.measured(lanes[vm])) {
            self.obey(&fleet.map, agent, now);
            steering.post(&fleet.map, now);
        }
        if now >= fleet.forget_at {
            fleet.forget_at = now + FORGET;
            fleet.asked.expire(now);
        }
        if steering.due <= now {
            match steering.via {
                Via::Datapath => self.send_feedback(fleet, &mut steering, now),
                Via::Channel => steering.hand_over(&fleet.map, &mut fleet.outbox),
            }
            steering.note_due();
        }
        let next = steering.agent.poll_timeout().min(steering.due);
        fleet.steering = Some(steering);
        Some(next)
    }

    /// Measurements of this epoch for the tenant of a lane.
    fn measured(&mut self, lane: u32) -> Measured {
        let (seen, slots, delay) = self.inward.take_epoch(lane + 1);
        let left_out = self.backpressure.heavy.as_mut().map_or(0, |heavy| heavy.take_left_out(lane as usize));
        Measured {
            bytes: seen.bytes,
            served: seen.served,
            left_out,
            service: seen.service_rate(),
            delay,
            occupancy: seen.peak * 1_000 / slots,
            drops: seen.drops,
            ..Measured::default()
        }
    }

    /// Sends in frames of their own the messages that no tenant's frame took along. One that finds no room waits for the
    /// next turn.
    fn send_feedback(&mut self, fleet: &mut Fleet, steering: &mut Steering, now: Nanos) {
        for (host, post) in steering.posts.iter_mut().enumerate() {
            while post.due <= now
                && let Some(message) = steering.agent.contact(host).messages().front()
            {
                let mut scratch = core::mem::take(&mut self.buffers.scratch);
                let path = fleet.path(host);
                let len =
                    path.and_then(|path| path.feedback_frame(message, post.host.0.into(), &mut scratch).ok());
                let sent = len.is_some_and(|len| self.send_own(&scratch[..len]));
                self.buffers.scratch = scratch;
                if !sent {
                    // The next epoch has newer messages.
                    post.due = now + Span::millis(1);
                    break;
                }
                steering.agent.poll_message(host);
                post.counts.framed += 1;
            }
        }
    }

    /// Handles another host's message, which came with a frame or alone.
    pub(super) fn hear_feedback(&mut self, fleet: &mut Fleet, sealed: &[u8], now: Nanos) {
        let Fleet { map, steering: Some(steering), asked, .. } = fleet else {
            return self.uplink.tally.event(Event::FeedbackUnasked);
        };
        match steering.agent.handle_message(sealed, now) {
            Ok(foreign) => (0..foreign).for_each(|_| self.uplink.tally.event(Event::FeedbackForeign)),
            Err(why) => self.uplink.tally.event(rejected(why)),
        }
        self.obey(map, &mut steering.agent, now);
        while let Some((host, Notice { receiver, flow, sender, terms })) = steering.agent.poll_notice() {
            let Some(network) = Vni::new(receiver.network) else { continue };
            let flow = Asked { network, to: receiver.mac, from: sender, flow: FlowKey::from_bytes(&flow) };
            // What no tenant here can send takes no place in the table.
            let heeded =
                map.own_name(network, sender).is_some() && asked.install(flow, host, terms, now).is_ok();
            self.uplink.tally.event(if heeded { Event::NoticeHeeded } else { Event::NoticeRefused });
        }
    }

    /// Asks other hosts to hold flows to a rate.
    pub(in super::super) fn notify(&mut self, tells: &[Tell], now: Nanos) {
        let Some(fleet) = &mut self.fleet else { return };
        let Fleet { map, steering: Some(steering), .. } = &mut **fleet else { return };
        for Tell { host, sender: SenderMac(sender), tenant, flow, terms } in tells {
            let lane = self.backpressure.heavy.as_ref().and_then(|heavy| heavy.lane_of(*tenant));
            let lane = lane.and_then(|lane| self.tenants.lanes[lane].as_ref());
            let vnic = lane.and_then(|lane| map.own_vnic(&lane.name));
            let place = map.hosts.iter().position(|known| known.number == *host);
            // A tenant or host that a reload has just taken away is told nothing.
            let (Some(receiver), Some(place)) = (vnic, place) else { continue };
            let notice = Notice { receiver, flow: flow.to_bytes(), sender: *sender, terms: *terms };
            steering.agent.notify(place, &[notice]);
            steering.posts[place].due = now;
        }
        steering.note_due();
    }

    /// Handles a message from the control channel; its thread has opened it before, so that no flood of forged ones comes
    /// here.
    pub fn hear_channel(&mut self, sealed: &[u8], now: Nanos) {
        let Some(mut fleet) = self.fleet.take() else { return };
        self.hear_feedback(&mut fleet, sealed, now);
        self.fleet = Some(fleet);
    }

    /// Enforces the agent's limits for the tenants here, or the fallback while the host elsewhere is silent.
    fn obey(&mut self, map: &FleetMap, agent: &mut Agent, now: Nanos) {
        while let Some(vm) = agent.poll_order() {
            let fallback = map.hosts[map.members.vms()[vm as usize].host].fallback;
            let pairs = (0..).map_while(|tenant| Some((tenant, map.pair(TenantId(tenant), vm)?)));
            for (tenant, [in_bits, in_packets]) in pairs {
                let limits = agent.allowed(tenant as usize, vm);
                let packets = limits.and_then(|limits| limits.packets);
                let packets = packets.and_then(|packets| BitRate::new(packets.get().saturating_mul(8)));
                self.scheduler
                    .doorbells
                    .set_rate(in_bits, limits.map_or(fallback, |limits| limits.bits).min(UNLIMITED));
                self.scheduler.doorbells.set_rate(in_packets, packets.unwrap_or(UNLIMITED).min(UNLIMITED));
            }
        }
        self.scheduler.ring(now);
    }

    /// Enforces the agent's limits again after a reload, when all limits begin with the fallback.
    pub(in super::super) fn hold_again(&mut self, now: Nanos) {
        let Some(mut fleet) = self.fleet.take() else { return };
        if let Fleet { map, steering: Some(steering), .. } = &mut *fleet {
            steering.agent.repeat_orders();
            self.obey(map, &mut steering.agent, now);
        }
        self.fleet = Some(fleet);
    }
}

fn settings(feedback: &Feedback) -> Settings {
    let laws = Laws {
        bandwidth: BandwidthLaw::default(),
        packets: (feedback.control == ControlLevel::Full).then(|| PacketRateLaw::new(feedback.delay)),
        idle: match feedback.idle {
            IdleMinimum::Reserved => Idle::Reserved,
            IdleMinimum::Lent => Idle::Lent,
        },
        fabric: feedback.ecn.then(FabricLaw::default),
    };
    Settings { epoch: feedback.epoch, lapse: feedback.lapse, laws }
}

fn rejected(why: Rejected) -> Event {
    match why {
        Rejected::Malformed => Event::FeedbackMalformed,
        Rejected::Misdirected => Event::FeedbackMisdirected,
        Rejected::Forged => Event::FeedbackForged,
        Rejected::Stale => Event::FeedbackStale,
    }
}
