//! Completion scripts and man pages.
//!
//! Why: both must always agree with the command line.
//! From: clap's own generators.
//! Not here: the commands themselves.
//! Invariant: there is a man page for every command, with subcommands or without.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::failure::{Failure, print};

/// Prints a completion script.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "plimsoll", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes `plimsoll.1` and one page for each command.
pub(crate) fn man(folder: &Path) -> Result<(), Failure> {
    let wrong =
        |error: std::io::Error| Failure::io(format!("write man pages to {}", folder.display()), &error);
    std::fs::create_dir_all(folder).map_err(wrong)?;
    clap_mangen::generate_to(Args::command().disable_help_subcommand(true), folder).map_err(wrong)
}
