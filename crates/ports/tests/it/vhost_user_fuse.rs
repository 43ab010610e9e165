//! A front end that passes a file of a file system that never answers: the port asks it nothing, and waits for nothing.
//!
//! Needs root and `/dev/fuse`, and says so when it has to skip. The mount is in a namespace of its own, which ends with the
//! thread that makes it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::support::guest::{FROM, GUEST, Guest, SET_MEM_TABLE, USER, VERSION_1};
use crate::support::{skip, until};
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use plimsoll_ports::{VhostUser, VhostUserConfig};

#[test]
fn a_file_whose_file_system_never_answers_is_refused_without_a_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((mut silent, file)) = Silent::mount(folder.path()) else { return };
    let path = folder.path().join("vm.sock");
    let mut port = VhostUser::open(&VhostUserConfig::new(&path)).expect("a port");
    // Ends the wait, should the port wait after all.
    let rescue = silent.end_after(Duration::from_secs(5));
    let begun = Instant::now();
    let guest = Guest::connect(&path, 8);
    let table = [1, GUEST, 4_096, USER, 0].map(u64::to_le_bytes).concat();
    guest.say(SET_MEM_TABLE, &table, &[file.as_raw_fd()]);
    port.probe().expect("always there");
    assert!(port.take_problem().is_some() && !port.is_connected());
    assert!(begun.elapsed() < Duration::from_secs(2), "it waited for {:?}", begun.elapsed());
    until("the close has come", || silent.asked().contains(&FLUSH));
    assert_eq!(silent.asked(), [FLUSH], "nothing else was asked of it");

    // While the close is under way no other client is let in, or descriptors would pile up.
    let second = Guest::connect(&path, 8);
    second.say(SET_MEM_TABLE, &table, &[file.as_raw_fd()]);
    (0..8).for_each(|_| port.probe().expect("always there"));
    assert!(!port.is_connected() && port.take_problem().is_none());
    silent.end();
    rescue.join().expect("no panic");
    let mut guest = Guest::connect(&path, 8);
    until("another is let in", || {
        (0..8).for_each(|_| port.probe().expect("always there"));
        if !port.is_connected() {
            guest = Guest::connect(&path, 8);
        }
        port.is_connected()
    });
    guest.introduce(&mut port, VERSION_1);
    guest.post(0, &[1; 60]);
    port.begin().expect("always there");
    assert!(matches!(port.take(), plimsoll_ports::Took::Frame(_)), "as if nothing had been");
    assert_eq!(guest.heads(FROM).len(), 0);
}

/// A file system with one file, which is found and opened, and answers nothing else.
struct Silent {
    over: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<u32>>>,
    serving: Option<JoinHandle<()>>,
}

impl Silent {
    /// Mounts the file system and opens its file. `None` where this machine does not allow it.
    fn mount(folder: &Path) -> Option<(Self, File)> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let (true, Ok(device)) = (nix::unistd::geteuid().is_root(), device) else {
            skip("this test mounts a file system, which takes root and /dev/fuse");
            return None;
        };
        let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let place = folder.join("silent");
        std::fs::create_dir(&place).expect("a folder");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let server = device.try_clone().expect("a descriptor");
        let serving = thread::spawn({
            let (over, asked) = (Arc::clone(&over), Arc::clone(&asked));
            move || serve(server, &over, &asked)
        });
        let opened = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNS)?;
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
            mount(Some("silent"), &place, Some("fuse"), MsFlags::empty(), Some(options.as_str()))?;
            drop(device);
            File::options().read(true).write(true).open(place.join("memory"))
        });
        let file = opened.join().expect("no panic").expect("mounted and opened");
        asked.lock().expect("no panic beside").clear();
        Some((Self { over, asked, serving: Some(serving) }, file))
    }

    /// The requests since its file was opened.
    fn asked(&self) -> Vec<u32> {
        self.asked.lock().expect("no panic beside").clone()
    }

    /// Stops the server; the kernel then answers all calls that wait for it.
    fn end(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.serving.take().into_iter().for_each(|serving| serving.join().expect("no panic"));
    }

    /// Stops the server after `span`, unless it has been stopped before.
    fn end_after(&self, span: Duration) -> JoinHandle<()> {
        let over = Arc::clone(&self.over);
        thread::spawn(move || {
            let end = Instant::now() + span;
            while Instant::now() < end && !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
            over.store(true, Ordering::Relaxed);
        })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// FUSE's requests, by their numbers in `linux/fuse.h`.
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

fn serve(mut device: File, over: &AtomicBool, asked: &Mutex<Vec<u32>>) {
    let mut request = vec![0; 1 << 17];
    while !over.load(Ordering::Relaxed) {
        let mut watched = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut watched, PollTimeout::from(10_u8)).expect("a descriptor");
        if ready == 0 || watched[0].revents().is_none_or(|found| !found.contains(PollFlags::POLLIN)) {
            continue;
        }
        let Ok(len) = device.read(&mut request) else { continue };
        assert!(len >= 40, "a request has a header");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let body = match word(4) {
            INIT => [&[7_u32, 31, 0, 0, 0, 4_096, 1][..], &[0; 9]].concat(),
            LOOKUP => entry(),
            OPEN => vec![0; 4],
            other => {
                asked.lock().expect("no panic beside").push(other);
                continue;
            }
        };
        let unique = [word(8), word(12)];
        let words = [&[16 + 4 * body.len() as u32, 0, unique[0], unique[1]][..], &body].concat();
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        device.write_all(&bytes).expect("answered");
    }
}

/// A file of a megabyte, of which what is known holds no longer than it takes to hear it.
fn entry() -> Vec<u32> {
    let mut entry = vec![0; 32];
    // Its number, for how many seconds its name stands for it; then its attributes: number, bytes, mode, links.
    (entry[0], entry[4]) = (2, 1_000);
    (entry[10], entry[12], entry[25], entry[26]) = (2, 1 << 20, 0o100_600, 1);
    entry
}
