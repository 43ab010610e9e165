//! Windows: parts of a run, in the time of the run.
//!
//! Why: tables, pictures and expectations look at parts of a run.
//! From: `docs/scenarios.md`, "measure".
//! Not here: what is measured in them (`measure`, `departures`).
//! Invariant: a window holds the moments from `from` on and before `to`.

use plimsoll_units::{Nanos, Span};

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub from: Nanos,
    pub to: Nanos,
}

impl Window {
    pub(crate) fn new(from: Span, to: Span) -> Self {
        Self { from: Nanos::ZERO + from, to: Nanos::ZERO + to }
    }

    pub(crate) fn secs(self) -> f64 {
        (self.to - self.from).as_secs_f64()
    }

    /// Its whole parts of length `per`.
    pub(crate) fn parts(self, per: Span) -> impl Iterator<Item = Self> {
        let count = (self.to - self.from).as_u64() / per.as_u64().max(1);
        (0..count).map(move |n| {
            let from = self.from + per.times(n);
            Self { from, to: from + per }
        })
    }
}
