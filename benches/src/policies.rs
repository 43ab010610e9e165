//! The policies that the engine is measured under.
//!
//! Why: built in code, because ten thousand tenants make a long file and the parser is not measured here.
//! From: the pattern of `rte_sched`'s pipes and queues; Loom §2.1, Figure 1.
//! Not here: the language (`plimsoll-policy`); the estimate of what they cost, which `crates/policy/tests/it/cost.rs`
//! compares with what was measured under these policies.
//! Invariant: parents come before their children.

use core::net::{IpAddr, Ipv4Addr};

use plimsoll_policy::{
    Counts, Fields, FlowOrder, Form, Limit, LimitId, Match, Metadata, Node, NodeId, NodeKind, Placement,
    Prefix, Program, Scope, Slo, Tenant, TenantId,
};
use plimsoll_units::{BitRate, Bytes, Span};

/// Bytes of each frame.
pub const FRAME: u32 = 1_500;

/// The uplink of every bench through memory: the engine paces it, and time moves as fast as it serves.
pub const LINK: BitRate = BitRate::gbps(100);

/// The sum of the limits of the throttled benches, in per cent of the link.
pub const THROTTLED_PERCENT: u64 = 70;

/// Grows a program node by node.
struct Builder(Program);

impl Builder {
    fn new(kind: NodeKind) -> Self {
        let root = Node {
            name: "root".to_owned(),
            parent: None,
            kind,
            weight: 1,
            rate: None,
            min: None,
            max: None,
            descriptors: None,
            children: Vec::new(),
            tenant: None,
            sender: None,
        };
        Self(Program {
            link: LINK,
            overhead: Bytes::ZERO,
            max_frame: Bytes::new(1_514),
            grain: None,
            nodes: vec![root],
            limits: Vec::new(),
            tenants: Vec::new(),
            rules: Vec::new(),
            default_class: NodeId(0),
            ranks: vec![],
        })
    }

    fn child(&mut self, parent: NodeId, name: &str, kind: NodeKind, weight: u32) -> NodeId {
        let id = NodeId(index(self.0.nodes.len()));
        let above = &mut self.0.nodes[parent.0 as usize];
        above.children.push(id);
        let tenant = above.tenant;
        let name = if parent == NodeId(0) { name.to_owned() } else { format!("{}/{name}", above.name) };
        self.0.nodes.push(Node {
            name,
            parent: Some(parent),
            kind,
            weight,
            rate: None,
            min: None,
            max: None,
            descriptors: None,
            children: Vec::new(),
            tenant,
            sender: None,
        });
        id
    }

    fn tenant(&mut self, parent: NodeId, name: &str, kind: NodeKind, weight: u32) -> NodeId {
        let node = self.child(parent, name, kind, weight);
        self.0.nodes[node.0 as usize].tenant = Some(TenantId(index(self.0.tenants.len())));
        self.0.tenants.push(Tenant {
            name: name.to_owned(),
            node,
            descriptors: u32::MAX,
            stated: Metadata::default(),
            from_client: true,
            slo: Slo::default(),
        });
        node
    }

    fn max(&mut self, node: NodeId, rate: BitRate, burst: u32) {
        let id = LimitId(index(self.0.limits.len()));
        let name = format!("max({})", self.0.nodes[node.0 as usize].name);
        self.0.nodes[node.0 as usize].max = Some(id);
        self.0.limits.push(Limit {
            counts: Counts::Bytes,
            name,
            rate,
            burst: Bytes::new(burst.into()),
            scope: Scope::Subtree(node),
        });
    }

    fn finish(mut self) -> Program {
        let class = self.0.nodes.iter().position(|node| matches!(node.kind, NodeKind::Class(_)));
        self.0.default_class = NodeId(index(class.expect("a policy has a class")));
        self.0
    }
}

/// `tenants` equal tenants below one `wfq`, each a class whose flow queues take turns.
pub fn equal_tenants(tenants: u32) -> Program {
    ordered_tenants(tenants, FlowOrder::Drr)
}

/// [`equal_tenants`], each a class with this order among its flow queues.
pub fn ordered_tenants(tenants: u32, order: FlowOrder) -> Program {
    let mut builder = Builder::new(NodeKind::Wfq);
    for tenant in 0..tenants {
        builder.tenant(NodeId(0), &format!("t{tenant}"), NodeKind::Class(order), 1);
    }
    builder.finish()
}

