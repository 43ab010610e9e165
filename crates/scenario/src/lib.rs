//! Scenario files: what to run, measure, expect and report.
//!
//! Why: a claim about a policy is a file that says what runs and what must hold; the same file for every world.
//! From: `docs/scenarios.md`.
//! Not here: how a world is built and driven (`lab`).
//! Invariant: a [`Scenario`] is checked in full before anything runs; what is shown is worked out in one place.
#![forbid(unsafe_code)]

mod checked;
mod departures;
mod expect;
mod fault;
mod file_kind;
mod flow_sizes;
mod interval;
mod keys;
mod lateness;
mod measure;
mod model;
mod names;
mod network;
mod paper;
mod partition;
mod policy_file;
mod press;
mod program_cost;
mod programs;
mod promises;
mod read;
mod report;
mod results;
mod sections;
mod summary;
mod sweep;
mod system;
mod table;
mod window;
mod workload;

pub use checked::{Wrong, check};
pub use expect::{Expectation, Status, Unit, Verdict, judge, judge_pair, judge_seeds};
pub use fault::{ClockStep, Fate, Faults, FeedbackFaults, Restart, Stall};
pub use file_kind::FileKind;
pub use flow_sizes::FlowSizes;
pub use interval::Interval;
pub use keys::{SCENARIO, schema};
pub use lateness::Lateness;
pub use measure::jain;
pub use model::{Change, Destination, Home, Measure, NETWORK, OVERLAY_HEADERS, Scenario, Setting, Tenant};
pub use network::{
    Aqm, BurstLoss, Congestion, Control, ControlLevel, CoreCost, EngineCost, Host, Ingress, Link,
    LoadBalancing, NicKind, Pcie, ReceiveRing, Red, Reorder, TransmitCompletions, TransmitRing,
};
pub use paper::{Figure, Number, Paper};
pub use partition::{Access, Coprocessor, MemoryUse, Partition, SharedCache};
pub use plimsoll_control::Idle;
pub use policy_file::{Wiring, check_text};
pub use press::{Excess, PressModel, Slots};
pub use program_cost::{ProgramCost, UnitCost};
pub use programs::ModuleFile;
pub use promises::{Fared, promises};
pub use read::{Form, MAX_FILE};
pub use report::{
    Cells, Column, Grid, Report, json, parquet_report, parquet_sweep, report, series_files, sweep_grid,
    sweep_json, sweep_report, table_named,
};
pub use results::{
    COUNTERS, Departure, FlowPoint, FlowSample, FlowTrace, LinkPoint, LinkTrace, Results, Run, Sample,
    Series, WorkloadResult,
};
pub use summary::{FlowSummary, LatencySummary, Summary, TenantSummary, ThroughSummary, summarise};
pub use sweep::{Point, Row, rows, sweep_table};
pub use system::{Fetch, Model, System, SystemKind};
pub use table::table;
pub use workload::{FlowPace, KeyValueSizes, Kind, Pace, Role, TcpSettings, Turns, Workload};

/// One thing that is wrong with a scenario.
pub type Problem = plimsoll_document::Problem<()>;

/// Everything that is wrong with a scenario.
pub type Errors = plimsoll_document::Errors<()>;
