//! Mediated ECN: this host takes the part of a tenant's TCP where that does not use ECN.
//!
//! Why: a mark slows a sender down only if both ends use ECN, and by default none asks for it.
//! From: MIMIC §III-D; the rules, and the tables, are `control::backpressure::mediation`.
//! Not here: marking (`press`), and frames that wait for a meter (`paced`).
//! Invariant: only frames from and to mediated tenants are changed, none where the other end is known to be `ecn: untouched`, of these only whole TCP packets, and of these only ECE, CWR,
//! the ECN field and checksums. A frame is handled once on its way out, when nothing holds it any more, and once on its way in.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::quality::RandomState;
use plimsoll_control::HostId;
use plimsoll_control::backpressure::Metered;
use plimsoll_control::backpressure::mediation::{self, Change, Codepoint, EcnFlags, Segment};
use plimsoll_policy::{Checked, Mediate};
use plimsoll_ports::Received;
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_wire::overlay::Vni;
use plimsoll_wire::{Ecn, FlowKey, Offload, Parsed, TcpFlags, TcpSegment, parse};

use super::Dataplane;
use super::drops::{Event, Tally};
use super::fleet::{AskedBy, AskedNow};
use super::mac_table::{Mac, Owner};
use super::paced::Held;
use super::pool::Buffer;
use super::posted::Origin;
use super::verify::seed;
use crate::heavy::headers;

/// How often meters whose lifetime is over are forgotten.
const FORGET: Span = Span::secs(1);

/// How often a tenant's metered flows are told to the log, at most.
const SAY: Span = Span::secs(1);

/// Metered flows of a tenant that were told to the log, and are to be told again when they are let go.
const SAID: usize = 32;

/// A tenant whose connections are mediated.
#[derive(Debug)]
pub struct Guest {
    /// By the flow that the tenant sends, without DSCP.
    tables: mediation::Guest<FlowKey>,
    /// Names the peers that own meters.
    peers: RandomState,
    said_at: Option<Nanos>,
    /// Flows that were told to the log, since when they are metered, while they are.
    said: Vec<(FlowKey, Nanos)>,
}

/// A tenant whose connections a policy has mediated.
#[derive(Debug)]
pub struct Mediating {
    tenant: String,
    stated: Mediate,
    /// Its tables, where it was not mediated before.
    guest: Option<Box<Guest>>,
}

impl Mediating {
    /// The mediated tenants of `new`, with tables for those that `old` does not mediate.
    #[must_use]
    pub fn between(old: &Checked, new: &Checked) -> Vec<Self> {
        let before = |name: &str| {
            old.config.tenants.iter().any(|tenant| tenant.name == name && tenant.ecn.mediate().is_some())
        };
        let mediated = new.config.tenants.iter().filter_map(|tenant| {
            let stated = tenant.ecn.mediate()?;
            let guest = (!before(&tenant.name)).then(|| Box::new(Guest::new(stated)));
            Some(Self { tenant: tenant.name.clone(), stated, guest })
        });
        mediated.collect()
    }
}

impl Guest {
    /// Allocates the tables.
    #[must_use]
    pub fn new(stated: Mediate) -> Self {
        let tables = mediation::Guest::new(stated, [seed(), seed()]);
        Self { tables, peers: RandomState::default(), said_at: None, said: Vec::with_capacity(SAID) }
    }

