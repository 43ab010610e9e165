//! Answers of the API that no other part of the daemon has as a type.
//!
//! Why: the API's description is derived from the types of its answers.
//! Not here: counters (`stats`), explanations (`explain`), promises (crate `slo`), the policy (crate `policy`).
//! Invariant: every field is in every answer; what is not known is `null`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cache::CacheIsolation;
use crate::dataplane::{HostState, PortNow, Snapshot};
use crate::departures::Departure;
use crate::sandbox::Confinement;
use crate::stats::StandbyStats;

/// The health of the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// `ok`, or `degraded` where a port is lost or incomplete, a program was halted, the uplink or one of its two ports is down or the broker has ended.
    pub status: String,
    /// Names of tenants whose port is lost; `uplink` for the uplink's, and `standby` for its second one.
    pub lost_ports: Vec<String>,
    /// Tenants whose interface lacks a part of what the policy states, and why.
    #[serde(default)]
    pub incomplete_ports: BTreeMap<String, String>,
    /// Whether the uplink is down, of two ports both.
    pub uplink_down: bool,
    /// The uplink's two ports, where it has a standby.
    pub standby: Option<StandbyStats>,
    /// Names of hosts that frames go to or come from and that send no feedback.
    pub silent_hosts: Vec<String>,
    /// Tenants' programs that were halted, as their calls took too long, by tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub halted_programs: Vec<String>,
    /// How many reloads there have been, modulo 65,536.
    pub generation: u16,
    /// How the engine's process is confined.
    pub confinement: Option<Confinement>,
    /// What holds programs' lines in the cache back, where there are programs.
    #[serde(default)]
    pub program_cache: Option<CacheIsolation>,
    /// The tenants that each engine thread serves, where there are several.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub threads: BTreeMap<u32, Vec<String>>,
}

impl Health {
    /// What the snapshot tells of ports and hosts.
    pub(crate) fn new(
        snapshot: &Snapshot,
        confinement: Option<Confinement>,
        program_cache: Option<CacheIsolation>,
        broker_ended: bool,
    ) -> Self {
        let lanes = snapshot.lanes.iter().filter(|lane| lane.tenant.is_some());
        let lost = |port: &&PortNow| port.port.is_none();
        let incomplete = lanes.clone().filter_map(|port| Some((port.name.clone(), port.lacks.clone()?)));
        let incomplete_ports: BTreeMap<_, _> = incomplete.collect();
        let mut lost_ports: Vec<String> = lanes.filter(lost).map(|port| port.name.clone()).collect();
        let standby = snapshot.standby.as_ref().map(StandbyStats::new);
        match &standby {
            None => lost_ports.extend(Some(&snapshot.uplink).filter(lost).map(|port| port.name.clone())),
            Some(both) => {
                let named = [("uplink", &both.port), ("standby", &both.standby)];
                let lost = named.into_iter().filter(|(_, port)| port.name.is_none());
                lost_ports.extend(lost.map(|(name, _)| name.to_owned()));
            }
        }
        let both_up = standby.as_ref().is_none_or(|both| both.port.up && both.standby.up);
        let hosts = snapshot.fleet.iter().flat_map(|fleet| &fleet.hosts);
        let silent = hosts.filter(|host| host.state == HostState::Silent);
        let uplink_down = snapshot.uplink.down;
        let halted =
            |port: &&PortNow| port.tenant.is_some() && port.program.is_some_and(|program| program.halted);
        let halted_programs: Vec<_> =
            snapshot.lanes.iter().filter(halted).map(|port| port.name.clone()).collect();
        let whole = lost_ports.is_empty() && incomplete_ports.is_empty() && halted_programs.is_empty();
        let well = whole && !uplink_down && both_up && !broker_ended;
        Self {
            status: if well { "ok" } else { "degraded" }.to_owned(),
            lost_ports,
            incomplete_ports,
            uplink_down,
            standby,
            silent_hosts: silent.map(|host| host.name.clone()).collect(),
            halted_programs,
            generation: snapshot.generation,
            confinement: confinement.map(|confinement| Confinement { broker_ended, ..confinement }),
            program_cache: program_cache.filter(|_| has_programs(snapshot)),
            threads: threads(snapshot),
        }
    }
}

