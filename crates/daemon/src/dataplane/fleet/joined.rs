//! The way in of many frames at once: datagrams that come whole are taken apart, and a tenant's segments are joined again.
//!
//! Why: between two hosts that segment late, 45 packets cost two system calls instead of 90; and a tenant's network stack takes 64 KiB
//! for the price of one packet.
//! From: `wire::overlay`'s pieces, `wire::Joined`; Linux's receive offload (GRO), which joins only what it can take apart again.
//! Not here: what is done with each packet (`fleet`), queues (`inward`).
//! Invariant: each piece is sorted, queued, counted and checked as if it had come alone; frames of a flow keep their order; a frame
//! that is not joined is delivered as it came, and what was joined is delivered before the quantum ends.

use core::num::NonZeroU32;

use plimsoll_control::backpressure::FlowSource;
use plimsoll_ports::{FRAME_ROOM, Received};
use plimsoll_units::Nanos;
use plimsoll_wire::overlay::{Pieces, Tunnelled};
use plimsoll_wire::{Joined, VnetHeader, parse};

use super::super::Dataplane;
use super::super::cpu::Core;
use super::super::inward::{KnownFlows, Provenance};
use super::super::lane::Lane;
use super::known::KNOWN;
use super::{Came, Fleet, Sorted};

/// Segments that are joined, and where they go.
#[derive(Debug)]
pub(super) struct Joining {
    joined: Joined,
    received: Received,
    of: (Option<u32>, FlowSource),
    /// Whether another frame of the same station is delivered right behind this one.
    followed: bool,
    /// The last packet that was sorted, while a datagram is taken apart.
    pub(super) sorted: Option<(Sorted, Tunnelled)>,
    /// Number of the last datagram.
    datagrams: NonZeroU32,
    /// The datagram whose piece was delivered last in this quantum, with its headers.
    of_datagram: Option<(NonZeroU32, Tunnelled)>,
    /// Its sender.
    pub(super) from: Option<FlowSource>,
}

impl Default for Joining {
    fn default() -> Self {
        Self {
            // A port's longest frame is shorter than its buffer.
            joined: Joined::new(FRAME_ROOM - 1),
            received: Received::default(),
            of: (None, FlowSource::Elsewhere(Default::default())),
            followed: false,
            sorted: None,
            datagrams: NonZeroU32::MIN,
            of_datagram: None,
            from: None,
        }
    }
}

impl Joining {
    /// A number for pieces with the same headers, which differs from those of pieces that wait.
    fn next_datagram(&mut self) -> NonZeroU32 {
        let next = self.datagrams.checked_add(1).filter(|next| next.get() < KNOWN);
        self.datagrams = next.unwrap_or(NonZeroU32::MIN);
        self.datagrams
    }

    /// The headers of a piece, if a piece of the same datagram was delivered before it.
    #[inline]
    pub(super) fn known(&self, datagram: Option<NonZeroU32>, len: usize) -> Option<Tunnelled> {
        let (known, tunnelled) = self.of_datagram.as_ref()?;
        if datagram == Some(*known) { tunnelled.resized(len) } else { None }
    }

    /// Notes the headers of a piece for those behind it.
    pub(super) fn know(&mut self, datagram: Option<NonZeroU32>, tunnelled: Tunnelled, from: FlowSource) {
        (self.of_datagram, self.from) = (datagram.map(|number| (number, tunnelled)), Some(from));
    }
}

impl Dataplane {
    /// Sorts and queues what came from the uplink: one packet, or the packets of a datagram that is still to be cut. Answers how many
    /// they are.
    pub(in super::super) fn fetch_wrapped(
        &mut self,
        core: &impl Core,
        landing: &mut [u8],
        received: &Received,
        now: Nanos,
    ) -> usize {
        let frame = &mut landing[..received.len];
        let whole = received.vnet.filter(|vnet| vnet.gso_type == VnetHeader::GSO_UDP_L4);
        let pieces = match whole.zip(parse(frame).ok()).map(|(vnet, outer)| Pieces::of(frame, &outer, &vnet))
        {
            None | Some(Ok(None)) => {
                if let (Came::For(station, source), datagram) = self.sort(frame, now) {
                    let of = Provenance { source, followed: false, datagram };
                    self.store(core, station, frame, received, of, now);
                }
                return 1;
            }
            Some(Err(why)) => {
                self.uplink.tally.bad_offload(why, 1);
                return 1;
            }
            Some(Ok(Some(pieces))) => pieces,
        };
        let Some(mut fleet) = self.fleet.take() else { return 1 };
        let count = self.take_apart(&mut fleet, core, (frame, received), pieces, now);
        self.fleet = Some(fleet);
        count.max(1)
    }

