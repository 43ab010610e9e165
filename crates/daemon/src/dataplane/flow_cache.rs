//! The flows that a tenant sent last, and what the headers of each one decide.
//!
//! Why: to parse a frame, check its source, hash its flow and find its flow queue takes longer than to schedule it. A frame of a known
//! flow is compared with a copy of the headers.
//! From: Open vSwitch's exact-match cache (Pfaff et al., NSDI 2015); one for each tenant, so that no tenant takes another's places.
//! Not here: which frames have the same headers (`wire`), and what headers decide (`outward`).
//! Invariant: an answer holds only while neither the policy nor a tenant's address has changed since, and its flow has its place in
//! the lane's table; there are at most as many flows as stated, however many are sent.

use core::mem::offset_of;
use core::slice::from_ref;

use plimsoll_control::backpressure::mediation::Codepoint;
use plimsoll_nic::QueueId;
use plimsoll_units::Nanos;
use plimsoll_wire::{Front, HeaderCopy, Offload, VnetHeader, flow_tag};
use prefetch_index::prefetch_index;

use super::flows::Stay;
use super::heavy::HashedCount;
use super::mac_table::Mac;
use crate::departures::Headers;

/// What the headers of a frame decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub(super) offload: Offload,
    pub(super) to: Mac,
    pub(super) headers: Headers,
    /// The number by which the fabric chooses its path.
    pub(super) hash: u32,
    /// Its ECN field, where it may be marked.
    pub(super) ecn: Codepoint,
    /// Its flow in the lane's table, and that flow's queue as long as it stays there.
    pub(super) stay: Stay,
    pub(super) queue: QueueId,
    /// When the flow table was told last that the flow sends.
    pub(super) told: Nanos,
}

/// A flow as its sender and its receiver are counted for it, if they are.
pub(super) type Counts = [Option<HashedCount>; 2];

/// What must not have changed since an answer was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// Of the tenants' part of the table of addresses.
    pub(super) addresses: u64,
    /// Of the policy.
    pub(super) policy: u64,
}

/// The flows that a lane sent last.
#[derive(Debug)]
pub(crate) struct FlowCache {
    sets: Box<[Set]>,
    /// In places that stay; made as they are used.
    flows: Vec<Cached>,
    /// Indexed by a flow's place; shorter than `flows` unless the last ones are counted.
    counts: Vec<Counts>,
    /// The version at which all flows here were noted.
    version: Version,
    /// The last of numbers that decide whether a flow is noted of which a frame was not found: one in [`ONE_IN`] is, as a tenant that
    /// sends a packet of each of very many flows is not to pay for each.
    drawn: u32,
}

/// Flows that a number may belong to.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set {
    tags: [u32; WAYS],
    places: [u32; WAYS],
    /// Whose place the next flow takes.
    next: u8,
}

/// Three cache lines, which are asked for together ([`FlowCache::fetch`]): the copy alone is longer than one.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Cached {
    decided: Decided,
    headers: HeaderCopy,
    vnet: Option<VnetHeader>,
}

// A part begins in each line.
const _: () = assert!(
    size_of::<Cached>() == 3 * 64
        && offset_of!(Cached, headers) / 64 == 1
        && offset_of!(Cached, vnet) / 64 == 2
);

/// Flows of one set.
const WAYS: usize = 4;

/// No flow has this place.
const NOWHERE: u32 = u32::MAX;

/// One in how many flows that were not found is noted.
const ONE_IN: u32 = 4;

impl FlowCache {
    /// For about as many flows as the lane may have, at most 1,024.
    pub(crate) fn new(flows: u32) -> Self {
        let sets = (flows.clamp(16, 1_024) as usize).next_power_of_two() / WAYS;
        let none = Set { tags: [0; WAYS], places: [NOWHERE; WAYS], next: 0 };
        Self {
            sets: vec![none; sets].into(),
            flows: Vec::with_capacity(sets * WAYS),
            counts: Vec::new(),
            version: Version::default(),
            drawn: 0,
        }
    }

    /// The number under which the flow of this frame is kept; its place is asked for.
    #[inline]
    pub(super) fn tag(&self, frame: Front<'_>) -> u32 {
        let tag = flow_tag(frame.bytes());
        prefetch_index(&self.sets, self.set(tag));
        tag
    }

    /// Asks for what is kept under this number.
    #[inline]
    pub(super) fn fetch(&self, tag: u32) {
        let Set { tags, places, .. } = &self.sets[self.set(tag)];
        if let Some(way) = tags.iter().position(|known| *known == tag)
            && let Some(Cached { decided, headers, vnet }) = self.flows.get(places[way] as usize)
        {
            prefetch_index(from_ref(decided), 0);
            prefetch_index(from_ref(headers), 0);
            prefetch_index(from_ref(vnet), 0);
        }
    }

    /// What the headers of this frame decide, if that is known.
    #[inline]
    pub(super) fn find(
        &mut self,
        frame: Front<'_>,
        vnet: Option<VnetHeader>,
        version: Version,
    ) -> Option<(&mut Decided, Option<&mut Counts>)> {
        if version != self.version {
            return None;
        }
        let tag = flow_tag(frame.bytes());
        let Set { tags, places, .. } = &self.sets[self.set(tag)];
        let way = tags.iter().position(|known| *known == tag)?;
        let place = places[way] as usize;
        let cached = self.flows.get_mut(place)?;
        let holds = cached.vnet == vnet && cached.headers.is_alike_front(frame);
        holds.then(|| (&mut cached.decided, self.counts.get_mut(place)))
    }

