//! Requests and responses over TCP, in a closed or an open loop.
//!
//! Why: the latency that users notice is the time from when a request was due until its answer.
//! From: load generators for memcached; open-loop arrivals are Poisson, and a request that waits for a free
//!       connection has been waiting since it was due.
//! Not here: the contents of messages (`Protocol`: fixed sizes here, memcached's text in `tools`).
//! Invariant: each connection has at most one request under way.

use super::bulk::exponential;
use super::socket::{self, would_block};
use super::{Events, Measured, Side};
use crate::error::LabError;
use plimsoll_scenario::WorkloadResult;
use plimsoll_units::{Bytes, Span};
use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

/// The requests and answers of a protocol.
pub(crate) trait Protocol {
    /// The next request's bytes.
    fn request(&mut self) -> &[u8];
    /// Takes the next bytes of the answer under way on connection `slot`; true when it is whole.
    fn take(&mut self, slot: usize, bytes: &[u8]) -> bool;
}

/// Requests and responses of fixed sizes.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    request: Vec<u8>,
    response: usize,
    received: Vec<usize>,
}

impl Exchange {
    /// Messages of these sizes, at least one byte each.
    pub(crate) fn of(request: Bytes, response: Bytes) -> Self {
        let size = |bytes: Bytes| usize::try_from(bytes.as_u64()).unwrap_or(usize::MAX).max(1);
        Self { request: vec![0x2a; size(request)], response: size(response), received: Vec::new() }
    }
}

impl Protocol for Exchange {
    fn request(&mut self) -> &[u8] {
        &self.request
    }

    fn take(&mut self, slot: usize, bytes: &[u8]) -> bool {
        if self.received.len() <= slot {
            self.received.resize(slot + 1, 0);
        }
        self.received[slot] += bytes.len();
        let whole = self.received[slot] >= self.response;
        if whole {
            self.received[slot] -= self.response;
        }
        whole
    }
}

const LISTENER: usize = usize::MAX - 1;

/// One accepted connection: bytes of the request under way, bytes of responses still to write.
struct Served {
    stream: TcpStream,
    got: usize,
    owed: usize,
}

/// Answers requests until the workload is over.
pub(super) fn answer(
    side: &Side<'_>,
    exchange: Exchange,
    ready: &dyn Fn(),
) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("serve", error);
    let listener = socket::listen(&side.job.workload, side.job.workload.dscp).map_err(failed)?;
    let mut events = Events::new().map_err(failed)?;
    events.watch(&listener, LISTENER, false).map_err(failed)?;
    ready();
    let mut served: Vec<Option<Served>> = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut measured = Measured::default();
    let payload = vec![0x3c; exchange.response.min(256 * 1024)];
    while !side.over(side.last()) {
        events.wait(Duration::from_millis(50)).map_err(failed)?;
        for found in events.ready() {
            if found.token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    let _ = stream.set_nonblocking(true);
                    let _ = stream.set_nodelay(true);
                    events.watch(&stream, served.len(), false).map_err(failed)?;
                    served.push(Some(Served { stream, got: 0, owed: 0 }));
                }
                continue;
            }
            let Some(one) = served[found.token].as_mut() else { continue };
            let alive = !found.readable || {
                let read = socket::read_some(&mut one.stream, &mut buffer);
                let got = one.got + read.unwrap_or(0);
                one.got = got % exchange.request.len();
                one.owed += got / exchange.request.len() * exchange.response;
                read.is_some()
            };
            if !alive || !pay(one, &payload) {
                measured.ends(&one.stream, false);
                served[found.token] = None;
                continue;
            }
            let waits = one.owed > 0;
            events.rewatch(&one.stream, found.token, true, waits).map_err(failed)?;
        }
    }
    served.iter().flatten().for_each(|one| measured.ends(&one.stream, false));
    Ok(measured.finish())
}

/// Writes the responses that are owed, as far as the socket accepts them. False when the connection is gone.
fn pay(served: &mut Served, payload: &[u8]) -> bool {
    while served.owed > 0 {
        match served.stream.write(&payload[..served.owed.min(payload.len())]) {
            Ok(0) => return false,
            Ok(count) => served.owed -= count,
            Err(error) => return would_block(&error),
        }
    }
    true
}

/// One connection of the client.
struct Asking {
    stream: TcpStream,
    /// Due time of the request under way.
    due: Option<u64>,
    /// Bytes of the request that are still to be written.
    unsent: Vec<u8>,
    connected: bool,
}

/// The client: its connections, the due times of requests that wait for one, and the measurements.
struct Asker<'a, P> {
    side: &'a Side<'a>,
    protocol: &'a mut P,
    connections: Vec<Option<Asking>>,
    /// Connections without a request, the longest idle first.
    idle: VecDeque<usize>,
    waiting: VecDeque<u64>,
    measured: Measured,
}

