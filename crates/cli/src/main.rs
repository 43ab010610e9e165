//! The `plimsoll` command.
//!
//! Why: one binary has all of an operator's commands.
//! From: `docs/operations.md`; man pages and completions come from the same definition (`args`).
//! Not here: the work; each command calls a crate and shows the result.
//! Invariant: exit code 0 means success, 1 a failure, 2 a wrong file or command line.
#![forbid(unsafe_code)]

mod agree;
mod args;
mod attach;
mod attachment;
mod audit;
mod bench;
mod check;
mod cni;
mod docker;
mod explain;
mod failure;
mod fleet;
mod heavy;
mod lab;
mod live;
mod paper;
mod papers;
mod program;
mod reader;
mod replay;
mod show;
mod sim;
mod slo;
mod status;
mod top;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Bench, Command};
use failure::Failure;

fn main() -> ExitCode {
    if cni::is_called(std::env::args_os().next().as_deref()) {
        return cni::main();
    }
    let args = Args::parse();
    match execute(&args.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Check(check) => check::check(check),
        Command::Schema { of } => check::schema(*of),
        Command::Run(run) => live::run(run),
        Command::Broker => live::broker(),
        Command::Reload(reload) => live::reload(reload),
        Command::Audit(ask) => audit::audit(ask),
        Command::Attach(args) => attach::attach(args),
        Command::DockerPlugin(args) => docker::docker_plugin(args),
        Command::Rate(rate) => live::set_rate(rate),
        Command::Stats(ask) => live::stats(ask),
        Command::Status(ask) => status::status(ask),
        Command::Slo(args) => slo::slo(args),
        Command::Heavy(ask) => heavy::heavy(ask),
        Command::Top(top) => top::top(top),
        Command::Explain(explain) => explain::explain(explain),
        Command::Fleet(fleet) => fleet::fleet(fleet),
        Command::Lab(lab) => lab::lab(lab),
        Command::Sim(sim) => sim::sim(sim),
        Command::Agree(args) => agree::agree(args),
        Command::Papers(papers) => papers::papers(papers),
        Command::Bench(Bench::Doorbells(doorbells)) => bench::doorbells(doorbells),
        Command::Bench(Bench::Pcie(pcie)) => bench::pcie(pcie),
        Command::Bench(Bench::Wakeups(wakeups)) => bench::wakeups(wakeups),
        Command::Program(program) => program::program(program),
        Command::ReadFile(args) => reader::read(args),
        Command::Completions { shell } => paper::completions(*shell),
        Command::Man { folder } => paper::man(folder),
    }
}
