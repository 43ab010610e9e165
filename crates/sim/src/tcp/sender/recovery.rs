//! Recovery: duplicate and partial acknowledgements, echoed marks and timeouts.
//!
//! From: RFC 5681 and 6582 without SACK, RFC 8985 with it; RFC 6937 for lowering the window while acknowledgements come
//! in; RFC 3522 for taking a reduction back when its retransmission was needless; RFC 3168 and 8257 for echoed marks.

use plimsoll_units::{Nanos, Span};

use super::{Before, Open, Sender};
use crate::tcp::congestion::CongestionControl;
use crate::tcp::scoreboard::Delivery;
use crate::tcp::segment::Ack;

/// Linux's congestion states. Disorder is `Open` with packets in doubt on the scoreboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The window grows.
    Open,
    /// A mark was echoed: the window falls to the threshold until `high` is acknowledged.
    Reduced,
    /// Packets were lost: the window falls to the threshold until `high` is acknowledged, and they are sent again.
    Recovery,
    /// The timeout has passed: slow start from one segment, until `high` is acknowledged.
    Loss,
}

/// The state of recovery.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// The bytes that had been sent when the phase began; their acknowledgement ends the phase.
    high: u64,
    /// Proportional rate reduction: the window at the start, and the bytes that have arrived and left since.
    window: u64,
    delivered: u64,
    sent: u64,
    /// When the phase's first retransmission left, and the state to go back to if it was needless.
    first_resend: Option<Nanos>,
    undo: Option<Box<CongestionControl>>,
    /// The network reorders: RACK's window, in quarters of the least round trip, and how long it stays wide.
    reordering_seen: bool,
    quarters: u64,
    widened: u32,
    widen_after: u64,
    /// Without SACK.
    duplicate_acks: u32,
    /// Fast retransmit only for data beyond this (RFC 6582 §3.2).
    careful_until: Option<u64>,
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Open,
            high: 0,
            window: 1,
            delivered: 0,
            sent: 0,
            first_resend: None,
            undo: None,
            reordering_seen: false,
            quarters: 1,
            widened: 0,
            widen_after: 0,
            duplicate_acks: 0,
            careful_until: None,
        }
    }

    pub(super) fn note_sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    pub(super) fn note_resend(&mut self, now: Nanos) {
        self.first_resend.get_or_insert(now);
    }

    /// RFC 8985 §6.2, step 4: a duplicate arrival says that RACK was too quick, once per round trip.
    fn widen(&mut self, una: u64, nxt: u64) {
        self.reordering_seen = true;
        if una >= self.widen_after {
            self.quarters = (self.quarters + 1).min(255);
            self.widen_after = nxt;
        }
        self.widened = WIDE_FOR;
    }

    /// After sixteen recoveries without one, RACK is quick again.
    fn narrow(&mut self) {
        self.widened = self.widened.saturating_sub(1);
        if self.widened == 0 {
            self.quarters = 1;
        }
    }

    fn start_account(&mut self, window: u64) {
        (self.window, self.delivered, self.sent) = (window.max(1), 0, 0);
    }
}

impl Sender {
    /// Handles an acknowledgement that is not plain progress in an open window.
    pub(super) fn react(
        &mut self,
        ack: &Ack,
        before: &Before,
        delivery: &Delivery,
        duplicate: bool,
        now: Nanos,
    ) {
        let mut delivery = *delivery;
        let advanced = self.una > before.una;
        self.recovery.reordering_seen |= delivery.reordered;
        if duplicate && self.tail_probe.is_none() {
            self.recovery.widen(self.una, self.nxt);
        }
        self.settle_tail_probe(ack, advanced, duplicate, &delivery);
        if advanced {
            self.undo_if_needless(ack);
        }
        if !self.config.sack {
            self.count_duplicates(before, &mut delivery);
        }
        self.leave_phase();
        self.look_for_losses_after(delivery.bytes > 0, now);
        if ack.ece() {
            self.take_mark();
        }
        match self.recovery.phase {
            Phase::Open | Phase::Loss => self.grow(&delivery, now),
            Phase::Reduced | Phase::Recovery => {
                let safe = advanced && self.board.lost() <= before.lost;
                self.let_down(delivery.bytes, safe);
            }
        }
    }

