//! Writes an engine's trace into chunks of memory, which a [`Sink`] brings to disk.
//!
//! Why: the engine's thread must never wait for a disk.
//! From: `docs/engine-trace.md`, "what it costs".
//! Not here: threads and files (`daemon`).
//! Invariants: events are written whole and in order; a recording ends once, with its reason; it exceeds its size limit
//! by less than a chunk.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use plimsoll_nic::{Config, Descriptor, QueueId, Refusal, Transmit};
use plimsoll_policy::{Placement, Sources};
use plimsoll_units::{Bytes, Nanos, Span};

use crate::blocks::BlockWriter;
use crate::event::{End, write};

/// Bytes of a chunk: about ten thousand packets, well over a millisecond at the highest packet rate.
pub const CHUNK: usize = 256 << 10;

/// A chunk is handed over once its first event is this old, full or not: a crash loses at most that.
const FLUSH: Span = Span::millis(200);

/// Bytes of a chunk that are kept free for the last events of a recording.
const RESERVE: usize = 64;

/// Takes full chunks and gives empty ones. Its methods must not wait.
pub trait Sink: Send + Debug {
    /// Gives an empty chunk; `None` when all chunks wait for the disk, or the disk has failed.
    fn empty(&mut self) -> Option<Vec<u8>>;
    /// Takes a chunk that [`Sink::empty`] gave.
    fn full(&mut self, chunk: Vec<u8>);
    /// Takes the last chunk, with the reason why the recording ends.
    fn last(&mut self, chunk: Vec<u8>, why: End);
}

/// Limits of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Size of the file.
    pub bytes: Bytes,
}

impl Default for Limits {
    /// A gigabyte: about fifty million packets.
    fn default() -> Self {
        Self { bytes: Bytes::new(1_000_000_000) }
    }
}

/// Writes the events of one engine.
#[derive(Debug)]
pub struct Recorder {
    sink: Box<dyn Sink>,
    /// The chunk that is being filled; none once the recording has ended.
    chunk: Option<Vec<u8>>,
    limits: Limits,
    /// Bytes of the chunks handed over.
    handed: u64,
    /// The time of the last event that has one.
    last: Nanos,
    /// When the chunk got its first event with a time.
    begun: Option<Nanos>,
    /// Completions that are not written yet.
    completed: u64,
    /// Time and room of the last poll that found nothing due; it is written before the next other event.
    idle: Option<(Nanos, usize)>,
}

impl Recorder {
    /// Makes a recorder that has no events yet.
    #[must_use]
    pub fn new(mut sink: Box<dyn Sink>, limits: Limits) -> Self {
        let chunk = sink.empty();
        let (last, begun) = (Nanos::ZERO, None);
        Self { sink, chunk, limits, handed: 0, last, begun, completed: 0, idle: None }
    }

    /// Whether the recording is still going on.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.chunk.is_some()
    }

    pub(crate) fn start(&mut self, config: &Config, sources: &Sources) {
        self.write(|to| write::start(to, config, sources));
    }

    pub(crate) fn open(&mut self, placement: &Placement, queue: Option<QueueId>) {
        self.settle();
        self.write(|to| write::open(to, placement, queue));
    }

    pub(crate) fn close(&mut self, queue: QueueId, closed: bool) {
        self.settle();
        self.write(|to| write::close(to, queue, closed));
    }

    #[inline]
    pub(crate) fn post(&mut self, queue: QueueId, descriptor: &Descriptor, refused: Option<Refusal>) {
        self.settle();
        self.write(|to| write::post(to, queue, descriptor, refused));
    }

    #[inline]
    pub(crate) fn ring(&mut self, words: &[u16], now: Nanos) {
        self.settle();
        let after = self.advance(now);
        self.write(|to| write::ring(to, after, words));
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos, room: usize, left: &[Transmit]) {
        self.settle();
        let after = self.advance(now);
        self.write(|to| write::poll(to, after, room, now, left));
    }

    /// Notes a poll at which nothing was due. Of several in a row only the last is written, before the next other event.
    #[inline]
    pub(crate) fn idle(&mut self, now: Nanos, room: usize) {
        if self.completed > 0 {
            self.settle();
        }
        self.idle = Some((now, room));
        if self.begun.is_some_and(|begun| now.since(begun) > FLUSH) {
            self.hand_over();
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self) {
        if self.idle.is_some() {
            self.settle();
        }
        self.completed += 1;
    }

    pub(crate) fn install(&mut self, now: Nanos, sources: &Sources, places: &[(QueueId, Placement)]) {
        self.settle();
        let after = self.advance(now);
        self.write(|to| write::install(to, after, sources, places));
    }

    pub(crate) fn descriptors(&mut self, descriptors: u32) {
        self.settle();
        self.write(|to| write::descriptors(to, descriptors));
    }

    pub(crate) fn pull(&mut self, pull: Bytes) {
        self.settle();
        self.write(|to| write::pull(to, pull));
    }

    /// Writes the completions or the idle poll that wait to be written.
    #[inline]
    fn settle(&mut self) {
        if self.completed > 0 {
            let count = core::mem::take(&mut self.completed);
            self.write(|to| write::complete(to, count));
        }
        if let Some((now, room)) = self.idle.take() {
            let after = self.advance(now);
            self.write(|to| write::poll(to, after, room, now, &[]));
        }
    }

    #[inline]
    fn advance(&mut self, now: Nanos) -> Span {
        let after = now.since(self.last);
        self.last = self.last.max(now);
        self.begun.get_or_insert(now);
        after
    }

    /// Writes one event. A chunk grows for an event longer than a chunk: many doorbells, or a large policy.
    #[inline]
    fn write(&mut self, event: impl FnOnce(&mut Vec<u8>)) {
        let Some(chunk) = &mut self.chunk else { return };
        event(chunk);
        if chunk.len() + RESERVE > CHUNK - LARGEST_USUAL || self.is_old() {
            self.hand_over();
        }
    }

    #[inline]
    fn is_old(&self) -> bool {
        self.begun.is_some_and(|begun| self.last.since(begun) > FLUSH)
    }

    /// Gives the chunk to the sink and takes an empty one; ends the recording at its limit, or when there is none.
    #[cold]
    fn hand_over(&mut self) {
        let Some(chunk) = &self.chunk else { return };
        self.handed += chunk.len() as u64;
        if self.handed >= self.limits.bytes.as_u64() {
            return self.end(End::Full);
        }
        let Some(empty) = self.sink.empty() else { return self.end(End::Overrun) };
        self.begun = None;
        if let Some(chunk) = self.chunk.replace(empty) {
            self.sink.full(chunk);
        }
    }

    fn end(&mut self, why: End) {
        let Some(mut chunk) = self.chunk.take() else { return };
        write::end(&mut chunk, why);
        self.sink.last(chunk, why);
    }
}

