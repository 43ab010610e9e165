//! Where a packet's time went, and which classes were served meanwhile.
//!
//! Why: "it is slow" has three causes here: its own flow's queue, a limit, or another class's turn; each has its own
//! remedy.
//! From: the departure log. A packet's wait is cut in three: behind its own flow (arrival to head of its queue), behind
//! limits (what the engine says it was parked), and the rest, in the tree. Of the rest, each departure in that time took
//! its wire time, at the node where its way to the root and the packet's meet.
//! Not here: the log (`departures`).
//! Invariant: the parts of a packet's delay add up to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use plimsoll_nic::NodeRank;
use plimsoll_policy::{LimitId, NodeId, Placement, Program, Tenant, TenantId};
use plimsoll_units::{BitRate, Bytes, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dataplane::method;
use crate::dataplane::{AskedBy, AskedNow, HeavyNow, Place, PortNow, PressedNow, Snapshot};
use crate::departures::Departure;
use crate::filter::{Filter, FilterError};
use crate::heavy::headers;

/// Packets looked at, the last ones that matched.
const SAMPLES: usize = 1_000;

/// Other departures looked at in one packet's wait, the last ones: bounds the work for a packet that waited long.
const WINDOW: usize = 2_000;

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// Path of the class that such a packet gets now.
    pub class: String,
    /// From the class to the root: where a packet would stand now at each node.
    pub ranks: Vec<RankNow>,
    /// Names of the limits that hold such a packet, with their rates in bits per second.
    pub limits: Vec<(String, u64)>,
    /// Frames that were turned away before they had a class, as they bore or claimed addresses that are not their tenant's:
    /// by reason, of the tenant that the filter names, or of all.
    #[serde(default)]
    pub turned_away: BTreeMap<String, u64>,
    /// Frames of the class that left with a mark, and that were dropped, because they had waited for too long (`flows: fq`).
    #[serde(default)]
    pub signalled: (u64, u64),
    /// The port by which such a packet leaves now, if it leaves by the uplink; none in answers of older daemons.
    #[serde(default)]
    pub uplink: Option<ActivePort>,
    /// Flows with such packets that backpressure holds, each in one line.
    #[serde(default)]
    pub slowed_down: Vec<String>,
    /// Packets in the log that matched, and were looked at.
    pub matched: usize,
    /// Departures in the log under the policy in force.
    pub logged: usize,
    /// Where their time went; none when nothing matched.
    pub time: Option<TimeSpent>,
}

/// The uplink's port that carries frames now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ActivePort {
    /// The port's own name; none while it is lost.
    pub name: Option<String>,
    /// Its key in the policy: `port`, or `standby` while that one is active.
    pub place: String,
    /// Whether it carries nothing now: it is lost, has no carrier or is set down.
    pub down: bool,
}

/// Where a packet would stand at one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankNow {
    /// Path of the node that orders.
    pub node: String,
    /// How it orders: `priority`, `wfq`, ...
    pub kind: String,
    /// Path of its child on the way to the class.
    pub child: String,
    /// Lower is sooner; what it counts depends on the node.
    pub rank: u64,
    /// Bits per second that the child has there, strictly; none where its share is not a rate.
    pub rate: Option<u64>,
}

/// Means over the packets looked at, in microseconds; the parts add up to the total.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimeSpent {
    /// From doorbell to port.
    pub total: f64,
    /// The longest total.
    pub longest: f64,
    /// Behind earlier packets of the same flow.
    pub own_flow: f64,
    /// Parked, by limit.
    pub limits: Vec<LimitTime>,
    /// In the tree, by node, root first.
    pub nodes: Vec<NodeTime>,
    /// Time in which no other packet departed: its own time on the wire, pacing, and the engine's work.
    pub rest: f64,
}

/// Time at one limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitTime {
    /// The limit's name.
    pub limit: String,
    /// Mean over all packets looked at.
    pub time: f64,
    /// Packets that it held longest.
    pub packets: usize,
    /// Classes that sent under the limit meanwhile.
    pub served: Vec<Served>,
}

