//! What may stand on the command line.
//!
//! Why: help, man pages and completions must say the same, so they have one source.
//! From: clap's derive; each command's examples are in its long help.
//! Not here: what the commands do.
//! Invariant: every command that prints a table has `--json`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use plimsoll_policy::Prefix;

/// Predictable virtual NICs for the tenants of a shared host
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll",
    version,
    after_help = "Start with `plimsoll check FILE`, then `plimsoll run FILE`. \
                  `plimsoll help COMMAND` shows examples of each."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check a policy file, and show its tree and what each class is guaranteed
    Check(Check),
    /// Print the JSON Schema of policy files, for editors
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema {
        /// Of which kind of file
        #[arg(value_enum, default_value_t)]
        of: SchemaOf,
    },
    /// Put a policy in force on this host, until stopped
    Run(Run),
    /// Open ports for a daemon that may not do so itself: `plimsoll run` starts this
    #[command(hide = true)]
    Broker,
    /// Have the running daemon read its policy file again
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(Ask),
    /// Give a class of the running daemon another rate, until the next reload
    #[command(after_help = RATE_EXAMPLES)]
    Rate(Rate),
    /// Show the running daemon's counters
    #[command(after_help = STATS_EXAMPLES)]
    Stats(Ask),
    /// Say how the running daemon is, and what its engine may do
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Ask),
    /// Say whether each tenant's promise held, and who or what broke it
    Slo(Slo),
    /// Watch the running daemon: rates, backlogs and delays of the whole tree
    Top(Top),
    /// Say what such packets get, where their time went, and who was served meanwhile
    Explain(Explain),
    /// Run a scenario on real Linux traffic, and report
    Lab(Lab),
    /// Run a scenario in virtual time, at any rate, and report
    Sim(Sim),
    /// Repeat the papers' experiments in virtual time, and show their figures beside ours
    Papers(Papers),
    /// Measure something
    #[command(subcommand)]
    Bench(Bench),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Read a tenant's file from standard input, and answer what it says
    #[command(hide = true)]
    ReadFile(ReadFile),
    /// Write man pages into a folder
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// Where to
        folder: PathBuf,
    },
}

/// `plimsoll check`.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct Check {
    /// The policy file; a tenant's own file and a scenario are checked as what they are
    pub(crate) file: PathBuf,
    /// Draw the policy into this SVG file too
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print what the engine keeps in memory for it, class by class, beside SENIC's formats
    #[arg(long)]
    pub(crate) memory: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which schema.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum SchemaOf {
    /// The operator's policy file
    #[default]
    Policy,
    /// The policy file of a tenant or application
    SubPolicy,
    /// A scenario file of `plimsoll lab`
    Scenario,
}

/// What a process that reads a file for another may take.
#[derive(Debug, clap::Args)]
pub(crate) struct ReadFile {
    /// Bytes of memory
    pub(crate) memory: u64,
    /// Seconds of a core
    pub(crate) cpu: u64,
}

