//! Frames that wait for the rate to which backpressure holds their flow.
//!
//! Why: a meter that only drops loses whole segments of 64 KiB. A TCP sender on the same host then waits for timeouts and gets
//! a small part of the rate (`docs/decisions/0016-metered-flows-wait.md`).
//! From: MIMIC's BK-NIC meters at the source (§III-C), as a shaper; SENIC §3: a limit makes packets wait at their sender.
//! Not here: which flows, and their rates (`press`, and `fleet` for what other hosts ask).
//! Invariant: frames of a flow leave in their order; a flow holds a bounded number of bytes, and all flows of a tenant at most
//! half of its buffers, so no other flow of the tenant waits for them; a frame waits with its tenant's buffers, or is lost for
//! the counted reason `flow_over_rate`.

use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;
use plimsoll_ports::Received;
use plimsoll_units::{BitRate, Nanos, Span};
use plimsoll_vnic::Status;
use plimsoll_wire::{FlowKey, Offload};

use super::Dataplane;
use super::drops::{Event, Loss};
use super::fleet::Asked;
use super::heavy::Counted;
use super::mac_table::Mac;
use super::outward::on_wire;
use super::pool::Buffer;
use super::posted::Origin;

/// Whose rate a flow waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Held {
    /// Another host's that it goes to.
    Asked(Asked),
    /// The one that this host has set as the flow's receiver reports marks: the sender's lane, and the headers without DSCP.
    Reported(usize, FlowKey),
    /// This host's own: the flow's names, which are two where it goes from one counted tenant here to another.
    Here(Counted, Option<Counted>),
}

impl Held {
    /// Who a tenant is told holds the flow back.
    fn holder(&self) -> Holder {
        match self {
            Self::Asked(Asked { to, .. }) => Holder::Host(*to),
            Self::Reported(..) => Holder::Receiver,
            Self::Here(..) => Holder::Here,
        }
    }

    /// What a frame has waited for once this allows it.
    fn passed(&self) -> Passed {
        match self {
            Self::Asked(..) => Passed::Asked,
            Self::Reported(..) => Passed::Reported,
            Self::Here(..) => Passed::Here,
        }
    }
}

/// Who holds flows of a tenant back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Holder {
    /// The host of this address, to which they go.
    Host(Mac),
    /// Receivers that report marks.
    Receiver,
    /// This host, for what its policy watches.
    Here,
}

/// What a frame has waited for already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Passed {
    /// Nothing.
    #[default]
    Nothing,
    /// The rate that another host asked for.
    Asked,
    /// The rate of flows whose receivers report marks too.
    Reported,
    /// This host's own rate too.
    Here,
}

/// The frames that wait, by flow: for what other hosts ask, for what receivers report, and for this host's own rates.
#[derive(Debug, Default)]
pub(crate) struct Paced([Flows; 3]);

type Flows = HashMap<Held, Waiting, RandomState>;

#[derive(Debug, Default)]
struct Waiting {
    frames: VecDeque<Frame>,
    bytes: u64,
}

#[derive(Debug)]
struct Frame {
    lane: usize,
    buffer: Buffer,
    received: Received,
    origin: Origin,
    bytes: u32,
    /// Which of its rates have still to allow it.
    owes: Owes,
    /// Since when it waits.
    since: Nanos,
}

/// Which of a flow's rates have not allowed a frame yet: one that has was charged for it.
pub(super) type Owes = [bool; 2];

/// Bytes of one flow that may wait at any rate, and how long they may take at its rate: eight milliseconds are a queue that TCP fills
/// without a timeout.
const ANYWAY: u64 = 512 << 10;
const MOST: Span = Span::millis(8);

/// Most frames of a flow that go on in one turn: its flow queue must have room for them.
const AT_ONCE: usize = 16;

impl Paced {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Flows::is_empty)
    }

    /// Whether frames of this flow wait, so that the next one must wait behind them.
    #[inline]
    pub(super) fn holds(&self, held: &Held) -> bool {
        let flows = &self.0[place(held)];
        !flows.is_empty() && flows.contains_key(held)
    }

    /// What a frame of the flow with these names waits for, if it owes anything or earlier frames of its flow wait.
    #[inline]
    pub(super) fn waits_as(&self, mut names: impl Iterator<Item = Counted>, owes: Owes) -> Option<Held> {
        let owed = owes != [false; 2];
        if !owed && self.is_empty() {
            return None;
        }
        let held = Held::Here(names.next()?, names.next());
        (owed || self.holds(&held)).then_some(held)
    }
}

