//! Programs of tenants, in WebAssembly's text.

use std::path::Path;
use std::process::Command;

use plimsoll_scenario::{ModuleFile, Scenario};

/// A module that exports the function `way`, which does `body` with each `$packet` of the batch.
pub fn each(way: &str, body: &str) -> String {
    format!(
        r#"(module
            (memory (export "memory") 1)
            (func (export "plimsoll_abi_1"))
            (func $each (export "{way}") (param $batch i32) (result i32)
                (local $packet i32) (local $end i32) (local $n i32) (local $frame i32)
                (local.set $packet (i32.add (local.get $batch) (i32.const 16)))
                (local.set $end (i32.add (local.get $packet)
                    (i32.mul (i32.const 32) (i32.load offset=8 (local.get $batch)))))
                (block $done (loop $next
                    (br_if $done (i32.ge_u (local.get $packet) (local.get $end)))
                    (local.set $frame (i32.load (local.get $packet)))
                    {body}
                    (local.set $packet (i32.add (local.get $packet) (i32.const 32)))
                    (br $next)))
                (i32.load offset=8 (local.get $batch))))"#
    )
}

/// Drops the packet.
pub const DROP: &str = "(i32.store8 offset=16 (local.get $packet) (i32.const 1))";

/// Never ends.
pub const ENDLESS: &str = "(loop $for_ever (br $for_ever))";

/// Makes a UDP packet over IPv4 256 bytes long.
pub const RESIZE: &str = "(i32.store offset=4 (local.get $packet) (i32.const 256))
    (i32.store16 offset=16 (local.get $frame) (i32.const 0xf200))
    (i32.store16 offset=38 (local.get $frame) (i32.const 0xde00))";

/// Sends a UDP packet over IPv4 back to where it came from.
pub const REFLECT: &str = "(local.set $n (i32.load offset=26 (local.get $frame)))
    (i32.store offset=26 (local.get $frame) (i32.load offset=30 (local.get $frame)))
    (i32.store offset=30 (local.get $frame) (local.get $n))
    (i32.store offset=34 (local.get $frame) (i32.rotl (i32.load offset=34 (local.get $frame)) (i32.const 16)))
    (i32.store16 offset=16 (local.get $packet) (i32.const 2))";

/// Counts down from a number, six instructions each time.
pub fn count_down(from: u32) -> String {
    format!(
        "(local.set $n (i32.const {from}))
        (loop $again
            (local.set $n (i32.sub (local.get $n) (i32.const 1)))
            (br_if $again (local.get $n)))"
    )
}

/// Sends a UDP packet over IPv4 to a coprocessor with the operation of this number, and lets it go on when it is back, with the length that it
/// has then. The argument lies at address 8.
pub fn call(operation: u8) -> String {
    format!(
        "(if (i32.lt_u (i32.load8_u offset=17 (local.get $packet)) (i32.const 128))
            (then
                (i32.store8 offset=16 (local.get $packet) (i32.const 3))
                (i32.store8 offset=17 (local.get $packet) (i32.const {operation}))
                (i32.store16 offset=18 (local.get $packet) (i32.const 42))
                (i32.store offset=20 (local.get $packet) (i32.const 8)))
            (else
                (local.set $n (i32.sub (i32.load offset=4 (local.get $packet)) (i32.const 14)))
                (i32.store16 offset=16 (local.get $frame)
                    (i32.or (i32.shr_u (local.get $n) (i32.const 8)) (i32.shl (local.get $n) (i32.const 8))))
                (local.set $n (i32.sub (local.get $n) (i32.const 20)))
                (i32.store16 offset=38 (local.get $frame)
                    (i32.or (i32.shr_u (local.get $n) (i32.const 8)) (i32.shl (local.get $n) (i32.const 8))))))"
    )
}

/// Gives a scenario the modules that it names.
pub fn with(mut scenario: Scenario, modules: &[(&str, &str)]) -> Scenario {
    for (path, text) in modules {
        let bytes = wat::parse_str(text).unwrap_or_else(|error| panic!("{error}"));
        let file = ModuleFile { bytes: bytes.into(), ..ModuleFile::default() };
        scenario.modules.insert(path.into(), file);
    }
    scenario
}

/// Compiles a program in C of `examples/programs`, as its users do.
pub fn compiled(name: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let module = folder.path().join("module.wasm");
    let built = Command::new("clang")
        .args(["--target=wasm32", "-O2", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry", "-I"])
        .arg(root.join("sdk/c"))
        .arg("-o")
        .args([&module, &root.join("examples/programs").join(name).with_extension("c")])
        .output()
        .expect("clang and lld, which scripts/setup.sh installs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::read(&module).expect("clang has written it")
}

/// A module that sends copies of the first packet of a batch that leaves, as many as it may.
pub const MULTIPLY: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "plimsoll_abi_1"))
    (func (export "egress") (param $batch i32) (result i32) (local $n i32) (local $copy i32)
        (local.set $n (i32.load offset=8 (local.get $batch)))
        (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $n) (i32.load offset=12 (local.get $batch))))
            (local.set $copy (i32.add (i32.add (local.get $batch) (i32.const 16))
                (i32.mul (i32.const 32) (local.get $n))))
            (memory.copy (i32.load (local.get $copy)) (i32.load offset=16 (local.get $batch))
                (i32.load offset=20 (local.get $batch)))
            (i32.store offset=4 (local.get $copy) (i32.load offset=20 (local.get $batch)))
            (i32.store8 offset=16 (local.get $copy) (i32.const 0))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br $next)))
        (i32.load offset=12 (local.get $batch))))"#;
