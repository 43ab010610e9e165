//! Connections to the API: how many there may be, and how long each may take to ask.
//!
//! Why: a program that opens connections and says nothing, or says it a byte at a time, must not use up the descriptors that
//! requests and tenants' ports need, nor the places that other requests need.
//! From: hyper's HTTP/1.1, which `axum::serve` runs without bounds.
//! Not here: the answers (`api`), and file descriptors that come over a connection (`local`).
//! Invariant: at most [`Bounds::most`] connections at once, and none without a request for longer than [`HEADERS`]. While all
//! places are taken, a new connection replaces one that has been silent for at least [`FIRST`]; it then has that time
//! itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::audit::Asker;

/// How long a connection may take until it has sent a request's head, the first or the next one.
const HEADERS: Duration = Duration::from_secs(5);

/// The time that a connection always has to send a request's head. An honest program needs less, and 64
/// connections are accepted in this time: more than wait before a scraper's.
const FIRST: Duration = Duration::from_millis(10);

/// The time that a connection always has to read its answer, at a listener whose connections carry one request each.
const READ: Duration = Duration::from_secs(1);

/// What the connections to one listener may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The listener as messages name it.
    pub(crate) name: &'static str,
    /// How many there may be at once; a further one takes the place of the one that has been silent longest.
    pub(crate) most: usize,
    /// The longest that a connection may last, where each carries one request only; it is closed then.
    pub(crate) longest: Option<Duration>,
}

/// Any program that reaches the address may connect; pages are small.
pub(crate) const METRICS: Bounds =
    Bounds { name: "`api.metrics`", most: 64, longest: Some(Duration::from_secs(30)) };

/// Programs that the socket's file mode lets in. A reload may take long.
pub(crate) const SOCKET: Bounds = Bounds { name: "`api.socket`", most: 256, longest: None };

/// The state of a connection, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has sent no request, or not all of its head.
    Silent(Instant),
    /// Its request is being answered.
    Asked(Instant),
}

/// A connection that has a place.
#[derive(Debug)]
struct Seat {
    phase: Arc<Mutex<Phase>>,
    task: AbortHandle,
}