    /// Bytes of the tables, by what they hold. Nothing is allocated.
    #[must_use]
    pub fn memory() -> [(&'static str, usize); 2] {
        mediation::Guest::<FlowKey>::memory()
    }

    /// Whether the flow's rate allows these bytes now; if so they are charged.
    pub(super) fn conforms(&mut self, flow: &FlowKey, bytes: u32, now: Nanos) -> bool {
        self.tables.conforms(flow, bytes, now)
    }

    /// The rate that holds a flow, if one does.
    pub(super) fn rate(&self, flow: &FlowKey) -> Option<BitRate> {
        self.tables.held_to(flow)
    }

    /// When the flow's rate will allow these bytes.
    pub(super) fn ready_at(&self, flow: &FlowKey, bytes: u32, now: Nanos) -> Nanos {
        self.tables.ready_at(flow, bytes, now)
    }

    /// Adds what was done to a tally.
    pub(super) fn count_into(&self, tally: &mut Tally) {
        let done = self.tables.counters();
        for (event, count) in [
            (Event::EcnAsked, done.asked),
            (Event::EcnGranted, done.granted),
            (Event::EcnHidden, done.hidden),
            (Event::EcnUnmarked, done.unmarked),
            (Event::EcnEchoed, done.echoed),
            (Event::EcnAnswered, done.answered),
            (Event::EcnReported, done.reports),
            (Event::EcnUnmetered, self.tables.unmetered()),
            (Event::EcnLeftAlone, done.full),
        ] {
            tally.event_many(event, count);
        }
    }

    /// Handles a frame that the tenant sends.
    fn outbound(&mut self, frame: &mut [u8], parsed: &Parsed, offload: &Offload, now: Nanos) {
        let Some((mut header, segment)) = read(frame, parsed) else { return };
        let key = FlowKey::of(parsed).without_dscp();
        let change = self.tables.outbound(&key, &segment, now);
        if !change.is_none() {
            rewrite(change, &mut header, frame, offload);
        }
    }

    /// Handles a frame for the tenant. Answers the tenant's flow if it is metered from now on.
    fn inbound(
        &mut self,
        frame: &mut [u8],
        parsed: &Parsed,
        offload: &Offload,
        now: Nanos,
    ) -> Option<FlowKey> {
        let (mut header, segment) = read(frame, parsed)?;
        let key = FlowKey::of(parsed).reversed();
        let (change, metered) = self.tables.inbound(&key, &segment, || peer(&self.peers, &key), now);
        if !change.is_none() {
            rewrite(change, &mut header, frame, offload);
        }
        let says = metered && self.said_at.is_none_or(|at| now.since(at) >= SAY);
        if says {
            self.said_at = Some(now);
            self.said.retain(|(known, _)| *known != key);
            if self.said.len() < SAID {
                self.said.push((key, now));
            }
        }
        says.then_some(key)
    }
}

/// The owner of the meter of a flow that a tenant sends: the peer by its address. An IPv6 network of 64 bits is one peer.
fn peer(peers: &RandomState, flow: &FlowKey) -> HostId {
    let network = match flow.addresses() {
        Some((_, IpAddr::V4(to))) => u64::from(to.to_bits()),
        Some((_, IpAddr::V6(to))) => (to.to_bits() >> 64) as u64,
        None => 0,
    };
    HostId(peers.hash_one(network) as u32)
}

/// The header of a whole TCP packet, and what mediation reads of it.
fn read(frame: &[u8], parsed: &Parsed) -> Option<(TcpSegment, Segment)> {
    let header = TcpSegment::of(frame, parsed)?;
    let flags = header.flags;
    let segment = Segment {
        syn: flags.has(TcpFlags::SYN),
        ack: flags.has(TcpFlags::ACK),
        fin: flags.has(TcpFlags::FIN),
        rst: flags.has(TcpFlags::RST),
        flags: EcnFlags {
            ae: flags.has(TcpFlags::AE),
            cwr: flags.has(TcpFlags::CWR),
            ece: flags.has(TcpFlags::ECE),
        },
        ecn: codepoint(Ecn::of(frame)?),
        sequence: header.sequence,
        acknowledged: header.acknowledged,
        payload: header.payload,
    };
    Some((header, segment))
}

/// The ECN field as `control` names it.
pub(super) const fn codepoint(ecn: Ecn) -> Codepoint {
    match ecn {
        Ecn::NotEct => Codepoint::NotEct,
        Ecn::Ect1 => Codepoint::Ect1,
        Ecn::Ect0 => Codepoint::Ect0,
        Ecn::Ce => Codepoint::Ce,
    }
}

/// The places that are written were read before, so none of the writes fails.
fn rewrite(change: Change, header: &mut TcpSegment, frame: &mut [u8], offload: &Offload) {
    let with = |flags: TcpFlags, flag: TcpFlags, wanted: Option<bool>| match wanted {
        Some(true) => flags | flag,
        Some(false) => flags.without(flag),
        None => flags,
    };
    let flags = with(header.flags, TcpFlags::ECE, change.ece);
    let flags = with(flags, TcpFlags::CWR, change.cwr);
    if flags != header.flags {
        let _ = header.set_flags(frame, flags, offload);
    }
    let ecn = change.ecn.map(|ecn| match ecn {
        Codepoint::NotEct => Ecn::NotEct,
        Codepoint::Ect1 => Ecn::Ect1,
        Codepoint::Ect0 => Ecn::Ect0,
        Codepoint::Ce => Ecn::Ce,
    });
    if let Some(ecn) = ecn {
        let _ = ecn.write(frame);
    }
}

impl Dataplane {
    /// Handles the frames of a buffer that a tenant sends, and that nothing holds any more: in its place, and in that of the
    /// tenant of this host that is to receive them.
    pub(super) fn mediate(
        &mut self,
        (index, buffer): (usize, Buffer),
        parsed: &Parsed,
        offload: &Offload,
        (len, frames): (usize, u32),
        now: Nanos,
    ) {
        let keeps = |lane: usize| {
            self.tenants.lanes.get(lane).and_then(Option::as_ref).is_some_and(|lane| lane.untouched)
        };
        let network = self.network_of(Some(index as u32));
        let (to, receiver_keeps) = match self.macs.owner(network, parsed.dst_mac.0) {
            Some(Owner::Lane(to)) => (Some(to as usize).filter(|to| *to != index), keeps(to as usize)),
            _ => (None, self.is_untouched_elsewhere(network, parsed.dst_mac.0)),
        };
        let to = to.filter(|_| !keeps(index));
        // Taken out meanwhile, as the frames lie with their sender.
        let mut receiver = to.and_then(|to| self.tenants.lanes.get_mut(to)?.as_mut()?.guest.take());
        let mut metered = None;
        if let Some(Some(lane)) = self.tenants.lanes.get_mut(index)
            && (lane.guest.is_some() || receiver.is_some())
        {
            let bytes = &mut lane.pool.bytes_mut(buffer)[..len * frames as usize];
            for frame in bytes.chunks_exact_mut(len.max(1)) {
                if !receiver_keeps && let Some(guest) = &mut lane.guest {
                    guest.outbound(frame, parsed, offload, now);
                }
                if let Some(receiver) = &mut receiver {
                    metered = receiver.inbound(frame, parsed, offload, now).or(metered);
                }
            }
        }
        if let Some(to) = to
            && receiver.is_some()
            && let Some(Some(lane)) = self.tenants.lanes.get_mut(to)
        {
            lane.guest = receiver;
            self.say_metered(to, metered);
        }
    }

