//! Workloads in virtual time: the packets that they send, and their measurements.
//!
//! Why: the same workloads as the lab's, at rates and sizes that no machine holds.
//! From: `docs/scenarios.md`, "Workloads"; the lab's generators, with their open-loop latency counted from when a
//! request was due.
//! Not here: TCP itself (`tcp`), and the world that carries it (`world`): a workload knows it only as a [`Stack`].
//! Invariant: a workload acts only when a timer fires, or a datagram or more of a stream arrives; it sends nothing new from
//! its stop on.

mod bulk;
mod flows;
mod incast;
mod probe;
mod rounds;
mod rpc;
mod sizes;
mod udp;

use plimsoll_scenario::{Sample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

pub(crate) use bulk::{Bulk, Rhythm};
pub(crate) use flows::{Arrival, Flows};
pub(crate) use incast::Incast;
pub(crate) use probe::Probe;
pub(crate) use rounds::Rounds;
pub(crate) use rpc::Rpc;
pub(crate) use sizes::Sizes;
pub(crate) use udp::Udp;

use crate::agenda::SourceId;
use crate::packet::Packet;

/// The clock, the timers and the sockets that a workload has.
///
/// A socket is one end point of a connection.
pub(crate) trait Stack {
    /// The time now.
    fn now(&self) -> Nanos;
    /// Sets a timer, or clears it.
    fn set_timer(&mut self, timer: SourceId, at: Option<Nanos>);
    /// Sends a packet from an end of a flow.
    fn send_packet(&mut self, packet: Packet);
    /// Appends to the stream that a socket sends.
    fn write(&mut self, socket: u32, bytes: u64);
    /// Like [`Stack::write`], for an answer: it takes time on its tenant's core, where that has a cost.
    fn answer(&mut self, socket: u32, bytes: u64);
    /// Makes a socket send without end.
    fn write_unlimited(&mut self, socket: u32);
    /// Bytes written to a socket so far.
    fn written(&self, socket: u32) -> u64;
    /// Ends what a socket sends without end: only what its buffer holds is still sent.
    fn stop(&mut self, socket: u32);
    /// Closes both end points of a connection at once; no packet tells the other side.
    fn close(&mut self, socket: u32);
    /// Bytes that a socket sent and that are acknowledged.
    fn acked(&self, socket: u32) -> u64;
    /// Gives a flow a connection whose ends have these settings, and returns its client's socket.
    fn connect(&mut self, flow: u32, settings: [u16; 2]) -> u32;
    /// Closes a connection for good: another flow may have its sockets.
    fn release(&mut self, socket: u32);
}

/// A workload.
#[derive(Debug, Default)]
pub(crate) enum App {
    /// The workload acts at this moment: it is taken out of the world meanwhile.
    #[default]
    Away,
    /// Datagrams without answers.
    Udp(Box<Udp>),
    /// Datagrams that the destination sends back.
    Probe(Box<Probe>),
    /// Streams that send all the time, or with pauses.
    Bulk(Box<Bulk>),
    /// Requests and responses.
    Rpc(Box<Rpc>),
    /// Rounds of blocks.
    Rounds(Box<Rounds>),
    /// Flows that arrive.
    Flows(Box<Flows>),
    /// Answers of many to one.
    Incast(Box<Incast>),
}

/// A workload's flows, times and timers.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    /// Its first flow, or connection, and how many there are; a connection has two end points, its client's first.
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) start: Nanos,
    pub(crate) stop: Nanos,
    /// Its first timer's source; timers follow each other.
    pub(crate) timer: SourceId,
}

impl App {
    /// Handles one of its timers; the first one fires at the start.
    pub(crate) fn timeout(&mut self, stack: &mut impl Stack, timer: u32) {
        match self {
            Self::Away => {}
            Self::Udp(app) => app.timeout(stack),
            Self::Probe(app) => app.timeout(stack),
            Self::Bulk(app) => app.timeout(stack, timer),
            Self::Rpc(app) => app.timeout(stack),
            Self::Rounds(app) => app.timeout(stack, timer),
            Self::Flows(app) => app.timeout(stack),
            Self::Incast(app) => app.timeout(stack),
        }
    }

    /// Handles a datagram that has arrived at one of a flow's ends.
    pub(crate) fn datagram(&mut self, stack: &mut impl Stack, flow: u32, back: bool, number: u64) {
        if let Self::Probe(app) = self {
            app.datagram(stack, flow, back, number);
        }
    }

    /// Handles more bytes of a stream at this end point: `total` since the beginning.
    pub(crate) fn received(&mut self, stack: &mut impl Stack, socket: u32, total: u64) {
        match self {
            Self::Rpc(app) => app.received(stack, socket, total),
            Self::Rounds(app) => app.received(stack, socket, total),
            Self::Flows(app) => app.received(stack, socket, total),
            Self::Incast(app) => app.received(stack, socket, total),
            _ => {}
        }
    }

    /// Handles an acknowledgement of bytes that this end point sent.
    pub(crate) fn acknowledged(&mut self, stack: &mut impl Stack, socket: u32) {
        if let Self::Flows(app) = self {
            app.acknowledged(stack, socket);
        }
    }

    /// Handles a datagram that has left its host's transmit path, or was refused there.
    pub(crate) fn left(&mut self, stack: &mut impl Stack, len: u32) {
        if let Self::Udp(app) = self {
            app.left(stack, len);
        }
    }

    /// When one of its connections began, as far as that is known: a flow that arrives does so during the run.
    pub(crate) fn begun(&self, flow: u32) -> Nanos {
        match self {
            Self::Flows(app) => app.begun(flow),
            _ => Nanos::ZERO,
        }
    }

    /// The workload's measurements.
    pub(crate) fn finish(&mut self) -> WorkloadResult {
        match self {
            Self::Away | Self::Udp(_) | Self::Bulk(_) => WorkloadResult::default(),
            Self::Probe(app) => app.finish(),
            Self::Rpc(app) => app.finish(),
            Self::Rounds(app) => app.finish(),
            Self::Flows(app) => app.finish(),
            Self::Incast(app) => app.finish(),
        }
    }
}

/// How long after the run's end answers still count, as in the lab.
pub(crate) const GRACE: Span = Span::millis(500);

/// The sample of a request that was due at `due` and answered at `now`.
fn sample(due: Nanos, now: Nanos) -> Sample {
    Sample { at: due, latency: now.since(due) }
}

/// The result of these samples; a request that was never answered counts as an error.
fn measured(samples: Vec<Sample>, unanswered: Vec<Nanos>) -> WorkloadResult {
    let errors = unanswered.len() as u64;
    WorkloadResult { samples, unanswered, errors, ..WorkloadResult::default() }
}

/// The mean gap between `rate` events a second.
fn gap(rate: u32) -> Span {
    Span::ns(plimsoll_units::NS_PER_SEC / u64::from(rate.max(1)))
}
