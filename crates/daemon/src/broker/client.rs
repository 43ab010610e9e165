//! The engine's side of the broker.
//!
//! Why: reload, lost ports and counters need privileges that this process has given up.
//! From: `message`; one request at a time, each answered before the next.
//! Not here: what the broker allows (`server`).
//! Invariant: without the broker no port is opened and no policy is read; open ports go on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use plimsoll_control::FleetKeys;
use plimsoll_document::Tree;
use plimsoll_policy::{
    Checked, FileId, Files, INCLUDED, Port as PortSpec, Sources, TenantConfig, Unread, load_files,
};
use plimsoll_ports::handover::{Handover, Parts, Release};
use plimsoll_ports::{Port, PortError, XdpHelper, XdpMode, XdpSocket};

use super::message::{Clear, Reply, Request, Source, Start};
use super::{Number, ReadError, socket};
use crate::dataplane::Whose;
use crate::open::{self, OpenError, Wanted};
use crate::reader;

/// The connection to the broker.
#[derive(Debug)]
pub(crate) struct Client {
    socket: Mutex<UnixStream>,
    /// The broker's process.
    id: u32,
    ended: AtomicBool,
    /// The broker's last answer on frames that the kernel dropped.
    dropped: Mutex<BTreeMap<String, u64>>,
}

impl Client {
    /// Starts the broker: this program again, with `argument`, on a socket as its standard input.
    /// With `urgent`, the broker hears on that socket which of our threads to schedule before other processes.
    pub(crate) fn start(
        argument: &str,
        start: &Start,
        urgent: Option<&UnixDatagram>,
    ) -> io::Result<(Arc<Self>, Child)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(argument).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        // The service manager's variables are for this process only.
        for name in
            ["NOTIFY_SOCKET", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID", "WATCHDOG_USEC"]
        {
            command.env_remove(name);
        }
        let child = command.spawn()?;
        let urgent: Vec<_> = urgent.into_iter().map(AsFd::as_fd).collect();
        socket::send(&ours, start, &urgent)?;
        match socket::receive(&ours, socket::ANSWER, true)? {
            Some((Reply::Done, _)) => Ok((Arc::new(Self::new(ours, child.id())), child)),
            Some((Reply::Failed(why), _)) => Err(io::Error::other(why)),
            _ => Err(io::Error::other("it ended at once; what it said stands above")),
        }
    }

    fn new(socket: UnixStream, id: u32) -> Self {
        Self { socket: Mutex::new(socket), id, ended: AtomicBool::new(false), dropped: Mutex::default() }
    }

