//! What the headers of a frame from the uplink decide, and the frame's way to its receiver.
//!
//! Why: frames of one flow share their headers, so that these are read once for many frames.
//! From: MIMIC, for flows that are slowed down.
//! Not here: whose queue is next (`deliver`), what is kept from visit to visit (`known`), the receiver's port (`depart::hand`).
//! Invariant: a frame is delivered, or lost for a counted reason.

use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_control::backpressure::{FlowSource, Place};
use plimsoll_ports::{Frame, Port, Received};
use plimsoll_units::Nanos;
use plimsoll_wire::overlay::Vni;
use plimsoll_wire::{Ecn, Front, Offload, OffloadKind, parse};

use super::super::Dataplane;
use super::super::crossing::Via;
use super::super::depart::Handed;
use super::super::drops::{Event, Loss};
use super::super::emit::Part;
use super::super::flows::Hashed;
use super::super::heavy::{HashedCount, markable};
use super::super::mac_table::{Learned, Mac, NO_NETWORK, Owner, is_group};
use super::super::outward::{check, on_wire};
use super::super::press::{Act, Way};

/// What the headers of a frame from the uplink decide; it holds for all frames with the same headers.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Bound {
    offload: Offload,
    to: Receiver,
    /// Its flow, where it is counted.
    flow: Option<HashedCount>,
    /// Its ECN field, where it may be marked.
    ecn: Codepoint,
    /// Packets and bytes of frames with these headers that are still to be counted for the flow.
    uncounted: (u16, u32),
}

impl Bound {
    /// Whether frames with these headers are still to be counted.
    #[inline]
    pub(in super::super) fn is_uncounted(&self) -> bool {
        self.uncounted.0 > 0
    }

    /// Whether its flow, where that is counted, comes from there.
    #[inline]
    pub(in super::super) fn comes_from(&self, from: FlowSource) -> bool {
        self.flow.as_ref().is_none_or(|flow| flow.of.from == from)
    }

    /// The lane of the receiver, where nothing is to be done but to hand the frame on.
    #[inline]
    pub(in super::super) fn plain(&self) -> Option<u32> {
        let Receiver::Lane(lane) = self.to else { return None };
        lane.filter(|_| self.offload.kind == OffloadKind::Plain && self.flow.is_none())
    }
}

/// The receiver of a frame from the uplink.
#[derive(Clone, Copy, Debug)]
enum Receiver {
    /// A lane, if its address is known.
    Lane(Option<u32>),
    /// All tenants here of a network.
    All(Vni),
}

impl Dataplane {
    /// Parses the headers of a frame from the uplink: it goes to the tenant with its destination address, or to all.
    /// Writes `None` when they are malformed, which is counted.
    ///
    /// It writes the result in its place: a copy would have to wait for the many short writes that made it.
    pub(in super::super) fn look_at(
        &mut self,
        frame: &[u8],
        received: &Received,
        (lane, from): (Option<u32>, FlowSource),
        now: Nanos,
        bound: &mut Option<Bound>,
    ) {
        let parsed = parse(frame);
        let (parsed, offload) = match check(&parsed, Front::whole(frame), received) {
            Ok(checked) => checked,
            Err(why) => {
                why.count(&mut self.uplink.tally, 1);
                *bound = None;
                return;
            }
        };
        // In a fleet the map states where each tenant is.
        if self.fleet.is_none() {
            self.learn_outside(parsed.src_mac.0, now);
        }
        let target = parsed.dst_mac.0;
        let network = self.network_of(lane);
        let owner = || match self.macs.owner(network, target) {
            Some(Owner::Lane(lane)) => Some(lane),
            _ => None,
        };
        let to = if is_group(target) { Receiver::All(network) } else { Receiver::Lane(lane.or_else(owner)) };
        let flow = match (&self.backpressure.heavy, to) {
            (Some(heavy), Receiver::Lane(Some(lane))) => {
                let sender = parsed.src_mac.0;
                let untouched =
                    self.fleet.as_ref().is_some_and(|fleet| fleet.map.is_untouched(network, sender));
                heavy.flow((lane as usize, true, None), (from, untouched), (parsed, &Hashed::of(parsed)))
            }
            _ => None,
        };
        *bound = Some(Bound { offload, to, flow, ecn: markable(parsed), uncounted: (0, 0) });
    }

