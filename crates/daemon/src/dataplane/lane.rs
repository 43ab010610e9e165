//! A lane: everything that belongs to one tenant's port.
//!
//! Why: a tenant's buffers, flows and counters are its own; nothing here is shared.
//! From: `docs/architecture.md`, "live".
//! Not here: when it is read, and where its frames go (`dataplane`).
//! Invariant: a lane whose port is gone keeps its frames until they have left.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use plimsoll_nic::QueueId;
use plimsoll_policy::{Addresses, Fields, LookedAt, Mediate, Placement, TenantId};
use plimsoll_ports::{Counters, DropReason, Port, Trouble};
use plimsoll_slo::Parts;
use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::Scope;
use plimsoll_wire::overlay::Vni;

use super::apart::Conduct;
use super::crossing::Seat;
use super::drops::{Event, Tally};
use super::flow_cache::FlowCache;
use super::flows::FlowTable;
use super::hosted::Hosted;
use super::mac_table::Mac;
use super::mediate::Guest;
use super::paced::Holder;
use super::parked::Parked;
use super::pool::Pool;
use super::posted::Alone;
use super::rules::Opened;
use super::verify::Trust;

/// How often an address that sends all the time is learned again: often enough that its owner never seems silent.
const LEARN_AGAIN: Span = Span::secs(1);

/// How often a tenant is told that its packets are too big, and how far ahead of that at first: a hundred times a second
/// and ten times at once, as RFC 1812 §4.3.2.8 and RFC 4443 §2.4 (f) want it bounded.
const TELL: Span = Span::millis(10);
const TOLD_AT_ONCE: Span = Span::millis(90);

/// How often a client's message is answered, and how far ahead of that at first: 16,000 times a second, as each costs 4
/// to 7 µs of the engine's core, and 1,024 times at once, as a client may open a flow queue for each flow that it begins
/// with.
const ASK: Span = Span::ns(62_500);
const ASKED_AT_ONCE: Span = Span::micros(64_000);

/// One tenant's port, with its buffers, flows and counters.
#[derive(Debug)]
pub struct Lane {
    /// The operator's name for the tenant.
    pub name: String,
    /// The tenant in the policy in force; none once a reload has removed it.
    pub tenant: Option<TenantId>,
    /// Where all threads know it, and which one serves it.
    pub(crate) seat: Seat,
    /// Its network: its addresses, and those that it sends to, are that network's. It never changes.
    pub(crate) network: Vni,
    /// The addresses of its port, as the thread that serves it tells them.
    pub(crate) told_macs: Vec<Mac>,
    /// The port, unless it is lost.
    pub(crate) port: Option<Port>,
    /// Whether the port may have frames to read.
    pub(crate) ready: bool,
    /// Whether its frames are left where they are, as it is to move to another thread.
    pub(crate) halted: bool,
    /// The address that it sent from last, which is this lane's, and when it was looked up.
    pub(crate) source: Option<(Mac, Nanos)>,
    /// The addresses that its frames may bear.
    pub(crate) addresses: Addresses,
    /// The first address that it sent from, if it is held to its own address and the port does not tell it.
    pub(crate) first_mac: Option<Mac>,
    /// When a client's rings last had a frame.
    pub(crate) quiet_since: Nanos,
    /// When its packets were last seen held to its `max`, if the length of naps depends on it.
    pub(crate) held_at: Option<Nanos>,
    /// The session since which frames count: those from before it were offered again.
    pub(crate) offered_again: Option<u32>,
    /// Number of buffers with frames from before it: each of them comes once more.
    pub(crate) to_come_again: usize,
    /// Whether frames of one flow come together from its rings.
    pub(crate) alone: Alone,
    /// The program that its packets pass; taken out while it runs.
    pub(crate) program: Option<Box<Hosted>>,
    pub(crate) pool: Pool,
    /// Frames that wait outside the engine.
    pub(crate) parked: Parked,
    pub(crate) flows: FlowTable,
    /// What is known of the flows that it sent last; taken out while it is used.
    pub(crate) cache: Option<Box<FlowCache>>,
    /// Queues for flows that the flow table has no room for, by placement.
    pub(crate) overflow: HashMap<Placement, Overflow, RandomState>,
    /// More such queues, for placements that a reload has made the same: each is closed once it is empty.
    pub(crate) leftover: Vec<Overflow>,
    /// Flow queues that a client asked for.
    pub(crate) opened: Vec<Opened>,
    /// Whether some of them are no longer the client's.
    pub(crate) closing: bool,
    /// Until when the client's messages have been answered: each one adds [`ASK`]. Works like [`Lane::told_until`].
    asked_until: Nanos,
    /// Until when the client's messages wait in its socket.
    pub(crate) held_until: Option<Nanos>,
    /// The headers that the policy looks at to place the tenant's packets, once a client has asked.
    pub(crate) scope: Option<Scope>,
    /// The metadata that the policy looks at in the tenant's packets, once one was posted.
    pub(crate) looked_at: Option<LookedAt>,
    /// How far a client is trusted to classify its packets.
    pub(crate) trust: Trust,
    /// Flow queues that the lane may have open.
    pub(crate) quota: Quota,
    pub(crate) tally: Tally,
    /// Until when the tenant has been told that packets are too big: each message adds [`TELL`].
    told_until: Nanos,
    /// Delays of its packets since the last look, and before.
    pub(crate) recent: Box<Parts>,
    /// Frames that waited, or were lost, as backpressure holds their flow.
    pub(crate) pressed: HashMap<Holder, u64>,
    /// Its connections, where their ECN is mediated.
    pub(crate) guest: Option<Box<Guest>>,
    /// Whether its packets must not be changed, nor those for it.
    pub(crate) untouched: bool,
    pub(crate) total: Box<Parts>,
    /// Half of each of its delay targets.
    pub(crate) halves: Vec<Span>,
    /// Whether the port must be flushed, so that its tenant sees completions and frames.
    pub(crate) wrote: bool,
    /// Frames that the port could not take and that count for their senders.
    pub(crate) blamed: Blamed,
    /// How its memory has behaved, and what followed from it.
    pub(crate) conduct: Conduct,
    /// Counters of this lane's earlier ports.
    pub(super) past: Counters,
    /// What its port had counted when it came from another thread, where that is counted.
    before: Counters,
}

