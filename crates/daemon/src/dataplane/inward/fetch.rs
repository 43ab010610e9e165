//! Fetching: frames leave the uplink's port, and each is copied once, into the buffers of its tenant.
//!
//! Why: the port's memory must be free again soon, and a frame that waits must take its own tenant's room only.
//! From: PicNIC §5.2: drain early, and tell tenants apart by one look at the destination address.
//! Not here: frames of a fleet's hosts, which are unwrapped first (`fleet`), and what happens after the queue (`deliver`).
//! Invariant: a frame that was fetched waits at one station, or is lost for a counted reason.

use plimsoll_ports::{Received, Trouble};
use plimsoll_units::Nanos;

use super::super::fleet::Came;
use super::super::mac_table::{Mac, MacTable, Owner};
use super::super::{Buffers, Core, Dataplane};
use super::{COMMON, Inward, Provenance};

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
            let stored = port.receive_with(landing, |frame, received| {
                let station = frame.first_chunk().map_or(COMMON, |&mac| inward.station_of(macs, mac));
                if direct
                    && core.queue(station) == station
                    && let Some(hosted) = tenants.program_at(station)
                    && let Some(stored) = hosted.store_direct(inward, station, (frame, received), now)
                {
                    return stored;
                }
                inward.store(core.queue(station), frame, received, Provenance::default(), now)
            });
            let Some(stored) = self.brought(stored) else { break };
            fetched += 1;
            stored.unwrap_or_else(|why| self.uplink.tally.lost(why));
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
            let station = frame.first_chunk().map_or(COMMON, |&mac| self.station_for(mac));
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

    /// The station of a destination address; no other header is looked at here.
    pub(in super::super) fn station_for(&self, mac: Mac) -> u32 {
        self.inward.station_of(&self.macs, mac)
    }
}

impl Inward {
    /// The station of a destination address.
    #[inline]
    fn station_of(&self, macs: &MacTable, mac: Mac) -> u32 {
        match macs.owner(mac) {
            Some(Owner::Lane(lane)) if lane < self.stations() - 1 => lane + 1,
            _ => COMMON,
        }
    }
}