/// Whether a tenant has a program.
pub(super) fn has_programs(snapshot: &Snapshot) -> bool {
    snapshot.lanes.iter().any(|lane| lane.tenant.is_some() && lane.program.is_some())
}

/// The tenants that each thread serves; none where there is one thread.
fn threads(snapshot: &Snapshot) -> BTreeMap<u32, Vec<String>> {
    let mut threads = BTreeMap::<u32, Vec<String>>::new();
    for lane in snapshot.lanes.iter().filter(|lane| lane.tenant.is_some()) {
        if let Some(thread) = lane.thread {
            threads.entry(thread).or_default().push(lane.name.clone());
        }
    }
    threads
}

/// A packet, a part of one, or several similar ones that left together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DepartureRow {
    /// The tenant that sent it; none where it is no tenant any more.
    pub tenant: Option<String>,
    /// Path of its class; none where it left under an earlier policy.
    pub class: Option<String>,
    /// When it was posted, in nanoseconds since the daemon's start.
    pub arrived_ns: u64,
    /// When it became the first of its flow queue.
    pub head_ns: u64,
    /// When it was handed to the port.
    pub departed_ns: u64,
    /// Microseconds for which limits held it.
    pub limited_us: u64,
    /// The limit that held it longest.
    pub limited_by: Option<String>,
    /// Bytes of the frame, or of all that left together.
    pub bytes: u32,
    /// Number of frames that left together.
    pub frames: u8,
    /// Source address, for IP.
    pub src: Option<String>,
    /// Destination address, for IP.
    pub dst: Option<String>,
    /// Number of the protocol behind IP; 0 for what is not IP.
    pub protocol: u8,
    /// Source port, where the protocol has ports.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
    /// DSCP.
    pub dscp: u8,
    /// VLAN identifier; 0 without a tag.
    pub vlan: u16,
    /// The priority that its sender states, if the policy looks at it.
    pub priority: Option<u32>,
    /// The control group that its sender states, if the policy looks at it.
    pub cgroup: Option<u64>,
    /// The user that its sender states, if the policy looks at it.
    pub user: Option<u32>,
    /// The application that its sender states, if the policy looks at it.
    pub app: Option<u32>,
    /// The core that its sender states, if the policy looks at it.
    pub core: Option<u16>,
}

impl DepartureRow {
    /// The departure with the names of the policy in force.
    pub(crate) fn new(snapshot: &Snapshot, entry: &Departure) -> Self {
        let passage = &entry.passage;
        let current = passage.generation == snapshot.generation;
        let program = &snapshot.program;
        let limit = passage.limited_by.filter(|_| current).map(|limit| program.limit(limit).name.clone());
        let lane = snapshot.lanes.iter().find(|lane| lane.lane == Some(passage.lane.into()));
        Self {
            tenant: lane.map(|lane| lane.name.clone()),
            class: current.then(|| program.node(passage.class).name.clone()),
            arrived_ns: passage.arrived.as_u64(),
            head_ns: passage.head.as_u64(),
            departed_ns: passage.departed.as_u64(),
            limited_us: passage.limited.as_u64() / 1_000,
            limited_by: limit,
            bytes: passage.len,
            frames: passage.frames,
            src: entry.addresses.map(|(src, _)| src.to_string()),
            dst: entry.addresses.map(|(_, dst)| dst.to_string()),
            protocol: entry.protocol,
            src_port: entry.ports.map(|(src, _)| src),
            dst_port: entry.ports.map(|(_, dst)| dst),
            dscp: entry.dscp,
            vlan: entry.vlan,
            priority: entry.metadata.priority,
            cgroup: entry.metadata.cgroup,
            user: entry.metadata.user,
            app: entry.metadata.app,
            core: entry.metadata.core,
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The reason, and what to do about it.
    pub error: String,
}