/// Frames that a port could not take and that were counted as losses of their senders, by reason. They are subtracted from
/// what the port counts itself.
pub(crate) type Blamed = [u64; DropReason::COUNT];

/// A queue that is shared by flows which the table has no room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflow {
    pub(crate) queue: QueueId,
    /// The fields of the first of these flows, for a later policy.
    pub(crate) fields: Fields,
    /// The tenant elsewhere that they go to.
    pub(crate) peer: Option<u32>,
    /// When a frame was last added.
    pub(crate) seen: Nanos,
}

/// How many flow queues a lane may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// Flow queues for flows that have one each.
    pub(crate) flows: u32,
    /// Flow queues in all.
    pub(crate) queues: u32,
}

impl Quota {
    /// An equal part of `queues` for each lane. A sixteenth of it, and at least one, is kept for overflow. With
    /// fewer queues than lanes, each may try for one.
    pub(crate) fn of(queues: u32, lanes: usize) -> Self {
        let lanes = u32::try_from(lanes.max(1)).unwrap_or(u32::MAX);
        let queues = (queues / lanes).max(1);
        Self { flows: queues - (queues / 16).max(1), queues }
    }
}

/// The parts that a lane is made from; made outside the engine's thread, as this allocates.
#[derive(Debug)]
pub struct LaneSpec {
    /// The operator's name for the tenant.
    pub name: String,
    /// The tenant in the policy.
    pub tenant: TenantId,
    /// Where all threads know it, and which one serves it.
    pub seat: Seat,
    /// Its network in the overlay; [`Vni::ZERO`] without one.
    pub network: Vni,
    /// Its port.
    pub port: Option<Port>,
    /// Descriptors that it may have in the engine.
    pub descriptors: u32,
    /// Flows that it may have a queue for.
    pub flows: u32,
    /// The addresses that its frames may bear.
    pub addresses: Addresses,
    /// How its connections are mediated, if they are.
    pub mediate: Option<Mediate>,
    /// Whether its packets must not be changed, nor those for it.
    pub untouched: bool,
    /// The program that its packets pass.
    pub program: Option<Box<Hosted>>,
}

