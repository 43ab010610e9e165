//! How fast the simulator is: TCP flows through one 10 Gb/s link, with a policy at every sender.
//!
//! $ cargo run --release -p plimsoll-sim --example dumbbell
//! hosts  flows  packet-hops  seconds  hops/s

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use plimsoll_scenario::{Form, Scenario};
use plimsoll_sim::{Options, run};

/// `senders` hosts with one flow each, and as many receivers, at the two ends of one link.
fn dumbbell(senders: usize, flows: usize, millis: u64) -> String {
    let mut text =
        format!("name: dumbbell\nrate: 10Gbps\nduration: {millis}ms\nsystems: [plimsoll]\nhosts:\n");
    for n in 0..senders {
        let _ = writeln!(text, "  s{n}: {{}}\n  r{n}: {{nic: fifo}}");
    }
    text += "switches: [left, right]\nlinks:\n";
    text += "  core: {between: [left, right], rate: 10Gbps, delay: 20us, queue: 1MB}\n";
    for n in 0..senders {
        let _ = writeln!(text, "  s{n}: {{between: [s{n}, left], rate: 10Gbps}}");
        let _ = writeln!(text, "  r{n}: {{between: [right, r{n}], rate: 10Gbps}}");
    }
    text += "tenants:\n";
    for n in 0..senders {
        let _ = writeln!(
            text,
            "  a{n}: {{host: s{n}, min: 1Gbps}}\n  b{n}: {{host: s{n}}}\n  z{n}: {{host: r{n}}}"
        );
    }
    text += "workloads:\n";
    for n in 0..senders {
        let _ =
            writeln!(text, "  wa{n}: {{tenant: a{n}, to: z{n}, kind: bulk, flows: {}}}", flows.div_ceil(2));
        let _ = writeln!(text, "  wb{n}: {{tenant: b{n}, to: z{n}, kind: bulk, flows: {}}}", flows / 2);
    }
    text
}

fn main() {
    println!("senders  flows  packet-hops    events  seconds    hops/s  Gb/s");
    for (senders, flows, millis) in [(1, 16, 2_000), (4, 4, 2_000), (8, 2, 2_000), (80, 2, 2_000)] {
        let text = dumbbell(senders, flows, millis);
        let scenario = Scenario::parse(&text, "dumbbell.yaml", Path::new(""), Form::Full)
            .unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let options = Options { threads: NonZeroUsize::new(1), ..Options::default() };
        let begun = Instant::now();
        let outcome = run(&scenario, &options, &|_| {}).expect("it runs");
        let seconds = begun.elapsed().as_secs_f64();
        let bytes: u64 = outcome.results.runs[0].workloads.values().flat_map(|found| &found.bytes).sum();
        println!(
            "{senders:>7} {:>6} {:>12} {:>9} {seconds:>8.2} {:>9.0} {:>5.2}",
            senders * flows,
            outcome.hops,
            outcome.events,
            outcome.hops as f64 / seconds,
            bytes as f64 * 8.0 / (millis as f64 / 1e3) / 1e9,
        );
    }
}
