//! Requests of a vNIC's client, passed to the engine, and its answers.
//!
//! Why: the thread reads the client's messages, but only the engine classifies and opens flow queues.
//! From: rings between one writer and one reader (`rtrb`).
//! Not here: what is asked and answered (`shared_memory`, the daemon), and who wakes whom (`apart`).
//! Invariant: one request is outstanding at most; a flow queue is closed after the frames that were taken from it.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicRequest};

/// The two ends: the thread's, and the engine's.
pub(super) fn requests() -> (Asking, Answering) {
    let (requests, requests_out) = RingBuffer::new(1);
    let (answers, answers_out) = RingBuffer::new(1);
    let asking = Asking { requests, answers: answers_out, outstanding: false };
    (asking, Answering { requests: requests_out, answers, left: QueuesLeft::default() })
}

/// The thread's end.
pub(super) struct Asking {
    requests: Producer<Asked>,
    answers: Consumer<Answered>,
    outstanding: bool,
}

/// The engine's end.
pub(super) struct Answering {
    requests: Consumer<Asked>,
    answers: Producer<Answered>,
    left: QueuesLeft,
}

struct Asked {
    request: VnicRequest,
    left: QueuesLeft,
    /// Frames that the engine takes first.
    after: u64,
}

/// An answer.
pub(super) struct Answered {
    pub(super) answer: VnicAnswer,
    /// The epoch in which it was given.
    pub(super) epoch: u32,
}

impl Asking {
    /// Whether a request waits for its answer: until then there is no room for another.
    pub(super) fn is_outstanding(&self) -> bool {
        self.outstanding
    }

    /// Passes a request on; `brought` frames were passed on before it.
    pub(super) fn ask(&mut self, request: VnicRequest, left: QueuesLeft, brought: u64) {
        // Only a close refers to frames: any other is answered at once, however many frames wait.
        let after = if matches!(request, VnicRequest::Close(_)) { brought } else { 0 };
        self.outstanding = self.requests.push(Asked { request, left, after }).is_ok();
    }

    pub(super) fn has_answer(&self) -> bool {
        !self.answers.is_empty()
    }

    pub(super) fn take_answer(&mut self) -> Option<Answered> {
        let answered = self.answers.pop().ok()?;
        self.outstanding = false;
        Some(answered)
    }
}

impl Answering {
    /// The next request, once `taken` frames include those that it refers to.
    pub(super) fn next(&mut self, taken: u64) -> Option<VnicRequest> {
        if self.requests.peek().ok()?.after > taken {
            return None;
        }
        let Asked { request, left, .. } = self.requests.pop().ok()?;
        self.left = left;
        Some(request)
    }

    /// Flow queues that the client had left with the last request.
    pub(super) fn left(&self) -> QueuesLeft {
        self.left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn answer(&mut self, answered: Answered) {
        // There is room: the next request comes after this answer.
        drop(self.answers.push(answered));
    }
}
