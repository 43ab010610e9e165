//! TAPs that outlive the daemon: their files are with the service manager while nobody runs.
//!
//! Why: a TAP goes with the last file that is open on it, and with it its tenant's addresses, routes and connections. A
//! crash, or a new version, shall cost the tenant a pause and no more.
//! From: systemd's file descriptor store, `sd_notify(3)` and `sd_listen_fds(3)`.
//! Not here: which TAP belongs to whom (`daemon`), and how many the manager keeps (`FileDescriptorStoreMax=`).
//! Invariant: a file that comes back is used for the interface that it is open on, whatever it is called, or not at all.

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

/// What the service manager has kept from an earlier run of this service.
///
/// ```no_run
/// use plimsoll_ports::{Kept, TapConfig};
/// # fn main() -> Result<(), plimsoll_ports::PortError> {
/// let mut kept = Kept::receive();
/// match kept.take(&TapConfig::new("shop".into(), "eth0"))? {
///     Some(tap) => println!("{} is as it was", tap.name()),
///     None => println!("it has to be made"),
/// }
/// kept.let_go();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Kept {
    /// By the number of their namespace and their name there: the file, and what the manager calls it.
    taps: HashMap<(u64, String), (OwnedFd, String)>,
    /// What the manager calls those that nothing can be done with.
    useless: Vec<String>,
}

impl Kept {
    /// Takes what this process was started with; nothing without a service manager, and nothing a second time.
    #[must_use]
    pub fn receive() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let mut kept = Self::default();
        if TAKEN.swap(true, Ordering::Relaxed) {
            return kept;
        }
        for (file, device) in sd_notify::listen_fds_with_names().into_iter().flatten() {
            // SAFETY: the service manager has opened it for this very process, as LISTEN_PID says, which is why nobody
            // else in it knows it; the swap above lets it be owned once.
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

    /// The interface that `config` describes, if it is among them.
    ///
    /// # Errors
    /// When the interface cannot be given what `config` says.
    pub fn take(&mut self, config: &TapConfig) -> Result<Option<Tap>, PortError> {
        // A namespace that is not there has nothing that could be taken up; who makes the interface says so.
        let number = Netns::open(&config.netns).ok().and_then(|netns| netns.number().ok());
        let found = number.and_then(|number| self.taps.remove(&(number, config.name.clone())));
        let Some((file, device)) = found else { return Ok(None) };
        let resumed = Tap::resume(file, device.clone(), config);
        if resumed.is_err() {
            // Whatever becomes of this start, the next one makes the interface anew.
            close(&device);
        }
        resumed.map(Some)
    }

    /// Has the manager close what nobody took: tenants that are no more, interfaces that were renamed. A start that fails
    /// does without, as the next one may take it.
    pub fn let_go(self) {
        for device in self.taps.into_values().map(|(_, device)| device).chain(self.useless) {
            close(&device);
        }
    }
}

/// Hands the service manager a copy of the port's file to keep, where it is a TAP's that it has not kept already. Without
/// a service manager there is nobody to ask.
///
/// # Errors
/// When it cannot be told.
pub fn keep(port: &Port) -> io::Result<()> {
    match port {
        Port::Tap(tap) if !tap.is_resumed() => {
            let state = [NotifyState::FdStore, NotifyState::FdName(tap.device())];
            manager::notify(&state, &[tap.as_fd()])
        }
        _ => Ok(()),
    }
}

/// Has the service manager close its copy, before the port is closed for good.
pub fn forget(port: &Port) {
    if let Port::Tap(tap) = port {
        close(tap.device());
    }
}

/// Anything may be with the manager, and take any time to close.
fn discard(file: OwnedFd) {
    match Closer::of("LISTEN_FDS".as_ref()) {
        Ok(closer) => drop(Foreign::new(file, &closer)),
        // Short of descriptors: one more stays open.
        Err(_) => std::mem::forget(file),
    }
}

fn close(device: &str) {
    // A manager that is gone keeps nothing.
    let _ = manager::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(device)], &[]);
}