impl Seat {
    fn phase(&self) -> Phase {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers requests for ever. Each request carries its [`Asker`].
pub(crate) async fn serve(mut listener: impl Listener<Addr: Into<Asker>>, router: Router, bounds: Bounds) {
    let mut seats = VecDeque::with_capacity(bounds.most);
    let mut told = false;
    loop {
        let (io, asker) = listener.accept().await;
        seats.retain(|seat: &Seat| !seat.task.is_finished());
        if seats.len() >= bounds.most {
            if !told {
                told = true;
                let Bounds { name, most, .. } = bounds;
                eprintln!(
                    "plimsoll: {name} has {most} connections, which is as many as there may be: now, and whenever that \
                     happens again, the one that has been silent longest makes room for the next; find the program that opens so \
                     many"
                );
            }
            if !make_room(&mut seats, &bounds).await {
                continue;
            }
        }
        let phase = Arc::new(Mutex::new(Phase::Silent(Instant::now())));
        let task = tokio::spawn(converse(io, asker.into(), router.clone(), bounds, Arc::clone(&phase)));
        seats.push_back(Seat { phase, task: task.abort_handle() });
    }
}

/// Ends the connection that has been silent longest, once its time is over; else one whose time to read its answer is
/// over. Returns whether a place is free now.
async fn make_room(seats: &mut VecDeque<Seat>, bounds: &Bounds) -> bool {
    loop {
        seats.retain(|seat| !seat.task.is_finished());
        if seats.len() < bounds.most {
            return true;
        }
        let Some((index, at)) = next_to_go(seats, bounds) else { return false };
        if at > Instant::now() {
            tokio::time::sleep_until(at).await;
        } else if let Some(seat) = seats.remove(index) {
            seat.task.abort();
        }
    }
}

/// The connection that loses its place next, and when.
fn next_to_go(seats: &VecDeque<Seat>, bounds: &Bounds) -> Option<(usize, Instant)> {
    let phases = || seats.iter().map(Seat::phase).enumerate();
    let silent = phases().filter_map(|(index, phase)| match phase {
        Phase::Silent(since) => Some((since + FIRST, index)),
        Phase::Asked(_) => None,
    });
    let read = phases().filter_map(|(index, phase)| match phase {
        Phase::Asked(since) if bounds.longest.is_some() => Some((since + READ, index)),
        _ => None,
    });
    let now = Instant::now();
    let next = silent.min().or_else(|| read.min().filter(|(at, _)| *at <= now));
    next.map(|(at, index)| (index, at))
}

/// Answers the requests of one connection.
async fn converse(
    io: impl AsyncRead + AsyncWrite + Unpin,
    asker: Asker,
    router: Router,
    bounds: Bounds,
    phase: Arc<Mutex<Phase>>,
) {
    let router = TowerToHyperService::new(router);
    let enter = |next| *phase.lock().unwrap_or_else(PoisonError::into_inner) = next;
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(asker.clone());
        enter(Phase::Asked(Instant::now()));
        let answered = router.call(request);
        async move {
            let answer = answered.await;
            if bounds.longest.is_none() {
                enter(Phase::Silent(Instant::now()));
            }
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .keep_alive(bounds.longest.is_none())
        .serve_connection(TokioIo::new(io), service);
    // An error concerns the connection's client only.
    match bounds.longest {
        Some(longest) => drop(tokio::time::timeout(longest, connection).await),
        None => drop(connection.await),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const FEW: Bounds = Bounds { most: 2, ..METRICS };

    /// Sends these bytes; answers what comes back before the other end closes, and after how long.
    async fn answer(mut stream: TcpStream, bytes: &[u8]) -> (String, Duration) {
        let begun = tokio::time::Instant::now();
        let mut got = Vec::new();
        // A connection that is closed at once may refuse either.
        let _ = stream.write_all(bytes).await;
        let _ = stream.read_to_end(&mut got).await;
        (String::from_utf8_lossy(&got).into_owned(), begun.elapsed())
    }

    /// Runs this beside a server that has few places and answers `/metrics` at once and `/slow` later.
    fn beside_a_server<F: Future<Output = ()>>(bounds: Bounds, job: impl FnOnce(SocketAddr) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound");
            let slow = || async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                "late"
            };
            let router = Router::new().route("/metrics", get(|| async { "page" })).route("/slow", get(slow));
            tokio::spawn(serve(listener, router, bounds));
            job(address).await;
        });
    }

    const METRICS_REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    const SLOW_REQUEST: &[u8] = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n";

    #[test]
    fn who_is_being_answered_keeps_its_place_for_a_while() {
        beside_a_server(FEW, async |address| {
            let connect = || async { TcpStream::connect(address).await.expect("a listener") };
            let (one, two) = (connect().await, connect().await);
            let later = |after: u64| async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                answer(connect().await, METRICS_REQUEST).await
            };
            let (one, two, excess, late) =
                tokio::join!(answer(one, SLOW_REQUEST), answer(two, SLOW_REQUEST), later(200), later(1_500));
            assert_eq!(excess.0, "", "two are there already");
            assert!(excess.1 < Duration::from_secs(1), "closed at once: {:?}", excess.1);
            assert!(late.0.ends_with("page"), "one of them has had its time: {late:?}");
            let answered = [one, two].iter().filter(|(got, _)| got.ends_with("late")).count();
            assert_eq!(answered, 1, "and the other its answer");
        });
    }

    /// Many clients that send a byte now and then, or nothing, and connect anew as soon as they are closed.
    #[test]
    fn slow_connections_keep_no_scrape_waiting() {
        beside_a_server(METRICS, async |address| {
            for number in 0..200_usize {
                tokio::spawn(async move {
                    loop {
                        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
                        for byte in METRICS_REQUEST.chunks(1).take(if number % 2 == 0 { 30 } else { 0 }) {
                            if stream.write_all(byte).await.is_err() {
                                break;
                            }
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                        // Until it is hung up on.
                        let _ = stream.read(&mut [0]).await;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                });
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            for scrape in 0..10 {
                let stream = TcpStream::connect(address).await.expect("a listener");
                let (got, after) = answer(stream, METRICS_REQUEST).await;
                assert!(got.ends_with("page"), "scrape {scrape}: {got:?}");
                assert!(after < Duration::from_secs(3), "scrape {scrape} took {after:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }

    #[test]
    fn silent_connections_leave_soon_and_are_bounded() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound");
            let router = Router::new().route("/metrics", get(|| async { "page" }));
            tokio::spawn(serve(listener, router, FEW));
            let connect = || async { TcpStream::connect(address).await.expect("a listener") };
            let request: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
            let (idle, half) = (connect().await, connect().await);
            let (idle, half) = tokio::join!(answer(idle, b""), answer(half, &request[..20]));
            for (got, after) in [idle, half] {
                assert!(!got.contains("page"), "{got}");
                assert!(after > Duration::from_secs(4) && after < Duration::from_secs(15), "{after:?}");
            }
            // Both places are free again, and a page ends its connection.
            for _ in 0..5 {
                let (got, after) = answer(connect().await, request).await;
                assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("page"), "{got}");
                assert!(after < Duration::from_secs(4), "{after:?}");
            }
        });
    }
}
