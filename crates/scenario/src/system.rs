//! The systems that a scenario compares.
//!
//! Why: a claim about Plimsoll is a claim beside what Linux, earlier designs and other NICs do with the same traffic.
//! From: `docs/scenarios.md`, "systems"; Loom (NSDI 2019), SENIC (NSDI 2014), EyeQ and FairNIC (SIGCOMM 2020) for those
//! that are models.
//! Not here: reading them (`read::system`), building them (`lab`, `sim`).
//! Invariant: each name stands for one kind.

use plimsoll_units::{BitRate, Bytes, Span};

use crate::network::{Control, ControlLevel, Ingress, LoadBalancing, TransmitCompletions};
use crate::press::PressModel;
use crate::sections::PolicySections;

/// One of the systems that are compared.
#[derive(Clone, Debug)]
pub struct System {
    /// Its name in expectations and reports.
    pub name: String,
    /// Its kind.
    pub kind: SystemKind,
    /// Transmit queues of `mq`.
    pub queues: u32,
    /// Rate to which each of them is held (Loom, Figure 2), if any.
    pub queue_rate: Option<BitRate>,
    /// Timing of the systems that are models.
    pub model: Model,
    /// The order in which its hosts take received packets, where it runs on Plimsoll's engine; other systems have one queue.
    pub ingress: Ingress,
    /// How much of the scenario's control it has, where it runs on Plimsoll's engine.
    pub control: ControlLevel,
    /// Control for this system, where it differs from the scenario's.
    pub steering: Option<Control>,
    /// When its guests' descriptors complete, where that differs from what their hosts state.
    pub completions: Option<TransmitCompletions>,
    /// Whether each tenant has descriptors of its own; else each may take all.
    pub accounting: bool,
    /// Whether coprocessors of its hosts have a limiter.
    pub limiter: bool,
    /// Whether each tenant has colours of its own in its hosts' caches; else the memory of all meets in all of a cache.
    pub stripes: bool,
    /// Whether the scenario's faults are injected here.
    pub faults: bool,
    /// Whether the scenario's backpressure is at work here.
    pub backpressure: bool,
    /// How its backpressure differs in experiments, where it differs from what the scenario states; in virtual time.
    pub press_model: Option<PressModel>,
    /// Which of several equal ways its packets take, where it differs from what the scenario states; in virtual time.
    pub load_balancing: Option<LoadBalancing>,
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
    /// A SmartNIC's default egress: tenants' queues are served in turn, a packet at a time.
    RoundRobin,
    /// A node of a PIFO tree that ranks all tenants' packets, and shapes by pointers to itself (Loom, Figure 6).
    NodeShaping,
}

/// Timing of the systems that are models alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Time of each operation under HTB's one lock: a packet has two, one to enqueue and one to dequeue.
    pub lock: Span,
    /// CPU time of a packet of [`SystemKind::Ptb`] on the core that sends it.
    pub cost: Span,
    /// Limiters of [`SystemKind::Hwrl`].
    pub limiters: u32,
    /// How often the busiest tenants get a limiter each; `None`: tenants are assigned to limiters round robin, for good.
    pub reassign: Option<Span>,
    /// Timing of [`SystemKind::ClassFetch`].
    pub fetch: Fetch,
}

impl Default for Model {
    fn default() -> Self {
        Self { lock: Span::ZERO, cost: Span::ZERO, limiters: 16, reassign: None, fetch: Fetch::default() }
    }
}

/// SENIC's scheduler and its class-fetch modules (§6.2, §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Modules that fetch at the same time.
    pub modules: u32,
    /// Time from a read over PCIe to its data.
    pub latency: Span,
    /// Standard deviation of `latency`.
    pub sigma: Span,
    /// Cycle of the scheduler's clock.
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

impl SystemKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::Fifo,
        Self::Htb,
        Self::Plimsoll,
        Self::Sq,
        Self::Mq,
        Self::Qpf,
        Self::Ptb,
        Self::Hwrl,
        Self::ClassFetch,
        Self::RoundRobin,
        Self::NodeShaping,
    ];

    /// The kind's name in a file.
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
            Self::RoundRobin => "round_robin",
            Self::NodeShaping => "node_shaping",
        }
    }

    /// Whether it is a model, of hardware or of a system that Linux lacks: it runs in virtual time only.
    #[must_use]
    pub const fn is_model(self) -> bool {
        matches!(self, Self::Ptb | Self::Hwrl | Self::ClassFetch | Self::RoundRobin | Self::NodeShaping)
    }

    /// Whether it runs on Plimsoll's engine with a policy file ([`crate::Scenario::policy_file`]); the others are the
    /// kernel's.
    #[must_use]
    pub const fn on_engine(self) -> bool {
        matches!(self, Self::Plimsoll | Self::Mq | Self::Qpf)
    }
}
