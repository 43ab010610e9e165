//! Writes frames to a pcapng file.
//!
//! Why: frames that passed the engine can be opened in Wireshark, with comments on each.
//! From: pcapng, one interface with nanosecond times; blocks through the `pcap-file` crate.
//! Not here: choosing the frames.
//! Invariant: the file ends with a whole block, even when the disk is full.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use plimsoll_units::Nanos;

use crate::error::PortError;

/// A capture file being written.
///
/// ```
/// use plimsoll_ports::Capture;
/// use plimsoll_units::Nanos;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("left.pcapng");
/// let mut capture = Capture::create(&path)?;
/// capture.record(Nanos::new(1_500), &[0; 60], Some("waited 12us behind limit wan"));
/// assert_eq!(capture.flush().frames, 0, "nothing was lost");
/// # Ok(())
/// # }
/// ```
pub struct Capture {
    path: PathBuf,
    file: File,
    /// Encodes into memory, so that the disk sees whole blocks or none.
    encoder: PcapNgWriter<Vec<u8>>,
    /// Bytes of whole blocks in the file.
    good: u64,
    /// Frames that wait in the encoder.
    waiting: Unwritten,
    lost: u64,
    failed: bool,
    problem: Option<PortError>,
}

/// Frames that did not reach the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unwritten {
    /// Number of frames.
    pub frames: u64,
    /// Bytes of the frames, without the file's block headers.
    pub bytes: u64,
}

/// Creates the file, or empties it.
pub(super) fn create_file(path: &Path) -> Result<File, PortError> {
    File::create(path).map_err(|error| problem(path, &error))
}

impl Capture {
    /// Creates the file, or empties it, and writes its header.
    ///
    /// # Errors
    /// When one of these fails.
    pub fn create(path: &Path) -> Result<Self, PortError> {
        Self::over(path, create_file(path)?)
    }

    /// Begins a capture in an empty file.
    pub(super) fn over(path: &Path, file: File) -> Result<Self, PortError> {
        let unwritable = |error: io::Error| problem(path, &error);
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        interface.options.push(InterfaceDescriptionOption::IfName(Cow::Borrowed("plimsoll")));
        interface.options.push(InterfaceDescriptionOption::IfTsResol(NANOSECONDS));
        let encoder = PcapNgWriter::new(Vec::with_capacity(BUFFER + FRAME_COST)).and_then(|mut encoder| {
            encoder.write_pcapng_block(interface)?;
            Ok(encoder)
        });
        let encoder = encoder.map_err(|error| unwritable(io::Error::other(error)))?;
        let mut capture = Self {
            path: path.to_owned(),
            file,
            encoder,
            good: 0,
            waiting: Unwritten::default(),
            lost: 0,
            failed: false,
            problem: None,
        };
        capture.flush();
        capture.problem.take().map_or(Ok(capture), Err)
    }

    /// Records one frame, captured at `at` (nanoseconds since 1970), with a comment.
    ///
    /// Returns whether the file still accepts frames. A frame that is still in memory may be lost later, which
    /// [`Capture::flush`] reports. After the first failure nothing more is written.
    pub fn record(&mut self, at: Nanos, frame: &[u8], comment: Option<&str>) -> bool {
        if self.failed {
            self.lost += 1;
            return false;
        }
        let options =
            comment.map(|text| EnhancedPacketOption::Comment(Cow::Borrowed(text))).into_iter().collect();
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(at.as_u64()),
            original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(frame),
            options,
        };
        let before = self.encoder.get_ref().len();
        if self.encoder.write_pcapng_block(block).is_err() {
            // Encoding into memory fails only for what the format cannot hold, such as a comment of 64 KiB.
            self.encoder.get_mut().truncate(before);
            self.lost += 1;
            return false;
        }
        self.waiting.frames += 1;
        self.waiting.bytes += frame.len() as u64;
        true
    }

    /// Whether the buffer is full enough to be written; [`Capture::flush`] need not be called before.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.encoder.get_ref().len() >= BUFFER
    }

    /// Writes buffered frames to the file, and returns those that were lost.
    pub fn flush(&mut self) -> Unwritten {
        let waiting = std::mem::take(&mut self.waiting);
        let blocks = self.encoder.get_mut();
        if blocks.is_empty() {
            return Unwritten::default();
        }
        let outcome = self.file.write_all(blocks);
        let len = blocks.len() as u64;
        blocks.clear();
        match outcome {
            Ok(()) => {
                self.good += len;
                Unwritten::default()
            }
            Err(error) => {
                // Half a block would make readers refuse the file's end. Fails for a device, which cannot be truncated.
                let _ = self.file.set_len(self.good);
                self.failed = true;
                self.lost += waiting.frames;
                self.problem = Some(problem(&self.path, &error));
                waiting
            }
        }
    }

    /// Frames lost because the file could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Why the file can no longer be written, for the log; reported once.
    pub fn take_problem(&mut self) -> Option<PortError> {
        self.problem.take()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.flush();
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("path", &self.path).field("lost", &self.lost).finish_non_exhaustive()
    }
}

fn problem(path: &Path, error: &io::Error) -> PortError {
    let advice = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "capturing has stopped and traffic goes on; make room and start the capture anew"
        }
        Some(libc::ENOENT) => "make the folder first",
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => "choose a folder that this user may write to",
        _ => "capturing has stopped and traffic goes on",
    };
    PortError::File { path: path.to_owned(), problem: format!("cannot be written: {error}"), advice }
}

/// `if_tsresol`: times are multiples of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Bytes that are buffered for one call: at 64 KiB the call costs less than the copy.
const BUFFER: usize = 64 << 10;

/// The longest frame with its block header.
const FRAME_COST: usize = crate::contract::FRAME_ROOM + 64;
