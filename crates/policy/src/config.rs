//! What a policy file says about the machine: ports, engine, API.
//!
//! Why: the daemon and the lab need typed values, not YAML.
//! From: `docs/policy.md`, "uplink", "engine", "api" and "tenants".
//! Not here: how tenants share the link (the compiled `Program`).
//! Invariant: names of interfaces fit the kernel's; tenants are in the order of `Program::tenants`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use plimsoll_units::{BitRate, Bytes, PacketRate, Span};
use schemars::JsonSchema;
use serde::Serialize;

use crate::addresses::{Addresses, MacAddr};
use crate::interface::Interface;
use crate::offload::TenantProgram;
use crate::press::{Ecn, Press};

/// Everything in the operator's file but the policy itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Where packets leave.
    pub uplink: Uplink,
    /// Resources of the engine.
    pub engine: EngineConfig,
    /// Where the daemon answers.
    pub api: Api,
    /// The tenants, in the order of the file and of `Program::tenants` (which may end with `host`).
    pub tenants: Vec<TenantConfig>,
    /// How tenants reach those of other hosts; none: their frames leave as they are.
    pub overlay: Option<Overlay>,
    /// Which flows are counted, and what is done about heavy ones; none: no flow is counted.
    pub backpressure: Option<Backpressure>,
}

/// The flows that are counted, from which rate on one is a heavy hitter, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Backpressure {
    /// Tenants whose flows are counted, both ways, in the order of the file's `tenants`.
    pub tenants: Vec<String>,
    /// Packets a second from which a flow is a heavy hitter.
    pub heavy: PacketRate,
    /// When and how heavy flows are slowed down; none: they are counted and listed.
    pub press: Option<Press>,
}

impl Config {
    /// Largest IP packet that a tenant may send: the uplink's, less what the overlay adds.
    #[must_use]
    pub fn tenant_mtu(&self) -> u16 {
        self.uplink.mtu - self.overlay.as_ref().map_or(0, Overlay::header)
    }
}

/// How tenants reach those of other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overlay {
    /// How their frames are wrapped.
    pub kind: Encapsulation,
    /// The network of tenants that name none, below 2^24.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// Networks that have a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
    /// UDP port of all hosts; that of the kind when absent.
    pub port: Option<u16>,
    /// The DSCP of outer headers.
    pub dscp: u8,
    /// Whether UDP has a checksum over IPv6, both ways.
    pub v6_checksum: bool,
    /// The router that other hosts are behind; they are on the uplink's own link when absent.
    pub gateway: Option<IpAddr>,
    /// Which of the hosts this one is.
    pub host: usize,
    /// All hosts of the fleet, this one included, in the order of the file.
    pub hosts: Vec<FleetHost>,
    /// Feedback from receivers to senders; without it no sender is held back.
    pub feedback: Option<Feedback>,
    /// Whether frames between hosts are sealed.
    pub sealed: Sealed,
    /// The file with the fleet's key, where something is sealed with it: frames or feedback.
    pub key: Option<PathBuf>,
    /// Files with other keys that are accepted as well.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_keys: Vec<PathBuf>,
}

/// Most keys beside the one that this host seals with.
pub(crate) const MOST_OTHER_KEYS: usize = 3;

/// Whether frames between hosts are sealed with the fleet's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sealed {
    /// Frames are sent unsealed, and received sealed frames are dropped.
    #[default]
    No,
    /// Frames to hosts that seal are sealed; received frames are accepted sealed or unsealed. For the time in which a fleet's
    /// hosts change over.
    Accept,
    /// All frames are sealed, and received unsealed frames are dropped.
    Yes,
}

impl Overlay {
    /// This host.
    #[must_use]
    pub fn own(&self) -> &FleetHost {
        &self.hosts[self.host]
    }

    /// What operators call a network: its name, or its number where it has none.
    #[must_use]
    pub fn network_name(&self, vni: u32) -> String {
        let named = self.networks.iter().find(|network| network.vni == vni);
        named.map_or_else(|| vni.to_string(), |network| network.name.clone())
    }

