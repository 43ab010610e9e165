//! The departure log: the last packets that left; always on.
//!
//! Why: "why was this packet late?" is asked afterwards; the packets that left while it waited are the answer.
//! From: `docs/operations.md`, "explain"; a ring of sequence locks, so that readers never hold up the writer.
//! Not here: the answer itself (`explain`).
//! Invariant: one writer; a reader gets whole entries or none; writing allocates nothing and never waits.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use plimsoll_policy::{LimitId, Metadata, NodeId};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::Parsed;

/// Departures that are kept.
pub const KEPT: usize = 65_536;

/// One departure: a packet, a part of one, or several similar ones that left together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Times, sizes and numbers.
    pub passage: Passage,
    /// Addresses, for IP.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Ports, where the protocol has them.
    pub ports: Option<(u16, u16)>,
    /// IP protocol number; 0 for what is not IP.
    pub protocol: u8,
    /// DSCP.
    pub dscp: u8,
    /// VLAN identifier; 0 without a tag.
    pub vlan: u16,
    /// What its sender said of it, as far as the policy looks at it.
    pub metadata: Metadata,
}

/// The ring. Share it behind an `Arc`; only the engine's thread writes.
#[derive(Debug)]
pub struct DepartureLog {
    words: Box<[AtomicU64]>,
    /// Metadata, 24 bytes for each entry and 1.5 MiB in all: written only where the policy looks at a packet's metadata, and
    /// meaningful only where the entry's headers say that there is some.
    metadata: Box<[AtomicU64]>,
    written: AtomicU64,
}

/// Words of an entry: its number, and eleven for the departure.
const WORDS: usize = 12;

/// A packet's metadata in the log: the control group; priority and user; application, core and which of the five are
/// there.
pub(crate) type Packed = [u64; PACKED];

const PACKED: usize = 3;

/// Times, sizes and numbers of a departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// When its descriptor was posted.
    pub arrived: Nanos,
    /// When it became the first of its flow queue.
    pub head: Nanos,
    /// When it was handed to the port.
    pub departed: Nanos,
    /// Time it was parked behind limits.
    pub limited: Span,
    /// The limit that held it longest, if any.
    pub limited_by: Option<LimitId>,
    /// Its class, in the policy of its generation.
    pub class: NodeId,
    /// Which policy was in force: counts reloads, modulo 65,536.
    pub generation: u16,
    /// The lane of its tenant.
    pub lane: u16,
    /// Bytes of the frame, or of all that left together.
    pub len: u32,
    /// How many those are: one, also for a part of a frame.
    pub frames: u8,
}

/// A frame's headers as the log keeps them: made once, when they are parsed, and copied when it leaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers {
    what: u64,
    ports: u32,
    addresses: [u64; 4],
}

impl Headers {
    /// Of a parsed frame.
    #[inline]
    #[must_use]
    pub fn of(parsed: &Parsed) -> Self {
        let dscp = parsed.ip.as_ref().map_or(0, |ip| ip.dscp);
        let protocol = parsed.protocol().unwrap_or(0);
        Self::new(parsed.addresses(), parsed.ports(), protocol, dscp, parsed.vlan)
    }

    #[inline]
    fn new(
        addresses: Option<(IpAddr, IpAddr)>,
        ports: Option<(u16, u16)>,
        protocol: u8,
        dscp: u8,
        vlan: u16,
    ) -> Self {
        let (family, addresses) = match addresses {
            Some((IpAddr::V4(src), IpAddr::V4(dst))) => {
                (V4, [src.to_bits().into(), dst.to_bits().into(), 0, 0])
            }
            Some((src, dst)) => (V6, wide(src, dst)),
            None => (0, [0; 4]),
        };
        let (src_port, dst_port) = ports.unwrap_or_default();
        let flags = family | if ports.is_some() { PORTS } else { 0 };
        let what = u64::from(protocol) << 56 | u64::from(dscp) << 48 | u64::from(vlan) << 32 | flags;
        Self { what, ports: u32::from(src_port) << 16 | u32::from(dst_port), addresses }
    }

    /// Headers of a frame that has metadata as well.
    #[inline]
    #[must_use]
    pub(crate) fn with_metadata(self) -> Self {
        Self { what: self.what | METADATA, ..self }
    }

    /// Whether the frame has metadata.
    #[inline]
    #[must_use]
    pub(crate) fn has_metadata(&self) -> bool {
        self.what & METADATA != 0
    }
}

impl Default for DepartureLog {
    fn default() -> Self {
        let ring = |words| core::iter::repeat_with(AtomicU64::default).take(KEPT * words).collect();
        let (words, metadata) = (ring(WORDS), ring(PACKED));
        Self { words, metadata, written: AtomicU64::new(0) }
    }
}

