//! What a tenant's program in Rust and its host agree on, version 1: the same as `plimsoll.h` for C.
//!
//! Why: a program works on packets in its own memory, at addresses that its host has written; here these are slices.
//! From: docs/programs.md, "What a program and its host agree on".
//! Not here: an allocator; a program that wants one brings its own, which grows the memory before it uses it.
//! Invariant: a packet's bytes lie in its own buffer.
//!
//! ```
//! use plimsoll_program::{Batch, program};
//!
//! /// Drops what is longer than 1,000 bytes.
//! struct Short;
//!
//! impl Short {
//!     fn ingress(&mut self, batch: &mut Batch) {
//!         for packet in batch.packets() {
//!             if packet.bytes().len() > 1_000 {
//!                 packet.discard();
//!             }
//!         }
//!     }
//! }
//!
//! program!(Short = Short; ingress);
//! ```
//!
//! `cargo build --release --target wasm32-unknown-unknown` makes the module.
#![no_std]

use core::slice::{from_raw_parts, from_raw_parts_mut};

/// The port that stands for the network.
pub const NETWORK: u8 = 0;

/// The port that stands for the tenant's own.
pub const TENANT: u8 = 1;

/// Bytes of a batch before its packets.
const HEAD: usize = 16;

const PASS: u8 = 0;
const DROP: u8 = 1;
const REDIRECT: u8 = 2;

/// A batch of packets.
#[derive(Debug)]
pub struct Batch<'a> {
    now: u64,
    count: usize,
    places: &'a mut [Packet],
}

/// A packet of a batch, as it lies in memory.
#[repr(C)]
#[derive(Debug)]
pub struct Packet {
    data: u32,
    length: u32,
    buffer: u32,
    size: u32,
    verdict: u8,
    port: u8,
    unused: [u8; 6],
    arrived: u64,
}

const _: () = assert!(size_of::<Packet>() == 32, "the layout is fixed");

/// A packet would reach beyond its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeyondBuffer;

impl Batch<'_> {
    /// The batch at this address.
    ///
    /// # Safety
    /// Only for [`program!`], with the address that the host has given: it has written a batch there, whose packets lie in buffers of their
    /// own, and nothing else of the program's refers to these.
    #[must_use]
    pub unsafe fn at(address: usize) -> Self {
        // SAFETY: as above; the host aligns batches to 64 bytes.
        unsafe {
            let head = from_raw_parts(at(address), HEAD);
            let (now, counts) = head.split_at(8);
            let number =
                |from: &[u8]| from.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            let (count, room) = (number(&counts[..4]) as usize, number(&counts[4..]) as usize);
            let places = from_raw_parts_mut(at(address + HEAD).cast(), room);
            Self { now: number(now), count: count.min(room), places }
        }
    }

    /// The time in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The packets in it.
    pub fn packets(&mut self) -> &mut [Packet] {
        &mut self.places[..self.count]
    }

    /// Adds a packet without bytes, which passes; none where there is no room. The operator says how many a program may add.
    pub fn add(&mut self) -> Option<&mut Packet> {
        let packet = self.places.get_mut(self.count)?;
        self.count += 1;
        (packet.length, packet.verdict) = (0, PASS);
        Some(packet)
    }

    /// How many packets it has now: what the host is answered.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count as u32
    }
}

impl Packet {
    /// Its bytes, from the Ethernet header on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: it lies in its buffer, which is its own.
        unsafe { from_raw_parts(at(self.data as usize), self.length as usize) }
    }

    /// Its bytes, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { from_raw_parts_mut(at(self.data as usize), self.length as usize) }
    }

    /// Gives it another length; what it gets at its end is whatever lay there.
    ///
    /// # Errors
    /// [`BeyondBuffer`]; nothing has changed then.
    pub fn resize(&mut self, length: usize) -> Result<(), BeyondBuffer> {
        let begin = self.data - self.buffer;
        self.set(begin as usize, length)
    }

    /// Removes bytes at its beginning.
    ///
    /// # Errors
    /// [`BeyondBuffer`] where it has fewer; nothing has changed then.
    pub fn trim(&mut self, bytes: usize) -> Result<(), BeyondBuffer> {
        let length = (self.length as usize).checked_sub(bytes).ok_or(BeyondBuffer)?;
        self.set((self.data - self.buffer) as usize + bytes, length)
    }

    fn set(&mut self, begin: usize, length: usize) -> Result<(), BeyondBuffer> {
        let end = begin.checked_add(length).ok_or(BeyondBuffer)?;
        if end > self.size as usize {
            return Err(BeyondBuffer);
        }
        (self.data, self.length) = (self.buffer + begin as u32, length as u32);
        Ok(())
    }

    /// The port that it came from, or goes to once it was redirected.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.port
    }

    /// When it arrived, in nanoseconds.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// It goes on in its direction, which is what becomes of a packet that nothing is said of.
    pub fn pass(&mut self) {
        self.verdict = PASS;
    }

    /// It is dropped.
    pub fn discard(&mut self) {
        self.verdict = DROP;
    }

    /// It goes to this port.
    pub fn redirect(&mut self, port: u8) {
        (self.verdict, self.port) = (REDIRECT, port);
    }
}

