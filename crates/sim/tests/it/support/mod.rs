//! Scenarios from their text, run in virtual time.

use std::num::NonZeroUsize;
use std::path::Path;

use plimsoll_scenario::{Form, Scenario};
use plimsoll_sim::{Options, Outcome, run};

pub fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, "test.yaml", Path::new(""), Form::Full)
        .unwrap_or_else(|errors| panic!("{}", errors.render(false)))
}

pub fn outcome(scenario: &Scenario, threads: usize) -> Outcome {
    let options = Options { threads: NonZeroUsize::new(threads), seeds: 1, ..Options::default() };
    run(scenario, &options, &|_| {}).unwrap_or_else(|error| panic!("{error}"))
}
