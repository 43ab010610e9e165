//! A link in one direction: a queue, a rate and a delay.
//!
//! Why: outside of the engine packets wait, are marked and are lost at links.
//! From: a drop-tail queue; marking above a threshold of the queue at arrival, as DCTCP asks of switches (SIGCOMM 2010
//! §3.1). A packet's departure is known when it arrives, so that it costs one event, at its far end.
//! Not here: where a packet goes next (`world`), the engine's queues (`nic`), active queue management (`aqm`), what happens
//! to packets on the way (`path`).
//! Invariant: packets leave in their order, each `len / rate` after the one before it or after its arrival, and arrive
//! `delay` later, or what the path adds to it; the queue never exceeds its limits.

mod aqm;
mod path;

use std::collections::VecDeque;

use plimsoll_scenario::Aqm;

use plimsoll_queues::Pace;
use plimsoll_units::{BitRate, Bytes, Nanos, PacketRate, Span};

use crate::chance::Chance;
use crate::packet::{Body, Packet};
use crate::packet_pool::Slot;
use aqm::{Arriving, Manager, Verdict};
use path::Path;
pub(crate) use path::PathSpec;

/// A link's rate, delay and queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LinkSpec {
    /// Bits a second; without a rate a packet takes the delay only.
    pub(crate) rate: Option<BitRate>,
    /// From the last bit sent to the last bit received.
    pub(crate) delay: Span,
    /// Bytes that a frame takes on the wire in addition to its own.
    pub(crate) overhead: Overhead,
    /// Bytes that may wait, the packet being sent included.
    pub(crate) queue: u64,
    /// Packets that may wait.
    pub(crate) packets: u32,
    /// Bytes of queue beyond which packets are marked.
    pub(crate) ecn: Option<u64>,
    /// The part of the packets that is lost on the way.
    pub(crate) loss: f64,
    /// Most packets a second of the NIC at its end.
    pub(crate) packet_rate: Option<PacketRate>,
    /// The most by which the host at its end is late to take in a packet of TCP.
    pub(crate) jitter: Span,
    /// How its queue is kept short.
    pub(crate) aqm: Option<Box<Aqm>>,
    /// What happens to packets on the way, if it is more than a delay.
    pub(crate) path: Option<Box<PathSpec>>,
}

impl LinkSpec {
    /// A link without a rate, on which packets take `delay` alone.
    pub(crate) fn free(delay: Span, overhead: Overhead) -> Self {
        Self {
            rate: None,
            delay,
            overhead,
            queue: u64::MAX,
            packets: u32::MAX,
            ecn: None,
            loss: 0.0,
            packet_rate: None,
            jitter: Span::ZERO,
            aqm: None,
            path: None,
        }
    }
}

/// Bytes that a frame takes on the wire in addition to its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overhead {
    /// A number of bytes for each frame.
    Frame(u32),
    /// A number of bytes for each part of a frame, as on PCIe.
    Part {
        /// Bytes of a part.
        size: u32,
        /// Additional bytes of a part.
        bytes: u32,
        /// Bytes for each packet, however many parts it has.
        each: u32,
    },
}

impl Overhead {
    #[inline]
    fn of(self, packet: &Packet) -> u32 {
        match self {
            Self::Frame(bytes) => bytes,
            Self::Part { size, bytes, each } => parts(packet, size) * bytes + each,
        }
    }

    /// Bytes that each frame costs beyond its own, on a link that carries frames whole.
    pub(crate) fn of_frame(self) -> u32 {
        match self {
            Self::Frame(bytes) => bytes,
            Self::Part { .. } => 0,
        }
    }

    /// Bytes of a packet in the link's queue. A bus reads packets where they are.
    #[inline]
    fn queued(self, packet: &Packet) -> u32 {
        match self {
            Self::Frame(bytes) => packet.len + bytes,
            Self::Part { .. } => packet.len,
        }
    }

    #[inline]
    fn parts(self, packet: &Packet) -> u64 {
        match self {
            Self::Frame(_) => 0,
            Self::Part { size, .. } => parts(packet, size).into(),
        }
    }
}

/// A packet rate as the rate of as many bytes.
fn bytes_a_second(packets: PacketRate) -> BitRate {
    BitRate::new(packets.get().saturating_mul(8)).expect("a packet rate is above zero")
}

/// The number of parts of a packet; a header that is read separately from the payload has parts of its own.
fn parts(packet: &Packet, size: u32) -> u32 {
    let header = u32::from(packet.apart);
    header.div_ceil(size) + (packet.len - header).div_ceil(size)
}

