//! `plimsoll check --memory`: what a policy takes in memory, beside what other schedulers would take.
//!
//! Why: an operator compares before choosing how many classes a host carries.
//! From: SENIC §2, §4.2 and §5.2, and Linux's `fq`, for their formats.
//! Not here: the engine's own bytes (`plimsoll_nic::footprint`).
//! Invariant: every scheduler is compared for the same classes and queues.

use plimsoll_nic::{Config, Footprint, Part, footprint};
use plimsoll_policy::{Checked, Program};
use serde_json::{Map, Value};

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
    let steered = checked.config.overlay.as_ref().is_some_and(|overlay| overlay.feedback.is_some());
    let control = if steered { plimsoll_control::state::of_vm().to_vec() } else { Vec::new() };
    let control_bytes: u64 = control.iter().map(|part| part.bytes).sum();
    let told_bytes = plimsoll_control::state::of_limit();
    let tenants = checked.program.tenants.len() as u64;
    let named = |parts: &[Part]| -> Map<String, Value> {
        parts.iter().map(|part| (part.what.to_owned(), part.bytes.into())).collect()
    };
    if json {
        return print_json(&serde_json::json!({
            "classes": found.classes, "queues": found.queues, "class": named(&found.class), "class_bytes": found.class_bytes,
            "ring_bytes": found.ring_bytes, "beside": named(&found.beside), "beside_bytes": found.beside_bytes,
            "global": named(&found.global), "global_bytes": found.global_bytes,
            "total_bytes": found.total_bytes, "senic_bytes": peers.senic_bytes,
            "senic_qfq_bytes": peers.senic_qfq_bytes, "linux_fq_bytes": peers.linux_fq_bytes,
            "avoided_bytes": peers.avoided_bytes,
            "control": control.iter().map(|part| (part.what.to_owned(), part.bytes.into()))
                .collect::<Map<String, Value>>(),
            "control_bytes": control_bytes, "control_total_bytes": tenants * control_bytes,
            "told_limit_bytes": if steered { told_bytes } else { 0 },
        }));
    }
    print(&text(&found, &peers))?;
    if control.is_empty() {
        return Ok(());
    }
    let rows = control.iter().map(|part| format!("  {:<38}{:>12} B\n", part.what, part.bytes));
    print(&format!(
        "{:<40}{control_bytes:>12} B\n{}{:<40}{:>12} B\n{:<40}{told_bytes:>12} B\n",
        "a tenant's control, as a receiver",
        rows.collect::<String>(),
        format!("control of {tenants} tenants, as receivers"),
        tenants * control_bytes,
        "what a tenant elsewhere allows",
    ))
}

fn text(found: &Footprint, peers: &Peers) -> String {
    let rows = |parts: &[Part]| {
        parts.iter().map(|part| format!("  {:<38}{:>12} B\n", part.what, part.bytes)).collect::<String>()
    };
    let line = |what: &str, bytes: u64| format!("{what:<40}{bytes:>12} B\n");
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
