//! What of the file system and of other processes is left: next to nothing.
//!
//! Why: a user without privileges may still read what everybody may, and connect to what is on this host.
//! From: landlock(7). The kernel is asked what it knows; what it lacks is left out, and said.
//! Not here: what the broker opens: an open file stays open.
//! Invariant: nothing can be written, made, removed or run; of other files, those below can be read.

use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, LandlockStatus, PathFd, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};

/// What may be read: what tells this machine from others, its cores, random numbers, and a sink. The last is the program,
/// by whose symbols a panic says where it was.
const READ: [&str; 5] =
    ["/etc/machine-id", "/sys/devices/system/cpu/online", "/dev/urandom", "/dev/null", "/proc/self/exe"];

/// This process's own figures. A rule is of one inode: held open, so that the kernel does not make another one.
const OWN: &str = "/proc/self";

/// The rights that this was written for; a kernel that knows more is asked for these.
const KNOWN: ABI = ABI::V6;

static OWN_FIGURES: OnceLock<PathFd> = OnceLock::new();

/// Restricts this thread, and those that it starts; says how far.
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

/// Leaves this thread the files that it has open, and no other: for one that reads what a tenant wrote, and nothing else. What the
/// kernel lacks is left out.
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
