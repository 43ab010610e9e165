//! The keys of policy files, mapping by mapping.
//!
//! Why: one table says which keys the reader takes, and what an operator's editor offers and checks.
//! From: `docs/policy.md`.
//! Not here: reading the values (`read`), and the shape of the tables (the crate `document`).
//! Invariant: a key is read if and only if it stands here; `tests/it/documents.rs` tries each.

use plimsoll_document::{Shape, mapping};
use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use crate::press::Press;
use crate::threads::MOST_THREADS;
use Shape::{Any, Either, Flag, List, Map, Named, OneOrMore, Optional, Part, Text, Whole, Words};

/// The schema of the operator's file.
#[must_use]
pub fn schema() -> serde_json::Value {
    HOST_FILE.schema("Plimsoll policy")
}

/// The schema of a tenant's or an application's file.
#[must_use]
pub fn sub_schema() -> serde_json::Value {
    SUB_FILE.schema("Plimsoll sub-policy of a tenant or an application")
}

/// The schema of a file of the folder that `include` names.
#[must_use]
pub fn included_schema() -> serde_json::Value {
    INCLUDED_FILE.schema("Tenants that a Plimsoll policy includes")
}

/// Largest weight: a share finer than 1 in 65,535 is nothing that a link could show.
pub const MAX_WEIGHT: u32 = 65_535;
/// Flow queues that an engine may have: a million classes have one each.
pub(crate) const MOST_QUEUES: u32 = 1 << 20;
/// Cores that a watched thing may use.
pub(crate) const MOST_CORES: u32 = 1_024;
/// The greatest process number of Linux (`PID_MAX_LIMIT`).
pub(crate) const MOST_PID: u32 = 1 << 22;
/// Descriptors that an engine may have.
pub(crate) const MOST_DESCRIPTORS: u32 = 1 << 24;

const RATE: Shape = Shape::Unit(Shape::unit::<BitRate>);
const PACKET_RATE: Shape = Shape::Unit(Shape::unit::<PacketRate>);
const SIZE: Shape = Shape::Unit(Shape::unit::<Bytes>);
const TIME: Shape = Shape::Unit(Shape::unit::<Span>);
/// One name, or a list of them.
pub const NAMES: Shape = OneOrMore(&Text);
const INTERFACE: Shape = Shape::Pattern("^[^/:\\s]{1,15}$");
/// A word or a number.
const SCALAR: Shape = Either(&[Text, NUMBER]);
const SCALARS: Shape = OneOrMore(&SCALAR);
const NUMBER: Shape = Whole(0, u32::MAX as u64);
const NUMBERS: Shape = OneOrMore(&NUMBER);
/// Children with weights, or a list of children.
const CHILDREN: Shape = Either(&[Named(&Optional(&Whole(1, MAX_WEIGHT as u64))), NAMES]);
/// The value of `policy`.
pub const CLASSES: Shape = Named(&Map(&CLASS));
/// The value of `limits`.
pub const LIMITS: Shape = Named(&Map(&LIMIT));
/// The value of a tenant's `ingress`.
pub const INGRESS_KEYS: Shape = Map(&INGRESS);
/// The value of a tenant's `interface`.
pub(crate) const TENANT_INTERFACE: Shape = Map(&INTERFACE_KEYS_OF_TENANT);
/// The value of a tenant's `delay`.
pub const DELAY: Shape = Shape::Keyed("^p[0-9]{1,2}(\\.[0-9]{1,3})?$", "p99", &TIME);
/// The value of `descriptors`.
pub const DESCRIPTORS: Shape = Whole(1, MOST_DESCRIPTORS as u64);
/// The value of a tenant's `program`.
pub const PROGRAM_KEYS: Shape = Map(&PROGRAM);
/// The value of `engine`.
pub const ENGINE_KEYS: Shape = Map(&ENGINE);
/// The value of `backpressure`.
pub const BACKPRESSURE_KEYS: Shape = Map(&BACKPRESSURE);
/// The value of a tenant's `ecn`.
pub const ECN_KEYS: Shape = ECN;
const QUEUES: Shape = Named(&Map(&QUEUE));
const PORT: Shape = Either(&[Words(&[("memory", "Frames in memory.")]), Shape::OneOf(&PORTS)]);
/// The value of `flows`.
pub const FLOWS: Shape = Either(&[
    Words(&[
        ("fifo", "By arrival."),
        ("drr", "In turns."),
        ("fq", "In turns, flows that have just begun first; the queue of each is kept short."),
        ("lstf", "By slack."),
        ("edf", "By deadline."),
    ]),
    Shape::OneOf(&FLOWS_LONG),
]);
/// The value of `flows` in `engine`: the orders that need nothing more than their name.
const DEFAULT_FLOWS: Shape =
    Words(&[("fifo", "By arrival."), ("drr", "In turns."), ("fq", "In turns, queues kept short.")]);
