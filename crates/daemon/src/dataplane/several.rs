//! The engines of several threads under one policy.
//!
//! Why: the start, tests and benches must make them in the same way.
//! Not here: opening ports (`open`), the threads themselves (`thread`).
//! Invariant: each engine has a lane for each tenant, in the same order; a tenant's port is in one of them.

use std::sync::Arc;

use plimsoll_policy::{Checked, Unsupported};
use plimsoll_ports::{Port, PortError};
use plimsoll_units::Nanos;

use super::crossing::{Crossing, Seat};
use super::leasing::{LeaseRoom, Leasing};
use super::setup::{engine_config, lane_spec};
use super::{Dataplane, Setup};
use crate::departures::DepartureLog;

/// Why there cannot be several engines.
#[derive(Debug, thiserror::Error)]
pub enum SeveralError {
    /// The policy states what several threads do not keep.
    #[error("{0}; write `threads: 1`")]
    Policy(#[from] Unsupported),
    /// The rings between threads cannot be made.
    #[error(transparent)]
    Rings(#[from] PortError),
}

/// The thread that serves a tenant's port at the start, of `threads`.
#[must_use]
pub fn thread_of(tenant: usize, threads: usize) -> usize {
    tenant % threads.max(1)
}

/// Engines for a policy, one for each of the uplink's queues and with a log each. `ports` are the tenants', in the policy's order.
///
/// # Errors
/// See [`SeveralError`].
pub fn several(
    checked: &Checked,
    uplinks: Vec<Port>,
    ports: Vec<Option<Port>>,
    logs: &[Arc<DepartureLog>],
) -> Result<Vec<Dataplane>, SeveralError> {
    let threads = uplinks.len();
    let room = Arc::new(LeaseRoom::new(&checked.program, threads)?);
    let crossings = Crossing::mesh(threads)?;
    let mut ports: Vec<_> = ports.into_iter().map(Some).collect();
    let mut engines = Vec::with_capacity(threads);
    for (thread, (uplink, crossing)) in uplinks.into_iter().zip(crossings).enumerate() {
        let tenants = checked.config.tenants.iter().zip(&mut ports).enumerate();
        let lanes = tenants.map(|(number, (tenant, port))| {
            let serves = thread_of(number, threads);
            let port = if serves == thread { port.take().flatten() } else { None };
            let elsewhere = (serves != thread).then_some(serves as u32);
            let spec = lane_spec(checked, &tenant.name, port);
            super::LaneSpec { seat: Seat { number: number as u32, elsewhere }, ..spec }
        });
        let lanes = lanes.collect();
        let mut engine = Dataplane::new(Setup {
            program: Arc::clone(room.program()),
            config: engine_config(checked, &uplink),
            uplink,
            lanes,
            log: logs.get(thread).map(Arc::clone).unwrap_or_default(),
            fleet: None,
        });
        engine.join(crossing);
        engine.lease_from(Box::new(Leasing::new(Arc::clone(&room), thread)), Nanos::ZERO);
        engines.push(engine);
    }
    Ok(engines)
}
