//! `plimsoll sim --replay`.
//!
//! Why: an operator asks of a new policy what it would have done to yesterday's packets.
//! From: the crate `sim`, which does all of it.
//! Not here: reading captures, scheduling.
//! Invariant: every frame of the capture is in exactly one column of one row, or below the table.

use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use plimsoll_policy::Prefix;
use plimsoll_ports::{PcapConfig, PcapPort, PortError};
use plimsoll_sim::{Owners, Replay, Replayer};
use plimsoll_units::Nanos;
use serde_json::json;

use crate::args::Sim;
use crate::failure::{Failure, print, print_json};
use crate::show::rate;

/// Sends a capture through a policy, and says how each class fared.
pub(crate) fn replay(args: &Sim, capture: &Path) -> Result<(), Failure> {
    let checked = plimsoll_policy::load(&args.file.display().to_string());
    let checked = checked.map_err(|errors| Failure::Policy(Box::new(errors)))?;
    let tenants: Vec<&str> = checked.config.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let owners = owners(args, &tenants)?;
    let mut replayer = Replayer::new(&checked, &owners);
    read(capture, &mut replayer).map_err(|error| Failure::Wrong(error.to_string()))?;
    let found = replayer.finish();
    if args.json { print_json(&machine(&found)) } else { print(&text(&found)) }
}

/// Every frame of the file, at its time.
fn read(capture: &Path, replayer: &mut Replayer<'_>) -> Result<(), PortError> {
    let mut port = PcapPort::open(&PcapConfig { read: Some(capture.to_owned()), write: None })?;
    let mut frame = vec![0; LARGEST];
    let mut last = Nanos::ZERO;
    while !port.finished() {
        let Ok(Some(received)) = port.receive(&mut frame) else { continue };
        last = received.at.unwrap_or(last);
        replayer.arrive(&frame[..received.len], last);
    }
    let lost: u64 = port.counters().rx_drops.iter().sum();
    if lost > 0 {
        let problem = port.take_problem().map(|problem| problem.to_string());
        replayer.unread(problem.unwrap_or_else(|| "no Ethernet frame".to_owned()), lost);
    }
    Ok(())
}

/// The largest frame that a capture may hold.
const LARGEST: usize = 1 << 17;

/// Whose packets are whose; all are the only tenant's where there is one.
fn owners(args: &Sim, tenants: &[&str]) -> Result<Owners, Failure> {
    let known = tenants.join("`, `");
    let mut owners = Owners::new();
    for (name, prefix) in &args.from {
        if !tenants.contains(&name.as_str()) {
            return Err(Failure::Wrong(format!("--from: there is no tenant `{name}`; there are `{known}`")));
        }
        owners.push((*prefix, name.clone()));
    }
    if let ([], [only]) = (args.from.as_slice(), tenants) {
        let everywhere = ["0.0.0.0/0", "::/0"].map(|all| all.parse::<Prefix>().expect("a prefix"));
        owners.extend(everywhere.map(|prefix| (prefix, (*only).to_owned())));
    }
    Ok(owners)
}

fn text(found: &Replay) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["class", "packets", "rate", "mean wait", "p50", "p99", "most", "by limits", "drops"]);
    let seconds = found.lasted.as_secs_f64().max(1e-9);
    for class in &found.classes {
        let drops: Vec<String> = class.drops.iter().map(|(why, count)| format!("{why} {count}")).collect();
        table.add_row([
            class.class.clone(),
            class.packets.to_string(),
            rate(class.bytes as f64 * 8.0 / seconds),
            class.mean.to_string(),
            class.p50.to_string(),
            class.p99.to_string(),
            class.most.to_string(),
            class.limited.to_string(),
            if drops.is_empty() { "-".to_owned() } else { drops.join(", ") },
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(7) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\nlasted {}\n", found.lasted);
    for (why, count) in &found.unread {
        text += &format!("not sent: {count} ({why})\n");
    }
    text
}

/// Times in seconds, rates in bits a second, as in all JSON.
fn machine(found: &Replay) -> serde_json::Value {
    let seconds = found.lasted.as_secs_f64();
    let classes = found.classes.iter().map(|class| {
        json!({
            "class": class.class,
            "packets": class.packets,
            "bytes": class.bytes,
            "rate_bps": class.bytes as f64 * 8.0 / seconds.max(1e-9),
            "mean": class.mean.as_secs_f64(),
            "p50": class.p50.as_secs_f64(),
            "p99": class.p99.as_secs_f64(),
            "max": class.most.as_secs_f64(),
            "limited": class.limited.as_secs_f64(),
            "drops": class.drops,
        })
    });
    json!({ "seconds": seconds, "classes": classes.collect::<Vec<_>>(), "not_sent": found.unread })
}
