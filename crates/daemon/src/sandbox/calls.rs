//! System calls that the engine's process and the broker may make.
//!
//! Why: a process that carries packets needs few system calls; the others would only help an attacker who takes it over.
//! From: seccomp(2), through `seccompiler`; the list was measured by running every live test with a handler that reports
//! missing calls (`trap`).
//! Not here: handling a call that is not listed (`trap`).
//! Invariant: a call beyond the list fails as on a kernel without it; a call that no part of a daemon ever makes ends the
//! process.

use std::collections::BTreeMap;

use libc::c_long;
use plimsoll_ports::trap::Verdict;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

/// Puts the engine's filter on this thread, and those that it starts. With `programs`, memory may become executable that is not writable.
pub(super) fn filter_engine(programs: bool) -> Result<(), String> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for &call in ALLOWED.iter().chain(ALLOWED_HERE) {
        rules.insert(call, Vec::new());
    }
    for (call, argument, values) in ONLY_WITH {
        let rule = |&value: &u64| only(*argument, SeccompCmpOp::Eq, value);
        rules.insert(*call, values.iter().map(rule).collect::<Result<_, _>>()?);
    }
    // Between threads: streams, which reach no other process.
    let unix = condition(0, SeccompCmpOp::Eq, libc::AF_UNIX as u64)?;
    let stream = condition(1, SeccompCmpOp::MaskedEq(0xf), libc::SOCK_STREAM as u64)?;
    let pair = SeccompRule::new(vec![unix, stream]).map_err(|error| error.to_string())?;
    rules.insert(libc::SYS_socketpair, vec![pair]);
    // Limits may be read and not set: the pointer to the new ones must be null.
    let own = condition(0, SeccompCmpOp::Eq, 0)?;
    let asks = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0);
    let limits = SeccompRule::new(vec![own, asks.map_err(|error| error.to_string())?]);
    rules.insert(libc::SYS_prlimit64, vec![limits.map_err(|error| error.to_string())?]);
    // No memory is both writable and executable.
    let run = libc::PROT_EXEC as u64;
    rules.insert(libc::SYS_mmap, vec![only(2, SeccompCmpOp::MaskedEq(run), 0)?]);
    let mut protect = vec![only(2, SeccompCmpOp::MaskedEq(run), 0)?];
    if programs {
        // Compiled programs are written first, and then made executable.
        protect.push(only(2, SeccompCmpOp::MaskedEq(run | libc::PROT_WRITE as u64), run)?);
    }
    rules.insert(libc::SYS_mprotect, protect);
    apply(lacking()?, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS.cast_unsigned()))?;
    rules.extend([libc::SYS_clone, libc::SYS_clone3].map(|call| (call, Vec::new())));
    apply(rules, SeccompAction::Trap, SeccompAction::Allow)
}

/// Calls that start processes, where only threads are needed. `clone3` hides its flags in memory, so it is refused
/// altogether. They have a filter of their own: the C library makes them with all signals blocked, when a trap would end
/// the process.
fn lacking() -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    let process = only(0, SeccompCmpOp::MaskedEq(libc::CLONE_THREAD as u64), 0)?;
    Ok(BTreeMap::from([(libc::SYS_clone, vec![process]), (libc::SYS_clone3, Vec::new())]))
}

/// Puts the broker's filter on this thread: all calls but those of [`NEVER`] that the broker does not make.
pub(super) fn filter_broker() -> Result<(), String> {
    let needed = |call: &c_long| BROKER_TOO.contains(call);
    let never = NEVER.iter().map(|(call, _)| call).filter(|call| !needed(call));
    apply(never.map(|&call| (call, Vec::new())).collect(), SeccompAction::Allow, SeccompAction::Trap)
}

fn apply(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<(), String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|_| "this processor is not known".to_owned())?;
    let filter = SeccompFilter::new(rules, otherwise, listed, arch).map_err(|error| error.to_string())?;
    let program: BpfProgram =
        filter.try_into().map_err(|error: seccompiler::BackendError| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

fn only(argument: u8, compare: SeccompCmpOp, value: u64) -> Result<SeccompRule, String> {
    let condition = condition(argument, compare, value)?;
    SeccompRule::new(vec![condition]).map_err(|error| error.to_string())
}

fn condition(argument: u8, compare: SeccompCmpOp, value: u64) -> Result<SeccompCondition, String> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value);
    condition.map_err(|error| error.to_string())
}

