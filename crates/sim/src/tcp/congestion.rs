//! The congestion window: when it grows, and what it falls to.
//!
//! Why: three algorithms that differ only here share one sender.
//! From: RFC 5681 (`NewReno`), 9438 (CUBIC), 8257 (DCTCP), Ha and Rhee 2011 (`HyStart`), as in Linux.
//! Not here: finding losses, and letting the window down gradually (`sender`).
//! Invariant: integers only; the window never falls below one segment, the threshold not below two.

mod bbr;
mod cubic;
mod dctcp;
mod hystart;

use plimsoll_units::Nanos;

pub(super) use self::bbr::Arrival;
use self::bbr::Bbr;
use self::cubic::Cubic;
use self::dctcp::Dctcp;
use self::hystart::HyStart;
use super::config::{Config, Congestion};

/// Window, threshold and the algorithm that moves them. All sizes are bytes.
#[derive(Clone, Debug)]
pub(super) struct CongestionControl {
    pub(super) cwnd: u64,
    pub(super) ssthresh: u64,
    mss: u64,
    initial: u64,
    /// Progress towards the next segment of growth, in the algorithm's measure.
    credit: u64,
    algorithm: Algorithm,
    hystart: Option<HyStart>,
}

#[derive(Clone, Debug)]
enum Algorithm {
    NewReno,
    Cubic(Cubic),
    Dctcp(Dctcp),
    Bbr(Box<Bbr>),
}

/// The news in one acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Bytes that are now known to have arrived.
    pub(super) delivered: u64,
    /// Bytes acknowledged so far.
    pub(super) una: u64,
    /// Bytes sent so far.
    pub(super) nxt: u64,
    /// The round trip of the last of them, ns, when known.
    pub(super) rtt: Option<u64>,
    /// Smoothed round trip, ns.
    pub(super) srtt: u64,
    pub(super) now: Nanos,
}

impl CongestionControl {
    pub(super) fn new(config: &Config) -> Self {
        let mss = u64::from(config.segment_size());
        let initial = mss * u64::from(config.initial_window.max(1));
        let cubic = config.congestion == Congestion::Cubic;
        Self {
            cwnd: initial,
            ssthresh: u64::MAX,
            mss,
            initial,
            credit: 0,
            algorithm: match config.congestion {
                Congestion::NewReno => Algorithm::NewReno,
                Congestion::Cubic => Algorithm::Cubic(Cubic::new(mss)),
                Congestion::Dctcp => Algorithm::Dctcp(Dctcp::new()),
                Congestion::Bbr => Algorithm::Bbr(Box::new(Bbr::new(mss, initial, config.seed))),
            },
            hystart: (cubic && config.hystart).then(|| HyStart::new(config.pacing)),
        }
    }

