//! What this host does with the packets of each flow that is slowed down, behind one look-up.
//!
//! Why: a packet of such a flow may be metered, marked and left out of measurements; to look each of that up by the flow's headers
//! took longer than to count the packet. The packet is counted here as well, so that its flow's bucket is not fetched for it.
//! Not here: which flows (`press`), token buckets and marks (`control::backpressure`).
//! Invariant: at most as many flows as may be slowed down at a time; a flow of which nothing is known has no place. A packet of a
//! flow that is marked and not metered touches one cache line, and one of a metered flow the next one too.

use core::mem::{offset_of, size_of};

use hashbrown::HashTable;
use plimsoll_control::backpressure::{Marking, Meter, Terms, Verdict};
use plimsoll_queues::Tally;
use plimsoll_units::Nanos;

/// What is done with the packets of each flow, by its keyed hash, by which it is counted as well.
#[derive(Debug)]
pub(super) struct Treatments {
    /// In places that stay; those of flows whose treatment has ended are `free`.
    treated: Vec<Treatment>,
    free: Vec<u32>,
    /// The places, by the flow's hash.
    by_hash: HashTable<u32>,
}

/// Where the treatment of a flow was found last: its next packet finds it without a search.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct TreatedAt(u32);

impl TreatedAt {
    /// It was not found yet.
    pub(in super::super) const UNKNOWN: Self = Self(u32::MAX);
}

/// What is done with the packets of one flow.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Treatment {
    hash: u64,
    /// Packets and bytes that were counted here since the last [`Treatment::take_count`].
    packets: u32,
    bytes: u32,
    /// Until when its packets are left out of the measurements of its sender's host.
    pub(super) fresh_until: Nanos,
    /// Its marks, which may have stopped.
    pub(super) marking: Option<Marking>,
    /// Its rate, where this host holds it to one.
    pub(super) meter: Option<Meter>,
}

/// Two cache lines, which processors fetch as a pair: whether there is a meter is in the first one, and the meter is the second one.
const _: () = assert!(size_of::<Treatment>() == 128 && offset_of!(Treatment, meter) < 64);

impl Treatment {
    fn none(hash: u64) -> Self {
        Self { hash, packets: 0, bytes: 0, fresh_until: Nanos::ZERO, marking: None, meter: None }
    }

    /// From now on no packet of its flow finds it where it was.
    fn leave(&mut self) {
        self.hash = !self.hash;
    }

    /// Counts packets; `false`: there is no room for them, and they are to be counted elsewhere.
    #[inline]
    pub(super) fn count(&mut self, packets: u16, bytes: u32) -> bool {
        let (Some(packets), Some(bytes)) =
            (self.packets.checked_add(packets.into()), self.bytes.checked_add(bytes))
        else {
            return false;
        };
        (self.packets, self.bytes) = (packets, bytes);
        true
    }

    /// What was counted since the last call.
    pub(super) fn take_count(&mut self) -> Tally {
        let taken = self.counted();
        (self.packets, self.bytes) = (0, 0);
        taken
    }

    fn counted(&self) -> Tally {
        Tally { packets: self.packets.into(), bytes: self.bytes.into() }
    }

    /// Holds the flow to these terms from now on. A meter keeps its first burst, and what its bucket lacks.
    pub(super) fn hold(&mut self, terms: Terms, now: Nanos) {
        let Terms { rate, burst, lifetime } = terms.bounded();
        let until = now + lifetime;
        match &mut self.meter {
            Some(meter) if !meter.has_lapsed(now) => meter.refresh(rate, until, now),
            meter => *meter = Some(Meter::new(rate, burst, until)),
        }
    }

    /// Whether the flow's rate allows these bytes now; if so they are charged.
    #[inline]
    pub(super) fn conforms(&mut self, bytes: u32, now: Nanos) -> bool {
        self.meter.as_mut().is_none_or(|meter| meter.judge(bytes, now) == Verdict::Conforming)
    }
}

impl Treatments {
    /// For this many flows. Takes all memory.
    pub(super) fn new(flows: usize) -> Self {
        Self {
            treated: Vec::with_capacity(flows),
            free: Vec::with_capacity(flows),
            by_hash: HashTable::with_capacity(flows),
        }
    }

