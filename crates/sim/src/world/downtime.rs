//! What a fault does to a world: a daemon that ends loses its packets, a guest that stops reading gets none.
//!
//! Why: isolation must also hold while something goes wrong.
//! From: `docs/scenarios.md`, "Faults"; a daemon that ends loses the packets in its engine and its receive ring, and one that
//! starts again has no state from before.
//! Not here: which faults are to come, and when (`fault`).
//! Invariant: each lost packet is counted, and guests get their buffers back.

use super::{Carrier, World};
use crate::fault::{DOWN, FaultStep, Spare};
use crate::flow::Flow;
use crate::packet::Packet;

impl World {
    /// Carries out the steps that are due.
    pub(super) fn apply_faults(&mut self) {
        while let Some((_, step)) = self.faults.steps.pop_if(|(at, _)| *at <= self.now) {
            match step {
                FaultStep::Down(node) => self.end_daemon(node),
                FaultStep::Up(node) => self.begin_daemon(node),
                FaultStep::Clock(node, ahead) => {
                    if let Some(control) = &mut self.control {
                        control.set_clock(node, ahead);
                    }
                }
                FaultStep::Stall(tenant) => self.stalled.push(tenant),
                FaultStep::Resume(tenant) => self.stalled.retain(|&stalled| stalled != tenant),
            }
        }
        let next = self.faults.steps.last().map(|&(at, _)| at);
        self.agenda.keep(self.faults.source, next);
    }

    /// Whether the tenant that a packet is for has stopped reading.
    pub(super) fn is_stalled(&self, packet: &Packet) -> bool {
        let to = self.flows[packet.flow as usize].leg(packet).1;
        to.tenant.is_some_and(|tenant| self.stalled.contains(&tenant))
    }

    fn end_daemon(&mut self, node: u32) {
        let here = &mut self.nodes[node as usize];
        here.down = true;
        if let Some(watch) = &mut here.watch {
            watch.down(true, self.now);
        }
        let spare = self.faults.spares.get_mut(&node).and_then(Vec::pop);
        let Some(Spare { nic: fresh, receive: fresh_receive }) = spare else { return };
        let mut lost: Vec<(Packet, u32)> = Vec::new();
        if let Carrier::Nic { nic, source, .. } = &mut here.carrier {
            let mut old = core::mem::replace(nic, fresh);
            lost.extend(old.holds().map(|(packet, frames)| (*packet, frames)));
            if let Some(mut holdings) = old.holdings.take() {
                holdings.clear(self.now);
                nic.holdings = Some(holdings);
            }
            if old.completes_late() {
                self.completed.extend(old.abandoned());
            }
            self.agenda.clear(*source);
        }
        if let (Some(receive), Some(mut fresh)) = (&mut here.receive, fresh_receive) {
            self.agenda.clear(receive.source);
            lost.extend(receive.holds().into_iter().map(|packet| (*packet, 1)));
            self.completed.extend(receive.unsettled());
            fresh.go_on(receive, self.now);
            *receive = fresh;
        }
        if let Some(press) = &mut here.press {
            let waiting: Vec<Packet> = press.waiting().copied().collect();
            lost.extend(waiting.iter().map(|packet| (*packet, packet.frames())));
            self.completed.extend(waiting);
            press.restart(self.now);
            self.agenda.clear(here.press_source);
        }
        for (packet, frames) in &lost {
            let (from, to) = self.flows[packet.flow as usize].leg(packet);
            if let Some(watch) = &mut self.nodes[node as usize].watch {
                match from.node == node {
                    true => watch.lost(from.tenant, *frames, DOWN),
                    false => watch.nic_full(to.tenant),
                }
            }
            self.lose_frames(packet, *frames, DOWN);
        }
        let ends = self.flows.iter_mut().flat_map(Flow::all_ends).filter(|end| end.node == node);
        ends.for_each(|end| end.queue = None);
        if let Some(control) = &mut self.control {
            control.stop(node);
        }
    }

    fn begin_daemon(&mut self, node: u32) {
        let now = self.now;
        let here = &mut self.nodes[node as usize];
        here.down = false;
        if let Some(watch) = &mut here.watch {
            watch.down(false, now);
        }
        if let Some(press) = &mut here.press {
            press.restart(now);
            let first = press.next(|_| 0, now);
            self.agenda.keep(here.press_source, first);
        }
        if let Some(control) = &mut self.control {
            control.start(node, now);
        }
        self.steer(node);
    }
}
