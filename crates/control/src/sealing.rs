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
//! # Another key of the fleet
//!
//! Each host seals with one key of the fleet and may accept others. A hello is made with the key that its host seals with, and so
//! are the keys of the session that it begins. A host that gets another key to seal with says hello with a greater number, and seals
//! with the session that it has until the other host has accepted that one. The other host opens frames of both sessions for
//! a second after the first frame of the new one, as frames may overtake each other. No frame is lost, also if the other host does
//! not know the new key yet: then the session that exists goes on. A session ends when its key is not accepted any more. If that key
//! is accepted once again, the other host hears that this one has lost the session, and takes a greater number.
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

mod frames;

use aws_lc_rs::aead::quic::{self, HeaderProtectionKey};
use aws_lc_rs::{hkdf, hmac};
use plimsoll_queues::Pace;
use plimsoll_units::{Nanos, Span};

use crate::HostId;
use crate::hellos::{HelloLimit, OwnHellos, each_second};
use crate::keys::{Fingerprint, FleetKeys, KEY};
use frames::{FrameOpener, FrameSealer, Keys};

/// Bytes in front of a sealed frame.
pub const SEALED_HEAD: usize = 12;
/// Bytes behind a sealed frame.
pub const SEALED_TAG: usize = 16;
/// Bytes of a hello.
pub const HELLO: usize = 58;

/// The least time between two hellos to a host.
const GAP: Span = Span::millis(10);
/// How long frames of the session before are opened once a frame of the next one has come.
const OVERLAP: Span = Span::secs(1);
/// The time between two hellos grows up to this while a host does not answer.
const LONGEST_GAP: Span = Span::secs(1);
/// Starts in a host's name that wait for an answer: an attacker must have recorded hellos of this number of starts to keep the
/// host's present one from being answered.
const CLAIMS: usize = 4;
/// Frames a second in a host's name with a right check that do not open; beyond that each number gets one try only.
const FORGERIES: u64 = 100_000;
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
    /// The first one is that which this host seals with.
    keys: Vec<HostKey>,
    limit: HelloLimit,
}

/// A key of the fleet, and what follows from it.
struct HostKey {
    fingerprint: Fingerprint,
    secret: hkdf::Prk,
    hellos: hmac::Key,
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
    /// Seals once the other host has accepted its session, which `live` says.
    sealer: Option<FrameSealer>,
    live: bool,
    /// Takes the place of a live sealer once the other host has accepted this host's number.
    next: Option<FrameSealer>,
    opener: Option<FrameOpener>,
    /// Opens frames of the session before, which the other host sealed with another key.
    before: Option<FrameOpener>,
    /// Until when, once a frame of the present session has been opened.
    until: Option<Nanos>,
    /// The key that the other host's last hello was made with.
    theirs: Option<Fingerprint>,
    due: Option<Nanos>,
    said: Option<Nanos>,
    gap: Span,
    hellos: OwnHellos,
    forgeries: Pace,
}

impl Sealing {
    /// `first` is the number of the first session. It should be greater than those of earlier starts, as the time is. `start` must
    /// be drawn at random at each start.
    #[must_use]
    pub fn new(key: &[u8; 32], host: HostId, first: u64, start: u64) -> Self {
        let keys = vec![HostKey::new(key)];
        // Zero stands for no start.
        Self { host, start: start.max(1), first: first.max(1), keys, limit: HelloLimit::default() }
    }

    /// Sets the key that this host seals with, and those that it accepts. [`Session::rekey`] is to be called for each session.
    pub fn set_keys(&mut self, keys: &FleetKeys) {
        self.keys = keys.all().map(HostKey::new).collect();
    }

    /// The key that this host seals with.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.keys[0].fingerprint
    }

    fn accepts(&self, key: Fingerprint) -> bool {
        self.keys.iter().any(|known| known.fingerprint == key)
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
            live: false,
            next: None,
            opener: None,
            before: None,
            until: None,
            theirs: None,
            due: Some(Nanos::ZERO),
            said: None,
            gap: GAP,
            hellos: self.limit.own(),
            forgeries: Pace::new(each_second(FORGERIES)),
        }
    }
}

