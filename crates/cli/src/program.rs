//! `plimsoll program`: checks, tries and measures tenants' programs.
//!
//! Why: a tenant finds out at its own desk what a daemon would refuse, and what its program costs.
//! From: FairNIC §4: operators verify and test programs before they install them.
//! Not here: checking and running programs (`offload`).
//! Invariant: each packet of a capture is in exactly one row of the table that `run` prints.

mod new;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use comfy_table::CellAlignment::{Left, Right};
use plimsoll_offload::{
    Fault, Limits, LoadError, Metering, Module, Packet, Program, Runtime, Slot, Verdict, Way, Worker,
};
use plimsoll_ports::{Capture, PcapConfig, PcapPort};
use plimsoll_units::{Bytes, Nanos};
use serde_json::json;

use crate::args::{self, Direction, Packets, ProgramBench, ProgramCheck, ProgramFile, ProgramRun};
use crate::failure::{Failure, print, print_json};
use crate::show::table;

/// Runs the subcommand.
pub(crate) fn program(args: &args::Program) -> Result<(), Failure> {
    match args {
        args::Program::New(new) => new::new(new),
        args::Program::Check(check) => self::check(check),
        args::Program::Run(run) => self::run(run),
        args::Program::Bench(bench) => self::bench(bench),
    }
}

impl ProgramFile {
    fn limits(&self) -> Limits {
        Limits { memory: self.memory.as_u64(), amplification: self.amplification, ..Limits::default() }
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        std::fs::read(&self.file).map_err(|error| Failure::Wrong(format!("{}: {error}", self.file.display())))
    }

    fn load(&self, metering: Metering) -> Result<Module, Failure> {
        let bytes = self.read()?;
        let failed = |error: LoadError| Failure::Wrong(format!("{}: {error}", self.file.display()));
        Runtime::new(metering).and_then(|runtime| runtime.load(&bytes, &self.limits())).map_err(failed)
    }

    /// Loads and starts it.
    fn start(&self, metering: Metering) -> Result<(Program, Module), Failure> {
        let module = self.load(metering)?;
        let started = Program::new(&module);
        let program = started.map_err(|error| Failure::Wrong(format!("{}: {error}", self.file.display())))?;
        Ok((program, module))
    }
}

impl From<Direction> for Way {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::Ingress,
            Direction::Egress => Self::Egress,
        }
    }
}

fn check(args: &ProgramCheck) -> Result<(), Failure> {
    let (_, module) = args.program.start(Metering::Fuel)?;
    let report = module.report();
    let grows =
        report.most_memory.map_or(args.program.memory, |most| args.program.memory.min(Bytes::new(most)));
    if args.json {
        return print_json(&json!({
            "file": args.program.file.display().to_string(),
            "bytes": report.bytes,
            "functions": report.functions,
            "instructions": report.instructions,
            "loops": report.loops,
            "indirect_calls": report.indirect_calls,
            "memory_bytes": report.memory,
            "most_memory_bytes": grows.as_u64(),
            "table_entries": report.table_entries,
            "exports": report.exports,
        }));
    }
    let size = format!(
        "{} bytes, {} functions, {} instructions",
        report.bytes, report.functions, report.instructions
    );
    let rows = [
        ("Module", size),
        ("Loops", format!("{}, each bounded by the time that a call may take", report.loops)),
        ("Indirect calls", report.indirect_calls.to_string()),
        ("Memory", format!("{} at its start, at most {grows}", Bytes::new(report.memory))),
        ("Exports", report.exports.join(", ")),
    ];
    let body: String = rows.iter().map(|(what, value)| format!("{what:<16}{value}\n")).collect();
    print(&format!("{}: a daemon would load it\n{body}", args.program.file.display()))
}

/// How often a packet may come back from a coprocessor.
const ROUNDS: u32 = 16;

/// What has become of a capture's packets.
#[derive(Debug, Default)]
struct Counts {
    read: u64,
    passed: Count,
    /// To the network, and to the tenant's ports.
    redirected: Count,
    dropped: Count,
    added: u64,
    /// Requests to coprocessors.
    units: u64,
    /// Packets that went to a coprocessor again and again.
    endless: u64,
    worker: Worker,
    malformed: u64,
    faults: u64,
    /// Packets of batches in which the program was at fault.
    faulty: u64,
    /// Packets that are longer than a buffer.
    long: u64,
    fuel: u64,
    first: Option<Fault>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    packets: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, len: u32) {
        (self.packets, self.bytes) = (self.packets + 1, self.bytes + u64::from(len));
    }
}

