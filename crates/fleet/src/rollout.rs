//! Rollouts: a policy's version comes to canary hosts first, then to the others, or back.
//!
//! Why: a policy may be correct and still break what tenants were promised.
//! From: canary releases; the verdict is that of `plimsoll slo` on the canary hosts.
//! Not here: judging promises (`daemon`), validating texts (`compose`).
//! Invariant: no host beyond the canaries gets the version before promises have held at all canaries for the time `bake`;
//! after a rollback every host has what it had before. The next step follows from the state and the time alone, so that any
//! agent or command may take it, and two that do so at once take it once.

use std::collections::BTreeMap;

use plimsoll_units::Span;

use crate::change::{Edit, Refusal, the_fleet, unknown};
use crate::directory::Transaction;
use crate::object::{HostObject, PolicyInUse, RolloutObject, RolloutState, VERSION};
use crate::state::State;

/// Hosts that one transaction changes at most: etcd takes 128 operations, of which each host needs one.
const AT_ONCE: usize = 60;
/// How long a canary may be silent, or behind, beyond the bake time.
const LATE: u64 = 60;

/// The next step of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing yet; why.
    Wait(String),
    /// This, which leads there.
    Make(Transaction, String),
    /// Nothing any more.
    Ended(RolloutState),
}

/// The hosts that get a policy first: `1`, or a share such as `10%`, at least one; those that use it first by name.
///
/// # Errors
/// [`Refusal`].
pub fn canaries(hosts: &[String], share: &str) -> Result<Vec<String>, Refusal> {
    let wrong =
        || Refusal(format!("`{share}` is no number of hosts, such as `1`, and no share, such as `10%`"));
    let count = match share.strip_suffix('%') {
        Some(percent) => {
            let percent: usize = percent.parse().ok().filter(|percent| *percent <= 100).ok_or_else(wrong)?;
            (hosts.len() * percent).div_ceil(100)
        }
        None => share.parse().map_err(|_| wrong())?,
    };
    Ok(hosts.iter().take(count.max(1)).cloned().collect())
}

/// Begins a rollout of a policy's version to these hosts, the canaries first.
///
/// # Errors
/// [`Refusal`].
pub fn start(
    state: &State,
    policy: &str,
    to: u64,
    hosts: &[String],
    canaries: &[String],
    (bake, now): (Span, u64),
) -> Result<Transaction, Refusal> {
    the_fleet(state)?;
    let object =
        state.policies.get(policy).ok_or_else(|| unknown("policy", policy, state.policies.keys()))?;
    if !object.versions.contains_key(&to) {
        return Err(Refusal(format!(
            "policy `{policy}` has no version {to}; `plimsoll fleet history {policy}` lists them"
        )));
    }
    let running = state.rollouts.iter().find(|(_, rollout)| rollout.state == RolloutState::Canary);
    if let Some((name, rollout)) = running {
        return Err(Refusal(format!(
            "version {} of policy `{name}` is on its way; wait for it, or `plimsoll fleet rollback {name}`",
            rollout.to
        )));
    }
    if hosts.is_empty() {
        return Err(Refusal(format!("no host uses policy `{policy}`; name hosts with `--host`")));
    }
    if canaries.len() > AT_ONCE {
        return Err(Refusal(format!("{} canaries, and {AT_ONCE} are the most", canaries.len())));
    }
    for host in canaries {
        let well = state.alive.get(host).is_some_and(|alive| alive.error.is_none());
        if !well {
            return Err(Refusal(format!(
                "host `{host}` cannot try it: its agent is not heard, or it is not up to date; see `plimsoll fleet hosts`"
            )));
        }
    }
    let mut from = BTreeMap::new();
    for host in hosts {
        let object = state.hosts.get(host).ok_or_else(|| unknown("host", host, state.hosts.keys()))?;
        from.insert(host.clone(), object.policy.clone());
    }
    let rollout = RolloutObject {
        v: VERSION,
        to,
        from,
        canaries: canaries.to_vec(),
        bake,
        at: now,
        state: RolloutState::Canary,
        why: None,
    };
    let edit = Edit::new(state).put(&key(policy), &rollout);
    Ok(give(edit, state, canaries, Some(PolicyInUse { name: policy.to_owned(), version: to })).made())
}

