//! A pressed flow: its target, its marking interval, and what it sends.
//!
//! Why: the response of congestion control to marks is an estimate; the rate that follows shows how hard to press.
//! From: MIMIC §V-A for the interval. Trimming and the time it takes are ours.
//! Not here: which flows are pressed, and until when they are refreshed.
//! Invariant: an interval stays within 1 and 16 times what its path gives for its target, but for the bounds of a `u32`.

use plimsoll_units::{BitRate, Nanos, Span};

use super::marking::{marking_interval, scaled, trimmed};
use super::reports::{Gauge, Rate};
use super::target::Sends;
use super::{Path, times};
use crate::PerMille;

/// A flow that is pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressed<K> {
    /// The flow.
    pub key: K,
    /// The rate to which it is held; the meter's rate as well.
    pub target: BitRate,
    /// One of how many of its packets is marked.
    pub interval: u32,
    /// Its way to its receiver, as far as it is known: the interval follows from it.
    pub path: Path,
    /// Since when.
    pub since: Nanos,
    /// Until when, if it is not refreshed.
    pub until: Nanos,
    /// It went on above its target in spite of marks, and needs a meter. Stays set until the flow is let go, as a metered flow
    /// keeps to its target. Without meaning where its packets are not marked.
    pub ignores_marks: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Flow<K> {
    /// As last ordered.
    pressed: Pressed<K>,
    target: BitRate,
    interval: u32,
    path: Path,
    /// When it was last ordered.
    ordered: Nanos,
    /// In the last window that could measure it.
    rate: Option<Rate>,
    /// The highest rate since it is pressed.
    wanted: Rate,
    /// Its part of the load that it was pressed for.
    brought: PerMille,
    window: Gauge,
    /// Whether it was reported in the running window, and in the last one.
    reported: [bool; 2],
    /// Since the interval was last trimmed.
    trim: Gauge,
    /// Trims in a row that found it well above its target.
    above: u32,
    ignores_marks: bool,
}

impl<K: Copy> Flow<K> {
    pub(super) fn new(
        key: K,
        target: BitRate,
        path: Path,
        (rate, brought): (Option<Rate>, PerMille),
        now: Nanos,
        lifetime: Span,
    ) -> Self {
        let interval = marking_interval(target, path.rtt, path.mss);
        Self {
            pressed: Pressed {
                key,
                target,
                interval,
                path,
                since: now,
                until: now + lifetime,
                ignores_marks: false,
            },
            target,
            interval,
            path,
            ordered: now,
            rate,
            wanted: rate.unwrap_or_default(),
            brought,
            window: Gauge::default(),
            reported: [true; 2],
            trim: Gauge::default(),
            above: 0,
            ignores_marks: false,
        }
    }

    pub(super) fn key(&self) -> &K {
        &self.pressed.key
    }

    pub(super) fn pressed(&self) -> &Pressed<K> {
        &self.pressed
    }

    /// Notes what a poll reported.
    pub(super) fn note(&mut self, reported: bool, new: Option<Gauge>) {
        self.reported[0] |= reported;
        if let Some(new) = new {
            self.window.add(new);
            self.trim.add(new);
        }
    }

    pub(super) fn end_window(&mut self) {
        self.reported = [false, self.reported[0]];
        let measured = core::mem::take(&mut self.window).rate();
        self.rate = if self.reported[1] { measured.or(self.rate) } else { Some(Rate::default()) };
        if let Some(rate) = self.rate.filter(|rate| rate.bits > self.wanted.bits) {
            self.wanted = rate;
        }
    }

    pub(super) fn target(&self) -> BitRate {
        self.target
    }

    /// Whether it was reported in the last window.
    pub(super) fn was_reported(&self) -> bool {
        self.reported[1]
    }

    /// Whether it sends at least half of its target, or an eighth while its marks can become rarer: they may be what keeps it
    /// there. A flow whose rate is not known does.
    pub(super) fn fills_target(&self) -> bool {
        let part = if self.interval < self.most_interval() { 8 } else { 2 };
        self.rate.is_none_or(|rate| rate.bits >= self.target.get() / part)
    }

    /// The longest interval that it is trimmed to.
    fn most_interval(&self) -> u32 {
        marking_interval(self.target, self.path.rtt, self.path.mss).saturating_mul(16)
    }

    pub(super) fn sends(&self) -> Sends {
        let Some(Rate { bits, packets }) = self.rate else { return Sends::default() };
        let kept = u128::from(packets) * u128::from(self.target.get()) / u128::from(bits.max(1));
        Sends { now: packets, allowed: u64::try_from(kept).map_or(packets, |kept| kept.min(packets)) }
    }

