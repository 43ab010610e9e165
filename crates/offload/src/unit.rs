//! Coprocessors: what a program has done for a packet that takes long, by someone else than the engine's thread.
//!
//! Why: compression, encryption and searching take a packet as long as hundreds of packets take a program, and all tenants would wait.
//! From: FairNIC §3.4 (units of a SmartNIC: ZIP, cryptography, regular expressions); here threads with well-kept libraries.
//! Not here: which tenant's request is next (`plimsoll-smartnic`), threads (`daemon`).
//! Invariant: a request changes nothing but its own packet, whose length stays within the stated bound; the same request has the same
//! result.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use libdeflater::{CompressionLvl, Compressor, Decompressor};
use regex::bytes::{RegexSet, RegexSetBuilder};
use std::collections::VecDeque;

/// A coprocessor. Each tenant has a weight at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Compresses and expands (RFC 1951).
    Deflate,
    /// Seals and opens by AES-128-GCM.
    Aes,
    /// Searches for regular expressions.
    Regex,
}

/// What a coprocessor does with a packet from the stated place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Compresses.
    Deflate,
    /// Expands what was compressed.
    Inflate,
    /// Encrypts, and puts a tag of 16 bytes behind it. The argument is a key of 16 bytes and a nonce of 12.
    Seal,
    /// Decrypts what was sealed, without its tag. The argument is as for sealing.
    Open,
    /// Answers the number of the first pattern that it contains, from 1 on, or 0. The argument is a length of four bytes, and so many bytes
    /// of patterns, one a line.
    Match,
}

/// What a request costs beside its bytes, in bytes: about as long as a unit takes for an empty one.
pub(crate) const REQUEST: usize = 256;

/// The most bytes of an argument.
pub const LONGEST_ARGUMENT: usize = 4_096;

/// Memory that a set of patterns may take, compiled, and its lazily built table while it searches: both bound the time, too.
const PATTERNS: usize = 64 << 10;

/// Patterns of a set at most.
const MOST_PATTERNS: usize = 64;

/// Sets of patterns that are kept compiled, as tenants search for the same ones in each packet.
const KEPT: usize = 16;

/// The fastest level that compresses: the library's fastest, 0, only copies.
const LEVEL: CompressionLvl = match CompressionLvl::new(1) {
    Ok(level) => level,
    Err(_) => unreachable!(),
};

const KEY: usize = 16;
const TAG: usize = 16;

impl Unit {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Deflate, Self::Aes, Self::Regex];

    /// Its name in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deflate => "deflate",
            Self::Aes => "aes",
            Self::Regex => "regex",
        }
    }
}

impl Operation {
    /// All of them, by their numbers.
    pub const ALL: [Self; 5] = [Self::Deflate, Self::Inflate, Self::Seal, Self::Open, Self::Match];

    /// The operation with this number.
    #[must_use]
    pub fn numbered(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The coprocessor that does it.
    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Self::Deflate | Self::Inflate => Unit::Deflate,
            Self::Seal | Self::Open => Unit::Aes,
            Self::Match => Unit::Regex,
        }
    }

    /// The bytes of its argument, of which the first four are given; none where it would be too long.
    #[must_use]
    pub fn argument_length(self, first: &[u8]) -> Option<usize> {
        let length = match self {
            Self::Deflate | Self::Inflate => 0,
            Self::Seal | Self::Open => KEY + NONCE_LEN,
            Self::Match => 4 + u32::from_le_bytes(*first.first_chunk()?) as usize,
        };
        (length <= LONGEST_ARGUMENT).then_some(length)
    }
}

/// What a program wants done, with all that it takes: nothing of it lies in the program's memory any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub operation: Operation,
    /// The packet.
    pub packet: Vec<u8>,
    /// Where the input begins.
    pub offset: usize,
    /// The most bytes that the packet may have afterwards.
    pub most: usize,
    /// The argument.
    pub argument: Vec<u8>,
    /// What it takes of its coprocessor: the bytes of its packet and of its argument, and 256 for each request.
    pub cost: u32,
}

impl Request {
    /// The result of one that failed: its packet is as it was.
    pub const FAILED: u32 = u32::MAX;
}

/// The result of a request that failed.
const FAILED: u32 = Request::FAILED;

