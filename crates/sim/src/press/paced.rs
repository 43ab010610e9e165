//! Packets that wait for the rate to which backpressure holds their flow.
//!
//! Why: a meter that only drops loses what one that lets packets wait keeps.
//! From: the daemon's `engine/paced`.
//! Not here: which flows, and their rates (`press`).
//! Invariant: packets of a flow leave in their order, and are at most [`MOST_WAITING`] bytes.

use std::collections::VecDeque;

use plimsoll_control::backpressure::Verdict;
use plimsoll_scenario::Excess;
use plimsoll_units::Nanos;

use super::{Act, Counted, Key, Press};
use crate::packet::Packet;

/// Most bytes of a flow that wait at its source, as live.
const MOST_WAITING: u64 = 512 << 10;

/// Whose rate a flow waits for: first others', then that of reported marks, then this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Held {
    Asked(Key),
    /// The tenant that sends it, whose ECN is mediated.
    Reported(u32, Key),
    Here(Counted),
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    packets: VecDeque<Packet>,
    bytes: u64,
}

impl Press {
    /// What is done with a packet that this rate concerns, if it may not go on.
    pub(crate) fn stops(&mut self, held: Held, bytes: u32, now: Nanos) -> Option<(Held, Act)> {
        if self.holds(&held) {
            return Some((held, Act::Wait));
        }
        let excess = if self.plan.model.excess == Excess::Wait { Act::Wait } else { Act::Drop };
        (!self.conforms(&held, bytes, now)).then_some((held, excess))
    }

    /// Whether the rate allows these bytes now; if so they are charged.
    fn conforms(&mut self, held: &Held, bytes: u32, now: Nanos) -> bool {
        match held {
            Held::Asked(key) => self.asked.judge(key, bytes, now) == Verdict::Conforming,
            Held::Reported(tenant, key) => self.guests.conforms(*tenant, key, bytes, now),
            Held::Here(flow) => self.here.judge(flow, bytes, now) == Verdict::Conforming,
        }
    }

    /// Whether packets of this flow wait, so that the next one waits behind them.
    pub(crate) fn holds(&self, held: &Held) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(held)
    }

    /// Keeps a packet until its flow's rate allows it; `false` if there is no room.
    pub(crate) fn keep(&mut self, held: Held, packet: Packet, bytes: u32) -> bool {
        let waiting = self.waiting.entry(held).or_default();
        if waiting.bytes + u64::from(bytes) > MOST_WAITING {
            return false;
        }
        waiting.bytes += u64::from(bytes);
        waiting.packets.push_back(packet);
        true
    }

    /// The next packet that has waited and may go on, with what it waited for.
    pub(crate) fn release(
        &mut self,
        bytes_of: impl Fn(&Packet) -> u32,
        now: Nanos,
    ) -> Option<(Held, Packet)> {
        let mut waiting = core::mem::take(&mut self.waiting);
        let mut freed = None;
        for (held, waiting) in &mut waiting {
            let Some(first) = waiting.packets.front() else { continue };
            let bytes = bytes_of(first);
            if self.conforms(held, bytes, now) {
                waiting.bytes -= u64::from(bytes);
                freed = waiting.packets.pop_front().map(|packet| (*held, packet));
                break;
            }
        }
        if let Some((held, _)) = &freed
            && waiting[held].packets.is_empty()
        {
            waiting.remove(held);
        }
        self.waiting = waiting;
        freed
    }

    /// When something is to be done next: a look at the load, or a packet that has waited may go on.
    pub(crate) fn next(&self, bytes_of: impl Fn(&Packet) -> u32, now: Nanos) -> Option<Nanos> {
        let ready = |(held, waiting): (&Held, &Waiting)| {
            let bytes = bytes_of(waiting.packets.front()?);
            Some(match held {
                Held::Asked(key) => self.asked.ready_at(key, bytes, now),
                Held::Reported(tenant, key) => self.guests.ready_at(*tenant, key, bytes, now),
                Held::Here(flow) => self.here.ready_at(flow, bytes, now),
            })
        };
        self.waiting.iter().filter_map(ready).chain(self.next_poll).min()
    }

    /// All packets that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Packet> {
        self.waiting.values().flat_map(|waiting| &waiting.packets)
    }
}