/// Where the frames of a flow wait, in the order in which they pass.
fn place(held: &Held) -> usize {
    match held {
        Held::Asked(..) => 0,
        Held::Reported(..) => 1,
        Held::Here(..) => 2,
    }
}

impl Dataplane {
    /// Keeps a frame until its flow's rate allows it, if there is room. Answers whether it was kept; else it is counted as lost,
    /// and its buffer is free.
    pub(super) fn keep(
        &mut self,
        held: Held,
        (index, buffer): (usize, Buffer),
        received: &Received,
        origin: &Origin,
        (bytes, owes): (u32, Owes),
        now: Nanos,
    ) -> bool {
        let most = self.most_waiting(&held);
        let Some(lane) = &mut self.tenants.lanes[index] else { return false };
        // At most one for each tenant elsewhere, as only their hosts can ask, and two more.
        *lane.pressed.entry(held.holder()).or_default() += 1;
        let waiting = self.backpressure.paced.0[place(&held)].get(&held).map_or(0, |waiting| waiting.bytes);
        if waiting + u64::from(bytes) > most || !lane.pool.is_half_free() {
            lane.tally.lost_many(Loss::FlowOverRate, origin.frames().into());
            lane.give(buffer, origin, Status::Dropped);
            return false;
        }
        lane.tally.event_many(Event::FlowWaited, origin.frames().into());
        let buffer = if origin.following == 0 { lane.pool.settle(buffer, received.len) } else { buffer };
        // A client may close the flow queue that it chose while its frame waits: the frame is classified when it goes on.
        let origin = Origin { queue: None, passed: held.passed(), ..*origin };
        let waiting = self.backpressure.paced.0[place(&held)].entry(held).or_default();
        waiting.bytes += u64::from(bytes);
        waiting.frames.push_back(Frame {
            lane: index,
            buffer,
            received: *received,
            origin,
            bytes,
            owes,
            since: now,
        });
        true
    }

    /// Bytes of this flow that may wait.
    fn most_waiting(&self, held: &Held) -> u64 {
        let bound = match held {
            Held::Here(..) => self.backpressure.heavy.as_ref().and_then(|heavy| heavy.most_waiting()),
            Held::Asked(_) | Held::Reported(..) => None,
        };
        bound.map_or_else(
            || self.rate_of(held).map_or(0, |rate| rate.bytes_in(MOST).as_u64()).max(ANYWAY),
            |bound| bound.as_u64(),
        )
    }

    /// Lets frames go on whose flows have earned it; all of them where no frames are read any more. Answers how many.
    pub(super) fn release_paced(&mut self, now: Nanos) -> usize {
        let mut released = 0;
        // Each part is taken out meanwhile. A frame may have to wait in a later one, and none goes back.
        for place in 0..self.backpressure.paced.0.len() {
            if self.backpressure.paced.0[place].is_empty() {
                continue;
            }
            let mut flows = core::mem::take(&mut self.backpressure.paced.0[place]);
            flows.retain(|held, waiting| self.release(held, waiting, &mut released, now));
            self.backpressure.paced.0[place] = flows;
        }
        if released > 0 {
            self.scheduler.ring(now);
        }
        released
    }

    /// Answers whether frames of this flow still wait.
    fn release(&mut self, held: &Held, waiting: &mut Waiting, released: &mut usize, now: Nanos) -> bool {
        for _ in 0..AT_ONCE {
            let Some(frame) = waiting.frames.front_mut() else { break };
            if self.tenants.reading && !self.conforms(held, frame.bytes, &mut frame.owes, now) {
                self.wake_for(held, frame.bytes, frame.owes, now);
                break;
            }
            let Some(frame) = waiting.frames.pop_front() else { break };
            waiting.bytes -= u64::from(frame.bytes);
            self.go_on(&frame, now);
            *released += 1;
        }
        if !waiting.frames.is_empty() && self.due.wake_at.is_none() {
            self.due.wake_at = Some(now);
        }
        !waiting.frames.is_empty()
    }

