//! Threads that are coprocessors for tenants' programs.
//!
//! Why: what a request takes would keep an engine's thread from all other packets.
//! From: FairNIC §3.4 (units with a fixed capacity beside the cores) and §4.4 (a limiter that all cores share).
//! Not here: programs and their packets (`dataplane::units`), the limiter (`plimsoll-smartnic`), the operations (`plimsoll-offload`).
//! Invariant: a unit serves one request at a time, that of the tenant whose turn it is; each comes back once, to the engine thread that
//! asked. A unit at rest is not woken.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::Builder;

use plimsoll_offload::{Request, Unit, Way, Worker};
use plimsoll_smartnic::{Cost, Refused, UnitQueue};

/// Whose request it is.
#[derive(Clone, Debug)]
pub(crate) struct Of {
    /// The lane of the engine that asks.
    pub(crate) lane: u32,
    /// A reload may give the lane to another tenant, which must not get the packet.
    pub(crate) tenant: Arc<str>,
    pub(crate) way: Way,
}

/// What comes back: the request with its result, or why it was not served.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) of: Of,
    pub(crate) outcome: Result<(Request, u32), Refused>,
}

/// One unit, as one engine thread sees it.
#[derive(Debug)]
pub(crate) struct UnitPort {
    thread: usize,
    unit: Sender<Message>,
    answers: Receiver<Answer>,
}

/// What engine threads tell a unit.
#[derive(Debug)]
enum Message {
    /// An engine thread asks for this.
    Ask(usize, Of, Request),
    /// These tenants may use the unit, with these weights, and no others.
    Weights(BTreeMap<Arc<str>, u32>),
}

impl UnitPort {
    /// Starts a unit that several engine threads share, and answers the end of each. Without `limited` it serves requests as they come.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub(crate) fn start(unit: Unit, threads: usize, limited: bool) -> io::Result<Vec<Self>> {
        let (server, ports) = Self::with_server(threads, limited);
        Builder::new().name(format!("plimsoll-{}", unit.name())).spawn(move || server.serve())?;
        Ok(ports)
    }

    fn with_server(threads: usize, limited: bool) -> (Server, Vec<Self>) {
        let (unit, messages) = channel();
        let (answers, ends): (Vec<_>, Vec<_>) = (0..threads).map(|_| channel()).unzip();
        let queue = if limited { UnitQueue::new(&[]) } else { UnitQueue::in_order(&[]) };
        let ports = ends.into_iter().enumerate();
        let ports = ports.map(|(thread, answers)| Self { thread, unit: unit.clone(), answers }).collect();
        (Server { queue, places: BTreeMap::new(), worker: Worker::default(), messages, answers }, ports)
    }

    /// Hands a request over. If the unit's thread has died, it never comes back.
    pub(crate) fn ask(&self, of: Of, request: Request) {
        let _ = self.unit.send(Message::Ask(self.thread, of, request));
    }

    /// Says which tenants may use the unit, and their weights. Requests that wait go on waiting, also those of other tenants.
    pub(crate) fn set_weights(&self, weights: BTreeMap<Arc<str>, u32>) {
        let _ = self.unit.send(Message::Weights(weights));
    }

    /// The next answer.
    pub(crate) fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

/// The unit's own side.
struct Server {
    queue: UnitQueue<(usize, Of, Request)>,
    /// Each tenant's place in the queue.
    places: BTreeMap<Arc<str>, u32>,
    worker: Worker,
    messages: Receiver<Message>,
    /// By engine thread.
    answers: Vec<Sender<Answer>>,
}

impl Server {
    /// Serves until all engine threads are gone.
    fn serve(mut self) {
        loop {
            match self.messages.try_recv() {
                Ok(message) => {
                    self.hear(message);
                    continue;
                }
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            if !self.serve_next() {
                let Ok(message) = self.messages.recv() else { return };
                self.hear(message);
            }
        }
    }

    /// Serves the request whose turn it is; false where none waits.
    fn serve_next(&mut self) -> bool {
        let Some((ticket, (thread, of, mut request))) = self.queue.poll() else { return false };
        let result = self.answer(&mut request);
        self.queue.complete(ticket);
        self.give_back(thread, Answer { of, outcome: Ok((request, result)) });
        true
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Weights(weights) => self.set_weights(&weights),
            Message::Ask(thread, of, request) => {
                let (cost, back) = (Cost(request.cost), of.clone());
                let asked = match self.places.get(&of.tenant) {
                    Some(&place) => self.queue.ask(place, cost, (thread, of, request)),
                    None => Err(Refused::NoUnit),
                };
                if let Err(why) = asked {
                    self.give_back(thread, Answer { of: back, outcome: Err(why) });
                }
            }
        }
    }

    /// A tenant keeps its place as long as its requests wait.
    fn set_weights(&mut self, weights: &BTreeMap<Arc<str>, u32>) {
        let waiting: BTreeSet<Arc<str>> =
            self.queue.waiting().map(|(_, of, _)| Arc::clone(&of.tenant)).collect();
        self.places.retain(|name, _| weights.contains_key(name) || waiting.contains(name));
        let taken: BTreeSet<u32> = self.places.values().copied().collect();
        let mut free = (0..).filter(|place| !taken.contains(place));
        for name in weights.keys().filter(|name| !self.places.contains_key(*name)).collect::<Vec<_>>() {
            self.places.extend(free.next().map(|place| (Arc::clone(name), place)));
        }
        let places = self.places.values().max().map_or(0, |&last| last as usize + 1);
        let mut by_place = vec![0; places];
        for (name, &place) in &self.places {
            by_place[place as usize] = weights.get(name).copied().unwrap_or(0);
        }
        self.queue.set_weights(&by_place, |_, _| true);
    }

