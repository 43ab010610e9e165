//! Sends frames whose payload still lies with its sender: the kernel copies it from there.
//!
//! Why: a payload that waits where it is is copied once, and into a TAP the kernel has to copy it anyway.
//! From: writev(2); SENIC §4.1 (late pull).
//! Not here: which frames wait in this way (the daemon).
//! Invariant: memory that has disappeared makes the call fail, and no frame leaves.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use plimsoll_wire::VnetHeader;

use super::Tap;
use crate::contract::{LONGEST_FRAME, Trouble, vnet_bytes};
use crate::counters::{DropReason, Sending};
use crate::frame::Frame;
use crate::mapped::SenderBytes;

impl Tap {
    /// Like [`Tap::send`], for a frame that consists of a header and a payload, of which a part may lie with its sender: the kernel copies
    /// that from there.
    ///
    /// # Errors
    /// As for [`Tap::send`].
    pub fn send_gathered(
        &mut self,
        header: &[u8],
        payload: &Frame<'_>,
        vnet: Option<&VnetHeader>,
    ) -> Result<Sending, Trouble> {
        let len = header.len() + payload.len();
        if let Some(reason) = self.capabilities.unfit(len, LONGEST_FRAME, vnet) {
            return Ok(self.counters.refuse(reason));
        }
        let first = vnet_bytes(vnet);
        match write_gathered(&self.file, [&first, header, payload.front().bytes()], payload.rest()) {
            Ok(written) if written >= len => Ok(self.counters.sent(len)),
            Ok(_) => Ok(self.counters.refuse(DropReason::Kernel)),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                self.send_copied(header, payload, vnet)
            }
            Err(error) => self.send_failed(&error, vnet),
        }
    }

    /// Copies a frame before it is sent, as the kernel could not read it where it lies. If the sender's memory has disappeared, this finds
    /// out, and nothing is sent.
    #[cold]
    fn send_copied(
        &mut self,
        header: &[u8],
        payload: &Frame<'_>,
        vnet: Option<&VnetHeader>,
    ) -> Result<Sending, Trouble> {
        let mut whole = vec![0; header.len() + payload.len()];
        let (front, behind) = whole.split_at_mut(header.len());
        front.copy_from_slice(header);
        if payload.copy(behind) { self.send(&whole, vnet) } else { Ok(Sending::Sent) }
    }
}

/// Writes three pieces, and then bytes that lie with their sender, with one system call.
fn write_gathered(file: &File, pieces: [&[u8]; 3], rest: Option<&SenderBytes<'_>>) -> io::Result<usize> {
    let mut vectors = [const { libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 } }; MOST_PIECES];
    let mut count = 0;
    for piece in pieces {
        vectors[count] = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        count += 1;
    }
    let mut fits = true;
    if let Some(rest) = rest {
        rest.each(|memory, part| match vectors.get_mut(count) {
            Some(vector) => (*vector, count) = (memory.vector(part), count + 1),
            None => fits = false,
        });
    }
    if !fits {
        return Err(io::Error::from_raw_os_error(libc::EFAULT)); // to be copied
    }
    // SAFETY: the kernel only reads from these places, of which there are `count`. The first three are borrowed, and the others lie in
    // mappings that live as long as `rest` does; if a page has disappeared there, the call fails with EFAULT.
    let written = unsafe { libc::writev(file.as_raw_fd(), vectors.as_ptr(), count as libc::c_int) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Most pieces of one write: three, and those of the longest frame of a guest or a client.
const MOST_PIECES: usize = 48;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::unistd::ftruncate;

    use super::*;
    use crate::mapped::Memory;

    #[test]
    fn bytes_come_from_where_they_lie_and_the_call_fails_where_they_have_disappeared() {
        let file = memfd_create("sender", MFdFlags::MFD_CLOEXEC).expect("a memfd");
        ftruncate(&file, 0x4000).expect("long enough");
        let memory = Memory::of_file(&file, 0x4000).expect("mapped");
        let parts = [(0x100, 40), (0x2000, 60)].map(|(at, len)| {
            let (place, found) = memory.guest(at, len).expect("mapped");
            memory.write(place, &vec![at as u8 | 1; len]);
            (place, found)
        });
        let rest = SenderBytes::new(&memory, &parts);
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let writer = File::from(OwnedFd::from(writer));
        let pieces = [&[1; 10][..], &[2; 14], &[3; 128]];
        assert_eq!(write_gathered(&writer, pieces, Some(&rest)).expect("written"), 252);
        let mut read = [0; 252];
        reader.read_exact(&mut read).expect("there");
        assert_eq!(read.to_vec(), [&pieces.concat()[..], &[1; 100]].concat());

        // Only the second of the bytes' pages is looked at.
        let rest = rest.part(40..100);
        ftruncate(&file, 0x1000).expect("cut off");
        let failed = write_gathered(&writer, [&[], &[], &[]], Some(&rest)).expect_err("no bytes");
        assert_eq!(failed.raw_os_error(), Some(libc::EFAULT));
        let frame = Frame::late(&[3; 128], rest);
        assert!(!frame.copy(&mut [0; 188]), "found out by a copy");
    }
}
