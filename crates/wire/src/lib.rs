//! Frames: headers, checksums, segmentation.
//!
//! Why: a tenant's frame is untrusted until it is parsed, and a descriptor of 64 KiB leaves one MTU at a time.
//! From: the RFCs of each header, and the virtio specification (network device) for offloads.
//! Not here: reading or writing devices (`ports`), and which class a frame belongs to (`policy`).
//! Invariant: no input makes this crate panic, and it allocates nothing.
//!
//! A frame is first parsed ([`parse`]). Its headers give the [`FlowKey`] that chooses its flow queue, and
//! [`VnetHeader::offload`] gives its descriptor's `header` and `segment`. Each pull of the engine then makes one finished
//! frame ([`segment`]), or a smaller frame that the uplink still has to segment ([`supersegment`], or [`split`], which
//! copies no payload). Between hosts, each finished frame travels in an [`overlay`].
//!
//! ```
//! use plimsoll_wire::{FlowKey, Offload, VnetHeader, parse, segment};
//!
//! // A TAP with IFF_VNET_HDR gives ten bytes of offloads, then the frame.
//! let mut read = vec![0_u8; 10];
//! read.extend_from_slice(&[0xff; 12]); // the broadcast address, twice
//! read.extend_from_slice(&[0x08, 0x06]); // ARP
//! read.extend_from_slice(&[0; 28]);
//!
//! let (vnet, frame) = VnetHeader::read(&read)?;
//! let parsed = parse(frame)?;
//! let offload = vnet.offload(frame, &parsed)?;
//! assert_eq!(offload, Offload::PLAIN);
//! assert_eq!(FlowKey::of(&parsed), FlowKey::of(&parsed));
//!
//! let mut out = [0; 2048];
//! let len = segment(frame, &offload, 0, frame.len() as u32, &mut out)?;
//! assert_eq!(&out[..len], frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod binding;
pub mod doorbell;
pub mod neighbour;
pub mod overlay;

mod alike;
mod bytes;
mod checksum;
mod ecn;
mod flow;
mod front;
mod join;
mod parse;
mod reason;
mod segment;
mod tcp;
mod tcp_progress;
mod transport_checksum;
mod vnet;

pub use alike::{HeaderCopy, alike, flow_tag};
pub use checksum::{finish_checksum, ones_complement_sum};
pub use ecn::Ecn;
pub use flow::FlowKey;
pub use front::Front;
pub use join::Joined;
pub use parse::{Fragment, Ip, Mac, Parsed, network_header, parse, parse_front, protocol};
pub use reason::{
    BindingError, DecapsulationError, EncapsulationError, FrameError, SegmentError, TooBigError, VnetError,
};
pub use segment::{Split, finish_segment, segment, split, split_front, supersegment};
pub use tcp::{TcpFlags, TcpSegment};
pub use tcp_progress::{TcpPlace, TcpProgress};
pub use transport_checksum::TransportChecksum;
pub use vnet::{Offload, OffloadKind, VnetHeader};
