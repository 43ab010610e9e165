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
//!
//! What a thread does, beside its engine's turns:
//!
//! ```
//! use plimsoll_control::leases::{Coordinator, Exchange, Report, Settings};
//! use plimsoll_policy::{Fields, TenantId, check_str};
//! use plimsoll_units::{BitRate, Nanos, Span};
//!
//! let policy = "{uplink: {port: memory, rate: 12Gbps}, tenants: {a: {port: memory, weight: 3}, b: {port: memory}}}";
//! let program = check_str("p.yaml", policy)?.program;
//! let settings = Settings { threads: 2, members: 16, epoch: Span::micros(100) };
//! let mut coordinator = Coordinator::new(&program, settings)?;
//! // Each thread's engine gets `coordinator.program()`. Tenant a is on thread 0, and b on thread 1.
//! let placement = |tenant| program.classify(&Fields { tenant: Some(TenantId(tenant)), ..Fields::default() });
//! let members = [coordinator.join(&placement(0), 0)?, coordinator.join(&placement(1), 1)?];
//! let exchange = Exchange::new(&coordinator);
//!
//! // Once each epoch every thread reports its members; one of them computes the leases.
//! for (thread, member) in members.into_iter().enumerate() {
//!     exchange.report(thread, member, Report { left: 0, waiting: 1_000_000 });
//! }
//! exchange.collect(&mut coordinator);
//! coordinator.handle_epoch(Nanos::new(100_000));
//! exchange.publish(&coordinator);
//!
//! // After its next turn a thread takes its lease, and puts it in force (`nic::Nic::lease_link` and so on).
//! let mut taken = exchange.taken();
//! let lease = exchange.take(0, &mut taken).expect("one was published");
//! assert!(lease.link > BitRate::mbps(8_950) && lease.link < BitRate::mbps(9_050));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod balance;
mod coordinator;
mod exchange;
mod fill;
mod lease;
mod limit;
mod member;
mod parts;
mod rates;
mod reporter;
mod spread;
mod tree;

pub use coordinator::{Coordinator, Exactness, MemberId, NoMember, Report, Settings};
pub use exchange::{Exchange, Taken};
pub use lease::{Lease, LimitLease, NodeLease};
pub use reporter::{Membership, Reporter};
pub use spread::{Move, Spread};
pub use tree::for_threads;
