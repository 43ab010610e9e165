//! Limiter of a coprocessor: divides its service among tenants by weight, and never lets it idle while a request waits.
//!
//! Why: a unit serves requests in the order in which they come, and takes longer for longer ones; without a limiter
//! the tenant with more cores or longer requests gets most of it, and all others wait behind its requests.
//! From: FairNIC §3.4 and §4.4: rounds in the manner of distributed weighted round robin (Li, Baumberger and Hahn,
//! PPoPP 2009), without a central scheduler. The rounds and balances are stated below as they are implemented here.
//! Not here: the unit itself (`sim` has a model), which core runs what, time.
//! Invariant: a tenant that waits has been granted at most one quantum, and one request, more than its share of what
//! was granted while it was active; a tenant earns nothing while it is idle.
//!
//! Each tenant has a weight `w`, a round and a balance. A request is issued if the balance is above zero, and its
//! cost is then subtracted, so that the balance may fall below zero: that debt is kept. A tenant whose balance is
//! used up goes to the next round, and gets `w` times the quantum, once no active tenant is in an earlier round, or
//! has anything left of the present one. A tenant is active while it has a request that waits or is being served. One
//! that becomes active again joins the latest round, where it is granted that round's quantum if it was not yet; what
//! it had saved before is lost.
//!
//! It would be enough for shares in the long run that no active tenant is in an earlier round. But then a tenant could
//! be two quanta ahead of one whose long requests keep it in its round.
//!
//! Two rules beyond that keep waits short. A tenant has no more than one quantum in the unit at a time, or one
//! request, so that a tenant that had the unit to itself holds a newcomer up by one quantum at most. And a request is
//! no longer than a stated number of quanta; [`Limiter::pieces`] splits longer ones.

use std::collections::VecDeque;

/// What a request takes of a unit: its bytes where time grows with the input, or one for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(pub u32);

/// The settings of a [`Limiter`].
#[derive(Clone, Debug)]
pub struct LimiterConfig {
    /// What a tenant of weight one is granted in a round. To keep a unit busy alone, a tenant needs two requests in one
    /// quantum: one that is served and one that waits.
    pub quantum: Cost,
    /// The longest request, in quanta of weight one.
    pub longest: u32,
    /// What a core takes of its tenant's balance at a time and keeps for itself; zero to take each request's cost
    /// alone.
    pub slice: Cost,
    /// The tenants' weights, of which none is zero.
    pub weights: Vec<u32>,
    /// The number of cores.
    pub cores: u32,
}

/// A request that may go to the unit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The tenant.
    pub tenant: u32,
    /// The core that waits for the answer.
    pub core: u32,
    /// What it takes of the unit.
    pub cost: Cost,
}

/// A request that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is longer than the limiter allows: split it by [`Limiter::pieces`].
    TooLong,
    /// The core already waits for the unit.
    CoreWaits,
}

/// The limiter of one unit.
///
/// ```
/// use plimsoll_smartnic::{Cost, Limiter, LimiterConfig};
///
/// let quantum = Cost(1_000);
/// let config = LimiterConfig { quantum, longest: 4, slice: Cost(0), weights: vec![1, 1], cores: 2 };
/// let mut limiter = Limiter::new(&config);
/// limiter.handle_request(0, 0, Cost(600)).expect("short enough");
/// let issue = limiter.poll_issue().expect("nothing else waits");
/// assert_eq!((issue.tenant, issue.cost), (0, Cost(600)));
/// limiter.handle_complete(issue.tenant, issue.cost);
/// ```
#[derive(Debug)]
pub struct Limiter {
    quantum: i64,
    longest: u64,
    slice: i64,
    tenants: Vec<Share>,
    cores: Vec<Grant>,
    /// By core: whether it has a request that waits.
    waits: Vec<bool>,
    /// The latest round that any tenant has reached. All active tenants are in it or in the one before, which these have used up.
    round: u64,
    /// Active tenants, and those of them that have not used up the latest round.
    active: u32,
    open: u32,
    /// The tenant that is asked first.
    turn: usize,
    touches: u64,
}

