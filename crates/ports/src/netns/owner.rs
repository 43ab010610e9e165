//! Marks namespaces and interfaces with their process, so that those left by a crash can be found and removed.
//!
//! Why: a killed lab or daemon leaves named namespaces and veth pairs behind.
//! From: a mark `plimsoll:PID:START:PIDNS`. The start time tells a process from an earlier one with the same id; the pid
//! namespace tells a process that this one cannot see from a dead one.
//! Not here: resources that need no sweep. TAPs (except those in `kept`), sockets, XDP attachments (BPF links) and
//! anonymous namespaces end with the process that holds them, however it ends.
//! Invariant: only resources with the mark of a process known to be dead are touched.

use std::fs;

use nlink::netlink::namespace;

use super::Netns;
use crate::error::PortError;

/// The resources that [`sweep`] has removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Named network namespaces.
    pub namespaces: Vec<String>,
    /// Interfaces, as `interface in place`.
    pub links: Vec<String>,
}

/// Removes the named namespaces and, in the process's own namespace, the interfaces that dead processes of this program
/// have left. Does not touch those of living processes.
///
/// A process that is killed can leave behind only what [`Netns::create`] and [`super::Links::add_veth`] make. TAPs, packet
/// and AF_XDP sockets with their program, and anonymous namespaces end with the process. For interfaces inside other
/// namespaces see [`sweep_links`].
///
/// # Errors
/// When a resource of a dead process may not be removed.
pub fn sweep() -> Result<Swept, PortError> {
    let mut swept = Swept::default();
    for name in marked_namespaces() {
        let dead = namespace::owner_of(&name).ok().flatten().is_some_and(|mark| is_dead(&mark));
        if !dead {
            continue;
        }
        if namespace::exists(&name) {
            namespace::delete(&name).map_err(|error| {
                PortError::netlink("delete", &format!("network namespace `{name}`"), &error)
            })?;
            swept.namespaces.push(name);
        } else {
            // A process crashed between writing the mark and making the namespace: only the mark is left.
            let _ = namespace::remove_owner_tag(&name);
        }
    }
    swept.links = sweep_links(&Netns::own()?)?;
    Ok(swept)
}

/// Removes the interfaces in `netns` that dead processes of this program have left, and returns their names.
///
/// # Errors
/// When one of them may not be removed.
pub fn sweep_links(netns: &Netns) -> Result<Vec<String>, PortError> {
    let links = netns.links();
    let mut removed = Vec::new();
    for link in links.list()? {
        // Deleting one end of a veth pair deletes the other.
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

/// Whether `mark` is this program's and its process is known to have ended.
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

/// Start time of a process, in the kernel's ticks since boot; `None` when there is no such process.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain spaces and parentheses; the fields go on after the last parenthesis.
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

/// The begin of every mark.
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
