//! The buffers of a program's pool, which lie in its linear memory.
//!
//! Why: no packet is copied between a pool and a program, and a program that keeps its buffers keeps its own tenant's only.
//! From: FairNIC §4.2.1: a buffer pool for each tenant.
//! Not here: the memory itself (`program`).
//! Invariant: a slot is either free or taken; the program cannot change which.

use crate::abi::FROM_UNIT;
use crate::program::Packet;
use crate::unit::Request;

/// A buffer of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u32);

/// Where the buffers lie, and which are free.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Address of the first buffer.
    begin: u32,
    size: u32,
    free: Vec<Slot>,
}

impl Pool {
    pub(crate) fn new(begin: u32, count: u32, size: u32) -> Self {
        Self { begin, size, free: (0..count).rev().map(Slot).collect() }
    }

    pub(crate) fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Takes a free buffer for a packet that a coprocessor has answered; none where it is too short.
    pub(crate) fn take_for(&mut self, request: &Request, result: u32) -> Option<Packet> {
        let len = u32::try_from(request.packet.len()).ok().filter(|len| *len <= self.size)?;
        Some(Packet { slot: self.take()?, len, port: FROM_UNIT | request.operation.number(), result })
    }

    pub(crate) fn give(&mut self, slot: Slot) {
        debug_assert!(!self.free.contains(&slot), "{slot:?} is given twice");
        self.free.push(slot);
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// The address of a buffer.
    #[inline]
    pub(crate) fn address(&self, slot: Slot) -> u32 {
        self.begin + slot.0 * self.size
    }

    /// Bytes of each buffer.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Where in the buffer a packet begins that a program has placed at this address with this length, if it lies in the buffer.
    #[inline]
    pub(crate) fn place(&self, slot: Slot, data: u32, len: u32) -> Option<u32> {
        let at = data.checked_sub(self.address(slot))?;
        (at.checked_add(len)? <= self.size).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_lies_in_its_own_buffer_or_nowhere() {
        let pool = Pool::new(1_000, 4, 100);
        let slot = Slot(2);
        assert_eq!(pool.address(slot), 1_200);
        for (data, len, place) in [
            (1_200, 100, Some(0)),
            (1_250, 50, Some(50)),
            (1_300, 0, Some(100)),
            (1_199, 1, None),
            (1_201, 100, None),
            (u32::MAX, 2, None),
            (1_200, u32::MAX, None),
            (0, 60, None),
        ] {
            assert_eq!(pool.place(slot, data, len), place, "{data} {len}");
        }
    }

    #[test]
    fn each_buffer_is_taken_once() {
        let mut pool = Pool::new(0, 3, 64);
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        taken.sort();
        assert_eq!(taken, [Slot(0), Slot(1), Slot(2)]);
        pool.give(Slot(1));
        assert_eq!((pool.free(), pool.take(), pool.take()), (1, Some(Slot(1)), None));
    }
}