/// Where the headers of a UDP packet over IPv4 lie, in bytes from its beginning, and where its payload ends: padding may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The IPv4 header.
    pub ip: usize,
    /// The UDP header.
    pub udp: usize,
    /// The payload.
    pub payload: usize,
    /// The end of the payload.
    pub end: usize,
}

impl Udp {
    /// Finds the headers of a UDP packet over IPv4 that is whole, no fragment, and has no VLAN tag.
    #[must_use]
    pub fn find(frame: &[u8]) -> Option<Self> {
        const ETHERNET: usize = 14;
        let first = *frame.get(ETHERNET)?;
        let header = usize::from(first & 15) * 4;
        let is_udp = frame.get(12..14)? == [8, 0] && first >> 4 == 4 && header >= 20 && *frame.get(23)? == 17;
        if !is_udp || number(frame, 20)? & 0x3fff != 0 {
            return None;
        }
        let udp = ETHERNET + header;
        let (payload, end) = (udp + 8, udp + usize::from(number(frame, udp + 4)?));
        let total = ETHERNET + usize::from(number(frame, 16)?);
        (end >= payload && end <= frame.len() && end <= total).then_some(Self {
            ip: ETHERNET,
            udp,
            payload,
            end,
        })
    }

    /// Turns the packet round: its sender becomes its receiver. No checksum changes, as the same words are summed.
    pub fn turn(&self, frame: &mut [u8]) {
        for (one, other, bytes) in [(0, 6, 6), (self.ip + 12, self.ip + 16, 4), (self.udp, self.udp + 2, 2)] {
            (0..bytes).for_each(|byte| frame.swap(one + byte, other + byte));
        }
    }

    /// Writes the headers of a packet that has another length than before. It has no UDP checksum then, which IPv4 allows.
    pub fn write_lengths(&self, frame: &mut [u8]) {
        let length = frame.len() as u16;
        put(frame, self.ip + 2, length - self.ip as u16);
        put(frame, self.ip + 10, 0);
        let header = &frame[self.ip..self.udp];
        let mut sum: u32 = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        while sum >> 16 > 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        put(frame, self.ip + 10, !(sum as u16));
        put(frame, self.udp + 4, length - self.udp as u16);
        put(frame, self.udp + 6, 0);
    }
}

/// The big-endian number of two bytes at this place.
#[must_use]
pub fn number(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

/// Writes a big-endian number of two bytes. Panics, which ends the call, where the frame is shorter.
pub fn put(frame: &mut [u8], at: usize, number: u16) {
    frame[at..at + 2].copy_from_slice(&number.to_be_bytes());
}

/// Memory at an address that the host has written.
fn at(address: usize) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(address)
}

/// Makes a program of a value that is kept from call to call, and of some of its methods: `ingress` and `egress`, which take
/// `&mut Batch`, `tick`, which takes the time in nanoseconds, and `init`, which answers 0 for success.
#[macro_export]
macro_rules! program {
    ($kind:ty = $begin:expr; $($method:ident),+ $(,)?) => {
        const _: () = {
            static mut PROGRAM: $kind = $begin;

            /// The program. Calls come one after the other, on one thread.
            fn program() -> &'static mut $kind {
                // SAFETY: each exported function asks once, and ends before the next one is called.
                unsafe { &mut *(&raw mut PROGRAM) }
            }

            #[unsafe(no_mangle)]
            extern "C" fn plimsoll_abi_1() {}

            $($crate::program!(@ $method);)+
        };
    };
    (@ ingress) => { $crate::program!(@packets ingress); };
    (@ egress) => { $crate::program!(@packets egress); };
    (@ tick) => {
        #[unsafe(no_mangle)]
        extern "C" fn tick(now: u64) {
            program().tick(now);
        }
    };
    (@ init) => {
        #[unsafe(no_mangle)]
        extern "C" fn init() -> i32 {
            program().init()
        }
    };
    (@packets $method:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $method(batch: u32) -> u32 {
            // SAFETY: the host calls this with a batch's address.
            let mut batch = unsafe { $crate::Batch::at(batch as usize) };
            program().$method(&mut batch);
            batch.count()
        }
    };
}

/// A panic ends the call, and its packets are lost.
#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_found_where_its_headers_say() {
        let mut frame = [0_u8; 60];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        put(&mut frame, 16, 32);
        frame[23] = 17;
        put(&mut frame, 38, 12);
        let found = Udp::find(&frame).expect("a datagram");
        assert_eq!(found, Udp { ip: 14, udp: 34, payload: 42, end: 46 });
        for (at, byte) in [(12, 9), (14, 0x65), (14, 0x44), (20, 0x20), (23, 6), (39, 7), (39, 13)] {
            let mut other = frame;
            other[at] = byte;
            assert_eq!(Udp::find(&other), None, "byte {at}");
        }
        assert!((0..60).all(|len| Udp::find(&frame[..len]).is_none() || len >= 46));
        let mut turned = frame;
        turned[..12].copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        found.turn(&mut turned);
        assert_eq!(turned[..12], [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
    }
}
