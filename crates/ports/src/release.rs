//! Removal of a listening socket's path when its port is dropped.
//!
//! Why: the process that carries packets may not write to the directory; the one that made the socket removes it.
//! Not here: which paths may be removed (`handover`).
//! Invariant: a path is removed at most once.

/// Removes a socket's path from the file system; usually asks the process that made it to do so.
pub struct Release(Box<dyn FnOnce() + Send + Sync>);

impl Release {
    /// A release that calls `free`.
    pub fn by(free: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Box::new(free))
    }

    pub(crate) fn free(self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Release")
    }
}
