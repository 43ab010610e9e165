//! Flow queues: which of a bundle goes next, and what a pull takes of it.

use std::collections::VecDeque;

use plimsoll_nic::Descriptor;
use plimsoll_policy::FlowOrder;

use super::Reference;

pub(super) struct Flow {
    pub(super) bundle: usize,
    pub(super) packets: VecDeque<Packet>,
    pub(super) posted: Vec<(u64, Descriptor)>,
    pub(super) offset: u32,
    pub(super) head_since: u64,
    pub(super) deficit: i64,
}

#[derive(Clone, Copy)]
pub(super) struct Packet {
    pub(super) addr: u64,
    pub(super) descriptor: Descriptor,
    pub(super) arrived: u64,
    pub(super) number: u64,
}

impl Reference {
    /// Whether more packets follow the bundle's head.
    pub(super) fn follows(&self, bundle: usize) -> bool {
        let flows = || self.flows.iter().filter(|flow| flow.bundle == bundle);
        flows().map(|flow| flow.packets.len()).sum::<usize>() > 1
    }

    /// Whether the head leaves in one piece.
    pub(super) fn whole(&self, flow: usize) -> bool {
        let Descriptor { len, segment, header, .. } = self.flows[flow].packets[0].descriptor;
        segment == 0 || len <= u32::from(header) + u32::from(segment)
    }

    /// Payload, bytes and charge of the head's next pull.
    pub(super) fn piece(&self, flow: usize) -> (u32, u32, u64) {
        let limits = &self.bundles[self.flows[flow].bundle].limits;
        let halves = limits.iter().map(|&limit| self.limits[limit].burst / 2);
        let pull = halves.min().unwrap_or(self.pull).min(self.pull);
        let Descriptor { len, segment, header, .. } = self.flows[flow].packets[0].descriptor;
        let overhead = self.program.overhead.as_u64();
        if self.whole(flow) {
            return (len, len, u64::from(len) + overhead);
        }
        let (segment, header) = (u32::from(segment), u32::from(header));
        let rest = len - header - self.flows[flow].offset;
        let (mut payload, mut charge) = (0, 0);
        while payload < rest {
            let next = segment.min(rest - payload);
            let full_frame = u64::from(segment + header) + overhead;
            if payload > 0 && (u64::from(payload / segment) + 1) * full_frame > pull {
                break;
            }
            payload += next;
            charge += u64::from(next + header) + overhead;
        }
        (payload, header + payload, charge)
    }

    pub(super) fn head_charge(&self, bundle: usize) -> u64 {
        self.piece(self.front(bundle).expect("waits with a packet")).2
    }

    /// The flow queue of a bundle that goes next.
    pub(super) fn front(&self, bundle: usize) -> Option<usize> {
        let state = &self.bundles[bundle];
        match state.order {
            FlowOrder::Drr => state.turns.first().copied(),
            _ => state.turns.iter().copied().min_by_key(|&flow| (self.rank(bundle, flow), flow)),
        }
    }

    fn rank(&self, bundle: usize, flow: usize) -> u64 {
        match self.bundles[bundle].order {
            FlowOrder::Fifo | FlowOrder::Drr => self.flows[flow].packets[0].number,
            FlowOrder::Lstf(_) | FlowOrder::Edf(_) => self.deadline(bundle, flow),
            FlowOrder::Fq(_) | FlowOrder::Ranked(_) => unreachable!("the reference has no such class"),
        }
    }

    pub(super) fn deadline(&self, bundle: usize, flow: usize) -> u64 {
        let Packet { arrived, descriptor, .. } = self.flows[flow].packets[0];
        let default = match self.bundles[bundle].order {
            FlowOrder::Lstf(span) | FlowOrder::Edf(span) => span.as_u64(),
            FlowOrder::Fifo | FlowOrder::Drr => 0,
            FlowOrder::Fq(_) | FlowOrder::Ranked(_) => unreachable!("the reference has no such class"),
        };
        arrived + if descriptor.tag == 0 { default } else { u64::from(descriptor.tag) * 1_000 }
    }

    pub(super) fn use_turn(&mut self, bundle: usize, flow: usize, charge: u64) {
        let more = !self.flows[flow].packets.is_empty();
        let turns = &mut self.bundles[bundle].turns;
        let at = turns.iter().position(|&other| other == flow).expect("it has packets");
        let state = &mut self.flows[flow];
        if state.deficit <= 0 {
            state.deficit = (state.deficit + self.largest as i64).max(1);
        }
        state.deficit -= charge as i64;
        if !more {
            state.deficit = state.deficit.min(0);
            turns.remove(at);
        } else if state.deficit <= 0 {
            let flow = turns.remove(at);
            turns.push(flow);
        }
    }
}
