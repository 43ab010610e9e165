//! Tenants' programs as text.

use std::fmt::Write as _;

use crate::config::Config;
use crate::offload::{Fails, StateKept, TenantProgram};

/// The programs that tenants' packets pass; empty without any.
pub(super) fn programs_text(config: &Config) -> String {
    let mut text = String::new();
    for tenant in &config.tenants {
        let Some(TenantProgram { module, memory, cpu: _, amplification, state, fails }) = &tenant.program
        else {
            continue;
        };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\nPackets of `{}` pass the program {}: memory {memory}",
            tenant.name,
            module.display()
        );
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