    /// Handles a frame from the uplink for a tenant, if that one's connections are mediated.
    pub(super) fn mediate_inward(&mut self, to: u32, frame: &mut [u8], offload: &Offload, now: Nanos) {
        let lane = self.tenants.lanes.get(to as usize).and_then(Option::as_ref);
        if lane.is_none_or(|lane| lane.guest.is_none()) {
            return;
        }
        let Ok(parsed) = parse(frame) else { return };
        if self.is_untouched_elsewhere(self.network_of(Some(to)), parsed.src_mac.0) {
            return;
        }
        let lane = self.tenants.lane(to);
        let Some(guest) = lane.and_then(|lane| lane.guest.as_mut()) else { return };
        let metered = guest.inbound(frame, &parsed, offload, now);
        self.say_metered(to as usize, metered);
    }

    /// Whether the map says of the tenant elsewhere that has this address that its packets must not be changed.
    fn is_untouched_elsewhere(&self, network: Vni, mac: Mac) -> bool {
        self.fleet.as_ref().is_some_and(|fleet| fleet.map.is_untouched(network, mac))
    }

    /// Tells the log of a flow that is metered from now on.
    fn say_metered(&mut self, lane: usize, flow: Option<FlowKey>) {
        let Some((flow, Some(lane))) = flow.zip(self.tenants.lanes.get(lane)) else { return };
        let Some(guest) = &lane.guest else { return };
        let (headers, name, rate) = (headers(&flow), &lane.name, guest.tables.rate());
        let line = format!(
            "backpressure: {headers} of tenant {name} is held to {rate}: its receiver reports marks (ECN)"
        );
        self.tell(line);
    }

