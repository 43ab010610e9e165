//! The daemon's engine between ports in memory, and its threads.

mod backpressure;
mod binding;
mod control;
mod dataplane;
mod explain;
mod fleet;
#[path = "../../../ports/tests/it/support/guest.rs"]
#[expect(dead_code, reason = "the tests of ports use the rest")]
mod guest;
mod heavy;
mod keys;
mod known_flows;
mod known_headers;
mod late;
mod leases;
mod mediate;
mod networks;
mod press;
mod programs;
mod reload;
mod reload_in;
mod round_trips;
mod sealed;
mod shares;
mod short_queues;
mod standby;
mod support;
mod threads;
mod together;
mod trains;
mod vhost_user;
mod vnic;
