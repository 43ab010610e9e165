//! Batches of frames: many in one system call, in each direction.
//!
//! Why: a system call costs more than copying a frame.
//! From: recvmmsg(2), sendmmsg(2).
//! Not here: the meaning of errors.
//! Invariant: the kernel gets pointers only into the batch's own memory, and into a long frame that is sent by itself, and only for the
//! length of a call.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, SystemTime};

use plimsoll_units::Span;
use plimsoll_wire::VnetHeader;

use crate::contract::{FRAME_ROOM, Received, vnet_bytes};
use crate::socket::{check, zeroed};

/// Most frames of one call: the cost of the call is small for each of 32, and their buffers stay under 2.2 MiB.
const BATCH: usize = 32;

/// Size of a receive buffer: a header and the longest frame.
const STRIDE: usize = VnetHeader::LEN + FRAME_ROOM;

/// Room for two control messages, aligned: a `tpacket_auxdata` (16 bytes of header, 20 of data) and a time (16 and 16).
type Control = [u64; 10];

/// A longer wait in the kernel's queue is not believed: the wall clock was set meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Size of the buffer for frames to be sent: four of the longest.
const ARENA: usize = 4 * STRIDE;

/// Received frames that have not been handed on yet.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Box<[u8]>,
    control: Box<[Control; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    next: usize,
    filled: usize,
    /// Wall clock time when the batch was read; the kernel's times of arrival are wall clock times too.
    read_at: SystemTime,
}

// SAFETY: the pointers in `headers` are set anew for each call and not used between calls.
unsafe impl Send for Inbox {}

/// One received frame, still in the inbox.
pub(super) struct Message<'a> {
    bytes: &'a [u8],
    cut: bool,
    tag: Option<[u8; 4]>,
    waited: Option<Span>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * STRIDE].into_boxed_slice(),
            control: Box::new([[0; 10]; BATCH]),
            headers: Box::new([zeroed(); BATCH]),
            next: 0,
            filled: 0,
            read_at: SystemTime::UNIX_EPOCH,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.filled
    }

    /// Reads the waiting frames, up to a batch.
    pub(super) fn fill(&mut self, socket: &OwnedFd) -> io::Result<()> {
        (self.next, self.filled) = (0, 0);
        let mut pieces: [libc::iovec; BATCH] = [zeroed(); BATCH];
        let buffers = self.bytes.chunks_exact_mut(STRIDE).zip(self.control.iter_mut());
        for ((header, piece), (buffer, control)) in self.headers.iter_mut().zip(&mut pieces).zip(buffers) {
            *piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: STRIDE };
            *header = zeroed();
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of::<Control>() as _;
        }
        let headers = self.headers.as_mut_ptr();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `headers` has BATCH entries; each points to an `iovec` on this stack, to a buffer
        // of STRIDE bytes and to a control buffer of its stated size, all of them live and owned by this value.
        let filled = check(unsafe {
            libc::recvmmsg(socket.as_raw_fd(), headers, BATCH as _, flags as _, std::ptr::null_mut())
        })?;
        self.filled = usize::try_from(filled).unwrap_or(0).min(BATCH);
        #[expect(
            clippy::disallowed_methods,
            reason = "the kernel's timestamps are wall clock times; a step of the clock is detected"
        )]
        let now = SystemTime::now();
        self.read_at = now;
        Ok(())
    }

    pub(super) fn next(&mut self) -> Option<Message<'_>> {
        if self.is_empty() {
            return None;
        }
        let at = self.next;
        self.next += 1;
        let header = &self.headers[at];
        let len = (header.msg_len as usize).min(STRIDE);
        let control_len = header.msg_hdr.msg_controllen.min(size_of::<Control>());
        let ancillary = Ancillary::read(&self.control[at], control_len);
        Some(Message {
            bytes: &self.bytes[at * STRIDE..][..len],
            cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            tag: ancillary.tag,
            waited: ancillary.arrived.and_then(|arrived| waited(arrived, self.read_at)),
        })
    }
}

