//! Balances: what members that share a bottleneck owe each other.
//!
//! Why: within a lease an engine gives what one member leaves to members of its own thread, and demands are known too late. So
//! members that share a bottleneck get more or less than their shares; the next leases make up for it.
//! From: the lag of fair queueing, between engines in place of packets.
//! Not here: the rates (`coordinator`).
//! Invariant: the balances of a bottleneck's members add up to zero, but for rounding, and none exceeds [`MOST_LEASES`] leases, or
//! owes more than [`MOST_OWED`].

use super::rates::Factor;

/// Sums over the members that a bottleneck holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    /// The epoch whose sums these are.
    epoch: u64,
    /// Bytes that left.
    served: u64,
    /// Bits per second.
    rate: u64,
    /// Balances.
    owed: i64,
    /// Bytes that left for each bit per second, once that is computed.
    due: Option<Factor>,
    /// The same of what the balances do not add up to zero.
    uneven: Option<Factor>,
}

/// How many leases' bytes a balance may reach, and how many one may owe: a member on a thread with room for others can get several times
/// its share.
const MOST_LEASES: i64 = 4;
const MOST_OWED: i64 = 8 * MOST_LEASES;

impl Sums {
    /// Adds a member in an epoch; the first one begins the sums anew.
    pub(super) fn add(&mut self, epoch: u64, served: u64, rate: u64) {
        if self.epoch != epoch {
            *self = Self { epoch, ..Self::default() };
        }
        self.served = self.served.saturating_add(served);
        self.rate += rate;
    }

    /// A member's part, by rates, of what left of all members of the bottleneck.
    pub(super) fn due(&mut self, rate: u64) -> u64 {
        let (served, all) = (self.served, self.rate);
        self.due.get_or_insert_with(|| Factor::new(served, all)).of(rate)
    }

    /// A member's balance after an epoch in which `served` bytes of it left, and `due` should have. `lease` is what its rate is
    /// worth in a lease.
    pub(super) fn balance(&mut self, before: i64, served: u64, due: u64, lease: u64) -> i64 {
        let [owed, most] = [MOST_OWED, MOST_LEASES].map(|leases| signed(lease).saturating_mul(leases));
        let balance = before.saturating_add(signed(due)).saturating_sub(signed(served)).clamp(-owed, most);
        self.owed = self.owed.saturating_add(balance);
        balance
    }

    /// Takes a member's part of what the balances do not add up to zero.
    pub(super) fn even_out(&mut self, balance: i64, rate: u64) -> i64 {
        let (owed, all) = (self.owed.unsigned_abs(), self.rate);
        let part = signed(self.uneven.get_or_insert_with(|| Factor::new(owed, all)).of(rate));
        balance - part * self.owed.signum()
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
