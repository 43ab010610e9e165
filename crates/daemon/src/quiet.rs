//! Quiet ports: those whose packets end a nap.
//!
//! Why: naps save wake-ups where much passes, and what a tenant sends now and then should not wait for the end of one.
//! From: what network cards do: an interrupt at once for a quiet queue, and one now and then for a busy one.
//! Not here: when the thread takes a nap (`coalesce`), and waits without naps (`wait`).
//! Invariant: at most half of the naps of a window end early, so that quiet ports, however many there are, no more than double the
//! number of wake-ups. A port that has ended an eighth of a window's naps ends more only while less than a quarter of them have
//! ended early, so that it leaves some to other ports.

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;

use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use plimsoll_units::Span;

use crate::timer::Timer;

/// Watches quiet ports, which end naps. A busy port has something after at least half of the naps of a window, and ends none in the
/// next one.
#[derive(Debug)]
pub(crate) struct Quiet {
    poll: Poll,
    events: Events,
    timer: Timer,
    ports: HashMap<Token, Port>,
    /// The port of each descriptor.
    watched: HashMap<RawFd, Token>,
    /// Ports that something came from in this window, and those that were busy in the window before.
    active: Vec<Token>,
    naps: u32,
    /// Number of naps of this window that ports have ended.
    early: u32,
}

#[derive(Debug, Default)]
struct Port {
    /// Its descriptors: two of an uplink with a standby, else one.
    fds: Vec<RawFd>,
    /// Number of naps of this window after which it had something.
    heard: u32,
    /// The number of the latest of them in the window; 0 for none.
    latest: u32,
    /// Number of naps of this window that it has ended.
    ended: u32,
    /// It ends no nap, until the window's end at least: it is busy, or has ended its share.
    muted: bool,
    /// It is among the active ones.
    active: bool,
}

impl Port {
    /// Lets it end naps, or not. A descriptor that cannot be watched again ends none; what comes is read after each nap.
    fn mute(&mut self, muted: bool, token: Token, registry: &Registry) {
        if std::mem::replace(&mut self.muted, muted) == muted {
            return;
        }
        for fd in &self.fds {
            let _ = if muted {
                registry.deregister(&mut SourceFd(fd))
            } else {
                registry.register(&mut SourceFd(fd), token, Interest::READABLE)
            };
        }
    }
}

const TIMER: Token = Token(usize::MAX);
/// Naps after which ports are judged anew.
const WINDOW: u32 = 32;
/// Most naps of a window that end early.
const EARLY: u32 = WINDOW / 2;
/// Naps of a window that end early by whichever port has something; the rest of [`EARLY`] is for ports below their [`SHARE`].
const OPEN: u32 = WINDOW / 4;
/// Naps of a window that a port may end even if others have ended more than [`OPEN`].
const SHARE: u32 = WINDOW / 8;

