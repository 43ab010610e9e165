//! A member: what it could use, from its thread's reports.
//!
//! Not here: what the policy gives it (`coordinator`).
//! Invariant: a member that is silent for some epochs could use nothing.

use plimsoll_policy::LimitId;

use super::coordinator::Report;
use super::rates::Elapsed;
use crate::PerMille;

/// A member's state that each epoch computes anew, or changes. Small, as an epoch reads all of them several times.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// Its vertex in the tree: its class, if no other member is in that.
    pub(super) leaf: u32,
    pub(super) class: u32,
    pub(super) thread: u32,
    /// What holds it: a node by its maximum, the root for the link, or past all nodes a limit; [`UNHELD`] if it sends all that it has.
    pub(super) held_by: u32,
    pub(super) is_active: bool,
    /// Whether a limit by match holds it.
    pub(super) is_behind: bool,
    /// Bytes that left during the last epoch.
    pub(super) served: u64,
    /// Bits per second that it may soon use.
    pub(super) room: u64,
    /// Bytes that it should have got, and others have.
    pub(super) balance: i64,
    /// What it got, and should have got, in the window in which shares are judged.
    pub(super) track: Track,
    /// Bits per second that it could use.
    pub(super) need: u64,
    /// Bits per second that it gets.
    pub(super) rate: u64,
    /// Bits per second that the policy gives it.
    pub(super) share: u64,
    /// Bits per second that it should give back beyond what it can.
    pub(super) owes: u64,
}

/// What a thread says of a member, and what follows from it.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub(super) report: Report,
    /// `report.left` when the last epoch ended.
    seen: u64,
    /// Bytes that waited when the last epoch ended.
    waited: u64,
    /// Bits per second that have come, on average over some epochs.
    coming: u64,
    /// Epochs in a row at whose end it had something waiting.
    behind_for: u32,
    /// Whether a limit holds it whose rate the coordinator does not know: then only what left says what it could use.
    measured: bool,
}

/// The limits that hold a member.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) all: Vec<LimitId>,
    /// Of these, the ones by match.
    pub(super) behind: Vec<Behind>,
    /// What the link would give it.
    pub(super) offer: u64,
}

/// What a member got in a window.
#[derive(Clone, Copy, Debug)]
pub(super) enum Track {
    /// It has been held back all the time: bytes that left, and that should have.
    Held { served: u64, due: u64 },
    /// It sent all that it had for a while: then its share says nothing.
    Lost,
}

impl Track {
    pub(super) const START: Self = Self::Held { served: 0, due: 0 };

    pub(super) fn add(&mut self, more: u64, more_due: u64) {
        if let Self::Held { served, due } = self {
            (*served, *due) = (served.saturating_add(more), due.saturating_add(more_due));
        }
    }

    /// Thousandths by which it was off, if at least `least` bytes were due.
    pub(super) fn off(self, least: u64) -> PerMille {
        match self {
            Self::Held { served, due } if due >= least.max(1) => {
                u32::try_from(u128::from(served.abs_diff(due)) * 1_000 / u128::from(due)).unwrap_or(u32::MAX)
            }
            _ => 0,
        }
    }
}

/// A member's place behind a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behind {
    pub(super) limit: u32,
    /// Bits per second that the limit would give it.
    pub(super) offer: u64,
}

/// Epochs over which what comes is averaged.
const AVERAGED: u64 = 8;

/// Epochs in a row with something waiting after which a member counts as one that could use more.
const LONG_BEHIND: u32 = 8;

/// The part of the link below which a member that is silent is forgotten.
const FORGOTTEN: u64 = 4_096;

/// Marks a member that sends all that it has.
pub(super) const UNHELD: u32 = u32::MAX;

/// Bytes by which a member that sends all that it has may grow within a lease: two frames.
const GROWTH: u64 = 3_000;

impl Member {
    /// Bits per second of the link that it gets beyond its rate: one that sends all that it has may send more soon, and one that
    /// a limit holds must not wait for the link besides.
    ///
    /// Where a member of its thread waits for the link and gets nothing, it would take what another one may use besides: then only
    /// members that send all that they have may grow. `starved` has a bit for each such thread.
    pub(super) fn grows(&self, nodes: u32, starved: u64) -> u64 {
        if starved >> (self.thread % 64) & 1 != 0 && self.held_by != UNHELD {
            return 0;
        }
        match self.held_by {
            UNHELD => self.room.saturating_sub(self.rate),
            limit if limit >= nodes => self.rate / 8,
            _ => 0,
        }
    }
}

impl Demand {
    pub(super) fn new(measured: bool) -> Self {
        Self { report: Report::default(), seen: 0, waited: 0, coming: 0, behind_for: 0, measured }
    }

    /// What the member could use, from what has left and what waits.
    pub(super) fn measure(&mut self, member: &mut Member, elapsed: Elapsed, link: u64) {
        let Report { left, waiting } = self.report;
        let served = left.wrapping_sub(self.seen);
        let had = served.saturating_add(waiting);
        let came = had.saturating_sub(self.waited);
        (self.seen, self.waited) = (left, waiting);
        self.behind_for = if waiting == 0 { 0 } else { self.behind_for.saturating_add(1) };
        let rate = elapsed.rate_of(came).min(u64::MAX / AVERAGED);
        self.coming = self.coming - self.coming / AVERAGED + rate / AVERAGED;
        let lags = !self.measured && (waiting > served / 2 + GROWTH || self.behind_for >= LONG_BEHIND);
        let need = if lags {
            elapsed.rate_of(had.saturating_mul(2))
        } else {
            self.coming.saturating_add(elapsed.rate_of(waiting) / AVERAGED)
        };
        let soon = came.max(served);
        let soon = soon.saturating_add(soon / 8 + GROWTH).saturating_add(waiting);
        let is_gone = came == 0 && served == 0 && waiting == 0 && need < link / FORGOTTEN;
        member.served = served;
        member.room = if lags { 0 } else { elapsed.rate_of(soon).min(link) };
        member.need = if is_gone { 0 } else { need.min(link) };
    }
}
