//! The policies of the reference and the examples are legal or refused, as they say.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use plimsoll_document::Trial;
use plimsoll_policy::{
    ControlLevel, FileId, Files, HOST_FILE, INCLUDED_FILE, Law, SUB_FILE, bounds, check_files, check_str,
    check_with, describe_match, included_schema, load, schema, sub_schema,
};
use plimsoll_units::Span;
use serde_json::Value;

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
    for name in ["plimsoll", "figure1", "envelopes", "wan-limits", "strict-rates"] {
        let path = root().join(format!("examples/{name}.yaml"));
        let checked =
            load(&path.to_string_lossy()).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        assert!(checked.warnings.is_empty(), "{}", checked.render_warnings(false));
    }
}

/// The packets that reach a class which matches on metadata, or why none can.
fn class_by(tenants: &[&str], matches: &str) -> Result<Vec<String>, String> {
    let names: String = tenants.iter().map(|tenant| format!(", {}", &tenant[..1])).collect();
    let text = format!(
        "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{{}}}, policy: {{root: {{wfq: [own{names}]}}, own: \
         {{match: {{{matches}}}}}}}}}",
        tenants.join(", ")
    );
    match check_str("p.yaml", &text) {
        Ok(checked) => Ok((checked.program.rules.iter())
            .filter(|rule| checked.program.node(rule.class).name == "own")
            .map(|rule| describe_match(&checked.program, &rule.matches))
            .collect()),
        Err(errors) => Err(errors.problems()[0].message.clone()),
    }
}

#[test]
fn a_match_on_metadata_is_refused_where_no_port_fills_it() {
    const VNIC: &[&str] = &["a: {port: {vnic: /run/a.sock}}"];
    const TAP: &[&str] = &["a: {port: {tap: {name: a0}}}"];
    for field in ["priority", "cgroup", "user", "app", "core"] {
        let own = format!("tenant: a, {field}: 1");
        let found = class_by(VNIC, &own).expect("a client says it");
        assert_eq!(found.len(), 1, "{found:?}");
        let why = class_by(TAP, &own).unwrap_err();
        assert_eq!(why, format!("no packet matches class `own`: the port of tenant `a` fills no `{field}`"));
        let why = class_by(TAP, &format!("{field}: 1")).unwrap_err();
        assert!(why.ends_with(&format!("no port of this policy fills `{field}`")), "{why}");
        let why = class_by(VNIC, &format!("{field}: 1")).unwrap_err();
        assert!(why.contains("names no tenant"), "{why}");
    }
}

#[test]
fn what_the_operator_states_of_a_tenant_decides_its_matches() {
    let tenants = &[
        "a: {port: {tap: {name: a0}}, cgroup: 100, user: 1}",
        "b: {port: memory, user: 1}",
        "c: {port: memory}",
    ];
    assert_eq!(
        class_by(tenants, "vlan: 5, user: [1, 2]").expect("two have it"),
        ["tenant=a vlan=5", "tenant=b vlan=5"]
    );
    assert_eq!(class_by(tenants, "cgroup: 100, user: 1, dst_port: 80").expect("one").len(), 1);
    assert_eq!(
        class_by(tenants, "tenant: [a, c], vlan: 5, cgroup: 100").expect("one of them"),
        ["tenant=a vlan=5"]
    );
    assert!(class_by(tenants, "tenant: a, user: 2").unwrap_err().ends_with("the `user` of tenant `a` is 1"));
    // A client does not say what the operator states, and nothing is left to be said.
    let own =
        class_by(&["a: {port: {vnic: /run/a.sock}, user: 7}"], "tenant: a, user: 7, app: 3").expect("legal");
    assert_eq!(own, ["tenant=a app=3"]);
}

/// A policy whose class `g` is reached by tenants `a` and `b`, and has the queues `q` and `r`.
fn queues_of_two(a: &str, b: &str, g: &str, q: &str) -> Result<Vec<String>, String> {
    let text = format!(
        "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{a: {{{a}}}, b: {{{b}}}}}, policy: {{root: {{wfq: [g, a, \
         b]}}, g: {{match: {g}, queues: {{q: {{match: {{{q}}}}}, r: {{}}}}}}}}}}"
    );
    match check_str("p.yaml", &text) {
        Ok(checked) => Ok((checked.program.rules.iter())
            .filter(|rule| checked.program.node(rule.class).name == "g/q")
            .map(|rule| describe_match(&checked.program, &rule.matches))
            .collect()),
        Err(errors) => {
            Err(errors.problems().iter().map(|problem| format!("{}\n", problem.message)).collect())
        }
    }
}

