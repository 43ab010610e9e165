//! Measures the CPU time of a cgroup or of threads, for backpressure.
//!
//! Why: the middlebox that a heavy flow overloads is mostly not the engine, but a container or a virtual machine.
//! From: cgroup-v2.rst (`cpu.stat`, `cpu.max`); proc_pid_schedstat(5). The broker opens the files.
//! Not here: what follows from the load (`dataplane::load`).
//! Invariant: the thread sleeps while the engine does not ask, and ends with the engine's last use of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_policy::{Checked, Press, Watch};
use plimsoll_units::Span;

use crate::broker::{Broker, Number};
use crate::dataplane::Sampled;
use crate::thread::Clock;

/// The kernel adds up CPU time when a thread is switched or at its tick, up to 10 ms apart: a shorter time between two
/// looks would show no use and then twice the use.
const TICK: Span = Span::millis(10);
/// Where cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Looks after which the thread sleeps if the engine has not asked.
const UNASKED: u32 = 10;
/// How often files that cannot be read are tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The files in which the kernel tells the CPU time of what is watched; none for what the engine measures itself.
pub(crate) fn files(watch: &Watch) -> Vec<PathBuf> {
    match watch {
        Watch::Engine | Watch::Tenant(_) => Vec::new(),
        Watch::Cgroup(path) => vec![cgroup(path).join("cpu.stat")],
        Watch::Pids(pids) => pids.iter().map(|pid| format!("/proc/{pid}/schedstat").into()).collect(),
    }
}

fn cgroup(path: &Path) -> PathBuf {
    Path::new(CGROUPS).join(path.strip_prefix("/").unwrap_or(path))
}

/// The file that bounds the CPU time of what is watched, if there is one.
pub(crate) fn bound(watch: &Watch) -> Option<PathBuf> {
    if let Watch::Cgroup(path) = watch { Some(cgroup(path).join("cpu.max")) } else { None }
}

/// Begins to measure what the policy watches, if another thread has to. Answers also how many thousandths of a core a cgroup
/// may use, where it has a `cpu.max`.
pub(crate) fn start(checked: &Checked, number: Number, broker: &Broker) -> (Option<Sampled>, Option<u32>) {
    let press = checked.config.backpressure.as_ref().and_then(|stated| stated.press.as_ref());
    let Some(press) = press.filter(|press| !files(&press.watch).is_empty()) else { return (None, None) };
    let bound = broker.open_load(press, number, false).ok();
    let cores = bound.and_then(|files| read(files.first()?).ok()).and_then(|text| most(&text));
    let sampled = Sampled::default();
    let sampler = Sampler { press: press.clone(), number, broker: broker.clone(), sampled: sampled.clone() };
    let started = std::thread::Builder::new().name("load".to_owned()).spawn(move || sampler.run());
    if let Err(error) = started {
        eprintln!(
            "plimsoll: the load of {} cannot be measured, so no flow is slowed down: {error}",
            press.watch
        );
        return (None, cores);
    }
    (Some(sampled), cores)
}

struct Sampler {
    press: Press,
    number: Number,
    broker: Broker,
    sampled: Sampled,
}

impl Sampler {
    fn run(self) {
        let mut told = false;
        while self.sampled.is_used() {
            let error = match self.broker.open_load(&self.press, self.number, true) {
                Ok(files) => {
                    if told {
                        eprintln!("plimsoll: the load of {} can be measured again", self.press.watch);
                    }
                    told = false;
                    match self.measure(&files) {
                        Ok(()) => return,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if !told {
                eprintln!(
                    "plimsoll: the load of {} cannot be measured, so no flow is slowed down: {error}; it is tried again",
                    self.press.watch
                );
            }
            told = true;
            self.sampled.lose();
            std::thread::sleep(AGAIN);
        }
    }

    /// The error where a file can be read and has no CPU time, as `cpu.stat` of cgroup v1.
    fn no_time(&self) -> io::Error {
        let hint = if matches!(self.press.watch, Watch::Cgroup(_)) { hint(Path::new(CGROUPS)) } else { "" };
        io::Error::other(format!("its file has no CPU time{hint}"))
    }

    /// Measures until the engine is gone, or a file cannot be read any more.
    fn measure(&self, files: &[File]) -> io::Result<()> {
        let clock = Clock::default();
        let each = Duration::from_nanos(self.press.poll.max(TICK).as_u64());
        let mut unasked = 0;
        loop {
            let mut used = Span::ZERO;
            for file in files {
                used += time(&read(file)?).ok_or_else(|| self.no_time())?;
            }
            unasked = if self.sampled.note(used, clock.now()) { 0 } else { unasked + 1 };
            if unasked < UNASKED {
                std::thread::sleep(each);
            } else if !self.sampled.wait_to_be_asked() {
                return Ok(());
            }
        }
    }
}

/// Opens one of these files for reading; an error names it, and says what helps where the machine has no cgroup v2.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path).map_err(|error| {
        let hint = if path.starts_with(CGROUPS) { hint(Path::new(CGROUPS)) } else { "" };
        io::Error::other(format!("{}: {error}{hint}", path.display()))
    })
}

