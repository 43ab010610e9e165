//! Network namespaces: opens, makes and enters them, and sweeps those that a crash has left.
//!
//! Why: each tenant's port is made in the tenant's namespace, and the lab builds whole topologies.
//! From: `setns(2)` on a thread that lives for one call, so that no other thread is affected.
//! Not here: interfaces and addresses (`link`), and packets.
//! Invariant: the caller's own thread never changes its namespace.

mod link;
mod owner;

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nlink::netlink::namespace::{self, CreateOptions};

use crate::error::PortError;

pub use link::{Cidr, LinkInfo, Links, ParseCidrError};
pub use owner::{Swept, sweep, sweep_links};

/// A reference to a network namespace, as in a policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetnsRef {
    /// The process's own namespace.
    #[default]
    Own,
    /// By name, as in `/run/netns`.
    Name(String),
    /// By path, such as `/proc/PID/ns/net`.
    Path(PathBuf),
}

impl NetnsRef {
    /// The file that stands for the namespace.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Own => PathBuf::from(OWN),
            Self::Name(name) => Path::new(NAMED).join(name),
            Self::Path(path) => path.clone(),
        }
    }
}

impl From<&str> for NetnsRef {
    /// A text with a slash is a path, any other a name; an empty text is the process's own namespace.
    fn from(text: &str) -> Self {
        match text {
            "" => Self::Own,
            path if path.contains('/') => Self::Path(PathBuf::from(path)),
            name => Self::Name(name.to_owned()),
        }
    }
}

impl FromStr for NetnsRef {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::from(text))
    }
}

impl fmt::Display for NetnsRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the process's own network namespace"),
            Self::Name(name) => write!(f, "network namespace `{name}`"),
            Self::Path(path) => write!(f, "network namespace {}", path.display()),
        }
    }
}

/// An open network namespace.
///
/// A namespace made by [`Netns::create`] is deleted when this is dropped, unless [`Netns::keep`] is
/// called. An anonymous namespace lives as long as this value, or a process or socket in it.
///
/// ```no_run
/// use plimsoll_ports::netns::Netns;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shop = Netns::create("shop")?;
/// let world = Netns::anonymous("world")?;
/// shop.links().add_veth("eth0", &world, "to-shop")?;
/// shop.links().add_address("eth0", "10.0.0.1/24".parse()?)?;
/// shop.links().set_up("eth0")?;
/// shop.command("ip").arg("address").status()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Netns {
    file: OwnedFd,
    place: String,
    kind: Kind,
}

/// The origin of a [`Netns`].
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// The process's own namespace, which need not be entered.
    Own,
    /// A namespace that existed before.
    Opened,
    /// Made by this process without a name; it lives while the file is open.
    Anonymous,
    /// Made by this process with this name; to be deleted.
    Created(String),
}

