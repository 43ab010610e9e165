//! The engine, with a recorder beside it.
//!
//! Why: everything that changes an engine passes here, so nothing can be missing from a trace: whoever holds a
//! [`Recorded`] reads the engine freely, but has no other way to tell it something.
//! From: the methods of `Nic`, under their names.
//! Not here: encoding (`recorder`).
//! Invariant: without a recorder it is the engine, for the price of one branch a call.

use core::ops::Deref;

use plimsoll_nic::{Completion, Descriptor, EngineStats, Nic, Outcome, QueueId, Refusal, Transmit};
use plimsoll_policy::{Placement, Program, Sources};
use plimsoll_units::{Bytes, Nanos};

use crate::recorder::Recorder;

/// An engine that may be recorded.
#[derive(Debug)]
pub struct Recorded {
    nic: Nic,
    recorder: Option<Box<Recorder>>,
}

impl Deref for Recorded {
    type Target = Nic;

    fn deref(&self) -> &Nic {
        &self.nic
    }
}

impl Recorded {
    /// An engine, not recorded.
    #[must_use]
    pub fn new(nic: Nic) -> Self {
        Self { nic, recorder: None }
    }

    /// Begins to record. The engine must be new, and its policy made of `sources`: a trace begins with an empty engine.
    ///
    /// # Panics
    /// When the engine has been used.
    pub fn record(&mut self, mut recorder: Recorder, sources: &Sources) {
        assert_eq!(
            self.nic.stats(),
            EngineStats::default(),
            "an engine is recorded from its first packet on"
        );
        recorder.start(self.nic.config(), sources);
        self.recorder = Some(Box::new(recorder));
    }

    /// Whether a recording is going on.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.is_live())
    }

    /// As [`Nic::open_queue`].
    ///
    /// # Errors
    /// As there.
    pub fn open_queue(&mut self, placement: &Placement) -> Result<QueueId, Refusal> {
        let queue = self.nic.open_queue(placement);
        if let Some(recorder) = &mut self.recorder {
            recorder.open(placement, queue.ok());
        }
        queue
    }

    /// As [`Nic::close_queue`].
    pub fn close_queue(&mut self, queue: QueueId) -> bool {
        let closed = self.nic.close_queue(queue);
        if let Some(recorder) = &mut self.recorder {
            recorder.close(queue, closed);
        }
        closed
    }

    /// As [`Nic::post`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn post(&mut self, queue: QueueId, descriptor: Descriptor) -> Result<(), Refusal> {
        let taken = self.nic.post(queue, descriptor);
        if let Some(recorder) = &mut self.recorder {
            recorder.post(queue, &descriptor, taken.err());
        }
        taken
    }

    /// As [`Nic::ring`].
    #[inline]
    pub fn ring(&mut self, doorbells: &[u16], now: Nanos) {
        if let Some(recorder) = &mut self.recorder {
            recorder.ring(doorbells, now);
        }
        self.nic.ring(doorbells, now);
    }

    /// As [`Nic::poll_transmit`].
    #[inline]
    pub fn poll_transmit(&mut self, now: Nanos, out: &mut Vec<Transmit>) {
        let Some(recorder) = &mut self.recorder else { return self.nic.poll_transmit(now, out) };
        let (before, room) = (out.len(), out.capacity() - out.len());
        let due = self.nic.poll_timeout().is_some_and(|due| due <= now);
        self.nic.poll_transmit(now, out);
        if due || out.len() > before {
            recorder.poll(now, room, &out[before..]);
        } else {
            recorder.idle(now, room);
        }
    }

    /// As [`Nic::complete`].
    #[inline]
    pub fn complete(&mut self, transmit: &Transmit, outcome: Outcome) {
        if let Some(recorder) = &mut self.recorder {
            recorder.complete();
        }
        self.nic.complete(transmit, outcome);
    }

    /// As [`Nic::poll_completion`].
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.nic.poll_completion()
    }

    /// As [`Nic::install`], of a program that is made of `sources`.
    pub fn install(
        &mut self,
        program: &Program,
        sources: &Sources,
        place: &mut dyn FnMut(QueueId) -> Placement,
        now: Nanos,
    ) {
        let Some(recorder) = &mut self.recorder else { return self.nic.install(program, place, now) };
        let mut places = Vec::new();
        let mut noted = |queue| {
            let placement = place(queue);
            places.push((queue, placement.clone()));
            placement
        };
        self.nic.install(program, &mut noted, now);
        recorder.install(now, sources, &places);
    }

    /// As [`Nic::set_descriptors`].
    pub fn set_descriptors(&mut self, descriptors: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.descriptors(descriptors);
        }
        self.nic.set_descriptors(descriptors);
    }

    /// As [`Nic::set_pull`].
    pub fn set_pull(&mut self, pull: Bytes) {
        if let Some(recorder) = &mut self.recorder {
            recorder.pull(pull);
        }
        self.nic.set_pull(pull);
    }
}
