//! Capture files as a port: one read as a source, one written as a sink, or both.
//!
//! Why: a recorded hour can be run through a policy, and what left can be looked at in Wireshark.
//! From: pcap and pcapng, through the `pcap-file` crate.
//! Not here: pacing. Frames are given as fast as they are asked for, each with the time at which it
//! was captured.
//! Invariant: a file that cannot be written loses frames, counted, and nothing else.

mod capture;
mod source;

use std::fs::File;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_units::Nanos;
use plimsoll_wire::VnetHeader;

use crate::error::PortError;
use crate::ledger::{Ledger, Refused};
use crate::port::{Capabilities, Counters, DropReason, Fds, Received, Sending, Trouble, asks_for_work};

pub use capture::{Capture, Unwritten};
use source::{Record, Source};

/// Which files a [`PcapPort`] uses.
#[derive(Clone, Debug, Default)]
pub struct PcapConfig {
    /// Frames come from this file (pcap or pcapng, Ethernet).
    pub read: Option<PathBuf>,
    /// Frames go to this file (pcapng, nanoseconds); what it held is lost.
    pub write: Option<PathBuf>,
}

/// Capture files as a port.
#[derive(Debug)]
pub struct PcapPort {
    name: String,
    source: Option<Source>,
    capture: Option<Capture>,
    counters: Counters,
    ledger: Ledger,
}

impl PcapPort {
    /// Opens the files.
    ///
    /// # Errors
    /// When one cannot be opened, or the source is no capture of Ethernet frames.
    pub fn open(config: &PcapConfig) -> Result<Self, PortError> {
        let (read, write) = Self::open_files(config)?;
        Self::over(config, read, write)
    }

    /// The files, as yet unread and empty.
    pub(crate) fn open_files(config: &PcapConfig) -> Result<(Option<File>, Option<File>), PortError> {
        let read = config.read.as_deref().map(source::open_file).transpose()?;
        Ok((read, config.write.as_deref().map(capture::create_file).transpose()?))
    }

    /// The port over files that are open.
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
    /// A frame of which the capture holds only the beginning is filled up with zeroes to the length
    /// it had, so that it takes its time on the link.
    ///
    /// # Errors
    /// None: after the last frame nothing more comes, and [`PcapPort::finished`] says so.
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        let Some(source) = &mut self.source else { return Ok(None) };
        match source.next(buffer) {
            Record::Frame { len, at } => {
                self.counters.received(len);
                Ok(Some(Received { len, at: Some(at), ..Received::default() }))
            }
            Record::Lost(reason) => {
                self.counters.lose(reason);
                Ok(None)
            }
            Record::End => Ok(None),
        }
    }

    /// Writes one frame, with the time of day; see [`crate::Port::send`].
    ///
    /// # Errors
    /// None: a full disk is a counted reason.
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        if asks_for_work(vnet) {
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

    /// Brings what was written to the file.
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

    /// Whether the source has been read to its end, or there is none.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.source.as_ref().is_none_or(Source::finished)
    }

    /// Why frames are being lost, once: to be logged. See [`Capture::take_problem`].
    pub fn take_problem(&mut self) -> Option<PortError> {
        let reading = self.source.as_mut().and_then(Source::take_problem);
        reading.or_else(|| self.capture.as_mut().and_then(Capture::take_problem))
    }

    /// Frames taken to be sent, sent or not.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.ledger.taken()
    }

    /// Frames of these that could not leave; see [`crate::Port::take_refused`].
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.ledger.next_refused()
    }

    /// Nothing to wait on: files must be asked.
    #[must_use]
    pub fn fds(&self) -> Fds {
        Fds::default()
    }

    /// Files do not disappear while they are open.
    ///
    /// # Errors
    /// None.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    /// Finished frames only.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities { mtu: 65_535, ..Capabilities::default() }
    }

    /// What it has carried.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How operators know it.
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

/// Nanoseconds since 1970, as captures count them.
fn time_of_day() -> Nanos {
    #[expect(clippy::disallowed_methods, reason = "captures are read beside other logs")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Nanos::new(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
