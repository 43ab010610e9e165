//! A checked policy as data, for `--json`.

use plimsoll_units::{BitRate, Bytes, Span};
use schemars::JsonSchema;
use serde::Serialize;

use super::words::{describe_match, order_words, scope_words};
use crate::addresses::Addresses;
use crate::bounds::{ASSUMPTIONS, Bound, bounds};
use crate::check::promises::worst;
use crate::check::{Checked, cost};
use crate::config::Backpressure;
use crate::grain::Grain;
use crate::law::ProblemRecord;
use crate::offload::TenantProgram;
use crate::press::Ecn;
use crate::program::NodeKind;
use crate::slo::Slo;

/// Everything that `plimsoll check` prints.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Report {
    /// The operator's file.
    pub file: String,
    /// Rate of the uplink.
    pub link: BitRate,
    /// The uplink's second port, if it has one.
    pub standby: Option<StandbyRecord>,
    /// Largest frame.
    pub max_frame: Bytes,
    /// Every node, parents before children.
    pub nodes: Vec<NodeRecord>,
    /// Every class with what it is guaranteed.
    pub classes: Vec<ClassRecord>,
    /// Every tenant with what it is promised, and what follows.
    pub tenants: Vec<TenantRecord>,
    /// Every limit, those that enforce a `max` included.
    pub limits: Vec<LimitRecord>,
    /// The rules of classification; the first that matches decides.
    pub rules: Vec<RuleRecord>,
    /// The class of all other packets.
    pub default_class: String,
    /// How long the engine's thread may sleep while packets wait for a rate.
    pub grain: Grain,
    /// The flows that are counted, and what is done about heavy ones.
    pub backpressure: Option<Backpressure>,
    /// The assumptions that the guarantees rest on.
    pub assumptions: &'static str,
    /// Warnings for the author.
    pub warnings: Vec<ProblemRecord>,
}

/// The port that takes over while the uplink's first port has no carrier.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct StandbyRecord {
    /// The port, as the policy writes it.
    pub port: String,
    /// How long the first port must carry frames again before it takes back.
    pub hold_off: Span,
}

/// A node of the tree.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct NodeRecord {
    /// Path from the root.
    pub name: String,
    /// Its parent's path.
    pub parent: Option<String>,
    /// How it orders what is below it.
    pub order: String,
    /// Share among siblings.
    pub weight: u32,
    /// Its strict rate, below a `rate_share`.
    pub rate: Option<BitRate>,
    /// Effective minimum.
    pub min: Option<BitRate>,
    /// Rate it never exceeds.
    pub max: Option<BitRate>,
    /// Most descriptors that its flows hold, where it has a cap of its own.
    pub descriptors: Option<u32>,
    /// The tenant that it belongs to.
    pub tenant: Option<String>,
}

/// A class.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ClassRecord {
    /// Guarantees.
    #[serde(flatten)]
    pub bound: Bound,
    /// Nodes from the root, both ends counted.
    pub depth: u32,
    /// Estimated time that the engine spends on a packet.
    pub cost: Span,
}

/// A tenant.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct TenantRecord {
    /// The operator's name for it.
    pub name: String,
    /// Its promises, and the figures derived from them.
    #[serde(flatten)]
    pub slo: Slo,
    /// Burst of its `max`.
    pub burst: Option<Bytes>,
    /// Its longest delay on the way out; none without a bound.
    pub worst_out: Option<Span>,
    /// The longest on the way in, behind a full queue.
    pub worst_in: Span,
    /// `strict`, `router`, `off`, or `unbound` where it states no addresses.
    pub binding: &'static str,
    /// The addresses that it states, IP first.
    pub addresses: Vec<String>,
    /// Whether backpressure may change its packets.
    pub ecn: Ecn,
    /// The program that its packets pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<TenantProgram>,
}

/// A limit.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct LimitRecord {
    /// Its name.
    pub name: String,
    /// Its rate.
    pub rate: BitRate,
    /// Its burst.
    pub burst: Bytes,
    /// Packets it holds, of the classes that send through it.
    pub matches: String,
    /// The classes that send through it.
    pub via: Vec<String>,
}

/// A rule of classification.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RuleRecord {
    /// Conditions on its packets.
    pub matches: String,
    /// The class it then has.
    pub class: String,
}

/// A checked policy as data.
#[must_use]
pub fn report(checked: &Checked) -> Report {
    let program = &checked.program;
    let name = |id| program.node(id).name.clone();
    let nodes = program.nodes.iter().map(|node| NodeRecord {
        name: node.name.clone(),
        parent: node.parent.map(name),
        order: order_words(program, node),
        weight: node.weight,
        rate: node.rate,
        min: node.min,
        max: node.max.map(|max| program.limit(max).rate),
        descriptors: node.descriptors,
        tenant: node
            .tenant
            .and_then(|tenant| program.tenants.get(tenant.0 as usize))
            .map(|tenant| tenant.name.clone()),
    });
    let classes = bounds(program).into_iter().zip(cost(program)).map(|(bound, cost)| {
        debug_assert!(matches!(program.node(bound.class).kind, NodeKind::Class(_)), "bounds are of classes");
        ClassRecord { bound, depth: cost.depth, cost: cost.packet }
    });
    let tenants = program.tenants.iter().zip(worst(program)).map(|(tenant, worst)| {
        let node = program.node(tenant.node);
        let stated = checked.config.tenants.iter().find(|one| one.name == tenant.name);
        let ecn = stated.map(|one| one.ecn).unwrap_or_default();
        let program_of = stated.and_then(|one| one.program.clone());
        let stated = stated.map(|one| &one.addresses);
        TenantRecord {
            name: tenant.name.clone(),
            slo: tenant.slo.clone(),
            burst: node.max.filter(|_| node.tenant.is_some()).map(|max| program.limit(max).burst),
            worst_out: worst.egress.ok(),
            worst_in: worst.ingress,
            binding: stated.map_or("unbound", Addresses::word),
            addresses: stated.map_or_else(Vec::new, Addresses::texts),
            ecn,
            program: program_of,
        }
    });
    let limits = program.limits.iter().map(|limit| {
        let (matches, via) = scope_words(program, limit);
        LimitRecord { name: limit.name.clone(), rate: limit.rate, burst: limit.burst, matches, via }
    });
    let rules = program
        .rules
        .iter()
        .map(|rule| RuleRecord { matches: describe_match(program, &rule.matches), class: name(rule.class) });
    Report {
        file: checked.sources.files().first().map_or_else(String::new, |file| file.name.clone()),
        link: program.link,
        standby: checked
            .config
            .uplink
            .standby
            .as_ref()
            .map(|port| StandbyRecord { port: port.to_string(), hold_off: checked.config.uplink.hold_off }),
        max_frame: program.max_frame,
        nodes: nodes.collect(),
        classes: classes.collect(),
        tenants: tenants.collect(),
        limits: limits.collect(),
        rules: rules.collect(),
        default_class: name(program.default_class),
        backpressure: checked.config.backpressure.clone(),
        grain: Grain::of(&checked.program),
        assumptions: ASSUMPTIONS,
        warnings: checked.warning_records(),
    }
}
