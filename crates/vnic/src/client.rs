//! The client: flow queues, frames out, completions, frames in.
//!
//! Why: a program posts packets; it does not have to know about cache lines.
//! From: `docs/vnic.md`; one `Vnic` belongs to one thread.
//! Not here: what lies where (`layout`), buffers and doorbells (`sender`).
//! Invariant: each completion is handed to the thread whose buffers it frees, once.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::error::VnicError;
use crate::layout::{BUFFER, Done, Identity, Layout, LayoutError, Posted, Used, header};
use crate::message::Message;
use crate::region::Region;
use crate::rules::{FlowSpec, Rule, RuleCounts, Rules};
use crate::sender::{Completion, Poster, Sender, Shared};
use crate::socket::{self, DESCRIPTORS, Incoming};

/// A virtual NIC.
///
/// ```no_run
/// use plimsoll_vnic::{FlowSpec, Vnic};
/// let mut vnic = Vnic::connect("/run/plimsoll/shop.sock")?;
/// let flow = FlowSpec {
///     addresses: Some(([10, 0, 0, 1].into(), [10, 0, 0, 2].into())),
///     protocol: Some(17),
///     ports: Some((5_000, 53)),
///     ..FlowSpec::default()
/// };
/// let queue = vnic.open_flow(&flow)?;
/// let frame = [0; 60];
/// while vnic.send(queue, &frame).is_err() {
///     vnic.poll_completions(|_| {});
/// }
/// vnic.ring()?;
/// # Ok::<(), plimsoll_vnic::VnicError>(())
/// ```
#[derive(Debug)]
pub struct Vnic {
    path: PathBuf,
    socket: OwnedFd,
    wake: OwnedFd,
    identity: Identity,
    sender: Sender,
    /// The owner of each buffer: 0 for this thread, else the poster's number.
    owners: Vec<u8>,
    posters: Vec<mpsc::Sender<Done>>,
    completion_head: u32,
    posted_tail: u32,
    used_head: u32,
    rules: Rules,
    /// Unasked messages read so far.
    news: u32,
}

/// How long a socket that is not there yet is waited for: a daemon makes it anew after its client has gone.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);
const ANSWER_MILLIS: i32 = 5_000;
/// How often a question is asked again because a reload came before its answer.
const RELOADS: u32 = 3;

