//! The right to make network namespaces, and a private place to make them in.
//!
//! Why: `plimsoll lab` works for any user, and leaves nothing behind even when it is killed.
//! From: user_namespaces(7), mount_namespaces(7).
//! Not here: the topology inside (`world`).
//! Invariant: all that a lab makes is in namespaces that end with its threads and processes.

use crate::command;
use crate::error::LabError;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Makes sure that this process may make network namespaces: root stays as it is, any other user becomes root of a new
/// user namespace.
///
/// Call it first in `main`: a process with threads cannot change its user namespace, and is then executed again inside,
/// with its arguments.
pub fn ensure_privileges() -> Result<(), LabError> {
    if can_make_namespaces() {
        return Ok(());
    }
    if std::env::var_os(INSIDE).is_some() {
        return Err(no_privileges("the new user namespace has no rights of its own"));
    }
    match enter_user_namespace() {
        Err(Errno::EINVAL) => Err(execute_again_inside()),
        Err(error) => Err(no_privileges(error.desc())),
        Ok(()) => match can_make_namespaces() {
            true => Ok(()),
            false => Err(no_privileges("the new user namespace has no rights of its own")),
        },
    }
}

/// Set for a process that was executed again inside of a user namespace.
const INSIDE: &str = "PLIMSOLL_LAB_INSIDE";

/// Executes this program again, as root of a new user namespace; returns only when that fails.
fn execute_again_inside() -> LabError {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return LabError::io("find this program", error),
    };
    let mut command = Command::new(command::tool_path("unshare"));
    command.args(["--user", "--map-root-user", "--"]).arg(program).args(std::env::args_os().skip(1));
    LabError::io("start `unshare`", command.env(INSIDE, "1").exec())
}

/// Gives the calling thread, and all threads and processes that it starts, a network and a mount namespace of their own,
/// with an empty `/run`. The namespaces end with the last of them.
pub fn enter_private_world() -> Result<(), LabError> {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).map_err(|e| no_privileges(e.desc()))?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(|e| LabError::io("make the lab's mounts private", e))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("tmpfs"), "/run", Some("tmpfs"), flags, Some("mode=755"))
        .map_err(|e| LabError::io("mount a private /run", e))?;
    fs::create_dir_all("/run/netns").map_err(|e| LabError::io("make /run/netns", e))
}

/// Whether this process may make namespaces; tried on a thread that ends at once, so that the process does not change.
fn can_make_namespaces() -> bool {
    let attempt = std::thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).is_ok());
    attempt.join().unwrap_or(false)
}

/// Moves this process to a new user namespace; fails with `EINVAL` when it has threads.
fn enter_user_namespace() -> Result<(), Errno> {
    let (user, group) = (geteuid(), getegid());
    unshare_alone()?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {user} 1"))?;
    write("gid_map", format!("0 {group} 1"))
}

/// Makes a new user namespace. Tries several times, a millisecond apart: the kernel counts a thread for a moment after it
/// was joined.
fn unshare_alone() -> Result<(), Errno> {
    let mut last = Errno::EINVAL;
    for _ in 0..20 {
        match unshare(CloneFlags::CLONE_NEWUSER) {
            Err(Errno::EINVAL) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => {
                last = error;
                break;
            }
            Ok(()) => return Ok(()),
        }
    }
    Err(last)
}

fn no_privileges(reason: &str) -> LabError {
    let blocked = |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    let hint = if blocked("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "sysctl kernel.unprivileged_userns_clone=1"
    } else if blocked("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    } else if blocked("/proc/sys/user/max_user_namespaces", "0") {
        "sysctl user.max_user_namespaces=10000"
    } else {
        "inside a container: allow unshare(2) and CLONE_NEWUSER"
    };
    LabError::NoPrivileges { reason: reason.to_owned(), hint }
}