/// Longest usual event in bytes: a poll of 64 frames. Only doorbells and policies can be longer.
const LARGEST_USUAL: usize = 4 << 10;

impl Drop for Recorder {
    fn drop(&mut self) {
        self.settle();
        self.end(End::Stopped);
    }
}

/// A [`Sink`] in memory; its clones share one trace. For tests and examples.
#[derive(Clone, Debug, Default)]
pub struct SharedSink {
    blocks: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl SharedSink {
    /// The bytes of the trace file so far.
    ///
    /// # Panics
    /// When another thread panicked while it held the sink.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = BlockWriter::new(Vec::new()).expect("memory takes all");
        let blocks = self.blocks.lock().expect("no thread has panicked");
        blocks.iter().for_each(|block| writer.write(block).expect("memory takes all"));
        writer.finish().expect("memory takes all")
    }
}

impl Sink for SharedSink {
    fn empty(&mut self) -> Option<Vec<u8>> {
        Some(Vec::with_capacity(CHUNK))
    }

    fn full(&mut self, chunk: Vec<u8>) {
        if let Ok(mut blocks) = self.blocks.lock() {
            blocks.push(chunk);
        }
    }

    fn last(&mut self, chunk: Vec<u8>, _: End) {
        self.full(chunk);
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_nic::{Config, Nic};

    use super::*;
    use crate::{Event, Reader, Recorded};

    /// Gives a fixed number of chunks, then no more.
    #[derive(Debug)]
    struct SlowDisk(SharedSink, u32);

    impl Sink for SlowDisk {
        fn empty(&mut self) -> Option<Vec<u8>> {
            self.1 = self.1.checked_sub(1)?;
            self.0.empty()
        }

        fn full(&mut self, chunk: Vec<u8>) {
            self.0.full(chunk);
        }

        fn last(&mut self, chunk: Vec<u8>, why: End) {
            self.0.last(chunk, why);
        }
    }

    #[test]
    fn a_disk_that_is_too_slow_ends_the_recording_with_all_that_was_before() {
        let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
        let checked = plimsoll_policy::check_str("demo.yaml", text).expect("a policy");
        let mut nic = Recorded::new(Nic::new(&checked.program, &Config::default()));
        let file = SharedSink::default();
        nic.record(Recorder::new(Box::new(SlowDisk(file.clone(), 2)), Limits::default()), &checked.sources);
        let mut closed = 0_u32;
        while nic.is_recorded() {
            nic.close_queue(QueueId(closed));
            closed += 1;
        }
        nic.close_queue(QueueId(closed)); // traffic goes on
        let events: Vec<Event> =
            Reader::new(file.bytes().as_slice()).expect("a trace").collect::<Result<_, _>>().expect("whole");
        assert!(closed > 50_000, "two chunks hold more than {closed}");
        assert_eq!(events.last(), Some(&Event::End(End::Overrun)));
        let told = events.iter().filter(|event| matches!(event, Event::Close { .. })).count();
        assert_eq!(told as u32, closed);
    }
}
