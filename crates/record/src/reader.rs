//! Reads the events of a trace file, one after the other.
//!
//! Why: a replay takes one event at a time, so a trace of any length needs little memory.
//! From: `docs/engine-trace.md`.
//! Not here: replaying the events (`sim`).
//! Invariant: the iterator ends for every input; an error or [`Event::End`] is its last item.

use std::io::Read;

use plimsoll_units::Nanos;

use crate::blocks::{Blocks, Next, TraceError};
use crate::event::{End, Event};
use crate::numbers::Cursor;

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
