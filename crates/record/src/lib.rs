//! Engine traces: all inputs and decisions of an engine, written to a file and read back.
//!
//! Why: an incident at noon can be studied in the evening, packet by packet, without its traffic.
//! From: the engine has no clock of its own, so the same inputs give the same outputs; `docs/engine-trace.md`
//! describes the format.
//! Not here: files and threads (`daemon` writes, `cli` opens), replaying a trace (`sim`).
//! Invariants: recording changes no decision and never waits; reading any bytes gives events, or an error with its
//! place.
//!
//! ```
//! use plimsoll_nic::{Config, Descriptor, DoorbellQueue, Nic};
//! use plimsoll_policy::{NodeId, Placement};
//! use plimsoll_record::{Event, Limits, Reader, Recorded, Recorder, SharedSink};
//! use plimsoll_units::Nanos;
//!
//! let text = "{uplink: {port: memory, rate: 1Gbps}, tenants: {shop: {port: memory}}}";
//! let checked = plimsoll_policy::check_str("demo.yaml", text).expect("a policy");
//! let mut nic = Recorded::new(Nic::new(&checked.program, &Config::default()));
//! let file = SharedSink::default();
//! nic.record(Recorder::new(Box::new(file.clone()), Limits::default()), &checked.sources);
//!
//! let queue = nic.open_queue(&checked.program.classify(&Default::default()))?;
//! nic.post(queue, Descriptor { len: 1_000, ..Descriptor::default() })?;
//! let mut doorbells = DoorbellQueue::default();
//! doorbells.bell(queue);
//! doorbells.flush(|words| nic.ring(words, Nanos::new(70)));
//! nic.poll_transmit(Nanos::new(80), &mut Vec::with_capacity(8));
//! drop(nic);
//!
//! let events: Vec<Event> = Reader::new(file.bytes().as_slice())?.collect::<Result<_, _>>()?;
//! assert!(matches!(&events[4], Event::Poll { now, left, .. } if now.as_u64() == 80 && left[0].len == 1_000));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod blocks;
mod event;
mod numbers;
mod reader;
mod recorded;
mod recorder;

pub use blocks::{BlockWriter, MAGIC, TraceError, is_trace};
pub use event::{End, Event, File, Left};
pub use reader::Reader;
pub use recorded::Recorded;
pub use recorder::{CHUNK, Limits, Recorder, SharedSink, Sink};