const AMONG: Shape = Words(&[("drr", ""), ("priority", "")]);

const COMPLETIONS: Shape = Words(&[
    ("ooo", "Each when its packet has left or was dropped, in any order."),
    (
        "in_order",
        "Each when its packet has left or was dropped, and never before one that was posted earlier.",
    ),
    ("early", "Each when it is taken."),
]);
const INGRESS_ORDER: Shape = Words(&[
    ("fair", "First the frames of the tenant that has had least of its part of the core."),
    ("shared", "In the order of arrival."),
]);
const BINDING: Shape = Words(&[
    ("strict", "It sends from its addresses and claims them, and no others."),
    ("router", "It also forwards packets of others and advertises itself, but claims no other addresses."),
    ("off", "It may send from any address."),
]);
const ECN: Shape = Either(&[
    Words(&[
        ("allowed", "Backpressure may change them, where its mode does."),
        ("untouched", "They are never changed: a flow of the tenant is metered instead."),
        ("mediated", "They may change, and this host takes the part of an end that does not use ECN."),
    ]),
    Map(&ECN_LONG),
]);
const MAP_ECN: Shape = Words(&[
    ("allowed", "It may, where its mode does."),
    ("untouched", "It never does: a flow of the tenant is metered instead."),
]);
const WATCHED: Shape = Either(&[Words(&[("engine", "The engine's own core.")]), Shape::OneOf(&WATCH)]);
const CORES: Shape = Shape::Number(0.001, MOST_CORES as f64);
const PRESS_MODE: Shape = Words(&[
    ("mark", "CE is set on one of several packets, where the sender supports ECN."),
    ("meter", "A token bucket at the source's host; no packet is changed."),
    ("mark_and_meter", "Both: CE where the sender supports ECN, and a token bucket at its host."),
    ("drop", "Packets beyond the rate are dropped at this host."),
    ("window", "The receive window in its acknowledgements is lowered."),
]);
const PRESS_RATE: Shape = Either(&[Words(&[("auto", "What brings the load below `release`.")]), RATE]);
const SEALED: Shape =
    Either(&[Flag, Words(&[("accept", "While hosts change over: sealed frames and others are taken.")])]);
const VIA: Shape = Words(&[
    ("datapath", "With tenants' frames, or in frames of its own."),
    ("channel", "Between the hosts' control channels."),
]);
const CONTROL: Shape =
    Words(&[("full", "Bits and packets a second."), ("bandwidth", "Bits a second only, for comparison.")]);
const IDLE: Shape = Words(&[
    ("reserved", "It stays free for the tenant."),
    ("lent", "The others get it until the tenant wants it."),
]);

