//! Answers of a process that reads a tenant's file: the input's first line is the file's text, the rest the answer, of
//! a process that an attacker may have taken over.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_document::{FileId, Sources, Tree, Value, answer, understand};

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(input.len());
    let Ok(text) = std::str::from_utf8(&input[..end]) else { return };
    let sources = Sources::one("t.yaml", text);
    let rest = input.get(end + 1..).unwrap_or_default();
    let Ok(read) = understand(rest, &sources, FileId(0)) else { return };
    if let Ok(tree) = &read {
        inspect(tree, text, 0);
    }
    // An answer that was understood can be written again, and is read back as it was.
    let mut again = Vec::new();
    answer(&read, &mut again).expect("memory takes it");
    let back = understand(&again, &sources, FileId(0)).expect("ours is understood");
    assert_eq!(format!("{read:?}"), format!("{back:?}"));
});

/// Asserts what the checks behind it rely on: places inside the text, and no tree deeper than a file allows.
fn inspect(tree: &Tree, text: &str, depth: usize) {
    assert!(depth <= 24, "as deep as a file may be");
    assert!(text.get(tree.at.range()).is_some(), "{:?} is no place in the text", tree.at);
    match &tree.value {
        Value::Null | Value::Text(_) => {}
        Value::List(items) => items.iter().for_each(|item| inspect(item, text, depth + 1)),
        Value::Map(entries) => entries.iter().for_each(|(key, value)| {
            assert!(text.get(key.at.range()).is_some(), "{:?} is no place in the text", key.at);
            inspect(value, text, depth + 1);
        }),
    }
}
