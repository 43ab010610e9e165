//! The parts that a host of a fleet needs before its engine starts: the key, its address, its UDP ports.
//!
//! Why: a key that others can read, or a port that another program has, ends the start with advice on what to do.
//! From: `docs/overlay.md`, "Join two hosts"; ssh's rule that only its owner may read a private key.
//! Not here: packets (`dataplane::fleet`), the control channel (`channel`).
//! Invariant: no daemon runs with a key that a user other than its owner can read or write.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::socket::{setsockopt, sockopt};
use plimsoll_control::FleetKeys;
use plimsoll_policy::{Checked, Encapsulation, Overlay, Program};
use plimsoll_ports::Port;

use crate::dataplane::{FleetSetup, fleet_map, own_mac};
use crate::open::steady_uplink_mac;

/// Why a host cannot join its fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The system has no random number for us.
    #[error("cannot read {RANDOM}, from which each start takes a number: {0}")]
    NoRandom(io::Error),
    /// The key file cannot be read.
    #[error(
        "the key of `overlay`: cannot read {}: {source}; `head -c 32 /dev/urandom >KEY; chmod 600 KEY` makes a key, the \
         same for all hosts", file.display()
    )]
    NoKey {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Others may read or write it.
    #[error("the key of `overlay`: {} may be read or written by others (mode {mode:03o}); `chmod 600 {}`, and make a new key if another user may have read it", file.display(), file.display())]
    OpenKey {
        /// The file.
        file: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The key file belongs to another user.
    #[error("the key of `overlay`: {} belongs to user {owner}; `chown` it to the one that runs plimsoll, or to root", file.display())]
    ForeignKey {
        /// The file.
        file: PathBuf,
        /// The user that it belongs to.
        owner: u32,
    },
    /// It holds no key.
    #[error("the key of `overlay`: {} holds {found} bytes and not 32; `head -c 32 /dev/urandom >{}` makes a key", file.display(), file.display())]
    NotAKey {
        /// The file.
        file: PathBuf,
        /// How long it is.
        found: usize,
    },
    /// Another program has the overlay's port.
    #[error(
        "another program has UDP port {port} of {address}, which the overlay needs (the kernel's own VXLAN or Geneve \
         device, say); remove it, or write another `port` for the overlay of all hosts"
    )]
    PortTaken {
        /// This host's address.
        address: IpAddr,
        /// The port.
        port: u16,
    },
    /// The control channel cannot listen.
    #[error(
        "the control channel cannot listen on {address} (`channel` of this host): {source}; write an address that this host has, and a free port"
    )]
    Channel {
        /// Where.
        address: std::net::SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// A socket could not be made.
    #[error("cannot reserve the overlay's UDP port: {0}")]
    Socket(io::Error),
}

/// Reads the fleet's key: 32 bytes in a file that only its owner may read or write.
///
/// # Errors
/// [`FleetError`].
pub fn read_key(file: &Path) -> Result<[u8; 32], FleetError> {
    let failed = |source| FleetError::NoKey { file: file.to_owned(), source };
    let opened = File::open(file).map_err(failed)?;
    let found = opened.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")));
    }
    if found.mode() & 0o077 != 0 {
        return Err(FleetError::OpenKey { file: file.to_owned(), mode: found.mode() & 0o777 });
    }
    let owner = found.uid();
    if owner != 0 && owner != nix::unistd::geteuid().as_raw() {
        return Err(FleetError::ForeignKey { file: file.to_owned(), owner });
    }
    let mut bytes = Vec::new();
    opened.take(1_024).read_to_end(&mut bytes).map_err(failed)?;
    bytes.as_slice().try_into().map_err(|_| FleetError::NotAKey { file: file.to_owned(), found: bytes.len() })
}

/// Reads the keys of an overlay; none where nothing is sealed.
///
/// # Errors
/// [`FleetError`].
pub(crate) fn read_keys(overlay: Option<&Overlay>) -> Result<Option<FleetKeys>, FleetError> {
    let Some((overlay, own)) = overlay.and_then(|overlay| Some((overlay, overlay.key.as_ref()?))) else {
        return Ok(None);
    };
    let others: Result<Vec<_>, _> = overlay.accept_keys.iter().map(|file| read_key(file)).collect();
    Ok(Some(FleetKeys::new(read_key(own)?, &others?)))
}

/// Makes the engine's part of the policy's fleet; the fleet's limits are added to the program.
pub(crate) fn setup(
    checked: &Checked,
    uplink: &Port,
    program: &mut Program,
    keys: Option<FleetKeys>,
) -> Result<Option<FleetSetup>, FleetError> {
    let Some(map) = fleet_map(checked, program) else { return Ok(None) };
    let overlay = checked.config.overlay.as_ref();
    let name = overlay.map_or("", |overlay| overlay.own().name.as_str());
    let mac = own_mac(uplink).unwrap_or_else(|| steady_uplink_mac(name));
    #[expect(
        clippy::disallowed_methods,
        reason = "a number above those of earlier starts; one below them is refused"
    )]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let sequence = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2);
    Ok(Some(FleetSetup { map, mac, keys, sequence, start: random().map_err(FleetError::NoRandom)? }))
}

/// Where the kernel's random numbers come from.
const RANDOM: &str = "/dev/urandom";

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

/// The overlay's UDP ports, bound so that a kernel that has this host's address, too, does not answer "port unreachable".
#[derive(Debug)]
pub(crate) struct Reserved {
    _sockets: Vec<UdpSocket>,
}

/// Binds them. Where the kernel does not have the address, there is nothing to bind.
pub(crate) fn reserve(overlay: &Overlay) -> Result<Reserved, FleetError> {
    let address = overlay.own().address;
    let usual = match overlay.kind {
        Encapsulation::Vxlan => 4_789,
        Encapsulation::Geneve => 6_081,
    };
    let mut ports = vec![overlay.port.unwrap_or(usual)];
    if overlay.kind == Encapsulation::Vxlan && overlay.feedback.is_some() {
        ports.push(6_081);
    }
    let mut sockets = Vec::new();
    for port in ports {
        match UdpSocket::bind((address, port)) {
            Ok(socket) => {
                // The socket is never read: the kernel drops packets for it silently.
                let _ = setsockopt(&socket, sockopt::RcvBuf, &0);
                // Otherwise it would cut a datagram of many packets before it drops them. An older kernel lacks this.
                let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
                sockets.push(socket);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(FleetError::PortTaken { address, port });
            }
            Err(error) => return Err(FleetError::Socket(error)),
        }
    }
    Ok(Reserved { _sockets: sockets })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_its_owners_only_and_32_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("fleet.key");
        let said = |file: &Path| read_key(file).expect_err("refused").to_string();
        assert!(said(&file).contains("cannot read"));
        fs::write(&file, [7; 31]).expect("written");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("set");
        assert!(said(&file).contains("mode 640"), "{}", said(&file));
        fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("set");
        assert!(said(&file).contains("holds 31 bytes"), "{}", said(&file));
        fs::write(&file, [7; 32]).expect("written");
        assert_eq!(read_key(&file).expect("a key"), [7; 32]);
    }
}
