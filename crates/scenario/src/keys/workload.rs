//! The keys of workloads, kind by kind.

use plimsoll_document::{Mapping, Shape, mapping};

use super::{RATE, SIZE, TIME};
use crate::network::Congestion;

use Shape::{Either, Flag, Map, Scalar, Whole, Words};

const FLOWS: Shape = Whole(1, 4_096);
const CLIENT_OR_SERVER: Shape = Words(&[("client", ""), ("server", "")]);
const ARRIVALS: Shape = Words(&[("random", ""), ("even", "")]);
const COUNT: Shape = Whole(1, u32::MAX as u64);

/// The most segments of a first window.
pub(crate) const MOST_WINDOW: u32 = 1_000;

/// The kinds of workloads, each with its keys.
pub(crate) static KINDS: [(&str, &Mapping); 11] = [
    ("bulk", &BULK),
    ("udp", &UDP),
    ("request_response", &REQUEST_RESPONSE),
    ("probe", &PROBE),
    ("on_off", &ON_OFF),
    ("shuffle", &SHUFFLE),
    ("flows", &FLOWS_THAT_ARRIVE),
    ("incast", &INCAST),
    ("iperf3", &IPERF3),
    ("memcached", &MEMCACHED),
    ("sockperf", &SOCKPERF),
];
/// One alternative for each kind, so that an editor offers the keys of the kind that is written.
pub(super) const WORKLOAD_OF_A_KIND: Shape = Either(&[
    Map(&BULK),
    Map(&UDP),
    Map(&REQUEST_RESPONSE),
    Map(&PROBE),
    Map(&ON_OFF),
    Map(&SHUFFLE),
    Map(&FLOWS_THAT_ARRIVE),
    Map(&INCAST),
    Map(&IPERF3),
    Map(&MEMCACHED),
    Map(&SOCKPERF),
]);

