//! A process that has no room for more descriptors keeps none of those that it could not take all of.
//!
//! In a process of its own, as the limit is the process's.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::support::guest::{Guest, SET_MEM_TABLE, VERSION_1};
use crate::support::itself::{is_again, run_again};
use crate::support::until;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use plimsoll_ports::{VhostUser, VhostUserConfig};

/// Descriptors of files in memory that are the guest's.
fn open() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("every process has it").flatten();
    let files = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    files.filter(|file| file.to_string_lossy().starts_with("/memfd:plimsoll-vnic")).count()
}

#[test]
fn descriptors_that_came_in_part_are_closed() {
    if is_again(ITSELF) {
        return with_a_limit_of_its_own();
    }
    run_again("vhost_user_limit::descriptors_that_came_in_part_are_closed", ITSELF);
}

/// Set for the process that lowers its limit.
const ITSELF: &str = "PLIMSOLL_TEST_LIMIT";

fn with_a_limit_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vm.sock");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    let guest = Guest::start(&mut port, &path, 8, VERSION_1);
    let passed: Vec<OwnedFd> =
        (0..8).map(|_| guest.file.as_fd().try_clone_to_owned().expect("a descriptor")).collect();
    let ends: Vec<_> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    guest.say(SET_MEM_TABLE, &[0; 8], &ends);
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    assert_eq!(open(), 10, "the guest's own, the port's, and eight that it passes");
    let last = passed.iter().map(AsRawFd::as_raw_fd).max().expect("eight") as u64;
    setrlimit(Resource::RLIMIT_NOFILE, last + 4, hard).expect("lowered");
    port.probe().expect("always there");
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("raised");
    assert!(!port.is_connected(), "half of what it passed did not come");
    until("a thread to close what came", || open() == 9);
    drop((passed, guest));
}
