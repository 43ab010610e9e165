//! A port of any kind, behind one type.
//!
//! Why: the daemon polls TAPs, sockets and files in one loop, whatever their kind.
//! From: an enum with a `match` rather than a trait object, so that no call per packet goes through a table of functions.
//! Not here: threads, waiting, classification, and any decision on which frame goes next.
//! Invariant: every frame accepted or refused is counted once, as sent or with the reason why not.

mod served;

use plimsoll_vnic::Status;
use plimsoll_wire::VnetHeader;

use crate::af_packet::PacketSocket;
use crate::af_xdp::XdpSocket;
use crate::apart::Apart;
use crate::contract::{Batch, Capabilities, Fds, Level, MOST_LENT, Outgoing, Received, Trouble};
use crate::counters::{Counters, DropReason, PairCounters, Sending};
use crate::error::PortError;
use crate::frame::Frame;
use crate::ledger::Refused;
use crate::mapped::SenderBytes;
use crate::memory::MemoryPort;
use crate::pcap::PcapPort;
use crate::posted::{Ticket, Took};
use crate::shared_memory::{QueuesLeft, VnicAnswer, VnicPort, VnicRequest};
use crate::tap::Tap;
use crate::vhost_user::VhostUser;

/// A port, through which packets enter and leave.
#[derive(Debug)]
pub enum Port {
    /// A TAP interface in some network namespace.
    Tap(Tap),
    /// An interface through a packet socket.
    AfPacket(PacketSocket),
    /// One queue of an interface through AF_XDP.
    AfXdp(XdpSocket),
    /// Capture files.
    Pcap(PcapPort),
    /// A connection to another port in this process.
    Memory(MemoryPort),
    /// A client process, through shared memory.
    Vnic(VnicPort),
    /// A virtual machine, through its virtio rings.
    VhostUser(VhostUser),
    /// A vNIC or virtual machine, served by a thread of its own.
    Apart(Box<Apart<Self>>),
}

/// Evaluates `$call` with `$it` bound to the variant's port.
macro_rules! each {
    ($port:expr, $it:ident => $call:expr) => {
        match $port {
            Port::Tap($it) => $call,
            Port::AfPacket($it) => $call,
            Port::AfXdp($it) => $call,
            Port::Pcap($it) => $call,
            Port::Memory($it) => $call,
            Port::Vnic($it) => $call,
            Port::VhostUser($it) => $call,
            Port::Apart($it) => $call,
        }
    };
}

impl Port {
    /// Reads one frame into `buffer`, which must hold [`crate::FRAME_ROOM`] bytes; `None` when none waits.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries no frames.
    #[inline]
    pub fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Received>, Trouble> {
        each!(self, port => port.receive(buffer))
    }

    /// Reads one frame, of at most as many bytes as `buffer` has, and hands it to `take` where it lies: in memory of the port, or in
    /// `buffer` if the port has to copy it. `None` when no frame waits.
    ///
    /// # Errors
    /// As for [`Port::receive`].
    #[inline]
    pub fn receive_with<R>(
        &mut self,
        buffer: &mut [u8],
        take: impl FnOnce(&[u8], &Received) -> R,
    ) -> Result<Option<R>, Trouble> {
        match self {
            Self::Memory(port) => port.receive_with(buffer.len(), take),
            Self::AfXdp(port) => port.receive_with(buffer.len(), take),
            Self::AfPacket(port) => port.receive_with(buffer, take),
            port => {
                let received = port.receive(buffer)?;
                Ok(received.map(|received| take(&buffer[..received.len], &received)))
            }
        }
    }

