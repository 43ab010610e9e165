//! What backpressure did on a host, from its daemon's counters.
//!
//! Why: an experiment compares ways to slow flows down by what each did.
//! From: the API's `/v1/stats` and `/v1/heavy`; the names are those of `docs/scenarios.md`, "Expectations".
//! Not here: marks and segments that were sent again, which are counted at the ends (`meter`, `traffic`).
//! Invariant: what the daemon does not tell is missing, not zero.

use plimsoll_scenario::COUNTERS;
use serde_json::Value;
use std::collections::BTreeMap;

/// Counts since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressing {
    /// By the names of a system's measures.
    pub counters: BTreeMap<&'static str, u64>,
    /// The top flow's part of heavy hitters' packets in the last overload, in thousandths.
    pub tops: Vec<u32>,
    /// Events of all ports, by name.
    pub events: BTreeMap<String, u64>,
    /// Packets of each tenant that waited for a rate, or were dropped for it, where they are sent.
    pub metered: BTreeMap<String, u64>,
}

impl Pressing {
    pub(super) fn read(stats: &Value, heavy: &Value) -> Self {
        let mut pressing = Self::default();
        let mut note = |name: &'static str, count: &Value| {
            pressing.counters.extend(count.as_u64().map(|count| (name, count)));
        };
        let watched = &heavy["watched"];
        note("overloads", &watched["overloads"]);
        note("pressed", &watched["started"]);
        note("let_go", &watched["ended"]);
        note("counted", &heavy["counted"][0]);
        let updates = &heavy["updates"];
        for name in ["bucket_overflows", "counter_overflows", "periodic_updates"] {
            note(name, &updates[name]);
        }
        let kinds = updates.as_object().map(|all| all.values().filter_map(Value::as_u64).sum::<u64>());
        pressing.counters.extend(kinds.map(|all| ("table_updates", all)));
        let heeded = stats["uplink"]["events"]["notice_heeded"].as_u64().unwrap_or(0);
        pressing.counters.insert("notices", heeded);
        pressing.tops.extend(watched["top"].as_f64().map(|part| (part * 1_000.0).round() as u32));
        pressing.note_events(&stats["uplink"]["events"]);
        for (name, tenant) in stats["tenants"].as_object().into_iter().flatten() {
            pressing.note_events(&tenant["events"]);
            let counts = [&tenant["events"]["flow_waited"], &tenant["drops"]["flow_over_rate"]];
            pressing.metered.insert(name.clone(), counts.iter().filter_map(|count| count.as_u64()).sum());
        }
        let mediated = COUNTERS.into_iter().filter(|name| name.starts_with("ecn_"));
        pressing.counters.extend(mediated.filter_map(|name| Some((name, *pressing.events.get(name)?))));
        pressing
    }

    fn note_events(&mut self, events: &Value) {
        for (name, count) in events.as_object().into_iter().flatten() {
            *self.events.entry(name.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (name, count) in &other.counters {
            *self.counters.entry(name).or_default() += count;
        }
        for (name, count) in &other.events {
            *self.events.entry(name.clone()).or_default() += count;
        }
        for (tenant, count) in &other.metered {
            *self.metered.entry(tenant.clone()).or_default() += count;
        }
        self.tops.extend(&other.tops);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_of_hosts_and_of_earlier_daemons_are_added_up() {
        let stats = json!({
            "uplink": {"events": {"notice_heeded": 3}},
            "tenants": {"heavy": {"events": {"flow_waited": 5, "ecn_asked": 2}, "drops": {"flow_over_rate": 2}}},
        });
        let heavy = json!({
            "counted": [100, 0],
            "watched": {"overloads": 1, "started": 1, "ended": 0, "top": 0.75},
            "updates": {"bucket_overflows": 1, "counter_overflows": 2, "periodic_updates": 4},
        });
        let mut all = Pressing::read(&stats, &heavy);
        assert_eq!((all.counters["pressed"], all.counters["table_updates"], all.metered["heavy"]), (1, 7, 7));
        all.add(&Pressing::read(&stats, &Value::Null));
        assert_eq!((all.counters["notices"], all.counters["overloads"], all.metered["heavy"]), (6, 1, 14));
        assert_eq!((all.counters["ecn_asked"], all.counters.get("ecn_hidden")), (4, None));
        assert_eq!((&all.tops[..], all.events["notice_heeded"]), (&[750][..], 6));
        let none = Pressing::read(&json!({}), &Value::Null);
        assert_eq!(none.counters.get("overloads"), None, "no flow is counted there");
    }
}
