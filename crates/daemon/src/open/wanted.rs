//! A port that a policy names, opened in this process or through a broker.
//!
//! Why: the process that opens a port and the one that carries its packets must use the same configuration.
//! From: `docs/policy.md`, "ports".
//! Not here: the messages between both processes (`broker`).
//! Invariant: a port that is handed over and taken over is the port that opening it in one process would have made.

use std::path::PathBuf;

use plimsoll_policy::{Interface, Port as PortSpec};
use plimsoll_ports::handover::{Handover, Release, TakeOver};
use plimsoll_ports::netns::NetnsRef;
use plimsoll_ports::{
    CompletionOrder, PacketConfig, PacketSocket, PcapConfig, PcapPort, Port, PortError, Tap, TapConfig,
    VhostUser, VhostUserConfig, VnicConfig, VnicPort, XdpConfig, XdpSocket,
};

use super::{OpenError, machine_id, steady_mac, tap_config};
use crate::dataplane::Mac;

/// A port, as a policy states it.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// The port's owner, for messages: `the uplink` or `tenant shop`.
    pub(crate) whose: String,
    /// The port, as the policy states it.
    pub(crate) port: &'a PortSpec,
    /// Largest IP packet.
    pub(crate) mtu: u16,
    /// Most packets of a segment that a TAP's tenant leaves uncut; the kernel's own limit when absent.
    pub(crate) most_segments: Option<u32>,
    /// The hardware address that the tenant's interface gets, where we make it.
    pub(crate) mac: Option<Mac>,
    /// What is set on a TAP beside these.
    pub(crate) interface: Option<&'a Interface>,
    /// Queues of an AF_XDP interface that are opened.
    pub(crate) queues: u32,
    /// Bytes that the kernel holds for a packet socket, where an experiment states them.
    pub(crate) receive_buffer: Option<u32>,
}

