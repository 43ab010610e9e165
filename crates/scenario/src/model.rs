//! What a scenario says, after it has been read and checked.
//!
//! Why: the live lab and a simulator must run the same thing, so that both read one plain model and no YAML.
//! From: `docs/scenarios.md`, which explains each key to operators.
//! Not here: reading it (`read`), what came out (`results`), how a world is built (`lab`).
//! Invariant: every name in here refers to something that exists; times fit into `duration`; nothing is empty
//! that a run needs.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use plimsoll_document::{Sources, Tree};
use plimsoll_policy::Mark;
use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use crate::expect::Expectation;
use crate::fault::Faults;
use crate::network::{Completions, Congestion, Control, ControlLevel, Host, Ingress, Link};
use crate::paper::Paper;
use crate::{Errors, Problem};

/// One scenario: what to run, on which systems, what to measure and what to expect.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Short name, which heads tables and reports: `noisy-neighbour`.
    pub name: String,
    /// A description, in a few sentences.
    pub about: String,
    /// Rate of the uplink, imposed by the engine or by the system compared with it.
    pub rate: BitRate,
    /// Largest IP packet on every link.
    pub mtu: u32,
    /// Length of each run.
    pub duration: Span,
    /// How often the whole list of systems is run, one after the other; expectations compare medians.
    pub pairs: u32,
    /// Whether, live, all systems take turns in one world, each for `duration`; else each run has a world of its own.
    pub one_world: bool,
    /// Seed of everything random (arrival times, payloads).
    pub seed: u64,
    /// Machines; live there is one, or several around one switch.
    pub hosts: Vec<Host>,
    /// Nodes that only forward packets; live there is at most one.
    pub switches: Vec<String>,
    /// What lies between hosts, switches and destinations. Without any, each host is behind a link of `rate`, with
    /// every destination at its other end.
    pub links: Vec<Link>,
    /// How receivers control their senders' rates; not at all without.
    pub control: Option<Control>,
    /// The tenants, each with a vNIC, in the order of the file.
    pub tenants: Vec<Tenant>,
    /// Places beyond the uplink, each with an address of its own.
    pub destinations: Vec<Destination>,
    /// Whether tenants use segmentation offload; off, so that each packet is scheduled alone, unless asked for.
    pub offload: bool,
    /// The systems to compare, in the order of the file.
    pub systems: Vec<System>,
    /// The tenants' traffic.
    pub workloads: Vec<Workload>,
    /// Values of the file that are varied, by their path: what is read is one of the points.
    pub sweep: Vec<(String, Vec<String>)>,
    /// Changes to the policy during a run, in the order of their moments.
    pub timeline: Vec<Change>,
    /// Faults to inject.
    pub faults: Faults,
    /// How finely to measure.
    pub measure: Measure,
    /// Expectations that the results must meet.
    pub expect: Vec<Expectation>,
    /// The experiment of a paper that it repeats, if it does.
    pub paper: Option<Paper>,
    /// Whether it can be run live; else it is for virtual time alone.
    pub live: bool,
    /// The policy's sections as the file has them.
    pub(crate) policy: PolicySections,
    /// Whether this is the short form that the test suite runs.
    pub short: bool,
    /// Factor of every moment of the file in the short form; 1 in the full form.
    pub time: f64,
    /// The folder of the file, from which paths inside start.
    pub folder: PathBuf,
    /// The file, and the policy files that it names.
    pub(crate) sources: Sources,
}

impl Scenario {
    /// The scenario's errors, for what only shows when its world is built; places are those of its own parts.
    #[must_use]
    pub fn wrong(&self, problem: Problem) -> Errors {
        Errors::new(vec![problem], self.sources.clone())
    }
}

/// One change of the policy while a run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// When, from the start of the run.
    pub at: Span,
    /// A limit, or a class or node by its path or the last part of it.
    pub name: String,
    /// Its new value.
    pub setting: Setting,
    /// Where the name stands.
    pub place: Mark,
}

/// A setting that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// A limit's rate.
    Limit(BitRate),
    /// The weight of a class or node.
    Weight(u32),
    /// The rate of a child of a `rate_share` node.
    Rate(BitRate),
}

/// A place beyond the uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// As workloads name it.
    pub name: String,
    /// Its address inside [`NETWORK`], as policies match it.
    pub address: Ipv4Addr,
}

