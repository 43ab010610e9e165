//! What an operator is told of backpressure, in words.
//!
//! Why: a load near its threshold makes a hundred overloads a second; a log that has each of them hides all else.
//! Not here: when an overload begins, and which flows are slowed down (`press`).
//! Invariant: of the overloads in a second at most one is told by itself, and the others as their number.

use plimsoll_control::backpressure::{Means, Pressed};
use plimsoll_queues::Tally;
use plimsoll_units::{Nanos, Span};

use super::super::heavy::Counted;
use crate::heavy::headers;

/// What an operator is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum PressNews {
    /// An overload begins or ends.
    Overload(bool),
    /// So many overloads in this time were not told by themselves.
    Overloads(u64, Span),
    /// The load cannot be measured, so the overload counts as over.
    Unmeasured,
    /// A reload ends the watch.
    Unwatched,
    /// This flow sends most in an overload: the part of the packets of all heavy hitters, in thousandths.
    Top(Counted, u32),
    /// A flow is slowed down from now on.
    Start(Counted, Pressed<()>, Means),
    /// A flow is slowed down by another method from now on.
    Changed(Counted, Pressed<()>, Means),
    /// A flow is let go, after it was slowed down for this long.
    End(Counted, Span),
}

impl PressNews {
    /// The flow that it is about.
    pub(in super::super) fn flow(&self) -> Option<&Counted> {
        match self {
            Self::Start(flow, ..) | Self::Changed(flow, ..) | Self::Top(flow, _) | Self::End(flow, _) => {
                Some(flow)
            }
            Self::Overload(_) | Self::Overloads(..) | Self::Unmeasured | Self::Unwatched => None,
        }
    }

    /// A line for the log. `tenant` is the name of the flow's tenant.
    pub(in super::super) fn line(&self, watched: &str, tenant: &str) -> String {
        let flow = self.flow().map_or_else(String::new, |flow| {
            let way = if flow.inward { "to" } else { "of" };
            format!("{} {way} tenant {tenant}", headers(&flow.flow))
        });
        match self {
            Self::Overload(true) => format!("{watched} is overloaded"),
            Self::Overload(false) => format!("{watched} is no longer overloaded"),
            Self::Overloads(times, over) => {
                let (times, seconds) = (several(*times), over.as_secs_f64());
                format!("{watched} was overloaded {times} more in the last {seconds:.1}s")
            }
            Self::Unmeasured => {
                format!("the load of {watched} cannot be measured, so its overload counts as over")
            }
            Self::Unwatched => format!("{watched} is no longer watched as it was: the policy has changed"),
            Self::Top(_, part) => {
                format!("{flow} has {:.1} % of heavy hitters' packets", f64::from(*part) / 10.0)
            }
            Self::Start(_, pressed, means) => {
                format!("{flow} is slowed down to {}: {}", pressed.target, method(*means, pressed.interval))
            }
            Self::Changed(_, pressed, means) => {
                let how = method(*means, pressed.interval);
                format!("{flow} is slowed down to {} by another method: {how}", pressed.target)
            }
            Self::End(_, lasted) => {
                format!("{flow} is let go; it was slowed down for {:.1}s", lasted.as_secs_f64())
            }
        }
    }
}

fn several(times: u64) -> String {
    if times == 1 { "once".to_owned() } else { format!("{times} times") }
}

/// How a flow is slowed down: what happens to its packets. One of `interval` is marked, where they are.
pub(crate) fn method(means: Means, interval: u32) -> String {
    let marked = if interval == 1 {
        "each packet is marked".to_owned()
    } else {
        format!("one of {interval} packets is marked")
    };
    match means {
        Means::Marked => marked,
        Means::MeteredHere => "what is beyond waits here".to_owned(),
        Means::Dropped => "what is beyond is dropped".to_owned(),
        Means::Told(_) => "the host that it comes from is told".to_owned(),
        Means::Windowed => "the receive window in its acknowledgements is made smaller".to_owned(),
        Means::MarkedAndMetered => format!("{marked}, and what is beyond waits here"),
        Means::MarkedAndTold(_) => format!("{marked}, and the host that it comes from is told"),
    }
}

/// Chooses the overloads that are told by themselves.
#[derive(Debug, Default)]
pub(super) struct OverloadNews {
    /// When an overload, or a number of them, was last told.
    told: Option<Nanos>,
    /// Whether the present overload was told: its end is as well.
    open: bool,
    /// Overloads since `told` that were not.
    untold: u64,
}

