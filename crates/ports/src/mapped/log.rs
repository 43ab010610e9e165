//! The log of pages that were written, for a guest that moves to another host while it runs.
//!
//! Why: the front end copies the guest's memory meanwhile, and must copy again what this process has written since.
//! From: QEMU's `docs/interop/vhost-user.rst`, "Migration": a bit for each page of 4 KiB, by guest physical address.
//! Not here: when the front end wants it (`vhost_user::front_end`).
//! Invariant: a page's bit is set after each write to it while the log is on; nothing is written beyond the log's end.

use core::ops::RangeInclusive;

use super::Memory;

/// Bytes of a page of the log, whatever pages the memory has.
const PAGE: u64 = 4_096;

/// Which pages were written, if the front end has ever wanted to know.
#[derive(Debug, Default)]
pub(super) struct Log(Option<Box<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    on: bool,
    /// The front end's, a bit for each page.
    bits: Memory,
}

impl Log {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.on)
    }

    pub(super) fn switch(&mut self, on: bool) {
        if on || self.0.is_some() {
            self.0.get_or_insert_default().on = on;
        }
    }

    /// Uses these bits in place of the earlier ones.
    pub(super) fn set(&mut self, bits: Memory) -> Memory {
        core::mem::replace(&mut self.0.get_or_insert_default().bits, bits)
    }

    pub(super) fn torn(&self) -> bool {
        self.0.as_ref().is_some_and(|kept| kept.bits.torn())
    }

    /// Notes that `len` bytes from this guest physical address on were written.
    #[cold]
    pub(super) fn note(&self, address: u64, len: usize) {
        let Some(kept) = &self.0 else { return };
        for page in pages(address, len) {
            kept.bits.set_bits(page / 8, 1 << (page % 8));
        }
    }
}

/// The pages that `len` bytes from `address` on are in.
fn pages(address: u64, len: usize) -> RangeInclusive<u64> {
    let last = address.saturating_add((len as u64).saturating_sub(1));
    address / PAGE..=last / PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_the_pages_that_they_touch() {
        assert_eq!(pages(0, 1), 0..=0);
        assert_eq!(pages(4_095, 2), 0..=1);
        assert_eq!(pages(4_096, 4_096), 1..=1);
        assert_eq!(pages(8_191, 8_194), 1..=4);
        assert_eq!(pages(u64::MAX, 9), u64::MAX / PAGE..=u64::MAX / PAGE);
    }
}