/// Everything of a scenario is in this network: destination `n` is 10.200.0.n and tenant `n` is 10.200.1.n,
/// counted from 1 in the order of the file, unless the file gives a destination another address. From the 251st vNIC
/// on they are 10.200.128.1 and up.
pub const NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 200, 0, 0), 16);

/// A tenant and what it is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The operator's name.
    pub name: String,
    /// Its address inside [`NETWORK`]; of the first of its vNICs where it has several.
    pub address: Ipv4Addr,
    /// The machines that it lives on, with an address on each; live it is on one.
    pub homes: Vec<Home>,
    /// Its guaranteed rate.
    pub min: Option<BitRate>,
    /// The rate that it never exceeds.
    pub max: Option<BitRate>,
    /// Its share of what is left.
    pub weight: u32,
    /// Its family, where one key stands for many (`repeat`).
    pub family: Option<String>,
    /// The core of its host that it runs on, shared with those that name the same; its own without.
    pub core: Option<String>,
}

/// One of a tenant's vNICs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// The machine.
    pub host: String,
    /// Its address there.
    pub address: Ipv4Addr,
}

/// One of the systems that are compared.
#[derive(Clone, Debug)]
pub struct System {
    /// As expectations and reports name it.
    pub name: String,
    /// Its kind.
    pub kind: SystemKind,
    /// Transmit queues of `mq`.
    pub queues: u32,
    /// Rate to which each of them is held (Loom, Figure 2), if any.
    pub queue_rate: Option<BitRate>,
    /// Timing of the systems that are models.
    pub model: Model,
    /// How its hosts take what comes in, where it runs on Plimsoll's engine; the others have one queue.
    pub ingress: Ingress,
    /// How much of the scenario's control it has, where it runs on Plimsoll's engine.
    pub control: ControlLevel,
    /// Control for this system, where it differs from the scenario's.
    pub steering: Option<Control>,
    /// When its guests get their descriptors back, where that is not as their hosts say.
    pub completions: Option<Completions>,
    /// Whether each tenant has descriptors of its own; else each may take all.
    pub accounting: bool,
    /// Whether what goes wrong goes wrong here.
    pub faults: bool,
    /// Sections that replace the scenario's own policy for this system.
    pub(crate) policy: Option<PolicySections>,
}

/// The kind of system that carries the tenants' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SystemKind {
    /// No policy: one queue of the same rate in the kernel.
    Fifo,
    /// Linux HTB: a class for each tenant with `rate` = its min, `ceil` = its max and shares by weight.
    Htb,
    /// `plimsoll run` with the scenario's policy.
    Plimsoll,
    /// Loom's "single queue": all of a software policy in front of one queue, in the kernel.
    Sq,
    /// Loom's "multi-queue": one queue per core, served in turn; flows are spread by their port.
    Mq,
    /// Loom's "queue per flow": one queue for each flow, served in turn.
    Qpf,
    /// Parallel token buckets: one for each tenant, served on the core that sends (EyeQ's, SENIC's second baseline).
    Ptb,
    /// A NIC's few limiters in hardware; tenants beyond their number share them.
    Hwrl,
    /// SENIC's hardware: a token bucket for each tenant, and modules that fetch packets over PCIe.
    ClassFetch,
}

/// Timing of the systems that are models alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Time of each operation under HTB's one lock: a packet has two, one to come and one to go.
    pub lock: Span,
    /// From the moment at which HTB's timer is due to the interrupt's work.
    pub wake: Span,
    /// CPU time of a packet of [`SystemKind::Ptb`] on the core that sends it.
    pub cost: Span,
    /// Limiters of [`SystemKind::Hwrl`].
    pub limiters: u32,
    /// Of [`SystemKind::ClassFetch`].
    pub fetch: Fetch,
}

impl Default for Model {
    fn default() -> Self {
        Self { lock: Span::ZERO, wake: Span::ZERO, cost: Span::ZERO, limiters: 16, fetch: Fetch::default() }
    }
}

