//! Real-time scheduling of the calling thread: lets it run before every ordinary thread.
//!
//! Why: a thread that paces packets must not wait for a core until other processes have used up their slices.
//! From: sched(7), "`SCHED_FIFO`"; the kernel's own shapers run in a timer's interrupt, before all processes.
//! Not here: when that is fair (`plimsoll-daemon`). The calls are in this crate because they need `unsafe`.
//! Invariant: only the class of a thread that asks changes, and only to the two lowest real-time priorities.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

use crate::socket::check;

/// The socket to the helping process.
static HELPER: OnceLock<UnixDatagram> = OnceLock::new();

/// The lowest real-time priority: before every ordinary thread, after all other real-time threads.
const LOWEST: libc::c_int = 1;

/// The next one, of a thread that is to run while another of this process's keeps a core.
const ABOVE: libc::c_int = 2;

/// Lets this process's threads take the two lowest real-time priorities, even after the process has given up its capabilities; or the
/// lowest, where no more is allowed.
///
/// # Errors
/// When neither a privilege nor the process's limit (`LimitRTPRIO=` in a unit) allows that.
pub fn permit() -> io::Result<()> {
    permit_up_to(ABOVE).or_else(|_| permit_up_to(LOWEST))
}

fn permit_up_to(priority: libc::c_int) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the live structure that it is given.
    check(unsafe { libc::getrlimit(libc::RLIMIT_RTPRIO, &raw mut limit) })?;
    let least = priority as libc::rlim_t;
    let wanted = libc::rlimit { rlim_cur: limit.rlim_cur.max(least), rlim_max: limit.rlim_max.max(least) };
    // SAFETY: the kernel only reads the live structure.
    check(unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const wanted) })?;
    Ok(())
}

/// Makes [`take`] ask another process, at the other end of `socket`, since this one is not permitted to change classes.
pub fn let_help(socket: UnixDatagram) {
    // Fails only on a second call: a process keeps its first helper.
    let _ = HELPER.set(socket);
}

/// Puts the calling thread before all ordinary ones. Where another process helps, it is asked, and does so soon after.
///
/// # Errors
/// The kernel's error, above all when the process is not permitted to.
pub fn take() -> io::Result<()> {
    match HELPER.get() {
        Some(helper) => helper.send(&nix::unistd::gettid().as_raw().to_ne_bytes()).map(drop),
        None => schedule(0, libc::SCHED_FIFO, LOWEST),
    }
}

/// Like [`take`], for a thread that has to run while another of this process's, which has taken that, keeps a core. It must sleep nearly
/// always.
///
/// # Errors
/// As for [`take`]; it then is as [`take`] leaves it, if that is permitted.
pub fn take_above() -> io::Result<()> {
    let taken = match HELPER.get() {
        // A number below zero asks for the higher priority.
        Some(helper) => helper.send(&(-nix::unistd::gettid().as_raw()).to_ne_bytes()).map(drop),
        None => schedule(0, libc::SCHED_FIFO, ABOVE),
    };
    taken.or_else(|error| take().and(Err(error)))
}

/// Puts the thread that asks on `socket` before all ordinary ones, if it belongs to process `process`.
///
/// # Errors
/// The kernel's error, `WouldBlock` when no thread asks, or `NotFound` when the thread belongs to another process.
pub fn help(socket: &UnixDatagram, process: u32) -> io::Result<()> {
    let mut asked = [0; 4];
    socket.recv(&mut asked)?;
    let asked = libc::pid_t::from_ne_bytes(asked);
    let (thread, priority) = (asked.saturating_abs(), if asked < 0 { ABOVE } else { LOWEST });
    if thread <= 0 || !std::path::Path::new(&format!("/proc/{process}/task/{thread}")).exists() {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    schedule(thread, libc::SCHED_FIFO, priority).or_else(|error| match priority {
        ABOVE => schedule(thread, libc::SCHED_FIFO, LOWEST),
        _ => Err(error),
    })
}

/// Makes the calling thread an ordinary one again.
///
/// # Errors
/// The kernel's error.
pub fn give_back() -> io::Result<()> {
    schedule(0, libc::SCHED_OTHER, 0)
}

fn schedule(thread: libc::pid_t, policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sched_param`, which has more than one field on some systems.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: 0 is the calling thread, and the kernel only reads the live structure.
    check(unsafe { libc::sched_setscheduler(thread, policy, &raw const param) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permitted_thread_takes_the_class_and_gives_it_back() {
        let policy = || {
            // SAFETY: takes an integer only.
            unsafe { libc::sched_getscheduler(0) }
        };
        std::thread::spawn(move || {
            if permit().and_then(|()| take()).is_ok() {
                assert_eq!(policy(), libc::SCHED_FIFO);
                if take_above().is_ok() {
                    // SAFETY: all zeroes is a valid `sched_param`, and the kernel fills the live structure.
                    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
                    // SAFETY: as above.
                    unsafe { libc::sched_getparam(0, &raw mut param) };
                    assert_eq!(param.sched_priority, ABOVE);
                }
                give_back().expect("an ordinary thread again");
            }
            assert_eq!(policy(), libc::SCHED_OTHER);
        })
        .join()
        .expect("the claims hold");
    }

    #[test]
    fn the_helper_refuses_threads_of_other_processes() {
        let (asks, helps) = UnixDatagram::pair().expect("a pair");
        let own = std::process::id();
        asks.send(&1_i32.to_ne_bytes()).expect("sent");
        assert_eq!(help(&helps, own).map_err(|error| error.kind()), Err(io::ErrorKind::NotFound), "init's");
        std::thread::spawn(move || {
            asks.send(&nix::unistd::gettid().as_raw().to_ne_bytes()).expect("sent");
            // SAFETY: takes an integer only.
            let policy = || unsafe { libc::sched_getscheduler(0) };
            if help(&helps, own).is_ok() {
                assert_eq!(policy(), libc::SCHED_FIFO);
                give_back().expect("an ordinary thread again");
            }
            assert_eq!(policy(), libc::SCHED_OTHER);
        })
        .join()
        .expect("the claims hold");
    }
}