    fn go_on(&mut self, frame: &Frame, now: Nanos) {
        let Frame { lane: index, buffer, received, origin, since, .. } = frame;
        let Some(lane) = &mut self.tenants.lanes[*index] else { return };
        lane.recent.pressed(now.since(*since), origin.frames());
        if lane.tenant.is_some() {
            return self.admit(*index, *buffer, received, origin, now);
        }
        lane.tally.lost_many(Loss::Stopped, origin.frames().into());
        lane.give(*buffer, origin, Status::Dropped);
    }

    /// Whether a frame of this flow goes on now: none waits before it, and the rate allows it. Else it is kept, or lost, as
    /// [`Dataplane::keep`] does.
    pub(super) fn may_pass(
        &mut self,
        held: Held,
        frame: (usize, Buffer),
        offload: &Offload,
        received: &Received,
        origin: &Origin,
        now: Nanos,
    ) -> bool {
        let (_, bytes) = on_wire(offload, received.len, origin.frames());
        let mut owes = [true, false];
        let passes = !self.backpressure.paced.holds(&held) && self.conforms(&held, bytes, &mut owes, now);
        if !passes {
            self.keep(held, frame, received, origin, (bytes, owes), now);
        }
        passes
    }

    /// Whether the rates that have not allowed these bytes yet allow them now. Each that does is charged, and they owe it no more.
    fn conforms(&mut self, held: &Held, bytes: u32, owes: &mut Owes, now: Nanos) -> bool {
        for (place, owes) in owes.iter_mut().enumerate().filter(|(_, owes)| **owes) {
            *owes = !self.allows(held, place, bytes, now);
        }
        *owes == [false; 2]
    }

    /// Whether one rate of a flow allows these bytes now; if so they are charged.
    fn allows(&mut self, held: &Held, place: usize, bytes: u32, now: Nanos) -> bool {
        match held {
            Held::Asked(flow) => self.fleet.as_mut().is_none_or(|fleet| fleet.conforms(flow, bytes, now)),
            Held::Reported(lane, flow) => {
                let lane = self.tenants.lanes.get_mut(*lane).and_then(Option::as_mut);
                let guest = lane.and_then(|lane| lane.guest.as_mut());
                guest.is_none_or(|guest| guest.conforms(flow, bytes, now))
            }
            Held::Here(first, second) => {
                let flow = [Some(first), second.as_ref()][place];
                let heavy = self.backpressure.heavy.as_mut().zip(flow);
                heavy.is_none_or(|(heavy, flow)| heavy.conforms(flow, bytes, now))
            }
        }
    }

    /// The lowest rate that holds a flow.
    fn rate_of(&self, held: &Held) -> Option<BitRate> {
        match held {
            Held::Asked(flow) => self.fleet.as_ref()?.rate(flow),
            Held::Reported(lane, flow) => self.tenants.lanes.get(*lane)?.as_ref()?.guest.as_ref()?.rate(flow),
            Held::Here(first, second) => {
                let heavy = self.backpressure.heavy.as_ref()?;
                [Some(first), second.as_ref()].into_iter().flatten().filter_map(|flow| heavy.rate(flow)).min()
            }
        }
    }

    /// Wakes the engine when the rates that have not allowed these bytes yet will do so.
    fn wake_for(&mut self, held: &Held, bytes: u32, owes: Owes, now: Nanos) {
        let at = match held {
            Held::Asked(flow) => self.fleet.as_ref().and_then(|fleet| fleet.ready_at(flow, bytes, now)),
            Held::Reported(lane, flow) => {
                let lane = self.tenants.lanes.get(*lane).and_then(Option::as_ref);
                lane.and_then(|lane| lane.guest.as_ref()).map(|guest| guest.ready_at(flow, bytes, now))
            }
            Held::Here(first, second) => self.backpressure.heavy.as_ref().and_then(|heavy| {
                let flows = [Some(first), second.as_ref()].into_iter().zip(owes);
                let owed = flows.filter_map(|(flow, owes)| flow.filter(|_| owes));
                owed.filter_map(|flow| heavy.ready_at(flow, bytes, now)).max()
            }),
        };
        let at = at.unwrap_or(now);
        self.due.wake_at = Some(self.due.wake_at.map_or(at, |known| known.min(at)));
    }
}