/// Time at one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeTime {
    /// Path of the node.
    pub node: String,
    /// Mean over all packets looked at.
    pub time: f64,
    /// Classes that were served meanwhile.
    pub served: Vec<Served>,
}

/// A class that was served while others waited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Served {
    /// Path of the class.
    pub class: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Frames, or parts of them, while the packets looked at waited, a sum over all of these: one that two of them waited
    /// for counts twice.
    pub packets: u64,
    /// Their bytes, the same sum.
    pub bytes: u64,
}

/// Explains what `filter` matches, from the log and one snapshot. `ranks` asks the engine about a class.
#[must_use]
pub fn explain(snapshot: &Snapshot, log: &[Departure], filter: &Filter, ranks: &[NodeRank]) -> Explanation {
    let program = &*snapshot.program;
    let senders = senders(snapshot, filter);
    let placements: Vec<Placement> =
        senders.into_iter().map(|sender| place(snapshot, filter, sender)).collect();
    let class = placements[0].class;
    // Where a packet goes may depend on whose it is, which the filter leaves open.
    let open = placements.iter().any(|placement| placement.class != class);
    let of_all = |limit: &LimitId| placements.iter().all(|placement| placement.limits.contains(limit));
    let world = World::new(snapshot, log);
    let matching: Vec<usize> =
        (0..world.log.len()).rev().filter(|&index| world.matches(index, filter)).take(SAMPLES).collect();
    let classes: BTreeSet<NodeId> =
        matching.iter().filter(|_| open).map(|&index| world.log[index].passage.class).collect();
    let names: Vec<&str> = classes.iter().map(|&class| program.node(class).name.as_str()).collect();
    Explanation {
        class: match open {
            false => program.node(class).name.clone(),
            true if names.is_empty() => "that of its tenant: name one, as in `tenant=shop`".to_owned(),
            true if names.len() > MOST_NAMED => format!("{}, ..", names[..MOST_NAMED].join(", ")),
            true => names.join(", "),
        },
        ranks: ranks.iter().filter(|_| !open).map(|rank| rank_now(snapshot, rank)).collect(),
        limits: named_limits(program, placements[0].limits.iter().filter(|limit| !open && of_all(limit))),
        turned_away: turned_away(snapshot, filter),
        signalled: (!open)
            .then(|| snapshot.nodes.get(class.0 as usize))
            .flatten()
            .map_or((0, 0), |node| (node.counters.marked, node.counters.dropped)),
        uplink: Some(active_port(snapshot)),
        slowed_down: Vec::new(),
        matched: matching.len(),
        logged: world.log.len(),
        time: (!matching.is_empty()).then(|| world.time_spent(&matching)),
    }
}

fn active_port(snapshot: &Snapshot) -> ActivePort {
    let place = snapshot.standby.as_ref().map_or(Place::First, |both| both.active);
    let name = snapshot.uplink.port.clone();
    ActivePort { down: snapshot.uplink.down || name.is_none(), name, place: place.name().to_owned() }
}

/// Frames that were dropped before they had a class.
fn turned_away(snapshot: &Snapshot, filter: &Filter) -> BTreeMap<String, u64> {
    let meant = |name: &str| filter.tenant.as_ref().is_none_or(|tenant| tenant == name);
    let mut counts = BTreeMap::new();
    for lane in snapshot.lanes.iter().filter(|lane| meant(&lane.name)) {
        for (reason, count) in lane.tally.spoofs() {
            *counts.entry(reason.to_owned()).or_default() += count;
        }
    }
    counts
}

/// The class and limits of a packet that the filter describes; where it names no tenant, the first tenant's.
#[must_use]
pub fn placement(snapshot: &Snapshot, filter: &Filter) -> Placement {
    place(snapshot, filter, senders(snapshot, filter)[0])
}

