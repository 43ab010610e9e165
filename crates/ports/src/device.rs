//! An open device's properties, which go with its descriptor to another process.
//!
//! Why: the process that carries packets cannot ask the kernel for them: it has no privileges.
//! Not here: handing the descriptor over (`handover`).
//! Invariant: a port made from these properties behaves like one opened in place.

use serde::{Deserialize, Serialize};

use crate::contract::Capabilities;

/// The properties of an open device that go with its descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub(crate) name: String,
    /// Its name in the service manager's store; TAPs only.
    pub(crate) key: String,
    pub(crate) mac: [u8; 6],
    pub(crate) capabilities: Capabilities,
    /// Whether it carries virtio-net headers; packet sockets only.
    pub(crate) vnet: bool,
}
