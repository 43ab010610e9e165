//! A coprocessor: serves requests one after the other, in the order in which they are issued.
//!
//! Why: its latency is flat until it is saturated, and then grows with every core that waits.
//! From: FairNIC §3.4. The limiter in front of it is `plimsoll-smartnic`'s.
//! Not here: the cores that call it (`partition`).
//! Invariant: it works while a request is issued; each call is answered once, after all of its pieces.

use std::collections::VecDeque;

use plimsoll_scenario::Coprocessor;
use plimsoll_smartnic::{Cost, Limiter, LimiterConfig};
use plimsoll_units::{Bytes, Nanos, Span};

/// A unit, and the calls to it.
#[derive(Debug)]
pub(crate) struct Unit {
    spec: Coprocessor,
    /// Bytes of a tenant's call; zero for one that makes none.
    calls: Vec<u32>,
    limiter: Option<Limiter>,
    /// By core: what is left of its call after the piece that was requested last.
    left: Vec<u32>,
    /// Pieces that are issued, the one that is served first.
    issued: VecDeque<Piece>,
    /// When the one that is served is done.
    done: Option<Nanos>,
}

/// A call, or a part of one that is too long for the limiter.
#[derive(Clone, Copy, Debug)]
struct Piece {
    tenant: u32,
    core: u32,
    len: u32,
}

impl Unit {
    /// A unit for tenants with these calls and numbers of cores; `weights` are those of its limiter, if it has one.
    pub(crate) fn new(spec: &Coprocessor, calls: Vec<u32>, cores: &[u32], weights: Option<Vec<u32>>) -> Self {
        let all = cores.iter().sum();
        let limiter = weights.map(|weights| {
            // Where length takes no time, each request costs one.
            let quantum = spec.quantum.as_u64().min(u32::MAX.into()) as u32;
            Limiter::new(&LimiterConfig {
                quantum: Cost(quantum),
                longest: spec.longest,
                slice: Cost(0),
                weights,
                cores: all,
            })
        });
        let left = vec![0; all as usize];
        Self { spec: spec.clone(), calls, limiter, left, issued: VecDeque::new(), done: None }
    }

    /// A core's call; `false` if its tenant's program makes none.
    pub(super) fn call(&mut self, tenant: u32, core: u32, now: Nanos) -> bool {
        let len = self.calls[tenant as usize];
        if len == 0 {
            return false;
        }
        self.left[core as usize] = len;
        self.request(tenant, core);
        self.serve(now);
        true
    }

    /// Requests the next piece of a core's call.
    fn request(&mut self, tenant: u32, core: u32) {
        let left = &mut self.left[core as usize];
        let by_length = self.spec.rate.is_some();
        let Some(limiter) = &mut self.limiter else {
            self.issued.push_back(Piece { tenant, core, len: std::mem::take(left) });
            return;
        };
        let cost =
            if by_length { limiter.pieces((*left).into()).next().unwrap_or_default() } else { Cost(1) };
        *left = if by_length { *left - cost.0 } else { 0 };
        limiter
            .handle_request(tenant, core, cost)
            .expect("a core waits for one piece, of the length that is allowed");
    }

    /// Issues what may be, and begins to serve the next piece if none is served.
    fn serve(&mut self, now: Nanos) {
        while let Some(issue) = self.limiter.as_mut().and_then(Limiter::poll_issue) {
            self.issued.push_back(Piece { tenant: issue.tenant, core: issue.core, len: issue.cost.0 });
        }
        if self.done.is_none() {
            self.done = self.issued.front().map(|piece| now + self.time_of(piece));
        }
    }

    fn time_of(&self, piece: &Piece) -> Span {
        let bytes = self.spec.rate.map_or(Span::ZERO, |rate| rate.wire_time(Bytes::new(piece.len.into())));
        self.spec.time + bytes
    }

    /// When the piece that is served is done.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.done
    }

    /// Ends the piece that is served; returns its core if that was the last one of its call.
    pub(super) fn finish(&mut self, now: Nanos) -> Option<u32> {
        self.done = None;
        let Piece { tenant, core, len } = self.issued.pop_front()?;
        if let Some(limiter) = &mut self.limiter {
            limiter.handle_complete(tenant, Cost(len));
        }
        let over = self.left[core as usize] == 0;
        if !over {
            self.request(tenant, core);
        }
        self.serve(now);
        over.then_some(core)
    }
}
