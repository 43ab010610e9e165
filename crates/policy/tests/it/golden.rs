//! The messages about wrong policies: one golden text for each rule.
//!
//! Refresh with `UPDATE_GOLDEN=1 cargo test -p plimsoll-policy --test it golden::`, and read the difference.

use std::path::{Path, PathBuf};

use plimsoll_policy::{Checked, Errors, Law, check_str, check_with};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn cases() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).expect("the folder is there");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".yaml")?.to_owned())).collect();
    names.sort();
    names
}

/// The messages and their rules; a policy that is only doubtful has warnings.
fn told(result: &Result<Checked, Errors>) -> (String, Vec<String>) {
    let (text, problems) = match result {
        Ok(checked) => (checked.render_warnings(false), checked.warnings.as_slice()),
        Err(errors) => (errors.render(false), errors.problems()),
    };
    (text, problems.iter().map(|problem| problem.rule.name()).collect())
}

#[test]
fn each_mistake_is_told_as_written_down() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for name in cases() {
        let mut load =
            |file: &str| std::fs::read_to_string(folder().join(file)).map_err(|_| "no such file".to_owned());
        let (text, rules) = told(&check_with(&format!("{name}.yaml"), &mut load));
        let rule = name.split('.').next().unwrap_or(&name);
        if !rules.iter().any(|known| known == rule) {
            wrong.push(format!("{name}: its rule is not among\n{text}"));
        }
        let golden = folder().join(format!("{name}.txt"));
        if update {
            std::fs::write(&golden, &text).expect("golden files can be written");
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != text {
            wrong.push(format!("{name}: differs from {}:\n{text}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_golden_text() {
    let cases = cases();
    let missing = Law::ALL.iter().map(|law| law.name()).filter(|name| *name != "too-large");
    let missing: Vec<String> =
        missing.filter(|name| !cases.iter().any(|case| case.split('.').next() == Some(name))).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn every_problem_says_where_and_what_to_do() {
    for name in cases() {
        let mut load =
            |file: &str| std::fs::read_to_string(folder().join(file)).map_err(|_| "no such file".to_owned());
        let Err(errors) = check_with(&format!("{name}.yaml"), &mut load) else { continue };
        for record in errors.records() {
            assert!(record.line > 0 && record.column > 0, "{name}: {record:?}");
            assert!(!record.help.is_empty(), "{name}: no way out in {record:?}");
        }
    }
}

/// Too long for a golden file: one class more than fits.
#[test]
fn a_policy_larger_than_the_engine_is_refused() {
    let names: Vec<String> = (0..66_000).map(|index| format!("c{index}")).collect();
    let classes: String =
        names.iter().map(|name| format!("  {name}: {{match: {{dst_port: 1}}}}\n")).collect();
    let text = format!(
        "uplink: {{port: memory, rate: 1Gbps}}\npolicy:\n  root: {{fifo: [{}]}}\n{classes}",
        names.join(", ")
    );
    let errors = check_str("large.yaml", &text).expect_err("too many classes");
    assert!(errors.problems().iter().any(|problem| problem.rule == Law::TooLarge));
}