impl<'a> Message<'a> {
    /// Copies the frame out with its VLAN tag put back; `None` when it does not fit.
    pub(super) fn copy_to(&self, buffer: &mut [u8], with_vnet: bool) -> Option<Received> {
        let (frame, received) = self.bare(buffer.len(), with_vnet)?;
        // The tag belongs behind the two MAC addresses; in a shorter frame it is put at the end.
        let tag = self.tag.as_ref().map_or(&[][..], |tag| tag);
        let (macs, rest) = frame.split_at(frame.len().min(12));
        let (to_macs, to_rest) = buffer[..received.len].split_at_mut(macs.len());
        to_macs.copy_from_slice(macs);
        to_rest[..tag.len()].copy_from_slice(tag);
        to_rest[tag.len()..].copy_from_slice(rest);
        Some(received)
    }

    /// The frame: as it lies here, or a copy with its VLAN tag put back. `None` when it does not fit into the buffer.
    pub(super) fn whole<'b>(&self, buffer: &'b mut [u8], with_vnet: bool) -> Option<(&'b [u8], Received)>
    where
        'a: 'b,
    {
        if self.tag.is_none() {
            return self.bare(buffer.len(), with_vnet);
        }
        let received = self.copy_to(buffer, with_vnet)?;
        Some((&buffer[..received.len], received))
    }

    /// The frame without its VLAN tag, and what is received of it with the tag. `None` when that is longer than `room`.
    fn bare(&self, room: usize, with_vnet: bool) -> Option<(&'a [u8], Received)> {
        let (header, frame) =
            if with_vnet { self.bytes.split_at_checked(VnetHeader::LEN)? } else { (&[][..], self.bytes) };
        let tagged = self.tag.map_or(0, |tag| tag.len());
        let len = frame.len() + tagged;
        if self.cut || len > room {
            return None;
        }
        let vnet = header.try_into().ok().map(|header| shifted(VnetHeader::from_bytes(header), tagged));
        Some((frame, Received { len, vnet, at: None, waited: self.waited }))
    }
}

/// Adjusts the header of a frame that has grown by a tag before its network header.
fn shifted(mut vnet: VnetHeader, by: usize) -> VnetHeader {
    let by = u16::try_from(by).unwrap_or(0);
    if vnet.flags & VnetHeader::NEEDS_CSUM != 0 {
        vnet.csum_start = vnet.csum_start.saturating_add(by);
    }
    if vnet.hdr_len != 0 {
        vnet.hdr_len = vnet.hdr_len.saturating_add(by);
    }
    vnet
}

/// Ancillary data of a frame: the control messages that the kernel passes with it.
#[derive(Default)]
struct Ancillary {
    /// The VLAN tag that the kernel removed from the frame.
    tag: Option<[u8; 4]>,
    /// Time of arrival in the kernel, by the wall clock.
    arrived: Option<SystemTime>,
}

impl Ancillary {
    /// Reads the control messages, `len` bytes in all.
    fn read(control: &Control, len: usize) -> Self {
        let mut found = Self::default();
        let (head, base) = (size_of::<libc::cmsghdr>(), control.as_ptr().cast::<u8>());
        let mut at = 0;
        while at + head <= len {
            // SAFETY: `at` is a multiple of eight, as the buffer's start is, and a header fits between it and `len`,
            // which is no more than the buffer's size.
            let header = unsafe { &*base.add(at).cast::<libc::cmsghdr>() };
            let size = header.cmsg_len;
            if size < head || at + size > len {
                break;
            }
            match (header.cmsg_level, header.cmsg_type) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA)
                    if size >= head + size_of::<libc::tpacket_auxdata>() =>
                {
                    // SAFETY: the structure lies behind the header, within `size`, and needs no more than the header's alignment.
                    found.tag = vlan_tag(unsafe { &*base.add(at + head).cast::<libc::tpacket_auxdata>() });
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if size >= head + size_of::<libc::timespec>() => {
                    // SAFETY: as for the auxiliary data above.
                    found.arrived = moment(unsafe { &*base.add(at + head).cast::<libc::timespec>() });
                }
                _ => {}
            }
            at += size.next_multiple_of(8);
        }
        found
    }
}

