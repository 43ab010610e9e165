//! The header: where its words lie, and how the sizes and the interface's identity are told.
//!
//! Why: a client learns from the region itself what lies where, and whether it speaks the same format.
//! From: `docs/vnic.md`, "The region".
//! Not here: the parts behind the header (`layout`), and which sizes are valid (`sizes`).
//! Invariant: the daemon writes the header before it hands the region over, and never reads it back, except for two flags.

use std::sync::atomic::Ordering;

use super::{Layout, LayoutError, Sizes};
use crate::region::Region;

/// [`super::MAGIC`].
pub const MAGIC: usize = 0;
/// [`super::VERSION`].
pub const VERSION: usize = 8;
/// Flow queues.
pub const FLOW_QUEUES: usize = 12;
/// Descriptors of one flow ring.
pub const RING: usize = 16;
/// Doorbell queues.
pub const DOORBELL_QUEUES: usize = 20;
/// Words of one doorbell queue.
pub const DOORBELL_WORDS: usize = 24;
/// Entries of the completion ring.
pub const COMPLETIONS: usize = 28;
/// Entries of each receive ring.
pub const RECEIVE: usize = 32;
/// Buffers.
pub const BUFFERS: usize = 36;
/// Bytes of the region.
pub const LENGTH: usize = 40;
/// Where flow ring 0 begins.
pub const RINGS_AT: usize = 48;
/// Where doorbell queue 0 begins.
pub const DOORBELLS_AT: usize = 52;
/// Where the completion ring begins.
pub const COMPLETIONS_AT: usize = 56;
/// Where the ring of posted receive buffers begins.
pub const POSTED_AT: usize = 60;
/// Where the ring of filled receive buffers begins.
pub const USED_AT: usize = 64;
/// Where the buffers begin.
pub const BUFFERS_AT: usize = 68;
/// Largest IP packet that is received.
pub const MTU: usize = 72;
/// The interface's hardware address, six bytes.
pub const MAC: usize = 76;
/// Number of the policy in force (written by the daemon), one more with each reload.
pub const GENERATION: usize = 128;
/// Unasked messages that the daemon has sent (written by the daemon): the client reads the socket only when it changes.
pub const NEWS: usize = 132;
/// 1 while the client sleeps and wants to be woken (set by the client).
pub const CLIENT_WAITS: usize = 192;
/// 1 while the daemon sleeps and wants to be woken (set by the daemon; the client may clear it).
pub const DAEMON_WAITS: usize = 256;
/// Bytes of the header.
pub const LEN: usize = 4_096;

/// What the header says about the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet that is received.
    pub mtu: u32,
}

impl Layout {
    /// Writes the header into a region of zeros.
    pub fn write_header(&self, region: &Region, identity: &Identity) {
        for (at, value) in self.header_words() {
            region.word32(at).store(value, Ordering::Relaxed);
        }
        region.word64(LENGTH).store(self.len as u64, Ordering::Relaxed);
        region.word32(MTU).store(identity.mtu, Ordering::Relaxed);
        region.write(MAC, &identity.mac);
        region.word64(MAGIC).store(super::MAGIC, Ordering::Release);
    }

    /// Reads the header, as a client does.
    ///
    /// # Errors
    /// See [`LayoutError`].
    pub fn read_header(region: &Region) -> Result<(Self, Identity), LayoutError> {
        let magic = region.word64(MAGIC).load(Ordering::Acquire);
        if magic != super::MAGIC {
            return Err(LayoutError::NotARegion(magic));
        }
        let word = |at| region.word32(at).load(Ordering::Relaxed);
        if word(VERSION) != super::VERSION {
            return Err(LayoutError::Version(word(VERSION)));
        }
        let layout = Self::new(Sizes {
            flow_queues: word(FLOW_QUEUES),
            ring: word(RING),
            doorbell_queues: word(DOORBELL_QUEUES),
            doorbell_words: word(DOORBELL_WORDS),
            completions: word(COMPLETIONS),
            receive: word(RECEIVE),
            buffers: word(BUFFERS),
        })?;
        let same = layout.header_words().iter().all(|&(at, value)| word(at) == value);
        if !same || layout.len > region.len() {
            return Err(LayoutError::Inconsistent);
        }
        let mut mac = [0; 6];
        region.read(MAC, &mut mac);
        Ok((layout, Identity { mac, mtu: word(MTU) }))
    }

    fn header_words(&self) -> [(usize, u32); 14] {
        let at = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        let Sizes { flow_queues, ring, doorbell_queues, doorbell_words, completions, receive, buffers } =
            self.sizes;
        [
            (VERSION, super::VERSION),
            (FLOW_QUEUES, flow_queues),
            (RING, ring),
            (DOORBELL_QUEUES, doorbell_queues),
            (DOORBELL_WORDS, doorbell_words),
            (COMPLETIONS, completions),
            (RECEIVE, receive),
            (BUFFERS, buffers),
            (RINGS_AT, at(self.rings)),
            (DOORBELLS_AT, at(self.doorbells)),
            (COMPLETIONS_AT, at(self.completions)),
            (POSTED_AT, at(self.posted)),
            (USED_AT, at(self.used)),
            (BUFFERS_AT, at(self.buffers)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let layout = Layout::new(Sizes::small()).unwrap();
        let (region, _file) = Region::create(layout.region_len()).unwrap();
        assert_eq!(Layout::read_header(&region), Err(LayoutError::NotARegion(0)));
        let identity = Identity { mac: [2, 3, 4, 5, 6, 7], mtu: 1_500 };
        layout.write_header(&region, &identity);
        assert_eq!(Layout::read_header(&region), Ok((layout, identity)));
        region.word32(USED_AT).store(64, Ordering::Relaxed);
        assert_eq!(Layout::read_header(&region), Err(LayoutError::Inconsistent));
    }
}