/// What a rollout needs next, `now` in seconds since 1970.
#[must_use]
pub fn step(state: &State, policy: &str, now: u64) -> Step {
    let Some(rollout) = state.rollouts.get(policy) else { return Step::Ended(RolloutState::RolledBack) };
    if rollout.state != RolloutState::Canary {
        return Step::Ended(rollout.state);
    }
    let wanted = PolicyInUse { name: policy.to_owned(), version: rollout.to };
    let bake = rollout.bake.as_u64().div_ceil(1_000_000_000);
    let mut waits = None;
    for host in &rollout.canaries {
        let said = state.alive.get(host);
        let judged = said.filter(|said| said.applied.as_ref() == Some(&wanted));
        let broken = judged.and_then(|said| said.broken.first_key_value());
        let failed = said.and_then(|said| said.error.as_ref());
        let late = now.saturating_sub(rollout.at) > bake.saturating_add(LATE);
        let why = match (broken, failed, judged) {
            (Some((tenant, cause)), ..) => {
                Some(format!("host {host}: the promise to {tenant} was broken: {cause}"))
            }
            (None, Some(error), _) => {
                Some(format!("host {host}: {}", error.lines().next().unwrap_or_default()))
            }
            (None, None, Some(said)) if said.judged >= bake => None,
            _ if late => Some(format!("host {host}: it says nothing of this version")),
            (None, None, Some(said)) => {
                waits = waits
                    .or(Some(format!("host {host}: promises have held for {} of {bake} s", said.judged)));
                None
            }
            (None, None, None) => {
                waits = waits.or(Some(format!("host {host}: does not have it yet")));
                None
            }
        };
        if let Some(why) = why {
            return back(state, policy, rollout, &why);
        }
    }
    match waits {
        Some(why) => Step::Wait(why),
        None => onward(state, policy, rollout, &wanted),
    }
}

/// Takes a version from all hosts that a rollout gave it to, also after it ended.
///
/// # Errors
/// [`Refusal`].
pub fn rollback(state: &State, policy: &str, why: &str) -> Result<Transaction, Refusal> {
    let known = state.rollouts.get(policy).filter(|rollout| rollout.state != RolloutState::RolledBack);
    let rollout = known.ok_or_else(|| Refusal(format!("policy `{policy}` has nothing to roll back")))?;
    match back(state, policy, rollout, why) {
        Step::Make(transaction, _) => Ok(transaction),
        Step::Wait(why) => Err(Refusal(why)),
        Step::Ended(_) => Err(Refusal(format!("policy `{policy}` has been rolled back"))),
    }
}

/// The next hosts after the canaries; behind the last ones the rollout is done.
fn onward(state: &State, policy: &str, rollout: &RolloutObject, wanted: &PolicyInUse) -> Step {
    let has =
        |host: &&String| state.hosts.get(*host).is_some_and(|object| object.policy.as_ref() != Some(wanted));
    let rest: Vec<String> = rollout.from.keys().filter(has).take(AT_ONCE).cloned().collect();
    let edit = Edit::new(state);
    if rest.is_empty() {
        let done = RolloutObject { state: RolloutState::Done, ..rollout.clone() };
        return Step::Make(edit.put(&key(policy), &done).made(), "at all hosts".to_owned());
    }
    let words = format!("to {}", rest.join(", "));
    Step::Make(give(edit.rely(&key(policy)), state, &rest, Some(wanted.clone())).made(), words)
}

/// The hosts that have the version get what they had before; behind the last ones it is rolled back.
fn back(state: &State, policy: &str, rollout: &RolloutObject, why: &str) -> Step {
    let has = |host: &str| {
        let used = state.hosts.get(host).and_then(|object| object.policy.as_ref());
        used.is_some_and(|used| used.name == policy && used.version == rollout.to)
    };
    let due: Vec<(&String, &Option<PolicyInUse>)> = rollout
        .from
        .iter()
        .filter(|(host, before)| {
            has(host)
                && before.as_ref().is_none_or(|before| before.version != rollout.to || before.name != policy)
        })
        .collect();
    let mut edit = Edit::new(state);
    for (host, before) in due.iter().take(AT_ONCE) {
        edit = give(edit, state, std::slice::from_ref(*host), (*before).clone());
    }
    if due.len() <= AT_ONCE {
        let undone =
            RolloutObject { state: RolloutState::RolledBack, why: Some(why.to_owned()), ..rollout.clone() };
        edit = edit.put(&key(policy), &undone);
    } else {
        edit = edit.rely(&key(policy));
    }
    Step::Make(edit.made(), format!("back: {why}"))
}

/// Has hosts use a policy.
fn give<'a>(mut edit: Edit<'a>, state: &'a State, hosts: &[String], policy: Option<PolicyInUse>) -> Edit<'a> {
    for host in hosts {
        if let Some(object) = state.hosts.get(host) {
            let object = HostObject { policy: policy.clone(), ..object.clone() };
            edit = edit.put(&format!("hosts/{host}"), &object);
        }
    }
    edit
}

fn key(policy: &str) -> String {
    format!("rollouts/{policy}")
}
