//! A tenant's program in virtual time: it is given batches of frames, and its instructions take its tenant's time.
//!
//! Why: the module that runs live runs here, and a run has the same bits on every machine: fuel is counted, and time follows from it.
//! From: FairNIC §4.1 (batches run to completion), §3.1.1 (what leaves a program is scheduled behind it, by the size that it has then);
//! the daemon's `dataplane/hosted`.
//! Not here: whose turn it is (`receive`), what happens to packets then (`world/programs`), what a frame says that a program has left
//! (`left`), what comes back from coprocessors (`called`).
//! Invariant: each packet of a batch has one outcome; a packet that a program has added has one, too.

mod called;
mod left;

use std::collections::VecDeque;

use plimsoll_offload::{Fault, Pace, Packet as Given, Program, Verdict, Way};
use plimsoll_policy::Fails;
use plimsoll_scenario::ProgramCost;
use plimsoll_units::{Nanos, Span};

use crate::flow::Flow;
use crate::frame::write_headers;
use crate::packet::Packet;
use crate::said::Said;
use crate::units::{Call, NO_UNIT};
use called::Returned;

/// A tenant's program on one host.
#[derive(Debug)]
pub(crate) struct Hosted {
    program: Program,
    /// Its tenant, and the node on which it is.
    tenant: u32,
    node: u32,
    cost: ProgramCost,
    /// The longest frame that a link takes.
    longest: u32,
    fails: Fails,
    pace: Pace,
    ticked: Nanos,
    /// Frames of its tenant's that wait for it.
    outgoing: VecDeque<Outgoing>,
    /// By direction: packets that have come back from coprocessors.
    returned: [VecDeque<Returned>; 2],
    /// By direction and flow: the last header fields of each end.
    said: [Vec<[Said; 2]>; 2],
    /// The packets of the batch that runs, with their headers' bytes.
    batch: Vec<Begun>,
    headers: Vec<u8>,
    /// What becomes of the packets of this turn once it ends.
    ended: Vec<Ended>,
    /// Packets that go to coprocessors once this turn ends.
    calls: Vec<Call>,
    /// Packets whose senders have their buffers back once this turn ends.
    freed: Vec<Packet>,
    now: ProgramNow,
}

/// What a program has done.
#[derive(Clone, Copy, Debug, Default)]
struct ProgramNow {
    calls: u64,
    packets: u64,
    instructions: u64,
    /// Packets that coprocessors have taken.
    to_units: u64,
    faults: u64,
    overruns: u64,
}

/// A frame of the tenant's that waits.
#[derive(Debug)]
struct Outgoing {
    frame: Packet,
    /// Of the last frame of what its sender has handed over, that packet.
    whole: Option<Packet>,
}

/// A packet of the batch.
#[derive(Debug)]
struct Begun {
    packet: Packet,
    waits: Option<Waits>,
    given: Given,
    /// Where its headers' bytes begin, and end.
    headers: (usize, usize),
    /// Whether the program has added it, in an earlier batch.
    added: bool,
    /// Whether the program's answer has it.
    answered: bool,
}

/// How long a packet waited on the way in, and the part of it in the NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) waited: Span,
    pub(crate) in_nic: Span,
}

/// What becomes of a packet.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) packet: Packet,
    pub(crate) to: To,
    /// Whether the program has added it.
    pub(crate) added: bool,
    /// Of a packet that came in.
    pub(crate) waits: Option<Waits>,
}

/// A turn of a program that has ended.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) tenant: u32,
    /// What becomes of its packets.
    pub(crate) ended: Vec<Ended>,
    /// Packets that go to coprocessors.
    pub(crate) calls: Vec<Call>,
    /// Packets whose senders get their buffers back.
    pub(crate) freed: Vec<Packet>,
    /// How long its core waited for a coprocessor, if it called one.
    pub(crate) called: Option<Span>,
}

impl Turn {
    /// Whether it had packets from the network.
    pub(crate) fn has_come(&self) -> bool {
        self.ended.iter().any(|ended| ended.waits.is_some())
    }

    /// How many packets it sends.
    pub(crate) fn sends(&self) -> u32 {
        self.ended.iter().filter(|ended| ended.to == To::Network).count() as u32
    }

    /// Its packets, but for those that the program has added.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Packet> {
        self.ended.iter().filter(|ended| !ended.added).map(|ended| &ended.packet).chain(held_by(&self.calls))
    }
}

/// The packets of calls, but for those that programs have added.
fn held_by(calls: &[Call]) -> impl Iterator<Item = &Packet> {
    calls.iter().filter(|call| !call.added).map(|call| &call.packet)
}