#[test]
fn a_match_below_a_class_of_several_tenants_may_be_for_one_of_them() {
    let (vnic, memory) = ("port: {vnic: /run/a.sock}", "port: memory");
    let both = "{tenant: [a, b], dst_port: 80}";
    assert_eq!(queues_of_two(vnic, memory, both, "app: 1").expect("a says it").len(), 1);
    assert_eq!(
        queues_of_two(memory, memory, both, "app: 1").unwrap_err(),
        "no packet matches class `g/q`: the port of tenant `b` fills no `app`\n"
    );
    // All packets of `a` are of user 1, and none of `b`'s.
    let [first, second] = ["port: memory, user: 1", "port: memory, user: 2"];
    assert_eq!(queues_of_two(first, second, both, "user: 1").expect("those of a").len(), 1);
    let third = queues_of_two(first, second, both, "user: 3").unwrap_err();
    assert_eq!(third, "no packet matches class `g/q`: the `user` of tenant `b` is 2\n");
    // The match of the queue names one of the tenants.
    assert_eq!(queues_of_two(memory, memory, both, "tenant: b").expect("those of b").len(), 1);
    assert_eq!(
        queues_of_two(memory, memory, both, "dst_port: 22").unwrap_err(),
        "no packet that reaches this file matches class `g/q`\n"
    );
    // All of both tenants' packets are in `q`, so `r` gets none.
    let none_left = queues_of_two(first, "port: memory, user: 1", both, "user: 1").unwrap_err();
    assert!(none_left.contains("`g/r`"), "{none_left}");
}

#[test]
fn envelopes_are_guaranteed_what_the_reference_says() {
    let checked = load(&root().join("examples/envelopes.yaml").to_string_lossy()).expect("legal");
    let rates: Vec<Option<u64>> =
        bounds(&checked.program).iter().map(|bound| bound.guaranteed.map(|rate| rate.get())).collect();
    assert_eq!(rates, [Some(6_000_000_000), Some(4_000_000_000), None]);
}

#[test]
fn rounds_that_a_limit_interrupts_are_promised_what_weighted_fair_queueing_keeps() {
    let delays = |order: &str, max: &str| {
        let classes: Vec<String> = (0..20)
            .map(|n| format!("  c{n}: {{match: {{tenant: t, dst_port: {}}}{max}}}\n", n + 1))
            .collect();
        let names: Vec<String> = (0..20).map(|n| format!("c{n}: 1")).collect();
        let text = format!(
            "uplink: {{port: memory, rate: 10Gbps}}\ntenants: {{t: {{port: memory}}}}\npolicy:\n  root: {{{order}: {{{}}}}}\n{}",
            names.join(", "),
            classes.join("")
        );
        let checked = check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        bounds(&checked.program).iter().map(|bound| bound.delay).collect::<Vec<_>>()
    };
    assert_eq!(delays("drr", ", max: 1Gbps"), delays("wfq", ", max: 1Gbps"));
    assert_ne!(delays("drr", ""), delays("wfq", ""));
}

#[test]
fn a_maximum_at_a_node_adds_no_frame_for_each_class_below_it() {
    let delay = |below: u32| {
        let names: Vec<String> = (0..below).map(|n| format!("c{n}: 1")).collect();
        let classes: Vec<String> =
            (0..below).map(|n| format!("  c{n}: {{match: {{tenant: t, dst_port: {}}}}}\n", n + 1)).collect();
        let text = format!(
            "uplink: {{port: memory, rate: 10Gbps}}\ntenants: {{t: {{port: memory}}}}\npolicy:\n  root: {{priority: [held, last]}}\n  \
             last: {{match: {{tenant: t, dst_port: 1000}}, flows: fifo}}\n  held: {{wfq: {{{}}}, max: 1Gbps}}\n{}",
            names.join(", "),
            classes.join("")
        );
        let checked = check_str("p.yaml", &text).unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        let found = bounds(&checked.program).into_iter().find(|bound| bound.name == "last").expect("a class");
        found.delay.expect("bounded by what the maximum leaves")
    };
    assert_eq!(delay(30), delay(2));
}

