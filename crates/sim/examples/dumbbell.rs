//! How fast the simulator is: 16 TCP flows through one 10 Gb/s link with a policy at every sender, and ever more hosts.
//!
//! $ cargo run --release -p plimsoll-sim --example dumbbell
//! $ cargo run --release -p plimsoll-sim --example dumbbell benches/ns3/dumbbell.yaml

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

/// `pairs` of hosts, each with a link and two flows of its own.
fn pairs(pairs: usize, millis: u64) -> String {
    let mut text = format!("name: pairs\nrate: 1Gbps\nduration: {millis}ms\nsystems: [plimsoll]\nhosts:\n");
    let (mut links, mut tenants, mut workloads) = (String::new(), String::new(), String::new());
    for n in 0..pairs {
        let _ = writeln!(text, "  s{n}: {{}}\n  r{n}: {{nic: fifo}}");
        let _ = writeln!(links, "  l{n}: {{between: [s{n}, r{n}], rate: 1Gbps, delay: 20us}}");
        let _ = writeln!(tenants, "  a{n}: {{host: s{n}}}\n  b{n}: {{host: s{n}}}\n  z{n}: {{host: r{n}}}");
        let _ = writeln!(workloads, "  wa{n}: {{tenant: a{n}, to: z{n}, kind: bulk}}");
        let _ = writeln!(workloads, "  wb{n}: {{tenant: b{n}, to: z{n}, kind: bulk}}");
    }
    text + "links:\n" + &links + "tenants:\n" + &tenants + "workloads:\n" + &workloads
}

/// Like [`pairs`], all behind one switch: every host sends to the next one.
fn rack(hosts: usize, millis: u64) -> String {
    let mut text = format!(
        "name: rack\nrate: 1Gbps\nduration: {millis}ms\nsystems: [plimsoll]\nswitches: [tor]\nhosts:\n"
    );
    let (mut links, mut tenants, mut workloads) = (String::new(), String::new(), String::new());
    for n in 0..hosts {
        let next = (n + 1) % hosts;
        let _ = writeln!(text, "  h{n}: {{}}");
        let _ = writeln!(links, "  l{n}: {{between: [h{n}, tor], rate: 1Gbps, delay: 10us}}");
        let _ = writeln!(tenants, "  a{n}: {{host: h{n}}}\n  b{n}: {{host: h{n}}}");
        let _ = writeln!(workloads, "  wa{n}: {{tenant: a{n}, to: b{next}, kind: bulk}}");
    }
    text + "links:\n" + &links + "tenants:\n" + &tenants + "workloads:\n" + &workloads
}

fn measure(what: &str, text: &str, millis: u64) {
    let scenario = Scenario::parse(text, "bench.yaml", Path::new(""), Form::Full)
        .unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let options = Options { threads: NonZeroUsize::new(1), ..Options::default() };
    let begun = Instant::now();
    let outcome = run(&scenario, &options, &|_| {}).expect("it runs");
    let seconds = begun.elapsed().as_secs_f64();
    let bytes: u64 = outcome.results.runs[0].workloads.values().flat_map(|found| &found.bytes).sum();
    println!(
        "{what:<32} {:>11} {:>10} {seconds:>7.2} {:>10.0} {:>7.2}",
        outcome.hops,
        outcome.events,
        outcome.hops as f64 / seconds,
        bytes as f64 * 8.0 / (millis as f64 / 1e3) / 1e9,
    );
}

fn main() {
    if let Some(file) = std::env::args().nth(1).filter(|arg| arg.ends_with(".yaml")) {
        let text = std::fs::read_to_string(&file).expect("a scenario");
        return measure(&file, &text, 1_000);
    }
    if let [hosts, millis] =
        std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect::<Vec<u64>>()[..]
    {
        measure(&format!("{hosts} hosts, in pairs"), &pairs(hosts as usize / 2, millis), millis);
        return measure(&format!("{hosts} hosts at one switch"), &rack(hosts as usize, millis), millis);
    }
    println!("world                            packet-hops     events seconds     hops/s    Gb/s");
    for (senders, flows) in [(1, 16), (4, 4), (8, 2)] {
        measure(&format!("dumbbell, {senders} senders, 16 flows"), &dumbbell(senders, flows, 2_000), 2_000);
    }
    for count in [1, 10, 100] {
        measure(&format!("{} hosts with links of 1 Gb/s", 2 * count), &pairs(count, 500), 500);
    }
}
