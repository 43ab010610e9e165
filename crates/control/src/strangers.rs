//! Strangers, the senders that obey no limit: on arrival, the packets of all of them are limited to one sender's part.
//!
//! Why: a limit binds a host that hears it. A host without Plimsoll hears none, nor does a host that makes up the source addresses
//! of its packets; a receiver that steers by the rate that arrives would then limit the senders that obey to nothing.
//! From: PN-S1 and PN-S2 (a flood is the flood's own loss), RFC 2697's committed bucket.
//! Not here: which senders are strangers (`agent`), and the limits (`receiver`).
//! Invariant: all strangers together never send a VM more than the limit of a sender of weight one and a burst; constant time, no
//! allocation.

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

use crate::Limits;

/// One VM's allowance for strangers.
///
/// ```
/// use plimsoll_control::{Limits, Strangers};
/// use plimsoll_units::{BitRate, Nanos, Span};
///
/// let mut strangers = Strangers::default();
/// assert!(strangers.admits(1_500, Nanos::ZERO), "nothing has been decided yet");
/// strangers.allow(Limits { bits: BitRate::mbps(12), packets: None }, Nanos::ZERO);
/// // 12 Mb/s are a frame of 1,500 bytes each millisecond; a burst lasts one.
/// let admitted = (0..100).filter(|_| strangers.admits(1_500, Nanos::ZERO)).count();
/// assert_eq!(admitted, 2);
/// assert!(strangers.admits(1_500, Nanos::ZERO + Span::millis(1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Strangers {
    bits: Option<Pace>,
    /// The pace of packets, each of which counts as one byte.
    packets: Option<Pace>,
}

impl Strangers {
    /// Sets the limits of a sender of weight one.
    pub fn allow(&mut self, limits: Limits, now: Nanos) {
        set(&mut self.bits, Some(limits.bits), now);
        let packets = limits.packets.and_then(|packets| BitRate::new(packets.get().saturating_mul(8)));
        set(&mut self.packets, packets, now);
    }

    /// Whether a stranger's packet of `len` bytes may come in.
    #[inline]
    pub fn admits(&mut self, len: u32, now: Nanos) -> bool {
        let fits = |pace: &Option<Pace>| pace.is_none_or(|pace| pace.earned() <= now + BURST);
        if !fits(&self.bits) || !fits(&self.packets) {
            return false;
        }
        charge(&mut self.bits, len, now);
        charge(&mut self.packets, 1, now);
        true
    }
}

fn set(pace: &mut Option<Pace>, rate: Option<BitRate>, now: Nanos) {
    match (pace.as_mut(), rate) {
        (Some(pace), Some(rate)) => pace.change_rate(rate, now),
        (None, Some(rate)) => *pace = Some(Pace::new(rate)),
        (_, None) => *pace = None,
    }
}

#[inline]
fn charge(pace: &mut Option<Pace>, len: u32, now: Nanos) {
    if let Some(pace) = pace {
        pace.catch_up(now);
        pace.charge(Bytes::new(len.into()));
    }
}

/// The burst, as a time at the limit's rate.
const BURST: Span = Span::millis(1);

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::PacketRate;
    use proptest::prelude::*;

    #[test]
    fn small_packets_are_held_by_their_number() {
        let mut strangers = Strangers::default();
        strangers.allow(Limits { bits: BitRate::gbps(10), packets: PacketRate::new(10_000) }, Nanos::ZERO);
        let admitted = (0..1_000_000_u64).filter(|n| strangers.admits(60, Nanos::new(n * 1_000))).count();
        assert!((10_000..=10_012).contains(&admitted), "{admitted} in a second");
        strangers.allow(Limits { bits: BitRate::gbps(10), packets: None }, Nanos::new(1_000_000_000));
        assert!((0..100).all(|n| strangers.admits(60, Nanos::new(1_000_000_000 + n))));
    }

    proptest! {
        /// Bytes in a run <= rate x (elapsed + burst) + a packet, whatever comes and however rates change in between.
        #[test]
        fn never_exceeds_its_rate_and_a_burst(
            packets in proptest::collection::vec((0_u64..2_000_000, 60_u32..9_000), 1..200),
            rate in 1_000_000_u64..10_000_000_000,
        ) {
            let mut strangers = Strangers::default();
            let limits = Limits { bits: BitRate::new(rate).expect("some"), packets: None };
            strangers.allow(limits, Nanos::ZERO);
            let (mut now, mut bytes) = (Nanos::ZERO, 0_u128);
            for (gap, len) in packets {
                now += Span::ns(gap);
                strangers.allow(limits, now);
                if strangers.admits(len, now) {
                    bytes += u128::from(len);
                }
                let earned = u128::from((now + BURST).as_u64()) * u128::from(rate) / 8_000_000_000;
                prop_assert!(bytes <= earned + 9_001, "{bytes} of {earned}");
            }
        }
    }
}
