//! Clients, in Rust and in C, of an engine on a thread of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use super::{OUTSIDE, TWO, World, spec};
use crate::support::udp;
use plimsoll_daemon::{Habits, Handle};
use plimsoll_ports::{FRAME_ROOM, MemoryPort};
use plimsoll_units::{Nanos, Span};
use plimsoll_vnic::{Status, Vnic};

/// The engine on a thread of its own, which sleeps when it has no work.
struct Live {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
    wire: Option<MemoryPort>,
    folder: tempfile::TempDir,
}

impl Live {
    fn new(text: &str) -> Self {
        Self::of(World::new(text))
    }

    fn of(World { engine, wire, folder, .. }: World) -> Self {
        let (handle, thread) = plimsoll_daemon::spawn(engine, Habits::default(), |_| {}).expect("a thread");
        Self { handle, thread: Some(thread), wire: Some(wire), folder }
    }

    /// Compiles a program in C with the client's header and static library.
    fn compile(&self, source: PathBuf) -> PathBuf {
        let test = std::env::current_exe().expect("this test's own file");
        let program = self.folder.path().join("program");
        let compiled = Command::new("cc")
            .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-I"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../vnic/include"))
            .arg(source)
            .arg(newest_library(test.parent().expect("deps/")))
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program)
            .status()
            .expect("a C compiler");
        assert!(compiled.success());
        program
    }

    /// Counts the frames on the wire until the engine ends.
    fn count(&mut self) -> JoinHandle<u64> {
        let mut wire = self.wire.take().expect("not taken yet");
        std::thread::spawn(move || {
            let (mut frame, mut count) = (vec![0; FRAME_ROOM], 0);
            loop {
                match wire.receive(&mut frame) {
                    Ok(Some(_)) => count += 1,
                    Ok(None) => std::thread::sleep(std::time::Duration::from_micros(50)),
                    Err(_) => return count,
                }
            }
        })
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.handle.send(plimsoll_daemon::Command::Stop(Span::millis(500))).expect("it runs");
        self.thread.take().map(JoinHandle::join).expect("a thread").expect("no panic");
    }
}

#[test]
fn a_sleeping_engine_is_woken_by_its_client_and_wakes_it() {
    let mut live = Live::new(TWO);
    let counting = live.count();
    let mut client = Vnic::connect(live.folder.path().join("shop")).expect("connected");
    let queue = client.open_flow(&spec(8)).expect("a flow queue");
    let mut left = 0;
    for number in 0..200 {
        client.send(queue, &udp(1, OUTSIDE, 8, number, 500)).expect("room");
        client.ring().expect("a kick");
        // Long enough for both to fall asleep, now and then.
        if number % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        assert!(client.wait(5_000).expect("the daemon is there"), "frame {number} completes");
        left += client.poll_completions(|done| assert_eq!(done.status, Status::Sent));
    }
    assert_eq!(left, 200);
    drop(client);
    drop(live);
    assert_eq!(counting.join().expect("no panic"), 200);
}

/// The engine sleeps, the thread that serves the client sleeps, the client sleeps: each wakes the next, there and back.
#[test]
fn a_sleeping_engine_answers_a_client_that_is_served_apart() {
    let mut world = World::new(TWO);
    assert!(world.engine.serve_apart(0, Nanos::ZERO), "it goes");
    let live = Live::of(world);
    let mut client = Vnic::connect(live.folder.path().join("shop")).expect("connected");
    let mut took: Vec<_> = (0..40)
        .map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let begun = std::time::Instant::now();
            let queue = client.open_flow(&spec(8)).expect("a flow queue");
            let took = begun.elapsed();
            client.close_flow(queue).expect("the daemon is there");
            took
        })
        .collect();
    took.sort();
    // A thread that is not woken looks 50 or 100 ms later at the earliest.
    assert!(took[20] < std::time::Duration::from_millis(10), "{took:?}");
}

