//! `docs/logs.md` has every line that the daemon logs, and `docs/watch.md` every alert.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout")
}

#[test]
fn the_page_on_the_log_has_every_line() {
    let page = fs::read_to_string(root().join("docs/logs.md")).expect("docs/logs.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    let mut messages = Vec::new();
    sources(&root().join("crates/daemon/src"), &mut |file, text| {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        messages.extend(literals(code, "eprintln!("));
        if file.ends_with("dataplane/press/news.rs") {
            messages.extend(literals(between(code, "fn line(", "fn several("), "format!("));
        }
        if file.ends_with("dataplane/apart.rs") {
            let display = between(code, "Display for Whither", "How a lane has behaved");
            messages.extend(["f,", "f.write_str("].iter().flat_map(|before| literals(display, before)));
        }
    });
    assert!(messages.len() > 45, "only {} messages were found", messages.len());
    let missing: Vec<&String> =
        messages.iter().filter(|message| !rows.iter().any(|row| has(row, message))).collect();
    assert!(missing.is_empty(), "not in docs/logs.md: {missing:#?}");
}

#[test]
fn the_page_on_what_to_watch_has_every_alert() {
    let page = fs::read_to_string(root().join("docs/watch.md")).expect("docs/watch.md");
    let rules = fs::read_to_string(root().join("dist/prometheus/plimsoll.rules.yml")).expect("rules");
    let mut alerts = rules.split("- alert: ").skip(1).peekable();
    assert!(alerts.peek().is_some());
    for alert in alerts {
        let name = alert.lines().next().unwrap_or_default();
        let severity = between(alert, "severity: ", "}").trim_start_matches("severity: ");
        assert!(page.contains(&format!("| `{name}` | {severity} |")), "docs/watch.md: {name}, {severity}");
    }
}

/// Whether a row of the page has all of a message but what is filled in.
fn has(row: &str, message: &str) -> bool {
    let message = message.trim_start_matches("plimsoll: ").replace('`', "");
    let row = row.replace('`', "");
    let mut parts = message.split('{').map(|part| part.split_once('}').map_or(part, |(_, rest)| rest));
    // A name that says whose port it is may be filled in at either end.
    parts.all(|part| row.contains(part.trim()))
}

/// The string literals that follow `before`, as they are printed.
fn literals(code: &str, before: &str) -> Vec<String> {
    let after = code.split(before).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    after.map(literal).filter(|text| text.chars().any(char::is_alphabetic)).collect()
}

/// The rest of a string literal; a line that ends in a backslash goes on with the next word.
fn literal(code: &str) -> String {
    let mut text = String::new();
    let mut chars = code.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => {
                let rest = chars.as_str();
                chars = if rest.starts_with('\n') { rest.trim_start() } else { &rest[1..] }.chars();
            }
            c => text.push(c),
        }
    }
    text
}

fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let start = text.find(from).unwrap_or(text.len());
    let rest = &text[start..];
    &rest[..rest.find(to).unwrap_or(rest.len())]
}

/// Reads every source file below a folder that is not for tests alone.
fn sources(folder: &Path, read: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, read);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            read(&path, &fs::read_to_string(&path).expect("a readable file"));
        }
    }
}
