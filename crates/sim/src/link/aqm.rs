//! Active queue management: a link's queue drops or marks packets before it is full, so that it stays short.
//!
//! Why: a full queue costs every flow its delay; switches and access links have such algorithms.
//! From: RED (Floyd and Jacobson, 1993; RFC 2309), CoDel (RFC 8289, the engine's own code), PIE (RFC 8033).
//! Not here: the queue (`link`), marks at a fixed length (`LinkSpec::ecn`).
//! Invariant: a packet is decided about once, when it comes, in the order of arrival.
//!
//! The link knows when a packet will be sent as soon as it comes. So CoDel, which decides when a packet leaves its queue, is
//! asked here as of that later moment: packets are asked about in the same order, and neither sender nor receiver can learn of
//! a drop or a mark before. Only the number of bytes that will then wait behind the packet is not known; those that wait
//! before it stand for them.

mod pie;
mod red;

use plimsoll_queues::codel::{self, Codel, CodelTimes, Leaving, Markable};
use plimsoll_scenario::Aqm;
use plimsoll_units::{BitRate, Nanos};

use crate::chance::Chance;
use pie::Pie;
use red::Red;

/// A packet that comes to the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    pub(super) now: Nanos,
    /// When the wire is free for it.
    pub(super) free: Nanos,
    /// Bytes in the queue before it, the packet being sent included.
    pub(super) backlog: u64,
    pub(super) len: u32,
    /// Whether it may be marked in place of being dropped.
    pub(super) ecn: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Mark,
    Drop,
}

/// The management of one queue.
#[derive(Clone, Debug)]
pub(super) enum Manager {
    Red(Red, Box<Chance>),
    Codel(CodelTimes, Codel),
    Pie(Pie, Box<Chance>),
}

impl Manager {
    pub(super) fn new(spec: Aqm, rate: Option<BitRate>, chance: Chance) -> Self {
        match spec {
            Aqm::Red(spec) => Self::Red(Red::new(spec, rate), Box::new(chance)),
            Aqm::Codel { target, interval } => Self::Codel(CodelTimes { target, interval }, Codel::default()),
            Aqm::Pie { target, update } => Self::Pie(Pie::new(target, update), Box::new(chance)),
        }
    }

    /// Decides about a packet.
    pub(super) fn decide(&mut self, packet: &Arriving) -> Verdict {
        match self {
            Self::Red(red, chance) => red.decide(packet, || chance.unit()),
            Self::Pie(pie, chance) => pie.decide(packet, || chance.unit()),
            Self::Codel(times, codel) => {
                let leaving = Leaving {
                    waited: packet.free.since(packet.now),
                    backlogged: packet.backlog > u64::from(packet.len),
                    ecn: if packet.ecn { Markable::Classic } else { Markable::No },
                };
                match codel.decide(times, leaving, packet.free) {
                    codel::Verdict::Pass => Verdict::Pass,
                    codel::Verdict::Mark => Verdict::Mark,
                    codel::Verdict::Drop => Verdict::Drop,
                }
            }
        }
    }
}
