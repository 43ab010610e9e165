//! Counters with names on them: what the API, `plimsoll stats` and `plimsoll top` show.
//!
//! Why: a class is `tenants/shop/web` to an operator and number 7 to the engine.
//! From: one [`Snapshot`] and the policy that was in force when it was taken.
//! Not here: counting (`dataplane`), Prometheus' text (`prometheus`).
//! Invariant: an inner node's numbers are the sums of its classes'.

use std::collections::{BTreeMap, BTreeSet};

use hdrhistogram::Histogram;
use plimsoll_control::Limits;
use plimsoll_nic::{ClassCounters, Refusal, WAITED_TOO_LONG};
use plimsoll_policy::{FlowOrder, NodeId, NodeKind, Program, Scope};
use plimsoll_ports::{Counters, DropReason, PairCounters};
use plimsoll_slo::{Parts, PromiseSeconds};
use plimsoll_units::{BitRate, PacketRate};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::dataplane::{
    FleetNow, FlowsNow, HostNow, LeasesNow, OnePort, PairNow, Place, PortNow, ProgramNow, ReceiverNow,
    Snapshot, StandbyNow,
};
use crate::heavy::WatchedRow;

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Seconds since the daemon started.
    pub uptime: f64,
    /// How many reloads there have been.
    pub generation: u16,
    /// Bits per second of the uplink.
    pub link: u64,
    /// Every node of the policy, parents before children.
    pub nodes: Vec<NodeStats>,
    /// Limits, by name.
    pub limits: BTreeMap<String, LimitStats>,
    /// Tenants' ports, by the tenant's name.
    pub tenants: BTreeMap<String, PortStats>,
    /// The uplink's port; of two, all that both carried, and the active one's name.
    pub uplink: PortStats,
    /// Its two ports, where it has a standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyStats>,
    /// Seconds in which the uplink dropped more than 10,000 packets before the engine read them.
    #[serde(default)]
    pub nic_drop_seconds: u64,
    /// Seconds in which tenants' promises were judged, by the tenant's name; without tenants that are promised nothing.
    #[serde(default)]
    pub promises: BTreeMap<String, PromiseSeconds>,
    /// The engine's own numbers.
    pub engine: EngineNumbers,
    /// Other hosts, where there is an overlay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStats>,
    /// Flows that are counted, if any are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowStats>,
    /// How engine threads share the link, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<ThreadStats>,
}

/// How engine threads share the link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadStats {
    /// Number of engine threads.
    pub count: usize,
    /// Leases that were computed since the policy came into force.
    pub epochs: u64,
    /// The most by which a class was off its share in the last window of 10 ms, as a part of that share. Counts classes that had
    /// something waiting all the time.
    pub share_error: f64,
    /// The most bytes that left through a limit, on all threads, before it had earned them.
    pub excess: u64,
    /// Groups of flow queues for which the leases had no room: they share what is left of their thread's part.
    pub unleased: u64,
    /// Moves of tenants to another thread since the start, as load shifts.
    pub migrations: u64,
}

/// Flows that are counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlowStats {
    /// Heavy hitters now.
    pub heavy: u64,
    /// Flows that are slowed down now.
    pub slowed_down: u64,
    /// Packets that were counted since the start, and those of them that the tables had no place for.
    pub counted: u64,
    /// See `counted`.
    pub unlisted: u64,
    /// What is watched, if anything is.
    pub watched: Option<WatchedRow>,
}

