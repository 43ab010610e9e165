//! Tenants' frames between hosts, sealed: no attacker on the way can read, change, invent or repeat one in a host's name.
//!
//! Why: an overlay's outer addresses can be forged, and without a seal a repeated frame cannot be told from a host's own.
//! From: AES-256-GCM (NIST SP 800-38D) with keys by HKDF (RFC 5869); RFC 6479's window against replays; WireGuard's and
//! Noise's rule that both sides' nonces go into a session's key; QUIC's limits on a key's use (RFC 9001 §6.6).
//! Not here: headers around a sealed frame (`wire::overlay`), how hellos travel, counters (`daemon`), how many hellos are
//! checked (`hellos`).
//! Invariant: a frame that opens was sealed with the fleet's key by the host that it names, for this host since its last start,
//! before this host heard that the other one has started again, and it opens once; no key and nonce are used twice; no
//! allocation for a frame.
//!
//! # Sessions
//!
//! Each host draws a `start` at random when it starts, and sends a hello to each other host: its start, a session number, and
//! a start that it heard from there: the accepted one and others by turns, as a repeated hello may have an old one.
//! A hello that names this host's present start is *proven*: it was made after this host started, so it is no recording from
//! before. A proven hello with a greater number than any accepted before begins a session: keys follow from both hosts' starts
//! and the number, so keys from before a restart of either host open no frame any more. A host whose clock, from which numbers
//! begin, went back learns from the other host's hello which number that host has accepted, and takes a greater one.
//! An old hello that an attacker repeats begins no session: since the last start its number is not greater, and an older one is
//! not proven.
//!
//! Hellos with wrong tags, which any attacker may send in any name, are checked up to a bound (`hellos`). Hellos that name this
//! host's present start have a share of their own: only an attacker that reads this host's packets can make them. If hellos of a
//! host were not checked, this host sends it a hello once a second, so that it learns this host's start and can prove its next
//! hello.
//!
//! # Format of a hello, version 1
//!
//! | bytes | field |
//! | --- | --- |
//! | 0 | version, 1 |
//! | 1 | bit 0: the number accepted is of the start in bytes 26..34; bit 1: an answer is wanted |
//! | 2..6 | the host that sends it |
//! | 6..10 | the host that it is for |
//! | 10..18 | its session number towards that one |
//! | 18..26 | its start |
//! | 26..34 | the other's start, as heard from it; 0: nothing was |
//! | 34..42 | the greatest session number accepted from the other |
//! | 42..58 | the first half of an HMAC-SHA256 of all before |
//!
//! # Format of a sealed frame
//!
//! Four bytes of a check on the number, eight of the number, the frame (hidden), a tag of 16. The check is AES-128 of the
//! number under a key of the session: a frame from a sender without that key is rejected without the cost of opening it. The tag
//! also covers both hosts and the network.

use aws_lc_rs::aead::quic::{self, HeaderProtectionKey};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, hmac};
use plimsoll_queues::Pace;
use plimsoll_units::{Nanos, Span};

use crate::HostId;
use crate::hellos::{HelloLimit, OwnHellos, admits, each_second};

/// Bytes in front of a sealed frame.
pub const SEALED_HEAD: usize = 12;
/// Bytes behind a sealed frame.
pub const SEALED_TAG: usize = 16;
/// Bytes of a hello.
pub const HELLO: usize = 58;

/// The logarithm of the frames under one key: 2^22 at most, half of the number that RFC 9001 §6.6 allows for AES-GCM.
const GENERATION: u32 = 22;
/// Frames by which one may be late and still open: 0.8 ms at ten million a second.
const WINDOW: u64 = 8_192;
const WORDS: usize = WINDOW as usize / 64 + 1;
/// The least time between two hellos to a host.
const GAP: Span = Span::millis(10);
/// The time between two hellos grows up to this while a host does not answer.
const LONGEST_GAP: Span = Span::secs(1);
/// Starts in a host's name that wait for an answer: an attacker must have recorded hellos of this number of starts to keep the
/// host's present one from being answered.
const CLAIMS: usize = 4;
/// Frames a second in a host's name with a right check that do not open; beyond that each number gets one try only.
const FORGERIES: u64 = 100_000;
const BURST: Span = Span::millis(1);
const VERSION: u8 = 1;
const OURS: u8 = 1;
const ASKS: u8 = 2;

