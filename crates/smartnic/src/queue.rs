//! Requests that wait for a coprocessor: a bounded queue for each tenant, behind one limiter.
//! For comparison there may be none: requests then enter the unit as they come.
//!
//! Why: the daemon and virtual time let requests into a unit by the same rules.
//! From: FairNIC §3.4 and §4.4; `docs/programs.md`, "Coprocessors".
//! Not here: the unit, the requests themselves, time.
//! Invariant: a tenant's requests enter the unit in the order in which they came; at most [`WAITING`] of them wait, and at most
//! [`INSIDE`] of all tenants' are in the unit.

use std::collections::VecDeque;

use crate::{Cost, Limiter, LimiterConfig};

/// Requests of a tenant that wait for one unit, at most.
pub const WAITING: usize = 64;

/// Requests in a unit at most, so that a newcomer does not wait for more of them.
pub const INSIDE: usize = 64;

/// What a tenant of weight one is granted in a round: more than the longest packet.
const QUANTUM: Cost = Cost(16 << 10);

/// Requests of tenants to one unit.
///
/// ```
/// use plimsoll_smartnic::{Cost, Refused, UnitQueue};
///
/// let mut queue = UnitQueue::new(&[1, 0]);
/// assert_eq!(queue.ask(1, Cost(700), "its weight is 0"), Err(Refused::NoUnit));
/// queue.ask(0, Cost(700), "compress this").expect("room");
/// let (ticket, request) = queue.poll().expect("the unit is free");
/// assert_eq!((ticket.tenant(), request), (0, "compress this"));
/// queue.complete(ticket);
/// ```
#[derive(Debug)]
pub struct UnitQueue<T> {
    order: Order,
    /// By tenant; 0: it may not use the unit.
    weights: Vec<u32>,
    waiting: Vec<VecDeque<(Cost, T)>>,
    /// By tenant: whether the limiter knows of the first request.
    offered: Vec<bool>,
    /// Requests in the unit, or done and not completed.
    inside: usize,
    /// These, and all that wait.
    held: usize,
    /// Counts the limiters that this queue has had.
    epoch: u32,
}

/// Which request is next.
#[derive(Debug)]
enum Order {
    /// The limiter says.
    Shares(Limiter),
    /// The oldest one: the tenants of all that wait.
    Arrival(VecDeque<u32>),
}

/// A request that is in the unit: [`UnitQueue::complete`] takes it back.
#[derive(Debug)]
pub struct Ticket {
    tenant: u32,
    cost: Cost,
    /// The limiter that has issued it.
    epoch: u32,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The tenant may not use the unit.
    NoUnit,
    /// As many of the tenant's requests wait as may.
    Full,
}

impl Ticket {
    /// Whose request it is.
    #[must_use]
    pub const fn tenant(&self) -> u32 {
        self.tenant
    }
}

