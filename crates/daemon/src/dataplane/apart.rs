//! Tenants whose copies stall are served by a thread of their own, until they behave.
//!
//! Why: a thread that copies into a tenant's memory waits there for as long as the tenant likes: while the tenant punches a
//! hole into it, every thread that touches a page of that hole waits. That time must count for the tenant alone.
//! From: each batch is timed at its ends. A slow batch of one tenant moves that tenant; a slow batch of several moves
//! them all, as their threads then show which one stalls.
//! Not here: the thread and its queues (`ports`), the kernel's figures of a stall (`ports`).
//! Invariant: at most two looks at the clock for a batch; a tenant comes back only after a span without a stall, which
//! grows with each time that it stalls again, and which a client that hangs up and connects anew does not cut short.

use std::os::fd::RawFd;

use plimsoll_ports::{Apart, Behaviour, PairCounters, Port, STALL, Stalls};
use plimsoll_units::{Nanos, Span};

use super::drops::Event;
use super::lane::{Lane, sum};
use super::{Dataplane, Part};

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

/// How long copies take, and which lanes they concern.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    stalls: Stalls,
    /// The number of the present part of a turn: a lane that is touched in it notes this number.
    pub(crate) part: u64,
    /// Number of lanes that are served apart.
    away: usize,
    /// When they are looked at next.
    next: Nanos,
    /// When this turn began.
    turned: Nanos,
    moves: Vec<(usize, Move)>,
}

/// A lane's move to another thread, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The descriptor that is no longer waited for.
    pub forget: Option<RawFd>,
    /// Where to.
    pub to: Whither,
}

/// Where a lane is served from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whither {
    /// By a thread of its own: its copies took this long.
    Apart(Span),
    /// By a thread of its own: it was one of several lanes in a batch that took too long.
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
                "its client or front end has connected anew, and its memory was too slow before: it is still served by a \
                 thread of its own",
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
    /// Whether it is served apart; this stays while its port is away.
    away: bool,
    /// Its thread's stalls at the last look.
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
    /// Notes that it goes apart, for its own stall or one of its batch.
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

    /// Notes a new port. Answers whether it must be served apart, as the last one would still be.
    fn rejoins(&mut self, now: Nanos) -> bool {
        if !self.away {
            return false;
        }
        self.seen = Behaviour::default();
        let due = self.bad + self.quiet;
        if now < due {
            return true;
        }
        // The last port would have come back by now.
        self.returns(due);
        false
    }

    /// Notes that the engine's thread serves it again.
    fn returns(&mut self, now: Nanos) {
        self.away = false;
        self.returned = Some(now);
    }

    /// Reads its thread's stalls since the last look, and whether it has behaved for long enough.
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

impl Dataplane {
    /// Notes that the thread has slept or obeyed a command: its waits so far count for no tenant.
    pub fn rested(&mut self) {
        self.copying.stalls.rested();
    }

    /// Notes that a lane's memory is touched in this part of the turn.
    #[inline]
    pub(super) fn touch(&mut self, index: usize) {
        let part = self.copying.part;
        if let Some(lane) = &mut self.tenants.lanes[index] {
            lane.conduct.touched = part;
        }
    }

    /// Ends a part of a turn in which lanes' memory may have been touched.
    #[inline]
    pub(super) fn part_took(&mut self, took: Span, charged: Charged, now: Nanos) {
        if took >= STALL && self.copying.stalls.is_stall(took) {
            self.blame(took, charged, now);
        }
        self.copying.part += 1;
    }

    /// Handles a stall: the memory of a lane that was touched has caused it.
    #[cold]
    fn blame(&mut self, took: Span, charged: Charged, now: Nanos) {
        let part = self.copying.part;
        let is_suspect = |lane: &Lane| {
            lane.conduct.touched == part && (lane.copies() || lane.conduct.parted == Some(part))
        };
        let lanes = (0..).zip(&self.tenants.lanes);
        let suspects: Vec<usize> = lanes
            .filter_map(|(index, lane)| lane.as_ref().filter(|lane| is_suspect(lane)).map(|_| index))
            .collect();
        if let [only] = suspects[..] {
            if let Some(lane) = &mut self.tenants.lanes[only] {
                lane.tally.event(Event::CopyStalled);
            }
            if charged == Charged::No {
                self.inward.charge_lane(only, took, now);
            }
            return self.move_apart(only, Whither::Apart(took), now);
        }
        suspects.into_iter().for_each(|index| self.move_apart(index, Whither::Suspected(took), now));
    }