/// Does requests, one after the other.
pub struct Worker {
    compressor: Compressor,
    expander: Decompressor,
    output: Vec<u8>,
    /// The sets of patterns that were searched for last, the last one first.
    patterns: VecDeque<(Vec<u8>, Option<RegexSet>)>,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            compressor: Compressor::new(LEVEL),
            expander: Decompressor::new(),
            output: Vec::new(),
            patterns: VecDeque::with_capacity(KEPT + 1),
        }
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    /// Does what is wanted, and answers the result as [`Worker::serve`] does.
    pub fn answer(&mut self, request: &mut Request) -> u32 {
        let Request { operation, packet, offset, most, argument, cost: _ } = request;
        self.serve(*operation, packet, (*offset, *most), argument)
    }

    /// Does an operation on a packet from `offset` on, which may become as long as `most`. Answers the result: 0 is success, but for
    /// [`Operation::Match`], and all ones that it failed.
    pub fn serve(
        &mut self,
        operation: Operation,
        packet: &mut Vec<u8>,
        (offset, most): (usize, usize),
        argument: &[u8],
    ) -> u32 {
        if offset > packet.len() {
            return FAILED;
        }
        let room = most.saturating_sub(offset);
        let done = match operation {
            Operation::Deflate => self.deflate(packet, offset, room),
            Operation::Inflate => self.inflate(packet, offset, room),
            Operation::Seal => seal(packet, offset, room, argument),
            Operation::Open => open(packet, offset, argument),
            Operation::Match => return self.find(&packet[offset..], argument).unwrap_or(FAILED),
        };
        done.map_or(FAILED, |()| 0)
    }

    fn deflate(&mut self, packet: &mut Vec<u8>, offset: usize, room: usize) -> Option<()> {
        self.output.resize(room, 0);
        let length = self.compressor.deflate_compress(&packet[offset..], &mut self.output).ok()?;
        self.replace(packet, offset, length);
        Some(())
    }

    fn inflate(&mut self, packet: &mut Vec<u8>, offset: usize, room: usize) -> Option<()> {
        self.output.resize(room, 0);
        let length = self.expander.deflate_decompress(&packet[offset..], &mut self.output).ok()?;
        self.replace(packet, offset, length);
        Some(())
    }

    fn replace(&self, packet: &mut Vec<u8>, offset: usize, length: usize) {
        packet.truncate(offset);
        packet.extend_from_slice(&self.output[..length]);
    }

    fn find(&mut self, text: &[u8], argument: &[u8]) -> Option<u32> {
        let patterns = argument.get(4..)?;
        let known =
            self.patterns.iter().position(|(of, _)| of == patterns).and_then(|at| self.patterns.remove(at));
        self.patterns.push_front(known.unwrap_or_else(|| (patterns.to_vec(), compile(patterns))));
        self.patterns.truncate(KEPT);
        let (_, set) = self.patterns.front()?;
        let first = set.as_ref()?.matches(text).iter().next();
        Some(first.map_or(0, |number| number as u32 + 1))
    }
}

/// Compiles patterns, one a line.
fn compile(patterns: &[u8]) -> Option<RegexSet> {
    let patterns = std::str::from_utf8(patterns).ok().filter(|patterns| !asks_for_unicode(patterns))?;
    if patterns.lines().nth(MOST_PATTERNS).is_some() {
        return None;
    }
    let mut builder = RegexSetBuilder::new(patterns.lines());
    builder.unicode(false).size_limit(PATTERNS).dfa_size_limit(PATTERNS).nest_limit(64).build().ok()
}

/// Whether a pattern turns on Unicode's classes, which take milliseconds each to compile: by a flag `u`.
fn asks_for_unicode(patterns: &str) -> bool {
    let flags = |behind: &str| {
        behind
            .chars()
            .take_while(|&flag| flag.is_ascii_lowercase() || "UR-".contains(flag))
            .any(|flag| flag == 'u')
    };
    patterns.match_indices("(?").any(|(at, _)| flags(&patterns[at + 2..]))
}

fn key(argument: &[u8]) -> Option<(LessSafeKey, Nonce)> {
    let (key, nonce) = argument.split_at_checked(KEY)?;
    let key = UnboundKey::new(&AES_128_GCM, key).ok()?;
    Some((LessSafeKey::new(key), Nonce::try_assume_unique_for_key(nonce).ok()?))
}

fn seal(packet: &mut Vec<u8>, offset: usize, room: usize, argument: &[u8]) -> Option<()> {
    let (key, nonce) = key(argument).filter(|_| packet.len() - offset + TAG <= room)?;
    let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut packet[offset..]).ok()?;
    packet.extend_from_slice(tag.as_ref());
    Some(())
}

