//! The packets in flight, and which of them are lost.
//!
//! Why: an acknowledgement must cost the same with ten packets in flight as with ten thousand.
//! From: RACK (RFC 8985) for losses; RFC 6675's words (pipe, scoreboard). RACK wants packets in the order in which they
//! were last sent; here that order is the window itself for first transmissions, with a cursor, and one queue for
//! retransmissions, so that each transmission is judged once and no list is kept sorted.
//! Not here: recovery from a loss (`sender`).
//! Invariant: `sacked`, `lost` and `resent` are the sums over the packets that say so; `pipe` is what is in flight.

use core::slice::from_ref;
use std::collections::VecDeque;

use plimsoll_units::{Nanos, Span};
use prefetch_index::prefetch_index;

use super::rate::Rates;
use super::segment::SackBlock;

/// How far ahead of the first packet in flight its record is fetched: a line, and a delayed acknowledgement's stride.
const SOON: usize = 3;

/// One packet from the first unacknowledged byte on.
#[derive(Clone, Copy, Debug)]
struct Packet {
    seq: u64,
    /// When it was last sent.
    sent: Nanos,
    len: u32,
    state: u8,
}

/// Flag of a packet that the receiver has beyond a gap.
const SACKED: u8 = 1;
/// Flag of a packet whose last transmission, or the one before, is lost.
const LOST: u8 = 2;
/// Flag of a packet of which a retransmission is in flight.
const RESENT: u8 = 4;
/// Flag of a packet that was sent more than once: its round trip is ambiguous.
const AMBIGUOUS: u8 = 8;

impl Packet {
    fn end(&self) -> u64 {
        self.seq + u64::from(self.len)
    }

    fn is(&self, state: u8) -> bool {
        self.state & state != 0
    }
}

/// A retransmission, by the packet's number since the connection began.
#[derive(Clone, Copy, Debug)]
struct Resent {
    number: u64,
    sent: Nanos,
}

/// The news in one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// Bytes that are newly known to have arrived.
    pub(super) bytes: u64,
    /// Bytes of these that SACK reported.
    pub(super) sacked: u64,
    /// When the first and the last of them that were sent once left.
    pub(super) first_sent: Option<Nanos>,
    pub(super) last_sent: Option<Nanos>,
    /// A packet that was sent once arrived after later ones.
    pub(super) reordered: bool,
}

impl Delivery {
    fn note_sent_once(&mut self, sent: Nanos) {
        self.first_sent.get_or_insert(sent);
        self.last_sent = Some(sent);
    }
}

/// The packets in flight.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    packets: VecDeque<Packet>,
    /// The number of the first of `packets`.
    first: u64,
    sacked: u64,
    sacked_packets: u32,
    lost: u64,
    resent: u64,
    /// Without SACK: packets that duplicate acknowledgements stand for.
    anonymous: u64,
    /// First transmissions before this number are judged.
    judged: u64,
    /// No packet before this number is to be sent again.
    next_lost: u64,
    resends: VecDeque<Resent>,
    /// The highest byte known to have arrived.
    highest: u64,
    /// The latest transmission known to have arrived (RFC 8985's `RACK.xmit_ts`, `end_seq` and `rtt`).
    latest: (Nanos, u64),
    latest_rtt: Span,
    /// The blocks of the last acknowledgement, which the next one mostly repeats.
    known: [SackBlock; 3],
    /// Bytes taken for lost so far, each time that they were.
    losses: u64,
    /// Delivery rates, for an algorithm that asks for them.
    rates: Option<Box<Rates>>,
}

impl Scoreboard {
    /// An empty board; `rates` makes it measure delivery rates.
    pub(super) fn new(rates: bool) -> Self {
        Self {
            losses: 0,
            rates: rates.then(|| Box::new(Rates::new())),
            packets: VecDeque::with_capacity(64),
            first: 0,
            sacked: 0,
            sacked_packets: 0,
            lost: 0,
            resent: 0,
            anonymous: 0,
            judged: 0,
            next_lost: 0,
            resends: VecDeque::with_capacity(16),
            highest: 0,
            latest: (Nanos::ZERO, 0),
            latest_rtt: Span::ZERO,
            known: [SackBlock::default(); 3],
        }
    }