    /// The VNI of a tenant of this host.
    #[must_use]
    pub fn network_of(&self, tenant: &str) -> Option<u32> {
        let known = self.own().tenants.iter().find(|known| known.name == tenant)?;
        Some(known.network)
    }

    /// Bytes that a tenant's IP packet gets on the underlay: outer IP, UDP, the tunnel's header, its Ethernet header, and the
    /// seal.
    #[must_use]
    pub fn header(&self) -> u16 {
        overlay_header(self.own().address, self.sealed)
    }
}

/// [`Overlay::header`] between hosts with such addresses. What may be sealed has room for that.
pub(crate) fn overlay_header(address: IpAddr, sealed: Sealed) -> u16 {
    let ip = if address.is_ipv4() { 20 } else { 40 };
    ip + 8 + 8 + 14 + if sealed == Sealed::No { 0 } else { SEAL }
}

/// Bytes that sealing adds to a frame: its number with a check in front, a tag behind.
pub const SEAL: u16 = 12 + 16;

/// How frames are wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encapsulation {
    /// RFC 7348.
    Vxlan,
    /// RFC 8926.
    Geneve,
}

/// A network of tenants, which never reach those of another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// The operator's name for it.
    pub name: String,
    /// Its VNI, below 2^24.
    pub vni: u32,
}

/// A host of the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetHost {
    /// The operator's name for it.
    pub name: String,
    /// A number that follows from the name, so that all hosts give it the same one.
    pub number: u32,
    /// Its address on the underlay.
    pub address: IpAddr,
    /// The next hop's hardware address, where it is not asked for.
    pub mac: Option<MacAddr>,
    /// Where its control channel listens.
    pub channel: Option<SocketAddr>,
    /// Rate at which each tenant here may send to each of its tenants while the host sends no feedback.
    pub fallback: Option<BitRate>,
    /// Its tenants.
    pub tenants: Vec<FleetTenant>,
}

/// A tenant and its addresses: each interface's, the first of which names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetTenant {
    /// Its name in its host's policy.
    pub name: String,
    /// Its hardware addresses.
    pub macs: Vec<MacAddr>,
    /// Its share of a receiver among the senders.
    pub weight: u32,
    /// Whether it forwards others' traffic: all such tenants count as one sender, whose part is divided among them.
    pub balancer: bool,
    /// Whether its packets must not be changed by backpressure at other hosts.
    pub untouched: bool,
    /// The VNI of its network.
    pub network: u32,
}

/// Feedback from receivers to senders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Feedback {
    /// The file with the fleet's key.
    pub key: PathBuf,
    /// The way that it takes.
    pub via: Via,
    /// Time from one decision to the next.
    pub epoch: Span,
    /// How long a limit holds after it was last heard.
    pub lapse: Span,
    /// How long packets may wait at a receiver before their rate is limited, too.
    pub delay: Span,
    /// Rate at which each tenant here may send to a tenant whose host sends no feedback.
    pub fallback: BitRate,
    /// Whether the fabric's ECN marks slow senders down.
    pub ecn: bool,
    /// The host that divides among the balancers what receivers allow them; `None` without balancers.
    pub distributor: Option<usize>,
    /// The limits that senders are given.
    pub control: ControlLevel,
    /// Use of the minimum of a tenant that receives nothing.
    pub idle: IdleMinimum,
}

/// The limits that receivers give their senders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlLevel {
    /// Bits a second, and packets a second while the core is what is short.
    #[default]
    Full,
    /// Bits a second only, as EyeQ: for comparison.
    Bandwidth,
}

/// Use of the minimum of a tenant that receives nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IdleMinimum {
    /// It stays free for it, so that its first packets find room.
    #[default]
    Reserved,
    /// The other tenants get it until its owner wants it.
    Lent,
}

/// The way that feedback takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// With tenants' frames, or in frames of its own.
    #[default]
    Datapath,
    /// In datagrams between the hosts' control channels.
    Channel,
}

/// Where packets leave, and how fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uplink {
    /// The device.
    pub port: Port,
    /// The device that takes over while `port` has no carrier, if there is one.
    pub standby: Option<Port>,
    /// How long `port` must carry frames again, without a break, before it takes back from `standby`.
    pub hold_off: Span,
    /// Rate of the link.
    pub rate: BitRate,
    /// Bytes that each frame costs beyond its own.
    pub overhead: Bytes,
    /// Largest IP packet.
    pub mtu: u16,
    /// The longest wake-up grain, if stated.
    pub grain: Option<Span>,
}

