//! Modules of tenants' programs, and what their instructions cost.

use std::path::Path;

use plimsoll_scenario::{Form, ProgramCost, Scenario, UnitCost};
use plimsoll_units::{BitRate, Bytes, Frequency, Span};

const TEXT: &str = "{name: t, rate: 1Gbps, duration: 1s, systems: [plimsoll, other: {kind: plimsoll, tenants: {b: {program: {module: b.wasm}}}}],
    hosts: {a: {programs: {frequency: 2.4GHz, cycles_per_instruction: 3}}},
    tenants: {a: {host: a, program: {module: a.wasm}}, b: {host: a}},
    workloads: {w: {tenant: a, kind: bulk}}}";

#[test]
fn modules_are_read_from_beside_the_scenario() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let read = || Scenario::parse(TEXT, "t.yaml", folder.path(), Form::Virtual).expect("a scenario");
    std::fs::write(folder.path().join("a.wasm"), "bytes").expect("written");
    let missing = read().read_modules().expect_err("there is no b.wasm").render(false);
    assert!(missing.contains("b.wasm cannot be read") && missing.contains("t.yaml:1:"), "{missing}");
    assert!(!missing.contains("a.wasm cannot"), "{missing}");

    std::fs::write(folder.path().join("b.wasm"), "others").expect("written");
    let mut scenario = read();
    scenario.read_modules().unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let bytes = |name: &str| scenario.modules[&folder.path().join(name)].bytes.clone();
    assert_eq!((&*bytes("a.wasm"), &*bytes("b.wasm")), (&b"bytes"[..], &b"others"[..]));

    std::fs::remove_file(folder.path().join("b.wasm")).expect("removed");
    std::fs::create_dir(folder.path().join("b.wasm")).expect("made");
    let said = read().read_modules().expect_err("a folder is no module").render(false);
    assert!(said.contains("it is no regular file"), "{said}");
}

#[test]
fn a_module_may_be_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = TEXT.replace("a.wasm", "a.wat").replace("b.wasm", "a.wat");
    let read = || Scenario::parse(&text, "t.yaml", folder.path(), Form::Virtual).expect("a scenario");
    std::fs::write(folder.path().join("a.wat"), "(module)").expect("written");
    let mut scenario = read();
    scenario.read_modules().unwrap_or_else(|errors| panic!("{}", errors.render(false)));
    let module = &scenario.modules[&folder.path().join("a.wat")];
    assert_eq!(&*module.bytes, b"\0asm\x01\0\0\0");
    std::fs::write(folder.path().join("a.wat"), "(module\n  (fun))").expect("written");
    let said = read().read_modules().expect_err("there is no `fun`").render(false);
    assert!(said.contains("a.wat cannot be read") && said.contains("fun"), "{said}");
}

#[test]
fn instructions_cost_cycles() {
    let scenario = Scenario::parse(TEXT, "t.yaml", Path::new(""), Form::Virtual).expect("a scenario");
    let cost = scenario.hosts[0].programs;
    let units = UnitCost::MEASURED;
    assert_eq!(cost, ProgramCost { frequency: Frequency::mhz(2_400), cycles: 3, units });
    assert_eq!((cost.time(8), cost.time(1)), (Span::ns(10), Span::ns(2)));
    assert_eq!(cost.instructions_in(Span::micros(500)), 400_000);
    assert_eq!(ProgramCost::default().time(3_000_000), Span::millis(1));
    let slow = ProgramCost { frequency: Frequency::new(1).expect("above zero"), cycles: 1_000, units };
    assert_eq!(slow.instructions_in(Span::micros(500)), 1, "each call may begin");
}

#[test]
fn a_coprocessor_that_is_stated_takes_what_is_stated() {
    let stated = "programs: {units: {aes: {engines: 4, time: 100ns, rate: 8Gbps}, regex: {time: 1us}}}";
    let text = TEXT.replace("programs: {frequency: 2.4GHz, cycles_per_instruction: 3}", stated);
    let scenario = Scenario::parse(&text, "t.yaml", Path::new(""), Form::Virtual).expect("a scenario");
    let [deflate, aes, regex] = scenario.hosts[0].programs.units;
    assert_eq!(deflate, UnitCost::MEASURED[0], "it is not stated");
    assert_eq!(aes, UnitCost { engines: 4, time: Span::ns(100), rate: Some(BitRate::gbps(8)) });
    assert_eq!(aes.time_of(Bytes::new(1_000)), Span::ns(1_100));
    assert_eq!((regex.engines, regex.time_of(Bytes::new(1_000))), (1, Span::micros(1)));
}
