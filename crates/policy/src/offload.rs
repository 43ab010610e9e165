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
            amplification: 1,
            state: StateKept::default(),
            fails: Fails::default(),
        }
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
        let Self { module, memory: _, cpu, amplification, state, fails } = self;
        write!(f, "{{module: {}, memory: {}", module.display(), self.memory_text())?;
        cpu.map_or(Ok(()), |weight| write!(f, ", cpu: {{weight: {weight}}}"))?;
        write!(f, ", amplification: {amplification}, state: {}, fails: {}}}", state.word(), fails.word())
    }
}
