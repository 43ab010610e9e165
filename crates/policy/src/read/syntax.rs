//! Policy files as they are written, before names are resolved.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use crate::addresses::MacAddr;
use crate::addresses::{Binding, StatedAddress};
use crate::config::{Api, Encapsulation, EngineConfig, Feedback, Port, Sealed};
use crate::interface::{HostAddress, HostRoute};
use crate::offload::TenantProgram;
use crate::press::{Ecn, Part, PressMode};
use crate::program::{Form, Match};
use crate::slo::DelayTarget;
use plimsoll_document::{Located, Mark, Name};

/// The operator's file.
pub(crate) struct HostFile {
    pub uplink: Option<UplinkEntry>,
    pub engine: EngineConfig,
    pub engine_at: Mark,
    /// Where `engine.cpu` is stated.
    pub cpu_at: Option<Mark>,
    /// Where `engine.threads` is stated.
    pub threads_at: Option<Mark>,
    /// The order of flows in leaf classes that state none.
    pub flows: Flows,
    pub descriptors: HostDescriptors,
    pub api: Api,
    pub tenants: Vec<TenantEntry>,
    /// The folder of files with further tenants.
    pub include: Option<Name>,
    pub overlay: Option<OverlayEntry>,
    pub backpressure: Option<BackpressureEntry>,
    pub policy: PolicyFile,
}

/// `backpressure:`, before its names are looked up.
pub(crate) struct BackpressureEntry {
    pub tenants: Option<Vec<Name>>,
    pub heavy: Option<PacketRate>,
    /// `None` without `watch`.
    pub watch: Option<Located<WatchEntry>>,
    pub press: PressEntry,
}

/// What is watched, as it is written.
pub(crate) enum WatchEntry {
    Engine,
    Tenant(Name),
    Cgroup(PathBuf),
    Pids(Vec<u32>),
    /// Something that could not be read.
    Unreadable,
}

