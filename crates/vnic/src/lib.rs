//! A process's own virtual NIC over shared memory.
//!
//! Why: a process that posts descriptors into memory that it shares with the daemon needs no system call per packet,
//! and each of its flows waits in a queue of its own.
//! From: Loom §4.3 (a descriptor ring for each flow, doorbells of 16 bits in batches), SENIC §5.1 (a slice of the NIC
//! for each client); `docs/vnic.md` states the format field by field.
//! Not here: the daemon's side (`ports`), and any decision on which packet goes next (`nic`).
//! Invariant: everything that both sides touch is read and written through [`Region`], which checks each access.
//!
//! This crate and `ports` are the only ones with `unsafe`: here to map the region, and to speak C.

pub mod layout;
pub mod message;
pub mod socket;

mod client;
mod error;
mod ffi;
mod region;
mod rules;
mod sender;

pub use client::Vnic;
pub use error::VnicError;
pub use layout::{Context, Descriptor, Identity, Layout, LayoutError, Posted, Posting, Sizes, Status, Used};
pub use message::OpenRefusal;
pub use plimsoll_wire::VnetHeader;
pub use plimsoll_wire::doorbell::PacketMetadata;
pub use region::Region;
pub use rules::{FlowSpec, Rule, RuleCounts, Scope};
pub use sender::{Buffer, Busy, Completion, Poster, Sender};