impl Netns {
    /// Opens the namespace that `netns` names.
    ///
    /// # Errors
    /// When it does not exist, is not a network namespace, or may not be opened.
    pub fn open(netns: &NetnsRef) -> Result<Self, PortError> {
        if let NetnsRef::Name(name) = netns {
            check_netns_name(name)?;
        }
        let path = netns.path();
        let file = File::open(&path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH | libc::ENOTDIR) => {
                PortError::NoNetns { netns: short_name(netns), path: path.clone() }
            }
            _ => PortError::system("open", netns.to_string(), error),
        })?;
        if !is_netns(&file) {
            return Err(PortError::NotANetns { path });
        }
        let kind = if *netns == NetnsRef::Own { Kind::Own } else { Kind::Opened };
        Ok(Self { file: file.into(), place: netns.to_string(), kind })
    }

    /// The process's own namespace.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn own() -> Result<Self, PortError> {
        Self::open(&NetnsRef::Own)
    }

    /// Makes a namespace that other processes find by its name in `/run/netns`, and sets its loopback interface up.
    ///
    /// It carries a mark by which [`sweep`] finds it if this process is killed.
    ///
    /// # Errors
    /// When the name is taken, or `/run/netns` may not be written; see [`Netns::create_or_anonymous`].
    pub fn create(name: &str) -> Result<Self, PortError> {
        check_netns_name(name)?;
        let netns = NetnsRef::Name(name.to_owned());
        prepare_names().map_err(|error| PortError::system("create", netns.to_string(), error))?;
        let options = CreateOptions::new().owner(owner::mark()).reclaim_stale(true);
        namespace::create_with(name, options).map_err(|error| {
            if error.is_already_exists() {
                PortError::NameTaken {
                    what: "create a network namespace".into(),
                    name: name.to_owned(),
                    place: NAMED.into(),
                }
            } else {
                PortError::netlink("create", &netns.to_string(), &error)
            }
        })?;
        let mut made = Self::open(&netns)?;
        made.kind = Kind::Created(name.to_owned());
        made.links().set_up("lo")?;
        Ok(made)
    }

    /// Makes a namespace without a name, held open by this value, and sets its loopback interface up.
    ///
    /// Other processes reach it through [`Netns::path`]. `label` is only for messages. Works inside a user
    /// namespace where `/run/netns` may not be written, and leaves nothing behind.
    ///
    /// # Errors
    /// When this process may not make namespaces.
    pub fn anonymous(label: &str) -> Result<Self, PortError> {
        let place = format!("network namespace `{label}`");
        let made = on_own_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open(OWN)
        });
        let file = made.map_err(|error| PortError::system("create", place.as_str(), error))?;
        let netns = Self { file: file.into(), place, kind: Kind::Anonymous };
        netns.links().set_up("lo")?;
        Ok(netns)
    }

    /// Like [`Netns::create`] where this process may make named namespaces, else like [`Netns::anonymous`].
    ///
    /// # Errors
    /// When neither is possible, or the name is taken.
    pub fn create_or_anonymous(name: &str) -> Result<Self, PortError> {
        match Self::create(name) {
            Err(PortError::Permission { .. } | PortError::System { .. }) => Self::anonymous(name),
            made => made,
        }
    }

    /// Keeps the namespace when this is dropped.
    #[must_use]
    pub fn keep(mut self) -> Self {
        if matches!(self.kind, Kind::Created(_)) {
            self.kind = Kind::Opened;
        }
        self
    }

    /// A path that any process of this user can open while this process lives.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.kind {
            Kind::Created(name) => Path::new(NAMED).join(name),
            _ => PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())),
        }
    }

    /// The namespace's name in messages.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether this is the process's own namespace, opened by [`Netns::own`].
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    /// The kernel's number of this namespace, unique while the namespace lives.
    ///
    /// # Errors
    /// When the kernel does not report it.
    pub fn number(&self) -> std::io::Result<u64> {
        number_of(&self.file)
    }

    /// Another handle on the same namespace, which does not delete it when dropped.
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn handle(&self) -> Result<Self, PortError> {
        let file = self.file.try_clone().map_err(|error| self.failed("open again", error))?;
        let kind = if self.is_own() { Kind::Own } else { Kind::Opened };
        Ok(Self { file, place: self.place.clone(), kind })
    }

    /// Runs `job` in this namespace, on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// When the namespace may not be entered.
    ///
    /// # Panics
    /// When `job` panics, with its payload.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> Result<T, PortError> {
        on_own_thread(|| {
            self.enter_here()?;
            Ok(job())
        })
        .map_err(|error| self.failed("enter", error))
    }

    /// A command that will run in this namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        self.enter_before_exec(&mut command);
        command
    }

    /// Makes `command` run in this namespace.
    pub fn enter_before_exec(&self, command: &mut Command) {
        if self.is_own() {
            return;
        }
        // The closure owns a copy of the descriptor: `command` may outlive this handle. If the process has
        // no descriptor left, the command must fail rather than run in the wrong namespace.
        let file = self.file.try_clone().ok();
        let enter = move || match &file {
            Some(file) => Ok(setns(file, CloneFlags::CLONE_NEWNET)?),
            None => Err(std::io::Error::from_raw_os_error(libc::EMFILE)),
        };
        // SAFETY: between fork and exec only async-signal-safe work is allowed; `enter` makes one
        // system call and converts its errno without allocating.
        unsafe { command.pre_exec(enter) };
    }

    /// The interfaces of this namespace.
    #[must_use]
    pub fn links(&self) -> Links<'_> {
        Links::new(self)
    }

    /// Sets a `net.…` sysctl of this namespace, such as `net.ipv6.conf.all.disable_ipv6`.
    ///
    /// # Errors
    /// When there is no such key, or it may not be written.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<(), PortError> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.run(|| std::fs::write(&path, value))?.map_err(|error| self.failed(&format!("set {key}"), error))
    }

    /// Moves the calling thread into the namespace; only for threads that end right after.
    fn enter_here(&self) -> std::io::Result<()> {
        if !self.is_own() {
            setns(&self.file, CloneFlags::CLONE_NEWNET)?;
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: std::io::Error) -> PortError {
        PortError::system(what, self.place.as_str(), error)
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Kind::Created(name) = &self.kind {
            // It may be deleted already; a drop cannot report an error.
            let _ = namespace::delete(name);
        }
    }
}

