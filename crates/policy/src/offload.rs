//! A tenant's program, as the operator states it.
//!
//! From: FairNIC §4 (the operator gives each tenant's program its part of the NIC); `docs/programs.md`.
//! Not here: the module itself, which the daemon reads and checks (`plimsoll-offload`).

use std::fmt;
use std::path::PathBuf;

use plimsoll_units::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

/// The program that a tenant's packets pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TenantProgram {
    /// The file of the WebAssembly module, as seen from where the policy is read.
    pub module: PathBuf,
    /// Most bytes of its linear memory, with the buffers of its packets.
    pub memory: Bytes,
    /// Its part of the core that programs run on, in place of its tenant's weight.
    pub cpu: Option<u32>,
    /// The core that it has to itself, in place of a part of the engine's.
    pub core: Option<u32>,
    /// Its weights at the coprocessors.
    pub units: UnitWeights,
    /// Most packets that leave it for one that enters it.
    pub amplification: u32,
    /// What a reload does with its state where the module, or what it may use, has changed.
    pub state: StateKept,
    /// What becomes of its tenant's packets once it was halted.
    pub fails: Fails,
}

impl TenantProgram {
    /// Memory unless stated.
    pub const MEMORY: Bytes = Bytes::new(16 << 20);

    /// Its memory as a policy states it.
    #[must_use]
    pub fn memory_text(&self) -> String {
        let bytes = self.memory.as_u64();
        if bytes.is_multiple_of(1 << 20) { format!("{}MiB", bytes >> 20) } else { self.memory.to_string() }
    }

    /// A program with all that need not be stated.
    #[must_use]
    pub fn of(module: PathBuf) -> Self {
        Self {
            module,
            memory: Self::MEMORY,
            cpu: None,
            core: None,
            units: UnitWeights::default(),
            amplification: 1,
            state: StateKept::default(),
            fails: Fails::default(),
        }
    }
}

/// A program's weights at the coprocessors; 0: it may not use that one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct UnitWeights {
    /// Compressing and expanding.
    pub deflate: u32,
    /// Sealing and opening.
    pub aes: u32,
    /// Searching for patterns.
    pub regex: u32,
}

impl UnitWeights {
    /// In the order of the coprocessors, with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u32); 3] {
        [("deflate", self.deflate), ("aes", self.aes), ("regex", self.regex)]
    }
}

impl fmt::Display for UnitWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stated = self.named().into_iter().filter(|(_, weight)| *weight > 0);
        let stated: Vec<String> = stated.map(|(unit, weight)| format!("{unit}: {weight}")).collect();
        write!(f, "{{{}}}", stated.join(", "))
    }
}

/// What a reload does with a program's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateKept {
    /// The new program begins anew.
    #[default]
    Drop,
    /// The old program saves it, and the new one takes it over.
    Keep,
}

/// What becomes of a tenant's packets once its program was halted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fails {
    /// They are lost: nothing passes that the program has not seen.
    #[default]
    Closed,
    /// They pass as if there were no program.
    Open,
}

impl StateKept {
    /// As a policy states it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Keep => "keep",
        }
    }
}

impl Fails {
    /// As a policy states it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for TenantProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { module, memory: _, cpu, core, units, amplification, state, fails } = self;
        write!(f, "{{module: {}, memory: {}", module.display(), self.memory_text())?;
        cpu.map_or(Ok(()), |weight| write!(f, ", cpu: {{weight: {weight}}}"))?;
        core.map_or(Ok(()), |core| write!(f, ", cpu: {{cores: [{core}]}}"))?;
        if *units != UnitWeights::default() {
            write!(f, ", units: {units}")?;
        }
        write!(f, ", amplification: {amplification}, state: {}, fails: {}}}", state.word(), fails.word())
    }
}