/// What helps where cgroup v2 is not mounted at this folder; nothing where it is.
fn hint(cgroups: &Path) -> &'static str {
    let is_v2 = |folder: &Path| folder.join("cgroup.controllers").exists();
    match (is_v2(cgroups), is_v2(&cgroups.join("unified"))) {
        (true, _) => "",
        (false, true) => {
            " (this machine has cgroup v1 there, and cgroup v2 at /sys/fs/cgroup/unified: put `/unified` before the path, or watch \
             `{pids: [..]}`)"
        }
        (false, false) => {
            " (this machine has no cgroup v2 there, and cgroup v1 is not read: watch `{pids: [..]}`, or start the machine with \
             systemd.unified_cgroup_hierarchy=1)"
        }
    }
}

/// A small file from its beginning.
fn read(file: &File) -> io::Result<String> {
    let mut text = [0; 4_096];
    let len = file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

/// CPU time from `cpu.stat` (`usage_usec`), or from `schedstat` (nanoseconds at its beginning).
fn time(text: &str) -> Option<Span> {
    let mut words = text.split_whitespace();
    match words.next()? {
        "usage_usec" => words.next()?.parse().ok().map(Span::micros),
        nanos => nanos.parse().ok().map(Span::ns),
    }
}

/// Thousandths of a core from `cpu.max`: `200000 100000` is two cores, `max 100000` no bound.
fn most(text: &str) -> Option<u32> {
    let mut words = text.split_whitespace();
    let (quota, period): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    u32::try_from(quota.saturating_mul(1_000) / period.max(1)).ok().map(|cores| cores.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::Newest;

    #[test]
    fn the_kernels_texts_are_read() {
        assert_eq!(time("usage_usec 1234\nuser_usec 1000\nsystem_usec 234\n"), Some(Span::micros(1_234)));
        assert_eq!(time("8005 123 7\n"), Some(Span::ns(8_005)));
        assert_eq!((time(""), time("usage_usec"), time("nr 3")), (None, None, None));
        assert_eq!(
            [most("200000 100000\n"), most("max 100000\n"), most("50000 0")],
            [Some(2_000), None, Some(50_000_000)]
        );
    }

    #[test]
    fn a_cgroup_is_below_the_hierarchys_root() {
        let watch = Watch::Cgroup("/gateway.slice".into());
        assert_eq!(files(&watch), [Path::new("/sys/fs/cgroup/gateway.slice/cpu.stat")]);
        assert_eq!(bound(&watch).as_deref(), Some(Path::new("/sys/fs/cgroup/gateway.slice/cpu.max")));
        assert_eq!(files(&Watch::Pids(vec![7, 8])).len(), 2);
    }

    #[test]
    fn a_machine_without_cgroup_v2_is_told_what_helps() {
        let root = std::env::temp_dir().join(format!("plimsoll-cgroups-{}", std::process::id()));
        std::fs::create_dir_all(root.join("unified")).expect("a folder");
        assert!(hint(&root).contains("no cgroup v2 there") && hint(&root).contains("watch `{pids: [..]}`"));
        std::fs::write(root.join("unified/cgroup.controllers"), "").expect("a file");
        assert!(hint(&root).contains("put `/unified` before the path"));
        std::fs::write(root.join("cgroup.controllers"), "").expect("a file");
        assert_eq!(hint(&root), "");
        std::fs::remove_dir_all(&root).expect("it was there");

        let error =
            open(Path::new("/sys/fs/cgroup/no such group/cpu.stat")).expect_err("no such group").to_string();
        assert!(error.starts_with("/sys/fs/cgroup/no such group/cpu.stat: No such file"), "{error}");
        assert!(error.ends_with(hint(Path::new(CGROUPS))), "{error}");
    }

    /// This process's own threads are measured while the engine asks, and the thread ends with its last use.
    #[test]
    fn the_time_of_threads_is_measured_while_it_is_asked_for() {
        let text = format!(
            "{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{shop: {{port: memory}}}}, backpressure: {{watch: {{pids: [{}]}}}}}}",
            std::process::id()
        );
        let checked = plimsoll_policy::check_str("load.yaml", &text).expect("legal");
        let (sampled, cores) = start(&checked, 0, &Broker::default());
        let sampled = sampled.expect("threads are measured apart");
        assert_eq!(cores, None);
        let begun = std::time::Instant::now();
        while !matches!(sampled.newest(), Newest::Used(used, _) if used > Span::ZERO) {
            assert!(begun.elapsed() < Duration::from_secs(20), "nothing was measured");
            std::thread::yield_now();
        }
    }
}
