//! The reference's policies and the examples are what they say: legal, or refused.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use plimsoll_policy::{Law, bounds, check_with, load, schema, sub_schema};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Fenced blocks of a page: the words after the fence, and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
        blocks.push((kind.trim().to_owned(), body.join("\n") + "\n"));
    }
    blocks
}

#[test]
fn policies_in_the_reference_are_what_it_says() {
    let page = std::fs::read_to_string(root().join("docs/policy.md")).expect("the reference");
    let mut files: HashMap<String, String> = HashMap::new();
    let mut checked = 0;
    for (kind, text) in blocks(&page) {
        let words: Vec<&str> = kind.split_whitespace().collect();
        if let Some(name) = words.iter().find_map(|word| word.strip_prefix("file=")) {
            files.insert(name.to_owned(), text.clone());
        }
        if !words.contains(&"policy") {
            continue;
        }
        let mut load = |name: &str| match name {
            "block.yaml" => Ok(text.clone()),
            _ => files.get(name).cloned().ok_or_else(|| "no such file".to_owned()),
        };
        let result = check_with("block.yaml", &mut load);
        match (result, words.contains(&"refused")) {
            (Ok(_), false) | (Err(_), true) => checked += 1,
            (Ok(_), true) => panic!("this should be refused:\n{text}"),
            (Err(errors), false) => panic!("{}", errors.render(false)),
        }
    }
    assert!(checked >= 5, "the page's policies were found");
}

#[test]
fn the_reference_names_every_rule() {
    let page = std::fs::read_to_string(root().join("docs/policy.md")).expect("the reference");
    for law in Law::ALL {
        assert!(page.contains(&format!("`{}`", law.name())), "`{}` is not explained", law.name());
    }
}

#[test]
fn examples_are_legal_and_without_warnings() {
    for name in ["plimsoll", "figure1", "envelopes", "wan-limits"] {
        let path = root().join(format!("examples/{name}.yaml"));
        let checked =
            load(&path.to_string_lossy()).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        assert!(checked.warnings.is_empty(), "{}", checked.render_warnings(false));
    }
}

#[test]
fn envelopes_are_guaranteed_what_the_reference_says() {
    let checked = load(&root().join("examples/envelopes.yaml").to_string_lossy()).expect("legal");
    let rates: Vec<Option<u64>> =
        bounds(&checked.program).iter().map(|bound| bound.guaranteed.map(|rate| rate.get())).collect();
    assert_eq!(rates, [Some(6_000_000_000), Some(4_000_000_000), None]);
}

#[test]
fn every_key_of_the_reference_is_in_the_schema() {
    let schemas = format!("{}{}", schema(), sub_schema());
    for key in [
        "uplink",
        "engine",
        "api",
        "tenants",
        "limits",
        "policy",
        "port",
        "rate",
        "overhead",
        "mtu",
        "cpu",
        "busy_poll",
        "queues",
        "ring",
        "descriptors",
        "max_depth",
        "line_rate_frame",
        "socket",
        "metrics",
        "min",
        "max",
        "burst",
        "via",
        "weight",
        "flows",
        "slack",
        "deadline",
        "priority",
        "wfq",
        "drr",
        "fifo",
        "lstf",
        "edf",
        "match",
        "src",
        "dst",
        "protocol",
        "src_port",
        "dst_port",
        "dscp",
        "vlan",
        "tenant",
        "cgroup",
        "user",
        "app",
        "core",
        "class",
        "af_xdp",
        "af_packet",
        "tap",
        "pcap",
        "netns",
        "name",
        "read",
        "write",
    ] {
        assert!(schemas.contains(&format!("\"{key}\":")), "`{key}` is missing");
    }
}
