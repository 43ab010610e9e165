//! The policy language: parse, compose, check, explain, compile to a flat [`Program`].
//!
//! Why: what each tenant may send, and which goes first, is written once, checked before it runs, and the same everywhere.
//! From: Loom §3 (a restricted graph: scheduling nodes form a tree, limits cut across it); `docs/policy.md` is the
//! language's reference.
//! Not here: running a policy (`nic`), devices (`ports`), time and threads (`daemon`).
//! Invariant: no text makes it panic or run without end, and a policy with a mistake yields no program.
#![forbid(unsafe_code)]

mod addresses;
mod bounds;
mod check;
mod classifier;
mod config;
mod files;
mod grain;
mod interface;
mod keys;
mod law;
mod matching;
mod offload;
mod packets;
mod peers;
mod press;
mod program;
mod read;
mod show;
mod slo;
#[cfg(feature = "testing")]
pub mod testing;
mod threads;

pub use addresses::{Addresses, Binding, MacAddr, MacAddrError};
pub use bounds::{ASSUMPTIONS, Bound, bounds, bounds_with};
pub use check::{
    Checked, Cost, check_files, check_str, check_with, cost, load, load_files, load_read, load_sub_policy,
    load_sub_policy_read, load_with, read_file, relative_weight, sender_weights,
};
pub use classifier::Classifier;
pub use config::{
    Api, Backpressure, Completions, Config, ControlLevel, DRAIN_SHARE, Encapsulation, EngineConfig,
    Experiment, Feedback, FleetHost, FleetTenant, IdleMinimum, IngressOrder, LONGEST_COST, Netns, Network,
    Overlay, Port, SEAL, Sealed, TenantConfig, Uplink, Via,
};
pub use files::{FileRead, Files, INCLUDED, MAX_FILE, Parse, Unread, read_text, text_of};
pub use grain::{Grain, GrainReason};
pub use interface::{HostAddress, HostRoute, Interface};
pub use keys::{
    BACKPRESSURE_KEYS, CLASSES, DELAY, DESCRIPTORS, ECN_KEYS, ENGINE_KEYS, FLOWS, HOST_FILE, INCLUDED_FILE,
    INGRESS_KEYS, LIMITS, MAX_WEIGHT, NAMES, PROGRAM_KEYS, SUB_FILE, included_schema, schema, sub_schema,
};
pub use law::{Errors, Law, Problem, ProblemRecord};
pub use offload::{Fails, StateKept, TenantProgram, UnitWeights};
pub use peers::{Peers, UNLIMITED};
pub use plimsoll_document::{FileId, Mark, Severity, SourceFile, Sources};
pub use press::{Ecn, Mediate, Part, PartError, Press, PressMode, PressRate, Watch};
pub use program::*;
pub use read::names::protocol_name;
pub use show::{
    Change, ClassRecord, Diff, Explanation, Filter, FilterError, LimitRecord, NodeRecord, Report, RuleRecord,
    StandbyRecord, Step, TenantRecord, describe_match, diff, explain, report, sub_policy_text, svg,
    tree_text,
};
pub use slo::{
    CEILING_BURST, CEILING_SLACK, Ceiling, DEFAULT_SLOTS, DelayTarget, Envelope, FRAME_COST, LEAST_SLOTS,
    LEAST_THRESHOLD, MOST_SLOTS, Percentile, PercentileError, Slo,
};
pub use threads::{LEASE, MOST_THREADS, SHARES_WITHIN, Unsupported};