mapping! {
    /// The operator's file: which tenants share the link, and how.
    pub static HOST_FILE = "HostFile" {
        /// Where packets leave, and how fast.
        uplink = "{port: {af_xdp: eth0}, rate: 10Gbps}": Map(&UPLINK),
        /// Resources of the engine.
        engine: ENGINE_KEYS,
        /// Where the daemon answers.
        api: Map(&API),
        /// The tenants, each with a port of its own.
        tenants: Named(&Map(&TENANT)),
        /// A folder: every file `*.yaml` there states further tenants.
        include: Text,
        /// The overlay on which tenants reach those of other hosts.
        overlay: Map(&OVERLAY),
        /// Flows that send most packets: whose are counted, from which rate on they are listed, and what is done about them.
        backpressure: BACKPRESSURE_KEYS,
        /// Rates that hold wherever a class sends through them.
        limits: LIMITS,
        /// The classes, from `root` down. Without it the tenants share the link by weight.
        policy: CLASSES,
    }

    /// A file of the folder that `include` names.
    pub static INCLUDED_FILE = "IncludedFile" {
        /// The tenants, each with a port of its own.
        tenants = "{shop: {port: {af_packet: veth7}}}": Named(&Map(&TENANT)),
    }

    /// The part of the policy below a tenant's or an application's place.
    pub static SUB_FILE = "SubFile" {
        /// Rates that hold wherever a class of this file sends through them.
        limits: LIMITS,
        /// The classes, from `root` down.
        policy: CLASSES,
    }

    pub(crate) static UPLINK = "Uplink" {
        /// The device.
        port = "{af_xdp: eth0}": PORT,
        /// The device that takes over while `port` has no carrier.
        standby: PORT,
        /// How long `port` must carry frames again, without a break, before it takes back from `standby`, 0 to 10min.
        hold_off: TIME,
        /// Rate of the link.
        rate = "10Gbps": RATE,
        /// Bytes that each frame costs beyond its own: 20B for preamble and gap, 24B with the check sequence.
        overhead: SIZE,
        /// Largest IP packet.
        mtu: Whole(68, 9_600),
        /// How long the engine's thread may sleep while packets wait for a rate, 0 to 10ms; more finely where the policy asks for it.
        grain: TIME,
    }

    /// Where packets enter and leave.
    pub(crate) static PORTS = "Port" {
        /// A network interface, through AF_XDP.
        af_xdp: INTERFACE,
        /// A network interface, through AF_PACKET.
        af_packet: INTERFACE,
        /// A TAP that the daemon makes.
        tap: Map(&TAP),
        /// A virtual machine, through vhost-user: the Unix socket that its front end (QEMU, say) connects to, or more than that.
        vhost_user: Either(&[Text, Map(&VHOST_USER)]),
        /// A client process, through shared memory: the Unix socket that it connects to.
        vnic: Text,
        /// Frames from and into files.
        pcap: Map(&PCAP),
        /// Frames in memory.
        memory: Any,
    }

    pub(crate) static VHOST_USER = "VhostUserPort" {
        /// The Unix socket that the front end connects to.
        socket = "/run/plimsoll/vm.sock": Text,
        /// When and in which order the machine gets its descriptors back.
        completions: COMPLETIONS,
        /// The hardware address of its interface, which no other port may have: `02:00:00:00:0a:01`.
        mac: Text,
    }

    pub(crate) static TAP = "Tap" {
        /// A network namespace by name or path; the daemon's own when absent.
        netns: Text,
        /// The interface as its owner sees it.
        name = "eth0": INTERFACE,
    }

    pub(crate) static PCAP = "Pcap" {
        /// Frames that come in.
        read: Text,
        /// Frames that go out.
        write: Text,
    }

    pub(crate) static ENGINE = "Engine" {
        /// Core to pin the engine's thread to.
        cpu: NUMBER,
        /// Threads that share the uplink, each with an engine of its own.
        threads: Whole(1, MOST_THREADS as u64),
        /// Never sleep.
        busy_poll: Flag,
        /// Flow queues in all.
        queues: Whole(1, MOST_QUEUES as u64),
        /// Descriptors of one flow queue; a power of two.
        ring: Whole(1, 16_384),
        /// Descriptors in all.
        descriptors: DESCRIPTORS,
        /// Deepest tree that is accepted.
        max_depth: Whole(1, 64),
        /// Smallest frame at which the engine must keep up with the link; the largest frame when absent.
        line_rate_frame: SIZE,
        /// The order of flows in every leaf class that states none; `fq` when absent.
        flows: DEFAULT_FLOWS,
        /// A vNIC's client may classify its packets itself. The daemon checks one of every `verify` such packets; 0: none.
        verify: NUMBER,
        /// Slows the engine down on purpose, for comparisons.
        experiment: Map(&EXPERIMENT),
    }

    pub(crate) static EXPERIMENT = "Experiment" {
        /// CPU time that fetching a frame from the uplink takes at least.
        drain: TIME,
        /// CPU time that delivering a fetched frame takes at least.
        cost: TIME,
        /// Part of the time, in thousandths, that fetching may take while fetched frames wait.
        drain_share: Whole(1, 999),
        /// The order in which tenants' frames are delivered.
        ingress: INGRESS_ORDER,
        /// Frames of full length that the kernel holds for an AF_PACKET uplink, approximately.
        ring: Whole(1, 65_536),
        /// Frames that wait for each tenant.
        slots: Whole(1, 65_536),
        /// Whether tenants have descriptors of their own.
        accounting: Flag,
        /// Whether tenants have shares of coprocessors.
        limiter: Flag,
    }

    pub(crate) static API = "Api" {
        /// Unix socket of the HTTP API.
        socket: Text,
        /// Address of the Prometheus endpoint.
        metrics: Text,
    }

    pub(crate) static TENANT = "Tenant" + SENDER + FLOW_ORDER {
        /// Where its packets enter and leave.
        port = "{tap: {name: eth0}}": PORT,
        /// Its envelope for receiving, where it differs from that for sending.
        ingress: INGRESS_KEYS,
        /// The longest delay for a percentage of the packets, such as `{p50: 20us, p99: 100us}`.
        delay: DELAY,
        /// Its share where the policy states none, and its part of the receiving core; in proportion to `max` where no tenant states a weight.
        weight: Whole(1, MAX_WEIGHT as u64),
        /// Descriptors that it may have in the engine.
        descriptors: DESCRIPTORS,
        /// IP addresses and networks that it may send from and claim; also hardware addresses besides its port's.
        addresses: NAMES,
        /// How strictly `addresses` is enforced.
        binding: BINDING,
        /// What the daemon sets on its interface, which must be a TAP.
        interface: TENANT_INTERFACE,
        /// Whether backpressure may change the ECN bits and TCP flags of its packets.
        ecn: ECN,
        /// The program that its packets pass.
        program: Map(&PROGRAM),
        /// The control group that all its packets are of, for matches on `cgroup`.
        cgroup: Whole(0, u64::MAX),
        /// The user that all its packets are of, for matches on `user`.
        user: NUMBER,
    }

    pub(crate) static PROGRAM = "TenantProgram" {
        /// The file of the WebAssembly module, beside the policy unless its path begins with `/`.
        module = "cache.wasm": Text,
        /// Most bytes of its memory, with the buffers of its packets, 2MiB to 1GiB; 16MiB when absent.
        memory: SIZE,
        /// Its part of the engine's core, or a core of its own.
        cpu: Map(&PROGRAM_CPU),
        /// Its weights at the coprocessors that it may use.
        units: Map(&PROGRAM_UNITS),
        /// Most packets that leave it for one that enters it; 1 when absent.
        amplification: Whole(1, 64),
        /// What a reload does with its state where the program changes.
        state: Words(&[("drop", "The new program begins anew."), ("keep", "The old program saves it, and the new one takes it over.")]),
        /// What becomes of its tenant's packets once it was halted, as its calls have taken too long.
        fails: Words(&[("closed", "They are lost."), ("open", "They pass as if there were no program.")]),
    }

    pub(crate) static PROGRAM_UNITS = "ProgramUnits" {
        /// Compressing and expanding (deflate, RFC 1951).
        deflate: Whole(1, 1_000),
        /// Sealing and opening by AES-128-GCM.
        aes: Whole(1, 1_000),
        /// Searching for regular expressions.
        regex: Whole(1, 1_000),
    }

    pub(crate) static PROGRAM_CPU = "ProgramCpu" {
        /// Its weight among the tenants that want the engine's core, in place of its tenant's.
        weight: Whole(1, MAX_WEIGHT as u64),
        /// The number of a core that runs this program and nothing else of the daemon's, as a list of one.
        cores = "[2]": List(&NUMBER, 1, 1),
    }

    pub(crate) static INTERFACE_KEYS_OF_TENANT = "TenantInterface" {
        /// Its addresses with the lengths of their networks, such as `10.0.0.5/24`.
        addresses: NAMES,
        /// Its routes, such as `default via 10.0.0.1`.
        routes: NAMES,
        /// Its largest packet, where that is less than others allow.
        mtu: Whole(68, 65_535),
        /// Whether the device stays when the daemon ends.
        persist: Flag,
    }

    pub(crate) static ECN_LONG = "Ecn" {
        /// Its connections are mediated, with this meter for flows whose receiver reports a mark.
        mediate = "{rate: 850Mbps}": Map(&MEDIATE),
    }

    /// The meter of a flow whose receiver reports a mark.
    pub(crate) static MEDIATE = "Mediate" {
        /// Its rate: 850Mbps when absent.
        rate: RATE,
        /// Time after the last report for which it stays, 100ms to 60s; 3s when absent.
        lifetime: TIME,
        /// Its burst, at least 64kB; 128KiB when absent.
        burst: SIZE,
    }

    pub(crate) static OVERLAY = "Overlay" {
        /// How frames are wrapped.
        kind = "geneve": Words(&[("geneve", ""), ("vxlan", "")]),
        /// The network of all tenants that name none, as a number; it may be left out where each tenant names one.
        vni: Whole(0, 16_777_215),
        /// Networks by their names, with their numbers (VNIs); all hosts state the same.
        networks: Named(&Whole(0, 16_777_215)),
        /// UDP port of all hosts; 4789 for VXLAN and 6081 for Geneve when absent.
        port: Whole(1, 65_535),
        /// DSCP of outer headers, by name or number.
        dscp: SCALAR,
        /// Whether UDP over IPv6 has a checksum; all hosts must agree.
        v6_checksum: Flag,
        /// The router that other hosts are behind; on the uplink's own link when absent.
        gateway: Text,
        /// Which of the hosts this file is for.
        host = "a": Text,
        /// All hosts of the fleet, this one included.
        hosts = "{a: {address: 192.0.2.1, tenants: {shop: 02:00:00:00:0a:01}}}": Named(&Map(&FLEET_HOST)),
        /// Whether frames between hosts are sealed with the fleet's key; not when absent.
        sealed: SEALED,
        /// The file with the fleet's key, 32 bytes; `feedback.key` when absent.
        key: Text,
        /// Files with other keys that are accepted as well, while the fleet changes its key.
        accept_keys: NAMES,
        /// Feedback from receivers to senders; none when absent.
        feedback: Map(&FEEDBACK),
    }

    pub(crate) static FLEET_HOST = "FleetHost" {
        /// Its address on the underlay.
        address = "192.0.2.1": Text,
        /// The next hop's hardware address; resolved by ARP or NDP when absent.
        mac: Text,
        /// Address and port of its control channel.
        channel: Text,
        /// Rate at which each tenant here may send to each of its tenants while the host sends no feedback.
        fallback: RATE,
        /// Its tenants' hardware addresses.
        tenants: Named(&Either(&[NAMES, Map(&FLEET_TENANT)])),
    }

    pub(crate) static FLEET_TENANT = "FleetTenant" {
        /// Its hardware addresses.
        mac = "02:00:00:00:0a:01": NAMES,
        /// Its share of a receiver among the senders; when absent, in proportion to `max` where every tenant of the fleet has a `max`
        /// and none a weight, else 1.
        weight: Whole(1, MAX_WEIGHT as u64),
        /// Its envelope's maximum, from which its weight follows.
        max: RATE,
        /// Whether it forwards others' traffic: all such tenants together count as one sender.
        balancer: Flag,
        /// Whether backpressure at other hosts may change its packets.
        ecn: MAP_ECN,
        /// Its network, one of `networks`; that of `vni` when absent. Tenants of different networks never reach each other.
        network: Text,
    }

    pub(crate) static FEEDBACK = "Feedback" {
        /// The file with the fleet's key, 32 bytes.
        key = "/etc/plimsoll/fleet.key": Text,
        /// The way that feedback takes.
        via: VIA,
        /// Time from one decision to the next.
        epoch: TIME,
        /// How long a limit holds after it was last heard.
        lapse: TIME,
        /// How long packets may wait at a receiver before their rate is limited, too.
        delay: TIME,
        /// Rate at which each tenant here may send to a tenant whose host sends no feedback; a tenth of the link when absent.
        fallback: RATE,
        /// Whether ECN marks of the fabric slow senders down; all hosts must agree.
        ecn: Flag,
        /// The host that divides among the fleet's balancers.
        distributor: Text,
        /// The limits that senders are given.
        control: CONTROL,
        /// Use of the minimum of a tenant that receives nothing.
        idle: IDLE,
    }

    pub(crate) static BACKPRESSURE = "Backpressure" {
        /// Tenants whose flows are counted, both ways; all of them when absent.
        tenants: NAMES,
        /// Packets a second from which a flow is a heavy hitter.
        heavy: PACKET_RATE,
        /// Whose overload leads to heavy flows being slowed down; no flow is when absent.
        watch: WATCHED,
        /// Cores that the watched thing may use; when absent one, or a cgroup's `cpu.max`.
        cores: CORES,
        /// Load at which overload begins, as a part of the cores: `80%` when absent.
        threshold: Part,
        /// Load below which overload ends: when absent, seven eighths of `threshold`, and `70%` at most.
        release: Part,
        /// Time from one look at the load to the next, 100us to 1s.
        poll: TIME,
        /// A flow is slowed down if it sends more than this part of all heavy hitters' packets: `10%` when absent.
        part: Part,
        /// How a flow is slowed down.
        mode: PRESS_MODE,
        /// Rate to which each such flow is slowed down; `auto` when absent.
        rate: PRESS_RATE,
        /// With `rate: auto`, the rate below which no flow is slowed down.
        least: RATE,
        /// Time after its last refresh for which a meter stays, 100ms to 60s.
        lifetime: TIME,
        /// Burst of a meter, at least 64kB.
        burst: SIZE,
        /// Flows that may be slowed down at a time.
        flows: Whole(1, Press::MOST_FLOWS as u64),
    }

    /// Something whose CPU load is watched.
    pub(crate) static WATCH = "Watch" {
        /// A tenant: the CPU time that it takes to deliver packets to it.
        tenant: Text,
        /// A cgroup by its path below `/sys/fs/cgroup`.
        cgroup: Shape::Pattern("^/"),
        /// Threads by number, such as a virtual machine's vCPUs.
        pids: OneOrMore(&Whole(1, MOST_PID as u64)),
    }

    pub(crate) static INGRESS = "Ingress" {
        /// Rate it is guaranteed whenever others send to it.
        min: RATE,
        /// Rate it never exceeds.
        max: RATE,
    }

    pub(crate) static LIMIT = "Limit" {
        /// Packets it holds, of the classes that send through it; all of them when absent.
        match: Map(&LIMIT_MATCH),
        /// Bits per second that may leave.
        rate = "500Mbps": RATE,
        /// Bytes that may leave at once after a pause.
        burst: SIZE,
        /// Limits around this one.
        via: NAMES,
    }

    pub(crate) static CLASS = "Class" + SENDER + FLOW_ORDER {
        /// Children, the first with a packet goes first.
        priority: NAMES,
        /// Children that share by weight.
        wfq: CHILDREN,
        /// Children that take turns by weight.
        drr: CHILDREN,
        /// Children whose packets go in the order of their arrival.
        fifo: NAMES,
        /// Children whose packets go by least slack.
        lstf: NAMES,
        /// Children whose packets go by earliest deadline.
        edf: NAMES,
        /// Children whose packets go by the rank that a program gives each.
        program: Map(&RANKED),
        /// Children with rates that are strict, in real time.
        rate_share: Named(&RATE),
        /// How `rate_share` looks for the next child: by its definition, or in constant time; by their number when absent.
        form: Words(&[("exact", ""), ("grouped", "")]),
        /// Packets of this class, for a leaf.
        match: Map(&PACKET_MATCH),
        /// Descriptors that a leaf's flows hold at a time, at most.
        descriptors: DESCRIPTORS,
    }

    /// The keys of a class's `program`.
    pub(crate) static RANKED = "RankProgram" {
        /// File of the rank program, `NAME.rank`.
        module: Text,
        /// Children whose packets it ranks, with weights if it asks for them.
        children: CHILDREN,
    }

    /// The keys about sending that tenants and classes share.
    pub(crate) static SENDER = "Sender" {
        /// Rate it is guaranteed whenever it has packets to send.
        min: RATE,
        /// Rate it never exceeds.
        max: RATE,
        /// Bytes that may leave at once under `max`.
        burst: SIZE,
        /// Limits that it sends through.
        via: NAMES,
        /// File with the policy below it: the file's root takes the place of this tenant or leaf.
        policy: Text,
        /// Queues that a tenant or leaf divides itself into.
        queues: QUEUES,
        /// Which of the queues goes first; they take turns when absent.
        among: AMONG,
    }

    /// The order of the flows of a tenant, leaf or queue.
    pub(crate) static FLOW_ORDER = "FlowOrder" {
        /// How its flows are ordered, where nothing below it orders them.
        flows: FLOWS,
        /// Slack of packets that bring none.
        slack: TIME,
        /// Deadline of packets that bring none.
        deadline: TIME,
    }

    pub(crate) static FLOWS_LONG = "Flows" {
        /// In turns, flows that have just begun first; the queue of each is kept short.
        fq: Map(&FQ),
    }

    /// When the queue of a flow is too long (CoDel, RFC 8289).
    pub(crate) static FQ = "Fq" {
        /// How long packets may wait at all times.
        target: TIME,
        /// How long they may wait for longer than the target before one is marked or dropped: about the longest round trip.
        interval: TIME,
    }

    /// One of several queues of a class.
    pub(crate) static QUEUE = "Queue" + FLOW_ORDER {
        /// Packets of this queue; those that no other queue takes when absent.
        match: Map(&PACKET_MATCH),
    }

    /// Conditions on a packet, all of which must hold.
    pub(crate) static PACKET_MATCH = "PacketMatch" + CONDITIONS {
        /// The tenant it comes from; `host` for the daemon's own host port.
        tenant: NAMES,
    }

    /// Conditions on a packet, all of which must hold.
    pub(crate) static LIMIT_MATCH = "LimitMatch" + CONDITIONS {
        /// The tenant it comes from.
        tenant: NAMES,
        /// The classes of this file that it holds, as if they had it in `via`.
        class: NAMES,
    }

    pub(crate) static CONDITIONS = "Conditions" {
        /// Source address or prefix.
        src: NAMES,
        /// Destination address or prefix.
        dst: NAMES,
        /// IP protocol by name or number.
        protocol: SCALARS,
        /// Source port or range of ports.
        src_port: SCALARS,
        /// Destination port or range of ports.
        dst_port: SCALARS,
        /// DSCP by name or number.
        dscp: SCALARS,
        /// VLAN; 0 for frames without a tag.
        vlan: OneOrMore(&Whole(0, u16::MAX as u64)),
        /// Socket priority that came with the packet.
        priority: NUMBERS,
        /// Control group that came with the packet.
        cgroup: OneOrMore(&Whole(0, u64::MAX)),
        /// User that came with the packet.
        user: NUMBERS,
        /// Application that came with the packet.
        app: NUMBERS,
        /// Transmit core.
        core: OneOrMore(&Whole(0, u16::MAX as u64)),
    }
}