/// Other hosts, and the limits between tenants here and there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FleetStats {
    /// Fingerprint of the key that this host seals with, if it seals anything. The key does not follow from it.
    #[serde(default)]
    pub key: Option<String>,
    /// Hosts, by name.
    pub hosts: BTreeMap<String, HostStats>,
    /// Pairs of a tenant here and a tenant elsewhere that it has sent to.
    pub pairs: Vec<PairStats>,
    /// The limits that each tenant here sets its senders.
    pub receivers: BTreeMap<String, ReceiverStats>,
}

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostStats {
    /// Its address on the underlay.
    pub address: String,
    /// The next hop's hardware address; none until the next hop has answered.
    pub next_hop: Option<String>,
    /// `heard`, `silent` (frames go there or come from there, but no feedback: fallbacks hold), `idle`, or `uncontrolled`
    /// without feedback.
    pub state: String,
    /// Seconds since feedback from it was last heard.
    pub heard: Option<f64>,
    /// Frames to it.
    pub sent: u64,
    /// Packets from it.
    pub received: u64,
    /// Feedback to it, by the way it went: `ridden`, `framed`, `channelled`, and `unsent`; and from it: `heard`.
    pub feedback: BTreeMap<String, u64>,
    /// Bits per second that each tenant here may send each tenant there while the host is silent.
    pub fallback: u64,
    /// Whether there is a session, so that frames to it are sealed; none where no frames between hosts are sealed.
    #[serde(default)]
    pub session: Option<bool>,
    /// Fingerprint of the key that frames to it are sealed with.
    #[serde(default)]
    pub key_to: Option<String>,
    /// Fingerprints of the keys that it seals with, each once: its frames, and its last message.
    #[serde(default)]
    pub keys_from: Vec<String>,
}

/// Traffic from a tenant here to a tenant elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairStats {
    /// The tenant here.
    pub tenant: String,
    /// The tenant there.
    pub peer: String,
    /// That tenant's host.
    pub host: String,
    /// `limited`, by the receiver's feedback, or `fallback`, without feedback.
    pub state: String,
    /// Bits per second that it may send.
    pub rate: u64,
    /// Packets per second, where the receiver's CPU is the bottleneck.
    pub packet_rate: Option<u64>,
    /// Frames sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Groups of flow queues that wait for it.
    pub waiting: u32,
    /// Times that one had to wait.
    pub parked: u64,
}

/// The limits that one tenant here sets its senders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReceiverStats {
    /// Bits per second that it may receive now; 0 where it receives nothing and no rate is reserved for it.
    pub capacity: u64,
    /// Bits per second that each sender may send to it.
    pub rate: u64,
    /// Packets per second that each sender may send to it.
    pub packet_rate: Option<u64>,
    /// Senders that are known by name.
    pub senders: usize,
}

/// One node of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStats {
    /// Path from the root: `tenants/shop/web`.
    pub path: String,
    /// Path of its parent; none for the root.
    pub parent: Option<String>,
    /// How far from the root.
    pub depth: u32,
    /// `priority`, `wfq`, ..., or `class`.
    pub kind: String,
    /// Its share among its siblings.
    pub weight: u32,
    /// Bits per second in effect, below a `rate_share`.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Bits per second that it gets before its siblings' shares (`min`).
    pub min: Option<u64>,
    /// Bits per second that it never exceeds (`max`).
    pub max: Option<u64>,
    /// Frames sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Descriptors that wait.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: u64,
    /// Frames that left with a mark of congestion, in classes with `flows: fq`.
    #[serde(default)]
    pub marked: u64,
    /// Descriptors that were not taken, and frames that had waited for too long, by reason.
    pub drops: BTreeMap<String, u64>,
    /// From doorbell to port.
    pub delay: Option<Delay>,
}

/// A distribution of delays, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Delay {
    /// How many were measured.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Half are shorter.
    pub p50: f64,
    /// One in a hundred is longer.
    pub p99: f64,
    /// One in a thousand is longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
    /// How many were at most as long as each bound: 10 µs, 20 µs, 50 µs, ... 10 s.
    pub buckets: Vec<(f64, u64)>,
}

/// One limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitStats {
    /// Bits per second that it may send.
    pub rate: u64,
    /// Burst, in bytes.
    pub burst: u64,
    /// The class whose `max` it is, if it is one.
    pub max_of: Option<String>,
    /// Frames that left under it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Groups of flow queues that wait for it now.
    pub waiting: u32,
    /// Times that one had to wait.
    pub parked: u64,
}