fn run(args: &ProgramRun) -> Result<(), Failure> {
    let (mut program, _) = args.program.start(Metering::Fuel)?;
    let mut out = args.create()?;
    let mut counts = Counts::default();
    let mut batch: Vec<Packet> = Vec::new();
    let mut last = Nanos::ZERO;
    let mut way = Way::from(args.way);
    let mut pass = |program: &mut Program, batch: &mut Vec<Packet>, (way, at): (Way, Nanos)| {
        counts.pass(program, way, batch, at, out.as_mut())
    };
    let mut long = 0;
    let read = args.packets.each(|frame, at| {
        let goes = args.way_of(frame);
        if goes != way || batch.len() == usize::from(args.batch) {
            pass(&mut program, &mut batch, (way, last));
        }
        (way, last) = (goes, at);
        match stored(&mut program, frame) {
            Some(slot) => batch.push(Packet::new(slot, frame.len() as u32, u8::from(way == Way::Egress))),
            None => long += 1,
        }
    })?;
    pass(&mut program, &mut batch, (way, last));
    if let Some(out) = &mut out {
        out.flush();
        out.take_problem().map_or(Ok(()), |problem| Err(Failure::Failed(problem.to_string())))?;
    }
    (counts.read, counts.long) = (read, long);
    if args.json {
        print_json(&counts.machine())?
    } else {
        print(&counts.text())?
    }
    let Some(fault) = &counts.first else { return Ok(()) };
    eprintln!("{}: {} batches were lost; the first: {fault}", args.program.file.display(), counts.faults);
    Err(Failure::Said)
}

impl Counts {
    /// Passes a batch through the program, and writes what leaves it.
    fn pass(
        &mut self,
        program: &mut Program,
        way: Way,
        batch: &mut Vec<Packet>,
        at: Nanos,
        mut out: Option<&mut Capture>,
    ) {
        for _ in 0..ROUNDS {
            if batch.is_empty() {
                return;
            }
            self.pass_once(program, way, batch, at, out.as_deref_mut());
        }
        self.endless += batch.len() as u64;
        batch.drain(..).for_each(|packet| program.give(packet.slot));
    }

    /// Passes a batch through the program; what comes back from a coprocessor is in the batch then.
    fn pass_once(
        &mut self,
        program: &mut Program,
        way: Way,
        batch: &mut Vec<Packet>,
        at: Nanos,
        mut out: Option<&mut Capture>,
    ) {
        let ran = program.run(way, batch, at).cloned();
        self.fuel += program.fuel().unwrap_or_default();
        let given = batch.len() as u64;
        batch.clear();
        let ran = match ran {
            Ok(ran) => ran,
            Err(fault) => {
                self.faults += 1;
                self.faulty += given;
                self.first.get_or_insert(fault);
                return;
            }
        };
        self.malformed += u64::from(ran.malformed);
        for packet in &ran.packets {
            self.added += u64::from(packet.added);
            match packet.verdict {
                Verdict::Pass => self.passed.add(packet.len),
                Verdict::Redirect(_) => self.redirected.add(packet.len),
                Verdict::Drop => {
                    self.dropped.add(packet.len);
                    continue;
                }
                Verdict::Unit(call) => {
                    let back = program.request(packet, call).and_then(|mut request| {
                        let result = self.worker.answer(&mut request);
                        program.give_back(&request, result)
                    });
                    self.units += u64::from(back.is_some());
                    self.malformed += u64::from(back.is_none());
                    batch.extend(back);
                    program.give(packet.slot);
                    continue;
                }
            }
            if let Some(out) = &mut out {
                out.record(at, program.packet(packet), None);
                if out.is_full() {
                    out.flush();
                }
            }
            program.give(packet.slot);
        }
    }

    fn text(&self) -> String {
        let mut rows = table(&["", "packets", "bytes"], &[Left, Right, Right]);
        let mut row = |what: &str, packets: u64, bytes: Option<u64>| {
            rows.add_row([
                what.to_owned(),
                packets.to_string(),
                bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
            ]);
        };
        row("passed", self.passed.packets, Some(self.passed.bytes));
        row("redirected", self.redirected.packets, Some(self.redirected.bytes));
        row("dropped", self.dropped.packets, Some(self.dropped.bytes));
        for (what, packets) in [
            ("without a verdict or a place", self.malformed),
            ("lost by a fault", self.faulty),
            ("longer than a buffer", self.long),
            ("for ever at coprocessors", self.endless),
        ] {
            if packets > 0 {
                row(what, packets, None);
            }
        }
        let added =
            if self.added > 0 { format!(", {} added by the program", self.added) } else { String::new() };
        let units = match self.units {
            0 => String::new(),
            count => format!(", {count} requests to coprocessors"),
        };
        let each = self.fuel.checked_div(self.read - self.long).unwrap_or_default();
        format!("{rows}\n\n{} packets read{added}{units}, about {each} instructions each\n", self.read)
    }