/// A tenant's share of the unit. What each request reads and writes is in one line of the cache, the first; a unit's work
/// leaves little of the cache to many tenants.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Share {
    weight: i64,
    round: u64,
    /// What it may still take from the balance that its cores share; below zero after a request that was longer.
    balance: i64,
    /// The cost of its requests in the unit, and their number.
    in_unit: i64,
    served: u32,
    /// Requests that wait. One for each core at most.
    waits: u32,
    /// The oldest of these: core and cost.
    first: (u32, Cost),
    /// Times that it has joined a later round than it left: what its cores keep from before is worth nothing.
    joined: u64,
    /// The cost of all its requests that were issued.
    issued: u64,
    /// Requests that wait, but for the oldest.
    further: VecDeque<(u32, Cost)>,
}

/// What a core has taken of its tenant's balance.
#[derive(Clone, Copy, Debug, Default)]
struct Grant {
    left: i64,
    tenant: u32,
    joined: u64,
}

impl Limiter {
    /// A limiter before the first request.
    ///
    /// # Panics
    ///
    /// If the quantum or a weight is zero.
    #[must_use]
    pub fn new(config: &LimiterConfig) -> Self {
        let LimiterConfig { quantum, longest, slice, ref weights, cores } = *config;
        assert!(quantum.0 > 0, "a quantum of zero grants nothing");
        assert!(weights.iter().all(|&weight| weight > 0), "a weight of zero grants nothing");
        let share = |&weight: &u32| Share {
            weight: weight.into(),
            round: 0,
            balance: 0,
            in_unit: 0,
            served: 0,
            waits: 0,
            first: Default::default(),
            joined: 0,
            issued: 0,
            further: VecDeque::with_capacity(cores as usize),
        };
        Self {
            quantum: quantum.0.into(),
            longest: u64::from(quantum.0) * u64::from(longest.max(1)),
            slice: slice.0.into(),
            tenants: weights.iter().map(share).collect(),
            cores: vec![Grant::default(); cores as usize],
            waits: vec![false; cores as usize],
            round: 0,
            active: 0,
            open: 0,
            turn: 0,
            touches: 0,
        }
    }

    /// Takes a request of a tenant's core, which waits until [`Limiter::poll_issue`] returns it.
    ///
    /// # Errors
    ///
    /// If the request is too long, or the core has one that waits.
    pub fn handle_request(&mut self, tenant: u32, core: u32, cost: Cost) -> Result<(), RequestError> {
        if u64::from(cost.0) > self.longest {
            return Err(RequestError::TooLong);
        }
        if std::mem::replace(&mut self.waits[core as usize], true) {
            return Err(RequestError::CoreWaits);
        }
        let (round, quantum) = (self.round, self.quantum);
        let share = &mut self.tenants[tenant as usize];
        if !share.is_active() {
            share.join(round, quantum);
            (self.active, self.open) = (self.active + 1, self.open + u32::from(share.is_open(round)));
        }
        share.push(core, cost);
        Ok(())
    }

    /// The next request that may go to the unit; `None` if none may before another one completes or comes. Tenants take
    /// turns. At most one look at each tenant for each tenant.
    pub fn poll_issue(&mut self) -> Option<Issue> {
        let (turn, count) = (self.turn, self.tenants.len());
        // No division: it would be half of what this takes.
        let tenant = (turn..count).chain(0..turn).find(|&tenant| self.may_issue(tenant))?;
        self.turn = if tenant + 1 < count { tenant + 1 } else { 0 };
        Some(self.issue(tenant))
    }

    /// Takes note that a request has been served.
    ///
    /// # Panics
    ///
    /// If the tenant has none in the unit.
    pub fn handle_complete(&mut self, tenant: u32, cost: Cost) {
        let share = &mut self.tenants[tenant as usize];
        share.served = share.served.checked_sub(1).expect("a request that completes was issued");
        share.in_unit -= i64::from(cost.0);
        if !share.is_active() {
            (self.active, self.open) = (self.active - 1, self.open - u32::from(share.is_open(self.round)));
        }
    }