    /// Whether the flow of a frame that was not found is to be noted. It is drawn (Knuth's linear congruential generator), as flows may
    /// come in turn.
    #[inline]
    pub(super) fn is_to_note(&mut self) -> bool {
        self.drawn = self.drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.drawn >> 16).is_multiple_of(ONE_IN)
    }

    /// Notes what the headers of a frame decide.
    pub(super) fn note(
        &mut self,
        frame: Front<'_>,
        vnet: Option<VnetHeader>,
        version: Version,
        (decided, counts): (Decided, Counts),
    ) {
        if version != self.version {
            self.forget();
            self.version = version;
        }
        let tag = flow_tag(frame.bytes());
        let at = self.set(tag);
        let set = &mut self.sets[at];
        // Two flows of one number take each other's place.
        let way = set.tags.iter().position(|known| *known == tag);
        let way = way.unwrap_or_else(|| {
            set.next = (set.next + 1) % WAYS as u8;
            set.next.into()
        });
        set.tags[way] = tag;
        let cached = Cached { headers: HeaderCopy::of_front(frame), vnet, decided };
        match self.flows.get_mut(set.places[way] as usize) {
            Some(place) => *place = cached,
            None => {
                set.places[way] = self.flows.len() as u32;
                self.flows.push(cached);
            }
        }
        let place = set.places[way] as usize;
        if counts.iter().any(Option::is_some) && self.counts.len() <= place {
            self.counts.resize(self.flows.len(), [None; 2]);
        }
        if let Some(of) = self.counts.get_mut(place) {
            *of = counts;
        }
    }

    fn forget(&mut self) {
        self.sets.iter_mut().for_each(|set| set.places = [NOWHERE; WAYS]);
        self.flows.clear();
        self.counts.clear();
    }

    fn set(&self, tag: u32) -> usize {
        (tag as usize) & (self.sets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::flows::{FlowTable, Slot};
    use super::*;

    const VERSION: Version = Version { addresses: 1, policy: 1 };

    /// A frame of UDP over IPv4 from this port.
    fn frame(port: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        (frame[17], frame[23], frame[39]) = (46, 17, 26);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame
    }

    fn decided(queue: u16) -> Decided {
        Decided {
            offload: Offload::PLAIN,
            to: [2; 6],
            headers: Headers::default(),
            hash: 0,
            ecn: Codepoint::NotEct,
            stay: FlowTable::new(8).stay(Slot::default()),
            queue: QueueId(queue.into()),
            told: Nanos::ZERO,
        }
    }

    fn queue_of(cache: &mut FlowCache, port: u16, version: Version) -> Option<u32> {
        cache.find(Front::whole(&frame(port)), None, version).map(|(decided, _)| decided.queue.0)
    }

    #[test]
    fn each_flow_is_found_or_not_and_never_another_one() {
        let mut cache = FlowCache::new(64);
        for round in 0..3 {
            for port in 0..200 {
                assert!(queue_of(&mut cache, port, VERSION).is_none_or(|queue| queue == u32::from(port)));
                cache.note(Front::whole(&frame(port)), None, VERSION, (decided(port), [None; 2]));
                assert_eq!(queue_of(&mut cache, port, VERSION), Some(u32::from(port)), "round {round}");
            }
        }
        assert!(cache.flows.len() <= 64 && cache.flows.capacity() >= 64, "{}", cache.flows.len());
        let found = (0..200).filter(|port| queue_of(&mut cache, *port, VERSION).is_some()).count();
        assert!(found > 48, "{found} of 64");
    }

    #[test]
    fn an_answer_does_not_hold_after_any_change() {
        let mut cache = FlowCache::new(16);
        cache.note(Front::whole(&frame(7)), None, VERSION, (decided(7), [None; 2]));
        for change in [Version { addresses: 2, ..VERSION }, Version { policy: 2, ..VERSION }] {
            assert_eq!(queue_of(&mut cache, 7, change), None);
        }
        assert!(cache.find(Front::whole(&frame(7)), Some(VnetHeader::default()), VERSION).is_none());
        assert!(cache.find(Front::whole(&frame(7)[..59]), None, VERSION).is_none());
        let mut longer = frame(7);
        longer.push(0);
        assert!(cache.find(Front::whole(&longer), None, VERSION).is_none());
        assert!(
            cache.find(Front::new(&frame(7), 61), None, VERSION).is_none(),
            "of its payload, 60 bytes are at hand"
        );
        assert_eq!(queue_of(&mut cache, 7, VERSION), Some(7));
    }

    #[test]
    fn a_flow_that_comes_again_and_again_is_noted_soon() {
        let mut cache = FlowCache::new(16);
        // Also one of four that come in turn.
        let noted = (0..400).filter(|n| cache.is_to_note() && n % 4 == 0).count();
        assert!((15..35).contains(&noted), "{noted} of 100");
    }
}
