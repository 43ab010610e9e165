//! Errors of a vNIC's client, in words for its operator.
//!
//! Why: a program that cannot send says why, and what to do about it.
//! From: the kernel's errors, and the daemon's answers on the socket.
//! Not here: a send that finds no room, which is no error (`sender::Busy`).
//! Invariant: an error names the socket where that helps.

use std::io;
use std::path::PathBuf;

use crate::layout::LayoutError;
use crate::message::OpenRefusal;

/// Why a vNIC cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum VnicError {
    /// No daemon listens, or this process may not connect.
    #[error("cannot connect to the vNIC at {}: {source}; is `plimsoll run` there, with `port: {{vnic: {}}}`, and may this user write to the socket?", path.display(), path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another client has the vNIC.
    #[error("the vNIC at {} has a client already; stop that one, or give this one a tenant of its own", path.display())]
    Occupied {
        /// The socket.
        path: PathBuf,
    },
    /// The region is not as this client expects.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No flow queue.
    #[error(transparent)]
    NotOpened(#[from] OpenRefusal),
    /// The daemon sent something that is no answer.
    #[error("the daemon's answer makes no sense; is {} really a vNIC's socket?", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon has gone, or has closed the vNIC.
    #[error("the daemon has closed the vNIC; connect again")]
    Closed,
    /// Anything else that the kernel said.
    #[error("vNIC: {0}")]
    Io(#[from] io::Error),
}
