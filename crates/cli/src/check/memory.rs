//! `plimsoll check --memory`: what a policy takes in memory, beside what other schedulers would take.
//!
//! Why: an operator compares before choosing how many classes a host carries.
//! From: SENIC §2, §4.2 and §5.2, and Linux's `fq`, for their formats.
//! Not here: the engine's own bytes (`plimsoll_nic::footprint`).
//! Invariant: every scheduler is compared for the same classes and queues.

use plimsoll_daemon::{Guest, HeavyFlows, program_limits};
use plimsoll_nic::{Config, Footprint, Part, footprint};
use plimsoll_policy::{Checked, Program};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, print, print_json};

/// Bytes that the same classes would take elsewhere.
struct Peers {
    /// Scheduler state in SENIC's token-bucket format.
    senic_bytes: u64,
    /// Scheduler state in SENIC's QFQ format.
    senic_qfq_bytes: u64,
    /// Scheduler state in the format of Linux's `fq`, one flow for each queue.
    linux_fq_bytes: u64,
    /// Packet memory of queues on a NIC, at ten largest frames a queue (SENIC §2).
    avoided_bytes: u64,
}

/// SENIC's class record (Table 2).
const SENIC_CLASS: u64 = 30;
/// What SENIC's QFQ keeps for a class, and in all (§4.2).
const SENIC_QFQ_CLASS: u64 = 40;
const SENIC_QFQ_GLOBAL: u64 = 10_000;
/// Head and tail of each further ring of a class (SENIC §5.2).
const SENIC_RING: u64 = 4;
/// `struct fq_flow` of Linux 6.
const LINUX_FQ_FLOW: u64 = 104;
/// SENIC §2.1: 15 kB of packets a queue, which is ten frames of 1,500 B.
const FRAMES_PER_QUEUE: u64 = 10;

impl Peers {
    fn of(found: &Footprint, program: &Program) -> Self {
        let Footprint { classes, queues, .. } = *found;
        let rings = (queues - classes) * SENIC_RING;
        Self {
            senic_bytes: classes * SENIC_CLASS + rings,
            senic_qfq_bytes: classes * SENIC_QFQ_CLASS + rings + SENIC_QFQ_GLOBAL,
            linux_fq_bytes: queues * LINUX_FQ_FLOW,
            avoided_bytes: queues * FRAMES_PER_QUEUE * program.max_frame.as_u64(),
        }
    }
}

/// Memory of a host's control epoch, which a policy without feedback does not have.
struct Control {
    /// State of one tenant as a receiver, part by part.
    parts: Vec<Part>,
    /// The parts together.
    bytes: u64,
    /// `bytes` for each tenant of the policy.
    total_bytes: u64,
    /// A limit that a receiver on another host gives a tenant.
    limit_bytes: u64,
}

impl Control {
    fn of(checked: &Checked) -> Self {
        let steered = checked.config.overlay.as_ref().is_some_and(|overlay| overlay.feedback.is_some());
        let parts: Vec<Part> =
            if steered { plimsoll_control::state::of_vm().map(row).to_vec() } else { Vec::new() };
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let total_bytes = checked.program.tenants.len() as u64 * bytes;
        let limit_bytes = if steered { plimsoll_control::state::of_limit() } else { 0 };
        Self { parts, bytes, total_bytes, limit_bytes }
    }
}

/// Memory that only some policies take.
struct Tables {
    /// Its name in JSON.
    key: &'static str,
    title: &'static str,
    parts: Vec<Part>,
}

impl Tables {
    /// The parts together.
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }
}

/// Memory for counting flows and slowing them down, which a policy without backpressure does not have.
fn pressing(checked: &Checked) -> Tables {
    let stated = checked.config.backpressure.as_ref();
    let mut tables = stated.map_or_else(Vec::new, |_| HeavyFlows::memory().to_vec());
    tables.extend(
        stated.and_then(|stated| stated.press.as_ref()).into_iter().flat_map(HeavyFlows::press_memory),
    );
    let mediated = checked.config.tenants.iter().filter(|tenant| tenant.ecn.mediate().is_some()).count();
    if mediated > 0 {
        tables.extend(Guest::memory().map(|(what, bytes)| (what, bytes * mediated)));
    }
    let parts = tables.into_iter().map(|(what, bytes)| Part { what, bytes: bytes as u64 }).collect();
    Tables { key: "backpressure", title: "tables of backpressure", parts }
}

/// Memory of tenants' programs, most of which a program takes as it needs it.
fn programs(checked: &Checked) -> Tables {
    let programs = || {
        let tenants = checked.config.tenants.iter();
        tenants.filter_map(|tenant| Some((&tenant.name, tenant.program.as_ref()?)))
    };
    let memory = programs().map(|(_, stated)| stated.memory.as_u64()).sum();
    // One on a core of its own has its packets in its memory, and as many buffers on the engine's side.
    let on_cores = programs().filter(|(_, stated)| stated.core.is_some());
    let beside = on_cores.map(|(tenant, stated)| {
        let limits = program_limits(checked, tenant, stated);
        u64::from(limits.buffers) * u64::from(limits.buffer)
    });
    let rows = [("memory that they state, at most", memory), ("packets at cores of their own", beside.sum())];
    let parts = rows.map(|(what, bytes)| Part { what, bytes }).into_iter().filter(|part| part.bytes > 0);
    Tables { key: "programs", title: "tenants' programs", parts: parts.collect() }
}