impl HostKey {
    fn new(key: &[u8; KEY]) -> Self {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, b"plimsoll overlay 1").extract(key);
        let hellos = hmac::Key::new(hmac::HMAC_SHA256, &expand::<32>(&secret, &[b"hello"]));
        Self { fingerprint: Fingerprint::of(key), secret, hellos }
    }

    /// Whether a hello was made with this key.
    fn has_made(&self, said: &[u8], tag: &[u8]) -> bool {
        let right = hmac::sign(&self.hellos, said);
        aws_lc_rs::constant_time::verify_slices_are_equal(&right.as_ref()[..SEALED_TAG], tag).is_ok()
    }

    /// The keys of the frames from `from`, with its session number, to `to`; `starts` are their starts.
    fn frames(&self, [from, to]: [HostId; 2], number: u64, starts: [u64; 2]) -> Keys {
        let (from, to) = (from.0.to_be_bytes(), to.0.to_be_bytes());
        let [theirs, others] = starts.map(u64::to_be_bytes);
        let parts: [&[u8]; 6] = [b"session", &from, &to, &number.to_be_bytes(), &theirs, &others];
        let secret = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &expand::<32>(&self.secret, &parts));
        let checks = HeaderProtectionKey::new(&quic::AES_128, &expand::<16>(&secret, &[b"check"]));
        let mut bound = [0; 8];
        bound[..4].copy_from_slice(&from);
        bound[4..].copy_from_slice(&to);
        Keys::new(self.fingerprint, secret, checks.expect("sixteen bytes are a key"), bound)
    }
}

