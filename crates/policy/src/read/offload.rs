//! A tenant's `program`.

use std::path::PathBuf;

use plimsoll_document::{Located, Tree, Value, bad};
use plimsoll_units::Bytes;

use super::Reader;
use super::syntax::ProgramEntry;
use crate::keys::{MAX_WEIGHT, PROGRAM, PROGRAM_CPU, PROGRAM_UNITS};
use crate::offload::{Fails, StateKept, TenantProgram, UnitWeights};

/// Bounds of a program's memory: less holds no pool, and a gibibyte is what an operator still means.
const LEAST_MEMORY: Bytes = Bytes::new(2 << 20);
const MOST_MEMORY: Bytes = Bytes::new(1 << 30);
const MOST_UNIT_WEIGHT: u32 = 1_000;
/// As many as a batch has places.
const MOST_AMPLIFICATION: u32 = 64;

pub(super) fn program(reader: &mut Reader, tree: &Tree, what: &str) -> Option<ProgramEntry> {
    let what = format!("`program` of {what}");
    let keys = reader.fields(tree, tree.at, &what, &PROGRAM);
    let module = keys.get("module")?;
    let path = reader.text(module, "`module`", "the path of a WebAssembly module such as `cache.wasm`")?;
    let mut program = TenantProgram::of(PathBuf::from(path));
    if let Some(tree) = keys.get("memory") {
        let found: Option<Located<Bytes>> = reader.value(tree, "`memory`", "a size such as `16MiB`");
        program.memory = found.map_or(program.memory, |found| found.value);
        if !(LEAST_MEMORY..=MOST_MEMORY).contains(&program.memory) {
            let message = format!("`memory` of {what} is {}", program.memory);
            reader.report(bad(tree.at, message, "write 2MiB to 1GiB"));
        }
    }
    let core = keys.get("cpu").and_then(|tree| cpu(reader, tree, &what, &mut program));
    if let Some(tree) = keys.get("units") {
        let units = reader.fields(tree, tree.at, &format!("`units` of {what}"), &PROGRAM_UNITS);
        let mut weight = |unit: &str| {
            let stated = units.get(unit)?;
            reader
                .positive(stated, &format!("`{unit}` of `units`"), MOST_UNIT_WEIGHT)
                .map(|weight| weight.value)
        };
        let [deflate, aes, regex] = ["deflate", "aes", "regex"].map(|unit| weight(unit).unwrap_or(0));
        program.units = UnitWeights { deflate, aes, regex };
    }
    if let Some(tree) = keys.get("amplification") {
        let found = reader.positive(tree, "`amplification`", MOST_AMPLIFICATION);
        program.amplification = found.map_or(1, |found| found.value);
    }
    if let Some(tree) = keys.get("state") {
        program.state = match reader.text(tree, &format!("`state` of {what}"), "`keep` or `drop`") {
            Some("keep") => StateKept::Keep,
            Some("drop") | None => StateKept::Drop,
            Some(other) => {
                let help = "write `keep` (the program saves its state before another takes over), or `drop`";
                reader.report(bad(
                    tree.at,
                    format!("`{other}` is nothing that a reload does with a state"),
                    help,
                ));
                StateKept::Drop
            }
        };
    }
    if let Some(tree) = keys.get("fails") {
        program.fails = match reader.text(tree, &format!("`fails` of {what}"), "`closed` or `open`") {
            Some("open") => Fails::Open,
            Some("closed") | None => Fails::Closed,
            Some(other) => {
                let help = "write `closed` (once it was halted, its tenant's packets are lost), or `open` (they pass)";
                reader.report(bad(tree.at, format!("a program does not fail `{other}`"), help));
                Fails::Closed
            }
        };
    }
    Some(ProgramEntry { at: tree.at, program, core_at: core.map(|core| core.at) })
}

/// Its part of the engine's core, or a core of its own, which is the answer.
fn cpu(reader: &mut Reader, tree: &Tree, what: &str, program: &mut TenantProgram) -> Option<Located<u32>> {
    let what = format!("`cpu` of {what}");
    let cpu = reader.fields(tree, tree.at, &what, &PROGRAM_CPU);
    let weight = cpu.get("weight").and_then(|tree| reader.positive(tree, "`weight` of `cpu`", MAX_WEIGHT));
    program.cpu = weight.map(|weight| weight.value);
    let cores = cpu.get("cores")?;
    if cpu.get("weight").is_some() {
        let help = "leave one of them out: a program has a part of the engine's core, or a core of its own";
        reader.report(bad(cores.at, format!("{what} has `weight` and `cores`"), help));
        return None;
    }
    let Value::List(listed) = &cores.value else {
        // A single number could be a count as well as a core.
        let message = format!("`cores` of {what} is no list");
        reader.report(bad(cores.at, message, "write the core's number in a list, such as `[2]`"));
        return None;
    };
    let [one] = &listed[..] else {
        let message = format!("`cores` of {what} lists {} cores", listed.len());
        let help = "write one, such as `[2]`: a program has one memory, in which one core can work at a time";
        reader.report(bad(cores.at, message, help));
        return None;
    };
    let core = reader.value::<u32>(one, "`cores` of `cpu`", "the number of a core, from 0")?;
    program.core = Some(core.value);
    Some(core)
}
