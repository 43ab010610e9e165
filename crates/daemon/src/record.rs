//! Brings an engine's trace to disk, on a thread of its own.
//!
//! Why: a disk may be slow; the engine's thread must not wait for it.
//! From: `docs/operations.md`, "recording".
//! Not here: the content of a trace (`plimsoll_record`).
//! Invariants: memory is [`CHUNKS`] chunks; the engine hands over and takes chunks without waiting; the reason why a
//! recording ends early is logged once, and traffic goes on.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_record::{BlockWriter, CHUNK, End, Limits, Recorder, Sink};
use plimsoll_units::Bytes;
use rtrb::{Consumer, Producer, RingBuffer};

/// The file of a recording, and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The file; an existing one is replaced.
    pub file: PathBuf,
    /// How long it may become.
    pub limit: Bytes,
}

/// Chunks between engine and disk: at a million packets a second they last for a fifth of a second.
const CHUNKS: usize = 16;

/// How often full chunks are looked for: a quarter of what all of them last for at ten million packets a second.
const LOOK: Duration = Duration::from_millis(5);

/// The engine's end.
#[derive(Debug)]
struct EngineEnd {
    empty: Consumer<Vec<u8>>,
    full: Producer<Full>,
}

/// A chunk on its way to the disk, and why it is the last one.
#[derive(Debug)]
struct Full {
    chunk: Vec<u8>,
    end: Option<End>,
}

impl Sink for EngineEnd {
    fn empty(&mut self) -> Option<Vec<u8>> {
        // The writer has ended.
        if self.empty.is_abandoned() { None } else { self.empty.pop().ok() }
    }

    fn full(&mut self, chunk: Vec<u8>) {
        // There is a place for each chunk.
        let _ = self.full.push(Full { chunk, end: None });
    }

    fn last(&mut self, chunk: Vec<u8>, why: End) {
        let _ = self.full.push(Full { chunk, end: Some(why) });
    }
}

/// The thread that writes.
#[derive(Debug)]
pub struct Writer {
    thread: JoinHandle<()>,
}

impl Writer {
    /// Waits until all is written. The recorder must be gone.
    pub fn finish(self) {
        // The reason why it ended has been logged.
        let _ = self.thread.join();
    }
}

/// Creates the file and starts the thread.
///
/// # Errors
/// When the file cannot be made, or the thread.
pub fn start(record: &Record) -> io::Result<(Recorder, Writer)> {
    start_in(record, create(record)?)
}

/// Creates the file.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn create(record: &Record) -> io::Result<File> {
    // The trace holds the policy, which only the operator may read.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&record.file)?;
    file.set_permissions(Permissions::from_mode(0o600))?; // the file may have existed
    Ok(file)
}

/// Starts the thread that writes into the file.
///
/// # Errors
/// When the thread cannot be made.
pub(crate) fn start_in(record: &Record, file: File) -> io::Result<(Recorder, Writer)> {
    let blocks = BlockWriter::new(file)?;
    let (mut give, empty) = RingBuffer::new(CHUNKS);
    for _ in 0..CHUNKS {
        let _ = give.push(Vec::with_capacity(CHUNK));
    }
    let (full, take) = RingBuffer::new(CHUNKS + 1);
    let path = record.file.clone();
    let thread = std::thread::Builder::new().name("recorder".to_owned());
    let thread = thread.spawn(move || Disk { path, give, take, written: 0 }.run(blocks))?;
    Ok((
        Recorder::new(Box::new(EngineEnd { empty, full }), Limits { bytes: record.limit }),
        Writer { thread },
    ))
}

/// The writer of a recording.
struct Disk {
    path: PathBuf,
    give: Producer<Vec<u8>>,
    take: Consumer<Full>,
    written: u64,
}

impl Disk {
    fn run(mut self, mut blocks: BlockWriter<File>) {
        let ended = self.write_all(&mut blocks);
        let flushed = blocks.finish().and_then(|file| file.sync_data());
        let size = Bytes::new(self.written);
        let path = self.path.display();
        match ended.and_then(|why| flushed.map(|()| why)) {
            Ok(Some(End::Stopped) | None) => eprintln!("plimsoll: recorded {size} into {path}"),
            Ok(Some(End::Full)) => eprintln!(
                "plimsoll: recording into {path} ended at its limit of {size}; traffic goes on, and what was recorded \
                 can be replayed. Give `--record-limit` more to record longer"
            ),
            Ok(Some(_)) => eprintln!(
                "plimsoll: recording into {path} ended after {size}, because the disk was too slow; \
                 traffic goes on, and what was recorded can be replayed. Record onto a faster disk"
            ),
            Err(error) => eprintln!(
                "plimsoll: recording into {path} ended after {size}: {error}; traffic goes on, and what was written \
                 can be replayed. Make room, and start again to record"
            ),
        }
    }

    /// Writes until the engine sends its last chunk, or has gone.
    fn write_all(&mut self, blocks: &mut BlockWriter<File>) -> io::Result<Option<End>> {
        loop {
            let abandoned = self.take.is_abandoned();
            while let Ok(Full { mut chunk, end }) = self.take.pop() {
                blocks.write(&chunk)?;
                self.written += chunk.len() as u64;
                if end.is_some() {
                    return Ok(end);
                }
                chunk.clear();
                chunk.shrink_to(CHUNK); // a policy may have made it longer
                let _ = self.give.push(chunk);
            }
            if abandoned {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The file as messages name it.
pub(crate) fn what(path: &Path) -> String {
    format!("record into {}", path.display())
}

#[cfg(test)]
mod tests {
    use plimsoll_nic::{Config, Nic};
    use plimsoll_record::{Event, Reader, Recorded};

    use super::*;

    fn nic() -> (Recorded, plimsoll_policy::Checked) {
        let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
        let checked = plimsoll_policy::check_str("demo.yaml", text).expect("a policy");
        (Recorded::new(Nic::new(&checked.program, &Config::default())), checked)
    }

    fn last(path: &Path) -> Event {
        let reader = Reader::new(File::open(path).expect("there")).expect("a trace");
        reader.last().expect("events").expect("whole")
    }

    #[test]
    fn a_recording_ends_with_its_engine_and_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace");
        let (recorder, writer) =
            start(&Record { file: file.clone(), limit: Bytes::new(1 << 20) }).expect("started");
        let (mut nic, checked) = nic();
        nic.record(recorder, &checked.sources);
        drop(nic);
        writer.finish();
        assert_eq!(last(&file), Event::End(End::Stopped));
    }

    #[test]
    fn a_limit_ends_the_recording_and_not_the_engine() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("trace");
        let limit = Bytes::new(1_000_000);
        let (recorder, writer) = start(&Record { file: file.clone(), limit }).expect("started");
        let (mut nic, checked) = nic();
        nic.record(recorder, &checked.sources);
        for _ in 0..2_000_000 {
            nic.close_queue(plimsoll_nic::QueueId(7));
        }
        assert!(!nic.is_recorded());
        writer.finish();
        let size = std::fs::metadata(&file).expect("there").len();
        assert!((1_000_000..1_000_000 + 2 * CHUNK as u64).contains(&size), "{size}");
        assert!(matches!(last(&file), Event::End(End::Full | End::Overrun)));
    }
}
