//! The HTTP API on a Unix socket, and the Prometheus endpoint.
//!
//! Why: everything that `plimsoll` shows of a running daemon it asks here, and other programs can ask the same.
//! From: `docs/api.md`, which is written from the table of calls.
//! Not here: the counters and decisions in the answers (`stats`, `control`, `explain`).
//! Invariant: no request waits for the engine longer than one of its turns, nor makes it wait at all.

mod answers;
mod calls;
mod openapi;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Extension, FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use plimsoll_ports::DropReason;
use plimsoll_slo::Ledger;
use plimsoll_units::{BitRate, Span, UnitError};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;

use answers::has_programs;
pub use answers::{DepartureRow, Health, Refusal};
use calls::{CALLS, Call, FilterQuery, LastQuery, RateQuery, ReloadQuery, WindowQuery};
pub use openapi::openapi;

use crate::audit::{Asker, AuditReport, Audited, named};
use crate::cache::CacheIsolation;
use crate::control::{Control, ReloadError};
use crate::dataplane::{RateError, Snapshot};
use crate::departures::{Departure, DepartureLog};
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
    logs: Vec<Arc<DepartureLog>>,
    latest: Mutex<Option<(Instant, Arc<Snapshot>)>>,
    ledger: Mutex<Ledger>,
    confinement: Option<Confinement>,
    program_cache: Option<CacheIsolation>,
}