#[test]
fn an_experiment_says_what_is_worse_and_contradicts_nothing() {
    let check = |engine: &str, rest: &str| {
        let text = format!(
            "uplink: {{port: memory, rate: 1Gbps}}\nengine: {{descriptors: 1000, {engine}}}\n\
             tenants: {{a: {{port: memory, descriptors: 200}}, b: {{port: memory}}}}\n{rest}"
        );
        check_str("p.yaml", &text).map_err(|errors| errors.render(false))
    };
    let own = check("experiment: {drain: 52us, cost: 76us, slots: 32}", "").expect("legal");
    let experiment = own.config.engine.experiment.as_ref().expect("stated");
    assert_eq!((experiment.drain, experiment.cost), (Span::micros(52), Span::micros(76)));
    assert!(own.program.tenants.iter().all(|tenant| tenant.slo.slots == 32));
    assert_eq!(own.program.tenants[0].descriptors, 200);
    let shared = check("experiment: {accounting: false}", "").expect("legal");
    assert!(shared.program.tenants.iter().all(|tenant| tenant.descriptors == 1_000));
    let open = check("experiment: {limiter: false}", "").expect("legal").config.engine.experiment;
    let open = open.expect("stated");
    assert!(!open.limiter && open.accounting);

    let overlay = "overlay: {kind: geneve, vni: 7, host: h, hosts: {h: {address: 192.0.2.1, \
                   tenants: {a: 02:00:00:00:0a:01, b: 02:00:00:00:0a:02}}}, feedback: {key: /k, control: CONTROL}}\n";
    let bandwidth =
        check("experiment: {cost: 1us}", &overlay.replace("CONTROL", "bandwidth")).expect("legal");
    let feedback = bandwidth.config.overlay.expect("stated").feedback.expect("stated");
    assert_eq!(feedback.control, ControlLevel::Bandwidth);
    for (engine, control, said) in [
        ("experiment: {ingress: shared}", "full", "`ingress: shared` keeps no tenant's frames apart"),
        ("experiment: {ingress: mixed}", "full", "`mixed` is no order on the way in"),
        ("experiment: {cost: 1s}", "full", "`cost` is 1s a frame"),
        ("experiment: {slots: 0}", "full", "`slots` of `experiment` is zero"),
        ("ring: 64", "none", "`none` is nothing that senders could be told"),
        ("ring: 64", "full, idle: gone", "`gone` is nothing to do with an idle tenant's `min`"),
    ] {
        let shown = check(engine, &overlay.replace("CONTROL", control)).expect_err("wrong");
        assert!(shown.contains(said), "{shown}");
    }
}

/// The properties of a mapping in a schema.
fn properties<'s>(schema: &'s Value, mapping: &str, root: &str) -> Vec<&'s String> {
    let object = if mapping == root { schema } else { &schema["$defs"][mapping] };
    object["properties"].as_object().expect("a mapping of the schema").keys().collect()
}

/// The operator's file, and the text of every file that it names or includes.
struct Named<'a>(&'a str, &'a str);

impl Files for Named<'_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        Ok(if name == "p.yaml" { self.0 } else { self.1 }.to_owned())
    }

    fn folder(&mut self, name: &str) -> Result<Vec<String>, String> {
        Ok(vec![format!("{name}/t.yaml")])
    }
}

#[test]
fn a_key_is_read_if_and_only_if_it_is_in_the_schema() {
    let operator = "uplink: {port: memory, rate: 1Gbps}\n";
    let (including, naming) = ("include: d\n", "tenants: {a: {port: memory, policy: t.yaml}}\n");
    let tables = [
        (&HOST_FILE, schema(), false),
        (&SUB_FILE, sub_schema(), true),
        (&INCLUDED_FILE, included_schema(), true),
    ];
    for (table, schema, named) in tables {
        let mut tried: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let operator =
            operator.to_owned() + if table.name == INCLUDED_FILE.name { including } else { naming };
        for Trial { key: (mapping, key), text, place } in table.trials() {
            let mut files = Named(if named { &operator } else { &text }, &text);
            let errors = check_files("p.yaml", &mut files).expect_err("a value that can stand nowhere");
            let file = FileId(named.into());
            let refused = errors
                .problems()
                .iter()
                .any(|problem| problem.at.file == file && place.contains(&(problem.at.offset as usize)));
            assert!(refused, "`{key}` of {mapping} is passed over:\n{text}{}", errors.render(false));
            tried.entry(mapping).or_default().insert(key);
        }
        let objects = schema["$defs"].as_object().expect("definitions").iter();
        let objects = objects.filter(|(_, schema)| schema.get("properties").is_some());
        let untried: Vec<_> =
            objects.map(|(name, _)| name).filter(|name| !tried.contains_key(name.as_str())).collect();
        assert!(untried.is_empty(), "{untried:?}");
        for (mapping, keys) in tried {
            let known = properties(&schema, mapping, table.name);
            assert!(
                known.iter().all(|key| keys.contains(key.as_str()) || *key == "memory"),
                "{mapping}: {keys:?}"
            );
            assert_eq!(
                keys.iter().filter(|key| !known.contains(&&(**key).to_owned())).count(),
                1,
                "{mapping}"
            );
        }
    }
}

