//! The frames of one direction of a session: keys, numbers, and the window against replays.
//!
//! Why: sealing and opening is done for each frame, hellos are rare.
//! From: RFC 6479's window; QUIC's limits on a key's use (RFC 9001 §6.6).
//! Not here: which session's keys these are (`sealing`).
//! Invariant: a number is sealed once, and opens once.

use aws_lc_rs::aead::quic::HeaderProtectionKey;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use plimsoll_queues::Pace;
use plimsoll_units::{Nanos, Span};

use super::{SEALED_HEAD, SEALED_TAG, Unopened, expand, word};
use crate::hellos::admits;
use crate::keys::Fingerprint;

/// The logarithm of the frames under one key: 2^22 at most, half of the number that RFC 9001 §6.6 allows for AES-GCM.
pub(super) const GENERATION: u32 = 22;
/// Frames by which one may be late and still open: 0.8 ms at ten million a second.
pub(super) const WINDOW: u64 = 8_192;
const WORDS: usize = WINDOW as usize / 64 + 1;
/// Frames with a right check that do not open, beyond their rate.
const BURST: Span = Span::millis(1);

pub(super) struct FrameSealer {
    keys: Keys,
    generation: u64,
    frames: LessSafeKey,
    pub(super) next: u64,
}

pub(super) struct FrameOpener {
    keys: Keys,
    /// The newest generation of which a frame was opened.
    generation: u64,
    /// The key of that generation.
    frames: LessSafeKey,
    /// The key of the generation before.
    before: Option<LessSafeKey>,
    window: Window,
}

/// The keys of one direction of a session.
pub(super) struct Keys {
    /// The fleet's key that they follow from.
    of: Fingerprint,
    secret: hkdf::Prk,
    checks: HeaderProtectionKey,
    /// The numbers of both hosts.
    bound: [u8; 8],
}

impl FrameSealer {
    /// The fleet's key.
    pub(super) fn key(&self) -> Fingerprint {
        self.keys.of
    }

    pub(super) fn new(keys: Keys) -> Self {
        Self { frames: keys.frames(0), keys, generation: 0, next: 0 }
    }

    pub(super) fn seal(&mut self, network: u32, packet: &mut [u8]) -> bool {
        let Some(body) = packet.len().checked_sub(SEALED_HEAD + SEALED_TAG) else { return false };
        let number = self.next;
        self.next += 1;
        if number >> GENERATION != self.generation {
            self.generation = number >> GENERATION;
            self.frames = self.keys.frames(self.generation);
        }
        let (head, rest) = packet.split_at_mut(SEALED_HEAD);
        let (frame, place) = rest.split_at_mut(body);
        head[..4].copy_from_slice(&self.keys.check(number));
        head[4..].copy_from_slice(&number.to_be_bytes());
        let bound = Aad::from(self.keys.bound(network));
        let tag = self.frames.seal_in_place_separate_tag(nonce(number), bound, frame);
        place.copy_from_slice(tag.expect("a frame is far shorter than the cipher's bound").as_ref());
        true
    }
}

impl FrameOpener {
    /// The fleet's key.
    pub(super) fn key(&self) -> Fingerprint {
        self.keys.of
    }

    /// Whether a frame has been opened.
    pub(super) fn has_opened(&self) -> bool {
        self.window.next > 0
    }

    pub(super) fn new(keys: Keys) -> Self {
        Self { frames: keys.frames(0), keys, generation: 0, before: None, window: Window::default() }
    }

    pub(super) fn open(
        &mut self,
        network: u32,
        packet: &mut [u8],
        forgeries: &mut Pace,
        now: Nanos,
    ) -> Result<(), Unopened> {
        let Some((head, rest)) = packet.split_first_chunk_mut::<SEALED_HEAD>() else {
            return Err(Unopened::Forged);
        };
        let number = word(head, 4);
        if head[..4] != self.keys.check(number) {
            return Err(Unopened::WrongSession);
        }
        if !self.window.is_new(number) {
            return Err(Unopened::Replayed);
        }
        let bound = Aad::from(self.keys.bound(network));
        let generation = number >> GENERATION;
        let newer = (generation > self.generation).then(|| self.keys.frames(generation));
        let frames = match (&newer, generation == self.generation) {
            (Some(newer), _) => newer,
            (None, true) => &self.frames,
            (None, false) => self.before.as_ref().ok_or(Unopened::Replayed)?,
        };
        if frames.open_in_place(nonce(number), bound, rest).is_err() {
            // An attacker that copies a right head in front of other bytes must not have them tried for ever.
            if !admits(forgeries, BURST, now) && self.window.is_near(number) {
                self.window.mark(number);
            }
            return Err(Unopened::Forged);
        }
        if let Some(newer) = newer {
            let follows = generation == self.generation + 1;
            let before = core::mem::replace(&mut self.frames, newer);
            self.before = follows.then_some(before);
            self.generation = generation;
        }
        self.window.mark(number);
        Ok(())
    }
}

impl Keys {
    pub(super) fn new(
        of: Fingerprint,
        secret: hkdf::Prk,
        checks: HeaderProtectionKey,
        bound: [u8; 8],
    ) -> Self {
        Self { of, secret, checks, bound }
    }

    /// The key of a generation of frames.
    fn frames(&self, generation: u64) -> LessSafeKey {
        let key = expand::<32>(&self.secret, &[b"frames", &generation.to_be_bytes()]);
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).expect("32 bytes are a key"))
    }

    /// The check on a number: the first bytes of its AES, which cannot be predicted without the key.
    #[inline]
    fn check(&self, number: u64) -> [u8; 4] {
        let mut sample = [0; 16];
        sample[..8].copy_from_slice(&number.to_be_bytes());
        let [a, b, c, d, _] = self.checks.new_mask(&sample).expect("sixteen bytes are a sample");
        [a, b, c, d]
    }

    #[inline]
    fn bound(&self, network: u32) -> [u8; 12] {
        let mut bound = [0; 12];
        bound[..8].copy_from_slice(&self.bound);
        bound[8..].copy_from_slice(&network.to_be_bytes());
        bound
    }
}

/// The numbers that have come: the newest one, and each of the [`WINDOW`] before it.
pub(super) struct Window {
    /// The number after the newest one.
    pub(super) next: u64,
    /// A ring of bits, a word of which is cleared when the newest number enters it (RFC 6479).
    words: [u64; WORDS],
}

impl Default for Window {
    fn default() -> Self {
        Self { next: 0, words: [0; WORDS] }
    }
}

impl Window {
    #[inline]
    pub(super) fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        self.next - number <= WINDOW && self.words[Self::word(number)] & Self::bit(number) == 0
    }

    /// Whether a number can be marked without moving the window past numbers that frames on their way may have.
    pub(super) fn is_near(&self, number: u64) -> bool {
        number < self.next.saturating_add(WINDOW / 2)
    }

    #[inline]
    pub(super) fn mark(&mut self, number: u64) {
        if number >= self.next {
            let (newest, last) = (self.next.saturating_sub(1) / 64, number / 64);
            let first = (newest + 1).max(last.saturating_sub(WORDS as u64 - 1));
            (first..=last).for_each(|word| self.words[word as usize % WORDS] = 0);
            self.next = number + 1;
        }
        self.words[Self::word(number)] |= Self::bit(number);
    }

    fn word(number: u64) -> usize {
        (number / 64) as usize % WORDS
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

/// The nonce of a number: four zeros and the number. Each key belongs to one direction of one session, in which each number is
/// used once.
fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
