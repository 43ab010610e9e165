//! The compiled policy: flat tables that the engine installs.
//!
//! Why: the engine must not know the language, and the language must not know the engine's state.
//! From: Loom §3 (scheduling nodes form a tree; shaping cuts across it).
//! Not here: how a program comes about (`compile`) and what runs it (the crate `nic`).
//! Invariant: a parent's index is lower than its children's; node 0 is the root; every index is in range.

use core::net::IpAddr;
use std::sync::Arc;

use plimsoll_units::{BitRate, Bytes, Span};

use crate::slo::Slo;

/// Index into [`Program::nodes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Index into [`Program::limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitId(pub u32);

/// Index into [`Program::ranks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankId(pub u32);

/// Index into [`Program::tenants`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// A checked policy, ready to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Rate of the uplink.
    pub link: BitRate,
    /// Bytes added to each frame when it is charged (20 for preamble and gap, 24 with the check sequence, or 0).
    pub overhead: Bytes,
    /// Largest frame on the uplink, Ethernet header included.
    pub max_frame: Bytes,
    /// The longest wake-up grain; what [`Grain`](crate::Grain) says when absent.
    pub grain: Option<Span>,
    /// The scheduling tree, parents before children; the root is first.
    pub nodes: Vec<Node>,
    /// Every limit: those that a `limits:` entry states, and one for each `max`.
    pub limits: Vec<Limit>,
    /// The tenants, each with a vNIC.
    pub tenants: Vec<Tenant>,
    /// Classification: the first rule that matches decides the class.
    pub rules: Vec<Rule>,
    /// Class of what no rule matches.
    pub default_class: NodeId,
    /// The rank programs that nodes name, each once.
    pub ranks: Vec<RankProgram>,
}

/// A rank program that a policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankProgram {
    /// Its file.
    pub module: String,
    /// What the file says.
    pub code: Arc<plimsoll_rank::Program>,
    /// Most WebAssembly instructions that it takes for a packet, on arrival and when it leaves.
    pub instructions: u64,
}

/// A node of the scheduling tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Path from the root, as the operator writes it: `tenants/shop/web`. The root's is `root`.
    pub name: String,
    /// The node above it, nearer the root.
    pub parent: Option<NodeId>,
    /// How its children, or its flow queues, are ordered.
    pub kind: NodeKind,
    /// Share among siblings below a `wfq` or `drr` node; 1 elsewhere.
    pub weight: u32,
    /// The strict rate that it gets, and no more, below a `rate_share` node; none elsewhere.
    pub rate: Option<BitRate>,
    /// Served first, before weights or priorities divide the rest. Includes what the children promise.
    pub min: Option<BitRate>,
    /// The limit that enforces this node's `max`.
    pub max: Option<LimitId>,
    /// Most descriptors that the flow queues below it hold at a time, beside its tenant's cap. The nearest node's counts.
    pub descriptors: Option<u32>,
    /// In the order that the policy lists them (a `priority` node's first child is served first).
    pub children: Vec<NodeId>,
    /// The tenant whose subtree this is, if a tenant's.
    pub tenant: Option<TenantId>,
    /// Of a class outside tenants' subtrees: the tenant that sends all of its packets, if its matches name one.
    pub sender: Option<TenantId>,
}

/// How a node orders what lies below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Strict priority: the first listed child with a packet.
    Priority,
    /// Weighted fair queueing with WF²Q+ guarantees.
    Wfq,
    /// Deficit round robin.
    Drr,
    /// The child whose packet arrived first.
    Fifo,
    /// The child whose packet has the least slack.
    Lstf,
    /// The child whose packet has the earliest deadline.
    Edf,
    /// The child whose packet has the least rank, which a program gave the packet on arrival.
    Program(RankId),
    /// Each child its rate, strictly and in real time; in the ratio of the rates when there is less (SENIC).
    RateShare(Form),
    /// A class: it holds flow queues.
    Class(FlowOrder),
}

impl RankProgram {
    /// About how long the engine takes to run it for a packet.
    #[must_use]
    pub fn nanoseconds(&self) -> u64 {
        CALLS + self.instructions.div_ceil(PER_NANOSECOND)
    }
}

/// Calling its two functions, in nanoseconds: measured.
const CALLS: u64 = 20;
/// Instructions of a nanosecond: 2.1 to 2.8 were measured with the examples, so that the estimate is rather too high.
const PER_NANOSECOND: u64 = 2;

impl NodeKind {
    /// Whether it orders its children by their packets.
    #[must_use]
    pub fn looks_at_packets(self) -> bool {
        matches!(self, Self::Fifo | Self::Lstf | Self::Edf | Self::Program(_))
    }
}

