//! One handle to several threads: questions to all of them, and one answer.
//!
//! Why: the API asks "the engine", however many threads there are.
//! Not here: the threads (`thread`), adding counters up (`dataplane::merge`).
//! Invariant: an answer is that of all threads, or none.

use std::sync::Arc;

use plimsoll_nic::NodeRank;
use tokio::sync::oneshot;

use crate::dataplane::{Snapshot, add_watched};
use crate::thread::{Command, Handle, Stopped};

/// Sends a command to all threads; their answers are put together.
pub(crate) fn distribute(handle: &Handle, command: Command) -> Result<(), Stopped> {
    match command {
        Command::Ping(answer) => gather(handle, Command::Ping, answer, |(), ()| {}),
        Command::Snapshot(answer) => gather(handle, Command::Snapshot, answer, Snapshot::add),
        Command::Watch(answer) => gather(handle, Command::Watch, answer, add_watched),
        Command::Lacking(answer) => gather(handle, Command::Lacking, answer, |all, more| {
            let more: Vec<_> = more.into_iter().filter(|one| !all.contains(one)).collect();
            all.extend(more);
        }),
        Command::Ranks(class, answer) => gather(handle, |one| Command::Ranks(class, one), answer, later),
        Command::Rate(class, rate, answer) => {
            gather(handle, |one| Command::Rate(class.clone(), rate, one), answer, |_, _| {})
        }
        // Without backpressure, which several threads do not have, all answer the same.
        Command::Heavy(answer) => gather(handle, Command::Heavy, answer, |_, _| {}),
        Command::Stop(within) => {
            // A thread that has ended is not told.
            let told = (0..handle.threads())
                .filter(|&thread| handle.send_to(thread, Command::Stop(within)).is_ok())
                .count();
            if told > 0 { Ok(()) } else { Err(Stopped) }
        }
        Command::Loads(answer) => gather(handle, Command::Loads, answer, Vec::extend),
        Command::Migrate(migration, answer) => {
            gather(handle, |one| Command::Migrate(Arc::clone(&migration), one), answer, |(), ()| {})
        }
        // There is no fleet; the others are made for one thread, which they are sent to.
        one @ (Command::Heard(_)
        | Command::Lease(..)
        | Command::Install(..)
        | Command::Attach(..)
        | Command::Halt(..)
        | Command::Resume(_)) => handle.send_to(0, one),
    }
}

/// Where a class's next packet would stand on the thread where that is latest.
fn later(all: &mut Vec<NodeRank>, other: Vec<NodeRank>) {
    for (known, other) in all.iter_mut().zip(&other) {
        known.rank = known.rank.max(other.rank);
    }
    if all.is_empty() {
        *all = other;
    }
}

/// Asks all threads, and answers once all have.
fn gather<T: Send + 'static>(
    handle: &Handle,
    ask: impl Fn(oneshot::Sender<T>) -> Command,
    answer: oneshot::Sender<T>,
    add: impl Fn(&mut T, T) + Send + 'static,
) -> Result<(), Stopped> {
    let runtime = tokio::runtime::Handle::try_current().map_err(|_| Stopped)?;
    let asked = (0..handle.threads()).map(|thread| {
        let (one, answered) = oneshot::channel();
        handle.send_to(thread, ask(one)).map(|()| answered)
    });
    let asked: Vec<_> = asked.collect::<Result<_, Stopped>>()?;
    runtime.spawn(async move {
        let mut all: Option<T> = None;
        for one in asked {
            // A thread that has ended leaves the question without an answer.
            let Ok(one) = one.await else { return };
            match &mut all {
                None => all = Some(one),
                Some(all) => add(all, one),
            }
        }
        if let Some(all) = all {
            // If the asker has gone, its answer is dropped.
            let _ = answer.send(all);
        }
    });
    Ok(())
}
