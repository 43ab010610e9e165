//! What came from outside: descriptors, connections and memory of tenants, and what they may have left in a socket's queue.
//!
//! Why: the last close of a descriptor runs its owner's code or waits for its owner's network, for as long as that owner
//! likes. On the engine's thread every tenant would wait for it.
//! From: unix(7): `SCM_RIGHTS` that nobody reads are closed with the socket, or with the read that has no room for them.
//! Not here: what is said over a connection (`shared_memory`, `vhost_user`, the daemon's API).
//! Invariant: dropping a [`Foreign`], wherever that happens, hands it to the thread of its place (`closer`). Connections are
//! accepted and read here only (`clippy.toml` refuses it elsewhere): what is accepted is [`Foreign`], what is received with a
//! message as well, and a read that takes no descriptors leaves them where they are.

mod closer;
mod connection;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

pub use closer::Closer;
pub(crate) use connection::{Connection, Listener, Read};
pub use connection::{hang_up, read};

/// Something that came from outside, or that a listener may hold for somebody outside. Its drop takes no time: the thread of its
/// place closes it.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use plimsoll_ports::foreign::{Closer, Foreign};
/// # fn main() -> std::io::Result<()> {
/// let (ours, theirs) = UnixStream::pair()?;
/// let closer = Closer::of("/run/plimsoll/shop.sock".as_ref())?;
/// drop(Foreign::new(theirs, &closer)); // whatever lies unread in its queue
/// # drop(ours);
/// # Ok(())
/// # }
/// ```
pub struct Foreign<T: Send + 'static> {
    thing: ManuallyDrop<T>,
    /// None for what is ours after all.
    closer: Option<Closer>,
    weight: u32,
}

/// A descriptor that came from outside.
pub type ForeignFd = Foreign<OwnedFd>;

impl<T: Send + 'static> Foreign<T> {
    /// To be closed by this closer.
    #[must_use]
    pub fn new(thing: T, closer: &Closer) -> Self {
        Self { thing: ManuallyDrop::new(thing), closer: Some(closer.clone()), weight: 1 }
    }

    /// Memory: a place is full with a few of them.
    #[must_use]
    pub(crate) fn memory(thing: T, closer: &Closer) -> Self {
        Self { thing: ManuallyDrop::new(thing), closer: Some(closer.clone()), weight: closer::MOST / 4 }
    }

    /// Where something from outside may come later; this is ours, and dropped where it is.
    #[must_use]
    pub(crate) fn ours(thing: T) -> Self {
        Self { thing: ManuallyDrop::new(thing), closer: None, weight: 0 }
    }

    /// Lets it be dropped where it is, as nothing from outside is left of it.
    fn make_ours(&mut self) {
        self.closer = None;
    }

    /// Takes it out, for one who sees to it that it is closed elsewhere.
    pub(crate) fn into_inner(mut self) -> T {
        self.closer = None;
        // SAFETY: `self` is forgotten right away, so that nobody uses or drops `thing` again.
        let thing = unsafe { ManuallyDrop::take(&mut self.thing) };
        std::mem::forget(self);
        thing
    }
}

impl<T: Send + 'static> Drop for Foreign<T> {
    fn drop(&mut self) {
        // SAFETY: this is its drop; nobody uses `thing` afterwards.
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
