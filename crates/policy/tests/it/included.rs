//! Tenants in files of a folder that the operator's file includes, and the class of all others.

use std::fs;
use std::path::Path;

use plimsoll_policy::{Checked, Errors, Law, check_str, load};

/// A policy that includes `d`, with these files there.
fn folder(policy: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!("uplink: {{port: memory, rate: 1Gbps}}\ninclude: d\n{policy}");
    fs::write(folder.path().join("p.yaml"), text).expect("written");
    fs::create_dir(folder.path().join("d")).expect("made");
    for (name, text) in files {
        fs::write(folder.path().join("d").join(name), text).expect("written");
    }
    folder
}

fn check(folder: &Path) -> Result<Checked, Errors> {
    load(folder.join("p.yaml").to_str().expect("UTF-8"))
}

fn shares(checked: &Checked) -> Vec<(String, u32)> {
    let leaf = |node: &&plimsoll_policy::Node| node.children.is_empty() && node.name != "default";
    let nodes = checked.program.nodes.iter().filter(leaf);
    nodes.map(|node| (node.name.clone(), node.weight)).collect()
}

const A: (&str, &str) = ("a.yaml", "tenants: {a: {port: memory, weight: 3}}");
const B: (&str, &str) = ("b.yaml", "tenants: {b: {port: memory, max: 1Mbps}}");

#[test]
fn each_files_tenants_are_tenants() {
    let hidden = [A, B, (".c.yaml", "nonsense: [}"), ("notes.txt", "tenants: {d: {port: memory}}")];
    let files = folder("tenants: {own: {port: memory}}", &hidden);
    let checked = check(files.path()).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let names: Vec<_> = checked.program.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names, ["own", "a", "b"]);
    assert!(checked.sources.files().iter().any(|file| file.name.ends_with("d/b.yaml")));
}

#[test]
fn others_are_those_without_a_place() {
    let tree = "tenants: {own: {port: memory}, seen: {port: memory}}\n\
                policy: {root: {priority: [own, web, all]}, web: {match: {tenant: seen}}, all: {max: 500Mbps, wfq: [others]}}";
    let files = folder(tree, &[A, B]);
    let checked = check(files.path()).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let expected = [("own", 1), ("web", 1), ("all/others/a", 3), ("all/others/b", 1)];
    assert_eq!(shares(&checked), expected.map(|(name, weight)| (name.to_owned(), weight)));
    for (name, _) in [A, B] {
        fs::remove_file(files.path().join("d").join(name)).expect("removed");
    }
    let checked = check(files.path()).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    assert!(shares(&checked).contains(&("all/others".to_owned(), 1)), "an empty class stays");
}

#[test]
fn others_may_be_a_class_or_a_tenant_of_its_own() {
    for policy in [
        "tenants: {a: {port: memory}}\npolicy: {root: {wfq: [a, others]}, others: {max: 1Mbps}}",
        "tenants: {a: {port: memory}, others: {port: memory}}\npolicy: {root: {wfq: [a, others]}}",
    ] {
        let text = format!("uplink: {{port: memory, rate: 1Gbps}}\n{policy}");
        let checked = check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        assert_eq!(shares(&checked).len(), 2, "{policy}");
    }
}

#[test]
fn a_mistake_is_told_at_its_place() {
    for (file, law, place) in [
        (("c.yaml", "tenants: {a: {port: memory}}"), Law::NameClash, "d/c.yaml:1:11"),
        (("c.yaml", "tenants: {c: {port: memory, max: fast}}"), Law::BadValue, "d/c.yaml:1:34"),
        (("c.yaml", "uplink: {port: memory}"), Law::UnknownKey, "d/c.yaml:1:1"),
        (("c.yaml", "tenants: [}"), Law::Syntax, "d/c.yaml:1:10"),
    ] {
        let files = folder("", &[A, file]);
        let errors = check(files.path()).expect_err("wrong");
        let said = errors.render(false);
        assert!(errors.problems().iter().any(|problem| problem.rule == law), "{law:?}: {said}");
        assert!(said.contains(place), "{place}: {said}");
    }
}

#[test]
fn a_folder_that_is_missing_and_one_that_cannot_be_there_are_refused() {
    let files = folder("", &[]);
    fs::remove_dir(files.path().join("d")).expect("removed");
    let said = check(files.path()).expect_err("no folder").render(false);
    assert!(said.contains("No such file") && said.contains("make the folder"), "{said}");
    let said = check_str("p.yaml", "uplink: {port: memory, rate: 1Gbps}\ninclude: d")
        .expect_err("a text")
        .render(false);
    assert!(said.contains("without folders"), "{said}");
}
