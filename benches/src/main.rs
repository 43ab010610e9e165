//! Plimsoll measured beside its peers, in the same run: `make bench`.
//!
//! Why: a figure from another day and another machine proves nothing.
//! From: the bars that `docs/performance.md` explains.
//! Not here: pass or fail of behaviour (the tests); this program only measures.
//! Invariant: the sides of a row take turns, and the median of the rounds counts.

mod accuracy;
mod answers;
mod backpressure;
mod control;
mod cost;
mod engine;
mod forward;
mod heavy;
mod hold;
mod host;
mod ingress;
mod net;
mod overlay;
mod ovs;
mod policies;
mod programs;
mod report;
mod scheduler;
mod sealed;
mod segments;
mod simulator;
mod target;
mod testpmd;
mod threads;
mod units;
mod vhost;
mod vnic;

#[cfg(feature = "dpdk")]
mod dpdk;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use scheduler::Effort;

/// Measures Plimsoll beside its peers and prints one table.
#[derive(Parser)]
struct Options {
    /// Measure only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Rounds of which the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Packets of each side in a round through memory.
    #[arg(long, default_value_t = 2_000_000)]
    packets: u64,
    /// The `plimsoll` binary for the live parts.
    #[arg(long, default_value = "target/release/plimsoll")]
    plimsoll: PathBuf,
    /// Where to write the rows as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Be the client of a vNIC instead, at this socket: started by the part `vnic`.
    #[arg(long, hide = true)]
    vnic_client: Option<PathBuf>,
    /// The client's role.
    #[arg(long, hide = true, value_enum, default_value_t = vnic::Role::Flood)]
    vnic_role: vnic::Role,
    /// Flow queues that the client sends over.
    #[arg(long, hide = true, default_value_t = 1)]
    vnic_flows: u16,
}

/// Parts of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Packets a second beside DPDK's rte_sched.
    Sched,
    /// The cost of a packet when every tenant is at its limit.
    Throttled,
    /// Many flow queues behind one limit.
    OneLimit,
    /// Up to a million classes below one `rate_share`.
    Classes,
    /// Loom's Figure 1.
    Figure1,
    /// Policies of every kind beside what `plimsoll check` estimates.
    Costs,
    /// The cost of a packet by the order among a class's flow queues.
    FlowOrders,
    /// The cost of recording.
    Recorded,
    /// The cost of receivers' control for each packet.
    Control,
    /// Counting flows to find heavy hitters, beside `heavykeeper` and DPDK's `rte_member`.
    Heavy,
    /// What counting flows and slowing some of them down costs the rows `frames in` and `vhost-user`.
    Backpressure,
    /// Frames from the uplink to 64 tenants, by their shares of the CPU.
    Ingress,
    /// Several engine threads under one policy, beside one.
    Threads,
    /// The simulator beside ns-3.
    Simulator,
    /// TAP to TAP beside a copy loop; needs root.
    Forward,
    /// TCP between two hosts over the overlay, beside the same without it; needs root.
    Overlay,
    /// Rates and gaps of limited flows beside tc's htb; needs root.
    Accuracy,
    /// CPU seconds for each gigabyte of a limited flow beside veth and tc's htb; needs root.
    Cost,
    /// Delays of a tenant with a target of 100 us beside a flow that fills the uplink; needs root.
    Target,
    /// A vNIC's client process through the daemon to a sink, beside DPDK's memif.
    Vnic,
    /// Tenants' programs beside the same programs compiled for this machine.
    Programs,
    /// `get` requests answered by a tenant's program, beside memcached.
    Answers,
    /// A tenant beside a vNIC's client that scribbles over its memory.
    Isolation,
    /// Guests on vhost-user beside DPDK's own vhost port, and beside Open vSwitch.
    Vhost,
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(socket) = &options.vnic_client {
        return vnic::client(socket, options.vnic_role, options.vnic_flows);
    }
    let effort = Effort { rounds: options.rounds, packets: options.packets };
    // SAFETY: a plain system call that cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let mut rows = Vec::new();
    let mut whole = true;
    for part in Part::value_variants() {
        if !options.only.is_empty() && !options.only.contains(part) {
            continue;
        }
        eprintln!("bench: {}", part.to_possible_value().expect("no part is hidden").get_name());
        let measured = match part {
            Part::Sched => apart(|| scheduler::beside_rte_sched(effort)),
            Part::Throttled => scheduler::throttled(effort),
            Part::OneLimit => scheduler::one_limit(effort),
            Part::Classes => scheduler::classes(effort),
            Part::Figure1 => scheduler::figure1(effort),
            Part::Costs => scheduler::costs(effort),
            Part::Recorded => scheduler::recorded(effort),
            Part::FlowOrders => scheduler::flow_orders(effort),
            Part::Control => control::measure(effort),
            Part::Heavy => apart(|| heavy::measure(effort)),
            Part::Backpressure => backpressure::measure(&options.plimsoll, effort),
            Part::Ingress => ingress::measure(effort),
            Part::Threads => threads::measure(options.rounds),
            Part::Programs => programs::measure(effort),
            Part::Answers => answers::measure(&options.plimsoll, options.rounds),
            Part::Simulator => simulator::measure(options.rounds),
            Part::Forward | Part::Overlay | Part::Accuracy | Part::Cost if !root => {
                eprintln!("bench: skipped: it makes namespaces and TAPs, which needs root");
                Ok(Vec::new())
            }
            Part::Forward => forward::measure(&options.plimsoll, options.rounds),
            Part::Overlay => overlay::measure(&options.plimsoll, options.rounds),
            Part::Cost => cost::measure(&options.plimsoll, options.rounds),
            Part::Target => target::measure(&options.plimsoll, options.rounds),
            Part::Vnic => vnic::measure(&options.plimsoll, options.rounds),
            Part::Isolation => vnic::isolation(&options.plimsoll, options.rounds),
            Part::Vhost => vhost::measure(&options.plimsoll, options.rounds),
            Part::Accuracy => accuracy::measure(&options.plimsoll, options.rounds.min(3)),
        };
        match measured {
            Ok(measured) => rows.extend(measured),
            Err(error) => {
                eprintln!("bench: failed: {error:#}");
                whole = false;
            }
        }
    }
    report::print(&rows);
    if let Some(path) = &options.json {
        report::write_json(&rows, path)?;
        println!("written: {}", path.display());
    }
    anyhow::ensure!(whole, "a part could not be measured");
    Ok(())
}

/// Runs on a thread of its own: DPDK pins the one that starts it, and what that one starts later.
fn apart<T: Send>(measure: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or_else(|_| anyhow::bail!("a bench thread panicked"))
}
