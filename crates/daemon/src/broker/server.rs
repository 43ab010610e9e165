//! The broker: a process that keeps the privileges, and uses them for what the operator's policy names.
//!
//! Why: ports come and go while the daemon runs, which takes what the engine's process has given up.
//! From: `docs/decisions/0013-privileges.md`.
//! Not here: packets, tenants' messages, threads: nothing that a tenant sends ever reaches this process.
//! Invariant: each request is checked against the policies that this process has read itself; an invalid message ends
//! the process.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::{fs, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use plimsoll_policy::{Checked, SourceFile};
use plimsoll_ports::handover::{Handover, Parts, free_place};
use plimsoll_ports::{XdpAttempt, XdpMode, XdpQueues, realtime};

use super::message::{Clear, Reply, Request, Source, Start};
use super::{Number, client, socket};
use crate::dataplane::Whose;
use crate::fleet;
use crate::kernel;
use crate::open::{self, Wanted};
use crate::reader::{self, Answers, FileReader};
use crate::{privileges, programs, sampler, sandbox};

/// Why a broker did not start, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// It was started by hand.
    #[error("`plimsoll broker` is started by `plimsoll run`, not by hand: {0}")]
    NoSocket(io::Error),
    /// The engine's process sent an invalid message.
    #[error("the broker heard a message that makes no sense, and ends: {0}")]
    Nonsense(io::Error),
    /// It cannot give up privileges that it does not need.
    #[error("the broker cannot be confined: {0}")]
    Sandbox(String),
}

/// Serves the process on the other side of standard input until that process has ended.
///
/// # Errors
/// [`BrokerError`].
pub fn serve_broker(reader: &dyn FileReader) -> Result<(), BrokerError> {
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(BrokerError::NoSocket)?;
    // Whether standard input is a socket shows when it is read.
    let socket = UnixStream::from(input);
    // A service manager or a terminal sends these to the engine's process as well: the broker ends after that one.
    let mut deaf = SigSet::empty();
    let told = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];
    told.into_iter().for_each(|signal| deaf.add(signal));
    let _ = deaf.thread_block();
    let _ = nix::sys::prctl::set_name(c"plimsoll-broker");
    let started = socket::receive::<Start>(&socket, socket::ANSWER, true).map_err(BrokerError::NoSocket)?;
    let Some((start, files)) = started else { return Ok(()) };
    let urgent = Urgent::new(files);
    privileges::keep_for_broker(urgent.is_some());
    sandbox::confine_broker().map_err(BrokerError::Sandbox)?;
    let mut server = match Server::new(start, reader) {
        Ok(server) => server,
        Err(why) => return socket::send(&socket, &Reply::Failed(why), &[]).map_err(BrokerError::Nonsense),
    };
    // The engine's process may end at any moment: if a reply cannot be sent, it has.
    let mut answered = socket::send(&socket, &Reply::Done, &[]);
    while answered.is_ok() {
        if let Some(urgent) = &urgent {
            urgent.help_until_asked(&socket);
        }
        let heard = socket::receive(&socket, socket::REQUEST, false).map_err(BrokerError::Nonsense)?;
        let Some((request, _)) = heard else { break };
        answered = server.answer(&socket, request);
    }
    Ok(())
}

/// The threads of the engine's process that are scheduled before other processes.
struct Urgent {
    socket: UnixDatagram,
    process: u32,
}

impl Urgent {
    fn new(files: Vec<OwnedFd>) -> Option<Self> {
        let socket = UnixDatagram::from(files.into_iter().next()?);
        let process = nix::unistd::getppid().as_raw();
        Some(Self { socket, process: process.cast_unsigned() })
    }

    /// Handles this socket's requests until there is one on the other socket, or that one is closed.
    fn help_until_asked(&self, other: &UnixStream) {
        loop {
            let ends = [self.socket.as_fd(), other.as_fd()];
            let mut waits = ends.map(|end| PollFd::new(end, PollFlags::POLLIN));
            let waited = poll(&mut waits, PollTimeout::NONE);
            let ready = waits.map(|end| end.any().unwrap_or(true));
            if waited.is_err() || ready[1] {
                return;
            }
            // A thread that the kernel does not schedule first runs as an ordinary one.
            let _ = realtime::help(&self.socket, self.process);
        }
    }
}

