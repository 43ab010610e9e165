//! The compiler: from a program to a WebAssembly module.
//!
//! Why: a module runs as fast as compiled code, and can reach nothing but its own memory.
//! From: Loom §5 (generated functions beside generic PIFOs); the WebAssembly core specification, with `i64` read as unsigned.
//! Not here: who runs it. Code of one function is in `compile::code`, saturating arithmetic in `compile::helpers`.
//! Invariant: a function runs at most as many instructions as its cost says, and does not trap while the record lies in memory.

mod code;
mod helpers;

use wasm_encoder::{
    CodeSection, ConstExpr, DataSection, ExportKind, ExportSection, FunctionSection, MemorySection,
    MemoryType, TypeSection, ValType,
};

#[cfg(doc)]
use crate::packet::Field;
use crate::program::{Function, MOST_CLASSES, Program};
use code::Code;
use helpers::Helper;

/// A program as WebAssembly.
///
/// It imports nothing, and exports:
///
/// | name | type | what |
/// |---|---|---|
/// | `plimsoll_rank_1` | `()` | never called: its name says that this table holds |
/// | `memory` | memory, of fixed size | the record and the state |
/// | `enqueue` | `(i32) -> i64` | the rank, unsigned, of the packet whose record stands at this address |
/// | `dequeue` | `(i32)` | updates the state for a packet that leaves |
///
/// In its memory are:
///
/// | address | what |
/// |---|---|
/// | 0 to [`RECORD_ROOM`] | free for packet records; a record has each [`Field`] at its offset |
/// | [`RECORD_ROOM`] | the node's variables in the order of the text, 8 bytes each |
/// | behind them | for each class from 0 to [`MOST_CLASSES`] - 1, its variables |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The module's bytes.
    pub wasm: Vec<u8>,
    /// Most WebAssembly instructions that a call of `enqueue` runs; a call inside it counts as two.
    pub enqueue_cost: u64,
    /// Most WebAssembly instructions that a call of `dequeue` runs.
    pub dequeue_cost: u64,
}

/// The export that says which interface a module has.
pub const MARKER: &str = "plimsoll_rank_1";
/// Bytes at the beginning of a module's memory that are free for packet records.
pub const RECORD_ROOM: usize = 4_096;

/// Types of functions, by their place in the module.
const ENQUEUE_TYPE: u32 = 0;
const DEQUEUE_TYPE: u32 = 1;
const HELPER_TYPE: u32 = 2;
const MARKER_TYPE: u32 = 3;

/// Bytes of a state variable.
const VARIABLE: usize = size_of::<u64>();
const PAGE: usize = 64 * 1024;

/// Where a program's state stands in memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of the state of one class.
    row: usize,
    /// Address of the state of class 0.
    classes: usize,
    end: usize,
}

impl Layout {
    fn of(program: &Program) -> Self {
        let row = program.class.len() * VARIABLE;
        let classes = RECORD_ROOM + program.node.len() * VARIABLE;
        Self { row, classes, end: classes + row * MOST_CLASSES as usize }
    }
}

/// Compiles a program.
pub(crate) fn module(program: &Program) -> Module {
    let layout = Layout::of(program);
    let (enqueue, enqueue_cost) = function(&program.enqueue, layout, true);
    let (dequeue, dequeue_cost) = function(&program.dequeue, layout, false);
    let mut functions = FunctionSection::new();
    let mut code = CodeSection::new();
    for helper in Helper::ALL {
        functions.function(HELPER_TYPE);
        code.function(&helper.body());
    }
    functions.function(ENQUEUE_TYPE).function(DEQUEUE_TYPE).function(MARKER_TYPE);
    code.function(&enqueue).function(&dequeue).function(&nothing());

    let mut module = wasm_encoder::Module::new();
    module.section(&types()).section(&functions).section(&memory(layout));
    module.section(&exports()).section(&code).section(&first_values(program));
    Module { wasm: module.finish(), enqueue_cost, dequeue_cost }
}

/// A function's code, and its cost.
fn function(function: &Function, layout: Layout, returns_rank: bool) -> (wasm_encoder::Function, u64) {
    let mut code = Code::new(function.locals, layout);
    if function.uses_class {
        code.find_class();
    }
    code.block(&function.body);
    if returns_rank {
        code.rank();
    }
    code.finish()
}

/// The body of the marker.
fn nothing() -> wasm_encoder::Function {
    let mut function = wasm_encoder::Function::new([]);
    function.instructions().end();
    function
}

fn types() -> TypeSection {
    let mut types = TypeSection::new();
    types.ty().function([ValType::I32], [ValType::I64]);
    types.ty().function([ValType::I32], []);
    types.ty().function([ValType::I64; 2], [ValType::I64]);
    types.ty().function([], []);
    types
}

fn memory(layout: Layout) -> MemorySection {
    let pages = layout.end.div_ceil(PAGE) as u64;
    let mut memory = MemorySection::new();
    memory.memory(MemoryType {
        minimum: pages,
        maximum: Some(pages),
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    memory
}

fn exports() -> ExportSection {
    let enqueue = Helper::ALL.len() as u32;
    let mut exports = ExportSection::new();
    exports.export("memory", ExportKind::Memory, 0).export("enqueue", ExportKind::Func, enqueue);
    exports.export("dequeue", ExportKind::Func, enqueue + 1).export(MARKER, ExportKind::Func, enqueue + 2);
    exports
}

/// The state's first values. Memory begins as zeros, which need not be stated.
fn first_values(program: &Program) -> DataSection {
    let rows = program.class.repeat(MOST_CLASSES as usize);
    let values = program.node.iter().chain(&rows);
    let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
    let stated = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let mut data = DataSection::new();
    if stated > 0 {
        data.active(0, &ConstExpr::i32_const(RECORD_ROOM as i32), bytes[..stated].iter().copied());
    }
    data
}
