//! Packets that wait for the rate to which backpressure holds their flow.
//!
//! Why: a meter that only drops loses what one that lets packets wait keeps.
//! From: the daemon's `engine/paced`.
//! Not here: which flows, and their rates (`press`).
//! Invariant: packets of a flow leave in their order, and are at most [`MOST_WAITING`] bytes. Each rate of a flow is charged once
//! for a packet.

use std::collections::VecDeque;

use plimsoll_control::backpressure::Verdict;
use plimsoll_scenario::Excess;
use plimsoll_units::Nanos;

use super::{Act, Counted, Key, Press};
use crate::packet::Packet;

/// Most bytes of a flow that wait at its source, as live.
const MOST_WAITING: u64 = 512 << 10;

/// What a packet owes that one rate holds.
const ONE: Owes = [true, false];

/// Whose rate a flow waits for: first others', then that of reported marks, then this host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Held {
    Asked(Key),
    /// The tenant that sends it, whose ECN is mediated.
    Reported(u32, Key),
    /// The flow's names at this host, which are two where it goes from one counted tenant here to another.
    Here(Counted, Option<Counted>),
}

/// Which of a flow's rates have not allowed a packet yet: one that has was charged for it.
pub(crate) type Owes = [bool; 2];

/// What stops a packet, what is done with it, and which rates it waits for.
pub(crate) type Stop = (Held, Act, Owes);

#[derive(Debug, Default)]
pub(super) struct Waiting {
    packets: VecDeque<(Packet, Owes)>,
    bytes: u64,
}

impl Held {
    /// The names by which this host counts the flow, where it waits for this host's own rates.
    fn names(self) -> impl Iterator<Item = Counted> {
        let names = match self {
            Self::Here(first, second) => [Some(first), second],
            Self::Asked(_) | Self::Reported(..) => [None; 2],
        };
        names.into_iter().flatten()
    }
}

impl Press {
    /// What is done with a packet that this rate, another host's or a receiver's, concerns, if it may not go on.
    pub(crate) fn stops(&mut self, held: Held, bytes: u32, now: Nanos) -> Option<Stop> {
        let mut owes = ONE;
        if self.holds(&held) {
            return Some((held, Act::Wait, owes));
        }
        let excess = if self.plan.model.excess == Excess::Wait { Act::Wait } else { Act::Drop };
        (!self.conforms(&held, bytes, &mut owes, now)).then_some((held, excess, owes))
    }

    /// Counts a packet under each name that its flow has here, its sender's first, and marks it. Says what stops it.
    pub(crate) fn stops_here(
        &mut self,
        names: [Option<Counted>; 2],
        packet: &mut Packet,
        on_wire: (u32, u32),
        now: Nanos,
    ) -> Option<Stop> {
        let mut names = names.into_iter().flatten();
        let held = Held::Here(names.next()?, names.next());
        let mut owes = [false; 2];
        for (name, owes) in held.names().zip(&mut owes) {
            let (mark, act) = self.count(&name, on_wire, packet.codepoint(), now);
            packet.ce |= mark;
            match act {
                Act::Pass => {}
                Act::Wait => *owes = true,
                Act::Drop => return Some((held, Act::Drop, [false; 2])),
            }
        }
        (owes != [false; 2] || self.holds(&held)).then_some((held, Act::Wait, owes))
    }

    /// Whether the rates that have not allowed these bytes yet allow them now. Each that does is charged, and is owed no more.
    fn conforms(&mut self, held: &Held, bytes: u32, owes: &mut Owes, now: Nanos) -> bool {
        match held {
            Held::Asked(key) => self.asked.judge(key, bytes, now) == Verdict::Conforming,
            Held::Reported(tenant, key) => self.guests.conforms(*tenant, key, bytes, now),
            Held::Here(..) => {
                for (name, owes) in held.names().zip(&mut *owes).filter(|(_, owes)| **owes) {
                    *owes = self.here.judge(&name, bytes, now) == Verdict::Excess;
                }
                *owes == [false; 2]
            }
        }
    }

    /// Whether packets of this flow wait, so that the next one waits behind them.
    pub(crate) fn holds(&self, held: &Held) -> bool {
        !self.waiting.is_empty() && self.waiting.contains_key(held)
    }

