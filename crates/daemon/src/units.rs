//! Threads that are coprocessors for tenants' programs.
//!
//! Why: what a request takes would keep the engine's thread from all other packets.
//! From: FairNIC §3.4: units with a fixed capacity beside the cores.
//! Not here: whose request is next (`dataplane::units`), the operations themselves (`plimsoll-offload`).
//! Invariant: a unit serves requests in the order in which it gets them, and gives each one back; a unit at rest is not woken.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{Builder, Thread};

use plimsoll_offload::{Request, Unit, Worker};
use plimsoll_smartnic::queue::INSIDE;
use rtrb::{Consumer, Producer, RingBuffer};

/// A request, and for whom it is.
#[derive(Debug)]
pub(crate) struct Job<T> {
    pub(crate) of: T,
    pub(crate) request: Request,
    pub(crate) result: u32,
}

/// One unit's thread, as the engine sees it.
#[derive(Debug)]
pub(crate) struct UnitThread<T> {
    ask: Producer<Job<T>>,
    done: Consumer<Job<T>>,
    state: Arc<State>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the thread waits for a job.
    waits: AtomicBool,
    ended: AtomicBool,
}

impl<T: Send + 'static> UnitThread<T> {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub(crate) fn start(unit: Unit) -> io::Result<Self> {
        let (ask, asked) = RingBuffer::new(INSIDE);
        let (answer, done) = RingBuffer::new(INSIDE);
        let state = Arc::new(State::default());
        let told = Arc::clone(&state);
        let name = format!("plimsoll-{}", unit.name());
        let thread = Builder::new().name(name).spawn(move || serve(asked, answer, &told))?.thread().clone();
        Ok(Self { ask, done, state, thread })
    }

    /// Hands a job over; gives it back where the unit has no room.
    pub(crate) fn ask(&mut self, job: Job<T>) -> Result<(), Job<T>> {
        self.ask.push(job).map_err(|rtrb::PushError::Full(job)| job)?;
        // Either this sees that the thread waits, or the thread sees the job.
        fence(Ordering::SeqCst);
        if self.state.waits.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
        Ok(())
    }

    /// The next job that is done.
    pub(crate) fn done(&mut self) -> Option<Job<T>> {
        self.done.pop().ok()
    }
}

impl<T> Drop for UnitThread<T> {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Serves until the engine's end is gone.
fn serve<T>(mut asked: Consumer<Job<T>>, mut answer: Producer<Job<T>>, state: &State) {
    let mut worker = Worker::default();
    while !state.ended.load(Ordering::SeqCst) {
        if let Ok(mut job) = asked.pop() {
            // A fault of a library's must not end the unit for all.
            let answered = catch_unwind(AssertUnwindSafe(|| worker.answer(&mut job.request)));
            job.result = answered.unwrap_or_else(|_| {
                worker = Worker::default();
                Request::FAILED
            });
            // It has room for as many as may be asked.
            let _ = answer.push(job);
            continue;
        }
        state.waits.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if asked.is_empty() && !state.ended.load(Ordering::SeqCst) {
            std::thread::park();
        }
        state.waits.store(false, Ordering::Relaxed);
    }
}
