//! Decapsulation: reads a packet from another host, and the frame in it.
//!
//! Why: a frame's tenant must be known before costly work is done for it (PicNIC §5.2). Checksums over the whole packet
//! are costly and wait until the tenant's turn has come.
//! From: RFC 7348 §4 and 5, RFC 8926 §3 and 4, RFC 6936 §3 (a datagram over IPv6 without a checksum), RFC 6040.
//! Not here: whether the other host may send for that network (`control`'s directory knows the hosts).
//! Invariant: all ranges of a [`Tunnelled`] lie inside the packet that was read.

use core::net::IpAddr;
use core::ops::Range;

use super::crossing::Crossing;
use super::geneve::Carries;
use super::geneve::Layout;
use super::path::v6_udp_sum;
use super::{Format, HAS_VNI, Ports, SEALED_HEAD, SEALED_TAG, TUNNEL, UDP, Vni, geneve};
use crate::bytes::{array, be16, be32};
use crate::checksum::{add, ones_complement_sum};
use crate::ecn::{Ecn, v4_header_verifies};
use crate::parse::{ETHERNET, Fragment, Parsed, protocol};
use crate::reason::DecapsulationError;

/// The headers of a packet for the overlay, and the places of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnelled {
    /// The tunnel format.
    pub format: Format,
    /// The tenant's network; 0 for a feedback frame.
    pub vni: Vni,
    /// The outer source address. It can be forged; only a seal proves the sender.
    pub src: IpAddr,
    /// The outer destination address, one of this host.
    pub dst: IpAddr,
    /// The outer ECN field, which the fabric may have marked.
    pub ecn: Ecn,
    feedback: Option<Range<usize>>,
    frame: Option<Range<usize>>,
    sealed: Option<Range<usize>>,
    hello: Option<Range<usize>>,
    v4: bool,
    l3: usize,
    l4: usize,
    end: usize,
}

/// Checks that [`Tunnelled::deliver`] can leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checks {
    /// The device has already verified the outer checksums.
    pub verified: bool,
    /// Datagrams over IPv6 may come without a checksum: by configuration, both hosts follow RFC 6936.
    pub v6_without: bool,
    /// Both hosts react to the fabric's marks themselves, so a packet may be ECN-capable when its inner frame is not.
    pub heeded: bool,
}

impl Tunnelled {
    /// Reads a packet with these outer headers; none when it is not for the overlay at its assigned ports.
    ///
    /// # Errors
    /// As for [`Tunnelled::read_at`].
    pub fn read(packet: &[u8], outer: &Parsed) -> Result<Option<Tunnelled>, DecapsulationError> {
        Self::read_at(packet, outer, &Ports::default())
    }

    /// Reads a packet with these outer headers; none when it is not for the overlay at `ports`.
    ///
    /// Reads at most 63 options, and no payload.
    ///
    /// # Errors
    /// [`DecapsulationError`] when the packet is for the overlay and must be counted and dropped.
    pub fn read_at(
        packet: &[u8],
        outer: &Parsed,
        ports: &Ports,
    ) -> Result<Option<Tunnelled>, DecapsulationError> {
        let Some((ip, (_, port))) = outer.ip.and_then(|ip| Some((ip, ip.ports?))) else { return Ok(None) };
        let Some(format) = ports.format(port).filter(|_| ip.protocol == protocol::UDP) else {
            return Ok(None);
        };
        if ip.fragment != Fragment::Whole {
            return Err(DecapsulationError::OuterFragment);
        }
        let (l4, payload) = (usize::from(ip.l4), usize::from(ip.payload));
        let end = l4 + be16(packet, l4 + 4).map_or(0, usize::from);
        let datagram = packet.get(payload..end).ok_or(DecapsulationError::HeaderCut)?;
        let read = match format {
            Format::Vxlan => read_vxlan(datagram)?,
            Format::Geneve => geneve::read(datagram)?,
        };
        let (head, tag) = if read.carries == Carries::Sealed { (SEALED_HEAD, SEALED_TAG) } else { (0, 0) };
        let carried = matches!(read.carries, Carries::Frame | Carries::Sealed);
        if carried && datagram.len() < read.payload + head + ETHERNET + tag {
            return Err(DecapsulationError::InnerCut);
        }
        let begin = payload + read.payload;
        let whole = |carries: Carries| (read.carries == carries).then_some(begin..end);
        Ok(Some(Tunnelled {
            format,
            vni: read.vni,
            src: ip.src,
            dst: ip.dst,
            ecn: Ecn::from_bits(ip.ecn),
            feedback: read.feedback.map(|place| payload + place.start..payload + place.end),
            frame: carried.then_some(begin + head..end - tag),
            sealed: whole(Carries::Sealed),
            hello: whole(Carries::Hello),
            v4: ip.src.is_ipv4(),
            l3: outer.l3.into(),
            l4,
            end,
        }))
    }