impl Wanted<'_> {
    /// Opens it in this process.
    pub(crate) fn open(&self) -> Result<Port, OpenError> {
        let opened = match self.port {
            PortSpec::Tap { netns, name } => {
                Tap::open(&tap_config(self, netns.as_ref(), name)).map(Port::Tap)
            }
            PortSpec::AfPacket(interface) => PacketSocket::open(&self.packet(interface)).map(Port::AfPacket),
            PortSpec::AfXdp(interface) => XdpSocket::open(&self.queues_of(interface)).map(Port::AfXdp),
            PortSpec::Pcap { read, write } => PcapPort::open(&pcap(read, write)).map(Port::Pcap),
            PortSpec::Vnic(path) => VnicPort::open(&self.vnic(path)).map(Port::Vnic),
            PortSpec::VhostUser { .. } => VhostUser::open(&self.vhost_user()).map(Port::VhostUser),
            PortSpec::Memory => return Err(OpenError::Memory { whose: self.whose.clone() }),
        };
        opened.map_err(|source| self.failed(source))
    }

    /// Does the part of opening it that needs privileges. AF_XDP is opened in another way ([`Wanted::xdp`]).
    pub(crate) fn hand_over(&self) -> Result<Handover, OpenError> {
        let opened = match self.port {
            PortSpec::Tap { netns, name } => Handover::tap(&tap_config(self, netns.as_ref(), name)),
            PortSpec::AfPacket(interface) => Handover::packet(&self.packet(interface)),
            PortSpec::Pcap { read, write } => Handover::pcap(&pcap(read, write)),
            PortSpec::Vnic(path) => Handover::vnic(&self.vnic(path)),
            PortSpec::VhostUser { .. } => Handover::vhost_user(&self.vhost_user()),
            PortSpec::AfXdp(_) | PortSpec::Memory => {
                return Err(OpenError::Memory { whose: self.whose.clone() });
            }
        };
        opened.map_err(|source| self.failed(source))
    }

    /// Does the part of opening it that needs no privileges.
    pub(crate) fn take_over(&self, handed: Handover, release: Release) -> Result<Port, PortError> {
        match self.port {
            PortSpec::Tap { .. } => TakeOver::Tap.port(handed),
            PortSpec::AfPacket(_) => TakeOver::Packet.port(handed),
            PortSpec::Pcap { read, write } => TakeOver::Pcap(&pcap(read, write)).port(handed),
            PortSpec::Vnic(path) => TakeOver::Vnic(&self.vnic(path), release).port(handed),
            _ => TakeOver::VhostUser(&self.vhost_user(), release).port(handed),
        }
    }

    /// The configuration of a TAP; `None` for any other port.
    pub(crate) fn tap(&self) -> Option<TapConfig> {
        match self.port {
            PortSpec::Tap { netns, name } => Some(tap_config(self, netns.as_ref(), name)),
            _ => None,
        }
    }

    /// Sets on the interface of an open TAP what the policy states.
    pub(crate) fn configure(&self) -> Result<(), OpenError> {
        self.tap().map_or(Ok(()), |config| Tap::configure(&config).map_err(|source| self.failed(source)))
    }

    /// The configuration of an AF_XDP port; `None` for any other.
    pub(crate) fn xdp(&self) -> Option<XdpConfig> {
        match self.port {
            PortSpec::AfXdp(interface) => Some(self.queues_of(interface)),
            _ => None,
        }
    }

    fn queues_of(&self, interface: &str) -> XdpConfig {
        XdpConfig { queues: self.queues, ..XdpConfig::new(NetnsRef::Own, interface) }
    }

    /// Opens this queue of the interface whose first queue is `first`.
    ///
    /// # Errors
    /// When the kernel refuses, or the interface has fewer queues.
    pub(crate) fn open_next(&self, first: &XdpSocket, queue: u32) -> Result<Port, OpenError> {
        let config = self.xdp().ok_or_else(|| OpenError::Told("this port has one queue".to_owned()))?;
        first.open_next(&config, queue, None).map(Port::AfXdp).map_err(|source| self.failed(source))
    }

    /// The path where it listens, if it does.
    pub(crate) fn listens_at(&self) -> Option<PathBuf> {
        match self.port {
            PortSpec::Vnic(path) | PortSpec::VhostUser { socket: path, .. } => Some(path.clone()),
            _ => None,
        }
    }

    /// The port's error, with its owner.
    pub(crate) fn failed(&self, source: PortError) -> OpenError {
        OpenError::Port { whose: self.whose.clone(), source }
    }

    fn packet(&self, interface: &str) -> PacketConfig {
        let mut config = PacketConfig::new(NetnsRef::Own, interface);
        config.receive_buffer = self.receive_buffer.unwrap_or(config.receive_buffer);
        config
    }

    fn vnic(&self, path: &PathBuf) -> VnicConfig {
        let mut config = VnicConfig::new(path);
        config.mtu = self.mtu.into();
        let place = NetnsRef::Path(path.clone());
        config.mac =
            self.mac.unwrap_or_else(|| steady_mac(&machine_id().unwrap_or_default(), &place, "vnic"));
        config
    }

    /// The configuration of a virtual machine's port; for any other port it is empty.
    fn vhost_user(&self) -> VhostUserConfig {
        let PortSpec::VhostUser { socket, completions, mac: stated } = self.port else {
            return VhostUserConfig::new("");
        };
        let mut config = VhostUserConfig::new(socket);
        config.mtu = self.mtu.into();
        config.mac = self.mac.or(stated.map(|mac| mac.0));
        config.completions = match completions {
            plimsoll_policy::Completions::Ooo => CompletionOrder::OutOfOrder,
            plimsoll_policy::Completions::InOrder => CompletionOrder::InOrder,
            plimsoll_policy::Completions::Early => CompletionOrder::Early,
        };
        config
    }
}

fn pcap(read: &Option<PathBuf>, write: &Option<PathBuf>) -> PcapConfig {
    PcapConfig { read: read.clone(), write: write.clone() }
}
