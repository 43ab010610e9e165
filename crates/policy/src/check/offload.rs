//! Tenants' programs: where their modules are, and whose cores are whose.
//!
//! Why: two threads that are to have the same core to themselves take it from each other.
//! From: FairNIC §4.1 (cores are divided among tenants once, and not shared).
//! Not here: whether this machine has a core (`machine`).
//! Invariant: a core is one program's, or one engine thread's, or no one's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_document::{Located, Mark, Sources};

use crate::config::EngineConfig;
use crate::law::{Law, Problem, Problems};
use crate::offload::TenantProgram;
use crate::read::syntax::TenantEntry;

/// A tenant's program, with the path of its module as seen from where the policy is read.
pub(super) fn stated(entry: &TenantEntry, sources: &Sources) -> Option<TenantProgram> {
    let stated = entry.program.as_ref()?;
    let beside = |path: &str| super::compose::beside(&sources.file(stated.at.file).name, path);
    let module = PathBuf::from(beside(&stated.program.module.display().to_string()));
    Some(TenantProgram { module, ..stated.program.clone() })
}

/// The cores that programs have to themselves, with where they are stated.
pub(super) fn cores(tenants: &[TenantEntry]) -> impl Iterator<Item = (&TenantEntry, Located<u32>)> {
    let core = |tenant: &TenantEntry| {
        let stated = tenant.program.as_ref()?;
        Some(Located::new(stated.program.core?, stated.core_at?))
    };
    tenants.iter().filter_map(move |tenant| Some((tenant, core(tenant)?)))
}

/// Refuses a core that two programs are to have, or that an engine thread has.
pub(super) fn judge(
    tenants: &[TenantEntry],
    (engine, engine_at): (&EngineConfig, Option<Mark>),
    problems: &mut Problems,
) {
    let mut first: BTreeMap<u32, (&TenantEntry, Mark)> = BTreeMap::new();
    for (tenant, core) in cores(tenants) {
        let name = &tenant.name.value;
        if let Some((other, at)) = first.get(&core.value) {
            let message = format!(
                "the programs of `{}` and `{name}` are both to have core {} to themselves",
                other.name.value, core.value
            );
            let problem = Problem::error(Law::BadValue, core.at, message).label("stated again");
            problems.push(problem.also(*at, "first stated here").help("write another core for one of them"));
            continue;
        }
        first.insert(core.value, (tenant, core.at));
        let Some((engine_first, at)) = engine.cpu.zip(engine_at) else { continue };
        let threads = engine_first..engine_first.saturating_add(engine.threads.max(1));
        if threads.contains(&core.value) {
            let message = format!(
                "the program of `{name}` is to have core {} to itself, which is the engine's",
                core.value
            );
            let problem = Problem::error(Law::BadValue, core.at, message).label("this core");
            let help = "write another core, here or in `engine`; with several `threads` the engine has as many cores, from `cpu` on";
            problems.push(problem.also(at, "the engine's").help(help));
        }
    }
}