    fn machine(&self) -> serde_json::Value {
        let count = |Count { packets, bytes }: Count| json!({"packets": packets, "bytes": bytes});
        json!({
            "read": self.read,
            "passed": count(self.passed),
            "redirected": count(self.redirected),
            "dropped": count(self.dropped),
            "added": self.added,
            "unit_requests": self.units,
            "endless": self.endless,
            "malformed": self.malformed,
            "faults": self.faults,
            "faulty": self.faulty,
            "long": self.long,
            "fuel": self.fuel,
            "first_fault": self.first.as_ref().map(ToString::to_string),
        })
    }
}

/// Copies a frame into a buffer of the program's pool; `None`: it is too long. A batch is shorter than the pool.
fn stored(program: &mut Program, frame: &[u8]) -> Option<Slot> {
    let slot = program.take()?;
    match program.bytes_mut(slot).get_mut(..frame.len()) {
        Some(room) => room.copy_from_slice(frame),
        None => {
            program.give(slot);
            return None;
        }
    }
    Some(slot)
}

impl ProgramRun {
    /// The direction of a packet.
    fn way_of(&self, frame: &[u8]) -> Way {
        match self.mac {
            None => self.way.into(),
            Some(own) if frame.get(6..12) == Some(&own) => Way::Egress,
            Some(_) => Way::Ingress,
        }
    }

    /// Creates the capture of what leaves the program, unless it is the one that is read.
    fn create(&self) -> Result<Option<Capture>, Failure> {
        let Some(write) = &self.write else { return Ok(None) };
        let whole = |path: &Path| path.canonicalize().ok();
        let read = self.packets.read.as_deref().and_then(whole);
        if read.is_some() && read == whole(write) {
            return Err(Failure::Wrong("--write: that is the capture which is read".to_owned()));
        }
        Capture::create(write).map(Some).map_err(|error| Failure::Wrong(error.to_string()))
    }
}

impl Packets {
    /// Passes each packet to `arrive`, with its time; answers how many there were.
    fn each(&self, mut arrive: impl FnMut(&[u8], Nanos)) -> Result<u64, Failure> {
        let Some(capture) = &self.read else {
            let len = self.frame.as_u64() as usize;
            (0..FLOWS).for_each(|flow| arrive(&udp(flow, len), Nanos::ZERO));
            return Ok(FLOWS.into());
        };
        each_of(capture, arrive)
    }
}

/// Passes each frame of a capture to `arrive`, with its time; answers how many there were.
fn each_of(capture: &Path, mut arrive: impl FnMut(&[u8], Nanos)) -> Result<u64, Failure> {
    let config = PcapConfig { read: Some(capture.to_owned()), write: None };
    let mut port = PcapPort::open(&config).map_err(|error| Failure::Wrong(error.to_string()))?;
    let (mut frame, mut last, mut count) = (vec![0; LARGEST], Nanos::ZERO, 0);
    while !port.finished() {
        let Ok(Some(received)) = port.receive(&mut frame) else { continue };
        last = received.at.unwrap_or(last);
        count += 1;
        arrive(&frame[..received.len], last);
    }
    match port.take_problem() {
        Some(problem) => Err(Failure::Wrong(problem.to_string())),
        None => Ok(count),
    }
}

/// The largest frame of a capture, in bytes.
const LARGEST: usize = 1 << 20;

/// How long each of both programs is measured.
const MEASURED: Duration = Duration::from_secs(1);

