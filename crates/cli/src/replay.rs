//! `plimsoll sim --replay`.
//!
//! Why: an operator can see the effect of a new policy on yesterday's packets, and repeat an engine's recording.
//! From: the crate `sim`, which does the work.
//! Not here: reading captures and traces, scheduling.
//! Invariant: every frame of the capture is in exactly one column of one row, or below the table; one that is longer than
//! the uplink carries counts as its segments there, sent or dropped.

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use plimsoll_policy::Prefix;
use plimsoll_ports::{PcapConfig, PcapPort, PortError};
use plimsoll_record::{End, MAGIC, Reader, is_trace};
use plimsoll_sim::{Difference, Owners, Replay, Replayer, Rerun, RerunError, rerun};
use plimsoll_units::{Bytes, Nanos};
use plimsoll_wire::parse;
use serde_json::json;

use crate::args::Sim;
use crate::failure::{Failure, print, print_json};
use crate::reader;
use crate::show::rate;

/// Replays a recording, or sends a capture through a policy, and shows each class's delays and drops.
pub(crate) fn replay(args: &Sim, recorded: &Path, policy: Option<&Path>) -> Result<(), Failure> {
    let name = recorded.display();
    let mut file = File::open(recorded).map_err(|error| Failure::Wrong(format!("{name}: {error}")))?;
    let mut begin = Vec::new();
    let read = file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut begin).and_then(|_| file.rewind());
    read.map_err(|error| Failure::Wrong(format!("{name}: {error}")))?;
    match (is_trace(&begin), policy) {
        (true, None) => again(args, recorded, file),
        (true, Some(policy)) => Err(Failure::Wrong(format!(
            "{name} is a recording of `plimsoll run --record` and has its policy inside; leave out `{}`",
            policy.display()
        ))),
        (false, Some(policy)) => what_if(args, recorded, policy),
        (false, None) => Err(Failure::Wrong(format!(
            "{name} is not a recording of `plimsoll run --record`; to send a capture through a policy, write \
             `plimsoll sim POLICY --replay {name}`"
        ))),
    }
}

/// Replays a recording, and says whether every decision is the same.
fn again(args: &Sim, recorded: &Path, file: File) -> Result<(), Failure> {
    if !args.from.is_empty() {
        return Err(Failure::Wrong(
            "--from is for captures; a recording has the tenant of each packet".to_owned(),
        ));
    }
    let wrong = |error: RerunError| Failure::Wrong(format!("{} {error}", recorded.display()));
    let reader = Reader::new(BufReader::new(file)).map_err(|error| wrong(error.into()))?;
    let found = rerun(reader, MEMORY).map_err(wrong)?;
    if args.json {
        print_json(&machine_again(&found))?;
    } else {
        print(&format!("{}{}", text(&found.replay), summary(&found)))?;
    }
    let Some(Difference { decision, event, at, recorded, again }) = &found.difference else { return Ok(()) };
    let at = at.since(Nanos::ZERO);
    eprintln!(
        "decision {decision} (event {event}, {at} after the engine's start) differs\n  recorded: {recorded}\n  \
         now:      {again}"
    );
    Err(Failure::Said)
}

/// Most memory for the flow queues of a recorded engine, as large as any that `check` accepts.
const MEMORY: Bytes = Bytes::new(8_000_000_000);

fn summary(found: &Rerun) -> String {
    let end = match (&found.difference, found.end) {
        (Some(_), _) => "up to the first that differs",
        (None, End::Stopped) => "all as recorded",
        (None, End::Full) => "all as recorded; the recording ended at its limit",
        (None, End::Overrun) => "all as recorded; the recording ended because the disk was too slow",
        (None, End::Torn) => "all as recorded; the file has no end, because of a crash or an incomplete copy",
    };
    let Rerun { packets, decisions, reloads, .. } = found;
    format!("{packets} packets, {reloads} reloads, {decisions} decisions, {end}\n")
}