    /// The id of the broker's process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Waits on a thread of its own until the broker ends, and logs that. Only a bug or a signal ends the broker early.
    pub(crate) fn watch(self: &Arc<Self>, mut child: Child) -> io::Result<()> {
        let client = Arc::clone(self);
        let watch = move || {
            let ended = child.wait();
            client.ended.store(true, Ordering::Relaxed);
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            eprintln!(
                "plimsoll: the broker has ended ({how}): traffic goes on, but no port can be opened and no policy be \
                 read until the daemon is started again"
            );
        };
        std::thread::Builder::new().name("broker".to_owned()).spawn(watch).map(drop)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// See [`super::Broker::read`].
    pub(super) fn read(&self, file: &str) -> Result<(Checked, Number), ReadError> {
        let (number, sources) = match self.ask(&Request::Read).map_err(ReadError::Broker)? {
            (Reply::Policy(number, sources), _) => (number, sources),
            (Reply::Failed(why), _) => return Err(ReadError::Policy(why)),
            _ => return Err(ReadError::Broker(confused())),
        };
        let checked = check(file, &sources).map_err(ReadError::Policy)?;
        Ok((checked, number))
    }

    pub(super) fn in_force(&self, number: Number) {
        // Without a broker nothing is opened any more.
        let _ = self.ask(&Request::InForce(number));
    }

    pub(super) fn open_tenant(
        self: &Arc<Self>,
        checked: &Checked,
        number: Number,
        tenant: &TenantConfig,
    ) -> Result<Port, OpenError> {
        let wanted = open::tenant_wanted(checked, tenant);
        self.open(&wanted, number, &Whose::Tenant(tenant.name.clone()))
    }

    /// See [`super::Broker::configure`].
    pub(super) fn configure(&self, number: Number, tenant: &TenantConfig) -> Result<(), OpenError> {
        match self.ask(&Request::Configure(number, tenant.name.clone())).map_err(OpenError::Told)? {
            (Reply::Done, _) => Ok(()),
            (Reply::Failed(why), _) => Err(OpenError::Told(why)),
            _ => Err(OpenError::Told(confused())),
        }
    }

    /// Opens a port with the broker's help.
    pub(super) fn open(
        self: &Arc<Self>,
        wanted: &Wanted<'_>,
        number: Number,
        whose: &Whose,
    ) -> Result<Port, OpenError> {
        if matches!(wanted.port, PortSpec::Memory) {
            return Err(OpenError::Memory { whose: wanted.whose.clone() });
        }
        let told = OpenError::Told;
        let failed = |source| wanted.failed(source);
        match self.ask(&Request::Open(number, whose.clone())).map_err(told)? {
            (Reply::Port(parts, place), files) => {
                let release = self.release(&parts, place);
                wanted.take_over(Handover { parts, files }, release).map_err(failed)
            }
            (Reply::Interface(link), _) => {
                let mut helper = Helper { socket: self.lock(), number, whose };
                let config = wanted.xdp().ok_or_else(|| OpenError::Told(confused()))?;
                XdpSocket::open_with(&config, &link, &mut helper).map(Port::AfXdp).map_err(failed)
            }
            (Reply::Failed(why), _) => Err(OpenError::Told(why)),
            _ => Err(OpenError::Told(confused())),
        }
    }

    /// Opens this queue of the uplink's interface, whose first queue is `first`.
    pub(super) fn open_next(
        &self,
        first: &XdpSocket,
        wanted: &Wanted<'_>,
        (number, whose): (Number, &Whose),
        queue: u32,
    ) -> Result<Port, OpenError> {
        let mut helper = Helper { socket: self.lock(), number, whose };
        let config = wanted.xdp().ok_or_else(|| OpenError::Told(confused()))?;
        let failed = |source| wanted.failed(source);
        first.open_next(&config, queue, Some(&mut helper)).map(Port::AfXdp).map_err(failed)
    }

    /// See [`super::Broker::open_load`].
    pub(super) fn open_load(&self, number: Number, which: Option<u32>) -> io::Result<File> {
        self.open_file(&Request::Load(number, which))
    }

    /// See [`super::Broker::keys`].
    pub(super) fn keys(&self, number: Number) -> Result<Option<FleetKeys>, String> {
        match self.ask(&Request::Keys(number))? {
            (Reply::Keys(keys), _) => {
                Ok(keys.split_first().map(|(own, others)| FleetKeys::new(*own, others)))
            }
            (Reply::Failed(why), _) => Err(why),
            _ => Err(confused()),
        }
    }

    /// Opens the module of a tenant's program.
    pub(super) fn open_module(&self, number: Number, name: &str) -> io::Result<File> {
        self.open_file(&Request::Module(number, name.to_owned()))
    }

    /// A file that is opened for reading.
    fn open_file(&self, request: &Request) -> io::Result<File> {
        match self.ask(request).map_err(io::Error::other)? {
            (Reply::Done, files) => {
                let file = files.into_iter().next().ok_or_else(|| io::Error::other(confused()))?;
                Ok(File::from(file))
            }
            (Reply::Failed(why), _) => Err(io::Error::other(why)),
            _ => Err(io::Error::other(confused())),
        }
    }

    /// Frees the place of a listening socket when its port is dropped.
    fn release(self: &Arc<Self>, parts: &Parts, place: u64) -> Release {
        let listens = matches!(parts, Parts::Listening(_));
        let client = Arc::clone(self);
        Release::by(move || {
            if listens {
                // Without a broker the socket's file stays, and the next start replaces it.
                let _ = client.ask(&Request::Release(place));
            }
        })
    }

    /// Frames of each tenant that the kernel dropped: the broker's answer now, or its last one if it is busy with a reload.
    pub(super) fn dropped(&self) -> BTreeMap<String, u64> {
        let mut known = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = match self.socket.try_lock() {
            Ok(socket) => Some(socket),
            Err(TryLockError::Poisoned(socket)) => Some(socket.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(Ok((Reply::Dropped(now), _))) = socket.map(|socket| ask(&socket, &Request::Dropped)) {
            *known = now;
        }
        known.clone()
    }

    /// Has the broker remove a file of this daemon's.
    pub(crate) fn clear(&self, what: Clear) {
        let _ = self.ask(&Request::Clear(what)); // left for the next start
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), String> {
        ask(&self.lock(), request)
    }

    fn lock(&self) -> MutexGuard<'_, UnixStream> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(socket: &UnixStream, request: &Request) -> Result<(Reply, Vec<OwnedFd>), String> {
    let answered =
        socket::send(socket, request, &[]).and_then(|()| socket::receive(socket, socket::ANSWER, true));
    match answered {
        Ok(Some(answer)) => Ok(answer),
        _ => {
            Err("the broker, which opens ports and reads files for the daemon, has ended; restart the daemon"
                .to_owned())
        }
    }
}

/// The policy that these files make.
pub(super) fn check(file: &str, sources: &[Source]) -> Result<Checked, String> {
    load_files(file, &mut Handed(sources)).map_err(|errors| errors.render(false))
}

/// A policy's files, as the broker has had them read.
struct Handed<'a>(&'a [Source]);

impl Handed<'_> {
    fn find(&self, name: &str) -> Option<&Source> {
        self.0.iter().find(|source| source.name == name)
    }
}

impl Files for Handed<'_> {
    fn text(&mut self, name: &str) -> Result<String, String> {
        let source = self.find(name).ok_or_else(|| "it was not there when it was read".to_owned())?;
        Ok(source.text.clone())
    }

