//! From a file's bytes to events.
//!
//! Why: whoever runs a trace again asks for one event after the other.
//! From: `docs/engine-trace.md`.
//! Not here: what is done with them (`sim`).
//! Invariant: ends for every input; after an error, or the recording's end, there is nothing more.

use std::io::Read;

use plimsoll_units::Nanos;

use crate::blocks::{Blocks, MAGIC, Next};
use crate::event::{End, Event};
use crate::numbers::Bytes;

/// Why a file is not, or not wholly, an engine's trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The system's answer.
    #[error("cannot be read: {0}")]
    Read(std::io::Error),
    /// Another kind of file.
    #[error("is no engine trace: those are written by `plimsoll run --record FILE`")]
    Kind,
    /// Of another version.
    #[error(
        "is an engine trace of version {version}, and this plimsoll reads version {}; use the plimsoll that wrote it",
        ours()
    )]
    Version {
        /// Which.
        version: String,
    },
    /// A block whose checksum or length is wrong.
    #[error(
        "is damaged at byte {at}: a block's checksum is wrong. Copy the file again; what comes before is good"
    )]
    Damaged {
        /// Where the block begins.
        at: u64,
    },
    /// A block that is whole and makes no sense.
    #[error(
        "makes no sense in the block that ends at byte {at}: it was not written by `plimsoll run --record`"
    )]
    Nonsense {
        /// Where the block ends.
        at: u64,
    },
}

/// The version that this reader takes.
fn ours() -> String {
    String::from_utf8_lossy(MAGIC).split_whitespace().last().unwrap_or_default().to_owned()
}

/// Reads a trace, event by event; the last one is [`Event::End`].
#[derive(Debug)]
pub struct Reader<R> {
    blocks: Blocks<R>,
    block: Vec<u8>,
    used: usize,
    now: Nanos,
    over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// [`TraceError`], when it is no trace or one of another version.
    pub fn new(from: R) -> Result<Self, TraceError> {
        let blocks = Blocks::new(from)?;
        Ok(Self { blocks, block: Vec::new(), used: 0, now: Nanos::ZERO, over: false })
    }

    fn read(&mut self) -> Result<Event, TraceError> {
        while self.used == self.block.len() {
            self.used = 0;
            match self.blocks.next(&mut self.block)? {
                Next::Block => {}
                Next::Over | Next::Torn => return Ok(Event::End(End::Torn)),
            }
        }
        let mut bytes = Bytes { rest: &self.block[self.used..] };
        let event = Event::read(&mut bytes, &mut self.now);
        self.used = self.block.len() - bytes.rest.len();
        event.map_err(|_| TraceError::Nonsense { at: self.blocks.at })
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let event = self.read();
        self.over = matches!(event, Err(_) | Ok(Event::End(_)));
        Some(event)
    }
}
