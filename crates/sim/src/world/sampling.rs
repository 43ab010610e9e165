//! Samples of the world's connections and links.
//!
//! Why: one place reads the state of all of them.
//! From: what `ss -i` and a switch's counters show.
//! Not here: what becomes of samples (`series`).
//! Invariant: reading changes nothing.

use plimsoll_scenario::{FlowPoint, FlowTrace, LinkPoint};

use super::{Carrier, World};
use crate::limiter::Limiter;

impl World {
    /// Takes a sample of each connection that is open and has sent something, and of each link.
    #[cold]
    pub(super) fn sample(&mut self) {
        let Some(mut sampler) = self.sampler.take() else { return };
        for (number, end) in (0_u32..).zip(&self.connections) {
            let sender = end.tcp.sender();
            if end.closed || sender.stats().segments == 0 {
                continue;
            }
            let point = FlowPoint {
                at: self.now,
                cwnd: sender.cwnd().as_u64(),
                in_flight: sender.in_flight().as_u64(),
                rtt: sender.smoothed_rtt(),
                acked: sender.acked().as_u64(),
            };
            let back = number & 1 == 1;
            sampler.flow((end.flow, back), point, || self.trace_of(end.flow, back));
        }
        for (index, end) in self.links.iter_mut().enumerate() {
            let (sent, queue) = end.link.sent_and_queued(self.now);
            let host = sampler.hosts.get(index).copied().flatten();
            let before = host.map_or(0, |host| held(&self.nodes[host as usize].carrier));
            sampler.link(index, LinkPoint { at: self.now, queue: queue + before, sent });
        }
        let next = sampler.next(self.now);
        self.agenda.keep(sampler.source, next);
        self.sampler = Some(sampler);
    }

    /// The trace of one direction of a flow, before its first sample.
    fn trace_of(&self, flow: u32, back: bool) -> FlowTrace {
        let (from, to) = self.flows[flow as usize].way(back);
        let workload = self.flows[flow as usize].workload as usize;
        let name = |node: u32| self.nodes[node as usize].name.clone();
        FlowTrace {
            workload: self.workloads[workload].0.clone(),
            number: flow - self.workloads[workload].1,
            from: name(from.node),
            to: name(to.node),
            begun: self.apps[workload].begun(flow),
            points: Vec::new(),
        }
    }
}

/// Bytes that wait in a host's engine or limiter.
fn held(carrier: &Carrier) -> u64 {
    match carrier {
        Carrier::Plain => 0,
        Carrier::Nic { nic, .. } => nic.holds().map(|(packet, _)| u64::from(packet.len)).sum(),
        Carrier::Limiter { limiter, .. } => Limiter::holds(limiter).map(|packet| u64::from(packet.len)).sum(),
    }
}
