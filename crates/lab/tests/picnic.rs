//! Live: PicNIC's experiments on several hosts whose core on the way in is what is short, in their short forms.
//!
//! One after the other, as each takes both cores of a small machine: `plimsoll papers --live --only PN-E7` runs the long form.

mod support;

use std::path::Path;
use std::sync::Mutex;

use plimsoll_lab::Options;
use plimsoll_scenario::{Form, Scenario, Status};
use support::binary;

/// A machine that stalls once must not fail the suite; one that always does must.
const TRIES: u32 = 3;

static ALONE: Mutex<()> = Mutex::new(());

/// The short form of an experiment fulfils what its file expects, in one of some tries.
fn comes_out(name: &str) {
    let _alone = ALONE.lock();
    let Some(binary) = binary() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/papers/picnic");
    let scenario =
        Scenario::load(&folder.join(name), Form::Short).unwrap_or_else(|errors| panic!("{errors:?}"));
    let options = Options { binary: Some(binary), ..Options::default() };
    let mut failed = Vec::new();
    for _ in 0..TRIES {
        let results = plimsoll_lab::run(&scenario, &options, &mut |_| {});
        let results = results.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ran = |name: &String| results.runs.iter().any(|run| run.system == *name);
        assert!(scenario.systems.iter().all(|system| ran(&system.name)), "{:?}", results.notes);
        failed = plimsoll_scenario::judge(&scenario, &results);
        for verdict in &failed {
            eprintln!("{name}: {:?}: {}: {}", verdict.status, verdict.expect, verdict.detail);
        }
        failed.retain(|verdict| verdict.status != Status::Passed);
        if failed.is_empty() {
            return;
        }
    }
    panic!("{name}: {failed:?}");
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
fn bottlenecks_shift_and_everybody_keeps_to_what_is_left() {
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
