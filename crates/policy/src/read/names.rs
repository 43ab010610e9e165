//! Protocols and code points by name.

/// What a control group is written as.
pub(crate) const CGROUP: &str =
    "a whole number: the inode of its directory, as `stat -c %i /sys/fs/cgroup/shop.slice` prints it";

/// Protocols that have a name here; any other is written as its number.
pub(crate) const PROTOCOLS: [(&str, u8); 9] = [
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("icmpv6", 58),
    ("ospf", 89),
    ("sctp", 132),
];

/// DSCP code points by name (RFC 2474, 2597, 3246, 8622).
pub(crate) const CODE_POINTS: [(&str, u8); 22] = [
    ("cs0", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// A protocol by name or number.
pub(crate) fn protocol(text: &str) -> Option<u8> {
    number(text, &PROTOCOLS)
}

/// A code point by name or number.
pub(crate) fn code_point(text: &str) -> Option<u8> {
    number(text, &CODE_POINTS).filter(|dscp| *dscp < 64)
}

/// The name of a protocol, or its number.
#[must_use]
pub fn protocol_name(protocol: u8) -> String {
    name(protocol, &PROTOCOLS)
}

/// The name of a code point, or its number.
pub(crate) fn code_point_name(dscp: u8) -> String {
    name(dscp, &CODE_POINTS)
}

fn number(text: &str, names: &[(&str, u8)]) -> Option<u8> {
    let by_name = names.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, number)| *number);
    by_name.or_else(|| text.parse().ok())
}

fn name(wanted: u8, names: &[(&str, u8)]) -> String {
    let found = names.iter().find(|(_, number)| *number == wanted);
    found.map_or_else(|| wanted.to_string(), |(name, _)| (*name).to_owned())
}