    /// Sorts and queues each piece. What the headers of one decide holds for the next one, if that has the same.
    fn take_apart(
        &mut self,
        fleet: &mut Fleet,
        core: &impl Core,
        (frame, received): (&mut [u8], &Received),
        mut pieces: Pieces,
        now: Nanos,
    ) -> usize {
        let (mut count, mut head) = (0, [0; HEAD]);
        fleet.joining.sorted = None;
        let mut datagram = fleet.joining.next_datagram();
        while let Some((place, vnet)) = pieces.next(frame) {
            let packet = &mut frame[place];
            let received = Received { len: packet.len(), vnet: Some(vnet), ..*received };
            count += 1;
            let behind_outer = |packet: &[u8]| packet.get(pieces.header()..)?.first_chunk().copied();
            let same = fleet.joining.sorted.as_ref().filter(|(_, tunnelled)| {
                behind_outer(packet) == Some(head)
                    && tunnelled.frame().is_some_and(|frame| frame.start == pieces.header() + TUNNEL)
                    && tunnelled.resized(packet.len()).is_some()
            });
            let came = match same.map(|(sorted, _)| *sorted) {
                Some(sorted) => {
                    fleet.links[sorted.host].received += 1;
                    fleet.count_sorted(&sorted, packet.len(), &mut self.uplink.tally, now)
                }
                None => {
                    (fleet.joining.sorted, head) = (None, behind_outer(packet).unwrap_or([0; HEAD]));
                    if count > 1 {
                        datagram = fleet.joining.next_datagram();
                    }
                    self.sort_for(fleet, packet, now)
                }
            };
            if let Came::For(station, source) = came {
                let of = Provenance { source, followed: pieces.more(), datagram: Some(datagram) };
                self.store(core, station, packet, &received, of, now);
            }
        }
        count
    }

    /// Notes whether more frames of this station are delivered in this quantum, if some wait.
    #[inline]
    pub(in super::super) fn note_following(&mut self, followed: bool) {
        if let Some(fleet) = &mut self.fleet {
            fleet.joining.followed = followed;
        }
    }

    /// Delivers a frame from another host, or joins it to the ones before it, or keeps it for those behind it.
    pub(super) fn deliver_or_join(
        &mut self,
        frame: &mut [u8],
        received: &Received,
        flows: Option<&mut KnownFlows>,
        of: (Option<u32>, FlowSource),
        now: Nanos,
    ) {
        if let Some(fleet) = &mut self.fleet {
            let Joining { joined, of: before, .. } = &mut fleet.joining;
            if !joined.is_empty() && *before == of && joined.join(frame) {
                return;
            }
        }
        self.deliver_joined(now);
        if let Some(fleet) = &mut self.fleet
            && fleet.joining.followed
            && takes_joined(&self.tenants.lanes, of.0)
            && let Ok(parsed) = parse(frame)
            && fleet.joining.joined.begin(frame, &parsed)
        {
            (fleet.joining.received, fleet.joining.of) = (*received, of);
            return;
        }
        self.deliver_known((frame, received), flows, of, now);
    }

    /// Delivers what has been joined, at the end of a quantum.
    pub(in super::super) fn end_joining(&mut self, now: Nanos) {
        if let Some(fleet) = &mut self.fleet {
            fleet.joining.of_datagram = None;
            self.deliver_joined(now);
        }
    }

    /// Delivers what has been joined.
    fn deliver_joined(&mut self, now: Nanos) {
        let Some(fleet) = self.fleet.as_mut().filter(|fleet| !fleet.joining.joined.is_empty()) else {
            return;
        };
        // Taken out meanwhile, so that the frame can be read while ports are written.
        let mut joined = core::mem::take(&mut fleet.joining.joined);
        let (received, of) = (fleet.joining.received, fleet.joining.of);
        let (frame, vnet) = joined.finish();
        let received = Received { len: frame.len(), vnet, ..received };
        self.deliver_once(frame, &received, of, now);
        joined.clear();
        if let Some(fleet) = &mut self.fleet {
            fleet.joining.joined = joined;
        }
    }
}

/// Whether the port of this lane takes frames that are to be segmented.
fn takes_joined(lanes: &[Option<Box<Lane>>], lane: Option<u32>) -> bool {
    let lane = lane.and_then(|lane| lanes.get(lane as usize)?.as_ref());
    let port = lane.and_then(|lane| lane.port.as_ref());
    port.is_some_and(|port| port.capabilities().takes_segmentation)
}

/// Bytes of VXLAN's or Geneve's header without options.
const TUNNEL: usize = 8;
/// Bytes that decide where a piece goes: that header, and the frame's addresses.
const HEAD: usize = TUNNEL + 12;
