//! Limits how many hellos are checked: each check costs an HMAC, and any attacker can send hellos in the name of any host.
//!
//! Why: outer addresses can be forged. A flood of forged hellos in the names of all hosts must cost a small part of a core, and
//! must not keep a host from its session.
//! From: RFC 2697's committed bucket, once for all hosts and twice for each; DTLS's cookie (RFC 9147 §5.1): a sender that
//! repeats a number that it was sent can receive at its address.
//! Not here: the content of hellos (`sealing`), whether an address is a host's at all (the daemon's map).
//! Invariant: at most [`SHARED`] and twice [`OWN`] hellos are checked in a second, and a burst, for any number of hosts; hellos in
//! other hosts' names use nothing of a host's own share, and hellos that prove no address nothing of the share of those that do.

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, Span};

/// Hellos in any names that are checked in a second when those hosts' own shares are used up. A check takes half a microsecond.
const SHARED: u64 = 10_000;
/// The sum of all hosts' own shares, in hellos a second: for first hellos, and again for hellos that prove an address.
const OWN: u64 = 10_000;
/// A host's own share at most: an honest host sends no more.
const MOST_OWN: u64 = 100;
const BURST: Span = Span::millis(1);
/// The burst of an own share: three hellos, in a fleet of up to a hundred hosts.
const OWN_BURST: Span = Span::millis(20);

/// Limits the time that this host spends on hellos.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelloLimit {
    shared: Pace,
    /// The rate of each host's own share, for each kind of hello.
    own: BitRate,
}

/// A host's own share of hellos.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnHellos {
    first: Pace,
    proving: Pace,
}

impl Default for HelloLimit {
    fn default() -> Self {
        Self { shared: Pace::new(each_second(SHARED)), own: each_second(MOST_OWN) }
    }
}

impl HelloLimit {
    /// Sets the number of hosts, among which own shares are divided.
    pub fn set_hosts(&mut self, hosts: usize) {
        self.own = each_second((OWN / (hosts as u64).max(1)).clamp(1, MOST_OWN));
    }

    /// A host's own share, unused.
    pub fn own(&self) -> OwnHellos {
        OwnHellos { first: Pace::new(self.own), proving: Pace::new(self.own) }
    }

    /// Whether a hello in the name of the host with the share `own` may be checked. `proves` says that it repeats a number that was
    /// sent to that host only, so that no attacker knows it that cannot read packets on their way there.
    pub fn admits(&mut self, own: &mut OwnHellos, proves: bool, now: Nanos) -> bool {
        let own = if proves { &mut own.proving } else { &mut own.first };
        if own.rate() != self.own {
            own.change_rate(self.own, now);
        }
        admits(own, OWN_BURST, now) || admits(&mut self.shared, BURST, now)
    }
}

pub(crate) fn each_second(events: u64) -> BitRate {
    BitRate::new(events * 8).expect("above zero")
}

/// Whether one more fits a pace of events, each of which is a byte.
pub(crate) fn admits(pace: &mut Pace, burst: Span, now: Nanos) -> bool {
    let fits = pace.earned() <= now + burst;
    if fits {
        pace.catch_up(now);
        pace.charge(Bytes::new(1));
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one hello each millisecond in each host's name, every other one proving: those that are checked in ten seconds.
    fn looked_at(hosts: usize) -> usize {
        let mut limit = HelloLimit::default();
        limit.set_hosts(hosts);
        let mut owns = vec![limit.own(); hosts];
        let mut admitted = |own: &mut OwnHellos, ms: u64| {
            limit.admits(own, ms.is_multiple_of(2), Nanos::ZERO + Span::millis(ms))
        };
        (0..10_000).map(|ms| owns.iter_mut().filter_map(|own| admitted(own, ms).then_some(())).count()).sum()
    }

    #[test]
    fn all_hosts_together_cost_no_more_than_a_few() {
        assert_eq!(looked_at(10), 100_000, "10,000 a second are all looked at");
        for hosts in [100, 300] {
            // Besides what was earned: a burst of 11 that are shared, and of three of each kind of each host's own.
            let looked = looked_at(hosts);
            assert!((250_000..=300_011 + 6 * hosts).contains(&looked), "{looked} of {hosts} hosts");
        }
    }

    #[test]
    fn a_hosts_own_share_is_there_whatever_comes_in_other_names() {
        for hosts in [2, 100, 4_096] {
            let mut limit = HelloLimit::default();
            limit.set_hosts(hosts);
            let (mut flooded, mut own) = (limit.own(), limit.own());
            for (second, proves) in (0..8).zip([false, true].into_iter().cycle()) {
                let now = Nanos::ZERO + Span::secs(second);
                (0..100_000).for_each(|_| _ = limit.admits(&mut flooded, false, now));
                assert!(limit.admits(&mut own, proves, now), "{hosts} hosts, second {second}");
                assert!(
                    limit.admits(&mut flooded, true, now),
                    "what proves its address has a share of its own"
                );
            }
        }
    }
}