    /// Bytes that [`Treatments::new`] takes, about. Nothing is allocated.
    pub(super) const fn bytes_of(flows: usize) -> usize {
        flows * (size_of::<Treatment>() + size_of::<u32>())
            + (flows * 8 / 7).next_power_of_two() * (size_of::<u32>() + 1)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    #[inline]
    fn place(&self, hash: u64) -> Option<u32> {
        self.by_hash.find(hash, |place| self.treated[*place as usize].hash == hash).copied()
    }

    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<&Treatment> {
        self.place(hash).map(|place| &self.treated[place as usize])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, hash: u64) -> Option<&mut Treatment> {
        self.place(hash).map(|place| &mut self.treated[place as usize])
    }

    /// What is done with a flow. It is looked for at the place where it was found last, which is written down.
    #[inline]
    pub(super) fn get_at(&mut self, hash: u64, at: &mut TreatedAt) -> Option<&mut Treatment> {
        let found = self.treated.get(at.0 as usize).is_some_and(|treated| treated.hash == hash);
        if !found {
            at.0 = self.place(hash)?;
        }
        self.treated.get_mut(at.0 as usize)
    }

    /// The treatment of a flow, with which nothing is done yet if it has just begun.
    pub(super) fn of(&mut self, hash: u64) -> &mut Treatment {
        let place = self.place(hash).unwrap_or_else(|| self.begin(hash));
        &mut self.treated[place as usize]
    }

    fn begin(&mut self, hash: u64) -> u32 {
        let place = self.free.pop().unwrap_or(self.treated.len() as u32);
        match self.treated.get_mut(place as usize) {
            Some(free) => *free = Treatment::none(hash),
            None => self.treated.push(Treatment::none(hash)),
        }
        let treated = &self.treated;
        self.by_hash.insert_unique(hash, place, |place| treated[*place as usize].hash);
        place
    }

    /// What was counted and not taken yet, of all flows.
    pub(super) fn counted(&self) -> Tally {
        let all = self.by_hash.iter().map(|place| self.treated[*place as usize].counted());
        all.fold(Tally::default(), |sum, of| Tally {
            packets: sum.packets + of.packets,
            bytes: sum.bytes + of.bytes,
        })
    }

    /// Ends the treatment of a flow. Its count is to be taken before.
    pub(super) fn end(&mut self, hash: u64) {
        let treated = &mut self.treated;
        if let Ok(known) = self.by_hash.find_entry(hash, |place| treated[*place as usize].hash == hash) {
            let (place, _) = known.remove();
            treated[place as usize].leave();
            self.free.push(place);
        }
    }

    /// Forgets flows of which nothing is known: packets that meet none cost no look-up. Their counts are to be taken before.
    pub(super) fn tidy(&mut self, now: Nanos) {
        let Self { treated, free, by_hash } = self;
        by_hash.retain(|place| {
            let one = &mut treated[*place as usize];
            let stays = one.marking.is_some() || one.meter.is_some() || now < one.fresh_until;
            if !stays {
                one.leave();
                free.push(*place);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_does_not_fit_is_left_to_others() {
        let mut one = Treatment::none(1);
        assert!(one.count(3, u32::MAX) && !one.count(1, 1) && one.count(1, 0));
        assert_eq!(one.take_count(), Tally { packets: 4, bytes: u32::MAX.into() });
        assert_eq!((one.take_count(), one.count(1, 1)), (Tally::default(), true));
    }

    #[test]
    fn a_place_that_another_flow_has_now_is_not_taken_for_the_flows_own() {
        let (mut all, mut at) = (Treatments::new(4), TreatedAt::UNKNOWN);
        assert!(all.get_at(1, &mut at).is_none());
        all.of(1).fresh_until = Nanos::new(5);
        assert!(all.get_at(1, &mut at).is_some() && all.get_at(1, &mut at).is_some());
        all.end(1);
        assert!(all.get_at(1, &mut at).is_none() && all.is_empty(), "its place is free");
        all.of(2).fresh_until = Nanos::new(9);
        assert!(all.get_at(1, &mut at).is_none(), "its place is another flow's");
        all.of(1).fresh_until = Nanos::new(5);
        assert_eq!(all.get_at(1, &mut at).map(|one| one.fresh_until), Some(Nanos::new(5)));
        all.tidy(Nanos::new(7));
        assert!(all.get_at(1, &mut at).is_none() && all.get(2).is_some());
        let mut second = TreatedAt::UNKNOWN;
        assert_eq!(all.get_at(2, &mut second).map(|one| one.count(1, 60)), Some(true));
        assert_eq!((all.counted(), all.treated.len()), (Tally { packets: 1, bytes: 60 }, 2));
    }
}
