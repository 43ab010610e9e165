//! A node that runs a program in both forms; the fuzz target has it as well.
//!
//! Not here: where programs and packets come from (`kit`).
//! Invariant: each call is made in both forms, which agree, and stays within its stated cost.

use std::sync::LazyLock;

use std::sync::Arc;

use plimsoll_rank::{Field, Interpreter, Module, Packet, Program};
use wasmtime::{Config, Engine, Instance, Memory, Store, TypedFunc};

const FUEL: u64 = 1 << 40;

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let mut config = Config::new();
    config.consume_fuel(true);
    Engine::new(&config).expect("the machine can run WebAssembly")
});

/// A program in both forms.
pub struct Code {
    pub text: String,
    program: Program,
    pub module: Module,
    compiled: wasmtime::Module,
}

impl Code {
    pub fn new(text: &str) -> Self {
        let program = Program::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        Self::of(text, program)
    }

    /// The code of `text`, which was parsed into `program`.
    pub fn of(text: &str, program: Program) -> Self {
        let module = program.compile();
        let compiled = wasmtime::Module::new(&ENGINE, &module.wasm).expect("a module is valid");
        Self { text: text.to_owned(), program, module, compiled }
    }
}

/// A node whose program runs interpreted and as WebAssembly.
pub struct Node<'a> {
    code: &'a Code,
    interpreter: Interpreter,
    store: Store<()>,
    memory: Memory,
    enqueue: TypedFunc<i32, i64>,
    dequeue: TypedFunc<i32, ()>,
    /// Instructions of the last call.
    pub used: u64,
}

impl<'a> Node<'a> {
    pub fn new(code: &'a Code) -> Self {
        let mut store = Store::new(&ENGINE, ());
        let instance = Instance::new(&mut store, &code.compiled, &[]).expect("a module imports nothing");
        instance.get_typed_func::<(), ()>(&mut store, plimsoll_rank::MARKER).expect("the marker");
        Self {
            code,
            interpreter: Interpreter::new(Arc::new(code.program.clone()), plimsoll_rank::MOST_CLASSES),
            memory: instance.get_memory(&mut store, "memory").expect("a memory"),
            enqueue: instance.get_typed_func(&mut store, "enqueue").expect("`enqueue`"),
            dequeue: instance.get_typed_func(&mut store, "dequeue").expect("`dequeue`"),
            store,
            used: 0,
        }
    }

    pub fn enqueue(&mut self, packet: &Packet) -> u64 {
        let at = self.put(packet);
        let compiled = self.enqueue.call(&mut self.store, at).expect("a program does not trap");
        self.assert_cost(self.code.module.enqueue_cost);
        let rank = self.interpreter.enqueue(packet);
        assert_eq!(compiled.cast_unsigned(), rank, "WebAssembly against the interpreter");
        rank
    }

    pub fn dequeue(&mut self, packet: &Packet) {
        let at = self.put(packet);
        self.dequeue.call(&mut self.store, at).expect("a program does not trap");
        self.assert_cost(self.code.module.dequeue_cost);
        self.interpreter.dequeue(packet);
    }

    /// Writes the packet's record, each time to another address.
    fn put(&mut self, packet: &Packet) -> i32 {
        let at = packet.get(Field::Len) as usize % (plimsoll_rank::RECORD_ROOM - Packet::BYTES);
        self.memory.write(&mut self.store, at, &packet.record()).expect("room for records");
        self.store.set_fuel(FUEL).expect("fuel is on");
        at as i32
    }

    fn assert_cost(&mut self, cost: u64) {
        self.used = FUEL - self.store.get_fuel().expect("fuel is on");
        assert!(self.used <= cost, "{} instructions, and the cost is {cost}", self.used);
    }
}