/// One port, and its tenant's queues and buffers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortStats {
    /// The port's own name; none while it is lost.
    pub port: Option<String>,
    /// Of a tenant, the engine thread that serves it, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u32>,
    /// Of the uplink: whether its device was down when a frame was last to be sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub down: bool,
    /// Frames that came in.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that went out.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Of a tenant, its port's capability level, `L0` to `L3`: docs/operations.md, "Capability levels".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Of a virtual machine, frames by pair of rings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<RingsStats>,
    /// Frames lost, by reason: frames that the tenant sent; for the uplink, frames that came in.
    pub drops: BTreeMap<String, u64>,
    /// Frames that the port could not deliver, by reason.
    pub undelivered: BTreeMap<String, u64>,
    /// Other events, by name.
    pub events: BTreeMap<String, u64>,
    /// Flows with a queue of their own.
    pub flows: u32,
    /// Descriptors in the engine.
    pub held: u32,
    /// Frame buffers in use.
    pub buffers: u32,
    /// Frames from the uplink for it.
    #[serde(default)]
    pub ingress: IngressStats,
    /// Of a tenant, what its program has done, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramStats>,
    /// Of a tenant, its packets' delays, part by part.
    #[serde(default)]
    pub delay: DelayParts,
}

/// A tenant's program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramStats {
    /// Calls with packets.
    pub calls: u64,
    /// Packets that it was given.
    pub packets: u64,
    /// Of these, packets that were written into its memory as they were fetched from the uplink.
    #[serde(default)]
    pub direct: u64,
    /// Packets that it has added.
    pub added: u64,
    /// Packets that it has sent to another port than they were going to.
    pub redirected: u64,
    /// Packets that it has sent to coprocessors.
    #[serde(default)]
    pub to_units: u64,
    /// Calls that have done what WebAssembly forbids, or answered a wrong number of packets.
    pub faults: u64,
    /// Calls that have taken too long.
    pub overruns: u64,
    /// Whether it was halted for that.
    pub halted: bool,
    /// Whether its state was taken over at the last reload that changed it; none where there was none, or it was not to be kept.
    pub kept_state: Option<bool>,
    /// The core that it has to itself; none where it runs on the engine's.
    #[serde(default)]
    pub core: Option<u32>,
    /// CPU time in seconds that its calls have taken there.
    #[serde(default)]
    pub core_time: f64,
}

impl From<ProgramNow> for ProgramStats {
    fn from(now: ProgramNow) -> Self {
        let ProgramNow {
            calls,
            packets,
            direct,
            added,
            redirected,
            to_units,
            faults,
            overruns,
            halted,
            kept_state,
            core,
            core_time,
        } = now;
        Self {
            calls,
            packets,
            direct,
            added,
            redirected,
            to_units,
            faults,
            overruns,
            halted,
            kept_state,
            core,
            core_time: core_time.as_secs_f64(),
        }
    }
}

/// The uplink's two ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StandbyStats {
    /// Which one carries frames: `port` or `standby`, as in the policy.
    pub active: String,
    /// Seconds for which it has.
    pub active_for: f64,
    /// How often the other one took over.
    pub switches: u64,
    /// The policy's `port`.
    pub port: UplinkPortStats,
    /// The policy's `standby`.
    pub standby: UplinkPortStats,
}

/// One of the uplink's two ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UplinkPortStats {
    /// The port's own name; none while it is lost.
    pub name: Option<String>,
    /// Whether it is there and has a carrier.
    pub up: bool,
}

impl StandbyStats {
    pub(crate) fn new(now: &StandbyNow) -> Self {
        let [port, standby] = now.ports.clone().map(|OnePort { name, up }| UplinkPortStats { name, up });
        Self {
            active: now.active.name().to_owned(),
            active_for: now.active_for.as_secs_f64(),
            switches: now.switches,
            port,
            standby,
        }
    }

    /// Whether the policy's `standby` carries frames.
    #[must_use]
    pub fn stands_in(&self) -> bool {
        self.active == Place::Second.name()
    }

