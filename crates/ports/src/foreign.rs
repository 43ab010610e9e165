//! Foreign resources: descriptors, connections and memory that came from tenants over a local socket.
//!
//! Why: the last close of a descriptor can run a tenant's code (a FUSE file system) or wait for a tenant's network, for as
//! long as the tenant likes. On the engine's thread every other tenant would wait too.
//! From: unix(7): unread `SCM_RIGHTS` are closed with the socket, or by a read that has no room for them.
//! Not here: the protocols of connections (`shared_memory`, `vhost_user`, the daemon's API).
//! Invariant: dropping a [`Foreign`] on any thread hands it to its socket's closing thread (`closer`). Connections are
//! accepted and read only here (`clippy.toml` refuses these calls elsewhere): an accepted connection is [`Foreign`], so is
//! each descriptor received with a message, and a read that expects no descriptors leaves them in the queue.

mod closer;
mod connection;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

pub use closer::Closer;
pub(crate) use connection::{Connection, Listener, Read};
pub use connection::{hang_up, read};

/// A resource that came from a tenant, or a listening socket whose queue may hold such resources. Dropping it takes no
/// time: the closing thread of its socket drops the contents.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use plimsoll_ports::foreign::{Closer, Foreign};
/// # fn main() -> std::io::Result<()> {
/// let (ours, theirs) = UnixStream::pair()?;
/// let closer = Closer::of("/run/plimsoll/shop.sock".as_ref())?;
/// drop(Foreign::new(theirs, &closer)); // closed by another thread, with all that lies unread in its queue
/// # drop(ours);
/// # Ok(())
/// # }
/// ```
pub struct Foreign<T: Send + 'static> {
    thing: ManuallyDrop<T>,
    /// None when the contents are this process's own and can be dropped in place.
    closer: Option<Closer>,
    weight: u32,
}

/// A descriptor that came from a tenant.
pub type ForeignFd = Foreign<OwnedFd>;

impl<T: Send + 'static> Foreign<T> {
    /// Marks `thing` as foreign, to be dropped by this closer.
    #[must_use]
    pub fn new(thing: T, closer: &Closer) -> Self {
        Self { thing: ManuallyDrop::new(thing), closer: Some(closer.clone()), weight: 1 }
    }

    /// Marks memory as foreign; it weighs as much as several descriptors, so that four of them fill a closer.
    #[must_use]
    pub(crate) fn memory(thing: T, closer: &Closer) -> Self {
        Self { thing: ManuallyDrop::new(thing), closer: Some(closer.clone()), weight: closer::MOST / 4 }
    }

    /// Wraps a value of this process's own, which is dropped in place; for a field that may later hold a foreign one.
    #[must_use]
    pub(crate) fn ours(thing: T) -> Self {
        Self { thing: ManuallyDrop::new(thing), closer: None, weight: 0 }
    }

    /// Lets the contents be dropped in place, when nothing foreign is left in them.
    fn make_ours(&mut self) {
        self.closer = None;
    }

    /// Takes the contents out; the caller must have them closed on another thread.
    pub(crate) fn into_inner(mut self) -> T {
        self.closer = None;
        // SAFETY: `self` is forgotten right away, so that `thing` is not used or dropped again.
        let thing = unsafe { ManuallyDrop::take(&mut self.thing) };
        std::mem::forget(self);
        thing
    }
}

impl<T: Send + 'static> Drop for Foreign<T> {
    fn drop(&mut self) {
        // SAFETY: this is the drop of `self`; `thing` is not used afterwards.
        let thing = unsafe { ManuallyDrop::take(&mut self.thing) };
        if let Some(closer) = self.closer.take() {
            closer.close(thing, self.weight);
        }
    }
}

impl<T: Send + 'static> Deref for Foreign<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: Send + 'static> DerefMut for Foreign<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.thing
    }
}

impl<T: fmt::Debug + Send + 'static> fmt::Debug for Foreign<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Foreign").field(&*self.thing).finish()
    }
}
