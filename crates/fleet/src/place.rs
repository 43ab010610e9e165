//! Placement: which hosts can promise a tenant its minimum.
//!
//! Why: a minimum is a promise, and a host's uplink can promise its rate once.
//! From: the sum of the minima of the tenants placed there, beside the uplink's rate.
//! Not here: placing (`change`).
//! Invariant: the order is the best first: of hosts that fit, the one with the most left.

use plimsoll_units::BitRate;
use serde::Serialize;

use crate::change::{Refusal, the_fleet, unknown};
use crate::state::{Seen, State};

/// Whether a host can promise a minimum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    /// The host.
    pub host: String,
    /// The rate of its uplink, in bits per second.
    pub rate: u64,
    /// What it has promised to other tenants.
    pub promised: u64,
    /// What would be left.
    pub left: u64,
    /// Why it cannot; none: it can.
    pub why: Option<String>,
}

/// How each host fits a tenant, known or new, with this minimum; without one the tenant's own.
///
/// # Errors
/// [`Refusal`]: a tenant without a minimum that is not in the fleet.
pub fn place(state: &State, tenant: &str, min: Option<BitRate>) -> Result<Vec<Fit>, Refusal> {
    the_fleet(state)?;
    let known = state.tenants.get(tenant);
    if known.is_none() && min.is_none() {
        return Err(Refusal(format!(
            "{}, or state its `--min`",
            unknown("tenant", tenant, state.tenants.keys())
        )));
    }
    let min = min.or(known.and_then(|known| known.min)).map_or(0, BitRate::get);
    let max = known.and_then(|known| known.max).map_or(u64::MAX, BitRate::get);
    let mut fits: Vec<Fit> = state
        .hosts
        .iter()
        .map(|(host, object)| {
            let others = state.tenants_of(host).filter(|(name, _)| *name != tenant);
            let promised = others
                .filter_map(|(_, other)| other.min)
                .fold(0, |sum: u64, min| sum.saturating_add(min.get()));
            let (rate, wanted) = (object.rate.get(), promised.saturating_add(min));
            let show =
                |rate: u64| BitRate::new(rate).map_or_else(|| "0bps".to_owned(), |rate| rate.to_string());
            let why = if state.seen(host) != Seen::Alive {
                Some("its agent is not heard".to_owned())
            } else if let Some(error) = state.alive.get(host).and_then(|alive| alive.error.as_ref()) {
                Some(format!("it is not up to date: {}", error.lines().next().unwrap_or_default()))
            } else if min > max {
                Some(format!("{} is more than the tenant's `max` of {}", show(min), show(max)))
            } else if wanted > rate {
                Some(format!(
                    "it has promised {} of {}: {} are left, and {} are wanted",
                    show(promised),
                    show(rate),
                    show(rate.saturating_sub(promised)),
                    show(min)
                ))
            } else {
                None
            };
            Fit { host: host.clone(), rate, promised, left: rate.saturating_sub(wanted), why }
        })
        .collect();
    // Stable: hosts with as much left stay in the order of their names.
    fits.sort_by_key(|fit| (fit.why.is_some(), std::cmp::Reverse(fit.left)));
    Ok(fits)
}
