//! The right to make network namespaces, and a private place to make them in.
//!
//! Why: `plimsoll lab` works for any user, and leaves nothing behind whatever happens to it.
//! From: user_namespaces(7), mount_namespaces(7).
//! Not here: what is built inside (`world`).
//! Invariant: whatever a lab makes is held by namespaces that die with its threads and processes.

use crate::error::LabError;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use std::fs;

/// Makes sure that this process may make network namespaces: root stays as it is, anybody else becomes root of a
/// new user namespace of its own.
///
/// Call it first thing in `main`: the kernel refuses to move a process that has started threads.
pub fn ensure_privileges() -> Result<(), LabError> {
    if can_make_namespaces() {
        return Ok(());
    }
    enter_user_namespace()?;
    if can_make_namespaces() {
        return Ok(());
    }
    Err(no_privileges("the new user namespace has no rights of its own"))
}

/// Gives the calling thread, and all that it will start, a network and a mount namespace of their own, with an
/// empty `/run`. Whatever it then makes vanishes with the last of them.
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

/// Tries it on a thread that ends at once, so that nothing of the process changes.
fn can_make_namespaces() -> bool {
    let attempt = std::thread::spawn(|| unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).is_ok());
    attempt.join().unwrap_or(false)
}

fn enter_user_namespace() -> Result<(), LabError> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|e| no_privileges(e.desc()))?;
    write_map("setgroups", "deny")?;
    write_map("uid_map", &format!("0 {user} 1"))?;
    write_map("gid_map", &format!("0 {group} 1"))
}

fn write_map(file: &str, text: &str) -> Result<(), LabError> {
    let path = format!("/proc/self/{file}");
    fs::write(&path, text).map_err(|e| LabError::io(format!("write {path}"), e))
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