impl Lane {
    /// Allocates the buffers and tables that the tenant may use.
    #[must_use]
    pub fn new(spec: LaneSpec) -> Self {
        Self {
            name: spec.name,
            tenant: Some(spec.tenant),
            seat: spec.seat,
            network: spec.network,
            told_macs: Vec::new(),
            port: spec.port,
            ready: true,
            halted: false,
            source: None,
            addresses: spec.addresses,
            first_mac: None,
            quiet_since: Nanos::ZERO,
            held_at: None,
            offered_again: None,
            to_come_again: 0,
            alone: Alone::default(),
            program: spec.program,
            pool: Pool::for_descriptors(spec.descriptors),
            parked: Parked::default(),
            pressed: HashMap::new(),
            guest: spec.mediate.map(|stated| Box::new(Guest::new(stated))),
            untouched: spec.untouched,
            flows: FlowTable::new(spec.flows),
            cache: Some(Box::new(FlowCache::new(spec.flows))),
            overflow: HashMap::default(),
            leftover: Vec::new(),
            opened: Vec::new(),
            closing: false,
            asked_until: Nanos::ZERO,
            held_until: None,
            scope: None,
            looked_at: None,
            trust: Trust::default(),
            quota: Quota { flows: spec.flows, queues: spec.flows + 1 },
            tally: Tally::default(),
            told_until: Nanos::ZERO,
            recent: Box::default(),
            total: Box::default(),
            halves: Vec::new(),
            wrote: false,
            blamed: Blamed::default(),
            conduct: Conduct::default(),
            past: Counters::default(),
            before: Counters::default(),
        }
    }

    /// Whether it belongs to a tenant in force, and this thread serves its port.
    pub(crate) fn is_served_here(&self) -> bool {
        self.tenant.is_some() && self.seat.elsewhere.is_none()
    }

    /// Losses and events, those of its mediated connections included.
    pub(crate) fn whole_tally(&self) -> Tally {
        let mut tally = self.tally.clone();
        self.guest.iter().for_each(|guest| guest.count_into(&mut tally));
        tally
    }

    /// Flow queues that are open for this lane.
    pub(crate) fn open_queues(&self) -> u32 {
        let shared =
            u32::try_from(self.overflow.len() + self.leftover.len() + self.opened.len()).unwrap_or(u32::MAX);
        self.flows.len() + shared
    }

    /// Sets the lane's part of the flow queues; queues open beyond it stay open until they are idle.
    pub(crate) fn set_quota(&mut self, quota: Quota) {
        self.flows.set_cap(quota.flows);
        self.quota = quota;
    }

    /// Whether the port must be asked for frames now, because it cannot be waited on.
    pub(crate) fn must_be_asked(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.must_be_asked() && !port.is_quiet())
    }

    /// Whether reading its port touches its sender's memory.
    pub(crate) fn copies(&self) -> bool {
        matches!(self.port, Some(Port::Vnic(_) | Port::VhostUser(_)))
    }

    /// Reacts to a port in trouble. A port that is gone is taken out; its counters stay. A port that takes no frames now may
    /// still have some to read.
    pub(crate) fn trouble(&mut self, trouble: Trouble) -> Option<Port> {
        if trouble == Trouble::Down {
            return None;
        }
        self.tally.event(Event::PortLost);
        self.detach()
    }

    /// Whether this address was found to be the lane's a moment ago.
    #[inline]
    pub(crate) fn sent_from(&self, mac: Mac, now: Nanos) -> bool {
        self.source.is_some_and(|(known, at)| known == mac && now.since(at) < LEARN_AGAIN)
    }

    /// Whether the tenant may be told now that a packet was too big; counts the message.
    pub(crate) fn may_tell(&mut self, now: Nanos) -> bool {
        let may = self.told_until <= now + TOLD_AT_ONCE;
        if may {
            self.told_until = self.told_until.max(now) + TELL;
        }
        may
    }

    /// Counts a message of the client's.
    pub(crate) fn asked(&mut self, now: Nanos) {
        self.asked_until = self.asked_until.max(now) + ASK;
    }

    /// When the next `messages` of the client may be answered: now, or later.
    pub(crate) fn asks_at(&self, messages: u64, now: Nanos) -> Nanos {
        let last = self.asked_until + ASK.times(messages);
        now + last.since(now + ASKED_AT_ONCE)
    }

    /// Takes the port out; its counters stay.
    pub(crate) fn detach(&mut self) -> Option<Port> {
        (self.source, self.first_mac) = (None, None);
        let mut port = self.port.take()?;
        // A client's flow queues are closed with its port, once they are empty.
        self.opened.iter_mut().for_each(|opened| opened.live = false);
        self.closing = true;
        if let Port::Apart(apart) = &mut port {
            apart.leave();
        }
        self.keep_counters(&mut port);
        Some(port)
    }

    /// Takes the port out for another thread. What it has counted stays.
    pub(super) fn give_away(&mut self) -> Option<Port> {
        let mut port = self.port.take()?;
        self.keep_counters(&mut port);
        Some(port)
    }

    /// Keeps what a port has counted here that leaves.
    fn keep_counters(&mut self, port: &mut Port) {
        let before = core::mem::take(&mut self.before);
        self.past = sum(&self.past, &since(&port.counters(), &before));
    }

    /// Puts in a port that another thread has served; it is counted from here on.
    pub(super) fn take_over(&mut self, port: Option<Port>) {
        self.port = port;
        self.before = self.port.as_mut().map(Port::counters).unwrap_or_default();
        // What was written there is to be seen.
        (self.ready, self.wrote) = (true, true);
    }

    /// Puts a port in.
    pub(crate) fn attach(&mut self, port: Port) {
        self.detach();
        self.port = Some(port);
        self.ready = true;
    }

    /// The counters of all ports that the lane has had.
    pub(crate) fn counters(&mut self) -> Counters {
        let past = &self.past;
        let all = self.port.as_mut().map(|port| sum(past, &since(&port.counters(), &self.before)));
        without(all.unwrap_or(*past), &self.blamed)
    }
}