/// How a node with many children looks for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By the definition: time grows with the logarithm of the active children.
    Exact,
    /// With rounded times, in constant time (QFQ).
    Grouped,
}

/// How a class orders its flow queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowOrder {
    /// By arrival of the head packet.
    Fifo,
    /// One packet's worth of bytes a turn for each flow, whatever its packets' sizes.
    Drr,
    /// Least slack first; packets that bring no slack have this one.
    Lstf(Span),
    /// Earliest deadline first; packets that bring no deadline have this one.
    Edf(Span),
    /// By the rank that a program above the class gave the head packet; packets that bring no slack or deadline have this one.
    Ranked(Span),
    /// Turns as [`FlowOrder::Drr`], flows that have just begun first; each flow's queue is kept short by CoDel (RFC 8290).
    Fq(Codel),
}

/// When a flow's queue is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codel {
    /// How long packets may wait at all times.
    pub target: Span,
    /// How long they may wait for longer than that before one is marked or dropped.
    pub interval: Span,
}

impl Codel {
    /// RFC 8289's own, of a class that is fast enough and has no shorter delay target.
    pub const DEFAULT: Self = Self { target: Span::millis(5), interval: Span::millis(100) };
}

/// A rate that the policy states, enforced by waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The operator's name; a class's `max` is called `max(PATH)`.
    pub name: String,
    /// The unit that it counts.
    pub counts: Counts,
    /// Bits per second that may leave; of packets, each counts as eight bits.
    pub rate: BitRate,
    /// Bytes that may leave at once after a pause (RFC 2697's committed burst size); of packets, each counts as a byte.
    pub burst: Bytes,
    /// Which packets it holds to its rate.
    pub scope: Scope,
}

/// The unit that a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// Bytes, as on the wire.
    #[default]
    Bytes,
    /// Frames, whatever their length.
    Packets,
}

/// The packets that a limit applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "limits are few, and read when a flow is placed")]
pub enum Scope {
    /// Everything below this node (`max`).
    Subtree(NodeId),
    /// Packets that match, of the classes below any of these nodes (`via`).
    Match {
        /// Conditions on its packets.
        matches: Match,
        /// The nodes that send through this limit; the root when it holds everywhere.
        via: Vec<NodeId>,
    },
    /// Flow queues to this peer, whose limits others state while the program runs (`peers`).
    Peer(u32),
}

/// A tenant, which holds a vNIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The operator's name.
    pub name: String,
    /// The node below which all of its classes lie.
    pub node: NodeId,
    /// Descriptors that it may have in the engine; past them its port is not read.
    pub descriptors: u32,
    /// What the operator states of all its packets: the control group and the user, where the policy has them.
    pub stated: Metadata,
    /// Whether its port is a vNIC, whose client may say what the operator does not state.
    pub from_client: bool,
    /// Its promises in both directions, and the figures derived from them.
    pub slo: Slo,
}

/// Which class a packet belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Conditions on its packets.
    pub matches: Match,
    /// The class that it then has.
    pub class: NodeId,
}

/// Conditions on a packet: empty ones hold always, and all of them must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// The tenant whose port it came from, any of these; a rule names one at most.
    pub tenant: Vec<TenantId>,
    /// Source address in any of these.
    pub src: Vec<Prefix>,
    /// Destination address in any of these.
    pub dst: Vec<Prefix>,
    /// IP protocol number.
    pub protocol: Vec<u8>,
    /// Source port in any of these ranges, ends included.
    pub src_port: Vec<(u16, u16)>,
    /// Destination port in any of these ranges, ends included.
    pub dst_port: Vec<(u16, u16)>,
    /// DSCP (the upper six bits of the traffic class).
    pub dscp: Vec<u8>,
    /// VLAN identifier; `Some(0)` is a frame without a tag.
    pub vlan: Vec<u16>,
    /// Socket priority that came with the descriptor.
    pub priority: Vec<u32>,
    /// Control group that came with the descriptor.
    pub cgroup: Vec<u64>,
    /// User that came with the descriptor.
    pub user: Vec<u32>,
    /// Application that came with the descriptor.
    pub app: Vec<u32>,
    /// Transmit core, for the one-queue-per-core baseline (Loom §6, "MQ").
    pub core: Vec<u16>,
}

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// Any address inside; bits beyond `len` are zero.
    pub addr: IpAddr,
    /// Leading bits that count.
    pub len: u8,
}

