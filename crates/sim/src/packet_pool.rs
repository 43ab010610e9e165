//! The packets that links carry, each in a slot of its own.
//!
//! Why: a link's queue and its wire hold only a packet's number and moment, so that a hop neither copies nor reads the rest.
//! From: packet pools of network drivers and of DPDK.
//! Not here: packets that hosts hold, on their way out and in.
//! Invariant: a slot belongs to one packet from [`PacketPool::add`] to [`PacketPool::take`].

use core::ops::{Index, IndexMut};

use crate::packet::Packet;

/// A packet's place in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

impl Slot {
    /// A slot of no pool.
    #[cfg(test)]
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// The packets that links carry.
#[derive(Debug, Default)]
pub(crate) struct PacketPool {
    packets: Vec<Packet>,
    /// Those that are empty. The one that was used last is used next: it is still in the processor's caches.
    free: Vec<Slot>,
}

impl PacketPool {
    /// Gives a packet a slot.
    #[inline]
    pub(crate) fn add(&mut self, packet: &Packet) -> Slot {
        if let Some(slot) = self.free.pop() {
            self[slot] = *packet;
            return slot;
        }
        let slot = Slot(u32::try_from(self.packets.len()).expect("fewer packets than there are numbers"));
        self.packets.push(*packet);
        slot
    }

    /// Takes a packet out of its slot.
    #[inline]
    pub(crate) fn take(&mut self, slot: Slot) -> Packet {
        self.free.push(slot);
        self[slot]
    }
}

impl Index<Slot> for PacketPool {
    type Output = Packet;

    #[inline]
    fn index(&self, Slot(slot): Slot) -> &Packet {
        &self.packets[slot as usize]
    }
}

impl IndexMut<Slot> for PacketPool {
    #[inline]
    fn index_mut(&mut self, Slot(slot): Slot) -> &mut Packet {
        &mut self.packets[slot as usize]
    }
}
