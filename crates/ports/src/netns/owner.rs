//! Marks on what this process makes, so that what a crash left can be known and removed.
//!
//! Why: a killed lab or daemon leaves named namespaces and veth pairs behind.
//! From: a mark `plimsoll:PID:START:PIDNS`; the start time tells a reused process id from the old
//! process, the pid namespace tells a process that we cannot see from a dead one.
//! Not here: what needs no sweeping. TAPs (but those that are `kept`), sockets, XDP attachments (BPF links) and
//! anonymous namespaces end with the process that holds them, however it ends.
//! Invariant: nothing without the mark of a process known to be dead is touched.

use std::fs;

use nlink::netlink::namespace;

use super::Netns;
use crate::error::PortError;

/// What [`sweep`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Named network namespaces.
    pub namespaces: Vec<String>,
    /// Interfaces, as `interface in place`.
    pub links: Vec<String>,
}

/// Removes the named namespaces and, in the process's own namespace, the interfaces that a dead
/// process of this program left. Does nothing to those of living processes.
///
/// Only what [`Netns::create`] and [`super::Links::add_veth`] make can be left behind by a process
/// that is killed. TAPs, packet and AF_XDP sockets with their program, and anonymous namespaces end
/// with the process. Interfaces inside other namespaces: see [`sweep_links`].
///
/// # Errors
/// When something of a dead process is there and may not be removed.
pub fn sweep() -> Result<Swept, PortError> {
    let mut swept = Swept::default();
    for name in marked_namespaces() {
        let dead = namespace::owner_of(&name).ok().flatten().is_some_and(|mark| is_dead(&mark));
        if !dead {
            continue;
        }
        if namespace::exists(&name) {
            namespace::delete(&name).map_err(|error| {
                super::link::explain("delete", &format!("network namespace `{name}`"), &error)
            })?;
            swept.namespaces.push(name);
        } else {
            // A crash between writing the mark and making the namespace: only the mark is left.
            let _ = namespace::remove_owner_tag(&name);
        }
    }
    swept.links = sweep_links(&Netns::own()?)?;
    Ok(swept)
}

/// Removes the interfaces in `netns` that a dead process of this program left, and names them.
///
/// # Errors
/// When one is there and may not be removed.
pub fn sweep_links(netns: &Netns) -> Result<Vec<String>, PortError> {
    let links = netns.links();
    let mut removed = Vec::new();
    for link in links.list()? {
        // The other half of a veth pair goes with the first.
        if link.alias.as_deref().is_some_and(is_dead) && links.delete_if_exists(&link.name)? {
            removed.push(format!("{} in {}", link.name, netns.place()));
        }
    }
    Ok(removed)
}

/// The mark of this process.
pub(crate) fn mark() -> String {
    let pid = std::process::id();
    format!("{PREFIX}{pid}:{}:{}", start_time(pid).unwrap_or_default(), pid_namespace())
}

/// Whether `mark` is ours and its process known to have ended.
fn is_dead(mark: &str) -> bool {
    let Some(mut fields) = mark.strip_prefix(PREFIX).map(|rest| rest.split(':')) else {
        return false;
    };
    let (Some(pid), Some(start), Some(space), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    let Ok(pid) = pid.parse::<u32>() else {
        return false;
    };
    space == pid_namespace() && start_time(pid).as_deref() != Some(start)
}

/// When the process started, in the kernel's ticks since boot; `None` when there is no such process.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold spaces and parentheses; the fields go on after the last one.
    let fields = &stat[stat.rfind(')')? + 1..];
    // Field 22 of proc(5); the first after the name is field 3.
    fields.split_whitespace().nth(22 - 3).map(str::to_owned)
}

fn pid_namespace() -> String {
    fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().chars().filter(char::is_ascii_digit).collect())
        .unwrap_or_default()
}

fn marked_namespaces() -> Vec<String> {
    let Ok(entries) = fs::read_dir(namespace::OWNER_TAG_DIR) else {
        return Vec::new();
    };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// How every mark begins.
const PREFIX: &str = "plimsoll:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_mark_is_alive() {
        assert!(!is_dead(&mark()));
    }

    #[test]
    fn a_reused_process_id_is_told_by_its_start_time() {
        let old = format!("{PREFIX}{}:1:{}", std::process::id(), pid_namespace());
        assert!(is_dead(&old));
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_let_be() {
        assert!(!is_dead(&format!("{PREFIX}4194305:1:999")));
        assert!(is_dead(&format!("{PREFIX}4194305:1:{}", pid_namespace())));
    }

    #[test]
    fn what_others_marked_is_let_be() {
        for mark in ["", "docker", "plimsoll:", "plimsoll:x:1:2", "plimsoll:1:2", "plimsoll:1:2:3:4"] {
            assert!(!is_dead(mark), "{mark}");
        }
    }
}
