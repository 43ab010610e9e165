//! `plimsoll fleet hosts`, `tenants` and `place`: tables of a fleet.
//!
//! Why: an operator sees at a glance which host is heard, and what it has promised.
//! From: the directory's state.
//! Not here: placement itself (`fleet::place`).
//! Invariant: tables are in the order of names; `place` lists the best host first.

use comfy_table::CellAlignment::{Left, Right};
use plimsoll_fleet::{Seen, State};
use plimsoll_units::BitRate;
use serde_json::json;

use super::plain;
use crate::args::{FleetList, FleetPlace};
use crate::failure::{Failure, print, print_json};
use crate::show::table;

/// Lists hosts.
pub(super) fn hosts(args: &FleetList) -> Result<(), Failure> {
    let state = args.at.state()?;
    if args.json {
        let hosts = state.hosts.iter().map(|(name, host)| {
            let (alive, tenants) = (state.alive.get(name), state.tenants_of(name).map(|(tenant, _)| tenant));
            json!({
                "name": name, "address": host.address, "rate_bps": host.rate.get(), "state": state.seen(name),
                "tenants": tenants.collect::<Vec<_>>(), "promised_bps": promised(&state, name), "wanted": host.policy,
                "agent": alive,
            })
        });
        return print_json(&json!({ "hosts": hosts.collect::<Vec<_>>(), "wrong": state.wrong }));
    }
    let mut table = table(
        &["host", "address", "uplink", "promised", "tenants", "state", "policy", "in force"],
        &[Left, Left, Right, Right, Right, Left, Left, Left],
    );
    for (name, host) in &state.hosts {
        table.add_row([
            name.clone(),
            host.address.to_string(),
            host.rate.to_string(),
            rate(promised(&state, name)),
            state.tenants_of(name).count().to_string(),
            seen(state.seen(name)).to_owned(),
            host.policy.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            in_force(&state, name),
        ]);
    }
    print(&format!("{table}\n"))
}

/// What a host's agent says of it, in a line.
fn in_force(state: &State, host: &str) -> String {
    let Some(said) = state.alive.get(host) else { return "not known".to_owned() };
    let first = |text: &String| plain(text.lines().next().unwrap_or_default());
    let broken = said.broken.iter().next().map(|(tenant, why)| plain(&format!("BROKEN for {tenant}: {why}")));
    let problem = said.error.as_ref().map(|error| format!("NOT UP TO DATE: {}", first(error)));
    problem.or(broken).or(said.health.as_ref().map(first)).unwrap_or_else(|| "yes".to_owned())
}

fn promised(state: &State, host: &str) -> u64 {
    state.tenants_of(host).filter_map(|(_, tenant)| tenant.min).map(BitRate::get).fold(0, u64::saturating_add)
}

fn rate(bits: u64) -> String {
    BitRate::new(bits).map_or_else(|| "-".to_owned(), |rate| rate.to_string())
}

fn seen(seen: Seen) -> &'static str {
    match seen {
        Seen::Alive => "alive",
        Seen::Silent => "SILENT",
        Seen::Freed => "FREED",
    }
}

/// Lists tenants.
pub(super) fn tenants(args: &FleetList) -> Result<(), Failure> {
    let state = args.at.state()?;
    if args.json {
        let tenants = state.tenants.iter().map(|(name, tenant)| {
            let mut object = json!(tenant);
            object["name"] = json!(name);
            object["host_state"] = json!(tenant.host.as_ref().map(|host| state.seen(host)));
            object
        });
        return print_json(&json!({ "tenants": tenants.collect::<Vec<_>>(), "wrong": state.wrong }));
    }
    let mut table = table(
        &["tenant", "host", "network", "hardware address", "addresses", "min", "max", "weight"],
        &[Left, Left, Left, Left, Left, Right, Right, Right],
    );
    for (name, tenant) in &state.tenants {
        let text = |rate: Option<BitRate>| rate.map_or_else(|| "-".to_owned(), |rate| rate.to_string());
        let host = tenant.host.as_ref().map_or_else(
            || "-".to_owned(),
            |host| match state.seen(host) {
                Seen::Alive => host.clone(),
                other => format!("{host} ({})", seen(other)),
            },
        );
        table.add_row([
            name.clone(),
            host,
            tenant.network.clone(),
            tenant.mac.join("\n"),
            if tenant.addresses.is_empty() { "-".to_owned() } else { tenant.addresses.join("\n") },
            text(tenant.min),
            text(tenant.max),
            tenant.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string()),
        ]);
    }
    print(&format!("{table}\n"))
}

/// Lists the hosts that can promise a tenant its minimum; fails when none can.
pub(super) fn place(args: &FleetPlace) -> Result<(), Failure> {
    let fits = plimsoll_fleet::place(&args.at.state()?, &args.tenant, args.min)?;
    let any = fits.iter().any(|fit| fit.why.is_none());
    if args.json {
        print_json(&json!({ "hosts": fits }))?;
    } else if any || args.explain {
        let mut table =
            table(&["host", "uplink", "promised", "left", "fits"], &[Left, Right, Right, Right, Left]);
        for fit in fits.iter().filter(|fit| args.explain || fit.why.is_none()) {
            let fits = fit.why.clone().map_or_else(|| "yes".to_owned(), |why| format!("no: {}", plain(&why)));
            table.add_row([fit.host.clone(), rate(fit.rate), rate(fit.promised), rate(fit.left), fits]);
        }
        print(&format!("{table}\n"))?;
    }
    match any {
        true => Ok(()),
        false if args.explain || args.json => Err(Failure::Said),
        false => Err(Failure::Failed(
            "no host can promise that; `--explain` says why not, host by host".to_owned(),
        )),
    }
}
