//! A scenario's hosts, and the links and control between them.
//!
//! Why: some questions concern several hosts, or a queue outside of the host.
//! From: `docs/scenarios.md`, "Hosts and links".
//! Not here: reading it (`read::network`), building them (`sim`; live `lab` builds hosts around one switch, and no models).
//! Invariant: every name refers to something that exists.

use plimsoll_control::Idle;
use plimsoll_policy::Mark;
use plimsoll_units::{BitRate, Bytes, PacketRate, Span};

use crate::partition::Partition;
use crate::program_cost::ProgramCost;
use crate::sections::PolicySections;

/// A machine.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its name, unique among hosts, switches and destinations.
    pub name: String,
    /// The place of its name; an empty one if the file names no host.
    pub place: Mark,
    /// What schedules its tenants' packets.
    pub nic: NicKind,
    /// Its receive ring; packets are taken at once without one.
    pub receive: Option<ReceiveRing>,
    /// The cores that process received packets, where each tenant has its own.
    pub partition: Option<Partition>,
    /// CPU time of its engine for a packet.
    pub cpu: EngineCost,
    /// CPU time of its tenants' cores; none without.
    pub cores: Option<CoreCost>,
    /// What its tenants' programs cost, in virtual time.
    pub programs: ProgramCost,
    /// How its guests send.
    pub transmit: TransmitRing,
    /// How its NIC reads packets; at no cost without one.
    pub pcie: Option<Pcie>,
    /// Most packets a second that its NIC sends, and that it receives.
    pub packet_rate: Option<PacketRate>,
    /// Sections that replace the scenario's own policy here.
    pub(crate) policy: Option<PolicySections>,
}

impl Host {
    /// A machine about which the file says nothing but its name.
    pub(crate) fn plain(name: &str, place: Mark) -> Self {
        Self {
            name: name.to_owned(),
            place,
            nic: NicKind::Engine,
            receive: None,
            partition: None,
            cpu: EngineCost::default(),
            cores: None,
            programs: ProgramCost::default(),
            transmit: TransmitRing::default(),
            pcie: None,
            packet_rate: None,
            policy: None,
        }
    }
}

/// What schedules the packets between a host's tenants and its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NicKind {
    /// What the system states.
    #[default]
    Engine,
    /// One queue, whatever the system states: Loom's second testbed had Loom at the sender only.
    Fifo,
}

/// A NIC's receive ring and the CPU that empties it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRing {
    /// Packets that it holds; a packet that finds it full is lost.
    pub ring: u32,
    /// CPU time to fetch one packet from the ring and to find its tenant.
    pub drain: Span,
    /// CPU time to deliver a fetched packet.
    pub cost: Span,
    /// Packets that each tenant's queue holds, where each has one.
    pub slots: u32,
    /// Packets that wait, from which on packets that come are marked if they are ECN-capable; in virtual time.
    pub ecn: Option<u32>,
    /// Part of the CPU's time, in thousandths, that fetching may take while fetched packets wait.
    pub drain_share: u32,
    /// CPU time of everything else in each of the engine's rounds. If zero, the CPU takes each packet as it comes; otherwise a
    /// round fetches the packets that are there and processes some of those that wait, and a packet that arrives meanwhile
    /// waits for the next round.
    pub round: Span,
    /// Whether these times are means, exponentially distributed; else each packet takes exactly as long.
    pub vary: bool,
}

/// The order in which a host's CPU takes received packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ingress {
    /// A queue for each tenant, served so that each has its share of the CPU (`nic`'s ingress).
    #[default]
    Fair,
    /// One queue, in the order of arrival.
    Shared,
}

