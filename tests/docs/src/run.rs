//! Runs a page from top to bottom, as a reader would.
//!
//! Why: the files and processes of one block are what the next one builds on.
//! Not here: reading a page (the crate's root).
//! Invariant: the processes that a page started have ended when the page ends, failed or not; what they made ends with
//! the test's namespaces (`scripts/apart`).

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use plimsoll_scenario::{Form, Scenario};

use crate::{Block, Command, Kind, blocks, shows};

/// Where pages run.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The checkout.
    pub root: PathBuf,
    /// The folder that `plimsoll` lies in.
    pub bin: PathBuf,
}

/// Longest that one command may take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Runs a page; its path is relative to the checkout.
///
/// # Errors
/// With the page, the line and what was wrong there.
pub fn run_page(bench: &Bench, page: &str) -> Result<()> {
    let text = fs::read_to_string(bench.root.join(page)).with_context(|| format!("no page {page}"))?;
    let desk = Desk::new(bench)?;
    for block in blocks(&text).with_context(|| page.to_owned())? {
        desk.run(&block).with_context(|| format!("{page}:{}", block.at))?;
    }
    check_links(&bench.root, page, &text)
}

/// A reader's folder, and the processes that the reader has started.
struct Desk<'a> {
    bench: &'a Bench,
    dir: tempfile::TempDir,
    started: std::cell::RefCell<Vec<Pid>>,
}

impl<'a> Desk<'a> {
    fn new(bench: &'a Bench) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for shown in ["examples", "sdk"] {
            std::os::unix::fs::symlink(bench.root.join(shown), dir.path().join(shown))?;
        }
        Ok(Self { bench, dir, started: Vec::new().into() })
    }

    fn run(&self, block: &Block) -> Result<()> {
        match &block.kind {
            Kind::Prose => Ok(()),
            Kind::File(name) => Ok(fs::write(self.dir.path().join(name), &block.text)?),
            Kind::Policy { status, file } => {
                let name = file.as_deref().unwrap_or("policy-under-test.yaml");
                fs::write(self.dir.path().join(name), &block.text)?;
                let line = format!("plimsoll check {name}");
                self.command(&Command { line, status: *status, expected: Vec::new() })
            }
            Kind::Scenario { file } => {
                let path = self.dir.path().join(file.as_deref().unwrap_or("scenario-under-test.yaml"));
                fs::write(&path, &block.text)?;
                load_scenario(&path)
            }
            Kind::Console(commands) => commands.iter().try_for_each(|command| self.command(command)),
            Kind::RootConsole(commands) if nix::unistd::geteuid().is_root() => {
                commands.iter().try_for_each(|command| self.command(command))
            }
            Kind::RootConsole(_) => {
                eprintln!("docs: the block at line {} needs root and was skipped", block.at);
                Ok(())
            }
            Kind::Shell => self.make_targets(&block.text),
        }
    }

    /// Runs one command; processes that it leaves in the background run on until the page ends.
    fn command(&self, command: &Command) -> Result<()> {
        let log = self.dir.path().join(".output");
        let out = File::create(&log)?;
        let path = format!("{}:{}", self.bench.bin.display(), std::env::var("PATH").unwrap_or_default());
        let mut child = Process::new("sh")
            .args(["-c", &command.line])
            .current_dir(self.dir.path())
            .env("PATH", path)
            .env("NO_COLOR", "1")
            .env("COLUMNS", "160")
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn()?;
        self.started.borrow_mut().push(Pid::from_raw(child.id().cast_signed()));
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
                let _ = child.wait();
                bail!("`{}` takes longer than {} s", command.line, PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let output = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        ensure!(
            status.code() == Some(command.status),
            "`{}` ends with {status}, not with {}:\n{output}",
            command.line,
            command.status
        );
        shows(&output, &command.expected).with_context(|| format!("`{}`", command.line))
    }

    /// Checks that each `make` line names targets of the Makefile.
    fn make_targets(&self, text: &str) -> Result<()> {
        let makefile = fs::read_to_string(self.bench.root.join("Makefile"))?;
        let targets = text.lines().filter_map(|line| line.trim_start().strip_prefix("make "));
        for target in targets.flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace()) {
            let known =
                target.contains('=') || makefile.lines().any(|l| l.starts_with(&format!("{target}:")));
            ensure!(known, "the Makefile has no target `{target}`");
        }
        Ok(())
    }
}

impl Drop for Desk<'_> {
    fn drop(&mut self) {
        for group in self.started.borrow().iter() {
            let _ = killpg(*group, Signal::SIGTERM);
        }
        std::thread::sleep(Duration::from_millis(500));
        for group in self.started.borrow().iter() {
            let _ = killpg(*group, Signal::SIGKILL);
        }
    }
}

/// Loads a scenario as `plimsoll lab` would.
///
/// # Errors
/// With all of its problems.
pub fn load_scenario(path: &Path) -> Result<()> {
    match Scenario::load(path, Form::Full) {
        Ok(_) => Ok(()),
        Err(errors) => bail!("{}: {errors}", path.display()),
    }
}

/// Checks that each link to a file of the checkout leads to one.
fn check_links(root: &Path, page: &str, text: &str) -> Result<()> {
    let folder = root.join(page).parent().map(Path::to_path_buf).unwrap_or_default();
    for rest in text.split("](").skip(1) {
        let target = rest.split([')', '#', ' ']).next().unwrap_or("");
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        ensure!(folder.join(target).exists(), "{page}: the link to {target} leads nowhere");
    }
    Ok(())
}