/// The fields that classification looks at: the header's, and the descriptor's metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fields {
    /// The tenant whose port it came from.
    pub tenant: Option<TenantId>,
    /// Source and destination address, for IP.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source and destination port, for TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// DSCP, for IP.
    pub dscp: u8,
    /// VLAN identifier; 0 without a tag.
    pub vlan: u16,
    /// Metadata that the host gave with the descriptor.
    pub metadata: Metadata,
}

/// Metadata that comes with a descriptor (Loom §4.3.2); absent values match no condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// Socket priority (`SO_PRIORITY`).
    pub priority: Option<u32>,
    /// Control group.
    pub cgroup: Option<u64>,
    /// User.
    pub user: Option<u32>,
    /// Application.
    pub app: Option<u32>,
    /// Transmit core.
    pub core: Option<u16>,
}

/// Fields of [`Metadata`] that a policy looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookedAt {
    /// Socket priority.
    pub priority: bool,
    /// Control group.
    pub cgroup: bool,
    /// User.
    pub user: bool,
    /// Application.
    pub app: bool,
    /// Transmit core.
    pub core: bool,
}

/// Where a flow queue belongs: its class, and the limits that hold it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placement {
    /// A node of kind [`NodeKind::Class`].
    pub class: NodeId,
    /// In the order in which a packet passes them: `max` from the class outwards, then the policy's limits in
    /// the order of the file.
    pub limits: Vec<LimitId>,
}

impl Metadata {
    /// Only the fields that a policy looks at: the others tell no packets apart.
    #[must_use]
    pub fn masked(self, looked_at: LookedAt) -> Self {
        Self {
            priority: self.priority.filter(|_| looked_at.priority),
            cgroup: self.cgroup.filter(|_| looked_at.cgroup),
            user: self.user.filter(|_| looked_at.user),
            app: self.app.filter(|_| looked_at.app),
            core: self.core.filter(|_| looked_at.core),
        }
    }
}

impl Tenant {
    /// The metadata of a packet of this tenant: what the operator states, else what `said` has, which came with the packet.
    #[must_use]
    pub fn metadata(&self, said: Metadata) -> Metadata {
        Metadata { cgroup: self.stated.cgroup.or(said.cgroup), user: self.stated.user.or(said.user), ..said }
    }

    /// The field of `wanted` that no packet of this tenant has, as the operator states another value: the field and that value.
    #[must_use]
    pub fn contradicts(&self, wanted: &Metadata) -> Option<(&'static str, u64)> {
        let differs = |stated: Option<u64>, wanted: Option<u64>| {
            stated.filter(|&it| wanted.is_some_and(|other| other != it))
        };
        let cgroup = differs(self.stated.cgroup, wanted.cgroup).map(|stated| ("cgroup", stated));
        cgroup.or_else(|| {
            let [stated, wanted] = [self.stated.user, wanted.user].map(|user| user.map(u64::from));
            differs(stated, wanted).map(|stated| ("user", stated))
        })
    }

    /// The first field of `wanted` that no packet of this tenant has, as neither its port nor the operator fills it.
    #[must_use]
    pub fn lacks(&self, wanted: &Metadata) -> Option<&'static str> {
        let Metadata { priority, cgroup, user, app, core } = *wanted;
        let fields = [
            ("priority", priority.is_some()),
            ("cgroup", cgroup.is_some() && self.stated.cgroup.is_none()),
            ("user", user.is_some() && self.stated.user.is_none()),
            ("app", app.is_some()),
            ("core", core.is_some()),
        ];
        let mut lacking = fields.into_iter().filter(|(_, lacks)| *lacks && !self.from_client);
        lacking.next().map(|(field, _)| field)
    }
}

impl LookedAt {
    /// Whether no field is looked at.
    #[must_use]
    pub fn nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Program {
    /// Which metadata may change the place of a tenant's packets. Linear in the number of rules and limits.
    #[must_use]
    pub fn metadata_of(&self, tenant: TenantId) -> LookedAt {
        let limits = self.limits.iter().filter_map(|limit| match &limit.scope {
            Scope::Match { matches, .. } => Some(matches),
            Scope::Subtree(_) | Scope::Peer(_) => None,
        });
        let all = self.rules.iter().map(|rule| &rule.matches).chain(limits);
        let concerned = all.filter(|matches| lists(&matches.tenant, Some(tenant)));
        concerned.fold(LookedAt::default(), |so_far, matches| LookedAt {
            priority: so_far.priority || !matches.priority.is_empty(),
            cgroup: so_far.cgroup || !matches.cgroup.is_empty(),
            user: so_far.user || !matches.user.is_empty(),
            app: so_far.app || !matches.app.is_empty(),
            core: so_far.core || !matches.core.is_empty(),
        })
    }

    /// The node behind an id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// The limit behind an id.
    #[must_use]
    pub fn limit(&self, id: LimitId) -> &Limit {
        &self.limits[id.0 as usize]
    }

    /// The node that an operator names by its path, or by an end of the path that no other node's path has.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let ids = || (0..).map(NodeId).zip(&self.nodes);
        let whole = ids().find(|(_, node)| node.name == name);
        let mut ends =
            ids().filter(|(_, node)| node.name.strip_suffix(name).is_some_and(|path| path.ends_with('/')));
        whole.or_else(|| ends.next().filter(|_| ends.next().is_none())).map(|(id, _)| id)
    }

