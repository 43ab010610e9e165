//! Checks a module before it is compiled: a wrong one is refused with the reason and its place.
//!
//! Why: what can be known before a program runs must not be found out by the packets of its tenant.
//! From: FairNIC §4 (operators verify programs), and the checklist FN-S4; validation is WebAssembly's own (`wasmparser`).
//! Not here: loops that never end and memory that grows, which are bounded while the program runs (`program`).
//! Invariant: a module that passes imports nothing, has one memory of its own, runs nothing when it is loaded, and exports what a
//! program needs.

use std::fmt;

use wasmparser::{
    BinaryReaderError, ElementItems, ExternalKind, FuncType, KnownCustom, Name, Operator, Parser, Payload,
    Validator, WasmFeatures,
};

use crate::abi::{INIT, MARKER, RESTORE, ROOM, SAVE, TICK, Way};
use crate::runtime::Limits;

/// What a module consists of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its length in bytes.
    pub bytes: usize,
    /// Functions that it defines.
    pub functions: usize,
    /// Instructions of all of them.
    pub instructions: usize,
    /// Loops of all of them: each may run for as long as a call may take.
    pub loops: usize,
    /// Calls through a table.
    pub indirect_calls: usize,
    /// Bytes of memory at its start.
    pub memory: u64,
    /// Bytes of memory that it may grow to, as it states itself.
    pub most_memory: Option<u64>,
    /// Entries of its tables.
    pub table_entries: u64,
    /// The functions of the interface that it has.
    pub exports: Vec<&'static str>,
}

/// Why a module is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong, and what to do.
    pub what: String,
    /// The function, by its name if the module has a name section.
    pub function: Option<String>,
    /// The place in the module, in bytes from its beginning.
    pub offset: Option<usize>,
}

impl Report {
    /// Whether it can hand its state to a program that takes over.
    #[must_use]
    pub fn saves(&self) -> bool {
        self.exports.contains(&SAVE)
    }

    /// Whether it can take over the state of the program before it.
    #[must_use]
    pub fn restores(&self) -> bool {
        self.exports.contains(&ROOM) && self.exports.contains(&RESTORE)
    }

