//! Live: the short forms of PicNIC's experiments on several hosts, where the core on the way in is the bottleneck.
//!
//! One after the other, as each takes both cores of a small machine: `plimsoll papers --live --only PN-E7` runs the long form.

use crate::support;

/// The short form of an experiment fulfils what its file expects.
fn comes_out(name: &str) {
    support::comes_out(&format!("papers/picnic/{name}"));
}

#[test]
fn a_flood_of_small_packets_reaches_its_neighbour_in_a_shared_queue_alone() {
    comes_out("e02-burst.yaml");
}

#[test]
fn memcached_answers_all_beside_floods_for_its_neighbours() {
    comes_out("e04-memcached.yaml");
}

#[test]
fn bottlenecks_shift_and_every_sender_keeps_to_what_is_left() {
    comes_out("e05-shifting.yaml");
}

#[test]
fn two_senders_share_a_receivers_maximum_after_some_epochs() {
    comes_out("e10-epochs.yaml");
}

#[test]
fn packet_rates_that_are_controlled_cost_no_time_for_what_is_lost_later() {
    comes_out("e06-pps.yaml");
}

#[test]
fn a_core_is_shared_by_tenants_and_not_by_connections() {
    comes_out("e07-cpu-fair.yaml");
}

#[test]
fn without_accounting_a_throttled_flood_takes_its_neighbours_descriptors() {
    comes_out("e08-accounting.yaml");
}

#[test]
fn feedback_costs_by_how_often_it_is_sent() {
    comes_out("e13-overhead.yaml");
}
