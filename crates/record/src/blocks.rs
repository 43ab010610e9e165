//! The file format around the events: a first line, then blocks with their length and checksum.
//!
//! Why: a bit error on the disk must not look like a decision that differed, and a file that ends in the middle of a
//! block can still be read up to that block.
//! From: `docs/engine-trace.md`, "blocks".
//! Not here: what is in a block (`event`).
//! Invariant: a block holds whole events, and at most [`LONGEST`] bytes.

use std::io::{self, Read, Write};

/// The first line of a trace; its number is the format's version.
pub const MAGIC: &[u8] = b"plimsoll engine trace 1\n";

/// The begin of the first line in every version.
const KIND: &[u8] = b"plimsoll engine trace ";

/// Longest block that is read, in bytes: enough for a policy of 16 MB and its files.
const LONGEST: u32 = 64 << 20;

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

/// Whether a file that begins with `begin` is an engine's trace, of any version.
#[must_use]
pub fn is_trace(begin: &[u8]) -> bool {
    begin.starts_with(KIND)
}

/// Writes a trace file: the first line, then blocks.
#[derive(Debug)]
pub struct BlockWriter<W> {
    to: W,
}

impl<W: Write> BlockWriter<W> {
    /// Writes the first line.
    ///
    /// # Errors
    /// When `to` fails.
    pub fn new(mut to: W) -> io::Result<Self> {
        to.write_all(MAGIC)?;
        Ok(Self { to })
    }

    /// Writes one block.
    ///
    /// # Errors
    /// When the writer fails, or the block is longer than a reader accepts.
    pub fn write(&mut self, block: &[u8]) -> io::Result<()> {
        let len = u32::try_from(block.len()).ok().filter(|&len| len <= LONGEST);
        let len = len.ok_or_else(|| io::Error::other("the policy's files are too long for a trace"))?;
        self.to.write_all(&len.to_le_bytes())?;
        self.to.write_all(&crc32fast::hash(block).to_le_bytes())?;
        self.to.write_all(block)
    }

    /// Flushes the writer and returns it.
    ///
    /// # Errors
    /// When the flush fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Reads a trace file block by block.
#[derive(Debug)]
pub(crate) struct Blocks<R> {
    from: R,
    /// Bytes read so far.
    pub(crate) at: u64,
}

/// The result of reading the next block.
pub(crate) enum Next {
    Block,
    /// The file ends after a whole block.
    Over,
    /// The file ends in the middle of a block.
    Torn,
}

impl<R: Read> Blocks<R> {
    /// Reads the first line.
    pub(crate) fn new(mut from: R) -> Result<Self, TraceError> {
        let mut begin = [0; MAGIC.len()];
        let got = fill(&mut from, &mut begin).map_err(TraceError::Read)?;
        let begin = &begin[..got];
        if !is_trace(begin) {
            return Err(TraceError::Kind);
        }
        if begin != MAGIC {
            let version = String::from_utf8_lossy(&begin[KIND.len()..]);
            let version = version.split('\n').next().unwrap_or_default().to_owned();
            return Err(TraceError::Version { version });
        }
        Ok(Self { from, at: MAGIC.len() as u64 })
    }

    /// Reads the next block into `to`.
    pub(crate) fn next(&mut self, to: &mut Vec<u8>) -> Result<Next, TraceError> {
        to.clear();
        let mut head = [0; 8];
        match fill(&mut self.from, &mut head).map_err(TraceError::Read)? {
            0 => return Ok(Next::Over),
            8 => {}
            _ => return Ok(Next::Torn),
        }
        let [a, b, c, d, e, f, g, h] = head;
        let (len, sum) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        if len > LONGEST {
            return Err(TraceError::Damaged { at: self.at });
        }
        // The buffer grows with the bytes that are really there, so that a wrong length cannot allocate 64 MiB.
        let got = self.from.by_ref().take(len.into()).read_to_end(to).map_err(TraceError::Read)?;
        if got < len as usize {
            return Ok(Next::Torn);
        }
        if crc32fast::hash(to) != sum {
            return Err(TraceError::Damaged { at: self.at });
        }
        self.at += 8 + u64::from(len);
        Ok(Next::Block)
    }
}

/// Reads until the buffer is full or the file ends, and returns the number of bytes read.
fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < to.len() {
        match from.read(&mut to[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
