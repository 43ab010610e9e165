//! Backpressure: it counts the flows of tenants that the file has.
//!
//! Why: a name that is misspelt would leave a tenant unwatched.
//! From: `docs/policy.md`, "backpressure".
//! Not here: counting (`queues`).
//! Invariant: the tenants are in the order of the file, each once.

use plimsoll_document::nearest;
use plimsoll_units::PacketRate;

use crate::config::Backpressure;
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::{BackpressureEntry, TenantEntry};

/// From this rate on a flow is a heavy hitter, unless stated: 99 % of flows stay below it with 1,250 bytes a packet
/// (MIMIC §II: 100 Mb/s).
const HEAVY: u64 = 10_000;

pub(crate) fn judge(
    entry: &BackpressureEntry,
    tenants: &[TenantEntry],
    problems: &mut Problems,
) -> Backpressure {
    let known = || tenants.iter().map(|tenant| tenant.name.value.as_str());
    for name in entry.tenants.iter().flatten() {
        if known().all(|tenant| tenant != name.value) {
            let help = match nearest(&name.value, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "write one of the file's `tenants`".to_owned(),
            };
            let message = format!("the file has no tenant `{}`", name.value);
            problems
                .push(Problem::error(Law::UnknownName, name.at, message).label("no tenant here").help(help));
        }
    }
    let chosen = |tenant: &&str| {
        entry.tenants.as_ref().is_none_or(|names| names.iter().any(|name| name.value == **tenant))
    };
    Backpressure {
        tenants: known().filter(chosen).map(str::to_owned).collect(),
        heavy: entry.heavy.or(PacketRate::new(HEAVY)).unwrap_or_else(|| unreachable!("not zero")),
    }
}
