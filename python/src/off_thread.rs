//! Work beside the interpreter.
//!
//! Why: other Python threads go on, Ctrl-C ends a run, and a hostile scenario ends with an exception.
//! From: a thread for the work, while the caller's asks for signals between short waits.
//! Invariant: the caller returns within `WAIT` of a signal, or of the work's end; a panic is an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::refusal::Refusal;

const WAIT: Duration = Duration::from_millis(50);

/// A scenario may be nested as deeply as its reader allows, whatever stack the interpreter's thread has.
const STACK: usize = 64 << 20;

/// Does `work` on a thread of its own. A signal whose handler raises, as Ctrl-C does, sets `work`'s flag: the work then ends
/// in its own time, and the caller at once.
pub(crate) fn off_thread<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T, Refusal> + Send + 'static,
) -> PyResult<T> {
    let (tell, told) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let run = move || {
        let done = catch_unwind(AssertUnwindSafe(|| work(&flag)));
        // The caller may have been interrupted.
        drop(tell.send(done.unwrap_or(Err(Refusal::Panicked))));
    };
    thread::Builder::new().name("plimsoll".to_owned()).stack_size(STACK).spawn(run)?;
    py.detach(move || {
        loop {
            match told.recv_timeout(WAIT) {
                Ok(done) => return done.map_err(PyErr::from),
                Err(RecvTimeoutError::Disconnected) => return Err(Refusal::Panicked.into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(raised) = Python::attach(|py| py.check_signals()) {
                stop.store(true, Ordering::Relaxed);
                return Err(raised);
            }
        }
    })
}