/// Why a sealed frame is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// The frame was sealed for no session that is live here: it is made up, or from before a restart.
    #[error("a frame that was sealed for no session that is live")]
    WrongSession,
    /// The frame has come before, or is too late to tell.
    #[error("a frame that comes again, or too late")]
    Replayed,
    /// The frame has been changed since it was sealed.
    #[error("a frame that has been changed on the way")]
    Forged,
}

/// The outcome of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeted {
    /// A session begins.
    Begun,
    /// The hello says nothing new, or is not proven yet.
    Known,
    /// The hello is from an earlier session.
    Stale,
    /// The hello was not made with the fleet's key, or not by that host for this one.
    Forged,
    /// The hello was not checked: too many came in that host's name, and in other names.
    Ignored,
}

/// This host's state for all sessions.
pub struct Sealing {
    host: HostId,
    start: u64,
    first: u64,
    secret: hkdf::Prk,
    hellos: hmac::Key,
    limit: HelloLimit,
}

/// The state between this host and another.
pub struct Session {
    peer: HostId,
    /// This host's number towards that one.
    number: u64,
    /// The number and start that were accepted from it.
    accepted: Option<(u64, u64)>,
    /// Other starts in hellos in its name, oldest first, then zeros: one of them may be its present start.
    claims: [u64; CLAIMS],
    /// Whether the last hello to it named the start that was accepted.
    named: bool,
    /// Whether it has accepted this host's number.
    confirmed: bool,
    sealer: Option<FrameSealer>,
    opener: Option<FrameOpener>,
    due: Option<Nanos>,
    said: Option<Nanos>,
    gap: Span,
    hellos: OwnHellos,
    forgeries: Pace,
}

struct FrameSealer {
    keys: Keys,
    generation: u64,
    frames: LessSafeKey,
    next: u64,
}

struct FrameOpener {
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
struct Keys {
    secret: hkdf::Prk,
    checks: HeaderProtectionKey,
    /// The numbers of both hosts.
    bound: [u8; 8],
}

impl Sealing {
    /// `first` is the number of the first session. It should be greater than those of earlier starts, as the time is. `start` must
    /// be drawn at random at each start.
    #[must_use]
    pub fn new(key: &[u8; 32], host: HostId, first: u64, start: u64) -> Self {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, b"plimsoll overlay 1").extract(key);
        let hellos = hmac::Key::new(hmac::HMAC_SHA256, &expand::<32>(&secret, &[b"hello"]));
        // Zero stands for no start.
        Self { host, start: start.max(1), first: first.max(1), secret, hellos, limit: HelloLimit::default() }
    }

    /// Sets the number of other hosts, among which the bound on hellos is divided.
    pub fn set_hosts(&mut self, hosts: usize) {
        self.limit.set_hosts(hosts);
    }

    /// A session with a host of which nothing is known yet; a hello is due at once.
    #[must_use]
    pub fn session(&self, peer: HostId) -> Session {
        Session {
            peer,
            number: self.first,
            accepted: None,
            claims: [0; CLAIMS],
            named: false,
            confirmed: false,
            sealer: None,
            opener: None,
            due: Some(Nanos::ZERO),
            said: None,
            gap: GAP,
            hellos: self.limit.own(),
            forgeries: Pace::new(each_second(FORGERIES)),
        }
    }

    /// The keys of the frames from `from`, with its session number, to `to`; `starts` are their starts.
    fn keys(&self, [from, to]: [HostId; 2], number: u64, starts: [u64; 2]) -> Keys {
        let (from, to) = (from.0.to_be_bytes(), to.0.to_be_bytes());
        let [theirs, others] = starts.map(u64::to_be_bytes);
        let parts: [&[u8]; 6] = [b"session", &from, &to, &number.to_be_bytes(), &theirs, &others];
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &expand::<32>(&self.secret, &parts));
        let checks = HeaderProtectionKey::new(&quic::AES_128, &expand::<16>(&secret, &[b"check"]));
        let mut bound = [0; 8];
        bound[..4].copy_from_slice(&from);
        bound[4..].copy_from_slice(&to);
        Keys { secret, checks: checks.expect("sixteen bytes are a key"), bound }
    }
}