/// Where a packet goes behind a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// To the tenant.
    Tenant,
    /// Away, as its tenant's packet.
    Network,
    /// Nowhere: the reason.
    Nowhere(&'static str),
}

/// The port that stands for the tenant's own.
const TENANT: u8 = 1;

/// Frames of the tenant's that may wait: its device's queue, and those that live are read ahead.
const MOST_OUT: usize = 1_000 + 64;

/// Loss reasons, as live.
const DROPPED: &str = "program_dropped";
const FAULT: &str = "program_fault";
const OVER_TIME: &str = "program_over_time";
const HALTED: &str = "program_halted";
const MALFORMED: &str = "program_malformed";
const NO_PORT: &str = "program_no_port";

impl Hosted {
    /// A program that has been started.
    pub(crate) fn new(
        program: Program,
        (node, tenant): (u32, u32),
        cost: ProgramCost,
        fails: Fails,
        longest: u32,
    ) -> Self {
        Self {
            program,
            tenant,
            node,
            cost,
            longest,
            fails,
            pace: Pace::default(),
            ticked: Nanos::ZERO,
            outgoing: VecDeque::new(),
            returned: Default::default(),
            said: Default::default(),
            batch: Vec::new(),
            headers: Vec::new(),
            ended: Vec::new(),
            calls: Vec::new(),
            freed: Vec::new(),
            now: ProgramNow::default(),
        }
    }

    /// Whether packets of this direction pass it, or are lost as it was halted.
    pub(crate) fn takes(&self, way: Way) -> bool {
        self.program.looks_at(way) && !(self.pace.is_halted() && self.fails == Fails::Open)
    }

    /// Its tenant.
    pub(crate) fn tenant(&self) -> u32 {
        self.tenant
    }

    /// Whether it was halted.
    pub(crate) fn is_halted(&self) -> bool {
        self.pace.is_halted()
    }

    /// Packets from the network that a turn takes: as many as a call may have beside those that have come back from coprocessors, or one if
    /// packets pass it.
    pub(crate) fn most_in(&self) -> usize {
        let returned = self.returned[Way::Ingress as usize].len();
        if self.takes(Way::Ingress) { self.pace.most().saturating_sub(returned) } else { 1 }
    }

    /// When `tick` is to be called next, if the program has it.
    pub(crate) fn ticks_at(&self) -> Option<Nanos> {
        (self.program.ticks() && !self.is_halted()).then(|| self.ticked + Pace::TICK)
    }

    /// Whether whatever comes is lost, as it was halted.
    fn loses_all(&self) -> bool {
        self.is_halted() && self.fails == Fails::Closed
    }

    /// Whether it has work beside packets from the network, where its tenant has `room` descriptors.
    pub(crate) fn has_work(&self, room: u32, now: Nanos) -> bool {
        let [come, leaving] = self.returned.each_ref().map(|returned| !returned.is_empty());
        come || (leaving || !self.outgoing.is_empty()) && (room > 0 || self.loses_all())
            || self.ticks_at().is_some_and(|at| at <= now)
    }

    /// Takes a packet of its tenant's, which is cut into the frames that a wire would carry. `false` where as many wait as may.
    pub(crate) fn offer(&mut self, packet: Packet) -> bool {
        let frames = packet.frames();
        if self.outgoing.len() + frames as usize > MOST_OUT {
            return false;
        }
        let (segment, _) = packet.cut_as();
        for number in 0..frames {
            let frame = if frames == 1 { packet } else { packet.cut(number * u32::from(segment)) };
            let whole = (number + 1 == frames).then_some(packet);
            self.outgoing.push_back(Outgoing { frame: Packet { apart: 0, ..frame }, whole });
        }
        true
    }

    /// Begins a turn with these packets from the network, and with those of its tenant's that wait and for which there is `room`.
    /// Returns how long its instructions take.
    pub(crate) fn turn(
        &mut self,
        incoming: &[(Packet, Waits)],
        room: u32,
        flows: &[Flow],
        now: Nanos,
    ) -> Span {
        let mut took = Span::ZERO;
        if self.ticks_at().is_some_and(|at| at <= now) {
            self.ticked = now;
            let ticked = self.program.tick(now);
            took += self.spent();
            if let Err(fault) = ticked {
                self.failed(&fault, now);
            }
        }
        took += self.way_in(incoming, flows, now);
        took + self.way_out(room, flows, now)
    }

    /// Passes these packets from the network, and those that have come back from coprocessors. Returns how long that takes.
    fn way_in(&mut self, incoming: &[(Packet, Waits)], flows: &[Flow], now: Nanos) -> Span {
        self.take_back(Way::Ingress, self.pace.most());
        if self.takes(Way::Ingress) {
            let incoming = incoming.iter().map(|&(packet, waits)| (packet, Some(waits)));
            return self.call(Way::Ingress, incoming, flows, now);
        }
        self.pass_batch(Way::Ingress, flows);
        let passing = incoming.iter().map(|&(packet, waits)| Ended {
            packet,
            to: To::Tenant,
            added: false,
            waits: Some(waits),
        });
        self.ended.extend(passing);
        Span::ZERO
    }

