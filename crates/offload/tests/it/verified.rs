//! Modules that are refused, with the reason and the place.

use plimsoll_offload::{Limits, verify};
use proptest::prelude::*;

use crate::support::{ALL, binary, ingress, text};

fn refused(text: &str) -> String {
    verify(&binary(text), &Limits::default()).expect_err("it is refused").to_string()
}

#[test]
fn a_module_that_a_host_cannot_run_is_refused_with_the_reason() {
    let marker = "(func (export \"plimsoll_abi_1\"))";
    let memory = "(memory (export \"memory\") 1)";
    let works = "(func (export \"ingress\") (param i32) (result i32) (i32.const 0))";
    for (text, reason) in [
        (
            format!("(module (import \"env\" \"memcpy\" (func (param i32))) {memory} {marker} {works})"),
            "it imports `env.memcpy`",
        ),
        (
            text(&format!("{works} (table 1 funcref) (table 1 funcref)")),
            "it has 2 tables, and a program may have 1",
        ),
        (text(&format!("{works} (func (param externref))")), "gc types are disallowed"),
        (
            text(&format!("{works} (func (local {0})) (func (local {0}))", "i64 ".repeat(40_000))),
            "it has 80000 local variables, and a program may have 65536",
        ),
        (text(&format!("{works} (func {})", "(drop (i32.const 1))".repeat(30_000))), "bytes in a function"),
        (text(&format!("{works} {}", "(func)".repeat(4_100))), "it has 4102 functions"),
        (text(&format!("{works} {}", "(global i32 (i32.const 0))".repeat(1_025))), "it has 1025 globals"),
        (text(&format!("{works} (elem func {})", "0 ".repeat(4_097))), "it has 4097 elements"),
        (format!("(module {marker} {works})"), "it exports no memory"),
        (format!("(module (memory 1) {marker} {works})"), "it exports no memory"),
        (format!("(module {memory} {works})"), "it does not export `plimsoll_abi_1`"),
        (text(""), "neither `ingress` nor `egress`"),
        (
            text("(func (export \"ingress\") (param i64) (result i32) (i32.const 0))"),
            "`ingress` must take [I32] and return [I32]",
        ),
        (text(&format!("{works} (func (export \"init\"))")), "`init` must take [] and return [I32]"),
        (text(&format!("{works} (func $s) (start $s)")), "it has a start function"),
        (
            text(&format!("{works} (table 5000 funcref)")),
            "it has 5000 entries in its table, and a program may have 4096",
        ),
        (format!("(module (memory (export \"memory\") 250) {marker} {works})"), "state a larger `memory`"),
        (format!("(module (memory (export \"memory\") 1 3) {marker} {works})"), "a larger `--max-memory`"),
    ] {
        let told = refused(&text);
        assert!(told.contains(reason), "{told}");
    }
    let long = vec![0; (1 << 20) + 1];
    let told = verify(&long, &Limits::default()).expect_err("too long").to_string();
    assert_eq!(told, "it has 1048577 bytes, and a program may have 1048576");
}

#[test]
fn the_place_of_what_is_wrong_is_told() {
    let mut module = binary(&ingress(ALL));
    // `i32.load offset=8` with an alignment that there is not.
    let load = module.windows(3).position(|bytes| bytes == [0x28, 2, 8]).expect("it is there");
    module[load + 1] = 0x20;
    let told = verify(&module, &Limits::default()).expect_err("it is invalid").to_string();
    assert!(told.starts_with("function `ingress`: ") && told.contains(&format!("{:#x}", load + 1)), "{told}");
}

#[test]
fn a_report_says_what_a_module_consists_of() {
    let text = ingress(&format!(
        "(block $b (loop $l (br_if $b (i32.const 1)) (br $l))) (drop (call_indirect (type $t) (i32.const 0))) {ALL}"
    ));
    let text = text.replacen("(module", "(module (type $t (func (result i32))) (table 8 funcref)", 1);
    let report = verify(&binary(&text), &Limits::default()).expect("it is right");
    assert_eq!((report.functions, report.loops, report.indirect_calls), (2, 1, 1));
    assert_eq!((report.memory, report.most_memory, report.table_entries), (65_536, None, 8));
    assert_eq!(report.exports, ["plimsoll_abi_1", "ingress"]);
    assert!(report.instructions > 8 && report.bytes > 40, "{report:?}");
}

proptest! {
    /// Bytes that are no module, or nearly one, are refused or pass; they never make this crate panic.
    #[test]
    fn no_bytes_make_it_panic(at in 0_usize..200, byte: u8, cut in 0_usize..200, noise: Vec<u8>) {
        let _ = verify(&noise, &Limits::default());
        let mut module = binary(&ingress(ALL));
        let len = module.len();
        module[at % len] = byte;
        let _ = verify(&module, &Limits::default());
        module.truncate(cut % len);
        let _ = verify(&module, &Limits::default());
    }
}
