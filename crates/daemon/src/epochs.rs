//! Ends calls of programs that take too long: a thread begins epochs while programs run.
//!
//! Why: the engine's thread cannot end a call that it is in.
//! Not here: how much time a call may take (`plimsoll-offload`).
//! Invariant: while a call lasts, epochs begin; an engine at rest is not woken, and neither is this thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use plimsoll_offload::Runtime;
use plimsoll_ports::realtime;

/// Time between epochs: a half of what a call may take.
const PERIOD: Duration = Duration::from_micros(250);

/// Epochs without a call before the thread waits for the next call.
const QUIET: u32 = 40;

/// Epochs of a runtime.
#[derive(Debug)]
pub struct Epochs {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Calls that are under way, on all threads.
    running: AtomicU32,
    /// Whether one has begun since the last epoch.
    begun: AtomicBool,
    parked: AtomicBool,
    ended: AtomicBool,
}

/// A call that is under way.
#[derive(Debug)]
pub(crate) struct Running<'a>(&'a Shared);

impl Epochs {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn of(runtime: Runtime) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let thread = Builder::new().name("plimsoll-epochs".to_owned()).spawn(move || told.keep(&runtime))?;
        Ok(Self { shared, thread })
    }

    /// A call begins; it ends when the answer is dropped.
    #[inline]
    pub(crate) fn run(&self) -> Running<'_> {
        self.shared.begun.store(true, Ordering::Relaxed);
        // Either this sees that the thread waits, or the thread sees this.
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.parked.load(Ordering::SeqCst) {
            self.thread.thread().unpark();
        }
        Running(&self.shared)
    }
}

impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Release);
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
    }
}

impl Shared {
    fn keep(&self, runtime: &Runtime) {
        // The engine's thread may go before all ordinary ones, and with it a program that is to be ended.
        if let Err(error) = realtime::take_above() {
            eprintln!(
                "plimsoll: the thread that ends programs' calls may not go before the engine's ({error}): on a host with one core, a call \
                 that never ends keeps it for seconds. Run as root, or with `LimitRTPRIO=2` in the unit"
            );
        }
        let mut quiet = 0;
        while !self.ended.load(Ordering::SeqCst) {
            let busy = self.begun.swap(false, Ordering::Relaxed) || self.running.load(Ordering::Acquire) > 0;
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet > QUIET {
                self.parked.store(true, Ordering::SeqCst);
                if self.running.load(Ordering::SeqCst) == 0 && !self.ended.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.parked.store(false, Ordering::SeqCst);
                quiet = 0;
            }
            std::thread::sleep(PERIOD);
            runtime.advance();
        }
    }
}