    /// Keeps a packet until its flow's rate allows it; `false` if there is no room.
    pub(crate) fn keep(&mut self, held: Held, owes: Owes, packet: Packet, bytes: u32) -> bool {
        let bound =
            self.stated().filter(|_| matches!(held, Held::Here(..))).and_then(|press| press.most_waiting());
        let most = bound.map_or(MOST_WAITING, |bound| bound.as_u64());
        let waiting = self.waiting.entry(held).or_default();
        if waiting.bytes + u64::from(bytes) > most {
            return false;
        }
        waiting.bytes += u64::from(bytes);
        waiting.packets.push_back((packet, owes));
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
            let Some((first, owes)) = waiting.packets.front_mut() else { continue };
            let bytes = bytes_of(first);
            if self.conforms(held, bytes, owes, now) {
                waiting.bytes -= u64::from(bytes);
                freed = waiting.packets.pop_front().map(|(packet, _)| (*held, packet));
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
            let (first, owes) = waiting.packets.front()?;
            let bytes = bytes_of(first);
            Some(match held {
                Held::Asked(key) => self.asked.ready_at(key, bytes, now),
                Held::Reported(tenant, key) => self.guests.ready_at(*tenant, key, bytes, now),
                Held::Here(..) => {
                    let owed = held.names().zip(owes).filter(|(_, owes)| **owes);
                    owed.map(|(name, _)| self.here.ready_at(&name, bytes, now)).max().unwrap_or(now)
                }
            })
        };
        self.waiting.iter().filter_map(ready).chain(self.next_poll).min()
    }

    /// All packets that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Packet> {
        self.waiting.values().flat_map(|waiting| &waiting.packets).map(|(packet, _)| packet)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_control::HostId;
    use plimsoll_control::backpressure::{MeterSettings, Meters, Terms};
    use plimsoll_scenario::PressModel;
    use plimsoll_units::{BitRate, Bytes, Span};

    use super::*;
    use crate::packet::Body;
    use crate::press::Plan;

    const HOST: HostId = HostId(0);
    const LEN: u32 = 1_000;

    fn press() -> Press {
        let plan = Plan {
            node: 0,
            stated: None,
            model: PressModel::default(),
            counted: Vec::new(),
            untouched: Vec::new(),
            mediated: Vec::new(),
            watched: None,
            seed: 1,
            first: Nanos::ZERO,
        };
        let mut press = Press::new(plan, Nanos::ZERO);
        press.here = Meters::new(MeterSettings::default());
        press
    }

    fn packet(number: u64) -> Packet {
        Packet::new((0, false), false, LEN, Body::Datagram { number, offset: 0, size: 900, last: true })
    }

    fn number(packet: &Packet) -> u64 {
        let Body::Datagram { number, .. } = packet.body else { panic!("{packet:?}") };
        number
    }

    /// A flow between two counted tenants of a host has two names, each with a rate of its own. The first has more of its burst left,
    /// until the sender's other packets take it.
    #[test]
    fn a_flow_that_is_held_under_two_names_keeps_its_order_and_both_rates() {
        let mut press = press();
        let sender = Counted { tenant: 1, ..Counted::default() };
        let receiver = Counted { tenant: 2, inward: true, ..sender };
        let (lifetime, burst) = (Span::secs(10), |kib| Bytes::kib(kib));
        for (name, rate, kib) in [(sender, 8, 128), (receiver, 6, 68)] {
            let terms = Terms { rate: BitRate::mbps(rate), burst: burst(kib), lifetime };
            press.here.install(name, HOST, terms, Nanos::ZERO).expect("there is room");
        }
        let (mut sent, mut left) = (0, Vec::new());
        for ms in 0..800 {
            let now = Nanos::ZERO + Span::millis(ms);
            while let Some((_, packet)) = press.release(|packet| packet.len, now) {
                left.push(number(&packet));
            }
            for _ in 0..if ms % 100 < 60 { 2 } else { 0 } {
                sent += 1;
                let mut packet = packet(sent);
                match press.stops_here([Some(sender), Some(receiver)], &mut packet, (1, LEN), now) {
                    None => left.push(sent),
                    Some((held, act, owes)) => {
                        assert_eq!(act, Act::Wait);
                        assert!(press.keep(held, owes, packet, LEN), "there is room");
                    }
                }
            }
            if ms % 5 == 0 {
                press.here.judge(&sender, 3 * LEN, now);
            }
            // 6 Mb/s are 750 bytes in a millisecond.
            assert!(
                left.len() as u64 * u64::from(LEN) <= 68 * 1_024 + 750 * ms,
                "at {ms} ms: {}",
                left.len()
            );
            let next = press.next(|packet| packet.len, now);
            assert_eq!(next.is_some(), press.waiting().next().is_some());
            assert!(
                next.is_none_or(|next| next > now && next < now + Span::millis(20)),
                "{next:?} at {now:?}"
            );
        }
        assert!(left.is_sorted(), "reordered: {left:?}");
        // Both have allowed each packet once: the lower rate has nearly what it allows.
        assert!((550..670).contains(&left.len()), "{}", left.len());
    }
}
