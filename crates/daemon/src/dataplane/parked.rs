//! Frames beyond their flow's cap, whose descriptors stay with their sender.
//!
//! Why: a flow that waits for its limit must not hold the engine's descriptors, nor lose packets at first: a guest that
//! is not told of their completion sends less of that flow, and as much as before of the others.
//! From: PicNIC §5.4.2 and §5.4.3: a cap for each flow, lower than the guest's ring, and refusal that leaves the packet
//! where it is. What the paper leaves open, the flow that goes on nevertheless, ends in a drop: an eighth of the ring is
//! for others.
//! Not here: how many frames a flow queue takes (`nic`), and the guest's ring (`ports`).
//! Invariant: frames are parked only while their flow queue has as many in the engine as it may have; each completion brings
//! the next one in, in order.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use plimsoll_nic::{Descriptor, QueueId};
use plimsoll_ports::Port;
use plimsoll_vnic::Status;

use super::Dataplane;
use super::lane::Lane;
use super::pool::Buffer;

/// Where the next frame of a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// In its flow queue.
    Engine,
    /// Outside the engine for now: its sender is not told of its completion.
    Sender,
    /// Nowhere: the flow has as many frames on their way as it may have.
    Nowhere,
}

impl Admission {
    /// Decides for `frames` of a flow that has `held` frames in the engine, which takes `window` of one flow, and
    /// `parked` outside it. Of the sender's ring of `depth` descriptors, half is for frames in the engine, and an eighth
    /// for other flows.
    fn of(depth: u32, frames: u32, held: u32, parked: u32, window: u32) -> Self {
        if parked == 0 && Self::enters(depth, frames, held, window) {
            Self::Engine
        } else if held + parked + frames <= depth - depth / 8 {
            Self::Sender
        } else {
            Self::Nowhere
        }
    }
}

impl Admission {
    /// Whether `frames` frames may join those of their flow in the engine. If the flow has none there, they may.
    fn enters(depth: u32, frames: u32, held: u32, window: u32) -> bool {
        held == 0 || held + frames <= window.min(depth / 2)
    }
}

impl Lane {
    /// Decides where the next frames of this flow queue go. For a port that cannot hold a frame, that is the engine.
    #[inline]
    pub(crate) fn room(&self, queue: QueueId, frames: u32, held: u32, window: u32) -> Admission {
        match self.port.as_ref().and_then(Port::depth) {
            Some(depth) => match Admission::of(depth, frames, held, self.parked.of(queue), window) {
                // What is offered again counts twice until what it was before has gone: none is lost for that.
                Admission::Nowhere if self.to_come_again > 0 => Admission::Sender,
                admission => admission,
            },
            // A port that was lost, or begins anew, may leave parked frames, which go first.
            None if self.parked.of(queue) > 0 => Admission::Nowhere,
            // Several frames may be one descriptor there.
            None if held + frames > window => Admission::Nowhere,
            None => Admission::Engine,
        }
    }
}

impl Dataplane {
    /// Queues the next parked frames of a flow queue after others of it have left. Answers whether any entered.
    pub(super) fn unpark(&mut self, index: usize, queue: QueueId) -> bool {
        let Some(lane) = &mut self.tenants.lanes[index] else { return false };
        let depth = lane.port.as_ref().and_then(Port::depth).unwrap_or(u32::MAX);
        let mut came = false;
        while let Some(frames) = lane.parked.first(queue) {
            if !Admission::enters(depth, frames, self.scheduler.holds(queue), self.scheduler.window) {
                break;
            }
            let Some((next, frames)) = lane.parked.pop(queue) else { break };
            match self.scheduler.post(queue, next, frames) {
                Ok(()) => came = true,
                Err(why) => {
                    let (_, buffer) = Buffer::from_address(next.addr);
                    lane.give_held(buffer, Status::Dropped);
                    lane.tally.refused_many(why, frames.into());
                }
            }
        }
        came
    }
}

/// Frames of one lane that wait outside the engine.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    flows: HashMap<QueueId, Waiting, RandomState>,
    /// Empty queues, to be used again.
    spare: Vec<Waiting>,
}

/// The parked frames of one flow.
#[derive(Debug, Default)]
struct Waiting {
    /// Buffers, with the number of frames in each.
    descriptors: VecDeque<(Descriptor, u32)>,
    frames: u32,
}

impl Parked {
    /// Whether nothing is parked.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// How many frames of this flow queue are parked.
    #[inline]
    pub(crate) fn of(&self, queue: QueueId) -> u32 {
        let waiting = if self.is_empty() { None } else { self.flows.get(&queue) };
        waiting.map_or(0, |waiting| waiting.frames)
    }

    /// Parks a buffer of `frames` frames behind others of its flow queue.
    pub(crate) fn push(&mut self, queue: QueueId, descriptor: Descriptor, frames: u32) {
        let waiting = self.flows.entry(queue).or_insert_with(|| self.spare.pop().unwrap_or_default());
        waiting.descriptors.push_back((descriptor, frames));
        waiting.frames += frames;
    }

    /// How many frames the next parked buffer of this flow queue has.
    pub(crate) fn first(&self, queue: QueueId) -> Option<u32> {
        self.flows.get(&queue)?.descriptors.front().map(|&(_, frames)| frames)
    }

    /// Takes the next parked buffer of this flow queue, with its number of frames.
    pub(crate) fn pop(&mut self, queue: QueueId) -> Option<(Descriptor, u32)> {
        let waiting = self.flows.get_mut(&queue)?;
        let next = waiting.descriptors.pop_front();
        waiting.frames -= next.map_or(0, |(_, frames)| frames);
        if waiting.descriptors.is_empty() {
            self.spare.extend(self.flows.remove(&queue));
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flow_never_has_all_of_its_senders_ring() {
        assert_eq!(Admission::of(256, 1, 0, 0, 128), Admission::Engine);
        assert_eq!(Admission::of(256, 1, 128, 0, 128), Admission::Sender);
        assert_eq!(Admission::of(256, 1, 64, 0, 64), Admission::Sender, "the engine's own cap is lower");
        assert_eq!(Admission::of(256, 1, 127, 1, 128), Admission::Sender, "behind what is parked");
        assert_eq!(Admission::of(256, 1, 128, 96, 128), Admission::Nowhere);
        assert_eq!(Admission::of(256, 18, 110, 0, 128), Admission::Engine);
        assert_eq!(Admission::of(256, 18, 111, 0, 128), Admission::Sender, "a train enters whole");
        assert_eq!(Admission::of(256, 18, 128, 80, 128), Admission::Nowhere, "a train that does not fit");
        assert_eq!(Admission::of(1, 1, 0, 0, 128), Admission::Engine, "the shortest ring carries something");
    }

    #[test]
    fn each_flow_queue_keeps_its_order_and_nothing_else() {
        let mut parked = Parked::default();
        for addr in 0..4 {
            parked.push(QueueId(addr as u32 % 2), Descriptor { addr, ..Descriptor::default() }, 3);
        }
        assert_eq!((parked.of(QueueId(0)), parked.of(QueueId(7))), (6, 0));
        let next = |parked: &mut Parked, queue| parked.pop(QueueId(queue)).map(|(frame, _)| frame.addr);
        assert_eq!(next(&mut parked, 1), Some(1));
        assert_eq!(
            (next(&mut parked, 0), next(&mut parked, 0), next(&mut parked, 0)),
            (Some(0), Some(2), None)
        );
        assert_eq!(next(&mut parked, 1), Some(3));
        assert!(parked.is_empty());
    }
}
