//! The limits that a host was sent, and whether they must be sent again.
//!
//! Why: a limit that never binds stays as it is for seconds, and a message each epoch costs both hosts more than the decision.
//! From: soft state as in RSVP (RFC 2205, RFC 2961): a changed limit is sent at once, and again in case it was lost; a limit that
//! holds is refreshed well before it lapses.
//! Not here: messages (`feedback`), and when a limit lapses (`agent`).
//! Invariant: if [`News::is`] is called each epoch, a limit that holds is sent in the first epoch that ends a fifth of the
//! lapse, or [`LONGEST_SILENCE`], after it was last sent, and a changed one also in each of two further epochs; the limit that
//! was sent last is the one that holds.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;
use plimsoll_units::{Nanos, Span};

use crate::Limits;

/// The limits that one host was sent, by receiver.
///
/// ```
/// use plimsoll_control::{Limits, News};
/// use plimsoll_units::{BitRate, Nanos, Span};
///
/// let (lapse, shop) = (Span::millis(500), 7);
/// let limits = |gbps| Limits { bits: BitRate::gbps(gbps), packets: None };
/// let at = |ms| Nanos::ZERO + Span::millis(ms);
/// let mut news = News::default();
/// // It is said three times, and not again before a fifth of the lapse is over.
/// assert!((0..3).all(|epoch| news.is(shop, limits(2), lapse, at(epoch))));
/// assert!(!news.is(shop, limits(2), lapse, at(3)));
/// assert!(news.is(shop, limits(1), lapse, at(4)), "it has changed");
/// ```
#[derive(Clone, Debug)]
pub struct News<K> {
    said: HashMap<K, Said, FixedState>,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    limits: Limits,
    at: Nanos,
    /// Further epochs in which it is sent, at any time.
    again: u32,
}

/// How often what changed is repeated: a lost message in a hundred leaves one change in a million to the refresh.
const AGAIN: u32 = 2;
/// Refreshes in a lapse: this number of messages in a row must be lost until a limit lapses that still holds. RSVP's defaults allow
/// the loss of as many (RFC 2205, section 3.7).
const REFRESHES: u64 = 5;
/// The longest time between two messages: a sender that has just started knows no limits, and one with a shorter `lapse` drops
/// them sooner.
pub const LONGEST_SILENCE: Span = Span::millis(100);

/// The time after which a limit that holds is sent again.
#[must_use]
pub fn refresh(lapse: Span) -> Span {
    Span::ns(lapse.as_u64() / REFRESHES).min(LONGEST_SILENCE)
}

impl<K> Default for News<K> {
    fn default() -> Self {
        Self { said: HashMap::default() }
    }
}

impl<K: Copy + Eq + Hash> News<K> {
    /// Whether these limits are to be sent now; they then count as sent. A second call at the same moment gives the same answer.
    pub fn is(&mut self, whose: K, limits: Limits, lapse: Span, now: Nanos) -> bool {
        let every = refresh(lapse);
        let before = self.said.get(&whose).filter(|said| said.limits == limits);
        let again = match before {
            None => AGAIN,
            Some(said) if said.at == now => return true,
            Some(said) if said.again == 0 && now.since(said.at) < every => return false,
            Some(said) => said.again.saturating_sub(1),
        };
        self.said.insert(whose, Said { limits, at: now, again });
        true
    }

    /// Forgets all limits that were sent: their message did not leave, or its receiver may have lost them.
    pub fn forget(&mut self) {
        self.said.clear();
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_units::BitRate;

    use super::*;

    const LAPSE: Span = Span::millis(100);

    fn mbps(rate: u64) -> Limits {
        Limits { bits: BitRate::mbps(rate), packets: None }
    }

    fn at(ms: u64) -> Nanos {
        Nanos::ZERO + Span::millis(ms)
    }

    /// An epoch of a millisecond: what holds is said in every twentieth.
    #[test]
    fn what_holds_is_refreshed_five_times_in_a_lapse() {
        let mut news = News::default();
        let said: Vec<u64> = (0..80).filter(|&ms| news.is(1, mbps(7), LAPSE, at(ms))).collect();
        assert_eq!(said, [0, 1, 2, 22, 42, 62]);
        // With epochs as long as that it is said in each.
        assert!((5..10).all(|epoch| news.is(1, mbps(7), LAPSE, at(20 * epoch))));
    }

    #[test]
    fn what_changes_is_said_each_time_and_of_each_receiver_by_itself() {
        let mut news = News::default();
        assert!((0..20).all(|ms| news.is(1, mbps(7 + ms % 2), LAPSE, at(ms))));
        assert!(news.is(2, mbps(7), LAPSE, at(20)), "another one's");
        let mut news = News::default();
        // Two senders on one host: the same in the same epoch.
        let said: Vec<u64> =
            (0..8).flat_map(|n| [n, n]).filter(|&ms| news.is(1, mbps(7), LAPSE, at(ms))).collect();
        assert_eq!(said, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn what_may_not_have_arrived_is_said_again() {
        let mut news = News::default();
        assert_eq!((0..5).filter(|&ms| news.is(1, mbps(7), LAPSE, at(ms))).count(), 3);
        news.forget();
        assert!(news.is(1, mbps(7), LAPSE, at(5)));
    }
}
