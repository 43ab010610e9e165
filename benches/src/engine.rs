//! The engine from doorbell to completion, on one core, through memory.
//!
//! Why: kernel ports cap a core near 1.5 million packets a second; a scheduler's own speed shows only here.
//! From: the host's side of Loom §4.3: post descriptors, ring doorbells by the line, take completions.
//! Not here: what it is compared with, and the policies.
//! Invariant: the number of packets inside is constant, and the link is never asked for more than its rate.

use anyhow::{Result, anyhow};
use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic, Outcome, QueueId, Transmit};
use plimsoll_policy::{Placement, Program, Sources};
use plimsoll_record::{Recorded, Recorder};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::hold::{Draw, FRAME, Moved, in_flight, processor_time};
use crate::policies::LINK;

/// Frames that the link carries between two calls of the engine.
const BATCH: u32 = 32;

/// Descriptors of each ring: as many as `rte_sched`'s queues hold.
const RING: u16 = 64;

/// Where a packet that has left is posted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// In a flow queue drawn at random, as the peer's bench does.
    Random,
    /// In its own flow queue: every queue stays backlogged, so that a limit on it always binds.
    Same,
}

/// The engine and the host that feeds it.
pub struct Engine {
    nic: Recorded,
    bells: DoorbellQueue,
    queues: Vec<QueueId>,
    sent: Vec<Transmit>,
    now: Nanos,
    refill: Refill,
    draw: Draw,
    served: u64,
}

impl Engine {
    /// An engine under `program` with one flow queue for each placement, and `inside` packets in them.
    pub fn new(program: &Program, places: &[Placement], inside: u32, refill: Refill) -> Result<Self> {
        Self::made(program, places, inside, refill, RING, None)
    }

    /// [`Engine::new`] with a recorder, if there is one.
    pub fn recorded(
        program: &Program,
        places: &[Placement],
        inside: u32,
        refill: Refill,
        recorder: Option<Recorder>,
    ) -> Result<Self> {
        Self::made(program, places, inside, refill, RING, recorder)
    }

    /// [`Engine::new`] with rings of `ring` descriptors.
    pub fn with_ring(
        program: &Program,
        places: &[Placement],
        inside: u32,
        refill: Refill,
        ring: u16,
    ) -> Result<Self> {
        Self::made(program, places, inside, refill, ring, None)
    }

    fn made(
        program: &Program,
        places: &[Placement],
        inside: u32,
        refill: Refill,
        ring: u16,
        recorder: Option<Recorder>,
    ) -> Result<Self> {
        let config = Config {
            queues: u32::try_from(places.len())?,
            ring,
            descriptors: inside.max(BATCH) * 2,
            pull: Bytes::new(1_514),
            catch_up: Span::micros(10),
        };
        let mut nic = Recorded::new(Nic::new(program, &config));
        if let Some(recorder) = recorder {
            nic.record(recorder, &Sources::default());
        }
        let open = |place| nic.open_queue(place).map_err(|refusal| anyhow!("no flow queue: {refusal:?}"));
        let mut queues = places.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut draw = Draw::new();
        for left in (1..queues.len()).rev() {
            // Not in the order of memory, or the processor would fetch everything ahead by itself.
            queues.swap(left, draw.below(u32::try_from(left + 1)?) as usize);
        }
        let mut engine = Self {
            nic,
            bells: DoorbellQueue::default(),
            queues,
            sent: Vec::with_capacity(BATCH as usize),
            now: Nanos::ZERO,
            refill,
            draw: Draw::new(),
            served: 0,
        };
        for packet in 0..inside {
            engine.post_first(packet)?;
        }
        engine.ring();
        Ok(engine)
    }

    fn post_first(&mut self, packet: u32) -> Result<()> {
        let count = u32::try_from(self.queues.len())?;
        for _ in 0..64 {
            let queue = match self.refill {
                Refill::Random => self.queues[self.draw.below(count) as usize],
                Refill::Same => self.queues[(packet % count) as usize],
            };
            if self.post(queue, u64::from(packet)) {
                return Ok(());
            }
        }
        Err(anyhow!("the engine has no room for packet {packet}"))
    }