/// A place where packets enter and leave.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// A network interface through AF_XDP.
    AfXdp(String),
    /// A network interface through AF_PACKET.
    AfPacket(String),
    /// A TAP that the daemon makes.
    Tap {
        /// Where; the daemon's own namespace when absent.
        netns: Option<Netns>,
        /// Its name there.
        name: String,
    },
    /// Frames from a file, or into one.
    Pcap {
        /// File of the frames that come in.
        read: Option<PathBuf>,
        /// File for the frames that go out.
        write: Option<PathBuf>,
    },
    /// A client process, through memory that it shares with the daemon.
    Vnic(PathBuf),
    /// A virtual machine, through vhost-user: the socket that its front end connects to.
    VhostUser {
        /// Where.
        socket: PathBuf,
        /// When the machine gets its descriptors back.
        completions: Completions,
        /// The hardware address of its interface, which no other port may have.
        mac: Option<MacAddr>,
    },
    /// Frames in memory, for tests and benches.
    Memory,
}

/// The port as a policy file states it.
impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = |rows: &[(&str, Option<String>)]| {
            let stated = rows.iter().filter_map(|(key, value)| Some(format!("{key}: {}", value.as_ref()?)));
            stated.collect::<Vec<_>>().join(", ")
        };
        let path = |path: &PathBuf| path.display().to_string();
        match self {
            Self::AfXdp(interface) => write!(f, "{{af_xdp: {interface}}}"),
            Self::AfPacket(interface) => write!(f, "{{af_packet: {interface}}}"),
            Self::Tap { netns, name } => {
                let netns = netns.as_ref().map(|netns| match netns {
                    Netns::Name(name) => name.clone(),
                    Netns::Path(place) => path(place),
                });
                write!(f, "{{tap: {{{}}}}}", rows(&[("netns", netns), ("name", Some(name.clone()))]))
            }
            Self::Pcap { read, write } => {
                let rows = rows(&[("read", read.as_ref().map(path)), ("write", write.as_ref().map(path))]);
                write!(f, "{{pcap: {{{rows}}}}}")
            }
            Self::Vnic(socket) => write!(f, "{{vnic: {}}}", socket.display()),
            Self::VhostUser { socket, completions, mac } => {
                let completions = match completions {
                    Completions::Ooo => None,
                    Completions::InOrder => Some("in_order".to_owned()),
                    Completions::Early => Some("early".to_owned()),
                };
                let mac = mac.map(|mac| mac.to_string());
                let rows =
                    rows(&[("socket", Some(path(socket))), ("completions", completions), ("mac", mac)]);
                write!(f, "{{vhost_user: {{{rows}}}}}")
            }
            Self::Memory => f.write_str("memory"),
        }
    }
}

/// When and in which order a virtual machine gets back the descriptors that it has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Completions {
    /// Each when its packet has left or was dropped, in any order.
    #[default]
    Ooo,
    /// Each when its packet has left or was dropped, and never before one that was posted earlier.
    InOrder,
    /// Each when it is taken.
    Early,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Netns {
    /// A name in `/run/netns`.
    Name(String),
    /// Any file that names one, such as `/proc/PID/ns/net`.
    Path(PathBuf),
}

/// Resources of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineConfig {
    /// The core to pin its thread to.
    pub cpu: Option<u32>,
    /// Threads, each with an engine of its own.
    pub threads: u32,
    /// Whether it never sleeps.
    pub busy_poll: bool,
    /// Flow queues in all.
    pub queues: u32,
    /// Descriptors of one flow queue; a power of two.
    pub ring: u16,
    /// Descriptors in all.
    pub descriptors: u32,
    /// Deepest tree that `check` lets pass.
    pub max_depth: u32,
    /// Smallest frame at which the engine must still keep up with the link; the largest frame when absent.
    pub line_rate_frame: Option<Bytes>,
    /// One packet of this many that a vNIC's client classified itself is classified again; 0 for none.
    pub verify: u32,
    /// Ways to slow the engine down on purpose, for comparisons; none otherwise.
    pub experiment: Option<Experiment>,
}

