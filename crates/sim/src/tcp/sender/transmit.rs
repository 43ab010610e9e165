//! Transmission: the segments that may leave now, and pacing.

use plimsoll_units::{Nanos, Span};

use super::{LocalQueue, Open, Phase, Sender, TailProbe};
use crate::tcp::segment::{Ecn, Flags, Segment};

impl Sender {
    /// The next segment that may leave now; ask until there is none.
    ///
    /// Lost bytes go before new ones. Constant time over a round trip, no allocation unless the window is larger than
    /// ever before.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Segment> {
        if self.is_idle() {
            if self.control.has_model() {
                self.note_app_limited();
            }
            // The silent half of a connection is asked as often as the busy one.
            self.tail_probe_now = false;
            return None;
        }
        if self.open != Open::Yes {
            return self.transmit_syn(now);
        }
        if core::mem::take(&mut self.probe_now) {
            return Some(self.segment(self.nxt, 0, Flags::PROBE, now));
        }
        if core::mem::take(&mut self.tail_probe_now)
            && let Some(segment) = self.transmit_tail_probe(now)
        {
            return Some(segment);
        }
        if self.pacing && now < self.next_send {
            self.paced = true;
            return None;
        }
        let burst = self.burst();
        if self.board.has_lost()
            && let Some(segment) = self.transmit_lost(burst, now)
        {
            return Some(segment);
        }
        self.transmit_new(burst, now)
    }

    fn transmit_syn(&mut self, now: Nanos) -> Option<Segment> {
        let sent = match self.open {
            Open::Closed { passive: false } if self.written > 0 => 0,
            Open::Asked { sent, due: true } => sent,
            _ => return None,
        };
        self.open = Open::Asked { sent: sent + 1, due: false };
        self.waiting_since = now;
        let setup = if self.config.ecn { Flags::ECN_SETUP } else { Flags::default() };
        let again = if sent > 0 { Flags::RETRANSMISSION } else { Flags::default() };
        let mut syn = self.segment(0, 0, Flags::SYN | setup | again, now);
        syn.ecn = Ecn::NotEct;
        Some(syn)
    }

    /// RFC 8985 §7.3: new data if there is any and the receiver has room, else the last packet again.
    fn transmit_tail_probe(&mut self, now: Nanos) -> Option<Segment> {
        let fresh = self.mss.min(self.written - self.nxt).min(self.edge.saturating_sub(self.nxt));
        let retransmission = fresh == 0;
        let segment = if retransmission {
            let (seq, len) = self.board.last()?;
            self.send_again(seq, len, now)
        } else {
            self.send_first(fresh as u32, now)
        };
        self.tail_probe = Some(TailProbe { end: self.nxt, retransmission });
        self.waiting_since = now;
        self.stats.probes += 1;
        Some(segment)
    }

    fn transmit_lost(&mut self, burst: u64, now: Nanos) -> Option<Segment> {
        let room = self.control.cwnd.saturating_sub(self.pipe());
        let (seq, len) = self.board.next_resend(room.min(burst), self.mss as u32)?;
        if u64::from(len) > room || !self.has_credit(u64::from(len)) {
            return None;
        }
        if seq == self.una {
            self.waiting_since = now;
        }
        Some(self.send_again(seq, len, now))
    }

    fn transmit_new(&mut self, burst: u64, now: Nanos) -> Option<Segment> {
        let waiting = self.written - self.nxt;
        if waiting == 0 {
            self.note_app_limited();
            self.note_usage(false);
            return None;
        }
        let idle = self.outstanding() == 0;
        if idle {
            self.begin_after_idle(now);
        }
        let window = self.edge.min(self.una + self.send_buffer).saturating_sub(self.nxt);
        let room = self.control.cwnd.saturating_sub(self.pipe());
        let mut len = burst.min(waiting).min(window).min(room);
        if len < self.mss && len < waiting {
            // A small segment only when nothing else can bring the window forward (RFC 1122 §4.2.3.4).
            self.note_usage(room < self.mss);
            if len == 0 || !idle {
                return None;
            }
        } else if len < waiting && len > self.mss {
            len -= len % self.mss;
            if self.defers(len, burst, idle) {
                self.note_usage(true);
                return None;
            }
        }
        if !self.has_credit(len) {
            self.note_usage(false);
            return None;
        }
        Some(self.send_first(len as u32, now))
    }

    fn send_first(&mut self, len: u32, now: Nanos) -> Segment {
        if self.outstanding() == 0 {
            self.waiting_since = now;
        }
        self.last_news = now;
        let (seq, ends) = (self.nxt, self.nxt + u64::from(len) == self.written);
        self.board.push(seq, len, self.mss as u32, now);
        self.nxt += u64::from(len);
        self.book(u64::from(len), now);
        let mut flags = if ends { Flags::PSH } else { Flags::default() };
        if core::mem::take(&mut self.say_cwr) && self.ecn {
            flags |= Flags::CWR;
        }
        self.segment(seq, len, flags, now)
    }

    fn send_again(&mut self, seq: u64, len: u32, now: Nanos) -> Segment {
        self.board.resend(seq, seq + u64::from(len), now);
        self.recovery.note_resend(now);
        self.book(u64::from(len), now);
        self.stats.retransmitted += plimsoll_units::Bytes::new(u64::from(len));
        self.stats.resent += u64::from(len).div_ceil(self.mss);
        let mut segment = self.segment(seq, len, Flags::RETRANSMISSION, now);
        if !self.control.needs_ecn() {
            segment.ecn = Ecn::NotEct; // RFC 3168 §6.1.5
        }
        segment
    }

    fn segment(&self, seq: u64, len: u32, flags: Flags, now: Nanos) -> Segment {
        let ecn = if self.ecn && len > 0 { Ecn::Ect0 } else { Ecn::NotEct };
        Segment { seq, sent: now, len, mss: self.mss as u16, flags, ecn }
    }

    /// Counts a segment that leaves, for recovery, the host's transmit path and pacing.
    fn book(&mut self, len: u64, now: Nanos) {
        self.stats.segments += 1;
        self.recovery.note_sent(len);
        if self.local_queue != LocalQueue::Unlimited {
            self.queued += len;
        }
        if self.pacing {
            let (bytes, nanos) = self.rate();
            let wait = u128::from(len) * u128::from(nanos) / u128::from(bytes.max(1));
            self.next_send = self.next_send.max(now) + Span::ns(u64::try_from(wait).unwrap_or(0));
        }
    }

    /// Linux's pacing rate, whether or not segments are paced: bytes per nanoseconds. Zero nanoseconds when unknown.
    fn rate(&self) -> (u64, u64) {
        if let Some(rate) = self.control.pacing_rate() {
            return (rate, plimsoll_units::NS_PER_SEC);
        }
        let (cwnd, srtt) = (self.control.cwnd, self.rtt.smoothed());
        // Doubling a window that is near its threshold would overshoot it.
        if cwnd < self.control.ssthresh / 2 { (2 * cwnd, srtt) } else { (cwnd + cwnd / 5, srtt) }
    }

    /// The bytes that one descriptor may hold: Linux's `tcp_tso_autosize`, about a millisecond at the current rate, more on
    /// a short path; at least two segments.
    fn burst(&self) -> u64 {
        if self.offload <= self.mss {
            return self.mss;
        }
        let (bytes, nanos) = self.rate();
        let limit = self.offload - self.offload % self.mss;
        if nanos == 0 {
            return limit;
        }
        let rate_part = (bytes << MILLISECOND_SHIFT) / nanos;
        let short_path = self.offload.checked_shr((self.rtt.least() / 512_000) as u32).unwrap_or(0);
        let burst = (rate_part + short_path).clamp((2 * self.mss).min(limit), limit);
        burst - burst % self.mss
    }

    /// Whether the host's transmit path takes `len` more.
    fn has_credit(&self, len: u64) -> bool {
        let queued = self.queued + len;
        match self.local_queue {
            LocalQueue::Unlimited => true,
            _ if self.queued == 0 => true,
            LocalQueue::Fixed(limit) => queued <= limit.as_u64(),
            LocalQueue::Small(limit) => {
                let (bytes, nanos) = self.rate();
                let millisecond = || queued.saturating_mul(nanos) <= bytes << MILLISECOND_SHIFT;
                queued <= limit.as_u64() && (queued <= 2 * len || millisecond())
            }
        }
    }

    /// Waits for a larger descriptor while acknowledgements are on their way (Linux's `tcp_tso_should_defer`).
    fn defers(&self, len: u64, burst: u64, idle: bool) -> bool {
        let third = self.control.cwnd.min(self.edge - self.una) / 3;
        !idle && self.recovery.phase == Phase::Open && self.board.is_clean() && len < burst.min(third)
    }

    fn begin_after_idle(&mut self, now: Nanos) {
        let idle = (now - self.last_news).as_u64();
        if self.board.rates().is_some_and(|rates| rates.is_limited()) {
            self.control.note_restart(now);
        }
        if self.nxt > 0 && idle > 0 {
            self.control.note_idle(idle, self.rtt.timeout().as_u64(), self.config.restart_after_idle);
        }
    }

    /// Notes for a window whether the window limited the sender (Linux's `tcp_cwnd_validate`).
    fn note_usage(&mut self, limited: bool) {
        let outstanding = self.outstanding();
        if self.una >= self.usage_until
            || limited
            || (!self.window_limited && outstanding > self.most_outstanding)
        {
            self.window_limited = limited;
            self.most_outstanding = outstanding;
            self.usage_until = self.nxt;
        }
    }
}

/// 2^20 ns: as near to a millisecond as Linux takes it.
const MILLISECOND_SHIFT: u32 = 20;