/// SENIC's scheduler and its class-fetch modules (§6.2, §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Modules that fetch at the same time.
    pub modules: u32,
    /// From a read over PCIe to its data.
    pub latency: Span,
    /// Standard deviation of that.
    pub sigma: Span,
    /// The scheduler's clock.
    pub cycle: Span,
    /// Cycles of one iteration: it looks at one class in each.
    pub cycles: u32,
    /// Bytes that a module fetches of a class before it asks the scheduler again; one packet at least.
    pub burst: Bytes,
}

impl Default for Fetch {
    fn default() -> Self {
        Self {
            modules: 1,
            latency: Span::ns(1_250),
            sigma: Span::ns(40),
            cycle: Span::ns(10),
            cycles: 5,
            burst: Bytes::new(1),
        }
    }
}

impl Scenario {
    /// Tenants as tables show them, those of one family under its name.
    pub(crate) fn shown_tenants(&self) -> Vec<&str> {
        families(self.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.family.as_deref())))
    }

    /// The workloads that ask for answers, each with one that stands for it.
    pub(crate) fn shown_asking(&self) -> Vec<(&str, &Workload)> {
        let asking = || self.workloads.iter().filter(|workload| workload.kind.has_latency());
        let shown = families(asking().map(|workload| (workload.name.as_str(), workload.family.as_deref())));
        let one = |name: &str| {
            asking().find(|workload| workload.name == name || workload.family.as_deref() == Some(name))
        };
        shown.into_iter().filter_map(|name| Some((name, one(name)?))).collect()
    }

    /// The families that `repeat` made, and the number of members.
    pub(crate) fn families(&self) -> Vec<(String, u64)> {
        let mut families: Vec<(String, u64)> = Vec::new();
        let tenants = self.tenants.iter().filter_map(|tenant| tenant.family.as_ref());
        for family in tenants.chain(self.workloads.iter().filter_map(|workload| workload.family.as_ref())) {
            match families.iter_mut().find(|(name, _)| name == family) {
                Some((_, count)) => *count += 1,
                None => families.push((family.clone(), 1)),
            }
        }
        families
    }

    /// Tenants and workloads of one family; nothing for a name that is none.
    pub(crate) fn family(&self, name: &str) -> Vec<&str> {
        let tenants = self.tenants.iter().map(|tenant| (tenant.name.as_str(), &tenant.family));
        let workloads = self.workloads.iter().map(|workload| (workload.name.as_str(), &workload.family));
        let members = tenants.chain(workloads).filter(|(_, family)| family.as_deref() == Some(name));
        members.map(|(member, _)| member).collect()
    }

    /// Where a tenant lives; `None` for a name that is none.
    #[must_use]
    pub fn tenant_address(&self, name: &str) -> Option<Ipv4Addr> {
        self.tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.address)
    }

    /// Where a destination is; `None` for a name that is none.
    #[must_use]
    pub fn destination_address(&self, name: &str) -> Option<Ipv4Addr> {
        self.destinations.iter().find(|place| place.name == name).map(|place| place.address)
    }
}

/// Names, but one for each family.
fn families<'a>(names: impl Iterator<Item = (&'a str, Option<&'a str>)>) -> Vec<&'a str> {
    let mut shown = Vec::new();
    for (name, family) in names {
        let name = family.unwrap_or(name);
        if shown.last() != Some(&name) && !shown.contains(&name) {
            shown.push(name);
        }
    }
    shown
}

impl SystemKind {
    /// Every kind.
    pub const ALL: [Self; 9] = [
        Self::Fifo,
        Self::Htb,
        Self::Plimsoll,
        Self::Sq,
        Self::Mq,
        Self::Qpf,
        Self::Ptb,
        Self::Hwrl,
        Self::ClassFetch,
    ];

    /// As the file spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Htb => "htb",
            Self::Plimsoll => "plimsoll",
            Self::Sq => "sq",
            Self::Mq => "mq",
            Self::Qpf => "qpf",
            Self::Ptb => "ptb",
            Self::Hwrl => "hwrl",
            Self::ClassFetch => "class_fetch",
        }
    }

    /// Whether it is a model of what no machine here has: it runs in virtual time only.
    #[must_use]
    pub const fn is_model(self) -> bool {
        matches!(self, Self::Ptb | Self::Hwrl | Self::ClassFetch)
    }

    /// Whether it runs on Plimsoll's engine with a policy file ([`Scenario::policy_file`]); the others are the
    /// kernel's.
    #[must_use]
    pub const fn on_engine(self) -> bool {
        matches!(self, Self::Plimsoll | Self::Mq | Self::Qpf)
    }
}

