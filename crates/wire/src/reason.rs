//! The reasons for which frames, offload fields and pulls are refused: one counter per variant.
//!
//! Why: a bad frame is normal on a network. It is no error of the program, but counted under a name that operators see.
//! From: Linux's drop reasons. The packet path handles `Copy` values and never strings.
//! Not here: the counters (`nic`, `daemon`).
//! Invariant: `index()` of a variant is its place in `ALL`; names are unique, in snake case.

macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $label:literal: $message:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// Every reason, in the order of [`Self::index`].
            pub const ALL: &[$name] = &[$($name::$variant,)+];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// Index of this reason's counter.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The counter's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $label,)+
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match self {
                    $($name::$variant => $message,)+
                })
            }
        }

        impl core::error::Error for $name {}
    };
}

reasons! {
    /// Why a frame is refused.
    FrameError {
        /// The frame is shorter than an Ethernet header.
        TooShort = "too_short": "the frame is shorter than an Ethernet header",
        /// A VLAN tag ends behind the frame.
        TagCut = "tag_cut": "the frame ends inside a VLAN tag",
        /// More than two VLAN tags.
        TooManyTags = "too_many_tags": "the frame has more than two VLAN tags",
        /// An IP header ends behind the frame.
        IpCut = "ip_cut": "the frame ends inside the IP header",
        /// The EtherType and the IP version disagree.
        BadVersion = "bad_version": "the IP version is not what the EtherType says",
        /// An IPv4 header of less than 20 bytes, or longer than its packet.
        BadHeaderLength = "bad_header_length": "the IPv4 header length is less than 20 bytes or more than the packet",
        /// The IP length reaches behind the frame.
        LengthBeyondFrame = "length_beyond_frame": "the IP length reaches behind the end of the frame",
        /// An IPv6 extension header ends behind its packet.
        ExtensionCut = "extension_cut": "the packet ends inside an IPv6 extension header",
        /// More IPv6 extension headers than are read.
        TooManyExtensions = "too_many_extensions": "the packet has more than eight IPv6 extension headers",
        /// A TCP, UDP or SCTP header ends behind its packet.
        TransportCut = "transport_cut": "the packet ends inside the TCP, UDP or SCTP header",
        /// A TCP header of less than 20 bytes, or longer than its packet.
        BadTransportHeader = "bad_transport_header": "the TCP header length is less than 20 bytes or more than the packet",
        /// A UDP length that is less than its header or reaches behind its packet.
        BadTransportLength = "bad_transport_length": "the UDP length is less than 8 bytes or more than the packet",
    }
}

reasons! {
    /// Why a virtio-net header is refused.
    VnetError {
        /// The header is shorter than ten bytes.
        Short = "vnet_short": "the virtio-net header is cut off",
        /// A segmentation type that is unknown, or was never offered.
        UnknownGso = "vnet_unknown_gso": "the segmentation type is unknown or was never offered",
        /// The segmentation type and the frame's protocols disagree.
        WrongProtocol = "vnet_wrong_protocol": "the segmentation type is not that of the frame's protocols",
        /// `hdr_len` reaches behind the frame.
        HeaderBeyondFrame = "vnet_header_beyond_frame": "the header length reaches behind the end of the frame",
        /// A segment size of zero, or smaller than TCP ever uses.
        TinySegment = "vnet_tiny_segment": "the segment size is zero, or less than 8 bytes for TCP",
        /// More than 128 UDP segments.
        TooManySegments = "vnet_too_many_segments": "the frame would become more than 128 UDP datagrams",
        /// The checksum fields point where such a frame has no checksum.
        ChecksumPlace = "vnet_checksum_place": "the checksum fields point where such a frame has no checksum",
        /// Offloads on a fragment of an IP packet.
        Fragment = "vnet_fragment": "a fragment of an IP packet cannot be offloaded",
        /// Segmentation of a TCP SYN or RST.
        ControlSegment = "vnet_control_segment": "a TCP SYN or RST cannot be segmented",
        /// A length field that is not the frame's, on a frame to be segmented.
        LengthMismatch = "vnet_length_mismatch": "the IP or UDP length is not that of the frame to be segmented",
        /// Segmentation of a packet whose routing header has an unknown type, so that its last address is unknown.
        RoutingHeader = "vnet_routing_header": "a packet with this type of routing header cannot be segmented",
    }
}

