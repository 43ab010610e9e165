//! Delays from doorbell to port, by class.
//!
//! Why: an operator asks which class waits; a histogram for each of a million classes would fill the memory.
//! From: `hdrhistogram`, two digits, some 20 kB each.
//! Not here: tenants' delays, which each has from the start (`parts`).
//! Invariant: at most [`MOST`] histograms, and one for the classes that send when these are used up.

use hdrhistogram::Histogram;
use plimsoll_units::{NS_PER_SEC, Span};

/// Classes that have a histogram of their own: the first ones to send. 20 MB in all.
const MOST: usize = 1_024;

/// Each class's histogram, once it has sent.
#[derive(Debug)]
pub(crate) struct ClassDelays {
    /// For each node, one more than its place in `kept`; zero before its first packet.
    places: Vec<u32>,
    /// The histogram of all classes without one of their own, then the others.
    kept: Vec<Histogram<u64>>,
    /// The latest packets, of one class and with one delay: they are in no histogram yet.
    latest: Run,
}

/// Packets of a class that took equally long, as those do that come and leave in one turn.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    class: usize,
    took: Span,
    packets: u64,
}

impl ClassDelays {
    /// No delays yet, for `nodes` nodes.
    pub(crate) fn new(nodes: usize) -> Self {
        Self { places: vec![0; nodes], kept: vec![new_delays()], latest: Run::default() }
    }

    /// Notes that `packets` packets of a class took `took`.
    #[inline]
    pub(crate) fn record(&mut self, class: usize, took: Span, packets: u64) {
        if (class, took) != (self.latest.class, self.latest.took) {
            self.settle();
            self.latest = Run { class, took, packets: 0 };
        }
        self.latest.packets += packets;
    }

    /// Puts the latest packets into their histogram.
    pub(crate) fn settle(&mut self) {
        let Run { class, took, packets } = core::mem::take(&mut self.latest);
        if packets > 0 {
            self.place(class).saturating_record_n(took.as_u64(), packets);
        }
    }

    /// Adds another histogram to a class's.
    pub(crate) fn add(&mut self, class: usize, measured: &Histogram<u64>) {
        if !measured.is_empty() {
            // All histograms have the same bounds, so no value is out of range.
            let _ = self.place(class).add(measured);
        }
    }

    /// A class's own histogram, if it has one, after [`ClassDelays::settle`]. The root has the histogram of all classes without one, so that sums are
    /// whole.
    pub(crate) fn get(&self, class: usize) -> Option<&Histogram<u64>> {
        let place = self.places.get(class).copied().unwrap_or(0);
        match (class, place) {
            (0, 0) => Some(&self.kept[0]).filter(|rest| !rest.is_empty()),
            (_, 0) => None,
            (_, place) => Some(&self.kept[place as usize]),
        }
    }

    /// Histograms that there are.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.kept.len()
    }

    fn place(&mut self, class: usize) -> &mut Histogram<u64> {
        let place = self.places[class] as usize;
        if place == 0 && class > 0 && self.kept.len() <= MOST {
            self.places[class] = self.kept.len() as u32;
            self.kept.push(new_delays());
            return self.kept.last_mut().expect("just put there");
        }
        &mut self.kept[place]
    }
}

/// Delays from a microsecond to a minute, to two digits.
pub(crate) fn new_delays() -> Histogram<u64> {
    Histogram::new_with_bounds(1_000, 60 * NS_PER_SEC, 2).expect("constant bounds in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 65,536 histograms were 1.3 GB, and as much again in each snapshot.
    #[test]
    fn classes_beyond_the_bound_share_the_roots_and_nothing_is_lost() {
        let mut delays = ClassDelays::new(65_537);
        assert_eq!((delays.count(), delays.get(0).is_none()), (1, true));
        for class in 1..=65_536 {
            delays.record(class, Span::micros(10), 1);
        }
        delays.settle();
        assert_eq!(delays.count(), MOST + 1);
        let own: u64 = (1..=65_536).filter_map(|class| delays.get(class)).map(Histogram::len).sum();
        assert_eq!((own, delays.get(0).map(Histogram::len)), (1_024, Some(65_536 - 1_024)));
    }

    #[test]
    fn packets_with_one_delay_are_counted_together_and_each_class_has_its_own() {
        let mut delays = ClassDelays::new(3);
        for (class, micros, packets) in [(1, 10, 2), (1, 10, 3), (2, 10, 1), (1, 10, 1), (1, 20, 4)] {
            delays.record(class, Span::micros(micros), packets);
        }
        delays.settle();
        delays.settle();
        let within = |class, micros: u64| {
            delays.get(class).map(|measured| measured.count_between(0, micros * 1_000 * 101 / 100))
        };
        assert_eq!([within(1, 10), within(1, 20), within(2, 10)], [Some(6), Some(10), Some(1)]);
    }
}
