//! The API's description, as an OpenAPI 3.1 document.
//!
//! Why: programs that call the API, and its reference page, need the calls and the shape of each answer.
//! From: the table of calls, and JSON Schemas that are derived from the types of queries and answers.
//! Not here: the reference page (the docs' tests write `docs/api.md` from this document).
//! Invariant: every `$ref` leads to a schema of the document.

use std::sync::OnceLock;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::answers::Refusal;
use super::calls::{Answer, CALLS, Call, Method};

/// The description of the API as an OpenAPI 3.1 document.
///
/// ```
/// let document = plimsoll_daemon::openapi();
/// assert_eq!(document["openapi"], "3.1.0");
/// assert!(document["paths"]["/v1/health"]["get"]["responses"]["200"].is_object());
/// ```
#[must_use]
pub fn openapi() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(document)
}

fn document() -> Value {
    let here = |settings: &mut SchemaSettings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    };
    let mut answers = SchemaSettings::draft2020_12().for_serialize().with(here).into_generator();
    let queries = SchemaSettings::draft2020_12().for_deserialize().with(here);
    let mut queries = queries.with(|settings| settings.inline_subschemas = true).into_generator();
    let refusal = answers.subschema_for::<Refusal>();
    let mut paths = Map::new();
    for call in CALLS {
        let operation = operation(call, &mut queries, &mut answers, refusal.as_value());
        let method = match call.method {
            Method::Get => "get",
            Method::Post => "post",
        };
        paths.insert(call.path.to_owned(), json!({ method: operation }));
    }
    let mut schemas = answers.take_definitions(true).into();
    tidy(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "Plimsoll",
            "summary": "What a running daemon tells, and what may be changed in it.",
            "description": "The daemon serves this API over HTTP/1.1 on a Unix socket, `/run/plimsoll/api.sock` unless \
                `api.socket` of the policy file names another. The socket's owner and group may use it. Answers may get \
                further fields in later versions.",
            "license": { "name": "Apache License 2.0", "identifier": "Apache-2.0" },
            "version": env!("CARGO_PKG_VERSION"),
        },
        "servers": [{ "url": "http://localhost", "description": "The Unix socket; the name of the host does not matter." }],
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn operation(
    call: &Call,
    queries: &mut SchemaGenerator,
    answers: &mut SchemaGenerator,
    refusal: &Value,
) -> Value {
    let (summary, description) = call.about.split_once("\n\n").unwrap_or((call.about, ""));
    let content = match call.answer {
        Answer::Json(describe) => json!({ "application/json": { "schema": describe(answers) } }),
        Answer::Metrics => json!({ "text/plain": { "schema": { "type": "string" } } }),
    };
    let mut responses = json!({ "200": { "description": "The answer.", "content": content } });
    for (status, when) in call.refusals {
        let content = json!({ "application/json": { "schema": refusal } });
        responses[status.to_string()] = json!({ "description": when, "content": content });
    }
    json!({
        "operationId": call.name,
        "summary": summary,
        "description": description,
        "parameters": call.query.map_or_else(Vec::new, |describe| parameters(describe(queries).into())),
        "responses": responses,
    })
}

/// The fields of a query's schema as parameters.
fn parameters(query: Value) -> Vec<Value> {
    let required = |name: &str| {
        query["required"].as_array().is_some_and(|names| names.iter().any(|needed| needed == name))
    };
    let fields = query["properties"].as_object().into_iter().flatten();
    let parameter = |(name, schema): (&String, &Value)| {
        let mut schema = schema.clone();
        let mut take = |key: &str| schema.as_object_mut().and_then(|schema| schema.remove(key));
        let about = take("description").unwrap_or_default();
        let example = take("examples").and_then(|examples| examples.get(0).cloned());
        let mut parameter = json!({
            "name": name, "in": "query", "required": required(name), "description": about, "schema": schema,
        });
        if let Some(example) = example {
            parameter["example"] = example;
        }
        parameter
    };
    fields.map(parameter).collect()
}

/// Takes out of descriptions what only a reader of the code understands: links between items, and marks of papers' claims.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "description" => *text = plain(text),
                    other => tidy(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn plain(text: &str) -> String {
    let text = text.replace("[`", "`").replace("`]", "`");
    let mut parts = text.split(" (MI-");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references<'d>(value: &'d Value, found: &mut BTreeSet<&'d str>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_schema_is_used() {
        let document = openapi();
        let mut found = BTreeSet::new();
        references(document, &mut found);
        assert!(found.len() > 30, "{found:?}");
        for reference in &found {
            let place = reference.strip_prefix('#').expect("a place in this document");
            assert!(document.pointer(place).is_some(), "{reference} leads nowhere");
        }
        for name in document["components"]["schemas"].as_object().expect("schemas").keys() {
            assert!(found.contains(format!("#/components/schemas/{name}").as_str()), "{name} is not used");
        }
    }

    #[test]
    fn calls_have_a_path_and_a_name_of_their_own_and_parameters_are_explained() {
        let [paths, names] = [|call: &Call| call.path, |call: &Call| call.name]
            .map(|of| CALLS.iter().map(of).collect::<BTreeSet<_>>().len());
        assert_eq!([paths, names], [CALLS.len(); 2]);
        let paths = openapi()["paths"].as_object().expect("paths").values();
        let calls: Vec<&Value> = paths.flat_map(|path| path.as_object().expect("calls").values()).collect();
        assert_eq!(calls.len(), CALLS.len());
        let parameters = calls.iter().flat_map(|call| call["parameters"].as_array().expect("a list"));
        for parameter in parameters {
            assert!(parameter["description"].as_str().is_some_and(|about| !about.is_empty()), "{parameter}");
            let given = parameter["required"] == true || !parameter["schema"]["default"].is_null();
            assert!(given, "neither required nor with a default: {parameter}");
        }
    }

    #[test]
    fn no_call_is_served_beside_the_table() {
        // The router of all calls is made from the table; that of the metrics' address has one of its paths.
        let code = include_str!("../api.rs");
        let routes: Vec<&str> =
            code.split(".route(").skip(1).filter_map(|rest| rest.split(',').next()).collect();
        assert_eq!(routes, ["call.path", r#""/metrics""#]);
        assert!(CALLS.iter().any(|call| call.path == "/metrics"));
    }

    #[test]
    fn every_field_of_an_answer_is_explained() {
        for (name, schema) in openapi()["components"]["schemas"].as_object().expect("schemas") {
            for (field, about) in schema["properties"].as_object().into_iter().flatten() {
                assert!(about["description"].is_string(), "{name}.{field}: {about}");
            }
        }
    }

    #[test]
    fn descriptions_are_for_readers_of_the_reference() {
        assert_eq!(plain("See [`Press::MOST`] (MI-M9, M10), or not."), "See `Press::MOST`, or not.");
    }
}
