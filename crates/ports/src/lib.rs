//! Ports, through which packets enter and leave: TAP, AF_PACKET, AF_XDP, capture files, memory, a client's shared memory,
//! a virtual machine's rings.
//!
//! Why: the engine does not depend on how a frame reaches the kernel.
//! From: Linux's own interfaces, called directly; `unsafe` is here and in `vnic`, and nowhere else.
//! Not here: threads, waiting, classification, or any decision on which frame goes next.
//! Invariant: each frame handed to a port is sent or counted with the reason why not.

mod af_packet;
mod af_xdp;
mod apart;
mod carrier;
mod contract;
mod counters;
mod device;
mod error;
pub mod foreign;
mod frame;
pub mod handover;
pub mod kept;
mod ledger;
pub mod manager;
mod mapped;
mod memory;
pub mod netlink;
pub mod netns;
mod pcap;
mod port;
mod posted;
pub mod realtime;
mod release;
mod shared_memory;
mod socket;
mod stall;
mod tap;
mod tcp_info;
pub mod trap;
mod vhost_user;

pub use af_packet::{PacketConfig, PacketSocket};
pub use af_xdp::{XdpAttempt, XdpConfig, XdpHelper, XdpMode, XdpQueues, XdpSocket};
pub use apart::{Apart, Behaviour, Served, Shown};
pub use contract::{Batch, Capabilities, FRAME_ROOM, Fds, Level, MOST_LENT, Outgoing, Received, Trouble};
pub use counters::{Counters, DropReason, PairCounters, Sending};
pub use error::PortError;
pub use frame::Frame;
pub use kept::Kept;
pub use ledger::Refused;
pub use mapped::SenderBytes;
pub use memory::{MemoryConfig, MemoryEnd, MemoryPort, SHORT};
pub use pcap::{Capture, PcapConfig, PcapPort, Unwritten};
pub use port::Port;
pub use posted::{Taken, Ticket, Took};
pub use shared_memory::{QueuesLeft, VnicAnswer, VnicConfig, VnicPort, VnicRequest};
pub use stall::{STALL, Stalls};
pub use tap::{Tap, TapConfig};
pub use tcp_info::TcpInfo;
pub use vhost_user::{CompletionOrder, VhostUser, VhostUserConfig};