    /// Passes packets of the tenant's for which there is `room`, those first that have come back from coprocessors.
    fn way_out(&mut self, room: u32, flows: &[Flow], now: Nanos) -> Span {
        let amplified = self.program.limits().amplification.max(1);
        let fit = (room / amplified).max(room.min(1)) as usize;
        let fit = match (self.loses_all(), self.is_halted()) {
            (true, _) => usize::MAX,
            (false, true) => room as usize, // they pass it
            (false, false) => fit.min(self.pace.most()),
        };
        let returned = self.take_back(Way::Egress, fit);
        let leaving = (fit - returned).min(self.outgoing.len());
        let leaving: Vec<Outgoing> = self.outgoing.drain(..leaving).collect();
        self.freed.extend(leaving.iter().filter_map(|one| one.whole));
        if self.takes(Way::Egress) {
            return self.call(Way::Egress, leaving.into_iter().map(|one| (one.frame, None)), flows, now);
        }
        self.pass_batch(Way::Egress, flows);
        let passing = leaving.into_iter().map(|one| one.frame);
        self.ended.extend(passing.map(|packet| Ended { packet, to: To::Network, added: false, waits: None }));
        Span::ZERO
    }

    /// Notes a packet from the network that is lost before the program has it.
    pub(crate) fn lose(&mut self, packet: Packet, why: &'static str) {
        self.ended.push(Ended { packet, to: To::Nowhere(why), added: false, waits: None });
    }

    /// What has become of the packets of the turn that ends, and those whose senders have their buffers back.
    pub(crate) fn end_turn(&mut self) -> Turn {
        let (ended, calls) = (core::mem::take(&mut self.ended), core::mem::take(&mut self.calls));
        Turn { tenant: self.tenant, ended, calls, freed: core::mem::take(&mut self.freed), called: None }
    }