/// The broker's state.
struct Server<'a> {
    start: Start,
    /// Has tenants' files read in other processes.
    reader: &'a dyn FileReader,
    /// The policy in force, and one that was read after it.
    policies: BTreeMap<Number, Checked>,
    /// How often the policy file was read.
    reads: Number,
    /// Listening sockets that the broker has made: path and inode.
    places: BTreeMap<u64, (PathBuf, u64)>,
    /// Listening sockets made so far.
    made: u64,
    /// What was attached last, and for whom, until it is registered.
    attempt: Option<(Whose, XdpAttempt)>,
    /// The queues of the uplink's interface, once its first one is registered.
    queues: Option<XdpQueues>,
    /// A socket for another queue of the uplink's interface, until it is registered.
    joining: Option<(u32, OwnedFd)>,
}

impl<'a> Server<'a> {
    fn new(start: Start, reader: &'a dyn FileReader) -> Result<Self, String> {
        let first = client::check(&start.file, &start.sources)?;
        let policies = BTreeMap::from([(0, first)]);
        Ok(Self {
            start,
            reader,
            policies,
            reads: 0,
            places: BTreeMap::new(),
            made: 0,
            attempt: None,
            queues: None,
            joining: None,
        })
    }

    fn answer(&mut self, socket: &UnixStream, request: Request) -> io::Result<()> {
        // Any other request gives the attempt up, and its program leaves the interface.
        let (attempt, joining) = (self.attempt.take(), self.joining.take());
        let reply = match request {
            Request::Read => self.read(),
            Request::InForce(number) => self.in_force(number),
            Request::Open(number, whose) => return self.open(socket, number, &whose),
            Request::Configure(number, name) => self.configure(number, &name),
            Request::Attach(number, whose, mode) => {
                drop(attempt); // its program would be in the way
                return self.attach(socket, number, &whose, mode);
            }
            Request::Load(number, which) => return self.load(socket, number, which),
            Request::Module(number, name) => return self.module(socket, number, &name),
            Request::Keys(number) => self.keys(number),
            Request::Join(number, queue) => return self.join(socket, number, queue),
            Request::Register => self.register(attempt, joining),
            Request::Release(place) => self.release(place),
            Request::Dropped => self.dropped(),
            Request::Clear(what) => self.clear(what),
        };
        match socket::send(socket, &reply, &[]) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => socket::send(
                socket,
                &Reply::Failed(format!("the policy's files cannot be handed over: {error}")),
                &[],
            ),
            sent => sent,
        }
    }

    /// Reads the policy file and answers its text: the engine's process may open what the operator has named there.
    fn read(&mut self) -> Reply {
        let (checked, answers) = match reader::load_with_answers(&self.start.file, Some(self.reader)) {
            Ok(read) => read,
            Err(errors) => return Reply::Failed(errors.render(false)),
        };
        let in_force = self.policies.keys().next().copied();
        self.policies.retain(|&number, _| Some(number) == in_force);
        self.reads += 1;
        let sources = sources(&checked, answers);
        self.policies.insert(self.reads, checked);
        Reply::Policy(self.reads, sources)
    }

    fn in_force(&mut self, number: Number) -> Reply {
        if !self.policies.contains_key(&number) {
            return unknown();
        }
        self.policies.retain(|&other, _| other == number);
        Reply::Done
    }

    /// The owner's port, as the policy states it.
    fn wanted(&self, number: Number, whose: &Whose) -> Option<Wanted<'_>> {
        let checked = self.policies.get(&number)?;
        let Whose::Tenant(name) = whose else { return open::uplink_wanted(&checked.config, whose) };
        let tenant = checked.config.tenants.iter().find(|tenant| tenant.name == *name)?;
        Some(open::tenant_wanted(checked, tenant))
    }

    fn open(&mut self, socket: &UnixStream, number: Number, whose: &Whose) -> io::Result<()> {
        let Some(wanted) = self.wanted(number, whose) else { return socket::send(socket, &unknown(), &[]) };
        if let Some(config) = wanted.xdp() {
            let reply = XdpAttempt::link(&config).map_err(|source| wanted.failed(source));
            return socket::send(socket, &reply.map_or_else(Reply::from, Reply::Interface), &[]);
        }
        let path = wanted.listens_at();
        let Handover { parts, files } = match wanted.hand_over() {
            Ok(handed) => handed,
            Err(error) => return socket::send(socket, &Reply::from(error), &[]),
        };
        self.made += 1;
        if let (Some(path), Parts::Listening(inode)) = (path, &parts) {
            self.places.insert(self.made, (path, *inode));
        }
        let borrowed: Vec<_> = files.iter().map(OwnedFd::as_fd).collect();
        socket::send(socket, &Reply::Port(parts, self.made), &borrowed)
    }

    /// Opens a file of the load that the policy watches. For reading only: the kernel's own files, named by the operator.
    fn load(&self, socket: &UnixStream, number: Number, which: Option<u32>) -> io::Result<()> {
        // A reload that left what is watched as it was has forgotten the policy that was read before it.
        let policy = self.policies.get(&number).or_else(|| self.policies.values().next());
        let press = policy.and_then(|checked| checked.config.backpressure.as_ref()?.press.as_ref());
        let file = press.and_then(|press| match which {
            Some(which) => sampler::files(&press.watch).into_iter().nth(which as usize),
            None => sampler::bound(&press.watch),
        });
        let Some(file) = file else { return socket::send(socket, &unknown(), &[]) };
        hand_over(socket, sampler::open(&file))
    }

    /// Reads the files with the fleet's keys, which the operator's policy names.
    fn keys(&self, number: Number) -> Reply {
        let Some(checked) = self.policies.get(&number) else { return unknown() };
        match fleet::read_keys(checked.config.overlay.as_ref()) {
            Ok(keys) => Reply::Keys(keys.iter().flat_map(|keys| keys.all().copied()).collect()),
            Err(why) => Reply::Failed(why.to_string()),
        }
    }

    /// Opens the module of a tenant's program: a regular file, for reading only, which the operator's policy names.
    fn module(&self, socket: &UnixStream, number: Number, name: &str) -> io::Result<()> {
        let checked = self.policies.get(&number);
        let mut tenants = checked.into_iter().flat_map(programs::with_programs);
        match tenants.find(|(tenant, _)| tenant.name == name) {
            Some((_, stated)) => hand_over(socket, programs::open_module(&stated.module)),
            None => socket::send(socket, &unknown(), &[]),
        }
    }

    fn attach(
        &mut self,
        socket: &UnixStream,
        number: Number,
        whose: &Whose,
        mode: XdpMode,
    ) -> io::Result<()> {
        let config = self.wanted(number, whose).and_then(|wanted| wanted.xdp());
        let Some(config) = config else { return socket::send(socket, &unknown(), &[]) };
        let attempt = match XdpAttempt::new(&config, mode) {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(error)) => return socket::send(socket, &kernel_said(Err(error)), &[]),
            Err(error) => return socket::send(socket, &Reply::from(error), &[]),
        };
        let sent = socket::send(socket, &Reply::Done, &attempt.files());
        self.attempt = Some((whose.clone(), attempt));
        sent
    }

    /// Makes a socket for another queue of the uplink's interface, if the policy has a thread for it.
    fn join(&mut self, socket: &UnixStream, number: Number, queue: u32) -> io::Result<()> {
        let wanted = self.wanted(number, &Whose::Uplink).and_then(|wanted| wanted.xdp());
        let stated = wanted.is_some_and(|config| (1..config.queues).contains(&queue));
        let Some(queues) = self.queues.as_ref().filter(|_| stated) else {
            return socket::send(socket, &unknown(), &[]);
        };
        let made = match queues.open() {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return socket::send(socket, &kernel_said(Err(error)), &[]),
            Err(error) => return socket::send(socket, &Reply::from(error), &[]),
        };
        let sent = socket::send(socket, &Reply::Done, &[made.as_fd()]);
        self.joining = Some((queue, made));
        sent
    }

    fn register(&mut self, attempt: Option<(Whose, XdpAttempt)>, joining: Option<(u32, OwnedFd)>) -> Reply {
        let registered = match (attempt, joining, &self.queues) {
            (Some((Whose::Uplink, attempt)), _, _) => {
                attempt.register().map(|queues| self.queues = Some(queues))
            }
            (Some((_, attempt)), _, _) => attempt.register().map(drop),
            (None, Some((queue, socket)), Some(queues)) => queues.register(queue, &socket),
            _ => return unknown(),
        };
        kernel_said(registered)
    }

    fn configure(&self, number: Number, name: &str) -> Reply {
        let wanted = self.wanted(number, &Whose::Tenant(name.to_owned()));
        let Some(wanted) = wanted else { return unknown() };
        wanted.configure().map_or_else(Reply::from, |()| Reply::Done)
    }

    fn release(&mut self, place: u64) -> Reply {
        let Some((path, inode)) = self.places.remove(&place) else { return unknown() };
        free_place(&path, inode);
        Reply::Done
    }

    fn dropped(&self) -> Reply {
        let in_force = self.policies.values().next();
        Reply::Dropped(in_force.map(kernel::dropped).unwrap_or_default())
    }

    fn clear(&self, what: Clear) -> Reply {
        let path = match what {
            Clear::Socket => &self.start.socket,
            Clear::Lock => &self.start.lock,
        };
        // Left for the next start to remove if this fails.
        let _ = fs::remove_file(path);
        Reply::Done
    }
}

