//! Handing an open port from the privileged process to the one that carries packets.
//!
//! Why: the process that reads tenants' packets must have no privileges, and yet get new ports while it runs.
//! From: `SCM_RIGHTS` of unix(7); `docs/decisions/0013-privileges.md`.
//! Not here: the messages between the two processes, and what may be opened (`daemon::broker`).
//! Invariant: a port that was handed over behaves like one opened in place.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::af_packet::{PacketConfig, PacketSocket};
pub use crate::device::Device;
use crate::error::PortError;
use crate::pcap::{PcapConfig, PcapPort};
use crate::port::Port;
pub use crate::release::Release;
use crate::shared_memory::{VnicConfig, VnicPort};
use crate::tap::{Tap, TapConfig};
use crate::vhost_user::{VhostUser, VhostUserConfig};

/// The kind of a port, and its properties that go with its descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parts {
    /// A TAP, with one descriptor.
    Tap(Device),
    /// A packet socket, with two descriptors: its own, and one on which the kernel tells of links.
    Packet(Device),
    /// Capture files: the one to read, if any, then the one to write, if any.
    Pcap,
    /// A listening socket with this inode.
    Listening(u64),
}

/// An open port to be handed to another process: its descriptors and properties.
#[derive(Debug)]
pub struct Handover {
    /// The kind and the properties of the port.
    pub parts: Parts,
    /// The descriptors, in the order that [`Parts`] states.
    pub files: Vec<OwnedFd>,
}

impl Handover {
    /// Makes a TAP.
    ///
    /// # Errors
    /// As for [`Tap::open`].
    pub fn tap(config: &TapConfig) -> Result<Self, PortError> {
        let (device, file) = Tap::open(config)?.into_parts();
        Ok(Self { parts: Parts::Tap(device), files: vec![file] })
    }

    /// Opens a packet socket.
    ///
    /// # Errors
    /// As for [`PacketSocket::open`].
    pub fn packet(config: &PacketConfig) -> Result<Self, PortError> {
        let (device, socket, links) = PacketSocket::open_parts(config)?;
        Ok(Self { parts: Parts::Packet(device), files: vec![socket, links] })
    }

    /// Opens capture files, without reading them.
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
    /// When the socket's path is in use.
    pub fn vnic(config: &VnicConfig) -> Result<Self, PortError> {
        let (listener, inode) = VnicPort::listen(config)?;
        Ok(Self { parts: Parts::Listening(inode), files: vec![listener] })
    }

    /// Listens for a virtual machine's front end.
    ///
    /// # Errors
    /// When the socket's path is in use.
    pub fn vhost_user(config: &VhostUserConfig) -> Result<Self, PortError> {
        let (listener, inode) = VhostUser::listen(config)?;
        Ok(Self { parts: Parts::Listening(inode), files: vec![listener] })
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

/// The kind of port that the receiving process expects, with the port's configuration.
#[derive(Debug)]
pub enum TakeOver<'a> {
    /// A TAP.
    Tap,
    /// A packet socket.
    Packet,
    /// Capture files.
    Pcap(&'a PcapConfig),
    /// A vNIC's listening socket, whose path `Release` removes when the port is dropped.
    Vnic(&'a VnicConfig, Release),
    /// A vhost-user listening socket, whose path `Release` removes when the port is dropped.
    VhostUser(&'a VhostUserConfig, Release),
}

impl TakeOver<'_> {
    /// Makes the port.
    ///
    /// # Errors
    /// When another kind of port was handed over, or the port's own memory or event descriptors cannot be made.
    pub fn port(self, handed: Handover) -> Result<Port, PortError> {
        let Handover { parts, files } = handed;
        let mut files = files.into_iter();
        let mut file = || files.next().ok_or_else(missing);
        match (self, parts) {
            (Self::Tap, Parts::Tap(device)) => Ok(Port::Tap(Tap::from_parts(device, file()?))),
            (Self::Packet, Parts::Packet(device)) => {
                let (socket, links) = (file()?, file()?);
                Ok(Port::AfPacket(PacketSocket::from_parts(device, socket, links)))
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
                VhostUser::over(config, file()?, inode, Some(release)).map(Port::VhostUser)
            }
            _ => Err(missing()),
        }
    }
}

fn missing() -> PortError {
    PortError::Config {
        what: "taking over a port".to_owned(),
        problem: "another kind of port was handed over; please report it".to_owned(),
    }
}

/// Removes the path of a listening socket that [`Handover::vnic`] or [`Handover::vhost_user`] made, unless another socket
/// has the path by now.
pub fn free_place(path: &Path, inode: u64) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.ino() == inode) {
        let _ = fs::remove_file(path);
    }
}
