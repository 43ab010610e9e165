//! Attacks of one tenant's client on a daemon, beside two honest tenants that echo each other's frames.
//!
//! Times are the machine's, with margins of seconds; `-- --nocapture` shows what was seen. Needs root (network namespaces).
//! Everything made here is removed, whatever happens.

use std::io::IoSlice;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::linger::lingering_for;
use crate::support::{Daemon, PATIENCE, Stage};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use plimsoll_vnic::Vnic;
use plimsoll_vnic::message::{FlowSpec, Message};
use plimsoll_vnic::socket::{Incoming, connect_to, read_message, read_welcome, send_message, wait_readable};

/// How long the close of a connection takes that an attacker passes to the daemon.
const LINGER: Duration = Duration::from_secs(12);
/// The longest wait that a busy machine may cause, where the kernel removes namespaces of other tests meanwhile; shorter than `LINGER`.
const SOON: Duration = Duration::from_secs(8);

/// A daemon with three tenants on shared memory.
struct World {
    daemon: Daemon,
    stage: Stage,
    /// The other ends of connections that linger.
    far: Vec<TcpStream>,
}

impl World {
    /// `None` without root.
    fn new(tag: &str) -> Option<Self> {
        let stage = Stage::new(tag)?;
        stage.add_netns("");
        let vnic = |tenant: &str| {
            format!("  {tenant}: {{port: {{vnic: {}}}}}\n", stage.file(&format!("{tenant}.sock")).display())
        };
        let policy = format!(
            "uplink: {{port: {{tap: {{netns: {}, name: up0}}}}, rate: 1Gbps}}\napi: {{socket: {}}}\ntenants:\n{}",
            stage.netns(""),
            stage.file("api.sock").display(),
            ["shop", "batch", "evil"].map(vnic).concat(),
        );
        std::fs::write(stage.file("policy.yaml"), policy).expect("written");
        let daemon = Daemon::start(None, &stage.file("policy.yaml"), &[], &stage.file("log"));
        let world = Self { daemon, stage, far: Vec::new() };
        world.stage.until_it_answers();
        Some(world)
    }

    fn connect(&self) -> OwnedFd {
        connect_to(&self.stage.file("evil.sock")).expect("a listener")
    }

    /// Sends bytes with a connection that lingers, of which the receiver then has the only copy.
    fn send_along(&mut self, end: &impl AsFd, bytes: &[u8]) {
        let (near, far) = lingering_for(LINGER);
        self.far.push(far);
        let descriptors = [near.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let end = end.as_fd().as_raw_fd();
        sendmsg::<UnixAddr>(end, &[IoSlice::new(bytes)], &rights, MsgFlags::MSG_NOSIGNAL, None)
            .expect("room");
        // If the daemon has closed it already, this close lingers.
        thread::spawn(move || drop(near));
    }

    /// A client that gets the attacker's vNIC as soon as it is free.
    fn holder(&self) -> OwnedFd {
        let mut held = None;
        self.stage.eventually("the attacker has its vNIC", || {
            let Ok(end) = connect_to(&self.stage.file("evil.sock")) else { return false };
            let heard = send_message(&end, Message::hello(), &[]).is_ok()
                && wait_readable(&end, 5_000).expect("a socket");
            let welcome = heard && matches!(read_welcome(&end), Ok((Some(Message::Welcome(_)), _)));
            held = welcome.then_some(end);
            welcome
        });
        held.expect("welcome")
    }

    /// Stops the daemon, which must take next to no time.
    fn stop(mut self) {
        let ended = self.daemon.end(Signal::SIGTERM);
        let (code, took) = ended.unwrap_or_else(|| panic!("it did not stop: {}", self.stage.read("log")));
        eprintln!("stopped within {took:?}");
        assert!(took < SOON, "the stop took {took:?}");
        assert_eq!(code, Some(0), "{}", self.stage.read("log"));
    }
}

/// Two tenants, of which one answers the other's frames, one after the other.
struct Echo {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Echo {
    fn start(world: &World) -> Self {
        // The vNIC of a client that has just gone is another one soon, behind another socket.
        let connect = |tenant: &str| {
            let (path, mut vnic) = (world.stage.file(&format!("{tenant}.sock")), None);
            world.stage.eventually("it has its vNIC", || {
                vnic = Vnic::connect(&path).ok();
                vnic.is_some()
            });
            vnic.expect("a vNIC")
        };
        let (mut shop, mut batch) = (connect("shop"), connect("batch"));
        // Each client's address is known before a frame is sent to it.
        assert!(pass(&mut shop, &mut batch, 0).is_some() && pass(&mut batch, &mut shop, 0).is_some());
        let over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let mut times = Vec::new();
                for number in 1.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let begun = Instant::now();
                    // An echo that does not come counts with the time for which the test waited.
                    let _ = pass(&mut shop, &mut batch, number)
                        .and_then(|()| pass(&mut batch, &mut shop, number));
                    times.push(begun.elapsed());
                    thread::sleep(Duration::from_millis(2));
                }
                times
            }
        });
        Self { over, thread }
    }

    /// The number of echoes, their 99th percentile, and the longest.
    fn end(self) -> (usize, Duration, Duration) {
        self.over.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().expect("no panic");
        times.sort_unstable();
        assert!(!times.is_empty(), "no echo");
        (times.len(), times[times.len() * 99 / 100], times[times.len() - 1])
    }
}

