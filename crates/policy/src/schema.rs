//! The JSON Schema of policy files, so that editors complete and check them.
//!
//! Why: an operator's editor can say what belongs where before `check` does.
//! From: JSON Schema 2020-12, made from the types below.
//! Not here: reading (`read` has its own tables, so that all mistakes come with their places); a test keeps the two
//! in step.
//! Invariant: every example and every key of the language validates.

// The types exist for their schemas only.
#![expect(dead_code, reason = "types that describe a file and never hold one")]

use std::collections::BTreeMap;

use plimsoll_units::{BitRate, Bytes, Span};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema, schema_for};

/// The schema of the operator's file.
#[must_use]
pub fn schema() -> serde_json::Value {
    let mut schema = schema_for!(HostFile).to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "Plimsoll policy".into());
    }
    schema
}

/// The schema of a tenant's or an application's file.
#[must_use]
pub fn sub_schema() -> serde_json::Value {
    let mut schema = schema_for!(SubFile).to_value();
    if let Some(object) = schema.as_object_mut() {
        object.insert("title".to_owned(), "Plimsoll sub-policy of a tenant or an application".into());
    }
    schema
}

/// Who shares the link, and how.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct HostFile {
    /// Where packets leave, and how fast.
    uplink: Uplink,
    /// What the engine may use.
    #[serde(default)]
    engine: Option<Engine>,
    /// Where the daemon answers.
    #[serde(default)]
    api: Option<Api>,
    /// Who has a port.
    #[serde(default)]
    tenants: Option<BTreeMap<String, Tenant>>,
    /// How tenants reach those of other hosts.
    #[serde(default)]
    overlay: Option<Overlay>,
    /// Rates that hold wherever a class sends through them.
    #[serde(default)]
    limits: Option<BTreeMap<String, Limit>>,
    /// The classes, from `root` down. Without it the tenants share the link by weight.
    #[serde(default)]
    policy: Option<BTreeMap<String, Option<Class>>>,
}

/// The part of the policy below a tenant's or an application's place.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct SubFile {
    /// Rates that hold wherever a class of this file sends through them.
    #[serde(default)]
    limits: Option<BTreeMap<String, Limit>>,
    /// The classes, from `root` down.
    #[serde(default)]
    policy: Option<BTreeMap<String, Option<Class>>>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Uplink {
    /// The device.
    port: Port,
    /// What the link carries.
    rate: BitRate,
    /// Bytes that each frame costs beyond its own: 20B for preamble and gap, 24B with the check sequence.
    #[serde(default)]
    overhead: Option<Bytes>,
    /// Largest IP packet.
    #[serde(default)]
    #[schemars(range(min = 68, max = 9600))]
    mtu: Option<u16>,
}

/// Where packets enter and leave.
#[derive(JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Port {
    /// A network interface, through AF_XDP.
    AfXdp(Interface),
    /// A network interface, through AF_PACKET.
    AfPacket(Interface),
    /// A TAP that the daemon makes.
    Tap(Tap),
    /// Frames from and into files.
    Pcap(Pcap),
    /// A client process, through shared memory: the Unix socket that it connects to.
    Vnic(String),
    /// A virtual machine, through vhost-user: the Unix socket that its front end (QEMU, say) connects to.
    VhostUser(VhostUser),
    /// Frames in memory.
    Memory,
}

