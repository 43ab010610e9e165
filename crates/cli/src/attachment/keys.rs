//! Keys of a tenant that its container's owner states.
//!
//! Why: an owner may ask for an envelope; a `policy` or a `port` would name files and devices of the host.
//! From: `docs/containers.md`, "CNI" and "Docker's networks".
//! Not here: what their values may be, which the daemon checks.
//! Invariant: what the container's owner can state is what [`OWNERS`] lists; all else is the operator's.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::{Kind, Trouble};

/// What a container's owner may state of its tenant.
pub(crate) const OWNERS: [&str; 6] = ["min", "max", "weight", "burst", "delay", "ingress"];

/// Refuses keys that are not among those that an owner may state here.
pub(crate) fn judge(owned: &Map<String, Value>, allowed: &[&str]) -> Result<(), Trouble> {
    let Some(key) = owned.keys().find(|key| !allowed.contains(&key.as_str())) else { return Ok(()) };
    let message = format!("a container may not state `{key}` of its tenant");
    Err(Trouble::new(Kind::Config, message).details(format!("it may state: {}", allowed.join(", "))))
}

/// Adds keys to others. A later key replaces the one before; of mappings, such as `ingress`, each key by itself.
pub(crate) fn add(keys: &mut Map<String, Value>, later: Map<String, Value>) {
    for (key, value) in later {
        match (keys.get_mut(&key), value) {
            (Some(Value::Object(before)), Value::Object(more)) => before.extend(more),
            (_, value) => drop(keys.insert(key, value)),
        }
    }
}

/// A number or a mapping as JSON; anything else is text.
pub(crate) fn value(text: &str) -> Value {
    let found: Option<Value> = serde_json::from_str(text).ok();
    found.filter(|found| found.is_u64() || found.is_object()).unwrap_or_else(|| text.into())
}

/// Whether `text` is up to `most` letters, digits and `others`.
pub(crate) fn is_word(text: &str, others: &str, most: usize) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    !text.is_empty() && text.len() <= most && text.chars().all(fits)
}

/// `null` is what is not stated: it is how Go writes an empty list or map.
pub(crate) fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_later_key_replaces_one_and_leaves_its_neighbours() {
        let map = |value: Value| value.as_object().cloned().unwrap_or_default();
        let mut keys = map(json!({ "ingress": { "max": "1Gbps" }, "min": "1Mbps" }));
        add(&mut keys, map(json!({ "ingress": { "min": "10Mbps" }, "min": "2Mbps" })));
        assert_eq!(keys, map(json!({ "ingress": { "max": "1Gbps", "min": "10Mbps" }, "min": "2Mbps" })));
        add(&mut keys, map(json!({ "ingress": 7 })));
        assert_eq!(keys["ingress"], 7);
    }
}
