//! Metadata: which ports fill `priority`, `cgroup`, `user`, `app` and `core`, and what the operator states of a tenant.
//!
//! Why: a match on a field that no port fills takes no packet, and a client must not reach another tenant's class by what it
//! says of its packets.
//! From: Loom §3, "Traffic Classification" (the host tags packets with metadata), and §4.4 (a guest's values are checked
//! against the guest's own subtree).
//! Not here: how a client says it (`plimsoll-vnic`, `ports`), and whether a packet matches (`program`).
//! Invariant: a rule or limit of the program that looks at metadata names its tenants, whose ports are all vNICs. What
//! the operator states is constant, so the program no longer looks at it.

use std::fmt::Display;

use super::graph::{Graph, TenantDraft, TenantIx, tenant_id};
use crate::program::Match;

/// The reason that no packet has what a match asks for.
#[derive(Clone, Debug)]
pub(crate) struct Unfilled {
    pub why: String,
    pub help: String,
}

/// A match without the conditions on metadata that the operator's words decide: one match for each tenant where that depends
/// on the tenant, or why no packet can match.
pub(crate) fn settle(graph: &Graph, matches: Match) -> Result<Vec<Match>, Unfilled> {
    let Some(field) = first_field(&matches) else { return Ok(vec![matches]) };
    if !matches.tenant.is_empty() {
        let each = matches.tenant.iter().map(|tenant| settle_for(graph, tenant.0 as usize, &matches));
        return each.collect();
    }
    // What a client says counts in matches that name its tenant only.
    let stated = (0..graph.tenants.len()).filter_map(|tenant| settle_for(graph, tenant, &matches).ok());
    let stated: Vec<Match> = stated.filter(|settled| !looks_at(settled)).collect();
    if stated.is_empty() { Err(without_tenant(graph, field)) } else { Ok(stated) }
}

/// Joins the matches of several tenants to one, which a limit has, if they ask for the same but for the tenant.
pub(crate) fn joined(settled: Vec<Match>) -> Result<Match, Unfilled> {
    let mut settled = settled.into_iter();
    let Some(mut all) = settled.next() else { return Ok(Match::default()) };
    for one in settled {
        if (Match { tenant: all.tenant.clone(), ..one.clone() }) != all {
            return Err(of_one_tenant());
        }
        all.tenant.extend(one.tenant);
    }
    Ok(all)
}

/// A limit has one match: it cannot hold several tenants of which it asks for different things.
fn of_one_tenant() -> Unfilled {
    let why = "several tenants state what it asks for, and a limit's match on metadata is for one".to_owned();
    let help = "name the tenant; to hold several together, write `via` at each and leave the field out";
    Unfilled { why, help: help.to_owned() }
}

/// The match for one tenant's packets.
fn settle_for(graph: &Graph, tenant: TenantIx, matches: &Match) -> Result<Match, Unfilled> {
    let draft = &graph.tenants[tenant];
    let mut settled = Match { tenant: vec![tenant_id(tenant)], ..matches.clone() };
    decide(&mut settled.cgroup, draft.known.cgroup, "cgroup", &draft.name)?;
    decide(&mut settled.user, draft.known.user, "user", &draft.name)?;
    match first_field(&settled) {
        Some(field) if !draft.known.from_client => Err(no_port(field, draft)),
        _ => Ok(settled),
    }
}

/// Drops the condition that a stated value meets.
fn decide<T: PartialEq + Display>(
    wanted: &mut Vec<T>,
    stated: Option<T>,
    field: &str,
    tenant: &str,
) -> Result<(), Unfilled> {
    let Some(stated) = stated.filter(|_| !wanted.is_empty()) else { return Ok(()) };
    if !wanted.contains(&stated) {
        let why = format!("the `{field}` of tenant `{tenant}` is {stated}");
        let help = format!("write `{field}: {stated}`, or state another `{field}` at the tenant");
        return Err(Unfilled { why, help });
    }
    wanted.clear();
    Ok(())
}

/// Whether a match looks at metadata.
pub(crate) fn looks_at(matches: &Match) -> bool {
    first_field(matches).is_some()
}

/// The first field of metadata that a match looks at.
fn first_field(matches: &Match) -> Option<&'static str> {
    let fields = [
        ("priority", matches.priority.is_empty()),
        ("cgroup", matches.cgroup.is_empty()),
        ("user", matches.user.is_empty()),
        ("app", matches.app.is_empty()),
        ("core", matches.core.is_empty()),
    ];
    fields.into_iter().find(|(_, unasked)| !unasked).map(|(field, _)| field)
}

fn no_port(field: &str, draft: &TenantDraft) -> Unfilled {
    let tenant = &draft.name;
    let why = format!("the port of tenant `{tenant}` fills no `{field}`");
    if draft.known.in_memory {
        let help = "match on other fields: a packet of a scenario, or of a port in memory, has headers only";
        return Unfilled { why, help: help.to_owned() };
    }
    let vnic = format!("give the tenant a port that fills it, `{{vnic: /run/plimsoll/{tenant}.sock}}`");
    let help = if is_stated(field) {
        format!("{vnic}, or state `{field}` at the tenant")
    } else {
        format!("{vnic}, or match on other fields")
    };
    Unfilled { why, help }
}

fn without_tenant(graph: &Graph, field: &str) -> Unfilled {
    let client = graph.tenants.iter().find(|tenant| tenant.known.from_client);
    if let Some(client) = client {
        let why =
            format!("the match names no tenant, and a client's `{field}` counts for its own tenant only");
        let name = &client.name;
        let help = if is_stated(field) {
            format!("add `tenant: {name}`, or state `{field}` at each tenant that the match is for")
        } else {
            format!("add `tenant: {name}`, or the tenant that the match is for")
        };
        return Unfilled { why, help };
    }
    let why = format!("no port of this policy fills `{field}`");
    if graph.tenants.iter().all(|tenant| tenant.known.in_memory) {
        let help = "match on other fields: a packet of a scenario, or of a port in memory, has headers only";
        return Unfilled { why, help: help.to_owned() };
    }
    let vnic = "a `vnic` port fills it for the match that names its tenant";
    let help = if is_stated(field) {
        format!("state `{field}` at a tenant; {vnic}")
    } else {
        format!("{vnic}; match on other fields for tenants with other ports")
    };
    Unfilled { why, help }
}

/// Whether the operator can state a field at a tenant.
fn is_stated(field: &str) -> bool {
    matches!(field, "cgroup" | "user")
}
