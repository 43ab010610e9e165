//! Ports: no two of them the same thing.
//!
//! Why: two tenants behind one device could not be told apart.
//! From: `docs/policy.md`, "Ports".
//! Not here: whether a device exists (the daemon finds out).
//! Invariant: of two equal ports the later one is reported.

use std::collections::HashMap;
use std::path::Path;

use crate::config::{Netns, Port};
use crate::law::{Law, Problem, Problems};
use crate::read::syntax::{TenantEntry, UplinkEntry};
use plimsoll_document::{Located, Mark};

/// The resource that a port occupies.
#[derive(PartialEq, Eq, Hash)]
enum Thing<'a> {
    Interface(Option<&'a Netns>, &'a str),
    Written(&'a Path),
    ReadBy(&'a Path),
    Socket(&'a Path),
}

pub(crate) fn judge(uplink: Option<&UplinkEntry>, tenants: &[TenantEntry], problems: &mut Problems) {
    let named = |name: &str, port| ("the ".to_owned() + name, port);
    let uplink = uplink.into_iter().flat_map(|uplink| {
        let first = uplink.port.as_ref().map(|port| named("uplink", port));
        first.into_iter().chain(uplink.standby.as_ref().map(|port| named("standby uplink", port)))
    });
    let tenants = tenants.iter().filter_map(|tenant| {
        tenant.port.as_ref().map(|port| (format!("tenant `{}`", tenant.name.value), port))
    });
    let ports: Vec<(String, &Located<Port>)> = uplink.chain(tenants).collect();
    let mut taken: HashMap<Thing<'_>, (&str, Mark)> = HashMap::new();
    for (owner, port) in &ports {
        for (thing, named) in things(&port.value) {
            if let Some((first, at)) = taken.get(&thing) {
                let message = format!("{owner} and {first} have the same port: {named}");
                let problem = Problem::error(Law::PortClash, port.at, message).label("taken");
                problems.push(problem.also(*at, format!("{first} has it already")).help(
                    "give each port an interface (name and network namespace), socket or file of its own",
                ));
                continue;
            }
            taken.insert(thing, (owner, port.at));
        }
    }
}

fn things(port: &Port) -> Vec<(Thing<'_>, String)> {
    match port {
        Port::AfXdp(name) | Port::AfPacket(name) => {
            vec![(Thing::Interface(None, name), format!("interface `{name}`"))]
        }
        Port::Tap { netns, name } => {
            let place = match netns {
                None => String::new(),
                Some(Netns::Name(netns)) => format!(" in `{netns}`"),
                Some(Netns::Path(path)) => format!(" in `{}`", path.display()),
            };
            vec![(Thing::Interface(netns.as_ref(), name), format!("interface `{name}`{place}"))]
        }
        Port::Pcap { read, write } => {
            let read = read.iter().map(|path| (Thing::ReadBy(path), format!("file `{}`", path.display())));
            let write = write.iter().map(|path| (Thing::Written(path), format!("file `{}`", path.display())));
            read.chain(write).collect()
        }
        Port::Vnic(path) | Port::VhostUser { socket: path, .. } => {
            vec![(Thing::Socket(path), format!("socket `{}`", path.display()))]
        }
        Port::Memory => Vec::new(),
    }
}
