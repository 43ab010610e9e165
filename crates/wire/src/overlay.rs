//! The overlay: tenants' frames between hosts, in VXLAN or Geneve over UDP, and hosts' feedback with them.
//!
//! Why: tenants' addresses mean nothing to the fabric; and what a receiver allows its senders must reach their hosts.
//! From: RFC 7348 (VXLAN), RFC 8926 (Geneve), RFC 6935 and 6936 (UDP checksums of tunnels over IPv6), RFC 6040 (ECN),
//! RFC 6864 and 6438 (IPv4 identifier, IPv6 flow label). `docs/overlay.md` has the formats that are our own.
//! Not here: which host a frame goes to (`control`'s directory), what feedback says and its seal (`control`), outer VLAN
//! tags on the way out, reassembly, flooding.
//! Invariant: what [`Path`] writes, [`Tunnelled`] reads back; no bytes make either panic; nothing allocates.
//!
//! Outwards: [`segment`](crate::segment()) finishes a frame at [`Path::head_room`] of a buffer, and [`Path::encapsulate`]
//! writes the outer headers in front of it; segments are cut before, so that each has outer lengths and checksums of its
//! own. What is too long is refused, and [`too_big`] makes the answer to its sender. Inwards: [`Tunnelled::read`] says
//! whose frame it is, cheaply; [`Tunnelled::deliver`] checks sums and settles the ECN field, when its turn has come.
//!
//! ```
//! use plimsoll_wire::overlay::{Addresses, Checks, Format, Inner, Path, Ports, Tunnelled, Vni};
//! use plimsoll_wire::{Mac, parse};
//!
//! let path = Path {
//!     format: Format::Geneve,
//!     src_mac: Mac([2, 0, 0, 0, 0, 1]),
//!     dst_mac: Mac([2, 0, 0, 0, 0, 2]),
//!     addresses: Addresses::V4 { src: [192, 0, 2, 1].into(), dst: [192, 0, 2, 2].into() },
//!     dscp: 0,
//!     mtu: 1_500,
//!     v6_checksum: true,
//!     capable: false,
//!     ports: Ports::default(),
//! };
//! let frame = [0xab; 60];
//! let room = path.head_room(None);
//! let mut buffer = [0; 256];
//! buffer[room..room + 60].copy_from_slice(&frame);
//! let inner = Inner { vni: Vni::new(7).unwrap(), flow_hash: 0x1234, feedback: None };
//! let start = path.encapsulate(&mut buffer[..room + 60], room, &inner)?;
//!
//! let packet = &mut buffer[start..room + 60];
//! let tunnelled = Tunnelled::read(packet, &parse(packet)?)?.expect("it is for the overlay");
//! assert_eq!(tunnelled.vni.get(), 7);
//! tunnelled.deliver(packet, Checks::default())?;
//! assert_eq!(packet[tunnelled.frame().unwrap()], frame);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod crossing;
mod geneve;
mod path;
mod too_big;
mod tunnelled;

pub use crossing::{Alarm, Crossing};
pub use geneve::{
    GeneveOption, MOST_IN_OPTION, OPTION_CLASS, OPTION_FEEDBACK, Options, PROTOCOL_FEEDBACK, PROTOCOL_SEALED,
};
pub use path::{Addresses, Inner, Path, source_port};
pub use too_big::{TOO_BIG_MOST, too_big};
pub use tunnelled::{Checks, Tunnelled};

use crate::parse::ETHERNET;

/// How frames are wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Eight bytes, and nothing else: every switch knows it.
    Vxlan,
    /// Eight bytes and options: feedback travels with frames.
    Geneve,
}

/// Which of the two versions of IP carries the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The UDP ports that both hosts use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// For VXLAN.
    pub vxlan: u16,
    /// For Geneve, and for feedback in frames of its own.
    pub geneve: u16,
}

/// A virtual network's identifier, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Format {
    /// The longest IP packet that tenants may send when the underlay carries packets of `outer_mtu` bytes and frames take
    /// along feedback of `feedback` bytes (0: none).
    ///
    /// A tenant's VLAN tag takes four bytes more, as on every wire. VXLAN takes no feedback along; zero where nothing is
    /// left.
    ///
    /// ```
    /// use plimsoll_wire::overlay::{Family, Format};
    /// assert_eq!(Format::Vxlan.inner_mtu(Family::V4, 1_500, 0), 1_450);
    /// ```
    #[must_use]
    pub const fn inner_mtu(self, family: Family, outer_mtu: u16, feedback: usize) -> u16 {
        let option = match self {
            Format::Geneve if feedback > 0 => geneve::option_len(feedback),
            _ => 0,
        };
        let taken = family.header() + UDP + TUNNEL + option + ETHERNET;
        // More than any MTU can be is as much as all of it.
        outer_mtu.saturating_sub(if taken > u16::MAX as usize { u16::MAX } else { taken as u16 })
    }
}

impl Default for Ports {
    /// Those that IANA has assigned.
    fn default() -> Self {
        Self { vxlan: 4_789, geneve: 6_081 }
    }
}

impl Ports {
    /// The one that this format is sent to.
    #[must_use]
    pub const fn of(&self, format: Format) -> u16 {
        match format {
            Format::Vxlan => self.vxlan,
            Format::Geneve => self.geneve,
        }
    }

    /// What is sent to this port.
    #[must_use]
    pub const fn format(&self, port: u16) -> Option<Format> {
        if port == self.geneve {
            Some(Format::Geneve)
        } else if port == self.vxlan {
            Some(Format::Vxlan)
        } else {
            None
        }
    }
}

impl Family {
    const fn header(self) -> usize {
        match self {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }
}

impl Vni {
    /// None for what needs more than 24 bits.
    #[must_use]
    pub const fn new(vni: u32) -> Option<Vni> {
        if vni < 1 << 24 { Some(Vni(vni)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// From the last four bytes of either header: the VNI, and a byte that says nothing.
    const fn from_word(word: u32) -> Vni {
        Vni(word >> 8)
    }

    const fn word(self) -> [u8; 4] {
        (self.0 << 8).to_be_bytes()
    }
}

/// Bytes between Geneve's header and a frame that is sealed: a check and a number.
pub const SEALED_HEAD: usize = 12;
/// Bytes behind it: the tag.
pub const SEALED_TAG: usize = 16;

const UDP: usize = 8;
/// Both formats' headers, without options.
const TUNNEL: usize = 8;
/// VXLAN's flags: the VNI is valid.
const HAS_VNI: u8 = 0x08;

#[cfg(test)]
#[path = "overlay/tests.rs"]
mod tests;