/// Whether `value` satisfies `schema`: the part of JSON Schema 2020-12 that ours uses, patterns left out.
fn satisfies(schema: &Value, value: &Value, whole: &Value) -> bool {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix('#').and_then(|path| whole.pointer(path));
        return target.is_some_and(|target| satisfies(target, value, whole));
    }
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    let count =
        |key: &str| list(key).map(|all| all.iter().filter(|one| satisfies(one, value, whole)).count());
    let kinds = match schema.get("type") {
        Some(Value::String(kind)) => vec![kind.as_str()],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    };
    (kinds.is_empty() || kinds.into_iter().any(is))
        && count("anyOf").is_none_or(|fits| fits > 0)
        && count("oneOf").is_none_or(|fits| fits == 1)
        && list("enum").is_none_or(|values| values.contains(value))
        && schema.get("const").is_none_or(|wanted| wanted == value)
        && value.as_array().is_none_or(|items| {
            schema.get("items").is_none_or(|each| items.iter().all(|item| satisfies(each, item, whole)))
                && schema
                    .get("minItems")
                    .and_then(Value::as_u64)
                    .is_none_or(|least| items.len() as u64 >= least)
        })
        && value.as_object().is_none_or(|object| fits_object(schema, object, whole))
}

fn fits_object(schema: &Value, object: &serde_json::Map<String, Value>, whole: &Value) -> bool {
    let known = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let others = schema.get("additionalProperties");
    let closed = others == Some(&Value::Bool(false))
        || schema.get("unevaluatedProperties") == Some(&Value::Bool(false));
    // The only keys that a pattern describes are percentiles: `p99`, `p99.9`.
    let percentile = |key: &str| key.strip_prefix('p').is_some_and(|rest| rest.parse::<f64>().is_ok());
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let by_pattern = |key: &str| patterns?.values().next().filter(|_| percentile(key));
    let property = |key: &str| known.and_then(|known| known.get(key)).or_else(|| by_pattern(key));
    let fits = |(key, value): (&String, &Value)| match (property(key), others) {
        (Some(property), _) => satisfies(property, value, whole),
        (None, Some(each)) if each.is_object() => satisfies(each, value, whole),
        (None, _) => !closed,
    };
    object.iter().all(fits)
        && required
            .is_none_or(|keys| keys.iter().filter_map(Value::as_str).all(|key| object.contains_key(key)))
}

#[test]
fn the_schema_accepts_the_examples_and_refuses_what_is_misspelt() {
    let (host, sub) = (schema(), sub_schema());
    let read = |name: &str| -> Value {
        let text = std::fs::read_to_string(root().join("examples").join(name)).expect("an example");
        serde_saphyr::from_str(&text).expect("YAML")
    };
    let hosts = ["plimsoll", "figure1", "envelopes", "fleet-host", "wan-limits", "strict-rates"];
    for name in hosts.map(|name| format!("{name}.yaml")) {
        assert!(satisfies(&host, &read(&name), &host), "{name}");
        let checked = load(&root().join("examples").join(&name).to_string_lossy());
        checked.unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    }
    for name in ["shop.yaml", "figure1-vm1.yaml", "figure1-kvs.yaml"] {
        assert!(satisfies(&sub, &read(name), &sub), "{name}");
    }
    let mut wrong = read("plimsoll.yaml");
    wrong["tenants"]["shop"]["wieght"] = 3.into();
    assert!(!satisfies(&host, &wrong, &host), "an unknown key");
    let mut wrong = read("plimsoll.yaml");
    wrong["policy"]["mgmt"]["match"]["dst_prot"] = 80.into();
    assert!(!satisfies(&host, &wrong, &host), "an unknown condition");
    let mut wrong = read("plimsoll.yaml");
    wrong["policy"]["mgmt"]["match"]["dst_port"] = serde_json::json!([]);
    assert!(!satisfies(&host, &wrong, &host), "an empty list");
}