    /// Both ports, by their keys in the policy.
    pub(crate) fn ports(&self) -> [(&'static str, &UplinkPortStats); 2] {
        [("port", &self.port), ("standby", &self.standby)]
    }
}

/// One pair of a virtual machine's rings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RingsStats {
    /// Frames that the guest has sent in it.
    pub rx_packets: u64,
    /// Frames that were put into it for the guest.
    pub tx_packets: u64,
    /// Frames that the guest has posted and that have not been taken.
    #[serde(default)]
    pub posted: u32,
    /// Frames that the daemon has taken and that have not left.
    #[serde(default)]
    pub in_flight: u32,
    /// Frames that have left and whose descriptors wait for those before them, with `completions: in_order`.
    #[serde(default)]
    pub out_of_turn: u32,
    /// Buffers that the guest has free for frames to come.
    #[serde(default)]
    pub free: u32,
}

/// Delays of a tenant's packets, without shaping and the fabric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DelayParts {
    /// From taking a packet out of the tenant's port until the port that it goes to has it.
    pub egress: Option<Delay>,
    /// In the queues of NIC and kernel before it was fetched, by the kernel's time of arrival; none where the port has no
    /// such time.
    pub nic: Option<Delay>,
    /// From fetching a packet from the uplink until the tenant's port has it.
    pub engine: Option<Delay>,
}

/// Frames from the uplink for one tenant; for the uplink, broadcasts and frames for unknown addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct IngressStats {
    /// Frames that arrived.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that found its queue full.
    pub dropped: u64,
    /// Frames that found its queue full, or waited too long in it, as more came than it may receive.
    #[serde(default)]
    pub over_max: u64,
    /// Frames delivered, or lost for another reason after they had waited.
    pub served: u64,
    /// Frames that wait now.
    pub waiting: u32,
    /// Most that ever waited at once.
    pub peak: u32,
    /// Mean time from the uplink to their turn, in microseconds.
    pub wait_mean: f64,
    /// The longest.
    pub wait_max: f64,
    /// Seconds of CPU time that they took.
    pub cpu: f64,
}

/// The engine's own numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EngineNumbers {
    /// Pulls handed out.
    pub pulls: u64,
    /// Enqueue and dequeue pairs (at most two for each pull).
    pub pairs: u64,
    /// Most pairs that one pull took.
    pub most_pairs: u8,
    /// Invalid doorbell words.
    pub bad_doorbells: u64,
    /// Descriptors held now.
    pub held: u32,
    /// Rounds of the loop.
    pub turns: u64,
    /// Departures noted in the log.
    pub departures: u64,
    /// Doorbell batches.
    pub doorbell_batches: u64,
    /// Doorbell entries.
    pub doorbell_entries: u64,
    /// Seconds for which its thread had a core, up to the last whole second.
    #[serde(default)]
    pub cpu: f64,
    /// Seconds for which its thread was ready to run and had no core; none where the kernel does not report it.
    #[serde(default)]
    pub no_core: Option<f64>,
    /// Whether its thread polls instead of sleeping (`engine.busy_poll`), and so uses a whole core at any load.
    #[serde(default)]
    pub busy_poll: bool,
    /// Where there are programs, whether its threads are in a resctrl group, and so fill a part of the last-level cache only.
    #[serde(default)]
    pub program_cache_group: Option<bool>,
}

/// Upper bounds of the delay buckets, in microseconds.
pub const DELAY_BOUNDS: [f64; 19] =
    [10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7];

