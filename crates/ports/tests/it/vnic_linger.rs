//! A client that passes a connection which takes long to close holds up neither the port nor its other clients, however its own
//! connection ends.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::linger::{LINGER, lingering, send_along};
use crate::support::until;
use plimsoll_ports::{Trouble, VnicConfig, VnicPort};
use plimsoll_vnic::message::{FlowSpec, Message};
use plimsoll_vnic::socket::{Incoming, connect_to, read_message, read_welcome, send_message};

/// A port, where its socket lies, and the other ends of what its clients send along.
struct World {
    port: VnicPort,
    path: PathBuf,
    far: Vec<TcpStream>,
    _folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shop.sock");
        Self { port: open(&path), path, far: Vec::new(), _folder: folder }
    }

    fn connect(&self) -> OwnedFd {
        connect_to(&self.path).expect("connected")
    }

    /// Sends a message with a connection that lingers.
    fn send(&mut self, socket: &OwnedFd, message: Message) {
        let (near, far) = lingering();
        self.far.push(far);
        send_along(socket, &message.to_bytes(), near);
    }

    /// Looks at the sockets some times, and hears what the client asks; it takes next to nothing.
    fn look(&mut self) {
        soon("a look", || {
            for _ in 0..8 {
                self.port.rest();
                while self.port.request().is_some() {}
            }
        });
    }

    /// The client that has the vNIC.
    fn welcomed(&mut self) -> OwnedFd {
        let client = self.connect();
        send_message(&client, Message::hello(), &[]).expect("sent");
        self.look();
        assert!(matches!(read_welcome(&client), Ok((Some(Message::Welcome(_)), _))));
        client
    }
}

fn open(path: &Path) -> VnicPort {
    VnicPort::open(&VnicConfig::new(path)).expect("a port")
}

fn soon<T>(what: &str, job: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = job();
    assert!(begun.elapsed() < LINGER / 3, "{what} took {:?}", begun.elapsed());
    done
}

#[test]
fn who_is_turned_away_while_another_has_the_vnic() {
    let mut world = World::new();
    let _client = world.welcomed();
    let other = world.connect();
    world.send(&other, Message::hello());
    world.look();
    assert!(matches!(read_message(&other), Incoming::Message(Message::Occupied)), "it is told so");
    // Enough connections after it that its own is closed.
    for _ in 0..6 {
        let _one_more = world.connect();
        world.look();
    }
    assert!(matches!(read_message(&other), Incoming::Closed));
    assert!(world.port.is_connected(), "the first stays");
}

#[test]
fn who_sends_it_with_its_first_message() {
    let mut world = World::new();
    let socket = world.connect();
    world.send(&socket, Message::hello());
    world.look();
    assert!(matches!(read_message(&socket), Incoming::Closed) && !world.port.is_connected());
    // One place is busy, and the next is served all the same.
    world.welcomed();
    assert!(world.port.is_connected());
}

#[test]
fn who_has_the_vnic() {
    let mut world = World::new();
    let client = world.welcomed();
    world.send(&client, Message::Open(FlowSpec::default()));
    world.look();
    assert_eq!(world.port.begin(), Err(Trouble::Gone), "no message comes with descriptors");
    assert!(matches!(read_message(&client), Incoming::Closed), "it is told at once");
    let (path, port) = (world.path.clone(), world.port);
    soon("dropping it", || drop(port));
    World { port: soon("opening it anew", || open(&path)), path, far: world.far, _folder: world._folder }
        .welcomed();
}

#[test]
fn who_sends_it_behind_what_is_read_and_leaves() {
    let mut world = World::new();
    let client = world.welcomed();
    for _ in 0..4 {
        send_message(&client, Message::Ask(FlowSpec::default()), &[]).expect("sent");
        world.send(&client, Message::Ask(FlowSpec::default()));
    }
    drop(client);
    world.look();
    let port = world.port;
    soon("dropping it", || drop(port));
}

#[test]
fn who_was_never_let_in() {
    let mut world = World::new();
    let waiting: Vec<OwnedFd> = (0..3).map(|_| world.connect()).collect();
    waiting.iter().for_each(|socket| world.send(socket, Message::hello()));
    let port = world.port;
    soon("dropping the listener", || drop(port));
    waiting
        .iter()
        .for_each(|socket| assert!(matches!(read_message(socket), Incoming::Closed), "told at once"));
}

/// The connections that wait to be closed are bounded; at the bound, new ones wait to be accepted.
#[test]
fn who_comes_again_and_again() {
    let mut world = World::new();
    let closed = |sockets: &[OwnedFd]| {
        sockets.iter().filter(|socket| matches!(read_message(socket), Incoming::Closed)).count()
    };
    let mut sockets = Vec::new();
    for _ in 0..40 {
        // Where no client is let in, the queue of pending connections is full some time.
        let Ok(socket) = connect_to(&world.path) else { break };
        world.send(&socket, Message::hello());
        sockets.push(socket);
        world.look();
    }
    let taken = closed(&sockets);
    assert!((10..30).contains(&taken), "{taken} were let in and hung up on");
    assert!(world.port.rest(), "it sleeps while no client is let in");
    // The other ends go, and with them what the closes wait for.
    world.far.clear();
    until("all are heard", || {
        world.look();
        closed(&sockets) == sockets.len()
    });
    world.welcomed();
}

/// A descriptor is closed, and not kept.
#[test]
fn what_was_sent_along_is_closed_at_last() {
    let mut world = World::new();
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("two ends");
    far.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let socket = world.connect();
    send_message(&socket, Message::hello(), &[std::os::fd::AsRawFd::as_raw_fd(&near)]).expect("sent");
    drop(near);
    world.look();
    assert_eq!(std::io::Read::read(&mut &far, &mut [0]).expect("its end"), 0);
}