/// Traffic of one tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// As expectations and reports name it; unique among workloads and tenants.
    pub name: String,
    /// The tenant whose traffic it is.
    pub tenant: String,
    /// Its peer: one of [`Scenario::destinations`], or another tenant.
    pub to: String,
    /// Its kind.
    pub kind: Kind,
    /// When it begins, from the start of the run.
    pub start: Span,
    /// When it ends; at most the run's duration.
    pub stop: Span,
    /// DSCP of the tenant's packets.
    pub dscp: u8,
    /// Congestion control of its TCP; the world's own default without.
    pub congestion: Option<Congestion>,
    /// Port of the server's side; unique in the scenario.
    pub port: u16,
    /// Whether requests come evenly, from a random moment on, and not at random moments.
    pub even: bool,
    /// Its family, where one key stands for many (`repeat`).
    pub family: Option<String>,
    /// Where its name stands.
    pub place: Mark,
}

/// Which side of a request-response workload the tenant is; the other side lives at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The tenant asks; requests pass the engine.
    Client,
    /// The tenant answers; responses pass the engine.
    Server,
}

/// How long keys and values are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyValueSizes {
    /// As the workload says.
    #[default]
    Fixed,
    /// As in Facebook's general-purpose pool ETC (Atikoglu et al., SIGMETRICS 2012): sizes from its fitted
    /// distributions, one write for thirty reads.
    Etc,
}

/// How fast packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Evenly, at this rate of whole frames.
    Bits(BitRate),
    /// Evenly, at this packet rate.
    Packets(PacketRate),
    /// As fast as the sender can.
    Flood,
}

/// The kinds of workloads.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// TCP flows that always have something to send.
    Bulk {
        /// Connections.
        flows: u32,
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
        /// Bytes of frames that its socket holds until they have left; what comes on top is not held back if zero.
        buffer: Bytes,
        /// Senders that its datagrams claim to come from, each another one; its own if zero.
        claims: u32,
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
    /// As a Spark job shuffles: rounds in which each flow sends one block, the next round begins when all have
    /// arrived and the pause is over. A round is a request whose latency is its completion time.
    Shuffle {
        /// Connections.
        flows: u32,
        /// Bytes that each sends in a round.
        block: Bytes,
        /// Computation between rounds.
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
        /// As for request-response.
        rate: Option<u32>,
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
    /// As the file spells it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Bulk { .. } => "bulk",
            Self::Udp { .. } => "udp",
            Self::RequestResponse { .. } => "request_response",
            Self::Probe { .. } => "probe",
            Self::OnOff { .. } => "on_off",
            Self::Shuffle { .. } => "shuffle",
            Self::Iperf3 { .. } => "iperf3",
            Self::Memcached { .. } => "memcached",
            Self::Sockperf { .. } => "sockperf",
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
                | Self::Memcached { .. }
                | Self::Sockperf { .. }
        )
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

/// How finely to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measure {
    /// Throughput is counted in windows of this length.
    pub window: Span,
    /// Where the part of the run begins that tables and expectations speak of when they name no window.
    pub from: Span,
    /// Where it ends.
    pub to: Span,
    /// Whether CPU time is measured.
    pub cpu: bool,
    /// Whether the moment at which each packet crossed the uplink is kept.
    pub gaps: bool,
    /// Whether what engines hold is counted.
    pub held: bool,
    /// Whether each packet's wait on the way in is kept.
    pub ingress: bool,
    /// Whether each packet's wait on the way out is kept.
    pub egress: bool,
}

/// Mean times of a sender that sends and pauses in turn, both exponentially distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Of sending.
    pub on: Span,
    /// Of pausing.
    pub off: Span,
}

/// The parts of a policy file that a scenario carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct PolicySections {
    /// `policy:`.
    pub policy: Option<Tree>,
    /// `limits:`.
    pub limits: Option<Tree>,
    /// `tenants:` without what only a scenario knows.
    pub tenants: Vec<(String, Vec<(String, Tree)>)>,
    /// `engine:`.
    pub engine: Option<Tree>,
    /// Where paths of sub-policies start.
    pub base: PathBuf,
}
