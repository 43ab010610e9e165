//! Reads tenants' files in separate processes.
//!
//! Why: `check`, `run` and a reload read files written by tenants, which must not be able to harm them.
//! From: `daemon::reader`; the process is this binary again.
//! Not here: its limits, and the format of its answer.
//! Invariant: such a process gives up its privileges before it reads its input.

use std::sync::Arc;

use plimsoll_daemon::reader::{self, Child, FileReader, Limits};
use plimsoll_document::Tree;
use plimsoll_policy::{Checked, Errors, FileId, FileRead, Sources, Unread};

use crate::args::ReadFile as Args;
use crate::failure::Failure;

/// The reader of tenants' files: this program in a new process, also when its file has been replaced meanwhile.
pub(crate) fn process() -> Arc<dyn FileReader> {
    let program = "/proc/self/exe".into();
    Arc::new(Child { program, command: "read-file".into(), limits: Limits::default() })
}

/// Checks a policy whose tenants' files are read by other processes.
pub(crate) fn load(file: &str) -> Result<Checked, Errors> {
    reader::load(file, Some(&*process()))
}

/// Reads a file that is not trusted, in another process. `None` when it cannot be read.
pub(crate) fn read_first(file: &str) -> Result<Option<FileRead>, Failure> {
    let read = FileRead::at(file, &mut by(&*process()));
    read.map_err(|why| Failure::Wrong(format!("reading {file} was given up: {why}")))
}

/// Checks a policy file that is to have this text; tenants' files are read by other processes.
pub(crate) fn load_text(file: &str, text: &str) -> Result<Checked, Failure> {
    let read = FileRead::of(file, text, &mut by(&*process()));
    let read = read.map_err(|why| Failure::Wrong(format!("reading {file} was given up: {why}")))?;
    load_read(read).map_err(|errors| Failure::Policy(Box::new(errors)))
}

/// Checks a policy that has been read; its tenants' files are read by other processes.
pub(crate) fn load_read(file: FileRead) -> Result<Checked, Errors> {
    plimsoll_policy::load_read(file, &mut by(&*process()))
}

/// Checks a tenant's file that has been read.
pub(crate) fn load_sub_policy(file: FileRead) -> Result<Checked, Errors> {
    plimsoll_policy::load_sub_policy_read(file, &mut by(&*process()))
}

fn by(process: &dyn FileReader) -> impl FnMut(&Sources, FileId) -> Result<Tree, Unread> {
    move |sources, file| reader::parse(process, sources, file)
}

/// Runs the process that reads a file.
pub(crate) fn read(args: &Args) -> Result<(), Failure> {
    reader::answer(args.memory, args.cpu).map_err(|error| Failure::io("standard input", &error))
}
