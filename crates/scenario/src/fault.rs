//! What goes wrong in a run, on purpose.
//!
//! Why: isolation is a claim about bad days; each of them must come on demand, and at the same moment every time.
//! From: `docs/scenarios.md`, "Faults".
//! Not here: reading it (`read::fault`), what becomes of it (`sim`).
//! Invariant: every name refers to something that exists; moments lie inside the run.

use plimsoll_units::Span;

/// Everything that goes wrong; nothing by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// What becomes of control's messages.
    pub feedback: FeedbackFaults,
    /// Hosts that take no part in control: they neither say what they allow nor hear what others do.
    pub silent: Vec<String>,
    /// Daemons that end, and come back with nothing.
    pub restarts: Vec<Restart>,
    /// Hosts whose clock is set.
    pub clocks: Vec<ClockStep>,
    /// Tenants that stop reading.
    pub stalls: Vec<Stall>,
}

/// What becomes of messages between hosts: parts of them, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FeedbackFaults {
    /// Never arrive.
    pub loss: f64,
    /// Arrive twice, the second time late.
    pub duplicate: f64,
    /// Are late, so that others overtake them.
    pub reorder: f64,
    /// How late that is, at most.
    pub late: Span,
}

/// A daemon that ends with all that its engine holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Its host.
    pub host: String,
    /// When it ends.
    pub at: Span,
    /// How long nobody is there.
    pub gap: Span,
}

/// A clock that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// Whose.
    pub host: String,
    /// When.
    pub at: Span,
    /// By how much.
    pub step: Span,
    /// Whether that is back.
    pub back: bool,
}

/// A tenant whose guest takes nothing from its device for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Whose.
    pub tenant: String,
    /// From when on.
    pub from: Span,
    /// Until when.
    pub to: Span,
}

impl Faults {
    /// Lets everything come at `scale`'s time.
    pub(crate) fn scale(&mut self, scale: impl Fn(&mut Span)) {
        self.restarts.iter_mut().for_each(|restart| {
            scale(&mut restart.at);
            scale(&mut restart.gap);
        });
        self.clocks.iter_mut().for_each(|clock| scale(&mut clock.at));
        self.stalls.iter_mut().for_each(|stall| {
            scale(&mut stall.from);
            scale(&mut stall.to);
        });
    }
}
