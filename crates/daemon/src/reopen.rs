//! Ports that are not there, tried again until they are.
//!
//! Why: containers come and go; a missing one must not delay the others or the daemon's start.
//! From: `docs/operations.md`, "When something fails".
//! Not here: how a port is opened (`open`), and what happens to packets meanwhile (`dataplane`).
//! Invariant: the engine is asked once a round, however many ports are missing; a port that is no longer in the policy is
//! no longer tried.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::control::{Control, Reopened};
use crate::dataplane::{Lost, Whose};
use crate::open::close;

/// Between attempts to open a port.
const ROUND: Duration = Duration::from_secs(1);

/// A port to be opened: a tenant's, or the uplink.
#[derive(Debug)]
pub(crate) struct Away {
    /// Its owner.
    pub(crate) whose: Whose,
    /// The message for the log once it is open.
    pub(crate) there: &'static str,
    /// What the log said last of why it cannot be opened.
    pub(crate) why: Option<String>,
}

/// Tries to open the ports that it is told of, until each is open or no longer in the policy.
pub(crate) async fn reopen(control: Arc<Control>, mut told: mpsc::UnboundedReceiver<Away>) {
    let mut away: Vec<Away> = Vec::new();
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            one = told.recv() => match one {
                Some(one) => {
                    away.retain(|other| other.whose != one.whose);
                    away.push(one);
                }
                None => return,
            },
            _ = rounds.tick(), if !away.is_empty() => away = try_all(&control, away).await,
        }
    }
}

/// Tries each port once, and answers those that are still missing.
async fn try_all(control: &Control, away: Vec<Away>) -> Vec<Away> {
    // An engine that has ended needs no ports.
    let lacking: HashSet<Whose> = control.lacking().await.into_iter().collect();
    let mut still = Vec::new();
    for mut one in away.into_iter().filter(|one| lacking.contains(&one.whose)) {
        match control.reopen(&one.whose).await {
            Reopened::NotYet(why) => {
                if let Some(why) = why.as_ref().filter(|_| why != one.why) {
                    eprintln!("plimsoll: {why}; it is tried again");
                }
                one.why = why.or(one.why);
                still.push(one);
            }
            Reopened::Opened => eprintln!("plimsoll: {}: {}", one.whose, one.there),
            Reopened::Unneeded => {}
        }
    }
    still
}

/// Logs that a port is lost, closes it, and answers the port to be opened again.
pub(crate) fn lose(lost: Lost) -> Away {
    let whose = lost.whose;
    let (port, has_clients) = (lost.port.name(), lost.port.has_clients());
    if has_clients {
        eprintln!("plimsoll: {whose}: the client on {port} has left");
    } else {
        eprintln!("plimsoll: {whose}: {port} has disappeared; others go on, and it is tried again");
    }
    close(vec![*lost.port], ());
    Away {
        whose,
        why: None,
        there: if has_clients { "the next client can come" } else { "the port is back" },
    }
}
