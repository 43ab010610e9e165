//! Reading tenants' files in processes of their own: who does it, and what those processes do.
//!
//! Why: `check`, `run` and a reload read what tenants wrote, and must outlive it.
//! From: `daemon::reader`; the process is this binary again.
//! Not here: limits, and what is answered.
//! Invariant: nothing that such a process is given is looked at before it has given up what it could do.

use std::sync::Arc;

use plimsoll_daemon::reader::{self, Child, FileReader, Limits};

use crate::args::ReadFile as Args;
use crate::failure::Failure;

/// What reads tenants' files: this program, also when its file has been replaced meanwhile.
pub(crate) fn process() -> Arc<dyn FileReader> {
    let program = "/proc/self/exe".into();
    Arc::new(Child { program, command: "read-file".into(), limits: Limits::default() })
}

/// Checks a policy whose tenants' files are read by other processes.
pub(crate) fn load(file: &str) -> Result<plimsoll_policy::Checked, plimsoll_policy::Errors> {
    reader::load(file, Some(&*process()))
}

/// Checks a tenant's file, which is read by another process.
pub(crate) fn load_sub_policy(file: &str) -> Result<plimsoll_policy::Checked, plimsoll_policy::Errors> {
    let process = process();
    plimsoll_policy::load_sub_policy_with(file, &mut |sources, file| reader::parse(&*process, sources, file))
}

/// The keys at the top of a file that anybody may have written.
pub(crate) fn top_keys(file: &str) -> Result<Vec<String>, Failure> {
    let process = process();
    let keys =
        plimsoll_policy::top_keys_with(file, &mut |sources, file| reader::parse(&*process, sources, file));
    keys.map_err(|why| Failure::Wrong(format!("reading {file} was given up: {why}")))
}

/// What the process does that reads a file.
pub(crate) fn read(args: &Args) -> Result<(), Failure> {
    reader::answer(args.memory, args.cpu).map_err(|error| Failure::io("standard input", &error))
}
