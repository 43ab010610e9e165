//! The compiler and its options: one for all programs of a process.
//!
//! Why: a module is compiled once, however many tenants run it.
//! From: wasmtime (`docs/decisions/0023-programs-in-webassembly.md` says why, with figures).
//! Not here: one tenant's program (`program`), and who advances the epoch (`daemon`).
//! Invariant: with [`Metering::Fuel`] the same calls give the same results and take the same fuel on every machine.

use std::fmt;

use plimsoll_units::{Nanos, Span};
use wasmtime::{Config, Engine, OptLevel};

use crate::abi::STAGED;
use crate::verify::{PAGE, Refusal, Report, verify};

/// How the time of a call is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metering {
    /// By the epochs that pass meanwhile ([`Runtime::advance`]): for packets that pass in real time.
    Epochs,
    /// By fuel, about one unit for an instruction of WebAssembly: for virtual time, as it is exact.
    Fuel,
}

/// What a program may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a module's file.
    pub module: usize,
    /// Bytes of linear memory, its pool included.
    pub memory: u64,
    /// Entries of its table, and of the segments that fill it.
    pub table_entries: u64,
    /// Buffers of its pool.
    pub buffers: u32,
    /// Bytes of each buffer.
    pub buffer: u32,
    /// Most packets that leave it for one that enters it.
    pub amplification: u32,
    /// Epochs that a call may take, with [`Metering::Epochs`] and no clock.
    pub epochs: u64,
    /// CPU time that a call may take, with [`Metering::Epochs`] and a clock, counted from the first epoch that begins meanwhile.
    pub time: Span,
    /// Fuel that a call may take, with [`Metering::Fuel`].
    pub fuel: u64,
}

impl Default for Limits {
    /// 1 MiB of code, 16 MiB of memory, 512 buffers of 2 KiB, no packets added, and two epochs, 500 µs or a million units of fuel a call.
    fn default() -> Self {
        Self {
            module: 1 << 20,
            memory: 16 << 20,
            table_entries: 4_096,
            buffers: 512,
            buffer: 2_048,
            amplification: 1,
            epochs: 2,
            time: Span::micros(500),
            fuel: 1_000_000,
        }
    }
}

impl Limits {
    /// Bytes that the pool and a batch take in linear memory, whole pages.
    pub(crate) fn pool_bytes(&self) -> u64 {
        (u64::from(self.buffers) * u64::from(self.buffer) + STAGED as u64).next_multiple_of(PAGE)
    }
}

/// Why a module is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It was looked at and is wrong.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The compiler refuses it.
    #[error("it cannot be compiled: {0}")]
    Compile(String),
}

/// Compiles modules and runs programs.
#[derive(Clone)]
pub struct Runtime {
    engine: Engine,
    metering: Metering,
    clock: Option<fn() -> Nanos>,
}

/// A module that was checked and compiled.
#[derive(Clone)]
pub struct Module {
    pub(crate) runtime: Runtime,
    pub(crate) compiled: wasmtime::Module,
    pub(crate) report: Report,
    pub(crate) limits: Limits,
}

/// Bytes of stack that a call may use outside linear memory.
const STACK: usize = 256 << 10;

impl Runtime {
    /// A compiler for this machine.
    ///
    /// # Errors
    /// When programs cannot be compiled for this machine.
    pub fn new(metering: Metering) -> Result<Self, LoadError> {
        let mut config = Config::new();
        config
            .cranelift_opt_level(OptLevel::Speed)
            .cranelift_nan_canonicalization(true)
            .max_wasm_stack(STACK);
        match metering {
            Metering::Epochs => config.epoch_interruption(true),
            Metering::Fuel => config.consume_fuel(true),
        };
        let engine = Engine::new(&config).map_err(|error| LoadError::Compile(error.to_string()))?;
        Ok(Self { engine, metering, clock: None })
    }

    /// Like [`Runtime::new`] with [`Metering::Epochs`], but a call ends by the CPU time of its thread, which the clock tells: time in which
    /// the kernel has run other threads does not count. The clock is read when an epoch begins during a call, and never otherwise.
    ///
    /// # Errors
    /// See [`Runtime::new`].
    pub fn timed(clock: fn() -> Nanos) -> Result<Self, LoadError> {
        Ok(Self { clock: Some(clock), ..Self::new(Metering::Epochs)? })
    }

    /// Checks and compiles a module.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(&self, module: &[u8], limits: &Limits) -> Result<Module, LoadError> {
        let report = verify(module, limits)?;
        let compiled = wasmtime::Module::from_binary(&self.engine, module);
        let compiled = compiled.map_err(|error| LoadError::Compile(format!("{error:#}")))?;
        Ok(Module { runtime: self.clone(), compiled, report, limits: *limits })
    }

    /// Begins the next epoch. The caller does this at equal intervals, from any thread.
    pub fn advance(&self) {
        self.engine.increment_epoch();
    }

    /// How the time of a call is bounded.
    #[must_use]
    pub fn metering(&self) -> Metering {
        self.metering
    }

    pub(crate) fn clock(&self) -> Option<fn() -> Nanos> {
        self.clock
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").field("metering", &self.metering).finish_non_exhaustive()
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module")
            .field("report", &self.report)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Module {
    /// What it consists of.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// What its programs may use.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
