//! Backpressure as text: what is watched, and what is done about heavy flows.

use std::fmt::Write as _;

use crate::config::{Backpressure, Config};
use crate::press::{Ecn, Mediate, Press, PressMode, PressRate, Watch};

/// The flows that are counted, how those that overload something are slowed down, and whose ECN is mediated; empty without
/// any of these.
pub(super) fn backpressure_text(config: &Config) -> String {
    let mut text = String::new();
    if let Some(stated) = &config.backpressure {
        text = heavy_text(stated, config);
    }
    mediation_text(config, &mut text);
    text
}

/// The tenants whose connections are mediated.
fn mediation_text(config: &Config, text: &mut String) {
    let mediated = config.tenants.iter().filter_map(|tenant| Some((&tenant.name, tenant.ecn.mediate()?)));
    for (name, Mediate { rate, lifetime, burst }) in mediated {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\nECN of `{name}` is mediated: a flow whose receiver reports a mark gets a meter of {rate} with a burst of \
             {burst}, which expires {lifetime} after the last report"
        );
    }
}

fn heavy_text(stated: &Backpressure, config: &Config) -> String {
    let Backpressure { tenants, heavy, press } = stated;
    let mut text =
        format!("\nHeavy hitters: flows of {} with {heavy} or more, both ways\n", tenants.join(", "));
    let Some(press) = press else { return text };
    let Press { threshold, release, poll, part, flows, .. } = press;
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "Backpressure: {} is watched every {poll}; overload begins at {threshold} of {} and ends below {release}\n  \
         it slows down flows with more than {part} of all heavy hitters' packets, {flows} at most, each to {}\n  {}",
        watched(&press.watch),
        capacity(press),
        match press.rate {
            PressRate::Fixed(rate) => rate.to_string(),
            PressRate::Auto { least } => format!("what brings the load below {release}, {least} at least"),
        },
        method(press),
    );
    let untouched: Vec<&str> = config
        .tenants
        .iter()
        .filter(|tenant| tenant.ecn == Ecn::Untouched)
        .map(|tenant| tenant.name.as_str())
        .collect();
    if !untouched.is_empty() {
        // The modes `meter` and `drop` treat the flows of all tenants alike.
        let instead = match press.mode {
            PressMode::Mark | PressMode::Window => ", and flows metered instead,",
            PressMode::MarkAndMeter => ", and flows metered alone,",
            PressMode::Meter | PressMode::Drop => "",
        };
        let _ = writeln!(
            text,
            "  ECN bits and TCP flags are never changed{instead} for {}",
            untouched.join(", ")
        );
    }
    text
}

fn watched(watch: &Watch) -> String {
    match watch {
        Watch::Engine => "the engine's core".to_owned(),
        Watch::Tenant(name) => format!("the CPU time of deliveries to `{name}`"),
        Watch::Cgroup(path) => format!("cgroup {}", path.display()),
        Watch::Pids(pids) => {
            let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
            format!("the CPU time of threads {}", pids.join(", "))
        }
    }
}

fn capacity(press: &Press) -> String {
    match (press.cores, &press.watch) {
        (Some(1_000), _) => "a core".to_owned(),
        (Some(thousandths), _) => format!("{} cores", f64::from(thousandths) / 1_000.0),
        (None, Watch::Cgroup(_)) => "its `cpu.max` (a core without one)".to_owned(),
        (None, _) => "a core".to_owned(),
    }
}

fn method(press: &Press) -> String {
    let Press { lifetime, burst, .. } = press;
    let meter = format!("a meter with a burst of {burst}, which expires {lifetime} after its last refresh");
    match press.mode {
        PressMode::Mark => "by CE on one of several packets, where the sender supports ECN".to_owned(),
        PressMode::Meter => format!("by {meter}, at the source's host"),
        PressMode::MarkAndMeter => {
            format!(
                "by CE on one of several packets, where the sender supports ECN, and by {meter}, at the source's host"
            )
        }
        PressMode::Drop => "by dropping what is beyond the rate, at this host".to_owned(),
        PressMode::Window => {
            "by a smaller receive window in its acknowledgements, where its handshake was seen".to_owned()
        }
    }
}
