//! Traffic: what workloads send and measure, in virtual time.
//!
//! Why: the same workloads as the lab's, at rates and sizes that no machine holds.
//! From: `docs/scenarios.md`, "Workloads"; the lab's generators, with their open-loop latency counted from when a
//! request was due.
//! Not here: TCP itself (`tcp`), the world that carries it (`world`).
//! Invariant: a workload acts only when one of its timers, datagrams or streams says so; it sends nothing new from its
//! stop on.

mod bulk;
mod probe;
mod rounds;
mod rpc;
mod sizes;
mod udp;

use plimsoll_scenario::{Sample, WorkloadResult};
use plimsoll_units::{Nanos, Span};

pub(crate) use bulk::{Bulk, Rhythm};
pub(crate) use probe::Probe;
pub(crate) use rounds::Rounds;
pub(crate) use rpc::Rpc;
pub(crate) use sizes::Sizes;
pub(crate) use udp::Udp;

use crate::agenda::SourceId;
use crate::world::World;

/// One workload.
#[derive(Debug, Default)]
pub(crate) enum App {
    /// It is acting at this moment, taken out of the world for the while.
    #[default]
    Away,
    /// Datagrams that nobody answers.
    Udp(Box<Udp>),
    /// Datagrams that come back.
    Probe(Box<Probe>),
    /// Streams that always have something to send, or by turns.
    Bulk(Box<Bulk>),
    /// Requests and responses.
    Rpc(Box<Rpc>),
    /// Rounds of blocks.
    Rounds(Box<Rounds>),
}

/// What every workload knows of itself.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its first flow, or connection, and how many there are; a connection has two end points, its client's first.
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) start: Nanos,
    pub(crate) stop: Nanos,
    /// Its first timer's source; timers follow each other.
    pub(crate) timer: SourceId,
}

impl App {
    /// One of its timers has fired; the first one fires at the start.
    pub(crate) fn timeout(&mut self, world: &mut World, timer: u32) {
        match self {
            Self::Away => {}
            Self::Udp(app) => app.timeout(world),
            Self::Probe(app) => app.timeout(world),
            Self::Bulk(app) => app.timeout(world, timer),
            Self::Rpc(app) => app.timeout(world),
            Self::Rounds(app) => app.timeout(world, timer),
        }
    }

    /// A datagram has arrived at one of a flow's ends.
    pub(crate) fn datagram(&mut self, world: &mut World, flow: u32, back: bool, number: u64) {
        if let Self::Probe(app) = self {
            app.datagram(world, flow, back, number);
        }
    }

    /// More of a stream can be read at this end point: so many bytes since the beginning.
    pub(crate) fn received(&mut self, world: &mut World, socket: u32, total: u64) {
        match self {
            Self::Rpc(app) => app.received(world, socket, total),
            Self::Rounds(app) => app.received(world, socket, total),
            _ => {}
        }
    }

    /// Something that this end point sent has been acknowledged.
    pub(crate) fn acknowledged(&mut self, world: &mut World, socket: u32) {
        if let Self::Bulk(app) = self {
            app.acknowledged(world, socket);
        }
    }

    /// A datagram has left its host's transmit path, or was refused there.
    pub(crate) fn left(&mut self, world: &mut World, len: u32) {
        if let Self::Udp(app) = self {
            app.left(world, len);
        }
    }

    /// What it measured.
    pub(crate) fn finish(&mut self) -> WorkloadResult {
        match self {
            Self::Away | Self::Udp(_) | Self::Bulk(_) => WorkloadResult::default(),
            Self::Probe(app) => app.finish(),
            Self::Rpc(app) => app.finish(),
            Self::Rounds(app) => app.finish(),
        }
    }
}

/// Answers to what was due at `due` and came at `now`.
fn sample(due: Nanos, now: Nanos) -> Sample {
    Sample { at: due, latency: now.since(due) }
}

/// What was never answered is an error, too.
fn measured(samples: Vec<Sample>, unanswered: Vec<Nanos>) -> WorkloadResult {
    let errors = unanswered.len() as u64;
    WorkloadResult { samples, unanswered, errors, ..WorkloadResult::default() }
}

/// The mean gap of so many a second.
fn gap(rate: u32) -> Span {
    Span::ns(plimsoll_units::NS_PER_SEC / u64::from(rate.max(1)))
}
