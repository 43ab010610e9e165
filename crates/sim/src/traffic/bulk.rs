//! Bulk TCP: flows that always have something to send, or send and pause in turn.
//!
//! Why: they take what they can get, each flow for itself; isolation means that they cannot take more.
//! From: iperf3's idea; on/off times are exponential, as most traffic models have them.
//! Not here: shuffles, whose flows wait for each other (`rounds`).
//! Invariant: at the stop unsent data is thrown away, not drained.

use plimsoll_units::Span;

use super::Job;
use crate::chance::Chance;
use crate::world::World;

/// Flows that send all the time, or by turns.
#[derive(Debug)]
pub(crate) struct Bulk {
    job: Job,
    rhythm: Option<Rhythm>,
    sending: Vec<bool>,
    begun: bool,
}

/// Times of sending and of pausing.
#[derive(Debug)]
pub(crate) struct Rhythm {
    pub(crate) on: Span,
    pub(crate) off: Span,
    pub(crate) chance: Chance,
}

/// What a socket's buffer takes ahead of what was acknowledged: Linux's usual most.
const BUFFER: u64 = 4 << 20;

impl Bulk {
    pub(crate) fn new(job: Job, rhythm: Option<Rhythm>) -> Self {
        Self { sending: vec![true; job.count as usize], job, rhythm, begun: false }
    }

    /// The first timer begins and ends it all; flow n's turns are timer n + 1.
    pub(super) fn timeout(&mut self, world: &mut World, timer: u32) {
        if timer == 0 {
            return if self.begun { self.end(world) } else { self.begin(world) };
        }
        let (flow, socket) = (timer as usize - 1, self.job.first + 2 * (timer - 1));
        if world.now >= self.job.stop {
            return;
        }
        self.sending[flow] = !self.sending[flow];
        self.next_turn(world, timer - 1);
        self.acknowledged(world, socket);
    }

    fn begin(&mut self, world: &mut World) {
        self.begun = true;
        world.set_timer(self.job.timer, Some(self.job.stop));
        for flow in 0..self.job.count {
            let socket = self.job.first + 2 * flow;
            match self.rhythm {
                None => world.write_unlimited(socket),
                Some(_) => {
                    self.next_turn(world, flow);
                    self.acknowledged(world, socket);
                }
            }
        }
    }

    fn end(&mut self, world: &mut World) {
        for flow in 0..self.job.count {
            world.close(self.job.first + 2 * flow);
            if self.rhythm.is_some() {
                world.set_timer(self.job.timer + 1 + flow, None);
            }
        }
    }

    fn next_turn(&mut self, world: &mut World, flow: u32) {
        if let Some(Rhythm { on, off, chance }) = &mut self.rhythm {
            let next = world.now + chance.exponential(if self.sending[flow as usize] { *on } else { *off });
            world.set_timer(self.job.timer + 1 + flow, Some(next));
        }
    }

    /// A flow that takes turns fills its socket's buffer while it is its turn.
    pub(super) fn acknowledged(&mut self, world: &mut World, socket: u32) {
        let flow = (socket - self.job.first) / 2;
        if self.rhythm.is_some() && self.sending[flow as usize] {
            world.fill(socket, BUFFER);
        }
    }
}
