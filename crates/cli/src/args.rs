//! The command line: subcommands, options and their help.
//!
//! Why: help, man pages and completions must say the same, so they have one source.
//! From: clap's derive; each command's examples are in its long help.
//! Not here: what the commands do.
//! Invariant: every command that prints a table has `--json`.

mod containers;
mod fleet;
mod program;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use plimsoll_policy::Prefix;
use plimsoll_units::{Bytes, Span};

pub(crate) use containers::{Attach, DockerPlugin};
pub(crate) use fleet::{
    At, Fleet, FleetAdd, FleetAgent, FleetApply, FleetHistory, FleetInit, FleetJoin, FleetList, FleetMove,
    FleetNamed, FleetPlace, FleetPlan, FleetPolicy, FleetPut, FleetRotate, FleetShow, Kind,
};
pub(crate) use program::{
    Direction, Language, Packets, Program, ProgramBench, ProgramCheck, ProgramFile, ProgramNew, ProgramRun,
};

/// Predictable virtual NICs for the tenants of a shared host
#[derive(Debug, Parser)]
#[command(
    name = "plimsoll",
    version = env!("PLIMSOLL_VERSION"),
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
    /// Print the JSON Schema of policy files, for editors, or the description of the API
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema {
        /// What the schema is for
        #[arg(value_enum, default_value_t)]
        of: SchemaOf,
    },
    /// Put a policy in force on this host, until stopped
    Run(Run),
    /// Open ports for the daemon, which has no privileges: `plimsoll run` starts this
    #[command(hide = true)]
    Broker,
    /// Make the running daemon read its policy file again
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(Reload),
    /// Make a container's own interface the port of a tenant, or give a virtual machine an interface that is one
    Attach(Attach),
    /// Serve Docker as a network plugin: each container of its networks becomes a tenant
    DockerPlugin(DockerPlugin),
    /// Give a class of the running daemon another rate, until the next reload
    #[command(after_help = RATE_EXAMPLES)]
    Rate(Rate),
    /// List the last changes to the running daemon: reloads, rates, and clients that it distrusts
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(Ask),
    /// Show the running daemon's counters
    #[command(after_help = STATS_EXAMPLES)]
    Stats(Ask),
    /// Show the running daemon's health, and the privileges of its engine
    #[command(after_help = STATUS_EXAMPLES)]
    Status(Ask),
    /// Show whether each tenant got what the policy promises it, and the cause if not
    Slo(Slo),
    /// List the flows that send most packets; needs `backpressure` in the policy
    #[command(after_help = HEAVY_EXAMPLES)]
    Heavy(Ask),
    /// Watch the running daemon: rates, waiting packets and delays of all classes
    Top(Top),
    /// Explain what happens to one kind of packet: its class, its limits, and what it waits for
    Explain(Explain),
    /// Keep which host has which tenant, and under which policy, in one directory for many hosts
    #[command(subcommand)]
    Fleet(Fleet),
    /// Run a scenario live, in network namespaces with Linux TCP, and write a report
    Lab(Lab),
    /// Run a scenario in virtual time, as a simulation, at any rate, and write a report
    Sim(Sim),
    /// Run scenarios both on Linux, as `lab` does, and in virtual time, as `sim` does, and compare their figures
    Agree(Agree),
    /// Repeat the experiments of the Loom, SENIC, PicNIC, MIMIC and FairNIC papers in virtual time, and print their figures beside ours
    Papers(Papers),
    /// Measure or calculate the cost of a mechanism
    #[command(subcommand)]
    Bench(Bench),
    /// Check, try and measure a tenant's program: a WebAssembly module that packets pass
    #[command(subcommand)]
    Program(Program),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Read a tenant's file from standard input, and answer with its content
    #[command(hide = true)]
    ReadFile(ReadFile),
    /// Write man pages into a folder
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The folder to write into
        folder: PathBuf,
    },
}

/// `plimsoll check`.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct Check {
    /// The file to check: a policy file, a tenant's own policy file, or a scenario file
    pub(crate) file: PathBuf,
    /// Also draw the policy into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print what the engine keeps in memory for this policy, and what SENIC's formats would take, in place of the tree
    #[arg(long)]
    pub(crate) memory: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a schema is for.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum SchemaOf {
    /// The operator's policy file
    #[default]
    Policy,
    /// The policy file of a tenant or application
    SubPolicy,
    /// A file of the folder that a policy includes
    Included,
    /// A scenario file of `plimsoll lab` and `plimsoll sim`
    Scenario,
    /// The daemon's HTTP API, as an OpenAPI 3.1 document
    Api,
}

