//! The CPU time of each tenant in the recent past, and the tenant that has had least of its share.
//!
//! Why: a packet's cost depends on its kind, so that equal packets or bytes are not equal time (PicNIC §5.2).
//! From: an exponentially weighted average of CPU time for each tenant, decayed forward: instead of every average falling
//! with time, what is charged weighs more the later it comes. The order is the same, and a charge moves one tenant only
//! (Cormode et al., "Forward decay", ICDE 2009). A tenant that wakes is raised to the level of the one served last, less a
//! credit, as a start tag in SFQ: the average alone would let a tenant that was silent hold the CPU for a millisecond.
//! Not here: queues.
//! Invariant: two tenants that wait all the time get CPU in the ratio of their weights, but for the credit and one charge
//! each in a half-life (what fades is forgiven); integers, so that the order is the same on every machine.

use plimsoll_queues::RankQueue;
use plimsoll_units::{Nanos, Span};

/// The order of tenants by CPU time.
#[derive(Clone, Debug)]
pub(super) struct CpuShare {
    /// By tenant: CPU time over weight, inflated.
    used: Vec<u64>,
    weights: Vec<u32>,
    /// Tenants with packets waiting, by `used`.
    ready: RankQueue,
    /// The greatest `used` that a tenant had when it was charged.
    level: u64,
    /// Half-lives since the start that the ranks have been deflated by.
    era: u64,
    /// By how much a charge now is inflated: whole doublings in the era, and the rest in 65,536ths.
    inflation: u64,
}

impl CpuShare {
    pub(super) fn new(weights: &[u32]) -> Self {
        Self {
            used: vec![0; weights.len()],
            weights: weights.iter().map(|&weight| weight.max(1)).collect(),
            ready: RankQueue::new(weights.len()),
            level: 0,
            era: 0,
            inflation: ONE,
        }
    }

    pub(super) fn least(&self) -> Option<u32> {
        self.ready.first().map(|(_, tenant)| tenant)
    }

    /// A tenant has packets waiting again. Its silence has earned it the credit and no more.
    pub(super) fn wake(&mut self, tenant: u32) {
        let credit = inflated(CREDIT, self.inflation) / u64::from(self.weights[tenant as usize]);
        let used = &mut self.used[tenant as usize];
        *used = (*used).max(self.level.saturating_sub(credit));
        self.ready.set(tenant, *used);
    }

    /// Whether a tenant is one of those that may be next.
    #[inline]
    pub(super) fn is_awake(&self, tenant: u32) -> bool {
        self.ready.rank(tenant).is_some()
    }

    pub(super) fn sleep(&mut self, tenant: u32) {
        self.ready.remove(tenant);
    }

    pub(super) fn charge(&mut self, tenant: u32, cost: Span, now: Nanos) {
        self.advance(now);
        let cost = inflated(cost.min(LONGEST), self.inflation);
        let used = &mut self.used[tenant as usize];
        self.level = self.level.max(*used);
        *used = used.saturating_add((cost / u64::from(self.weights[tenant as usize])).max(1));
        if self.ready.rank(tenant).is_some() {
            self.ready.set(tenant, *used);
        }
    }

    pub(super) fn set_weights(&mut self, weights: &[u32]) {
        for (weight, &new) in self.weights.iter_mut().zip(weights) {
            *weight = new.max(1);
        }
        let further = weights.get(self.weights.len()..).unwrap_or_default();
        self.weights.extend(further.iter().map(|&weight| weight.max(1)));
        self.used.resize(self.weights.len(), 0);
        self.ready.grow(self.weights.len());
    }

    /// Raises the weight of new charges by as much as old ones have faded.
    fn advance(&mut self, now: Nanos) {
        let lives = now.as_u64() >> HALF_LIFE_BITS;
        let doublings = lives.saturating_sub(self.era);
        if doublings >= ERA {
            self.deflate(doublings);
            self.era = self.era.max(lives);
        }
        let doublings = lives.saturating_sub(self.era);
        let part = (now.as_u64() & (HALF_LIFE - 1)) >> (HALF_LIFE_BITS - 16);
        self.inflation = (ONE + part) << doublings;
    }

    /// Divides all ranks, once in an era: they keep their order, or become equal.
    fn deflate(&mut self, doublings: u64) {
        let deflated =
            |rank: u64| rank.checked_shr(u32::try_from(doublings).unwrap_or(u32::MAX)).unwrap_or(0);
        self.level = deflated(self.level);
        for (tenant, used) in (0..).zip(&mut self.used) {
            *used = deflated(*used);
            if self.ready.rank(tenant).is_some() {
                self.ready.set(tenant, *used);
            }
        }
    }
}

/// Nanoseconds of CPU, in parts fine enough for any weight, times the inflation: at most 2^(30 + 8 + 14).
fn inflated(cost: Span, inflation: u64) -> u64 {
    ((cost.as_u64() * inflation) >> 16) << FINE
}

/// Time in which a charge fades to a half: about a millisecond, some thousands of packets.
const HALF_LIFE_BITS: u32 = 20;
const HALF_LIFE: u64 = 1 << HALF_LIFE_BITS;
/// Half-lives between two deflations.
const ERA: u64 = 8;
/// No inflation, in 65,536ths.
const ONE: u64 = 1 << 16;
/// Parts of a nanosecond, as a power of two, so that weights up to a million divide a packet's cost into something.
const FINE: u32 = 14;
/// The most that silence earns: enough for a batch of packets, not for a millisecond.
const CREDIT: Span = Span::micros(10);
/// A charge beyond this (a suspended machine) counts as this.
const LONGEST: Span = Span::secs(1);
