//! The messages between client and daemon on the socket: set-up, flow queues and rules.
//!
//! Why: what happens once for each flow need not be fast, but must be answered.
//! From: `docs/vnic.md`, "The socket": messages of 64 bytes, little-endian, one to a packet of a SOCK_SEQPACKET socket.
//! Not here: sending them (`socket`), and what they do (`ports`, the daemon).
//! Invariant: any bytes are read as a message or refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::layout::VERSION;
pub use crate::rules::FlowSpec;
use crate::rules::{Rule, Scope};

/// Bytes of a message.
pub const LEN: usize = 64;

/// Why no flow queue was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefusal {
    /// The tenant's flow queues are all open.
    #[error("the tenant has all the flow queues that it may have; close one, or send through queue 0")]
    NoQueue,
    /// The daemon does not let this client classify any more.
    #[error(
        "the daemon classifies this client's packets itself, as they were not what their queues were opened for; send through queue 0"
    )]
    Forced,
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The client's first, with the version that it speaks.
    Hello(u32),
    /// The daemon's answer, with the region's length; three descriptors come with it: region, kick, wake.
    Welcome(u64),
    /// The daemon's answer to a client that is not the first: another client is connected.
    Occupied,
    /// The daemon's answer to a client of another version: the daemon speaks this one.
    OtherVersion(u32),
    /// The client asks for a flow queue for the packets of a flow.
    Open(FlowSpec),
    /// The daemon's answer: the number of the flow queue.
    Opened(u32),
    /// The daemon's answer when it opens no flow queue.
    NotOpened(OpenRefusal),
    /// The client needs a flow queue no longer.
    Close(u32),
    /// The client asks which flow queue a flow's packets go to.
    Ask(FlowSpec),
    /// The daemon's answer; to a client that has asked once, the daemon also sends rules unasked.
    Rule(Rule),
}

const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const OCCUPIED: u32 = 3;
const OTHER_VERSION: u32 = 4;
const OPEN: u32 = 5;
const OPENED: u32 = 6;
const NOT_OPENED: u32 = 7;
const CLOSE: u32 = 8;
const ASK: u32 = 9;
const RULE: u32 = 10;

/// Where a flow's fields lie in an `Open`.
mod flow {
    pub(super) const FAMILY: usize = 8;
    pub(super) const PRESENT: usize = 9;
    pub(super) const PROTOCOL: usize = 10;
    pub(super) const DSCP: usize = 11;
    pub(super) const VLAN: usize = 12;
    pub(super) const SOURCE_PORT: usize = 14;
    pub(super) const DESTINATION_PORT: usize = 16;
    pub(super) const SOURCE: usize = 24;
    pub(super) const DESTINATION: usize = 40;
    pub(super) const HAS_PROTOCOL: u8 = 1;
    pub(super) const HAS_PORTS: u8 = 2;
}

/// Where the rest of a `Rule` lies, between and behind a flow's fields.
mod rule {
    pub(super) const QUEUE: usize = 18;
    pub(super) const GENERATION: usize = 20;
    pub(super) const SCOPE: usize = 56;
    pub(super) const ASKED: usize = 61;
}

impl Message {
    /// The bytes that are sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (kind, value) = match self {
            Self::Hello(version) => (HELLO, version.into()),
            Self::Welcome(len) => (WELCOME, len),
            Self::Occupied => (OCCUPIED, 0),
            Self::OtherVersion(version) => (OTHER_VERSION, version.into()),
            Self::Open(_) => (OPEN, 0),
            Self::Opened(queue) => (OPENED, queue.into()),
            Self::NotOpened(OpenRefusal::NoQueue) => (NOT_OPENED, 1),
            Self::NotOpened(OpenRefusal::Forced) => (NOT_OPENED, 2),
            Self::Close(queue) => (CLOSE, queue.into()),
            Self::Ask(_) => (ASK, 0),
            Self::Rule(_) => (RULE, 0),
        };
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..16].copy_from_slice(&value.to_le_bytes());
        match self {
            Self::Open(spec) | Self::Ask(spec) => write_flow(&spec, &mut bytes),
            Self::Rule(rule) => write_rule(&rule, &mut bytes),
            _ => {}
        }
        bytes
    }

    /// Reads a message from its bytes; `None` for bytes that are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let kind = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let [value, _] = bytes[8..24].as_chunks::<8>().0 else { return None };
        let value = u64::from_le_bytes(*value);
        let short = || u32::try_from(value).ok();
        Some(match kind {
            HELLO => Self::Hello(short()?),
            WELCOME => Self::Welcome(value),
            OCCUPIED => Self::Occupied,
            OTHER_VERSION => Self::OtherVersion(short()?),
            OPEN => Self::Open(read_flow(bytes)?),
            OPENED => Self::Opened(short()?),
            NOT_OPENED if value == 2 => Self::NotOpened(OpenRefusal::Forced),
            NOT_OPENED => Self::NotOpened(OpenRefusal::NoQueue),
            CLOSE => Self::Close(short()?),
            ASK => Self::Ask(read_flow(bytes)?),
            RULE => Self::Rule(read_rule(bytes)?),
            _ => return None,
        })
    }

    /// The client's first message.
    #[must_use]
    pub fn hello() -> Self {
        Self::Hello(VERSION)
    }
}