/// The keys of `backpressure` that mean nothing without `watch`.
#[derive(Default)]
pub(crate) struct PressEntry {
    /// Those that are stated, and where.
    pub stated: Vec<(&'static str, Mark)>,
    pub cores: Option<u32>,
    pub threshold: Option<Located<Part>>,
    pub release: Option<Located<Part>>,
    pub poll: Option<Located<Span>>,
    pub part: Option<Part>,
    pub mode: Option<Located<PressMode>>,
    /// A stated rate other than `auto`.
    pub rate: Option<Located<BitRate>>,
    pub least: Option<Located<BitRate>>,
    pub lifetime: Option<Located<Span>>,
    pub burst: Option<Bytes>,
    pub flows: Option<u32>,
}

/// `overlay:`, before its names are looked up.
pub(crate) struct OverlayEntry {
    pub at: Mark,
    pub kind: Option<Encapsulation>,
    pub vni: Option<u32>,
    /// Whether `vni` is stated, if only wrongly.
    pub has_vni: bool,
    pub networks: Vec<NetworkEntry>,
    pub port: Option<u16>,
    pub dscp: u8,
    pub v6_checksum: bool,
    pub gateway: Option<Located<IpAddr>>,
    pub host: Option<Name>,
    pub hosts: Vec<FleetHostEntry>,
    /// Without a `fallback` when none is stated.
    pub feedback: Option<FeedbackEntry>,
    pub sealed: Option<Located<Sealed>>,
    pub key: Option<Located<PathBuf>>,
    pub accept_keys: Vec<Located<PathBuf>>,
}

/// One of `networks`; without a number when that could not be read.
pub(crate) struct NetworkEntry {
    pub name: Name,
    pub vni: Option<u32>,
}

pub(crate) struct FleetHostEntry {
    pub name: Name,
    pub address: Option<Located<IpAddr>>,
    pub mac: Option<MacAddr>,
    pub channel: Option<SocketAddr>,
    pub fallback: Option<BitRate>,
    pub tenants: Vec<FleetTenantEntry>,
}

pub(crate) struct FleetTenantEntry {
    pub name: Name,
    pub macs: Vec<Located<MacAddr>>,
    pub weight: Option<u32>,
    pub max: Option<BitRate>,
    pub balancer: bool,
    pub untouched: bool,
    /// Its network's name; that of `vni` when absent.
    pub network: Option<Name>,
}

pub(crate) struct FeedbackEntry {
    /// Where it says which way feedback goes, or stands.
    pub via_at: Mark,
    /// None when it could not be read.
    pub feedback: Option<Feedback>,
    /// `fallback`, if it is stated.
    pub fallback: Option<BitRate>,
    /// The host that divides among balancers, by its name.
    pub distributor: Option<Name>,
}

/// Where the host's descriptors are stated, or would be.
#[derive(Clone, Copy)]
pub(crate) struct HostDescriptors {
    /// `engine.descriptors`, if it is there.
    pub stated: Option<Mark>,
    /// The engine, or what stands in its place.
    pub engine: Mark,
}

impl HostDescriptors {
    /// The most that an engine may have.
    pub const MOST: u32 = crate::keys::MOST_DESCRIPTORS;
}

/// `limits:` and `policy:`, which every file may have.
pub(crate) struct PolicyFile {
    pub at: Mark,
    pub limits: Vec<LimitEntry>,
    /// `None` without a `policy:` key.
    pub classes: Option<Vec<ClassEntry>>,
    /// None of the classes is the file's `root`.
    pub rootless: bool,
}

pub(crate) struct UplinkEntry {
    pub port: Option<Located<Port>>,
    pub standby: Option<Located<Port>>,
    /// How long `port` must carry frames before it takes back.
    pub hold_off: Span,
    pub rate: Option<Located<BitRate>>,
    pub overhead: Bytes,
    pub mtu: u16,
    /// The longest wake-up grain.
    pub grain: Option<Span>,
}

pub(crate) struct TenantEntry {
    pub name: Name,
    pub port: Option<Located<Port>>,
    pub weight: Option<Located<u32>>,
    pub descriptors: Option<Located<u32>>,
    /// Its envelope for receiving, as far as it differs from that for sending.
    pub ingress: IngressEntry,
    /// The least percentile first.
    pub delay: Vec<Located<DelayTarget>>,
    /// The addresses that it may send from.
    pub addresses: AddressesEntry,
    /// What the daemon sets on its interface.
    pub interface: InterfaceEntry,
    /// Whether backpressure may change its packets.
    pub ecn: Ecn,
    /// The program that its packets pass.
    pub program: Option<ProgramEntry>,
    /// The control group that all its packets are of.
    pub cgroup: Option<Located<u64>>,
    /// The user that all its packets are of.
    pub user: Option<Located<u32>>,
    /// Envelope, `via`, `flows` and `policy`: a tenant is a class.
    pub class: ClassEntry,
}

/// `addresses` and `binding` of a tenant.
#[derive(Default)]
pub(crate) struct AddressesEntry {
    pub list: Vec<Located<StatedAddress>>,
    pub binding: Option<Located<Binding>>,
}

/// `program` of a tenant.
pub(crate) struct ProgramEntry {
    pub at: Mark,
    pub program: TenantProgram,
    /// Where the core is stated that it has to itself, if it has one.
    pub core_at: Option<Mark>,
}

/// `interface` of a tenant.
#[derive(Default)]
pub(crate) struct InterfaceEntry {
    /// Where it is stated, if it is.
    pub at: Option<Mark>,
    pub addresses: Vec<Located<HostAddress>>,
    pub routes: Vec<Located<HostRoute>>,
    pub mtu: Option<Located<u32>>,
    pub persist: bool,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct IngressEntry {
    pub min: Option<Located<BitRate>>,
    pub max: Option<Located<BitRate>>,
}

impl TenantEntry {
    pub fn new(name: Name, class: ClassEntry) -> Self {
        let (ingress, delay, addresses) = (IngressEntry::default(), Vec::new(), AddressesEntry::default());
        Self {
            name,
            port: None,
            weight: None,
            descriptors: None,
            ingress,
            delay,
            addresses,
            interface: InterfaceEntry::default(),
            ecn: Ecn::default(),
            program: None,
            cgroup: None,
            user: None,
            class,
        }
    }

    /// The rate that it is promised for receiving: as for sending, unless it says otherwise.
    pub fn ingress_min(&self) -> Option<Located<BitRate>> {
        self.ingress.min.or(self.class.min)
    }

