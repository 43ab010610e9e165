//! The commands' output and exit codes.

use std::fs;
use std::process::{Command, Output};

use crate::support::folder::Folder;

const GOOD: &str = "
uplink: {port: {tap: {name: up0}}, rate: 10Gbps}
tenants:
  shop: {port: {tap: {netns: shop, name: eth0}}, min: 2Gbps}
  batch: {port: {tap: {netns: batch, name: eth0}}}
";

fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).output().expect("it runs")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn check_prints_the_tree_and_json_and_draws() {
    let folder = Folder::new("check");
    let file = folder.write("p.yaml", GOOD);
    let svg = folder.0.join("p.svg").display().to_string();
    let done = plimsoll(&["check", &file, "--svg", &svg]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(out(&done).contains("shop") && out(&done).contains("2Gbps"), "{}", out(&done));
    assert!(fs::read_to_string(svg).expect("drawn").contains("<svg"));
    let json: serde_json::Value =
        serde_json::from_str(&out(&plimsoll(&["check", &file, "--json"]))).expect("JSON");
    assert!(json["classes"].as_array().is_some_and(|classes| classes.len() >= 2), "{json}");
}

#[test]
fn a_wrong_file_has_exit_code_2_and_its_place() {
    let folder = Folder::new("wrong");
    let file = folder.write("p.yaml", GOOD.replace("10Gbps", "1Gbps"));
    let done = plimsoll(&["check", &file]);
    assert_eq!(done.status.code(), Some(2));
    assert!(out(&done).is_empty(), "{}", out(&done));
    assert!(err(&done).contains("p.yaml:4"), "{}", err(&done));
    let run = plimsoll(&["run", &file]);
    assert_eq!(run.status.code(), Some(2), "{}", err(&run));
    let json: serde_json::Value =
        serde_json::from_str(&out(&plimsoll(&["check", &file, "--json"]))).expect("JSON");
    assert_eq!(json["ok"], false);
    assert_eq!(plimsoll(&["check", "/nonexistent.yaml"]).status.code(), Some(2));
    assert_eq!(plimsoll(&["frobnicate"]).status.code(), Some(2));
}

#[test]
fn a_sub_policy_is_checked_alone() {
    let folder = Folder::new("sub");
    let file = folder.write(
        "shop.yaml",
        "policy:\n  root: {wfq: {web: 3, rest: 1}}\n  web: {match: {dst_port: 80}}\n  rest: {}\n",
    );
    let done = plimsoll(&["check", &file]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let text = out(&done);
    assert!(text.contains("a sub-policy, checked alone") && text.contains("web"), "{text}");
    assert!(!text.contains("18446744073"), "no figure of a link that is not there: {text}");
    let wrong = folder.write(
        "shop.yaml",
        "policy:\n  root: {wfq: [web, mail]}\n  web: {match: {dst_port: 80}, min: 2Mbps, max: 1Mbps}\n",
    );
    let done = plimsoll(&["check", &wrong]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        err(&done).contains("shop.yaml:2:21") && err(&done).contains("shop.yaml: 2 errors"),
        "{}",
        err(&done)
    );
    assert_eq!(plimsoll(&["check", &file, "--svg", "/nonexistent/x.svg"]).status.code(), Some(2));
}

#[test]
fn an_included_file_is_checked_alone() {
    let folder = Folder::new("included");
    let file =
        folder.write("shop.yaml", "tenants:\n  shop: {port: memory, min: 2Gbps, addresses: [10.1.0.7]}\n");
    let done = plimsoll(&["check", &file]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(out(&done).contains("an included file with the tenants shop"), "{}", out(&done));
    let json: serde_json::Value =
        serde_json::from_slice(&plimsoll(&["check", &file, "--json"]).stdout).expect("JSON");
    assert_eq!((&json["kind"], &json["tenants"][0]), (&"included".into(), &"shop".into()));
    let svg = folder.0.join("x.svg").display().to_string();
    assert!(err(&plimsoll(&["check", &file, "--svg", &svg])).contains("is an included file"));
    let run = plimsoll(&["run", &file]);
    assert!(run.status.code() == Some(2) && err(&run).contains("under `include`"), "{}", err(&run));

    let wrong = folder.write("wrong.yaml", "tenants:\n  shop: {port: memory, max: fast}\n");
    let done = plimsoll(&["check", &wrong]);
    let place = format!("{wrong}:2:");
    assert!(done.status.code() == Some(2) && err(&done).contains(&place), "{}", err(&done));
    assert!(!err(&done).contains("uplink"), "{}", err(&done));
    let sly = folder.write("sly.yaml", "tenants: {shop: {port: memory, policy: /etc/hostname}}\n");
    assert_eq!(plimsoll(&["check", &sly]).status.code(), Some(2));
}

#[test]
fn a_scenario_is_checked_with_its_policies() {
    let folder = Folder::new("scenario");
    let good = "name: two\nrate: 100Mbps\nduration: 5s\nsystems: [plimsoll]\ntenants: {a: {min: 50Mbps}, b: {}}\n\
                workloads: {few: {tenant: a, kind: bulk}}\nexpect: [plimsoll.a.throughput >= 40Mbps]\n";
    let file = folder.write("two.yaml", good);
    let done = plimsoll(&["check", &file]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(out(&done).contains(&format!("plimsoll lab {file}")), "{}", out(&done));
    for (from, to, said) in [
        ("bulk", "bluk", "did you mean `bulk`"),
        ("min: 50Mbps", "min: 500Mbps", "rule `min-above-link`"),
        ("kind: bulk}", "kind: bulk, tennant: b}", "`tennant`"),
    ] {
        let done = plimsoll(&["check", &folder.write("two.yaml", good.replace(from, to)), "--json"]);
        assert_eq!(done.status.code(), Some(2), "{to}");
        assert!(err(&done).contains(said), "{}", err(&done));
        let json: serde_json::Value = serde_json::from_str(&out(&done)).expect("JSON");
        assert_eq!(
            (&json["ok"], json["problems"].as_array().map(Vec::len)),
            (&false.into(), Some(1)),
            "{json}"
        );
    }
}

#[test]
fn explain_works_from_a_file_alone() {
    let folder = Folder::new("explain");
    let file = folder.write("p.yaml", GOOD);
    let done = plimsoll(&["explain", "tenant=shop", "tcp", "--policy", &file]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(out(&done).contains("shop"), "{}", out(&done));
    let wrong = plimsoll(&["explain", "tenant=shpo", "--policy", &file]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(err(&wrong).contains("shop"), "{}", err(&wrong));
}

#[test]
fn a_daemon_that_is_not_there_is_said_with_a_way_out() {
    for command in ["stats", "reload", "top", "explain"] {
        let done = plimsoll(&[command, "--socket", "/nonexistent/api.sock"]);
        assert_eq!(done.status.code(), Some(1), "{command}");
        assert!(err(&done).contains("plimsoll run FILE"), "{command}: {}", err(&done));
    }
}

#[test]
fn doorbells_show_both_counts() {
    let done = plimsoll(&["bench", "doorbells"]);
    assert_eq!(done.status.code(), Some(0));
    let text = out(&done);
    assert!(text.contains("44x") && text.contains("22x"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&out(&plimsoll(&["bench", "doorbells", "--json"]))).expect("JSON");
    assert_eq!(json["LO-E9"].as_array().map(Vec::len), Some(6));
}

#[test]
fn a_pcie_bus_carries_what_its_lanes_and_tlps_leave() {
    let text = out(&plimsoll(&["bench", "pcie"]));
    assert!(text.contains("PCIe 3.0 x8: 64Gbps raw") && text.contains("44.8"), "{text}");
    let rate = |args: &[&str]| {
        let done = out(&plimsoll(&[&["bench", "pcie", "--frame", "64B", "--json"], args].concat()));
        let json: serde_json::Value = serde_json::from_str(&done).expect("JSON");
        json["rows"][0]["rate"].as_u64().expect("a rate")
    };
    let (x8, x4) = (rate(&[]), rate(&["--lanes", "4"]));
    assert!(x8.abs_diff(2 * x4) <= 2, "{x8} {x4}");
    assert!(rate(&["--descriptor", "16B"]) < 40_000_000_000);
    for wrong in
        [["--tlp", "0B"], ["--frame", "0B"], ["--generation", "6"], ["--lanes", "0"], ["--lanes", "3"]]
    {
        assert_eq!(plimsoll(&[&["bench", "pcie"], &wrong[..]].concat()).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn completions_and_man_pages_come_from_the_definition() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(out(&plimsoll(&["completions", shell])).contains("doorbells"), "{shell}");
    }
    let folder = Folder::new("man");
    let done = plimsoll(&["man", &folder.0.display().to_string()]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    for page in ["plimsoll.1", "plimsoll-check.1", "plimsoll-bench-doorbells.1"] {
        let text = fs::read_to_string(folder.0.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn schemas_are_json_schemas() {
    for of in ["policy", "sub-policy", "scenario"] {
        let schema: serde_json::Value = serde_json::from_str(&out(&plimsoll(&["schema", of]))).expect("JSON");
        assert!(schema["$schema"].is_string(), "{of}: {schema}");
    }
}

const FAILING: &str = "
name: small
rate: 1Gbps
duration: 100ms
systems: [fifo, plimsoll]
tenants: {a: {}, b: {}}
workloads:
  ask: {tenant: a, kind: request_response, connections: 2}
  all: {tenant: b, kind: bulk, flows: 2}
expect:
  - plimsoll.a.throughput >= 2Gbps
";

#[test]
fn sim_is_repeatable_and_a_failure_says_how_to_see_it_again() {
    let folder = Folder::new("sim");
    let (file, out_folder) = (folder.write("s.yaml", FAILING), folder.0.join("report").display().to_string());
    let run = |more: &[&str]| plimsoll(&[&["sim", &file, "--out", &out_folder, "--json"][..], more].concat());
    let first = run(&["--seed", "3", "--seeds", "2"]);
    assert_eq!(first.status.code(), Some(1), "{}", err(&first));
    assert_eq!(out(&first), out(&run(&["--seed", "3", "--seeds", "2", "--threads", "1"])));
    for seed in ["--seed 3", "--seed 4"] {
        assert!(err(&first).contains(&format!("replay: plimsoll sim {file} {seed}")), "{}", err(&first));
    }
    let good = folder.write("good.yaml", FAILING.replace("2Gbps", "1kbps"));
    let table = plimsoll(&["sim", &good, "--out", &out_folder]);
    assert_eq!(table.status.code(), Some(0), "{}", err(&table));
    assert!(out(&table).contains("delay bounds hold"), "{}", out(&table));
    let wrong = folder.write("wrong.yaml", FAILING.replace("rate: 1Gbps", "rate: 900Gbps"));
    let wrong = plimsoll(&["sim", &wrong, "--out", &out_folder]);
    assert_eq!(wrong.status.code(), Some(2), "{}", err(&wrong));
    assert!(err(&wrong).contains("512Gbps"), "{}", err(&wrong));
}

/// Requests at random moments: how many are answered in so short a run depends on the seed.
const UNEVEN: &str = "
name: uneven
rate: 1Gbps
duration: 100ms
systems: [plimsoll]
tenants: {a: {}, b: {}}
workloads:
  ask: {tenant: a, kind: request_response, connections: 2, rate: 2000}
expect:
  - plimsoll.ask.samples >= 0
";

#[test]
fn a_seed_that_fails_fails_the_table_the_report_and_json() {
    let folder = Folder::new("seeds");
    let report = folder.0.join("report").display().to_string();
    let run = |least: u64, more: &[&str]| {
        let file = folder.write("s.yaml", UNEVEN.replace(">= 0", &format!(">= {least}")));
        plimsoll(&[&["sim", &file, "--out", &report, "--seed", "5", "--seeds", "3"][..], more].concat())
    };
    let passed = run(0, &["--json"]);
    assert_eq!(passed.status.code(), Some(0), "{}", err(&passed));
    let found: serde_json::Value = serde_json::from_str(&out(&passed)).expect("JSON");
    assert_eq!((&found["passed"], &found["seed"]), (&true.into(), &5.into()));
    let runs = found["runs"].as_array().expect("runs");
    let answers = |run: &serde_json::Value| run["workloads"]["ask"]["answers"].as_u64().expect("a count");
    let counts: Vec<u64> = runs.iter().map(answers).collect();
    let fewest = *counts.iter().min().expect("some");
    let first = counts.iter().position(|count| *count == fewest).expect("it is there") as u64;
    assert_eq!(counts.iter().filter(|count| **count == fewest).count(), 1, "two pass: {counts:?}");

    let failed = run(fewest + 1, &["--json"]);
    assert_eq!(failed.status.code(), Some(1), "{}", err(&failed));
    let found: serde_json::Value = serde_json::from_str(&out(&failed)).expect("JSON");
    let verdict = &found["expectations"][0];
    assert_eq!((&found["passed"], &verdict["status"]), (&false.into(), &"failed".into()));
    assert_eq!((&verdict["seed"], &verdict["left"]), (&(5 + first).into(), &(fewest as f64).into()));
    let table = run(fewest + 1, &[]);
    let said = format!("with seed {}; 1 of 3 fail", 5 + first);
    assert!(out(&table).contains("FAIL") && out(&table).contains(&said), "{}", out(&table));
    let page = fs::read_to_string(format!("{report}/report.html")).expect("written");
    assert!(page.contains("0 passed, 1 failed") && page.contains(&said), "the page passes it");
}

#[test]
fn a_folder_that_takes_no_report_is_found_before_the_run() {
    let folder = Folder::new("out");
    let (file, none) = (folder.write("s.yaml", UNEVEN), folder.write("file", ""));
    for command in ["sim", "lab"] {
        let done = plimsoll(&[command, &file, "--out", &format!("{none}/report")]);
        assert_eq!(done.status.code(), Some(2), "{command}: {}", err(&done));
        assert!(out(&done).is_empty(), "{command} ran: {}", out(&done));
        let said = format!("into the folder `{none}/report`: ");
        assert!(err(&done).contains(&said) && err(&done).contains("--out"), "{command}: {}", err(&done));
    }
    // A failure afterwards, here a folder in a file's place, costs the report and not the table.
    let report = folder.0.join("report");
    fs::create_dir_all(report.join("results.json")).expect("a folder");
    let done = plimsoll(&["sim", &file, "--out", &report.display().to_string()]);
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    assert!(out(&done).contains("plimsoll.ask.samples >= 0"), "no table: {}", out(&done));
    assert!(err(&done).contains(&format!("into the folder `{}`: ", report.display())), "{}", err(&done));
    let left = fs::read_dir(&report).expect("the folder").flatten().map(|entry| entry.file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with('.')), "what was tried is gone");
}

const SWEEP: &str = "
name: grid
rate: 1Gbps
duration: 100ms
systems: [plimsoll]
tenants: {a: {}, b: {}}
workloads:
  one:  {tenant: a, kind: udp, rate: flood}
  more: {tenant: b, kind: udp, rate: flood}
sweep:
  tenants.a.weight: [1, 3]
  rate: [1Gbps, 2Gbps]
expect:
  - plimsoll.a.throughput ~ line / 2 +- 1%
";

#[test]
fn a_sweep_is_one_table_and_each_failure_names_its_point() {
    let folder = Folder::new("sweep");
    let (file, out_folder) = (folder.write("s.yaml", SWEEP), folder.0.join("report").display().to_string());
    let done = plimsoll(&["sim", &file, "--out", &out_folder, "--format", "parquet"]);
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    assert!(fs::read(format!("{out_folder}/sweep.parquet")).expect("written").ends_with(b"PAR1"));
    assert!(out(&done).contains("4 points") && out(&done).contains("1500"), "{}", out(&done));
    let replay = format!("replay: plimsoll sim {file} --set tenants.a.weight=3 --set rate=2Gbps --seed 1");
    assert!(err(&done).contains(&replay), "{}", err(&done));
    let csv = fs::read_to_string(format!("{out_folder}/sweep.csv")).expect("written");
    assert!(csv.starts_with("tenants.a.weight,rate,system,") && csv.lines().count() == 5, "{csv}");
    assert!(fs::read(format!("{out_folder}/sweep-throughput.png")).expect("drawn").starts_with(b"\x89PNG"));
    let fixed = plimsoll(&["sim", &file, "--out", &out_folder, "--set", "tenants.a.weight=1"]);
    assert_eq!(fixed.status.code(), Some(0), "{}", err(&fixed));
    let nowhere = plimsoll(&["sim", &file, "--out", &out_folder, "--set", "tenants.z.weight=1"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", err(&nowhere));
}

#[test]
fn series_are_files_for_each_point_and_figures_of_a_report() {
    let folder = Folder::new("series");
    let place = |name: &str| folder.0.join(name).display().to_string();
    let text = SWEEP.split("sweep:").next().expect("a scenario").replace("udp, rate: flood", "bulk");
    let file = folder.write("one.yaml", &text);
    let (report, traces) = (place("report"), place("traces"));
    let done = plimsoll(&["sim", &file, "--out", &report, "--series", &traces, "--format", "parquet"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let flows = fs::read_to_string(format!("{traces}/series-flows.csv")).expect("written");
    assert!(flows.starts_with("system,pair,at_seconds,workload,flow,from,to,cwnd_bytes,"), "{flows}");
    assert!(flows.lines().count() > 500, "two flows, 500 samples each");
    let links = fs::read(format!("{traces}/series-links.parquet")).expect("written");
    assert!(links.ends_with(b"PAR1"));
    let page = fs::read_to_string(format!("{report}/report.html")).expect("written");
    assert!(page.contains("Congestion windows over time") && page.contains("Queues over time"));
    let sweep = folder.write("many.yaml", SWEEP.replace("+- 1%", "+- 90%"));
    let done = plimsoll(&["sim", &sweep, "--out", &report, "--series", &traces]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!((1..=4).all(|point| fs::exists(format!("{traces}/{point}/series-links.csv")).is_ok_and(|is| is)));
    let nowhere = plimsoll(&["sim", &file, "--out", &report, "--series", &file]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", err(&nowhere));
    assert!(err(&nowhere).contains("name another folder with `--series`"), "{}", err(&nowhere));
}

const TRACED: &str = "
name: traced
rate: 100Mbps
duration: 100ms
systems: [plimsoll]
tenants: {shop: {max: 20Mbps}, batch: {}}
workloads:
  ask:  {tenant: shop, kind: request_response, connections: 2, request: 4kB}
  many: {tenant: batch, kind: udp, size: 1400B, rate: 80Mbps}
";

const WHAT_IF: &str = "
uplink: {port: memory, rate: 100Mbps}
tenants:
  shop: {port: memory, min: 60Mbps}
  batch: {port: memory, max: 10Mbps}
";

#[test]
fn a_trace_can_be_read_and_replayed_through_another_policy() {
    let folder = Folder::new("trace");
    let (file, policy) = (folder.write("s.yaml", TRACED), folder.write("p.yaml", WHAT_IF));
    let at = |name: &str| folder.0.join(name).display().to_string();
    let done = plimsoll(&["sim", &file, "--out", &at("report"), "--trace", &at("t.pcapng")]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let bytes = fs::read(at("t.pcapng")).expect("written");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("class shop; waited") && text.contains("longest by max(shop)"), "no decisions");

    // Where Wireshark's own reader is installed: it finds no error, and it finds the comments.
    let tshark = |filter| {
        Command::new("tshark")
            .args(["-r", &at("t.pcapng"), "-Y", filter, "-T", "fields", "-e", "frame.comment"])
            .output()
    };
    if let (Ok(strange), Ok(said)) = (
        tshark(
            "_ws.malformed or tcp.analysis.zero_window or tcp.analysis.lost_segment or tcp.checksum.status == 0",
        ),
        tshark("frame.comment contains \"class shop\""),
    ) {
        assert_eq!(out(&strange), "", "{}", err(&strange));
        assert!(out(&said).lines().count() > 20, "{}", err(&said));
    }

    let from = ["--from", "shop=10.200.1.1", "--from", "batch=10.200.1.2/32"];
    let capture = at("t.pcapng");
    let replayed = [&["sim", &policy, "--replay", &capture, "--json"][..], &from].concat();
    let found: serde_json::Value = serde_json::from_str(&out(&plimsoll(&replayed))).expect("JSON");
    let class = |name: &str| {
        let classes = found["classes"].as_array().expect("classes");
        classes
            .iter()
            .find(|class| class["class"] == name)
            .unwrap_or_else(|| panic!("{name}: {found}"))
            .clone()
    };
    // 10 Mb/s is an eighth of what batch sent: its ring of 128 fills, and the rest is dropped.
    assert!(class("batch")["drops"]["flow_full"].as_u64().is_some_and(|count| count > 200), "{found}");
    // It lasts a quarter of a second, and 6 kB of burst are 5 ms.
    assert!(class("batch")["rate_bps"].as_f64().is_some_and(|rate| rate < 10.3e6), "{found}");
    assert!(class("shop")["packets"].as_u64().is_some_and(|count| count > 100), "{found}");
    assert_eq!(found["not_sent"], serde_json::json!({}));
    assert_eq!(found["no_tenant"], 0, "all come from one of the two");

    // Without all owners the rest is no tenant's, and the output says so.
    let count = |from: &[&str]| {
        let told = plimsoll(&[&["sim", &policy, "--replay", &capture, "--json"][..], from].concat());
        let told: serde_json::Value = serde_json::from_str(&out(&told)).expect("JSON");
        told["no_tenant"].as_u64().expect("a count")
    };
    let (none, shop, batch) = (count(&[]), count(&from[..2]), count(&from[2..]));
    assert!(shop > 0 && batch > 0 && none == shop + batch, "{none} = {shop} + {batch}");
    let table = plimsoll(&[&["sim", &policy, "--replay", &capture][..], &from[..2]].concat());
    let note = format!("note: {shop} packets matched no --from");
    assert!(out(&table).contains(&note), "{}", out(&table));
    let table = plimsoll(&[&["sim", &policy, "--replay", &capture][..], &from].concat());
    assert!(!out(&table).contains("note:"), "{}", out(&table));
    let wrong = plimsoll(&["sim", &policy, "--replay", &at("t.pcapng"), "--from", "shoe=10.0.0.0/8"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", err(&wrong));
    assert_eq!(plimsoll(&["sim", &policy, "--replay", &file]).status.code(), Some(2), "no capture");
}

#[test]
fn the_papers_short_forms_all_pass_and_each_experiment_is_there() {
    let done = plimsoll(&["papers", "--short", "--seeds", "1", "--json"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let all: serde_json::Value = serde_json::from_str(&out(&done)).expect("JSON");
    let all = all.as_array().expect("a list");
    assert!(all.iter().all(|one| one["passed"] == true && one["failures"] == serde_json::json!([])));
    for id in [("LO", 14), ("SE", 9), ("PN", 15), ("MI", 12)]
        .into_iter()
        .flat_map(|(paper, last)| (1..=last).map(move |n| format!("{paper}-E{n}")))
        .chain([1, 2, 3, 4, 5, 6, 7, 9].map(|n| format!("FN-E{n}")))
        .chain(["LO-M14", "SE-S5", "PN-M13", "PN-M14", "PN-C4", "PN-C5", "PN-C6"].map(str::to_owned))
        .chain(["MI-S1", "MI-S4", "MI-M1", "MI-M8", "MI-M12"].map(str::to_owned))
    {
        assert!(all.iter().any(|one| one["id"] == id.as_str()), "{id} is missing");
    }
    let measured = |one: &serde_json::Value| one["numbers"].as_array().is_some_and(|all| !all.is_empty());
    assert!(all.iter().all(measured), "every experiment has a figure of ours");
}

#[test]
fn a_paper_that_fails_names_the_command_that_shows_it_again() {
    let folder = Folder::new("papers");
    let paper = "
name: figures
rate: 1Gbps
duration: 100ms
systems: [plimsoll]
tenants: {a: {}}
workloads: {w: {tenant: a, kind: udp, rate: 500Mbps}}
expect: [plimsoll.a.throughput > 600Mbps]
paper:
  id: LO-E99
  figure: Figure 99
  shows: nothing
  numbers: [{paper: 600 Mb/s, ours: plimsoll.a.throughput}]
";
    folder.write("wrong.yaml", paper);
    folder.write("other.yaml", &paper[..paper.find("paper:").expect("a block")]);
    let done = plimsoll(&["papers", "--folder", &folder.0.display().to_string(), "--seeds", "2"]);
    assert_eq!(done.status.code(), Some(1), "{}", err(&done));
    assert!(out(&done).contains("LO-E99") && out(&done).contains("FAIL"), "{}", out(&done));
    let replay = format!("replay: plimsoll sim {} --seed 2", folder.0.join("wrong.yaml").display());
    assert!(err(&done).contains(&replay), "the file in the folder, not one of the program's: {}", err(&done));
    assert!(err(&done).contains("other.yaml has no `paper:` block"), "{}", err(&done));
    for (args, said) in [
        (["papers", "--only", "XX-E1"], "there is no experiment `XX-E1`"),
        (["papers", "--folder", "/nowhere"], "/nowhere: No such file"),
    ] {
        let done = plimsoll(&args);
        assert_eq!(done.status.code(), Some(2));
        assert!(err(&done).contains(said), "{}", err(&done));
    }
}

const STEERED: &str = "
uplink: {port: {af_packet: eth0}, rate: 1Gbps}
tenants:
  shop:  {port: {tap: {netns: shop, name: eth0}}}
  batch: {port: {tap: {netns: batch, name: eth0}}}
overlay:
  kind: geneve
  vni: 7
  host: a
  hosts:
    a: {address: 192.0.2.1, tenants: {shop: 02:00:00:00:0a:01, batch: 02:00:00:00:0a:02}}
    b: {address: 192.0.2.2, tenants: {far: 02:00:00:00:0b:01}}
  feedback: {key: /etc/plimsoll/fleet.key, fallback: 50Mbps}
";

#[test]
fn memory_counts_what_control_keeps_where_hosts_tell_each_other() {
    let folder = Folder::new("memory");
    let file = folder.write("p.yaml", STEERED);
    let counted = |file: &str| -> serde_json::Value {
        let done = plimsoll(&["check", "--memory", "--json", file]);
        assert_eq!(done.status.code(), Some(0), "{}", err(&done));
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let found = counted(&file);
    let bytes = found["control_bytes"].as_u64().expect("a tenant's");
    // PicNIC's hardware has 5 kB.
    assert!((1_000..5_000).contains(&bytes), "{bytes}");
    assert_eq!(found["control_total_bytes"], 2 * bytes);
    let parts = found["control"].as_object().expect("parts").values();
    assert_eq!(parts.map(|part| part.as_u64().expect("bytes")).sum::<u64>(), bytes);
    assert_eq!(counted(&folder.write("q.yaml", WHAT_IF))["control_bytes"], 0);
    let shown = plimsoll(&["check", "--memory", &file]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("a tenant's control, as a receiver"));
}

#[test]
fn memory_counts_the_tables_of_heavy_hitters() {
    let folder = Folder::new("memory-heavy");
    let policy = "{uplink: {port: memory, rate: 1Gbps}, tenants: {a: {port: memory}}, backpressure: {}}";
    let (with, without) =
        (folder.write("p.yaml", policy), folder.write("q.yaml", policy.replace(", backpressure: {}", "")));
    let counted = |file: &str| -> serde_json::Value {
        let done = plimsoll(&["check", "--memory", "--json", file]);
        assert_eq!(done.status.code(), Some(0), "{}", err(&done));
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let found = counted(&with);
    let bytes = found["backpressure_bytes"].as_u64().expect("all tables");
    let parts = found["backpressure"].as_object().expect("parts").values();
    assert_eq!(parts.map(|part| part.as_u64().expect("bytes")).sum::<u64>(), bytes);
    // 131,072 slots and 262,144 flows, each with a key of some 40 B.
    assert!((20_000_000..60_000_000).contains(&bytes), "{bytes}");
    assert_eq!(counted(&without)["backpressure_bytes"], 0);
    let watched = policy.replace("{}", "{watch: engine, mode: mark, flows: 1000}");
    let more = counted(&folder.write("r.yaml", watched))["backpressure_bytes"].as_u64().expect("all tables");
    assert!(
        (bytes + 100_000..bytes + 10_000_000).contains(&more),
        "pressed flows and meters as well: {more}"
    );
    let shown = plimsoll(&["check", "--memory", &with]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("tables of backpressure"));
}

#[test]
fn memory_counts_programs_and_their_buffers_at_cores_of_their_own() {
    let folder = Folder::new("memory-programs");
    let policy = "{uplink: {port: memory, rate: 1Gbps}, engine: {cpu: 0}, tenants: {
        a: {port: memory, program: {module: p.wasm, memory: 4MiB, cpu: {cores: [1]}}}, b: {port: memory, program: {module: p.wasm}}}}";
    let module = "(module (memory (export \"memory\") 1) (func (export \"plimsoll_abi_1\"))
        (func (export \"ingress\") (param i32) (result i32) local.get 0))";
    let file = folder.write("p.yaml", policy);
    let module = wat::parse_str(module).expect("it is right");
    std::fs::write(std::path::Path::new(&file).with_file_name("p.wasm"), module).expect("written");
    let done = plimsoll(&["check", "--memory", "--json", &file]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    let found: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let programs = &found["programs"];
    assert_eq!(programs["memory that they state, at most"], 20 << 20);
    assert_eq!(programs["packets at cores of their own"], (256 + 128) * 2_048);
}

#[test]
fn the_version_tells_builds_apart() {
    let done = plimsoll(&["--version"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let rest = said.strip_prefix(&format!("plimsoll {}", env!("CARGO_PKG_VERSION"))).expect("the version");
    let build = rest.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    match (cfg!(debug_assertions), build) {
        (true, build) => assert_eq!(build, Some("debug build"), "{said}"),
        // Built from a checkout, or from an archive.
        (false, Some(commit)) => assert!(commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{said}"),
        (false, None) => assert_eq!(rest.trim(), "", "{said}"),
    }
}