    fn answer(&mut self, request: &mut Request) -> u32 {
        // A fault of a library's must not end the unit for all.
        let answered = catch_unwind(AssertUnwindSafe(|| self.worker.answer(request)));
        answered.unwrap_or_else(|_| {
            self.worker = Worker::default();
            Request::FAILED
        })
    }

    fn give_back(&self, thread: usize, answer: Answer) {
        // Without the engine thread, no program waits for it.
        let _ = self.answers.get(thread).map(|answers| answers.send(answer));
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_offload::Operation;
    use plimsoll_smartnic::queue::WAITING;

    use super::*;

    fn request(length: u32) -> Request {
        let packet = (0..length).map(|n| ((n * n) >> 3) as u8).collect();
        Request {
            operation: Operation::Deflate,
            packet,
            offset: 0,
            most: 2_048,
            argument: Vec::new(),
            cost: length,
        }
    }

    fn of(lane: u32, tenant: &str) -> Of {
        Of { lane, tenant: tenant.into(), way: Way::Egress }
    }

    fn weights(all: &[(&str, u32)]) -> BTreeMap<Arc<str>, u32> {
        all.iter().map(|&(name, weight)| (name.into(), weight)).collect()
    }

    fn wait(port: &UnitPort) -> Answer {
        port.answers.recv_timeout(std::time::Duration::from_secs(20)).expect("in time")
    }

    fn hear_all(server: &mut Server) {
        while let Ok(message) = server.messages.try_recv() {
            server.hear(message);
        }
    }

    /// One of each of two engine threads always asks: shares are as with one thread, and answers go to the thread that asked.
    #[test]
    fn tenants_of_several_threads_share_a_unit_by_weight() {
        let (mut server, ports) = UnitPort::with_server(2, true);
        ports[0].set_weights(weights(&[("a", 1), ("b", 3)]));
        // The one with the smaller share has the longer requests.
        let (names, lengths) = (["a", "b"], [1_500, 200]);
        for (port, (name, length)) in ports.iter().zip(names.into_iter().zip(lengths)) {
            (0..48).for_each(|_| port.ask(of(0, name), request(length)));
        }
        let mut served = [0_u64; 2];
        while served[0] < 300_000 {
            hear_all(&mut server);
            assert!(server.serve_next(), "it is never idle");
            for (thread, port) in ports.iter().enumerate() {
                while let Some(Answer { of, outcome }) = port.answer() {
                    assert_eq!(&*of.tenant, names[thread]);
                    let (answered, _) = outcome.expect("there is room");
                    served[thread] += u64::from(answered.cost);
                    port.ask(of, request(answered.cost));
                }
            }
        }
        let ratio = served[1] as f64 / served[0] as f64;
        assert!((2.8..3.2).contains(&ratio), "{served:?}");
    }

    #[test]
    fn a_newcomer_waits_for_the_request_that_is_served_and_for_no_other() {
        let (mut server, ports) = UnitPort::with_server(1, true);
        ports[0].set_weights(weights(&[("a", 1), ("b", 1)]));
        (0..64).for_each(|_| ports[0].ask(of(0, "a"), request(1_500)));
        hear_all(&mut server);
        assert!(server.serve_next());
        ports[0].ask(of(1, "b"), request(100));
        hear_all(&mut server);
        assert!(server.serve_next());
        assert_eq!(
            [ports[0].answer(), ports[0].answer()].map(|answer| answer.expect("served").of.lane),
            [0, 1]
        );
    }

    #[test]
    fn a_tenant_that_is_gone_gets_what_waits_and_no_more() {
        let ports = UnitPort::start(Unit::Deflate, 1, true).expect("a thread");
        ports[0].set_weights(weights(&[("a", 1), ("b", 1)]));
        (0..10).for_each(|_| ports[0].ask(of(0, "a"), request(1_000)));
        ports[0].set_weights(weights(&[("b", 1), ("c", 1)]));
        ports[0].ask(of(1, "b"), request(1_000));
        ports[0].ask(of(2, "c"), request(1_000));
        let mut came = [0; 3];
        (0..12).for_each(|_| came[wait(&ports[0]).of.lane as usize] += 1);
        assert_eq!(came, [10, 1, 1]);
        ports[0].set_weights(weights(&[("b", 1), ("c", 1)]));
        ports[0].ask(of(0, "a"), request(1_000));
        assert_eq!(wait(&ports[0]).outcome.expect_err("it may not"), Refused::NoUnit);
    }

    #[test]
    fn more_than_may_wait_come_back_refused() {
        let (mut server, ports) = UnitPort::with_server(1, false);
        ports[0].set_weights(weights(&[("a", 1)]));
        (0..100).for_each(|_| ports[0].ask(of(0, "a"), request(1_500)));
        hear_all(&mut server);
        while server.serve_next() {}
        let (served, refused): (Vec<_>, Vec<_>) =
            (0..100).map(|_| wait(&ports[0]).outcome).partition(Result::is_ok);
        assert_eq!((served.len(), refused.len()), (WAITING, 100 - WAITING));
        assert!(refused.iter().all(|why| matches!(why, Err(Refused::Full))));
    }
}