    /// The most that can reach a node in real time: the least rate of its own and those above it, and of the link.
    #[must_use]
    pub fn drain(&self, id: NodeId) -> BitRate {
        self.path(id).filter_map(|id| self.node(id).rate).fold(self.link, BitRate::min)
    }

    /// The program as the engine runs it: `drr` above or below a limited node becomes weighted fair queueing. A round would
    /// forget a child that left it for a limit, and its shares would be off.
    #[must_use]
    pub fn carried_out(&self) -> Self {
        let mut program = self.clone();
        for (node, limited) in program.nodes.iter_mut().zip(self.limited()) {
            if limited && node.kind == NodeKind::Drr {
                node.kind = NodeKind::Wfq;
            }
        }
        program
    }

    /// For each node, whether a limit may hold it, a node above it, or a node below it.
    fn limited(&self) -> Vec<bool> {
        let mut limited = vec![false; self.nodes.len()];
        for limit in &self.limits {
            match &limit.scope {
                Scope::Subtree(node) => limited[node.0 as usize] = true,
                Scope::Match { via, .. } => via.iter().for_each(|node| limited[node.0 as usize] = true),
                Scope::Peer(_) => limited[0] = true,
            }
        }
        let direct = limited.clone();
        for id in (1..self.nodes.len()).rev() {
            let parent = self.nodes[id].parent.map_or(0, |parent| parent.0 as usize);
            limited[parent] |= limited[id];
        }
        let mut below = direct;
        for id in 1..self.nodes.len() {
            let parent = self.nodes[id].parent.map_or(0, |parent| parent.0 as usize);
            below[id] |= below[parent];
            limited[id] |= below[id];
        }
        limited
    }

    /// From `id` to the root, both included.
    pub fn path(&self, id: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        core::iter::successors(Some(id), |&id| self.node(id).parent)
    }

    /// Why no tenant sends a packet with this metadata: the operator states other values, or no port fills a field. None where
    /// such a packet may exist. Without a tenant, it may be any tenant's.
    #[must_use]
    pub fn excludes(&self, tenant: Option<TenantId>, metadata: &Metadata) -> Option<String> {
        if let Some(tenant) = tenant {
            let tenant = &self.tenants[tenant.0 as usize];
            let name = &tenant.name;
            if let Some((field, stated)) = tenant.contradicts(metadata) {
                return Some(format!(
                    "the `{field}` of tenant `{name}` is {stated}, so it sends no such packet"
                ));
            }
            let field = tenant.lacks(metadata)?;
            let or_stated = if matches!(field, "cgroup" | "user") { ", or the tenant's own key" } else { "" };
            let fills = format!("a `vnic` port fills it, from what its client says{or_stated}");
            return Some(format!("the port of tenant `{name}` fills no `{field}`; {fills}"));
        }
        let none = !self.tenants.is_empty() && self.senders(None, metadata).is_empty();
        none.then(|| {
            let lacks = self.tenants.iter().find_map(|tenant| tenant.lacks(metadata));
            match lacks {
                Some(field) if self.tenants.iter().all(|tenant| tenant.lacks(metadata).is_some()) => {
                    format!("no port of this policy fills `{field}`; a `vnic` port fills it, from what its client says")
                }
                _ => "each tenant has another `cgroup` or `user`, or a port that does not fill them, so none sends such a packet".to_owned(),
            }
        })
    }

    /// The tenants that a packet with this metadata may be of: `tenant` alone where it is known.
    #[must_use]
    pub fn senders(&self, tenant: Option<TenantId>, metadata: &Metadata) -> Vec<TenantId> {
        let all = (0..).map(TenantId).zip(&self.tenants);
        let may = all.filter(|(id, one)| {
            let has = one.contradicts(metadata).is_none() && one.lacks(metadata).is_none();
            has && tenant.is_none_or(|tenant| tenant == *id)
        });
        may.map(|(id, _)| id).collect()
    }