impl Vnic {
    /// Connects to a tenant's socket, as the policy names it, and posts buffers for frames to be received. Waits up to
    /// five seconds for a socket that is not there yet.
    ///
    /// # Errors
    /// See [`VnicError`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, VnicError> {
        let path = path.as_ref();
        let socket = connect_patiently(path)?;
        let closed = |source| VnicError::Connect { path: path.to_owned(), source };
        socket::send_message(&socket, Message::hello(), &[]).map_err(closed)?;
        if !socket::wait_readable(&socket, ANSWER_MILLIS)? {
            return Err(closed(io::ErrorKind::TimedOut.into()));
        }
        let (answer, descriptors) = socket::read_welcome(&socket).map_err(closed)?;
        let len = match answer {
            Some(Message::Welcome(len)) => len,
            Some(Message::Occupied) => return Err(VnicError::Occupied { path: path.to_owned() }),
            Some(Message::OtherVersion(version)) => return Err(LayoutError::Version(version).into()),
            _ => return Err(VnicError::Answer { path: path.to_owned() }),
        };
        let descriptors: Result<[OwnedFd; DESCRIPTORS], _> = descriptors.try_into();
        let (Ok([memory, kick, wake]), Ok(len)) = (descriptors, usize::try_from(len)) else {
            return Err(VnicError::Answer { path: path.to_owned() });
        };
        let region = Region::map(&memory, len)?;
        Self::begin(path, socket, kick, wake, region)
    }

    fn begin(
        path: &Path,
        socket: OwnedFd,
        kick: OwnedFd,
        wake: OwnedFd,
        region: Region,
    ) -> Result<Self, VnicError> {
        let (layout, identity) = Layout::read_header(&region)?;
        let sizes = *layout.sizes();
        let mut vnic = Self {
            path: path.to_owned(),
            socket,
            wake,
            identity,
            sender: Sender::first(Arc::new(Shared { region, layout, kick })),
            owners: vec![0; sizes.buffers as usize],
            posters: Vec::new(),
            completion_head: 0,
            posted_tail: 0,
            used_head: 0,
            rules: Rules::default(),
            news: 0,
        };
        // At most half of the buffers: the others are to send from.
        for _ in 0..sizes.receive.min(sizes.buffers / 2) {
            if let Some(buffer) = vnic.sender.take_buffer() {
                vnic.post_receive(buffer);
            }
        }
        Ok(vnic)
    }

    /// The interface's hardware address and MTU.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Number of the policy in force, one more with each reload. Flow queues stay valid: the daemon classifies them
    /// anew itself.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.sender.shared.region.word32(header::GENERATION).load(Ordering::Acquire)
    }

    /// Asks for a flow queue for packets with these headers. Queue 0 needs no asking: the daemon classifies each of its
    /// packets.
    ///
    /// # Errors
    /// [`VnicError::NotOpened`] when there is none, [`VnicError::Closed`] when the daemon has gone.
    pub fn open_flow(&mut self, spec: &FlowSpec) -> Result<u32, VnicError> {
        match self.ask(Message::Open(*spec))? {
            Message::Opened(queue) if (queue as usize) < self.sender.flow_queues() => Ok(queue),
            Message::NotOpened(why) => Err(why.into()),
            _ => Err(self.nonsense()),
        }
    }

    /// Answers the flow queue for packets with these headers, by the daemon's rules: from this client's cache, or, when no
    /// rule there fits, after asking the daemon. Call it for each packet: a rule ends when the policy changes. The daemon
    /// then sends its rules again.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the daemon has gone.
    #[inline]
    pub fn queue_for(&mut self, flow: &FlowSpec) -> Result<u32, VnicError> {
        let in_force = self.generation();
        self.rules.heed(in_force);
        // Acquire: pairs with the daemon's Release; the messages that it counts have been sent.
        let news = self.sender.shared.region.word32(header::NEWS).load(Ordering::Acquire);
        if news != self.news {
            self.hear(news)?;
        }
        match self.rules.find(flow) {
            Some(queue) => Ok(queue),
            None => self.learn(flow),
        }
    }

    /// Answers the flow queue for a frame; queue 0 for a frame that is not parsed here.
    ///
    /// # Errors
    /// As [`Vnic::queue_for`].
    pub fn classify(&mut self, frame: &[u8]) -> Result<u32, VnicError> {
        FlowSpec::of_frame(frame).map_or(Ok(0), |flow| self.queue_for(&flow))
    }

    /// Makes a [`Poster`], with which another thread sends. It has a doorbell queue of its own, `buffers` buffers, and these
    /// flow queues, which must be idle; only the poster may use them from now on. It may have an equal part of the
    /// completion ring's frames on their way. `None` when doorbell queues or buffers are used up, or a flow queue is in use.
    ///
    /// This thread must go on polling completions: it hands on those of the posters.
    pub fn poster(&mut self, queues: &[u32], buffers: usize) -> Option<Poster> {
        let core = u32::try_from(self.posters.len()).ok()? + 1;
        let (sender, own) = self.sender.split(core, queues, buffers)?;
        for buffer in own {
            // At most 64 doorbell queues.
            self.owners[buffer as usize] = core as u8;
        }
        let (hand, done) = mpsc::channel();
        self.posters.push(hand);
        Some(Poster { sender, done })
    }

    /// Counters of the cache of rules.
    #[must_use]
    pub fn rule_counts(&self) -> RuleCounts {
        self.rules.counts
    }

    /// Slow path of [`Vnic::queue_for`]: no rule fits, so the daemon is asked.
    #[cold]
    fn learn(&mut self, flow: &FlowSpec) -> Result<u32, VnicError> {
        // Rings first for frames posted under earlier rules: a flow queue that leads elsewhere now must be empty.
        self.ring()?;
        for _ in 0..RELOADS {
            let Message::Rule(rule) = self.ask(Message::Ask(*flow))? else { return Err(self.nonsense()) };
            if (rule.queue as usize) >= self.sender.flow_queues() {
                return Err(self.nonsense());
            }
            let in_force = self.generation();
            if self.rules.learn(&rule, in_force) {
                return Ok(rule.queue);
            }
        }
        // Reloads come faster than answers: the daemon classifies.
        Ok(0)
    }

    /// Sends a question and waits for its answer. Rules that come in between are learned.
    fn ask(&mut self, question: Message) -> Result<Message, VnicError> {
        socket::send_message(&self.socket, question, &[]).map_err(|_| VnicError::Closed)?;
        loop {
            match socket::read_message(&self.socket) {
                Incoming::Message(Message::Rule(rule)) if !rule.asked => self.told(&rule)?,
                Incoming::Message(message) => return Ok(message),
                Incoming::Closed => return Err(VnicError::Closed),
                Incoming::Garbage => return Err(self.nonsense()),
                Incoming::Nothing if socket::wait_readable(&self.socket, ANSWER_MILLIS)? => {}
                Incoming::Nothing => return Err(VnicError::Io(io::ErrorKind::TimedOut.into())),
            }
        }
    }

    /// Reads the messages that the daemon has sent unasked.
    #[cold]
    fn hear(&mut self, news: u32) -> Result<(), VnicError> {
        self.news = news;
        loop {
            match socket::read_message(&self.socket) {
                Incoming::Message(Message::Rule(rule)) => self.told(&rule)?,
                Incoming::Nothing => return Ok(()),
                Incoming::Closed => return Err(VnicError::Closed),
                Incoming::Message(_) | Incoming::Garbage => return Err(self.nonsense()),
            }
        }
    }

    fn told(&mut self, rule: &Rule) -> Result<(), VnicError> {
        if (rule.queue as usize) >= self.sender.flow_queues() {
            return Err(self.nonsense());
        }
        let in_force = self.generation();
        self.rules.learn(rule, in_force);
        Ok(())
    }

    fn nonsense(&self) -> VnicError {
        VnicError::Answer { path: self.path.clone() }
    }

    /// Gives a flow queue back. Frames that were posted and not rung for are lost.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the daemon has gone.
    pub fn close_flow(&mut self, queue: u32) -> Result<(), VnicError> {
        socket::send_message(&self.socket, Message::Close(queue), &[]).map_err(|_| VnicError::Closed)
    }

    /// Calls `tell` for each frame that has completed since the last call, and answers how many there were. Their buffers
    /// are free again.
    pub fn poll_completions(&mut self, mut tell: impl FnMut(Completion)) -> usize {
        let tail = self.completion_tail();
        let left = tail.wrapping_sub(self.completion_head).min(self.sender.shared.layout.sizes().completions);
        let mut count = 0;
        for _ in 0..left {
            if let Some(done) = self.take_completion() {
                tell(done);
                count += 1;
            }
        }
        count
    }

    /// Takes the next completion; the frame's buffers are free again.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let tail = self.completion_tail();
        while self.completion_head != tail {
            if let Some(done) = self.take_completion() {
                return Some(done);
            }
        }
        None
    }

    /// Copies the oldest received frame out and answers its length. Bytes that do not fit are cut off.
    pub fn receive(&mut self, into: &mut [u8]) -> Option<usize> {
        // Acquire: pairs with the daemon's Release, so that the frame is whole.
        let tail =
            self.sender.shared.region.word32(self.sender.shared.layout.used_tail()).load(Ordering::Acquire);
        if self.used_head == tail {
            return None;
        }
        let used = Used::load(&self.sender.shared.region, self.sender.shared.layout.used(self.used_head));
        self.used_head = self.used_head.wrapping_add(1);
        let len = (used.len as usize).min(BUFFER).min(into.len());
        let buffer = used.cookie.min(self.sender.shared.layout.sizes().buffers - 1);
        self.sender.shared.region.read(self.sender.buffer_at(buffer), &mut into[..len]);
        self.post_receive(buffer);
        Some(len)
    }

    /// Sleeps until a frame has completed or has arrived, at most `millis` (for ever when negative). Answers whether there
    /// is a completion or a frame to take.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the daemon has gone.
    pub fn wait(&mut self, millis: i32) -> Result<bool, VnicError> {
        self.sender.shared.region.word32(header::CLIENT_WAITS).store(1, Ordering::Relaxed);
        // Orders the flag before the look that follows; pairs with the daemon's fence after it has written.
        fence(Ordering::SeqCst);
        if self.has_news() {
            self.sender.shared.region.word32(header::CLIENT_WAITS).store(0, Ordering::Relaxed);
            return Ok(true);
        }
        let woken = self.sleep(millis)?;
        self.sender.shared.region.word32(header::CLIENT_WAITS).store(0, Ordering::Relaxed);
        if woken {
            let mut bytes = [0; 64];
            // It does not block, and empty is fine.
            let _ = nix::unistd::read(&self.wake, &mut bytes);
        }
        Ok(self.has_news())
    }

    /// The descriptor that becomes readable when [`Vnic::wait`] would end, for a program with a loop of its own. Call
    /// [`Vnic::wait`] with 0 milliseconds before each sleep, and sleep only if it answers `false`.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The shared region, for tests of the daemon.
    #[doc(hidden)]
    #[must_use]
    pub fn region(&self) -> (&Region, &Layout) {
        (&self.sender.shared.region, &self.sender.shared.layout)
    }

    /// How many completions the daemon has written.
    fn completion_tail(&self) -> u32 {
        let Shared { region, layout, .. } = &*self.sender.shared;
        // Acquire: pairs with the daemon's Release, so that the entries before the tail are whole.
        region.word32(layout.completion_tail()).load(Ordering::Acquire)
    }

    /// Takes the oldest completion; a poster's is handed on to its thread, and the answer is `None`.
    fn take_completion(&mut self) -> Option<Completion> {
        let Shared { region, layout, .. } = &*self.sender.shared;
        let done = Done::load(region, layout.completion(self.completion_head));
        self.completion_head = self.completion_head.wrapping_add(1);
        match self.owners.get(done.cookie as usize) {
            Some(&owner) if owner > 0 => {
                // The buffers of a poster that is gone are lost.
                let _ = self.posters[usize::from(owner) - 1].send(done);
                None
            }
            _ => Some(self.sender.through(done)),
        }
    }

    fn has_news(&self) -> bool {
        let word = |at| self.sender.shared.region.word32(at).load(Ordering::Acquire);
        word(self.sender.shared.layout.completion_tail()) != self.completion_head
            || word(self.sender.shared.layout.used_tail()) != self.used_head
    }

    /// Waits for the wake-up or the end of the socket.
    fn sleep(&self, millis: i32) -> Result<bool, VnicError> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let timeout = if millis < 0 {
            PollTimeout::NONE
        } else {
            PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
        };
        let mut fds = [
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.socket.as_fd(), PollFlags::empty()),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        let said = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
        if said(&fds[1]).intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
            return Err(VnicError::Closed);
        }
        Ok(said(&fds[0]).contains(PollFlags::POLLIN))
    }

    fn post_receive(&mut self, buffer: u32) {
        let posted = Posted { addr: u64::from(buffer) * BUFFER as u64, len: BUFFER as u32, cookie: buffer };
        posted.store(&self.sender.shared.region, self.sender.shared.layout.posted(self.posted_tail));
        self.posted_tail = self.posted_tail.wrapping_add(1);
        // Release: pairs with the daemon's Acquire, so that a reader of the tail also sees the entry.
        self.sender
            .shared
            .region
            .word32(self.sender.shared.layout.posted_tail())
            .store(self.posted_tail, Ordering::Release);
    }
}

impl Deref for Vnic {
    type Target = Sender;

    fn deref(&self) -> &Sender {
        &self.sender
    }
}

impl DerefMut for Vnic {
    fn deref_mut(&mut self) -> &mut Sender {
        &mut self.sender
    }
}

impl AsRawFd for Vnic {
    /// The descriptor of [`Vnic::wake_fd`].
    fn as_raw_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }
}

/// Connects, and retries for [`PATIENCE`]: a daemon that has just lost a client makes the socket anew a moment later.
fn connect_patiently(path: &Path) -> Result<OwnedFd, VnicError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match socket::connect_to(path) {
            Ok(socket) => return Ok(socket),
            Err(error) if Instant::now() < until && may_come(&error) => std::thread::sleep(RETRY),
            Err(source) => return Err(VnicError::Connect { path: path.to_owned(), source }),
        }
    }
}

fn may_come(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::WouldBlock
    )
}
