//! Confines the process that reads tenants' frames, before it reads the first.
//!
//! Why: an attacker who takes the process over must find one that may do nothing but carry packets.
//! From: setresuid(2), capabilities(7), seccomp(2), landlock(7); `docs/decisions/0013-privileges.md`.
//! Not here: what the broker keeps (`privileges`), and the file system as the systemd unit narrows it.
//! Invariants: the process is confined while it has a single thread, and so every later thread is; a mechanism that the
//! kernel lacks is logged, and the others are used nevertheless.

mod calls;
mod files;
#[cfg(test)]
mod tests;
mod user;

use std::collections::HashSet;

use caps::{CapSet, Capability};
use plimsoll_ports::trap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use user::User;

/// The confinement in force, for the log and `plimsoll status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Confinement {
    /// The user and group that the engine, the API and the control run as.
    pub user: String,
    /// The capabilities left to it, by name.
    pub capabilities: Vec<String>,
    /// Whether a filter of system calls is in force.
    pub seccomp: bool,
    /// Whether it may run code that it has compiled, which tenants' programs need.
    #[serde(default)]
    pub programs: bool,
    /// How far Landlock restricts it.
    pub landlock: String,
    /// The broker's process, which opens ports and reads the policy file.
    pub broker: Option<u32>,
    /// Whether the broker has ended.
    #[serde(default)]
    pub broker_ended: bool,
}

impl Confinement {
    /// The confinement of a process that was started with `--no-sandbox`: none.
    pub(crate) fn none() -> Self {
        let user = format!("uid {}", nix::unistd::geteuid());
        Self { user, capabilities: held(), landlock: "off".to_owned(), ..Self::default() }
    }

    /// A summary in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let capabilities = match self.capabilities.as_slice() {
            [] => "no capability".to_owned(),
            some => some.join(" "),
        };
        let seccomp = match (self.seccomp, self.programs) {
            (true, false) => "on",
            (true, true) => "on (but for compiled programs)",
            (false, _) => "off",
        };
        let broker = match (self.broker, self.broker_ended) {
            (None, _) => "none".to_owned(),
            (Some(id), false) => format!("process {id}"),
            (Some(id), true) => format!("process {id}, ENDED"),
        };
        format!(
            "{}, {capabilities}, seccomp {seccomp}, landlock {}, broker {broker}",
            self.user, self.landlock
        )
    }
}

/// Gives up all privileges, as the only thread of the process. With `programs`, it may run code that it has compiled.
///
/// # Errors
/// When it cannot become the user that was asked for, or give up capabilities.
pub(crate) fn confine(user: &User, broker: u32, programs: bool) -> Result<Confinement, String> {
    nix::sys::prctl::set_no_new_privs().map_err(|error| format!("no_new_privs: {error}"))?;
    narrow_bounding_set(&HashSet::new());
    let user = user.become_it()?;
    keep_only(&HashSet::new()).map_err(|error| format!("capabilities: {error}"))?;
    let capabilities = held();
    let landlock = files::restrict();
    let seccomp = match trap::install(calls::judge)
        .map_err(|e| e.to_string())
        .and_then(|()| calls::filter_engine(programs))
    {
        Ok(()) => true,
        Err(error) => {
            eprintln!("plimsoll: no filter of system calls can be put in place: {error}");
            false
        }
    };
    let broker = Some(broker);
    Ok(Confinement { user, capabilities, seccomp, programs, landlock, broker, broker_ended: false })
}

/// Denies a process that reads a tenant's file all other files, TCP, and signals to other processes, as far as the kernel
/// can.
pub(crate) fn confine_reader() {
    // The limits of `reader` hold in any case.
    let _ = files::restrict_wholly();
}

/// Denies the broker the system calls that it never makes.
pub(crate) fn confine_broker() -> Result<(), String> {
    trap::install(calls::judge).map_err(|error| error.to_string())?;
    if let Err(error) = calls::filter_broker() {
        eprintln!("plimsoll: no filter of system calls can be put in place for the broker: {error}");
    }
    Ok(())
}

/// Removes every capability that is not `kept` from the bounding set, as far as this process may. Capabilities that stay
/// there do no harm: running another program no longer gains privileges.
pub(crate) fn narrow_bounding_set(kept: &HashSet<Capability>) {
    for capability in caps::all() {
        if !kept.contains(&capability) && caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false) {
            // Without CAP_SETPCAP the capability stays.
            let _ = caps::drop(None, CapSet::Bounding, capability);
        }
    }
}

/// Gives up every capability that is not `kept`.
pub(crate) fn keep_only(kept: &HashSet<Capability>) -> Result<(), caps::errors::CapsError> {
    let _ = caps::clear(None, CapSet::Ambient); // Linux before 4.3 has none
    let permitted = caps::read(None, CapSet::Permitted)?;
    let rest: HashSet<Capability> = permitted.intersection(kept).copied().collect();
    caps::set(None, CapSet::Effective, &rest)?;
    caps::set(None, CapSet::Permitted, &rest)?;
    caps::set(None, CapSet::Inheritable, &HashSet::new())
}

/// The capabilities that this process has.
fn held() -> Vec<String> {
    let mut names: Vec<String> =
        caps::read(None, CapSet::Permitted).unwrap_or_default().iter().map(ToString::to_string).collect();
    names.sort();
    names
}
