//! What a program and its host agree on: names of functions, and the layout of a batch in the program's memory.
//!
//! Why: a program is compiled long before the host that runs it, so the layout is fixed and has a version.
//! From: FairNIC §4.2.1: packets lie in their tenant's own pool, and programs change them in place.
//! Not here: calling a program (`program`).
//! Invariant: the layout is that of `sdk/c/plimsoll.h`, all numbers little-endian, as WebAssembly has them.
//!
//! | batch, from its address | bytes |
//! | --- | --- |
//! | time in nanoseconds | 0 to 7 |
//! | packets in it | 8 to 11 |
//! | packets that it has room for | 12 to 15 |
//! | a packet of 32 bytes for each place | from 16 |
//!
//! | packet | bytes |
//! | --- | --- |
//! | address of its first byte | 0 to 3 |
//! | its length | 4 to 7 |
//! | address of its buffer | 8 to 11 |
//! | the buffer's length | 12 to 15 |
//! | verdict | 16 |
//! | the port that it came from; with the verdict [`Verdict::Redirect`] the one that it goes to, with [`Verdict::Unit`] the operation | 17 |
//! | with [`Verdict::Unit`] where its input begins, in bytes from its beginning | 18 to 19 |
//! | with [`Verdict::Unit`] the address of the argument; of a packet that comes back, the result | 20 to 23 |
//! | when it arrived, in nanoseconds | 24 to 31 |

/// The version of the layout, which the exported function `plimsoll_abi_1` names.
pub const ABI: u32 = 1;

/// Most packets of a batch, together with those that a program adds.
pub const BATCH: usize = 64;

/// The function whose presence says which version a program was written for.
pub(crate) const MARKER: &str = "plimsoll_abi_1";

/// Called once, before the first batch: `init() -> i32`, where 0 is success.
pub(crate) const INIT: &str = "init";

/// Called from time to time: `tick(now: i64)`.
pub(crate) const TICK: &str = "tick";

/// Called before another module takes over: `state_save() -> i64`, the address of what is to be kept in the upper 32 bits, and its length in
/// the lower ones.
pub(crate) const SAVE: &str = "state_save";

/// Called in the module that takes over: `state_room(length: i32) -> i32`, the address that the state is copied to; 0 for none.
pub(crate) const ROOM: &str = "state_room";

/// Called after that: `state_restore(length: i32) -> i32`, where 0 is success.
pub(crate) const RESTORE: &str = "state_restore";

/// Bytes of a batch before its packets.
pub(crate) const HEAD: usize = 16;

/// Bytes of a packet in a batch.
pub(crate) const ENTRY: usize = 32;

/// Bytes of a batch, up to the first buffer: buffers begin with a cache line.
pub(crate) const STAGED: usize = (HEAD + BATCH * ENTRY).next_multiple_of(64);

/// The direction in which packets pass a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the network to the tenant: the exported function `ingress(batch: i32) -> i32`.
    Ingress,
    /// From the tenant to the network: the exported function `egress(batch: i32) -> i32`.
    Egress,
}

impl Way {
    /// Both directions.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The name of the exported function.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It goes on in its direction.
    Pass,
    /// It is dropped, as the program wants.
    Drop,
    /// It goes to this port: 0 is the network, others are the tenant's own.
    Redirect(u8),
    /// It goes to a coprocessor, and comes back to the program.
    Unit(UnitCall),
}

/// What a program wants of a coprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnitCall {
    /// The number of the operation ([`crate::Operation`]).
    pub operation: u8,
    /// Where in the packet its input begins; what is before it stays.
    pub offset: u16,
    /// The address of the argument in the program's memory.
    pub argument: u32,
}

/// Added to the number of an operation, the port of a packet that comes back from a coprocessor.
pub const FROM_UNIT: u8 = 128;

impl Verdict {
    /// From its two bytes in a batch.
    pub(crate) const fn read(verdict: u8, port: u8, offset: u16, argument: u32) -> Option<Self> {
        match verdict {
            3 => Some(Self::Unit(UnitCall { operation: port, offset, argument })),
            0 => Some(Self::Pass),
            1 => Some(Self::Drop),
            2 => Some(Self::Redirect(port)),
            _ => None,
        }
    }
}

/// A packet, as it stands in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) data: u32,
    pub(crate) len: u32,
    pub(crate) buffer: u32,
    pub(crate) size: u32,
    pub(crate) verdict: u8,
    pub(crate) port: u8,
    pub(crate) result: u32,
    pub(crate) arrived: u64,
}

impl Entry {
    #[inline]
    pub(crate) fn write(&self, to: &mut [u8; ENTRY]) {
        // Four stores.
        let both = |low: u32, high: u32| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
        let verdict = u32::from(self.verdict) | u32::from(self.port) << 8;
        to[..8].copy_from_slice(&both(self.data, self.len));
        to[8..16].copy_from_slice(&both(self.buffer, self.size));
        to[16..24].copy_from_slice(&both(verdict, self.result));
        to[24..].copy_from_slice(&self.arrived.to_le_bytes());
    }

    /// What a program may have written: where the packet lies, its length, and its verdict, if there is such a one.
    #[inline]
    pub(crate) fn read(from: &[u8; ENTRY]) -> (u32, u32, Option<Verdict>) {
        // One load each.
        let &[a, b, c, d, e, f, g, h, ..] = from;
        let &[.., i, j, k, l, _, _, _, _, _, _, _, _] = from;
        let verdict = Verdict::read(
            from[16],
            from[17],
            u16::from_le_bytes([from[18], from[19]]),
            u32::from_le_bytes([i, j, k, l]),
        );
        (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]), verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let entry = Entry {
            data: 0x0102_0304,
            len: 60,
            buffer: 0xffff_0000,
            size: 2_048,
            verdict: 2,
            port: 9,
            result: 0x1122_3344,
            arrived: 0x0123_4567_89ab_cdef,
        };
        let mut bytes = [0xee; ENTRY];
        entry.write(&mut bytes);
        assert_eq!(Entry::read(&bytes), (entry.data, 60, Some(Verdict::Redirect(9))));
        bytes[16..20].copy_from_slice(&[3, 1, 42, 0]);
        let call = UnitCall { operation: 1, offset: 42, argument: 0x1122_3344 };
        assert_eq!(Entry::read(&bytes).2, Some(Verdict::Unit(call)));
        assert!((4..=255).all(|verdict| Verdict::read(verdict, 0, 0, 0).is_none()));
        entry.write(&mut bytes);
        assert_eq!(bytes[8..16], [0, 0, 0xff, 0xff, 0, 8, 0, 0]);
        assert_eq!(bytes[24..], entry.arrived.to_le_bytes());
        assert_eq!(bytes[..4], [4, 3, 2, 1]);
        assert_eq!(bytes[18..24], [0, 0, 0x44, 0x33, 0x22, 0x11]);
    }
}