/// The tenants that the packet could be of, at least one; of very many tenants only the first.
fn senders(snapshot: &Snapshot, filter: &Filter) -> Vec<Option<TenantId>> {
    let named = tenant_named(snapshot, filter);
    if filter.tenant.is_some() || class_named(snapshot, filter).is_some() {
        return vec![named];
    }
    let may: Vec<_> =
        (snapshot.program.senders(None, &filter.metadata).into_iter()).take(MOST_ASKED).map(Some).collect();
    if may.is_empty() { vec![None] } else { may }
}

/// Why the operator's words exclude the packets that a filter describes.
#[must_use]
pub(crate) fn excluded(snapshot: &Snapshot, filter: &Filter) -> Option<FilterError> {
    let named = tenant_named(snapshot, filter);
    if filter.tenant.is_some() && named.is_none() {
        // A reload has removed the tenant: nothing is stated of it any more.
        return None;
    }
    let why = snapshot.program.excludes(named, &filter.metadata)?;
    Some(FilterError::Excluded(why))
}

fn tenant_named(snapshot: &Snapshot, filter: &Filter) -> Option<TenantId> {
    let name = filter.tenant.as_ref()?;
    snapshot.lanes.iter().find(|lane| lane.name == *name)?.tenant
}

fn place(snapshot: &Snapshot, filter: &Filter, sender: Option<TenantId>) -> Placement {
    let (program, fields) = (&snapshot.program, filter.fields(sender));
    match class_named(snapshot, filter) {
        Some(class) => program.place(class, &fields),
        None => program.classify(&fields),
    }
}

fn class_named(snapshot: &Snapshot, filter: &Filter) -> Option<NodeId> {
    snapshot.program.find(filter.class.as_ref()?)
}

/// Tenants that a question without one is asked for.
const MOST_ASKED: usize = 100;
/// Classes that an answer names.
const MOST_NAMED: usize = 8;

fn rank_now(snapshot: &Snapshot, rank: &NodeRank) -> RankNow {
    let program = &snapshot.program;
    RankNow {
        node: program.node(rank.node).name.clone(),
        kind: crate::stats::kind_name(program.node(rank.node).kind).to_owned(),
        child: program.node(rank.child).name.clone(),
        rank: rank.rank,
        rate: snapshot.nodes[rank.child.0 as usize].rate.map(BitRate::get),
    }
}

fn named_limits<'a>(program: &Program, limits: impl Iterator<Item = &'a LimitId>) -> Vec<(String, u64)> {
    limits.map(|&id| program.limit(id)).map(|limit| (limit.name.clone(), limit.rate.get())).collect()
}

/// The log under one policy, in the order of departure.
struct World<'a> {
    snapshot: &'a Snapshot,
    log: Vec<&'a Departure>,
    tenants: HashMap<u16, &'a str>,
    lanes: HashMap<u16, Option<TenantId>>,
}

type Shares = BTreeMap<(NodeId, u16), (u64, u64)>;

/// Sums over the packets looked at, in nanoseconds.
#[derive(Default)]
struct Sums {
    total: u64,
    longest: u64,
    own_flow: u64,
    limits: BTreeMap<LimitId, (u64, usize, Shares)>,
    nodes: BTreeMap<NodeId, (u64, Shares)>,
    rest: u64,
}

impl<'a> World<'a> {
    fn new(snapshot: &'a Snapshot, log: &'a [Departure]) -> Self {
        let log =
            log.iter().filter(|departure| departure.passage.generation == snapshot.generation).collect();
        let numbered = |lane: &'a PortNow| Some((u16::try_from(lane.lane?).ok()?, lane));
        let lanes = || snapshot.lanes.iter().filter_map(numbered);
        let tenants = lanes().map(|(number, lane)| (number, lane.name.as_str())).collect();
        let lanes = lanes().map(|(number, lane)| (number, lane.tenant)).collect();
        Self { snapshot, log, tenants, lanes }
    }

    fn program(&self) -> &Program {
        &self.snapshot.program
    }

