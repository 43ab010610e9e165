//! Workloads: the traffic of a scenario's tenants.
//!
//! Why: the live lab and a simulator must send the same traffic.
//! From: `docs/scenarios.md`, "workloads".
//! Not here: reading them (`read::workload`), sending (`lab`, `sim`).
//! Invariant: a workload ends with its run at the latest.

use plimsoll_policy::Mark;
use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use crate::flow_sizes::FlowSizes;
use crate::network::Congestion;

/// Traffic of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name in expectations and reports; unique among workloads and tenants.
    pub name: String,
    /// The tenant whose traffic it is.
    pub tenant: String,
    /// Its peer: one of [`crate::Scenario::destinations`], or another tenant.
    pub to: String,
    /// The tenant that its packets pass, both ways, if they do; it forwards them.
    pub through: Option<String>,
    /// Its kind.
    pub kind: Kind,
    /// When it begins, from the start of the run.
    pub start: Span,
    /// When it ends; at most the run's duration.
    pub stop: Span,
    /// DSCP of the tenant's packets.
    pub dscp: u8,
    /// Congestion control of its TCP; CUBIC without.
    pub congestion: Option<Congestion>,
    /// How its TCP differs from Linux's defaults, in virtual time.
    pub tcp: TcpSettings,
    /// Port of the server's side; unique in the scenario.
    pub port: u16,
    /// Whether requests come evenly, from a random moment on, and not at random moments.
    pub even: bool,
    /// Its family, where one key stands for many (`repeat`).
    pub family: Option<String>,
    /// Where its name stands.
    pub place: Mark,
}

/// Settings of both ends of a workload's connections; Linux's defaults where none is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpSettings {
    /// Whether segments are spread over the round trip; BBR's are in any case.
    pub pacing: bool,
    /// Segments of the first window.
    pub initial_window: Option<u32>,
    /// The least margin of the retransmission timeout over the smoothed round trip.
    pub min_rto: Option<Span>,
    /// Bytes that a sender's socket holds until they are acknowledged.
    pub send_buffer: Option<Bytes>,
    /// Bytes up to which the receiver's window grows.
    pub receive_buffer: Option<Bytes>,
}

/// Which side of a request-response workload the tenant is; the other side lives at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The tenant asks; requests pass the engine.
    Client,
    /// The tenant answers; responses pass the engine.
    Server,
}

/// The lengths of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyValueSizes {
    /// The lengths that the workload states.
    #[default]
    Fixed,
    /// Lengths as in Facebook's general-purpose pool ETC (Atikoglu et al., SIGMETRICS 2012): sizes from its fitted
    /// distributions, one write for thirty reads.
    Etc,
}

/// The rate at which packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Evenly, at this rate of whole frames.
    Bits(BitRate),
    /// Evenly, at this packet rate.
    Packets(PacketRate),
    /// As many as the sender can send.
    Flood,
}

/// How often flows arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlowPace {
    /// So often that the flows' bytes are this part of the rate, for each vNIC that sends.
    Load(f64, BitRate),
    /// This number of flows a second, of all vNICs together.
    Rate(u32),
}