    /// Takes up to `most` frames, and up to [`MOST_LENT`], each of at most as many bytes as `buffer` has. Where the port has them in its
    /// memory, the batch looks at all of them before it takes the first; otherwise at each one before it takes that. Answers how many
    /// frames came, those included that are too long, which are lost; 0 when none waits.
    ///
    /// # Errors
    /// As for [`Port::receive`]. What came before is taken.
    #[inline]
    pub fn receive_batch(
        &mut self,
        buffer: &mut [u8],
        most: usize,
        batch: &mut impl Batch,
    ) -> Result<usize, Trouble> {
        let most = most.min(MOST_LENT);
        match self {
            Self::Memory(port) => return port.receive_batch(buffer.len(), most, batch),
            Self::AfXdp(port) => return port.receive_batch(buffer.len(), most, batch),
            _ => {}
        }
        for at in 0..most {
            let taken = self.receive_with(buffer, |frame, received| {
                batch.look(at, frame);
                batch.take(at, frame, received);
            });
            match taken {
                Ok(Some(())) => {}
                Err(trouble) if at == 0 => return Err(trouble),
                // Trouble comes again with the next call.
                Ok(None) | Err(_) => return Ok(at),
            }
        }
        Ok(most)
    }

    /// Sends one frame. A port without virtio-net headers refuses a `vnet` that asks for an offload.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries no frames. The frame is not counted; the caller may try again or count
    /// it as lost.
    #[inline]
    pub fn send(&mut self, frame: &[u8], vnet: Option<&VnetHeader>) -> Result<Sending, Trouble> {
        each!(self, port => port.send(frame, vnet))
    }

    /// Sends frames in order until one finds no room, flushes, and returns the number of frames that were sent, or refused
    /// and counted. Uses one system call for many frames where the device can.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries no frames.
    pub fn send_batch(&mut self, frames: &[Outgoing<'_>]) -> Result<usize, Trouble> {
        for (done, out) in frames.iter().enumerate() {
            if self.send(out.frame, out.vnet)? == Sending::Full {
                self.flush()?;
                return Ok(done);
            }
        }
        self.flush()?;
        Ok(frames.len())
    }

    /// Whether received frames lie in memory shared with their sender. Such frames are taken one by one, with
    /// [`Port::begin`], [`Port::take`] and [`Port::copy`], and completed when they have left.
    #[must_use]
    #[inline]
    pub fn is_posted(&self) -> bool {
        matches!(self, Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_))
    }

    /// Number of descriptors that the sender has for frames in flight, where frames beyond the engine's room can wait with
    /// the sender; none where they cannot.
    #[must_use]
    #[inline]
    pub fn depth(&self) -> Option<u32> {
        match self {
            Self::VhostUser(port) => port.depth(),
            Self::Apart(port) => port.shown().depth,
            _ => None,
        }
    }

    /// Begins a batch of [`Port::take`].
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries no frames.
    #[inline]
    pub fn begin(&mut self) -> Result<(), Trouble> {
        match self {
            Self::Vnic(port) => port.begin(),
            Self::VhostUser(port) => port.begin(),
            Self::Apart(port) => port.begin(),
            _ => Ok(()),
        }
    }

    /// Takes the next posted frame. A client's flow queue may have at most `window` frames in flight; the rest wait in it.
    #[inline]
    pub fn take(&mut self, window: u32) -> Took {
        match self {
            Self::Vnic(port) => port.take(window),
            Self::VhostUser(port) => port.take(),
            Self::Apart(port) => port.take(),
            _ => Took::Nothing,
        }
    }

    /// Takes the frame that was posted right behind the one taken last, which has this ticket: in the same ring, or the same flow
    /// queue, of which at most `window` frames may be in flight. [`Took::Nothing`] for a port on a thread of its own.
    #[inline]
    pub fn take_after(&mut self, ticket: Ticket, window: u32) -> Took {
        match self {
            Self::VhostUser(port) => port.take_after(ticket),
            Self::Vnic(port) => port.take_after(ticket, window),
            _ => Took::Nothing,
        }
    }

    /// Whether [`Port::take_like`] may take frames.
    #[must_use]
    #[inline]
    pub fn takes_like(&self) -> bool {
        matches!(self, Self::VhostUser(_))
    }

