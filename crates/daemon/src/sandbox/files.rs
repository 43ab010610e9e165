//! Restricts access to the file system and to other processes.
//!
//! Why: a user without privileges may still read files that all users may read, and connect to services of this host.
//! From: landlock(7). The kernel is asked for its version; a right that it does not know is left out, and logged.
//! Not here: files that the broker opens: an open file stays open.
//! Invariant: nothing can be written, made, removed or run; of other files, those below can be read.

use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};

/// Files that may be read: the machine's identifier, its cores, random numbers, and a sink. The last is the program itself,
/// by whose symbols a panic reports its place.
const READ: [&str; 5] =
    ["/etc/machine-id", "/sys/devices/system/cpu/online", "/dev/urandom", "/dev/null", "/proc/self/exe"];

/// This process's own figures. A rule is of one inode: held open, so that the kernel does not make another one.
const OWN: &str = "/proc/self";

/// The version of Landlock that this was written for; a newer kernel is asked for its rights only.
const KNOWN: ABI = ABI::V6;

static OWN_FIGURES: OnceLock<PathFd> = OnceLock::new();

/// Restricts this thread and those that it starts; answers how far, as text.
pub(super) fn restrict() -> String {
    if let Ok(figures) = PathFd::new(OWN) {
        let _ = OWN_FIGURES.set(figures);
    }
    match rules() {
        Ok(status) => describe(&status),
        Err(error) => {
            eprintln!("plimsoll: Landlock cannot be put in place: {error}");
            format!("off ({error})")
        }
    }
}

/// Denies this thread all files but those that it has open: for a process that only reads a tenant's file. A right that the
/// kernel does not know is left out.
pub(super) fn restrict_wholly() -> Result<(), RulesetError> {
    all().and_then(RulesetCreated::restrict_self).map(drop)
}

fn all() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()
}

fn rules() -> Result<RestrictionStatus, RulesetError> {
    all()?
        .add_rules(path_beneath_rules(READ, AccessFs::ReadFile))?
        .add_rules(path_beneath_rules([OWN], AccessFs::ReadFile | AccessFs::ReadDir))?
        .restrict_self()
}

fn describe(status: &RestrictionStatus) -> String {
    let version = match status.landlock {
        LandlockStatus::NotEnabled => {
            return "off (the kernel was started without it: `lsm=` lacks `landlock`)".to_owned();
        }
        LandlockStatus::NotImplemented => return "off (the kernel has none)".to_owned(),
        LandlockStatus::Available { effective_abi, kernel_abi } => kernel_abi.unwrap_or(effective_abi as i32),
    };
    match status.ruleset {
        RulesetStatus::FullyEnforced => format!("on (version {version})"),
        RulesetStatus::PartiallyEnforced => format!("on in part (version {version})"),
        RulesetStatus::NotEnforced => "off".to_owned(),
    }
}