    /// Learns that a host with this address is behind the uplink.
    #[inline]
    pub(in super::super) fn learn_outside(&mut self, mac: Mac, now: Nanos) {
        if matches!(self.inward.via, Via::Thread(Some(_))) {
            return; // a tenant's, which another thread has looked at
        }
        if let Learned::Taken(Owner::Lane(from)) = self.macs.learn(NO_NETWORK, mac, Owner::Uplink, now) {
            self.note_taken(from);
        }
    }

    /// Counts the frames that were delivered with these headers: once for all of them, as each count costs a look-up.
    #[inline]
    pub(in super::super) fn count_delivered(&mut self, bound: &mut Bound) {
        if let (Some(heavy), Bound { flow: Some(flow), uncounted, .. }) =
            (&mut self.backpressure.heavy, bound)
            && uncounted.0 > 0
        {
            heavy.count(flow, core::mem::take(uncounted));
        }
    }

    /// Delivers a frame from the uplink to its receiver, unless its flow is slowed down and beyond its rate.
    /// [`Self::count_delivered`] is to be called after the last frame with these headers.
    pub(in super::super) fn deliver(&mut self, frame: &mut [u8], bound: &mut Bound, now: Nanos) {
        let Bound { offload, to, flow, ecn, uncounted } = bound;
        if let (Some(heavy), Some(flow)) = (&mut self.backpressure.heavy, flow) {
            if let Some(windows) = heavy.windows()
                && let Ok(parsed) = parse(frame)
                && windows.pass(
                    [Place::Away(flow.of.from), Place::Tenant(flow.of.tenant)],
                    frame,
                    &parsed,
                    offload,
                    now,
                )
            {
                self.uplink.tally.event(Event::FlowWindowed);
            }
            let sent = on_wire(offload, frame.len(), 1);
            let (Act { mark, way }, counted) = heavy.judge(flow, sent, (frame, *ecn), now);
            if !counted {
                let sum = uncounted.0.checked_add(sent.0).zip(uncounted.1.checked_add(sent.1));
                *uncounted = sum.unwrap_or_else(|| {
                    heavy.count(flow, *uncounted);
                    sent
                });
            }
            // A frame from elsewhere waits at its source, or not at all.
            if way != Way::Pass {
                return self.uplink.tally.lost(Loss::FlowOverRate);
            }
            if mark && Ecn::Ce.write(frame) {
                self.uplink.tally.event(Event::FlowMarked);
            }
        }
        if self.backpressure.mediates
            && let Receiver::Lane(Some(to)) = *to
        {
            self.mediate_inward(to, frame, offload, now);
        }
        let frame = &*frame;
        let mut part = Part::whole(u32::try_from(frame.len()).unwrap_or(u32::MAX), offload);
        let handed = match *to {
            Receiver::All(_) if self.copies.of_uplink == 0 => Handed::Lost(Loss::FloodLimit),
            Receiver::All(network) => {
                let made = self.send_all(&Frame::whole(frame), offload, part, network);
                self.copies.of_uplink = self.copies.of_uplink.saturating_sub(made);
                return;
            }
            Receiver::Lane(Some(to)) => self.send_one(&Frame::whole(frame), offload, &mut part, to),
            Receiver::Lane(None) => {
                if self.uplink.port.as_ref().is_some_and(|port| is_for_the_host(port, frame)) {
                    return self.uplink.tally.event(Event::ForTheHost);
                }
                Handed::Lost(Loss::UnknownDestination)
            }
        };
        self.count_undelivered(&handed);
    }

    /// Counts a frame from the uplink that was not delivered, if it was not.
    #[inline]
    pub(super) fn count_undelivered(&mut self, handed: &Handed) {
        match handed {
            Handed::Lost(why) => self.arrivals_tally().lost(*why),
            Handed::Refused(why) => self.arrivals_tally().undelivered(*why),
            _ => {}
        }
    }
}

/// Whether the kernel of this host takes the frame itself, from a device that shows frames to both.
pub(in super::super) fn is_for_the_host(port: &Port, frame: &[u8]) -> bool {
    matches!(port, Port::AfPacket(port) if frame.starts_with(&port.mac()))
}
