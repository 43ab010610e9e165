//! Arguments of `plimsoll program`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use plimsoll_units::Bytes;

use super::{mac, some_bytes};

/// `plimsoll program`.
#[derive(Debug, Subcommand)]
pub(crate) enum Program {
    /// Begin a program: make a folder with its source, and all that compiles it
    New(ProgramNew),
    /// Check a program as a daemon would before it loads it, and show what it consists of
    Check(ProgramCheck),
    /// Pass a capture's packets through a program, and show what becomes of them
    Run(ProgramRun),
    /// Measure how long a program takes for a packet, beside one that does nothing
    Bench(ProgramBench),
}

/// `plimsoll program new`.
#[derive(Debug, clap::Args)]
#[command(after_help = PROGRAM_NEW_EXAMPLES)]
pub(crate) struct ProgramNew {
    /// The folder, which is made
    pub(crate) folder: PathBuf,
    /// The language of its source
    #[arg(long, value_enum, default_value_t)]
    pub(crate) language: Language,
}

/// A language of programs.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Language {
    /// C, compiled by clang and lld
    #[default]
    C,
    /// Rust, compiled by cargo for `wasm32-unknown-unknown`
    Rust,
}

/// A program and what it may use.
#[derive(Debug, clap::Args)]
pub(crate) struct ProgramFile {
    /// The program: a WebAssembly module
    pub(crate) file: PathBuf,
    /// Memory that it may have, with the buffers of its packets
    #[arg(long, default_value = "16MiB", value_parser = some_bytes)]
    pub(crate) memory: Bytes,
    /// Most packets that leave it for one that enters it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) amplification: u32,
}

/// Packets that a program is given.
#[derive(Debug, clap::Args)]
pub(crate) struct Packets {
    /// Take the packets from this capture (pcap or pcapng, Ethernet); without it, they are 64 UDP packets
    #[arg(long)]
    pub(crate) read: Option<PathBuf>,
    /// Length of the UDP packets
    #[arg(long, default_value = "64B", value_parser = some_bytes, conflicts_with = "read")]
    pub(crate) frame: Bytes,
}

/// `plimsoll program check`.
#[derive(Debug, clap::Args)]
#[command(after_help = PROGRAM_CHECK_EXAMPLES)]
pub(crate) struct ProgramCheck {
    #[command(flatten)]
    pub(crate) program: ProgramFile,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The direction of packets.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Direction {
    /// From the network to the tenant
    #[default]
    Ingress,
    /// From the tenant to the network
    Egress,
}

/// `plimsoll program run`.
#[derive(Debug, clap::Args)]
#[command(after_help = PROGRAM_RUN_EXAMPLES)]
pub(crate) struct ProgramRun {
    #[command(flatten)]
    pub(crate) program: ProgramFile,
    #[command(flatten)]
    pub(crate) packets: Packets,
    /// Write the packets that leave the program into this capture
    #[arg(long)]
    pub(crate) write: Option<PathBuf>,
    /// The direction of the packets
    #[arg(long, value_enum, default_value_t)]
    pub(crate) way: Direction,
    /// The hardware address of the tenant's port: packets from it go to the network, all others come to the tenant
    #[arg(long, conflicts_with = "way", value_parser = mac)]
    pub(crate) mac: Option<[u8; 6]>,
    /// Most packets of a batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) batch: u8,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `plimsoll program bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = PROGRAM_BENCH_EXAMPLES)]
pub(crate) struct ProgramBench {
    #[command(flatten)]
    pub(crate) program: ProgramFile,
    #[command(flatten)]
    pub(crate) packets: Packets,
    /// The direction of the packets; without it, the first one that the program looks at
    #[arg(long, value_enum)]
    pub(crate) way: Option<Direction>,
    /// Packets of a batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) batch: u8,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const PROGRAM_NEW_EXAMPLES: &str = "Examples:
  plimsoll program new filter
  plimsoll program new filter --language rust

The folder says in its Makefile, or Cargo.toml, how it is compiled; docs/programs.md shows what a program may do.";

const PROGRAM_CHECK_EXAMPLES: &str = "Examples:
  plimsoll program check filter.wasm
  plimsoll program check filter.wasm --memory 2MiB --json | jq .loops

Exit status 2 says that a daemon would refuse the program. docs/programs.md shows how to write and compile one.";

const PROGRAM_RUN_EXAMPLES: &str = "Examples:
  plimsoll program run filter.wasm --frame 1200B
  plimsoll program run reflector.wasm --read in.pcap --write out.pcapng
  plimsoll program run resizer.wasm --read in.pcap --way egress --batch 1
  plimsoll program run cache.wasm --read both.pcap --mac 02:00:00:00:00:02

The table shows packets, bytes and instructions. Exit status 1 says that the program was at fault in a batch.";

const PROGRAM_BENCH_EXAMPLES: &str = "Examples:
  plimsoll program bench reflector.wasm
  plimsoll program bench filter.wasm --read in.pcap --batch 64

It takes two seconds. Other work on the machine makes the figures larger.";
