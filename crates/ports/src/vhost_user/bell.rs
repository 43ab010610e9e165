//! The bell that wakes a guest.
//!
//! Why: the front end gives a descriptor to write to, and could give one whose writes never return.
//! From: eventfd(2).
//! Not here: when the guest is to be woken (`ring`).
//! Invariant: only an eventfd is rung.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// A guest's bell.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

impl Bell {
    pub(super) fn new(descriptor: OwnedFd) -> Result<Self, String> {
        let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        if link.is_ok_and(|link| !link.as_os_str().as_encoded_bytes().starts_with(b"anon_inode:[eventfd]")) {
            return Err("a bell that is no eventfd".to_owned());
        }
        fcntl(&descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|error| error.to_string())?;
        Ok(Self(descriptor))
    }

    /// Rings. A counter that is full has been rung often enough.
    pub(super) fn ring(&self) {
        let _ = nix::unistd::write(&self.0, &1_u64.to_ne_bytes());
    }
}