impl From<&Snapshot> for Stats {
    fn from(snapshot: &Snapshot) -> Self {
        let program = &snapshot.program;
        let sums = sums(snapshot);
        let nodes = as_read(program).into_iter().map(|id| {
            let (now, (counters, delays)) = (&snapshot.nodes[id.0 as usize], &sums[id.0 as usize]);
            NodeStats { rate: now.rate.map(BitRate::get), ..node(program, id, counters, delays.as_ref()) }
        });
        // Limits of pairs stand with the fleet.
        let stated = program.limits.iter().zip(&snapshot.limits);
        let stated = stated.filter(|(limit, _)| !matches!(limit.scope, Scope::Peer(_)));
        let limits = stated.map(|(limit, counters)| {
            let max_of = match limit.scope {
                Scope::Subtree(id) => Some(program.node(id).name.clone()),
                Scope::Match { .. } | Scope::Peer(_) => None,
            };
            let stats = LimitStats {
                rate: limit.rate.get(),
                burst: limit.burst.as_u64(),
                max_of,
                packets: counters.packets,
                bytes: counters.bytes,
                waiting: counters.waiting,
                parked: counters.parked,
            };
            (limit.name.clone(), stats)
        });
        let engine = &snapshot.engine;
        Self {
            uptime: plimsoll_units::Span::ns(snapshot.at.as_u64()).as_secs_f64(),
            generation: snapshot.generation,
            link: program.link.get(),
            nodes: nodes.collect(),
            limits: limits.collect(),
            tenants: snapshot.lanes.iter().map(|lane| (lane.name.clone(), port(lane))).collect(),
            uplink: port(&snapshot.uplink),
            standby: snapshot.standby.as_ref().map(StandbyStats::new),
            // Counted by the ledger, not by the engine.
            nic_drop_seconds: 0,
            promises: BTreeMap::new(),
            engine: EngineNumbers {
                pulls: engine.pulls,
                pairs: engine.pairs,
                most_pairs: engine.most_pairs,
                bad_doorbells: engine.bad_doorbells,
                held: engine.held,
                turns: snapshot.turns,
                departures: snapshot.departures,
                doorbell_batches: snapshot.writes.batches,
                doorbell_entries: snapshot.writes.entries,
                ..EngineNumbers::default()
            },
            fleet: snapshot.fleet.as_ref().map(fleet),
            flows: snapshot.flows.as_ref().map(flows),
            threads: snapshot.leases.as_ref().map(|now| threads(now, snapshot.migrations)),
        }
    }
}

fn threads(now: &LeasesNow, migrations: u64) -> ThreadStats {
    ThreadStats {
        count: now.threads,
        epochs: now.epochs,
        share_error: f64::from(now.exactness.shares) / 1_000.0,
        excess: now.exactness.excess.as_u64(),
        unleased: now.unleased,
        migrations,
    }
}

fn flows(FlowsNow { heavy, pressed, counters, watched }: &FlowsNow) -> FlowStats {
    FlowStats {
        heavy: *heavy as u64,
        slowed_down: *pressed as u64,
        counted: counters.seen.packets,
        unlisted: counters.unlisted.packets,
        watched: watched.as_ref().map(WatchedRow::new),
    }
}

fn fleet(now: &FleetNow) -> FleetStats {
    let packets = |limits: &Limits| limits.packets.map(PacketRate::get);
    let pair = |pair: &PairNow| PairStats {
        tenant: pair.tenant.clone(),
        peer: pair.peer.clone(),
        host: pair.host.clone(),
        state: if pair.limits.is_some() { "limited" } else { "fallback" }.to_owned(),
        rate: pair.bits.get(),
        packet_rate: pair.limits.as_ref().and_then(packets),
        packets: pair.counters.packets,
        bytes: pair.counters.bytes,
        waiting: pair.counters.waiting,
        parked: pair.counters.parked,
    };
    let receiver = |receiver: &ReceiverNow| ReceiverStats {
        capacity: receiver.capacity,
        rate: receiver.limits.bits.get(),
        packet_rate: packets(&receiver.limits),
        senders: receiver.senders,
    };
    FleetStats {
        key: now.key.map(|key| key.to_string()),
        hosts: now.hosts.iter().map(|now| (now.name.clone(), host(now))).collect(),
        pairs: now.pairs.iter().map(pair).collect(),
        receivers: now.receivers.iter().map(|now| (now.tenant.clone(), receiver(now))).collect(),
    }
}

