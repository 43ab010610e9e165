//! Frames between hosts, sealed with the fleet's key: accepts or drops them, and exchanges the hellos that begin sessions.
//!
//! Why: outer addresses can be forged, and replayed frames would take the places of a host's own.
//! From: `control::sealing`; hellos are repeated in frames of the host's own, like questions for next hops.
//! Not here: ciphers and windows (`control`), headers (`wire`), sealing on the way out (`wrap`).
//! Invariant: where frames are to be sealed, a frame that is not sealed for the present session, or is a replay, is
//! dropped and counted before it has a place in a tenant's queue; a replay costs no more than a check of its number.

use plimsoll_control::sealing::{HELLO, SEALED_HEAD as HEAD, SEALED_TAG as TAG};
use plimsoll_control::{Fingerprint, FleetKeys, Greeted, HostId, Sealing, Session, Unopened};
use plimsoll_policy::{SEAL, Sealed};
use plimsoll_units::{Nanos, Span};
use plimsoll_wire::overlay::{SEALED_HEAD, SEALED_TAG, Tunnelled};

use super::super::Dataplane;
use super::super::drops::{Event, Loss};
use super::Fleet;
use super::map::FleetMap;

const _: () = assert!(HEAD == SEALED_HEAD && TAG == SEALED_TAG && SEAL as usize == HEAD + TAG, "one format");

/// Time between two checks whether a host's next hop has answered.
const AGAIN: Span = Span::millis(10);

/// The engine's part of sealing.
#[derive(Debug)]
pub(super) struct Seals {
    how: Sealed,
    sealing: Sealing,
    /// Sessions, by the map's hosts.
    sessions: Vec<Session>,
    /// Sessions with hosts that have left the map: a host that returns gets its own back, as a session that began anew with
    /// the earlier numbers would use its keys twice.
    away: Vec<(HostId, Session)>,
    /// When the next hello is due, or the next check for one.
    next: Option<Nanos>,
}

/// How a frame is sent to a host.
pub(super) enum Way<'s> {
    Plain,
    Sealed(&'s mut Session),
    /// Not at all: it is to be sealed, and there is no session yet.
    NoSession,
}

impl Seals {
    /// The sealing of this fleet's frames; `None` where they are not sealed.
    pub(super) fn new(
        map: &FleetMap,
        keys: Option<&FleetKeys>,
        [first, start]: [u64; 2],
    ) -> Option<Box<Self>> {
        let how = map.overlay.sealed;
        if how == Sealed::No {
            return None;
        }
        let keys = keys.expect("checked with the policy");
        let mut sealing = Sealing::new(keys.own(), map.members.own(), first, start);
        sealing.set_keys(keys);
        sealing.set_hosts(map.hosts.len());
        let sessions = map.hosts.iter().map(|host| sealing.session(host.number)).collect();
        Some(Box::new(Self { how, sealing, sessions, away: Vec::new(), next: Some(Nanos::ZERO) }))
    }

    /// Installs another map. Sessions stay with their hosts, also while these are in no map.
    pub(super) fn remap(&mut self, old: &FleetMap, new: &FleetMap, now: Nanos) {
        self.sealing.set_hosts(new.hosts.len());
        let hosts = old.hosts.iter().map(|host| host.number);
        let mut before = core::mem::take(&mut self.away);
        before.extend(hosts.zip(self.sessions.drain(..)));
        let session = |number: HostId| {
            let known = before.iter().position(|(host, _)| *host == number);
            known.map_or_else(|| self.sealing.session(number), |at| before.swap_remove(at).1)
        };
        self.sessions = new.hosts.iter().map(|host| host.number).map(session).collect();
        self.away = before;
        self.next = Some(now);
    }

    /// Goes over to other keys; sessions go on where that is possible, also those with hosts that are in no map.
    pub(super) fn rekey(&mut self, keys: &FleetKeys, now: Nanos) {
        self.sealing.set_keys(keys);
        let away = self.away.iter_mut().map(|(_, session)| session);
        self.sessions.iter_mut().chain(away).for_each(|session| session.rekey(&self.sealing, now));
        self.next = Some(now);
    }