/// A row of control as a row of the engine.
fn row(part: plimsoll_control::state::Part) -> Part {
    Part { what: part.what, bytes: part.bytes }
}

/// Shows the engine's memory for the policy, with one flow queue for each class.
pub(super) fn show(json: bool, checked: &Checked) -> Result<(), Failure> {
    let engine = &checked.config.engine;
    let config = Config {
        queues: engine.queues,
        ring: engine.ring,
        descriptors: engine.descriptors,
        ..Config::default()
    };
    let found = footprint(&checked.program, &config);
    let peers = Peers::of(&found, &checked.program);
    let (control, some) = (Control::of(checked), [pressing(checked), programs(checked)]);
    if json {
        return print_json(&machine(&found, &peers, &control, &some));
    }
    print(&text(&found, &peers))?;
    if !control.parts.is_empty() {
        print(&control_text(&control, checked))?;
    }
    for tables in some.iter().filter(|tables| !tables.parts.is_empty()) {
        print(&[line(tables.title, tables.bytes()), rows(&tables.parts)].concat())?;
    }
    Ok(())
}

fn machine(found: &Footprint, peers: &Peers, control: &Control, some: &[Tables]) -> Value {
    let named = |parts: &[Part]| -> Map<String, Value> {
        parts.iter().map(|part| (part.what.to_owned(), part.bytes.into())).collect()
    };
    let mut all = json!({
        "classes": found.classes, "queues": found.queues,
        "class": named(&found.class), "class_bytes": found.class_bytes, "ring_bytes": found.ring_bytes,
        "beside": named(&found.beside), "beside_bytes": found.beside_bytes,
        "global": named(&found.global), "global_bytes": found.global_bytes, "total_bytes": found.total_bytes,
        "senic_bytes": peers.senic_bytes, "senic_qfq_bytes": peers.senic_qfq_bytes,
        "linux_fq_bytes": peers.linux_fq_bytes, "avoided_bytes": peers.avoided_bytes,
        "control": named(&control.parts), "control_bytes": control.bytes,
        "control_total_bytes": control.total_bytes, "told_limit_bytes": control.limit_bytes,
    });
    for tables in some {
        all[tables.key] = named(&tables.parts).into();
        all[format!("{}_bytes", tables.key)] = tables.bytes().into();
    }
    all
}

fn text(found: &Footprint, peers: &Peers) -> String {
    let classes = found.classes;
    let queues =
        if found.queues > classes { format!(" with {} queues", found.queues) } else { String::new() };
    [
        line("scheduler's state of an idle class", found.class_bytes),
        rows(&found.class),
        line("ring of a flow queue that holds packets", found.ring_bytes),
        line("other state of an idle class", found.beside_bytes),
        rows(&found.beside),
        line("state that all classes share", found.global_bytes),
        rows(&found.global),
        line(&format!("total of {classes} classes{queues}"), found.total_bytes),
        line(&format!("scheduler's state of {classes} classes"), classes * found.class_bytes),
        line("for comparison: SENIC, 30 B a class", peers.senic_bytes),
        line("SENIC with QFQ, 40 B and 10 kB", peers.senic_qfq_bytes),
        line("Linux fq, 104 B a flow", peers.linux_fq_bytes),
        line("queues on a NIC, ten frames a class", peers.avoided_bytes),
    ]
    .concat()
}

fn control_text(control: &Control, checked: &Checked) -> String {
    let tenants = checked.program.tenants.len();
    [
        line("a tenant's control, as a receiver", control.bytes),
        rows(&control.parts),
        line(&format!("control of {tenants} tenants, as receivers"), control.total_bytes),
        line("what a tenant elsewhere allows", control.limit_bytes),
    ]
    .concat()
}

fn line(what: &str, bytes: u64) -> String {
    format!("{what:<40}{bytes:>12} B\n")
}

/// A line for each part, indented.
fn rows(parts: &[Part]) -> String {
    parts.iter().map(|part| line(&format!("  {}", part.what), part.bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_with_three_queues_takes_one_record_and_two_further_rings_in_senic() {
        let peers = |shop: &str| {
            let text = format!(
                "{{uplink: {{port: memory, rate: 8Gbps}}, tenants: {{shop: {{port: memory{shop}}}, batch: {{port: memory}}}}, \
                 policy: {{root: {{priority: [rates, rest]}}, rates: {{rate_share: {{shop: 3Gbps, batch: 1Gbps}}}}, rest: {{}}}}}}"
            );
            let checked = plimsoll_policy::check_str("p.yaml", &text);
            let program = checked.unwrap_or_else(|errors| panic!("{}", errors.render(false))).program;
            Peers::of(&footprint(&program, &Config::default()), &program).senic_bytes
        };
        assert_eq!(peers(""), 90);
        assert_eq!(
            peers(", queues: {voice: {match: {dscp: ef}}, web: {match: {dst_port: 443}}, rest: {}}"),
            98
        );
    }
}
