//! Operations that a confined process may no longer do, tried in a copy of this test that confines itself.

use std::fs::File;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{execv, getppid};
use plimsoll_ports::foreign::{Closer, Foreign};
use plimsoll_ports::{Apart, Port, STALL, Stalls, VnicConfig, VnicPort};

use super::*;

/// Set for the copy: the operation to try.
const ATTEMPT: &str = "PLIMSOLL_SANDBOX_ATTEMPT";

/// Confines this process and tries an operation; the output says how that went.
#[test]
fn attempt() {
    let Ok(what) = std::env::var(ATTEMPT) else { return };
    if what == "a reader's file" {
        return read_another();
    }
    let before = cost();
    let port = (what == "threads for tenants").then(vnic);
    let user = User::choose(None).expect("one");
    let standing = confine(&user, 1, what.starts_with("with programs")).expect("confined");
    println!("confined: {}", standing.summary());
    let denied = |outcome: std::io::Result<()>| match outcome {
        Ok(()) => println!("it went through"),
        Err(error) => println!("denied: {error}"),
    };
    match what.as_str() {
        "execve" => denied(execv(c"/bin/true", &[c"true"]).map(|_| ()).map_err(Into::into)),
        "unshare" => denied(nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER).map_err(Into::into)),
        "mount" => {
            let flags = nix::mount::MsFlags::MS_BIND;
            denied(nix::mount::mount(Some("/"), "/", None::<&str>, flags, None::<&str>).map_err(Into::into));
        }
        "a program" => denied(Command::new("/bin/true").spawn().map(drop)),
        "a file" => denied(File::open("/etc/passwd").map(drop)),
        "a new file" => denied(File::create("/tmp/plimsoll-sandbox-test").map(drop)),
        "a Unix socket" => denied(UnixStream::connect("/run/systemd/notify").map(drop)),
        "TCP" => denied(TcpStream::connect("127.0.0.1:1").map(drop)),
        "UDP" => denied(UdpSocket::bind("127.0.0.1:0").map(drop)),
        "a signal" => denied(kill(getppid(), Signal::SIGCONT).map_err(Into::into)),
        "what it needs" => needed(),
        "a compiled program" | "with programs, one of them" => denied(run_compiled()),
        "threads for tenants" => serve_tenants(port.expect("a vNIC")),
        // Not asserted: for docs/performance.md, "What the sandbox costs".
        "its cost" => println!("a system call takes {} ns, and took {before} before", cost()),
        other => panic!("{other}?"),
    }
}

/// What an attacker in a process that reads a tenant's file would try: the process may open no further file.
fn read_another() {
    crate::reader::confine(512 << 20, 20).expect("confined");
    nix::unistd::close(0).expect("it is open");
    match File::open("/etc/passwd") {
        Ok(_) => println!("it went through"),
        Err(error) => println!("denied: {error}"),
    }
}

/// Nanoseconds that a system call takes.
fn cost() -> u64 {
    let best = (0..20).map(|_| {
        let begun = std::time::Instant::now();
        for _ in 0..10_000 {
            std::hint::black_box(nix::unistd::getpid());
        }
        begun.elapsed().as_nanos() / 10_000
    });
    best.min().and_then(|best| u64::try_from(best).ok()).unwrap_or(u64::MAX)
}

/// Threads, its own figures, random numbers, and memory.
fn needed() {
    std::thread::spawn(|| {
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("its own figures");
        std::fs::read_to_string("/etc/machine-id").map(drop).unwrap_or_default();
        File::open("/dev/urandom").expect("random numbers");
        drop(vec![1_u8; 64 << 20]);
        UnixStream::pair().expect("a pair");
        nix::sys::prctl::set_timerslack(1).expect("precise timers");
    })
    .join()
    .expect("all of it");
    println!("it has what it needs");
}