    fn matches(&self, index: usize, filter: &Filter) -> bool {
        let departure = self.log[index];
        let tenant = filter
            .tenant
            .as_ref()
            .is_none_or(|name| self.tenants.get(&departure.passage.lane) == Some(&name.as_str()));
        let class = filter.class.as_ref().is_none_or(|name| {
            let path = &self.program().node(departure.passage.class).name;
            path == name || path.ends_with(&format!("/{name}")) || path.starts_with(&format!("{name}/"))
        });
        tenant && class && filter.holds(departure, self.tenant_of(departure))
    }

    /// The tenant that a departure was of, if it is still one.
    fn tenant_of(&self, departure: &Departure) -> Option<&Tenant> {
        let TenantId(tenant) = (*self.lanes.get(&departure.passage.lane)?)?;
        self.program().tenants.get(tenant as usize)
    }

    fn time_spent(&self, packets: &[usize]) -> TimeSpent {
        let mut sums = Sums::default();
        for &index in packets {
            self.add(index, &mut sums);
        }
        let mean = |ns: u64| ns as f64 / packets.len() as f64 / 1e3;
        let limits = sums.limits.into_iter().map(|(id, (time, packets, served))| LimitTime {
            limit: self.program().limit(id).name.clone(),
            time: mean(time),
            packets,
            served: self.served(served),
        });
        let nodes = sums.nodes.into_iter().map(|(id, (time, served))| NodeTime {
            node: self.program().node(id).name.clone(),
            time: mean(time),
            served: self.served(served),
        });
        TimeSpent {
            total: mean(sums.total),
            longest: sums.longest as f64 / 1e3,
            own_flow: mean(sums.own_flow),
            limits: limits.collect(),
            nodes: nodes.collect(),
            rest: mean(sums.rest),
        }
    }

    /// Cuts one packet's delay into its parts.
    fn add(&self, index: usize, sums: &mut Sums) {
        let packet = self.log[index];
        let total = packet.passage.departed.since(packet.passage.arrived).as_u64();
        let head = packet.passage.head.max(packet.passage.arrived).min(packet.passage.departed);
        let own_flow = head.since(packet.passage.arrived).as_u64();
        let limited = packet.passage.limited.as_u64().min(total - own_flow);
        let in_tree = total - own_flow - limited;
        sums.total += total;
        sums.longest = sums.longest.max(total);
        sums.own_flow += own_flow;
        if let Some(limit) = packet.passage.limited_by {
            let released = head + plimsoll_units::Span::ns(limited);
            let (time, packets, served) = sums.limits.entry(limit).or_default();
            *time += limited;
            *packets += 1;
            for other in self.between(index, head, released).filter(|other| self.is_under(other, limit)) {
                count(served, other);
            }
        } else {
            sums.rest += limited;
        }
        sums.rest += self.add_tree(index, in_tree, sums);
    }

    /// Divides the time in the tree among the nodes; answers the part that no other packet's wire time explains.
    fn add_tree(&self, index: usize, in_tree: u64, sums: &mut Sums) -> u64 {
        let packet = self.log[index];
        let from = packet.passage.departed - plimsoll_units::Span::ns(in_tree);
        let others: Vec<_> = self.between(index, from, packet.passage.departed).collect();
        let wire = |other: &Departure| self.wire_time(other);
        let all: u64 = others.iter().map(|other| wire(other)).sum();
        for other in others {
            let node = self.meeting(packet.passage.class, other.passage.class);
            let (time, served) = sums.nodes.entry(node).or_default();
            // More wire time than wait: departures are noted in batches. Each then explains its part of the wait.
            *time += if all > in_tree { scale(wire(other), in_tree, all) } else { wire(other) };
            count(served, other);
        }
        in_tree.saturating_sub(all)
    }

