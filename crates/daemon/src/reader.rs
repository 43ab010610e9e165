//! Reading a tenant's file in a process of its own.
//!
//! Why: a file that uses up all memory, or triggers a bug, ends only the process that reads it: the reload is refused with
//! a reason, and the daemon keeps the policy that it has.
//! From: this binary once more ([`Child`]), which gives up its privileges before it reads a byte ([`confine`]), has the
//! file as its standard input, can open no other, and answers in the form of `plimsoll_document::answer`.
//! Not here: the meaning of the file (`policy`); starting processes where this one may not, for which there are other
//! [`FileReader`]s.
//! Invariant: [`FileReader::read_file`] ends within its limits whatever the child does, and no child outlives it; a child's
//! answer is checked before it is used.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, geteuid, setgroups, setresgid, setresuid};
use plimsoll_document::{FileId, LONGEST_ANSWER, Sources, Tree, understand};
use plimsoll_policy::{Checked, Errors, MAX_FILE, Unread};
use serde::{Deserialize, Serialize};

use crate::sandbox;

/// Reads files in other processes.
pub trait FileReader: Debug + Send + Sync {
    /// Has the file read, from its start to its end, and gives the answer, of [`LONGEST_ANSWER`] bytes at most.
    ///
    /// # Errors
    /// [`Ended`], when there is none.
    fn read_file(&self, file: OwnedFd) -> Result<Vec<u8>, Ended>;
}

/// What a process that reads a file may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of address space.
    pub memory: u64,
    /// Seconds of a core.
    pub cpu: u64,
    /// Time until it is ended, also if it used little of a core.
    pub patience: Duration,
}

impl Default for Limits {
    /// Several times what the worst file of 16 MB takes (`docs/policy.md`, "How large a file may be").
    fn default() -> Self {
        Self { memory: 512 << 20, cpu: 20, patience: Duration::from_secs(60) }
    }
}

/// Why a process that read a file gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Ended {
    /// It could not be started.
    #[error("no process could be started for it ({0})")]
    Start(String),
    /// It was too slow.
    #[error("it took longer than {0} s")]
    Patience(u64),
    /// It had as much time of a core as it may.
    #[error("it took more than {0} s of a core")]
    Cpu(u64),
    /// It asked for more memory than it may have.
    #[error("it took more than {0} MB of memory")]
    Memory(u64),
    /// A signal ended it.
    #[error("{signal} ended the process that read it{}", last_words(.words))]
    Signal {
        /// Its name.
        signal: String,
        /// Its last line of output.
        words: String,
    },
    /// It left without an answer.
    #[error("the process that read it left with exit code {code}{}", last_words(.words))]
    Exit {
        /// The code.
        code: i32,
        /// Its last line of output.
        words: String,
    },
    /// Its answer was too long.
    #[error("the process that read it answered more than {} MB", LONGEST_ANSWER / 1_000_000)]
    TooLong,
    /// Its output was no answer.
    #[error("the answer of the process that read it makes no sense")]
    Nonsense,
}

fn last_words(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" (\"{words}\")") }
}

/// Checks the policy in a file. `reader` reads tenants' files; without one this is [`plimsoll_policy::load`].
///
/// # Errors
/// The mistakes in the files.
pub fn load(path: &str, reader: Option<&dyn FileReader>) -> Result<Checked, Errors> {
    match reader {
        Some(reader) => plimsoll_policy::load_with(path, &mut |sources, file| parse(reader, sources, file)),
        None => plimsoll_policy::load(path),
    }
}

/// Reads a file's text as YAML, in another process.
///
/// # Errors
/// The mistakes in the file, or why there is no answer.
pub fn parse(reader: &dyn FileReader, sources: &Sources, file: FileId) -> Result<Tree, Unread> {
    let answer = ask(reader, sources, file).map_err(|why| Unread::Ended(why.to_string()))?;
    told(&answer, sources, file)
}

/// Answers of the processes that read a policy's files, by the files' names.
pub(crate) type Answers = BTreeMap<String, String>;

