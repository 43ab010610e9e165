//! Capture files as a port: one read as a source, one written as a sink, or both.
//!
//! Why: a recorded hour can be run through a policy, and the result can be read in Wireshark.
//! From: pcap and pcapng, through the `pcap-file` crate.
//! Not here: pacing. Frames are given as fast as they are asked for, each with its time of capture.
//! Invariant: a file that cannot be written loses frames, counted, and nothing else.

mod capture;
mod source;

use std::fs::File;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_units::Nanos;
use plimsoll_wire::VnetHeader;

use crate::contract::{Capabilities, Fds, Received, Trouble};
use crate::counters::{Counters, DropReason, Sending};
use crate::error::PortError;
use crate::ledger::{Ledger, Refused};

pub use capture::{Capture, Unwritten};
use source::{Item, Source};

/// The files of a [`PcapPort`].
#[derive(Clone, Debug, Default)]
pub struct PcapConfig {
    /// Frames come from this file (pcap or pcapng, Ethernet).
    pub read: Option<PathBuf>,
    /// Frames go to this file (pcapng, nanoseconds); its old contents are lost.
    pub write: Option<PathBuf>,
}

/// Capture files as a port.
#[derive(Debug)]
pub struct PcapPort {
    name: String,
    source: Option<Source>,
    /// Bytes that the file has of the last frame.
    captured: usize,
    capture: Option<Capture>,
    counters: Counters,
    ledger: Ledger,
}

impl PcapPort {
    /// Opens the files.
    ///
    /// # Errors
    /// When a file cannot be opened, or the source is not a capture of Ethernet frames.
    pub fn open(config: &PcapConfig) -> Result<Self, PortError> {
        let (read, write) = Self::open_files(config)?;
        Self::over(config, read, write)
    }

    /// Opens the files: the source unread, the capture empty.
    pub(crate) fn open_files(config: &PcapConfig) -> Result<(Option<File>, Option<File>), PortError> {
        let read = config.read.as_deref().map(source::open_file).transpose()?;
        Ok((read, config.write.as_deref().map(capture::create_file).transpose()?))
    }

    /// Makes the port of open files.
    pub(crate) fn over(
        config: &PcapConfig,
        source: Option<File>,
        capture: Option<File>,
    ) -> Result<Self, PortError> {
        let read = config.read.as_ref().map(|path| format!("<{}", path.display()));
        let write = config.write.as_ref().map(|path| format!(">{}", path.display()));
        let files: Vec<String> = read.into_iter().chain(write).collect();
        Ok(Self {
            name: format!("pcap {}", files.join(" ")),
            source: config
                .read
                .as_deref()
                .zip(source)
                .map(|(path, file)| Source::over(path, file))
                .transpose()?,
            captured: 0,
            capture: config
                .write
                .as_deref()
                .zip(capture)
                .map(|(path, file)| Capture::over(path, file))
                .transpose()?,
            counters: Counters::default(),
            ledger: Ledger::default(),
        })
    }

    /// Gives the next frame of the file; see [`crate::Port::receive`].
    ///
    /// A frame that the capture has cut is filled up with zeroes to its original length, so that it takes its time on the
    /// link.
    ///
    /// # Errors
    /// None: after the last frame there are no more, and [`PcapPort::finished`] is true.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        let Some(source) = &mut self.source else { return Ok(None) };
        match source.next(buffer) {
            Item::Frame { len, captured, at } => {
                self.captured = captured;
                self.counters.received(len);
                Ok(Some(Received { len, at: Some(at), ..Received::default() }))
            }
            Item::Lost(reason) => {
                self.counters.lose(reason);
                Ok(None)
            }
            Item::End => Ok(None),
        }
    }

    /// Writes one frame, with the time of day; see [`crate::Port::send`].
    ///
    /// # Errors
    /// None: a full disk is a counted reason.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if !self.capabilities().allow(vnet) {
            return Ok(self.counters.refuse(DropReason::BadOffload));
        }
        let mut full = false;
        if let Some(capture) = &mut self.capture {
            if !capture.record(time_of_day(), frame, None) {
                return Ok(self.counters.refuse(DropReason::FileFull));
            }
            full = capture.is_full();
        }
        let sent = self.counters.sent(frame.len());
        self.ledger.take();
        if full {
            self.flush()?;
        }
        Ok(sent)
    }

    /// Writes buffered frames to the file.
    ///
    /// # Errors
    /// None: a full disk is a counted reason.
    pub fn flush(&mut self) -> Result<(), Trouble> {
        if let Some(capture) = &mut self.capture {
            let lost = capture.flush();
            self.ledger.refuse(
                usize::try_from(lost.frames).unwrap_or(usize::MAX),
                lost.frames,
                DropReason::FileFull,
            );
            self.counters.tx_drops[DropReason::FileFull as usize] += lost.frames;
            // They were counted as sent when they went into the buffer.
            self.counters.tx_packets -= lost.frames;
            self.counters.tx_bytes -= lost.bytes;
        }
        Ok(())
    }

    /// Bytes that the capture has of the last frame that [`PcapPort::receive`] gave; the rest is zeroes.
    #[must_use]
    pub fn captured(&self) -> usize {
        self.captured
    }

    /// Whether the source has been read to its end, or there is none.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.source.as_ref().is_none_or(Source::finished)
    }

    /// Why frames are being lost, for the log; reported once. See [`Capture::take_problem`].
    pub fn take_problem(&mut self) -> Option<PortError> {
        let reading = self.source.as_mut().and_then(Source::take_problem);
        reading.or_else(|| self.capture.as_mut().and_then(Capture::take_problem))
    }

    /// Number of frames accepted by `send` so far, written or not.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.ledger.taken()
    }

    /// Accepted frames that could not be written; see [`crate::Port::take_refused`].
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.ledger.next_refused()
    }

    /// No file descriptors: files must be polled.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds::default()
    }

    /// Does nothing: files do not disappear while they are open.
    ///
    /// # Errors
    /// None.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    /// The port's capabilities: finished frames only.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: 65_535, ..Capabilities::default() }
    }

    /// The port's traffic so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The port's name for operators.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }
}

impl Drop for PcapPort {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// Nanoseconds since 1970, the time of captures.
fn time_of_day() -> Nanos {
    #[expect(clippy::disallowed_methods, reason = "captures are compared with other logs")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Nanos::new(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
