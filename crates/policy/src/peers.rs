//! Room in a program for limits that other hosts state while it runs.
//!
//! Why: what a VM elsewhere allows this host's senders changes every epoch, and an engine allocates at installation only.
//! From: PicNIC §5.3 and §5.4.1: for each pair of VMs a limit in bits and one in packets, both obeyed, so that the slower
//! one governs.
//! Not here: which hosts are peers, and which rates hold (`control`, and the engine's driver).
//! Invariant: until a rate is set a peer's limits hold no packet back; no packet is placed behind them by its headers.

use plimsoll_units::{BitRate, Bytes};

use crate::program::{Counts, Limit, LimitId, Program, Scope};

/// The peers for which a program has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    first: u32,
    count: u32,
}

impl Peers {
    /// The number of peers.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// A peer's limits: of bits, and of packets. Flow queues to it are placed behind both.
    #[must_use]
    pub fn limits(self, peer: u32) -> [LimitId; 2] {
        debug_assert!(peer < self.count);
        [LimitId(self.first + 2 * peer), LimitId(self.first + 2 * peer + 1)]
    }
}

impl Program {
    /// Adds limits for `count` peers, which let `burst` pass at once after a pause, one frame at least.
    pub fn add_peers(&mut self, count: u32, burst: Bytes) -> Peers {
        let first = u32::try_from(self.limits.len()).expect("limits are numbered by 32 bits");
        let frame = self.max_frame + self.overhead;
        let burst = burst.max(frame);
        let frames = Bytes::new(burst.as_u64().div_ceil(frame.as_u64()));
        for peer in 0..count {
            let limit = |what: &str, counts, burst| Limit {
                name: format!("peer {peer} {what}"),
                counts,
                rate: UNLIMITED,
                burst,
                scope: Scope::Peer(peer),
            };
            self.limits.push(limit("bits", Counts::Bytes, burst));
            self.limits.push(limit("packets", Counts::Packets, frames));
        }
        Peers { first, count }
    }
}

/// A rate beyond any link, in bits and, at eight bits each, in packets.
pub const UNLIMITED: BitRate = BitRate::gbps(1_000);
