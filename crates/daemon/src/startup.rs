//! All ports of a policy, when the daemon starts: opened, or taken over from the run before.
//!
//! Why: a restart must not interrupt what an earlier run left open, and one tenant's port must not hold up another's.
//! From: `docs/operations.md`; systemd's file descriptor store.
//! Not here: how one port is opened (`open`), and by which process (`broker`).
//! Invariant: the uplink or its standby is open, and each tenant has a lane, with a port or with a reason why it has none yet.

use std::collections::BTreeMap;

use plimsoll_policy::Checked;
use plimsoll_ports::{Kept, Port};

use crate::broker::{Broker, Number};
use crate::dataplane::{LaneSpec, Place, Whose, lane_spec};
use crate::open::{OpenError, Wanted, keep, tenant_wanted, uplink_wanted};

/// The ports of a start.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The uplink's port.
    pub uplink: Port,
    /// Its further queues, where they had to be opened with it.
    pub further: Vec<Port>,
    /// Its place in the policy: that of the standby where only that one can be opened.
    pub active: Place,
    /// The standby, where both can be opened.
    pub idle: Option<Port>,
    /// The tenants' lanes, in the policy's order.
    pub lanes: Vec<LaneSpec>,
    /// Owners whose port cannot be opened yet, and why; tenants' lanes have no port.
    pub missing: Vec<(Whose, OpenError)>,
}

/// Ports of an earlier run that the service manager has kept, configured as this policy states.
#[derive(Debug, Default)]
pub(crate) struct Resumed {
    uplink: Option<Result<Port, OpenError>>,
    further: Vec<Port>,
    standby: Option<Result<Port, OpenError>>,
    tenants: BTreeMap<String, Result<Port, OpenError>>,
    rest: Kept,
}

/// Takes the ports that an earlier run left with the service manager.
///
/// # Errors
/// When the uplink is among them and cannot be configured as the policy states.
pub(crate) fn resume_all(checked: &Checked) -> Result<Resumed, OpenError> {
    let mut resumed = Resumed { rest: Kept::receive(), ..Resumed::default() };
    let uplink = uplink_wanted(&checked.config, &Whose::Uplink);
    resumed.uplink = uplink.map(|uplink| resume(&uplink, &mut resumed.rest)).transpose()?.flatten().map(Ok);
    for tenant in &checked.config.tenants {
        let port = resume(&tenant_wanted(checked, tenant), &mut resumed.rest);
        resumed.tenants.extend(port.transpose().map(|port| (tenant.name.clone(), port)));
    }
    Ok(resumed)
}

/// Opens AF_XDP's ports before all others, while this process has its privileges: where neither it nor the broker may pin
/// their frames later.
pub(crate) fn open_pinned(checked: &Checked, resumed: &mut Resumed) {
    let pinned = |whose| uplink_wanted(&checked.config, &whose).filter(|wanted| wanted.xdp().is_some());
    if let Some(uplink) = pinned(Whose::Uplink) {
        let opened = uplink.open().and_then(|first| {
            resumed.further = further_queues(&uplink, &first, checked.config.engine.threads)?;
            Ok(first)
        });
        resumed.uplink = Some(opened);
    }
    resumed.standby = pinned(Whose::Standby).map(|standby| standby.open());
    for tenant in &checked.config.tenants {
        let wanted = tenant_wanted(checked, tenant);
        if wanted.xdp().is_some() {
            resumed.tenants.insert(tenant.name.clone(), wanted.open());
        }
    }
}

/// A queue of AF_XDP for each thread but the first, opened by this process.
fn further_queues(uplink: &Wanted<'_>, first: &Port, threads: u32) -> Result<Vec<Port>, OpenError> {
    let Port::AfXdp(first) = first else { return Ok(Vec::new()) };
    (1..threads).map(|queue| uplink.open_next(first, queue)).collect()
}

/// Opens all ports of the policy at the start. Ports that an earlier run left are used again, and new ones are left with the
/// service manager in turn. A tenant whose port cannot be opened does not hold up the others: its container may not
/// have started yet.
///
/// # Errors
/// When the uplink cannot be opened, nor its standby, or a port is of a kind that no daemon opens.
pub(crate) fn open_all(checked: &Checked, broker: &Broker, resumed: Resumed) -> Result<Opened, OpenError> {
    let Resumed { uplink, further, standby, tenants: mut kept, rest } = resumed;
    let opened = |whose, kept: Option<_>| kept.or_else(|| broker.open_uplink(checked, 0, &whose));
    let both = (opened(Whose::Uplink, uplink), opened(Whose::Standby, standby));
    let (mut lanes, mut missing) = (Vec::new(), Vec::new());
    let (uplink, active, idle) = match both {
        (Some(Err(error @ OpenError::Memory { .. })), _)
        | (_, Some(Err(error @ OpenError::Memory { .. }))) => {
            return Err(error);
        }
        (Some(Ok(first)), second) => {
            let idle =
                second.and_then(|second| second.map_err(|error| missing.push((Whose::Standby, error))).ok());
            (first, Place::First, idle)
        }
        (Some(Err(error)), Some(Ok(second))) => {
            missing.push((Whose::Uplink, error));
            (second, Place::Second, None)
        }
        (Some(Err(error)), _) => return Err(error),
        (None, _) => unreachable!("each policy states an uplink"),
    };
    for tenant in &checked.config.tenants {
        let kept = kept.remove(&tenant.name);
        let port = match kept.unwrap_or_else(|| broker.open_tenant(checked, 0, &tenant.name)) {
            Ok(port) => Some(port),
            Err(error @ OpenError::Memory { .. }) => return Err(error),
            Err(error) => {
                missing.push((Whose::Tenant(tenant.name.clone()), error));
                None
            }
        };
        lanes.push(lane_spec(checked, &tenant.name, port));
    }
    rest.let_go();
    lanes.iter().filter_map(|lane| lane.port.as_ref()).chain([&uplink]).for_each(keep);
    Ok(Opened { uplink, further, active, idle, lanes, missing })
}

/// Opens the uplink's queues that are not open yet, one for each thread; `queues` holds at least the first. What arrives is divided among them, by flow.
///
/// # Errors
/// When one cannot be opened, or the port has one queue only.
pub(crate) fn open_queues(
    checked: &Checked,
    number: Number,
    broker: &Broker,
    mut queues: Vec<Port>,
) -> Result<Vec<Port>, OpenError> {
    let whose = Whose::Uplink;
    while queues.len() < checked.config.engine.threads as usize {
        let next = (&queues[0], queues.len() as u32);
        queues.extend(broker.open_next(checked, number, &whose, next).transpose()?);
    }
    let failed = |source| OpenError::Port { whose: whose.to_string(), source };
    Port::fan_out(&mut queues).map_err(failed)?;
    Ok(queues)
}

/// Takes a port that an earlier run left, if it did.
///
/// # Errors
/// See [`OpenError`].
fn resume(wanted: &Wanted<'_>, kept: &mut Kept) -> Result<Option<Port>, OpenError> {
    let Some(config) = wanted.tap() else { return Ok(None) };
    let resumed = kept.take(&config).map_err(|source| wanted.failed(source))?.map(Port::Tap);
    if let Some(port) = &resumed {
        eprintln!("plimsoll: {}: {} is as the run before left it", wanted.whose, port.name());
    }
    Ok(resumed)
}
