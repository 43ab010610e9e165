//! An engine together with its recorder.
//!
//! Why: a trace must miss no call that changes the engine. The holder of a [`Recorded`] can read the engine freely, but
//! can change it only through methods that also record.
//! From: the methods of `Nic`, under their names.
//! Not here: encoding (`recorder`).
//! Invariant: without a recorder it behaves like the engine alone, and costs one branch a call.

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

    /// Begins to record. The engine must be new, since a trace begins with an empty engine, and its policy must be made
    /// of `sources`.
    ///
    /// # Panics
    /// When the engine has already been used.
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

    /// Calls [`Nic::open_queue`] and records it.
    ///
    /// # Errors
    /// As for [`Nic::open_queue`].
    pub fn open_queue(&mut self, placement: &Placement) -> Result<QueueId, Refusal> {
        let queue = self.nic.open_queue(placement);
        if let Some(recorder) = &mut self.recorder {
            recorder.open(placement, queue.ok());
        }
        queue
    }

    /// Calls [`Nic::close_queue`] and records it.
    pub fn close_queue(&mut self, queue: QueueId) -> bool {
        let closed = self.nic.close_queue(queue);
        if let Some(recorder) = &mut self.recorder {
            recorder.close(queue, closed);
        }
        closed
    }

    /// Calls [`Nic::post`] and records it.
    ///
    /// # Errors
    /// As for [`Nic::post`].
    #[inline]
    pub fn post(&mut self, queue: QueueId, descriptor: Descriptor) -> Result<(), Refusal> {
        let taken = self.nic.post(queue, descriptor);
        if let Some(recorder) = &mut self.recorder {
            recorder.post(queue, &descriptor, taken.err());
        }
        taken
    }

    /// Calls [`Nic::ring`] and records it.
    #[inline]
    pub fn ring(&mut self, doorbells: &[u16], now: Nanos) {
        if let Some(recorder) = &mut self.recorder {
            recorder.ring(doorbells, now);
        }
        self.nic.ring(doorbells, now);
    }

    /// Calls [`Nic::poll_transmit`] and records it.
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

    /// Calls [`Nic::complete`] and records it.
    #[inline]
    pub fn complete(&mut self, transmit: &Transmit, outcome: Outcome) {
        if let Some(recorder) = &mut self.recorder {
            recorder.complete();
        }
        self.nic.complete(transmit, outcome);
    }

    /// Calls [`Nic::poll_completion`], which changes no decision and is not recorded.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.nic.poll_completion()
    }

    /// Calls [`Nic::install`] with a program that is made of `sources`, and records it.
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

    /// The engine, for a lease. Leases are not recorded: a trace of one of several threads does not replay.
    pub fn leased(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Calls [`Nic::set_descriptors`] and records it.
    pub fn set_descriptors(&mut self, descriptors: u32) {
        if let Some(recorder) = &mut self.recorder {
            recorder.descriptors(descriptors);
        }
        self.nic.set_descriptors(descriptors);
    }

    /// Calls [`Nic::set_pull`] and records it.
    pub fn set_pull(&mut self, pull: Bytes) {
        if let Some(recorder) = &mut self.recorder {
            recorder.pull(pull);
        }
        self.nic.set_pull(pull);
    }
}
