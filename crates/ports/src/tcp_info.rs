//! The kernel's own figures of a TCP connection (`TCP_INFO`).
//!
//! Why: only the kernel knows how often it sent a segment again, the round trip that it measured, and whether ECN is on.
//! From: tcp(7), "TCP_INFO"; `ss -ti` prints them.
//! Not here: what a figure means for an experiment (`lab`). The call is in this crate because it needs `unsafe`.
//! Invariant: the socket stays as it is.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::socket::check;

/// Figures of a connection since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Segments that were sent again.
    pub retransmits: u32,
    /// The smoothed round-trip time.
    pub rtt: Duration,
    /// Whether both ends agreed on ECN.
    pub ecn: bool,
    /// Whether a packet with ECT or CE has come.
    pub ecn_seen: bool,
    /// Packets that it sent and of which the other end said that they came marked.
    pub delivered_ce: u32,
}

/// Bits of `tcpi_options`, from `linux/tcp.h`.
const ECN: u8 = 8;
const ECN_SEEN: u8 = 16;

impl TcpInfo {
    /// The figures of a connected TCP socket.
    ///
    /// # Errors
    /// The kernel's error, such as for a socket that is not TCP's.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        // SAFETY: all zeroes is a valid `tcp_info`, which is integers only.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
        let (fd, into) = (socket.as_fd().as_raw_fd(), (&raw mut info).cast());
        // SAFETY: the kernel writes at most `len` bytes into the live structure, which is as long. A kernel with a shorter one
        // leaves the rest zero.
        check(unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut len) })?;
        Ok(Self {
            retransmits: info.tcpi_total_retrans,
            rtt: Duration::from_micros(info.tcpi_rtt.into()),
            ecn: info.tcpi_options & ECN != 0,
            ecn_seen: info.tcpi_options & ECN_SEEN != 0,
            delivered_ce: info.tcpi_delivered_ce,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_connection_on_loopback_has_a_round_trip_and_loses_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (mut server, _) = listener.accept().expect("accepted");
        client.write_all(&[1; 100]).expect("sent");
        server.read_exact(&mut [0; 100]).expect("received");
        let info = TcpInfo::of(&client).expect("TCP");
        assert_eq!((info.retransmits, info.delivered_ce), (0, 0));
        assert!(info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1), "{info:?}");
    }

    #[test]
    fn a_socket_that_is_not_tcps_has_none() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        assert!(TcpInfo::of(&socket).is_err());
    }
}