fn vlan_tag(aux: &libc::tpacket_auxdata) -> Option<[u8; 4]> {
    if aux.tp_status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    let protocol =
        if aux.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 { aux.tp_vlan_tpid } else { 0x8100 };
    let [a, b] = protocol.to_be_bytes();
    let [c, d] = aux.tp_vlan_tci.to_be_bytes();
    Some([a, b, c, d])
}

fn moment(time: &libc::timespec) -> Option<SystemTime> {
    let since = Duration::new(u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Time that a frame spent in the kernel; `None` when the wall clock was set back or far ahead meanwhile.
fn waited(arrived: SystemTime, read: SystemTime) -> Option<Span> {
    let waited = read.duration_since(arrived).ok()?;
    (waited < LONGEST_WAIT).then(|| Span::ns(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX)))
}

/// Frames that wait to be sent together.
#[derive(Debug)]
pub(super) struct Outbox {
    bytes: Box<[u8]>,
    used: usize,
    /// Begin and end of each message, and the length of its frame.
    messages: Box<[(usize, usize, usize); BATCH]>,
    first: usize,
    last: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        let bytes = vec![0; ARENA].into_boxed_slice();
        Self { bytes, used: 0, messages: Box::new([(0, 0, 0); BATCH]), first: 0, last: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == self.last
    }

    pub(super) fn len(&self) -> usize {
        self.last - self.first
    }

    pub(super) fn has_room(&self, len: usize) -> bool {
        self.last < BATCH && self.used + VnetHeader::LEN + len <= ARENA
    }

    /// Adds a frame; `vnet` is `Some` when the socket expects a header before each frame.
    pub(super) fn push(
        &mut self,
        len: usize,
        vnet: Option<Option<&VnetHeader>>,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let begin = self.used;
        if let Some(vnet) = vnet {
            self.append(&vnet_bytes(vnet));
        }
        if !fill(&mut self.bytes[self.used..][..len]) {
            self.used = begin;
            return false;
        }
        self.used += len;
        self.messages[self.last] = (begin, self.used, len);
        self.last += 1;
        true
    }

    /// Sends the waiting frames in one call and returns the indices of those that left.
    pub(super) fn send(&mut self, socket: &OwnedFd) -> io::Result<Range<usize>> {
        let mut pieces: [libc::iovec; BATCH] = [zeroed(); BATCH];
        let mut headers: [libc::mmsghdr; BATCH] = [zeroed(); BATCH];
        let waiting = &self.messages[self.first..self.last];
        for ((header, piece), &(begin, end, _)) in headers.iter_mut().zip(&mut pieces).zip(waiting) {
            let bytes = &mut self.bytes[begin..end];
            *piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
        }
        let (count, flags) = (waiting.len() as libc::c_uint, libc::MSG_DONTWAIT);
        // SAFETY: the first `count` headers each point to an `iovec` on this stack, and that to
        // bytes of this value; all of them outlive the call.
        let sent =
            check(unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count, flags as _) })?;
        let begin = self.first;
        self.first = (begin + usize::try_from(sent).unwrap_or(0)).min(self.last);
        let end = self.first;
        self.tidy();
        Ok(begin..end)
    }

    /// Length of the frame at index `place`; valid until the next push.
    pub(super) fn len_of(&self, place: usize) -> usize {
        self.messages[place].2
    }

    pub(super) fn drop_first(&mut self) {
        self.first += 1;
        self.tidy();
    }

    /// The waiting messages: each is a header, where the socket expects one, and a frame.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &[u8]> {
        self.messages[self.first..self.last].iter().map(|&(begin, end, _)| &self.bytes[begin..end])
    }

    /// Drops the waiting frames and returns their number.
    pub(super) fn clear(&mut self) -> usize {
        let lost = self.last - self.first;
        self.first = self.last;
        self.tidy();
        lost
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes[self.used..][..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }

    fn tidy(&mut self) {
        if self.is_empty() {
            (self.first, self.last, self.used) = (0, 0, 0);
        }
    }
}

