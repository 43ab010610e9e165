//! Live: what goes wrong on several hosts, and who notices, in the short forms of `examples/faults`.

mod support;

use support::comes_out;

#[test]
fn lost_late_and_repeated_messages_let_no_flood_through() {
    comes_out("faults/feedback-lost.yaml");
}

#[test]
fn a_silent_host_s_flood_is_held_where_it_arrives() {
    comes_out("faults/silent-peer.yaml");
}

#[test]
fn a_daemon_that_is_killed_comes_back_and_so_does_all_that_it_promised() {
    comes_out("faults/receiver-restarted.yaml");
}

#[test]
fn a_tenant_at_a_hundred_times_its_envelope_takes_nothing_from_others() {
    comes_out("faults/hundred-times.yaml");
}
