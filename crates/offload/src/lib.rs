//! Tenants' programs: WebAssembly modules that are checked, bounded, and run on batches of packets.
//!
//! Why: a tenant that wants a filter, a switch or a cache where its packets pass hands the operator a program, and no program may cost
//! another tenant time, memory or packets.
//! From: FairNIC §3 and §4 (Grant et al., SIGCOMM 2020); the sandbox is WebAssembly (`docs/decisions/0023-programs-in-webassembly.md`).
//! Not here: threads, clocks, and which packets a program gets (`daemon`); shares of the CPU (`nic`'s ingress).
//! Invariant: a program reads and writes its own linear memory only; each call ends within its budget; each packet of a batch leaves it
//! with one verdict, or is lost for a reason that the caller is told.
//!
//! ```
//! use plimsoll_offload::{Limits, Packet, Program, Runtime, Metering, Verdict, Way};
//! use plimsoll_units::Nanos;
//!
//! // Drops each packet that comes from the network.
//! let text = r#"(module
//!     (memory (export "memory") 1)
//!     (func (export "plimsoll_abi_1"))
//!     (func (export "ingress") (param $batch i32) (result i32)
//!         (local $packet i32) (local $end i32)
//!         (local.set $packet (i32.add (local.get $batch) (i32.const 16)))
//!         (local.set $end (i32.add (local.get $packet) (i32.mul (i32.const 32) (i32.load offset=8 (local.get $batch)))))
//!         (block $done (loop $next
//!             (br_if $done (i32.ge_u (local.get $packet) (local.get $end)))
//!             (i32.store8 offset=16 (local.get $packet) (i32.const 1))
//!             (local.set $packet (i32.add (local.get $packet) (i32.const 32)))
//!             (br $next)))
//!         (i32.load offset=8 (local.get $batch))))"#;
//! let runtime = Runtime::new(Metering::Fuel)?;
//! let module = runtime.load(&wat::parse_str(text)?, &Limits::default())?;
//! let mut program = Program::new(&module)?;
//! let slot = program.take().expect("a new program's pool is free");
//! program.bytes_mut(slot)[..60].fill(7);
//! let ran = program.run(Way::Ingress, &[Packet::new(slot, 60, Packet::NETWORK)], Nanos::ZERO)?;
//! assert_eq!(ran.packets[0].verdict, Verdict::Drop);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod abi;
mod load;
mod pace;
mod pool;
mod program;
mod runtime;
mod unit;
mod verify;

pub use abi::{ABI, BATCH, FROM_UNIT, UnitCall, Verdict, Way};
pub use load::{Buffers, Load};
pub use pace::Pace;
pub use pool::Slot;
pub use program::{Decided, Fault, Packet, Place, Program, Ran, Start, StateError};
pub use runtime::{Limits, LoadError, Metering, Module, Runtime};
pub use unit::{LONGEST_ARGUMENT, Operation, Request, Unit, Worker};
pub use verify::{Refusal, Report, verify};