/// Sends one frame from where it lies, behind a header.
pub(super) fn send_one(socket: &OwnedFd, header: &[u8], frame: &[u8]) -> io::Result<()> {
    let piece =
        |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut pieces = [piece(header), piece(frame)];
    let mut message: libc::msghdr = zeroed();
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = 2;
    // SAFETY: the message points to two pieces on this stack, and these to bytes that are borrowed; the kernel only reads them, and not
    // after the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_behind_the_addresses() {
        let frame: Vec<u8> = (0..20).collect();
        let message = Message { bytes: &frame, cut: false, tag: Some([0x81, 0, 0, 42]), waited: None };
        let mut buffer = [0; 64];
        let got = message.copy_to(&mut buffer, false).unwrap();
        assert_eq!(got.len, 24);
        assert_eq!(buffer[..12], frame[..12]);
        assert_eq!(buffer[12..16], [0x81, 0, 0, 42]);
        assert_eq!(buffer[16..24], frame[12..]);
    }

    #[test]
    fn a_tag_moves_what_the_header_points_at() {
        let before = VnetHeader { flags: 1, csum_start: 34, hdr_len: 54, ..VnetHeader::default() };
        let after = shifted(before, 4);
        assert_eq!((after.csum_start, after.hdr_len), (38, 58));
        assert_eq!(shifted(VnetHeader::default(), 4), VnetHeader::default());
    }

    #[test]
    fn what_the_kernel_says_beside_a_frame_is_found_in_any_order() {
        let time = |bytes: &mut Vec<u64>| {
            let (level, kind) = (libc::SOL_SOCKET as u64, libc::SCM_TIMESTAMPNS as u64);
            bytes.extend([32, level | kind << 32, 1_000, 500]);
        };
        let tag = |bytes: &mut Vec<u64>| {
            let (level, kind) = (libc::SOL_PACKET as u64, libc::PACKET_AUXDATA as u64);
            let status = u64::from(libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID);
            bytes.extend([36, level | kind << 32, status, 0, 42 | 0x8100 << 16]);
        };
        for order in [[true, false], [false, true]] {
            let mut bytes = Vec::new();
            order.into_iter().for_each(|first| if first { time(&mut bytes) } else { tag(&mut bytes) });
            let len = bytes.len() * 8;
            bytes.resize(10, 0);
            let control: Control = bytes.try_into().expect("ten words");
            let found = Ancillary::read(&control, len);
            assert_eq!(found.tag, Some([0x81, 0, 0, 42]));
            let arrived = SystemTime::UNIX_EPOCH + Duration::new(1_000, 500);
            assert_eq!(found.arrived, Some(arrived));
            assert_eq!(waited(arrived, arrived + Duration::from_micros(7)), Some(Span::micros(7)));
            assert_eq!(waited(arrived, arrived - Duration::from_micros(7)), None, "the clock was set back");
            assert_eq!(waited(arrived, arrived + Duration::from_secs(90)), None, "or far ahead");
        }
        assert!(
            Ancillary::read(&[u64::MAX; 10], 80).tag.is_none(),
            "a length beyond the buffer ends the search"
        );
        assert!(Ancillary::read(&[0; 10], 80).arrived.is_none());
    }

    #[test]
    fn a_frame_that_does_not_fit_is_told() {
        let message = Message { bytes: &[0; 60], cut: false, tag: Some([0; 4]), waited: None };
        assert!(message.copy_to(&mut [0; 63], false).is_none());
        assert!(message.copy_to(&mut [0; 64], false).is_some());
        let cut = Message { cut: true, ..message };
        assert!(cut.copy_to(&mut [0; 64], false).is_none());
    }

    #[test]
    fn the_outbox_is_bounded_and_starts_again_when_empty() {
        let mut outbox = Outbox::new();
        for _ in 0..BATCH {
            assert!(outbox.has_room(60));
            outbox.push(60, Some(None), |_| true);
        }
        assert!(!outbox.has_room(60));
        outbox.drop_first();
        assert!(!outbox.has_room(60), "places are reused when all have left");
        assert_eq!(outbox.clear(), BATCH - 1);
        assert!(outbox.has_room(FRAME_ROOM));
    }
}
