//! Datagrams on their way, and what their receiver saw of them.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};

use super::Stage;

impl Stage {
    /// Sends datagrams of 1,000 bytes from a namespace to another at `rate` a second, until stopped.
    pub fn traffic(&self, from: (&str, Ipv4Addr), to: (&str, Ipv4Addr), port: u16, rate: u32) -> Traffic {
        let at = SocketAddrV4::new(to.1, port);
        let socket = self.inside(to.0, move || UdpSocket::bind(at).expect("bound"));
        let socket = socket.join().expect("bound");
        // On a busy machine the receiver may wait long for a core; no datagram may be lost for that.
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).expect("root may");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        let counts = Arc::new(Counts::default());
        let receiving = thread::spawn({
            let counts = Arc::clone(&counts);
            move || counts.receive(&socket)
        });
        let own = SocketAddrV4::new(from.1, 0);
        let sending = self.inside(from.0, {
            let counts = Arc::clone(&counts);
            move || counts.send(&UdpSocket::bind(own).expect("bound"), at, rate)
        });
        Traffic { counts, sending: Some(sending), receiving: Some(receiving) }
    }
}

/// Datagrams on their way.
pub struct Traffic {
    counts: Arc<Counts>,
    sending: Option<JoinHandle<()>>,
    receiving: Option<JoinHandle<()>>,
}

/// State that both ends share.
#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    deaf: AtomicBool,
    over: AtomicBool,
    sent: AtomicU64,
    /// When each came, and how long it took, in nanoseconds.
    came: Mutex<Vec<(u64, u64)>>,
}

/// The figures of a stretch of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Datagrams that came.
    pub arrived: u64,
    /// The 99th percentile of the delay.
    pub p99: Duration,
    /// The longest time without any.
    pub gap: Duration,
}

impl Counts {
    fn receive(&self, socket: &UdpSocket) {
        let mut buffer = [0; 2_048];
        while !self.over.load(Ordering::Relaxed) {
            if self.deaf.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
            } else if socket.recv(&mut buffer).is_ok() {
                let sent = u64::from_ne_bytes(*buffer.first_chunk().expect("two kilobytes"));
                let now = monotonic();
                self.came.lock().expect("no panic beside").push((now, now.saturating_sub(sent)));
            }
        }
    }

    fn send(&self, socket: &UdpSocket, at: SocketAddrV4, rate: u32) {
        let started = Instant::now();
        let mut tried = 0_u64;
        let mut datagram = [7; 1_000];
        while !self.stop.load(Ordering::Relaxed) {
            let due = started.elapsed().as_micros() as u64 * u64::from(rate) / 1_000_000;
            // A sender that had no core for long would else fill the queue of its device, which drops without a word.
            tried = tried.max(due.saturating_sub(u64::from(rate) / 2));
            while tried < due && !self.stop.load(Ordering::Relaxed) {
                datagram[..8].copy_from_slice(&monotonic().to_ne_bytes());
                self.sent.fetch_add(u64::from(socket.send_to(&datagram, at).is_ok()), Ordering::Relaxed);
                tried += 1;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Traffic {
    /// The number of datagrams that arrive in `span`.
    pub fn arrive(&self, span: Duration) -> u64 {
        let mark = self.mark();
        thread::sleep(span);
        self.since(mark).arrived
    }

    /// The number of datagrams that arrive a second, over `span` or, on a busy machine, longer.
    pub fn rate(&self, span: Duration) -> f64 {
        let (mark, begun) = (self.mark(), Instant::now());
        thread::sleep(span);
        self.since(mark).arrived as f64 / begun.elapsed().as_secs_f64()
    }

    /// Marks this moment for [`Traffic::since`].
    pub fn mark(&self) -> (usize, u64) {
        (self.counts.came.lock().expect("no panic beside").len(), monotonic())
    }

    /// The figures of the traffic since then.
    pub fn since(&self, (first, begun): (usize, u64)) -> Seen {
        let came = self.counts.came.lock().expect("no panic beside");
        let fresh = &came[first..];
        let mut delays: Vec<u64> = fresh.iter().map(|&(_, delay)| delay).collect();
        delays.sort_unstable();
        let p99 = delays.get(delays.len().saturating_sub(delays.len() / 100 + 1)).copied().unwrap_or(0);
        let moments = std::iter::once(begun).chain(fresh.iter().map(|&(at, _)| at));
        let next = fresh.iter().map(|&(at, _)| at).chain([monotonic()]);
        let gap = moments.zip(next).map(|(from, to)| to.saturating_sub(from)).max().unwrap_or(0);
        let arrived = delays.len() as u64;
        Seen { arrived, p99: Duration::from_nanos(p99), gap: Duration::from_nanos(gap) }
    }

    /// Makes the receiver stop reading, or read again.
    pub fn be_deaf(&self, deaf: bool) {
        self.counts.deaf.store(deaf, Ordering::Relaxed);
    }

    /// The number of datagrams sent so far that have not arrived.
    pub fn missing(&self) -> u64 {
        let sent = self.counts.sent.load(Ordering::Relaxed);
        sent.saturating_sub(self.counts.came.lock().expect("no panic beside").len() as u64)
    }

    /// Stops sending, and waits until nothing arrives any more; returns the numbers of datagrams sent and received.
    pub fn drain(&mut self) -> (u64, u64) {
        self.counts.stop.store(true, Ordering::Relaxed);
        self.sending.take().into_iter().for_each(|thread| thread.join().expect("no panic"));
        while self.arrive(Duration::from_millis(700)) > 0 {}
        let came = self.counts.came.lock().expect("no panic beside").len() as u64;
        (self.counts.sent.load(Ordering::Relaxed), came)
    }

    pub fn end(mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        self.counts.over.store(true, Ordering::Relaxed);
        let threads = [self.sending.take(), self.receiving.take()];
        threads.into_iter().flatten().for_each(|thread| thread.join().expect("no panic"));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        self.counts.over.store(true, Ordering::Relaxed);
    }
}

/// Nanoseconds of the clock that all namespaces of a machine share, and that is never stepped.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has it");
    Duration::from(now).as_nanos() as u64
}
