//! The end of a window: which flows stay pressed, and how hard.
//!
//! Why: a flow that its rate holds shows no more what it wants; to let it go at each end of its lifetime would bring the overload back.
//! From: MIMIC §III; the rules are those of the parent's documentation.
//! Not here: which flows are pressed first (`choice`), and what a target follows from (`target`).
//! Invariant: only a flow that was reported in the window is refreshed, each at most once in it.

use core::fmt::Debug;
use core::hash::Hash;

use plimsoll_units::{Nanos, Span};

use super::pressed::Flow;
use super::settings::{Path, Target};
use super::target::{self, ONE, Sends};
use super::{Backpressure, MARGIN, Order, Window};
use crate::PerMille;

impl<K: Copy + Eq + Hash + Ord + Debug> Backpressure<K> {
    /// Ends a window: measures the pressed flows, changes their targets and marking intervals, and refreshes those that are to
    /// stay pressed.
    pub(super) fn end_window(&mut self, mut path: impl FnMut(&K) -> Option<Path>, now: Nanos) {
        let (used, all) = self.window.load(self.settings.capacity);
        self.before = self.window.packets;
        self.window = Window::new(now);
        self.reports.end_window();
        self.flows.iter_mut().for_each(Flow::end_window);
        let on = self.trigger.is_on();
        self.windows_on = if on { self.windows_on.saturating_add(1) } else { 0 };
        self.calm_since = if on { now } else { self.calm_since };
        let lasts = self.windows_on > AT_ONCE;
        let settings = &self.settings;
        let since = |span: Span| now.since(self.calm_since) >= span;
        let tried = !on && since(settings.lifetime.times(TRIED));
        for flow in &mut self.flows {
            let obeys = now.since(flow.pressed().since) >= settings.window.times(AT_ONCE.into());
            if tried || lasts && obeys {
                flow.forget_brought();
            }
        }
        let held = on || self.would_return(used, all);
        self.widens = on && self.is_exhausted();
        let factor = self.next_factor(used, all);
        let settings = &self.settings;
        for flow in &mut self.flows {
            if !flow.was_reported() || !(on || held && flow.fills_target()) {
                continue;
            }
            if let Some(path) = path(flow.key()) {
                flow.follow_path(path);
            }
            if let Target::Auto(least) = settings.target {
                flow.retarget(factor, least);
            }
            flow.trim(settings.window, settings.lifetime);
            if flow.refresh(settings.lifetime, now) {
                self.orders.push(Order::Refresh(*flow.pressed()));
                self.counters.refreshed += 1;
            }
        }
    }

    /// Whether pressed flows can give up no more: each keeps to its target, and an automatic target is at its least.
    fn is_exhausted(&self) -> bool {
        let least = |target| match self.settings.target {
            Target::Fixed(_) => true,
            Target::Auto(least) => target <= least,
        };
        let Sends { now, allowed } = self.sends();
        // A flow that sends nothing any more has nothing to give up.
        let mut sending = self.flows.iter().filter(|flow| flow.was_reported());
        now <= allowed.saturating_add(allowed / 4) && sending.all(|flow| least(flow.target()))
    }

    /// Whether the overload would return if pressed flows sent as much as they once did, or brought the load that they were pressed
    /// for. The packets that answer theirs, such as acknowledgements, would come back as well and are not known, so the lower
    /// threshold counts.
    fn would_return(&self, used: PerMille, all: u64) -> bool {
        let filling = || self.flows.iter().filter(|flow| flow.fills_target());
        let sum = |packets: fn(&Flow<K>) -> u64| filling().map(packets).fold(0, u64::saturating_add);
        let (now, wanted) = (sum(|flow| flow.sends().now), sum(Flow::wanted_packets));
        let brought = filling().map(Flow::brought).fold(0, PerMille::saturating_add);
        let load = target::load_with(used, all, now, wanted);
        load.max(target::load_with_brought(used, all, now, brought)) >= self.trigger.thresholds().off_below
    }

    /// The factor by which automatic targets change after a window.
    fn next_factor(&self, used: PerMille, all: u64) -> u64 {
        let aim = self.aim();
        let factor = target::factor(used, aim, all, Sends::default(), self.sends());
        let calm = used.saturating_add(MARGIN) >= aim;
        // Half of the way up: what others send may rise as well.
        if self.trigger.is_on() {
            factor.min(ONE)
        } else if calm {
            ONE
        } else {
            ONE.midpoint(factor.max(ONE))
        }
    }
}

/// Windows of overload after which a pressed flow's part of the load counts no more: one that was the cause shows it sooner, or shows
/// its rate, as marks act slowly.
const AT_ONCE: u32 = 10;
/// Lifetimes without an overload after which a pressed flow's part of the load counts no more.
const TRIED: u64 = 10;