/// A link while it carries packets.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Link {
    /// The packets that were taken and have not arrived.
    under_way: VecDeque<Taken>,
    /// When the host at the end takes the first of them in.
    taken_in: Nanos,
    /// When the packet before it was.
    before: Nanos,
    /// When the datagrams among them arrive, where TCP's packets may be late: none waits for one that is.
    datagrams: VecDeque<Nanos>,
    /// How many of them have left the queue.
    left: usize,
    /// Whether packets meet more here than a queue that drops and marks, a rate and a delay.
    special: bool,
    /// Bytes of those still in the queue.
    backlog: u64,
    /// Bytes that the queue has taken.
    taken: u64,
    pace: Option<Pace>,
    /// The pace of packets, each charged as one byte, where a NIC bounds their number.
    packet_pace: Option<Box<Pace>>,
    spec: LinkSpec,
    /// Parts of all packets so far, on a link that carries packets in parts.
    parts: u64,
    /// Boxed: it is far larger than the rest, and seldom used.
    chance: Box<Chance>,
    /// What few links have.
    aqm: Option<Box<Manager>>,
    path: Option<Box<Path>>,
}

/// A packet that was taken, and has not arrived.
#[derive(Clone, Copy, Debug)]
struct Taken {
    arrival: Nanos,
    slot: Slot,
    /// Its bytes in the queue.
    queued: u32,
    datagram: bool,
}

/// The outcome of offering a packet to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The packet will arrive.
    Taken {
        /// Whether the next arrival is another one than before.
        first: bool,
    },
    /// The queue has no room.
    Full,
    /// The queue drops it though there is room, so that its sender slows down.
    Early,
    /// The packet is lost on the way.
    Lost,
}

impl Link {
    /// A link at rest. What happens to its packets follows from the seed and its name.
    pub(crate) fn new(spec: LinkSpec, name: &str, seed: u64) -> Self {
        let chance = |what: &str| Chance::of(seed, &format!("{what}link {name}"));
        Self {
            pace: spec.rate.map(Pace::new),
            packet_pace: spec.packet_rate.map(|most| Box::new(Pace::new(bytes_a_second(most)))),
            chance: Box::new(chance("")),
            aqm: spec.aqm.as_deref().map(|aqm| Box::new(Manager::new(*aqm, spec.rate, chance("aqm ")))),
            path: spec.path.as_deref().map(|path| Box::new(Path::new(*path, chance("path ")))),
            under_way: VecDeque::new(),
            special: spec.packet_rate.is_some()
                || spec.loss > 0.0
                || spec.aqm.is_some()
                || spec.path.is_some(),
            taken_in: Nanos::ZERO,
            before: Nanos::ZERO,
            datagrams: VecDeque::new(),
            left: 0,
            backlog: 0,
            taken: 0,
            parts: 0,
            spec,
        }
    }

    /// Offers a packet to the queue, which may mark it. `slot` is where the packet is while the link carries it.
    #[inline]
    pub(crate) fn offer(&mut self, packet: &mut Packet, slot: Slot, now: Nanos) -> Offered {
        self.forget_departed(now);
        let len = self.spec.overhead.queued(packet);
        if self.backlog + u64::from(len) > self.spec.queue || self.waiting() >= self.spec.packets as usize {
            return Offered::Full;
        }
        let mut congested = self.spec.ecn.is_some_and(|threshold| self.backlog >= threshold);
        if self.special {
            match self.manage(packet, now) {
                Verdict::Pass => {}
                Verdict::Mark => congested = true,
                Verdict::Drop => return Offered::Early,
            }
        }
        self.taken += u64::from(len);
        self.parts += self.spec.overhead.parts(packet);
        // Exact fractions of a nanosecond are kept in the pace, so that a busy link loses none of its rate.
        let mut departure = self.pace.as_mut().map_or(now, |pace| {
            pace.catch_up(now);
            pace.charge(Bytes::new((packet.len + self.spec.overhead.of(packet)).into()));
            pace.earned()
        });
        if self.special {
            if let Some(pace) = &mut self.packet_pace {
                pace.catch_up(now);
                pace.charge(Bytes::new(packet.frames().into()));
                departure = departure.max(pace.earned());
            }
            if self.spec.loss > 0.0 && self.chance.unit() <= self.spec.loss {
                return Offered::Lost; // its time on the wire is used all the same
            }
        }
        packet.ce |= packet.ect && congested;
        packet.marked |= packet.carried && congested;
        let datagram = matches!(packet.body, Body::Datagram { .. });
        let taken = Taken { arrival: departure + self.spec.delay, slot, queued: len, datagram };
        if self.special && self.path.is_some() {
            return self.send(taken, departure);
        }
        self.backlog += u64::from(len);
        self.put(self.under_way.len(), taken)
    }

