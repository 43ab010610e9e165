//! The folder of the tenants' files.
//!
//! Why: the calls of several plugins, and several calls of one, come at once.
//! From: a lock on a hidden file; a file gets its name once it is whole.
//! Not here: what the files say.
//! Invariant: while a [`Folder`] lives, no other process changes the folder by one.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use super::{Attachment, Kind, Maker, Trouble, tenant_in, veth_in};

/// The folder of the tenants' files, locked.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Open while this call may change the folder.
    _lock: File,
}

impl Folder {
    /// Waits until no other call changes the folder.
    pub(crate) fn lock(path: &Path) -> Result<Self, Trouble> {
        let open = || -> io::Result<File> {
            let lock = File::options().create(true).truncate(false).write(true).open(path.join(".lock"))?;
            lock.lock()?;
            Ok(lock)
        };
        let failed = |error: io::Error| {
            let message = format!("cannot use the folder of tenants {}: {error}", path.display());
            let details = "make it, and name it by `include` in plimsoll's policy and by `tenants` where containers are attached";
            Trouble::new(Kind::Io, message).details(details)
        };
        Ok(Self { path: path.to_owned(), _lock: open().map_err(failed)? })
    }

    pub(crate) fn write(&self, attachment: &Attachment, text: &str) -> Result<(), Trouble> {
        let name = attachment.name();
        write_whole(&self.path, &name, text).map_err(|error| self.failed("write", &name, &error))
    }

    /// The text of an attachment's file.
    pub(crate) fn read(&self, attachment: &Attachment) -> Result<Option<String>, Trouble> {
        match fs::read_to_string(self.path.join(attachment.name())) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", &attachment.name(), &error)),
        }
    }

    /// Removes an attachment's file; false if there is none.
    pub(crate) fn remove(&self, attachment: &Attachment) -> Result<bool, Trouble> {
        self.remove_file(&attachment.name())
    }

    fn remove_file(&self, name: &str) -> Result<bool, Trouble> {
        let path = self.path.join(name);
        if let Ok(text) = fs::read_to_string(&path)
            && let Some(host) = veth_in(&text)
        {
            crate::attach::forget(host);
        }
        match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.failed("remove", name, &error)),
        }
    }

    /// Removes the files of containers that have gone, of which `gone` decides by their text, and returns these texts. The daemon would
    /// not take in a new tenant beside one whose port is missing. Tenants that are `up` stay, whatever this process sees.
    pub(crate) fn sweep(&self, maker: Maker, up: &[String], gone: impl Fn(&str) -> bool) -> Vec<String> {
        let is_up = |text: &str| tenant_in(text).is_some_and(|tenant| up.iter().any(|name| name == tenant));
        let rest = self.files(maker).into_iter().filter(|(_, text)| gone(text) && !is_up(text));
        // The daemon's refusal tells what stays.
        rest.filter(|(name, _)| self.remove_file(name) == Ok(true)).map(|(_, text)| text).collect()
    }

    /// Removes the files of which `belongs` says so by their text, but those of `valid`; returns the texts of those.
    pub(crate) fn keep_only(
        &self,
        maker: Maker,
        valid: &[Attachment],
        belongs: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Trouble> {
        let is_valid = |name: &str| valid.iter().any(|attachment| attachment.name() == name);
        let rest = self.files(maker).into_iter().filter(|(name, text)| belongs(text) && !is_valid(name));
        rest.map(|(name, text)| self.remove_file(&name).map(|_| text)).collect()
    }

    /// The maker's files, with their texts.
    fn files(&self, maker: Maker) -> Vec<(String, String)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ours =
            names.filter(|name| name.starts_with(maker.prefix) && name.ends_with(plimsoll_policy::INCLUDED));
        ours.filter_map(|name| Some((fs::read_to_string(self.path.join(&name)).ok()?, name)))
            .map(|(text, name)| (name, text))
            .collect()
    }

    fn failed(&self, what: &str, file: &str, error: &io::Error) -> Trouble {
        Trouble::new(Kind::Io, format!("cannot {what} {}: {error}", self.path.join(file).display()))
    }
}

/// Writes a file that is there whole or not at all.
pub(crate) fn write_whole(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    // Hidden, so that no policy includes it before it is whole.
    let beside = folder.join(format!(".{name}"));
    let mut new = File::create(&beside)?;
    new.write_all(text.as_bytes())?;
    // Before it has its name: after a power cut a file without its content would keep the daemon from starting.
    new.sync_all()?;
    fs::rename(&beside, folder.join(name))
}
