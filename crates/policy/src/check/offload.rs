//! Tenants' programs: where their modules are.

use std::path::PathBuf;

use plimsoll_document::Sources;

use crate::offload::TenantProgram;
use crate::read::syntax::TenantEntry;

/// A tenant's program, with the path of its module as seen from where the policy is read.
pub(super) fn stated(entry: &TenantEntry, sources: &Sources) -> Option<TenantProgram> {
    let stated = entry.program.as_ref()?;
    let beside = |path: &str| super::compose::beside(&sources.file(stated.at.file).name, path);
    let module = PathBuf::from(beside(&stated.program.module.display().to_string()));
    Some(TenantProgram { module, ..stated.program.clone() })
}
