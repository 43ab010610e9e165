//! Rank programs: a few lines of text that say which packet of a node goes next.
//!
//! Why: an operator can write an order of its own, and knows its cost before the first packet.
//! From: Domino (Sivaraman et al., "Packet Transactions", 2016) and the node functions of Loom §4.1 and §5; a rank program is a
//! node's state, `enqueue(packet) -> rank`, and `dequeue(packet)`, which updates the state.
//! Not here: the queue that the ranks order (the crate `nic`), and who names a program (the crate `policy`).
//! Invariant: a program that parses always ends, never faults, and means the same interpreted and as WebAssembly.
//!
//! `docs/rank.md` is the reference of the language.
//!
//! ```
//! use plimsoll_rank::{Field, Interpreter, Packet, Program};
//!
//! let program = Program::parse("enqueue { rank = now + packet.slack }")?;
//! let mut node = Interpreter::new(program.clone().into(), 1);
//! let packet = Packet::default().with(Field::Now, 1_000).with(Field::Slack, 50);
//! assert_eq!(node.enqueue(&packet), 1_050);
//!
//! let module = program.compile();
//! assert!(module.wasm.starts_with(b"\0asm"));
//! assert!(module.enqueue_cost < 20, "instructions on the worst path");
//!
//! let error = Program::parse("enqueue { rank = packet.size }").unwrap_err();
//! assert_eq!((error.line, error.column), (1, 18));
//! # Ok::<(), plimsoll_rank::Error>(())
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod compile;
mod error;
mod interpreter;
mod lex;
mod packet;
mod parse;
mod program;

pub use compile::{MARKER, Module, RECORD_ROOM};
pub use error::{Error, Problem};
pub use interpreter::Interpreter;
pub use packet::{Field, Packet};
pub use program::{MOST_BYTES, MOST_CLASSES, MOST_DEPTH, MOST_LOCALS, MOST_STATE, Program};