    /// Whether it looks at packets of this direction.
    #[must_use]
    pub fn looks_at(&self, way: Way) -> bool {
        self.exports.contains(&way.name())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(function) = &self.function {
            write!(f, "function {function}: ")?;
        }
        write!(f, "{}", self.what)?;
        self.offset.map_or(Ok(()), |offset| write!(f, " (at byte {offset:#x})"))
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    fn new(what: impl Into<String>, offset: impl Into<Option<usize>>) -> Self {
        Self { what: what.into(), function: None, offset: offset.into() }
    }
}

impl From<BinaryReaderError> for Refusal {
    fn from(error: BinaryReaderError) -> Self {
        Self::new(error.message(), error.offset())
    }
}

/// Bounds of what a module consists of, so that it is compiled in a bounded time: about a second with all of them.
const MOST_FUNCTIONS: u64 = 4_096;
const MOST_LOCALS: u64 = 65_536;
const MOST_BODY: u64 = 64 << 10;
const MOST_GLOBALS: u64 = 1_024;

/// Refuses a module that has more of something than a program may have.
fn bounded(what: &str, has: u64, most: u64, offset: usize) -> Result<(), Refusal> {
    if has <= most {
        return Ok(());
    }
    Err(Refusal::new(format!("it has {has} {what}, and a program may have {most}"), offset))
}

/// Bytes of a page of WebAssembly's memory.
pub(crate) const PAGE: u64 = 65_536;

/// Checks a module.
///
/// # Errors
/// A [`Refusal`] when it is no valid module, imports something, has more than `limits` allow, or does not export what a program needs.
pub fn verify(module: &[u8], limits: &Limits) -> Result<Report, Refusal> {
    if module.len() > limits.module {
        let what = format!("it has {} bytes, and a program may have {}", module.len(), limits.module);
        return Err(Refusal::new(what, None));
    }
    if !module.starts_with(b"\0asm") {
        return Err(Refusal::new("it is no WebAssembly module: it does not begin as one", 0));
    }
    let names = names(module);
    let within = |error: BinaryReaderError| Refusal {
        function: function_at(module, error.offset()).map(|at| name_of(&names, at)),
        ..Refusal::from(error)
    };
    Validator::new_with_features(FEATURES).validate_all(module).map_err(within)?;
    let mut seen = Seen { report: Report { bytes: module.len(), ..Report::default() }, ..Seen::default() };
    for payload in Parser::new(0).parse_all(module) {
        seen.look_at(&payload?, limits)?;
    }
    seen.end(&names)
}

/// WebAssembly 2.0 without `externref`: no threads, no second memory, no 64-bit memory, no exceptions.
const FEATURES: WasmFeatures = WasmFeatures::WASM2.difference(WasmFeatures::GC_TYPES);

/// What has been seen of a module.
#[derive(Default)]
struct Seen {
    report: Report,
    types: Vec<FuncType>,
    /// The types of its functions.
    functions: Vec<u32>,
    memories: usize,
    /// Local variables of all functions.
    locals: u64,
    /// Elements of all segments for tables.
    elements: u64,
    /// Exported functions and memories.
    exported: Vec<(String, ExternalKind, u32)>,
}

impl Seen {
    fn look_at(&mut self, payload: &Payload<'_>, limits: &Limits) -> Result<(), Refusal> {
        match payload {
            Payload::TypeSection(section) => {
                for kind in section.clone().into_iter_err_on_gc_types() {
                    self.types.push(kind?);
                }
            }
            Payload::ImportSection(section) => {
                if let Some(import) = section.clone().into_imports().next() {
                    let import = import?;
                    let what = format!(
                        "it imports `{}.{}`, and a program imports nothing: link it without a C library, and define what it calls",
                        import.module, import.name
                    );
                    return Err(Refusal::new(what, section.range().start));
                }
            }
            Payload::FunctionSection(section) => {
                bounded("functions", section.count().into(), MOST_FUNCTIONS, section.range().start)?;
                for kind in section.clone() {
                    self.functions.push(kind?);
                }
            }
            Payload::GlobalSection(section) => {
                bounded("globals", section.count().into(), MOST_GLOBALS, section.range().start)?;
            }
            Payload::ElementSection(section) => {
                for element in section.clone() {
                    let element = element?;
                    self.elements += u64::from(match element.items {
                        ElementItems::Functions(items) => items.count(),
                        ElementItems::Expressions(_, items) => items.count(),
                    });
                    bounded("elements", self.elements, limits.table_entries, element.range.start)?;
                }
            }
            Payload::TableSection(section) => {
                bounded("tables", section.count().into(), 1, section.range().start)?;
                for table in section.clone() {
                    self.report.table_entries += table?.ty.initial;
                }
                bounded(
                    "entries in its table",
                    self.report.table_entries,
                    limits.table_entries,
                    section.range().start,
                )?;
            }
            Payload::MemorySection(section) => {
                for memory in section.clone() {
                    let memory = memory?;
                    self.memories += 1;
                    self.report.memory = memory.initial * PAGE;
                    self.report.most_memory = memory.maximum.map(|pages| pages * PAGE);
                }
                let needed = self.report.memory + limits.pool_bytes();
                let stated = self.report.most_memory.unwrap_or(u64::MAX).min(limits.memory);
                if needed > stated {
                    let what = format!(
                        "its memory begins with {} bytes, its pool of packets takes {}, and it may have {stated}: state a larger \
                         `memory`, or link it with less stack (`-z stack-size`) or a larger `--max-memory`",
                        self.report.memory,
                        limits.pool_bytes()
                    );
                    return Err(Refusal::new(what, section.range().start));
                }
            }
            Payload::StartSection { range, .. } => {
                let what =
                    "it has a start function, which would run while it is loaded: export `init` instead";
                return Err(Refusal::new(what, range.start));
            }
            Payload::ExportSection(section) => {
                for export in section.clone() {
                    let export = export?;
                    self.exported.push((export.name.to_owned(), export.kind, export.index));
                }
            }
            Payload::CodeSectionEntry(body) => self.count(body)?,
            _ => {}
        }
        Ok(())
    }

