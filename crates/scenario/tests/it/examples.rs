//! Every scenario in `examples/` reads in all its forms.

use std::path::{Path, PathBuf};

use plimsoll_scenario::{Form, Scenario};

fn examples() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let scenarios = ["noisy-neighbour", "receive-flood", "imix", "static-caps", "threads", "web-search"];
    let mut found: Vec<PathBuf> = scenarios.map(|name| root.join(format!("{name}.yaml"))).into();
    let papers = std::fs::read_dir(root.join("papers")).expect("examples/papers is there");
    let folders = papers.map(|folder| folder.expect("readable").path());
    for folder in folders.chain([root.join("faults")]) {
        let files = std::fs::read_dir(folder).expect("a folder for each paper, and one for faults");
        found.extend(files.map(|entry| entry.expect("readable").path()));
    }
    found.retain(|file| file.extension().is_some_and(|ending| ending == "yaml"));
    found.push(root.join("programs/virtual.yaml"));
    found.sort();
    found
}

#[test]
fn every_example_reads_in_all_forms_and_its_policies_hold() {
    let mut wrong = String::new();
    for path in examples() {
        for form in [Form::Full, Form::Short, Form::Virtual, Form::VirtualShort] {
            let scenario = Scenario::load(&path, form);
            let scenario = scenario.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
            assert!(!scenario.expect.is_empty(), "{} expects nothing", path.display());
            for (system, errors) in scenario.check_policies() {
                wrong += &format!("{}, {system}:\n{}", path.display(), errors.render(false));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
