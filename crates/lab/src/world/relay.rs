//! What loses, repeats and delays the messages of hosts' control channels.
//!
//! Why: `faults: {feedback: ..}` holds live as well; the kernel's own way (tc-netem(8)) is not in every kernel.
//! From: `docs/scenarios.md`, "Faults"; what the simulator does to the same messages.
//! Not here: what they say, which is sealed, and who listens: hosts' maps name a relay in place of each host's channel.
//! Invariant: its threads end with the value; what is not lost, repeated or late arrives as it was, in order.

use super::SWITCH;
use crate::error::LabError;
use crate::netns;
use plimsoll_scenario::FeedbackFaults;
use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a relay with nothing to do sleeps at most, and one that holds a late message.
const IDLE: Duration = Duration::from_millis(50);
const HOLDING: Duration = Duration::from_millis(1);

/// A thread for each channel, in the switch's namespace.
pub(super) struct Relays {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relays {
    /// Takes what comes at the first of each two addresses to the second.
    pub(super) fn start(
        faults: FeedbackFaults,
        seed: u64,
        ways: &[(SocketAddrV4, SocketAddrV4)],
    ) -> Result<Self, LabError> {
        let mut relays = Self { stop: Arc::default(), threads: Vec::new() };
        for (&(at, to), seed) in ways.iter().zip(seed..) {
            let socket = netns::within(SWITCH, || UdpSocket::bind(at))?;
            let socket = socket.map_err(|e| LabError::io(format!("listen at {at}"), e))?;
            let stop = Arc::clone(&relays.stop);
            let mut relay =
                Relay { socket, to, faults, random: fastrand::Rng::with_seed(seed), held: Vec::new() };
            relays.threads.push(std::thread::spawn(move || relay.serve(&stop)));
        }
        Ok(relays)
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
                for late in copies(self.faults, &mut self.random) {
                    if late.is_zero() {
                        self.pass_on(&buffer[..len]);
                    } else {
                        self.held.push((Instant::now() + late, buffer[..len].to_vec()));
                    }
                }
            }
            let now = Instant::now();
            let due: Vec<(Instant, Vec<u8>)> = self.held.extract_if(.., |(due, _)| *due <= now).collect();
            due.iter().for_each(|(_, message)| self.pass_on(message));
        }
    }

    /// A daemon that is away loses it, as it would without a relay.
    fn pass_on(&self, message: &[u8]) {
        let _: io::Result<usize> = self.socket.send_to(message, self.to);
    }
}

/// How late each copy of a message arrives; there is none of what is lost.
fn copies(faults: FeedbackFaults, random: &mut fastrand::Rng) -> Vec<Duration> {
    let FeedbackFaults { loss, duplicate, reorder, late } = faults;
    let late = Duration::from_nanos(late.as_u64());
    let [lost, again, delayed] = [loss, duplicate, reorder].map(|part| random.f64() < part);
    let mut delay = || late.mul_f64(random.f64());
    let first = if delayed { delay() } else { Duration::ZERO };
    let second = again.then(delay);
    if lost { Vec::new() } else { std::iter::once(first).chain(second).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_units::Span;

    #[test]
    fn parts_of_the_messages_are_lost_repeated_and_late() {
        let faults = FeedbackFaults { loss: 0.3, duplicate: 0.1, reorder: 0.2, late: Span::millis(3) };
        let mut random = fastrand::Rng::with_seed(1);
        let all: Vec<Vec<Duration>> = (0..100_000).map(|_| copies(faults, &mut random)).collect();
        let part = |of: &dyn Fn(&[Duration]) -> bool| {
            all.iter().filter(|copies| of(copies)).count() as f64 / all.len() as f64
        };
        assert!((part(&|copies| copies.is_empty()) - 0.3).abs() < 0.01);
        assert!((part(&|copies| copies.len() == 2) - 0.07).abs() < 0.01, "a tenth of what is not lost");
        assert!((part(&|copies| copies.first().is_some_and(|late| !late.is_zero())) - 0.14).abs() < 0.01);
        assert!(all.iter().flatten().all(|late| *late < Duration::from_millis(3)));
    }

    #[test]
    fn without_faults_all_arrives_at_once() {
        let mut random = fastrand::Rng::with_seed(1);
        let none = FeedbackFaults::default();
        assert!((0..1_000).all(|_| copies(none, &mut random) == [Duration::ZERO]));
    }
}
