//! Long lines: frames that wait between a host and the switch.
//!
//! Why: round trips of milliseconds decide how TCP reacts to marks and drops; on one machine they take less than one.
//! From: tc-netem(8), which many kernels lack.
//! Not here: rates and queues of links (`fleet`), messages of control channels (`relay`).
//! Invariant: frames leave in the order in which they came, none before its time; the threads end with the value.

use super::SWITCH;
use crate::error::LabError;
use plimsoll_ports::netns::NetnsRef;
use plimsoll_ports::{FRAME_ROOM, PacketConfig, PacketSocket, realtime};
use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Shortest delay that is worth a line: frames take about as long without one.
pub(super) const LEAST: Span = Span::micros(200);
/// Longest sleep, by which a frame may be late.
const NAP: Duration = Duration::from_micros(100);
/// Most frames that a line holds each way; a frame beyond that is lost, as in a full queue.
const MOST: usize = 16_384;

/// A thread for each line.
#[derive(Default)]
pub(super) struct Lines {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Lines {
    /// Carries frames between two devices of the switch's namespace, each frame `delay` later.
    pub(super) fn join(&mut self, delay: Span, devices: [&str; 2]) -> Result<(), LabError> {
        let open = |device: &str| {
            let config = PacketConfig::new(NetnsRef::Name(SWITCH.to_owned()), device);
            let opened = PacketSocket::open(&config);
            opened.map_err(|error| LabError::Scenario(format!("a line of {delay} cannot be made: {error}")))
        };
        let ends = [open(devices[0])?, open(devices[1])?];
        let (stop, delay) = (Arc::clone(&self.stop), Duration::from_nanos(delay.as_u64()));
        let mut line = Line { ends, waits: [VecDeque::new(), VecDeque::new()], delay };
        self.threads.push(std::thread::spawn(move || line.carry(&stop)));
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that panicked has ended too.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// One line with its two ends.
struct Line {
    ends: [PacketSocket; 2],
    /// What came in at each end.
    waits: [VecDeque<Late>; 2],
    delay: Duration,
}

/// A frame on its way.
struct Late {
    due: Instant,
    frame: Vec<u8>,
    vnet: Option<VnetHeader>,
}

impl Line {
    fn carry(&mut self, stop: &AtomicBool) {
        // Where that is not allowed, frames are later while the machine is busy.
        let _ = realtime::take();
        let mut buffer = vec![0; FRAME_ROOM];
        while !stop.load(Ordering::Relaxed) {
            self.take(0, &mut buffer);
            self.take(1, &mut buffer);
            let now = Instant::now();
            self.give(0, now);
            self.give(1, now);
            let next = self.waits.iter().filter_map(|waits| waits.front()).map(|late| late.due).min();
            std::thread::sleep(next.map_or(NAP, |due| due.saturating_duration_since(now).min(NAP)));
        }
    }

    /// Takes what has come to an end.
    fn take(&mut self, end: usize, buffer: &mut [u8]) {
        let due = Instant::now() + self.delay;
        while let Ok(Some(received)) = self.ends[end].receive(buffer) {
            if self.waits[end].len() < MOST {
                let frame = buffer[..received.len].to_vec();
                self.waits[end].push_back(Late { due, frame, vnet: received.vnet });
            }
        }
    }

    /// Sends at the other end what is due. A frame that finds no room there is lost.
    fn give(&mut self, from: usize, now: Instant) {
        let to = &mut self.ends[1 - from];
        while let Some(late) = self.waits[from].pop_front_if(|late| late.due <= now) {
            let _ = to.send(&late.frame, late.vnet.as_ref());
        }
        let _ = to.flush();
    }
}