mapping! {
    /// A workload whose kind is not known: the keys of all kinds.
    pub(crate) static WORKLOAD = "Workload"
        + COMMON + REQUESTS + BULK + UDP + REQUEST_RESPONSE + PROBE + ON_OFF + SHUFFLE
        + FLOWS_THAT_ARRIVE + INCAST + IPERF3 + MEMCACHED + SOCKPERF {}

    pub(crate) static COMMON = "CommonOfWorkloads" {
        /// The tenant whose traffic it is.
        tenant = "shop": Scalar,
        /// One of `destinations`, or another tenant.
        to: Scalar,
        /// A tenant with `forwards: true` that its packets pass, both ways.
        through: Scalar,
        /// Time from the start of the run.
        start: TIME,
        /// Time from the start of the run.
        stop: TIME,
        /// DSCP of its packets.
        dscp: Whole(0, 63),
        /// Port of the server's side.
        port: Whole(1, 32_767),
        /// Congestion control of its connections.
        congestion: Shape::Listed(|| Congestion::NAMES.map(|(name, _)| name).to_vec()),
        /// How its TCP differs from Linux's defaults, in virtual time.
        tcp: Map(&TCP),
    }

    pub(crate) static TCP = "Tcp" {
        /// Whether segments are spread over the round trip.
        pacing: Flag,
        /// Segments of the first window.
        initial_window: Whole(1, MOST_WINDOW as u64),
        /// The least margin of the retransmission timeout over the round trip.
        min_rto: TIME,
        /// The sender's socket buffer.
        send_buffer: SIZE,
        /// Size up to which the receiver's window grows.
        receive_buffer: SIZE,
    }

    pub(crate) static REQUESTS = "Requests" {
        /// The tenant's side.
        role: CLIENT_OR_SERVER,
        /// Number of connections.
        connections: FLOWS,
        /// Requests a second; when absent, each follows the last response.
        rate: COUNT,
        /// Moments at which requests are made.
        arrivals: ARRIVALS,
    }

    pub(crate) static BULK = "Bulk" + COMMON {
        /// TCP connections that always have data to send.
        kind = "bulk": Words(&[("bulk", "")]),
        /// Number of connections.
        flows: FLOWS,
        /// Whether the server sends, and the tenant receives.
        reverse: Flag,
    }

    pub(crate) static UDP = "Udp" + COMMON {
        /// UDP at a given rate.
        kind = "udp": Words(&[("udp", "")]),
        /// Payload of a datagram.
        size: SIZE,
        /// `line`, `flood`, `5Mbps` of whole frames or `2kpps`.
        rate = "5Mbps": Scalar,
        /// Bytes that are sent at a time.
        burst: SIZE,
        /// Number of flows.
        flows: FLOWS,
        /// How long it sends.
        on: TIME,
        /// How long it then pauses.
        off: TIME,
        /// The sender's socket buffer.
        buffer: SIZE,
        /// Senders that its datagrams claim to come from.
        claims: COUNT,
        /// Whether its datagrams say that they are ECN-capable.
        ect: Flag,
    }

    pub(crate) static REQUEST_RESPONSE = "RequestResponse" + COMMON + REQUESTS {
        /// Requests and responses over TCP.
        kind = "request_response": Words(&[("request_response", "")]),
        /// Size of a request.
        request: SIZE,
        /// Size of a response.
        response: SIZE,
    }

    pub(crate) static PROBE = "Probe" + COMMON {
        /// Echoed datagrams that measure latency.
        kind = "probe": Words(&[("probe", "")]),
        /// Payload of a datagram.
        size: SIZE,
        /// Datagrams a second, at random moments.
        rate: COUNT,
    }

    pub(crate) static ON_OFF = "OnOff" + COMMON {
        /// TCP connections that send and pause in turn.
        kind = "on_off": Words(&[("on_off", "")]),
        /// Number of connections.
        flows: FLOWS,
        /// How long it sends.
        on: TIME,
        /// How long it then pauses.
        off: TIME,
    }

    pub(crate) static SHUFFLE = "Shuffle" + COMMON {
        /// Blocks to every other host.
        kind = "shuffle": Words(&[("shuffle", "")]),
        /// Number of connections to each host.
        flows: FLOWS,
        /// Size of a block.
        block: SIZE,
        /// Pause after a block.
        pause: TIME,
    }

    pub(crate) static FLOWS_THAT_ARRIVE = "ArrivingFlows" + COMMON {
        /// TCP flows that arrive at random, in virtual time.
        kind = "flows": Words(&[("flows", "")]),
        /// A published distribution, a size for all, or a file with a distribution.
        sizes = "web_search": Scalar,
        /// Part of `link` that the flows' bytes are, for each vNIC that sends.
        load: Shape::Number(0.001, 2.0),
        /// Rate of the link that `load` is a part of.
        link: RATE,
        /// Flows a second of all vNICs together, in place of `load`.
        rate: COUNT,
        /// Whether each connection begins with a handshake.
        handshake: Flag,
    }

    pub(crate) static INCAST = "Incast" + COMMON {
        /// Many that answer a request at once, in virtual time.
        kind = "incast": Words(&[("incast", "")]),
        /// Connections that answer each request.
        senders = "8": FLOWS,
        /// Bytes that each answers.
        size: SIZE,
        /// Bytes of the request to each.
        request: SIZE,
        /// Requests a second, at random moments; when absent, the next follows the last answer.
        rate: COUNT,
        /// Pause before the next request, without `rate`.
        pause: TIME,
    }

    pub(crate) static IPERF3 = "Iperf3" + COMMON {
        /// The traffic of `iperf3`.
        kind = "iperf3": Words(&[("iperf3", "")]),
        /// Number of flows.
        flows: FLOWS,
        /// UDP at this rate for each flow.
        udp: RATE,
    }

    pub(crate) static MEMCACHED = "Memcached" + COMMON + REQUESTS {
        /// The traffic of memcached.
        kind = "memcached": Words(&[("memcached", "")]),
        /// Size of a key.
        key: SIZE,
        /// Size of a value.
        value: SIZE,
        /// Sizes as given, or as in a known mix.
        sizes: Words(&[("fixed", ""), ("etc", "")]),
        /// Protocol of its requests, live; TCP in virtual time.
        protocol: Words(&[("tcp", ""), ("udp", "")]),
    }

    pub(crate) static SOCKPERF = "Sockperf" + COMMON {
        /// The traffic of `sockperf`.
        kind = "sockperf": Words(&[("sockperf", "")]),
        /// Payload of a message.
        size: SIZE,
        /// Messages a second, at random moments.
        rate: COUNT,
        /// Protocol of its messages.
        protocol: Words(&[("udp", ""), ("tcp", "")]),
    }
}