/// Sends requests over `connections` connections until the workload ends: `rate` a second at Poisson times, or without a
/// rate on each connection as soon as it has its answer.
pub(crate) fn ask<P: Protocol>(
    side: &Side<'_>,
    protocol: &mut P,
    connections: u32,
    rate: Option<u32>,
) -> Result<WorkloadResult, LabError> {
    let failed = |error| side.failed("ask", error);
    let server = side.job.server_and_client().0;
    let to = SocketAddrV4::new(server.address, side.job.workload.port);
    let mut events = Events::new().map_err(failed)?;
    let mut random = fastrand::Rng::with_seed(side.job.seed);
    let mut asker = Asker::new(side, protocol);
    for token in 0..connections as usize {
        let stream = socket::begin_connect(to, &side.job.workload, &mut random).map_err(failed)?;
        events.watch(&stream, token, true).map_err(failed)?;
        asker.connections.push(Some(Asking { stream, due: None, unsent: Vec::new(), connected: false }));
    }
    let gap = rate.map(|rate| Span::ns(1_000_000_000 / u64::from(rate.max(1))));
    let even = side.job.workload.even;
    let mut phase = |gap: Span| if even { random.u64(0..gap.as_u64().max(1)) } else { 0 };
    let mut due = gap.map_or(u64::MAX, |gap| side.start() + phase(gap));
    let mut buffer = vec![0; 256 * 1024];
    while !side.over(side.end()) || (asker.owes() && !side.over(side.last())) {
        events
            .wait(side.clock.until(due.min(side.end().max(side.clock.now() + 50_000_000))))
            .map_err(failed)?;
        for found in events.ready() {
            asker.handle(found.token, found.readable, found.writable, &mut buffer, gap.is_none());
        }
        while let Some(gap) = gap.filter(|_| due <= side.clock.now() && due < side.end()) {
            asker.waiting.push_back(due);
            due += if even { gap.as_u64() } else { exponential(&mut random, gap) };
        }
        asker.dispatch(&events).map_err(failed)?;
    }
    asker.connections.iter().flatten().for_each(|one| asker.measured.ends(&one.stream, true));
    let owed = asker.owed();
    asker.measured.unanswered(owed.into_iter());
    Ok(asker.measured.finish())
}

impl<'a, P: Protocol> Asker<'a, P> {
    fn new(side: &'a Side<'a>, protocol: &'a mut P) -> Self {
        Self {
            side,
            protocol,
            connections: Vec::new(),
            idle: VecDeque::new(),
            waiting: VecDeque::new(),
            measured: Measured::default(),
        }
    }

    /// Due times of the requests that have no answer yet.
    fn owed(&self) -> Vec<u64> {
        let under_way = self.connections.iter().flatten().filter_map(|one| one.due);
        self.waiting.iter().copied().chain(under_way).collect()
    }

    /// Whether answers are still to come.
    fn owes(&self) -> bool {
        !self.waiting.is_empty() || self.connections.iter().flatten().any(|one| one.due.is_some())
    }

    /// Handles a ready socket, which has connected or brings an answer.
    fn handle(&mut self, token: usize, readable: bool, writable: bool, buffer: &mut [u8], closed_loop: bool) {
        let Some(one) = self.connections[token].as_mut() else { return };
        if writable && !one.connected {
            one.connected = true;
            self.free(token, closed_loop);
        }
        if readable && !self.receive(token, buffer, closed_loop) {
            let gone = self.connections[token].take();
            gone.iter().for_each(|one| self.measured.ends(&one.stream, true));
            let lost = gone.and_then(|one| one.due);
            self.idle.retain(|idle| *idle != token);
            self.measured.errors(1);
            self.measured.unanswered(lost.into_iter());
        }
    }

    /// Marks a connection as free for the next request; in a closed loop that request is due now.
    fn free(&mut self, token: usize, closed_loop: bool) {
        self.idle.push_back(token);
        if closed_loop && !self.side.over(self.side.end()) {
            self.waiting.push_back(self.side.clock.now());
        }
    }

    /// Reads an answer. False when the connection is gone.
    fn receive(&mut self, token: usize, buffer: &mut [u8], closed_loop: bool) -> bool {
        let Some(one) = self.connections[token].as_mut() else { return true };
        let Some(count) = socket::read_some(&mut one.stream, buffer) else { return false };
        let whole = count > 0 && self.protocol.take(token, &buffer[..count]);
        if whole && let Some(due) = one.due.take() {
            self.measured.answered(due, self.side.clock.now());
            self.free(token, closed_loop);
        }
        true
    }

    /// Gives due requests to idle connections, and writes unsent bytes.
    fn dispatch(&mut self, events: &Events) -> std::io::Result<()> {
        while !self.waiting.is_empty()
            && let Some(token) = self.idle.pop_front()
        {
            let Some(one) = self.connections[token].as_mut() else { continue };
            one.due = self.waiting.pop_front();
            one.unsent.extend_from_slice(self.protocol.request());
        }
        for (token, slot) in self.connections.iter_mut().enumerate() {
            let Some(one) = slot.as_mut().filter(|one| one.connected) else { continue };
            if !one.unsent.is_empty() {
                match one.stream.write(&one.unsent) {
                    Ok(count) => drop(one.unsent.drain(..count)),
                    Err(error) if would_block(&error) => {}
                    Err(_) => one.unsent.clear(), // the read side reports the loss
                }
            }
            events.rewatch(&one.stream, token, true, !one.unsent.is_empty())?;
        }
        Ok(())
    }
}