fn bench(args: &ProgramBench) -> Result<(), Failure> {
    let mut frames = Vec::new();
    args.packets.each(|frame, _| frames.push(frame.to_owned()))?;
    if frames.is_empty() {
        return Err(Failure::Wrong("--read: the capture has no packets".to_owned()));
    }
    let runtime = Runtime::new(Metering::Epochs).map_err(|error| Failure::Failed(error.to_string()))?;
    // A second a call, as other work may delay it.
    let limits = Limits { epochs: 100, ..args.program.limits() };
    let bytes = args.program.read()?;
    if frames.iter().any(|frame| frame.len() > limits.buffer as usize) {
        let what = format!("--read: a packet is longer than a buffer of {} bytes", limits.buffer);
        return Err(Failure::Wrong(what));
    }
    let _epochs = Epochs::begin(&runtime);
    let mut costs = Vec::new();
    let own = (args.program.file.display().to_string(), bytes.as_slice(), args.way);
    for (what, module, way) in [own, ("empty".to_owned(), EMPTY_MODULE, Some(Direction::Ingress))] {
        let wrong = |error: &dyn std::fmt::Display| Failure::Wrong(format!("{what}: {error}"));
        let module = runtime.load(module, &limits).map_err(|error| wrong(&error))?;
        let mut program = Program::new(&module).map_err(|error| wrong(&error))?;
        let first = || Way::ALL.into_iter().find(|way| program.looks_at(*way));
        let way = way.map(Way::from).or_else(first).unwrap_or(Way::Ingress);
        let cost = measure(&mut program, way, &frames, args.batch).map_err(|fault| wrong(&fault))?;
        costs.push((what, cost));
    }
    if args.json {
        let rows: Vec<_> =
            costs.iter().map(|(what, ns)| json!({"program": what, "ns_per_packet": ns})).collect();
        return print_json(&rows);
    }
    let mut rows = table(&["program", "ns a packet"], &[Left, Right]);
    for (what, ns) in costs {
        rows.add_row([what, format!("{ns:.1}")]);
    }
    print(&format!(
        "{rows}\n\nbatches of {}; packets are copied into the program's memory first, which is not counted\n",
        args.batch
    ))
}

/// Advances the epoch until it is dropped.
struct Epochs {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Epochs {
    fn begin(runtime: &Runtime) -> Self {
        let (runtime, ended) = (runtime.clone(), Arc::<AtomicBool>::default());
        let told = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                runtime.advance();
            }
        });
        Self { ended, thread: Some(thread) }
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Nanoseconds that a packet takes: the least of some runs of batches, as other work only adds to it.
fn measure(program: &mut Program, way: Way, frames: &[Vec<u8>], batch: u8) -> Result<f64, Fault> {
    const RUNS: u32 = 64;
    let begun = Instant::now();
    let (mut least, mut next) = (Duration::MAX, 0);
    while begun.elapsed() < MEASURED {
        let mut took = Duration::ZERO;
        for _ in 0..RUNS {
            let packets: Vec<_> = (0..batch)
                .filter_map(|_| {
                    next = (next + 1) % frames.len();
                    let slot = stored(program, &frames[next])?;
                    Some(Packet::new(slot, frames[next].len() as u32, Packet::NETWORK))
                })
                .collect();
            let begun = Instant::now();
            let ran = program.run(way, &packets, Nanos::ZERO)?;
            took += begun.elapsed();
            let kept: Vec<_> = ran
                .packets
                .iter()
                .filter(|packet| packet.verdict != Verdict::Drop)
                .map(|packet| packet.slot)
                .collect();
            kept.into_iter().for_each(|slot| program.give(slot));
        }
        least = least.min(took);
    }
    Ok(least.as_nanos() as f64 / f64::from(RUNS) / f64::from(batch))
}

/// Flows of the packets that no capture gives.
const FLOWS: u16 = 64;

/// A UDP packet without payload but zeros, at least as long as its headers.
fn udp(flow: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.clamp(60, 1_514)];
    let ip = (frame.len() - 14) as u16;
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&ip.to_be_bytes());
    (frame[22], frame[23]) = (64, 17);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&(1_024 + flow).to_be_bytes());
    frame[36..38].copy_from_slice(&7_u16.to_be_bytes());
    frame[38..40].copy_from_slice(&(ip - 20).to_be_bytes());
    frame
}

/// A program that passes each packet; a test has its text.
const EMPTY_MODULE: &[u8] = b"\0asm\x01\0\0\0\
    \x01\x09\x02\x60\0\0\x60\x01\x7f\x01\x7f\
    \x03\x03\x02\0\x01\
    \x05\x03\x01\0\x01\
    \x07\x25\x03\x06memory\x02\0\x0eplimsoll_abi_1\0\0\x07ingress\0\x01\
    \x0a\x0c\x02\x02\0\x0b\x07\0\x20\0\x28\x02\x08\x0b";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_others_are_compared_with_passes_each_packet() {
        let text = r#"(module
            (memory (export "memory") 1)
            (func (export "plimsoll_abi_1"))
            (func (export "ingress") (param i32) (result i32) (i32.load offset=8 (local.get 0))))"#;
        assert_eq!(wat::parse_str(text).expect("it is right"), EMPTY_MODULE);
    }

    #[test]
    fn a_packet_to_measure_with_is_whole() {
        for len in [0, 64, 1_500, 100_000] {
            let frame = udp(3, len);
            assert!(
                plimsoll_wire::parse(&frame).is_ok_and(|parsed| parsed.ports() == Some((1_027, 7))),
                "{len}"
            );
        }
    }
}
