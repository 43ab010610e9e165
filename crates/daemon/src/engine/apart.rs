//! Tenants whose copies stall are served by a thread of their own, until they behave.
//!
//! Why: who copies into a tenant's memory waits there for as long as the tenant likes: while it punches a hole into it, all
//! who touch a page of that hole wait. That time is the tenant's, and no other's.
//! From: each batch is timed at its ends; what one tenant's took is its own, and what concerned several moves them all, as
//! each thread then tells whose it was.
//! Not here: the thread and the way to it and back (`ports`), what the kernel knows of a stall (`ports`).
//! Invariant: at most two looks at the clock for a batch; a tenant comes back only after a span without a stall, which
//! grows with each time that it stalls again, and which a client that hangs up and connects anew does not cut short.

use std::os::fd::RawFd;

use plimsoll_ports::{Apart, Behaviour, PairCounters, Port, STALL, Stalls};
use plimsoll_units::{Nanos, Span};

use super::drops::Event;
use super::lane::{Lane, sum};
use super::{Engine, Part};

/// How long a tenant has to behave until it is served by the engine's thread again, the first time; each further time within
/// [`FORGIVEN`] it is four times as long, up to [`LONGEST`]: less than one stall in a quarter of an hour is left of what a
/// tenant can do that stalls again and again.
const QUIET: Span = Span::secs(4);
const LONGEST: Span = Span::secs(1_024);
const FORGIVEN: Span = Span::secs(3_600);

/// How often the threads are looked at.
const LOOK: Span = Span::millis(50);

/// Frames of the longest train, each of which completes by itself.
const TRAIN: usize = 18;

/// What the engine knows of how long copies take.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    stalls: Stalls,
    /// Parts of turns: a lane that was touched in this one bears its number.
    pub(crate) part: u64,
    /// Lanes that are served apart.
    away: usize,
    /// When they are looked at next.
    next: Nanos,
    /// When this turn began.
    turned: Nanos,
    moves: Vec<(usize, Move)>,
}

/// That a lane is now served elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// What is not waited for any more.
    pub forget: Option<RawFd>,
    /// Where to.
    pub to: Whither,
}

/// Where a lane is served from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whither {
    /// By a thread of its own: its copies took so long.
    Apart(Span),
    /// The same, as it was one of several, one of which did.
    Suspected(Span),
    /// By a thread of its own from the start: its port is new, and the last one stalled too recently.
    Again,
    /// By the engine's thread again.
    Back,
}

impl core::fmt::Display for Whither {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Apart(took) => write!(
                f,
                "copying into or out of its memory took {took}: it is served by a thread of its own until that is over; \
                 find out what its front end or client does to that memory (punched holes, swapping, missing huge pages)"
            ),
            Self::Suspected(took) => write!(
                f,
                "copying for several tenants, it among them, took {took}: each is served by a thread of its own until it is \
                 clear whose memory it was"
            ),
            Self::Again => f.write_str(
                "its port is there again, and copying for the last client or front end took too long a short time ago: it is \
                 served by a thread of its own until that is over",
            ),
            Self::Back => f.write_str("its memory answers at once again: it is served as before"),
        }
    }
}

/// How a lane has behaved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conduct {
    /// The part of a turn in which its memory was touched last.
    pub(crate) touched: u64,
    /// The part of a turn in which its port was lost, if that part had touched its memory.
    parted: Option<u64>,
    /// It went apart and has not come back, whether its port is there or not.
    away: bool,
    /// How its thread fared at the last look.
    seen: Behaviour,
    /// When it stalled last, or began to be suspected.
    bad: Nanos,
    /// When it came back.
    returned: Option<Nanos>,
    /// How long it has to behave.
    quiet: Span,
}

impl Default for Conduct {
    fn default() -> Self {
        let seen = Behaviour::default();
        Self {
            touched: u64::MAX,
            parted: None,
            away: false,
            seen,
            bad: Nanos::ZERO,
            returned: None,
            quiet: QUIET,
        }
    }
}

impl Conduct {
    /// It goes apart, for what it did or was near.
    fn goes(&mut self, certain: bool, now: Nanos) {
        let again = self.away || self.returned.is_some_and(|returned| now.since(returned) < FORGIVEN);
        if !again {
            self.quiet = QUIET;
        } else if certain {
            self.quiet = Span::ns((4 * self.quiet.as_u64()).min(LONGEST.as_u64()));
        }
        self.away = true;
        self.bad = now;
        self.seen = Behaviour::default();
    }