/// Does what [`load`] does, and returns the answers as well, for another process that reads no tenant's file itself either.
pub(crate) fn load_with_answers(
    path: &str,
    reader: Option<&dyn FileReader>,
) -> Result<(Checked, Answers), Errors> {
    let mut answers = Answers::new();
    let Some(reader) = reader else { return plimsoll_policy::load(path).map(|checked| (checked, answers)) };
    let mut parse = |sources: &Sources, file| {
        let answer = ask(reader, sources, file).map_err(|why| Unread::Ended(why.to_string()))?;
        let read = told(&answer, sources, file)?;
        // A valid answer is text.
        answers.insert(sources.file(file).name.clone(), String::from_utf8_lossy(&answer).into_owned());
        Ok(read)
    };
    let checked = plimsoll_policy::load_with(path, &mut parse)?;
    Ok((checked, answers))
}

fn ask(reader: &dyn FileReader, sources: &Sources, file: FileId) -> Result<Vec<u8>, Ended> {
    let memory = in_memory(&sources.file(file).text);
    reader.read_file(memory.map_err(|error| Ended::Start(error.to_string()))?)
}

/// The content of a file, from such an answer.
pub(crate) fn told(answer: &[u8], sources: &Sources, file: FileId) -> Result<Tree, Unread> {
    let read = understand(answer, sources, file).map_err(|_| Unread::Ended(Ended::Nonsense.to_string()))?;
    read.map_err(Unread::Syntax)
}

/// Makes a sealed file of a text, so that places in the answer are places in this text.
fn in_memory(text: &str) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"plimsoll-file", flags)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    // F_SEAL_WRITE would fail with EBUSY where the kernel still uses a page of the file itself, as it does on a busy machine.
    // There is no writable mapping to which it would be stricter than F_SEAL_FUTURE_WRITE (Linux 5.1).
    let seals = SealFlag::F_SEAL_SEAL
        | SealFlag::F_SEAL_FUTURE_WRITE
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SHRINK;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// Reads files by running a program.
#[derive(Clone, Debug)]
pub struct Child {
    /// The program: `plimsoll` itself.
    pub program: PathBuf,
    /// Its first argument; the limits' memory and time of a core follow.
    pub command: OsString,
    /// Its limits.
    pub limits: Limits,
}

impl FileReader for Child {
    fn read_file(&self, file: OwnedFd) -> Result<Vec<u8>, Ended> {
        let until = Instant::now() + self.limits.patience;
        let started = Command::new(&self.program)
            .arg(&self.command)
            .args([self.limits.memory, self.limits.cpu].map(|limit| limit.to_string()))
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(file))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut process = started.map_err(|error| Ended::Start(error.to_string()))?;
        let heard = hear(&mut process, until);
        // Its answer is complete or refused; a child that has ended already needs no signal.
        let left = heard.is_ok().then(|| wait(&mut process, until)).flatten();
        let _ = process.kill();
        let status = left.map_or_else(|| process.wait(), Ok);
        let (answer, words) = heard.map_err(|error| match error {
            Unheard::Patience => Ended::Patience(self.limits.patience.as_secs()),
            Unheard::TooLong => Ended::TooLong,
        })?;
        match (left, status) {
            (Some(status), _) if status.success() => Ok(answer),
            (Some(status), _) => Err(self.why(status, &words)),
            (None, Ok(_)) => Err(Ended::Patience(self.limits.patience.as_secs())),
            (None, Err(error)) => Err(Ended::Start(error.to_string())),
        }
    }
}

impl Child {
    /// Why a process failed.
    fn why(&self, status: ExitStatus, words: &str) -> Ended {
        let out_of_memory =
            words.contains("memory allocation of") || words.contains("Cannot allocate memory");
        // Of a panic, the line with place and reason; the rest is for developers.
        let words = words.lines().map(str::trim).filter(|line| !line.is_empty()).take(2);
        let words = words.collect::<Vec<_>>().join(" ");
        let words = plimsoll_document::shown(&words).into_owned();
        match status.signal().map(Signal::try_from) {
            _ if out_of_memory => Ended::Memory(self.limits.memory / 1_000_000),
            Some(Ok(Signal::SIGXCPU)) => Ended::Cpu(self.limits.cpu),
            Some(signal) => {
                let signal = signal.map_or_else(|_| "a signal".to_owned(), |signal| signal.to_string());
                Ended::Signal { signal, words }
            }
            None => Ended::Exit { code: status.code().unwrap_or_default(), words },
        }
    }
}

