//! Passes requests of a vNIC's client to the engine, and the answers back.
//!
//! Why: the thread reads the client's messages, but only the engine classifies packets and opens flow queues.
//! From: rings with one writer and one reader (`rtrb`).
//! Not here: the contents of requests and answers (`shared_memory`, the daemon), and waking (`apart`).
//! Invariant: at most one request is outstanding; a flow queue is closed after the frames that were taken from it.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicRequest};

/// Makes the two ends: the thread's, and the engine's.
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
    /// Number of frames that the engine must have taken before it handles the request.
    after: u64,
}

/// An answer.
pub(super) struct Answered {
    pub(super) answer: VnicAnswer,
    /// The epoch in which the engine answered.
    pub(super) epoch: u32,
}

impl Asking {
    /// Whether a request waits for its answer; until then no other may be asked.
    pub(super) fn is_outstanding(&self) -> bool {
        self.outstanding
    }

    /// Passes a request on; `brought` frames were passed on before it.
    pub(super) fn ask(&mut self, request: VnicRequest, left: QueuesLeft, brought: u64) {
        // Only a close depends on frames: any other request is answered at once, however many frames wait.
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
    /// The next request, once the engine has taken the frames that it depends on.
    pub(super) fn next(&mut self, taken: u64) -> Option<VnicRequest> {
        if self.requests.peek().ok()?.after > taken {
            return None;
        }
        let Asked { request, left, .. } = self.requests.pop().ok()?;
        self.left = left;
        Some(request)
    }

    /// Whether the client had unopened flow queues left at its last request.
    pub(super) fn left(&self) -> QueuesLeft {
        self.left
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn answer(&mut self, answered: Answered) {
        // There is room: at most one request is outstanding.
        drop(self.answers.push(answered));
    }
}