    /// The window with which a connection begins.
    pub(super) fn initial(&self) -> u64 {
        self.initial
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// DCTCP's estimate of the marked fraction, in 2^-10; `None` for the others.
    pub(super) fn alpha(&self) -> Option<u32> {
        match &self.algorithm {
            Algorithm::Dctcp(dctcp) => Some(dctcp.alpha()),
            _ => None,
        }
    }

    /// Whether every segment has to be ECN-capable, retransmissions included.
    pub(super) fn needs_ecn(&self) -> bool {
        matches!(self.algorithm, Algorithm::Dctcp(_))
    }

    /// Bytes a second at which segments have to leave; `None` where the window alone decides.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        match &self.algorithm {
            Algorithm::Bbr(bbr) => Some(bbr.pacing_rate()),
            _ => None,
        }
    }

    /// Whether the algorithm has a model of the path by which it sets the window itself, in recovery too.
    pub(super) fn has_model(&self) -> bool {
        matches!(self.algorithm, Algorithm::Bbr(_))
    }

    /// Lets the model take an acknowledgement; says whether the application's samples are too low from now on.
    pub(super) fn learn(&mut self, arrival: &Arrival) -> bool {
        let mut limited = false;
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            self.cwnd = bbr.update(arrival, self.cwnd, &mut limited);
        }
        limited
    }

    /// The application sends again after it had nothing to send.
    pub(super) fn note_restart(&mut self, now: Nanos) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            bbr.note_restart(now);
        }
    }

    /// A reduction was needless: back to the state before it.
    pub(super) fn undo(&mut self, before: Self) {
        if let Algorithm::Bbr(bbr) = &mut self.algorithm {
            return bbr.note_needless();
        }
        let cwnd = self.cwnd;
        *self = before;
        self.set_cwnd(self.cwnd.max(cwnd));
    }

    /// Grows the window after `progress`, if the window was in use.
    pub(super) fn grow(&mut self, progress: &Progress) {
        if self.has_model() {
            return;
        }
        let mut delivered = progress.delivered;
        if self.in_slow_start() {
            delivered = self.slow_start(progress);
            if delivered == 0 {
                return;
            }
        }
        match &mut self.algorithm {
            Algorithm::NewReno | Algorithm::Dctcp(_) => {
                self.credit += delivered;
                if self.credit >= self.cwnd {
                    self.credit -= self.cwnd;
                    self.cwnd += self.mss;
                }
            }
            Algorithm::Cubic(cubic) => {
                self.cwnd = cubic.grow(self.cwnd, &mut self.credit, delivered, progress);
            }
            Algorithm::Bbr(_) => {}
        }
    }

    /// Takes each acknowledgement, whether or not the window grows by it: DCTCP counts marks, `HyStart` looks for the end of
    /// slow start.
    pub(super) fn account(&mut self, progress: &Progress, marked: bool) {
        if let Algorithm::Dctcp(dctcp) = &mut self.algorithm {
            dctcp.account(progress.delivered, marked, progress.una, progress.nxt);
        }
        let slow_start = self.in_slow_start();
        if let (Some(hystart), Some(rtt)) = (&mut self.hystart, progress.rtt)
            && slow_start
            && hystart.ends(progress, rtt, self.cwnd, self.mss)
        {
            self.ssthresh = self.cwnd;
        }
    }

    /// Handles a loss: lowers the threshold. The sender lets the window follow.
    pub(super) fn note_loss(&mut self) {
        self.reduce(|cwnd, algorithm| match algorithm {
            Algorithm::NewReno | Algorithm::Dctcp(_) => cwnd / 2,
            Algorithm::Cubic(cubic) => cubic.reduce(cwnd),
            Algorithm::Bbr(bbr) => {
                bbr.note_loss(cwnd);
                u64::MAX
            }
        });
    }

    /// Handles an echoed mark: lowers the threshold.
    pub(super) fn note_mark(&mut self) {
        let mss = self.mss;
        self.reduce(|cwnd, algorithm| match algorithm {
            Algorithm::NewReno => cwnd / 2,
            Algorithm::Cubic(cubic) => cubic.reduce(cwnd),
            Algorithm::Dctcp(dctcp) => dctcp.reduce(cwnd, mss),
            Algorithm::Bbr(bbr) => {
                bbr.note_loss(cwnd);
                u64::MAX
            }
        });
    }

    /// Handles a timeout: back to one segment. `first` is false when the retransmission timed out too, which is no further
    /// sign of congestion (RFC 5681 §3.1).
    pub(super) fn note_timeout(&mut self, first: bool) {
        if first {
            self.note_loss();
        }
        if let Some(hystart) = &mut self.hystart {
            hystart.reset();
        }
        match &mut self.algorithm {
            Algorithm::Cubic(cubic) => cubic.reset(),
            Algorithm::Bbr(bbr) => bbr.note_timeout(self.cwnd),
            Algorithm::NewReno | Algorithm::Dctcp(_) => {}
        }
        self.set_cwnd(self.mss);
    }

    /// A window that has not been used for several timeouts says little about the path (RFC 2861).
    pub(super) fn note_idle(&mut self, idle: u64, rto: u64, restart: bool) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.skip(idle);
        }
        if restart && idle > rto && !self.has_model() {
            if self.ssthresh != u64::MAX {
                self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
            }
            let halvings = u32::try_from(idle / rto.max(1)).unwrap_or(u32::MAX).min(63);
            self.set_cwnd((self.cwnd >> halvings).max(self.cwnd.min(self.initial)));
        }
    }

    /// Sets the window, to one segment at least.
    pub(super) fn set_cwnd(&mut self, cwnd: u64) {
        self.cwnd = cwnd.max(self.mss);
    }

    /// Sets the window to the threshold, at the end of a reduction.
    pub(super) fn fall_to_threshold(&mut self) {
        if !self.has_model() {
            self.set_cwnd(self.ssthresh);
        }
    }

    /// Grows by what was delivered; returns what is left beyond the threshold.
    fn slow_start(&mut self, progress: &Progress) -> u64 {
        let room = self.ssthresh - self.cwnd;
        self.cwnd += progress.delivered.min(room);
        progress.delivered.saturating_sub(room)
    }

    fn reduce(&mut self, rule: impl FnOnce(u64, &mut Algorithm) -> u64) {
        self.ssthresh = rule(self.cwnd, &mut self.algorithm).max(2 * self.mss);
        self.credit = 0;
    }
}
