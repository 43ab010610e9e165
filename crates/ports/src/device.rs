//! An open device's properties, which go with its descriptor to another process.
//!
//! Why: the process that carries packets cannot ask the kernel for them: it has no privileges.
//! Not here: handing the descriptor over (`handover`).
//! Invariant: a port made from these properties behaves like one opened in place.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::contract::Capabilities;

/// A namespace that a device's file holds open, though its name may stand for another one by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holds {
    /// The namespace's file.
    pub(crate) path: PathBuf,
    /// Its number when the device was opened.
    pub(crate) number: u64,
}

impl Holds {
    /// Whether the file stands for another namespace by now. One that is no longer there may come back.
    pub(crate) fn is_replaced(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() != self.number)
    }
}

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
    /// The namespace that its file holds open; TAPs only.
    pub(crate) holds: Option<Holds>,
    /// What it lacks of its configuration, and why; TAPs only.
    pub(crate) lacks: Option<String>,
}