    /// The class and the limits of such a packet. Linear in the number of rules: once per flow, not per packet.
    #[must_use]
    pub fn classify(&self, fields: &Fields) -> Placement {
        let rule = self.rules.iter().find(|rule| rule.matches.holds(fields));
        self.place(rule.map_or(self.default_class, |rule| rule.class), fields)
    }

    /// The limits that hold such a packet in `class`.
    #[must_use]
    pub fn place(&self, class: NodeId, fields: &Fields) -> Placement {
        let maxima = self.path(class).filter_map(|id| self.node(id).max);
        let matching = (0_u32..).zip(&self.limits).filter_map(|(index, limit)| match &limit.scope {
            Scope::Match { matches, via } => {
                let sends_through = self.path(class).any(|id| via.contains(&id));
                (sends_through && matches.holds(fields)).then_some(LimitId(index))
            }
            Scope::Subtree(_) | Scope::Peer(_) => None,
        });
        Placement { class, limits: maxima.chain(matching).collect() }
    }
}

impl Match {
    /// Whether every condition holds for such a packet.
    #[must_use]
    pub fn holds(&self, fields: &Fields) -> bool {
        let metadata = &fields.metadata;
        lists(&self.tenant, fields.tenant)
            && covers(&self.src, fields.addresses.map(|(src, _)| src))
            && covers(&self.dst, fields.addresses.map(|(_, dst)| dst))
            && lists(&self.protocol, fields.protocol)
            && ranges(&self.src_port, fields.ports.map(|(src, _)| src))
            && ranges(&self.dst_port, fields.ports.map(|(_, dst)| dst))
            && lists(&self.dscp, fields.addresses.map(|_| fields.dscp))
            && lists(&self.vlan, Some(fields.vlan))
            && lists(&self.priority, metadata.priority)
            && lists(&self.cgroup, metadata.cgroup)
            && lists(&self.user, metadata.user)
            && lists(&self.app, metadata.app)
            && lists(&self.core, metadata.core)
    }
}

impl Prefix {
    /// Whether `addr` lies inside.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.addr, addr) {
            (IpAddr::V4(net), IpAddr::V4(addr)) => {
                let shift = 32_u32.saturating_sub(self.len.into());
                u32::from(net).checked_shr(shift) == u32::from(addr).checked_shr(shift)
            }
            (IpAddr::V6(net), IpAddr::V6(addr)) => {
                let shift = 128_u32.saturating_sub(self.len.into());
                u128::from(net).checked_shr(shift) == u128::from(addr).checked_shr(shift)
            }
            _ => false,
        }
    }
}

impl core::str::FromStr for Prefix {
    type Err = PrefixError;

    /// Reads `10.0.0.0/8`, `2001:db8::/32`, or an address alone; clears the bits behind the length.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (addr, len) = text.split_once('/').map_or((text, None), |(addr, len)| (addr, Some(len)));
        let addr: IpAddr = addr.trim().parse().map_err(|_| PrefixError)?;
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => whole,
            Some(len) => len.trim().parse().ok().filter(|len| *len <= whole).ok_or(PrefixError)?,
        };
        let addr = match addr {
            IpAddr::V4(addr) => {
                let mask = u32::MAX.checked_shl(u32::from(whole - len)).unwrap_or(0);
                IpAddr::V4((u32::from(addr) & mask).into())
            }
            IpAddr::V6(addr) => {
                let mask = u128::MAX.checked_shl(u32::from(whole - len)).unwrap_or(0);
                IpAddr::V6((u128::from(addr) & mask).into())
            }
        };
        Ok(Self { addr, len })
    }
}

impl core::fmt::Display for Prefix {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let whole = if self.addr.is_ipv4() { 32 } else { 128 };
        if self.len == whole { write!(f, "{}", self.addr) } else { write!(f, "{}/{}", self.addr, self.len) }
    }
}

impl serde::Serialize for Prefix {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A text that is no address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address or prefix such as `10.0.0.0/8`")]
pub struct PrefixError;

/// An empty list asks for nothing; otherwise the packet must have the value, and it must be listed.
fn lists<T: PartialEq>(wanted: &[T], value: Option<T>) -> bool {
    wanted.is_empty() || value.is_some_and(|value| wanted.contains(&value))
}

fn ranges(wanted: &[(u16, u16)], value: Option<u16>) -> bool {
    wanted.is_empty()
        || value.is_some_and(|value| wanted.iter().any(|&(from, to)| (from..=to).contains(&value)))
}

fn covers(wanted: &[Prefix], addr: Option<IpAddr>) -> bool {
    wanted.is_empty() || addr.is_some_and(|addr| wanted.iter().any(|prefix| prefix.contains(addr)))
}