    /// Handles RACK's timer: packets that were in doubt may be lost now.
    pub(super) fn look_for_losses(&mut self, now: Nanos) {
        let lost = self.board.lost();
        self.look_for_losses_after(true, now);
        if self.board.lost() > lost && self.recovery.phase == Phase::Recovery {
            self.let_down(self.mss, false);
        }
    }

    /// Handles a timeout: of the SYN, of a closed window, or of data.
    pub(super) fn time_out(&mut self, now: Nanos) {
        let backed_off = self.rtt.is_backed_off();
        self.waiting_since = now;
        self.rtt.back_off();
        if let Open::Asked { due, .. } = &mut self.open {
            *due = true;
            self.stats.timeouts += 1;
        } else if self.outstanding() == 0 {
            self.probe_now = true;
        } else {
            self.lose_everything(backed_off);
        }
    }

    fn lose_everything(&mut self, backed_off: bool) {
        let phase = self.recovery.phase;
        let fresh =
            phase == Phase::Open || self.una >= self.recovery.high || (phase == Phase::Loss && !backed_off);
        if fresh {
            self.recovery.undo = Some(Box::new(self.control.clone()));
        }
        self.control.note_timeout(fresh);
        self.recovery.phase = Phase::Loss;
        self.recovery.high = self.nxt;
        self.recovery.careful_until = Some(self.nxt);
        self.recovery.first_resend = None;
        self.recovery.duplicate_acks = 0;
        self.board.lose_all();
        self.doubt_until = None;
        self.tail_probe = None;
        self.tail_probe_now = false;
        self.say_cwr = true;
        self.stats.timeouts += 1;
    }

    fn look_for_losses_after(&mut self, news: bool, now: Nanos) {
        if self.config.sack && news {
            self.doubt_until = if self.board.is_clean() {
                None
            } else {
                self.board.find_losses(self.reordering_window(), now)
            };
        }
        if self.board.has_lost() && matches!(self.recovery.phase, Phase::Open | Phase::Reduced) {
            self.begin_recovery();
        }
    }

    /// RFC 8985 §6.2, step 4, with Linux's bound of the smoothed round trip.
    fn reordering_window(&self) -> Span {
        let recovering = matches!(self.recovery.phase, Phase::Recovery | Phase::Loss);
        if !self.recovery.reordering_seen
            && (recovering || self.board.sacked_packets() >= DUPLICATE_THRESHOLD)
        {
            return Span::ZERO;
        }
        Span::ns((self.rtt.least() / 4 * self.recovery.quarters).min(self.rtt.smoothed()))
    }

    fn begin_recovery(&mut self) {
        // A reduction for a mark in this window is enough.
        if self.recovery.phase == Phase::Open {
            self.recovery.undo = Some(Box::new(self.control.clone()));
            self.recovery.start_account(self.control.cwnd);
            self.control.note_loss();
        }
        self.recovery.phase = Phase::Recovery;
        self.recovery.high = self.nxt;
        self.recovery.careful_until = Some(self.nxt);
        self.recovery.first_resend = None;
        self.say_cwr = true;
        self.stats.recoveries += 1;
    }

    /// Handles an echoed mark: one reduction per window (RFC 3168 §6.1.2, RFC 8257 §3.3).
    fn take_mark(&mut self) {
        self.recovery.undo = None;
        if !self.ecn || self.recovery.phase != Phase::Open {
            return;
        }
        self.recovery.start_account(self.control.cwnd);
        self.control.note_mark();
        self.recovery.phase = Phase::Reduced;
        self.recovery.high = self.nxt;
        self.say_cwr = true;
        self.stats.mark_reductions += 1;
    }

    fn leave_phase(&mut self) {
        // The packet at `high` says that the window was reduced. An acknowledgement up to there may still echo the mark, and
        // is no sign of another one (Linux holds its state CWR until something above is acknowledged).
        let beyond = u64::from(self.recovery.phase == Phase::Reduced);
        if self.recovery.phase == Phase::Open || self.una < self.recovery.high + beyond {
            return;
        }
        if self.recovery.phase != Phase::Loss {
            self.control.fall_to_threshold();
        }
        if self.recovery.phase == Phase::Recovery {
            self.recovery.narrow();
        }
        self.recovery.phase = Phase::Open;
        self.recovery.undo = None;
        self.recovery.first_resend = None;
        self.board.forget_duplicate_acks();
    }

