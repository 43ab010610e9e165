//! The API's description: what a daemon answers is what the description says, in both directions.
//!
//! Needs root (network namespaces), except for what `plimsoll schema api` prints. Everything made here is removed, whatever
//! happens.

use std::fs;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use plimsoll_daemon::openapi;
use serde_json::{Value, json};

use crate::support::fleet::{FEEDBACK, Fleet, PLAIN, inner};
use crate::support::{Daemon, PATIENCE, Stage, ip};

#[test]
fn the_description_is_printed_without_a_daemon() {
    let done =
        Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(["schema", "api"]).output().expect("started");
    assert!(done.status.success());
    let printed: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(&printed, openapi());
    let components = json!({ "$schema": SCHEMA, "$defs": printed["components"]["schemas"] });
    assert!(jsonschema::draft202012::meta::is_valid(&components), "components are JSON Schemas of 2020-12");
}

#[test]
fn a_daemon_answers_what_its_description_says() {
    let Some(stage) = Stage::with_netns("api", &["up", "shop", "batch"]) else { return };
    fs::write(stage.file("plimsoll.yaml"), policy(&stage)).expect("written");
    let _daemon = Daemon::start(None, &stage.file("plimsoll.yaml"), &[], &stage.file("log"));
    stage.until_it_answers();
    let (shop, far) = (Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 9));
    ip(&["-n", &stage.netns("shop"), "address", "add", &format!("{shop}/24"), "dev", "eth0"]);
    ip(&["-n", &stage.netns("up"), "address", "add", &format!("{far}/24"), "dev", "up0"]);
    stage.eventually("packets pass", || stage.ping("shop", far, 64));
    let _traffic = stage.traffic(("up", far), ("shop", shop), 7_000, 2_000);
    let socket = stage.file("api.sock");
    stage.eventually("flows are counted, and promises judged", || {
        let heavy = ask(&socket, "GET", "/v1/heavy").json();
        let slo = ask(&socket, "GET", "/v1/slo").json();
        heavy["flows"].as_array().is_some_and(|flows| !flows.is_empty())
            && slo["tenants"]["shop"]["seen"] != 0
    });

    let mut calls = 0;
    for (path, methods) in openapi()["paths"].as_object().expect("paths") {
        for (method, call) in methods.as_object().expect("calls") {
            let answer = ask(&socket, &method.to_uppercase(), &target(path, call));
            assert_eq!(answer.status, 200, "{method} {path}: {}", answer.body);
            check(path, call, &answer);
            refuses_what_it_does_not_know(&socket, method, path, call);
            calls += 1;
        }
    }
    assert!(calls >= 12, "only {calls} calls");
    let described = ask(&socket, "GET", "/v1").json();
    assert_eq!(&described, openapi());
    // Answers that the examples do not lead to.
    for (path, target, status) in [
        ("/v1/slo", "/v1/slo?window=3600s", 200),
        ("/v1/slo", "/v1/slo?window=2h", 400),
        ("/v1/explain", "/v1/explain", 200),
        ("/v1/explain", "/v1/explain?filter=tenant%3Dnone", 400),
        ("/v1/departures", "/v1/departures?last=70000", 200),
        ("/v1/audit", "/v1/audit", 200),
    ] {
        let answer = ask(&socket, "GET", target);
        assert_eq!(answer.status, status, "{target}: {}", answer.body);
        check(path, &openapi()["paths"][path]["get"], &answer);
    }
    // What a request names does not begin a line of the log or the audit, nor fill them.
    let long = "x".repeat(30_000);
    for query in [
        "class=x%0Aplimsoll:%20forged&rate=1Mbps",
        "class=x%0Aplimsoll:%20forged&rate=1%0Aplimsoll:%20forged",
    ] {
        assert!([400, 422].contains(&ask(&socket, "POST", &format!("/v1/rate?{query}")).status), "{query}");
    }
    assert_eq!(ask(&socket, "POST", &format!("/v1/rate?class={long}&rate=1Mbps")).status, 422);
    let log = stage.read("log");
    assert!(log.contains("forged") && !log.lines().any(|line| line.starts_with("plimsoll: forged")), "{log}");
    assert!(log.lines().all(|line| line.len() < 1_000), "{log}");
    let audit = ask(&socket, "GET", "/v1/audit").json();
    let details = audit["entries"].as_array().expect("entries").iter().map(|entry| &entry["detail"]);
    let refused: Vec<_> = details.filter_map(Value::as_str).filter(|text| text.contains("forged")).collect();
    assert!(refused.len() == 2 && refused.iter().all(|text| !text.contains('\n')), "{refused:?}");
    let rate = &openapi()["paths"]["/v1/rate"]["post"];
    let refused = ask(&socket, "POST", "/v1/rate?class=none&rate=1Mbps");
    assert_eq!(refused.status, 422);
    check("/v1/rate", rate, &refused);
    fs::write(stage.file("plimsoll.yaml"), "uplink: 1\n").expect("written");
    let refused = ask(&socket, "POST", "/v1/reload");
    assert_eq!(refused.status, 422);
    check("/v1/reload", &openapi()["paths"]["/v1/reload"]["post"], &refused);
}