reasons! {
    /// Why a pull of a frame fails. These guard against a frame that was changed meanwhile; they cannot happen when the
    /// offload was made for this frame and the engine asked for the pull.
    SegmentError {
        /// The pull reaches outside the frame's payload, or is empty though payload is left.
        OutOfRange = "segment_out_of_range": "the pull lies outside the frame's payload",
        /// The buffer is shorter than the result.
        NoRoom = "segment_no_room": "the buffer is shorter than the segment",
        /// The offload was not made for this frame.
        Inconsistent = "segment_inconsistent": "the offload does not fit the frame's headers",
        /// The segment is longer than an IP packet can be.
        TooLong = "segment_too_long": "the segment is longer than an IP packet can be",
    }
}

reasons! {
    /// Why a frame cannot go through a tunnel.
    EncapsulationError {
        /// The packet would be longer than the path's MTU. [`crate::overlay::too_big`] tells the sender.
        TooLong = "overlay_too_long": "with the overlay's headers the packet is longer than the path's MTU",
        /// The inner frame has no whole Ethernet header.
        FrameCut = "overlay_frame_cut": "the frame to be encapsulated is shorter than an Ethernet header",
        /// The caller's buffer does not hold the headers.
        NoRoom = "overlay_no_room": "the buffer has no room for the overlay's headers",
        /// Feedback that is empty or does not fit an option, or a path whose format has no options.
        Feedback = "overlay_feedback": "the feedback is empty or too long, or VXLAN, which has no options, was to carry it",
    }
}

reasons! {
    /// Why a packet that came for the overlay is dropped.
    DecapsulationError {
        /// The outer packet is a fragment: tunnel endpoints do not reassemble (RFC 7348 §4.3).
        OuterFragment = "overlay_outer_fragment": "the outer packet is a fragment",
        /// The overlay's header or its options end behind the datagram.
        HeaderCut = "overlay_header_cut": "the datagram ends inside the VXLAN or Geneve header",
        /// VXLAN without a valid VNI.
        NoVni = "overlay_no_vni": "the VXLAN header says that it has no VNI",
        /// Another version of Geneve.
        BadVersion = "overlay_bad_version": "the version of the Geneve header is not 0",
        /// An option that reaches behind the options.
        OptionBeyondEnd = "overlay_option_beyond_end": "a Geneve option reaches behind the end of the options",
        /// A critical option that is unknown.
        CriticalOption = "overlay_critical_option": "a Geneve option that must be understood is unknown",
        /// Feedback whose length does not fit its option or datagram.
        BadFeedback = "overlay_bad_feedback": "the length of the feedback does not fit its option or datagram",
        /// Geneve's payload is not an Ethernet frame.
        UnknownProtocol = "overlay_unknown_protocol": "Geneve's payload is not an Ethernet frame",
        /// A control message of an unknown kind.
        UnknownControl = "overlay_unknown_control": "the Geneve control message is unknown",
        /// The inner frame has no whole Ethernet header.
        InnerCut = "overlay_inner_cut": "the inner frame is shorter than an Ethernet header",
        /// The outer IPv4 header's checksum is wrong.
        HeaderChecksum = "overlay_header_checksum": "the checksum of the outer IPv4 header is wrong",
        /// The outer UDP checksum is wrong.
        UdpChecksum = "overlay_udp_checksum": "the checksum of the outer UDP header is wrong",
        /// No UDP checksum over IPv6, and no agreement of the hosts to leave it out (RFC 6936).
        NoUdpChecksum = "overlay_no_udp_checksum": "the outer UDP header over IPv6 has no checksum",
        /// The fabric marked a packet whose inner sender does not understand marks (RFC 6040).
        MarkLost = "overlay_mark_lost": "the outer packet is marked CE but the inner one is not ECN-capable",
    }
}

