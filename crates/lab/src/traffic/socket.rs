//! Sockets for workloads: non-blocking, marked with a DSCP, and closed without lingering.
//!
//! Why: one slow connect must not hold up a workload's other flows.
//! From: tcp(7), ip(7), RFC 2474 (DSCP).
//! Not here: waiting for them (`events`).

use fastrand::Rng;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt,
};
use plimsoll_scenario::{Congestion, Workload};
use std::ffi::OsString;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};

/// Ethernet, IPv4 and UDP headers of a datagram.
pub(crate) const UDP_HEADERS: u64 = 14 + 20 + 8;
/// The range of clients' random source ports. Linux itself assigns ports in sequence, which would put all flows on
/// one queue of a system that spreads them by port.
pub(crate) const SOURCE_PORTS: RangeInclusive<u16> = 32_768..=60_999;
/// Most random ports that are tried until one is free.
const TRIES: u32 = 64;

/// Begins to connect from a random port; the socket becomes writable when it is connected.
pub(crate) fn begin_connect(
    to: SocketAddrV4,
    workload: &Workload,
    random: &mut Rng,
) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    mark(&fd, workload.dscp)?;
    set_congestion_control(&fd, workload)?;
    setsockopt(&fd, sockopt::TcpNoDelay, &true)?;
    random_port(random, |port| Ok(bind(fd.as_raw_fd(), &SockaddrIn::new(0, 0, 0, 0, port))?))?;
    match connect(fd.as_raw_fd(), &SockaddrIn::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(error) => Err(error.into()),
    }
}

/// Listens on the workload's port of every local address; accepted sockets carry the DSCP too.
pub(crate) fn listen(workload: &Workload, dscp: u8) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, workload.port))?;
    mark(&listener, dscp)?;
    set_congestion_control(&listener, workload)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Calls `bind` with random ports until one is free.
fn random_port<T>(random: &mut Rng, mut bind: impl FnMut(u16) -> io::Result<T>) -> io::Result<T> {
    let mut taken = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..TRIES {
        match bind(random.u16(SOURCE_PORTS)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => taken = error,
            other => return other,
        }
    }
    Err(taken)
}

/// A UDP socket on a random port, connected to `to`.
pub(crate) fn datagrams_to(to: SocketAddrV4, dscp: u8, random: &mut Rng) -> io::Result<UdpSocket> {
    let socket = random_port(random, |port| datagrams(port, dscp))?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A UDP socket with room for bursts.
pub(crate) fn datagrams(port: u16, dscp: u8) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    mark(&socket, dscp)?;
    // More than the default where allowed: drops at the receiver would look like the engine's.
    let _ = setsockopt(&socket, sockopt::RcvBuf, &(4 << 20));
    Ok(socket)
}

/// Makes the later close an abort, which discards unsent data.
pub(crate) fn abort_on_close(stream: &TcpStream) {
    let _ = setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Whether an operation can be repeated later.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads available bytes into `buffer`: `Some(0)` when there are none, `None` when the peer has gone.
pub(crate) fn read_some(stream: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    match stream.read(buffer) {
        Ok(0) => None,
        Ok(count) => Some(count),
        Err(error) if would_block(&error) => Some(0),
        Err(_) => None,
    }
}

/// Sets the congestion control of the scenario file, or its default: the kernel's own may be another one.
fn set_congestion_control(socket: &impl AsFd, workload: &Workload) -> io::Result<()> {
    let name = workload.congestion.unwrap_or_default().of_linux();
    let set = setsockopt(socket, sockopt::TcpCongestion, &OsString::from(name));
    set.map_err(|error| io::Error::other(format!("this kernel has no congestion control `{name}`: {error}")))
}

/// Whether the kernel has this congestion control, or a module that it loads for it.
pub(crate) fn has_congestion_control(congestion: Congestion) -> bool {
    let probe = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let name = OsString::from(congestion.of_linux());
    // Only a kernel that says that there is none counts as one without it.
    probe.is_ok_and(|probe| setsockopt(&probe, sockopt::TcpCongestion, &name) != Err(Errno::ENOENT))
}

/// Lets datagrams say that they are ECN-capable: ECT(0), RFC 3168.
pub(crate) fn say_capable(socket: &impl AsFd, dscp: u8) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::Ipv4Tos, &(i32::from(dscp) << 2 | 2))?)
}

fn mark(socket: &impl AsFd, dscp: u8) -> io::Result<()> {
    if dscp != 0 {
        setsockopt(socket, sockopt::Ipv4Tos, &(i32::from(dscp) << 2))?;
    }
    Ok(())
}