    /// Whether a tenant's frame is within the rate of its flow, if its receiver has reported marks. Else it waits, or it is
    /// counted, and its buffer is freed.
    pub(super) fn may_go_marked(
        &mut self,
        (index, buffer): (usize, Buffer),
        parsed: &Parsed,
        offload: &Offload,
        origin: &Origin,
        received: &Received,
        now: Nanos,
    ) -> bool {
        let Some(guest) = self.tenants.lanes[index].as_ref().and_then(|lane| lane.guest.as_ref()) else {
            return true;
        };
        if !guest.tables.has_meters() && self.backpressure.paced.is_empty() {
            return true;
        }
        let flow = FlowKey::of(parsed).without_dscp();
        self.may_pass(Held::Reported(index, flow), (index, buffer), offload, received, origin, now)
    }

    /// Notes whether any tenant's connections are mediated.
    pub(super) fn note_mediated(&mut self) {
        self.backpressure.mediates = self.tenants.lanes.iter().flatten().any(|lane| lane.guest.is_some());
    }

    /// Mediates the connections of other tenants; answers tables that are no longer used. Tables of a tenant that is no longer
    /// mediated stay while a connection needs them.
    pub(super) fn mediate_anew(
        &mut self,
        mediated: Vec<Mediating>,
        untouched: &[String],
        now: Nanos,
    ) -> Vec<Guest> {
        let mut wanted = mediated;
        let mut unused = Vec::new();
        for lane in self.tenants.all() {
            lane.untouched = untouched.contains(&lane.name);
            let place = wanted.iter().position(|one| one.tenant == lane.name && lane.tenant.is_some());
            match (place.map(|place| wanted.swap_remove(place)), &mut lane.guest) {
                (Some(Mediating { stated, guest, .. }), Some(known)) => {
                    known.tables.resume(stated);
                    unused.extend(guest.map(|guest| *guest));
                }
                (Some(Mediating { guest, .. }), none) => *none = guest,
                (None, Some(known)) if lane.tenant.is_some() && !known.tables.is_idle(now) => {
                    known.tables.drain(now);
                }
                (None, left) => {
                    let guest = left.take();
                    guest.iter().for_each(|guest| guest.count_into(&mut lane.tally));
                    unused.extend(guest.map(|guest| *guest));
                }
            }
        }
        self.note_mediated();
        unused.extend(wanted.into_iter().filter_map(|one| one.guest).map(|guest| *guest));
        unused
    }

    /// Forgets meters whose lifetime is over.
    pub(super) fn tend_mediated(&mut self, now: Nanos) {
        if !self.backpressure.mediates || now < self.backpressure.mediated_at {
            return;
        }
        self.backpressure.mediated_at = now + FORGET;
        let mut gone = Vec::new();
        for lane in self.tenants.all() {
            let Some(guest) = &mut lane.guest else { continue };
            guest.tables.expire(now);
            let Guest { tables, said, .. } = &mut **guest;
            let name = &lane.name;
            said.retain(|&(flow, since)| {
                let held = tables.is_metered(&flow);
                if !held {
                    gone.push((flow, name.clone(), now.since(since)));
                }
                held
            });
        }
        for (flow, name, lasted) in gone {
            let (headers, seconds) = (headers(&flow), lasted.as_secs_f64());
            let line = format!(
                "backpressure: {headers} of tenant {name} is let go; its receiver's marks held it for {seconds:.0}s"
            );
            self.tell(line);
        }
    }

    /// The flows that are metered as their receivers report marks, by tenant and headers.
    pub(super) fn reported(&self, now: Nanos) -> impl Iterator<Item = AskedNow> {
        let guests =
            self.tenants.lanes.iter().flatten().filter_map(|lane| Some((lane, lane.guest.as_ref()?)));
        guests.flat_map(move |(lane, guest)| {
            guest.tables.metered(now).into_iter().map(|(flow, Metered { meter, since, .. })| AskedNow {
                flow,
                of: lane.name.clone(),
                by: AskedBy::Receiver,
                rate: meter.rate(),
                since,
                until: meter.until(),
            })
        })
    }
}