reasons! {
    /// Why a sender is not told that its packet was too big.
    TooBigError {
        /// The frame does not parse, or is not IP.
        NotIp = "too_big_not_ip": "the frame is no sound IP packet",
        /// An IPv4 packet that may be fragmented.
        MayFragment = "too_big_may_fragment": "the packet may be fragmented, so its sender expects no answer",
        /// A fragment after the first.
        LaterFragment = "too_big_later_fragment": "the packet is a fragment after the first",
        /// A source or destination address that is not a single host's.
        Address = "too_big_address": "the packet's source or destination is not the address of a single host",
        /// The packet is an ICMP error itself.
        IsError = "too_big_is_error": "the packet is an ICMP error itself",
        /// The MTU is below IPv6's minimum of 1280 bytes.
        BelowMinimum = "too_big_below_minimum": "the MTU is below 1280 bytes, the minimum of IPv6",
        /// The caller's buffer is too short.
        NoRoom = "too_big_no_room": "the buffer is shorter than the answer",
    }
}

reasons! {
    /// Why a tenant's frame is refused: it uses or claims an address that is not the tenant's.
    BindingError {
        /// The frame's source address is not the port's.
        SourceMac = "spoofed_mac": "the frame's source address is not an address of the tenant's port",
        /// The IP packet's source address is not the tenant's.
        SourceAddress = "spoofed_address": "the packet's source address is not the tenant's",
        /// ARP whose sender is not the tenant, or that is not for Ethernet and IPv4.
        Arp = "spoofed_arp": "the ARP packet names a sender that is not the tenant, or asks for another tenant's address as its own",
        /// Neighbour discovery whose source, target or link-layer address is not the tenant's, or that is cut off.
        Neighbour = "spoofed_neighbour": "the neighbour discovery message claims an address that is not the tenant's",
        /// Neighbour discovery in fragments (RFC 6980).
        NeighbourFragment = "fragmented_neighbour": "a neighbour discovery message must not be a fragment",
        /// A router advertisement from a tenant that is not a router, or any redirect.
        Router = "spoofed_router": "a router advertisement from a tenant that is not a router, or a redirect",
        /// IP or ARP behind an 802.2 SNAP header, where filters do not look.
        Snap = "hidden_in_snap": "IP or ARP is hidden behind an 802.2 SNAP header",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_in_order_and_named_apart() {
        let names: Vec<&str> = (FrameError::ALL.iter().map(|reason| reason.name()))
            .chain(VnetError::ALL.iter().map(|reason| reason.name()))
            .chain(SegmentError::ALL.iter().map(|reason| reason.name()))
            .chain(EncapsulationError::ALL.iter().map(|reason| reason.name()))
            .chain(DecapsulationError::ALL.iter().map(|reason| reason.name()))
            .chain(TooBigError::ALL.iter().map(|reason| reason.name()))
            .chain(BindingError::ALL.iter().map(|reason| reason.name()))
            .collect();
        let counts = [FrameError::COUNT, VnetError::COUNT, SegmentError::COUNT, EncapsulationError::COUNT];
        let counts: usize = counts.iter().sum();
        let others = DecapsulationError::COUNT + TooBigError::COUNT + BindingError::COUNT;
        assert_eq!(names.len(), counts + others);
        assert!(names.iter().enumerate().all(|(index, name)| !names[..index].contains(name)));
        assert!(FrameError::ALL.iter().enumerate().all(|(index, reason)| reason.index() == index));
        assert!(VnetError::ALL.iter().enumerate().all(|(index, reason)| reason.index() == index));
    }
}