    /// Moves a lane to a thread of its own, which alone touches its memory from now on.
    fn move_apart(&mut self, index: usize, why: Whither, now: Nanos) {
        let part = self.copying.part;
        // What has left is given back first, so that it is not offered again.
        self.free_completed(now);
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        // Its client has hung up meanwhile: the next one is served apart.
        let parted = lane.port.is_none() && lane.conduct.parted == Some(part);
        let forget = lane.port.as_ref().and_then(|port| port.fds().receive);
        let goes = parted || self.put_apart(index, Move { forget, to: why });
        if goes && let Some(lane) = &mut self.tenants.lanes[index] {
            lane.conduct.goes(matches!(why, Whither::Apart(_)), now);
        }
    }

    /// Handles a lane's new port. It goes apart at once if the last port would still be served apart.
    pub(super) fn rejoin(&mut self, index: usize, now: Nanos) {
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        if lane.conduct.rejoins(now) {
            // The new port's descriptor is not waited for yet.
            self.put_apart(index, Move { forget: None, to: Whither::Again });
        }
    }

    /// Hands a lane's port to a thread of its own. Answers whether it is there.
    fn put_apart(&mut self, index: usize, moved: Move) -> bool {
        let window = self.scheduler.window;
        let Some(lane) = &mut self.tenants.lanes[index] else { return false };
        let mut port = match lane.port.take() {
            Some(port @ (Port::Vnic(_) | Port::VhostUser(_))) => port,
            other => {
                lane.port = other;
                return false;
            }
        };
        // The thread reads every message of the client; the engine bounds how many of them it handles.
        port.hold_requests(false);
        // That thread takes again what waits in the guest's memory, and copies it.
        if let Some(session) = port.offer_again() {
            lane.offered_again = Some(session);
            lane.to_come_again = lane.pool.in_use();
        }
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
            // The thread cannot be started: the lane stays with the engine's thread.
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
        let lane = self.tenants.lanes.get(index).and_then(Option::as_ref);
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
        for index in 0..self.tenants.lanes.len() {
            let Some(lane) = &mut self.tenants.lanes[index] else { continue };
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

    /// Completes a lane's return: its thread has no work left.
    fn take_back(&mut self, index: usize, now: Nanos) {
        let Some(lane) = &mut self.tenants.lanes[index] else { return };
        let Some(Port::Apart(apart)) = lane.port.take() else { return };
        let forget = apart.fds().receive;
        lane.note_behaviour(apart.behaviour(), now);
        let Some((port, lost)) = apart.into_port() else { return };
        if let Port::Vnic(vnic) = &port {
            // A flow queue that was opened when the client had no room left for it leads nowhere.
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

    /// Notes that a lane has lost its port in the middle of a turn.
    pub(super) fn note_parted(&mut self, index: usize, port: &Port) {
        let Some(Some(lane)) = self.tenants.lanes.get_mut(index) else { return };
        if matches!(port, Port::Vnic(_) | Port::VhostUser(_)) {
            lane.conduct.parted = Some(self.copying.part);
        }
        lane.parted_from(port, self.copying.turned);
    }

    /// Whether lanes have moved since [`Dataplane::take_moves`].
    #[must_use]
    pub fn has_moves(&self) -> bool {
        !self.copying.moves.is_empty()
    }

    /// Which lanes have moved, with their tenants' names.
    pub fn take_moves(&mut self) -> Vec<(String, Move)> {
        let lanes = &self.tenants.lanes;
        let name = |lane: usize| lanes.get(lane)?.as_ref().map(|lane| lane.name.clone());
        self.copying.moves.drain(..).filter_map(|(lane, moved)| Some((name(lane)?, moved))).collect()
    }

    /// Reads every lane's rings, which lie in its guest's memory, and times each lane's.
    pub(super) fn all_pairs(&mut self, clock: &impl Fn(Part) -> Nanos) -> Vec<Vec<PairCounters>> {
        let mut pairs = Vec::with_capacity(self.tenants.lanes.len());
        for index in 0..self.tenants.lanes.len() {
            let Some(port) = self.tenants.lanes[index].as_ref().and_then(|lane| lane.port.as_ref()) else {
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
    /// Counts its thread's stalls. Answers whether it has behaved for long enough.
    fn note_behaviour(&mut self, found: Behaviour, now: Nanos) -> bool {
        self.recent.unread += found.unread - self.conduct.seen.unread;
        let (stalls, behaved) = self.conduct.look(found, now);
        self.tally.event_many(Event::CopyStalled, stalls);
        behaved
    }

    /// Notes that its port was taken out: stalls since the last look count for the next port.
    pub(super) fn parted_from(&mut self, port: &Port, now: Nanos) {
        if let Port::Apart(apart) = port {
            self.note_behaviour(apart.behaviour(), now);
        }
    }

    /// Has each packet of a client that is served apart classified, as its rules no longer hold.
    pub(super) fn forget_targets(&mut self, generation: u32) {
        if let Some(Port::Apart(apart)) = &mut self.port {
            apart.forget_targets(generation);
            self.opened.iter_mut().for_each(|opened| opened.live = false);
            self.closing = true;
        }
    }

    /// Counts frames that were lost on the way to its thread.
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