/// A port's counters, added to those of the ports before it, without losses that are counted elsewhere.
pub(crate) fn carried(port: &mut Option<Port>, past: &Counters, blamed: &Blamed) -> Counters {
    without(port.as_mut().map_or(*past, |port| sum(past, &port.counters())), blamed)
}

/// Counters without losses that are counted elsewhere.
fn without(mut counters: Counters, blamed: &Blamed) -> Counters {
    for (lost, blamed) in counters.tx_drops.iter_mut().zip(blamed) {
        *lost = lost.saturating_sub(*blamed);
    }
    counters
}

/// What has been counted since `before`.
fn since(now: &Counters, before: &Counters) -> Counters {
    let less = |a: [u64; DropReason::COUNT], b: [u64; DropReason::COUNT]| {
        core::array::from_fn(|i| a[i].saturating_sub(b[i]))
    };
    Counters {
        rx_packets: now.rx_packets.saturating_sub(before.rx_packets),
        rx_bytes: now.rx_bytes.saturating_sub(before.rx_bytes),
        tx_packets: now.tx_packets.saturating_sub(before.tx_packets),
        tx_bytes: now.tx_bytes.saturating_sub(before.tx_bytes),
        rx_drops: less(now.rx_drops, before.rx_drops),
        tx_drops: less(now.tx_drops, before.tx_drops),
    }
}

/// Adds two ports' counters.
pub(crate) fn sum(a: &Counters, b: &Counters) -> Counters {
    let add =
        |a: [u64; DropReason::COUNT], b: [u64; DropReason::COUNT]| core::array::from_fn(|i| a[i] + b[i]);
    Counters {
        rx_packets: a.rx_packets + b.rx_packets,
        rx_bytes: a.rx_bytes + b.rx_bytes,
        tx_packets: a.tx_packets + b.tx_packets,
        tx_bytes: a.tx_bytes + b.tx_bytes,
        rx_drops: add(a.rx_drops, b.rx_drops),
        tx_drops: add(a.tx_drops, b.tx_drops),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_together_at_most_all_queues_and_leave_one_for_overflow() {
        assert_eq!(Quota::of(65_536, 3), Quota { flows: 20_480, queues: 21_845 });
        for (queues, lanes) in [(64, 2), (64, 6), (64, 64), (65_536, 1), (100, 7)] {
            let quota = Quota::of(queues, lanes);
            assert!(quota.queues as usize * lanes <= queues as usize, "{queues} for {lanes}");
            assert!(quota.flows < quota.queues);
        }
        assert_eq!(Quota::of(16, 1_000), Quota { flows: 0, queues: 1 });
    }
}
