//! `plimsoll fleet rotate-key`: another key for all hosts.
//!
//! Why: the three steps of a change must each be in force at every host before the next one.
//! From: `docs/overlay.md`, "Change a key".
//! Not here: what the steps are (`fleet::next_to_key`), and what hosts do with keys (`control`).
//! Invariant: a step is made only while all hosts have the one before in force.

use std::thread;
use std::time::{Duration, Instant};

use plimsoll_fleet::{FleetObject, State, Transaction, behind, next_to_key};

use super::{after, change, check_hosts};
use crate::args::{At, FleetRotate};
use crate::failure::{Failure, print};

/// How long hosts have to begin sessions with a key that is in force, before the other one goes.
const SESSIONS: Duration = Duration::from_secs(3);

/// Changes the fleet's key.
pub(super) fn rotate(args: &FleetRotate) -> Result<(), Failure> {
    let (key, timeout) = (args.key.display().to_string(), args.timeout.to_std());
    in_force(&args.at, timeout)?;
    loop {
        let mut words = None;
        let state = change(&args.at, |state| {
            let step = step(state, &key)?;
            words = step.as_ref().map(|(_, words)| *words);
            Ok(step.map(|(made, _)| made).unwrap_or_default())
        })?;
        if let Some(words) = words {
            in_force(&args.at, timeout)?;
            print(&format!("{words}\n"))?;
        }
        if next(&state, &key)?.is_none() {
            return print(&format!("all hosts have the key {key}\n"));
        }
        thread::sleep(SESSIONS);
    }
}

/// The fleet's settings after the next step to a key, and what it does.
fn next(state: &State, key: &str) -> Result<Option<(FleetObject, &'static str)>, Failure> {
    let fleet = state.fleet.as_ref();
    let fleet = fleet.ok_or_else(|| Failure::Wrong("the directory has no fleet".to_owned()))?;
    Ok(next_to_key(fleet, key)?)
}

/// That step, checked for all hosts.
fn step(state: &State, key: &str) -> Result<Option<(Transaction, &'static str)>, Failure> {
    let Some((next, words)) = next(state, key)? else { return Ok(None) };
    let made = plimsoll_fleet::update(state, &next)?;
    let state = after(state, &made);
    check_hosts(&state, state.hosts.keys().map(String::as_str))?;
    Ok(Some((made, words)))
}

/// Waits until all hosts have the fleet's settings in force.
fn in_force(at: &At, timeout: Duration) -> Result<(), Failure> {
    let mut directory = at.open()?;
    let begun = Instant::now();
    loop {
        let behind = behind(&State::new(&directory.read()?));
        if behind.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= timeout {
            let hosts: Vec<String> =
                behind.iter().map(|(host, why)| format!("  host {host}: {}", super::plain(why))).collect();
            return Err(Failure::Failed(format!(
                "not all hosts have the fleet's settings in force:\n{}\nHosts keep the keys that they have. Mend this, or `plimsoll fleet \
                 leave` a host that is gone, and give the command again",
                hosts.join("\n")
            )));
        }
        thread::sleep(Duration::from_millis(200));
    }
}
