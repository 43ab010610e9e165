//! What the engine's process asks of the broker, and what it hears.
//!
//! Why: a request names things; what stands behind a name, the broker takes from the policy that it has read itself.
//! From: `docs/decisions/0013-privileges.md`.
//! Not here: how it is sent (`socket`).
//! Invariant: no request holds a path, an interface, a namespace or an address, but for [`Start`], which is sent before
//! the first byte of a tenant is read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_ports::XdpMode;
use plimsoll_ports::handover::Parts;
use plimsoll_ports::netns::LinkInfo;
use serde::{Deserialize, Serialize};

use super::Number;

/// The first message, from a process that has all its privileges still.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The policy file.
    pub(crate) file: String,
    /// What it and those that it names hold: the policy with the number 0.
    pub(crate) sources: Vec<Source>,
    /// The API's socket, and the lock beside it.
    pub(crate) socket: PathBuf,
    /// The lock that holds the socket's place.
    pub(crate) lock: PathBuf,
}

/// A file of a policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
    /// What the process answered that read it; none for the operator's own file.
    pub(crate) answer: Option<String>,
}

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Read the policy file again.
    Read,
    /// This policy is in force: forget all others.
    InForce(Number),
    /// Open a port of this policy: a tenant's, or the uplink's.
    Open(Number, Option<String>),
    /// Make an AF_XDP socket for that port, which receives in this way.
    Attach(Number, Option<String>, XdpMode),
    /// Send what arrives to the socket that was made last: it is bound.
    Register,
    /// Free the place of a listening socket that was opened.
    Release(u64),
    /// Say what the kernel has dropped of each tenant's frames.
    Dropped,
    /// Remove what stands for this daemon in the file system.
    Clear(Clear),
}

/// Part of what stands for a daemon in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Clear {
    /// The API's socket.
    Socket,
    /// The lock beside it.
    Lock,
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is done.
    Done,
    /// It cannot be done, and why.
    Failed(String),
    /// What the kernel said, as a number.
    Kernel(i32),
    /// The policy file as it is now.
    Policy(Number, Vec<Source>),
    /// The port's descriptors come along; a listening socket's place is released by the number.
    Port(Parts, u64),
    /// It takes AF_XDP: the interface.
    Interface(LinkInfo),
    /// By tenant.
    Dropped(BTreeMap<String, u64>),
}
