//! The part of the last-level cache that the daemon and its tenants' programs may fill, if the machine can hold them to one.
//!
//! Why: a program that steps through its memory evicts the lines of everything else on the host, and an operator has to
//! know what holds it back.
//! From: the kernel's resctrl file system (Intel CAT, AMD QoS); FairNIC §4.3; decision 25.
//! Not here: programs among themselves, which nothing keeps apart: all threads of the daemon are in one group.
//! Invariants: only what was read back from the kernel is reported as in force; the cache of no other process is changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::gettid;
use plimsoll_policy::Checked;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::programs::with_programs;

/// Where the kernel mounts it by custom, below the root.
const MOUNT: &str = "sys/fs/resctrl";
/// The group's name. An operator may have made it, with other ways.
const GROUP: &str = "plimsoll";

/// What holds programs' cache lines back on this machine, for `plimsoll status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CacheIsolation {
    /// The resctrl group that the daemon's threads are in, and what it may fill of the cache, as in
    /// `plimsoll: L3:0=00ff`; none where there is none.
    pub group: Option<String>,
    /// Why there is no group.
    pub no_group: Option<String>,
    /// Whether programs are kept apart from each other.
    pub between_programs: bool,
    /// Whether the pages of programs' memory are chosen by their colour in the cache.
    pub pages_chosen: bool,
}

impl CacheIsolation {
    /// A summary in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let pages = if self.pages_chosen { "chosen by colour" } else { "not chosen by colour" };
        let between = if self.between_programs { "" } else { ", not from each other" };
        match (&self.group, &self.no_group) {
            (Some(group), _) => {
                format!("held to part of the cache (resctrl group {group}){between}; pages: {pages}")
            }
            (None, why) => {
                let why = why.as_deref().unwrap_or("not tried");
                format!("not isolated (no resctrl group: {why}; pages: {pages})")
            }
        }
    }

    fn without(why: impl Into<String>) -> Self {
        Self { no_group: Some(why.into()), ..Self::default() }
    }
}

/// Holds the daemon's threads to a part of the cache, where its policy has programs and the machine can; logs the result.
/// The thread that calls this is to start all others later, and to give up its privileges only after this: without them
/// no thread may join a group.
pub(crate) fn divide(checked: &Checked) -> CacheIsolation {
    let wanted = with_programs(checked).next().is_some();
    let divided = isolate(Path::new("/"), gettid().as_raw().unsigned_abs(), wanted);
    if wanted {
        eprintln!("plimsoll: programs' cache: {}", divided.summary());
    }
    divided
}

/// Holds this thread, and those that it starts later, to a part of the last-level cache, where the machine can and the
/// policy has programs (`wanted`). `root` is `/`, or a test's folder.
///
/// A new group gets the lower half of the ways. A group `plimsoll` that is there already keeps what it has.
fn isolate(root: &Path, thread: u32, wanted: bool) -> CacheIsolation {
    if !wanted {
        return CacheIsolation::without("the policy had no program when the daemon started");
    }
    let mount = root.join(MOUNT);
    let lines = match l3_lines(&mount) {
        Ok(lines) if lines.is_empty() => {
            return CacheIsolation::without("resctrl does not divide the L3 cache of this CPU");
        }
        Ok(lines) => lines,
        Err(_) => return CacheIsolation::without(why_not_mounted(root)),
    };
    join(&mount, &lines, thread).unwrap_or_else(CacheIsolation::without)
}