    /// Other departures in `(from, to]` before this one, at most [`WINDOW`].
    fn between(&self, index: usize, from: Nanos, to: Nanos) -> impl Iterator<Item = &'a Departure> {
        let earlier = self.log[..index].iter().rev().take_while(move |other| other.passage.departed >= from);
        earlier
            .filter(move |other| other.passage.departed > from && other.passage.departed <= to)
            .take(WINDOW)
            .copied()
    }

    fn is_under(&self, other: &Departure, limit: LimitId) -> bool {
        let fields = plimsoll_policy::Fields {
            tenant: self.lanes.get(&other.passage.lane).copied().flatten(),
            addresses: other.addresses,
            protocol: other.addresses.map(|_| other.protocol),
            ports: other.ports,
            dscp: other.dscp,
            vlan: other.vlan,
            metadata: other.metadata,
        };
        self.program().place(other.passage.class, &fields).limits.contains(&limit)
    }

    fn wire_time(&self, other: &Departure) -> u64 {
        let around = self.program().overhead.as_u64() * u64::from(other.passage.frames);
        let len = Bytes::new(u64::from(other.passage.len) + around);
        self.program().link.wire_time(len).as_u64()
    }

    /// The node nearest the classes below which both lie; the class itself for two of its flows.
    fn meeting(&self, a: NodeId, b: NodeId) -> NodeId {
        let above: Vec<NodeId> = self.program().path(b).collect();
        self.program().path(a).find(|id| above.contains(id)).unwrap_or(NodeId(0))
    }

    /// The busiest ten.
    fn served(&self, shares: Shares) -> Vec<Served> {
        let mut served: Vec<Served> = shares
            .into_iter()
            .map(|((class, lane), (packets, bytes))| Served {
                class: self.program().node(class).name.clone(),
                tenant: self.tenants.get(&lane).copied().unwrap_or("a tenant that is gone").to_owned(),
                packets,
                bytes,
            })
            .collect();
        served.sort_by_key(|one| core::cmp::Reverse(one.bytes));
        served.truncate(10);
        served
    }
}

fn count(shares: &mut Shares, other: &Departure) {
    let (packets, bytes) = shares.entry((other.passage.class, other.passage.lane)).or_default();
    *packets += u64::from(other.passage.frames);
    *bytes += u64::from(other.passage.len);
}

/// `part / whole` of `of`, rounded down.
fn scale(part: u64, of: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * u128::from(of) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}

/// The flows with such packets that backpressure holds: to what rate, why, and by which method.
#[must_use]
pub fn slowed_down(filter: &Filter, now: Option<&HeavyNow>, asked: &[AskedNow], at: Nanos) -> Vec<String> {
    let watched =
        now.and_then(|now| now.watched.as_ref()).map_or_else(String::new, |watched| watched.what.to_string());
    let here = now.into_iter().flat_map(|now| &now.flows).filter_map(|heavy| {
        let PressedNow { rate, since, means, interval } = heavy.pressed?;
        let how = method(means, interval);
        let (flow, age) = (headers(&heavy.flow), at.since(since).as_secs_f64());
        let round_trip =
            heavy.round_trip.map_or_else(String::new, |took| format!("; its round trip is {took}"));
        let line = format!("{flow}: to {rate} for {age:.0}s, for the load of {watched}; {how}{round_trip}");
        // What comes from elsewhere is shown at its receiver: no tenant here sends it.
        let of = heavy.sender.as_ref().unwrap_or(&heavy.tenant);
        filter.may_be_of(&heavy.flow, Some(of)).then_some(line)
    });
    let there = asked.iter().filter_map(|AskedNow { flow, of, by, rate, since, .. }| {
        let why = match by {
            AskedBy::Host { to, host } => format!("as host {host} asks for its tenant {to}"),
            AskedBy::Receiver => "as its receiver reports marks (ECN)".to_owned(),
        };
        let age = at.since(*since).as_secs_f64();
        filter.may_be_of(flow, Some(of)).then(|| format!("{}: to {rate} for {age:.0}s, {why}", headers(flow)))
    });
    here.chain(there).collect()
}