/// `plimsoll run`.
#[derive(Debug, clap::Args)]
#[command(after_help = RUN_EXAMPLES)]
pub(crate) struct Run {
    /// The policy file
    pub(crate) file: PathBuf,
    /// Pin the engine's thread to this core, whatever the file says
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<u32>,
    /// Record all that the engine is told and decides into this file, for `plimsoll sim --replay FILE`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// The recording ends, and traffic goes on, once its file is so long
    #[arg(long, value_name = "SIZE", default_value = "1GB", requires = "record")]
    pub(crate) record_limit: plimsoll_units::Bytes,
    /// Run the engine as this user, by name or number [default: `plimsoll` if there is one, else a number that is nobody's]
    #[arg(long, value_name = "USER", conflicts_with = "no_sandbox")]
    pub(crate) user: Option<String>,
    /// Leave the engine all privileges, and no broker, system call filter or Landlock: for debugging only
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// Commands that ask a running daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Ask {
    /// The daemon's API socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "PLIMSOLL_SOCKET")]
    pub(crate) socket: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll rate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rate {
    /// The class, as `plimsoll stats` names it; a child of a `rate_share`
    pub(crate) class: String,
    /// Its rate from the next decision on: `200Mbps`
    pub(crate) rate: plimsoll_units::BitRate,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// `plimsoll slo`.
#[derive(Debug, clap::Args)]
#[command(after_help = SLO_EXAMPLES)]
pub(crate) struct Slo {
    /// Only these tenants
    pub(crate) tenant: Vec<String>,
    /// How far back to look: by the second up to a minute, by the minute up to an hour
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) window: plimsoll_units::Span,
    /// Show each second or minute beside the whole
    #[arg(long)]
    pub(crate) each: bool,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// `plimsoll top`.
#[derive(Debug, clap::Args)]
#[command(after_help = TOP_EXAMPLES)]
pub(crate) struct Top {
    /// The daemon's API socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "PLIMSOLL_SOCKET")]
    pub(crate) socket: PathBuf,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: plimsoll_units::Span,
}

/// `plimsoll explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub(crate) struct Explain {
    /// Conditions: tenant=, class=, src=, dst=, protocol=, src_port=, dst_port=, dscp=, vlan=, priority=, cgroup=,
    /// user=, app=, core=; `tcp` and `udp` may stand alone. Without any, all packets
    pub(crate) filter: Vec<String>,
    /// Explain with this policy file, without a running daemon: class, limits and guarantees only
    #[arg(long, value_name = "FILE")]
    pub(crate) policy: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// `plimsoll lab`.
#[derive(Debug, clap::Args)]
#[command(after_help = LAB_EXAMPLES)]
pub(crate) struct Lab {
    /// The scenario file
    pub(crate) file: PathBuf,
    /// Run its short form
    #[arg(long)]
    pub(crate) short: bool,
    /// Run only this system (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub(crate) system: Vec<String>,
    /// Repeat each system so many times, whatever the file says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) pairs: Option<u32>,
    /// Set a value of the file by its path: `tenants.shop.min=20Mbps` (may be given several times)
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    /// Print JSON: every measure and expectation
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report (HTML, PNG, CSV) into this folder
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// Write the report's tables in this format too
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// What tables for programs are written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text, in any case
    #[default]
    Csv,
    /// Parquet beside it, for data frames
    Parquet,
}

/// `plimsoll sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = SIM_EXAMPLES)]
pub(crate) struct Sim {
    /// The scenario file; with --replay of a capture, a policy file
    #[arg(required_unless_present = "replay")]
    pub(crate) file: Option<PathBuf>,
    /// Send this capture (pcap or pcapng) through a policy, and say how each class would have fared; or run this
    /// recording of `plimsoll run --record` again, and say whether every decision is the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["short", "system", "seed", "seeds", "set", "trace", "threads"])]
    pub(crate) replay: Option<PathBuf>,
    /// Whose the packets of a capture are, by source address: `shop=10.1.0.0/16` (may be given several times)
    #[arg(long, value_name = "TENANT=PREFIX", value_parser = owner, requires = "replay")]
    pub(crate) from: Vec<(String, Prefix)>,
    /// Run its short form
    #[arg(long)]
    pub(crate) short: bool,
    /// Run only this system (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub(crate) system: Vec<String>,
    /// The seed of everything random, in place of the file's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Run with so many seeds, counting up; each must meet the expectations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: u32,
    /// Set a value of the file by its path: `tenants.shop.min=20Mbps` (may be given several times)
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    /// Write what crossed hosts' links into this pcapng file, with the scheduler's decisions as comments
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Trace this link in place of the hosts' own (may be given several times)
    #[arg(long, value_name = "LINK", requires = "trace")]
    pub(crate) trace_at: Vec<String>,
    /// Threads to run on; the result does not depend on it
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print JSON: every measure and expectation
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report (HTML, PNG, CSV) into this folder
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// Write the report's tables in this format too
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `plimsoll papers`.
#[derive(Debug, clap::Args)]
#[command(after_help = PAPERS_EXAMPLES)]
pub(crate) struct Papers {
    /// Only this paper (`LO`) or experiment (`LO-E4`); may be given several times
    #[arg(long, value_name = "ID")]
    pub(crate) only: Vec<String>,
    /// Run the short forms
    #[arg(long)]
    pub(crate) short: bool,
    /// Run with so many seeds, counting up; each must meet the expectations. 5 unless given, 1 with --seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: Option<u32>,
    /// The first seed, in place of the files'
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Run the live forms, on network namespaces and real Linux TCP as `plimsoll lab` does, and judge what they expect
    #[arg(long, conflicts_with_all = ["seeds", "seed", "threads"])]
    pub(crate) live: bool,
    /// Threads to run on; the result does not depend on it
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Take the scenario files below this folder, in place of those that come with the program
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Write the scenario files that come with the program into this folder, and run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["only", "short", "live", "seeds", "seed", "threads", "folder", "write", "json"])]
    pub(crate) unpack: Option<PathBuf>,
    /// Write the table and what differs from the papers into this file, as a page of Markdown; with --live, only what was
    /// run, into the page's part for live results
    #[arg(long, value_name = "FILE", conflicts_with = "short")]
    pub(crate) write: Option<PathBuf>,
    /// Print JSON: every figure and failure
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Count the writes over PCIe that doorbells cost: one per queue, SENIC's, and Loom's batches
    Doorbells(Doorbells),
}

/// `plimsoll bench doorbells`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOORBELLS_EXAMPLES)]
pub(crate) struct Doorbells {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn owner(text: &str) -> Result<(String, Prefix), String> {
    let (name, prefix) = text.split_once('=').ok_or("write TENANT=PREFIX, as in `shop=10.1.0.0/16`")?;
    let prefix = prefix.trim().parse().map_err(|error| format!("`{prefix}` is {error}"))?;
    Ok((name.trim().to_owned(), prefix))
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (path, value) = text.split_once('=').ok_or("write PATH=VALUE, as in `tenants.shop.min=20Mbps`")?;
    Ok((path.trim().to_owned(), value.trim().to_owned()))
}

/// Where a daemon answers unless its policy says otherwise.
pub(crate) const SOCKET: &str = "/run/plimsoll/api.sock";

const CHECK_EXAMPLES: &str = "Examples:
  plimsoll check plimsoll.yaml
  plimsoll check plimsoll.yaml --svg policy.svg
  plimsoll check plimsoll.yaml --json | jq '.classes[] | {name, guaranteed, delay}'

Exit code 2 says that the file is wrong; every mistake is shown at once, with its place and a way out.";

const SCHEMA_EXAMPLES: &str = "Examples:
  plimsoll schema > plimsoll.schema.json
  plimsoll schema sub-policy > tenant.schema.json
  plimsoll schema scenario > scenario.schema.json

An editor with a YAML language server takes it from a first line such as
  # yaml-language-server: $schema=plimsoll.schema.json";

const RUN_EXAMPLES: &str = "Examples:
  plimsoll run /etc/plimsoll/plimsoll.yaml
  plimsoll run plimsoll.yaml --cpu 1
  plimsoll run plimsoll.yaml --record noon.trace --record-limit 200MB

Needs CAP_NET_ADMIN and CAP_SYS_ADMIN (root, or a user namespace), which a process of its own keeps for opening ports:
the one that carries packets gives up everything. SIGHUP reloads the file; SIGTERM and SIGINT send what is held, and end.";

const RELOAD_EXAMPLES: &str = "Examples:
  plimsoll reload
  plimsoll reload --socket /run/plimsoll/api.sock --json

Prints what changed. A file that is wrong changes nothing, and exit code 2 says so.";

const RATE_EXAMPLES: &str = "Examples:
  plimsoll rate rates/shop 200Mbps
  plimsoll rate rates/shop 1.5Gbps --json

The policy file stays as it is, and a reload puts its rates back. Exit code 2 for a class without a rate of its own.";

const STATS_EXAMPLES: &str = "Examples:
  plimsoll stats
  plimsoll stats --json | jq '.tenants.shop.drops'
  PLIMSOLL_SOCKET=/tmp/api.sock plimsoll stats";

const STATUS_EXAMPLES: &str = "Examples:
  plimsoll status
  plimsoll status --json | jq .confinement";

const SLO_EXAMPLES: &str = "Examples:
  plimsoll slo
  plimsoll slo shop --window 10s --each
  plimsoll slo --window 3600s --json | jq '.tenants | map_values(.whole.verdict)'
  plimsoll slo >/dev/null || echo 'a promise was broken' | mail -s plimsoll ops

A promise is `held`, `idle` (nothing was asked for), `beyond it` (what the tenant lost or waited is its own: it sent or was \
sent more than it may, or did not read), `none` (nothing is promised), or BROKEN; then the last column says by whom or what.

Exit code 1 says that one was broken, 2 that the question is wrong.";

const TOP_EXAMPLES: &str = "Examples:
  plimsoll top
  plimsoll top --every 250ms

Keys: q or Esc ends, p pauses, the arrows move through a long tree.";

const EXPLAIN_EXAMPLES: &str = "Examples:
  plimsoll explain tenant=shop
  plimsoll explain tenant=shop tcp dst=10.0.0.0/8 dst_port=443
  plimsoll explain class=tenants/batch --json
  plimsoll explain tenant=shop udp dst=203.0.113.7 --policy plimsoll.yaml";

const LAB_EXAMPLES: &str = "Examples:
  plimsoll lab examples/noisy-neighbour.yaml
  plimsoll lab examples/noisy-neighbour.yaml --short --system plimsoll
  plimsoll lab examples/noisy-neighbour.yaml --json --out /tmp/report

Without root it enters a user and network namespace of its own. Exit code 1 says that an expectation failed.";

const SIM_EXAMPLES: &str = "Examples:
  plimsoll sim examples/noisy-neighbour.yaml
  plimsoll sim examples/noisy-neighbour.yaml --short --system plimsoll --seeds 5
  plimsoll sim examples/noisy-neighbour.yaml --seed 7 --json --out /tmp/report
  plimsoll sim examples/noisy-neighbour.yaml --short --system plimsoll --trace packets.pcapng
  plimsoll sim examples/noisy-neighbour.yaml --set rate=10Gbps --set workloads.most.flows=16
  plimsoll sim sweep.yaml --format parquet --out results
  plimsoll sim plimsoll.yaml --replay yesterday.pcap --from shop=10.1.0.0/16 --from batch=10.2.0.0/16
  plimsoll sim --replay noon.trace

One seed gives one result, bit for bit, on any machine. Exit code 1 says that an expectation failed, or that a delay \
bound of `plimsoll check` did not hold.";

const PAPERS_EXAMPLES: &str = "Examples:
  plimsoll papers --short
  plimsoll papers --only LO
  plimsoll papers --only LO-E4 --seed 3
  plimsoll papers --json | jq '.[] | select(.passed | not)'
  plimsoll papers --unpack papers && plimsoll papers --folder papers
  plimsoll papers --write docs/fidelity.md
  sudo plimsoll papers --live --only SE-E1 --write docs/fidelity.md

All of them take some minutes on two cores; the short forms a minute or so, 100 seconds of processor time in all. Exit \
code 1 says that an experiment failed, and standard error how to show that again.";

const DOORBELLS_EXAMPLES: &str = "Examples:
  plimsoll bench doorbells
  plimsoll bench doorbells --json";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  plimsoll completions bash > /etc/bash_completion.d/plimsoll
  plimsoll completions zsh > ~/.zfunc/_plimsoll
  plimsoll completions fish > ~/.config/fish/completions/plimsoll.fish";

const MAN_EXAMPLES: &str = "Examples:
  plimsoll man /usr/local/share/man/man1";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn visit(command: &clap::Command) {
            let shown = |command: &&clap::Command| !command.is_hide_set(); // the others are started by us
            let below: Vec<_> = command.get_subcommands().filter(shown).collect();
            if below.is_empty() {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("plimsoll "), "`{}` shows no example", command.get_name());
            }
            below.into_iter().for_each(visit);
        }
        visit(&Args::command());
    }
}