impl DepartureLog {
    /// Adds an entry in place of the oldest one, with `metadata` where its headers say that there is some. For one thread
    /// only.
    pub(crate) fn push(&self, passage: &Passage, headers: &Headers, metadata: &Packed) {
        let number = self.written.load(Ordering::Relaxed);
        let [name, rest @ ..] = self.slot(number) else { return };
        // The entry is void while it changes; `read` looks at its number before and after.
        name.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in rest.iter().zip(pack(passage, headers)) {
            word.store(value, Ordering::Relaxed);
        }
        if headers.has_metadata() {
            for (word, value) in self.metadata_slot(number).iter().zip(metadata) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        // Release: pairs with the Acquire in `read`, so that a reader of the number also sees the words.
        name.store(number + 1, Ordering::Release);
        self.written.store(number + 1, Ordering::Release);
    }

    /// Entries written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// The last `most` entries, oldest first. Entries overwritten meanwhile are left out.
    #[must_use]
    pub fn last(&self, most: usize) -> Vec<Departure> {
        let written = self.written();
        let from = written.saturating_sub(most.min(KEPT) as u64);
        (from..written).filter_map(|number| self.read(number)).collect()
    }

    fn read(&self, number: u64) -> Option<Departure> {
        let [name, rest @ ..] = self.slot(number) else { return None };
        if name.load(Ordering::Acquire) != number + 1 {
            return None;
        }
        let mut words = [0; WORDS - 1];
        for (value, word) in words.iter_mut().zip(rest) {
            *value = word.load(Ordering::Relaxed);
        }
        let mut metadata = Packed::default();
        for (value, word) in metadata.iter_mut().zip(self.metadata_slot(number)) {
            *value = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        (name.load(Ordering::Relaxed) == number + 1).then(|| unpack(words, metadata))
    }

    fn metadata_slot(&self, number: u64) -> &[AtomicU64] {
        let index = (number % KEPT as u64) as usize * PACKED;
        &self.metadata[index..index + PACKED]
    }

    fn slot(&self, number: u64) -> &[AtomicU64] {
        let index = (number % KEPT as u64) as usize * WORDS;
        &self.words[index..index + WORDS]
    }
}

const V4: u64 = 1;
const V6: u64 = 2;
const PORTS: u64 = 4;
const METADATA: u64 = 8;

/// Packs metadata for the log.
pub(crate) fn pack_metadata(metadata: &Metadata) -> Packed {
    let Metadata { priority, cgroup, user, app, core } = *metadata;
    let there = [priority.is_some(), cgroup.is_some(), user.is_some(), app.is_some(), core.is_some()];
    let there = there.into_iter().rev().fold(0, |bits, is| bits << 1 | u64::from(is));
    let [priority, user, app] = [priority, user, app].map(|field| u64::from(field.unwrap_or(0)));
    let core = u64::from(core.unwrap_or(0));
    [cgroup.unwrap_or(0), priority << 32 | user, app << 32 | core << 16 | there]
}

fn unpack_metadata([cgroup, sent_by, rest]: Packed) -> Metadata {
    let there = |bit: u64| rest >> bit & 1 != 0;
    Metadata {
        priority: there(0).then_some((sent_by >> 32) as u32),
        cgroup: there(1).then_some(cgroup),
        user: there(2).then_some(sent_by as u32),
        app: there(3).then_some((rest >> 32) as u32),
        core: there(4).then_some((rest >> 16) as u16),
    }
}

fn pack(passage: &Passage, headers: &Headers) -> [u64; WORDS - 1] {
    let Passage { generation, lane, class: NodeId(class), len, frames, .. } = *passage;
    let limit = passage.limited_by.map_or(0, |limit| u64::from(limit.0) + 1);
    let who = u64::from(generation) << 48 | u64::from(lane) << 32 | u64::from(class);
    let size = u64::from(frames) << 56 | u64::from(len) << 32 | u64::from(headers.ports);
    let [arrived, head, departed] = [passage.arrived, passage.head, passage.departed].map(Nanos::as_u64);
    // The limit's number has its own word's upper half: pauses of more than 2^32 µs do not occur.
    let limited = limit << 40 | (passage.limited.as_u64() / 1_000).min((1 << 40) - 1);
    let [a, b, c, e] = headers.addresses;
    [arrived, head, departed, limited, who, headers.what, size, a, b, c, e]
}

fn unpack(words: [u64; WORDS - 1], metadata: Packed) -> Departure {
    let [arrived, head, departed, limited, who, what, size, a, b, c, e] = words;
    let addresses = match what & (V4 | V6) {
        V4 => Some((Ipv4Addr::from_bits(a as u32).into(), Ipv4Addr::from_bits(b as u32).into())),
        V6 => Some((narrow(a, b), narrow(c, e))),
        _ => None,
    };
    Departure {
        passage: Passage {
            arrived: Nanos::new(arrived),
            head: Nanos::new(head),
            departed: Nanos::new(departed),
            limited: Span::micros(limited & ((1 << 40) - 1)),
            limited_by: (limited >> 40).checked_sub(1).map(|limit| LimitId(limit as u32)),
            class: NodeId(who as u32),
            generation: (who >> 48) as u16,
            lane: (who >> 32) as u16,
            len: (size >> 32) as u32 & 0xff_ffff,
            frames: (size >> 56) as u8,
        },
        addresses,
        ports: (what & PORTS != 0).then_some(((size >> 16) as u16, size as u16)),
        protocol: (what >> 56) as u8,
        dscp: (what >> 48) as u8,
        vlan: (what >> 32) as u16,
        metadata: if what & METADATA == 0 { Metadata::default() } else { unpack_metadata(metadata) },
    }
}

fn wide(src: IpAddr, dst: IpAddr) -> [u64; 4] {
    let [[a, b], [c, d]] = [src, dst].map(|addr| {
        let bits = match addr {
            IpAddr::V4(addr) => addr.to_ipv6_mapped().to_bits(),
            IpAddr::V6(addr) => addr.to_bits(),
        };
        [(bits >> 64) as u64, bits as u64]
    });
    [a, b, c, d]
}

fn narrow(high: u64, low: u64) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departure(n: u64) -> Departure {
        let passage = Passage {
            arrived: Nanos::new(n),
            head: Nanos::new(n + 1),
            departed: Nanos::new(n + 2),
            limited: Span::micros(3),
            limited_by: Some(LimitId(0)),
            class: NodeId(70_000),
            generation: 65_535,
            lane: 9,
            len: 65_550,
            frames: 18,
        };
        Departure {
            passage,
            addresses: Some(("10.0.0.1".parse().expect("v4"), "10.0.0.2".parse().expect("v4"))),
            ports: Some((65_535, 0)),
            protocol: 17,
            dscp: 63,
            vlan: 4_095,
            metadata: Metadata::default(),
        }
    }

    fn push(log: &DepartureLog, d: &Departure) {
        let headers = Headers::new(d.addresses, d.ports, d.protocol, d.dscp, d.vlan);
        let headers = if d.metadata == Metadata::default() { headers } else { headers.with_metadata() };
        log.push(&d.passage, &headers, &pack_metadata(&d.metadata));
    }

    #[test]
    fn what_was_written_is_read() {
        let log = DepartureLog::default();
        let passage = Passage { limited_by: None, ..departure(5).passage };
        let plain = Departure { addresses: None, ports: None, passage, ..departure(5) };
        let v6 = ("2001:db8::1".parse().expect("v6"), "::1".parse().expect("v6"));
        let six = Departure { addresses: Some(v6), ..departure(6) };
        for entry in [departure(1), plain, six] {
            push(&log, &entry);
        }
        assert_eq!(log.last(10), [departure(1), plain, six]);
        assert_eq!(log.last(1), [six]);
    }

    #[test]
    fn metadata_is_read_where_there_is_some_and_no_earlier_entrys() {
        let log = DepartureLog::default();
        let all = Metadata {
            priority: Some(u32::MAX),
            cgroup: Some(u64::MAX),
            user: Some(u32::MAX - 1),
            app: Some(u32::MAX - 2),
            core: Some(u16::MAX),
        };
        let zeros =
            Metadata { priority: Some(0), cgroup: Some(0), user: Some(0), app: Some(0), core: Some(0) };
        let app = Metadata { app: Some(1), ..Metadata::default() };
        let said = [all, zeros, app].map(|metadata| Departure { metadata, ..departure(1) });
        for entry in &said {
            push(&log, entry);
        }
        assert_eq!(log.last(3), said);
        (0..KEPT as u64).for_each(|n| push(&log, &departure(n)));
        assert!(log.last(KEPT).iter().all(|entry| entry.metadata == Metadata::default()));
    }

    #[test]
    fn the_oldest_make_room() {
        let log = DepartureLog::default();
        (0..KEPT as u64 + 3).for_each(|n| push(&log, &departure(n)));
        let last = log.last(usize::MAX);
        assert_eq!((last.len(), last[0]), (KEPT, departure(3)));
    }
}
