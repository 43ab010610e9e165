//! What a policy file says about the machine: ports, engine, API.
//!
//! Why: the daemon and the lab need typed values, not YAML.
//! From: `docs/policy.md`, "uplink", "engine", "api" and "tenants".
//! Not here: how tenants share the link (the compiled `Program`).
//! Invariant: names of interfaces fit the kernel's; tenants are in the order of `Program::tenants`.

use std::net::SocketAddr;
use std::path::PathBuf;

use plimsoll_units::{BitRate, Bytes};
use serde::Serialize;

/// Everything in the operator's file but the policy itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Where packets leave.
    pub uplink: Uplink,
    /// What the engine may use.
    pub engine: Engine,
    /// Where the daemon answers.
    pub api: Api,
    /// Who has a port, in the order of the file and of `Program::tenants` (which may end with `host`).
    pub tenants: Vec<TenantConfig>,
}

/// Where packets leave, and how fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Uplink {
    /// The device.
    pub port: Port,
    /// What it can carry.
    pub rate: BitRate,
    /// Bytes that each frame costs beyond its own.
    pub overhead: Bytes,
    /// Largest IP packet.
    pub mtu: u16,
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
        /// What it is called there.
        name: String,
    },
    /// Frames from a file, or into one.
    Pcap {
        /// What comes in.
        read: Option<PathBuf>,
        /// What goes out.
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
    },
    /// Frames in memory, for tests and benches.
    Memory,
}

/// When and in which order a virtual machine gets back the descriptors that it has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Completions {
    /// Each when its packet has left or was dropped, in any order.
    #[default]
    Ooo,
    /// The same, but never before one that was posted earlier.
    InOrder,
    /// Each when it is taken.
    Early,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Netns {
    /// As in `/run/netns`.
    Name(String),
    /// Any file that names one, such as `/proc/PID/ns/net`.
    Path(PathBuf),
}

/// What the engine may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Engine {
    /// The core to pin its thread to.
    pub cpu: Option<u32>,
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
    /// Of so many packets that a vNIC's client classified itself one is classified again; 0: none.
    pub verify: u32,
}

impl Default for Engine {
    fn default() -> Self {
        let (queues, ring, descriptors) = (16_384, 128, 65_536);
        let (max_depth, verify) = (10, 100);
        Self {
            cpu: None,
            busy_poll: false,
            queues,
            ring,
            descriptors,
            max_depth,
            line_rate_frame: None,
            verify,
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
    /// What it gets whenever it wants it.
    pub min: Option<BitRate>,
    /// What it never exceeds.
    pub max: Option<BitRate>,
    /// Its share among siblings where the policy states none.
    pub weight: u32,
    /// Descriptors that it may have in the engine.
    pub descriptors: u32,
    /// The file with its own policy, as it was loaded.
    pub policy: Option<String>,
}
