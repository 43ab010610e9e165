//! Two hosts that seal, and a fabric that loses, repeats, reorders and changes their frames, while both start again now
//! and then.
//!
//! Each frame opens once at most, unchanged, at the host that it was for, in the life that it was sealed for, and no
//! more once that host has heard of a later life of its sender. A changed frame never opens, and old hellos end no
//! session for good. Input: a program of two bytes a step, what to do and with what.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_control::sealing::{HELLO, SEALED_HEAD, SEALED_TAG};
use plimsoll_control::{Greeted, HostId, Sealing, Session};
use plimsoll_units::{Nanos, Span};

const KEY: [u8; 32] = [7; 32];
const VNI: u32 = 7;
const IDS: [HostId; 2] = [HostId(1), HostId(2)];

struct Host {
    sealing: Sealing,
    session: Session,
    /// Its lives are numbered in the order in which they began.
    life: u64,
    /// The life of the other host with which the last session was begun.
    other: u64,
}

/// A packet on the wire, recorded for ever.
enum Packet {
    Hello { to: usize, life: u64, bytes: [u8; HELLO] },
    Frame { to: usize, lives: [u64; 2], bytes: Vec<u8>, was: Vec<u8>, opened: bool },
}

struct World {
    hosts: [Host; 2],
    /// How often one of them has started.
    lives: u64,
    now: Nanos,
    wire: Vec<Packet>,
}

fuzz_target!(|program: &[u8]| {
    let hosts = [0, 1].map(|own| host(own, 100, 1 + own as u64));
    let mut world = World { hosts, lives: 2, now: Nanos::ZERO, wire: Vec::new() };
    for (&[what, with], rest) in (0..).step_by(2).map_while(|at| {
        let (step, rest) = program.get(at..)?.split_first_chunk::<2>()?;
        Some((step, rest))
    }) {
        world.step(what, with, rest);
    }
    world.settle();
});

fn host(own: usize, first: u64, start: u64) -> Host {
    let sealing = Sealing::new(&KEY, IDS[own], first, start);
    Host { session: sealing.session(IDS[1 - own]), sealing, life: start, other: 0 }
}

impl World {
    fn step(&mut self, what: u8, with: u8, rest: &[u8]) {
        let own = usize::from(what >> 7);
        match what & 7 {
            0 => self.seal(own, with.into()),
            1 => self.greet(own),
            2 => self.deliver(with.into(), None),
            3 => self.deliver(self.wire.len().wrapping_sub(1 + usize::from(with)), None),
            4 => self.deliver(with.into(), Some(usize::from(what >> 3) * 8 + usize::from(with & 7))),
            5 if with > 200 => {
                self.lives += 1;
                self.hosts[own] = host(own, u64::from(with) - 150, self.lives);
            }
            6 => self.now += Span::millis(with.into()),
            7 => {
                let Host { sealing, session, .. } = &mut self.hosts[own];
                let mut bytes = rest[..rest.len().min(with.into())].to_vec();
                session.greet(sealing, &bytes, self.now);
                assert!(session.open(VNI, &mut bytes, self.now).is_err(), "no host sealed it");
            }
            _ => {}
        }
    }

    fn seal(&mut self, own: usize, len: usize) {
        let mut was = vec![self.wire.len() as u8; len];
        was.extend((self.wire.len() as u64).to_be_bytes());
        let mut bytes = [&[0; SEALED_HEAD][..], &was, &[0; SEALED_TAG]].concat();
        let session = &mut self.hosts[own].session;
        assert_eq!(session.seal(VNI, &mut bytes), session.is_live());
        if session.is_live() {
            let (to, lives) = (1 - own, [self.hosts[own].life, self.hosts[1 - own].life]);
            self.wire.push(Packet::Frame { to, lives, bytes, was, opened: false });
        }
    }

    fn greet(&mut self, own: usize) {
        let Host { sealing, session, life, .. } = &mut self.hosts[own];
        if let Some(bytes) = session.hello(sealing, self.now) {
            self.wire.push(Packet::Hello { to: 1 - own, life: *life, bytes });
        }
    }

    /// A recorded packet, as it was or with a bit changed.
    fn deliver(&mut self, which: usize, change: Option<usize>) {
        let flip = |bytes: &mut [u8]| {
            let bit = change.map(|bit| bit % (bytes.len() * 8));
            bit.into_iter().for_each(|bit| bytes[bit / 8] ^= 1 << (bit % 8));
        };
        match self.wire.get_mut(which) {
            Some(Packet::Hello { to, life, bytes }) => {
                let Host { sealing, session, other, .. } = &mut self.hosts[*to];
                let mut bytes = *bytes;
                flip(&mut bytes);
                if session.greet(sealing, &bytes, self.now) == Greeted::Begun {
                    assert!(change.is_none(), "it was changed");
                    *other = *life;
                }
            }
            Some(Packet::Frame { to, lives, bytes, was, opened }) => {
                let mut bytes = bytes.clone();
                flip(&mut bytes);
                let came = self.hosts[*to].session.open(VNI, &mut bytes, self.now);
                if came.is_ok() {
                    assert!(change.is_none(), "it was changed");
                    assert!(!*opened, "it comes again");
                    let (here, there) = (self.hosts[*to].life, self.hosts[*to].other);
                    assert_eq!(*lives, [there, here], "it is of another life");
                    assert_eq!(bytes[SEALED_HEAD..bytes.len() - SEALED_TAG], was[..]);
                    *opened = true;
                }
            }
            None => {}
        }
    }

    /// The fabric is good again: frames pass, both ways.
    fn settle(&mut self) {
        // Frames of a session that the other host does not know make it send a hello.
        for own in [0, 1] {
            self.now += Span::secs(2);
            self.seal(own, 20);
            self.deliver(self.wire.len().wrapping_sub(1), None);
        }
        for _ in 0..400 {
            self.now += Span::millis(10);
            for own in [0, 1] {
                let before = self.wire.len();
                self.greet(own);
                (before..self.wire.len()).for_each(|which| self.deliver(which, None));
            }
        }
        for own in [0, 1] {
            self.seal(own, 20);
            self.deliver(self.wire.len() - 1, None);
            let last = self.wire.last();
            assert!(matches!(last, Some(Packet::Frame { opened: true, .. })), "frames pass at last");
        }
    }
}