/// Joins the group, and makes it first where there is none.
fn join(mount: &Path, lines: &[String], thread: u32) -> Result<CacheIsolation, String> {
    let folder = mount.join(GROUP);
    match fs::create_dir(&folder) {
        Ok(()) => {
            let entered = halve(mount, &folder, lines).and_then(|()| enter(&folder, thread));
            if let Err(why) = entered {
                // A group that holds nothing back is of no use, and would be taken for an operator's at the next start.
                let _ = fs::remove_dir(&folder);
                return Err(why);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => enter(&folder, thread)?,
        Err(error) => return Err(format!("it cannot be made: {error}")),
    }
    let in_force = l3_lines(&folder).map_err(|error| format!("it cannot be read: {error}"))?;
    Ok(CacheIsolation {
        group: Some(format!("{GROUP}: {}", in_force.join(" "))),
        ..CacheIsolation::default()
    })
}

/// Puts the thread into a group.
fn enter(folder: &Path, thread: u32) -> Result<(), String> {
    let tasks = folder.join("tasks");
    fs::write(&tasks, format!("{thread}\n")).map_err(|error| format!("it cannot be joined: {error}"))?;
    let read = fs::read_to_string(&tasks).map_err(|error| format!("it cannot be read: {error}"))?;
    if read.lines().any(|line| line.trim().parse() == Ok(thread)) {
        return Ok(());
    }
    Err("the kernel has not put the thread there".to_owned())
}

/// Gives a new group the lower half of the ways of each cache.
fn halve(mount: &Path, folder: &Path, lines: &[String]) -> Result<(), String> {
    let mut text = String::new();
    for line in lines {
        let half = lower_half(mount, line).ok_or_else(|| format!("`{line}` is not understood"))?;
        text = text + &half + "\n";
    }
    fs::write(folder.join("schemata"), text).map_err(|error| {
        let said = fs::read_to_string(mount.join("info/last_cmd_status")).unwrap_or_default();
        let said = said.trim();
        if said.is_empty() {
            format!("its ways are refused: {error}")
        } else {
            format!("its ways are refused: {said}")
        }
    })
}

/// A line such as `L3:0=fff;1=fff` with the lower half of its resource's ways in place of each mask.
fn lower_half(mount: &Path, line: &str) -> Option<String> {
    let (resource, caches) = line.split_once(':')?;
    let info = |file: &str| fs::read_to_string(mount.join("info").join(resource.trim()).join(file)).ok();
    let ways = u64::from_str_radix(info("cbm_mask")?.trim(), 16).ok()?.count_ones();
    let least = info("min_cbm_bits").and_then(|bits| bits.trim().parse().ok()).unwrap_or(1);
    let kept = (ways / 2).max(least);
    let mask = 1_u64.checked_shl(kept)? - 1;
    let caches = caches.split(';').map(|cache| Some(format!("{}={mask:x}", cache.split_once('=')?.0.trim())));
    Some(format!("{}:{}", resource.trim(), caches.collect::<Option<Vec<_>>>()?.join(";")))
}

/// The lines of a group for the L3 cache: `L3`, or `L3CODE` and `L3DATA` where it is divided for code and data.
fn l3_lines(group: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(group.join("schemata"))?;
    Ok(text.lines().map(str::trim).filter(|line| line.starts_with("L3")).map(str::to_owned).collect())
}

/// Why no resctrl is mounted: of the CPU, of the kernel, or of the operator.
fn why_not_mounted(root: &Path) -> String {
    let read = |file: PathBuf| fs::read_to_string(file).unwrap_or_default();
    let kernel = read(root.join("proc/filesystems")).split_whitespace().any(|word| word == "resctrl");
    let cpu = read(root.join("proc/cpuinfo"));
    let flags = cpu.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    match (has("cat_l3"), kernel) {
        (true, true) => format!("it is not mounted; `mount -t resctrl resctrl /{MOUNT}` does that"),
        (true, false) => "the CPU has cat_l3, and the kernel is built without resctrl".to_owned(),
        (false, _) if has("hypervisor") => {
            "the virtual machine's CPU has no cat_l3: its hypervisor does not offer it".to_owned()
        }
        (false, _) => "the CPU has no cat_l3".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u32 = 4_711;

    /// A root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
        folder
    }

    const MOUNTED: [(&str, &str); 3] = [
        ("sys/fs/resctrl/schemata", "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n"),
        ("sys/fs/resctrl/info/L3/cbm_mask", "fffff\n"),
        ("sys/fs/resctrl/info/L3/min_cbm_bits", "1\n"),
    ];

    fn refused(files: &[(&str, &str)]) -> String {
        isolate(root(files).path(), THREAD, true).no_group.expect("no group")
    }

    #[test]
    fn without_resctrl_the_reason_is_the_cpus_the_hypervisors_the_kernels_or_the_operators() {
        let cpu = |flags: &'static str| ("proc/cpuinfo", flags);
        assert_eq!(refused(&[]), "the CPU has no cat_l3");
        let virtual_machine = refused(&[cpu("processor : 0\nflags\t\t: fpu hypervisor rdtscp\n")]);
        assert_eq!(
            virtual_machine,
            "the virtual machine's CPU has no cat_l3: its hypervisor does not offer it"
        );
        let able = cpu("flags\t\t: fpu cat_l3 cdp_l3\n");
        assert_eq!(refused(&[able]), "the CPU has cat_l3, and the kernel is built without resctrl");
        let kernel = ("proc/filesystems", "nodev\tsysfs\nnodev\tresctrl\n");
        assert!(refused(&[able, kernel]).contains("mount -t resctrl resctrl /sys/fs/resctrl"));
        let monitors = ("sys/fs/resctrl/schemata", "MB:0=100\n");
        assert_eq!(refused(&[able, monitors]), "resctrl does not divide the L3 cache of this CPU");
    }

    #[test]
    fn a_new_group_has_the_lower_half_of_the_ways_and_nothing_else_changes() {
        let root = root(&MOUNTED);
        let found = isolate(root.path(), THREAD, true);
        assert_eq!(found.group.as_deref(), Some("plimsoll: L3:0=3ff;1=3ff"));
        assert_eq!(
            found.summary(),
            "held to part of the cache (resctrl group plimsoll: L3:0=3ff;1=3ff), not from each other; pages: not chosen \
             by colour"
        );
        let at = |file: &str| fs::read_to_string(root.path().join(MOUNT).join(file)).expect("there");
        assert_eq!(
            (at("plimsoll/schemata"), at("plimsoll/tasks")),
            ("L3:0=3ff;1=3ff\n".into(), "4711\n".into())
        );
        assert_eq!(at("schemata"), MOUNTED[0].1);
    }

    #[test]
    fn code_and_data_have_half_of_the_ways_each_and_a_cache_of_few_ways_what_it_needs() {
        let root = root(&[
            ("sys/fs/resctrl/schemata", "L3DATA:0=7\nL3CODE:0=7\n"),
            ("sys/fs/resctrl/info/L3DATA/cbm_mask", "7\n"),
            ("sys/fs/resctrl/info/L3DATA/min_cbm_bits", "2\n"),
            ("sys/fs/resctrl/info/L3CODE/cbm_mask", "7\n"),
        ]);
        let found = isolate(root.path(), THREAD, true);
        assert_eq!(found.group.as_deref(), Some("plimsoll: L3DATA:0=3 L3CODE:0=1"));
    }

    #[test]
    fn a_group_that_is_there_keeps_its_ways() {
        let own = ("sys/fs/resctrl/plimsoll/schemata", "L3:0=f0000;1=f0000\n");
        let root = root(&[&MOUNTED[..], &[own]].concat());
        let found = isolate(root.path(), THREAD, true);
        assert_eq!(found.group.as_deref(), Some("plimsoll: L3:0=f0000;1=f0000"));
    }

    #[test]
    fn a_group_that_cannot_be_set_up_is_taken_away_again() {
        let root = root(&MOUNTED[..1]);
        let found = isolate(root.path(), THREAD, true);
        assert_eq!(found.no_group.as_deref(), Some("`L3:0=fffff;1=fffff` is not understood"));
        assert!(!root.path().join(MOUNT).join(GROUP).exists());
    }

    #[test]
    fn without_programs_nothing_is_done() {
        let root = root(&MOUNTED);
        assert_eq!(isolate(root.path(), THREAD, false).group, None);
        assert!(!root.path().join(MOUNT).join(GROUP).exists());
    }
}
