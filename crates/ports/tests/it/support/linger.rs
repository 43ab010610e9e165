//! Connections that take long to close, and local connections that bring one along.

use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg, setsockopt, sockopt};

/// How long a close of one takes.
pub const LINGER: Duration = Duration::from_secs(6);

/// A connection with unsent bytes, and its other end, which reads none.
pub fn lingering() -> (TcpStream, TcpStream) {
    lingering_for(LINGER)
}

/// Such a connection, whose close takes so long.
pub fn lingering_for(time: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (far, _) = listener.accept().expect("the near end connects");
    near.set_nonblocking(true).expect("a socket");
    while near.write(&[0; 65_536]).is_ok() {}
    let linger = nix::libc::linger { l_onoff: 1, l_linger: time.as_secs() as i32 };
    setsockopt(&near, sockopt::Linger, &linger).expect("a socket");
    (near, far)
}

/// Sends `bytes` with this descriptor, which only the receiver has from then on.
pub fn send_along(socket: &OwnedFd, bytes: &[u8], connection: TcpStream) {
    let descriptors = [connection.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &[IoSlice::new(bytes)], &rights, flags, None).expect("room");
}
