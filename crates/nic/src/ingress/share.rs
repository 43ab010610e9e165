//! The CPU time of each tenant, and the tenant that has had least of its share.
//!
//! Why: a packet's cost depends on its kind, so that equal packets or bytes are not equal time (PicNIC §5.2).
//! From: fair queueing by finish tags (WFQ; Demers et al., SIGCOMM 1989) over CPU time: a tenant's tag grows by what it is charged
//! over its weight. Next is the tenant whose tag will be least after its next charge, which is expected to be as its last: so a short
//! piece of work does not wait for a long one of each other tenant. A tenant that wakes is raised to the tag of the one served last:
//! its silence earns it nothing, and what it had while others were silent is not held against it.
//! Not here: queues.
//! Invariant: two tenants that wait all the time get CPU in the ratio of their weights, but for one charge each, however long a
//! charge is; integers, so that the order is the same on every machine.

use plimsoll_queues::RankQueue;
use plimsoll_units::Span;

/// The order of tenants by CPU time.
#[derive(Clone, Debug)]
pub(super) struct CpuShare {
    /// By tenant: its tag, CPU time over weight.
    used: Vec<u64>,
    /// By tenant: its last charge over its weight, which the next one is expected to be.
    last: Vec<u64>,
    weights: Vec<u32>,
    /// Tenants with packets waiting, by what their tags will be after their next charge.
    ready: RankQueue,
    /// The greatest `used` that a tenant had when it was charged.
    level: u64,
}

impl CpuShare {
    pub(super) fn new(weights: &[u32]) -> Self {
        Self {
            used: vec![0; weights.len()],
            last: vec![0; weights.len()],
            weights: weights.iter().map(|&weight| weight.max(1)).collect(),
            ready: RankQueue::new(weights.len()),
            level: 0,
        }
    }

    pub(super) fn least(&self) -> Option<u32> {
        self.ready.first().map(|(_, tenant)| tenant)
    }

    /// A tenant has packets waiting again. Its silence has earned it nothing.
    pub(super) fn wake(&mut self, tenant: u32) {
        let used = &mut self.used[tenant as usize];
        *used = (*used).max(self.level);
        self.ready.set(tenant, *used + self.last[tenant as usize]);
    }

    /// Whether a tenant is one of those that may be next.
    #[inline]
    pub(super) fn is_awake(&self, tenant: u32) -> bool {
        self.ready.rank(tenant).is_some()
    }

    pub(super) fn sleep(&mut self, tenant: u32) {
        self.ready.remove(tenant);
    }

    pub(super) fn charge(&mut self, tenant: u32, cost: Span) {
        let cost = fine(cost.min(LONGEST)) / u64::from(self.weights[tenant as usize]);
        let (used, last) = (&mut self.used[tenant as usize], &mut self.last[tenant as usize]);
        self.level = self.level.max(*used);
        *last = cost.max(1);
        *used += *last;
        if self.ready.rank(tenant).is_some() {
            self.ready.set(tenant, *used + *last);
        }
        if self.level > HIGHEST {
            self.lower();
        }
    }

    pub(super) fn set_weights(&mut self, weights: &[u32]) {
        for (weight, &new) in self.weights.iter_mut().zip(weights) {
            *weight = new.max(1);
        }
        let further = weights.get(self.weights.len()..).unwrap_or_default();
        self.weights.extend(further.iter().map(|&weight| weight.max(1)));
        self.used.resize(self.weights.len(), 0);
        self.last.resize(self.weights.len(), 0);
        self.ready.grow(self.weights.len());
    }

    /// Takes as much from all tags. Those that become equal are of tenants that have been silent for long.
    #[cold]
    fn lower(&mut self) {
        let by = self.level - HIGHEST / 2;
        self.level -= by;
        for (tenant, used) in (0..).zip(&mut self.used) {
            *used = used.saturating_sub(by);
            if self.ready.rank(tenant).is_some() {
                self.ready.set(tenant, *used + self.last[tenant as usize]);
            }
        }
    }
}

/// CPU time in parts of a nanosecond.
fn fine(cost: Span) -> u64 {
    cost.as_u64() << FINE
}

/// Parts of a nanosecond, as a power of two, so that weights up to a million divide a packet's cost into something.
const FINE: u32 = 14;
/// Tags are lowered when one is beyond this: after three days of a core for a tenant of weight 1.
const HIGHEST: u64 = 1 << 62;
/// A charge beyond this counts as this. No packet and no call of a program takes so long, so the machine had stopped, and the tenant
/// is not to wait until all others have had as much.
const LONGEST: Span = Span::millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves the least for `rounds` charges; each tenant's charge is `costs`. Returns what each has had.
    fn serve(share: &mut CpuShare, costs: &[Span], rounds: usize) -> Vec<u64> {
        let mut had = vec![0; costs.len()];
        for _ in 0..rounds {
            let next = share.least().expect("all wait") as usize;
            had[next] += costs[next].as_u64();
            share.charge(next as u32, costs[next]);
        }
        had
    }

    /// Sixty-three whose charges are longer than any time in which a past could be forgotten, and one with short ones and half of the core.
    #[test]
    fn long_charges_of_many_leave_a_tenant_its_share() {
        let weights: Vec<u32> = core::iter::once(63).chain([1; 63]).collect();
        let costs: Vec<Span> = core::iter::once(Span::micros(2)).chain([Span::millis(1); 63]).collect();
        let mut share = CpuShare::new(&weights);
        (0..64).for_each(|tenant| share.wake(tenant));
        let had = serve(&mut share, &costs, 200_000);
        let others: u64 = had[1..].iter().sum();
        let part = had[0] as f64 / (had[0] + others) as f64;
        assert!((0.45..0.55).contains(&part), "{part}");
    }

    #[test]
    fn tags_that_are_lowered_keep_their_order() {
        let mut share = CpuShare::new(&[1, 1, 1]);
        share.level = HIGHEST;
        share.used = vec![HIGHEST + 5, HIGHEST + 3, 7];
        [0, 1].iter().for_each(|&tenant| share.ready.set(tenant, share.used[tenant as usize]));
        share.charge(0, Span::ns(1));
        assert!(share.level < HIGHEST && share.used[0] > share.used[1] && share.used[1] > share.used[2]);
        assert_eq!(share.least(), Some(1));
        share.wake(2);
        assert!(share.used[2] > HIGHEST / 4, "what was silent for long is not before all others");
    }
}
