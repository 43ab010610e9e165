//! Handles system calls that the process's seccomp filter traps.
//!
//! Why: a call that the daemon never makes is a sign that an attacker controls the thread: the process ends, and the log
//! names the call. A call that a library merely tries fails as on a kernel without it, and the log says so once.
//! From: seccomp(2), `SECCOMP_RET_TRAP`; sigaction(2).
//! Not here: the list of calls (`daemon::sandbox`).
//! Invariant: a trapped call is never made; the handler is async-signal-safe.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The consequence of a trapped call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The call fails with `ENOSYS`, and the first failure is logged.
    Refused,
    /// The process ends, and the call's name is logged.
    Fatal(&'static str),
}

/// Decides on a call by its number. It runs inside a signal handler and may read only constants.
pub type Judge = fn(i64) -> Verdict;

static JUDGE: OnceLock<Judge> = OnceLock::new();

/// Whether the refusal of a call was logged, by the call's number; larger numbers share the last place.
static LOGGED: [AtomicBool; 512] = [const { AtomicBool::new(false) }; 512];

/// Installs a signal handler by which `judge` decides on trapped calls. Only a process's first judge counts.
///
/// # Errors
/// When the kernel refuses the handler.
pub fn install(judge: Judge) -> io::Result<()> {
    JUDGE.get_or_init(|| judge);
    // SAFETY: `sigaction` holds integers and pointers; all zeroes is a valid value of each.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_trap as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the structure lives through the call; the handler is async-signal-safe (see there) and has the signature
    // that SA_SIGINFO asks for.
    let answer = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The signal handler. Async-signal-safe: it uses only atomics, constants, write, signal and raise.
extern "C" fn on_trap(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, in which a SIGSYS has the call's number as its seventh word
    // (`_sigsys._syscall` behind an address of eight bytes at 16).
    let number = i64::from(unsafe { *info.cast::<libc::c_int>().add(6) });
    let verdict = JUDGE.get().map_or(Verdict::Refused, |judge| judge(number));
    match verdict {
        Verdict::Refused => {
            let place = usize::try_from(number).unwrap_or(usize::MAX).min(LOGGED.len() - 1);
            // Relaxed: the flag orders no other memory.
            if !LOGGED[place].swap(true, Ordering::Relaxed) {
                say(&[b"plimsoll: system call ", &digits(number), b" is refused by the filter\n"]);
            }
        }
        Verdict::Fatal(name) => {
            let way = b"), which a daemon never makes: something else has this process. It ends\n";
            say(&[b"plimsoll: system call ", name.as_bytes(), b" (", &digits(number), way]);
            // SAFETY: both take integers only; the signal is not blocked here (SA_NODEFER), so that raise ends the process.
            unsafe {
                libc::signal(libc::SIGSYS, libc::SIG_DFL);
                libc::raise(libc::SIGSYS);
                libc::_exit(159);
            }
        }
    }
    // SAFETY: the kernel passes the context of the thread that made the call, and restores it from here.
    unsafe { answer(context, -i64::from(libc::ENOSYS)) };
}

/// Makes the trapped call return `value`.
///
/// # Safety
/// `context` must be the one that the kernel passed to a handler.
unsafe fn answer(context: *mut libc::c_void, value: i64) {
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller guarantees the context; a call's return value is in RAX.
    unsafe {
        (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = value;
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller guarantees the context; a call's return value is in X0.
    unsafe {
        (*context).uc_mcontext.regs[0] = value.cast_unsigned();
    }
}

/// Writes a line to the standard error output, without allocating.
fn say(parts: &[&[u8]]) {
    let mut line = [0; 192];
    let mut len = 0;
    for part in parts {
        let room = line.len() - len;
        let count = part.len().min(room);
        line[len..len + count].copy_from_slice(&part[..count]);
        len += count;
    }
    // SAFETY: the buffer is live and at least `len` long. A failed write is ignored.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), len) };
}

/// A number in four digits, with spaces before it.
fn digits(number: i64) -> [u8; 4] {
    let mut rest = number.clamp(0, 9_999);
    let mut text = [b' '; 4];
    for place in text.iter_mut().rev() {
        if rest > 0 {
            // The digit is below 10 and fits.
            *place = b'0' + (rest % 10) as u8;
        }
        rest /= 10;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_without_memory() {
        assert_eq!(&digits(59), b"  59");
        assert_eq!(&digits(435), b" 435");
        assert_eq!(&digits(12_345), b"9999");
        assert_eq!(&digits(-1), b"    ");
    }
}
