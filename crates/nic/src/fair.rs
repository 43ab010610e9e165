//! Flows of a class with `flows: fq`: turns, with flows that have just begun in front.
//!
//! Why: a flow that sends little, such as a ping or a connection's first packets, does not wait behind those that send much.
//! From: DRR++ (MacGregor and Shi, 2000) with RFC 8290's two lists.
//! Not here: how long a turn is and what is left of it (`host::fair`), marks and drops (`plimsoll_queues::codel`).
//! Invariants: a flow begins at most one full turn in a round of the others, and waits for two rounds at most. RFC 8290 keeps a
//! flow that has become empty in its list of old flows to ensure both; here it may send at once what the rest of its turn pays
//! for, and gets no further turn before the others have had theirs. So it does not wait for a round because it sent a packet in
//! the last one. An old flow that has used up its turn and is empty waits for a turn of another, also where nobody else has packets:
//! a ping that comes a little later goes before its next packet. And an old flow that is overdue goes before new ones: these may be
//! many, each empty after a packet and back at once, as TCP's own small queues make them.

use plimsoll_policy::{Codel, NodeId};
use plimsoll_queues::codel::{CodelTimes, Verdict};
use plimsoll_units::Nanos;

use crate::circle::Circle;
use crate::host::{Host, Pull, Turn};
use crate::ids::RecordId;
use crate::stats::Transmit;

/// The flow queues of a bundle that hold packets, by the order of their turns.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    /// Flows that begin a full turn, or can send their next packet with what is left of their last one.
    new: Circle,
    old: Circle,
    /// The first old flow has waited for two rounds.
    overdue: bool,
    /// Turns that are over.
    turn: u64,
    /// Bytes of a turn.
    quantum: i32,
    times: CodelTimes,
    pub(crate) signals: Signals,
}

/// Frames that CoDel marked and dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signals {
    pub(crate) marked: u64,
    pub(crate) dropped: u64,
}

impl Fair {
    pub(crate) fn new(codel: Codel, quantum: i32) -> Self {
        let times = CodelTimes { target: codel.target, interval: codel.interval };
        Self {
            new: Circle::new(),
            old: Circle::new(),
            overdue: false,
            turn: 0,
            quantum,
            times,
            signals: Signals::default(),
        }
    }

    /// Makes room for `members`, all of which may be in either list.
    pub(crate) fn reserve(&mut self, members: usize) {
        self.new.reserve(members);
        self.old.reserve(members);
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.new.len() + self.old.len()
    }

    /// The flow queue whose turn comes after `turns` more, if no other flow begins.
    #[inline]
    pub(crate) fn get(&self, turns: u32) -> Option<RecordId> {
        let turns = if self.overdue {
            let Some(turns) = turns.checked_sub(1) else { return self.old.get(0) };
            turns
        } else {
            turns
        };
        self.new.get(turns).or_else(|| self.old.get(turns - self.new.len() + u32::from(self.overdue)))
    }

    /// A flow queue that was empty has packets.
    #[inline]
    pub(crate) fn insert(&mut self, id: RecordId, host: &mut Host) {
        let round = self.turn + u64::from(self.len());
        if host.comes_first(id, self.turn, round) {
            self.new.push_back(id);
        } else {
            self.wait(id, host);
        }
        self.look(host);
    }

    /// A flow queue waits for its next full turn.
    #[inline]
    fn wait(&mut self, id: RecordId, host: &mut Host) {
        self.old.push_back(id);
        host.waits_until(id, self.turn + 2 * u64::from(self.len()));
    }

    /// Looks at how long the first old flow queue has waited.
    #[inline]
    fn look(&mut self, host: &Host) {
        self.overdue = self.new.len() > 0 && self.old.get(0).is_some_and(|id| host.is_overdue(id, self.turn));
    }

    /// Hands out the next pull of the front flow queue, with a mark if CoDel says so, unless CoDel decides to drop it.
    #[inline]
    pub(crate) fn serve(
        &mut self,
        host: &mut Host,
        class: NodeId,
        turn: Turn,
        now: Nanos,
        out: &mut Vec<Transmit>,
    ) -> Pull {
        let id = self.get(0).expect("a bundle in a tree holds packets");
        let verdict = host.judge(id, &self.times, now);
        if verdict == Verdict::Drop {
            return Pull::DROPPED;
        }
        let pull = host.pull(id, class, turn, now, out);
        if verdict == Verdict::Mark {
            self.mark(out);
        }
        self.settle(id, pull, host);
        pull.of_bundle(self.len() > 0)
    }

    /// The front flow queue sent a pull.
    #[inline]
    fn settle(&mut self, id: RecordId, pull: Pull, host: &mut Host) {
        let over = host.charge_turn(id, pull.charge, self.quantum);
        let leaves = !pull.more();
        let is_new = self.new.len() > 0 && !self.overdue;
        let list = if is_new { &mut self.new } else { &mut self.old };
        list.serve(id, false, over || leaves);
        if over && !leaves {
            self.wait(id, host);
        } else if leaves && !is_new {
            // This turn counts as one.
            host.rest(id, self.turn + u64::from(self.len().max(2 * u32::from(over))));
        }
        self.turn += u64::from(over || leaves);
        self.look(host);
    }

    /// Marks what has just left.
    #[cold]
    fn mark(&mut self, out: &mut [Transmit]) {
        if let Some(transmit) = out.last_mut() {
            self.signals.marked += u64::from(transmit.frames);
            transmit.verdict = Verdict::Mark;
        }
    }
}