    /// Bytes in flight of `outstanding` ones (RFC 6675's pipe).
    pub(super) fn pipe(&self, outstanding: u64) -> u64 {
        (outstanding + self.resent).saturating_sub(self.sacked + self.lost + self.anonymous)
    }

    /// Whether no packet is known to be missing.
    pub(super) fn is_clean(&self) -> bool {
        self.sacked + self.lost + self.resent + self.anonymous == 0
    }

    pub(super) fn sacked_packets(&self) -> u32 {
        self.sacked_packets
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Whether bytes are lost that are not on their way again.
    pub(super) fn has_unsent_losses(&self) -> bool {
        self.lost > self.resent
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes taken for lost so far; those that were lost again count again.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Delivery rates, where they are measured.
    pub(super) fn rates(&mut self) -> Option<&mut Rates> {
        self.rates.as_deref_mut()
    }

    /// New bytes leave, in packets of `mss`.
    pub(super) fn push(&mut self, mut seq: u64, len: u32, mss: u32, now: Nanos) {
        let mut rest = len;
        while rest > 0 {
            let len = rest.min(mss);
            if let Some(rates) = &mut self.rates {
                rates.push(self.packets.is_empty(), now);
            }
            self.packets.push_back(Packet { seq, sent: now, len, state: 0 });
            seq += u64::from(len);
            rest -= len;
        }
    }

    /// All before `una` have arrived. `ambiguous_floor`: a packet sent twice that seems to come back sooner than this
    /// was answered in its first transmission.
    pub(super) fn acknowledge(&mut self, una: u64, floor: Span, now: Nanos, delivery: &mut Delivery) {
        while let Some(packet) = self.packets.front_mut() {
            if packet.end() > una {
                if packet.seq < una {
                    let cut = (una - packet.seq) as u32;
                    let state = packet.state;
                    packet.seq = una;
                    packet.len -= cut;
                    self.forget(state, cut);
                    let news = if state & SACKED == 0 { u64::from(cut) } else { 0 };
                    delivery.bytes += news;
                    if let Some(rates) = &mut self.rates {
                        rates.deliver_part(news);
                    }
                }
                break;
            }
            let packet = *packet;
            self.packets.pop_front();
            self.first += 1;
            if let Some(rates) = &mut self.rates {
                if !packet.is(SACKED) {
                    rates.deliver(0, packet.len, packet.sent, packet.end());
                }
                rates.pop();
            }
            if let Some(soon) = self.packets.get(SOON) {
                prefetch_index(from_ref(soon), 0);
            }
            if packet.state == 0 {
                delivery.bytes += u64::from(packet.len);
                delivery.note_sent_once(packet.sent);
                delivery.reordered |= packet.end() < self.highest;
                self.note_latest(&packet, floor, now);
                continue;
            }
            self.forget(packet.state, packet.len);
            self.sacked_packets -= u32::from(packet.is(SACKED));
            if !packet.is(SACKED) {
                delivery.bytes += u64::from(packet.len);
                if !packet.is(AMBIGUOUS) {
                    delivery.note_sent_once(packet.sent);
                    delivery.reordered |= packet.end() < self.highest;
                }
                self.note_latest(&packet, floor, now);
            }
        }
        self.highest = self.highest.max(una);
    }

    /// The receiver has `block` beyond a gap. Blocks that no receiver would send are ignored.
    pub(super) fn sack(&mut self, block: SackBlock, floor: Span, now: Nanos, delivery: &mut Delivery) {
        let start = match self.known.iter().find(|known| known.start == block.start && known.end <= block.end)
        {
            Some(known) => known.end,
            None => block.start,
        };
        let mut place = self.packets.partition_point(|packet| packet.end() <= start);
        while let Some(packet) = self.packets.get_mut(place).filter(|packet| packet.end() <= block.end) {
            place += 1;
            if packet.is(SACKED) || packet.seq < block.start {
                continue;
            }
            packet.state |= SACKED;
            let packet = *packet;
            self.forget(packet.state & !SACKED, packet.len);
            self.packets[place - 1].state &= !(LOST | RESENT);
            if let Some(rates) = &mut self.rates {
                rates.deliver(place - 1, packet.len, packet.sent, packet.end());
            }
            self.sacked += u64::from(packet.len);
            self.sacked_packets += 1;
            delivery.bytes += u64::from(packet.len);
            delivery.sacked += u64::from(packet.len);
            if !packet.is(AMBIGUOUS) {
                delivery.note_sent_once(packet.sent);
                delivery.reordered |= packet.end() < self.highest;
            }
            self.highest = self.highest.max(packet.end());
            self.note_latest(&packet, floor, now);
        }
    }

    /// Remembers the blocks of this acknowledgement, so that the next one's need not be walked again.
    pub(super) fn remember(&mut self, blocks: impl Iterator<Item = SackBlock>) {
        self.known = [SackBlock::default(); 3];
        for (place, block) in self.known.iter_mut().zip(blocks) {
            *place = block;
        }
    }

    /// A duplicate acknowledgement without SACK: one more packet has left the network.
    pub(super) fn note_duplicate_ack(&mut self, outstanding: u64, mss: u64) {
        self.anonymous = (self.anonymous + mss).min(outstanding.saturating_sub(mss));
    }

    /// An acknowledgement without SACK covers `bytes`, of which one packet was the missing one. Returns how many of
    /// them duplicate acknowledgements stood for.
    pub(super) fn settle_duplicate_acks(&mut self, bytes: u64, mss: u64) -> u64 {
        let settled = self.anonymous.min(bytes.saturating_sub(mss));
        self.anonymous -= settled;
        settled
    }

    pub(super) fn forget_duplicate_acks(&mut self) {
        self.anonymous = 0;
    }

    /// Marks what RACK takes for lost: sent longer before the latest arrival than the network reorders. Returns when
    /// the first that is still in doubt is lost.
    pub(super) fn find_losses(&mut self, reordering: Span, now: Nanos) -> Option<Nanos> {
        let patience = self.latest_rtt + reordering;
        let originals = self.judge_originals(patience, now);
        let resends = self.judge_resends(patience, now);
        originals.into_iter().chain(resends).min()
    }

    /// `NewReno`: the first packet is missing. Nothing when it is on its way again.
    pub(super) fn lose_first(&mut self) {
        if self.packets.front().is_some_and(|packet| !packet.is(SACKED | RESENT)) {
            self.mark_lost(self.first);
        }
    }

    /// A timeout: whatever the receiver has not reported is lost. When it reports the very first byte and yet waits
    /// for it, it has thrown away what it reported (RFC 2018 §8), or made it up.
    pub(super) fn lose_all(&mut self) {
        if self.packets.front().is_some_and(|packet| packet.is(SACKED)) {
            self.forget_sacks();
        }
        for number in self.first..self.first + self.packets.len() as u64 {
            if !self.packets[(number - self.first) as usize].is(SACKED) {
                self.mark_lost(number);
            }
        }
        self.resends.clear();
        self.judged = self.first + self.packets.len() as u64;
        self.anonymous = 0;
    }

    /// Takes all losses back: no packet is to be sent again.
    pub(super) fn undo_losses(&mut self) {
        for packet in &mut self.packets {
            packet.state &= !(LOST | RESENT);
        }
        (self.lost, self.resent) = (0, 0);
        self.resends.clear();
        self.judged = self.first;
        self.next_lost = self.first + self.packets.len() as u64;
    }

    /// The first lost bytes that are not on their way again: where they begin, and up to `room` of them in a row.
    /// Packets are kept whole; the first may be longer than `room`.
    pub(super) fn next_resend(&mut self, room: u64, mss: u32) -> Option<(u64, u32)> {
        if self.lost == 0 {
            return None;
        }
        let waits = |packet: &Packet| packet.state & (LOST | RESENT) == LOST;
        self.next_lost = self.next_lost.max(self.first);
        let mut place = (self.next_lost - self.first) as usize;
        while self.packets.get(place).is_some_and(|packet| !waits(packet)) {
            place += 1;
        }
        self.next_lost = self.first + place as u64;

        let packet = self.packets.get(place)?;
        let (seq, mut len, mut last) = (packet.seq, packet.len, packet.len);
        for packet in self.packets.range(place + 1..) {
            // Cut again at the same places, or blocks of the answer would cover packets in part.
            if !waits(packet) || last != mss || u64::from(len + packet.len) > room {
                break;
            }
            last = packet.len;
            len += last;
        }
        Some((seq, len))
    }

    /// The last packet in flight, for a tail loss probe.
    pub(super) fn last(&self) -> Option<(u64, u32)> {
        self.packets.back().filter(|packet| !packet.is(SACKED)).map(|packet| (packet.seq, packet.len))
    }

    /// The bytes from `seq` to `end`, whole packets, leave again.
    pub(super) fn resend(&mut self, seq: u64, end: u64, now: Nanos) {
        let mut place = self.packets.partition_point(|packet| packet.seq < seq);
        while let Some(packet) = self.packets.get_mut(place).filter(|packet| packet.seq < end) {
            if !packet.is(RESENT) {
                self.resent += u64::from(packet.len);
            }
            packet.state |= RESENT | AMBIGUOUS;
            packet.sent = now;
            self.resends.push_back(Resent { number: self.first + place as u64, sent: now });
            if let Some(rates) = &mut self.rates {
                rates.resend(place);
            }
            place += 1;
        }
    }

    fn judge_originals(&mut self, patience: Span, now: Nanos) -> Option<Nanos> {
        self.judged = self.judged.max(self.first);
        while let Some(packet) = self.packets.get((self.judged - self.first) as usize) {
            if !packet.is(SACKED | LOST | RESENT) {
                if (packet.sent, packet.end()) >= self.latest {
                    return None;
                }
                let due = packet.sent + patience;
                if due > now {
                    return Some(due);
                }
                self.mark_lost(self.judged);
            }
            self.judged += 1;
        }
        None
    }

    fn judge_resends(&mut self, patience: Span, now: Nanos) -> Option<Nanos> {
        while let Some(&Resent { number, sent }) = self.resends.front() {
            let place = number.checked_sub(self.first).map(|place| place as usize);
            let packet = place.and_then(|place| self.packets.get(place));
            if let Some(packet) = packet.filter(|packet| packet.is(RESENT) && packet.sent == sent) {
                if (sent, packet.end()) >= self.latest {
                    return None;
                }
                let due = sent + patience;
                if due > now {
                    return Some(due);
                }
                self.mark_lost(number);
            }
            self.resends.pop_front();
        }
        None
    }

    fn mark_lost(&mut self, number: u64) {
        let packet = &mut self.packets[(number - self.first) as usize];
        let len = u64::from(packet.len);
        if packet.is(RESENT) {
            self.resent -= len;
        }
        if !packet.is(LOST) || packet.is(RESENT) {
            self.losses += len;
        }
        if !packet.is(LOST) {
            self.lost += len;
        }
        packet.state = (packet.state | LOST) & !RESENT;
        self.next_lost = self.next_lost.min(number);
    }

    /// RFC 8985 §6.2 steps 1 and 2.
    fn note_latest(&mut self, packet: &Packet, floor: Span, now: Nanos) {
        let rtt = now - packet.sent;
        if packet.is(AMBIGUOUS) && rtt < floor {
            return;
        }
        if (packet.sent, packet.end()) > self.latest {
            self.latest = (packet.sent, packet.end());
            self.latest_rtt = rtt;
        }
    }

    /// `len` bytes of a packet in `state` are no longer on the board.
    fn forget(&mut self, state: u8, len: u32) {
        let len = u64::from(len);
        self.sacked -= if state & SACKED != 0 { len } else { 0 };
        self.lost -= if state & LOST != 0 { len } else { 0 };
        self.resent -= if state & RESENT != 0 { len } else { 0 };
    }

    fn forget_sacks(&mut self) {
        for packet in &mut self.packets {
            packet.state &= !SACKED;
        }
        (self.sacked, self.sacked_packets) = (0, 0);
        self.known = [SackBlock::default(); 3];
    }
}
