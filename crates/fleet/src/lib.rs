//! The directory of a fleet: its hosts, tenants and policies; and each host's policy file, composed from it.
//!
//! Why: which host has which tenant, and under which policy, is stated once for all hosts.
//! From: `docs/fleet.md`; etcd's leases, watches and transactions, or one locked file.
//! Not here: running a policy (`daemon`), the commands (`cli`), addresses on the wire (`control::directory`).
//! Invariant: whatever a directory's values say, reading them never panics; a value that is wrong is left out and named.
#![forbid(unsafe_code)]

mod agent;
mod change;
mod clock;
mod compose;
mod directory;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
mod object;
mod place;
mod rollout;
mod rotation;
mod state;

pub use agent::{Agent, Local, Settings};
pub use change::{Refusal, add, forget_host, init, join, move_tenant, put_policy, remove, update};
pub use clock::{unix_millis, unix_time};
pub use compose::{ComposeError, Composed, LeftOut, compose, compose_without};
pub use directory::{Access, Change, Directory, DirectoryError, Keys, News, Outcome, Transaction, open};
pub use file::FileDirectory;
pub use object::{
    Alive, BadValue, FleetObject, HostObject, PolicyInUse, PolicyObject, RolloutObject, RolloutState,
    TenantObject, VERSION, Value, Version,
};
pub use place::{Fit, place};
pub use rollout::{Step, canaries, rollback, start, step};
pub use rotation::{behind, next_to_key};
pub use state::{Seen, State};

#[cfg(feature = "etcd")]
pub use etcd::EtcdDirectory;