impl<T> UnitQueue<T> {
    /// An empty queue for tenants with these weights; those with 0 may not use the unit.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        Self::by(Order::Shares(limiter(weights)), weights)
    }

    /// Like [`UnitQueue::new`], but without a limiter: requests enter the unit in the order in which they come, and weights only say which
    /// tenants may use it.
    #[must_use]
    pub fn in_order(weights: &[u32]) -> Self {
        Self::by(Order::Arrival(VecDeque::new()), weights)
    }

    fn by(order: Order, weights: &[u32]) -> Self {
        Self {
            order,
            weights: weights.to_vec(),
            waiting: weights.iter().map(|_| VecDeque::new()).collect(),
            offered: vec![false; weights.len()],
            inside: 0,
            held: 0,
            epoch: 0,
        }
    }

    /// Sets the tenants' weights. Requests that wait go on waiting if they `stay`, whatever their tenant's weight is now; answers how many
    /// do not.
    pub fn set_weights(&mut self, weights: &[u32], stay: impl Fn(u32, &T) -> bool) -> usize {
        let mut gone = 0;
        for (tenant, waiting) in (0..).zip(&mut self.waiting) {
            let before = waiting.len();
            waiting.retain(|(_, request)| stay(tenant, request));
            gone += before - waiting.len();
        }
        self.held -= gone;
        let tenants = weights.len().max(self.waiting.len());
        self.weights = weights.to_vec();
        self.weights.resize(tenants, 0);
        self.waiting.resize_with(tenants, VecDeque::new);
        match &mut self.order {
            Order::Shares(known) => *known = limiter(&self.weights),
            Order::Arrival(tenants) => keep_in_order(tenants, &self.waiting),
        }
        self.offered = vec![false; tenants];
        self.epoch += 1;
        (0..tenants).for_each(|tenant| self.offer(tenant));
        gone
    }

    /// Takes a request of a tenant's, which waits until [`UnitQueue::poll`] returns it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn ask(&mut self, tenant: u32, cost: Cost, request: T) -> Result<(), Refused> {
        let tenant = tenant as usize;
        if self.weights.get(tenant).is_none_or(|&weight| weight == 0) {
            return Err(Refused::NoUnit);
        }
        if self.waiting[tenant].len() >= WAITING {
            return Err(Refused::Full);
        }
        self.waiting[tenant].push_back((cost.min(QUANTUM), request));
        self.held += 1;
        match &mut self.order {
            Order::Shares(_) => self.offer(tenant),
            Order::Arrival(tenants) => tenants.push_back(tenant as u32),
        }
        Ok(())
    }

    /// The next request that may enter the unit; `None` if none may before another one completes or comes.
    pub fn poll(&mut self) -> Option<(Ticket, T)> {
        if self.inside >= INSIDE {
            return None;
        }
        let tenant = match &mut self.order {
            Order::Shares(limiter) => limiter.poll_issue()?.tenant,
            Order::Arrival(tenants) => tenants.pop_front()?,
        };
        let index = tenant as usize;
        self.offered[index] = false;
        let (cost, request) = self.waiting[index].pop_front()?;
        self.inside += 1;
        self.offer(index);
        Some((Ticket { tenant, cost, epoch: self.epoch }, request))
    }

    /// Takes note that a request has left the unit.
    pub fn complete(&mut self, ticket: Ticket) {
        (self.inside, self.held) = (self.inside - 1, self.held - 1);
        if let Order::Shares(limiter) = &mut self.order
            && ticket.epoch == self.epoch
        {
            limiter.handle_complete(ticket.tenant, ticket.cost);
        }
    }

    /// The requests that wait.
    pub fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().flatten().map(|(_, request)| request)
    }

    /// Requests that wait or are in the unit.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Tells the limiter of a tenant's first request, if there is a limiter and it does not know of it.
    fn offer(&mut self, tenant: usize) {
        let Order::Shares(limiter) = &mut self.order else { return };
        let Some(&(cost, _)) = self.waiting[tenant].front().filter(|_| !self.offered[tenant]) else { return };
        // A tenant counts as one core: one of its requests is with the limiter at a time.
        self.offered[tenant] = limiter.handle_request(tenant as u32, tenant as u32, cost).is_ok();
    }
}

/// Takes the requests out of the order of arrival that no longer wait.
fn keep_in_order<T>(tenants: &mut VecDeque<u32>, waiting: &[VecDeque<T>]) {
    let mut left: Vec<usize> = waiting.iter().map(VecDeque::len).collect();
    tenants.retain(|&tenant| {
        let left = &mut left[tenant as usize];
        core::mem::replace(left, left.saturating_sub(1)) > 0
    });
}

