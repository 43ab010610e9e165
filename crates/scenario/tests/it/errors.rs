//! The messages about a wrong file: every mistake, its place and a way out.
//!
//! `UPDATE_GOLDEN=1` rewrites the expected outputs; read the difference as you would read code.

use std::path::Path;

use plimsoll_scenario::{Form, Scenario};

fn compare(name: &str, text: &str) {
    let file = format!("{name}.yaml");
    let shown = match Scenario::parse(text, &file, Path::new(""), Form::Full) {
        Ok(_) => "no problem\n".to_owned(),
        Err(errors) => errors.render(false),
    };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &shown).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&golden).unwrap_or_default();
    assert_eq!(shown, expected, "{name}: run with UPDATE_GOLDEN=1 and read the difference");
}

#[test]
fn every_mistake_comes_in_one_go() {
    compare("many", include_str!("../golden/many.yaml"));
}

#[test]
fn expectations_have_carets_of_their_own() {
    compare("expectations", include_str!("../golden/expectations.yaml"));
}

#[test]
fn a_partition_fits_its_host_and_its_tenants() {
    compare("partition", include_str!("../golden/partition.yaml"));
}

#[test]
fn costs_of_programs_have_their_mistakes_shown() {
    compare("program_cost", include_str!("../golden/program_cost.yaml"));
}

#[test]
fn a_file_that_is_no_yaml_says_where() {
    compare("syntax", "name: x\nrate: [1\nduration: 5s\n");
}

#[test]
fn an_empty_file_says_what_belongs_in_it() {
    compare("empty", "");
}

#[test]
fn a_missing_file_is_a_problem_and_not_a_panic() {
    let errors = Scenario::load(Path::new("/nowhere/x.yaml"), Form::Full).expect_err("no such file");
    assert!(errors.render(false).contains("/nowhere/x.yaml"), "{}", errors.render(false));
}

#[test]
fn hosts_and_links_have_their_mistakes_shown() {
    compare("network", include_str!("../golden/network.yaml"));
}

#[test]
fn a_timeline_has_its_mistakes_shown() {
    compare("timeline", include_str!("../golden/timeline.yaml"));
}

#[test]
fn settings_of_tcp_have_their_mistakes_shown() {
    compare("tcp", include_str!("../golden/tcp.yaml"));
}

#[test]
fn links_that_are_not_plain_and_overlays_have_their_mistakes_shown() {
    compare("links", include_str!("../golden/links.yaml"));
}

#[test]
fn what_stands_against_turns_is_said_of_both_forms() {
    compare("one_world", include_str!("../golden/one_world.yaml"));
}

#[test]
fn flows_that_arrive_have_their_mistakes_shown() {
    compare("flows", include_str!("../golden/flows.yaml"));
}

#[test]
fn an_experiment_of_a_paper_has_its_mistakes_shown() {
    compare("paper", include_str!("../golden/paper.yaml"));
}