fn open(packet: &mut Vec<u8>, offset: usize, argument: &[u8]) -> Option<()> {
    let (key, nonce) = key(argument)?;
    // A packet that does not open is to be as it was.
    let mut sealed = packet[offset..].to_vec();
    let opened = key.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
    packet.truncate(offset);
    packet.extend_from_slice(opened);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENT: [u8; KEY + NONCE_LEN] = [7; KEY + NONCE_LEN];

    fn patterns(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn what_was_compressed_or_sealed_comes_back() {
        let mut worker = Worker::default();
        let packet: Vec<u8> = (0..1_000_u32).map(|n| (n / 40) as u8).collect();
        for (there, back) in [(Operation::Deflate, Operation::Inflate), (Operation::Seal, Operation::Open)] {
            let mut changed = packet.clone();
            assert_eq!(worker.serve(there, &mut changed, (42, 2_048), &ARGUMENT), 0);
            assert!(changed[..42] == packet[..42] && changed[42..] != packet[42..], "the headers stay");
            assert_eq!(worker.serve(back, &mut changed, (42, 2_048), &ARGUMENT), 0);
            assert_eq!(changed, packet);
        }
    }

    #[test]
    fn what_cannot_be_done_leaves_the_packet_as_it_was() {
        let mut worker = Worker::default();
        let packet: Vec<u8> = (0..200_u32).map(|n| (n * n) as u8).collect();
        for (operation, offset, most, argument) in [
            (Operation::Deflate, 201, 2_048, &[][..]),
            (Operation::Deflate, 0, 100, &[]),
            (Operation::Inflate, 0, 2_048, &[]),
            (Operation::Seal, 0, 215, &ARGUMENT),
            (Operation::Seal, 0, 2_048, &ARGUMENT[1..]),
            (Operation::Open, 0, 2_048, &ARGUMENT),
            (Operation::Open, 200, 2_048, &ARGUMENT),
            (Operation::Match, 0, 2_048, &[1, 0]),
            (Operation::Match, 0, 2_048, &patterns("(")),
            (Operation::Match, 0, 2_048, &patterns("(a{900}){900}")),
            (Operation::Match, 0, 2_048, &patterns("x(?iu)[!-\u{10ffff}]")),
            (Operation::Match, 0, 2_048, &patterns(&"a\n".repeat(65))),
            (Operation::Match, 0, 2_048, &[1, 0, 0, 0, 0xff]),
        ] {
            let mut kept = packet.clone();
            assert_eq!(worker.serve(operation, &mut kept, (offset, most), argument), FAILED, "{operation:?}");
            assert_eq!(kept, packet, "{operation:?}");
        }
        let mut bomb = vec![0; 100_000];
        assert_eq!(worker.serve(Operation::Deflate, &mut bomb, (0, 2_048), &[]), 0);
        assert_eq!(worker.serve(Operation::Inflate, &mut bomb, (0, 2_048), &[]), FAILED, "too long");
    }

    #[test]
    fn the_first_pattern_that_is_found_is_told() {
        let mut worker = Worker::default();
        let mut find = |text: &str, sought: &str| {
            worker.serve(Operation::Match, &mut text.as_bytes().to_vec(), (1, 2_048), &patterns(sought))
        };
        assert_eq!(find("xGET /shop", "^POST\n^GET\nshop"), 2);
        assert_eq!(find("xPUT /shop", "^POST\n^GET\nshop"), 3);
        assert_eq!(find("xPUT /cart", "^POST\n^GET\nshop"), 0);
        assert_eq!(find("xPUT /cart", "c.rt"), 1, "other patterns than before");
    }

    #[test]
    fn an_argument_is_as_long_as_its_operation_says() {
        assert_eq!(Operation::Deflate.argument_length(&[]), Some(0));
        assert_eq!(Operation::Open.argument_length(&[]), Some(28));
        assert_eq!(Operation::Match.argument_length(&[5, 0, 0, 0]), Some(9));
        assert_eq!(Operation::Match.argument_length(&[0xfd, 0x0f, 0, 0]), None);
        assert_eq!(Operation::Match.argument_length(&[0xff; 4]), None);
        assert_eq!(Operation::Match.argument_length(&[1]), None);
        for (number, operation) in (0..).zip(Operation::ALL) {
            assert_eq!((operation.number(), Operation::numbered(number)), (number, Some(operation)));
        }
        assert_eq!(Operation::numbered(5), None);
    }
}
