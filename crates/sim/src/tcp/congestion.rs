//! The congestion window: when it grows, and what it falls to.
//!
//! Why: three algorithms that differ only here share one sender.
//! From: RFC 5681 (`NewReno`), 9438 (CUBIC), 8257 (DCTCP), 9406 (`HyStart++`).
//! Not here: finding losses, and letting the window down gradually (`sender`).
//! Invariant: integers only; the window never falls below one segment, the threshold not below two.

mod cubic;
mod dctcp;
mod hystart;

use plimsoll_units::Nanos;

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
            },
            hystart: (cubic && config.hystart).then(HyStart::new),
        }
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// DCTCP's estimate of the marked fraction, in 2^-20; `None` for the others.
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

    /// Grows the window after `progress`, if the window was in use.
    pub(super) fn grow(&mut self, progress: &Progress) {
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
        }
    }

    /// Counts what was acknowledged, and whether it was marked; DCTCP learns from every acknowledgement.
    pub(super) fn account(&mut self, delivered: u64, marked: bool, una: u64, nxt: u64) {
        if let Algorithm::Dctcp(dctcp) = &mut self.algorithm {
            dctcp.account(delivered, marked, una, nxt);
        }
    }

    /// Handles a loss: lowers the threshold. The sender lets the window follow.
    pub(super) fn note_loss(&mut self) {
        self.reduce(|cwnd, algorithm| match algorithm {
            Algorithm::NewReno | Algorithm::Dctcp(_) => cwnd / 2,
            Algorithm::Cubic(cubic) => cubic.reduce(cwnd),
        });
    }

    /// Handles an echoed mark: lowers the threshold.
    pub(super) fn note_mark(&mut self) {
        self.reduce(|cwnd, algorithm| match algorithm {
            Algorithm::NewReno => cwnd / 2,
            Algorithm::Cubic(cubic) => cubic.reduce(cwnd),
            Algorithm::Dctcp(dctcp) => dctcp.reduce(cwnd),
        });
    }

    /// Handles a timeout: back to one segment. `first` is false when the retransmission timed out too, which is no further
    /// sign of congestion (RFC 5681 §3.1).
    pub(super) fn note_timeout(&mut self, first: bool) {
        if first {
            self.note_loss();
        }
        self.set_cwnd(self.mss);
    }

    /// A window that has not been used for several timeouts says little about the path (RFC 2861).
    pub(super) fn note_idle(&mut self, idle: u64, rto: u64, restart: bool) {
        if let Algorithm::Cubic(cubic) = &mut self.algorithm {
            cubic.skip(idle);
        }
        if restart && idle > rto {
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

    /// Grows by what was delivered; returns what is left beyond the threshold.
    fn slow_start(&mut self, progress: &Progress) -> u64 {
        let mut step = progress.delivered;
        if let Some(hystart) = self.hystart.as_mut().filter(|_| self.ssthresh == u64::MAX) {
            step = hystart.step(progress);
            if hystart.is_over() {
                self.ssthresh = self.cwnd;
                return progress.delivered;
            }
        }
        let room = self.ssthresh - self.cwnd;
        self.cwnd += step.min(room);
        step.saturating_sub(room)
    }

    fn reduce(&mut self, rule: impl FnOnce(u64, &mut Algorithm) -> u64) {
        self.ssthresh = rule(self.cwnd, &mut self.algorithm).max(2 * self.mss);
        self.credit = 0;
    }
}