impl OverloadNews {
    /// Handles a poll before which the overload was on or not, and after which it is. `say` takes what is told. Answers whether
    /// that is the beginning of an overload.
    pub(super) fn note(
        &mut self,
        [before, on]: [bool; 2],
        now: Nanos,
        mut say: impl FnMut(PressNews),
    ) -> bool {
        if !before && on {
            self.untold += 1;
        } else if before && !on && core::mem::take(&mut self.open) {
            say(PressNews::Overload(false));
        }
        if self.untold == 0 || self.told.is_some_and(|told| now.since(told) < EACH) {
            return false;
        }
        let begins = on && !self.open;
        self.untold -= u64::from(begins);
        self.tell_number(now, &mut say);
        self.told = Some(now);
        if begins {
            self.open = true;
            say(PressNews::Overload(true));
        }
        begins
    }

    /// Tells what is untold, as there will be no more polls for a while. Answers whether the end of an overload is to be told.
    pub(super) fn end(&mut self, now: Nanos, mut say: impl FnMut(PressNews)) -> bool {
        self.tell_number(now, &mut say);
        core::mem::take(&mut self.open)
    }

    fn tell_number(&mut self, now: Nanos, mut say: impl FnMut(PressNews)) {
        let untold = core::mem::take(&mut self.untold);
        if untold > 0 {
            say(PressNews::Overloads(untold, now.since(self.told.unwrap_or(now))));
        }
    }
}

/// What is known of a flow that is slowed down: the method, as it was last told, and its count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) means: Means,
    /// When a change was last told.
    pub(super) changed: Option<Nanos>,
    /// What the flow had sent when this was last looked at.
    pub(super) sent: Tally,
}

impl Told {
    /// Whether a change to this method is to be told now; if so it counts as told.
    pub(super) fn is_to_be_told(&mut self, means: Means, now: Nanos) -> bool {
        let due = means != self.means && self.changed.is_none_or(|changed| now.since(changed) >= EACH);
        if due {
            *self = Self { means, changed: Some(now), ..*self };
        }
        due
    }
}

/// How often an overload is told by itself, and a change of a flow's method.
const EACH: Span = Span::secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Nanos {
        Nanos::ZERO + Span::millis(ms)
    }

    /// What is told of polls each millisecond in which `on` says whether there is an overload, with the time.
    fn told(polls: core::ops::Range<u64>, on: impl Fn(u64) -> bool) -> Vec<(u64, PressNews)> {
        let (mut news, mut before, mut told) = (OverloadNews::default(), false, Vec::new());
        for ms in polls {
            news.note([before, on(ms)], at(ms), |said| told.push((ms, said)));
            before = on(ms);
        }
        told
    }

    #[test]
    fn a_change_of_method_is_told_once_a_second() {
        let mut told = Told { means: Means::Marked, changed: None, sent: Tally::default() };
        let mut is_told = |means, ms| told.is_to_be_told(means, at(ms));
        assert!(
            !is_told(Means::Marked, 0) && is_told(Means::MeteredHere, 1) && !is_told(Means::MeteredHere, 2)
        );
        assert!(!is_told(Means::Marked, 1_000) && is_told(Means::Marked, 1_001));
    }

    #[test]
    fn words_say_what_happens_to_packets() {
        assert_eq!(method(Means::Dropped, 7), "what is beyond is dropped");
        assert_eq!(method(Means::Marked, 7), "one of 7 packets is marked");
        assert_eq!(
            method(Means::MarkedAndMetered, 1),
            "each packet is marked, and what is beyond waits here"
        );
    }

    #[test]
    fn an_overload_is_told_when_it_begins_and_ends() {
        use PressNews::Overload;
        let on = |ms| (10..20).contains(&ms) || (2_000..9_000).contains(&ms);
        let all = [(10, true), (20, false), (2_000, true), (9_000, false)];
        assert_eq!(told(0..10_000, on), all.map(|(ms, on)| (ms, Overload(on))));
    }

    /// 1,000 overloads in 10 s are some 30 lines, in which each is told or counted.
    #[test]
    fn of_many_overloads_their_number_is_told() {
        let told = told(0..10_001, |ms| ms % 10 < 5);
        assert!(told.len() <= 33, "{} lines: {told:?}", told.len());
        let number: u64 = told
            .iter()
            .map(|(_, news)| match news {
                PressNews::Overload(begins) => u64::from(*begins),
                PressNews::Overloads(times, _) => *times,
                _ => 0,
            })
            .sum();
        assert_eq!(number, 1_001);
        let words = PressNews::Overloads(99, Span::secs(1)).line("engine", "");
        assert_eq!(words, "engine was overloaded 99 times more in the last 1.0s");
    }

    /// The second overload begins soon after the first, and lasts: it is told a second after that one.
    #[test]
    fn an_overload_that_lasts_is_told_late_rather_than_never() {
        use PressNews::Overload;
        let told = told(0..9_000, |ms| ms < 5 || (100..5_000).contains(&ms));
        let all = [(0, true), (5, false), (1_000, true), (5_000, false)];
        assert_eq!(told, all.map(|(ms, on)| (ms, Overload(on))));
    }
}
