//! Several packet sockets that share the frames of an interface.
//!
//! Why: each engine thread has a queue of its own.
//! From: packet(7), `PACKET_FANOUT`; by hash, so that a flow's frames stay in order.
//! Not here: sending, which each socket does for itself.

use std::io;
use std::os::fd::OwnedFd;

use crate::socket;

/// Missing from `libc`: the group does not get frames that its own sockets send (Linux 5.10).
const IGNORE_OUTGOING: libc::c_uint = 0x4000;

/// Joins a group, or makes a new one; answers the group.
pub(super) fn join(socket: &OwnedFd, group: Option<u16>) -> io::Result<u16> {
    let unique = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
    let how = libc::PACKET_FANOUT_HASH | unique | IGNORE_OUTGOING;
    let option = how << 16 | libc::c_uint::from(group.unwrap_or(0));
    socket::set(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &option)?;
    if let Some(group) = group {
        return Ok(group);
    }
    let mut made: libc::c_int = 0;
    socket::get(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &mut made)?;
    Ok((made & 0xffff) as u16)
}
