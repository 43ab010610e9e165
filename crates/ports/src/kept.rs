//! TAPs that outlive the daemon: the service manager keeps their files while no daemon runs.
//!
//! Why: a TAP disappears with the last file that is open on it, and with it its tenant's addresses, routes and connections.
//! A crash or an upgrade should cost the tenant a pause and no more.
//! From: systemd's file descriptor store, `sd_notify(3)` and `sd_listen_fds(3)`.
//! Not here: which TAP belongs to which tenant (`daemon`), and how many the manager keeps (`FileDescriptorStoreMax=`).
//! Invariant: a file that comes back is used only for the interface that it is open on, whatever its name in the store.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;

use crate::error::PortError;
use crate::foreign::{Closer, Foreign};
use crate::manager;
use crate::netns::Netns;
use crate::port::Port;
use crate::tap::{Tap, TapConfig};

/// The TAPs that the service manager has kept from an earlier run of this service.
///
/// ```no_run
/// use plimsoll_ports::{Kept, TapConfig};
/// # fn main() -> Result<(), plimsoll_ports::PortError> {
/// let mut kept = Kept::receive();
/// match kept.take(&TapConfig::new("shop".into(), "eth0"))? {
///     Some(tap) => println!("{} is taken up again", tap.name()),
///     None => println!("a new TAP is needed"),
/// }
/// kept.let_go();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Kept {
    /// By the TAP's namespace number and interface name: its file, and the file's name in the manager's store.
    taps: HashMap<(u64, String), (OwnedFd, String)>,
    /// Names of stored files that are not usable TAPs.
    useless: Vec<String>,
}

impl Kept {
    /// Takes the files that this process was started with; none without a service manager, and none on a second call.
    #[must_use]
    pub fn receive() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let mut kept = Self::default();
        if TAKEN.swap(true, Ordering::Relaxed) {
            return kept;
        }
        for (file, device) in sd_notify::listen_fds_with_names().into_iter().flatten() {
            // SAFETY: the service manager has opened it for this very process, as LISTEN_PID says, so nothing else in
            // the process owns it; the swap above lets it be owned once.
            kept.add(unsafe { OwnedFd::from_raw_fd(file) }, device);
        }
        kept
    }

    fn add(&mut self, file: OwnedFd, device: String) {
        match Tap::place_of(&file) {
            Some(place) => {
                let other = self.taps.insert(place, (file, device));
                self.useless.extend(other.map(|(_, device)| device));
            }
            None => {
                discard(file);
                self.useless.push(device);
            }
        }
    }

    /// Takes the TAP that `config` describes, if the manager has kept it.
    ///
    /// # Errors
    /// When the interface cannot be configured as `config` says.
    pub fn take(&mut self, config: &TapConfig) -> Result<Option<Tap>, PortError> {
        // In a namespace that does not exist there is no interface; the error comes when a new one is made.
        let number = Netns::open(&config.netns).ok().and_then(|netns| netns.number().ok());
        let found = number.and_then(|number| self.taps.remove(&(number, config.name.clone())));
        let Some((file, device)) = found else { return Ok(None) };
        let resumed = Tap::resume(file, device.clone(), config);
        if resumed.is_err() {
            // The next start then makes a new interface.
            close(&device);
        }
        resumed.map(Some)
    }

    /// Tells the manager to close the files that were not taken: of tenants that were removed, or interfaces that were
    /// renamed. Not to be called by a start that fails, as the next start may take them.
    pub fn let_go(self) {
        for device in self.taps.into_values().map(|(_, device)| device).chain(self.useless) {
            close(&device);
        }
    }
}

/// Gives the service manager a copy of the port's file to keep, if the port is a TAP whose file it does not keep already.
/// Does nothing without a service manager.
///
/// # Errors
/// When the message cannot be sent.
pub fn keep(port: &Port) -> io::Result<()> {
    match port {
        Port::Tap(tap) if !tap.is_resumed() => {
            let state = [NotifyState::FdStore, NotifyState::FdName(tap.device())];
            manager::notify(&state, &[tap.as_fd()])
        }
        _ => Ok(()),
    }
}

/// Tells the service manager to close its copy of the port's file, before the port is closed for good.
pub fn forget(port: &Port) {
    if let Port::Tap(tap) = port {
        close(tap.device());
    }
}

/// Closes a file of unknown kind on another thread, as that may take any time.
fn discard(file: OwnedFd) {
    match Closer::of("LISTEN_FDS".as_ref()) {
        Ok(closer) => drop(Foreign::new(file, &closer)),
        // No descriptors are left for a closer: this one stays open.
        Err(_) => std::mem::forget(file),
    }
}

fn close(device: &str) {
    // A manager that is gone keeps no files.
    let _ = manager::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(device)], &[]);
}
