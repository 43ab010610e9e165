//! TAPs that outlive the daemon: their files are with the service manager while nobody runs.
//!
//! Why: a TAP goes with the last file that is open on it, and with it its tenant's addresses, routes and connections. A
//! crash, or a new version, shall cost the tenant a pause and nothing else.
//! From: systemd's file descriptor store, `sd_notify(3)` and `sd_listen_fds(3)`.
//! Not here: which TAP belongs to whom (`daemon`), and whether the manager keeps any (`FileDescriptorStoreMax=`).
//! Invariant: a file that comes back is used for the interface that it is open on, whatever it is called, or not at all.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;

use crate::error::PortError;
use crate::port::Port;
use crate::tap::{Tap, TapConfig};

/// What the service manager has kept from an earlier run of this service, each with the name that it was given under.
///
/// ```no_run
/// use plimsoll_ports::{Kept, TapConfig};
/// # fn main() -> Result<(), plimsoll_ports::PortError> {
/// let mut kept = Kept::receive();
/// let config = TapConfig::new("shop".into(), "eth0");
/// match kept.take(&config)? {
///     Some(tap) => println!("{} is as it was", tap.name()),
///     None => println!("it has to be made"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Kept {
    files: Vec<(OwnedFd, String)>,
}

impl Kept {
    /// Takes what this process was started with; nothing without a service manager, and nothing a second time.
    #[must_use]
    pub fn receive() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        if TAKEN.swap(true, Ordering::Relaxed) {
            return Self::default();
        }
        let Ok(handed) = sd_notify::listen_fds_with_names() else { return Self::default() };
        // SAFETY: the service manager has opened these for this very process, as LISTEN_PID says, which is why nobody
        // else in it knows them; the swap above lets them be owned once.
        let owned = |(fd, name)| (unsafe { OwnedFd::from_raw_fd(fd) }, name);
        Self { files: handed.map(owned).collect() }
    }

    /// The interface that `config` describes, if it is among them.
    ///
    /// # Errors
    /// When the interface cannot be given what `config` says.
    pub fn take(&mut self, config: &TapConfig) -> Result<Option<Tap>, PortError> {
        let Some(at) = self.files.iter().position(|(file, _)| Tap::is_open_on(file, config)) else {
            return Ok(None);
        };
        let (file, device) = self.files.swap_remove(at);
        Tap::resume(file, device, config).map(Some)
    }
}

/// What nobody took is of no use: tenants that are no more, interfaces that were renamed.
impl Drop for Kept {
    fn drop(&mut self) {
        for (_, name) in &self.files {
            notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
        }
    }
}

/// Hands the service manager a copy of the port's file to keep, where it is a TAP's that it has not kept already. Without
/// a service manager there is nobody to ask.
pub fn keep(port: &Port) {
    if let Port::Tap(tap) = port
        && !tap.is_resumed()
    {
        let state = [NotifyState::FdStore, NotifyState::FdName(tap.device())];
        // A manager that is gone keeps nothing, and the interface ends with the process.
        let _ = sd_notify::notify_with_fds(&state, &[tap.as_fd()]);
    }
}

/// Has the service manager close its copy, before the port is closed for good.
pub fn forget(port: &Port) {
    if let Port::Tap(tap) = port {
        notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(tap.device())]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    // As above: nobody to tell, or nobody who listens.
    let _ = sd_notify::notify(state);
}