/// A socket's path, or more than that.
#[derive(JsonSchema)]
#[serde(untagged)]
enum VhostUser {
    /// The socket.
    Socket(String),
    /// The socket and habits.
    More(VhostUserPort),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct VhostUserPort {
    /// The Unix socket that the front end connects to.
    socket: String,
    /// When and in which order the machine gets its descriptors back.
    #[serde(default)]
    completions: Option<Completions>,
    /// The hardware address of its interface, which then is nobody else's: `02:00:00:00:0a:01`.
    #[serde(default)]
    mac: Option<String>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Completions {
    /// Each when its packet has left or was dropped, in any order.
    Ooo,
    /// The same, but never before one that was posted earlier.
    InOrder,
    /// Each when it is taken.
    Early,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Tap {
    /// A network namespace by name or path; the daemon's own when absent.
    #[serde(default)]
    netns: Option<String>,
    /// The interface as its owner sees it.
    name: Interface,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Pcap {
    /// Frames that come in.
    #[serde(default)]
    read: Option<String>,
    /// Frames that go out.
    #[serde(default)]
    write: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Engine {
    /// Core to pin the engine's thread to.
    #[serde(default)]
    cpu: Option<u32>,
    /// Never sleep.
    #[serde(default)]
    busy_poll: Option<bool>,
    /// Flow queues in all.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1048576))]
    queues: Option<u32>,
    /// Descriptors of one flow queue; a power of two.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16384))]
    ring: Option<u16>,
    /// Descriptors in all.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16777216))]
    descriptors: Option<u32>,
    /// Deepest tree that is accepted.
    #[serde(default)]
    #[schemars(range(min = 1, max = 64))]
    max_depth: Option<u32>,
    /// Smallest frame at which the engine must keep up with the link; the largest frame when absent.
    #[serde(default)]
    line_rate_frame: Option<Bytes>,
    /// Of so many packets that a vNIC's client classified itself one is classified again; 0: none.
    #[serde(default)]
    verify: Option<u32>,
    /// What makes it worse than it is, for comparisons.
    #[serde(default)]
    experiment: Option<Experiment>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Experiment {
    /// CPU time that fetching a frame from the uplink takes at least.
    #[serde(default)]
    drain: Option<Span>,
    /// CPU time that it takes at least from then on, until it is delivered.
    #[serde(default)]
    cost: Option<Span>,
    /// Part of the time, in thousandths, that fetching may take while fetched frames wait.
    #[serde(default)]
    #[schemars(range(min = 1, max = 999))]
    drain_share: Option<u32>,
    /// Whose frame is next.
    #[serde(default)]
    ingress: Option<IngressOrder>,
    /// Frames of full length that the kernel holds for an AF_PACKET uplink, about.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    ring: Option<u32>,
    /// Frames that wait for each tenant.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65536))]
    slots: Option<u32>,
    /// Whether tenants have descriptors of their own.
    #[serde(default)]
    accounting: Option<bool>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum IngressOrder {
    /// The tenant's that has had least of its part of the core.
    Fair,
    /// The one that came first.
    Shared,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Api {
    /// Unix socket of the HTTP API.
    #[serde(default)]
    socket: Option<String>,
    /// Address of the Prometheus endpoint.
    #[serde(default)]
    metrics: Option<String>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Tenant {
    /// Where its packets enter and leave.
    port: Port,
    /// What it gets whenever it wants it.
    #[serde(default)]
    min: Option<BitRate>,
    /// What it never exceeds.
    #[serde(default)]
    max: Option<BitRate>,
    /// What may leave at once under `max`.
    #[serde(default)]
    burst: Option<Bytes>,
    /// What it may receive, where that is not what it may send.
    #[serde(default)]
    ingress: Option<Ingress>,
    /// The longest delay of so many of a hundred packets, such as `{p50: 20us, p99: 100us}`.
    #[serde(default)]
    delay: Option<Delay>,
    /// Its share where the policy states none, and its part of the core on the way in; as `max` where no tenant states one.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65535))]
    weight: Option<u32>,
    /// Limits that it sends through.
    #[serde(default)]
    via: Option<OneOrMore<String>>,
    /// How it orders its flows, without a policy of its own.
    #[serde(default)]
    flows: Option<Flows>,
    /// Slack of packets that bring none.
    #[serde(default)]
    slack: Option<Span>,
    /// Deadline of packets that bring none.
    #[serde(default)]
    deadline: Option<Span>,
    /// Descriptors that it may have in the engine.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16777216))]
    descriptors: Option<u32>,
    /// File with its own policy.
    #[serde(default)]
    policy: Option<String>,
    /// Queues that it divides itself into.
    #[serde(default)]
    queues: Option<BTreeMap<String, Option<Queue>>>,
    /// Which of the queues goes first.
    #[serde(default)]
    among: Option<Among>,
    /// IP addresses and networks that it may send from and claim; hardware addresses beside its port's.
    #[serde(default)]
    addresses: Option<OneOrMore<String>>,
    /// How it is held to them.
    #[serde(default)]
    binding: Option<Binding>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Binding {
    /// It sends from them and claims them, and nothing else.
    Strict,
    /// It sends packets of others as well, and advertises itself, but claims no other addresses.
    Router,
    /// It is held to nothing.
    Off,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Overlay {
    /// How frames are wrapped.
    kind: OverlayKind,
    /// The network that all tenants of this file are in.
    #[schemars(range(min = 0, max = 16777215))]
    vni: u32,
    /// UDP port of all hosts; 4789 for VXLAN and 6081 for Geneve when absent.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65535))]
    port: Option<u16>,
    /// DSCP of outer headers, by name or number.
    #[serde(default)]
    dscp: Option<Scalar>,
    /// Whether UDP over IPv6 has a checksum; all hosts must say the same.
    #[serde(default)]
    v6_checksum: Option<bool>,
    /// The router that other hosts are behind; on the uplink's own link when absent.
    #[serde(default)]
    gateway: Option<String>,
    /// Which of the hosts this file is for.
    host: String,
    /// All hosts of the fleet, this one included.
    hosts: BTreeMap<String, FleetHost>,
    /// Whether frames between hosts are sealed with the fleet's key; not when absent.
    #[serde(default)]
    sealed: Option<Sealed>,
    /// The file with the fleet's key, 32 bytes; `feedback.key` when absent.
    #[serde(default)]
    key: Option<String>,
    /// What receivers tell senders; nothing when absent.
    #[serde(default)]
    feedback: Option<Feedback>,
}

#[derive(JsonSchema)]
#[serde(untagged)]
enum Sealed {
    /// All of them, and no other is taken; or none.
    Whether(bool),
    /// While hosts change over: both are taken.
    Accept(SealedAccept),
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum SealedAccept {
    Accept,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum OverlayKind {
    Geneve,
    Vxlan,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct FleetHost {
    /// Its address on the underlay.
    address: String,
    /// The next hop's hardware address, where it shall not be asked for.
    #[serde(default)]
    mac: Option<String>,
    /// Address and port of its control channel.
    #[serde(default)]
    channel: Option<String>,
    /// What each tenant here may send to each of its tenants while it says nothing.
    #[serde(default)]
    fallback: Option<BitRate>,
    /// Its tenants' hardware addresses.
    #[serde(default)]
    tenants: Option<BTreeMap<String, FleetTenant>>,
}

#[derive(JsonSchema)]
#[serde(untagged)]
enum FleetTenant {
    /// Its hardware addresses.
    Macs(OneOrMore<String>),
    /// What there is to say of it.
    Stated(StatedFleetTenant),
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct StatedFleetTenant {
    /// Its hardware addresses.
    mac: OneOrMore<String>,
    /// What it may send to a receiver, beside other senders; when absent, as its `max` where every tenant of the fleet has one
    /// and none a weight, else 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 65535))]
    weight: Option<u32>,
    /// Its envelope's maximum, from which its weight follows.
    #[serde(default)]
    max: Option<BitRate>,
    /// Whether it brings others' traffic: all such tenants count as one sender.
    #[serde(default)]
    balancer: Option<bool>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Feedback {
    /// The file with the fleet's key, 32 bytes.
    key: String,
    /// Which way it goes.
    #[serde(default)]
    via: Option<Via>,
    /// How often.
    #[serde(default)]
    epoch: Option<Span>,
    /// How long a limit holds after it was last heard.
    #[serde(default)]
    lapse: Option<Span>,
    /// How long packets may wait at a receiver before their rate is limited, too.
    #[serde(default)]
    delay: Option<Span>,
    /// What each tenant here may send to a tenant elsewhere whose host says nothing; a tenth of the link when absent.
    #[serde(default)]
    fallback: Option<BitRate>,
    /// Whether the fabric's marks hold senders back; all hosts must say the same.
    #[serde(default)]
    ecn: Option<bool>,
    /// The host that divides among the fleet's balancers.
    #[serde(default)]
    distributor: Option<String>,
    /// What senders are told.
    #[serde(default)]
    control: Option<ControlLevel>,
    /// What becomes of the minimum of a tenant that receives nothing.
    #[serde(default)]
    idle: Option<IdleMinimum>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum IdleMinimum {
    /// It stays free for it.
    Reserved,
    /// The others get it until it is wanted.
    Lent,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum ControlLevel {
    /// Bits and packets a second.
    Full,
    /// Bits a second only, for comparison.
    Bandwidth,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Via {
    /// With tenants' frames, or in frames of its own.
    Datapath,
    /// Between the hosts' control channels.
    Channel,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Ingress {
    /// What it gets whenever others send it.
    #[serde(default)]
    min: Option<BitRate>,
    /// What it never exceeds.
    #[serde(default)]
    max: Option<BitRate>,
}

/// Times by percentile.
struct Delay;

impl JsonSchema for Delay {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Delay".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let time = generator.subschema_for::<Span>();
        json_schema!({
            "type": "object",
            "minProperties": 1,
            "patternProperties": { "^p[0-9]{1,2}(\\.[0-9]{1,3})?$": time },
            "additionalProperties": false,
        })
    }
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Limit {
    /// What it takes of those who send through it; everything when absent.
    #[serde(default)]
    r#match: Option<LimitMatch>,
    /// Bits per second that may leave.
    rate: BitRate,
    /// What may leave at once after a pause.
    #[serde(default)]
    burst: Option<Bytes>,
    /// Limits around this one.
    #[serde(default)]
    via: Option<OneOrMore<String>>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Class {
    /// Children, the first with a packet goes first.
    #[serde(default)]
    priority: Option<OneOrMore<String>>,
    /// Children that share by weight.
    #[serde(default)]
    wfq: Option<Children>,
    /// Children that take turns by weight.
    #[serde(default)]
    drr: Option<Children>,
    /// Children whose packets go in the order of their arrival.
    #[serde(default)]
    fifo: Option<OneOrMore<String>>,
    /// Children whose packets go by least slack.
    #[serde(default)]
    lstf: Option<OneOrMore<String>>,
    /// Children whose packets go by earliest deadline.
    #[serde(default)]
    edf: Option<OneOrMore<String>>,
    /// Children with rates that are strict, in real time.
    #[serde(default)]
    rate_share: Option<BTreeMap<String, BitRate>>,
    /// How `rate_share` looks for the next child: by its definition, or in constant time; by their number when absent.
    #[serde(default)]
    form: Option<Form>,
    /// Which packets come here, for a leaf.
    #[serde(default)]
    r#match: Option<PacketMatch>,
    /// What it gets whenever it wants it.
    #[serde(default)]
    min: Option<BitRate>,
    /// What it never exceeds.
    #[serde(default)]
    max: Option<BitRate>,
    /// What may leave at once under `max`.
    #[serde(default)]
    burst: Option<Bytes>,
    /// Limits that it sends through.
    #[serde(default)]
    via: Option<OneOrMore<String>>,
    /// How a leaf orders its flows.
    #[serde(default)]
    flows: Option<Flows>,
    /// Slack of packets that bring none.
    #[serde(default)]
    slack: Option<Span>,
    /// Deadline of packets that bring none.
    #[serde(default)]
    deadline: Option<Span>,
    /// File whose root takes this leaf's place.
    #[serde(default)]
    policy: Option<String>,
    /// Queues that a leaf divides itself into.
    #[serde(default)]
    queues: Option<BTreeMap<String, Option<Queue>>>,
    /// Which of the queues goes first: they take turns when absent.
    #[serde(default)]
    among: Option<Among>,
}

/// One of several queues of a class.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Queue {
    /// Which of the class's packets come here; what no other queue takes when absent.
    #[serde(default)]
    r#match: Option<PacketMatch>,
    /// How it orders its flows.
    #[serde(default)]
    flows: Option<Flows>,
    /// Slack of packets that bring none.
    #[serde(default)]
    slack: Option<Span>,
    /// Deadline of packets that bring none.
    #[serde(default)]
    deadline: Option<Span>,
}

/// Conditions on a packet, all of which must hold.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct PacketMatch {
    /// The tenant it comes from; `host` for the daemon's own host port.
    #[serde(default)]
    tenant: Option<OneOrMore<String>>,
    #[serde(flatten)]
    conditions: Conditions,
}

/// Conditions on a packet, all of which must hold.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct LimitMatch {
    /// The tenant it comes from.
    #[serde(default)]
    tenant: Option<OneOrMore<String>>,
    /// The classes of this file that it holds, as if they had it in `via`.
    #[serde(default)]
    class: Option<OneOrMore<String>>,
    #[serde(flatten)]
    conditions: Conditions,
}

#[derive(JsonSchema)]
struct Conditions {
    /// Source address or prefix.
    #[serde(default)]
    src: Option<OneOrMore<String>>,
    /// Destination address or prefix.
    #[serde(default)]
    dst: Option<OneOrMore<String>>,
    /// IP protocol by name or number.
    #[serde(default)]
    protocol: Option<OneOrMore<Scalar>>,
    /// Source port or range of ports.
    #[serde(default)]
    src_port: Option<OneOrMore<Scalar>>,
    /// Destination port or range of ports.
    #[serde(default)]
    dst_port: Option<OneOrMore<Scalar>>,
    /// DSCP by name or number.
    #[serde(default)]
    dscp: Option<OneOrMore<Scalar>>,
    /// VLAN; 0 for frames without a tag.
    #[serde(default)]
    vlan: Option<OneOrMore<u16>>,
    /// Socket priority that came with the packet.
    #[serde(default)]
    priority: Option<OneOrMore<u32>>,
    /// Control group that came with the packet.
    #[serde(default)]
    cgroup: Option<OneOrMore<u64>>,
    /// User that came with the packet.
    #[serde(default)]
    user: Option<OneOrMore<u32>>,
    /// Application that came with the packet.
    #[serde(default)]
    app: Option<OneOrMore<u32>>,
    /// Transmit core.
    #[serde(default)]
    core: Option<OneOrMore<u16>>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Flows {
    Fifo,
    Drr,
    Lstf,
    Edf,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Among {
    Drr,
    Priority,
}

#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Form {
    Exact,
    Grouped,
}

/// One value or a list of them.
#[derive(JsonSchema)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

/// Children with weights, or a list of children.
#[derive(JsonSchema)]
#[serde(untagged)]
enum Children {
    Weighed(BTreeMap<String, Option<Weight>>),
    Listed(OneOrMore<String>),
}

/// A word or a number.
#[derive(JsonSchema)]
#[serde(untagged)]
enum Scalar {
    Word(String),
    Number(u32),
}

struct Weight;

impl JsonSchema for Weight {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Weight".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": 1, "maximum": 65_535 })
    }
}

struct Interface;

impl JsonSchema for Interface {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Interface".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 15, "pattern": "^[^/:\\s]+$" })
    }
}
