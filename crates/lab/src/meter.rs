//! The meter at the far end of the uplink: counts every frame that arrives, by workload and window.
//!
//! Why: a system's throughput is what arrives on the wire; an application sees data only in order, later and in batches.
//! From: packet(7); a frame belongs to the workload whose tenant sent it and whose port is its source or destination.
//! Not here: latency, which the client measures (`traffic`).
//! Invariant: a frame is counted in the window in which it arrived; frames after the run's end are in no window.

use crate::clock::Clock;
use crate::error::LabError;
use crate::netns;
use crate::traffic::{Job, Live};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, recvmsg, setsockopt,
    socket, sockopt,
};
use nix::sys::time::{TimeSpec, TimeVal, TimeValLike};
use nix::time::{ClockId, clock_gettime};
use plimsoll_scenario::Departure;
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a frame that are read: Ethernet, IPv4 with options, and both ports.
const HEADERS: usize = 14 + 60 + 4;
/// Place of IPv4's type of service in a frame; both lower bits are set in a packet that is marked.
const TOS: usize = 15;
const CE: u8 = 3;

/// The frames of one workload that arrived.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Bytes of whole frames in each window.
    pub bytes: Vec<u64>,
    /// Number of frames in each window.
    pub frames: Vec<u64>,
    /// Number of frames, including those after the run's end.
    pub packets: u64,
    /// Frames of either way that arrived with a mark (CE).
    pub marks: u64,
    /// Time of arrival of each frame, where that is kept.
    pub departures: Vec<Departure>,
}

/// Counts frames that arrive in namespace `place` until `over`; one entry for each job. Only marks are counted where the
/// receiver of a job's answers is.
pub fn count(
    place: &str,
    jobs: &[Job],
    lives: &[Live],
    clock: &Clock,
    over: &AtomicBool,
    ready: &dyn Fn(),
) -> Result<Vec<Counted>, LabError> {
    netns::enter(place)?;
    let wire = open().map_err(|e| LabError::io("watch the uplink", e))?;
    ready();
    let keys = jobs.iter().enumerate().map(|(index, job)| ((job.tenant.address, job.workload.port), index));
    let keys: HashMap<(Ipv4Addr, u16), usize> = keys.collect();
    let answered = |(_, job): &(usize, &Job)| job.tenant.netns == place;
    let back = jobs.iter().enumerate().filter(answered);
    let back = back.map(|(index, job)| ((job.peer.address, job.workload.port), index));
    let back: HashMap<(Ipv4Addr, u16), usize> = back.collect();
    let mut counted = vec![Counted::default(); jobs.len()];
    let mut buffer = [0; HEADERS];
    let mut control = nix::cmsg_space!(TimeSpec);
    while !over.load(Ordering::Relaxed) {
        let (length, late) = match receive(&wire, &mut buffer, &mut control) {
            Ok(frame) => frame,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENETDOWN | Errno::ENOBUFS) => continue,
            Err(error) => return Err(LabError::io("watch the uplink", error)),
        };
        let Some((from, ports)) = ends(&buffer[..length.min(HEADERS)]) else { continue };
        let marked = u64::from(buffer[TOS] & CE == CE);
        if let Some(index) = ports.iter().find_map(|port| back.get(&(from, *port))) {
            counted[*index].marks += marked;
        }
        let Some(index) = ports.iter().find_map(|port| keys.get(&(from, *port))) else { continue };
        if jobs[*index].peer.netns != place {
            continue;
        }
        let one = &mut counted[*index];
        one.packets += 1;
        one.marks += marked;
        lives[*index].bytes.fetch_add(length as u64, Ordering::Relaxed);
        let (now, job) = (clock.now().saturating_sub(late), &jobs[*index]);
        if now >= job.duration.as_u64() {
            continue;
        }
        let window = usize::try_from(now / job.window.as_u64().max(1)).unwrap_or(usize::MAX);
        if one.bytes.len() <= window {
            one.bytes.resize(window + 1, 0);
            one.frames.resize(window + 1, 0);
        }
        one.bytes[window] += length as u64;
        one.frames[window] += 1;
        if job.moments {
            let len = u32::try_from(length).unwrap_or(u32::MAX);
            one.departures.push(Departure { at: plimsoll_units::Nanos::new(now), len });
        }
    }
    Ok(counted)
}

/// Receives the next frame; returns its length, and how long ago the kernel received it, as this thread may be late.
#[expect(clippy::disallowed_methods, reason = "a packet socket carries no descriptors")]
fn receive(wire: &OwnedFd, buffer: &mut [u8], control: &mut [u8]) -> Result<(usize, u64), Errno> {
    let mut slices = [std::io::IoSliceMut::new(buffer)];
    let got = recvmsg::<()>(wire.as_raw_fd(), &mut slices, Some(control), MsgFlags::MSG_TRUNC)?;
    let stamp = got.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::ScmTimestampns(at) => Some(at),
        _ => None,
    });
    let since = |at: TimeSpec| clock_gettime(ClockId::CLOCK_REALTIME).map(|now| (now - at).num_nanoseconds());
    let late = stamp.map(since).transpose()?.unwrap_or(0);
    Ok((got.bytes, u64::try_from(late).unwrap_or(0)))
}

/// A socket that sees every frame of its namespace's devices.
fn open() -> Result<OwnedFd, Errno> {
    let wire = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
    // Half a second of frames, if this thread has to wait; without root as much as the host allows.
    setsockopt(&wire, sockopt::RcvBufForce, &(32 << 20))
        .or_else(|_| setsockopt(&wire, sockopt::RcvBuf, &(4 << 20)))?;
    setsockopt(&wire, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&wire, sockopt::ReceiveTimeout, &TimeVal::milliseconds(50))?;
    Ok(wire)
}

/// Sender and both ports of an IPv4 frame with ports; `None` for any other frame.
fn ends(frame: &[u8]) -> Option<(Ipv4Addr, [u16; 2])> {
    const IPV4: [u8; 2] = [0x08, 0x00];
    const TCP: u8 = 6;
    const UDP: u8 = 17;
    if frame.get(12..14)? != IPV4 || ![TCP, UDP].contains(frame.get(23)?) {
        return None;
    }
    let from: [u8; 4] = frame.get(26..30)?.try_into().ok()?;
    let transport = 14 + usize::from(frame[14] & 0x0f) * 4;
    let ports = frame.get(transport..transport + 4)?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    Some((Ipv4Addr::from(from), [port(2), port(0)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_shows_its_sender_and_both_ports() {
        let mut frame = vec![0; 42];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23]) = (0x45, 17);
        frame[26..30].copy_from_slice(&[10, 200, 1, 1]);
        frame[34..38].copy_from_slice(&[0x80, 0x00, 0x13, 0x89]);
        assert_eq!(ends(&frame), Some((Ipv4Addr::new(10, 200, 1, 1), [5_001, 32_768])));
        frame[23] = 1;
        assert_eq!(ends(&frame), None, "ICMP has no ports");
        assert_eq!(ends(&frame[..20]), None, "too short to say");
    }
}
