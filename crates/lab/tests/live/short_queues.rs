//! Live: a ping, and requests, beside their own tenant's uploads: by arrival, with short queues, and by a rank program.

use crate::support::comes_out;

#[test]
fn a_ping_does_not_wait_for_its_own_tenants_uploads() {
    let Some(results) = comes_out("short-queues.yaml") else { return };
    let [by_arrival, short] = &results.runs[..] else { panic!("two systems: {}", results.runs.len()) };
    assert!(by_arrival.drops["home"].keys().all(|why| why != "waited_too_long"), "{:?}", by_arrival.drops);
    assert!(short.drops["home"]["waited_too_long"] > 100, "{:?}", short.drops);
}

#[test]
fn requests_go_before_uploads_by_a_rank_program() {
    let Some(results) = comes_out("srpt.yaml") else { return };
    assert_eq!(results.runs.len(), 3);
}