/// How receivers control their senders' rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Control {
    /// From one decision to the next.
    pub epoch: Span,
    /// From a receiver's decision until its senders obey it.
    pub feedback: Span,
    /// How long a sender obeys a limit that is not repeated.
    pub lapse: Span,
    /// Rate of a sender towards a receiver that is silent; unlimited without.
    pub fallback: Option<BitRate>,
    /// The delay on the way in to which packet rates are held.
    pub threshold: Span,
    /// Part of an error in bandwidth, in thousandths, that is corrected in an epoch.
    pub gain: u32,
    /// Part of an excess in delay, in thousandths, that is cut from a packet rate in an epoch.
    pub cut: u32,
    /// Epochs that a further cut waits while the queue becomes shorter by itself; 0: none.
    pub patience: u32,
    /// Weight of an epoch, in thousandths, in the average of delays.
    pub newest: u32,
    /// Use of an idle tenant's minimum.
    pub idle: Idle,
    /// Whether the fabric's ECN marks slow senders down.
    pub ecn: bool,
    /// Tenants that are load balancers, by name, and each one's weight among them: receivers know them as one sender, whose
    /// rate is divided among them.
    pub balancers: Vec<(String, u32)>,
}

/// How much of the scenario's control a system has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlLevel {
    /// None.
    Off,
    /// Bandwidth only, as EyeQ.
    Bandwidth,
    /// Bandwidth and packet rate.
    #[default]
    Full,
}

/// CPU time that an engine's thread needs for each packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCost {
    /// Time to classify a packet and post its descriptor.
    pub process: Span,
    /// Time to choose a packet and read it.
    pub pull: Span,
}

/// CPU time that a tenant's core needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreCost {
    /// Time to answer a request, from its last byte to the answer's first.
    pub answer: Span,
    /// Time to send a packet.
    pub send: Span,
}

/// A guest's transmit ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitRing {
    /// Descriptors that a tenant may have outstanding.
    pub ring: u32,
    /// When they complete.
    pub completions: TransmitCompletions,
}

/// When a guest may use a transmit descriptor again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransmitCompletions {
    /// As soon as the engine has read the packet, as a TAP does it: the guest never learns of the queue.
    #[default]
    Early,
    /// When the packet has left, in the order of posting: one slow flow holds up the ring.
    InOrder,
    /// When the packet has left.
    OutOfOrder,
}

impl TransmitCompletions {
    /// Every variant, as the file spells it.
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("early", Self::Early), ("in_order", Self::InOrder), ("out_of_order", Self::OutOfOrder)];
}

impl Default for TransmitRing {
    fn default() -> Self {
        Self { ring: 256, completions: TransmitCompletions::Early }
    }
}

/// How a NIC reads packets from the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pcie {
    /// Rate of all lanes together.
    pub rate: BitRate,
    /// From a read request to its data.
    pub latency: Span,
    /// Payload bytes of one packet on the bus (TLP).
    pub tlp: Bytes,
    /// Bytes that each packet on the bus costs beyond its payload.
    pub overhead: Bytes,
    /// Bytes that the NIC reads for each packet beside the packet itself (its descriptor), in TLPs of their own.
    pub descriptor: Bytes,
    /// Read requests, of a TLP each, that may be outstanding at once.
    pub outstanding: u32,
}

impl Pcie {
    /// Bytes that a packet of `len` takes on the bus.
    #[must_use]
    pub fn charge(&self, len: Bytes) -> Bytes {
        let parts = |bytes: Bytes| bytes.as_u64().div_ceil(self.tlp.as_u64().max(1));
        let tlps = parts(len) + parts(self.descriptor);
        len + self.descriptor + self.overhead.times(tlps)
    }

    /// Bits a second of packets of `len` that the bus carries, without what it carries beside them. Rounded down.
    #[must_use]
    pub fn carries(&self, len: Bytes) -> u64 {
        let part = u128::from(self.most().get()) * u128::from(len.as_u64());
        u64::try_from(part / u128::from(self.charge(len).as_u64().max(1))).unwrap_or(u64::MAX)
    }