    /// A new port is there. Answers whether it must be served apart still, as the last one would have to be.
    fn rejoins(&mut self, now: Nanos) -> bool {
        if !self.away {
            return false;
        }
        self.seen = Behaviour::default();
        let due = self.bad + self.quiet;
        if now < due {
            return true;
        }
        // The last port would have come back then.
        self.returns(due);
        false
    }

    /// It is served by the engine's thread again.
    fn returns(&mut self, now: Nanos) {
        self.away = false;
        self.returned = Some(now);
    }

    /// What its thread tells now: stalls since the last look, and whether it has behaved for long enough.
    fn look(&mut self, found: Behaviour, now: Nanos) -> (u64, bool) {
        let stalls = found.stalls - self.seen.stalls;
        let stuck = found.batches % 2 == 1 && found.batches == self.seen.batches;
        if stalls > 0 || stuck {
            self.bad = now;
        }
        self.seen = found;
        (stalls, now.since(self.bad) >= self.quiet)
    }
}

/// Whether what a part took is charged already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charged {
    Yes,
    No,
}

impl Engine {
    /// The thread has slept, or obeyed a command: what it has waited for so far is no tenant's.
    pub fn rested(&mut self) {
        self.copying.stalls.rested();
    }

    /// A lane's memory is touched in this part of the turn.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) {
        let part = self.copying.part;
        if let Some(lane) = &mut self.lanes[index] {
            lane.conduct.touched = part;
        }
    }

    /// A part of a turn has ended, in which some lanes' memory may have been touched.
    #[inline]
    pub(super) fn part_took(&mut self, took: Span, charged: Charged, now: Nanos) {
        if took >= STALL && self.copying.stalls.is_stall(took) {
            self.blame(took, charged, now);
        }
        self.copying.part += 1;
    }

    /// The thread has waited for memory: one that was touched has done that.
    #[cold]
    fn blame(&mut self, took: Span, charged: Charged, now: Nanos) {
        let part = self.copying.part;
        let is_suspect = |lane: &Lane| {
            lane.conduct.touched == part && (lane.copies() || lane.conduct.parted == Some(part))
        };
        let lanes = (0..).zip(&self.lanes);
        let suspects: Vec<usize> = lanes
            .filter_map(|(index, lane)| lane.as_ref().filter(|lane| is_suspect(lane)).map(|_| index))
            .collect();
        if let [only] = suspects[..] {
            if let Some(lane) = &mut self.lanes[only] {
                lane.tally.event(Event::CopyStalled);
            }
            if charged == Charged::No {
                self.inward.charge_lane(only, took, now);
            }
            return self.move_apart(only, Whither::Apart(took), now);
        }
        suspects.into_iter().for_each(|index| self.move_apart(index, Whither::Suspected(took), now));
    }

    /// From now on this lane's memory is touched by a thread of its own.
    fn move_apart(&mut self, index: usize, why: Whither, now: Nanos) {
        let part = self.copying.part;
        let Some(lane) = &mut self.lanes[index] else { return };
        // Its client has hung up meanwhile: the next one is served apart.
        let parted = lane.port.is_none() && lane.conduct.parted == Some(part);
        let forget = lane.port.as_ref().and_then(|port| port.fds().receive);
        let goes = parted || self.put_apart(index, Move { forget, to: why });
        if goes && let Some(lane) = &mut self.lanes[index] {
            lane.conduct.goes(matches!(why, Whither::Apart(_)), now);
        }
    }

    /// A lane's port is new. It goes apart at once if the last one would still have to be there.
    pub(super) fn rejoin(&mut self, index: usize, now: Nanos) {
        let Some(lane) = &mut self.lanes[index] else { return };
        if lane.conduct.rejoins(now) {
            // Nothing of the new port is waited for yet.
            self.put_apart(index, Move { forget: None, to: Whither::Again });
        }
    }

    /// Hands a lane's port to a thread of its own. Answers whether it is there.
    fn put_apart(&mut self, index: usize, moved: Move) -> bool {
        let window = self.window;
        let Some(lane) = &mut self.lanes[index] else { return false };
        let mut port = match lane.port.take() {
            Some(port @ (Port::Vnic(_) | Port::VhostUser(_))) => port,
            other => {
                lane.port = other;
                return false;
            }
        };
        // The thread reads all that the client sends, and holds nothing; the engine bounds what it passes on.
        port.hold_requests(false);
        let owed = lane.pool.in_use() * TRAIN;
        match Apart::new(port, owed, lane.pool.len(), window) {
            Ok(apart) => {
                lane.port = Some(Port::Apart(Box::new(apart)));
                lane.ready = true;
                lane.tally.event(Event::ServedApart);
                self.copying.away += 1;
                self.copying.moves.push((index, moved));
                true
            }
            // No room for a thread: it stays where it is.
            Err((port, _)) => {
                lane.port = Some(port);
                false
            }
        }
    }

    /// Puts a tenant's port on a thread of its own, as a stall does. Answers whether it is there.
    pub fn serve_apart(&mut self, lane: u32, now: Nanos) -> bool {
        let index = lane as usize;
        self.move_apart(index, Whither::Apart(Span::ZERO), now);
        let lane = self.lanes.get(index).and_then(Option::as_ref);
        lane.is_some_and(|lane| matches!(lane.port, Some(Port::Apart(_))))
    }

    /// Looks at lanes that are served apart, and takes back those that have behaved. Answers when to look again.
    pub(super) fn tend_apart(&mut self, now: Nanos) -> Option<Nanos> {
        self.copying.turned = now;
        if self.copying.away == 0 {
            return None;
        }
        let due = self.copying.next <= now;
        if due {
            self.copying.next = now + LOOK;
        }
        self.copying.away = 0;
        for index in 0..self.lanes.len() {
            let Some(lane) = &mut self.lanes[index] else { continue };
            let Some(Port::Apart(apart)) = &lane.port else { continue };
            self.copying.away += 1;
            if due {
                let found = apart.behaviour();
                if lane.note_behaviour(found, now)
                    && let Some(Port::Apart(apart)) = &mut lane.port
                {
                    apart.want_back();
                }
            }
            if matches!(&lane.port, Some(Port::Apart(apart)) if apart.is_back()) {
                self.take_back(index, now);
            }
        }
        Some(self.copying.next)
    }

    /// All that its thread had left is done: the lane is served as before.
    fn take_back(&mut self, index: usize, now: Nanos) {
        let Some(lane) = &mut self.lanes[index] else { return };
        let Some(Port::Apart(apart)) = lane.port.take() else { return };
        let forget = apart.fds().receive;
        lane.note_behaviour(apart.behaviour(), now);
        let Some((port, lost)) = apart.into_port() else { return };
        if let Port::Vnic(vnic) = &port {
            // One that was opened for a client which had no room left for it by then leads nowhere.
            for opened in &mut lane.opened {
                opened.live &= vnic.queue_of(opened.queue.0).is_some();
            }
            lane.closing = true;
        }
        lane.lost_apart(&lost);
        lane.port = Some(port);
        lane.ready = true;
        lane.wrote = true;
        lane.conduct.returns(now);
        lane.tally.event(Event::ServedBack);
        self.copying.away -= 1;
        self.copying.moves.push((index, Move { forget, to: Whither::Back }));
    }

    /// A lane has lost this port in the middle of a turn.
    pub(super) fn note_parted(&mut self, index: usize, port: &Port) {
        let Some(Some(lane)) = self.lanes.get_mut(index) else { return };
        if matches!(port, Port::Vnic(_) | Port::VhostUser(_)) {
            lane.conduct.parted = Some(self.copying.part);
        }
        lane.parted_from(port, self.copying.turned);
    }

    /// Whether lanes have moved since [`Engine::take_moves`].
    #[must_use]
    pub fn has_moves(&self) -> bool {
        !self.copying.moves.is_empty()
    }

    /// Which lanes have moved, with their tenants' names.
    pub fn take_moves(&mut self) -> Vec<(String, Move)> {
        let lanes = &self.lanes;
        let name = |lane: usize| lanes.get(lane)?.as_ref().map(|lane| lane.name.clone());
        self.copying.moves.drain(..).filter_map(|(lane, moved)| Some((name(lane)?, moved))).collect()
    }

    /// Every lane's rings, which lie in its guest's memory: each lane's are timed.
    pub(super) fn all_pairs(&mut self, clock: &impl Fn(Part) -> Nanos) -> Vec<Vec<PairCounters>> {
        let mut pairs = Vec::with_capacity(self.lanes.len());
        for index in 0..self.lanes.len() {
            let Some(port) = self.lanes[index].as_ref().and_then(|lane| lane.port.as_ref()) else {
                pairs.push(Vec::new());
                continue;
            };
            if !port.is_posted() {
                pairs.push(Vec::new());
                continue;
            }
            self.copying.stalls.rested();
            let begun = clock(Part::Between);
            pairs.push(port.pairs());
            let now = clock(Part::Between);
            self.touch(index);
            self.part_took(now.since(begun), Charged::No, now);
        }
        pairs
    }
}