    /// A function of its own, so that the compiler inlines the engine's part into it, whatever is around its callers.
    #[inline(never)]
    fn post(&mut self, queue: QueueId, addr: u64) -> bool {
        let descriptor = Descriptor { addr, len: FRAME, ..Descriptor::default() };
        let posted = self.nic.post(queue, descriptor).is_ok();
        if posted {
            self.bells.bell(queue);
        }
        posted
    }

    fn ring(&mut self) {
        let (nic, now) = (&mut self.nic, self.now);
        self.bells.flush(|line| nic.ring(line, now));
    }

    /// Serves at least `packets` packets; each returns when its completion is taken.
    ///
    /// Between two calls time moves by what [`BATCH`] frames take on the link, whether or not the limits let as many
    /// through, as when a daemon polls under load.
    pub fn run(&mut self, packets: u64) -> Moved {
        let step = LINK.wire_time(Bytes::new(u64::from(FRAME * BATCH)));
        let count = u32::try_from(self.queues.len()).expect("counted in new");
        let mut moved = Moved::default();
        let from = processor_time();
        while moved.packets < packets {
            self.now += step;
            self.sent.clear();
            self.nic.poll_transmit(self.now, &mut self.sent);
            for index in 0..self.sent.len() {
                let transmit = self.sent[index];
                self.nic.complete(&transmit, Outcome::Sent);
            }
            moved.lost += self.post_again(count);
            self.ring();
            moved.packets += self.sent.len() as u64;
        }
        moved.spent = processor_time().saturating_sub(from);
        self.served += moved.packets;
        moved
    }

    /// Takes the batch's completions and posts each packet again: the queues of the whole batch are fetched before the
    /// first is used, as a host with a batch in hand can. Returns how many found their queue full and took another.
    #[inline]
    fn post_again(&mut self, count: u32) -> u64 {
        let mut batch = [(QueueId(0), 0); BATCH as usize];
        let mut len = 0;
        while let Some(completion) = self.nic.poll_completion() {
            let queue = match self.refill {
                Refill::Random => self.queues[self.draw.below(count) as usize],
                Refill::Same => completion.queue,
            };
            self.nic.prefetch(queue);
            batch[len] = (queue, completion.addr);
            len += 1;
        }
        for &(queue, _) in &batch[..len] {
            self.nic.prefetch_ring(queue);
        }
        let mut lost = 0;
        for &(mut queue, addr) in &batch[..len] {
            while !self.post(queue, addr) {
                lost += 1;
                queue = self.queues[self.draw.below(count) as usize];
            }
        }
        lost
    }

    /// Packets served since the start of time.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// How much of the link has been used since the start of time, in per cent.
    pub fn used_percent(&self) -> f64 {
        let bits = self.served as f64 * f64::from(FRAME) * 8.0;
        let elapsed = self.now.since(Nanos::ZERO).as_secs_f64();
        100.0 * bits / (elapsed * LINK.get() as f64)
    }

    /// Enqueue and dequeue pairs for each packet: the mean, and the most that one took.
    pub fn pairs(&self) -> (f64, u64) {
        let stats = self.nic.stats();
        (stats.pairs as f64 / stats.pulls.max(1) as f64, stats.most_pairs.into())
    }
}

/// `each` flow queues in every class of `program`.
pub fn spread(program: &Program, each: u32) -> Vec<Placement> {
    let fields = plimsoll_policy::Fields::default();
    let place = |class| program.place(class, &fields);
    let of_class = |class| std::iter::repeat_n(place(class), each as usize);
    crate::policies::classes(program).into_iter().flat_map(of_class).collect()
}

/// Packets inside for this number of flow queues.
pub fn inside(queues: usize) -> u32 {
    in_flight(u32::try_from(queues).unwrap_or(u32::MAX))
}
