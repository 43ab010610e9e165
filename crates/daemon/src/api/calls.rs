//! The calls of the API, as one table: the router and the API's description are made from it.
//!
//! Why: a call that is served and not described, or described and not served, cannot be written.
//! From: OpenAPI 3.1's operations.
//! Not here: what a call does (`api`), the description's text form (`openapi`).
//! Invariant: no two calls have the same path; each path and name is a public promise.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};
use plimsoll_policy::Report;
use plimsoll_slo::SloReport;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;

use super::Api;
use super::answers::{DepartureRow, Health};
use crate::audit::AuditReport;
use crate::control::Reloaded;
use crate::dataplane::Rated;
use crate::explain::Explanation;
use crate::heavy::HeavyReport;
use crate::stats::Stats;

/// One call.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// A name for generated clients.
    pub(super) name: &'static str,
    /// What it does: the first line is its title.
    pub(super) about: &'static str,
    /// The query, if it takes one.
    pub(super) query: Option<Describe>,
    pub(super) answer: Answer,
    /// Statuses other than 200, and when they come.
    pub(super) refusals: &'static [(u16, &'static str)],
    pub(super) handler: fn() -> MethodRouter<Arc<Api>>,
}

/// The schema of a type.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

/// The method of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
}

/// The body of an answer.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    Json(Describe),
    /// Metrics as Prometheus reads them.
    Metrics,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FilterQuery {
    /// Conditions on the packets, as in a policy's `match`; `class` names a class. Without one, all packets are meant.
    #[serde(default)]
    #[schemars(example = "tenant=shop tcp dst_port=443")]
    pub(super) filter: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReloadQuery {
    /// Whether TAPs may be taken away from their tenants.
    #[serde(default)]
    #[schemars(example = false)]
    pub(super) force: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RateQuery {
    /// The class or node below a `rate_share`.
    #[schemars(example = "tenants/shop")]
    pub(super) class: String,
    /// Its rate from the next decision on.
    #[schemars(example = "400Mbps")]
    pub(super) rate: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WindowQuery {
    /// The time up to now that the report covers, 1s to 3600s: up to a minute by the second, beyond that by the minute.
    #[serde(default = "minute")]
    #[schemars(example = "10s")]
    pub(super) window: String,
    /// Time since the daemon's start at which the report begins at the earliest.
    #[serde(default = "the_start")]
    pub(super) since: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LastQuery {
    /// The number of departures, at most 65,536.
    #[serde(default = "hundred")]
    #[schemars(example = 5)]
    pub(super) last: usize,
}

fn the_start() -> String {
    "0s".to_owned()
}

fn minute() -> String {
    "60s".to_owned()
}

fn hundred() -> usize {
    100
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

const ENDED: (u16, &str) = (503, "The engine has stopped, as the daemon is ending.");
const NO_QUERY: (u16, &str) = (400, "A parameter is given, and the call takes none.");
const BAD_QUERY: (u16, &str) = (400, "A parameter is missing, unknown or not of its form.");

/// All calls, in the order of the reference.
pub(super) const CALLS: &[Call] = &[
    Call {
        method: Method::Get,
        path: "/v1",
        name: "describe",
        about: "Describe the API\n\nThis description, as an OpenAPI 3.1 document. `plimsoll schema api` prints the same \
                without a daemon.",
        query: None,
        answer: Answer::Json(of::<serde_json::Map<String, serde_json::Value>>),
        refusals: &[NO_QUERY],
        handler: || get(super::description),
    },
    Call {
        method: Method::Get,
        path: "/v1/health",
        name: "health",
        about: "Say whether the daemon is well\n\nThe status is 200 whether it is well or not: the answer's `status` says so.",
        query: None,
        answer: Answer::Json(of::<Health>),
        refusals: &[NO_QUERY, ENDED],
        handler: || get(super::health),
    },
    Call {
        method: Method::Get,
        path: "/v1/stats",
        name: "stats",
        about: "Read all counters\n\nCounts are since the daemon's start and go on over reloads. Answers of one moment belong \
                together: they are taken in one turn of the engine, at most twenty times a second.",
        query: None,
        answer: Answer::Json(of::<Stats>),
        refusals: &[NO_QUERY, ENDED],
        handler: || get(super::stats),
    },
    Call {
        method: Method::Get,
        path: "/v1/policy",
        name: "policy",
        about: "Read the policy in force\n\nAs `plimsoll check --json` shows it: the tree, the guarantees of each class, the \
                promises to each tenant, limits and rules.",
        query: None,
        answer: Answer::Json(of::<Report>),
        refusals: &[NO_QUERY],
        handler: || get(super::policy),
    },
    Call {
        method: Method::Post,
        path: "/v1/reload",
        name: "reload",
        about: "Put the policy file in force again\n\nReads the file that the daemon was started with. The change is atomic, \
                and packets that wait go on waiting. A file that is wrong changes nothing.",
        query: Some(of::<ReloadQuery>),
        answer: Answer::Json(of::<Reloaded>),
        refusals: &[
            BAD_QUERY,
            (
                422,
                "The file is wrong, changes what cannot change while the daemon runs, or takes a TAP away from its tenant.",
            ),
            ENDED,
        ],
        handler: || post(super::reload),
    },
    Call {
        method: Method::Post,
        path: "/v1/rate",
        name: "rate",
        about: "Give a class another rate\n\nOnly for what is directly below a `rate_share`. The rate holds until the next \
                reload, which puts the file's rates back.",
        query: Some(of::<RateQuery>),
        answer: Answer::Json(of::<Rated>),
        refusals: &[
            (400, "A parameter is missing or unknown, or the rate is not of the form `200Mbps`."),
            (422, "There is no such class, or it is not below a `rate_share`."),
            ENDED,
        ],
        handler: || post(super::rate),
    },
    Call {
        method: Method::Get,
        path: "/v1/slo",
        name: "slo",
        about: "Read whether promises held\n\nFor each tenant the judgement of the whole window and of each second or minute in \
                it, with causes.",
        query: Some(of::<WindowQuery>),
        answer: Answer::Json(of::<SloReport>),
        refusals: &[(400, "A parameter is unknown, is no time, or the window is not from 1s to 3600s.")],
        handler: || get(super::slo),
    },
    Call {
        method: Method::Get,
        path: "/v1/heavy",
        name: "heavy",
        about: "List the heavy hitters\n\n`null` where no flow is counted and none is held for another host.",
        query: None,
        answer: Answer::Json(of::<Option<HeavyReport>>),
        refusals: &[NO_QUERY, ENDED],
        handler: || get(super::heavy),
    },
    Call {
        method: Method::Get,
        path: "/v1/explain",
        name: "explain",
        about: "Explain why packets waited\n\nNames the class, limits and ranks that such a packet gets now, and where the time \
                of the last ones went.",
        query: Some(of::<FilterQuery>),
        answer: Answer::Json(of::<Explanation>),
        refusals: &[
            (
                400,
                "A parameter is unknown, a condition is not of its form, names what does not exist, or can hold for no packet.",
            ),
            ENDED,
        ],
        handler: || get(super::explained),
    },
    Call {
        method: Method::Get,
        path: "/v1/departures",
        name: "departures",
        about: "List the last packets that left\n\nThe oldest first.",
        query: Some(of::<LastQuery>),
        answer: Answer::Json(of::<Vec<DepartureRow>>),
        refusals: &[BAD_QUERY, ENDED],
        handler: || get(super::departures),
    },
    Call {
        method: Method::Get,
        path: "/v1/audit",
        name: "audit",
        about: "List the last changes\n\nThe last 128 reloads, changes of rates and steps against clients, refused ones too, with \
                who asked for them. The oldest is first.",
        query: None,
        answer: Answer::Json(of::<AuditReport>),
        refusals: &[NO_QUERY],
        handler: || get(super::audit),
    },
    Call {
        method: Method::Get,
        path: "/metrics",
        name: "metrics",
        about: "Read the metrics\n\nIn Prometheus' text format 0.0.4. The address `api.metrics` of the policy file serves this \
                call, and no other, over TCP.",
        query: None,
        answer: Answer::Metrics,
        refusals: &[ENDED],
        handler: || get(super::metrics),
    },
];
