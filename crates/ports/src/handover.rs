//! Ports on their way from the process that may open them to the one that carries packets.
//!
//! Why: the process that reads what tenants send shall own no privilege, and yet get new ports while it runs.
//! From: `SCM_RIGHTS` of unix(7); `docs/decisions/0013-privileges.md`.
//! Not here: the way between the two, and what may be opened (`daemon::broker`).
//! Invariant: a port that was handed over is the same as one opened in place: nobody who uses it can tell.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::af_packet::{PacketConfig, PacketSocket};
use crate::error::PortError;
use crate::pcap::{PcapConfig, PcapPort};
use crate::port::{Capabilities, Port};
use crate::shared_memory::{VnicConfig, VnicPort};
use crate::tap::{Tap, TapConfig};
use crate::vhost_user::{VhostUser, VhostUserConfig};

/// What is known of an open device beside its descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub(crate) name: String,
    /// How the service manager calls it; TAPs only.
    pub(crate) key: String,
    pub(crate) mac: [u8; 6],
    pub(crate) capabilities: Capabilities,
    /// It carries virtio-net headers; packet sockets only.
    pub(crate) vnet: bool,
}

/// What of a port goes beside its descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parts {
    /// A TAP, with one descriptor.
    Tap(Device),
    /// A packet socket, with one descriptor.
    Packet(Device),
    /// Capture files: the one that is read, if any, then the one that is written.
    Pcap,
    /// A listening socket that is this inode, and for a virtual machine the record of what is out.
    Listening(u64),
}

/// The descriptors of a port, and what else its next owner needs.
#[derive(Debug)]
pub struct Handover {
    /// What goes beside them.
    pub parts: Parts,
    /// They, in the order that the parts state.
    pub files: Vec<OwnedFd>,
}

impl Handover {
    /// Makes a TAP.
    ///
    /// # Errors
    /// As [`Tap::open`].
    pub fn tap(config: &TapConfig) -> Result<Self, PortError> {
        let (device, file) = Tap::open(config)?.into_parts();
        Ok(Self { parts: Parts::Tap(device), files: vec![file] })
    }

    /// Opens a packet socket.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn packet(config: &PacketConfig) -> Result<Self, PortError> {
        let (device, socket) = PacketSocket::open(config)?.into_parts();
        Ok(Self { parts: Parts::Packet(device), files: vec![socket] })
    }

    /// Opens capture files; neither is looked into.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn pcap(config: &PcapConfig) -> Result<Self, PortError> {
        let (read, write) = PcapPort::open_files(config)?;
        Ok(Self { parts: Parts::Pcap, files: read.into_iter().chain(write).map(OwnedFd::from).collect() })
    }

    /// Listens for a vNIC's client.
    ///
    /// # Errors
    /// When the socket's place is taken.
    pub fn vnic(config: &VnicConfig) -> Result<Self, PortError> {
        let (listener, inode) = VnicPort::listen(config)?;
        Ok(Self { parts: Parts::Listening(inode), files: vec![listener] })
    }

    /// Listens for a virtual machine's front end, and opens the record of what is out.
    ///
    /// # Errors
    /// When the socket's place is taken.
    pub fn vhost_user(config: &VhostUserConfig) -> Result<Self, PortError> {
        let (listener, inode, record) = VhostUser::listen(config)?;
        Ok(Self { parts: Parts::Listening(inode), files: vec![listener, record.into()] })
    }

    /// The inode of a listening socket.
    #[must_use]
    pub fn listens(&self) -> Option<u64> {
        match self.parts {
            Parts::Listening(inode) => Some(inode),
            _ => None,
        }
    }
}

/// How a port is made from what was handed over.
#[derive(Debug)]
pub enum TakeOver<'a> {
    /// From a TAP's descriptor.
    Tap,
    /// From a packet socket.
    Packet,
    /// From capture files.
    Pcap(&'a PcapConfig),
    /// From a listening socket, which `Release` removes when the port is dropped.
    Vnic(&'a VnicConfig, Release),
    /// From a listening socket and a record.
    VhostUser(&'a VhostUserConfig, Release),
}

/// Frees a socket's place in the file system; whoever opened it does that.
pub struct Release(Box<dyn FnOnce() + Send + Sync>);

impl Release {
    /// By this means.
    pub fn by(free: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Box::new(free))
    }

    pub(crate) fn free(self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Release")
    }
}

impl TakeOver<'_> {
    /// Makes the port.
    ///
    /// # Errors
    /// When what came is not what it takes, or the port's own memory or bells cannot be made.
    pub fn port(self, handed: Handover) -> Result<Port, PortError> {
        let Handover { parts, files } = handed;
        let mut files = files.into_iter();
        let mut file = || files.next().ok_or_else(missing);
        match (self, parts) {
            (Self::Tap, Parts::Tap(device)) => Ok(Port::Tap(Tap::from_parts(device, file()?))),
            (Self::Packet, Parts::Packet(device)) => {
                Ok(Port::AfPacket(PacketSocket::from_parts(device, file()?)))
            }
            (Self::Pcap(config), Parts::Pcap) => {
                let read = config.read.as_ref().map(|_| file()).transpose()?.map(File::from);
                let write = config.write.as_ref().map(|_| file()).transpose()?.map(File::from);
                PcapPort::over(config, read, write).map(Port::Pcap)
            }
            (Self::Vnic(config, release), Parts::Listening(inode)) => {
                VnicPort::over(config, file()?, inode, Some(release)).map(Port::Vnic)
            }
            (Self::VhostUser(config, release), Parts::Listening(inode)) => {
                VhostUser::over(config, file()?, inode, file()?.into(), Some(release)).map(Port::VhostUser)
            }
            _ => Err(missing()),
        }
    }
}

fn missing() -> PortError {
    PortError::Config {
        what: "taking over a port".to_owned(),
        problem: "what came is another port's; please report it".to_owned(),
    }
}

/// Frees the place of a listening socket that [`Handover::vnic`] or [`Handover::vhost_user`] made, and its record, unless
/// another one has the place by now.
pub fn free_place(path: &Path, inode: u64) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == inode) {
        // Before the socket: the place is another's then.
        let _ = fs::remove_file(crate::vhost_user::record_of(path));
        let _ = fs::remove_file(path);
    }
}