#[test]
fn each_thread_of_a_client_rings_a_doorbell_queue_of_its_own() {
    let mut live = Live::new(TWO);
    let counting = live.count();
    let mut client = Vnic::connect(live.folder.path().join("shop")).expect("connected");
    let queues = [1, 2, 3].map(|port| client.open_flow(&spec(100 + port)).expect("a flow queue"));
    let posters = queues.map(|queue| client.poster(&[queue], 200).expect("a doorbell queue and buffers"));
    assert!(client.poster(&[], 1).is_none(), "there are four, and the client has one itself");
    assert!(client.send(queues[0], &[0; 60]).is_err(), "it is another thread's");
    let mut left = 0;
    std::thread::scope(|scope| {
        let threads = posters.into_iter().zip(queues).map(|(mut poster, queue)| {
            scope.spawn(move || {
                let (mut posted, mut done) = (0, 0);
                while done < 5_000 {
                    while posted < 5_000 && poster.send(queue, &udp(1, OUTSIDE, 9, posted, 60)).is_ok() {
                        posted += 1;
                    }
                    poster.ring().expect("a kick");
                    let mut check = |completion: plimsoll_vnic::Completion| {
                        assert_eq!((completion.queue, completion.status), (queue, Status::Sent));
                        done += 1;
                    };
                    poster.poll_completions(&mut check);
                    poster.wait(std::time::Duration::from_millis(1)).expect("the vNIC is open").map(check);
                }
            })
        });
        let threads: Vec<_> = threads.collect();
        // The thread that has the vNIC hands completions on, and sends as well.
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let _ = client.send(0, &udp(1, OUTSIDE, 50, 0, 60));
            client.ring().expect("a kick");
            left += client.poll_completions(|done| assert_eq!(done.queue, 0));
        }
    });
    while client.on_their_way() > 0 {
        client.wait(1_000).expect("the daemon is there");
        left += client.poll_completions(|_| {});
    }
    drop(client);
    drop(live);
    assert_eq!(counting.join().expect("no panic"), 15_000 + left as u64);
}

/// Compiles an example in C, has it send `count` datagrams with each of its threads, and answers what it printed and how
/// many frames left.
fn run_example(source: &str, count: u32) -> (String, u64) {
    let mut live = Live::new(TWO);
    let counting = live.count();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vnic/examples");
    let ran = Command::new(live.compile(examples.join(source)))
        .arg(live.folder.path().join("shop"))
        .args(["10.0.0.1", "10.0.0.99", &count.to_string()])
        .output()
        .expect("it runs");
    assert!(ran.status.success(), "{ran:?}");
    drop(live);
    (String::from_utf8_lossy(&ran.stdout).into_owned(), counting.join().expect("no panic"))
}

#[test]
fn a_program_in_c_sends_through_the_static_library() {
    let (said, left) = run_example("send.c", 1_000);
    assert_eq!(said, "1000 frames left, 0 were dropped\n");
    assert_eq!(left, 1_000);
}

#[test]
fn two_threads_of_a_program_in_c_ring_doorbell_queues_of_their_own() {
    let (said, left) = run_example("threads.c", 2_000);
    assert_eq!(said, "first: 2000 frames left, 0 were dropped\nsecond: 2000 frames left, 0 were dropped\n");
    assert_eq!(left, 4_000);
}

#[test]
fn a_program_in_c_gathers_segments_classifies_and_receives() {
    let mut live = Live::new(TWO);
    let mut wire = live.wire.take().expect("not taken yet");
    let program = live.compile(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/gather.c"));
    let running = Command::new(&program)
        .arg(live.folder.path().join("shop"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let (mut frame, mut segments) = (vec![0; FRAME_ROOM], Vec::new());
    while segments.len() < 3 {
        match wire.receive(&mut frame).expect("the engine is there") {
            Some(received) => segments.push((received.len, frame[received.len - 1])),
            None => std::thread::sleep(std::time::Duration::from_micros(50)),
        }
    }
    assert_eq!(segments, [(1_042, 0), (1_042, 1), (1_042, 2)], "three datagrams, in order");
    let mut answer = udp(OUTSIDE, 1, 80, 0, 200);
    answer[199] = 77;
    wire.send(&answer, None).expect("the engine is there");
    wire.flush().expect("the engine is there");
    let ran = running.wait_with_output().expect("it ends");
    // Flow queues of a cut-off frame, of the flow, and of the flow again; completion; frame; counters of the cache.
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "0 1 1 1 0 200 77 1 1\n", "{ran:?}");
}

/// The client's static library as cargo made it for this test.
fn newest_library(deps: &Path) -> PathBuf {
    let found = std::fs::read_dir(deps).expect("deps/").flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("libplimsoll_vnic") && name.ends_with(".a")
    });
    let newest = found.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.expect("the static library beside this test").path()
}
