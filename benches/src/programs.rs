//! Tenants' programs: what a batch costs, beside the same program compiled for this machine.
//!
//! Why: a program must cost little more than its own work, or tenants would rather take another core.
//! From: the programs of `examples/programs/`, compiled by `clang` twice; the peer runs in this process, without a sandbox.
//! Not here: packets' way to a program and from it.
//! Invariant: both sides take turns with the same batches. Ours is charged for placing the batch and reading it back, too.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use plimsoll_offload::{Limits, Metering, Packet, Program, Runtime, Slot, Verdict, Way};
use plimsoll_units::Nanos;

use crate::report::{Goal, Row};
use crate::scheduler::Effort;

/// A program, and the most that a packet may cost beside its twin, and in nanoseconds.
struct Case {
    name: &'static str,
    what: &'static str,
    ratio: Option<f64>,
    ns: Option<f64>,
}

const CASES: [Case; 4] = [
    Case { name: "empty", what: "a program that does nothing", ratio: None, ns: Some(10.0) },
    Case { name: "reflector", what: "a program that rewrites headers", ratio: None, ns: Some(15.0) },
    Case { name: "switch", what: "an exact-match switch, 64 flows", ratio: Some(1.3), ns: None },
    Case { name: "filter", what: "a filter by token", ratio: None, ns: None },
];

/// Packets of a batch, as in the goals.
const BATCH: usize = 32;

/// Bytes of a packet.
const FRAME: usize = 64;

/// Programs that are started for the row of instances.
const TENANTS: usize = 1_000;

const EMPTY: &str = "#include \"plimsoll.h\"\n\
    PLIMSOLL_EXPORT(ingress) uint32_t ingress(uint32_t at) { return plimsoll_batch(at)->count; }\n";

/// Rows of all programs, of starting many, and of coprocessors.
pub fn measure(effort: Effort) -> Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let batches = (effort.packets as usize / BATCH).max(1_000);
    let mut rows = Vec::new();
    for case in CASES {
        let module = compile(folder.path(), case.name, false)?;
        let twin = Twin::open(&compile(folder.path(), case.name, true)?)?;
        let (mut ours, mut native) = (Vec::new(), Vec::new());
        for _ in 0..effort.rounds {
            ours.push(in_webassembly(&module, batches)?);
            native.push(twin.batches(batches)?);
        }
        let row = Row::new(format!("a packet of {FRAME} B through {}", case.what), "compiled C", "ns/packet");
        let row = row.figures(&native, &ours).note(format!("batches of {BATCH}"));
        rows.push(match (case.ratio, case.ns) {
            (Some(ratio), _) => row.goal(Goal::RatioAtMost(ratio)),
            (None, Some(ns)) => row.goal(Goal::AtMost(ns)),
            (None, None) => row,
        });
    }
    rows.push(instances(&compile(folder.path(), "switch", false)?, effort)?);
    rows.extend(crate::units::measure(effort)?);
    Ok(rows)
}

/// Starts programs for many tenants.
fn instances(module: &Path, effort: Effort) -> Result<Row> {
    let limits = Limits { buffers: 64, memory: 2 << 20, ..Limits::default() };
    let module = Runtime::new(Metering::Epochs)?.load(&std::fs::read(module)?, &limits)?;
    let mut took = Vec::new();
    for _ in 0..effort.rounds {
        let begun = Instant::now();
        let programs: Vec<_> = (0..TENANTS).map(|_| Program::new(&module)).collect::<Result<_, _>>()?;
        took.push(begun.elapsed().as_secs_f64());
        drop(programs);
    }
    Ok(Row::new(format!("the start of {TENANTS} tenants' programs"), "", "s")
        .figures(&[], &took)
        .goal(Goal::AtMost(1.0)))
}

/// Compiles a program of `examples/programs/`, or the empty one, for WebAssembly or for this machine.
pub fn compile(folder: &Path, name: &str, native: bool) -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = if name == "empty" {
        let source = folder.join("empty.c");
        std::fs::write(&source, EMPTY)?;
        source
    } else {
        root.join("examples/programs").join(name).with_extension("c")
    };
    let out = folder.join(name).with_extension(if native { "so" } else { "wasm" });
    let options: &[&str] = if native {
        &["-shared", "-fPIC", "-DPLIMSOLL_NATIVE"]
    } else {
        &["--target=wasm32", "-mbulk-memory", "-nostdlib", "-Wl,--no-entry"]
    };
    let mut clang = Command::new("clang");
    clang.arg("-O2").args(options).arg("-I").arg(root.join("sdk/c")).arg("-o").args([&out, &source]);
    let done = clang.output().context("clang, which scripts/setup.sh installs")?;
    ensure!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(out)
}

/// A UDP packet over IPv4 of one of 64 flows.
fn udp(flow: usize) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..16].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&(FRAME as u16 - 14).to_be_bytes());
    (frame[22], frame[23]) = (64, 17);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..38].copy_from_slice(&[4, (flow % 64) as u8, 0, 7]);
    frame[38..40].copy_from_slice(&(FRAME as u16 - 34).to_be_bytes());
    frame
}

/// The order of the switch's host that this flow's packets go to port 2.
fn order(flow: usize) -> [u8; FRAME] {
    let mut frame = udp(flow);
    let payload = [[3, 2, 10, 0, 0, 1, 10].as_slice(), &[0, 0, 2, 4, (flow % 64) as u8, 0, 7]].concat();
    frame[36..38].copy_from_slice(&6_653_u16.to_be_bytes());
    frame[42..56].copy_from_slice(&payload);
    frame
}

