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
pub(super) struct Treatments(HashTable<Treatment>);

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
        Self(HashTable::with_capacity(flows))
    }

    /// Bytes that [`Treatments::new`] takes, about. Nothing is allocated.
    pub(super) const fn bytes_of(flows: usize) -> usize {
        (flows * 8 / 7).next_power_of_two() * (size_of::<Treatment>() + 1)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(super) fn get(&self, hash: u64) -> Option<&Treatment> {
        self.0.find(hash, |known| known.hash == hash)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, hash: u64) -> Option<&mut Treatment> {
        self.0.find_mut(hash, |known| known.hash == hash)
    }

    /// The treatment of a flow, with which nothing is done yet if it has just begun.
    pub(super) fn of(&mut self, hash: u64) -> &mut Treatment {
        let none = || Treatment::none(hash);
        self.0.entry(hash, |known| known.hash == hash, |known| known.hash).or_insert_with(none).into_mut()
    }

    /// What was counted and not taken yet, of all flows.
    pub(super) fn counted(&self) -> Tally {
        let all = self.0.iter().map(Treatment::counted);
        all.fold(Tally::default(), |sum, of| Tally {
            packets: sum.packets + of.packets,
            bytes: sum.bytes + of.bytes,
        })
    }

    /// Ends the treatment of a flow. Its count is to be taken before.
    pub(super) fn end(&mut self, hash: u64) {
        if let Ok(known) = self.0.find_entry(hash, |known| known.hash == hash) {
            known.remove();
        }
    }

    /// Forgets flows of which nothing is known: packets that meet none cost no look-up. Their counts are to be taken before.
    pub(super) fn tidy(&mut self, now: Nanos) {
        self.0.retain(|one| one.marking.is_some() || one.meter.is_some() || now < one.fresh_until);
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
}
