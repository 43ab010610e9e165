//! The client: flow queues, frames out, completions, frames in.
//!
//! Why: a program should post packets and not think about cache lines.
//! From: `docs/vnic.md`; one `Vnic` belongs to one thread and rings one doorbell queue.
//! Not here: what lies where (`layout`).
//! Invariant: the client never has more frames on their way than the completion ring holds, nor more descriptors in a
//! flow ring than it has places: nothing that it has not read yet is ever written over.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::doorbell;
use crate::layout::{
    BUFFER, Descriptor, Identity, Layout, LayoutError, MAX_PIECES, Offload, Posted, Status, Used, header,
};
use crate::message::{FlowSpec, Message, OpenRefusal};
use crate::region::Region;
use crate::rules::{Rule, RuleCounts, Rules};
use crate::socket::{self, DESCRIPTORS, Incoming};

/// Why a vNIC cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum VnicError {
    /// Nobody listens, or we may not connect.
    #[error("cannot connect to the vNIC at {}: {source}; is `plimsoll run` there, with `port: {{vnic: {}}}`, and may this user write to the socket?", path.display(), path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Somebody else has it.
    #[error("the vNIC at {} has a client already; stop that one, or give this one a tenant of its own", path.display())]
    Occupied {
        /// The socket.
        path: PathBuf,
    },
    /// The region is not as this client expects.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// No flow queue.
    #[error(transparent)]
    NotOpened(#[from] OpenRefusal),
    /// The daemon said something else than an answer.
    #[error("the daemon's answer makes no sense; is {} really a vNIC's socket?", path.display())]
    Answer {
        /// The socket.
        path: PathBuf,
    },
    /// The daemon has gone, or has closed the vNIC.
    #[error("the daemon has closed the vNIC; connect again")]
    Closed,
    /// Anything else that the kernel said.
    #[error("vNIC: {0}")]
    Io(#[from] io::Error),
}

/// No room now: poll completions and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no room now: poll completions, and try again")]
pub struct Busy;

/// A buffer of 2 KiB that belongs to the program: to be filled and posted.
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer(u32);

/// A frame that is through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The flow queue that it was posted to.
    pub queue: u32,
    /// What became of it.
    pub status: Status,
}

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
    kick: OwnedFd,
    wake: OwnedFd,
    region: Region,
    layout: Layout,
    identity: Identity,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// The next buffer of the frame that a buffer belongs to.
    next: Vec<u32>,
    batch: Vec<u16>,
    bell_tail: u32,
    completion_head: u32,
    on_their_way: u32,
    posted_tail: u32,
    used_head: u32,
    rules: Rules,
    /// Messages that came without a question, read so far.
    news: u32,
}

/// What the client knows of a flow ring.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    tail: u32,
    /// Descriptors that have not completed.
    used: u32,
    /// Whether the batch names it already.
    rung: bool,
}