    /// The keys that frames to a host and from it are sealed with.
    pub(super) fn keys(&self, host: usize) -> [Option<Fingerprint>; 2] {
        let session = &self.sessions[host];
        [session.seals_with(), session.opens_with()]
    }

    pub(super) fn way(&mut self, host: usize) -> Way<'_> {
        let session = &mut self.sessions[host];
        match (session.is_live(), self.how) {
            (true, _) => Way::Sealed(session),
            (false, Sealed::Yes) => Way::NoSession,
            (false, _) => Way::Plain,
        }
    }

    /// Whether frames to this host are sealed.
    pub(super) fn is_live(&self, host: usize) -> bool {
        self.sessions[host].is_live()
    }

    fn note_due(&mut self, host: usize) {
        let times = [self.sessions[host].due(), self.next];
        self.next = times.into_iter().flatten().min();
    }
}

impl Fleet {
    /// Whether a packet in this host's name may come in; a sealed one is opened in place. A packet without a tenant's frame
    /// always may, and is judged elsewhere.
    pub(super) fn admit(
        &mut self,
        host: usize,
        tunnelled: &Tunnelled,
        packet: &mut [u8],
        now: Nanos,
    ) -> Result<(), Loss> {
        let place = tunnelled.sealed();
        let Some(seals) = &mut self.seals else {
            return if place.is_some() { Err(Loss::SealedUnasked) } else { Ok(()) };
        };
        let Some(place) = place else {
            let bare = tunnelled.frame().is_some() && seals.how == Sealed::Yes;
            return if bare { Err(Loss::Unsealed) } else { Ok(()) };
        };
        seals.sessions[host].open(tunnelled.vni.get(), &mut packet[place], now).map_err(|why| {
            seals.note_due(host);
            match why {
                Unopened::WrongSession => Loss::WrongSession,
                Unopened::Replayed => Loss::Replayed,
                Unopened::Forged => Loss::Forged,
            }
        })
    }
}

impl Dataplane {
    /// Sends the hellos that are due. Answers when the next one is.
    pub(super) fn say_hellos(&mut self, fleet: &mut Fleet, now: Nanos) -> Option<Nanos> {
        let next = fleet.seals.as_ref()?.next?;
        if next > now {
            return Some(next);
        }
        let mut seals = fleet.seals.take()?;
        seals.next = None;
        for host in 0..seals.sessions.len() {
            let session = &mut seals.sessions[host];
            if session.due().is_some_and(|due| due <= now) {
                match fleet.path(host) {
                    Some(path) => {
                        let mut frame = [0; HELLO + HEADERS];
                        let hello = session.hello(&seals.sealing, now);
                        let len = hello.and_then(|hello| path.hello_frame(&hello, &mut frame).ok());
                        // A hello that finds no room is repeated, like one that is lost.
                        len.into_iter().for_each(|len| _ = self.send_own(&frame[..len]));
                    }
                    None => seals.next = Some(now + AGAIN),
                }
            }
            if seals.sessions[host].due().is_some_and(|due| due > now) {
                seals.note_due(host);
            }
        }
        let next = seals.next;
        fleet.seals = Some(seals);
        next
    }

    /// Handles a hello in a host's name.
    pub(super) fn hear_hello(&mut self, fleet: &mut Fleet, host: usize, hello: &[u8], now: Nanos) {
        let Some(seals) = &mut fleet.seals else { return self.uplink.tally.event(Event::HelloUnasked) };
        let event = match seals.sessions[host].greet(&mut seals.sealing, hello, now) {
            Greeted::Begun => Event::SessionBegun,
            Greeted::Known => return seals.note_due(host),
            Greeted::Stale => Event::HelloStale,
            Greeted::Forged => Event::HelloForged,
            Greeted::Ignored => Event::HelloOverLimit,
        };
        seals.note_due(host);
        self.uplink.tally.event(event);
    }
}

/// Bytes of the longest headers: Ethernet, IPv6, UDP and Geneve.
const HEADERS: usize = 14 + 40 + 8 + 8;
