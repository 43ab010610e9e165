//! The claim of one daemon on its API socket's path.
//!
//! Why: two daemons with one socket would each take the other's ports, and a socket that an ended process left must not
//! keep the next from starting.
//! From: flock(2), proc_pid_stat(5).
//! Not here: what listens at the path (`local`).
//! Invariant: a process that ends keeps the next one waiting, for a bounded time; any other holder makes it fail at once.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::broker::{Broker, Clear};
use crate::run::RunError;

/// The longest wait for a process that ends. A stop takes four seconds at most, and the kernel then removes its devices, some
/// 20 ms for each TAP.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long a holder that shows no sign of ending is tried again: a signal may be on its way.
const GRACE: Duration = Duration::from_millis(100);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The API socket's path, claimed for this process by a locked file beside it; dropping the value removes both.
#[derive(Debug)]
pub(crate) struct Claim {
    /// The lock file; the kernel releases the lock however the process ends.
    lock: Flock<File>,
    pub(crate) path: PathBuf,
    /// The socket's path, once it is bound.
    pub(crate) socket: Option<PathBuf>,
    /// The broker, which removes both where this process may not.
    pub(crate) broker: Broker,
}

impl Claim {
    /// The way to tell the next daemon that this one is stopping; none where the file cannot be opened twice.
    pub(crate) fn mark(&self) -> Option<Mark> {
        self.lock.try_clone().ok().map(Mark)
    }

    /// Removes the socket. Left for the next start to remove if this fails.
    pub(crate) fn free_socket(&mut self) {
        if let Some(socket) = self.socket.take() {
            self.remove(&socket, Clear::Socket);
        }
    }

    fn remove(&self, path: &Path, what: Clear) {
        match &self.broker {
            Broker::Here(_) => {
                let _ = fs::remove_file(path);
            }
            Broker::Process(client) => client.clear(what),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.free_socket();
        // Removed while it is locked, so that no other daemon's file is removed. If this fails, the next start uses the
        // file.
        self.remove(&self.path, Clear::Lock);
    }
}

/// Claims the socket's path for this process, and removes a socket that an ended process left there.
pub(crate) fn claim(socket: &Path) -> Result<Claim, RunError> {
    let io = |what: String| move |source| RunError::Io { what, source };
    if let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(io(format!("create {}", folder.display())))?;
    }
    let claim = lock(socket)?;
    let elsewhere = fs::symlink_metadata(socket).is_ok_and(|found| !found.file_type().is_socket());
    if elsewhere {
        return Err(RunError::NotASocket { socket: socket.to_owned() });
    }
    match fs::remove_file(socket) {
        Ok(()) => eprintln!("plimsoll: removed {}, left by an earlier run", socket.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(RunError::Io { what: format!("remove {}", socket.display()), source }),
    }
    Ok(claim)
}

/// The locked file, in which a daemon says that it is stopping.
#[derive(Debug)]
pub(crate) struct Mark(File);

impl Mark {
    /// From now on, the next daemon waits for this one's end instead of failing.
    pub(crate) fn say_stopping(&self) {
        // On a full disk the next daemon fails as if this one went on.
        let _ = (&self.0).write_all(STOPPING.as_bytes());
    }
}

/// Follows the holder's process id in the locked file.
const STOPPING: &str = "stopping\n";

/// Locks the file beside the socket, which then names this process. If its holder removes the file between our opening
/// and our locking it, this tries again: the next daemon would make a new file, and lock that one.
fn lock(socket: &Path) -> Result<Claim, RunError> {
    let path = socket.with_extension("lock");
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied => RunError::NotAllowed { what: path.clone() },
        _ => RunError::Io { what: format!("open {}", path.display()), source },
    };
    let begun = Instant::now();
    let mut told = false;
    loop {
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        let place = |found: &fs::Metadata| (found.dev(), found.ino());
        let opened = file.metadata().map_err(failed)?;
        let Ok(mut lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            let ending = is_ending(&fs::read_to_string(&path).unwrap_or_default());
            if begun.elapsed() > if ending { LONGEST_WAIT } else { GRACE } {
                return Err(RunError::Running { socket: socket.to_owned() });
            }
            if ending && !told {
                eprintln!("plimsoll: waiting for the daemon before this one, which is ending");
                told = true;
            }
            std::thread::sleep(PAUSE);
            continue;
        };
        if fs::symlink_metadata(&path).is_ok_and(|found| place(&found) == place(&opened)) {
            outlast(&fs::read_to_string(&path).unwrap_or_default());
            // A holder that cannot write its id is taken for one that goes on.
            let _ = lock.set_len(0).and_then(|()| lock.write_all(own().as_bytes()));
            return Ok(Claim { lock, path, socket: None, broker: Broker::default() });
        }
    }
}

/// Waits until the process that wrote this has ended: it may have freed the lock before its devices.
fn outlast(written: &str) {
    let begun = Instant::now();
    while Holder::read(written).is_some_and(|holder| holder.is_exiting()) && begun.elapsed() < LONGEST_WAIT {
        std::thread::sleep(PAUSE);
    }
}

/// This process, as it is named in its lock file.
fn own() -> String {
    let id = std::process::id();
    let started = Process::find(id).map_or(0, |process| process.started);
    format!("{id} {started}\n")
}

