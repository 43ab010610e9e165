//! Debian's Prometheus with the rules and the board of `dist/`, against a daemon.
//!
//! Needs Prometheus (`scripts/prometheus.sh`) and root (network namespaces). Everything made here is removed, whatever happens.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use plimsoll_daemon::{
    EngineNumbers, FleetStats, FlowStats, StandbyStats, Stats, WatchedRow, prometheus_page,
};
use serde_json::Value;

use crate::support::{Daemon, PATIENCE, Stage, ip, skip};

/// The port of the daemon's metrics, and that of Prometheus, in a namespace of their own.
const METRICS: u16 = 9_464;
const PROMETHEUS: u16 = 9_090;

fn dist(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name)
}

fn rules() -> PathBuf {
    dist("prometheus/plimsoll.rules.yml")
}

/// A program of Prometheus: the installed one, or the one that `scripts/prometheus.sh` has unpacked.
fn program(name: &str) -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("prometheus").join(name);
    let places = [PathBuf::from(name), unpacked];
    let runs = |place: &PathBuf| {
        Command::new(place).arg("--version").output().is_ok_and(|done| done.status.success())
    };
    places.into_iter().find(runs)
}

/// Whether Prometheus is there.
fn is_there() -> bool {
    let both = program("prometheus").is_some() && program("promtool").is_some();
    if !both {
        skip("there is no Prometheus: `scripts/prometheus.sh target/prometheus` fetches it");
    }
    both
}

fn promtool(words: &[&str], input: &str) -> (bool, String) {
    let mut command = Command::new(program("promtool").expect("looked for before"));
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let done = child.wait_with_output().expect("it ends");
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Every name that the metrics page can have.
fn all_metrics() -> BTreeSet<String> {
    let watched = WatchedRow {
        what: "engine".to_owned(),
        measured: true,
        overloaded: false,
        top: Some(0.5),
        overloads: 0,
        started: 0,
        ended: 0,
        marked: 0,
        left: 0,
    };
    let flows = FlowStats { heavy: 0, slowed_down: 0, counted: 0, unlisted: 0, watched: Some(watched) };
    let engine = EngineNumbers { no_core: Some(0.0), ..EngineNumbers::default() };
    let (fleet, flows) = (Some(FleetStats::default()), Some(flows));
    let standby = Some(StandbyStats::default());
    let page = prometheus_page(&Stats { engine, fleet, flows, standby, ..Stats::default() });
    let mut names = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a name and a kind");
        match kind {
            "histogram" => names.extend(["bucket", "sum", "count"].map(|part| format!("{name}_{part}"))),
            "summary" => names.extend(["sum", "count"].map(|part| format!("{name}_{part}"))),
            _ => drop(names.insert(name.to_owned())),
        }
    }
    names
}

/// The names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("plimsoll_")).map(str::to_owned).collect()
}

#[test]
fn rules_and_board_use_metrics_that_there_are() {
    let all = all_metrics();
    for file in [rules(), dist("grafana/plimsoll.json")] {
        let used = metrics_in(&fs::read_to_string(&file).expect("in the checkout"));
        assert!(used.len() >= 15, "{}: {used:?}", file.display());
        let unknown: Vec<_> = used.difference(&all).collect();
        assert!(unknown.is_empty(), "{}: no such metrics: {unknown:?}", file.display());
    }
    let page = metrics_in(&fs::read_to_string(dist("../docs/watch.md")).expect("docs/watch.md"));
    // A page names a histogram without what its series end in.
    let known = |name: &String| all.contains(name) || all.contains(&format!("{name}_bucket"));
    let unknown: Vec<_> = page.iter().filter(|name| !known(name)).collect();
    assert!(page.len() >= 8 && unknown.is_empty(), "docs/watch.md: no such metrics: {unknown:?}");
    let board: Value =
        serde_json::from_str(&fs::read_to_string(dist("grafana/plimsoll.json")).expect("a board"))
            .expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    let drawn = panels.iter().filter(|panel| panel["type"] != "row");
    assert!(drawn.clone().count() > 15);
    assert!(
        drawn.clone().all(|panel| panel["targets"].as_array().is_some_and(|targets| !targets.is_empty()))
    );
}

