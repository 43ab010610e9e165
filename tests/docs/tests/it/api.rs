//! `docs/api.md`, the reference of the API, is what the API's own description says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use plimsoll_daemon::openapi;
use serde_json::{Map, Value};

/// How to write the page anew.
const WRITE: &str = "UPDATE_GOLDEN=1 cargo test -p plimsoll-docs --test it api::";

#[test]
fn the_reference_of_the_api_is_what_the_api_describes() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&file, &page).expect("a page that can be written");
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    let differs = written.lines().zip(page.lines()).find(|(written, now)| written != now);
    assert!(written == page, "docs/api.md is not what the API describes ({differs:?}); run `{WRITE}`");
}

fn page() -> String {
    let document = openapi();
    let mut page = INTRODUCTION.replace("WRITE", WRITE);
    for (path, methods) in sorted(&document["paths"]) {
        for (method, call) in sorted(methods) {
            section(&mut page, path, method, call);
        }
    }
    page.push_str(END);
    for (name, schema) in sorted(&document["components"]["schemas"]) {
        let _ = write!(page, "\n### {name}\n\n");
        described(&mut page, schema);
    }
    page
}

/// One call: what it does, its parameters, an example, and its answers.
fn section(page: &mut String, path: &str, method: &str, call: &Value) {
    let method = method.to_uppercase();
    let _ = write!(page, "\n## {}\n\n`{method} {path}`\n", text(&call["summary"]));
    if !text(&call["description"]).is_empty() {
        let _ = write!(page, "\n{}\n", text(&call["description"]));
    }
    let parameters = call["parameters"].as_array().expect("a list");
    if !parameters.is_empty() {
        page.push_str("\n| parameter | type | default | meaning |\n| --- | --- | --- | --- |\n");
    }
    for parameter in parameters {
        let schema = &parameter["schema"];
        let default = match (&parameter["required"], &schema["default"]) {
            (Value::Bool(true), _) => "none: it is needed".to_owned(),
            (_, Value::String(text)) if text.is_empty() => "empty".to_owned(),
            (_, default) => format!("`{}`", text(default)),
        };
        let (name, about) = (text(&parameter["name"]), text(&parameter["description"]));
        let _ = writeln!(page, "| `{name}` | {} | {default} | {about} |", kind(schema));
    }
    let _ = write!(page, "\n```console root\n$ {}\n{}\n```\n", curl(path, &method, parameters), shown(call));
    page.push_str("\n| status | answer |\n| --- | --- |\n");
    for (status, response) in sorted(&call["responses"]) {
        let answer = match (status, sorted(&response["content"])[0]) {
            ("200", ("application/json", body)) => kind(&body["schema"]),
            ("200", (other, _)) => format!("`{other}`"),
            (_, (_, body)) => format!("{} {}", text(&response["description"]), kind(&body["schema"])),
        };
        let _ = writeln!(page, "| {status} | {answer} |");
    }
}

/// The example of a call, with the examples of its parameters.
fn curl(path: &str, method: &str, parameters: &[Value]) -> String {
    let given = parameters.iter().filter(|parameter| parameter.get("example").is_some());
    let pairs = given.map(|parameter| (text(&parameter["name"]), text(&parameter["example"])));
    let start = "curl -sS --fail-with-body --unix-socket ./api.sock";
    if method == "GET" {
        let data: String = pairs.map(|(name, value)| format!(" --data-urlencode '{name}={value}'")).collect();
        let get = if data.is_empty() { "" } else { " -G" };
        format!("{start}{get}{data} http://localhost{path}")
    } else {
        let pairs: Vec<String> = pairs.map(|(name, value)| format!("{name}={value}")).collect();
        format!("{start} -X {method} 'http://localhost{path}?{}'", pairs.join("&"))
    }
}

/// What the example shows.
fn shown(call: &Value) -> &'static str {
    match call["operationId"].as_str() {
        Some("audit") => r#"{...,"who":"user 0, process ..."#,
        Some("describe") => r#"{..."openapi":"3.1.0"..."#,
        Some("explain") => r#"{"class":"tenants/shop",..."#,
        Some("health") => r#"{"status":"ok","lost_ports":[],"incomplete_ports":{},"uplink_down":false,..."#,
        Some("heavy") => r#"{"over":...,"flows":[],..."#,
        Some("metrics") => "plimsoll_port_up{port=\"shop\"} 1\n...",
        Some("policy") => r#"{...,"default_class":"rest",..."#,
        Some("rate") => r#"{"class":"tenants/shop","before":"300Mbps","rate":"400Mbps"}"#,
        Some("reload") => r#"{"generation":2,..."#,
        Some("slo") => r#"{...,"tenants":{"batch":...,"shop":..."#,
        Some("stats") => r#"{"uptime":...,"generation":...,"link":1000000000,..."#,
        _ => "...",
    }
}

