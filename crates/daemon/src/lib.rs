//! The live host: reads the clock, the ports and the API's sockets, and runs the threads.
//!
//! Why: the engine is told the time and handed frames; this crate reads the clock and the ports for it.
//! From: `docs/architecture.md`, "live": one engine thread, everything else elsewhere and never in its way.
//! Not here: scheduling (`nic`), devices (`ports`), the language (`policy`).
//! Invariant: nothing that a tenant sends, and nothing that an operator asks, stops the engine's thread.
#![forbid(unsafe_code)]

mod api;
mod audit;
mod broker;
mod cache;
mod channel;
mod claim;
mod client;
mod coalesce;
mod connections;
mod control;
mod cores;
mod dataplane;
mod departures;
mod epochs;
mod experiment;
mod explain;
mod filter;
mod fleet;
mod heavy;
mod kernel;
mod local;
mod open;
mod privileges;
mod programs;
mod prometheus;
mod quiet;
pub mod reader;
mod record;
mod reopen;
mod run;
mod sampler;
mod sandbox;
mod seats;
mod several;
mod startup;
mod stats;
mod thread;
mod timer;
mod units;
mod urgency;
mod wait;

pub use api::{Api, DepartureRow, Health, Refusal, openapi};
pub use audit::{Asker, Audit, AuditEntry, AuditReport, Audited};
pub use broker::{BrokerError, serve_broker};
pub use cache::CacheIsolation;
pub use client::{Client, ClientError, query};
pub use control::{Control, ReloadError, Reloaded};
pub use dataplane::{
    AskedBy, AskedNow, Counting, FlowsNow, Guest, HeavyFlow, HeavyFlows, HeavyNow, Means, Mediating,
    PressedNow, Sampled, WatchedNow,
};
pub use dataplane::{
    BATCH, Buffer, Change, Core, Crossing, Dataplane, Event, FleetMap, FleetNow, FleetSetup, Flow, FlowSlots,
    FlowTable, Held, HostNow, HostState, Hosted, Installed, LARGE, Lane, LaneSpec, Learned, LeaseRoom,
    LeasesNow, Leasing, Lookup, Loss, Lost, Mac, MacTable, Migration, Move, NodeNow, OnePort, Owner, PairNow,
    Part, Place, Pool, PortNow, ProgramNow, RateError, Rated, ReceiverNow, SMALL, Sampler, Seat, Sent, Setup,
    SeveralError, Slot, Snapshot, StandbyChange, StandbyNow, Step, Tally, ThisCore, Turn, Whither, Whose,
    engine_config, fleet_map, lane_spec, own_mac, several,
};
pub use dataplane::{UnitWeights, Units};
pub use departures::{Departure, DepartureLog, KEPT, Passage};
pub use epochs::Epochs;
pub use experiment::ExperimentCore;
pub use explain::{
    ActivePort, Explanation, LimitTime, NodeTime, RankNow, Served, TimeSpent, explain, placement, slowed_down,
};
pub use filter::{Filter, FilterError, protocol_number};
pub use fleet::{FleetError, read_key};
pub use heavy::{HeavyReport, HeavyRow, HeldRow, PressedRow, UpdatesRow, WatchedRow};
pub use open::{OpenError, open};
pub use programs::{ProgramError, ProgramsError, check_programs, program_limits};
pub use prometheus::page as prometheus_page;
pub use record::{Record, Writer, start as start_recording};
pub use run::{Options, RunError, Sandbox, run};
pub use sandbox::Confinement;
pub use stats::{
    DELAY_BOUNDS, Delay, DelayParts, EngineNumbers, FleetStats, FlowStats, HostStats, LimitStats, NodeStats,
    PairStats, PortStats, ProgramStats, ReceiverStats, RingsStats, StandbyStats, Stats, ThreadStats,
    UplinkPortStats, kind_name,
};
pub use thread::{Clock, Command, Habits, Handle, Notice, Stopped, spawn, spawn_all};
pub use wait::wakeups;
