//! Relays that lose, repeat and delay the messages of hosts' control channels.
//!
//! Why: `faults: {feedback: ..}` works live too; the kernel's own means (tc-netem(8)) is missing from many kernels.
//! From: `docs/scenarios.md`, "Faults"; the scenario chooses each message's fate, as in virtual time.
//! Not here: the messages' contents, which are sealed. Hosts' files name a relay in place of each host's channel.
//! Invariant: its threads end with the value; messages that are not lost, repeated or late arrive unchanged and in order.

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

/// Longest sleep of an idle relay.
const IDLE: Duration = Duration::from_millis(50);
/// Longest sleep of a relay that holds a late message.
const HOLDING: Duration = Duration::from_millis(1);

/// A thread for each channel, in the switch's namespace.
pub(super) struct Relays {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    counts: Arc<Counts>,
}

/// Counts of messages by their fate.
#[derive(Default)]
struct Counts {
    came: AtomicU64,
    lost: AtomicU64,
    late: AtomicU64,
    again: AtomicU64,
}

impl Relays {
    /// Starts a relay for each pair of addresses, which forwards messages from the first to the second.
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

    /// A note with the counts, for the report.
    pub(super) fn note(&self) -> String {
        let Counts { came, lost, late, again } = &*self.counts;
        let [came, lost, late, again] = [came, lost, late, again].map(|count| count.load(Ordering::Relaxed));
        format!("of {came} messages of control {lost} were lost, {late} were late and {again} came twice")
    }
}

impl Drop for Relays {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that panicked has ended too.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The relay of one channel.
struct Relay {
    socket: UdpSocket,
    to: SocketAddrV4,
    faults: FeedbackFaults,
    random: fastrand::Rng,
    /// Late messages with their due times.
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

    /// Forwards a message. When the daemon is down it is lost, as without a relay.
    fn pass_on(&self, message: &[u8]) {
        let _: io::Result<usize> = self.socket.send_to(message, self.to);
    }
}
