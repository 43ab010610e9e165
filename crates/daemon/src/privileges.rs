//! The privileges that the process keeps once its ports are open.
//!
//! Why: a daemon that parses hostile frames should have as few rights on the host as possible.
//! From: capabilities(7), `no_new_privs`.
//! Not here: the file system's view, which the systemd unit narrows (`dist/plimsoll.service`).
//! Invariant: only the privileges that reload and lost ports need are kept.

use std::collections::HashSet;

use caps::{CapSet, Capability};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::sandbox;

/// Making interfaces, entering namespaces, raw sockets: a reload may add a tenant, a lost port may come back. BPF is
/// for AF_XDP, DAC_OVERRIDE for a namespace file that belongs to a container's user.
const KEPT: [Capability; 6] = [
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_BPF,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_SYS_PTRACE,
];

/// Capabilities that only the start needs: to become another user, and to bound what can ever be gained.
#[cfg(test)]
const GRANTED: [Capability; 3] = [Capability::CAP_SETUID, Capability::CAP_SETGID, Capability::CAP_SETPCAP];

/// Gives up, in the broker, all capabilities but [`KEPT`], and the right to gain any by running another program. A
/// failure is logged, and the broker runs nevertheless. With `helps`, it keeps the right to schedule threads before other
/// processes.
pub(crate) fn keep_for_broker(helps: bool) {
    let kept: HashSet<Capability> =
        KEPT.into_iter().chain(helps.then_some(Capability::CAP_SYS_NICE)).collect();
    sandbox::narrow_bounding_set(&kept);
    if let Err(error) = nix::sys::prctl::set_no_new_privs() {
        eprintln!("plimsoll: the broker cannot give up new privileges: {error}");
    }
    if let Err(error) = sandbox::keep_only(&kept) {
        eprintln!("plimsoll: the broker cannot give up capabilities: {error}");
    }
}

/// Gives up all capabilities but [`KEPT`], for this thread and those that it starts, and the right to gain any by running
/// another program. A failure is logged, and the daemon runs nevertheless. With `keep_nice`, the capability to be
/// scheduled before other processes stays as well.
pub fn drop_unneeded(keep_nice: bool) {
    if let Err(error) = nix::sys::prctl::set_no_new_privs() {
        eprintln!("plimsoll: cannot give up new privileges: {error}");
    }
    let nice = keep_nice.then_some(Capability::CAP_SYS_NICE);
    let kept: HashSet<Capability> = KEPT.into_iter().chain(nice).collect();
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        let narrowed = caps::read(None, set).and_then(|has| {
            let rest = has.intersection(&kept).copied().collect();
            caps::set(None, set, &rest)
        });
        if let Err(error) = narrowed {
            eprintln!("plimsoll: cannot give up capabilities: {error}");
        }
    }
}

/// Raises the number of open files to the most that this process may have: each port and each connection needs one, and
/// 1,024 is the usual default.
pub fn allow_files() {
    // With fewer the daemon runs as well, for fewer tenants.
    let _ = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
}

/// Lets this process pin any amount of memory, also once it has no capability: the process that carries AF_XDP's frames pins
/// them. Answers whether the kernel allows it.
pub(crate) fn allow_locked_memory() -> bool {
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn as_many_files_as_allowed() {
        allow_files();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        assert_eq!(soft, hard);
    }

    #[test]
    fn the_unit_and_the_manual_grant_what_is_kept_and_no_more() {
        let kept: BTreeSet<String> = KEPT.iter().chain(&GRANTED).map(ToString::to_string).collect();
        let unit = include_str!("../../../dist/plimsoll.service");
        let granted = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap_or("");
        assert_eq!(granted.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>(), kept);

        let manual = include_str!("../../../docs/operations.md");
        let section = manual.split("## ").find(|section| section.starts_with("Privileges")).unwrap_or("");
        let named = section.split('`').filter(|word| word.starts_with("CAP_"));
        assert_eq!(named.map(str::to_owned).collect::<BTreeSet<_>>(), kept);
    }
}