fn write_flow(spec: &FlowSpec, bytes: &mut [u8; LEN]) {
    bytes[flow::FAMILY] = match spec.addresses {
        None => 0,
        Some((IpAddr::V4(_), _)) => 4,
        Some((IpAddr::V6(_), _)) => 6,
    };
    bytes[flow::PRESENT] = if spec.protocol.is_some() { flow::HAS_PROTOCOL } else { 0 }
        | if spec.ports.is_some() { flow::HAS_PORTS } else { 0 };
    bytes[flow::PROTOCOL] = spec.protocol.unwrap_or(0);
    bytes[flow::DSCP] = spec.dscp;
    let (source, destination) = spec.ports.unwrap_or_default();
    let shorts =
        [(flow::VLAN, spec.vlan), (flow::SOURCE_PORT, source), (flow::DESTINATION_PORT, destination)];
    for (at, value) in shorts {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    if let Some((source, destination)) = spec.addresses {
        for (at, address) in [(flow::SOURCE, source), (flow::DESTINATION, destination)] {
            match address {
                IpAddr::V4(address) => bytes[at..at + 4].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
    }
}

fn write_rule(rule: &Rule, bytes: &mut [u8; LEN]) {
    write_flow(&rule.flow, bytes);
    // A region has at most 4,096 flow queues.
    let queue = rule.queue as u16;
    bytes[rule::QUEUE..rule::QUEUE + 2].copy_from_slice(&queue.to_le_bytes());
    bytes[rule::GENERATION..rule::GENERATION + 4].copy_from_slice(&rule.generation.to_le_bytes());
    bytes[rule::SCOPE..rule::SCOPE + 5].copy_from_slice(&rule.scope.to_bytes());
    bytes[rule::ASKED] = rule.asked.into();
}

fn read_rule(bytes: &[u8; LEN]) -> Option<Rule> {
    Some(Rule {
        flow: read_flow(bytes)?,
        scope: Scope::from_bytes(bytes[rule::SCOPE..rule::SCOPE + 5].try_into().ok()?),
        queue: u16::from_le_bytes([bytes[rule::QUEUE], bytes[rule::QUEUE + 1]]).into(),
        generation: u32::from_le_bytes(bytes[rule::GENERATION..rule::GENERATION + 4].try_into().ok()?),
        asked: bytes[rule::ASKED] != 0,
    })
}

fn read_flow(bytes: &[u8; LEN]) -> Option<FlowSpec> {
    let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let four = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 4] = bytes[at..at + 4].try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    };
    let six = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = bytes[at..at + 16].try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    };
    let addresses = match bytes[flow::FAMILY] {
        0 => None,
        4 => Some((four(flow::SOURCE)?, four(flow::DESTINATION)?)),
        6 => Some((six(flow::SOURCE)?, six(flow::DESTINATION)?)),
        _ => return None,
    };
    let has = |bit: u8| bytes[flow::PRESENT] & bit != 0;
    Some(FlowSpec {
        addresses,
        protocol: has(flow::HAS_PROTOCOL).then_some(bytes[flow::PROTOCOL]),
        ports: has(flow::HAS_PORTS).then(|| (short(flow::SOURCE_PORT), short(flow::DESTINATION_PORT))),
        dscp: bytes[flow::DSCP],
        vlan: short(flow::VLAN),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let four = FlowSpec {
            addresses: Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
            protocol: Some(17),
            ports: Some((5_000, 53)),
            dscp: 46,
            vlan: 0,
        };
        let six = FlowSpec {
            addresses: Some(([0xfd; 16].into(), [0xfe; 16].into())),
            vlan: 4_000,
            ..FlowSpec::default()
        };
        for message in [
            Message::hello(),
            Message::Welcome(1 << 33),
            Message::Occupied,
            Message::OtherVersion(2),
            Message::Open(four),
            Message::Open(six),
            Message::Open(FlowSpec::default()),
            Message::Opened(255),
            Message::NotOpened(OpenRefusal::NoQueue),
            Message::NotOpened(OpenRefusal::Forced),
            Message::Close(7),
            Message::Ask(four),
            Message::Rule(Rule { flow: four, scope: Scope::EXACT, queue: 4_095, generation: 7, asked: true }),
            Message::Rule(Rule { flow: six, scope: Scope::NOTHING, queue: 0, generation: 0, asked: false }),
        ] {
            assert_eq!(Message::from_bytes(&message.to_bytes()), Some(message));
        }
    }

    #[test]
    fn other_bytes_are_no_message() {
        assert_eq!(Message::from_bytes(&[]), None);
        assert_eq!(Message::from_bytes(&[1; LEN - 1]), None);
        assert_eq!(Message::from_bytes(&[0xff; LEN]), None);
        let mut odd = Message::Open(FlowSpec::default()).to_bytes();
        odd[flow::FAMILY] = 5;
        assert_eq!(Message::from_bytes(&odd), None);
    }
}
