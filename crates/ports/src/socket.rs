//! Socket calls that the standard library and `nix` lack, each behind a safe function.
//!
//! Why: AF_PACKET and AF_XDP share options, binding and errors; their unsafe parts are written here once.
//! From: packet(7), `Documentation/networking/af_xdp.rst`.
//! Not here: the meaning of the options.
//! Invariant: no function here keeps a pointer after it returns.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens a socket that neither blocks nor survives `exec`.
pub(crate) fn open(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers only.
    let fd = check(unsafe { libc::socket(family, kind, protocol) })?;
    // SAFETY: the kernel has just made `fd`, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets an option whose value is the plain structure or integer `value`.
pub(crate) fn set<T: Copy>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is live and `len` its size; the kernel only reads it.
    check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len)
    })?;
    Ok(())
}

/// Reads an option into `value`, a structure of integers that the kernel fills, perhaps in part.
pub(crate) fn get<T: Plain>(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let into = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`, of which every bit pattern
    // is a valid value (`Plain`).
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut len) })?;
    Ok(())
}

/// Binds to `address`, a `sockaddr` of the socket's family.
pub(crate) fn bind<T: Copy>(socket: &OwnedFd, address: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `address` is live and `len` its size; the kernel only reads it.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), len) })?;
    Ok(())
}

/// Whether this machine's kernel has at least this version; false where it does not tell.
pub(crate) fn kernel_is_at_least(least: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= least)
}

/// The first two numbers of a release such as `6.18.5-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The number of the interface that a packet socket is bound to; negative when it has disappeared.
pub(crate) fn bound_interface(socket: &OwnedFd) -> io::Result<libc::c_int> {
    let mut address: libc::sockaddr_ll = zeroed();
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let into = (&raw mut address).cast();
    // SAFETY: the kernel writes at most `len` bytes, the size of `address`, which is plain.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), into, &raw mut len) })?;
    Ok(address.sll_ifindex)
}

/// Takes one message that the kernel has sent on a netlink socket, as far as it fits; others' messages are skipped.
pub(crate) fn receive_from_kernel(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut from: libc::sockaddr_nl = zeroed();
        let mut len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        let (into, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_DONTWAIT);
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer` and `len` bytes to `from`, both of which are
        // live and plain.
        let taken = unsafe {
            libc::recvfrom(
                socket.as_raw_fd(),
                into,
                buffer.len(),
                flags,
                (&raw mut from).cast(),
                &raw mut len,
            )
        };
        let taken = usize::try_from(taken).map_err(|_| io::Error::last_os_error())?;
        if from.nl_pid == 0 {
            return Ok(taken);
        }
    }
}

/// Turns a negative return value into the thread's last error.
pub(crate) fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// A structure with every bit zero.
pub(crate) fn zeroed<T: Plain>() -> T {
    // SAFETY: every bit pattern is a valid `Plain`.
    unsafe { std::mem::zeroed() }
}

/// C structures of integers and raw pointers.
///
/// # Safety
/// Every bit pattern must be a valid value.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: a C structure of integers and raw pointers.
            unsafe impl Plain for $name {}
        )*
    };
}

plain!(
    libc::c_int,
    libc::iovec,
    libc::mmsghdr,
    libc::msghdr,
    libc::packet_mreq,
    libc::sockaddr_ll,
    libc::sockaddr_nl,
    libc::sockaddr_xdp,
    libc::tpacket_auxdata,
    libc::tpacket_stats,
    libc::xdp_mmap_offsets,
    libc::xdp_statistics,
    libc::xdp_umem_reg,
);

/// The answer to `ETHTOOL_GCHANNELS`, as in the kernel's `ethtool.h`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// By how many queues frames arrive at an interface of the calling thread's network namespace, where its driver tells.
pub(crate) fn receive_queues(interface: &str) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    let socket = open(libc::AF_INET, libc::SOCK_DGRAM, 0).ok()?;
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    // SAFETY: all zeros are a valid `ifreq`: it is made of integers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.as_bytes();
    request.ifr_name.get(name.len())?; // room for the zero behind the name
    request.ifr_name.iter_mut().zip(name).for_each(|(to, from)| *to = from.cast_signed());
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the name ends with a zero, and the data is the structure of this command; the kernel keeps neither.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) }).ok()?;
    Some(channels.receive + channels.combined)
}
