//! The JSON Schema of scenario files.
//!
//! Why: editors complete keys and mark mistakes while a file is written.
//! From: JSON Schema, draft 2020-12, which the YAML language server reads.
//! Not here: names that must exist and expectations' units; reading a file checks those.
//! Invariant: it knows exactly the keys that `read` knows (tested below).

use serde_json::{Map, Value, json};

use plimsoll_units::{BitRate, Bytes, Span};

use crate::model::SystemKind;
use crate::network::{Completions, Congestion};
use crate::read::{
    CLOCK_KEYS, CONTROL_KEYS, FAULT_KEYS, FEEDBACK_KEYS, FETCH_KEYS, HOST_KEYS, KEYS, KINDS, LINK_KEYS,
    MOST_PAIRS, NUMBER_KEYS, PAPER_KEYS, RESTART_KEYS, SHORT_KEYS, STALL_KEYS, SYSTEM_KEYS, TENANT_KEYS,
    TIMELINE_KEYS,
};

/// The JSON Schema of scenario files.
#[must_use]
pub fn schema() -> Value {
    let sections = json!({"type": "object", "description": "as in a policy file"});
    let names = json!({"type": "array", "items": {"type": "string"}});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Plimsoll scenario",
        "type": "object",
        "additionalProperties": false,
        "required": ["name", "rate", "duration", "systems", "tenants", "workloads"],
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$", "description": "how tables and reports call it"},
            "about": {"type": "string", "description": "what it shows"},
            "rate": unit::<BitRate>("rate of the uplink"),
            "mtu": count("largest IP packet", 9_000),
            "duration": unit::<Span>("length of each run"),
            "pairs": count("how often the list of systems is run; medians are compared", MOST_PAIRS),
            "one_world": {"type": "boolean", "description": "whether, live, systems take turns in one world"},
            "seed": {"type": "integer", "minimum": 0, "description": "of everything random"},
            "offload": {"type": "boolean", "description": "whether tenants use segmentation offload"},
            "hosts": {
                "description": "machines, as a list of names or a map to what is known of each",
                "anyOf": [names, {"type": "object", "additionalProperties": host(&sections)}],
            },
            "switches": names,
            "links": {"type": "object", "additionalProperties": link()},
            "control": control(),
            "tenants": {"type": "object", "additionalProperties": tenant()},
            "destinations": {
                "description": "places beyond the uplink, as a list of names or a map to addresses",
                "anyOf": [names, {"type": "object", "additionalProperties": {"type": ["string", "null"]}}],
            },
            "systems": {"type": "array", "minItems": 1, "items": system(&sections)},
            "workloads": {"type": "object", "additionalProperties": workload()},
            "timeline": {"type": "array", "items": timeline()},
            "faults": faults(),
            "measure": measure(),
            "repeat": {
                "type": "object",
                "description": "how many there are of what a name in `<>` stands for",
                "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 10_000},
            },
            "sweep": {
                "type": "object",
                "description": "values of this file that are varied, by their path",
                "additionalProperties": {"type": "array", "minItems": 1},
            },
            "expect": expectations(),
            "policy": sections,
            "limits": sections,
            "engine": sections,
            "policy_file": {"type": "string", "description": "a policy file to take these sections from"},
            "paper": paper(),
            "live": {"type": "boolean", "description": "false: for virtual time alone"},
            "virtual": {
                "type": "object",
                "description": "what is otherwise in virtual time; maps are merged, `~` takes a key away",
                "propertyNames": {"enum": KEYS},
            },
            "short": object(SHORT_KEYS.map(|key| (key, short(key)))),
        },
    })
}

fn object<'a>(properties: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let properties: Map<String, Value> =
        properties.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    json!({"type": ["object", "null"], "additionalProperties": false, "properties": properties})
}

/// A unit's own schema, with what it stands for here.
fn unit<T: schemars::JsonSchema>(about: &str) -> Value {
    let mut schema = schemars::SchemaGenerator::default().into_root_schema_for::<T>().to_value();
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|key, _| matches!(key.as_str(), "type" | "pattern"));
        schema.insert("description".to_owned(), about.into());
    }
    schema
}

fn count(about: &str, most: u32) -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": most, "description": about})
}