/// How long an uplink's first port must be well before it takes back, unless stated: longer than a link that trains anew or
/// flaps is up for, and than a switch's port waits with rapid spanning tree (3 s).
pub(crate) const HOLD_OFF: Span = Span::secs(5);

/// Longest `hold_off` that an uplink may state.
pub(crate) const LONGEST_HOLD_OFF: Span = Span::secs(600);

/// Longest wake-up grain that an uplink may state.
pub const LONGEST_GRAIN: Span = Span::millis(10);

/// Longest CPU time that an experiment may add to a frame: a hundred frames a second.
pub const LONGEST_COST: Span = Span::millis(10);

/// An engine made worse on purpose: a slower core on the way in, or without one of the things that isolate tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Experiment {
    /// CPU time that fetching a frame from the uplink takes at least, until it is known whose it is.
    pub drain: Span,
    /// CPU time that delivering the fetched frame takes at least; charged to its tenant.
    pub cost: Span,
    /// Part of the time, in thousandths, that fetching may take while fetched frames wait.
    pub drain_share: u32,
    /// The order in which tenants' frames are delivered.
    pub ingress: IngressOrder,
    /// Frames of full length that the kernel holds for an AF_PACKET uplink, about; its own buffer when absent.
    pub ring: Option<u32>,
    /// Frames that wait for each tenant; what follows from its delay target when absent.
    pub slots: Option<u32>,
    /// Whether tenants have descriptors of their own; else they take them from each other.
    pub accounting: bool,
    /// Whether tenants have shares of coprocessors; else these serve requests as they come.
    pub limiter: bool,
}

/// The order in which tenants' received frames are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IngressOrder {
    /// The tenant's that has had least of its part of the core.
    #[default]
    Fair,
    /// The frame that came first, of any tenant.
    Shared,
}

impl Default for Experiment {
    fn default() -> Self {
        Self {
            drain: Span::ZERO,
            cost: Span::ZERO,
            drain_share: DRAIN_SHARE,
            ingress: IngressOrder::default(),
            ring: None,
            slots: None,
            accounting: true,
            limiter: true,
        }
    }
}

/// Part of the time, in thousandths, that fetching may take while frames wait: this value reproduces PicNIC's figures
/// (§6.1.1).
pub const DRAIN_SHARE: u32 = 640;

impl Default for EngineConfig {
    fn default() -> Self {
        let (queues, ring, descriptors) = (16_384, 128, 65_536);
        let (max_depth, verify) = (10, 100);
        Self {
            cpu: None,
            threads: 1,
            busy_poll: false,
            queues,
            ring,
            descriptors,
            max_depth,
            line_rate_frame: None,
            verify,
            experiment: None,
        }
    }
}

/// Where the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Api {
    /// Unix socket of the HTTP API.
    pub socket: PathBuf,
    /// Address of the Prometheus endpoint.
    pub metrics: Option<SocketAddr>,
}

impl Default for Api {
    fn default() -> Self {
        Self { socket: PathBuf::from("/run/plimsoll/api.sock"), metrics: None }
    }
}

/// One tenant as the operator states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TenantConfig {
    /// The operator's name for it.
    pub name: String,
    /// Where its packets enter and leave.
    pub port: Port,
    /// Rate it is guaranteed whenever it has packets to send.
    pub min: Option<BitRate>,
    /// Rate it never exceeds.
    pub max: Option<BitRate>,
    /// Its share among siblings where the policy states none.
    pub weight: u32,
    /// Descriptors that it may have in the engine.
    pub descriptors: u32,
    /// The addresses that its frames may bear.
    pub addresses: Addresses,
    /// What the daemon sets on its interface.
    pub interface: Interface,
    /// Whether backpressure may change its packets' ECN bits and TCP flags.
    pub ecn: Ecn,
    /// The program that its packets pass.
    pub program: Option<TenantProgram>,
    /// The file with its own policy, as it was loaded.
    pub policy: Option<String>,
}
