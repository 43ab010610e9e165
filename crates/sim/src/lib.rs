//! Runs scenarios in virtual time: many hosts, any rate, the engine that also runs live.
//!
//! Why: a policy can be designed and verified before it meets traffic, and a paper's experiment repeated at its rates.
//! From: `docs/scenarios.md`.
//! Not here: the engine, which is the crate `nic`; this crate drives it as the daemon does, with another clock.
//! Invariant: one seed, one result, whatever the machine and the number of threads.
//!
//! ```
//! use plimsoll_scenario::{Form, Scenario, Status, judge};
//!
//! let text = "
//! name: two
//! rate: 10Gbps
//! duration: 100ms
//! systems: [plimsoll]
//! tenants: {gold: {weight: 3}, bronze: {}}
//! workloads:
//!   g: {tenant: gold, kind: udp, rate: flood}
//!   b: {tenant: bronze, kind: udp, rate: flood}
//! expect:
//!   - plimsoll.gold.throughput ~ 7.5Gbps +- 0.1%
//! ";
//! let scenario = Scenario::parse(text, "two.yaml", "".as_ref(), Form::Full).expect("a scenario");
//! let outcome = plimsoll_sim::run(&scenario, &plimsoll_sim::Options::default(), &|_| {})?;
//! assert_eq!(judge(&scenario, &outcome.results)[0].status, Status::Passed);
//! # Ok::<(), plimsoll_sim::SimError>(())
//! ```
#![forbid(unsafe_code)]

mod agenda;
mod balance;
mod batch;
mod bounds;
mod build;
mod chance;
mod control;
mod cores;
mod error;
mod fault;
mod flow;
mod frame;
mod host_nic;
mod hosted;
mod limiter;
mod link;
mod meter;
mod packet;
mod packet_pool;
mod press;
mod receive;
mod replay;
mod rerun;
mod round;
mod run;
mod said;
mod series;
mod source_ports;
mod study;
pub mod tcp;
mod threads;
mod topology;
mod trace;
mod traffic;
mod units;
mod watch;
mod world;

pub use batch::Batch;
pub use bounds::DelayBound;
pub use error::SimError;
pub use replay::{Owners, Replay, Replayed, Replayer};
pub use rerun::{Difference, Rerun, RerunError, rerun};
pub use run::{Finished, Options, Outcome, Progress, RunBounds, run, run_all, run_each};
pub use study::{Study, verdicts};
pub use trace::Trace;