/// Nanoseconds for each packet.
fn in_webassembly(module: &Path, batches: usize) -> Result<f64> {
    let limits = Limits { epochs: u64::MAX / 2, ..Limits::default() };
    let module = Runtime::new(Metering::Epochs)?.load(&std::fs::read(module)?, &limits)?;
    let mut program = Program::new(&module)?;
    let switches = program.looks_at(Way::Egress);
    for order in (0..64).map(order).filter(|_| switches) {
        let slot = program.take().context("a buffer")?;
        program.bytes_mut(slot)[..FRAME].copy_from_slice(&order);
        program.run(Way::Egress, &[Packet::new(slot, FRAME as u32, 1)], Nanos::ZERO)?;
    }
    let (mut took, mut kept) = (0, Vec::with_capacity(BATCH));
    for batch in 0..batches {
        let mut packet = |n| {
            let slot: Slot = program.take()?;
            program.bytes_mut(slot)[..FRAME].copy_from_slice(&udp(batch * BATCH + n));
            Some(Packet::new(slot, FRAME as u32, Packet::NETWORK))
        };
        let packets: Vec<_> = (0..BATCH).map_while(&mut packet).collect();
        ensure!(packets.len() == BATCH, "its pool has {} buffers", packets.len());
        let begun = Instant::now();
        let ran = program.run(Way::Ingress, &packets, Nanos::ZERO)?;
        took += begun.elapsed().as_nanos();
        let stays = |packet: &&plimsoll_offload::Decided| packet.verdict != Verdict::Drop;
        kept.extend(ran.packets.iter().filter(stays).map(|packet| packet.slot));
        kept.drain(..).for_each(|slot| program.give(slot));
    }
    Ok(took as f64 / (batches * BATCH) as f64)
}

/// A program that was compiled for this machine and loaded into this process.
struct Twin {
    ingress: extern "C" fn(u32) -> u32,
    egress: Option<extern "C" fn(u32) -> u32>,
    memory: *mut *mut u8,
}

/// Where its batch and its packets lie in its memory, as in a program's.
const AT: usize = 64;
const PACKETS_AT: usize = 4_096;
const ROOM: usize = 2_048;

impl Twin {
    fn open(library: &Path) -> Result<Self> {
        let path = CString::new(library.display().to_string())?;
        // SAFETY: the path ends with a zero; the library has no initialisers, and stays loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ensure!(!handle.is_null(), "{} cannot be loaded", library.display());
        let symbol = |name: &str| -> Result<*mut c_void> {
            let name = CString::new(name)?;
            // SAFETY: the handle is open and the name ends with a zero.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if found.is_null() { bail!("{} lacks {name:?}", library.display()) } else { Ok(found) }
        };
        // SAFETY: `plimsoll.h` and the program declare it so.
        let ingress =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u32>(symbol("ingress")?) };
        // SAFETY: as above.
        let egress = symbol("egress")
            .ok()
            .map(|found| unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> u32>(found) });
        Ok(Self { ingress, egress, memory: symbol("plimsoll_memory")?.cast() })
    }

    /// Nanoseconds for each packet.
    fn batches(&self, batches: usize) -> Result<f64> {
        // Words, so that the batch is aligned as in a program's memory.
        let mut words = vec![0_u64; (PACKETS_AT + BATCH * ROOM) / 8];
        let base: *mut u8 = words.as_mut_ptr().cast();
        // SAFETY: the variable is a pointer of the library's, which nothing else uses meanwhile.
        unsafe { *self.memory = base };
        let mut took = 0;
        for batch in 0..batches {
            // SAFETY: these are all bytes of `words`, which lives on; the program has returned.
            let memory = unsafe { std::slice::from_raw_parts_mut(base, PACKETS_AT + BATCH * ROOM) };
            if let Some(egress) = self.egress.filter(|_| batch == 0) {
                for half in 0..2 {
                    stage(memory, |n| order(half * BATCH + n));
                    (egress)(AT as u32);
                }
            }
            stage(memory, |n| udp(batch * BATCH + n));
            let begun = Instant::now();
            let answered = (self.ingress)(AT as u32);
            took += begun.elapsed().as_nanos();
            ensure!(answered as usize == BATCH, "it answered {answered}");
        }
        Ok(took as f64 / (batches * BATCH) as f64)
    }
}

/// Writes a batch into the twin's memory.
fn stage(memory: &mut [u8], packet: impl Fn(usize) -> [u8; FRAME]) {
    let (head, packets) = memory.split_at_mut(PACKETS_AT);
    head[AT + 8..AT + 12].copy_from_slice(&(BATCH as u32).to_le_bytes());
    head[AT + 12..AT + 16].copy_from_slice(&(BATCH as u32).to_le_bytes());
    for n in 0..BATCH {
        packets[n * ROOM..][..FRAME].copy_from_slice(&packet(n));
        let buffer = (PACKETS_AT + n * ROOM) as u32;
        let entry = &mut head[AT + 16 + n * 32..][..32];
        entry.fill(0);
        for (at, number) in [(0, buffer), (4, FRAME as u32), (8, buffer), (12, ROOM as u32)] {
            entry[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
    }
}