/// Bounds of a process that reads a tenant's file.
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
    /// Record the engine's input and all its decisions into this file, for `plimsoll sim --replay FILE`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// End the recording once its file has this size; traffic goes on
    #[arg(long, value_name = "SIZE", default_value = "1GB", requires = "record")]
    pub(crate) record_limit: plimsoll_units::Bytes,
    /// Run the engine as this user, by name or number [default: `plimsoll` if it exists, else an unused number]
    #[arg(long, value_name = "USER", conflicts_with = "no_sandbox")]
    pub(crate) user: Option<String>,
    /// Keep all privileges, in one process, without system call filter and Landlock: for debugging only
    #[arg(long)]
    pub(crate) no_sandbox: bool,
}

/// Options of commands that ask a running daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Ask {
    /// The daemon's API socket
    #[arg(long, value_name = "PATH", default_value = SOCKET, env = "PLIMSOLL_SOCKET")]
    pub(crate) socket: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll reload`.
#[derive(Debug, clap::Args)]
pub(crate) struct Reload {
    /// Also take TAPs away from their tenants, which lose the TAPs' addresses, routes and connections
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) ask: Ask,
}

/// `plimsoll rate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rate {
    /// The class, by its name in `plimsoll stats`: a child of a `rate_share`
    pub(crate) class: String,
    /// Its new rate, such as `200Mbps`; it holds at once
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
    /// How far back to look, up to an hour; results are by the second up to a minute, and by the minute beyond
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) window: plimsoll_units::Span,
    /// Also show each second or minute
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
    /// Time between two updates of the screen
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) every: plimsoll_units::Span,
}

/// `plimsoll explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLAIN_EXAMPLES)]
pub(crate) struct Explain {
    /// Conditions that packets must meet: tenant=, class=, src=, dst=, protocol=, src_port=, dst_port=, dscp=, vlan=,
    /// priority=, cgroup=, user=, app=, core=; `tcp` is short for protocol=tcp, and `udp` for protocol=udp. Without
    /// conditions, all packets. With --policy, class= is not a condition
    pub(crate) filter: Vec<String>,
    /// Explain from this policy file, without a running daemon: class, limits and guarantees only
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
    /// Run the scenario's short form
    #[arg(long)]
    pub(crate) short: bool,
    /// Run only this system (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub(crate) system: Vec<String>,
    /// Run each system N times, in place of the file's number
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
    /// Format of the report's tables: CSV, or Parquet as well
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// File format of a report's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// CSV only
    #[default]
    Csv,
    /// CSV and Parquet, for data frames
    Parquet,
}

