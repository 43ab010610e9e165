//! A front end that passes a connection which takes long to close holds up neither the port nor its other clients.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::guest::{Guest, SET_FEATURES, VERSION_1};
use crate::support::linger::{LINGER, lingering};
use plimsoll_ports::{VhostUser, VhostUserConfig};

/// Passes the connection behind something else, so that it lies unread.
fn pass(guest: &Guest, before: &[u8], connection: TcpStream) {
    guest.send(before, &[]);
    guest.say(SET_FEATURES, &VERSION_1.to_le_bytes(), &[connection.as_raw_fd()]);
}

fn open(folder: &Path) -> VhostUser {
    VhostUser::open(&VhostUserConfig::new(folder.join("vm.sock"))).expect("a port")
}

/// How long a few looks take.
fn looked(port: &mut VhostUser) -> Duration {
    let begun = Instant::now();
    (0..8).for_each(|_| port.probe().expect("always there"));
    begun.elapsed()
}

#[test]
fn who_is_hung_up_on_with_a_connection_that_lingers_unread() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = open(folder.path());
    let (near, _far) = lingering();
    let guest = Guest::connect(&path, 16);
    pass(&guest, &[0xff; 12], near);
    assert!(looked(&mut port) < LINGER / 3);
    assert!(!port.is_connected() && port.take_problem().is_some());
    // Until that is closed no client is let in.
    let _other = UnixStream::connect(&path).expect("it waits");
    assert!(looked(&mut port) < LINGER / 3);
    assert!(!port.is_connected());
}

#[test]
fn who_comes_while_another_has_the_port() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = open(folder.path());
    let _guest = Guest::start(&mut port, &path, 16, VERSION_1);
    let (near, _far) = lingering();
    let other = Guest::connect(&path, 16);
    pass(&other, &[], near);
    assert!(looked(&mut port) < LINGER / 3);
    assert!(port.is_connected(), "the first stays");
}
