//! Packets from other hosts with headers that are known: sorted without being parsed and looked up again.
//!
//! Why: the outer headers of a flow's packets are alike, and to read them takes as long as to deliver what they carry.
//! From: Open vSwitch's exact-match cache (Pfaff et al., NSDI 2015), as tenants' own flows have one.
//! Not here: the frames in the packets (`inward`'s known flows), pieces of one datagram (`joined`).
//! Invariant: a packet fares as it would if it were looked at; an entry holds only while neither the policy nor a tenant's
//! address has changed.

use core::num::NonZeroU32;

use plimsoll_wire::overlay::Tunnelled;
use plimsoll_wire::{HeaderCopy, flow_tag};

use super::super::flow_cache::Version;
use super::Sorted;

/// The headers that came last, each in the place that their flow chooses.
#[derive(Debug)]
pub(super) struct KnownHeaders {
    entries: Box<[Option<Entry>; PLACES]>,
    /// How many were noted.
    noted: u32,
}

/// What the headers of a packet decide.
#[derive(Debug)]
pub(super) struct Entry {
    outer: HeaderCopy,
    /// The tunnel header, and both addresses of the frame.
    inner: [u8; INNER],
    version: Version,
    /// The number that packets with these headers bear while they wait.
    pub(super) number: NonZeroU32,
    pub(super) sorted: Sorted,
    pub(super) tunnelled: Tunnelled,
}

/// Flows whose headers are known: of more flows than these some are looked at again.
const PLACES: usize = 64;
/// The tunnel header without options, and the frame's addresses.
const INNER: usize = TUNNEL + 12;
const TUNNEL: usize = 8;
/// Numbers from here on are those of known headers; smaller ones are those of datagrams.
pub(super) const KNOWN: u32 = 1 << 31;

impl Default for KnownHeaders {
    fn default() -> Self {
        Self { entries: Box::new([const { None }; PLACES]), noted: 0 }
    }
}

impl KnownHeaders {
    /// What the headers of this packet decide, if that is known.
    #[inline]
    pub(super) fn find(&self, packet: &[u8], version: Version) -> Option<&Entry> {
        let entry = self.entries[place(packet)].as_ref()?;
        let begin = entry.tunnelled.frame()?.start - TUNNEL;
        let inner: &[u8; INNER] = packet.get(begin..)?.first_chunk()?;
        let holds = entry.version == version && *inner == entry.inner && entry.outer.is_alike(packet);
        holds.then_some(entry)
    }

    /// Notes what the headers of this packet decide, and returns the number that it is to bear. `None`: nothing may be known of such
    /// packets, as each is to be read: sealed ones, and ones with options.
    pub(super) fn note(
        &mut self,
        packet: &[u8],
        version: Version,
        sorted: Sorted,
        tunnelled: Tunnelled,
    ) -> Option<NonZeroU32> {
        let frame = tunnelled.frame().filter(|_| tunnelled.is_bare())?;
        let outer = HeaderCopy::of(packet);
        if !outer.is_alike(packet) {
            return None;
        }
        let inner = *packet.get(frame.start - TUNNEL..)?.first_chunk()?;
        self.noted = self.noted.wrapping_add(1) % (KNOWN / PLACES as u32);
        let place = place(packet);
        let number = NonZeroU32::new(KNOWN | (self.noted * PLACES as u32) | place as u32)?;
        self.entries[place] = Some(Entry { outer, inner, version, number, sorted, tunnelled });
        Some(number)
    }

    /// Forgets all headers.
    pub(super) fn forget(&mut self) {
        self.entries.fill_with(|| None);
    }

    /// What the headers of a packet with this number decided when it was sorted, if that is still kept.
    #[inline]
    pub(super) fn of_number(&self, number: Option<NonZeroU32>) -> Option<&Entry> {
        let number = number.filter(|number| number.get() >= KNOWN)?;
        self.entries[number.get() as usize % PLACES].as_ref().filter(|entry| entry.number == number)
    }
}

#[inline]
fn place(packet: &[u8]) -> usize {
    flow_tag(packet) as usize % PLACES
}
