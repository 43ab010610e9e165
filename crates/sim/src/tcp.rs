//! TCP end points in virtual time: a [`Sender`] and a [`Receiver`] of bytes, and a [`Connection`] of both.
//!
//! Why: a policy is judged by what its tenants' congestion control makes of it.
//! From: RFC 5681 and 6582 (`NewReno`), 9438 (CUBIC), 8257 (DCTCP), Linux (BBR), 2018 and 2883 (SACK), 8985
//! (RACK and tail loss probes), 6937 (proportional rate reduction), 3522 (Eifel), 6298 (timeouts), 3168 (ECN), 7661's
//! rule that an unused window does not grow; where these leave a choice, Linux's.
//! Not here: clocks, queues and links; headers (sequence numbers are 64-bit offsets and never wrap, the receive window
//! needs no scaling); closing a connection, which takes no measured time; Nagle's algorithm (written bytes leave at
//! once, as with `TCP_NODELAY`).
//! Invariant: whatever the network does, each byte is delivered once and in order; the same inputs give the same
//! outputs on any machine, for decisions are taken in integers.
//!
//! The handshake is simulated: a SYN, which is sent again when lost, and a SYN-ACK agree on ECN; the third
//! acknowledgement travels with the first data. [`Config::handshake`] turns it off.
//!
//! Nothing here waits or sends. After each call that changes an end point its driver asks it for segments until there
//! are none ([`Sender::poll_transmit`]), for acknowledgements likewise ([`Receiver::poll_ack`]), and when to come
//! back ([`Sender::poll_timeout`]). Deadlines mostly move later, with every acknowledgement: a driver need not move
//! its event each time, but may let it fire and ask again, because calling `handle_timeout` early does nothing.
//!
//! ```
//! use plimsoll_sim::tcp::{Config, Receiver, Sender};
//! use plimsoll_units::{Bytes, Nanos};
//!
//! let config = Config::default();
//! let (mut sender, mut receiver) = (Sender::new(&config), Receiver::new(&config));
//! sender.write(Bytes::new(100_000));
//! let mut now = Nanos::ZERO;
//! while receiver.delivered() < Bytes::new(100_000) {
//!     while let Some(segment) = sender.poll_transmit(now) {
//!         receiver.handle_segment(&segment, now);
//!         sender.handle_sent(Bytes::new(segment.len.into()));
//!     }
//!     while let Some(ack) = receiver.poll_ack(now) {
//!         sender.handle_ack(&ack, now);
//!     }
//!     // Nothing is on its way any more: go to the next deadline.
//!     if let Some(next) = sender.poll_timeout().into_iter().chain(receiver.poll_timeout()).min() {
//!         now = now.max(next);
//!         sender.handle_timeout(now);
//!         receiver.handle_timeout(now);
//!     }
//! }
//! ```

mod config;
mod congestion;
mod connection;
mod rate;
mod reassembly;
mod receiver;
mod rtt;
mod scoreboard;
mod segment;
mod sender;

pub use config::{Config, Congestion, LocalQueue};
pub use connection::{Connection, Packet};
pub use receiver::{Receiver, ReceiverStats};
pub use segment::{Ack, Ecn, Flags, Packets, SackBlock, Segment};
pub use sender::{Sender, SenderStats};