    /// The costs of the requests into which a request is split that is longer than the limiter allows.
    pub fn pieces(&self, cost: u64) -> impl Iterator<Item = Cost> + use<> {
        let longest = self.longest.min(u32::MAX.into());
        (0..cost.div_ceil(longest)).map(move |n| Cost((cost - n * longest).min(longest) as u32))
    }

    /// The cost of all requests of a tenant that were issued.
    #[must_use]
    pub fn issued(&self, tenant: u32) -> u64 {
        self.tenants[tenant as usize].issued
    }

    /// Times that cores changed a balance that several of them share.
    #[must_use]
    pub const fn touches(&self) -> u64 {
        self.touches
    }

    /// Whether a tenant's oldest request may be issued; moves the tenant to its next rounds if it may go there.
    fn may_issue(&mut self, tenant: usize) -> bool {
        let Some((core, cost)) = self.tenants[tenant].front() else { return false };
        if !self.tenants[tenant].has_room(cost, self.quantum) {
            return false;
        }
        let kept = self.kept(tenant, core);
        // A debt may be of several quanta: alone, a tenant goes through several rounds at once.
        while kept < i64::from(cost.0) && self.tenants[tenant].balance <= 0 {
            if !self.advance(tenant) {
                return false;
            }
        }
        true
    }

    /// Moves a tenant that has used up its round to the next one, if every active tenant has used that up; answers whether.
    fn advance(&mut self, tenant: usize) -> bool {
        let share = &mut self.tenants[tenant];
        if share.round == self.round {
            if self.open > 0 {
                return false;
            }
            self.round += 1;
            self.open = self.active;
        }
        share.round += 1;
        share.balance += share.weight * self.quantum;
        self.open -= u32::from(!share.is_open(self.round));
        self.touches += 1;
        true
    }

    /// What a core still has of its tenant's balance.
    fn kept(&self, tenant: usize, core: u32) -> i64 {
        if self.slice == 0 {
            return 0;
        }
        let grant = &self.cores[core as usize];
        let valid = grant.tenant as usize == tenant && grant.joined == self.tenants[tenant].joined;
        if valid { grant.left } else { 0 }
    }

    /// Issues a tenant's oldest request: pays for it with what its core has, and takes more of the balance if that is
    /// not enough.
    fn issue(&mut self, tenant: usize) -> Issue {
        let (core, cost) = self.tenants[tenant].pop().expect("a request that may be issued");
        let price = i64::from(cost.0);
        let mut left = self.kept(tenant, core);
        let share = &mut self.tenants[tenant];
        let was_open = share.is_open(self.round);
        if left < price {
            let taken = (price - left).max(self.slice.min(share.balance));
            share.balance -= taken;
            left += taken;
            self.touches += 1;
        }
        self.open -= u32::from(was_open && !share.is_open(self.round));
        let joined = share.joined;
        share.in_unit += price;
        share.served += 1;
        share.issued += u64::from(cost.0);
        let tenant = u32::try_from(tenant).expect("tenants are counted in 32 bits");
        self.waits[core as usize] = false;
        if self.slice > 0 {
            self.cores[core as usize] = Grant { left: left - price, tenant, joined };
        }
        Issue { tenant, core, cost }
    }
}

impl Share {
    fn is_active(&self) -> bool {
        self.served > 0 || self.waits > 0
    }

    /// Whether, if it is active, it has not used up the latest round.
    fn is_open(&self, round: u64) -> bool {
        self.round < round || self.balance > 0
    }

    /// The oldest request that waits.
    fn front(&self) -> Option<(u32, Cost)> {
        (self.waits > 0).then_some(self.first)
    }

    fn push(&mut self, core: u32, cost: Cost) {
        match self.waits {
            0 => self.first = (core, cost),
            _ => self.further.push_back((core, cost)),
        }
        self.waits += 1;
    }

    fn pop(&mut self) -> Option<(u32, Cost)> {
        let front = self.front()?;
        self.waits -= 1;
        if self.waits > 0 {
            self.first = self.further.pop_front().expect("as many wait as are counted");
        }
        Some(front)
    }

    /// Whether the unit may hold one more request of this tenant.
    fn has_room(&self, cost: Cost, quantum: i64) -> bool {
        self.served == 0 || self.in_unit + i64::from(cost.0) <= self.weight * quantum
    }

