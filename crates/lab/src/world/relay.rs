//! What loses, repeats and delays the messages of hosts' control channels.
//!
//! Why: `faults: {feedback: ..}` holds live as well; the kernel's own way (tc-netem(8)) is not in every kernel.
//! From: `docs/scenarios.md`, "Faults"; the law is the scenario's, as in virtual time.
//! Not here: what they say, which is sealed, and who listens: hosts' maps name a relay in place of each host's channel.
//! Invariant: its threads end with the value; what is not lost, repeated or late arrives as it was, in order.

use super::SWITCH;
use crate::error::LabError;
use crate::netns;
use plimsoll_scenario::{Fate, FeedbackFaults};
use plimsoll_units::Span;
use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a relay with nothing to do sleeps at most, and one that holds a late message.
const IDLE: Duration = Duration::from_millis(50);
const HOLDING: Duration = Duration::from_millis(1);

/// A thread for each channel, in the switch's namespace.
pub(super) struct Relays {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    counts: Arc<Counts>,
}

/// What became of all messages.
#[derive(Default)]
struct Counts {
    came: AtomicU64,
    lost: AtomicU64,
    late: AtomicU64,
    again: AtomicU64,
}

impl Relays {
    /// Takes what comes at the first of each two addresses to the second.
    pub(super) fn start(
        faults: FeedbackFaults,
        seed: u64,
        ways: &[(SocketAddrV4, SocketAddrV4)],
    ) -> Result<Self, LabError> {
        let mut relays = Self { stop: Arc::default(), threads: Vec::new(), counts: Arc::default() };
        for (&(at, to), seed) in ways.iter().zip(seed..) {
            let socket = netns::within(SWITCH, || UdpSocket::bind(at))?;
            let socket = socket.map_err(|e| LabError::io(format!("listen at {at}"), e))?;
            let (stop, counts) = (Arc::clone(&relays.stop), Arc::clone(&relays.counts));
            let random = fastrand::Rng::with_seed(seed);
            let mut relay = Relay { socket, to, faults, random, held: Vec::new(), counts };
            relays.threads.push(std::thread::spawn(move || relay.serve(&stop)));
        }
        Ok(relays)
    }

    /// What there is to say of them.
    pub(super) fn note(&self) -> String {
        let Counts { came, lost, late, again } = &*self.counts;
        let [came, lost, late, again] = [came, lost, late, again].map(|count| count.load(Ordering::Relaxed));
        format!("of {came} messages of control {lost} were lost, {late} were late and {again} came twice")
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // One that panicked has ended as well.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// One channel's way.
struct Relay {
    socket: UdpSocket,
    to: SocketAddrV4,
    faults: FeedbackFaults,
    random: fastrand::Rng,
    /// Late copies, and when they are due.
    held: Vec<(Instant, Vec<u8>)>,
    counts: Arc<Counts>,
}

impl Relay {
    fn serve(&mut self, stop: &AtomicBool) {
        let mut buffer = vec![0; 65_536];
        while !stop.load(Ordering::Relaxed) {
            let wait = if self.held.is_empty() { IDLE } else { HOLDING };
            if self.socket.set_read_timeout(Some(wait)).is_err() {
                return;
            }
            if let Ok(len) = self.socket.recv(&mut buffer) {
                self.take(&buffer[..len]);
            }
            let now = Instant::now();
            let due: Vec<(Instant, Vec<u8>)> = self.held.extract_if(.., |(due, _)| *due <= now).collect();
            due.iter().for_each(|(_, message)| self.pass_on(message));
        }
    }

    fn take(&mut self, message: &[u8]) {
        let Fate { lost, late, again } = self.faults.fate(|| self.random.f64());
        let count =
            |counter: &AtomicU64, happened: bool| counter.fetch_add(happened.into(), Ordering::Relaxed);
        count(&self.counts.came, true);
        count(&self.counts.lost, lost);
        if lost {
            return;
        }
        count(&self.counts.late, late > Span::ZERO);
        count(&self.counts.again, again.is_some());
        let second = again.map(|again| late + again);
        for late in [Some(late), second].into_iter().flatten() {
            if late == Span::ZERO {
                self.pass_on(message);
            } else {
                self.held.push((Instant::now() + Duration::from_nanos(late.as_u64()), message.to_vec()));
            }
        }
    }

    /// A daemon that is away loses it, as it would without a relay.
    fn pass_on(&self, message: &[u8]) {
        let _: io::Result<usize> = self.socket.send_to(message, self.to);
    }
}