    /// The same headers on a packet of another length, as on the next piece of one datagram: the frame is that much longer or shorter.
    /// None where the datagram does not end with the packet, or carries anything but a frame that is not sealed.
    #[must_use]
    pub fn resized(&self, len: usize) -> Option<Tunnelled> {
        let place = self.frame.clone().filter(|place| self.sealed.is_none() && place.end == self.end)?;
        let fits = self.feedback.is_none() && len >= place.start + ETHERNET;
        fits.then(|| Tunnelled { frame: Some(place.start..len), end: len, ..self.clone() })
    }

    /// Place of the tenant's frame; none in a feedback frame or a hello. A sealed frame can be read once it is opened.
    #[must_use]
    pub fn frame(&self) -> Option<Range<usize>> {
        self.frame.clone()
    }

    /// Whether the frame follows its tunnel header, which has no options, and is not sealed.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        let begin = self.l4 + UDP + TUNNEL;
        self.sealed.is_none() && self.frame.as_ref().is_some_and(|frame| frame.start == begin)
    }

    /// Place of sealed feedback, in an option or a feedback frame; none without feedback.
    #[must_use]
    pub fn feedback(&self) -> Option<Range<usize>> {
        self.feedback.clone()
    }

    /// Place of a sealed frame, including [`SEALED_HEAD`] bytes before it and [`SEALED_TAG`] bytes behind it; none when
    /// the frame is not sealed.
    #[must_use]
    pub fn sealed(&self) -> Option<Range<usize>> {
        self.sealed.clone()
    }

    /// Place of a hello between hosts that seal; none in other packets.
    #[must_use]
    pub fn hello(&self) -> Option<Range<usize>> {
        self.hello.clone()
    }

    /// Verifies the outer checksums of the packet that was read, and writes the inner frame's ECN field; returns both
    /// fields as they arrived.
    ///
    /// # Errors
    /// [`DecapsulationError`] when the packet and its feedback must be counted and dropped.
    pub fn deliver(&self, packet: &mut [u8], checks: Checks) -> Result<Crossing, DecapsulationError> {
        self.verify(packet, checks)?;
        let frame = self.frame().and_then(|place| packet.get_mut(place)).unwrap_or_default();
        let inner = Ecn::of(frame).unwrap_or_default();
        let crossing = match checks.heeded {
            true => Crossing::heeded(inner, self.ecn),
            false => Crossing::of(inner, self.ecn).ok_or(DecapsulationError::MarkLost)?,
        };
        if crossing.delivered != inner {
            // The frame has an ECN field: without one, `inner` is not ECN-capable and `delivered` equals it.
            let _ = crossing.delivered.write(frame);
        }
        Ok(crossing)
    }

    fn verify(&self, packet: &[u8], checks: Checks) -> Result<(), DecapsulationError> {
        let checksum = be16(packet, self.l4 + 6).ok_or(DecapsulationError::HeaderCut)?;
        if checksum == 0 && !self.v4 && !checks.v6_without {
            return Err(DecapsulationError::NoUdpChecksum);
        }
        // The seal proves more than a checksum, and opening the frame has changed the bytes that the checksum covers.
        if checks.verified || self.sealed.is_some() {
            return Ok(());
        }
        if self.v4 && !v4_header_verifies(packet, self.l3) {
            return Err(DecapsulationError::HeaderChecksum);
        }
        if checksum != 0 && self.udp_sum(packet) != Some(0xffff) {
            return Err(DecapsulationError::UdpChecksum);
        }
        Ok(())
    }

    fn udp_sum(&self, packet: &[u8]) -> Option<u16> {
        let ip = packet.get(self.l3..self.end)?;
        let udp = self.l4.checked_sub(self.l3)?;
        if !self.v4 {
            return v6_udp_sum(ip, udp);
        }
        let datagram = ip.get(udp..)?;
        let addresses = ones_complement_sum(ip.get(12..20)?);
        Some(add(&[addresses, protocol::UDP.into(), datagram.len() as u16, ones_complement_sum(datagram)]))
    }
}

/// Reads a VXLAN header; reserved flags and bytes are ignored (RFC 7348 §5).
fn read_vxlan(datagram: &[u8]) -> Result<Layout, DecapsulationError> {
    let [flags] = array(datagram, 0).ok_or(DecapsulationError::HeaderCut)?;
    let vni = Vni::from_word(be32(datagram, 4).ok_or(DecapsulationError::HeaderCut)?);
    if flags & HAS_VNI == 0 {
        return Err(DecapsulationError::NoVni);
    }
    Ok(Layout { vni, carries: Carries::Frame, payload: TUNNEL, feedback: None })
}