    /// The rate at which it receives at most.
    pub fn ingress_max(&self) -> Option<Located<BitRate>> {
        self.ingress.max.or(self.class.max)
    }
}

#[derive(Clone)]
pub(crate) struct LimitEntry {
    pub name: Name,
    pub matches: MatchEntry,
    pub rate: Option<Located<BitRate>>,
    pub burst: Option<Located<Bytes>>,
    /// Limits around this one.
    pub via: Vec<Name>,
}

#[derive(Clone)]
pub(crate) struct ClassEntry {
    pub name: Name,
    pub order: Option<Order>,
    /// How a `rate_share` looks for the next child, where the number of children should not decide.
    pub form: Option<Located<Form>>,
    pub matches: Option<MatchEntry>,
    pub min: Option<Located<BitRate>>,
    pub max: Option<Located<BitRate>>,
    pub burst: Option<Located<Bytes>>,
    /// Descriptors that its flows hold at most; a tenant states its own beside its class.
    pub descriptors: Option<Located<u32>>,
    pub via: Vec<Name>,
    pub flows: Option<Located<Flows>>,
    pub slack: Option<Located<Span>>,
    pub deadline: Option<Located<Span>>,
    /// A file whose root takes this place.
    pub policy: Option<Name>,
    pub queues: Option<Queues>,
}

/// The queues of one class, and which of them goes first.
#[derive(Clone)]
pub(crate) struct Queues {
    pub at: Mark,
    pub among: OrderKind,
    /// Leaves without envelopes.
    pub list: Vec<ClassEntry>,
}

/// A scheduling node's algorithm and children.
#[derive(Clone)]
pub(crate) struct Order {
    pub kind: OrderKind,
    pub at: Mark,
    pub children: Vec<Child>,
    /// The file of a `program`.
    pub module: Option<Name>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderKind {
    Priority,
    Wfq,
    Drr,
    Fifo,
    Lstf,
    Edf,
    Program,
    RateShare,
}

#[derive(Clone)]
pub(crate) struct Child {
    pub name: Name,
    pub weight: Option<Located<u32>>,
    /// Below a `rate_share` node.
    pub rate: Option<Located<BitRate>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flows {
    Fifo,
    Drr,
    Fq(StatedCodel),
    Lstf,
    Edf,
    /// By the rank that the `program` above gives; no file states it.
    Ranked,
}

impl Default for Flows {
    fn default() -> Self {
        Self::Fq(StatedCodel::default())
    }
}

/// The times of `flows: fq`, as far as they are stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StatedCodel {
    pub target: Option<Span>,
    pub interval: Option<Span>,
}

#[derive(Clone)]
pub(crate) struct MatchEntry {
    pub at: Mark,
    /// Whether the key is there at all.
    pub stated: bool,
    /// Whether all of it could be read. A match that could not takes no packets from others, and is not judged.
    pub whole: bool,
    pub tenant: Vec<Name>,
    /// Only in limits: the classes that it holds.
    pub class: Vec<Name>,
    /// All but tenant and class.
    pub conditions: Match,
}

impl MatchEntry {
    /// A match of which nothing is known.
    pub fn unreadable(at: Mark) -> Self {
        let (tenant, class, conditions) = (Vec::new(), Vec::new(), Match::default());
        Self { at, stated: true, whole: false, tenant, class, conditions }
    }
}

impl ClassEntry {
    pub fn new(name: Name) -> Self {
        Self {
            name,
            order: None,
            form: None,
            matches: None,
            min: None,
            max: None,
            burst: None,
            descriptors: None,
            via: Vec::new(),
            flows: None,
            slack: None,
            deadline: None,
            policy: None,
            queues: None,
        }
    }
}

impl Queues {
    /// The policy that they come to: a root that orders them, which takes the class's place.
    pub fn into_policy(self) -> PolicyFile {
        let Self { at, among, list } = self;
        let child = |queue: &ClassEntry| Child { name: queue.name.clone(), weight: None, rate: None };
        let mut root = ClassEntry::new(Name::new("root".to_owned(), at));
        root.order =
            Some(Order { kind: among, at, children: list.iter().map(child).collect(), module: None });
        let classes = std::iter::once(root).chain(list).collect();
        PolicyFile { at, limits: Vec::new(), classes: Some(classes), rootless: false }
    }
}

impl OrderKind {
    pub const ALL: [(&'static str, Self); 8] = [
        ("priority", Self::Priority),
        ("wfq", Self::Wfq),
        ("drr", Self::Drr),
        ("fifo", Self::Fifo),
        ("lstf", Self::Lstf),
        ("edf", Self::Edf),
        ("program", Self::Program),
        ("rate_share", Self::RateShare),
    ];

    pub fn weighs(self) -> bool {
        matches!(self, Self::Wfq | Self::Drr | Self::Program)
    }
}
