//! Connections to the API: how many there may be, and how long each may take to ask.
//!
//! Why: a program that opens connections and says nothing must not use up the descriptors that everybody else's
//! requests, and tenants' ports, need.
//! From: hyper's HTTP/1.1, which `axum::serve` runs without bounds.
//! Not here: what is answered (`api`).
//! Invariant: at most so many connections at once, and none without a request for longer than [`HEADERS`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::Semaphore;

/// How long a connection may take until it has sent a request's head, the first or the next one.
const HEADERS: Duration = Duration::from_secs(5);

/// What the connections to one listener may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The listener as messages name it.
    pub(crate) name: &'static str,
    /// How many there may be at once; further ones are closed at once.
    pub(crate) most: usize,
    /// How long one may last, after which it is closed whatever it does: each then has one request only.
    pub(crate) longest: Option<Duration>,
}

/// Anybody who reaches the address may connect; pages are small.
pub(crate) const METRICS: Bounds =
    Bounds { name: "`api.metrics`", most: 64, longest: Some(Duration::from_secs(30)) };

/// Those whom the socket's file lets in. A reload may take long.
pub(crate) const SOCKET: Bounds = Bounds { name: "`api.socket`", most: 256, longest: None };

/// Answers requests for ever.
pub(crate) async fn serve(mut listener: impl Listener, router: Router, bounds: Bounds) {
    let free = Arc::new(Semaphore::new(bounds.most));
    let mut told = false;
    loop {
        let (io, _) = listener.accept().await;
        let Ok(place) = Arc::clone(&free).try_acquire_owned() else {
            if !told {
                told = true;
                let Bounds { name, most, .. } = bounds;
                eprintln!(
                    "plimsoll: {name} has {most} connections, which is as many as there may be: further ones are \
                     closed at once, now and whenever that happens again; look who opens so many"
                );
            }
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .keep_alive(bounds.longest.is_none())
            .serve_connection(TokioIo::new(io), service);
        tokio::spawn(async move {
            // What becomes of a connection is its client's matter.
            match bounds.longest {
                Some(longest) => drop(tokio::time::timeout(longest, connection).await),
                None => drop(connection.await),
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const FEW: Bounds = Bounds { most: 2, ..METRICS };

    /// What comes back to these bytes before the other end closes, and after how long.
    async fn answer(mut stream: TcpStream, bytes: &[u8]) -> (String, Duration) {
        let begun = tokio::time::Instant::now();
        let mut got = Vec::new();
        // A connection that is closed at once may refuse either.
        let _ = stream.write_all(bytes).await;
        let _ = stream.read_to_end(&mut got).await;
        (String::from_utf8_lossy(&got).into_owned(), begun.elapsed())
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
            let (idle, half) = (answer(idle, b""), answer(half, &request[..20]));
            let excess = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                answer(connect().await, request).await
            };
            let (idle, half, excess) = tokio::join!(idle, half, excess);
            assert_eq!(excess.0, "", "two are there already");
            assert!(excess.1 < Duration::from_secs(1), "closed at once: {:?}", excess.1);
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