impl Lane {
    /// Counts what its thread tells. Answers whether it has behaved for long enough.
    fn note_behaviour(&mut self, found: Behaviour, now: Nanos) -> bool {
        self.recent.unread += found.unread - self.conduct.seen.unread;
        let (stalls, behaved) = self.conduct.look(found, now);
        self.tally.event_many(Event::CopyStalled, stalls);
        behaved
    }

    /// Its port was taken out: how it fared since the last look counts for the next one.
    pub(super) fn parted_from(&mut self, port: &Port, now: Nanos) {
        if let Port::Apart(apart) = port {
            self.note_behaviour(apart.behaviour(), now);
        }
    }

    /// Flow queues that its client has do not hold any more, though its port is elsewhere: each of its packets is classified.
    pub(super) fn forget_targets(&mut self, generation: u32) {
        if let Some(Port::Apart(apart)) = &mut self.port {
            apart.forget_targets(generation);
            self.opened.iter_mut().for_each(|opened| opened.live = false);
            self.closing = true;
        }
    }

    /// Counts what was lost on the way to its thread.
    fn lost_apart(&mut self, lost: &plimsoll_ports::Counters) {
        self.past = sum(&self.past, lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Nanos {
        Nanos::ZERO + Span::secs(secs)
    }

    fn told(batches: u64, stalls: u64) -> Behaviour {
        Behaviour { batches, stalls, ..Behaviour::default() }
    }

    #[test]
    fn who_stalls_again_has_to_behave_four_times_as_long() {
        let mut conduct = Conduct::default();
        conduct.goes(true, at(10));
        assert_eq!(conduct.look(told(2, 0), at(13)), (0, false));
        assert_eq!(conduct.look(told(4, 3), at(13)), (3, false));
        assert_eq!(conduct.look(told(6, 3), at(16)), (0, false), "four seconds from the last stall on");
        assert_eq!(conduct.look(told(8, 3), at(17)), (0, true));
        conduct.returns(at(17));
        for (quiet, when) in [(16, 20), (64, 100), (256, 200), (1_024, 600), (1_024, 3_000)] {
            conduct.goes(true, at(when));
            assert_eq!(conduct.quiet, Span::secs(quiet));
            conduct.returns(at(when));
        }
        conduct.goes(true, at(7_000));
        assert_eq!(conduct.quiet, QUIET, "an hour of good conduct is enough");
    }

    #[test]
    fn who_hangs_up_and_connects_anew_goes_apart_as_long_as_it_would_have_been() {
        let mut conduct = Conduct::default();
        assert!(!conduct.rejoins(at(1)), "it has not stalled");
        conduct.goes(true, at(10));
        assert_eq!(conduct.look(told(2, 1), at(12)), (1, false));
        assert!(conduct.rejoins(at(15)), "four seconds from the last stall on");
        assert_eq!(conduct.look(told(2, 0), at(15)), (0, false), "its new thread begins anew");
        assert!(!conduct.rejoins(at(16)));
        // It has been back since then, so this is the second time.
        conduct.goes(true, at(17));
        assert!(conduct.rejoins(at(32)));
        assert!(!conduct.rejoins(at(33)));
        assert!(!conduct.rejoins(at(34)), "it is on the engine's thread already");
        conduct.goes(true, at(33 + 3_600));
        assert_eq!(conduct.quiet, QUIET, "an hour of good conduct counts from when it could have been back");
    }

    #[test]
    fn who_is_only_suspected_is_not_punished() {
        let mut conduct = Conduct { returned: Some(at(1)), ..Conduct::default() };
        conduct.goes(false, at(2));
        assert_eq!(conduct.quiet, QUIET);
    }

    #[test]
    fn a_thread_that_is_stuck_does_not_behave() {
        let mut conduct = Conduct::default();
        conduct.goes(true, at(0));
        assert_eq!(conduct.look(told(7, 1), at(1)), (1, false));
        for second in 2..20 {
            assert_eq!(conduct.look(told(7, 1), at(second)), (0, false), "in the middle of the same batch");
        }
        assert_eq!(conduct.look(told(8, 2), at(20)), (1, false));
        assert_eq!(conduct.look(told(10, 2), at(24)), (0, true));
    }
}
