//! The load of a host's CPU for received packets, over time.
//!
//! Why: backpressure is about a core that is full, so a run must show how full it was and when.
//! From: `/v1/stats`, `tenants.NAME.ingress.cpu`, as often as `measure.window` says.
//! Not here: CPU time of processes (`world`), which includes what goes out.
//! Invariant: time that a daemon does not answer for is in no window.

use crate::clock::Clock;
use crate::world;
use plimsoll_units::Span;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Shortest time between two questions: each costs the engine some time.
const LEAST: Span = Span::millis(20);

/// Asks the daemon at `socket` once a window, or once in several short ones, until `over`; returns the time that its CPU worked
/// in each.
pub(crate) fn watch(socket: &Path, window: Span, clock: &Clock, over: &AtomicBool) -> Vec<Span> {
    let windows = windows_at_once(window);
    let every = window.times(windows).max(LEAST).as_u64();
    let (mut worked, mut before, mut next) = (Vec::new(), None, 0);
    while !over.load(Ordering::Relaxed) {
        let rest = clock.until(next);
        if !rest.is_zero() {
            std::thread::sleep(rest.min(Duration::from_millis(20)));
            continue;
        }
        let now = used(socket);
        // A daemon that has begun anew counts from zero.
        if let Some((before, now)) = before.zip(now).filter(|(before, now)| before <= now) {
            let first = (next / every).saturating_sub(1) * windows;
            fill(&mut worked, first, windows, now - before);
        }
        (before, next) = (now, next + every);
    }
    worked
}

/// How many windows one question covers: as few as take [`LEAST`] or longer, so that each question is about whole windows.
fn windows_at_once(window: Span) -> u64 {
    LEAST.as_u64().div_ceil(window.as_u64().max(1)).max(1)
}

/// Divides `time` evenly over `count` windows from `first` on.
fn fill(worked: &mut Vec<Span>, first: u64, count: u64, time: u64) {
    let (first, count) = (usize::try_from(first).unwrap_or(usize::MAX), count.max(1));
    let windows = usize::try_from(count).unwrap_or(usize::MAX);
    worked.resize(first.max(worked.len()), Span::ZERO);
    worked.extend(std::iter::repeat_n(Span::ns(time / count), windows));
}

/// Nanoseconds that received packets have taken so far; nothing where the daemon does not answer.
fn used(socket: &Path) -> Option<u64> {
    let stats: Value = serde_json::from_str(&world::get(socket, "/v1/stats").ok()?).ok()?;
    let tenants = stats["tenants"].as_object()?.values();
    let seconds: f64 = tenants.filter_map(|tenant| tenant["ingress"]["cpu"].as_f64()).sum();
    Some((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_about_whole_windows() {
        for (ms, windows) in [(1, 20), (3, 7), (10, 2), (11, 2), (19, 2), (20, 1), (100, 1)] {
            assert_eq!(windows_at_once(Span::millis(ms)), windows, "{ms} ms");
        }
    }

    #[test]
    fn time_is_in_the_windows_that_it_was_measured_for() {
        let mut worked = Vec::new();
        fill(&mut worked, 0, 1, 7);
        fill(&mut worked, 2, 2, 10);
        assert_eq!(worked, [7, 0, 5, 5].map(Span::ns));
    }
}