    /// Packets per second when it sent most.
    pub(super) fn wanted_packets(&self) -> u64 {
        self.wanted.packets
    }

    /// Its part of the load that it was pressed for, in thousandths of the capacity.
    pub(super) fn brought(&self) -> PerMille {
        self.brought
    }

    /// Forgets what it brought: that was not what made the load, or shows in its rate.
    pub(super) fn forget_brought(&mut self) {
        self.brought = 0;
    }

    /// Changes the target by a factor, and the marking interval with it. Each step goes from what the flow sends within its
    /// target.
    pub(super) fn retarget(&mut self, factor: u64, least: BitRate) {
        let sends = self.rate.map_or(self.target.get(), |rate| rate.bits.min(self.target.get()));
        let base = if factor < super::ONE { sends } else { self.target.get() };
        // A flow that sends little has little to give: the factor's bound is one of the target.
        let target = times(base, factor).max(times(self.target.get(), super::ONE / 4)).max(least);
        if target != self.target {
            self.interval = scaled(self.interval, target, self.target.get());
            self.target = target;
        }
    }

    /// Takes what is newly known of the flow's way, where it changes the interval: by the factor by which the interval for the
    /// target changes, so that what was trimmed stays.
    pub(super) fn follow_path(&mut self, path: Path) {
        let differs = |old: u64, new: u64| old.abs_diff(new) > old / 8;
        let old = self.path;
        if differs(old.rtt.as_u64(), path.rtt.as_u64()) || differs(old.mss.as_u64(), path.mss.as_u64()) {
            let [before, after] =
                [old, path].map(|path| u64::from(marking_interval(self.target, path.rtt, path.mss)));
            let interval = u128::from(self.interval) * u128::from(after) / u128::from(before);
            self.interval = u32::try_from(interval).unwrap_or(u32::MAX).max(1);
            self.path = path;
            (self.trim, self.above) = (Gauge::default(), 0);
        }
    }

    /// Trims the marking interval once the flow had time for some marks to act, or for half of its lifetime. A flow that is far
    /// above its target is not given as long: where one packet of millions is to be marked, its rate shows sooner than its marks
    /// do that this is too few. A flow that is well above its target at [`DEAF`] trims in a row, each after a mark, ignores marks.
    pub(super) fn trim(&mut self, window: Span, lifetime: Span) {
        let part = |of: u64| Span::ns(lifetime.as_u64() / of);
        let marks = self.target.wire_time(self.path.mss.times(MARKS * u64::from(self.interval)));
        let patience = marks.min(part(2));
        let over = self.trim.over();
        if over < window.max(patience.min(part(16))) {
            return;
        }
        let Some(rate) = self.trim.rate() else { return };
        let above =
            |percent: u64| u128::from(rate.bits) * 100 > u128::from(self.target.get()) * u128::from(percent);
        // Congestion control goes a third above its mean by itself between two marks.
        if over < window.max(patience) && !above(150) {
            return;
        }
        let marked = self.trim.packets() >= u64::from(self.interval);
        self.trim = Gauge::default();
        self.interval = trimmed(self.interval, self.target, rate.bits).min(self.most_interval());
        self.above = if above(125) { self.above.saturating_add(u32::from(marked)) } else { 0 };
        self.ignores_marks |= self.above >= DEAF;
    }

    /// Whether the flow's refresh is to be ordered: something has changed by a sixteenth, or a quarter of its lifetime is over.
    pub(super) fn refresh(&mut self, lifetime: Span, now: Nanos) -> bool {
        let changed = |old: u64, new: u64| old.abs_diff(new) > old / 16;
        let due = now.since(self.ordered).times(4) >= lifetime
            || changed(self.pressed.target.get(), self.target.get())
            || changed(self.pressed.interval.into(), self.interval.into())
            || self.ignores_marks != self.pressed.ignores_marks;
        if due {
            self.ordered = now;
            let Self { target, interval, path, ignores_marks, .. } = *self;
            let until = now + lifetime;
            self.pressed = Pressed { target, interval, path, ignores_marks, until, ..self.pressed };
        }
        due
    }
}

/// Marks that act before an interval is trimmed.
const MARKS: u64 = 4;
/// Trims in a row after which a flow ignores marks: twelve marks halve a willing flow's window more often than it needs to go
/// from any rate of a network card to any target.
const DEAF: u32 = 3;
