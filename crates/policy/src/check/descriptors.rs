//! Descriptors: the tenants' caps fit what the host has.
//!
//! Why: if the caps added up to more, a tenant within its own cap could use up what a neighbour was promised.
//! From: PicNIC §5.4.2-3 (packet accounting).
//! Not here: counting them (`nic::account`).
//! Invariant: the tenants' caps sum up to `engine.descriptors` at most, and no default one is below [`LEAST`].

use crate::config::EngineConfig;
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::{HostDescriptors, TenantEntry};

/// Descriptors of a tenant that states none, at least.
const LEAST: u32 = 32;

/// The tenants' caps, and the host's in `engine`: `count` is of the tenants with a port and of `host`, if it is one.
///
/// A tenant that states none has an equal part of what the others leave. A host that states none has enough
/// that this part is [`LEAST`] for any number of tenants. In an experiment without accounting each may have them all.
pub(crate) fn share(
    engine: &mut EngineConfig,
    host: HostDescriptors,
    tenants: &[TenantEntry],
    count: usize,
    problems: &mut Problems,
) -> Vec<u32> {
    if engine.experiment.as_ref().is_some_and(|experiment| !experiment.accounting) {
        return vec![engine.descriptors; count];
    }
    let caps = || (0..count).map(|index| tenants.get(index).and_then(|tenant| tenant.descriptors));
    let stated: u64 = caps().flatten().map(|cap| u64::from(cap.value)).sum();
    let silent = caps().filter(Option::is_none).count() as u64;
    let needed = stated + silent * u64::from(LEAST);
    if host.stated.is_none() && stated <= u64::from(engine.descriptors) {
        engine.descriptors = engine.descriptors.max(u32::try_from(needed).unwrap_or(u32::MAX));
    }
    if needed > u64::from(engine.descriptors) {
        problems.push(too_many(engine.descriptors, host, tenants, (stated, silent)));
    }
    let left = u64::from(engine.descriptors).saturating_sub(stated);
    let default = u32::try_from(left / silent.max(1)).unwrap_or(u32::MAX);
    caps().map(|cap| cap.map_or(default, |cap| cap.value)).collect()
}

fn too_many(
    has: u32,
    host: HostDescriptors,
    tenants: &[TenantEntry],
    (stated, silent): (u64, u64),
) -> Problem {
    let needed = stated + silent * u64::from(LEAST);
    let rest = match silent {
        0 => String::new(),
        1 => format!(", {LEAST} of them for the tenant that states none"),
        _ => format!(", {LEAST} of them for each of the {silent} tenants that state none"),
    };
    let message = format!("the tenants' `descriptors` are {needed} together{rest}, but the engine has {has}");
    let mut problem = Problem::error(Law::TooManyDescriptors, host.stated.unwrap_or(host.engine), message)
        .label(if host.stated.is_some() { "what the engine has" } else { "the engine's default" });
    for cap in tenants.iter().filter_map(|tenant| tenant.descriptors).take(SHOWN) {
        problem = problem.also(cap.at, "one of the caps");
    }
    let raise = if needed <= u64::from(HostDescriptors::MOST) {
        format!(", or write `engine: {{descriptors: {needed}}}`")
    } else {
        String::new()
    };
    let lower =
        if stated > 0 { "lower a tenant's `descriptors`" } else { "give the engine to fewer tenants" };
    problem.help(format!("{lower} so that the sum fits {has}{raise}"))
}

/// Caps that a message points at, at most.
const SHOWN: usize = 4;
