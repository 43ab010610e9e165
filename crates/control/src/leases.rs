//! Leases: several engines send under one policy, each with a part of the link for a short time.
//!
//! Why: one thread serves one queue of the uplink. Several threads, each with an engine of its own, must together send what the
//! policy says, without a lock between them.
//! From: the distributed rate limiting of Raghavan et al. (SIGCOMM 2007), with the progressive filling of the whole policy in
//! place of a single rate.
//! Not here: threads and clocks (`daemon`), engines (`nic`); how reports and leases travel (the caller).
//! Invariants: the links of all leases add up to the policy's link at most, and so do the parts of each limit. The same reports
//! give the same leases.
//!
//! Each thread reports what has left and what waits, by *member*: the flow queues of one thread that have one class and pass the
//! same limits. Once each epoch the [`Coordinator`] computes the rate that the policy gives to each member. Then a thread's link
//! is the sum of its members' rates. At a node with members on several threads, each thread's engine divides by a part of the
//! node's weight, its `min` and its limits, in proportion to the rates of the members there. All other nodes divide as the policy
//! says: with the right rate above them, they come to the right rates by themselves.

mod balance;
mod coordinator;
mod exchange;
mod fill;
mod lease;
mod limit;
mod member;
mod parts;
mod rates;
mod spread;
mod tree;

pub use coordinator::{Coordinator, Exactness, MemberId, NoMember, Report, Settings};
pub use exchange::{Exchange, Taken};
pub use lease::{Lease, LimitLease, NodeLease};
pub use spread::{Move, PERIOD, Spread};
pub use tree::for_threads;