    /// Takes the frame posted right behind the one taken last, which has this ticket and is of `len` bytes, if it is like that one but
    /// for its bytes; copies as many of its first bytes as `into` has, and leaves the others with its sender if it is `late`. Returns
    /// the cookie of its ticket.
    #[inline]
    pub fn take_like(&mut self, ticket: Ticket, len: usize, late: bool, into: &mut [u8]) -> Option<u32> {
        match self {
            Self::VhostUser(port) => port.take_like(ticket, len, late, into),
            _ => None,
        }
    }

    /// Copies the frame taken last. Panics when `into` is shorter than the frame.
    #[inline]
    pub fn copy(&self, into: &mut [u8]) {
        match self {
            Self::Vnic(port) => port.copy(into),
            Self::VhostUser(port) => port.copy(into),
            Self::Apart(port) => port.copy(into),
            _ => {}
        }
    }

    /// Whether the payload of the frame taken last may stay with its sender until the frame leaves: [`Port::leave`].
    #[must_use]
    #[inline]
    pub fn keeps(&self) -> bool {
        match self {
            Self::VhostUser(port) => port.keeps(),
            Self::Vnic(_) => true,
            _ => false,
        }
    }

    /// Offers all frames in flight once more, if bytes of one were left with their sender, as the owner cannot read them there any
    /// longer. Returns a session: what the owner has with tickets from before it ([`Ticket::is_before`]) is not to be sent.
    pub fn offer_again(&mut self) -> Option<u32> {
        match self {
            Self::VhostUser(port) => port.offer_again(),
            _ => None,
        }
    }

    /// Copies the first bytes of the frame taken last, from a port that [`Port::keeps`] is true of.
    #[inline]
    pub fn peek(&self, front: &mut [u8]) {
        match self {
            Self::VhostUser(port) => port.peek(front),
            Self::Vnic(port) => port.peek(front),
            _ => {}
        }
    }

    /// Leaves the bytes of the frame taken last, which has this ticket, with their sender until the frame completes, but for the
    /// `first` ones, from a port that [`Port::keeps`] is true of. Returns the ticket that the frame completes with.
    #[inline]
    pub fn leave(&mut self, first: usize, ticket: Ticket) -> Ticket {
        match self {
            Self::VhostUser(port) => port.leave(first, ticket),
            Self::Vnic(port) => return port.leave(first, ticket),
            _ => {}
        }
        ticket
    }

