//! Requests of the engine's process to the broker, and the broker's replies.
//!
//! Why: a request names a port; where that port is, the broker takes from the policy that it has read itself.
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
use crate::dataplane::Whose;

/// The first message, sent while the engine's process still has all its privileges.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The policy file.
    pub(crate) file: String,
    /// The text of the policy file and of the files that it names: the policy with the number 0.
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
    /// The answer of the process that read it; none for the operator's own file.
    pub(crate) answer: Option<String>,
}

/// A request to the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Read the policy file again.
    Read,
    /// Forget all policies but this one, which is in force.
    InForce(Number),
    /// Open the owner's port of this policy.
    Open(Number, Whose),
    /// Set on the interface of this tenant's TAP what this policy states.
    Configure(Number, String),
    /// Make an AF_XDP socket for a port, in this mode.
    Attach(Number, Whose, XdpMode),
    /// Make a socket for this queue of the uplink's interface, whose first queue is registered: one of those that the policy with this
    /// number has threads for.
    Join(Number, u32),
    /// Register the socket that was made last, which is bound now: arriving frames go to it.
    Register,
    /// Remove the file of a listening socket that was opened.
    Release(u64),
    /// Count each tenant's frames that the kernel has dropped.
    Dropped,
    /// Open the file with this number of those that tell the CPU time of what this policy watches; the one that bounds it
    /// where there is no number.
    Load(Number, Option<u32>),
    /// Read the keys of this policy's fleet.
    Keys(Number),
    /// Open the module of this tenant's program.
    Module(Number, String),
    /// Remove a file that this daemon has made.
    Clear(Clear),
}

/// A file that a daemon makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Clear {
    /// The API's socket.
    Socket,
    /// The lock beside it.
    Lock,
}

/// A reply of the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// It is done.
    Done,
    /// It cannot be done, and why.
    Failed(String),
    /// The kernel refused it, with this error number.
    Kernel(i32),
    /// The policy file as it is now.
    Policy(Number, Vec<Source>),
    /// The fleet's keys, the one that seals first; none where nothing is sealed.
    Keys(Vec<[u8; 32]>),
    /// A port, whose descriptors come with the message; the number releases a listening socket's file.
    Port(Parts, u64),
    /// The port is AF_XDP, on this interface.
    Interface(LinkInfo),
    /// Frames that the kernel dropped, by tenant.
    Dropped(BTreeMap<String, u64>),
}