/// Sends a frame and waits for it at the other end.
fn pass(from: &mut Vnic, to: &mut Vnic, number: u32) -> Option<()> {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&to.identity().mac);
    frame[6..12].copy_from_slice(&from.identity().mac);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(&number.to_be_bytes());
    from.send(0, &frame).ok()?;
    from.ring().ok()?;
    let (begun, mut got) = (Instant::now(), [0; 2_048]);
    while begun.elapsed() < PATIENCE {
        from.poll_completions(|_| {});
        while let Some(len) = to.receive(&mut got) {
            if got[..len] == frame[..] {
                return Some(());
            }
        }
        to.wait(20).ok()?;
    }
    None
}

/// The echoes of the honest tenants while `attack` runs, and for a while after.
fn beside(world: &mut World, attack: impl FnOnce(&mut World)) -> Duration {
    let echo = Echo::start(world);
    thread::sleep(Duration::from_millis(500));
    attack(world);
    thread::sleep(Duration::from_secs(2));
    let (count, p99, longest) = echo.end();
    eprintln!("{count} echoes, p99 {p99:?}, the longest {longest:?}");
    assert!(count > 50, "{count} echoes");
    assert!(longest < SOON, "an echo took {longest:?}");
    p99
}

#[test]
fn a_client_that_is_turned_away_with_a_connection_that_lingers_holds_up_no_other() {
    let Some(mut world) = World::new("hta") else { return };
    let mut held = Vec::new();
    beside(&mut world, |world| {
        held.push(world.holder());
        for bytes in [&Message::hello().to_bytes()[..], &[0xff; 64], &[1]] {
            let end = world.connect();
            world.send_along(&end, bytes);
            held.push(end);
        }
        // Enough connections after them that theirs are closed; their bytes have arrived by then.
        for _ in 0..8 {
            thread::sleep(Duration::from_millis(50));
            held.extend(connect_to(&world.stage.file("evil.sock")));
        }
    });
    world.stop();
}

#[test]
fn neither_does_the_client_that_has_the_vnic_nor_one_that_waits_to_be_let_in() {
    let Some(mut world) = World::new("hcl") else { return };
    beside(&mut world, |world| {
        for _ in 0..2 {
            let holder = world.holder();
            world.send_along(&holder, &Message::Open(FlowSpec::default()).to_bytes());
            assert!(wait_readable(&holder, 5_000).expect("a socket"), "it is hung up on");
            assert!(matches!(read_message(&holder), Incoming::Closed));
            world
                .stage
                .eventually("the next may come", || connect_to(&world.stage.file("evil.sock")).is_ok());
        }
    });
    world.stop();
}

#[test]
fn nor_one_of_the_apis() {
    let Some(mut world) = World::new("hap") else { return };
    let mut held = Vec::new();
    beside(&mut world, |world| {
        for bytes in [&b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"GET"] {
            let end = UnixStream::connect(world.stage.file("api.sock")).expect("a listener");
            world.send_along(&end, bytes);
            held.push(end);
            let begun = Instant::now();
            world.stage.client().text("GET", "/v1/health").expect("answered");
            assert!(begun.elapsed() < SOON, "the API took {:?}", begun.elapsed());
        }
    });
    world.stop();
}

/// The number of connections that one turn reads is tested where turns can be counted (`daemon`); this shows the effect on
/// other tenants.
#[test]
fn a_flood_of_open_requests_holds_up_no_other_client() {
    let Some(mut world) = World::new("hfl") else { return };
    let quiet = beside(&mut world, |_| {});
    let mut answered = 0_u64;
    let flooded = beside(&mut world, |world| {
        let holder = world.holder();
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            for _ in 0..64 {
                if send_message(&holder, Message::Open(FlowSpec::default()), &[]).is_err() {
                    break;
                }
            }
            while matches!(read_message(&holder), Incoming::Message(_)) {
                answered += 1;
            }
        }
    });
    eprintln!("{answered} answered in 3 s; p99 {flooded:?}, {quiet:?} without");
    assert!(answered > 100, "more than a client asks for in earnest, also on a busy machine: {answered}");
    world.stop();
}