    /// RFC 3522: the answer is to a transmission before the first retransmission, so that nothing was lost.
    fn undo_if_needless(&mut self, ack: &Ack) {
        if self.recovery.first_resend.is_none_or(|first| ack.echo >= first) {
            return;
        }
        let Some(control) = self.recovery.undo.take() else {
            return;
        };
        self.control.undo(*control);
        self.board.undo_losses();
        self.recovery.phase = Phase::Open;
        self.recovery.first_resend = None;
        self.recovery.reordering_seen = true;
        self.stats.undone += 1;
    }

    /// Proportional rate reduction (RFC 6937): the bytes that may leave for those that have arrived.
    fn let_down(&mut self, delivered: u64, safe: bool) {
        if delivered == 0 || self.control.has_model() {
            return;
        }
        let (pipe, ssthresh) = (self.pipe(), self.control.ssthresh);
        let account = &mut self.recovery;
        account.delivered += delivered;
        let share = if pipe > ssthresh {
            let share = u128::from(ssthresh) * u128::from(account.delivered);
            // Linux counts segments and rounds up: one is withheld once acknowledgements have saved a whole one.
            let segments = share.div_ceil(u128::from(account.window) * u128::from(self.mss));
            let share = u64::try_from(segments).unwrap_or(u64::MAX).saturating_mul(self.mss);
            share.saturating_sub(account.sent)
        } else {
            let owed = account.delivered.saturating_sub(account.sent).max(delivered);
            (owed + if safe { self.mss } else { 0 }).min(ssthresh - pipe)
        };
        // The first lost packet leaves in any case.
        let share = if account.sent == 0 { share.max(self.mss) } else { share };
        self.control.set_cwnd(pipe + share);
    }

    /// Without SACK, three duplicate acknowledgements stand for a loss, and a partial one for the next (RFC 6582).
    fn count_duplicates(&mut self, before: &Before, delivery: &mut Delivery) {
        let advanced = self.una > before.una;
        if advanced {
            self.recovery.duplicate_acks = 0;
            let counted = self.board.settle_duplicate_acks(delivery.bytes, self.mss);
            delivery.bytes -= counted;
            if self.recovery.phase == Phase::Recovery && self.una < self.recovery.high {
                self.board.lose_first();
            }
            return;
        }
        if self.outstanding() == 0 || self.edge != before.edge || self.recovery.phase == Phase::Loss {
            return;
        }
        self.board.note_duplicate_ack(self.outstanding(), self.mss);
        delivery.bytes += self.mss;
        self.recovery.duplicate_acks += 1;
        let fresh = self.recovery.careful_until.is_none_or(|until| self.una > until);
        if self.recovery.duplicate_acks == DUPLICATE_THRESHOLD
            && fresh
            && self.recovery.phase != Phase::Recovery
        {
            self.board.lose_first();
        }
    }

    /// RFC 8985 §7.4: a probe that was needed has hidden a loss from congestion control.
    fn settle_tail_probe(&mut self, ack: &Ack, advanced: bool, duplicate: bool, delivery: &Delivery) {
        let Some(probe) = self.tail_probe.filter(|probe| ack.ack >= probe.end) else {
            return;
        };
        let told_nothing = !advanced && delivery.sacked == 0;
        if !probe.retransmission || duplicate || (ack.ack == probe.end && told_nothing) {
            self.tail_probe = None;
        } else if ack.ack > probe.end {
            self.tail_probe = None;
            if self.recovery.phase == Phase::Open {
                self.control.note_loss();
                self.control.fall_to_threshold();
                self.say_cwr = true;
                self.stats.recoveries += 1;
            }
        }
    }
}

/// RFC 5681 §3.2, RFC 8985 §6.2.
const DUPLICATE_THRESHOLD: u32 = 3;
/// RFC 8985 §6.2, step 4.
const WIDE_FOR: u32 = 16;