    /// Packets in the queue.
    #[inline]
    fn waiting(&self) -> usize {
        if self.special
            && let Some(path) = &self.path
        {
            return path.waiting();
        }
        self.under_way.len() - self.left
    }

    /// Puts a packet in its place among those that are under way.
    #[inline]
    fn put(&mut self, place: usize, taken: Taken) -> Offered {
        let arrival = taken.arrival;
        if place == self.under_way.len() {
            self.under_way.push_back(taken);
        } else {
            self.under_way.insert(place, taken);
        }
        let mut first = place == 0;
        if taken.datagram && self.spec.jitter > Span::ZERO {
            let place = self.datagrams.partition_point(|&at| at <= arrival);
            self.datagrams.insert(place, arrival);
            first |= self.taken_in > arrival;
            self.taken_in = self.taken_in.min(arrival);
        }
        if place == 0 {
            self.await_first();
        }
        Offered::Taken { first }
    }

    /// Bytes that have left since the beginning, and bytes that wait.
    pub(crate) fn sent_and_queued(&mut self, now: Nanos) -> (u64, u64) {
        self.forget_departed(now);
        (self.taken - self.backlog, self.backlog)
    }

    /// Asks the queue's management about a packet.
    #[cold]
    fn manage(&mut self, packet: &Packet, now: Nanos) -> Verdict {
        let Some(aqm) = &mut self.aqm else { return Verdict::Pass };
        let free = self.pace.as_mut().map_or(now, |pace| {
            pace.catch_up(now);
            pace.earned()
        });
        let free = self.packet_pace.as_mut().map_or(free, |pace| {
            pace.catch_up(now);
            free.max(pace.earned())
        });
        let arriving = Arriving {
            now,
            free: free.max(now),
            backlog: self.backlog,
            len: self.spec.overhead.queued(packet),
            ecn: packet.ect || packet.carried,
        };
        aqm.decide(&arriving)
    }

    /// Sends a packet over a path that is more than a delay. Its time on the wire is used even where it is lost.
    #[cold]
    fn send(&mut self, taken: Taken, departure: Nanos) -> Offered {
        let Some(path) = &mut self.path else { return Offered::Lost };
        let Some(arrival) = path.arrival(departure, self.spec.delay) else { return Offered::Lost };
        path.note(departure, taken.queued);
        self.backlog += u64::from(taken.queued);
        let place = self.under_way.partition_point(|before| before.arrival <= arrival);
        self.put(place, Taken { arrival, ..taken })
    }

    /// When the next packet arrives.
    #[inline]
    pub(crate) fn next_arrival(&self) -> Option<Nanos> {
        self.under_way.front().map(|_| self.taken_in)
    }

    /// Removes the packet that arrives now.
    #[inline]
    pub(crate) fn arrive(&mut self) -> Option<Slot> {
        let taken = self.under_way.pop_front()?;
        if taken.datagram {
            self.datagrams.pop_front();
        }
        if self.left > 0 {
            self.left -= 1;
        } else if !self.special || self.path.is_none() {
            self.backlog -= u64::from(taken.queued);
        }
        self.before = self.taken_in;
        self.await_first();
        Some(taken.slot)
    }

    /// Draws when the host takes in the packet that is now the first: no earlier than the one before it, and not so late that
    /// a datagram waits for it.
    #[inline]
    fn await_first(&mut self) {
        let Some(&Taken { arrival, datagram, .. }) = self.under_way.front() else { return };
        if self.spec.jitter == Span::ZERO || datagram {
            self.taken_in = arrival;
            return;
        }
        let late = self.before.max(arrival + self.chance.within(self.spec.jitter));
        self.taken_in = self.datagrams.front().map_or(late, |datagram| late.min(*datagram));
    }

    /// When the last bit of the last packet in the queue leaves.
    pub(crate) fn last_departure(&self) -> Nanos {
        if self.special
            && let Some(path) = &self.path
        {
            return path.last_departure();
        }
        self.under_way.back().map_or(Nanos::ZERO, |taken| taken.arrival - self.spec.delay)
    }