impl Session {
    /// Whether frames can be sealed: the other host has accepted this host's session.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live && self.sealer.is_some()
    }

    /// The key that frames to the other host are sealed with, if they can be.
    #[must_use]
    pub fn seals_with(&self) -> Option<Fingerprint> {
        self.sealer.as_ref().filter(|_| self.live).map(FrameSealer::key)
    }

    /// The key that the other host seals its frames with, if a session has begun.
    #[must_use]
    pub fn opens_with(&self) -> Option<Fingerprint> {
        self.opener.as_ref().map(FrameOpener::key)
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
        // A session whose key is not accepted any more is none: the other host is to take a greater number.
        let ours = start != 0 && start == named && self.opener.is_some();
        let flags = [(OURS, ours), (ASKS, !self.confirmed)];
        hello[0] = VERSION;
        hello[1] = flags.iter().filter(|(_, set)| *set).map(|(flag, _)| flag).sum();
        hello[2..6].copy_from_slice(&sealing.host.0.to_be_bytes());
        hello[6..10].copy_from_slice(&self.peer.0.to_be_bytes());
        for (at, number) in [(10, self.number), (18, sealing.start), (26, named), (34, accepted)] {
            hello[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        let tag = hmac::sign(&sealing.keys[0].hellos, &hello[..HELLO - SEALED_TAG]);
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
        let key = match self.key_of(sealing, (said, tag), proves, now) {
            Ok(key) => key,
            Err(why) => return why,
        };
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
                self.begin(sealing, key, number, start);
                Greeted::Begun
            }
        };
        if greeted != Greeted::Known || said[1] & ASKS != 0 {
            self.want_hello(now);
        }
        greeted
    }

    /// The place of the key that a hello was made with. The one of the host's last hello is tried first; each try counts, as each
    /// costs a check.
    fn key_of(
        &mut self,
        sealing: &mut Sealing,
        (said, tag): (&[u8], &[u8]),
        proves: bool,
        now: Nanos,
    ) -> Result<usize, Greeted> {
        let Sealing { keys, limit, .. } = sealing;
        let last = keys.iter().position(|key| Some(key.fingerprint) == self.theirs);
        let others = (0..keys.len()).filter(|key| Some(*key) != last);
        for key in last.into_iter().chain(others) {
            if !limit.admits(&mut self.hellos, proves, now) {
                // The host's own hellos may be among those, and it may not know this host's start.
                self.want_hello_at_last(now);
                return Err(Greeted::Ignored);
            }
            if keys[key].has_made(said, tag) {
                self.theirs = Some(keys[key].fingerprint);
                return Ok(key);
            }
        }
        Err(Greeted::Forged)
    }

    /// Goes over to other keys of the fleet, after [`Sealing::set_keys`].
    pub fn rekey(&mut self, sealing: &Sealing, now: Nanos) {
        let is_gone = |opener: &mut FrameOpener| !sealing.accepts(opener.key());
        self.opener.take_if(is_gone);
        self.before.take_if(is_gone);
        let newest = self.next.as_ref().or(self.sealer.as_ref()).map(FrameSealer::key);
        if self.sealer.as_ref().is_some_and(|sealer| !sealing.accepts(sealer.key())) {
            self.live = false;
        } else if newest == Some(sealing.fingerprint()) {
            return;
        }
        self.number += 1;
        self.propose(sealing);
        self.want_hello(now);
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
                self.sealer = self.next.take().or_else(|| self.sealer.take());
                self.live = true;
            }
        } else if accepted >= self.number && accepted < u64::MAX {
            (self.number, self.live) = (accepted + 1, false);
            self.propose(sealing);
            self.want_hello(now);
        }
    }

    fn begin(&mut self, sealing: &Sealing, key: usize, number: u64, start: u64) {
        let before = self.accepted.replace((number, start));
        self.claims = [0; CLAIMS];
        let keys = sealing.keys[key].frames([self.peer, sealing.host], number, [start, sealing.start]);
        let last = self.opener.replace(FrameOpener::new(keys));
        // The host still seals for the session that it has, which is not this one's last if that was never confirmed.
        if last.as_ref().is_some_and(FrameOpener::has_opened) || self.before.is_none() {
            self.before = last;
        }
        self.until = None;
        if before.is_none_or(|(_, before)| before != start) {
            self.before = None;
            // The host has started again, and has lost what it accepted from this one. No number gets a second key, even if an
            // earlier start comes back.
            self.number += u64::from(self.sealer.is_some());
            self.live = false;
            self.propose(sealing);
        }
    }

    /// Makes a sealer for this host's number, which the other host is still to accept. A live one goes on until then.
    fn propose(&mut self, sealing: &Sealing) {
        (self.confirmed, self.gap) = (false, GAP);
        let Some((_, theirs)) = self.accepted else { return };
        let own = &sealing.keys[0];
        let keys = own.frames([sealing.host, self.peer], self.number, [sealing.start, theirs]);
        let sealer = Some(FrameSealer::new(keys));
        if self.live {
            self.next = sealer;
        } else {
            (self.sealer, self.next) = (sealer, None);
        }
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
            Some(sealer) if self.live => sealer.seal(network, packet),
            _ => false,
        }
    }

    /// Opens a frame of the session before, if the present one does not.
    #[cold]
    fn open_before(
        &mut self,
        opened: Result<(), Unopened>,
        network: u32,
        packet: &mut [u8],
        now: Nanos,
    ) -> Result<(), Unopened> {
        if opened.is_ok() {
            self.until.get_or_insert(now + OVERLAP);
        }
        if self.until.is_some_and(|until| now >= until) {
            self.before = None;
        }
        match (&mut self.before, opened) {
            // A packet that is of no session has not been changed.
            (Some(before), Err(Unopened::WrongSession)) => {
                before.open(network, packet, &mut self.forgeries, now)
            }
            (_, opened) => opened,
        }
    }

    /// Opens a packet from the other host in place: the frame then lies between head and tag.
    ///
    /// # Errors
    /// [`Unopened`]; the packet's bytes may then be garbled.
    pub fn open(&mut self, network: u32, packet: &mut [u8], now: Nanos) -> Result<(), Unopened> {
        let mut opened = match &mut self.opener {
            Some(opener) => opener.open(network, packet, &mut self.forgeries, now),
            None => Err(Unopened::WrongSession),
        };
        if self.before.is_some() {
            opened = self.open_before(opened, network, packet, now);
        }
        if opened == Err(Unopened::WrongSession) {
            // The host may not know that this one has started again.
            self.want_hello_at_last(now);
        }
        opened
    }
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