impl Quiet {
    pub(crate) fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let timer = Timer::new(&poll, TIMER)?;
        Ok(Self {
            poll,
            events: Events::with_capacity(16),
            timer,
            ports: HashMap::new(),
            watched: HashMap::new(),
            active: Vec::new(),
            naps: 0,
            early: 0,
        })
    }

    /// Adds a descriptor of a port, which is a quiet one unless this window has shown otherwise. A descriptor that cannot be watched
    /// ends no nap.
    pub(crate) fn watch(&mut self, token: Token, fd: RawFd) {
        self.watched.insert(fd, token);
        let port = self.ports.entry(token).or_default();
        port.fds.push(fd);
        if !port.muted {
            let _ = self.poll.registry().register(&mut SourceFd(&fd), token, Interest::READABLE);
        }
    }

    /// Removes a descriptor of a port; to be called before it is closed. What is known of the port stays until the window ends: one that
    /// comes back meanwhile gets no further share of naps.
    pub(crate) fn forget(&mut self, fd: RawFd) {
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        let Some(token) = self.watched.remove(&fd) else { return };
        let Some(port) = self.ports.get_mut(&token) else { return };
        port.fds.retain(|other| *other != fd);
        if port.fds.is_empty() && !port.active {
            self.ports.remove(&token);
        }
    }

    /// Notes that a port has something; what comes again before the next nap does not count.
    pub(crate) fn heard(&mut self, token: Token) {
        let Some(port) = self.ports.get_mut(&token).filter(|port| port.latest < self.naps) else { return };
        if !std::mem::replace(&mut port.active, true) {
            self.active.push(token);
        }
        port.latest = self.naps;
        port.heard += 1;
    }

    /// Counts the nap that a port has ended, and mutes ports that have ended their share.
    fn charge(&mut self, token: Token) {
        self.early += 1;
        let Some(port) = self.ports.get_mut(&token) else { return };
        port.ended += 1;
        if !std::mem::replace(&mut port.active, true) {
            self.active.push(token);
        }
        let full = match self.early {
            ..OPEN => return,
            // Until now, a port could end more than its share.
            OPEN => &self.active[..],
            _ => std::slice::from_ref(&token),
        };
        for token in full {
            if let Some(port) = self.ports.get_mut(token).filter(|port| port.ended >= SHARE) {
                port.mute(true, *token, self.poll.registry());
            }
        }
    }

    /// Sleeps for this long, or until a quiet port has something. Returns whether it slept to the end.
    pub(crate) fn nap(&mut self, span: Span) -> io::Result<bool> {
        if self.naps == WINDOW {
            self.judge();
        }
        self.naps += 1;
        if self.early >= EARLY {
            std::thread::sleep(span.to_std());
            return Ok(true);
        }
        self.timer.set(span)?;
        match self.poll.poll(&mut self.events, None) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let whole = self.events.iter().any(|event| event.token() == TIMER);
        // Of several ports, the one that was ready first has ended it.
        if !whole && let Some(first) = self.events.iter().next().map(Event::token) {
            self.charge(first);
        }
        Ok(whole)
    }

    /// Ends the window: a port is busy if it had something after half of the naps, and ends no nap in the next one.
    fn judge(&mut self) {
        let mut busy = Vec::new();
        for token in std::mem::take(&mut self.active) {
            let Some(port) = self.ports.get_mut(&token) else { continue };
            port.active = false;
            if port.fds.is_empty() {
                self.ports.remove(&token);
                continue;
            }
            let is_busy = 2 * port.heard >= self.naps;
            (port.heard, port.latest, port.ended) = (0, 0, 0);
            port.mute(is_busy, token, self.poll.registry());
            if is_busy {
                busy.push(token);
            }
        }
        for token in &busy {
            if let Some(port) = self.ports.get_mut(token) {
                port.active = true;
            }
        }
        self.active = busy;
        (self.naps, self.early) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use nix::sys::eventfd::{EfdFlags, EventFd};

    use super::*;

    const LONG: Span = Span::secs(20);
    const SHORT: Span = Span::micros(100);

    fn port() -> EventFd {
        EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("a descriptor")
    }

    #[test]
    fn a_quiet_port_ends_a_nap_and_one_that_has_something_after_most_does_not() {
        let mut quiet = Quiet::new().expect("descriptors");
        let (shop, bulk) = (port(), port());
        quiet.watch(Token(0), shop.as_fd().as_raw_fd());
        quiet.watch(Token(1), bulk.as_fd().as_raw_fd());
        assert!(quiet.nap(SHORT).expect("slept"));
        shop.write(1).expect("room");
        assert!(!quiet.nap(LONG).expect("slept"), "at once");
        shop.read().expect("there");
        assert!(quiet.nap(SHORT).expect("slept"), "what was read meanwhile ends none");
        for _ in 3..WINDOW {
            quiet.heard(Token(1));
            quiet.nap(SHORT).expect("slept");
        }
        quiet.nap(SHORT).expect("slept");
        bulk.write(1).expect("room");
        assert!(quiet.nap(SHORT).expect("slept"), "a busy one");
        shop.write(1).expect("room");
        assert!(!quiet.nap(LONG).expect("slept"), "the other is still quiet");
        for _ in 0..WINDOW {
            quiet.nap(SHORT).expect("slept");
        }
        bulk.read().expect("there");
        bulk.write(1).expect("room");
        assert!(!quiet.nap(LONG).expect("slept"), "no longer busy");
        quiet.forget(bulk.as_fd().as_raw_fd());
        bulk.read().expect("there");
        bulk.write(1).expect("room");
        assert!(quiet.nap(SHORT).expect("slept"), "forgotten");
    }

    #[test]
    fn a_port_with_two_descriptors_that_is_watched_anew_in_mid_window_becomes_busy_with_both() {
        let mut quiet = Quiet::new().expect("descriptors");
        let uplink = [port(), port()];
        let fds = uplink.each_ref().map(|port| port.as_fd().as_raw_fd());
        fds.iter().for_each(|fd| quiet.watch(Token(7), *fd));
        for nap in 0..4 * WINDOW {
            quiet.heard(Token(7));
            quiet.nap(SHORT).expect("slept");
            if nap % WINDOW == 5 {
                fds.iter().for_each(|fd| quiet.forget(*fd));
                fds.iter().for_each(|fd| quiet.watch(Token(7), *fd));
            }
        }
        for _ in 0..WINDOW {
            quiet.heard(Token(7));
            quiet.nap(SHORT).expect("slept");
        }
        quiet.heard(Token(7));
        quiet.nap(SHORT).expect("slept");
        uplink.iter().for_each(|port| assert_eq!(port.write(1).expect("room"), 8));
        assert!(quiet.nap(SHORT).expect("slept"), "busy");
        quiet.forget(fds[0]);
        assert!(quiet.ports.contains_key(&Token(7)));
        quiet.forget(fds[1]);
        (0..=WINDOW).for_each(|_| assert!(quiet.nap(SHORT).expect("slept")));
        assert!(quiet.ports.is_empty());
    }

    #[test]
    fn a_port_that_comes_back_in_mid_window_gets_no_further_share_of_naps() {
        let mut quiet = Quiet::new().expect("descriptors");
        let port = port();
        let fd = port.as_fd().as_raw_fd();
        quiet.watch(Token(7), fd);
        for _ in 0..OPEN {
            port.write(1).expect("room");
            assert!(!quiet.nap(LONG).expect("slept"));
            port.read().expect("there");
        }
        quiet.forget(fd);
        quiet.watch(Token(7), fd);
        port.write(1).expect("room");
        assert!(quiet.nap(SHORT).expect("slept"), "it has ended a quarter of the window's naps");
    }

    #[test]
    fn a_port_leaves_naps_for_others_to_end() {
        let mut quiet = Quiet::new().expect("descriptors");
        let ports = [port(), port(), port()];
        for (number, port) in ports.iter().enumerate() {
            quiet.watch(Token(number), port.as_fd().as_raw_fd());
        }
        let [chatty, shop, other] = [0, 1, 2];
        // The port has something before each of `count` naps, and ends the first `ended` of them.
        let mut naps = |number: usize, ended: u32, count: u32| {
            for nap in 0..count {
                ports[number].write(1).expect("room");
                let span = if nap < ended { LONG } else { SHORT };
                assert_eq!(quiet.nap(span).expect("slept"), nap >= ended, "nap {nap} of port {number}");
                ports[number].read().expect("there");
            }
        };
        naps(chatty, OPEN, 12);
        naps(shop, SHARE, 8);
        naps(other, SHARE, WINDOW - 20);
        // In the next window it comes last, and has its share, too.
        naps(shop, SHARE, 4);
        naps(other, SHARE, 4);
        naps(chatty, SHARE, WINDOW - 8);
        naps(chatty, OPEN, WINDOW);
    }

    #[test]
    fn at_most_half_of_the_naps_end_early() {
        let mut quiet = Quiet::new().expect("descriptors");
        let ports: Vec<_> = (0..8).map(|_| port()).collect();
        for (number, port) in ports.iter().enumerate() {
            quiet.watch(Token(number), port.as_fd().as_raw_fd());
        }
        let mut early = 0;
        for nap in 0..10 * WINDOW {
            let port = &ports[nap as usize % ports.len()];
            port.write(1).expect("room");
            early += u32::from(!quiet.nap(SHORT).expect("slept"));
            quiet.heard(Token(nap as usize % ports.len()));
            port.read().expect("there");
        }
        assert_eq!(early, 5 * WINDOW);
    }
}
