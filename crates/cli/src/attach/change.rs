//! A change to the policy file: written whole, after it has been checked, and put back if it fails.
//!
//! Why: the file is in force on the next start as well, so it must never be half written or wrong.
//! From: `edit`, and the checks of `plimsoll check`.
//! Not here: what changes (`edit`).
//! Invariant: a reader finds the old text or the new one.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use super::edit::{self, Edited, Wanted};
use crate::failure::Failure;
use crate::reader;

/// A change to the policy file.
pub(super) struct Change {
    /// As the operator named it.
    shown: String,
    /// The file behind links.
    file: PathBuf,
    pub original: String,
    pub edited: Edited,
    wanted: Wanted,
}

impl Change {
    /// A change that gives the tenant its port, and that has been checked as `plimsoll check` does it.
    pub(super) fn new(file: &Path, tenant: &str, wanted: &Wanted) -> Result<Self, Failure> {
        let shown = file.display().to_string();
        let found = fs::canonicalize(file).and_then(|file| Ok((fs::read_to_string(&file)?, file)));
        let (original, file) = found.map_err(|error| Failure::io(format!("read {shown}"), &error))?;
        let edited = edit::set_port(&shown, &original, tenant, wanted).map_err(Failure::Wrong)?;
        reader::load_text(&shown, &edited.text)?;
        Ok(Self { shown, file, original, edited, wanted: wanted.clone() })
    }

    pub(super) fn is_done(&self) -> bool {
        self.original == self.edited.text
    }

    pub(super) fn place(&self) -> String {
        format!("{}:{}", self.shown, self.edited.line)
    }

    pub(super) fn words(&self, tenant: &str) -> String {
        let (place, before) = (self.place(), &self.edited.before);
        let now = self.wanted.keys();
        format!("{place}: tenant `{tenant}`: port: {before} -> {now}")
    }

    /// Replaces the file as a whole, so that no reader sees a part of it.
    pub(super) fn write(&self, text: &str) -> Result<(), Failure> {
        let beside = self.file.with_extension(format!("attach-{}", std::process::id()));
        let replace = || -> io::Result<()> {
            let as_before = fs::metadata(&self.file)?;
            fs::write(&beside, text)?;
            fs::set_permissions(&beside, as_before.permissions())?;
            chown(&beside, Some(as_before.uid()), Some(as_before.gid()))?;
            fs::rename(&beside, &self.file)
        };
        replace().map_err(|error| {
            let _ = fs::remove_file(&beside); // it may not be there
            Failure::io(format!("write {}", self.shown), &error)
        })
    }
}