fn machine_again(found: &Rerun) -> serde_json::Value {
    let mut whole = machine(&found.replay);
    let difference = found.difference.as_ref().map(|difference| {
        json!({
            "decision": difference.decision,
            "event": difference.event,
            "at": difference.at.since(Nanos::ZERO).as_secs_f64(),
            "recorded": difference.recorded,
            "now": difference.again,
        })
    });
    let end = match found.end {
        End::Stopped => "stopped",
        End::Full => "full",
        End::Overrun => "overrun",
        End::Torn => "torn",
    };
    let more = json!({
        "packets": found.packets,
        "decisions": found.decisions,
        "reloads": found.reloads,
        "end": end,
        "difference": difference,
    });
    if let (Some(whole), serde_json::Value::Object(more)) = (whole.as_object_mut(), more) {
        whole.extend(more);
    }
    whole
}

/// Sends a capture through a policy.
fn what_if(args: &Sim, capture: &Path, policy: &Path) -> Result<(), Failure> {
    let checked = reader::load(&policy.display().to_string());
    let checked = checked.map_err(|errors| Failure::Policy(Box::new(errors)))?;
    let tenants: Vec<&str> = checked.config.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let owners = owners(args, &tenants)?;
    let mut replayer = Replayer::new(&checked, &owners);
    let mut unassigned = 0_u64;
    let mut arrive = |frame: &[u8], captured: usize, at: Nanos| {
        unassigned += u64::from(is_unassigned(frame, &owners));
        replayer.arrive_cut(frame, captured, at);
    };
    let unread = read(capture, &mut arrive).map_err(|error| Failure::Wrong(error.to_string()))?;
    unread.into_iter().for_each(|(why, lost)| replayer.unread(why, lost));
    let found = replayer.finish();
    // Without --from the only tenant has all packets with an address; the others, such as ARP, need no note.
    let unassigned = if args.from.is_empty() && tenants.len() == 1 { 0 } else { unassigned };
    if args.json {
        let mut whole = machine(&found);
        whole["no_tenant"] = unassigned.into();
        return print_json(&whole);
    }
    print(&format!("{}{}", text(&found), note(unassigned)))
}

/// Whether a frame that can be sent belongs to no tenant.
fn is_unassigned(frame: &[u8], owners: &Owners) -> bool {
    let Ok(parsed) = parse(frame) else { return false };
    let source = parsed.addresses().map(|(source, _)| source);
    !owners.iter().any(|(prefix, _)| source.is_some_and(|source| prefix.contains(source)))
}

fn note(unassigned: u64) -> String {
    if unassigned == 0 {
        return String::new();
    }
    format!(
        "note: {unassigned} packets matched no --from and were sent without a tenant; say which tenant sent them \
         with --from TENANT=PREFIX\n"
    )
}

/// Passes every frame of the file to `arrive`, at its time; returns why frames could not be read, and their number.
fn read(
    capture: &Path,
    arrive: &mut impl FnMut(&[u8], usize, Nanos),
) -> Result<Option<(String, u64)>, PortError> {
    let mut port = PcapPort::open(&PcapConfig { read: Some(capture.to_owned()), write: None })?;
    let mut frame = vec![0; LARGEST];
    let mut last = Nanos::ZERO;
    while !port.finished() {
        let Ok(Some(received)) = port.receive(&mut frame) else { continue };
        last = received.at.unwrap_or(last);
        arrive(&frame[..received.len], port.captured(), last);
    }
    let lost: u64 = port.counters().rx_drops.iter().sum();
    let problem = port.take_problem().map(|problem| problem.to_string());
    let plain = || "no Ethernet frame, or longer than 1 MiB".to_owned();
    Ok((lost > 0).then(|| (problem.unwrap_or_else(plain), lost)))
}

/// The largest frame of a capture, in bytes.
const LARGEST: usize = 1 << 20;

/// The tenants' source prefixes; where there is only one tenant, all packets are its own.
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
    table.set_header([
        "class",
        "packets",
        "rate",
        "mean wait",
        "p50",
        "p99",
        "longest",
        "by limits",
        "drops",
    ]);
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
    if found.segmented > 0 {
        text += &format!("in segments: {} frames longer than the uplink carries\n", found.segmented);
    }
    for (why, count) in &found.unread {
        text += &format!("not sent: {count} ({why})\n");
    }
    text
}

/// The result as JSON, with times in seconds and rates in bits a second.
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
    json!({ "seconds": seconds, "classes": classes.collect::<Vec<_>>(), "not_sent": found.unread, "segmented": found.segmented })
}
