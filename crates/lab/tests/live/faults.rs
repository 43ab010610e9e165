//! Live: faults on several hosts, and which tenants notice them, in the short forms of `examples/faults`.

use crate::support::comes_out;
use plimsoll_scenario::{Results, Run};

/// The run of a system.
fn run<'r>(results: &'r Results, system: &str) -> &'r Run {
    results.runs.iter().find(|run| run.system == system).expect("it ran")
}

/// Packets that were lost on the way in, for a reason.
fn lost(run: &Run, reason: &str) -> u64 {
    run.drops.get("the uplink").and_then(|drops| drops.get(reason)).copied().unwrap_or(0)
}

#[test]
fn lost_late_and_repeated_messages_let_no_flood_through() {
    let Some(results) = comes_out("faults/feedback-lost.yaml") else { return };
    let told = |system: &str| -> Vec<u64> {
        let notes = &run(&results, system).notes;
        let note = notes.iter().find(|note| note.contains("messages of control")).expect("a note");
        note.split(' ').filter_map(|word| word.parse().ok()).collect()
    };
    let [came, lost, late, again] = told("plimsoll")[..] else { panic!("four counts") };
    assert!(lost > came / 5 && late > 0 && again > 0, "{came} came, {lost} lost, {late} late, {again} again");
    assert_eq!(told("well")[1..], [0, 0, 0]);
}

#[test]
fn a_silent_hosts_flood_has_one_senders_part_where_it_arrives() {
    let Some(results) = comes_out("faults/silent-peer.yaml") else { return };
    let [silent, well] =
        ["plimsoll", "well"].map(|system| lost(run(&results, system), "stranger_over_limit"));
    // A host that a stalled machine has not heard for half a second is rightly a stranger for a moment.
    assert!(silent > 1_000 && well * 20 < silent, "{silent} and {well}");
}

#[test]
fn a_daemon_that_is_killed_comes_back_and_so_does_all_that_it_promised() {
    let Some(results) = comes_out("faults/receiver-restarted.yaml") else { return };
    let [killed, well] = ["plimsoll", "well"].map(|system| lost(run(&results, system), "daemon_down"));
    assert!(killed > 100 && well == 0, "{killed} and {well}");
    assert!(run(&results, "plimsoll").notes.iter().any(|note| note.contains("was killed")));
}

#[test]
fn a_tenant_at_a_hundred_times_its_envelope_takes_nothing_from_others() {
    comes_out("faults/hundred-times.yaml");
}