/// Compiles a program and runs it, until its call has taken too long.
fn run_compiled() -> std::io::Result<()> {
    use plimsoll_offload::{Fault, Limits, Program, Runtime, Start};
    let endless = "(module (memory (export \"memory\") 1) (func (export \"plimsoll_abi_1\"))
        (func (export \"egress\") (param i32) (result i32) (local.get 0))
        (func (export \"init\") (result i32) (loop $l (br $l)) (i32.const 0)))";
    let module = wat::parse_str(endless).expect("a module");
    let runtime = Runtime::timed(|| plimsoll_units::Nanos::new(cpu())).map_err(std::io::Error::other)?;
    let module = runtime.load(&module, &Limits::default()).map_err(std::io::Error::other)?;
    let epochs = crate::epochs::Epochs::of(runtime.clone())?;
    let running = epochs.run();
    let ended = Program::new(&module).err();
    drop(running);
    assert!(matches!(ended, Some(Start::Init(Fault::OverBudget(_)))), "{ended:?}");
    Ok(())
}

fn cpu() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
    u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec()).expect("not long")
}

fn vnic() -> VnicPort {
    let path = std::env::temp_dir().join(format!("plimsoll-sandbox-{}.sock", std::process::id()));
    let port = VnicPort::open(&VnicConfig::new(&path)).expect("free");
    std::fs::remove_file(path).expect("it is there");
    port
}

/// A port goes to a thread of its own and comes back; stalls are measured; foreign descriptors are closed by another thread.
fn serve_tenants(port: VnicPort) {
    let mut apart = Apart::new(Port::Vnic(port), 0, 64, 64).map_err(|(_, error)| error).expect("a thread");
    let wait = |what: &str, holds: &mut dyn FnMut() -> bool| {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(20), "not in time: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    apart.begin().expect("it is there");
    apart.want_back();
    wait("it comes back", &mut || {
        let _ = apart.begin();
        apart.want_back();
        apart.is_back()
    });
    let (port, _) = apart.into_port().expect("it is back");
    drop(port);
    let mut stalls = Stalls::default();
    stalls.rested();
    std::thread::sleep(Duration::from_millis(2));
    assert!(stalls.is_stall(STALL), "the kernel says which thread waited");
    let closer = Closer::of("/test".as_ref()).expect("a closer");
    let (end, other) = UnixStream::pair().expect("a pair");
    drop(Foreign::new(end, &closer));
    wait("it is closed", &mut || !closer.is_busy());
    drop(other);
    println!("it serves tenants");
}

fn tried(what: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "sandbox::tests::attempt", "--nocapture", "--test-threads=1"]);
    command.env(ATTEMPT, what).output().expect("started")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn what_a_daemon_never_does_ends_it_by_name() {
    for call in ["execve", "unshare", "mount"] {
        let output = tried(call);
        let said = said(&output);
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&output.status),
            Some(libc::SIGSYS),
            "{said}"
        );
        assert!(said.contains(&format!("plimsoll: system call {call} (")), "{said}");
        assert!(said.contains("seccomp on") && !said.contains("it went through"), "{said}");
    }
}

#[test]
fn nothing_outside_is_reached_and_the_process_lives() {
    let out = [
        "a reader's file",
        "a program",
        "a file",
        "a new file",
        "a Unix socket",
        "TCP",
        "UDP",
        "a signal",
        "a compiled program",
    ];
    for what in out {
        let output = tried(what);
        let said = said(&output);
        assert!(output.status.success(), "{what}: {said}");
        assert!(said.contains("denied: "), "{what}: {said}");
    }
}

#[test]
fn what_carrying_packets_takes_is_left() {
    let output = tried("what it needs");
    let said = said(&output);
    assert!(output.status.success() && said.contains("it has what it needs"), "{said}");
    assert!(said.contains("no capability") && !said.contains("is refused"), "{said}");
}

#[test]
fn tenants_programs_run_where_the_policy_has_some() {
    let output = tried("with programs, one of them");
    let said = said(&output);
    assert!(output.status.success() && said.contains("it went through"), "{said}");
    assert!(
        said.contains("seccomp on (but for compiled programs)") && !said.contains("is refused"),
        "{said}"
    );
}

#[test]
fn threads_of_single_tenants_run() {
    let output = tried("threads for tenants");
    let said = said(&output);
    assert!(output.status.success() && said.contains("it serves tenants"), "{said}");
    assert!(said.contains("seccomp on") && !said.contains("is refused"), "{said}");
}