fn tenant() -> Value {
    object(TENANT_KEYS.map(|key| {
        let value = match key {
            "host" => json!({
                "description": "one of `hosts`, or a list of them",
                "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            }),
            "core" => json!({"type": "string", "description": "the core that it runs on, in virtual time"}),
            "min" => unit::<BitRate>("guaranteed rate"),
            "max" => unit::<BitRate>("rate that is never exceeded"),
            "weight" => count("share of what is left", u32::MAX),
            _ => json!({"description": "as in a policy file"}),
        };
        (key, value)
    }))
}

fn fetch() -> Value {
    object(FETCH_KEYS.map(|key| {
        let value = match key {
            "modules" => count("modules that fetch at the same time", 256),
            "latency" => unit::<Span>("from a read over PCIe to its data"),
            "sigma" => unit::<Span>("standard deviation of that"),
            "cycle" => unit::<Span>("of the scheduler's clock"),
            "cycles" => count("of one iteration of the scheduler", 1_000),
            _ => unit::<Bytes>("that a module fetches of a class at once"),
        };
        (key, value)
    }))
}

fn system(sections: &Value) -> Value {
    let kinds = SystemKind::ALL.map(SystemKind::name);
    let own = object(SYSTEM_KEYS.map(|key| {
        let value = match key {
            "kind" => json!({"enum": kinds}),
            "ingress" => json!({"enum": ["fair", "shared"], "description": "how what comes in is taken"}),
            "control" => {
                let level =
                    json!({"enum": ["off", "bandwidth", "full"], "description": "how much of `control` it has"});
                let mut own = control();
                own["properties"]["level"] = level.clone();
                json!({"anyOf": [level, own]})
            }
            "completions" => json!({"enum": Completions::NAMES.map(|(name, _)| name)}),
            "accounting" => {
                json!({"type": "boolean", "description": "whether each tenant has descriptors of its own"})
            }
            "faults" => json!({"type": "boolean", "description": "whether what goes wrong goes wrong here"}),
            "queues" => count("transmit queues of `mq`", 256),
            "queue_rate" => unit::<BitRate>("rate to which each queue of `mq` is held"),
            "policy_file" => json!({"type": "string"}),
            "lock" => unit::<Span>("what an operation under HTB's lock takes, in virtual time"),
            "wake" => unit::<Span>("how late HTB's timer is, in virtual time"),
            "cost" => unit::<Span>("what a packet costs the sending core of `ptb`"),
            "limiters" => count("limiters of `hwrl`", 4_096),
            "fetch" => fetch(),
            _ => sections.clone(),
        };
        (key, value)
    }));
    let named =
        json!({"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": own});
    json!({"anyOf": [{"enum": kinds}, named]})
}

fn host(sections: &Value) -> Value {
    object(HOST_KEYS.map(|key| {
        let value = match key {
            "nic" => json!({"enum": ["engine", "fifo"], "description": "what stands before its link"}),
            "receive" => object([
                ("ring", count("packets that wait for the CPU", 1 << 20)),
                ("drain", unit::<Span>("CPU time to fetch one and see whose it is")),
                ("cost", unit::<Span>("CPU time for each then")),
                ("slots", count("packets of each tenant that wait then", 1 << 16)),
                (
                    "drain_share",
                    json!({"type": ["string", "number"], "description": "part of the CPU for fetching"}),
                ),
                ("round", unit::<Span>("CPU time of all else in each of the engine's rounds")),
                ("vary", json!({"type": "boolean", "description": "whether these times are means"})),
            ]),
            "cpu" => object([
                ("process", unit::<Span>("the engine's CPU time to take a packet")),
                ("pull", unit::<Span>("and to send it")),
            ]),
            "cores" => object([
                ("answer", unit::<Span>("CPU time of a tenant's core to answer a request")),
                ("send", unit::<Span>("and to send a packet")),
            ]),
            "transmit" => object([
                ("ring", count("descriptors of a tenant that may be under way", 1 << 16)),
                ("completions", json!({"enum": ["early", "in_order", "out_of_order"]})),
            ]),
            "pcie" => object([
                ("rate", unit::<BitRate>("of its lanes together")),
                ("latency", unit::<Span>("from a read request to its data")),
                ("tlp", unit::<Bytes>("payload of a packet on the bus")),
                ("overhead", unit::<Bytes>("what each costs beside")),
                ("outstanding", count("read requests under way at once", 1 << 16)),
            ]),
            "policy_file" => json!({"type": "string"}),
            _ => sections.clone(),
        };
        (key, value)
    }))
}

fn control() -> Value {
    object(CONTROL_KEYS.map(|key| {
        let value = match key {
            "epoch" => unit::<Span>("from one decision to the next"),
            "feedback" => unit::<Span>("from a receiver's decision until its senders keep to it"),
            "lapse" => unit::<Span>("how long a sender keeps to what it does not hear again"),
            "fallback" => unit::<BitRate>("what a sender holds to towards whom it no longer hears"),
            "threshold" => unit::<Span>("delay on the way in that packet rates are held to"),
            "gain" | "cut" => {
                json!({"type": ["string", "number"], "description": "part of an error corrected in an epoch"})
            }
            "ecn" => {
                json!({"type": "boolean", "description": "whether the fabric's marks hold senders back"})
            }
            "balancers" => json!({
                "type": "object",
                "description": "tenants that are load balancers, and each one's weight",
                "additionalProperties": {"type": ["integer", "null"]},
            }),
            _ => {
                json!({"enum": ["reserved", "lent"], "description": "what becomes of an idle tenant's `min`"})
            }
        };
        (key, value)
    }))
}

fn link() -> Value {
    object(LINK_KEYS.map(|key| {
        let value = match key {
            "between" => json!({"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "string"}}),
            "from" | "to" => json!({"type": "string", "description": "a host, switch or destination"}),
            "rate" => unit::<BitRate>("of the link"),
            "delay" => unit::<Span>("from the last bit sent to the last bit received"),
            "queue" => unit::<Bytes>("bytes that may wait"),
            "ecn" => unit::<Bytes>("bytes of queue from which packets are marked"),
            _ => json!({"type": ["string", "number"], "description": "part of the packets that is lost"}),
        };
        (key, value)
    }))
}

/// One alternative for each kind, so that an editor offers the keys of the kind that is written.
fn workload() -> Value {
    let kinds = KINDS.map(|(kind, keys)| {
        let common = [
            ("kind", json!({"const": kind})),
            ("tenant", json!({"type": "string", "description": "whose traffic it is"})),
            ("to", json!({"type": "string", "description": "one of `destinations`, or another tenant"})),
            ("start", unit::<Span>("from the start of the run")),
            ("stop", unit::<Span>("from the start of the run")),
            ("dscp", json!({"type": "integer", "minimum": 0, "maximum": 63})),
            ("port", count("of the server's side", 32_767)),
            ("congestion", json!({"enum": Congestion::NAMES.map(|(name, _)| name)})),
        ];
        let own = keys.iter().map(|key| (*key, workload_key(kind, key)));
        let mut kind = object(common.into_iter().chain(own));
        kind["required"] = json!(["kind", "tenant"]);
        kind
    });
    json!({"anyOf": kinds})
}

fn workload_key(kind: &str, key: &str) -> Value {
    match (kind, key) {
        ("udp", "rate") => {
            json!({"type": "string", "description": "`line`, `flood`, `5Mbps` of whole frames or `2kpps`"})
        }
        (_, "rate") => count("a second, at random moments", u32::MAX),
        ("iperf3", "udp") => unit::<BitRate>("UDP at this rate for each flow"),
        (_, "flows" | "connections") => count("how many", 4_096),
        (_, "claims") => count("senders that its datagrams claim to come from", u32::MAX),
        (_, "on" | "off" | "pause") => unit::<Span>("how long"),
        (_, "role") => json!({"enum": ["client", "server"], "description": "which side the tenant is"}),
        (_, "sizes") => {
            json!({"enum": ["fixed", "etc"], "description": "as long as said, or as in a known mix"})
        }
        (_, "arrivals") => json!({"enum": ["random", "even"], "description": "of requests"}),
        (_, "protocol") => json!({"enum": ["udp", "tcp"]}),
        _ => unit::<Bytes>("how large"),
    }
}

fn timeline() -> Value {
    let map = |value: Value, about: &str| json!({"type": "object", "description": about, "additionalProperties": value});
    let mut moment = object(TIMELINE_KEYS.map(|key| {
        let value = match key {
            "at" => unit::<Span>("from the start of the run"),
            "limits" => map(unit::<BitRate>("its new rate"), "limits by name"),
            "weights" => map(count("its new weight", u32::MAX), "classes and nodes by name"),
            _ => map(unit::<BitRate>("its new rate"), "children of `rate_share` nodes by name"),
        };
        (key, value)
    }));
    moment["required"] = json!(["at"]);
    moment
}

fn faults() -> Value {
    let moment = || unit::<Span>("from the start of the run");
    let part = |about: &str| json!({"type": ["string", "number"], "description": about});
    let feedback = object(FEEDBACK_KEYS.map(|key| {
        let value = match key {
            "loss" => part("of the messages, that never arrives"),
            "duplicate" => part("of the messages, that arrives twice"),
            "reorder" => part("of the messages, that others overtake"),
            _ => unit::<Span>("how late those are, at most"),
        };
        (key, value)
    }));
    let restart = object(RESTART_KEYS.map(|key| {
        let value = match key {
            "host" => json!({"type": "string"}),
            "at" => moment(),
            _ => unit::<Span>("how long nobody is there"),
        };
        (key, value)
    }));
    let clock = object(CLOCK_KEYS.map(|key| {
        let value = match key {
            "host" => json!({"type": "string"}),
            "at" => moment(),
            _ => unit::<Span>("by how much it is set"),
        };
        (key, value)
    }));
    let stall = object(STALL_KEYS.map(|key| match key {
        "tenant" => (key, json!({"type": "string"})),
        _ => (key, moment()),
    }));
    let list = |items: Value| json!({"type": "array", "items": items});
    object(FAULT_KEYS.map(|key| {
        let value = match key {
            "feedback" => feedback.clone(),
            "silent" => list(json!({"type": "string"})),
            "restart" => list(restart.clone()),
            "clock" => list(clock.clone()),
            _ => list(stall.clone()),
        };
        (key, value)
    }))
}

fn measure() -> Value {
    object([
        ("window", unit::<Span>("throughput is counted in windows of this length")),
        ("from", unit::<Span>("where that begins which is meant when no window is named")),
        ("to", unit::<Span>("where it ends")),
        ("cpu", json!({"type": "boolean", "description": "whether CPU time is measured"})),
        ("gaps", json!({"type": "boolean", "description": "whether each packet's moment is kept"})),
        ("held", json!({"type": "boolean", "description": "whether what engines hold is counted"})),
        (
            "ingress",
            json!({"type": "boolean", "description": "whether each packet's wait on the way in is kept"}),
        ),
        (
            "egress",
            json!({"type": "boolean", "description": "whether each packet's wait on the way out is kept"}),
        ),
    ])
}

fn expectations() -> Value {
    let line = json!({"type": "string", "description": "such as `plimsoll.shop.p99 <= 1.5 * fifo.shop.p99`"});
    let at = json!({"type": "object", "description": "the sweep's points at which it must hold"});
    let mut with_reason =
        object([("that", line.clone()), ("because", json!({"type": "string"})), ("at", at)]);
    with_reason["required"] = json!(["that"]);
    json!({"type": "array", "items": {"anyOf": [line, with_reason]}})
}

fn paper() -> Value {
    let number = |key| match key {
        "at" => json!({"type": "object", "description": "points of the sweep that ours is taken from"}),
        "ours" => {
            json!({"type": "string", "description": "one side of an expectation, such as `plimsoll.t1.throughput`"})
        }
        "paper" => json!({"type": "string", "description": "the paper's figure"}),
        _ => json!({"type": "string", "description": "what is counted"}),
    };
    let mut number = object(NUMBER_KEYS.map(|key| (key, number(key))));
    number["required"] = json!(["paper", "ours"]);
    let mut paper = object(PAPER_KEYS.map(|key| {
        let value = match key {
            "id" => json!({"type": "string", "pattern": "^[A-Z]+-E[0-9]+$"}),
            "figure" => json!({"type": "string", "description": "where the paper shows it"}),
            "shows" => json!({"type": "string", "description": "what it shows, in one line"}),
            "numbers" => json!({"type": "array", "minItems": 1, "items": number}),
            _ => json!({"type": "string", "description": "what is otherwise than in the paper, and why"}),
        };
        (key, value)
    }));
    paper["required"] = json!(["id", "figure", "shows", "numbers"]);
    paper
}

fn short(key: &str) -> Value {
    match key {
        "time" => json!({"type": "number", "minimum": 0.01, "maximum": 1, "description": "of every moment"}),
        "pairs" => count("how often the systems are run", MOST_PAIRS),
        "systems" => json!({"type": "array", "items": {"type": "string"}}),
        _ => expectations(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_the_keys_that_are_read() {
        let schema = schema();
        let known = schema["properties"].as_object().expect("properties");
        let mut keys: Vec<&str> = KEYS.into_iter().chain(["virtual"]).collect();
        keys.sort_unstable();
        assert_eq!(known.keys().map(String::as_str).collect::<Vec<_>>(), keys);
    }

    #[test]
    fn each_kind_of_workload_has_its_keys() {
        let schema = schema();
        let kinds =
            schema["properties"]["workloads"]["additionalProperties"]["anyOf"].as_array().expect("kinds");
        assert_eq!(kinds.len(), KINDS.len());
        for (kind, (name, keys)) in kinds.iter().zip(KINDS) {
            assert_eq!(kind["properties"]["kind"]["const"], name);
            assert!(keys.iter().all(|key| !kind["properties"][key].is_null()), "{name}");
        }
    }

    #[test]
    fn units_keep_their_patterns() {
        let rate = unit::<BitRate>("x");
        assert!(rate["pattern"].as_str().is_some_and(|pattern| pattern.contains("bps")), "{rate}");
    }
}
