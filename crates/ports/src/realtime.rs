//! Whether the kernel lets the calling thread run before every ordinary one.
//!
//! Why: a thread that paces packets must not wait for a core until other processes have used up their slices.
//! From: sched(7), "`SCHED_FIFO`"; the kernel's own shapers run in a timer's interrupt, before all processes.
//! Not here: when that is fair (`plimsoll-daemon`); this is here because the house's `unsafe` is.
//! Invariant: only the calling thread's class changes, and only to the lowest real-time priority.

use std::io;

use crate::socket::check;

/// The lowest real-time priority: before every ordinary thread, after everybody else's real-time ones.
const LOWEST: libc::c_int = 1;

/// Lets this process's threads take the lowest real-time priority, also once it has given up its capabilities.
///
/// # Errors
/// When neither a privilege nor the limit that it was started with (`LimitRTPRIO=` in a unit) allows that.
pub fn permit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the live structure that it is given.
    check(unsafe { libc::getrlimit(libc::RLIMIT_RTPRIO, &raw mut limit) })?;
    let least = LOWEST as libc::rlim_t;
    let wanted = libc::rlimit { rlim_cur: limit.rlim_cur.max(least), rlim_max: limit.rlim_max.max(least) };
    // SAFETY: the kernel only reads the live structure.
    check(unsafe { libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const wanted) })?;
    Ok(())
}

/// Puts the calling thread before all ordinary ones.
///
/// # Errors
/// What the kernel says, to a thread that was not permitted to above all.
pub fn take() -> io::Result<()> {
    schedule(libc::SCHED_FIFO, LOWEST)
}

/// Puts the calling thread among the ordinary ones again.
///
/// # Errors
/// What the kernel says.
pub fn give_back() -> io::Result<()> {
    schedule(libc::SCHED_OTHER, 0)
}

fn schedule(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: all zeroes is a valid `sched_param`, some of which have more fields than one.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = priority;
    // SAFETY: 0 is the calling thread, and the kernel only reads the live structure.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const param) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_take_it_gives_it_back() {
        let policy = || {
            // SAFETY: takes an integer only.
            unsafe { libc::sched_getscheduler(0) }
        };
        std::thread::spawn(move || {
            if permit().and_then(|()| take()).is_ok() {
                assert_eq!(policy(), libc::SCHED_FIFO);
                give_back().expect("an ordinary thread again");
            }
            assert_eq!(policy(), libc::SCHED_OTHER);
        })
        .join()
        .expect("the claims hold");
    }
}
