//! What the limiter costs for each request: two tenants with eight cores each, in front of a unit.
//!
//! $ cargo run --release -p plimsoll-smartnic --example limiter_cost

use std::collections::VecDeque;
use std::time::Instant;

use plimsoll_smartnic::{Cost, Limiter, LimiterConfig};

/// Cores of each of the two tenants.
const CORES: u32 = 8;
const REQUESTS: u32 = 20_000_000;

fn main() {
    for (name, costs) in [("equal requests", [4_096, 4_096]), ("one 64 times as long", [1_024, 65_536])] {
        for slice in [0, 16_384] {
            let (ns, touches) = measure(costs, slice);
            println!(
                "{name:<22} slice {slice:>6} B  {ns:>5.1} ns/request  {touches:.2} shared writes/request"
            );
        }
    }
}

/// Nanoseconds of a request, its issue and its completion, and changes of balances that cores share.
fn measure(costs: [u32; 2], slice: u32) -> (f64, f64) {
    let config = LimiterConfig {
        quantum: Cost(131_072),
        longest: 4,
        slice: Cost(slice),
        weights: vec![1, 1],
        cores: 2 * CORES,
    };
    let mut limiter = Limiter::new(&config);
    let request = |limiter: &mut Limiter, core: u32| {
        let tenant = core / CORES;
        limiter.handle_request(tenant, core, Cost(costs[tenant as usize])).expect("short enough");
    };
    (0..2 * CORES).for_each(|core| request(&mut limiter, core));
    let mut unit = VecDeque::with_capacity(2 * CORES as usize);
    let begun = Instant::now();
    for _ in 0..REQUESTS {
        unit.extend(std::iter::from_fn(|| limiter.poll_issue()));
        let issue = unit.pop_front().expect("the unit always has a request");
        limiter.handle_complete(issue.tenant, issue.cost);
        request(&mut limiter, issue.core);
    }
    let each = |count: f64| count / f64::from(REQUESTS);
    (each(begun.elapsed().as_nanos() as f64), each(limiter.touches() as f64))
}