    fn count(&mut self, body: &wasmparser::FunctionBody<'_>) -> Result<(), Refusal> {
        self.report.functions += 1;
        let (begin, length) = (body.range().start, body.range().len() as u64);
        bounded("bytes in a function", length, MOST_BODY, begin)?;
        for locals in body.get_locals_reader()? {
            self.locals += u64::from(locals?.0);
        }
        bounded("local variables", self.locals, MOST_LOCALS, begin)?;
        for operator in body.get_operators_reader()? {
            self.report.instructions += 1;
            match operator? {
                Operator::Loop { .. } => self.report.loops += 1,
                Operator::CallIndirect { .. } => self.report.indirect_calls += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks what the module exports.
    fn end(mut self, names: &[(u32, String)]) -> Result<Report, Refusal> {
        if self.memories == 0 || !self.exports_memory() {
            return Err(Refusal::new("it exports no memory: link it with `--export-memory`", None));
        }
        use wasmparser::ValType::{I32, I64};
        let [ingress, egress] = Way::ALL.map(Way::name);
        let wanted: [(&'static str, &[_], &[_]); 8] = [
            (MARKER, &[], &[]),
            (INIT, &[], &[I32]),
            (ingress, &[I32], &[I32]),
            (egress, &[I32], &[I32]),
            (TICK, &[I64], &[]),
            (SAVE, &[], &[I64]),
            (ROOM, &[I32], &[I32]),
            (RESTORE, &[I32], &[I32]),
        ];
        for (name, params, results) in wanted {
            let Some(index) = self.function(name) else { continue };
            // Nothing is imported, so functions are numbered from those of the module.
            let kind = self.functions.get(index as usize).and_then(|kind| self.types.get(*kind as usize));
            if kind.is_none_or(|kind| kind.params() != params || kind.results() != results) {
                let what = format!(
                    "`{name}` must take {params:?} and return {results:?}, as `plimsoll.h` declares it"
                );
                return Err(Refusal { function: Some(name_of(names, index)), ..Refusal::new(what, None) });
            }
            self.report.exports.push(name);
        }
        if !self.report.exports.contains(&MARKER) {
            let what = format!("it does not export `{MARKER}`: include `plimsoll.h`, which defines it");
            return Err(Refusal::new(what, None));
        }
        if Way::ALL.iter().all(|way| !self.report.exports.contains(&way.name())) {
            return Err(Refusal::new(
                "it exports neither `ingress` nor `egress`, so no packet would reach it",
                None,
            ));
        }
        Ok(self.report)
    }

    fn exports_memory(&self) -> bool {
        self.exported.iter().any(|(name, kind, _)| name == "memory" && *kind == ExternalKind::Memory)
    }

    fn function(&self, wanted: &str) -> Option<u32> {
        let found =
            self.exported.iter().find(|(name, kind, _)| name == wanted && *kind == ExternalKind::Func);
        found.map(|(_, _, index)| *index)
    }
}

/// The names of functions in a module's name section.
fn names(module: &[u8]) -> Vec<(u32, String)> {
    let mut names = Vec::new();
    for payload in Parser::new(0).parse_all(module) {
        let Ok(payload) = payload else { break };
        let Payload::CustomSection(section) = payload else { continue };
        let KnownCustom::Name(section) = section.as_known() else { continue };
        for name in section.flatten() {
            let Name::Function(functions) = name else { continue };
            names
                .extend(functions.into_iter().flatten().map(|naming| (naming.index, naming.name.to_owned())));
        }
    }
    names
}

/// The number of the function whose code has this place.
fn function_at(module: &[u8], offset: usize) -> Option<u32> {
    let bodies = Parser::new(0).parse_all(module).map_while(Result::ok).filter_map(|payload| match payload {
        Payload::CodeSectionEntry(body) => Some(body.range()),
        _ => None,
    });
    (0..).zip(bodies).find(|(_, range)| range.contains(&offset)).map(|(number, _)| number)
}

fn name_of(names: &[(u32, String)], index: u32) -> String {
    let name = names.iter().find(|(number, _)| *number == index);
    name.map_or_else(|| format!("number {index}"), |(_, name)| format!("`{name}`"))
}
