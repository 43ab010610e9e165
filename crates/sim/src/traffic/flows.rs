//! Flows that arrive at random, each on a connection of its own, whatever became of those before.
//!
//! Why: an open loop loads the network as asked; the time that each flow takes is what its user notices.
//! From: the workloads of pFabric (SIGCOMM 2013), Homa (SIGCOMM 2018) and the simulators of both.
//! Not here: which flows arrive (`build::flows`), connections (`world::sockets`).
//! Invariant: each flow is complete once, or counted as unfinished; a connection is given back when its last byte is acknowledged.

use std::collections::BTreeMap;

use plimsoll_scenario::{FlowSample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

use super::{Assignment, Stack};

/// A flow that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Nanos,
    pub(crate) size: u64,
    /// How long it would take alone.
    pub(crate) ideal: Span,
    /// The numbers of its ends' settings.
    pub(crate) settings: [u16; 2],
}

/// Flows in the order of their arrivals.
#[derive(Debug)]
pub(crate) struct Flows {
    job: Assignment,
    arrivals: Vec<Arrival>,
    /// How many have arrived.
    arrived: usize,
    took: Vec<Option<Span>>,
    /// The flow of each open connection, by its client's socket.
    open: BTreeMap<u32, u32>,
}

impl Flows {
    /// Arrival `n` is flow `job.first + n` of the world.
    pub(crate) fn new(job: Assignment, arrivals: Vec<Arrival>) -> Self {
        let took = vec![None; arrivals.len()];
        Self { job, arrivals, arrived: 0, took, open: BTreeMap::new() }
    }

    /// Begins the flows that arrive now.
    pub(super) fn timeout(&mut self, stack: &mut impl Stack) {
        while let Some(arrival) = self.arrivals.get(self.arrived).filter(|next| next.at <= stack.now()) {
            let number = self.arrived as u32;
            let socket = stack.connect(self.job.first + number, arrival.settings);
            self.open.insert(socket, number);
            self.arrived += 1;
            stack.write(socket, arrival.size);
        }
        let next = self.arrivals.get(self.arrived).map(|arrival| arrival.at);
        stack.set_timer(self.job.timer, next);
    }

    /// Notes a flow whose receiver has all of its bytes.
    pub(super) fn received(&mut self, stack: &mut impl Stack, socket: u32, total: u64) {
        let Some(&number) = self.open.get(&(socket & !1)).filter(|_| socket & 1 == 1) else { return };
        let (arrival, took) = (&self.arrivals[number as usize], &mut self.took[number as usize]);
        if total >= arrival.size && took.is_none() {
            *took = Some(stack.now().since(arrival.at));
        }
    }

    /// Gives back the connection of a flow whose sender knows that all of it has arrived.
    pub(super) fn acknowledged(&mut self, stack: &mut impl Stack, socket: u32) {
        let Some(&number) = self.open.get(&socket) else { return };
        if stack.acked(socket) >= self.arrivals[number as usize].size {
            self.open.remove(&socket);
            stack.release(socket);
        }
    }

    /// When a flow of the world arrived.
    pub(super) fn begun(&self, flow: u32) -> Nanos {
        self.arrivals.get((flow - self.job.first) as usize).map_or(Nanos::ZERO, |arrival| arrival.at)
    }

    pub(super) fn finish(&mut self) -> WorkloadResult {
        let flows = self.arrivals.iter().zip(&self.took).map(|(arrival, took)| FlowSample {
            at: arrival.at,
            size: arrival.size,
            took: *took,
            ideal: arrival.ideal,
        });
        WorkloadResult { flows: flows.take(self.arrived).collect(), ..WorkloadResult::default() }
    }
}
