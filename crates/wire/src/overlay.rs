//! The overlay: carries tenants' frames between hosts in VXLAN or Geneve over UDP, and the hosts' feedback with them.
//!
//! Why: the fabric does not know tenants' addresses; and a receiver's rate limits must reach the senders' hosts.
//! From: RFC 7348 (VXLAN), RFC 8926 (Geneve), RFC 6935 and 6936 (UDP checksums of tunnels over IPv6), RFC 6040 (ECN),
//! RFC 6864 and 6438 (IPv4 identifier, IPv6 flow label). `docs/overlay.md` describes the project's own formats.
//! Not here: which host a frame goes to (`control`'s directory), the contents of feedback and its seal (`control`), outer
//! VLAN tags on egress, reassembly, flooding.
//! Invariant: [`Tunnelled`] reads back the packets that [`Path`] writes; no bytes make either panic; nothing allocates.
//!
//! Egress: [`segment`](crate::segment()) writes a finished frame at offset [`Path::head_room`] of a buffer, and
//! [`Path::encapsulate`] writes the outer headers in front of it. Large frames are segmented first, so that each segment
//! has its own outer lengths and checksums. A packet that is too long is refused, and [`too_big`] writes the answer to its
//! sender. Ingress: [`Tunnelled::read`] finds the tenant's network at little cost; [`Tunnelled::deliver`] verifies
//! checksums and settles the ECN field when the tenant's turn has come.
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
mod pieces;
mod too_big;
mod tunnelled;

pub use crossing::{Alarm, Crossing};
pub use geneve::{
    GeneveOption, MOST_IN_OPTION, OPTION_CLASS, OPTION_FEEDBACK, Options, PROTOCOL_FEEDBACK, PROTOCOL_SEALED,
};
pub use path::{Addresses, Inner, Path, source_port};
pub use pieces::{MOST_PIECES, PieceLayout, Pieces, pieces_of};
pub use too_big::{TOO_BIG_MOST, too_big};
pub use tunnelled::{Checks, Tunnelled};

use crate::parse::ETHERNET;

/// The tunnel format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// A header of eight bytes without options; every switch supports it.
    Vxlan,
    /// A header of eight bytes with options, which carry feedback along with frames.
    Geneve,
}

/// The version of IP that carries the overlay.
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

/// The identifier of a tenant's virtual network, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Format {
    /// The longest IP packet that tenants may send when the underlay carries packets of `outer_mtu` bytes and each frame
    /// carries `feedback` bytes of feedback; zero when the headers leave no room.
    ///
    /// A tenant's VLAN tag needs four bytes more, as on every wire. VXLAN carries no feedback.
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
        // Headers longer than any MTU leave no room.
        outer_mtu.saturating_sub(if taken > u16::MAX as usize { u16::MAX } else { taken as u16 })
    }
}

impl Default for Ports {
    /// The ports that IANA has assigned.
    fn default() -> Self {
        Self { vxlan: 4_789, geneve: 6_081 }
    }
}

impl Ports {
    /// The destination port of this format.
    #[must_use]
    pub const fn of(&self, format: Format) -> u16 {
        match format {
            Format::Vxlan => self.vxlan,
            Format::Geneve => self.geneve,
        }
    }

    /// The format of packets to this port; none for other ports.
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
    pub(crate) const fn header(self) -> usize {
        match self {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }
}

impl Vni {
    /// The network with number zero, which control messages bear.
    pub const ZERO: Vni = Vni(0);

    /// The network with this number; none when it needs more than 24 bits.
    #[must_use]
    pub const fn new(vni: u32) -> Option<Vni> {
        if vni < 1 << 24 { Some(Vni(vni)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Reads the last four bytes of either header: the VNI, and a reserved byte.
    const fn from_word(word: u32) -> Vni {
        Vni(word >> 8)
    }

    const fn word(self) -> [u8; 4] {
        (self.0 << 8).to_be_bytes()
    }
}

/// Bytes between Geneve's header and a sealed frame: a check and a number.
pub const SEALED_HEAD: usize = 12;
/// Bytes behind a sealed frame: the authentication tag.
pub const SEALED_TAG: usize = 16;

const UDP: usize = 8;
/// Both formats' headers, without options.
const TUNNEL: usize = 8;
/// VXLAN's flags: the VNI is valid.
const HAS_VNI: u8 = 0x08;

#[cfg(test)]
#[path = "overlay/tests.rs"]
mod tests;
