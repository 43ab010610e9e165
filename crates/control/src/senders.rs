//! The senders to a VM: a list of the heavy ones, and an estimate of the number of all.
//!
//! Why: a limit reaches only the senders that are told, and a list of all senders would cost more than the traffic.
//! From: PicNIC §5.5 (sampling finds the heavy sources) by Space-Saving (Metwally et al., ICDT 2005), and §5.3.2's
//! cardinality by HyperLogLog.
//! Not here: what counts as a sender: the caller decides, so that made-up sources count as one.
//! Invariant: a sender of more than one of [`Senders::CAPACITY`] sampled packets is known by name; constant memory.

use plimsoll_queues::HyperLogLog;

/// A sender, as the caller names it.
pub type SenderId = u64;

/// The senders to one VM in the present window.
#[derive(Clone, Debug)]
pub struct Senders {
    heavy: Vec<Heavy>,
    seen: HyperLogLog,
    /// Packets until the next one is sampled.
    skip: u32,
    /// State of the generator of gaps between samples, so that no sender can send in step with them.
    random: u64,
}

/// A heavy sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heavy {
    /// The sender.
    pub sender: SenderId,
    /// Its weight, where an ordinary sender's is a thousand.
    pub weight: u32,
    /// Sampled packets, an upper bound.
    pub packets: u64,
}

impl Senders {
    /// Most senders in the list.
    pub const CAPACITY: usize = 64;

    /// Makes an empty table. Gaps between sampled packets follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let seen = HyperLogLog::with_registers(256);
        Self { heavy: Vec::with_capacity(Self::CAPACITY), seen, skip: 0, random: seed }
    }

    /// Counts a packet. Senders must not choose their ids, or many could count as few.
    #[inline]
    pub fn note(&mut self, sender: SenderId, weight: u32) {
        self.seen.insert(spread(sender));
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        // Knuth's linear congruential generator: its top four bits are one packet in eight and a half.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.skip = (self.random >> 60) as u32;
        self.sample(sender, weight);
    }

    fn sample(&mut self, sender: SenderId, weight: u32) {
        if let Some(known) = self.heavy.iter_mut().find(|heavy| heavy.sender == sender) {
            (known.packets, known.weight) = (known.packets + 1, weight);
        } else if self.heavy.len() < Self::CAPACITY {
            self.heavy.push(Heavy { sender, weight, packets: 1 });
        } else if let Some(least) = self.heavy.iter_mut().min_by_key(|heavy| heavy.packets) {
            *least = Heavy { sender, weight, packets: least.packets + 1 };
        }
    }

    /// The heavy senders.
    #[must_use]
    pub fn heavy(&self) -> &[Heavy] {
        &self.heavy
    }

    /// The weights of all senders together. Senders that are not in the list count with the mean weight of those that are.
    #[must_use]
    pub fn weights(&self) -> u64 {
        let known: u64 = self.heavy.iter().map(|heavy| u64::from(heavy.weight)).sum();
        let count = self.heavy.len() as u64;
        // Counting all of them takes longer than all else of an epoch.
        if self.heavy.len() < Self::CAPACITY { known } else { known / count * self.seen.count().max(count) }
    }

    /// The least weight in the list; `None` if it is empty.
    #[must_use]
    pub fn least(&self) -> Option<u32> {
        self.heavy.iter().map(|heavy| heavy.weight).min()
    }

    /// Bytes of the counter of all senders.
    pub(crate) fn counter_bytes(&self) -> usize {
        self.seen.bytes()
    }

    /// Begins another window.
    pub fn clear(&mut self) {
        self.heavy.clear();
        self.seen.clear();
    }
}

/// A hash of all 64 bits: splitmix64's last steps.
fn spread(id: SenderId) -> u64 {
    let z = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_senders_are_all_known_with_their_weights() {
        let mut senders = Senders::new(7);
        for n in 0..3_000 {
            senders.note(n % 3, 1_000 + (n % 3) as u32);
        }
        assert_eq!(senders.heavy().len(), 3);
        assert_eq!((senders.weights(), senders.least()), (3_003, Some(1_000)));
        senders.clear();
        assert_eq!((senders.heavy().len(), senders.weights()), (0, 0));
    }

    #[test]
    fn heavy_ones_are_found_among_very_many() {
        let mut senders = Senders::new(7);
        for n in 0..400_000_u64 {
            // Two of them send a fortieth each.
            let sender = match n % 40 {
                0 => 1,
                20 => 2,
                _ => 1_000 + spread(n) % 10_000,
            };
            senders.note(sender, 1_000);
        }
        let known = |id| senders.heavy().iter().any(|heavy| heavy.sender == id);
        assert!(known(1) && known(2));
        assert!((7_000_000..13_000_000).contains(&senders.weights()), "{}", senders.weights());
    }
}