    /// The nanosecond in which it becomes free. A packet that is chosen then loses no part of it.
    pub(crate) fn free(&self) -> Nanos {
        Nanos::new(self.last_departure().as_u64().saturating_sub(1))
    }

    /// Parts that packets were cut into so far.
    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// Packets that are under way or wait.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = Slot> {
        self.under_way.iter().map(|taken| taken.slot)
    }

    /// From the last bit sent to the last bit received.
    pub(crate) fn delay(&self) -> Span {
        self.spec.delay
    }

    fn forget_departed(&mut self, now: Nanos) {
        if self.special
            && let Some(path) = &mut self.path
        {
            self.backlog -= path.departed(now);
            return;
        }
        while let Some(taken) = self.under_way.get(self.left) {
            if taken.arrival - self.spec.delay > now {
                break;
            }
            self.backlog -= u64::from(taken.queued);
            self.left += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(len: u32) -> Packet {
        let body = Body::Datagram { number: 0, offset: 0, size: 0, last: true };
        Packet::new((0, false), true, len, body)
    }

    fn offer(link: &mut Link, len: u32, now: Nanos) -> Offered {
        link.offer(&mut packet(len), Slot::NONE, now)
    }

    fn link(queue: u64, ecn: Option<u64>) -> Link {
        let rate = Some(BitRate::gbps(12));
        let spec = LinkSpec { rate, queue, ecn, ..LinkSpec::free(Span::micros(5), Overhead::Frame(0)) };
        Link::new(spec, "l", 1)
    }

    /// 1,450 B and an overlay's 50 B, at 12 Gb/s, are 1,000 ns, on the wire and in the queue.
    #[test]
    fn outer_headers_take_their_time_and_their_place() {
        let free = LinkSpec::free(Span::ZERO, Overhead::Frame(50));
        let spec = LinkSpec { rate: Some(BitRate::gbps(12)), queue: 4_500, ..free };
        let mut link = Link::new(spec, "l", 1);
        let offered = (0..4).map(|_| offer(&mut link, 1_450, Nanos::ZERO)).collect::<Vec<_>>();
        assert_eq!(offered.iter().filter(|&&offered| offered == Offered::Full).count(), 1);
        assert_eq!(link.last_departure(), Nanos::new(3_000));
        while link.arrive().is_some() {}
        assert_eq!(link.backlog, 0);
    }

    #[test]
    fn packets_follow_each_other_at_the_links_rate() {
        let mut link = link(4_500, None);
        // 1,500 B at 12 Gb/s are 1,000 ns.
        for _ in 0..3 {
            assert!(matches!(offer(&mut link, 1_500, Nanos::ZERO), Offered::Taken { .. }));
        }
        assert_eq!(offer(&mut link, 1_500, Nanos::new(999)), Offered::Full);
        assert!(matches!(offer(&mut link, 1_500, Nanos::new(1_000)), Offered::Taken { first: false }));
        let mut arrivals = Vec::new();
        while let Some(at) = link.next_arrival() {
            arrivals.push(at.as_u64());
            link.arrive();
        }
        assert_eq!(arrivals, [6_000, 7_000, 8_000, 9_000]);
        assert_eq!(link.backlog, 0);
    }

    /// An XL710's 37 million packets a second, at 40 Gb/s (PicNIC §4).
    #[test]
    fn a_nics_packet_rate_holds_small_packets_back_and_large_ones_not() {
        let millisecond = |len: u32| {
            let (rate, packet_rate) = (Some(BitRate::gbps(40)), PacketRate::new(37_000_000));
            let free = LinkSpec::free(Span::micros(5), Overhead::Frame(0));
            let mut link = Link::new(LinkSpec { rate, packet_rate, ..free }, "l", 1);
            let mut sent = 0;
            while link.last_departure() < Nanos::new(1_000_000) {
                offer(&mut link, len, Nanos::ZERO);
                sent += 1;
            }
            sent
        };
        assert_eq!(millisecond(64), 37_000, "78,125 of them fit the line");
        assert_eq!(millisecond(160), 31_250, "all that fit the line");
    }

    #[test]
    fn marks_begin_at_the_threshold() {
        let mut link = link(10_000, Some(3_000));
        let mut packets = [packet(1_500); 4];
        for packet in &mut packets {
            link.offer(packet, Slot::NONE, Nanos::ZERO);
        }
        assert_eq!(packets.map(|packet| packet.ce), [false, false, true, true]);
    }
}
