//! A directory in one file: JSON, locked while it is written, and replaced as a whole.
//!
//! Why: one host, or a few with a shared file system, need no etcd.
//! From: flock(2) on a file beside it, and rename(2): a reader sees the old file or the new one.
//! Not here: what the values mean.
//! Invariant: the file is whole at each moment; leases are moments of the wall clock, which hosts must agree on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::clock::unix_millis as now;
use crate::directory::{Change, Directory, DirectoryError, Keys, News, Outcome, Transaction};

/// How often a waiting reader looks at the file.
const LOOK: Duration = Duration::from_millis(50);
/// The longest file.
const LONGEST: u64 = 64 << 20;

/// A directory in a file.
#[derive(Debug)]
pub struct FileDirectory {
    place: String,
    path: PathBuf,
    /// What the last [`Directory::wait`] told.
    told: Option<Keys>,
    /// The file as it was then.
    stamp: Stamp,
}

/// A file's identity: it is replaced whenever it changes.
type Stamp = Option<(u64, i64, i64, u64)>;

/// The file's form.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    plimsoll_fleet: u32,
    keys: BTreeMap<String, serde_json::Value>,
    /// When keys go, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    until: BTreeMap<String, u64>,
}

impl FileDirectory {
    /// The directory in this file, which need not be there yet.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        Self { place: path.display().to_string(), path, told: None, stamp: None }
    }

    fn unreachable(&self, error: &std::io::Error) -> DirectoryError {
        DirectoryError::Unreachable { place: self.place.clone(), why: error.to_string() }
    }

    fn strange(&self, why: impl ToString) -> DirectoryError {
        DirectoryError::Strange { place: self.place.clone(), why: why.to_string() }
    }

    fn content(&self) -> Result<Content, DirectoryError> {
        let empty = || Content { plimsoll_fleet: 1, ..Content::default() };
        let text = match fs::metadata(&self.path).map(|found| found.len()) {
            Ok(len) if len > LONGEST => {
                return Err(self.strange(format!("it holds more than {LONGEST} bytes")));
            }
            _ => fs::read(&self.path),
        };
        match text {
            Ok(text) => {
                let content: Content = serde_json::from_slice(&text).map_err(|error| self.strange(error))?;
                match content.plimsoll_fleet {
                    1 => Ok(content),
                    other => {
                        Err(self.strange(format!("its form is {other}, and this plimsoll knows form 1")))
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(empty()),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    fn stamp(&self) -> Stamp {
        let found = fs::metadata(&self.path).ok()?;
        Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
    }

    /// Changes the file while no other process does.
    fn change<T>(&self, by: impl FnOnce(&mut Content) -> Option<T>) -> Result<Option<T>, DirectoryError> {
        let beside = self.beside("lock");
        let lock = File::create(&beside).map_err(|error| self.unreachable(&error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| self.unreachable(&error.into()))?;
        let mut content = self.content()?;
        expire(&mut content, now());
        let Some(done) = by(&mut content) else { return Ok(None) };
        let text = serde_json::to_string_pretty(&content).map_err(|error| self.strange(error))?;
        let new = self.beside("new");
        let replace = || {
            fs::write(&new, text + "\n")?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, &self.path)
        };
        replace().map_err(|error| self.unreachable(&error))?;
        Ok(Some(done))
    }

    fn beside(&self, end: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{end}"))
    }
}

impl Directory for FileDirectory {
    fn place(&self) -> &str {
        &self.place
    }

    fn read(&mut self) -> Result<Keys, DirectoryError> {
        let mut content = self.content()?;
        expire(&mut content, now());
        Ok(content.keys.into_iter().map(|(key, value)| (key, bytes(&value))).collect())
    }

    fn wait(&mut self, patience: Duration) -> Result<News, DirectoryError> {
        let end = Instant::now() + patience;
        loop {
            // Before the content, so that a change between the two is seen the next time.
            let stamp = self.stamp();
            // A lease may end while the file stays as it is.
            let ends = self.told.is_some() && stamp == self.stamp && Instant::now() < end;
            if !ends {
                let keys = self.read()?;
                self.stamp = stamp;
                let Some(told) = self.told.replace(keys.clone()) else { return Ok(News::All(keys)) };
                let changes = changes(&told, &keys);
                if !changes.is_empty() || Instant::now() >= end {
                    return Ok(News::Changes(changes));
                }
            }
            std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        }
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, DirectoryError> {
        let done = self.change(|content| {
            let now = |key: &String| content.keys.get(key).map(bytes);
            let held = transaction.conditions.iter().all(|(key, value)| now(key) == *value);
            if !held {
                return None;
            }
            for Change { key, value } in &transaction.changes {
                content.until.remove(key);
                match value.as_ref().and_then(|value| serde_json::from_slice(value).ok()) {
                    Some(value) => _ = content.keys.insert(key.clone(), value),
                    None => _ = content.keys.remove(key),
                }
            }
            Some(())
        })?;
        Ok(if done.is_some() { Outcome::Done } else { Outcome::Conflict })
    }

    fn keep(&mut self, key: &str, value: &[u8], lease: Duration) -> Result<(), DirectoryError> {
        let value = serde_json::from_slice(value).map_err(|error| self.strange(error))?;
        let until = now().saturating_add(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX));
        self.change(|content| {
            content.keys.insert(key.to_owned(), value);
            content.until.insert(key.to_owned(), until);
            Some(())
        })?;
        Ok(())
    }

    fn drop_kept(&mut self, key: &str) -> Result<(), DirectoryError> {
        self.change(|content| {
            content.until.remove(key);
            content.keys.remove(key)
        })?;
        Ok(())
    }
}

/// Takes away the keys whose leases have ended.
fn expire(content: &mut Content, now: u64) {
    let Content { keys, until, .. } = content;
    until.retain(|key, until| {
        let holds = *until > now;
        if !holds {
            keys.remove(key);
        }
        holds
    });
}

/// A value's bytes: the same for the same value, as JSON's maps are ordered here.
fn bytes(value: &serde_json::Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// What leads from `old` to `new`.
fn changes(old: &Keys, new: &Keys) -> Vec<Change> {
    let gone =
        old.keys().filter(|key| !new.contains_key(*key)).map(|key| Change { key: key.clone(), value: None });
    let fresh = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    gone.chain(fresh.map(|(key, value)| Change { key: key.clone(), value: Some(value.clone()) })).collect()
}
