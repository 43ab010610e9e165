//! The errors of opening a port or building a namespace.
//!
//! Why: an operator needs to read what failed, where, and what to do about it.
//! From: errors of the kind "the operator asked for something impossible", with names and numbers in them.
//! Not here: failures of a running port (`contract::Trouble`), which are counted.

use std::io;
use std::path::PathBuf;

/// Why a port could not be opened, or a namespace could not be built.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Linux does not accept this name for an interface or a namespace.
    #[error("{kind} name `{name}` {problem}; {advice}")]
    BadName {
        /// `interface` or `network namespace`.
        kind: &'static str,
        /// The name as given.
        name: String,
        /// The rule that the name breaks.
        problem: &'static str,
        /// How to choose a valid name.
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
        /// The path where it was expected.
        path: PathBuf,
    },

    /// The file exists but is not a network namespace.
    #[error(
        "{path} is not a network namespace; \
         give the name of one that `ip netns list` shows, or a path such as /proc/PID/ns/net"
    )]
    NotANetns {
        /// The file that was opened.
        path: PathBuf,
    },

    /// The process has not the privilege for this.
    #[error("{what} in {place}: permission denied; {advice}")]
    Permission {
        /// The action that failed.
        what: String,
        /// The namespace or file of the action.
        place: String,
        /// The privileges that are needed.
        advice: &'static str,
    },

    /// An interface gets no IPv6 address, as IPv6 is off there.
    #[error(
        "{what} in {place}: IPv6 is disabled on `{name}`. Enable it there (`sysctl -w net/ipv6/conf/{name}/disable_ipv6=0`) and \
         start the daemon again, or take the IPv6 addresses and routes out of its `interface` and reload"
    )]
    NoIpv6 {
        /// The action that failed.
        what: String,
        /// The interface.
        name: String,
        /// The namespace of the interface.
        place: String,
    },

    /// The name is in use.
    #[error(
        "{what}: the name `{name}` is taken in {place}; another plimsoll may hold it: stop that one, \
         choose another name, or remove what holds it (`ip link`, `ip netns`)"
    )]
    NameTaken {
        /// The action that failed.
        what: String,
        /// The name that is in use.
        name: String,
        /// The namespace or folder of the name.
        place: String,
    },

    /// There is no such interface.
    #[error("interface `{name}` does not exist in {place}; `ip link` there lists those that do")]
    NoInterface {
        /// The interface as the operator named it.
        name: String,
        /// The namespace in which it was expected.
        place: String,
    },

    /// The kernel or the device does not support this.
    #[error("{what} in {place} is not supported here: {advice}")]
    Unsupported {
        /// The action that failed.
        what: String,
        /// The namespace of the action.
        place: String,
        /// How to solve the problem.
        advice: &'static str,
    },

    /// A capture file or a socket's path cannot be used.
    #[error("{path}: {problem}; {advice}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why it cannot be used.
        problem: String,
        /// How to solve the problem.
        advice: &'static str,
    },

    /// The port cannot be configured this way.
    #[error("{what}: {problem}")]
    Config {
        /// The port and the setting.
        what: String,
        /// The mistake, and the right setting.
        problem: String,
    },

    /// Any other error of the kernel.
    #[error("{what} in {place}: {source}")]
    System {
        /// The action that failed.
        what: String,
        /// The namespace or file of the action.
        place: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl PortError {
    /// The error for an action that needs a network administrator's privileges.
    pub(crate) fn denied(what: impl Into<String>, place: impl Into<String>) -> Self {
        let advice = "run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN, \
                      or in a user namespace of its own (`unshare -Urnm`)";
        Self::Permission { what: what.into(), place: place.into(), advice }
    }

    /// Turns the kernel's error on the action `what` in `place` into the most helpful variant.
    pub(crate) fn system(what: impl Into<String>, place: impl Into<String>, source: io::Error) -> Self {
        let (what, place) = (what.into(), place.into());
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::denied(what, place),
            _ => Self::System { what, place, source },
        }
    }

    /// Turns netlink's error on the action `what` in `place` into the most helpful variant.
    pub(crate) fn netlink(what: &str, place: &str, error: &nlink::Error) -> Self {
        if error.is_permission_denied() {
            return Self::denied(what, place);
        }
        let source = error.errno().map_or_else(
            || io::Error::other(error.to_string()),
            |errno| io::Error::from_raw_os_error(errno.abs()),
        );
        Self::system(what, place, source)
    }
}

/// Refuses names that Linux does not accept for interfaces, with a better message than the kernel's `EINVAL`.
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
