//! Fetching: frames leave the uplink's port, and each is copied once, into the buffers of its tenant.
//!
//! Why: the port's memory must be free again soon. The port lends up to 64 frames at once: first the tenants of all of them are looked up
//! by their addresses, and then each is queued (`queue`) where it lies.
//! From: PicNIC §5.2: drain early, and tell tenants apart by one look at the destination address.
//! Not here: frames of a fleet's hosts, which are unwrapped first (`fleet`), and what happens after the queue (`take`).
//! Invariant: a frame that was fetched waits at one station, or is lost for a counted reason.

use plimsoll_ports::{Batch, MOST_LENT, Received, Trouble};
use plimsoll_units::Nanos;
use plimsoll_wire::overlay::Vni;

use super::super::drops::Tally;
use super::super::fleet::Came;
use super::super::mac_table::{Mac, MacTable, NO_NETWORK, Owner};
use super::super::tenants::Tenants;
use super::super::{Buffers, Core, Dataplane};
use super::{COMMON, Inward, Provenance};

/// A batch of frames that the uplink's port lends.
struct Lent<'a, C> {
    core: &'a C,
    inward: &'a mut Inward,
    macs: &'a MacTable,
    tenants: &'a mut Tenants,
    tally: &'a mut Tally,
    /// Whether programs of tenants take frames where those are queued.
    direct: bool,
    now: Nanos,
    /// By a frame's place: the station of its destination address.
    stations: [u32; MOST_LENT],
}

impl<C: Core> Batch for Lent<'_, C> {
    #[inline]
    fn look(&mut self, at: usize, frame: &[u8]) {
        self.stations[at] =
            frame.first_chunk().map_or(COMMON, |&mac| self.inward.station_of(self.macs, NO_NETWORK, mac));
    }

    #[inline]
    fn take(&mut self, at: usize, frame: &[u8], received: &Received) {
        let (station, now) = (self.stations[at], self.now);
        let queue = self.core.queue(station);
        let stored = if self.direct
            && queue == station
            && let Some(hosted) = self.tenants.program_at(station)
            && let Some(stored) = hosted.store_direct(self.inward, station, (frame, received), now)
        {
            stored
        } else {
            self.inward.store(queue, frame, received, Provenance::default(), now)
        };
        stored.unwrap_or_else(|why| self.tally.lost(why));
    }
}

impl Dataplane {
    /// Fetches a batch from the uplink, each frame into the queue of the tenant with its destination address. Answers how many they were.
    pub(super) fn fetch(&mut self, core: &impl Core, batch: usize, now: Nanos) -> usize {
        if self.fleet.is_some() || self.threads.crossing.is_some() {
            return self.fetch_and_look(core, batch, now);
        }
        let direct = self.stores_direct();
        let mut fetched = 0;
        while fetched < batch {
            let Self { uplink, inward, macs, tenants, buffers: Buffers { landing, .. }, .. } = self;
            let Some(port) = &mut uplink.port else { break };
            let tally = &mut uplink.tally;
            let mut lent =
                Lent { core, inward, macs, tenants, tally, direct, now, stations: [COMMON; MOST_LENT] };
            let came = port.receive_batch(landing, batch - fetched, &mut lent);
            let Some(came) = self.brought(came.map(|came| (came > 0).then_some(came))) else { break };
            fetched += came;
        }
        fetched
    }

    /// Like [`Dataplane::fetch`], for a host of a fleet, where each frame is unwrapped where it was copied to, before it waits, and for
    /// several threads, where it may be another one's.
    fn fetch_and_look(&mut self, core: &impl Core, batch: usize, now: Nanos) -> usize {
        if self.fleet.is_some()
            && self.uplink.port.as_ref().is_some_and(|port| !port.capabilities().gives_segmentation)
        {
            return self.fetch_packets(core, batch, now);
        }
        let mut landing = core::mem::take(&mut self.buffers.landing);
        let mut fetched = 0;
        while fetched < batch {
            let Some(port) = &mut self.uplink.port else { break };
            let received = port.receive(&mut landing);
            let Some(received) = self.brought(received) else { break };
            if self.fleet.is_some() {
                fetched += self.fetch_wrapped(core, &mut landing, &received, now);
                continue;
            }
            fetched += 1;
            let frame = &landing[..received.len];
            let station = frame.first_chunk().map_or(COMMON, |&mac| self.station_for(NO_NETWORK, mac));
            if !self.passes_on(station, frame, &received) {
                self.store(core, station, frame, &received, Provenance::default(), now);
            }
        }
        self.buffers.landing = landing;
        fetched
    }

    /// Fetches a batch of packets of other hosts from a port whose packets are never longer than its MTU. One with headers that are known
    /// is copied once; any other lies in a buffer while it is read, as it may have to be opened there.
    fn fetch_packets(&mut self, core: &impl Core, batch: usize, now: Nanos) -> usize {
        let version = self.known_at();
        let mut buffer = core::mem::take(&mut self.buffers.scratch);
        let mut fetched = 0;
        while fetched < batch {
            let Self { uplink, inward, fleet: Some(fleet), buffers: Buffers { landing, .. }, .. } = self
            else {
                break;
            };
            let Some(port) = &mut uplink.port else { break };
            let tally = &mut uplink.tally;
            let took = port.receive_with(landing, |packet, received| {
                let Some((came, datagram)) = fleet.sort_known(packet, version, tally, now) else {
                    buffer[..packet.len()].copy_from_slice(packet);
                    return Some(*received);
                };
                if let Came::For(station, source) = came {
                    let of = Provenance { source, followed: false, datagram };
                    let stored = inward.store(core.queue(station), packet, received, of, now);
                    stored.unwrap_or_else(|why| tally.lost(why));
                }
                None
            });
            let Some(unknown) = self.brought(took) else { break };
            fetched += match unknown {
                None => 1,
                Some(received) => self.fetch_wrapped(core, &mut buffer, &received, now),
            };
        }
        self.buffers.scratch = buffer;
        fetched
    }

    /// Adds a frame to its station's queue, or counts why not.
    pub(in super::super) fn store(
        &mut self,
        core: &impl Core,
        station: u32,
        frame: &[u8],
        received: &Received,
        of: Provenance,
        now: Nanos,
    ) {
        if let Err(why) = self.inward.store(core.queue(station), frame, received, of, now) {
            self.uplink.tally.lost(why);
        }
    }

    /// What the uplink's port has brought; where that is nothing, it is not asked again in this turn.
    #[inline]
    fn brought<T>(&mut self, took: Result<Option<T>, Trouble>) -> Option<T> {
        match took {
            Ok(brought) => {
                self.uplink.ready &= brought.is_some();
                brought
            }
            Err(trouble) => {
                self.uplink_stopped(trouble);
                None
            }
        }
    }

    /// The uplink carries no frames: it is down, or gone.
    #[cold]
    fn uplink_stopped(&mut self, trouble: Trouble) {
        match trouble {
            Trouble::Down => self.uplink.ready = false,
            Trouble::Gone => self.lose_uplink(),
        }
    }

    /// The station of a network's destination address; no other header is looked at here.
    pub(in super::super) fn station_for(&self, network: Vni, mac: Mac) -> u32 {
        self.inward.station_of(&self.macs, network, mac)
    }
}

impl Inward {
    /// The station of a destination address.
    #[inline]
    fn station_of(&self, macs: &MacTable, network: Vni, mac: Mac) -> u32 {
        match macs.owner(network, mac) {
            Some(Owner::Lane(lane)) if lane < self.stations() - 1 => lane + 1,
            _ => COMMON,
        }
    }
}
