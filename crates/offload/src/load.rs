//! Batches for a program that runs on another thread, with the packets in memory of their own.
//!
//! Why: only one thread can reach a program's memory, so packets come to a program elsewhere, and leave it, by copying.
//! From: FairNIC §4.1: a tenant's packets are handed to its own cores.
//! Not here: the thread, and the ring to it (`daemon`).
//! Invariant: a buffer that leaves with a load comes back with it, whatever the program does.

use plimsoll_units::Nanos;

use crate::abi::{BATCH, Verdict, Way};
use crate::pool::{Pool, Slot};
use crate::program::{Decided, Fault, Packet, Program};
use crate::runtime::Limits;
use crate::unit::Request;

/// Buffers for the packets of a program that runs elsewhere.
#[derive(Debug)]
pub struct Buffers {
    pool: Pool,
    /// By slot; empty while a buffer is in a load.
    bytes: Vec<Box<[u8]>>,
    /// Most packets that leave the program for one that enters it.
    amplification: usize,
}

/// A batch, with its packets and with free buffers for those that the program adds.
#[derive(Debug)]
pub struct Load {
    way: Way,
    now: Nanos,
    packets: Vec<Packet>,
    /// The buffers of the packets, in their order, and then the free ones.
    buffers: Vec<(Slot, Box<[u8]>)>,
    /// What the program has decided, with what it wants of coprocessors.
    settled: Vec<(Decided, Option<Request>)>,
    malformed: u32,
    fault: Option<Fault>,
}

impl Buffers {
    /// As many buffers as these limits state, of their size.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let empty = || vec![0; limits.buffer as usize].into_boxed_slice();
        Self {
            pool: Pool::new(0, limits.buffers, limits.buffer),
            bytes: (0..limits.buffers).map(|_| empty()).collect(),
            amplification: limits.amplification as usize,
        }
    }

    /// Takes a free buffer.
    pub fn take(&mut self) -> Option<Slot> {
        self.pool.take()
    }

    /// Frees a buffer that was taken.
    pub fn give(&mut self, slot: Slot) {
        self.pool.give(slot);
    }

    /// Free buffers.
    #[must_use]
    pub fn free(&self) -> usize {
        self.pool.free()
    }

    /// The bytes of a buffer.
    #[must_use]
    pub fn bytes(&self, slot: Slot) -> &[u8] {
        &self.bytes[slot.0 as usize]
    }

    /// The bytes of a buffer, to write.
    pub fn bytes_mut(&mut self, slot: Slot) -> &mut [u8] {
        &mut self.bytes[slot.0 as usize]
    }

    /// Puts a packet that a coprocessor has answered into a free buffer, for the next batch. None without one, or where it is too short.
    pub fn give_back(&mut self, request: &Request, result: u32) -> Option<Packet> {
        let packet = self.pool.take_for(request, result)?;
        self.bytes_mut(packet.slot)[..request.packet.len()].copy_from_slice(&request.packet);
        Some(packet)
    }

    /// Puts at most [`BATCH`] packets into a load, and free buffers for those that the program may add.
    pub fn send(&mut self, load: &mut Load, way: Way, packets: &[Packet], now: Nanos) {
        let packets = &packets[..packets.len().min(BATCH)];
        debug_assert!(load.buffers.is_empty(), "what was in it has been received");
        (load.way, load.now) = (way, now);
        load.packets.clear();
        load.packets.extend_from_slice(packets);
        let room = packets.len().saturating_mul(self.amplification).min(BATCH);
        let Self { pool, bytes, .. } = self;
        let added = std::iter::from_fn(|| pool.take()).take(room.saturating_sub(packets.len()));
        let slots = packets.iter().map(|packet| packet.slot).chain(added);
        load.buffers.extend(slots.map(|slot| (slot, core::mem::take(&mut bytes[slot.0 as usize]))));
    }

    /// Takes the buffers of a load back that has passed its program. Those of packets that go on are taken, all others free.
    pub fn receive(&mut self, load: &mut Load) {
        let taken = load.settled.iter().filter(|(decided, _)| decided.verdict != Verdict::Drop).count();
        for (number, (slot, bytes)) in load.buffers.drain(..).enumerate() {
            self.bytes[slot.0 as usize] = bytes;
            if number >= taken {
                self.pool.give(slot);
            }
        }
    }
}

impl Default for Load {
    /// An empty load, with room for a batch.
    fn default() -> Self {
        Self {
            way: Way::Ingress,
            now: Nanos::ZERO,
            packets: Vec::with_capacity(BATCH),
            buffers: Vec::with_capacity(BATCH),
            settled: Vec::with_capacity(BATCH),
            malformed: 0,
            fault: None,
        }
    }
}

impl Load {
    /// The direction of its packets.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Packets that were put into it.
    #[must_use]
    pub fn given(&self) -> usize {
        self.packets.len()
    }

    /// Takes out what the program has decided about each packet, in its order. A packet for a coprocessor has its request, if that is a
    /// valid one.
    pub fn take_settled(&mut self) -> Vec<(Decided, Option<Request>)> {
        core::mem::take(&mut self.settled)
    }

    /// Takes a vector back that [`Load::take_settled`] has answered, for the next packets.
    pub fn recycle(&mut self, mut settled: Vec<(Decided, Option<Request>)>) {
        settled.clear();
        self.settled = settled;
    }

    /// Packets that are lost, as they lie outside their buffer or have an unknown verdict.
    #[must_use]
    pub fn malformed(&self) -> u32 {
        self.malformed
    }

    /// Why all its packets are lost, if they are.
    pub fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// Runs a program with these packets, on the thread that has the program: copies them into its memory, calls it, and copies out what
    /// goes on.
    pub fn run(&mut self, program: &mut Program) {
        self.settled.clear();
        (self.malformed, self.fault) = (0, None);
        let Self { packets, buffers, .. } = self;
        for (packet, (_, bytes)) in packets.iter_mut().zip(buffers.iter()) {
            // Its pool has a batch's buffers, and none is taken between two calls.
            let Some(slot) = program.take() else { break };
            let len = packet.len as usize;
            program.bytes_mut(slot)[..len].copy_from_slice(&bytes[..len]);
            packet.slot = slot;
        }
        let ran = program.run_within(self.way, &self.packets, self.buffers.len(), self.now);
        match ran.map(|ran| ran.malformed) {
            Ok(malformed) => self.malformed = malformed,
            Err(fault) => self.fault = Some(fault),
        }
        if self.fault.is_none() {
            self.copy_out(program);
        }
    }

    fn copy_out(&mut self, program: &mut Program) {
        let Self { buffers, settled, .. } = self;
        let mut buffers = buffers.iter_mut();
        for number in 0..program.ran().packets.len() {
            let decided = program.ran().packets[number];
            if decided.verdict == Verdict::Drop {
                settled.push((decided, None));
                continue;
            }
            // A program returns no more packets than there are places, each of which has a buffer.
            let Some((slot, bytes)) = buffers.next() else { break };
            let request = match decided.verdict {
                Verdict::Unit(call) => program.request(&decided, call),
                _ => {
                    let packet = program.packet(&decided);
                    bytes[..packet.len()].copy_from_slice(packet);
                    None
                }
            };
            program.give(decided.slot);
            settled.push((Decided { slot: *slot, at: 0, ..decided }, request));
        }
    }
}
