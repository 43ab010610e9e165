//! Rate control between hosts: what a receiver allows its senders, once each epoch.
//!
//! Why: a sender's own limits cannot know that a receiver is overrun; the receiver can, and says so.
//! From: PicNIC §5.3 (congestion control of bandwidth and of packet rate), EyeQ and RCP for the bandwidth law, QCN and
//! TIMELY for the packet rate's.
//! Not here: how rates are measured and limits enforced (`nic`), what carries messages (`daemon`, `sim`), clocks.
//! Invariant: integers only, so that the same measurements give the same limits on every machine.
#![forbid(unsafe_code)]

pub mod agent;
pub mod backpressure;
pub mod bandwidth;
pub mod directory;
pub mod distributor;
pub mod fabric;
pub mod feedback;
mod hellos;
pub mod keys;
pub mod leases;
pub mod membership;
pub mod news;
pub mod packet_rate;
pub mod receiver;
pub mod sealing;
pub mod senders;
pub mod share;
pub mod state;
pub mod strangers;

pub use agent::Agent;
pub use bandwidth::{BandwidthLaw, BandwidthLimit};
pub use directory::{Directory, DirectoryError, InnerAddr, Peer, StaticDirectory};
pub use distributor::Distributor;
pub use fabric::{FabricLaw, FabricLimit, Marks};
pub use feedback::{Allowance, For, HostId, Message, Notice, Opener, Rejected, Sealer, Vnic};
pub use keys::{Fingerprint, FleetKeys};
pub use membership::{Member, Membership, Sender};
pub use news::{LONGEST_SILENCE, News, refresh};
pub use packet_rate::{PacketRateLaw, PacketRateLimit, Seen};
pub use receiver::{Envelope, Laws, Limits, Measured, Receivers};
pub use sealing::{Greeted, Sealing, Session, Unopened};
pub use senders::{Heavy, SenderId, Senders};
pub use share::{Idle, Receiver, Shares};
pub use strangers::Strangers;

/// A part of a whole, in thousandths.
pub type PerMille = u32;

/// The whole.
pub(crate) const WHOLE: u64 = 1_000;
