//! Reads the events of a trace file, one after the other.
//!
//! Why: a replay takes one event at a time, so a trace of any length needs little memory.
//! From: `docs/engine-trace.md`.
//! Not here: replaying the events (`sim`).
//! Invariant: the iterator ends for every input; an error or [`Event::End`] is its last item.

use std::io::Read;

use plimsoll_units::Nanos;

use crate::blocks::{Blocks, MAGIC, Next};
use crate::event::{End, Event};
use crate::numbers::Cursor;

/// Why a file is not, or not wholly, an engine's trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The system cannot read the file.
    #[error("cannot be read: {0}")]
    Read(std::io::Error),
    /// The file is of another kind.
    #[error("is no engine trace: those are written by `plimsoll run --record FILE`")]
    Kind,
    /// The trace has another version of the format.
    #[error(
        "is an engine trace of version {version}, and this plimsoll reads version {}; use the plimsoll that wrote it",
        ours()
    )]
    Version {
        /// The trace's version.
        version: String,
    },
    /// A block's checksum or length is wrong.
    #[error(
        "is damaged at byte {at}: a block's checksum is wrong. Copy the file again; what comes before is good"
    )]
    Damaged {
        /// Position of the block's first byte.
        at: u64,
    },
    /// A block has the right checksum but holds no valid events.
    #[error(
        "makes no sense in the block that ends at byte {at}: it was not written by `plimsoll run --record`"
    )]
    Nonsense {
        /// Position after the block's last byte.
        at: u64,
    },
}

/// The version that this reader accepts.
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
    /// [`TraceError`] when the file cannot be read, or is no trace of this version.
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
        let mut bytes = Cursor { rest: &self.block[self.used..] };
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