/// Why a request is refused.
enum Failure {
    Stopped,
    Filter(FilterError),
    Reload(ReloadError),
    Unit(UnitError),
    Window(Span),
    Class(RateError),
    Query(String),
    NoCall(Method, String),
    NoMethod(Method, String),
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
            Self::Query(why) => (StatusCode::BAD_REQUEST, why),
            Self::NoCall(method, path) => (
                StatusCode::NOT_FOUND,
                format!("no call is {method} {path}; GET /v1 describes those there are"),
            ),
            Self::NoMethod(method, path) => (
                StatusCode::METHOD_NOT_ALLOWED,
                format!("{path} is not called by {method}; GET /v1 describes all calls"),
            ),
            Self::Class(error) => (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
            Self::Reload(ReloadError::Stopped(error)) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            Self::Reload(error) => (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        };
        (status, Json(Refusal { error: why })).into_response()
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

impl Api {
    /// An API for this daemon.
    #[must_use]
    pub fn new(control: Arc<Control>, log: Arc<DepartureLog>) -> Self {
        Self::of_several(control, vec![log])
    }

    /// An API for a daemon with several threads, each with a log.
    #[must_use]
    pub fn of_several(control: Arc<Control>, logs: Vec<Arc<DepartureLog>>) -> Self {
        let (latest, ledger) = (Mutex::new(None), Mutex::new(Ledger::default()));
        Self { control, logs, latest, ledger, confinement: None, program_cache: None }
    }

    /// The last departures of all threads, oldest first.
    fn departed(logs: &[Arc<DepartureLog>], most: usize) -> Vec<Departure> {
        let [log] = logs else {
            let mut all: Vec<Departure> = logs.iter().flat_map(|log| log.last(most)).collect();
            all.sort_by_key(|departure| departure.passage.departed);
            return all.split_off(all.len().saturating_sub(most));
        };
        log.last(most)
    }

    /// An API that reports how its process is confined.
    #[must_use]
    pub fn confined(self, confinement: Confinement) -> Self {
        Self { confinement: Some(confinement), ..self }
    }

    /// An API that reports what holds programs' lines in the cache back.
    #[must_use]
    pub fn with_program_cache(self, cache: CacheIsolation) -> Self {
        Self { program_cache: Some(cache), ..self }
    }

    /// All routes, for the Unix socket.
    pub fn router(self: Arc<Self>) -> Router {
        let handler = |call: &Call| match call.query {
            None if matches!(call.answer, calls::Answer::Json(_)) => {
                (call.handler)().route_layer(from_fn(no_query))
            }
            _ => (call.handler)(),
        };
        let routes = CALLS.iter().fold(Router::new(), |router, call| router.route(call.path, handler(call)));
        routes.fallback(no_call).method_not_allowed_fallback(no_method).with_state(self)
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
        let snapshot = self.snapshot().await?;
        let mut stats = Stats::from(&*snapshot);
        let cache = self.program_cache.as_ref().filter(|_| has_programs(&snapshot));
        stats.engine.program_cache_group = cache.map(|cache| cache.group.is_some());
        let checked = self.control.checked().await;
        {
            let ledger = self.ledger.lock().await;
            let pulse = ledger.pulse();
            stats.nic_drop_seconds = ledger.nic_drop_seconds();
            stats.promises = ledger.promise_seconds().clone();
            stats.engine.cpu = pulse.cpu.as_secs_f64();
            stats.engine.no_core = pulse.no_core.map(Span::as_secs_f64);
            stats.engine.busy_poll = checked.config.engine.busy_poll;
        }
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

async fn description() -> Json<&'static serde_json::Value> {
    Json(openapi())
}

async fn health(State(api): State<Arc<Api>>) -> Answer<Json<Health>> {
    let snapshot = api.snapshot().await?;
    let (confinement, cache) = (api.confinement.clone(), api.program_cache.clone());
    Ok(Json(Health::new(&snapshot, confinement, cache, api.control.broker().has_ended())))
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
    Asked(query): Asked<ReloadQuery>,
) -> Answer<Response> {
    let reloaded = api.control.reload(&asked_by(asker), query.force).await?;
    *api.latest.lock().await = None;
    Ok(Json(reloaded).into_response())
}

async fn rate(
    State(api): State<Arc<Api>>,
    asker: Option<Extension<Asker>>,
    Asked(query): Asked<RateQuery>,
) -> Answer<Response> {
    let asker = asked_by(asker);
    let rate: BitRate = query.rate.parse().map_err(|error: UnitError| {
        let why = format!("{}: {}", named(&query.class), named(&error.to_string()));
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

async fn slo(State(api): State<Arc<Api>>, Asked(query): Asked<WindowQuery>) -> Answer<Response> {
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

async fn explained(State(api): State<Arc<Api>>, Asked(query): Asked<FilterQuery>) -> Answer<Response> {
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
    let logs = api.logs.clone();
    let (of_flows, at) = (filter.clone(), snapshot.at);
    let work = move || explain(&snapshot, &Api::departed(&logs, usize::MAX), &filter, &ranks);
    let explanation = tokio::task::spawn_blocking(work).await.map_err(|_| Stopped)?;
    let (now, asked) = api.control.handle().ask(Command::Heavy).await?;
    let slowed_down = slowed_down(&of_flows, now.as_ref(), &asked, at);
    Ok(Json(Explanation { slowed_down, ..explanation }).into_response())
}

async fn departures(
    State(api): State<Arc<Api>>,
    Asked(query): Asked<LastQuery>,
) -> Answer<Json<Vec<DepartureRow>>> {
    let snapshot = api.snapshot().await?;
    Ok(Json(
        Api::departed(&api.logs, query.last)
            .iter()
            .map(|entry| DepartureRow::new(&snapshot, entry))
            .collect(),
    ))
}

/// The query of a request; an error is answered like any other refusal.
struct Asked<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|wrong| Failure::Query(wrong.body_text()))
    }
}

/// Refuses parameters of a call that takes none; a misspelt one is told like those of other calls.
async fn no_query(request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    if query.is_empty() {
        return next.run(request).await;
    }
    let why = format!("{} takes no parameter, and `{}` was given", request.uri().path(), named(query));
    Failure::Query(why).into_response()
}

async fn no_call(method: Method, uri: Uri) -> Failure {
    Failure::NoCall(method, uri.path().to_owned())
}

async fn no_method(method: Method, uri: Uri) -> Failure {
    Failure::NoMethod(method, uri.path().to_owned())
}

async fn metrics(State(api): State<Arc<Api>>) -> Answer<Response> {
    let page = prometheus::page(&api.stats().await?);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response())
}