    /// The most that the bus moves, overhead included: its rate, or one TLP in each `latency` for each outstanding read.
    #[must_use]
    pub fn most(&self) -> BitRate {
        let tlps = u64::from(self.outstanding) * 1_000_000_000 / self.latency.as_u64().max(1);
        let bits = (self.tlp + self.overhead).as_u64() * 8;
        BitRate::new(tlps.saturating_mul(bits)).map_or(self.rate, |most| self.rate.min(most))
    }
}

/// A link between two of the hosts, switches and destinations.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// One end.
    pub from: String,
    /// The second end.
    pub to: String,
    /// Whether it carries packets in both directions.
    pub both: bool,
    /// Bits a second.
    pub rate: BitRate,
    /// Where its rate stands, or its name.
    pub place: Mark,
    /// From the last bit sent to the last bit received.
    pub delay: Span,
    /// Bytes that may wait at each end.
    pub queue: Bytes,
    /// Bytes of queue from which ECN-capable packets are marked.
    pub ecn: Option<Bytes>,
    /// Part of the packets that is lost.
    pub loss: f64,
    /// How its queue is kept short; in virtual time, as all that follows.
    pub aqm: Option<Aqm>,
    /// Most that a packet is late beyond `delay`; none overtakes another.
    pub jitter: Span,
    /// Packets that others overtake.
    pub reorder: Option<Reorder>,
    /// Bursts of loss.
    pub burst_loss: Option<BurstLoss>,
}

/// Active queue management of a link's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aqm {
    /// Random early detection (Floyd and Jacobson, 1993).
    Red(Red),
    /// Controlled delay (RFC 8289).
    Codel {
        /// How long packets may wait at all times.
        target: Span,
        /// How long they may wait for longer before one is dropped or marked.
        interval: Span,
    },
    /// Proportional integral controller enhanced (RFC 8033).
    Pie {
        /// How long packets are to wait.
        target: Span,
        /// How often its probability changes.
        update: Span,
    },
}

/// Thresholds of RED.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Average length of the queue from which on packets are dropped or marked.
    pub min: Bytes,
    /// Average length from which on all are dropped.
    pub max: Bytes,
    /// The part that is dropped or marked just below `max`.
    pub probability: f64,
    /// Weight of the present length in the average.
    pub weight: f64,
}

/// Packets that others overtake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reorder {
    /// The part of the packets.
    pub part: f64,
    /// Most that they are late, evenly distributed.
    pub late: Span,
}

/// Gilbert and Elliott's model of loss: a good and a bad state, with a chance of change at each packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BurstLoss {
    /// The chance that a burst begins at a packet.
    pub enter: f64,
    /// The chance that it ends at a packet.
    pub leave: f64,
    /// The part of the packets that is lost in a burst.
    pub loss: f64,
}

/// Which of several ways with equally few links a packet takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadBalancing {
    /// Equal-cost multipath: all packets of a flow take one way, chosen by a hash of its 5-tuple.
    #[default]
    Ecmp,
    /// Packet spraying: each packet takes a way of its own, at random.
    Spray,
}

impl LoadBalancing {
    /// Every variant, as the file spells it.
    pub(crate) const NAMES: [(&'static str, Self); 2] = [("ecmp", Self::Ecmp), ("spray", Self::Spray)];
}

/// Congestion control of a workload's TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 9438, Linux's default.
    #[default]
    Cubic,
    /// RFC 6582.
    NewReno,
    /// RFC 8257, with ECN.
    Dctcp,
    /// BBR, version 1.
    Bbr,
}

impl Congestion {
    /// Every variant, as the file spells it.
    pub const NAMES: [(&'static str, Self); 4] =
        [("cubic", Self::Cubic), ("newreno", Self::NewReno), ("dctcp", Self::Dctcp), ("bbr", Self::Bbr)];

    /// The name that Linux gives it.
    #[must_use]
    pub const fn of_linux(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::NewReno => "reno",
            Self::Dctcp => "dctcp",
            Self::Bbr => "bbr",
        }
    }
}