/// A type: its description, and its fields or values.
fn described(page: &mut String, schema: &Value) {
    let about = text(&schema["description"]);
    let (first, rest) = about.split_at(about.chars().next().map_or(0, char::len_utf8));
    let _ = writeln!(page, "{}{rest}", first.to_uppercase());
    if let Some(variants) = schema["oneOf"].as_array() {
        page.push_str("\n| value | meaning |\n| --- | --- |\n");
        for variant in variants {
            let about = text(&variant["description"]);
            let values = variant["enum"].as_array().into_iter().flatten().chain(variant.get("const"));
            for value in values {
                let _ = writeln!(page, "| `{}` | {about} |", text(value));
            }
            for (key, of) in sorted(&variant["properties"]) {
                let _ = writeln!(page, "| an object with `{key}`: {} | {about} |", kind(of));
            }
        }
    } else if schema["properties"].is_object() {
        page.push_str("\n| field | type | meaning |\n| --- | --- | --- |\n");
        let needed = schema["required"].as_array().cloned().unwrap_or_default();
        for (field, of) in sorted(&schema["properties"]) {
            let absent = if needed.iter().any(|name| name == field) { "" } else { "; may be absent" };
            let _ = writeln!(page, "| `{field}` | {}{absent} | {} |", kind(of), text(&of["description"]));
        }
    } else {
        let pattern = schema["pattern"].as_str();
        let matching = pattern.map_or_else(String::new, |pattern| format!(" that matches `{pattern}`"));
        let _ = writeln!(page, "\nA {}{matching}.", kind(schema));
    }
}

/// A type in a few words.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(either) = schema["anyOf"].as_array() {
        return either.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(kinds) = schema["type"].as_array() {
        let one = |kind: &Value| {
            let mut schema = schema.as_object().cloned().unwrap_or_default();
            schema.insert("type".to_owned(), kind.clone());
            self::kind(&Value::Object(schema))
        };
        return kinds.iter().map(one).collect::<Vec<_>>().join(" or ");
    }
    match schema["type"].as_str() {
        Some("array") => match schema["prefixItems"].as_array() {
            Some(items) => format!("[{}]", items.iter().map(kind).collect::<Vec<_>>().join(", ")),
            None => format!("list of {}", kind(&schema["items"])),
        },
        Some("object") => match &schema["additionalProperties"] {
            of @ Value::Object(_) => format!("object of {} by name", kind(of)),
            _ => "object".to_owned(),
        },
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        // A description of several lines is one cell of a table, or one paragraph.
        Value::String(text) => text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|"),
        other => other.to_string(),
    }
}

/// The fields of an object by name: whether `serde_json` keeps their order depends on what else is built.
fn sorted(value: &Value) -> Vec<(&str, &Value)> {
    let fields = value.as_object().map(Map::iter).into_iter().flatten();
    let sorted: BTreeMap<&str, &Value> = fields.map(|(key, value)| (key.as_str(), value)).collect();
    sorted.into_iter().collect()
}

const INTRODUCTION: &str = r#"# API

A running daemon answers HTTP/1.1 on a Unix socket: `/run/plimsoll/api.sock`, or what `api.socket` of the policy file names.
The commands `plimsoll stats`, `top`, `reload`, `explain` and so on ask there, and other programs can ask the same. The
permissions of the socket's file decide who may: its owner and group.

This page says what each call does, takes and answers. `GET /v1`, and `plimsoll schema api` without a daemon, give the same as an
OpenAPI 3.1 document, from which clients can be generated. This page is written from that document, which is derived from the
code; do not edit it (`WRITE` writes it).

- Answers are JSON, except for `/metrics`. Within `/v1` an answer may get further fields, and a call further parameters;
  clients should ignore fields that they do not know.
- Times with a unit in their name (`_ns`, `_us`) are whole numbers of it; other times are seconds, and delays are microseconds,
  unless a field's meaning says otherwise. Rates are bits per second, or text with a unit.
- A request that is refused has another status than 200 and a body with the reason, [Refusal](#refusal). A path that is no call
  has status 404, a method that a path does not take 405.
- The socket takes 256 connections at once ([operations.md](operations.md#watch-it)). Counters are read at most twenty times a
  second; requests in between get the same numbers.

The examples ask the daemon of this policy:

```yaml policy file=plimsoll.yaml
uplink: {port: {tap: {netns: api-world, name: uplink}}, rate: 1Gbps}
api:    {socket: ./api.sock}
tenants:
  shop:  {port: {tap: {netns: api-shop,  name: eth0}}}
  batch: {port: {tap: {netns: api-batch, name: eth0}}}
policy:
  root:    {priority: [tenants, rest]}
  tenants: {rate_share: {shop: 300Mbps, batch: 200Mbps}}
  rest:    {}
backpressure: {heavy: 10kpps}
```

```console root
$ ip netns add api-world && ip netns add api-shop && ip netns add api-batch
$ plimsoll run plimsoll.yaml >run.log 2>&1 & echo $! >run.pid
$ for i in $(seq 100); do plimsoll stats --socket ./api.sock >/dev/null 2>&1 && break; sleep 0.1; done; sleep 1.5
$ plimsoll reload --socket ./api.sock >/dev/null
$ curl -sS --fail-with-body --unix-socket ./api.sock http://localhost/v1/nonsense # exit 22
{"error":"no call is GET /v1/nonsense; GET /v1 describes those there are"}
```
"#;

const END: &str = "
```console root
$ kill -TERM $(cat run.pid) && sleep 1
$ ip netns del api-world && ip netns del api-shop && ip netns del api-batch
```

## Types

In a type, `null` stands for what is not known or does not apply.
";
