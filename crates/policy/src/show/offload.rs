//! Tenants' programs as text.

use std::fmt::Write as _;

use crate::config::Config;
use crate::offload::{Fails, StateKept, TenantProgram, UnitWeights};

/// The programs that tenants' packets pass; empty without any.
pub(super) fn programs_text(config: &Config) -> String {
    let mut text = String::new();
    for tenant in &config.tenants {
        let Some(program) = &tenant.program else { continue };
        let TenantProgram { module, memory: _, cpu: _, core, units, amplification, state, fails } = program;
        let (name, module, memory) = (&tenant.name, module.display(), program.memory_text());
        // Writing to a string cannot fail.
        let _ = write!(text, "\nPackets of `{name}` pass the program {module}: memory {memory}");
        if let Some(core) = core {
            let _ = write!(text, ", on core {core}");
        }
        if *units != UnitWeights::default() {
            let _ = write!(text, ", weights at coprocessors {units}");
        }
        if *amplification > 1 {
            let _ = write!(text, ", up to {amplification} packets for each");
        }
        if *state == StateKept::Keep {
            text.push_str(", a reload that changes it keeps its state");
        }
        let _ = writeln!(
            text,
            "\n  once calls of it take too long it is halted, and {}",
            match fails {
                Fails::Closed => "its packets are lost",
                Fails::Open => "its packets pass without it",
            }
        );
    }
    text
}
