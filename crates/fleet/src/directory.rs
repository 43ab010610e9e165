//! Where a fleet's key-values are kept: behind one trait, in a file or in etcd.
//!
//! Why: a few hosts share a file, many share etcd, and nothing else has to know which.
//! From: etcd's key-value store, of which this is the part that a fleet needs.
//! Not here: what the values mean (`object`, `state`).
//! Invariant: a transaction is applied whole, if all its conditions hold, or not at all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::file::FileDirectory;

/// A directory's key-values; keys are below the fleet's own prefix.
pub type Keys = BTreeMap<String, Vec<u8>>;

/// A key's new value; none: it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Option<Vec<u8>>,
}

/// What a directory tells who waits for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// These keys have changed, in this order; none: nothing has.
    Changes(Vec<Change>),
    /// Changes were missed: this is all that there is now.
    All(Keys),
}

/// Changes that are made together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Values that keys must have, or that they must not be there.
    pub conditions: Vec<(String, Option<Vec<u8>>)>,
    /// What is put, or taken away.
    pub changes: Vec<Change>,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// It is in the directory.
    Done,
    /// A condition did not hold: another one was faster.
    Conflict,
}

/// Why a directory does not answer.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Nothing answers, or not in time.
    #[error("the fleet's directory at {place} does not answer: {why}")]
    Unreachable {
        /// Where it is.
        place: String,
        /// What happened.
        why: String,
    },
    /// It answers, and refuses.
    #[error("the fleet's directory at {place} refuses: {why}")]
    Refused {
        /// Where it is.
        place: String,
        /// Its words.
        why: String,
    },
    /// Its content makes no sense as a whole.
    #[error("{place} is no directory of a fleet: {why}; `plimsoll fleet init` makes one")]
    Strange {
        /// Where it is.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// The option that says where it is.
    #[error("`{place}` names no directory: {why}")]
    Place {
        /// What was stated.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Where a fleet's key-values are kept.
pub trait Directory: Send {
    /// Where it is, for messages.
    fn place(&self) -> &str;

    /// All key-values.
    ///
    /// # Errors
    /// [`DirectoryError`].
    fn read(&mut self) -> Result<Keys, DirectoryError>;

    /// Waits up to `patience` for changes since the last call; the first call tells all at once.
    ///
    /// # Errors
    /// [`DirectoryError`]. The next call connects anew, and tells what was missed.
    fn wait(&mut self, patience: Duration) -> Result<News, DirectoryError>;

    /// Makes changes, if all conditions hold.
    ///
    /// # Errors
    /// [`DirectoryError`]. Whether it was done may then be unknown.
    fn commit(&mut self, transaction: &Transaction) -> Result<Outcome, DirectoryError>;

    /// Puts a value under a key that goes when `lease` has passed without another call.
    ///
    /// # Errors
    /// [`DirectoryError`].
    fn keep(&mut self, key: &str, value: &[u8], lease: Duration) -> Result<(), DirectoryError>;

    /// Takes that key away now.
    ///
    /// # Errors
    /// [`DirectoryError`].
    fn drop_kept(&mut self, key: &str) -> Result<(), DirectoryError>;
}

/// How etcd is reached, beside its addresses.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The certificate authority that signed the servers' certificates (PEM).
    pub ca: Option<PathBuf>,
    /// This client's certificate and key (PEM).
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A user and the file with the password.
    pub user: Option<(String, PathBuf)>,
}

/// Opens the directory at a file's path, or at URLs such as `https://10.0.0.1:2379,https://10.0.0.2:2379/prod`, whose path is
/// the fleet's name. Nothing is asked yet.
///
/// # Errors
/// [`DirectoryError::Place`].
pub fn open(place: &str, access: &Access) -> Result<Box<dyn Directory>, DirectoryError> {
    if !place.starts_with("http://") && !place.starts_with("https://") {
        return Ok(Box::new(FileDirectory::new(place)));
    }
    etcd(place, access)
}

#[cfg(feature = "etcd")]
fn etcd(place: &str, access: &Access) -> Result<Box<dyn Directory>, DirectoryError> {
    Ok(Box::new(crate::etcd::EtcdDirectory::new(place, access)?))
}

#[cfg(not(feature = "etcd"))]
fn etcd(place: &str, _: &Access) -> Result<Box<dyn Directory>, DirectoryError> {
    let why = "this plimsoll was built without etcd (feature `etcd`); name a file".to_owned();
    Err(DirectoryError::Place { place: place.to_owned(), why })
}
