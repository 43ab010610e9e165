//! A service manager that keeps files for the daemon: systemd's side of `sd_notify(3)` and `sd_listen_fds(3)`.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::{Daemon, Stage};

/// It hears what the daemon says whenever it is asked something.
pub struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    store: Vec<(String, OwnedFd)>,
}

impl Manager {
    pub fn new(stage: &Stage) -> Self {
        let path = stage.file("notify");
        let socket = UnixDatagram::bind(&path).expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
        Self { socket, path, store: Vec::new() }
    }

    /// Starts the daemon in the namespace `place`, with all that is kept.
    pub fn start(&mut self, stage: &Stage, place: &str, policy: &str, log: &str) -> Daemon {
        let names = self.kept().join(":");
        let mut command = Command::new("ip");
        // LISTEN_PID is the daemon's own, which only its process can say.
        let own = "LISTEN_PID=$$ exec \"$0\" run \"$1\"";
        let program = env!("CARGO_BIN_EXE_plimsoll");
        command
            .args(["netns", "exec", &stage.netns(place), "sh", "-c", own, program])
            .arg(stage.file(policy));
        command.env("NOTIFY_SOCKET", &self.path);
        command.env("LISTEN_FDS", self.store.len().to_string()).env("LISTEN_FDNAMES", names);
        let files = self.store.iter().map(|(_, file)| file.try_clone().expect("a descriptor"));
        let mappings = (3..).zip(files).map(|(child_fd, parent_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mappings.collect()).expect("each its own");
        Daemon::spawn(command, &stage.file(log))
    }

    /// Keeps one more thing, under a name.
    pub fn add(&mut self, name: &str, file: impl Into<OwnedFd>) {
        self.store.push((name.to_owned(), file.into()));
    }

    /// The names of what is kept: without what has hung up, as systemd has it.
    pub fn kept(&mut self) -> Vec<String> {
        while self.hear() {}
        self.store.retain(|(_, file)| {
            let mut looked = [PollFd::new(file.as_fd(), PollFlags::empty())];
            poll(&mut looked, PollTimeout::ZERO).expect("looked");
            !looked[0].revents().is_some_and(|seen| seen.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
        });
        self.store.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Takes one message, if there is one.
    fn hear(&mut self) -> bool {
        let mut text = [0; 4_096];
        let mut room = nix::cmsg_space!([RawFd; 8]);
        let mut into = [IoSliceMut::new(&mut text)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(self.socket.as_raw_fd(), &mut into, Some(&mut room), flags) {
            Ok(message) => message,
            Err(nix::Error::EAGAIN) => return false,
            Err(error) => panic!("{error}"),
        };
        let raw = message.cmsgs().expect("room").flat_map(|message| match message {
            ControlMessageOwned::ScmRights(files) => files,
            _ => Vec::new(),
        });
        // SAFETY: the kernel has just opened them for this process, and nobody else knows them.
        let files: Vec<_> = raw.map(|file| unsafe { OwnedFd::from_raw_fd(file) }).collect();
        let len = message.bytes;
        self.obey(&String::from_utf8_lossy(&text[..len]), files);
        true
    }

    fn obey(&mut self, text: &str, files: Vec<OwnedFd>) {
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let name = value("FDNAME=").unwrap_or("stored");
        assert!(
            name.len() < 256 && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'),
            "{name}"
        );
        if value("FDSTORE=") == Some("1") {
            assert_eq!(files.len(), 1, "{text}");
            self.store.extend(files.into_iter().map(|file| (name.to_owned(), file)));
        }
        if value("FDSTOREREMOVE=") == Some("1") {
            self.store.retain(|(kept, _)| kept != name);
        }
    }
}