/// The doorbell queue that this client uses.
const CORE: u32 = 0;
/// How long a socket that is not there yet is waited for: a daemon makes it anew after its client has gone.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);
const ANSWER_MILLIS: i32 = 5_000;
/// Questions that a policy may overtake.
const RELOADS: u32 = 3;
const NONE: u32 = u32::MAX;

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
            kick,
            wake,
            region,
            layout,
            identity,
            flows: vec![Flow::default(); sizes.flow_queues as usize],
            free: (0..sizes.buffers).rev().collect(),
            next: vec![NONE; sizes.buffers as usize],
            batch: Vec::with_capacity(sizes.doorbell_words as usize),
            bell_tail: 0,
            completion_head: 0,
            on_their_way: 0,
            posted_tail: 0,
            used_head: 0,
            rules: Rules::default(),
            news: 0,
        };
        // At most half of the buffers: the others are to send from.
        for _ in 0..sizes.receive.min(sizes.buffers / 2) {
            if let Some(buffer) = vnic.free.pop() {
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
        self.region.word32(header::GENERATION).load(Ordering::Acquire)
    }

    /// Asks for a flow queue for packets with these headers. Queue 0 needs no asking: the daemon classifies each of its
    /// packets.
    ///
    /// # Errors
    /// [`VnicError::NotOpened`] when there is none, [`VnicError::Closed`] when the daemon has gone.
    pub fn open_flow(&mut self, spec: &FlowSpec) -> Result<u32, VnicError> {
        match self.ask(Message::Open(*spec))? {
            Message::Opened(queue) if (queue as usize) < self.flows.len() => Ok(queue),
            Message::NotOpened(why) => Err(why.into()),
            _ => Err(self.nonsense()),
        }
    }

    /// The flow queue for packets with these headers, as the daemon's rules say: from this client's cache, or, when no rule
    /// there fits, after asking. To be called for each packet: a rule holds until the policy changes, which a word in
    /// shared memory tells, and the daemon then tells anew what it had told.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the daemon has gone.
    #[inline]
    pub fn queue_for(&mut self, flow: &FlowSpec) -> Result<u32, VnicError> {
        let in_force = self.generation();
        self.rules.heed(in_force);
        // Acquire: pairs with the daemon's Release; what it counts has been sent.
        let news = self.region.word32(header::NEWS).load(Ordering::Acquire);
        if news != self.news {
            self.hear(news)?;
        }
        match self.rules.find(flow) {
            Some(queue) => Ok(queue),
            None => self.learn(flow),
        }
    }

    /// The flow queue for such a frame; queue 0 for what is not parsed here.
    ///
    /// # Errors
    /// As [`Vnic::queue_for`].
    pub fn classify(&mut self, frame: &[u8]) -> Result<u32, VnicError> {
        FlowSpec::of_frame(frame).map_or(Ok(0), |flow| self.queue_for(&flow))
    }

    /// What the cache of rules has done.
    #[must_use]
    pub fn rule_counts(&self) -> RuleCounts {
        self.rules.counts
    }

    /// A miss: asks the daemon.
    #[cold]
    fn learn(&mut self, flow: &FlowSpec) -> Result<u32, VnicError> {
        // What was posted under earlier rules is told of first: a flow queue that leads elsewhere now must be empty.
        self.ring()?;
        for _ in 0..RELOADS {
            let Message::Rule(rule) = self.ask(Message::Ask(*flow))? else { return Err(self.nonsense()) };
            if (rule.queue as usize) >= self.flows.len() {
                return Err(self.nonsense());
            }
            let in_force = self.generation();
            if self.rules.learn(&rule, in_force) {
                return Ok(rule.queue);
            }
        }
        // Policies follow each other faster than answers: the daemon classifies.
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

    /// Reads what the daemon has told without being asked.
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
        if (rule.queue as usize) >= self.flows.len() {
            return Err(self.nonsense());
        }
        let in_force = self.generation();
        self.rules.learn(rule, in_force);
        Ok(())
    }

    fn nonsense(&self) -> VnicError {
        VnicError::Answer { path: self.path.clone() }
    }

    /// Gives a flow queue back. What was posted and not rung for is lost.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the daemon has gone.
    pub fn close_flow(&mut self, queue: u32) -> Result<(), VnicError> {
        socket::send_message(&self.socket, Message::Close(queue), &[]).map_err(|_| VnicError::Closed)
    }

    /// A buffer to fill, if one is free. One that is dropped instead of posted is lost to this client.
    pub fn buffer(&mut self) -> Option<Buffer> {
        self.free.pop().map(Buffer)
    }

    /// Writes into a buffer from `at` on. Panics beyond its 2,048 bytes.
    pub fn fill(&mut self, buffer: &Buffer, at: usize, bytes: &[u8]) {
        assert!(at <= BUFFER && bytes.len() <= BUFFER - at, "bytes of one buffer");
        let begin = self.buffer_at(buffer.0);
        self.region.write(begin + at, bytes);
    }

    /// Posts the first `len` bytes of a buffer as a frame. Its buffer is free again when it completes.
    ///
    /// # Errors
    /// The buffer, when there is no room.
    pub fn post(&mut self, queue: u32, buffer: Buffer, len: usize) -> Result<(), Buffer> {
        assert!(len <= BUFFER, "bytes of one buffer");
        if !self.has_room(queue, 1) {
            return Err(buffer);
        }
        let descriptor = Descriptor {
            addr: u64::from(buffer.0) * BUFFER as u64,
            len: len as u32,
            cookie: buffer.0,
            ..Descriptor::default()
        };
        self.next[buffer.0 as usize] = NONE;
        self.put(queue, &descriptor);
        self.tell(queue);
        Ok(())
    }

    /// Copies a finished frame into buffers and posts it.
    ///
    /// # Errors
    /// [`Busy`] when there is no room.
    #[inline]
    pub fn send(&mut self, queue: u32, frame: &[u8]) -> Result<(), Busy> {
        self.send_with(queue, frame, &Offload::default(), 0)
    }

    /// Copies a frame into buffers and posts it, with work left to the daemon (checksum, segmentation) and a slack or
    /// deadline in microseconds (0: the class's own).
    ///
    /// # Errors
    /// [`Busy`] when there is no room. Panics on a frame beyond 80 KiB.
    #[inline]
    pub fn send_with(&mut self, queue: u32, frame: &[u8], offload: &Offload, tag: u32) -> Result<(), Busy> {
        self.send_gathered(queue, &[frame], offload, tag)
    }

    /// The same for a frame that lies in several places, headers here and payload there: each begins a descriptor of its
    /// own, and none is put together before the daemon takes the frame.
    ///
    /// # Errors
    /// As [`Vnic::send_with`]. Panics on a frame of more than 40 descriptors.
    pub fn send_gathered(
        &mut self,
        queue: u32,
        parts: &[&[u8]],
        offload: &Offload,
        tag: u32,
    ) -> Result<(), Busy> {
        let pieces: usize = parts.iter().map(|part| part.len().div_ceil(BUFFER)).sum::<usize>().max(1);
        assert!(pieces <= MAX_PIECES, "a frame of 64 KiB, in 40 pieces at most");
        if !self.has_room(queue, pieces as u32) || self.free.len() < pieces {
            return Err(Busy);
        }
        let mut first = NONE;
        let mut before = NONE;
        let mut left = pieces;
        // A frame of nothing is a piece of nothing, which the daemon refuses.
        let none: [&[u8]; 1] = [&[]];
        let all = parts.iter().flat_map(|part| part.chunks(BUFFER));
        for piece in all.chain(none.into_iter().filter(|_| parts.iter().all(|part| part.is_empty()))) {
            let Some(buffer) = self.free.pop() else { return Err(Busy) };
            let begin = self.buffer_at(buffer);
            self.region.write(begin, piece);
            if first == NONE {
                first = buffer;
            } else {
                self.next[before as usize] = buffer;
            }
            (before, self.next[buffer as usize]) = (buffer, NONE);
            left -= 1;
            let descriptor = Descriptor {
                addr: u64::from(buffer) * BUFFER as u64,
                len: piece.len() as u32,
                more: left > 0,
                offload: *offload,
                tag,
                cookie: first,
            };
            self.put(queue, &descriptor);
        }
        self.tell(queue);
        Ok(())
    }

    /// Gives the descriptors of a flow queue that bring no slack or deadline this one, in microseconds, with the next
    /// [`Vnic::ring`].
    ///
    /// # Errors
    /// [`Busy`] when the batch of doorbells is full: ring first.
    pub fn set_tag(&mut self, queue: u32, tag: u32) -> Result<(), Busy> {
        if self.batch.len() + 6 > self.layout.sizes().doorbell_words as usize / 2 {
            return Err(Busy);
        }
        doorbell::tag(queue, tag, &mut self.batch);
        Ok(())
    }

    /// Tells the daemon of everything posted since the last call: one store for all, and a wake-up if it sleeps.
    /// Answers whether the doorbells found room; if not, ring again later.
    ///
    /// # Errors
    /// What the kernel says to the wake-up.
    pub fn ring(&mut self) -> io::Result<bool> {
        let words = self.layout.sizes().doorbell_words;
        if self.batch.is_empty() {
            return Ok(true);
        }
        // Acquire: pairs with the daemon's Release; words before the head may be written again.
        let head = self.region.word32(self.layout.doorbell_head(CORE)).load(Ordering::Acquire);
        let room = words - self.bell_tail.wrapping_sub(head).min(words);
        if self.batch.len() > room as usize {
            self.kick()?;
            return Ok(false);
        }
        for &word in &self.batch {
            let at = self.layout.doorbell_word(CORE, self.bell_tail);
            self.region.word16(at).store(word, Ordering::Relaxed);
            self.bell_tail = self.bell_tail.wrapping_add(1);
            // The words of a tag may look like a queue: its tail is stored in vain then.
            if let Some(flow) = self.flows.get_mut(usize::from(word)) {
                flow.rung = false;
                // Release: pairs with the daemon's Acquire, so that whoever sees the tail also sees descriptors and
                // bytes. One store for all that the batch brings this ring, as each costs the daemon's copy of the line.
                self.region
                    .word32(self.layout.ring_tail(u32::from(word)))
                    .store(flow.tail, Ordering::Release);
            }
        }
        self.batch.clear();
        // Release: pairs with the daemon's Acquire, so that whoever sees the tail also sees the words.
        self.region.word32(self.layout.doorbell_tail(CORE)).store(self.bell_tail, Ordering::Release);
        self.kick()?;
        Ok(true)
    }

    /// Tells of each frame that is through since the last call; its buffers are free again. Answers how many.
    pub fn poll_completions(&mut self, mut tell: impl FnMut(Completion)) -> usize {
        // Acquire: pairs with the daemon's Release, so that the entries before the tail are whole.
        let tail = self.region.word32(self.layout.completion_tail()).load(Ordering::Acquire);
        let count = tail.wrapping_sub(self.completion_head).min(self.layout.sizes().completions);
        for _ in 0..count {
            tell(self.take_completion());
        }
        count as usize
    }

    /// The next frame that is through; its buffers are free again.
    pub fn next_completion(&mut self) -> Option<Completion> {
        // Acquire: as in `poll_completions`.
        let tail = self.region.word32(self.layout.completion_tail()).load(Ordering::Acquire);
        (self.completion_head != tail).then(|| self.take_completion())
    }
    /// Copies the oldest received frame out and answers its length. What does not fit is cut off.
    pub fn receive(&mut self, into: &mut [u8]) -> Option<usize> {
        // Acquire: pairs with the daemon's Release, so that the frame is whole.
        let tail = self.region.word32(self.layout.used_tail()).load(Ordering::Acquire);
        if self.used_head == tail {
            return None;
        }
        let used = Used::load(&self.region, self.layout.used(self.used_head));
        self.used_head = self.used_head.wrapping_add(1);
        let len = (used.len as usize).min(BUFFER).min(into.len());
        let buffer = used.cookie.min(self.layout.sizes().buffers - 1);
        self.region.read(self.buffer_at(buffer), &mut into[..len]);
        self.post_receive(buffer);
        Some(len)
    }

    /// Frames on their way.
    #[must_use]
    pub fn on_their_way(&self) -> u32 {
        self.on_their_way
    }

    /// Sleeps until a frame has completed or come in, at most `millis` (for ever when negative). Answers whether there
    /// is something to poll for.
    ///
    /// # Errors
    /// [`VnicError::Closed`] when the daemon has gone.
    pub fn wait(&mut self, millis: i32) -> Result<bool, VnicError> {
        self.region.word32(header::CLIENT_WAITS).store(1, Ordering::Relaxed);
        // Orders the flag before the look that follows; pairs with the daemon's fence after it has written.
        fence(Ordering::SeqCst);
        if self.has_news() {
            self.region.word32(header::CLIENT_WAITS).store(0, Ordering::Relaxed);
            return Ok(true);
        }
        let woken = self.sleep(millis)?;
        self.region.word32(header::CLIENT_WAITS).store(0, Ordering::Relaxed);
        if woken {
            let mut bytes = [0; 64];
            // It does not block, and empty is fine.
            let _ = nix::unistd::read(&self.wake, &mut bytes);
        }
        Ok(self.has_news())
    }

    /// What becomes readable when [`Vnic::wait`] would end, for a program with a loop of its own: set up by
    /// [`Vnic::wait`] with 0 milliseconds, which answers that nothing is there.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The shared region, for tests of the daemon.
    #[doc(hidden)]
    #[must_use]
    pub fn region(&self) -> (&Region, &Layout) {
        (&self.region, &self.layout)
    }

    fn take_completion(&mut self) -> Completion {
        let at = self.layout.completion(self.completion_head);
        let first = self.region.word64(at).load(Ordering::Relaxed);
        let descriptors = self.region.word64(at + 8).load(Ordering::Relaxed) as u32;
        self.completion_head = self.completion_head.wrapping_add(1);
        let (cookie, queue) = (first as u32, u32::from((first >> 32) as u16));
        self.free_chain(cookie);
        self.on_their_way = self.on_their_way.saturating_sub(1);
        if let Some(flow) = self.flows.get_mut(queue as usize) {
            flow.used = flow.used.saturating_sub(descriptors);
        }
        Completion { queue, status: Status::from_word((first >> 48) as u16) }
    }

    fn has_news(&self) -> bool {
        let word = |at| self.region.word32(at).load(Ordering::Acquire);
        word(self.layout.completion_tail()) != self.completion_head
            || word(self.layout.used_tail()) != self.used_head
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

    #[inline]
    fn has_room(&self, queue: u32, pieces: u32) -> bool {
        let sizes = self.layout.sizes();
        let Some(flow) = self.flows.get(queue as usize) else { return false };
        flow.used + pieces <= sizes.ring && self.on_their_way < sizes.completions
    }

    #[inline]
    fn put(&mut self, queue: u32, descriptor: &Descriptor) {
        let flow = &mut self.flows[queue as usize];
        descriptor.store(&self.region, self.layout.descriptor(queue, flow.tail));
        flow.tail = flow.tail.wrapping_add(1);
        flow.used += 1;
    }

    /// A whole frame is in its ring: notes its queue in the batch, with which its tail is published.
    #[inline]
    fn tell(&mut self, queue: u32) {
        self.on_their_way += 1;
        let flow = &mut self.flows[queue as usize];
        if !flow.rung {
            flow.rung = true;
            doorbell::bell(queue, &mut self.batch);
        }
    }

    fn kick(&self) -> io::Result<()> {
        // Orders the tail before the look at the flag; pairs with the daemon's fence between flag and last look.
        fence(Ordering::SeqCst);
        let waits = self.region.word32(header::DAEMON_WAITS);
        if waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0 {
            nix::unistd::write(&self.kick, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn post_receive(&mut self, buffer: u32) {
        let posted = Posted { addr: u64::from(buffer) * BUFFER as u64, len: BUFFER as u32, cookie: buffer };
        posted.store(&self.region, self.layout.posted(self.posted_tail));
        self.posted_tail = self.posted_tail.wrapping_add(1);
        // Release: pairs with the daemon's Acquire, so that whoever sees the tail also sees the entry.
        self.region.word32(self.layout.posted_tail()).store(self.posted_tail, Ordering::Release);
    }

    fn free_chain(&mut self, first: u32) {
        let mut buffer = first;
        while let Some(next) = self.next.get_mut(buffer as usize) {
            let following = core::mem::replace(next, NONE);
            self.free.push(buffer);
            buffer = following;
        }
    }

    fn buffer_at(&self, buffer: u32) -> usize {
        let at = self.layout.in_buffers(u64::from(buffer) * BUFFER as u64, BUFFER as u32);
        at.expect("a buffer's number is below their count")
    }
}

impl AsRawFd for Vnic {
    /// The descriptor of [`Vnic::wake_fd`].
    fn as_raw_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }
}

/// A daemon that has just lost a client makes the socket anew a moment later.
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