/// [`equal_tenants`] with a `max` for each; together they are [`THROTTLED_PERCENT`] of the link.
///
/// The rates differ by up to a factor of three, so that the limits do not come due in step.
pub fn throttled_tenants(tenants: u32) -> Program {
    let mut builder = Builder::new(NodeKind::Wfq);
    let share = |tenant: u32| 50 + u64::from(tenant.wrapping_mul(2_654_435_761) >> 16) % 101;
    let sum: u64 = (0..tenants).map(share).sum();
    let total = LINK.get() / 100 * THROTTLED_PERCENT;
    for tenant in 0..tenants {
        let node = builder.tenant(NodeId(0), &format!("t{tenant}"), NodeKind::Class(FlowOrder::Drr), 1);
        builder.max(node, BitRate::new(total * share(tenant) / sum).expect("a share above zero"), 2 * FRAME);
    }
    builder.finish()
}

/// `classes` classes below one `rate_share`, of rates that differ by up to a factor of three and are `percent` of the link
/// together.
pub fn paced_classes(form: Form, classes: u32, percent: u64) -> Program {
    let mut builder = Builder::new(NodeKind::RateShare(form));
    let share = |class: u32| 50 + u64::from(class.wrapping_mul(2_654_435_761) >> 16) % 101;
    let sum: u64 = (0..classes).map(share).sum();
    let total = u128::from(LINK.get() / 100 * percent);
    for class in 0..classes {
        let node = builder.child(NodeId(0), &format!("c{class}"), NodeKind::Class(FlowOrder::Fifo), 1);
        let rate = total * u128::from(share(class)) / u128::from(sum);
        builder.0.nodes[node.0 as usize].rate = BitRate::new(u64::try_from(rate).expect("below the link"));
    }
    builder.finish()
}

/// One class behind one limit of [`THROTTLED_PERCENT`] of the link, for any number of flow queues.
pub fn one_limit() -> Program {
    let mut builder = Builder::new(NodeKind::Wfq);
    let node = builder.tenant(NodeId(0), "all", NodeKind::Class(FlowOrder::Drr), 1);
    // A burst of more than the link carries between two calls of the engine, or the calls would be the limit.
    let rate = BitRate::new(LINK.get() / 100 * THROTTLED_PERCENT).expect("above zero");
    builder.max(node, rate, 64 * FRAME);
    builder.finish()
}

/// Destinations that Figure 1's operator limits, one by one, in every machine.
pub const DESTINATIONS: u32 = 16;

/// Loom's Figure 1: management first; then three virtual machines by weights 1, 2 and 4; in each, the key-value
/// store before a fair share of Hadoop and Spark; and limits by destination beside that tree. With the flow
/// queues of each application, five levels.
pub fn figure1() -> Program {
    let mut builder = Builder::new(NodeKind::Priority);
    let root = NodeId(0);
    builder.child(root, "management", NodeKind::Class(FlowOrder::Fifo), 1);
    let tenants = builder.child(root, "tenants", NodeKind::Wfq, 1);
    let mut machines = Vec::new();
    for (name, weight) in [("vm1", 1), ("vm2", 2), ("vm3", 4)] {
        let machine = builder.tenant(tenants, name, NodeKind::Priority, weight);
        builder.child(machine, "kvs", NodeKind::Class(FlowOrder::Fifo), 1);
        let analytics = builder.child(machine, "analytics", NodeKind::Wfq, 1);
        builder.child(analytics, "hadoop", NodeKind::Class(FlowOrder::Drr), 1);
        builder.child(analytics, "spark", NodeKind::Class(FlowOrder::Drr), 1);
        machines.push(machine);
    }
    for destination in 0..DESTINATIONS {
        // Each destination has room to spare: this bench is about the tree, and the packets pass the limits.
        let dst = vec![Prefix { addr: address_of(destination), len: 32 }];
        builder.0.limits.push(Limit {
            counts: Counts::Bytes,
            name: format!("dst{destination}"),
            rate: LINK,
            burst: Bytes::new(1 << 20),
            scope: Scope::Match { matches: Match { dst, ..Match::default() }, via: machines.clone() },
        });
    }
    builder.finish()
}

fn address_of(destination: u32) -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 200, 0, 0).to_bits() + destination).into()
}