fn limiter(weights: &[u32]) -> Limiter {
    // A tenant that may not use the unit never asks.
    let weights: Vec<u32> = weights.iter().map(|&weight| weight.max(1)).collect();
    let cores = weights.len() as u32;
    Limiter::new(&LimiterConfig { quantum: QUANTUM, longest: 1, slice: Cost(0), weights, cores })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the queue of a tenant; answers how many requests it takes.
    fn fill(queue: &mut UnitQueue<u32>, tenant: u32, cost: u32) -> u32 {
        (0..).take_while(|&number| queue.ask(tenant, Cost(cost), number).is_ok()).count() as u32
    }

    #[test]
    fn tenants_that_always_ask_get_bytes_by_weight() {
        let mut queue = UnitQueue::new(&[1, 3]);
        let mut served = [0_u64; 2];
        // The one with the smaller weight has the longer requests.
        let costs = [1_756, 456];
        for _ in 0..20_000 {
            (0..2).for_each(|tenant| _ = fill(&mut queue, tenant, costs[tenant as usize]));
            let (ticket, _) = queue.poll().expect("it is never idle");
            served[ticket.tenant() as usize] += u64::from(costs[ticket.tenant() as usize]);
            queue.complete(ticket);
        }
        let ratio = served[1] as f64 / served[0] as f64;
        assert!((2.95..3.05).contains(&ratio), "{served:?}");
    }

    #[test]
    fn requests_are_in_order_and_bounded_where_they_wait_and_in_the_unit() {
        let mut queue = UnitQueue::new(&[1, 1_000]);
        assert_eq!((fill(&mut queue, 0, 256), fill(&mut queue, 1, 256)), (64, 64));
        assert_eq!(queue.ask(1, Cost(256), 0), Err(Refused::Full));
        assert_eq!(queue.ask(2, Cost(256), 0), Err(Refused::NoUnit));
        let inside: Vec<(Ticket, u32)> = std::iter::from_fn(|| queue.poll()).collect();
        assert_eq!((inside.len(), queue.held()), (INSIDE, 128));
        for tenant in 0..2 {
            let numbers = inside.iter().filter(|(ticket, _)| ticket.tenant() == tenant).map(|(_, n)| *n);
            assert!(
                numbers.eq(0..inside.iter().filter(|(ticket, _)| ticket.tenant() == tenant).count() as u32)
            );
        }
        inside.into_iter().for_each(|(ticket, _)| queue.complete(ticket));
        assert_eq!((queue.held(), queue.waiting().count()), (64, 64));
    }

    #[test]
    fn a_tenant_that_was_alone_holds_a_newcomer_up_by_a_quantum_at_most() {
        let mut queue = UnitQueue::new(&[1, 1]);
        fill(&mut queue, 0, 1_024);
        let inside: Vec<(Ticket, u32)> = std::iter::from_fn(|| queue.poll()).collect();
        assert_eq!(inside.len(), 16, "one quantum");
        queue.ask(1, Cost(300), 7).expect("room");
        let (ticket, request) = queue.poll().expect("it need not wait for the others to be served");
        assert_eq!((ticket.tenant(), request), (1, 7));
    }

    #[test]
    fn without_a_limiter_requests_are_served_as_they_come() {
        let mut queue = UnitQueue::in_order(&[1, 1_000, 0]);
        assert_eq!(queue.ask(2, Cost(1), 0), Err(Refused::NoUnit));
        assert_eq!(fill(&mut queue, 0, 16_384), WAITING as u32);
        queue.ask(1, Cost(1), 7).expect("room");
        let inside: Vec<(Ticket, u32)> = std::iter::from_fn(|| queue.poll()).collect();
        assert!(inside.iter().all(|(ticket, _)| ticket.tenant() == 0) && inside.len() == INSIDE);
        inside.into_iter().for_each(|(ticket, _)| queue.complete(ticket));
        queue.ask(0, Cost(1), 8).expect("room");
        queue.ask(1, Cost(1), 9).expect("room");
        assert_eq!(queue.set_weights(&[1, 1, 0], |_, &number| number != 8), 1);
        let (first, second) = (queue.poll().expect("it waits").1, queue.poll().expect("it waits").1);
        assert_eq!((first, second, queue.poll().is_none()), (7, 9, true));
    }

    #[test]
    fn other_weights_take_effect_while_requests_wait_and_are_served() {
        let mut queue = UnitQueue::new(&[1]);
        fill(&mut queue, 0, 4_096);
        let old: Vec<(Ticket, u32)> = std::iter::from_fn(|| queue.poll()).collect();
        assert_eq!(queue.set_weights(&[0, 2], |_, _| true), 0);
        assert_eq!(queue.ask(0, Cost(9), 9), Err(Refused::NoUnit));
        queue.ask(1, Cost(9), 9).expect("it may");
        let held = queue.held();
        old.into_iter().for_each(|(ticket, _)| queue.complete(ticket));
        let mut served = 4;
        while let Some((ticket, _)) = queue.poll() {
            queue.complete(ticket);
            served += 1;
        }
        assert_eq!((served, queue.held()), (held, 0), "what waited is served with the new limiter");
        fill(&mut queue, 1, 1);
        assert_eq!(queue.set_weights(&[0, 2], |tenant, _| tenant != 1), WAITING);
        assert_eq!(queue.held(), 0);
    }
}