/// Whether the process that wrote this into its lock file is stopping, has got SIGKILL, or has ended.
fn is_ending(written: &str) -> bool {
    Holder::read(written).is_some_and(|holder| {
        let process = holder.process();
        let status = || fs::read_to_string(format!("/proc/{}/status", holder.id)).unwrap_or_default();
        holder.stopping || process.is_none_or(|process| process.exiting) || is_killed(&status())
    })
}

/// A process that has or had the lock, as it named itself: its id, when it was started, and whether it is stopping.
struct Holder {
    id: u32,
    started: u64,
    stopping: bool,
}

impl Holder {
    fn read(written: &str) -> Option<Self> {
        let mut words = written.split_whitespace();
        let (id, started) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { id, started, stopping: words.next() == Some(STOPPING.trim()) })
    }

    /// The process, if it is still there; another one may have its id by now.
    fn process(&self) -> Option<Process> {
        Process::find(self.id).filter(|process| process.started == self.started)
    }

    /// Whether it has begun to exit, and some of its threads may still be there: the kernel closes files and removes devices
    /// in the last of them.
    fn is_exiting(&self) -> bool {
        let threads = || fs::read_dir(format!("/proc/{}/task", self.id)).map_or(0, Iterator::count);
        self.process().is_some_and(|process| process.exiting && (!process.ended || threads() > 1))
    }
}

/// A process, as `/proc/PID/stat` shows it.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    started: u64,
    /// It exits, or a signal ends it.
    exiting: bool,
    /// Its first thread has ended.
    ended: bool,
}

impl Process {
    fn find(id: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name before the last bracket may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let flags: u64 = fields.get(6)?.parse().ok()?;
        let ended = matches!(fields.first(), Some(&("Z" | "X" | "x")));
        let exiting = ended || flags & (PF_EXITING | PF_SIGNALED) != 0;
        Some(Self { started: fields.get(19)?.parse().ok()?, exiting, ended })
    }
}

/// The kernel's flags of a process that exits, and of one that a signal ends.
const PF_EXITING: u64 = 0x4;
const PF_SIGNALED: u64 = 0x400;

/// Whether SIGKILL waits for a process, by its `/proc/PID/status`.
fn is_killed(status: &str) -> bool {
    const KILL: u64 = 1 << 8;
    let pending = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    pending.into_iter().any(|set| set & KILL != 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_place_is_held_once_and_nothing_is_left_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock");
        let held = claim(&socket).expect("free");
        let again = claim(&socket).expect_err("held").to_string();
        assert!(again.contains("another plimsoll is running"), "{again}");
        assert!(folder.path().join("api.lock").exists(), "a second daemon removes nothing");
        drop(held);
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 0);
        drop(claim(&socket).expect("free again"));
        fs::write(&socket, "a file").expect("written");
        assert!(matches!(claim(&socket), Err(RunError::NotASocket { .. })));
        assert!(!folder.path().join("api.lock").exists(), "nor after a failed start");
    }

    /// Holds the lock as a process that wrote `written`, for 300 ms; answers what a claim beside it gets, and its wait.
    fn beside(written: &str) -> (bool, Duration) {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("api.sock");
        let held = claim(&socket).expect("free");
        fs::write(folder.path().join("api.lock"), written).expect("written");
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(held);
        });
        let begun = Instant::now();
        let claimed = claim(&socket).is_ok();
        let waited = begun.elapsed();
        holder.join().expect("no panic");
        (claimed, waited)
    }

    #[test]
    fn a_holder_that_is_ending_is_waited_for_and_one_that_goes_on_is_not() {
        let own = own();
        let (claimed, waited) = beside(&own);
        assert!(!claimed && waited < Duration::from_millis(290), "{waited:?}");
        let (claimed, waited) = beside("");
        assert!(!claimed && waited < Duration::from_millis(290), "no id: {waited:?}");
        let (claimed, waited) = beside(&format!("{own}stopping\n"));
        assert!(claimed && waited > Duration::from_millis(200), "{waited:?}");
        let (claimed, _) = beside(&format!("{} 1\n", std::process::id()));
        assert!(claimed, "another process has its id by now");

        // A zombie: it has ended, and its parent has not asked how.
        let mut child = Command::new("true").spawn().expect("started");
        let started = Process::find(child.id()).expect("not reaped").started;
        let (claimed, waited) = beside(&format!("{} {started}\n", child.id()));
        assert!(claimed && waited > Duration::from_millis(200), "{waited:?}");
        child.wait().expect("ended");
    }

    #[test]
    fn the_kernel_s_words_for_an_end_are_read() {
        let read = |state, flags: u64| {
            let rest = "0 0 0 0 0 0 0 0 0 0 0 0 99 7 8";
            Process::parse(&format!("7 (a ) b) {state} 1 7 7 0 -1 {flags} {rest}"))
        };
        assert_eq!(read("Z", 0), Some(Process { started: 99, exiting: true, ended: true }));
        assert_eq!(read("D", 0x40_0004), Some(Process { started: 99, exiting: true, ended: false }));
        assert_eq!(read("S", 0x40_0100), Some(Process { started: 99, exiting: false, ended: false }));
        assert!(Process::parse("").is_none() && Process::parse("7 (a) Z").is_none());
        assert!(is_killed("SigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(!is_killed("SigPnd:\t0000000000000200\nSigBlk:\tffffffffffffffff\n"));
    }
}