/// The kinds of workloads.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// TCP flows that always have something to send.
    Bulk {
        /// Connections.
        flows: u32,
        /// Whether the server sends, and the tenant receives.
        reverse: bool,
    },
    /// UDP datagrams without answers.
    Udp {
        /// Payload of each.
        size: Bytes,
        /// How fast, all flows together.
        pace: Pace,
        /// Bytes of frames that are sent at once, then a pause follows; one datagram if zero.
        burst: Bytes,
        /// Source ports among which they alternate.
        flows: u32,
        /// Mean times of sending and of pausing, for a sender that takes turns.
        turns: Option<Turns>,
        /// Bytes of frames that its socket holds until they have left; no limit if zero.
        buffer: Bytes,
        /// Senders that its datagrams claim to come from, each datagram another one; its own address if zero.
        claims: u32,
        /// Whether its datagrams say that they are ECN-capable; no mark slows them down.
        ect: bool,
    },
    /// TCP connections that carry requests and their responses.
    RequestResponse {
        /// Which side the tenant is.
        role: Role,
        /// Bytes of a request.
        request: Bytes,
        /// Bytes of a response.
        response: Bytes,
        /// Connections; each has one request under way.
        connections: u32,
        /// Requests a second over all connections, Poisson (open loop: latency counts from when the request was
        /// due); `None`: the next follows the last response (closed loop).
        rate: Option<u32>,
    },
    /// UDP datagrams at Poisson moments, echoed by the destination; latency is the round trip.
    Probe {
        /// Payload of each.
        size: Bytes,
        /// Mean number a second.
        rate: u32,
    },
    /// TCP flows that send for a while and pause for a while, both exponentially distributed.
    OnOff {
        /// Connections.
        flows: u32,
        /// Mean time of sending.
        on: Span,
        /// Mean pause.
        off: Span,
    },
    /// The shuffle of a Spark job: in each round each flow sends one block; the next round begins when all have
    /// arrived and the pause is over. A round is a request whose latency is its completion time.
    Shuffle {
        /// Connections.
        flows: u32,
        /// Bytes that each sends in a round.
        block: Bytes,
        /// Computation between rounds.
        pause: Span,
    },
    /// TCP flows that arrive at random, whatever became of those before; each has a size of its own and a new connection, from one
    /// of the tenant's vNICs to one of its peer's. In virtual time.
    Flows {
        /// How long they are.
        sizes: FlowSizes,
        /// How often they arrive, Poisson.
        pace: FlowPace,
        /// Whether a connection begins with a handshake; without one the first data leaves at once.
        handshake: bool,
    },
    /// Incast: the peer asks several of the tenant's vNICs at once, and all answer at once. What is measured is the time until
    /// the last answer has arrived. In virtual time.
    Incast {
        /// Connections that answer each request.
        senders: u32,
        /// Bytes of the request to each of them.
        request: Bytes,
        /// Bytes that each of them answers.
        size: Bytes,
        /// Requests a second, Poisson; `None`: the next follows the last answer.
        rate: Option<u32>,
        /// Pause between two requests, without a rate.
        pause: Span,
    },
    /// The real `iperf3`: client in the tenant, server at the destination.
    Iperf3 {
        /// Parallel connections (`-P`).
        flows: u32,
        /// Send UDP at this rate for each flow (`-u -b`) in place of TCP.
        udp: Option<BitRate>,
    },
    /// The real `memcached` in the tenant (role server) or at the destination (role client); the requests are
    /// ours: `get` of values set beforehand.
    Memcached {
        /// Which side the tenant is.
        role: Role,
        /// Bytes of a key.
        key: Bytes,
        /// Bytes of a value.
        value: Bytes,
        /// Whether keys and values are as long as those say, or as in a known mix.
        sizes: KeyValueSizes,
        /// Connections; each has one request under way.
        connections: u32,
        /// Requests a second, as for request-response.
        rate: Option<u32>,
        /// UDP in place of TCP; live only.
        udp: bool,
    },
    /// The real `sockperf under-load`: client in the tenant, server at the destination; latency is what it
    /// reports for each packet (half of the round trip).
    Sockperf {
        /// Message size.
        size: Bytes,
        /// Messages a second.
        rate: u32,
        /// TCP in place of UDP.
        tcp: bool,
    },
}

impl Kind {
    /// The kind's name in a file.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Bulk { .. } => "bulk",
            Self::Udp { .. } => "udp",
            Self::RequestResponse { .. } => "request_response",
            Self::Probe { .. } => "probe",
            Self::OnOff { .. } => "on_off",
            Self::Shuffle { .. } => "shuffle",
            Self::Flows { .. } => "flows",
            Self::Incast { .. } => "incast",
            Self::Iperf3 { .. } => "iperf3",
            Self::Memcached { .. } => "memcached",
            Self::Sockperf { .. } => "sockperf",
        }
    }

    /// Whether it travels by TCP.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        match self {
            Self::Udp { .. } | Self::Probe { .. } | Self::Iperf3 { udp: Some(_), .. } => false,
            Self::Sockperf { tcp, .. } => *tcp,
            Self::Memcached { udp, .. } => !*udp,
            _ => true,
        }
    }

    /// Whether it gives latency samples.
    #[must_use]
    pub const fn has_latency(&self) -> bool {
        matches!(
            self,
            Self::RequestResponse { .. }
                | Self::Probe { .. }
                | Self::Shuffle { .. }
                | Self::Incast { .. }
                | Self::Memcached { .. }
                | Self::Sockperf { .. }
        )
    }

    /// Whether it runs in virtual time only.
    #[must_use]
    pub const fn is_virtual(&self) -> bool {
        matches!(self, Self::Flows { .. } | Self::Incast { .. })
    }

    /// Program that must be installed for it.
    #[must_use]
    pub const fn program(&self) -> Option<&'static str> {
        match self {
            Self::Iperf3 { .. } => Some("iperf3"),
            Self::Memcached { .. } => Some("memcached"),
            Self::Sockperf { .. } => Some("sockperf"),
            _ => None,
        }
    }
}

/// Mean times of a sender that sends and pauses in turn, both exponentially distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Mean time of sending.
    pub on: Span,
    /// Mean pause.
    pub off: Span,
}