    /// Becomes active in a round. What was saved in an earlier one is lost; a debt is not.
    fn join(&mut self, round: u64, quantum: i64) {
        if self.round < round {
            self.round = round;
            self.balance = self.balance.min(0) + self.weight * quantum;
            self.joined += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(weights: &[u32]) -> Limiter {
        let config = LimiterConfig {
            quantum: Cost(100),
            longest: 4,
            slice: Cost(0),
            weights: weights.to_vec(),
            cores: 8,
        };
        Limiter::new(&config)
    }

    #[test]
    fn a_tenant_alone_is_never_held() {
        let mut limiter = limiter(&[1, 1]);
        for _ in 0..1_000 {
            limiter.handle_request(0, 0, Cost(70)).expect("short");
            let issue = limiter.poll_issue().expect("nothing else is active");
            limiter.handle_complete(issue.tenant, issue.cost);
        }
        assert_eq!(limiter.issued(0), 70_000);
    }

    #[test]
    fn a_round_ends_when_each_active_tenant_has_used_it_up() {
        let mut limiter = limiter(&[1, 1]);
        let mut issue = |tenant, core, cost| {
            limiter.handle_request(tenant, core, Cost(cost)).expect("short");
            let issued = limiter.poll_issue().map(|issue| issue.tenant);
            (issued, limiter.tenants[1].balance)
        };
        assert_eq!(issue(1, 4, 60), (Some(1), 40), "round 1");
        assert_eq!(issue(0, 0, 100), (Some(0), 40), "a newcomer has its quantum of round 1 as well");
        assert_eq!(issue(0, 1, 100), (None, 40), "round 2 waits for the tenant that has 40 left");
        limiter.handle_complete(1, Cost(60));
        limiter.handle_complete(0, Cost(100));
        assert_eq!(limiter.poll_issue().map(|issue| issue.tenant), Some(0), "an idle tenant holds no round");
    }

    #[test]
    fn a_debt_is_paid_before_the_next_request() {
        let mut limiter = limiter(&[1, 1]);
        limiter.handle_request(0, 0, Cost(400)).expect("four quanta are the longest");
        assert!(limiter.poll_issue().is_some(), "one quantum, and a debt of three");
        limiter.handle_complete(0, Cost(400));
        for (core, tenant) in [(0, 0), (4, 1)] {
            limiter.handle_request(tenant, core, Cost(100)).expect("short");
        }
        let order: Vec<u32> = (0..5)
            .map_while(|_| {
                let issue = limiter.poll_issue()?;
                limiter.handle_complete(issue.tenant, issue.cost);
                if issue.tenant == 1 {
                    limiter.handle_request(1, 4, Cost(100)).expect("short");
                }
                Some(issue.tenant)
            })
            .collect();
        assert_eq!(order, [1, 1, 1, 1, 0], "the other one has as much first");
    }

    #[test]
    fn requests_are_bounded_and_split() {
        let mut limiter = limiter(&[1]);
        assert_eq!(limiter.handle_request(0, 0, Cost(401)), Err(RequestError::TooLong));
        assert_eq!(limiter.pieces(900).collect::<Vec<_>>(), [Cost(400), Cost(400), Cost(100)]);
        limiter.handle_request(0, 0, Cost(400)).expect("the longest");
        assert_eq!(limiter.handle_request(0, 0, Cost(1)), Err(RequestError::CoreWaits));
    }

    #[test]
    fn cores_with_slices_touch_the_shared_balance_once_for_many_requests() {
        let config =
            LimiterConfig { quantum: Cost(1_000), longest: 1, slice: Cost(100), weights: vec![1], cores: 1 };
        let mut limiter = Limiter::new(&config);
        for _ in 0..1_000 {
            limiter.handle_request(0, 0, Cost(10)).expect("short");
            let issue = limiter.poll_issue().expect("alone");
            limiter.handle_complete(issue.tenant, issue.cost);
        }
        assert_eq!(limiter.touches(), 100 + 10, "one for each slice, and one for each round");
    }
}