impl Session {
    /// Whether frames can be sealed: the other host has accepted this host's session.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.confirmed && self.sealer.is_some()
    }

    /// When a hello is due.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.due
    }

    /// The hello that is due now, if one is; it counts as sent.
    pub fn hello(&mut self, sealing: &Sealing, now: Nanos) -> Option<[u8; HELLO]> {
        self.due.filter(|&due| due <= now)?;
        self.said = Some(now);
        self.due = (!self.confirmed).then(|| now + self.gap);
        self.gap = self.gap.times(2).min(LONGEST_GAP);
        let (accepted, start) = self.accepted.unwrap_or_default();
        let named = self.name();
        let mut hello = [0; HELLO];
        let flags = [(OURS, start != 0 && start == named), (ASKS, !self.confirmed)];
        hello[0] = VERSION;
        hello[1] = flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag).sum();
        hello[2..6].copy_from_slice(&sealing.host.0.to_be_bytes());
        hello[6..10].copy_from_slice(&self.peer.0.to_be_bytes());
        for (at, number) in [(10, self.number), (18, sealing.start), (26, named), (34, accepted)] {
            hello[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        let tag = hmac::sign(&sealing.hellos, &hello[..HELLO - SEALED_TAG]);
        hello[HELLO - SEALED_TAG..].copy_from_slice(&tag.as_ref()[..SEALED_TAG]);
        Some(hello)
    }

    /// Handles a hello that has come in the other host's name.
    pub fn greet(&mut self, sealing: &mut Sealing, hello: &[u8], now: Nanos) -> Greeted {
        let Some(hello) = hello.first_chunk::<HELLO>().filter(|_| hello.len() == HELLO) else {
            return Greeted::Forged;
        };
        let (said, tag) = hello.split_at(HELLO - SEALED_TAG);
        let between = said[2..6] == self.peer.0.to_be_bytes() && said[6..10] == sealing.host.0.to_be_bytes();
        if said[0] != VERSION || !between {
            return Greeted::Forged;
        }
        let proves = word(said, 26) == sealing.start;
        if !sealing.limit.admits(&mut self.hellos, proves, now) {
            // The host's own hellos may be among those, and it may not know this host's start.
            self.want_hello_at_last(now);
            return Greeted::Ignored;
        }
        let right = hmac::sign(&sealing.hellos, said);
        let same = aws_lc_rs::constant_time::verify_slices_are_equal(&right.as_ref()[..SEALED_TAG], tag);
        if same.is_err() {
            return Greeted::Forged;
        }
        let [number, start, ours, accepted] = [10, 18, 26, 34].map(|at| word(said, at));
        if ours != sealing.start {
            // This may be a recording; if not, the host can prove its next hello once it has this host's start.
            self.note_claim(start);
            self.want_hello(now);
            return Greeted::Known;
        }
        self.learn(sealing, said[1] & OURS != 0, accepted, now);
        let known = self.accepted;
        let greeted = match known {
            Some(known) if known == (number, start) => Greeted::Known,
            Some((known, _)) if number <= known => {
                self.note_claim(start);
                Greeted::Stale
            }
            _ => {
                self.begin(sealing, number, start);
                Greeted::Begun
            }
        };
        if greeted != Greeted::Known || said[1] & ASKS != 0 {
            self.want_hello(now);
        }
        greeted
    }

    /// The start that the next hello names: claimed starts and the accepted one by turns, so that repeated hellos do not keep
    /// the host's own hello from an answer.
    fn name(&mut self) -> u64 {
        let accepted = self.accepted.map_or(0, |(_, start)| start);
        let claimed = self.claims[0];
        self.named = claimed == 0 || accepted != 0 && !self.named;
        if self.named {
            return accepted;
        }
        self.claims.rotate_left(1);
        self.claims[CLAIMS - 1] = 0;
        claimed
    }

    fn note_claim(&mut self, start: u64) {
        let known =
            self.accepted.is_some_and(|(_, accepted)| accepted == start) || self.claims.contains(&start);
        if !known && let Some(free) = self.claims.iter_mut().find(|claim| **claim == 0) {
            *free = start;
        }
    }

    /// Handles what a proven hello says of this host's session: it was accepted, or needs a greater number.
    fn learn(&mut self, sealing: &Sealing, ours: bool, accepted: u64, now: Nanos) {
        if ours && accepted == self.number {
            if !self.confirmed {
                (self.confirmed, self.due, self.gap) = (true, None, GAP);
            }
        } else if accepted >= self.number && accepted < u64::MAX {
            (self.number, self.confirmed) = (accepted + 1, false);
            self.set_sealer(sealing);
            self.want_hello(now);
        }
    }

    fn begin(&mut self, sealing: &Sealing, number: u64, start: u64) {
        let before = self.accepted.replace((number, start));
        self.claims = [0; CLAIMS];
        let keys = sealing.keys([self.peer, sealing.host], number, [start, sealing.start]);
        self.opener = Some(FrameOpener::new(keys));
        if before.is_none_or(|(_, before)| before != start) {
            // The host has started again, and has lost what it accepted from this one. No number gets a second key, even if an
            // earlier start comes back.
            self.number += u64::from(self.sealer.is_some());
            (self.confirmed, self.gap) = (false, GAP);
            self.set_sealer(sealing);
        }
    }

    fn set_sealer(&mut self, sealing: &Sealing) {
        let Some((_, theirs)) = self.accepted else { return };
        let keys = sealing.keys([sealing.host, self.peer], self.number, [sealing.start, theirs]);
        self.sealer = Some(FrameSealer::new(keys));
    }

    /// Schedules a hello soon, though not more often than once in a gap.
    fn want_hello(&mut self, now: Nanos) {
        let soon = self.said.map_or(now, |said| now.max(said + GAP));
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// Schedules a hello if none is due, at most one a second: any attacker can cause it.
    fn want_hello_at_last(&mut self, now: Nanos) {
        self.due = self.due.or_else(|| Some(self.said.map_or(now, |said| now.max(said + LONGEST_GAP))));
    }

    /// Seals `packet[SEALED_HEAD..len - SEALED_TAG]` in place, and writes head and tag, for which the packet has room. Returns
    /// whether the session is live; if not, nothing is written.
    pub fn seal(&mut self, network: u32, packet: &mut [u8]) -> bool {
        match &mut self.sealer {
            Some(sealer) if self.confirmed => sealer.seal(network, packet),
            _ => false,
        }
    }

    /// Opens a packet from the other host in place: the frame then lies between head and tag.
    ///
    /// # Errors
    /// [`Unopened`]; the packet's bytes may then be garbled.
    pub fn open(&mut self, network: u32, packet: &mut [u8], now: Nanos) -> Result<(), Unopened> {
        let opened = match &mut self.opener {
            Some(opener) => opener.open(network, packet, &mut self.forgeries, now),
            None => Err(Unopened::WrongSession),
        };
        if opened == Err(Unopened::WrongSession) {
            // The host may not know that this one has started again.
            self.want_hello_at_last(now);
        }
        opened
    }
}

impl FrameSealer {
    fn new(keys: Keys) -> Self {
        Self { frames: keys.frames(0), keys, generation: 0, next: 0 }
    }

    fn seal(&mut self, network: u32, packet: &mut [u8]) -> bool {
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
    fn new(keys: Keys) -> Self {
        Self { frames: keys.frames(0), keys, generation: 0, before: None, window: Window::default() }
    }

    fn open(
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
struct Window {
    /// The number after the newest one.
    next: u64,
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
    fn is_new(&self, number: u64) -> bool {
        if number >= self.next {
            return number < u64::MAX;
        }
        self.next - number <= WINDOW && self.words[Self::word(number)] & Self::bit(number) == 0
    }

    /// Whether a number can be marked without moving the window past numbers that frames on their way may have.
    fn is_near(&self, number: u64) -> bool {
        number < self.next.saturating_add(WINDOW / 2)
    }

    #[inline]
    fn mark(&mut self, number: u64) {
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

fn expand<const LEN: usize>(secret: &hkdf::Prk, parts: &[&[u8]]) -> [u8; LEN] {
    let mut key = [0; LEN];
    let made = secret.expand(parts, Len(LEN)).and_then(|made| made.fill(&mut key));
    made.expect("32 bytes are less than HKDF's bound");
    key
}

struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealing").field("host", &self.host).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { peer, number, accepted, confirmed, .. } = self;
        f.debug_struct("Session")
            .field("peer", peer)
            .field("number", number)
            .field("accepted", accepted)
            .field("confirmed", confirmed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "sealing_tests.rs"]
mod tests;