#[test]
fn each_rule_fires_on_a_host_where_all_is_wrong_and_none_on_a_host_in_health() {
    if !is_there() {
        return;
    }
    let rules = rules().canonicalize().expect("in the checkout");
    let (well, said) = promtool(&["check", "rules", &rules.display().to_string()], "");
    assert!(well, "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    let test = folder.path().join("rules.test.yml");
    let text = include_str!("prometheus/rules.test.yml").replace("RULES", &rules.display().to_string());
    fs::write(&test, &text).expect("written");
    let (well, said) = promtool(&["test", "rules", &test.display().to_string()], "");
    assert!(well, "{said}");
    let alerts = fs::read_to_string(&rules).expect("rules");
    let alerts = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let missing: Vec<_> = alerts.filter(|alert| !text.contains(&format!("\"{alert}\""))).collect();
    assert!(missing.is_empty(), "not tested: {missing:?}");
}

#[test]
fn prometheus_reads_a_daemon_and_evaluates_each_rule() {
    if !is_there() {
        return;
    }
    let Some(stage) = Stage::with_netns("pro", &["up", "shop", "mon"]) else { return };
    fs::write(stage.file("plimsoll.yaml"), policy(&stage)).expect("written");
    let _daemon =
        Daemon::start(Some(&stage.netns("mon")), &stage.file("plimsoll.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let (shop, far) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 9));
    ip(&["-n", &stage.netns("shop"), "address", "add", &format!("{shop}/24"), "dev", "eth0"]);
    ip(&["-n", &stage.netns("up"), "address", "add", &format!("{far}/24"), "dev", "up0"]);
    stage.eventually("packets pass", || stage.ping("shop", far, 64));

    let scrape = get(&stage, METRICS, "/metrics");
    let (well, said) = promtool(&["check", "metrics"], &scrape);
    assert!(well && said.is_empty(), "promtool check metrics: {said}");
    let unknown: Vec<_> = metrics_in(&scrape).difference(&all_metrics()).cloned().collect();
    assert!(
        unknown.iter().all(|name| scrape.contains(&format!("# TYPE {name} histogram"))
            || scrape.contains(&format!("# TYPE {name} summary"))),
        "{unknown:?}"
    );

    let _prometheus = start_prometheus(&stage);
    let query = |expression: &str| {
        let answer =
            get(&stage, PROMETHEUS, &format!("/api/v1/query?query={}", plimsoll_daemon::query(expression)));
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    };
    stage.eventually("the daemon is scraped", || {
        query(r#"up{job="plimsoll"}"#).first().is_some_and(|up| up["value"][1] == "1")
    });
    let counted = query(r#"plimsoll_port_rx_packets_total{port="shop"} > 0"#);
    assert_eq!(counted.len(), 1, "the tenant's packets are counted: {counted:?}");
    stage.eventually("each rule is evaluated", || {
        let rules = all_rules(&get(&stage, PROMETHEUS, "/api/v1/rules"));
        let wrong: Vec<_> = rules.iter().filter(|rule| rule["health"] == "err").collect();
        assert!(wrong.is_empty(), "{wrong:?}");
        rules.len() >= 15 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    for expression in board_expressions() {
        let target = format!("/api/v1/query?query={}", plimsoll_daemon::query(&expression));
        let answer: Value = serde_json::from_str(&get(&stage, PROMETHEUS, &target)).expect("JSON");
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
    }

    // A tenant's namespace goes, and the alert about its port begins.
    ip(&["netns", "del", &stage.netns("shop")]);
    stage.eventually("the alert about the port is pending", || {
        let alerts = query(r#"ALERTS{alertname="PlimsollPortDown", port="shop", alertstate="pending"}"#);
        alerts.len() == 1
    });
}

fn policy(stage: &Stage) -> String {
    let [up, shop] = ["up", "shop"].map(|name| stage.netns(name));
    format!(
        "uplink: {{port: {{tap: {{netns: {up}, name: up0}}}}, rate: 1Gbps}}
api: {{socket: {}, metrics: 127.0.0.1:{METRICS}}}
tenants:
  shop: {{port: {{tap: {{netns: {shop}, name: eth0}}}}, min: 10Mbps, max: 500Mbps}}
limits:
  all: {{rate: 800Mbps, match: {{tenant: shop}}}}
backpressure: {{heavy: 500pps, watch: engine, rate: 4Mbps, mode: drop}}
",
        stage.file("api.sock").display()
    )
}

/// Starts Prometheus in the daemon's namespace; it ends when this is dropped.
fn start_prometheus(stage: &Stage) -> Daemon {
    let rules = rules().canonicalize().expect("in the checkout");
    let config = format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}}
rule_files: [{}]
scrape_configs:
  - {{job_name: plimsoll, static_configs: [{{targets: ['127.0.0.1:{METRICS}']}}]}}
",
        rules.display()
    );
    fs::write(stage.file("prometheus.yml"), config).expect("written");
    let mut command =
        stage.command("mon", &program("prometheus").expect("looked for before").display().to_string());
    command.arg(format!("--config.file={}", stage.file("prometheus.yml").display()));
    command.arg(format!("--storage.tsdb.path={}", stage.file("prometheus").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{PROMETHEUS}"));
    command.env("GOMAXPROCS", "1");
    Daemon::spawn(command, &stage.file("prometheus.log"))
}

fn all_rules(answer: &str) -> Vec<Value> {
    let answer: Value = serde_json::from_str(answer).unwrap_or_default();
    let groups = answer["data"]["groups"].as_array().cloned().unwrap_or_default();
    groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
}

/// The board's queries, with Grafana's variables filled in.
fn board_expressions() -> Vec<String> {
    let board: Value =
        serde_json::from_str(&fs::read_to_string(dist("grafana/plimsoll.json")).expect("a board"))
            .expect("JSON");
    let panels = board["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default());
    let filled = |text: &str| text.replace("$instance", ".*").replace("$__rate_interval", "1m");
    targets.map(|target| filled(target["expr"].as_str().expect("a query"))).collect()
}

/// The body of an answer to `GET target`, asked inside the daemon's namespace; empty without an answer.
fn get(stage: &Stage, port: u16, target: &str) -> String {
    let request = format!("GET {target} HTTP/1.0\r\nHost: x\r\n\r\n");
    let ask = move || {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE.min(Duration::from_secs(5)))).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    };
    stage.inside("mon", ask).join().expect("asked").unwrap_or_default()
}

#[test]
fn rules_and_board_are_installed() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = dist("../scripts/install.sh");
    let destdir = folder.path().display().to_string();
    let done = Command::new("sh")
        .arg(&script)
        .args([env!("CARGO_BIN_EXE_plimsoll"), &destdir, "/usr/local", "/usr/local/lib/systemd/system"])
        .output()
        .expect("sh runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let place = |name: &str| folder.path().join("usr/local").join(name);
    for name in ["plimsoll.rules.yml", "plimsoll.json", "openapi.json"] {
        assert!(place("share/plimsoll").join(name).exists(), "{name}");
    }
    let unit = fs::read_to_string(place("lib/systemd/system/plimsoll.service")).expect("the unit");
    assert!(unit.contains("ExecStart=/usr/local/bin/plimsoll run") && place("bin/plimsoll").exists());
    // Under it no program of a tenant's could be compiled (tried: "failed to make memory executable").
    assert!(!unit.contains("MemoryDenyWriteExecute=yes"), "programs run as a service, too");
}
