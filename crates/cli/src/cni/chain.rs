//! Behind the plugin `bridge`: the container keeps the interface that it has.
//!
//! Why: a network that exists, with its addresses, gateway and port mappings, gets envelopes by one more plugin in its list.
//! From: `plimsoll attach`, which does the same for a container that runs; `docs/containers.md`, "How it works".
//! Not here: the uplink, which leads into the same bridge.
//! Invariant: if the daemon refuses the tenant, the host's end is in its bridge again.

use std::path::PathBuf;

use plimsoll_ports::netns::NetnsRef;

use super::answer::{Code, Refusal};
use super::config::Call;
use crate::attach::ends::{self, Ends};
use crate::attach::{give_back, take_over};
use crate::failure::Failure;

/// Takes the host's end of the container's veth out of its bridge, and has `in_force` make it a tenant's port.
pub(super) fn add(call: &Call, in_force: impl FnOnce(&Ends) -> Result<(), Refusal>) -> Result<(), Refusal> {
    let netns = NetnsRef::Path(PathBuf::from(&call.netns));
    let ends = ends::find_in(&netns, Some(&call.interface), "the container").map_err(no_veth)?;
    // An earlier call that was ended halfway may have taken it out of its bridge.
    if ends.before().bridge.is_none() {
        let message = format!("the host's end `{}` of `{}` is in no bridge", ends.host, call.interface);
        return Err(Refusal::new(Code::Config, message).details(BEHIND));
    }
    take_over(&ends, &mut |_| {}).map_err(|failure| Refusal::new(Code::Io, failure.words()))?;
    in_force(&ends).inspect_err(|_| give_back(&ends))
}

/// Checks that the container's interface is still the other end of `host`, its tenant's port, and that this has not gone back to a
/// bridge, past the engine.
pub(super) fn check(call: &Call, host: &str) -> Result<(), Refusal> {
    let netns = NetnsRef::Path(PathBuf::from(&call.netns));
    let ends = ends::find_in(&netns, Some(&call.interface), "the container").map_err(no_veth)?;
    let message = match ends.bridge {
        _ if ends.host != host => {
            format!("the tenant's port is `{host}`, but the host's end is `{}`", ends.host)
        }
        Some(bridge) => format!("the host's end `{host}` is in the bridge `{bridge}` again"),
        None => return Ok(()),
    };
    Err(Refusal::new(Code::Missing, message)
        .details("its packets pass by the engine: start the container again"))
}

fn no_veth(failure: Failure) -> Refusal {
    Refusal::new(Code::Config, failure.words()).details(BEHIND)
}

const BEHIND: &str = "list this plugin behind `bridge`, or leave the other plugin out and state `ipam` here";
