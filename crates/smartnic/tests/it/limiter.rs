//! The limiter's promises, attacked with random tenants in front of a unit that serves in the order of issue.

use std::collections::VecDeque;

use plimsoll_smartnic::{Cost, Issue, Limiter, LimiterConfig};
use proptest::prelude::*;

const QUANTUM: u32 = 1_000;
const LONGEST: u32 = 4;

/// A tenant whose cores send requests of one length, each after a pause, from a moment on.
#[derive(Clone, Copy, Debug)]
struct Tenant {
    weight: u32,
    cores: u32,
    cost: u32,
    pause: u64,
}

/// A unit that takes one tick for one unit of cost, its limiter, and the tenants' cores.
struct World {
    limiter: Limiter,
    tenants: Vec<Tenant>,
    /// When a core makes its next request, by core; `None` while it waits for an answer.
    due: Vec<Option<u64>>,
    owners: Vec<usize>,
    unit: VecDeque<Issue>,
    now: u64,
    /// When the unit finishes its present request.
    done: Option<u64>,
    idle: u64,
}

impl World {
    fn new(tenants: &[Tenant], slice: u32) -> Self {
        let owners: Vec<usize> =
            tenants.iter().enumerate().flat_map(|(n, tenant)| vec![n; tenant.cores as usize]).collect();
        let config = LimiterConfig {
            quantum: Cost(QUANTUM),
            longest: LONGEST,
            slice: Cost(slice),
            weights: tenants.iter().map(|tenant| tenant.weight).collect(),
            cores: owners.len() as u32,
        };
        Self {
            limiter: Limiter::new(&config),
            tenants: tenants.to_vec(),
            due: vec![Some(0); owners.len()],
            owners,
            unit: VecDeque::new(),
            now: 0,
            done: None,
            idle: 0,
        }
    }

    /// Goes on until `end`; calls `look` after each step.
    fn run(&mut self, end: u64, look: &mut dyn FnMut(&Limiter)) {
        while self.now < end {
            self.request();
            while let Some(issue) = self.limiter.poll_issue() {
                self.unit.push_back(issue);
            }
            if self.done.is_none() {
                self.done = self.unit.front().map(|issue| self.now + u64::from(issue.cost.0));
            }
            look(&self.limiter);
            let next = self.due.iter().flatten().copied().filter(|&at| at > self.now).chain(self.done).min();
            let next = next.unwrap_or(end).min(end);
            if self.done.is_none() {
                self.idle += next - self.now;
            }
            self.now = next;
            self.complete();
        }
    }

    fn request(&mut self) {
        for core in 0..self.due.len() {
            let owner = self.owners[core];
            if self.due[core].is_some_and(|at| at <= self.now) {
                let cost = Cost(self.tenants[owner].cost);
                self.limiter
                    .handle_request(owner as u32, core as u32, cost)
                    .expect("one request for each core");
                self.due[core] = None;
            }
        }
    }

    fn complete(&mut self) {
        if self.done.is_some_and(|at| at <= self.now) {
            let issue = self.unit.pop_front().expect("the request that is served");
            self.limiter.handle_complete(issue.tenant, issue.cost);
            let pause = self.tenants[issue.tenant as usize].pause;
            self.due[issue.core as usize] = Some(self.now + pause);
            self.done = None;
        }
    }
}

fn backlogged() -> impl Strategy<Value = Tenant> {
    // Two requests in a quantum at least, and cores for them: the tenant always has one that waits or is served.
    (1..5_u32, 2..8_u32, 1..=QUANTUM / 2).prop_map(|(weight, cores, cost)| Tenant {
        weight,
        cores,
        cost,
        pause: 0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Backlogged tenants share the unit by weight, whatever their cores and the lengths of their requests.
    #[test]
    fn backlogged_tenants_share_by_weight(
        tenants in prop::collection::vec(backlogged(), 2..5),
        slice in prop_oneof![Just(0), 1..200_u32],
    ) {
        let mut world = World::new(&tenants, slice);
        world.run(2_000_000, &mut |_| {});
        let all: u64 = (0..tenants.len()).map(|n| world.limiter.issued(n as u32)).sum();
        let weights: u32 = tenants.iter().map(|tenant| tenant.weight).sum();
        for (n, tenant) in tenants.iter().enumerate() {
            let share = world.limiter.issued(n as u32) as f64 / all as f64;
            let fair = f64::from(tenant.weight) / f64::from(weights);
            prop_assert!((share / fair - 1.0).abs() < 0.05, "tenant {n} has {share:.3} of {fair:.3}");
        }
    }

    /// At no moment has a tenant had more than its share by more than one quantum and one request.
    #[test]
    fn no_tenant_exceeds_its_share_by_more_than_a_quantum_and_a_request(
        tenants in prop::collection::vec(backlogged(), 2..5),
    ) {
        let mut world = World::new(&tenants, 0);
        let weights: u32 = tenants.iter().map(|tenant| tenant.weight).sum();
        let mut worst = f64::MIN;
        world.run(100_000, &mut |limiter| {
            let all: u64 = (0..tenants.len()).map(|n| limiter.issued(n as u32)).sum();
            for (n, tenant) in tenants.iter().enumerate() {
                let fair = all as f64 * f64::from(tenant.weight) / f64::from(weights);
                let most = f64::from(tenant.weight * QUANTUM + tenant.cost);
                worst = worst.max(limiter.issued(n as u32) as f64 - fair - most);
            }
        });
        prop_assert!(worst <= 0.0, "{worst} more than that");
    }

    /// The unit never idles while a request waits: a tenant that is alone has all of it.
    #[test]
    fn alone_a_tenant_has_the_full_rate(tenant in backlogged(), slice in 0..200_u32) {
        let other = Tenant { weight: 4, cores: 0, cost: 1, pause: 0 };
        let mut world = World::new(&[tenant, other], slice);
        world.run(200_000, &mut |_| {});
        prop_assert_eq!(world.idle, 0);
    }

    /// A tenant with pauses, which come at any moment of its rounds, gets no more than its share, and a quantum.
    #[test]
    fn idle_time_earns_nothing(
        steady in backlogged(),
        weight in 1..5_u32,
        cores in 1..8_u32,
        cost in 1..=LONGEST * QUANTUM,
        pause in 1..20_000_u64,
    ) {
        let pausing = Tenant { weight, cores, cost, pause };
        let mut world = World::new(&[steady, pausing], 0);
        world.run(1_000_000, &mut |_| {});
        let [one, other] = [0, 1].map(|n| world.limiter.issued(n) as f64);
        let most = one * f64::from(weight) / f64::from(steady.weight);
        let beyond = f64::from(2 * weight * QUANTUM + cost);
        prop_assert!(other <= most * 1.05 + beyond, "{other} beside {one}");
    }

    /// Whatever comes, a request that waits is issued in the end, and the unit works while one waits.
    #[test]
    fn nothing_waits_for_ever(
        tenants in prop::collection::vec(
            (1..5_u32, 1..4_u32, 1..=LONGEST * QUANTUM, 0..5_000_u64)
                .prop_map(|(weight, cores, cost, pause)| Tenant { weight, cores, cost, pause }),
            1..5,
        ),
        slice in 0..500_u32,
    ) {
        let mut world = World::new(&tenants, slice);
        world.run(1_000_000, &mut |_| {});
        for (n, tenant) in tenants.iter().enumerate() {
            prop_assert!(world.limiter.issued(n as u32) >= u64::from(tenant.cost), "tenant {n} was served");
        }
    }
}