/// `flows` flows dealt round the classes of a program, each to one of the [`DESTINATIONS`].
pub fn flows(program: &Program, flows: u32) -> Vec<Placement> {
    let classes = classes(program);
    let place = |flow: u32| {
        let class = classes[flow as usize % classes.len()];
        let destination = address_of(flow / 16 % DESTINATIONS);
        program.place(class, &Fields { addresses: Some((destination, destination)), ..Fields::default() })
    };
    (0..flows).map(place).collect()
}

/// A policy whose packets' cost `plimsoll check` estimates and the bench measures.
pub struct Costed {
    /// Its name in the table of `docs/performance.md`.
    pub name: &'static str,
    pub program: Program,
    /// Flow queues in all.
    pub flows: u32,
    /// Packets in them, where its limits and rates hold none back: few under strict priority, where most wait in the last class.
    pub inside: u32,
    /// Its limits or rates always hold packets back.
    pub binds: bool,
}

/// The policies that the estimate is held against.
pub fn costed() -> Vec<Costed> {
    let costed = |name, program: Program, flows, binds| {
        let inside = if program.nodes[0].kind == NodeKind::Priority { flows / 2 } else { 4 * flows };
        Costed { name, program, flows, inside: inside.min(32_768), binds }
    };
    vec![
        costed("64 tenants by weight", equal_tenants(64), 64 * 4, false),
        costed("1,024 tenants by weight", equal_tenants(1_024), 1_024 * 4, false),
        costed("4,096 tenants by weight", equal_tenants(4_096), 4_096 * 4, false),
        costed("one limit, 10 flows", one_limit(), 10, true),
        costed("one limit, 10,000 flows", one_limit(), 10_000, true),
        costed("64 limited tenants", throttled_tenants(64), 64, true),
        costed("1,024 limited tenants", throttled_tenants(1_024), 1_024, true),
        costed("10,000 limited tenants", throttled_tenants(10_000), 10_000, true),
        costed("16 strict rates, exact", paced_classes(Form::Exact, 16, 200), 16, true),
        costed("1,000 strict rates, grouped", paced_classes(Form::Grouped, 1_000, 200), 1_000, true),
        costed("100,000 strict rates, grouped", paced_classes(Form::Grouped, 100_000, 200), 100_000, true),
        costed("two levels of priority", levels(NodeKind::Priority, FlowOrder::Drr), 256, false),
        costed("two levels in turns", levels(NodeKind::Drr, FlowOrder::Drr), 256, false),
        costed("two levels by weight", levels(NodeKind::Wfq, FlowOrder::Drr), 256, false),
        costed("two levels by arrival", levels(NodeKind::Fifo, FlowOrder::Fifo), 256, false),
        costed("two levels by slack", levels(NodeKind::Lstf, FlowOrder::Lstf(Span::millis(10))), 256, false),
        costed("minima on two levels", with_minima(levels(NodeKind::Wfq, FlowOrder::Drr)), 256, false),
        costed("Figure 1 of Loom, 10,000 flows", figure1(), 10_000, false),
    ]
}

/// Two levels of one kind: a root over eight nodes, each over eight classes.
fn levels(kind: NodeKind, order: FlowOrder) -> Program {
    let mut builder = Builder::new(kind);
    for upper in 0..8 {
        let node = builder.child(NodeId(0), &format!("n{upper}"), kind, 1);
        for lower in 0..8 {
            builder.child(node, &format!("c{lower}"), NodeKind::Class(order), 1);
        }
    }
    builder.finish()
}

/// With a minimum of a hundredth of the link for each class, and their sums for the nodes above.
fn with_minima(mut program: Program) -> Program {
    for node in &mut program.nodes {
        let classes = node.children.len().max(1) as u64;
        node.min = if node.parent.is_some() { BitRate::new(LINK.get() / 100 * classes) } else { None };
    }
    program
}

/// The classes of a program, in the order of its nodes.
pub fn classes(program: &Program) -> Vec<NodeId> {
    let is_class = |node: &Node| matches!(node.kind, NodeKind::Class(_));
    (0_u32..).zip(&program.nodes).filter(|(_, node)| is_class(node)).map(|(id, _)| NodeId(id)).collect()
}

fn index(len: usize) -> u32 {
    u32::try_from(len).expect("fewer than 2^32 nodes")
}