/// Sends a file that was opened, or why it could not be.
fn hand_over(socket: &UnixStream, opened: io::Result<fs::File>) -> io::Result<()> {
    match opened {
        Ok(opened) => socket::send(socket, &Reply::Done, &[opened.as_fd()]),
        Err(error) => socket::send(socket, &Reply::Failed(error.to_string()), &[]),
    }
}

/// The files of a policy, with the answers of the processes that read them.
pub(crate) fn sources(checked: &Checked, mut answers: Answers) -> Vec<Source> {
    let source = |file: &SourceFile| {
        let (name, text) = (file.name.clone(), file.text.to_string());
        Source { answer: answers.remove(&name), name, text }
    };
    checked.sources.files().iter().map(source).collect()
}

fn kernel_said(answer: io::Result<()>) -> Reply {
    match answer {
        Ok(()) => Reply::Done,
        Err(error) => error.raw_os_error().map_or_else(|| Reply::Failed(error.to_string()), Reply::Kernel),
    }
}

fn unknown() -> Reply {
    Reply::Failed("the policy that the broker has read names no such thing".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileTypeExt;
    use std::path::Path;

    use super::*;
    use crate::reader::Ended;

    /// Reads no file.
    #[derive(Debug)]
    struct NoReader;

    impl FileReader for NoReader {
        fn read_file(&self, _: OwnedFd) -> Result<Vec<u8>, Ended> {
            Err(Ended::Start("there is none".to_owned()))
        }
    }

    /// A broker for a policy with a vNIC in `folder`, and both ends of its socket.
    fn server(folder: &Path) -> (Server<'static>, UnixStream, UnixStream) {
        let (file, text) = (folder.join("p.yaml").display().to_string(), policy(folder, "v"));
        fs::write(&file, &text).expect("written");
        let sources = vec![Source { name: file.clone(), text, answer: None }];
        let (socket, lock) = (folder.join("api.sock"), folder.join("api.lock"));
        let server = Server::new(Start { file, sources, socket, lock }, &NoReader).expect("a policy");
        let (here, there) = UnixStream::pair().expect("a pair");
        (server, here, there)
    }

    fn policy(folder: &Path, vnic: &str) -> String {
        let port = folder.join(vnic).display().to_string();
        format!("{{uplink: {{port: memory, rate: 1Gbps}}, tenants: {{shop: {{port: {{vnic: {port}}}}}}}}}")
    }

    fn answer(broker: &mut (Server<'_>, UnixStream, UnixStream), request: Request) -> (Reply, Vec<OwnedFd>) {
        let (server, here, there) = broker;
        server.answer(here, request).expect("answered");
        socket::receive(there, socket::ANSWER, true).expect("an answer").expect("one")
    }

    fn refused(answer: &(Reply, Vec<OwnedFd>)) -> bool {
        matches!(&answer.0, Reply::Failed(why) if why.contains("names no such thing")) && answer.1.is_empty()
    }

    #[test]
    fn only_what_its_own_policy_names_is_opened_and_released() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut broker = server(folder.path());
        let shop = || Whose::Tenant("shop".to_owned());
        let bank = Whose::Tenant("bank".to_owned());
        for (number, whose) in [(0, bank), (1, shop()), (u64::MAX, Whose::Uplink), (0, Whose::Standby)] {
            assert!(refused(&answer(&mut broker, Request::Open(number, whose))));
        }
        assert!(refused(&answer(&mut broker, Request::Attach(0, shop(), XdpMode::Copy))), "it is a vNIC");
        assert!(
            refused(&answer(&mut broker, Request::Join(0, 1))),
            "the uplink has one queue, which is not open"
        );
        assert!(
            refused(&answer(&mut broker, Request::Register))
                && refused(&answer(&mut broker, Request::Release(1)))
        );
        assert!(!folder.path().join("v").exists());

        let (reply, files) = answer(&mut broker, Request::Open(0, shop()));
        let Reply::Port(_, place) = reply else { panic!("{reply:?}") };
        assert_eq!(files.len(), 1);
        let is_socket =
            || fs::symlink_metadata(folder.path().join("v")).is_ok_and(|found| found.file_type().is_socket());
        assert!(is_socket());
        assert!(refused(&answer(&mut broker, Request::Release(place + 1))) && is_socket());
        assert!(matches!(answer(&mut broker, Request::Release(place)).0, Reply::Done));
        assert!(!is_socket());
        assert!(refused(&answer(&mut broker, Request::Release(place))), "once");
    }

    #[test]
    fn a_place_that_is_anothers_by_now_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut broker = server(folder.path());
        let (reply, _files) = answer(&mut broker, Request::Open(0, Whose::Tenant("shop".to_owned())));
        let Reply::Port(_, place) = reply else { panic!("{reply:?}") };
        fs::remove_file(folder.path().join("v")).expect("removed");
        fs::write(folder.path().join("v"), "precious").expect("written");
        answer(&mut broker, Request::Release(place));
        assert!(folder.path().join("v").exists());
    }

    #[test]
    fn the_policy_is_the_operators_file_and_two_are_remembered() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut broker = server(folder.path());
        let file = folder.path().join("p.yaml");
        fs::write(&file, policy(folder.path(), "w")).expect("written");
        for number in [1, 2] {
            let (reply, _) = answer(&mut broker, Request::Read);
            let Reply::Policy(read, sources) = reply else { panic!("{reply:?}") };
            assert_eq!((read, sources.len()), (number, 1));
            assert!(sources[0].text.contains("/w}"), "{}", sources[0].text);
        }
        assert!(refused(&answer(&mut broker, Request::InForce(1))), "read, and read again since");
        assert_eq!(broker.0.policies.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert!(matches!(answer(&mut broker, Request::InForce(2)).0, Reply::Done));
        assert!(
            refused(&answer(&mut broker, Request::Open(0, Whose::Tenant("shop".to_owned())))),
            "it is no more"
        );
        fs::write(&file, "nonsense: [").expect("written");
        let (reply, _) = answer(&mut broker, Request::Read);
        assert!(matches!(reply, Reply::Failed(why) if why.contains("p.yaml")));
        assert_eq!(broker.0.policies.keys().copied().collect::<Vec<_>>(), [2], "the one in force stays");
    }
}
