//! `plimsoll bench wakeups`: how late the sleeps of an engine's thread end on this machine.
//!
//! Why: a simulation has the scheduling noise of a machine only if that was measured; how even gaps are live follows from it.
//! From: the daemon's own wait; `wake:` of scenarios takes what this prints.
//! Not here: the wait (`plimsoll-daemon`), what a simulation makes of it (`sim`).
//! Invariant: quantiles are of the nearest rank, and no sleep is left out.

use plimsoll_scenario::Lateness;

use crate::args::Wakeups;
use crate::failure::{Failure, print, print_json};

/// Measures, and prints quantiles as a scenario takes them.
pub(crate) fn wakeups(args: &Wakeups) -> Result<(), Failure> {
    let (late, first) = plimsoll_daemon::wakeups(args.count, args.sleep)
        .map_err(|error| Failure::io("sleeps cannot be measured", &error))?;
    let Some(lateness) = Lateness::measured(late) else { return Ok(()) };
    if args.json {
        let quantile = |(name, part): (&str, f64)| (name.to_owned(), lateness.quantile(part).as_u64().into());
        let quantiles: serde_json::Map<_, _> = Lateness::NAMES.into_iter().map(quantile).collect();
        return print_json(&serde_json::json!({ "before_ordinary_threads": first, "wake_ns": quantiles }));
    }
    let standing = if first { "before all ordinary threads" } else { "as an ordinary thread" };
    print(&format!("# {} sleeps of {}, {standing}\nwake: {lateness}\n", args.count, args.sleep))
}