/// The action for a call that is not allowed.
pub(super) fn judge(call: i64) -> Verdict {
    for (never, name) in NEVER {
        if *never == call {
            return Verdict::Fatal(name);
        }
    }
    Verdict::Refused
}

/// Calls that the engine's process makes. The kernel keeps a table of those that depend on no argument (since 5.11), so
/// that their order costs nothing.
const ALLOWED: &[c_long] = &[
    // Frames.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    // The bells of virtual machines.
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    // Waiting, time and threads.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_membarrier,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    // Files.
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_lseek,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_fstatfs,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    // Existing sockets: none is made, and none is connected.
    libc::SYS_accept4,
    libc::SYS_accept,
    libc::SYS_bind, // of AF_XDP's, which the broker has made
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    // Its own identity; signals to itself.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_getrlimit,
];

/// Older forms of these calls that only this processor architecture has.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
    libc::SYS_access,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// Calls that are allowed with some values of one argument only.
const ONLY_WITH: &[(c_long, u8, &[u64])] = &[
    // Waiting or not, whether a TAP is still there, whether it stays when it is closed, whether the log goes to a terminal,
    // how much can be read.
    (
        libc::SYS_ioctl,
        1,
        &[libc::FIONBIO, libc::TUNGETIFF, libc::TUNSETPERSIST, libc::TCGETS, libc::FIONREAD],
    ),
    (
        libc::SYS_fcntl,
        1,
        &[
            libc::F_GETFD as u64,
            libc::F_SETFD as u64,
            libc::F_GETFL as u64,
            libc::F_SETFL as u64,
            libc::F_DUPFD_CLOEXEC as u64,
            libc::F_ADD_SEALS as u64,
            libc::F_GET_SEALS as u64,
        ],
    ),
    (
        libc::SYS_prctl,
        0,
        &[
            libc::PR_SET_NAME as u64,
            libc::PR_GET_NAME as u64,
            libc::PR_SET_TIMERSLACK as u64,
            // How allocations are shown in `/proc/PID/maps` ("PR_SET_VMA").
            0x5356_4d41,
        ],
    ),
];

/// The calls of [`NEVER`] that the broker makes.
const BROKER_TOO: &[c_long] = &[
    libc::SYS_setns,
    libc::SYS_bpf,
    // A tenant's file is read by a child, which gives up its privileges (`reader`).
    libc::SYS_execve,
    libc::SYS_capset,
    libc::SYS_setgroups,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
];

/// Calls that no part of a daemon ever makes: one that occurs means that the process has been taken over.
const NEVER: &[(c_long, &str)] = &[
    (libc::SYS_execve, "execve"),
    (libc::SYS_execveat, "execveat"),
    (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_process_vm_readv, "process_vm_readv"),
    (libc::SYS_process_vm_writev, "process_vm_writev"),
    (libc::SYS_pidfd_getfd, "pidfd_getfd"),
    (libc::SYS_kcmp, "kcmp"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_unshare, "unshare"),
    (libc::SYS_chroot, "chroot"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_io_uring_setup, "io_uring_setup"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_io_uring_register, "io_uring_register"),
    (libc::SYS_keyctl, "keyctl"),
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_init_module, "init_module"),
    (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_delete_module, "delete_module"),
    (libc::SYS_kexec_load, "kexec_load"),
    (libc::SYS_kexec_file_load, "kexec_file_load"),
    (libc::SYS_reboot, "reboot"),
    (libc::SYS_swapon, "swapon"),
    (libc::SYS_swapoff, "swapoff"),
    (libc::SYS_acct, "acct"),
    (libc::SYS_quotactl, "quotactl"),
    (libc::SYS_settimeofday, "settimeofday"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_setuid, "setuid"),
    (libc::SYS_setgid, "setgid"),
    (libc::SYS_setresuid, "setresuid"),
    (libc::SYS_setresgid, "setresgid"),
    (libc::SYS_setgroups, "setgroups"),
    (libc::SYS_capset, "capset"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_allowed_that_ends_the_process() {
        let allowed = |call: &c_long| {
            ALLOWED.contains(call)
                || ALLOWED_HERE.contains(call)
                || ONLY_WITH.iter().any(|(other, ..)| other == call)
        };
        for (call, name) in NEVER {
            assert!(!allowed(call), "{name}");
        }
        assert_eq!(judge(libc::SYS_execve), Verdict::Fatal("execve"));
        assert_eq!(judge(libc::SYS_getsid), Verdict::Refused);
    }
}