/// Why a process's output was not read to its end.
enum Unheard {
    Patience,
    TooLong,
}

/// Most bytes of a process's error output that are read.
const LONGEST_WORDS: usize = 65_536;

/// Reads both outputs of a process until it closes them.
fn hear(process: &mut Process, until: Instant) -> Result<(Vec<u8>, String), Unheard> {
    let (mut answer, mut words) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (process.stdout.take(), process.stderr.take());
    while out.is_some() || err.is_some() {
        let mut fds = Vec::new();
        fds.extend(out.as_ref().map(|out| PollFd::new(out.as_fd(), PollFlags::POLLIN)));
        fds.extend(err.as_ref().map(|err| PollFd::new(err.as_fd(), PollFlags::POLLIN)));
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Unheard::Patience);
        }
        let waited = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        if !matches!(waited, Ok(_) | Err(Errno::EINTR)) {
            return Err(Unheard::Patience);
        }
        let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect::<Vec<_>>().into_iter();
        let out_ready = out.is_some() && ready.next().unwrap_or(false);
        let err_ready = err.is_some() && ready.next().unwrap_or(false);
        if out_ready && !take(&mut out, &mut answer) {
            out = None;
        }
        if err_ready && !take(&mut err, &mut words) {
            err = None;
        }
        if answer.len() > LONGEST_ANSWER {
            return Err(Unheard::TooLong);
        }
        words.truncate(LONGEST_WORDS);
    }
    Ok((answer, String::from_utf8_lossy(&words).into_owned()))
}

/// Reads the bytes that are there; `false` at the end.
fn take(from: &mut Option<impl Read>, to: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 65_536];
    match from.as_mut().map(|from| from.read(&mut buffer)) {
        Some(Ok(count)) if count > 0 => {
            to.extend_from_slice(&buffer[..count]);
            true
        }
        Some(Err(error)) => error.kind() == io::ErrorKind::Interrupted,
        _ => false,
    }
}

/// A process's exit status, if it ends in time.
fn wait(process: &mut Process, until: Instant) -> Option<ExitStatus> {
    loop {
        match process.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

/// Runs the child: gives up its privileges, reads its standard input, and answers.
///
/// # Errors
/// The step that failed.
pub fn answer(memory: u64, cpu: u64) -> io::Result<()> {
    confine(memory, cpu)?;
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_FILE.as_u64() + 1).read_to_end(&mut bytes)?;
    let text = plimsoll_policy::text_of(bytes, MAX_FILE).map_err(io::Error::other)?;
    let mut out = io::stdout().lock();
    plimsoll_policy::read_file(&text, &mut out)?;
    out.flush()
}

/// Gives up everything that reading a file does not need: users, capabilities, further files, and more memory and time than
/// `limits`.
///
/// # Errors
/// The system's answer.
pub fn confine(memory: u64, cpu: u64) -> io::Result<()> {
    nix::sys::prctl::set_no_new_privs()?;
    if geteuid().is_root() {
        leave_root();
    }
    for set in
        [caps::CapSet::Ambient, caps::CapSet::Effective, caps::CapSet::Permitted, caps::CapSet::Inheritable]
    {
        caps::clear(None, set).map_err(io::Error::other)?;
    }
    // If it is still root in name, root's files belong to it.
    sandbox::confine_reader();
    // So that it does not outlive a daemon that is killed; set last, as a change of user clears it.
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    for (resource, most) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, 0),
        // It needs only standard input, output and error.
        (Resource::RLIMIT_NOFILE, 3),
        (Resource::RLIMIT_NPROC, 0),
        (Resource::RLIMIT_AS, memory),
        // One second more, after which the kernel kills it.
        (Resource::RLIMIT_CPU, cpu),
    ] {
        let hard = if resource == Resource::RLIMIT_CPU { most + 1 } else { most };
        setrlimit(resource, most, hard)?;
    }
    Ok(())
}

/// Becomes a user that owns no files. Where a user namespace has no other user, it stays root without capabilities.
fn leave_root() {
    const NOBODY: u32 = 65_534;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let _ = setgroups(&[])
        .and_then(|()| setresgid(group, group, group))
        .and_then(|()| setresuid(user, user, user));
}
