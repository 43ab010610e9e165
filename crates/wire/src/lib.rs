//! Frames: headers, checksums, segmentation.
//!
//! Why: what tenants send is hostile until it is parsed, and a descriptor of 64 KiB leaves one MTU at a time.
//! From: the RFCs of each header, and the virtio specification (network device) for offloads.
//! Not here: reading or writing devices (`ports`), and what a frame's fields mean for its class (`policy`).
//! Invariant: no bytes whatsoever make anything here panic, and nothing here allocates.
//!
//! The way of a frame: [`parse`] → [`FlowKey`] for its flow queue, and [`VnetHeader::offload`] for its descriptor's
//! `header` and `segment`; then, for each pull that the engine asks for, [`segment`] (one finished frame),
//! [`supersegment`] (a smaller frame that still wants segmenting) or [`split`] (the latter without copying payload).
//! Between hosts, each finished frame travels in an [`overlay`].
//!
//! ```
//! use plimsoll_wire::{FlowKey, Offload, VnetHeader, parse, segment};
//!
//! // A TAP with IFF_VNET_HDR gives ten bytes of offloads, then the frame.
//! let mut read = vec![0_u8; 10];
//! read.extend_from_slice(&[0xff; 12]); // to all, from a strange address
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
mod parse;
mod reason;
mod segment;
mod vnet;

pub use alike::alike;
pub use checksum::{finish_checksum, ones_complement_sum};
pub use ecn::Ecn;
pub use flow::FlowKey;
pub use parse::{Fragment, Ip, Mac, Parsed, parse, protocol};
pub use reason::{
    BindingError, DecapsulationError, EncapsulationError, FrameError, SegmentError, TooBigError, VnetError,
};
pub use segment::{Split, segment, split, supersegment};
pub use vnet::{Offload, OffloadKind, VnetHeader};
