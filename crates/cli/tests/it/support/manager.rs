//! A service manager that keeps files for the daemon: systemd's side of `sd_notify(3)` and `sd_listen_fds(3)`.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::{Daemon, Stage};

/// It reads the daemon's messages whenever one of its methods is called.
pub struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    store: Vec<Kept>,
    /// Finds files that have hung up as systemd does: with an `epoll` for this event alone.
    watch: Epoll,
    added: u64,
}

struct Kept {
    name: String,
    file: OwnedFd,
    number: u64,
}

impl Manager {
    pub fn new(stage: &Stage) -> Self {
        let path = stage.file("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
        let watch = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("a descriptor");
        Self { socket, path, store: Vec::new(), watch, added: 0 }
    }

    /// Starts the daemon in the namespace `place`, with all kept files.
    pub fn start(&mut self, stage: &Stage, place: &str, policy: &str, log: &str) -> Daemon {
        let names = self.kept().join(":");
        let mut command = Command::new("ip");
        // LISTEN_PID is the daemon's own process id, which only its process knows.
        let own = "LISTEN_PID=$$ exec \"$0\" run \"$1\"";
        let program = env!("CARGO_BIN_EXE_plimsoll");
        command
            .args(["netns", "exec", &stage.netns(place), "sh", "-c", own, program])
            .arg(stage.file(policy));
        command.env("NOTIFY_SOCKET", &self.path);
        command.env("LISTEN_FDS", self.store.len().to_string()).env("LISTEN_FDNAMES", names);
        let files = self.store.iter().map(|kept| kept.file.try_clone().expect("a descriptor"));
        let mappings = (3..).zip(files).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mappings.collect()).expect("each its own");
        Daemon::spawn(command, &stage.file(log))
    }

    /// Keeps one more file, under a name.
    pub fn add(&mut self, name: &str, file: impl Into<OwnedFd>) {
        let kept = Kept { name: name.to_owned(), file: file.into(), number: self.added };
        self.added += 1;
        // Some files never hang up, and cannot be watched.
        let _ = self.watch.add(&kept.file, EpollEvent::new(EpollFlags::empty(), kept.number));
        self.store.push(kept);
    }

    /// Lets a file go.
    pub fn remove(&mut self, name: &str) {
        self.store.retain(|kept| kept.name != name);
    }

    /// The names of the kept files.
    pub fn kept(&mut self) -> Vec<String> {
        while self.hear() {}
        let mut hung_up = [EpollEvent::empty(); 8];
        let count = self.watch.wait(&mut hung_up, EpollTimeout::ZERO).expect("looked");
        self.store.retain(|kept| hung_up[..count].iter().all(|event| event.data() != kept.number));
        self.store.iter().map(|kept| kept.name.clone()).collect()
    }

    /// Takes one message, if there is one.
    fn hear(&mut self) -> bool {
        let mut text = [0; 4_096];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut files = RecvAncillaryBuffer::new(&mut room);
        let mut into = [IoSliceMut::new(&mut text)];
        #[expect(clippy::disallowed_methods, reason = "a manager's part is to take them")]
        let message = match recvmsg(&self.socket, &mut into, &mut files, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message,
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(error) => panic!("{error}"),
        };
        let rights = files.drain().filter_map(|part| match part {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let files: Vec<OwnedFd> = rights.flatten().collect();
        self.obey(&String::from_utf8_lossy(&text[..message.bytes]), files);
        true
    }

    fn obey(&mut self, text: &str, files: Vec<OwnedFd>) {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let name = value("FDNAME=").unwrap_or("stored");
        // Names that systemd accepts, short enough that many fit into the environment.
        assert!(
            name.len() < 16 && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'),
            "{name}"
        );
        if value("FDSTORE=") == Some("1") {
            assert_eq!(files.len(), 1, "{text}");
            files.into_iter().for_each(|file| self.add(name, file));
        }
        if value("FDSTOREREMOVE=") == Some("1") {
            self.remove(name);
        }
    }
}