    /// A tenant's text is parsed only in the process that was started for it.
    fn folder(&mut self, name: &str) -> Result<Vec<String>, String> {
        let inside = |file: &&str| {
            let rest = file.strip_prefix(name).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|rest| rest.ends_with(INCLUDED) && !rest.contains('/'))
        };
        Ok(self.0.iter().map(|source| source.name.as_str()).filter(inside).map(str::to_owned).collect())
    }

    fn tree(&mut self, sources: &Sources, file: FileId) -> Result<Tree, Unread> {
        let source = self.find(&sources.file(file).name);
        match source.and_then(|source| source.answer.as_ref()) {
            Some(answer) => reader::told(answer.as_bytes(), sources, file),
            None => Err(Unread::Ended("no process has read it".to_owned())),
        }
    }
}

/// For AF_XDP the broker makes the socket, and this process the rest.
struct Helper<'a> {
    /// Locked until the attempt has ended, as the broker knows of one at a time.
    socket: MutexGuard<'a, UnixStream>,
    number: Number,
    whose: &'a Whose,
}

impl Helper<'_> {
    fn ask(&self, request: &Request) -> io::Result<Vec<OwnedFd>> {
        match ask(&self.socket, request).map_err(io::Error::other)? {
            (Reply::Done, files) => Ok(files),
            (Reply::Kernel(number), _) => Err(io::Error::from_raw_os_error(number)),
            (Reply::Failed(why), _) => Err(io::Error::other(why)),
            _ => Err(io::Error::other(confused())),
        }
    }
}

impl XdpHelper for Helper<'_> {
    fn attach(&mut self, mode: XdpMode) -> io::Result<[OwnedFd; 3]> {
        let files = self.ask(&Request::Attach(self.number, self.whose.clone(), mode))?;
        files.try_into().map_err(|_| io::Error::other(confused()))
    }

    fn register(&mut self) -> io::Result<()> {
        self.ask(&Request::Register).map(drop)
    }

    fn join(&mut self, queue: u32) -> io::Result<OwnedFd> {
        let files = self.ask(&Request::Join(self.number, queue))?;
        files.into_iter().next().ok_or_else(|| io::Error::other(confused()))
    }
}

fn confused() -> String {
    "the broker's answer makes no sense; please report it".to_owned()
}

/// Makes the error of opening a port from the broker's text.
impl From<OpenError> for Reply {
    fn from(error: OpenError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<PortError> for Reply {
    fn from(error: PortError) -> Self {
        Self::Failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn statistics_do_not_wait_for_a_reload() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let client = Arc::new(Client::new(ours, 0));
        let broker = std::thread::spawn(move || {
            let asked =
                socket::receive::<Request>(&theirs, socket::REQUEST, false).expect("heard").expect("one");
            assert!(matches!(asked.0, Request::Dropped));
            let counts = BTreeMap::from([("shop".to_owned(), 7)]);
            socket::send(&theirs, &Reply::Dropped(counts), &[]).expect("sent");
            theirs
        });
        assert_eq!(client.dropped()["shop"], 7);
        let _theirs = broker.join().expect("it answered");
        // A reload has the broker to itself.
        let reload = client.lock();
        let (tell, told) = channel();
        let asks = Arc::clone(&client);
        std::thread::spawn(move || tell.send(asks.dropped()));
        let said = told.recv_timeout(Duration::from_secs(10)).expect("it does not wait");
        assert_eq!(said["shop"], 7, "as it was");
        drop(reload);
    }
}
