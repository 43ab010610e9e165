//! Coprocessors: what the limiter adds to a call.
//!
//! Why: a limiter that divides a coprocessor is worth its time only if it takes little of what it divides.
//! From: FairNIC §4.4; the bar is 3 % of a call. The limiter is set up as the daemon's.
//! Not here: the way between the engine's thread and a coprocessor's, which is the same with a limiter and without.
//! Invariant: both sides serve the same requests one after the other, on one thread, and take turns of [`TURN`] calls.

use std::collections::VecDeque;

use anyhow::{Context, Result, ensure};
use plimsoll_offload::{Operation, Request, Worker};
use plimsoll_smartnic::{Cost, Limiter, LimiterConfig};

use crate::hold::processor_time;
use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// Bytes of a packet that a coprocessor works on.
const LENGTH: usize = 1_024;

/// Numbers of tenants that always have a request.
const TENANTS: [u32; 3] = [1, 8, 64];

/// Calls after which the other side has its turn.
const TURN: u64 = 500;

/// The part of a call's time that the limiter may add.
const BAR: f64 = 1.03;

/// Rows of two operations, by number of tenants.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let turns = (effort.packets / 100 / TURN).max(100);
    let mut rows = Vec::new();
    for (what, operation, argument) in
        [("deflate", Operation::Deflate, 0), ("AES-128-GCM", Operation::Seal, 28)]
    {
        let packet: Vec<u8> =
            (0..).flat_map(|n| format!("{n}: {}\n", n * n % 1_009).into_bytes()).take(LENGTH).collect();
        let request = Request {
            operation,
            packet,
            offset: 0,
            most: 2_048,
            argument: vec![7; argument],
            cost: (LENGTH + argument + 256) as u32,
        };
        for tenants in TENANTS {
            let (mut ours, mut peer) = (Vec::new(), Vec::new());
            for _ in 0..effort.rounds {
                let [without, with] = round(&request, tenants, turns)?;
                peer.push(without);
                ours.push(with);
            }
            let plural = if tenants == 1 { "tenant" } else { "tenants" };
            let name = format!("a call of {what}, {LENGTH} B, by {tenants} {plural}, with the limiter");
            rows.push(
                Row::new(name, "no limiter", "ns/call").figures(&peer, &ours).goal(Goal::RatioAtMost(BAR)),
            );
        }
    }
    Ok(rows)
}

/// A coprocessor with a buffer for its packet, as requests come with one.
struct Served<'a> {
    worker: Worker,
    template: &'a Request,
    request: Request,
}

impl<'a> Served<'a> {
    fn new(template: &'a Request) -> Self {
        Self { worker: Worker::default(), template, request: template.clone() }
    }

    fn serve(&mut self) -> Result<()> {
        self.request.packet.clear();
        self.request.packet.extend_from_slice(&self.template.packet);
        ensure!(self.worker.answer(&mut self.request) == 0, "the coprocessor failed");
        Ok(())
    }
}

/// Tenants whose requests are served in the order in which they come.
struct InOrder(VecDeque<u32>);

impl InOrder {
    fn call(&mut self, served: &mut Served<'_>) -> Result<()> {
        let tenant = self.0.pop_front().context("each tenant has a request")?;
        served.serve()?;
        self.0.push_back(tenant);
        Ok(())
    }
}

/// Tenants of whom a limiter says which is next.
struct Limited {
    limiter: Limiter,
    cost: Cost,
}

impl Limited {
    fn new(tenants: u32, cost: Cost) -> Result<Self> {
        let limiter = Limiter::new(&LimiterConfig {
            quantum: Cost(16 << 10),
            longest: 1,
            slice: Cost(0),
            weights: vec![1; tenants as usize],
            cores: tenants,
        });
        let mut limited = Self { limiter, cost };
        (0..tenants).try_for_each(|tenant| limited.request(tenant))?;
        Ok(limited)
    }

    fn request(&mut self, tenant: u32) -> Result<()> {
        ensure!(self.limiter.handle_request(tenant, tenant, self.cost).is_ok(), "a request is too long");
        Ok(())
    }

    fn call(&mut self, served: &mut Served<'_>) -> Result<()> {
        let issue = self.limiter.poll_issue().context("each tenant has a request")?;
        served.serve()?;
        self.limiter.handle_complete(issue.tenant, issue.cost);
        self.request(issue.tenant)
    }
}

/// Nanoseconds of a call without a limiter, and with one.
fn round(request: &Request, tenants: u32, turns: u64) -> Result<[f64; 2]> {
    let mut served = Served::new(request);
    let mut plain = InOrder((0..tenants).collect());
    let mut limited = Limited::new(tenants, Cost(request.cost))?;
    let mut took = [0.0; 2];
    for _ in 0..turns {
        took[0] += timed(|| plain.call(&mut served))?;
        took[1] += timed(|| limited.call(&mut served))?;
    }
    Ok(took.map(|ns| ns / (turns * TURN) as f64))
}

/// Nanoseconds of processor time of a turn.
fn timed(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = processor_time();
    (0..TURN).try_for_each(|_| call())?;
    Ok((processor_time() - begun).as_nanos() as f64)
}