/// `plimsoll sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = SIM_EXAMPLES)]
pub(crate) struct Sim {
    /// The scenario file; with --replay of a capture, the policy file
    #[arg(required_unless_present = "replay")]
    pub(crate) file: Option<PathBuf>,
    /// Send this capture (pcap or pcapng) through a policy, and show what each class would have got; or run this
    /// recording of `plimsoll run --record` again, and say whether every decision is the same
    #[arg(long, value_name = "FILE", conflicts_with_all = ["short", "system", "seed", "seeds", "set", "trace", "series", "threads"])]
    pub(crate) replay: Option<PathBuf>,
    /// Which tenant sent the packets of a capture, by source address: `shop=10.1.0.0/16` (may be given several times)
    #[arg(long, value_name = "TENANT=PREFIX", value_parser = owner, requires = "replay")]
    pub(crate) from: Vec<(String, Prefix)>,
    /// Run the scenario's short form
    #[arg(long)]
    pub(crate) short: bool,
    /// Run only this system (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub(crate) system: Vec<String>,
    /// The seed of all random numbers, in place of the file's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Run N times, each with the next seed; every run must meet the expectations
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: u32,
    /// Set a value of the file by its path: `tenants.shop.min=20Mbps` (may be given several times)
    #[arg(long, value_name = "PATH=VALUE", value_parser = setting)]
    pub(crate) set: Vec<(String, String)>,
    /// Write the packets that crossed the hosts' links into this pcapng file, with scheduling decisions as comments
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Trace this link in place of the hosts' links (may be given several times)
    #[arg(long, value_name = "LINK", requires = "trace")]
    pub(crate) trace_at: Vec<String>,
    /// Write traces of connections (cwnd, RTT, rate) and links (queue, rate) over time into this folder, and their figures
    /// into the report
    #[arg(long, value_name = "DIR")]
    pub(crate) series: Option<PathBuf>,
    /// Threads to run on; the result does not depend on it
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Print JSON: every measure and expectation
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report (HTML, PNG, CSV) into this folder
    #[arg(long, value_name = "DIR", default_value = "report")]
    pub(crate) out: PathBuf,
    /// Format of the report's tables: CSV, or Parquet as well
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// `plimsoll agree`.
#[derive(Debug, clap::Args)]
#[command(after_help = AGREE_EXAMPLES)]
pub(crate) struct Agree {
    /// The scenario files
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Repetitions on Linux, in place of the files' `pairs`; their medians are compared
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) pairs: Option<u32>,
    /// Seeds in virtual time, of which the medians are compared
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: u32,
    /// Write the figures into the table of this page of Markdown, between `<!-- agree: begin -->` and `<!-- agree: end -->`;
    /// rows of other scenarios stay
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,
    /// Print JSON: every figure
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll papers`.
#[derive(Debug, clap::Args)]
#[command(after_help = PAPERS_EXAMPLES)]
pub(crate) struct Papers {
    /// Only this paper (`LO`) or experiment (`LO-E4`); may be given several times
    #[arg(long, value_name = "ID")]
    pub(crate) only: Vec<String>,
    /// Run the short forms of the scenarios
    #[arg(long)]
    pub(crate) short: bool,
    /// Run each experiment N times, each with the next seed; every run must meet the expectations [default: 5, or
    /// 1 with --seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) seeds: Option<u32>,
    /// The first seed, in place of the files'
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Run the live forms, in network namespaces with Linux TCP as `plimsoll lab` does, and check their expectations
    #[arg(long, conflicts_with_all = ["seeds", "seed", "threads"])]
    pub(crate) live: bool,
    /// Threads to run on; the result does not depend on it
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Use the scenario files below this folder, in place of those that come with the program
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Write the scenario files that come with the program into this folder, and run none of them
    #[arg(long, value_name = "DIR", conflicts_with_all = ["only", "short", "live", "seeds", "seed", "threads", "folder", "write", "json"])]
    pub(crate) unpack: Option<PathBuf>,
    /// Write the table, and what differs from the papers, into this file as a page of Markdown; with --live, write
    /// only the experiments that were run, into the page's part for live results
    #[arg(long, value_name = "FILE", conflicts_with = "short")]
    pub(crate) write: Option<PathBuf>,
    /// Print JSON: every figure and failure
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Count the writes over PCIe that doorbells (notes of new packets) take: one per queue, SENIC's way, and Loom's batches
    Doorbells(Doorbells),
    /// Calculate the rate of packets that a PCIe bus carries between memory and a NIC
    Pcie(Pcie),
    /// Measure how late the sleeps of an engine's thread end on this machine, for `wake` of a scenario
    Wakeups(Wakeups),
}

/// `plimsoll bench wakeups`.
#[derive(Debug, clap::Args)]
#[command(after_help = WAKEUPS_EXAMPLES)]
pub(crate) struct Wakeups {
    /// Number of sleeps
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1_000..=10_000_000))]
    pub(crate) count: u32,
    /// Length of each
    #[arg(long, default_value = "300us", value_parser = some_sleep)]
    pub(crate) sleep: Span,
    /// Print JSON, in nanoseconds
    #[arg(long)]
    pub(crate) json: bool,
}

/// A sleep that has an end within reach.
fn some_sleep(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|_| "not a time such as `300us`".to_owned())?;
    let good = span >= Span::micros(1) && span <= Span::secs(1);
    good.then_some(span).ok_or_else(|| "a sleep takes 1us to 1s".to_owned())
}

/// `plimsoll bench doorbells`.
#[derive(Debug, clap::Args)]
#[command(after_help = DOORBELLS_EXAMPLES)]
pub(crate) struct Doorbells {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The number of lanes of a PCIe link: a connector or a chip has no others.
fn lanes(text: &str) -> Result<u16, String> {
    let lanes = text.parse().ok().filter(|lanes| matches!(lanes, 1 | 2 | 4 | 8 | 12 | 16));
    lanes.ok_or_else(|| "a PCIe link has 1, 2, 4, 8, 12 or 16 lanes".to_owned())
}

/// `plimsoll bench pcie`.
#[derive(Debug, clap::Args)]
#[command(after_help = PCIE_EXAMPLES)]
pub(crate) struct Pcie {
    /// Generation of PCIe
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) generation: u8,
    /// Number of lanes; DMI 3.0, between a chipset and its CPU, is 4 lanes of generation 3
    #[arg(long, default_value_t = 8, value_parser = lanes)]
    pub(crate) lanes: u16,
    /// Most payload of one packet on the bus (TLP)
    #[arg(long, default_value = "64B", value_parser = some_bytes)]
    pub(crate) tlp: Bytes,
    /// Bytes of each TLP beyond its payload: framing, headers and checksum
    #[arg(long, default_value = "26B")]
    pub(crate) overhead: Bytes,
    /// Bytes that the NIC moves for each packet beside the packet, such as its descriptor, in TLPs of their own
    #[arg(long, default_value = "0B")]
    pub(crate) descriptor: Bytes,
    /// Lengths of packets, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "64B,256B,1500B", value_parser = some_bytes)]
    pub(crate) frame: Vec<Bytes>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A hardware address.
fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2));
    let bytes = bytes.collect::<Option<Vec<u8>>>().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| "write six bytes, as in `02:00:00:00:00:02`".to_owned())
}

/// A size above zero.
fn some_bytes(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse().map_err(|error: plimsoll_units::UnitError| error.to_string())?;
    if bytes == Bytes::ZERO { Err("write a size above zero, such as `64B`".to_owned()) } else { Ok(bytes) }
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

/// The API socket of a daemon whose policy states none.
pub(crate) const SOCKET: &str = "/run/plimsoll/api.sock";

const CHECK_EXAMPLES: &str = "Examples:
  plimsoll check plimsoll.yaml
  plimsoll check plimsoll.yaml --svg policy.svg
  plimsoll check plimsoll.yaml --json | jq '.classes[] | {name, guaranteed, delay}'

Exit status 2 says that the file is wrong. All mistakes are shown at once, each with its place and a way to mend it.";

const SCHEMA_EXAMPLES: &str = "Examples:
  plimsoll schema > plimsoll.schema.json
  plimsoll schema sub-policy > tenant.schema.json
  plimsoll schema scenario > scenario.schema.json
  plimsoll schema api > plimsoll.openapi.json

An editor with a YAML language server uses the schema if the file's first line is
  # yaml-language-server: $schema=plimsoll.schema.json";

const RUN_EXAMPLES: &str = "Examples:
  plimsoll run /etc/plimsoll/plimsoll.yaml
  plimsoll run plimsoll.yaml --cpu 1
  plimsoll run plimsoll.yaml --record noon.trace --record-limit 200MB

Needs CAP_NET_ADMIN and CAP_SYS_ADMIN (root, or a user namespace). A second process keeps them, to open ports; \
the process that carries packets gives up all privileges.

SIGHUP reloads the file. SIGTERM and SIGINT end the daemon, after it has sent the packets that it holds.";

const RELOAD_EXAMPLES: &str = "Examples:
  plimsoll reload
  plimsoll reload --socket /run/plimsoll/api.sock --json

Prints what changed. A wrong file changes nothing, and neither does one that would take a TAP away from its tenant, \
without --force; the exit status is then 2.";

const AUDIT_EXAMPLES: &str = "Examples:
  plimsoll audit
  plimsoll audit --json | jq '.entries[] | select(.what == \"reload_refused\")'

The daemon keeps the last 128 changes; its log has all of them.";

const RATE_EXAMPLES: &str = "Examples:
  plimsoll rate rates/shop 200Mbps
  plimsoll rate rates/shop 1.5Gbps --json

The policy file stays as it is, and a reload puts its rates back. Exit status 2 says that the class has no \
rate of its own.";

const STATS_EXAMPLES: &str = "Examples:
  plimsoll stats
  plimsoll stats --json | jq '.tenants.shop.drops'
  PLIMSOLL_SOCKET=/tmp/api.sock plimsoll stats";

const HEAVY_EXAMPLES: &str = "Examples:
  plimsoll heavy
  plimsoll heavy --json | jq '.flows[] | select(.part > 0.1)'

PART is the flow's part of all packets that are counted. Rates are means over the last two to four seconds.";
const STATUS_EXAMPLES: &str = "Examples:
  plimsoll status
  plimsoll status --json | jq .confinement";

const SLO_EXAMPLES: &str = "Examples:
  plimsoll slo
  plimsoll slo shop --window 10s --each
  plimsoll slo --window 3600s --json | jq '.tenants | map_values(.whole.verdict)'
  plimsoll slo >/dev/null || echo 'a promise was broken' | mail -s plimsoll ops

The column PROMISE says for each tenant:
  held       the tenant got what it is promised
  idle       it sent and received nothing
  beyond it  it lost packets or waited because it sent or was sent more than it may, or did not read
  none       the policy promises it nothing
  BROKEN     it did not get what it is promised; the column CAUSE says why

Exit status 1 says that a promise was broken, 2 that the command line is wrong.";

const TOP_EXAMPLES: &str = "Examples:
  plimsoll top
  plimsoll top --every 250ms

Keys: q or Esc ends, p pauses, the arrow keys scroll.";

const EXPLAIN_EXAMPLES: &str = "Examples:
  plimsoll explain tenant=shop
  plimsoll explain tenant=shop tcp dst=10.0.0.0/8 dst_port=443
  plimsoll explain class=tenants/batch --json
  plimsoll explain tenant=shop udp dst=203.0.113.7 --policy plimsoll.yaml";

const LAB_EXAMPLES: &str = "Examples:
  plimsoll lab examples/noisy-neighbour.yaml
  plimsoll lab examples/noisy-neighbour.yaml --short --system plimsoll
  plimsoll lab examples/noisy-neighbour.yaml --json --out /tmp/report

Without root it makes a user namespace and a network namespace of its own. Exit status 1 says that an \
expectation failed.";

const SIM_EXAMPLES: &str = "Examples:
  plimsoll sim examples/noisy-neighbour.yaml
  plimsoll sim examples/noisy-neighbour.yaml --short --system plimsoll --seeds 5
  plimsoll sim examples/noisy-neighbour.yaml --seed 7 --json --out /tmp/report
  plimsoll sim examples/noisy-neighbour.yaml --short --system plimsoll --trace packets.pcapng
  plimsoll sim examples/noisy-neighbour.yaml --set rate=10Gbps --set workloads.most.flows=16
  plimsoll sim sweep.yaml --format parquet --out results
  plimsoll sim plimsoll.yaml --replay noon.pcap --from shop=10.1.0.0/16 --from batch=10.2.0.0/16
  plimsoll sim --replay noon.trace

One seed gives one result, bit for bit, on any machine. Exit status 1 says that an expectation failed, or that a delay \
bound of `plimsoll check` did not hold.";

const AGREE_EXAMPLES: &str = "Examples:
  sudo plimsoll agree tests/agree/*.yaml
  sudo plimsoll agree tests/agree/*.yaml --pairs 3 --write docs/tcp.md

Exit status 1 says that a throughput differs by more than 10 %, or a p99 by more than a factor of 2.";

const PAPERS_EXAMPLES: &str = "Examples:
  plimsoll papers --short
  plimsoll papers --only LO
  plimsoll papers --only LO-E4 --seed 3
  plimsoll papers --json | jq '.[] | select(.passed | not)'
  plimsoll papers --unpack papers && plimsoll papers --folder papers
  plimsoll papers --write docs/fidelity.md
  sudo plimsoll papers --live --only SE-E1 --write docs/fidelity.md

All experiments take some minutes on two cores; the short forms take about a minute, 100 seconds of processor time \
in all. Exit status 1 says that an experiment failed; standard error then has the command that repeats it.";

const DOORBELLS_EXAMPLES: &str = "Examples:
  plimsoll bench doorbells
  plimsoll bench doorbells --json";

const PCIE_EXAMPLES: &str = "Examples:
  plimsoll bench pcie
  plimsoll bench pcie --descriptor 16B
  plimsoll bench pcie --generation 4 --lanes 16 --tlp 256B --frame 1500B
  plimsoll bench pcie --lanes 4 --json";

const WAKEUPS_EXAMPLES: &str = "Examples:
  sudo plimsoll bench wakeups
  sudo plimsoll bench wakeups --count 100000 --sleep 100us
  plimsoll bench wakeups --json

An engine's thread may run before all ordinary threads where it is root's or `LimitRTPRIO=` allows it, and so is measured.";

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
            // Hidden commands are started by the program itself.
            let shown = |command: &&clap::Command| !command.is_hide_set();
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