fn host(now: &HostNow) -> HostStats {
    let keys_from: BTreeSet<_> = now.from.into_iter().flatten().collect();
    let counts = now.messages;
    let messages = [
        ("ridden", counts.ridden),
        ("framed", counts.framed),
        ("channelled", counts.channelled),
        ("unsent", counts.unsent),
        ("heard", counts.heard),
    ];
    HostStats {
        address: now.address.to_string(),
        next_hop: now.next_hop.map(|mac| plimsoll_wire::Mac(mac).to_string()),
        state: now.state.name().to_owned(),
        heard: now.heard.map(plimsoll_units::Span::as_secs_f64),
        sent: now.sent,
        received: now.received,
        feedback: messages
            .into_iter()
            .filter(|&(_, count)| count > 0)
            .map(|(way, n)| (way.to_owned(), n))
            .collect(),
        fallback: now.fallback.get(),
        session: now.session,
        key_to: now.to.map(|key| key.to_string()),
        keys_from: keys_from.into_iter().map(|key| key.to_string()).collect(),
    }
}

impl NodeStats {
    /// Whether it is a class, rather than a node that orders classes.
    #[must_use]
    pub fn is_class(&self) -> bool {
        self.kind.starts_with("class")
    }
}

impl PortStats {
    /// All frames lost, whatever the reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}

/// A tree's nodes in the order of reading: each before its children, and these before its next sibling.
fn as_read(program: &Program) -> Vec<NodeId> {
    let (mut order, mut open) = (Vec::with_capacity(program.nodes.len()), vec![NodeId(0)]);
    while let Some(id) = open.pop() {
        order.push(id);
        open.extend(program.node(id).children.iter().rev());
    }
    order
}

/// Each node's counters with those of all nodes below it. Children come after their parents, so the loop runs backwards.
fn sums(snapshot: &Snapshot) -> Vec<(ClassCounters, Option<Histogram<u64>>)> {
    let mut all: Vec<_> = snapshot.nodes.iter().map(|node| (node.counters, node.delays.clone())).collect();
    for index in (1..all.len()).rev() {
        let Some(NodeId(parent)) = snapshot.program.nodes[index].parent else { continue };
        let (below, from) = all.split_at_mut(index);
        let (above, (counters, delays)) = (&mut below[parent as usize], &from[0]);
        above.0.packets += counters.packets;
        above.0.bytes += counters.bytes;
        above.0.marked += counters.marked;
        above.0.dropped += counters.dropped;
        above.0.backlog_packets += counters.backlog_packets;
        above.0.backlog_bytes += counters.backlog_bytes;
        for (to, refused) in above.0.refused.iter_mut().zip(counters.refused) {
            *to += refused;
        }
        match (&mut above.1, delays) {
            // Both histograms have the same bounds, so no value is out of range.
            (Some(to), Some(delays)) => drop(to.add(delays)),
            (to @ None, Some(delays)) => *to = Some(delays.clone()),
            (_, None) => {}
        }
    }
    all
}

fn node(
    program: &Program,
    id: NodeId,
    counters: &ClassCounters,
    delays: Option<&Histogram<u64>>,
) -> NodeStats {
    let node = program.node(id);
    let refused = Refusal::ALL.map(Refusal::name).into_iter().zip(counters.refused);
    let reasons = refused.chain([(WAITED_TOO_LONG, counters.dropped)]);
    NodeStats {
        path: node.name.clone(),
        parent: node.parent.map(|parent| program.node(parent).name.clone()),
        depth: u32::try_from(program.path(id).count() - 1).unwrap_or(u32::MAX),
        kind: kind_name(node.kind).to_owned(),
        weight: node.weight,
        rate: None,
        min: node.min.map(|rate| rate.get()),
        max: node.max.map(|limit| program.limit(limit).rate.get()),
        packets: counters.packets,
        bytes: counters.bytes,
        backlog_packets: counters.backlog_packets,
        backlog_bytes: counters.backlog_bytes,
        marked: counters.marked,
        drops: reasons
            .filter(|&(_, count)| count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect(),
        delay: delays.filter(|delays| !delays.is_empty()).map(delay),
    }
}

/// The name of this kind of node in a policy file.
#[must_use]
pub fn kind_name(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Priority => "priority",
        NodeKind::Wfq => "wfq",
        NodeKind::Drr => "drr",
        NodeKind::Fifo => "fifo",
        NodeKind::Lstf => "lstf",
        NodeKind::Edf => "edf",
        NodeKind::Program(_) => "program",
        NodeKind::RateShare(_) => "rate_share",
        NodeKind::Class(FlowOrder::Fifo) => "class",
        NodeKind::Class(FlowOrder::Drr) => "class, flows: drr",
        NodeKind::Class(FlowOrder::Fq(_)) => "class, flows: fq",
        NodeKind::Class(FlowOrder::Lstf(_)) => "class, flows: lstf",
        NodeKind::Class(FlowOrder::Edf(_)) => "class, flows: edf",
        NodeKind::Class(FlowOrder::Ranked(_)) => "class, by rank",
    }
}

fn delay(delays: &Histogram<u64>) -> Delay {
    let micros = |ns: u64| ns as f64 / 1e3;
    let bucket = |&bound: &f64| (bound, delays.count_between(0, (bound * 1e3) as u64));
    Delay {
        count: delays.len(),
        mean: delays.mean() / 1e3,
        p50: micros(delays.value_at_quantile(0.5)),
        p99: micros(delays.value_at_quantile(0.99)),
        p999: micros(delays.value_at_quantile(0.999)),
        max: micros(delays.max()),
        buckets: DELAY_BOUNDS.iter().map(bucket).collect(),
    }
}

fn ingress(now: &PortNow) -> IngressStats {
    let seen = &now.ingress;
    let micros = |span: plimsoll_units::Span| span.as_u64() as f64 / 1e3;
    IngressStats {
        packets: seen.packets,
        bytes: seen.bytes,
        dropped: seen.drops,
        over_max: seen.over_max,
        served: seen.served,
        waiting: now.waiting,
        peak: seen.peak,
        wait_mean: seen.mean_wait().map_or(0.0, micros),
        wait_max: micros(seen.longest),
        cpu: seen.cpu.as_secs_f64(),
    }
}

fn port(now: &PortNow) -> PortStats {
    let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes, .. } = now.counters;
    let named = |counts: [u64; DropReason::COUNT]| {
        let names = DropReason::ALL.into_iter().map(DropReason::name);
        names.zip(counts).filter(|&(_, count)| count > 0)
    };
    let mut drops: BTreeMap<String, u64> = BTreeMap::new();
    for (name, count) in now.tally.losses().chain(named(now.counters.rx_drops)) {
        *drops.entry(name.to_owned()).or_default() += count;
    }
    let owned = |(name, count): (&'static str, u64)| (name.to_owned(), count);
    PortStats {
        port: now.port.clone(),
        thread: now.thread,
        down: now.down,
        rx_packets,
        rx_bytes,
        tx_packets,
        tx_bytes,
        level: now.level.map(|level| level.name().to_owned()),
        rings: now.pairs.iter().map(rings).collect(),
        drops,
        undelivered: named(now.counters.tx_drops).map(owned).collect(),
        events: now.tally.events().map(owned).collect(),
        flows: now.flows,
        held: now.held,
        buffers: now.buffers,
        ingress: ingress(now),
        program: now.program.map(ProgramStats::from),
        delay: now.parts.as_deref().map_or_else(DelayParts::default, delay_parts),
    }
}

fn rings(pair: &PairCounters) -> RingsStats {
    let &PairCounters { rx_packets, tx_packets, posted, in_flight, out_of_turn, free } = pair;
    RingsStats { rx_packets, tx_packets, posted, in_flight, out_of_turn, free }
}

fn delay_parts(parts: &Parts) -> DelayParts {
    let some = |delays: &Histogram<u64>| (!delays.is_empty()).then(|| delay(delays));
    DelayParts { egress: some(&parts.egress), nic: some(&parts.nic), engine: some(&parts.engine) }
}
