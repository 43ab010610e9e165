//! What can go wrong while a port is opened or a namespace is built.
//!
//! Why: an operator needs to read what failed, where, and what to do about it.
//! From: the three kinds of error of the style guide; this is the first, "asked for the impossible".
//! Not here: what happens to a running port (`port::Trouble`), which is counted and not printed.

use std::io;
use std::path::PathBuf;

/// Why a port could not be opened, or a namespace not be built.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Linux takes no such name for an interface or a namespace.
    #[error("{kind} name `{name}` {problem}; {advice}")]
    BadName {
        /// `interface` or `network namespace`.
        kind: &'static str,
        /// The name as given.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
        /// What would be right.
        advice: &'static str,
    },

    /// There is no such network namespace.
    #[error(
        "network namespace `{netns}` does not exist ({path} was not found); \
         create it with `ip netns add`, or give the path of one that exists, such as /proc/PID/ns/net"
    )]
    NoNetns {
        /// The namespace as the operator named it.
        netns: String,
        /// Where it was looked for.
        path: PathBuf,
    },

    /// The file is there, and no network namespace.
    #[error(
        "{path} is not a network namespace; \
         give the name of one that `ip netns list` shows, or a path such as /proc/PID/ns/net"
    )]
    NotANetns {
        /// The file that was opened.
        path: PathBuf,
    },

    /// The kernel refused for want of privilege.
    #[error("{what} in {place}: permission denied; {advice}")]
    Permission {
        /// What was tried.
        what: String,
        /// Where.
        place: String,
        /// Who may.
        advice: &'static str,
    },

    /// The name is in use.
    #[error(
        "{what}: the name `{name}` is taken in {place}; another plimsoll may hold it: stop that one, \
         choose another name, or remove what holds it (`ip link`, `ip netns`)"
    )]
    NameTaken {
        /// What was tried.
        what: String,
        /// The name that two want.
        name: String,
        /// Where.
        place: String,
    },

    /// There is no such interface.
    #[error("interface `{name}` does not exist in {place}; `ip link` there lists those that do")]
    NoInterface {
        /// The interface as the operator named it.
        name: String,
        /// Where it was looked for.
        place: String,
    },

    /// The kernel, or the device, cannot do this.
    #[error("{what} in {place} is not supported here: {advice}")]
    Unsupported {
        /// What was tried.
        what: String,
        /// Where.
        place: String,
        /// The way out.
        advice: &'static str,
    },

    /// A capture file cannot be used.
    #[error("{path}: {problem}; {advice}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// The way out.
        advice: &'static str,
    },

    /// The port cannot be configured this way.
    #[error("{what}: {problem}")]
    Config {
        /// The port and the setting.
        what: String,
        /// What is wrong, and what would be right.
        problem: String,
    },

    /// Anything else that the kernel said.
    #[error("{what} in {place}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// Where.
        place: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl PortError {
    /// The kernel refused what a network administrator may do.
    pub(crate) fn denied(what: impl Into<String>, place: impl Into<String>) -> Self {
        let advice = "run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN, \
                      or in a user namespace of its own (`unshare -Urnm`)";
        Self::Permission { what: what.into(), place: place.into(), advice }
    }

    /// Sorts the kernel's answer to `what`, tried in `place`, into the error that says most.
    pub(crate) fn system(what: impl Into<String>, place: impl Into<String>, source: io::Error) -> Self {
        let (what, place) = (what.into(), place.into());
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::denied(what, place),
            _ => Self::System { what, place, source },
        }
    }
}

/// Refuses what Linux takes for no interface name, before the kernel says `EINVAL`.
pub(crate) fn check_interface_name(name: &str) -> Result<(), PortError> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_INTERFACE_NAME {
        "is longer than 15 bytes"
    } else if name == "." || name == ".." {
        "is reserved"
    } else if name.bytes().any(|b| b == b'/' || b == b':' || b == b'%' || b <= b' ' || b == 0x7f) {
        "has a character that interfaces may not have"
    } else {
        return Ok(());
    };
    Err(PortError::BadName {
        kind: "interface",
        name: name.to_owned(),
        problem,
        advice: "use 1 to 15 bytes without spaces, `/`, `:` and `%`",
    })
}

/// `IFNAMSIZ` less the closing zero.
const MAX_INTERFACE_NAME: usize = libc::IFNAMSIZ - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_follow_the_kernels_rules() {
        for good in ["eth0", "a", "exactly15bytes_", "veth-shop.1"] {
            assert!(check_interface_name(good).is_ok(), "{good}");
        }
        for bad in ["", "sixteen-bytes-xx", "a b", "a/b", "a:b", ".", "..", "tap%d", "x\n"] {
            assert!(check_interface_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_long_name_is_told_its_bound() {
        let message = check_interface_name("a-very-long-interface").unwrap_err().to_string();
        assert!(message.contains("`a-very-long-interface` is longer than 15 bytes"), "{message}");
    }
}
