//! The fleet's way from one key to another.
//!
//! Why: hosts take a change one after the other, and a host that knows only one of two keys drops what the other seals.
//! From: `docs/overlay.md`, "Change a key": all accept the new key, all seal with it, the old one is forgotten.
//! Not here: key files, which are at each host, and waiting for the hosts (the command).
//! Invariant: each step follows from the settings alone, so that a rotation that ended halfway goes on where it was.

use serde_json::{Value as Json, json};

use crate::change::Refusal;
use crate::object::FleetObject;
use crate::state::State;

/// The next step to a key: the fleet's settings after it, and what it does. `None`: the fleet has this key, and accepts no other.
///
/// # Errors
/// [`Refusal`]: the fleet has no key, or its settings are not those of a policy.
pub fn next_to_key(fleet: &FleetObject, new: &str) -> Result<Option<(FleetObject, &'static str)>, Refusal> {
    let mut next = fleet.clone();
    let accepted = accepted(fleet)?;
    let key = key_of(&mut next).ok_or_else(|| {
        Refusal("the fleet has no key; `plimsoll fleet init --feedback-key` gives it one".to_owned())
    })?;
    let Some(old) = key.as_str().map(str::to_owned) else {
        return Err(Refusal("the fleet's `key` is not the name of a file".to_owned()));
    };
    let (accept, words) = if old != new && !accepted.iter().any(|other| other == new) {
        ([accepted, vec![new.to_owned()]].concat(), "all hosts accept the new key, too")
    } else if old != new {
        *key = new.into();
        let others = accepted.into_iter().filter(|other| other != new);
        (others.chain([old]).collect(), "all hosts seal with the new key")
    } else if !accepted.is_empty() {
        (Vec::new(), "no host accepts the old key any more")
    } else {
        return Ok(None);
    };
    match accept.is_empty() {
        true => next.overlay.remove("accept_keys"),
        false => next.overlay.insert("accept_keys".to_owned(), json!(accept)),
    };
    Ok(Some((next, words)))
}

/// The place of the key's name: beside `sealed`, or within `feedback`.
fn key_of(fleet: &mut FleetObject) -> Option<&mut Json> {
    if fleet.overlay.contains_key("key") {
        return fleet.overlay.get_mut("key");
    }
    fleet.overlay.get_mut("feedback")?.get_mut("key")
}

fn accepted(fleet: &FleetObject) -> Result<Vec<String>, Refusal> {
    let Some(accepted) = fleet.overlay.get("accept_keys") else { return Ok(Vec::new()) };
    let names = accepted
        .as_array()
        .and_then(|names| names.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    names.ok_or_else(|| Refusal("the fleet's `accept_keys` is not a list of files".to_owned()))
}

/// Hosts that do not have the fleet's present settings in force, each with the reason.
#[must_use]
pub fn behind(state: &State) -> Vec<(String, String)> {
    let wanted = state.fleet.as_ref().map(|fleet| &fleet.overlay);
    let why = |host: &String| match state.alive.get(host) {
        None => Some("its agent is not heard".to_owned()),
        Some(said) if Some(&said.overlay) == wanted => None,
        Some(said) => {
            Some(said.error.clone().unwrap_or_else(|| "it does not have the change yet".to_owned()))
        }
    };
    state.hosts.keys().filter_map(|host| Some((host.clone(), why(host)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plimsoll_units::Span;

    use super::*;
    use crate::object::VERSION;

    fn fleet(overlay: Json) -> FleetObject {
        let overlay = overlay.as_object().cloned().unwrap_or_default().into_iter().collect();
        let networks = BTreeMap::from([("tenants".to_owned(), 7)]);
        FleetObject { v: VERSION, networks, overlay, lease: Span::secs(10), free_after: None }
    }

    #[test]
    fn a_key_changes_in_three_steps_wherever_it_stands() {
        for before in
            [json!({"feedback": {"key": "old"}}), json!({"sealed": true, "key": "old", "feedback": {}})]
        {
            let mut at = fleet(before);
            let mut steps = Vec::new();
            while let Some((next, _)) = next_to_key(&at, "new").expect("a step") {
                let key = key_of(&mut next.clone()).cloned();
                steps.push((key, next.overlay.get("accept_keys").cloned()));
                at = next;
            }
            let expected = [("old", Some(json!(["new"]))), ("new", Some(json!(["old"]))), ("new", None)];
            assert_eq!(steps, expected.map(|(key, accepted)| (Some(json!(key)), accepted)));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for wrong in [json!({}), json!({"key": 7}), json!({"key": "old", "accept_keys": "old"})] {
            assert!(next_to_key(&fleet(wrong.clone()), "new").is_err(), "{wrong}");
        }
    }
}