    /// The bytes of a frame that [`Port::leave`] left with their sender; none once the sender has stopped its rings, or is gone.
    #[must_use]
    #[inline(always)]
    pub fn kept(&self, ticket: Ticket) -> Option<SenderBytes<'_>> {
        match self {
            Self::VhostUser(port) => port.kept(ticket),
            Self::Vnic(port) => port.kept(ticket),
            _ => None,
        }
    }

    /// Whether the port takes a payload straight from its sender's memory: [`Port::send_gathered`].
    #[must_use]
    #[inline]
    pub fn gathers(&self) -> bool {
        matches!(self, Self::VhostUser(_) | Self::Vnic(_) | Self::Tap(_))
    }

    /// Whether a frame can be made where the port sends it from: [`Port::place`].
    #[must_use]
    #[inline]
    pub fn places(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::AfXdp(_) | Self::AfPacket(_))
    }

    /// Sends a frame of `len` bytes that `fill` writes where the port sends it from; if `fill` answers that it could not, there is
    /// no frame, and the port counts none. Only for ports that [`Port::places`] is true of; the others refuse it.
    ///
    /// # Errors
    /// As for [`Port::send`].
    pub fn place(
        &mut self,
        len: usize,
        vnet: Option<&VnetHeader>,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Sending, Trouble> {
        match self {
            Self::Memory(port) => port.place(len, vnet, fill),
            Self::AfXdp(port) => port.place(len, vnet, fill),
            Self::AfPacket(port) => port.place(len, vnet, fill),
            _ => Ok(Sending::Refused(DropReason::BadOffload)),
        }
    }

    /// Sends a frame that consists of a header and a payload, of which a part may lie with its sender. Only for ports that
    /// [`Port::gathers`] is true of; the others refuse it.
    ///
    /// # Errors
    /// As for [`Port::send`].
    pub fn send_gathered(
        &mut self,
        header: &[u8],
        payload: &Frame<'_>,
        vnet: Option<&VnetHeader>,
    ) -> Result<Sending, Trouble> {
        match self {
            Self::VhostUser(port) => port.send_gathered(header, payload, vnet),
            Self::Vnic(port) => port.send_gathered(header, payload, vnet),
            Self::Tap(port) => port.send_gathered(header, payload, vnet),
            _ => Ok(Sending::Refused(DropReason::BadOffload)),
        }
    }

    /// Completes a frame; [`Port::flush`] shows that to its sender. Returns whether another frame may be taken now.
    #[inline]
    pub fn complete(&mut self, ticket: Ticket, status: Status) -> bool {
        match self {
            Self::Vnic(port) => port.complete(ticket, status),
            Self::VhostUser(port) => port.complete(ticket),
            Self::Apart(port) => {
                port.complete(ticket, status);
                false
            }
            _ => false,
        }
    }

    /// Completes frames of the same rings, or the same flow queue, as the one with this ticket, from the cookies of their tickets. Returns
    /// whether another frame may be taken now.
    #[inline]
    pub fn complete_all(&mut self, first: Ticket, frames: impl Iterator<Item = (u32, Status)>) -> bool {
        match self {
            Self::VhostUser(port) => {
                port.complete_all(first, frames.map(|(cookie, _)| cookie));
                false
            }
            _ => frames
                .fold(false, |more, (cookie, status)| self.complete(first.following(cookie), status) || more),
        }
    }

    /// The next request of a vNIC's client, to be answered by [`Port::answer`]; none when there is none. Reads at most one
    /// message.
    pub fn request(&mut self) -> Option<VnicRequest> {
        match self {
            Self::Vnic(port) => port.request(),
            Self::Apart(port) => port.request(),
            _ => None,
        }
    }

    /// Sets whether requests of a vNIC's client are left unread; held requests do not keep the owner awake.
    pub fn hold_requests(&mut self, hold: bool) {
        match self {
            Self::Vnic(port) => port.hold_requests(hold),
            Self::Apart(port) => port.hold_requests(hold),
            _ => {}
        }
    }

    /// Whether a vNIC's client had unopened flow queues left at its last request.
    #[must_use]
    pub fn queues_left(&self) -> QueuesLeft {
        match self {
            Self::Vnic(port) => port.queues_left(),
            Self::Apart(port) => port.queues_left(),
            _ => QueuesLeft::default(),
        }
    }

    /// Answers the request that was read last.
    pub fn answer(&mut self, answer: VnicAnswer) {
        match self {
            Self::Vnic(port) => port.answer(&answer),
            Self::Apart(port) => port.answer(answer),
            _ => {}
        }
    }

    /// Asks the sender to ring when there are new frames to take. Returns whether the owner may sleep.
    pub fn rest(&mut self) -> bool {
        match self {
            Self::Vnic(port) => port.rest(),
            Self::VhostUser(port) => port.rest(),
            Self::Apart(port) => port.rest(),
            _ => true,
        }
    }

    /// Makes accepted frames leave. Call it at the end of each batch, and again while [`Port::pending`].
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries no frames.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Trouble> {
        each!(self, port => port.flush())
    }

    /// Frames accepted by [`Port::send`] that the device has not taken yet.
    #[must_use]
    pub fn staged(&self) -> usize {
        match self {
            Self::AfPacket(port) => port.staged(),
            Self::AfXdp(port) => port.staged(),
            Self::Memory(port) => port.staged(),
            Self::Tap(_) | Self::Pcap(_) | Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_) => 0,
        }
    }

    /// Number of frames accepted by [`Port::send`] so far; 0 for ports that never refuse an accepted frame.
    #[must_use]
    pub fn taken(&self) -> u64 {
        match self {
            Self::AfPacket(port) => port.taken(),
            Self::AfXdp(port) => port.taken(),
            Self::Pcap(port) => port.taken(),
            Self::Memory(port) => port.taken(),
            Self::Tap(_) | Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_) => 0,
        }
    }

    /// The next range of accepted frames that could not be sent, by number. Each range is reported once; its frames are
    /// counted as lost by the port.
    pub fn take_refused(&mut self) -> Option<Refused> {
        match self {
            Self::AfPacket(port) => port.take_refused(),
            Self::AfXdp(port) => port.take_refused(),
            Self::Pcap(port) => port.take_refused(),
            Self::Memory(port) => port.take_refused(),
            Self::Tap(_) | Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_) => None,
        }
    }

    /// Whether frames are staged: call [`Port::flush`] again soon, and do not close the port before they have left.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.staged() > 0
    }

    /// The hardware address of the interface behind the port, where there is only one, as behind a TAP.
    #[must_use]
    pub fn tenant_mac(&self) -> Option<[u8; 6]> {
        match self {
            Self::Tap(port) => Some(port.mac()),
            Self::Memory(port) => port.tenant_mac(),
            Self::Vnic(port) => port.tenant_mac(),
            Self::VhostUser(port) => port.tenant_mac(),
            Self::Apart(port) => port.shown().mac,
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Pcap(_) => None,
        }
    }

    /// The file descriptors to wait on.
    #[must_use]
    pub fn fds(&self) -> Fds {
        each!(self, port => port.fds())
    }

    /// Whether frames can come without a wake-up, so that the port must be polled now and then.
    #[must_use]
    pub fn must_be_asked(&self) -> bool {
        match self {
            Self::Pcap(port) => !port.finished(),
            port => port.fds().receive.is_none(),
        }
    }

    /// Whether a look is enough to see that asking the port would find nothing; `false` where only asking tells.
    #[must_use]
    #[inline]
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Memory(port) if port.is_quiet())
    }

    /// Whether the port serves clients that connect and leave, so that the end of one is no failure.
    #[must_use]
    pub fn has_clients(&self) -> bool {
        matches!(self, Self::Vnic(_) | Self::VhostUser(_) | Self::Apart(_))
    }

    /// Checks that the port still works; call it when `poll` reports an error or a hang-up.
    ///
    /// # Errors
    /// [`Trouble`] when the port as a whole carries no frames.
    pub fn probe(&mut self) -> Result<(), Trouble> {
        each!(self, port => port.probe())
    }

    /// Whether the port's device carries no frames, as it is set down or has no carrier; known of packet sockets, AF_XDP, and ports in memory.
    #[must_use]
    pub fn is_down(&self) -> bool {
        match self {
            Self::AfPacket(port) => port.is_down(),
            Self::AfXdp(port) => port.is_down(),
            Self::Memory(port) => port.is_down(),
            _ => false,
        }
    }

    /// Has several ports of one interface share the frames that arrive there: all frames of a flow come by the same port. For packet
    /// sockets; queues of AF_XDP and ports in memory are apart from each other already.
    ///
    /// # Errors
    /// When the kernel does not do that, or the ports are of another kind.
    pub fn fan_out(ports: &mut [Self]) -> Result<(), PortError> {
        let mut sockets = Vec::with_capacity(ports.len());
        for port in ports.iter_mut() {
            match port {
                Self::AfPacket(socket) => sockets.push(socket),
                Self::AfXdp(_) | Self::Memory(_) => {}
                other => {
                    let why = std::io::Error::other("it has one queue that Plimsoll uses");
                    return Err(PortError::system("divide the frames of", other.name(), why));
                }
            }
        }
        if sockets.is_empty() { Ok(()) } else { PacketSocket::fan_out(&mut sockets) }
    }

    /// Takes back the frames that are staged and that the device has not seen, in order, with their headers: another port
    /// may send them. They are not counted. AF_XDP's staged frames lie in a ring that the kernel reads, and stay there.
    pub fn recall(&mut self, mut each: impl FnMut(&[u8], Option<&VnetHeader>)) {
        match self {
            Self::AfPacket(port) => port.recall(&mut each),
            Self::Memory(port) => port.recall(&mut each),
            _ => {}
        }
    }

    /// Whether messages of a front end are left unread; `epoll` will not report them again.
    #[must_use]
    pub fn has_more_to_say(&self) -> bool {
        matches!(self, Self::VhostUser(port) if port.has_more_to_say())
    }

    /// Why frames are being lost, for the log; reported once when that begins.
    pub fn take_problem(&mut self) -> Option<PortError> {
        match self {
            Self::Pcap(port) => port.take_problem(),
            Self::VhostUser(port) => port.take_problem(),
            Self::Apart(port) => port.take_problem(),
            Self::AfXdp(port) => port.take_problem(),
            Self::Tap(port) => port.take_problem(),
            Self::AfPacket(_) | Self::Memory(_) | Self::Vnic(_) => None,
        }
    }

    /// Whether a TAP's place in the policy is another namespace by now, and only this port keeps the one of before.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        matches!(self, Self::Tap(tap) if tap.is_left_behind())
    }

    /// What a TAP's interface lacks of its configuration, and why.
    #[must_use]
    pub fn lacks(&self) -> Option<&str> {
        match self {
            Self::Tap(tap) => tap.lacks(),
            _ => None,
        }
    }

    /// A TAP's interface has been configured anew, as a whole.
    pub fn set_whole(&mut self) {
        if let Self::Tap(tap) = self {
            tap.set_whole();
        }
    }

    /// The offloads and MTU of the port.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        each!(self, port => port.capabilities())
    }

    /// The port's traffic so far.
    #[must_use]
    pub fn counters(&mut self) -> Counters {
        each!(self, port => port.counters())
    }

    /// Counters of each pair of rings, up to the last in use; empty for ports without such rings.
    #[must_use]
    pub fn pairs(&self) -> Vec<PairCounters> {
        match self {
            Self::VhostUser(port) => port.pairs(),
            Self::Apart(port) => port.shown().pairs.clone(),
            _ => Vec::new(),
        }
    }

    /// The level of backpressure that the port gives its guest.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::VhostUser(port) => port.level(),
            Self::Apart(port) => port.shown().level.unwrap_or(Level::L0),
            Self::Vnic(_) => Level::L3,
            _ => Level::L0,
        }
    }

    /// Counts a TAP's traffic from here on, as it has another owner; does nothing for other ports.
    pub fn restart_counters(&mut self) {
        if let Self::Tap(tap) = self {
            tap.restart_counters();
        }
    }

    /// Has a TAP's interface stay when the port is closed, or not; does nothing for other ports.
    ///
    /// # Errors
    /// When the interface has disappeared.
    pub fn set_persist(&self, persist: bool) -> std::io::Result<()> {
        match self {
            Self::Tap(tap) => tap.set_persist(persist),
            _ => Ok(()),
        }
    }

    /// The port's name for operators: `tap shop/eth0`, `af_xdp eth1 (copy)`.
    #[must_use]
    pub fn name(&self) -> String {
        each!(self, port => port.name())
    }

    /// Flushes and closes the port, and returns its final counters.
    pub fn close(mut self) -> Counters {
        // A port that has gone cannot be flushed, and need not be.
        let _ = self.flush();
        self.counters()
    }
}