#[test]
fn a_host_of_a_fleet_answers_what_the_description_says() {
    let Some(mut fleet) = Fleet::new("apf", &crate::support::fleet::Plan { rest: FEEDBACK, ..PLAIN }) else {
        return;
    };
    fleet.start();
    fleet.eventually("packets pass", || fleet.ping((0, 1), inner(2, 1), 64));
    fleet.eventually("the receiver's limit is known", || fleet.limited(0, (2, 1)));
    for host in [0, 2] {
        let stats: Value = fleet.client(host).get("/v1/stats").expect("counters");
        assert!(stats["fleet"]["hosts"].as_object().is_some_and(|hosts| !hosts.is_empty()), "{stats}");
        for path in ["/v1/stats", "/v1/health", "/v1/policy"] {
            let body = fleet.client(host).text("GET", path).expect("an answer");
            let answer = Reply { status: 200, kind: "application/json".to_owned(), body };
            check(path, &openapi()["paths"][path]["get"], &answer);
        }
    }
}

const SCHEMA: &str = "https://json-schema.org/draft/2020-12/schema";

/// A policy with a part of everything that answers show.
fn policy(stage: &Stage) -> String {
    let [up, shop, batch] = ["up", "shop", "batch"].map(|name| stage.netns(name));
    format!(
        "uplink: {{port: {{tap: {{netns: {up}, name: up0}}}}, rate: 1Gbps}}
api: {{socket: {}}}
tenants:
  shop: {{port: {{tap: {{netns: {shop}, name: eth0}}}}, addresses: [10.9.0.1], ingress: {{min: 10Mbps}}}}
  batch: {{port: {{tap: {{netns: {batch}, name: eth0}}}}, ecn: mediated}}
policy:
  root: {{priority: [tenants, rest]}}
  tenants: {{rate_share: {{shop: 400Mbps, batch: 200Mbps}}}}
  rest: {{}}
limits:
  all: {{rate: 800Mbps, match: {{tenant: [shop, batch]}}}}
backpressure: {{heavy: 500pps, watch: engine, rate: 4Mbps, mode: drop, threshold: 1%, release: 0.5%}}
",
        stage.file("api.sock").display()
    )
}

/// The path with the examples of its parameters.
fn target(path: &str, call: &Value) -> String {
    let parameters = call["parameters"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let given = parameters.filter(|parameter| parameter.get("example").is_some()).map(|parameter| {
        let name = parameter["name"].as_str().expect("a name");
        format!("{name}={}", plimsoll_daemon::query(&text(&parameter["example"])))
    });
    let query: Vec<String> = given.collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Checks an answer against its schema, in which no field is allowed that is not described.
fn check(path: &str, call: &Value, answer: &Reply) {
    let status = answer.status.to_string();
    let response = &call["responses"][&status];
    assert!(response.is_object(), "{path} may answer {status}, which is not described: {}", answer.body);
    let (kind, content) =
        response["content"].as_object().and_then(|kinds| kinds.iter().next()).expect("a body");
    assert!(answer.kind.starts_with(kind.as_str()), "{path}: {}, and not {kind}", answer.kind);
    if kind != "application/json" {
        return;
    }
    let mut schema = json!({
        "$schema": SCHEMA, "allOf": [content["schema"]], "components": openapi()["components"],
    });
    if path != "/v1" {
        close(&mut schema);
    }
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let value = answer.json();
    let wrong: Vec<String> =
        validator.iter_errors(&value).map(|wrong| format!("{}: {wrong}", wrong.instance_path())).collect();
    assert!(wrong.is_empty(), "{path}, {status}: {wrong:#?}");
    if let (Value::Object(mut fields), true) = (value, path != "/v1") {
        fields.insert("not_described".to_owned(), 1.into());
        assert!(
            !validator.is_valid(&fields.into()),
            "{path}: a field that is not described would not be found"
        );
    }
}

/// Lets objects have the fields that are described, and no others.
fn close(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        if fields
            .get("properties")
            .is_some_and(|properties| properties.get("type").is_none_or(Value::is_object))
        {
            fields.entry("additionalProperties").or_insert(false.into());
        }
        fields.values_mut().for_each(close);
    } else if let Some(items) = schema.as_array_mut() {
        items.iter_mut().for_each(close);
    }
}

/// Another method, and a parameter that is not described, are refused, with the reason as JSON.
fn refuses_what_it_does_not_know(socket: &Path, method: &str, path: &str, call: &Value) {
    let other = if method == "get" { "POST" } else { "GET" };
    let refused = ask(socket, other, path);
    assert!(refused.status == 405 && refused.json()["error"].is_string(), "{other} {path}: {}", refused.body);
    let refused = ask(socket, "GET", &format!("{path}/none"));
    assert!(refused.status == 404 && refused.json()["error"].is_string(), "{path}/none: {}", refused.body);
    if path != "/metrics" {
        let refused = ask(socket, &method.to_uppercase(), &format!("{path}?nonsense=1"));
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        check(path, call, &refused);
    }
}

/// An HTTP answer.
struct Reply {
    status: u16,
    /// Its content type.
    kind: String,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

fn ask(socket: &Path, method: &str, target: &str) -> Reply {
    let mut stream = UnixStream::connect(socket).expect("the socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    write!(stream, "{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let kind =
        head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default().to_owned();
    Reply { status, kind, body: body.to_owned() }
}
