//! Errors: any text gives a program or an error, and errors say where, what, and what to do.

use plimsoll_rank::{Error, Interpreter, MOST_BYTES, Packet, Program};
use proptest::prelude::*;

use crate::kit::programs;

/// Parses, and checks that an error lies in the text.
fn parse(text: &str) -> Result<Program, Error> {
    let parsed = Program::parse(text);
    if let Err(error) = &parsed {
        let lines = text.split('\n').count();
        assert!((1..=lines).contains(&error.line), "{error}");
        assert!((1..=error.source_line.chars().count() + 2).contains(&error.column), "{error}");
        assert!(!error.to_string().is_empty());
    }
    parsed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_text_panics(text in "(?s).{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    /// Words of the language in any order.
    #[test]
    fn no_order_of_words_panics(words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..60)) {
        let _ = parse(&words.join(" "));
    }

    /// Legal programs, of which some bytes were changed, removed or doubled, still give a program that compiles, or an error.
    #[test]
    fn no_mutation_panics(
        text in programs(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..6),
    ) {
        let mut bytes = text.into_bytes();
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte & 0x7f,
                1 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        if let Ok(program) = parse(&String::from_utf8_lossy(&bytes)) {
            let _ = program.compile();
        }
    }
}

const WORDS: [&str; 30] = [
    "state",
    "enqueue",
    "dequeue",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "class",
    "=",
    "==",
    "rank",
    "now",
    "packet.len",
    "x",
    "y",
    "1",
    "0",
    "if",
    "else",
    "let",
    "min",
    "max",
    ",",
    "+",
    "!",
    "&&",
    ";",
    "#",
];

#[test]
fn errors_say_where_what_and_what_to_do() {
    let shown = |text: &str| Program::parse(text).expect_err(text).to_string();
    let text = "state v = 0\nenqueue {\n  rank = v + size\n}";
    let expected = "3:14: `size` is not known here; declare it with `state size = 0` or `let size = ...`\n   \
                    3 |   rank = v + size\n     |              ^";
    assert_eq!(shown(text), expected);
    for (text, place, part) in [
        ("", "1:1", "add `enqueue { rank = ... }`"),
        ("enqueue { }", "1:11", "assign `rank` on each path"),
        ("enqueue { if now { rank = 1 } }", "1:31", "assign `rank` on each path"),
        ("enqueue { if rank { rank = 1 } }", "1:14", "`rank` has no value yet"),
        ("enqueue { rank = packet.size }", "1:18", "`packet.remaining`"),
        ("enqueue { rank = packet.rank }", "1:18", "read `rank` in `enqueue`"),
        ("enqueue { rank = 1 } dequeue { rank = 2 }", "1:32", "`packet.rank` in `dequeue`"),
        ("enqueue { rank = 1 < 2 < 3 }", "1:24", "`<` where a statement or `}` is expected"),
        ("enqueue { rank = 1 } enqueue { rank = 1 }", "1:22", "declared already"),
        ("state v = 0 state v = 1", "1:19", "declared already"),
        ("state now = 0", "1:7", "choose another name"),
        ("state v[class] = 0 enqueue { rank = v }", "1:37", "write `v[class]`"),
        ("state v = 0 enqueue { rank = v[class] }", "1:30", "write `v`"),
        ("enqueue { now = 1 }", "1:11", "can only be read"),
        ("enqueue { rank = 18446744073709551616 }", "1:18", "the largest is 18446744073709551615"),
        ("enqueue { rank = 1 € 2 }", "1:20", "is not part of the language"),
        ("enqueue { { rank = 1 } }", "1:11", "a statement or `}`"),
        ("enqueue { if now { let x = 1 } rank = x }", "1:39", "`x` is not known here"),
        ("enqueue { rank = (1", "1:20", "the end of the text where an operator or `)` is expected"),
        ("\u{feff}enqueue { rank = 1 }", "1:1", "\\u{feff}"),
    ] {
        let shown = shown(text);
        assert!(shown.starts_with(place) && shown.contains(part), "{text}\n{shown}");
    }
}

#[test]
fn sizes_are_bounded() {
    let refused = |text: &str, part: &str| {
        let error = parse(text).expect_err("too large").to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&" ".repeat(MOST_BYTES + 1), "16385 bytes");
    refused(&format!("enqueue {{ rank = {}", "(".repeat(16_000)), "nest deeper than 32");
    refused(&format!("enqueue {{ rank = {}", "!".repeat(16_000)), "nest deeper than 32");
    refused(&format!("enqueue {{ {}", "if 1 { ".repeat(2_000)), "nest deeper than 32");
    refused(&format!("enqueue {{ {}", "if 1 { } else ".repeat(1_000)), "nest deeper than 32");
    refused(&(0..17).map(|n| format!("state v{n} = 0 ")).collect::<String>(), "more than 16 state variables");
    let locals: String = (0..33).map(|n| format!("let v{n} = 0 ")).collect();
    refused(&format!("enqueue {{ {locals} rank = 1 }}"), "more than 32 variables");
}

/// A long sum does not nest: it takes no more stack than a short one.
#[test]
fn long_sums_are_no_deeper() {
    let program = parse(&format!("enqueue {{ rank = 1{} }}", " + 1".repeat(4_000))).expect("legal");
    assert_eq!(Interpreter::new(program.into(), 1).enqueue(&Packet::default()), 4_001);
}