    /// All packets that it holds, but for those that it adds in this turn.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Packet> {
        let waiting = self.outgoing.iter().map(|one| &one.frame);
        let returned = self.returned.iter().flatten().filter(|one| !one.added).map(|one| &one.packet);
        let ended = self.ended.iter().filter(|one| !one.added).map(|one| &one.packet);
        waiting.chain(returned).chain(ended).chain(held_by(&self.calls))
    }

    /// Packets whose senders do not have their buffers back yet.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = &Packet> {
        self.freed.iter().chain(self.outgoing.iter().filter_map(|one| one.whole.as_ref()))
    }

    /// Its counters.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 7] {
        let ProgramNow { calls, packets, instructions, to_units, faults, overruns } = self.now;
        [
            ("program_calls", calls),
            ("program_packets", packets),
            ("program_instructions", instructions),
            ("program_to_units", to_units),
            ("program_faults", faults),
            ("program_overruns", overruns),
            ("programs_halted", u64::from(self.is_halted())),
        ]
    }

    /// Calls the program with these packets, behind those that are in the batch. Returns how long that takes.
    fn call(
        &mut self,
        way: Way,
        packets: impl Iterator<Item = (Packet, Option<Waits>)>,
        flows: &[Flow],
        now: Nanos,
    ) -> Span {
        if self.is_halted() {
            let lost = |(packet, waits)| Ended { packet, to: To::Nowhere(HALTED), added: false, waits };
            self.ended.extend(packets.map(lost));
            self.lose_batch(HALTED);
            return Span::ZERO;
        }
        packets.for_each(|(packet, waits)| self.put(way, packet, waits, flows));
        if self.batch.is_empty() {
            return Span::ZERO;
        }
        let given: Vec<Given> = self.batch.iter().map(|begun| begun.given).collect();
        self.now.calls += 1;
        self.now.packets += given.len() as u64;
        let answered = self.program.run(way, &given, now).map(|ran| ran.malformed);
        let took = self.spent();
        self.pace.took(given.len(), took);
        match answered {
            Ok(malformed) => self.answer(way, malformed, flows),
            Err(fault) => {
                let why = self.failed(&fault, now);
                let lost = |begun: Begun| begun.ends(To::Nowhere(why));
                self.ended.extend(self.batch.drain(..).map(lost));
            }
        }
        self.headers.clear();
        took
    }

    /// Writes a packet into a buffer of the program's, and adds it to the batch.
    fn put(&mut self, way: Way, packet: Packet, waits: Option<Waits>, flows: &[Flow]) {
        let said = &mut self.said[usize::from(way == Way::Egress)];
        let at = packet.flow as usize;
        if said.len() <= at {
            said.resize(at + 1, [Said::default(); 2]);
        }
        let (begin, added) = (self.headers.len(), false);
        let said = &mut said[at][usize::from(packet.back)];
        let written = write_headers(&mut self.headers, &flows[at], &packet, said);
        let (end, len) = (self.headers.len(), packet.len as usize);
        let fits = written.is_ok() && end - begin <= len && len <= self.program.limits().buffer as usize;
        let slot = if fits { self.program.take() } else { None };
        let Some(slot) = slot else {
            let why = if fits { "program_no_room" } else { "program_too_long" };
            return self.ended.push(Ended { packet, to: To::Nowhere(why), added: false, waits });
        };
        let bytes = &mut self.program.bytes_mut(slot)[..len];
        let (head, rest) = bytes.split_at_mut(end - begin);
        head.copy_from_slice(&self.headers[begin..]);
        rest.fill(0);
        let port = if way == Way::Ingress { Given::NETWORK } else { TENANT };
        let given = Given::new(slot, packet.len, port);
        self.batch.push(Begun { packet, waits, given, headers: (begin, end), added, answered: false });
    }

    /// Reads what the program has decided.
    fn answer(&mut self, way: Way, malformed: u32, flows: &[Flow]) {
        let mut strange = malformed;
        for number in 0..self.program.ran().packets.len() {
            let decided = self.program.ran().packets[number];
            let own = self.batch.iter().position(|begun| begun.given.slot == decided.slot);
            if let Some(own) = own {
                self.batch[own].answered = true;
            }
            if decided.verdict == Verdict::Drop {
                self.ended.extend(own.map(|own| self.batch[own].ends(To::Nowhere(DROPPED))));
                continue;
            }
            match decided.verdict {
                Verdict::Unit(wanted) => self.send_to_unit(way, (&decided, wanted), own, flows),
                _ => self.ended.push(self.end_of(way, number, own, flows)),
            }
            self.program.give(decided.slot);
        }
        for begun in self.batch.drain(..).filter(|begun| !begun.answered) {
            strange = strange.saturating_sub(1);
            self.ended.push(begun.ends(To::Nowhere(MALFORMED)));
        }
        // What is left of them are packets that it has added.
        let first = self.ended.last().map(|ended| ended.packet);
        for packet in first.into_iter().cycle().take(strange as usize) {
            self.ended.push(Ended { packet, to: To::Nowhere(MALFORMED), added: true, waits: None });
        }
    }

    /// The outcome of a packet that the program has not dropped; `own` is its place in the batch, if it was there.
    fn end_of(&self, way: Way, number: usize, own: Option<usize>, flows: &[Flow]) -> Ended {
        let decided = &self.program.ran().packets[number];
        let begun = &self.batch[own.unwrap_or(0)];
        let added = own.is_none_or(|own| self.batch[own].added);
        let to = match (decided.verdict, way) {
            (Verdict::Pass, Way::Ingress) | (Verdict::Redirect(TENANT), _) => To::Tenant,
            (Verdict::Pass, Way::Egress) | (Verdict::Redirect(Given::NETWORK), _) => To::Network,
            (Verdict::Drop, _) => To::Nowhere(DROPPED),
            (Verdict::Redirect(_), _) => To::Nowhere(NO_PORT),
            (Verdict::Unit(_), _) => To::Nowhere(NO_UNIT), // `send_to_unit` has these
        };
        let left = match to {
            To::Nowhere(_) => Ok(begun.packet),
            _ => self.left(self.program.packet(decided), own, to, flows),
        };
        let (packet, to) = left.map_or_else(|why| (begun.packet, To::Nowhere(why)), |packet| (packet, to));
        Ended { packet, to, added, waits: own.and(begun.waits) }
    }

    /// The time of the last call's instructions, which are counted.
    fn spent(&mut self) -> Span {
        let instructions = self.program.fuel().unwrap_or_default();
        self.now.instructions += instructions;
        self.cost.time(instructions)
    }

    /// Notes that a call has failed; returns why its packets are lost.
    fn failed(&mut self, fault: &Fault, now: Nanos) -> &'static str {
        match fault {
            Fault::OverBudget(_) => {
                self.now.overruns += 1;
                self.pace.overrun(now);
                OVER_TIME
            }
            Fault::Trap { .. } | Fault::Count { .. } => {
                self.now.faults += 1;
                FAULT
            }
        }
    }
}

impl Begun {
    fn ends(&self, to: To) -> Ended {
        Ended { packet: self.packet, to, added: self.added, waits: self.waits }
    }
}
