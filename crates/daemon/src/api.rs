//! The HTTP API on a Unix socket, and the Prometheus endpoint.
//!
//! Why: everything that `plimsoll` shows of a running daemon it asks here, and other programs can ask the same.
//! From: `docs/operations.md`, "API".
//! Not here: the counters and decisions in the answers (`stats`, `control`, `explain`).
//! Invariant: no request waits for the engine longer than one of its turns, nor makes it wait at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use plimsoll_ports::DropReason;
use plimsoll_slo::Ledger;
use plimsoll_units::{BitRate, Span, UnitError};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use crate::audit::{Asker, AuditReport, Audited};
use crate::control::{Control, ReloadError};
use crate::departures::{Departure, DepartureLog};
use crate::engine::{HostState, RateError, Snapshot};
use crate::explain::{Explanation, excluded, explain, placement, slowed_down};
use crate::filter::{Filter, FilterError};
use crate::heavy::HeavyReport;
use crate::prometheus;
use crate::sandbox::Confinement;
use crate::stats::Stats;
use crate::thread::{Command, Stopped};

/// A snapshot younger than this is used again: at most twenty a second are taken, however many requests there are.
const FRESH: Duration = Duration::from_millis(50);

/// How often tenants' promises are judged.
const LOOK: Duration = Duration::from_secs(1);

/// The state that all handlers share.
#[derive(Debug)]
pub struct Api {
    control: Arc<Control>,
    log: Arc<DepartureLog>,
    latest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
    ledger: Mutex<Ledger>,
    confinement: Option<Confinement>,
}