/// Makes the folder of names a mount of its own, as the first `ip netns add` does.
///
/// Without this, the first `ip netns add` would mount over the names made before it, which could then not be deleted any
/// more. `ip` takes the same lock.
fn prepare_names() -> std::io::Result<()> {
    std::fs::create_dir_all(NAMED)?;
    let _lock = Flock::lock(File::open(NAMED)?, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    let share =
        || mount(None::<&str>, NAMED, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    if share() == Err(Errno::EINVAL) {
        mount(Some(NAMED), NAMED, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
        share()?;
    }
    Ok(())
}

/// Runs `job` on a thread that ends with it, so that changes to the thread's namespaces end too.
fn on_own_thread<T: Send>(job: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("netns".into()).spawn_scoped(scope, job)?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether an open file is a network namespace, as the kernel reports.
fn is_netns(file: &File) -> bool {
    // SAFETY: the request takes no argument and writes no memory; `file` is open.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    kind == libc::CLONE_NEWNET
}

/// The kernel's number of the namespace behind `file`.
pub(crate) fn number_of(file: &OwnedFd) -> std::io::Result<u64> {
    Ok(nix::sys::stat::fstat(file)?.st_ino)
}

fn short_name(netns: &NetnsRef) -> String {
    match netns {
        NetnsRef::Own => "own".into(),
        NetnsRef::Name(name) => name.clone(),
        NetnsRef::Path(path) => path.display().to_string(),
    }
}

fn check_netns_name(name: &str) -> Result<(), PortError> {
    let problem = if name.is_empty() {
        "is empty"
    } else if name.len() > 255 {
        "is longer than 255 bytes"
    } else if name == "." || name == ".." || name.contains(['/', '\0']) {
        "is no file name"
    } else {
        return Ok(());
    };
    let advice = "use a plain name, or a path with a slash in it";
    Err(PortError::BadName { kind: "network namespace", name: name.to_owned(), problem, advice })
}

/// The folder of named namespaces, as used by `ip netns`.
const NAMED: &str = "/run/netns";

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// `_IO(0xb7, 3)` of `linux/nsfs.h`.
const NS_GET_NSTYPE: libc::Ioctl = 0xb703;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_path() {
        assert_eq!(NetnsRef::from("shop"), NetnsRef::Name("shop".into()));
        assert_eq!(NetnsRef::from("/proc/1/ns/net"), NetnsRef::Path("/proc/1/ns/net".into()));
        assert_eq!(NetnsRef::from(""), NetnsRef::Own);
    }

    #[test]
    fn a_missing_namespace_is_named_with_the_way_out() {
        let error = Netns::open(&NetnsRef::from("no-such-netns")).unwrap_err().to_string();
        assert!(error.contains("`no-such-netns` does not exist (/run/netns/no-such-netns"), "{error}");
        assert!(error.contains("ip netns add"), "{error}");
    }

    #[test]
    fn a_plain_file_is_no_namespace() {
        let error = Netns::open(&NetnsRef::from("/proc/self/status")).unwrap_err();
        assert!(matches!(error, PortError::NotANetns { .. }), "{error}");
    }

    #[test]
    fn a_dead_process_has_no_namespace() {
        let error = Netns::open(&NetnsRef::from("/proc/4194305/ns/net")).unwrap_err();
        assert!(matches!(error, PortError::NoNetns { .. }), "{error}");
    }
}
