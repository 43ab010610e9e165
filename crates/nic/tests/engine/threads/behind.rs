//! A limit by match whose members are on several threads gives each of them its share of it.
//!
//! Not here: random trees (`threads`), one thread (`many`).
//! Invariant: every flow always has frames waiting, so that each share follows from weights alone.

use plimsoll_policy::{LimitId, NodeId, NodeKind};

use super::kit::{Sends, Threads};
use crate::kit::{MS, Plan, ROOT, burst_of, mbps};

const LINK_MBPS: u64 = 100_000;
const TENANTS: usize = 64;
/// The tenants behind the limit, which is a tenth of the link.
const BEHIND: usize = 16;
const LIMIT_MBPS: u64 = LINK_MBPS / 10;

const WINDOW: u64 = 10 * MS;
/// Windows in which shares are compared. In those before, the limit's burst is used up.
const COMPARED: std::ops::Range<usize> = 2..5;

/// What a share may be off besides 2 %: a frame that begins in one window and ends in the next.
const FRAME_MBPS: f64 = 1_500.0 * 8_000.0 / WINDOW as f64;

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Mb/s that a tenant of this weight should get.
fn share(tenant: usize, weights: &[u64]) -> f64 {
    let (behind, free) = weights.split_at(BEHIND);
    let (rate, siblings) =
        if tenant < BEHIND { (LIMIT_MBPS, behind) } else { (LINK_MBPS - LIMIT_MBPS, free) };
    rate as f64 * weights[tenant] as f64 / siblings.iter().sum::<u64>() as f64
}

/// Engines whose tenants have weights 1 to 5, sizes of frames of their own, and send all that they can or half as much again as
/// their share.
fn engines(seed: u64, threads: usize) -> (Threads, Vec<NodeId>, Vec<u64>) {
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let weights: Vec<u64> = (0..TENANTS).map(|_| 1 + draw.below(5)).collect();
    let mut plan = Plan::new(mbps(LINK_MBPS), NodeKind::Wfq);
    let classes: Vec<NodeId> = weights.iter().map(|&weight| plan.class(ROOT, weight as u32)).collect();
    let limit = plan.limit("far", mbps(LIMIT_MBPS), burst_of(mbps(LIMIT_MBPS), 1));
    let mut engines = Threads::new(&plan.program, threads);
    for (tenant, &class) in classes.iter().enumerate() {
        let limits: &[LimitId] = if tenant < BEHIND { &[limit] } else { &[] };
        let size = [1_000, 1_500][draw.below(2) as usize];
        let sends = match draw.below(2) {
            0 => Sends::Greedy,
            _ => Sends::Paced(mbps((share(tenant, &weights) * 1.5) as u64)),
        };
        engines.add(tenant % threads, class, limits, size, sends);
    }
    (engines, classes, weights)
}

/// Bytes of each tenant by window.
fn by_window(engines: &Threads, classes: &[NodeId]) -> Vec<[u64; COMPARED.end]> {
    let mut left = vec![[0; COMPARED.end]; classes.len()];
    for sent in engines.worlds.iter().flat_map(|world| &world.sent) {
        let tenant = sent.pull.class.0 - classes[0].0;
        if let Some(bytes) = left[tenant as usize].get_mut((sent.at / WINDOW) as usize) {
            *bytes += sent.charge;
        }
    }
    left
}

#[test]
fn tenants_of_several_threads_have_their_shares_of_a_limit() {
    for (seed, threads) in [(1, 2), (2, 2), (3, 3), (4, 4), (5, 8)] {
        let (mut engines, classes, weights) = engines(seed, threads);
        engines.run(WINDOW * COMPARED.end as u64 - 1);
        let left = by_window(&engines, &classes);
        let mut worst = (0.0_f64, 0, 0.0, 0.0);
        for (window, tenant) in COMPARED.flat_map(|window| (0..TENANTS).map(move |tenant| (window, tenant))) {
            let found = left[tenant][window] as f64 * 8_000.0 / WINDOW as f64;
            let wanted = share(tenant, &weights);
            let off = ((found - wanted).abs() - FRAME_MBPS) / wanted;
            worst = if off > worst.0 { (off, tenant, found, wanted) } else { worst };
        }
        let (off, tenant, found, wanted) = worst;
        println!("seed {seed}, {threads} threads: {:.2} % off", 100.0 * off);
        assert!(
            off <= 0.02,
            "seed {seed}, {threads} threads: tenant {tenant} has {found:.1} of {wanted:.1} Mb/s"
        );
    }
}
