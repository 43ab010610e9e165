//! Runs the system's tools: `ip`, `tc`, `ethtool` to their end, and servers until they are dropped.
//!
//! Why: a lab must never leave a process behind, and an error must show the tool's own message.
//! From: prctl(2) PR_SET_PDEATHSIG, through util-linux's `setpriv`, so that the children of a killed lab end too.
//! Not here: the tools' arguments (`world`, `tools`).
//! Invariant: when a `Running` is dropped, its process has ended and been reaped.

use crate::error::LabError;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Runs a tool to its end with `input` on its standard input and returns its standard output.
pub fn run(program: &str, args: &[&str], input: &str) -> Result<String, LabError> {
    let words = || format!("{program} {}", args.join(" "));
    let mut command = command(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| not_started(program, e))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the tool ended early, its standard error has the reason.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|e| LabError::io(words(), e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Tool { command: words(), message: format!("{message} ({})", output.status) })
}

/// Path of a tool, from [`search_path`].
pub(crate) fn tool_path(program: &str) -> PathBuf {
    search_path()
        .into_iter()
        .map(|dir| dir.join(program))
        .find(|p| p.is_file())
        .unwrap_or_else(|| PathBuf::from(program))
}

/// The search path, extended by directories that ordinary users' paths leave out. Tools get it too, as some start others.
fn search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).collect()
}

/// A command with the extended search path.
fn command(program: &str) -> Command {
    let mut command = Command::new(tool_path(program));
    if let Ok(path) = std::env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

fn not_started(program: &str, error: std::io::Error) -> LabError {
    if error.kind() != std::io::ErrorKind::NotFound {
        return LabError::io(format!("start {program}"), error);
    }
    let package = match program {
        "ip" | "tc" => "iproute2",
        "ethtool" => "ethtool",
        "iperf3" => "iperf3",
        "memcached" => "memcached",
        "sockperf" => "sockperf",
        _ => "util-linux",
    };
    LabError::MissingTool { tool: program.to_owned(), package }
}

/// A process that ends with this value, and with the thread that started it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Running {
    /// Starts a tool in the caller's network namespace; its output goes to `log`.
    pub fn start(program: &Path, args: &[String], log: &Path) -> Result<Self, LabError> {
        Self::launch(program, args, &[], log)
    }

    /// Starts a server in network namespace `netns`, with real-time priority where that is allowed: the kernel's own queues
    /// run before every process, too.
    pub fn start_first(program: &Path, args: &[String], netns: &str, log: &Path) -> Result<Self, LabError> {
        let (real_time, nsenter) = (tool_path("chrt"), tool_path("nsenter"));
        let net = format!("--net=/run/netns/{netns}");
        let enter = [nsenter.as_os_str(), net.as_ref()];
        let first = [real_time.as_os_str(), "--fifo".as_ref(), "1".as_ref()];
        let may = run("chrt", &["--fifo", "1", "true"], "").is_ok();
        let around: Vec<&OsStr> = first.iter().filter(|_| may).chain(&enter).copied().collect();
        Self::launch(program, args, &around, log)
    }

    /// Starts `program` through the commands `around`, each of which executes the next in the same process.
    fn launch(program: &Path, args: &[String], around: &[&OsStr], log: &Path) -> Result<Self, LabError> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = tool_path(&program.to_string_lossy());
        if !found.is_file() {
            return Err(match program.is_absolute() {
                true => LabError::NoBinary { path: found },
                false => not_started(&name, std::io::ErrorKind::NotFound.into()),
            });
        }
        let out = File::create(log).map_err(|e| LabError::io(format!("make {}", log.display()), e))?;
        let err = out.try_clone().map_err(|e| LabError::io("share a log", e))?;
        let mut command = command("setpriv");
        command.args(["--pdeathsig", "KILL"]).args(around).arg(found).args(args);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command.spawn().map_err(|e| not_started("setpriv", e))?;
        Ok(Self { child, name, log: log.to_owned() })
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The process's exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits at most `limit` for the process to end, then kills it. `None` means that it was killed.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
        None
    }

    /// Sends SIGTERM, waits at most `limit`, then kills the process. True when it ended by itself with success.
    pub fn stop(&mut self, limit: Duration) -> bool {
        self.signal(Signal::SIGTERM);
        self.wait(limit).is_some_and(|status| status.success())
    }

    /// Sends SIGINT, on which tools write their reports; waits at most `limit`, then kills the process.
    pub fn interrupt(&mut self, limit: Duration) {
        self.signal(Signal::SIGINT);
        self.wait(limit);
    }

    fn signal(&mut self, signal: Signal) {
        if let Ok(id) = i32::try_from(self.child.id())
            && self.ended().is_none()
        {
            // Fails when the process has just ended.
            let _ = kill(Pid::from_raw(id), signal);
        }
    }

    /// The process's output so far.
    pub fn output(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(&self.log) {
            let _ = file.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The process's name and the last lines of its output, for a message.
    pub fn last_words(&self) -> String {
        let text = self.output();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n");
        if tail.is_empty() {
            format!("{} printed nothing", self.name)
        } else {
            format!("{}: {tail}", self.name)
        }
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