/// Why a request is refused.
enum Failure {
    Stopped,
    Filter(FilterError),
    Reload(ReloadError),
    Unit(UnitError),
    Window(Span),
    Class(RateError),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, why) = match self {
            Self::Stopped => (StatusCode::SERVICE_UNAVAILABLE, Stopped.to_string()),
            Self::Filter(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            Self::Unit(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            Self::Window(window) => (
                StatusCode::BAD_REQUEST,
                format!(
                    "the window is {window}; a minute is remembered by the second and an hour by the minute: 1s to 3600s"
                ),
            ),
            Self::Class(error) => (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
            Self::Reload(ReloadError::Stopped(error)) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            Self::Reload(error) => (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        };
        (status, Json(json!({ "error": why }))).into_response()
    }
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<FilterError> for Failure {
    fn from(error: FilterError) -> Self {
        Self::Filter(error)
    }
}

impl From<ReloadError> for Failure {
    fn from(error: ReloadError) -> Self {
        Self::Reload(error)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterQuery {
    #[serde(default)]
    filter: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReloadQuery {
    /// Whether TAPs may be taken away from their tenants.
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RateQuery {
    class: String,
    rate: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowQuery {
    #[serde(default = "minute")]
    window: String,
    /// Begin of the window, as time since the daemon's start.
    #[serde(default = "the_start")]
    since: String,
}

fn the_start() -> String {
    "0s".to_owned()
}

fn minute() -> String {
    "60s".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LastQuery {
    #[serde(default = "hundred")]
    last: usize,
}

fn hundred() -> usize {
    100
}

impl Api {
    /// An API for this daemon.
    #[must_use]
    pub fn new(control: Arc<Control>, log: Arc<DepartureLog>) -> Self {
        let (latest, ledger) = (Mutex::new(None), Mutex::new(Ledger::default()));
        Self { control, log, latest, ledger, confinement: None }
    }

    /// An API that reports how its process is confined.
    #[must_use]
    pub fn confined(self, confinement: Confinement) -> Self {
        Self { confinement: Some(confinement), ..self }
    }

    /// All routes, for the Unix socket.
    pub fn router(self: Arc<Self>) -> Router {
        Router::new()
            .route("/v1/health", get(health))
            .route("/v1/stats", get(stats))
            .route("/v1/policy", get(policy))
            .route("/v1/reload", post(reload))
            .route("/v1/rate", post(rate))
            .route("/v1/slo", get(slo))
            .route("/v1/audit", get(audit))
            .route("/v1/heavy", get(heavy))
            .route("/v1/explain", get(explained))
            .route("/v1/departures", get(departures))
            .route("/metrics", get(metrics))
            .with_state(self)
    }

    /// The metrics page only, for a TCP address.
    pub fn metrics_router(self: Arc<Self>) -> Router {
        Router::new().route("/metrics", get(metrics)).with_state(self)
    }

    /// Looks at the engine each second, to judge tenants' promises, until the engine has ended.
    pub async fn keep_watch(self: Arc<Self>) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let Ok(watched) = self.control.handle().ask(Command::Watch).await else { return };
            self.ledger.lock().await.note(watched);
        }
    }

    async fn snapshot(&self) -> Result<Arc<Snapshot>, Stopped> {
        let mut latest = self.latest.lock().await;
        if let Some((taken, snapshot)) = &*latest
            && taken.elapsed() < FRESH
        {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = Arc::new(self.control.handle().ask(Command::Snapshot).await?);
        *latest = Some((Instant::now(), Arc::clone(&snapshot)));
        Ok(snapshot)
    }
}

impl Api {
    /// All counters by name: the engine's, and what the kernel dropped before it.
    async fn stats(&self) -> Result<Stats, Stopped> {
        let mut stats = Stats::from(&*self.snapshot().await?);
        stats.nic_drop_seconds = self.ledger.lock().await.nic_drop_seconds();
        let checked = self.control.checked().await;
        // Entering a namespace takes a thread of its own.
        let broker = self.control.broker().clone();
        let asked = tokio::task::spawn_blocking(move || broker.dropped(&checked)).await;
        for (name, count) in asked.map_err(|_| Stopped)? {
            if let Some(tenant) = stats.tenants.get_mut(&name) {
                *tenant.drops.entry(DropReason::KernelFull.name().to_owned()).or_default() += count;
            }
        }
        Ok(stats)
    }
}

type Answer<T> = Result<T, Failure>;

async fn health(State(api): State<Arc<Api>>) -> Answer<Response> {
    let snapshot = api.snapshot().await?;
    let lanes = snapshot.lanes.iter().filter(|lane| lane.tenant.is_some());
    let lost: Vec<&str> = lanes
        .chain([&snapshot.uplink])
        .filter(|port| port.port.is_none())
        .map(|port| port.name.as_str())
        .collect();
    let down = snapshot.uplink.down;
    let broker_ended = api.control.broker().has_ended();
    let status = if lost.is_empty() && !down && !broker_ended { "ok" } else { "degraded" };
    let confinement = api.confinement.clone().map(|confinement| Confinement { broker_ended, ..confinement });
    let silent: Vec<&str> = snapshot
        .fleet
        .iter()
        .flat_map(|fleet| &fleet.hosts)
        .filter(|host| host.state == HostState::Silent)
        .map(|host| host.name.as_str())
        .collect();
    let health = json!({
        "status": status, "lost_ports": lost, "uplink_down": down, "silent_hosts": silent, "generation": snapshot.generation,
        "confinement": confinement,
    });
    Ok(Json(health).into_response())
}

async fn stats(State(api): State<Arc<Api>>) -> Answer<Json<Stats>> {
    Ok(Json(api.stats().await?))
}

async fn policy(State(api): State<Arc<Api>>) -> Answer<Response> {
    let checked = api.control.checked().await;
    Ok(Json(plimsoll_policy::report(&checked)).into_response())
}

async fn reload(
    State(api): State<Arc<Api>>,
    asker: Option<Extension<Asker>>,
    Query(query): Query<ReloadQuery>,
) -> Answer<Response> {
    let reloaded = api.control.reload(&asked_by(asker), query.force).await?;
    *api.latest.lock().await = None;
    Ok(Json(reloaded).into_response())
}

async fn rate(
    State(api): State<Arc<Api>>,
    asker: Option<Extension<Asker>>,
    Query(query): Query<RateQuery>,
) -> Answer<Response> {
    let asker = asked_by(asker);
    let rate: BitRate = query.rate.parse().map_err(|error: UnitError| {
        let why = format!("{}: {error}", query.class);
        api.control.audit().note(Audited::RateRefused, &asker.to_string(), &why);
        Failure::Unit(error)
    })?;
    let rated = api.control.set_rate(&asker, query.class, rate).await?.map_err(Failure::Class)?;
    *api.latest.lock().await = None;
    Ok(Json(rated).into_response())
}

/// The sender of a request; requests that come through no listener are the program's own.
fn asked_by(asker: Option<Extension<Asker>>) -> Asker {
    asker.map_or_else(Asker::default, |Extension(asker)| asker)
}

async fn audit(State(api): State<Arc<Api>>) -> Json<AuditReport> {
    Json(api.control.audit().report())
}

async fn slo(State(api): State<Arc<Api>>, Query(query): Query<WindowQuery>) -> Answer<Response> {
    let window: Span = query.window.parse().map_err(Failure::Unit)?;
    if !(Span::secs(1)..=Span::secs(3_600)).contains(&window) {
        return Err(Failure::Window(window));
    }
    let since: Span = query.since.parse().map_err(Failure::Unit)?;
    Ok(Json(api.ledger.lock().await.report(window, since)).into_response())
}

async fn heavy(State(api): State<Arc<Api>>) -> Answer<Response> {
    let (now, asked) = api.control.handle().ask(Command::Heavy).await?;
    let snapshot = api.snapshot().await?;
    Ok(Json(HeavyReport::new(now.as_ref(), &asked, snapshot.at)).into_response())
}

async fn explained(State(api): State<Arc<Api>>, Query(query): Query<FilterQuery>) -> Answer<Response> {
    let filter: Filter = query.filter.parse()?;
    let snapshot = api.snapshot().await?;
    if let Some(tenant) = &filter.tenant
        && !snapshot.lanes.iter().any(|lane| lane.name == *tenant)
    {
        return Err(FilterError::NoTenant(tenant.clone()).into());
    }
    if let Some(why) = excluded(&snapshot, &filter) {
        return Err(why.into());
    }
    let class = placement(&snapshot, &filter).class;
    let ranks = api.control.handle().ask(|answer| Command::Ranks(class, answer)).await?;
    let log = Arc::clone(&api.log);
    let (of_flows, at) = (filter.clone(), snapshot.at);
    let work = move || explain(&snapshot, &log.last(usize::MAX), &filter, &ranks);
    let explanation = tokio::task::spawn_blocking(work).await.map_err(|_| Stopped)?;
    let (now, asked) = api.control.handle().ask(Command::Heavy).await?;
    let slowed_down = slowed_down(&of_flows, now.as_ref(), &asked, at);
    Ok(Json(Explanation { slowed_down, ..explanation }).into_response())
}

async fn departures(State(api): State<Arc<Api>>, Query(query): Query<LastQuery>) -> Answer<Response> {
    let snapshot = api.snapshot().await?;
    let entries: Vec<_> = api.log.last(query.last).iter().map(|entry| departure(&snapshot, entry)).collect();
    Ok(Json(entries).into_response())
}

fn departure(snapshot: &Snapshot, entry: &Departure) -> serde_json::Value {
    let current = entry.passage.generation == snapshot.generation;
    let program = &snapshot.program;
    let class = current.then(|| program.node(entry.passage.class).name.as_str());
    let limit = entry.passage.limited_by.filter(|_| current).map(|limit| program.limit(limit).name.as_str());
    let lane = snapshot.lanes.iter().find(|lane| lane.lane == Some(entry.passage.lane.into()));
    json!({
        "tenant": lane.map(|lane| lane.name.as_str()),
        "class": class,
        "arrived_ns": entry.passage.arrived.as_u64(),
        "head_ns": entry.passage.head.as_u64(),
        "departed_ns": entry.passage.departed.as_u64(),
        "limited_us": entry.passage.limited.as_u64() / 1_000,
        "limited_by": limit,
        "bytes": entry.passage.len,
        "frames": entry.passage.frames,
        "src": entry.addresses.map(|(src, _)| src.to_string()),
        "dst": entry.addresses.map(|(_, dst)| dst.to_string()),
        "protocol": entry.protocol,
        "src_port": entry.ports.map(|(src, _)| src),
        "dst_port": entry.ports.map(|(_, dst)| dst),
        "dscp": entry.dscp,
        "vlan": entry.vlan,
        "priority": entry.metadata.priority,
        "cgroup": entry.metadata.cgroup,
        "user": entry.metadata.user,
        "app": entry.metadata.app,
        "core": entry.metadata.core,
    })
}

async fn metrics(State(api): State<Arc<Api>>) -> Answer<Response> {
    let page = prometheus::page(&api.stats().await?);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}
